"""The job of bench/sail.py in Sail's environment: fold Parquet files, and print the seconds of each way as JSON.

Usage: python sail_job.py FILES...
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

from bench.data import best_of
from bench.spark_batch import BUILT_IN, EMBEDDED, LIFTED, ROUNDS, built_in, consume, ours
from foldflight.client import connect


def main() -> None:
    """Measure each file in turns of the three ways, after one run of each that is not counted."""
    server = SparkConnectServer("127.0.0.1", 0)
    server.start()
    spark = SparkSession.builder.remote("sc://{}:{}".format(*server.listening_address)).getOrCreate()
    functions = connect("embedded:examples.weighted_avg")
    ways = {
        EMBEDDED: ours(functions, "k", plan="fold"),
        LIFTED: ours(functions, "k", plan="lifted"),
        BUILT_IN: built_in("k"),
    }
    found = {path: _seconds(spark.read.parquet(path), ways) for path in sys.argv[1:]}
    spark.stop()
    server.stop()  # the process would not end before
    print(json.dumps(found))


def _seconds(frame: Any, ways: dict[str, Any]) -> dict[str, float]:
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for query in ways.values():
        consume(query(frame))
    for _ in range(ROUNDS):
        for way, query in ways.items():
            taken[way].append(best_of(1, lambda query=query: consume(query(frame))))
    return {way: statistics.median(seconds) for way, seconds in taken.items()}


if __name__ == "__main__":
    main()
