"""The Flight transport: connections cached per process, a deadline on every step, several servers in turns.

What is asked once (`infos`, `describe`) is asked of one server after another. An exchange survives its server: see
`failover`. A `FlightLink` is one link of it.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.client.edge import translated
from foldflight.client.exchange import OpenExchange
from foldflight.client.failover import SurvivingLink
from foldflight.client.link import Link
from foldflight.client.watchdog import Guard
from foldflight.errors import RejectedError, RetryableError
from foldflight.exchange.codec import Message, decode, encode, encode_open
from foldflight.exchange.facts import decode_info
from foldflight.exchange.failover.circuits import Circuits
from foldflight.exchange.failover.coordinator import Coordinator
from foldflight.exchange.failover.steps import Bounds
from foldflight.exchange.frames import Frame, FunctionInfo, Open, Opened
from foldflight.exchange.machine import Role
from foldflight.shipping.bundles import REGISTER_ACTION
from foldflight.shipping.pickling import bundle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from foldflight.functions.spec import Function

__all__ = ["FlightTransport", "close_connections", "server_url", "server_urls"]

_SCHEMES = frozenset({"grpc", "grpc+tls"})
_GONE = frozenset({"UNREACHABLE", "DEADLINE"})

R = TypeVar("R")
Tls = tuple[tuple[str, bytes], ...]

_OPTIONS = [
    ("grpc.max_metadata_size", 64 * 1024),  # errors travel in trailers
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The pings themselves are as rare as servers allow; but only with them does gRPC set TCP_USER_TIMEOUT, below.
    ("grpc.keepalive_time_ms", 300_000),
    # A connection without calls ends before the server ends it, which gRPC would log.
    ("grpc.client_idle_timeout_ms", 10_000),
]


def _options(deadline_s: float) -> list[tuple[str, int]]:
    """Return the channel's options.

    A write that waits for a hung server's full socket cannot be cancelled: the cancellation waits behind it. The kernel
    can end the connection, though, when nothing was taken for `grpc.keepalive_timeout_ms` (TCP_USER_TIMEOUT).
    """
    return [*_OPTIONS, ("grpc.keepalive_timeout_ms", max(int(deadline_s * 1000), 500))]


def server_urls(target: str) -> tuple[str, ...]:
    """Return the URLs of servers that a text names, separated by commas.

    Raises:
        RejectedError: SIGNATURE, when there are none, or one is not `grpc://host:port` or `grpc+tls://host:port`.
    """
    urls = [url for url in target.split(",") if url.strip()]
    return tuple(server_url(url) for url in urls or (target,))


def server_url(url: str) -> str:
    """Return the URL of one server. Raises RejectedError SIGNATURE for what is none."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or "," in url:
        raise RejectedError("SIGNATURE", f"{url!r} is no server; give grpc://host:port or grpc+tls://host:port")
    return url


class FlightTransport:
    """Folds on Flight servers.

    Args:
        urls: The servers, `grpc://host:port` or `grpc+tls://host:port`; they take turns, and one that fails is passed
            over for a while.
        deadline_s: Longest wait for any one step.
        bounds: What it may cost that exchanges survive their servers.
        token: Bearer token, if the servers ask for one.
        tls: Certificates as pyarrow's client takes them: `tls_root_certs`, `cert_chain`, `private_key`, PEM.
        job_parameters: What `FunctionContext.job_parameters` shows; those of an Open win.
        bundle_key: Signs functions that are registered. It stays in this process; what it has signed travels.

    It holds no connection itself, so it can be pickled, and used on both sides of a fork.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        deadline_s: float,
        bounds: Bounds | None = None,
        token: str | None = None,
        tls: Mapping[str, bytes] | None = None,
        job_parameters: Mapping[str, str] | None = None,
        bundle_key: str | None = None,
    ) -> None:
        self.urls = tuple(urls)
        self._bounds = Bounds() if bounds is None else bounds
        self._deadline_s = deadline_s
        self._token = token
        self._tls = tuple(sorted((tls or {}).items()))
        self._job_parameters = dict(job_parameters or {})
        self._bundle_key = bundle_key
        self._bundles: dict[str, bytes] = {}  # name of a function to the bundle that it is in

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bundle_key": None}

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:  # noqa: ARG002 - servers have looked already
        """Return what the servers offer, by name (they are taken to offer the same).

        Raises:
            RetryableError: UNREACHABLE or DEADLINE, when no server answers.
        """

        def ask(client: Any, options: Any, _url: str) -> list[FunctionInfo]:
            return [decode_info(flight.app_metadata) for flight in client.list_flights(options=options)]

        return sorted(self._on_any(ask), key=lambda info: info.name)

    def register(self, functions: Sequence[Function]) -> list[FunctionInfo]:
        """Sign functions, ask a server whether it takes them, and bring them along with each exchange that calls them.

        No server has to remember them: whichever takes an exchange finds them in its Open.

        Raises:
            RejectedError: SETTINGS without a key here or there, UNAUTHENTICATED for a wrong one, MODULE for other
                versions of Python, SIGNATURE for a name that is taken or what cannot be pickled, LIMIT.
        """
        if self._bundle_key is None:
            raise RejectedError(
                "SETTINGS",
                "functions are shipped signed: give connect(..., bundle_key=...) a bundle key of the servers",
            )
        bundle = bundle_of(functions, self._bundle_key)

        def ask(client: Any, options: Any, _url: str) -> list[FunctionInfo]:
            answers = client.do_action(fl.Action(REGISTER_ACTION, bundle), options)
            return [decode_info(answer.body.to_pybytes()) for answer in answers]

        infos = self._on_any(ask)
        self._bundles.update({function.name: bundle for function in functions})
        return infos

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return what an exchange would be opened with, from any server. Raises what opening would, as late."""
        descriptor = fl.FlightDescriptor.for_command(encode_open(self._complete(open)))

        def ask(client: Any, options: Any, url: str) -> Opened:
            flight = client.get_flight_info(descriptor, options)
            return _opened(decode(Message(flight.app_metadata, _empty(flight.schema)), Role.SERVER), url)

        return self._on_any(ask, patience_s=self._bounds.patience_s)

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        """Open an exchange on the server whose turn it is, or on the next one that takes it.

        Raises:
            RetryableError: The last server's error, when none takes it in time.
        """
        opening = self._complete(open)
        coordinator = Coordinator(opening, self.urls, _connections_of_this_process().circuits, bounds=self._bounds)
        return OpenExchange(SurvivingLink(coordinator, self._dial, _Clock()), opening)

    def _dial(self, url: str, opening: Open) -> FlightLink:
        connections = _connections_of_this_process()
        try:
            client = connections.client(url, self._deadline_s, self._tls)
            return FlightLink(opening, client, url, deadline_s=self._deadline_s, token=self._token)
        except Exception as error:
            known = translated(error, url=url, deadline_s=self._deadline_s)
            if known is error:
                raise
            raise known from None

    def _complete(self, opening: Open) -> Open:
        return dataclasses.replace(
            opening,
            job_parameters={**self._job_parameters, **opening.job_parameters},
            bundles=tuple(
                dict.fromkeys(self._bundles[call.function] for call in opening.calls if call.function in self._bundles)
            ),
        )

    def _on_any(self, ask: Callable[[Any, Any, str], R], *, patience_s: float = 0.0) -> R:
        """Ask the servers in turn until one answers; only a retryable error moves on to the next.

        With patience they are asked again and again: behind the one name of a balancer may be others.
        """
        connections = _connections_of_this_process()
        circuits = connections.circuits
        give_up_s = time.monotonic() + patience_s
        while True:
            for url in circuits.turn(self.urls, time.monotonic()):
                try:
                    options = fl.FlightCallOptions(timeout=self._deadline_s, headers=_headers(self._token))
                    answer = ask(connections.client(url, self._deadline_s, self._tls), options, url)
                except Exception as error:  # noqa: BLE001  (translated, never swallowed)
                    problem = translated(error, url=url, deadline_s=self._deadline_s)
                    if not isinstance(problem, RetryableError):
                        raise problem from None
                    circuits.failed(url, time.monotonic())
                    connections.drop(url, problem)
                else:
                    circuits.worked(url)
                    return answer
            until_s = circuits.rested_at_s(self.urls)
            if until_s >= give_up_s:
                raise problem
            _Clock.rest_until(until_s)


class FlightLink(Link):
    """One exchange over a DoExchange stream. After an error the stream is cancelled, so the server frees it at once."""

    def __init__(self, opening: Open, client: Any, url: str, *, deadline_s: float, token: str | None) -> None:
        super().__init__(opening)
        self._deadline_s = deadline_s
        self._url = url
        self._schema = opening.columns
        self._ended = False
        descriptor = fl.FlightDescriptor.for_command(encode_open(opening))
        options = fl.FlightCallOptions(headers=_headers(token))
        self._writer, self._reader = client.do_exchange(descriptor, options)
        self._guard = Guard(deadline_s, self._reader.cancel)
        try:
            self._step(lambda: self._writer.begin(self._schema))
            self._start()
        except BaseException:
            self.cut()
            raise

    def _write(self, frame: Frame) -> None:
        message = encode(frame, self._schema)
        self._step(lambda: self._writer.write_with_metadata(message.batch, message.metadata))

    def _read(self) -> Frame | None:
        try:
            received = self._step(self._reader.read_chunk)
        except StopIteration:
            return None
        metadata = received.app_metadata
        return decode(Message(b"" if metadata is None else metadata.to_pybytes(), received.data), Role.SERVER)

    def _step(self, call: Callable[[], R]) -> R:
        try:
            with self._guard:
                return call()
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001  (translated, never swallowed)
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> BaseException:
        known = translated(error, url=self._url, deadline_s=self._deadline_s, expired=self._guard.expired)
        if isinstance(known, RetryableError):
            _connections_of_this_process().drop(self._url, known)
        return known

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            if self._failed:
                self._reader.cancel()
            else:
                self._close_politely()
        finally:
            self._guard.close()
            self._drop_stream()

    def _close_politely(self) -> None:
        """Say that no more comes and wait for the server to end: then it has freed the exchange."""
        try:
            with self._guard:
                self._writer.done_writing()
                while True:
                    self._reader.read_chunk()
        except StopIteration:
            pass
        except (pa.ArrowException, OSError):
            self._reader.cancel()  # all results are in: a server lost now loses nothing

    def _drop_stream(self) -> None:
        try:
            with self._guard:
                self._writer.close()
        except (pa.ArrowException, OSError):
            pass  # says again what the stream ended with


class _Clock:
    @staticmethod
    def now_s() -> float:
        return time.monotonic()

    @staticmethod
    def rest_until(until_s: float) -> None:
        time.sleep(max(until_s - time.monotonic(), 0.0))


class _Connections:
    """The connections of one process, and which servers failed lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, float, Tls], Any] = {}
        # Each process starts with another server, so that many workers with few exchanges each spread evenly.
        self.circuits = Circuits(random.random, first_turn=random.randrange(2**16))  # noqa: S311  (not for secrets)

    def client(self, url: str, deadline_s: float, tls: Tls) -> Any:
        key = url, deadline_s, tls
        with self._lock:
            if key not in self._clients:
                self._clients[key] = fl.FlightClient(url, generic_options=_options(deadline_s), **dict(tls))
            return self._clients[key]

    def drop(self, url: str, error: RetryableError) -> None:
        """Forget the connection to a server that is gone."""
        if error.code in _GONE:
            with self._lock:
                for key in [key for key in self._clients if key[0] == url]:
                    del self._clients[key]  # open exchanges on it keep it until they end

    def close(self) -> None:
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.close()


_connections: dict[int, _Connections] = {}


def _connections_of_this_process() -> _Connections:
    """Return this process's connections: gRPC's do not survive a fork, and PySpark forks its workers."""
    pid = os.getpid()
    # Threads that come first at the same time get the same: `setdefault` is one step.
    return _connections.get(pid) or _connections.setdefault(pid, _Connections())


def close_connections() -> None:
    """Close this process's cached connections; later calls connect again."""
    _connections_of_this_process().close()


def _headers(token: str | None) -> list[tuple[bytes, bytes]]:
    return [] if token is None else [(b"authorization", f"Bearer {token}".encode())]


def _opened(frame: Frame, url: str) -> Opened:
    if not isinstance(frame, Opened):
        raise RetryableError("UNREACHABLE", f"{url} answered with {type(frame).__name__} where Opened was due")
    return frame


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
