"""The exact percentile of the values, by linear interpolation.

Arguments: `value` DOUBLE; NULL and NaN are ignored. Direct argument: `fraction`, from 0 to 1. Result: DOUBLE; NULL if
there is no value. State: an array of all values, so its size grows with the group. Use `t_digest` for large groups.
Error bound: none is needed, the result is exact up to the rounding of the interpolation. Between an infinity and a
finite value it is the infinity, and between both infinities NaN. Merges and retracts exactly.

Source: R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages" (1996), definition 7, which is also that
of Spark's `percentile` and NumPy's `quantile`.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> percentile = connect(Percentile)["percentile"]
>>> first, second = run_epochs(
...     {"median": percentile("amount", fraction=0.5)},
...     epochs=[[{"amount": 1.0}, {"amount": 2.0}, {"amount": 4.0}], [("-D", {"amount": 2.0})]],
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'median': 2.0}), ('+U', {'median': 2.5}))
"""

import math

import numpy as np

from foldflight import udaf


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Percentile:
    """Find the value below which a fraction of the values lies, by linear interpolation; NaN is ignored."""

    def __init__(self, fraction: float = 0.5):
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction is {fraction}; give a number from 0 to 1")
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
        part = place - math.floor(place)
        # Without the first case, an infinity times zero would give NaN. Zero is added, so that no result is -0.0.
        return (low if low == high else low * (1 - part) + high * part) + 0.0

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
        part = place - below
        with np.errstate(invalid="ignore"):  # an infinity times zero, where low and high are equal
            results = np.where(low == high, low, low * (1 - part) + high * part) + 0.0
        return np.ma.array(results, mask=ordered.lengths == 0)
