"""A declarative pipeline that keeps the newest rows twice: by Spark's AUTO CDC and by `upserts`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from foldflight.spark import upserts, with_schema

spark = SparkSession.active()
FOLDER = os.environ["PIPELINE_ROWS"]
SCHEMA = "shop INT, id STRING, price BIGINT, version BIGINT, gone BOOLEAN"


@dp.temporary_view
def events():
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(FOLDER)


dp.create_streaming_table("merged.default.orders")
dp.create_auto_cdc_flow(
    target="merged.default.orders",
    source="events",
    keys=["shop", "id"],
    sequence_by="version",
    apply_as_deletes="gone",
    stored_as_scd_type=1,
)


@dp.materialized_view
def rows_of_auto_cdc():
    return spark.read.table("merged.default.orders").select("shop", "id", "price", "version")


@dp.materialized_view
def rows_of_upserts():
    rows = with_schema(spark.read.schema(SCHEMA).json(FOLDER), SCHEMA, streaming=False)
    newest = upserts(rows, keys=["shop", "id"], sequence_by="version", deleted="gone")
    return newest.select("shop", "id", "price", "version")


@dp.table
def changes_of_upserts():
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(FOLDER)
    rows = with_schema(rows, SCHEMA, streaming=True)
    newest = upserts(rows, keys=["shop", "id"], sequence_by="version", deleted="gone")
    return newest.select("row_kind", "shop", "id", "price", "version")
