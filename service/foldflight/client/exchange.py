"""An open exchange for an engine: its verbs, and the one place where the answers to them wait."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, EngineFrame, Entries, Forget, States

if TYPE_CHECKING:
    from foldflight.exchange.engine import Answer, Saved
    from foldflight.exchange.frames import Open, Opened
    from foldflight.fold import Mode
    from foldflight.functions.author.context import LogRecord

__all__ = ["OpenExchange"]


@dataclass(eq=False, slots=True)
class _Pending:
    """A frame of the engine whose answer has not been taken, and the answer if it has arrived."""

    frame: EngineFrame
    answer: Answer | None = None


class OpenExchange(abc.ABC):
    """One open exchange, for an engine. It is a context manager that closes the exchange.

    Every method may raise any error of foldflight. After an error only `close` may be called.

    It has two forms: a `Link` is the exchange with one server, and a `SurvivingExchange` moves from link to link.

    Args:
        opening: The Open frame of the exchange.

    Attributes:
        opened: The Opened frame of the current server.
    """

    opened: Opened

    def __init__(self, opening: Open) -> None:
        self._opening = opening
        self._pending: list[_Pending] = []  # oldest first; answers arrive in this order
        self._logs: list[LogRecord] = []

    # -- implemented by subclasses -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _send(self, frame: EngineFrame) -> None:
        """Send a frame. Answers to earlier ones may arrive meanwhile."""

    @abc.abstractmethod
    def _await_answer(self) -> None:
        """Wait until another answer has arrived."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""

    @abc.abstractmethod
    def cut(self) -> None:
        """End the exchange at once, even if answers are due."""

    # -- verbs -------------------------------------------------------------------------------------------------------

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        """Merge states into slots: columns `slot` int32 and one `state_i` for each call.

        Args:
            batch: n rows. A slot may appear many times. A state for an empty slot is loaded.
            unanswered: Whether the server omits the initial outputs of these slots although Open requests them.
        """
        self.send(States(batch, unanswered=unanswered))

    def entries(self, batch: pa.RecordBatch) -> None:
        """Give entries of views, as of the last barrier or checkpoint, before the rows that use them.

        Args:
            batch: n rows: `slot` int32 and `state_i` for calls with views.
        """
        self.send(Entries(batch))

    def chunk(self, batch: pa.RecordBatch) -> None:
        """Fold the rows of a batch. Its schema is `Open.columns`."""
        self.send(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> None:
        """Drop the accumulators of these slots."""
        self.send(Forget(slots))

    def barrier(self, epoch: int) -> None:
        """End an epoch; the answer is its results. The first epoch has any number, each later one the next number."""
        self.send(Barrier(epoch))

    def checkpoint(self) -> None:
        """Request the states that changed since states were last returned; `saved` returns them.

        Only an engine that keeps views needs it: it must commit the entries before it sends another frame.
        """
        if not self._opening.keeps_views:
            raise RejectedError(
                "BAD_FRAME", "only an engine that keeps views (Open.keeps_views) takes checkpoints itself"
            )
        self.send(Checkpoint())

    def send(self, frame: EngineFrame) -> None:
        """Send the frame of a verb."""
        if self._opening.is_delivered(frame):
            self._pending.append(_Pending(frame))
        self._send(frame)

    # -- answers -----------------------------------------------------------------------------------------------------

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch: the dirty slots, ascending, in the schema `opened.schema`."""
        return self._take(Barrier, f"no results of epoch {epoch} are due: no barrier {epoch} was sent", epoch=epoch)

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs of the oldest `states` whose answer has not been taken."""
        return self._take(States, "no initial_outputs are due: Open does not request them, or no states were sent")

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` whose answer has not been taken."""
        return self._take(Chunk, "no row_outputs are due: Open does not request them, or no chunk was sent")

    def mapped(self) -> pa.Table:
        """Return the outputs of the oldest `chunk` of an exchange of steps whose answer has not been taken."""
        return self._take(Chunk, "no outputs are due: Open has no steps, or no chunk was sent")

    def saved(self) -> Saved:
        """Wait for the answer to the oldest `checkpoint` whose answer has not been taken."""
        return self._take(Checkpoint, "no states are due: no checkpoint was requested")

    def _take(self, kind: type[EngineFrame], missing: str, *, epoch: int | None = None) -> Any:
        """Return the answer to the oldest frame of a kind. Those that arrive before it stay."""
        for pending in self._pending:
            frame = pending.frame
            if type(frame) is kind and (epoch is None or (isinstance(frame, Barrier) and frame.epoch == epoch)):
                break
        else:
            raise RejectedError("BAD_FRAME", missing)
        while pending.answer is None:
            self._await_answer()
        self._pending.remove(pending)
        return pending.answer

    def _arrived(self, answer: Answer) -> None:
        """Take note of the answer to the oldest frame that has none."""
        for pending in self._pending:
            if pending.answer is None:
                pending.answer = answer
                return
        raise AssertionError("an answer arrived, and none was due")

    # -- what else an engine asks ------------------------------------------------------------------------------------

    @property
    def modes(self) -> Sequence[Mode | None]:
        """The mode of each call: embedded that of now, on a server that of opening. None if a server did not tell."""
        return self.opened.modes

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""
        return False

    def take_logs(self) -> Sequence[LogRecord]:
        """Return the log records of functions since the last call."""
        logs, self._logs = self._logs, []
        return logs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self.cut()  # after an error the remaining answers are not needed
