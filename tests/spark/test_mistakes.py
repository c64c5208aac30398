"""Mistakes in queries: which error is raised, when, and its text."""

from __future__ import annotations

import logging
import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, TimestampType

from foldflight import FoldflightError, RejectedError, connect, udaf
from foldflight.spark import (
    configure,
    dead_letters,
    enable,
    from_canal,
    from_debezium,
    from_maxwell,
    group_by,
    join_lateral,
    over,
    register,
    results,
    scan,
    schema_of,
    session,
    split_changes,
    sql,
    state_table,
    to_debezium,
    to_upserts,
    tumble,
    upserts,
    with_columns,
    with_schema,
    write_table,
)
from foldflight.spark.errors import error_of
from foldflight.sql import SqlError
from tests import scalar_functions
from tests.spark import spark_functions
from tests.spark_sessions import since_spark


@pytest.fixture(scope="module")
def df(classic: Any) -> Any:
    """A small input."""
    return table(classic)


def table(spark: Any) -> Any:
    """Return a small input with columns of many types."""
    return spark.range(20).selectExpr(
        "id % 2 AS k",
        "id AS v",
        "1 AS w",
        "'x' AS s",
        "TIMESTAMP '2020-01-01' AS zoned",
        "TIMESTAMP_NTZ '2020-01-01' AS zoneless",
        "array(INTERVAL 1 MONTH) AS periods",
        "map(id, id) AS m",
    )


@udaf(input_types=["TIMESTAMP"], result_type="BIGINT")
class Zoneless(spark_functions.Sum):
    """Takes timestamps without a zone."""


@udaf(input_types=[TimestampType()], result_type=LongType())
class Zoned(spark_functions.Sum):
    """Takes timestamps with a zone."""


@udaf(input_types=["JSON"], result_type="BIGINT")
class OfJson(spark_functions.Sum):
    """Takes JSON."""


@udaf(input_types=["INT256"], result_type="BIGINT")
class OfWide(spark_functions.Sum):
    """Takes types that Spark does not have."""


def windows_of(name: str) -> Any:
    """Return a function of this module."""
    return connect([Zoneless, Zoned, OfJson, OfWide])[name]


CASES: dict[str, tuple[Any, str, str]] = {
    "nothing": (lambda df, f: group_by(df, "k").agg(), "SIGNATURE", "nothing to aggregate"),
    "no aggregate": (lambda df, f: group_by(df, "k").agg(n="count(*)"), "SIGNATURE", "n is 'count"),
    "the handle itself": (
        lambda df, f: group_by(df, "k").agg(n=f["count"]),
        "SIGNATURE",
        "n is the function count itself; call it with its columns: count.'column'.",
    ),
    "two connections": (
        lambda df, f: group_by(df).agg(a=f["count"](), b=connect(spark_functions)["count"]()),
        "SIGNATURE",
        r"two connections; .*connect\(\"embedded:a,b\"\)",
    ),
    "a name twice": (lambda df, f: group_by(df, "k").agg(K=f["count"]()), "SIGNATURE", "'K' is the name of two"),
    "a key twice": (lambda df, f: group_by(df, "k", "k"), "SIGNATURE", "twice among the keys"),
    "unknown key": (lambda df, f: group_by(df, "nope"), "SCHEMA_MISMATCH", "nope"),
    "unknown column": (
        lambda df, f: group_by(df, "k").agg(n=f["sum"]("nope")),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the argument 'nope' of sum: .*`nope`",
    ),
    "unknown Column": (
        lambda df, f: group_by(df, "k").agg(n=f["sum"](sf.col("nope"))),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the argument 'nope' of sum: .*`nope`",
    ),
    "unknown condition": (
        lambda df, f: group_by(df, "k").agg(n=f["sum"]("v").where("nope > 1")),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the condition 'nope > 1' of sum: .*`nope`",
    ),
    "unknown row kind": (
        lambda df, f: group_by(df, "k", row_kind="nope", row_kinds={"c": "+I"}),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the row kind 'nope': .*`nope`",
    ),
    "a column of another frame": (
        lambda df, f: group_by(df).agg(n=f["sum"](df.sparkSession.range(3)["id"])),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the argument 'id' of sum: ",
    ),
    "an ambiguous key": (
        lambda df, f: group_by(df.selectExpr("v", "w AS v"), "v").agg(n=f["count"]()),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the key 'v': .*ambiguous",
    ),
    "two columns for one": (
        lambda df, f: group_by(df).agg(n=f["sum"](sf.explode("m"))),
        "SCHEMA_MISMATCH",
        "the argument 'explode.m.' of sum is 2 columns .key, value.",
    ),
    "all columns": (lambda df, f: group_by(df).agg(n=f["count"]("*")), "SIGNATURE", "count.. without an argument"),
    "an aggregate of an aggregate": (
        lambda df, f: group_by(df).agg(n=f["sum"](f["count"]())),
        "SIGNATURE",
        "the argument 'count..' of sum is itself an aggregate; compute it with one agg",
    ),
    "broken expression": (lambda df, f: group_by(df).agg(n=f["sum"]("v +")), "SCHEMA_MISMATCH", "Syntax error"),
    "a constant": (
        lambda df, f: group_by(df).agg(n=f["max"](1)),
        "SIGNATURE",
        "the argument '1' of max is not a column",
    ),
    "a key that is a number": (lambda df, f: group_by(df, 1), "SIGNATURE", "the key '1' is not a column"),
    "a list among keys": (lambda df, f: group_by(df, ["k"], "w"), "SIGNATURE", "the key .* is not a column"),
    "a condition of Python": (
        lambda df, f: group_by(df).agg(n=f["sum"]("v").where(lambda row: row)),
        "SIGNATURE",
        "the condition '<function .* of sum is not a column",
    ),
    "a text for a window": (
        lambda df, f: group_by(df, "k", window="1 hour"),
        "SIGNATURE",
        "the window is '1 hour', .* give tumble.'time', '1 hour'",
    ),
    "Spark's window": (
        lambda df, f: group_by(df, "k", window=sf.window("zoned", "1 hour")),
        "SIGNATURE",
        "the window is .*give tumble",
    ),
    "a window over a Column": (
        lambda df, f: tumble(sf.col("zoned"), "1 hour"),
        "SIGNATURE",
        "is the name of a column, not 'zoned'",
    ),
    "a window of a number": (lambda df, f: tumble("zoned", 3600), "SIGNATURE", "such as '1 hour', not 3600"),
    "a window that cannot be read": (
        lambda df, f: group_by(df, window=tumble("zoned", "1 huor")),
        "SIGNATURE",
        "the lengths of the window 'tumble 1 huor': .*Unable to parse",
    ),
    "a window over a text": (
        lambda df, f: group_by(df, window=tumble("s", "1 hour")),
        "SCHEMA_MISMATCH",
        "column s is string, not a timestamp; .*F.to_timestamp",
    ),
    "buckets that are a text": (lambda df, f: group_by(df, buckets="3"), "SIGNATURE", "and here it is '3'"),
    "lateness that is a text": (
        lambda df, f: group_by(df, allowed_lateness_s="1 hour"),
        "SIGNATURE",
        "a number of seconds, 0 or more, and here it is '1 hour'",
    ),
    "row kinds that are a list": (
        lambda df, f: group_by(df, row_kind="s", row_kinds=["+I"]),
        "SIGNATURE",
        "row_kinds maps values of the row kind 's' to kinds",
    ),
    "an output without a name": (
        lambda df, f: group_by(df, "k").agg(f["sum"]("v")),
        "SIGNATURE",
        "sum.'v'. has no name; write sum.'v'..alias.'name'.",
    ),
    "an output with two names": (
        lambda df, f: group_by(df, "k").agg(n=f["sum"]("v").alias("m")),
        "SIGNATURE",
        "gives one output two names",
    ),
    "two outputs of one name": (
        lambda df, f: group_by(df, "k").agg(f["sum"]("v").alias("n"), N=f["count"]()),
        "SIGNATURE",
        "'N' is the name of two outputs",
    ),
    "an aggregate of Spark": (
        lambda df, f: group_by(df, "k").agg(sf.sum("v").alias("n")),
        "SIGNATURE",
        "an output is .*sum.v. AS n.*, a Column of PySpark, .* functions.sum.*df.groupBy.*sql.column.spark, ",
    ),
    "a dict of aggregates": (lambda df, f: group_by(df, "k").agg({"v": "sum"}), "SIGNATURE", "not a use of a function"),
    "a direct argument that is a Column": (
        lambda df, f: group_by(df).agg(n=f["percentile"]("v", fraction=sf.lit(0.5))),
        "SIGNATURE",
        "fraction of percentile is Column<'0.5'>, which is not a constant",
    ),
    "a direct argument of the wrong type": (
        lambda df, f: group_by(df).agg(n=f["percentile"]("v", fraction="0.5")),
        "SIGNATURE",
        "the direct argument fraction of percentile must be float, but '0.5' is str; give a value of this type",
    ),
    "a direct argument that the author refuses": (
        lambda df, f: group_by(df).agg(n=f["picky"]("v", at="open")),
        "SIGNATURE",
        "picky does not take at='open': __init__ raised ValueError: never at open",
    ),
    "a type that does not reach Python": (
        lambda df, f: group_by(df).agg(n=f["max"]("periods")),
        "SCHEMA_MISMATCH",
        "^SCHEMA_MISMATCH: the argument 'periods' of max is array<interval month>, which cannot .*cast",
    ),
    "a key that does not reach Python": (
        lambda df, f: group_by(df, "periods").agg(n=f["count"]()),
        "SCHEMA_MISMATCH",
        "the key 'periods' is array<interval month>, which cannot be passed to Python",
    ),
    "a zone too many": (
        lambda df, f: group_by(df).agg(n=windows_of("zoneless")("zoned")),
        "SCHEMA_MISMATCH",
        "takes TIMESTAMP_NTZ for its argument value, and zoned is TIMESTAMP_LTZ; .*declare TIMESTAMPTZ.*CAST.zoned",
    ),
    "a zone too few": (
        lambda df, f: group_by(df).agg(n=windows_of("zoned")("zoneless")),
        "SCHEMA_MISMATCH",
        "takes TIMESTAMP_LTZ for its argument value, and zoneless is TIMESTAMP_NTZ; .*CAST.zoneless AS TIMESTAMP_LTZ",
    ),
    "no JSON": (
        lambda df, f: group_by(df).agg(n=windows_of("of_json")("m")),
        "SCHEMA_MISMATCH",
        "takes JSON .* and m is MAP<BIGINT, BIGINT>; give the text of JSON, as to_json.m.",
    ),
    "what Spark does not have": (
        lambda df, f: group_by(df).agg(n=windows_of("of_wide")("s")),
        "SCHEMA_MISMATCH",
        "Spark has no INT256, so the function's author",
    ),
    "wrong type": (
        lambda df, f: group_by(df).agg(n=f["weighted_avg"]("s", "w")),
        "SCHEMA_MISMATCH",
        "takes BIGINT for its argument value, and s is STRING; convert it in the query: CAST.s AS BIGINT.",
    ),
    "wrong count": (lambda df, f: group_by(df).agg(n=f["weighted_avg"]("v")), "SCHEMA_MISMATCH", "takes 2 columns"),
    "condition of the wrong type": (
        lambda df, f: group_by(df).agg(n=f["count"]().where("v + 1")),
        "SCHEMA_MISMATCH",
        "the condition 'where v . 1' of count is BIGINT, but a condition must be BOOLEAN",
    ),
    "a map for a key": (lambda df, f: group_by(df, "map(k, v)").agg(n=f["count"]()), "SCHEMA_MISMATCH", "map"),
    "collated key": (
        lambda df, f: group_by(df, "collate(s, 'UTF8_LCASE')").agg(n=f["count"]()),
        "SCHEMA_MISMATCH",
        "group by lower.* COLLATE UTF8_BINARY",
    ),
    "unknown direct argument": (
        lambda df, f: group_by(df).agg(n=f["percentile"]("v", fraktion=1)),
        "SIGNATURE",
        "did you mean fraction",
    ),
}


NO_DATAFRAME: dict[str, Callable[[Any], Any]] = {
    "group_by": lambda rows: group_by(rows, "k"),
    "over": lambda rows: over(rows, "k"),
    "with_columns": with_columns,
    "join_lateral": lambda rows: join_lateral(rows, connect("embedded:")["count"]()),
    "upserts": lambda rows: upserts(rows, keys="k", sequence_by="v"),
    "from_debezium": lambda rows: from_debezium(rows, "k BIGINT"),
    "from_maxwell": lambda rows: from_maxwell(rows, "k BIGINT"),
    "from_canal": lambda rows: from_canal(rows, "k BIGINT"),
    "schema_of": schema_of,
    "split_changes": lambda rows: split_changes(rows, op="k", before="v", after="v", row_kinds={}),
    "to_debezium": lambda rows: to_debezium(rows, keys="k"),
    "to_upserts": lambda rows: to_upserts(rows, keys="k"),
    "write_table": lambda rows: write_table(rows, "duckdb:///t.db?table=t", keys="k", checkpoint="c"),
    "results": results,
    "dead_letters": dead_letters,
    "with_schema": lambda rows: with_schema(rows, "k BIGINT", streaming=False),
}


@pytest.mark.parametrize("function", NO_DATAFRAME)
@pytest.mark.parametrize(
    ("rows", "hint"),
    [
        ([1], "this is a list; give a batch or streaming DataFrame"),
        (None, "this is a NoneType"),
        (pd.DataFrame({"k": [1]}), r"this is a pandas\.\S*DataFrame; make it one: spark.createDataFrame"),
    ],
)
def test_an_object_that_is_no_dataframe_is_refused(function: str, rows: Any, hint: str) -> None:
    """Each function says that it takes a DataFrame, what it was given, and what to write."""
    with pytest.raises(RejectedError, match=f"{function} takes a DataFrame of Spark first, and {hint}") as excinfo:
        NO_DATAFRAME[function](rows)
    assert excinfo.value.code == "SIGNATURE"


def test_grouped_data_is_refused(df: Any) -> None:
    """PySpark's own groupBy comes first in the mind of a user of PySpark."""
    with pytest.raises(
        RejectedError, match=r"give the DataFrame itself: group_by\(df, \.\.\.\), not group_by\(df.groupBy"
    ):
        group_by(df.groupBy("k"))


@pytest.mark.parametrize("wrong", [None, [1], "local"])
def test_an_object_that_is_no_session_is_refused(wrong: Any) -> None:
    """As for DataFrames, in functions that take the session first."""
    calls: dict[str, Callable[[], Any]] = {
        "configure": lambda: configure(wrong),
        "sql": lambda: sql(wrong, "SELECT 1"),
        "register": lambda: register(wrong, connect("embedded:")),
        "enable": lambda: enable(wrong),
        "scan": lambda: scan(wrong, "orders"),
        "state_table": lambda: state_table(wrong, "checkpoint"),
    }
    for function, call in calls.items():
        with pytest.raises(RejectedError, match=f"{function} takes the session of Spark first") as excinfo:
            call()
        assert excinfo.value.code == "SIGNATURE"


def test_other_arguments_of_a_wrong_type_are_refused(classic: Any, df: Any) -> None:
    """Names of columns that are no names, a statement that is no text, functions that are none."""
    wrong: dict[str, Callable[[], Any]] = {
        r"keys has the names of columns, as in keys=\['id'\], not 5": lambda: upserts(df, keys=5, sequence_by="v"),  # type: ignore[arg-type]
        "keys has the names of columns, .*, not \\[5\\]": lambda: to_debezium(df, keys=[5]),  # type: ignore[list-item]
        "sequence_by has columns, as in sequence_by='lsn', not 7": lambda: upserts(df, keys="k", sequence_by=7),  # type: ignore[arg-type]
        "sql takes the text of a statement, and this is None": lambda: sql(classic, None),  # type: ignore[arg-type]
        r"register takes the result of connect, .*, not \[1\]": lambda: register(classic, [1]),  # type: ignore[arg-type]
    }
    for message, call in wrong.items():
        with pytest.raises(RejectedError, match=message):
            call()


@pytest.mark.parametrize("case", CASES)
def test_mistakes_show_when_the_query_is_built(df: Any, embedded: Any, case: str) -> None:
    """Each mistake is a RejectedError before anything runs, and the message names the mistake."""
    build, code, message = CASES[case]
    with pytest.raises(RejectedError, match=f"(?s){message}") as excinfo:
        build(df, embedded)
    assert excinfo.value.code == code
    assert not re.search(r"column_\d|key_\d", excinfo.value.message), "it has names that nobody wrote"


FROM_SPARK = [case for case in CASES if "Spark cannot" in CASES[case][2]]


@pytest.mark.parametrize("case", FROM_SPARK)
def test_messages_of_spark_become_one_line(spark: Any, embedded: Any, case: str) -> None:
    """The error has Spark's message without the plan and the stack of Spark Connect, also in its cause."""
    build, code, message = CASES[case]
    with pytest.raises(RejectedError, match=f"(?s){message}") as excinfo:
        build(table(spark), embedded)
    assert excinfo.value.code == code
    assert re.search(r"SQLSTATE: \w{5}$", excinfo.value.message)
    assert len(excinfo.value.message.splitlines()) == 1
    assert excinfo.value.__suppress_context__


def test_structs_with_two_fields_of_one_name_are_refused(df: Any, embedded: Any) -> None:
    """Spark does not pass them to Python. Where it needs no Python, they are keys and are counted."""
    odd_df = df.selectExpr("k", "s", "named_struct('a', v, 'A', v, 'a', w) AS twice", "array(struct(k, k)) AS deep")
    text, split = embedded["string_agg"]("s"), connect(scalar_functions)["split"]
    uses = {
        "the key 'twice'": lambda: group_by(odd_df, "twice").agg(n=text),
        "the key 'deep'": lambda: group_by(odd_df, "deep").agg(n=text),
        "the argument 'twice' of first": lambda: group_by(odd_df, "k").agg(n=embedded["first"]("twice")),
        "the argument 'twice' of count": lambda: group_by(odd_df, "k").agg(n=embedded["count"]("twice").distinct()),
        "the column 'twice'": lambda: over(odd_df, partition_by="k", order_by="s").agg(n=text),
        "the column 'deep'": lambda: join_lateral(odd_df.drop("twice"), split("s")),
    }
    for what, use in uses.items():
        with pytest.raises(RejectedError, match=f"{what} has a STRUCT with two fields named '[ak]'.*CAST") as excinfo:
            use()
        assert excinfo.value.code == "SCHEMA_MISMATCH"
    counts = group_by(odd_df, "twice").agg(n=embedded["count"]("deep")).collect()
    assert sorted((*tuple(row.twice), row.n) for row in counts) == [(v, v, 1, 1) for v in range(20)]
    register(df.sparkSession, embedded, {"first": "any_first", "count": "any_count"})
    odd_df.createOrReplaceTempView("twice")
    for plan in ("auto", "lists"):
        with pytest.raises(SqlError, match="the argument 'twice' of any_first has a STRUCT with two") as sql_error:
            sql(df.sparkSession, "SELECT any_first(twice) FROM twice", plan=plan)
        assert sql_error.value.code == "SCHEMA_MISMATCH"
    assert sql(df.sparkSession, "SELECT any_count(twice) FROM twice").first()[0] == 20


def test_a_window_of_months_is_refused(spark: Any) -> None:
    """Its length is no duration, so it is refused with what to group by; and so are units that Spark does not read."""
    with pytest.raises(RejectedError, match=r"^SIGNATURE: '1 month' is no length of a window.*date_trunc"):
        group_by(table(spark), window=tumble("zoned", "1 month"))
    with pytest.raises(RejectedError, match=r"^SIGNATURE: '24h' is no length .*'24 hours'"):
        session("zoned", "24h")
    table(spark).createOrReplaceTempView("by_months")
    register(spark, connect("embedded:"), {"count": "my_count"})
    months = "TUMBLE(TABLE by_months, DESCRIPTOR(zoned), INTERVAL '1-2' YEAR TO MONTH)"
    with pytest.raises(FoldflightError, match="is no length of a window, because months"):
        sql(spark, f"SELECT window_start, my_count(zoned) FROM {months} GROUP BY window_start")


@pytest.mark.parametrize(("function", "column"), [("zoneless", "zoned"), ("zoned", "zoneless"), ("of_json", "m")])
def test_the_remedy_for_a_type_works(df: Any, function: str, column: str) -> None:
    """A query that follows the remedy of the error is accepted."""
    with pytest.raises(RejectedError) as excinfo:
        group_by(df).agg(n=windows_of(function)(column))
    remedy = re.search(r"(CAST|to_json)\(.*?\)", excinfo.value.message)
    assert remedy is not None
    assert group_by(df).agg(n=windows_of(function)(remedy.group())).columns == ["n"]


def test_a_text_that_names_its_result_is_refused(spark: Any, embedded: Any) -> None:
    """A misspelt DESC is a name for Spark, so the order would be ascending without a word."""
    df = table(spark)
    build_of_text = {
        "v DSC": lambda text: group_by(df).agg(n=embedded["first"]("s").order_by(text)),
        "v descending NULLS LAST": lambda text: group_by(df).agg(n=embedded["first"]("s").order_by("k", text)),
        "v + 1 `DSC`": lambda text: over(df, "k", order_by=text).agg(n=embedded["first"]("s")),
        "v > 1 x": lambda text: group_by(df).agg(n=embedded["count"]().where(text)),
        "v AS x": lambda text: group_by(df).agg(n=embedded["sum"](text)),
    }
    for text, build in build_of_text.items():
        with pytest.raises(RejectedError, match=r"names its result .*(DSC|descending|x)`?, .*ASC or DESC") as excinfo:
            build(text)
        assert excinfo.value.code == "SIGNATURE"
        assert text.removesuffix(" NULLS LAST") in excinfo.value.message


def test_expressions_that_end_with_a_word_are_no_names(spark: Any, embedded: Any, rows_of: Any) -> None:
    """And keys may have names."""
    df = table(spark).withColumnRenamed("w", "w DSC")
    result = group_by(df, "k AS key").agg(
        a=embedded["sum"]("CASE WHEN v > 1 THEN v END").where("s IS NOT NULL"),
        b=embedded["sum"]("w DSC"),
        c=embedded["first"]("v").order_by("k * v DESC", "w DSC"),
    )
    assert result.columns == ["key", "a", "b", "c"]
    assert rows_of(result) == [(0, 90, 10, 0), (1, 99, 10, 19)]
    assert "key" in group_by(df, "k key", window=tumble("zoned", "1 day")).agg(n=embedded["count"]()).columns


def test_habits_of_pyspark_users_work(spark: Any, embedded: Any, rows_of: Any) -> None:
    """Lists of keys, aggregates by alias, functions as attributes, and names of Python's own parameters work."""
    df = table(spark)
    names = {"self": embedded.count(), "aliased": embedded.count(), "named": embedded.count(), "df": embedded.count()}
    result = group_by(df, ["k", sf.col("w")]).agg(embedded.sum("v").alias("total"), **names)
    assert result.columns == ["k", "w", "total", "self", "aliased", "named", "df"]
    assert rows_of(result) == [(0, 1, 90, 10, 10, 10, 10), (1, 1, 100, 10, 10, 10, 10)]


@pytest.mark.parametrize("at", ["accumulate", "merge", "get_value"])
def test_an_error_of_the_author_names_group_and_row(spark: Any, functions: Any, at: str) -> None:
    """The error of a failed task names function, group and row, and shows the author's line."""
    df = spark.range(0, 14, 1, 2).selectExpr("named_struct('b', id % 2) AS k", "id AS v")
    with pytest.raises(Exception, match="bad luck") as excinfo:
        # Without a plan, a class that raises in merge only is lifted, and needs no merge.
        group_by(df, "k", plan="fold" if at == "merge" else "auto").agg(o=functions["picky"]("v", at=at)).collect()
    text = str(excinfo.value)
    assert f"USER_CODE: {at} raised ValueError" in text
    assert "function: picky" in text
    assert "group: k={'b': " in text
    if at != "merge":
        assert "group: k={'b': 1}" in text
    if at == "accumulate":
        assert "v=13" in text
    assert "spark_functions.py" in text
    # The message comes first, and the function's own frames are all that there are.
    assert "foldflight.errors.FunctionError: USER_CODE: " in text
    frames = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
    assert frames
    assert all("spark_functions.py" in frame for frame in frames), text


@udaf(name="helped", input_types=["BIGINT"], result_type="BIGINT")
class Helped:
    """Refers to a module that only the driver has: `helper` is filled in."""

    helper: Any = None

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, v: int) -> int:
        return accumulator + self.helper.added(v)

    def get_value(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize("at", ["top", "inside"])
def test_a_module_that_workers_lack_is_named(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The error for a module that was not sent to the workers names the module and addPyFile."""
    (tmp_path / "beside_the_driver.py").write_text("def added(v):\n    return v\n")
    monkeypatch.syspath_prepend(tmp_path)

    def import_in_worker(v: int) -> int:
        import beside_the_driver  # type: ignore[import-not-found]

        return int(beside_the_driver.added(v))

    module = __import__("beside_the_driver")
    helper = module if at == "top" else types.SimpleNamespace(added=import_in_worker)
    monkeypatch.setattr(Helped, "helper", helper)
    df = spark.range(0, 14, 1, 2)
    with pytest.raises(Exception, match="beside_the_driver") as excinfo:
        group_by(df).agg(o=connect(Helped)["helped"]("id")).collect()
    monkeypatch.delitem(sys.modules, "beside_the_driver")
    text = str(excinfo.value)
    assert "the module beside_the_driver is not installed where functions are folded" in text
    assert "addPyFile('beside_the_driver.py')" in text
    assert {"top": "RejectedError: MODULE: helped", "inside": "FunctionError: USER_CODE: accumulate"}[at] in text


def test_an_object_that_cannot_be_pickled_is_named_when_the_query_is_built(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that refers to a lock is refused by `agg`, with function and variable, before Spark pickles it."""
    monkeypatch.setattr(Helped, "helper", threading.Lock())
    with pytest.raises(RejectedError, match=r"helped cannot be sent .*Helped\.helper is _thread\.lock") as excinfo:
        group_by(spark.range(3)).agg(o=connect(Helped)["helped"]("id"))
    assert excinfo.value.code == "SIGNATURE"


def test_overflow_is_an_error(classic: Any, functions: Any) -> None:
    """A sum beyond BIGINT fails the query rather than wrapping."""
    df = classic.sql("SELECT id, 9223372036854775807 AS v FROM range(2)")
    with pytest.raises(Exception, match="OVERFLOW"):
        group_by(df).agg(o=functions["sum"]("v")).collect()


@pytest.mark.every_turn
def test_a_stopped_server_is_unreachable_in_the_error_of_a_task(classic: Any) -> None:
    """A server that stopped after the query was built is UNREACHABLE in the task's error; a lifted query needs none."""
    from foldflight.server.run.lifecycle import serving

    with serving(spark_functions, state_keys="a key for the spark tests") as server:
        functions = connect(server.url, deadline_s=5, patience_s=2)
        result = group_by(classic.range(10), "id", plan="fold").agg(n=functions["count"]())
        lifted_df = group_by(classic.range(10), "id").agg(n=functions["count"]())
    assert lifted_df.count() == 10
    with pytest.raises(FoldflightError, match="UNREACHABLE"):
        group_by(classic.range(10), "id").agg(n=functions["count"]())
    with pytest.raises(Exception, match="UNREACHABLE"):
        result.collect()


def test_a_misspelled_column_logs_nothing(df: Any) -> None:
    """Spark's own error, which PySpark logs with the trace of the JVM, is not shown before ours."""
    logs = pytest.importorskip("pyspark.logger", reason="PySpark logs errors since 4.0")
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logs.PySparkLogger.getLogger("SQLQueryContextLogger")
    logger.addHandler(handler)
    try:
        with pytest.raises(RejectedError, match="cannot resolve the argument 'nope' of sum"):
            group_by(df, "k").agg(n=connect("embedded:")["sum"]("nope"))
    finally:
        logger.removeHandler(handler)
    assert records == []


@since_spark("4.3", "real-time mode in Python")
def test_a_stream_in_real_time_mode_is_refused_with_the_remedy(classic: Any, embedded: Any, tmp_path: Path) -> None:
    """What Spark says of the trigger becomes an error that tells the triggers with which the query runs."""
    counts = group_by(classic.readStream.format("rate").load(), "value").agg(n=embedded["count"]())
    writer = counts.writeStream.format("console").outputMode("update").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(realTime="5 minutes").start()  # type: ignore[call-overload]
    with pytest.raises(PySparkException) as excinfo:
        query.awaitTermination(60)
    result = error_of(excinfo.value)
    assert isinstance(result, RejectedError)
    assert result.code == "SETTINGS"
    assert "start the query with trigger(processingTime=...)" in result.message


def test_a_direction_without_an_order_is_refused(spark: Any, embedded: Any) -> None:
    """Spark drops the direction of a column that no rows are sorted by; behind a comment it takes DESC for a name."""
    df = table(spark)
    for build in (
        lambda: group_by(df).agg(n=embedded["first"](sf.desc("v"))),
        lambda: group_by(df, sf.col("k").asc_nulls_last()).agg(n=embedded["count"]()),
        lambda: group_by(df).agg(n=embedded["count"]().where(sf.col("v").desc())),
    ):
        with pytest.raises(
            RejectedError, match=r"has PySpark's asc\(\) or desc\(\), and a direction has no use"
        ) as excinfo:
            build()
        assert excinfo.value.code == "SIGNATURE"
    for text in ("v DESC -- newest", "v DESC /* newest */", "v DESC --"):
        with pytest.raises(RejectedError, match=r"names its result, .*no comment follows"):
            group_by(df).agg(n=embedded["first"]("s").order_by(text))
    assert [tuple(row) for row in group_by(df).agg(n=embedded["count"]("v -- a comment")).collect()] == [
        tuple(row) for row in group_by(df).agg(n=embedded["count"]("v")).collect()
    ]
