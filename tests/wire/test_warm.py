"""A server has another process compile the functions in use, once for all servers of a folder, and reports it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foldflight import udaf
from foldflight.client import FlightTransport
from foldflight.engine.batch import tasks
from foldflight.fold.mode import Mode
from foldflight.functions.author.udaf import function_of
from foldflight.functions.query.call import Call
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.unit import listed_functions
from tests.unit.test_tasks import partial_of
from tests.wire.kit import DEADLINE_S, ServerProcess, end_epoch, eventually, open_request, opened_apart, rows
from tests.wire.test_probes import page

Spawn = Callable[..., ServerProcess]
MODULE = "tests.unit.listed_functions"
WHY = "accumulate uses with (listed_functions.py:23)"


def modes_of(url: str) -> dict[str, str]:
    """Return how a server reports its functions to be folded."""
    return {info.name: info.folded for info in FlightTransport([url], deadline_s=DEADLINE_S).infos()}


def warm(server: ProcessServer, author: type) -> None:
    """Compile a function on a server of this process, which does so by itself only after many rows."""
    function = function_of(author)
    assert function is not None
    server.programs.warm(function)


def log_of(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def fold_until_compiled(server: ServerProcess, function: str = "plain") -> int:
    """Fold epochs of one exchange until its function is compiled; return how many began with an interpreted one."""
    interpreted_count = 0
    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(
        open_request(Call(function, ("value",)))
    ) as exchange:

        def is_compiled() -> bool:
            nonlocal interpreted_count
            interpreted_count += exchange.modes != (Mode.COMPILED,)
            exchange.chunk(rows((0, 0, 1), (1, 0, 2)))
            epoch = next(epochs)
            assert end_epoch(exchange, epoch)["output_0"].to_pylist() == [epoch, 2 * epoch]
            return exchange.modes == (Mode.COMPILED,)

        epochs = itertools.count(1)
        assert eventually(is_compiled)
        assert is_compiled()
    return interpreted_count


@pytest.mark.every_turn
def test_functions_are_compiled_by_use_while_the_server_answers(spawn: Spawn, tmp_path: Path) -> None:
    """An open exchange changes to compiled code between two chunks; log, listing, gauges and the next server agree."""
    folder = tmp_path / "compiled"
    server = spawn(modules=MODULE, compiled_folder=str(folder))
    events = [line["event"] for line in log_of(server)]
    assert events.count(f"careful is interpreted, not compiled: {WHY}") == 1
    assert not list(folder.glob("*.fold"))
    result = modes_of(server.url)
    assert (result["plain"], result["careful"]) == ("compiled when hot", f"interpreted: {WHY}")
    assert result["max"] == "vectorised"

    assert fold_until_compiled(server) >= 1
    assert list(folder.glob("*.fold"))
    assert eventually(lambda: "compiled" in [line["event"] for line in log_of(server)])
    assert [line["folded"] for line in log_of(server) if line["event"] == "compiled"] == ["compiled"]
    events = [line["event"] for line in log_of(server)]
    assert events.index("ready") < events.index("plain is compiled, and was loaded from a file")
    assert modes_of(server.url)["plain"] == "compiled"

    def shows(line: str) -> bool:
        return line in page(server.ready["http"], "/metrics")[1]

    assert eventually(lambda: shows('foldflight_function_compiled{function="plain"} 1.0'))
    assert eventually(lambda: shows('foldflight_function_waiting{function="plain"} 0.0'))
    assert shows('foldflight_function_compiled{function="careful"} 0.0')
    assert shows('foldflight_compilations_total{outcome="compiled"} 1.0')

    other = spawn(modules=MODULE, compiled_folder=str(folder))
    events = [line["event"] for line in log_of(other)]
    assert events.index("plain is compiled, and was loaded from a file") < events.index("ready")
    assert modes_of(other.url)["plain"] == "compiled"


@pytest.mark.slow
def test_workers_compile_once(spawn: Spawn, tmp_path: Path) -> None:
    """The worker whose function is used has it compiled, and the other loads it when it is used there."""
    server = spawn(modules=MODULE, compiled_folder=str(tmp_path / "compiled"), workers=2)
    calls = [Call("plain", ("value",))]
    with contextlib.ExitStack() as stack:
        exchanges = [stack.enter_context(opened_apart(server, open_request(*calls))) for _ in range(2)]
        epochs = itertools.count(1)

        def all_are_compiled() -> bool:
            epoch = next(epochs)
            for exchange in exchanges:
                exchange.chunk(rows((0, 0, 1)))
                assert end_epoch(exchange, epoch)["output_0"].to_pylist() == [epoch]
            return all(exchange.modes == (Mode.COMPILED,) for exchange in exchanges)

        assert eventually(all_are_compiled)
    compiled_lines = [line for line in log_of(server) if line["event"].startswith("plain is compiled")]
    assert [line["event"] for line in compiled_lines] == ["plain is compiled, and was loaded from a file"] * 2
    metric_line = 'foldflight_compilations_total{outcome="compiled"} 1.0'
    assert eventually(lambda: metric_line in page(server.ready["http"], "/metrics")[1])
    assert sum(line["event"] == "compiled" for line in log_of(server)) == 1
    assert 'foldflight_function_compiled{function="plain"} 1.0' in page(server.ready["http"], "/metrics")[1]


def test_opened_tells_how_each_call_is_folded() -> None:
    """A server tells the modes of the moment at which the exchange is opened."""
    calls = [Call("plain", ("value",)), Call("careful", ("value",)), Call("max", ("value",))]
    with serving(listed_functions, compiled_folder="off") as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        with transport.open(open_request(*calls)) as before:
            assert list(before.modes) == [Mode.INTERPRETED, Mode.INTERPRETED, Mode.VECTORISED]
            warm(server, listed_functions.Plain)
            with transport.open(open_request(*calls)) as exchange:
                assert list(exchange.modes) == [Mode.COMPILED, Mode.INTERPRETED, Mode.VECTORISED]
            assert list(before.modes) == [Mode.INTERPRETED, Mode.INTERPRETED, Mode.VECTORISED]


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Total(listed_functions.Plain):
    """A sum that can be folded before a shuffle."""

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other


@pytest.mark.every_turn
def test_a_partial_fold_holds_more_groups_where_they_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same bytes, it holds more groups on a server that told that it has compiled the function."""
    monkeypatch.setattr(tasks, "_FIRST_ROWS", 3)  # as in test_tasks.py, the first epoch has few rows

    def most_held() -> int:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        groups = np.repeat(np.arange(10_000), 4)
        return max(batch.num_rows for batch in partial_of(groups, transport, "total", group_bytes_max=1_000_000))

    with serving(Total, compiled_folder="off") as server:
        assert most_held() < 1_000_000 // 256
        warm(server, Total)
        assert most_held() > 9_000


class Wide:
    total: int

    def __init__(self) -> None:
        self.total = 0


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=True)
class Widening:
    """A sum that no other test uses, because a process logs once that a function has left compiled code."""

    def create_accumulator(self) -> Wide:
        return Wide()

    def accumulate(self, accumulator: Wide, value: int) -> None:
        accumulator.total += value

    def get_value(self, accumulator: Wide) -> int:
        return accumulator.total % 1000


@pytest.mark.every_turn
def test_results_tell_the_engine_that_compiled_code_was_left(caplog: pytest.LogCaptureFixture) -> None:
    """The results of the epoch in which many rows exceed 64 bits tell it, and the client logs it once."""
    big = (1 << 63) - 1
    with serving(Widening, compiled_folder="off") as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        for _ in range(2):
            with transport.open(open_request(Call("widening", ("value",)))) as exchange:
                exchange.chunk(rows((0, 0, 1)))
                end_epoch(exchange, 1)
                assert exchange.modes == (Mode.COMPILED,)
                exchange.chunk(rows(*[(0, 0, big), (0, 0, -big)] * 20))
                assert end_epoch(exchange, 2)["output_0"].to_pylist() == [1]
                assert exchange.modes == (Mode.INTERPRETED,)
    # A slow machine may let the client log other things, such as that it waits or has moved to another connection.
    lines = [record.getMessage() for record in caplog.records if record.name == "foldflight.client"]
    left = [text for text in lines if text.startswith("widening is interpreted now and no longer compiled")]
    assert len(left) == 1, lines


def test_the_gauge_follows_the_fold() -> None:
    """If compiled code is left (many rows beyond 64 bits), gauge and log show it after the barrier."""
    log = io.StringIO()
    with serving(listed_functions, http_port=0, compiled_folder="off", log_stream=log) as server:
        assert server.probes.http_port is not None
        port = server.probes.http_port
        warm(server, listed_functions.Plain)
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        gauge_line = 'foldflight_function_compiled{{function="plain"}} {}.0'.format
        with transport.open(open_request(Call("plain", ("value",)))) as exchange:
            assert eventually(lambda: gauge_line(1) in page(port, "/metrics")[1])
            big = (1 << 63) - 1
            exchange.chunk(rows((0, 0, big), *[(0, 0, big), (0, 0, -big)] * 20))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [big]
            assert eventually(lambda: gauge_line(0) in page(port, "/metrics")[1])
            assert eventually(lambda: "a function left compiled code and is slower now" in log.getvalue())
