"""Vectorised folds equal the interpreter's: states, outputs and errors, bit for bit, for any rows."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.gallery.percentile import Percentile
from examples.largest import Largest
from examples.weighted_mean import WeightedMean
from foldflight import ExactSum, RejectedError, udaf
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.aggregate.vectorised_accumulators import VectorisedAccumulators, vectorised_accumulators
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundFunction
from tests.effort import examples
from tests.laws.alike import REAL, VALUES, folds_alike, interpret, same, sums_are_exact

ZONED = pa.timestamp("us", "UTC")
NOON = dt.datetime(2013, 1, 2, 12)
SAMPLES = VALUES | {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1)),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(max_size=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    ZONED: st.datetimes(min_value=NOON).map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    pa.timestamp("ns"): st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)),
    pa.decimal128(5, 0): st.integers(-99, 99).map(Decimal),
    pa.decimal128(10, 2): st.integers(-99, 99).map(lambda cents: Decimal(cents).scaleb(-2)),
}


class Spread:
    low: float | None
    total: int
    rows: int

    def __init__(self) -> None:
        self.low = None
        self.total = self.rows = 0


@udaf
class Spreads:
    """An author's class with NULL arguments and an optional attribute."""

    def __init__(self, step: int = 2) -> None:
        self.step = step

    def create_accumulator(self) -> Spread:
        return Spread()

    def accumulate(self, accumulator: Spread, value: float, weight: int) -> None:
        if value is not None and (accumulator.low is None or value < accumulator.low):
            accumulator.low = value
        accumulator.total += 0 if weight is None else weight * self.step
        accumulator.rows += 1

    def merge(self, accumulator: Spread, other: Spread) -> None:
        if other.low is not None and (accumulator.low is None or other.low < accumulator.low):
            accumulator.low = other.low
        accumulator.total += other.total
        accumulator.rows += other.rows

    def get_value(self, accumulator: Spread) -> int | None:
        return None if accumulator.low is None else accumulator.total // accumulator.rows

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any, weights: Any) -> Any:
        assert signs == 1
        weights = np.ma.filled(weights, 0)
        if len(weights) and max(int(weights.max()), -int(weights.min())) >= 1 << 40:
            return NotImplemented
        self.lower(accumulators, slots[~np.ma.getmaskarray(values)], np.ma.compressed(values))
        np.add.at(accumulators["total"], slots, weights.astype(np.int64) * self.step)
        np.add.at(accumulators["rows"], slots, 1)
        return None

    def lower(self, accumulators: Any, slots: Any, values: Any) -> None:
        for slot, value in zip(slots.tolist(), values.tolist(), strict=True):
            if not accumulators["low?"][slot] or value < accumulators["low"][slot]:
                accumulators["low"][slot], accumulators["low?"][slot] = value, True

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> None:
        self.lower(accumulators, slots[others["low?"]], others["low"][others["low?"]])
        for name in ("total", "rows"):
            np.add.at(accumulators[name], slots, others[name])

    def get_values(self, accumulators: Any) -> Any:
        values = accumulators["total"] // np.maximum(accumulators["rows"], 1)
        return np.ma.array(values, mask=~accumulators["low?"])


class Journal:
    days: list[dt.date]
    last: int | None
    at: list[dt.datetime]
    total: ExactSum

    def __init__(self) -> None:
        self.days, self.last, self.at, self.total = [], None, [], ExactSum()


@udaf(result_type="BIGINT")
class Journals:
    """An author's class with two lists, an optional number and an exact sum in one accumulator."""

    def create_accumulator(self) -> Journal:
        return Journal()

    def accumulate(self, accumulator: Journal, day: dt.date, amount: float, at: dt.datetime) -> None:
        if day is not None:
            accumulator.days.append(day)
            accumulator.last = len(accumulator.days)
        if amount is not None and abs(amount) < math.inf:
            accumulator.total.add(amount)
        if at is not None:
            accumulator.at.append(at)
            accumulator.at.sort(reverse=True)
            del accumulator.at[2:]

    def retract(self, accumulator: Journal, day: dt.date, amount: float, at: dt.datetime) -> None:
        if day is not None:
            accumulator.days.remove(day)
            accumulator.last = len(accumulator.days)
        if amount is not None and abs(amount) < math.inf:
            accumulator.total.add(amount, -1)

    def merge(self, accumulator: Journal, other: Journal) -> None:
        accumulator.days.extend(other.days)
        accumulator.last = len(accumulator.days)
        accumulator.total.merge(other.total)
        accumulator.at.extend(other.at)
        accumulator.at.sort(reverse=True)
        del accumulator.at[2:]

    def get_value(self, accumulator: Journal) -> int:
        return len(accumulator.days) + (accumulator.total.value() > 0)

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, days: Any, amounts: Any, ats: Any) -> Any:
        signs = np.broadcast_to(signs, len(slots))
        has_day = ~np.ma.getmaskarray(days)
        if accumulators["days"].update(slots[has_day], np.ma.getdata(days)[has_day], signs[has_day]) is NotImplemented:
            return NotImplemented
        accumulators["last"][slots[has_day]] = accumulators["days"].lengths[slots[has_day]]
        accumulators["last?"][slots[has_day]] = True
        finite = np.isfinite(np.ma.filled(amounts, np.nan))
        accumulators["total"].add(slots[finite], np.ma.getdata(amounts)[finite], signs[finite])
        there = ~np.ma.getmaskarray(ats) & (signs > 0)
        accumulators["at"].update(slots[there], np.ma.getdata(ats)[there])
        accumulators["at"].keep_largest(2)
        return None

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> None:
        accumulators["days"].extend(slots, others["days"])
        accumulators["last"][slots] = accumulators["days"].lengths[slots]
        accumulators["last?"][slots] = True
        accumulators["total"].merge(slots, others["total"])
        accumulators["at"].extend(slots, others["at"])
        accumulators["at"].keep_largest(2)

    def get_values(self, accumulators: Any) -> Any:
        assert len(accumulators) == len(accumulators["last"])
        return accumulators["days"].lengths + (accumulators["total"].values() > 0)


FUNCTIONS = Registry.load([Spreads, WeightedMean, Percentile, Largest, Journals])
NUMBERS = [pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()]
CASES: list[tuple[str, list[pa.DataType]]] = [
    ("count", []),
    ("count", [pa.float64()]),
    ("count", [pa.string()]),
    *((name, [type_]) for name in ("sum", "avg") for type_ in (*NUMBERS, pa.decimal128(5, 0))),
    *(
        (name, [type_])
        for name in ("min", "max")
        for type_ in (*NUMBERS, pa.bool_(), pa.date32(), pa.timestamp("us"), ZONED)
    ),
    ("bool_and", [pa.bool_()]),
    ("bool_or", [pa.bool_()]),
    ("spreads", [pa.float64(), pa.int64()]),
    ("weighted_mean", [pa.float64(), pa.float64()]),
    *((name, [pa.float64()]) for name in ("var_pop", "var_samp", "stddev", "stddev_pop", "percentile", "largest")),
    ("journals", [pa.date32(), pa.float64(), pa.timestamp("us")]),
]
IDS = [f"{name} {', '.join(map(str, types))}" for name, types in CASES]


def bound_of(name: str, types: list[pa.DataType]) -> BoundFunction:
    return FUNCTIONS[name].bind(types, {})


def small(type_: pa.DataType) -> pa.Array:
    """Return 0, 1 and 1 in a type."""
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(0), Decimal(1), Decimal(1)], type_)
    return pa.array([0, 1, 1], pa.int32() if type_ == pa.date32() else pa.int64()).cast(type_)


def accumulators_of(bound: BoundFunction) -> VectorisedAccumulators:
    result = vectorised_accumulators(interpret(bound))
    assert result is not None
    return result


@pytest.mark.parametrize(("name", "types"), CASES, ids=IDS)
@settings(examples(50), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_vectorised_folds_equal_interpreted_ones(name: str, types: list[pa.DataType], data: st.DataObject) -> None:
    """Rows, states and values are equal, and so are errors, with their slots and rows."""
    bound = bound_of(name, types)
    folds_alike(bound, lambda: accumulators_of(bound), data, SAMPLES)


@pytest.mark.parametrize(("name", "types"), CASES, ids=IDS)
def test_the_functions_of_this_file_are_vectorised(name: str, types: list[pa.DataType]) -> None:
    """Over rows of small numbers, the functions of the law above always use the vectorised methods."""
    accumulators = accumulators_of(bound_of(name, types))
    columns = [Column(f"c{place}", small(type_)) for place, type_ in enumerate(types)]
    slots = np.array([0, 1, 0], np.int32)
    accumulators.update(Rows(slots, None, columns))
    accumulators.merge(slots, accumulators.state(slots))
    accumulators.running_values(Rows(slots, None, columns), np.array([True, False, True]))
    accumulators.evaluate(slots)
    assert accumulators.mode == ("interpreted" if any(map(pa.types.is_decimal, types)) else "vectorised")


@given(st.lists(st.tuples(st.integers(0, 2), REAL, st.booleans()), max_size=12))
def test_order_of_rows_is_kept(rows: list[tuple[int, float, bool]]) -> None:
    """Accumulated and retracted rows are processed in their order, also if floats are rounded."""
    bound = bound_of("sum", [pa.float64()])
    given_rows = Rows(
        np.array([slot for slot, _, _ in rows], np.int32),
        np.array([back for _, _, back in rows], np.bool_),
        [Column("x", pa.array([value for _, value, _ in rows], pa.float64()))],
    )
    assert same(lambda target: target.update(given_rows), one := interpret(bound), other := accumulators_of(bound))
    assert same(lambda target: target.state(np.arange(3, dtype=np.int32)), one, other)


def test_a_sum_beyond_64_bits_is_exact() -> None:
    """A sum that exceeds 64 bits and returns into range is right; one that stays out of range is OVERFLOW."""
    sums_are_exact(accumulators_of(bound_of("sum", [pa.int64()])))


def test_large_sums_of_many_groups_stay_vectorised() -> None:
    """The vectorised methods are used if the sum of each group fits 64 bits, even if the sum of all rows does not."""
    accumulators = accumulators_of(bound_of("sum", [pa.int64()]))
    slots = np.arange(1000, dtype=np.int32)
    for _ in range(3):
        accumulators.update(Rows(slots, None, [Column("x", pa.array([1 << 60] * 1000))]))
    assert accumulators.mode == "vectorised"
    assert accumulators.evaluate(slots).to_pylist() == [3 << 60] * 1000


def test_row_outputs_of_count_sum_and_avg_call_no_scalar_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value after each row is computed for whole chunks, also with retractions and rows that are not folded."""
    monkeypatch.setattr(InterpretedAccumulators, "running_values", None)
    slots, backs = np.array([1, 0, 1, 1, 0], np.int32), np.array([False, False, False, True, False])
    rows = Rows(slots, backs, [Column("x", pa.array([5, 7, 3, 5, None], pa.int64()))])
    for name, expected in (("count", [1, 1, 2, 1, 1]), ("sum", [5, 7, 8, 3, 7]), ("avg", [5.0, 7.0, 4.0, 3.0, 7.0])):
        accumulators = accumulators_of(bound_of(name, [pa.int64()]))
        assert accumulators.running_values(rows, np.array([True, True, True, True, False])).to_pylist() == expected
        assert accumulators.evaluate(np.array([0, 1], np.int32)).to_pylist() == [expected[1], expected[3]]


def test_a_retraction_that_is_not_folded_needs_no_retract() -> None:
    """A filter may exclude the retractions of an append-only function, also where each row has an output."""
    name, types = next((name, types) for name, types in CASES if not FUNCTIONS[name].capabilities.retract)
    slots, backs = np.zeros(3, np.int32), np.array([False, False, True])
    rows = Rows(slots, backs, [Column(f"c{place}", small(type_)) for place, type_ in enumerate(types)])
    result = accumulators_of(bound_of(name, types)).running_values(rows, ~backs)
    assert result.equals(interpret(bound_of(name, types)).running_values(rows, ~backs))
    with pytest.raises(RejectedError, match="CANNOT_RETRACT"):
        accumulators_of(bound_of(name, types)).running_values(rows, np.ones(3, np.bool_))


def test_row_outputs_beyond_64_bits_are_exact() -> None:
    """A sum that leaves 64 bits within a chunk and comes back has the right value after each row, and goes on."""
    accumulators = accumulators_of(bound_of("sum", [pa.int64()]))
    slots, backs = np.zeros(3, np.int32), np.array([False, False, True])
    largest = pa.array([1 << 62, (1 << 62) - 1, 1 << 62], pa.int64())
    everything = np.ones(3, np.bool_)
    result = accumulators.running_values(Rows(slots, backs, [Column("x", largest)]), everything)
    assert result.to_pylist() == [1 << 62, (1 << 63) - 1, (1 << 62) - 1]
    assert accumulators.mode == "vectorised"
    assert accumulators.evaluate(slots[:1]).to_pylist() == [(1 << 62) - 1]


def test_texts_and_nanoseconds_are_not_vectorised() -> None:
    """Types without a record, or whose values would lose digits, use the scalar methods."""
    for type_ in (pa.string(), pa.decimal128(10, 2), pa.timestamp("ns")):
        assert vectorised_accumulators(interpret(bound_of("min", [type_]))) is None
