"""Calls over gRPC, whose number, threads, silences and messages are bounded.

A call gets a thread only if it is one of few enough. What costs nothing to refuse, a call without a token, or one too
many, is refused in gRPC's own thread. A caller that says nothing, or does not read what it is sent, is hung up on. So a
flood of connections and silent streams takes a bounded number of threads, and gives them back when it ends.

Each method is registered as one with a stream of requests, which is the same on the wire: so the wait for the request
of a unary call is bounded, too.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from foldflight.errors import RetryableError

if TYPE_CHECKING:
    from foldflight.errors import FoldflightError

__all__ = ["Call", "CallServer", "Method", "RefusedError", "Status", "VanishedError", "connections_max"]

_logger = logging.getLogger("foldflight.server")

_CONNECTIONS_MAX: Final = 4096
_HANDSHAKE_S_MAX: Final = 5.0
# Longer than our own clients keep one, which end it themselves.
_IDLE_CONNECTION_S_MAX: Final = 20.0
_FIRST_MESSAGE_S_MAX: Final = 10.0
_SEND_S_MAX: Final = 30.0
# A call whose client has said nothing for that long may be ended in favour of another one.
_SILENCE_S_MIN: Final = 0.5
_LOOK_S: Final = 0.25
_QUIET_LOOK_S: Final = 2.0
_HANG_UP_LOOKS: Final = 2
_HANG_UP_LOOK_S: Final = 0.001
_NEVER: Final = float("inf")
# A client that was told why its call ends may take that long to read it.
_GOODBYE_S: Final = 2.0
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # without it a second server would silently share the port with the first
    ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_S_MAX * 1000)),
    ("grpc.max_connection_idle_ms", int(_IDLE_CONNECTION_S_MAX * 1000)),
    # A peer that is gone without a word is found out.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_send_message_length", -1),
    # A few bytes of gzip unpack to gigabytes: only messages that are as long as they say.
    ("grpc.compression_enabled_algorithms_bitset", 1),
)


def connections_max(share: float, *, most: int = _CONNECTIONS_MAX, files_each: int = 1) -> int:
    """Return how many connections a port accepts, so that files remain for the other ports and everything else.

    Args:
        share: The share of the port in the files that this process may open. The shares of a process add up to 3/4.
        most: The bound where files are plentiful.
        files_each: The files that a connection takes.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, int(files * share) // files_each)


class VanishedError(Exception):
    """The client hung up: nobody is left to tell."""


@dataclass(frozen=True)
class Status:
    """What a call ends with.

    Args:
        code: The code of gRPC.
        text: What happened.
        trailers: More about it.
    """

    code: grpc.StatusCode
    text: str
    trailers: tuple[tuple[str, str | bytes], ...] = ()


_OK: Final = Status(grpc.StatusCode.OK, "")


@dataclass(frozen=True)
class Method:
    """What a server does when it is called.

    Args:
        handle: Called in a thread of its own with the call and its first message; raises nothing but VanishedError.
        calls_max: How many calls of it there may be at once.
    """

    handle: Callable[[Call, bytes], None]
    calls_max: int


class Call:
    """One call, from the server's side.

    Attributes:
        caller: What the server's `admit` made of the call's headers.
        silent_since_s: When the call began, if its client has not said anything since; else infinity.
    """

    def __init__(self, caller: Any, requests: Any, context: Any, respond: Callable[[bytes | None], None]) -> None:
        self.caller = caller
        self._requests = requests
        self._context = context
        self._respond = respond
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_sending = False
        self.silent_since_s = time.monotonic()
        self._until_s = self.silent_since_s + _FIRST_MESSAGE_S_MAX
        self._is_silent = True
        self._is_patient = False

    def peer(self) -> str:
        """Return the client's address, as gRPC writes it."""
        return str(self._context.peer())

    def is_cancelled(self) -> bool:
        """Return whether the client has hung up, or the call has ended."""
        return not self._context.is_active()

    def be_patient(self) -> None:
        """Let the client take its time to read: somebody else looks after this call from now on."""
        self._is_patient = True

    def receive(self) -> bytes | None:
        """Return the client's next message; None when it has said that no more comes.

        Raises:
            VanishedError: It has hung up.
        """
        try:
            message: bytes = next(self._requests)
        except StopIteration:
            if self._is_soon_cancelled():
                raise VanishedError from None
            return None
        except grpc.RpcError:
            raise VanishedError from None
        if self._is_silent:
            self._is_silent, self.silent_since_s, self._until_s = False, _NEVER, _NEVER
        return message

    def _is_soon_cancelled(self) -> bool:
        """Return whether a client that says no more has hung up: gRPC tells that only after the end of its messages."""
        for _ in range(_HANG_UP_LOOKS):
            if self.is_cancelled():
                return True
            time.sleep(_HANG_UP_LOOK_S)
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
            self._is_sending = False
            if not self._is_patient:
                self._until_s = _NEVER
        if self.is_cancelled():
            raise VanishedError

    def end(self, status: Status) -> None:
        """End the call, from any thread and once. A client that reads neither this nor a message before is cut off."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            is_cut = self._is_sending  # gRPC cannot send a status behind a message that is still on its way
        self._until_s = time.monotonic() + _GOODBYE_S
        if is_cut:
            self.cut()
            return
        self._context.set_code(status.code)
        self._context.set_details(status.text)
        self._context.set_trailing_metadata(status.trailers)
        with contextlib.suppress(ValueError):  # the client was faster, and hung up
            self._respond(None)

    @property
    def has_ended(self) -> bool:
        """Whether the status of the call was given to gRPC, which may still be sending it."""
        return self._has_ended

    def cut_if_overdue(self, now_s: float) -> None:
        """Hang up on a client that has not said, or not read, anything for too long."""
        if now_s > self._until_s:
            self.cut()

    def cut(self) -> None:
        """Hang up without a word."""
        self._context.cancel()


class RefusedError(Exception):
    """A call is not admitted; its client is told the status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.text)
        self.status = status


class CallServer:
    """A gRPC server; accepts as soon as it is made.

    Args:
        address: `host:port`; port 0 takes a free one.
        methods: What is served, by the path of the method.
        connections_max: How many connections are open at most; more are closed at once.
        message_bytes_max: Size of a message beyond which gRPC takes no more of it.
        refuse: Makes the status of an error of the taxonomy.
        admit: Called with path and headers of each call, before it gets a thread; returns `Call.caller`, or raises
            RefusedError.
        credentials: Of TLS; None for none.
        on_quiet: Called now and then while there is no call.

    Raises:
        OSError: The port cannot be bound.
    """

    def __init__(
        self,
        address: str,
        methods: Mapping[str, Method],
        *,
        connections_max: int,
        message_bytes_max: int,
        refuse: Callable[[FoldflightError], Status],
        admit: Callable[[str, Mapping[str, Any]], Any] = lambda _path, _headers: None,
        credentials: Any = None,
        on_quiet: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_quiet = on_quiet
        self._methods = methods
        self._admit = admit
        self._refuse = refuse
        self._next: _Begun | None = None
        self._changed = threading.Condition()
        self._threads = dict.fromkeys(methods, 0)
        self._calls: dict[str, set[Call]] = {path: set() for path in methods}
        self._closed = threading.Event()
        self._server = grpc.server(
            _Executor(self._begin),
            handlers=[_Handlers(self._found)],
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
        """Wait until the calls of now have ended, except those whose client has not said anything yet."""
        with self._changed:
            speaking = {call for call in self._all() if call.silent_since_s == _NEVER}
            self._changed.wait_for(lambda: speaking.isdisjoint(self._all()), timeout_s)

    def close(self) -> None:
        """Stop accepting, cancel the calls that have not ended, and wait until all threads have ended."""
        stopped = self._server.stop(_GOODBYE_S)
        with self._changed:
            calls = self._all()
        for call in calls:
            if not call.has_ended:
                call.cut()
        stopped.wait()
        self._closed.set()
        self._looker.join()
        with self._changed:
            self._changed.wait_for(lambda: not any(self._threads.values()))

    # -- in gRPC's thread --------------------------------------------------------------------------------------------

    def _found(self, details: Any) -> Any:
        """Return the handler of a call that has come; `_begin` is what gRPC calls next, in the same thread."""
        method = self._methods.get(details.method)
        if method is None:
            return None  # gRPC answers UNIMPLEMENTED
        begun = self._next = _Begun(self, details.method, method.handle)
        try:
            begun.caller = self._admit(details.method, dict(details.invocation_metadata))
        except RefusedError as refused:
            begun.refusal = refused.status
        return grpc.stream_stream_rpc_method_handler(begun)

    def _begin(self, run: Callable[[], None]) -> None:
        """Give a call a thread, or refuse it at once."""
        begun, self._next = self._next, None
        if begun is None:
            raise AssertionError("gRPC begins a call that it has not asked for")
        if begun.refusal is None:
            begun.refusal = self._start(begun, run)
        if begun.refusal is not None:
            run()

    def _start(self, begun: _Begun, run: Callable[[], None]) -> Status | None:
        """Start a call's thread; return what the call is refused with if there is none for it."""
        calls_max = self._methods[begun.path].calls_max
        with self._changed:
            if self._threads[begun.path] >= calls_max and not self._cut_the_most_silent(begun.path):
                return self._overloaded(f"has {calls_max} calls of {begun.path.rpartition('/')[2]} already")
            self._threads[begun.path] += 1

        def carry() -> None:
            try:
                run()
            finally:
                self._leave(begun.path)

        try:
            threading.Thread(target=carry, name="foldflight-call", daemon=True).start()
        except RuntimeError as error:
            self._leave(begun.path)
            return self._overloaded(f"has no thread left ({error})")
        return None

    def _cut_the_most_silent(self, path: str) -> bool:
        """Hang up on the client that has opened a call and said nothing for longest, to make room for another."""
        before_s = time.monotonic() - _SILENCE_S_MIN
        silent = [call for call in self._calls[path] if call.silent_since_s < before_s]
        if not silent:
            return False
        longest = min(silent, key=lambda call: call.silent_since_s)
        self._calls[path].discard(longest)
        longest.cut()
        return True

    def _overloaded(self, why: str) -> Status:
        return self._refuse(RetryableError("OVERLOADED", f"this server {why}; try again, or another server"))

    def _leave(self, path: str) -> None:
        with self._changed:
            self._threads[path] -= 1
            self._changed.notify_all()

    # -- in other threads --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def looking_after(self, path: str, call: Call) -> Iterator[None]:
        """Hang up on the call's client when it is silent for too long, while the block runs."""
        with self._changed:
            self._calls[path].add(call)
        try:
            yield
        finally:
            with self._changed:
                self._calls[path].discard(call)
                self._changed.notify_all()

    def _all(self) -> list[Call]:
        return [call for some in self._calls.values() for call in some]

    def _look(self) -> None:
        quiet_since_s = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            now_s = time.monotonic()
            with self._changed:
                calls = self._all()
            for call in calls:
                call.cut_if_overdue(now_s)
            if calls:
                quiet_since_s = now_s
            elif now_s - quiet_since_s > _QUIET_LOOK_S:
                quiet_since_s = now_s
                try:
                    self._on_quiet()
                except Exception:  # this thread must go on
                    _logger.exception("what a server does while it has no call has failed")


class _Begun:
    """A call that has come, as gRPC carries it out: in a thread, or at once if it is refused."""

    experimental_non_blocking = True  # the name that gRPC looks for: we are given a function that sends

    def __init__(self, server: CallServer, path: str, handle: Callable[[Call, bytes], None]) -> None:
        self.path = path
        self.caller: Any = None
        self.refusal: Status | None = None
        self._server = server
        self._handle = handle

    def __call__(self, requests: Any, context: Any, respond: Callable[[bytes | None], None]) -> None:
        call = Call(self.caller, requests, context, respond)
        if self.refusal is not None:
            call.end(self.refusal)
            return
        with self._server.looking_after(self.path, call), contextlib.suppress(VanishedError):
            first = call.receive()
            if first is None:
                call.end(Status(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message"))
            else:
                self._handle(call, first)
                call.end(_OK)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """What gRPC asks for the handler of a call."""

    def __init__(self, found: Callable[[Any], Any]) -> None:
        self._found = found

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call."""
        return self._found(handler_call_details)


class _Executor(futures.ThreadPoolExecutor):
    """What gRPC gives its calls to: no pool, since idle threads would stay after a flood."""

    def __init__(self, begin: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(max_workers=1)
        self._begin = begin

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Begin a call; the future is done when the call has ended."""
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                fn(*args, **kwargs)
            finally:
                future.set_result(None)

        self._begin(run)
        return future
