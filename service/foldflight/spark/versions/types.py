"""Spark's types and those in which Arrow carries their values, as Spark itself pairs them.

PySpark has this table in a private module whose functions differ between versions. Old ones lack types that their JVM
knows, such as arrays of timestamps in 3.5.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.spark.versions.facts import spark_name

_PAIRS: Final[dict[type[st.DataType], pa.DataType]] = {
    st.NullType: pa.null(),
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: pa.timestamp("us", "UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
    st.DayTimeIntervalType: pa.duration("us"),
}


def type_named(name: str) -> Any:
    """Return a type that only some versions of PySpark have, or a type of which nothing is an instance."""
    return getattr(st, name, type(f"No{name}", (), {}))


_TIME: Final = type_named("TimeType")  # 4.1
_VARIANT: Final = type_named("VariantType")  # 4.0
_CALENDAR_INTERVAL: Final = type_named("CalendarIntervalType")  # 4.0

SPATIAL: Final = (type_named("GeometryType"), type_named("GeographyType"))  # 4.1
"""Types whose values Spark passes to Python and does not take from there, as far as this PySpark has them."""

UNCOMPARABLE: Final = (st.MapType, _VARIANT, _CALENDAR_INTERVAL, *SPATIAL)
"""Types whose values cannot be compared, as far as this PySpark has them."""


def collates_by_bytes(type_: st.StringType) -> bool:
    """Return whether texts of a type are equal if and only if their bytes are. Spark has collations since 4.0."""
    return getattr(type_, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def is_utf8(value: Column) -> Column:
    """Return whether bytes or a text are UTF-8. Spark has a function for it since 4.0, whose `decode` may fail."""
    if hasattr(sf, "is_valid_utf8"):
        return sf.is_valid_utf8(value.cast("string"))
    return sf.encode(sf.decode(value.cast("binary"), "UTF-8"), "UTF-8") == value.cast("binary")


def arrow_type(type_: st.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark passes values to Python. Timestamps with a time zone are in UTC.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if Spark does not pass values of this type to Python.
    """
    simple_type = next((arrow for spark, arrow in _PAIRS.items() if isinstance(type_, spark)), None)
    if simple_type is not None:
        return simple_type
    if isinstance(type_, st.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, st.ArrayType):
        element = arrow_type(type_.elementType)
        return pa.list_(pa.field("element", element, nullable=type_.containsNull or pa.types.is_null(element)))
    if isinstance(type_, st.MapType):
        value = pa.field("value", arrow_type(type_.valueType), nullable=type_.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(type_.keyType), nullable=False), value)
    if isinstance(type_, st.StructType):
        return pa.struct([pa.field(each.name, arrow_type(each.dataType), nullable=each.nullable) for each in type_])
    if isinstance(type_, st.UserDefinedType):
        return arrow_type(type_.sqlType())
    if isinstance(type_, _TIME):
        return pa.time64("ns")
    if isinstance(type_, _VARIANT):
        return pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
    if isinstance(type_, SPATIAL):
        return pa.struct([pa.field("srid", pa.int32(), nullable=False), pa.field("wkb", pa.binary(), nullable=False)])
    raise RejectedError("SCHEMA_MISMATCH", f"Spark does not pass {type_.simpleString()} to Python")


def nullable(type_: st.DataType) -> st.DataType:
    """Return the same type with nullable members, as Python returns them.

    PySpark cannot convert the type of `array()`, an array of NULL whose elements are not nullable.
    """
    if isinstance(type_, st.ArrayType):
        return st.ArrayType(nullable(type_.elementType))
    if isinstance(type_, st.MapType):
        return st.MapType(nullable(type_.keyType), nullable(type_.valueType))
    if isinstance(type_, st.StructType):
        fields = [st.StructField(each.name, nullable(each.dataType), metadata=each.metadata) for each in type_]
        return st.StructType(fields)
    return type_


def spark_type(type_: pa.DataType) -> st.DataType:
    """Return Spark's type for values that Python returns. Timestamps without a time zone become TIMESTAMP_NTZ.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if this Spark does not read values of the type from Python.
    """
    types = pa.types
    simple_type = next((spark for spark, arrow in _PAIRS.items() if arrow == type_), None)
    if simple_type is not None:
        return simple_type()
    if types.is_decimal(type_):
        return st.DecimalType(type_.precision, type_.scale)
    if types.is_timestamp(type_):
        return st.TimestampNTZType() if type_.tz is None else st.TimestampType()
    if types.is_duration(type_):
        return st.DayTimeIntervalType()
    if types.is_large_string(type_):
        return st.StringType()
    if types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return st.BinaryType()
    if types.is_map(type_):
        return st.MapType(spark_type(type_.key_type), spark_type(type_.item_type), type_.item_field.nullable)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return st.ArrayType(spark_type(type_.value_type), type_.value_field.nullable)
    if types.is_struct(type_):
        return st.StructType([st.StructField(each.name, spark_type(each.type), each.nullable) for each in type_])
    if types.is_time64(type_) and hasattr(st, "TimeType"):
        time: st.DataType = _TIME()
        return time
    newer = "TIME is new in Spark 4.1; " if types.is_time(type_) else ""
    raise RejectedError(
        "SCHEMA_MISMATCH",
        f"{spark_name()} has no type for {type_}, which a function returns; {newer}declare another result_type, as "
        "STRING",
    )
