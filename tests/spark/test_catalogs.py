"""Streams into real tables of Iceberg and Delta, by the MERGE of Spark's catalogue: other writers, types, sessions.

Iceberg has a runtime for Spark 4.1, and Delta for Spark 4.0.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.maven import MISSING, client
from tests.spark import catalog_jobs as jobs
from tests.spark_process import SparkProcess, spark_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.surface,
    pytest.mark.skipif(jobs.FORMAT == "none", reason="no other Spark of these tests has a runtime of Iceberg or Delta"),
]
only_iceberg = pytest.mark.skipif(jobs.FORMAT != "iceberg", reason="Delta has no such rule")

ICEBERG, DELTA = "spark.sql.catalog.lake", "spark.sql.catalog.spark_catalog"
JARS = {"iceberg": "jars-iceberg.txt", "delta": "jars-delta-4.0.txt"}
EXTENSIONS = {
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
}
INSERT = f"INSERT INTO {jobs.TABLE} (k, small) VALUES ('other', {{}})"
COMPACTION = {
    "iceberg": [
        f"REFRESH TABLE {jobs.TABLE}",
        "CALL lake.system.rewrite_data_files(table => 'shop.totals', options => map('rewrite-all', 'true'))",
        "CALL lake.system.expire_snapshots(table => 'shop.totals', older_than => TIMESTAMP '2100-01-01')",
    ],
    "delta": [f"OPTIMIZE {jobs.TABLE}", f"VACUUM {jobs.TABLE} RETAIN 0 HOURS"],
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A driver whose catalogue `lake` is one of Iceberg, or whose own is one of Delta, with its defaults."""
    assert client() is not None, MISSING
    folder = tmp_path_factory.mktemp(jobs.FORMAT)
    settings = {
        "spark.master": "local[4]",  # a task waits for other jobs
        "spark.sql.extensions": EXTENSIONS[jobs.FORMAT],
        ICEBERG: "org.apache.iceberg.spark.SparkCatalog",
        f"{ICEBERG}.type": "hadoop",
        f"{ICEBERG}.warehouse": str(folder / "lake"),
    }
    if jobs.FORMAT == "delta":
        settings |= {
            DELTA: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            # Tasks for each read of its log, and for each list of its files: by default 50 and 10,000.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        }
    with spark_process(folder, Path(__file__).with_name(JARS[jobs.FORMAT]), settings) as process:
        yield process


@pytest.fixture
def files(spark: SparkProcess, tmp_path: Path) -> Path:
    """A folder of input, and a new table, wider than the rows."""
    create = (
        f"CREATE TABLE {jobs.TABLE} (k STRING, small INT, amount DECIMAL(38,10), words ARRAY<STRING>) "
        f"USING {jobs.FORMAT}"
    )
    spark.ask(jobs.run, f"DROP TABLE IF EXISTS {jobs.TABLE}", create)
    folder = tmp_path / "input"
    folder.mkdir()
    return folder


def epoch(folder: Path, *rows: tuple[Any, ...]) -> None:
    """Write the rows of an epoch: row kind, key, a small number, an amount."""
    number = len(list(folder.iterdir()))
    lines = [json.dumps(dict(zip(("row_kind", "k", "small", "amount"), row, strict=True))) for row in rows]
    path = folder / f"{number:04}.json"
    path.write_text("\n".join(lines))
    os.utime(path, (number + 1, number + 1))


def test_a_wider_table_is_changed_and_visible_in_the_session(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """INT takes SMALLINT (Iceberg has no other), DECIMAL(38,10) DECIMAL(10,2); after the query the session sees all."""
    spark.ask(jobs.run, f"SELECT * FROM {jobs.TABLE}")  # its cache has the table without rows
    epoch(files, ("+I", "a", 1, 1.25), ("+I", "b", 2, None))
    epoch(files, ("+U", "a", -1, 99999999.99), ("-D", "b", 2, None))
    rows = spark.ask(jobs.write, files, tmp_path / "checkpoint")
    assert rows == [("a", -1, Decimal("99999999.9900000000"), None)]


def test_a_row_of_another_writer_between_epochs_stays(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """A row of another writer stays, and the query goes on."""
    for number in range(3):
        epoch(files, ("+U", "a", number, None))
    rows = spark.ask(jobs.write_between, files, tmp_path / "checkpoint", INSERT.format(7))
    assert rows == [("a", 2, None, None), *[("other", 7, None, None)] * 3]


def test_a_commit_of_another_writer_during_an_epoch_is_retried(
    spark: SparkProcess, files: Path, tmp_path: Path
) -> None:
    """Iceberg refuses the commit, and the statement is repeated."""
    epoch(files, ("+I", "a", 1, None), ("+I", "b", 1, None))
    epoch(files, ("+U", "a", 2, None), ("-D", "b", 1, None))
    rows = spark.ask(jobs.write_during, files, tmp_path / "checkpoint", INSERT.format(7))
    assert rows == [("a", 2, None, None), ("other", 7, None, None)]


def test_maintenance_between_epochs_changes_nothing(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """Compacted files and expired snapshots change nothing, also for an epoch that comes again after them."""
    for number in range(3):
        epoch(files, ("+U", "a", number, None), ("+U", f"b{number}", number, None))
    expected = [("a", 2, None, None), *((f"b{number}", number, None, None) for number in range(3))]
    maintenance = COMPACTION[jobs.FORMAT]
    assert spark.ask(jobs.write_between, files, tmp_path / "checkpoint", *maintenance) == expected
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    assert spark.ask(jobs.write_between, files, tmp_path / "checkpoint", *maintenance) == expected


def test_a_driver_that_dies_applies_each_epoch_once(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """An epoch that ends before the commit of the table, or before Spark's commit, comes again."""
    checkpoint = tmp_path / "checkpoint"
    for number, point in enumerate((jobs.BEFORE, jobs.AFTER) * 3):
        old = number - 1
        epoch(files, ("+U", "a", number, None), ("-D", f"b{old}", old, None), ("+I", f"b{number}", number, None))
        assert point in spark.ask(jobs.write_and_die, files, checkpoint, point)
        if number % 3 == 2:
            expected = [("a", number, None, None), (f"b{number}", number, None, None)]
            assert spark.ask(jobs.write, files, checkpoint) == expected


def test_a_driver_that_was_replaced_changes_nothing(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """A driver of before, which goes on from its own copy of the checkpoint, sets no old value, and leaves none out."""
    epoch(files, ("+I", "a", 0, None))
    spark.ask(jobs.write, files, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for number in (1, 2):
        epoch(files, ("+U", "a", number, None))
    expected = [("a", 2, None, None)]
    assert spark.ask(jobs.write, files, tmp_path / "checkpoint") == expected
    message = spark.ask(jobs.write_or_say, files, tmp_path / "copy")
    assert f"table {jobs.TABLE} has epochs up to 2 of the query" in message
    assert "goes on with epoch 1: the checkpoint is older than the table" in message
    assert spark.ask(jobs.run, f"SELECT * FROM {jobs.TABLE}") == expected


@only_iceberg
def test_table_and_checkpoint_may_go_back_together(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """The marks of snapshots that no longer count do not count either: table and checkpoint may go back together."""
    epoch(files, ("+I", "a", 0, None))
    spark.ask(jobs.write, files, tmp_path / "checkpoint")
    ((snapshot,),) = spark.ask(jobs.run, f"SELECT snapshot_id FROM {jobs.TABLE}.snapshots")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for number in (1, 2):
        epoch(files, ("+U", "a", number, None))
    spark.ask(jobs.write, files, tmp_path / "checkpoint")
    rollback = f"CALL lake.system.rollback_to_snapshot('shop.totals', {snapshot})"
    spark.ask(jobs.run, rollback, f"REFRESH TABLE {jobs.TABLE}", "SELECT 1")
    assert spark.ask(jobs.write_or_say, files, tmp_path / "copy") == [("a", 2, None, None)]


@only_iceberg
def test_a_table_may_be_given_by_its_name_alone(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """Behind such a name Spark finds no snapshots, and the session of an epoch does not know what USE has said."""
    for number in (1, 2):
        epoch(files, ("+U", "a", number, None))
    assert spark.ask(jobs.write_by_name, files, tmp_path / "checkpoint") == [("a", 2, None, None)]


def test_changes_are_computed_once(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """The statement reads its source twice, but not the stream."""
    for number in range(2):
        epoch(files, ("+U", "a", number, None))
    (tmp_path / "runs").mkdir()
    assert spark.ask(jobs.write_counted, files, tmp_path / "checkpoint", tmp_path / "runs") == 2


def test_types_that_the_table_lacks_are_refused(spark: SparkProcess, files: Path) -> None:
    """Narrower types are refused, and elements that may be NULL where the table takes none, in different words."""
    epoch(files, ("+I", "a", 1, None))
    assert "the column small has the type INT, and the query's is BIGINT" in spark.ask(
        jobs.refusal_text, files, "k STRING, small BIGINT"
    )
    assert "the column amount has the type DECIMAL(38,10), and the query's is DECIMAL(38,11)" in spark.ask(
        jobs.refusal_text, files, "k STRING, amount DECIMAL(38,11)"
    )
    name = f"{jobs.TABLE}_{uuid.uuid4().hex}"
    create = f"CREATE TABLE {name} (k STRING, at STRUCT<x: INT NOT NULL>) USING {jobs.FORMAT}"
    spark.ask(jobs.run, create, "SELECT 1")
    message = spark.ask(jobs.refusal_text, files, "k STRING, at STRUCT<x: INT>", name)
    assert "the column at, STRUCT<X:INT>, takes no NULL in its elements or fields" in message


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_keys_of_floats_are_found_again(spark: SparkProcess, tmp_path: Path, mode: str) -> None:
    """NaN and zeros are found again, although the files' metrics do not have them."""
    if jobs.FORMAT == "delta" and mode != "copy-on-write":
        pytest.skip("the modes are Iceberg's")
    name = f"{jobs.TABLE}_{uuid.uuid4().hex}"
    properties = f"'write.merge.mode' = '{mode}', 'format-version' = '2'" if jobs.FORMAT == "iceberg" else "'x' = 'x'"
    spark.ask(
        jobs.run,
        f"CREATE TABLE {name} (k DOUBLE, v INT) USING {jobs.FORMAT} TBLPROPERTIES ({properties})",
        *(f"INSERT INTO {name} VALUES ({key}, 0)" for key in ("double('NaN')", "-0D", "1D")),  # a file each
        "SELECT 1",
    )
    rows = spark.ask(jobs.write_floats, name, tmp_path)
    assert {repr(key + 0.0): value for key, value in rows} == {"nan": 2, "0.0": 2, "1.0": 2}
    assert len(rows) == 3
