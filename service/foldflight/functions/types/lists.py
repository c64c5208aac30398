"""Attributes of vectorised accumulators that are not single numbers: one object holds the values of all slots.

`Lists` has lists of any length: the lists of all slots are stored in one array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
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

    def restore(self, slots: Any, backup: Self) -> None:
        """Undo all changes in n different slots since their values were saved."""
        self.put(slots, backup)

    @abstractmethod
    def to_arrow(self) -> pa.Array | None:
        """Return the n values as n states, or None if a value does not fit its type."""

    @abstractmethod
    def from_arrow(self, states: pa.Array) -> Self | None:
        """Return a column of the same kind with the values of n states, or None if the column cannot hold one of them.

        Raises:
            ValueError: A state is malformed.
        """


# Minimum number of pending rows before they are inserted: each insertion copies all lists.
_PENDING_MIN = 1 << 18


class Lists(AttributeColumn):
    """The lists of all slots, as vectorised methods see an attribute that is a list of numbers, dates or the like.

    New rows are kept as pending and inserted when the lists are read, so that a chunk costs no more than its own rows.

    Args:
        type_: The Arrow type of the items.
        dtype: The NumPy type of the items.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from foldflight import Lists
    >>> lists = Lists(pa.int64(), np.int64)
    >>> lists.grow(2)  # in an exchange, foldflight does this for each new slot
    >>> lists.update(np.array([0, 1, 0]), np.array([7, 8, 9]))
    >>> lists.lengths.tolist(), lists.items.tolist()
    ([2, 1], [7, 9, 8])
    """

    def __init__(self, type_: pa.DataType, dtype: Any) -> None:
        self._type = type_
        self._items = np.zeros(0, dtype)
        self._lengths = np.zeros(0, np.int64)
        # Pending slots and items. Inserting the first `_bounded_count` pairs cuts each list to its `_largest` items.
        self._pending: list[tuple[Any, Any]] = []
        self._bounded_count = 0
        self._largest: int | None = None

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def lengths(self) -> Any:
        """The number of items of each list: int64, shape (len(self),)."""
        self._insert_pending()
        return self._lengths

    @property
    def items(self) -> Any:
        """The items of all lists, one list after the other."""
        self._insert_pending()
        return self._items

    @property
    def starts(self) -> Any:
        """The start of each list in `items`: int64, shape (len(self),)."""
        return np.cumsum(self.lengths) - self._lengths

    def update(self, slots: Any, items: Any, signs: Any = 1) -> Any:
        """Append n items to the lists of n slots, or remove them where the sign is -1, like the methods of `list`.

        Args:
            slots: intp, shape (n,).
            items: shape (n,).
            signs: The signs that `fold_many` receives.

        Returns:
            None, or NotImplemented if an item to be removed is missing. In that case nothing has been changed.
        """
        items = np.asarray(items).astype(self._items.dtype, casting="same_kind", copy=True)
        signs = np.broadcast_to(signs, len(slots))
        if (signs < 0).any():
            return self._change(slots, items, signs)
        self._add_pending(slots.copy(), items)
        return None

    def extend(self, slots: Any, others: Self) -> None:
        """Append n other lists to the lists of n slots."""
        self._add_pending(np.repeat(slots, others.lengths), others.items.copy())

    def keep_largest(self, count: int) -> None:
        """Sort each list in descending order and keep its first `count` items.

        The sort is stable, so earlier ones of equal items come first. NaN counts as the largest.
        """
        if self._largest not in (None, count):
            self._insert_pending()
        self._largest, self._bounded_count = count, len(self._pending)
        if sum(len(items) for _, items in self._pending) > max(_PENDING_MIN, len(self._items)):
            self._insert_pending()

    def sorted(self) -> Self:
        """Return the lists, each in ascending order; NaN comes last."""
        self._insert_pending()
        result = self._empty()
        result._lengths = self._lengths  # noqa: SLF001 - it is one of these
        result._items = self._items[_by_item(self._owners(), self._items)]  # noqa: SLF001
        return result

    def grow(self, count: int) -> None:
        self._lengths = np.concatenate([self._lengths, np.zeros(count - len(self._lengths), np.int64)])

    def take(self, slots: Any) -> Self:
        self._insert_pending()
        result = self._empty()
        result._lengths = self._lengths[slots]  # noqa: SLF001
        result._items = self._items[indexes_of_ranges(self.starts[slots], result._lengths)]  # noqa: SLF001
        return result

    def put(self, slots: Any, others: Self) -> None:
        self.clear(slots)
        self.extend(slots, others)

    def clear(self, slots: Any) -> None:
        self._insert_pending()
        remaining = np.ones(len(self), np.bool_)
        remaining[slots] = False
        self._items = self._items[np.repeat(remaining, self._lengths)]
        self._lengths = np.where(remaining, self._lengths, 0)

    def save(self, slots: Any) -> Self:  # noqa: ARG002 - nothing is changed in place, so all lists are saved as cheaply
        result = self._empty()
        result.__dict__.update(self.__dict__, _pending=list(self._pending))
        return result

    def restore(self, slots: Any, backup: Self) -> None:  # noqa: ARG002
        self.__dict__.update(backup.__dict__, _pending=list(backup.__dict__["_pending"]))

    def to_arrow(self) -> pa.Array | None:
        self._insert_pending()
        try:
            offsets = pa.array(np.concatenate([[0], np.cumsum(self._lengths)]), pa.int32())
            items = pa.array(self._items).cast(self._type)
        except pa.ArrowInvalid:
            return None
        return pa.ListArray.from_arrays(offsets, items).cast(pa.list_(self._type))

    def from_arrow(self, states: pa.Array) -> Self | None:
        items = states.flatten()
        if states.null_count or items.null_count:
            return None
        result = self._empty()
        result._lengths = states.value_lengths().to_numpy().astype(np.int64)  # noqa: SLF001
        result._items = items.to_numpy(zero_copy_only=False).astype(self._items.dtype)  # noqa: SLF001
        return result

    def _empty(self) -> Self:
        return type(self)(self._type, self._items.dtype)

    def _owners(self) -> Any:
        return np.repeat(np.arange(len(self._lengths)), self._lengths)

    def _add_pending(self, slots: Any, items: Any) -> None:
        self._pending.append((slots, items))

    def _insert_pending(self) -> None:
        """Insert the pending items into the lists."""
        pending, bounded_count, largest = self._pending, self._bounded_count, self._largest
        self._pending, self._bounded_count, self._largest = [], 0, None
        if largest is not None:
            self._insert(pending[:bounded_count])
            self._cut(largest)
            pending = pending[bounded_count:]
        self._insert(pending)

    def _insert(self, pending: list[tuple[Any, Any]]) -> None:
        if not pending:
            return
        slots, items = (np.concatenate(parts) for parts in zip(*pending, strict=True))
        order = _order_by_slot(slots)
        slots, items = slots[order], items[order]
        new_lengths = np.bincount(slots, minlength=len(self))
        if not len(self._items):
            self._items, self._lengths = items, new_lengths
            return
        # Each list is followed by its new items.
        indexes = np.arange(len(items)) + np.cumsum(self._lengths)[slots]
        together = np.empty(len(self._items) + len(items), self._items.dtype)
        is_new = np.zeros(len(together), np.bool_)
        is_new[indexes] = True
        together[indexes] = items
        together[~is_new] = self._items
        self._items, self._lengths = together, self._lengths + new_lengths

    def _cut(self, largest: int) -> None:
        """Sort each list in descending order and keep its first `largest` items."""
        # A stable sort of the reversed items, read in reverse, keeps the order of equal items.
        backwards = len(self) - 1 - self._owners()[::-1]
        items = self._items[::-1][_by_item(backwards, self._items[::-1])[::-1]]
        lengths = np.minimum(self._lengths, largest)
        self._items = items[indexes_of_ranges(np.cumsum(self._lengths) - self._lengths, lengths)]
        self._lengths = lengths

    def _change(self, slots: Any, items: Any, signs: Any) -> Any:
        """Append and remove items, or return NotImplemented before any change."""
        self._insert_pending()
        touched_mask = np.zeros(len(self), np.bool_)
        touched_mask[slots] = True
        item_mask = np.repeat(touched_mask, self._lengths)
        every = np.concatenate([self._owners()[item_mask], slots])
        values = np.concatenate([self._items[item_mask], items])
        steps = np.concatenate([np.ones(int(item_mask.sum()), np.int64), signs])
        order = _by_item(every, values, stable=True)
        owners, sorted_values, sorted_steps = every[order], values[order], steps[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (owners[1:] != owners[:-1]) | (sorted_values[1:] != sorted_values[:-1])
        group = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        running = np.cumsum(sorted_steps)
        running -= (running - sorted_steps)[first][group]
        if (running < 0).any():
            return NotImplemented
        # Each removing row removes the first of the equal items that are left, like `list.remove`.
        additions = np.cumsum(sorted_steps > 0)
        rank = additions - (additions - (sorted_steps > 0))[first][group]
        removals = np.bincount(group, sorted_steps < 0)[group]
        stays = np.empty(len(order), np.bool_)
        stays[order] = (sorted_steps > 0) & (rank > removals)
        count = len(stays) - len(slots)
        remaining = ~item_mask
        remaining[item_mask] = stays[:count]
        self._lengths = np.bincount(self._owners()[remaining], minlength=len(self))
        self._items = self._items[remaining]
        self._add_pending(slots[stays[count:]], items[stays[count:]])
        return None


def _order_by_slot(slots: Any) -> Any:
    """Return the order that groups rows by slot and keeps the order of rows within a slot."""
    count = len(slots)
    if count >= 1 << 32:
        return np.argsort(slots, kind="stable")
    # Sorting distinct numbers is several times faster than a stable sort.
    keys = slots.astype(np.int64) << 32 | np.arange(count)
    keys.sort()
    return keys & 0xFFFFFFFF


def _by_item(owners: Any, items: Any, *, stable: bool = False) -> Any:
    """Return the order by owner, then by item. Equal items keep their order if they are distinguishable or `stable`."""
    # Of equal items only 0.0 and -0.0 can be told apart. A stable sort takes four times as long.
    stable = stable or (items.dtype.kind == "f" and bool(np.signbit(items[items == 0]).any()))
    order = np.argsort(items, kind="stable" if stable else "quicksort")
    return order[_order_by_slot(owners[order])]


def indexes_of_ranges(starts: Any, lengths: Any) -> Any:
    """Return the indexes of n ranges, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
