"""Streams: the state table beside Spark's own aggregate in the JVM, and its Python operator called for each key.

Each way reads the same files, a few to an epoch, keeps its state in RocksDB, and writes its changes nowhere. The time
of an epoch is the one that Spark reports for it, with all that Spark does for an epoch.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import SCHEMA, table
from bench.spark_batch import built_in, ours, session
from examples.flights_stream import SETTINGS
from foldflight.client import connect

BUILT_IN = "Spark's aggregate (no Python)"
EMBEDDED = "foldflight, embedded"
REMOTE = "foldflight, remote"
PER_KEY = "transformWithStateInPandas"

LOAD_ROWS = 1_000_000
DDL = "k bigint, v bigint, w int"
CORES = os.cpu_count() or 1

Query = Callable[[Any], Any]


@dataclass(frozen=True)
class Epochs:
    """The epochs of one query that count: those after the first, which starts processes and compiles plans.

    Args:
        way: What was measured.
        groups: How many groups there are in all.
        rows: Rows of one epoch.
        seconds: The time of each epoch.
    """

    way: str
    groups: int
    rows: int
    seconds: tuple[float, ...]

    @property
    def typical_s(self) -> float:
        """The median."""
        return statistics.median(self.seconds)


def throughput(url: str, *, rows: int = 500_000, groups: int = 100_000, epochs: int = 6) -> Iterator[Epochs]:
    """Measure epochs of many rows; the operator for each key gets a hundredth of them."""
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, _streaming() as spark:
        large, small = Path(folder, "large"), Path(folder, "small")
        for number in range(epochs):
            _write(large, number, table(rows, groups, seed=number))
            _write(small, number, table(rows // 100, groups, seed=number))
        for way, query in {**_ways(url), PER_KEY: _per_key}.items():
            data, count = (small, rows // 100) if way == PER_KEY else (large, rows)
            yield Epochs(way, groups, count, _epochs(spark, data, query, Path(folder, way))[1:])


def touched(url: str, totals: list[int], *, rows: int = 10_000, epochs: int = 12) -> Iterator[Epochs]:
    """Measure epochs that touch `rows` groups among a number of groups that a few large epochs have loaded."""
    with _streaming() as spark:
        for total in totals:
            with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
                data = Path(folder, "data")
                loads = _write_load(data, total)
                chosen = np.random.default_rng(total)
                for number in range(epochs):
                    keys = chosen.choice(total, rows, replace=False)
                    _write(data, loads + number, _rows(keys, seed=number))
                for way, query in _ways(url).items():
                    if way == REMOTE:
                        continue  # the state table is the same
                    seconds = _epochs(spark, data, query, Path(folder, way))
                    yield Epochs(way, total, rows, seconds[loads:])


def _ways(url: str) -> dict[str, Query]:
    return {
        BUILT_IN: built_in,
        EMBEDDED: ours(connect("embedded:examples.weighted_avg")),
        REMOTE: ours(connect(url)),
    }


def _per_key(frame: Any) -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class Averages(StatefulProcessor):
        def init(self, handle):
            self.state = handle.getValueState("state", "sum bigint, count bigint")

        def handleInputRows(self, key, rows, timerValues):  # noqa: ARG002, N802, N803 - Spark's names
            import pandas as pd

            total, count = self.state.get() or (0, 0)
            for each in rows:
                total += int((each["v"] * each["w"]).sum())
                count += int(each["w"].sum())
            self.state.update((total, count))
            yield pd.DataFrame({"k": [key[0]], "o": [int(total / count)]})

        def close(self):
            pass

    return frame.groupBy("k").transformWithStateInPandas(Averages(), "k bigint, o bigint", "Update", "None")


def _epochs(spark: Any, data: Path, query: Query, checkpoint: Path) -> tuple[float, ...]:
    """Run a query over all files, and return the seconds of each epoch."""
    source = spark.readStream.schema(DDL).option("maxFilesPerTrigger", CORES).parquet(str(data))
    running = (
        query(source)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    return tuple(each.durationMs["triggerExecution"] / 1000 for each in running.recentProgress if each.numInputRows)


def _write_load(folder: Path, total: int) -> int:
    """Write each group once, and return in how many epochs."""
    keys = np.random.default_rng(0).permutation(total)
    parts = np.array_split(keys, -(-total // LOAD_ROWS))
    for number, part in enumerate(parts):
        _write(folder, number, _rows(part, seed=number))
    return len(parts)


def _rows(keys: Any, seed: int) -> pa.Table:
    return table(len(keys), 1, seed).set_column(0, SCHEMA.field("k"), pa.array(keys, pa.int64()))


def _write(folder: Path, epoch: int, rows: pa.Table) -> None:
    """Write the files of one epoch: one for each core, of a time that puts them in order."""
    folder.mkdir(exist_ok=True)
    size = -(-rows.num_rows // CORES)
    for part in range(CORES):
        path = folder / f"{epoch:03}-{part}.parquet"
        pq.write_table(rows.slice(part * size, size), path)
        os.utime(path, (epoch + 1, epoch + 1))


def _streaming() -> Any:
    return session(SETTINGS)
