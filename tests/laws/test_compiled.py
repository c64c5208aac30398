"""Compiled folds equal the interpreter's: states, outputs and errors, bit for bit, for any rows."""

import datetime
import math
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.weighted_avg import WeightedAvg
from foldflight import FoldflightError, udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import Program
from foldflight.fold.aggregate.state_codecs import StateOrigin
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.author.udaf import function_of
from tests.effort import examples
from tests.laws.alike import array_of, folds_alike, interpret, sums_are_exact

FACTOR = 3


def scaled(value: int, by: int = FACTOR) -> int:
    return value * by


@udaf
class Own:
    """A class that is its own accumulator, with methods, a property and a direct argument."""

    total: int
    rows: int
    step: int

    def __init__(self, step: int = 2) -> None:
        self.total = 0
        self.rows = 0
        self.step = step

    @property
    def empty(self) -> bool:
        return self.rows == 0

    def add(self, value: int, sign: int) -> None:
        self.total += sign * scaled(value) // self.step
        self.rows += sign

    def accumulate(self, value: int) -> None:
        self.add(value, 1)

    def retract(self, value: int) -> None:
        self.add(value, -1)

    def merge(self, other: "Own") -> None:
        self.total += other.total
        self.rows += other.rows

    def get_value(self) -> float | None:
        return None if self.empty else self.total / self.rows


@udaf(invertible=True)
class Whole:
    """A number as the accumulator; NULL counts as one."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + (1 if value is None else value)

    def retract(self, accumulator: int, value: int) -> int:
        return accumulator - (1 if value is None else value)

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        if accumulator == 13:
            raise ValueError(f"bad luck: {accumulator}")
        return accumulator


@udaf(result_type="INT")
class Greatest:
    """An accumulator that may be None, with a result narrower than its arguments."""

    def create_accumulator(self) -> int | None:
        return None

    def accumulate(self, accumulator: int | None, value: int) -> int | None:
        if value is None:
            return accumulator
        return value if accumulator is None or value > accumulator else accumulator

    def merge(self, accumulator: int | None, other: int | None) -> int | None:
        if other is None:
            return accumulator
        return other if accumulator is None else max(accumulator, other)

    def get_value(self, accumulator: int | None) -> int | None:
        return accumulator


class StateSerializer:
    low: float | None
    geometric: float
    powers: float
    positive: bool

    def __init__(self) -> None:
        self.low = None
        self.geometric = self.powers = 0.0
        self.positive = True


@udaf(input_types=["DOUBLE", "BOOLEAN"], result_type="BIGINT")
class Sketched:
    """Floats, booleans, `math` and a result that is truncated to an integer."""

    def __init__(self, power: float = 1.5, strict: bool = False) -> None:
        self.power = power
        self.strict = strict

    def create_accumulator(self) -> StateSerializer:
        return StateSerializer()

    def accumulate(self, accumulator: StateSerializer, value: float, flag: bool) -> None:
        if value is None or (flag is not None and not flag):
            return
        if self.strict and value < 0:
            raise ValueError(f"{value} is negative")
        accumulator.low = value if accumulator.low is None else min(accumulator.low, value)
        accumulator.geometric += math.log(abs(value) + 1.0)
        accumulator.powers += abs(value) ** self.power % 7.25
        accumulator.positive = accumulator.positive and value > 0

    def merge(self, accumulator: StateSerializer, other: StateSerializer) -> None:
        if other.low is not None:
            accumulator.low = other.low if accumulator.low is None else min(accumulator.low, other.low)
        accumulator.geometric += other.geometric
        accumulator.powers += other.powers
        accumulator.positive = accumulator.positive and other.positive

    def get_value(self, accumulator: StateSerializer) -> float | None:
        if accumulator.low is None:
            return None
        return accumulator.low if accumulator.positive else accumulator.powers * 1e10


@udaf
class LastRow:
    """An attribute that cannot be None, to which an optional argument is assigned, sometimes None."""

    total: int
    rows: int

    def __init__(self) -> None:
        self.total = self.rows = 0

    def accumulate(self, value: int) -> None:
        self.rows += 1
        if value is not None or self.rows == 5:
            self.total = value

    def get_value(self) -> int:
        return self.total


class Visit:
    first: datetime.datetime | None
    last: datetime.datetime | None
    day: datetime.date | None
    hour: datetime.time | None
    longest: datetime.timedelta | None
    equal: int

    def __init__(self) -> None:
        self.first = self.last = self.day = self.hour = self.longest = None
        self.equal = 0


@udaf
class Visits:
    """Moments that are compared and stored: timestamps, dates, times and durations."""

    def create_accumulator(self) -> Visit:
        return Visit()

    def accumulate(
        self,
        accumulator: Visit,
        at: datetime.datetime,
        day: datetime.date,
        hour: datetime.time,
        took: datetime.timedelta,
    ) -> None:
        if at is not None:
            if accumulator.first is None or at < accumulator.first:
                accumulator.first = at
            accumulator.last = at if accumulator.last is None else max(at, accumulator.last)
            accumulator.equal += at == accumulator.first
        if day is not None and (accumulator.day is None or accumulator.day != day):
            accumulator.day = day
        accumulator.hour = hour
        if took is not None and not (accumulator.longest is not None and accumulator.longest >= took):
            accumulator.longest = took

    def merge(self, accumulator: Visit, other: Visit) -> None:
        if other.first is not None:
            accumulator.first = other.first if accumulator.first is None else min(accumulator.first, other.first)
        accumulator.equal += other.equal

    def get_value(self, accumulator: Visit) -> datetime.datetime | None:
        return accumulator.last if accumulator.equal > 1 else accumulator.first


class Counts:
    buckets: Annotated[list[int], 5]
    highest: Annotated[list[float], 3]
    seen: Annotated[list[bool], 2]
    rows: int

    def __init__(self) -> None:
        self.buckets = [0] * 5
        self.highest = [0.0, -1.5, 2.0]
        self.seen = [False, True]
        self.rows = 0


@udaf(invertible=True)
class Histogram:
    """Lists of fixed length; an index may be negative, or out of range."""

    def create_accumulator(self) -> Counts:
        return Counts()

    def accumulate(self, accumulator: Counts, value: int, weight: float) -> None:
        buckets = accumulator.buckets
        buckets[value % 7 - 1] += value
        accumulator.rows += 1
        accumulator.highest[value & 1] = max(accumulator.highest[-1], weight)
        accumulator.seen[0] = accumulator.seen[0] or weight > 3

    def retract(self, accumulator: Counts, value: int, weight: float) -> None:
        accumulator.buckets[value % 7 - 1] -= value
        accumulator.rows -= 1

    def merge(self, accumulator: Counts, other: Counts) -> None:
        for place in range(len(accumulator.buckets)):
            accumulator.buckets[place] += other.buckets[place]
        accumulator.rows += other.rows

    def get_value(self, accumulator: Counts) -> float | None:
        most = accumulator.buckets[0]
        for place in range(1, len(accumulator.buckets)):
            most = max(most, accumulator.buckets[place])
        return most * accumulator.highest[1] if accumulator.seen[0] else accumulator.highest[accumulator.rows % 3]


@udaf(input_types=["DATE"], skip_nulls=True)
class LastDay:
    """A date as the accumulator and as the result; NULL if there is none."""

    def create_accumulator(self) -> datetime.date | None:
        return None

    def accumulate(self, accumulator: datetime.date | None, day: datetime.date) -> datetime.date | None:
        return day if accumulator is None or day > accumulator else accumulator

    def merge(self, accumulator: datetime.date | None, other: datetime.date | None) -> datetime.date | None:
        return accumulator if other is None or (accumulator is not None and accumulator > other) else other

    def get_value(self, accumulator: datetime.date | None) -> datetime.date | None:
        return accumulator


class Deviations:
    count: int
    mean: float
    squares: float
    not_finite: int

    def __init__(self) -> None:
        self.count = self.not_finite = 0
        self.mean = self.squares = 0.0


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class RoundedDeviation:
    """The deviation by B. P. Welford (1962): floats that are rounded at each row in the same way."""

    def create_accumulator(self) -> Deviations:
        return Deviations()

    def accumulate(self, accumulator: Deviations, value: float) -> None:
        if not math.isfinite(value):
            accumulator.not_finite += 1
            return
        accumulator.count += 1
        delta = value - accumulator.mean
        accumulator.mean += delta / accumulator.count
        accumulator.squares += delta * (value - accumulator.mean)

    def retract(self, accumulator: Deviations, value: float) -> None:
        if not math.isfinite(value):
            accumulator.not_finite -= 1
            return
        accumulator.count -= 1
        if accumulator.count == 0:
            accumulator.mean = accumulator.squares = 0.0
            return
        delta = value - accumulator.mean
        accumulator.mean -= delta / accumulator.count
        accumulator.squares = max(0.0, accumulator.squares - delta * (value - accumulator.mean))

    def merge(self, accumulator: Deviations, other: Deviations) -> None:
        accumulator.not_finite += other.not_finite
        if other.count == 0:
            return
        total = accumulator.count + other.count
        delta = other.mean - accumulator.mean
        accumulator.squares += other.squares + delta * delta * accumulator.count * other.count / total
        accumulator.mean += delta * other.count / total
        accumulator.count = total

    def get_value(self, accumulator: Deviations) -> float | None:
        if accumulator.count < 1:
            return None
        return math.nan if accumulator.not_finite else math.sqrt(accumulator.squares / accumulator.count)


@udaf(invertible=True)
class Tuples:
    """A tuple as the accumulator, whose last member may be None."""

    def create_accumulator(self) -> tuple[int, float, float | None]:
        return 0, 0.0, None

    def accumulate(
        self, accumulator: tuple[int, float, float | None], value: int, weight: float
    ) -> tuple[int, float, float | None]:
        rows, most, _ = accumulator
        if value == 3:
            return accumulator
        return rows + value, max(most, weight), None if value % 2 else accumulator[-1] or weight

    def retract(
        self, accumulator: tuple[int, float, float | None], value: int, weight: float
    ) -> tuple[int, float, float | None]:
        return accumulator[0] - value, accumulator[1], accumulator[2]

    def merge(
        self, accumulator: tuple[int, float, float | None], other: tuple[int, float, float | None]
    ) -> tuple[int, float, float | None]:
        return other if other[0] > accumulator[0] else (accumulator[0] + other[0], accumulator[1], other[2])

    def get_value(self, accumulator: tuple[int, float, float | None]) -> float | None:
        rows, most, last = accumulator
        return last if rows > 5 else most / (rows + 0.5)


@udaf(invertible=True)
class Listed:
    """A list as the accumulator, which keeps the length of the new one."""

    def create_accumulator(self) -> list[int]:
        return [0, 7, 0]

    def accumulate(self, accumulator: list[int], value: int) -> list[int] | None:
        accumulator[value % 5 - 1] += value
        if accumulator[0] > accumulator[1]:
            same = accumulator
            same[-1] = len(accumulator)
        return accumulator

    def retract(self, accumulator: list[int], value: int) -> None:
        accumulator[value % 5 - 1] -= value

    def merge(self, accumulator: list[int], other: list[int]) -> list[int]:
        if other[1] > accumulator[1]:
            return other
        accumulator[0] += other[0]
        return accumulator

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator[0] * accumulator[1] - accumulator[2]


@udaf
class Shown:
    """A result that only the interpreter makes, whose get_value changes the accumulator."""

    total: int
    shown: int

    def __init__(self) -> None:
        self.total = 0
        self.shown = 0

    def accumulate(self, value: int) -> None:
        if value is not None:
            self.total += value

    def merge(self, other: "Shown") -> None:
        self.total += other.total
        self.shown += other.shown

    def get_value(self) -> list[int]:
        self.shown += 1
        if self.total == 13:
            raise ValueError(f"bad luck after {self.shown}")
        return sorted([self.total, self.shown], key=abs)


PRICES = {"a": 3, "\u00e9b": 7}


@udaf(invertible=True)
class Words:
    """Texts and bytes: comparisons, parts, lookups, and texts that are kept from earlier rows."""

    first: str | None
    last: str
    longest: bytes
    found: int

    def __init__(self) -> None:
        self.first = None
        self.last = "none"
        self.longest = b""
        self.found = 0

    def accumulate(self, text: str, raw: bytes) -> None:
        step = 0
        if text.startswith("\u00e9t") or text.endswith("b"):
            step = 5
        if step:  # a variable that is a constant on one way only
            self.found += len(text) + len(raw)
        if self.first is None or text < self.first:
            self.first = text
        self.last = text[1:-1] if text in ("a", "ab", "\u00e9t\u00e9b") else max(text, self.last)
        if len(raw) > len(self.longest):
            self.longest = raw[:3]
        self.found += PRICES.get(text[-2:], 1) + (2 if "\u00e9" in text else 0) + (raw[0] if raw else 0)
        if text[:1] == "b" and text[0] != text[len(text) - 1]:
            self.found *= 2

    def retract(self, text: str, raw: bytes) -> None:
        self.found -= 1
        self.last = text or "empty"

    def merge(self, other: "Words") -> None:
        if other.first is not None:
            self.first = other.first if self.first is None else min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.longest = other.longest
        self.found += other.found

    def get_value(self) -> str | None:
        return self.first if self.found % 2 else self.last


@udaf
class LastText:
    """A text that may be None, of the newest row that has one."""

    last: str | None

    def __init__(self) -> None:
        self.last = None

    def accumulate(self, text: str) -> None:
        self.last = text if text is not None else self.last

    def get_value(self) -> str | None:
        return self.last


FUNCTIONS = Registry.load(
    [
        Words,
        LastText,
        RoundedDeviation,
        Shown,
        WeightedAvg,
        Own,
        Whole,
        Greatest,
        Sketched,
        LastRow,
        Visits,
        LastDay,
        Histogram,
        Tuples,
        Listed,
    ]
)
Case = tuple[str, list[pa.DataType], dict[str, Any]]
# Compiling one takes up to half a minute: four kinds of states in `make test`, the others in CI.
CASES: list[Case] = [
    ("weighted_avg", [pa.int64(), pa.int32()], {}),
    ("own", [pa.int64()], {}),
    ("first", [pa.date32()], {"ignore_nulls": True}),
    ("rounded_deviation", [pa.float64()], {}),
]
MORE_CASES: list[Case] = [
    ("words", [pa.string(), pa.binary()], {}),
    ("histogram", [pa.int64(), pa.float64()], {}),
    ("tuples", [pa.int64(), pa.float64()], {}),
    ("listed", [pa.int64()], {}),
    ("visits", [pa.timestamp("us"), pa.date32(), pa.time64("us"), pa.duration("us")], {}),
    ("whole", [pa.int64()], {}),
    ("sketched", [pa.float64(), pa.bool_()], {"power": 2.0, "strict": True}),
    ("own", [pa.int64()], {"step": 0}),
    ("greatest", [pa.int64()], {}),
    ("sketched", [pa.float64(), pa.bool_()], {}),
    ("min", [pa.int64()], {}),
    ("max", [pa.float64()], {}),
    ("bool_and", [pa.bool_()], {}),
    ("first", [pa.float64()], {"ignore_nulls": True}),
    ("last", [pa.int64()], {}),
    ("last_row", [pa.int64()], {}),
    ("last_day", [pa.date32()], {}),
    ("last", [pa.timestamp("us")], {}),
]
each_case = pytest.mark.parametrize(
    ("name", "types", "literals"),
    [
        pytest.param(*case, id=f"{case[0]} {case[2]}", marks=marks)
        for cases, marks in ((CASES, ()), (MORE_CASES, pytest.mark.slow))
        for case in cases
    ],
)


KNOWN: dict[Any, list[Any]] = {
    pa.bool_(): [True, False, True],
    pa.string(): ["ab", "b", "c"],
    pa.binary(): [b"ab", b"", b"c"],
}


def bound_of(name: str, types: list[pa.DataType], literals: dict[str, Any]) -> BoundFunction:
    return FUNCTIONS[name].bind(types, literals)


@each_case
@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_compiled_folds_equal_interpreted_ones(
    name: str, types: list[pa.DataType], literals: dict[str, Any], hot: Programs, data: st.DataObject
) -> None:
    """Rows, states and values are equal, and so are errors, with their slots and rows."""
    bound = bound_of(name, types, literals)
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, row_by_row=True)


@pytest.mark.slow
@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_interpreted_get_value_works_on_compiled_accumulators(hot: Programs, data: st.DataObject) -> None:
    """Only get_value is interpreted: results and errors are the interpreter's. It changes no accumulator."""
    bound = bound_of("shown", [pa.int64()], {})
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, row_by_row=True)


def test_the_reason_of_an_interpreted_get_value_is_shown(hot: Programs) -> None:
    """The other methods stay compiled, and the listing says why get_value is not."""
    bound = bound_of("shown", [pa.int64()], {})
    accumulators = hot.accumulators(interpret(bound))
    slots = np.array([0, 1, 0], np.int32)
    accumulators.update(Rows(slots, None, [Column("value", pa.array([1, 2, 3]))]))
    assert accumulators.evaluate(slots[:2]).to_pylist() == [[1, 4], [1, 2]]
    assert accumulators.evaluate(slots[:2]).to_pylist() == [[1, 4], [1, 2]]
    assert accumulators.mode == "compiled"
    reason = "compiled: get_value is interpreted: its result has the type ARRAY<BIGINT>"
    assert str(hot.warm(bound.function)).startswith(f"{reason} (test_compiled.py:")


@each_case
def test_the_functions_of_this_file_are_compiled(
    name: str, types: list[pa.DataType], literals: dict[str, Any], hot: Programs
) -> None:
    """The functions of the law above are compiled: over rows of small numbers the interpreter is never used."""
    bound = bound_of(name, types, literals)
    result = hot.program(bound, bound.instantiate())
    assert isinstance(result, Program), result
    assert result.rows(nulls=True) is not None
    if literals.get("step") == 0:
        return  # it divides by zero in every row
    accumulators = hot.accumulators(interpret(bound))
    columns = [Column(f"c{place}", array_of(KNOWN.get(type_, [1, 0, 1]), type_)) for place, type_ in enumerate(types)]
    slots = np.array([0, 1, 0], np.int32)
    accumulators.update(Rows(slots, None, columns))
    if bound.function.capabilities.merge:
        accumulators.merge(slots[:2], accumulators.state(slots[:2]))
    accumulators.evaluate(slots)
    accumulators.running_values(Rows(slots, None, columns), np.array([True, False, True]))
    assert accumulators.mode == "compiled"


def test_a_sum_beyond_64_bits_is_exact(hot: Programs) -> None:
    """A sum that exceeds 64 bits and returns into range is right; one that stays out of range is OVERFLOW."""
    sums_are_exact(hot.accumulators(interpret(bound_of("whole", [pa.int64()], {}))), "compiled")


def test_migrated_states_stay_compiled(hot: Programs) -> None:
    """States of another version are migrated, and folding continues in machine code."""

    @udaf(version="2", name="whole")
    class Tenfold(Whole):
        def migrate(self, version: str, state: int) -> int:
            return 10 * state

    bound = Registry.load([Tenfold])["whole"].bind([pa.int64()], {})
    accumulators = hot.accumulators(interpret(bound))
    slots = np.array([1, 0, 1], np.int32)
    accumulators.update(Rows(slots, None, [Column("x", pa.array([1, 2, 3]))]))
    accumulators.migrate(slots, pa.array([5, 6, 7]), StateOrigin("1", "00" * 8, "typed"))
    assert accumulators.mode == "compiled"
    assert accumulators.evaluate(slots[:2]).to_pylist() == [124, 62]


@pytest.mark.usefixtures("texts_are_copied_soon")
def test_texts_outlive_the_memory_of_their_rows(hot: Programs) -> None:
    """Texts of accumulators are copied, and the memory of their rows is freed, when most of it is not used."""
    accumulators = hot.accumulators(interpret(bound_of("last_text", [pa.string()], {})))
    slots = np.zeros(100, np.int32)
    for number in range(50):
        values = [f"{number} {row}" if row else None for row in range(100)]
        accumulators.update(Rows(slots + number % 3, None, [Column("x", pa.array(values))]))
        assert len(accumulators._retained) < 5  # type: ignore[attr-defined]
    assert accumulators.mode == "compiled"
    assert accumulators.evaluate(np.arange(4, dtype=np.int32)).to_pylist() == ["48 99", "49 99", "47 99", None]


class Number:
    n: int


def test_a_variable_that_may_have_no_value_is_not_compiled(hot: Programs) -> None:
    """Python raises if a variable has no value; machine code would use undefined memory."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", compile=True)
    class Forgets:
        def create_accumulator(self) -> Number:
            accumulator = Number()
            accumulator.n = 0
            return accumulator

        def accumulate(self, accumulator: Number, value: int) -> None:
            if value > 0:
                step = 1
            accumulator.n += step

        def get_value(self, accumulator: Number) -> int:
            return accumulator.n

    registry = Registry.load([Forgets])
    with pytest.raises(FoldflightError, match="step may have no value"):
        hot.accumulators(interpret(registry["forgets"].bind([pa.int64()], {})))


def test_a_tuple_of_any_length_is_not_compiled_with_a_reason(hot: Programs) -> None:
    """The types of its items do not tell how many there are."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", compile=True)
    class Flags:
        def create_accumulator(self) -> tuple[int, ...]:
            return (0, 0)

        def accumulate(self, accumulator: tuple[int, ...], value: int) -> tuple[int, ...]:
            return (accumulator[0] + value, accumulator[1])

        def get_value(self, accumulator: tuple[int, ...]) -> int:
            return accumulator[0]

    bound = Registry.load([Flags])["flags"].bind([pa.int64()], {})
    with pytest.raises(
        FoldflightError, match=r"its tuple has any length; write a type for each item, as tuple\[int, int\]"
    ):
        hot.accumulators(interpret(bound))


@pytest.mark.parametrize(
    ("body", "types", "why"),
    [
        ("accumulator.n += a.hour", ["DATE"], "it uses the attribute hour of a value"),
        ("accumulator.n += int(a.timestamp())", ["TIMESTAMP"], "it uses the attribute timestamp of a value"),
        ("accumulator.n += (a * 2).days", ["DATE"], r"\* of date and int, which Python does not have"),
        ("accumulator.n += (a * 2.5).days", [pa.duration("us")], r"\* of duration and float"),
        ("accumulator.n += 1 if a < b else 0", ["DATE", "TIMESTAMP"], "< of date and timestamp, which Python"),
        ("accumulator.n += 1 if a < b else 0", ["TIMESTAMPTZ", "TIMESTAMP"], "< of instant and timestamp"),
        ("accumulator.n += 1 if isinstance(a, int) else 0", ["DATE"], "isinstance of"),
        ("accumulator.n += int(a)", ["DATE"], r"int\(\) of date"),
        ("accumulator.n = a", ["DATE"], "the attribute n is a whole number in one place and a date in another"),
        ("accumulator.n += 1", [pa.timestamp("us", "Europe/Paris")], "its argument a has the type TIMESTAMP"),
    ],
)
def test_operations_that_datetimes_do_not_have_are_not_compiled(
    body: str, types: list[Any], why: str, hot: Programs
) -> None:
    """Operations that Python's dates lack are refused, and so are others that are not compiled, with the reason."""
    names = ("a", "b")[: len(types)]
    scope: dict[str, Any] = {"Number": Number}
    exec(f"def accumulate(self, accumulator, {', '.join(names)}):\n    {body}\n", scope)

    def create_accumulator(self: Any) -> Number:
        accumulator = Number()
        accumulator.n = 0
        return accumulator

    def get_value(self: Any, accumulator: Number) -> int:
        return accumulator.n

    members = {"create_accumulator": create_accumulator, "get_value": get_value, "accumulate": scope["accumulate"]}
    function = function_of(udaf(input_types=types, compile=True)(type("Made", (), members)))
    assert function is not None
    bound = function.bind(function.input_types or (), {})
    with pytest.raises(FoldflightError, match=f"cannot be compiled: .*{why}"):
        hot.accumulators(interpret(bound))


@pytest.mark.every_turn
def test_states_with_lists_of_other_lengths_are_interpreted(hot: Programs) -> None:
    """A state of another version with a shorter list is kept: Python's lists have any length."""
    bound = bound_of("histogram", [pa.int64(), pa.float64()], {})
    state = {"buckets": [1, 2], "highest": [0.0, 1.0, 2.0], "seen": [False, False], "rows": 2}
    slots = np.zeros(1, np.int32)
    accumulators = hot.accumulators(interpret(bound))
    accumulators.merge(slots, pa.array([state], bound.state_type))
    assert accumulators.mode == "interpreted"
    assert accumulators.state(slots).to_pylist() == [state]


@pytest.mark.parametrize(
    ("fresh", "body", "why"),
    [
        ("[0] * 4", "accumulator.items.append(value)", "it uses append of a list of 4 items"),
        (
            "[0] * 4",
            "accumulator.items = accumulator.items",
            "it replaces the list items; only its items can be assigned",
        ),
        ("[0] * 4", "accumulator.items[0] = value / 2", "it puts a float into a list of int"),
        ("[0] * 4", "accumulator.items[value / 2] = 1", "by float64"),
        ("[0] * 4", "accumulator.items[0:2] = accumulator.items", r"\[\] of slice"),
        ("[0] * 3", "accumulator.items[0] = 1", "the initial value of items is not a list of 4 items of type int"),
        ("[True] * 4", "accumulator.items[0] = 1", "the initial value of items is not a list of 4 items of type int"),
        ("shared", "accumulator.items[0] = 1", "all its accumulators share the list items"),
    ],
)
def test_other_operations_with_lists_are_not_compiled(fresh: str, body: str, why: str, hot: Programs) -> None:
    """Single items of a list of fixed length can be read and assigned; any other use is refused, with the reason."""
    scope: dict[str, Any] = {"Annotated": Annotated, "__name__": __name__}
    source = f"""
class Items:
    items: Annotated[list[int], 4]
    def __init__(self, shared=[0, 0, 0, 0]):
        self.items = {fresh}

class Made:
    def create_accumulator(self):
        return Items()
    def accumulate(self, accumulator, value):
        {body}
    def get_value(self, accumulator):
        return accumulator.items[0]
"""
    exec(source, scope)
    scope["Made"].create_accumulator.__annotations__["return"] = scope["Items"]
    function = function_of(udaf(input_types=["BIGINT"], result_type="BIGINT", compile=True)(scope["Made"]))
    assert function is not None
    bound = function.bind(function.input_types or (), {})
    with pytest.raises(FoldflightError, match=f"cannot be compiled: .*{why}"):
        hot.accumulators(interpret(bound))


@pytest.mark.parametrize(
    ("fresh", "annotation", "body", "why"),
    [
        ("(0, 0.0)", "tuple[int, float]", "return accumulator[0] + value, 1", "a tuple of int, float"),
        ("(0, 0.0)", "tuple[int, float]", "return accumulator[0] + value", "a tuple of int, float"),
        (
            "(0, 0.0)",
            "tuple[int, float]",
            "return (value, 2.0) if value else (value, value)",
            "a member of .* is a float in one place and a whole number in another",
        ),
        ("(0, 0)", "tuple[int, float]", "return accumulator", "the initial value of f1 is 0"),
        ("(0, '')", "tuple[int, str]", "return accumulator[0], value", "a tuple of int, text"),
        ("[0] * 4", "list[int]", "accumulator.append(value)", "it uses append of a list of 4 items"),
        ("[0] * 4", "list[int]", "return [value] * 4", r"\* of list\[int\]"),
        ("[0] * 65", "list[int]", "accumulator[0] = 1", "makes them with up to 64 items"),
        ("[0.0, 1]", "list[float]", "accumulator[0] = 1.0", "the initial value of value is not a list of 2 items"),
    ],
)
def test_tuples_and_lists_whose_members_change_are_not_compiled(
    fresh: str, annotation: str, body: str, why: str, hot: Programs
) -> None:
    """A member keeps its type and a list its length; what may change them is refused, with the reason."""
    scope: dict[str, Any] = {"__name__": __name__}
    source = f"""
class Made:
    def create_accumulator(self) -> {annotation}:
        return {fresh}
    def accumulate(self, accumulator, value):
        {body}
    def get_value(self, accumulator):
        return accumulator[0]
"""
    exec(source, scope)
    function = function_of(udaf(input_types=["BIGINT"], result_type="BIGINT", compile=True)(scope["Made"]))
    assert function is not None
    bound = function.bind(function.input_types or (), {})
    with pytest.raises(FoldflightError, match=f"cannot be compiled: .*{why}"):
        hot.accumulators(interpret(bound))


def test_a_list_of_another_length_as_the_state_is_interpreted(hot: Programs) -> None:
    """The state of another version is kept as it is."""
    bound = bound_of("listed", [pa.int64()], {})
    slots = np.zeros(1, np.int32)
    accumulators = hot.accumulators(interpret(bound))
    accumulators.merge(slots, pa.array([[1, 2]], bound.state_type))
    assert accumulators.mode == "interpreted"
    assert accumulators.state(slots).to_pylist() == [[1, 2]]
