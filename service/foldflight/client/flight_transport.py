"""The Flight transport: connections cached per process, a deadline on every step, round robin over several servers.

`infos` and `describe` ask one server after another until one answers. An exchange survives the loss of its server: see
`failover`. A `FlightConnection` is its connection to one server.

A blocked Flight read or write ends only when its stream is cancelled, and has no timeout of its own. So a `Guard` gives
each step a deadline: one daemon thread per process checks all guarded exchanges several times per deadline. It starts
with the first exchange and ends with the last. Setting and clearing a deadline assigns one attribute and takes no lock.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.client.client_logs import set_up_logger
from foldflight.client.connection import Connection, Resolve, check_resolve
from foldflight.client.exchange import call_scope, take_first_turn
from foldflight.client.failover import FailoverExchange, Patience
from foldflight.client.flight_errors import translate_error
from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.encoding import Decoder, Encoder, Message, decode, decode_info, encode_open
from foldflight.exchange.failover.coordinator import (
    Circuits,
    Coordinator,
    FailoverBounds,
    problem_of,
    strict_code_error,
)
from foldflight.exchange.frames import Frame, FunctionInfo, Open, Opened
from foldflight.exchange.ipc import app_metadata_in
from foldflight.exchange.transitions import Role
from foldflight.functions.author.codedigest import other_code
from foldflight.functions.author.spec import AnyFunction
from foldflight.shipping.bundles import REGISTER_ACTION
from foldflight.shipping.pickling import bundle_of

_LOOKS_PER_DEADLINE = 8
_PAUSE_S_MAX = 1.0
_PAUSE_S_MIN = 0.01
_GONE = frozenset({"UNREACHABLE", "DEADLINE"})

_LOGGER: Final = "foldflight.client"
# How many servers are asked at the same time for the digests of their code when a client connects, and the seconds that
# it waits for each.
_QUESTIONS_AT_ONCE: Final = 32
_COMPARED_S_MAX: Final = 5.0

# How long gRPC waits for the first frame of a connection: the server may be far away or busy, or TLS takes its time.
_CONNECT_S_MAX: Final = 5.0

R = TypeVar("R")
Tls = tuple[tuple[str, bytes], ...]

_OPTIONS = [
    ("grpc.max_metadata_size", 64 * 1024),  # errors are sent in trailers
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # gRPC sets TCP_USER_TIMEOUT (below) only if it pings. Servers close connections that ping more often than this.
    ("grpc.keepalive_time_ms", 300_000),
    # A connection without calls ends before the server ends it, which gRPC would log.
    ("grpc.client_idle_timeout_ms", 10_000),
]


def _options(deadline_s: float) -> list[tuple[str, int]]:
    """Return the options of a channel.

    A write that blocks because a hung server does not read cannot be cancelled: the cancellation waits behind it. The
    kernel ends the connection, though, if no data was acknowledged for `grpc.keepalive_timeout_ms` (TCP_USER_TIMEOUT).
    """
    return [
        *_OPTIONS,
        # In spite of its name, it is the time limit of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", max(int(min(deadline_s, _CONNECT_S_MAX) * 1000), 100)),
        ("grpc.keepalive_timeout_ms", max(int(deadline_s * 1000), 500)),
    ]


class FlightTransport:
    """Folds on Flight servers.

    The transport has no connection of its own, so it can be pickled, and used on both sides of a fork.

    Args:
        urls: The servers, `grpc://host:port` or `grpc+tls://host:port`. They are used in turns; a server that fails is
            skipped for some time.
        deadline_s: Longest wait for any one step.
        bounds: Limits on the cost of failover.
        token: Bearer token, if the servers require one.
        tls: Certificates in PEM format, by the argument names of pyarrow's client: `tls_root_certs`, `cert_chain`,
            `private_key`.
        job_parameters: Values of `FunctionContext.job_parameters`. The values of an Open take precedence.
        bundle_key: Signs functions that are registered. The key stays in this process; signed bundles are sent.
        otlp_endpoint: The collector of spans. Default: there are no spans.
        strict: Whether servers with other code of a function are refused. Default: they are used, with a warning.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        deadline_s: float,
        bounds: FailoverBounds | None = None,
        token: str | None = None,
        tls: Mapping[str, bytes] | None = None,
        job_parameters: Mapping[str, str] | None = None,
        bundle_key: str | None = None,
        otlp_endpoint: str | None = None,
        strict: bool = False,
    ) -> None:
        self.otlp_endpoint = otlp_endpoint
        self._strict = strict
        self._code_digests: dict[str, str] = {}  # name of a function -> its last digest
        self.urls = tuple(urls)
        self._bounds = FailoverBounds() if bounds is None else bounds
        self._deadline_s = deadline_s
        self._token = token
        self._tls = tuple(sorted((tls or {}).items()))
        self._job_parameters = dict(job_parameters or {})
        self._bundle_key = bundle_key
        self._bundles: dict[str, bytes] = {}  # name of a function -> the bundle that contains it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bundle_key": None}

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:  # noqa: ARG002 - servers always report it
        """Return the functions of the servers, sorted by name.

        The first server that answers reports its functions. The others are asked whether they have the same code.

        Raises:
            RetryableError: UNREACHABLE or DEADLINE if no server answers.
            RejectedError: STATE_MISMATCH if servers have different code of a function, and `strict` is set.
        """

        def ask(client: Any, options: Any, url: str) -> tuple[str, list[FunctionInfo]]:
            flights = client.list_flights(options=options)
            return url, [decode_info(app_metadata_in(flight.serialize())) for flight in flights]

        first, infos = self._ask_servers(ask)
        self._code_digests.update({info.name: info.code_digest for info in infos})
        others = [url for url in self.urls if url != first]
        if others:
            with ThreadPoolExecutor(min(len(others), _QUESTIONS_AT_ONCE)) as pool:
                for url, digests in pool.map(functools.partial(self._digests_of, ask), others):
                    self._check_code(first, url, digests)
        return sorted(infos, key=lambda info: info.name)

    def _digests_of(self, ask: Callable[..., tuple[str, list[FunctionInfo]]], url: str) -> tuple[str, dict[str, str]]:
        """Return the digests of a server's functions; none if it does not answer: exchanges report that."""
        deadline_s = min(self._deadline_s, _COMPARED_S_MAX)
        options = fl.FlightCallOptions(timeout=deadline_s, headers=_headers(self._token))
        try:
            _, infos = ask(_connections_of_this_process().client(url, self._deadline_s, self._tls), options, url)
        except (pa.ArrowException, OSError, FoldflightError):
            return url, {}
        return url, {info.name: info.code_digest for info in infos}

    def _check_code(self, first: str, url: str, digests: Mapping[str, str]) -> None:
        """Warn of two servers with different code of functions, or refuse them if `strict`."""
        other = other_code(self._code_digests, digests)
        if not other:
            return
        message = (
            f"{first} and {url} have different code of {', '.join(other)}, so the tasks of one query may use either; "
            "deploy the same code on all servers"
        )
        if self._strict:
            raise RejectedError("STATE_MISMATCH", message, function=other[0])
        fields = {"functions": ", ".join(other), "servers": f"{first}, {url}"}
        set_up_logger(_LOGGER, logging.WARNING).warning("%s", message, extra={"event": "different code", **fields})

    def register(self, functions: Sequence[AnyFunction]) -> list[FunctionInfo]:
        """Sign functions, check with one server that it accepts them, and send them with each exchange that calls them.

        Servers do not store the functions: every Open contains those that it calls.

        Raises:
            RejectedError: SETTINGS if the client or the server has no key; UNAUTHENTICATED for a wrong key; MODULE for
                other versions of Python; SIGNATURE if a name is taken or an object cannot be pickled; LIMIT.
        """
        if self._bundle_key is None:
            raise RejectedError(
                "SETTINGS",
                "functions can be shipped only with a signature; pass a bundle key of the servers to "
                "connect(..., bundle_key=...)",
            )
        bundle = bundle_of(functions, self._bundle_key)

        def ask(client: Any, options: Any, _url: str) -> list[FunctionInfo]:
            answers = list(client.do_action(fl.Action(REGISTER_ACTION, bundle), options))
            return [decode_info(answer.body.to_pybytes()) for answer in answers]

        infos = self._ask_servers(ask)
        self._bundles.update({function.name: bundle for function in functions})
        self._code_digests.update({info.name: info.code_digest for info in infos})
        return infos

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return the Opened of an exchange, from any server, without opening it. Raises the errors of opening."""
        descriptor = fl.FlightDescriptor.for_command(encode_open(self._complete(open)))

        def ask(client: Any, options: Any, url: str) -> Opened:
            flight = client.get_flight_info(descriptor, options)
            metadata = app_metadata_in(flight.serialize())
            open_reply = _check_opened(decode(Message(metadata, _empty_batch(flight.schema)), Role.SERVER), url)
            refusal = strict_code_error(open, open_reply, self._code_digests) if self._strict else None
            if refusal is not None:
                raise refusal
            return open_reply

        return self._ask_servers(ask, patience_s=self._bounds.patience_s)

    def status(self) -> dict[str, Any]:
        """Return the status of the fleet, which `foldflight.server.ops.status` documents.

        Raises:
            RetryableError: UNREACHABLE or DEADLINE.
            RejectedError: UNAUTHENTICATED; BAD_FRAME if the server does not have this action.
        """

        def ask(client: Any, options: Any, _url: str) -> dict[str, Any]:
            answers = list(client.do_action(fl.Action("status", b""), options))
            status: dict[str, Any] = json.loads(answers[0].body.to_pybytes())
            return status

        return self._ask_servers(ask)

    def open(self, open: Open, *, resolve: Resolve | None = None) -> FailoverExchange:  # noqa: A002
        """Open an exchange on the next server in turn, or on the first one after it that accepts the exchange.

        Args:
            open: The frame that opens it.
            resolve: For `Open.keeps_views`: answers questions for entries of views.

        Raises:
            RetryableError: The error of the last server, if none accepts the exchange in time.
        """
        check_resolve(open, resolve)
        open_request = self._complete(open)
        circuits, clock = _connections_of_this_process().circuits, _Clock()
        if (turn := take_first_turn()) is not None:
            circuits.begin(turn)
        coordinator = Coordinator(
            open_request,
            self.urls,
            circuits,
            bounds=self._bounds,
            now_s=clock.now_s,
            code_digests=self._code_digests,
            strict=self._strict,
        )
        dial: Callable[[str, Open], Connection] = functools.partial(self._dial, resolve=resolve)
        if self.otlp_endpoint is not None:
            from foldflight.client.connection_spans import traced_dial

            dial = traced_dial(dial, self.otlp_endpoint)
        return FailoverExchange(open_request, coordinator, dial, clock)

    def _dial(self, url: str, open_request: Open, *, resolve: Resolve | None) -> FlightConnection:
        connections = _connections_of_this_process()
        try:
            client = connections.client(url, self._deadline_s, self._tls)
            return FlightConnection(
                open_request, client, url, deadline_s=self._deadline_s, token=self._token, resolve=resolve
            )
        except Exception as error:
            translated_error = translate_error(error, url=url, deadline_s=self._deadline_s)
            if translated_error is error:
                raise
            raise translated_error from None

    def _complete(self, open_request: Open) -> Open:
        return dataclasses.replace(
            open_request,
            job_parameters={**self._job_parameters, **open_request.job_parameters},
            call_scope=open_request.call_scope or call_scope(),
            bundles=tuple(
                dict.fromkeys(self._bundles[name] for name in open_request.functions if name in self._bundles)
            ),
        )

    def _ask_servers(self, ask: Callable[[Any, Any, str], R], *, patience_s: float = 0.0) -> R:
        """Ask the servers in turn until one answers. Only after a retryable error is the next one asked.

        Within `patience_s` all servers are asked repeatedly, because one URL may be a load balancer in front of many
        servers.
        """
        connections = _connections_of_this_process()
        circuits = connections.circuits
        patience = Patience(self.urls, patience_s, _Clock)
        while True:
            problems: dict[str, RetryableError] = {}
            for url in circuits.turn(self.urls, time.monotonic()):
                try:
                    options = fl.FlightCallOptions(timeout=self._deadline_s, headers=_headers(self._token))
                    answer = ask(connections.client(url, self._deadline_s, self._tls), options, url)
                except Exception as error:  # noqa: BLE001  (translated, never swallowed)
                    problem = translate_error(error, url=url, deadline_s=self._deadline_s)
                    if not isinstance(problem, RetryableError):
                        raise problem from None
                    circuits.record_failure(url, time.monotonic())
                    connections.drop(url, problem)
                    problems[url] = problem
                else:
                    circuits.record_success(url)
                    return answer
            until_s = circuits.available_at_s(self.urls)
            problem = problems[url]
            if len(problems) > 1:
                problem = RetryableError(problem.code, problem_of(problems))
            if not patience.lasts_until(until_s):
                raise problem
            patience.rest_until(until_s, problem)


class FlightConnection(Connection):
    """One exchange over a DoExchange stream. After an error it is cancelled, so that the server frees it at once.

    A connection that is dropped without `close` is cancelled, too, with a ResourceWarning.
    """

    def __init__(
        self,
        open_request: Open,
        client: Any,
        url: str,
        *,
        deadline_s: float,
        token: str | None,
        resolve: Resolve | None = None,
    ) -> None:
        super().__init__(open_request, resolve)
        self._deadline_s = deadline_s
        self._url = url
        self._schema = open_request.columns
        self._encode, self._decode = Encoder(open_request.columns), Decoder(Role.SERVER)
        self._has_ended = False
        descriptor = fl.FlightDescriptor.for_command(encode_open(open_request))
        options = fl.FlightCallOptions(headers=_headers(token))
        self._writer, self._reader = client.do_exchange(descriptor, options)
        self._guard = Guard(deadline_s, self._reader.cancel)
        self._opened_by = os.getpid()
        try:
            self._begin()
        except BaseException:
            self.cut()
            raise

    def __del__(self) -> None:
        # Without `_opened_by`, the stream was not opened. After a fork, the stream is the parent's.
        if self.__dict__.get("_opened_by") == os.getpid() and not self._is_closed:
            warnings.warn(
                f"an exchange with {self._url} was dropped before it was closed; open it in a `with` statement",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
            self.cut()

    def _write(self, frame: Frame) -> None:
        message = self._encode(frame)
        try:
            with self._guard:
                self._writer.write_with_metadata(message.batch, message.metadata)
        except Exception as error:  # noqa: BLE001  (translated, never swallowed)
            raise self._translate(error) from None

    def _read(self) -> Frame | None:
        try:
            with self._guard:
                chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        except Exception as error:  # noqa: BLE001  (translated, never swallowed)
            raise self._translate(error) from None
        metadata = chunk.app_metadata
        return self._decode(Message(b"" if metadata is None else metadata.to_pybytes(), chunk.data))

    def _begin(self) -> None:
        try:
            with self._guard:
                self._writer.begin(self._schema)
        except Exception as error:  # noqa: BLE001  (translated, never swallowed)
            raise self._translate(error) from None
        self._start()

    def _translate(self, error: Exception) -> BaseException:
        translated_error = translate_error(
            error, url=self._url, deadline_s=self._deadline_s, is_expired=self._guard.expired
        )
        if isinstance(translated_error, RetryableError):
            _connections_of_this_process().drop(self._url, translated_error)
        return translated_error

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            if self._has_failed:
                self._reader.cancel()
            else:
                self._finish_stream()
        finally:
            try:
                self._close_writer()
            finally:
                self._guard.close()

    def _finish_stream(self) -> None:
        """Close the direction to the server, and wait until the server has ended and freed the exchange."""
        try:
            with self._guard:
                self._writer.done_writing()
                while True:
                    self._reader.read_chunk()
        except StopIteration:
            pass
        except (pa.ArrowException, OSError):
            self._reader.cancel()  # all results have arrived, so losing the server now has no effect

    def _close_writer(self) -> None:
        try:
            with self._guard:
                self._writer.close()
        except (pa.ArrowException, OSError):
            pass  # pyarrow raises the error of the stream again, which has been reported


class _Clock:
    now_s = staticmethod(time.monotonic)

    @staticmethod
    def rest_until(until_s: float) -> None:
        time.sleep(max(until_s - time.monotonic(), 0.0))


class _Connections:
    """The connections of one process, and the circuit breakers of their servers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, float, Tls], Any] = {}
        # Each process starts with a random server, so that many workers with few exchanges each spread evenly.
        self.circuits = Circuits(random.random, first_turn=random.randrange(2**16))  # noqa: S311  (not for secrets)

    def client(self, url: str, deadline_s: float, tls: Tls) -> Any:
        key = url, deadline_s, tls
        with self._lock:
            if key not in self._clients:
                self._clients[key] = fl.FlightClient(url, generic_options=_options(deadline_s), **dict(tls))
            return self._clients[key]

    def drop(self, url: str, error: RetryableError) -> None:
        """Remove the connections to a server that is gone."""
        if error.code in _GONE:
            with self._lock:
                for key in [key for key in self._clients if key[0] == url]:
                    del self._clients[key]  # open exchanges keep a reference until they end

    def close(self) -> None:
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.close()


_connections: dict[int, _Connections] = {}


def _connections_of_this_process() -> _Connections:
    """Return the connections of this process. PySpark forks its workers, and gRPC connections do not survive a fork."""
    pid = os.getpid()
    # `setdefault` is atomic, so threads that arrive at the same time get the same object.
    return _connections.get(pid) or _connections.setdefault(pid, _Connections())


def close_connections() -> None:
    """Close the cached connections of this process. Later calls connect again."""
    _connections_of_this_process().close()


def _headers(token: str | None) -> list[tuple[bytes, bytes]]:
    return [] if token is None else [(b"authorization", f"Bearer {token}".encode())]


def _check_opened(frame: Frame, url: str) -> Opened:
    if not isinstance(frame, Opened):
        raise RetryableError("UNREACHABLE", f"{url} answered with {type(frame).__name__} instead of Opened")
    return frame


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class Guard:
    """Cancels an exchange if one of its steps takes longer than the deadline.

    Use it as a context manager around each step. `close` ends the monitoring.

    Args:
        deadline_s: Longest time of one step.
        cancel: Ends the blocked call. It is called at most once, from the thread of the watchdog.
    """

    def __init__(self, deadline_s: float, cancel: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self.expired = False
        self._cancel = cancel
        self._due: float | None = None
        self._watch = _watch_of_this_process()
        self._watch.add(self)

    def __enter__(self) -> None:
        self._due = time.monotonic() + self.deadline_s

    def __exit__(self, *exception: object) -> None:
        self._due = None

    def look(self, now: float) -> None:
        """Cancel if the current step is overdue."""
        due = self._due
        if due is not None and now >= due and not self.expired:
            self.expired = True
            self._cancel()

    def close(self) -> None:
        """End the monitoring. It is safe to call this twice."""
        self._due = None
        self._watch.remove(self)


class _Watch:
    def __init__(self) -> None:
        self._guards: set[Guard] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, guard: Guard) -> None:
        with self._condition:
            self._guards.add(guard)
            self._condition.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="foldflight-deadlines", daemon=True)
                self._thread.start()

    def remove(self, guard: Guard) -> None:
        with self._condition:
            self._guards.discard(guard)
            if not self._guards:
                self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._guards:
                    self._thread = None
                    return
                # A copy: the garbage collector may end another exchange, which removes its guard, in any step.
                shortest = min(guard.deadline_s for guard in list(self._guards))
                self._condition.wait(min(max(shortest / _LOOKS_PER_DEADLINE, _PAUSE_S_MIN), _PAUSE_S_MAX))
                guards = list(self._guards)
            now = time.monotonic()
            for guard in guards:
                guard.look(now)


_watches: dict[int, _Watch] = {}


def _watch_of_this_process() -> _Watch:
    """Return the watchdog of this process. After a fork, the thread and lock of the parent are not usable."""
    pid = os.getpid()
    # `setdefault` is atomic, so threads that arrive at the same time get the same object.
    return _watches.get(pid) or _watches.setdefault(pid, _Watch())
