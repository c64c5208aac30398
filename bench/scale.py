"""The ends of the scale, each measured once: `python -m bench.scale CASE`, for docs/explanation/scale.md.

No suite of `python -m bench`: a case takes minutes. Each prints a line of JSON for what it ran and what grew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from bench.spark_batch import consume, session
from examples.flights_stream import SETTINGS
from foldflight import connect
from foldflight.cli.demo import server_process
from foldflight.engine.keys.grouped import GroupedExchange
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.storage import Storage
from foldflight.engine.state.table import MemoryStore, StateTable, TableLayout
from foldflight.engine.state.viewtable import table_of
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.errors import FoldflightError
from foldflight.functions import Call
from foldflight.spark import group_by
from foldflight.spark.errors import error_of

Record = dict[str, Any]

EPOCHS, EPOCH_ROWS, EPOCH_GROUPS = 100_000, 100, 10_000


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


class Bucket:
    """A stream of one bucket in this process, without Spark: keys and one column of values.

    Args:
        calls: The calls of the query, by the names of their outputs.
        type_: The type of the values.
    """

    def __init__(self, calls: dict[str, Call], type_: pa.DataType) -> None:
        layout = QueryLayout(
            keys=pa.schema([("key_0", pa.int64())]),
            names=("k",),
            columns=pa.schema([("column_0", type_)]),
            display_names=("v",),
            has_kinds=False,
        )
        transport = connect("embedded:").transport
        self._query = Query.of(transport, calls, layout, stream=StreamOptions())
        opening = self._query.opening_for(states=True, outputs=True, initial_outputs=True, keeps_views=True)
        self._exchange = GroupedExchange(transport, opening, self._query.layout)
        self._cache = RunCache(bytes_max=256 << 20)
        self.store = CountingStore()

    def epoch(self, keys: npt.NDArray[np.int64], values: pa.Array) -> float:
        """Run an epoch with n rows, and return its seconds of CPU."""
        layout, rows_max = self._query.layout, 1 << 16
        rows = pa.RecordBatch.from_arrays([pa.array(keys), values], schema=layout.rows)
        start = time.process_time()
        storage = Storage(self.store, self._cache)
        table = table_of(TableLayout(keys=layout.keys, states=layout.states), self._query.views, storage)
        blocks = (rows.slice(first, rows_max) for first in range(0, rows.num_rows, rows_max))
        BucketEpoch(self._exchange, layout, table, is_strict=False).run(blocks)
        return round(time.process_time() - start, 3)

    @property
    def kept(self) -> Record:
        """What the store has."""
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
    """100,000 and 1 M groups in one bucket: an epoch that makes them, one that has all, and ten that have 1,000."""
    for count in (100_000, 1_000_000):
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


def progress(writer: Any) -> Iterator[Any]:
    """Run a query to its end, and give the progress of each of its epochs.

    On a busy machine Spark gives up a Python worker that takes too long to connect. The query is then started again.
    """
    is_over = False
    while not is_over:
        running = writer.start()
        try:
            running.awaitTermination()
            is_over = True
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        yield from running.recentProgress


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
    """One group that keeps texts of 100 MB in the process that folds, until its state has more than 2 GiB."""
    bucket = Bucket({"all": Call("string_agg", ("v",))}, pa.string())
    text_ = "z" * 100_000_000

    def fold() -> None:
        for _ in range(3):
            bucket.epoch(np.zeros(8, np.int64), pa.array([text_] * 8))

    yield {**refusal(fold), **bucket.kept}


_CALL = {b"function": b"count", b"version": b"1", b"fingerprint": b"0"}
CASES: dict[str, Callable[[], Iterator[Record]]] = {
    each.__name__: each
    for each in (
        epochs,
        calls,
        groups,
        text,
        kept,
        state,
        calls_in_spark,
        groups_in_spark,
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
