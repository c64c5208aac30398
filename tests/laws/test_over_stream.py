"""OVER in a stream has the outputs of a batch over the rows that were not late, and each row comes out once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import connect, udaf
from foldflight.engine.over import bucket
from foldflight.engine.over import bucket as over_bucket
from foldflight.engine.over.bucket import OverBucket, StreamFolds
from foldflight.engine.over.over_stream import StoredOver, StreamedOver, sizes_of
from foldflight.engine.state.manifest import Storage, TableBounds
from foldflight.engine.state.table import MemoryStore
from foldflight.errors import FunctionError, RejectedError
from foldflight.functions.query.call import Order
from foldflight.functions.types.sql import parse_type
from foldflight.testing import over, run_over, run_over_epochs
from tests.effort import examples
from tests.laws.test_over import FUNCTIONS
from tests.watched import watch_calls

START = dt.datetime(2013, 1, 1, 12)
MINUTE = dt.timedelta(minutes=1)
SMALL = TableBounds(piece_rows_max=3, fan_in=2, merge_rows_max=6, merge_share=1)
Rows = list[dict[str, Any]]


def ordered_calls() -> dict[str, Any]:
    """Return calls that need no distance: what the stream keeps differs, and so does the way of folding."""
    joined_df, parts, oldest = FUNCTIONS["joined"]("v"), FUNCTIONS["joined_parts"]("v"), FUNCTIONS["oldest"]("v")
    return {
        "so_far": joined_df,
        "rows_so_far": joined_df.rows(None, 0),
        "three": joined_df.rows(-2, 0),
        "many": parts.rows(-19, 0),
        "before": oldest.rows(-4, -2),
        "alone": joined_df.rows(0, 0),
        "peers": parts.range(0, 0),
        "some": FUNCTIONS["count"]().where("ok").rows(None, 0),
        "kinds": FUNCTIONS["count"]("v").distinct().rows(-3, 0),
    }


def distant_calls() -> dict[str, Any]:
    """Return calls over RANGE, with functions whose values do not depend on the order of rows of equal time."""
    total, some = FUNCTIONS["sum"]("v"), FUNCTIONS["count"]("v").where("ok")
    return {
        "total": total.range("-3 minutes", 0),
        "some": some.range("-3 minutes", 0),
        "mean": FUNCTIONS["avg"]("x").range("-10 minutes", 0),
        "now": total.range("0 minutes", 0),
        "rows": FUNCTIONS["count"]().range("-1 minute", 0),
        "far": FUNCTIONS["count"]().range("-1 day", 0),
        "so_far": total,
    }


@st.composite
def streams(draw: st.DrawFn) -> list[Rows]:
    numbers = itertools.count()
    row = st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "minute": st.integers(0, 15),
            "v": st.none() | st.integers(-9, 9),
            "x": st.integers(-4, 4).map(float),
            "ok": st.sampled_from([True, False, None]),
        }
    )
    epochs = draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=8))
    # Time goes on from epoch to epoch, so that some rows are late and most are not.
    return [
        [{**each, "at": START + (each["minute"] + 5 * place) * MINUTE, "id": next(numbers)} for each in epoch]
        for place, epoch in enumerate(epochs)
    ]


def expected_of(epochs: list[Rows], delay: dt.timedelta) -> tuple[list[Rows], list[int]]:
    """Return which rows come out in which epoch, and how many are late, by a definition in plain Python."""
    latest, watermark = START - dt.timedelta(days=1), START - dt.timedelta(days=2)
    pending_rows: Rows = []
    due, late = [], []
    for epoch in epochs:
        in_time = [row for row in epoch if row["at"] > watermark]
        late.append(len(epoch) - len(in_time))
        pending_rows += in_time
        latest = max([latest, *(row["at"] for row in epoch)])
        watermark = max(watermark, latest - delay)
        due.append([row for row in pending_rows if row["at"] <= watermark])
        pending_rows = [row for row in pending_rows if row["at"] > watermark]
    return due, late


def is_distant(call: Any) -> bool:
    return call.frame is not None and call.frame.has_offset


def in_batch(calls: dict[str, Any], came: Rows, keys: list[str], order: list[str], idle: int | None) -> Rows:
    """Return the rows with the outputs of a batch. A group that was idle is another one when it has rows again."""
    begins: dict[Any, int] = {}
    last: dict[Any, dt.datetime] = {}
    parted_rows = []
    for row in sorted(came, key=lambda row: row["at"]):
        key = tuple(row[name] for name in keys)
        is_idle = idle is not None and key in last and row["at"] - last[key] > idle * MINUTE
        begins[key] = begins.get(key, 0) + is_idle
        last[key] = row["at"]
        parted_rows.append({**row, "begins": begins[key]})
    types = {"v": "BIGINT", "x": "DOUBLE"}
    outputs: dict[int, dict[str, Any]] = {row["id"]: {} for row in came}
    for part_keys, has_distance in ((keys, True), ([*keys, "begins"], False)):
        part = {name: call for name, call in calls.items() if is_distant(call) == has_distance}
        for row in run_over(part, parted_rows, keys=part_keys, order_by=order, types=types) if part else ():
            outputs[row["id"]] |= {name: row[name] for name in part}
    return [{**row, **{name: outputs[row["id"]][name] for name in calls}} for row in came]


def texts_of(rows: Rows) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ordered", "distant"])
@examples(20)
@given(
    streams(),
    st.sampled_from([0, 3, 12]),
    st.booleans(),
    st.sampled_from([3, 8, 1000]),
    st.booleans(),
    st.sampled_from([None, 2, 6]),
)
def test_outputs_equal_those_of_a_batch(
    kind: str, epochs: list[Rows], delay: int, has_keys: bool, slots: int, is_small: bool, idle: int | None
) -> None:
    """After each epoch the rows that came out have the values that a batch over all of them has.

    With `idle`, the frames of the batch that stay do not reach over a longer time without rows.
    """
    calls = ordered_calls() if kind == "ordered" else distant_calls()
    order = ["at", "id DESC"] if kind == "ordered" else ["at"]
    keys = ["k"] if has_keys else []
    result = run_over_epochs(
        watch_calls(calls, slots_max=2 * slots),
        epochs,
        keys=keys,
        order_by=order,
        delay_s=60 * delay,
        idle=None if idle is None else f"{idle} minutes",
        bounds=SMALL if is_small else None,
        types={"at": "TIMESTAMP", "v": "BIGINT", "x": "DOUBLE", "k": "STRING", "ok": "BOOLEAN", "id": "BIGINT"},
    )
    due, late = expected_of(epochs, delay * MINUTE)
    assert [each.late_rows for each in result] == late
    came: Rows = []
    values: Rows = []
    for epoch, expected in zip(result, due, strict=True):
        came += expected
        values += epoch.rows
        assert texts_of(epoch.rows) == texts_of(
            [row for row in values if row["id"] in {each["id"] for each in expected}]
        )
    if came:
        assert texts_of(values) == texts_of(in_batch(calls, came, keys, order, idle))
    for key in {row["k"] if has_keys else None for row in values}:
        of_key = [row for row in values if not has_keys or row["k"] == key]
        assert [row["at"] for row in of_key] == sorted(row["at"] for row in of_key)
        if kind == "ordered":
            assert of_key == sorted(of_key, key=lambda row: (row["at"], -row["id"]))
    assert result[-1].waiting_rows == sum(map(len, epochs)) - sum(late) - len(values)


def at(minute: float, **columns: Any) -> dict[str, Any]:
    return {"at": START + minute * MINUTE, **columns}


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (FUNCTIONS["count"]("v").distinct(), "CANNOT_MERGE", "use ROWS with a beginning"),
        (FUNCTIONS["count"]("v").distinct().rows(None, 0, by="recompute"), "CANNOT_MERGE", "use ROWS with a beginning"),
        (FUNCTIONS["count"]("v").distinct().range("-1 hour", 0, by="retract"), "CANNOT_MERGE", "use ROWS with a"),
        (FUNCTIONS["count"]("v").range("-100000000 days", 0), "LIMIT", "at most 10,000,000 days before"),
        (FUNCTIONS["max"]("v").range("-1 hour", 0), "CANNOT_RETRACT", "no retract; use ROWS"),
        (FUNCTIONS["joined"]("v").range("-1 hour", 0), "CANNOT_RETRACT", "no retract; define retract, or use ROWS"),
        (
            FUNCTIONS["sum"]("v").range("-1 hour", 0, by="recompute"),
            "CANNOT_RETRACT",
            "would be folded by recompute .*insist with by='retract' if rounding",
        ),
        (FUNCTIONS["count"]().range("-1 month", 0), "SIGNATURE", "an interval of a fixed length"),
        (FUNCTIONS["count"]().range(-5, 0), "SIGNATURE", "an interval of a fixed length"),
        (FUNCTIONS["count"]().rows(0, 1), "SIGNATURE", "does not know the rows that follow"),
        (FUNCTIONS["count"]().rows(None, None), "SIGNATURE", "does not know the rows that follow"),
        (FUNCTIONS["count"]().rows(None, -1), "SIGNATURE", "if ROWS has a bounded beginning"),
        (FUNCTIONS["count"]().rows(-10_001, 0), "LIMIT", "at most 10,000 rows"),
        (
            FUNCTIONS["count"]().rows(None, 0, by="recompute"),
            "SIGNATURE",
            "keeps no rows of a frame without a beginning",
        ),
    ],
)
def test_frames_that_a_stream_cannot_fold_are_refused(call: Any, code: str, message: str) -> None:
    """The error says what a stream does not know or keep, and what to do."""
    with pytest.raises(RejectedError, match=message) as excinfo:
        run_over_epochs({"n": call}, [[at(1, v=1)]], order_by=["at"])
    assert excinfo.value.code == code


def test_merging_over_range_is_refused_unless_the_user_insists_on_retracting() -> None:
    """States of parts of a frame need the rows of a group, which a stream cannot find."""

    @udaf(input_types=["DOUBLE"], result_type="DOUBLE", state_type="DOUBLE")
    class Drifting:
        def create_accumulator(self) -> float:
            return 0.0

        def accumulate(self, accumulator: float, value: float) -> float:
            return accumulator + value

        def retract(self, accumulator: float, value: float) -> float:
            return accumulator - value

        def merge(self, accumulator: float, other: float) -> float:
            return accumulator + other

        def get_value(self, accumulator: float) -> float:
            return accumulator

    total = connect("embedded:").register(Drifting)["drifting"]("x")
    rows = [at(1, x=1.0), at(2, x=2.0), at(5, x=4.0)]
    message = r"drifting .* would be folded by merge \(it merges, and retracting floats .*insist with by='retract'"
    with pytest.raises(RejectedError, match=message) as excinfo:
        run_over_epochs({"n": total.range("-3 minutes", 0)}, [rows], order_by=["at"])
    assert excinfo.value.code == "CANNOT_RETRACT"
    (epoch,) = run_over_epochs({"n": total.range("-3 minutes", 0, by="retract")}, [rows], order_by=["at"])
    assert [row["n"] for row in epoch.rows] == [1, 3, 6]


def test_the_time_is_a_timestamp_in_microseconds() -> None:
    """Distances and watermarks count microseconds, so another unit and a row without a time are refused."""
    calls = {"n": FUNCTIONS["count"]().range("-2 minutes", 0)}
    for unit in ("s", "ms", "ns"):
        with pytest.raises(
            RejectedError, match=f"timestamp.{unit}.; in a stream it is a timestamp in micro"
        ) as excinfo:
            run_over_epochs(calls, [[at(1)]], order_by=["at"], types={"at": pa.timestamp(unit)})
        assert excinfo.value.code == "SCHEMA_MISMATCH"
    with pytest.raises(RejectedError, match="the order at is NULL; leave such rows out") as excinfo:
        run_over_epochs(calls, [[at(1)], [{"at": None}]], order_by=["at"])
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_the_longest_distance_does_not_overflow() -> None:
    """Times far apart do not leave the range of whole numbers."""
    calls = {"n": FUNCTIONS["count"]().range("-10000000 days", 0)}
    epochs = [[{"at": dt.datetime(1, 1, 1)}], [{"at": dt.datetime(9999, 12, 31)}]]
    first, second = run_over_epochs(calls, epochs, order_by=["at"])
    assert [row["n"] for row in (*first.rows, *second.rows)] == [1, 2]


def test_an_output_may_have_any_name() -> None:
    """The test kit numbers the rows in a column of its own, which has the name of no output."""
    calls = {"row": FUNCTIONS["count"]().rows(None, 0)}
    rows = [at(1, v=5), at(2, v=6)]
    (epoch,) = run_over_epochs(calls, [rows], order_by=["at"])
    assert epoch.rows == run_over(calls, rows, order_by=["at"]) == [{**rows[0], "row": 1}, {**rows[1], "row": 2}]


TIES: dict[str, list[Any]] = {
    "TINYINT": [3, None, -128, 127, 3],
    "BIGINT": [2**63 - 1, -(2**63), None, 0, -1],
    "DOUBLE": [0.0, float("nan"), -0.0, None, float("-inf"), 1e-300, float("inf"), float("nan")],
    "DATE": [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)],
    "TIMESTAMP": [dt.datetime(1969, 1, 1), None, dt.datetime(9999, 12, 31)],
    "DECIMAL(20, 2)": [decimal.Decimal("1.5"), None, decimal.Decimal("-2.25")],
    "BOOLEAN": [True, None, False],
    "STRING": ["b", None, "", "a\x00", "ä"],
}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize("name", TIES)
def test_rows_of_equal_time_are_in_order(name: str, nulls_first: bool, descending: bool) -> None:
    """The ranks of values are in the order of Spark: NaN is the greatest number and equal to itself."""
    values = TIES[name]
    order = Order("value", descending, nulls_first)
    keys = [order.sort_key(value) for value in values]
    distinct = sorted(set(keys), reverse=descending)
    result = over_bucket.ranks_of(pa.array(values, parse_type(name)), order).tolist()
    assert [sorted(set(result)).index(rank) for rank in result] == [distinct.index(key) for key in keys]


def test_times_that_python_does_not_know_are_in_order() -> None:
    """Spark's timestamps go beyond the year 9999."""
    column = pa.array([10**18, 5, None, -(10**18)], pa.timestamp("us", "UTC"))
    assert np.argsort(over_bucket.ranks_of(column, Order("value", False, True))).tolist() == [2, 3, 1, 0]


def test_due_rows_are_in_memory_a_piece_of_each_run_at_once() -> None:
    """Blocks that arrived with all their rows in one time range come out in steps, and not together."""
    input_rows = [at(3 * minute + epoch) for epoch in range(3) for minute in range(20)]
    resolved_query = over.ResolvedQuery.of(
        {"n": FUNCTIONS["count"]()}, input_rows, keys=[], order_by=["at"], types={}, has_ends=False
    )
    over_stream = StreamedOver.of(resolved_query.transport, resolved_query.calls, resolved_query.layout)
    stores: dict[str, MemoryStore] = {}
    bounds = TableBounds(piece_rows_max=4)
    with StreamFolds(over_stream) as folds:
        bucket = OverBucket(folds, lambda name: Storage(stores.setdefault(name, MemoryStore()), bounds=bounds))
        for start in range(0, 60, 20):
            bucket.arrive([resolved_query.rows.slice(start, 20)], -(1 << 62))
        steps = list(bucket.outputs(1 << 62))
    assert [row["n"] for step in steps for _, row in over.outputs_by_row(step)] == list(range(1, 61))
    assert max(step.num_rows for step in steps) <= 3 * 4


def test_kept_rows_are_in_memory_for_some_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step folds the frames of as many groups as have kept rows of a block, and stores these before it goes on."""
    sizes = []
    store = bucket.RowsFold._store

    def count(self: Any, step: Any, rows: Any, owners: Any, starts: Any) -> Any:
        sizes.append(rows.num_rows)
        return store(self, step, rows, owners, starts)

    monkeypatch.setattr(bucket.RowsFold, "_store", count)
    epochs = [[at(10 * epoch + minute, k=k, v=1) for k in range(40) for minute in range(10)] for epoch in range(3)]
    calls = watch_calls({"n": FUNCTIONS["sum"]("v").rows(-19, 0)}, slots_max=400, exchange_state_bytes_max=8000)
    result = run_over_epochs(calls, epochs, keys=["k"], order_by=["at"])
    assert {row["n"] for row in result[2].rows} == {20}
    assert sum(len(epoch.rows) for epoch in result) == 1200
    assert max(sizes) < 400  # of 1,200 rows in a step


@pytest.mark.parametrize("frame", [(None, 0), (-3, 0)])
def test_an_error_names_the_group(frame: Any) -> None:
    """Whatever a stream keeps for a frame, an error of the function has the key of its partition."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="BIGINT")
    class Failing:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + 10 // value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    call = connect("embedded:").register(Failing)["failing"]("v").rows(*frame)
    epochs = [[at(1, k="a", v=1), at(2, k="b", v=2)], [at(3, k="b", v=0), at(4, k="a", v=1)]]
    with pytest.raises(FunctionError) as excinfo:
        run_over_epochs({"n": call}, epochs, keys=["k"], order_by=["at"])
    assert excinfo.value.group == {"k": "b"}


def test_a_changed_query_is_refused() -> None:
    """A stream goes on with the state of the same query only, even if no row is due."""
    stores: dict[str, MemoryStore] = {}
    total, count = FUNCTIONS["sum"]("v"), FUNCTIONS["count"]()

    def run(
        calls: dict[str, Any], keys: list[str], minute: int, columns: tuple[str, ...] = ("row",)
    ) -> list[dict[str, Any]]:
        row = at(minute, k="a", other="a", v=minute)
        resolved_query = over.ResolvedQuery.of(calls, [row], keys=keys, order_by=["at"], types={}, has_ends=False)
        layout = dataclasses.replace(resolved_query.layout, names=columns)
        over_stream = StreamedOver.of(resolved_query.transport, resolved_query.calls, layout)
        (epoch,) = over._run(over_stream, resolved_query.rows, [[row]], stores, TableBounds(), 0)
        return epoch.rows

    unchanged_calls = {"total": total.range("-2 minutes", 0), "n": count.rows(-1, 0)}
    result = [row for minute in (5, 6, 8) for row in run(unchanged_calls, ["k"], minute)]
    assert [(row["total"], row["n"]) for row in result] == [(5, 1), (11, 2), (14, 2)]
    with pytest.raises(RejectedError, match="other input columns"):
        run(unchanged_calls, ["k"], 9, ("number",))
    for calls, keys, what in (
        (unchanged_calls, [], "other keys"),
        (unchanged_calls, ["other"], "other keys"),
        ({**unchanged_calls, "total": total.range("-3 minutes", 0)}, ["k"], "other calls and frames"),
        ({"n": count.rows(-1, 0)}, ["k"], "other calls and frames"),
    ):
        with pytest.raises(RejectedError, match=what) as excinfo:
            run(calls, keys, 9)
        assert excinfo.value.code == "STATE_MISMATCH"


class _Stream:
    """A stream over one bucket, whose query may change between epochs."""

    def __init__(self, *, merges: bool = True) -> None:
        self.bounds = TableBounds(piece_rows_max=4, fan_in=2) if merges else TableBounds()
        self.stores: dict[str, MemoryStore] = {}
        self.names = (f"run {number}" for number in itertools.count())

    def streamed(self, calls: dict[str, Any], rows: Rows, idle: str | None = None) -> Any:
        resolved_query = over.ResolvedQuery.of(calls, rows, keys=["k"], order_by=["at"], types={}, has_ends=False)
        return StreamedOver.of(
            resolved_query.transport, resolved_query.calls, resolved_query.layout, idle=idle
        ), resolved_query.rows

    def epoch(self, calls: dict[str, Any], rows: Rows, idle: str | None = None) -> Rows:
        streamed, blocks = self.streamed(calls, rows, idle)
        (result,) = over._run(streamed, blocks, [rows], self.stores, self.bounds, 0)
        return result.rows

    def bucket(self, folds: StreamFolds) -> OverBucket:
        return OverBucket(folds, lambda name: Storage(self.stores[name]))


def test_idle_groups_are_forgotten() -> None:
    """The watermark ends their state in each part; the state does not grow with forgotten groups."""
    count = FUNCTIONS["count"]()
    calls = {"so_far": count, "three": count.rows(-2, 0), "far": count.range("-1 hour", 0)}
    stream = _Stream()
    for minute in range(0, 60, 3):
        rows = [at(minute, k="busy"), at(minute, k=f"group {minute}"), at(minute, k=f"again {minute % 12}")]
        result = {row["k"]: row for row in stream.epoch(calls, rows, "9 minutes")}
        assert result["busy"]["so_far"] == result["busy"]["far"] == minute // 3 + 1
        again = result[f"again {minute % 12}"]
        assert (again["so_far"], again["three"], again["far"]) == (1, 1, minute // 12 + 1)
    over_stream, _ = stream.streamed(calls, rows, "9 minutes")
    expected_keys = {
        "busy",
        *(f"group {minute}" for minute in (51, 54, 57)),
        *(f"again {minute % 12}" for minute in (51, 54, 57)),
    }
    with StreamFolds(over_stream) as folds:
        bucket = stream.bucket(folds)
        assert bucket._ttl is not None
        so_far, three, far = (each.table for each in bucket._stores)
        for table in (so_far, three, bucket._ttl.table):
            assert table is not None
            assert {row["key_0"] for batch in table.scan() for row in batch.to_pylist()} == expected_keys
            assert table._manifest.pieces
            assert sum(piece.rows for piece in table._manifest.pieces) < 60
        assert far is not None
        assert sum(batch.num_rows for batch in far.scan()) == 1 + 20 + 4
        # Rows of minute 48 left at 57, so the rows of minute 51 change next.
        assert bucket.next_us == (START + 60 * MINUTE).replace(tzinfo=dt.UTC).timestamp() * 1_000_000
        assert len(bucket._ttl.log) == 3 * 3


def test_a_row_at_the_end_of_the_idle_time_continues_its_group() -> None:
    """A group is forgotten when it had no row for longer than the time."""
    calls = {"n": FUNCTIONS["count"](), "two": FUNCTIONS["count"]().rows(-1, 0)}
    epochs = [[at(1)], [at(6)], [at(12)], [at(14), at(19), at(25), at(26)]]
    result = run_over_epochs(calls, epochs, order_by=["at"], idle="5 minutes")
    assert [(row["n"], row["two"]) for epoch in result for row in epoch.rows] == [
        (1, 1),
        (2, 2),
        (1, 1),
        (2, 2),
        (3, 2),
        (1, 1),
        (2, 2),
    ]


def test_idle_may_change_but_not_begin_or_end() -> None:
    """A checkpoint has the times of last rows from the beginning or never; other intervals are refused."""
    calls, stream = {"n": FUNCTIONS["count"]()}, _Stream()
    stream.epoch(calls, [at(1, k="a")], "2 minutes")
    assert [row["n"] for row in stream.epoch(calls, [at(5, k="a")], "4 minutes")] == [2]
    with pytest.raises(
        RejectedError, match=r"other times of last rows \(idle\) than the query: stored kept"
    ) as excinfo:
        stream.epoch(calls, [at(6, k="a")])
    assert excinfo.value.code == "STATE_MISMATCH"
    endless = _Stream()
    endless.epoch(calls, [at(1, k="a")])
    with pytest.raises(RejectedError, match=r"stored not kept, the query has kept"):
        endless.epoch(calls, [at(2, k="a")], "2 minutes")
    for idle in ("0 days", "-1 day", "1 month", "soon", "20000000 days", 7):
        with pytest.raises(RejectedError, match=f"idle is an interval of a fixed length, .*and here it is {idle!r}"):
            endless.epoch(calls, [at(2, k="a")], idle)  # type: ignore[arg-type]
    over_stream, _ = stream.streamed({**calls, "far": calls["n"].range("-1 day", 0)}, [at(1, k="a")], "7 days")
    assert "n: the accumulators of each group, until it has had no row for 7 days" in over_stream.explain()


def test_frames_that_end_by_themselves_need_no_idle_time() -> None:
    """Over RANGE alone `idle` changes nothing and keeps nothing."""
    stream, calls = _Stream(), {"n": FUNCTIONS["count"]().range("-10 minutes", 0)}
    assert [row["n"] for row in stream.epoch(calls, [at(1, k="a"), at(9, k="a")], "5 minutes")] == [1, 2]
    assert [row["n"] for row in stream.epoch(calls, [at(10, k="a")])] == [3]
    assert not any("idle" in name for name in stream.stores)


def _total(version: str, **methods: Any) -> Any:
    """Return a call of a sum whose state is another number in each version."""
    return _functions(version, **methods)["total"]("v")


def _functions(version: str, *, retracts: bool = True, **methods: Any) -> Any:
    """Return a connection to this sum."""

    def create_accumulator(self: Any) -> int:
        return 0

    def accumulate(self: Any, accumulator: int, value: int) -> int:
        return accumulator + value

    def retract(self: Any, accumulator: int, value: int) -> int:
        return accumulator - value

    def get_value(self: Any, accumulator: int) -> int:
        return accumulator

    names = [create_accumulator, accumulate, get_value, *([retract] if retracts else [])]
    class_ = type("Total", (), {each.__name__: each for each in names} | methods)
    function = udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="BIGINT", version=version)(class_)
    return connect("embedded:").register(function)


def _migrate(self: Any, version: str, state: int) -> int:
    assert version == "1"
    return state + 1000


def _refuse(self: Any, version: str, state: int) -> int:
    raise ValueError(f"no idea what {state} was")


def test_states_of_another_version_are_migrated() -> None:
    """Accumulators are converted by `migrate`. ROWS frames keep rows, so they need none, however they are folded."""

    def calls(total: Any) -> dict[str, Any]:
        return {"far": total.range("-5 minutes", 0), "so_far": total.rows(None, 0), "two": total.rows(-1, 0)}

    stream = _Stream()
    stream.epoch(calls(_total("1")), [at(1, k="a", v=1), at(2, k="a", v=2), at(2, k="b", v=4)])
    new = calls(_total("2", migrate=_migrate, merge=lambda self, one, other: one + other))
    (result,) = stream.epoch(new, [at(7, k="a", v=8)])
    assert (result["far"], result["so_far"], result["two"]) == (1010, 1011, 10)  # the row of minute 1 has left
    (result,) = stream.epoch(new, [at(7.5, k="b", v=16)])
    assert (result["far"], result["so_far"], result["two"]) == (16, 1020, 20)
    (result,) = stream.epoch({**new, "two": _total("3").rows(-1, 0)}, [at(8, k="b", v=32)])
    assert (result["far"], result["so_far"], result["two"]) == (48, 1052, 48)


@pytest.mark.parametrize("is_first", [True, False])
def test_another_version_may_be_folded_in_another_way(is_first: bool) -> None:
    """All calls of a ROWS frame share its rows, so a call continues with them in whichever way it is folded."""
    merging_functions = _functions("2", retracts=False, merge=lambda self, one, other: one + other)

    def calls(functions: Any) -> dict[str, Any]:
        total, count = functions["total"], functions["count"]
        two = {"two": total("v").rows(-1, 0), "n": count("w").rows(-1, 0)}
        return {**(two if is_first else dict(reversed(two.items()))), "all": count()}

    stream = _Stream()
    stream.epoch(calls(_functions("1")), [at(1, k="a", v=1, w=1), at(2, k="a", v=2, w=None)])
    retracting_stream, _ = stream.streamed(calls(_functions("1")), [at(1, k="a", v=1, w=1)])
    merging_stream, _ = stream.streamed(calls(merging_functions), [at(1, k="a", v=1, w=1)])
    assert (len(retracting_stream.query.parts), len(merging_stream.query.parts)) == (2, 3)
    (result,) = stream.epoch(calls(merging_functions), [at(7, k="a", v=8, w=1)])
    assert (result["two"], result["n"], result["all"]) == (10, 1, 3)
    (result,) = stream.epoch(calls(_functions("3")), [at(8, k="a", v=16, w=1)])
    assert (result["two"], result["n"], result["all"]) == (24, 2, 4)


def test_stored_rows_can_be_read_without_the_query() -> None:
    """Each group has the rows that wait, its states by version, and the rows that ROWS frames keep."""

    def calls(total: Any) -> dict[str, Any]:
        rows = {"two": total.rows(-1, 0), "n": FUNCTIONS["count"]("v").rows(-1, 0)}
        return {"so_far": total.rows(None, 0), **rows, "far": total.range("-5 minutes", 0)}

    stream = _Stream(merges=False)
    stream.epoch(calls(_total("1")), [at(1, k="a", v=1), at(2, k="a", v=2), at(2, k="b", v=4)])
    stream.epoch(calls(_total("2", migrate=_migrate)), [at(9, k="b", v=8)])
    over_stream, blocks = stream.streamed(
        calls(_total("2", migrate=_migrate)), [at(20, k="b", v=1), at(21, k="c", v=1)]
    )
    with StreamFolds(over_stream) as folds:
        stream.bucket(folds).arrive([blocks], 0)
    manifests = [(name, store.value) for name, store in stream.stores.items() if store.value is not None]
    result = StoredOver.of(manifests)
    assert result is not None
    outputs = [name for part in result.parts for name in part.outputs]
    assert sorted(outputs) == ["far", "far (version 1)", "so_far", "so_far (version 1)", "two, n"]
    call_of_output = dict(zip(outputs, (call for part in result.parts for call in part.calls), strict=True))
    assert call_of_output["two, n"] == "last rows, ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
    assert call_of_output["so_far"] == "total v2, ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    columns = [column.to_pylist() for column in result.groups(lambda name: Storage(stream.stores[name]))]
    rows = {row[0]: dict(zip(["waiting", *outputs], row[1:], strict=True)) for row in zip(*columns, strict=True)}
    a, b, c = rows["a"], rows["b"], rows["c"]
    assert (a["waiting"], a["so_far"], a["so_far (version 1)"], a["far"]) == (0, None, 3, None)
    assert (b["waiting"], b["so_far"], b["so_far (version 1)"], b["far"]) == (1, 1012, None, 8)
    assert [list(row.values()) for row in b["two, n"]] == [[8]]
    assert c == {"waiting": 1, **dict.fromkeys(outputs)}
    sizes = [sizes_of(name, data) for name, data in manifests]
    assert (sum(each["waiting_rows"] for each in sizes), sum(each["framed_rows"] for each in sizes)) == (2, 1)
    assert StoredOver.of([]) is None


def test_the_latest_version_of_all_buckets_has_the_names_of_outputs() -> None:
    """Versions are compared by their numbers: some buckets may still have states of version 9 and others of 10."""
    buckets = []
    for version in ("1.9", "1.10"):
        stream = _Stream()
        stream.epoch({"so_far": _total(version).rows(None, 0)}, [at(1, k=version, v=1)])
        buckets.append([(name, store.value) for name, store in stream.stores.items() if store.value is not None])
    for first, second in (buckets, reversed(buckets)):
        result = StoredOver.of([*first, *second])
        assert result is not None
        (part,) = result.parts
        assert part.outputs == ("so_far", "so_far (version 1.9)")
        assert [call.split(",")[0] for call in part.calls] == ["total v1.10", "total v1.9"]


@pytest.mark.parametrize("frame", ["rows", "range"])
def test_a_version_without_migrate_is_refused(frame: str) -> None:
    """The first epoch fails, whichever groups it has; a migrate that raises names the group."""

    def calls(total: Any) -> dict[str, Any]:
        return {"n": total.rows(None, 0) if frame == "rows" else total.range("-5 minutes", 0)}

    stream = _Stream()
    stream.epoch(calls(_total("1")), [at(1, k="a", v=1)])
    with pytest.raises(RejectedError, match="total version 1, and the query has version 2, which has no") as excinfo:
        stream.epoch(calls(_total("2")), [at(2, k="b", v=1)])
    assert excinfo.value.code == "STATE_MISMATCH"
    with pytest.raises(FunctionError, match=r"no idea what 1 was") as error_info:
        stream.epoch(calls(_total("2", migrate=_refuse)), [at(2, k="a", v=1)])
    assert (error_info.value.code, error_info.value.group) == ("USER_CODE", {"k": "a"})


def test_other_direct_arguments_need_another_version() -> None:
    """A frame of ROWS keeps no states, but another call of the same version is another query."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="BIGINT", version="1")
    class Scaled:
        def __init__(self, factor: int = 1) -> None:
            self.factor = factor

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + self.factor * value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    scaled_function, stream = connect("embedded:").register(Scaled)["scaled"], _Stream()
    stream.epoch({"two": scaled_function("v", factor=2).rows(-1, 0)}, [at(1, k="a", v=1)])
    with pytest.raises(RejectedError, match=r"scaled has changed within its version 1.*raise version=") as excinfo:
        stream.epoch({"two": scaled_function("v", factor=3).rows(-1, 0)}, [at(2, k="a", v=1)])
    assert excinfo.value.code == "STATE_MISMATCH"


def test_a_changed_accumulator_is_named() -> None:
    """Where accumulators are kept, the error names the field that was added, as for groups."""

    def count(fields: dict[str, type]) -> Any:
        state = dataclasses.make_dataclass("State", [(name, type_, 0) for name, type_ in fields.items()])

        class Counted:
            def create_accumulator(self) -> Any:
                return state()

            def accumulate(self, accumulator: Any, value: int) -> None:
                accumulator.rows += 1

            def get_value(self, accumulator: Any) -> int:
                rows: int = accumulator.rows
                return rows

        Counted.create_accumulator.__annotations__["return"] = state
        function = udaf(input_types=["BIGINT"], version="1", name="counted")(Counted)
        return connect("embedded:").register(function)["counted"]("v").rows(None, 0)

    stream = _Stream()
    for minute in (1, 2):
        stream.epoch({"n": count({"rows": int})}, [at(minute, k="a", v=1)])
    with pytest.raises(RejectedError, match=r"in its accumulator, more BIGINT was added; set this back") as excinfo:
        stream.epoch({"n": count({"rows": int, "more": int})}, [at(3, k="a", v=1)])
    assert excinfo.value.code == "STATE_MISMATCH"


def test_the_state_of_a_group_without_rows_in_its_frame_is_dropped() -> None:
    """The state of RANGE frames ends with the last row that leaves, also if its group gets no more rows."""
    stores: dict[str, MemoryStore] = {}
    epochs = [[at(1, k="a"), at(2, k="b")], [at(30, k="c")]]
    input_rows = [row for epoch in epochs for row in epoch]
    calls = {"n": FUNCTIONS["count"]().range("-5 minutes", 0)}
    resolved_query = over.ResolvedQuery.of(calls, input_rows, keys=["k"], order_by=["at"], types={}, has_ends=False)
    over_stream = StreamedOver.of(resolved_query.transport, resolved_query.calls, resolved_query.layout)
    over._run(over_stream, resolved_query.rows, epochs, stores, TableBounds(), 0)
    with StreamFolds(over_stream) as folds:
        bucket = OverBucket(folds, lambda name: Storage(stores[name]))
        ((table, log),) = bucket._stores
        assert table is not None
        assert log is not None
        assert [row["key_0"] for batch in table.scan() for row in batch.to_pylist()] == ["c"]
        assert len(log) == 1
        assert bucket.next_us == (START + 35 * MINUTE).replace(tzinfo=dt.UTC).timestamp() * 1_000_000
