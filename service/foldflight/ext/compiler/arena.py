"""The memory of the lists, dicts and sets in a call's accumulators, managed from Python; compiled code: `memory.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.fold.aggregate.record_layout import column_of, fill_member, record_dtype
from foldflight.fold.machine_values import DECIMALS, MOMENTS, TEXTS

if TYPE_CHECKING:
    from foldflight.ext.compiler.records import RecordField

RAISED: Final = (ArithmeticError, ValueError, TypeError)
"""Exceptions of compiled code. The interpreter repeats the row, and raises Python's exception if there is one."""

# Indexes of the words of a container's header, and of the control words (`memory.py`).
CONTROL, OFFSET, USED, CAPACITY, LIVE, INDEXED = range(6)
HEADER: Final = 6
ROW, CHANGES, CHANGES_MAX, JOURNAL, TOP, SIZE, ARENA, NEEDED, TEXT, TEXT_END, MARK, RESULT = range(12)
CONTROLS: Final = 12
SMALL: Final = 8  # entries of a dict or set that are searched without an index
_WORDS_MIN: Final = 1 << 12  # first size of the arena, in words of 8 bytes
_CHANGES_MIN: Final = 1 << 8  # first size of the journal, in changes of two words
_TEXT_MIN: Final = 1 << 16  # first size of the memory for strings that compiled code creates, in bytes


@dataclass(frozen=True)
class Element:
    """The type of the keys, values or items of a container: a kind, or a tuple with a kind for each member."""

    kinds: tuple[str, ...]
    is_tuple: bool = False

    def __str__(self) -> str:
        return f"tuple[{', '.join(self.kinds)}]" if self.is_tuple else self.kinds[0]


@dataclass(frozen=True)
class Contents:
    """The type of a container.

    Args:
        shape: `list`, `dict` or `set`, which determines its memory layout.
        key: The keys of a dict, or the items of a list or set.
        value: The values of a dict.
        cls: Its class, if it is not list, dict or set, such as Counter or deque.
        limit: The `maxlen` of a deque.
    """

    shape: str
    key: Element
    value: Element | None = None
    cls: type | None = None
    limit: int | None = None

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.shape if self.cls is None else self.cls.__name__

    @property
    def has_texts(self) -> bool:
        """Whether keys, values or items contain str or bytes."""
        parts = (self.key,) if self.value is None else (self.key, self.value)
        return any(kind in TEXTS for part in parts for kind in part.kinds)

    @property
    def stride(self) -> int:
        """The number of words of an entry."""
        return len(self.key.kinds) + (len(self.value.kinds) if self.value is not None else 0)

    def __str__(self) -> str:
        limit_text = "" if self.limit is None else f"; {self.limit}"
        return f"{self.name}[{self.key}{'' if self.value is None else f', {self.value}'}{limit_text}]"


@dataclass(frozen=True)
class _Member:
    """The description of a column of words for `column_of` and `fill_member`."""

    name: str
    format: str
    optional: bool = False
    valid: str = ""


class Arena:
    """The arena and the journal of a call's containers.

    Args:
        control: The control words, int64, shape (12,). Their address must not change.

    Attributes:
        texts: The buffers of strings that compiled code has created since the last call of `take_texts`.
    """

    def __init__(self, control: npt.NDArray[np.int64]) -> None:
        self.control = control
        self._words = np.zeros(0, np.int64)
        self._journal = np.zeros(0, np.int64)
        self.texts: list[pa.Array] = []
        self._resize(np.zeros(_WORDS_MIN, np.int64), 0)
        self._record(_CHANGES_MIN)

    def _resize(self, arena: npt.NDArray[np.int64], top: int) -> None:
        self._words = arena
        self.control[[TOP, SIZE, ARENA]] = top, len(arena), arena.ctypes.data

    def _record(self, changes: int) -> None:
        self._journal = np.zeros(2 * changes, np.int64)
        self.control[[CHANGES, CHANGES_MAX, JOURNAL]] = 0, changes, self._journal.ctypes.data

    def run(
        self, loop: Any, arguments: Sequence[Any], tables: Callable[[], Sequence[Any]], fields: Sequence[RecordField]
    ) -> None:
        """Run a loop. If memory is exhausted, allocate more, and repeat the abandoned row.

        Args:
            loop: The loop.
            arguments: Its arguments.
            tables: Returns all records that have containers.
            fields: Their fields.
        """
        abandoned_row = -1
        while True:
            try:
                loop(*arguments)
            except MemoryError:
                self._undo()
                row = int(self.control[ROW])
                self._grow(tables(), fields, again=row == abandoned_row)
                abandoned_row = row
            except RAISED:
                self._undo()
                raise
            else:
                return

    def _undo(self) -> None:
        """Roll back the changes of an abandoned row."""
        count = int(self.control[CHANGES])
        for address, word in self._journal[: 2 * count].reshape(-1, 2)[::-1].tolist():
            self._words[(address - self._words.ctypes.data) // 8] = word
        self.control[CHANGES] = 0

    def _grow(self, tables: Sequence[Any], fields: Sequence[RecordField], *, again: bool = False) -> None:
        """Allocate memory after a MemoryError, for the abandoned row and later ones.

        Args:
            tables: All records that have containers.
            fields: Their fields.
            again: Whether the same row was abandoned before, so that it needs more than it asked for.
        """
        needed_bytes = int(self.control[NEEDED])
        if needed_bytes < 0:
            size = 2 * len(self.texts[-1]) if again and self.texts else _TEXT_MIN
            self.texts.append(pa.array(np.zeros(max(size, -2 * needed_bytes), np.uint8)))
            address = self.texts[-1].buffers()[1].address
            self.control[[TEXT, TEXT_END]] = address, address + len(self.texts[-1])
            self.control[CHANGES] = 0
        elif needed_bytes:
            self._compact(tables, fields, max(needed_bytes, int(self.control[SIZE])) if again else needed_bytes)
        else:
            self._record(2 * int(self.control[CHANGES_MAX]))

    def take_texts(self) -> list[pa.Array]:
        """Return the buffers of new strings since the last call. The caller keeps those to which accumulators refer."""
        texts, self.texts = self.texts, []
        if texts:
            self.control[[TEXT, TEXT_END]] = 0
        return texts

    def reserve(self, tables: Sequence[Any], fields: Sequence[RecordField], words: int) -> int:
        """Allocate words, and return their offset."""
        if self.control[TOP] + words > self.control[SIZE]:
            self._compact(tables, fields, words)
        offset = int(self.control[TOP])
        self.control[TOP] += words
        return offset

    def _compact(self, tables: Sequence[Any], fields: Sequence[RecordField], more: int) -> None:
        """Copy all regions to a new, larger arena, without gaps."""
        headers = [
            (table[field.name], _size(table[field.name], field.contents))
            for table in tables
            for field in container_fields(fields)
        ]
        # One more word for each header, because compaction reads all of them, however few words are needed.
        live = sum(int(sizes.sum()) + len(sizes) for _, sizes in headers)
        arena = np.zeros(max(_WORDS_MIN, 2 * (live + more)), np.int64)
        top = 0
        for header, sizes in headers:
            words, offsets = _entry_offsets(header[:, OFFSET], sizes)
            arena[top : top + len(words)] = self._words[words]
            header[:, OFFSET] = top + offsets
            top += len(words)
        self._resize(arena, top)
        self.control[CHANGES] = 0  # its addresses refer to the old arena

    def column(self, headers: Any, contents: Contents, type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
        """Return n containers as a column of lists or maps; None if a number does not fit its type.

        Args:
            headers: Their headers, int64, shape (n, 6).
            contents: What they hold.
            type_: The type of the column.
            narrow: Whether integers have the width of their type, instead of 64 bits.
        """
        counts = headers[:, USED]
        entries, starts = _entry_offsets(headers[:, OFFSET], counts, contents.stride)
        if contents.shape != "list" and (headers[:, LIVE] != counts).any():
            owners = np.repeat(np.arange(len(headers)), counts)
            positions = np.arange(len(entries)) - starts[owners]
            bits = headers[owners, OFFSET] + headers[owners, CAPACITY] * contents.stride + positions // 64
            live = (self._words[bits] >> (positions % 64)) & 1 == 0
            entries, counts = entries[live], headers[:, LIVE]
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        if pa.types.is_map(type_):
            assert contents.value is not None
            keys = self._element(entries, contents.key, type_.key_type, narrow=narrow)
            ahead = entries + len(contents.key.kinds)
            items = self._element(ahead, contents.value, type_.item_type, narrow=narrow)
            if keys is None or items is None:
                return None
            column = pa.MapArray.from_arrays(offsets, keys, items)
            return column.cast(type_) if narrow else column
        items = self._element(entries, contents.key, type_.value_type, narrow=narrow)
        if items is None:
            return None
        return (
            pa.ListArray.from_arrays(offsets, items, type=type_) if narrow else pa.ListArray.from_arrays(offsets, items)
        )

    def _element(self, offsets: Any, part: Element, type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
        columns = []
        for number, kind in enumerate(part.kinds):
            member = _Member("value", FORMATS[kind])
            records = np.zeros(len(offsets), record_dtype((member,)))
            words = self._words[offsets + number]
            records["value"] = words.view(np.float64) if member.format == "f8" else words
            expected = type_.field(number).type if part.is_tuple else type_
            columns.append(column_of(records, member, expected, narrow=narrow))
        if any(column is None for column in columns):
            return None
        if not part.is_tuple:
            return columns[0]
        if narrow:
            return pa.StructArray.from_arrays(columns, fields=list(type_))
        return pa.StructArray.from_arrays(columns, names=[field.name for field in type_])

    def repeat(self, header: Any, contents: Contents | None, count: int, offset: int) -> Any:
        """Copy the region of a container so many times to reserved words, and return the headers of the copies.

        Args:
            header: The header of the container, int64, shape (6,).
            contents: What it holds.
            count: The number of copies.
            offset: The offset of the reserved words; `size_of` tells how many a copy needs.
        """
        size, first = size_of(header, contents), int(header[OFFSET])
        self._words[offset : offset + count * size] = np.tile(self._words[first : first + size], count)
        headers = np.tile(header, (count, 1))
        headers[:, OFFSET] = offset + size * np.arange(count)
        return headers

    def fill(self, headers: Any, contents: Contents, column: pa.Array, offset: int) -> int | None:
        """Write a column of n containers into the arena, and their headers; None if one does not fit.

        Args:
            headers: int64, shape (n, 6), which are written.
            contents: What the containers hold.
            column: The lists or maps.
            offset: The offset of the reserved words; `allocate` tells how many are needed.

        Returns:
            The offset after the last word that was written.
        """
        counts = _lengths_of(column)
        if counts is None:
            return None
        entries = column.flatten() if not pa.types.is_map(column.type) else None
        parts: list[tuple[Element, Any]] = [(contents.key, entries)]
        if entries is None:
            assert contents.value is not None
            first, last = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
            parts = [(contents.key, column.keys.slice(first, last - first))]
            parts.append((contents.value, column.items.slice(first, last - first)))
        headers[:, CONTROL] = self.control.ctypes.data
        headers[:, USED] = headers[:, LIVE] = counts
        headers[:, CAPACITY] = _capacity(counts)
        headers[:, INDEXED] = 0
        sizes = _size(headers, contents)
        headers[:, OFFSET] = offset + np.cumsum(sizes) - sizes
        self._words[offset : offset + int(sizes.sum())] = 0
        offsets, _ = _entry_offsets(headers[:, OFFSET], counts, contents.stride)
        ahead = 0
        for part, values in parts:
            for number, kind in enumerate(part.kinds):
                member = _Member("value", FORMATS[kind])
                records = np.zeros(len(offsets), record_dtype((member,)))
                whole = values.field(number) if part.is_tuple else values
                if values.null_count or not fill_member(records, member, whole):
                    return None
                words = records["value"].astype(np.int64) if member.format == "?" else records["value"].view(np.int64)
                self._words[offsets + ahead] = words
                ahead += 1
        return offset + int(sizes.sum())


FORMATS: Final = {
    **dict.fromkeys(("int", *MOMENTS, *TEXTS), "i8"), "float": "f8", "bool": "?", "byte": "u1",
    **dict.fromkeys(DECIMALS, "V16"),
}  # fmt: skip
"""The NumPy formats of the kinds of values."""


def container_fields(fields: Sequence[RecordField]) -> list[RecordField]:
    """Return the fields that are containers."""
    return [field for field in fields if field.contents is not None]


def room(column: pa.Array, contents: Contents) -> int | None:
    """Return the number of words that `fill` needs for a column; None if it has NULLs."""
    counts = _lengths_of(column)
    if counts is None:
        return None
    headers = np.zeros((len(counts), HEADER), np.int64)
    headers[:, CAPACITY] = _capacity(counts)
    return int(_size(headers, contents).sum())


def _lengths_of(column: pa.Array) -> npt.NDArray[np.int64] | None:
    """Return the lengths of lists or maps; None if the column has NULLs."""
    if column.null_count:
        return None
    return np.diff(column.offsets.to_numpy()).astype(np.int64)


def _capacity(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the capacities for numbers of entries: powers of two from 4 on, and 0 for empty containers."""
    wide = 1 << np.ceil(np.log2(np.maximum(counts, 4))).astype(np.int64)
    return np.where(counts == 0, 0, np.where(wide < counts, 2 * wide, wide))


def _size(headers: Any, contents: Contents | None) -> npt.NDArray[np.int64]:
    """Return the number of words of each container's region."""
    assert contents is not None
    capacity = headers[:, CAPACITY]
    if contents.shape == "list":
        return np.asarray(capacity * contents.stride)
    return np.asarray(capacity * contents.stride + (capacity + 63) // 64 + np.where(capacity > SMALL, capacity, 0))


def size_of(header: Any, contents: Contents | None) -> int:
    """Return the number of words of a container's region."""
    return int(_size(header[np.newaxis], contents)[0])


def _entry_offsets(offsets: Any, counts: Any, stride: int = 1) -> tuple[Any, Any]:
    """Return the offsets of the entries of n regions, and the number of entries before each region."""
    before = np.cumsum(counts) - counts
    return np.repeat(offsets - before * stride, counts) + np.arange(int(counts.sum())) * stride, before
