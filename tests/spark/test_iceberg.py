"""Streams into a real table of Iceberg, by the MERGE of Spark's catalogue: other writers, types, sessions."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.maven import MISSING, client
from tests.spark import iceberg_jobs as jobs
from tests.spark_process import SparkProcess, spark_process
from tests.spark_sessions import SPARK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.surface,
    pytest.mark.skipif(SPARK != (4, 1), reason="no other Spark of these tests has a runtime of Iceberg"),
]

CATALOG = "spark.sql.catalog.lake"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
INSERT = f"INSERT INTO {jobs.TABLE} (k, small) VALUES ('other', {{}})"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A driver whose catalogue `lake` is one of Iceberg, with its defaults."""
    assert client() is not None, MISSING
    folder = tmp_path_factory.mktemp("iceberg")
    settings = {
        "spark.master": "local[4]",  # a task waits for other jobs
        "spark.sql.extensions": EXTENSIONS,
        CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{CATALOG}.type": "hadoop",
        f"{CATALOG}.warehouse": str(folder / "lake"),
    }
    with spark_process(folder, Path(__file__).with_name("jars-iceberg.txt"), settings) as process:
        yield process


@pytest.fixture
def files(spark: SparkProcess, tmp_path: Path) -> Path:
    """A folder of input, and a new table, wider than the rows."""
    columns = "k STRING, small SMALLINT, amount DECIMAL(38,10), words ARRAY<STRING>"
    spark.ask(jobs.run, f"DROP TABLE IF EXISTS {jobs.TABLE}", f"CREATE TABLE {jobs.TABLE} ({columns}) USING iceberg")
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


def test_a_wider_table_and_the_session_of_the_user(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """INT takes SMALLINT (Iceberg makes it so), DECIMAL(38,10) DECIMAL(10,2); after the query the session sees all."""
    spark.ask(jobs.run, f"SELECT * FROM {jobs.TABLE}")  # its cache has the table without rows
    epoch(files, ("+I", "a", 1, 1.25), ("+I", "b", 2, None))
    epoch(files, ("+U", "a", -1, 99999999.99), ("-D", "b", 2, None))
    rows = spark.ask(jobs.write, files, tmp_path / "checkpoint")
    assert rows == [("a", -1, Decimal("99999999.9900000000"), None)]


def test_another_writer_between_epochs(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """A row of another writer stays, and the query goes on."""
    for number in range(3):
        epoch(files, ("+U", "a", number, None))
    rows = spark.ask(jobs.write_between, files, tmp_path / "checkpoint", INSERT.format(7))
    assert rows == [("a", 2, None, None), *[("other", 7, None, None)] * 3]


def test_another_writer_during_an_epoch(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """Iceberg refuses the commit, and the statement is repeated."""
    epoch(files, ("+I", "a", 1, None), ("+I", "b", 1, None))
    epoch(files, ("+U", "a", 2, None), ("-D", "b", 1, None))
    rows = spark.ask(jobs.write_during, files, tmp_path / "checkpoint", INSERT.format(7))
    assert rows == [("a", 2, None, None), ("other", 7, None, None)]


def test_a_repeated_epoch(spark: SparkProcess, files: Path, tmp_path: Path) -> None:
    """A driver that died between the commits of the table and of Spark leaves an epoch that comes again."""
    epoch(files, ("+I", "a", 1, None), ("+I", "b", 1, None))
    spark.ask(jobs.write, files, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    epoch(files, ("+U", "a", 2, None), ("-D", "b", 1, None))
    assert spark.ask(jobs.write, files, tmp_path / "checkpoint") == [("a", 2, None, None)]


def test_types_that_the_table_does_not_take(spark: SparkProcess, files: Path) -> None:
    """Narrower types are refused, and elements that may be NULL where the table takes none, in different words."""
    epoch(files, ("+I", "a", 1, None))
    assert "the column small has the type INT, and the query's is BIGINT" in spark.ask(
        jobs.refused, files, "k STRING, small BIGINT"
    )
    assert "the column amount has the type DECIMAL(38,10), and the query's is DECIMAL(38,11)" in spark.ask(
        jobs.refused, files, "k STRING, amount DECIMAL(38,11)"
    )
    name = f"lake.shop.{uuid.uuid4().hex}"
    spark.ask(jobs.run, f"CREATE TABLE {name} (k STRING, at STRUCT<x: INT NOT NULL>) USING iceberg", "SELECT 1")
    said = spark.ask(jobs.refused, files, "k STRING, at STRUCT<x: INT>", name)
    assert "the column at, STRUCT<X:INT>, takes no NULL in its elements or fields" in said


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_keys_of_floating_point(spark: SparkProcess, tmp_path: Path, mode: str) -> None:
    """NaN and zeros are found again, although the files' metrics do not have them."""
    name = f"lake.shop.{uuid.uuid4().hex}"
    properties = f"'write.merge.mode' = '{mode}', 'format-version' = '2'"
    spark.ask(
        jobs.run,
        f"CREATE TABLE {name} (k DOUBLE, v INT) USING iceberg TBLPROPERTIES ({properties})",
        *(f"INSERT INTO {name} VALUES ({key}, 0)" for key in ("double('NaN')", "-0D", "1D")),  # a file each
        "SELECT 1",
    )
    rows = spark.ask(jobs.write_floats, name, tmp_path)
    assert {repr(key + 0.0): value for key, value in rows} == {"nan": 2, "0.0": 2, "1.0": 2}
    assert len(rows) == 3
