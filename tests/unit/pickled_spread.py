"""A function whose state is an instance of another class, as source code for a notebook, a script or a module."""

from __future__ import annotations

from typing import Any

RANGE = """
from foldflight import udaf

class R:
    def __init__(self):
        self.least = self.most = None

    def take(self, v):
        self.least = v if self.least is None else min(v, self.least)
        self.most = v if self.most is None else max(v, self.most)

@udaf(name="spread", input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Spread:
    def create_accumulator(self):
        return R()

    def accumulate(self, accumulator, v):
        accumulator.take(v)

    def merge(self, accumulator, other):
        if other.most is not None:
            accumulator.take(other.least)
            accumulator.take(other.most)

    def get_value(self, accumulator):
        return None if accumulator.most is None else accumulator.most - accumulator.least
"""
EDITED = RANGE.replace("accumulator.most - accumulator.least", "10 * (accumulator.most - accumulator.least)")


def define(code: str, module: str = "__main__") -> type:
    """Return the class Spread from code that a notebook ran, or from a module that no longer exists."""
    namespace: dict[str, Any] = {"__name__": module}
    exec(code, namespace)
    cls: type = namespace["Spread"]
    return cls
