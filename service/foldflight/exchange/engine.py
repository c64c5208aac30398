"""The engine's side of one exchange: it makes frames, checks replies, and puts the results of an epoch together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import (
    Checkpoint,
    Chunk,
    EngineFrame,
    Frame,
    InitialOutputs,
    Open,
    Opened,
    Results,
    RowOutputs,
    SavedStates,
    columns_text,
)
from foldflight.exchange.machine import Exchange, Role
from foldflight.exchange.verbs import Verbs
from foldflight.fold import ERROR

__all__ = ["Answer", "EngineExchange", "Saved", "check_chunk", "check_isolates"]


@dataclass(frozen=True)
class Saved:
    """What a checkpoint brought.

    Args:
        states: n rows in the schema of the results, with NULL outputs.
        problem: Why there are none; empty if there are.
    """

    states: pa.Table
    problem: str = ""


Answer: TypeAlias = pa.Table | pa.RecordBatch | Saved
"""What a frame of the engine is answered with: the results of a barrier, initial outputs or outputs after each row, or
what a checkpoint saved."""


def check_chunk(batch: pa.RecordBatch, opening: Open) -> None:
    """Raise RejectedError SCHEMA_MISMATCH for a chunk that Open did not announce."""
    if batch.schema != opening.columns:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the chunk has {columns_text(batch.schema)}, and Open announced {columns_text(opening.columns)}",
        )


def check_isolates(opened: Opened, opening: Open) -> None:
    """Raise RejectedError PROTOCOL_VERSION for a server that was asked to isolate errors and does not know how."""
    if opening.isolate_errors and ERROR not in opened.schema.names:
        raise RejectedError(
            "PROTOCOL_VERSION",
            f"server {opened.server_id} is too old to isolate errors; bring it up to date, or let errors fail",
        )


class EngineExchange(Verbs[Frame]):
    """One exchange, from the engine's side, without IO. Its verbs return the frame to send.

    Args:
        opening: What it is opened with.
    """

    def __init__(self, opening: Open) -> None:
        self.opened: Opened | None = None
        self._opening = opening
        self._machine = Exchange(Role.ENGINE)
        self._machine.send(opening)
        self._parts: list[pa.RecordBatch] = []

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first."""
        return self._machine.story

    def checkpoint(self, *, if_reopen: bool = False) -> Frame:
        """Return the frame that asks for states within an epoch, or, if so, whether the server wants to be left."""
        return self._give(Checkpoint(if_reopen=if_reopen))

    def send(self, frame: EngineFrame) -> None:
        """Note a frame that is about to be sent.

        Raises:
            RejectedError: BAD_FRAME, when it may not be sent now; SCHEMA_MISMATCH, for a chunk that was not announced.
        """
        if isinstance(frame, Chunk):
            check_chunk(frame.batch, self._opening)
        self._machine.send(frame)

    def receive(self, frame: Frame) -> Answer | None:
        """Check a frame of the server; return the answer that it completes, if it completes one.

        Raises:
            RejectedError: BAD_FRAME, when it was not due; SCHEMA_MISMATCH, when its batch has another schema.
        """
        self._machine.receive(frame)
        match frame:
            case Opened():
                self._take(frame)
            case Results() | SavedStates():
                return self._part(frame)
            case InitialOutputs() | RowOutputs():
                return frame.batch
            case _:
                pass
        return None

    def _take(self, opened: Opened) -> None:
        if len(opened.calls) != len(self._opening.calls):
            raise RejectedError("BAD_FRAME", f"Opened names {len(opened.calls)} calls, not {len(self._opening.calls)}")
        check_isolates(opened, self._opening)
        self.opened = opened

    def _part(self, frame: Results | SavedStates) -> Answer | None:
        if self.opened is None or frame.batch.schema != self.opened.schema:
            raise RejectedError("SCHEMA_MISMATCH", "results have another schema than Opened announced")
        self._parts.append(frame.batch)
        if not frame.last:
            return None
        whole, self._parts = pa.Table.from_batches(self._parts), []
        return whole if isinstance(frame, Results) else Saved(whole, frame.problem)

    def _give(self, frame: EngineFrame) -> Frame:
        self.send(frame)
        return frame
