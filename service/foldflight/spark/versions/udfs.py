"""Functions over columns: Arrow UDFs of Spark 4.1, and before that plain ones, which are called for each row.

UDFs of pandas would be faster, and would change values: NULL is NaN there, a large BIGINT beside NULL is rounded, and a
time loses its zone. `with_columns`, which knows all columns, needs no UDF and is as fast on all versions.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.spark.versions.facts import ARROW_UDFS, spark_name


def arrow_udf(
    function: Callable[..., Any], type_: st.DataType, inputs: Sequence[pa.DataType | None] | None = None
) -> Any:
    """Return a function of arrays as a UDF of Spark.

    Args:
        function: Takes an array for each argument. It returns an array of the same length, or as its annotations say,
            which only Arrow UDFs can.
        type_: The type of its results.
        inputs: The types of its arguments; None for each one that is not known. None: of all.
    """
    if ARROW_UDFS.has():
        make: Any = getattr(sf, "arrow_udf")  # noqa: B009 - absent in older versions, whose types mypy may see
        return make(function, type_)

    def run(*values: Any) -> Any:
        types = [None] * len(values) if inputs is None else inputs
        arrays = map(_array, values, [*types, *[None] * (len(values) - len(types))])
        result = function(*arrays)
        return _value(result[0].as_py(), result.type)

    run.__name__ = function.__name__
    return sf.udf(run, type_)


def _array(value: Any, type_: pa.DataType | None) -> pa.Array:
    """Return a value of Spark as an array. If it is of another type, that is its type, which the function refuses."""
    arrow_value = _to_arrow(value, type_)
    try:
        return pa.array([arrow_value], type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([arrow_value])


def _to_arrow(value: Any, type_: pa.DataType | None) -> Any:
    """Return a value of Spark as pyarrow takes it: times with their zone, members by name, entries of maps as pairs."""
    if value is None:
        return None
    if isinstance(value, datetime.datetime):
        if type_ is None:  # Spark gives times with and without zone alike
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{spark_name()} passes times with and without a time zone to a UDF in one form; give "
                "unix_micros(...) of it",
            )
        # A time with zone comes in the zone of this process; `fold` tells which of two equal times it is.
        return value if type_.tz is None else value.astimezone(datetime.UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Row):
        types = _members(type_, len(value))
        return {name: _to_arrow(each, kind) for name, each, kind in zip(value.__fields__, value, types, strict=True)}
    if isinstance(value, list):
        element = None if type_ is None else type_.value_type
        return [_to_arrow(each, element) for each in value]
    if isinstance(value, dict):
        key, item = (None, None) if type_ is None else (type_.key_type, type_.item_type)
        return [(_to_arrow(name, key), _to_arrow(each, item)) for name, each in value.items()]
    return value


def _members(type_: pa.DataType | None, count: int) -> list[pa.DataType | None]:
    return [None] * count if type_ is None else [type_.field(index).type for index in range(type_.num_fields)]


def _value(value: Any, type_: pa.DataType) -> Any:
    """Return a value of pyarrow as Spark takes it: members in order, maps as dicts."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return tuple(_value(each, type_.field(index).type) for index, each in enumerate(value.values()))
    if pa.types.is_map(type_):
        return {_value(key, type_.key_type): _value(item, type_.item_type) for key, item in value}
    if pa.types.is_list(type_):
        return [_value(each, type_.value_type) for each in value]
    if pa.types.is_decimal(type_):
        return Decimal(value)
    return value
