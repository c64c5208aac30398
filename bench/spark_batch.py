"""One query in Spark: ours embedded and remote, beside Spark's own ways to aggregate in Python and its built-in SQL."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.data import ZIPF, Figure, Sizes, lineitem, table
from foldflight.client import Functions, connect

SUITE = "spark"
BUILT_IN = "built-in SQL (no Python)"
EMBEDDED, REMOTE = "foldflight, embedded", "foldflight, remote"
PEERS = ("grouped arrow_udf", "grouped pandas_udf", "applyInArrow")
# Spark calls these once for each group, so with very many groups they do not come to an end in a bench.
TIME_LIMIT_S = 60.0

Query = Callable[[Any], Any]


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each way over the same rows, read from the same Parquet files and written nowhere."""
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:
        for case, keys, data in _cases(sizes):
            frame = spark.read.parquet(str(written(Path(folder), case, data)))
            for way, query in _ways(sizes.url, keys).items():
                consume(query(frame.limit(10_000)))  # starts workers, compiles plans
                seconds = _seconds(spark, query(frame))
                rate = data.num_rows / min(seconds, TIME_LIMIT_S)
                yield Figure(SUITE, case, way, rate, "rows/s", is_limit=seconds >= TIME_LIMIT_S)


def _cases(sizes: Sizes) -> Iterator[tuple[str, tuple[str, ...], pa.Table]]:
    for groups in sizes.groups:
        yield f"{groups:,} groups", ("k",), table(sizes.rows, groups)
    middle = sorted(sizes.groups)[len(sizes.groups) // 2]
    yield f"{middle:,} groups, {ZIPF}", ("k",), table(sizes.rows, middle, keys=ZIPF)
    items = lineitem(sizes.rows)
    yield "TPC-H by flag, status", ("flag", "status"), items
    yield "TPC-H by part", ("part",), items


def written(folder: Path, case: str, data: pa.Table) -> Path:
    """Write the data, a file for each core."""
    path = folder / case.replace(" ", "-").replace(",", "")
    path.mkdir()
    parts = os.cpu_count() or 1
    size = -(-data.num_rows // parts)
    for part in range(parts):
        pq.write_table(data.slice(part * size, size), path / f"{part}.parquet")
    return path


def _seconds(spark: Any, query: Any) -> float:
    """Return the better of two times, one where the first is long; the limit, if the query had to be stopped at it."""
    taken = []
    while len(taken) < 2 and sum(taken) < TIME_LIMIT_S / 4:
        taken.append(_limited(spark, query))
    return min(taken)


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
    """Start Spark on this machine while the block runs."""
    from pyspark.sql import SparkSession

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
        .config("spark.log.level", "FATAL")  # a peer that is stopped at its limit is no error
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .config(map=dict(settings))
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def consume(frame: Any) -> None:
    """Run a query, and write its result nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def _ways(url: str, keys: Sequence[str]) -> dict[str, Query]:
    return {
        BUILT_IN: built_in(*keys),
        EMBEDDED: ours(connect("embedded:examples.weighted_avg"), *keys),
        REMOTE: ours(connect(url), *keys),
        **dict(zip(PEERS, (_arrow_udf(keys), _pandas_udf(keys), _apply(keys)), strict=True)),
    }


def built_in(*keys: str) -> Query:
    """Return the query in SQL."""
    from pyspark.sql import functions as sf

    return lambda frame: frame.groupBy(*keys).agg(sf.expr("CAST(sum(v * w) / sum(w) AS BIGINT)").alias("o"))


def ours(functions: Functions, *keys: str) -> Query:
    """Return the query with our function."""
    from foldflight.spark import group_by

    return lambda frame: group_by(frame, *keys).agg(o=functions["weighted_avg"]("v", "w"))


def _arrow_udf(keys: Sequence[str]) -> Query:
    from pyspark.sql import functions as sf

    def weighted(v, w):  # its annotations tell Spark what it is; they must be classes, not text
        return int(pc.sum(pc.multiply(v, w.cast(pa.int64()))).as_py() / pc.sum(w).as_py())

    weighted.__annotations__ = {"v": pa.Array, "w": pa.Array, "return": int}
    udf = sf.arrow_udf(weighted, "bigint")
    return lambda frame: frame.groupBy(*keys).agg(udf("v", "w").alias("o"))


def _pandas_udf(keys: Sequence[str]) -> Query:
    import pandas as pd
    from pyspark.sql import functions as sf

    def weighted(v, w):
        return int((v * w).sum() / w.sum())

    weighted.__annotations__ = {"v": pd.Series, "w": pd.Series, "return": int}
    udf = sf.pandas_udf(weighted, "bigint")
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
