"""The engine's side of one exchange: it makes frames, checks replies and assembles the results of an epoch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import (
    Chunk,
    EngineFrame,
    Frame,
    InitialOutputs,
    Mapped,
    Open,
    Opened,
    Results,
    RowOutputs,
    SavedStates,
    columns_text,
)
from foldflight.exchange.machine import Exchange, Role, State
from foldflight.fold import ERROR, ROW

__all__ = [
    "Answer",
    "EngineExchange",
    "Saved",
    "check_chunk",
    "check_opened",
]


@dataclass(frozen=True)
class Saved:
    """The answer to a checkpoint.

    Args:
        states: n rows in the schema of the results, with NULL outputs.
        problem: Why there are no states; empty if there are.
    """

    states: pa.Table
    problem: str = ""


Answer: TypeAlias = pa.Table | pa.RecordBatch | Saved
"""The answer to a frame of the engine: the results of a barrier, initial outputs, outputs after each row, the outputs
of a chunk in an exchange of steps, or the states of a checkpoint."""


def check_chunk(batch: pa.RecordBatch, opening: Open) -> None:
    """Raise RejectedError SCHEMA_MISMATCH if the schema of a chunk differs from `Open.columns`."""
    if batch.schema != opening.columns:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the chunk has {columns_text(batch.schema)}, and Open announced {columns_text(opening.columns)}",
        )


def check_opened(opened: Opened, opening: Open) -> None:
    """Raise RejectedError PROTOCOL_VERSION for what Open requests and an older server would ignore."""
    if opening.isolate_errors and ERROR not in opened.schema.names:
        raise _too_old(opened, "to isolate errors", "do not isolate errors")
    for call, found in zip(opening.calls, opened.calls, strict=False):
        if call.order and not found.is_ordered:
            what = f"to fold the rows of {call.function} in an order"
            raise _too_old(opened, what, "leave the order out", function=call.function)
    if opening.emits and not opened.knows_emits:
        what = "to return outputs after some of the rows, which OVER needs"
        raise _too_old(opened, what, "run the functions embedded")
    if opening.keeps_views and not opened.knows_views:
        what = "for an engine that keeps the entries of views"
        raise _too_old(opened, what, "run the functions embedded")


def _too_old(opened: Opened, what: str, remedy: str, *, function: str | None = None) -> RejectedError:
    return RejectedError(
        "PROTOCOL_VERSION",
        f"server {opened.server_id} is too old {what}; upgrade it, or {remedy}",
        function=function,
    )


def _check_mapped(answer: pa.Table, rows: int) -> None:
    """Check that the answer to a chunk of n rows belongs to its rows. Raises RejectedError BAD_FRAME."""
    if ROW not in answer.column_names:
        if answer.num_rows != rows:
            raise RejectedError("BAD_FRAME", f"the answer to a chunk of {rows} rows has {answer.num_rows} rows")
        return
    if not answer.num_rows:
        return
    places = answer.column(ROW).to_numpy()
    if places[0] < 0 or places[-1] >= rows or (places[1:] < places[:-1]).any():
        raise RejectedError("BAD_FRAME", f"the rows of an answer are not ascending, or not among the chunk's {rows}")


class EngineExchange:
    """The engine's side of one exchange, without I/O.

    Args:
        opening: The Open frame of the exchange.
    """

    def __init__(self, opening: Open) -> None:
        self.opened: Opened | None = None
        self._opening = opening
        self._machine = Exchange(Role.ENGINE)
        self._machine.send(opening)
        self._parts: list[pa.RecordBatch] = []
        self._chunk_rows: deque[int] = deque()  # of the chunks whose answers are due, in an exchange of steps

    @property
    def is_due(self) -> bool:
        """Whether an answer of the server is due."""
        return self._machine.is_due

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first."""
        return self._machine.story

    def send(self, frame: EngineFrame) -> None:
        """Check and record a frame that is about to be sent.

        Raises:
            RejectedError: BAD_FRAME if the frame may not be sent now.
        """
        if self._opening.keeps_views and self._machine.is_due and self._machine.states[Role.ENGINE] is State.OPEN:
            raise RejectedError(
                "BAD_FRAME",
                f"{type(frame).__name__} may be sent only when no answer is due, because Open has keeps_views",
            )
        self._machine.send(frame)
        if isinstance(frame, Chunk) and self._opening.maps:
            self._chunk_rows.append(frame.batch.num_rows)

    def receive(self, frame: Frame) -> Answer | None:
        """Check a frame of the server, and return the answer that it completes; None if it completes none.

        Raises:
            RejectedError: BAD_FRAME if the frame was not due; SCHEMA_MISMATCH if its batch has another schema.
        """
        self._machine.receive(frame)
        match frame:
            case Opened():
                self._check_opened(frame)
            case Results() | SavedStates() | Mapped():
                return self._collect_part(frame)
            case InitialOutputs() | RowOutputs():
                return frame.batch
            case _:
                pass
        return None

    def _check_opened(self, opened: Opened) -> None:
        if len(opened.calls) != len(self._opening.functions):
            raise RejectedError(
                "BAD_FRAME", f"Opened describes {len(opened.calls)} calls, and Open has {len(self._opening.functions)}"
            )
        check_opened(opened, self._opening)
        self.opened = opened

    def _collect_part(self, frame: Results | SavedStates | Mapped) -> Answer | None:
        if self.opened is None or frame.batch.schema != self.opened.schema:
            raise RejectedError("SCHEMA_MISMATCH", "the schema of the results differs from that of Opened")
        self._parts.append(frame.batch)
        if not frame.last:
            return None
        whole, self._parts = pa.Table.from_batches(self._parts), []
        if isinstance(frame, Mapped):
            _check_mapped(whole, self._chunk_rows.popleft())
        return Saved(whole, frame.problem) if isinstance(frame, SavedStates) else whole
