"""A Flight client without pyarrow, which sends arbitrary messages on the raw gRPC stream."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterable, Iterator

import grpc

from foldflight.errors import FoldflightError
from foldflight.exchange.encoding import decode_error, encode_open
from foldflight.exchange.frames import Open
from tests.hostile.forging import IpcMessage
from tests.wire.kit import DEADLINE_S

__all__ = ["DO_EXCHANGE", "RawClient", "error_of", "flight_data"]

DO_EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
_CMD = 2


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def flight_data(
    message: IpcMessage | None = None, *, request: Open | None = None, metadata: bytes | None = None
) -> bytes:
    """Return one FlightData message; arguments that are None are omitted."""
    parts = []
    if request is not None:
        parts.append(_part(1, b"\x08" + _varint(_CMD) + _part(2, encode_open(request))))
    if message is not None:
        parts.append(_part(2, message.header))
    if metadata is not None:
        parts.append(_part(3, metadata))
    if message is not None and message.body:
        parts.append(_part(1000, message.body))
    return b"".join(parts)


class RawClient:
    """A connection to a server, and exchanges over it.

    Args:
        address: `host:port`.
        token: Bearer token to send.
    """

    def __init__(self, address: str, *, token: str | None = None) -> None:
        self._metadata = None if token is None else [("authorization", f"Bearer {token}")]
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options=options)
        self._exchange = self.channel.stream_stream(DO_EXCHANGE)

    def say(self, messages: Iterable[bytes]) -> grpc.RpcError | None:
        """Send messages, read all answers, and return the error that ended the exchange."""
        try:
            for _ in self._exchange(iter(messages), metadata=self._metadata, timeout=DEADLINE_S):
                pass
        except grpc.RpcError as error:
            return error
        return None

    def open_silently(self, first: Iterable[bytes] = ()) -> grpc.Call:
        """Open a stream, send these messages, and nothing else."""
        words: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def speech() -> Iterator[bytes]:
            yield from first
            with contextlib.suppress(grpc.RpcError):
                words.get()

        return self._exchange(speech(), metadata=self._metadata)

    def close(self) -> None:
        self.channel.close()


def error_of(error: grpc.RpcError | None) -> FoldflightError:
    """Return the error that a server sent, decoded like an engine does."""
    assert error is not None, "the server accepted it"
    details = dict(error.trailing_metadata() or ())
    result = decode_error(details.get("x-arrow-status-detail-bin", b"")) or decode_error(
        details.get("grpc-status-details-bin", b"")
    )
    assert result is not None, f"{error.code()}: {error.details()}"
    return result
