"""Accumulators as records of a structured array, and their conversion to and from typed states, column by column."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.fold.machine_values import (
    DIGITS_MAX,
    from_addresses,
    from_numbers,
    from_words,
    moment_of,
    text_of,
    to_addresses,
    to_numbers,
    to_words,
)
from foldflight.functions.types.values import narrow_floats
from foldflight.functions.types.vectors import from_matrix, is_vector, matrix_of


class Member(Protocol):
    """One attribute of an accumulator.

    Attributes:
        name: Its name in a record.
        format: Its NumPy format in a record; for a list of fixed length, the format of its items and the length.
        optional: Whether it may be None.
        valid: The name of the member that is true if it is not None.
    """

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> str | tuple[str, int]: ...
    @property
    def optional(self) -> bool: ...
    @property
    def valid(self) -> str: ...


@functools.lru_cache(maxsize=256)
def record_dtype(members: tuple[Member, ...]) -> np.dtype[Any]:
    """Return the type of a record with these members, the widest first. Its size is a multiple of eight bytes."""
    formats = [(each.name, each.format) for each in members] + [(each.valid, "?") for each in members if each.optional]
    # Members of eight bytes come first, then members of four, then flags: each begins at a multiple of its size.
    sorted_formats = sorted(formats, key=lambda member: -min(np.dtype(member[1]).base.itemsize, 8))
    sizes = [np.dtype(format_).itemsize for _, format_ in sorted_formats]
    return np.dtype(
        {
            "names": [name for name, _ in sorted_formats],
            "formats": [format_ for _, format_ in sorted_formats],
            "offsets": [sum(sizes[:index]) for index in range(len(sizes))],
            "itemsize": max(8, -(-sum(sizes) // 8) * 8),
        }
    )


def bytes_of(records: Any) -> Any:
    """Return a view of records as plain bytes, which NumPy copies several times faster."""
    return records.view(np.dtype((np.void, records.dtype.itemsize)))


def records_at(records: Any, slots: Any) -> Any:
    """Return the records of n slots."""
    return bytes_of(records)[slots].view(records.dtype)


def states_of(records: Any, members: Sequence[Member], type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
    """Return n records as n states of `type_`; None if one does not fit. Without `narrow`, integers have 64 bits."""
    columns = []
    for index, member in enumerate(members):
        member_type = type_.field(index).type if pa.types.is_struct(type_) else type_
        columns.append(column_of(records, member, member_type, narrow=narrow))
    return struct_of(columns, type_, narrow=narrow)


def struct_of(columns: Sequence[pa.Array | None], type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
    """Return columns of attributes as states of `type_`; None if one of the columns is None."""
    if any(column is None for column in columns):
        return None
    if not pa.types.is_struct(type_):
        return columns[0]
    if narrow:
        return pa.StructArray.from_arrays(columns, fields=list(type_))
    return pa.StructArray.from_arrays(columns, names=[field.name for field in type_])


def column_of(records: Any, member: Member, type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
    """Return one attribute of n records as a column of `type_`. `narrow` and None are as in `states_of`."""
    if is_vector(type_):
        return from_matrix(records[member.name], type_)
    if records.dtype[member.name].shape:
        column = _lists_of(records[member.name])
    else:
        mask = ~records[member.valid] if member.optional else None
        if records.dtype[member.name].kind == "V":
            return _decimals_of(records[member.name], mask, type_, narrow=narrow)
        if text_of(type_) is not None and records.dtype[member.name].kind == "i":
            return from_addresses(records[member.name], mask, type_)
        column = pa.array(np.ascontiguousarray(records[member.name]), mask=mask)
    items = column.type.value_type if pa.types.is_list(column.type) else column.type
    if moment_of(type_) is not None and pa.types.is_integer(items):
        return from_numbers(column, type_)
    if pa.types.is_floating(column.type) and pa.types.is_floating(type_):
        return narrow_floats(column, type_)
    if narrow or not pa.types.is_integer(items):
        try:
            return column.cast(type_)
        except pa.ArrowInvalid:
            return None
    return column


def fill_member(records: Any, member: Member, column: pa.Array) -> bool:
    """Write one attribute of n states to n records. Return False if one does not fit."""
    if member.optional:
        records[member.valid] = column.is_valid().to_numpy(zero_copy_only=False)
    elif column.null_count:
        return False
    shape = records.dtype[member.name].shape
    moment = moment_of(column.type)
    numbers: Any = None
    if shape and is_vector(column.type):
        numbers = matrix_of(column)
    elif shape:
        numbers = _items_of(column, shape[0])
    elif moment is not None and records.dtype[member.name].kind == "i":
        numbers = to_numbers(column, moment)
    elif text_of(column.type) is not None and records.dtype[member.name].kind == "i":
        numbers = to_addresses(column)
    elif records.dtype[member.name].kind == "V":
        words = to_words(column)
        numbers = None if words is None else np.ascontiguousarray(words).view("V16").reshape(-1)
    else:
        if pa.types.is_decimal(column.type):
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid:
                return False
        numbers = (fill_nulls(column) if column.null_count else column).to_numpy(zero_copy_only=False)
    if numbers is None:
        return False
    records[member.name] = numbers
    return True


def _decimals_of(words: Any, mask: Any, type_: pa.Decimal128Type, *, narrow: bool) -> pa.Array | None:
    """Return n pairs of words as decimals; None if one has more digits than `type_`."""
    pairs = np.ascontiguousarray(words).view(np.int64).reshape(-1, 2)
    column = from_words(pairs, mask, pa.decimal128(DIGITS_MAX, type_.scale))
    if not narrow or type_.precision == DIGITS_MAX:
        return column
    try:
        return column.cast(type_)
    except pa.ArrowInvalid:
        return None


def _lists_of(items: Any) -> pa.Array:
    """Return an array of shape (n, k) as n lists of k items each."""
    count, length = items.shape
    offsets = pa.array(np.arange(0, (count + 1) * length, length), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(items).reshape(-1)))


def _items_of(lists: pa.Array, length: int) -> Any | None:
    """Return n lists as an array of shape (n, length); None if one has another length, or a NULL."""
    items = lists.flatten()
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if lists.null_count or items.null_count or lengths not in ([length], []):
        return None
    return items.to_numpy(zero_copy_only=False).reshape(len(lists), length)


def fill_nulls(column: pa.Array) -> pa.Array:
    """Return a column of numbers, booleans, dates or timestamps with NULLs replaced by zeros."""
    if pa.types.is_temporal(column.type):
        width = pa.int32() if column.type.bit_width == 32 else pa.int64()
        return column.fill_null(pa.array([0], width).view(column.type)[0])
    return column.fill_null(False if pa.types.is_boolean(column.type) else 0)
