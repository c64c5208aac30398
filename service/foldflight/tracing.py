"""Traces: the part that needs no OpenTelemetry, which is imported only if an endpoint is configured.

A trace has the spans `query` (the driver plans it), `task` or `epoch` (a task of the engine), `exchange` or, after the
loss of a server, `reopen`, `barrier`, and on the server `fold` and `wait`. There are no spans for rows or frames. An
exchange on a server has at least one `fold` and `wait`. Further ones, and barriers, get a span if they took `SHORT_S`,
because a span costs about as much as a short barrier. The context of a parent travels in `Open.trace_context`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from foldflight.errors import RejectedError
from foldflight.extensions import Extension

TraceContext = Mapping[str, str]
"""A W3C trace context: `traceparent`, and perhaps `tracestate`."""

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

T = TypeVar("T")

SHORT_S: Final = 0.02  # seconds; shorter barriers and folds have no span
_SERVICE: Final = "foldflight"
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?")


@dataclass(frozen=True)
class TraceSettings:
    """The trace settings that a query sends to its tasks.

    Args:
        endpoint: The collector.
        context: The context of the query's span.
    """

    endpoint: str
    context: TraceContext


class Span(Protocol):
    """A span that is the current span while items are produced. As a context manager it records an exception."""

    context: TraceContext

    def end(self) -> None:
        """End the span, and send it. Repeated calls have no effect."""

    def within(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, and make this span the current one while each is produced. Record an error that ends them."""

    def __enter__(self) -> Self: ...

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None: ...


class Tracer(Protocol):
    """Creates spans, and sends them to a collector."""

    @classmethod
    def of(cls, endpoint: str, service: str) -> Tracer:
        """Return the tracer of this process for a collector."""

    def span(
        self,
        name: str,
        parent: TraceContext,
        attributes: Attributes,
        *,
        links: Sequence[Any] = (),
        trace_id: int | None = None,
    ) -> Span:
        """Start a span: the root of `trace_id`, if given; else a child of the current span, or of `parent`."""

    def child_context(self, parent: TraceContext) -> tuple[TraceContext, TraceContext]:
        """Return the context of the current span, or else `parent`, and a new context for a child, for `record`."""

    def record(
        self,
        name: str,
        parent: TraceContext,
        attributes: Attributes,
        began_ns: int,
        ended_ns: int,
        *,
        context: TraceContext | None = None,
        kind: Literal["INTERNAL", "CLIENT", "SERVER"] = "INTERNAL",
        links: Sequence[Any] = (),
        error: BaseException | None = None,
    ) -> None:
        """Record a completed span, independently of the current one. `context`: from `child_context`."""

    def link_to(self, context: TraceContext) -> list[Any]:
        """Return a link to the span of a context, if it has one."""

    def send(self, *, wait: bool = False) -> None:
        """Send completed spans. With `wait`, return when they have been sent, or when that has failed."""

    @classmethod
    def send_all(cls) -> None:
        """Send the spans of all tracers of this process, and return when that is done."""

    def close(self) -> None:
        """Send the remaining spans, and forget the tracer."""


_TRACERS: Final = Extension[type[Tracer]]("tracing")


def check_endpoint(endpoint: str) -> str:
    """Return the URL of a collector, if it is one. Raises ValueError with a sentence about valid URLs."""
    parts = urlsplit(str(endpoint))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected the URL of a collector that takes OTLP over HTTP, such as http://collector:4318")
    return endpoint


def tracer_of(endpoint: str, service: str = _SERVICE) -> Tracer:
    """Return the tracer of this process for a collector. Raises RejectedError MODULE without OpenTelemetry.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before `service`.
    """
    try:
        tracers = _TRACERS.load()
    except ImportError as error:
        raise RejectedError(
            "MODULE",
            f"traces are sent to {endpoint}, and the packages of OpenTelemetry are missing here ({error}); install "
            "them on the driver, on the workers and on servers: pip install 'foldflight[otel]'; or leave "
            "otlp_endpoint out",
        ) from None
    return tracers.of(endpoint, service)


def ids_of(context: TraceContext) -> dict[str, str]:
    """Return `trace_id` and `span_id` of a context for logs and exemplars; nothing if it is not sampled or invalid."""
    match = TRACEPARENT.fullmatch(context.get("traceparent", ""))
    if match is None or not int(match[3], 16) & 1:
        return {}
    return {"trace_id": match[1], "span_id": match[2]}


@contextmanager
def planning(endpoint: str | None, kind: str, functions: Sequence[str]) -> Iterator[TraceContext]:
    """Record the planning of a query (batch, stream, map) as a span, and yield its context; without an endpoint {}."""
    if endpoint is None:
        yield {}
        return
    tracer = tracer_of(endpoint)
    with tracer.span("query", {}, {"foldflight.kind": kind, "foldflight.functions": list(functions)}) as span:
        yield span.context
