"""`scan`: the rows are those that Spark reads, whoever reads them."""

from __future__ import annotations

import base64
import datetime
import decimal
import random
import re
from collections.abc import Mapping
from functools import reduce
from itertools import starmap
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds
from foldflight.errors import RejectedError
from foldflight.spark import group_by, over, register, scan, sql
from foldflight.spark.errors import error_of
from foldflight.spark.scans import source as source_module
from foldflight.spark.scans.listing import UnreadableError
from foldflight.spark.scans.scan import Scan
from foldflight.spark.scans.source import Source
from tests.spark.scan_files import FILES
from tests.spark.scan_tables import WRITERS, table_of

_ZONE = "spark.sql.session.timeZone"


class AsTheyAre:
    """A task that returns its rows."""

    def __call__(self, batches: Any) -> Any:
        yield from batches


def read(source: Source, file_scan: Scan, columns: list[str]) -> DataFrame:
    """Return the rows that tasks read."""
    schema = st.StructType([file_scan.schema[name] for name in columns])
    return source.map_rows(file_scan.df.sparkSession, AsTheyAre(), BlockBounds(rows_max=64), "read", None, schema)


def bits(df: DataFrame) -> list[str]:
    """Return rows as texts that differ wherever values do, in the order of these."""
    rows = df.selectExpr(*(_text(each.name, each.dataType) for each in df.schema)).collect()
    return sorted(str(tuple(row)) for row in rows)


def _text(name: str, type_: st.DataType) -> str:
    if isinstance(type_, (st.FloatType, st.DoubleType)):  # the sign of zeros, and the bits of others but NaN
        return f"IF(`{name}` = 0, string(atan2(`{name}`, -1)), string(`{name}`))"
    if isinstance(type_, (st.StringType, st.BinaryType)):
        return f"hex(`{name}`)"
    return f"string(`{name}`)"


def reader(file_scan: Scan, columns: list[str]) -> str:
    """Return why Spark reads; empty if the tasks do."""
    try:
        file_scan.source(columns)
    except UnreadableError as error:
        return str(error)
    return ""


def same_rows(file_scan: Scan, columns: list[str], seed: object = "") -> None:
    """Check that the tasks read what Spark reads."""
    assert bits(read(file_scan.source(columns), file_scan, columns)) == bits(
        file_scan.df.select(*(f"`{each}`" for each in columns))
    ), f"{file_scan}, seed {seed}"


_QUICK = ("arrow", "spark", "spark, LEGACY days")
# A new one each day, which a failure names.
_SEED = datetime.datetime.now(tz=datetime.UTC).date().isoformat()


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "writer", [pytest.param(each, marks=() if each in _QUICK else pytest.mark.slow) for each in WRITERS]
)
def test_values_of_each_type_are_those_that_spark_reads(writer: str, classic: Any, tmp_path: Path) -> None:
    """Of each type by each writer, the tasks read Spark's values, and they read what the list says."""
    write, types, must = WRITERS[writer]
    table = table_of(types, 200, random.Random(f"{writer} {_SEED}"))
    write(classic, table, tmp_path / "t")
    path = tmp_path / "t"
    if (path / "_delta_log").exists():  # such a folder is refused
        path /= "*.parquet"
    scan_of_file = scan(classic, str(path))
    reasons = {name: reader(scan_of_file, [name]) for name in scan_of_file.columns}
    assert {name: why for name, why in reasons.items() if name in must.split() and why} == {}
    readable_names = [name for name, why in reasons.items() if not why]
    assert readable_names == [name for name in types.split() if name in must.split()]
    same_rows(scan_of_file, readable_names, _SEED)


@pytest.mark.every_turn
@pytest.mark.parametrize("plan", ["embedded", pytest.param("remote", marks=pytest.mark.slow)])
def test_vectors_in_files_are_folded_by_the_tasks_that_read_them(
    plan: str, classic: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Embeddings of files are folded by the tasks that read them, many batches of them; a wrong one names its row."""
    from foldflight import connect
    from tests.spark.test_vectors import MEANS, ROWS, sorted_rows

    embedded = request.getfixturevalue("embedded")
    functions = connect(request.getfixturevalue("server_url")) if plan == "remote" else embedded
    k, _, v = zip(*ROWS, strict=True)
    table = pa.table({"k": k * 3_000, "v": pa.array(v * 3_000, pa.list_(pa.float32()))})
    path = two_files(tmp_path / "t", table.slice(0, 9_000), table.slice(9_000))
    file_scan = scan(classic, path)
    assert reader(file_scan, ["k", "v"]) == ""
    assert sorted_rows(group_by(file_scan, "k").agg(mean=functions["centroid"]("v"))) == MEANS
    for wrong in ([1.0, 2.0], [1.0, None, 2.0]):
        other = pa.table({"k": ["b"], "v": pa.array([wrong], pa.list_(pa.float32()))})
        file_scan = scan(classic, two_files(tmp_path / str(len(wrong)), table.slice(0, 5), other))
        with pytest.raises(PySparkException) as excinfo:
            group_by(file_scan, "k").agg(mean=functions["centroid"]("v")).collect()
        text = str(error_of(excinfo.value))
        assert "the argument v has a list that is no VECTOR(3)" in text
        assert f"row: v={wrong}".replace("2.0]", "2.0") in text
    nested_table = pa.table({"k": [1], "v": pa.array([[[1.0]]], pa.list_(pa.list_(pa.float32()))), "s": [[1]]})
    pq.write_table(nested_table, tmp_path / "nested.parquet")
    for name in ("v", "s"):
        assert "which is left to Spark" in reader(scan(classic, tmp_path / "nested.parquet"), [name])
    pq.write_table(table.slice(0, 5), tmp_path / "items.parquet", use_compliant_nested_type=False)
    same_rows(scan(classic, tmp_path / "items.parquet"), ["v"])


_OLD_CALENDAR = "counted in the old calendar"
# For the end of a file's name, the columns that are left to Spark besides its nested ones, and why.
_LEFT_TO_SPARK = {
    "-legacy": ("day at clock", _OLD_CALENDAR),
    "-legacy-int96": ("day at clock", _OLD_CALENDAR),
    "arrow-26.0.1-int96": ("day at clock", "is INT96"),
    "duckdb-2.0.0-v2": ("f d", "BYTE_STREAM_SPLIT"),
}
_QUICK_FILES = ("spark-3.5.9-legacy", "spark-4.2.1-micros-v2", "arrow-26.0.1-int96", "polars-2.1.0")


def version_of_writer(path: Path) -> Any:
    return pytest.param(path, id=path.stem, marks=() if path.stem in _QUICK_FILES else pytest.mark.slow)


@pytest.mark.parametrize("path", [version_of_writer(each) for each in sorted(FILES.glob("*.parquet"))])
def test_files_of_older_versions_are_read_like_spark(path: Path, classic: Any, embedded: Any, rows_of: Any) -> None:
    """Of files by several versions of writers, with their pages, calendars and lists, queries have Spark's rows."""
    if path.stem.endswith("-ns"):
        with pytest.raises(AnalysisException, match="NANOS"):
            scan(classic, path)
        return
    result = [each for name, each in _LEFT_TO_SPARK.items() if path.stem.endswith(name)]
    names, why = result[0] if result else ("", "")
    left = [*names.split(), "items", "pair"]
    file_scan = scan(classic, path)
    columns = [name for name in file_scan.columns if name not in left]
    assert len(columns) + len(left) == 16
    for name in left:
        assert (why if name in names.split() else "left to Spark") in reader(file_scan, [name])
    same_rows(file_scan, columns)
    where = (
        "few > 0.5 OR s = 'a'" if "at" in left else "at >= TIMESTAMP'2024-04-01 12:30:00' OR at < TIMESTAMP'1700-01-01'"
    )
    narrow_scan = scan(classic, path, where=where)
    assert not reader(narrow_scan, columns)
    uses = {"x": embedded["weighted_avg"]("k", "v"), "n": embedded["count"](), "m": embedded["max"]("few")}
    plain = rows_of(group_by(narrow_scan.df, "s", "tiny", plan="fold").agg(**uses))
    assert rows_of(group_by(narrow_scan, "s", "tiny").agg(**uses)) == plain != []


def two_files(folder: Path, first: pa.Table, second: pa.Table) -> str:
    """Write two files, of which Spark takes the columns of the first."""
    folder.mkdir()
    for name, table in (("a", first), ("b", second)):
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
    return str(folder)


INTS = pa.table({"k": pa.array([1, 2, 1, None, 5], pa.int64()), "v": pa.array([1, None, 3, 4, 5], pa.int32())})


@pytest.mark.every_turn
def test_folders_and_missing_columns_are_read_like_spark(classic: Any, tmp_path: Path) -> None:
    """Folders of partitions, hidden and empty files, and missing columns are what they are for Spark."""
    for day, city in (("2026-01-01", "Köln am"), ("2026-01-02", "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / "t" / f"day={day}" / "n=7" / f"city={city}"
        folder.mkdir(parents=True)
        pq.write_table(INTS, folder / "a b%.parquet")
        pq.write_table(INTS, folder / "_hidden.parquet")
        pq.write_table(INTS, folder / "_not=hidden.parquet")
        pq.write_table(INTS, folder / ".hidden.parquet")
        pq.write_table(INTS.slice(0, 0), folder / "none.parquet")
        pq.write_table(INTS.select(["k"]), folder / "fewer.parquet")
        (folder / "empty.parquet").touch()
    file_scan = scan(classic, tmp_path / "t")
    assert file_scan.columns == ["k", "v", "day", "n", "city"]
    for columns in (file_scan.columns, ["v", "city"], ["day"], ["v"]):
        same_rows(file_scan, columns)
    for where, left_out in (
        ("day = DATE'2026-01-01' AND v > 3", 5),
        ("city IS NULL", 5),
        ("city <> 'x' AND n IN (7)", 5),
        ("day < DATE'2026-01-01' AND v > 3", 10),
        ("v > 3", 0),
    ):
        narrow_scan = scan(classic, tmp_path / "t", where=where)
        same_rows(narrow_scan, ["k", "day"])
        assert narrow_scan.source(["k"]).files_left_out == left_out, where
    below = scan(classic, tmp_path / "t" / "day=2026-01-01" / "n=7")
    assert below.columns == ["k", "v", "city"]
    same_rows(below, below.columns)
    same_rows(scan(classic, f"{tmp_path}/t/*/*/*/*.parquet"), ["k", "v"])
    files = sorted((tmp_path / "t").rglob("f*.parquet"))
    same_rows(scan(classic, files), ["k"])


def test_layouts_that_tasks_cannot_read_are_left_to_spark(classic: Any, tmp_path: Path) -> None:
    """Where it is not certain which column a name means, or where types differ, Spark reads."""
    wide = INTS.set_column(1, "v", INTS["v"].cast(pa.int64()))
    upper = INTS.rename_columns(["k", "V"])
    assert "only Spark reads as bigint" in reader(scan(classic, two_files(tmp_path / "a", wide, INTS)), ["v"])
    assert "called like 'v'" in reader(scan(classic, two_files(tmp_path / "b", INTS, upper)), ["v"])
    assert not reader(scan(classic, two_files(tmp_path / "b2", INTS, upper)), ["k"])
    for name, text in (
        ("n=01", "by Spark only"),
        ("n=1.5", "double"),
        ("s=a%2Fb", "by Spark only"),
        ("v=1", "'v'"),
        ("V=1", "'V'"),
        ("K=1", "named like a column"),
        ("%6B=1", "named like a column"),
        ("%4B=1", "named like a column"),
    ):
        folder = tmp_path / name / name
        two_files(folder.parent, INTS, INTS)
        folder.mkdir()
        for each in folder.parent.glob("*.parquet"):
            each.rename(folder / each.name)
        file_scan = scan(classic, folder.parent)
        assert text in reader(file_scan, file_scan.columns), name
    two_files(tmp_path / "k=1", INTS, INTS)
    # The folder has the name of a column, and is none of the partition that Spark sees.
    assert "named like a column" in reader(scan(classic, tmp_path / "k=1" / "a.parquet"), ["k"])
    # Spark decodes each byte of the name as a character, so that its column is none of the folder's name here.
    latin = tmp_path / "latin" / "%C3%A4=1"
    two_files(latin.parent, INTS, INTS)
    latin.mkdir()
    for each in latin.parent.glob("*.parquet"):
        each.rename(latin / each.name)
    (latin / "empty.parquet").touch()
    file_scan = scan(classic, latin.parent)
    assert f"no file has the column {file_scan.columns[-1]!r}" in reader(file_scan, file_scan.columns)
    assert file_scan.df.where(f"`{file_scan.columns[-1]}` = 1").count() == 2 * len(INTS)
    for name, options in (("LZ4", {"compression": "lz4"}), ("BYTE_STREAM_SPLIT", {"use_byte_stream_split": ["v"]})):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(INTS, path, use_dictionary=False, **options)
        assert f"stored as {name}" in reader(scan(classic, path), ["v"])
    rng, widths = random.Random(1), {"wide": 1 << 31, "narrow": 1 << 30}
    columns = {name: [rng.randint(-most, most - 1) for _ in range(120)] for name, most in widths.items()}
    with duckdb.connect() as connection:
        connection.register("t", pa.table(columns, pa.schema([(name, pa.int32()) for name in columns])))
        connection.sql(f"COPY t TO '{tmp_path}/deltas.parquet' (FORMAT parquet, PARQUET_VERSION V2)")
    file_scan = scan(classic, tmp_path / "deltas.parquet")
    assert "more than 32 bits" in reader(file_scan, ["wide"])
    same_rows(file_scan, ["narrow"])
    pq.write_table(INTS.rename_columns(["k", "a.b"]), tmp_path / "point.parquet")
    assert "has a point" in reader(scan(classic, tmp_path / "point.parquet"), ["a.b"])
    pq.write_metadata(INTS.schema, tmp_path / "a" / "_common_metadata")
    assert "summaries" in reader(scan(classic, tmp_path / "a"), ["k"])
    pq.write_table(INTS, tmp_path / "b" / "_metadata_2.parquet")  # which Spark lists, and reads no rows in it
    file_scan = scan(classic, tmp_path / "b")
    assert "summaries" in reader(file_scan, ["k"])
    assert file_scan.df.count() == 2 * len(INTS)


def test_default_values_of_columns_are_filled_in_by_spark(classic: Any, tmp_path: Path) -> None:
    """Of a column with a default value, as of ALTER TABLE ADD COLUMN, Spark fills in files that do not have it."""
    path = two_files(tmp_path / "t", INTS, INTS.select(["k"]))
    default = {"EXISTS_DEFAULT": "7", "CURRENT_DEFAULT": "7"}
    written_df = classic.read.parquet(f"{path}/a.parquet").withMetadata("v", default)
    written_df.coalesce(1).write.mode("append").parquet(path)
    (Path(path) / "a.parquet").unlink()
    (Path(path) / "b.parquet").rename(Path(path) / "z.parquet")  # Spark takes the columns of the first file
    file_scan = scan(classic, path)
    assert file_scan.df.where("v = 7").count() == len(INTS)
    assert "has a default value" in reader(file_scan, ["v"])
    same_rows(file_scan, ["k"])


def test_settings_that_may_change_a_read_leave_it_to_spark(classic: Any, tmp_path: Path) -> None:
    """A setting of the session that may change a read leaves it to Spark."""
    days = pa.table({"k": INTS["k"], "day": pa.array([0, 1, 2, 3, None], pa.date32())})
    path = two_files(tmp_path / "t", days, days)
    cases = two_files(tmp_path / "cases", INTS.rename_columns(["K", "v"]), INTS)
    numbered_path = str(tmp_path / "numbered")
    classic.createDataFrame(days).withMetadata("k", {"parquet.field.id": 1}).coalesce(1).write.parquet(numbered_path)
    for name, value, spark_reads in (
        ("spark.sql.files.ignoreCorruptFiles", "true", ["k", "day"]),
        ("spark.sql.files.ignoreMissingFiles", "TRUE", ["k", "day"]),
        ("spark.sql.parquet.fieldId.read.enabled", "true", []),
        ("spark.sql.parquet.int96TimestampConversion", "true", ["k", "day"]),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION", ["day"]),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY", ["day"]),
        ("spark.sql.parquet.int96RebaseModeInRead", "LEGACY", []),
        ("spark.sql.caseSensitive", "true", []),
        ("spark.sql.parquet.mergeSchema", "true", []),
    ):
        before = classic.conf.get(name)
        classic.conf.set(name, value)
        try:
            file_scan = scan(classic, path)
            assert [each for each in file_scan.columns if reader(file_scan, [each])] == spark_reads, name
            if "fieldId" in name:
                assert "a number, by which Spark" in reader(scan(classic, numbered_path), ["k"])
                same_rows(scan(classic, numbered_path), ["day"])
            if "caseSensitive" in name:
                same_rows(scan(classic, cases), ["K", "v"])
        finally:
            classic.conf.set(name, before)
    same_rows(scan(classic, numbered_path), ["k"])
    file_scan = scan(classic, path)
    file_scan.df.cache()
    try:
        assert "cached" in reader(file_scan, ["k"])
        assert "cached" in reader(scan(classic, path), ["k"])
        narrow_scan = scan(classic, path, where="k > 1", columns=["k"])
        assert "cached" in reader(narrow_scan, ["k"])
        file_scan.df.unpersist()
        narrow_scan.df.cache()
        assert "cached" in reader(narrow_scan, ["k"])
        narrow_scan.df.unpersist()
        assert not reader(narrow_scan, ["k"])
        for level in (StorageLevel.DISK_ONLY, StorageLevel.MEMORY_ONLY):
            file_scan.df.persist(level)
            assert "cached" in reader(file_scan, ["k"])
            file_scan.df.unpersist()
    finally:
        file_scan.df.unpersist()


def test_a_file_that_paths_name_twice_is_read_like_spark(classic: Any, tmp_path: Path) -> None:
    """Spark reads a file for each path that leads to it, and tells it once."""
    path = two_files(tmp_path / "t", INTS, INTS)
    for files in ([path, path], [path, f"{path}/a.parquet"], [f"{path}/./a.parquet", f"{path}/a.parquet"]):
        file_scan = scan(classic, files)
        assert file_scan.df.count() > len(file_scan.df.inputFiles()) * len(INTS)
        assert "twice" in reader(file_scan, ["k"])
    for patterns in ([f"{path}/a*", f"{path}/*.parquet"], [f"{path}{{,/a.parquet}}"], [path, f"file:{path}/a.parquet"]):
        assert "twice" in reader(scan(classic, patterns), ["k"])
    same_rows(scan(classic, [f"{path}/b.parquet", f"{path}/a.parquet"]), ["k", "v"])


@pytest.mark.parametrize("case", ["spark.sql.parquet.binaryAsString", "spark.sql.legacy.parquet.nanosAsLong"])
def test_settings_that_change_types_leave_the_read_to_spark(case: str, classic: Any, tmp_path: Path) -> None:
    """Where a setting changes the type that Spark tells, Spark reads."""
    table = pa.table({"a": pa.array([b"x"], pa.binary()) if "binary" in case else pa.array([1], pa.timestamp("ns"))})
    path = two_files(tmp_path / "t", table, table)
    before = classic.conf.get(case)
    classic.conf.set(case, "true")
    try:
        assert "only Spark reads" in reader(scan(classic, path), ["a"])
    finally:
        classic.conf.set(case, before)


@pytest.mark.every_turn
def test_a_condition_passes_the_rows_that_pass_in_spark(classic: Any, tmp_path: Path) -> None:
    """A condition that the tasks evaluate passes the rows that Spark passes, and leaves out row groups."""
    rng = random.Random(4)
    table = table_of("bigint smallint string date boolean decimal(5,2) double", 300, rng)
    table = table.append_column("n", pa.array([*range(299), None], pa.int16()))
    path = two_files(tmp_path / "t", table, table.slice(0, 50).drop_columns("string"))
    for where in (
        "n < 7",
        "n BETWEEN 5 AND 20 AND string IS NOT NULL",
        "n not in (1, 2, 299)",
        "`n` IN (4, 8) and boolean = TRUE",
        "string > 'a' AND boolean <> true",
        "string IN ('', 'ä', 'a ')",
        "date >= DATE'1900-01-01' AND date < DATE '9999-12-31'",
        "`decimal(5,2)` <= -1.5 AND bigint <> 0",
        "`decimal(5,2)` = 999.99",
        "smallint = -32768",
        "string IS NULL AND n >= 100",
        "n < 7 OR n > 290 AND string IS NOT NULL",
        "(n < 7 OR string = 'a') and (boolean = TRUE OR n IS NULL)",
        "n BETWEEN 3 AND 4 OR (n BETWEEN 7 AND 9 AND boolean = true)",
        "string < 'a' OR string > 'b'",
        "boolean = true OR boolean = false OR bigint IS NULL",
    ):
        file_scan = scan(classic, path, where=where, columns=["n", "string", "double"])
        same_rows(file_scan, file_scan.columns)
    for where in ("n < 7", "n = 3 OR (n > 290 AND n < 292)"):
        assert scan(classic, path, where=where).source(["n"]).left_out > 100
    for where, why in (
        ("double = 0.0", "double"),
        ("n < 7 OR double > 8", "double"),
        ("NOT (n < 7)", "joined by AND"),
        ("(n < 7) = true", "joined by AND"),
        ("n + 1 < 7", "joined by AND"),
        ("n < 7.5", "not a constant"),
        ("n < 70000", "not a constant"),
        ("string > 'a' 'b'", "joined by AND"),
        ("string = 'it''s'", "joined by AND"),
        ("string = '\\\\'", "joined by AND"),
        ("N < 7", "exactly"),
        ("date > '2020-01-01'", "not a constant that is compared with it; write DATE'2020-01-01'"),
        ("`decimal(5,2)` < 1.005", "not a constant"),
        ("`decimal(5,2)` < 1000", "not a constant"),
        ("n < 7S", "joined by AND"),
        ("bigint < 9223372036854775808", "not a constant"),
        ("n IN (SELECT 1)", "not a constant"),
        ("lower(string) = 'a'", "exactly"),
        ("string <> '${spark.app.name}'", "not a constant"),
        ("date > DATE'0000-12-31'", "joined by AND"),  # Python has no such year
    ):
        assert why in reader(scan(classic, path, where=where), ["n"]), where


MOMENTS = [
    datetime.datetime(*each)
    for each in (
        (1, 1, 1),
        (1883, 11, 18, 16, 56, 1),  # New York had its own time until noon of this day
        (1969, 12, 31, 23, 59, 59, 999_999),
        (1970, 1, 1),
        (2024, 3, 10, 6, 59, 59, 999_999),  # in New York the hour from 2 to 3 is left out
        (2024, 3, 10, 7),
        (2024, 11, 3, 5, 30),  # and the hour from 1 to 2 is there twice
        (2024, 11, 3, 6, 30),
        (2024, 11, 3, 6, 30, 0, 1),
        (9999, 12, 31, 23, 59, 59, 999_999),
    )
]


@pytest.mark.every_turn
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_timestamps_are_compared_as_in_spark(zone: str, classic: Any, tmp_path: Path) -> None:
    """Timestamps are compared with those that Spark reads in the zone of the session, whatever unit the files have."""
    folder = tmp_path / "t"
    folder.mkdir()
    columns = {"n": range(len(MOMENTS)), "t": MOMENTS, "c": MOMENTS}
    schema = pa.schema([("n", pa.int32()), ("t", pa.timestamp("us", "UTC")), ("c", pa.timestamp("us"))])
    table = pa.table(columns, schema)
    years = table.slice(1, len(MOMENTS) - 2)  # those that nanoseconds hold
    in_ms = table.cast(schema.set(1, pa.field("t", pa.timestamp("ms", "UTC"))), safe=False)
    for name, each in (("a", table), ("b", in_ms)):
        pq.write_table(each, folder / f"{name}.parquet", row_group_size=1)
    classic.createDataFrame(years.drop_columns("c")).coalesce(1).write.parquet(str(tmp_path / "c"))  # in INT96
    next((tmp_path / "c").glob("*.parquet")).rename(folder / "c.parquet")
    before = {name: classic.conf.get(name) for name in (_ZONE, "spark.sql.timestampType")}
    classic.conf.set(_ZONE, zone)
    try:
        for where, left_out in (
            ("t >= TIMESTAMP'1970-01-01 00:00:00Z'", 5),
            ("t > timestamp '2024-03-10 02:30:00'", None),
            ("t = TIMESTAMP'2024-11-03 01:30:00'", None),
            ("t < TIMESTAMP_LTZ'1883-11-18T12:03:58' OR t = TIMESTAMP'9999-12-31 23:59:59.999999 UTC'", None),
            ("t IN (TIMESTAMP'2024-11-03 06:30:00.000001+00:00', TIMESTAMP'1970')", None),
            ("t NOT IN (TIMESTAMP'2024-11-03 06:30:00 Europe/London')", 0),
            ("t BETWEEN TIMESTAMP'1969-12-31' AND TIMESTAMP'2024-03-10 06:59:59.999 UTC'", None),
            ("c >= TIMESTAMP_NTZ'1970-01-01 00:00:00'", 6),
            ("c = TIMESTAMP_NTZ'2024-03-10T06:59:59.999999' AND t IS NOT NULL", 18),
            ("c BETWEEN TIMESTAMP_NTZ'0001-01-01' AND TIMESTAMP_NTZ'2024-11-03 06:30:00'", 4),
        ):
            file_scan = scan(classic, folder, where=where)
            if where.startswith("t IN"):
                assert "joined by AND" in reader(file_scan, ["n"])
                file_scan = scan(classic, folder, where=where.replace("'1970'", "'1970-01-01'"))
            same_rows(file_scan, ["n", "t"])
            assert left_out in {None, file_scan.source(["n"]).left_out}, where
        for where, why in (
            ("t > TIMESTAMP_NTZ'2024-03-10 06:00:00'", "is timestamp_ntz; write TIMESTAMP_LTZ'2024-03-10 06:00:00'"),
            ("c > TIMESTAMP'2024-03-10 06:00:00'", "is timestamp; write TIMESTAMP_NTZ'2024-03-10 06:00:00'"),
            ("t > '2024-03-10'", "write TIMESTAMP_LTZ'2024-03-10'"),
            ("t > DATE'2024-03-10'", "write TIMESTAMP_LTZ'2024-03-10'"),
            ("t < TIMESTAMP'now'", "joined by AND"),
            ("t < TIMESTAMP'tomorrow'", "joined by AND"),
            ("t < current_timestamp()", "not a constant"),
            ("c < TIMESTAMP_NTZ'2024-3-1'", "joined by AND"),
            ("c > TIMESTAMP_NTZ'0000-12-31 00:00:00'", "joined by AND"),
        ):
            assert why in reader(scan(classic, folder, where=where), ["n"]), where
        # In New York there was no such time: as TIMESTAMP, which is compared then, it is 3:30.
        instants = scan(classic, folder, where="c = TIMESTAMP'2024-03-10 02:30:00'")
        file_scan = scan(classic, folder, where="t > TIMESTAMP'2024-03-10 02:30:00'")
        plain = bits(file_scan.df.select("n"))
        classic.conf.set(_ZONE, "Asia/Tokyo")
        assert "another one than when the scan was made" in reader(file_scan, ["n"])
        assert bits(file_scan.df.select("n")) == plain
        assert not reader(scan(classic, folder, where="n > 1"), ["n"])
        classic.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
        same_rows(scan(classic, folder, where="c > TIMESTAMP'2024-03-10 06:00:00'"), ["n", "c"])
        assert "is timestamp_ntz" in reader(scan(classic, folder, where="t > TIMESTAMP'2024-03-10 06:00:00'"), ["n"])
        classic.conf.set(_ZONE, zone)
        assert "another one than when the scan was made" in reader(instants, ["n"])
        same_rows(scan(classic, folder, where="t > TIMESTAMP'2024-03-10 06:00:00+09:00'"), ["n"])
    finally:
        for name, value in before.items():
            classic.conf.set(name, value)


@pytest.mark.every_turn
def test_decimals_that_spark_rounds_are_compared_by_spark(classic: Any, tmp_path: Path) -> None:
    """Spark compares decimals of many digits in a type with fewer digits behind the point, and alone knows the rows."""
    path = str(tmp_path / "decimals.parquet")
    least = decimal.Decimal(1).scaleb(-30)
    columns = {
        "d": pa.array([least + 1, decimal.Decimal(1), decimal.Decimal("2.5"), None], pa.decimal128(38, 30)),
        "e": pa.array([decimal.Decimal(1).scaleb(-38), 0, decimal.Decimal(-1).scaleb(-38), 0], pa.decimal128(38, 38)),
        "f": pa.array([decimal.Decimal("1.01"), 1, -1, None], pa.decimal128(20, 18)),
        "g": pa.array([decimal.Decimal(3_000_000_000) + decimal.Decimal(1).scaleb(-19)] * 4, pa.decimal128(30, 19)),
    }
    pq.write_table(pa.table(columns), path)
    for where in ("d IN (1)", "d NOT IN (1, 2.5)", "d BETWEEN 1 AND 10", "e = 0", "e > 0", "g IN (3000000000)"):
        assert "may round" in reader(scan(classic, path, where=where), ["d"]), where
    for where in ("d IN (1.0)", "d NOT IN (1.0, 2.5)", "d > 1.0", "e IS NULL", "f IN (1, 1.01)", "f > -1"):
        file_scan = scan(classic, path, where=where)
        same_rows(file_scan, file_scan.columns)
    for where, rows in (("d IN (1)", 2), ("g IN (3000000000)", 4)):
        assert scan(classic, path, where=where).df.count() == rows, "as Spark has it"


def test_damaged_files_are_left_to_spark_and_changed_ones_fail(classic: Any, tmp_path: Path) -> None:
    """Damaged and encrypted footers are left to Spark, and a file that has changed fails the query."""
    path = Path(two_files(tmp_path / "t", INTS, INTS))
    file_scan = scan(classic, path)
    source = file_scan.source(["k", "v"])
    pq.write_table(INTS.slice(1), path / "b.parquet")
    with pytest.raises(Exception, match=r"SOURCE_FILE.*was replaced after the query was planned"):
        read(source, file_scan, ["k", "v"]).collect()
    (path / "b.parquet").unlink()
    with pytest.raises(Exception, match=r"SOURCE_FILE.*is gone after the query was planned"):
        read(source, file_scan, ["k", "v"]).collect()
    assert "Arrow cannot read its footer" in reader(file_scan, ["k"])
    whole = (path / "a.parquet").read_bytes()
    (path / "b.parquet").write_bytes(whole[:-12] + bytes(4) + whole[-8:])
    assert "b.parquet" in reader(scan(classic, path / "*"), ["k"])
    (path / "b.parquet").write_bytes(whole[:4] + bytes(200) + whole[204:])
    file_scan = scan(classic, path / "a.parquet", columns=["k", "v"])
    (path / "b.parquet").replace(path / "a.parquet")
    with pytest.raises(Exception, match=r"SOURCE_FILE.*the file \S+a\.parquet cannot be read: .*; if it is damaged"):
        read(file_scan.source(["k", "v"]), file_scan, ["k", "v"]).collect()


@pytest.mark.every_turn
def test_damaged_pages_fail_the_query(classic: Any, tmp_path: Path) -> None:
    """A page that has another checksum than its own fails the query, though it can be read."""
    path = tmp_path / "a.parquet"
    numbers = pa.table({"k": [1, 5, 9]})
    pq.write_table(numbers, path, write_page_checksum=True, use_dictionary=False, compression="none")
    file_scan = scan(classic, path)
    same_rows(file_scan, ["k"])
    before = path.read_bytes()
    after = before.replace((5).to_bytes(8, "little"), (7).to_bytes(8, "little"))
    assert before != after
    path.write_bytes(after)
    with pytest.raises(Exception, match=r"SOURCE_FILE.*a\.parquet cannot be read: .*CRC checksum"):
        read(scan(classic, path).source(["k"]), file_scan, ["k"]).collect()


def test_negative_times_of_int96_have_the_values_of_spark(classic: Any, tmp_path: Path) -> None:
    """Old versions of Arrow write the hour before 1970 as minus one hour, which Arrow reads as 584 years later."""
    hour = 3_600_000_000_000
    times = pa.table({"t": pa.array([hour // 1000], pa.timestamp("us"))})
    times = times.replace_schema_metadata({"org.apache.spark.version": "4.0.0"})  # as Arrow keeps it
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "compression": "none"}
    pq.write_table(times, path, use_deprecated_int96_timestamps=True, **options)
    assert b"org.apache.spark.version" in pq.read_metadata(path).metadata
    before = path.read_bytes()
    after = before.replace(hour.to_bytes(8, "little"), (-hour).to_bytes(8, "little", signed=True))
    assert before != after
    path.write_bytes(after)
    assert pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()["t"][0].as_py().year > 2500
    file_scan = scan(classic, path)
    assert [row[0] for row in file_scan.df.selectExpr("unix_micros(t)").collect()] == [-hour // 1000]
    assert "INT96, whose signs are known only in files by Spark" in reader(file_scan, ["t"])
    # INT96 is an instant, and this scan has times without a zone.
    mixed_path = tmp_path / "mixed"
    classic.createDataFrame(times.cast(pa.schema([("t", pa.timestamp("us", "UTC"))]))).write.parquet(str(mixed_path))
    pq.write_table(times, mixed_path / "a.parquet")
    file_scan = scan(classic, mixed_path)
    assert file_scan.schema["t"].dataType == st.TimestampNTZType()
    assert "is INT96 in Parquet" in reader(file_scan, ["t"])


def test_days_of_old_versions_have_the_values_of_spark(classic: Any, tmp_path: Path) -> None:
    """Before version 3, Spark counted all days in the old calendar, and did not tell it."""
    path = tmp_path / "a.parquet"
    day = datetime.date(1500, 3, 1)
    for version, is_old in (("2.4.8", True), ("3.0.0", False)):
        days = pa.table({"d": pa.array([day], pa.date32())})
        pq.write_table(days.replace_schema_metadata({"org.apache.spark.version": version}), path)
        file_scan = scan(classic, path)
        assert (file_scan.df.collect()[0][0] != day) == is_old
        assert (_OLD_CALENDAR in reader(file_scan, ["d"])) == is_old


def test_errors_tell_what_to_write(spark: Any, tmp_path: Path) -> None:
    """A scan is no DataFrame, and what Spark refuses of its arguments is an error of ours."""
    path = two_files(tmp_path / "t", INTS, INTS)
    file_scan = scan(spark, path)
    for name in ("select", "where", "groupBy", "write"):
        with pytest.raises(AttributeError, match=rf"has no {name}; choose rows .* where=.*\.df\.{name}, whose rows"):
            getattr(file_scan, name)
    with pytest.raises(AttributeError, match="a scan has no selekt"):
        _ = file_scan.selekt
    assert not hasattr(file_scan, "select")
    for where in ("missing > 1", "k >", "v"):
        with pytest.raises(RejectedError, match=r"cannot evaluate where='") as excinfo:
            scan(spark, path, where=where, columns=["k"])
        assert excinfo.value.code == "SCHEMA_MISMATCH"
        assert where in excinfo.value.message
    file_scan = scan(spark, path, columns=["K", "v"])
    assert file_scan.columns == ["K", "v"]
    assert "'K' is not exactly the name of a column" in reader(file_scan, ["K", "v"])
    with pytest.raises(RejectedError, match=r"cannot choose columns=\['k', 'missing'\].*missing") as excinfo:
        scan(spark, path, columns=["k", "missing"])
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_the_folder_of_a_table_is_refused(spark: Any, tmp_path: Path) -> None:
    """Its files also have rows that the table has deleted. Folders that are only named alike are read."""
    for kind, log, remedy in (
        ("Delta", "_delta_log/00000000000000000000.json", 'table="delta.`{}`"'),
        ("Hudi", ".hoodie/hoodie.properties", "with its name in the catalogue"),
        ("Iceberg", "metadata/v1.metadata.json", "with its name in the catalogue"),
    ):
        table = tmp_path / f"a b {kind}"
        part = table / "day=1" / "n=2"
        part.mkdir(parents=True)
        pq.write_table(INTS, part / "a.parquet")
        path = table / log
        path.parent.mkdir()
        for folder in (table, part):
            assert len(scan(spark, folder).df.collect()) == INTS.num_rows
        path.write_text("{}\n")
        other = tmp_path / f"other {kind}"
        other.mkdir()
        pq.write_table(INTS, other / "a.parquet")
        for folder in (
            [table],
            [part],
            [f"{table}/"],
            [tmp_path / f"* {kind}"],
            [other, part],
            [part, other, table],
        ):
            with pytest.raises(RejectedError, match=f"is a table of {kind}, and its files also have rows") as excinfo:
                scan(spark, folder)
            assert excinfo.value.code == "SIGNATURE"
            assert remedy.format(table) in excinfo.value.message
        assert len(scan(spark, part / "a.parquet").df.collect()) == INTS.num_rows


def test_a_table_without_its_reader_is_refused(spark: Any) -> None:
    """Spark says only that there is no such table."""
    for name, remedy in (
        ("delta.`/lake/orders`", "the session has no Delta, .* package delta-spark .*DeltaSparkSessionExtension"),
        ("HUDI . `/lake/orders`", "the session has no Hudi, .* package hudi-spark-bundle"),
        ("iceberg.`/lake/orders`", "the session has no Iceberg, .* package iceberg-spark-runtime"),
    ):
        with pytest.raises(RejectedError, match=remedy) as excinfo:
            scan(spark, table=name)
        assert excinfo.value.code == "SETTINGS"
    for name in ("missing", "parquet.`/lake/orders`", "delta.missing"):
        with pytest.raises(AnalysisException, match=r"/lake/orders|missing"):
            scan(spark, table=name)


@pytest.mark.parametrize("plaintext", [True, False])
def test_encrypted_files_are_left_to_spark(plaintext: bool, classic: Any, tmp_path: Path) -> None:
    """An encrypted file is left to Spark."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[name-defined]
        def __init__(self, _config: Any) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _name: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, key: bytes, _name: str) -> bytes:
            return base64.b64decode(key)

    encryption_config = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["v"]}, plaintext_footer=plaintext
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), encryption_config)
    path = Path(two_files(tmp_path / "t", INTS, INTS))
    with pq.ParquetWriter(path / "b.parquet", INTS.schema, encryption_properties=properties) as writer:
        writer.write_table(INTS)
    text = "encrypted file" if plaintext else "Arrow cannot read its footer"
    assert text in reader(scan(classic, path), ["k"])


def printed_plan(capsys: pytest.CaptureFixture[str], explain: Any) -> str:
    """Return what `explain` prints of the reader."""
    capsys.readouterr()
    explain()
    return next((line for line in capsys.readouterr().out.splitlines() if "reader:" in line), "")


@pytest.mark.every_turn
@pytest.mark.every_way
def test_groups_equal_those_of_rows_that_spark_reads(
    spark: Any, functions: Any, tmp_path: Path, rows_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tasks that read their rows make the groups of those that get them from Spark, embedded and from servers."""
    table = pa.concat_tables([INTS] * 40)
    file_scan = scan(spark, two_files(tmp_path / "t", table, table.slice(7)), where="v > 1")
    uses = {"x": functions["weighted_avg"]("k", "v"), "n": functions["count"](), "m": functions["max"]("k")}
    assert "tasks read 1" in printed_plan(capsys, lambda: group_by(file_scan, "v").explain(**uses))
    assert rows_of(group_by(file_scan, "v").agg(**uses)) == rows_of(
        group_by(file_scan.df, "v", plan="fold").agg(**uses)
    )
    assert rows_of(group_by(file_scan).agg(**uses)) == rows_of(group_by(file_scan.df, plan="fold").agg(**uses))


@pytest.mark.every_turn
def test_keys_may_be_texts_with_a_dictionary(classic: Any, embedded: Any, tmp_path: Path, rows_of: Any) -> None:
    """Keys of few texts are read as a dictionary, and make the same groups, also with the same texts as arguments."""
    rng = random.Random(5)
    texts = ["", "a", "ä", None, "b" * 20]
    table = pa.table(
        {
            "s": pa.array([rng.choice(texts) for _ in range(9_000)]),
            "t": pa.array([rng.choice(texts) for _ in range(9_000)], pa.large_string()),
            "v": pa.array([rng.randint(-9, 9) for _ in range(9_000)], pa.int64()),
            "w": pa.array([rng.randint(1, 9) for _ in range(9_000)], pa.int32()),
        }
    )
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet", row_group_size=3_000)
    pq.write_table(table.slice(0, 5_000), tmp_path / "t" / "b.parquet", use_dictionary=["s"])
    uses = {"x": embedded["weighted_avg"]("v", "w"), "m": embedded["max"]("t"), "n": embedded["count"]("v")}
    for where, keys in ((None, ("s",)), ("w = 3", ("s", "t")), ("s <> 'a'", ("t", "s")), (None, ("t", "w", "s"))):
        file_scan = scan(classic, tmp_path / "t", where=where)
        assert file_scan.source([*keys, "v"], len(keys)).keys == set(keys) & (
            {"t"} if where == "s <> 'a'" else {"s", "t"}
        )
        assert rows_of(group_by(file_scan, *keys).agg(**uses)) == rows_of(
            group_by(file_scan.df, *keys, plan="fold").agg(**uses)
        )


@pytest.mark.every_turn
def test_statements_over_a_scan_have_the_rows_of_spark(
    classic: Any, embedded: Any, tmp_path: Path, rows_of: Any
) -> None:
    """A block over the view of a scan is read by its tasks if it reads columns only, and has Spark's rows."""
    table = INTS.append_column("true", INTS["k"])
    file_scan = scan(classic, two_files(tmp_path / "t", table, table.slice(1)), where="v > 1")
    file_scan.create_view("scanned")
    file_scan.df.createOrReplaceTempView("read")
    register(classic, embedded, {"weighted_avg": "scan_average"})
    select, group = "SELECT k, scan_average(k, v) AS x, count(*) AS n FROM", "GROUP BY k"
    for sql_text, reader_text in (
        (f"{select} scanned {group} HAVING count(*) > 0 ORDER BY k", "tasks read"),
        (f"{select} scanned WHERE v < 5 AND k IS NOT NULL {group}", "tasks read"),
        (f"SELECT x + 1 FROM ({select} SCANNED {group})", "tasks read"),
        (f"{select} scanned WHERE v < 4.5 {group}", "Spark, because the condition"),
        ("SELECT k + 1, scan_average(k, v) FROM scanned GROUP BY k + 1", ""),
        ("SELECT true, scan_average(k, v) FROM scanned GROUP BY true", ""),
        (f"WITH scanned AS (SELECT 7L AS k, 8 AS v) {select} scanned {group}", ""),
        (f"{select} scanned AS a {group}", ""),
        (f"{select} read {group}", ""),
    ):
        why = sql(classic, sql_text, explain=True, plan="fold").collect()[0]["why"]
        assert reader_text in why, sql_text
        assert ("reader:" in why) == bool(reader_text), sql_text
        plain = sql(classic, re.sub("scanned", "read", sql_text, flags=re.IGNORECASE), plan="fold")
        assert list(map(repr, rows_of(sql(classic, sql_text, plan="fold")))) == list(map(repr, rows_of(plain))), (
            sql_text
        )
    other = classic.createDataFrame([(1, 2)], "k bigint, v int")
    other.createOrReplaceTempView("scanned")
    statement = f"{select} scanned {group}"
    assert "reader:" not in sql(classic, statement, explain=True, plan="fold").collect()[0]["why"]
    assert [tuple(row) for row in sql(classic, statement, plan="fold").collect()] == [(1, 1, 1)]


def test_explain_tells_why_a_read_is_left_to_spark(
    classic: Any, embedded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where tasks do not read what they fold, `explain` tells why."""
    file_scan = scan(classic, two_files(tmp_path / "t", INTS, INTS))
    count, average = embedded["count"](), embedded["weighted_avg"]("k", "v")
    for explain, why in (
        (lambda: group_by(file_scan, "k + 1").explain(x=average), "expressions"),
        (lambda: group_by(file_scan, "k").explain(x=average.where("v > 1")), "expressions"),
        (lambda: group_by(file_scan).explain(n=count), "queries without columns"),
        (lambda: group_by(file_scan, "k", plan="lifted").explain(x=embedded["sum"]("v")), "plan='lifted'"),
        (lambda: group_by(file_scan, "k", on_error="isolate").explain(x=average), "errors are isolated"),
        (lambda: over(file_scan, "k", order_by="v").explain(x=average), "shuffled before"),
        (lambda: group_by(scan(classic, tmp_path / "t", where="v > 1.5"), "k").explain(x=average), "not a constant"),
    ):
        line = printed_plan(capsys, explain)
        assert "Spark, because" in line
        assert why in line
    assert printed_plan(capsys, lambda: group_by(file_scan.df, "k").explain(x=average)) == ""
    assert over(file_scan, "k", order_by="v").agg(x=average).count() == 2 * len(INTS)


def test_wrong_arguments_are_refused(classic: Any, tmp_path: Path) -> None:
    """Arguments of other kinds are refused, and a file system that would carry its credentials."""
    path = two_files(tmp_path / "t", INTS, INTS)
    for arguments, why in (
        ({"files": []}, "a path or a list of paths"),
        ({"files": 7}, "a path or a list of paths"),
        ({"files": path, "where": 7}, "a condition as text"),
        ({"files": path, "columns": "k"}, "a list of names"),
        ({"files": path, "filesystem": fs.LocalFileSystem()}, "credentials"),
    ):
        with pytest.raises(RejectedError, match=why):
            scan(classic, **arguments)
    file_scan = scan(classic, path, filesystem=fs.LocalFileSystem)
    same_rows(file_scan, ["k", "v"])


def test_spark_reads_the_footers_of_many_files_in_tasks(
    classic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of Spark read the footers of many files."""
    monkeypatch.setattr(source_module, "_FOOTERS_MAX", 1)
    path = two_files(tmp_path / "t", INTS, INTS.select(["k"]))
    file_scan = scan(classic, path, where="k = 5")
    assert file_scan.source(["k"]).left_out == 2
    same_rows(file_scan, ["k", "v"])
    (Path(path) / "c.parquet").write_bytes(b"PAR1")
    assert "Arrow cannot read its footer" in reader(scan(classic, path), ["k"])


_KEYS = "tinyint int bigint double float string date timestamp_us timestamp_ntz_ms boolean decimal(18,0) binary".split()  # noqa: SIM905


_CONDITIONS = {
    "v": (
        "v > 0",
        "w IS NOT NULL AND v <> 3",
        "v > 90 OR w < -90 OR p = 1",
        "(v = 1 OR v IS NULL) AND (p = 2 OR w > 0)",
    ),
    "p": ("p = 1", "v BETWEEN -5 AND 5 AND p IN (1, 2)", "p = 2 AND v > 0 OR p = 1 AND v < 0"),
    "string": ("string > 'a' OR string = ''", "string < 'b' AND v > 0"),
    "decimal(18,0)": ("`decimal(18,0)` > 0 OR v = 4", "`decimal(18,0)` <= -999999999999999999 OR `decimal(18,0)` = 0"),
    "date": ("date >= DATE'2000-01-01' OR date < DATE'1900-01-01'",),
    "boolean": ("boolean = true OR v < 0",),
    "timestamp_us": ("timestamp_us >= TIMESTAMP'1970-01-01' OR timestamp_us < TIMESTAMP'1600-01-01 12:00:00 UTC'",),
    "timestamp_ntz_ms": ("timestamp_ntz_ms < TIMESTAMP_NTZ'2000-01-01' AND v <> 0",),
}
_TABLES = 10


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(10, 200, _TABLES))]
)
def test_random_tables_have_the_rows_that_spark_reads(first: int, classic: Any, embedded: Any, tmp_path: Path) -> None:
    """Queries over scans have the rows of the same queries over Spark's read, for ten tables in one job."""
    queries: dict[str, DataFrame] = {}
    for seed in range(first, first + _TABLES):
        ours, plain, plan_text = _random_queries(classic, embedded, tmp_path / str(seed), random.Random(seed))
        queries |= {f"{seed}, ours, {plan_text}": ours, f"{seed}, Spark, {plan_text}": plain}
    check_pairs(queries)


def check_pairs(queries: Mapping[str, DataFrame]) -> None:
    """Check that each two queries have the same rows, which one job computes; and that there are rows."""
    rows: dict[str, list[str]] = {name: [] for name in queries}
    for name, row in reduce(DataFrame.union, starmap(_with_names, queries.items())).collect():
        rows[name].append(str(row))
    names = list(queries)
    for our_name, plain_name in zip(names[::2], names[1::2], strict=True):
        assert sorted(rows[our_name]) == sorted(rows[plain_name]), our_name
    assert sum(map(len, rows.values())) > len(queries)


def _with_names(name: str, df: DataFrame) -> DataFrame:
    texts = ", ".join(_text(each.name, each.dataType) for each in df.schema)
    return df.selectExpr(f"'{name}' AS name", f"array({texts}) AS values")


def _random_queries(spark: Any, functions: Any, folder: Path, rng: random.Random) -> tuple[DataFrame, DataFrame, str]:
    """Write a table; return a query over its scan, the same over Spark's read, and what it groups by."""
    file_scan, types = random_scan(spark, folder, rng)
    assert reader(file_scan, file_scan.columns) == ""
    uses = {"x": functions["weighted_avg"]("v", "w"), "n": functions["count"]("w"), "s": functions["sum"]("v")}
    keys = rng.sample([*types, "p"], rng.randint(0, 2))
    ours, plain = group_by(file_scan, *keys).agg(**uses), group_by(file_scan.df, *keys, plan="fold").agg(**uses)
    return ours, plain, f"by {', '.join(keys) or 'nothing'}"


def random_scan(spark: Any, folder: Path, rng: random.Random, nested_columns: str = "") -> tuple[Scan, list[str]]:
    """Write a table of partitions; return its scan with a random condition, and the names of four flat columns.

    Args:
        spark: The session.
        folder: The folder of the table.
        rng: The random numbers that choose.
        nested_columns: The names of nested columns, with a space between them. With these, there is also a column
            `at`, whose values are all different.
    """
    types = rng.sample(_KEYS, 4)
    share, rows = rng.random(), rng.randint(0, 400)
    table = table_of(" ".join([*types, *nested_columns.split()]), rows, rng, null_share=share)
    for name in ("v", "w"):
        values = [rng.choice([None, rng.randint(-99, 99)]) for _ in range(table.num_rows)]
        table = table.append_column(name, pa.array(values, pa.int64() if name == "v" else pa.int32()))
    if rng.random() < 0.5:
        table = table.sort_by("v")  # so that row groups are left out
    first = rng.randint(1, 2)
    for at in range(rng.randint(1, 4)):
        # Spark takes the columns of the first file.
        part_folder = folder / f"p={rng.randint(first, 2) if at else first}"
        part_folder.mkdir(exist_ok=True, parents=True)
        part = table.slice(rng.randint(0, 50), rng.randint(0, 300))
        if at and rng.random() < 0.3:
            part = part.drop_columns([rng.choice([*types, "w"])])
        if nested_columns:
            part = part.append_column("at", pa.array(range(at * 1_000, at * 1_000 + len(part)), pa.int32()))
        options = {"row_group_size": rng.randint(1, 100), "store_decimal_as_integer": rng.random() < 0.5}
        pq.write_table(part, part_folder / f"{at}.parquet", **options)
    conditions = [each for name in ("v", "p", *types) for each in _CONDITIONS.get(name, ())]
    return scan(spark, folder, where=rng.choice([None, *conditions])), types
