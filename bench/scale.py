"""The ends of the scale, each measured once: `python -m bench.scale CASE`, for docs/explanation/scale.md.

No suite of `python -m bench`: a case takes minutes. Each prints a line of JSON for what it ran and what grew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from bench.spark_batch import consume, session
from examples.different import CountDifferent
from examples.flights_stream import SETTINGS
from foldflight import ListView, connect, udaf
from foldflight.cli.demo import server_process
from foldflight.client import EmbeddedTransport, OpenExchange
from foldflight.client.failover import FailoverExchange
from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.manifest import Storage
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import MemoryStore, StateTable, TableLayout
from foldflight.engine.state.viewtable import table_of
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.errors import FoldflightError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open, Returns
from foldflight.exchange.server_exchange import describe
from foldflight.functions import Call, Registry
from foldflight.functions.types.arrow import concat_batches
from foldflight.spark import group_by, over
from foldflight.spark.errors import error_of
from tests.simulation.functions import functions as simulated_functions
from tests.simulation.running import SimulatedTransport
from tests.simulation.workloads import LIMITS
from tests.simulation.world import World

Record = dict[str, Any]

EPOCHS, EPOCH_ROWS, EPOCH_GROUPS = 100_000, 100, 10_000
SPARK_EPOCHS = 2_000


def machine() -> str:
    """Return the kind of this machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores, {memory / 2**30:.0f} GiB, Python {platform.python_version()}"


def peak_mib() -> int:
    """Return the peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class CountingStore(MemoryStore):
    """A store that counts the bytes that are written to it."""

    written = 0

    def put_run(self, run_id: str, data: bytes) -> None:
        """Add a run."""
        self.written += len(data)
        super().put_run(run_id, data)

    def put_manifest(self, data: bytes) -> None:
        """Replace the manifest."""
        self.written += len(data)
        super().put_manifest(data)


def epochs() -> Iterator[Record]:
    """The state table of one bucket: each epoch opens it, looks up 100 of 10,000 groups, and stores them again."""
    layout = TableLayout(
        keys=pa.schema([("key_0", pa.int64())]), states=pa.schema([pa.field("state_0", pa.binary(), metadata=_CALL)])
    )
    store, cache, chosen = CountingStore(), RunCache(bytes_max=256 << 20), np.random.default_rng(1)
    taken: list[float] = []
    tenth, before = EPOCHS // 10, 0
    for epoch in range(1, EPOCHS + 1):
        groups = np.unique(chosen.integers(0, EPOCH_GROUPS, EPOCH_ROWS))
        keys = pa.RecordBatch.from_arrays([pa.array(groups)], schema=layout.keys)
        start = time.process_time()
        table = StateTable(layout, Storage(store, cache))
        found = table.lookup(keys)
        counts = np.ones(len(groups), np.int64)
        states = pa.array([epoch.to_bytes(32, "big")] * len(groups), pa.binary())
        table.commit(keys, found.live + counts, pa.RecordBatch.from_arrays([states], schema=layout.states))
        taken.append(time.process_time() - start)
        if epoch % tenth == 0:
            part = taken[-tenth:]
            yield {
                "epochs": epoch,
                "median ms of CPU": round(statistics.median(part) * 1e3, 3),
                "p99 ms of CPU": round(float(np.quantile(part, 0.99)) * 1e3, 3),
                "runs": len(store.runs),
                "KiB of runs": sum(map(len, store.runs.values())) // 1024,
                "KiB of the manifest": round(len(store.manifest() or b"") / 1024, 1),
                "KiB written an epoch": round((store.written - before) / 1024 / tenth, 1),
                "peak MiB": peak_mib(),
            }
            before = store.written


def processes() -> Record:
    """Return the peak memory of the processes that this one has started, in MiB: of Java, and of the largest Python."""
    peaks: dict[str, int] = {}
    parents = {os.getpid()}
    for status in sorted(Path("/proc").glob("[0-9]*/status"), key=lambda path: int(path.parent.name)):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:  # it has ended
            continue
        if int(fields["PPid"]) in parents and "VmHWM" in fields:
            parents.add(int(fields["Pid"]))
            name = "java" if fields["Name"].strip() == "java" else "python"
            peaks[name] = max(peaks.get(name, 0), int(fields["VmHWM"].split()[0]) // 1024)
    return {f"peak MiB of {name}": peak for name, peak in sorted(peaks.items())}


def refusal(action: Callable[[], Any]) -> Record:
    """Return the error with which an action must fail."""
    found: FoldflightError | None = None
    try:
        action()
    except FoldflightError as error:
        found = error
    except PySparkException as error:
        found = error_of(error)
        if found is None:
            raise
    return {"refused": None if found is None else str(found)}


class FolderStore:
    """A store of files, so that this process has the memory of the engine only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def manifest(self) -> bytes | None:
        """Return the manifest."""
        return self.run("manifest")

    def put_manifest(self, data: bytes) -> None:
        """Replace the manifest."""
        self.put_run("manifest", data)

    def run(self, run_id: str) -> bytes | None:
        """Return a run."""
        path = self._folder / run_id
        return path.read_bytes() if path.exists() else None

    def put_run(self, run_id: str, data: bytes) -> None:
        """Add a run."""
        path = self._folder / run_id
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(data)

    def remove_run(self, run_id: str) -> None:
        """Remove a run."""
        (self._folder / run_id).unlink()


class Bucket:
    """A stream of one bucket in this process, without Spark: keys and one column of values.

    Args:
        calls: The calls of the query, by the names of their outputs.
        type_: The type of the values.
        functions: The functions of the calls, beside the built-in ones.
        folder: Where the states are. Default: in memory.

    Attributes:
        store: The store of the states.
        values: The last value of the last epoch.
    """

    def __init__(
        self,
        calls: dict[str, Call],
        type_: pa.DataType,
        *,
        functions: Sequence[type] = (),
        folder: Path | None = None,
    ) -> None:
        layout = QueryLayout(
            keys=pa.schema([("key_0", pa.int64())]),
            names=("k",),
            columns=pa.schema([("column_0", type_)]),
            display_names=("v",),
            has_kinds=False,
        )
        transport = connect(list(functions) or "embedded:").transport
        self._query = Query.of(transport, calls, layout, stream=StreamOptions())
        opening = self._query.opening_for(states=True, outputs=True, initial_outputs=True, keeps_views=True)
        self._exchange = GroupedExchange(transport, opening, self._query.layout)
        self._cache = RunCache(bytes_max=256 << 20)
        self.store: CountingStore | FolderStore = CountingStore() if folder is None else FolderStore(folder)
        self.values: list[Any] = []

    def epoch(self, keys: npt.NDArray[np.int64], values: pa.Array, *, times: int = 1) -> float:
        """Run an epoch with n rows, a number of times, and return its seconds of CPU."""
        layout, rows_max = self._query.layout, 1 << 16
        rows = pa.RecordBatch.from_arrays([pa.array(keys), values], schema=layout.rows)
        start = time.process_time()
        storage = Storage(self.store, self._cache)
        table = table_of(TableLayout(keys=layout.keys, states=layout.states), self._query.views, storage)
        blocks = (rows.slice(first, rows_max) for _ in range(times) for first in range(0, rows.num_rows, rows_max))
        _, changes = BucketEpoch(self._exchange, layout, table, is_strict=False).run(blocks)
        self.values = changes.column(changes.num_columns - 1)[-1:].to_pylist()
        return round(time.process_time() - start, 3)

    @property
    def kept(self) -> Record:
        """What the store in memory has."""
        assert isinstance(self.store, CountingStore)
        runs = self.store.runs.values()
        return {"runs": len(runs), "MiB of runs": sum(map(len, runs)) >> 20, "peak MiB": peak_mib()}


def calls() -> Iterator[Record]:
    """One, 100 and 1,000 calls over 100,000 rows of 100 groups, and more than an exchange takes."""
    keys = np.arange(100_000) % 100
    for count in (1, 100, 1_000):
        bucket = Bucket({f"n{number}": Call("sum", ("v",)) for number in range(count)}, pa.int64())
        taken = [bucket.epoch(keys, pa.array(keys)) for _ in range(3)]
        yield {"calls": count, "s of CPU of the epochs": taken, **bucket.kept}
    many = {f"n{number}": Call("sum", ("v",)) for number in range(1_100)}
    yield {"calls": 1_100, **refusal(lambda: Bucket(many, pa.int64()))}


def groups() -> Iterator[Record]:
    """100,000, 1 M and 4 M groups in one bucket: an epoch that makes all, one that changes all, ten of 1,000."""
    for count in (100_000, 1_000_000, 4_000_000):
        bucket = Bucket({"total": Call("sum", ("v",))}, pa.int64())
        every = np.arange(count)
        taken = [bucket.epoch(every, pa.array(every)) for _ in range(2)]
        few = [bucket.epoch(every[:1_000], pa.array(every[:1_000])) for _ in range(10)]
        yield {"groups": count, "s of CPU": taken, "s of CPU for 1,000": statistics.median(few), **bucket.kept}


def text() -> Iterator[Record]:
    """A text of 1 MB and one of 100 MB, and three epochs with a short one, which read the state that has it."""
    for megabytes in (1, 100):
        bucket = Bucket({"top": Call("max", ("v",))}, pa.string())
        values = ["z" * megabytes * 1_000_000, "a", "b", "c"]
        taken = [bucket.epoch(np.zeros(1, np.int64), pa.array([value])) for value in values]
        yield {"MB of the text": megabytes, "s of CPU of the epochs": taken, **bucket.kept}


def stream(spark: Any, folder: Path, query: Callable[[Any], Any], ddl: str, files: Path | None = None) -> list[float]:
    """Run a query over the files of a folder, one an epoch, and return the seconds of each epoch."""
    source = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(files or folder / "input"))
    checkpoint = str(folder / "checkpoint")
    writer = query(source).writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
    return [
        each.durationMs["triggerExecution"] / 1000
        for each in progress(writer.trigger(availableNow=True))
        if each.numInputRows
    ]


def progress(writer: Any, epochs_max: int | None = None) -> Iterator[Any]:
    """Run a query to its end, or until it has run a number of epochs, and give the progress of each epoch.

    On a busy machine Spark gives up a Python worker that takes too long to connect. The query is then started again.
    """
    seen = -1
    is_over = False
    while not is_over:
        running = writer.start()
        try:
            while not is_over:
                is_over = running.awaitTermination(1)  # Spark keeps the progress of the last 100 epochs
                for each in running.recentProgress:
                    if each.batchId > seen:
                        seen = each.batchId
                        yield each
                is_over = is_over or (epochs_max is not None and seen + 1 >= epochs_max)
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        finally:
            running.stop()


def put(folder: Path, epoch: int, rows: pa.Table) -> None:
    """Write the rows of an epoch."""
    (folder / "input").mkdir(exist_ok=True)
    path = folder / "input" / f"{epoch:04}.parquet"
    pq.write_table(rows, path)
    os.utime(path, (epoch + 1, epoch + 1))  # Spark takes files by their time


def state() -> Iterator[Record]:
    """One group that keeps 3 M texts, beside a small one, in a stream on a server with its default bounds."""
    rows = 3_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(folder, 0, pa.table({"k": np.append(np.full(rows, 7), 8), "v": np.char.mod("%d", np.arange(rows + 1))}))
        with server_process(folder / "log") as url, session(SETTINGS) as spark:
            functions = connect(url)

            def query(df: Any) -> Any:
                return group_by(df, "k", buckets=1).agg(n=functions["string_agg"]("v"))

            yield {"rows": rows, **refusal(lambda: stream(spark, folder, query, "k BIGINT, v STRING")), **processes()}


def timed(action: Callable[[], Any]) -> float:
    """Return the seconds that an action takes."""
    start = time.perf_counter()
    action()
    return round(time.perf_counter() - start, 2)


def queries_in_spark(spark: Any, folder: Path, ways: dict[str, Callable[[Any], Any]], ddl: str) -> Iterator[Record]:
    """Plan and run each query over all files of a folder, as a batch and as a stream of an epoch for each file."""
    for way, query in ways.items():
        rows = spark.read.schema(ddl).parquet(str(folder / "input"))
        yield {
            "way": way,
            "s to plan": timed(lambda query=query, rows=rows: query(rows)),
            "s of the batch": timed(lambda query=query, rows=rows: consume(query(rows))),
            "s of the epochs": stream(spark, folder / way, query, ddl, folder / "input"),
            **processes(),
        }


def plan_of(df: Any) -> Any:
    """Return the plan that folds in Python; streams have no other."""
    return "auto" if df.isStreaming else "fold"


def size_of(folder: Path) -> Record:
    """Return the number and the size of the files below a folder. Spark may delete some of them meanwhile."""
    sizes = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return {"files": len(sizes), "KiB of files": sum(sizes) // 1024}


def epochs_in_spark() -> Iterator[Record]:
    """100 rows of 10,000 groups in each of 2,000 epochs, in our aggregate and then in Spark's own."""
    functions = connect("embedded:")
    ways: dict[str, Callable[[Any], Any]] = {
        "fold": lambda df: group_by(df, "k", buckets=1).agg(v=functions["sum"]("v")),
        "Spark's sum": lambda df: df.groupBy("k").sum("v"),
    }
    part = SPARK_EPOCHS // 20
    for way, query in ways.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
            spark.conf.set("spark.sql.shuffle.partitions", "1")
            rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", EPOCH_ROWS).load()
            changed = query(rows.selectExpr(f"pmod(xxhash64(value), {EPOCH_GROUPS}) AS k", "value AS v"))
            writer = changed.writeStream.format("noop").outputMode("update").option("checkpointLocation", name)
            taken: list[int] = []
            for each in progress(writer, SPARK_EPOCHS):
                taken.append(each.durationMs["triggerExecution"])
                if len(taken) % part == 0:
                    yield {
                        "way": way,
                        "epochs": len(taken),
                        "median ms": statistics.median(taken[-part:]),
                        "p99 ms": round(float(np.quantile(taken[-part:], 0.99))),
                        **size_of(Path(name)),
                        **processes(),
                    }


def calls_in_spark() -> Iterator[Record]:
    """1,000 calls over 100,000 rows of 100 groups, in Spark's own aggregate and in ours."""
    functions = connect("embedded:")
    names = [f"n{number}" for number in range(1_000)]
    ways: dict[str, Callable[[Any], Any]] = {
        "Spark's sum": lambda df: df.groupBy("k").agg(*(sf.sum("v").alias(each) for each in names)),
        "fold": lambda df: group_by(df, "k", buckets=1, plan=plan_of(df)).agg(
            **{each: functions["sum"]("v") for each in names}
        ),
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
        keys = np.arange(100_000) % 100
        for epoch in range(3):
            put(Path(name), epoch, pa.table({"k": keys, "v": keys}))
        yield from queries_in_spark(spark, Path(name), ways, "k BIGINT, v BIGINT")


def groups_in_spark() -> Iterator[Record]:
    """1 M and 10 M groups in a batch, in Spark's own aggregate and in ours."""
    functions = connect("embedded:")
    ways: dict[str, Callable[[Any], Any]] = {
        "Spark's sum": lambda df: df.groupBy("k").sum("v"),
        "fold": lambda df: group_by(df, "k", plan="fold").agg(v=functions["sum"]("v")),
    }
    for way, query in ways.items():
        with session(SETTINGS) as spark:
            for count in (1_000_000, 10_000_000):
                rows = spark.range(2 * count).selectExpr(f"id % {count} AS k", "id AS v")
                seconds = timed(lambda query=query, rows=rows: consume(query(rows)))
                yield {"way": way, "groups": count, "s of the batch": seconds, **processes()}


def kept() -> Iterator[Record]:
    """One group that keeps 24 texts of 100 MB, so that its state has more than 2 GiB."""
    bucket = Bucket({"all": Call("string_agg", ("v",))}, pa.string())
    texts = pa.array(["z" * 100_000_000] * 8)
    yield {**refusal(lambda: bucket.epoch(np.zeros(8, np.int64), texts, times=3)), **bucket.kept}


def materialized() -> Iterator[Record]:
    """One group that keeps its rows, texts of 100 MB, two in each epoch, until they have more than 2 GiB."""
    with tempfile.TemporaryDirectory() as name:
        bucket = Bucket({"top": Call("max", ("v",), materialize=True)}, pa.string(), folder=Path(name))
        done: list[float] = []

        def run() -> None:
            for epoch in range(15):
                texts = [chr(ord("a") + 2 * epoch % 26 + each) * 100_000_000 for each in range(2)]
                done.append(bucket.epoch(np.zeros(2, np.int64), pa.array(texts)))

        refused = refusal(run)
        yield {"s of CPU of the epochs": done, **refused, **size_of(Path(name)), "peak MiB": peak_mib()}


def large_states() -> Iterator[Record]:
    """24 groups of one bucket with texts of 100 MB: eight in each of three epochs, then short texts for all of them."""
    with tempfile.TemporaryDirectory() as name:
        bucket = Bucket({"all": Call("string_agg", ("v",))}, pa.string(), folder=Path(name))
        text_ = "z" * 100_000_000
        for first in range(0, 24, 8):
            taken = bucket.epoch(np.arange(first, first + 8), pa.array([text_] * 8))
            yield {"groups": first + 8, "s of CPU": taken, **size_of(Path(name)), "peak MiB": peak_mib()}
        yield {
            **refusal(lambda: bucket.epoch(np.arange(24), pa.array(["a"] * 24))),
            **size_of(Path(name)),
            "peak MiB": peak_mib(),
        }


def columns_in_spark() -> Iterator[Record]:
    """A table of 10,000 columns and 1,000 rows: one call of one column."""
    functions = connect("embedded:")
    width = 10_000
    ways: dict[str, Callable[[Any], Any]] = {
        "Spark's sum": lambda df: df.groupBy("k").sum("c9998"),
        "fold": lambda df: group_by(df, "k", buckets=1, plan=plan_of(df)).agg(n=functions["sum"]("c9998")),
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
        values = np.arange(1_000)
        columns = [f"c{number}" for number in range(width - 1)]
        for epoch in range(3):
            put(Path(name), epoch, pa.table({"k": values % 100} | dict.fromkeys(columns, values)))
        ddl = "k BIGINT, " + ", ".join(f"{column} BIGINT" for column in columns)
        for way, query in ways.items():
            yield from queries_in_spark(spark, Path(name), {way: query}, ddl)


def over_in_spark() -> Iterator[Record]:
    """A window function over a table of 10,000 columns and 1,000 rows, all of which are in the result."""
    functions = connect("embedded:")
    width, window = 10_000, "PARTITION BY k ORDER BY c0 ROWS 9 PRECEDING"
    ways: dict[str, Callable[[Any], Any]] = {
        "Spark's sum": lambda df: df.selectExpr("*", f"sum(c9998) OVER ({window}) AS n"),
        "fold": lambda df: over(df, "k", order_by="c0").agg(n=functions["sum"]("c9998").rows(-9, 0)),
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
        values = np.arange(1_000)
        columns = [f"c{number}" for number in range(width - 1)]
        put(Path(name), 0, pa.table({"k": values % 100} | dict.fromkeys(columns, values)))
        ddl = "k BIGINT, " + ", ".join(f"{column} BIGINT" for column in columns)
        rows = spark.read.schema(ddl).parquet(str(Path(name) / "input"))
        for way, query in ways.items():
            yield {
                "way": way,
                "s to plan": timed(lambda query=query: query(rows)),
                "s of the batch": [timed(lambda query=query: consume(query(rows))) for _ in range(2)],
                **processes(),
            }


def groups_of_a_stream_in_spark() -> Iterator[Record]:
    """1 M and 5 M groups in a stream of Spark: epochs of 500,000 new groups, and then five of 1,000 of them."""
    functions = connect("embedded:")
    ways: dict[str, Callable[[Any], Any]] = {
        "Spark's sum": lambda df: df.groupBy("k").sum("v"),
        "fold": lambda df: group_by(df, "k", buckets=8).agg(v=functions["sum"]("v")),
    }
    part = 500_000
    for count in (1_000_000, 5_000_000):
        for way, query in ways.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
                folder = Path(name)
                for epoch, first in enumerate(range(0, count, part)):
                    keys = np.arange(first, first + part)
                    put(folder, epoch, pa.table({"k": keys, "v": keys}))
                chosen = np.random.default_rng(1)
                for few in range(5):
                    keys = chosen.integers(0, count, 1_000)
                    put(folder, count // part + few, pa.table({"k": keys, "v": keys}))
                taken = stream(spark, folder, query, "k BIGINT, v BIGINT")
                yield {
                    "way": way,
                    "groups": count,
                    "s of the epochs": taken[:-5],
                    "s for 1,000": taken[-5:],
                    **size_of(folder / "checkpoint"),
                    **processes(),
                }


class Texts:
    """Texts, and their length when it was last asked for."""

    length: int
    all: ListView[str]

    def __init__(self) -> None:
        self.length, self.all = 0, ListView()


@udaf(input_types=["STRING"], result_type="BIGINT", name="kept_texts")
class KeptTexts:
    """Keeps texts in a list, and reads all of them at an empty one."""

    def create_accumulator(self) -> Texts:
        """Begin without texts."""
        return Texts()

    def accumulate(self, texts: Texts, text: str) -> None:
        """Keep a text, or read all."""
        if text:
            texts.all.append(text)
        else:
            texts.length = sum(len(each) for each in texts.all)

    def get_value(self, texts: Texts) -> int:
        """Return the length of all texts at the last empty one."""
        return texts.length


def views() -> Iterator[Record]:
    """One group with 2.4 GB of texts in a map and in a list: 60 epochs of 40 MB, and then all items of the list."""
    rows, epochs_ = 40_000, 60
    for function, name in ((CountDifferent, "count_different"), (KeptTexts, "kept_texts")):
        with tempfile.TemporaryDirectory() as folder:
            bucket = Bucket({"n": Call(name, ("v",))}, pa.string(), functions=[function], folder=Path(folder))
            taken = []
            for epoch in range(1, epochs_ + 1):
                texts = pa.array([f"{number:01000d}" for number in range((epoch - 1) * rows, epoch * rows)])
                taken.append(bucket.epoch(np.zeros(rows, np.int64), texts))
                if epoch % 10 == 0:
                    yield {
                        "function": name,
                        "epochs": epoch,
                        "s of CPU": statistics.median(taken[-10:]),
                        "longest": max(taken[-10:]),
                        **size_of(Path(folder)),
                        "peak MiB": peak_mib(),
                    }
            last = bucket.epoch(np.zeros(1, np.int64), pa.array([""]))
            yield {"function": name, "value": bucket.values, "s of CPU": last, "peak MiB": peak_mib()}


def views_in_spark() -> Iterator[Record]:
    """One group with 2.4 GB of texts in a list, in a stream of 60 epochs, and then all items of the list."""
    rows, epochs_ = 40_000, 60
    functions = connect("embedded:bench.scale")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
        folder = Path(name)
        for epoch in range(epochs_):
            texts = [f"{number:01000d}" for number in range(epoch * rows, (epoch + 1) * rows)]
            put(folder, epoch, pa.table({"k": np.zeros(rows, np.int64), "v": texts}))
        put(folder, epochs_, pa.table({"k": np.zeros(1, np.int64), "v": [""]}))
        shown: list[Any] = []

        def query(df: Any) -> Any:
            return group_by(df, "k", buckets=1).agg(n=functions["kept_texts"]("v"))

        source = spark.readStream.schema("k BIGINT, v STRING").option("maxFilesPerTrigger", 1)
        changed = query(source.parquet(str(folder / "input"))).writeStream.outputMode("update")
        writer = changed.foreachBatch(lambda df, _: shown.extend(df.collect()))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        taken = [each.durationMs["triggerExecution"] / 1000 for each in progress(writer) if each.numInputRows]
        yield {
            "s of the epochs": statistics.median(taken[:-1]),
            "longest": max(taken[:-1]),
            "s to read all": taken[-1],
            "value": shown[-1].asDict(),
            **size_of(folder / "checkpoint"),
            **processes(),
        }


def text_in_spark() -> Iterator[Record]:
    """A text of 1 MB and one of 100 MB in a stream, and three epochs with a short one, in Spark's `max` and in ours."""
    functions = connect("embedded:")
    ways: dict[str, Callable[[Any], Any]] = {
        "Spark's max": lambda df: df.groupBy("k").agg(sf.max("v")),
        "fold": lambda df: group_by(df, "k", buckets=1).agg(top=functions["max"]("v")),
    }
    for megabytes in (1, 100):
        for way, query in ways.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
                folder = Path(name)
                for epoch, value in enumerate(["z" * megabytes * 1_000_000, "a", "b", "c"]):
                    put(folder, epoch, pa.table({"k": [7], "v": [value]}))
                taken = stream(spark, folder, query, "k BIGINT, v STRING")
                sizes = size_of(folder / "checkpoint") | processes()
            yield {"way": way, "MB of the text": megabytes, "s of the epochs": taken, **sizes}


def kept_in_spark() -> Iterator[Record]:
    """One group that keeps a text of 60 MB in each epoch of a stream, until its state has more than 2 GiB."""
    functions = connect("embedded:")
    epochs_ = 40
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, session(SETTINGS) as spark:
        folder = Path(name)
        for epoch in range(epochs_):
            put(folder, epoch, pa.table({"k": [7], "v": ["z" * 60_000_000]}))

        def query(df: Any) -> Any:
            return group_by(df, "k", buckets=1).agg(n=functions["string_agg"]("v"))

        refused = refusal(lambda: stream(spark, folder, query, "k BIGINT, v STRING"))
        done = len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))
        yield {"epochs": done, **refused, **size_of(folder / "checkpoint"), **processes()}


class DrainingWorld(World):
    """Three servers, of which one drains about every minute. Nothing else goes wrong.

    Args:
        registry: The functions of the servers.
        until_s: The simulated time after which none drains.
    """

    def __init__(self, registry: Registry, until_s: float) -> None:
        super().__init__(1, registry, registry, LIMITS, servers=3, steps_max=1 << 40, idle_s_max=120.0)
        self._harms, self._rate, self.heals_at_s = ["drain"], 1 / 700, until_s


class Side:
    """An exchange whose groups are loaded and forgotten: that over servers, or the oracle.

    Args:
        exchange: The exchange.
    """

    def __init__(self, exchange: OpenExchange) -> None:
        self.exchange = exchange
        self._states: dict[int, pa.RecordBatch] = {}
        self._loaded: set[int] = set()

    def epoch(self, number: int, rows: pa.RecordBatch, gone: Sequence[int]) -> list[dict[str, Any]]:
        """Run an epoch, forget some groups, and return its results but for pickled states, which may differ."""
        touched = set(rows.column("slot").to_pylist())
        cold = sorted(touched - self._loaded & self._states.keys())
        if cold:
            self.exchange.states(concat_batches([self._states[slot] for slot in cold]))
        self._loaded |= touched
        self.exchange.chunk(rows)
        self.exchange.barrier(number)
        results = self.exchange.results(number).combine_chunks().to_batches()[0]
        names = ["slot", *(name for name in results.schema.names if name.startswith("state_"))]
        for place, slot in enumerate(results.column("slot").to_pylist()):
            self._states[slot] = results.select(names).slice(place, 1)
        self.exchange.forget(pa.array(gone, pa.int32()))
        self._loaded.difference_update(gone)
        shown = [field.name for field in results.schema if field.type != pa.binary()]
        return list(results.select(shown).to_pylist())


def drains() -> Iterator[Record]:
    """A week of one exchange in the simulation, with an epoch each half minute. The oracle compares each of them."""
    day_s, epoch_s, slots = 86_400.0, 30.0, 12
    registry = simulated_functions()
    columns = pa.schema([("slot", pa.int32()), ("v", pa.int64())])
    request = Open(
        calls=(
            Call("digest", ("v",)),
            Call("custom", ("v",)),
            Call("pickled", ("v",)),
            Call("count", ("v",), distinct=True),
        ),
        columns=columns,
        returns=Returns(states=True, outputs=True),
    )
    named = zip(request.calls, describe(request, registry, LIMITS, "plan").fingerprints, strict=True)
    request = replace(request, calls=tuple(replace(call, fingerprint=each) for call, each in named))
    world, bounds, chance = (
        DrainingWorld(registry, 7 * day_s),
        FailoverBounds(replay_bytes_max=15_000),
        np.random.default_rng(1),
    )
    transport = SimulatedTransport(world, registry, bounds)
    oracle = EmbeddedTransport(registry, state_key=b"the key of the oracle, never compared")
    logging.getLogger("foldflight.client").addHandler(logging.NullHandler())
    number, held = 0, 0
    with transport.open(request) as ours, oracle.open(request) as theirs:
        assert isinstance(ours, FailoverExchange)
        sides = Side(ours), Side(theirs)
        for day in range(1, 8):
            while world.now_s() < day * day_s:
                number += 1
                values = [chance.integers(0, slots, 5).astype(np.int32), chance.integers(0, 100, 5)]
                rows = pa.RecordBatch.from_arrays([pa.array(each) for each in values], schema=columns)
                gone = np.flatnonzero(chance.random(slots) < 0.1).tolist()
                found, wanted = (side.epoch(number, rows, gone) for side in sides)
                if found != wanted:
                    raise AssertionError(f"epoch {number}: {found} instead of {wanted}")
                held = max(held, ours.coordinator.retained_bytes)
                world.rest_until(world.now_s() + epoch_s)
            yield {
                "days": day,
                "epochs": number,
                "drains": world.harms["drain"],
                **vars(transport.stats[0]),
                "most bytes held for failover": held,
                "s of CPU": round(time.process_time()),
                "peak MiB": peak_mib(),
            }


_CALL = {b"function": b"count", b"version": b"1", b"fingerprint": b"0"}
CASES: dict[str, Callable[[], Iterator[Record]]] = {
    each.__name__: each
    for each in (
        epochs,
        calls,
        groups,
        text,
        text_in_spark,
        kept,
        materialized,
        large_states,
        views,
        drains,
        state,
        epochs_in_spark,
        calls_in_spark,
        groups_in_spark,
        groups_of_a_stream_in_spark,
        columns_in_spark,
        over_in_spark,
        views_in_spark,
        kept_in_spark,
    )
}


def main() -> None:
    """Run a case, and print a line of JSON for each record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", choices=CASES)
    case = parser.parse_args().case
    print(json.dumps({"case": case, "machine": machine()}), flush=True)
    for record in CASES[case]():
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
