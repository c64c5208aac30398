"""DISTINCT where the engine keeps the rows in a view: the outputs of the form in which states have all rows.

The oracle is the same call in an exchange without `keeps_views`, which folds all different rows for each value.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import MapView, RejectedError, udaf
from foldflight.exchange.frames import Open, Opened
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.distinct import key_type
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.aggregate.groups_accumulator import CachedView
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Applied, Call, Order, Registry, Segment
from foldflight.functions.types.arrow import with_column
from foldflight.testing.cached_views import CachedViews
from foldflight.testing.pair import ExchangePair
from tests.effort import examples
from tests.folds import open_fold

SIGNER = StateSigner([b"a key of these tests, for states that are pickled"])
COLUMNS = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("t", pa.string()), ("n", pa.float64()), ("f", "bool")])


def weight(t: str | None, n: float | None) -> int:
    number = 3 if n is None else 5 if math.isnan(n) else int(n * 100)
    return number + (1_000 if t is None else ord(t) * 10_000)


class Weights:
    """Adds up a weight of each row."""

    def accumulate(self, acc: Any, t: str | None, n: float | None) -> None:
        acc[0] += weight(t, n)

    def retract(self, acc: Any, t: str | None, n: float | None) -> None:
        acc[0] -= weight(t, n)

    def get_value(self, acc: Any) -> int:
        return int(acc[0])


@udaf(name="typed", input_types=["VARCHAR", "DOUBLE"], result_type="BIGINT")
class Typed(Weights):
    """With a typed state."""

    def create_accumulator(self) -> list[int]:
        return [0]


@udaf(name="pickled", input_types=["VARCHAR", "DOUBLE"], result_type="BIGINT")
class Pickled(Weights):
    """With a pickled state."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return [0]


@udaf(name="bundled", input_types=["VARCHAR", "DOUBLE"], bundled_retract=True, bundled_merge=True)
class Bundled:
    """Folded in bundles of groups."""

    def fold_bundle(self, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        results = []
        for each in segments:
            rows_with_signs = zip(each.rows, each.signs, strict=True)
            total = sum(each.accumulators) + sum(sign * weight(*row) for row, sign in rows_with_signs)
            results.append(Applied(total, total))
        return results


@udaf(name="texts", input_types=["VARCHAR"], result_type="VARCHAR", skip_nulls=True)
class Texts:
    """Joins texts in the order in which they first appeared; it cannot retract."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, acc: list[str], t: str) -> None:
        acc.append(t)

    def get_value(self, acc: list[str]) -> str:
        return "".join(acc)


class Seen:
    seen: MapView[str, int]

    def __init__(self) -> None:
        self.seen = MapView()


@udaf(name="viewed", input_types=["VARCHAR"], result_type="BIGINT")
class Viewed:
    """Has a view itself."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, acc: Seen, t: str) -> None:
        acc.seen[t] = 1

    def retract(self, acc: Seen, t: str) -> None:
        del acc.seen[t]

    def get_value(self, acc: Seen) -> int:
        return sum(1 for _ in acc.seen)


def registry() -> Registry:
    return Registry.load([Typed, Pickled, Bundled, Texts, Viewed])


def distinct(function: str, *arguments: str, **options: Any) -> Call:
    return Call(function, arguments, distinct=True, **options)


CALLS = (
    distinct("count", "t"),
    distinct("sum", "n", filter="f"),
    distinct("avg", "n"),
    distinct("typed", "t", "n"),
    distinct("pickled", "t", "n", filter="f"),
    distinct("bundled", "t", "n"),
    distinct("max", "n"),  # cannot retract: its states have all rows
    Call("count", ("t",)),
)
APPENDING = (*CALLS, distinct("texts", "t"), distinct("string_agg", "t", order=(Order("t"),)))


def appended_schema() -> pa.Schema:
    return COLUMNS.remove(1)


class Driver:
    """An engine that keeps views, beside one that does not."""

    def __init__(self, columns: pa.Schema, calls: tuple[Call, ...], *, inline: int = 0, page: int = 3) -> None:
        self.columns = columns
        self.pair = ExchangePair(Open(calls, columns, keeps_views=True), registry(), signer=SIGNER)
        self.oracle = ExchangePair(Open(calls, columns), registry(), signer=SIGNER)
        self.kept = CachedViews(self.pair.server.open_reply, inline=inline, page=page)
        self.pair.resolve = self.kept.resolve
        self.loaded: set[int] = set()
        self.epoch = 0

    def chunk(self, rows: list[tuple[Any, ...]]) -> None:
        batch = batch_of(self.columns, rows)
        self.oracle.send(self.oracle.engine.chunk(batch))
        touched_slots = {row[0] for row in rows}
        cold = sorted(slot for slot in touched_slots - self.loaded if slot in self.kept.slots)
        self.loaded |= touched_slots
        if cold:
            self.pair.send(self.pair.engine.states(self.kept.states(cold)))
        self.pair.send(self.pair.engine.chunk(batch))

    def prefetch(self, texts: list[Any]) -> None:
        for slot in sorted(self.loaded & set(self.kept.slots)):
            self.pair.send(self.pair.engine.entries(self.kept.prefetch_entries(slot, 0, "rows", texts)))

    def checkpoint(self) -> None:
        self.pair.send(self.pair.engine.checkpoint())
        self.kept.commit(self.pair.answers.popleft().states)

    def barrier(self, *, forgets: bool) -> None:
        self.epoch += 1
        results = self.pair.epoch(self.epoch)
        self.kept.commit(results)
        assert text_rows(results) == text_rows(self.oracle.epoch(self.epoch))
        if forgets:
            self.pair.send(self.pair.engine.forget(pa.array(sorted(self.loaded), pa.int32())))
            self.loaded.clear()


def batch_of(columns: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    names = [*COLUMNS.names]
    positions = [names.index(name) for name in columns.names]
    arrays = [pa.array([row[place] for row in rows], COLUMNS.field(place).type) for place in positions]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def text_rows(results: pa.Table) -> list[str]:
    """Return slots and outputs as text, because NaN is not equal to itself."""
    outputs = [name for name in results.schema.names if not name.startswith("state_")]
    return [repr(row) for row in results.select(outputs).to_pylist()]


def run(driver: Driver, steps: list[Any]) -> None:
    for each in steps:
        match each:
            case list():
                driver.chunk(each)
            case "checkpoint":
                driver.checkpoint()
            case "barrier" | "barrier, forget":
                driver.barrier(forgets=each != "barrier")
            case (_, texts):
                driver.prefetch(texts)


TEXTS = ["a", "b", "c", None]
NUMBERS = [None, 0.0, -0.0, 1.0, 2.5, float("nan")]
ROW = st.tuples(
    st.integers(0, 2),
    st.sampled_from([0, 0, 2, 1, 3]),
    st.sampled_from(TEXTS),
    st.sampled_from(NUMBERS),
    st.sampled_from([True, True, False, None]),
)
STEP = st.one_of(
    st.lists(ROW, min_size=1, max_size=8),
    st.lists(ROW, min_size=1, max_size=8),
    st.sampled_from(["checkpoint", "barrier", "barrier, forget"]),
    st.tuples(st.just("prefetch"), st.lists(st.sampled_from(TEXTS), max_size=3, unique=True)),
)


@examples(100)
@given(
    steps=st.lists(STEP, min_size=3, max_size=14).map(lambda steps: [*steps, "barrier"]),
    retracts=st.booleans(),
    inline=st.sampled_from([0, 2, 100]),
)
def test_outputs_equal_those_of_states_with_all_rows(steps: list[Any], retracts: bool, inline: int) -> None:
    """Whatever the split, the barriers, the checkpoints and the prefetch; rows may be retracted before insertion."""
    driver = Driver(COLUMNS, CALLS, inline=inline) if retracts else Driver(appended_schema(), APPENDING, inline=inline)
    run(driver, steps)


def open_reply(*calls: Call, columns: pa.Schema = COLUMNS, keeps_views: bool = True) -> Opened:
    return ExchangePair(Open(calls, columns, keeps_views=keeps_views), registry(), signer=SIGNER).server.open_reply


def test_the_view_of_rows_is_described() -> None:
    """The arguments are the key, and prefetched; a state has the view and the state of the function."""
    result = open_reply(distinct("typed", "t", "n"), distinct("count", "t"))
    spec = result.calls[0].views[0]
    assert (spec.name, spec.prefetch, spec.value, spec.is_list) == ("rows", (0, 1), pa.int64(), False)
    assert spec.key == pa.struct([("f0", pa.string()), ("f1", pa.float64())])
    assert result.calls[1].views[0].key == pa.string()
    assert [field.name for field in result.schema.field("state_1").type] == ["rows", "state"]
    assert result.schema.field("state_1").type.field("state").type == pa.int64()
    assert [(call.can_retract, call.can_merge, call.can_migrate) for call in result.calls] == [(True, False, True)] * 2


def test_other_engines_get_states_with_all_rows() -> None:
    """Without keeps_views, and with the fingerprint that such an engine was planned with, nothing has changed."""
    call = distinct("count", "t")
    before = open_reply(call, keeps_views=False).calls[0]
    assert not before.views
    pinned_call = replace(call, fingerprint=before.fingerprint)
    again = open_reply(pinned_call, distinct("count", "n"))
    assert again.calls[0] == before
    assert again.calls[1].views
    with pytest.raises(RejectedError, match="not the function that the engine expects"):
        open_reply(replace(call, fingerprint=open_reply(call).calls[0].fingerprint), keeps_views=False)


@pytest.mark.parametrize(
    "call",
    [
        distinct("max", "n"),
        distinct("string_agg", "t", order=(Order("t"),)),
        Call("count", ("t",), materialize=True),
        distinct("count", "l"),
        distinct("viewed", "t"),
    ],
    ids=["cannot retract", "ordered", "materialized", "no key", "has views"],
)
def test_some_calls_keep_states_with_all_rows(call: Call) -> None:
    """A value that needs all rows, and rows that cannot be keys: as for engines that do not keep views."""
    columns = COLUMNS.append(pa.field("l", pa.list_(pa.int64())))
    result = open_reply(call, columns=columns)
    assert result.calls == open_reply(call, columns=columns, keeps_views=False).calls
    assert not result.calls[0].views


def test_a_function_that_cannot_retract_needs_no_rows_if_none_is_retracted() -> None:
    """Without a column of kinds every function takes its rows as they appear."""
    assert open_reply(distinct("max", "n"), columns=appended_schema()).calls[0].views


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [1, -1]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.bool_(), [True, False]),
    (pa.float32(), [0.1, float("nan"), -0.0, 0.0]),
    (pa.decimal128(10, 2), [1, 2]),
    (pa.binary(), [b"\0", b""]),
    (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(1, 1, 1)]),
    (pa.timestamp("us"), [datetime.datetime(2026, 1, 1)]),
    (pa.timestamp("us", "Europe/Berlin"), [1_761_438_600_000_000, 1_761_442_200_000_000]),
    (pa.time64("us"), [datetime.time(1, 2, 3)]),
    (pa.duration("us"), [datetime.timedelta(days=1)]),
]


@pytest.mark.parametrize(
    ("type_", "values"), VALUES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_rows_of_each_type_are_found_again(type_: pa.DataType, values: list[Any]) -> None:
    """Values of each type are found again as entries, also NULL; the zone of a timestamp changes nothing."""
    columns = pa.schema([("slot", pa.int32()), ("v", type_)])
    array = pa.array([*values, *values, None, None], type_)
    batch = pa.RecordBatch.from_arrays([pa.array([0] * len(array), pa.int32()), array], schema=columns)
    calls = (distinct("count", "v"), distinct("first", "v"))
    pair = ExchangePair(Open(calls, columns, keeps_views=True), registry())
    cached_views = CachedViews(pair.server.open_reply)
    pair.resolve = cached_views.resolve
    different = len(values) - (type_ == pa.float32())
    for epoch in (1, 2):
        pair.send(pair.engine.chunk(batch))
        results = pair.epoch(epoch)
        cached_views.commit(results)
        assert results["output_0"].to_pylist() == [different]
        assert len(cached_views.entries(0, 1, "rows")) == different + 1
    assert cached_views.questions >= different
    assert results["output_1"].type == type_


@pytest.mark.parametrize(
    "type_",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.float16(),
        pa.timestamp("ns"),
        pa.timestamp("s", "UTC"),
        pa.time32("ms"),
        pa.json_(),
        pa.month_day_nano_interval(),
        pa.null(),
    ],
    ids=str,
)
def test_rows_of_types_that_cannot_be_keys_stay_in_states(type_: pa.DataType) -> None:
    """Rows with such values stay in states as a whole."""
    assert key_type(type_) is None


# -- states -----------------------------------------------------------------------------------------------------------

SMALL = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("t", pa.string()), ("n", pa.float64())])


def fold(*calls: Call, asks: bool = True) -> Fold:
    """Return a fold; one that asks gets no answers."""
    bound = bind_calls(registry(), calls, SMALL, keeps_views=asks)
    return open_fold(bound, signer=SIGNER, ask=(lambda *_: pytest.fail("it asked")) if asks else None)


def rows(*values: tuple[int, int, Any, Any]) -> pa.RecordBatch:
    return batch_of(SMALL, [(*row, None) for row in values])


MIXED = rows(
    (0, 0, "a", 1.0), (0, 0, "a", 1.0), (0, 0, None, -0.0), (0, 3, "c", 2.0), (1, 3, "b", 3.0), (1, 0, "d", 4.0)
)


@pytest.mark.parametrize("call", [distinct("count", "t"), distinct("pickled", "t", "n"), distinct("sum", "n")])
def test_states_with_all_rows_are_taken_over(call: Call) -> None:
    """States that were written with all rows go on: rows that were retracted before insertion too."""
    before = fold(call, asks=False)
    before.fold(MIXED)
    old_states = before.collect().select(["slot", "state_0"])
    after = fold(call)
    after.merge_states(old_states)
    more = rows((0, 3, "a", 1.0), (0, 0, "c", 2.0), (0, 0, "c", 2.0), (1, 0, "b", 3.0), (1, 0, "x", 0.0))
    for each in (before, after):
        each.fold(more)
    assert after.modes == (Mode.COUNTED,)
    expected, result = before.collect(), after.collect()
    assert result.column("output_0") == expected.column("output_0")
    again = fold(call)
    again.merge_states(result.select(["slot", "state_0"]))
    assert again.outputs(pa.array([0, 1], pa.int32())).column("output_0") == expected.column("output_0")
    more = rows((0, 3, "a", 1.0), (0, 3, "c", 2.0), (0, 3, "c", 2.0), (1, 3, "d", 4.0))
    for each in (before, again):
        each.fold(more)
    assert again.outputs(pa.array([0, 1], pa.int32())).column("output_0") == before.collect().column("output_0")


def test_a_second_state_in_a_slot_is_refused() -> None:
    """Only one server has the rows of a group at a time."""
    call = distinct("count", "t")
    before = fold(call)
    before.fold(MIXED)
    old_states = before.collect().select(["slot", "state_0"]).slice(0, 1)
    after = fold(call)
    after.merge_states(old_states)
    with pytest.raises(RejectedError) as excinfo:
        after.merge_states(old_states)
    assert excinfo.value.code == "CANNOT_MERGE"


def forge_states(**members: Any) -> pa.RecordBatch:
    """Return a state of `count(DISTINCT t)` with other members."""
    type_ = fold(distinct("count", "t")).schema.field("state_0").type
    entry = {"key": "a", "value": 1, "present": True}
    state = {"rows": {"complete": True, "cleared": False, "entries": [entry]}, "state": 1} | members
    columns = [pa.array([0], pa.int32()), pa.array([state], type_)]
    return pa.RecordBatch.from_arrays(columns, names=["slot", "state_0"])


NO_TIMES = {"complete": True, "cleared": False, "entries": [{"key": "a", "value": None, "present": True}]}


@pytest.mark.parametrize(
    "members", [{"rows": None}, {"state": None}, {"rows": NO_TIMES}], ids=["rows", "state", "times"]
)
def test_states_that_no_fold_writes_are_refused(members: dict[str, Any]) -> None:
    """A NULL in a state is a mismatch, not an internal error."""
    with pytest.raises(RejectedError, match="a state of count cannot be read") as excinfo:
        fold(distinct("count", "t")).merge_states(forge_states(**members))
    assert excinfo.value.code == "STATE_MISMATCH"


@pytest.mark.parametrize(
    "state",
    [[None], [{"argument_0": 1, "times": None}], [{"argument_0": 5_000_000, "times": 1}]],
    ids=["no row", "no times", "a year beyond 9999"],
)
def test_lists_of_rows_that_no_fold_writes_are_refused(state: list[Any]) -> None:
    """A list of all rows that cannot be read is a mismatch, not an internal error."""
    columns = pa.schema([("slot", pa.int32()), ("d", pa.date32())])
    before, after = (
        open_fold(bind_calls(registry(), [distinct("count", "d")], columns, keeps_views=asks), ask=lambda *_: None)
        for asks in (False, True)
    )
    field = before.schema.field("state_0")
    numbers = pa.list_(pa.struct([("argument_0", pa.int32()), ("times", pa.int64())]))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), pa.array([state], numbers).view(field.type)],
        schema=pa.schema([("slot", pa.int32()), field]),
    )
    with pytest.raises(RejectedError, match="a state of count cannot be read") as excinfo:
        after.merge_states(batch)
    assert excinfo.value.code == "STATE_MISMATCH"


@pytest.mark.parametrize("asks", [True, False], ids=["view", "list"])
def test_more_times_than_fit_are_refused(asks: bool) -> None:
    """A forged number of times that overflows with the next row is a mismatch, not an internal error."""
    subject, most = fold(distinct("count", "t"), asks=asks), 2**63 - 1
    listed_rows = (
        pa.array([[{"argument_0": "a", "times": most}]], subject.schema.field("state_0").type) if not asks else None
    )
    entry = {"key": "a", "value": most, "present": True}
    state = forge_states(rows={"complete": True, "cleared": False, "entries": [entry]})
    subject.merge_states(state if listed_rows is None else with_column(state, "state_0", listed_rows))
    subject.fold(rows((0, 0, "a", 1.0)))
    with pytest.raises(RejectedError, match="a row was added too often") as excinfo:
        subject.collect()
    assert excinfo.value.code == "STATE_MISMATCH"


def test_views_of_another_version_have_all_rows() -> None:
    """A state of another version whose rows are elsewhere cannot be folded anew."""
    subject = fold(distinct("count", "t"))
    state = forge_states(rows={"complete": False, "cleared": False, "entries": []})
    about = dict(subject.schema.field("state_0").metadata) | {b"version": b"0", b"fingerprint": b"00"}
    older = with_column(
        state.replace_schema_metadata(None), state.schema.field(1).with_metadata(about), state.column(1)
    )
    with pytest.raises(RejectedError, match="does not have all of its rows") as excinfo:
        subject.merge_states(older)
    assert excinfo.value.code == "STATE_MISMATCH"


def test_entries_that_cannot_be_read_are_refused() -> None:
    """Entries without times, and for slots without a state, are BAD_FRAME."""
    subject = fold(distinct("count", "t"))
    with pytest.raises(RejectedError, match="slot 0, which has no state") as excinfo:
        subject.take_entries(forge_states())
    assert excinfo.value.code == "BAD_FRAME"
    subject.merge_states(forge_states())
    with pytest.raises(RejectedError, match="the times of a row are NULL") as excinfo:
        subject.take_entries(forge_states(rows=NO_TIMES))
    assert excinfo.value.code == "BAD_FRAME"


def test_the_largest_view_of_rows_is_known() -> None:
    """Operators see which group has how many rows in memory; they are forgotten with the states."""
    subject = fold(distinct("count", "t"))
    assert subject.largest_view is None
    subject.fold(MIXED)
    assert subject.largest_view == CachedView(2, 1, "count", "rows")
    subject.collect()
    assert subject.largest_view is None
