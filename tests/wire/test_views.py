"""Engines that keep the entries of views, over Flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from foldflight.client import FlightTransport, close_connections
from foldflight.errors import RejectedError, RetryableError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open
from foldflight.functions.query.call import Call
from foldflight.server.run.lifecycle import ProcessServer, serving
from foldflight.testing.cached_views import CachedViews
from tests.wire import view_functions
from tests.wire.kit import DEADLINE_S, end_epoch

COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.string())])
KEEPING = Open((Call("count_different", ("v",)),), COLUMNS, keeps_views=True)
FOLD_S_MAX = 1.5


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ProcessServer]]:
    """Two servers with a short fold_s_max."""
    with (
        serving(view_functions, fold_s_max=FOLD_S_MAX, http_port=0) as one,
        serving(view_functions, fold_s_max=FOLD_S_MAX, http_port=0) as other,
    ):
        yield [one, other]
    close_connections()


def transport_to(*servers: ProcessServer) -> FlightTransport:
    bounds = FailoverBounds(patience_s=60.0)
    return FlightTransport([server.url for server in servers], deadline_s=DEADLINE_S, bounds=bounds)


def rows(*values: tuple[int, str | None]) -> pa.RecordBatch:
    slots, texts = zip(*values, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), pa.array(texts, pa.string())], schema=COLUMNS)


class Engine:
    """An engine that keeps the entries of views. `before` is called at each question."""

    def __init__(self, *servers: ProcessServer) -> None:
        transport = transport_to(*servers)
        self.before: Any = lambda: None
        self.exchange = transport.open(KEEPING, resolve=self.resolve)
        self.kept = CachedViews(self.exchange.open_reply, page=2)
        self.epoch = 0

    def resolve(self, request: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        assert request.schema.names == ["slot", "state_0"]
        self.before()
        return self.kept.resolve(request)

    def commit(self) -> dict[int, int]:
        self.epoch += 1
        self.exchange.barrier(self.epoch)
        results = self.exchange.results(self.epoch)
        self.kept.commit(results)
        return dict(zip(results["slot"].to_pylist(), results["output_0"].to_pylist(), strict=True))


def test_a_server_asks_for_entries_and_does_not_count_the_time(servers: list[ProcessServer]) -> None:
    """A question takes longer than fold_s_max; the function is not interrupted, and the results are right."""
    engine = Engine(servers[0])
    with engine.exchange as exchange:
        exchange.chunk(rows((0, "a"), (0, "b"), (1, None), (0, "a")))
        assert engine.commit() == {0: 2 + 1 + 2 + 2, 1: 2}
        assert engine.kept.questions == 0
        engine.before = lambda: time.sleep(1.5 * FOLD_S_MAX if engine.kept.questions == 0 else 0)
        exchange.chunk(rows((0, "b"), (0, "c"), (1, None)))
        assert engine.commit() == {0: 3 + 5 + 2 + 3, 1: 1 + 2}
        assert engine.kept.questions > 3
        exchange.forget(pa.array([0, 1], pa.int32()))
        exchange.states(engine.kept.states([0]))
        exchange.entries(engine.kept.prefetch_entries(0, 0, "seen", ["c", "d"]))
        before = engine.kept.questions
        exchange.chunk(rows((0, "c"), (0, "d")))
        exchange.checkpoint()
        saved_states = exchange.saved_states()
        assert engine.kept.questions == before
        engine.kept.commit(saved_states.states)
        assert engine.commit() == {0: 4 + 10 + 3 + 4}
        assert dict(engine.kept.entries(0, 0, "seen")) == {"a": 2, "b": 2, "c": 2, "d": 1}
    fold_seconds = servers[0].metrics.registry.get_sample_value(
        "foldflight_view_questions_total", {"function": "count_different"}
    )
    assert fold_seconds == engine.kept.questions


def test_an_exchange_that_waits_for_entries_may_be_ended_and_goes_on_elsewhere(servers: list[ProcessServer]) -> None:
    """As when it is idle, or the largest where memory is used up: the engine asks no more than before."""
    engine = Engine(*servers)
    with engine.exchange as exchange:
        exchange.chunk(rows((0, "a"), (0, "b")))
        assert engine.commit() == {0: 2 + 3}
        ended_exchanges = []

        def end() -> None:
            open_ones = [
                (server, open_exchange) for server in servers for open_exchange in server.flight._exchanges._open
            ]
            if not ended_exchanges:
                server, open_exchange = open_ones[0]
                ended_exchanges.append(server.server_id)
                assert open_exchange.end_waiting(RetryableError("DEADLINE", "ended by the test"))

        engine.before = end
        exchange.chunk(rows((0, "a"), (0, "c")))
        assert engine.commit() == {0: 3 + 3 + 2 + 3}
        assert ended_exchanges
        assert dict(engine.kept.entries(0, 0, "seen")) == {"a": 2, "b": 1, "c": 1}


def test_a_view_that_uses_up_the_memory_is_named(servers: list[ProcessServer]) -> None:
    """In a batch views are in memory. LIMIT names the group, the function and the view that is the largest."""
    with transport_to(servers[0]).open(Open(KEEPING.calls, COLUMNS)) as exchange:
        exchange.chunk(rows((3, "a"), (4, "a"), (4, "b"), (4, "c"), (3, "b")))
        exchange.barrier(1)
        exchange.results(1)
        exchanges = servers[0].flight._exchanges
        exchanges._end_the_largest(list(exchanges._open))
        with pytest.raises(RejectedError, match="seen of count_different, has 3 entries in one") as excinfo:
            end_epoch(exchange, 2)
    assert (excinfo.value.code, excinfo.value.slot, excinfo.value.function) == ("LIMIT", 4, "count_different")


def test_an_error_of_the_engine_is_no_loss_of_the_server(servers: list[ProcessServer]) -> None:
    """What `resolve` raises is raised by the operation, and no other server is tried."""
    engine = Engine(*servers)
    engine.exchange.chunk(rows((0, "a")))
    engine.commit()
    error = RetryableError("DEADLINE", "of the state table")

    def fail() -> None:
        raise error

    engine.before = fail
    engine.exchange.chunk(rows((0, "a")))
    with pytest.raises(RetryableError) as excinfo:
        engine.commit()
    assert excinfo.value is error
    assert not error.story
    engine.exchange.close()


def test_an_engine_that_keeps_views_needs_a_way_to_answer(servers: list[ProcessServer]) -> None:
    """Without `resolve`, the error names it."""
    with pytest.raises(RejectedError, match="resolve"):
        transport_to(servers[0]).open(KEEPING)
