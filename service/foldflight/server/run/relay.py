"""The public port of `--workers N`: it relays the bytes of each connection to a worker and back.

Each connection has two descriptors. A few threads serve all connections with epoll. The server of the worker decides
how long a connection may be silent. When one side ends a connection, the relay ends both sides, because gRPC does not
use half-closed connections.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from foldflight.server.ops.logs import Logger
from foldflight.server.ports import connections_max, listen
from foldflight.server.run.settings import Settings

_BYTES_MAX: Final = 256 * 1024
_PAUSE_S: Final = 0.1
_FILES_SHARE: Final = 1 / 2
_LAST_BYTES_MS_MAX: Final = 10_000


class Target(Protocol):
    """A worker, as the relay sees it.

    Attributes:
        index: Number of the worker.
        port: Its port on 127.0.0.1; None while it is not ready.
        connections: Number of its connections, which the relay counts.
    """

    index: int
    port: int | None
    connections: int


class Relay:
    """Accepts connections on the public port, and assigns each to the ready target with the fewest connections.

    Args:
        settings: Host and port.
        targets: The workers.
        logger: Logs connections that cannot be relayed.

    Raises:
        RejectedError: SETTINGS if the port is taken.
    """

    def __init__(self, settings: Settings, targets: Sequence[Target], logger: Logger) -> None:
        self._targets = targets
        self._logger = logger
        self._lock = threading.Lock()
        self._is_accepting = True
        self._connections_max = connections_max(_FILES_SHARE, files_each=2)
        self._listener = listen("port", settings.host, settings.port)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [_RelayThread(f"foldflight-relay-{index}", logger) for index in range(len(targets))]
        self._acceptor = threading.Thread(target=self._accept, name="foldflight-accept", daemon=True)
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Close the public port. Open connections remain."""
        self._is_accepting = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        self._acceptor.join()
        self._listener.close()

    def close(self) -> None:
        """Close the public port and all connections."""
        self.stop_accepting()
        for thread in self._threads:
            thread.close()

    def _accept(self) -> None:
        while self._is_accepting:
            try:
                client, _ = self._listener.accept()
            except OSError as error:  # for example, too many files are open; try again
                if self._is_accepting:
                    self._logger.warning("connection not taken", problem=str(error))
                    time.sleep(_PAUSE_S)
                continue
            self._take(client)

    def _take(self, client: socket.socket) -> None:
        """Relay a connection. If that is not possible, close it: its client tries again, here or elsewhere."""
        target = self._choose()
        if target is None:
            client.close()
            return

        def gone() -> None:
            with self._lock:
                target.connections -= 1

        try:
            _set_up(client)
            upstream = _connecting(target.port or 0)
        except OSError as error:
            client.close()
            gone()
            self._logger.warning("worker not reachable", worker=target.index, problem=str(error))
            return
        min(self._threads, key=lambda thread: thread.count).carry(_Connection(client, upstream, gone))

    def _choose(self) -> Target | None:
        with self._lock:
            ready = [target for target in self._targets if target.port is not None]
            if not ready or sum(target.connections for target in self._targets) >= self._connections_max:
                return None
            chosen = min(ready, key=lambda target: target.connections)
            chosen.connections += 1
            return chosen


def _set_up(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _connecting(port: int) -> socket.socket:
    """Return a socket that is being connected. If that fails, the first read raises the error."""
    upstream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        _set_up(upstream)
        upstream.connect(("127.0.0.1", port))
    except BlockingIOError:
        pass
    except OSError:
        upstream.close()
        raise
    return upstream


class _Connection:
    """Two connected sockets, and the bytes that one has sent and the other has not taken yet.

    The connection ends when everything that one side had sent before it ended has been passed on.
    """

    def __init__(self, client: socket.socket, upstream: socket.socket, gone: Callable[[], None]) -> None:
        self.gone = gone
        self.others = {client: upstream, upstream: client}
        self._due: dict[socket.socket, memoryview] = {}  # by the socket that must take it
        self._deaf: socket.socket | None = None  # takes no more bytes; what it has sent before is still passed on

    def awaited(self, side: socket.socket) -> int:
        """Return the events to wait for. A side is not read while the other one has not taken what was read before."""
        reads = 0 if self.others[side] in self._due else select.EPOLLIN
        writes = select.EPOLLOUT if side in self._due else 0
        # The end of a side that is not read is reported, too, but once and not in a busy loop.
        return reads | writes or select.EPOLLRDHUP | select.EPOLLET

    def pump(self, side: socket.socket, events: int, buffer: memoryview) -> None:
        """Pass on what can be passed on without blocking. Raise OSError when the connection has ended."""
        if events & select.EPOLLOUT and side in self._due:
            self._pass_on(side, self._due.pop(side))
        if not events & ~select.EPOLLOUT:
            return
        other = self.others[side]
        if other in self._due:
            # The side has ended. The other one has limited time to take the last bytes.
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LAST_BYTES_MS_MAX)
            return
        with contextlib.suppress(BlockingIOError):
            count = side.recv_into(buffer)
            if not count:
                raise ConnectionResetError("one side has ended the connection")
            self._pass_on(other, buffer[:count])

    def close(self) -> None:
        """Close both connections."""
        for side in self.others:
            side.close()
        self.gone()

    def _pass_on(self, target: socket.socket, data: memoryview) -> None:
        """Send what can be sent now, and keep the rest."""
        if target is self._deaf:
            return
        sent = 0
        try:
            sent = target.send(data)
        except BlockingIOError:
            pass
        except ConnectionError:
            self._deaf = target
            return
        if sent < len(data):
            self._due[target] = memoryview(bytes(data[sent:]))


class _RelayThread:
    """A thread that serves connections."""

    def __init__(self, name: str, logger: Logger) -> None:
        self._logger = logger
        self._fresh: deque[_Connection] = deque()
        self._connections: dict[int, tuple[socket.socket, _Connection]] = {}
        self._is_closed = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._wake_read, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Approximate number of connections."""
        return len(self._connections) // 2 + len(self._fresh)

    def carry(self, connection: _Connection) -> None:
        """Serve a connection from now on."""
        self._fresh.append(connection)
        self._wake()

    def close(self) -> None:
        """Close all connections, and wait for the thread."""
        self._is_closed = True
        self._wake()
        self._thread.join()
        self._wake_read.close()
        self._wake_write.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        buffer = memoryview(bytearray(_BYTES_MAX))
        with self._poll:
            while not self._is_closed:
                is_woken = False
                for number, events in self._poll.poll():
                    if number == self._wake_read.fileno():
                        is_woken = True
                    elif number in self._connections:  # otherwise its connection has ended since the poll
                        self._serve(*self._connections[number], events, buffer)
                # Only after all events of the poll: a new connection may have the number of one that has ended.
                if is_woken:
                    self._begin()
            for connection in {connection for _, connection in self._connections.values()} | set(self._fresh):
                connection.close()

    def _begin(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(_BYTES_MAX)
        while self._fresh:
            connection = self._fresh.popleft()
            try:
                for side in connection.others:
                    self._poll.register(side, connection.awaited(side))
                    self._connections[side.fileno()] = side, connection
            except OSError as error:  # for example, the limit of the user's watches is reached
                self._logger.warning("connection not taken", problem=str(error))
                self._end(connection)

    def _serve(self, side: socket.socket, connection: _Connection, events: int, buffer: memoryview) -> None:
        try:
            before = [connection.awaited(each) for each in connection.others]
            connection.pump(side, events, buffer)
            for each, awaited in zip(connection.others, before, strict=True):
                if connection.awaited(each) != awaited:
                    self._poll.modify(each, connection.awaited(each))
        except OSError:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        for side in connection.others:
            if self._connections.pop(side.fileno(), None) is not None:
                self._poll.unregister(side)
        connection.close()
