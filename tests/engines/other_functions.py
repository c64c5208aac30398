"""Functions written for engines that cannot run here, as their documentation writes them."""

from dataclasses import dataclass

from pyspark.sql.types import DoubleType, LongType, StructField, StructType

try:
    from pyspark.sql.aggregator import Aggregator
except ModuleNotFoundError:  # before Spark 4.4
    Aggregator = object


class Mean(Aggregator):
    """The mean of the documentation of Spark 4.4."""

    @property
    def bufferSchema(self):  # noqa: N802 - Spark's name
        return StructType([StructField("sum", DoubleType()), StructField("count", LongType())])

    @property
    def outputType(self):  # noqa: N802 - Spark's name
        return DoubleType()

    def zero(self):
        return (0.0, 0)

    def reduce(self, buffer, value):
        (v,) = value
        return (buffer[0] + v, buffer[1] + 1)

    def merge(self, b1, b2):
        return (b1[0] + b2[0], b1[1] + b2[1])

    def finish(self, buffer):
        return buffer[0] / buffer[1] if buffer[1] else None


class PythonSum:
    """The sum of Snowflake's documentation."""

    def __init__(self):
        # This aggregate state is a primitive Python data type.
        self._partial_sum = 0

    @property
    def aggregate_state(self):
        return self._partial_sum

    def accumulate(self, input_value):
        self._partial_sum += input_value

    def merge(self, other_partial_sum):
        self._partial_sum += other_partial_sum

    def finish(self):
        return self._partial_sum


@dataclass
class AvgAggState:
    """The state of Snowflake's average."""

    count: int
    sum: int


class PythonAvg:
    """The average of Snowflake's documentation: its state is a dataclass."""

    def __init__(self):
        # This aggregate state is an object data type.
        self._agg_state = AvgAggState(0, 0)

    @property
    def aggregate_state(self) -> AvgAggState:
        return self._agg_state

    def accumulate(self, input_value):
        self._agg_state.sum += input_value
        self._agg_state.count += 1

    def merge(self, other_agg_state):
        self._agg_state.sum += other_agg_state.sum
        self._agg_state.count += other_agg_state.count

    def finish(self):
        return self._agg_state.sum / self._agg_state.count if self._agg_state.count else None


class MedianUDAF:
    """Doris: a state that is a list."""

    def __init__(self):
        self.values = []

    def accumulate(self, value):
        if value is not None:
            self.values.append(float(value))

    def merge(self, other_state):
        if other_state:
            self.values.extend(other_state)

    def finish(self):
        if not self.values:
            return None
        sorted_values = sorted(self.values)
        middle = len(sorted_values) // 2
        return (
            sorted_values[middle] if len(sorted_values) % 2 else (sorted_values[middle - 1] + sorted_values[middle]) / 2
        )

    @property
    def aggregate_state(self):
        return self.values


class WeightedAvg:
    """The weighted average of RisingWave's documentation, as a class: arrow-udf's functions."""

    @staticmethod
    def create_state():
        return (0, 0)

    @staticmethod
    def accumulate(state, value, weight):
        if value is None or weight is None:
            return state
        s, w = state
        return (s + value * weight, w + weight)

    @staticmethod
    def retract(state, value, weight):
        if value is None or weight is None:
            return state
        s, w = state
        return (s - value * weight, w - weight)

    @staticmethod
    def merge(state1, state2):
        return (state1[0] + state2[0], state1[1] + state2[1])

    @staticmethod
    def finish(state):
        s, w = state
        return None if w == 0 else s / w


class Latest:
    """arrow-udf without `finish`: the state, which may be None, is the result."""

    def create_state(self):
        return None

    def accumulate(self, state, value):
        return value
