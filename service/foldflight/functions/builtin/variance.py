"""Variances and standard deviations, computed from exact sums of values and squares. Variances are rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from foldflight.functions.author.udaf import udaf
from foldflight.functions.builtin.numeric import ONE, fits, merge_members
from foldflight.functions.types.exact import UNIT_BITS, ExactSum, ExactSums, products_of, ratio

# The range of magnitudes in which float arithmetic does not overflow or underflow.
_LEAST, _MOST = 2.0**-800, 2.0**800
_COUNT_END = 1 << 31
# Upper bound of the relative error of a quotient of pairs of floats.
_ERROR = 2.0**-95


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
