"""How far the vectors of now are from those of before: the distance of two centroids.

Arguments: `v` VECTOR(384), and `is_new` BOOLEAN, which tells the two sets apart; change ITEMS for embeddings of another
length. Rows with NULL are ignored. Direct argument: `metric`, "cosine" (1 minus the cosine of the angle, from 0 to 2)
or "l2". Result: DOUBLE; NULL if one of the sets is empty or, for "cosine", a centroid is zero. State: a struct of two
sums, VECTOR(384, DOUBLE), and two counts. Merges and retracts.

Error bound: as for `centroid`, an item of n rows is wrong by at most about n**2 * 2**-53 times the largest one.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> drift = connect(Drift)["drift"]
>>> def row(x, y, is_new):
...     return {"v": [x, y] + [0.0] * 382, "is_new": is_new}
>>> first, second = run_epochs(
...     {"angle": drift("v", "is_new"), "distance": drift("v", "is_new", metric="l2")},
...     epochs=[[row(3.0, 0.0, False), row(3.0, 4.0, True)], [row(3.0, -4.0, True)]],
... )
>>> [(round(change["angle"], 9), change["distance"]) for epoch in (first, second) for _, change in epoch.changelog[-1:]]
[(0.4, 4.0), (0.0, 0.0)]
"""

from dataclasses import dataclass, field

import numpy as np

from foldflight import Vector, udaf

ITEMS = 384


@dataclass
class Sets:
    before: Vector[ITEMS, np.float64] = field(default_factory=lambda: np.zeros(ITEMS))
    now: Vector[ITEMS, np.float64] = field(default_factory=lambda: np.zeros(ITEMS))
    count_before: int = 0
    count_now: int = 0


@udaf(skip_nulls=True)
class Drift:
    """Find the distance of the centroids of two sets of vectors."""

    def __init__(self, metric: str = "cosine") -> None:
        if metric not in ("cosine", "l2"):
            raise ValueError(f"metric is 'cosine' or 'l2', not {metric!r}")
        self.metric = metric

    def create_accumulator(self) -> Sets:
        return Sets()

    def accumulate(self, sets: Sets, v: Vector[ITEMS], is_new: bool) -> None:
        if is_new:
            sets.now += v
            sets.count_now += 1
        else:
            sets.before += v
            sets.count_before += 1

    def retract(self, sets: Sets, v: Vector[ITEMS], is_new: bool) -> None:
        if is_new:
            sets.now -= v
            sets.count_now -= 1
        else:
            sets.before -= v
            sets.count_before -= 1

    def merge(self, sets: Sets, other: Sets) -> None:
        sets.before += other.before
        sets.now += other.now
        sets.count_before += other.count_before
        sets.count_now += other.count_now

    def get_value(self, sets: Sets) -> float:
        if not (sets.count_before and sets.count_now):
            return None
        before, now = sets.before / sets.count_before, sets.now / sets.count_now
        if self.metric == "l2":
            return float(np.linalg.norm(now - before))
        lengths = float(np.linalg.norm(before) * np.linalg.norm(now))
        return 1.0 - float(np.dot(before, now)) / lengths if lengths else None
