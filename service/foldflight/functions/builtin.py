"""The built-in functions, written as an author would write them; those over numbers are in `numeric.py`.

Results follow Spark SQL: `sum` of whole numbers is BIGINT and fails on overflow, `avg` of decimals has four more
digits, NaN is greater than any number, variance and deviation of too few rows are NULL.
"""

from __future__ import annotations

import math
from typing import Any

from foldflight.functions.decorators import udaf
from foldflight.functions.numeric import Avg, BoolAnd, BoolOr, Count, Extreme, Max, Min, Sum

__all__ = [
    "Avg",
    "BoolAnd",
    "BoolOr",
    "Count",
    "First",
    "Last",
    "Max",
    "Min",
    "Stddev",
    "StddevPop",
    "StddevSamp",
    "StringAgg",
    "Sum",
    "VarPop",
    "VarSamp",
    "Variance",
]


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
