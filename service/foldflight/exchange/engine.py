"""The engine's side of one exchange: it makes frames, checks replies, and puts the results of an epoch together."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    Forget,
    Frame,
    Open,
    Opened,
    Results,
    SavedStates,
    States,
)
from foldflight.exchange.machine import Exchange, Role
from foldflight.fold import ERROR

__all__ = ["EngineExchange", "Saved", "check_chunk", "check_isolates"]


@dataclass(frozen=True)
class Saved:
    """What a checkpoint brought.

    Args:
        states: n rows in the schema of the results, with NULL outputs.
        problem: Why there are none; empty if there are.
    """

    states: pa.Table
    problem: str = ""


def check_chunk(batch: pa.RecordBatch, opening: Open) -> None:
    """Raise RejectedError SCHEMA_MISMATCH for a chunk that Open did not announce."""
    if batch.schema != opening.columns:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the chunk has {batch.schema.names}, and Open announced {opening.columns.names}"
        )


def check_isolates(opened: Opened, opening: Open) -> None:
    """Raise RejectedError PROTOCOL_VERSION for a server that was asked to isolate errors and does not know how."""
    if opening.isolate_errors and ERROR not in opened.schema.names:
        raise RejectedError(
            "PROTOCOL_VERSION",
            f"server {opened.server_id} is too old to isolate errors; bring it up to date, or let errors fail",
        )


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
        self._saved: list[Saved] = []

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first."""
        return self._machine.story

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> Frame:
        """Return the frame that merges states: `slot` int32 and `state_i` for each call."""
        return self._sent(States(batch, unanswered=unanswered))

    def chunk(self, batch: pa.RecordBatch) -> Frame:
        """Return the frame that folds rows, in the schema that Open announced."""
        check_chunk(batch, self._opening)
        return self._sent(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> Frame:
        """Return the frame that drops accumulators."""
        return self._sent(Forget(slots))

    def barrier(self, epoch: int) -> Frame:
        """Return the frame that ends an epoch."""
        return self._sent(Barrier(epoch))

    def checkpoint(self, *, if_reopen: bool = False) -> Frame:
        """Return the frame that asks for states within an epoch."""
        return self._sent(Checkpoint(if_reopen))

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
            check_isolates(frame, self._opening)
            self.opened = frame
        elif isinstance(frame, (Results, SavedStates)):
            if self.opened is None or frame.batch.schema != self.opened.schema:
                raise RejectedError("SCHEMA_MISMATCH", "results have another schema than Opened announced")
            self._parts.append(frame.batch)
            if frame.last:
                whole, self._parts = pa.Table.from_batches(self._parts), []
                if isinstance(frame, Results):
                    self._complete[frame.epoch] = whole
                else:
                    self._saved.append(Saved(whole, frame.problem))

    def take_results(self, epoch: int) -> pa.Table | None:
        """Return the results of an epoch once they are complete, and forget them; None before that."""
        return self._complete.pop(epoch, None)

    def take_saved(self) -> Saved | None:
        """Return what the oldest checkpoint saved once it is complete, and forget it; None before that."""
        return self._saved.pop(0) if self._saved else None

    def _sent(self, frame: Frame) -> Frame:
        self._machine.send(frame)
        return frame
