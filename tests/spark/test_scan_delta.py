"""`scan` of tables of Delta: the rows belong to the version that Spark reads, whoever reads them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.maven import MISSING, client
from tests.ports import free_port
from tests.spark import scan_delta_jobs as jobs
from tests.spark_process import SparkProcess, spark_process
from tests.spark_sessions import SPARK

JARS = Path(__file__).with_name(f"jars-delta-{'.'.join(map(str, SPARK))}.txt")
# The package of Spark 3.5 has no server of Connect.
HAS_CONNECT = SPARK >= (4, 0)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.surface,
    pytest.mark.skipif(not JARS.exists(), reason=f"Delta has no runtime for Spark {'.'.join(map(str, SPARK))}"),
]


@pytest.fixture(scope="module")
def port() -> int:
    """The port of the server of Connect."""
    return free_port()


@pytest.fixture(scope="module")
def spark(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A driver whose own catalogue is one of Delta, and which is a server of Connect, too."""
    assert client() is not None, MISSING
    folder = tmp_path_factory.mktemp("delta")
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # Tasks for each read of its log, and for each list of its files: by default 50 and 10,000.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    }
    if HAS_CONNECT:
        settings |= {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        }
    with spark_process(folder, JARS, settings) as process:
        yield process


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The name of a table that is not there yet. Its folder has characters that addresses encode."""
    return f"delta.`{tmp_path}/a b%+ü`"


ROWS = "SELECT id AS k, int(id % 7) AS v, int(id % 3) AS w FROM range({})"


def make_table(spark: SparkProcess, table: str, more: str = "", columns: str = "k BIGINT, v INT, w INT") -> None:
    spark.ask(jobs.run, f"CREATE TABLE {table} ({columns}) USING delta {more}")


def folder_of(table: str) -> Path:
    return Path(table.split("`")[1])


def is_read(actual: jobs.Reads) -> list[str]:
    """Check that tasks read the rows of Spark, and return these."""
    why, ours, plain = actual
    assert why == ""
    assert ours == plain
    return plain


def test_each_version_has_the_rows_that_spark_reads(spark: SparkProcess, table: str) -> None:
    """Removed files are not read, versions behind a checkpoint are, and a scan keeps its version."""
    make_table(spark, table, "TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    assert is_read(spark.ask(jobs.reads, table)) == []
    for number in range(5):
        spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(10 + number)}")
        assert len(is_read(spark.ask(jobs.reads, table))) == sum(range(10, 11 + number))
    spark.ask(jobs.run, f"DELETE FROM {table} WHERE k > 8")
    assert len(is_read(spark.ask(jobs.reads, table))) == 45
    assert list(folder_of(table).glob("_delta_log/*.checkpoint.parquet"))
    after = (f"INSERT INTO {table} {ROWS.format(3)}", f"OPTIMIZE {table}", f"ALTER TABLE {table} ADD COLUMN x INT")
    assert len(is_read(spark.ask(jobs.reads_after, table, after))) == 45
    # A column that no file has is NULL.
    assert len(is_read(spark.ask(jobs.reads, table, ["x", "k"]))) == 48
    ours, plain = spark.ask(jobs.folds, table, "w", "k", "v")
    assert ours == plain != []


def test_values_of_partitions_come_from_the_log(spark: SparkProcess, table: str) -> None:
    """The values of partitions come from the log, and files of which no row passes are left out."""
    columns = "k BIGINT, day DATE, v INT, city STRING, yes BOOLEAN, small SMALLINT"
    make_table(spark, table, "PARTITIONED BY (city, day, yes, small)", columns)
    values = (
        "(1, DATE'2026-01-01', 1, 'Köln %2F a/b', true, 7S), (2, NULL, 2, '', false, NULL), "
        "(3, DATE'0001-01-01', 3, '007', NULL, -7S), (4, DATE'9999-12-31', 4, NULL, true, 0S)"
    )
    spark.ask(jobs.run, f"INSERT INTO {table} VALUES {values}")
    assert len(is_read(spark.ask(jobs.reads, table))) == 4
    for where, rows in (
        ("day = DATE'2026-01-01'", 1),
        ("city IS NULL", 2),
        ("city = '007' AND v = 3", 1),
        ("city <> '007'", 1),
        ("small IN (7, 0) AND yes = true", 2),
        ("day < DATE'2000-01-01' AND v > 3", 0),
        ("day IS NULL AND city = 'x'", 0),
    ):
        assert len(is_read(spark.ask(jobs.reads, table, None, where))) == rows, where
        assert spark.ask(jobs.files_left_out, table, where) >= 4 - max(rows, 1), where
    assert spark.ask(jobs.files_left_out, table, "v = 3") == 0


def test_mapped_columns_have_the_values_of_spark(spark: SparkProcess, table: str) -> None:
    """Columns that are renamed, dropped and made again have the values that they have for Spark."""
    make_table(spark, table, "PARTITIONED BY (w) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(20)}")
    for statement in (
        f"ALTER TABLE {table} RENAME COLUMN v TO old",
        f"ALTER TABLE {table} RENAME COLUMN k TO v",
        f"ALTER TABLE {table} RENAME COLUMN old TO k",
        f"ALTER TABLE {table} RENAME COLUMN w TO part",
    ):
        spark.ask(jobs.run, statement)
    assert len(is_read(spark.ask(jobs.reads, table, None, "k > 3 AND v < 12 AND part <> 1"))) == 3
    spark.ask(jobs.run, f"ALTER TABLE {table} DROP COLUMN v", f"ALTER TABLE {table} ADD COLUMN v STRING")
    spark.ask(jobs.run, f"INSERT INTO {table} (k, part, v) VALUES (1, 2, 'new')")
    assert len(is_read(spark.ask(jobs.reads, table))) == 21
    ours, plain = spark.ask(jobs.folds, table, "v", "k", "part")
    assert ours == plain != []


def test_values_of_partitions_in_files_are_ignored(spark: SparkProcess, table: str, tmp_path: Path) -> None:
    """Files that also store columns of partitions have the values of the log, whatever they store."""
    make_table(spark, table, "PARTITIONED BY (w) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(20)}")
    other = tmp_path / "other"  # Spark knows nothing of it yet
    shutil.copytree(folder_of(table), other, ignore=shutil.ignore_patterns("*.crc"))
    commit = other / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for add in (each["add"] for each in lines if "add" in each):
        path = other / unquote(add["path"])
        stored_table = pq.ParquetFile(path).read()
        (name,) = add["partitionValues"]
        pq.write_table(stored_table.append_column(name, pa.array([1] * len(stored_table), pa.int32())), path)
        add["size"] = path.stat().st_size
    commit.write_text("\n".join(map(json.dumps, lines)))
    assert len(is_read(spark.ask(jobs.reads, f"delta.`{other}`"))) == 20
    assert len(is_read(spark.ask(jobs.reads, f"delta.`{other}`", None, "w <> 1 AND v > 2"))) == 7
    assert spark.ask(jobs.files_left_out, f"delta.`{other}`", "w <> 1") > 0


def test_a_table_mapped_later_has_the_columns_of_its_first_files(spark: SparkProcess, table: str) -> None:
    """A table that is mapped by names later has the columns of its first files."""
    make_table(spark, table)
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(9)}")
    properties = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    spark.ask(jobs.run, f"ALTER TABLE {table} SET TBLPROPERTIES ({properties})")
    spark.ask(jobs.run, f"ALTER TABLE {table} RENAME COLUMN v TO x")
    assert len(is_read(spark.ask(jobs.reads, table))) == 9


def test_columns_mapped_by_numbers_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """Columns that are mapped by their numbers are left to Spark."""
    make_table(spark, table, "TBLPROPERTIES ('delta.columnMapping.mode' = 'id')")
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(9)}")
    why, _, plain = spark.ask(jobs.reads, table)
    assert "mapped by id" in why
    assert len(plain) == 9


def test_files_with_deleted_rows_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """Files with deleted rows are left to Spark, and read by tasks before they have any and when rewritten."""
    make_table(spark, table, "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.ask(jobs.run, f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM ({ROWS.format(50)})")
    assert len(is_read(spark.ask(jobs.reads, table))) == 50
    # The scan is of the version in which the same file has all its rows.
    assert len(is_read(spark.ask(jobs.reads_after, table, (f"DELETE FROM {table} WHERE k = 3",)))) == 50
    why, _, plain = spark.ask(jobs.reads, table)
    assert "deletion vector" in why
    assert len(plain) == 49
    spark.ask(jobs.run, f"INSERT OVERWRITE {table} SELECT * FROM {table}")
    assert len(is_read(spark.ask(jobs.reads, table))) == 49
    spark.ask(jobs.run, f"DELETE FROM {table} WHERE k = 4", f"RESTORE {table} TO VERSION AS OF 1")
    assert len(is_read(spark.ask(jobs.reads, table))) == 50


def test_changes_between_plan_and_read_change_no_row(spark: SparkProcess, table: str) -> None:
    """The rows belong to the version, or the query fails."""
    make_table(spark, table)
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(50)}")
    rewriting_statements = (f"UPDATE {table} SET v = 100", f"INSERT INTO {table} VALUES (0, 0, 0)", f"OPTIMIZE {table}")
    assert spark.ask(jobs.plan_text, table, ["k", "v"], rewriting_statements) == "the same rows"
    vacuuming_statements = (f"DELETE FROM {table} WHERE k < 40", f"VACUUM {table} RETAIN 0 HOURS")
    assert "gone after the query was planned" in spark.ask(jobs.plan_text, table, ["k", "v"], vacuuming_statements)


def test_a_replaced_table_is_another_table(spark: SparkProcess) -> None:
    """A table that is dropped and made again with as many versions is another one."""
    name = f"t{uuid.uuid4().hex}"
    make_table(spark, name)
    spark.ask(jobs.run, f"INSERT INTO {name} {ROWS.format(5)}")
    assert len(is_read(spark.ask(jobs.reads, name))) == 5
    why = spark.ask(jobs.why_after_replacement, name, ROWS.format(6))
    assert "was replaced" in why


def test_only_plain_tables_of_delta_are_read_by_tasks(spark: SparkProcess, table: str) -> None:
    """Tasks read a table of a catalogue only if it is known to be nothing but a table of Delta."""
    name = f"t{uuid.uuid4().hex}"
    make_table(spark, f"default.{name}", f"LOCATION '{folder_of(table)}'")
    spark.ask(jobs.run, f"INSERT INTO {name} {ROWS.format(9)}")
    for each in (name, f"`{name}`", f"spark_catalog.default.{name}", table):
        assert len(is_read(spark.ask(jobs.reads, each))) == 9
    spark.ask(jobs.run, f"CREATE VIEW {name}_v AS SELECT * FROM {name} WHERE k < 4")
    spark.ask(jobs.run, f"CREATE TABLE {name}_p USING parquet AS SELECT * FROM {name}")
    for each, rows, text in ((f"{name}_v", 4, "not known as a table of Delta"), (f"{name}_p", 9, "parquet")):
        why, _, plain = spark.ask(jobs.reads, each)
        assert text in why
        assert len(plain) == rows
    # A temporary view hides the table of its name.
    spark.ask(jobs.run, f"CREATE TEMPORARY VIEW {name} AS SELECT * FROM {name}_p WHERE k < 3")
    why, _, plain = spark.ask(jobs.reads, name)
    assert "not known as a table of Delta" in why
    assert len(plain) == 3


def test_tables_with_row_filters_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """Of a table to which its catalogue adds a condition, tasks do not read the files, which have all rows."""
    make_table(spark, table)
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(9)}")
    assert len(is_read(spark.ask(jobs.reads, table))) == 9
    why, _, plain = spark.ask(jobs.reads_filtered, table, "k < 3")
    assert "more than the files of its folder" in why
    assert len(plain) == 3


def test_logs_that_tasks_cannot_read_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """A log with something unknown, or whose files are not as it tells, is left to Spark."""
    make_table(spark, table)
    spark.ask(jobs.run, f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM ({ROWS.format(9)})")
    commit = folder_of(table) / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    (file,) = (each["add"] for each in lines if "add" in each)
    for change, text in (
        (_change_size, "the log tells of"),
        (_mark_deleted, "other files than Spark"),
        (_twice, "twice in one"),
    ):
        changed_lines = json.loads(json.dumps(lines))
        change(changed_lines, file["path"])
        text_before = commit.read_text()
        result = spark.ask(jobs.reads_with, table, str(commit), "\n".join(map(json.dumps, changed_lines)))
        assert text in result
        commit.write_text(text_before)


def _change_size(lines: list[dict[str, Any]], _path: str) -> None:
    next(each["add"] for each in lines if "add" in each)["size"] += 1


def _mark_deleted(lines: list[dict[str, Any]], _path: str) -> None:
    lines[:] = [each for each in lines if "add" not in each]


def _twice(lines: list[dict[str, Any]], _path: str) -> None:
    lines.append(next(each for each in lines if "add" in each))


@pytest.mark.skipif(not HAS_CONNECT, reason="Spark 3.5 has no server of Connect")
def test_a_client_of_connect_gets_the_rows_of_spark(port: int, spark: SparkProcess, table: str) -> None:
    """A client of Connect, which may not see the files, has the log read by a task, and gets the same rows."""
    make_table(spark, table, "PARTITIONED BY (w) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(20)}", f"ALTER TABLE {table} RENAME COLUMN v TO x")
    spark.ask(jobs.run, f"DELETE FROM {table} WHERE k = 3")
    ask = partial(spark.ask, jobs.over_connect, port)
    assert len(is_read(ask(jobs.reads, table))) == 19
    assert len(is_read(ask(jobs.reads, table, ["k", "w"], "w = 1 AND x > 2"))) == 4
    assert ask(jobs.files_left_out, table, "w = 1") > 0
    ours, plain = ask(jobs.folds, table, "w", "k", "x")
    assert ours == plain != []
    change = (f"INSERT INTO {table} {ROWS.format(3)}", f"DELETE FROM {table} WHERE k > 8")
    assert len(is_read(ask(jobs.reads_after, table, change))) == 19
    spark.ask(jobs.run, f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.ask(jobs.run, f"OPTIMIZE {table}", f"DELETE FROM {table} WHERE k = 4")
    why, _, rows = ask(jobs.reads, table)
    assert "deletion vector" in why
    assert len(rows) == 10
    missing_table = "delta.`/there is no such folder`"
    assert "no such folder" in ask(jobs.error_of, missing_table)


def test_shallow_clones_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """A shallow clone has the files of another table, and is left to Spark."""
    make_table(spark, table)
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(9)}")
    clone = f"delta.`{folder_of(table)}_clone`"
    spark.ask(jobs.run, f"CREATE TABLE {clone} SHALLOW CLONE {table}")
    why, _, plain = spark.ask(jobs.reads, clone)
    assert "not in its folder" in why
    assert len(plain) == 9
    shutil.rmtree(folder_of(clone))


def test_older_versions_that_a_name_tells_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """An older version that a name tells is left to Spark, and never the newest one."""
    make_table(spark, table)
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(4)}", f"INSERT INTO {table} {ROWS.format(5)}")
    why, _, plain = spark.ask(jobs.reads, f"{table[:-1]}@v1`")
    assert "not known as a table of Delta" in why
    assert len(plain) == 4
    assert len(is_read(spark.ask(jobs.reads, table))) == 9
    spark.ask(jobs.run, f"RESTORE {table} TO VERSION AS OF 1")
    assert len(is_read(spark.ask(jobs.reads, table))) == 4


def test_checkpoints_of_version_2_are_left_to_spark(spark: SparkProcess, table: str) -> None:
    """A table with checkpoints in several files is left to Spark."""
    make_table(spark, table, "TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2')")
    for number in range(4):
        spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(number + 1)}")
    why, _, plain = spark.ask(jobs.reads, table)
    assert "v2Checkpoint" in why
    assert len(plain) == 10


def test_columns_that_became_wider_have_the_values_of_spark(spark: SparkProcess, table: str) -> None:
    """Files from before a column became wider are left to Spark, for this column alone; values are never cut."""
    make_table(spark, table, "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(7)}", f"ALTER TABLE {table} ALTER COLUMN v TYPE BIGINT")
    spark.ask(jobs.run, f"INSERT INTO {table} VALUES (1, 5000000000, 2)")
    why, _, plain = spark.ask(jobs.reads, table)
    assert "only Spark reads as bigint" in why
    assert len(plain) == 8
    assert len(is_read(spark.ask(jobs.reads, table, ["k", "w"]))) == 8


def test_columns_that_writers_add_have_the_values_of_spark(spark: SparkProcess, table: str) -> None:
    """Columns that a write has added are NULL in older files, also between other columns and as members."""
    make_table(spark, table, "PARTITIONED BY (w)")
    spark.ask(jobs.run, f"INSERT INTO {table} {ROWS.format(7)}")
    spark.ask(jobs.run, "SET spark.databricks.delta.schema.autoMerge.enabled = true")
    spark.ask(jobs.run, f"INSERT INTO {table} BY NAME SELECT 9L AS k, 'x' AS s, 1 AS w, named_struct('a', 1) AS m")
    spark.ask(jobs.run, "SET spark.databricks.delta.schema.autoMerge.enabled = false")
    spark.ask(jobs.run, f"ALTER TABLE {table} ADD COLUMN early DOUBLE FIRST")
    assert len(is_read(spark.ask(jobs.reads, table, ["early", "k", "v", "s", "w"]))) == 8
    assert len(is_read(spark.ask(jobs.reads, table, ["k", "s"], "s IS NULL AND k > 2"))) == 4
    assert "left to Spark" in spark.ask(jobs.reads, table, ["m"])[0]


def test_any_characters_may_be_in_partitions(spark: SparkProcess, table: str) -> None:
    """Texts of partitions come from the log, whatever the folders make of them; times are left to Spark."""
    make_table(spark, table, "PARTITIONED BY (s, at)", "k BIGINT, s STRING, at TIMESTAMP")
    texts = ["a/b", "a%2Fb", "x=y", "#? &", "\\\\", '"', "{a}", "[0]*", "c:d", "é漢😀", ".", "_h", " end ", "+", "NULL"]
    values = [f"({index}, '{text}', TIMESTAMP'2026-01-01 00:00:00.5')" for index, text in enumerate(texts)]
    null_folder = "(90, '__HIVE_DEFAULT_PARTITION__', NULL), (91, NULL, NULL)"
    spark.ask(jobs.run, f"INSERT INTO {table} VALUES {', '.join(values)}, {null_folder}")
    assert len(is_read(spark.ask(jobs.reads, table, ["k", "s"]))) == len(texts) + 2
    assert len(is_read(spark.ask(jobs.reads, table, ["k"], "s = 'a%2Fb'"))) == 1
    why, _, plain = spark.ask(jobs.reads, table, ["at"])
    assert "is read as timestamp by Spark only" in why
    assert len(plain) == len(texts) + 2


@pytest.mark.skipif(SPARK == (4, 0), reason="CONVERT of Delta 4.0.0 calls what Spark 4.0.5 does not have")
def test_a_converted_folder_has_its_rows_and_partitions(spark: SparkProcess, table: str, tmp_path: Path) -> None:
    """A folder that became a table has its rows, and the columns of its partitions from the log."""
    folder = tmp_path / "plain"
    spark.ask(
        jobs.run,
        f"CREATE TABLE parquet_{uuid.uuid4().hex} USING parquet PARTITIONED BY (w) "
        f"LOCATION '{folder}' AS {ROWS.format(9)}",
    )
    spark.ask(jobs.run, f"CONVERT TO DELTA parquet.`{folder}` PARTITIONED BY (w INT)")
    assert len(is_read(spark.ask(jobs.reads, f"delta.`{folder}`"))) == 9
    assert len(is_read(spark.ask(jobs.reads, f"delta.`{folder}`", ["k"], "w = 2"))) == 3


def test_other_features_are_read_like_spark_or_left_to_it(spark: SparkProcess, table: str) -> None:
    """Numbered rows, clusters and padded texts are read as Spark reads them, or left to it."""
    make_table(spark, table, "CLUSTER BY (k) TBLPROPERTIES ('delta.enableRowTracking' = 'true')", "k BIGINT, c CHAR(3)")
    spark.ask(jobs.run, f"INSERT INTO {table} VALUES (1, 'a'), (2, NULL)")
    assert len(is_read(spark.ask(jobs.reads, table, ["k"]))) == 2
    assert "left to Spark" in spark.ask(jobs.reads, table, ["c"])[0]
