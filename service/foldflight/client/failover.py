"""An exchange that survives its servers: it carries out what the coordinator says, with real links and a real clock."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Forget, Open, Opened, States
from foldflight.exchange.steps import (
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from foldflight.client.exchange import ClientExchange
    from foldflight.exchange.coordinator import Coordinator
    from foldflight.exchange.frames import EngineFrame
    from foldflight.functions.context import LogRecord

__all__ = ["Clock", "SurvivingExchange"]

_logger = logging.getLogger("foldflight.client")


class Clock(Protocol):
    """Time, as the shell knows it."""

    def now_s(self) -> float:
        """Return seconds that only ever grow."""

    def rest_until(self, until_s: float) -> None:
        """Return at that time."""


class SurvivingExchange:
    """One exchange, over one server after another.

    Args:
        coordinator: Decides.
        dial: Opens a link to a server: one exchange, which fails with its server.
        clock: Tells the time, and lets it pass.

    Raises:
        FoldflightError: When the coordinator gives up.
    """

    def __init__(self, coordinator: Coordinator, dial: Callable[[str, Open], ClientExchange], clock: Clock) -> None:
        self.coordinator = coordinator
        self._dial = dial
        self._clock = clock
        self._link: ClientExchange | None = None
        self._is_over = False
        self._results: dict[int, pa.Table] = {}
        self._initial: deque[pa.RecordBatch] = deque()
        self._rows: deque[pa.RecordBatch] = deque()
        self._logs: list[LogRecord] = []
        self._tell(Started())

    @property
    def opened(self) -> Opened:
        """What the server said that has the exchange now."""
        opened = self.coordinator.opened
        if opened is None:
            raise AssertionError("an exchange that did not open has raised")
        return opened

    # -- what an engine calls ----------------------------------------------------------------------------------------

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        """Merge states into slots: columns `slot` int32 and one `state_i` per call."""
        self._tell(FrameGiven(States(batch, unanswered=unanswered)))

    def chunk(self, batch: pa.RecordBatch) -> None:
        """Fold rows: a batch of the columns that Open announced."""
        self._tell(FrameGiven(Chunk(batch)))

    def forget(self, slots: pa.Int32Array) -> None:
        """Drop the accumulators of these slots."""
        self._tell(FrameGiven(Forget(slots)))

    def barrier(self, epoch: int) -> None:
        """End an epoch; epochs increase. `results` fetches what it returns."""
        self._tell(FrameGiven(Barrier(epoch)))

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch and hand them over, once."""
        while epoch not in self._results:
            if epoch not in self.coordinator.epochs_due:
                raise RejectedError("BAD_FRAME", f"no results of epoch {epoch} are due: no barrier {epoch} was sent")
            self._tell(AnswerWanted())
        return self._results.pop(epoch)

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs that answer the oldest `states` not yet asked about."""
        return self._answer(self._initial, States, "initial_outputs are due: Open did not ask for them, or no states")

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` not yet asked about."""
        return self._answer(self._rows, Chunk, "row_outputs are due: Open did not ask for them, or no chunk")

    def take_logs(self) -> Sequence[LogRecord]:
        """Return what functions logged since last asked."""
        logs, self._logs = self._logs, []
        return logs

    def close(self) -> None:
        """End the exchange and free what it holds; safe to call twice and after an error."""
        self._is_over = True
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is not None:
            self._cut()  # whatever went wrong, nobody wants the rest
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _answer(self, answers: deque[pa.RecordBatch], kind: type[EngineFrame], missing: str) -> pa.RecordBatch:
        while not answers:
            if not self.coordinator.owes(kind):
                raise RejectedError("BAD_FRAME", f"no {missing} was sent")
            self._tell(AnswerWanted())
        return answers.popleft()

    def _tell(self, event: Event) -> None:
        """Tell the coordinator, and carry out what it says until it has nothing more to say."""
        if self._is_over:
            raise RejectedError("BAD_FRAME", "the exchange is closed")
        following: Event | None = event
        try:
            while following is not None:
                instructions, following = self.coordinator.handle(following, self._clock.now_s()), None
                for instruction in instructions:
                    following = self._carry_out(instruction)
        except BaseException:
            self._is_over = True
            self._cut()
            raise

    def _carry_out(self, instruction: Instruction) -> Event | None:
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
                self._deliver(instruction)
            case CutLink():
                self._cut()
            case LeaveLink():
                link, self._link = self._link, None
                if link is not None:
                    link.close()
            case Report():
                _logger.warning("%s", instruction.text)
            case GiveUp():
                raise instruction.error
        return None

    def _step(self, instruction: OpenLink | SendFrame | AwaitAnswer) -> Event:
        if isinstance(instruction, OpenLink):
            self._link = self._dial(instruction.url, instruction.opening)
            return LinkOpened(self._link.opened)
        link = self._link
        if link is None:
            raise AssertionError("the coordinator spoke of a link that is not there")
        if isinstance(instruction, SendFrame):
            self._send(link, instruction.frame)
            return FrameSent()
        match instruction.frame:
            case Barrier():
                return AnswerCame(link.results(instruction.frame.epoch), tuple(link.take_logs()), link.reopen)
            case Checkpoint():
                return AnswerCame(link.saved(), tuple(link.take_logs()), link.reopen)
            case States():
                return AnswerCame(link.initial_outputs())
            case _:
                return AnswerCame(link.row_outputs())

    @staticmethod
    def _send(link: ClientExchange, frame: EngineFrame) -> None:
        match frame:
            case States():
                link.states(frame.batch, unanswered=frame.unanswered)
            case Chunk():
                link.chunk(frame.batch)
            case Forget():
                link.forget(frame.slots)
            case Barrier():
                link.barrier(frame.epoch)
            case Checkpoint():
                link.checkpoint(if_reopen=frame.if_reopen)
            case _:
                raise AssertionError(f"{type(frame).__name__} opens links, it is not sent over them")

    def _deliver(self, instruction: Deliver) -> None:
        self._logs.extend(instruction.logs)
        match instruction.frame:
            case Barrier():
                self._results[instruction.frame.epoch] = instruction.answer
            case States():
                self._initial.append(instruction.answer)
            case Chunk():
                self._rows.append(instruction.answer)
            case _:
                pass

    def _cut(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.cut()
