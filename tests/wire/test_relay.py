"""The relay of `--workers`: what a connection's end, and events that are out of date, do to it and to others."""

from __future__ import annotations

import errno
import io
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from foldflight.server.ops.logs import make_logger
from foldflight.server.run import workers
from tests.wire.kit import PATIENCE_S, eventually

Batch = list[tuple[int, int]]


class Epoll:
    """A real epoll; `first` may make up the events of some calls, and refuse to register a socket."""

    def __init__(self) -> None:
        self.real = select.epoll()
        self.unregister, self.modify = self.real.unregister, self.real.modify
        self.first: deque[Callable[[], Batch]] = deque()
        self.refused: set[socket.socket] = set()

    def __enter__(self) -> None:
        self.real.__enter__()

    def __exit__(self, *exception: object) -> None:
        self.real.close()

    def register(self, side: socket.socket, events: int) -> None:
        if side in self.refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.real.register(side, events)

    def poll(self) -> Batch:
        result: Batch = self.real.poll()
        return self.first.popleft()() if self.first else result


class Ends:
    """A connection with both of its outer ends."""

    def __init__(self, client_bytes: int = 0) -> None:
        self.client, inner = socket_pair(client_bytes)
        self.worker, upstream = socket_pair()
        self.is_gone = threading.Event()
        self.inner, self.upstream = inner, upstream
        self.connection = workers._Connection(inner, upstream, self.is_gone.set)

    def carries(self) -> bool:
        self.client.sendall(b"a request")
        return self.worker.recv(9) == b"a request"


def socket_pair(buffer_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection, one that holds few bytes if asked. The second one is as the relay has it."""
    outer = socket.socket()
    outer.settimeout(PATIENCE_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if buffer_bytes:
            outer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        outer.connect(listener.getsockname())
        inner, _ = listener.accept()
    workers._set_up(inner)
    return outer, inner


def read_all(connection: socket.socket) -> bytes:
    """Read until the end of a connection."""
    result = b""
    while part := connection.recv(1 << 16):
        result += part
    return result


@pytest.fixture
def ends() -> Iterator[Callable[..., Ends]]:
    """Make connections; their outer ends are closed after the test."""
    pairs: list[Ends] = []

    def make(client_bytes: int = 0) -> Ends:
        pairs.append(Ends(client_bytes))
        return pairs[-1]

    yield make
    for each in pairs:
        each.client.close()
        each.worker.close()


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A thread of the relay whose epoll can be told what to say."""
    names = {name: getattr(select, name) for name in dir(select)}
    monkeypatch.setattr(workers, "select", SimpleNamespace(**{**names, "epoll": Epoll}))
    relay_thread = workers._RelayThread("relay", make_logger(io.StringIO()))
    yield relay_thread
    relay_thread.close()


@pytest.mark.parametrize("is_slow", [False, True])
def test_the_last_bytes_of_a_worker_reach_its_client(thread: Any, ends: Callable[..., Ends], is_slow: bool) -> None:
    """Bytes that arrived before a connection was reset are passed on, also to a client that reads late."""
    one = ends(2048 * is_slow)
    payload = b"an answer" * 6000
    one.worker.sendall(payload)
    one.worker.close()
    one.upstream.send(b"a request that is answered with a reset")
    poll = select.poll()
    poll.register(one.upstream, 0)
    assert poll.poll(PATIENCE_S * 1000)[0][1] & select.POLLHUP
    thread.carry(one.connection)
    if is_slow:
        assert not one.is_gone.wait(0.3)
    assert read_all(one.client) == payload
    assert one.is_gone.wait(PATIENCE_S)


def test_a_client_that_never_reads_the_last_bytes_is_given_up(
    thread: Any, ends: Callable[..., Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose worker is gone does not stay for ever, and it is not polled in a busy loop."""
    monkeypatch.setattr(workers, "_LAST_BYTES_MS_MAX", 500)
    one = ends(2048)
    thread.carry(one.connection)
    one.worker.sendall(b"an answer" * 6000)
    one.worker.close()
    assert one.is_gone.wait(PATIENCE_S)


def test_an_event_of_a_connection_that_has_ended_ends_no_other(thread: Any, ends: Callable[..., Ends]) -> None:
    """A new connection may have the number of one that ended in the same batch of events."""
    one = ends()
    wake = thread._wake_read.fileno()
    thread._poll.first.append(lambda: [(wake, select.EPOLLIN), (one.inner.fileno(), select.EPOLLHUP)])
    thread.carry(one.connection)
    assert one.carries()


def test_a_connection_that_cannot_be_watched_ends_alone(thread: Any, ends: Callable[..., Ends]) -> None:
    """The thread goes on with the others."""
    bad, good = ends(), ends()
    thread._poll.refused.add(bad.upstream)
    thread.carry(bad.connection)
    assert bad.is_gone.wait(PATIENCE_S)
    assert read_all(bad.client) == b""
    thread.carry(good.connection)
    assert good.carries()
    assert eventually(lambda: thread.count == 1)


def test_connections_that_were_not_begun_are_closed(thread: Any, ends: Callable[..., Ends]) -> None:
    """A connection that arrives while the thread ends is closed, too."""
    one = ends()

    def end() -> Batch:
        thread._is_closed = True
        thread._fresh.append(one.connection)
        return []

    thread._poll.first.append(end)
    thread._wake()
    assert one.is_gone.wait(PATIENCE_S)
    assert read_all(one.client) == b""
