"""A weighted average of floats, with vectorised methods in addition to the scalar ones that define it."""

import numpy as np

from foldflight import udaf


class Sums:
    products: float
    weights: float

    def __init__(self):
        self.products = self.weights = 0.0


@udaf(input_types=["DOUBLE", "DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class WeightedMean:
    """Average the values, weighted by their weights."""

    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, accumulator, value, weight):
        accumulator.products += value * weight
        accumulator.weights += weight

    def retract(self, accumulator, value, weight):
        accumulator.products -= value * weight
        accumulator.weights -= weight

    def merge(self, accumulator, other):
        accumulator.products += other.products
        accumulator.weights += other.weights

    def get_value(self, accumulator):
        return accumulator.products / accumulator.weights if accumulator.weights else None

    # The same for whole chunks: `accumulators` is a structured array, and `slots` holds the slot of each row.

    def fold_many(self, accumulators, slots, signs, values, weights):
        np.add.at(accumulators["products"], slots, signs * (values * weights))
        np.add.at(accumulators["weights"], slots, signs * weights)

    def merge_many(self, accumulators, slots, others):
        np.add.at(accumulators["products"], slots, others["products"])
        np.add.at(accumulators["weights"], slots, others["weights"])

    def get_values(self, accumulators):
        none = accumulators["weights"] == 0
        return np.ma.array(accumulators["products"] / np.where(none, 1, accumulators["weights"]), mask=none)
