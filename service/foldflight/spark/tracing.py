"""The spans of Spark's tasks.

The parent of a task is the query, or what the job names: its local property `traceparent`, a W3C trace context. An
epoch of a stream is a trace of its own, with a link to the query, because a stream may run for months. Its id is made
of the query's id and the epoch's number, so all tasks and attempts of an epoch share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, TypeVar

from pyspark import TaskContext

from foldflight.tracing import Traced, tracer_of

TRACEPARENT: Final = "traceparent"
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

T = TypeVar("T")


class TaskSpan:
    """The span of a task of a query, which begins now."""

    def __init__(self, traced: Traced, step: str) -> None:
        self._tracer = tracer_of(traced.endpoint)
        context = TaskContext.get()
        attributes: dict[str, Any] = {"foldflight.step": step}
        parent, links, trace_id = traced.context, [], None
        if context is not None:
            attributes |= {
                "spark.stage": context.stageId(),
                "spark.partition": context.partitionId(),
                "spark.attempt": context.attemptNumber(),
            }
            given, query, epoch = map(context.getLocalProperty, (TRACEPARENT, _QUERY_ID, _BATCH_ID))
            if given is not None or epoch is not None:
                links = self._tracer.link_to(traced.context)
            if given is not None:
                parent = {"traceparent": given}
            elif epoch is not None:
                trace_id = int.from_bytes(hashlib.sha256(f"{query}/{epoch}".encode()).digest()[:16], "big")
            if epoch is not None:
                attributes |= {"foldflight.epoch": int(epoch), "spark.query": query}
        name = "task" if context is None or epoch is None else "epoch"
        self._span = self._tracer.span(name, parent, attributes, links=links, trace_id=trace_id)

    def within(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, which are made within the task. After an error the spans are sent before it is raised.

        The driver may end soon after an error, and Spark's workers with it.
        """
        try:
            yield from self._span.within(items)
        except Exception:
            self._span.end()
            self._tracer.send(wait=True)
            raise

    def end(self) -> None:
        """End the task."""
        self._span.end()
        self._tracer.send()


def in_task(traced: Traced, step: str, items: Iterator[T]) -> Iterator[T]:
    """Yield items, which are made within a task of a query."""
    task = TaskSpan(traced, step)
    try:
        with closing(items) as made:  # type: ignore[type-var]
            yield from task.within(made)
    finally:
        task.end()
