"""Successful exchanges: both transports give equal results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import cloudpickle
import pyarrow as pa
import pytest

from foldflight.client import EmbeddedTransport, FlightTransport, Transport, connect
from foldflight.exchange.frames import Returns
from foldflight.ext.lift.descriptions import lifted_of
from foldflight.functions.query.call import Call
from foldflight.functions.registry import Registry
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.wire import wire_functions
from tests.wire.kit import COLUMNS, DEADLINE_S, PATIENCE_S, STATE_KEY, environment, eventually, open_request, rows

AVG = Call("weighted_avg", ("value", "weight"))
COUNT = Call("count")


def test_rows_of_every_kind_fold(transport: Transport) -> None:
    """Inserts and retractions of two groups give each group's value, for several calls at once."""
    bundled_call = Call("bundled_sum", ("value",))
    with transport.open(open_request(AVG, COUNT, Call("sum", ("value",), filter="wanted"), bundled_call)) as exchange:
        exchange.chunk(rows((0, 0, 10, 1), (1, 0, 30, 2, False), (0, 0, 20, 3), (0, 3, 10, 1)))
        exchange.barrier(1)
        table = exchange.results(1)
    assert table["slot"].to_pylist() == [0, 1]
    assert table["output_0"].to_pylist() == [20, 30]
    assert table["output_1"].to_pylist() == [1, 1]
    assert table["output_2"].to_pylist() == [20, None]
    assert table["output_3"].to_pylist() == [20, 30]


def test_epochs_return_only_what_changed(transport: Transport) -> None:
    """The second barrier returns the slots of the second epoch; a barrier without changes returns no rows."""
    with transport.open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0), (1, 0)))
        exchange.barrier(1)
        assert exchange.results(1)["slot"].to_pylist() == [0, 1]
        exchange.chunk(rows((1, 0)))
        exchange.barrier(2)
        table = exchange.results(2)
        assert (table["slot"].to_pylist(), table["output_0"].to_pylist()) == ([1], [2])
        exchange.barrier(3)
        assert exchange.results(3).num_rows == 0


def test_barriers_may_run_ahead_of_results(transport: Transport) -> None:
    """Results can be fetched later and in any order."""
    with transport.open(open_request(COUNT)) as exchange:
        for epoch in (1, 2, 3):
            exchange.chunk(rows((0, 0)))
            exchange.barrier(epoch)
        assert exchange.results(3)["output_0"].to_pylist() == [3]
        assert exchange.results(1)["output_0"].to_pylist() == [1]


def test_states_move_to_another_exchange(transport: Transport) -> None:
    """States of one exchange, merged into another, continue where the first left off."""
    with transport.open(open_request(AVG)) as exchange:
        exchange.chunk(rows((0, 0, 10, 1), (0, 0, 20, 1)))
        exchange.barrier(1)
        first = exchange.results(1).combine_chunks().to_batches()[0]
    with transport.open(open_request(AVG, initial_outputs=True)) as exchange:
        exchange.states(first.select(["slot", "state_0"]))
        assert exchange.initial_outputs()["output_0"].to_pylist() == [15]
        exchange.chunk(rows((0, 0, 60, 1)))
        exchange.barrier(7)
        assert exchange.results(7)["output_0"].to_pylist() == [30]


@pytest.mark.parametrize("returns", [Returns(states=True, outputs=False), Returns(states=False, outputs=True)])
def test_columns_that_are_not_requested_are_null(transport: Transport, returns: Returns) -> None:
    """States without outputs, or outputs without states, have the same schema with NULLs."""
    with transport.open(open_request(AVG, returns=returns)) as exchange:
        exchange.chunk(rows((0, 0, 10, 1)))
        exchange.barrier(1)
        table = exchange.results(1)
    assert (table["state_0"].null_count == 0) is returns.states
    assert (table["output_0"].null_count == 0) is returns.outputs


def test_row_outputs_have_the_value_after_each_row(transport: Transport) -> None:
    """Row outputs have one value per row of each chunk, retractions included."""
    with transport.open(open_request(Call("sum", ("value",)), row_outputs=True)) as exchange:
        exchange.chunk(rows((0, 0, 5), (0, 0, 7), (1, 0, 1), (0, 3, 5)))
        exchange.chunk(rows((1, 0, 1)))
        assert exchange.row_outputs()["output_0"].to_pylist() == [5, 12, 1, 7]
        assert exchange.row_outputs()["output_0"].to_pylist() == [2]


def test_chunks_without_slots_are_one_group(transport: Transport) -> None:
    """A chunk without the columns slot and kind inserts into one group."""
    columns = pa.schema([("value", pa.int64())])
    with transport.open(open_request(Call("sum", ("value",)), columns=columns)) as exchange:
        exchange.chunk(pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=columns))
        exchange.barrier(1)
        assert exchange.results(1).select(["slot", "output_0"]).to_pylist() == [{"slot": 0, "output_0": 6}]


def test_forgotten_slots_start_afresh(transport: Transport) -> None:
    """After Forget a slot is like a new one."""
    with transport.open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0), (0, 0)))
        exchange.barrier(1)
        exchange.results(1)
        exchange.forget(pa.array([0], pa.int32()))
        exchange.chunk(rows((0, 0)))
        exchange.barrier(2)
        assert exchange.results(2)["output_0"].to_pylist() == [1]


def test_many_groups_of_large_chunks_are_returned(transport: Transport) -> None:
    """100,000 groups in several chunks are returned completely, ascending and right."""
    size = 100_000
    columns = pa.schema([("slot", pa.int32()), ("value", pa.int64())])
    batch = pa.record_batch([pa.array(range(size), pa.int32()), pa.array(range(size), pa.int64())], schema=columns)
    with transport.open(open_request(Call("sum", ("value",)), columns=columns)) as exchange:
        for _ in range(3):
            exchange.chunk(batch)
        exchange.barrier(1)
        table = exchange.results(1)
    assert table["slot"].to_pylist() == list(range(size))
    assert table["output_0"].to_pylist() == [3 * value for value in range(size)]


def test_logs_and_job_parameters_pass_through(transport: Transport) -> None:
    """Log records of a function reach the engine with their fields; the function gets the job parameters."""
    with transport.open(open_request(Call("talks", ("value",)), job_parameters={"greeting": "hej"})) as exchange:
        exchange.chunk(rows((0, 0, 7)))
        exchange.barrier(1)
        exchange.results(1)
        (record,) = exchange.take_logs()
        assert not exchange.take_logs()
    assert (record.level, record.function, record.message) == ("info", "talks", "saw a row")
    assert (record.fields["value"], record.fields["greeting"]) == ("7", "hej")


def test_pickled_states_are_signed_and_come_back(transport: Transport) -> None:
    """A pickled state that the engine has stored is accepted again."""
    with transport.open(open_request(Call("pickled", ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, 1), (0, 0, 2)))
        exchange.barrier(1)
        first = exchange.results(1).combine_chunks().to_batches()[0]
    with transport.open(open_request(Call("pickled", ("value",)))) as exchange:
        exchange.states(first.select(["slot", "state_0"]))
        exchange.chunk(rows((0, 0, 3)))
        exchange.barrier(1)
        assert exchange.results(1)["output_0"].to_pylist() == [3]


def test_describe_tells_what_open_would(transport: Transport) -> None:
    """`describe` returns schema, fingerprints and capabilities without opening an exchange."""
    calls = open_request(AVG, Call("append_only", ("value",)), Call("append_only", ("value",), distinct=True))
    reply = transport.describe(calls)
    with transport.open(calls) as exchange:
        assert reply.schema.equals(exchange.open_reply.schema, check_metadata=True)
        assert reply.fingerprints == exchange.open_reply.fingerprints
    assert reply.can_retract == (True, False, True)
    assert reply.can_merge == (True, True, True)


def test_expected_fingerprint_is_accepted(transport: Transport) -> None:
    """A call with the fingerprint of the plan can be opened."""
    fingerprint = transport.describe(open_request(AVG)).fingerprints[0]
    with transport.open(open_request(Call("weighted_avg", ("value", "weight"), fingerprint=fingerprint))) as exchange:
        assert exchange.open_reply.fingerprints == (fingerprint,)


def test_both_transports_describe_how_a_call_is_lifted(transport: Transport) -> None:
    """As data, for the types of the call; the listing tells it for functions of fixed types."""
    reply = transport.describe(open_request(AVG)).calls[0]
    lift, why = lifted_of(reply.lift)
    assert lift is not None, why
    assert [(each.name, each.monoid) for each in lift.fields] == [("sum", "sum"), ("count", "sum")]
    lift_of_name = {info.name: info.lift for info in transport.infos(look=True)}
    assert lifted_of(lift_of_name["weighted_avg"])[0] is not None
    assert lift_of_name["count"] == ""


def test_both_transports_list_the_same_functions(flight: FlightTransport) -> None:
    """ListFlights returns the registry; how a function is folded may differ between servers.

    Embedded, neither this, nor how it is lifted, nor the digest of its code is told without looking at its code.
    """
    embedded = EmbeddedTransport(Registry.load([wire_functions]), state_key=STATE_KEY.encode())
    assert [replace(info, folding=None, lift="", code_digest="") for info in flight.infos()] == embedded.infos()
    assert {"weighted_avg", "count", "talks"} <= {info.name for info in flight.infos()}
    assert all(len(info.code_digest) == 16 for info in flight.infos())


def test_flight_transport_can_be_pickled(flight: FlightTransport) -> None:
    """A transport has no connection, so it can be pickled for an engine's workers."""
    restored = cloudpickle.loads(cloudpickle.dumps(flight))
    with restored.open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0)))
        exchange.barrier(1)
        assert exchange.results(1)["output_0"].to_pylist() == [1]


def test_connect_reaches_both(server: ProcessServer) -> None:
    """`connect` accepts a URL, a module's name and classes, and returns handles that check their arguments."""
    for target in (server.url, "embedded:tests.wire.wire_functions", [wire_functions.WeightedAvg]):
        functions = connect(target, deadline_s=DEADLINE_S)
        aggregate = functions["weighted_avg"]("arr_delay", "distance").where("arr_delay > 15").distinct()
        assert aggregate.columns == ("arr_delay", "distance")
        assert (aggregate.condition, aggregate.is_distinct) == ("arr_delay > 15", True)


def test_embedded_transport_travels_by_value() -> None:
    """A pickled embedded transport works if the author's module cannot be imported."""
    transport = EmbeddedTransport(
        Registry.load([wire_functions]), state_key=STATE_KEY.encode(), job_parameters={"greeting": "hi"}
    )
    data = cloudpickle.dumps(transport)
    program = (
        "import sys, pickle\n"
        "import pyarrow as pa\n"
        "from foldflight.exchange.frames import Open, Returns\n"
        "from foldflight.functions.query.call import Call\n"
        "transport = pickle.loads(sys.stdin.buffer.read())\n"
        "columns = pa.schema([('value', pa.int64()), ('weight', pa.int32())])\n"
        "opening = Open(calls=(Call('weighted_avg', ('value', 'weight')), Call('pickled', ('value',))),\n"
        "               columns=columns, returns=Returns(states=True, outputs=True))\n"
        "with transport.open(opening) as exchange:\n"
        "    arrays = [pa.array([10, 30], pa.int64()), pa.array([1, 1], pa.int32())]\n"
        "    exchange.chunk(pa.record_batch(arrays, schema=columns))\n"
        "    exchange.barrier(1)\n"
        "    table = exchange.results(1)\n"
        "assert not any('wire_functions' in name for name in sys.modules)\n"
        "print(table['output_0'][0], table['output_1'][0])\n"
    )
    assert run_python(program, data) == b"20 2\n"


def test_restored_transport_is_kept_per_process() -> None:
    """Unpickling the same functions twice restores their classes once."""
    transport = EmbeddedTransport(Registry.load([wire_functions]), state_key=STATE_KEY.encode())
    data = cloudpickle.dumps(transport)
    first, second = cloudpickle.loads(data), cloudpickle.loads(data)
    assert first._registry is second._registry


def test_messages_stay_within_the_servers_bound() -> None:
    """A chunk larger than message_bytes_max is sent in parts, and so are its row outputs and results."""
    with serving(wire_functions, state_keys=STATE_KEY, message_bytes_max=200_000) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        with transport.open(open_request(Call("sum", ("value",)), COUNT, row_outputs=True)) as exchange:
            size = 20_000
            columns = [[slot % 5000 for slot in range(size)], [0] * size, [1] * size, [1] * size, [True] * size]
            batch = pa.RecordBatch.from_arrays(
                [pa.array(each, field.type) for each, field in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
            )
            assert batch.nbytes > 200_000
            exchange.chunk(batch)
            exchange.barrier(1)
            assert exchange.results(1)["output_0"].to_pylist() == [4] * 5000
            assert exchange.row_outputs()["output_0"].to_pylist() == [1 + row // 5000 for row in range(size)]
        assert eventually(lambda: server.flight.active == 0)


def run_python(program: str, stdin: bytes) -> bytes:
    """Run a program in a process that can import foldflight but not the tests."""
    process = subprocess.run(
        [sys.executable, "-c", program],
        input=stdin,
        capture_output=True,
        env=environment(tests=False),
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    return process.stdout
