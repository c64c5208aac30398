"""Floods of connections and streams that are silent, slow, send wrong lengths, or are abandoned.

While they stand, a server has a bounded number of threads and serves a good client; when they end, or when the server
has hung up on them, it holds what it held before.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foldflight.client import FlightTransport, close_connections
from foldflight.functions.query.call import Call
from tests.hostile.forging import messages_of
from tests.wire.kit import DEADLINE_S, PATIENCE_S, ServerProcess, end_epoch, eventually, open_request, rows
from tests.wire.raw import RawClient, flight_data
from tests.wire.test_load import resources_of

Fork = Callable[..., ServerProcess]
COUNT = Call("count", ())
CONNECTIONS = 1500
STREAMS_EACH = 20
# What a server may have besides one thread for each call that it takes: gRPC's own, the watches, the pages.
THREADS_MAX = 96

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
END_HEADERS = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """Return a header as an HPACK literal without indexing; name and value are shorter than 127 bytes."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def request(path: bytes) -> bytes:
    """Return the headers of a gRPC request."""
    return b"\x83\x86" + b"".join(  # POST, http
        header(name, value)
        for name, value in (
            (b":path", path),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )


EXCHANGE = request(b"/arrow.flight.protocol.FlightService/DoExchange")
CHECK = request(b"/grpc.health.v1.Health/Check")
BEGIN = PREFACE + frame(SETTINGS, 0, 0)


def silent_streams(path: bytes) -> bytes:
    """Return the bytes that open silent streams on a connection."""
    return BEGIN + b"".join(frame(HEADERS, END_HEADERS, 2 * each + 1, path) for each in range(STREAMS_EACH))


def cancelled_streams(path: bytes) -> bytes:
    """Return the bytes that open streams and cancel each at once."""
    return BEGIN + b"".join(
        frame(HEADERS, END_HEADERS, 2 * each + 1, path) + frame(RST_STREAM, 0, 2 * each + 1, struct.pack(">I", 8))
        for each in range(STREAMS_EACH)
    )


ATTACKS = {
    "idle": b"",
    "half a preface": PREFACE[:12],
    "a preface": PREFACE,
    "no requests": BEGIN,
    "headers without end": BEGIN + frame(HEADERS, 0, 1, EXCHANGE),
    "silent streams": silent_streams(EXCHANGE),
    "cancelled streams": cancelled_streams(EXCHANGE),
    "silent unary calls": silent_streams(request(b"/arrow.flight.protocol.FlightService/GetFlightInfo")),
    "megabytes of metadata": BEGIN
    + frame(HEADERS, 0, 1, EXCHANGE)
    + b"".join(frame(CONTINUATION, 0, 1, header(b"x-pad", bytes(100)) * 140) for _ in range(10)),
    "no HTTP": b"\xff" * 64,
}


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Raise the limit of open files of this process and its servers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    close_connections()


@contextlib.contextmanager
def flood(port: int, speech: bytes, count: int = CONNECTIONS) -> Iterator[list[socket.socket]]:
    """Keep connections open after sending these bytes; a server may close them at any time."""
    connections = []
    try:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            connections.append(connection)
            with contextlib.suppress(OSError):
                connection.sendall(speech)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def processes_of(server: ServerProcess) -> list[int]:
    return [server.process.pid, *server.ready.get("workers", ())]


def held_by(server: ServerProcess) -> dict[str, int]:
    """Return the resources of all processes of a server."""
    each = [resources_of(process) for process in processes_of(server)]
    return {name: sum(one[name] for one in each) for name in each[0]}


def cpu_s(server: ServerProcess) -> float:
    """Return the CPU time of all processes of a server so far, in seconds."""
    fields = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in processes_of(server)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / 100


def folds(server: ServerProcess) -> bool:
    """Return whether a new client is served."""
    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0), (0, 0)))
        return bool(end_epoch(exchange, 1)["output_0"].to_pylist() == [2])


def settle(server: ServerProcess) -> dict[str, int]:
    """Return the resources of a server that has served and is idle."""
    assert folds(server)
    close_connections()
    time.sleep(0.5)
    return held_by(server)


def is_back(server: ServerProcess, before: dict[str, int]) -> bool:
    now = held_by(server)
    return (
        now["threads"] <= before["threads"] + 8 * len(processes_of(server))  # gRPC keeps a few of its own
        and now["files"] <= before["files"] + 8
        and now["kib"] <= before["kib"] + 160 * 1024
    )


def is_quiet(server: ServerProcess) -> bool:
    """Return whether a server is idle."""
    cpu_before = cpu_s(server)
    time.sleep(1.0)
    return cpu_s(server) - cpu_before < 0.2


def assert_back(server: ServerProcess, before: dict[str, int]) -> None:
    """Threads, files and memory are about as before, and the server is idle."""
    assert eventually(lambda: is_back(server, before)), (before, held_by(server))
    assert eventually(lambda: is_quiet(server))
    assert server.process.poll() is None


def mostly_slow(attacks: Iterable[str], *quick: str) -> list[Any]:
    """Return the attacks as parameters; those that are not named are slow."""
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in attacks]


@pytest.mark.parametrize("attack", mostly_slow(ATTACKS, "headers without end"))
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_flight_port_survives_a_flood(fork: Fork, attack: str, workers: int) -> None:
    """A well-behaved client is served during the flood, and all resources are freed when it ends."""
    server = fork(workers=workers, exchanges_max=16)
    before = settle(server)
    with flood(server.ready["flight"], ATTACKS[attack]):
        assert held_by(server)["threads"] <= before["threads"] + workers * THREADS_MAX
        assert folds(server)
        assert held_by(server)["threads"] <= before["threads"] + workers * THREADS_MAX
    close_connections()
    assert_back(server, before)


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "attack",
    mostly_slow(["idle", "half a preface", "a preface", "no requests", "silent streams"], "half a preface"),
)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_server_hangs_up(fork: Fork, attack: str, workers: int) -> None:
    """Silent clients are all disconnected."""
    server = fork(workers=workers, exchanges_max=16)
    before = settle(server)
    with flood(server.ready["flight"], ATTACKS[attack], 300):
        close_connections()
        assert_back(server, before)


def end_of(call: grpc.Call) -> grpc.RpcError:
    """Read a stream to its end and return its error."""
    with pytest.raises(grpc.RpcError) as excinfo:
        list(call)
    return excinfo.value


def test_silent_exchanges_are_ended(fork: Fork) -> None:
    """A silent exchange frees its thread, and its engine gets the reason."""
    server = fork(exchanges_max=16, idle_s_max=1.0)
    before = settle(server)
    client = RawClient(f"127.0.0.1:{server.ready['flight']}")
    columns = open_request(COUNT).columns
    schema = messages_of(rows((0, 0)))[0]
    assert columns == rows((0, 0)).schema
    calls = [client.open_silently([flight_data(schema, request=open_request(COUNT))]) for _ in range(16)]
    with ThreadPoolExecutor(16) as threads:
        ends = list(threads.map(end_of, calls))
    assert {end.code() for end in ends} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert all("idle_s_max" in end.details() for end in ends)
    client.close()
    assert_back(server, before)


def test_silent_streams_do_not_keep_engines_out(fork: Fork) -> None:
    """However many streams are silent, a new one is accepted: the longest silent one is ended."""
    server = fork(exchanges_max=4)
    before = settle(server)
    clients = [RawClient(f"127.0.0.1:{server.ready['flight']}") for _ in range(4)]
    for client in clients:
        for _ in range(60):
            client.open_silently()
    time.sleep(1.0)
    for _ in range(10):
        assert folds(server)
        close_connections()
    for client in clients:
        client.close()
    assert_back(server, before)


@pytest.mark.slow
def test_calls_without_a_token_get_no_thread(fork: Fork) -> None:
    """If tokens are required, a stream without one is refused before it gets a thread."""
    token = "a token for the floods"
    server = fork(exchanges_max=16, tokens=token)
    url = server.url
    transport = FlightTransport([url], deadline_s=DEADLINE_S, token=token)
    transport.open(open_request(COUNT)).close()
    before = held_by(server)
    with flood(server.ready["flight"], ATTACKS["silent streams"]):
        assert held_by(server)["threads"] <= before["threads"] + 8
        transport.open(open_request(COUNT)).close()
    close_connections()
    assert_back(server, before)


@pytest.mark.slow
def test_a_low_limit_of_files_lowers_the_connections(fork: Fork) -> None:
    """With a low limit of open files a server accepts fewer connections on all ports, and keeps files for the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    server = fork(workers=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    before = settle(server)
    with flood(server.ready["health"], b"", 300), flood(server.ready["flight"], b"", 300):
        assert held_by(server)["files"] < 300
        with urllib.request.urlopen(f"http://127.0.0.1:{server.ready['http']}/readyz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        assert folds(server)  # once the server has hung up on those that say nothing
    close_connections()
    assert_back(server, before)


HTTP_ATTACKS = {"idle": b"", "half a request": b"GET /metr", "headers without end": b"GET / HTTP/1.1\r\nX: y\r\n"}


@pytest.mark.slow
@pytest.mark.parametrize("attack", HTTP_ATTACKS)
def test_the_http_port_survives_incomplete_requests(fork: Fork, attack: str) -> None:
    """The pages are served while incomplete requests are open, and these are disconnected."""
    server = fork()
    before = settle(server)
    with flood(server.ready["http"], HTTP_ATTACKS[attack]):
        assert held_by(server)["threads"] <= before["threads"] + 8
        for page in ("healthz", "metrics"):
            with urllib.request.urlopen(
                f"http://127.0.0.1:{server.ready['http']}/{page}", timeout=PATIENCE_S
            ) as answer:
                assert answer.status == 200
        assert_back(server, before)


@pytest.mark.every_turn
def test_a_client_that_sends_slowly_is_disconnected(fork: Fork) -> None:
    """A client that sends single bytes slowly is disconnected."""
    server = fork()
    before = settle(server)
    with flood(server.ready["http"], b"GET / HTTP/1.1\r\n", 50) as connections:

        def all_gone() -> bool:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(b"X")
            time.sleep(0.2)
            return is_back(server, before)

        assert eventually(all_gone)


def test_a_client_that_reads_slowly_is_disconnected(fork: Fork) -> None:
    """A client that requests a long page and does not read it is disconnected."""
    server = fork()
    before = settle(server)
    with flood(server.ready["http"], b"GET /metrics HTTP/1.1\r\n\r\n", 50):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.ready['http']}/healthz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        assert_back(server, before)


def is_alive(channel: grpc.Channel) -> bool:
    health_request = health_pb2.HealthCheckRequest(service="liveness")
    with contextlib.suppress(grpc.RpcError):
        return int(health_pb2_grpc.HealthStub(channel).Check(health_request, timeout=5).status) == 1
    return False


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["idle", "a preface", "silent checks"])
def test_probes_are_answered_during_silent_calls(fork: Fork, attack: str) -> None:
    """Probes are answered during silent calls; otherwise an orchestrator would kill the server."""
    server = fork()
    before = settle(server)
    speech = {**ATTACKS, "silent checks": silent_streams(CHECK)}[attack]
    with flood(server.ready["health"], speech):
        assert held_by(server)["threads"] <= before["threads"] + THREADS_MAX
        with grpc.insecure_channel(f"127.0.0.1:{server.ready['health']}") as channel:
            for _ in range(5):
                assert eventually(lambda: is_alive(channel))
    assert_back(server, before)
