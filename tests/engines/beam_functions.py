"""Functions written for Beam, as its documentation writes them. Where Beam is missing, they have no base class."""

import collections

try:
    import apache_beam as beam

    CombineFn = beam.CombineFn
except ModuleNotFoundError:
    CombineFn = object


class AverageFn(CombineFn):
    """The average of Beam's guide."""

    def create_accumulator(self):
        return (0.0, 0)

    def add_input(self, sum_count, input):  # noqa: A002 - as in the guide
        (sum, count) = sum_count  # noqa: A001 - as in the guide
        return sum + input, count + 1

    def merge_accumulators(self, accumulators):
        sums, counts = zip(*accumulators, strict=True)
        return sum(sums), sum(counts)

    def extract_output(self, sum_count):
        (sum, count) = sum_count  # noqa: A001 - as in the guide
        return sum / count if count else float("NaN")


class PercentagesFn(CombineFn):
    """The shares of values of Beam's guide: a dict as accumulator and as result."""

    def create_accumulator(self):
        return {}

    def add_input(self, accumulator, input):  # noqa: A002 - as in the guide
        if input not in accumulator:
            accumulator[input] = 0
        accumulator[input] += 1
        return accumulator

    def merge_accumulators(self, accumulators):
        counters = collections.Counter()
        for accumulator in accumulators:
            counters.update(accumulator)
        return counters

    def extract_output(self, accumulator):
        total = sum(accumulator.values())  # how many items in total
        return {item: count / total for item, count in accumulator.items()}


class WeightedMeanFn(CombineFn):
    """Elements that are tuples, a constructor with an argument, `setup` and `compact`, and typed accumulators."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def setup(self, *args, **kwargs):
        self.factor = self.scale

    def create_accumulator(self) -> tuple[float, float]:
        return 0.0, 0.0

    def add_input(self, accumulator, element: tuple[float, float]):
        value, weight = element
        return accumulator[0] + value * weight * self.factor, accumulator[1] + weight

    def merge_accumulators(self, accumulators):
        total = weights = 0.0
        for each in accumulators:
            total, weights = total + each[0], weights + each[1]
        return total, weights

    def compact(self, accumulator):
        return super().compact(accumulator) if CombineFn is not object else accumulator

    def extract_output(self, accumulator) -> float:
        return accumulator[0] / accumulator[1] if accumulator[1] else 0.0

    def teardown(self, *args, **kwargs):
        del self.factor
