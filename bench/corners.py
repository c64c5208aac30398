"""Queries that no compiled loop folds as the rows come: ORDER BY in a call, and DISTINCT.

`ema` is an exponential average, whose value depends on the order of the rows. Beside it Spark sorts the same rows by
group and order, and a `mapInArrow` counts them: no way of folding sorted rows in Python can be faster. DISTINCT is
beside Spark's own. Many calls over few rows show what planning takes. All ways run in one session, in alternating
rounds.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.data import Figure, Sizes
from bench.spark_batch import BUILT_IN, EMBEDDED, Query, consume, medians, rates_of, session, written
from foldflight.client import connect
from foldflight.functions import udaf

SUITE = "corners"
SORTED = "rows sorted by Spark, counted in Python"
UNORDERED = "foldflight, unordered"
GROUPS = 10_000
DIFFERENT = 100
FEW = 100
CALLS = (1, 60, 150)
NAMES = ("sum", "min", "max", "count", "avg")


@udaf(name="ema", version="1")
class Ema:
    """An exponential average: each row has a tenth of the weight that is left."""

    def create_accumulator(self) -> float:
        """Return the average of no rows."""
        return 0.0

    def accumulate(self, average: float, value: float) -> float:
        """Return the average with one more row."""
        return 0.9 * average + 0.1 * value

    def get_value(self, average: float) -> float:
        """Return the average."""
        return average


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure ORDER BY in calls by numbers and by datetimes, and DISTINCT."""
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:
        rows = data(sizes.rows)
        for case, ways in cases().items():
            yield from rates_of(spark, Path(folder), (SUITE, case), (rows, rows), (ways, {}))
        few = spark.read.parquet(str(written(Path(folder), "few", data(FEW))))
        for calls in CALLS:
            ways = {way: partial(_planned_and_run, query, few) for way, query in many(calls).items()}
            for way, seconds in medians(ways).items():
                yield Figure(SUITE, f"{calls} calls over {FEW} rows", way, seconds, "s")


def cases() -> Mapping[str, Mapping[str, Query]]:
    """Return the ways of each case."""
    functions, built_in = connect(Ema), connect("embedded:")
    count = built_in["count"]("v").distinct()
    return {
        f"ema ORDER BY {key}": {
            SORTED: partial(_sorted, key),
            UNORDERED: partial(_grouped, functions["ema"]("x")),
            EMBEDDED: partial(_grouped, functions["ema"]("x").order_by(key)),
        }
        for key in ("t", "at")
    } | {
        "count(DISTINCT v)": {BUILT_IN: _distinct, EMBEDDED: partial(_grouped, count)},
    }


def many(calls: int) -> Mapping[str, Query]:
    """Return the ways of a query of so many calls over few columns."""
    functions = connect("embedded:")
    uses = [(NAMES[number % len(NAMES)], f"v + {number // len(NAMES)}") for number in range(calls)]
    ours = {f"o{number}": functions[name](column) for number, (name, column) in enumerate(uses)}

    def built_in(frame: Any) -> Any:
        from pyspark.sql import functions as sf

        calls = [sf.expr(f"{name}({column})").alias(f"o{number}") for number, (name, column) in enumerate(uses)]
        return frame.groupBy("k").agg(*calls)

    def query(frame: Any) -> Any:
        from foldflight.spark import group_by

        return group_by(frame, "k").agg(**ours)

    return {BUILT_IN: built_in, EMBEDDED: query}


def data(rows: int) -> pa.Table:
    """Return rows in random order: `k` of 10,000 groups, `t` and `at` of different times, `v` of 100 values."""
    chosen = np.random.default_rng(1)
    times = chosen.integers(0, 1 << 40, rows)
    return pa.table(
        {
            "k": chosen.integers(0, GROUPS, rows),
            "t": times,
            "at": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "v": chosen.integers(0, DIFFERENT, rows),
            "x": chosen.normal(size=rows),
        }
    )


def _planned_and_run(query: Query, frame: Any) -> float:
    """Return the seconds that a query takes, from its calls to its last row."""
    start = time.perf_counter()
    consume(query(frame))
    return time.perf_counter() - start


def _grouped(call: Any, frame: Any) -> Any:
    from foldflight.spark import group_by

    return group_by(frame, "k").agg(o=call)


def _sorted(key: str, frame: Any) -> Any:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    rows = frame.select("k", key, "x").repartition("k").sortWithinPartitions("k", key)
    return rows.mapInArrow(count, "rows bigint")


def _distinct(frame: Any) -> Any:
    from pyspark.sql import functions as sf

    return frame.groupBy("k").agg(sf.countDistinct("v").alias("o"))
