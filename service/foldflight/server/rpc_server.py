"""A gRPC server with limits on connections, calls, threads, waiting times and message sizes.

Each accepted call has a thread, and each method has a limit of calls. Calls without a valid token and calls above the
limit are refused in gRPC's own thread. A call is cancelled if its client does not send the first message in time, or
does not read what it is sent. So a flood of connections and silent streams uses a bounded number of threads, and
releases them when it ends.

All methods are registered with a stream of requests. The wire format is the same, and the wait for the request of a
unary call can be limited, too.

The messages of one Flight stream are received here, which gives its errors their meaning.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pyarrow as pa

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import columns_text

_logger = logging.getLogger("foldflight.server")

_HANDSHAKE_S_MAX: Final = 5.0
# Longer than the clients of foldflight keep an idle connection.
_IDLE_CONNECTION_S_MAX: Final = 20.0
_FIRST_MESSAGE_S_MAX: Final = 10.0
_SEND_S_MAX: Final = 30.0
# A call whose client has sent nothing for this time may be cancelled to make room for another call.
_SILENCE_S_MIN: Final = 0.5
_LOOK_S: Final = 0.25
_QUIET_LOOK_S: Final = 2.0
_NEVER: Final = float("inf")
# Time for a client to read the status of its call.
_GOODBYE_S: Final = 2.0
# A client that pings more often than this loses its connection, which bounds floods of pings.
_PING_INTERVAL_MS_MIN: Final = 500
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # without it a second server would silently share the port with the first
    ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_S_MAX * 1000)),
    ("grpc.max_connection_idle_ms", int(_IDLE_CONNECTION_S_MAX * 1000)),
    # Detects peers that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Clients may send pings while they wait for a call. By the default of one in 5 minutes, the third ends it.
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
    ("grpc.max_send_message_length", -1),
    # No compression by gRPC: a few bytes of gzip can decompress to gigabytes.
    ("grpc.compression_enabled_algorithms_bitset", 1),
)


class VanishedError(Exception):
    """The client has disconnected, or the call has ended."""


@dataclass(frozen=True)
class CallStatus:
    """The status with which a call ends.

    Args:
        code: The code of gRPC.
        text: A message for people.
        trailers: Trailing metadata.
    """

    code: grpc.StatusCode
    text: str
    trailers: tuple[tuple[str, str | bytes], ...] = ()


_OK: Final = CallStatus(grpc.StatusCode.OK, "")


@dataclass(frozen=True)
class ServedMethod:
    """A method of a server.

    Args:
        handle: Called with each call and its first message, in a thread of its own. It raises only VanishedError.
        calls_max: Limit of concurrent calls.
    """

    handle: Callable[[IncomingCall, bytes], None]
    calls_max: int


class IncomingCall:
    """One call, on the server.

    Attributes:
        caller: The value that `admit` of the server returned for the headers of the call.
        silent_since_s: Start of the call until its first message has arrived, then infinity.
    """

    def __init__(self, caller: Any, requests: Any, context: Any, respond: Callable[[bytes | None], None]) -> None:
        self.caller = caller
        self._requests = requests
        self._context = context
        self._respond = respond
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_sending = False
        self._last: CallStatus | None = None  # follows the message that is being sent
        self.silent_since_s = time.monotonic()
        self._until_s = self.silent_since_s + _FIRST_MESSAGE_S_MAX
        self._is_silent = True
        self._is_patient = False

    def peer(self) -> str:
        """Return the address of the client, in gRPC's format."""
        return str(self._context.peer())

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected, or the call has ended."""
        return not self._context.is_active()

    def allow_idle(self) -> None:
        """Do not limit how long the client takes to read. The caller monitors the call from now on."""
        self._is_patient = True

    def receive(self) -> bytes | None:
        """Return the next message of the client, or None at the end of its stream. Raises VanishedError."""
        try:
            message: bytes = next(self._requests)
        except StopIteration:
            if self._has_left():
                raise VanishedError from None
            return None
        except grpc.RpcError:
            raise VanishedError from None
        if self._is_silent:
            self._is_silent, self.silent_since_s, self._until_s = False, _NEVER, _NEVER
        return message

    def _has_left(self) -> bool:
        """Return whether the stream ended because the client disconnected, which gRPC reports right after the end.

        It reports in order, so a further read, which ends at once, ends after that. To wait for a time instead would
        make every exchange longer by it.
        """
        with contextlib.suppress(StopIteration, grpc.RpcError):
            next(self._requests)
        return self.is_cancelled()

    def begin(self) -> None:
        """Send the headers of the answer, for a client that waits for them. The first message would send them, too."""
        self._context.send_initial_metadata(())

    def send(self, message: bytes) -> None:
        """Send a message. Raises VanishedError."""
        with self._lock:
            if self._has_ended:
                raise VanishedError
            self._is_sending = True
        if not self._is_patient:
            self._until_s = time.monotonic() + _SEND_S_MAX
        try:
            self._respond(message)
        finally:
            with self._lock:
                self._is_sending = False
                if not (self._is_patient or self._has_ended):
                    self._until_s = _NEVER
        if self._last is not None:
            self._send_status(self._last)
            raise VanishedError
        if self.is_cancelled():
            raise VanishedError

    def end(self, status: CallStatus) -> None:
        """End the call with a status, from any thread. Only the first status counts.

        A message that is being sent is sent to its end before. If the client does not read it in time, the call is
        cancelled instead.
        """
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            self._until_s = time.monotonic() + _GOODBYE_S
            if self._is_sending:
                self._last = status
                return
        self._send_status(status)

    def _send_status(self, status: CallStatus) -> None:
        _set_status(self._context, status)
        with contextlib.suppress(ValueError):  # the client has disconnected meanwhile
            self._respond(None)

    @property
    def has_ended(self) -> bool:
        """Whether the call has its status, which gRPC may still be sending."""
        return self._has_ended

    def cut_if_overdue(self, now_s: float) -> None:
        """Cancel the call if its client has not sent the first message, or not read, in time."""
        if now_s > self._until_s:
            self.cut()

    def cut(self) -> None:
        """Cancel the call, without a status."""
        self._context.cancel()


def _set_status(context: Any, status: CallStatus) -> None:
    context.set_code(status.code)
    context.set_details(status.text)
    context.set_trailing_metadata(status.trailers)


class NotAdmittedError(Exception):
    """A call is not admitted.

    Args:
        status: What its client gets.
        answer: A message that its client gets before the status, or None. It does not depend on the call, which has no
            thread and whose messages are not read.
    """

    def __init__(self, status: CallStatus, answer: bytes | None = None) -> None:
        super().__init__(status.text)
        self.status = status
        self.answer = answer


class CallServer:
    """A gRPC server. The constructor binds the port and starts to accept.

    Args:
        address: `host:port`; port 0 selects a free one.
        methods: The methods, by path.
        connections_max: Limit of open connections. Further connections are closed at once.
        message_bytes_max: Limit of the size of a message, which gRPC enforces while it receives the message.
        refuse: Converts an error of foldflight to a status.
        admit: Called with path and headers of each call, before the call gets a thread. Returns
            `IncomingCall.caller`, or raises NotAdmittedError.
        credentials: Credentials for TLS; None: no TLS.
        on_idle: Called at intervals while there is no call.

    Raises:
        OSError: The port cannot be bound.
    """

    def __init__(
        self,
        address: str,
        methods: Mapping[str, ServedMethod],
        *,
        connections_max: int,
        message_bytes_max: int,
        refuse: Callable[[FoldflightError], CallStatus],
        admit: Callable[[str, Mapping[str, Any]], Any] = lambda _path, _headers: None,
        credentials: Any = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_idle = on_idle
        self._methods = methods
        self._admit = admit
        self._refuse = refuse
        self._next: _Begun | None = None
        self._condition = threading.Condition()
        self._threads = dict.fromkeys(methods, 0)
        self._calls: dict[str, set[IncomingCall]] = {path: set() for path in methods}
        self._closed_event = threading.Event()
        self._server = grpc.server(
            _Executor(self._begin),
            handlers=[_Handlers(self._handler_of)],
            options=[
                *_OPTIONS,
                ("grpc.max_allowed_incoming_connections", connections_max),
                ("grpc.max_concurrent_streams", sum(method.calls_max for method in methods.values())),
                ("grpc.max_receive_message_length", message_bytes_max),
            ],
        )
        try:
            if credentials is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            self._server.stop(None).wait()
            raise OSError(str(error)) from None
        self._server.start()
        self._looker = threading.Thread(target=self._look, name="foldflight-calls", daemon=True)
        self._looker.start()

    def await_ends(self, timeout_s: float) -> None:
        """Wait until all current calls have ended, except those whose client has not sent anything yet."""
        with self._condition:
            speaking = {call for call in self._all() if call.silent_since_s == _NEVER}
            self._condition.wait_for(lambda: speaking.isdisjoint(self._all()), timeout_s)

    def close(self) -> None:
        """Stop accepting, cancel the calls that have not ended, and wait until all threads have ended."""
        stopped_event = self._server.stop(_GOODBYE_S)
        with self._condition:
            calls = self._all()
        for call in calls:
            if not call.has_ended:
                call.cut()
        stopped_event.wait()
        self._closed_event.set()
        self._looker.join()
        with self._condition:
            self._condition.wait_for(lambda: not any(self._threads.values()))

    # -- in gRPC's thread --------------------------------------------------------------------------------------------

    def _handler_of(self, details: Any) -> Any:
        """Return the handler of a new call. gRPC calls `_begin` next, in the same thread."""
        method = self._methods.get(details.method)
        if method is None:
            return None  # gRPC answers UNIMPLEMENTED
        new_call = self._next = _Begun(self, details.method, method.handle)
        try:
            new_call.caller = self._admit(details.method, dict(details.invocation_metadata))
        except NotAdmittedError as error:
            new_call.refusal = error.status
            if error.answer is not None:
                return grpc.stream_unary_rpc_method_handler(_refusing_handler(error.status, error.answer))
        return grpc.stream_stream_rpc_method_handler(new_call)

    def _begin(self, run: Callable[[], None]) -> None:
        """Start a thread for a call, or refuse the call."""
        new_call, self._next = self._next, None
        if new_call is None:
            raise AssertionError("gRPC began a call without asking for its handler")
        if new_call.refusal is None:
            new_call.refusal = self._start(new_call, run)
        if new_call.refusal is not None:
            run()

    def _start(self, new_call: _Begun, run: Callable[[], None]) -> CallStatus | None:
        """Start the thread of a call. Return None, or the status with which the call must be refused."""
        calls_max = self._methods[new_call.path].calls_max
        with self._condition:
            if self._threads[new_call.path] >= calls_max and not self._cut_the_most_silent(new_call.path):
                return self._overload_error(f"has {calls_max} calls of {new_call.path.rpartition('/')[2]}")
            self._threads[new_call.path] += 1

        def carry() -> None:
            try:
                run()
            finally:
                self._leave(new_call.path)

        try:
            threading.Thread(target=carry, name="foldflight-call", daemon=True).start()
        except RuntimeError as error:
            self._leave(new_call.path)
            return self._overload_error(f"cannot start a thread ({error})")
        return None

    def _cut_the_most_silent(self, path: str) -> bool:
        """Cancel the call whose client has sent nothing for the longest time. Return whether there was one."""
        before_s = time.monotonic() - _SILENCE_S_MIN
        silent = [call for call in self._calls[path] if call.silent_since_s < before_s]
        if not silent:
            return False
        longest = min(silent, key=lambda call: call.silent_since_s)
        self._calls[path].discard(longest)
        longest.cut()
        return True

    def _overload_error(self, reason: str) -> CallStatus:
        return self._refuse(RetryableError("OVERLOADED", f"this server {reason}; try again, or another server"))

    def _leave(self, path: str) -> None:
        with self._condition:
            self._threads[path] -= 1
            self._condition.notify_all()

    # -- in other threads --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def looking_after(self, path: str, call: IncomingCall) -> Iterator[None]:
        """Monitor a call while the block runs: cancel it if its client is silent for too long."""
        with self._condition:
            self._calls[path].add(call)
        try:
            yield
        finally:
            with self._condition:
                self._calls[path].discard(call)
                self._condition.notify_all()

    def _all(self) -> list[IncomingCall]:
        return [call for some in self._calls.values() for call in some]

    def _look(self) -> None:
        quiet_since_s = time.monotonic()
        while not self._closed_event.wait(_LOOK_S):
            now_s = time.monotonic()
            with self._condition:
                calls = self._all()
            for call in calls:
                call.cut_if_overdue(now_s)
            if calls:
                quiet_since_s = now_s
            elif now_s - quiet_since_s > _QUIET_LOOK_S:
                quiet_since_s = now_s
                try:
                    self._on_idle()
                except Exception:  # the monitoring must continue
                    _logger.exception("the task for idle servers failed")


class _Begun:
    """The handler of one call for gRPC."""

    experimental_non_blocking = True  # an attribute that gRPC reads: it then passes a function that sends messages

    def __init__(self, server: CallServer, path: str, handle: Callable[[IncomingCall, bytes], None]) -> None:
        self.path = path
        self.caller: Any = None
        self.refusal: CallStatus | None = None
        self._server = server
        self._handle = handle

    def __call__(self, requests: Any, context: Any, respond: Callable[[bytes | None], None]) -> None:
        call = IncomingCall(self.caller, requests, context, respond)
        if self.refusal is not None:
            call.end(self.refusal)
            return
        with self._server.looking_after(self.path, call), contextlib.suppress(VanishedError):
            first = call.receive()
            if first is None:
                call.end(CallStatus(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message"))
            else:
                self._handle(call, first)
                call.end(_OK)


def _refusing_handler(status: CallStatus, answer: bytes) -> Callable[[Any, Any], bytes]:
    """Return a handler that answers with a constant and an error.

    To gRPC its answer is a single message, which it sends together with the status. It can do that in its own thread;
    for one message of several it would wait until the message has been sent.
    """

    def refuse(_requests: Any, context: Any) -> bytes:
        _set_status(context, status)
        return answer

    return refuse


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The handlers of a server, for gRPC."""

    def __init__(self, handler_of: Callable[[Any], Any]) -> None:
        self._handler_of = handler_of

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call."""
        return self._handler_of(handler_call_details)


class _Executor(futures.ThreadPoolExecutor):
    """The executor of the calls, for gRPC. It has no pool, because idle threads would remain after a flood."""

    def __init__(self, begin: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(max_workers=1)
        self._begin = begin

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Begin a call. The future is done when the call has ended."""
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                fn(*args, **kwargs)
            finally:
                future.set_result(None)

        self._begin(run)
        return future


_COLUMNS_CHARS_MAX = 400


def check_columns(reader: Any, context: Any, columns: pa.Schema) -> None:
    """Raise SCHEMA_MISMATCH if the schema of the stream differs from the columns in Open."""
    stream_columns = read_message(lambda: reader.schema, context)
    if stream_columns.equals(columns):
        return
    try:
        columns_shown = columns_text(stream_columns)[:_COLUMNS_CHARS_MAX]
    except UnicodeDecodeError as error:
        raise RejectedError("BAD_FRAME", f"the stream has a column whose name is not UTF-8: {error}") from None
    raise RejectedError(
        "SCHEMA_MISMATCH",
        f"the columns of the stream are {columns_shown}, and those in Open are "
        f"{columns_text(columns)[:_COLUMNS_CHARS_MAX]}; they must be equal in names, order and types",
    )


def schema_of(reader: Any, context: Any) -> pa.Schema:
    """Return the schema of a stream that announced none before."""
    schema: pa.Schema = read_message(lambda: reader.schema, context)
    try:
        schema.names  # noqa: B018 - raises for names that are not UTF-8
    except UnicodeDecodeError as error:
        raise RejectedError("BAD_FRAME", f"a column of the stream has a name that is not UTF-8: {error}") from None
    return schema


def read_message(read: Callable[[], Any], context: Any) -> Any:
    """Read from the stream. Raise VanishedError if the engine has disconnected, and BAD_FRAME for invalid messages."""
    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        if context.is_cancelled() or "never sent a data message" in str(error):
            raise VanishedError from None
        raise RejectedError("BAD_FRAME", f"cannot decode a message of the stream: {_first_line(error)}") from None


def receive_messages(reader: Any, context: Any) -> Iterator[Message]:
    """Yield the messages of the engine until it closes its direction of the stream."""
    while True:
        try:
            message = read_message(reader.read_chunk, context)
        except StopIteration:
            if context.is_cancelled():
                raise VanishedError from None
            return
        metadata = message.app_metadata
        yield Message(b"" if metadata is None else metadata.to_pybytes(), message.data, message.batch_bytes)


def send(writer: Any, message: Message, *, begin: pa.Schema | None = None) -> None:
    """Send a message. `begin` is the schema of the stream, sent before the first message."""
    try:
        if begin is not None:
            writer.begin(begin)
        writer.write_with_metadata(message.batch, message.metadata)
    except (pa.ArrowException, OSError):
        raise VanishedError from None  # a write fails only if the engine has disconnected


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
