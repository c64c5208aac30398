"""OVER: foldflight beside Spark's own window aggregates and Python UDFs in OVER, and the memory of long partitions.

The function is `weighted_avg`, whose rows are retracted as they leave a frame, and beside it `max`, which is merged
from states of parts of a frame. Spark folds each sliding frame anew, or with an option reads it from a tree. Python
UDFs in OVER are called once for each row, in Spark as in PyFlink, so they get a tenth of the rows. PyFlink reads CSV
files, as does foldflight beside it, and of its Python UDAFs only vectorised ones can stand in OVER.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from bench import flink
from bench.data import Figure, Sizes, best_of, table
from bench.environments import python_with
from bench.spark_batch import BUILT_IN, EMBEDDED, REMOTE, TIME_LIMIT_S, Query, consume, seconds_of, session, written
from bench.spark_stream import DDL
from foldflight.client import Functions, connect
from foldflight.engine.over.over_query import FramedCall, OverLayout, OverQuery
from foldflight.engine.over.window_frame_folds import OverFold
from foldflight.functions import Call
from foldflight.functions.query.frame import WindowFrame

SUITE = "over"
TREE = "Spark's segment tree (no Python)"
PEERS = ("arrow_udf OVER", "pandas_udf OVER")
PYFLINK_SQL, PYFLINK_PANDAS = "PyFlink sql OVER", "PyFlink vectorised OVER"
SLIDING, RUNNING = "ROWS 99 PRECEDING", "UNBOUNDED PRECEDING"
WIDTHS, MERGED_WIDTHS = "weighted_avg by width of the frame", "max by width of the frame"
PEAK, MERGED_PEAK = "weighted_avg, peak of a task with one partition", "max, peak of a task with one partition"
FRAMES = (10, 1_000, 100_000)
PARTITIONS, LONG_PARTITIONS = 1_000, 8
# The part of the rows, and of the partitions, that ways get which are called once for each row.
SLOW_SHARE = 10
LENGTHS = (100_000, 1_000_000, 10_000_000)
# The longest partition is this many times the rows of a run.
_LENGTH_FACTOR = 5
_BATCH_ROWS = 1 << 16
_STATUS = Path("/proc/self/status")
_TREE_OPTION = "spark.sql.window.segmentTree.enabled"
_CALLS = {"weighted_avg": ("v", "w"), "max": ("v",)}


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure the memory of partitions of several lengths, frames beside Spark's and PyFlink's, and several widths.

    Raises:
        NotInstalledError: At the end, if PyFlink cannot be installed.
    """
    yield from _peaks(sizes)
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    functions = connect("embedded:examples.weighted_avg")
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:

        def frame_of(name: str, rows: int, partitions: int) -> Any:
            return spark.read.parquet(str(written(Path(folder), name, rows_of(rows, partitions))))

        many = frame_of("many", sizes.rows, PARTITIONS)
        for low, frames in ((-99, SLIDING), (None, RUNNING)):
            ways = {
                BUILT_IN: _built_in(spark, low, tree=False),
                **({TREE: _built_in(spark, low, tree=True)} if low is not None else {}),
                EMBEDDED: ours(functions, "weighted_avg", low),
                REMOTE: ours(connect(sizes.url), "weighted_avg", low),
            }
            yield from _rates(spark, many, sizes.rows, f"{PARTITIONS:,} partitions, {frames}", ways)
        few = sizes.rows // SLOW_SHARE
        slow = frame_of("few", few, PARTITIONS // SLOW_SHARE)
        yield from _rates(spark, slow, few, f"{PARTITIONS:,} partitions, {SLIDING}", _python_peers(-99))
        long = frame_of("long", sizes.rows, LONG_PARTITIONS)
        for case, function in ((WIDTHS, "weighted_avg"), (MERGED_WIDTHS, "max")):
            ways = {width_of(width): ours(functions, function, 1 - width) for width in FRAMES}
            yield from _rates(spark, long, sizes.rows, f"{LONG_PARTITIONS} partitions, {case}", ways)
        yield from _flink(spark, functions, Path(folder), sizes.rows)


def width_of(width: int) -> str:
    """Return the subject of frames of a width."""
    return f"frames of {width:,} rows"


def length_of(rows: int) -> str:
    """Return the subject of a partition of a length."""
    return f"{rows:,} rows"


def rows_of(rows: int, partitions: int) -> pa.Table:
    """Return rows with a key of a partition, two numbers, and an order in which they do not arrive."""
    order = np.random.default_rng(2).permutation(rows)
    return table(rows, partitions).append_column("at", pa.array(order))


def _rates(spark: Any, frame: Any, rows: int, case: str, ways: Mapping[str, Query]) -> Iterator[Figure]:
    for way, seconds in seconds_of(spark, frame, ways).items():
        rate = rows / min(seconds, TIME_LIMIT_S)
        yield Figure(SUITE, case, way, rate, "rows/s", is_limit=seconds >= TIME_LIMIT_S)


def ours(functions: Functions, function: str, low: int | None) -> Query:
    """Return the query with a function of foldflight."""
    from foldflight.spark import over

    call = functions[function](*_CALLS[function]).rows(low, 0)
    return lambda frame: over(frame, "k", order_by="at").agg(o=call)


def _window(low: int | None) -> Any:
    from pyspark.sql import Window

    window = Window.partitionBy("k").orderBy("at")
    return window.rowsBetween(Window.unboundedPreceding if low is None else low, 0)


def _built_in(spark: Any, low: int | None, *, tree: bool) -> Query:
    """Return the query in SQL, with Spark's own way to fold frames."""
    from pyspark.sql import functions as sf

    def query(frame: Any) -> Any:
        spark.conf.set(_TREE_OPTION, str(tree).lower())  # read when the query is executed, which is next
        window = _window(low)
        mean = sf.sum(sf.col("v") * sf.col("w")).over(window) / sf.sum("w").over(window)
        return frame.withColumn("o", mean.cast("bigint"))

    return query


def _python_peers(low: int) -> dict[str, Query]:
    """Return the query in Spark's own ways to aggregate frames in Python."""
    import pandas as pd
    from pyspark.sql import functions as sf

    def by_arrow(v, w):  # Spark needs the annotations, as classes rather than text
        return int(pc.sum(pc.multiply(v, w.cast(pa.int64()))).as_py() / pc.sum(w).as_py())

    def by_pandas(v, w):
        return int((v * w).sum() / w.sum())

    by_arrow.__annotations__ = {"v": pa.Array, "w": pa.Array, "return": int}
    by_pandas.__annotations__ = {"v": pd.Series, "w": pd.Series, "return": int}
    udfs = (sf.arrow_udf(by_arrow, "bigint"), sf.pandas_udf(by_pandas, "bigint"))  # type: ignore[attr-defined,call-overload]

    def query(udf: Any) -> Query:
        return lambda frame: frame.withColumn("o", udf("v", "w").over(_window(low)))

    return {name: query(udf) for name, udf in zip(PEERS, udfs, strict=True)}


def _flink(spark: Any, functions: Functions, folder: Path, rows: int) -> Iterator[Figure]:
    """Measure PyFlink and foldflight over CSV files. The start is left out: it is the time of a tenth of the rows.

    A job is stopped when it takes longer than that by the time limit.
    """
    python = python_with(flink.REQUIREMENT)
    case = f"{PARTITIONS:,} partitions, {SLIDING}, CSV, without the start"

    def file_of(count: int) -> Path:
        path = folder / f"{count}.csv"
        if not path.exists():
            data = rows_of(count, max(PARTITIONS * count // rows, 1))
            csv.write_csv(data, path, csv.WriteOptions(include_header=False))
        return path

    def ours_over(count: int, _limit_s: float) -> float:
        frame = spark.read.schema(f"{DDL}, at BIGINT").csv(str(file_of(count)))
        query = ours(functions, "weighted_avg", -99)(frame)
        consume(query)  # compiles plans
        return best_of(2, lambda: consume(query))

    def of(way: str) -> Callable[[int, float], float]:
        return lambda count, limit_s: flink.run_job(
            python, way, "batch", file_of(count), str(folder), flink.BUNDLES, limit_s
        )

    def figure(subject: str, count: int, seconds: Callable[[int, float], float]) -> Figure:
        few = count // 10
        start = seconds(few, flink.TIME_LIMIT_S)
        is_limit = False
        try:
            taken = seconds(count, start + TIME_LIMIT_S) - start
        except subprocess.TimeoutExpired:
            taken, is_limit = TIME_LIMIT_S, True
        return Figure(SUITE, case, subject, (count - few) / max(taken, 1e-3), "rows/s", is_limit=is_limit)

    yield figure(EMBEDDED, rows, ours_over)
    yield figure(PYFLINK_SQL, rows, of("over sql"))
    yield figure(PYFLINK_PANDAS, rows // SLOW_SHARE, of("over vectorised"))


def _peaks(sizes: Sizes) -> Iterator[Figure]:
    """Measure the memory of tasks with one long partition, each in its own process."""
    if not _STATUS.exists():
        return  # only Linux tells the memory of a process by kind
    for case, function in ((PEAK, "weighted_avg"), (MERGED_PEAK, "max")):
        for rows in LENGTHS:
            if rows > max(_LENGTH_FACTOR * sizes.rows, LENGTHS[0]):
                continue
            found = subprocess.run(
                [sys.executable, "-m", "bench.over", function, str(rows)],
                capture_output=True,
                text=True,
                check=True,
                cwd=Path(__file__).parents[1],
            )
            yield Figure(SUITE, case, length_of(rows), json.loads(found.stdout)["mib"], "MiB")


def _task(function: str) -> OverFold:
    call = Call(function, _CALLS[function])
    rows = pa.schema([("in_0", pa.int64()), ("in_1", pa.int64()), ("in_2", pa.int64()), ("in_3", pa.int32())])
    layout = OverLayout(
        payload=rows,
        names=("k", "at", "v", "w"),
        keys=pa.schema([rows.field("in_0")]),
        key_names=("k",),
        order=pa.schema([rows.field("in_1")]),
        order_names=("at",),
        columns=pa.schema([rows.field("in_2"), rows.field("in_3")]),
        display_names=("v", "w"),
        bounds=pa.schema([]),
    )
    framed = {"o": FramedCall(call, WindowFrame(-99, 0))}
    return OverFold(OverQuery.of(connect("embedded:examples.weighted_avg").transport, framed, layout))


def _batches(task: OverFold, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a partition in order, as Spark sends it."""
    for start in range(0, rows, _BATCH_ROWS):
        order = np.arange(start, min(start + _BATCH_ROWS, rows))
        columns = [np.zeros_like(order), order, order % 1_000, (order % 9 + 1).astype(np.int32)]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=task.query.layout.rows)


def _private_mib() -> float:
    """Return the memory of this process without the files that are mapped into it, which the system may drop."""
    (line,) = [each for each in _STATUS.read_text().splitlines() if each.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


def main() -> None:
    """Fold one partition in this process, and print the largest additional memory after any batch."""
    parser = argparse.ArgumentParser(prog="python -m bench.over")
    parser.add_argument("function", choices=_CALLS)
    parser.add_argument("rows", type=int)
    arguments = parser.parse_args()
    task = _task(arguments.function)
    for _ in task(_batches(task, _BATCH_ROWS)):  # imports and compiles
        pass
    before = _private_mib()
    peak = max(_private_mib() for _ in task(_batches(task, arguments.rows)))
    print(json.dumps({"mib": peak - before}))


if __name__ == "__main__":
    main()
