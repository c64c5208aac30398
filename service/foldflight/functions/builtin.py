"""The built-in functions, written as authors write theirs.

Results follow Spark SQL: `sum` of integers is BIGINT and fails on overflow, `avg` of decimals has four more digits, NaN
is greater than any number, variance and deviation of too few rows are NULL.

The scalar methods define a function. Functions of numbers and booleans have vectorised methods, too (see `udaf`), which
fold whole chunks with NumPy and give bit-identical results. Decimals, texts and sums that may exceed 64 bits are left
to the scalar methods.

Sums of floats and the results computed from them are exact and rounded once (`exact.py`), so rows may be accumulated,
retracted and merged in any order. Variances come from exact sums of values and squares.
"""

from __future__ import annotations

import decimal
import math
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.udaf import udaf
from foldflight.functions.types.exact import EXACT, UNIT_BITS, ExactSum, ExactSums, products_of, ratio
from foldflight.functions.types.sql import is_nan, is_ordered, rank, sql_name

# The range of magnitudes in which float arithmetic does not overflow or underflow.
_LEAST, _MOST = 2.0**-800, 2.0**800
_COUNT_END = 1 << 31
# Upper bound of the relative error of a quotient of pairs of floats.
_ERROR = 2.0**-95
# ruff: noqa: D101 - `udaf` documents the methods; each class documents its result.

_DIGITS_MAX = 38
_MICROSECOND = timedelta(microseconds=1)
# Signed 64-bit integers are below 2**63; integers up to 2**53 are represented exactly as floats.
_WHOLE_END = 1 << 63
_FLOAT_END = 1 << 53
ONE = np.ones(1, np.int64)
_NOWHERE = np.zeros(0, np.intp)
_SPECIAL: dict[str, Any] = {"nans": np.isnan, "infinities": np.isposinf, "negative_infinities": np.isneginf}


def _numeric(*types: pa.DataType) -> tuple[pa.DataType, ...]:
    if len(types) != 1:
        raise ValueError(f"takes one argument and was given {len(types)}")
    type_ = types[0]
    if pa.types.is_null(type_):
        return (pa.float64(),)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return (type_,)
    raise ValueError("takes numbers")


def _total_types(*types: pa.DataType) -> tuple[pa.DataType, ...]:
    if len(types) == 1 and pa.types.is_duration(types[0]):
        return (pa.duration("us"),)
    try:
        return _numeric(*types)
    except ValueError as error:
        raise ValueError(f"{error} and durations" if len(types) == 1 else str(error)) from None


def _at_most_one(*types: pa.DataType) -> tuple[pa.DataType, ...]:
    if len(types) > 1:
        raise ValueError(f"takes no argument (all rows) or one, and was given {len(types)}")
    return types


def _sum_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_):
        return pa.decimal128(min(type_.precision + 10, _DIGITS_MAX), type_.scale)
    if pa.types.is_duration(type_):
        return type_
    return pa.float64() if pa.types.is_floating(type_) else pa.int64()


def _avg_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_):
        # As Spark does: four digits more behind the point, also if fewer are left before it.
        return pa.decimal128(min(type_.precision + 4, _DIGITS_MAX), min(type_.scale + 4, _DIGITS_MAX))
    return type_ if pa.types.is_duration(type_) else pa.float64()


def _sum_state(type_: pa.DataType) -> pa.DataType:
    special = [("nans", pa.int64()), ("infinities", pa.int64()), ("negative_infinities", pa.int64())]
    if pa.types.is_floating(type_):
        sum_type = EXACT
    else:
        sum_type = pa.decimal128(_DIGITS_MAX, type_.scale) if pa.types.is_decimal(type_) else pa.int64()
    # A sum of durations is in `span`, so that one of nothing but zeros is a duration, too.
    span = [("span", type_)] if pa.types.is_duration(type_) else []
    return pa.struct([("sum", sum_type), ("count", pa.int64()), *special, *span])


def _avg_state(type_: pa.DataType) -> pa.DataType:
    state = _sum_state(type_)
    if not pa.types.is_integer(type_):
        return state
    # The average of BIGINTs fits BIGINT even if their sum does not.
    return pa.struct([pa.field("sum", pa.decimal128(_DIGITS_MAX, 0)), *list(state)[1:]])


def _state_version(type_: pa.DataType) -> str:
    """Return the version of the states of `sum` and `avg`. In version 1, sums of floats were plain floats."""
    return "2" if pa.types.is_floating(type_) else "1"


def fits(totals: Any, slots: Any, amounts: Any) -> bool:
    """Return whether `held[slots] += amounts`, one after the other, certainly stays within 64 bits at every step."""
    if not len(slots):
        return True
    near = totals if len(totals) <= len(slots) else totals[slots]
    most, each = _most(near), _most(amounts)
    if most + each * len(slots) < _WHOLE_END:
        return True
    if amounts.dtype == np.uint64 and each >= _WHOLE_END:
        return False
    # The rounding error of the float sums is far below half of the bound.
    amount_sums = np.bincount(slots, np.abs(amounts.astype(np.float64)))
    return most + float(amount_sums.max()) < _WHOLE_END // 2


def _most(numbers: Any) -> int:
    return max(int(numbers.max()), -int(numbers.min()))


def running_totals(slots: Any, *sums: tuple[Any, Any]) -> list[Any]:
    """Return for each pair of held sums and n amounts: the sum of the slot after each of n rows."""
    order = np.argsort(slots, kind="stable")
    begins = np.flatnonzero(np.diff(slots[order], prepend=-1))
    sizes = np.diff(begins, append=len(slots))
    values = []
    for totals, amounts in sums:
        sorted_amounts = amounts[order]
        # The sums over all slots may wrap; their differences are right all the same.
        running_sums = np.cumsum(sorted_amounts)
        start = totals[slots[order[begins]]] - (running_sums[begins] - sorted_amounts[begins])
        after = np.empty(len(slots), np.int64)
        after[order] = running_sums + np.repeat(start, sizes)
        values.append(after)
    return values


def merge_members(accumulators: Any, slots: Any, others: Any, names: tuple[str, ...]) -> Any:
    """Add the named members; return NotImplemented, before any change, if integers may exceed 64 bits."""
    for name in names:
        if not isinstance(others[name], ExactSums) and not fits(accumulators[name], slots, others[name]):
            return NotImplemented
    for name in names:
        if isinstance(others[name], ExactSums):
            accumulators[name].merge(slots, others[name])
        else:
            np.add.at(accumulators[name], slots, others[name])
    return None


class Total:
    """A sum that supports retraction. NaN and infinities are counted, because a sum that holds them cannot lose them.

    From the first float on, the sum is an `ExactSum`. Durations are added in `span`, which is None before the first.
    """

    span: timedelta | None = None
    sum: Any
    count: int
    nans: int
    infinities: int
    negative_infinities: int

    def __init__(self) -> None:
        self.sum = 0
        self.count = self.nans = self.infinities = self.negative_infinities = 0

    def add(self, value: Any, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) one value."""
        self.count += sign
        if isinstance(value, float):
            self.add_float(value, sign)
        elif isinstance(value, timedelta):
            self.span = sign * value if self.span is None else self.span + sign * value
        else:
            self.sum += sign * value

    def add_float(self, value: float, sign: int) -> None:
        """Add or remove a float without changing `count`."""
        if math.isfinite(value):
            if not isinstance(self.sum, ExactSum):
                self.sum = ExactSum()
            self.sum.add(value, sign)
        elif value != value:  # noqa: PLR0124 - only NaN differs from itself
            self.nans += sign
        elif value > 0:
            self.infinities += sign
        else:
            self.negative_infinities += sign

    def combine(self, other: Total) -> None:
        """Add another total."""
        if not isinstance(other.sum, ExactSum):
            self.sum += other.sum
        elif isinstance(self.sum, ExactSum):
            self.sum.merge(other.sum)
        else:
            self.sum = other.sum
        if other.span is not None:
            self.span = other.span if self.span is None else self.span + other.span
        self.count += other.count
        self.nans += other.nans
        self.infinities += other.infinities
        self.negative_infinities += other.negative_infinities

    def value(self) -> Any:
        """Return the sum, including NaN and infinities."""
        if self.span is not None:
            return self.span
        if self.nans or (self.infinities and self.negative_infinities):
            return math.nan
        if self.infinities:
            return math.inf
        if self.negative_infinities:
            return -math.inf
        return self.sum.value() if isinstance(self.sum, ExactSum) else self.sum


@udaf(input_types=_at_most_one, result_type="BIGINT", name="count", skip_nulls=True, invertible=True)
class Count:
    """Count rows, or the rows in which the argument is not NULL."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, *value: Any) -> int:
        return accumulator + 1 if not value or value[0] is not None else accumulator

    def retract(self, accumulator: int, *value: Any) -> int:
        return accumulator - 1 if not value or value[0] is not None else accumulator

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, *_: Any) -> Any:
        if not fits(accumulators, slots, ONE):
            return NotImplemented
        np.add.at(accumulators, slots, signs)
        return None

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> Any:
        if not fits(accumulators, slots, others):
            return NotImplemented
        np.add.at(accumulators, slots, others)
        return None

    def get_values(self, accumulators: Any) -> Any:
        return accumulators

    def running_many(self, accumulators: Any, slots: Any, signs: Any, *_: Any) -> Any:
        return running_totals(slots, (accumulators, signs))[0] if fits(accumulators, slots, ONE) else NotImplemented


class _TotalBase:
    """The common part of `sum` and `avg`."""

    def create_accumulator(self) -> Total:
        return Total()

    def accumulate(self, accumulator: Total, value: Any) -> None:
        accumulator.add(value, 1)

    def retract(self, accumulator: Total, value: Any) -> None:
        accumulator.add(value, -1)

    def merge(self, accumulator: Total, other: Total) -> None:
        accumulator.combine(other)

    def migrate(self, version: str, state: dict[str, Any]) -> Total:  # noqa: ARG002 - version 1 is the only earlier one
        """Convert a state of version 1, whose sum was a plain float."""
        total = Total()
        total.count, total.nans = state["count"], state["nans"]
        total.infinities, total.negative_infinities = state["infinities"], state["negative_infinities"]
        total.add_float(state["sum"], 1)
        return total

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> Any:
        if not isinstance(values, np.ndarray) or not fits(accumulators["count"], slots, ONE):
            return NotImplemented
        sums = accumulators["sum"]
        if isinstance(sums, ExactSums):
            finite = np.isfinite(values)
            if not finite.all():
                return self.fold_special(accumulators, slots, signs, values, finite)
            sums.add(slots, values, signs)
        else:
            if not fits(sums, slots, values):
                return NotImplemented
            np.add.at(sums, slots, signs * values.astype(np.int64, copy=False))
        np.add.at(accumulators["count"], slots, signs)
        return None

    def running_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> Any:
        sums, counts = accumulators["sum"], accumulators["count"]
        if isinstance(sums, ExactSums) or not isinstance(values, np.ndarray):
            return NotImplemented
        amounts = np.ma.getdata(values)
        if not fits(counts, slots, ONE) or not fits(sums, slots, amounts):
            return NotImplemented
        amounts = signs * amounts.astype(np.int64, copy=False)
        after = running_totals(slots, (sums, amounts), (counts, signs))
        special = {name: accumulators[name][slots] for name in _SPECIAL}
        return {"sum": after[0], "count": after[1], **special}

    def fold_special(self, accumulators: Any, slots: Any, signs: Any, values: Any, finite: Any) -> Any:
        """Fold floats some of which are NaN or infinite."""
        if not all(fits(accumulators[name], slots, ONE) for name in _SPECIAL):
            return NotImplemented
        signs = np.broadcast_to(signs, len(slots))
        for name, which in _SPECIAL.items():
            indexes = which(values)
            np.add.at(accumulators[name], slots[indexes], signs[indexes])
        np.add.at(accumulators["count"], slots, signs)
        accumulators["sum"].add(slots[finite], values[finite], signs[finite])
        return None

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> Any:
        return merge_members(accumulators, slots, others, ("sum", "count", *_SPECIAL))

    def totals(self, accumulators: Any) -> Any:
        """Return the values of n totals, as `Total.value` does."""
        sums, positive, negative = accumulators["sum"], accumulators["infinities"], accumulators["negative_infinities"]
        if not isinstance(sums, ExactSums):
            return sums
        sums = np.where(negative != 0, -math.inf, sums.values())
        sums = np.where(positive != 0, math.inf, sums)
        return np.where((accumulators["nans"] != 0) | ((positive != 0) & (negative != 0)), math.nan, sums)


@udaf(
    input_types=_total_types,
    result_type=_sum_type,
    state_type=_sum_state,
    version=_state_version,
    skip_nulls=True,
    invertible=True,
)
class Sum(_TotalBase):
    """Add up the argument; NULL if there is no value. The sum of floats is exact and rounded once."""

    def get_value(self, accumulator: Total) -> Any:
        return accumulator.value() if accumulator.count else None

    def get_values(self, accumulators: Any) -> Any:
        return np.ma.array(self.totals(accumulators), mask=accumulators["count"] == 0)


@udaf(
    input_types=_total_types,
    result_type=_avg_type,
    state_type=_avg_state,
    version=_state_version,
    skip_nulls=True,
    invertible=True,
)
class Avg(_TotalBase):
    """Average the argument; NULL if there is no value."""

    def get_value(self, accumulator: Total) -> Any:
        if not accumulator.count:
            return None
        total = accumulator.value()
        if isinstance(total, decimal.Decimal):
            return total / decimal.Decimal(accumulator.count)
        if isinstance(total, timedelta):  # halves are rounded away from zero, as in Spark
            size = (2 * (abs(total) // _MICROSECOND) + accumulator.count) // (2 * accumulator.count)
            return timedelta(microseconds=size if total > timedelta(0) else -size)
        return total / accumulator.count

    def get_values(self, accumulators: Any) -> Any:
        totals, counts = self.totals(accumulators), accumulators["count"]
        none = counts == 0
        averages = totals / np.where(none, 1, counts)
        if totals.dtype.kind != "f":
            # NumPy divides floats. For integers beyond 2**53, only Python's division rounds once.
            wide = ~((totals < _FLOAT_END) & (totals > -_FLOAT_END) & (counts < _FLOAT_END) & (counts > -_FLOAT_END))
            for index in np.flatnonzero(wide & ~none).tolist():
                averages[index] = int(totals[index]) / int(counts[index])
        return np.ma.array(averages, mask=none)


class Extreme:
    """A value, and whether there is one."""

    value: Any
    seen: bool

    def __init__(self) -> None:
        self.value = None
        self.seen = False


class _ExtremeBase:
    """The common part of `min` and `max`. NaN is greater than any other number, as in Spark and PostgreSQL.

    Structs and arrays are compared member by member (`rank`), so `max` of `struct(at, value)` is the latest row.
    """

    def create_accumulator(self) -> Extreme:
        return Extreme()

    def wins(self, value: Any, current: Any) -> bool:
        raise NotImplementedError

    def accumulate(self, accumulator: Extreme, value: Any) -> None:
        if not accumulator.seen or self.wins(value, accumulator.value):
            accumulator.value = value
            accumulator.seen = True

    def merge(self, accumulator: Extreme, other: Extreme) -> None:
        if other.seen:
            self.accumulate(accumulator, other.value)

    def get_value(self, accumulator: Extreme) -> Any:
        return accumulator.value

    def choose(self, floating: bool) -> np.ufunc:
        """Return the ufunc that chooses between two values that are not NULL."""
        raise NotImplementedError

    def fold_many(self, accumulators: Any, slots: Any, _: Any, values: Any) -> Any:
        seen_flags, current = accumulators["seen"], accumulators["value"]
        if not isinstance(values, np.ndarray):  # decimals, which may exceed 64 bits
            return NotImplemented
        values = values.astype(current.dtype, copy=False)
        unseen_rows = np.flatnonzero(~seen_flags[slots])[::-1]
        if len(unseen_rows):
            # NumPy keeps the last of several values for one slot. The rows are reversed, so that the first row wins.
            current[slots[unseen_rows]] = values[unseen_rows]
            seen_flags[slots[unseen_rows]] = accumulators["value?"][slots[unseen_rows]] = True
        floating = current.dtype.kind == "f"
        zeros = np.flatnonzero(values == 0)[::-1] if floating else _NOWHERE
        before = current[slots[zeros]]
        self.choose(floating).at(current, slots, values)
        if len(zeros):
            # 0.0 and -0.0 are equal: the one that was folded first stays.
            is_zero = current[slots[zeros]] == 0
            for indexes, zero_values in ((is_zero & (before != 0), values[zeros]), (is_zero & (before == 0), before)):
                current[slots[zeros[indexes]]] = zero_values[indexes]
        return None

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> Any:
        seen_flags = others["seen"]
        return self.fold_many(accumulators, slots[seen_flags], 1, others["value"][seen_flags])

    def get_values(self, accumulators: Any) -> Any:
        return np.ma.array(accumulators["value"], mask=~accumulators["value?"])


def _compared_state(type_: pa.DataType) -> pa.DataType:
    if not is_ordered(type_):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"min and max take values that have an order, and {sql_name(type_)} has none (maps and JSON cannot be "
            "compared); give a part of it, or its text",
        )
    return pa.struct([("value", type_), ("seen", pa.bool_())])


@udaf(input_types=["T"], result_type="T", state_type=_compared_state, skip_nulls=True)
class Min(_ExtremeBase):
    """Find the least value; NULL if there is no value."""

    def wins(self, value: Any, current: Any) -> bool:
        if isinstance(value, (dict, list)):
            return bool(rank(value) < rank(current))
        return bool(value < current) or (is_nan(current) and not is_nan(value))

    def choose(self, floating: bool) -> np.ufunc:
        return np.fmin if floating else np.minimum


@udaf(input_types=["T"], result_type="T", state_type=_compared_state, skip_nulls=True)
class Max(_ExtremeBase):
    """Find the greatest value; NULL if there is no value."""

    def wins(self, value: Any, current: Any) -> bool:
        if isinstance(value, (dict, list)):
            return bool(rank(value) > rank(current))
        return bool(value > current) or (is_nan(value) and not is_nan(current))

    def choose(self, floating: bool) -> np.ufunc:  # noqa: ARG002 - np.maximum keeps NaN, which is the greatest
        return np.maximum


class Votes:
    true: int
    false: int

    def __init__(self) -> None:
        self.true = self.false = 0

    def add(self, value: bool, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) one value."""
        if value:
            self.true += sign
        else:
            self.false += sign


class _VoteBase:
    def create_accumulator(self) -> Votes:
        return Votes()

    def accumulate(self, accumulator: Votes, value: bool) -> None:
        accumulator.add(value, 1)

    def retract(self, accumulator: Votes, value: bool) -> None:
        accumulator.add(value, -1)

    def merge(self, accumulator: Votes, other: Votes) -> None:
        accumulator.true += other.true
        accumulator.false += other.false

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> Any:
        votes = {"true": values, "false": ~values}
        if not all(fits(accumulators[name], slots, ONE) for name in votes):
            return NotImplemented
        for name, column in votes.items():
            np.add.at(accumulators[name], slots, signs * column.astype(np.int64))
        return None

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> Any:
        return merge_members(accumulators, slots, others, ("true", "false"))


@udaf(input_types=["BOOLEAN"], result_type="BOOLEAN", skip_nulls=True, invertible=True)
class BoolAnd(_VoteBase):
    """Return whether every value is true; NULL if there is no value."""

    def get_value(self, accumulator: Votes) -> bool | None:
        return accumulator.false == 0 if accumulator.true or accumulator.false else None

    def get_values(self, accumulators: Any) -> Any:
        true, false = accumulators["true"], accumulators["false"]
        return np.ma.array(false == 0, mask=(true == 0) & (false == 0))


@udaf(input_types=["BOOLEAN"], result_type="BOOLEAN", skip_nulls=True, invertible=True)
class BoolOr(_VoteBase):
    """Return whether any value is true; NULL if there is no value."""

    def get_value(self, accumulator: Votes) -> bool | None:
        return accumulator.true != 0 if accumulator.true or accumulator.false else None

    def get_values(self, accumulators: Any) -> Any:
        true, false = accumulators["true"], accumulators["false"]
        return np.ma.array(true != 0, mask=(true == 0) & (false == 0))


class _PickBase:
    """The common part of `first` and `last`. The engine decides the order of rows, so they are not deterministic."""

    def __init__(self, ignore_nulls: bool = False) -> None:
        self.ignore_nulls = ignore_nulls

    def create_accumulator(self) -> Extreme:
        return Extreme()

    def get_value(self, accumulator: Extreme) -> Any:
        return accumulator.value


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", deterministic=False)
class First(_PickBase):
    """Take the value of the first row. With `ignore_nulls`, rows whose value is NULL are skipped."""

    def accumulate(self, accumulator: Extreme, value: Any) -> None:
        if not accumulator.seen and not (value is None and self.ignore_nulls):
            accumulator.value = value
            accumulator.seen = True

    def merge(self, accumulator: Extreme, other: Extreme) -> None:
        if other.seen:
            self.accumulate(accumulator, other.value)


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", deterministic=False)
class Last(_PickBase):
    """Take the value of the last row. With `ignore_nulls`, rows whose value is NULL are skipped."""

    def accumulate(self, accumulator: Extreme, value: Any) -> None:
        if not (value is None and self.ignore_nulls):
            accumulator.value = value
            accumulator.seen = True

    def merge(self, accumulator: Extreme, other: Extreme) -> None:
        if other.seen:
            self.accumulate(accumulator, other.value)


@udaf(input_types=["STRING"], result_type="STRING", skip_nulls=True, deterministic=False)
class StringAgg:
    """Join the strings with `delimiter` between them; NULL if there are none."""

    def __init__(self, delimiter: str = ",") -> None:
        self.delimiter = delimiter

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator: list[str], value: str) -> None:
        accumulator.append(value)

    def merge(self, accumulator: list[str], other: list[str]) -> None:
        accumulator.extend(other)

    def get_value(self, accumulator: list[str]) -> str | None:
        return self.delimiter.join(accumulator) if accumulator else None


class Moments:
    """The count of values, their sum and the sum of their squares. NaN and infinities are counted separately."""

    count: int
    sum: ExactSum
    squares: ExactSum
    not_finite: int

    def __init__(self) -> None:
        self.count = self.not_finite = 0
        self.sum, self.squares = ExactSum(), ExactSum()

    def add(self, value: float, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) one value."""
        if math.isfinite(value):
            self.count += sign
            self.sum.add(value, sign)
            self.squares.add_product(value, value, sign)
        else:
            self.not_finite += sign


def _variance(count: int, divisor: int, total: int, squares: int) -> float:
    """Return (squares - total * total / count) / divisor, rounded once. Both sums are in units of `ExactSum`."""
    deviations = (count * squares << UNIT_BITS) - total * total
    return ratio(max(deviations, 0), count * divisor << 2 * UNIT_BITS)


class _Variance:
    """The common part of variances and standard deviations."""

    sample = True
    root = False

    def create_accumulator(self) -> Moments:
        return Moments()

    def accumulate(self, accumulator: Moments, value: float) -> None:
        accumulator.add(value, 1)

    def retract(self, accumulator: Moments, value: float) -> None:
        accumulator.add(value, -1)

    def merge(self, accumulator: Moments, other: Moments) -> None:
        accumulator.count += other.count
        accumulator.not_finite += other.not_finite
        accumulator.sum.merge(other.sum)
        accumulator.squares.merge(other.squares)

    def migrate(self, version: str, state: dict[str, Any]) -> Moments:  # noqa: ARG002 - version 1 is the only earlier one
        """Convert a state of version 1: a rounded mean and a rounded sum of squared deviations."""
        moments = Moments()
        moments.count, moments.not_finite = state["count"], state["not_finite"]
        if not (math.isfinite(state["mean"]) and math.isfinite(state["squares"])):
            # Version 1 could not recover from values outside the range of floats.
            moments.not_finite += 1
            return moments
        moments.sum.units = moments.count * ExactSum(state["mean"]).units
        moments.squares.add_product(state["mean"], state["mean"])
        moments.squares.units *= moments.count
        moments.squares.add(state["squares"])
        return moments

    def get_value(self, accumulator: Moments) -> float | None:
        rows = accumulator.count + accumulator.not_finite
        divisor = rows - 1 if self.sample else rows
        if divisor < 1:
            return None
        if accumulator.not_finite:
            return math.nan
        variance = _variance(accumulator.count, divisor, accumulator.sum.units, accumulator.squares.units)
        return math.sqrt(variance) if self.root else variance

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> Any:
        if not fits(accumulators["count"], slots, ONE) or not fits(accumulators["not_finite"], slots, ONE):
            return NotImplemented
        finite = np.isfinite(values)
        if not finite.all():
            signs = np.broadcast_to(signs, len(slots))
            np.add.at(accumulators["not_finite"], slots[~finite], signs[~finite])
            slots, signs, values = slots[finite], signs[finite], values[finite]
        np.add.at(accumulators["count"], slots, signs)
        accumulators["sum"].add(slots, values, signs)
        accumulators["squares"].add_products(slots, values, values, signs)
        return None

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> Any:
        return merge_members(accumulators, slots, others, ("count", "not_finite", "sum", "squares"))

    def get_values(self, accumulators: Any) -> Any:
        count, not_finite = accumulators["count"], accumulators["not_finite"]
        rows = count + not_finite
        divisor = rows - 1 if self.sample else rows
        none = divisor < 1
        variance, sure = _variances(count, divisor, accumulators["sum"], accumulators["squares"])
        for slot in np.flatnonzero(~sure & ~none & (not_finite == 0)).tolist():
            units = accumulators["sum"].units(slot), accumulators["squares"].units(slot)
            variance[slot] = _variance(int(count[slot]), int(divisor[slot]), *units)
        variance = np.where(not_finite != 0, math.nan, variance)
        return np.ma.array(np.sqrt(variance) if self.root else variance, mask=none)


def _variances(count: Any, divisor: Any, sums: ExactSums, squares: ExactSums) -> tuple[Any, Any]:
    """Return the variances of n groups, and which of them are certainly equal to the results of `_variance`.

    The numerator is exact. A quotient of pairs of floats rounds to the same float as the exact quotient if no rounding
    boundary lies within its error. Source: Abraham Ziv, "Fast evaluation of elementary mathematical functions with
    correctly rounded last bit" (1991).
    """
    every = np.arange(len(count))
    total, total_rest, rest = _pairs(sums)
    sure = (rest.values() == 0) & (np.abs(total) < _MOST) & (count >= 0) & (count < _COUNT_END)
    total, total_rest = np.where(sure, total, 0.0), np.where(sure, total_rest, 0.0)
    deviations = squares.times(np.where(sure, count, 0))
    deviations.add_products(every, total, total, -1)
    deviations.add_products(every, total, total_rest, -2)
    deviations.add_products(every, total_rest, total_rest, -1)
    numerator, numerator_rest, _ = _pairs(deviations)
    sure &= (numerator == 0) | ((np.abs(numerator) > _LEAST) & (np.abs(numerator) < _MOST))
    denominator, denominator_rest = products_of(count * 1.0, divisor * 1.0)
    quotient = numerator / denominator
    back, back_rest = products_of(quotient, denominator)
    more = ((numerator - back) - back_rest + numerator_rest - quotient * denominator_rest) / denominator
    variance = quotient + more
    correction, error = more - (variance - quotient), _ERROR * np.abs(variance)
    sure &= (variance + (correction - error) == variance) & (variance + (correction + error) == variance)
    return np.maximum(variance, 0.0), sure


def _pairs(sums: ExactSums) -> tuple[Any, Any, ExactSums]:
    """Return the floats nearest to n sums, the floats nearest to the remainders, and the remainders of these."""
    every = np.arange(len(sums))
    rest, parts = sums.take(every), []
    for _ in range(2):
        part = rest.values()
        rest.add(every, np.where(np.isfinite(part), part, 0.0), -1)
        parts.append(part)
    return parts[0], parts[1], rest


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", version="2", skip_nulls=True, invertible=True)
class VarSamp(_Variance):
    """Estimate the variance from a sample (divisor n - 1); NULL for fewer than two values."""


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", version="2", skip_nulls=True, invertible=True)
class Variance(_Variance):
    """Alias of `var_samp`."""


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", version="2", skip_nulls=True, invertible=True)
class VarPop(_Variance):
    """Compute the variance of a whole population (divisor n); NULL if there is no value."""

    sample = False


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", version="2", skip_nulls=True, invertible=True)
class StddevSamp(_Variance):
    """Estimate the standard deviation from a sample; NULL for fewer than two values."""

    root = True


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", version="2", skip_nulls=True, invertible=True)
class Stddev(_Variance):
    """Alias of `stddev_samp`."""

    root = True


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", version="2", skip_nulls=True, invertible=True)
class StddevPop(_Variance):
    """Compute the standard deviation of a whole population; NULL if there is no value."""

    sample = False
    root = True
