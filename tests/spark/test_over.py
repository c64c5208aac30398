"""`over(...).agg(...)` beside OVER of Spark SQL."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as sf

from foldflight import connect
from foldflight.client import Functions
from foldflight.errors import RejectedError
from foldflight.functions.query.frame import WindowFrame
from foldflight.spark import group_by, over
from foldflight.spark.errors import error_of
from tests.spark_sessions import since_spark

SCHEMA = "id int, k string, at timestamp, day date, x double, d decimal(9,2), n int, v bigint, w int, emit boolean"
START = dt.datetime(2013, 1, 1, 12)

# By name: the order, the frame, and both in SQL.
WINDOWS = {
    "rows": ("id", WindowFrame(-2, 1), "id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING"),
    "whole": ("id", WindowFrame(None, None), "id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"),
    "peers": ("n, w", None, "n, w"),
    "hour": (
        "at",
        WindowFrame("-1 hour", 0, is_range=True),
        "at RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW",
    ),
    "days": (
        "day DESC",
        WindowFrame("-2 days", "1 day", is_range=True),
        "day DESC RANGE BETWEEN INTERVAL '2' DAY PRECEDING AND INTERVAL '1' DAY FOLLOWING",
    ),
    "number": (
        "n NULLS LAST",
        WindowFrame(-2, 3, is_range=True),
        "n NULLS LAST RANGE BETWEEN 2 PRECEDING AND 3 FOLLOWING",
    ),
    "real": (
        "x DESC NULLS FIRST",
        WindowFrame(-0.5, None, is_range=True),
        "x DESC NULLS FIRST RANGE BETWEEN 0.5D PRECEDING AND UNBOUNDED FOLLOWING",
    ),
    "far": ("CAST(n AS TINYINT)", WindowFrame(-300, 0, is_range=True), "n RANGE BETWEEN 300 PRECEDING AND CURRENT ROW"),
    "money": ("d", WindowFrame(-1.25, 0, is_range=True), "d RANGE BETWEEN 1.25 PRECEDING AND CURRENT ROW"),
}
CALLS = {
    "total": "sum(v) OVER {0}",
    "bundled": "sum(v) OVER {0}",
    "some": "count(v) FILTER (WHERE emit) OVER {0}",
    "most": "max(v) OVER {0}",
    "mean": "CAST(sum(v * w) OVER {0} / nullif(sum(IF(v IS NULL, 0, w)) OVER {0}, 0) AS BIGINT)",
}


def random_rows(count: int) -> list[tuple[Any, ...]]:
    rng = random.Random(17)

    def maybe(value: Any) -> Any:
        return rng.choice([value, value, value, None])

    return [
        (
            number,
            maybe(rng.choice("ab")),
            maybe(START + dt.timedelta(minutes=20 * rng.randrange(20))),
            maybe(START.date() + dt.timedelta(rng.randrange(8))),
            maybe(rng.choice([0.0, -0.0, 0.5, 1.25, float("nan"), float("inf")])),
            maybe(Decimal(rng.randrange(20)) / 4),
            maybe(rng.randrange(12)),
            maybe(rng.randrange(-20, 20)),
            rng.randrange(1, 4),
            maybe(rng.random() < 0.5),
        )
        for number in range(count)
    ]


def compare(spark: Any, functions: Functions, names: list[str]) -> None:
    """Compute some of the windows with `over` and with SQL, and compare all columns of the results."""
    df = spark.createDataFrame(random_rows(60), SCHEMA)
    df.createOrReplaceTempView("rows_of_over")
    uses = {
        "total": functions["sum"]("v"),
        "bundled": functions["bundled_sum"]("v"),
        "some": functions["count"]("v").where("emit"),
        "most": functions["max"]("v"),
        "mean": functions["weighted_avg"]("v", "w"),
    }
    selected = ["*"]
    for name in names:
        clause = f"(PARTITION BY k ORDER BY {WINDOWS[name][2]})"
        selected += [f"{CALLS[use].format(clause)} AS {name}_{use}" for use in uses]
    expected = spark.sql(f"SELECT {', '.join(selected)} FROM rows_of_over ORDER BY id").toArrow().to_pylist()
    for order in dict.fromkeys(WINDOWS[name][0] for name in names):
        calls = {
            f"{name}_{use}": dataclasses.replace(uses[use], frame=WINDOWS[name][1])
            for name in names
            if WINDOWS[name][0] == order
            for use in uses
        }
        result = over(df, "k", order_by=order.split(", ")).agg(**calls)
        assert result.columns == [*df.columns, *calls]
        actual = sorted(result.toArrow().to_pylist(), key=lambda row: row["id"])
        expected_rows = [{name: row[name] for name in result.columns} for row in expected]
        assert list(map(repr, actual)) == list(map(repr, expected_rows)), order


@pytest.mark.slow
def test_every_frame_equals_that_of_spark(sessions: dict[str, Any], embedded: Functions) -> None:
    """ROWS, and RANGE over timestamps, dates and numbers: NULL, NaN, zeros, ties and both directions are as in SQL."""
    compare(sessions["classic"], embedded, list(WINDOWS))


@since_spark("4.2", "FILTER in OVER, with which the results are compared,")
def test_frames_are_folded_in_one_pass_on_servers(sessions: dict[str, Any], server_url: str) -> None:
    """Several frames in one pass, on a server."""
    compare(sessions["classic"], connect(server_url), ["rows", "whole"])


@pytest.mark.slow
@pytest.mark.parametrize("spark", ["connect"], indirect=True)
def test_frames_are_folded_in_one_pass_through_connect(spark: Any, embedded: Functions) -> None:
    """Several frames in one pass, through Spark Connect."""
    compare(spark, embedded, ["rows", "whole"])
    in_the_order_of_columns(spark, embedded)


def in_the_order_of_columns(spark: Any, functions: Functions) -> None:
    df = spark.sql("SELECT id, nullif(id, 2) AS n FROM range(4)")
    last = functions["last"]
    for order, expected in (
        (sf.col("n").desc(), [3, 1, 0, 2]),
        (sf.desc_nulls_first("n"), [2, 3, 1, 0]),
        (df.n.asc_nulls_last(), [0, 1, 3, 2]),
        ("n + 0 ASC NULLS LAST", [0, 1, 3, 2]),
        (sf.col("n"), [2, 0, 1, 3]),
    ):
        rows = over(df, order_by=order).agg(place=functions["count"]().rows(None, 0)).collect()
        assert [row.id for row in sorted(rows, key=lambda row: row.place)] == expected
        (result,) = group_by(df).agg(last=last("id").order_by(order)).collect()
        assert result.last == expected[-1]
    for order in (sf.expr("n + 0").desc(), sf.desc("other")):
        with pytest.raises(RejectedError, match='write it as text with its direction, as in "a'):
            over(df, order_by=order)
        with pytest.raises(RejectedError, match="is not the name of a column of the input"):
            group_by(df).agg(last=last("id").order_by(order))


def test_an_order_may_be_a_column_of_pyspark(sessions: dict[str, Any], embedded: Functions) -> None:
    """Its direction, and the place of NULL, are those that PySpark gives it."""
    in_the_order_of_columns(sessions["classic"], embedded)


def test_keys_and_order_are_optional_and_columns_of_any_type_pass(
    sessions: dict[str, Any], embedded: Functions
) -> None:
    """Without keys there is one partition; columns of any type come back, also under names that chunks reserve."""
    df = sessions["classic"].sql("SELECT id AS emit, map('a', id) AS slot, struct(id) AS `in 0` FROM range(5)")
    result = over(df).agg(embedded["sum"]("emit").alias("total"), n=embedded["count"]()).collect()
    assert sorted((row.emit, row.slot, row["in 0"].id, row.total, row.n) for row in result) == [
        (number, {"a": number}, number, 10, 5) for number in range(5)
    ]
    assert over(df.limit(0), "emit").agg(n=embedded["count"]()).collect() == []


def test_a_column_of_the_input_is_sent_once(sessions: dict[str, Any], embedded: Functions) -> None:
    """It may be a key, the order, an argument and a condition. An expression has a column, also under a name of one."""
    df = sessions["classic"].sql("SELECT id AS k, id % 2 AS `a.b`, id % 2 = 0 AS ok, -id AS `'x'` FROM range(4)")
    total = embedded["sum"]("k").where("ok")
    window = over(df, "k", sf.expr("`a.b` + 1").alias("ok"), order_by=["`a.b` DESC", "'x'", "k"])
    query, rows, *_ = window._resolve((), {"total": total, "n": embedded["count"]("`a.b`")})
    assert rows.columns == ["in_0", "in_1", "in_2", "in_3", "key_1"]
    layout = query.layout
    assert [layout.keys.names, layout.order.names] == [["in_0", "key_1"], ["in_1", "in_3", "in_0"]]
    assert (layout.columns.names, layout.display_names) == (["in_0", "in_2", "in_1"], ("k", "where ok", "`a.b`"))
    twice = over(df, "k", "k", order_by="k").agg(total=total, n=embedded["count"]())
    for result in (window.agg(total=total, n=embedded["count"]()), twice):
        actual = sorted(map(tuple, result.collect()))
        assert actual == [(k, k % 2, k % 2 == 0, -k, None if k % 2 else k, 1) for k in range(4)]


def test_mistakes_are_refused_before_anything_runs(
    sessions: dict[str, Any], embedded: Functions, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what does not fit, and what to do; `explain` says how each frame is folded."""
    spark, count = sessions["classic"], embedded["count"]()
    df = spark.createDataFrame([], SCHEMA)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(RejectedError, match="rows wait for the watermark, and this stream has none"):
        over(stream, "value")
    with pytest.raises(RejectedError, match="n has the frame ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING, and a group"):
        group_by(df, "k").agg(n=count.rows(0, 1))
    for order, frame, message in (
        (["at", "id"], ("-1 hour", 0), "needs one column in order_by, and there are 2"),
        ("n", ("-1 hour", 0), "'n', which is int; give a whole number"),
        ("n", (-0.5, 0), "give a whole number"),
        ("at", (-1, 0), "give an interval such as"),
        ("at", ("-1 parsec", 0), "Spark cannot add the distance '-1 parsec'"),
        ("day", ("-1 hour", 0), "order by CAST"),
        ("k", (-1, 0), "order by a number, a date or a timestamp"),
        ("d", (-0.001, 0), "at most 2 after the point"),
        ("nowhere", (None, 0), "Spark cannot resolve"),
    ):
        with pytest.raises(RejectedError) as excinfo:
            over(df, "k", order_by=order).agg(times=count.range(*frame))
        assert message in str(excinfo.value)
    with pytest.raises(
        RejectedError, match=r"the order 'map\(k, n\)' .* cannot be an order.*; order by a part of it, or its text"
    ):
        over(df, "k", order_by="map(k, n)").agg(times=count)
    with pytest.raises(RejectedError, match="'ID' is the name of two columns"):
        over(df, "k").agg(ID=count)
    with pytest.raises(RejectedError, match="median with DISTINCT or an order folds all rows of a frame"):
        over(df, "k", order_by="x").agg(half=embedded["median"]("v").distinct().rows(-2000, 0))
    over(df, "k", order_by="id").explain(
        times=count.rows(-5, 0),
        m=embedded["max"]("v").rows(-5, 0),
        s=count,
        p=embedded["max"]("v").rows(-5, 0, by="recompute"),
    )
    output = capsys.readouterr().out
    for way in (
        "retract, because it is invertible",
        "merge, because it merges",
        "accumulate, because",
        "recompute, because",
    ):
        assert f"folded: {way}" in output


LEAST, GREATEST = -(1 << 63), (1 << 63) - 1


@pytest.mark.every_turn
@pytest.mark.parametrize("is_ansi", ["true", "false"])
def test_the_end_of_a_frame_never_wraps(classic: Any, embedded: Functions, is_ansi: str) -> None:
    """An order value and a distance beyond BIGINT are an error; sums that just fit are exact, and NULLs are peers."""
    near_least = {None: 1, LEAST: 2, LEAST + 1: 1, 0: 1, GREATEST - 1: 1}
    near_greatest = {None: 1, LEAST + 1: 1, 0: 1, GREATEST - 1: 1, GREATEST: 2}
    rows = classic.createDataFrame([(at,) for at in {**near_least, **near_greatest}], "at bigint")
    classic.conf.set("spark.sql.ansi.enabled", is_ansi)
    try:
        for order, frame, unfit, expected in (
            ("at", (0, 1), GREATEST, near_least),
            ("at", (-1, 0), LEAST, near_greatest),
            ("at DESC", (0, 1), LEAST, near_greatest),
            ("at DESC", (-1, 0), GREATEST, near_least),
        ):
            call = embedded["count"]().range(*frame)
            result = over(rows.where(f"at IS NULL OR at <> {unfit}"), order_by=order).agg(n=call).collect()
            assert {row["at"]: row["n"] for row in result} == expected
            with pytest.raises(Exception, match=f"{unfit} in the order 'at' and the distance") as excinfo:
                over(rows, order_by=order).agg(n=call).collect()
            error = error_of(excinfo.value)
            assert error is not None
            assert error.code == "SCHEMA_MISMATCH"
    finally:
        classic.conf.unset("spark.sql.ansi.enabled")


def test_the_keys_may_be_named(classic: Any) -> None:
    """`partition_by` has the words of SQL, beside `order_by`: a name, a Column or a list."""
    df = classic.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "k string, v int")
    count = connect("embedded:")["count"]
    expected = sorted(over(df, "k", order_by="v").agg(n=count()).collect())
    for keys in ("k", df["k"], ["k"]):
        assert sorted(over(df, partition_by=keys, order_by="v").agg(n=count()).collect()) == expected
    with pytest.raises(RejectedError, match="PARTITION BY twice") as excinfo:
        over(df, "k", partition_by="k")
    assert excinfo.value.code == "SIGNATURE"


def test_columns_of_one_name_pass_through(classic: Any, embedded: Functions) -> None:
    """A join may have two columns of one name: both are in the result, and only a query that names them fails."""
    left = classic.createDataFrame([(1, "a", 10)], "id int, note string, v bigint")
    joined_df = left.join(classic.createDataFrame([(1, "b")], "id int, NOTE string"), left["id"] == 1)
    frame = over(joined_df, "v", order_by=left["id"])
    calls = {"n": embedded.count("v"), "some": embedded.sum("v + 1").where("v > 1")}
    result = frame.agg(**calls)
    assert result.columns == ["id", "note", "v", "id", "NOTE", "n", "some"]
    assert [tuple(row) for row in result.collect()] == [(1, "a", 10, 1, "b", 1, 11)]
    with pytest.raises(RejectedError, match=r"(?i)ambiguous"):
        frame.agg(last=embedded.last("note"))
    with pytest.raises(RejectedError, match="'ID' is the name of two columns of the result"):
        frame.agg(ID=embedded.count("v"))
