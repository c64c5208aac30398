"""Functions that statements create by module and class."""

from __future__ import annotations

from foldflight import udaf


@udaf(input_types=["BIGINT", "INT"], result_type="BIGINT")
class Weighted:
    """A weighted average of whole numbers."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def accumulate(self, accumulator, value, weight):
        accumulator[0] += value * weight
        accumulator[1] += weight

    def retract(self, accumulator, value, weight):
        accumulator[0] -= value * weight
        accumulator[1] -= weight

    def merge(self, accumulator, other):
        accumulator[0] += other[0]
        accumulator[1] += other[1]

    def get_value(self, accumulator):
        return accumulator[0] // accumulator[1] if accumulator[1] else None


@udaf(input_types=["STRING"], result_type="STRING")
class Joined:
    """The texts in the order in which they come; append-only, does not merge."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator, value):
        accumulator.append(value)

    def get_value(self, accumulator):
        return "".join(each or "-" for each in accumulator)
