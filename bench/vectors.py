"""Vectors of 384 items: the centroid of the gallery beside NumPy's `add.reduceat` and Spark's `vector_avg`.

All take the same rows. NumPy sorts them by group, adds in 64 bits like ours, and has no NULLs, states or retractions.
Spark's sums have 32 bits, so its means are no reference to the last bit. It never passes a row to Python. For arrays
this takes longer than `vector_avg` as a whole, so the limit of the pipe is beside them, and scans, whose tasks read the
files themselves. CPU times beside the rates depend less on what else the machine does.

The goal of the loopback is 0.7 of the rate of the embedded exchange, whose goal is 0.6 of NumPy. The embedded exchange
is many times as fast as NumPy, and the loopback copies each item several times, so two figures are shown: 0.42 of
NumPy, which is this goal, and 0.7 of the embedded exchange as it is, which the loopback does not reach.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.change_data import cpu_seconds_by_program
from bench.data import Figure, Sizes, best_of
from bench.fold import COMPILED, INTERPRETED, folded
from bench.scan import SCAN
from bench.spark_batch import EMBEDDED, LIMIT, REMOTE, Query, consume, medians, session, written
from examples.gallery.centroid import ITEMS, Centroid
from foldflight.cli.demo import server_process
from foldflight.client import Functions, Transport, connect
from foldflight.client.exchange import PROGRAMS
from foldflight.exchange.frames import Open, Returns
from foldflight.fold.aggregate.bound_calls import BoundCall, bind_calls
from foldflight.functions import Call, Registry, function_of, parse_type

SUITE = "vectors"
REDUCED, AVERAGED = "numpy add.reduceat", "vector_avg (no Python)"
EXCHANGED, FLOWN = "exchange, embedded", "exchange, loopback Flight"
SCAN_REMOTE = f"{SCAN}, remote"
ROWS_MAX, GROUPS, CHUNK_ROWS = 200_000, 1_000, 1 << 13
# Spark needs a quarter of a second to start a query, in which it could read a tenth of the rows. So it reads the files
# this many times, by other names, which take no place on the disk.
TIMES_READ = 16
CPU = "CPU of a million rows in Spark"
CALL = Call("centroid", ("v",))
COLUMNS = pa.schema([("slot", pa.int32()), ("v", parse_type(f"VECTOR({ITEMS})"))])
OPENING = Open(calls=(CALL,), columns=COLUMNS, returns=Returns(states=False, outputs=True))
KEY = "the key of a bench that signs"
ROW_BYTES = 4 * ITEMS


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure the layers below Spark, then a query in Spark."""
    rows = vectors(min(sizes.rows // 10, ROWS_MAX))
    place = f"{ITEMS} items, {GROUPS:,} groups"
    settings = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder,
        server_process(Path(folder) / "server.log", "--bundle-keys", KEY) as url,
    ):
        remote = connect(url, bundle_key=KEY).register(Centroid)
        for subject, run in _ways(rows, remote.transport).items():
            yield Figure(SUITE, place, subject, rows.num_rows / best_of(3, run), "rows/s")
        with session(settings) as spark:
            data = rows.select(["slot"]).append_column("v", rows["v"].cast(pa.list_(pa.float32())))
            path = written(Path(folder), "vectors", data)
            for file in list(path.iterdir()):
                for number in range(1, TIMES_READ):
                    file.with_name(f"{file.stem}-{number}.parquet").hardlink_to(file)
            count = TIMES_READ * rows.num_rows
            ways = _queries(spark, path, remote)
            for run in ways.values():
                run()  # starts workers, compiles plans and functions, fills the cache of files
            used: dict[str, list[float]] = {way: [] for way in ways}
            timed = {way: partial(_seconds, run, used[way]) for way, run in ways.items()}
            for way, seconds in medians(timed).items():
                yield Figure(SUITE, f"a batch in Spark, {place}", way, count / seconds, "rows/s")
                yield Figure(SUITE, f"{CPU}, {place}", way, 1e6 * statistics.median(used[way]) / count, "s")


def _seconds(run: Callable[[], None], used: list[float]) -> float:
    """Run a query, note its CPU time, and return its time."""
    before, start = sum(cpu_seconds_by_program().values()), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    used.append(sum(cpu_seconds_by_program().values()) - before)
    return seconds


def vectors(rows: int) -> pa.Table:
    """Return rows of a slot and a vector."""
    chosen = np.random.default_rng(1)
    items = pa.array(chosen.standard_normal(rows * ITEMS, np.float32))
    slots = pa.array(chosen.integers(0, GROUPS, rows), pa.int32())
    return pa.table([slots, pa.FixedSizeListArray.from_arrays(items, type=COLUMNS.field("v").type)], schema=COLUMNS)


def _queries(spark: Any, path: Path, remote: Functions) -> dict[str, Callable[[], None]]:
    """Return the queries over files. The first four are read by Spark."""
    from foldflight.spark import configure, scan

    configure(spark, row_bytes=ROW_BYTES)
    given, embedded = scan(spark, path), ours(connect(Centroid))
    read = {AVERAGED: averaged, LIMIT: counted, EMBEDDED: embedded, REMOTE: ours(remote)}
    ways = {way: partial(_run, query, given.df) for way, query in read.items()}
    scans = {SCAN: embedded, SCAN_REMOTE: ours(remote)}
    return ways | {way: partial(_run, query, given) for way, query in scans.items()}


def _run(query: Query, rows: Any) -> None:
    consume(query(rows))


def _ways(rows: pa.Table, remote: Transport) -> dict[str, Callable[[], object]]:
    chunks = rows.to_batches(max_chunksize=CHUNK_ROWS)
    embedded, compiled = connect(Centroid).transport, calls_of(compiled=True)
    PROGRAMS.demand(compiled[0].bound)  # compiling is not measured
    return {
        REDUCED: lambda: reduced(chunks),
        INTERPRETED: lambda: folded(calls_of(compiled=False), chunks),
        COMPILED: lambda: folded(compiled, chunks),
        EXCHANGED: lambda: exchanged(embedded, chunks),
        FLOWN: lambda: exchanged(remote, chunks),
    }


def calls_of(*, compiled: bool) -> list[BoundCall]:
    """Return the call, whose function is compiled from the first row on, or never."""
    function = function_of(Centroid)
    assert function is not None
    return bind_calls(Registry([dataclasses.replace(function, compile=compiled)]), [CALL], COLUMNS)


def reduced(chunks: list[pa.RecordBatch]) -> np.ndarray:
    """Return the means by NumPy, for each chunk the sums of its groups."""
    sums, counts = np.zeros((GROUPS, ITEMS)), np.zeros(GROUPS)
    for chunk in chunks:
        slots = chunk.column("slot").to_numpy()
        items = chunk.column("v").flatten().to_numpy().reshape(-1, ITEMS)
        order = np.argsort(slots, kind="stable")
        slots = slots[order]
        starts = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
        sums[slots[starts]] += np.add.reduceat(items[order], starts, axis=0, dtype=np.float64)
        counts += np.bincount(slots, minlength=GROUPS)
    return (sums / counts[:, None]).astype(np.float32)


def exchanged(transport: Transport, chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the outputs of all groups, folded in one epoch of an exchange."""
    with transport.open(OPENING) as exchange:
        for chunk in chunks:
            exchange.chunk(chunk)
        exchange.barrier(1)
        return exchange.results(1)


def averaged(frame: Any) -> Any:
    """Return the query in SQL."""
    from pyspark.sql import functions as sf

    return frame.groupBy("slot").agg(sf.vector_avg("v").alias("o"))


def counted(frame: Any) -> Any:
    """Return the query that sends the same columns to Python, which only counts them."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    return frame.select("slot", "v").mapInArrow(count, "rows bigint")


def ours(functions: Functions) -> Query:
    """Return the query with our function."""
    from foldflight.spark import group_by

    return lambda frame: group_by(frame, "slot").agg(o=functions["centroid"]("v"))
