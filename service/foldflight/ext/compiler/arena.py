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
OWNED: Final = HEADER  # a further word of a header in the arena: whether a dict holds the container
INNER_HEADER: Final = HEADER + 1  # words of a header in the arena
ROW, CHANGES, CHANGES_MAX, JOURNAL, TOP, SIZE, ARENA, NEEDED, TEXT, TEXT_END, MARK, RESULT = range(12)
CONTROLS: Final = 12
SMALL: Final = 8  # entries of a dict or set that are searched without an index
_WORDS_MIN: Final = 1 << 12  # first size of the arena, in words of 8 bytes
_CHANGES_MIN: Final = 1 << 8  # first size of the journal, in changes of two words
_TEXT_MIN: Final = 1 << 16  # first size of the memory for strings that compiled code creates, in bytes


@dataclass(frozen=True)
class Element:
    """The type of the keys, values or items of a container: a kind, or a tuple with a kind for each member.

    The values of a dict may be containers: the kind is their shape, `nested` is what they hold, and the word of a value
    is the address of its header, which has `INNER_HEADER` words in the arena. `cls` is the class of a NamedTuple.
    """

    kinds: tuple[str, ...]
    is_tuple: bool = False
    nested: Contents | None = None
    cls: Any = None

    def __str__(self) -> str:
        if self.nested is not None:
            return str(self.nested)
        if self.cls is not None:
            return self.cls.__name__
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
        nested = self.nested
        return any(kind in TEXTS for part in parts for kind in part.kinds) or (nested is not None and nested.has_texts)

    @property
    def tuple_classes(self) -> tuple[Any, ...]:
        """The classes of the NamedTuples that it holds."""
        parts = (self.key,) if self.value is None else (self.key, self.value)
        inner = () if self.nested is None else self.nested.tuple_classes
        return (*(part.cls for part in parts if part.cls is not None), *inner)

    @property
    def has_sets(self) -> bool:
        """Whether it is a set, or holds sets."""
        return self.shape == "set" or (self.nested is not None and self.nested.has_sets)

    @property
    def nested(self) -> Contents | None:
        """What the containers hold that are the values of a dict; None if the values are no containers."""
        return None if self.value is None else self.value.nested

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
            (table[field.name], field.contents)
            for table in tables
            for field in container_fields(fields)
            if field.contents is not None
        ]
        # One more word for each header, because compaction reads all of them, however few words are needed.
        live = sum(self._live_words(each, contents) + len(each) for each, contents in headers)
        arena = np.zeros(max(_WORDS_MIN, 2 * (live + more)), np.int64)
        top = 0
        for each, contents in headers:
            top = self._move(each, contents, arena, top)
        self._resize(arena, top)
        self.control[CHANGES] = 0  # its addresses refer to the old arena

    def _live_words(self, headers: Any, contents: Contents) -> int:
        """Return the number of words of the regions of n containers, and of the containers within them."""
        words = int(_size(headers, contents).sum())
        if contents.nested is None:
            return words
        inner = self._inner_headers(_references(headers, contents))
        return words + inner.size + self._live_words(inner, contents.nested)

    def _inner_headers(self, references: Any) -> Any:
        """Return the headers of the containers to which words refer, int64, shape (n, 7)."""
        first = (self._words[references] - self._words.ctypes.data) // 8
        return self._words[first[:, np.newaxis] + np.arange(INNER_HEADER)]

    def _move(self, headers: Any, contents: Contents, arena: npt.NDArray[np.int64], top: int) -> int:
        """Copy the regions of n containers, and the containers within them, to a new arena from an offset on.

        Returns:
            The offset after the last word that was written.
        """
        inner = None if contents.nested is None else self._inner_headers(_references(headers, contents))
        words, offsets = _entry_offsets(headers[:, OFFSET], _size(headers, contents))
        arena[top : top + len(words)] = self._words[words]
        headers[:, OFFSET] = top + offsets
        top += len(words)
        if inner is None or contents.nested is None:
            return top
        end = self._move(inner, contents.nested, arena, top + inner.size)
        _put_inner(arena, inner, _references(headers, contents), top)
        return end

    def column(self, headers: Any, contents: Contents, type_: pa.DataType, *, narrow: bool) -> pa.Array | None:
        """Return n containers as a column of lists or maps; None if a number does not fit its type.

        Args:
            headers: Their headers, int64, shape (n, 6), or (n, 7) if dicts hold them.
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
        if part.nested is not None:
            return self.column(self._inner_headers(offsets), part.nested, type_, narrow=narrow)
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
        parts: list[tuple[Element, Any]] = [(contents.key, column.flatten())] if contents.value is None else []
        if contents.value is not None:
            keys, items = _entries_of(column)
            parts = [(contents.key, keys), (contents.value, items)]
        headers[:, CONTROL] = self.control.ctypes.data
        headers[:, USED] = headers[:, LIVE] = counts
        headers[:, CAPACITY] = _capacity(counts)
        headers[:, INDEXED] = 0
        sizes = _size(headers, contents)
        headers[:, OFFSET] = offset + np.cumsum(sizes) - sizes
        end = offset + int(sizes.sum())
        self._words[offset:end] = 0
        offsets, _ = _entry_offsets(headers[:, OFFSET], counts, contents.stride)
        ahead = 0
        for part, values in parts:
            if part.nested is not None:
                inner = np.zeros((len(offsets), INNER_HEADER), np.int64)
                inner[:, OWNED] = 1
                filled_to = self.fill(inner, part.nested, values, end + inner.size)
                if filled_to is None:
                    return None
                _put_inner(self._words, inner, offsets + ahead, end)
                end = filled_to
                continue
            for number, kind in enumerate(part.kinds):
                member = _Member("value", FORMATS[kind])
                records = np.zeros(len(offsets), record_dtype((member,)))
                whole = values.field(number) if part.is_tuple else values
                if values.null_count or not fill_member(records, member, whole):
                    return None
                words = records["value"].astype(np.int64) if member.format == "?" else records["value"].view(np.int64)
                self._words[offsets + ahead] = words
                ahead += 1
        return end


FORMATS: Final = {
    **dict.fromkeys(("int", *MOMENTS, *TEXTS), "i8"), "float": "f8", "bool": "?", "byte": "u1",
    **dict.fromkeys(DECIMALS, "V16"),
}  # fmt: skip
"""The NumPy formats of the kinds of values."""


def container_fields(fields: Sequence[RecordField]) -> list[RecordField]:
    """Return the fields that are containers."""
    return [field for field in fields if field.contents is not None]


def containers_within(contents: Contents, value: Any) -> list[Any]:
    """Return the Python objects of the containers within a container."""
    if contents.nested is None or not isinstance(value, dict):
        return []
    within = [*value.values()]
    return [*within, *(inner for each in within for inner in containers_within(contents.nested, each))]


def room(column: pa.Array, contents: Contents) -> int | None:
    """Return the number of words that `fill` needs for a column; None if it has NULLs."""
    counts = _lengths_of(column)
    if counts is None:
        return None
    headers = np.zeros((len(counts), HEADER), np.int64)
    headers[:, CAPACITY] = _capacity(counts)
    words = int(_size(headers, contents).sum())
    if contents.nested is None:
        return words
    _, inner = _entries_of(column)
    more = room(inner, contents.nested)
    return None if more is None else words + INNER_HEADER * len(inner) + more


def _entries_of(column: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps of a column."""
    first, last = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    return column.keys.slice(first, last - first), column.items.slice(first, last - first)


def _references(headers: Any, contents: Contents) -> Any:
    """Return the offsets of the words of dicts that refer to the containers within them, also of deleted entries."""
    entries, _ = _entry_offsets(headers[:, OFFSET], headers[:, USED], contents.stride)
    return entries + len(contents.key.kinds)


def _put_inner(arena: npt.NDArray[np.int64], headers: Any, references: Any, offset: int) -> None:
    """Write the headers of n containers within dicts to an arena, and the words that refer to them."""
    arena[offset : offset + headers.size] = headers.reshape(-1)
    arena[references] = arena.ctypes.data + 8 * (offset + INNER_HEADER * np.arange(len(headers)))


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
