"""Another version of the functions of wire_functions."""

from __future__ import annotations

from typing import Any

from foldflight import udaf


class Number:
    """Accumulator of AppendOnly."""

    value: int


@udaf(input_types=["BIGINT"], result_type="BIGINT", version="2")
class AppendOnly:
    """A sum without retract."""

    def create_accumulator(self) -> Number:
        accumulator = Number()
        accumulator.value = 0
        return accumulator

    def accumulate(self, accumulator: Number, value: int) -> None:
        accumulator.value += value

    def get_value(self, accumulator: Number) -> Any:
        return accumulator.value
