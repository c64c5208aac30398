"""Conversion of arrays between an Arrow type and its carrier type in a host.

A host such as Spark lacks some Arrow types. Values of these types are passed through the host as another type with the
same bits and are converted back afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.functions.types.arrow import is_binary_view

__all__ = ["convert", "without_nullability"]


def without_nullability(type_: pa.DataType) -> pa.DataType:
    """Return the same type with nullable members and pyarrow's member names, which differ from Spark's."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, without_nullability(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(without_nullability(type_.key_type), without_nullability(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(without_nullability(type_.value_type))
    return type_


def convert(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert n values to a carrier type, or back from it.

    Raises:
        pa.ArrowInvalid: A value does not fit (a decimal of more than 38 digits as a result).
    """
    if array.type == type_:
        return array
    if isinstance(array, pa.ExtensionArray):
        return convert(array.storage, type_)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, convert(array, type_.storage_type))
    kinds = pa.types
    if kinds.is_struct(type_) and kinds.is_struct(array.type):
        members = [convert(member, field.type) for member, field in zip(array.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(members, fields=list(type_), mask=array.is_null())
    if kinds.is_map(type_):
        return _convert_map(array, type_)
    if kinds.is_list(type_):
        return _convert_list(array, type_)
    if kinds.is_large_list(type_):
        return convert(array, pa.list_(type_.value_type)).cast(type_)
    if type_ == pa.null() or array.type == pa.null():
        return pa.nulls(len(array), type_)
    if kinds.is_struct(type_) or kinds.is_struct(array.type):  # a struct without members, carried as a boolean flag
        return _empty_struct(array, type_)
    return _convert_leaf(array, type_)


def _empty_struct(array: pa.Array, type_: pa.DataType) -> pa.Array:
    valid = array.is_valid()
    if pa.types.is_struct(type_):
        values: list[Any] = [{} if each else None for each in valid.to_pylist()]
        return pa.array(values, type_)
    return pc.if_else(valid, pa.scalar(True), pa.scalar(None, pa.bool_()))


def _convert_list(array: pa.Array, type_: pa.DataType) -> pa.Array:
    # `flatten` omits values under NULLs and outside the slice, so the offsets are computed anew.
    values = convert(array.flatten(), type_.value_type)
    return pa.ListArray.from_arrays(_offsets(array), values, type=type_, mask=array.is_null())


def _convert_map(array: pa.Array, type_: pa.DataType) -> pa.Array:
    # Arrow does not cast a NULL struct whose members are not nullable, as those of a VARIANT, to the same type.
    given = without_nullability(array.type)
    entries = array.cast(pa.list_(pa.struct([("key", given.key_type), ("value", given.item_type)])))
    keys, values = entries.flatten().flatten()
    return pa.MapArray.from_arrays(
        _offsets(entries, are_nulls=True),
        convert(keys, type_.key_type),
        convert(values, type_.item_type),
        type=type_,
    )


def _offsets(lists: pa.Array, *, are_nulls: bool = False) -> pa.Array:
    """Return the n + 1 offsets of n lists without their NULLs' values; with `are_nulls`, those of NULLs are NULL."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    mask = np.append(lists.is_null().to_numpy(zero_copy_only=False), False) if are_nulls else None
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32(), mask=mask)


def _convert_leaf(array: pa.Array, type_: pa.DataType) -> pa.Array:
    kinds = pa.types
    integral = kinds.is_integer(array.type) or kinds.is_integer(type_)
    if integral and (kinds.is_temporal(array.type) or kinds.is_temporal(type_)):
        return array.view(type_)
    if kinds.is_binary(array.type) and not (kinds.is_large_binary(type_) or is_binary_view(type_)):
        return _reinterpreted(array.cast(pa.binary(type_.bit_width // 8)), type_)
    if kinds.is_binary(type_) and _is_opaque(array.type):
        return _reinterpreted(array, pa.binary(array.type.bit_width // 8)).cast(type_)
    return array.cast(type_)


def _is_opaque(type_: pa.DataType) -> bool:
    return bool(pa.types.is_interval(type_) or pa.types.is_decimal(type_))


def _reinterpreted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Reinterpret values of fixed width as another type (`view` does not support all types)."""
    return pa.Array.from_buffers(type_, len(array), array.buffers(), offset=array.offset)
