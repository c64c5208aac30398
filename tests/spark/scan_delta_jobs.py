"""What a driver with Delta does in tests of `scan`: functions for `tests.spark_process`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader

from foldflight import connect
from foldflight.spark import Scan, group_by, scan
from foldflight.spark.scans.listing import UnreadableError
from tests.spark.test_scan import bits, read

Reads = tuple[str, list[str], list[str]]
"""Why Spark reads, empty if tasks do; the rows that tasks read; and those that Spark reads."""


def run(spark: Any, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, and return the rows of the last one."""
    for statement in statements[:-1]:
        spark.sql(statement)
    return sorted(map(tuple, spark.sql(statements[-1]).collect()), key=repr)


def reads(spark: Any, table: str, columns: list[str] | None = None, where: str | None = None) -> Reads:
    """Return who reads a table, and the rows."""
    return reads_after(spark, table, (), columns, where)


def reads_after(
    spark: Any, table: str, between: tuple[str, ...], columns: list[str] | None = None, where: str | None = None
) -> Reads:
    """Return who reads a table, and the rows, if statements change the table after the scan is made."""
    file_scan = scan(spark, table=table, where=where)
    return _after(spark, file_scan, between, file_scan.columns if columns is None else columns)


def _after(spark: Any, file_scan: Any, between: tuple[str, ...], columns: list[str]) -> Reads:
    for statement in between:
        spark.sql(statement)
    spark_rows = bits(file_scan.df.select(*(f"`{each}`" for each in columns)))
    try:
        source = file_scan.source(columns)
    except UnreadableError as error:
        return str(error), [], spark_rows
    return "", bits(read(source, file_scan, columns)), spark_rows


def over_connect(_spark: Any, port: int, job: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a job returns that has a session of Connect to this driver."""
    from pyspark.sql.connect.session import SparkSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as a process that only knows Connect has it
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    try:
        return job(session, *arguments)
    finally:
        session.client.close()
        del os.environ["SPARK_CONNECT_MODE_ENABLED"]


def error_of(spark: Any, table: str) -> str:
    """Return the error of Spark about a table."""
    try:
        scan(spark, table=table)
    except AnalysisException as error:
        return str(error)
    return ""


def reads_filtered(spark: Any, table: str, condition: str) -> Reads:
    """Return who reads a table of a catalogue that adds a condition to it, as row filters are, and the rows."""
    reader, session = DataFrameReader.table, type(spark).table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataFrameReader, "table", lambda self, name: reader(self, name).where(condition))
        patch.setattr(type(spark), "table", lambda self, name: session(self, name).where(condition))
        return reads(spark, table)


def files_left_out(spark: Any, table: str, where: str) -> int:
    """Return how many files of a table are not read."""
    file_scan = scan(spark, table=table, where=where)
    return file_scan.source(file_scan.columns).files_left_out


def plan_text(spark: Any, table: str, columns: list[str], change: tuple[str, ...]) -> str:
    """Return the rows that tasks read, or their error, if the table changes after the query is planned."""
    file_scan = scan(spark, table=table)
    before = bits(file_scan.df.select(*columns))
    source = file_scan.source(columns)
    for statement in change:
        spark.sql(statement)
    try:
        after = bits(read(source, file_scan, columns))
    except Exception as error:
        return next((line for line in str(error).splitlines() if "SOURCE_FILE" in line), str(error))
    return "the same rows" if before == after else f"{before} != {after}"


def folds(spark: Any, table: str, key: str, *columns: str) -> tuple[list[str], list[str]]:
    """Return the result of a query that folds what its tasks read, and of the same query over Spark's read."""
    functions = connect("embedded:examples.weighted_avg")
    file_scan = scan(spark, table=table)
    uses = {"x": functions["weighted_avg"](*columns)}
    ours, plain = group_by(file_scan, key).agg(**uses), group_by(file_scan.df, key, plan="fold").agg(**uses)
    return bits(ours), bits(plain)


def why_after_replacement(spark: Any, table: str, rows: str) -> str:
    """Return why Spark reads a scan whose table is dropped and made again with as many versions."""
    file_scan = scan(spark, table=table)
    columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in file_scan.schema)
    spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta")
    spark.sql(f"INSERT INTO {table} {rows}")
    return _why(file_scan)


def reads_with(spark: Any, table: str, commit: str, text: str) -> str:
    """Return why Spark reads a scan of which the log has another commit."""
    file_scan = scan(spark, table=table)
    assert _why(file_scan) == ""
    Path(commit).write_text(text)
    return _why(file_scan)


def _why(file_scan: Scan) -> str:
    try:
        file_scan.source(file_scan.columns)
    except UnreadableError as error:
        return str(error)
    return ""
