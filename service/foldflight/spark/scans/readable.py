"""Which columns of Parquet files Arrow and Spark read alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as st

from foldflight.spark.versions.types import arrow_type

_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_STRINGS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    getattr(pa.types, "is_string_view", lambda _type: False),
)
_BINARIES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    getattr(pa.types, "is_binary_view", lambda _type: False),
)
_CORRECTED: Final = "CORRECTED"
_VERSION: Final = b"org.apache.spark.version"


_Is = Callable[[pa.DataType], bool]
# For each type of Spark, what a column of the file may be: the physical type, the logical one, and Arrow's type. Arrow
# restores types that its writers keep in the file, so that of one Parquet type several of Arrow may be read.
_NUMBERS: Final[Mapping[type[st.DataType], tuple[tuple[str, str, _Is], ...]]] = {
    st.BooleanType: (("BOOLEAN", "None", pa.types.is_boolean),),
    st.ByteType: (("INT32", "Int8", pa.types.is_int8),),
    st.ShortType: (("INT32", "Int16", pa.types.is_int16), ("INT32", "UInt8", pa.types.is_uint8)),
    st.IntegerType: (
        ("INT32", "None", pa.types.is_int32),
        ("INT32", "Int32", pa.types.is_int32),
        ("INT32", "UInt16", pa.types.is_uint16),
    ),
    st.LongType: (
        ("INT64", "None", pa.types.is_int64),
        ("INT64", "Int64", pa.types.is_int64),
        ("INT32", "UInt32", pa.types.is_uint32),
    ),
    st.FloatType: (("FLOAT", "None", pa.types.is_float32),),
    st.DoubleType: (("DOUBLE", "None", pa.types.is_float64),),
    st.DateType: (("INT32", "Date", pa.types.is_date32),),
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
_READABLE: Final = frozenset(
    {
        st.BooleanType,
        st.ByteType,
        st.ShortType,
        st.IntegerType,
        st.LongType,
        st.FloatType,
        st.DoubleType,
        st.DecimalType,
        st.StringType,
        st.BinaryType,
        st.DateType,
        st.TimestampType,
        st.TimestampNTZType,
    }
)


def is_readable(leaf: Any, arrow: pa.DataType, wanted: st.DataType) -> bool:
    """Return whether Arrow reads a column of a file with the values that Spark reads.

    Args:
        leaf: The column of the Parquet schema, which has no members; of an array its items.
        arrow: The type that Arrow reads.
        wanted: Spark's type of the column in the scan, which `readable_type` accepts.
    """
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if isinstance(wanted, st.ArrayType):
        is_list = pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)
        return is_list and is_readable(leaf, arrow.value_type, wanted.elementType)
    physical, logical = leaf.physical_type, _logical(leaf)
    if isinstance(wanted, st.StringType):
        return physical == "BYTE_ARRAY" and logical == "String" and any(is_type(arrow) for is_type in _STRINGS)
    if isinstance(wanted, st.BinaryType):
        return physical == "BYTE_ARRAY" and logical == "None" and any(is_type(arrow) for is_type in _BINARIES)
    if isinstance(wanted, st.DecimalType):
        known = (wanted.precision, wanted.scale)
        is_same = logical == "Decimal" and (leaf.precision, leaf.scale) == known
        return is_same and pa.types.is_decimal(arrow) and (arrow.precision, arrow.scale) == known
    if isinstance(wanted, st.TimestampType) and physical == "INT96":
        return pa.types.is_timestamp(arrow) and arrow.unit == "us"
    if isinstance(wanted, (st.TimestampType, st.TimestampNTZType)):
        is_instant = isinstance(wanted, st.TimestampType)
        is_same = logical == ("Instant" if is_instant else "Timestamp") and pa.types.is_timestamp(arrow)
        return is_same and arrow.unit in {"us", "ms"} and (arrow.tz is not None) == is_instant
    kinds = _NUMBERS.get(type(wanted), ())
    return any((physical, logical) == (each, other) and is_type(arrow) for each, other, is_type in kinds)


def is_rebased(leaf: Any, metadata: Mapping[bytes, bytes], mode: str) -> bool:
    """Return whether Spark may count the days of a file in the old calendar, or refuse its old days.

    Files of Spark tell which calendar they have, and the session's mode counts for those of other writers.

    Args:
        leaf: The column of the Parquet schema; of INT96 only if Spark has written the file.
        metadata: The metadata of the file.
        mode: What the session makes of old days: `EXCEPTION`, `CORRECTED` or `LEGACY`.
    """
    is_int96 = leaf.physical_type == "INT96"
    if not is_int96 and _logical(leaf) not in {"Date", "Instant", "Timestamp"}:
        return False
    version = metadata.get(_VERSION)
    if version is None:
        return mode != _CORRECTED
    first, legacy = (
        (b"3.1.0", b"org.apache.spark.legacyINT96") if is_int96 else (b"3.0.0", b"org.apache.spark.legacyDateTime")
    )
    return version < first or legacy in metadata


def is_written_by_spark(metadata: pq.FileMetaData) -> bool:
    """Return whether Spark has written a file, and not another program that has kept what Spark tells in its files."""
    return _VERSION in (metadata.metadata or {}) and metadata.created_by.startswith("parquet-mr")


def _logical(leaf: Any) -> str:
    """Return the logical type of a column in one word."""
    described = json.loads(leaf.logical_type.to_json())
    match described["Type"]:
        case "Int":
            return f"{'' if described['isSigned'] else 'U'}Int{described['bitWidth']}"
        case "Timestamp":
            return "Instant" if described["isAdjustedToUTC"] else "Timestamp"
        case name:
            return str(name)
