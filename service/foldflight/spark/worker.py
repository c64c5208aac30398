"""Settings of Spark's Python worker process, which runs many tasks, one after the other."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from pyspark import TaskContext

from foldflight.engine.keys.row_buffers import keep_files_in
from foldflight.spark.versions.sessions import in_daemon

_modules_frozen = [0]  # number of loaded modules at the last freeze


def freeze_garbage_collector() -> None:
    """Exclude permanent objects (modules, functions, compiled code) from garbage collection.

    Call it at the end of each task. Spark's worker runs a full garbage collection after each task. With pyarrow, NumPy
    and numba loaded it takes 50 ms, which is longer than many tasks, and it delays the next task. Outside Spark's
    workers, as in Sail, the process is the user's, and nothing happens.
    """
    if TaskContext.get() is None:
        return
    if len(sys.modules) > _modules_frozen[0]:
        gc.collect()
        gc.freeze()
        _modules_frozen[0] = len(sys.modules)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend the garbage collector while many objects without cycles are made, all of which it would visit again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def hide_traceback() -> None:
    """Make this worker send only the message of its final error, without the stack frames of Spark and of this package.

    PySpark's worker reads this variable when it sends an error, and then ends. The setting
    `spark.sql.execution.pyspark.udf.hideTraceback.enabled` does the same for all functions of a session.
    """
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def use_local_folders() -> None:
    """Write temporary files to the folders for large data that Spark names to this worker (`spark.local.dir`)."""
    keep_files_in([folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder])


@functools.cache
def at_end(finish: Callable[[], None]) -> None:
    """Call a function, once, before this worker leaves. Outside Spark's workers, which have `atexit`, nothing happens.

    PySpark leaves a worker by `os._exit`, which runs nothing, when Spark has closed its socket: after each task, if
    workers are not used again. At the end of the application its daemon kills those that wait, by SIGHUP.
    """
    if not in_daemon():
        return
    leave = os._exit

    def end(status: int) -> NoReturn:
        try:
            finish()
        finally:
            leave(status)

    os._exit = end
