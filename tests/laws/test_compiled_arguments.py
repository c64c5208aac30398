"""Arrays as arguments of compiled code equal the interpreter's: states, outputs and errors, for any rows."""

from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import FunctionError, udaf, udf
from foldflight.compiler import Programs
from foldflight.compiler.program import Program
from foldflight.compiler.store import LoopStore
from foldflight.fold.failures import Failures
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.scalar import InterpretedScalar
from foldflight.functions import FunctionContext, Registry
from tests.effort import examples
from tests.laws.alike import VALUES, Samples, array_of, folds_alike, interpreted, same


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
        total, found = accumulator
        for a, b in zip(one, other, strict=True):
            total += a * b
        if one and 0.5 in other:
            found = max(one) + min(other)
        return total, found if len(one) > 1 else one[0]

    def merge(self, accumulator: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
        return accumulator[0] + other[0], other[1]

    def get_value(self, accumulator: tuple[float, float]) -> float:
        return accumulator[0] + accumulator[1]


@udaf
class Words:
    """Counts of texts, the last of which are kept; the texts are those of the rows."""

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


@udf
def spread(values: list[float] | None) -> float | None:
    if not values:
        return None
    return max(values) - min(values)


FUNCTIONS = {each.name: each for each in Registry.load([Totals, Reals, Words, Moments]).authored}
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
}


@pytest.fixture(scope="module")
def hot() -> Programs:
    """Compiled code from the first row on."""
    return Programs(LoopStore("user"), hot_rows=0)


@pytest.mark.parametrize("name", list(FUNCTIONS))
@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_arrays_are_those_of_the_interpreter(name: str, hot: Programs, data: st.DataObject) -> None:
    """Empty and NULL arrays, NULL items, numbers that exceed 64 bits, texts that are too long, retractions."""
    function = FUNCTIONS[name]
    bound = function.bind(list(function.input_types or ()), {})
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program)
    program.demand_nulls()
    folds_alike(bound, lambda: hot.accumulators(interpreted(bound)), data, _SAMPLES, row_by_row=True)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_slices_of_chunks(name: str, hot: Programs) -> None:
    """Arrays whose items begin in the middle of a buffer, between NULLs that have items, or are not aligned."""
    bound = FUNCTIONS[name].bind(list(FUNCTIONS[name].input_types or ()), {})
    random = np.random.default_rng(7)
    columns = [Column(str(place), _column(type_, 100, random)) for place, type_ in enumerate(bound.input_types)]
    one, other = hot.accumulators(interpreted(bound)), interpreted(bound)
    whole = Rows(random.integers(0, 3, 100).astype(np.int32), None, columns)
    every = np.arange(3, dtype=np.int32)
    for start, stop in ((0, 0), (3, 50), (50, 51), (61, 100)):
        rows = whole.part(start, stop)
        if stop == 100:
            rows = rows.kept(rows.slots > 0)
        same(lambda target, rows=rows: target.fold(rows), one, other)
        same(lambda target: target.states(every), one, other)
        same(lambda target: target.outputs(every), one, other)
    assert one.kind == "compiled"


def _column(type_: pa.DataType, count: int, random: np.random.Generator) -> pa.Array:
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
def test_errors_are_those_of_the_interpreter(values: list[Any], place: int, hot: Programs) -> None:
    """An index out of range is the IndexError of Python, with the author's line and the row."""
    bound = FUNCTIONS["totals"].bind([pa.list_(pa.int64()), pa.int64()], {})
    rows = Rows(
        np.zeros(2, np.int32), None, [Column("values", pa.array(values)), Column("place", pa.array([place] * 2))]
    )
    with pytest.raises(FunctionError, match="list index out of range") as found:
        hot.accumulators(interpreted(bound)).fold(rows)
    assert f"place={place}" in found.value.row
    assert "values[place]" in found.value.trace


def test_a_scalar_function_takes_arrays(hot: Programs) -> None:
    """It is compiled with and without NULLs; a chunk with a NULL within an array is interpreted."""
    function = Registry.load([spread]).authored[0]
    bound = function.bind([pa.list_(pa.float64())], {})
    one, other = (InterpretedScalar(bound, FunctionContext("spread"), Failures()) for _ in range(2))
    one = hot.mapped(one)
    assert one.kind == "compiled"
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
    ],
)
def test_what_is_not_compiled(body: str, type_: pa.DataType, reason: str, hot: Programs) -> None:
    """Arrays of other types, and what would change the argument, are interpreted, with the reason."""
    lines = ["def accumulate(self, accumulator: Total, values: object) -> None:", f"    {body}"]
    scope: dict[str, Any] = {"Total": Total}
    exec("\n".join(lines), scope)
    members = {"create_accumulator": Totals.create_accumulator, "get_value": Totals.get_value}
    cls = udaf(input_types=[type_])(type("Written", (), {**members, "accumulate": scope["accumulate"]}))
    bound = Registry.load([cls]).authored[0].bind([type_], {})
    found = hot.program(bound, bound.instantiate())
    assert not isinstance(found, Program)
    assert reason in found.reason
