"""Changes that did not send all columns of their row: which older change each value is kept from.

A connector may leave out large values that an update did not change. Such a change keeps the values that the change
before it, by sequence, has set. So a row may have values of several changes, and each has the sequence of its own: a
change that arrives late still sets the values that all later ones have kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indexes = npt.NDArray[np.int64]

MISSING = -1


@dataclass(frozen=True)
class Entries:
    """n stored rows, values that stored rows keep, and changes, of some keys.

    Args:
        slots: The slot of each.
        column: The number of the column, if the entry is the kept value of a stored row, at the sequence of that value;
            otherwise -1.
        unsent: The numbers of the columns that it did not send. In a stored row, these are the columns whose values it
            has kept from older rows.
        is_deleted: Whether it deletes its key.
    """

    slots: npt.NDArray[np.int32]
    column: Indexes
    unsent: Sequence[frozenset[int]]
    is_deleted: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LastRow:
    """The last row of a key.

    Args:
        entry: The last entry of the key.
        kept: For each column that this entry did not send, the entry that did; `MISSING` if none did.
        twins: Other entries with the sequence of a newer or equal one, in pairs: they must be the same change.
    """

    entry: int
    kept: dict[int, int]
    twins: list[tuple[int, int]]


def last_rows(entries: Entries, order: Indexes, ranks: npt.NDArray[np.int64]) -> list[LastRow]:
    """Return the last row of each key.

    Args:
        entries: The entries.
        order: Their positions, by key and sequence.
        ranks: Numbers that grow with `order`, equal for equal keys and sequences.
    """
    found: list[LastRow] = []
    slot, current, rank = -1, MISSING, MISSING
    kept: dict[int, int] = {}
    twins: list[tuple[int, int]] = []

    def end() -> None:
        if current != MISSING:
            found.append(LastRow(current, dict(kept), list(twins)))

    slots, columns, deleted = entries.slots.tolist(), entries.column.tolist(), entries.is_deleted.tolist()
    for entry, at in zip(order.tolist(), ranks.tolist(), strict=True):
        if slots[entry] != slot:
            end()
            slot, current, rank, kept, twins = slots[entry], MISSING, MISSING, {}, []
        if columns[entry] >= 0:
            kept[columns[entry]] = entry
            continue
        if at == rank:
            twins.append((current, entry))
        before = MISSING if current == MISSING or deleted[current] else current
        kept = {} if deleted[entry] else {column: kept.get(column, before) for column in entries.unsent[entry]}
        current, rank = entry, at
    end()
    return found
