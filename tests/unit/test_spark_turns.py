"""Buckets that take turns in one exchange."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionError, RetryableError, connect
from foldflight.client import OpenExchange, Transport
from foldflight.engine.turns import Turns
from foldflight.exchange.frames import FunctionInfo, Open, Opened
from foldflight.functions import Call

CHUNK = pa.schema([("slot", pa.int32()), ("v", pa.int64())])
SUM = Open(calls=(Call("sum", ("v",)),), columns=CHUNK, initial_outputs=True)


class Counted:
    """A transport that counts the exchanges which are opened, and those which are still open."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.opened: list[OpenExchange] = []

    @property
    def alive(self) -> int:
        return sum(not each._closed for each in self.opened)  # type: ignore[attr-defined]

    def infos(self) -> list[FunctionInfo]:
        return self.transport.infos()

    def describe(self, open: Open) -> Opened:  # noqa: A002
        return self.transport.describe(open)

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        self.opened.append(self.transport.open(open))
        return self.opened[-1]


@pytest.fixture
def transport() -> Counted:
    return Counted(connect("embedded:").transport)


def chunk(rows: Iterable[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"slot": slot, "v": v} for slot, v in rows], schema=CHUNK)


def folded(exchange: OpenExchange, epoch: int, *rows: tuple[int, int]) -> list[tuple[Any, ...]]:
    exchange.chunk(chunk(rows))
    exchange.barrier(epoch)
    results = exchange.results(epoch)
    return list(zip(results["slot"].to_pylist(), results["output_0"].to_pylist(), strict=True))


def test_what_one_has_folded_the_next_does_not_see(transport: Counted) -> None:
    """Each turn begins with empty slots and its own first epoch, in the one exchange that was opened."""
    turns = Turns(transport)
    with turns.open(SUM) as exchange:
        assert folded(exchange, 1, (0, 1), (7, 2)) == [(0, 1), (7, 2)]
        assert folded(exchange, 2, (7, 3)) == [(7, 5)]
    with turns.open(SUM) as exchange:
        state = exchange.opened.schema.field("state_0")
        exchange.states(
            pa.table({"slot": pa.array([7], pa.int32()), "state_0": pa.nulls(1, state.type)}).to_batches()[0]
        )
        assert exchange.initial_outputs()["output_0"].to_pylist() == [None]
        assert folded(exchange, 1, (0, 10)) == [(0, 10), (7, None)]
    assert len(transport.opened) == 1
    assert transport.alive == 1
    turns.close()
    turns.close()
    assert transport.alive == 0


def test_rows_without_a_barrier_are_forgotten(transport: Counted) -> None:
    """A turn that ends before its barrier leaves nothing to the next."""
    turns = Turns(transport)
    with turns.open(SUM) as exchange:
        exchange.chunk(chunk([(3, 1)]))
    with turns.open(SUM) as exchange:
        assert folded(exchange, 1, (0, 10)) == [(0, 10)]


def test_an_error_ends_the_exchange(transport: Counted) -> None:
    """After an error in one turn the next is in another exchange."""
    turns = Turns(transport)
    with pytest.raises(FunctionError), turns.open(SUM) as exchange:
        folded(exchange, 1, (0, 2**62), (0, 2**62))
    assert transport.alive == 0
    with turns.open(SUM) as exchange:
        assert folded(exchange, 1, (0, 10)) == [(0, 10)]
    assert len(transport.opened) == 2


def test_an_exchange_that_cannot_forget_is_ended(transport: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn that would begin in it fails, and nothing stays open."""

    def lost(slots: pa.Int32Array) -> None:
        raise RetryableError("UNREACHABLE", f"{len(slots)} slots")

    turns = Turns(transport)
    with turns.open(SUM) as exchange:
        folded(exchange, 1, (0, 2))
    monkeypatch.setattr(transport.opened[0], "forget", lost)
    with pytest.raises(RetryableError):
        turns.open(SUM)
    assert transport.alive == 0
    with turns.open(SUM) as exchange:
        assert folded(exchange, 1, (0, 10)) == [(0, 10)]


def test_another_opening_is_another_exchange(transport: Counted) -> None:
    """Who opens something else does not get what was kept, which is closed."""
    turns = Turns(transport)
    with turns.open(SUM) as exchange:
        folded(exchange, 1, (0, 2))
    with turns.open(replace(SUM, calls=(Call("max", ("v",)),))) as exchange:
        assert folded(exchange, 1, (0, 2), (0, 1)) == [(0, 2)]
    assert (len(transport.opened), transport.alive) == (2, 1)
