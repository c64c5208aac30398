"""A batch: the weighted average of each customer's prices. Run: python batch_job.py [--fleet grpc://host:8815]."""

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

orders = spark.createDataFrame(
    [("ann", 10, 1), ("ann", 40, 2), ("bob", 7, 3)], "customer STRING, price BIGINT, quantity INT"
)
prices = group_by(orders, "customer").agg(price=weighted_avg("price", "quantity"))
prices.orderBy("customer").show()
spark.stop()
