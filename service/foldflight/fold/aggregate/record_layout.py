"""Accumulators as records of a structured array, and their conversion to and from typed states, column by column.

A `Table` has numbers as such records, and other attributes as column objects.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.fold.failures import user_failure
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
from foldflight.functions.author.spec import BoundFunction, Methods
from foldflight.functions.types.lists import AttributeColumn, number_format
from foldflight.functions.types.serializer import Nullable, may_be_none, members_of
from foldflight.functions.types.sql import sql_name
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


@dataclass(frozen=True)
class _Member:
    """One attribute: its format in a record and whether it may be None; or an empty column of its values."""

    name: str
    format: str
    optional: bool = False
    column: AttributeColumn | None = None

    @property
    def valid(self) -> str:
        return f"{self.name}?"


class Table:
    """A table of n accumulators.

    Args:
        members: The attributes.
        records: The attributes that are numbers, as n records.
        columns: The other attributes, by name.
        is_single: Whether the accumulator is one value, in the member `value`.
    """

    def __init__(
        self, members: tuple[_Member, ...], records: Any, columns: Mapping[str, AttributeColumn], *, is_single: bool
    ) -> None:
        self._members = members
        self._records = records
        self._columns = columns
        self._is_single = is_single

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, name: str) -> Any:
        """Return one attribute of all accumulators, as vectorised methods get it."""
        column = self._columns.get(name)
        return self._records[name] if column is None else column

    @property
    def for_authors(self) -> Any:
        """The accumulators, as vectorised methods get them."""
        if self._is_single:
            return self["value"]
        return self if self._columns else self._records

    def grow(self, count: int, fresh: Table) -> None:
        """Grow the table to `count` accumulators; the new ones are copies of `fresh`."""
        old_count = len(self)
        records = np.empty(count, self._records.dtype)
        bytes_of(records)[:old_count] = bytes_of(self._records)
        bytes_of(records)[old_count:] = bytes_of(fresh._records)
        self._records = records
        for column in self._columns.values():
            column.grow(count)

    def take(self, slots: Any) -> Table:
        """Return a copy of the accumulators of n slots."""
        columns = {name: column.take(slots) for name, column in self._columns.items()}
        return Table(self._members, records_at(self._records, slots), columns, is_single=self._is_single)

    def put(self, slots: Any, others: Table) -> None:
        """Replace the accumulators of n different slots by n others."""
        bytes_of(self._records)[slots] = bytes_of(others._records)
        for name, column in self._columns.items():
            column.put(slots, others._columns[name])

    def clear(self, slots: Any, fresh: Table) -> None:
        """Replace the accumulators of n slots by copies of `fresh`."""
        bytes_of(self._records)[slots] = bytes_of(fresh._records)
        for column in self._columns.values():
            column.clear(slots)

    def save(self, slots: Any) -> Table:
        """Return a copy of n slots for `restore`."""
        columns = {name: column.save(slots) for name, column in self._columns.items()}
        return Table(self._members, records_at(self._records, slots), columns, is_single=self._is_single)

    def restore(self, slots: Any, backup: Table) -> None:
        """Undo all changes in n different slots since they were saved."""
        bytes_of(self._records)[slots] = bytes_of(backup._records)
        for name, column in self._columns.items():
            column.restore(slots, backup._columns[name])

    def states(self, type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
        """Return n accumulators as n states; None if one does not fit. Without `narrow`, integers have 64 bits."""
        columns = []
        for index, member in enumerate(self._members):
            field_type = type_.field(index).type if not self._is_single else type_
            column = self._columns.get(member.name)
            columns.append(
                column_of(self._records, member, field_type, narrow=narrow) if column is None else column.to_arrow()
            )
        return columns[0] if self._is_single else struct_of(columns, type_, narrow=narrow)

    def from_states(self, states: pa.Array) -> Table | None:
        """Return n states as n accumulators; None if one does not fit, or has a value that no fold writes."""
        records = np.zeros(len(states), self._records.dtype)
        columns: dict[str, AttributeColumn] = {}
        for index, member in enumerate(self._members):
            member_states = states if self._is_single else states.field(index)
            if member.column is None:
                if not fill_member(records, member, member_states):
                    return None
                continue
            try:
                column = member.column.from_arrow(member_states)
            except ValueError:  # the interpreter raises the error
                return None
            if column is None:
                return None
            columns[member.name] = column
        return Table(self._members, records, columns, is_single=self._is_single)


def fresh_table(bound: BoundFunction, methods: Methods) -> Table | str:
    """Return a table of one new accumulator, or the reason why a function's accumulators cannot be in a table.

    Raises:
        FunctionError: USER_CODE, if `create_accumulator` raises SystemExit.
    """
    if bound.serializer is None:
        return f"its states are not typed: {bound.function.capabilities.codec_reason}"
    try:
        fresh = bound.serializer.to_arrow([methods.create_accumulator()])
    except SystemExit as error:
        raise user_failure(bound.function.name, "create_accumulator", error) from error
    except Exception as error:  # noqa: BLE001 - the interpreter raises it again, with its slot
        return str(error)
    attributes = members_of(bound.serializer)
    is_single = attributes is None
    hints = {} if is_single else bound.function.accumulator_hints
    members = []
    for index, (name, serializer) in enumerate([("value", bound.serializer)] if attributes is None else attributes):
        begins = fresh if is_single else fresh.field(index)
        optional = isinstance(bound.serializer, Nullable) or may_be_none(hints.get(name)) or begins.null_count > 0
        column, format_ = serializer.column(), number_format(serializer.arrow)
        if (column is None or optional) and format_ is None:
            return f"its state has the type {sql_name(serializer.arrow)}" + ("" if is_single else f" in {name}")
        members.append(_Member(name, format_ or "?", optional, None if format_ else column))
    all_members = tuple(members)
    numbers = tuple(member for member in all_members if member.column is None)
    table = Table(all_members, np.zeros(0, record_dtype(numbers)), {}, is_single=is_single).from_states(fresh)
    if table is None:
        return "a new accumulator has a value that an array of numbers cannot hold"
    first_difference = next(
        (each.name for each in all_members if each.column is not None and not _is_empty(table[each.name])), None
    )
    return table if first_difference is None else f"the initial value of {first_difference} is not empty"


def _is_empty(column: AttributeColumn) -> bool:
    """Return whether the only value of a column is the empty one."""
    fresh = column.take([0])
    fresh.clear([0])
    return bool(column.to_arrow() == fresh.to_arrow())
