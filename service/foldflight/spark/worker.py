"""The Python worker that Spark runs a task in: it goes from task to task, and collects garbage after each."""

from __future__ import annotations

import gc
import sys

__all__ = ["settle"]

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
