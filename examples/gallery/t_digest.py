"""An estimate of any percentile with a small state, by a t-digest. It is most accurate at both ends.

Arguments: `value` DOUBLE; NULL, NaN and infinities are ignored. Direct arguments: `fraction`, from 0 to 1, and
`compression`: the digest has at most about as many centroids. Result: DOUBLE; NULL if there is no value. State: a
struct of at most 6 * `compression` numbers. Merges. Does not retract; a digest does not hold the single values.

Error bound: a centroid that covers the fraction q covers at most d * sqrt(q (1 - q)) + d**2 / 4 of the values, with d =
2 pi / `compression`; or it is one value. The rank of the result differs from q by at most one and a half centroids: 2.4
% of the values for the median and 0.5 % for the 99th percentile by default, usually much less. This holds if centroids
do not overlap, as in sorted input; in random order and after merges they overlap a little. Groups of fewer than 2 *
`compression` values that were not merged are exact.

Source: T. Dunning and O. Ertl, "Computing extremely accurate quantiles using t-digests" (2019), the merging variant
with the scale function k1.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> t_digest = connect(TDigest)["t_digest"]
>>> first, second = run_epochs(
...     {"median": t_digest("amount", fraction=0.5)},
...     epochs=[[{"amount": 1.0}, {"amount": 2.0}, {"amount": 4.0}], [{"amount": 5.0}]],
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'median': 2.0}), ('+U', {'median': 3.0}))
"""

import itertools
import math

from foldflight import udaf

BUFFER = 2  # values that are collected before they are sorted into the digest, as a multiple of the compression


class Digest:
    means: list[float]
    weights: list[int]
    buffer: list[float]

    def __init__(self):
        self.means, self.weights, self.buffer = [], [], []


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True, compile=False)
class TDigest:
    """Estimate the value below which a fraction of the values lies."""

    def __init__(self, fraction: float = 0.5, compression: int = 200):
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction is {fraction}; give a number from 0 to 1")
        if compression < 20:
            raise ValueError(f"compression is {compression}; give at least 20")
        self.fraction = fraction
        self.compression = compression

    def create_accumulator(self) -> Digest:
        return Digest()

    def accumulate(self, accumulator, value):
        if math.isfinite(value):
            accumulator.buffer.append(value)
            if len(accumulator.buffer) >= BUFFER * self.compression:
                self.compress(accumulator)

    def merge(self, accumulator, other):
        if other.means:
            centroids = [*self.centroids(accumulator), *zip(other.means, other.weights, strict=True)]
            self.keep(accumulator, centroids)
        for value in other.buffer:
            self.accumulate(accumulator, value)

    def get_value(self, accumulator):
        centroids = sorted(self.centroids(accumulator))
        if not centroids:
            return None
        if len(centroids) == 1:
            return centroids[0][0]
        # The mean of a centroid has the rank of the middle of its values; between two means ranks are interpolated.
        ends = list(itertools.accumulate(weight for _, weight in centroids))
        rank = self.fraction * (ends[-1] - 1)
        ranks = [end - weight / 2 - 0.5 for end, (_, weight) in zip(ends, centroids, strict=True)]
        right = next((place for place, each in enumerate(ranks) if each >= rank), len(ranks) - 1)
        right = max(right, 1)
        share = (rank - ranks[right - 1]) / (ranks[right] - ranks[right - 1])
        low, high = centroids[right - 1][0], centroids[right][0]
        return low + (high - low) * min(max(share, 0.0), 1.0)

    def centroids(self, accumulator):
        return [
            *zip(accumulator.means, accumulator.weights, strict=True),
            *((value, 1) for value in accumulator.buffer),
        ]

    def compress(self, accumulator):
        self.keep(accumulator, self.centroids(accumulator))

    def keep(self, accumulator, centroids):
        """Replace the digest by these centroids. Neighbours become one as long as it covers at most 1 unit of k1."""
        centroids.sort()
        total = sum(weight for _, weight in centroids)
        means, weights, before = [], [], 0
        end = self.end_of_unit(0.0) * total
        for mean, weight in centroids:
            if means and before + weights[-1] + weight <= end:
                weights[-1] += weight
                means[-1] += (mean - means[-1]) * weight / weights[-1]
            else:
                if means:
                    before += weights[-1]
                    end = self.end_of_unit(before / total) * total
                means.append(mean)
                weights.append(weight)
        accumulator.means, accumulator.weights, accumulator.buffer = means, weights, []

    def end_of_unit(self, fraction):
        """Return the fraction whose k1 is one greater: k1(q) = compression / (2 pi) * asin(2 q - 1)."""
        angle = math.asin(2 * fraction - 1) + 2 * math.pi / self.compression
        return 1.0 if angle >= math.pi / 2 else (math.sin(angle) + 1) / 2
