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

from foldflight.spark.worker import at_end
from foldflight.tracing import Span, TraceSettings, tracer_of

TRACEPARENT: Final = "traceparent"
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

T = TypeVar("T")


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
