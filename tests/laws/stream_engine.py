"""Spark's side of a streaming query in one process: partitions, shuffle, state store, timers, watermark, reruns.

It calls the stateful operator as Spark does, with state that can be taken back, so that generated streams run by the
hundred. What it takes for granted of Spark, tests/spark shows on Spark itself.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from foldflight.client import Transport
from foldflight.engine.batch.tasks import PartialFold
from foldflight.engine.keys.hashes import key_hashes
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import BUCKET, LIVE, HostTypes, QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.table import TableBounds, TableLayout
from foldflight.engine.stream.packing import BLOB, Pack, rows_of
from foldflight.functions import Call
from foldflight.functions.types.arrow import with_column
from foldflight.spark.storage_types import storage_type
from foldflight.spark.stream import BucketProcessor

Rows = list[dict[str, Any]]


@dataclass
class BucketState:
    """What Spark stores for one bucket."""

    manifest: tuple[bytes] | None = None
    runs: dict[str, tuple[bytes]] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


class Handle:
    """The handle of Spark's StatefulProcessor, for one bucket at a time."""

    def __init__(self) -> None:
        self.state = BucketState()

    def getValueState(self, name: str, schema: StructType) -> Handle:  # noqa: N802
        assert (name, schema.simpleString()) == ("manifest", "struct<data:binary>")
        return self

    def getMapState(self, name: str, key: StructType, value: StructType) -> Handle:  # noqa: N802
        assert (name, key.simpleString(), value.simpleString()) == (
            "runs",
            "struct<run_id:string>",
            "struct<data:binary>",
        )
        return self

    def get(self) -> tuple[bytes] | None:
        return self.state.manifest

    def update(self, value: tuple[bytes]) -> None:
        self.state.manifest = value

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:  # noqa: N802
        return self.state.runs.get(key[0])

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:  # noqa: N802
        self.state.runs[key[0]] = value

    def removeKey(self, key: tuple[str]) -> None:  # noqa: N802
        del self.state.runs[key[0]]

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        self.state.timers.add(at_ms)


class StreamEngine:
    """One streaming query.

    Args:
        transport: The way to the functions.
        calls: The calls by output name.
        keys: The key columns; with windows, the last is the window's end.
        columns: The argument and filter columns.
        has_kinds: Whether rows have kinds.
        options: As of `group_by`.
        seed: Of the shuffle's order, of reruns and restarts.
        bounds: How much a task holds at once.
        folds_first: Whether rows are folded before the shuffle, where they can be.
        isolates: Whether errors are isolated.
        table_bounds: The limits of pieces and merges.
    """

    def __init__(
        self,
        transport: Transport,
        calls: dict[str, Call],
        keys: pa.Schema,
        columns: pa.Schema,
        *,
        has_kinds: bool,
        options: StreamOptions,
        seed: int,
        bounds: BlockBounds,
        folds_first: bool,
        isolates: bool = False,
        table_bounds: TableBounds | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.buckets: dict[int, BucketState] = {}
        self.figures: dict[str, int] = {}
        self.reruns = 0
        self._options = options
        columns_of = QueryLayout(keys, tuple(keys.names), columns, tuple(columns.names), has_kinds, isolates=isolates)
        spark = HostTypes(storage=storage_type, results=lambda _names, types: types)
        query = replace(Query.of(transport, calls, columns_of, stream=options, types=spark), bounds=bounds)
        self.layout = query.layout
        if not folds_first:
            # As where a call has no merge.
            query = replace(query, opened_calls=tuple(replace(call, can_merge=False) for call in query.opened_calls))
        self._hashed = len(keys) - (2 if options.has_sessions else 0)
        self._pack = (
            Pack(self.layout.partial, bounds, PartialFold(query, bounds, keeps_buckets=True))
            if query.folds_before_shuffle.holds
            else Pack(self.layout.rows, bounds)
        )
        table = TableLayout(
            keys=keys,
            states=self.layout.states,
            buckets=options.buckets,
            hashed=self._hashed,
            emitted=self.layout.emitted,
        )
        self._processor = BucketProcessor(query, table)
        self._processor.table_bounds = table_bounds or TableBounds()

    def epoch(self, partitions: Sequence[Rows], watermark_ms: int) -> Rows:
        """Run one epoch and return its output."""
        blobs: dict[int, list[Row]] = {}
        for partition, rows in enumerate(partitions):
            for batch in self._pack(self._batches(rows)):
                for row in batch.to_pylist():
                    blobs.setdefault(row[BUCKET], []).append(Row(partition=partition, **row))
        output: Rows = []
        for bucket, bucket_blobs in blobs.items():
            self.random.shuffle(bucket_blobs)
            before = copy.deepcopy(self.buckets.setdefault(bucket, BucketState()))
            dead_bucket = None
            if self.random.random() < 0.3:
                list(self._input(bucket, bucket_blobs, watermark_ms))  # a task that dies, or runs twice
                dead_bucket, self.buckets[bucket] = self.buckets[bucket], before
                random.Random(0).shuffle(bucket_blobs)
            output += self._unpacked(self._input(bucket, bucket_blobs, watermark_ms))
            if dead_bucket is not None:
                self.reruns += 1
                # Spark may read the pieces of the one together with those that epochs after the other write. Outputs
                # that vary may differ.
                if not self.layout.emitted:
                    assert sorted(dead_bucket.runs.values()) == sorted(self.buckets[bucket].runs.values())
        for bucket, state in self.buckets.items():
            for at_ms in sorted(each for each in state.timers if each <= watermark_ms):
                state.timers.discard(at_ms)
                output += self._unpacked(self._expired(bucket, at_ms, watermark_ms))
        self._processor.close()
        return output

    def live_rows(self) -> dict[tuple[Any, ...], int]:
        """Return the live rows of all groups that have state, by key; windows are two more keys."""
        names = self.layout.keys.names
        result = {}
        for bucket in self.buckets:
            for batch in self._for(bucket)._table().scan():
                for row in batch.to_pylist():
                    result[tuple(row[name] for name in names)] = row[LIVE]
        return result

    def _batches(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        schema = self.layout.rows
        whole = pa.RecordBatch.from_pylist(rows, schema=schema)
        hashes = key_hashes(whole.select(self.layout.keys.names[: self._hashed])) % self._options.buckets
        whole = with_column(whole, BUCKET, pa.array(hashes, pa.int32()))
        start = 0
        while start < whole.num_rows:
            size = self.random.randint(1, 5)
            yield whole.slice(start, size)
            start += size

    def _for(self, bucket: int) -> BucketProcessor:
        handle = Handle()
        handle.state = self.buckets[bucket]
        self._processor.init(handle)
        return self._processor

    def _input(self, bucket: int, blobs: list[Row], watermark_ms: int) -> Iterator[Row]:
        return self._for(bucket).handleInputRows((bucket,), iter(blobs), TimerValues(0, watermark_ms))

    def _expired(self, bucket: int, at_ms: int, watermark_ms: int) -> Iterator[Row]:
        return self._for(bucket).handleExpiredTimer((bucket,), TimerValues(0, watermark_ms), ExpiredTimerInfo(at_ms))

    def _unpacked(self, rows: Iterable[Row]) -> Rows:
        output: Rows = []
        for row in rows:
            values = row.asDict()
            blob = values.pop(BLOB)
            for name, value in values.items():
                self.figures[name] = self.figures.get(name, 0) + value
            if blob is not None:
                output += rows_of(blob).to_pylist()
        return output
