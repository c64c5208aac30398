"""An Arrow Flight server on `CallServer`, with the handlers of `pyarrow.flight.FlightServerBase`.

pyarrow's own server starts a thread for each stream before Python code runs, waits for messages without a limit, and
receives and decompresses messages of any size. This server has limits for all of that.

The ports of a server are here, too: their addresses, their sockets, and how many connections each accepts.

Source: Apache Arrow, `Flight.proto`.
"""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.ipc import (
    HEAD_MAX,
    BatchReader,
    Ranges,
    fields_of,
    head,
    part,
    ranges_of,
    split,
    with_app_metadata,
)
from foldflight.server.rpc_server import CallServer, CallStatus, IncomingCall, NotAdmittedError, ServedMethod
from foldflight.server.run.settings import port_in_use_error

_CONNECTIONS_MAX: Final = 4096
_BACKLOG: Final = 128


def authority(host: str, port: int) -> str:
    """Return host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connections_max(share: float, *, most: int = _CONNECTIONS_MAX, files_each: int = 1) -> int:
    """Return how many connections a port accepts, so that files remain for the other ports and everything else.

    Args:
        share: The share of the port in the files that this process may open. The shares of a process add up to 3/4.
        most: The bound where files are plentiful.
        files_each: The files that a connection takes.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, int(files * share) // files_each)


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; 0 selects a free one. On `::` it accepts IPv4, too, like gRPC.

    Args:
        name: The setting of the port, for the error.
        host: The address.
        port: The port.

    Raises:
        RejectedError: SETTINGS if the port cannot be bound.
    """
    is_dual = host == "::" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
    except OSError as error:
        raise port_in_use_error(name, host, port, error.strerror) from None


_SERVICE: Final = "/arrow.flight.protocol.FlightService/"
# Concurrent calls of each method except DoExchange, and of DoExchange streams without an Open yet.
_CALLS_MAX: Final = 64
# Bytes of a message besides its data. gRPC accepts twice the limit of a message, so that an engine that exceeds it a
# little gets an error that says so.
_OVERHEAD_BYTES: Final = 1 << 20
_FILES_SHARE: Final = 1 / 2
_CODES: Final = (
    (fl.FlightUnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, "Unauthenticated"),
    (fl.FlightUnauthorizedError, grpc.StatusCode.PERMISSION_DENIED, "Unauthorized"),
    (fl.FlightTimedOutError, grpc.StatusCode.DEADLINE_EXCEEDED, "TimedOut"),
    (fl.FlightUnavailableError, grpc.StatusCode.UNAVAILABLE, "Unavailable"),
    (fl.FlightCancelledError, grpc.StatusCode.CANCELLED, "Cancelled"),
    (fl.FlightInternalError, grpc.StatusCode.INTERNAL, "Internal"),
)
# Fields of FlightData.
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000


class FlightBase:
    """A Flight server. The constructor binds the port and starts to accept. A subclass implements the handlers.

    Args:
        address: `host:port`; port 0 selects a free one.
        exchanges_max: Limit of open exchanges.
        message_bytes_max: Limit of the size of a batch, compressed and decompressed.
        request_bytes_max: Limit of the size of other messages.
        refuse: Converts an error of foldflight to a Flight error.
        admit: Called with the headers of each call. Returns `IncomingCall.caller`, or raises RejectedError. None: all
            calls are admitted.
        answers_to_all: For methods, by name, the message that is sent before the error to calls that are not admitted.
        tls_certificates, verify_client, root_certificates: As for pyarrow's server.
        on_idle: Called at intervals while there is no call.

    Raises:
        OSError: The port cannot be bound.
    """

    def __init__(
        self,
        address: str,
        *,
        exchanges_max: int,
        message_bytes_max: int,
        request_bytes_max: int,
        refuse: Callable[[FoldflightError], fl.FlightError],
        admit: Callable[[Mapping[str, Any]], Any] | None = None,
        answers_to_all: Mapping[str, bytes] | None = None,
        tls_certificates: list[tuple[bytes, bytes]] | None = None,
        verify_client: bool = False,
        root_certificates: bytes | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._caller_of = admit
        self._answers_to_all = {_SERVICE + name: answer for name, answer in (answers_to_all or {}).items()}
        self._refuse = refuse
        self._batch_bytes_max = message_bytes_max
        credentials = None
        if tls_certificates:
            pairs = [(key, certificate) for certificate, key in tls_certificates]
            credentials = grpc.ssl_server_credentials(pairs, root_certificates, verify_client)
        methods: dict[str, Callable[[IncomingCall, bytes], Any]] = {
            "ListFlights": self._list_flights,
            "GetFlightInfo": lambda context, request: [self._answer(self.get_flight_info, context, request)],
            "GetSchema": lambda context, request: [self._answer(self.get_schema, context, request)],
            "DoGet": lambda *_: self.not_served("DoGet"),
            "DoPut": lambda *_: self.not_served("DoPut"),
            "DoAction": self._do_action,
            "ListActions": self._list_actions,
        }
        self._calls = CallServer(
            address,
            {
                **{
                    _SERVICE + name: ServedMethod(self._answer_handler(answer), _CALLS_MAX)
                    for name, answer in methods.items()
                },
                _SERVICE + "DoExchange": ServedMethod(
                    self._stream_handler(self.do_exchange), exchanges_max + _CALLS_MAX
                ),
            },
            connections_max=connections_max(_FILES_SHARE),
            message_bytes_max=max(2 * message_bytes_max, request_bytes_max) + _OVERHEAD_BYTES,
            refuse=lambda error: status_of(refuse(error)),
            admit=self._admit_call,
            credentials=credentials,
            on_idle=on_idle,
        )

    @property
    def port(self) -> int:
        """The actual port."""
        return self._calls.port

    # -- handlers, as of pyarrow.flight.FlightServerBase, with the call as their context ------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Any:
        """Return FlightInfos."""
        raise NotImplementedError

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return a FlightInfo."""
        raise NotImplementedError

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return a SchemaResult."""
        raise NotImplementedError

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve one exchange."""
        raise NotImplementedError

    def do_action(self, context: Any, action: Any) -> Any:
        """Return Results."""
        raise NotImplementedError

    def list_actions(self, context: Any) -> Any:
        """Return ActionTypes."""
        raise NotImplementedError

    def not_served(self, method: str) -> Any:
        """Refuse a call of a method without a handler."""
        raise NotImplementedError

    # -- calls -------------------------------------------------------------------------------------------------------

    def _admit_call(self, path: str, headers: Mapping[str, Any]) -> Any:
        """Return the caller of a call, or raise NotAdmittedError."""
        try:
            return None if self._caller_of is None else self._caller_of(headers)
        except FoldflightError as error:
            raise NotAdmittedError(status_of(self._refuse(error)), self._answers_to_all.get(path)) from None

    def _list_flights(self, context: IncomingCall, request: bytes) -> Iterator[bytes]:
        for info in self.list_flights(context, _only(request, 1)):
            yield info.serialize()

    def _answer(self, handler: Callable[[Any, Any], Any], context: IncomingCall, request: bytes) -> bytes:
        answer: bytes = handler(context, _parse(fl.FlightDescriptor, request)).serialize()
        return answer

    def _do_action(self, context: IncomingCall, request: bytes) -> Iterator[bytes]:
        for result in self.do_action(context, _parse(fl.Action, request)):
            yield result.serialize()

    def _list_actions(self, context: IncomingCall, _request: bytes) -> Iterator[bytes]:
        for action in self.list_actions(context):
            yield part(1, action.type.encode()) + part(2, action.description.encode())

    def _stream_handler(self, handler: Callable[[Any, Any, Any, Any], None]) -> Callable[[IncomingCall, bytes], None]:
        def carry(call: IncomingCall, first: bytes) -> None:
            reader = _Reader(call, first, self._batch_bytes_max)
            handler(call, reader.descriptor, reader, _Writer(call))

        return self._guard(carry)

    def _answer_handler(self, answer: Callable[[IncomingCall, bytes], Any]) -> Callable[[IncomingCall, bytes], None]:
        def answers(call: IncomingCall, request: bytes) -> None:
            for message in answer(call, request):
                call.send(message)

        return self._guard(answers)

    def _guard(self, handle: Callable[[IncomingCall, bytes], None]) -> Callable[[IncomingCall, bytes], None]:
        def handle_or_refuse(call: IncomingCall, first: bytes) -> None:
            try:
                handle(call, first)
            except FoldflightError as error:
                call.end(status_of(self._refuse(error)))
            except fl.FlightError as error:
                call.end(status_of(error))

        return handle_or_refuse


def status_of(error: fl.FlightError) -> CallStatus:
    """Convert a Flight error to a status, with the trailers from which Arrow's clients restore the error."""
    code, detail = next(
        ((code, detail) for kind, code, detail in _CODES if isinstance(error, kind)),
        (grpc.StatusCode.UNKNOWN, "Failed"),
    )
    text = str(error)
    return CallStatus(
        code,
        f"{text}. Detail: {detail}",
        (
            ("x-arrow-status", "5"),  # StatusCode::IOError, which all Flight errors are
            ("x-arrow-status-message-bin", text.encode()),
            ("x-arrow-status-detail-bin", detail.encode()),
            ("grpc-status-details-bin", error.extra_info or b""),
        ),
    )


# -- streams ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    """A message of a stream, like `pyarrow.flight.FlightStreamChunk`, with the bytes of the buffers of its batch."""

    data: pa.RecordBatch | None
    app_metadata: pa.Buffer | None
    batch_bytes: int


class _Reader:
    """The messages of a client, like `pyarrow.flight.MetadataRecordBatchReader`.

    Batches are not validated. The caller must validate each one before any other access.
    """

    def __init__(self, call: IncomingCall, first: bytes, bytes_max: int) -> None:
        self._call = call
        self._batches = BatchReader(bytes_max)
        # The last message: what precedes its body, its size and the ranges of its fields. Chunks of equal size share
        # them. The size is -1 if the body is not the last field.
        self._head, self._size, self._ranges = b"", -1, Ranges()
        self._first: dict[int, memoryview] | None = fields_of(first)
        self.descriptor = _parse(fl.FlightDescriptor, bytes(self._first.get(_DESCRIPTOR, b"")))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream. Waits until it has arrived. Raises pa.ArrowInvalid or VanishedError."""
        while self._batches.schema is None:
            fields = self._next()
            if fields is None:
                raise pa.ArrowInvalid("the client never sent a data message")
            if _HEADER in fields:
                self._batch_of(fields)
        return self._batches.schema

    def read_chunk(self) -> _Chunk:
        """Return the next message. Raises StopIteration after the last one, pa.ArrowInvalid or VanishedError."""
        while (fields := self._next()) is not None:
            batch = self._batch_of(fields) if _HEADER in fields else None
            metadata = fields.get(_METADATA)
            if batch is not None or metadata is not None:
                return _Chunk(batch, None if metadata is None else pa.py_buffer(metadata), self._batches.batch_bytes)
        raise StopIteration

    def _next(self) -> dict[int, memoryview] | None:
        if self._first is not None:
            fields, self._first = self._first, None
            return fields
        message = self._call.receive()
        if message is None:
            return None
        if len(message) != self._size or not message.startswith(self._head):
            self._ranges = ranges_of(message)
            start, end = self._ranges.get(_BODY, (0, -1))
            ends_with_body = end == len(message) and start <= HEAD_MAX
            self._head, self._size = (message[:start], end) if ends_with_body else (b"", -1)
        view = memoryview(message)
        return {number: view[start:end] for number, (start, end) in self._ranges.items()}

    def _batch_of(self, fields: dict[int, memoryview]) -> pa.RecordBatch | None:
        try:
            return self._batches.take(fields[_HEADER], fields.get(_BODY, _NOTHING))
        except (ValueError, IndexError, OverflowError, struct.error, StopIteration) as error:
            raise pa.ArrowInvalid(str(error) or type(error).__name__) from None


class _Writer:
    """Sends batches, like `pyarrow.flight.MetadataRecordBatchWriter`."""

    def __init__(self, call: IncomingCall) -> None:
        self._call = call

    def begin(self, schema: pa.Schema) -> None:
        """Send the schema."""
        self._call.send(_flight_data(schema.serialize()))

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: bytes) -> None:
        """Send a batch with metadata."""
        self._call.send(_flight_data(batch.serialize(), metadata))


# -- protobuf --------------------------------------------------------------------------------------------------------

_NOTHING: Final = memoryview(b"")


def _only(request: bytes, field: int) -> bytes:
    return bytes(fields_of(request).get(field, _NOTHING))


def _parse(kind: Any, request: bytes) -> Any:
    try:
        return kind.deserialize(request)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RejectedError(
            "BAD_FRAME", f"the request is not a valid {kind.__name__} of Arrow Flight: {error}"
        ) from None


def _flight_data(message: pa.Buffer, metadata: bytes | None = None) -> bytes:
    """Return the FlightData of a message in the format of an IPC stream."""
    header, body = split(message)
    parts: list[bytes | memoryview] = [head(_HEADER, len(header)), header]
    if metadata is not None:
        parts += [head(_METADATA, len(metadata)), metadata]
    if len(body):
        parts += [head(_BODY, len(body)), body]
    return b"".join(parts)


def flight_info(schema: pa.Schema, descriptor: Any, metadata: bytes, *, records: int = -1) -> Any:
    """Return a FlightInfo without endpoints, with `app_metadata`."""
    plain = fl.FlightInfo(schema, descriptor, [], records, -1)
    return fl.FlightInfo.deserialize(with_app_metadata(plain.serialize(), metadata))
