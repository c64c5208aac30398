"""A collector of OpenTelemetry on the loopback: it decodes what real exporters send, and waits for spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 60.0


@dataclass(frozen=True)
class Seen:
    """A span as it arrived; ids are hexadecimal, and `parent` is empty for a root."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]
    failed: bool
    began_ns: int
    ended_ns: int

    @property
    def error(self) -> dict[str, Any]:
        """The attributes of the exception of this span."""
        ((name, attributes),) = self.events
        assert name == "exception"
        return attributes


class Collector:
    """What has arrived so far. `url` is the endpoint."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Seen] = []
        self._arrived = threading.Condition()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        with self._arrived:
            self.spans += _decode(body)
            self._arrived.notify_all()

    def wait(self, condition: Callable[[list[Seen]], Any]) -> list[Seen]:
        """Wait until a condition of the spans holds, and return them in the order of their beginnings."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: condition(self.spans), WAIT_S), [each.name for each in self.spans]
            return sorted(self.spans, key=lambda each: each.began_ns)

    def named(self, *names: str) -> list[Seen]:
        """Wait until there are spans of these names, and return the first of each."""
        self.wait(lambda spans: set(names) <= {each.name for each in spans})
        return [next(each for each in self.wait(bool) if each.name == name) for name in names]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            result.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        result = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield result
        finally:
            server.shutdown()
            thread.join()


def _decode(body: bytes) -> Iterator[Seen]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            assert scope.scope.name == "foldflight"
            for span in scope.spans:
                yield Seen(
                    service=service,
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    kind=span.kind,
                    links=tuple((each.trace_id.hex(), each.span_id.hex()) for each in span.links),
                    attributes=_values(span.attributes),
                    events=tuple((each.name, _values(each.attributes)) for each in span.events),
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    result = getattr(value, kind)
    return [_value(each) for each in result.values] if kind == "array_value" else result
