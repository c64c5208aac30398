"""The mean of vectors, item by item: what the texts, images or customers of a group have in common.

Argument: `v` VECTOR(384); change ITEMS for embeddings of another length. NULL is ignored. Result: VECTOR(384); NULL if
there is no vector. State: a struct of the sums, VECTOR(384, DOUBLE), and the count. Merges and retracts.

Error bound: sums have 64 bits, and the quotient is rounded to 32 bits once. After n rows were added or retracted an
item of the sums is wrong by at most about n**2 * 2**-53 times the largest item, far below the rounding of the result
for a million rows. NaN and infinities make NaN or an infinity of their item, also after they are retracted.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> centroid = connect(Centroid)["centroid"]
>>> one, other = [1.0] * 384, [3.0] * 384
>>> first, second = run_epochs({"mean": centroid("v")}, epochs=[[{"v": one}, {"v": other}], [("-D", {"v": one})]])
>>> [epoch.changelog[-1][1]["mean"][:2] for epoch in (first, second)]
[[2.0, 2.0], [3.0, 3.0]]
"""

from dataclasses import dataclass, field

import numpy as np

from foldflight import Vector, udaf

ITEMS = 384


@dataclass
class Sums:
    total: Vector[ITEMS, np.float64] = field(default_factory=lambda: np.zeros(ITEMS))
    count: int = 0


@udaf(skip_nulls=True)
class Centroid:
    """Find the mean of vectors."""

    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, sums: Sums, v: Vector[ITEMS]) -> None:
        sums.total += v
        sums.count += 1

    def retract(self, sums: Sums, v: Vector[ITEMS]) -> None:
        sums.total -= v
        sums.count -= 1

    def merge(self, sums: Sums, other: Sums) -> None:
        sums.total += other.total
        sums.count += other.count

    def get_value(self, sums: Sums) -> Vector[ITEMS]:
        return sums.total / sums.count if sums.count else None
