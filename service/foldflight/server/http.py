"""HTTP for probes and Prometheus: `/metrics`, `/healthz` (alive), `/readyz` (welcomes exchanges)."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from foldflight.server.settings import port_taken

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HttpServer"]

_POLL_S = 0.05  # how soon the acceptor notices that it should end
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves the three pages from threads of its own.

    Args:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        metrics_page: Gives the body of `/metrics`.
        is_ready: Gives what `/readyz` says: 200 if true, else 503. `/healthz` is 200 as long as the process answers.

    Raises:
        RejectedError: SETTINGS when the port is taken.
    """

    def __init__(
        self, host: str, port: int, *, metrics_page: Callable[[], bytes], is_ready: Callable[[], bool]
    ) -> None:
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise port_taken("http_port", host, port, error.strerror) from None
        self._server.metrics_page = metrics_page
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
    metrics_page: Callable[[], bytes]
    is_ready: Callable[[], bool]

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: a probe that hangs up is not news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # seconds; a connection that says nothing must not hold a thread for ever

    def do_GET(self) -> None:
        """Answer one of the three pages."""
        if self.path == "/metrics":
            self._answer(HTTPStatus.OK, self.server.metrics_page(), _METRICS_TYPE)
        elif self.path == "/healthz":
            self._answer(HTTPStatus.OK, b"alive\n")
        elif self.path == "/readyz":
            ready = self.server.is_ready()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, b"ready\n" if ready else b"not ready\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"pages: /metrics /healthz /readyz\n")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it)
        """Stay silent: probes come every few seconds."""
