"""The state machine of an exchange: a table of transitions for both roles.

The rules:

- Each side has its own state. A frame changes the state of the side that sends it. Both ends track both states, so the
  receiver can check each frame as well as the sender.
- A pair of state and frame that is not in the table is an error: BAD_FRAME, with the last steps as its story.
- The engine may send a barrier before it has the results of the previous one. The server answers barriers in order.
- The first epoch may have any number. Each later epoch has the number of its predecessor plus one.
- While an answer is due, the server may ask for entries of views, in an exchange with `keeps_views`. It then waits, and
  the engine may only send the entries. So such an engine sends a frame only when no answer is due.

`python -m foldflight.exchange.machine` prints the table of proto/README.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from foldflight.errors import RejectedError
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    Entries,
    Folded,
    Forget,
    Frame,
    InitialOutputs,
    Log,
    Mapped,
    Open,
    Opened,
    Results,
    RowOutputs,
    SavedStates,
    States,
    Wanted,
)

__all__ = ["TABLES", "Exchange", "Role", "State", "check_epoch", "check_given"]

_STORY_STEPS: Final = 20


class Role(Enum):
    """The two ends of an exchange."""

    ENGINE = "engine"
    SERVER = "server"

    __hash__ = object.__hash__  # that of Enum is written in Python, and each step of an exchange needs several

    @property
    def peer(self) -> Role:
        """The other end."""
        return Role.SERVER if self is Role.ENGINE else Role.ENGINE


class State(Enum):
    """The state of one side of an exchange."""

    IDLE = "IDLE"
    OPEN = "OPEN"
    ANSWERING = "ANSWERING"
    SAVING = "SAVING"
    MAPPING = "MAPPING"
    MAPPED = "MAPPED"
    ASKED = "ASKED"
    WAITING = "WAITING"
    FAILED = "FAILED"

    __hash__ = object.__hash__  # as for Role


# The frames that each side may send: (its state, frame) -> its next state. ANSWERING: some batches of the results of an
# epoch have been sent. SAVING: some batches of the states of a checkpoint have been sent. MAPPING: the exchange has
# steps, so there are only chunks. MAPPED: some batches of the answer to a chunk have been sent. WAITING and ASKED: the
# server has asked for entries, and the engine has to send them. The last ones make both OPEN again.
TABLES: Final[dict[Role, dict[tuple[State, type[Frame]], State]]] = {
    Role.ENGINE: {
        (State.IDLE, Open): State.OPEN,
        (State.OPEN, States): State.OPEN,
        (State.OPEN, Entries): State.OPEN,
        (State.ASKED, Entries): State.ASKED,
        (State.OPEN, Chunk): State.OPEN,
        (State.OPEN, Forget): State.OPEN,
        (State.OPEN, Barrier): State.OPEN,
        (State.OPEN, Checkpoint): State.OPEN,
        (State.MAPPING, Chunk): State.MAPPING,
    },
    Role.SERVER: {
        (State.IDLE, Opened): State.OPEN,
        (State.OPEN, InitialOutputs): State.OPEN,
        (State.OPEN, RowOutputs): State.OPEN,
        (State.OPEN, Log): State.OPEN,
        (State.OPEN, Folded): State.OPEN,
        (State.OPEN, Wanted): State.WAITING,
        (State.OPEN, Results): State.ANSWERING,
        (State.ANSWERING, Results): State.ANSWERING,
        (State.OPEN, SavedStates): State.SAVING,
        (State.SAVING, SavedStates): State.SAVING,
        (State.OPEN, Mapped): State.MAPPED,
        (State.MAPPED, Mapped): State.MAPPED,
        (State.MAPPED, Log): State.MAPPED,
    },
}


class Exchange:
    """One end of one exchange. It checks every frame that is sent or received.

    Args:
        role: The role of this end.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self._peer = role.peer
        self.states: dict[Role, State] = {Role.ENGINE: State.IDLE, Role.SERVER: State.IDLE}
        self._epoch: int | None = None
        self._due: dict[type[Frame], deque[int]] = {
            kind: deque() for kind in (Results, InitialOutputs, RowOutputs, SavedStates, Mapped, Folded)
        }
        self._opening: Open | None = None
        self._story: deque[tuple[Role, str]] = deque(maxlen=_STORY_STEPS)

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first."""
        return tuple(f"{sender.value} {text}" for sender, text in self._story)

    @property
    def epochs_due(self) -> tuple[int, ...]:
        """The epochs whose results are still due, oldest first."""
        return tuple(self._due[Results])

    @property
    def is_due(self) -> bool:
        """Whether an answer of the server is due."""
        return any(self._due.values())

    def send(self, frame: Frame) -> None:
        """Record a frame that this end sends. Raises RejectedError BAD_FRAME if it may not be sent now."""
        self._step(self.role, frame)

    def receive(self, frame: Frame) -> None:
        """Record a frame that the other end sent. Raises RejectedError BAD_FRAME if it may not be sent now."""
        self._step(self._peer, frame)

    def _step(self, sender: Role, frame: Frame) -> None:
        state = self.states[sender]
        self._story.append((sender, _TEXTS[type(frame)](frame)))
        following = TABLES[sender].get((state, type(frame)))
        if following is None:
            raise self._bad_frame(f"the {sender.value} may not send {type(frame).__name__} when it is {state.value}")
        if sender is Role.SERVER and self.states[Role.ENGINE] is State.IDLE:
            raise self._bad_frame(f"the server may not send {type(frame).__name__} before Open")
        if isinstance(frame, (Entries, Wanted, Folded)):
            self._check_views(frame)
        self.states[sender] = self._next_state(frame, following)

    def _check_views(self, frame: Entries | Wanted | Folded) -> None:
        """Check a frame that only an exchange has whose engine keeps entries of views."""
        if self._opening is None or not self._opening.keeps_views:
            raise self._bad_frame(f"{type(frame).__name__} needs an Open with keeps_views")
        if isinstance(frame, Wanted):
            if not self.is_due:
                raise self._bad_frame("Wanted may be sent only while an answer is due")
            self.states[Role.ENGINE] = State.ASKED

    def _next_state(self, frame: Frame, following: State) -> State:
        """Return the next state of the sender. Check what the table cannot express: due answers and epoch numbers."""
        match frame:
            case Open():
                self._opening = frame
                return State.MAPPING if frame.maps else following
            case States() if self._opening is not None and self._opening.is_answered(frame):
                self._due[InitialOutputs].append(frame.batch.num_rows or 1)
            case Entries() if frame.last and self.states[Role.SERVER] is State.WAITING:
                self.states[Role.SERVER] = State.OPEN
                return State.OPEN
            case Chunk() if self._opening is not None and self._opening.is_answered(frame):
                if self._opening.maps:
                    self._due[Mapped].append(frame.batch.num_rows)
                elif self._opening.keeps_views:
                    self._due[Folded].append(0)
                else:
                    self._due[RowOutputs].append(self._opening.rows_due(frame))
            case Barrier():
                self._check_barrier(frame.epoch)
            case Checkpoint():
                self._due[SavedStates].append(0)
            case SavedStates():
                if not self._due[SavedStates]:
                    raise self._bad_frame("SavedStates is not due")
                if frame.last:
                    self._due[SavedStates].popleft()
                    return State.OPEN
            case Mapped():
                if not self._due[Mapped]:
                    raise self._bad_frame("Mapped is not due")
                if frame.last:
                    self._due[Mapped].popleft()
                    return State.OPEN
            case Folded():
                if not self._due[Folded]:
                    raise self._bad_frame("Folded is not due")
                self._due[Folded].popleft()
            case InitialOutputs() | RowOutputs():
                self._check_answer(frame)
            case Results():
                if not self._due[Results] or self._due[Results][0] != frame.epoch:
                    due = ", ".join(map(str, self._due[Results])) or "none"
                    raise self._bad_frame(f"results of epoch {frame.epoch} are not due (due: {due})")
                if frame.last:
                    self._due[Results].popleft()
                    return State.OPEN
            case _:
                pass
        return following

    def _check_barrier(self, epoch: int) -> None:
        try:
            check_epoch(epoch, self._epoch)
        except RejectedError as error:
            raise self._bad_frame(error.message) from None
        self._epoch = epoch
        self._due[Results].append(epoch)

    def _check_answer(self, frame: InitialOutputs | RowOutputs) -> None:
        due = self._due[type(frame)]
        if not due:
            raise self._bad_frame(f"{type(frame).__name__} is not due")
        expected = due.popleft()
        if frame.batch.num_rows != expected:
            raise self._bad_frame(f"{type(frame).__name__} has {frame.batch.num_rows} rows, expected {expected}")

    def fail(self) -> None:
        """Refuse all further frames, because the processing of a frame failed."""
        self.states = {Role.ENGINE: State.FAILED, Role.SERVER: State.FAILED}

    def _bad_frame(self, why: str) -> RejectedError:
        self.fail()
        return RejectedError("BAD_FRAME", f"{why}; the exchange is over: open another one", story=self.story)


def check_epoch(epoch: int, before: int | None) -> None:
    """Raise RejectedError BAD_FRAME if a barrier has not the number that follows that of the barrier before it."""
    if before is not None and epoch != before + 1:
        kind = "repeated" if epoch == before else "older" if epoch < before else "skipping"
        raise RejectedError("BAD_FRAME", f"a {kind} barrier: epoch {epoch} after epoch {before}, expected {before + 1}")


def check_given(frame: Frame, opening: Open, *, is_due: bool) -> None:
    """Check a frame of the engine before it is kept for any server, by the rules that every server has.

    Args:
        frame: The frame.
        opening: The Open frame of the exchange.
        is_due: Whether an answer to an earlier frame is due.

    Raises:
        RejectedError: BAD_FRAME, if an engine may not send the frame now.
    """
    kind, state = type(frame), State.MAPPING if opening.maps else State.OPEN
    if (state, kind) not in TABLES[Role.ENGINE]:
        raise RejectedError("BAD_FRAME", f"the engine may not send {kind.__name__} when it is {state.value}")
    if opening.keeps_views:
        if is_due:
            raise RejectedError(
                "BAD_FRAME", f"{kind.__name__} may be sent only when no answer is due, because Open has keeps_views"
            )
    elif kind is Entries:
        raise RejectedError("BAD_FRAME", "Entries needs an Open with keeps_views")


def _rows_text(frame: Any) -> str:
    return f"{type(frame).__name__}({frame.batch.num_rows} rows)"


def _part_text(frame: Any, unit: str) -> str:
    return f"{type(frame).__name__}({frame.batch.num_rows} {unit}{', last' if frame.last else ''})"


# How the story names each frame.
_TEXTS: Final[dict[type[Frame], Callable[[Any], str]]] = {
    Open: lambda frame: f"Open({', '.join(frame.functions)})",
    Opened: lambda frame: f"Opened({frame.server_id})",
    States: _rows_text,
    Chunk: _rows_text,
    InitialOutputs: _rows_text,
    RowOutputs: _rows_text,
    Wanted: _rows_text,
    Entries: lambda frame: _part_text(frame, "rows"),
    Mapped: lambda frame: _part_text(frame, "rows"),
    SavedStates: lambda frame: _part_text(frame, "slots"),
    Results: lambda frame: f"Results({frame.epoch}, {frame.batch.num_rows} slots{', last' if frame.last else ''})",
    Barrier: lambda frame: f"Barrier({frame.epoch})",
    Checkpoint: lambda frame: "Checkpoint(if_reopen)" if frame.if_reopen else "Checkpoint",
    Folded: lambda _: "Folded",
    Forget: lambda frame: f"Forget({len(frame.slots)} slots)",
    Log: lambda frame: f"Log({len(frame.records)})",
}


# What is not in TABLES: the last batch of an answer ends it, and an exchange with steps takes chunks only.
_OTHER_ENDS: Final = (
    (Role.ENGINE, State.IDLE, "`Open` with steps", State.MAPPING),
    (Role.ENGINE, State.OPEN, "nothing: the server sends `Wanted`", State.ASKED),
    (Role.ENGINE, State.ASKED, "the last `Entries`", State.OPEN),
    (Role.SERVER, State.WAITING, "nothing: the engine sends the last `Entries`", State.OPEN),
    (Role.SERVER, State.ANSWERING, "the last `Results`", State.OPEN),
    (Role.SERVER, State.SAVING, "the last `SavedStates`", State.OPEN),
    (Role.SERVER, State.MAPPED, "the last `Mapped`", State.OPEN),
)


def transitions_table() -> str:
    """Return the table of transitions as Markdown."""
    edges: dict[tuple[Role, State, State], list[str]] = {}
    for role, table in TABLES.items():
        for (state, frame), following in table.items():
            edges.setdefault((role, state, following), []).append(f"`{frame.__name__}`")
    for role, state, frames, following in _OTHER_ENDS:
        edges.setdefault((role, state, following), []).append(frames)
    rows = sorted(edges.items(), key=lambda edge: [list(Role).index(edge[0][0]), list(State).index(edge[0][1])])
    return "\n".join(
        [
            "| end | its state | it may send | its next state |",
            "|---|---|---|---|",
            *(
                f"| {role.value} | {state.value} | {', '.join(frames)} | {following.value} |"
                for (role, state, following), frames in rows
            ),
        ]
    )


if __name__ == "__main__":
    print(transitions_table())  # noqa: T201 - it is a command
