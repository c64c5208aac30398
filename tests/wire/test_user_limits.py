"""Limits for authors' code: time for one frame, and the memory of the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, RetryableError, connect, udaf
from foldflight.client import FlightTransport, OpenExchange, close_connections
from foldflight.exchange.frames import Open, Returns
from foldflight.functions.query.call import Call, Step, StepArgument
from foldflight.server.run.lifecycle import EXIT_SPENT, ProcessServer, serving
from foldflight.shipping.bundles import Bundle, made_here, seal
from tests.wire import limit_functions
from tests.wire.kit import (
    DEADLINE_S,
    IMPATIENT,
    PATIENCE_S,
    ServerProcess,
    end_epoch,
    eventually,
    open_request,
    opened_apart,
    rows,
)
from tests.wire.limit_functions import ENDLESS
from tests.wire.test_probes import page

FOLD_S_MAX = 1.0
HOARDING = open_request(Call("hoards", ("value",)), returns=Returns(states=False, outputs=True))
KEY = "a key for endless bundles"
Spawn = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def limited_server() -> Iterator[ProcessServer]:
    """A server with a short fold_s_max."""
    with serving(limit_functions, fold_s_max=FOLD_S_MAX, http_port=0, bundle_keys=KEY) as server:
        yield server
    close_connections()


def transport_to(server: Any) -> FlightTransport:
    """Return a transport to one server, without patience."""
    return FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)


def drive(server: ProcessServer, name: str, **options: Any) -> None:
    """Fold, merge and request values, so that each method is called with 13."""
    call = Call(name, ("value",))
    with transport_to(server).open(open_request(call, **options)) as exchange:
        exchange.chunk(rows((0, 0, 5), (3, 0, ENDLESS), (3, 0, 1)))
        if name == "loops_in_merge":
            exchange.chunk(rows((7, 0, ENDLESS)))
            states = end_epoch(exchange, 1).combine_chunks().to_batches()[0].select(["slot", "state_0"])
            states = states.slice(states.num_rows - 1)
            exchange.states(
                pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), states["state_0"]], states.schema.names)
            )
        if name == "loops_in_get_value":
            exchange.chunk(rows((4, 0, ENDLESS)))
        end_epoch(exchange, 2 if name == "loops_in_merge" else 1)


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("loops_in_accumulate", 3),
        ("loops_in_merge", 0),
        ("loops_in_get_value", 4),
        ("loops_in_open", None),
        ("swallows", 3),
    ],
)
def test_an_endless_loop_is_interrupted(limited_server: ProcessServer, name: str, slot: int | None) -> None:
    """An endless loop in any method, also if it swallows exceptions, ends with function, group and line."""
    with pytest.raises(FunctionError) as excinfo:
        drive(limited_server, name, job_parameters={"loop": "yes"} if name == "loops_in_open" else {})
    error = excinfo.value
    assert (error.code, error.function, error.slot) == ("USER_CODE", name, slot)
    assert "fold_s_max = 1 s" in error.message
    assert error.trace is not None
    assert "while value == ENDLESS" in error.trace or "value = value + 1 - 1" in error.trace
    if name == "loops_in_accumulate":
        assert "value=13" in (error.row or "")


@pytest.mark.parametrize("value", range(3))
def test_exceptions_that_end_programs_are_errors_of_the_author(limited_server: ProcessServer, value: int) -> None:
    """A KeyboardInterrupt and similar exceptions are USER_CODE, with a trace, and are not retried."""
    with transport_to(limited_server).open(open_request(Call("raises_what_it_likes", ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, value)))
        with pytest.raises(FunctionError, match=r"KeyboardInterrupt|GeneratorExit|NotAnError") as excinfo:
            end_epoch(exchange, 1)
    assert excinfo.value.code == "USER_CODE"
    assert "in accumulate" in (excinfo.value.trace or "")
    assert "service/foldflight/" not in (excinfo.value.trace or "")  # the clone itself may be called foldflight


def test_other_exchanges_go_on_meanwhile(limited_server: ProcessServer) -> None:
    """Another exchange keeps its groups, and the server accepts new ones; metrics count the limit."""
    with transport_to(limited_server).open(open_request(Call("count", ()))) as exchange:
        exchange.chunk(rows((0, 0, 1)))
        with pytest.raises(FunctionError):
            drive(limited_server, "loops_in_accumulate")
        exchange.chunk(rows((0, 0, 1)))
        assert end_epoch(exchange, 1)["output_0"].to_pylist() == [2]
    assert eventually(lambda: limited_server.flight.active == 0)
    body = page(limited_server.probes.http_port, "/metrics")[1]
    assert 'foldflight_limit_errors_total{limit="fold_s_max"}' in body
    assert 'foldflight_function_errors_total{code="USER_CODE",function="loops_in_accumulate"}' in body


def test_the_time_limit_applies_to_each_frame(limited_server: ProcessServer) -> None:
    """Frames that take longer than the limit together, and not one by one, are all folded."""
    naps = 8
    with transport_to(limited_server).open(open_request(Call("naps", ("value",)))) as exchange:
        for _ in range(naps):
            exchange.chunk(rows((0, 0, round(150 * FOLD_S_MAX))))
        (result,) = end_epoch(exchange, 1).column("output_0").to_pylist()
    assert result == naps * round(150 * FOLD_S_MAX) > 1000 * FOLD_S_MAX


def test_a_time_limit_is_not_isolated(limited_server: ProcessServer) -> None:
    """An exceeded time limit ends the exchange; otherwise each group could take that long."""
    call = Call("loops_in_accumulate", ("value",))
    with transport_to(limited_server).open(open_request(call, isolate_errors=True)) as exchange:
        exchange.chunk(rows(*[(slot, 0, ENDLESS) for slot in range(50)]))
        with pytest.raises(FunctionError, match="fold_s_max") as excinfo:
            end_epoch(exchange, 1)
        assert excinfo.value.slot == 0


def test_an_endless_bundle_is_interrupted(limited_server: ProcessServer) -> None:
    """Code that runs while a bundle is unpickled has the same time limit."""
    code = b"cbuiltins\nexec\n(Vwhile True: pass\ntR."
    transport = transport_to(limited_server)
    transport._bundles["endless"] = seal(Bundle(("endless",), made_here(), code), KEY.encode())
    with pytest.raises((FunctionError, RejectedError), match="fold_s_max"):
        transport.open(open_request(Call("endless", ("value",))))


def test_compiling_what_is_registered_is_interrupted(limited_server: ProcessServer) -> None:
    """Instantiating a class when it is registered has the same time limit."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", compile=True)
    class NeverMade(limit_functions._Base):
        def __init__(self) -> None:
            while os.environ.get("FOLDFLIGHT_TEST_NEVER_MADE") is None:
                pass

    with pytest.raises(FunctionError, match="fold_s_max"):
        connect(limited_server.url, bundle_key=KEY).register(NeverMade)


@pytest.mark.every_turn
def test_code_that_cannot_be_interrupted_ends_the_process(spawn: Spawn) -> None:
    """If a call into C does not return, the server drains and ends with its own exit code."""
    server = spawn(modules="tests.wire.limit_functions", fold_s_max=1, drain_s=0.2)
    with opened_apart(server, open_request(Call("sleeps", ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, 120)))
        exchange.barrier(1)
        assert server.process.wait(PATIENCE_S) == EXIT_SPENT
        with pytest.raises(RetryableError):
            exchange.results(1)
    assert "cannot be interrupted" in server.log.read_text()


def hoard(exchange: OpenExchange, *, times: int = 1, first: int = 1) -> None:
    """Make the server store 10 MiB more, and wait for it, repeatedly."""
    for epoch in range(first, first + times):
        exchange.chunk(rows(*[(0, 0, 1024)] * 10))
        end_epoch(exchange, epoch)


def refused_for_memory(server: ServerProcess) -> bool:
    """Return whether a new exchange is refused because of memory."""
    try:
        opened_apart(server, open_request(Call("count", ()))).close()
    except RetryableError as error:
        return error.code == "OVERLOADED" and "memory_limit" in error.message
    return False


def test_the_largest_exchange_ends_before_the_kernel_ends_all(spawn: Spawn) -> None:
    """At the limit the largest exchange gets LIMIT; a small one continues, and new ones are accepted."""
    server = spawn(modules="tests.wire.limit_functions", memory_limit="600MiB")
    with opened_apart(server, open_request(Call("count", ()))) as small, opened_apart(server, HOARDING) as large:
        small.chunk(rows(*[(slot, 0, 1) for slot in range(1000)]))
        with pytest.raises(RejectedError) as excinfo:
            hoard(large, times=100)
        assert excinfo.value.code == "LIMIT"
        assert "memory_limit = 600 MiB" in excinfo.value.message
        assert end_epoch(small, 1).num_rows == 1000
        assert eventually(lambda: not refused_for_memory(server))
    body = page(server.ready["http"], "/metrics")[1]
    assert 'foldflight_limit_errors_total{limit="memory_limit"}' in body
    assert "foldflight_memory_limit_bytes 6.291456e+08" in body


@pytest.mark.every_turn
def test_one_chunk_that_takes_all_memory_is_interrupted(spawn: Spawn) -> None:
    """A function that keeps allocating memory is interrupted within its frame, and the error names the row."""
    server = spawn(modules="tests.wire.limit_functions", memory_limit="600MiB")
    with opened_apart(server, HOARDING) as large:
        large.chunk(rows(*[(slot, 0, 64) for slot in range(200_000)]))
        with pytest.raises(RejectedError) as excinfo:
            end_epoch(large, 1)
        assert (excinfo.value.code, excinfo.value.function) == ("LIMIT", "hoards")
        assert excinfo.value.slot is not None
    assert eventually(lambda: not refused_for_memory(server))


@pytest.mark.every_turn
def test_a_program_is_the_largest_while_it_works(spawn: Spawn) -> None:
    """What a table function makes of one row counts for its exchange: another one, with states, continues."""
    server = spawn(modules="tests.wire.limit_functions", memory_limit="600MiB")
    columns = pa.schema([("count", pa.int64())])
    program = Open((), columns, steps=(Step("many_texts", (StepArgument(column="count"),)),), outputs=(0,))
    with opened_apart(server, HOARDING) as aggregate, opened_apart(server, program) as scalar:
        hoard(aggregate)
        scalar.chunk(pa.RecordBatch.from_arrays([pa.array([10, 1_000_000])], schema=columns))
        with pytest.raises(RejectedError, match="return fewer or smaller values for one row") as excinfo:
            scalar.step_outputs()
        assert (excinfo.value.code, excinfo.value.function) == ("LIMIT", "many_texts")
        assert excinfo.value.row == "count=1000000"
        hoard(aggregate, first=2)


def test_new_exchanges_go_elsewhere_before_that(spawn: Spawn) -> None:
    """From 80 % on new exchanges are OVERLOADED, and open ones continue."""
    server = spawn(modules="tests.wire.limit_functions", memory_limit="600MiB")
    with opened_apart(server, HOARDING) as large:
        epoch = 1
        while not refused_for_memory(server):
            hoard(large, first=epoch)
            epoch += 1
            assert epoch < 60
        assert epoch > 3
        large.chunk(rows((1, 0, 1)))
        assert end_epoch(large, epoch)["output_0"].to_pylist() == [1]
    assert eventually(lambda: not refused_for_memory(server))


@pytest.mark.every_turn
def test_a_server_without_room_does_not_start(spawn: Spawn) -> None:
    """A server that exceeds the limit by itself does not start."""
    server = spawn(modules="tests.wire.limit_functions", memory_limit="50MiB", await_ready=False)
    assert server.process.wait(PATIENCE_S) == 2
    assert "memory_limit = 50 MiB" in server.log.read_text()
