"""The flights of New York in 2013 as a stream of changes, with two continuous aggregations; part of `make demo`.

    python -m examples.flights_stream

Each month's schedule is published a month ahead: a row +I for each flight, with an unknown delay. After the month,
flights that arrived are corrected (-U and +U) and cancelled flights are deleted (-D). Each of two queries keeps a table
of the file flights.duckdb up to date. At the end, both tables must equal what Spark SQL computes over the flights that
took place.
"""

import os
import sys
import tempfile
from pathlib import Path
from threading import Event

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQueryListener  # type: ignore[attr-defined]
from rich.console import Console

from foldflight import connect
from foldflight.cli.flights import write_flights
from foldflight.spark import group_by, tumble, write_table
from foldflight.spark.java import prepare_local
from foldflight.spark.versions.states import FILE_MANAGER

MONTHS = range(13)  # epoch 0 only publishes January
SETTINGS = {
    # The state table needs the first two; docs/reference/spark.md explains the others.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(os.cpu_count()),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
}
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


def changes_of(flights: DataFrame, month: int) -> DataFrame:
    """Return the changes at the end of a month: its flights are corrected, and the next month's are published."""

    def rows(op: str, which: str, arr_delay: str = "CAST(NULL AS INT)") -> DataFrame:
        scheduled = "make_timestamp_ntz(year, month, day, hour, minute, 0) AS scheduled"
        row = ("carrier", "origin", scheduled, "distance", f"{arr_delay} AS arr_delay")
        return flights.where(which).selectExpr(f"'{op}' AS op", *row)

    arrived, cancelled = "arr_delay IS NOT NULL", "dep_time IS NULL"
    return (
        rows("+I", f"month = {month + 1}")
        .union(rows("-U", f"month = {month} AND {arrived}"))
        .union(rows("+U", f"month = {month} AND {arrived}", "arr_delay"))
        .union(rows("-D", f"month = {month} AND {cancelled}"))
    )


def aggregated(changes: DataFrame) -> dict[str, tuple[tuple[str, ...], DataFrame]]:
    """Return the queries by name: the keys and the stream of changes of each table."""
    functions = connect("embedded:examples.weighted_avg")
    weighted_avg, avg, largest, count = (functions[name] for name in ("weighted_avg", "avg", "max", "count"))
    values = {
        "weighted": weighted_avg("arr_delay", "distance").where("arr_delay IS NOT NULL"),
        "mean": avg("arr_delay"),
        "worst": largest("arr_delay"),  # has no retract, so it needs materialize=True
        "flights": count(),
    }
    hour = tumble("scheduled", "1 hour")
    by_carrier = group_by(changes, "carrier", row_kind="op", materialize=True, buckets=4)
    by_hour = group_by(changes, "origin", row_kind="op", materialize=True, window=hour)
    return {
        "by carrier": (("carrier",), by_carrier.agg(**values)),
        "by origin and hour": (("origin", "window_start", "window_end"), by_hour.agg(**values)),
    }


def answers(flights: DataFrame) -> dict[str, DataFrame]:
    """Return the same tables, computed by Spark SQL over the flights that took place."""
    scheduled = sf.expr("make_timestamp_ntz(year, month, day, hour, minute, 0)")
    flown = flights.where("dep_time IS NOT NULL").withColumn("window", sf.window(scheduled, "1 hour"))
    values = (
        sf.expr(
            "CAST(sum(CAST(arr_delay AS BIGINT) * distance) / sum(distance) FILTER (WHERE arr_delay IS NOT NULL)"
            " AS BIGINT) AS weighted"
        ),
        sf.expr("avg(arr_delay) AS mean"),
        sf.expr("max(arr_delay) AS worst"),
        sf.expr("count(*) AS flights"),
    )
    hours = ("origin", sf.col("window.start").alias("window_start"), sf.col("window.end").alias("window_end"))
    return {
        "by carrier": flown.groupBy("carrier").agg(*values),
        "by origin and hour": flown.groupBy(*hours).agg(*values),
    }


def differences(file: Path, table: str, keys: tuple[str, ...], answer: DataFrame) -> tuple[int, int]:
    """Return how many rows a table of the DuckDB file has, and how many differ from those of Spark SQL."""
    with duckdb.connect(str(file), read_only=True) as connection:
        rows = connection.sql(f"FROM {table}").to_arrow_table().to_pylist()
    found = {tuple(row[name] for name in keys): row for row in rows}
    expected = {tuple(row[name] for name in keys): row.asDict() for row in answer.collect()}
    return len(rows), sum(expected.get(key) != found.get(key) for key in expected.keys() | found.keys())


class Progress(StreamingQueryListener):
    """Print the metrics of each epoch, and record when all queries have ended."""

    def __init__(self, console: Console, queries: int):
        self.console, self.running, self.ended = console, queries, Event()

    def onQueryProgress(self, event):
        progress = event.progress
        for figures in progress.observedMetrics.values():
            self.console.print(
                f"{progress.name:<19} {progress.batchId:>5} {figures.rows:>10,} {figures.groups:>9,} "
                f"{progress.batchDuration / 1000:>8.2f} {figures.exchange_ms / 1000:>8.2f} "
                f"{figures.state_bytes / 1e6:>9.1f}"
            )

    def onQueryTerminated(self, event):
        self.running -= 1
        if not self.running:
            self.ended.set()

    def onQueryStarted(self, event):
        """Do nothing: there is no progress yet."""


def run(spark: SparkSession, flights: DataFrame, folder: Path, console: Console, file: Path) -> int:
    """Keep two tables of a DuckDB file up to date with a year of changes; return how many rows differ from Spark SQL's.

    Args:
        folder: An empty folder, for the changes and the checkpoints.
        file: The file. It is written anew, because the queries begin anew.
    """
    source = str(folder / "changes")
    for month in MONTHS:  # one file is one epoch
        changes_of(flights, month).coalesce(1).write.mode("append").parquet(source)
    changes = spark.readStream.schema(spark.read.parquet(source).schema).option("maxFilesPerTrigger", 1).parquet(source)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)

    queries = aggregated(changes)
    tables = {name: name.replace(" ", "_") for name in queries}
    progress = Progress(console, len(queries))
    console.print("query               epoch  rows folded   groups  seconds  folding  MB state", style="bold")
    spark.streams.addListener(progress)
    started = [
        write_table(
            stream,
            f"duckdb://{file.resolve()}?table={tables[name]}",
            keys=keys,
            checkpoint=folder / "checkpoints" / name,
            trigger="available now",
            name=name,
            create=True,
        )
        for name, (keys, stream) in queries.items()
    ]
    try:
        for query in started:
            query.awaitTermination()
        progress.ended.wait(10)
    finally:
        for query in started:
            query.stop()
        spark.streams.removeListener(progress)

    different = 0
    for name, answer in answers(flights).items():
        rows, wrong = differences(file, tables[name], queries[name][0], answer)
        different += wrong
        if wrong:
            console.print(f"{name}: {wrong} of {rows} rows in {file.name} differ from Spark SQL's", style="bold red")
        else:
            console.print(f"{name}: {rows:,} rows in {file.name}, equal to Spark SQL's", style="bold green")
    return different


def main() -> int:
    prepare_local(os.environ)  # finds a Java
    with tempfile.TemporaryDirectory(prefix="foldflight-flights-") as folder:
        data = Path(folder, "flights")
        data.mkdir()
        write_flights(data)
        spark = SparkSession.builder.master("local[*]").config(map={**SETTINGS, **QUIET}).getOrCreate()
        try:
            flights = spark.read.parquet(str(data))
            return 1 if run(spark, flights, Path(folder), Console(), Path("build", "flights.duckdb")) else 0
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(main())
