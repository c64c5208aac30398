"""Which columns of files the tasks of a scan may read: only where Arrow and Spark read the same values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import types as st

from foldflight.spark.scans.footers import (
    Footer,
    ReadRequest,
    _may_be_wide,
    footer,
    is_readable,
    is_rebased,
    readable_type,
)
from foldflight.spark.scans.predicate import Comparison, Predicate

SPARK_TYPES = {
    each.simpleString(): each
    for each in (
        st.BooleanType(),
        st.ByteType(),
        st.ShortType(),
        st.IntegerType(),
        st.LongType(),
        st.FloatType(),
        st.DoubleType(),
        st.StringType(),
        st.BinaryType(),
        st.DateType(),
        st.TimestampType(),
        st.TimestampNTZType(),
        st.DecimalType(5, 2),
        st.DecimalType(5, 3),
        st.DecimalType(6, 2),
        st.ArrayType(st.FloatType()),
        st.ArrayType(st.DoubleType()),
    )
}
# For each type of Arrow in which a file is written, the type of Spark as which it is read.
READ = (
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.uint8(), "smallint"),
    (pa.uint16(), "int"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), ""),
    (pa.float16(), ""),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.dictionary(pa.int32(), pa.string()), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.dictionary(pa.int32(), pa.binary()), "binary"),
    (pa.binary(4), ""),
    (pa.null(), ""),
    (pa.date32(), "date"),
    (pa.time32("ms"), ""),
    (pa.time64("us"), ""),
    (pa.duration("us"), ""),
    (pa.timestamp("ms", "UTC"), "timestamp"),
    (pa.timestamp("us", "UTC"), "timestamp"),
    (pa.timestamp("us", "Asia/Tokyo"), "timestamp"),
    (pa.timestamp("ns", "UTC"), ""),
    (pa.timestamp("ms"), "timestamp_ntz"),
    (pa.timestamp("us"), "timestamp_ntz"),
    (pa.timestamp("ns"), ""),
    (pa.decimal128(5, 2), "decimal(5,2)"),
    (pa.decimal256(5, 2), "decimal(5,2)"),
    (pa.decimal128(5, 3), "decimal(5,3)"),
    (pa.decimal128(6, 2), "decimal(6,2)"),
    (pa.decimal128(5, 1), ""),
    (pa.list_(pa.float32()), "array<float>"),
    (pa.list_(pa.float64()), "array<double>"),
    (pa.large_list(pa.float32()), "array<float>"),
    (pa.list_(pa.float32(), 2), "array<float>"),
    (pa.list_(pa.int32()), ""),
    (pa.list_(pa.list_(pa.float32())), ""),
    (pa.struct([("list", pa.struct([("element", pa.float32())]))]), ""),
    (pa.map_(pa.string(), pa.float32()), ""),
    # Those that old versions of Arrow do not have.
    *(
        (getattr(pa, name)(), expected)
        for name, expected in (("string_view", "string"), ("binary_view", "binary"), ("json_", ""), ("uuid", ""))
        if hasattr(pa, name)
    ),
)


ALL = Predicate()


def footer_of(path: Path, *columns: tuple[str, st.DataType], where: Predicate = ALL, mode: str = "") -> Footer:
    """Return what the footer of a file tells, where a query wants some columns."""
    return footer(str(path), fs.LocalFileSystem(), ReadRequest(dict(columns), (), where, mode, is_case_sensitive=False))


@pytest.mark.parametrize("store_schema", [True, False])
def test_each_type_in_a_file_is_read_as_one_type_or_none(store_schema: bool, tmp_path: Path) -> None:
    """Of each type in a file there is one type of Spark, or none, as which it is read: Arrow would cast all others."""
    columns = [pa.array([None], type_) for type_, _ in READ]
    names = [str(index) for index in range(len(READ))]
    pq.write_table(pa.table(columns, names), tmp_path / "a.parquet", store_schema=store_schema)
    for name, (type_, expected) in zip(names, READ, strict=True):
        result = {
            each: footer_of(tmp_path / "a.parquet", (name, SPARK_TYPES[each]), mode="CORRECTED") for each in SPARK_TYPES
        }
        # A file without Arrow's schema has durations as whole numbers, as Spark reads them.
        only = "bigint" if pa.types.is_duration(type_) and not store_schema else expected
        assert [each for each, read in result.items() if not read.refusal] == [only] * bool(only), type_


def test_int96_is_an_instant() -> None:
    """Arrow reads INT96 as a time without a zone, and for Spark it has one."""
    times = pa.timestamp("us")
    for physical, expected in (("INT96", st.TimestampType()), ("INT64", st.TimestampNTZType())):
        for each in (st.TimestampType(), st.TimestampNTZType()):
            assert is_readable(physical, times, each) == (each == expected)


def test_views_of_lists_are_left_to_spark() -> None:
    """Arrow's lists of other layouts are left to Spark."""
    if not hasattr(pa, "list_view"):
        pytest.skip("this version of Arrow has no views of lists")
    assert not is_readable("FLOAT", pa.list_view(pa.float32()), st.ArrayType(st.FloatType()))


def test_columns_that_are_there_twice_are_left_to_spark(tmp_path: Path) -> None:
    """Which of two columns of a name is meant, only Spark knows; and no column is taken for the items of another."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["v", "v"]), path)
    assert "twice" in footer_of(path, ("v", st.LongType())).refusal
    items = pa.table({"v": pa.array([[1.0]], pa.list_(pa.float32())), "v.list.element": pa.array([2.0], pa.float32())})
    pq.write_table(items, path)
    assert "has members" in footer_of(path, ("v", st.ArrayType(st.FloatType()))).refusal


DATES = (st.DateType(), st.TimestampType(), st.TimestampNTZType())
SPARK = b"org.apache.spark.version"


def test_days_are_read_only_in_a_known_calendar() -> None:
    """Days are read only where the file or the session tells that they are counted in the calendar of today."""
    for type_ in DATES:
        for mode in ("EXCEPTION", "LEGACY", ""):
            assert is_rebased(type_, "INT64", {}, mode)
        assert not is_rebased(type_, "INT64", {}, "CORRECTED")
        for version, is_old in ((b"2.4.8", True), (b"3.0.0", False), (b"4.1.1", False)):
            assert is_rebased(type_, "INT64", {SPARK: version}, "CORRECTED") == is_old
            assert is_rebased(type_, "INT64", {SPARK: version}, "LEGACY") == is_old
        assert is_rebased(type_, "INT64", {SPARK: b"4.1.1", b"org.apache.spark.legacyDateTime": b""}, "CORRECTED")
    assert not is_rebased(st.LongType(), "INT64", {SPARK: b"2.4.8"}, "LEGACY")
    for version, is_old in ((b"3.0.3", True), (b"3.1.0", False), (b"4.1.1", False)):
        assert is_rebased(st.TimestampType(), "INT96", {SPARK: version}, "CORRECTED") == is_old
    for name, is_old in ((b"org.apache.spark.legacyINT96", True), (b"org.apache.spark.legacyDateTime", False)):
        assert is_rebased(st.TimestampType(), "INT96", {SPARK: b"4.1.1", name: b""}, "CORRECTED") == is_old


@pytest.mark.parametrize(
    ("version", "writer", "is_read"),
    [("4.1.1", "parquet-mr", True), (None, "parquet-mr", False), ("4.1.1", "parquet-cpp-arrow", False)],
)
def test_int96_is_read_only_of_spark(version: str | None, writer: str, is_read: bool, tmp_path: Path) -> None:
    """INT96 is read of Spark only: Flink writes by parquet-mr, too, and Arrow keeps what Spark tells of its version."""
    table = pa.table({"t": pa.array([0], pa.timestamp("us"))})
    if version:
        table = table.replace_schema_metadata({SPARK: version})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    file_bytes = path.read_bytes()
    assert b"parquet-cpp-arrow" in file_bytes
    path.write_bytes(file_bytes.replace(b"parquet-cpp-arrow", writer.ljust(17).encode()))
    refusal = footer_of(path, ("t", st.TimestampType()), mode="CORRECTED").refusal
    assert ("whose signs are known only in files by Spark" in refusal) == (not is_read)
    assert bool(refusal) == (not is_read)


@pytest.mark.parametrize(
    ("type_", "extent", "is_wide"), [("int", (1 << 31) - 1, False), ("int", 1 << 31, True), ("bigint", 1 << 31, False)]
)
def test_wide_differences_of_duckdb_are_left_to_spark(type_: str, extent: int, is_wide: bool, tmp_path: Path) -> None:
    """DuckDB writes differences of 32-bit numbers in up to 33 bits, of which Arrow reads no more than 32."""
    path = tmp_path / "a.parquet"
    least = -(1 << 30)
    numbers = f"SELECT ({least} + CASE WHEN i % 2 = 0 THEN i ELSE {extent} - i + 1 END)::{type_} AS v"
    with duckdb.connect() as connection:
        connection.sql(f"COPY ({numbers} FROM range(2000) t(i)) TO '{path}' (PARQUET_VERSION V2)")
    refusal = footer_of(path, ("v", SPARK_TYPES[type_])).refusal
    assert ("more than 32 bits" in refusal) == is_wide
    if not is_wide:
        assert pq.ParquetFile(path).read()["v"].to_pylist()[:2] == [least, least + extent]


@pytest.mark.parametrize(
    ("statistics", "is_wide"),
    [
        (None, True),
        (SimpleNamespace(has_min_max=False, min_raw=0, max_raw=0), True),
        (SimpleNamespace(has_min_max=True, min_raw=0, max_raw=-1), True),  # of UINT32, as a number with a sign
        (SimpleNamespace(has_min_max=True, min_raw=-1, max_raw=-1), False),
    ],
)
def test_differences_without_bounds_are_left_to_spark(statistics: Any, is_wide: bool) -> None:
    """A chunk that does not tell its bounds may have any number."""
    assert _may_be_wide(SimpleNamespace(statistics=statistics, physical_type="INT32")) == is_wide


def rows(path: Path, type_: st.DataType, comparison: Comparison) -> Iterable[int]:
    """Return the rows of the row groups that are read."""
    result = footer_of(path, (comparison.column, type_), where=Predicate((comparison,)), mode="CORRECTED")
    assert result.refusal == ""
    return [group.rows for group in result.groups]


def test_row_groups_without_bounds_are_read(tmp_path: Path) -> None:
    """A row group that does not tell its bounds, or only of a kind that writers got wrong, is read."""
    path = tmp_path / "a.parquet"
    number, text = Comparison("v", "equal", (9,), pa.int64()), Comparison("s", "equal", ("z",), pa.string())
    table = pa.table({"v": [1, 2], "s": ["a", "b"]})
    pq.write_table(table, path)
    assert rows(path, st.LongType(), number) == rows(path, st.StringType(), text) == []
    pq.write_table(table, path, write_statistics=False)
    assert rows(path, st.LongType(), number) == rows(path, st.StringType(), text) == [2]
    pq.write_table(pa.table({"v": pa.nulls(2, pa.int64())}), path)
    assert rows(path, st.LongType(), number) == [2]


def test_texts_that_spark_pads_are_left_to_it() -> None:
    """Of a table with CHAR, as Delta's tells it by metadata, Spark pads texts that files have without blanks."""
    assert readable_type(st.StructField("c", st.StringType())) is not None
    field_metadata = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    assert readable_type(st.StructField("c", st.StringType(), metadata=field_metadata)) is None
    for type_ in (st.CharType(5), st.VarcharType(5)):
        assert readable_type(st.StructField("c", type_)) is None


def test_texts_with_a_collation_are_left_to_spark() -> None:
    """Texts with a collation are left to Spark, for which two of them may be equal that differ."""
    assert readable_type(st.StructField("c", st.StringType("UTF8_LCASE"))) is None
