"""Columns of attributes that are not single numbers: one object holds the values of all accumulators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import pyarrow as pa


def number_format(type_: pa.DataType) -> str | None:
    """Return the widest NumPy format for values of an Arrow type, or None if NumPy has none."""
    kinds = pa.types
    if kinds.is_boolean(type_):
        return "?"
    if kinds.is_signed_integer(type_) or (kinds.is_decimal(type_) and type_.scale == 0):
        return "i8"
    if kinds.is_unsigned_integer(type_):
        return "u8"
    if kinds.is_floating(type_):
        return "f8"
    if kinds.is_date32(type_):
        return "M8[D]"
    # Python's datetime has no nanoseconds, so the scalar methods would see truncated values.
    return f"M8[{type_.unit}]" if kinds.is_timestamp(type_) and type_.unit != "ns" else None


class AttributeColumn(ABC):
    """The values of one attribute of n accumulators, by slot.

    Each slot begins with a fresh value, such as an empty list or an empty sum.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def grow(self, count: int) -> None:
        """Grow to `count` accumulators; the new ones have fresh values."""

    @abstractmethod
    def take(self, slots: Any) -> Self:
        """Return a copy of the values of n slots."""

    @abstractmethod
    def put(self, slots: Any, others: Self) -> None:
        """Replace the values of n different slots with n other values."""

    @abstractmethod
    def clear(self, slots: Any) -> None:
        """Reset the values of n slots to fresh values."""

    def save(self, slots: Any) -> Self:
        """Return what `restore` needs to undo later changes in n slots."""
        return self.take(slots)

    def restore(self, slots: Any, saved: Self) -> None:
        """Undo all changes in n different slots since their values were saved."""
        self.put(slots, saved)

    @abstractmethod
    def to_arrow(self) -> pa.Array | None:
        """Return the n values as n states, or None if a value does not fit its type."""

    @abstractmethod
    def from_arrow(self, states: pa.Array) -> Self | None:
        """Return a column of the same kind with the values of n states, or None if the column cannot hold one of them.

        Raises:
            ValueError: A state is malformed.
        """
