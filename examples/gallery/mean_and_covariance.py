"""The mean of vectors and the covariances of their items: what principal components, outliers and drift tests need.

Argument: `v` VECTOR(16); change ITEMS for others, of at most 256 items. Reduce embeddings first, or give some of their
items: `slice(embedding, 1, 16)`. NULL is ignored. Result: STRUCT<mean VECTOR(16, DOUBLE), covariance VECTOR(256,
DOUBLE)>, the matrix row by row, divided by n - 1; NULL without vectors, and a covariance NULL with one. State: a struct
of the mean, the sums of products of deviations, and the count. Merges and retracts.

Error bound: deviations are from the mean, so numbers far from zero lose nothing; each row or merge changes a sum by a
rounding of 2**-53 of its size. A retracted outlier leaves such a part of itself. Without rows the state is empty again.

Source: T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances" (1979), for pairs of items.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> moments = connect(MeanAndCovariance)["mean_and_covariance"]
>>> def row(x, y):
...     return {"v": [x, y] + [0.0] * 14}
>>> (epoch,) = run_epochs({"found": moments("v")}, epochs=[[row(1.0, 2.0), row(3.0, 6.0)]])
>>> found = epoch.changelog[-1][1]["found"]
>>> found["mean"][:2], found["covariance"][:2], found["covariance"][16:18]
([2.0, 4.0], [2.0, 4.0], [4.0, 8.0])
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from foldflight import Vector, udaf
from foldflight.functions import parse_type

ITEMS = 16
MOMENTS = pa.struct(
    [
        ("mean", parse_type(f"VECTOR({ITEMS}, DOUBLE)")),
        ("covariance", parse_type(f"VECTOR({ITEMS * ITEMS}, DOUBLE)")),
    ]
)


@dataclass
class Moments:
    mean: Vector[ITEMS, np.float64] = field(default_factory=lambda: np.zeros(ITEMS))
    products: Vector[ITEMS * ITEMS, np.float64] = field(default_factory=lambda: np.zeros(ITEMS * ITEMS))
    count: int = 0

    def add(self, mean: np.ndarray, products: np.ndarray, count: int) -> None:
        """Add the moments of `count` vectors, or of minus as many that are retracted."""
        total = self.count + count
        if not total:
            self.mean[:], self.products[:], self.count = 0.0, 0.0, 0
            return
        apart = mean - self.mean
        self.products += products + np.outer(apart, apart).ravel() * (self.count * count / total)
        self.mean += apart * (count / total)
        self.count = total


@udaf(result_type=MOMENTS, skip_nulls=True)
class MeanAndCovariance:
    """Find the mean of vectors and the covariances of their items."""

    def create_accumulator(self) -> Moments:
        return Moments()

    def accumulate(self, moments: Moments, v: Vector[ITEMS]) -> None:
        moments.add(np.asarray(v, np.float64), 0.0, 1)

    def retract(self, moments: Moments, v: Vector[ITEMS]) -> None:
        moments.add(np.asarray(v, np.float64), 0.0, -1)

    def merge(self, moments: Moments, other: Moments) -> None:
        moments.add(other.mean, other.products, other.count)

    def get_value(self, moments: Moments):
        if moments.count < 1:
            return None
        covariance = moments.products / (moments.count - 1) if moments.count > 1 else None
        return {"mean": moments.mean, "covariance": covariance}
