"""A stream and a batch query over servers with faults: `python -m tests.spark.chaos_query FOLDER URLS`.

It prints what a test needs to know, a line each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from foldflight import connect
from tests.spark.killed_query import run_stream, session

ROWS, GROUPS, BATCHES_MIN = 60_000, 500, 5
ENOUGH = "enough"
"""A file in the folder: batches go on until it is there."""


def run_batch(spark: Any, functions: Any) -> bool:
    """Aggregate rows on servers and in Spark, and return whether the results are equal."""
    from pyspark.sql import functions as sf

    from foldflight.spark import group_by

    rows = spark.range(ROWS, numPartitions=4).select(
        (sf.col("id") % GROUPS).alias("k"), (sf.col("id") % 97).alias("amount"), sf.lit(1).cast("int").alias("qty")
    )
    ours = group_by(rows, "k").agg(
        n=functions["count"](),
        total=functions["sum"]("amount"),
        different=functions["count"]("amount").distinct(),
        price=functions["weighted_avg"]("amount", "qty"),
    )
    theirs = rows.groupBy("k").agg(
        sf.count("*"), sf.sum("amount"), sf.countDistinct("amount"), sf.floor(sf.avg("amount")).cast("bigint")
    )
    return sorted(map(tuple, ours.collect())) == sorted(map(tuple, theirs.collect()))


def failed_tasks(spark: Any) -> int:
    """Return the number of failed tasks in Spark."""
    summaries = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(summaries.apply(place).failedTasks() for place in range(summaries.size()))


def main(folder: Path, urls: str) -> None:
    spark = session(folder)
    functions = connect(urls, deadline_s=8.0, patience_s=300.0)
    run_stream(spark, folder, functions)
    print("STREAMED", flush=True)
    agree: list[bool] = []
    while len(agree) < BATCHES_MIN or not (folder / ENOUGH).exists():
        agree.append(run_batch(spark, functions))
    print(f"BATCHES {sum(agree)} of {len(agree)}", flush=True)
    print(f"FAILED TASKS {failed_tasks(spark)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
