"""The built-in functions, written as an author would write them.

Results follow Spark SQL: `sum` of whole numbers is BIGINT and fails on overflow, `avg` of decimals has four more
digits, NaN is greater than any number, variance and deviation of too few rows are NULL.
"""

from __future__ import annotations

import decimal
import math
from typing import Any

import pyarrow as pa

from foldflight.functions.decorators import udaf

# ruff: noqa: D101 - the verbs are described once, in `udaf`; each class says what it computes.

_DIGITS_MAX = 38
# Python's own context would round a sum to 28 digits without a word; twice the digits of a type hold any sum exactly.
_EXACT = decimal.Context(prec=2 * _DIGITS_MAX)


def _numeric(*types: pa.DataType) -> tuple[pa.DataType, ...]:
    if len(types) != 1:
        raise ValueError(f"takes one argument and was given {len(types)}")
    type_ = types[0]
    if pa.types.is_null(type_):
        return (pa.int64(),)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return (type_,)
    raise ValueError("takes numbers")


def _at_most_one(*types: pa.DataType) -> tuple[pa.DataType, ...]:
    if len(types) > 1:
        raise ValueError(f"takes no argument (all rows) or one, and was given {len(types)}")
    return types


def _sum_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_):
        return pa.decimal128(min(type_.precision + 10, _DIGITS_MAX), type_.scale)
    return pa.float64() if pa.types.is_floating(type_) else pa.int64()


def _avg_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_):
        # Spark's adjustment: keep the digits before the point, cut the scale where 38 digits do not hold both.
        precision, scale = type_.precision + 4, type_.scale + 4
        if precision > _DIGITS_MAX:
            scale = max(min(scale, 6), scale - (precision - _DIGITS_MAX))
        return pa.decimal128(min(precision, _DIGITS_MAX), scale)
    return pa.float64()


def _sum_state(type_: pa.DataType) -> pa.DataType:
    special = [("nans", pa.int64()), ("infinities", pa.int64()), ("negative_infinities", pa.int64())]
    summed = pa.decimal128(_DIGITS_MAX, type_.scale) if pa.types.is_decimal(type_) else _sum_type(type_)
    return pa.struct([("sum", summed), ("count", pa.int64()), *special])


def _avg_state(type_: pa.DataType) -> pa.DataType:
    state = _sum_state(type_)
    if not pa.types.is_integer(type_):
        return state
    # An average of BIGINTs is in their range even where their sum is not.
    return pa.struct([pa.field("sum", pa.decimal128(_DIGITS_MAX, 0)), *list(state)[1:]])


def _plus(one: Any, other: Any, sign: int = 1) -> Any:
    if isinstance(one, decimal.Decimal) or isinstance(other, decimal.Decimal):
        return _EXACT.add(one, other) if sign > 0 else _EXACT.subtract(one, other)
    return one + sign * other


class Total:
    """A sum that can be taken back: what is not finite is counted, for it would stay in the sum for ever."""

    sum: Any
    count: int
    nans: int
    infinities: int
    negative_infinities: int

    def __init__(self) -> None:
        self.sum = 0
        self.count = self.nans = self.infinities = self.negative_infinities = 0

    def add(self, value: Any, sign: int) -> None:
        """Add (sign 1) or take back (sign -1) one value."""
        self.count += sign
        if not isinstance(value, float) or math.isfinite(value):
            self.sum = _plus(self.sum, value, sign)
        elif value != value:  # noqa: PLR0124 - only NaN differs from itself
            self.nans += sign
        elif value > 0:
            self.infinities += sign
        else:
            self.negative_infinities += sign

    def combine(self, other: Total) -> None:
        """Add another total."""
        self.sum = _plus(self.sum, other.sum)
        self.count += other.count
        self.nans += other.nans
        self.infinities += other.infinities
        self.negative_infinities += other.negative_infinities

    def value(self) -> Any:
        """Return the sum, with what is not finite."""
        if self.nans or (self.infinities and self.negative_infinities):
            return math.nan
        if self.infinities:
            return math.inf
        return -math.inf if self.negative_infinities else self.sum


@udaf(input_types=_at_most_one, result_type="BIGINT", name="count", invertible=True)
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


class _Totalled:
    """What `sum` and `avg` share."""

    def create_accumulator(self) -> Total:
        return Total()

    def accumulate(self, accumulator: Total, value: Any) -> None:
        accumulator.add(value, 1)

    def retract(self, accumulator: Total, value: Any) -> None:
        accumulator.add(value, -1)

    def merge(self, accumulator: Total, other: Total) -> None:
        accumulator.combine(other)


@udaf(input_types=_numeric, result_type=_sum_type, state_type=_sum_state, skip_nulls=True, invertible=True)
class Sum(_Totalled):
    """Add up the argument; NULL without any value."""

    def get_value(self, accumulator: Total) -> Any:
        return accumulator.value() if accumulator.count else None


@udaf(input_types=_numeric, result_type=_avg_type, state_type=_avg_state, skip_nulls=True, invertible=True)
class Avg(_Totalled):
    """Average the argument; NULL without any value."""

    def get_value(self, accumulator: Total) -> Any:
        if not accumulator.count:
            return None
        total = accumulator.value()
        if isinstance(total, decimal.Decimal):
            return _EXACT.divide(total, decimal.Decimal(accumulator.count))
        return total / accumulator.count


class Extreme:
    value: Any
    seen: bool

    def __init__(self) -> None:
        self.value = None
        self.seen = False


class _Compared:
    """What `min` and `max` share; NaN is greater than any other number, as in Spark and PostgreSQL."""

    def create_accumulator(self) -> Extreme:
        return Extreme()

    def wins(self, value: Any, held: Any) -> bool:
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


def _nan(value: Any) -> bool:
    return isinstance(value, float) and value != value  # noqa: PLR0124 - only NaN differs from itself


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", skip_nulls=True)
class Min(_Compared):
    """Find the least value; NULL without any."""

    def wins(self, value: Any, held: Any) -> bool:
        return bool(value < held) or (_nan(held) and not _nan(value))


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", skip_nulls=True)
class Max(_Compared):
    """Find the greatest value; NULL without any."""

    def wins(self, value: Any, held: Any) -> bool:
        return bool(value > held) or (_nan(value) and not _nan(held))


class Votes:
    true: int
    false: int

    def __init__(self) -> None:
        self.true = self.false = 0

    def add(self, value: bool, sign: int) -> None:
        """Count (sign 1) or take back (sign -1) one value."""
        if value:
            self.true += sign
        else:
            self.false += sign


class _Voted:
    def create_accumulator(self) -> Votes:
        return Votes()

    def accumulate(self, accumulator: Votes, value: bool) -> None:
        accumulator.add(value, 1)

    def retract(self, accumulator: Votes, value: bool) -> None:
        accumulator.add(value, -1)

    def merge(self, accumulator: Votes, other: Votes) -> None:
        accumulator.true += other.true
        accumulator.false += other.false


@udaf(input_types=["BOOLEAN"], result_type="BOOLEAN", skip_nulls=True, invertible=True)
class BoolAnd(_Voted):
    """Tell whether every value is true; NULL without any."""

    def get_value(self, accumulator: Votes) -> bool | None:
        return accumulator.false == 0 if accumulator.true or accumulator.false else None


@udaf(input_types=["BOOLEAN"], result_type="BOOLEAN", skip_nulls=True, invertible=True)
class BoolOr(_Voted):
    """Tell whether any value is true; NULL without any."""

    def get_value(self, accumulator: Votes) -> bool | None:
        return accumulator.true != 0 if accumulator.true or accumulator.false else None


class Moments:
    """Count, mean and sum of squared deviations; values that are not finite are counted apart.

    Source: B. P. Welford, "Note on a method for calculating corrected sums of squares and products" (1962); the merge
    is from T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm" (1979).
    """

    count: int
    mean: float
    squares: float
    not_finite: int

    def __init__(self) -> None:
        self.count = self.not_finite = 0
        self.mean = self.squares = 0.0


class _Variance:
    """What the variances and deviations share."""

    sample = True
    root = False

    def create_accumulator(self) -> Moments:
        return Moments()

    def accumulate(self, accumulator: Moments, value: float) -> None:
        if not math.isfinite(value):
            accumulator.not_finite += 1
            return
        accumulator.count += 1
        delta = value - accumulator.mean
        accumulator.mean += delta / accumulator.count
        accumulator.squares += delta * (value - accumulator.mean)

    def retract(self, accumulator: Moments, value: float) -> None:
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

    def merge(self, accumulator: Moments, other: Moments) -> None:
        accumulator.not_finite += other.not_finite
        if other.count == 0:
            return
        total = accumulator.count + other.count
        delta = other.mean - accumulator.mean
        accumulator.squares += other.squares + delta * delta * accumulator.count * other.count / total
        accumulator.mean += delta * other.count / total
        accumulator.count = total

    def get_value(self, accumulator: Moments) -> float | None:
        rows = accumulator.count + accumulator.not_finite
        divisor = rows - 1 if self.sample else rows
        if divisor < 1:
            return None
        if accumulator.not_finite:
            return math.nan
        variance = accumulator.squares / divisor
        return math.sqrt(variance) if self.root else variance


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class VarSamp(_Variance):
    """Estimate the variance from a sample (divides by n - 1); NULL for fewer than two values."""


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Variance(_Variance):
    """Do what `var_samp` does."""


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class VarPop(_Variance):
    """Compute the variance of a whole population (divides by n); NULL without any value."""

    sample = False


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class StddevSamp(_Variance):
    """Estimate the standard deviation from a sample; NULL for fewer than two values."""

    root = True


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Stddev(_Variance):
    """Do what `stddev_samp` does."""

    root = True


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class StddevPop(_Variance):
    """Compute the standard deviation of a whole population; NULL without any value."""

    sample = False
    root = True


class _Picked:
    """What `first` and `last` share: which row comes first is the engine's to say, so they are not deterministic."""

    def __init__(self, ignore_nulls: bool = False) -> None:
        self.ignore_nulls = ignore_nulls

    def create_accumulator(self) -> Extreme:
        return Extreme()

    def get_value(self, accumulator: Extreme) -> Any:
        return accumulator.value


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", deterministic=False)
class First(_Picked):
    """Take the value of the first row (with `ignore_nulls`, of the first that has one)."""

    def accumulate(self, accumulator: Extreme, value: Any) -> None:
        if not accumulator.seen and not (value is None and self.ignore_nulls):
            accumulator.value = value
            accumulator.seen = True

    def merge(self, accumulator: Extreme, other: Extreme) -> None:
        if other.seen:
            self.accumulate(accumulator, other.value)


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", deterministic=False)
class Last(_Picked):
    """Take the value of the last row (with `ignore_nulls`, of the last that has one)."""

    def accumulate(self, accumulator: Extreme, value: Any) -> None:
        if not (value is None and self.ignore_nulls):
            accumulator.value = value
            accumulator.seen = True

    def merge(self, accumulator: Extreme, other: Extreme) -> None:
        if other.seen:
            self.accumulate(accumulator, other.value)


@udaf(input_types=["STRING"], result_type="STRING", skip_nulls=True, deterministic=False)
class StringAgg:
    """Join the texts with `delimiter` between them; NULL without any."""

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
