"""One server's turn at an exchange: frames go out, and the answers to them come back whole.

A frame is only sent when every answer to earlier frames has been read: a server that blocks on its answers while the
engine blocks on its chunks would wait for ever. A barrier may be sent and its results fetched later; what is sent in
between fetches them first.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from foldflight.errors import RejectedError, RetryableError
from foldflight.exchange.engine import Answer, EngineExchange
from foldflight.exchange.frames import (
    SLOT_BYTES,
    Chunk,
    EngineFrame,
    Forget,
    Frame,
    Log,
    Open,
    Opened,
    Results,
    SavedStates,
    States,
)

if TYPE_CHECKING:
    from foldflight.functions.context import LogRecord

__all__ = ["Link"]

# What a message has besides its columns' bytes: offsets, validity, headers.
_OVERHEAD_BYTES = 16 * 1024
# A number of 31 bits as a varint.
_FORGOTTEN_BYTES = 5


class Link(abc.ABC):
    """One exchange with one server; a subclass carries the frames.

    After an error the link is of no more use; `cut` it.

    Args:
        opening: What the exchange is opened with.

    Attributes:
        opened: What the server answered.
        reopen: Whether the server asks to be left.
    """

    def __init__(self, opening: Open) -> None:
        self.opened: Opened
        self.reopen = False
        self._opening = opening
        self._engine = EngineExchange(opening)
        self._failed = False
        self._closed = False
        # How many parts each question was sent in whose answer nobody has taken yet, oldest first; the parts that came.
        self._questions: deque[int] = deque()
        self._answers: deque[Answer] = deque()
        self._due = 0
        self._logs: list[LogRecord] = []

    # -- what a subclass gives ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _write(self, frame: Frame) -> None:
        """Send a frame, or raise an error of the taxonomy."""

    @abc.abstractmethod
    def _read(self) -> Frame | None:
        """Return the next frame, None at the end of the stream, or raise an error of the taxonomy."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Free what the link holds; `_failed` tells whether the exchange ended with an error."""

    # -- what carries an exchange ------------------------------------------------------------------------------------

    def send(self, frame: EngineFrame) -> None:
        """Send a frame, in as many messages as the server's bound asks for; read the answers that are due first.

        Raises:
            FoldflightError: The frame may not be sent now, or the server has failed.
        """
        asks = self._opening.is_answered(frame)
        parts = 0
        with self._failing():
            for part in self._split(frame):
                while self._due:
                    self._pull()
                self._engine.send(part)
                self._write(part)
                parts += 1
                self._due += asks
        if asks:
            self._questions.append(parts)

    def answer(self) -> Answer:
        """Wait for the answer to the oldest frame that asks for one and has not been taken.

        Raises:
            RejectedError: BAD_FRAME, when no answer is due.
            FoldflightError: The server has failed.
        """
        with self._failing():
            if not self._questions:
                raise RejectedError("BAD_FRAME", "no answer is due: no frame that asks for one was sent")
            parts = self._questions[0]
            while len(self._answers) < parts:
                self._pull()
        self._questions.popleft()
        found = [self._answers.popleft() for _ in range(parts)]
        return found[0] if parts == 1 else pa.concat_batches(found)

    def take_logs(self) -> Sequence[LogRecord]:
        """Return what functions logged since last asked."""
        logs, self._logs = self._logs, []
        return logs

    def close(self) -> None:
        """End the exchange and free what it holds; safe to call twice and after an error."""
        if not self._closed:
            self._closed = True
            self._end()

    def cut(self) -> None:
        """End the exchange at once, whatever it still owes."""
        self._failed = True
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Read Opened, the first frame."""
        with self._failing():
            frame = self._next()[0]
            if not isinstance(frame, Opened):
                raise RejectedError("BAD_FRAME", f"the first reply was {type(frame).__name__}, not Opened")
            self.opened = frame

    def _pull(self) -> None:
        frame, answer = self._next()
        if isinstance(frame, Log):
            self._logs.extend(frame.records)
        elif isinstance(frame, (Results, SavedStates)):
            self.reopen = self.reopen or frame.reopen
        if answer is not None:
            self._due -= 1
            self._answers.append(answer)

    def _next(self) -> tuple[Frame, Answer | None]:
        frame = self._read()
        if frame is None:
            raise RetryableError("UNREACHABLE", "the server ended the exchange before it had answered everything")
        return frame, self._engine.receive(frame)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Remember an error, so that the exchange is cut off and not ended politely."""
        if self._closed:
            raise RejectedError("BAD_FRAME", "the exchange is closed")
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _split(self, frame: EngineFrame) -> Iterator[EngineFrame]:
        """Yield a frame in parts that stay within the server's bound; a fold does not see where a chunk is cut."""
        room = max(self.opened.limits.message_bytes_max - _OVERHEAD_BYTES, 1)
        match frame:
            case States():
                for batch in _slices(frame.batch, room):
                    yield States(batch, unanswered=frame.unanswered)
            case Chunk():
                yield from map(Chunk, _slices(frame.batch, room))
            case Forget():
                size = max(room // _FORGOTTEN_BYTES, 1)
                for start in range(0, len(frame.slots), size):
                    yield Forget(frame.slots.slice(start, size))
            case _:
                yield frame


def _slices(batch: pa.RecordBatch, room: int) -> Iterator[pa.RecordBatch]:
    # A row without columns, too, takes a slot's room on the server.
    pieces = -(-max(batch.nbytes, batch.num_rows * SLOT_BYTES) // room)
    if pieces <= 1 or batch.num_rows <= 1:
        yield batch
        return
    size = max(batch.num_rows // (pieces + 1), 1)
    for start in range(0, batch.num_rows, size):
        part = batch.slice(start, size)
        if part.nbytes > room and part.num_rows > 1:  # rows of unequal size
            yield from _slices(part, room)
        else:
            yield part
