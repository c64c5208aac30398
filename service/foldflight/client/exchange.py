"""An open exchange, as an engine holds it: the verbs, and the answers to them, whatever carries the frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, States
from foldflight.exchange.verbs import Verbs

if TYPE_CHECKING:
    from foldflight.exchange.engine import Answer
    from foldflight.exchange.frames import Open, Opened
    from foldflight.functions.context import LogRecord

__all__ = ["Carrier", "OpenExchange"]


class Carrier(Protocol):
    """What carries the frames of an exchange: a link to one server, or one that survives its servers."""

    @property
    def opened(self) -> Opened:
        """What the server answered that has the exchange now."""

    def send(self, frame: Any) -> None:
        """Send a frame of the engine."""

    def answer(self) -> Answer:
        """Wait for the answer to the oldest frame that asks for one and has not been taken."""

    def take_logs(self) -> Sequence[LogRecord]:
        """Return what functions logged since last asked."""

    def close(self) -> None:
        """End the exchange and free what it holds; safe to call twice and after an error."""

    def cut(self) -> None:
        """End the exchange at once, whatever it still owes."""


class OpenExchange(Verbs[None]):
    """One exchange, from the engine's side; a context manager that closes itself.

    Every method may raise any error of the taxonomy; after an error only `close` may be called.

    Args:
        carrier: Carries the frames.
        opening: What the exchange was opened with.
    """

    def __init__(self, carrier: Carrier, opening: Open) -> None:
        self.carrier = carrier
        self._opening = opening
        # The frames whose answers are due, oldest first; and the answers that came before they were asked for.
        self._due: deque[EngineFrame] = deque()
        self._early: list[tuple[EngineFrame, Answer]] = []

    @property
    def opened(self) -> Opened:
        """What the server answered that has the exchange now."""
        return self.carrier.opened

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch: dirty slots, ascending, in the schema of `opened.schema`."""
        return self._answer_to(
            lambda frame: isinstance(frame, Barrier) and frame.epoch == epoch,
            f"no results of epoch {epoch} are due: no barrier {epoch} was sent",
        )

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs that answer the oldest `states` not yet asked about."""
        return self._answer_to(
            lambda frame: isinstance(frame, States),
            "no initial_outputs are due: Open did not ask for them, or no states was sent",
        )

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` not yet asked about."""
        return self._answer_to(
            lambda frame: isinstance(frame, Chunk),
            "no row_outputs are due: Open did not ask for them, or no chunk was sent",
        )

    def take_logs(self) -> Sequence[LogRecord]:
        """Return what functions logged since last asked."""
        return self.carrier.take_logs()

    def close(self) -> None:
        """End the exchange and free what it holds; safe to call twice and after an error."""
        self.carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is None:
            self.carrier.close()
        else:
            self.carrier.cut()  # whatever went wrong, nobody wants the rest

    def _give(self, frame: EngineFrame) -> None:
        self.carrier.send(frame)
        if self._opening.is_answered(frame):
            self._due.append(frame)

    def _answer_to(self, is_asked: Callable[[EngineFrame], bool], missing: str) -> Any:
        """Return the answer to the oldest frame that fits, and keep those that come before it."""
        for place, (frame, answer) in enumerate(self._early):
            if is_asked(frame):
                del self._early[place]
                return answer
        if not any(map(is_asked, self._due)):
            raise RejectedError("BAD_FRAME", missing)
        while True:
            answer, frame = self.carrier.answer(), self._due.popleft()
            if is_asked(frame):
                return answer
            self._early.append((frame, answer))
