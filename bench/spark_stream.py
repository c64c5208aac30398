"""Streams: the state table, Spark's own aggregate in the JVM, and its Python operator that is called for each key.

Each way reads the same files, several in each epoch, and keeps its state in RocksDB. Changes are not written. The time
of an epoch is the one that Spark reports, including all of Spark's own work. All ways but the slowest, which is called
for each key, run one after the other in each of several rounds, because the virtual machine is slower at first. A
figure is the median of the epochs of all rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import SCHEMA, Figure, Sizes, table
from bench.spark_batch import EMBEDDED, REMOTE, ROUNDS, built_in, ours, session
from examples.flights_stream import SETTINGS
from foldflight.client import connect

SUITE = "stream"
BUILT_IN = "Spark's aggregate (no Python)"
PER_KEY = "transformWithStateInPandas"
LONGEST = "the longest"

ROWS, GROUPS, EPOCHS = 500_000, 100_000, 6
TOUCHED, TOUCHED_EPOCHS, TOUCHED_ROUNDS = 10_000, 10, 2
LOAD_ROWS = 1_000_000
DDL = "k bigint, v bigint, w int"
CORES = os.cpu_count() or 1
# What docs/how-to/tune-a-session.md advises.
BUCKETS = 4 * CORES

Query = Callable[[Any], Any]


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure epochs of many rows, and epochs with few of many groups."""
    with streaming() as spark:
        yield from _throughput(spark, sizes.url)
        for total in sizes.stream_groups:
            yield from _touched(spark, sizes.url, total)


def _throughput(spark: Any, url: str) -> Iterator[Figure]:
    """Measure rows per second. The operator that is called for each key gets a hundredth of the rows."""
    case = f"{ROWS:,} rows an epoch, {GROUPS:,} groups"
    with _folder() as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        for number in range(EPOCHS):
            _write(large, number, table(ROWS, GROUPS, seed=number))
            _write(small, number, table(ROWS // 100, GROUPS, seed=number))
        # The first epoch of each run starts processes and compiles plans.
        for way, runs in _rounds(spark, large, _ways(url), Path(folder), ROUNDS).items():
            yield Figure(SUITE, case, way, ROWS / statistics.median(_all(run[1:] for run in runs)), "rows/s")
        seconds = epochs(spark, small, _per_key, Path(folder, PER_KEY))[1:]
        yield Figure(SUITE, case, PER_KEY, ROWS // 100 / statistics.median(seconds), "rows/s")


def _touched(spark: Any, url: str, total: int) -> Iterator[Figure]:
    """Measure epochs with few of a number of groups, which a few large epochs have loaded."""
    case = f"{TOUCHED:,} of {total:,} groups touched"
    with _folder() as folder:
        data = Path(folder, "data")
        loads = _write_load(data, total)
        chosen = np.random.default_rng(total)
        for number in range(TOUCHED_EPOCHS):
            keys = chosen.choice(total, TOUCHED, replace=False)
            _write(data, loads + number, _rows(keys, seed=number))
        ways = _ways(url)
        del ways[REMOTE]  # the state table is the same
        for way, runs in _rounds(spark, data, ways, Path(folder), TOUCHED_ROUNDS).items():
            yield Figure(SUITE, case, way, statistics.median(_all(run[loads:] for run in runs)), "s")
            yield Figure(SUITE, f"{case}, {LONGEST}", way, statistics.median(max(run[loads:]) for run in runs), "s")


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for checkpoints, in which Spark maintains the stores of a query even after it has ended."""
    return tempfile.TemporaryDirectory(prefix="foldflight-bench-", ignore_cleanup_errors=True)


def _rounds(
    spark: Any, data: Path, ways: Mapping[str, Query], folder: Path, rounds: int
) -> dict[str, list[tuple[float, ...]]]:
    """Return the seconds of each epoch of each way, in several rounds."""
    taken: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, query in ways.items():
            taken[way].append(epochs(spark, data, query, folder / f"{way} {number}"))
    return taken


def _all(runs: Iterable[tuple[float, ...]]) -> list[float]:
    return [seconds for run in runs for seconds in run]


def _ways(url: str) -> dict[str, Query]:
    return {
        BUILT_IN: built_in("k"),
        EMBEDDED: ours(connect("embedded:examples.weighted_avg"), "k", buckets=BUCKETS),
        REMOTE: ours(connect(url), "k", buckets=BUCKETS),
    }


def _per_key(frame: Any) -> Any:
    from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

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


def epochs(
    spark: Any, data: Path, query: Query, checkpoint: Path, *, format_: str = "parquet", files: int = CORES
) -> tuple[float, ...]:
    """Run a query over all files, `files` of them an epoch, and return the seconds of each epoch."""
    source = spark.readStream.schema(DDL).option("maxFilesPerTrigger", files).format(format_).load(str(data))
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
    """Write each group once, and return the number of epochs."""
    keys = np.random.default_rng(0).permutation(total)
    parts = np.array_split(keys, -(-total // LOAD_ROWS))
    for number, part in enumerate(parts):
        _write(folder, number, _rows(part, seed=number))
    return len(parts)


def _rows(keys: Any, seed: int) -> pa.Table:
    return table(len(keys), 1, seed).set_column(0, SCHEMA.field("k"), pa.array(keys, pa.int64()))


def _write(folder: Path, epoch: int, rows: pa.Table) -> None:
    """Write the files of one epoch: one for each core, with modification times in order."""
    folder.mkdir(exist_ok=True)
    size = -(-rows.num_rows // CORES)
    for part in range(CORES):
        path = folder / f"{epoch:03}-{part}.parquet"
        pq.write_table(rows.slice(part * size, size), path)
        os.utime(path, (epoch + 1, epoch + 1))


def streaming() -> Any:
    """Start Spark with the settings of a stream."""
    return session(SETTINGS)
