"""`over(df, ...).agg(...)` over a streaming DataFrame.

    rows > mapInArrow(Pack) > groupBy(bucket).transformWithState(OverProcessor) > observe > mapInArrow(Unpack)

The hash of the partition keys determines the bucket of a row. Rows that arrive are stored; a timer of each bucket fires
when its next row is due, and then the window frames of all due rows are folded (`engine.over.bucket`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as st

from foldflight.engine.over.bucket import OverBucket, StreamFolds
from foldflight.engine.over.over_stream import StreamedOver
from foldflight.engine.state.manifest import RunStore
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import Pack, Unpack
from foldflight.spark.arrow import arrow_function, step_name
from foldflight.spark.bucketed import BucketOperator, blobs_of, bucket_row, operator_plan


def over_stream(over: StreamedOver, rows: DataFrame, schema: st.StructType) -> DataFrame:
    """Return the rows of a stream with their outputs.

    Args:
        over: The query.
        rows: The input rows, in the schema of its layout.
        schema: The columns of the result.
    """
    query, layout = over.query, over.query.layout
    functions = [call.function for part in query.parts for call in part.query.open_request.calls]
    pack = arrow_function(Pack(layout.rows, query.bounds), step_name("pack", functions))
    unpack = arrow_function(Unpack(query.results), step_name("over", functions))
    return operator_plan(
        rows,
        OverProcessor(over),
        (pack, unpack),
        schema,
        keys=layout.keys.names,
        buckets=over.buckets,
        names=(layout.key_names, query.outputs.names),
    )


class OverProcessor(BucketOperator):
    """The operator of OVER streams.

    Args:
        over: The query.
    """

    def __init__(self, over: StreamedOver) -> None:
        super().__init__(over.query.layout.rows, over.query.bounds, has_names=True, trace=over.query.trace)
        self._folds = StreamFolds(over, clock=time.perf_counter)
        self._last_stats: dict[int, EpochStats] = {}

    def arrive(self, bucket: int, blocks: Iterator[pa.RecordBatch], timers: Any) -> Iterator[Row]:
        """Store the rows of one bucket that arrive in an epoch."""
        rows = self._bucket()
        rows.arrive(blocks, timers.getCurrentWatermarkInMs() * 1000)
        yield from self._end_call(bucket, rows)

    def expire(self, bucket: int, timers: Any, timer_info: Any) -> Iterator[Row]:  # noqa: ARG002
        """Emit the rows of one bucket that are due."""
        rows = self._bucket()
        try:
            for batch in rows.outputs(timers.getCurrentWatermarkInMs() * 1000):
                for blob in blobs_of(batch):
                    yield bucket_row(blob, EpochStats())
        except BaseException as error:
            self._folds.__exit__(type(error), error, error.__traceback__)
            raise
        yield from self._end_call(bucket, rows)

    def end(self) -> None:
        """End the exchanges."""
        self._folds.__exit__(None, None, None)

    def check(self, stores: Callable[[str], RunStore]) -> None:
        self._bucket(stores)

    def _bucket(self, stores: Callable[[str], RunStore] | None = None) -> OverBucket:
        store = stores or self.store
        return OverBucket(self._folds, lambda name: self.storage(store(name)))

    def _end_call(self, bucket: int, rows: OverBucket) -> Iterator[Row]:
        """Register a timer for the next row that is due, and yield the figures."""
        if rows.next_us is not None:
            self.wake(rows.next_us)
        yield bucket_row(None, self._figures(bucket, rows.stats))

    def _figures(self, bucket: int, stats: EpochStats) -> EpochStats:
        """Return figures that add up to the latest ones of a bucket, if it is called twice in a task."""
        before = self._last_stats.get(bucket, EpochStats())
        self._last_stats[bucket] = stats
        return replace(
            stats,
            buckets=stats.buckets - before.buckets,
            runs=stats.runs - before.runs,
            state_bytes=stats.state_bytes - before.state_bytes,
            waiting_rows=stats.waiting_rows - before.waiting_rows,
        )
