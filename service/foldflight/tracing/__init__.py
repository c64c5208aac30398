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
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from foldflight.errors import RejectedError

if TYPE_CHECKING:
    from foldflight.tracing.spans import Tracer

TraceContext = Mapping[str, str]
"""A W3C trace context: `traceparent`, and perhaps `tracestate`."""

SHORT_S: Final = 0.02  # seconds; shorter barriers and folds have no span
_SERVICE: Final = "foldflight"
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?")


@dataclass(frozen=True)
class Traced:
    """The trace settings that a query sends to its tasks.

    Args:
        endpoint: The collector.
        context: The context of the query's span.
    """

    endpoint: str
    context: TraceContext


def check_endpoint(endpoint: str) -> str:
    """Return the URL of a collector, if it is one. Raises ValueError, with what is expected."""
    parts = urlsplit(str(endpoint))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected the URL of a collector that takes OTLP over HTTP, such as http://collector:4318")
    return endpoint


def tracer_of(endpoint: str, service: str = _SERVICE) -> Tracer:
    """Return the tracer of this process for a collector. Raises RejectedError MODULE without OpenTelemetry.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before `service`.
    """
    try:
        from foldflight.tracing.spans import Tracer
    except ImportError as error:
        raise RejectedError(
            "MODULE",
            f"traces are sent to {endpoint}, and the packages of OpenTelemetry are missing here ({error}); install "
            "them on the driver, on the workers and on servers: pip install 'foldflight[otel]'; or leave "
            "otlp_endpoint out",
        ) from None
    return Tracer.of(endpoint, service)


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
