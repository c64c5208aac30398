"""Both ends of an exchange in memory, with encoded frames."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from examples.weighted_avg import WeightedAvg
from foldflight import CorruptError, FoldflightError, FunctionError, RejectedError, udaf
from foldflight.exchange.frames import (
    Barrier,
    Chunk,
    Frame,
    InitialOutputs,
    Limits,
    Log,
    Open,
    Results,
    Returns,
    RowOutputs,
    States,
)
from foldflight.exchange.server_exchange import ServerExchange, describe
from foldflight.functions import Call, Registry
from foldflight.functions.types.arrow import with_column
from foldflight.testing import ExchangePair
from tests.effort import examples

COLUMNS = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.int64()), ("w", pa.int32())])
LIMITS = Limits(
    message_bytes_max=2**24,
    slots_max=1000,
    state_bytes_max=2**20,
    exchange_state_bytes_max=2**24,
    exchanges_max=1,
    idle_s_max=1,
    age_s_max=1,
)
CALLS = (Call("weighted_avg", ("v", "w")), Call("count", ("v",), distinct=True))


class Pair(ExchangePair):
    """The pair of the kit, over the columns of these tests."""

    def __init__(
        self,
        calls: tuple[Call, ...] = CALLS,
        functions: Any = (WeightedAvg,),
        limits: Limits = LIMITS,
        columns: pa.Schema = COLUMNS,
        **options: Any,
    ) -> None:
        super().__init__(Open(calls, columns, **options), Registry.load(functions), limits=limits)

    def taken(self, number: int) -> dict[int, tuple[Any, ...]]:
        table = self.answers.pop()
        return {row["slot"]: (row["output_0"], row["output_1"]) for row in table.to_pylist()}


def chunk(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(COLUMNS)]
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


class Epochs(RuleBasedStateMachine):
    """Random frames compared with a model in plain Python; states move to a new exchange at any barrier."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.states: dict[int, dict[str, Any]] = {}
        self.dirty: set[int] = set()
        self.due: list[tuple[int, dict[int, tuple[Any, ...]]]] = []
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.pair = Pair()

    @rule(
        rows=st.lists(
            st.tuples(st.integers(0, 3), st.booleans(), st.integers(-9, 9), st.integers(1, 4), st.integers(0, 99)),
            max_size=6,
        )
    )
    def fold(self, rows: list[tuple[int, bool, int, int, int]]) -> None:
        sent_rows = []
        for slot, back, v, w, pick in rows:
            group = self.rows[slot]
            if back and group:
                old = group.pop(pick % len(group))
                sent_rows.append((slot, 3 if pick % 2 else 1, *old))
            else:
                group.append((v, w))
                sent_rows.append((slot, 2 if pick % 2 else 0, v, w))
            self.dirty.add(slot)
        assert self.pair.send(self.pair.engine.chunk(chunk(*sent_rows))) == []

    def answer(self) -> dict[int, tuple[Any, ...]]:
        def one(group: list[tuple[int, int]]) -> tuple[Any, ...]:
            weight = sum(w for _, w in group)
            average = None if weight == 0 else int(sum(v * w for v, w in group) / weight)
            return average, len({v for v, _ in group})

        return {slot: one(self.rows[slot]) for slot in self.dirty}

    @rule()
    def barrier(self) -> None:
        self.number += 1
        expected, self.dirty = self.answer(), set()
        replies = self.pair.send(self.pair.engine.barrier(self.number))
        assert all(isinstance(reply, Results) for reply in replies)
        table = self.pair.answers.pop()
        assert table.column("slot").to_pylist() == sorted(expected)
        assert {row["slot"]: (row["output_0"], row["output_1"]) for row in table.to_pylist()} == expected
        for row in table.to_pylist():
            self.states[row["slot"]] = row

    @precondition(lambda self: not self.dirty)
    @rule(at_once=st.booleans())
    def move(self, at_once: bool) -> None:
        """Continue in another exchange with the stored states; their slots are dirty there."""
        self.pair.server.close()
        self.pair = Pair()
        schema = self.pair.server.open_reply.schema
        rows = list(self.states.values())
        for part in [rows] if at_once else [[row] for row in rows]:
            self.pair.send(self.pair.engine.states(pa.RecordBatch.from_pylist(part, schema=schema)))
        self.dirty = set(self.states)
        self.number = 0

    @rule(slot=st.integers(0, 3))
    def forget(self, slot: int) -> None:
        self.pair.send(self.pair.engine.forget(pa.array([slot], pa.int32())))
        self.rows.pop(slot, None)
        self.states.pop(slot, None)
        self.dirty.discard(slot)

    @invariant()
    def stats_count_rows(self) -> None:
        if hasattr(self, "pair"):
            assert self.pair.server.stats.barriers == self.number


TestEpochs = Epochs.TestCase
TestEpochs.settings = settings(examples(60), stateful_step_count=25)


def test_initial_outputs_are_the_outputs_at_the_opening_epoch() -> None:
    """States are answered with their outputs in their order, and an empty frame with the output of a new group."""
    pair = Pair(initial_outputs=True)
    schema = pair.server.open_reply.schema
    states = pa.RecordBatch.from_pylist(
        [{"slot": 5, "state_0": {"sum": 10, "count": 4}}, {"slot": 2, "state_0": {"sum": 0, "count": 0}}], schema=schema
    )
    (reply,) = pair.send(pair.engine.states(states))
    assert isinstance(reply, InitialOutputs)
    assert [(row["slot"], row["output_0"]) for row in reply.batch.to_pylist()] == [(5, 2), (2, None)]
    (fresh,) = pair.send(pair.engine.states(states.slice(0, 0)))
    assert isinstance(fresh, InitialOutputs)
    assert [(row["slot"], row["output_0"], row["output_1"]) for row in fresh.batch.to_pylist()] == [(0, None, 0)]
    assert pair.send(pair.engine.states(states, unanswered=True)) == []
    pair.engine.barrier(1)


def test_row_outputs_follow_each_chunk() -> None:
    """With row outputs each chunk is answered with the value after each row."""
    pair = Pair(row_outputs=True)
    (reply,) = pair.send(pair.engine.chunk(chunk((0, 0, 4, 1), (0, 0, 8, 1), (1, 0, 5, 1))))
    assert isinstance(reply, RowOutputs)
    assert [(row["output_0"], row["output_1"]) for row in reply.batch.to_pylist()] == [(4, 1), (6, 2), (5, 1)]


def test_row_outputs_follow_the_rows_that_emit() -> None:
    """With emits, a chunk is answered with the value after each row whose `emit` is true, by its number."""
    rows = chunk((0, 0, 4, 1), (0, 0, 8, 1), (1, 0, 5, 1))
    rows = with_column(rows, "emit", pa.array([False, True, True]))
    pair = Pair(row_outputs=True, emits=True, columns=rows.schema)
    (reply,) = pair.send(pair.engine.chunk(rows))
    assert isinstance(reply, RowOutputs)
    result = [(row["slot"], row["output_0"], row["output_1"]) for row in reply.batch.to_pylist()]
    assert result == [(1, 6, 2), (2, 5, 1)]
    (reply,) = pair.send(pair.engine.chunk(rows.slice(0, 0)))
    assert isinstance(reply, RowOutputs)
    assert reply.batch.num_rows == 0
    for columns in (COLUMNS, rows.schema.append(rows.schema.field("emit"))):
        with pytest.raises(RejectedError, match="exactly one column `emit`"):
            Pair(row_outputs=True, emits=True, columns=columns)


def test_columns_that_are_not_requested_are_not_sent() -> None:
    """Without states, their columns are NULL."""
    pair = Pair(returns=Returns(states=False, outputs=True))
    pair.send(pair.engine.chunk(chunk((0, 0, 4, 1))))
    pair.send(pair.engine.barrier(1))
    table = pair.answers.pop()
    assert table.column("state_0").null_count == 1
    assert table.column("output_0").to_pylist() == [4]


def test_large_results_come_in_several_batches() -> None:
    """Results that exceed the message limit are split; only the last batch has `last`, and no row is lost."""
    limits = Limits(2**14 + 600, 1000, 2**20, 2**24, 1, 1, 1)
    pair = Pair(limits=limits)
    pair.send(pair.engine.chunk(chunk(*[(slot, 0, slot, 1) for slot in range(200)])))
    replies = pair.send(pair.engine.barrier(1))
    assert len(replies) > 3
    assert [reply.last for reply in replies if isinstance(reply, Results)] == [False] * (len(replies) - 1) + [True]
    assert pair.taken(1) == {slot: (slot, 1) for slot in range(200)}


def test_reopen_is_said_once_with_the_last_results() -> None:
    """After a request to reopen, only the last batch of the next results has `reopen`."""
    pair = Pair()
    pair.server.request_reopen()
    for number, expected in ((1, True), (2, False)):
        (reply,) = pair.send(pair.engine.barrier(number))
        assert isinstance(reply, Results)
        assert reply.reopen is expected


def chatty(lines: int) -> type:
    class Chatty:
        def open(self, context: Any) -> None:
            self.logger = context.logger

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            for line in range(lines):
                self.logger.info("seen", value=value, line=line)
            return accumulator

        def get_value(self, accumulator: int) -> int:
            return accumulator

    return udaf(input_types=["BIGINT"], result_type="BIGINT", name="chatty")(Chatty)


@pytest.mark.parametrize(("lines", "sent_lines"), [(1, 1), (5000, 1000)])
def test_logs_come_before_the_results_and_are_bounded(lines: int, sent_lines: int) -> None:
    """What functions log comes at the barrier, at most a thousand lines, and says how many were dropped."""
    pair = Pair((Call("chatty", ("v",)),), [chatty(lines)])
    assert pair.send(pair.engine.chunk(chunk((0, 0, 7, 1)))) == []
    log, _ = pair.send(pair.engine.barrier(1))
    assert isinstance(log, Log)
    assert len(log.records) == sent_lines
    assert (log.records[0].message, log.records[0].fields["value"]) == ("seen", "7")
    if lines > sent_lines:
        assert log.records[-1].fields == {"dropped": str(lines - sent_lines + 1)}


def refusal(pair: Pair, frame: Frame) -> FoldflightError:
    with pytest.raises(FoldflightError) as excinfo:
        pair.send(frame)
    return excinfo.value


def slots(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


def never_null(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = pa.schema([field.with_nullable(False) for field in batch.schema])
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


OTHER = pa.RecordBatch.from_pydict({"slot": slots(0), "x": [1]})
BAD_FRAMES = {
    "chunk of other columns": (Chunk(OTHER), "SCHEMA_MISMATCH", "Open announced slot int32, kind int8"),
    "negative slot": (Chunk(chunk((-1, 0, 1, 1))), "LIMIT", "slot -1 is out of bounds"),
    "slot beyond the bound": (Chunk(chunk((1000, 0, 1, 1))), "LIMIT", "slots_max - 1 = 499"),
    "no slot": (
        Chunk(chunk((None, 0, 1, 1))),
        "SCHEMA_MISMATCH",
        "int32 without NULLs, and these are int32 with 1 NULLs",
    ),
    "chunk of columns that may not be NULL": (
        Chunk(never_null(chunk((0, 0, 1, 1)))),
        "SCHEMA_MISMATCH",
        "the chunk has slot int32 not null, kind int8 not null",
    ),
    "no row kind": (Chunk(chunk((0, 9, 1, 1))), "SCHEMA_MISMATCH", "9 is no row kind"),
    "states without slot": (
        States(OTHER.select(["x"])),
        "SCHEMA_MISMATCH",
        "must have one column `slot`, and this batch has 0",
    ),
    "states with two slots": (
        States(OTHER.rename_columns(["slot", "slot"])),
        "SCHEMA_MISMATCH",
        "must have one column `slot`, and this batch has 2",
    ),
    "states of other calls": (States(OTHER), "SCHEMA_MISMATCH", "no column state_0"),
    "states of another type": (
        States(OTHER.rename_columns(["slot", "state_0"])),
        "STATE_MISMATCH",
        "its type is int64",
    ),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_frames_that_make_no_sense_are_refused(case: str) -> None:
    """An invalid frame ends the exchange with a code, a reason and the story."""
    frame, code, reason = BAD_FRAMES[case]
    error = refusal(Pair(), frame)
    assert (type(error), error.code) == (RejectedError, code)
    assert reason in error.message
    assert error.story[0] == "engine Open(weighted_avg, count)"


def test_states_beyond_the_bounds_are_refused() -> None:
    """A state, or the sum of all, that exceeds the announced bytes is LIMIT with its slot."""
    small = Limits(2**20, 1000, 200, 2**20, 1, 1, 1)
    pair = Pair((Call("weighted_avg", ("v", "w")), Call("count", ("v",), distinct=True)), limits=small)
    pair.send(pair.engine.chunk(chunk(*[(3, 0, value, 1) for value in range(100)])))
    error = refusal(pair, Barrier(1))
    assert (error.code, error.function, error.slot) == ("LIMIT", "count", 3)
    tiny = Limits(2**20, 1000, 2**20, 10, 1, 1, 1)
    pair = Pair(limits=tiny)
    pair.send(pair.engine.chunk(chunk((0, 0, 1, 1))))
    assert "exchange_state_bytes_max is 10" in refusal(pair, Barrier(1)).message


def test_rows_without_bytes_are_bounded() -> None:
    """A chunk without columns has no bytes, but each of its rows needs memory on the server."""
    bounds = Limits(4000, 1000, 200, 2**20, 1, 1, 1)
    open_request = Open(calls=(Call("count"),), columns=pa.schema([]))
    server = ServerExchange(open_request, Registry(), limits=bounds, server_id="s")
    for rows in (1000, 1001):
        batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["x"]).select([])
        if rows == 1000:
            assert list(server.handle(Chunk(batch))) == []
        else:
            with pytest.raises(RejectedError, match="a chunk has 1001 rows") as excinfo:
                list(server.handle(Chunk(batch)))
            assert excinfo.value.code == "LIMIT"


def test_nothing_is_answered_after_an_error() -> None:
    """After an error the accumulators are undefined, so every frame is refused."""
    pair = Pair()
    assert refusal(pair, Chunk(chunk((7, 0, None, 1)))).code == "USER_CODE"
    error = refusal(pair, Barrier(1))
    assert error.code == "BAD_FRAME"
    assert "when it is FAILED" in error.message


def test_retractions_of_append_only_functions_are_refused() -> None:
    """A retraction for an append-only function is CANNOT_RETRACT."""
    assert refusal(Pair((Call("max", ("v",)),)), Chunk(chunk((0, 3, 1, 1)))).code == "CANNOT_RETRACT"


def test_user_errors_carry_slot_row_and_story() -> None:
    """An author's exception has slot, row and the story of the exchange."""
    error = refusal(Pair(), Chunk(chunk((2, 0, 5, 1), (7, 0, None, 1))))
    assert isinstance(error, FunctionError)
    assert (error.code, error.slot, error.row) == ("USER_CODE", 7, "v=None, w=1")
    assert error.story[-1] == "engine Chunk(2 rows)"


def test_our_own_failures_are_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal failure of foldflight is CorruptError INVARIANT, not a bare exception."""
    pair = Pair()
    monkeypatch.setattr(pair.server, "_replies", lambda frame: 1 / 0)
    error = refusal(pair, Barrier(1))
    assert (type(error), error.code) == (CorruptError, "INVARIANT")
    assert "ZeroDivisionError" in error.message


@pytest.mark.parametrize("name", ["slot", "kind"])
def test_control_columns_have_their_type(name: str) -> None:
    """A slot or kind column of another type is refused at Open."""
    columns = pa.schema([(name, pa.int64()), ("v", pa.int64())])
    with pytest.raises(RejectedError, match=f"at most one column `{name}`, of type int"):
        describe(Open((Call("count"),), columns), Registry(), LIMITS, "s")


def test_describe_says_what_opening_would() -> None:
    """`describe` returns Opened without opening an exchange, which alone decides how each call is folded."""
    open_request = Open(CALLS, COLUMNS)
    registry = Registry.load([WeightedAvg])
    reply = describe(open_request, registry, LIMITS, "s")
    assert reply.modes == (None,) * len(CALLS)
    exchange = ServerExchange(open_request, registry, limits=LIMITS, server_id="s")
    assert exchange.open_reply.modes == exchange.folds
    calls_without_mode = tuple(replace(call, mode=None) for call in exchange.open_reply.calls)
    assert reply == replace(exchange.open_reply, calls=calls_without_mode)


def test_the_engine_refuses_wrong_frames_of_both_ends() -> None:
    """An engine cannot send a chunk with other columns, and refuses results with another schema."""
    pair = Pair()
    with pytest.raises(RejectedError, match="Open announced"):
        pair.engine.chunk(OTHER)
    pair.engine.barrier(1)
    with pytest.raises(RejectedError, match="differs from the schema in Opened"):
        pair.engine.receive(Results(1, OTHER))


def test_calls_and_slots_are_bounded_together() -> None:
    """More calls mean fewer slots, and the number of calls is limited."""
    open_reply = describe(Open((Call("count"),) * 4, COLUMNS), Registry(), LIMITS, "s")
    assert open_reply.limits.slots_max == LIMITS.slots_max // 4
    with pytest.raises(RejectedError, match="1025 calls") as excinfo:
        describe(Open((Call("count"),) * 1025, COLUMNS), Registry(), LIMITS, "s")
    assert excinfo.value.code == "LIMIT"


@pytest.mark.parametrize("large", [0, 1, 517, 999])
def test_the_one_state_beyond_its_bound_is_named(large: int) -> None:
    """Many small states may exceed `state_bytes_max` together; only a single one that does is refused, by its slot."""
    columns = pa.schema([("slot", pa.int32()), ("t", pa.string())])
    limits = replace(LIMITS, state_bytes_max=2_000)

    def end_of_text(length: int) -> tuple[Frame, ...]:
        open_request = Open((Call("max", ("t",)),), columns)
        server = ServerExchange(open_request, Registry.load([]), limits=limits, server_id="s")
        texts = ["x" * (length if slot == large else 10) for slot in range(1_000)]
        slots = pa.array(range(1_000), pa.int32())
        list(server.handle(Chunk(pa.record_batch([slots, pa.array(texts)], schema=columns))))
        return tuple(server.handle(Barrier(1)))

    assert sum(each.batch.num_rows for each in end_of_text(1_000) if isinstance(each, Results)) == 1_000
    with pytest.raises(RejectedError, match="a state of max has") as excinfo:
        end_of_text(3_000)
    assert (excinfo.value.slot, excinfo.value.limit) == (large, "state_bytes_max")
