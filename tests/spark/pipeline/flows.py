"""A declarative pipeline with the functions of foldflight, which `tests/spark/test_pipelines.py` runs twice.

`orders` is a table of the pipeline, so it does not exist when the first run defines the flows that read it.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.spark import group_by, over, tumble, upserts, with_schema
from tests.spark import spark_functions

spark = SparkSession.active()
functions = connect(f"embedded:{spark_functions.__name__}")
FOLDER = os.environ["PIPELINE_ROWS"]
SCHEMA = "customer STRING, at TIMESTAMP, price BIGINT, version BIGINT, gone BOOLEAN"


def read_orders():
    return with_schema(spark.read.table("orders"), "customer STRING, price BIGINT, at TIMESTAMP", streaming=False)


def read_stream():
    rows = spark.readStream.schema(SCHEMA).json(FOLDER)
    return with_schema(rows, SCHEMA, streaming=True).withWatermark("at", "1 minute")


@dp.materialized_view
def orders():
    return spark.read.schema(SCHEMA).json(FOLDER)


@dp.materialized_view
def lifted_totals():
    return group_by(read_orders(), "upper(customer) AS customer").agg(total=functions.sum("price + 1"))


@dp.materialized_view
def folded_totals():
    return group_by(read_orders(), "customer", plan="fold").agg(
        total=functions.sum("price"), first=functions.first("price").order_by("at")
    )


@dp.materialized_view
def running_totals():
    return over(read_orders(), "customer", order_by="at").agg(total=functions.sum("price"))


@dp.materialized_view
def newest_rows():
    rows = with_schema(spark.read.table("orders"), SCHEMA, streaming=False)
    return upserts(rows, keys=["customer"], sequence_by="version", deleted="gone").select("customer", "price")


@dp.table
def closed_windows():
    return group_by(read_stream(), window=tumble("at", "1 minute"), emit="append").agg(total=functions.sum("price"))


@dp.table
def changes():
    return group_by(read_stream(), "customer", emit="changelog").agg(total=functions.sum("price"))
