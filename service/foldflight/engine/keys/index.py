"""Mapping of group keys to dense slots: the engine's part of GROUP BY.

Each column has an encoder (`encoders.py`), which assigns ids to its values. The ids of several columns are numbered in
pairs. Keys are encoded without Python code for each row.

NULL is a group, all NaN values are one group, and -0.0 equals 0.0: floats are made canonical before they are compared.
Nested keys (struct, list, map) are compared by the ids of their members or items, by the same rules at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.encoders import Chain, KeyEncoder, Numbers, Texts, WithNull
from foldflight.engine.keys.keytables import KEY_LOOPS, KeyLoops
from foldflight.engine.query.blocks import is_encoded
from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import with_members
from foldflight.functions.types.sql import check_plain, has_floats, sql_name
from foldflight.functions.types.values import to_python

__all__ = ["KeyIndex", "canonical", "key_values"]

Codes = npt.NDArray[np.int64]


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
