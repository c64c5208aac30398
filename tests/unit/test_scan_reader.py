"""The part of a scan that runs in tasks, without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds
from foldflight.errors import RejectedError
from foldflight.spark.scans.footers import ReadRequest, footers
from foldflight.spark.scans.predicate import Predicate
from foldflight.spark.scans.source import ReadSplits, Source, Split

ROWS = 3_000_000
# The file has 46 MiB, and a batch of two columns 2.
BYTES_MAX = 16 << 20


def test_memory_does_not_depend_on_row_groups(tmp_path: Path) -> None:
    """A row group is read in batches, through buffers."""
    rng = np.random.default_rng(1)
    table = pa.table({"a": rng.integers(0, 1 << 62, ROWS), "b": rng.random(ROWS)})
    path = str(tmp_path / "a.parquet")
    pq.write_table(table, path, row_group_size=ROWS, use_dictionary=False, compression="none")
    request = ReadRequest({"a": st.LongType(), "b": st.DoubleType()}, (), Predicate(), "", is_case_sensitive=False)
    (result,) = footers([path], fs.LocalFileSystem, request)
    assert [group.rows for group in result.groups] == [ROWS]
    split = Split(path, result.size, result.changed_ns, (0,), ROWS, frozenset(), {})
    del table
    before = pa.total_allocated_bytes()
    memory_samples: list[tuple[int, int]] = []

    def watch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        memory_samples.extend((batch.num_rows, pa.total_allocated_bytes() - before) for batch in batches)
        return iter(())

    types = {"a": pa.int64(), "b": pa.float64()}
    bounds = BlockBounds(rows_max=1 << 17)
    source = Source(((split,),), ("a", "b"), types, frozenset(), Predicate(), fs.LocalFileSystem, 0, 0)
    task = ReadSplits(source, bounds, watch)
    assert list(task([pa.record_batch({"id": [0]})])) == []
    assert sum(rows for rows, _ in memory_samples) == ROWS
    assert max(size for _, size in memory_samples) < BYTES_MAX


def read_batches(split: Split, types: dict[str, pa.DataType], rows_max: int = 10) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a split."""
    source = Source(((split,),), tuple(types), types, frozenset(), Predicate(), fs.LocalFileSystem, 0, 0)
    task = ReadSplits(source, BlockBounds(rows_max=rows_max), iter)
    yield from task([pa.record_batch({"id": [0]})])


def test_files_that_change_while_they_are_read(tmp_path: Path) -> None:
    """Of a file that is written again while a task reads it, rows may be from both, so the query fails."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(30)}), path)
    info = path.stat()
    split = Split(str(path), info.st_size, info.st_mtime_ns, (0,), 30, frozenset(), {})
    assert sum(batch.num_rows for batch in read_batches(split, {"a": pa.int64()})) == 30
    batches = read_batches(split, {"a": pa.int64()})
    next(batches)
    os.utime(path, ns=(0, info.st_mtime_ns + 1))
    with pytest.raises(RejectedError, match=r"SOURCE_FILE.*a\.parquet was replaced after the query was planned"):
        list(batches)


def test_files_with_other_numbers_of_rows_are_refused(tmp_path: Path) -> None:
    """A file that gives fewer or more rows than its footer told is damaged, even if Arrow reads it."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(30)}), path)
    info = path.stat()
    for rows in (29, 31):
        split = Split(str(path), info.st_size, info.st_mtime_ns, (0,), rows, frozenset(), {})
        with pytest.raises(RejectedError, match=rf"SOURCE_FILE.*has 30 rows where its footer tells of {rows};"):
            list(read_batches(split, {"a": pa.int64()}))
