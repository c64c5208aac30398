"""Accumulators for vectorised methods: numbers as records of a structured array, other attributes as column objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.fold.aggregate.records import bytes_of, column_of, fill_member, record_dtype, records_at, struct_of
from foldflight.fold.failures import user_failure
from foldflight.functions.author.spec import BoundFunction, Methods
from foldflight.functions.types.columns import AttributeColumn, number_format
from foldflight.functions.types.serializer import Nullable, may_be_none, members_of
from foldflight.functions.types.sql import sql_name


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
        held = len(self)
        records = np.empty(count, self._records.dtype)
        bytes_of(records)[:held] = bytes_of(self._records)
        bytes_of(records)[held:] = bytes_of(fresh._records)
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

    def restore(self, slots: Any, saved: Table) -> None:
        """Undo all changes in n different slots since they were saved."""
        bytes_of(self._records)[slots] = bytes_of(saved._records)
        for name, column in self._columns.items():
            column.restore(slots, saved._columns[name])

    def states(self, type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
        """Return n accumulators as n states; None if one does not fit. Without `narrow`, integers have 64 bits."""
        columns = []
        for index, member in enumerate(self._members):
            wanted = type_.field(index).type if not self._is_single else type_
            column = self._columns.get(member.name)
            columns.append(
                column_of(self._records, member, wanted, narrow=narrow) if column is None else column.to_arrow()
            )
        return columns[0] if self._is_single else struct_of(columns, type_, narrow=narrow)

    def from_states(self, states: pa.Array) -> Table | None:
        """Return n states as n accumulators; None if one does not fit, or has a value that no fold writes."""
        records = np.zeros(len(states), self._records.dtype)
        columns: dict[str, AttributeColumn] = {}
        for index, member in enumerate(self._members):
            given = states if self._is_single else states.field(index)
            if member.column is None:
                if not fill_member(records, member, given):
                    return None
                continue
            try:
                column = member.column.from_arrow(given)
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
    beginning = next(
        (each.name for each in all_members if each.column is not None and not _is_empty(table[each.name])), None
    )
    return table if beginning is None else f"the initial value of {beginning} is not empty"


def _is_empty(column: AttributeColumn) -> bool:
    """Return whether the only value of a column is the empty one."""
    fresh = column.take([0])
    fresh.clear([0])
    return bool(column.to_arrow() == fresh.to_arrow())
