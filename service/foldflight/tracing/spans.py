"""Spans of OpenTelemetry and their way to a collector. Only this module imports OpenTelemetry."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from foldflight.tracing import TRACEPARENT, TraceContext

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

# Spans that are kept while the collector does not answer, and how long it may take.
_SPANS_MAX: Final = 2048
_BATCH_MAX: Final = 512
_EXPORT_S_MAX: Final = 3.0
_PAUSE_S: Final = 5.0
# How long spans are gathered at least, and how long there is no other request for each second of CPU that one took:
# sending takes at most a 400th of a CPU, also for many short tasks.
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


class Span:
    """A span that is the current one while items are made. As a context manager it records the error that leaves.

    Args:
        span: The span of OpenTelemetry.
        send: Sends the spans that have ended; see `Tracer.send`.
    """

    def __init__(self, span: trace.Span, send: Callable[..., None]) -> None:
        self._span = span
        self._send = send
        self._current = trace.set_span_in_context(span)
        self.context = _written(self._current)

    def end(self) -> None:
        """End the span, and send it. Repeated calls have no effect."""
        if self._span.is_recording():
            self._span.end()
            self._send()

    def within(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items, each of which is made with this span as the current one; record the error that ends them.

        An engine may ask for each item in another thread, so the span is not the current one between them. After an
        error the span is sent before it is raised: the driver may end soon, and Spark's workers with it.
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


class Tracer:
    """Makes spans, and sends them to a collector.

    A span of an exchange is made when it has ended, by the thread that sends it: between the rows of a fold that costs
    several times as much, because nothing of OpenTelemetry is in the caches of the processor.

    Args:
        service: The name of the service, unless the environment of OpenTelemetry has one.
        exporter: Sends spans.
    """

    _known: ClassVar[dict[tuple[int, str, str], Tracer]] = {}

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        self._outbox = _Outbox(exporter)
        self._ids = _Ids()
        resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(self._outbox)
        self._tracer = self._provider.get_tracer("foldflight")
        # It need not be asked for a span with a parent, which takes several times as long as the rest of `below`.
        self._follows_parents = isinstance(self._provider.sampler, ParentBased)

    @classmethod
    def of(cls, endpoint: str, service: str) -> Tracer:
        """Return the tracer of this process. PySpark forks its workers, and threads do not survive a fork."""
        key = os.getpid(), endpoint, service
        known = cls._known.get(key)
        if known is None:
            url = f"{endpoint.rstrip('/')}/v1/traces"
            exporter = OTLPSpanExporter(url, timeout=_EXPORT_S_MAX)
            known = cls._known.setdefault(key, cls(service, exporter))
        return known

    def span(
        self,
        name: str,
        parent: TraceContext,
        attributes: Attributes,
        *,
        links: Sequence[trace.Link] = (),
        trace_id: int | None = None,
    ) -> Span:
        """Start a span: with a trace id at the head of that trace, else below the current span, or else its parent."""
        is_within = trace_id is None and trace.get_current_span().get_span_context().is_valid
        self._ids.given = trace_id, None
        above = None if is_within else _W3C.extract(parent if trace_id is None else {}, Context())
        return Span(self._tracer.start_span(name, above, attributes=attributes, links=links), self.send)

    def below(self, parent: TraceContext) -> tuple[TraceContext, TraceContext]:
        """Return the context of the current span, or else the parent, and that of a span below, for `past`."""
        if trace.get_current_span().get_span_context().is_valid:
            parent = _written(None)
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

    def past(
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
        """Record a span that has ended, whatever the current one is. `below` may have made its context."""
        event = None if error is None else _event_of(error)

        def make() -> None:
            ids = () if context is None else context["traceparent"].split("-")[1:3]
            self._ids.given = tuple(int(each, 16) for each in ids) or (None, None)
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
        """Send the spans that have ended. With `wait`, return when they are sent, or when that fails."""
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
    """Random ids, except those of a trace and span that this thread has given for the span that it starts next."""

    given: tuple[int | None, ...] = (None, None)

    def generate_trace_id(self) -> int:
        return self.given[0] or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.given[1] or super().generate_span_id()


class _Outbox(SpanProcessor):
    """Sends spans in a thread: soon when it is told to, and otherwise every five seconds."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.due: deque[Callable[[], None]] = deque(maxlen=_SPANS_MAX)  # make spans that have ended
        self._exporter = exporter
        self._spans: deque[ReadableSpan] = deque(maxlen=_SPANS_MAX)
        self._sending = threading.Lock()
        self._told = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foldflight-traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._spans.append(span)

    def wake(self) -> None:
        """Send soon."""
        self._told.set()

    def force_flush(self, timeout_millis: int = 0) -> bool:  # noqa: ARG002 - the exporter has the deadline
        with self._sending:
            while self.due:
                self.due.popleft()()
            while self._spans:
                count = min(len(self._spans), _BATCH_MAX)
                self._exporter.export([self._spans.popleft() for _ in range(count)])
        return True

    def shutdown(self) -> None:
        self._closed.set()
        self._told.set()
        self._thread.join(2 * _EXPORT_S_MAX)
        self._exporter.shutdown()

    def _run(self) -> None:
        next_s, is_connected = 0.0, False
        while not self._closed.is_set():
            if self._told.wait(_PAUSE_S):
                self._closed.wait(max(_GATHER_S, next_s - time.monotonic()))
                self._told.clear()
            began_s, has_spans = time.thread_time(), bool(self.due or self._spans)
            self.force_flush()
            if is_connected:  # the first request takes many times as long as the next ones
                next_s = time.monotonic() + _REST_FOR_CPU * (time.thread_time() - began_s)
            is_connected |= has_spans


def _written(context: Context | None) -> dict[str, str]:
    """Return a context, or the current one, as it is sent."""
    written: dict[str, str] = {}
    _W3C.inject(written, context)
    return written


def _event_of(error: BaseException) -> dict[str, str | int]:
    """Return what a span tells of an error; for one of a function, the file and line of its author, too."""
    said = error.message if isinstance(error, FoldflightError) else str(error)
    code = error.code if isinstance(error, FoldflightError) else type(error).__name__
    event: dict[str, str | int] = {
        "error.type": code,
        "exception.type": type(error).__name__,
        "exception.message": said,
    }
    if isinstance(error, FoldflightError) and error.trace:
        event |= {**_location_of(error.trace), "exception.stacktrace": error.trace}
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
        own = [each for each in frames if not _NOT_THE_AUTHORS.search(each[0])]
        path, line, function = (own or frames)[-1]
        location = {"code.file.path": path, "code.line.number": int(line), "code.function.name": function}
    elif java := _JAVA_FRAME.search(text):
        location = {"code.file.path": java[2], "code.line.number": int(java[3]), "code.function.name": java[1]}
    raised = _RAISED.match(text.rstrip().splitlines()[-1]) if frames else None
    return location if raised is None else {**location, "exception.type": raised[1]}
