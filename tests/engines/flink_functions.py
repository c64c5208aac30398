"""Functions written for PyFlink, as its documentation writes them. Only the imports know of foldflight."""

try:
    from pyflink.common import Row
    from pyflink.table import AggregateFunction, DataTypes, ListView, MapView
except ModuleNotFoundError:
    from foldflight.functions.flink import AggregateFunction, DataTypes, ListView, MapView, Row


class WeightedAvg(AggregateFunction):
    """The weighted average of PyFlink's guide, with `merge`."""

    def create_accumulator(self):
        # sum, count
        return Row(0, 0)

    def get_value(self, accumulator):
        if accumulator[1] == 0:
            return None
        return accumulator[0] / accumulator[1]

    def accumulate(self, accumulator, value, weight):
        accumulator[0] += value * weight
        accumulator[1] += weight

    def retract(self, accumulator, value, weight):
        accumulator[0] -= value * weight
        accumulator[1] -= weight

    def merge(self, accumulator, accumulators):
        for other in accumulators:
            accumulator[0] += other[0]
            accumulator[1] += other[1]

    def get_result_type(self):
        return "DOUBLE"

    def get_accumulator_type(self):
        return "ROW<f0 BIGINT, f1 BIGINT>"


class ListViewConcat(AggregateFunction):
    """A list view: the texts of a group, joined by the last separator."""

    def get_value(self, accumulator):
        # the ListView is iterable
        return accumulator[1].join(accumulator[0])

    def create_accumulator(self):
        return Row(ListView(), "")

    def accumulate(self, accumulator, *args):
        accumulator[1] = args[1]
        # the ListView support add, clear and iterate operations.
        accumulator[0].add(args[0])

    def get_accumulator_type(self):
        return DataTypes.ROW(
            [
                # declare the first column of the accumulator as a string ListView.
                DataTypes.FIELD("f0", DataTypes.LIST_VIEW(DataTypes.STRING())),
                DataTypes.FIELD("f1", DataTypes.STRING()),
            ]
        )

    def get_result_type(self):
        return DataTypes.STRING()


class DistinctSum(AggregateFunction):
    """A map view: the sum of the distinct values of a group, with retraction."""

    def create_accumulator(self):
        return Row(MapView(), 0)

    def accumulate(self, accumulator, value):
        counts = accumulator[0]
        if counts.contains(value):
            counts.put(value, counts.get(value) + 1)
        else:
            counts[value] = 1
            accumulator[1] += value

    def retract(self, accumulator, value):
        counts = accumulator[0]
        if counts[value] == 1:
            counts.remove(value)
            accumulator[1] -= value
        else:
            counts[value] = counts[value] - 1

    def get_value(self, accumulator):
        return None if accumulator[0].is_empty() else accumulator[1]

    def get_accumulator_type(self):
        return DataTypes.ROW(
            [
                DataTypes.FIELD("counts", DataTypes.MAP_VIEW(DataTypes.BIGINT(), DataTypes.BIGINT())),
                DataTypes.FIELD("total", DataTypes.BIGINT()),
            ]
        )

    def get_result_type(self):
        return DataTypes.BIGINT()


class Spread(AggregateFunction):
    """An accumulator that is a list, and a row as result."""

    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, value):
        accumulator.append(value)

    def retract(self, accumulator, value):
        accumulator.remove(value)

    def get_value(self, accumulator):
        return Row(min(accumulator, default=None), max(accumulator, default=None))

    def get_accumulator_type(self):
        return DataTypes.ARRAY(DataTypes.BIGINT())

    def get_result_type(self):
        return DataTypes.ROW([DataTypes.FIELD("low", DataTypes.BIGINT()), DataTypes.FIELD("high", DataTypes.BIGINT())])
