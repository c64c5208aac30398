"""The rows that an epoch accumulates in groups that had no rows before it, to find out what may be retracted.

A group with rows does not know them, so each retraction of it counts. A group without rows has nothing that could be
retracted, except what the same epoch accumulates. A stream that begins in the middle of a changelog meets both at once:
of `-U 10` and `+U 40` the first has no row, and must not remove the second. So these retractions are compared with the
rows, in all columns that the query uses. The order does not matter, because Spark keeps none between partitions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.deadletters import BufferedRows
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.query.changelog import Mask, live_rows
from foldflight.engine.query.layout import SLOT, QueryLayout

Slots = npt.NDArray[np.int32]


class NewRows:
    """The accumulated rows of groups that had no rows before the epoch.

    They are kept as they came, and only the rows of groups that are retracted are ever compared.

    Args:
        layout: The columns of the query.
    """

    def __init__(self, layout: QueryLayout) -> None:
        self._columns = layout.columns
        self._held = BufferedRows(layout.columns)
        self._index: KeyIndex | None = None
        # For each different row of the index: how often it was accumulated and not yet retracted.
        self._counts = np.zeros(0, np.int64)
        self._is_indexed = np.zeros(0, np.bool_)  # by slot

    def accumulate(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Keep n rows. All rows of a group come before its first retraction."""
        if len(slots):
            self._held.add(slots, rows)

    def retract(self, slots: Slots, rows: pa.RecordBatch) -> Mask:
        """Return which of n retractions have an equal accumulated row; each row is retracted once.

        NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0.
        """
        self._reach(slots)
        ids = self._ids(pa.array(slots, pa.int32()), rows)
        counted, self._counts = live_rows(ids, np.ones(len(ids), np.bool_), self._counts)
        return counted

    def close(self) -> None:
        """Release the rows."""
        self._held.close()

    def _reach(self, slots: Slots) -> None:
        """Index the rows of groups that have not been retracted so far."""
        known = len(self._is_indexed)
        grown = np.zeros(max(known, int(slots.max(initial=-1)) + 1), np.bool_)
        grown[:known] = self._is_indexed
        fresh = np.zeros(len(grown), np.bool_)
        fresh[slots] = True
        fresh &= ~grown
        self._is_indexed = grown | fresh
        if not fresh.any():
            return
        for batch in self._held.read():
            row_slots = batch.column(SLOT).to_numpy()
            is_new = np.zeros(len(row_slots), np.bool_)
            reached = row_slots < len(fresh)
            is_new[reached] = fresh[row_slots[reached]]
            if is_new.any():
                chosen = batch.filter(pa.array(is_new))
                ids = self._ids(chosen.column(SLOT), chosen)
                self._counts += np.bincount(ids, minlength=len(self._counts))

    def _ids(self, slots: pa.Array, rows: pa.RecordBatch) -> Slots:
        """Return a number for each of n rows, the same for equal rows of one group; the counts grow to all of them."""
        if self._index is None:
            self._index = KeyIndex(pa.schema([pa.field(SLOT, pa.int32()), *self._columns]))
        ids: Slots = self._index.slots([slots, *(rows.column(name) for name in self._columns.names)]).to_numpy()
        fresh = len(self._index) - len(self._counts)
        if fresh:
            self._counts = np.concatenate([self._counts, np.zeros(fresh, np.int64)])
        return ids
