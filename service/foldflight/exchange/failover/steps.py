"""The events that a coordinator handles, the instructions that it returns, its bounds and its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foldflight.errors import FoldflightError
from foldflight.exchange.answers import Answer
from foldflight.exchange.frames import EngineFrame, Open, Opened
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
        answer: `Saved` for a checkpoint, otherwise rows in the schema of `Opened`.
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
