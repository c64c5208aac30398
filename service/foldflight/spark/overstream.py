"""`over(df, ...).agg(...)` over a streaming DataFrame.

    rows > mapInArrow(Pack) > groupBy(bucket).transformWithState(OverProcessor) > observe > mapInArrow(Unpack)

The hash of the partition keys determines the bucket of a row. Rows that arrive are stored; a timer of each bucket fires
when its next row is due, and then the frames of all due rows are folded (`engine.over.bucket`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.over.bucket import OverBucket, StreamFolds
from foldflight.engine.over.stream import StreamedOver
from foldflight.engine.query.blocks import gather
from foldflight.engine.query.layout import BUCKET
from foldflight.engine.state.manifest import TableBounds, naming_bucket
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import BLOB, Pack, Unpack, blob_of, rows_of
from foldflight.spark.attempts import attempt
from foldflight.spark.bucketed import DATA, FOLDED, PACKED, RUN_ID, StoredRuns, bucket_row, observed, run_cache
from foldflight.spark.steps import mapping, step_name
from foldflight.spark.versions import StatefulProcessor, transform_with_state
from foldflight.spark.worker import freeze_garbage_collector, use_local_folders

__all__ = ["over_stream"]

_OUTPUT_ROWS_MAX = 1 << 16
_NAME = st.StructType([st.StructField("name", st.StringType())])


def over_stream(over: StreamedOver, rows: DataFrame, schema: st.StructType) -> DataFrame:
    """Return the rows of a stream with their outputs.

    Args:
        over: The query.
        rows: The input rows, in the schema of its layout.
        schema: The columns of the result.
    """
    query, layout = over.query, over.query.layout
    functions = [call.function for part in query.parts for call in part.query.opening.calls]
    keys = [sf.col(name) for name in layout.keys.names]
    bucket = sf.pmod(sf.xxhash64(*keys), sf.lit(over.buckets)) if keys else sf.lit(0)
    with_bucket = rows.select("*", bucket.cast("int").alias(BUCKET))
    packed = with_bucket.mapInArrow(mapping(Pack(layout.rows, query.bounds), step_name("pack", functions)), PACKED)
    folded = transform_with_state(packed.groupBy(BUCKET), OverProcessor(over), FOLDED, "Append", "EventTime")
    blobs = observed(folded, layout.key_names, query.outputs.names)
    return blobs.mapInArrow(mapping(Unpack(query.results), step_name("over", functions)), schema)


class OverProcessor(StatefulProcessor):
    """The stateful operator. Spark calls it for each bucket that has rows in an epoch, then for timers.

    Args:
        over: The query.
    """

    def __init__(self, over: StreamedOver) -> None:
        self._step = uuid.uuid4().hex
        self._over = over
        self._folds = StreamFolds(over, clock=time.perf_counter)
        self._shown: dict[int, EpochStats] = {}

    def init(self, handle: Any) -> None:
        """Declare the state variables of a bucket: manifests and runs by name."""
        use_local_folders()
        self._handle = handle
        self._manifests = handle.getMapState("manifests", _NAME, DATA)
        self._runs = handle.getMapState("runs", RUN_ID, DATA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Store the rows of one bucket that arrive in an epoch."""
        with attempt(self._step), naming_bucket(key[0]):
            query, bucket = self._over.query, self._bucket()
            blobs = (rows_of(bytes(row[BLOB])) for row in rows)
            bucket.arrive(gather(blobs, query.layout.rows, query.bounds), timerValues.getCurrentWatermarkInMs() * 1000)
            self._wake(bucket)
            yield bucket_row(None, self._figures(key[0], bucket.stats))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Emit the rows of one bucket that are due."""
        with attempt(self._step), naming_bucket(key[0]), self._cut_if_failed():
            bucket = self._bucket()
            for batch in bucket.outputs(timerValues.getCurrentWatermarkInMs() * 1000):
                for start in range(0, batch.num_rows, _OUTPUT_ROWS_MAX):
                    yield bucket_row(blob_of(batch.slice(start, _OUTPUT_ROWS_MAX)), EpochStats())
            self._wake(bucket)
            yield bucket_row(None, self._figures(key[0], bucket.stats))

    def close(self) -> None:
        """End the exchanges at the end of the task."""
        with attempt(self._step):
            self._folds.__exit__(None, None, None)
        freeze_garbage_collector()

    def _bucket(self) -> OverBucket:
        return OverBucket(
            self._folds,
            lambda name: _NamedStore(name, self._manifests, self._runs),
            cache=run_cache(),
            bounds=TableBounds(),
            new_run_id=lambda: uuid.uuid4().hex,
        )

    @contextmanager
    def _cut_if_failed(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._folds.__exit__(type(error), error, error.__traceback__)
            raise

    def _wake(self, bucket: OverBucket) -> None:
        """Register a timer for the next row that is due, rounded up to milliseconds, the unit of timers."""
        if bucket.next_us is not None:
            self._handle.registerTimer(-(-bucket.next_us // 1000))

    def _figures(self, bucket: int, stats: EpochStats) -> EpochStats:
        """Return figures so that those of a bucket that is called twice in a task add up to its latest ones."""
        before = self._shown.get(bucket, EpochStats())
        self._shown[bucket] = stats
        return replace(
            stats,
            buckets=stats.buckets - before.buckets,
            runs=stats.runs - before.runs,
            state_bytes=stats.state_bytes - before.state_bytes,
            waiting_rows=stats.waiting_rows - before.waiting_rows,
        )


class _NamedStore(StoredRuns):
    """One table or log in Spark's state variables. Runs have unique names, so all share a variable."""

    def __init__(self, name: str, manifests: Any, runs: Any) -> None:
        super().__init__(runs)
        self._name = name
        self._manifests = manifests

    def manifest(self) -> bytes | None:
        held = self._manifests.getValue((self._name,))
        return None if held is None else bytes(held[0])

    def put_manifest(self, data: bytes) -> None:
        self._manifests.updateValue((self._name,), (data,))
