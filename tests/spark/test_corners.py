"""Queries with little input or conflicting names: no keys, no columns, empty epochs, NULL, `row_kind`; and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.client import Functions
from foldflight.spark import cumulate, group_by, hop, session, tumble
from foldflight.spark.arrow import step_name
from tests.spark.test_stream import Stream

DDL = "op string, v bigint, row_kind string"


class Changes(Stream):
    """A stream of few columns."""

    ddl = DDL
    schema = pa.schema([("op", pa.string()), ("v", pa.int64()), ("row_kind", pa.string())])

    def epochs(self, *epochs: list[tuple[str | None, int]]) -> list[list[tuple[Any, ...]]]:
        """Return the rows of each epoch, sorted."""
        for rows in epochs:
            self.write([{"op": op, "v": v, "row_kind": "x"} for op, v in rows])
        return [sorted(rows) for rows in self.run()]

    def collected(self, batch: Any) -> Any:
        return [tuple(row) for row in batch.collect()]


@pytest.mark.slow
def test_rows_without_columns_are_counted(classic: Any, functions: Functions, tmp_path: Path) -> None:
    """Rows without used columns are counted without keys, in a batch and in a stream with an empty epoch."""
    count = functions["count"]
    df = classic.createDataFrame([("+I", 1, "x"), ("+I", 2, "x"), ("-D", 1, "x")], DDL)
    assert [tuple(row) for row in group_by(df).agg(n=count()).collect()] == [(3,)]
    assert [tuple(row) for row in group_by(df, row_kind="op").agg(n=count()).collect()] == [(1,)]
    assert [tuple(row) for row in group_by(df.limit(0)).agg(n=count()).collect()] == [(0,)]
    folder = tmp_path / "all"
    folder.mkdir()
    stream = Changes(classic, folder, lambda rows: group_by(rows).agg(n=count()))
    assert stream.epochs([], [("+I", 1)], [("+I", 1), ("+I", 2)]) == [[], [(1,)], [(3,)]]
    folder = tmp_path / "kinds"
    folder.mkdir()
    stream = Changes(classic, folder, lambda rows: group_by(rows, row_kind="op").agg(n=count()))
    epochs = stream.epochs([("-D", 1)], [("+I", 1)], [("-D", 1), ("+I", 2), ("+I", 3)], [("-D", 2), ("-D", 3)])
    assert epochs == [[], [("+I", 1)], [("+U", 2)], [("+U", 0)]]


@pytest.mark.slow
def test_a_key_and_an_argument_may_have_the_type_null(classic: Any, functions: Functions, tmp_path: Path) -> None:
    """Spark's type void can be a key and an argument, also if a query reads no other column."""
    count = functions["count"]
    nothing = sf.lit(None).alias("nothing")
    df = classic.createDataFrame([("+I", 1, "x"), ("+I", 2, "x")], DDL)
    assert [tuple(row) for row in group_by(df, nothing).agg(n=count()).collect()] == [(None, 2)]
    assert [tuple(row) for row in group_by(df).agg(n=count(sf.lit(None)), m=count()).collect()] == [(0, 2)]
    stream = Changes(classic, tmp_path, lambda rows: group_by(rows, nothing).agg(n=count(), m=count(sf.lit(None))))
    assert stream.epochs([("+I", 1)], [("+I", 1), ("+I", 2)]) == [[(None, 1, 0)], [(None, 3, 0)]]


@pytest.mark.slow
def test_the_kind_null_fails_the_query(classic: Any, functions: Functions, tmp_path: Path) -> None:
    """A NULL row kind is refused, and the error lists the kinds, in batch and stream, with and without `row_kinds`."""
    df = classic.createDataFrame([(None, 1, "x")], DDL)
    for options, message in (
        ({}, "NULL is no row kind; the kinds are"),
        ({"row_kinds": {"c": "+I"}}, "the row kind 'op' is NULL, and row_kinds maps only 'c'"),
    ):
        with pytest.raises(Exception, match=f"SCHEMA_MISMATCH: {message}"):
            group_by(df, "v", row_kind="op", **options).agg(n=functions["count"]()).collect()
    stream = Changes(classic, tmp_path, lambda rows: group_by(rows, "v", row_kind="op").agg(n=functions["count"]()))
    with pytest.raises(Exception, match="SCHEMA_MISMATCH: NULL is no row kind; the kinds are"):
        stream.epochs([(None, 1)])


@pytest.mark.slow
def test_row_kind_is_the_name_of_one_column(classic: Any, functions: Functions, tmp_path: Path) -> None:
    """If a stream shows row kinds, no key and no output may be named `row_kind`; otherwise they may."""
    count = functions["count"]
    df = classic.createDataFrame([("+I", 1, "x"), ("+I", 2, "x"), ("-D", 1, "x")], DDL)
    assert [tuple(row) for row in group_by(df, "row_kind", row_kind="op").agg(n=count()).collect()] == [("x", 1)]
    (tmp_path / "in").mkdir()
    rows = classic.readStream.schema(DDL).parquet(str(tmp_path / "in"))
    for grouped_df, outputs in (
        (group_by(rows, "row_kind", row_kind="op"), {"n": count()}),
        (group_by(rows, "v", row_kind="op"), {"Row_Kind": count()}),
        (group_by(rows, "row_kind", emit="changelog"), {"n": count()}),
    ):
        with pytest.raises(RejectedError, match="has a column row_kind of its own") as excinfo:
            grouped_df.agg(**outputs)
        assert excinfo.value.code == "SIGNATURE"
    stream = Changes(classic, tmp_path, lambda rows: group_by(rows, "row_kind").agg(n=count()))
    assert stream.epochs([("+I", 1)], [("+I", 1)]) == [[("x", 1)], [("x", 2)]]


def test_plans_name_the_functions(spark: Any, embedded: Functions, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step of a query shows its functions in Spark's plan; long lists are cut."""
    df = spark.createDataFrame([("+I", 1, "x")], DDL)
    total, count, median = embedded["sum"], embedded["count"], embedded["median"]

    def plan(result: Any) -> str:
        capsys.readouterr()
        result.explain()
        return capsys.readouterr().out

    assert "lifted[avg, count](" in plan(group_by(df, "op").agg(a=embedded["avg"]("v"), n=count(), m=count("v")))
    without_python = plan(group_by(df, "op").agg(a=total("v"), n=count()))
    assert "HashAggregate" in without_python
    assert "InArrow" not in without_python
    two_phases = plan(group_by(df, "op", plan="fold").agg(a=total("v"), n=count(), m=count("v")))
    assert "fold_partial[sum, count](" in two_phases
    assert "merge[sum, count](" in two_phases
    one_phase = plan(group_by(df, "op").agg(a=median("v")))
    assert "fold[median](" in one_phase
    assert " run(" not in two_phases + one_phase


def test_plans_of_streams_name_the_functions(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """The steps before and after the state show their functions, too."""
    rows = classic.readStream.schema(f"{DDL}, at timestamp").parquet(str(tmp_path))
    count, total = embedded["count"], embedded["sum"]

    def plan(result: Any) -> str:
        return str(result._jdf.queryExecution().analyzed().toString())

    plan_text = plan(group_by(rows, "op", window=tumble("at", "1 hour")).agg(n=count(), a=total("v")))
    assert "fold_partial[count, sum](" in plan_text
    assert "changelog[count, sum](" in plan_text
    assert "pack[count](" in plan(group_by(rows, "v", row_kind="op").agg(n=count()))


def test_the_names_of_many_functions_are_cut_short() -> None:
    """A step with many functions has a name that fits one line."""
    names = [f"function_{number}" for number in range(40)]
    assert step_name("fold", ["sum", "count", "sum"]) == "fold[sum, count]"
    assert step_name("fold", names).startswith("fold[function_0, function_1,")
    assert len(step_name("fold", names)) < 120


@pytest.mark.parametrize(
    ("window", "rows"),
    [
        (tumble("at", "1 hour"), 1),
        (hop("at", "1 hour", "2 hours"), 2),
        (cumulate("at", "1 hour", "2 hours"), 2),
        (session("at", "1 hour"), 1),
    ],
    ids=str,
)
def test_windows_are_assigned_over_a_join_with_two_columns_of_one_name(classic: Any, window: Any, rows: int) -> None:
    """Columns that a query does not use may have one name. A time that has two columns is refused by its name."""
    times = classic.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 00:10:00' AS at, 5L AS v")
    others = classic.sql("SELECT 1 AS id, 7L AS w")
    joined_df = times.join(others, times["id"] == others["id"])
    total = connect("embedded:")["sum"]
    result = group_by(joined_df, "w", window=window).agg(total=total("v"))
    assert sorted(result.columns) == ["total", "w", "window_end", "window_start"]
    assert [(row.w, row.total) for row in result.collect()] == [(7, 5)] * rows
    for again in (joined_df["at"], sf.expr("TIMESTAMP'2024-01-01 00:20:00' AS AT")):
        with pytest.raises(RejectedError, match="the window's column 'at'") as excinfo:
            group_by(joined_df.select("*", again), window=window).agg(total=total("v"))
        assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("${spark.foldflight.other}", "spark.foldflight.other", "other"),
        ("a b", "spark.sql.parser.quotedRegexColumnNames", "true"),
        (".*", "spark.sql.parser.quotedRegexColumnNames", "true"),
    ],
)
def test_names_are_neither_variables_nor_patterns(
    classic: Any, embedded: Functions, name: str, setting: str, value: str
) -> None:
    """Texts of SQL may be: as a variable the first of these names would be the other column."""
    df = classic.createDataFrame([("a", "x", 2)], "k STRING, other STRING, v INT").toDF(name, "other", "v")
    classic.conf.set(setting, value)
    try:
        result = group_by(df, name).agg(m=embedded["median"]("v"))
        assert (result.columns, [tuple(row) for row in result.collect()]) == ([name, "m"], [("a", 2.0)])
    finally:
        classic.conf.unset(setting)
