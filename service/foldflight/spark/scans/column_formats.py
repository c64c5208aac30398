"""Which columns of Parquet files Arrow and Spark read alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as st

from foldflight.spark.versions.types import arrow_type

_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_CORRECTED: Final = "CORRECTED"
_VERSION: Final = b"org.apache.spark.version"

# The names of Arrow's types in which the values of each type of Spark are read. Spark's type is that of the first file,
# and another file may have one that is not here, such as a narrower number.
_NAMES: Final[Mapping[type[st.DataType], frozenset[str]]] = {
    st.BooleanType: frozenset({"bool"}),
    st.ByteType: frozenset({"int8"}),
    st.ShortType: frozenset({"int16", "uint8"}),
    st.IntegerType: frozenset({"int32", "uint16"}),
    st.LongType: frozenset({"int64", "uint32"}),
    st.FloatType: frozenset({"float"}),
    st.DoubleType: frozenset({"double"}),
    st.DateType: frozenset({"date32[day]"}),
    st.StringType: frozenset({"string", "large_string", "string_view"}),
    st.BinaryType: frozenset({"binary", "large_binary", "binary_view"}),
}


def readable_type(field: st.StructField) -> pa.DataType | None:
    """Return Arrow's type of the values of a column that may be read by Arrow; None if only Spark reads such columns.

    Args:
        field: The column, as Spark describes it.
    """
    type_ = field.dataType
    if _CHAR in (field.metadata or {}):
        return None  # Spark pads such texts
    if isinstance(type_, st.StringType) and type_ != st.StringType():
        return None  # texts with a collation
    item = type_.elementType if isinstance(type_, st.ArrayType) else type_
    return arrow_type(type_) if type(item) in (_READABLE if item is type_ else _READABLE_ITEMS) else None


_READABLE_ITEMS: Final = frozenset({st.FloatType, st.DoubleType})
"""The items of arrays that may be read, as embeddings have them."""
_READABLE: Final = frozenset({*_NAMES, st.DecimalType, st.TimestampType, st.TimestampNTZType})


def is_readable(physical_type: str, arrow: pa.DataType, spark_type: st.DataType) -> bool:
    """Return whether Arrow reads a column of a file with the values that Spark reads.

    Args:
        physical_type: The column's type in Parquet.
        arrow: The type that Arrow reads, which it makes of Parquet's physical and logical types.
        spark_type: Spark's type of the column in the scan, which `readable_type` accepts.
    """
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if isinstance(spark_type, st.ArrayType):
        is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)
        return is_list and is_readable(physical_type, arrow.value_type, spark_type.elementType)
    if isinstance(spark_type, st.DecimalType):
        return pa.types.is_decimal(arrow) and (arrow.precision, arrow.scale) == (spark_type.precision, spark_type.scale)
    if isinstance(spark_type, (st.TimestampType, st.TimestampNTZType)):
        if not pa.types.is_timestamp(arrow) or arrow.unit not in {"us", "ms"}:
            return False
        is_instant = arrow.tz is not None or physical_type == "INT96"  # of which Arrow does not tell that it is one
        return is_instant == isinstance(spark_type, st.TimestampType)
    return str(arrow) in _NAMES.get(type(spark_type), ())


def is_rebased(type_: st.DataType, physical_type: str, metadata: Mapping[bytes, bytes], mode: str) -> bool:
    """Return whether Spark may count the days of a file in the old calendar, or refuse its old days.

    Files of Spark tell which calendar they have, and the session's mode counts for those of other writers.

    Args:
        type_: Spark's type of the column, of which `is_readable` holds.
        physical_type: Its type in Parquet; INT96 only if Spark has written the file.
        metadata: The metadata of the file.
        mode: What the session makes of old days: `EXCEPTION`, `CORRECTED` or `LEGACY`.
    """
    if not isinstance(type_, (st.DateType, st.TimestampType, st.TimestampNTZType)):
        return False
    version = metadata.get(_VERSION)
    if version is None:
        return mode != _CORRECTED
    first, legacy = (
        (b"3.1.0", b"org.apache.spark.legacyINT96")
        if physical_type == "INT96"
        else (b"3.0.0", b"org.apache.spark.legacyDateTime")
    )
    return version < first or legacy in metadata


def is_written_by_spark(metadata: pq.FileMetaData) -> bool:
    """Return whether Spark has written a file, and not another program that has kept what Spark tells in its files."""
    return _VERSION in (metadata.metadata or {}) and metadata.created_by.startswith("parquet-mr")
