"""Storage types: the Spark types for Arrow values whose type Spark does not have.

States pass from the first stage to the second as Spark columns. A typed state stays a struct that any tool can read.
Only leaves whose type Spark lacks are reinterpreted, bit for bit: 64-bit times and durations become BIGINT, other
fixed-width values become BINARY, and extension types become their storage type.

Results and keys are meant for users. A result type that Spark lacks becomes the nearest type that holds all its values;
if there is none, the query is refused.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from foldflight.engine.query.layout import HostTypes
from foldflight.errors import RejectedError
from foldflight.functions.types.sql import sql_name

_DIRECT: Final = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
    }
)
_SPARK_DIGITS_MAX: Final = 38
_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.duration("s"): pa.duration("us"),
    pa.duration("ms"): pa.duration("us"),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),  # Spark passes TIME in nanoseconds
}


def storage_type(type_: pa.DataType) -> pa.DataType:
    """Return the Spark-compatible type for a state of `type_`."""
    kinds = pa.types
    if type_ in _DIRECT or (kinds.is_decimal128(type_) and type_.scale >= 0):
        return type_
    if isinstance(type_, pa.BaseExtensionType):
        return storage_type(type_.storage_type)
    if kinds.is_struct(type_) and type_.num_fields:
        return pa.struct([pa.field(field.name, storage_type(field.type)) for field in type_])
    if kinds.is_map(type_):
        return pa.map_(storage_type(type_.key_type), storage_type(type_.item_type))
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return pa.list_(storage_type(type_.value_type))
    if kinds.is_null(type_) or kinds.is_struct(type_):
        return pa.bool_()
    if type_ in _WIDER and not kinds.is_temporal(type_):
        return storage_type(_WIDER[type_])
    return _fixed_width(type_)


def _fixed_width(type_: pa.DataType) -> pa.DataType:
    try:
        bits = type_.bit_width
    except ValueError:
        raise RejectedError("SCHEMA_MISMATCH", f"Spark has no type for a state of type {type_}") from None
    return {32: pa.int32(), 64: pa.int64()}.get(bits, pa.binary())


def result_storage_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the Spark-compatible type for a result of `type_`, or None if no type holds all its values."""
    kinds = pa.types
    if type_ in _DIRECT or type_ in (pa.null(), pa.time64("ns"), pa.duration("us")):
        return type_
    if type_ in _WIDER:
        return _WIDER[type_]
    if isinstance(type_, pa.BaseExtensionType):
        return result_storage_type(type_.storage_type)
    if kinds.is_decimal(type_):
        # Decimals with a larger precision are cast to 38 digits. A value that needs more digits raises an error.
        return pa.decimal128(min(type_.precision, _SPARK_DIGITS_MAX), type_.scale) if type_.scale <= 38 else None
    if kinds.is_fixed_size_binary(type_):
        return pa.binary()
    if kinds.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    return _nested_storage_type(type_)


def _nested_storage_type(type_: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(type_):
        members = [result_storage_type(field.type) for field in type_]
        named_members = [
            (field.name, member) for field, member in zip(type_, members, strict=True) if member is not None
        ]
        return pa.struct(named_members) if len(named_members) == len(members) else None
    if pa.types.is_map(type_):
        key, item = result_storage_type(type_.key_type), result_storage_type(type_.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        item = result_storage_type(type_.value_type)
        return None if item is None else pa.list_(item)
    return None


def result_types(names: list[str], types: list[pa.DataType]) -> list[pa.DataType]:
    """Return the Spark-compatible types for the outputs of these names and types.

    Raises:
        RejectedError: SCHEMA_MISMATCH, naming an output whose type Spark cannot represent.
    """
    storages = []
    for name, type_ in zip(names, types, strict=True):
        storage = result_storage_type(type_)
        if storage is None:
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the output {name} is {sql_name(type_)}, which Spark has no type for; declare another result_type "
                "(STRING, or INTERVAL DAY TO SECOND for a duration)",
            )
        storages.append(storage)
    return storages


SPARK: Final = HostTypes(storage=storage_type, results=result_types)
"""The types of states and results in Spark."""
