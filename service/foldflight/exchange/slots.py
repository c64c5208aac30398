"""Checks of received chunks and slots, and sets of slots."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open, columns_text

Slots = npt.NDArray[np.int32]
NO_SLOTS: Final[Slots] = np.zeros(0, np.int32)
ONE_SLOT: Final[Slots] = np.zeros(1, np.int32)
"""The slots of a chunk without a column `slot`: all rows belong to slot 0."""


def check_chunk(batch: pa.RecordBatch, open_request: Open) -> None:
    """Raise RejectedError SCHEMA_MISMATCH if the schema of a chunk differs from `Open.columns`."""
    if batch.schema != open_request.columns:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the chunk has {columns_text(batch.schema)}, and Open announced {columns_text(open_request.columns)}",
        )


def check_slots(slots: pa.Array, slots_max: int) -> Slots:
    """Check the type and the range of slots, and return them.

    Raises:
        RejectedError: SCHEMA_MISMATCH if they are not int32 without NULLs; LIMIT if one is out of bounds.
    """
    if slots.type != pa.int32() or slots.null_count:
        given = f"{slots.type}" + (f" with {slots.null_count} NULLs" if slots.null_count else "")
        raise RejectedError("SCHEMA_MISMATCH", f"slots are int32 without NULLs, and these are {given}")
    values: Slots = slots.to_numpy(zero_copy_only=False)
    # As an unsigned number, a negative slot is larger than every valid one, so one comparison is enough.
    if len(values) and int(np.maximum.reduce(values.view(np.uint32))) >= slots_max:
        wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise RejectedError(
            "LIMIT",
            f"slot {wrong} is out of bounds: slots are 0 to slots_max - 1 = {slots_max - 1}",
            limit="slots_max",
        )
    return values


def check_states(batch: pa.RecordBatch, slots_max: int) -> Slots:
    """Check the slots of a batch of states, and return them. Raises RejectedError SCHEMA_MISMATCH, LIMIT."""
    columns = batch.schema.names.count("slot")
    if columns != 1:
        raise RejectedError("SCHEMA_MISMATCH", f"States must have one column `slot`, and this batch has {columns}")
    return check_slots(batch.column("slot"), slots_max)


class SlotSet:
    """A set of slots, stored as one boolean for each slot up to the highest that was added."""

    def __init__(self) -> None:
        self._has = np.zeros(0, np.bool_)
        self._full = 0  # all slots below this one are in the set

    def __bool__(self) -> bool:
        """Return whether the set has any slot."""
        return self._full > 0 or bool(self._has.any())

    def add(self, slots: Slots, needed: int) -> None:
        """Add n slots, the highest of which is `needed` - 1."""
        if needed <= self._full:
            return
        if needed > len(self._has):
            more = np.zeros(max(needed, 2 * len(self._has)) - len(self._has), np.bool_)
            self._has = np.concatenate([self._has, more])
        self._has[slots.astype(np.intp)] = True  # several times as fast as indexing with int32
        if needed <= len(slots) and self._has[:needed].all():
            self._full = needed

    def discard(self, slots: Slots) -> None:
        """Remove n slots."""
        self._has[slots[slots < len(self._has)]] = False
        self._full = 0

    def clear(self) -> None:
        """Remove all slots."""
        self._has, self._full = np.zeros(0, np.bool_), 0

    def to_numpy(self) -> Slots:
        """Return the slots of the set, ascending."""
        return self._has.nonzero()[0].astype(np.int32)
