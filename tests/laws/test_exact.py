"""Sums, averages and variances of floats are exact and rounded once, in any order, with merges and retractions."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foldflight import RejectedError, udaf
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.state_codecs import StateOrigin
from foldflight.fold.aggregate.vectorised_accumulators import vectorised_accumulators
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Call, Registry
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.types.exact import EXACT, ExactSum, ExactSums
from foldflight.functions.types.serializer import serializer_of_annotation
from tests.laws.alike import bits, interpret

FUNCTIONS = Registry()
OVER_FLOATS = ("sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp")
LARGEST, SMALLEST = 1.7976931348623157e308, 5e-324
# Magnitudes that lose each other in floats, and those at the ends of what floats are.
HARD = st.one_of(
    st.sampled_from([1e300, 1.0, 1e-300, 0.1, LARGEST, SMALLEST, 2.0**-1022, 2.0**53, 0.0, -0.0, 1e16, 1e154]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-100, 100),
    st.floats(1e15, 1e15 + 100),
).flatmap(lambda value: st.sampled_from([value, -value]))
SLOT = np.zeros(1, np.int32)
FORMS = {"scalar": interpret, "vectorised": lambda bound: vectorised_accumulators(interpret(bound))}


def bound_of(name: str, type_: pa.DataType | None = None) -> BoundFunction:
    return FUNCTIONS[name].bind([type_ or pa.float64()], {})


def fold_rows(bound: BoundFunction, form: str, rows: list[tuple[float, bool]]) -> GroupsAccumulator:
    """Fold rows, each accumulated or retracted, into one slot."""
    accumulators: GroupsAccumulator = FORMS[form](bound)
    values, back = [value for value, _ in rows], np.array([is_back for _, is_back in rows], np.bool_)
    slots = np.zeros(len(rows), np.int32)
    accumulators.update(Rows(slots, back if back.any() else None, [Column("x", pa.array(values, pa.float64()))]))
    return accumulators


def units_of(accumulators: GroupsAccumulator) -> Any:
    """Return state and output of the slot, bit for bit."""
    return bits(accumulators.state(SLOT)[0].as_py()), bits(accumulators.evaluate(SLOT)[0].as_py())


def nearest(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def right(name: str, values: list[float]) -> float | None:
    """Return the exact result, rounded once; for a deviation, its root."""
    numbers = [Fraction(value) for value in values]
    divisor = len(numbers) - name.endswith("samp")
    if divisor < 1:
        return None
    if name in ("sum", "avg"):
        total = nearest(sum(numbers, Fraction()))
        return total if name == "sum" else total / divisor
    mean = sum(numbers, Fraction()) / len(numbers)
    variance = nearest(sum(((number - mean) ** 2 for number in numbers), Fraction()) / divisor)
    return variance if name.startswith("var") else math.sqrt(variance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OVER_FLOATS)
@given(st.data())
def test_a_retracted_row_leaves_no_trace(name: str, form: str, data: st.DataObject) -> None:
    """Accumulated and retracted rows, in any order, give the state and the exact result of the remaining rows."""
    stay, go = data.draw(st.lists(HARD, max_size=8)), data.draw(st.lists(HARD, max_size=8))
    rows = data.draw(st.permutations([*((value, False) for value in stay + go), *((value, True) for value in go)]))
    bound = bound_of(name)
    after = fold_rows(bound, form, list(rows))
    assert units_of(after) == units_of(fold_rows(bound, form, [(value, False) for value in stay]))
    assert bits(after.evaluate(SLOT)[0].as_py()) == bits(right(name, stay))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OVER_FLOATS)
@given(st.data())
def test_parts_merge_in_any_order(name: str, form: str, data: st.DataObject) -> None:
    """However rows are split into parts, and in whatever order these are merged, state and result are the same."""
    bound = bound_of(name)
    parts = data.draw(st.lists(st.lists(HARD, max_size=4), min_size=1, max_size=4))
    states = [fold_rows(bound, form, [(value, False) for value in part]).state(SLOT) for part in parts]
    merged_sum = FORMS[form](bound)
    for state in data.draw(st.permutations(states)):
        merged_sum.merge(SLOT, state)
    values = [value for part in parts for value in part]
    assert units_of(merged_sum) == units_of(fold_rows(bound, form, [(value, False) for value in values]))
    assert bits(merged_sum.evaluate(SLOT)[0].as_py()) == bits(right(name, values))


@pytest.mark.parametrize("form", FORMS)
def test_retracted_large_values_leave_small_ones_exact(form: str) -> None:
    """1e300 and 1 without 1e300 is 1; a variance is exact after large values were retracted."""
    assert fold_rows(bound_of("sum"), form, [(1e300, False), (1.0, False), (1e300, True)]).evaluate(
        SLOT
    ).to_pylist() == [1]
    stay, go = [0.5, 101.0, 3.25], [1e9, -3e11]
    rows = [(value, False) for value in [*go, *stay]] + [(value, True) for value in go]
    assert fold_rows(bound_of("var_pop"), form, rows).evaluate(SLOT).to_pylist() == [right("var_pop", stay)]


Step = tuple[int, float, float, int, bool]


@given(st.lists(st.tuples(st.integers(0, 2), HARD, HARD, st.sampled_from([1, -1]), st.booleans()), max_size=20))
@example([(0, LARGEST, LARGEST, 1, True)] * 3 + [(0, SMALLEST, SMALLEST, -1, True)])
def test_exact_sums_are_exact(steps: list[Step]) -> None:
    """Sums and sums of products equal the sums of fractions, for the scalar class and the array, through states."""
    fractions, scalar = [Fraction()] * 3, [ExactSum() for _ in range(3)]
    sums = ExactSums()
    sums.grow(3)
    for slot, value, factor, sign, is_product in steps:
        fractions[slot] += sign * Fraction(value) * (Fraction(factor) if is_product else 1)
        one, times = np.array([slot]), np.array([sign])
        if is_product:
            scalar[slot].add_product(value, factor, sign)
            sums.add_products(one, np.array([value]), np.array([factor]), times)
        else:
            scalar[slot].add(value, sign)
            sums.add(one, np.array([value]), times)
    assert [Fraction(each.units, 1 << 2176) for each in scalar] == fractions
    assert [sums.units(slot) for slot in range(3)] == [each.units for each in scalar]
    assert sums.values().tolist() == [each.value() for each in scalar] == [nearest(each) for each in fractions]
    shape, states = serializer_of_annotation(ExactSum), sums.to_arrow()
    assert states is not None
    assert states.equals(shape.to_arrow(scalar))
    assert shape.from_arrow(states) == scalar
    back = sums.from_arrow(states.slice(1))
    assert back is not None
    assert [back.units(slot) for slot in range(2)] == [each.units for each in scalar[1:]]


@given(st.lists(st.lists(HARD, min_size=1, max_size=3), min_size=1, max_size=40))
def test_exact_sums_of_many_rows_are_exact(groups: list[list[float]]) -> None:
    """Rows of all magnitudes, added in blocks, give the same sums as row by row."""
    slots = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    values = np.array([value for group in groups for value in group])
    sums = ExactSums()
    sums.grow(len(groups))
    repeats = 2000
    sums.add(np.tile(slots, repeats), np.tile(values, repeats))
    sums.add_products(slots, values, values[::-1])
    for slot, group in enumerate(groups):
        total = repeats * sum(map(Fraction, group))
        products = [Fraction(a) * Fraction(b) for s, a, b in zip(slots, values, values[::-1], strict=True) if s == slot]
        assert Fraction(sums.units(slot), 1 << 2176) == total + sum(products)


def test_digits_carry_before_they_overflow() -> None:
    """Carries happen before a digit overflows, and do not change sums."""
    sums = ExactSums()
    sums.grow(1)
    sums.add(np.zeros(4, np.intp), np.full(4, -LARGEST))
    before = sums.units(0)
    sums._deposits = (1 << 29) - 1
    sums._digits += 1 << 61
    units = sums.units(0)
    sums.add(np.zeros(4, np.intp), np.full(4, 3.0))
    assert sums.units(0) == units + (12 << 2176) > before
    assert abs(sums._digits).max() < 1 << 34


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    """NaN and infinity cannot be added to an exact sum."""
    with pytest.raises(ValueError, match=r"not finite|cannot be added"):
        ExactSum().add(value)
    if isinstance(value, float):
        sums = ExactSums()
        sums.grow(1)
        with pytest.raises(ValueError, match="not finite"):
            sums.add_products(np.zeros(2, np.intp), np.array([1.0, value]), np.array([1.0, 1.0]))
        assert sums.values().tolist() == [0]


class Means:
    products: ExactSum
    weights: ExactSum

    def __init__(self) -> None:
        self.products, self.weights = ExactSum(), ExactSum()


@udaf(input_types=["DOUBLE", "DOUBLE"], result_type="DOUBLE", skip_nulls=True, invertible=True)
class ExactMean:
    """An author's class: a weighted mean that is rounded twice, with scalar methods only."""

    def create_accumulator(self) -> Means:
        return Means()

    def accumulate(self, accumulator: Means, value: float, weight: float) -> None:
        accumulator.products.add_product(value, weight)
        accumulator.weights.add(weight)

    def retract(self, accumulator: Means, value: float, weight: float) -> None:
        accumulator.products.add_product(value, weight, -1)
        accumulator.weights.add(weight, -1)

    def get_value(self, accumulator: Means) -> float | None:
        weights = accumulator.weights.value()
        return accumulator.products.value() / weights if weights else None


def test_authors_can_use_exact_sums_in_accumulators() -> None:
    """An attribute annotated as ExactSum has a readable typed state, and is restored from it."""
    bound = Registry.load([ExactMean])["exact_mean"].bind([pa.float64(), pa.float64()], {})
    assert bound.state_type == pa.struct([("products", EXACT), ("weights", EXACT)])
    accumulators = interpret(bound)
    columns = [Column("v", pa.array([1e300, 0.1])), Column("w", pa.array([1e9, 3.0]))]
    accumulators.update(Rows(np.zeros(2, np.int32), None, columns))
    state = accumulators.state(SLOT)
    assert state[0].as_py()["products"]["rounded"] == math.inf
    assert state[0].as_py()["weights"] == {"rounded": 1000000003.0, "digits": b""}
    other = interpret(bound)
    other.merge(SLOT, state)
    retracted_row = [Column("v", pa.array([1e300])), Column("w", pa.array([1e9]))]
    other.update(Rows(SLOT, np.ones(1, np.bool_), retracted_row))
    assert other.evaluate(SLOT).to_pylist() == [float(Fraction(0.1) * 3) / 3]


OLD: list[tuple[str, dict[str, Any], float | None]] = [
    ("sum", {"sum": 7.5, "count": 3, "nans": 0, "infinities": 0, "negative_infinities": 0}, 8.5),
    ("sum", {"sum": math.inf, "count": 3, "nans": 0, "infinities": 0, "negative_infinities": 0}, math.inf),
    ("avg", {"sum": 7.0, "count": 3, "nans": 0, "infinities": 0, "negative_infinities": 0}, 2.0),
    ("avg", {"sum": 7.0, "count": 3, "nans": 1, "infinities": 0, "negative_infinities": 0}, math.nan),
    ("var_pop", {"count": 3, "mean": 5.0, "squares": 24.0, "not_finite": 0}, 9.0),
    ("stddev_samp", {"count": 3, "mean": 5.0, "squares": 24.0, "not_finite": 0}, math.sqrt(12.0)),
    ("var_samp", {"count": 3, "mean": 5.0, "squares": 24.0, "not_finite": 1}, math.nan),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "state", "expected"), OLD)
def test_states_of_the_first_version_go_on(name: str, state: dict[str, Any], expected: float | None, form: str) -> None:
    """States of version 1 (a float sum, a variance by mean and squares) keep their values, and more rows are added."""
    types = {key: pa.float64() if isinstance(value, float) else pa.int64() for key, value in state.items()}
    accumulators: GroupsAccumulator = FORMS[form](bound_of(name))
    accumulators.migrate(SLOT, pa.array([state], pa.struct(list(types.items()))), StateOrigin("1", "00" * 8, "typed"))
    accumulators.update(Rows(SLOT, None, [Column("x", pa.array([1.0]))]))
    assert bits(accumulators.evaluate(SLOT)[0].as_py()) == bits(expected)
    assert accumulators.mode == ("interpreted" if form == "scalar" else "vectorised")


def test_a_fold_takes_states_of_the_first_version() -> None:
    """States of version 1, recognised by their metadata, are migrated; states of integers have no older version."""
    for type_, version in ((pa.float64(), "2"), (pa.int64(), "1")):
        fold = Fold(bind_calls(Registry(), [Call("sum", ("x",))], pa.schema([("slot", pa.int32()), ("x", type_)])))
        counts = dict.fromkeys(("count", "nans", "infinities", "negative_infinities"), pa.int64())
        states = pa.array([{"sum": 2, **dict.fromkeys(counts, 0), "count": 2}], pa.struct({"sum": type_, **counts}))
        identity = fold.schema.field("state_0").metadata
        if version == "2":
            identity = {**identity, b"version": b"1", b"fingerprint": b"0123456789abcdef"}
        schema = pa.schema([("slot", pa.int32()), pa.field("state_0", states.type, metadata=identity)])
        fold.merge_states(pa.RecordBatch.from_arrays([pa.array(SLOT), states], schema=schema))
        results = fold.collect()
        assert results.column("output_0").to_pylist() == [2]
        assert results.schema.field("state_0").metadata[b"version"].decode() == version
        assert fold.modes == ("vectorised",)


@pytest.mark.parametrize(
    ("name", "type_", "fingerprint"),
    [
        ("sum", pa.int64(), "118e73f1d4c3555b"),
        ("sum", pa.decimal128(9, 2), "614ddd4acfb29173"),
        ("avg", pa.int64(), "8c190d374cda1fe5"),
        ("avg", pa.decimal128(9, 2), "f152dd7728533e35"),
    ],
)
def test_states_of_whole_numbers_and_decimals_have_not_changed(name: str, type_: pa.DataType, fingerprint: str) -> None:
    """Only the states of floats have another version: the other fingerprints are those in existing checkpoints."""
    assert bound_of(name, type_).fingerprint == fingerprint
    assert bound_of(name, pa.float32()).version == "2"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "digits",
    [b"\0", b"\0" * 4, b"\0" * 9, b"\0\0\1\0" + b"\1" * 4, b"\xff" * 8, b"\0" * 4 + b"\1" * 4000],
    ids=["one byte", "no word", "half a word", "beyond", "below", "long"],
)
def test_digits_that_no_fold_writes_are_refused(digits: bytes, form: str) -> None:
    """A malformed exact sum is an error."""
    state = {
        "sum": {"rounded": 1.0, "digits": digits},
        "count": 1,
        "nans": 0,
        "infinities": 0,
        "negative_infinities": 0,
    }
    bound = bound_of("sum")
    with pytest.raises(RejectedError, match="a state of sum cannot be read") as excinfo:
        FORMS[form](bound).merge(SLOT, pa.array([state], bound.state_type))
    assert excinfo.value.code == "STATE_MISMATCH"


def test_a_float_that_is_not_finite_is_no_sum() -> None:
    """An infinite float without digits is an error, too."""
    state = {"sum": {"rounded": math.inf, "digits": b""}, "count": 1, "nans": 0, "infinities": 0}
    bound = bound_of("sum")
    for form in FORMS.values():
        with pytest.raises(RejectedError, match="cannot be read"):
            form(bound).merge(SLOT, pa.array([{**state, "negative_infinities": 0}], bound.state_type))
