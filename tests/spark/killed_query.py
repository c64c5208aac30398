"""A streaming query as a program that a test kills: `python -m tests.spark.killed_query FOLDER`.

Its sink is idempotent: each epoch's output is one file, named by the epoch, put in place in one step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from foldflight import connect
from foldflight.client import Functions
from foldflight.spark.java import prepare_local


def session(folder: Path) -> Any:
    prepare_local(os.environ)
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )


def run_stream(spark: Any, folder: Path, functions: Functions) -> None:
    """Fold all files of the input, one in each epoch."""
    from pyspark.sql import DataFrame

    from foldflight.spark import group_by
    from tests.spark.test_stream import aggregates

    def sink(batch: DataFrame, epoch: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        partial = folder / "output" / f".{epoch}"
        partial.write_text(json.dumps(rows))
        partial.rename(folder / "output" / f"{epoch:04}.json")

    orders = (
        spark.readStream.schema("op string, customer string, amount bigint, qty int, x double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "input"))
    )
    live = group_by(orders, "customer", row_kind="op", emit="changelog", buckets=4).agg(**aggregates(functions))
    query = (
        live.writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    print("STARTED", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    spark = session(Path(sys.argv[1]))
    run_stream(spark, Path(sys.argv[1]), connect("embedded:tests.spark.spark_functions"))
    spark.stop()
