"""The engine's end of one exchange: it checks frames and replies, and assembles answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Frame, InitialOutputs, Mapped, Open, Opened, Results, RowOutputs, SavedStates
from foldflight.exchange.machine import Exchange, Role
from foldflight.fold.scalar.bound import ROW


@dataclass(frozen=True)
class Saved:
    """The answer to a checkpoint.

    Args:
        states: n rows in the schema of the results, with NULL outputs.
        problem: The reason why there are no states; empty if there are some.
    """

    states: pa.Table
    problem: str = ""


Answer: TypeAlias = pa.Table | pa.RecordBatch | Saved
"""The answer to a frame of the engine: the results of a barrier, initial outputs, outputs after each row, the outputs
of a chunk in an exchange of steps, or the states of a checkpoint."""


def _check_mapped(answer: pa.Table, rows: int) -> None:
    """Check that an answer refers only to rows of the chunk, which has n rows. Raises RejectedError BAD_FRAME."""
    if ROW not in answer.column_names:
        if answer.num_rows != rows:
            raise RejectedError("BAD_FRAME", f"the answer to a chunk of {rows} rows has {answer.num_rows} rows")
        return
    if not answer.num_rows:
        return
    indexes = answer.column(ROW).to_numpy()
    if indexes[0] < 0 or indexes[-1] >= rows or (indexes[1:] < indexes[:-1]).any():
        raise RejectedError("BAD_FRAME", f"the rows of an answer are not ascending, or not among the chunk's {rows}")


class EngineExchange(Exchange):
    """The engine's end of one exchange, without I/O: it assembles the answers of the server.

    Args:
        open_request: The Open frame of the exchange.
    """

    def __init__(self, open_request: Open) -> None:
        super().__init__(open_request)
        self.open_reply: Opened | None = None
        self._parts: list[pa.RecordBatch] = []

    def receive(self, frame: Frame) -> Answer | None:
        """Check a frame of the server, and return the answer that it completes; None if it completes none.

        Raises:
            RejectedError: BAD_FRAME if the frame was not due; SCHEMA_MISMATCH if its batch has another schema.
        """
        rows = self.due[0][1] if self.due else 0
        self.step(Role.SERVER, frame)
        match frame:
            case Results() | SavedStates() | Mapped():
                return self._collect_part(frame, rows)
            case InitialOutputs() | RowOutputs():
                return frame.batch
            case Opened():
                self._check_opened(frame)
            case _:
                pass
        return None

    def _check_opened(self, open_reply: Opened) -> None:
        if len(open_reply.calls) != len(self.open_request.functions):
            raise RejectedError(
                "BAD_FRAME",
                f"Opened describes {len(open_reply.calls)} calls, and Open has {len(self.open_request.functions)}",
            )
        self.open_reply = open_reply

    def _collect_part(self, frame: Results | SavedStates | Mapped, rows: int) -> Answer | None:
        if self.open_reply is None or frame.batch.schema != self.open_reply.schema:
            raise RejectedError("SCHEMA_MISMATCH", "the schema of the results differs from the schema in Opened")
        self._parts.append(frame.batch)
        if not frame.last:
            return None
        whole, self._parts = pa.Table.from_batches(self._parts), []
        if isinstance(frame, Mapped):
            _check_mapped(whole, rows)
        return Saved(whole, frame.problem) if isinstance(frame, SavedStates) else whole
