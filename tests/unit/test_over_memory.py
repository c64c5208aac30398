"""A task of OVER holds about the same bytes for a partition of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight import connect
from foldflight.engine.over.over_query import FramedCall, OverLayout, OverQuery
from foldflight.engine.over.window_frame_folds import OverFold
from foldflight.functions import Call
from foldflight.functions.query.frame import WindowFrame
from tests.watched import Watched

BYTES_MAX = 1 << 19
BATCH_ROWS = 1 << 9
ROW_BYTES = 4 * 8
LAYOUT = OverLayout(
    payload=pa.schema([("in_0", pa.int64())]),
    names=("at",),
    keys=pa.schema([("key_0", pa.int64())]),
    key_names=("k",),
    order=pa.schema([("order_0", pa.int64())]),
    order_names=("at",),
    columns=pa.schema([("column_0", pa.int64())]),
    display_names=("v",),
    bounds=pa.schema([]),
)


def rows_of(count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, BATCH_ROWS):
        order = np.arange(start, min(start + BATCH_ROWS, count))
        columns = [order, np.zeros_like(order), order // 3, order % 1000]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=LAYOUT.rows)


def peak_of(fold: OverFold, count: int) -> int:
    """Return the most bytes of Arrow that were in use between two batches."""
    before = pa.total_allocated_bytes()
    peak = row_count = 0

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for batch in batches:
            yield batch
            peak = max(peak, pa.total_allocated_bytes() - before)

    for batch in measure(fold(measure(rows_of(count)))):
        row_count += batch.num_rows
        del batch
    assert row_count == count
    return peak


@pytest.mark.parametrize(
    ("function", "frame"),
    [
        ("sum", WindowFrame(-99, 0)),
        ("sum", WindowFrame(-9, 20)),
        ("sum", WindowFrame(0, None)),
        ("count", WindowFrame(None, 0, is_range=True)),
    ],
    ids=str,
)
def test_the_memory_of_a_task_does_not_grow_with_a_partition(function: str, frame: Any) -> None:
    """Neither below the limit from which a partition lies in a file nor above it."""
    transport = Watched(connect("embedded:").transport, exchange_state_bytes_max=4 * BYTES_MAX)
    query = OverQuery.of(transport, {"o": FramedCall(Call(function, ("v",)), frame)}, LAYOUT)
    fold = OverFold(query, rows=1 << 10)
    peak_of(fold, BATCH_ROWS)  # imports and caches
    counts = [int(BYTES_MAX * share / ROW_BYTES) for share in (0.2, 0.9, 2)]
    peaks = [peak_of(fold, count) for count in counts]
    assert max(peaks) < BYTES_MAX // 2, peaks
