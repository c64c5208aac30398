"""Mapping of group keys to dense slots: the engine's part of GROUP BY.

Each column has an encoder (`encoders.py`), which assigns ids to its values. The ids of several columns are numbered in
pairs. Numbers, dates, times, booleans, decimals, texts and bytes are encoded without Python code for each row.

NULL is a group, all NaN values are one group, and -0.0 equals 0.0: floats are made canonical before they are compared.
Nested keys (struct, list, map) are compared as Python values, by the same rules at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.client.process import KEY_LOOPS
from foldflight.compiler.keytables import KeyLoops
from foldflight.engine.keys.encoders import Chain, KeyEncoder, Numbers, Texts, Values, WithNull
from foldflight.errors import RejectedError
from foldflight.fold.rows import frozen
from foldflight.functions.types.sql import check_plain, has_floats, sql_name

__all__ = ["KeyIndex"]

Codes = npt.NDArray[np.int64]


class KeyIndex:
    """Assigns slots 0, 1, 2... to keys of one or more columns, in order of first appearance.

    Memory is proportional to the number of distinct keys, not to the number of rows.

    Args:
        fields: Names and types of the key columns; at least one.
        loops: The compiled loops that take over once they pay. Default: those of this process.

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
            columns: One array of n keys for each field, of its type.

        Returns:
            n slots, int32, without NULLs.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a wrong number or type of columns, and for a date beyond the year 9999
                within a nested key.
        """
        arrays = self._checked(columns)
        slots, fresh = self._encoder.ids(arrays)
        if len(fresh):
            self._size += len(fresh)
            rows = pa.array(fresh)
            for chunks, array in zip(self._chunks, arrays, strict=True):
                chunks.append(array.take(rows))
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

    def _checked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        if len(columns) != len(self.fields):
            raise RejectedError("SCHEMA_MISMATCH", f"expected {len(self.fields)} key columns, got {len(columns)}")
        for field, column in zip(self.fields, columns, strict=True):
            if column.type != field.type:
                raise RejectedError(
                    "SCHEMA_MISMATCH", f"the key {field.name} is {field.type}, and this column is {column.type}"
                )
        return [
            column if kind.is_canonical and isinstance(column, pa.Array) else _canonical(column)
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
    """Return what is decided for a key column. Raises RejectedError SCHEMA_MISMATCH, if it cannot be a key."""
    try:
        check_plain(field.type)
    except RejectedError as error:
        raise RejectedError(error.code, f"the key {field.name}: {error.message}") from None
    storage = _storage(field.type)
    return _KeyColumn(
        storage, lambda loops: _encoder(storage, loops), storage == field.type and not has_floats(storage)
    )


def _storage(type_: pa.DataType) -> pa.DataType:
    """Return the storage type of keys of `type_`."""
    if isinstance(type_, pa.BaseExtensionType):
        return _storage(type_.storage_type)
    return type_


def _canonical(array: pa.Array) -> pa.Array:
    """Return the same keys in their storage type, with one NaN and no negative zero."""
    if isinstance(array, pa.ExtensionArray):
        return _canonical(array.storage)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_floating(array.type):
        values = array.fill_null(0).to_numpy(zero_copy_only=False) + array.type.to_pandas_dtype()(0)
        values[np.isnan(values)] = np.nan
        return pa.array(values, array.type, mask=array.is_null().to_numpy(zero_copy_only=False))
    return _canonical_nested(array) if has_floats(array.type) else array


def _canonical_nested(array: pa.Array) -> pa.Array:
    """Return structs, lists or maps with canonical floats. A table of states hashes and stores them in this form."""
    type_ = array.type
    if pa.types.is_struct(type_):
        children = [_canonical(array.field(place)) for place in range(type_.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    own = 1 if pa.types.is_fixed_size_list(type_) else 2  # validity and, except for a fixed size, offsets
    buffers = array.buffers()[:own]
    return pa.Array.from_buffers(type_, len(array), buffers, offset=array.offset, children=[_canonical(array.values)])


def _encoder(type_: pa.DataType, loops: KeyLoops) -> KeyEncoder:
    """Return the encoder for a key column of this storage type."""
    kinds = pa.types
    if kinds.is_decimal128(type_) or kinds.is_decimal256(type_):
        # The bytes of a decimal identify it, because all values of a column have the same scale.
        return WithNull(Chain([Numbers(loops) for _ in range(type_.byte_width // 8)], loops), _words)
    if kinds.is_null(type_) or (kinds.is_primitive(type_) and not kinds.is_interval(type_)):
        return WithNull(Numbers(loops), _numbers)
    binary = kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_)
    if binary or kinds.is_string(type_) or kinds.is_large_string(type_):
        return WithNull(Texts(loops), lambda array: array)
    return WithNull(Values(), _identities)


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


def _identities(array: pa.Array) -> list[Any]:
    """Return for each key a hashable value that is equal exactly for equal keys."""
    try:
        return [frozen(value) for value in array.to_pylist()]
    except (OverflowError, ValueError) as error:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"a key of the type {sql_name(array.type)} has a value without a Python object ({error}), such as a date "
            "beyond the year 9999; group by its members as keys of their own, or cast the key to STRING",
        ) from error
