"""The value of each row of an OVER window is the value of the rows of its frame, whatever way the frame is folded."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import Applied, Segment, connect, udaf
from foldflight.client import Functions
from foldflight.engine.over import window_frame_folds
from foldflight.engine.over.over_query import OverQuery
from foldflight.engine.query import blocks
from foldflight.errors import FunctionError, RejectedError
from foldflight.functions.query.frame import WindowFrame
from foldflight.testing import over, run_over
from tests.effort import examples
from tests.watched import watch_calls


@udaf(input_types=["BIGINT"], result_type="STRING", state_type="STRING")
class Joined:
    """The values as text, in their order. It neither merges nor retracts."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator: str, value: int | None) -> str:
        return f"{accumulator},{value}"

    def get_value(self, accumulator: str) -> str:
        return accumulator


@udaf(input_types=["BIGINT"], result_type="STRING", state_type="STRING")
class JoinedParts(Joined):
    """The same, from parts."""

    def merge(self, accumulator: str, other: str) -> str:
        return accumulator + other


@udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="ARRAY<BIGINT>")
class Oldest:
    """The oldest value. It retracts, holds no floats, and fails if it is asked for a value that no frame has."""

    def create_accumulator(self) -> list[Any]:
        return []

    def accumulate(self, accumulator: list[Any], value: int | None) -> None:
        accumulator.append(value)

    def retract(self, accumulator: list[Any], value: int | None) -> None:
        assert accumulator.pop(0) == value

    def get_value(self, accumulator: list[Any]) -> int | None:
        return accumulator[0] if accumulator else -1


@udaf(input_types=["BIGINT"], result_type="STRING", bundled_merge=True)
class JoinedBundles:
    """The values as text, in bundles."""

    def fold_bundle(self, segments: list[Segment[str]]) -> list[Applied[str, str]]:
        results = []
        for segment in segments:
            start = "".join(segment.accumulators)
            texts = list(itertools.accumulate((f",{value}" for (value,) in segment.rows), initial=start))
            results.append(Applied(texts[-1], texts[-1], texts[1:]))
        return results


@udaf(input_types=["BIGINT"], result_type="BIGINT", bundled_retract=True)
class OldestBundles:
    """The oldest value, in bundles that change their accumulators in place."""

    def fold_bundle(self, segments: list[Segment[list[int | None]]]) -> list[Applied[list[int | None], int | None]]:
        return [self.applied(segment) for segment in segments]

    def applied(self, segment: Segment[list[int | None]]) -> Applied[list[int | None], int | None]:
        (rows_of_state,) = segment.accumulators or [[]]
        values = []
        for (value,), sign in zip(segment.rows, segment.signs, strict=True):
            if sign > 0:
                rows_of_state.append(value)
            else:
                assert rows_of_state.pop(0) == value
            values.append(rows_of_state[0] if rows_of_state else None)
        return Applied(rows_of_state, rows_of_state[0] if rows_of_state else -1, values if segment.wants_each else ())


FUNCTIONS = connect("embedded:").register(Joined, JoinedParts, Oldest, JoinedBundles, OldestBundles)


def expected_of(name: str, frame: list[dict[str, Any]]) -> Any:
    values = [row["v"] for row in frame]
    known_values = [value for value in values if value is not None]
    match name:
        case "joined" | "parts" | "bundles":
            return "".join(f",{value}" for value in values)
        case "oldest" | "oldest_bundles":
            return values[0] if values else -1
        case "total":
            return sum(known_values) if known_values else None
        case "most":
            return max(known_values, default=None)
        case "some":
            return sum(row["ok"] is True and row["v"] is not None for row in frame)
        case "sorted":
            sorted_values = [*sorted(known_values, reverse=True), *[None] * (len(values) - len(known_values))]
            return "".join(f",{value}" for value in sorted_values)
        case "kinds" | "kinds_anew":
            return len(set(known_values))
        case "mean":
            return math.fsum(row["x"] for row in frame) / len(frame) if frame else None
    raise AssertionError(name)


def calls_of(functions: Functions, frame: WindowFrame | None) -> dict[str, Any]:
    """Return calls that are folded by each way."""
    calls = {
        "oldest": functions["oldest"]("v"),
        "oldest_bundles": functions["oldest_bundles"]("v"),
        "parts": functions["joined_parts"]("v"),
        "bundles": functions["joined_bundles"]("v"),
        "total": functions["sum"]("v"),
        "most": functions["max"]("v"),
        "some": functions["count"]("v").where("ok"),
        "mean": functions["avg"]("x"),
    }
    if frame is None:
        return calls | {"joined": functions["joined"]("v")}
    calls |= {
        "joined": functions["joined"]("v"),
        "kinds": functions["count"]("v").distinct(),
        "kinds_anew": functions["count"]("v").distinct(),
        "sorted": functions["joined"]("v").order_by("v DESC"),
    }
    recompute_frame = dataclasses.replace(frame, by="recompute")
    # Over short frames, DISTINCT and calls with an order are retracted unless the user insists.
    insist = (
        {"joined", "kinds_anew"} if frame.rows_max or frame.is_whole else {"joined", "kinds_anew", "kinds", "sorted"}
    )
    return {
        name: dataclasses.replace(call, frame=recompute_frame if name in insist else frame)
        for name, call in calls.items()
    }


def place(value: Any) -> tuple[int, Any]:
    """Return a value's place in an ascending order: NULL first, NaN last, -0.0 equal to 0.0."""
    if value is None:
        return (0, 0)
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)


def is_within(frame: WindowFrame, rows: list[dict[str, Any]], row: int, other: int, *, descending: bool) -> bool:
    """Whether a row is in the frame of another one, by the definition of SQL."""
    if not frame.is_range:
        distance = other - row
        return (frame.low is None or distance >= frame.low) and (frame.high is None or distance <= frame.high)
    mine, its = place(rows[row]["at"]), place(rows[other]["at"])
    sign = -1 if descending else 1

    def edge(bound: Any) -> Any:
        value = rows[row]["at"]
        return mine if value is None or bound == 0 else place(value + sign * distance_of(bound))

    def before(one: Any, two: Any) -> bool:
        return one > two if descending else one < two

    return not (frame.low is not None and before(its, edge(frame.low))) and not (
        frame.high is not None and before(edge(frame.high), its)
    )


def distance_of(bound: Any) -> Any:
    return datetime.timedelta(days=int(bound.split()[0])) if isinstance(bound, str) else bound


def brute_force(
    rows: list[dict[str, Any]], names: list[str], frame: WindowFrame, *, descending: bool
) -> list[dict[str, Any]]:
    result: dict[int, dict[str, Any]] = {}
    for key in dict.fromkeys(row["k"] for row in rows):
        numbers = [number for number, row in enumerate(rows) if row["k"] == key]
        numbers.sort(key=lambda number: place(rows[number]["at"]), reverse=descending)
        part = [rows[number] for number in numbers]
        for row, number in enumerate(numbers):
            inside = [other for at, other in enumerate(part) if is_within(frame, part, row, at, descending=descending)]
            result[number] = {name: expected_of(name, inside) for name in names}
    return [{**row, **result[number]} for number, row in enumerate(rows)]


def frames(offsets: st.SearchStrategy[Any], *, is_range: bool) -> st.SearchStrategy[WindowFrame]:
    def frame_of(low: Any, high: Any) -> WindowFrame | None:
        try:
            return WindowFrame(low, high, is_range=is_range)
        except RejectedError:
            return None

    return st.builds(frame_of, st.none() | offsets, st.none() | offsets).filter(lambda frame: frame is not None)


ORDERS = {
    "BIGINT": (st.integers(-6, 6), frames(st.integers(-3, 3), is_range=True)),
    "DOUBLE": (
        st.sampled_from([-0.0, 0.0, 0.5, 1.5, -2.0, math.inf, -math.inf, math.nan]),
        frames(st.sampled_from([-1.5, -0.5, 0, 1.0, 2.0]), is_range=True),
    ),
    "DATE": (
        st.integers(0, 9).map(lambda day: datetime.date(2013, 1, 1) + datetime.timedelta(day)),
        frames(st.sampled_from(["-3 days", "-1 day", 0, "1 day", "2 days"]), is_range=True),
    ),
}


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[dict[str, Any]], str, bool, WindowFrame]:
    type_ = draw(st.sampled_from(sorted(ORDERS)))
    values, ranges = ORDERS[type_]
    rows = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "k": st.sampled_from(["a", "b", None]),
                    "at": st.none() | values,
                    "v": st.none() | st.integers(-9, 9),
                    "x": st.integers(-4, 4).map(float),
                    "ok": st.sampled_from([True, False, None]),
                }
            ),
            max_size=40,
        )
    )
    return rows, type_, draw(st.booleans()), draw(frames(st.integers(-20, 20), is_range=False) | ranges)


def run_in_steps(
    calls: Any, rows: list[dict[str, Any]], at_once: int, *, types: Any = None, **options: Any
) -> list[dict[str, Any]]:
    """Do the same as `run_over`, for at most `at_once` rows in each step."""
    resolved_query = over.ResolvedQuery.of(calls, rows, types=types or {}, has_ends=True, **options)
    fold = window_frame_folds.OverFold(
        OverQuery.of(resolved_query.transport, resolved_query.calls, resolved_query.layout), rows=at_once
    )
    outputs = dict(itertools.chain.from_iterable(map(over.outputs_by_row, fold([resolved_query.sorted_rows()]))))
    return [{**row, **outputs[index]} for index, row in enumerate(rows)]


def equal(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    return repr(actual) == repr(expected)


@examples(100)
@given(windows(), st.sampled_from([1, 2, 7, 1000]), st.sampled_from([1, 5, 1000]), st.sampled_from([1, 2000]))
def test_outputs_equal_a_fold_of_each_frame(
    window: tuple[list[dict[str, Any]], str, bool, WindowFrame], at_once: int, events: int, bytes_max: int
) -> None:
    """ROWS and RANGE give what brute force gives, wherever blocks, chunks and files are cut."""
    rows, type_, descending, frame = window
    calls = calls_of(FUNCTIONS, frame)
    result = run_in_steps(
        watch_calls(calls, slots_max=4 * events, exchange_state_bytes_max=4 * bytes_max),
        rows,
        at_once,
        keys=["k"],
        order_by=["at DESC" if descending else "at"],
        types={"k": "STRING", "at": type_, "v": "BIGINT", "x": "DOUBLE", "ok": "BOOLEAN"},
    )
    assert equal(result, brute_force(rows, list(calls), frame, descending=descending))


def test_a_long_frame_is_merged_from_nodes() -> None:
    """Long frames have nodes of several levels, which are made once and dropped behind the frames."""
    rows = [{"k": "ab"[row > 770], "at": row, "v": row % 13, "x": 0.0, "ok": None} for row in range(900)]
    for frame in (WindowFrame(-650, -7), WindowFrame(-2, None), WindowFrame(-60, 60, is_range=True)):
        calls = {"parts": dataclasses.replace(FUNCTIONS["joined_parts"]("v"), frame=frame)}
        result = run_in_steps(calls, rows, 50, keys=["k"], order_by=["at"])
        assert result == brute_force(rows, ["parts"], frame, descending=False)


@pytest.mark.parametrize("frame", [(-4000, 0), (-4000, -60), (0, None)])
def test_the_cost_of_a_merged_frame_does_not_grow_with_its_length(frame: tuple[Any, Any]) -> None:
    """Frames share the states of their nodes, so a frame costs as few rows and states as one of 40 rows."""
    sent_count = 0

    def count(operation: str, what: Any, _exchange: Any) -> None:
        nonlocal sent_count
        if operation in ("states", "chunk"):
            sent_count += what.num_rows

    rows = [{"at": at, "v": at} for at in range(8000)]
    costs = []
    for low, high in ((-40, 0), frame):
        sent_count = 0
        calls = watch_calls({"n": FUNCTIONS["max"]("v").rows(low, high)}, count)
        run_over(calls, rows, order_by=["at"], types={"v": "BIGINT"})
        costs.append(sent_count / len(rows))
    assert costs[1] < 1.2 * costs[0]


def test_a_merge_does_not_depend_on_other_partitions() -> None:
    """Floats are merged in the same order for a partition alone and behind others, so they are rounded alike."""

    @udaf(input_types=["DOUBLE"], result_type="DOUBLE", state_type="DOUBLE")
    class Rounded:
        def create_accumulator(self) -> float:
            return 0.0

        def accumulate(self, accumulator: float, value: float) -> float:
            return accumulator + value

        def merge(self, accumulator: float, other: float) -> float:
            return accumulator + other

        def get_value(self, accumulator: float) -> float:
            return accumulator

    calls = {"n": connect("embedded:").register(Rounded)["rounded"]("v").rows(-60, 0)}
    alone = [{"k": "b", "at": at, "v": 1 / (at + 3)} for at in range(150)]
    other = [{"k": "a", "at": at, "v": 1.0} for at in range(13)]
    expected = run_over(calls, alone, keys=["k"], order_by=["at"])
    last = {"k": "c", "at": 0, "v": 1.0}  # the last partition is folded by itself
    result = run_over(calls, [*other, *alone, last], keys=["k"], order_by=["at"])
    assert result[len(other) : -1] == expected


@pytest.mark.parametrize("descending", [False, True])
def test_rows_without_an_order_value_and_nan_have_their_peers(descending: bool) -> None:
    """A distance from NULL is NULL, and one from NaN is NaN: the frame has the rows of the same value."""
    rows = [{"k": 1, "at": at, "v": 1, "x": 1.0, "ok": True} for at in (math.nan, 0.0, None, 0.5, None, math.nan, -0.0)]
    for frame, expected in (
        (WindowFrame(-0.5, 0.5, is_range=True), [2, 3, 2, 3, 2, 2, 3]),
        (WindowFrame(-9.0, -1.0, is_range=True), [2, 0, 2, 0, 2, 2, 0]),
    ):
        calls = {"some": dataclasses.replace(FUNCTIONS["count"]("v").where("ok"), frame=frame)}
        order, types = "at DESC" if descending else "at", {"at": "DOUBLE"}
        assert [row["some"] for row in run_over(calls, rows, order_by=[order], types=types)] == expected
        assert [
            row["some"]
            for row in run_over(calls, rows, order_by=[f"{order} NULLS {'FIRST' if descending else 'LAST'}"])
        ] == expected


def test_the_default_frame_equals_the_one_of_sql() -> None:
    """With an order the default frame ends with the rows of the same order; without, it is the partition."""
    rows = [{"k": 1, "at": at, "v": at + 1, "x": 1.0, "ok": True} for at in (3, 1, 1, 2)]
    calls = calls_of(FUNCTIONS, None)
    running_rows = run_over(calls, rows, keys=["k"], order_by=["at"])
    assert running_rows == brute_force(rows, list(calls), WindowFrame(None, 0, is_range=True), descending=False)
    rows.sort(key=lambda row: row["at"])
    whole = run_over(calls, rows)
    assert whole == brute_force(rows, list(calls), WindowFrame(None, None), descending=False)
    assert run_over(calls, [], keys=["k"], types={"k": "BIGINT"}) == []


def test_an_error_names_the_partition() -> None:
    """A function that raises in a frame tells the key of the partition."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="BIGINT")
    class Picky:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return 100 // value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    picky = connect("embedded:").register(Picky)["picky"]
    rows = [{"k": key, "at": 1, "v": value} for key, value in (("a", 1), ("b", 0))]
    for call in (picky("v"), picky("v").rows(-1, 0)):
        with pytest.raises(FunctionError) as excinfo:
            run_over({"n": call}, rows, keys=["k"], order_by=["at"])
        assert excinfo.value.group == {"k": "b"}


@udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="BIGINT")
class NotEmpty:
    """A sum that fails for no rows."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def retract(self, accumulator: int, value: int) -> int:
        return accumulator - value

    def get_value(self, accumulator: int) -> int:
        if not accumulator:
            raise ValueError("no rows")
        return accumulator


@pytest.mark.parametrize("by", [None, "recompute"])
@pytest.mark.parametrize("order", ["b", "dc"])
def test_an_error_of_an_empty_frame_names_the_partition_of_its_row(by: Any, order: str) -> None:
    """The frame of a partition's last row begins at the next partition, or after all rows, but is not of that."""
    call = connect("embedded:").register(NotEmpty)["not_empty"]("v").rows(1, 2, by=by)
    rows = [{"k": key, "at": at, "v": 1} for at, key in enumerate("aaaaa")]
    rows += [{"k": key, "at": at, "v": 1} for key in order for at in range(2)]
    with pytest.raises(FunctionError) as excinfo:
        run_over({"n": call}, rows[-2 * len(order) :], keys=["k"], order_by=["at"])
    assert excinfo.value.group == {"k": order[0]}
    with pytest.raises(FunctionError) as excinfo:
        run_in_steps({"n": call}, rows, 1, keys=["k"], order_by=["at"])
    assert excinfo.value.group == {"k": "a"}


@pytest.mark.parametrize("name", ["total", "parts", "joined"])
def test_slots_are_within_the_limit_of_a_server(name: str) -> None:
    """Each frame begins a new accumulator here, and so needs a slot of its own."""
    slots: set[int] = set()

    def note(operation: str, what: Any, _exchange: Any) -> None:
        if operation in ("states", "chunk"):
            slots.update(what.column("slot").to_pylist())

    rows = [{"k": "a", "at": 10 * at, "v": at} for at in range(20)]
    frame = WindowFrame(-11, -9, is_range=True, by="recompute" if name == "joined" else None)
    calls = {name: dataclasses.replace(calls_of(FUNCTIONS, None)[name], frame=frame)}
    result = run_over(watch_calls(calls, note, slots_max=6), rows, keys=["k"], order_by=["at"])
    assert result == brute_force(rows, [name], frame, descending=False)
    assert 0 < max(slots) < 6


def test_every_exchange_is_closed() -> None:
    """An exchange that fails when it is closed does not leave the others open."""
    ended_operations: list[str] = []

    def fail(operation: str, _what: Any, _exchange: Any) -> None:
        ended_operations.append(operation)
        if operation == "close":
            raise RejectedError("LIMIT", "closed")

    rows = [{"at": at, "v": at} for at in range(40)]
    with pytest.raises(RejectedError, match="closed"):
        run_over(watch_calls({"n": FUNCTIONS["joined_parts"]("v").rows(-30, 0)}, fail), rows, order_by=["at"])
    assert ended_operations.count("open") == 2  # one for the frames and one for the nodes
    assert ended_operations.count("close") + ended_operations.count("cut") == 2


def test_calls_share_exchanges_by_frame_and_way() -> None:
    """The reasons for a way may differ. The description has everything that a call has."""
    calls = {
        "some": FUNCTIONS["count"]("v").where("ok").rows(-1, 0),
        "oldest": FUNCTIONS["oldest"]("v").rows(-1, 0),
        "again": FUNCTIONS["oldest"]("v").rows(-1, 0, by="retract"),
        "kinds": FUNCTIONS["count"]("v").distinct().rows(-1, 0),
        "last": FUNCTIONS["joined"]("v").order_by("v DESC").where("ok").rows(-1, 0),
    }
    row = {"at": 1, "v": 2, "ok": None}
    values = {"some": 0, "oldest": 2, "again": 2, "kinds": 1, "last": ""}
    assert run_over(calls, [row], order_by=["at"]) == [{**row, **values}]
    resolved_query = over.ResolvedQuery.of(calls, [row], keys=[], order_by=["at"], types={}, has_ends=True)
    query = OverQuery.of(resolved_query.transport, resolved_query.calls, resolved_query.layout)
    assert len(query.parts) == 1
    for text in (
        "count(v) FILTER (ok)",
        "count(DISTINCT v)",
        "joined(v ORDER BY v DESC NULLS LAST) FILTER (ok) ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
        "because by='retract' insists\n      mode: ",
        "mode: counted",
    ):
        assert text in query.explain()


@pytest.mark.parametrize("by", [None, "retract", "recompute"])
def test_log_lines_name_the_partition(by: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a function logs arrives, whatever way its frames are folded, and with the key of the partition."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", state_type="BIGINT")
    class Telling(NotEmpty):
        def open(self, context: Any) -> None:
            self.logger = context.logger

        def get_value(self, accumulator: int) -> int:
            self.logger.info("value", n=accumulator)
            return accumulator

    call = connect("embedded:").register(Telling)["telling"]("v").rows(-1 if by else None, -1, by=by)
    rows = [{"k": key, "at": at, "v": v} for at, (key, v) in enumerate([("a", 1), ("b", 2), ("b", 3)])]
    with caplog.at_level("INFO", "foldflight.functions"):
        assert [row["n"] for row in run_over({"n": call}, rows, keys=["k"], order_by=["at"])] == [0, 0, 2]
    assert {"value n=0 k='a'", "value n=2 k='b'"} <= {record.getMessage() for record in caplog.records}


def test_frames_without_a_bounded_cost_are_refused() -> None:
    """A frame that would be folded anew for each row, and has no small bound, needs an insisting user."""
    rows = [{"at": 1, "v": 2}]
    for call, remedy in (
        (FUNCTIONS["joined"]("v").rows(-1000, 0), "no merge and no retract"),
        (FUNCTIONS["joined"]("v").range(-1, 0), "by='recompute'"),
        (FUNCTIONS["count"]("v").distinct().rows(None, 0), "with DISTINCT"),
        (FUNCTIONS["joined"]("v").rows(-3, 0, by="retract"), "has no retract"),
    ):
        with pytest.raises(RejectedError, match=remedy):
            run_over({"n": call}, rows, order_by=["at"])
    assert run_over({"n": FUNCTIONS["joined"]("v").rows(-999, 0)}, rows, order_by=["at"])[0]["n"] == ",2"


class Drifting:
    """A mean whose accumulator has floats of which no annotation tells."""

    def create_accumulator(self) -> Any:
        return [0.0, 0]

    def accumulate(self, accumulator: Any, value: int) -> None:
        accumulator[0] += value / 3
        accumulator[1] += 1

    def retract(self, accumulator: Any, value: int) -> None:
        accumulator[0] -= value / 3
        accumulator[1] -= 1

    def get_value(self, accumulator: Any) -> float:
        return accumulator[0] / accumulator[1]


def test_states_of_unknown_content_are_not_retracted() -> None:
    """A pickled state may have floats, so only an insisting user gets it retracted over long frames."""
    functions = connect("embedded:").register(udaf(input_types=["BIGINT"], result_type="DOUBLE")(Drifting))
    rows = [{"at": at, "v": value} for at, value in enumerate([3 << 52, 1, 1])]
    with pytest.raises(RejectedError, match=r"may have floats \(pickle codec\)"):
        run_over({"n": functions["drifting"]("v").rows(-1000, 0)}, rows, order_by=["at"])
    last = run_over({"n": functions["drifting"]("v").rows(0, 0)}, rows, order_by=["at"])
    assert [row["n"] for row in last] == [float(1 << 52), 1 / 3, 1 / 3]
    retract_calls = {"n": functions["drifting"]("v").rows(-1000, 0, by="retract")}
    assert run_over(retract_calls, rows, order_by=["at"])[0]["n"] == float(1 << 52)


@pytest.mark.parametrize("frame", [(1, -1), (True, 0), (0.5, 1), ("-1 hour", 0), (1 << 31, None)])
def test_wrong_ends_of_rows_are_refused(frame: tuple[Any, Any]) -> None:
    """ROWS has whole numbers of rows, in their order."""
    with pytest.raises(RejectedError, match="SIGNATURE"):
        FUNCTIONS["count"]().rows(*frame)


@pytest.mark.parametrize(
    "frame",
    [
        ("1 hour", 0),
        (0, "-1 hour"),
        (math.nan, 0),
        ("it's", 0),
        ("", 0),
        (2, 1.5),
        ("-1 hour", "-2 hours"),
        ("-1 day", "-1 day -1 minute"),
        ("2 years", "23 months"),
    ],
)
def test_wrong_ends_of_range_are_refused(frame: tuple[Any, Any]) -> None:
    """RANGE has finite numbers or intervals, in their order."""
    with pytest.raises(RejectedError, match="SIGNATURE"):
        FUNCTIONS["count"]().range(*frame)


@pytest.mark.parametrize("frame", [("-2 hours", "-1 hour"), ("-1 month", "-28 days"), ("-1.5 hours", "-2 hours")])
def test_ends_that_depend_on_the_row_are_accepted(frame: tuple[Any, Any]) -> None:
    """Spark knows the length of a month, and intervals in other forms."""
    assert FUNCTIONS["count"]().range(*frame)


@pytest.mark.parametrize(
    ("type_", "value", "bound", "message"),
    [
        ("DATE", datetime.date(2013, 1, 1), "-1 hour", "is TIMESTAMP"),
        ("DATE", datetime.date(1, 1, 1), "-1 day", "does not fit DATE"),
        ("DATE", datetime.date(2013, 1, 1), -1, "give an interval"),
        ("STRING", "a", -1, "STRING has no distances"),
        ("BIGINT", 1, -0.5, "give a whole number"),
        ("BIGINT", 1, "-1 hour", "give a whole number"),
        ("BIGINT", -2, -(2**63) + 1, "does not fit BIGINT"),
        ("DOUBLE", 1.0, "-1 hour", "give a number"),
        ("DECIMAL(4, 2)", decimal.Decimal(1), -0.001, "at most 2 after the point"),
        ("DECIMAL(4, 2)", decimal.Decimal(1), -1e30, "17 in total"),
    ],
)
def test_distances_that_do_not_fit_the_order_are_refused(type_: str, value: Any, bound: Any, message: str) -> None:
    """They are refused as in Spark, and not with an error of Python."""
    with pytest.raises(RejectedError, match=message) as excinfo:
        run_over({"n": FUNCTIONS["count"]().range(bound, None)}, [{"at": value}], order_by=["at"], types={"at": type_})
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.parametrize(
    ("type_", "values", "bound", "expected"),
    [
        ("TINYINT", [-128, 0, 127], -300, [1, 2, 3]),
        ("TINYINT", [-128, 0, 127], -127, [1, 1, 2]),
        ("DECIMAL(4, 2)", [decimal.Decimal(-90), decimal.Decimal(90)], -1000, [1, 2]),
        ("DECIMAL(4, 2)", [decimal.Decimal(0), decimal.Decimal(1)], -0.5, [1, 1]),
        ("DATE", [datetime.date(2013, 1, 1), datetime.date(2013, 1, 8)], "-1 week", [1, 2]),
    ],
)
def test_a_distance_may_exceed_the_type_of_the_order(type_: str, values: Any, bound: Any, expected: Any) -> None:
    """The ends of frames have a wider type than the order."""
    result = run_over(
        {"n": FUNCTIONS["count"]().range(bound, 0)}, [{"at": at} for at in values], order_by=["at"], types={"at": type_}
    )
    assert [row["n"] for row in result] == expected


@udaf(input_types=["BIGINT"], result_type="STRING", state_type="STRING")
class Wide:
    """A thousand letters for each row of the last call that was folded; the state is as large as the output."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, _accumulator: str, value: int) -> str:
        return "abcdefghij"[value % 10] * 1000

    def merge(self, _accumulator: str, other: str) -> str:
        return other

    def get_value(self, accumulator: str) -> str:
        return accumulator


@pytest.mark.parametrize("low", [None, -99])
def test_large_outputs_and_states_are_bounded_by_bytes(low: int | None) -> None:
    """Less is asked for at once where it is large: outputs, nodes, and the states that frames are merged from."""
    sizes: list[int] = []

    def measure(operation: str, what: Any, _exchange: Any) -> None:
        if operation in ("states", "row_outputs", "results"):
            sizes.append(what.nbytes)

    rows = [{"at": at, "v": at} for at in range(4000)]
    call = connect("embedded:").register(Wide)["wide"]("v").rows(low, 0)
    calls = watch_calls({"n": call}, measure, exchange_state_bytes_max=4 * 500_000)
    result = run_over(calls, rows, order_by=["at"])
    assert [row["n"][:2] for row in result] == ["abcdefghij"[at % 10] * 2 for at in range(4000)]
    assert len(sizes) > 8
    assert max(sizes) < 1_300_000, "the number at once at most doubles"


def test_frames_that_are_folded_anew_are_bounded_by_rows() -> None:
    """Their accumulators may keep all rows, so those that exist at once get the rows of one chunk."""
    rows_at_once = [0]

    def count(operation: str, what: Any, _exchange: Any) -> None:
        if operation == "chunk":
            rows_at_once[-1] += what.num_rows
        elif operation == "results":
            rows_at_once.append(0)

    calls = watch_calls({"joined": FUNCTIONS["joined"]("v").rows(-9, 0)}, count, slots_max=400)
    result = run_over(calls, [{"at": at, "v": at} for at in range(200)], order_by=["at"])
    assert result[-1]["joined"] == "".join(f",{value}" for value in range(190, 200))
    assert sum(rows_at_once) == 1955
    assert 90 < max(rows_at_once) <= 100


@pytest.mark.parametrize(("low", "high"), [(0, None), (-750, 0)])
def test_nodes_of_long_frames_are_bounded_by_bytes(low: int, high: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small nodes between the ends of long frames are dropped, and made again when an end reaches them."""
    retained_bytes: list[int] = []
    make = window_frame_folds._Nodes._make

    def measure(self: Any, *frames: Any) -> None:
        make(self, *frames)
        retained_bytes.append(sum(column.nbytes for _, states in self._states_by_level for column in states))

    monkeypatch.setattr(blocks, "_FIRST_ITEMS", 4)
    monkeypatch.setattr(window_frame_folds._Nodes, "_make", measure)
    rows = [{"at": at, "v": at} for at in range(1000)]
    call = connect("embedded:").register(Wide)["wide"]("v").rows(low, high)
    result = run_over(watch_calls({"n": call}, exchange_state_bytes_max=4 * 25_000), rows, order_by=["at"])
    last = [at if high == 0 else 999 for at in range(1000)]
    assert [row["n"][:2] for row in result] == ["abcdefghij"[at % 10] * 2 for at in last]
    assert max(retained_bytes) < 125_000, "all nodes would have 375,000 bytes and more"
