"""Group keys to dense slots: the engine's half of GROUP BY.

A batch of n rows is first reduced to its distinct keys by Arrow's hash tables, at C speed; only those meet the Python
dict that remembers keys between batches, and even that loop runs in C. So a batch with few groups costs no Python at
all per row, and a batch where every row is a new group some 200 ns per row.

NULL is a group, all NaN are one group, and -0.0 is 0.0: floats are made canonical before anything compares them.
Nested keys (struct, list, map) are compared as Python values; the same rules hold at every depth.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError

__all__ = ["KeyIndex"]

Codes = npt.NDArray[np.int64]

# The product of two code counts must stay within an int64.
_COMBINATIONS_MAX: Final = 2**62
_DOUBLE: Final = struct.Struct("<d")
_NAN: Final = _DOUBLE.pack(float("nan"))


class KeyIndex:
    """Keys of any number of columns, and the slot of each: 0, 1, 2... in order of first appearance.

    Memory is proportional to the number of distinct keys, never to the number of rows.

    Args:
        fields: Names and types of the key columns; at least one.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when there is no key column.

    >>> index = KeyIndex(pa.schema([("city", pa.string())]))
    >>> index.slots([pa.array(["Rome", None, "Rome", "Oslo"])]).to_pylist()
    [0, 1, 0, 2]
    >>> index.keys().to_pylist()
    [{'city': 'Rome'}, {'city': None}, {'city': 'Oslo'}]
    """

    def __init__(self, fields: pa.Schema) -> None:
        if not len(fields):
            raise RejectedError(
                "SCHEMA_MISMATCH", "keys need at least one column; without keys there is one group, slot 0"
            )
        self.fields = fields
        self._slots: defaultdict[Any, int] = defaultdict(count().__next__)
        self._chunks: list[list[pa.Array]] = [[] for _ in fields]

    def __len__(self) -> int:
        """Return how many distinct keys there are."""
        return len(self._slots)

    def slots(self, columns: Sequence[pa.Array]) -> pa.Int32Array:
        """Return the slot of each row; keys not seen before get the next free slots.

        Args:
            columns: One array of n keys for each field, of its type.

        Returns:
            n slots, int32, without NULLs.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a wrong number or type of columns.
        """
        arrays = self._checked(columns)
        codes, distinct = _encode(arrays)
        identities = [_identities(array) for array in distinct]
        known = len(self._slots)
        keys = identities[0] if len(identities) == 1 else zip(*identities, strict=True)
        # Arrow lists distinct keys by first appearance, so new slots ascend in that order, too.
        places = np.fromiter(map(self._slots.__getitem__, keys), np.int32, len(distinct[0]))
        fresh = pa.array(np.flatnonzero(places >= known))
        if len(fresh):
            for chunks, array in zip(self._chunks, distinct, strict=True):
                chunks.append(array.take(fresh))
        return pa.array(places[codes], pa.int32())

    def keys(self, slots: pa.Int32Array | None = None) -> pa.RecordBatch:
        """Return the keys of slots, floats in canonical form.

        Args:
            slots: n slots that `slots` has given; None for all of them, ascending.

        Returns:
            n rows of the schema `fields`.
        """
        columns = []
        for field, chunks in zip(self.fields, self._chunks, strict=True):
            if len(chunks) != 1:
                chunks[:] = [pa.concat_arrays(chunks) if chunks else pa.array([], _storage(field.type))]
            array = chunks[0] if slots is None else chunks[0].take(slots)
            if isinstance(field.type, pa.BaseExtensionType):
                array = pa.ExtensionArray.from_storage(field.type, array)
            columns.append(array.cast(field.type) if array.type != field.type else array)
        return pa.RecordBatch.from_arrays(columns, schema=self.fields)

    def _checked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        if len(columns) != len(self.fields):
            raise RejectedError("SCHEMA_MISMATCH", f"expected {len(self.fields)} key columns, got {len(columns)}")
        for field, column in zip(self.fields, columns, strict=True):
            if column.type != field.type:
                raise RejectedError(
                    "SCHEMA_MISMATCH", f"the key {field.name} is {field.type}, and this column is {column.type}"
                )
        return [_canonical(column) for column in columns]


def _storage(type_: pa.DataType) -> pa.DataType:
    """Return the type that keys of `type_` are kept in."""
    if isinstance(type_, pa.BaseExtensionType):
        return _storage(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return _storage(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.large_string()
    if pa.types.is_binary_view(type_):
        return pa.large_binary()
    return type_


def _canonical(array: pa.Array) -> pa.Array:
    """Return the same keys in their storage type, with one NaN and no negative zero."""
    if isinstance(array, pa.ExtensionArray):
        return _canonical(array.storage)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    storage = _storage(array.type)
    if array.type != storage:
        array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array.cast(storage)
        return _canonical(array)
    if pa.types.is_floating(array.type):
        values = array.fill_null(0).to_numpy(zero_copy_only=False) + array.type.to_pandas_dtype()(0)
        values[np.isnan(values)] = np.nan
        return pa.array(values, array.type, mask=array.is_null().to_numpy(zero_copy_only=False))
    return array


def _encode(arrays: Sequence[pa.Array]) -> tuple[Codes, list[pa.Array]]:
    """Return for n rows the number of each row's key, and the m distinct keys column by column, first come first."""
    codes, sizes, dictionaries = [], [], []
    for array in arrays:
        column_codes, dictionary = _encode_column(array)
        codes.append(column_codes)
        dictionaries.append(dictionary)
        sizes.append(max(len(dictionary), 1))
    if len(arrays) == 1:
        return codes[0], dictionaries
    combined, dense = codes[0], sizes[0]
    # `firsts` holds, for each combination so far, the codes of its columns.
    firsts = [np.arange(len(dictionaries[0]), dtype=np.int64)]
    for column_codes, size in zip(codes[1:], sizes[1:], strict=True):
        if dense * size > _COMBINATIONS_MAX:  # more combinations than an Arrow array has rows
            raise RejectedError("SCHEMA_MISMATCH", "too many distinct keys in one batch; give smaller batches")
        combined, distinct = _encode_numbers(combined * size + column_codes)
        before, last = np.divmod(distinct, size)
        firsts = [first[before] for first in firsts] + [last]
        dense = max(len(distinct), 1)
    return combined, [dictionary.take(pa.array(first)) for dictionary, first in zip(dictionaries, firsts, strict=True)]


def _encode_column(array: pa.Array) -> tuple[Codes, pa.Array]:
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64), array[:1]
    if pa.types.is_nested(array.type):
        return _encode_nested(array)
    try:
        encoded = array.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:
        return _encode_nested(array)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _encode_nested(array: pa.Array) -> tuple[Codes, pa.Array]:
    """Encode through Python values: slower, and right for every type."""
    seen: dict[Any, int] = {}
    codes = np.fromiter((seen.setdefault(each, len(seen)) for each in _identities(array)), np.int64, len(array))
    _, first = np.unique(codes, return_index=True)
    return codes, array.take(pa.array(first))


def _encode_numbers(numbers: Codes) -> tuple[Codes, Codes]:
    encoded = pa.array(numbers).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy()


def _identities(array: pa.Array) -> list[Any]:
    """Return for each key a hashable value that is equal exactly for equal keys; None for NULL."""
    type_ = array.type
    kinds = pa.types
    if kinds.is_null(type_):
        return [None] * len(array)
    if kinds.is_nested(type_):
        return [_frozen(value) for value in array.to_pylist()]
    if kinds.is_decimal128(type_):
        # The 16 bytes of a decimal say all: its column has one scale.
        return array.view(pa.binary(16)).to_numpy(zero_copy_only=False).tolist()
    if kinds.is_decimal(type_) or kinds.is_interval(type_):
        return array.to_pylist()
    if kinds.is_floating(type_):
        width = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width]
        return _numbers(array.view(width))
    if kinds.is_boolean(type_):
        return _numbers(array.cast(pa.int8()))
    if kinds.is_primitive(type_):  # integers, dates, times, timestamps, durations
        width = {8: array.type, 16: array.type, 32: pa.int32(), 64: pa.int64()}[type_.bit_width]
        return _numbers(array.view(width))
    return array.to_numpy(zero_copy_only=False).tolist()


def _numbers(array: pa.Array) -> list[Any]:
    if array.null_count == 0:
        return array.to_numpy().tolist()
    values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).tolist()
    for place in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[place] = None
    return values


def _frozen(value: Any) -> Any:
    """Return a hashable value that is equal for equal nested keys."""
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, float):
        return _NAN if value != value else _DOUBLE.pack(value + 0.0)  # noqa: PLR0124 - only NaN differs from itself
    return value
