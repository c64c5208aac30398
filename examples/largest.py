"""The largest values of each group: bounded lists, with vectorised methods for the lists of all groups."""

import math

import numpy as np

from foldflight import udaf


@udaf(input_types=["DOUBLE"], result_type="ARRAY<DOUBLE>", skip_nulls=True)
class Largest:
    """Find the largest `count` values, in descending order; NaN is ignored."""

    def __init__(self, count: int = 10):
        self.count = count

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator, value):
        if not math.isnan(value):
            self.merge(accumulator, [value])

    def merge(self, accumulator, other):
        accumulator.extend(other)
        accumulator.sort(reverse=True)
        del accumulator[self.count :]

    def get_value(self, accumulator):
        return accumulator

    # The same for whole chunks: `accumulators` is a foldflight.Lists with the lists of all slots.

    def fold_many(self, accumulators, slots, signs, values):
        numbers = ~np.isnan(values)
        accumulators.update(slots[numbers], values[numbers])
        accumulators.keep_largest(self.count)

    def merge_many(self, accumulators, slots, others):
        accumulators.extend(slots, others)
        accumulators.keep_largest(self.count)

    def get_values(self, accumulators):
        return accumulators.to_arrow()
