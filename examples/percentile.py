"""An exact percentile: growing lists, with vectorised methods for the lists of all groups."""

import math

import numpy as np

from foldflight import udaf


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Percentile:
    """Find the value below which a fraction of the values lies, by linear interpolation; NaN is ignored."""

    def __init__(self, fraction: float = 0.5):
        self.fraction = fraction

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator, value):
        if not math.isnan(value):
            accumulator.append(value)

    def retract(self, accumulator, value):
        if not math.isnan(value):
            accumulator.remove(value)

    def merge(self, accumulator, other):
        accumulator.extend(other)

    def get_value(self, accumulator):
        if not accumulator:
            return None
        ordered = sorted(accumulator)
        place = self.fraction * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        return low + (high - low) * (place - math.floor(place))

    # The same for whole chunks: `accumulators` is a foldflight.Lists with the lists of all slots.

    def fold_many(self, accumulators, slots, signs, values):
        numbers = ~np.isnan(values)
        signs = np.broadcast_to(signs, len(slots))
        return accumulators.update(slots[numbers], values[numbers], signs[numbers])

    def merge_many(self, accumulators, slots, others):
        accumulators.extend(slots, others)

    def get_values(self, accumulators):
        ordered = accumulators.sorted()
        place = self.fraction * np.maximum(ordered.lengths - 1, 0)
        below = np.floor(place)
        items = np.append(ordered.items, 0.0)  # an empty list at the end starts at this item
        low, high = (items[ordered.starts + step.astype(int)] for step in (below, np.ceil(place)))
        return np.ma.array(low + (high - low) * (place - below), mask=ordered.lengths == 0)
