"""The ports of a server for probes, Prometheus and people: HTTP pages, and grpc.health.v1 without TLS and tokens.

| page | content |
|---|---|
| `/` | the status of the fleet for people; the page requests `/status` repeatedly |
| `/status`, `/status/own` | the status of the fleet or of this server, as JSON (see `foldflight.server.ops.status`) |
| `/metrics` | the metrics, in the format OpenMetrics for clients that accept it, otherwise in Prometheus text format |
| `/healthz` | 200 while the process answers |
| `/readyz` | 200 while the server accepts exchanges, otherwise 503 |

One thread serves all connections, with one request for each. A client has a few seconds to send the request and to
read the answer. A few other threads make the pages that take long.

| service of grpc.health.v1 | status |
|---|---|
| `` (empty), `readiness`, `arrow.flight.protocol.FlightService` | SERVING while the server is ready, until it drains |
| `liveness` | SERVING while the process runs, also under load and during a drain |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from foldflight.errors import FoldflightError
from foldflight.server.flightbase import authority, connections_max, listen
from foldflight.server.ops.status import Status
from foldflight.server.rpc_server import CallServer, CallStatus, IncomingCall, ServedMethod
from foldflight.server.run.settings import port_in_use_error

_logger = logging.getLogger("foldflight.server")

_CONNECTIONS_MAX: Final = 256
_FILES_SHARE: Final = 1 / 8
_HEAD_BYTES_MAX: Final = 16 * 1024
_HEAD_S_MAX: Final = 5.0
_ANSWER_S_MAX: Final = 30.0
_SEND_S_MAX: Final = 10.0
_THREADS_MAX: Final = 4
# Limit of pages that are made or wait for a thread. Their connections must leave room for connections of probes.
_PAGES_MAX: Final = 16
_TEXT = "text/plain; charset=utf-8"
# The format of metrics that has exemplars; Prometheus asks for it.
_OPENMETRICS = b"application/openmetrics-text"
_EXEMPLARS = openmetrics.CONTENT_TYPE_LATEST
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
_STATUS_PAGE = Path(__file__).with_name("status.html").read_bytes()
_HEADERS = {
    # The page has its script and style in it and asks its own server only.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Connection": "close",
}


class HttpServer:
    """Serves the pages. The constructor binds the port and starts the threads.

    Args:
        host: Address to bind.
        port: Port to bind; 0 selects a free one.
        registry: The metrics of `/metrics`.
        status: The status of `/status`.
        is_ready: Returns whether the server accepts exchanges.

    Raises:
        RejectedError: SETTINGS if the port is taken.
    """

    def __init__(
        self, host: str, port: int, *, registry: CollectorRegistry, status: Status, is_ready: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._status = status
        self._is_ready = is_ready
        listener = listen("http_port", host, port)
        self.port: int = listener.getsockname()[1]
        # The connections whose requests have not arrived yet, the oldest first.
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._connections = 0
        self._connections_max = connections_max(_FILES_SHARE, most=_CONNECTIONS_MAX)
        self._pages = ThreadPoolExecutor(_THREADS_MAX, "foldflight-page")
        self._permits = threading.BoundedSemaphore(_PAGES_MAX)
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._run(listener),), name="foldflight-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop accepting, close all connections, and wait for the thread."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()
        self._pages.shutdown(wait=False, cancel_futures=True)

    # -- in the thread -----------------------------------------------------------------------------------------------

    async def _run(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._serve, sock=listener, limit=_HEAD_BYTES_MAX)
        await self._end.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. Every wait for the client has a limit."""
        self._connections += 1
        try:
            # Clients that disconnect, do not send HTTP or are too slow are not logged. Only `close` cancels this task,
            # and asyncio would log a traceback for the cancelled task of a connection.
            with contextlib.suppress(OSError, TimeoutError, EOFError, asyncio.CancelledError):
                answer = await self._answer_to(await self._head(reader, writer))
                async with asyncio.timeout(_SEND_S_MAX):
                    writer.write(answer)
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._connections -= 1
            writer.transport.abort()

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Wait for the head of a request. If there are too many connections, close the one that waits for longest."""
        self._silent[writer] = None
        try:
            if self._connections > self._connections_max:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                oldest.transport.abort()
            async with asyncio.timeout(_HEAD_S_MAX):
                return await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return b""
        finally:
            self._silent.pop(writer, None)

    async def _answer_to(self, head: bytes) -> bytes:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _http_answer(HTTPStatus.BAD_REQUEST, b"not an HTTP/1.1 request, or its head is too long\n", _TEXT)
        method, path = words[0], words[1].partition("?")[0]
        if method != "GET":
            return _http_answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is served\n", _TEXT)
        match path:
            case "/":
                return _http_answer(HTTPStatus.OK, _STATUS_PAGE, _HTML)
            case "/healthz":
                return _http_answer(HTTPStatus.OK, b"alive\n", _TEXT)
            case "/readyz" if self._is_ready():
                return _http_answer(HTTPStatus.OK, b"ready\n", _TEXT)
            case "/readyz":
                return _http_answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n", _TEXT)
            case "/metrics":
                if _OPENMETRICS in head.partition(b"\r\n")[2].lower():
                    with_exemplars = partial(openmetrics.generate_latest, self._registry)
                    return await self._page(with_exemplars, _EXEMPLARS)
                return await self._page(partial(generate_latest, self._registry), _METRICS)
            case "/status":
                return await self._page(lambda: json.dumps(self._status.fleet()).encode(), _JSON)
            case "/status/own":
                return await self._page(lambda: json.dumps(self._status.own()).encode(), _JSON)
            case _:
                return _http_answer(HTTPStatus.NOT_FOUND, b"pages: / /status /metrics /healthz /readyz\n", _TEXT)

    async def _page(self, make: Callable[[], bytes], content_type: str) -> bytes:
        """Make a page in another thread, so that the probes are answered meanwhile."""
        if not self._permits.acquire(blocking=False):
            return _http_answer(
                HTTPStatus.SERVICE_UNAVAILABLE, b"too many pages are being made; try again later\n", _TEXT
            )
        page = self._pages.submit(make)
        page.add_done_callback(lambda _: self._permits.release())
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                return _http_answer(HTTPStatus.OK, await asyncio.wrap_future(page), content_type)
        except TimeoutError:
            return _http_answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the page took too long; try again later\n", _TEXT)
        except Exception:
            _logger.exception("a page could not be made")
            return _http_answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, b"the page could not be made; see the server's log\n", _TEXT
            )


def _http_answer(status: HTTPStatus, body: bytes, content_type: str) -> bytes:
    headers = {**_HEADERS, "Content-Type": content_type, "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


LIVENESS = "liveness"
READINESS = "readiness"
_READY_SERVICES = ("", READINESS, "arrow.flight.protocol.FlightService")
_CALLS_OF_METHOD_MAX = 32
_REQUEST_BYTES_MAX = 64 * 1024
_LOOK_S = 1.0


class HealthServer:
    """Answers grpc.health.v1 `Check` and `Watch`.

    Args:
        host: Address to bind.
        port: Port to bind; 0 selects a free one.

    Raises:
        RejectedError: SETTINGS if the port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self._condition = threading.Condition()
        self._is_serving = {LIVENESS: True, **dict.fromkeys(_READY_SERVICES, False)}
        self._is_closed = False
        try:
            self._calls = CallServer(
                authority(host, port),
                {
                    "/grpc.health.v1.Health/Check": ServedMethod(self._check, _CALLS_OF_METHOD_MAX),
                    "/grpc.health.v1.Health/Watch": ServedMethod(self._watch, _CALLS_OF_METHOD_MAX),
                },
                connections_max=connections_max(_FILES_SHARE),
                message_bytes_max=_REQUEST_BYTES_MAX,
                refuse=_is_refused,
            )
        except OSError:
            raise port_in_use_error("health_port", host, port) from None

    @property
    def port(self) -> int:
        """The actual port."""
        return self._calls.port

    def set_ready(self, *, ready: bool) -> None:
        """Publish readiness."""
        with self._condition:
            self._is_serving.update(dict.fromkeys(_READY_SERVICES, ready))
            self._condition.notify_all()

    def close(self) -> None:
        """Stop at once, and end open watches."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        self._calls.close()

    def _check(self, call: IncomingCall, request: bytes) -> None:
        service = _requested_service(request)
        with self._condition:
            is_serving = self._is_serving.get(service) if service is not None else None
        if is_serving is None:
            call.end(CallStatus(grpc.StatusCode.NOT_FOUND, "unknown service; the services are liveness and readiness"))
        else:
            call.send(_health_answer(is_serving=is_serving))

    def _watch(self, call: IncomingCall, request: bytes) -> None:
        """Send the status, and again after each change, until the client disconnects."""
        service = _requested_service(request)
        last_sent: bytes | None = None
        while not (call.is_cancelled() or self._is_closed):
            with self._condition:
                answer = _health_answer(is_serving=self._is_serving.get(service) if service is not None else None)
                if answer == last_sent:
                    self._condition.wait(_LOOK_S)
                    continue
            call.send(answer)
            last_sent = answer


def _requested_service(request: bytes) -> str | None:
    try:
        return str(HealthCheckRequest.FromString(request).service)
    except DecodeError:
        return None


def _health_answer(*, is_serving: bool | None) -> bytes:
    if is_serving is None:
        status = HealthCheckResponse.SERVICE_UNKNOWN
    else:
        status = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
    answer: bytes = HealthCheckResponse(status=status).SerializeToString()
    return answer


def _is_refused(error: FoldflightError) -> CallStatus:
    return CallStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
