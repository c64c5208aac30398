"""HTTP for probes, Prometheus and people.

| page | says |
|---|---|
| `/` | what the fleet is doing, for people; it asks `/status` again and again |
| `/status`, `/status/own` | the same as JSON: of the fleet, of this server (see `foldflight.server.ops.status`) |
| `/metrics` | counts, in Prometheus text format |
| `/healthz` | 200 as long as the process answers |
| `/readyz` | 200 while the server welcomes exchanges, else 503 |
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import generate_latest

from foldflight.server.run.settings import port_taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from foldflight.server.ops.status import Status

__all__ = ["HttpServer"]

_POLL_S = 0.05  # how soon the acceptor notices that it should end
_TEXT = "text/plain; charset=utf-8"
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
}


class HttpServer:
    """Serves the pages from threads of its own.

    Args:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        registry: What `/metrics` shows.
        status: What `/status` shows.
        is_ready: Gives what `/readyz` says.

    Raises:
        RejectedError: SETTINGS when the port is taken.
    """

    def __init__(
        self, host: str, port: int, *, registry: CollectorRegistry, status: Status, is_ready: Callable[[], bool]
    ) -> None:
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        except OSError as error:
            raise port_taken("http_port", host, port, error.strerror) from None
        self._server.registry = registry
        self._server.status = status
        self._server.is_ready = is_ready
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="foldflight-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop accepting and wait for the acceptor's thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    registry: CollectorRegistry
    status: Status
    is_ready: Callable[[], bool]

    def server_bind(self) -> None:
        """Bind, and ask nobody for the name of this host: a slow name server must not hold the start up."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: a probe that hangs up is not news."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # seconds; a connection that says nothing must not hold a thread for ever

    def do_GET(self) -> None:
        """Answer one of the pages."""
        match self.path.partition("?")[0]:
            case "/":
                self._answer(HTTPStatus.OK, _STATUS_PAGE, _HTML)
            case "/status":
                self._answer(HTTPStatus.OK, json.dumps(self.server.status.fleet()).encode(), _JSON)
            case "/status/own":
                self._answer(HTTPStatus.OK, json.dumps(self.server.status.own()).encode(), _JSON)
            case "/metrics":
                self._answer(HTTPStatus.OK, generate_latest(self.server.registry), _METRICS)
            case "/healthz":
                self._answer(HTTPStatus.OK, b"alive\n", _TEXT)
            case "/readyz" if self.server.is_ready():
                self._answer(HTTPStatus.OK, b"ready\n", _TEXT)
            case "/readyz":
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n", _TEXT)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"pages: / /status /metrics /healthz /readyz\n", _TEXT)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it)
        """Stay silent: probes come every few seconds."""
