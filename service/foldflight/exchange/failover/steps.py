"""What a coordinator is told and what it says: events are past or noun, instructions imperative."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foldflight.errors import FoldflightError
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, Forget, Open, Opened, States
from foldflight.functions.context import LogRecord

__all__ = [
    "AnswerCame",
    "AnswerWanted",
    "AwaitAnswer",
    "Bounds",
    "CutLink",
    "Deliver",
    "Event",
    "FrameGiven",
    "FrameSent",
    "GiveUp",
    "Instruction",
    "LeaveLink",
    "LinkLost",
    "LinkOpened",
    "OpenLink",
    "Report",
    "Rest",
    "Rested",
    "SendFrame",
    "Started",
    "Stats",
]


@dataclass(frozen=True)
class Bounds:
    """What failover may cost.

    Args:
        patience_s: Longest time without a server that takes the exchange; 0: every server is tried once.
        replay_bytes_max: Bytes of frames that are kept to be sent again; past it, a checkpoint brings their states.
        kept_bytes_max: Bytes of states that are kept; past it, the exchange cannot move, and a loss is an error.
        losses_max: Servers lost in a row without one answer: past it, what is sent is what kills them.
        ask_s: Time within an epoch after which the server is asked whether it wants to be left; well below the time
            that servers give a drain.
    """

    patience_s: float = 60.0
    replay_bytes_max: int = 64 << 20
    kept_bytes_max: int = 256 << 20
    losses_max: int = 8
    ask_s: float = 1.0


@dataclass
class Stats:
    """What failover has cost.

    Args:
        losses: Links that were lost.
        replays: Links that took the exchange over, after a loss or because the server asked for it.
        rows_refolded: Rows that had been sent and were sent again.
        checkpoints: Checkpoints that brought states.
        stall_s_max: The longest time from a loss until a server had everything again.
    """

    losses: int = 0
    replays: int = 0
    rows_refolded: int = 0
    checkpoints: int = 0
    stall_s_max: float = 0.0


# -- events: what happened -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """The engine wants an exchange."""


@dataclass(frozen=True)
class FrameGiven:
    """The engine gave a frame to send."""

    frame: States | Chunk | Forget | Barrier


@dataclass(frozen=True)
class AnswerWanted:
    """The engine waits for the next answer."""


@dataclass(frozen=True)
class LinkOpened:
    """The server took the exchange."""

    opened: Opened


@dataclass(frozen=True)
class FrameSent:
    """The frame is on its way."""


@dataclass(frozen=True)
class AnswerCame:
    """The awaited answer came, whole.

    Args:
        answer: `Saved` for a checkpoint, otherwise rows in the schema of `Opened`.
        logs: What functions logged before it.
        reopen: Whether the server asks to be left.
    """

    answer: Any
    logs: tuple[LogRecord, ...] = ()
    reopen: bool = False


@dataclass(frozen=True)
class LinkLost:
    """The link, or the attempt to open it, ended with an error."""

    error: FoldflightError


@dataclass(frozen=True)
class Rested:
    """The time to rest until has come."""


Event = Started | FrameGiven | AnswerWanted | LinkOpened | FrameSent | AnswerCame | LinkLost | Rested


# -- instructions: what to do --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenLink:
    """Open an exchange on this server, and tell `LinkOpened` or `LinkLost`."""

    url: str
    opening: Open


@dataclass(frozen=True)
class SendFrame:
    """Send a frame, and tell `FrameSent` or `LinkLost`."""

    frame: EngineFrame


@dataclass(frozen=True)
class AwaitAnswer:
    """Wait for the answer to this frame, and tell `AnswerCame` or `LinkLost`."""

    frame: EngineFrame


@dataclass(frozen=True)
class Rest:
    """Wait until this time, and tell `Rested`."""

    until_s: float


@dataclass(frozen=True)
class Deliver:
    """Hand an answer to the engine."""

    frame: EngineFrame
    answer: Any
    logs: tuple[LogRecord, ...]


@dataclass(frozen=True)
class CutLink:
    """Cancel the link; nothing that it still says counts."""


@dataclass(frozen=True)
class LeaveLink:
    """End the link politely: all answers are in."""


@dataclass(frozen=True)
class Report:
    """Tell the operator.

    Args:
        event: What happened.
        fields: The facts of it.
    """

    event: str
    fields: Mapping[str, str | int | float]


@dataclass(frozen=True)
class GiveUp:
    """Raise this error; the exchange is over."""

    error: FoldflightError


Instruction = OpenLink | SendFrame | AwaitAnswer | Rest | Deliver | CutLink | LeaveLink | Report | GiveUp
