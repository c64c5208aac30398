"""Scalar functions in Spark: foldflight interpreted, vectorised and compiled, compared with Spark's Python UDFs.

Each way adds columns to the same rows, which are read from the same Parquet files and not written. In the cases with
three functions, each takes the result of another. arrow-udf's server, and PyFlink over CSV files, are measured if their
environments can be installed (bench/environments.py).
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
from pyarrow import csv

from bench import flink
from bench.data import Figure, Sizes, best_of, table
from bench.environments import NotInstalledError, arrow_udf_server, python_with
from bench.spark_batch import consume, session, written
from bench.spark_stream import DDL
from foldflight.client import Functions, connect
from foldflight.functions import udf
from foldflight.server.run.lifecycle import serving

SUITE = "mapping"
SPARK_UDF, SPARK_ARROW, SPARK_PANDAS = "udf(useArrow=True)", "arrow_udf", "pandas_udf"
INTERPRETED, COMPILED, VECTORISED = "foldflight, interpreted", "foldflight, compiled", "foldflight, vectorised"
REMOTE = "foldflight, interpreted, remote"
THREE, SPARK_THREE = "foldflight, one program, interpreted", "three udf(useArrow=True)"
THREE_COMPILED = "foldflight, one program, compiled"
EXTERNAL = "external function"
ARROW_UDF_SERVER, OUR_DOOR = "arrow-udf's server", "foldflight, the same stream"
PYFLINK = {"PyFlink udf": "scalar", 'PyFlink udf(func_type="pandas")': "scalar pandas"}
_REPEATS = 2


@udf(compile=False, name="scored")
def scored(v: int, w: int) -> int:
    return v * w + 7


@udf(compile=True, name="scored_compiled")
def scored_compiled(v: int, w: int) -> int:
    return v * w + 7


@udf(vectorised="arrow", input_types=["BIGINT", "INT"], result_type="BIGINT")
def scored_columns(v, w):
    return pc.add(pc.multiply(v, w.cast(pa.int64())), 7)


@udf(compile=False)
def halved(v: int) -> int:
    return v // 2


@udf(compile=True)
def halved_compiled(v: int) -> int:
    return v // 2


FUNCTIONS = (scored, scored_compiled, scored_columns, halved, halved_compiled)


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure one function in each way, then three nested functions."""
    data = table(sizes.rows, 1000)
    embedded = connect(FUNCTIONS)
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session({}) as spark:
        frame = spark.read.parquet(str(written(Path(folder), "mapping", data)))
        with serving(*FUNCTIONS) as server:
            ways = {"one function": _ways(embedded, connect(server.url)), "three functions": _three(embedded)}
            for case, each in ways.items():
                for query in each.values():
                    consume(query(frame.limit(10_000)))
                # In turns, so that what else the machine does meets all of them.
                taken: dict[str, list[float]] = {name: [] for name in each}
                for _ in range(_REPEATS):
                    for name, query in each.items():
                        taken[name].append(_timed(query, frame))
                for name, seconds in taken.items():
                    yield Figure(SUITE, case, name, data.num_rows / min(seconds), "rows/s")
            missing = []
            for more in (_external(server.flight.port, data), _flink(spark, embedded, Path(folder), sizes.rows)):
                try:
                    yield from more
                except NotInstalledError as error:
                    missing.append(str(error))
    if missing:
        raise NotInstalledError("; ".join(missing))


def _timed(query: Callable[[Any], Any], frame: Any) -> float:
    start = time.perf_counter()
    consume(query(frame))
    return time.perf_counter() - start


def _ways(embedded: Functions, remote: Functions) -> dict[str, Callable[[Any], Any]]:
    import pandas as pd
    from pyspark.sql import functions as sf

    from foldflight.spark import with_columns

    def plain(v, w):
        return v * w + 7

    def arrow(v, w):
        return pc.add(pc.multiply(v, w.cast(pa.int64())), 7)

    def pandas(v, w):
        return v * w + 7

    arrow.__annotations__ = {"v": pa.Array, "w": pa.Array, "return": pa.Array}
    pandas.__annotations__ = {"v": pd.Series, "w": pd.Series, "return": pd.Series}
    theirs = {
        SPARK_UDF: sf.udf(plain, "bigint", useArrow=True),
        SPARK_PANDAS: sf.pandas_udf(pandas, "bigint"),  # type: ignore[attr-defined,call-overload]
        SPARK_ARROW: sf.arrow_udf(arrow, "bigint"),  # type: ignore[attr-defined,call-overload]
    }
    ours = {
        INTERPRETED: embedded["scored"],
        COMPILED: embedded["scored_compiled"],
        VECTORISED: embedded["scored_columns"],
        REMOTE: remote["scored"],
    }
    return {
        **{name: (lambda frame, made=made: frame.select(made("v", "w"))) for name, made in theirs.items()},
        **{
            name: (lambda frame, function=function: with_columns(frame, o=function("v", "w")).select("o"))
            for name, function in ours.items()
        },
    }


def _three(embedded: Functions) -> dict[str, Callable[[Any], Any]]:
    from pyspark.sql import functions as sf

    from foldflight.spark import with_columns

    first = sf.udf(lambda v, w: v * w + 7, "bigint", useArrow=True)
    second = sf.udf(lambda v: v // 2, "bigint", useArrow=True)

    def theirs(frame: Any) -> Any:
        return frame.select(first(second("v"), "w").alias("a"), second("v").alias("b"), first("v", "w").alias("c"))

    def ours(scored: Any, halved: Any, frame: Any) -> Any:
        uses = {"a": scored(halved("v"), "w"), "b": halved("v"), "c": scored("v", "w")}
        return with_columns(frame, **uses).select("a", "b", "c")

    return {
        SPARK_THREE: theirs,
        THREE: functools.partial(ours, embedded["scored"], embedded["halved"]),
        THREE_COMPILED: functools.partial(ours, embedded["scored_compiled"], embedded["halved_compiled"]),
    }


def _external(port: int, data: pa.Table) -> Iterator[Figure]:
    """Measure the protocol of arrow-udf on foldflight's server, and on arrow-udf's server."""
    # Chunks of 1,024 rows, as RisingWave sends them.
    batches = data.select(["v", "w"]).slice(0, 200_000).combine_chunks().to_batches(max_chunksize=1024)
    rows = sum(batch.num_rows for batch in batches)

    def rate(port: int) -> float:
        with fl.connect(f"grpc://127.0.0.1:{port}") as client:
            return rows / best_of(_REPEATS, functools.partial(_exchange, client, batches))

    yield Figure(SUITE, EXTERNAL, OUR_DOOR, rate(port), "rows/s")
    with arrow_udf_server() as theirs:
        yield Figure(SUITE, EXTERNAL, ARROW_UDF_SERVER, rate(theirs), "rows/s")


def _exchange(client: Any, batches: list[pa.RecordBatch]) -> None:
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_path("scored"))
    with writer:
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
            reader.read_chunk()
        writer.done_writing()


def _flink(spark: Any, embedded: Functions, folder: Path, rows: int) -> Iterator[Figure]:
    """Measure PyFlink and foldflight over CSV files. The start is left out: it is the time of a tenth of the rows."""
    from foldflight.spark import with_columns

    python = python_with(flink.REQUIREMENT)
    files = {size: folder / f"{size}.csv" for size in (rows // 10, rows)}
    for size, file in files.items():
        csv.write_csv(table(size, 1000), file, csv.WriteOptions(include_header=False))
    few, many = files

    def figure(subject: str, seconds: dict[int, float]) -> Figure:
        rate = (many - few) / max(seconds[many] - seconds[few], 1e-3)
        return Figure(SUITE, "one function, CSV, without the start", subject, rate, "rows/s")

    frames = {size: spark.read.schema(DDL).csv(str(file)) for size, file in files.items()}
    for subject, name in ((INTERPRETED, "scored"), (COMPILED, "scored_compiled"), (VECTORISED, "scored_columns")):
        queries = {
            size: with_columns(frame, o=embedded[name]("v", "w")).select("k", "o") for size, frame in frames.items()
        }
        consume(queries[few])
        yield figure(
            subject, {size: best_of(_REPEATS, functools.partial(consume, each)) for size, each in queries.items()}
        )
    for subject, way in PYFLINK.items():
        yield figure(
            subject,
            {
                size: flink.run_job(python, way, "streaming", file, str(folder), flink.BUNDLES)
                for size, file in files.items()
            },
        )
