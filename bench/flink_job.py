"""The weighted average, in groups and in OVER, a scalar function and a view in PyFlink.

bench/flink.py runs it in a separate virtual environment. It prints one JSON line, {"seconds": ...}. PyFlink interprets
annotations as classes, so there are none.
"""

import argparse
import json
import time

from pyflink.common import Row
from pyflink.table import AggregateFunction, DataTypes, EnvironmentSettings, MapView, TableEnvironment
from pyflink.table.udf import udaf, udf


class WeightedAvg(AggregateFunction):
    """The same class as examples/weighted_avg.py, in PyFlink's form."""

    def create_accumulator(self):
        return [0, 0]

    def get_value(self, accumulator):
        return None if accumulator[1] == 0 else int(accumulator[0] / accumulator[1])

    def accumulate(self, accumulator, value, weight):
        accumulator[0] += value * weight
        accumulator[1] += weight

    def retract(self, accumulator, value, weight):
        accumulator[0] -= value * weight
        accumulator[1] -= weight

    def get_accumulator_type(self):
        return DataTypes.ARRAY(DataTypes.BIGINT())

    def get_result_type(self):
        return DataTypes.BIGINT()


class Different(AggregateFunction):
    """The function of bench/views.py: different texts with their counts, in a view."""

    def create_accumulator(self):
        return Row(0, MapView())

    def get_value(self, accumulator):
        return accumulator[0]

    def accumulate(self, accumulator, value):
        times = accumulator[1].get(value) if accumulator[1].contains(value) else 0
        accumulator[0] += times == 0
        accumulator[1].put(value, times + 1)

    def get_accumulator_type(self):
        view = DataTypes.MAP_VIEW(DataTypes.STRING(), DataTypes.BIGINT())
        return DataTypes.ROW([DataTypes.FIELD("count", DataTypes.BIGINT()), DataTypes.FIELD("times", view)])

    def get_result_type(self):
        return DataTypes.BIGINT()


def vectorised(value, weight):
    """Compute one group's average; in batch mode PyFlink supports only this form."""
    return int((value * weight).sum() / weight.sum())


def scored(v, w):
    """The function of bench/scalar.py, for numbers and for columns of pandas."""
    return v * w + 7


SCALAR = {"scalar": "general", "scalar pandas": "pandas"}
# The same aggregates in OVER; general Python UDAFs cannot stand there.
OVER = {"over sql": "sql", "over vectorised": "vectorised"}


def main() -> None:
    """Run one job over one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["streaming", "batch"], required=True)
    parser.add_argument("--way", choices=["general", "vectorised", "sql", "view", *SCALAR, *OVER], required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of Flink")
    arguments = parser.parse_args()
    modes = {"streaming": EnvironmentSettings.in_streaming_mode, "batch": EnvironmentSettings.in_batch_mode}
    tables = TableEnvironment.create(modes[arguments.mode]())
    configuration = tables.get_config()
    configuration.set("parallelism.default", "2")
    configuration.set("rest.bind-address", "127.0.0.1")
    configuration.set("rest.address", "127.0.0.1")
    configuration.set("taskmanager.bind-host", "127.0.0.1")
    configuration.set("taskmanager.memory.managed.size", "512mb")
    for setting in arguments.set:
        configuration.set(*setting.split("=", 1))
    way = OVER.get(arguments.way, arguments.way)
    if way == "general":
        tables.create_temporary_function("weighted_avg", udaf(WeightedAvg()))
    elif way == "view":
        tables.create_temporary_function("different", udaf(Different()))
    elif way == "vectorised":
        function = udaf(vectorised, result_type=DataTypes.BIGINT(), func_type="pandas")
        tables.create_temporary_function("weighted_avg", function)
    elif way in SCALAR:
        function = udf(scored, result_type=DataTypes.BIGINT(), func_type=SCALAR[way])
        tables.create_temporary_function("scored", function)
    order = ", `at` BIGINT" if arguments.way in OVER else ""
    tables.execute_sql(
        f"CREATE TABLE source (k BIGINT, v BIGINT, w INT{order}) WITH "
        f"('connector' = 'filesystem', 'path' = '{arguments.data}', 'format' = 'csv')"
    )
    tables.execute_sql("CREATE TABLE sink (k BIGINT, o BIGINT) WITH ('connector' = 'blackhole')")
    frame = " OVER (PARTITION BY k ORDER BY `at` ROWS BETWEEN 99 PRECEDING AND CURRENT ROW)" if order else ""
    if way in SCALAR:
        value = "scored(v, w)"
    elif way == "view":
        value = "different(CAST(v AS STRING))"
    elif way == "sql":
        value = f"CAST(SUM(v * w){frame} / SUM(w){frame} AS BIGINT)"
    else:
        value = f"weighted_avg(v, w){frame}"
    query = f"SELECT k, {value} AS o FROM source" + ("" if order or way in SCALAR else " GROUP BY k")
    start = time.perf_counter()
    tables.execute_sql(f"INSERT INTO sink {query}").wait()
    print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
