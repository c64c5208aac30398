"""An average in which a value counts half as much for each half-life that it is older than the newest one.

Arguments: `value` DOUBLE and `at` TIMESTAMPTZ (Spark's TIMESTAMP), the event time; rows with NULL, NaN or an infinity
are ignored. Direct argument: `half_life_s`, in seconds. Result: DOUBLE; NULL if there is no value. State: a struct of
three floats. Rows may come in any order and late. Merges. Does not retract: the weight of old rows vanishes beside that
of new ones, and could not be restored. Over rows with kinds, group with `materialize=True`.

With weights w = 2**((at - newest) / half_life), the result is the sum of w * value divided by the sum of w. Error
bound: for n rows it is about n * 2**-53 of the average magnitude of the values, from rounding only.

Source: exponential decay at event time as in G. Cormode, V. Shkapenyuk, D. Srivastava and B. Xu, "Forward decay: a
practical time decay model for streaming systems" (2009), with the newest row as the landmark.

>>> import datetime
>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> ewma = connect(Ewma)["ewma"]
>>> def row(minute, value):
...     return {"at": datetime.datetime(2030, 1, 1, 12, minute, tzinfo=datetime.UTC), "load": value}
>>> first, second = run_epochs(
...     {"load": ewma("load", "at", half_life_s=60)}, epochs=[[row(1, 4.0), row(0, 1.0)], [row(2, 4.0)]]
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'load': 3.0}), ('+U', {'load': 3.5714285714285716}))
"""

import math

import numpy as np

from foldflight import udaf


class Decayed:
    # In seconds since 1970. All weights are those at this time.
    newest: float
    weights: float
    products: float

    def __init__(self):
        self.newest, self.weights, self.products = -math.inf, 0.0, 0.0


@udaf(input_types=["DOUBLE", "TIMESTAMPTZ"], result_type="DOUBLE", skip_nulls=True)
class Ewma:
    """Average the values, each with half the weight for each half-life of its age."""

    def __init__(self, half_life_s: float):
        if not 0 < half_life_s < math.inf:
            raise ValueError(f"half_life_s is {half_life_s}; give a number of seconds greater than 0")
        self.half_life_s = half_life_s

    def create_accumulator(self) -> Decayed:
        return Decayed()

    def accumulate(self, accumulator, value, at):
        if math.isfinite(value):
            self.add(accumulator, at.timestamp(), 1.0, value)

    def merge(self, accumulator, other):
        if other.weights:
            self.add(accumulator, other.newest, other.weights, other.products)

    def get_value(self, accumulator):
        return accumulator.products / accumulator.weights if accumulator.weights else None

    def add(self, accumulator, time_s, weights, products):
        """Add sums whose weights are those at a time."""
        newest = max(accumulator.newest, time_s)
        kept = 2.0 ** ((accumulator.newest - newest) / self.half_life_s)
        added = 2.0 ** ((time_s - newest) / self.half_life_s)
        accumulator.newest = newest
        accumulator.weights = accumulator.weights * kept + weights * added
        accumulator.products = accumulator.products * kept + products * added

    # The same for whole chunks: `accumulators` is a structured array, and `slots` holds the slot of each row.

    def fold_many(self, accumulators, slots, signs, values, times):
        finite = np.isfinite(values)
        times_s = times.astype("datetime64[us]").astype(np.int64) / 1_000_000
        self.add_many(accumulators, slots[finite], times_s[finite], 1.0, values[finite])

    def merge_many(self, accumulators, slots, others):
        full = others["weights"] != 0
        others = others[full]
        self.add_many(accumulators, slots[full], others["newest"], others["weights"], others["products"])

    def get_values(self, accumulators):
        none = accumulators["weights"] == 0
        return np.ma.array(accumulators["products"] / np.where(none, 1, accumulators["weights"]), mask=none)

    def add_many(self, accumulators, slots, times_s, weights, products):
        changed = np.unique(slots)
        before = accumulators["newest"][changed]
        np.maximum.at(accumulators["newest"], slots, times_s)
        kept = np.exp2((before - accumulators["newest"][changed]) / self.half_life_s)
        added = np.exp2((times_s - accumulators["newest"][slots]) / self.half_life_s)
        for name, terms in (("weights", weights), ("products", products)):
            accumulators[name][changed] *= kept
            np.add.at(accumulators[name], slots, terms * added)
