"""A Spark job for the fleet: a stream of changes, folded by servers, until the file `stop` is in its folder.

A failed task fails the query: local mode tries each task once. At the end the changelog, applied, must be what plain
Python makes of all the rows: `python stream_job.py FOLDER SERVERS`.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from foldflight import connect
from foldflight.spark import group_by

CUSTOMERS = [f"customer {number}" for number in range(40)]
ROWS = 300
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Orders:
    """Rows that are inserted and retracted, and those that remain."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.present: list[tuple[str, int]] = []

    def epoch(self) -> pa.Table:
        """Return the rows of one epoch: inserts, and retractions of rows of earlier epochs."""
        rows = []
        for _ in range(ROWS // 3 if len(self.present) > ROWS else 0):
            rows.append(("-D", *self.present.pop(self.random.randrange(len(self.present)))))
        new = [(self.random.choice(CUSTOMERS), self.random.randrange(1000)) for _ in range(ROWS)]
        self.present += new
        rows += [("+I", *each) for each in new]
        return pa.table(dict(zip(("op", "customer", "amount"), map(list, zip(*rows, strict=True)), strict=True)))

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return count and sum by customer."""
        counts = Counter(customer for customer, _ in self.present)
        sums: Counter[str] = Counter()
        for customer, amount in self.present:
            sums[customer] += amount
        return {customer: (counts[customer], sums[customer]) for customer in counts}


def main(folder: Path, servers: str) -> None:
    work = Path(tempfile.mkdtemp())
    (work / "input").mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    functions = connect(servers)
    count, total = functions["count"], functions["sum"]
    result: dict[str, tuple[int, int]] = {}
    epochs = 0

    def take(batch: DataFrame, epoch: int) -> None:
        nonlocal epochs
        for row in batch.collect():
            result.pop(row["customer"], None)
            if row["row_kind"] in {"+I", "+U"}:
                result[row["customer"]] = (row["n"], row["total"])
        epochs += 1
        print(f"epoch {epoch}: {len(result)} customers", flush=True)

    source = spark.readStream.schema("op string, customer string, amount bigint").option("maxFilesPerTrigger", 1)
    query = (
        group_by(source.parquet(str(work / "input")), "customer", row_kind="op", emit="changelog")
        .agg(n=count(), total=total("amount"))
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(work / "checkpoint"))
        .foreachBatch(take)
        .start()
    )
    orders, file_number = Orders(), 0
    while not (folder / "stop").exists() and query.isActive:
        pq.write_table(orders.epoch(), work / "draft")
        os.utime(work / "draft", (file_number, file_number))  # Spark takes files by their time
        (work / "draft").rename(work / "input" / f"{file_number:05}.parquet")
        file_number += 1
        while file_number > epochs + 1 and query.isActive:
            time.sleep(0.05)
    query.processAllAvailable()
    query.stop()
    assert epochs == file_number, (epochs, file_number)
    assert result == orders.totals()
    print(f"{file_number} epochs, {len(result)} customers: every total is right", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
