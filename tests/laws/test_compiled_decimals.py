"""Compiled code calculates with decimals as Python does in the context of a fold, or leaves the row to it."""

import decimal
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.natural.classes import DecimalSum
from foldflight import FoldflightError, udaf, udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.arena import RAISED
from foldflight.ext.compiler.columns import columns_of
from foldflight.ext.compiler.compiled import results_of
from foldflight.ext.compiler.program import Loops, NoProgram, Program
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundScalar, Function
from foldflight.functions.author.udaf import function_of
from foldflight.functions.types.values import cast_results
from tests.effort import examples
from tests.laws.alike import VALUES, Samples, folds_alike, interpret, same

WIDE, NARROW, WHOLE, CENTS = pa.decimal128(38, 18), pa.decimal128(20, 4), pa.decimal128(38, 0), pa.decimal128(7, 2)
LIMIT = Decimal("100.25")


def decimals(type_: pa.Decimal128Type) -> st.SearchStrategy[Decimal]:
    """Return a strategy for decimals of a type: at the ends of its range, with few digits, and any."""
    most = 10**type_.precision - 1
    numbers = st.one_of(
        st.sampled_from([0, 1, -1, most, -most, most - 1, most // 2 + 1, 10 ** (type_.precision // 2)]),
        st.integers(-99, 99).map(lambda each: each * 10**type_.scale % (most + 1)),
        st.integers(-9999, 9999).map(lambda each: each * 10 ** max(type_.scale - 2, 0) % (most + 1)),
        st.integers(-most, most),
    )
    return numbers.map(lambda each: Decimal(each).scaleb(-type_.scale, decimal.Context(prec=76)))


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    """Calculate with the digits of a fold."""
    with decimal.localcontext(decimal.Context(prec=76)):
        yield


def sums(op: int, a: Decimal, b: Decimal, c: Decimal, n: int) -> Decimal:
    if op == 0:
        return a + b
    if op == 1:
        return a - c
    if op == 2:
        return b * n
    if op == 3:
        return a * b
    if op == 4:
        return a * a
    if op == 5:
        return c * c
    if op == 6:
        return max(a, b, c) - min(b, c)
    if op == 7:
        return -a if a else abs(b)
    if op == 8:
        return abs(+c) + n
    return Decimal(n) * LIMIT + Decimal("0.5") - Decimal(op)


@udf(input_types=["BIGINT", WIDE, NARROW, WHOLE, "BIGINT"], result_type="DECIMAL(30, 3)", compile=True)
class Sums:
    """Results that are decimals, by a number."""

    def eval(self, op: int, a: Decimal, b: Decimal, c: Decimal, n: int) -> Decimal:
        return sums(op, a, b, c, n)


@udf(input_types=["BIGINT", WIDE, NARROW, WHOLE, "BIGINT"], result_type="BIGINT", compile=True)
class Answers:
    """Comparisons and whole parts, by a number."""

    def eval(self, op: int, a: Decimal, b: Decimal, c: Decimal, n: int) -> int:
        if op == 0:
            return (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a > b) + 32 * (a >= b)
        if op == 1:
            return (c < n) + 2 * (n <= c) + 4 * (b == n) + 8 * (n != a) + 16 * (n > b) + 32 * (c >= 0)
        if op == 2:
            return int(a)
        if op == 3:
            return int(b)
        if op == 4:
            return 1 if a and not b else int(c)
        return 1 if b > LIMIT else 0


@udf(input_types=["BIGINT", WIDE, NARROW, WHOLE, "BIGINT"], result_type="DOUBLE", compile=True)
class Floats:
    """Decimals as floats, by a number."""

    def eval(self, op: int, a: Decimal, b: Decimal, c: Decimal, n: int) -> float:
        if op == 0:
            return float(a)
        if op == 1:
            return float(b) * n
        if op == 2:
            return float(b * n)
        return float(c)


ROW = st.tuples(decimals(WIDE), decimals(NARROW), decimals(WHOLE), st.one_of(st.integers(-9, 9), VALUES[pa.int64()]))


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "operations"), [(Sums, 10), (Answers, 6), (Floats, 4)])
@settings(examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_decimals_equal_those_of_python(cls: Any, operations: int, data: st.DataObject) -> None:
    """Each operation has the interpreter's result, or leaves the row to it."""
    function: Any = function_of(cls)
    bound: BoundScalar = function.bind(function.input_types, {})
    program = Programs(LoopStore("user"), hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(program, Loops), program
    row = data.draw(ROW)
    for op in range(operations):
        columns = [
            Column(str(type_), pa.array([each], type_))
            for type_, each in zip(bound.input_types, (op, *row), strict=True)
        ]
        given_columns, valid, _ = columns_of(Rows(np.zeros(1, np.int32), None, columns), program.arguments)
        if given_columns is None:
            continue
        result, handled_rows = program.allocate(1)
        try:
            program.rows(nulls=False)(
                program.instance, np.zeros(1, np.int64), given_columns, valid, result, handled_rows
            )
        except RAISED:
            continue
        expected = cast_results([cls().eval(op, *row)], bound.result_type)
        assert repr(results_of(result, handled_rows, bound.result_type).to_pylist()) == repr(expected.to_pylist()), op


@udaf(input_types=[NARROW, "BIGINT"])
class Priced:
    """A sum of prices by pieces, the highest and the lowest price, and the number of prices above a limit."""

    paid: Annotated[Decimal, "DECIMAL(30, 4)"]
    top: Decimal | None
    low: Annotated[Decimal, NARROW]
    above: int

    def __init__(self) -> None:
        self.paid = Decimal("0.0")
        self.top = None
        self.low = Decimal(1000)
        self.above = 0

    def accumulate(self, price: Decimal, pieces: int) -> None:
        self.paid += price * pieces
        if self.top is None or price > self.top:
            self.top = price
        self.low = min(self.low, price)
        self.above += price >= LIMIT

    def retract(self, price: Decimal, pieces: int) -> None:
        self.paid -= price * pieces

    def merge(self, other: "Priced") -> None:
        self.paid += other.paid
        if self.top is None or (other.top is not None and other.top > self.top):
            self.top = other.top
        self.low = min(self.low, other.low)
        self.above += other.above

    def get_value(self) -> Annotated[Decimal, CENTS]:
        return self.paid - self.low if self.top is None else self.top + self.above


@udaf
class Mean:
    """A mean, whose value is a quotient and so interpreted; the accumulator is a tuple."""

    def create_accumulator(self) -> tuple[Decimal, int]:
        return Decimal(0), 0

    def accumulate(self, accumulator: tuple[Decimal, int], price: Decimal | None) -> tuple[Decimal, int]:
        total, count = accumulator
        return (total, count) if price is None else (total + price, count + 1)

    def merge(self, accumulator: tuple[Decimal, int], other: tuple[Decimal, int]) -> tuple[Decimal, int]:
        return accumulator[0] + other[0], accumulator[1] + other[1]

    def get_value(self, accumulator: tuple[Decimal, int]) -> Decimal | None:
        total, count = accumulator
        return round(total / count, 4) if count else None


SAMPLES: Samples = {**VALUES, **{each: decimals(each) for each in (WIDE, NARROW)}}


def compiled(cls: Any) -> tuple[Any, Any]:
    """Return the bound class and what makes its compiled accumulators."""
    (function,) = Registry.load([cls]).authored
    assert isinstance(function, Function)
    bound = function.bind(function.input_types, {})  # type: ignore[arg-type]
    programs = Programs(LoopStore("user"), hot_rows=0)
    program = programs.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    return bound, lambda: programs.accumulators(interpret(bound))


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Priced, Mean, DecimalSum])
@settings(examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_folds_of_decimals_equal_interpreted_ones(cls: Any, data: st.DataObject) -> None:
    """States, results and errors are the interpreter's, also with NULL, retractions, and numbers beyond the types."""
    bound, make = compiled(cls)
    folds_alike(bound, make, data, SAMPLES, row_by_row=cls is not Mean)


def test_a_sum_beyond_its_digits_is_left_to_the_interpreter_and_may_return() -> None:
    """In between it has 39 digits, as in Python; as a state it would be an error."""
    _, make = compiled(DecimalSum)
    accumulators, slots = make(), np.zeros(1, np.int32)
    most = Decimal(10**20) - Decimal("1e-18")
    for value in (most, most, -most):
        accumulators.update(Rows(slots, None, [Column("price", pa.array([value], WIDE))]))
        assert accumulators.mode == "compiled"
    assert accumulators.evaluate(slots).to_pylist() == [most]


def test_a_state_beyond_its_digits_has_one_code() -> None:
    """A total of 39 digits is OVERFLOW as a state, interpreted and compiled, whatever scale Python's number has."""
    bound, make = compiled(DecimalSum)
    for accumulators in (interpret(bound), make()):
        for value in (Decimal(10**20) - Decimal("1e-18"),) * 2:
            accumulators.update(Rows(np.zeros(1, np.int32), None, [Column("price", pa.array([value], WIDE))]))
        with pytest.raises(FoldflightError, match=r"^OVERFLOW: its accumulator does not fit its state"):
            accumulators.state(np.zeros(1, np.int32))


def test_sliced_columns_with_nulls_are_folded() -> None:
    """The words of a column begin at its offset, and the words of NULL may be anything."""
    bound, make = compiled(Mean)
    given_values = pa.array([None, Decimal(7), None, Decimal(-2), Decimal("0.5")], WIDE).slice(1)
    rows = Rows(np.array([0, 0, 1, 1], np.int32), None, [Column("price", given_values)])
    one, other = interpret(bound), make()
    for run in (lambda each: each.update(rows), lambda each: each.evaluate(np.arange(2, dtype=np.int32))):
        assert same(run, one, other)
    assert other.mode == "compiled"


@udaf
class Divided:
    """A quotient in the accumulator, which has any number of digits."""

    total: Decimal

    def __init__(self) -> None:
        self.total = Decimal(0)

    def accumulate(self, price: Decimal) -> None:
        self.total += price / 3

    def get_value(self) -> Decimal:
        return self.total


@udaf
class Texts(Divided):
    """The digits of a decimal, which compiled code does not know."""

    def accumulate(self, price: Decimal) -> None:
        self.total += len(price.as_tuple().digits)


@udaf
class Either(Divided):
    """A variable that is an int or a decimal."""

    def accumulate(self, price: Decimal) -> None:
        step = 0
        if price > 1:
            step = price  # type: ignore[assignment]
        self.total += step


@udaf
class Whole:
    """A state that is a decimal and starts as an int."""

    total: Decimal

    def __init__(self) -> None:
        self.total = 0  # type: ignore[assignment]

    def accumulate(self, price: Decimal) -> None:
        self.total += price

    def get_value(self) -> Decimal:
        return self.total


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Divided, "/ of decimal18 and int, whose result may have any number of digits; divide in get_value ("),
        (Texts, "it uses the attribute as_tuple of a value"),
    ],
)
def test_code_that_shows_more_than_the_value_of_a_decimal_is_refused(cls: Any, reason: str) -> None:
    """Only the value of a decimal is known in compiled code, not how many zeros it is written with."""
    (function,) = Registry.load([cls]).authored
    bound: Any = function.bind(function.input_types, {})  # type: ignore[arg-type]
    result = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert reason in result.reason
    line = cls.accumulate.__code__.co_firstlineno + 1
    assert result.reason.endswith(f" (test_compiled_decimals.py:{line})")


CENT = Decimal("0.01")


@udaf
class Shown:
    """A sum as a text, with the zeros that Python keeps; compiled code would give 18 digits after the point."""

    total: Decimal

    def __init__(self) -> None:
        self.total = Decimal(0)

    def accumulate(self, price: Decimal) -> None:
        self.total += price

    def get_value(self) -> str:
        return f"{self.total}"


@udaf
class Digits(Shown):
    """The number of digits after the point, from a method that get_value calls."""

    def places(self) -> int:
        return -int(self.total.as_tuple().exponent)

    def get_value(self) -> int:  # type: ignore[override]
        return self.places()


@udaf
class Fitted(Shown):
    """A rounding to the digits of the sum."""

    def get_value(self) -> Decimal:  # type: ignore[override]
        return CENT.quantize(self.total)


@udaf
class Percent(Shown):
    """A text by the operator %."""

    def get_value(self) -> str:
        return "%s" % self.total  # noqa: UP031


@udaf
class Rounded(Shown):
    """A quotient that is rounded to a constant: only the value matters."""

    def half(self) -> Decimal:
        return self.total / 2

    def get_value(self) -> Decimal:  # type: ignore[override]
        return round(self.half(), 4) + self.total.quantize(CENT, rounding=decimal.ROUND_HALF_UP)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Shown, Digits, Fitted, Percent])
def test_an_interpreted_result_that_may_show_zeros_is_refused(cls: Any) -> None:
    """Records have decimals with the scale of the state's type, not with the digits that Python's have."""
    (function,) = Registry.load([cls]).authored
    bound: Any = function.bind(function.input_types, {})  # type: ignore[arg-type]
    result = Programs(LoopStore("user"), hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert result.reason.endswith(", and may show the zeros that a decimal is written with, which only Python knows")


@pytest.mark.slow
def test_an_interpreted_result_that_uses_only_the_value_is_allowed() -> None:
    """Rounding to a constant, also in a method that get_value calls."""
    bound, make = compiled(Rounded)
    one, other = interpret(bound), make()
    rows = Rows(np.zeros(2, np.int32), None, [Column("price", pa.array([Decimal("1.5"), Decimal("0.035")], WIDE))])
    for run in (lambda each: each.update(rows), lambda each: each.evaluate(np.arange(1, dtype=np.int32))):
        assert same(run, one, other)
    assert other.mode == "compiled"


@udaf
class Taxed(Shown):
    """A rate that is a constant of the class."""

    RATE = Decimal("0.19")

    def accumulate(self, price: Decimal) -> None:
        self.total += price * self.RATE

    def get_value(self) -> Decimal:  # type: ignore[override]
        return self.total


def test_decimals_of_the_class_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value has code of its own."""
    rows = Rows(np.zeros(1, np.int32), None, [Column("price", pa.array([Decimal("1.5")], WIDE))])
    for rate, expected in ((Decimal("0.19"), Decimal("0.285")), (Decimal(3), Decimal("4.5"))):
        monkeypatch.setattr(Taxed, "RATE", rate)
        _, make = compiled(Taxed)
        accumulators = make()
        accumulators.update(rows)
        assert accumulators.evaluate(np.zeros(1, np.int32)).to_pylist() == [expected]
        assert accumulators.mode == "compiled"


@pytest.mark.every_turn
def test_a_variable_of_two_types_is_named() -> None:
    """Only when it is compiled, the types show that have nothing in common."""
    (function,) = Registry.load([Either]).authored
    bound: Any = function.bind(function.input_types, {})  # type: ignore[arg-type]
    result = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    line = Either.accumulate.__code__.co_firstlineno + 4
    place = f"(test_compiled_decimals.py:{line})"
    assert result.reason == f"step is an int in one place and a Decimal in another {place}"


def test_a_decimal_that_starts_as_an_int_is_refused_with_the_remedy() -> None:
    """Python's results may depend on it: a quotient of two ints is a float."""
    (function,) = Registry.load([Whole]).authored
    bound: Any = function.bind(function.input_types, {})  # type: ignore[arg-type]
    result = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert "; write Decimal(0) (" in result.reason
