"""Simulated servers, connections and a clock in one process, determined by a seed.

The fold, both ends of the exchange, the encoding, the coordinator and `FailoverExchange` are the real ones. Only the
network is simulated: a connection is a queue in each direction, each step lets one server handle one message, and time
is a number. Each step may inject a fault until the time `heals_at_s`.

Each seed has its own selection of faults and its own rate, because some faults hide others.

Source: A. Groce et al., "Swarm testing" (2012); W. Wilson, "Testing distributed systems with deterministic simulation"
(2014).
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from foldflight.client.connection import Connection, Resolve
from foldflight.errors import FoldflightError, RetryableError
from foldflight.exchange.encoding import Message, decode, decode_error, decode_open, encode, encode_error, encode_open
from foldflight.exchange.frames import Entries, Frame, Limits, Open
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.exchange.transitions import Role
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Registry

__all__ = ["HARMS", "EngineCrashed", "SimulatedConnection", "StuckError", "World"]

_DEADLINE_S: Final = 1.0
_DRAIN_S: Final = 2.0
_TRACE_MAX: Final = 400
_KEY: Final = b"the key of the simulated fleet"
_NEW_KEY: Final = b"the key that some servers sign with already, and all know"
HARMS: Final = (
    "kill",
    "hang",
    "slow",
    "drain",
    "reset",
    "garble",
    "fill up",
    "open in vain",
    "other version",
    "new key",
    "crash the engine",
)


class EngineCrashed(Exception):  # noqa: N818  (the simulation raises it deliberately)
    """The engine's process has crashed. What it had not committed is lost."""


class StuckError(AssertionError):
    """The engine does not finish although the faults are over."""


class _Handling:
    """One frame in the hands of a server, whose functions may ask the engine.

    A thread calls the functions. It and the simulation never run at once, so a seed determines all that happens.

    Args:
        stream: The stream of the frame.
        frame: The frame.
    """

    def __init__(self, stream: _Stream, frame: Frame) -> None:
        self.error: BaseException | None = None
        self.is_over = False
        self._stream = stream
        self._frame = frame
        self._answer: Frame | None = None
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, answer: Frame | None = None) -> None:
        """Let the functions run until the next question or the end. Without an answer, the stream is broken."""
        self._answer = answer
        self._may_run.release()
        self._has_stopped.acquire()
        if self.is_over:
            self._thread.join()

    def ask(self, request: Frame) -> Iterator[Frame]:
        """Send a question and wait, in the thread, for the frames of its answer."""
        self._stream.put(request)
        is_last = False
        while not is_last:
            self._has_stopped.release()
            self._may_run.acquire()
            if self._answer is None:
                raise RetryableError("UNREACHABLE", "the stream was reset")
            yield self._answer
            is_last = not isinstance(self._answer, Entries) or self._answer.last

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            for reply in self._stream.exchange.handle(self._frame):
                self._stream.put(reply)
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self._has_stopped.release()


class _Stream:
    """One exchange on its server, with the messages in transit."""

    def __init__(
        self, serve: Callable[[Callable[[Frame], Iterator[Frame]]], ServerExchange], now_s: float, *, keeps_views: bool
    ) -> None:
        self.keeps_views = keeps_views
        self.handling: _Handling | None = None
        self.exchange = serve(self._ask)
        self.inbound: deque[Message] = deque()
        self.outbound: deque[Message | FoldflightError] = deque()
        self.is_broken = False
        self.heard_at_s = now_s

    def put(self, frame: Frame) -> None:
        """Send a frame to the engine."""
        self.outbound.append(encode(frame, self.exchange.open_reply.schema))

    def take(self, frame: Frame) -> None:
        """Handle a frame of the engine, until it is answered or the engine is asked. Raises the server's error."""
        if self.handling is None:
            self.handling = _Handling(self, frame)
            frame_of_answer = None
        else:
            frame_of_answer = frame
        self._go_on(frame_of_answer)

    def drop(self) -> None:
        """Break the stream for functions that wait for an answer."""
        while self.handling is not None:
            with contextlib.suppress(FoldflightError):
                self._go_on(None)

    def _go_on(self, answer: Frame | None) -> None:
        handler = self.handling
        assert handler is not None
        handler.go_on(answer)
        if handler.is_over:
            self.handling = None
            if handler.error is not None:
                raise handler.error

    def _ask(self, request: Frame) -> Iterator[Frame]:
        assert self.handling is not None
        return self.handling.ask(request)


class _Server:
    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self.limits = limits
        self.streams: list[_Stream] = []
        self.starts = 0
        self.is_like_the_others = self.signs_as_before = True
        self.differs_until_s = 0.0
        self.down_until_s = self.hung_until_s = self.slow_until_s = self.full_until_s = 0.0
        self.drains_until_s: float | None = None

    @property
    def signer(self) -> StateSigner:
        return StateSigner([_KEY, _NEW_KEY] if self.signs_as_before else [_NEW_KEY, _KEY])

    @property
    def id(self) -> str:
        return f"{self.url.removeprefix('sim://')}#{self.starts}"


class World:
    """Servers, connections and a clock.

    Args:
        seed: Determines everything that happens.
        registry: The functions of the servers.
        newer: The functions of servers with another version.
        limits: The limits of the servers.
        servers: The number of servers.
        is_calm: Whether no faults are injected.
        steps_max: The number of steps after which a run counts as stuck.
        idle_s_max: The time after which servers end an exchange that is idle.

    Attributes:
        urls: The URLs of the servers.
        harms: How often each fault was injected.
        trace: The last events, as text.
        heals_at_s: The simulated time after which no faults are injected.
    """

    def __init__(
        self,
        seed: int,
        registry: Registry,
        newer: Registry,
        limits: Limits,
        *,
        servers: int = 2,
        is_calm: bool = False,
        steps_max: int = 200_000,
        idle_s_max: float = 5.0,
    ) -> None:
        self.random = random.Random(f"world {seed}")
        self._steps_max = steps_max
        self._idle_s_max = idle_s_max
        self.harms: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=_TRACE_MAX)
        self.steps = 0
        self._now_s = 0.0
        self._registries = {True: registry, False: newer}
        self._servers = [_Server(f"sim://{number}", limits) for number in range(servers)]
        self.urls = tuple(server.url for server in self._servers)
        known_values = [harm for harm in HARMS if self.random.random() < 0.5]
        self._harms = [] if is_calm else known_values
        self._rate = self.random.choice([0.01, 0.03, 0.1])
        self.heals_at_s = 0.0 if is_calm else self.random.uniform(1.0, 40.0)

    # -- the clock of the engine -------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the simulated time, in seconds."""
        return self._now_s

    def rest_until(self, until_s: float) -> None:
        """Run the simulation until a time."""
        while self._now_s < until_s:
            self.step(until_s - self._now_s)

    # -- what happens ------------------------------------------------------------------------------------------------

    @property
    def is_healed(self) -> bool:
        """Whether the time of faults is over."""
        return self._now_s >= self.heals_at_s

    @property
    def open_streams(self) -> int:
        """The number of exchanges that are open on servers."""
        return sum(len(server.streams) for server in self._servers)

    def step(self, at_most_s: float = 1.0) -> None:
        """Run one step: time passes, a fault may be injected, and a server may handle a message."""
        self.steps += 1
        if self.steps > self._steps_max:
            raise StuckError(
                f"not finished after {self.steps - 1} steps, {self._now_s - self.heals_at_s:.1f} s after the last fault"
            )
        ready = [server for server in self._servers if self._is_able(server) and any(s.inbound for s in server.streams)]
        self._now_s += min(self.random.expovariate(500.0 if ready else 10.0), at_most_s)
        if self._harms and not self.is_healed and self.random.random() < self._rate:
            self._do_harm()
        self._advance_servers()
        if ready and (server := self.random.choice(ready)).streams:
            self._serve(server)

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._now_s:8.3f} {what}")

    def _is_able(self, server: _Server) -> bool:
        if self._now_s < server.slow_until_s and self.random.random() < 0.9:
            return False
        return max(server.down_until_s, server.hung_until_s) <= self._now_s

    def _advance_servers(self) -> None:
        """Apply the passage of time to servers: ends of faults, idle exchanges, drains."""
        for server in self._servers:
            is_like_the_others = server.is_like_the_others and server.signs_as_before
            if not is_like_the_others and (self.is_healed or self._now_s > server.differs_until_s):
                self._start(server)
            if self.is_healed:
                server.down_until_s = server.hung_until_s = server.slow_until_s = server.full_until_s = 0.0
            for stream in [each for each in server.streams if self._now_s - each.heard_at_s > self._idle_s_max]:
                stream.outbound.append(RetryableError("DEADLINE", "the exchange was idle"))
                self._end(server, stream)
            if server.drains_until_s is not None and (not server.streams or self._now_s > server.drains_until_s):
                self.say(f"{server.id} has drained")
                self._start(server, down_s=self.random.uniform(0.0, 3.0))

    def _do_harm(self) -> None:
        harm = self.random.choice(self._harms)
        server = self.random.choice(self._servers)
        self.harms[harm] += 1
        self.say(f"{harm}: {server.id}")
        until_s = self._now_s + self.random.choice([0.05, 0.5, 3.0])
        match harm:
            case "kill":
                self._start(server, down_s=until_s - self._now_s)
            case "hang":
                server.hung_until_s = until_s
            case "slow":
                server.slow_until_s = until_s
            case "fill up":
                server.full_until_s = until_s
            case "drain":
                server.drains_until_s = self._now_s + _DRAIN_S
                for stream in server.streams:
                    stream.exchange.request_reopen()
            case "reset" if server.streams:
                self._break(server, self.random.choice(server.streams))
            case "garble" if server.streams:
                stream = self.random.choice(server.streams)
                for way in (stream.inbound, stream.outbound):
                    if way and isinstance(way[-1], Message):
                        way[-1] = Message(b"\xff" + way[-1].metadata, way[-1].batch)
            case "other version" | "new key":
                self._start(server, is_like_the_others=harm != "other version", signs_as_before=harm != "new key")
                server.differs_until_s = until_s
            case "crash the engine":
                raise EngineCrashed
            case _:
                pass  # "open in vain" is injected in `open_stream`; other faults need a stream

    def _start(
        self, server: _Server, *, down_s: float = 0.0, is_like_the_others: bool = True, signs_as_before: bool = True
    ) -> None:
        """End a server's process with all its exchanges, and start another after `down_s`."""
        for stream in list(server.streams):
            self._break(server, stream)
        server.starts += 1
        server.is_like_the_others = is_like_the_others
        server.signs_as_before = signs_as_before
        server.down_until_s = self._now_s + down_s
        server.hung_until_s = server.full_until_s = 0.0
        server.drains_until_s = None

    def _break(self, server: _Server, stream: _Stream) -> None:
        """Cut a stream. Some of the messages in transit still arrive."""
        arrives = self.random.randint(0, len(stream.outbound))
        while len(stream.outbound) > arrives:
            stream.outbound.pop()
        self._end(server, stream)

    @staticmethod
    def _end(server: _Server, stream: _Stream) -> None:
        stream.is_broken = True
        stream.inbound.clear()
        server.streams.remove(stream)
        stream.drop()
        stream.exchange.close()

    def _serve(self, server: _Server) -> None:
        """Let a server handle one message of one of its streams."""
        stream = self.random.choice([each for each in server.streams if each.inbound] or [None])
        if stream is None:
            return
        stream.heard_at_s = self._now_s
        try:
            frame = decode(stream.inbound.popleft(), Role.ENGINE)
            if stream.keeps_views:
                stream.take(frame)
            else:
                for reply in stream.exchange.handle(frame):
                    stream.put(reply)
        except FoldflightError as error:
            error_sent = decode_error(encode_error(error))
            stream.outbound.append(error if error_sent is None else error_sent)
            self._end(server, stream)

    # -- connections
    # -------------------------------------------------------------------------------------------------------

    def dial(self, url: str, open_request: Open, *, resolve: Resolve | None = None) -> SimulatedConnection:
        """Open a connection to a server. Raises the errors of a client."""
        return SimulatedConnection(self, url, open_request, resolve)

    def open_stream(self, url: str, open_request: Open) -> _Stream:
        """Open an exchange on a server. Raises RetryableError if the server refuses it or does not answer."""
        server = next(each for each in self._servers if each.url == url)
        began_s = self._now_s
        self.step()
        while server.hung_until_s > self._now_s:
            if self._now_s - began_s > _DEADLINE_S:
                raise RetryableError("DEADLINE", f"{url} did not answer")
            self.step()
        if server.down_until_s > self._now_s:
            raise RetryableError("UNREACHABLE", f"{url} refused")
        if server.drains_until_s is not None:
            raise RetryableError("DRAINING", f"{server.id} is shutting down")
        if server.full_until_s > self._now_s or len(server.streams) >= server.limits.exchanges_max:
            raise RetryableError("OVERLOADED", f"{server.id} is full")

        def serve(ask: Callable[[Frame], Iterator[Frame]]) -> ServerExchange:
            return ServerExchange(
                decode_open(encode_open(open_request)),
                self._registries[server.is_like_the_others],
                limits=server.limits,
                server_id=server.id,
                signer=server.signer,
                ask=ask,
            )

        stream = _Stream(serve, self._now_s, keeps_views=open_request.keeps_views)
        exchange = stream.exchange
        server.streams.append(stream)
        if "open in vain" in self._harms and not self.is_healed and self.random.random() < 0.1:
            # The server has opened the exchange, but its answer is lost. The engine tries again; the first one becomes
            # idle.
            self.harms["open in vain"] += 1
            raise RetryableError("UNREACHABLE", f"{url}: reset while opening")
        stream.outbound.append(encode(exchange.open_reply, exchange.open_reply.schema))
        return stream

    def leave(self, stream: _Stream) -> None:
        """End a stream for the engine. Sometimes the server does not notice, as after a crash."""
        for server in self._servers:
            if stream in server.streams and (self.is_healed or self.random.random() < 0.8):
                self._end(server, stream)


class SimulatedConnection(Connection):
    """A connection to a simulated server."""

    def __init__(self, world: World, url: str, open_request: Open, resolve: Resolve | None = None) -> None:
        super().__init__(open_request, resolve)
        self._world = world
        self._schema = open_request.columns
        self._stream = world.open_stream(url, open_request)
        try:
            self._start()
        except BaseException:
            self.cut()
            raise

    def _write(self, frame: Frame) -> None:
        self._world.step()
        if self._stream.is_broken and self._world.random.random() < 0.5:
            raise self._ended()
        self._stream.inbound.append(encode(frame, self._schema))

    def _read(self) -> Frame | None:
        waits_until_s = self._world.now_s() + _DEADLINE_S
        while not self._stream.outbound:
            if self._stream.is_broken:
                raise self._ended()
            if self._world.now_s() > waits_until_s:
                raise RetryableError("DEADLINE", "the server did not answer")
            self._world.step()
        message = self._stream.outbound.popleft()
        if isinstance(message, FoldflightError):
            raise message
        return decode(message, Role.SERVER)

    def _ended(self) -> FoldflightError:
        """Return why the stream is broken: the server's error if it arrived, else UNREACHABLE."""
        last = self._stream.outbound[-1] if self._stream.outbound else None
        return last if isinstance(last, FoldflightError) else RetryableError("UNREACHABLE", "the stream was reset")

    def _end(self) -> None:
        self._world.leave(self._stream)
