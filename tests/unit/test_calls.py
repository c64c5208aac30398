"""A call of the server, without a network: what its client gets, and when."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest

from foldflight.server.rpc_server import CallStatus, IncomingCall, VanishedError

NO_MEMORY = CallStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, "no memory")


class Client:
    """What a call knows of its client: the messages that it has read, and the status."""

    def __init__(self) -> None:
        self.read: list[bytes | str] = []
        self.is_reading = threading.Event()
        self.may_read = threading.Event()
        self.status = ""
        self.is_connected = True

    def respond(self, message: bytes | None) -> None:
        if message is None:
            self.read.append(self.status)
            return
        self.is_reading.set()
        assert self.may_read.wait(60)
        if self.is_connected:
            self.read.append(message)

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status = code.name

    def set_details(self, text: str) -> None:
        self.status += f": {text}"

    def set_trailing_metadata(self, trailers: Any) -> None:
        assert trailers == ()

    def is_active(self) -> bool:
        return self.is_connected

    def cancel(self) -> None:
        self.is_connected = False
        self.may_read.set()


def send_slowly(client: Client) -> tuple[IncomingCall, threading.Thread]:
    """Begin to send a message that the client does not read yet."""
    call = IncomingCall(None, iter(()), client, client.respond)

    def send() -> None:
        with pytest.raises(VanishedError):
            call.send(b"states")

    thread = threading.Thread(target=send)
    thread.start()
    assert client.is_reading.wait(60)
    return call, thread


def test_the_status_follows_the_message_that_is_being_sent() -> None:
    """Another thread ends the call while a message is sent: the client gets both, and not only that it was cut."""
    client = Client()
    call, thread = send_slowly(client)
    call.end(NO_MEMORY)
    call.end(CallStatus(grpc.StatusCode.OK, "too late"))
    assert client.read == []
    client.may_read.set()
    thread.join(60)
    assert client.read == [b"states", "RESOURCE_EXHAUSTED: no memory"]


def test_a_client_that_does_not_read_is_cut() -> None:
    """If the client takes too long for that message, the call is cancelled."""
    client = Client()
    call, thread = send_slowly(client)
    call.end(NO_MEMORY)
    call.cut_if_overdue(0.0)
    assert client.is_active()
    call.cut_if_overdue(float("inf"))
    thread.join(60)
    assert not client.is_active()
    assert b"states" not in client.read
