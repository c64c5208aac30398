"""The number of values in each of several buckets of equal width.

Argument: `value` DOUBLE; NULL and NaN are ignored. Direct arguments: `low` and `high`, the range, and `buckets`, their
number. Result: ARRAY<BIGINT> with `buckets` + 2 items: the values below `low`, those of each bucket, and those from
`high` on. Bucket i covers values from `low` + i * width up to, and without, the next one. State: a struct of this
array. Merges and retracts exactly. The counts are exact; a value within rounding of the end of a bucket may be counted
in its neighbour.

Source: the equi-width histogram, as `width_bucket` of SQL:2003 numbers its buckets.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> histogram = connect(Histogram)["histogram"]
>>> first, second = run_epochs(
...     {"delays": histogram("delay", low=0.0, high=30.0, buckets=3)},
...     epochs=[[{"delay": -2.0}, {"delay": 5.0}, {"delay": 25.0}, {"delay": 90.0}], [("-D", {"delay": 5.0})]],
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'delays': [1, 1, 0, 1, 1]}), ('+U', {'delays': [1, 0, 0, 1, 1]}))
"""

import math

from foldflight import udaf


class Counts:
    counts: list[int]

    def __init__(self, length):
        self.counts = [0] * length


@udaf(input_types=["DOUBLE"], result_type="ARRAY<BIGINT>", skip_nulls=True, invertible=True)
class Histogram:
    """Count the values in buckets of equal width, and those outside."""

    def __init__(self, low: float, high: float, buckets: int = 10):
        if not (math.isfinite(low) and math.isfinite(high) and low < high and buckets >= 1):
            raise ValueError(f"there are no {buckets} buckets from {low} to {high}; give low < high and buckets >= 1")
        self.low = low
        self.high = high
        self.buckets = buckets

    def create_accumulator(self) -> Counts:
        return Counts(self.buckets + 2)

    def accumulate(self, accumulator, value):
        if not math.isnan(value):
            accumulator.counts[self.place(value)] += 1

    def retract(self, accumulator, value):
        if not math.isnan(value):
            accumulator.counts[self.place(value)] -= 1

    def merge(self, accumulator, other):
        for place, count in enumerate(other.counts):
            accumulator.counts[place] += count

    def get_value(self, accumulator):
        return accumulator.counts

    def place(self, value):
        if value < self.low:
            return 0
        if value >= self.high:
            return self.buckets + 1
        share = (value - self.low) / (self.high - self.low)
        return 1 + min(int(share * self.buckets), self.buckets - 1)
