"""An aggregate function: replace it by yours. `foldflight check weighted_avg` checks its laws on generated data."""

from dataclasses import dataclass

from foldflight import udaf


@dataclass
class State:
    sum: int = 0
    count: int = 0


@udaf(input_types=["BIGINT", "INT"], result_type="BIGINT")
class WeightedAvg:
    """Average the values, weighted by their weights."""

    def create_accumulator(self) -> State:
        return State()

    def get_value(self, accumulator):
        return None if accumulator.count == 0 else accumulator.sum / accumulator.count

    def accumulate(self, accumulator, value, weight):
        accumulator.sum += value * weight
        accumulator.count += weight

    def retract(self, accumulator, value, weight):
        accumulator.sum -= value * weight
        accumulator.count -= weight

    def merge(self, accumulator, other):
        accumulator.sum += other.sum
        accumulator.count += other.count
