"""Failover with real links and a real clock: carry out the instructions of the coordinator."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from foldflight.client.logs import log_event, set_up
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.failover.steps import (
    AnswerCame,
    AnswerWanted,
    AwaitAnswer,
    CutLink,
    Deliver,
    Event,
    FrameGiven,
    FrameSent,
    GiveUp,
    Instruction,
    LeaveLink,
    LinkLost,
    LinkOpened,
    OpenLink,
    Report,
    Rest,
    Rested,
    SendFrame,
    Started,
)
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Forget, Open, Opened, States

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from foldflight.client.link import Link
    from foldflight.exchange.engine import Answer
    from foldflight.exchange.failover.coordinator import Coordinator
    from foldflight.fold import Mode
    from foldflight.functions.context import LogRecord

__all__ = ["Clock", "SurvivingLink"]

_LOGGER = "foldflight.client"
# A frame costs about as much time as the fold of 10,000 rows. So small chunks that follow each other within _CLOSE_S
# are joined, up to the number of rows and the bytes of _JOINED, and for _WAIT_S: a server must not take for idle an
# engine that sends rows all the time, nor be asked too late whether the exchange should move.
_CLOSE_S = 0.001
_WAIT_S = 0.05
_SMALL_ROWS = 4096
_JOINED_ROWS = 1 << 14
_JOINED_BYTES = 1 << 20
# And to this part of what the journal may hold, which is bounded frame by frame.
_JOINED_OF_REPLAY = 16


class Clock(Protocol):
    """A monotonic clock."""

    def now_s(self) -> float:
        """Return the current time, in seconds."""

    def rest_until(self, until_s: float) -> None:
        """Sleep until this time."""


class SurvivingLink:
    """A carrier that moves one exchange from server to server.

    It joins small chunks that follow each other closely and have no answers. The joined chunk is sent before any other
    frame, before an answer is awaited, or when it is large enough. Rows that are still waiting at `close` are not sent:
    without a barrier nobody can see them.

    Args:
        coordinator: Makes all decisions.
        dial: Opens a link to one server.
        clock: Tells the time, and sleeps.

    Raises:
        FoldflightError: The coordinator gave up.
    """

    def __init__(self, coordinator: Coordinator, dial: Callable[[str, Open], Link], clock: Clock) -> None:
        self.coordinator = coordinator
        self._dial = dial
        self._clock = clock
        self._link: Link | None = None
        self._is_over = False
        self._answers: deque[Answer] = deque()
        self._logs: list[LogRecord] = []
        self._waiting: list[pa.RecordBatch] = []  # small chunks, to be sent as one
        self._waiting_rows = self._waiting_bytes = 0
        self._waiting_bytes_max = min(_JOINED_BYTES, coordinator.bounds.replay_bytes_max // _JOINED_OF_REPLAY)
        self._waiting_since_s = 0.0
        self._chunk_at_s = -1.0  # when the newest chunk was taken
        self._process(Started())

    @property
    def opened(self) -> Opened:
        """The Opened frame of the current server."""
        opened = self.coordinator.opened
        if opened is None:
            raise AssertionError("the constructor raises if no server opens the exchange")
        return opened

    @property
    def modes(self) -> Sequence[Mode]:
        """Empty: servers do not tell how a call is folded."""
        return ()

    def send(self, frame: States | Chunk | Forget | Barrier) -> None:
        """Send a frame. A small chunk may wait, to be sent joined with others."""
        if isinstance(frame, Chunk) and self._may_wait(frame):
            self._wait(frame.batch)
        else:
            self._send_waiting()
            self._process(FrameGiven(frame))
        if isinstance(frame, Chunk):
            self._chunk_at_s = self._clock.now_s()

    def _may_wait(self, frame: Chunk) -> bool:
        """Return whether a chunk is small, has no answer, and follows the one before closely."""
        return (
            not self._is_over
            and frame.batch.num_rows <= _SMALL_ROWS
            and frame.batch.nbytes < self._waiting_bytes_max
            and self._clock.now_s() - self._chunk_at_s <= _CLOSE_S
            and not self.coordinator.opening.is_answered(frame)
            and frame.batch.schema == self.coordinator.opening.columns
        )

    def _wait(self, batch: pa.RecordBatch) -> None:
        now_s = self._clock.now_s()
        if not self._waiting:
            self._waiting_since_s = now_s
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        is_large = self._waiting_rows >= _JOINED_ROWS or self._waiting_bytes >= self._waiting_bytes_max
        if is_large or now_s - self._waiting_since_s >= _WAIT_S:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting:
            batches, self._waiting, self._waiting_rows, self._waiting_bytes = self._waiting, [], 0, 0
            self._process(FrameGiven(Chunk(batches[0] if len(batches) == 1 else pa.concat_batches(batches))))

    def answer(self) -> Answer:
        """Wait for the oldest answer that has not been taken."""
        self._send_waiting()
        while not self._answers:
            self._process(AnswerWanted())
        return self._answers.popleft()

    def take_logs(self) -> Sequence[LogRecord]:
        """Return the log records of functions since the last call."""
        logs, self._logs = self._logs, []
        return logs

    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""
        self._is_over = True
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def cut(self) -> None:
        """End the exchange at once, even if answers are due."""
        self._is_over = True
        self._cut()

    def _process(self, event: Event) -> None:
        """Pass an event to the coordinator, and carry out its instructions until there are no more."""
        if self._is_over:
            raise RejectedError("BAD_FRAME", "the exchange is closed")
        following: Event | None = event
        try:
            while following is not None:
                instructions, following = self.coordinator.handle(following, self._clock.now_s()), None
                for instruction in instructions:
                    following = self._execute(instruction)
        except BaseException:
            self._is_over = True
            self._cut()
            raise

    def _execute(self, instruction: Instruction) -> Event | None:
        match instruction:
            case OpenLink() | SendFrame() | AwaitAnswer():
                try:
                    return self._step(instruction)
                except FoldflightError as error:
                    return LinkLost(error)
            case Rest():
                self._clock.rest_until(instruction.until_s)
                return Rested()
            case Deliver():
                self._logs.extend(instruction.logs)
                if not isinstance(instruction.frame, Checkpoint):
                    self._answers.append(instruction.answer)
            case CutLink():
                self._cut()
            case LeaveLink():
                link, self._link = self._link, None
                if link is not None:
                    link.close()
            case Report():
                log_event(set_up(_LOGGER, logging.WARNING), logging.WARNING, instruction.event, instruction.fields)
            case GiveUp():
                raise instruction.error
        return None

    def _step(self, instruction: OpenLink | SendFrame | AwaitAnswer) -> Event:
        if isinstance(instruction, OpenLink):
            self._link = self._dial(instruction.url, instruction.opening)
            return LinkOpened(self._link.opened)
        link = self._link
        if link is None:
            raise AssertionError("the coordinator returned an instruction for a link, and there is none")
        if isinstance(instruction, SendFrame):
            link.send(instruction.frame)
            return FrameSent()
        answer = link.answer()
        return AnswerCame(answer, tuple(link.take_logs()), link.reopen)

    def _cut(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.cut()
