"""A scalar function that says it is deterministic and is not."""

from __future__ import annotations

from foldflight import udf


@udf
class Running:
    """Adds up what it has seen."""

    def __init__(self) -> None:
        self.total = 0

    def eval(self, x: int) -> int:
        self.total = (self.total + 1 + (x or 0)) % 1000
        return self.total
