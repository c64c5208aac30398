"""A script whose classes are in __main__: a batch and a stream over all files of a folder; prints both results.

python -m tests.spark.pickled_query FOLDER FACTOR
"""

import sys

from pyspark.sql import SparkSession

from foldflight import connect, udaf
from foldflight.spark import group_by

FOLDER, FACTOR = sys.argv[1], int(sys.argv[2])


class R:
    """The least and the greatest value."""

    def __init__(self, v):
        self.least = self.most = v


@udaf(name="spread", input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Spread:
    """The range of values, times a factor that changes from run to run, like edited code."""

    def create_accumulator(self):
        return None

    def accumulate(self, accumulator, v):
        return self.merge(accumulator, R(v))

    def merge(self, accumulator, other):
        if accumulator is None or other is None:
            return accumulator or other
        accumulator.least = min(accumulator.least, other.least)
        accumulator.most = max(accumulator.most, other.most)
        return accumulator

    def get_value(self, accumulator):
        return None if accumulator is None else FACTOR * (accumulator.most - accumulator.least)


def main():
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spread = connect(Spread)["spread"]
    batch = spark.read.schema("k string, v bigint").parquet(f"{FOLDER}/input")
    print("batch", *sorted(map(tuple, group_by(batch.repartition(3), "k").agg(s=spread("v")).collect())))
    latest = {}
    stream = spark.readStream.schema("k string, v bigint").parquet(f"{FOLDER}/input")
    query = (
        group_by(stream, "k", buckets=2)
        .agg(s=spread("v"))
        .writeStream.outputMode("update")
        .foreachBatch(lambda rows, _: latest.update(map(tuple, rows.collect())))
        .option("checkpointLocation", f"{FOLDER}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("stream", *sorted(latest.items()))
    spark.stop()


if __name__ == "__main__":
    main()
