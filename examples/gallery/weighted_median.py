"""The lower weighted median: the least value that, with all lesser ones, has at least half of the weight.

Arguments: `value` DOUBLE and `weight` BIGINT; rows with NULL, NaN, or a weight that is not positive are ignored.
Result: DOUBLE, one of the values; NULL if there is none. State: the weight of each distinct value, as a map. Weights
are whole numbers, so they are retracted without rounding. Merges and retracts exactly. The result is exact.

Source: the definition in T. H. Cormen et al., "Introduction to Algorithms", problem 9-2 ("weighted median"), by
sorting.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> weighted_median = connect(WeightedMedian)["weighted_median"]
>>> first, second = run_epochs(
...     {"price": weighted_median("price", "pieces")},
...     epochs=[
...         [{"price": 10.0, "pieces": 1}, {"price": 20.0, "pieces": 1}, {"price": 30.0, "pieces": 5}],
...         [("-D", {"price": 30.0, "pieces": 5})],
...     ],
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'price': 30.0}), ('+U', {'price': 10.0}))
"""

import math

from foldflight import udaf


@udaf(input_types=["DOUBLE", "BIGINT"], result_type="DOUBLE", skip_nulls=True)
class WeightedMedian:
    """Find the least value that, with all lesser ones, has at least half of the weight."""

    def create_accumulator(self) -> dict[float, int]:
        return {}

    def accumulate(self, accumulator, value, weight):
        if weight > 0 and not math.isnan(value):
            self.add(accumulator, value, weight)

    def retract(self, accumulator, value, weight):
        if weight > 0 and not math.isnan(value):
            self.add(accumulator, value, -weight)

    def merge(self, accumulator, other):
        for value, weight in other.items():
            self.add(accumulator, value, weight)

    def get_value(self, accumulator):
        total = sum(accumulator.values())
        weight = 0
        for value in sorted(accumulator):
            weight += accumulator[value]
            if 2 * weight >= total:  # in whole numbers: a half as a float is rounded above 2**53
                return value
        return None

    def add(self, accumulator, value, weight):
        total = accumulator.get(value, 0) + weight
        if total:
            accumulator[value] = total
        else:
            del accumulator[value]
