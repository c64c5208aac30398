"""Gathering of Spark's small Arrow batches into blocks, because each frame of an exchange has a fixed cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from foldflight.engine.query.convert import convert

__all__ = ["BlockBounds", "Pace", "gather", "one_batch"]


_FIRST_ITEMS: Final = 1 << 9


@dataclass(frozen=True)
class BlockBounds:
    """Limits of the data that a task holds at once.

    Args:
        rows_max: Rows of a block.
        bytes_max: Bytes of a block, unless a single Spark batch has more.
        groups_max: Groups that a partial fold may hold before it emits their states.
        group_bytes_max: Bytes of keys and accumulators that a partial fold may hold, estimated from its first rows.
        unfolded_groups_min: From this number of groups on, rows are emitted unfolded if folding them would not produce
            fewer states than rows, because a state costs more than its row.
        folded_bytes_max: Bytes of rows that a partial fold takes before it emits its states. It limits states that grow
            with their rows (lists, sets).
    """

    rows_max: int = 1 << 18
    bytes_max: int = 64 << 20
    groups_max: int = 1 << 22
    group_bytes_max: int = 80 << 20
    unfolded_groups_min: int = 1 << 14
    folded_bytes_max: int = 256 << 20

    def within(self, slots_max: int, state_bytes_max: int) -> BlockBounds:
        """Return bounds that also respect a server's limits for one exchange."""
        rows = max(min(self.rows_max, slots_max // 2), 1)
        return replace(
            self,
            rows_max=rows,
            bytes_max=max(min(self.bytes_max, state_bytes_max // 4), 1),
            groups_max=max(min(self.groups_max, slots_max - rows), 1),
            group_bytes_max=max(min(self.group_bytes_max, state_bytes_max // 4), 1),
            folded_bytes_max=max(min(self.folded_bytes_max, state_bytes_max // 4), 1),
        )


class Pace:
    """How many items are processed at once, so that what they make stays within a size.

    What an item makes is only known afterwards. So the first number is small, and it grows step by step while the items
    make little.

    Args:
        items_max: The largest number.
        size_max: Bytes (or rows) that the items may make together.
        first: The first number. Default: a small one.
        growth: How many times as many items may follow.
    """

    def __init__(self, items_max: int, size_max: int, *, first: int | None = None, growth: int = 2) -> None:
        self.items = min(first or _FIRST_ITEMS, items_max)
        self._items_max = items_max
        self._size_max = size_max
        self._growth = growth

    def made(self, items: int, size: int) -> None:
        """Take note that n items, at least one, have made so many bytes (or rows)."""
        fitting = items * self._size_max // max(size, 1)
        self.items = max(min(fitting, self._growth * self.items, self._items_max), 1)

    def pieces(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield blocks in pieces of as many rows as fit now."""
        for block in blocks:
            start = 0
            while start < block.num_rows:
                rows = self.items
                yield block.slice(start, rows)
                start += rows


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema, bounds: BlockBounds) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many batches, in order, as few blocks. No block is empty.

    Args:
        batches: Batches from Spark, with columns in the order of `schema`.
        schema: The schema of the blocks. Spark's schema may differ in nullability and time zone names.
        bounds: `rows_max` and `bytes_max` apply to each block; larger batches are split.
    """
    held: list[pa.RecordBatch] = []
    rows = bytes_ = 0
    for batch in batches:
        for part, size in _cut(batch, bounds):
            if held and (rows + part.num_rows > bounds.rows_max or bytes_ + size > bounds.bytes_max):
                yield _block(held, schema)
                held, rows, bytes_ = [], 0, 0
            held.append(part)
            rows += part.num_rows
            bytes_ += size
    if held:
        yield _block(held, schema)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch, which may be empty."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _cut(batch: pa.RecordBatch, bounds: BlockBounds) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a batch in parts within the bounds, each with its bytes."""
    if not batch.num_rows:
        return
    size = batch.nbytes
    pieces = max(-(-batch.num_rows // bounds.rows_max), -(-size // bounds.bytes_max))
    if pieces == 1:
        yield batch, size
        return
    rows = max(batch.num_rows // pieces, 1)
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield part, part.nbytes


def _block(held: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.concat_arrays([convert(batch.column(place), field.type) for batch in held])
        for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
