"""Small chunks that follow each other closely are sent as one; everything else is sent as it comes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from foldflight.client import failover
from foldflight.client.failover import SurvivingLink
from foldflight.errors import RejectedError
from foldflight.exchange.failover.circuits import Circuits
from foldflight.exchange.failover.coordinator import Coordinator
from foldflight.exchange.failover.steps import FailoverBounds
from foldflight.exchange.frames import Barrier, Chunk, Forget, Limits, Open, Opened, OpenedCall
from foldflight.functions import Call

COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64())])
RESULTS = pa.schema([("slot", pa.int32()), ("state_0", pa.int64()), ("output_0", pa.int64())])
LIMITS = Limits(2**26, 100, 2**20, 2**20, 1, 1.0, 1.0)


class Recorder:
    """A link that notes the frames it is given."""

    def __init__(self) -> None:
        call = OpenedCall("f", can_retract=True, can_merge=False, is_invertible=True, input_types=(pa.int64(),))
        self.opened = Opened("s", 1, (call,), LIMITS, RESULTS)
        self.sent: list[Any] = []
        self.reopen = False

    def send(self, frame: Any) -> None:
        self.sent.append(frame)

    def answer(self) -> pa.Table:
        return pa.Table.from_pylist([], schema=RESULTS)

    def take_logs(self) -> list[Any]:
        return []

    def close(self) -> None: ...

    def cut(self) -> None: ...

    def shown(self) -> list[Any]:
        """Return the values of each chunk, and other frames by their names."""
        return [
            frame.batch["v"].to_pylist() if isinstance(frame, Chunk) else type(frame).__name__ for frame in self.sent
        ]


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def rest_until(self, until_s: float) -> None: ...


def chunk(*values: int, slot: int = 0) -> Chunk:
    return Chunk(pa.RecordBatch.from_pydict({"slot": [slot] * len(values), "v": list(values)}, schema=COLUMNS))


def linked(replay_bytes_max: int = 1 << 26, **asked: Any) -> tuple[SurvivingLink, Recorder, Clock]:
    recorder, clock = Recorder(), Clock()
    opening = Open((Call("sum", ("v",)),), COLUMNS, **asked)
    coordinator = Coordinator(
        opening, ("grpc://a",), Circuits(lambda: 0.5), bounds=FailoverBounds(replay_bytes_max=replay_bytes_max)
    )
    return SurvivingLink(coordinator, lambda _url, _opening: recorder, clock), recorder, clock  # type: ignore[return-value,arg-type]


def test_small_chunks_are_joined() -> None:
    """The first goes out at once; those that follow closely go out as one, before any other frame, in order."""
    link, recorder, clock = linked()
    for value in range(4):
        link.send(chunk(value))
        clock.time_s += 0.0005
    assert recorder.shown() == [[0]]
    link.send(Forget(pa.array([7], pa.int32())))
    link.send(chunk(4))
    link.send(chunk(5))
    link.send(Barrier(1))
    assert recorder.shown() == [[0], [1, 2, 3], "Forget", [4, 5], "Barrier"]


def test_a_chunk_after_a_pause_goes_out_with_those_before() -> None:
    """What waits is sent when more than a moment has passed, in order, and so is the next chunk."""
    link, recorder, clock = linked()
    link.send(chunk(0))
    link.send(chunk(1))
    clock.time_s += 1.0
    link.send(chunk(2))
    assert recorder.shown() == [[0], [1], [2]]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined chunks go out when they have enough rows; large ones are not kept at all."""
    monkeypatch.setattr(failover, "_JOINED_ROWS", 4)
    link, recorder, _ = linked()
    for value in range(6):
        link.send(chunk(value))
    assert recorder.shown() == [[0], [1, 2, 3, 4]]
    link.send(chunk(*range(failover._SMALL_ROWS + 1)))
    assert recorder.shown()[2:] == [[5], list(range(failover._SMALL_ROWS + 1))]


def test_what_waits_is_a_small_part_of_what_may_be_replayed() -> None:
    """Joined chunks are no larger than the journal's bound allows, so checkpoints come as often as without joining."""
    link, recorder, _ = linked(replay_bytes_max=16 * 2 * chunk(0).batch.nbytes)
    for value in range(6):
        link.send(chunk(value))
    assert recorder.shown() == [[0], [1, 2], [3, 4]]


def test_a_chunk_of_few_rows_and_many_bytes_does_not_wait() -> None:
    """Joined with others it could exceed bounds that it respects alone: of a message, of the journal, of offsets."""
    link, recorder, _ = linked(replay_bytes_max=16 * 5 * chunk(0).batch.nbytes)
    link.send(chunk(0))
    link.send(chunk(1))
    link.send(chunk(2, 3, 4, 5, 6))
    assert recorder.shown() == [[0], [1], [2, 3, 4, 5, 6]]


def test_rows_that_come_steadily_do_not_wait_for_long() -> None:
    """Each follows the one before closely; a server would take the engine for idle, and its drain would come late."""
    link, recorder, clock = linked()
    for value in range(200):
        link.send(chunk(value))
        clock.time_s += 0.0009
    assert [len(values) for values in recorder.shown()] == [1, 57, 57, 57]


def test_chunks_that_are_answered_are_not_joined() -> None:
    """With a value after each row, each chunk has an answer of its own."""
    link, recorder, _ = linked(row_outputs=True)
    link.send(chunk(0))
    assert recorder.shown() == [[0]]
    assert not link._may_wait(chunk(1))


def test_a_chunk_with_other_columns_is_refused_at_once() -> None:
    """It is not joined with others, and the error is the usual one."""
    link, _, _ = linked()
    link.send(chunk(0))
    link.send(chunk(1))
    with pytest.raises(RejectedError, match="SCHEMA_MISMATCH"):
        link.send(Chunk(chunk(2).batch.rename_columns(["slot", "w"])))
