"""`upserts` over a streaming DataFrame, with the last row of each key in Spark's state store.

    changes > mapInArrow(Pack) > groupBy(bucket).transformWithState(UpsertProcessor) > observe > mapInArrow(Unpack)

The hash of a key determines its bucket, which has a state table of the last rows (`engine.stream.upserts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.state.manifest import RunStore
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import Pack, Unpack
from foldflight.engine.stream.upserts import UpsertLayout, epoch_of, upsert_table
from foldflight.functions import RowKind
from foldflight.spark.arrow import arrow_function
from foldflight.spark.bucketed import EPOCH_US, BucketOperator, blobs_of, bucket_row, operator_plan

_BOUNDS = BlockBounds()


def upsert_stream(
    layout: UpsertLayout, changes: DataFrame, schema: st.StructType, positions: Sequence[int]
) -> DataFrame:
    """Return the changelog of an upsert stream.

    Args:
        layout: The columns.
        changes: The input, in the schema of `UpsertLayout.rows`.
        schema: The columns of the result: the row kind, then the user's.
        positions: For each column of the user, its position among the keys and the other columns.
    """
    results = [*layout.keys, *layout.columns]
    names = schema.names[1:]
    unpacked_fields = [results[position].with_name(name) for position, name in zip(positions, names, strict=True)]
    unpack = Unpack(pa.schema([pa.field(ROW_KIND, pa.string()), *unpacked_fields]))
    return operator_plan(
        changes,
        UpsertProcessor(layout, positions),
        (arrow_function(Pack(layout.rows, _BOUNDS), "pack_upserts"), arrow_function(unpack, "upserts")),
        schema,
        keys=layout.keys.names,
        buckets=layout.buckets,
        names=(layout.names, ["upserts"]),
        modes=("Update", "None"),
        has_time=True,
    )


class UpsertProcessor(BucketOperator):
    """The operator of upsert streams.

    Args:
        layout: The columns.
        positions: For each column of the result, its position among the keys and the other columns.
    """

    def __init__(self, layout: UpsertLayout, positions: Sequence[int]) -> None:
        super().__init__(layout.rows, _BOUNDS, has_names=False)
        self._layout = layout
        self._positions = [*positions]
        self._now_us = 0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Process the changes of one bucket and epoch. All have the time of the epoch."""
        first = next(rows)
        self._now_us = first[EPOCH_US]
        return super().handleInputRows(key, chain([first], rows), timerValues)

    def arrive(self, bucket: int, blocks: Iterator[pa.RecordBatch], timers: Any) -> Iterator[Row]:  # noqa: ARG002
        """Store the changes of one bucket and epoch, and return what they change."""
        storage = self.storage(self.store())
        first = next(blocks, None)
        if first is None:  # bucket 0 is always called, to notice another query
            upsert_table(self._layout, storage).declare()
            return
        stats, kinds, changes = epoch_of(self._layout, storage, chain([first], blocks), self._now_us)
        shorts = pa.array([kind.short for kind in RowKind])  # not at import: pyarrow imports pandas for it
        columns = [shorts.take(kinds), *(changes.column(position) for position in self._positions)]
        names = [f"column_{index}" for index in range(len(columns))]
        blobs: list[bytes | None] = [*blobs_of(pa.RecordBatch.from_arrays(columns, names=names))]
        first_blob, *others = blobs or [None]
        yield bucket_row(first_blob, stats)
        for each in others:
            yield bucket_row(each, EpochStats())

    def expire(self, bucket: int, timers: Any, timer_info: Any) -> Iterator[Row]:  # noqa: ARG002
        """Do nothing: there are no timers."""
        return iter(())

    def check(self, stores: Callable[[str], RunStore]) -> None:
        upsert_table(self._layout, self.storage(stores("")))

    def end(self) -> None:
        """Do nothing: there are no exchanges."""
