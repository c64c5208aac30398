"""The HTTP pages of a server, for probes, Prometheus and people.

| page | content |
|---|---|
| `/` | the status of the fleet for people; the page requests `/status` repeatedly |
| `/status`, `/status/own` | the status of the fleet or of this server, as JSON (see `foldflight.server.ops.status`) |
| `/metrics` | the metrics, in the format OpenMetrics for clients that accept it, otherwise in Prometheus text format |
| `/healthz` | 200 while the process answers |
| `/readyz` | 200 while the server accepts exchanges, otherwise 503 |

One thread serves all connections, with one request for each. A client has a few seconds to send the request and to
read the answer. A few other threads make the pages that take long.
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
from http import HTTPStatus
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from foldflight.server.flightbase import connections_max, listen
from foldflight.server.ops.status import Status

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
            return _answer(HTTPStatus.BAD_REQUEST, b"not an HTTP/1.1 request, or its head is too long\n", _TEXT)
        method, path = words[0], words[1].partition("?")[0]
        if method != "GET":
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is served\n", _TEXT)
        match path:
            case "/":
                return _answer(HTTPStatus.OK, _STATUS_PAGE, _HTML)
            case "/healthz":
                return _answer(HTTPStatus.OK, b"alive\n", _TEXT)
            case "/readyz" if self._is_ready():
                return _answer(HTTPStatus.OK, b"ready\n", _TEXT)
            case "/readyz":
                return _answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n", _TEXT)
            case "/metrics":
                if _OPENMETRICS in head.partition(b"\r\n")[2].lower():
                    return await self._page(self._with_exemplars, _EXEMPLARS)
                return await self._page(lambda: generate_latest(self._registry), _METRICS)
            case "/status":
                return await self._page(lambda: json.dumps(self._status.fleet()).encode(), _JSON)
            case "/status/own":
                return await self._page(lambda: json.dumps(self._status.own()).encode(), _JSON)
            case _:
                return _answer(HTTPStatus.NOT_FOUND, b"pages: / /status /metrics /healthz /readyz\n", _TEXT)

    def _with_exemplars(self) -> bytes:
        return openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]

    async def _page(self, make: Callable[[], bytes], content_type: str) -> bytes:
        """Make a page in another thread, so that the probes are answered meanwhile."""
        if not self._permits.acquire(blocking=False):
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many pages are being made; try again later\n", _TEXT)
        page = self._pages.submit(make)
        page.add_done_callback(lambda _: self._permits.release())
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                return _answer(HTTPStatus.OK, await asyncio.wrap_future(page), content_type)
        except TimeoutError:
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the page took too long; try again later\n", _TEXT)
        except Exception:
            _logger.exception("a page could not be made")
            return _answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, b"the page could not be made; see the server's log\n", _TEXT
            )


def _answer(status: HTTPStatus, body: bytes, content_type: str) -> bytes:
    headers = {**_HEADERS, "Content-Type": content_type, "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
