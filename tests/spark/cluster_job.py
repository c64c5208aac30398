"""A stream and batches on a cluster, as a program for spark-submit: `job.py FOLDER [URL]`.

It is copied beside `spark_functions.py`, and imports nothing of the repository. It folds the files of FOLDER/input, one
in each epoch, and meanwhile one batch after the other, until FOLDER/end exists. What it finds is written as files of
JSON: output/EPOCH.json has the changes of an epoch, batches/N.json the rows of a batch, places.json where the executors
import foldflight from.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from foldflight import connect
from foldflight.spark import configure, group_by

folder = Path(sys.argv[1])
# On a busy machine a server may take longer for an answer than the 10 s after which `connect` gives up.
patient = {"deadline_s": 60, "patience_s": 240} if len(sys.argv) > 2 else {}
functions = connect(sys.argv[2] if len(sys.argv) > 2 else "embedded:spark_functions", **patient)
spark = SparkSession.builder.getOrCreate()
configure(spark)


def write_rows(path, rows):
    """Put a file in place in one step."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(rows))
    partial.rename(path)


def places(_):
    """Return, on an executor, where foldflight and its Python are."""
    import foldflight

    yield sys.executable, foldflight.__file__


def sink(batch, epoch):
    write_rows(folder / "output" / f"{epoch:04}.json", [row.asDict() for row in batch.collect()])


count, price = functions["count"], functions["weighted_avg"]
orders = (
    spark.readStream.schema("op string, customer string, amount bigint, qty int, x double")
    .option("maxFilesPerTrigger", 1)
    .parquet(str(folder / "input"))
)
live = group_by(orders, "customer", row_kind="op", emit="changelog", buckets=4).agg(
    price=price("amount", "qty").where("amount IS NOT NULL"),
    n=count(),
    different=count("amount").distinct(),
    bundled=functions["bundled_sum"]("amount"),
    total=functions["sum"]("x"),
    large=count().where("amount > 50"),
)
query = (
    live.writeStream.outputMode("update")
    .foreachBatch(sink)
    .option("checkpointLocation", str(folder / "checkpoint"))
    .start()
)
write_rows(folder / "places.json", spark.sparkContext.parallelize(range(3), 3).mapPartitions(places).collect())
rows = spark.range(60_000, numPartitions=6).select(
    (sf.col("id") % 500).alias("k"), (sf.col("id") % 97).alias("amount"), sf.lit(1).cast("int").alias("qty")
)
# Without the lift, Python folds the rows.
prices = group_by(rows, "k", plan="fold").agg(
    n=count(), total=functions["sum"]("amount"), different=count("amount").distinct(), price=price("amount", "qty")
)
while not (folder / "end").exists() and query.isActive:
    write_rows(folder / "batches" / f"{time.time_ns()}.json", sorted(map(tuple, prices.collect())))
query.processAllAvailable()  # raises what has ended the query
query.stop()
spark.stop()
