"""One query in Spark: foldflight lifted, embedded and remote, Spark's ways to aggregate in Python, and built-in SQL.

A `mapInArrow` that only counts its rows shows the upper limit: no aggregation in Python can be faster. All ways run in
one session with the same settings, one after the other in each of several rounds. A figure is the median of the rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.data import ZIPF, Figure, Sizes, lineitem, table
from foldflight.client import Functions, connect

SUITE = "spark"
BUILT_IN = "built-in SQL (no Python)"
LIMIT = "limit of the pipe (counts rows)"
EMBEDDED, REMOTE = "foldflight, embedded", "foldflight, remote"
LIFTED = "foldflight, lifted"
PEERS = ("grouped arrow_udf", "grouped pandas_udf", "applyInArrow")
TIME_LIMIT_S = 60.0
ROUNDS = 3
# Spark needs up to a quarter of a second to plan and start two stages. The data has this many times the rows of other
# suites, so that the start is a small part of the time.
TIMES_ROWS = 5
# A way that is this slow is measured once.
SLOW_S = 3.5
# Of many groups, `PEERS` get a part of the rows in as large a part of the groups: they are called once for each group,
# so their rate is the same, and with all of them each query would take minutes.
PEERS_SHARE = 5
MANY_GROUPS = 100_000
# More than any row of the data has.
ROW_BYTES = 256

Query = Callable[[Any], Any]


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each way over the same rows, read from the same Parquet files. Results are not written."""
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:
        for case, keys, data, few in _cases(sizes):
            peers = dict(zip(PEERS, python_peers(*keys), strict=True))
            yield from rates_of(spark, Path(folder), (SUITE, case), (data, few), (_ways(sizes.url, keys), peers))


def rates_of(
    spark: Any,
    folder: Path,
    place: tuple[str, str],
    data: tuple[pa.Table, pa.Table],
    ways: tuple[Mapping[str, Query], Mapping[str, Query]],
) -> Iterator[Figure]:
    """Measure ways over all rows, and ways that are called once for each group over fewer rows, which may be the same.

    Args:
        spark: The session.
        folder: Where the data is written.
        place: The suite and the case.
        data: All rows, and the fewer rows.
        ways: The ways of both.
    """
    suite, case = place
    frames = [(data[0], ways[0] | ways[1])] if data[0] is data[1] else list(zip(data, ways, strict=True))
    for rows, chosen in frames:
        frame = spark.read.parquet(str(written(folder, f"{case} {rows.num_rows}", rows)))
        for way, seconds in seconds_of(spark, frame, chosen).items():
            rate = rows.num_rows / min(seconds, TIME_LIMIT_S)
            yield Figure(suite, case, way, rate, "rows/s", is_limit=seconds >= TIME_LIMIT_S)


def _cases(sizes: Sizes) -> Iterator[tuple[str, tuple[str, ...], pa.Table, pa.Table]]:
    """Yield each case with its keys, all rows, and the rows for `PEERS`."""
    rows = TIMES_ROWS * sizes.rows
    for groups in sizes.groups:
        data = table(rows, groups)
        yield f"{groups:,} groups", ("k",), data, for_peers(data, groups)
    middle = sorted(sizes.groups)[len(sizes.groups) // 2]
    data = table(rows, middle, keys=ZIPF)
    yield f"{middle:,} groups, {ZIPF}", ("k",), data, data
    items = lineitem(rows)
    yield "TPC-H by flag, status", ("flag", "status"), items, items
    yield "TPC-H by part", ("part",), items, lineitem(rows // PEERS_SHARE)


def for_peers(data: pa.Table, groups: int) -> pa.Table:
    """Return the rows for ways that are called once for each group: fewer rows in fewer groups, if these are many."""
    few = groups >= MANY_GROUPS
    return table(data.num_rows // PEERS_SHARE, groups // PEERS_SHARE) if few else data


def written(folder: Path, case: str, data: pa.Table) -> Path:
    """Write the data, a file for each core."""
    path = folder / case.replace(" ", "-").replace(",", "")
    path.mkdir()
    parts = os.cpu_count() or 1
    size = -(-data.num_rows // parts)
    for part in range(parts):
        pq.write_table(data.slice(part * size, size), path / f"{part}.parquet")
    return path


def seconds_of(spark: Any, frame: Any, ways: Mapping[str, Query]) -> dict[str, float]:
    """Return the median time of each way over alternating rounds; the limit, if a query was stopped at it."""
    for query in ways.values():
        consume(query(frame.limit(10_000)))  # starts workers, compiles plans
    return medians({way: (lambda query=query: _limited(spark, query(frame))) for way, query in ways.items()})


def medians(ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median of what each way returns, its seconds, in alternating rounds. A slow one runs once."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run in ways.items():
            if not taken[way] or taken[way][0] < SLOW_S:
                taken[way].append(run())
    return {way: statistics.median(seconds) for way, seconds in taken.items()}


def _limited(spark: Any, query: Any) -> float:
    tag, stopped = "foldflight-bench", threading.Event()

    def stop() -> None:
        stopped.set()
        spark.interruptTag(tag)

    spark.addTag(tag)
    timer = threading.Timer(TIME_LIMIT_S, stop)
    start = time.perf_counter()
    timer.start()
    try:
        consume(query)
    except Exception:
        if not stopped.is_set():
            raise
        return TIME_LIMIT_S
    finally:
        timer.cancel()
        spark.removeTag(tag)
    return time.perf_counter() - start


@contextmanager
def session(settings: Mapping[str, str]) -> Iterator[Any]:
    """Run a local Spark session for the duration of the block."""
    from pyspark.sql import SparkSession

    from foldflight.spark import configure
    from foldflight.spark.java import prepare_local

    prepare_local(os.environ)
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("foldflight bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "FATAL")  # stopping a query at the time limit is not an error
        .config(map=dict(settings))
        .getOrCreate()
    )
    try:
        configure(spark, row_bytes=ROW_BYTES)
        yield spark
    finally:
        spark.stop()


def consume(frame: Any) -> None:
    """Run a query without writing its result."""
    frame.write.format("noop").mode("overwrite").save()


def _ways(url: str, keys: Sequence[str]) -> dict[str, Query]:
    return {
        BUILT_IN: built_in(*keys),
        LIMIT: _limit(keys),
        LIFTED: ours(connect("embedded:examples.weighted_avg"), *keys, plan="lifted"),
        EMBEDDED: ours(connect("embedded:examples.weighted_avg"), *keys, plan="fold"),
        REMOTE: ours(connect(url), *keys, plan="fold"),
    }


def python_peers(*keys: str) -> tuple[Query, ...]:
    """Return the query in Spark's own ways to aggregate in Python, in the order of `PEERS`."""
    return _arrow_udf(keys), _pandas_udf(keys), _apply(keys)


def built_in(*keys: str) -> Query:
    """Return the query in SQL."""
    from pyspark.sql import functions as sf

    return lambda frame: frame.groupBy(*keys).agg(sf.expr("CAST(sum(v * w) / sum(w) AS BIGINT)").alias("o"))


def _limit(keys: Sequence[str]) -> Query:
    """Return the query that sends the same columns to Python, which only counts them."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    return lambda frame: frame.select(*keys, "v", "w").mapInArrow(count, "rows bigint")


def ours(functions: Functions, *keys: str, **options: Any) -> Query:
    """Return the query with our function, and options of `group_by`."""
    return partial(_grouped, keys, functions, **options)


def _grouped(keys: Sequence[str], functions: Functions, frame: Any, **options: Any) -> Any:
    from foldflight.spark import group_by

    return group_by(frame, *keys, **options).agg(o=functions["weighted_avg"]("v", "w"))


def _arrow_udf(keys: Sequence[str]) -> Query:
    from pyspark.sql import functions as sf

    def weighted(v, w):  # Spark needs the annotations, as classes rather than text
        return int(pc.sum(pc.multiply(v, w.cast(pa.int64()))).as_py() / pc.sum(w).as_py())

    weighted.__annotations__ = {"v": pa.Array, "w": pa.Array, "return": int}
    udf = sf.arrow_udf(weighted, "bigint")  # type: ignore[attr-defined,call-overload]
    return lambda frame: frame.groupBy(*keys).agg(udf("v", "w").alias("o"))


def _pandas_udf(keys: Sequence[str]) -> Query:
    import pandas as pd
    from pyspark.sql import functions as sf

    def weighted(v, w):
        return int((v * w).sum() / w.sum())

    weighted.__annotations__ = {"v": pd.Series, "w": pd.Series, "return": int}
    udf = sf.pandas_udf(weighted, "bigint")  # type: ignore[attr-defined,call-overload]
    return lambda frame: frame.groupBy(*keys).agg(udf("v", "w").alias("o"))


def _apply(keys: Sequence[str]) -> Query:
    def weighted(key, group):
        average = int(pc.sum(pc.multiply(group["v"], group["w"].cast(pa.int64()))).as_py() / pc.sum(group["w"]).as_py())
        return pa.table(
            {**{name: pa.array([value.as_py()]) for name, value in zip(keys, key, strict=True)}, "o": [average]}
        )

    def query(frame: Any) -> Any:
        columns = ", ".join(f"{name} {frame.schema[name].dataType.simpleString()}" for name in keys)
        return frame.groupBy(*keys).applyInArrow(weighted, f"{columns}, o bigint")

    return query
