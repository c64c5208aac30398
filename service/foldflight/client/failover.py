"""Failover with real connections and a real clock: carry out the instructions of the coordinator.

A user who waits for servers is told why, and for how much longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa

from foldflight.client.client_logs import log_event, set_up_logger
from foldflight.client.connection import Connection
from foldflight.client.exchange import OpenExchange, closed_error
from foldflight.errors import FoldflightError, RetryableError
from foldflight.exchange.failover.coordinator import (
    AnswerReceived,
    AnswerRequested,
    ConnectionLost,
    Coordinator,
    CutConnection,
    Deliver,
    Event,
    ExchangeStarted,
    FrameSent,
    FrameSubmitted,
    GiveUp,
    LeaveConnection,
    LogEvent,
    OpenConnection,
    SendFrame,
    ServerOpened,
    Sleep,
    TimerFired,
    Waiting,
)
from foldflight.exchange.frames import Chunk, EngineFrame, Open
from foldflight.fold.mode import Mode
from foldflight.functions.types.arrow import concat_batches

_LOGGER: Final = "foldflight.client"
_FIRST_S: Final = 3.0  # most waits are shorter, and need no word
_NEXT_S: Final = 10.0


class Clock(Protocol):
    """A monotonic clock."""

    def now_s(self) -> float:
        """Return the current time, in seconds."""

    def rest_until(self, until_s: float) -> None:
        """Sleep until this time."""


class Patience:
    """Waits for servers, and logs a warning from the third second on, so that a notebook does not seem to hang.

    Args:
        urls: The servers that are waited for.
        patience_s: Longest wait, from now on.
        clock: Tells the time, and sleeps.
    """

    def __init__(self, urls: Sequence[str], patience_s: float, clock: Clock) -> None:
        self._urls = urls
        self._clock = clock
        self._patience_s = patience_s
        self._ends_s = clock.now_s() + patience_s
        self._next_log_s = clock.now_s() + _FIRST_S

    def lasts_until(self, until_s: float) -> bool:
        """Return whether the wait may go on until this time."""
        return until_s < self._ends_s

    def rest_until(self, until_s: float, problem: RetryableError) -> None:
        """Sleep until this time. A warning tells the error every ten seconds.

        Args:
            until_s: When servers are asked again, in seconds of the clock.
            problem: The last error.
        """
        while (now_s := self._clock.now_s()) < until_s:
            if now_s >= self._next_log_s:
                self._next_log_s = now_s + _NEXT_S
                set_up_logger(_LOGGER, logging.WARNING).warning(
                    "waiting for %s, %.0f s left (patience_s=%g): %s: %s",
                    ", ".join(self._urls),
                    self._ends_s - now_s,
                    self._patience_s,
                    problem.code,
                    problem.message,
                )
            self._clock.rest_until(min(until_s, self._next_log_s))


# A frame costs as much as the fold of 10,000 rows. Chunks with fewer are joined up to these rows, bytes and seconds.
_SMALL_ROWS_MAX: Final = 1 << 13
_JOINED_ROWS_MAX: Final = 1 << 16
_JOINED_BYTES_MAX: Final = 1 << 22
_JOINED_PART: Final = 4  # joined rows take at most 1/4 of the limits of a message and of the replay log
_JOINED_S_MAX: Final = 0.02
# Each frame has a time limit, which rows that are sent together share. An author's method that is called row by row may
# take a second for one, so only rows that a loop folds are sent together.
_LOOPS: Final = frozenset({Mode.COMPILED, Mode.VECTORISED, Mode.JAVA})


_logged_once: Final[set[str]] = set()
_LOGGED_ONCE_MAX: Final = 1000  # a stream opens exchanges for ever, so the set is bounded


def _was_logged(event: LogEvent) -> bool:
    """Return whether an equal event was logged in this process before, and remember this one."""
    key = repr(event)
    if key in _logged_once:
        return True
    if len(_logged_once) < _LOGGED_ONCE_MAX:
        _logged_once.add(key)
    return False


class FailoverExchange(OpenExchange):
    """An exchange that moves from server to server.

    Args:
        open_request: The Open frame of the exchange.
        coordinator: Makes all decisions.
        dial: Opens a connection to one server.
        clock: Tells the time, and sleeps.

    Raises:
        FoldflightError: The coordinator gave up.
    """

    def __init__(
        self, open_request: Open, coordinator: Coordinator, dial: Callable[[str, Open], Connection], clock: Clock
    ) -> None:
        super().__init__(open_request)
        self.coordinator = coordinator
        self._dial = dial
        self._clock = clock
        # Chunks with an answer, or before which entries of views are sent, must go as they are.
        self._joins = not (open_request.row_outputs or open_request.maps or open_request.keeps_views)
        self._joined_bytes_max = 0  # bytes of chunks that the current server gets together; 0: each goes as it is
        self._joined_batches: list[pa.RecordBatch] = []
        self._joined_rows = self._joined_bytes = 0
        self._joined_since_s = 0.0
        self._process(ExchangeStarted())

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""
        return self.coordinator.wants_checkpoint

    def chunk(self, batch: pa.RecordBatch) -> None:
        """Fold the rows of a batch. Small ones are sent together: at the latest before another frame."""
        rows = batch.num_rows
        is_joined = rows <= _SMALL_ROWS_MAX and self._joined_bytes_max > 0 and not self.is_over
        size = self._open_request.bytes_of(batch) if is_joined and batch.schema == self._open_request.columns else -1
        if not 0 <= size <= self._joined_bytes_max:
            super().chunk(batch)
            return
        if not self._joined_batches:
            self._joined_since_s = self._clock.now_s()
        self._joined_batches.append(batch)
        self._joined_rows += rows
        self._joined_bytes += size
        is_full = self._joined_rows >= _JOINED_ROWS_MAX or self._joined_bytes >= self._joined_bytes_max
        if is_full or self._clock.now_s() >= self._joined_since_s + _JOINED_S_MAX:
            self._send_joined()

    def _bytes_to_join(self) -> int:
        """Return how many bytes of chunks the current server gets together; 0 if it gets each chunk as it is."""
        if not (self._joins and all(call.mode in _LOOPS for call in self.open_reply.calls)):
            return 0
        limit = min(self.open_reply.limits.message_bytes_max, self.coordinator.replay_bytes_max)
        return min(_JOINED_BYTES_MAX, limit // _JOINED_PART)

    def _send_joined(self) -> None:
        batches, self._joined_batches, self._joined_rows, self._joined_bytes = self._joined_batches, [], 0, 0
        if batches:
            self._process(FrameSubmitted(Chunk(batches[0] if len(batches) == 1 else concat_batches(batches))))

    def send(self, frame: EngineFrame) -> None:
        """Send the frame of an operation. Answers to earlier ones may arrive meanwhile."""
        self._send_joined()
        self._process(FrameSubmitted(frame))

    def _await_answer(self) -> bool:
        """Wait until another answer has arrived. Return False if none is due."""
        is_due = self.coordinator.is_due
        if is_due or self.is_over:
            self._process(AnswerRequested())
        return is_due

    def _process(self, event: Event) -> None:
        """Report to the coordinator, and carry out its instructions until there are no more."""
        if self.is_over:
            raise closed_error()
        try:
            instructions = self.coordinator.handle(event)
            while instructions:
                # Only the last instruction can wait, and so lead to others.
                for instruction in instructions:
                    if isinstance(instruction, Waiting):
                        instructions = self.coordinator.handle(self._wait(instruction))
                    else:
                        instructions = []
                        self._execute(instruction)
        except BaseException:
            self.cut()
            raise

    def _execute(self, instruction: Deliver | CutConnection | LeaveConnection | LogEvent | GiveUp) -> None:
        """Carry out an instruction that does not wait."""
        match instruction:
            case Deliver():
                self._logs += instruction.logs
                if instruction.answer is not None:
                    self._arrived_answers.append((instruction.frame, instruction.answer))
            case CutConnection():
                self._leave(is_cut=True)
            case LeaveConnection():
                self._leave(is_cut=False)
            case LogEvent():
                if not (instruction.once and _was_logged(instruction)):
                    log_event(
                        set_up_logger(_LOGGER, logging.WARNING), logging.WARNING, instruction.event, instruction.fields
                    )
            case GiveUp():
                raise instruction.error

    def _wait(self, instruction: Waiting) -> Event:
        """Carry out an instruction that waits, and return the event that ended it."""
        if isinstance(instruction, Sleep):
            self._clock.rest_until(instruction.until_s)
            return TimerFired()
        connection, answer = self._connection, None
        try:
            if isinstance(instruction, OpenConnection):
                connection = self._connection = self._dial(instruction.url, instruction.open_request)
            elif connection is None:
                raise AssertionError("the coordinator returned an instruction for a connection, and there is none")
            elif isinstance(instruction, SendFrame):
                connection.send(instruction.frame)
            else:
                answer = connection.answer()
        except FoldflightError as error:
            if connection is not None and connection.unresolved is not None:
                raise
            return ConnectionLost(error)
        if isinstance(instruction, SendFrame):
            return FrameSent()
        if answer is not None:
            return AnswerReceived(answer, connection.take_logs(), connection.reopen)
        self.open_reply = connection.open_reply
        self._joined_bytes_max = self._bytes_to_join()
        return ServerOpened(connection.open_reply)
