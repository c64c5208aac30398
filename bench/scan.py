"""One query over files of Parquet: rows that tasks read themselves, rows from Spark, and built-in SQL.

The data has many more rows than that of other suites, so that planning and starting two stages, which all ways do, is a
small part of the time. The last case is a table with 200 columns like TPC-H's lineitem, with texts as keys and a
condition on days and on a DECIMAL. The reader alone is compared with a scan of pyarrow by as many threads; both read
the files several times, so that the start of Spark's query is a small part of the time.

All ways run in turn in each round, also slow ones, so that what else the machine does slows all alike. The CPU time of
the same runs, which depends less on it, tells where the time goes: to Java, or to the Python of the tasks.
"""

from __future__ import annotations

import decimal
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bench.change_data import cpu_seconds_by_program
from bench.data import Figure, Sizes, lineitem, table
from bench.spark_batch import BUILT_IN, EMBEDDED, LIFTED, ROUNDS, built_in, consume, ours, session
from foldflight.client import connect

SUITE = "scan"
SCAN = "foldflight, scan"
# Spark has to read what a condition passes that Arrow does not evaluate. All rows pass this one.
BY_SPARK, LEFT_TO_SPARK = "foldflight, a scan that Spark reads", "v + 0 >= 0"
READER, PYARROW = "the reader of a scan alone", "pyarrow's scan"
THREE_COLUMNS = "read three columns"
WIDE = "like lineitem: 3 of 200 columns"
FILES = 8
TIMES_ROWS = 20
TIMES_READ = 10
COLUMNS = 200
WHERE = "day <= DATE'1998-09-02' AND discount <= 0.08"


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure all ways over the same files."""
    shuffle = {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:
        for groups in sizes.groups:
            rows = TIMES_ROWS * sizes.rows // FILES
            path = Path(folder) / str(groups)
            for file in range(FILES):
                _write(table(rows, groups, file), path, file)
            ways = _ways(spark, path, ("k",), None)
            yield from _figures((f"{groups:,} groups", f"CPU, {groups:,} keys"), FILES * rows, ways)
            if groups == min(sizes.groups):
                yield from _readers(spark, path, FILES * rows)
        wide = _wide(sizes.rows)
        path = Path(folder) / "wide"
        _write(wide, path, 0, compression="zstd", store_decimal_as_integer=True)  # as Spark and DuckDB store them
        for file in range(1, FILES):
            shutil.copy(path / "0.parquet", path / f"{file}.parquet")
        ways = _ways(spark, path, ("flag", "status"), WHERE)
        yield from _figures((WIDE, "CPU, 3 of 200 columns"), FILES * wide.num_rows, ways)


def _write(data: pa.Table, folder: Path, file: int, **options: Any) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(data, folder / f"{file}.parquet", row_group_size=1_000_000, **options)


def _wide(rows: int) -> pa.Table:
    """Return rows of lineitem with days and discounts, and with columns that nobody reads."""
    items = lineitem(rows)
    chosen = np.random.default_rng(2)
    days = chosen.integers(8035, 10592, items.num_rows)
    items = items.append_column("day", pa.array(days, pa.int32()).cast(pa.date32()))
    cents = pa.array([decimal.Decimal(each).scaleb(-2) for each in range(11)], pa.decimal128(15, 2))
    items = items.append_column("discount", cents.take(pa.array(chosen.integers(0, 11, items.num_rows))))
    other = pa.array(days % 97, pa.int32())
    for number in range(COLUMNS - items.num_columns):
        items = items.append_column(f"other_{number}", other)
    return items


def _ways(spark: Any, path: Path, keys: tuple[str, ...], where: str | None) -> Mapping[str, Callable[[], None]]:
    from foldflight.spark import scan

    functions = connect("embedded:examples.weighted_avg")
    given = scan(spark, path, where=where)
    queries = {
        BUILT_IN: built_in(*keys),
        LIFTED: ours(functions, *keys, plan="lifted"),
        EMBEDDED: ours(functions, *keys, plan="fold"),
    }
    ways = {way: partial(_run, query, given.df) for way, query in queries.items()}
    left = scan(spark, path, where=LEFT_TO_SPARK if where is None else f"{where} AND {LEFT_TO_SPARK}")
    return {
        **ways,
        SCAN: partial(_run, ours(functions, *keys), given),
        BY_SPARK: partial(_run, queries[EMBEDDED], left),
    }


def _run(query: Callable[[Any], Any], rows: Any) -> None:
    consume(query(rows))


def _figures(cases: tuple[str, str], rows: int, ways: Mapping[str, Callable[[], None]]) -> Iterator[Figure]:
    """Measure ways in alternating rounds: rates in the first case, CPU times of Java and Python in the second."""
    for run in ways.values():
        run()  # starts workers, compiles functions, fills the cache of files
    taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run in ways.items():
            before, start = cpu_seconds_by_program(), time.perf_counter()
            run()
            seconds, after = time.perf_counter() - start, cpu_seconds_by_program()
            spent = {name: after[name] - before.get(name, 0) for name in after}
            java = spent.pop("java", 0)
            taken[way].append((seconds, java, sum(spent.values())))
    medians = {way: tuple(map(statistics.median, zip(*each, strict=True))) for way, each in taken.items()}
    for way, (seconds, _, _) in medians.items():
        yield Figure(SUITE, cases[0], way, rows / seconds, "rows/s")
    for way, (_, java, python) in medians.items():
        yield Figure(SUITE, cases[1], way, java + python, "s")
        yield Figure(SUITE, cases[1], f"{way}: in Java", java, "s")


def _readers(spark: Any, path: Path, rows: int) -> Iterator[Figure]:
    """Measure the reader in Spark's tasks, with the start of a query, and pyarrow's own scan with as many threads."""
    from foldflight.engine.query.blocks import BlockBounds
    from foldflight.spark import scan

    source = scan(spark, path).source(["k", "v", "w"])
    source = replace(source, splits=tuple(task * TIMES_READ for task in source.splits))
    pa.set_cpu_count(len(source.splits))

    def read() -> None:
        consume(source.map_rows(spark, _count, BlockBounds(), "read", None, "rows bigint"))

    def arrow() -> None:
        for _ in range(TIMES_READ):
            for _ in ds.dataset(path).to_batches(columns=["k", "v", "w"]):
                pass

    yield from _figures((THREE_COLUMNS, "CPU, the reader"), TIMES_READ * rows, {PYARROW: arrow, READER: read})


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})
