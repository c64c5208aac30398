"""One query in Spark: ours embedded and remote, beside Spark's own ways to aggregate in Python and its built-in SQL."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.data import Measured, best_of, table
from foldflight.client import Functions, connect

# Spark calls a grouped Python UDF once for each group: beyond so many groups one such run takes minutes.
UDF_GROUPS_MAX = 20_000
BUILT_IN = "built-in SQL (no Python)"


def measure(rows: int, groups: list[int], url: str, times: int = 2) -> Iterator[Measured]:
    """Measure each way over the same rows, read from the same Parquet files and written nowhere."""
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:
        for count in groups:
            path = Path(folder) / str(count)
            path.mkdir()
            data = table(rows, count)
            parts = os.cpu_count() or 1
            for part in range(parts):
                size = -(-rows // parts)
                pq.write_table(data.slice(part * size, size), path / f"{part}.parquet")
            frame = spark.read.parquet(str(path))
            for way, query in _ways(url).items():
                if way.startswith("grouped") and count > UDF_GROUPS_MAX:
                    continue
                _consume(query(frame.limit(10_000)))  # starts workers, compiles plans
                yield Measured(
                    way, count, rows, best_of(times, lambda query=query, frame=frame: _consume(query(frame)))
                )


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
        .config("spark.log.level", "ERROR")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .config(map=dict(settings))
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _ways(url: str) -> dict[str, Callable[[Any], Any]]:
    return {
        BUILT_IN: built_in,
        "foldflight, embedded": ours(connect("embedded:examples.weighted_avg")),
        "foldflight, remote": ours(connect(url)),
        "grouped arrow_udf (vectorised)": _arrow_udf(),
        "grouped pandas_udf (vectorised)": _pandas_udf(),
    }


def built_in(frame: Any) -> Any:
    from pyspark.sql import functions as sf

    return frame.groupBy("k").agg(sf.expr("CAST(sum(v * w) / sum(w) AS BIGINT)").alias("o"))


def ours(functions: Functions) -> Callable[[Any], Any]:
    from foldflight.spark import group_by

    return lambda frame: group_by(frame, "k").agg(o=functions["weighted_avg"]("v", "w"))


def _arrow_udf() -> Callable[[Any], Any]:
    from pyspark.sql import functions as sf

    def weighted(v, w):  # its annotations tell Spark what it is; they must be classes, not text
        return int(pc.sum(pc.multiply(v, w.cast(pa.int64()))).as_py() / pc.sum(w).as_py())

    weighted.__annotations__ = {"v": pa.Array, "w": pa.Array, "return": int}
    udf = sf.arrow_udf(weighted, "bigint")
    return lambda frame: frame.groupBy("k").agg(udf("v", "w").alias("o"))


def _pandas_udf() -> Callable[[Any], Any]:
    import pandas as pd
    from pyspark.sql import functions as sf

    def weighted(v, w):
        return int((v * w).sum() / w.sum())

    weighted.__annotations__ = {"v": pd.Series, "w": pd.Series, "return": int}
    udf = sf.pandas_udf(weighted, "bigint")
    return lambda frame: frame.groupBy("k").agg(udf("v", "w").alias("o"))
