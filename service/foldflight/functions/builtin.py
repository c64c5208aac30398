"""The built-in functions, written like those of authors. The others are in `numeric.py` and `variance.py`.

Results follow Spark SQL: `sum` of integers is BIGINT and fails on overflow, `avg` of decimals has four more
digits, NaN is greater than any number, variance and deviation of too few rows are NULL.
"""

from __future__ import annotations

from typing import Any

from foldflight.functions.decorators import udaf
from foldflight.functions.numeric import Avg, BoolAnd, BoolOr, Count, Extreme, Max, Min, Sum
from foldflight.functions.variance import Stddev, StddevPop, StddevSamp, Variance, VarPop, VarSamp

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


class _Picked:
    """The common part of `first` and `last`. The engine decides the order of rows, so they are not deterministic."""

    def __init__(self, ignore_nulls: bool = False) -> None:
        self.ignore_nulls = ignore_nulls

    def create_accumulator(self) -> Extreme:
        return Extreme()

    def get_value(self, accumulator: Extreme) -> Any:
        return accumulator.value


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", deterministic=False)
class First(_Picked):
    """Take the value of the first row. With `ignore_nulls`, rows whose value is NULL are skipped."""

    def accumulate(self, accumulator: Extreme, value: Any) -> None:
        if not accumulator.seen and not (value is None and self.ignore_nulls):
            accumulator.value = value
            accumulator.seen = True

    def merge(self, accumulator: Extreme, other: Extreme) -> None:
        if other.seen:
            self.accumulate(accumulator, other.value)


@udaf(input_types=["T"], result_type="T", state_type="STRUCT<value T, seen BOOLEAN>", deterministic=False)
class Last(_Picked):
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
