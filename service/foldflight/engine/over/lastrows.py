"""Window frames of an OVER stream that keep the last rows of each group: ROWS frames with a beginning."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from foldflight.engine.over.folding import fold_of
from foldflight.engine.over.partitions import Store
from foldflight.engine.over.positions import OrderOf, Positions, positions_of
from foldflight.engine.over.steps import CallsFold, Slots, Step, WindowFrameStores, columns_of
from foldflight.engine.over.stream import WindowFrameCalls, preceding_rows
from foldflight.engine.query.blocks import AdaptiveSize, BlockBounds
from foldflight.engine.query.layout import REAL
from foldflight.engine.state.table import StateTable
from foldflight.functions.types.arrow import concat_batches

_ROWS: Final = 1 << 15
"""Rows whose window frames are folded at once in ROWS frames."""

_LAST_ROWS: Final = "rows"


class RowsFold(CallsFold):
    """Keeps the last rows of each group, for ROWS frames. Window frames of the rows of one time keep nothing."""

    def __init__(self, calls: WindowFrameCalls, buckets: int, bounds: BlockBounds) -> None:
        super().__init__(calls.window_frame, calls.layout, buckets)
        self._folds = [(part.query.layout.outputs.names, self.enter_context(fold_of(part))) for part in calls.parts]
        self._adaptive_size = AdaptiveSize(min(_ROWS, bounds.rows_max), bounds.bytes_max)
        self._preceding_rows = preceding_rows(calls.window_frame)
        # The kept rows of some groups are in memory at once: at first of too few groups for a large block.
        first = max(bounds.rows_max // max(self._preceding_rows, 1), 1)
        self._adaptive_groups = AdaptiveSize(bounds.rows_max, bounds.bytes_max, first=first)

    @property
    def states(self) -> pa.Schema:
        if not self._preceding_rows:
            return pa.schema([])
        fields = list(self.layout.columns) or [pa.field(REAL, pa.bool_())]
        metadata = {"function": _LAST_ROWS, "version": "", "fingerprint": str(pa.struct(fields))}
        return pa.schema([pa.field("state_0", pa.list_(pa.struct(fields)), metadata=metadata)])

    def outputs(self, step: Step, stores: WindowFrameStores) -> list[pa.Array]:
        outputs = [[pa.nulls(0, field.type) for field in self.layout.outputs]]
        begin = 0
        while begin < len(step.slots):
            part = step if stores.table is None else step.of_groups(begin, self._adaptive_groups.items)
            outputs.append(self._fold(part, stores.table))
            begin += len(part.slots)
        return [pa.concat_arrays(list(columns)) for columns in zip(*outputs, strict=True)]

    def _fold(self, step: Step, table: StateTable | None) -> list[pa.Array]:
        """Return the outputs of the due rows of some groups, and store the last rows of these groups."""
        columns = columns_of(step.rows, self.layout.columns.names)
        rows, owners, anew, is_due = columns, step.slots, step.anew, np.ones(len(step.slots), np.bool_)
        touched = np.unique(owners)
        keys = step.groups.keys(touched)
        if table is not None:
            lists = table.lookup(keys, step.groups.stored_hashes(touched)).states.column(0)
            before = pa.RecordBatch.from_arrays(lists.flatten().flatten(), schema=columns.schema)
            lengths = lists.value_lengths().fill_null(0).to_numpy()
            rows = concat_batches([before, columns])
            owners = np.concatenate([np.repeat(touched, lengths), owners])
            is_due = np.arange(len(owners)) >= len(before)
            anew = np.concatenate([np.zeros(len(before), np.bool_), anew])
            order = np.argsort(owners, kind="stable")
            rows, owners, anew, is_due = rows.take(pa.array(order)), owners[order], anew[order], is_due[order]
        starts = np.append(np.flatnonzero((np.diff(owners, prepend=-1) != 0) | anew), len(owners))
        outputs = self._outputs(self._store(step, rows, owners, starts), np.flatnonzero(is_due))
        if table is not None:
            is_last = np.diff(owners[starts[:-1]], append=-1) != 0
            last = self._last(rows, starts[:-1][is_last], starts[1:][is_last])
            table.commit(keys, np.ones(len(touched), np.int64), last, step.groups.stored_hashes(touched))
            self._adaptive_groups.record(len(touched), rows.nbytes)
        return outputs

    def _last(self, rows: pa.RecordBatch, starts: Positions, ends: Positions) -> pa.RecordBatch:
        """Return the last rows of each group as a list: the rows that window frames of later rows may contain."""
        counts = np.minimum(ends - starts, self._preceding_rows)
        indexes = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        last = pa.ListArray.from_arrays(offsets, rows.take(pa.array(indexes)).to_struct_array())
        return pa.RecordBatch.from_arrays([last.cast(self.states.field(0).type)], names=self.states.names)

    def _store(self, step: Step, rows: pa.RecordBatch, owners: Slots, starts: Positions) -> Store:
        """Return rows, by group, with their keys. Only window frames without kept rows need to know peers."""
        keys = step.groups.keys(owners)
        together = pa.RecordBatch.from_arrays(
            [*keys.columns, *rows.columns], schema=pa.schema([*keys.schema, *rows.schema])
        )
        nulls = np.zeros(len(starts) - 1, np.int64)
        return Store([together], OrderOf(starts, step.peers, None, nulls, nulls_first=True))

    def _outputs(self, store: Store, due: Positions) -> list[pa.Array]:
        for _, fold in self._folds:
            fold.begin(store)
        outputs = []
        start = 0
        while start < len(due):
            rows = due[start : start + self._adaptive_size.items]
            low, high = positions_of(self.window_frame, store.order, rows)
            columns: dict[str, pa.Array] = {}
            for names, fold in self._folds:
                columns |= zip(names, fold.outputs(rows, low, high), strict=True)
            outputs.append([columns[name] for name in self.layout.outputs.names])
            self._adaptive_size.record(len(rows), sum(column.nbytes for column in outputs[-1]))
            start += len(rows)
        return [pa.concat_arrays(list(parts)) for parts in zip(*outputs, strict=True)]
