"""Functions that statements create by module and class."""

from __future__ import annotations

from foldflight import udaf, udf, udtf


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


@udf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
def times(x, y):
    return None if x is None or y is None else x * y


@udf(input_types=["T"], result_type="T")
def same(value):
    return value


@udf(input_types=["DOUBLE"], result_type="DOUBLE")
class Scale:
    """Multiply by a direct argument."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def eval(self, x):
        return x * self.factor


@udtf(input_types=["STRING"], result_types={"word": "STRING", "at": "INT"})
class Words:
    """The words of a text, with their places."""

    def __init__(self, separator: str = " ") -> None:
        self.separator = separator

    def eval(self, text):
        for at, word in enumerate((text or "").split(self.separator)):
            if word:
                yield word, at
