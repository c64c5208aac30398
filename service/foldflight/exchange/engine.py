"""The engine's side of one exchange: it makes frames, checks replies, and puts the results of an epoch together."""

from __future__ import annotations

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Forget, Frame, Open, Opened, Results, States
from foldflight.exchange.machine import Exchange, Role

__all__ = ["EngineExchange"]


class EngineExchange:
    """One exchange, from the engine's side, without IO.

    Args:
        opening: What it is opened with.
    """

    def __init__(self, opening: Open) -> None:
        self.opened: Opened | None = None
        self._opening = opening
        self._machine = Exchange(Role.ENGINE)
        self._machine.send(opening)
        self._parts: list[pa.RecordBatch] = []
        self._complete: dict[int, pa.Table] = {}

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first."""
        return self._machine.story

    def states(self, batch: pa.RecordBatch) -> Frame:
        """Return the frame that merges states: `slot` int32 and `state_i` for each call."""
        return self._sent(States(batch))

    def chunk(self, batch: pa.RecordBatch) -> Frame:
        """Return the frame that folds rows, in the schema that Open announced."""
        if batch.schema != self._opening.columns:
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the chunk has {batch.schema.names}, and Open announced {self._opening.columns.names}",
            )
        return self._sent(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> Frame:
        """Return the frame that drops accumulators."""
        return self._sent(Forget(slots))

    def barrier(self, epoch: int) -> Frame:
        """Return the frame that ends an epoch."""
        return self._sent(Barrier(epoch))

    def receive(self, frame: Frame) -> None:
        """Check a frame of the server, and keep what belongs to results.

        Raises:
            RejectedError: BAD_FRAME, when it was not due; SCHEMA_MISMATCH, when its batch has another schema.
        """
        self._machine.receive(frame)
        if isinstance(frame, Opened):
            if len(frame.calls) != len(self._opening.calls):
                raise RejectedError(
                    "BAD_FRAME", f"Opened names {len(frame.calls)} calls, not {len(self._opening.calls)}"
                )
            self.opened = frame
        elif isinstance(frame, Results):
            if self.opened is None or frame.batch.schema != self.opened.schema:
                raise RejectedError("SCHEMA_MISMATCH", "results have another schema than Opened announced")
            self._parts.append(frame.batch)
            if frame.last:
                self._complete[frame.epoch] = pa.Table.from_batches(self._parts)
                self._parts = []

    def take_results(self, epoch: int) -> pa.Table | None:
        """Return the results of an epoch once they are complete, and forget them; None before that."""
        return self._complete.pop(epoch, None)

    def _sent(self, frame: Frame) -> Frame:
        self._machine.send(frame)
        return frame
