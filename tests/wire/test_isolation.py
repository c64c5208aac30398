"""Exchanges with isolated errors: on a server, embedded, and with failover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from foldflight.client import EmbeddedTransport, FlightTransport, OpenExchange, Transport
from foldflight.errors import RejectedError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Returns
from foldflight.functions.query.call import Call
from foldflight.functions.registry import Registry
from foldflight.server.run.lifecycle import ProcessServer
from tests.wire import wire_functions
from tests.wire.kit import DEADLINE_S, STATE_KEY, ServerProcess, end_epoch, open_request, rows
from tests.wire.test_probes import page

Fork = Callable[..., ServerProcess]
CALLS = (Call("fails_to_accumulate", ("value",)), Call("fails_to_merge", ("value",)), Call("count"))


def texts(table: pa.Table) -> dict[int, Any]:
    """Return outputs by slot; for failed slots code, function and message."""
    return {
        row["slot"]: tuple(row[f"output_{place}"] for place in range(len(CALLS)))
        if row["error"] is None
        else (row["error"]["code"], row["error"]["function"], row["error"]["message"])
        for row in table.to_pylist()
    }


UNLUCKY = ("USER_CODE", "fails_to_accumulate", "accumulate raised ValueError: thirteen is unlucky")


def test_a_slot_fails_alone(transport: Transport) -> None:
    """Errors of rows and merges are in the results of their slots; others continue, in this epoch and the next."""
    with transport.open(open_request(*CALLS, isolate_errors=True)) as exchange:
        exchange.chunk(rows((0, 0, 1), (1, 0, 13), (2, 0, 2), (1, 0, 3)))
        first = end_epoch(exchange, 1)
        assert texts(first) == {0: (1, 1, 1), 1: UNLUCKY, 2: (2, 2, 1)}
        states = first.select(["slot", "state_0", "state_1", "state_2"]).combine_chunks().to_batches()[0]
        exchange.states(states.slice(0, 1))
        exchange.chunk(rows((1, 0, 5), (2, 0, 5)))
        merge_failure = ("USER_CODE", "fails_to_merge", "merge raised ValueError: oil and water")
        assert texts(end_epoch(exchange, 2)) == {0: merge_failure, 1: (5, 5, 1), 2: (7, 7, 2)}


def test_a_slot_that_fails_has_no_initial_outputs(transport: Transport) -> None:
    """If get_value raises for loaded states, their outputs are NULL with the error."""
    request = open_request(Call("fails_to_finish", ("value",)), initial_outputs=True, isolate_errors=True)
    with transport.open(request) as exchange:
        state = exchange.open_reply.schema.field("state_0")
        loaded_states = pa.RecordBatch.from_arrays(
            [pa.array([4], pa.int32()), pa.array([{"value": 1}], state.type)],
            schema=pa.schema([pa.field("slot", pa.int32()), state]),
        )
        exchange.states(loaded_states)
        [row] = exchange.initial_outputs().to_pylist()
        assert (row["slot"], row["output_0"], row["error"]["code"]) == (4, None, "USER_CODE")
        assert "ZeroDivisionError" in row["error"]["message"]
        assert "in deep" in row["error"]["trace"]


@pytest.mark.parametrize("returns", [Returns(), Returns(states=False, outputs=True)])
def test_a_slot_stays_failed_on_another_server(fork: Fork, returns: Returns) -> None:
    """When a server is lost after a slot has failed, with or without a checkpoint, the slot fails on the next one."""
    servers = [fork(), fork()]
    bounds = FailoverBounds(replay_bytes_max=15_000)
    flight = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S, bounds=bounds)
    embedded = EmbeddedTransport(Registry.load([wire_functions]), state_key=STATE_KEY.encode())

    def story(exchange: OpenExchange, strike: Callable[[], None]) -> list[Any]:
        story_lines = []
        for epoch in (1, 2):
            exchange.chunk(rows((0, 0, 1), (1, 0, 13 if epoch == 1 else 4), (2, 0, 2)))
            for _ in range(10):
                exchange.chunk(rows(*[(slot, 0, 1) for slot in range(40)]))
            if epoch == 1:
                strike()
            exchange.chunk(rows((1, 0, 7)))
            story_lines.append(end_epoch(exchange, epoch).to_pylist())
        return story_lines

    request = open_request(*CALLS, returns=returns, isolate_errors=True)
    with embedded.open(request) as exchange:
        expected = story(exchange, lambda: None)
    assert [row["slot"] for row in expected[0] if row["error"]] == [1]
    with flight.open(request) as exchange:

        def kill() -> None:
            holding_server = next(each for each in servers if each.ready["server_id"] == exchange.open_reply.server_id)
            holding_server.process.kill()
            holding_server.process.wait()

        assert story(exchange, kill) == expected
        assert exchange.coordinator.stats.replays == 1
        assert exchange.coordinator.stats.checkpoints > 0


def test_isolated_groups_are_counted(server: ProcessServer, flight: FlightTransport) -> None:
    """A server counts failed groups by function; the exchange ends normally, so no error is counted."""
    name = 'foldflight_groups_isolated_total{function="fails_to_accumulate"}'

    def count(line: str) -> float:
        lines = page(server.probes.http_port, "/metrics")[1].splitlines()
        return sum(float(each.rsplit(" ", 1)[1]) for each in lines if each.startswith(line))

    before, errors = count(name), count("foldflight_errors_total")
    with flight.open(open_request(*CALLS, isolate_errors=True)) as exchange:
        exchange.chunk(rows((0, 0, 13), (1, 0, 13), (2, 0, 1)))
        end_epoch(exchange, 1)
        exchange.chunk(rows((0, 0, 13)))
        end_epoch(exchange, 2)
    assert count(name) == before + 3
    assert count("foldflight_errors_total") == errors


def test_options_that_do_not_go_together_are_refused(transport: Transport) -> None:
    """Isolation is refused with row outputs."""
    with pytest.raises(RejectedError, match="outputs after each row"):
        transport.describe(open_request(*CALLS, row_outputs=True, isolate_errors=True))
