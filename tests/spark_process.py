"""Spark as a process of its own, which has jars and settings of its own, and can be killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.maven import jars
from tests.spark_sessions import PROVIDER, ROOT, java_options, local_builder


class SparkProcess:
    """A driver that runs functions of modules, with its session as their first argument."""

    def __init__(self, folder: Path, packages: list[Path], settings: dict[str, str]) -> None:
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_start, initargs=(folder, packages, settings)
        )
        self._pid: int = self._pool.submit(os.getpid).result()

    def ask(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what a function returns, or raise what it raises; BrokenProcessPool, if it kills the process.

        An error of PySpark is a RuntimeError with its text: the pickle of most of them cannot be read, which would
        break the pool and hide the text.
        """
        return self._pool.submit(_run, function, arguments, options).result()

    def close(self) -> None:
        """Kill the driver and its JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def spark_process(folder: Path, lock: Path, settings: dict[str, str] | None = None) -> Iterator[SparkProcess]:
    """Run a driver while the block runs.

    Args:
        folder: For its files.
        lock: The file that locks its jars.
        settings: Settings of its session.
    """
    process = SparkProcess(folder, jars(lock), settings or {})
    try:
        yield process
    finally:
        process.close()


def _start(folder: Path, packages: list[Path], settings: dict[str, str]) -> None:
    from foldflight.spark.java import prepare_local

    os.setsid()  # it is killed with its JVM
    warnings.simplefilter("ignore")
    prepare_local(os.environ)
    before = os.environ.get("PYTHONPATH")  # an older Spark
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "service"), str(ROOT), *([before] if before else [])])
    os.environ["SPARK_SUBMIT_OPTS"] = java_options()
    builder = (
        local_builder(folder)
        .config("spark.jars", ",".join(map(str, packages)))
        .config("spark.sql.session.timeZone", "UTC")
        .config(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    builder.getOrCreate().sparkContext.setLogLevel("OFF")


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return function(SparkSession.getActiveSession(), *arguments, **options)
    except PySparkException as error:
        text = "".join(traceback.format_exception(error))
    raise RuntimeError(text)
