"""Spark's Python worker, which runs the attempts of many tasks, one after the other.

Spark runs a failing task up to `spark.task.maxFailures` times. No Python exception makes it stop earlier. Therefore an
error that the same input would cause again (`FoldflightError.repeats`) is saved in a file on the host, and the next
attempt on this host raises it before it reads a row. On another host the task runs again.

An error is raised again only if the attempt directly before has failed with it. Spark may run a task again that has
succeeded, because its output is lost with an executor; such an attempt runs.

The parent of a task's span is the query, or what the job names: its local property `traceparent`, a W3C trace context.
An epoch of a stream is a trace of its own, with a link to the query, because a stream may run for months. Its id is
made of the query's id and the epoch's number, so all tasks and attempts of an epoch share it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from zlib import crc32

from pyspark import TaskContext

from foldflight import errors
from foldflight.client.exchange import begin_task
from foldflight.engine.keys.row_buffers import keep_files_in
from foldflight.engine.state.runs import private_folder
from foldflight.errors import FoldflightError
from foldflight.spark.versions.sessions import in_daemon
from foldflight.tracing import Span, TraceSettings, tracer_of

T = TypeVar("T")

TRACEPARENT: Final = "traceparent"
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_SUFFIX: Final = ".failed"
_STORED_S: Final = 86_400
_TEXTS: Final = ("code", "message", "function", "row", "trace", "slot")

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


@contextmanager
def attempt(step: str) -> Iterator[None]:
    """Run one attempt of a Spark task; outside a task, do nothing.

    A FoldflightError leaves without the traceback of Spark and of this package. Its `trace` has the stack frames of the
    function.

    Args:
        step: A name for the step that is unique among all steps of all queries.

    Raises:
        FoldflightError: The error of the attempt before on this host, if it would repeat.
    """
    context = TaskContext.get()
    if context is None:
        yield
        return
    # Spreads tasks over the servers: each task tries another server first, and a repeated task the one after it.
    begin_task(crc32(step.encode()) + context.partitionId() + context.attemptNumber(), _scope_of(context, step))
    folder = private_folder()
    path = folder and folder / f"{step}-{context.stageId()}-{context.partitionId()}{_SUFFIX}"
    try:
        if path is not None:
            _raise_stored(path, context.attemptNumber())
        yield
    except FoldflightError as error:
        if path is not None and error.repeats:
            _store(path, error, context.attemptNumber())
        hide_traceback()
        raise


def _scope_of(context: Any, step: str) -> str:
    """Return what a task computes. In a stream, it is the same after a restart of the query, which gets other steps."""
    query, epoch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
    return f"{f'{query} {epoch}' if query and epoch else step} {context.partitionId()}"


class _UnquotedText(str):
    """The text of a key's value, whose repr has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _store(path: Path, error: FoldflightError, number: int) -> None:
    """Write the error of an attempt to a file, and remove old files.

    If the disk is full there is no file, and the task runs again.
    """
    group = None if error.group is None else {key: repr(value) for key, value in error.group.items()}
    content: dict[str, Any] = {name: getattr(error, name) for name in _TEXTS}
    content |= {"class": type(error).__name__, "group": group, "story": list(error.story), "attempt": number}
    draft = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        try:
            draft.write_text(json.dumps(content))
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        for old in path.parent.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if old.stat().st_mtime < time.time() - _STORED_S:
                    old.unlink()


def _raise_stored(path: Path, number: int) -> None:
    """Raise the error of the attempt before attempt `number`. A missing, damaged or other file is ignored.

    A first attempt removes the file: the stage runs again, and its attempts are counted anew.
    """
    try:
        if not number:
            path.unlink()
            return
        content = json.loads(path.read_text())
        if content.pop("attempt") != number - 1:
            return
        cls: type[FoldflightError] = getattr(errors, content.pop("class"))
        group, story = content.pop("group"), tuple(content.pop("story"))
        key_texts = None if group is None else {key: _UnquotedText(value) for key, value in group.items()}
        error = cls(content.pop("code"), content.pop("message"), group=key_texts, story=story, repeats=True, **content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return
    raise error


def task_span(trace: TraceSettings, step: str) -> Span:
    """Return the span of a task of a query, which begins now."""
    tracer = tracer_of(trace.endpoint)
    at_end(tracer.send_all)
    context = TaskContext.get()
    attributes: dict[str, Any] = {"foldflight.step": step}
    if context is None:  # as in Sail
        return tracer.span("task", trace.context, attributes)
    attributes |= {
        "spark.stage": context.stageId(),
        "spark.partition": context.partitionId(),
        "spark.attempt": context.attemptNumber(),
    }
    traceparent, query, epoch = map(context.getLocalProperty, (TRACEPARENT, _QUERY_ID, _BATCH_ID))
    parent = trace.context if traceparent is None else {"traceparent": traceparent}
    links = [] if traceparent is None and epoch is None else tracer.link_to(trace.context)
    name, trace_id = "task", None
    if epoch is not None:
        name = "epoch"
        attributes |= {"foldflight.epoch": int(epoch), "spark.query": query}
        if traceparent is None:
            trace_id = int.from_bytes(hashlib.sha256(f"{query}/{epoch}".encode()).digest()[:16], "big")
    return tracer.span(name, parent, attributes, links=links, trace_id=trace_id)


def in_task(trace: TraceSettings, step: str, items: Iterator[T]) -> Iterator[T]:
    """Yield items, which are made within a task of a query."""
    span = task_span(trace, step)
    try:
        with closing(items) as open_items:  # type: ignore[type-var]
            yield from span.within(open_items)
    finally:
        span.end()
