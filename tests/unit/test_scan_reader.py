"""The part of a scan that runs in tasks, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds
from foldflight.spark.scans.footers import Wanted, footers
from foldflight.spark.scans.predicate import Predicate
from foldflight.spark.scans.reader import ReadSplits, Split

ROWS = 3_000_000
# The file has 46 MiB, and a batch of two columns 2.
BYTES_MAX = 16 << 20


def test_memory_does_not_depend_on_row_groups(tmp_path: Path) -> None:
    """A row group is read in batches, through buffers."""
    chosen = np.random.default_rng(1)
    table = pa.table({"a": chosen.integers(0, 1 << 62, ROWS), "b": chosen.random(ROWS)})
    path = str(tmp_path / "a.parquet")
    pq.write_table(table, path, row_group_size=ROWS, use_dictionary=False, compression="none")
    wanted = Wanted({"a": st.LongType(), "b": st.DoubleType()}, (), Predicate(), "", is_case_sensitive=False)
    (found,) = footers([path], fs.LocalFileSystem, wanted)
    assert [group.rows for group in found.groups] == [ROWS]
    split = Split(path, found.size, found.changed_ns, (0,), ROWS, frozenset(), {})
    del table
    before = pa.total_allocated_bytes()
    taken: list[tuple[int, int]] = []

    def watch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken.extend((batch.num_rows, pa.total_allocated_bytes() - before) for batch in batches)
        return iter(())

    types = {"a": pa.int64(), "b": pa.float64()}
    bounds = BlockBounds(rows_max=1 << 17)
    task = ReadSplits(((split,),), ("a", "b"), types, frozenset(), Predicate(), fs.LocalFileSystem, bounds, watch)
    assert list(task([pa.record_batch({"id": [0]})])) == []
    assert sum(rows for rows, _ in taken) == ROWS
    assert max(size for _, size in taken) < BYTES_MAX
