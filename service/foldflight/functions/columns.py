"""What vectorised methods see of an attribute that is no single number: one object for the accumulators of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import pyarrow as pa

__all__ = ["AttributeColumn", "number_format"]


def number_format(type_: pa.DataType) -> str | None:
    """Return the NumPy format, at its widest, that holds values of an Arrow type; None where there is none."""
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
    # Python has no nanoseconds, and the scalar methods would see less than these.
    return f"M8[{type_.unit}]" if kinds.is_timestamp(type_) and type_.unit != "ns" else None


class AttributeColumn(ABC):
    """The values of one attribute of n accumulators, by slot.

    A fresh value (an empty list, a sum of nothing) is what a slot begins with.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def grow(self, count: int) -> None:
        """Make room for `count` accumulators; the new ones have fresh values."""

    @abstractmethod
    def take(self, slots: Any) -> Self:
        """Return a copy of the values of n slots."""

    @abstractmethod
    def put(self, slots: Any, others: Self) -> None:
        """Replace the values of n different slots by n others."""

    @abstractmethod
    def clear(self, slots: Any) -> None:
        """Make the values of n slots fresh."""

    def save(self, slots: Any) -> Self:
        """Return what `restore` needs to undo later changes in n slots."""
        return self.take(slots)

    def restore(self, slots: Any, saved: Self) -> None:
        """Undo all changes in n different slots since their values were saved."""
        self.put(slots, saved)

    @abstractmethod
    def to_arrow(self) -> pa.Array | None:
        """Return the n values as n states; None where one does not fit its type."""

    @abstractmethod
    def from_arrow(self, states: pa.Array) -> Self | None:
        """Return n states as n values of the same kind; None where one holds what they cannot.

        Raises:
            ValueError: A state is one that no fold writes.
        """
