"""A progress bar for Spark, from the task counts of its status tracker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession


_INTERVAL_S = 0.2


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
