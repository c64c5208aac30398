"""Pings of HTTP/2: clients may ask whether a server lives while they wait for it, and may not flood it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import grpc
import pytest

from foldflight.functions.query.call import Call
from tests.wire.conftest import ProcessServer
from tests.wire.kit import open_request
from tests.wire.raw import DO_EXCHANGE, flight_data

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ENHANCE_YOUR_CALM = 11
PINGS_S = 0.7
SILENT_S = 5.0  # gRPC's default ends such a connection after 3.5 s


def frame(kind: int, content: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 for the whole connection."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, 0, 0) + content


@pytest.mark.every_turn
def test_a_client_may_ping_while_it_waits(server: ProcessServer) -> None:
    """An exchange in which no data is sent goes on, however often its client has asked whether the server lives."""
    options = [
        ("grpc.keepalive_time_ms", int(PINGS_S * 1000)),
        ("grpc.keepalive_timeout_ms", 60_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    may_end = threading.Event()

    def messages() -> Iterator[bytes]:
        yield flight_data(request=open_request(Call("count")))
        may_end.wait(SILENT_S)

    with grpc.insecure_channel(server.url.removeprefix("grpc://"), options=options) as channel:
        try:
            list(channel.stream_stream(DO_EXCHANGE)(messages(), timeout=60))  # raises UNAVAILABLE, "Too many pings"
        finally:
            may_end.set()


def test_a_flood_of_pings_ends_the_connection(server: ProcessServer) -> None:
    """A client that sends pings one after the other is told to be calm, and disconnected."""
    host, port = server.url.removeprefix("grpc://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(PREFACE + frame(SETTINGS) + frame(PING, bytes(8)) * 100)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # the end of a connection whose pings are not all read
            while more := connection.recv(65536):
                answer += more
    assert frame(GOAWAY)[3:9] in answer
    assert struct.pack(">I", ENHANCE_YOUR_CALM) + b"too_many_pings" in answer
