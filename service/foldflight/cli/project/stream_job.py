"""A stream: folds the changes in changes/*.csv, and continues where it ended. Run: python stream_job.py [--fleet URL].

Each line of the files is a change: row kind (+I, -U, +U or -D), customer, price, quantity. Add files, and run it again.
"""

import argparse
import os

from pyspark.sql import SparkSession
from weighted_avg import WeightedAvg

from foldflight import connect
from foldflight.spark import configure, group_by
from foldflight.spark.java import prepare_local

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--fleet", metavar="URL", help="Servers that have the function; by default Spark's workers fold.")
fleet = options.parse_args().fleet

prepare_local(os.environ)  # finds Java and this Python for a Spark on this machine
spark = SparkSession.builder.getOrCreate()
configure(spark, partitions=2)
weighted_avg = connect(fleet or WeightedAvg)["weighted_avg"]

changes = spark.readStream.schema("kind STRING, customer STRING, price BIGINT, quantity INT").csv("changes")
prices = group_by(changes, "customer", row_kind="kind").agg(price=weighted_avg("price", "quantity"))
query = (
    prices.writeStream.format("console")
    .outputMode("update")
    .option("checkpointLocation", "checkpoint")  # keep it: it has the states
    .trigger(availableNow=True)  # processes the files that are there, and ends; leave it out to wait for more files
    .start()
)
query.awaitTermination()
spark.stop()
