"""Arrays, structs and maps as arguments of compiled code equal the interpreter's, for any rows."""

import weakref
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import FunctionError, udaf, udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.arena import Arena
from foldflight.ext.compiler.program import Program
from foldflight.fold.failures import Failures
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.evaluation import InterpretedScalar
from foldflight.functions import FunctionContext, Registry
from foldflight.functions.types.sql import parse_type
from tests.effort import examples
from tests.laws.alike import VALUES, Samples, array_of, folds_alike, interpret, refusal, same


@dataclass
class Total:
    total: int = 0
    rows: int = 0
    last: list[int] = field(default_factory=list)


@udaf
class Totals:
    """Sums, items by index, slices, comparisons and comprehensions of whole numbers; it takes NULL."""

    def create_accumulator(self) -> Total:
        return Total()

    def accumulate(self, accumulator: Total, values: list[int] | None, place: int) -> None:
        accumulator.rows += 1
        if values is None:
            return
        if place in (1, -1, 5, -9):
            accumulator.total = max(accumulator.total, values[place])
        if 3 in values and values:
            accumulator.total += max(values) - min(values)
        for number, value in enumerate(values):
            accumulator.total ^= value + number
        accumulator.total ^= sum(value // 2 for value in values if value > 0)
        if place == 3:
            accumulator.last.extend(values)
        if place == 4:
            accumulator.last += values[1:-1]
        accumulator.total ^= len(values) + len(sorted(values[:2]))
        if place == 2:
            accumulator.last = values

    def retract(self, accumulator: Total, values: list[int] | None, place: int) -> None:
        accumulator.rows -= 1
        if values:
            accumulator.total ^= values[-1]

    def merge(self, accumulator: Total, other: Total) -> None:
        accumulator.total ^= other.total
        accumulator.rows += other.rows

    def get_value(self, accumulator: Total) -> int:
        return accumulator.total + accumulator.rows + len(accumulator.last)


@udaf(skip_nulls=True)
class Reals:
    """A dot product of two arrays, with the least and greatest value."""

    def create_accumulator(self) -> tuple[float, float]:
        return (0.0, 0.0)

    def accumulate(self, accumulator: tuple[float, float], one: list[float], other: list[float]) -> tuple[float, float]:
        total, result = accumulator
        for a, b in zip(one, other, strict=True):
            total += a * b
        if one and 0.5 in other:
            result = max(one) + min(other)
        return total, result if len(one) > 1 else one[0]

    def merge(self, accumulator: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
        return accumulator[0] + other[0], other[1]

    def get_value(self, accumulator: tuple[float, float]) -> float:
        return accumulator[0] + accumulator[1]


@udaf
class Words:
    """Counts of texts, the last of which are kept; compiled code keeps the texts of the rows."""

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def accumulate(self, accumulator: dict[str, int], words: list[str], word: str) -> None:
        for each in words:
            accumulator[each] = accumulator.get(each, 0) + 1
        if word in words:
            accumulator[words[-1]] = len(words[0])

    def merge(self, accumulator: dict[str, int], other: dict[str, int]) -> None:
        for key, count in other.items():
            accumulator[key] = accumulator.get(key, 0) + count

    def get_value(self, accumulator: dict[str, int]) -> int:
        return sum(accumulator.values())


@dataclass
class Seen:
    on: int = 0
    first: date | None = None
    last: datetime | None = None


@udaf
class Moments:
    """Flags, dates and timestamps in arrays."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, accumulator: Seen, flags: list[bool], days: list[date], times: list[datetime]) -> None:
        for flag in flags:
            if flag:
                accumulator.on += 1
        for day in days:
            if accumulator.first is None or day < accumulator.first:
                accumulator.first = day
        if times and any(flags):
            accumulator.last = times[-1]
            accumulator.on += times[0].hour

    def get_value(self, accumulator: Seen) -> int:
        return accumulator.on + (0 if accumulator.first is None else accumulator.first.day)


POINT = "STRUCT<x: DOUBLE, place: INT, name: STRING, at: TIMESTAMP_NTZ>"


@dataclass
class Place:
    total: float = 0.0
    rows: int = 0
    name: str = ""
    at: datetime | None = None


@udaf(input_types=[POINT, "STRUCT<x: DOUBLE>"], result_type="DOUBLE")
class Places:
    """Fields by `[]` and `get`, also in a function that is called, that may be NULL, as the struct may be."""

    def create_accumulator(self) -> Place:
        return Place()

    def accumulate(self, accumulator: Place, point: dict[str, Any] | None, other: dict[str, Any]) -> None:
        accumulator.rows += 1
        if not point:
            return
        accumulator.total += self.x_of(point)
        if other is not None and other.get("x", 5.0) is not None:
            accumulator.total -= other["x"]
        if point["name"] == "a" or point.get("place") == 3:
            accumulator.name = point["name"]
            accumulator.at = point["at"]
            accumulator.rows += point["place"]

    def x_of(self, point: dict[str, Any]) -> float:
        return 0.0 if point["x"] is None else abs(point["x"])

    def retract(self, accumulator: Place, point: dict[str, Any] | None, other: dict[str, Any]) -> None:
        accumulator.rows -= 1
        if point is not None:
            accumulator.total -= point["x"]

    def get_value(self, accumulator: Place) -> float:
        return accumulator.total + accumulator.rows + len(accumulator.name)


@dataclass
class Weight:
    total: int = 0
    first: str = ""
    counts: dict[str, int] = field(default_factory=dict)


@udaf(input_types=["MAP<STRING, BIGINT>", "MAP<DOUBLE, BOOLEAN>", "STRING"], result_type="BIGINT")
class Weights:
    """Lookups in maps, their keys, values and items, in their order; a key that is not there is an error."""

    def create_accumulator(self) -> Weight:
        return Weight()

    def accumulate(
        self, accumulator: Weight, counts: dict[str, int] | None, flags: dict[float, bool], key: str
    ) -> None:
        if counts is None:
            accumulator.total += 1
            return
        accumulator.total ^= counts.get(key, -1)
        if key in counts and len(counts) > 1:
            accumulator.total ^= counts[key] + counts["a"]
        for each, count in counts.items():
            accumulator.first = each
            accumulator.counts[each] = accumulator.counts.get(each, 0) ^ count
        for flag in flags.values():
            accumulator.total ^= 2 if flag else 4
        for number in flags:
            accumulator.total ^= 8 if number > 0.0 else 16
        if 0.0 in flags and any([flags[0.0]]):
            accumulator.total ^= max(counts.values()) if counts else 5

    def retract(self, accumulator: Weight, counts: dict[str, int] | None, flags: dict[float, bool], key: str) -> None:
        accumulator.total ^= len(flags)

    def get_value(self, accumulator: Weight) -> int:
        return accumulator.total + len(accumulator.counts) + len(accumulator.first)


@udf
def spread(values: list[float] | None) -> float | None:
    if not values:
        return None
    return max(values) - min(values)


FUNCTIONS = {each.name: each for each in Registry.load([Totals, Reals, Words, Moments, Places, Weights]).authored}
# Compiling one takes seconds: an array and a struct in `make test`, the others in CI.
each_name = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("totals", "places") else pytest.mark.slow) for name in FUNCTIONS]
)


def _pairs(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, Any]]]:
    """Draw maps, few of which have a NULL, or a key twice, for which Python has an error."""
    entries = st.tuples(keys, values)
    maps = st.dictionaries(keys, values, max_size=4).map(lambda each: list(each.items()))
    return maps | maps | st.lists(entries | st.tuples(keys, st.none()), max_size=3)


_SAMPLES: Samples = {
    **VALUES,
    **{
        pa.list_(type_): st.lists(st.one_of(st.just(3), values) if type_ == pa.int64() else values, max_size=4)
        | st.lists(values | st.none(), max_size=3)
        for type_, values in VALUES.items()
        if not pa.types.is_temporal(type_)
    },
    pa.list_(pa.int64()): st.lists(st.integers(-9, 9) | VALUES[pa.int64()], max_size=4)
    | st.lists(st.integers(0, 3) | st.none(), max_size=3),
    pa.list_(pa.date32()): st.lists(st.dates() | st.none(), max_size=3),
    pa.list_(pa.timestamp("us")): st.lists(st.datetimes() | st.none(), max_size=3),
    pa.int64(): st.integers(-9, 5),
    parse_type(POINT): st.fixed_dictionaries(
        {
            "x": st.none() | VALUES[pa.float64()],
            "place": st.none() | st.integers(-3, 3),
            "name": st.none() | st.just("a") | VALUES[pa.string()],
            "at": st.none() | st.datetimes(),
        }
    ),
    parse_type("STRUCT<x: DOUBLE>"): st.fixed_dictionaries({"x": st.none() | VALUES[pa.float64()]}),
    pa.map_(pa.string(), pa.int64()): _pairs(st.sampled_from("abc") | VALUES[pa.string()], VALUES[pa.int64()]),
    pa.map_(pa.float64(), pa.bool_()): _pairs(VALUES[pa.float64()], st.booleans()),
}


@pytest.mark.slow
@each_name
@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_arrays_have_the_values_of_the_interpreter(name: str, hot: Programs, data: st.DataObject) -> None:
    """Empty and NULL arrays, NULL items, numbers that exceed 64 bits, texts that are too long, retractions."""
    function = FUNCTIONS[name]
    bound = function.bind(list(function.input_types or ()), {})
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program)
    program.demand_nulls()
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, _SAMPLES, row_by_row=True)


@pytest.mark.every_turn
@each_name
def test_slices_of_chunks_have_the_values_of_the_interpreter(name: str, hot: Programs) -> None:
    """Arrays whose items begin in the middle of a buffer, between NULLs that have items, or are not aligned."""
    bound = FUNCTIONS[name].bind(list(FUNCTIONS[name].input_types or ()), {})
    random = np.random.default_rng(7)
    columns = [Column(str(place), _column(type_, 100, random)) for place, type_ in enumerate(bound.input_types)]
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    whole = Rows(random.integers(0, 3, 100).astype(np.int32), None, columns)
    every = np.arange(3, dtype=np.int32)
    for start, stop in ((0, 0), (3, 50), (50, 51), (61, 100)):
        rows = whole.part(start, stop)
        if stop == 100:
            rows = rows.filter(rows.slots > 0)
        same(lambda target, rows=rows: target.update(rows), one, other)
        same(lambda target: target.state(every), one, other)
        same(lambda target: target.evaluate(every), one, other)
    assert one.mode == "compiled"


def _column(type_: pa.DataType, count: int, random: np.random.Generator) -> pa.Array:
    if pa.types.is_struct(type_):
        fields = [_column(each.type, count, random) for each in type_]
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=pa.array(random.random(count) < 0.1))
    if pa.types.is_map(type_):
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 3, count))])
        keys = pa.array(np.arange(offsets[-1]) % 2 / 4)
        if type_.key_type == pa.string():
            keys = pa.array(["a", "bb"] * int(offsets[-1] // 2 + 1))[: int(offsets[-1])]
        items = _column(type_.item_type, int(offsets[-1]), random)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)
    if pa.types.is_list(type_):
        offsets = np.concatenate([[0], np.cumsum(random.integers(2, 5, count))])
        mask = pa.array(random.random(count) < 0.1) if type_ == pa.list_(pa.int64()) else None
        items = _column(type_.value_type, int(offsets[-1]), random)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=type_, mask=mask)
    numbers = random.integers(1, 5, count)
    if type_ == pa.string():
        return pa.array(["ab"[: number % 3] * number for number in numbers.tolist()])
    if type_ == pa.float64():
        # As in a message of IPC whose sender aligns nothing.
        memory = np.concatenate([np.zeros(3, np.uint8), (numbers / 8).view(np.uint8)])
        return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(memory).slice(3)])
    return array_of((numbers % 2 == 0 if type_ == pa.bool_() else numbers).tolist(), type_)


@pytest.mark.parametrize(("values", "place"), [([[1, 2], [3]], 1), ([[], [5]], -1), ([[4], None], 5)])
def test_errors_equal_those_of_the_interpreter(values: list[Any], place: int, hot: Programs) -> None:
    """An index out of range is the IndexError of Python, with the author's line and the row."""
    bound = FUNCTIONS["totals"].bind([pa.list_(pa.int64()), pa.int64()], {})
    rows = Rows(
        np.zeros(2, np.int32), None, [Column("values", pa.array(values)), Column("place", pa.array([place] * 2))]
    )
    with pytest.raises(FunctionError, match="list index out of range") as excinfo:
        hot.accumulators(interpret(bound)).update(rows)
    assert f"place={place}" in excinfo.value.row
    assert "values[place]" in excinfo.value.trace


def test_a_scalar_function_takes_arrays(hot: Programs) -> None:
    """It is compiled with and without NULLs; a chunk with a NULL within an array is interpreted."""
    function = Registry.load([spread]).authored[0]
    bound = function.bind([pa.list_(pa.float64())], {})
    one, other = (InterpretedScalar(bound, FunctionContext("spread"), Failures()) for _ in range(2))
    one = hot.scalar(one)
    assert one.mode == "compiled"
    for values in ([[1.0, 4.0], [2.5]], [None, [], [1.0, -0.5]], [[1.0, None], [2.0]]):
        rows = Rows(np.zeros(len(values), np.int32), None, [Column("values", pa.array(values, pa.list_(pa.float64())))])
        same(lambda target, rows=rows: target.values(rows), one, other)


@pytest.mark.parametrize(
    ("body", "type_", "reason"),
    [
        (
            "accumulator.total += values[0][0]",
            pa.list_(pa.list_(pa.int64())),
            "its argument values has the type ARRAY<ARRAY<BIGINT>>",
        ),
        (
            "accumulator.total += int(values[0])",
            pa.list_(pa.decimal128(5, 2)),
            "its argument values has the type ARRAY<DECIMAL(5, 2)>",
        ),
        ("values.append(1)", pa.list_(pa.int64()), "it changes a container by append, which is not the accumulator's"),
        ("values[0] = 1", pa.list_(pa.int64()), "it changes a container by [] =, which is not the accumulator's"),
        ("accumulator.total += sum(values)", pa.list_(pa.string()), "it calls sum of"),
        ("accumulator.total += values['z']", parse_type(POINT), "it uses 'z' of a struct"),
        ("accumulator.total += values.get('z', 1)", parse_type(POINT), "it uses 'z' of a struct"),
        ("values['x'] = 1.0", parse_type(POINT), "it puts an item into Struct("),
        ("accumulator.total += len(values)", parse_type(POINT), "it calls len of Struct("),
        ("values['a'] = 1", pa.map_(pa.string(), pa.int64()), "it changes a container by [] ="),
        ("accumulator.total += len(values)", parse_type("STRUCT<a: ARRAY<INT>>"), "has the type STRUCT"),
        ("accumulator.total += len(values)", pa.map_(pa.string(), pa.list_(pa.int64())), "has the type MAP"),
    ],
)
def test_arguments_that_cannot_be_compiled_are_refused_with_a_reason(
    body: str, type_: pa.DataType, reason: str, hot: Programs
) -> None:
    """Arrays of other types, and what would change the argument, are interpreted, with the reason."""
    lines = ["def accumulate(self, accumulator: Total, values: object) -> None:", f"    {body}"]
    scope: dict[str, Any] = {"Total": Total}
    exec("\n".join(lines), scope)
    members = {"create_accumulator": Totals.create_accumulator, "get_value": Totals.get_value}
    cls = udaf(input_types=[type_])(type("Written", (), {**members, "accumulate": scope["accumulate"]}))
    bound = Registry.load([cls]).authored[0].bind([type_], {})
    assert reason in refusal(hot, bound)


@udaf
class Later:
    """A list that rows seldom change, beside slices, for which the arena is full again and again."""

    def create_accumulator(self) -> Total:
        return Total()

    def accumulate(self, accumulator: Total, values: list[int]) -> None:
        accumulator.total += sum(values[1:])
        if accumulator.total < 0:
            accumulator.last.append(1)

    def get_value(self, accumulator: Total) -> int:
        return accumulator.total


@pytest.mark.every_turn
def test_full_arenas_keep_nothing(hot: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that stops leaves no references to its arrays; the more groups there are, the more rows the arena is for.

    Moving the regions reads the headers of all groups.
    """
    bound = Registry.load([Later]).authored[0].bind([pa.list_(pa.int64())], {})
    moves: list[int] = []
    compact = Arena._compact

    def count(*given: Any, **how: Any) -> None:
        moves.append(1)
        compact(*given, **how)

    monkeypatch.setattr(Arena, "_compact", count)
    for groups, least, most in ((4, 50, 1000), (20_000, 1, 25)):
        accumulators = hot.accumulators(interpret(bound))
        slots = np.arange(40_000, dtype=np.int32) % groups
        values = pa.array([[1, 2, 3, 4]] * len(slots))
        accumulators.update(Rows(slots, None, [Column("values", values)]))
        assert accumulators.mode == "compiled"
        assert least <= len(moves) <= most
        moves.clear()
        table = weakref.ref(accumulators._table)  # type: ignore[attr-defined]
        accumulators.close()
        assert table() is None


@pytest.mark.every_turn
def test_large_maps_are_left_to_the_interpreter(hot: Programs) -> None:
    """A map of more than 64 entries is a row of its own; a key that is there twice is an error of the chunk."""
    bound = FUNCTIONS["weights"].bind(list(FUNCTIONS["weights"].input_types or ()), {})
    flags = pa.array([[(0.0, True)]] * 3, bound.input_types[1])
    keys = pa.array(["a"] * 3)
    large = [("a", 1), *((f"k{number}", number) for number in range(70))]
    for last in ([("a", 2), ("b", 3)], [("a", 2), ("a", 3)]):
        counts = pa.array([[("a", 5)], large, last], bound.input_types[0])
        columns = [Column(str(place), each) for place, each in enumerate((counts, flags, keys))]
        rows = Rows(np.zeros(3, np.int32), None, columns)
        one, other = hot.accumulators(interpret(bound)), interpret(bound)
        if same(lambda target, rows=rows: target.update(rows), one, other):
            assert one.mode == "compiled"
            same(lambda target: target.state(np.zeros(1, np.int32)), one, other)
        else:
            assert last[0][0] == last[1][0]
