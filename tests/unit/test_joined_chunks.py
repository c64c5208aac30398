"""Small chunks for a server are sent together, and the results are the same as for all rows in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from foldflight.client import connect, failover
from foldflight.client.failover import FailoverExchange
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.failover.coordinator import Circuits, Coordinator, FailoverBounds
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, Forget, Open
from foldflight.fold.mode import Mode
from foldflight.functions import Call

COLUMNS = pa.schema([("slot", pa.int32()), ("t", pa.string())])
ALL = Open(calls=(Call("string_agg", ("t",)),), columns=COLUMNS)


@pytest.fixture(autouse=True)
def in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the functions of these tests, which tell the order of rows, for ones that a loop folds."""
    monkeypatch.setattr(failover, "_LOOPS", frozenset(Mode))


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def now_s(self) -> float:
        return self.now

    def rest_until(self, until_s: float) -> None:
        raise AssertionError(f"nothing waits until {until_s}")


def exchange_of(open_request: Open, clock: Clock, frames: list[EngineFrame]) -> FailoverExchange:
    """Return an exchange with the functions of this process, like one with a server, which notes the frames."""

    def dial(_: str, request: Open) -> Any:
        connection: Any = connect("embedded:").transport.open(request)._connection  # type: ignore[attr-defined]
        send: Callable[[EngineFrame], bool] = connection.send
        connection.send = lambda frame: frames.append(frame) or send(frame)
        return connection

    coordinator = Coordinator(open_request, ["one"], Circuits(lambda: 0.0), bounds=FailoverBounds(), now_s=clock.now_s)
    return FailoverExchange(open_request, coordinator, dial, clock)


def rows(*texts: str, slot: int = 0) -> pa.RecordBatch:
    return pa.record_batch([pa.array([slot] * len(texts), pa.int32()), pa.array(texts)], schema=COLUMNS)


def sent_frames(frames: list[EngineFrame]) -> list[Any]:
    return [frame.batch["t"].to_pylist() if isinstance(frame, Chunk) else type(frame) for frame in frames]


def test_small_chunks_go_in_one_frame_before_the_next_other_frame() -> None:
    """Their rows keep their order among each other and before what comes next."""
    frames: list[EngineFrame] = []
    with exchange_of(ALL, Clock(), frames) as exchange:
        exchange.chunk(rows("a", "b"))
        exchange.chunk(rows("c", slot=1))
        assert frames == []
        exchange.forget(pa.array([1], pa.int32()))
        exchange.chunk(rows("d"))
        exchange.barrier(1)
        assert exchange.results(1)["output_0"].to_pylist() == ["a,b,d"]
    assert sent_frames(frames) == [["a", "b", "c"], Forget, ["d"], Barrier]


def test_chunks_wait_for_enough_rows_or_bytes_or_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is full, or has waited, is sent at once, and a large chunk goes after the small ones before it."""
    monkeypatch.setattr(failover, "_SMALL_ROWS_MAX", 3)
    monkeypatch.setattr(failover, "_JOINED_ROWS_MAX", 4)
    monkeypatch.setattr(failover, "_JOINED_BYTES_MAX", 1_000)
    frames: list[EngineFrame] = []
    clock = Clock()
    with exchange_of(ALL, clock, frames) as exchange:
        exchange.chunk(rows("a", "b"))
        exchange.chunk(rows("c", "d"))
        assert sent_frames(frames) == [["a", "b", "c", "d"]]
        exchange.chunk(rows("e"))
        exchange.chunk(rows("f", "g", "h", "i"))
        assert sent_frames(frames)[1:] == [["e"], ["f", "g", "h", "i"]]
        exchange.chunk(rows("x" * 1_000))
        assert sent_frames(frames)[3:] == [["x" * 1_000]]
        exchange.chunk(rows("j"))
        clock.now = 0.5
        exchange.chunk(rows("k"))
        assert sent_frames(frames)[4:] == [["j", "k"]]


def test_rows_of_a_fixed_size_are_counted_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a large table count as their own rows, and fill a frame as other rows do."""
    monkeypatch.setattr(failover, "_JOINED_BYTES_MAX", 100)
    numbers = pa.schema([("slot", pa.int32()), ("v", pa.int64())])
    whole = pa.record_batch([pa.array([0] * 1_000, pa.int32()), pa.array(range(1_000))], schema=numbers)
    frames: list[Any] = []
    with exchange_of(Open(calls=(Call("max", ("v",)),), columns=numbers), Clock(), frames) as exchange:
        for start, count in ((0, 4), (4, 4), (8, 1), (9, 90)):
            exchange.chunk(whole.slice(start, count))
        assert [frame.batch["v"].to_pylist() for frame in frames] == [[*range(8)], [8], [*range(9, 99)]]
        exchange.barrier(1)
        assert exchange.results(1)["output_0"].to_pylist() == [98]


def test_the_bytes_of_rows_are_never_too_few() -> None:
    """They decide whether a message may be too large. Rows of a fixed size may count as a byte more for each value."""
    fixed = {
        "b": pa.array([True, None] * 500),
        "i": pa.array([1] * 1_000, pa.int8()),
        "d": pa.array([None] * 1_000, pa.decimal128(38, 2)),
        "t": pa.array([1] * 1_000, pa.timestamp("us")),
    }
    batch = pa.record_batch(fixed)
    open_request = Open(calls=(Call("count"),), columns=batch.schema)
    for part in (batch, batch.slice(3, 100), batch.slice(0, 0)):
        assert part.nbytes <= open_request.bytes_of(part) <= part.nbytes + part.num_rows * len(fixed)
    for other in (pa.array(["a"] * 1_000), pa.array([[1, 2]] * 1_000), pa.nulls(1_000)):
        varied = pa.record_batch({**fixed, "o": other})
        open_request = Open(calls=(Call("count"),), columns=varied.schema)
        assert open_request.bytes_of(varied) == varied.nbytes
        assert open_request.bytes_of(varied.slice(3, 100)) == varied.slice(3, 100).nbytes


def test_rows_without_columns_are_counted() -> None:
    """A chunk may be nothing but a number of rows."""
    frames: list[EngineFrame] = []
    with exchange_of(Open(calls=(Call("count"),), columns=pa.schema([])), Clock(), frames) as exchange:
        for count in (2, 3):
            exchange.chunk(pa.record_batch({"a": [0] * count}).select([]))
        exchange.barrier(1)
        assert exchange.results(1)["output_0"].to_pylist() == [5]
    assert [type(frame) for frame in frames] == [Chunk, Barrier]


def test_chunks_with_answers_go_alone() -> None:
    """Each has the outputs after its own rows."""
    frames: list[EngineFrame] = []
    with exchange_of(replace(ALL, row_outputs=True), Clock(), frames) as exchange:
        exchange.chunk(rows("a"))
        exchange.chunk(rows("b"))
        assert [exchange.row_outputs()["output_0"].to_pylist() for _ in range(2)] == [["a"], ["a,b"]]
    assert sent_frames(frames) == [["a"], ["b"]]


def test_a_wrong_chunk_is_refused_at_once() -> None:
    """Chunks with other columns are not kept, and a closed exchange takes none."""
    exchange = exchange_of(ALL, Clock(), [])
    with pytest.raises(RejectedError, match="SCHEMA_MISMATCH"):
        exchange.chunk(pa.record_batch({"slot": pa.array([0], pa.int32())}))
    with pytest.raises(FoldflightError, match="closed"):
        exchange.chunk(rows("a"))


def test_rows_of_interpreted_functions_go_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk keeps the whole time limit of a frame, because each of its rows may take long."""
    monkeypatch.undo()
    frames: list[EngineFrame] = []
    with exchange_of(ALL, Clock(), frames) as exchange:
        exchange.chunk(rows("a"))
        exchange.chunk(rows("b"))
        assert sent_frames(frames) == [["a"], ["b"]]
    counts = Open(calls=(Call("string_agg", ("t",)), Call("count")), columns=COLUMNS)
    with exchange_of(counts, Clock(), frames := []) as exchange:
        exchange.chunk(rows("a"))
        assert sent_frames(frames) == [["a"]]
    with exchange_of(Open(calls=(Call("count"),), columns=COLUMNS), Clock(), frames := []) as exchange:
        exchange.chunk(rows("a"))
        assert sent_frames(frames) == []
