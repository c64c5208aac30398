"""An open exchange for an engine: its verbs and their answers, independent of what carries the frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, EngineFrame, States
from foldflight.exchange.verbs import ExchangeVerbs

if TYPE_CHECKING:
    from foldflight.exchange.engine import Answer, Saved
    from foldflight.exchange.frames import Open, Opened
    from foldflight.fold import Mode
    from foldflight.functions.context import LogRecord

__all__ = ["Carrier", "OpenExchange"]


class Carrier(Protocol):
    """Carries the frames of an exchange: a link to one server, or a `SurvivingLink` to several."""

    @property
    def opened(self) -> Opened:
        """The Opened frame of the current server."""

    @property
    def modes(self) -> Sequence[Mode | None]:
        """The mode of each call: embedded that of now, on a server that of opening. None if a server did not tell."""

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""

    def send(self, frame: Any) -> None:
        """Send a frame of the engine."""

    def answer(self) -> Answer:
        """Wait for the oldest answer that has not been taken."""

    def take_logs(self) -> Sequence[LogRecord]:
        """Return the log records of functions since the last call."""

    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""

    def cut(self) -> None:
        """End the exchange at once, even if answers are due."""


class OpenExchange(ExchangeVerbs[None]):
    """One open exchange, for an engine. It is a context manager that closes the exchange.

    Every method may raise any error of foldflight. After an error only `close` may be called.

    Args:
        carrier: Carries the frames.
        opening: The Open frame of the exchange.
    """

    def __init__(self, carrier: Carrier, opening: Open) -> None:
        self.carrier = carrier
        self._opening = opening
        # The frames whose answers are due, oldest first, and the answers that were read but not taken yet.
        self._due: deque[EngineFrame] = deque()
        self._early: list[tuple[EngineFrame, Answer]] = []

    @property
    def opened(self) -> Opened:
        """The Opened frame of the current server."""
        return self.carrier.opened

    @property
    def modes(self) -> Sequence[Mode | None]:
        """The mode of each call: embedded that of now, on a server that of opening. None if a server did not tell."""
        return self.carrier.modes

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch: the dirty slots, ascending, in the schema `opened.schema`."""
        return self._take_answer(
            lambda frame: isinstance(frame, Barrier) and frame.epoch == epoch,
            f"no results of epoch {epoch} are due: no barrier {epoch} was sent",
        )

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs of the oldest `states` whose answer has not been taken."""
        return self._take_answer(
            lambda frame: isinstance(frame, States),
            "no initial_outputs are due: Open does not request them, or no states were sent",
        )

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` whose answer has not been taken."""
        return self._take_answer(
            lambda frame: isinstance(frame, Chunk),
            "no row_outputs are due: Open does not request them, or no chunk was sent",
        )

    def mapped(self) -> pa.Table:
        """Return the outputs of the oldest `chunk` of an exchange of steps whose answer has not been taken."""
        return self._take_answer(
            lambda frame: isinstance(frame, Chunk), "no outputs are due: Open has no steps, or no chunk was sent"
        )

    def checkpoint(self) -> None:
        """Request the states that changed since states were last returned; `saved` returns them.

        Only an engine that keeps views needs it: it must commit the entries before it sends another frame.
        """
        if not self._opening.keeps_views:
            raise RejectedError(
                "BAD_FRAME", "only an engine that keeps views (Open.keeps_views) takes checkpoints itself"
            )
        self._give(Checkpoint())

    def saved(self) -> Saved:
        """Wait for the answer to the oldest `checkpoint` whose answer has not been taken."""
        return self._take_answer(
            lambda frame: isinstance(frame, Checkpoint), "no states are due: no checkpoint was requested"
        )

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""
        return self.carrier.wants_checkpoint

    def take_logs(self) -> Sequence[LogRecord]:
        """Return the log records of functions since the last call."""
        return self.carrier.take_logs()

    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""
        self.carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is None:
            self.carrier.close()
        else:
            self.carrier.cut()  # after an error the remaining answers are not needed

    def _give(self, frame: EngineFrame) -> None:
        self.carrier.send(frame)
        if self._opening.is_delivered(frame):
            self._due.append(frame)

    def _take_answer(self, matches: Callable[[EngineFrame], bool], missing: str) -> Any:
        """Return the answer to the oldest frame that matches, and keep the answers that arrive before it."""
        for place, (frame, answer) in enumerate(self._early):
            if matches(frame):
                del self._early[place]
                return answer
        if not any(map(matches, self._due)):
            raise RejectedError("BAD_FRAME", missing)
        while True:
            answer, frame = self.carrier.answer(), self._due.popleft()
            if matches(frame):
                return answer
            self._early.append((frame, answer))
