"""The transition table: every pair outside it is an error, for both roles, with the story."""

import itertools

import pyarrow as pa
import pytest

from foldflight import RejectedError
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    Forget,
    Frame,
    InitialOutputs,
    Limits,
    Log,
    Open,
    Opened,
    Results,
    RowOutputs,
    SavedStates,
    States,
)
from foldflight.exchange.transitions import TABLES, Exchange, Role, State, transitions_table
from foldflight.functions import Call

SCHEMA = pa.schema([("slot", pa.int32())])
BATCH = pa.RecordBatch.from_pydict({"slot": [0]}, schema=SCHEMA)
LIMITS = Limits(2**20, 100, 2**20, 2**20, 1, 1.0, 1.0)
OPEN = Open((Call("count"),), SCHEMA, initial_outputs=True, row_outputs=True)
FRAMES: dict[type[Frame], Frame] = {
    Open: OPEN,
    States: States(BATCH),
    Chunk: Chunk(BATCH),
    Barrier: Barrier(1),
    Forget: Forget(pa.array([0], pa.int32())),
    Checkpoint: Checkpoint(),
    Opened: Opened("s", 1, (), LIMITS, SCHEMA),
    InitialOutputs: InitialOutputs(BATCH),
    Results: Results(1, BATCH, last=False),
    RowOutputs: RowOutputs(BATCH),
    SavedStates: SavedStates(BATCH, last=False),
    Log: Log(()),
}
# The shortest way to each state of the sender, from Open on.
PATHS: dict[tuple[Role, State], list[tuple[Role, type[Frame]]]] = {
    (Role.ENGINE, State.OPEN): [],
    (Role.SERVER, State.IDLE): [],
    (Role.SERVER, State.OPEN): [(Role.SERVER, Opened)],
    (Role.SERVER, State.ANSWERING): [(Role.SERVER, Opened), (Role.ENGINE, Barrier), (Role.SERVER, Results)],
    (Role.SERVER, State.SAVING): [(Role.SERVER, Opened), (Role.ENGINE, Checkpoint), (Role.SERVER, SavedStates)],
}
# What the engine sends before an answer in the state OPEN.
ASKING: dict[type[Frame], type[Frame]] = {
    InitialOutputs: States,
    RowOutputs: Chunk,
    Results: Barrier,
    SavedStates: Checkpoint,
}


def at(sender: Role, state: State) -> Exchange:
    exchange = Exchange(OPEN)
    for who, kind in PATHS[sender, state]:
        exchange.step(who, FRAMES[kind])
    assert exchange.state_of[sender] is state
    return exchange


PAIRS = [(sender, state, kind) for (sender, state), kind in itertools.product(PATHS, FRAMES)]


@pytest.mark.parametrize(
    ("sender", "state", "kind"), PAIRS, ids=lambda value: getattr(value, "name", None) or value.__name__
)
def test_a_frame_that_is_not_in_the_table_is_refused(sender: Role, state: State, kind: type[Frame]) -> None:
    """A frame is accepted exactly if the table lists it for the sender's state."""
    exchange = at(sender, state)
    if (state, kind) in TABLES[sender]:
        if state is State.OPEN and kind in ASKING:
            exchange.step(Role.ENGINE, FRAMES[ASKING[kind]])
        exchange.step(sender, FRAMES[kind])
        return
    with pytest.raises(RejectedError, match=f"the {sender.value} may not send {kind.__name__}") as excinfo:
        exchange.step(sender, FRAMES[kind])
    assert excinfo.value.code == "BAD_FRAME"
    assert excinfo.value.story[-1].startswith(f"{sender.value} {kind.__name__}")
    assert set(exchange.state_of.values()) == {State.FAILED}


def test_nothing_passes_after_a_failure() -> None:
    """A failed exchange refuses all frames."""
    exchange = at(Role.ENGINE, State.OPEN)
    with pytest.raises(RejectedError):
        exchange.step(Role.ENGINE, OPEN)
    for kind in (Chunk, Barrier, States):
        with pytest.raises(RejectedError, match="FAILED"):
            exchange.step(Role.ENGINE, FRAMES[kind])


@pytest.mark.parametrize(("second", "kind"), [(7, "repeated"), (3, "older"), (9, "skipping")])
def test_epochs_go_up_by_one(second: int, kind: str) -> None:
    """The first epoch may have any number; a repeated, older or skipping barrier is refused."""
    exchange = at(Role.ENGINE, State.OPEN)
    exchange.step(Role.ENGINE, Barrier(7))
    with pytest.raises(RejectedError, match=f"a {kind} barrier: epoch {second} after epoch 7, expected 8"):
        exchange.step(Role.ENGINE, Barrier(second))


def test_results_answer_the_oldest_barrier() -> None:
    """Results of several barriers must come in the order of the barriers."""
    exchange = at(Role.SERVER, State.OPEN)
    exchange.step(Role.ENGINE, Barrier(1))
    exchange.step(Role.ENGINE, Barrier(2))
    exchange.step(Role.SERVER, Results(1, BATCH, last=False))
    exchange.step(Role.SERVER, Results(1, BATCH))
    with pytest.raises(RejectedError, match=r"results of epoch 1 are not due \(due: 2\)"):
        exchange.step(Role.SERVER, Results(1, BATCH))


@pytest.mark.parametrize("answer", [InitialOutputs(BATCH), RowOutputs(BATCH)], ids=["initial", "row"])
def test_answers_need_a_question(answer: Frame) -> None:
    """Outputs that were not requested are refused, and so are outputs with too many rows."""
    exchange = at(Role.SERVER, State.OPEN)
    with pytest.raises(RejectedError, match="is not due"):
        exchange.step(Role.SERVER, answer)
    exchange = at(Role.SERVER, State.OPEN)
    three = pa.RecordBatch.from_pydict({"slot": [0, 1, 2]}, schema=SCHEMA)
    exchange.step(Role.ENGINE, States(three) if isinstance(answer, InitialOutputs) else Chunk(three))
    with pytest.raises(RejectedError, match="has 1 rows, expected 3"):
        exchange.step(Role.SERVER, answer)


def test_the_story_is_bounded() -> None:
    """A long exchange keeps only its last steps."""
    exchange = at(Role.ENGINE, State.OPEN)
    for _ in range(100):
        exchange.step(Role.ENGINE, FRAMES[Forget])
    assert len(exchange.story) == 20


def test_the_table_has_every_transition() -> None:
    """The printed table names every frame of the table."""
    text = transitions_table()
    assert all(kind.__name__ in text for table in TABLES.values() for _, kind in table)
