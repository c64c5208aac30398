"""A proxy in front of PostgreSQL that cuts connections, also just before or just after a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Proxy"]

COMMIT = b"COMMIT\0"  # as it ends a message, unlike ON COMMIT DROP


class Proxy:
    """Forwards connections to a server, on a port of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{parts.port}/", f":{self._listener.getsockname()[1]}/")
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._commit: bool | None = None
        self._swallows = False

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """End all connections that are open now, and none that a client opens when it notices."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError), end:
                end.shutdown(socket.SHUT_RDWR)

    def cut_at_commit(self, *, sends_it: bool) -> None:
        """End all connections at the next COMMIT, instead of its answer or instead of sending it."""
        self._commit = sends_it

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            with self._lock:
                self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._forward, args=(source, sink)))
                self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                is_commit = self._commit is not None and COMMIT in data
                if self._swallows or (is_commit and not self._commit):
                    self._commit, self._swallows = None, False
                    self.cut()
                    return
                if is_commit:
                    self._swallows = True  # the next data are the answer: the server has committed
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
