"""A local Spark session for commands: without console output, with errors as text and a progress bar."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

_INTERVAL_S = 0.2  # between two looks at the counts of tasks
_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{{short}}
"""


@contextmanager
def local_spark(
    name: str, settings: Mapping[str, Any] | None = None, *, log_level: str = "error"
) -> Iterator[SparkSession]:
    """Run a local Spark session for the duration of the block. It prints only errors.

    Args:
        name: Name of the application.
        settings: Additional settings of Spark.
        log_level: Lowest level of Spark's log that is printed; `off` for no log.

    Raises:
        RejectedError: SETTINGS, if there is no Java.
    """
    from pyspark.sql import SparkSession

    from foldflight.spark.java import prepare_local

    prepare_local(os.environ)
    with tempfile.TemporaryDirectory(prefix="foldflight-spark-") as folder:
        log, log4j = Path(folder) / "spark.log", Path(folder) / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=log_level), encoding="utf-8")
        builder = (
            SparkSession.builder.master("local[*]")
            .appName(name)
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
            .config("spark.log.level", log_level.upper())
            .config("spark.sql.warehouse.dir", (Path(folder) / "warehouse").as_uri())  # tables end with the session
            .config(map=dict(settings or {}))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
        )
        try:
            with _stderr_to(log):
                spark = builder.getOrCreate()
        except Exception:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
            raise
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect standard error of processes started in the block to a file, because Spark's processes log each step."""
    stderr = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def errors_as_text() -> Iterator[None]:
    """Raise the original error of a Spark worker, without the tracebacks of three processes."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped, unused-ignore]
    from pyspark.errors import PySparkException

    from foldflight.errors import FoldflightError
    from foldflight.spark.errors import error_of

    try:
        yield
    except FoldflightError:  # a refusal of Spark with its place in the text is an exception of PySpark, too
        raise
    except PySparkException as error:
        raise error_of(error) or click.ClickException(str(error)) from None
    except Py4JJavaError as error:  # what PySpark has no class for, such as a file that is damaged
        raise error_of(error) or click.ClickException(str(error.java_exception.toString())) from None


@contextmanager
def spark_progress(spark: SparkSession, console: Console, name: str) -> Iterator[None]:
    """Show the numbers of finished and known tasks of Spark while the block runs.

    Nothing is shown if the output is not a terminal.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    done_event = threading.Event()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=None)
        arguments = (spark.sparkContext.statusTracker(), progress, bar, done_event)
        watcher = threading.Thread(target=_watch, args=arguments, name="foldflight-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done_event.set()
            watcher.join()


class StageCounts:
    """Counts of finished and known tasks over all stages. A stage that is no longer active has finished its tasks."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[int, int]] = {}

    def see(self, active: dict[int, tuple[int, int]]) -> tuple[int, int]:
        """Update the counts with (done, known) tasks of each active stage, and return (done, known) of all stages."""
        for stage, (_, known_count) in self._tasks.items():
            self._tasks[stage] = (known_count, known_count)
        self._tasks.update(active)
        return sum(done_count for done_count, _ in self._tasks.values()), sum(
            known_count for _, known_count in self._tasks.values()
        )


def _watch(tracker: StatusTracker, progress: Progress, bar: TaskID, done_event: threading.Event) -> None:
    counts = StageCounts()
    while not done_event.wait(_INTERVAL_S):
        infos = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
        active = {stage: (info.numCompletedTasks, info.numTasks) for stage, info in infos.items() if info is not None}
        done_count, known_count = counts.see(active)
        if known_count:
            progress.update(bar, completed=done_count, total=known_count)
