"""Keep one exchange running while servers fail or drain: a policy over a replay log, without I/O.

The shell, which owns sockets, reports each event to `Coordinator.handle` and carries out the instructions that it
returns. At most one of them waits for a server, and it is the last of its list. The same events at the same times give
the same instructions, so a recorded run can be replayed.

The rules:

- There is one connection at a time. A partial answer of a lost connection is discarded, so an answer never mixes two
servers.
- The replay log has everything that a lost server had: a new connection gets its states, and then its frames again.
- An answer that the engine already has is dropped when it arrives again. So each output is delivered once, even if the
  function is not deterministic.
- A frame is sent only after all answers to earlier frames have arrived. Otherwise the server could block on writing an
  answer while the engine blocks on writing a chunk.
- Within an epoch the coordinator asks the server at intervals, before it sends a frame, whether the exchange should
  move. The answer then has the states, so that no row is folded again on the next server.
- Every later server must report the same fingerprints as the first one, and the same digests of code. Otherwise it is
  skipped. So one exchange, which is one task or epoch of Spark, never mixes two codes; the next one may have
  the other.
- The coordinator gives up after `losses_max` losses without an answer, or after `patience_s` without a server. After
  three seconds without a server it says once that it waits, and for how much longer.

Circuit breakers choose the server to try next. A server that fails is skipped for a time that doubles with each failure
and has jitter, so that not all exchanges of a fleet return to it at once. After that time one exchange may try it while
others still skip it. The first success closes the circuit. Exchanges that lose a server at the same time count as one
failure.

Source: M. Nygard, "Release It!" (2007), circuit breaker; M. Brooker, "Exponential backoff and jitter" (2015).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.failover.replaylog import ReplayEntry, ReplayLog
from foldflight.exchange.frames import (
    NO_SLOTS,
    ONE_SLOT,
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Entries,
    Folded,
    Forget,
    Open,
    Opened,
    Slots,
    States,
    check_chunk,
    check_slots,
    check_states,
)
from foldflight.exchange.transitions import Answer, CheckpointAnswer, check_epoch, check_none_due
from foldflight.exchange.view_columns import without_entries
from foldflight.functions.author.codedigest import other_code
from foldflight.functions.author.context import LogRecord


@dataclass(frozen=True)
class FailoverBounds:
    """Limits on the cost of failover.

    Args:
        patience_s: Longest time without a server that takes the exchange. 0: every server is tried once.
        replay_bytes_max: Bytes of frames that are stored for replay. Beyond it, a checkpoint replaces them by states.
        kept_bytes_max: Bytes of states that are stored for replay. Beyond it, failover is off, and the loss of a
            server is an error.
        losses_max: Consecutive losses without an answer. Beyond it, the input itself probably crashes the servers.
        ask_s: Interval within an epoch at which the server is asked whether the exchange should reopen elsewhere. It
            must be well below the drain time of servers.
    """

    patience_s: float = 60.0
    replay_bytes_max: int = 64 << 20
    kept_bytes_max: int = 256 << 20
    losses_max: int = 8
    ask_s: float = 1.0


@dataclass
class FailoverStats:
    """The cost of failover so far.

    Args:
        losses: Number of lost connections.
        replays: Number of connections that took the exchange over, after a loss or at the request of a server.
        rows_refolded: Number of rows that were sent again.
        checkpoints: Number of checkpoints that returned states.
        stall_s_max: The longest time from a loss until another server was up to date.
    """

    losses: int = 0
    replays: int = 0
    rows_refolded: int = 0
    checkpoints: int = 0
    stall_s_max: float = 0.0


@dataclass(frozen=True, slots=True)
class ExchangeStarted:
    """The engine starts the exchange."""


@dataclass(frozen=True, slots=True)
class FrameSubmitted:
    """The engine submits a frame to send."""

    frame: EngineFrame


@dataclass(frozen=True, slots=True)
class AnswerRequested:
    """The engine waits for the next answer."""


@dataclass(frozen=True, slots=True)
class ServerOpened:
    """The server opened the exchange."""

    open_reply: Opened


@dataclass(frozen=True, slots=True)
class FrameSent:
    """The frame of the last `SendFrame` was sent."""


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    """The answer to the frame of `AwaitAnswer` arrived in full.

    Args:
        answer: `CheckpointAnswer` for a checkpoint, otherwise rows in the schema of `Opened`.
        logs: The log records of functions before it.
        reopen: Whether the server requests that the engine reopen the exchange elsewhere.
    """

    answer: Answer
    logs: Sequence[LogRecord] = ()
    reopen: bool = False


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the instruction `Sleep` was reached."""


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection, or the attempt to open it, ended with an error."""

    error: FoldflightError


Event = (
    ExchangeStarted
    | FrameSubmitted
    | AnswerRequested
    | ServerOpened
    | FrameSent
    | AnswerReceived
    | TimerFired
    | ConnectionLost
)
"""What the shell reports to `Coordinator.handle`. The first three come from the engine, the others end instructions."""


@dataclass(frozen=True)
class OpenConnection:
    """Open the exchange on this server, and report `ServerOpened` or `ConnectionLost`."""

    url: str
    open_request: Open


@dataclass(frozen=True)
class SendFrame:
    """Send a frame, and report `FrameSent` or `ConnectionLost`."""

    frame: EngineFrame


@dataclass(frozen=True)
class AwaitAnswer:
    """Wait for the answer to this frame, and report `AnswerReceived` or `ConnectionLost`."""

    frame: EngineFrame


@dataclass(frozen=True)
class Sleep:
    """Wait until this time, and report `TimerFired`."""

    until_s: float


@dataclass(frozen=True)
class Deliver:
    """Hand an answer to the engine; None if there are log records only."""

    frame: EngineFrame
    answer: Any
    logs: Sequence[LogRecord]


@dataclass(frozen=True)
class CutConnection:
    """Cancel the connection, and ignore everything that still arrives on it."""


@dataclass(frozen=True)
class LeaveConnection:
    """End the connection in the regular way. All answers have arrived."""


@dataclass(frozen=True)
class LogEvent:
    """Log an event for the operator.

    Args:
        event: What happened.
        fields: Details, by name.
        once: Whether an equal event is logged once in a process.
    """

    event: str
    fields: Mapping[str, str | int | float]
    once: bool = False


@dataclass(frozen=True)
class GiveUp:
    """Raise this error; the exchange is over."""

    error: FoldflightError


Waiting = OpenConnection | SendFrame | AwaitAnswer | Sleep
"""The instructions that wait for a server or the clock. Their end is reported to the coordinator."""

Instruction = Waiting | Deliver | CutConnection | LeaveConnection | LogEvent | GiveUp


_REST_S_MIN: Final = 0.1
_REST_S_MAX: Final = 5.0
_DOUBLINGS_MAX: Final = 10


def problem_of(errors: Mapping[str, FoldflightError]) -> str:
    """Describe the errors of servers: the first one in full, and the event of each other one."""
    (first, error), *others = errors.items()
    texts = [error.message if not others or first in error.message else f"{first}: {error.message}"]
    for url, other in others:
        event_text = other.message.split("; ", 1)[0]  # without the remedy, which often is the same
        texts.append(event_text if url in event_text else f"{url}: {event_text}")
    return "; ".join(texts)


@dataclass
class _Circuit:
    failures: int = 0
    rests_until_s: float = 0.0
    is_tried: bool = False


class Circuits:
    """The servers of a process, shared by its exchanges.

    Args:
        draw: Returns a random number in [0, 1).
        first_turn: Start of the rotation over servers. A different number in each process spreads the exchanges.
    """

    def __init__(self, draw: Callable[[], float], first_turn: int = 0) -> None:
        self._draw = draw
        self._turns = first_turn
        self._circuits: dict[str, _Circuit] = {}

    def begin(self, turn: int) -> None:
        """Continue the rotation over servers at this number."""
        self._turns = turn

    def turn(self, urls: Sequence[str], now_s: float) -> list[str]:
        """Return all servers in round-robin order; resting servers come last."""
        first = self._turns % len(urls)
        self._turns += 1
        return sorted([*urls[first:], *urls[:first]], key=lambda url: self._rests_until_s(url) > now_s)

    def choose(self, urls: Sequence[str], now_s: float) -> str | None:
        """Return the server to try; None if all servers rest."""
        for url in self.turn(urls, now_s):
            if self._rests_until_s(url) > now_s:
                continue
            circuit = self._circuits.get(url)
            if circuit is not None and circuit.failures:
                circuit.is_tried = True
                circuit.rests_until_s = now_s + self._rest_s(circuit)
            return url
        return None

    def available_at_s(self, urls: Collection[str]) -> float:
        """Return the earliest time at which one of these servers may be tried again, in seconds of the clock."""
        return min(self._rests_until_s(url) for url in urls)

    def record_failure(self, url: str, now_s: float) -> None:
        """Record that a server refused an exchange or was lost."""
        circuit = self._circuits.setdefault(url, _Circuit())
        if circuit.rests_until_s > now_s and not circuit.is_tried:
            return
        circuit.failures += 1
        circuit.is_tried = False
        circuit.rests_until_s = now_s + self._rest_s(circuit)

    def record_success(self, url: str) -> None:
        """Record a success of a server."""
        self._circuits.pop(url, None)

    def _rest_s(self, circuit: _Circuit) -> float:
        doublings = min(circuit.failures - 1, _DOUBLINGS_MAX)
        return min(_REST_S_MIN * 2.0**doublings, _REST_S_MAX) * (0.5 + self._draw())

    def _rests_until_s(self, url: str) -> float:
        circuit = self._circuits.get(url)
        return float("-inf") if circuit is None else circuit.rests_until_s


_STORY_STEPS: Final = 30
_STORY_STEP_CHARACTERS: Final = 200
_LOG_WAIT_AFTER_S: Final = 3.0  # most waits for a server are shorter, so they are not logged
_WITHOUT_CONTENT: Final = (None, Folded)


@dataclass
class _Connection:
    """The connection of the exchange to one server."""

    url: str
    is_open: bool = False
    is_restored: bool = False  # states were loaded, so its first results also contain slots that did not change
    is_leaving: bool = False  # the server requested that the exchange reopen elsewhere
    must_stay: bool = False  # as is_leaving, but the server could not return its states: stay until the next barrier
    requested_at_s: float = 0.0  # when the server last reported whether the exchange should reopen elsewhere
    is_caught_up: bool = False
    unsent: deque[ReplayEntry] = field(default_factory=deque)
    awaited: ReplayEntry | None = None  # the last frame that was sent, if its answer is due


@dataclass(slots=True)
class _Step:
    """Equal events of the story: when the first and the last of them were, and how many there were."""

    first_s: float
    last_s: float
    count: int = 1

    def describe(self, event: str) -> str:
        again = f" ({self.count} times until {self.last_s:.1f}s)" if self.count > 1 else ""
        return f"{self.first_s:.1f}s {event}{again}"


class Coordinator:
    """One exchange over many servers.

    Args:
        open_request: The Open frame of the exchange.
        urls: The servers.
        circuits: The circuit breakers of the servers.
        bounds: Limits on the cost of failover.
        now_s: Returns the time of a monotonic clock, in seconds.
        code_digests: The digests of the functions' code that the engine knows, by name.
        strict: Whether a server with other code is refused, rather than used with a warning.

    Attributes:
        open_reply: The Opened frame of the newest server; None before the first.
        stats: The cost of failover so far.
    """

    def __init__(
        self,
        open_request: Open,
        urls: Sequence[str],
        circuits: Circuits,
        *,
        bounds: FailoverBounds,
        now_s: Callable[[], float],
        code_digests: Mapping[str, str] = MappingProxyType({}),
        strict: bool = False,
    ) -> None:
        self.open_reply: Opened | None = None
        self.stats = FailoverStats()
        self._open_request = open_request
        self._slot_index = -1 if open_request.maps else open_request.columns.get_field_index("slot")
        self._urls = tuple(urls)
        self._circuits = circuits
        self._bounds = bounds
        self._now_s = now_s
        self._code_digests = code_digests
        self._strict = strict
        self._epoch: int | None = None  # of the last barrier
        self._due = 0  # answers that the engine does not have
        self._replay_log = ReplayLog(returns_states=open_request.returns.states, bytes_of=open_request.bytes_of)
        self._connection: _Connection | None = None
        self._is_answer_requested = False  # the engine waits for an answer
        self._is_needed = False  # the exchange needs a connection
        self._is_saving = False  # an answer with states is due, so no checkpoint is needed
        self._no_failover_reason = ""  # why the exchange cannot move to another server; empty if it can
        self._losses = 0  # consecutive losses without an answer
        self._refusals = 0  # consecutive servers with other code
        self._unserved_since_s: float | None = None
        self._is_wait_logged = False
        self._last_errors: dict[
            str, FoldflightError | None
        ] = {}  # servers since one was up to date, and their last errors
        self._error: FoldflightError | None = None
        self._lost_at_s: float | None = None  # start of the current interruption
        self._reported_refolds = 0  # value of stats.rows_refolded in the last report
        self._started_at_s = now_s()
        self._story: dict[str, _Step] = {}

    def story(self) -> tuple[str, ...]:
        """Return the events of all connections, oldest first, with seconds since the start of the exchange.

        Equal events are one step, where the first of them was: a server that is away is tried every few seconds.
        """
        return tuple(step.describe(event) for event, step in self._story.items())

    @property
    def retained_bytes(self) -> int:
        """Bytes of the states and frames in the replay log."""
        return self._replay_log.states.nbytes + self._replay_log.frame_bytes

    @property
    def is_due(self) -> bool:
        """Whether an answer is due that the engine does not have."""
        return self._due > 0

    def handle(self, event: Event) -> list[Instruction]:
        """Return the instructions that follow from an event.

        Raises:
            RejectedError: BAD_FRAME, SCHEMA_MISMATCH, LIMIT for a frame that the engine may not send.
        """
        match event:
            case FrameSubmitted():
                self._submit(event.frame)
            case FrameSent():
                self._mark_sent()
            case AnswerReceived():
                return self._receive(event)
            case AnswerRequested():
                self._is_answer_requested = self._is_needed = True
            case ServerOpened():
                return self._accept(event.open_reply)
            case ConnectionLost():
                return self._handle_loss(event.error)
            case ExchangeStarted():
                self._is_needed = True
            case TimerFired():
                pass
        return self._next()

    # -- events of the engine ----------------------------------------------------------------------------------------

    def _submit(self, frame: EngineFrame) -> None:
        """Check and record a frame, and append a checkpoint if too much would have to be replayed."""
        has_answer = self._open_request.answer_to(frame) not in _WITHOUT_CONTENT
        slots = self._check(frame)
        self._due += has_answer
        connection = self._connection
        if (
            connection is not None
            and isinstance(frame, (States, Chunk))
            and self._now_s() - connection.requested_at_s >= self._bounds.ask_s
            and self._may_ask(connection)
        ):
            self._append(ReplayEntry(Checkpoint(if_reopen=True), has_answer=True))
        self._append(ReplayEntry(frame, has_answer), slots)
        if isinstance(frame, Forget):
            if self._replay_log.is_idle():
                self._replay_log.clear()
                self._no_failover_reason = ""
        else:
            self._is_needed = True
            self._is_saving |= isinstance(frame, Checkpoint) or (
                isinstance(frame, Barrier) and self._open_request.returns.states
            )
        if self._no_failover_reason:
            self._replay_log.clear()
        elif self._replay_log.frame_bytes > self._bounds.replay_bytes_max and not (
            # An answered chunk of an exchange of steps is forgotten, so a checkpoint could not replace anything.
            self._is_saving or self._open_request.keeps_views or self._open_request.maps
        ):
            self._is_saving = True
            self._append(ReplayEntry(Checkpoint(), has_answer=True))

    def _may_ask(self, connection: _Connection) -> bool:
        """Return whether the server may be asked if the exchange should reopen elsewhere."""
        # Only an engine that keeps views can commit the entries that a checkpoint returns.
        if self._open_request.maps or self._open_request.keeps_views:
            return False
        if connection.is_leaving or connection.must_stay or self._no_failover_reason:
            return False
        # The answer to a barrier or checkpoint reports it, too.
        due = connection.unsent if connection.awaited is None else (connection.awaited, *connection.unsent)
        return not any(isinstance(each.frame, (Barrier, Checkpoint)) for each in due)

    def _check(self, frame: EngineFrame) -> Slots:
        """Refuse, before it is recorded, a frame that every server would refuse, and return its slots."""
        if self.open_reply is None:
            raise RejectedError("BAD_FRAME", "the exchange is not open; start it before frames are sent")
        if self._due:
            check_none_due(frame, self._open_request)
        slots_max = self.open_reply.limits.slots_max
        match frame:
            case Chunk():
                check_chunk(frame.batch, self._open_request)
                if self._slot_index >= 0:
                    return check_slots(frame.batch.column(self._slot_index), slots_max)
                return ONE_SLOT if frame.batch.num_rows and not self._open_request.maps else NO_SLOTS
            case Barrier():
                check_epoch(frame.epoch, self._epoch)
                self._epoch = frame.epoch
            case States() | Entries():
                return check_states(frame.batch, slots_max)
            case Checkpoint() if not self._open_request.keeps_views:
                raise RejectedError("BAD_FRAME", "checkpoints are taken here, unless Open has keeps_views")
            case Forget():
                return check_slots(frame.slots, slots_max)
            case _:
                pass
        return NO_SLOTS

    def _append(self, entry: ReplayEntry, slots: Slots = NO_SLOTS) -> None:
        self._replay_log.add(entry, slots)
        if self._connection is not None:
            self._connection.unsent.append(entry)

    # -- events of the server ----------------------------------------------------------------------------------------

    def _accept(self, open_reply: Opened) -> list[Instruction]:
        """Continue on a server that opened the exchange, unless it has other versions or other code."""
        error = self._compatibility_error(open_reply)
        if error is not None:
            self._refusals += isinstance(error, RetryableError)
            return self._handle_loss(error)
        self._refusals = 0
        warnings = self._warn_of_other_code(open_reply)
        self._start_connection(open_reply)
        return [*warnings, *self._next()]

    def _mark_sent(self) -> None:
        connection = self._open_connection()
        entry = connection.unsent.popleft()
        entry.was_sent = True
        if entry.has_answer:
            connection.awaited = entry

    def _receive(self, event: AnswerReceived) -> list[Instruction]:
        """Commit an answer to the replay log, and deliver it unless the engine has it already."""
        answer, logs, reopen = event.answer, event.logs, event.reopen
        connection = self._open_connection()
        entry, connection.awaited = connection.awaited, None
        assert entry is not None
        frame = entry.frame
        if self._open_request.maps:
            connection.is_leaving |= reopen
        elif isinstance(frame, (Barrier, Checkpoint)):
            connection.requested_at_s = self._now_s()
            connection.must_stay = reopen and isinstance(answer, CheckpointAnswer) and bool(answer.problem)
            connection.is_leaving |= reopen and not connection.must_stay
        if connection.is_restored and entry.result_slots is not None:
            connection.is_restored = False
            answer = _select_slots(answer, entry.result_slots)
        if entry.has_arrived:
            return self._next()
        entry.has_arrived = True
        self._losses = 0
        if isinstance(frame, Checkpoint) and frame.if_reopen and not connection.is_leaving:
            self._replay_log.drop_questions()
            return self._next()
        is_delivered = True
        if isinstance(frame, Checkpoint):
            self._is_saving &= frame.if_reopen
            self._commit_checkpoint(entry, answer)
            is_delivered = self._open_request.keeps_views
        elif isinstance(frame, Barrier):
            self._is_saving &= not self._open_request.returns.states  # a checkpoint may be due behind the barrier
            if not self._no_failover_reason:
                self._replay_log.commit(entry, self._without_entries(answer))
                self._check_stored_bytes()
        elif self._open_request.maps:
            self._replay_log.forget_answered(entry)
        if is_delivered:
            self._due -= 1
            self._is_answer_requested = False
        elif not logs:
            return self._next()
        return [Deliver(frame, answer if is_delivered else None, logs), *self._next()]

    def _commit_checkpoint(self, entry: ReplayEntry, saved_states: CheckpointAnswer) -> None:
        """Replace the frames up to a checkpoint by its states."""
        if saved_states.problem and self._open_request.keeps_views:
            # The frames are kept. Another server might save the states, and forget entries that the engine lacks.
            self._replay_log.forget_answered(entry)
            return
        if saved_states.problem:
            self._disable_failover(f"the server could not save its states: {saved_states.problem}")
            return
        self.stats.checkpoints += 1
        self._replay_log.commit(entry, self._without_entries(saved_states.states))
        self._check_stored_bytes()

    def _without_entries(self, states: pa.Table) -> pa.Table:
        """Return states without the entries of views, which an engine that keeps them has committed by itself."""
        if not self._open_request.keeps_views or self.open_reply is None:
            return states
        return without_entries(states, [call.views for call in self.open_reply.calls])

    @property
    def replay_bytes_max(self) -> int:
        """Bytes of frames that are stored for replay, of which one frame should be a small part."""
        return self._bounds.replay_bytes_max

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept that the engine, which keeps views, should take a checkpoint."""
        is_over = self._replay_log.frame_bytes > self._bounds.replay_bytes_max
        return self._open_request.keeps_views and is_over and not self._is_saving

    def _check_stored_bytes(self) -> None:
        states = self._replay_log.states
        if states.nbytes > self._bounds.kept_bytes_max:
            states.compact()  # most of them may be older states of a few groups
        if states.nbytes > self._bounds.kept_bytes_max:
            self._disable_failover(
                f"its states have {states.nbytes} bytes, and the client keeps at most {self._bounds.kept_bytes_max}"
            )

    def _disable_failover(self, reason: str) -> None:
        self._no_failover_reason = reason
        self._replay_log.clear()

    # -- connections -------------------------------------------------------------------------------------------------

    def _next(self) -> list[Instruction]:
        """Return the next instructions: for the connection, or to open one."""
        connection = self._connection
        if connection is None:
            return self._connect() if self._is_needed else []
        if connection.is_leaving and connection.awaited is None and not self._no_failover_reason:
            self._record(f"left {connection.url} at its request")
            self._connection = None
            self._is_needed = any(not isinstance(entry.frame, Forget) for entry in connection.unsent)
            return [LeaveConnection(), *self._next()]
        if not connection.unsent and not connection.is_caught_up:
            connection.is_caught_up = True
            self._unserved_since_s = None
            self._is_wait_logged = False
            self._last_errors.clear()
            self._circuits.record_success(connection.url)
        if connection.awaited is not None and (connection.unsent or self._is_answer_requested):
            return [AwaitAnswer(connection.awaited.frame)]
        if connection.unsent:
            return [SendFrame(connection.unsent[0].frame)]
        return [] if self._lost_at_s is None else self._report_recovery(connection)

    def _connect(self) -> list[Instruction]:
        now_s = self._now_s()
        if self._unserved_since_s is None:
            self._unserved_since_s = now_s
        until_s = self._unserved_since_s + self._bounds.patience_s
        logged_at_s = self._unserved_since_s + _LOG_WAIT_AFTER_S
        warnings = self._log_wait(until_s - now_s) if logged_at_s <= now_s < until_s else []
        url = self._circuits.choose(self._urls, now_s) if now_s <= until_s else None
        if url is None:
            available_at_s = max(self._circuits.available_at_s(self._urls), now_s)
            if available_at_s <= until_s:
                is_logged = self._is_wait_logged or logged_at_s <= now_s
                return [*warnings, Sleep(available_at_s if is_logged else min(available_at_s, logged_at_s))]
            # patience_s is over, but each server is tried once, even if other exchanges made it rest.
            url = next((url for url in self._circuits.turn(self._urls, now_s) if url not in self._last_errors), None)
            if url is None:
                return [self._give_up(f"no server took the exchange within {self._bounds.patience_s:g} s")]
        self._last_errors.setdefault(url)
        self._connection = _Connection(url)
        return [*warnings, OpenConnection(url, self._open_request)]

    def _log_wait(self, left_s: float) -> list[Instruction]:
        """Log, once in each wait, that no server takes the exchange and when the wait ends: a user sees no hang."""
        if self._is_wait_logged:
            return []
        self._is_wait_logged = True
        fields: dict[str, str | int | float] = {
            "servers": ", ".join(self._urls),
            "left_s": round(left_s, 1),
            "patience_s": self._bounds.patience_s,
        }
        if self._error is not None and self._problems():
            fields |= {"code": self._error.code, "problem": problem_of(self._problems())}
        return [LogEvent("an exchange waits for a server", fields)]

    def _compatibility_error(self, open_reply: Opened) -> FoldflightError | None:
        """Return why a server cannot take over the exchange; None if it can."""
        first = self.open_reply
        digests = _digests(self._open_request, open_reply)
        if first is not None and (other := other_code(_digests(self._open_request, first), digests)):
            return RetryableError(
                "UNREACHABLE",
                f"server {open_reply.server_id} has other code of {', '.join(other)} than {first.server_id}, on which "
                "the exchange began, so it cannot go on there; a repeated task or epoch begins with the new code",
            )
        if self._strict and (error := strict_code_error(self._open_request, open_reply, self._code_digests)):
            return error
        if first is None or (open_reply.fingerprints == first.fingerprints and open_reply.schema.equals(first.schema)):
            return None
        return RejectedError(
            "STATE_MISMATCH",
            f"server {open_reply.server_id} serves other versions of the functions than {first.server_id}, on which "
            "the exchange began; deploy the same versions on all servers",
        )

    def _warn_of_other_code(self, open_reply: Opened) -> list[Instruction]:
        """Warn of a server with other code than the engine has seen, as in a rolling deployment."""
        digests = _digests(self._open_request, open_reply)
        other = other_code(self._code_digests, digests)
        if not other:
            return []
        fields = {
            "functions": ", ".join(other),
            "server": self._open_connection().url,
            "server_id": open_reply.server_id,
            "code_digests": ", ".join(digests[name] for name in other),
            "expected": ", ".join(self._code_digests[name] for name in other),
        }
        return [LogEvent("a server has other code of functions than the client has seen", fields, once=True)]

    def _start_connection(self, open_reply: Opened) -> None:
        connection = self._open_connection()
        connection.is_open = True
        connection.requested_at_s = self._now_s()
        if self.open_reply is None:
            # Every later server must have the same fingerprints. Open has them, so the server itself refuses others.
            self._open_request = self._open_request.pin(open_reply.fingerprints)
        else:
            self.stats.replays += 1
            self.stats.rows_refolded += sum(entry.rows for entry in self._replay_log if entry.was_sent)
            states = self._replay_log.states.to_batch()
            if states is not None:
                connection.is_restored = True
                # Outputs in the middle of an epoch are not needed, and computing them may raise.
                connection.unsent.append(ReplayEntry(States(states, unanswered=True), has_answer=False))
            connection.unsent.extend(self._replay_log)
        self._record(f"opened {connection.url} ({open_reply.server_id}), to send {len(connection.unsent)} frames")
        self.open_reply = open_reply

    def _report_recovery(self, connection: _Connection) -> list[Instruction]:
        """Report to the operator, once after each interruption, that another server has taken over."""
        if self._lost_at_s is None or self._error is None:
            return []
        stall_s, self._lost_at_s = self._now_s() - self._lost_at_s, None
        self.stats.stall_s_max = max(self.stats.stall_s_max, stall_s)
        again, self._reported_refolds = self.stats.rows_refolded - self._reported_refolds, self.stats.rows_refolded
        fields: dict[str, str | int | float] = {
            "server": connection.url,
            "server_id": "" if self.open_reply is None else self.open_reply.server_id,
            "stall_s": round(stall_s, 3),
            "rows_sent_again": again,
            "losses": self.stats.losses,
            "code": self._error.code,
            "problem": self._error.message,
        }
        return [LogEvent("an exchange goes on at another server", fields)]

    def _handle_loss(self, error: FoldflightError) -> list[Instruction]:
        """Give up the connection, and try another server if the error allows it."""
        connection, now_s = self._open_connection(), self._now_s()
        self._connection = None
        self._is_needed = True
        self._replay_log.drop_questions()
        if not self._may_succeed_elsewhere(error, connection):
            return [CutConnection(), GiveUp(error)]
        self._circuits.record_failure(connection.url, now_s)
        self._last_errors[connection.url] = error
        what = "lost" if connection.is_open else "refused by"
        self._record(f"{what} {connection.url}: {error.code}: {error.message}")
        if self._unserved_since_s is None:
            self._unserved_since_s = now_s
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        if connection.is_open:
            self._losses += 1
            self.stats.losses += 1
        self._error = error
        if self.open_reply is not None and self._no_failover_reason:
            return [
                CutConnection(),
                self._give_up(f"the exchange could not move to another server: {self._no_failover_reason}"),
            ]
        if self._refusals > self._bounds.losses_max:
            return [
                CutConnection(),
                self._give_up(f"{self._refusals} answers in a row were of servers with other code"),
            ]
        if self._losses > self._bounds.losses_max:
            return [CutConnection(), self._give_up(f"{self._losses} servers were lost in a row without an answer")]
        return [CutConnection(), *self._connect()]

    def _may_succeed_elsewhere(self, error: FoldflightError, connection: _Connection) -> bool:
        """Return whether another server may succeed. If not, the job itself must change."""
        if isinstance(error, RetryableError):
            return True
        if not isinstance(error, RejectedError):
            return False
        if not connection.is_open:
            # Fingerprints in all calls mean that some server accepted the same Open before. If no server has accepted
            # the token yet, the token itself is wrong.
            is_agreed = all(self._open_request.fingerprints)
            return is_agreed and (error.code != "UNAUTHENTICATED" or self.open_reply is not None)
        # The engine checks its own frames, so BAD_FRAME means that a frame was damaged in transit. States that this
        # server cannot load were saved by another server.
        return error.code == "BAD_FRAME" or (error.code == "STATE_MISMATCH" and connection.is_restored)

    def _give_up(self, reason: str) -> GiveUp:
        error = self._error
        if error is None:
            raise AssertionError("the coordinator gives up only after an error")
        problem = problem_of(self._problems())
        return GiveUp(type(error)(error.code, f"{problem}; {reason}", story=self.story()))

    def _problems(self) -> dict[str, FoldflightError]:
        """Return the last error of each server that was tried since one was up to date."""
        return {url: error for url, error in self._last_errors.items() if error is not None}

    def _open_connection(self) -> _Connection:
        if self._connection is None:
            raise AssertionError("there is no connection")
        return self._connection

    def _record(self, event: str) -> None:
        event, elapsed_s = event[:_STORY_STEP_CHARACTERS], self._now_s() - self._started_at_s
        step = self._story.get(event)
        if step is None:
            if len(self._story) == _STORY_STEPS:
                del self._story[next(iter(self._story))]
            self._story[event] = _Step(elapsed_s, elapsed_s)
        else:
            step.last_s = elapsed_s
            step.count += 1


def _digests(open_request: Open, open_reply: Opened) -> dict[str, str]:
    """Return the digest of the code of each function of an exchange, by name."""
    return dict(zip(open_request.functions, (call.code_digest for call in open_reply.calls), strict=True))


def strict_code_error(open_request: Open, open_reply: Opened, code_digests: Mapping[str, str]) -> RetryableError | None:
    """Return why a server is refused that has other code than an engine has seen, or None if it has the same."""
    other = other_code(code_digests, _digests(open_request, open_reply))
    if not other:
        return None
    return RetryableError(
        "UNREACHABLE",
        f"server {open_reply.server_id} has other code of {', '.join(other)} than the client has seen, and strict is "
        "set; deploy the same code on all servers, and connect again",
    )


def _select_slots(results: pa.Table, slots: Slots) -> pa.Table:
    """Return the rows of these slots."""
    selected = pc.is_in(results.column("slot"), pa.array(slots, pa.int32()))
    return results.filter(selected)
