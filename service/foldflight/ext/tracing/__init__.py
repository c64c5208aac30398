"""Traces with OpenTelemetry."""

from __future__ import annotations

from foldflight.tracing import Tracer


def provide() -> type[Tracer]:
    """Return the class of tracers. Raises ImportError without the packages of OpenTelemetry."""
    from foldflight.ext.tracing.spans import OtelTracer

    return OtelTracer
