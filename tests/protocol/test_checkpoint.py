"""Checkpoints return states within an epoch, without changing the results of the next barrier."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from examples.weighted_avg import WeightedAvg
from foldflight.client import EmbeddedTransport
from foldflight.exchange.frames import Limits, Log, Open, Results, Returns, SavedStates
from foldflight.exchange.transitions import CheckpointAnswer
from foldflight.functions import Call, Registry
from foldflight.testing.pair import LIMITS, ExchangePair

COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64()), ("w", pa.int32())])


def pair(*, states: bool = True, limits: Limits = LIMITS) -> ExchangePair:
    open_request = Open((Call("weighted_avg", ("v", "w")),), COLUMNS, returns=Returns(states=states, outputs=True))
    return ExchangePair(open_request, Registry.load([WeightedAvg]), limits=limits)


def fold(exchange: ExchangePair, *rows: tuple[int, int]) -> None:
    columns = [pa.array(column) for column in zip(*[(*row, 1) for row in rows], strict=True)]
    arrays = [column.cast(field.type) for column, field in zip(columns, COLUMNS, strict=True)]
    exchange.send(exchange.engine.chunk(pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)))


def saved_states(exchange: ExchangePair) -> dict[int, Any]:
    exchange.send(exchange.engine.checkpoint())
    result = exchange.answers.pop()
    assert isinstance(result, CheckpointAnswer)
    assert result.problem == ""
    assert result.states["output_0"].null_count == result.states.num_rows
    return dict(zip(result.states["slot"].to_pylist(), result.states["state_0"].to_pylist(), strict=True))


@pytest.mark.parametrize("states", [True, False], ids=["with states", "outputs only"])
def test_a_checkpoint_saves_what_changed_since_the_last(states: bool) -> None:
    """A checkpoint returns each changed state once, regardless of barriers; the slots of the barrier stay the same."""
    exchange = pair(states=states)
    fold(exchange, (0, 5), (3, 7))
    assert saved_states(exchange) == {0: {"sum": 5, "count": 1}, 3: {"sum": 7, "count": 1}}
    assert saved_states(exchange) == {}
    fold(exchange, (3, 1))
    assert exchange.epoch(1).select(["slot", "output_0"]).to_pylist() == [
        {"slot": 0, "output_0": 5},
        {"slot": 3, "output_0": 4},
    ]
    # A barrier that returned the state has saved it, one that did not has not.
    assert saved_states(exchange) == ({} if states else {3: {"sum": 8, "count": 2}})
    fold(exchange, (1, 1))
    exchange.send(exchange.engine.forget(pa.array([1], pa.int32())))
    assert saved_states(exchange) == {}


def test_large_checkpoints_come_in_parts() -> None:
    """The messages of a checkpoint stay within message_bytes_max, too."""
    exchange = pair(limits=Limits(20_000, 10_000, 2**20, 2**24, 1, 1.0, 1.0))
    fold(exchange, *[(slot, 1) for slot in range(2000)])
    replies = exchange.send(exchange.engine.checkpoint())
    assert len(replies) > 5
    assert [reply.last for reply in replies if isinstance(reply, SavedStates)] == [False] * (len(replies) - 1) + [True]
    result = exchange.answers.pop()
    assert isinstance(result, CheckpointAnswer)
    assert result.states["slot"].to_pylist() == list(range(2000))


@pytest.mark.every_turn
def test_results_come_in_parts_of_a_megabyte() -> None:
    """The engine can read one part while the server encodes the next, however large a message may be."""
    exchange = pair(limits=Limits(2**26, 2**20, 2**20, 2**26, 1, 1.0, 1.0))
    fold(exchange, *[(slot, 1) for slot in range(100_000)])
    replies = exchange.send(exchange.engine.barrier(1))
    sizes = [reply.batch.nbytes for reply in replies if isinstance(reply, Results)]
    assert len(sizes) == len(replies) > 2
    assert max(sizes) <= 2**20
    assert exchange.answers.pop()["slot"].to_pylist() == list(range(100_000))


def test_embedded_results_are_one_part() -> None:
    """Nothing is sent within a process, so results of any size are one batch."""
    transport = EmbeddedTransport(Registry.load([WeightedAvg]), state_key=b"a key of the tests")
    slots = pa.array(range(100_000), pa.int32())
    ones = pa.array([1] * len(slots))
    with transport.open(Open((Call("weighted_avg", ("v", "w")),), COLUMNS)) as exchange:
        columns = [slots, ones, ones]
        cast = [each.cast(field.type) for each, field in zip(columns, COLUMNS, strict=True)]
        exchange.chunk(pa.RecordBatch.from_arrays(cast, schema=COLUMNS))
        exchange.barrier(1)
        results = exchange.results(1)
    assert results.nbytes > 2**20
    assert results["slot"].num_chunks == 1
    assert results["slot"].to_pylist() == slots.to_pylist()


def test_states_that_cannot_be_saved_do_not_end_the_exchange() -> None:
    """If states are too large or cannot be serialized, an exchange that does not request them continues."""
    exchange = pair(states=False, limits=Limits(2**20, 1000, 2**20, 10, 1, 1.0, 1.0))
    fold(exchange, (0, 5))
    exchange.send(exchange.engine.checkpoint())
    result = exchange.answers.pop()
    assert isinstance(result, CheckpointAnswer)
    assert result.problem.startswith("LIMIT: the states have")
    assert result.states.num_rows == 0
    assert exchange.epoch(1)["output_0"].to_pylist() == [5]


def test_lines_logged_before_a_checkpoint_come_with_it() -> None:
    """Log records before a checkpoint are sent with it, so they are not lost when the exchange moves."""
    from tests.wire.wire_functions import Talks

    exchange = ExchangePair(Open((Call("talks", ("v",)),), COLUMNS), Registry.load([Talks]))
    fold(exchange, (0, 5))
    log, states = exchange.send(exchange.engine.checkpoint())
    assert isinstance(log, Log)
    assert isinstance(states, SavedStates)
    assert exchange.epoch(1).num_rows == 1
    assert not isinstance(exchange.replies[-2], Log)
