"""Create OpenTelemetry spans and send them to a collector. Only this module imports OpenTelemetry."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Literal, Self, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from foldflight.errors import FoldflightError
from foldflight.shipping.secrets import masked_text
from foldflight.tracing import TRACEPARENT, Attributes, TraceContext

# The spans that are kept while the collector does not answer, the spans of a request, the deadline of a request, and
# the longest time between requests.
_SPANS_MAX: Final = 2048
_BATCH_MAX: Final = 512
_EXPORT_S_MAX: Final = 3.0
_PAUSE_S: Final = 5.0
# Spans are collected for at least this time before a request. After a request, the sender pauses for 400 times the CPU
# time that it took, so that sending needs at most 1/400 of a CPU, also with many short tasks.
_GATHER_S: Final = 0.1
_REST_FOR_CPU: Final = 400.0
_W3C: Final = TraceContextTextMapPropagator()
_RANDOM: Final = RandomIdGenerator()
_FRAME: Final = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_JAVA_FRAME: Final = re.compile(r"^\s*at ([\w.$<>]+)\(([\w$]+\.java):(\d+)\)", re.MULTILINE)
_RAISED: Final = re.compile(r"([A-Za-z_][\w.]*)(:|$)")
# Libraries that an author's method may have called.
_NOT_THE_AUTHORS: Final = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3[\w.]*)[/\\]")

T = TypeVar("T")


class OtelSpan:
    """A span that is the current span while items are produced. As a context manager it records an exception.

    Args:
        span: The span of OpenTelemetry.
        send: Sends completed spans; see `OtelTracer.send`.
    """

    def __init__(self, span: trace.Span, send: Callable[..., None]) -> None:
        self._span = span
        self._send = send
        self._current = trace.set_span_in_context(span)
        self.context: TraceContext = _headers_of(self._current)

    def end(self) -> None:
        """End the span, and send it. Repeated calls have no effect."""
        if self._span.is_recording():
            self._span.end()
            self._send()

    def within(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, and make this span the current one while each is produced. Record an error that ends them.

        Between items the span is not the current one, because an engine may ask for each in another thread. After an
        error the span is sent before the error is raised, because Spark may soon end the worker.
        """
        while True:
            token = attach(self._current)
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception as error:
                _fail(self._span, _event_of(error))
                self.end()
                self._send(wait=True)
                raise
            finally:
                detach(token)
            yield item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        if isinstance(error, Exception):
            _fail(self._span, _event_of(error))
        self.end()


class OtelTracer:
    """Creates spans, and sends them to a collector.

    The sending thread creates the spans of exchanges after they have ended. During a fold that would cost several times
    as much, because the code of OpenTelemetry is not in the processor's caches.

    Args:
        service: The name of the service, unless the environment of OpenTelemetry has one.
        exporter: Sends spans.
    """

    _known: ClassVar[dict[tuple[int, str, str], OtelTracer]] = {}

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        self._outbox = _Outbox(exporter)
        self._ids = _Ids()
        resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(self._outbox)
        self._tracer = self._provider.get_tracer("foldflight")
        # Such a sampler follows the parent, so `child_context` need not call it, which would take most of its time.
        self._follows_parents = isinstance(self._provider.sampler, ParentBased)

    @classmethod
    def of(cls, endpoint: str, service: str) -> OtelTracer:
        """Return the tracer of this process. PySpark forks its workers, and threads do not survive a fork."""
        key = os.getpid(), endpoint, service
        tracer = cls._known.get(key)
        if tracer is None:
            url = f"{endpoint.rstrip('/')}/v1/traces"
            exporter = OTLPSpanExporter(url, timeout=_EXPORT_S_MAX)
            tracer = cls._known.setdefault(key, cls(service, exporter))
        return tracer

    def span(
        self,
        name: str,
        parent: TraceContext,
        attributes: Attributes,
        *,
        links: Sequence[trace.Link] = (),
        trace_id: int | None = None,
    ) -> OtelSpan:
        """Start a span: the root of `trace_id`, if given; else a child of the current span, or of `parent`."""
        is_within = trace_id is None and trace.get_current_span().get_span_context().is_valid
        self._ids.chosen = trace_id, None
        above = None if is_within else _W3C.extract(parent if trace_id is None else {}, Context())
        return OtelSpan(self._tracer.start_span(name, above, attributes=attributes, links=links), self.send)

    def child_context(self, parent: TraceContext) -> tuple[TraceContext, TraceContext]:
        """Return the context of the current span, or else `parent`, and a new context for a child, for `record`."""
        if trace.get_current_span().get_span_context().is_valid:
            parent = _headers_of(None)
        header = TRACEPARENT.fullmatch(parent.get("traceparent", ""))
        if header is None:
            parent = {}
        trace_id = f"{_RANDOM.generate_trace_id():032x}" if header is None else header[1]
        if header is not None and self._follows_parents:
            flags = header[3]
        else:
            above = _W3C.extract(parent, Context())
            decision = self._provider.sampler.should_sample(above, int(trace_id, 16), "exchange").decision
            flags = f"{decision == Decision.RECORD_AND_SAMPLE:d}"
        return parent, {**parent, "traceparent": f"00-{trace_id}-{_RANDOM.generate_span_id():016x}-0{flags}"}

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
        links: Sequence[trace.Link] = (),
        error: BaseException | None = None,
    ) -> None:
        """Record a completed span, independently of the current one. `context`: from `child_context`."""
        event = None if error is None else _event_of(error)

        def make() -> None:
            ids = () if context is None else context["traceparent"].split("-")[1:3]
            self._ids.chosen = tuple(int(each, 16) for each in ids) or (None, None)
            span = self._tracer.start_span(
                name, _W3C.extract(parent, Context()), trace.SpanKind[kind], attributes, links, start_time=began_ns
            )
            if event is not None:
                _fail(span, event)
            span.end(ended_ns)

        self._outbox.due.append(make)

    def link_to(self, context: TraceContext) -> list[trace.Link]:
        """Return a link to the span of a context, if it has one."""
        span = trace.get_current_span(_W3C.extract(context, Context())).get_span_context()
        return [trace.Link(span)] if span.is_valid else []

    def send(self, *, wait: bool = False) -> None:
        """Send completed spans. With `wait`, return when they have been sent, or when that has failed."""
        if wait:
            self._outbox.force_flush()
        else:
            self._outbox.wake()

    @classmethod
    def send_all(cls) -> None:
        """Send the spans of all tracers of this process, and return when that is done."""
        for (process, *_), tracer in list(cls._known.items()):
            if process == os.getpid():
                tracer.send(wait=True)

    def close(self) -> None:
        """Send the remaining spans, and forget the tracer."""
        self._provider.shutdown()
        for key in [key for key, tracer in self._known.items() if tracer is self]:
            del self._known[key]


class _Ids(threading.local, RandomIdGenerator):
    """Random ids, except for the next span of this thread if `chosen` has its trace and span id."""

    chosen: tuple[int | None, ...] = (None, None)

    def generate_trace_id(self) -> int:
        return self.chosen[0] or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.chosen[1] or super().generate_span_id()


class _Outbox(SpanProcessor):
    """Sends spans in a thread: soon after `wake`, and otherwise every five seconds."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.due: deque[Callable[[], None]] = deque(maxlen=_SPANS_MAX)  # create the spans that have ended
        self._exporter = exporter
        self._spans: deque[ReadableSpan] = deque(maxlen=_SPANS_MAX)
        self._send_lock = threading.Lock()
        self._wake_event = threading.Event()
        self._closed_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foldflight-traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._spans.append(span)

    def wake(self) -> None:
        """Let the thread send soon."""
        self._wake_event.set()

    def force_flush(self, timeout_millis: int = 0) -> bool:  # noqa: ARG002 - the exporter has the deadline
        with self._send_lock:
            while self.due:
                self.due.popleft()()
            while self._spans:
                count = min(len(self._spans), _BATCH_MAX)
                self._exporter.export([self._spans.popleft() for _ in range(count)])
        return True

    def shutdown(self) -> None:
        self._closed_event.set()
        self._wake_event.set()
        self._thread.join(2 * _EXPORT_S_MAX)
        self._exporter.shutdown()

    def _run(self) -> None:
        next_s, is_connected = 0.0, False
        while not self._closed_event.is_set():
            if self._wake_event.wait(_PAUSE_S):
                self._closed_event.wait(max(_GATHER_S, next_s - time.monotonic()))
                self._wake_event.clear()
            began_s, has_spans = time.thread_time(), bool(self.due or self._spans)
            self.force_flush()
            if is_connected:  # the first request is not typical: it opens the connection
                next_s = time.monotonic() + _REST_FOR_CPU * (time.thread_time() - began_s)
            is_connected |= has_spans


def _headers_of(context: Context | None) -> dict[str, str]:
    """Return a context, or the current one, as W3C headers."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, context)
    return headers


def _event_of(error: BaseException) -> dict[str, str | int]:
    """Return the attributes of an error for a span, with the author's file and line for an error of a function.

    The clients of models put keys into their errors, so secrets are masked.
    """
    message = error.message if isinstance(error, FoldflightError) else str(error)
    code = error.code if isinstance(error, FoldflightError) else type(error).__name__
    event: dict[str, str | int] = {
        "error.type": code,
        "exception.type": type(error).__name__,
        "exception.message": masked_text(message),
    }
    if isinstance(error, FoldflightError) and error.trace:
        event |= {**_location_of(error.trace), "exception.stacktrace": masked_text(error.trace)}
    return event


def _fail(span: trace.Span, event: dict[str, str | int]) -> None:
    code = str(event["error.type"])
    span.add_event("exception", {name: value for name, value in event.items() if name != "error.type"})
    span.set_attribute("error.type", code)
    span.set_status(trace.StatusCode.ERROR, f"{code}: {event['exception.message']}")


def _location_of(text: str) -> dict[str, str | int]:
    """Return the type of an exception, and the file and line of the author's code that raised it, from a trace."""
    location: dict[str, str | int] = {}
    frames = [match.groups() for match in _FRAME.finditer(text)]
    if frames:
        authors = [each for each in frames if not _NOT_THE_AUTHORS.search(each[0])]
        path, line, function = (authors or frames)[-1]
        location = {"code.file.path": path, "code.line.number": int(line), "code.function.name": function}
    elif java := _JAVA_FRAME.search(text):
        location = {"code.file.path": java[2], "code.line.number": int(java[3]), "code.function.name": java[1]}
    error_match = _RAISED.match(text.rstrip().splitlines()[-1]) if frames else None
    return location if error_match is None else {**location, "exception.type": error_match[1]}
