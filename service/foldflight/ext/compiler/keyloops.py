"""Compiled loops that look up keys in hash tables. A key gets the id of the equal key, or else the next free id.

A table consists of `cells` and the arrays of its keys, which are indexed by id. `cells` (its length is a power of 2)
contains ids plus 1, found by open addressing with linear probing; 0 is a free cell. For texts the upper half of a
cell is the upper half of the hash. The cells of several rows are read ahead, so that the processor waits for memory
only once for all of them. The keys of a large table are read ahead, too.

A loop stops before a row that needs more room, and continues after the caller has enlarged the table. `state` (int64)
contains the number of ids, the next row, and the number of new keys.

Rows are indexed by unsigned numbers: for signed ones numba asks each time whether they count from the end.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_AHEAD = 64
# A table with fewer keys is in the cache of a core, where reading ahead would only take time.
_LARGE = 1 << 13


@numba.njit(inline="always")
def _mix(word, seed):
    """Return a word with mixed bits: the finalizer of MurmurHash3 (Austin Appleby, public domain) of word and seed."""
    word = word ^ seed
    word = word ^ (word >> np.uint64(33))
    word = word * np.uint64(0xFF51AFD7ED558CCD)
    word = word ^ (word >> np.uint64(33))
    word = word * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@numba.njit(inline="always")
def _word(data, at):
    """Return eight bytes as a number. With unsigned indices LLVM compiles it to one load."""
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@numba.njit(inline="always")
def _short(data, at, size):
    """Return fewer than eight bytes as a number. Bytes behind them are read at once, if there are any, and masked."""
    if at + np.uint64(8) <= np.uint64(len(data)):
        return _word(data, at) & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1))
    rest = np.uint64(0)
    for offset in range(size):
        rest |= np.uint64(data[at + np.uint64(offset)]) << np.uint64(8 * offset)
    return rest


@intrinsic
def _product(_context, _left, _right):
    """Multiply two numbers of 64 bits, and return the halves of the product combined by XOR."""

    def generate(_context, builder, _signature, arguments):
        wide = ir.IntType(128)
        left_word, right = (builder.zext(each, wide) for each in arguments)
        product = builder.mul(left_word, right)
        upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(builder.trunc(product, ir.IntType(64)), upper)

    return types.uint64(types.uint64, types.uint64), generate


@numba.njit(inline="always")
def _hash(data, start, size, seed):
    """Return the hash of a text, as wyhash (Wang Yi, public domain) makes it, with constants derived from `seed`.

    The last eight bytes may be read twice, which is faster than one by one.
    """
    one, two, three = _mix(np.uint64(1), seed), _mix(np.uint64(2), seed), _mix(np.uint64(3), seed)
    at = np.uint64(start)
    if size < 8:
        mixed_word = _product(_short(data, at, size) ^ one, two)
    else:
        last = np.uint64(start + size - 8)
        mixed_word = one
        while at + np.uint64(8) < last:
            mixed_word = _product(_word(data, at) ^ mixed_word, two)
            at += np.uint64(8)
        mixed_word = _product(_word(data, at) ^ mixed_word, _word(data, last) ^ two)
    return _product(mixed_word ^ np.uint64(size), three)


@numba.njit(inline="always")
def _is_same(data, start, table_keys, begin, size):
    at, other = np.uint64(start), np.uint64(begin)
    if size < 8:
        return _short(data, at, size) == _short(table_keys, other, size)
    last = np.uint64(start + size - 8)
    while at < last:
        if _word(data, at) != _word(table_keys, other):
            return False
        at += np.uint64(8)
        other += np.uint64(8)
    return _word(data, last) == _word(table_keys, np.uint64(begin + size - 8))


def _dense(values, base, by_number, ids, firsts, table_keys, count):
    """Find or add n numbers in an array of ids whose first cell is for `base`. Return the number of ids then.

    The array has a cell for each of the numbers, and `table_keys` has room for all of them.
    """
    known_count = count
    for row in range(len(values)):
        cell = np.uint64(values[np.uint64(row)] - base)
        number = by_number[cell]
        if number < 0:
            number = np.int32(count)
            by_number[cell] = number
            table_keys[count] = values[np.uint64(row)]
            firsts[count - known_count] = row
            count += 1
        ids[np.uint64(row)] = number
    return count


def _numbers(values, ids, firsts, cells, table_keys, state, seed):
    """Find or add n numbers. Return whether all are done; `firsts` receives the row of each new number."""
    count, new, last = state[0], state[2], np.uint64(len(cells) - 1)
    starts, entries = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint32)
    ahead = np.empty(_AHEAD, np.int64)
    for begin in range(state[1], len(values), _AHEAD):
        rows = min(_AHEAD, len(values) - begin)
        for row in range(rows):
            starts[np.uint64(row)] = _mix(np.uint64(values[np.uint64(begin + row)]), seed) & last
        for row in range(rows):
            entries[np.uint64(row)] = cells[starts[np.uint64(row)]]
        if count > _LARGE:
            for row in range(rows):
                entry = entries[np.uint64(row)]
                ahead[np.uint64(row)] = table_keys[np.uint64(entry) - np.uint64(entry != 0)]
        for row in range(rows):
            value, at = values[np.uint64(begin + row)], starts[np.uint64(row)]
            entry = np.uint64(entries[np.uint64(row)])
            while True:
                if entry == 0:
                    entry = np.uint64(cells[at])  # an earlier row may have taken it
                if entry == 0:
                    if count == len(table_keys):
                        state[0], state[1], state[2] = count, begin + row, new
                        return False
                    table_keys[count] = value
                    firsts[new] = begin + row
                    count += 1
                    new += 1
                    entry = np.uint64(count)
                    cells[at] = entry
                    break
                if table_keys[entry - np.uint64(1)] == value:
                    break
                at = (at + np.uint64(1)) & last
                entry = np.uint64(cells[at])
            ids[np.uint64(begin + row)] = np.int32(entry - np.uint64(1))
    state[0], state[1], state[2] = count, len(values), new
    return True


def _insert_numbers(cells, table_keys, count, seed):
    """Enter existing numbers into an empty table."""
    last = np.uint64(len(cells) - 1)
    for number in range(count):
        at = _mix(np.uint64(table_keys[number]), seed) & last
        while cells[at] != 0:
            at = (at + np.uint64(1)) & last
        cells[at] = number + 1


def _texts(offsets, data, ids, firsts, cells, hashes, ends, table_keys, state, seed):
    """Find or add n texts. Return whether all are done.

    Text i ends at `ends[i + 1]` in `table_keys`, which has at least eight bytes behind the last text.
    """
    count, new, last, total = state[0], state[2], np.uint64(len(cells) - 1), len(offsets) - 1
    mixes, entries, ahead = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint8)
    for begin in range(state[1], total, _AHEAD):
        rows = min(_AHEAD, total - begin)
        for row in range(rows):
            start = offsets[np.uint64(begin + row)]
            size = offsets[np.uint64(begin + row + 1)] - start
            mixes[np.uint64(row)] = _hash(data, start, size, seed)
        for row in range(rows):
            entries[np.uint64(row)] = cells[mixes[np.uint64(row)] & last]
        if count > _LARGE:
            for row in range(rows):
                ordinal = entries[np.uint64(row)] & np.uint64(0xFFFFFFFF)
                ahead[np.uint64(row)] = table_keys[np.uint64(ends[ordinal - np.uint64(ordinal != 0)])]
        for row in range(rows):
            start, mixed_hash, entry = offsets[np.uint64(begin + row)], mixes[np.uint64(row)], entries[np.uint64(row)]
            size, at, tag = offsets[np.uint64(begin + row + 1)] - start, mixed_hash & last, mixed_hash >> np.uint64(32)
            while True:
                if entry == 0:
                    entry = cells[at]  # an earlier row may have taken it
                if entry == 0:
                    other = ends[count]
                    if count == len(hashes) or other + size + 8 > len(table_keys):
                        state[0], state[1], state[2] = count, begin + row, new
                        return False
                    hashes[count] = mixed_hash
                    for offset in range(size):
                        table_keys[np.uint64(other + offset)] = data[np.uint64(start + offset)]
                    firsts[new] = begin + row
                    count += 1
                    new += 1
                    ends[count] = other + size
                    cells[at] = entry = tag << np.uint64(32) | np.uint64(count)
                    break
                if entry >> np.uint64(32) == tag:
                    ordinal = entry & np.uint64(0xFFFFFFFF)
                    other = ends[ordinal - np.uint64(1)]
                    if ends[ordinal] - other == size and _is_same(data, start, table_keys, other, size):
                        break
                at = (at + np.uint64(1)) & last
                entry = cells[at]
            ids[np.uint64(begin + row)] = np.int32((entry & np.uint64(0xFFFFFFFF)) - np.uint64(1))
    state[0], state[1], state[2] = count, total, new
    return True


def _insert_texts(cells, hashes, count):
    """Enter existing texts into an empty table."""
    last = np.uint64(len(cells) - 1)
    for text in range(count):
        at = hashes[text] & last
        while cells[at] != 0:
            at = (at + np.uint64(1)) & last
        cells[at] = hashes[text] >> np.uint64(32) << np.uint64(32) | np.uint64(text + 1)


def compile_loops(store: Any) -> dict[str, Any]:
    """Return the loops by name, compiled now or loaded from the store (a `LoopStore`)."""

    def readonly(dtype: Any) -> Any:
        return types.Array(dtype, 1, "C", readonly=True)

    def writable(dtype: Any) -> Any:
        return types.Array(dtype, 1, "C")

    ids, cells, hashes = writable(types.int32), writable(types.uint64), writable(types.uint64)
    narrow = writable(types.uint32)
    numbers, state, bytes_, firsts = (writable(each) for each in (types.int64, types.int64, types.uint8, types.intp))
    loops = {
        "dense": (_dense, (readonly(types.int64), types.int64, ids, ids, firsts, numbers, types.int64)),
        "numbers": (_numbers, (readonly(types.int64), ids, firsts, narrow, numbers, state, types.uint64)),
        "insert_numbers": (_insert_numbers, (narrow, numbers, types.int64, types.uint64)),
        "texts": (
            _texts,
            (
                *(readonly(types.int64), readonly(types.uint8), ids, firsts, cells, hashes),
                numbers,
                bytes_,
                state,
                types.uint64,
            ),
        ),
        "insert_texts": (_insert_texts, (cells, hashes, types.int64)),
    }
    dispatchers = {}
    for name, (loop, arguments) in loops.items():
        dispatcher = numba.njit(nogil=True)(loop)
        dispatcher._cache = store.loop("keys", name)
        dispatcher.compile(arguments)
        dispatcher.disable_compile()
        dispatchers[name] = dispatcher
    return dispatchers
