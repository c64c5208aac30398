"""The attempts of a task: short errors, and no work where a failure would come again.

Spark runs a task that fails up to `spark.task.maxFailures` times, whatever the failure: nothing that Python raises
tells it to stop. So a failure that the same input would cause again (`FoldflightError.repeats`) is kept in a file of
the host, and a later attempt on this host raises it before it reads a row. On another host the task runs again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from foldflight import errors
from foldflight.engine.state.hostcache import private_folder
from foldflight.errors import FoldflightError
from foldflight.spark.worker import hide_traceback

__all__ = ["attempt"]

_SUFFIX: Final = ".failed"
_KEPT_S: Final = 86_400
_TEXTS: Final = ("code", "message", "function", "row", "trace", "slot")


@contextlib.contextmanager
def attempt(step: str) -> Iterator[None]:
    """Run one attempt of a task of Spark; outside a task, do nothing.

    An error of the taxonomy leaves without the frames of Spark and of this package: it has those of the function.

    Args:
        step: A name of the step, different for each step of each query.

    Raises:
        FoldflightError: What an earlier attempt of the same task has raised on this host, where it would come again.
    """
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    if context is None:
        yield
        return
    folder = private_folder()
    path = folder and folder / f"{step}-{context.stageId()}-{context.partitionId()}{_SUFFIX}"
    try:
        if path is not None and context.attemptNumber():
            _raise_kept(path)
        yield
    except FoldflightError as error:
        if path is not None and error.repeats:
            _keep(path, error)
        hide_traceback()
        raise


class _Shown(str):
    """A value of a key as it is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _keep(path: Path, error: FoldflightError) -> None:
    """Write an error to a file, and remove what is old. Without space there is no file, and the task runs again."""
    group = None if error.group is None else {key: repr(value) for key, value in error.group.items()}
    kept: dict[str, Any] = {name: getattr(error, name) for name in _TEXTS}
    kept |= {"class": type(error).__name__, "group": group, "story": list(error.story)}
    draft = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(kept))
        draft.replace(path)
        for old in path.parent.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if old.stat().st_mtime < time.time() - _KEPT_S:
                    old.unlink()


def _raise_kept(path: Path) -> None:
    """Raise the error that a file holds; a file that is not there, or damaged, holds none."""
    try:
        kept = json.loads(path.read_text())
        cls: type[FoldflightError] = getattr(errors, kept.pop("class"))
        group, story = kept.pop("group"), tuple(kept.pop("story"))
        shown = None if group is None else {key: _Shown(value) for key, value in group.items()}
        error = cls(kept.pop("code"), kept.pop("message"), group=shown, story=story, **kept)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return
    raise error
