"""Sorted rows gathered to whole partitions, in memory or, if a partition is large, in a temporary file.

A window frame may begin and end anywhere in its partition, so the rows of a partition must be at hand. Rows in a file
are read by mapping it into memory: the system keeps the pages that are in use.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa

from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.keys.row_buffers import temporary_file
from foldflight.engine.over.positions import Codes, OrderOf, Positions, codes_of
from foldflight.engine.query.changelog import equal_rows
from foldflight.functions.types.arrow import concat_batches, is_nested


@dataclass(frozen=True)
class Ordering:
    """The columns by which rows are sorted.

    Args:
        keys: The columns of the partition, which are first in the order.
        order: The other columns of the order.
        has_peers: Whether a window frame ends at rows with the same order.
        has_codes: Whether a window frame has a distance of the order value; then `order` is one column.
        descending: Whether larger values of that column come first.
        nulls_first: Whether NULL comes first in that column.
    """

    keys: tuple[str, ...]
    order: tuple[str, ...]
    has_peers: bool = True
    has_codes: bool = False
    descending: bool = False
    nulls_first: bool = True

    def changes(self, rows: pa.RecordBatch, names: Sequence[str]) -> Positions:
        """Return the positions, from 1 on, of the rows whose values differ from the row before."""
        if not names or rows.num_rows < 2:
            return np.zeros(0, np.int64)
        columns = rows.select(list(names))
        nested_names = [field.name for field in columns.schema if is_nested(field.type)]
        flat = columns.select([name for name in names if name not in nested_names])
        differs = ~equal_rows(flat.slice(1), flat.slice(0, len(flat) - 1))
        if nested_names:
            # Nested values are compared as keys are.
            inner = columns.select(nested_names)
            ids = KeyIndex(inner.schema).slots(inner.columns).to_numpy()
            differs |= ids[1:] != ids[:-1]
        return np.flatnonzero(differs) + 1

    def codes(self, rows: pa.RecordBatch) -> Codes:
        """Return the codes of the order values."""
        return codes_of(rows.column(self.order[0]), descending=self.descending)


class Store:
    """The rows of whole partitions, by position.

    Args:
        batches: The rows, in order.
        order: Their order.
        files: The files to close with the store.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], order: OrderOf, files: Sequence[Any] = ()) -> None:
        self.order = order
        self._batches = batches
        self._ends = np.cumsum([batch.num_rows for batch in batches])
        self._files = files

    def __len__(self) -> int:
        return int(self._ends[-1])

    def slice(self, start: int, end: int, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the rows at the positions from `start` to `end`: these columns, or all."""
        first, last = np.searchsorted(self._ends, [start, max(end - 1, start)], side="right").tolist()
        parts = []
        for index in range(first, last + 1):
            batch = self._batches[index] if names is None else self._batches[index].select(list(names))
            begins = int(self._ends[index]) - batch.num_rows
            parts.append(batch.slice(max(start - begins, 0), min(end, begins + batch.num_rows) - max(start, begins)))
        return parts[0] if len(parts) == 1 else concat_batches(parts)

    def take(self, positions: Positions, names: Sequence[str]) -> pa.RecordBatch:
        """Return these columns of the rows at n positions, in any order."""
        columns = list(names)
        if not len(positions):
            return self._batches[0].select(columns).slice(0, 0)
        if positions[-1] - positions[0] == len(positions) - 1 and (np.diff(positions) == 1).all():
            return self.slice(int(positions[0]), int(positions[-1]) + 1, columns)
        first, last = np.searchsorted(self._ends, [positions.min(), positions.max()], side="right").tolist()
        if first == last:
            begins = int(self._ends[first]) - self._batches[first].num_rows
            return self._batches[first].select(columns).take(pa.array(positions - begins))
        # Only the rows are copied, and not the batches that have them.
        parts, order = [], np.empty(len(positions), np.int64)
        count = 0
        indexes = np.searchsorted(self._ends, positions, side="right")
        for index in np.unique(indexes).tolist():
            batch = self._batches[index]
            here = np.flatnonzero(indexes == index)
            begins = int(self._ends[index]) - batch.num_rows
            parts.append(batch.select(columns).take(pa.array(positions[here] - begins)))
            order[here] = np.arange(count, count + len(here))
            count += len(here)
        return concat_batches(parts).take(pa.array(order))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._batches = ()
        for file in self._files:
            file.close()


class Partitions:
    """Gathers sorted blocks to stores: many small partitions in one, a large one in a file.

    Rows are not copied. A store has them in the batches in which they came.

    Args:
        ordering: The columns by which the rows are sorted.
        bytes_max: Bytes of a partition in memory. A partition that has more is written to a file.
    """

    def __init__(self, ordering: Ordering, *, bytes_max: int) -> None:
        self._ordering = ordering
        self._bytes_max = bytes_max
        self._buffered_blocks: list[pa.RecordBatch] = []
        self._file: _File | None = None
        self._last: pa.RecordBatch | None = None  # the keys of the last row

    def stores(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[Store]:
        """Yield all rows, in order. Each store is closed when the next one is asked for."""
        try:
            for block in blocks:
                for store in self._add_block(block):
                    with store:
                        yield store
            for store in self._rest():
                with store:
                    yield store
        finally:
            if self._file is not None:
                self._file.close()

    def _add_block(self, block: pa.RecordBatch) -> Iterator[Store]:
        """Hold the rows of the last partition, and yield the others."""
        begins = self._begins(block.select(self._ordering.keys))
        if not len(begins):
            self._hold(block)
            return
        first, last_begin = int(begins[0]), int(begins[-1])
        if self._file is not None:
            if first:
                self._file.add(block.slice(0, first))
            yield from self._rest()
            if last_begin > first:
                yield self._store([block.slice(first, last_begin - first)], begins[:-1] - first)
        elif self._buffered_blocks or last_begin:
            size = sum(batch.num_rows for batch in self._buffered_blocks)
            pieces = [*self._buffered_blocks, *([block.slice(0, last_begin)] if last_begin else [])]
            starts = begins[:-1] + size
            yield self._store(pieces, np.concatenate([[0], starts]) if self._buffered_blocks else starts)
        self._buffered_blocks = []
        self._hold(block.slice(last_begin))

    def _begins(self, keys: pa.RecordBatch) -> Positions:
        """Return the positions in a block at which a partition begins, by its keys."""
        before, self._last = self._last, keys.slice(keys.num_rows - 1)
        if before is None or not self._ordering.keys:
            first = [0] if before is None else []
            return np.concatenate([first, self._ordering.changes(keys, self._ordering.keys)]).astype(np.int64)
        return self._ordering.changes(concat_batches([before, keys]), self._ordering.keys) - 1

    def _hold(self, rows: pa.RecordBatch) -> None:
        if self._file is None:
            self._buffered_blocks.append(rows)
            if sum(batch.nbytes for batch in self._buffered_blocks) <= self._bytes_max:
                return
            self._file = _File(rows.schema, self._ordering)
        else:
            self._buffered_blocks = [rows]
        for batch in self._buffered_blocks:
            self._file.add(batch)
        self._buffered_blocks = []

    def _rest(self) -> Iterator[Store]:
        """Yield the last partition."""
        if self._file is not None:
            file, self._file = self._file, None
            yield file.store()
        elif self._buffered_blocks:
            blocks, self._buffered_blocks = self._buffered_blocks, []
            yield self._store(blocks, np.zeros(1, np.int64))

    def _store(self, pieces: Sequence[pa.RecordBatch], starts: Positions) -> Store:
        ordering, count = self._ordering, sum(piece.num_rows for piece in pieces)
        bounds = np.append(starts, count).astype(np.int64)
        peers, codes, null_counts = np.zeros(0, np.int64), None, np.zeros(len(starts), np.int64)
        if ordering.has_peers:
            begins = np.zeros(count, np.bool_)
            begins[starts] = True
            if ordering.order:
                columns = concat_batches([piece.select(ordering.order) for piece in pieces])
                begins[ordering.changes(columns, ordering.order)] = True
            peers = np.cumsum(begins)
        if ordering.has_codes:
            codes = ordering.codes(columns)
            nulls = columns.column(0).is_null().to_numpy(zero_copy_only=False)
            null_counts = np.add.reduceat(nulls.astype(np.int64), starts)
        return Store(pieces, OrderOf(bounds, peers, codes, null_counts, ordering.nulls_first))


class _File:
    """One partition in temporary files: its rows, and their peers and codes of order if window frames need them."""

    def __init__(self, schema: pa.Schema, ordering: Ordering) -> None:
        self._ordering = ordering
        self._rows, self._peers, self._codes = temporary_file(), temporary_file(), temporary_file()
        self._writer = pa.ipc.new_file(self._rows, schema)
        self._last: pa.RecordBatch | None = None
        self._count = self._null_count = self._peer = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Write n rows, at least one."""
        ordering = self._ordering
        self._writer.write_batch(rows)
        self._count += rows.num_rows
        if not ordering.has_peers:
            return
        columns = rows.select(ordering.order)
        begins = np.zeros(rows.num_rows, np.int64)
        if self._last is None or not ordering.order:
            begins[ordering.changes(columns, ordering.order)] = 1
        else:
            begins[ordering.changes(concat_batches([self._last, columns]), ordering.order) - 1] = 1
        peers = self._peer + np.cumsum(begins)
        self._peers.write(peers.tobytes())
        if ordering.has_codes:
            self._codes.write(ordering.codes(rows).tobytes())
            self._null_count += rows.column(ordering.order[0]).null_count
        self._peer, self._last = int(peers[-1]), columns.slice(columns.num_rows - 1)

    def store(self) -> Store:
        """Return the rows, which end here."""
        self._writer.close()
        for file in (self._rows, self._peers, self._codes):
            file.flush()
        mapped_file = mmap.mmap(self._rows.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped_file))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        codes = _map_file(self._codes, self._count) if self._ordering.has_codes else None
        order = OrderOf(
            np.array([0, self._count]),
            _map_file(self._peers, self._count if self._ordering.has_peers else 0),
            codes,
            np.array([self._null_count]),
            self._ordering.nulls_first,
        )
        return Store(batches, order, (self._rows, self._peers, self._codes))

    def close(self) -> None:
        """Drop the rows."""
        for file in (self._rows, self._peers, self._codes):
            file.close()


def _map_file(file: IO[bytes], count: int) -> Positions:
    return np.memmap(file, np.int64, mode="r", shape=(count,)) if count else np.zeros(0, np.int64)
