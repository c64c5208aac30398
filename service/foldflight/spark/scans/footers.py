"""What the footer of a Parquet file tells about it: whether Arrow may read it, and its row groups.

Only columns that Arrow and Spark read alike are read by Arrow (`is_readable`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import types as st

from foldflight.spark.scans.predicate import Comparison, Predicate
from foldflight.spark.versions.types import arrow_type

_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_CORRECTED: Final = "CORRECTED"
_VERSION: Final = b"org.apache.spark.version"

# The names of Arrow's types in which the values of each type of Spark are read. Spark's type comes from the first file,
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
OpenFilesystem: TypeAlias = "Callable[[], fs.FileSystem]"
"""Makes the file system, in each process that reads."""
INT96_UNIT: Final = "us"
"""The unit in which Arrow reads INT96, as Spark does; in nanoseconds, years after 2262 would not fit."""

# Compressions and encodings that Spark and Arrow read; of LZ4 there are two, which pyarrow does not tell apart.
_STORED: Final = frozenset(
    {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
    | {"DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
)
# The name that the format prescribes for the items of a list, and the name that old pyarrow and delta-rs write.
_ITEMS: Final = ("element", "item")
# The length of the footer, and the letters PAR1.
_TAIL: Final = 8


@dataclass(frozen=True)
class RowGroup:
    """A row group.

    Args:
        index: Its number in the file.
        rows: Its rows.
        size: Bytes of the columns that are read.
    """

    index: int
    rows: int
    size: int


@dataclass(frozen=True)
class Footer:
    """A file as it was when the query was planned.

    Args:
        path: Its path in the file system.
        refusal: Why Arrow may not read it, as text for users; empty: it may.
        size: Its size in bytes.
        changed_ns: When it was last changed, in nanoseconds since 1970; 0 where that is not known.
        groups: The row groups in which rows may pass the predicate.
        left_out: The number of its other row groups.
        missing: The columns that it does not have.
    """

    path: str
    refusal: str
    size: int = 0
    changed_ns: int = 0
    groups: tuple[RowGroup, ...] = ()
    left_out: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadRequest:
    """The columns and rows that a query reads of each file.

    Args:
        columns: The columns that are read, with Spark's types in the scan.
        constants: The names of columns whose values are in the names of folders.
        predicate: The condition that rows must pass.
        mode: What the session makes of old days in files of other writers than Spark.
        is_case_sensitive: Whether names that differ by case are different.
    """

    columns: Mapping[str, st.DataType]
    constants: tuple[str, ...]
    predicate: Predicate
    mode: str
    is_case_sensitive: bool


class _FileError(Exception):
    """A file is left to Spark. Its text tells why, for users."""


def local() -> fs.FileSystem:
    """Make the file system of this machine."""
    return fs.LocalFileSystem()


def footers(paths: Sequence[str], open_filesystem: OpenFilesystem, request: ReadRequest) -> Iterator[Footer]:
    """Yield the description of each file."""
    filesystem = open_filesystem()
    for path in paths:
        yield footer(path, filesystem, request)


def footer(path: str, filesystem: fs.FileSystem, request: ReadRequest) -> Footer:
    """Return the description of a file. Errors are refusals: Spark shall read the file, or report its damage."""
    try:
        info = filesystem.get_file_info(path)
        if not info.size and info.type == fs.FileType.File:
            return Footer(path, "", 0, info.mtime_ns or 0)  # Spark reads nothing in it
        with (
            filesystem.open_input_file(path) as file,
            pq.ParquetFile(file, coerce_int96_timestamp_unit=INT96_UNIT) as parquet,
        ):
            _check_whole(file, info.size, parquet.metadata)
            leaves = _leaves(parquet, request)
            metadata = parquet.metadata.metadata or {}
            for name, leaf in leaves.items():
                column = parquet.schema.column(leaf)
                # Old versions of Arrow and Flink count days before 1970 from their end, in negative nanoseconds. Arrow
                # reads these as positive ones.
                if column.physical_type == "INT96" and not is_written_by_spark(parquet.metadata):
                    raise _FileError(f"its column {name!r} is INT96, whose signs are known only in files by Spark")
                if is_rebased(request.columns[name], column.physical_type, metadata, request.mode):
                    raise _FileError(f"the days of its column {name!r} may be counted in the old calendar")
            groups = [parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups)]
            _check_stored(groups, leaves, parquet.metadata.created_by)
            chosen_groups = [
                RowGroup(
                    index, group.num_rows, sum(group.column(leaf).total_compressed_size for leaf in leaves.values())
                )
                for index, group in enumerate(groups)
                if _may_pass(group, leaves, request.predicate)
            ]
    except _FileError as refusal:
        return Footer(path, str(refusal))
    except (pa.ArrowException, OSError) as error:
        return Footer(path, f"Arrow cannot read its footer: {str(error).splitlines()[0]}")
    missing = tuple(name for name in request.columns if name not in leaves)
    return Footer(
        path, "", info.size, info.mtime_ns or 0, tuple(chosen_groups), len(groups) - len(chosen_groups), missing
    )


def _check_whole(file: Any, size: int, metadata: pq.FileMetaData) -> None:
    """Refuse a file whose footer has more than Arrow has parsed: a signature, or what writers may add one day."""
    tail = file.read_at(_TAIL, size - _TAIL)
    if int.from_bytes(tail[:4], "little") != metadata.serialized_size:
        raise _FileError("its footer has more than descriptions, as in an encrypted file")


def _check_stored(groups: Sequence[Any], leaves: Mapping[str, int], writer: str) -> None:
    """Refuse chunks of columns in forms that Spark or Arrow may not read."""
    for group in groups:
        for name, leaf in leaves.items():
            chunk = group.column(leaf)
            unusual = {chunk.compression, *chunk.encodings} - _STORED
            if unusual:
                raise _FileError(f"its column {name!r} is stored as {', '.join(sorted(unusual))}")
            if writer.startswith("DuckDB") and "DELTA_BINARY_PACKED" in chunk.encodings and _may_be_wide(chunk):
                raise _FileError(f"its column {name!r} is stored as differences that may have more than 32 bits")


def _may_be_wide(chunk: Any) -> bool:
    """Return whether differences of 32-bit numbers may need more bits, as DuckDB writes them and Arrow reads none."""
    statistics = chunk.statistics
    is_near = (
        statistics is not None and statistics.has_min_max and 0 <= statistics.max_raw - statistics.min_raw < 1 << 31
    )
    return chunk.physical_type == "INT32" and not is_near


def _leaves(parquet: pq.ParquetFile, request: ReadRequest) -> dict[str, int]:
    """Return the number of the leaf of each requested column that the file has."""
    arrow = parquet.schema_arrow
    fold: Callable[[str], str] = str if request.is_case_sensitive else str.casefold
    alike: dict[str, list[str]] = {}
    for name in arrow.names:
        alike.setdefault(fold(name), []).append(name)
    for name in request.constants:
        if fold(name) in alike:
            raise _FileError(f"it has the column {name!r}, which is in the names of folders, too")
    leaves: dict[str, int] = {}
    numbers = {parquet.schema.column(index).path: index for index in range(len(parquet.schema))}
    for name, type_ in request.columns.items():
        matches = alike.get(fold(name), [])
        if not matches:
            continue
        if matches != [name]:
            raise _FileError(f"its columns {', '.join(matches)} are called like {name!r}, but not exactly so, or twice")
        # Of an array, the leaf is its items, in the three levels that the format prescribes for lists.
        is_array = isinstance(type_, st.ArrayType)
        leaf_paths = [f"{name}.list.{item}" for item in _ITEMS] if is_array else [name]
        number = next((numbers[path] for path in leaf_paths if path in numbers), None)
        leaf = None if number is None else parquet.schema.column(number)
        # A column may also be called like the items of another one.
        if number is None or leaf is None or leaf.max_repetition_level != is_array:
            raise _FileError(f"its column {name!r} has members")
        if not is_readable(leaf.physical_type, arrow.field(name).type, type_):
            kind = str(leaf.logical_type) if leaf.logical_type.type != "NONE" else leaf.physical_type
            raise _FileError(
                f"its column {name!r} is {kind} in Parquet, which only Spark reads as {type_.simpleString()}"
            )
        leaves[name] = number
    return leaves


def _may_pass(group: Any, leaves: Mapping[str, int], predicate: Predicate) -> bool:
    """Return whether rows of a row group may pass, by the bounds that it tells."""

    def may_hold(comparison: Comparison) -> bool:
        if comparison.column not in leaves:
            return True
        bounds = _bounds(group.column(leaves[comparison.column]), comparison.type_)
        return bounds is None or comparison.may_hold(*bounds)

    return predicate.may_pass(may_hold)


def _bounds(chunk: Any, type_: pa.DataType) -> tuple[Any, Any] | None:
    """Return the least and the largest value that a chunk tells, as a comparison has values of the type.

    None: the chunk tells none of a kind that writers have always got right. Arrow hides bounds of texts that are in the
    order of signed bytes. Bounds of texts may be shorter than the texts, and are bounds even so.
    """
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return None
    if chunk.physical_type not in {"INT32", "INT64"} and not pa.types.is_string(type_):
        return None
    if pa.types.is_timestamp(type_):
        times = 1 if json.loads(statistics.logical_type.to_json())["timeUnit"] == "microseconds" else 1000
        return statistics.min_raw * times, statistics.max_raw * times
    try:
        return statistics.min, statistics.max
    except (ValueError, OverflowError):  # a day after the year 9999, a part of a letter
        return None


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

    Files of Spark tell which calendar they have, and the session's mode counts for files of other writers.

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
