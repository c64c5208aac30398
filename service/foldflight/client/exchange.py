"""The engine's end of one exchange, whatever carries its frames.

A frame is only sent when every reply to earlier frames has been read: a server that blocks on its replies while the
client blocks on its chunks would wait for ever. A barrier may be sent and its results fetched later; what is sent in
between fetches them first.
"""

from __future__ import annotations

import abc
from collections import deque
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from foldflight.errors import RejectedError, RetryableError
from foldflight.exchange.engine import EngineExchange, Saved
from foldflight.exchange.frames import (
    SLOT_BYTES,
    Frame,
    InitialOutputs,
    Log,
    Open,
    Opened,
    Results,
    RowOutputs,
    SavedStates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from foldflight.functions.context import LogRecord

__all__ = ["ClientExchange"]

# What a message has besides its columns' bytes: offsets, validity, headers.
_OVERHEAD_BYTES = 16 * 1024
# A number of 31 bits as a varint.
_FORGOTTEN_BYTES = 5


class ClientExchange(abc.ABC):
    """What all transports share; a subclass carries frames.

    Args:
        opening: What the exchange is opened with.
        deadline_s: Longest wait for any one step.
    """

    def __init__(self, opening: Open, *, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.opened: Opened
        self.reopen = False
        self._opening = opening
        self._engine = EngineExchange(opening)
        self._failed = False
        self._closed = False
        self._epochs_due: deque[int] = deque()
        self._results: dict[int, pa.Table] = {}
        self._checkpoints_due = 0
        self._saved: deque[Saved] = deque()
        self._initial = _Parts("initial_outputs", "states")
        self._rows = _Parts("row_outputs", "chunk")
        self._logs: list[LogRecord] = []

    # -- what a transport gives --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _send(self, frame: Frame) -> None:
        """Send a frame, or raise an error of the taxonomy."""

    @abc.abstractmethod
    def _receive(self) -> Frame | None:
        """Return the next frame, None at the end of the stream, or raise an error of the taxonomy."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Free what the transport holds; `_failed` tells whether the exchange ended with an error."""

    # -- what an engine calls ----------------------------------------------------------------------------------------

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        """Merge states into slots: columns `slot` int32 and one `state_i` per call."""
        asks = self._opening.initial_outputs and not unanswered
        for part in self._split(batch):
            self._transmit(lambda part=part: self._engine.states(part, unanswered=unanswered))  # type: ignore[misc]
            self._initial.due += asks
        if asks:
            self._initial.end_of_question()

    def chunk(self, batch: pa.RecordBatch) -> None:
        """Fold rows: a batch of the columns that Open announced."""
        for part in self._split(batch):
            self._transmit(lambda part=part: self._engine.chunk(part))  # type: ignore[misc]
            if self._opening.row_outputs:
                self._rows.due += 1
        if self._opening.row_outputs:
            self._rows.end_of_question()

    def forget(self, slots: pa.Int32Array) -> None:
        """Drop the accumulators of these slots."""
        size = max((self.opened.limits.message_bytes_max - _OVERHEAD_BYTES) // _FORGOTTEN_BYTES, 1)
        for start in range(0, len(slots), size):
            part = slots.slice(start, size)
            self._transmit(lambda part=part: self._engine.forget(part))  # type: ignore[misc]

    def barrier(self, epoch: int) -> None:
        """End an epoch; epochs increase. `results` fetches what it returns."""
        self._transmit(lambda: self._engine.barrier(epoch))
        self._epochs_due.append(epoch)

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch and hand them over, once."""
        with self._failing():
            if epoch not in self._results and epoch not in self._epochs_due:
                raise RejectedError("BAD_FRAME", f"no results of epoch {epoch} are due: no barrier {epoch} was sent")
            while epoch not in self._results:
                self._pull()
        return self._results.pop(epoch)

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs that answer the oldest `states` not yet asked about."""
        with self._failing():
            while not self._initial.complete():
                self._pull()
            return self._initial.take()

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` not yet asked about."""
        with self._failing():
            while not self._rows.complete():
                self._pull()
            return self._rows.take()

    def checkpoint(self, *, if_reopen: bool = False) -> None:
        """Ask for states within an epoch; `saved` fetches them."""
        self._transmit(lambda: self._engine.checkpoint(if_reopen=if_reopen))
        self._checkpoints_due += 1

    def saved(self) -> Saved:
        """Wait for what the oldest checkpoint not yet asked about saved."""
        with self._failing():
            while not self._saved:
                self._pull()
            return self._saved.popleft()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is not None:
            self.cut()  # whatever went wrong, nobody wants the rest
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Read Opened, the first frame."""
        with self._failing():
            frame = self._next()
            if not isinstance(frame, Opened):
                raise RejectedError("BAD_FRAME", f"the first reply was {type(frame).__name__}, not Opened")
            self.opened = frame

    def _transmit(self, make: Callable[[], Frame]) -> None:
        with self._failing():
            while self._epochs_due or self._initial.due or self._rows.due or self._checkpoints_due:
                self._pull()
            self._send(make())

    def _pull(self) -> None:
        frame = self._next()
        if isinstance(frame, Results):
            self.reopen = self.reopen or frame.reopen
            table = self._engine.take_results(frame.epoch)
            if table is not None:
                self._epochs_due.remove(frame.epoch)
                self._results[frame.epoch] = table
        elif isinstance(frame, SavedStates):
            self.reopen = self.reopen or frame.reopen
            saved = self._engine.take_saved()
            if saved is not None:
                self._checkpoints_due -= 1
                self._saved.append(saved)
        elif isinstance(frame, RowOutputs):
            self._rows.add(frame.batch)
        elif isinstance(frame, InitialOutputs):
            self._initial.add(frame.batch)
        elif isinstance(frame, Log):
            self._logs.extend(frame.records)

    def _next(self) -> Frame:
        frame = self._receive()
        if frame is None:
            raise RetryableError("UNREACHABLE", "the server ended the exchange before it had answered everything")
        self._engine.receive(frame)
        return frame

    def _failing(self) -> _Failing:
        if self._closed:
            raise RejectedError("BAD_FRAME", "the exchange is closed")
        return _Failing(self)

    def _split(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield slices whose messages stay within the server's bound; a fold does not see where a chunk is cut."""
        room = max(self.opened.limits.message_bytes_max - _OVERHEAD_BYTES, 1)
        # A row without columns, too, takes a slot's room on the server.
        pieces = -(-max(batch.nbytes, batch.num_rows * SLOT_BYTES) // room)
        if pieces <= 1 or batch.num_rows <= 1:
            yield batch
            return
        size = max(batch.num_rows // (pieces + 1), 1)
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            if part.nbytes > room and part.num_rows > 1:  # rows of unequal size
                yield from self._split(part)
            else:
                yield part


class _Parts:
    """Replies to questions that may have been asked in several parts."""

    def __init__(self, name: str, question: str) -> None:
        self.due = 0
        self._name = name
        self._question = question
        self._sizes: deque[int] = deque()
        self._got: deque[pa.RecordBatch] = deque()

    def add(self, batch: pa.RecordBatch) -> None:
        self.due -= 1
        self._got.append(batch)

    def end_of_question(self) -> None:
        """Note how many parts the question had that was just asked."""
        parts = self.due + len(self._got) - sum(self._sizes)
        self._sizes.append(parts)

    def complete(self) -> bool:
        """Return whether the oldest question has all its parts."""
        if not self._sizes:
            raise RejectedError(
                "BAD_FRAME", f"no {self._name} are due: Open did not ask for them, or no {self._question} was sent"
            )
        return len(self._got) >= self._sizes[0]

    def take(self) -> pa.RecordBatch:
        parts = [self._got.popleft() for _ in range(self._sizes.popleft())]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class _Failing:
    """Remembers that an exchange failed, so that it is cut off and not ended politely."""

    def __init__(self, exchange: ClientExchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        pass

    def __exit__(self, exception_type: type[BaseException] | None, *_rest: object) -> None:
        if exception_type is not None:
            self._exchange._failed = True  # noqa: SLF001  (it is part of the exchange)
