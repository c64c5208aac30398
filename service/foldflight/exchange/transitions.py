"""The state machine of an exchange: a table of transitions for both roles.

The rules:

- Each side has its own state. A frame changes the state of the side that sends it. Both ends track both states, so the
  receiver can check each frame as well as the sender.
- A pair of state and frame that is not in the table is an error: BAD_FRAME, with the last steps as its story.
- The engine may send a barrier before it has the results of the previous one. The server answers barriers in order.
- The first epoch may have any number. Each later epoch has the number of its predecessor plus one.
- While an answer is due, the server may ask for entries of views, in an exchange with `keeps_views`. It then waits, and
  the engine may only send the entries. So such an engine sends a frame only when no answer is due.

`python -m foldflight.exchange.transitions` prints the table of proto/README.md.

`EngineExchange` is the engine's end of one exchange: it checks frames and replies, and assembles answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import pyarrow as pa

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
from foldflight.fold.rows import ROW

_STORY_STEPS: Final = 20  # steps that an error message lists


class Role(Enum):
    """The two ends of an exchange."""

    ENGINE = "engine"
    SERVER = "server"

    __hash__ = object.__hash__  # Enum.__hash__ is a Python function, and every frame is hashed several times


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


# The frames that each side may send: (its state, frame) -> its next state. States that need an explanation:
# ANSWERING: some batches of the results of an epoch have been sent.
# SAVING: some batches of the states of a checkpoint have been sent.
# MAPPING: the exchange has steps, so there are only chunks.
# MAPPED: some batches of the answer to a chunk have been sent.
# WAITING (the server) and ASKED (the engine): the server has asked for entries, which the engine must send. After the
# last ones both are OPEN again.
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
        open_request: The Open frame of the exchange, its first step.

    Attributes:
        open_request: The Open frame of the exchange.
        state_of: The state of each end.
        due: The answers that are due, oldest first: the kind of each, and the number that it must have: the epoch of
            results, or the number of rows of outputs or of a chunk.
    """

    def __init__(self, open_request: Open) -> None:
        self.open_request = open_request
        self.state_of: dict[Role, State] = {Role.ENGINE: State.IDLE, Role.SERVER: State.IDLE}
        self.due: deque[tuple[type[Frame], int]] = deque()
        self._epoch: int | None = None
        self._story: deque[tuple[Role, str]] = deque(maxlen=_STORY_STEPS)
        self.step(Role.ENGINE, open_request)

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first."""
        return tuple(f"{sender.value} {text}" for sender, text in self._story)

    def step(self, sender: Role, frame: Frame) -> type[Frame] | None:
        """Record a frame that one of the ends sends.

        Args:
            sender: The end that sends it.
            frame: The frame.

        Returns:
            The kind of its answer; None if it has none.

        Raises:
            RejectedError: BAD_FRAME, if it may not be sent now.
        """
        self._story.append((sender, _TEXTS[type(frame)](frame)))
        state = self.state_of[sender]
        following = TABLES[sender].get((state, type(frame)))
        if following is None:
            raise self._bad_frame(f"the {sender.value} may not send {type(frame).__name__} when it is {state.value}")
        if sender is Role.SERVER:
            self.state_of[sender] = self._check_answer(frame, following)
            return None
        try:
            if self.due and state is not State.ASKED:
                check_none_due(frame, self.open_request)
            return self._record_request(frame, following)
        except RejectedError as error:
            raise self._bad_frame(error.message) from None

    def _record_request(self, frame: Frame, following: State) -> type[Frame] | None:
        """Record a frame of the engine, and return the kind of its answer. Raises RejectedError BAD_FRAME."""
        if isinstance(frame, Open):
            self.state_of[Role.ENGINE] = State.MAPPING if frame.maps else following
            return None
        kind = self.open_request.answer_to(frame)
        if isinstance(frame, Barrier):
            check_epoch(frame.epoch, self._epoch)
            self._epoch = frame.epoch
        elif isinstance(frame, Entries) and frame.last and self.state_of[Role.SERVER] is State.WAITING:
            self.state_of[Role.SERVER] = following = State.OPEN
        if kind is not None:
            self.due.append((kind, self._expected_number(frame)))
        self.state_of[Role.ENGINE] = following
        return kind

    def _expected_number(self, frame: Frame) -> int:
        """Return the number that the answer to a frame must have."""
        match frame:
            case Barrier():
                return frame.epoch
            case States():
                return frame.batch.num_rows or 1
            case Chunk():
                return self.open_request.rows_due(frame) if self.open_request.row_outputs else frame.batch.num_rows
            case _:
                return 0

    def _check_answer(self, frame: Frame, following: State) -> State:
        """Check a frame of the server against the answers that are due, and return the server's next state."""
        if isinstance(frame, (Opened, Log)):
            return following
        if isinstance(frame, (Wanted, Folded)) and not self.open_request.keeps_views:
            raise self._bad_frame(f"{type(frame).__name__} needs an Open with keeps_views")
        if isinstance(frame, Wanted):
            if not self.due:
                raise self._bad_frame("Wanted may be sent only while an answer is due")
            self.state_of[Role.ENGINE] = State.ASKED
            return following
        kind, expected = self.due[0] if self.due else (None, 0)
        if isinstance(frame, Results) and (kind, expected) != (Results, frame.epoch):
            due = ", ".join(str(epoch) for kind, epoch in self.due if kind is Results) or "none"
            raise self._bad_frame(f"results of epoch {frame.epoch} are not due (due: {due})")
        if kind is not type(frame):
            raise self._bad_frame(f"{type(frame).__name__} is not due")
        if isinstance(frame, (InitialOutputs, RowOutputs)) and frame.batch.num_rows != expected:
            raise self._bad_frame(f"{type(frame).__name__} has {frame.batch.num_rows} rows, expected {expected}")
        if isinstance(frame, (Results, SavedStates, Mapped)):
            if not frame.last:
                return following
            following = State.OPEN
        self.due.popleft()
        return following

    def fail(self) -> None:
        """Reject all further frames, because the processing of a frame failed."""
        self.state_of = {Role.ENGINE: State.FAILED, Role.SERVER: State.FAILED}

    def _bad_frame(self, reason: str) -> RejectedError:
        self.fail()
        return RejectedError("BAD_FRAME", f"{reason}; the exchange is over: open another one", story=self.story)


def check_epoch(epoch: int, before: int | None) -> None:
    """Raise RejectedError BAD_FRAME unless a barrier's number follows the number of the previous barrier."""
    if before is not None and epoch != before + 1:
        kind = "repeated" if epoch == before else "older" if epoch < before else "skipping"
        raise RejectedError("BAD_FRAME", f"a {kind} barrier: epoch {epoch} after epoch {before}, expected {before + 1}")


def check_none_due(frame: Frame, open_request: Open) -> None:
    """Raise RejectedError BAD_FRAME if a frame of the engine may not be sent while an answer is due."""
    if open_request.keeps_views:
        text = f"{type(frame).__name__} may be sent only when no answer is due, because Open has keeps_views"
        raise RejectedError("BAD_FRAME", text)


def _part(frame: Any, unit: str) -> str:
    return f"{type(frame).__name__}({frame.batch.num_rows} {unit}{', last' if frame.last else ''})"


# The text of each frame in error messages.
_TEXTS: Final[dict[type[Frame], Callable[[Any], str]]] = {
    Open: lambda frame: f"Open({', '.join(frame.functions)})",
    Opened: lambda frame: f"Opened({frame.server_id})",
    States: lambda frame: f"States({frame.batch.num_rows} rows)",
    Chunk: lambda frame: f"Chunk({frame.batch.num_rows} rows)",
    InitialOutputs: lambda frame: f"InitialOutputs({frame.batch.num_rows} rows)",
    RowOutputs: lambda frame: f"RowOutputs({frame.batch.num_rows} rows)",
    Wanted: lambda frame: f"Wanted({frame.batch.num_rows} rows)",
    Entries: lambda frame: _part(frame, "rows"),
    Mapped: lambda frame: _part(frame, "rows"),
    SavedStates: lambda frame: _part(frame, "slots"),
    Results: lambda frame: f"Results({frame.epoch}, {frame.batch.num_rows} slots{', last' if frame.last else ''})",
    Barrier: lambda frame: f"Barrier({frame.epoch})",
    Checkpoint: lambda frame: "Checkpoint(if_reopen)" if frame.if_reopen else "Checkpoint",
    Folded: lambda _: "Folded",
    Forget: lambda frame: f"Forget({len(frame.slots)} slots)",
    Log: lambda frame: f"Log({len(frame.records)})",
}


# The transitions that depend on more than the kind of a frame, so TABLES does not have them: the last batch of an
# answer ends it, and an exchange with steps accepts only chunks.
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
    print(transitions_table())  # noqa: T201 - run as a command


@dataclass(frozen=True)
class CheckpointAnswer:
    """The states that a checkpoint returns, or the reason why there are none.

    Args:
        states: n rows in the schema of the results, with NULL outputs.
        problem: The reason why there are no states; empty if there are some.
    """

    states: pa.Table
    problem: str = ""


Answer: TypeAlias = pa.Table | pa.RecordBatch | CheckpointAnswer
"""The answer to a frame of the engine: the results of a barrier, initial outputs, outputs after each row, the outputs
of a chunk in an exchange of steps, or the states of a checkpoint."""


def _check_mapped(answer: pa.Table, rows: int) -> None:
    """Check that an answer refers only to rows of the chunk, which has n rows. Raises RejectedError BAD_FRAME."""
    if ROW not in answer.column_names:
        if answer.num_rows != rows:
            raise RejectedError("BAD_FRAME", f"the answer to a chunk of {rows} rows has {answer.num_rows} rows")
        return
    if not answer.num_rows:
        return
    indexes = answer.column(ROW).to_numpy()
    if indexes[0] < 0 or indexes[-1] >= rows or (indexes[1:] < indexes[:-1]).any():
        raise RejectedError("BAD_FRAME", f"the rows of an answer are not ascending, or not among the chunk's {rows}")


class EngineExchange(Exchange):
    """The engine's end of one exchange, without I/O: it assembles the answers of the server.

    Args:
        open_request: The Open frame of the exchange.
    """

    def __init__(self, open_request: Open) -> None:
        super().__init__(open_request)
        self.open_reply: Opened | None = None
        self._parts: list[pa.RecordBatch] = []

    def receive(self, frame: Frame) -> Answer | None:
        """Check a frame of the server, and return the answer that it completes; None if it completes none.

        Raises:
            RejectedError: BAD_FRAME if the frame was not due; SCHEMA_MISMATCH if its batch has another schema.
        """
        rows = self.due[0][1] if self.due else 0
        self.step(Role.SERVER, frame)
        match frame:
            case Results() | SavedStates() | Mapped():
                return self._collect_part(frame, rows)
            case InitialOutputs() | RowOutputs():
                return frame.batch
            case Opened():
                self._check_opened(frame)
            case _:
                pass
        return None

    def _check_opened(self, open_reply: Opened) -> None:
        if len(open_reply.calls) != len(self.open_request.functions):
            raise RejectedError(
                "BAD_FRAME",
                f"Opened describes {len(open_reply.calls)} calls, and Open has {len(self.open_request.functions)}",
            )
        self.open_reply = open_reply

    def _collect_part(self, frame: Results | SavedStates | Mapped, rows: int) -> Answer | None:
        if self.open_reply is None or frame.batch.schema != self.open_reply.schema:
            raise RejectedError("SCHEMA_MISMATCH", "the schema of the results differs from the schema in Opened")
        self._parts.append(frame.batch)
        if not frame.last:
            return None
        whole, self._parts = pa.Table.from_batches(self._parts), []
        if isinstance(frame, Mapped):
            _check_mapped(whole, rows)
        return CheckpointAnswer(whole, frame.problem) if isinstance(frame, SavedStates) else whole
