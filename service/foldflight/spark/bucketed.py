"""The common parts of stateful streams: the operator over buckets, its columns and figures, and the cache of pieces."""

from __future__ import annotations

import collections
import hashlib
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds, gather
from foldflight.engine.query.layout import BUCKET
from foldflight.engine.state.manifest import RunStore, Storage, TableBounds, naming_bucket
from foldflight.engine.state.runs import HostCache, RunCache, private_folder
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import BLOB, BLOCK, rows_of
from foldflight.errors import RejectedError
from foldflight.exchange.ipc import write_batch
from foldflight.spark.arrow import ArrowFunction
from foldflight.spark.versions.states import OPERATOR, StatefulProcessor, transform_with_state
from foldflight.spark.worker import attempt, freeze_garbage_collector, task_span, use_local_folders
from foldflight.tracing import Span, TraceSettings

_OBSERVED: Final = "foldflight"
_OBSERVED_EVENTS: Final = "foldflight_events"
_NUMBER: Final = re.compile(r" #\d+$")

# Schemas are objects rather than DDL texts. Spark Connect's client parses texts with a session that it chooses, and the
# text of a state variable's schema would be parsed in the JVM twice in each task.
DATA: Final = st.StructType([st.StructField("data", st.BinaryType())])
RUN_ID: Final = st.StructType([st.StructField("run_id", st.StringType())])
PACKED: Final = st.StructType(
    [
        st.StructField(BUCKET, st.IntegerType()),
        st.StructField(BLOCK, st.IntegerType()),
        st.StructField(BLOB, st.BinaryType()),
    ]
)
EPOCH_US: Final = "epoch_us"
"""The column with the time of the epoch, in microseconds."""
_PARTITION: Final = "partition"
_IN_ORDER_BYTES_MAX: Final = 64 << 20  # blobs that a task sorts at once
_FIGURES: Final = [
    st.StructField(figure.name, st.DoubleType() if figure.type == "float" else st.LongType())
    for figure in fields(EpochStats)
]
FIGURES: Final = tuple(each.name for each in _FIGURES)
FOLDED: Final = st.StructType([st.StructField(BLOB, st.BinaryType()), *_FIGURES])
_NAME: Final = st.StructType([st.StructField("name", st.StringType())])
_OUTPUT_ROWS_MAX: Final = 1 << 16  # rows of a blob of results, which is a row of Spark
_CACHE_BYTES_MAX: Final = 256 << 20  # decoded runs that a worker process keeps
_HOST_BYTES_MAX: Final = 1 << 30  # files of runs that all workers of a host share


def in_order(rows: Iterator[Row], bytes_max: int = _IN_ORDER_BYTES_MAX) -> Iterator[bytes]:
    """Yield the blobs of one bucket and epoch in the order of their partitions, not of their arrival.

    So an epoch that Spark repeats has its rows in the same order, and states that depend on it have the same bytes.
    Not much more than `bytes_max` are held; only the blobs held together are in order.
    """
    blobs: list[tuple[int, int, bytes]] = []
    size = 0
    for row in rows:
        blobs.append((row[_PARTITION], row[BLOCK], bytes(row[BLOB])))
        size += len(blobs[-1][2])
        if size > bytes_max:
            yield from (blob for _, _, blob in sorted(blobs))
            blobs, size = [], 0
    yield from (blob for _, _, blob in sorted(blobs))


def bucket_row(blob: bytes | None, figures: EpochStats) -> Row:
    """Return a row of the stateful operator: a blob of results, and counts for the metrics of the epoch."""
    return Row(**{BLOB: blob}, **asdict(figures))


def operator_plan(
    rows: DataFrame,
    operator: BucketOperator,
    tasks: tuple[ArrowFunction, ArrowFunction],
    schema: st.StructType,
    *,
    keys: Sequence[str],
    buckets: int,
    names: tuple[Sequence[str], Sequence[str]],
    modes: tuple[str, str] = ("Append", "EventTime"),
    has_time: bool = False,
) -> DataFrame:
    """Return the plan of a stateful operator: rows > pack > shuffle by bucket > operator > unpack.

    Args:
        rows: The input.
        operator: The operator, which the result holds for `check_checkpoint`.
        tasks: Packs rows by bucket; unpacks results.
        schema: The columns of the result.
        keys: The columns whose hash is the bucket. Without any there is one bucket.
        buckets: The number of buckets.
        names: The user's names of keys and outputs, by which the figures are observed.
        modes: Spark's output mode and time mode.
        has_time: Whether the rows of the operator have the time of the epoch, `EPOCH_US`.
    """
    bucket = sf.pmod(sf.xxhash64(*keys), sf.lit(buckets)) if keys else sf.lit(0)
    packed_rows = rows.select("*", bucket.cast("int").alias(BUCKET)).mapInArrow(tasks[0], PACKED)
    times = [_epoch_us().alias(EPOCH_US)] if has_time else []
    by_bucket = packed_rows.select("*", sf.spark_partition_id().alias(_PARTITION), *times).groupBy(BUCKET)
    folded_rows = transform_with_state(by_bucket, operator, FOLDED, *modes)
    sums = (sf.coalesce(sf.sum(each.name), sf.lit(0)).cast(each.dataType).alias(each.name) for each in _FIGURES)
    observed_rows = folded_rows.observe(_unique(f"{_OBSERVED} {' > '.join(map(','.join, names))}"), *sums)
    result = observed_rows.select(BLOB).where(f"{BLOB} IS NOT NULL").mapInArrow(tasks[1], schema)
    setattr(result, OPERATOR, operator)
    return result


def _epoch_us() -> Column:
    """Return the time of the epoch in microseconds. Spark stores it before the epoch, and repeats the epoch with it.

    Spark makes a constant of it, so it would compile the code that it generates from the plan anew in each epoch. It
    generates no code for `zip_with`.
    """
    times = sf.array(sf.unix_micros(sf.current_timestamp()))
    return sf.zip_with(times, times, sf.nvl)[0]


def aggregation_of(observation: str) -> str | None:
    """Return the aggregation that an observation is named after, `keys > outputs`; None if it is not one of ours."""
    prefix, _, aggregation = observation.partition(" ")
    return _NUMBER.sub("", aggregation) if prefix == _OBSERVED else None


def observe_events(rows: DataFrame, table: str, figures: Sequence[Column]) -> DataFrame:
    """Return the rows of events of a table, with figures in the progress of a stream that `table_of` finds.

    Args:
        rows: The rows.
        table: The name of the table, or a pattern of it.
        figures: Aggregates, with names.
    """
    return rows.observe(_unique(f"{_OBSERVED_EVENTS} {table}"), *figures)


def table_of(observation: str) -> str | None:
    """Return the table of the events that an observation counts; None if it is not one of `observe_events`."""
    prefix, _, table = observation.partition(" ")
    return _NUMBER.sub("", table) if prefix == _OBSERVED_EVENTS else None


_uses: collections.Counter[str] = collections.Counter()


def _unique(name: str) -> str:
    """Return the name, from its second use on with a number: Spark refuses a union of two observations of one name.

    The number may be another one after a restart. A checkpoint does not have the name.
    """
    _uses[name] += 1
    return name if _uses[name] == 1 else f"{name} #{_uses[name]}"


EPOCH: Final = "streaming.sql.batchId"
"""The local property with the number of the epoch, which Spark sets for its tasks."""
# A lost connection over fewer bytes has other causes, such as a task that is ended.
_LARGE_BYTES = 16 << 20
_caches: list[RunCache] = []


def run_cache() -> RunCache:
    """Return this process's cache. Runs are immutable, so its contents are valid for every task."""
    if not _caches:
        folder = private_folder()
        host_cache = None if folder is None else HostCache(folder, bytes_max=_HOST_BYTES_MAX)
        _caches.append(RunCache(bytes_max=_CACHE_BYTES_MAX, host_cache=host_cache))
    return _caches[0]


class BucketStore:
    """One table or log of a bucket in Spark's state variables: a manifest, and pieces by their unique names.

    Args:
        read: Returns the row with the manifest, or None.
        write: Replaces it.
        runs: The map state of the pieces, which all tables and logs of a bucket share.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[tuple[bytes]], None], runs: Any) -> None:
        self._read = read
        self._write = write
        self._runs = runs

    def manifest(self) -> bytes | None:
        """Return the manifest."""
        blobs = self._read()
        return None if blobs is None else bytes(blobs[0])

    def put_manifest(self, data: bytes) -> None:
        """Replace the manifest."""
        self._write((data,))

    def run(self, run_id: str) -> bytes | None:
        """Return a piece."""
        blobs = self._runs.getValue((stored_name(run_id),))
        return None if blobs is None else bytes(blobs[0])

    def put_run(self, run_id: str, data: bytes) -> None:
        """Store a piece.

        Raises:
            RejectedError: LIMIT if Spark ends the connection over a large piece. Its process copies a piece several
                times, and says nothing to this one when its memory is used up.
        """
        try:
            self._runs.updateValue((stored_name(run_id),), (data,))
        except (EOFError, ConnectionError) as error:
            if len(data) < _LARGE_BYTES:
                raise
            raise RejectedError(
                "LIMIT",
                f"Spark's process ended the connection when it was given {len(data) >> 20} MiB of states, probably "
                "because its memory is used up. Keep large states in views (ListView, MapView), use more buckets, or "
                "give it more memory (spark.executor.memory, in local mode spark.driver.memory)",
                limit="spark.executor.memory",
            ) from error

    def remove_run(self, run_id: str) -> None:
        """Remove a piece."""
        self._runs.removeKey((stored_name(run_id),))


def stored_name(run_id: str) -> str:
    """Return the name under which a state variable has a piece: the part of its name before the digest of its bytes."""
    return run_id.partition(".")[0]


class RunNames:
    """Names the pieces that a task stores. An epoch that is repeated with the same rows uses the same names again.

    A failed attempt at an epoch may leave files in the checkpoint: a snapshot, or a changelog that the file manager
    does not replace. Spark may then load the files of the failed attempt in place of the repeated one's, and apply
    later changelogs to them. As the names are equal, the manifest of either attempt finds the pieces of the other.

    The bytes of the two attempts may differ, for example if states depend on the order of rows. So a piece of groups is
    stored under a name that does not depend on its bytes. Caches may contain the pieces of both attempts, so the whole
    name, which they use, ends with a digest of the bytes.
    """

    def __init__(self) -> None:
        self._uses: collections.Counter[str] = collections.Counter()

    def __call__(self, data: bytes, identity: bytes) -> str:
        """Return the name of the next piece: unique in its bucket, and never used for other bytes.

        Args:
            data: The bytes of the piece.
            identity: Bytes that identify the piece in its epoch: all of its bytes, or a part of them.
        """
        task = TaskContext.get()
        epoch = None if task is None else task.getLocalProperty(EPOCH)
        if epoch is None:
            return uuid.uuid4().hex
        digest = _digest(identity)
        self._uses[digest] += 1
        name = _digest(f"{epoch} {self._uses[digest]} {digest}".encode())
        return name if identity is data else f"{name}.{_digest(data)}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class BucketOperator(StatefulProcessor, ABC):
    """A stateful operator over buckets. Spark calls it for each bucket that has rows in an epoch, then for timers.

    Args:
        rows: The rows in the blobs of an epoch.
        bounds: The limits of the blocks that they become.
        has_names: Whether a bucket has several manifests, by name, as OVER has.
        trace: For the spans of its epochs; None if there are none.
    """

    _span: Span | None = None
    table_bounds = TableBounds()
    """The limits of the pieces and merges of a bucket."""

    def __init__(
        self, rows: pa.Schema, bounds: BlockBounds, *, has_names: bool, trace: TraceSettings | None = None
    ) -> None:
        self._step = uuid.uuid4().hex
        self.run_names = RunNames()
        self._rows = rows
        self._bounds = bounds
        self._has_names = has_names
        self._trace = trace

    def init(self, handle: Any) -> None:
        """Declare the state variables of a bucket: manifests, and pieces by name."""
        use_local_folders()
        self.run_names = RunNames()
        self._handle = handle
        if self._trace is not None:
            self._span = task_span(self._trace, "over" if self._has_names else "fold")
        if self._has_names:
            self._manifests = handle.getMapState("manifests", _NAME, DATA)
        else:
            self._manifests = handle.getValueState("manifest", DATA)
        self._runs = handle.getMapState("runs", RUN_ID, DATA)

    def store(self, name: str = "") -> BucketStore:
        """Return the storage of a table or log of the bucket."""
        manifests = self._manifests
        if not self._has_names:
            return BucketStore(manifests.get, manifests.update, self._runs)
        return BucketStore(partial(manifests.getValue, (name,)), partial(manifests.updateValue, (name,)), self._runs)

    def storage(self, store: RunStore) -> Storage:
        """Return the storage of a table or log with the cache of this process."""
        return Storage(store, run_cache(), self.table_bounds, self.run_names)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Process the rows of one bucket and epoch."""
        with attempt(self._step), naming_bucket(key[0]):
            # Each partition sends a blob. Small blobs are combined, because each block has a fixed cost.
            blobs = map(rows_of, in_order(rows))
            results = self.arrive(key[0], gather(blobs, self._rows, self._bounds), timerValues)
            yield from results if self._span is None else self._span.within(results)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Process the rows that are due in one bucket."""
        with attempt(self._step), naming_bucket(key[0]):
            results = self.expire(key[0], timerValues, expiredTimerInfo)
            yield from results if self._span is None else self._span.within(results)

    def wake(self, at_us: int, lateness_ms: int = 0) -> None:
        """Register a timer of the bucket, rounded up to milliseconds, the unit of timers."""
        self._handle.registerTimer(-(-at_us // 1000) + lateness_ms)

    def close(self) -> None:
        """End the exchanges at the end of the task."""
        with attempt(self._step):
            self.end()
            if self._span is not None:
                self._span.end()
        freeze_garbage_collector()

    @abstractmethod
    def arrive(self, bucket: int, blocks: Iterator[pa.RecordBatch], timers: Any) -> Iterator[Row]:
        """Yield the results of the blocks of an epoch."""

    @abstractmethod
    def expire(self, bucket: int, timers: Any, timer_info: Any) -> Iterator[Row]:
        """Yield the results of a timer."""

    @abstractmethod
    def check(self, stores: Callable[[str], RunStore]) -> None:
        """Raise RejectedError STATE_MISMATCH unless the query can continue with a bucket's manifests, by name."""

    @abstractmethod
    def end(self) -> None:
        """End the exchanges."""


def blobs_of(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield results as blobs of a limited number of rows."""
    for start in range(0, batch.num_rows, _OUTPUT_ROWS_MAX):
        yield write_batch(batch.slice(start, _OUTPUT_ROWS_MAX))
