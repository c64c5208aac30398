"""What the installed Spark cannot do is refused with the remedy, and the rest is the same on each version."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect, udf
from foldflight.cli.local_session import errors_as_text
from foldflight.errors import FunctionError
from foldflight.spark import group_by, sql, state_table, with_columns, write_table
from foldflight.spark.errors import raise_error
from foldflight.sql import SqlError
from tests.spark_sessions import SPARK, since_spark


@udf
def show_values(i: int | None, x: float | None, d: Annotated[Decimal | None, "DECIMAL(38, 2)"]) -> str:
    return f"{i} {x} {d}"


@udf
def show_times(
    at: Annotated[datetime.datetime, "TIMESTAMPTZ"], local: Annotated[datetime.datetime, "TIMESTAMP"]
) -> str:
    return f"{at.astimezone(datetime.UTC).isoformat()} {local.isoformat()}"


def before_spark(version: str) -> pytest.MarkDecorator:
    newer = tuple(map(int, version.split("."))) <= SPARK
    return pytest.mark.skipif(newer, reason=f"Spark {version} can do it")


@before_spark("4.0")
def test_streams_are_refused_where_spark_lacks_them(classic: Any, embedded: Any) -> None:
    """Reading their state is refused, too."""
    stream = classic.readStream.format("rate").load()
    with pytest.raises(RejectedError, match=r"streams need Spark 4\.0 or later, and this is Spark 3\.5\.\d+; run the"):
        group_by(stream, "value").agg(n=embedded["count"]())
    with pytest.raises(RejectedError, match=r"`write_table` needs Spark 4\.0 or later, and this is Spark 3\.5\.\d+; w"):
        write_table(stream, "duckdb:///t?table=t", keys=["value"], checkpoint="c", create=True)
    with pytest.raises(
        RejectedError, match=r"streams and their states need Spark 4\.0 or later, and this is Spark 3\."
    ):
        state_table(classic, "c")


@before_spark("4.2")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT v FROM numbers QUALIFY rank() OVER (ORDER BY v) = 1", r"QUALIFY in SQL needs Spark 4\.2 or later"),
        (
            "SELECT sum(v) FILTER (WHERE v > 1) OVER () AS s, exact_sum(v) OVER () FROM numbers",
            r"in OVER needs Spark 4\.2 or later, and this is Spark .*; write sum\(CASE WHEN",
        ),
    ],
)
def test_grammar_of_newer_versions_is_refused(classic: Any, embedded: Any, query: str, message: str) -> None:
    """Spark's refusal, and what it means."""
    from foldflight.spark import register

    register(classic, embedded, {"sum": "exact_sum"})
    classic.range(4).selectExpr("id AS v").createOrReplaceTempView("numbers")
    with pytest.raises(SqlError, match=message):
        sql(classic, query)


@pytest.mark.every_turn
def test_values_reach_functions_of_sql_unchanged(classic: Any) -> None:
    """NULL is not NaN, a large BIGINT is exact beside NULL, a decimal keeps its digits: on all versions."""
    rows = [
        (2**62 + 1, float("nan"), Decimal("12345678901234567890.12")),
        (None, None, None),
        (-3, 0.5, Decimal("-1.00")),
    ]
    df = classic.createDataFrame(rows, "i bigint, x double, d decimal(38, 2)")
    f = connect(show_values)["show_values"]
    udf = f.spark_udf()
    as_udf = [row[0] for row in df.select(udf("i", "x", "d")).collect()]
    as_columns = [row.s for row in with_columns(df, s=f("i", "x", "d")).collect()]
    expected = [
        "4611686018427387905 nan 12345678901234567890.12",
        "None None None",
        "-3 0.5 -1.00",
    ]
    assert as_udf == as_columns == expected


def test_times_reach_functions_of_sql_unchanged(classic: Any) -> None:
    """The hour that comes twice in autumn stays two hours; a time without zone has none."""
    moments = [1_793_505_000 + 3600 * hour for hour in range(4)]  # 2026-11-01, before and after 2:00 in New York
    df = classic.createDataFrame([(each,) for each in moments], "s bigint").select(
        sf.timestamp_seconds("s").alias("at"), sf.expr("timestamp_ntz'2026-03-08 02:30:00'").alias("local")
    )
    before = classic.conf.get("spark.sql.session.timeZone")
    classic.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        f = connect(show_times)["show_times"]
        as_udf = [row[0] for row in df.select(f.spark_udf()("at", "local")).collect()]
        as_columns = [row.s for row in with_columns(df, s=f("at", "local")).collect()]
    finally:
        classic.conf.set("spark.sql.session.timeZone", before)
    utc = [datetime.datetime.fromtimestamp(each, datetime.UTC).isoformat() for each in moments]
    assert as_udf == as_columns == [f"{each} 2026-03-08T02:30:00" for each in utc]


def test_commands_restore_errors_of_expressions(classic: Any) -> None:
    """PySpark of Spark 3.5 has no class for such an error, which Py4J raises then."""
    df = classic.range(1).select(raise_error("OVERFLOW", "the total does not fit BIGINT").alias("total"))
    with pytest.raises(FunctionError) as excinfo, errors_as_text():
        df.collect()
    assert (excinfo.value.code, excinfo.value.message) == ("OVERFLOW", "the total does not fit BIGINT")


@since_spark("4.0", "VARIANT")
def test_variants_are_refused_as_keys(classic: Any, embedded: Any) -> None:
    """A value that cannot be compared is refused as a key."""
    df = classic.sql("SELECT parse_json('1') AS v")
    with pytest.raises(RejectedError, match="the key 'v' is variant, which cannot be a key"):
        group_by(df, "v").agg(n=embedded["count"]())
