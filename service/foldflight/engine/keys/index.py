"""Mapping of group keys to dense slots: the engine's part of GROUP BY.

Each column has a `KeyEncoder`, which assigns ids to its values. The ids of several columns are numbered in
pairs. Keys are encoded without Python code for each row.

NULL is a group, all NaN values are one group, and -0.0 equals 0.0: floats are made canonical before they are compared.
Nested keys (struct, list, map) are compared by the ids of their members or items, by the same rules at every depth.

Encoders assign ids 0, 1, 2... to values in order of first appearance, consistently over all batches.

They run no Python code for a row or a value. `Numbers` looks up 64-bit numbers in an array (if they are dense) or in a
hash table. `Texts` hashes bytes and compares values with equal hashes. `Chain` numbers the pairs of ids of several
columns. `Values` finds few numbers or texts in a dict.

The hash table uses open addressing with linear probing (D. E. Knuth, "The Art of Computer Programming", 6.4) and is at
most half full. All rows of a batch are searched at once: each step probes the next entry for rows not found yet. When a
process has looked up many keys, compiled loops take over (`engine/keys/keytables.py`); the ids are the same.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.keys.keytables import KEY_LOOPS, KeyLoops, NumberTable, TextTable
from foldflight.engine.query.blocks import is_encoded
from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import with_members
from foldflight.functions.types.sql import check_plain, has_floats, sql_name
from foldflight.functions.types.values import to_python

Ids = npt.NDArray[np.int32]
Rows = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int64]

_NONE: Final = np.zeros(0, np.intp)
# The finalizer of MurmurHash3 (Austin Appleby, public domain).
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_HALF: Final = np.uint64(33)
# The seed differs between processes, so that nobody can construct colliding keys. Python's hash seed is not used: Spark
# sets it to 0 in all its workers. Ids do not depend on the seed.
_SEED: Final = np.uint64(int.from_bytes(os.urandom(8), "little"))
# Maximum number of entries of a lookup array for each number that it may hold.
_ENTRIES_PER_NUMBER: Final = 16
_SMALLEST: Final = 1 << 8
# For so many lookups in an array, a compiled loop saves as much time as for one in a hash table.
_DENSE_ROWS: Final = 16
_SAMPLE: Final = 1 << 10
# Maximum number of values whose ids are looked up in a dict.
_FEW: Final = 1 << 10
# Texts up to this length are hashed eight bytes at a time; longer ones are hashed by Python.
_WORDS_MAX: Final = 16
_MASKS: Final = np.array([(1 << (8 * size)) - 1 for size in range(9)], np.uint64)


class KeyEncoder(Protocol):
    """Assigns ids to the values of one column."""

    def __len__(self) -> int:
        """Return the number of distinct values."""

    def ids(self, values: Any) -> tuple[Ids, Rows]:
        """Return the ids of n values, and the rows in which new values appear first, ascending."""


class Values:
    """Ids of Python objects: the fastest encoder for few values."""

    def __init__(self) -> None:
        self._ids: defaultdict[Any, int] = defaultdict(count().__next__)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ids)

    def ids(self, values: Sequence[Any]) -> tuple[Ids, Rows]:
        known_count = len(self._ids)
        ids = np.fromiter(map(self._ids.__getitem__, values), np.int32, len(values))
        if len(self._ids) == known_count:
            return ids, _NONE
        rows = np.flatnonzero(ids >= known_count)
        return ids, _firsts(ids[rows] - known_count, len(self._ids) - known_count, rows)


class Numbers:
    """Ids of numbers of 64 bits: int64, shape (n,).

    Args:
        loops: The compiled loops, once they pay.
    """

    def __init__(self, loops: KeyLoops) -> None:
        self._loops = loops
        self._few: Values | None = Values()
        self._numbers = _GrowableArray(np.int64)
        # Either an array of ids, indexed by number minus the least number, or a hash table.
        self._base = 0
        self._by_number: Ids | None = np.zeros(0, np.int32)
        self._table = _Table()
        self._compiled_table: NumberTable | None = None  # takes the place of the hash table when it pays

    def __len__(self) -> int:
        if self._compiled_table is not None:
            return len(self._compiled_table)
        return len(self._numbers) if self._few is None else len(self._few)

    @property
    def codes_by_id(self) -> Codes:
        """The numbers, by id."""
        if self._few is not None:
            return np.array(list(self._few), np.int64)
        return self._numbers.values if self._compiled_table is None else self._compiled_table.keys

    def ids(self, values: Codes) -> tuple[Ids, Rows]:
        if self._few is not None:
            if len(self._few) + len(values) <= _FEW:
                return self._few.ids(values.tolist())
            few, self._few = self.codes_by_id, None
            self.ids(few)
        if not len(values):
            return np.zeros(0, np.int32), _NONE
        if self._by_number is not None:
            self._reach(int(values.min()), int(values.max()), len(values))
        if self._by_number is not None:
            loops = self._loops.when_hot(-(-len(values) // _DENSE_ROWS))
            if loops is not None:
                return self._place(loops, self._by_number, values)
            return self._assign_ids(values, self._by_number[values - self._base if self._base else values])
        if self._compiled_table is None:
            loops = self._loops.when_hot(len(values))
            if loops is None:
                return _by_different(self._looked_up, pa.array(values))
            self._compiled_table = NumberTable(loops, _SEED, self._numbers.values)
            self._numbers, self._table = _GrowableArray(np.int64), _Table()
        return self._compiled_table.ids(values)

    def _place(self, loops: Mapping[str, Any], by_number: Ids, values: Codes) -> tuple[Ids, Rows]:
        """Find or add n numbers in the array of ids, which reaches to all of them."""
        known_count = len(self._numbers)
        ids, firsts = np.empty(len(values), np.int32), np.empty(len(values), np.intp)
        codes_by_id = self._numbers.reserve(len(values))
        count = loops["dense"](
            np.ascontiguousarray(values), self._base, by_number, ids, firsts, codes_by_id, known_count
        )
        self._numbers.lengthen(count)
        return ids, firsts[: count - known_count].copy()

    def _looked_up(self, array: pa.Array) -> tuple[Ids, Rows]:
        values = array.to_numpy()
        return self._assign_ids(values, self._table.find(_mix(values.view(np.uint64))))

    def _assign_ids(self, values: Codes, ids: Ids) -> tuple[Ids, Rows]:
        """Assign ids to the values without one (-1), and return the ids of all n values."""
        unknown_positions = np.flatnonzero(ids < 0)
        if not len(unknown_positions):
            return ids, _NONE
        encoded_values = pa.array(values[unknown_positions]).dictionary_encode()
        indexes, fresh = encoded_values.indices.to_numpy(), encoded_values.dictionary.to_numpy()
        known_count = len(self._numbers)
        self._numbers.extend(fresh)
        if self._by_number is not None:
            self._by_number[fresh - self._base] = np.arange(known_count, len(self._numbers), dtype=np.int32)
        else:
            self._table.extend(_mix(fresh.view(np.uint64)))
        ids[unknown_positions] = indexes + known_count
        return ids, _firsts(indexes, len(fresh), unknown_positions)

    def _reach(self, least: int, most: int, rows: int) -> None:
        """Extend the array to the numbers from `least` to `most`, or replace it by a hash table."""
        assert self._by_number is not None
        base, end = self._base, self._base + len(self._by_number)
        if base <= least and most < end:
            return
        if len(self._by_number):
            least, most = min(least, base), max(most, end - 1)
        span, span_max = most + 1 - least, max(_SMALLEST, _ENTRIES_PER_NUMBER * (len(self._numbers) + rows))
        if span > span_max:
            self._by_number = None
            self._table.extend(_mix(self._numbers.values.view(np.uint64)))
            return
        if 0 <= least < span:  # start at zero, so that nothing needs to be subtracted
            least = 0
        # Reserve space for further growth.
        size = max(most + 1 - least, min(2 * len(self._by_number), span_max))
        larger_table = np.full(size, -1, np.int32)
        larger_table[base - least : end - least] = self._by_number
        self._base, self._by_number = least, larger_table


class Texts:
    """Ids of texts or bytes: an Arrow array of n values without NULLs, or one with a dictionary of texts.

    Args:
        loops: The compiled loops, once they pay.
    """

    def __init__(self, loops: KeyLoops) -> None:
        self._loops = loops
        self._few: Values | None = Values()
        self._data = _GrowableArray(np.uint8)
        self._ends = _GrowableArray(np.int64)
        self._ends.extend(np.zeros(1, np.int64))
        self._table = _Table()
        # Different texts with the same hash, and their ids.
        self._doubles: dict[bytes, int] = {}
        self._compiled_table: TextTable | None = None  # takes the place of all of these when it pays

    def __len__(self) -> int:
        if self._compiled_table is not None:
            return len(self._compiled_table)
        return len(self._ends) - 1 if self._few is None else len(self._few)

    def ids(self, values: pa.Array) -> tuple[Ids, Rows]:
        if isinstance(values, pa.DictionaryArray):
            return self._of_dictionary(values)
        values = values.cast(pa.large_binary())  # Spark's texts need not be UTF-8
        if self._few is not None:
            if len(self._few) + len(values) <= _FEW:
                return self._few.ids(values.to_numpy(zero_copy_only=False).tolist())
            few, self._few = pa.array(list(self._few), values.type), None
            self.ids(few)
        if not len(values):
            return np.zeros(0, np.int32), _NONE
        if self._compiled_table is None:
            loops = self._loops.when_hot(len(values))
            if loops is None:
                return _by_different(self._looked_up, values)
            self._compiled_table = TextTable(loops, _SEED)
            self._compiled_table.ids(self._ends.values, self._data.values)
            self._data, self._ends, self._table, self._doubles = (
                _GrowableArray(np.uint8),
                _GrowableArray(np.int64),
                _Table(),
                {},
            )
        return self._compiled_table.ids(*_parts(values))

    def _of_dictionary(self, values: pa.DictionaryArray) -> tuple[Ids, Rows]:
        """Look up each text of a dictionary that rows have, in the order in which they have it."""
        indexes, used_indexes = values.indices.to_numpy(), pc.unique(values.indices)
        text_ids, fresh = self.ids(values.dictionary.take(used_indexes))
        by_index = np.zeros(len(values.dictionary), np.int32)
        by_index[used_indexes.to_numpy()] = text_ids
        if not len(fresh):
            return by_index[indexes], _NONE
        firsts = _firsts(indexes, len(by_index), np.arange(len(indexes)))
        return by_index[indexes], firsts[used_indexes.to_numpy()[fresh]]

    def _looked_up(self, texts: pa.Array) -> tuple[Ids, Rows]:
        hashes = _hash_texts(texts)
        ids = self._table.find(hashes)
        codes_by_id = np.flatnonzero(ids >= 0)
        those = texts if len(codes_by_id) == len(texts) else texts.take(pa.array(codes_by_id))
        same = pc.equal(self._texts().take(pa.array(ids[codes_by_id])), those)
        for row in codes_by_id[~same.to_numpy(zero_copy_only=False)].tolist():
            ids[row] = self._doubles.get(texts[row].as_py(), -1)
        unknown_positions = np.flatnonzero(ids < 0)
        if not len(unknown_positions):
            return ids, _NONE
        encoded_texts = texts.take(pa.array(unknown_positions)).dictionary_encode()
        indexes, fresh = encoded_texts.indices.to_numpy(), encoded_texts.dictionary
        first = _firsts(indexes, len(fresh), unknown_positions)
        ids[unknown_positions] = indexes + len(self)
        self._extend(fresh, hashes[first])
        return ids, first

    def _extend(self, fresh: pa.Array, hashes: Words) -> None:
        before = self._table.find(hashes)
        known_count = len(self)
        starts, data = _parts(fresh)
        self._ends.extend(starts[1:] - starts[0] + len(self._data))
        self._data.extend(data[starts[0] : starts[-1]])
        self._table.extend(hashes)
        doubles = (before >= 0) | (self._table.find(hashes) != np.arange(known_count, len(self)))
        for index in np.flatnonzero(doubles).tolist():
            for each in (known_count + index, int(self._table.find(hashes[index : index + 1])[0])):
                self._doubles[self._texts()[each].as_py()] = each

    def _texts(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends.values), pa.py_buffer(self._data.values)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)


class WithNull:
    """Ids of values some of which are NULL. NULL has an id of its own.

    Args:
        inner: Assigns ids to the values that are not NULL.
        prepare: Converts n values that are not NULL to the input of `inner`.
    """

    def __init__(self, inner: KeyEncoder, prepare: Callable[[pa.Array], Any]) -> None:
        self._inner = inner
        self._prepare = prepare
        self._null: int | None = None

    def __len__(self) -> int:
        return len(self._inner) + (self._null is not None)

    def ids(self, values: pa.Array) -> tuple[Ids, Rows]:
        if not values.null_count:
            ids, fresh = self._inner.ids(self._prepare(values))
            return self._beside_null(ids), fresh
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(valid)
        known_count = len(self._inner)
        inner, fresh = self._inner.ids(self._prepare(values.drop_null()))
        fresh = rows[fresh]
        if self._null is None:
            # The id of NULL follows the ids of all values before it, also of values in this batch.
            first = int(np.argmin(valid))
            self._null = max(known_count, int(inner[: np.searchsorted(rows, first)].max(initial=-1)) + 1)
            fresh = np.sort(np.append(fresh, first))
        ids = np.full(len(values), self._null, np.int32)
        ids[rows] = self._beside_null(inner)
        return ids, fresh

    def _beside_null(self, ids: Ids) -> Ids:
        return ids if self._null is None else ids + (ids >= self._null)


class Chain:
    """Ids of the rows of several columns of equal length.

    Args:
        parts: The encoder of each column.
        loops: The compiled loops, once they pay.
    """

    def __init__(self, parts: Sequence[KeyEncoder], loops: KeyLoops) -> None:
        self._parts = parts
        self._pairs = [Pairs(loops) for _ in parts[1:]]

    def __len__(self) -> int:
        return len(self._pairs[-1]) if self._pairs else len(self._parts[0])

    def ids(self, values: Sequence[Any]) -> tuple[Ids, Rows]:
        ids, fresh = self._parts[0].ids(values[0])
        for part, pairs, column in zip(self._parts[1:], self._pairs, values[1:], strict=True):
            others, _ = part.ids(column)
            ids, fresh = pairs.ids(ids, others)
        return ids, fresh


class Pairs:
    """Ids of pairs of ids. Pairs become numbers as small as the ids allow, so that few pairs are found in an array.

    Args:
        loops: The compiled loops, once they pay.
    """

    def __init__(self, loops: KeyLoops) -> None:
        self._loops = loops
        self._numbers = Numbers(loops)
        self._bits = 0  # of the second id

    def __len__(self) -> int:
        return len(self._numbers)

    def ids(self, firsts: Ids, seconds: Ids) -> tuple[Ids, Rows]:
        bits_needed = int(seconds.max(initial=0)).bit_length()
        if bits_needed > self._bits:
            codes_by_id, narrow = self._numbers.codes_by_id, self._bits
            self._numbers, self._bits = Numbers(self._loops), bits_needed
            self._numbers.ids((codes_by_id >> narrow << bits_needed) | (codes_by_id & ((1 << narrow) - 1)))
        pairs = firsts.astype(np.int64)
        pairs <<= self._bits
        pairs |= seconds
        return self._numbers.ids(pairs)


class _GrowableArray:
    """A growable array."""

    def __init__(self, dtype: Any) -> None:
        self._memory = np.zeros(0, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._memory[: self._length]

    def extend(self, values: npt.NDArray[Any]) -> None:
        length = self._length + len(values)
        self.reserve(len(values))[self._length : length] = values
        self._length = length

    def reserve(self, more: int) -> npt.NDArray[Any]:
        """Return the values with reserved memory for at least so many more; `lengthen` tells how many are used."""
        length_needed = self._length + more
        if length_needed > len(self._memory):
            larger_array = np.zeros(max(length_needed, 2 * self._length), self._memory.dtype)
            larger_array[: self._length] = self.values
            self._memory = larger_array
        return self._memory

    def lengthen(self, length: int) -> None:
        """Set the number of values. Those that were written into the reserved memory count as values."""
        self._length = length


class _Table:
    """Ids by hash: the id of a hash is the number of hashes added before it."""

    def __init__(self) -> None:
        self._hashes = _GrowableArray(np.uint64)
        self._ids: Ids = np.full(_SMALLEST, -1, np.int32)

    def find(self, hashes: Words) -> Ids:
        """Return an id for each of n hashes (any one if several values have the hash), or -1 if it is not present."""
        if not len(self._hashes):
            return np.full(len(hashes), -1, np.int32)
        codes_by_id = self._hashes.values
        indexes = self._indexes(hashes)
        ids = self._ids[indexes]
        pending = np.flatnonzero((codes_by_id[ids] != hashes) & (ids >= 0))
        while len(pending):
            further = indexes[pending] + 1
            further &= len(self._ids) - 1
            indexes[pending] = further
            probed_ids = self._ids[further]
            ids[pending] = probed_ids
            pending = pending[(codes_by_id[probed_ids] != hashes[pending]) & (probed_ids >= 0)]
        return ids

    def extend(self, hashes: Words) -> None:
        """Add n hashes."""
        known_count = len(self._hashes)
        self._hashes.extend(hashes)
        if 2 * len(self._hashes) > len(self._ids):
            size = len(self._ids)
            while size < 8 * len(self._hashes):
                size *= 2
            self._ids = np.full(size, -1, np.int32)
            known_count, hashes = 0, self._hashes.values
        pending = np.arange(known_count, len(self._hashes), dtype=np.int32)
        indexes = self._indexes(hashes)
        while len(pending):
            free = self._ids[indexes] < 0
            self._ids[indexes[free]] = pending[free]
            # If several hashes probe the same free entry, one of them gets it.
            collides = self._ids[indexes] != pending
            pending, indexes = pending[collides], (indexes[collides] + 1) & (len(self._ids) - 1)

    def _indexes(self, hashes: Words) -> Rows:
        return (hashes & np.uint64(len(self._ids) - 1)).view(np.intp)


def _by_different(looked_up: Callable[[pa.Array], tuple[Ids, Rows]], values: pa.Array) -> tuple[Ids, Rows]:
    """Return the result of `looked_up` for n values. If values repeat often, only distinct values are looked up.

    Arrow finds distinct values faster than all values can be looked up.
    """
    sample = values[:_SAMPLE]
    if 2 * len(sample.dictionary_encode().dictionary) > len(sample):
        return looked_up(values)
    encoded_values = values.dictionary_encode()
    indexes = encoded_values.indices.to_numpy()
    ids, fresh = looked_up(encoded_values.dictionary)
    if not len(fresh):
        return ids[indexes], _NONE
    return ids[indexes], _firsts(indexes, len(ids), np.arange(len(indexes)))[fresh]


def _mix(words: Words) -> Words:
    """Return n words with mixed bits; the mapping is one-to-one."""
    mixed_words = words ^ _SEED
    mixed_words ^= mixed_words >> _HALF
    mixed_words *= _MIX_1
    mixed_words ^= mixed_words >> _HALF
    mixed_words *= _MIX_2
    mixed_words ^= mixed_words >> _HALF
    return mixed_words


def _firsts(indexes: npt.NDArray[Any], size: int, rows: Rows) -> Rows:
    """Return the first row of each of `size` indexes. NumPy keeps the last of several rows for an index."""
    firsts = np.zeros(size, np.intp)
    firsts[indexes[::-1]] = rows[::-1]
    return firsts


def _parts(texts: pa.Array) -> tuple[Codes, npt.NDArray[np.uint8]]:
    """Return the n + 1 offsets of n texts, and the bytes that they refer to."""
    _, bounds, data = texts.buffers()
    starts = np.frombuffer(bounds, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return starts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _hash_texts(texts: pa.Array) -> Words:
    """Return the hashes of n texts. Each step processes eight bytes of all texts."""
    starts, data = _parts(texts)
    padded_data = np.concatenate([data[starts[0] : starts[-1]], np.zeros(8, np.uint8)])
    words: Any = np.ndarray((len(padded_data) - 7,), "<u8", padded_data, strides=(1,))
    at, bytes_left = starts[:-1] - starts[0], np.diff(starts)
    hashes = bytes_left.view(np.uint64).copy()
    long = np.flatnonzero(bytes_left > 8 * _WORDS_MAX)
    rows: Any = slice(None)
    for _ in range(_WORDS_MAX):
        hashes[rows] = _mix(hashes[rows] ^ (words[at] & _MASKS[np.minimum(bytes_left, 8)]))
        more = bytes_left > 8
        if not more.any():
            break
        if not more.all():
            rows = np.arange(len(hashes))[rows][more]
            at, bytes_left = at[more], bytes_left[more]
        at, bytes_left = at + 8, bytes_left - 8
    for row in long.tolist():
        hashes[row] = hash(texts[row].as_py()) & (2**64 - 1)
    hashes[long] = _mix(hashes[long])
    return hashes


class KeyIndex:
    """Assigns slots 0, 1, 2... to keys of one or more columns, in order of first appearance.

    Memory is proportional to the number of distinct keys, not to the number of rows.

    Args:
        fields: Names and types of the key columns; at least one.
        loops: The compiled loops that take over once they pay. Default: the loops of this process.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if there is no key column, or if a key has a type that arguments may not have
            either (a view, a dictionary...): Arrow does not validate all values of such types.

    >>> index = KeyIndex(pa.schema([("city", pa.string())]))
    >>> index.slots([pa.array(["Rome", None, "Rome", "Oslo"])]).to_pylist()
    [0, 1, 0, 2]
    >>> index.keys().to_pylist()
    [{'city': 'Rome'}, {'city': None}, {'city': 'Oslo'}]
    """

    def __init__(self, fields: pa.Schema, loops: KeyLoops = KEY_LOOPS) -> None:
        if not len(fields):
            raise RejectedError(
                "SCHEMA_MISMATCH", "keys need at least one column; without keys there is one group, slot 0"
            )
        self.fields = fields
        self._columns = [_column(field) for field in fields]
        self._encoder = Chain([column.encoder(loops) for column in self._columns], loops)
        self._chunks: list[list[pa.Array]] = [[] for _ in fields]
        self._size = 0

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return self._size

    def slots(self, columns: Sequence[pa.Array]) -> pa.Int32Array:
        """Return the slot of each row. New keys get the next free slots.

        Args:
            columns: One array of n keys for each field, of its type; of texts also one with a dictionary.

        Returns:
            n slots, int32, without NULLs.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a wrong number or type of columns.
        """
        arrays = self._check(columns)
        slots, fresh = self._encoder.ids(arrays)
        if len(fresh):
            self._size += len(fresh)
            rows = pa.array(fresh)
            for chunks, array in zip(self._chunks, arrays, strict=True):
                chunk = array.take(rows)
                chunks.append(chunk.dictionary_decode() if isinstance(chunk, pa.DictionaryArray) else chunk)
        return pa.array(slots)

    def keys(self, slots: pa.Int32Array | None = None) -> pa.RecordBatch:
        """Return the keys of slots, floats in canonical form.

        Args:
            slots: n slots; None for all slots, ascending.

        Returns:
            n rows of the schema `fields`.
        """
        columns = []
        for field, column, chunks in zip(self.fields, self._columns, self._chunks, strict=True):
            if len(chunks) != 1:
                chunks[:] = [pa.concat_arrays(chunks) if chunks else pa.array([], column.storage)]
            array = chunks[0] if slots is None else chunks[0].take(slots)
            if isinstance(field.type, pa.BaseExtensionType):
                array = pa.ExtensionArray.from_storage(field.type, array)
            columns.append(array)
        return pa.RecordBatch.from_arrays(columns, schema=self.fields)

    def _check(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        if len(columns) != len(self.fields):
            raise RejectedError("SCHEMA_MISMATCH", f"expected {len(self.fields)} key columns, got {len(columns)}")
        for field, column in zip(self.fields, columns, strict=True):
            if column.type != field.type and not is_encoded(column.type, field.type):
                raise RejectedError(
                    "SCHEMA_MISMATCH", f"the key {field.name} is {field.type}, and this column is {column.type}"
                )
        return [
            column if kind.is_canonical and isinstance(column, pa.Array) else canonical(column)
            for kind, column in zip(self._columns, columns, strict=True)
        ]


class _KeyColumn(NamedTuple):
    """What the type of a key column decides.

    Args:
        storage: The storage type.
        encoder: Returns an encoder for arrays of this type, with the compiled loops that it uses.
        is_canonical: Whether equal keys have equal bytes in any array: the type is its own storage, without floats.
    """

    storage: pa.DataType
    encoder: Callable[[KeyLoops], KeyEncoder]
    is_canonical: bool


@lru_cache(maxsize=1024)
def _column(field: pa.Field) -> _KeyColumn:
    """Return how a key column is read and compared. Raises RejectedError SCHEMA_MISMATCH, if it cannot be a key."""
    try:
        check_plain(field.type)
    except RejectedError as error:
        raise RejectedError(error.code, f"the key {field.name}: {error.message}") from None
    storage = _storage(field.type)
    if _has_fixed_in_fixed(storage):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the key {field.name} has the type {field.type}: Arrow takes wrong items from slices of lists of a fixed "
            "size in lists of a fixed size; cast it to lists of any size",
        )
    return _KeyColumn(
        storage, lambda loops: _encoder(storage, loops), storage == field.type and not has_floats(storage)
    )


def _has_fixed_in_fixed(type_: pa.DataType) -> bool:
    """Return whether a type has lists of a fixed size directly in lists of a fixed size."""
    kinds = pa.types
    if kinds.is_fixed_size_list(type_) and kinds.is_fixed_size_list(_storage(type_.value_type)):
        return True
    return any(_has_fixed_in_fixed(_storage(type_.field(index).type)) for index in range(type_.num_fields))


def _storage(type_: pa.DataType) -> pa.DataType:
    """Return the storage type of keys of `type_`."""
    if isinstance(type_, pa.BaseExtensionType):
        return _storage(type_.storage_type)
    return type_


def canonical(array: pa.Array) -> pa.Array:
    """Return the same keys in their storage type, with one NaN and no negative zero."""
    if isinstance(array, pa.ExtensionArray):
        return canonical(array.storage)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_floating(array.type):
        values = array.fill_null(0).to_numpy(zero_copy_only=False) + array.type.to_pandas_dtype()(0)
        values[np.isnan(values)] = np.nan
        return pa.array(values, array.type, mask=array.is_null().to_numpy(zero_copy_only=False))
    # A table of states hashes and stores structs, lists and maps in this form.
    return with_members(array, canonical) if has_floats(array.type) else array


def _encoder(type_: pa.DataType, loops: KeyLoops) -> KeyEncoder:
    """Return the encoder for a key column of this storage type."""
    kinds = pa.types
    if kinds.is_decimal128(type_) or kinds.is_decimal256(type_):
        # The bytes of a decimal identify it, because all values of a column have the same scale.
        return WithNull(Chain([Numbers(loops) for _ in range(type_.byte_width // 8)], loops), _words)
    if kinds.is_interval(type_):
        return WithNull(Texts(loops), lambda array: array.view(pa.binary(16)))
    if kinds.is_null(type_) or kinds.is_primitive(type_) or kinds.is_decimal(type_):
        return WithNull(Numbers(loops), _numbers)
    if type_.num_fields == 0 and not kinds.is_struct(type_):
        return WithNull(Texts(loops), lambda array: array)
    if kinds.is_map(type_):
        inner = [type_.key_type, type_.item_type]
    else:
        inner = [type_.field(index).type for index in range(type_.num_fields)]
    members = Chain([_encoder(_storage(each), loops) for each in inner] or [Numbers(loops)], loops)
    if kinds.is_struct(type_):
        return WithNull(members, _members)
    return WithNull(Texts(loops), partial(_ids_inside, members))


def _members(array: pa.Array) -> list[Any]:
    """Return the members of n structs as columns; a column of equal numbers, if there are none."""
    return [_storage_array(each) for each in array.flatten()] or [np.zeros(len(array), np.int64)]


def _ids_inside(items: KeyEncoder, array: pa.Array) -> pa.Array:
    """Return n lists or maps as bytes: the ids of their items or entries, one after the other."""
    if pa.types.is_fixed_size_list(array.type):
        ends = array.type.list_size * np.arange(array.offset, array.offset + len(array) + 1)
    else:
        ends = array.offsets.to_numpy().astype(np.int64)
    columns = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    ids, _ = items.ids([_storage_array(each[ends[0] : ends[-1]]) for each in columns])
    offsets = (ends - ends[0]) * ids.itemsize
    return pa.Array.from_buffers(pa.large_binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(ids)])


def _storage_array(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _numbers(array: pa.Array) -> Codes:
    """Return n keys without NULLs as int64 numbers, which are equal exactly for equal keys."""
    type_ = array.type
    if pa.types.is_null(type_):
        return np.zeros(0, np.int64)
    if pa.types.is_boolean(type_):
        return array.cast(pa.int8()).to_numpy().astype(np.int64)
    width = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width]
    return array.view(width).to_numpy().astype(np.int64, copy=False)


def _words(array: pa.Array) -> list[Codes]:
    """Return n keys of m * 8 bytes as m columns of n numbers."""
    size = array.type.byte_width // 8
    words = np.frombuffer(array.buffers()[1], np.int64)[array.offset * size :][: len(array) * size]
    return list(np.ascontiguousarray(words.reshape(-1, size).T))


def key_values(array: pa.Array) -> list[Any]:
    """Return n keys as Python values, maps as lists of pairs.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a value without a Python object.
    """
    try:
        return array.to_pylist() if array.type.num_fields else to_python(array)
    except (OverflowError, ValueError) as error:
        doubles = "duplicate field" in str(error)
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"a key of the type {sql_name(array.type)} has a value without a Python object ({error}), such as a "
            f"{'struct with two fields of one name' if doubles else 'date beyond the year 9999'}; group by its members "
            "as keys of their own, or cast the key to STRING",
        ) from error
