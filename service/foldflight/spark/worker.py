"""The Python worker that Spark runs a task in: it goes from task to task, and collects garbage after each."""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["hide_traceback", "settle"]

_settled = [0]  # how many modules there were


def settle() -> None:
    """Let the garbage collector pass over all that has come to stay: modules, functions, compiled code.

    Call it at the end of each task. After each task Spark's worker looks for garbage among all objects of the process;
    with pyarrow, NumPy and numba loaded that takes 50 ms, longer than many a task, and the next one waits for it.
    """
    if len(sys.modules) > _settled[0]:
        gc.collect()
        gc.freeze()
        _settled[0] = len(sys.modules)


def hide_traceback() -> None:
    """Let this worker send the message of the error that ends it, without the frames of Spark and of this package.

    PySpark's worker reads this variable when it sends an error, and ends then. (The setting
    `spark.sql.execution.pyspark.udf.hideTraceback.enabled` does the same for all functions of a session.)
    """
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
