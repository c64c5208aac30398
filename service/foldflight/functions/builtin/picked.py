"""Built-in functions that pick or join values: first, last and string_agg."""

from __future__ import annotations

from typing import Any

from foldflight.functions.author.udaf import udaf
from foldflight.functions.builtin.numeric import Extreme


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
