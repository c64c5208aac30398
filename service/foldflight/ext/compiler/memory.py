"""The memory of growing lists, dicts and sets of compiled code, and the operations on its words.

All containers of one call are regions of one array of 64-bit words, the arena; a group has no object of its own. A
container is a header in the record of its accumulator:

    control | offset of its region, in words | entries | capacity | entries that are not deleted | indexed entries

The region of a list has an item after the other. The region of a dict or set has the entries in the order of insertion
(the key's words, then the value's), a bit for each deleted entry, and, from nine entries on, an index of
32-bit ordinals of entries, which count from one, by open addressing. The index is made when a key is first looked up.

`control` is the address of the control words, the loops' argument `progress` (`Arena`). A row may be abandoned at any
point: at an exception, or because the arena is full. So a word of an earlier row is overwritten only after its old
value has been written to the journal, regions are never freed, and headers are in the copy of the record, which an
abandoned row discards. The header of a container within a dict is in the arena, and the dict has its address: it is
written to the journal when code gets the container. Its last word tells whether a dict holds it: one that two dicts
hold would be two after its state was written.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import types

from foldflight.ext.compiler import arena
from foldflight.ext.compiler.control_block import current, load, load_byte, load_short, store, store_short
from foldflight.ext.compiler.generated import llvm_function, register_jitable
from foldflight.ext.compiler.strings import COMPARISONS
from foldflight.fold.machine_values import ADDRESS_BITS, TEXTS

_SAME: Final = COMPARISONS["==", "text", "text"][0]
_BEFORE: Final = COMPARISONS["<", "text", "text"][0]
# Offsets in bytes of the words that `arena.py` numbers.
OFFSET, USED, CAPACITY, LIVE, INDEXED = (
    8 * word for word in (arena.OFFSET, arena.USED, arena.CAPACITY, arena.LIVE, arena.INDEXED)
)
_CHANGES, _CHANGES_MAX, _JOURNAL, _TOP, _SIZE, _ARENA, _NEEDED = (
    8 * word
    for word in (arena.CHANGES, arena.CHANGES_MAX, arena.JOURNAL, arena.TOP, arena.SIZE, arena.ARENA, arena.NEEDED)
)
_ROW, _MARK = 8 * arena.ROW, 8 * arena.MARK
OWNED: Final = 8 * arena.OWNED


_as_float: Final = llvm_function(types.float64, types.int64)(
    lambda context, builder, word: builder.bitcast(word, llvm.DoubleType())
)


def word_at(builder: Any, address: Any, index: int) -> Any:
    """Return, in generated code, a word of those at an address."""
    at = builder.add(address, llvm.Constant(llvm.IntType(64), 8 * index))
    return builder.load(builder.inttoptr(at, llvm.IntType(64).as_pointer()))


@functools.cache
def words_tuple(count: int) -> Any:
    """Return the function that returns so many words at an address as a tuple."""
    tuple_type = types.UniTuple(types.int64, count)

    @llvm_function(tuple_type, types.int64)
    def words(context: Any, builder: Any, address: Any) -> Any:
        return context.make_tuple(builder, tuple_type, [word_at(builder, address, index) for index in range(count)])

    return words


@register_jitable
def _allocate(control: int, words: int) -> int:
    """Return the offset of a new region. Raises MemoryError if the arena is full."""
    top = load(control + _TOP)
    if top + words > load(control + _SIZE):
        store(control + _NEEDED, words)
        raise MemoryError
    store(control + _TOP, top + words)
    return top


@register_jitable
def change(control: int, address: int, word: int) -> None:
    """Store a word of the arena, and record the old one. Raises MemoryError if the journal is full."""
    count = load(control + _CHANGES)
    if count == load(control + _CHANGES_MAX):
        store(control + _NEEDED, 0)
        raise MemoryError
    entry = load(control + _JOURNAL) + 16 * count
    store(entry, address)
    store(entry + 8, load(address))
    store(control + _CHANGES, count + 1)
    store(address, word)


@register_jitable
def address_of(header: int, word: int) -> int:
    """Return the address of a word of a container's region."""
    return load(load(header) + _ARENA) + 8 * (load(header + OFFSET) + word)


@register_jitable
def _copy(into: int, source: int, words: int) -> None:
    """Copy so many words."""
    for index in range(words):
        store(into + 8 * index, load(source + 8 * index))


@register_jitable
def clear(header: int) -> None:
    """Empty a container."""
    for index in range(1, arena.HEADER):
        store(header + 8 * index, 0)


@register_jitable
def _make_header(control: int) -> int:
    mark = load(control + _MARK)
    if mark >= -1 and mark != load(control + _ROW):  # no accumulator has containers, so the memory is free at each row
        store(control + _MARK, load(control + _ROW))
        store(control + _TOP, 0)
        store(control + _CHANGES, 0)
    header = load(control + _ARENA) + 8 * _allocate(control, arena.INNER_HEADER)
    store(header, control)
    store(header + OWNED, 0)
    clear(header)
    return header


@register_jitable
def fresh_header() -> int:
    """Return the address of the header of an empty container that code makes."""
    return _make_header(current())


@register_jitable
def new_header(header: int) -> int:
    """Return the address of the header of an empty temporary container, in the arena of another one."""
    return _make_header(load(header))


@register_jitable
def keep_header(header: int) -> None:
    """Record the header of a container within a dict, which code may change: it is in the arena, not in a record."""
    for word in range(1, arena.HEADER):
        change(load(header), header + 8 * word, load(header + 8 * word))


@register_jitable
def view_of_words(header: int, words: int, start: int, count: int) -> None:
    """Write the header of a list or dict whose entries are at an address, from a word on. It must not be changed."""
    control = current()
    store(header, control)
    store(header + OWNED, 1)  # no dict may hold it
    store(header + OFFSET, (words - load(control + _ARENA)) // 8 + start)
    store(header + USED, count)
    store(header + CAPACITY, 0)  # without an index
    store(header + LIVE, count)
    store(header + INDEXED, 0)


# --- lists, whose items are tuples of words ---------------------------------------------------------------------------


@register_jitable
def reallocate(header: int, capacity: int, stride: int) -> None:
    """Move the items of a list, of so many words each, to a larger region."""
    control, used_count = load(header), load(header + USED)
    offset = _allocate(control, capacity * stride)
    _copy(load(control + _ARENA) + 8 * offset, address_of(header, 0), used_count * stride)
    store(header + OFFSET, offset)
    store(header + CAPACITY, capacity)


@register_jitable
def replace_item(header: int, position: int, words: Any) -> None:
    """Replace an item."""
    control, address = load(header), address_of(header, position * len(words))
    for number in range(len(words)):
        change(control, address + 8 * number, words[number])


@register_jitable
def append(header: int, words: Any) -> None:
    """Append an item."""
    used_count, capacity = load(header + USED), load(header + CAPACITY)
    if used_count == capacity:
        reallocate(header, max(4, 2 * capacity), len(words))
    replace_item(header, used_count, words)
    store(header + USED, used_count + 1)


@register_jitable
def extend(header: int, other: int, start: int, stop: int, stride: int) -> None:
    """Append items of another list, or of the same."""
    count, used_count = stop - start, load(header + USED)
    if used_count + count > load(header + CAPACITY):
        reallocate(header, max(4, 2 * load(header + CAPACITY), used_count + count), stride)
    control, source, into = load(header), address_of(other, start * stride), address_of(header, used_count * stride)
    for index in range(count * stride):
        change(control, into + 8 * index, load(source + 8 * index))
    store(header + USED, used_count + count)


@register_jitable
def remove_items(header: int, start: int, stop: int, stride: int) -> None:
    """Remove items."""
    used_count, count = load(header + USED), max(stop - start, 0)
    if start == 0:  # the region begins later
        store(header + OFFSET, load(header + OFFSET) + count * stride)
        store(header + CAPACITY, load(header + CAPACITY) - count)
    else:
        control, into, source = load(header), address_of(header, start * stride), address_of(header, stop * stride)
        for index in range((used_count - start - count) * stride):
            change(control, into + 8 * index, load(source + 8 * index))
    store(header + USED, used_count - count)


@register_jitable
def insert(header: int, position: int, words: Any) -> None:
    """Insert an item."""
    append(header, words)
    control, address, stride = load(header), address_of(header, 0), len(words)
    for word in range((load(header + USED) - 1) * stride - 1, position * stride - 1, -1):
        change(control, address + 8 * (word + stride), load(address + 8 * word))
    replace_item(header, position, words)


@functools.cache
def ordering(kinds: tuple[str, ...]) -> Any:
    """Return `less(one, other)` of the addresses of two values with these kinds. Raises for NaN."""
    (first, *rest) = kinds
    after = ordering(tuple(rest)) if rest else None
    is_float, is_text, same, before = first == "float", first in TEXTS, _SAME, _BEFORE

    @register_jitable
    def less(one, other):
        a, b = load(one), load(other)
        if is_float:
            x, y = _as_float(a), _as_float(b)
            if x != x or y != y:  # noqa: PLR0124 - Python's order of NaN depends on its algorithm
                raise ValueError
            if after is None or x != y:
                return x < y
        elif is_text:
            if after is None or not same(a, b):
                return before(a, b)
        elif after is None or a != b:
            return a < b
        return False if after is None else after(one + 8, other + 8)

    return less


@functools.cache
def make_sort(kinds: tuple[str, ...]) -> Any:
    """Return `sort(header, scratch)`, which sorts a temporary list; `scratch` is another one of the same capacity."""
    stride, less = len(kinds), ordering(kinds)

    @register_jitable
    def merge(source, into, low, middle, high):
        one, other = low, middle
        for position in range(low, high):
            takes_one = other >= high or (
                one < middle and not less(source + 8 * stride * other, source + 8 * stride * one)
            )
            taken_from = one if takes_one else other
            _copy(into + 8 * stride * position, source + 8 * stride * taken_from, stride)
            if takes_one:
                one += 1
            else:
                other += 1

    @register_jitable
    def sort(header, scratch):
        used_count = load(header + USED)
        if used_count == 1 and less(address_of(header, 0), address_of(header, 0)):  # raises for NaN
            return
        width = 1
        while width < used_count:
            source, into = address_of(header, 0), address_of(scratch, 0)
            for low in range(0, used_count, 2 * width):
                merge(source, into, low, min(low + width, used_count), min(low + 2 * width, used_count))
            offset = load(header + OFFSET)
            store(header + OFFSET, load(scratch + OFFSET))
            store(scratch + OFFSET, offset)
            width *= 2

    return sort


@register_jitable
def _hash_of_text(text):
    """Return the hash of a text's content."""
    length, address = text >> ADDRESS_BITS, text & ((1 << ADDRESS_BITS) - 1)
    mixed_hash, offset = length, 0
    while offset < length:
        word = 0
        if offset + 8 <= length:
            word = load(address + offset)
        else:
            for last in range(offset, length):
                word = (word << 8) | load_byte(address + last)
        mixed_hash = (mixed_hash ^ word) * -7046029254386353131
        mixed_hash ^= mixed_hash >> 32
        offset += 8
    return mixed_hash


@functools.cache
def _comparing_one(kind: str) -> tuple[Any, Any]:
    """Return the word from which a key's hash is made, and the comparison of two words."""
    if kind in TEXTS:
        return _hash_of_text, COMPARISONS["==", kind, kind][0]
    is_float = kind == "float"
    word_of = register_jitable(
        lambda word: 0 if is_float and _as_float(word) == 0.0 else word
    )  # 0.0 and -0.0 are equal
    return word_of, register_jitable(lambda a, b: word_of(a) == word_of(b))


@functools.cache
def _make_key_operations(kinds: tuple[str, ...], index: int = 0) -> SimpleNamespace:
    """Return the hash of keys, their comparison, and the check that none of their floats is NaN."""
    word_of, same = _comparing_one(kinds[index])
    is_float, is_last = kinds[index] == "float", index + 1 == len(kinds)
    after = (
        SimpleNamespace(hash_words=None, is_same=None, check=None)
        if is_last
        else _make_key_operations(kinds, index + 1)
    )
    hash_after, same_after, check_after = after.hash_words, after.is_same, after.check

    @register_jitable
    def hash_words(words):
        mixed_hash = word_of(words[index]) if is_last else word_of(words[index]) ^ hash_after(words)
        mixed_hash *= -7046029254386353131
        return mixed_hash ^ (mixed_hash >> 32)

    @register_jitable
    def is_same(address, words):
        if not same(load(address + 8 * index), words[index]):
            return False
        return True if is_last else same_after(address, words)

    @register_jitable
    def check(words):
        if is_float and _as_float(words[index]) != _as_float(words[index]):
            raise ValueError  # in Python, the object of a NaN matters
        if not is_last:
            check_after(words)

    return SimpleNamespace(hash_words=hash_words, is_same=is_same, check=check)


@functools.cache
def search_of(kinds: tuple[str, ...]) -> Any:
    """Return `search(header, words)`: the position of the first equal item of a list, or -1. It raises for NaN."""
    keys, stride = _make_key_operations(kinds), len(kinds)
    is_same, check = keys.is_same, keys.check

    @register_jitable
    def search(header, words):
        check(words)
        for position in range(load(header + USED)):
            if is_same(address_of(header, position * stride), words):
                return position
        return -1

    return search


@register_jitable
def _size_of(capacity: int, stride: int) -> int:
    """Return the number of words of a region."""
    return capacity * stride + (capacity + 63) // 64 + (capacity if capacity > arena.SMALL else 0)


@register_jitable
def _index_of(header: int, stride: int) -> int:
    capacity = load(header + CAPACITY)
    return address_of(header, capacity * stride + (capacity + 63) // 64)


@register_jitable
def _is_deleted(header: int, entry: int, stride: int) -> bool:
    if load(header + LIVE) == load(header + USED):
        return False
    bits = load(address_of(header, load(header + CAPACITY) * stride + entry // 64))
    return (bits >> (entry % 64)) & 1 == 1


@register_jitable
def next_entry(header: int, entry: int, stride: int) -> int:
    """Return the first entry from this number on, or -1."""
    used_count = load(header + USED)
    while entry < used_count and _is_deleted(header, entry, stride):
        entry += 1
    return entry if entry < used_count else -1


@register_jitable
def last_entry(header: int, stride: int) -> int:
    """Return the last entry, or -1."""
    entry = load(header + USED) - 1
    while entry >= 0 and _is_deleted(header, entry, stride):
        entry -= 1
    return entry


@register_jitable
def delete_entry(header: int, entry: int, stride: int) -> None:
    """Delete an entry."""
    if load(header + LIVE) == 1:
        clear(header)
        return
    address = address_of(header, load(header + CAPACITY) * stride + entry // 64)
    change(load(header), address, load(address) | (1 << (entry % 64)))
    store(header + LIVE, load(header + LIVE) - 1)


@register_jitable
def _rebuild(header: int, stride: int) -> None:
    """Move the entries to a larger region, without the deleted ones."""
    control, used_count, capacity = load(header), load(header + USED), load(header + CAPACITY)
    wider = max(4, capacity if 2 * load(header + LIVE) <= capacity else 2 * capacity)
    offset = _allocate(control, _size_of(wider, stride))
    into, count = load(control + _ARENA) + 8 * offset, 0
    for entry in range(used_count):
        if not _is_deleted(header, entry, stride):
            _copy(into + 8 * count * stride, address_of(header, entry * stride), stride)
            count += 1
    for word in range(wider * stride, _size_of(wider, stride)):
        store(into + 8 * word, 0)
    store(header + OFFSET, offset)
    store(header + USED, count)
    store(header + LIVE, count)
    store(header + CAPACITY, wider)
    store(header + INDEXED, 0)


@functools.cache
def dict_operations(kinds: tuple[str, ...], stride: int) -> SimpleNamespace:
    """Return `find(header, key)` and `add_entry(header, words)` of dicts and sets with keys of these kinds."""
    key_of, keys = words_tuple(len(kinds)), _make_key_operations(kinds)
    hash_words, is_same, check = keys.hash_words, keys.is_same, keys.check

    @register_jitable
    def put_in_index(header, entry):
        mask, index = 2 * load(header + CAPACITY) - 1, _index_of(header, stride)
        probe = hash_words(key_of(address_of(header, entry * stride))) & mask
        while True:
            ordinal = load_short(index + 4 * probe)
            # Ordinals of entries that do not exist are left from rows that were given up.
            if ordinal == 0 or ordinal > load(header + INDEXED) or ordinal == entry + 1:
                store_short(index + 4 * probe, entry + 1)
                store(header + INDEXED, entry + 1)
                return
            probe = (probe + 1) & mask

    @register_jitable
    def find(header, words):
        """Return the entry of a key, or -1. Raises ValueError for NaN."""
        check(words)
        used_count = load(header + USED)
        if load(header + CAPACITY) <= arena.SMALL:
            for entry in range(used_count):
                if is_same(address_of(header, entry * stride), words) and not _is_deleted(header, entry, stride):
                    return entry
            return -1
        for entry in range(load(header + INDEXED), used_count):
            put_in_index(header, entry)
        mask, index = 2 * load(header + CAPACITY) - 1, _index_of(header, stride)
        probe = hash_words(words) & mask
        while True:
            entry = load_short(index + 4 * probe) - 1
            if entry < 0 or entry >= used_count:
                return -1
            if is_same(address_of(header, entry * stride), words) and not _is_deleted(header, entry, stride):
                return entry
            probe = (probe + 1) & mask

    @register_jitable
    def add_entry(header, words):
        """Add an entry, whose key is not there. Return its number."""
        if load(header + USED) == load(header + CAPACITY):
            _rebuild(header, stride)
        entry = load(header + USED)
        address = address_of(header, entry * stride)
        for index in range(stride):
            store(address + 8 * index, words[index])
        store(header + USED, entry + 1)
        store(header + LIVE, load(header + LIVE) + 1)
        if load(header + CAPACITY) > arena.SMALL and load(header + INDEXED) == entry:
            put_in_index(header, entry)
        return entry

    return SimpleNamespace(find=find, add_entry=add_entry)
