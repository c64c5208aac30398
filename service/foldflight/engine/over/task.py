"""The task of an OVER query: called once for each partition of the engine, with sorted rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from foldflight.engine.over.over_query import OverQuery
from foldflight.engine.over.partitions import Partitions, Store
from foldflight.engine.over.positions import positions_of
from foldflight.engine.over.window_frame_folds import WindowFrameFold, fold_of
from foldflight.engine.query.blocks import AdaptiveSize, gather

_ROWS: Final = 1 << 15


@dataclass(frozen=True)
class OverFold:
    """Computes the outputs of each row.

    Args:
        query: The query.
        rows: The largest number of rows whose outputs are computed at once. A window frame may need a slot of its own,
            so the bounds of the query apply, too. Of large outputs fewer are computed.
    """

    query: OverQuery
    rows: int = _ROWS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition of the engine with their outputs, in the order of the rows.

        Args:
            batches: Rows in the schema of the layout, sorted by the keys of the partition and then by the order.
        """
        query = self.query
        adaptive_size = AdaptiveSize(min(self.rows, query.bounds.rows_max), query.bounds.bytes_max)
        blocks = gather(batches, query.layout.rows, query.buffer_bounds)
        with ExitStack() as stack:
            folds = [stack.enter_context(fold_of(part)) for part in query.parts]
            for store in Partitions(query.ordering, bytes_max=query.buffer_bounds.bytes_max).stores(blocks):
                for fold in folds:
                    fold.begin(store)
                start = 0
                while start < len(store):
                    end = min(start + adaptive_size.items, len(store))
                    outputs = self._outputs(folds, store, start, end)
                    yield outputs
                    adaptive_size.record(end - start, sum(outputs.column(name).nbytes for name in query.outputs.names))
                    start = end

    def _outputs(self, folds: list[WindowFrameFold], store: Store, start: int, end: int) -> pa.RecordBatch:
        query, block = self.query, store.slice(start, end)
        rows = np.arange(start, end)
        columns: dict[str, pa.Array] = {}
        for part, fold in zip(query.parts, folds, strict=True):
            low, high = positions_of(
                part.window_frame,
                store.order,
                rows,
                None if part.low is None else block.column(part.low),
                None if part.high is None else block.column(part.high),
                descending=query.layout.descending,
            )
            columns |= zip(part.query.layout.outputs.names, fold.outputs(rows, low, high), strict=True)
        payload = [block.column(name) for name in query.layout.payload.names]
        outputs = [columns[name] for name in query.outputs.names]
        return pa.RecordBatch.from_arrays([*payload, *outputs], schema=query.results)
