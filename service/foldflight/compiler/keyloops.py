"""Compiled loops that look up keys in hash tables. A key gets the id of the equal key, or else the next free id.

A table consists of `places` and the arrays of its keys, which are indexed by id. `places` (uint64, its length is a
power of 2) contains ids plus 1, found by open addressing with linear probing; 0 is a free place. For texts the upper
half of a place is the upper half of the hash. The places of several rows are read ahead, so that the processor waits
for memory only once for all of them.

A loop stops before a row that needs more room, and continues after the caller has enlarged the table. `state` (int64)
contains the number of ids, the next row, and the number of new keys.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

__all__ = ["compiled"]

_AHEAD = 64


@numba.njit(inline="always")
def _mixed(word, seed):
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
def _rest(data, at, size):
    """Return fewer than eight bytes as a number."""
    rest = np.uint64(0)
    for place in range(size):
        rest |= np.uint64(data[at + np.uint64(place)]) << np.uint64(8 * place)
    return rest


@numba.njit(inline="always")
def _hashed(data, start, size, seed):
    """Return the hash of a text. Its last eight bytes may be read twice, which is faster than one by one."""
    mixed = _mixed(np.uint64(size), seed)
    if size < 8:
        return _mixed(mixed ^ _rest(data, np.uint64(start), size), seed)
    at, last = np.uint64(start), np.uint64(start + size - 8)
    while at < last:
        mixed = _mixed(mixed ^ _word(data, at), seed)
        at += np.uint64(8)
    return _mixed(mixed ^ _word(data, last), seed)


@numba.njit(inline="always")
def _is_same(data, start, held, begin, size):
    if size < 8:
        return _rest(data, np.uint64(start), size) == _rest(held, np.uint64(begin), size)
    at, other, last = np.uint64(start), np.uint64(begin), np.uint64(start + size - 8)
    while at < last:
        if _word(data, at) != _word(held, other):
            return False
        at += np.uint64(8)
        other += np.uint64(8)
    return _word(data, last) == _word(held, np.uint64(begin + size - 8))


def _numbers(values, ids, firsts, places, held, state, seed):
    """Find or add n numbers. Return whether all are done; `firsts` receives the row of each new number."""
    count, new, last = state[0], state[2], np.uint64(len(places) - 1)
    starts, entries = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint64)
    for begin in range(state[1], len(values), _AHEAD):
        rows = min(_AHEAD, len(values) - begin)
        for row in range(rows):
            starts[row] = _mixed(np.uint64(values[begin + row]), seed) & last
        for row in range(rows):
            entries[row] = places[starts[row]]
        for row in range(rows):
            value, at, entry = values[begin + row], starts[row], entries[row]
            while True:
                if entry == 0:
                    entry = places[at]  # an earlier row may have taken it
                if entry == 0:
                    if count == len(held):
                        state[0], state[1], state[2] = count, begin + row, new
                        return False
                    held[count] = value
                    firsts[new] = begin + row
                    count += 1
                    new += 1
                    places[at] = entry = np.uint64(count)
                    break
                if held[entry - np.uint64(1)] == value:
                    break
                at = (at + np.uint64(1)) & last
                entry = places[at]
            ids[begin + row] = np.int32(entry - np.uint64(1))
    state[0], state[1], state[2] = count, len(values), new
    return True


def _place_numbers(places, held, count, seed):
    """Enter existing numbers into an empty table."""
    last = np.uint64(len(places) - 1)
    for number in range(count):
        at = _mixed(np.uint64(held[number]), seed) & last
        while places[at] != 0:
            at = (at + np.uint64(1)) & last
        places[at] = np.uint64(number + 1)


def _texts(offsets, data, ids, firsts, places, hashes, ends, held, state, seed):
    """Find or add n texts. Return whether all are done; `ends[i + 1]` is where text i ends in `held`."""
    count, new, last, total = state[0], state[2], np.uint64(len(places) - 1), len(offsets) - 1
    mixes, entries = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint64)
    for begin in range(state[1], total, _AHEAD):
        rows = min(_AHEAD, total - begin)
        for row in range(rows):
            start = offsets[begin + row]
            mixes[row] = _hashed(data, start, offsets[begin + row + 1] - start, seed)
        for row in range(rows):
            entries[row] = places[mixes[row] & last]
        for row in range(rows):
            start, mixed, entry = offsets[begin + row], mixes[row], entries[row]
            size, at, tag = offsets[begin + row + 1] - start, mixed & last, mixed >> np.uint64(32)
            while True:
                if entry == 0:
                    entry = places[at]  # an earlier row may have taken it
                if entry == 0:
                    other = ends[count]
                    if count == len(hashes) or other + size > len(held):
                        state[0], state[1], state[2] = count, begin + row, new
                        return False
                    hashes[count] = mixed
                    held[other : other + size] = data[start : start + size]
                    firsts[new] = begin + row
                    count += 1
                    new += 1
                    ends[count] = other + size
                    places[at] = entry = tag << np.uint64(32) | np.uint64(count)
                    break
                if entry >> np.uint64(32) == tag:
                    found = entry & np.uint64(0xFFFFFFFF)
                    other = ends[found - np.uint64(1)]
                    if ends[found] - other == size and _is_same(data, start, held, other, size):
                        break
                at = (at + np.uint64(1)) & last
                entry = places[at]
            ids[begin + row] = np.int32((entry & np.uint64(0xFFFFFFFF)) - np.uint64(1))
    state[0], state[1], state[2] = count, total, new
    return True


def _place_texts(places, hashes, count):
    """Enter existing texts into an empty table."""
    last = np.uint64(len(places) - 1)
    for text in range(count):
        at = hashes[text] & last
        while places[at] != 0:
            at = (at + np.uint64(1)) & last
        places[at] = hashes[text] >> np.uint64(32) << np.uint64(32) | np.uint64(text + 1)


def compiled(store: Any) -> dict[str, Any]:
    """Return the loops by name, compiled now or loaded from the store (a `LoopStore`)."""

    def given(dtype: Any) -> Any:
        return types.Array(dtype, 1, "C", readonly=True)

    def changed(dtype: Any) -> Any:
        return types.Array(dtype, 1, "C")

    ids, places, hashes = changed(types.int32), changed(types.uint64), changed(types.uint64)
    numbers, state, bytes_, firsts = (changed(each) for each in (types.int64, types.int64, types.uint8, types.intp))
    loops = {
        "numbers": (_numbers, (given(types.int64), ids, firsts, places, numbers, state, types.uint64)),
        "place_numbers": (_place_numbers, (places, numbers, types.int64, types.uint64)),
        "texts": (
            _texts,
            (
                *(given(types.int64), given(types.uint8), ids, firsts, places, hashes),
                numbers,
                bytes_,
                state,
                types.uint64,
            ),
        ),
        "place_texts": (_place_texts, (places, hashes, types.int64)),
    }
    made = {}
    for name, (loop, arguments) in loops.items():
        dispatcher = numba.njit(nogil=True)(loop)
        dispatcher._cache = store.loop("keys", name)
        dispatcher.compile(arguments)
        dispatcher.disable_compile()
        made[name] = dispatcher
    return made
