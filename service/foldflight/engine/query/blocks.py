"""Blocks of rows: gathering of Spark's small Arrow batches, because each frame of an exchange has a fixed cost.

A host such as Spark lacks some Arrow types. Values of these types are passed through the host as another type with the
same bits, its storage type; `convert` makes it of them, and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.functions.types.arrow import is_binary_view, one_array
from foldflight.functions.types.vectors import as_vectors, is_vector, list_misfit

_FIRST_ITEMS: Final = 1 << 9
# Joined rows are new memory. An allocator returns larger arrays to the system at once, which clears each page for the
# next one: rows of 1.5 kB took a third more CPU time in blocks of 64 MiB.
_JOINED_BYTES_MAX: Final = 32 << 20


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

    @property
    def chunk_rows_max(self) -> int:
        """Rows of a chunk that has rows of blocks again, as the frames of OVER do."""
        return max(self.rows_max // 2, 1)

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


class AdaptiveSize:
    """How many items are processed at once, so that their output stays within a size.

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

    def record(self, items: int, size: int) -> None:
        """Record that n items, at least one, have produced this many bytes (or rows)."""
        items_in_size = items * self._size_max // max(size, 1)
        self.items = max(min(items_in_size, self._growth * self.items, self._items_max), 1)

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
        schema: The schema of the blocks. Spark's schema may differ in nullability and time zone names. Texts of a batch
            that is a block of its own may have a dictionary, which they keep.
        bounds: `rows_max` and `bytes_max` apply to each block; larger batches are split. Joined batches have less.
    """
    bytes_max = min(bounds.bytes_max, _JOINED_BYTES_MAX)
    pending: list[pa.RecordBatch] = []
    rows = bytes_ = 0
    for batch in batches:
        for part, size in _cut(batch, bounds):
            if pending and (rows + part.num_rows > bounds.rows_max or bytes_ + size > bytes_max):
                yield _block(pending, schema)
                pending, rows, bytes_ = [], 0, 0
            pending.append(part)
            rows += part.num_rows
            bytes_ += size
    if pending:
        yield _block(pending, schema)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch, which may be empty."""
    columns = [one_array(column) for column in table.columns]
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


def is_encoded(actual_type: pa.DataType, type_: pa.DataType) -> bool:
    """Return whether values of a type are texts of another type with a dictionary of 32-bit indexes."""
    return pa.types.is_string(type_) and actual_type == pa.dictionary(pa.int32(), type_)


def _block(pending: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(pending) == 1:
        return _alone(pending[0], schema)
    columns = [
        pa.concat_arrays([convert(batch.column(index), field.type) for batch in pending])
        for index, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _alone(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch as a block. Texts with a dictionary, which tasks that read files have, stay so."""
    columns = [
        column if is_encoded(column.type, field.type) else convert(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    fields = [field.with_type(column.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def without_nullability(type_: pa.DataType) -> pa.DataType:
    """Return the same type with nullable members and pyarrow's member names, which differ from Spark's."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, without_nullability(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(without_nullability(type_.key_type), without_nullability(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(without_nullability(type_.value_type))
    return type_


def convert(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert n values to a storage type, or back from it.

    Raises:
        pa.ArrowInvalid: A value does not fit (a decimal of more than 38 digits as a result).
    """
    if array.type == type_:
        return array
    if isinstance(array, pa.ExtensionArray):
        return convert(array.storage, type_)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, convert(array, type_.storage_type))
    kinds = pa.types
    if kinds.is_struct(type_) and kinds.is_struct(array.type):
        members = [convert(member, field.type) for member, field in zip(array.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(members, fields=list(type_), mask=array.is_null())
    if kinds.is_map(type_):
        return _convert_map(array, type_)
    if kinds.is_list(type_):
        return _convert_list(array, type_)
    if kinds.is_fixed_size_list(type_):
        return _convert_fixed(array, type_)
    if kinds.is_large_list(type_):
        return convert(array, pa.list_(type_.value_type)).cast(type_)
    if type_ == pa.null() or array.type == pa.null():
        return pa.nulls(len(array), type_)
    if kinds.is_struct(type_) or kinds.is_struct(array.type):  # a struct without members, carried as a boolean flag
        return _empty_struct(array, type_)
    return _convert_leaf(array, type_)


def _empty_struct(array: pa.Array, type_: pa.DataType) -> pa.Array:
    valid = array.is_valid()
    if pa.types.is_struct(type_):
        values: list[Any] = [{} if each else None for each in valid.to_pylist()]
        return pa.array(values, type_)
    return pc.if_else(valid, pa.scalar(True), pa.scalar(None, pa.bool_()))


def _convert_list(array: pa.Array, type_: pa.DataType) -> pa.Array:
    # `flatten` omits values under NULLs and outside the slice, so the offsets are computed anew.
    values = convert(array.flatten(), type_.value_type)
    return pa.ListArray.from_arrays(_offsets(array), values, type=type_, mask=array.is_null())


def _convert_fixed(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if not is_vector(type_):
        return array.cast(type_)
    vectors, misfits = as_vectors(array, type_)
    if misfits is not None:
        reason = list_misfit(array[int(misfits.argmax())], type_)
        raise pa.ArrowInvalid(f"a list is no {type_.list_size} floats: {reason}")
    return vectors


def _convert_map(array: pa.Array, type_: pa.DataType) -> pa.Array:
    # Arrow does not cast a NULL struct whose members are not nullable, as in a VARIANT, to the same type.
    map_type = without_nullability(array.type)
    entries = array.cast(pa.list_(pa.struct([("key", map_type.key_type), ("value", map_type.item_type)])))
    keys, values = entries.flatten().flatten()
    return pa.MapArray.from_arrays(
        _offsets(entries, are_nulls=True),
        convert(keys, type_.key_type),
        convert(values, type_.item_type),
        type=type_,
    )


def _offsets(lists: pa.Array, *, are_nulls: bool = False) -> pa.Array:
    """Return the n + 1 offsets of n lists without their NULLs' values; with `are_nulls`, offsets of NULLs are NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    mask = np.append(lists.is_null().to_numpy(zero_copy_only=False), False) if are_nulls else None
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32(), mask=mask)


def _convert_leaf(array: pa.Array, type_: pa.DataType) -> pa.Array:
    kinds = pa.types
    integral = kinds.is_integer(array.type) or kinds.is_integer(type_)
    if integral and (kinds.is_temporal(array.type) or kinds.is_temporal(type_)):
        return array.view(type_)
    if kinds.is_binary(array.type) and not (kinds.is_large_binary(type_) or is_binary_view(type_)):
        return _reinterpret(array.cast(pa.binary(type_.bit_width // 8)), type_)
    if kinds.is_binary(type_) and (kinds.is_interval(array.type) or kinds.is_decimal(array.type)):
        return _reinterpret(array, pa.binary(array.type.bit_width // 8)).cast(type_)
    return array.cast(type_)


def _reinterpret(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Reinterpret values of fixed width as another type (`view` does not support all types)."""
    return pa.Array.from_buffers(type_, len(array), array.buffers(), offset=array.offset)
