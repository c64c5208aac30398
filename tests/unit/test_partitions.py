"""Partitions of OVER: the same rows, peers and order values in memory and in files, wherever blocks end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from foldflight.engine.over.partitions import Ordering, Partitions
from tests.effort import examples

ORDERING = Ordering(("k",), ("o",), has_codes=True)


def described(blocks: list[pa.RecordBatch], bytes_max: int) -> list[tuple[Any, ...]]:
    """Return for each row its key and order value, whether it is the peer of the row before, and its code."""
    result = []
    for store in Partitions(ORDERING, bytes_max=bytes_max).stores(blocks):
        order, rows = store.order, store.slice(0, len(store))
        assert order.codes is not None
        are_peers = np.r_[False, np.diff(order.peers) == 0]
        are_peers[order.starts[:-1]] = False
        result += zip(*rows.to_pydict().values(), are_peers.tolist(), order.codes.tolist(), strict=True)
    return result


@examples(100)
@given(
    rows=st.lists(st.tuples(st.integers(0, 1), st.none() | st.integers(0, 2)), min_size=1, max_size=12),
    size=st.integers(1, 4),
)
def test_peers_do_not_depend_on_where_blocks_end(rows: list[tuple[int, int | None]], size: int) -> None:
    """Each block is added to the file of a large partition, and its first row may be a peer of the row before it."""
    rows.sort(key=lambda row: (row[0], row[1] is not None, row[1]))
    keys, orders = map(list, zip(*rows, strict=True))
    whole = pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64()), "o": pa.array(orders, pa.int64())})
    expected = [(*row, place > 0 and rows[place - 1] == row) for place, row in enumerate(rows)]
    for bytes_max in (0, 100, 1 << 20):
        for rows_max in (1, size):
            blocks = [whole.slice(start, rows_max) for start in range(0, len(rows), rows_max)]
            assert [row[:3] for row in described(blocks, bytes_max)] == expected
            assert described(blocks, bytes_max) == described([whole], 1 << 20)
