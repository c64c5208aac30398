"""The parent process of `--workers N`: N worker processes behind one port.

Interpreted functions hold the interpreter lock, so one process uses one core. The parent accepts connections on the
public port and relays their bytes to workers, which listen on the loopback. A connection is assigned to the ready
worker with the fewest connections, and stays there: a client process has one connection, so it uses one worker. The
parent also serves the health port and the HTTP pages, with the sums of the metrics of all workers.

A worker that ends is restarted, with growing delays. Its connections break, so clients see a lost server. Each worker
sends heartbeats through a pipe, and the parent kills a worker whose heartbeats stop. The parent closes another pipe
to make a worker drain. That pipe also closes when the parent ends.

The public port relays the bytes of each connection to a worker and back. Each connection has two descriptors. A few
threads serve all connections with epoll. The server of the worker decides how long a connection may be silent. When one
side ends a connection, the relay ends both sides, because gRPC does not use half-closed connections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import mark_process_dead

from foldflight.errors import RetryableError
from foldflight.server.flightbase import connections_max, listen
from foldflight.server.limits import GRACE_S, memory_limit_of
from foldflight.server.ops.logs import Logger
from foldflight.server.ops.metrics import PARENT, ServerCollector, shared_registry
from foldflight.server.run.lifecycle import (
    EXIT_CUT_OFF,
    EXIT_DRAINED,
    Probes,
    announce,
    await_stop,
    check_before_start,
    default_server_id,
    load_registry,
    programs_of,
)
from foldflight.server.run.settings import Settings, usable_cpus

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

        def release() -> None:
            with self._lock:
                target.connections -= 1

        try:
            _set_up(client)
            upstream = _start_connecting(target.port or 0)
        except OSError as error:
            client.close()
            release()
            self._logger.warning("worker not reachable", worker=target.index, problem=str(error))
            return
        min(self._threads, key=lambda thread: thread.count).carry(_Connection(client, upstream, release))

    def _choose(self) -> Target | None:
        with self._lock:
            ready = [target for target in self._targets if target.port is not None]
            if not ready or sum(target.connections for target in self._targets) >= self._connections_max:
                return None
            target = min(ready, key=lambda target: target.connections)
            target.connections += 1
            return target


def _set_up(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _start_connecting(port: int) -> socket.socket:
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

    def __init__(self, client: socket.socket, upstream: socket.socket, release: Callable[[], None]) -> None:
        self.gone = release
        self.others = {client: upstream, upstream: client}
        self._due: dict[socket.socket, memoryview] = {}  # by the socket that must take it
        self._deaf: socket.socket | None = None  # takes no more bytes; what it has sent before is still passed on

    def events_of(self, side: socket.socket) -> int:
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
        sent_bytes = 0
        try:
            sent_bytes = target.send(data)
        except BlockingIOError:
            pass
        except ConnectionError:
            self._deaf = target
            return
        if sent_bytes < len(data):
            self._due[target] = memoryview(bytes(data[sent_bytes:]))


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
                    self._poll.register(side, connection.events_of(side))
                    self._connections[side.fileno()] = side, connection
            except OSError as error:  # for example, the limit of the user's watches is reached
                self._logger.warning("connection not taken", problem=str(error))
                self._end(connection)

    def _serve(self, side: socket.socket, connection: _Connection, events: int, buffer: memoryview) -> None:
        try:
            before = [connection.events_of(each) for each in connection.others]
            connection.pump(side, events, buffer)
            for each, events_before in zip(connection.others, before, strict=True):
                if connection.events_of(each) != events_before:
                    self._poll.modify(each, connection.events_of(each))
        except OSError:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        for side in connection.others:
            if self._connections.pop(side.fileno(), None) is not None:
                self._poll.unregister(side)
        connection.close()


_LOOK_S = 0.5
_BEATS_MAX = 1024
_START_S_MAX = 60.0
_LOAD_S_MAX = 600.0  # added for each async function, whose `open` may load a model
_BACKOFF_S_FIRST = 0.1
_BACKOFF_S_MAX = 10.0
_HEALTHY_AFTER_S = 30.0
_GRACE_S = 10.0
_SILENCE_S = 60.0
_SECOND_LOOK_S = 2.0


def run_workers(
    settings: Settings,
    stop: threading.Event,
    *,
    logger: Logger,
    on_ready: Callable[[dict[str, Any]], None],
    spare: Path | None,
) -> int:
    """Run the parent of `settings.workers` processes until `stop` is set, then drain them.

    Args:
        settings: What to do.
        stop: As for `run_server`.
        logger: The log.
        on_ready: As for `run_server`.
        spare: As for `ProcessServer`. All workers share it.

    Returns:
        int: 0 if every worker drained, or `stop` was set before they were ready; 3 if one was cut off.

    Raises:
        RejectedError: MODULE, SIGNATURE or SETTINGS, before anything is served.
        RetryableError: UNREACHABLE, when a worker did not come up.
    """
    # Errors that each worker would report are reported here, once.
    registry = load_registry(settings)
    programs = programs_of(settings, spare)
    check_before_start(settings, registry, programs)
    cpus = usable_cpus()
    server_id = settings.server_id or default_server_id()
    logger = logger.bind(server_id=server_id)
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-metrics-", dir=spare) as metrics_dir,
        contextlib.ExitStack() as stack,
    ):
        workers = [
            _Worker(index, _worker_settings(settings, f"{server_id}/{index}"), metrics_dir, logger)
            for index in range(settings.workers)
        ]
        probes = Probes(settings, server_id, registry, _registry(metrics_dir, workers, settings, cpus), programs)
        stack.callback(probes.close)
        welcome = _Welcome(probes, workers)
        shared_settings = {
            "status_at": _status_at(settings, probes),
            "cpus": max(cpus // len(workers), 1),
            "share": 1.0 / len(workers),
            "spare": None if spare is None else str(spare),
        }
        waiting = sum(function.bounds is not None for function in registry.authored)
        start_s_max = _START_S_MAX + _LOAD_S_MAX * waiting
        for worker in workers:
            worker.start(shared_settings, start_s_max, on_change=welcome.show)
        stack.callback(_kill_all, workers)
        if not _await_ready(workers, stop, start_s_max):
            logger.info("stopped while workers started")
            return EXIT_DRAINED
        probes.status.prepare()
        relay = Relay(settings, workers, logger)
        stack.callback(relay.close)
        welcome.set(is_open=True)
        ready_line = {**probes.ready_line(relay.port), "workers": [worker.pid for worker in workers]}
        announce(ready_line, settings, logger, on_ready)
        await_stop(stop)
        welcome.set(is_open=False)
        relay.stop_accepting()
        return _drain(workers, settings.drain_s, logger)


def _drain(workers: list[_Worker], drain_s: float, logger: Logger) -> int:
    logger.info("draining", workers=len(workers), drain_s=drain_s)
    for worker in workers:
        worker.tell_to_drain()
    until_s = time.monotonic() + drain_s + _GRACE_S
    codes = [worker.wait(until_s - time.monotonic()) for worker in workers]
    has_drained = all(code == EXIT_DRAINED for code in codes)
    logger.info("drained" if has_drained else "drain_s passed: cut off", exit_codes=codes)
    return EXIT_DRAINED if has_drained else EXIT_CUT_OFF


def _worker_settings(settings: Settings, server_id: str) -> Settings:
    return dataclasses.replace(
        settings,
        host="127.0.0.1",
        port=0,
        health_port=None,
        http_port=None,
        workers=1,
        ready_file=None,
        memory_limit=memory_limit_of(settings),
        server_id=server_id,
    )


def _registry(metrics_dir: str, workers: list[_Worker], settings: Settings, cpus: int) -> CollectorRegistry:
    """Return a registry with the sums of the metrics of all workers, and the metrics of the parent."""
    registry = shared_registry(metrics_dir)
    registry.register(
        ServerCollector(
            exchanges_max=settings.exchanges_max * len(workers),
            memory_limit=memory_limit_of(settings),
            cpus=cpus,
            processes=lambda: {PARENT: os.getpid(), **{str(worker.index): worker.pid for worker in workers}},
            workers=lambda: sum(worker.port is not None for worker in workers),
            restarts=lambda: sum(worker.restarts for worker in workers),
        )
    )
    return registry


def _status_at(settings: Settings, probes: Probes) -> tuple[str, int] | None:
    """Return host and port of the parent's pages, from which workers get the status of the whole server."""
    if probes.http_port is None:
        return None
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host), probes.http_port  # noqa: S104


def _await_ready(workers: list[_Worker], stop: threading.Event, start_s_max: float) -> bool:
    """Wait until all workers are ready. Return False if `stop` is set before.

    Raises:
        RetryableError: UNREACHABLE if a worker is not ready within `start_s_max`.
    """
    until_s = time.monotonic() + start_s_max
    for worker in workers:
        while not worker.ready.wait(_LOOK_S):
            if stop.is_set():
                return False
            if time.monotonic() > until_s:
                raise RetryableError(
                    "UNREACHABLE",
                    f"worker {worker.index} was not ready within {start_s_max:g} s; see the log",
                )
    return not stop.is_set()


class _Welcome:
    """Publishes readiness: the server is ready while the public port is open and at least one worker is ready."""

    def __init__(self, probes: Probes, workers: list[_Worker]) -> None:
        self._probes = probes
        self._workers = workers
        self._is_open = False
        self._lock = threading.Lock()

    def set(self, *, is_open: bool) -> None:
        """Set whether the public port accepts connections."""
        self._is_open = is_open
        self.show()

    def show(self) -> None:
        """Publish readiness. Also called when a worker becomes ready or ends."""
        with self._lock:
            self._probes.set_ready(ready=self._is_open and any(worker.port is not None for worker in self._workers))


def _kill_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.kill()


class _Worker:
    """One worker process, and the thread that starts and restarts it."""

    def __init__(self, index: int, settings: Settings, metrics_dir: str, logger: Logger) -> None:
        self.index = index
        self.port: int | None = None
        self.pid: int | None = None
        self.restarts = 0
        self.connections = 0  # guarded by the relay's lock
        self.ready = threading.Event()
        self._settings = settings
        self._metrics_dir = metrics_dir
        self._logger = logger.bind(worker=index)
        self._instructions: dict[str, Any] = {}
        self._start_s_max = _START_S_MAX
        self._on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._code: int | None = None
        self._keeper = threading.Thread(target=self._keep_running, name=f"foldflight-worker-{index}", daemon=True)

    def start(self, instructions: dict[str, Any], start_s_max: float, *, on_change: Callable[[], None]) -> None:
        self._instructions = instructions
        self._start_s_max = start_s_max
        self._on_change = on_change
        self._keeper.start()

    def tell_to_drain(self) -> None:
        self._stopping.set()
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):  # the worker has ended without reading its task
                    self._process.stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the process had to be killed."""
        self._keeper.join(max(timeout_s, 0))
        if self._keeper.is_alive():
            self.kill()
            return None
        return self._code

    def kill(self) -> None:
        """End the process and its keeper, whatever state they are in."""
        self.tell_to_drain()
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._keeper.join()

    def _keep_running(self) -> None:
        backoff_s = _BACKOFF_S_FIRST
        while not self._stopping.is_set():
            started_s = time.monotonic()
            try:
                self._code = self._run_once()
            except OSError as error:  # for example, there is no memory, or too many files are open
                self._code = None
                self._logger.warning("worker not started", problem=str(error))
            if self._stopping.is_set():
                return
            if time.monotonic() - started_s > _HEALTHY_AFTER_S:
                backoff_s = _BACKOFF_S_FIRST
            self._logger.error("worker died", exit_code=self._code, restart_in_s=backoff_s)
            self._stopping.wait(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)
            self.restarts += 1

    def _run_once(self) -> int:
        ready_read, ready_write = os.pipe()
        with os.fdopen(ready_read, "rb") as ready_pipe:
            with self._lock:
                process = self._spawn(ready_write)
            with contextlib.suppress(OSError, ValueError):  # it has ended, or its pipe is closed already
                self._listen(ready_pipe, process)
            code = process.wait()
        self.port = self.pid = None
        self._on_change()
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        mark_process_dead(self.index, self._metrics_dir)  # type: ignore[no-untyped-call]  # its counters remain
        return code

    def _listen(self, pipe: BinaryIO, process: subprocess.Popen[bytes]) -> None:
        """Read the ready line and the heartbeats of a worker until it ends. Kill it if they do not arrive in time."""
        silence_s = (self._settings.fold_s_max or _SILENCE_S) + GRACE_S  # functions may hold the interpreter lock
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            if self._hears(selector, process, self._start_s_max) and (line := pipe.readline()):
                self.port = int(json.loads(line)["flight"])
                self.ready.set()
                self._on_change()
                while self._hears(selector, process, silence_s) and os.read(pipe.fileno(), _BEATS_MAX):
                    pass

    def _hears(self, selector: selectors.BaseSelector, process: subprocess.Popen[bytes], silence_s: float) -> bool:
        """Wait until the pipe of the worker is readable. If it is not for `silence_s`, kill the worker."""
        # The second look is for the case that this process was paused.
        if selector.select(silence_s) or selector.select(_SECOND_LOOK_S):
            return True
        self._logger.error("worker hung: it is killed", silence_s=silence_s)
        process.kill()
        return False

    def _spawn(self, ready_write: int) -> subprocess.Popen[bytes]:
        task = {
            "settings": dataclasses.asdict(self._settings),
            "metrics_dir": self._metrics_dir,
            "index": self.index,
            "path": sys.path,
            "ready_fd": ready_write,
            **self._instructions,
        }
        try:
            # In a session of its own, so that Ctrl-C in the terminal reaches only the parent, which then drains.
            process = subprocess.Popen(
                [sys.executable, "-m", "foldflight.server.run.worker_process"],
                stdin=subprocess.PIPE,
                pass_fds=[ready_write],
                start_new_session=True,
            )
        finally:
            os.close(ready_write)
        self._process, self.pid = process, process.pid
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task).encode() + b"\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        if self._stopping.is_set():
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        return process
