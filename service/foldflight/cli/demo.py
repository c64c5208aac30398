"""`foldflight demo`: run one query on real data in Spark's workers, on a server, and in Spark SQL.

The query is from docs/how-to/query-dataframes.md. Then the same flights are processed as a stream of changes
(`examples/flights_stream.py`), whose results are tables of a DuckDB file. Every group is compared with the result of
Spark SQL, and any difference makes the demo fail.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from foldflight.cli.flights import write_flights
from foldflight.cli.local_session import errors_as_text, local_spark, spark_progress
from foldflight.client import FlightTransport, Functions, connect
from foldflight.errors import RejectedError
from foldflight.fold.accelerator import HOT_ROWS
from foldflight.fold.mode import WAITS_TO_BE_COMPILED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


EXIT_DIFFERENT = 1
MODULE = "examples.weighted_avg"
STREAM = "examples.flights_stream"
FILE = Path("build", "flights.duckdb")
KEYS = ("origin", "carrier")
_DIFFERENCES_MAX = 10
_START_S = 60.0
_COMPILE_S_MAX = 120.0
_LOOK_S = 0.1
_STOP_S = 15.0

Rows = list[dict[str, Any]]


@click.command()
@click.option(
    "--scale", type=click.IntRange(1), default=1, show_default=True, help="How many copies of the data to use."
)
@click.option("--server", metavar="URL", help="Use the servers at this URL. Default: start one.")
def demo(*, scale: int, server: str | None) -> None:
    """Fold the flights of New York in 2013 with Spark, embedded and on a server, and compare with Spark SQL.

    Example: foldflight demo --scale 2
    """
    if importlib.util.find_spec("pyspark") is None:
        raise RejectedError("SETTINGS", "the demo needs Spark: pip install 'foldflight[demo]'")
    if importlib.util.find_spec(MODULE.partition(".")[0]) is None or importlib.util.find_spec(MODULE) is None:
        raise RejectedError("MODULE", f"cannot find {MODULE}: run the demo in the folder of foldflight's source")
    stream = importlib.import_module(STREAM)
    # SIGTERM raises SystemExit, so that the `with` statements below end the processes that the demo has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console()
    with tempfile.TemporaryDirectory(prefix="foldflight-demo-") as folder:
        data = Path(folder) / "flights"
        data.mkdir()
        rows = write_flights(data, scale)
        console.print(f"[bold]{rows:,} flights[/] of New York in 2013 ({scale} times the data set)")
        server_context = nullcontext(server) if server is not None else server_process(Path(folder) / "server.log")
        with errors_as_text(), local_spark("foldflight demo", stream.SETTINGS) as spark:
            flights = spark.read.parquet(str(data))
            with server_context as url:
                console.print(f"{'folding' if server is not None else 'a server in another process folds'} at {url}")
                different = _compare(console, flights, url, rows)
            console.print("\n[bold]the same flights as a stream of changes[/]: published, corrected, cancelled")
            console.print(f"two tables of {FILE} are kept up to date")
            different += stream.run(spark, flights, Path(folder), console, FILE)
    if different:
        click.get_current_context().exit(EXIT_DIFFERENT)


def _compare(console: Console, flights: DataFrame, url: str, rows: int) -> int:
    """Run the query in three ways, print result and times, and return the number of differences."""
    embedded_functions, remote = connect(f"embedded:{MODULE}"), connect(url)
    ways: list[tuple[str, Callable[[DataFrame, Sequence[str]], DataFrame]]] = [
        ("Spark SQL itself", _built_in),
        ("embedded, in Spark's workers", lambda df, keys: _foldflight_query(embedded_functions, df, keys)),
        ("remote, on the server", lambda df, keys: _foldflight_query(remote, df, keys)),
    ]
    results: list[tuple[str, Rows, Rows, float]] = []
    copies = warm_copies(rows, flights.sparkSession.sparkContext.defaultParallelism)
    console.print("each way runs the query twice, and the second run is timed", style="dim")
    for name, query in ways:
        with spark_progress(flights.sparkSession, console, name):
            by_key, seconds = timed_warm(query, flights, copies, lambda: _await_compiled(url))
            total = _rows(query(flights, ()))
        console.print(f"{name}: {seconds:.2f} s")
        results.append((name, by_key, total, seconds))
    console.print(_result_table(results[0][1]))
    different: list[str] = []
    for name, by_key, total, _ in results[1:]:
        different += [f"{name}: {each}" for each in differences(results[0][1], by_key, KEYS)]
        different += [f"{name}, all flights: {each}" for each in differences(results[0][2], total, ())]
    console.print(_times_table([(name, seconds) for name, _, _, seconds in results], rows))
    for each in different[:_DIFFERENCES_MAX]:
        console.print(each, style="red")
    groups = len(results[0][1]) + 1
    if different:
        console.print(f"{len(different)} differences from Spark SQL", style="bold red")
    else:
        console.print(f"every value of {groups} groups equals Spark SQL's, embedded and remote", style="bold green")
    return len(different)


def warm_copies(rows: int, workers: int) -> int:
    """Return how many copies of the data the first run must fold so that each worker compiles the function.

    A server has it compiled from the first row on, a Spark worker compiles it after `HOT_ROWS` rows. Tasks are not
    distributed evenly over workers, so the first run has twice as many rows as needed.

    Args:
        rows: Rows of one copy.
        workers: Number of Spark workers.
    """
    return math.ceil(2 * HOT_ROWS * workers / rows)


def timed_warm(
    query: Callable[[DataFrame, Sequence[str]], DataFrame],
    flights: DataFrame,
    copies: int,
    await_compiled: Callable[[], None],
) -> tuple[Rows, float]:
    """Run a query by `KEYS` twice. Return the rows of the second run and the seconds that it took.

    The first run, over `copies` of the data, starts the workers and lets Java and foldflight compile their code. The
    second one begins after `await_compiled`.
    """
    query(reduce(lambda all_, more: all_.union(more), [flights] * copies), KEYS).collect()
    await_compiled()
    start = time.perf_counter()
    return _rows(query(flights, KEYS)), time.perf_counter() - start


def _await_compiled(url: str) -> None:
    """Wait until no function waits on the server for the process that compiles it."""
    transport, until_s = FlightTransport([url], deadline_s=_START_S), time.monotonic() + _COMPILE_S_MAX
    while str(WAITS_TO_BE_COMPILED) in [info.folded for info in transport.infos()] and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


def _foldflight_query(functions: Functions, flights: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the result of the query of docs/how-to/query-dataframes.md."""
    from foldflight.spark import group_by

    weighted_avg, count = functions["weighted_avg"], functions["count"]
    return group_by(flights, *keys).agg(
        # Flights that never arrived have no delay, which the class could not multiply.
        delay=weighted_avg("arr_delay", "distance").where("arr_delay IS NOT NULL"),
        late=count().where("arr_delay > 15"),
        planes=count("tailnum").distinct(),
        flights=count(),
    )


def _built_in(flights: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the result of the same query with Spark's own functions."""
    from pyspark.sql import functions as sql

    return flights.groupBy(*keys).agg(
        sql.expr(
            "CAST(sum(CAST(arr_delay AS BIGINT) * distance) FILTER (WHERE arr_delay IS NOT NULL)"
            " / sum(distance) FILTER (WHERE arr_delay IS NOT NULL) AS BIGINT)"
        ).alias("delay"),
        sql.expr("count_if(arr_delay > 15)").alias("late"),
        sql.expr("count(DISTINCT tailnum)").alias("planes"),
        sql.expr("count(*)").alias("flights"),
    )


def differences(expected: Rows, actual: Rows, keys: Sequence[str]) -> list[str]:
    """Return the differences between two results, a line for each value, missing group or extra group.

    Args:
        expected: The rows of one result, one for each group, as mappings of column to value.
        actual: The rows of the other result.
        keys: The grouping columns.
    """
    by_key = {tuple(row[key] for key in keys): row for row in actual}
    texts = []
    if len(by_key) != len(actual):
        texts.append(f"{len(actual) - len(by_key)} groups appear twice")
    for row in expected:
        group = tuple(row[key] for key in keys)
        other = by_key.pop(group, None)
        if other is None:
            texts.append(f"group {group} is missing")
            continue
        texts.extend(
            f"group {group}: {column} is {other.get(column)!r}, expected {value!r}"
            for column, value in row.items()
            if other.get(column) != value
        )
    texts.extend(f"group {group} is not expected" for group in by_key)
    return texts


def _rows(df: DataFrame) -> Rows:
    return [row.asDict() for row in df.collect()]


def _result_table(rows: Rows) -> Table:
    table = Table(title="mean arrival delay in minutes, weighted by distance", title_justify="left")
    for key in KEYS:
        table.add_column(key)
    values = [column for column in rows[0] if column not in KEYS]
    for column in values:
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: tuple(row[key] for key in KEYS)):
        cells = ["-" if row[column] is None else f"{row[column]:,}" for column in values]
        table.add_row(*(row[key] for key in KEYS), *cells)
    return table


def _times_table(times: Sequence[tuple[str, float]], rows: int) -> Table:
    table = Table("folded by", title="the query by origin and carrier", title_justify="left")
    table.add_column("seconds", justify="right")
    table.add_column("flights a second", justify="right")
    for name, seconds in times:
        table.add_row(name, f"{seconds:.2f}", f"{rows / seconds:,.0f}")
    return table


@contextmanager
def server_process(log: Path, *options: str) -> Iterator[str]:
    """Serve the example from another process while the block runs, with options of `serve`, and yield its URL.

    Raises:
        RejectedError: SETTINGS, with the server's log, if it does not start within a minute.
    """
    command = [sys.executable, "-m", "foldflight.cli.main", "serve", MODULE, "--port", "0"]
    command += ["--health-port", "off", "--http-port", "off", "--log-format", "console", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLDFLIGHT_")}
    with log.open("wb") as log_file:
        # In a session of its own, the server does not get Ctrl-C from the terminal. This process ends it.
        process = subprocess.Popen(  # noqa: S603 (our own command)
            command, stdout=subprocess.PIPE, stderr=log_file, env=environment, start_new_session=True
        )
    try:
        yield f"grpc://127.0.0.1:{_ready_line(process, log)['flight']}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _ready_line(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Wait for the server's first line of output, and return it. It has the ports by name."""
    timer = Timer(_START_S, process.kill)  # so that `readline` returns
    timer.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else b""
    finally:
        timer.cancel()
    if not line:
        raise RejectedError("SETTINGS", f"the server did not start:\n{log.read_text(encoding='utf-8')}")
    ready: dict[str, Any] = json.loads(line)
    return ready
