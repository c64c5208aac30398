"""VECTOR(n) in Spark: arrays whose length is checked, in batches, OVER, SQL, streams, views and tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from foldflight import RejectedError
from foldflight.client import Functions
from foldflight.spark import (
    dead_letters,
    group_by,
    join_lateral,
    over,
    register,
    results,
    session,
    sql,
    with_columns,
    write_table,
)
from foldflight.spark.errors import error_of
from tests.spark.spark_functions import LONG
from tests.spark.test_stream import Stream
from tests.spark_sessions import since_spark

DDL = "k string, i int, v array<float>"
ROWS = [
    ("a", 1, [1.0, 2.0, 3.0]),
    ("a", 2, None),
    ("a", 3, [3.0, 4.0, 5.0]),
    ("b", 4, None),
    ("c", 5, [0.0, -0.0, 9.0]),
]
MEANS = [("a", [2.0, 3.0, 4.0]), ("b", None), ("c", [0.0, 0.0, 9.0])]


def sorted_rows(df: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


def error_text(exception: Exception) -> str:
    """Return the text of our error. One of Spark itself is raised again, because a lost worker repeats the test."""
    error = error_of(exception)
    if error is None:
        raise exception
    return str(error)


@pytest.mark.every_turn
def test_batches_take_and_return_vectors(spark: Any, functions: Functions) -> None:
    """Both plans, results that are arguments again, and OVER; NULL reaches the function."""
    df = spark.createDataFrame(ROWS, DDL).repartition(3)
    means = group_by(df, "k").agg(mean=functions["centroid"]("v"))
    assert means.schema["mean"].dataType == st.ArrayType(st.FloatType())
    assert sorted_rows(means) == MEANS
    one_phase = group_by(df, "k", on_error="isolate").agg(mean=functions["centroid"]("v"))
    assert sorted_rows(results(one_phase)) == MEANS
    norms = with_columns(means, longer=functions["longer"]("mean"))
    assert norms.schema["longer"].dataType == st.ArrayType(st.DoubleType())
    assert sorted_rows(norms.selectExpr("k", "round(longer[3] * longer[3])")) == [("a", 29), ("b", None), ("c", 81)]
    over_df = over(df, "k", order_by="i").agg(mean=functions["centroid"]("v").rows(-1, 0))
    assert sorted_rows(over_df.select("i", "mean")) == [
        (1, [1.0, 2.0, 3.0]),
        (2, [1.0, 2.0, 3.0]),
        (3, [3.0, 4.0, 5.0]),
        (4, None),
        (5, [0.0, 0.0, 9.0]),
    ]


@pytest.mark.every_turn
def test_each_form_of_functions_takes_vectors(spark: Any, functions: Functions) -> None:
    """Async and vectorised scalar functions, table functions, bundles, sessions and DISTINCT."""
    df = spark.createDataFrame(ROWS, DDL).repartition(2)
    doubled_values = {key: None if v is None else [2 * item for item in v] for _, key, v in ROWS}
    in_forms = with_columns(
        df,
        later=functions["doubled_later"]("v"),
        arrow=functions["same_in_arrow"](functions["doubled_later"]("v")),
        numpy=functions["halved_in_numpy"]("v"),
    )
    for _, key, v, later, arrow, numpy in sorted_rows(in_forms):
        assert str(later) == str(arrow) == str(doubled_values[key])
        assert str(v) == str(None if numpy is None else [2 * item for item in numpy])
    parts = join_lateral(df, functions["parts_of"]("v"))
    assert parts.schema["part"].dataType == st.ArrayType(st.FloatType())
    assert sorted_rows(parts.where("i = 3").select("at", "part")) == [(0, [1.5, 2.0, 2.5]), (1, None)]
    assert parts.count() == 2 * sum(v is not None for *_, v in ROWS)
    timed_df = df.selectExpr("*", "timestamp_seconds(i * 60) AS at")
    by_session = group_by(timed_df, "k", window=session("at", "90 seconds")).agg(
        total=functions["bundled_vectors"]("v"),
        different=functions["centroid"]("v").distinct(),
    )
    result = [(row["k"], row["total"], row["different"]) for row in by_session.collect()]
    means = dict(MEANS)
    totals = {"a": [4.0, 6.0, 8.0], "b": [0.0] * 3, "c": [0.0, 0.0, 9.0]}
    assert sorted(result, key=repr) == [(key, totals[key], means[key]) for key in "abc"]


def test_statements_take_arrays_as_vectors(spark: Any, embedded: Functions) -> None:
    """A statement takes arrays as vectors, also from a subquery, and in the `collect_list` plan."""
    register(spark, embedded, {"centroid": "centroid"})
    spark.createDataFrame(ROWS, DDL).createOrReplaceTempView("vectors")
    assert sorted_rows(sql(spark, "SELECT k, centroid(v) AS mean FROM vectors GROUP BY k")) == MEANS
    text = "SELECT k FROM vectors GROUP BY k HAVING centroid(v)[2] > 4 AND count(*) = (SELECT 1)"
    assert sorted_rows(sql(spark, text)) == [("c",)]


@pytest.mark.every_turn
@pytest.mark.parametrize(("wrong", "why"), [([1.0, 2.0], "it has 2 items"), ([1.0, None, 2.0], "its item 1 is NULL")])
def test_other_lists_are_errors_with_column_and_row(
    spark: Any, functions: Functions, wrong: list[float | None], why: str
) -> None:
    """The error names the column, the group and the row, in each place; with dead letters only the group fails."""
    df = spark.createDataFrame([*ROWS, ("b", 6, wrong)], DDL)
    df.createOrReplaceTempView("wrong_vectors")
    register(spark, functions, {"centroid": "centroid"})
    for result in (
        group_by(df, "k").agg(mean=functions["centroid"]("v")),
        with_columns(df, longer=functions["longer"]("v")),
        over(df, "k", order_by="i").agg(mean=functions["centroid"]("v").rows(-1, 0)),
        sql(spark, "SELECT k, centroid(v) AS mean FROM wrong_vectors GROUP BY k"),
    ):
        with pytest.raises(PySparkException) as excinfo:
            result.collect()
        text = error_text(excinfo.value)
        assert f"the argument v has a list that is no VECTOR(3): {why}" in text
        assert "row: v=" in text
    isolated_df = group_by(df, "k", on_error="isolate").agg(mean=functions["centroid"]("v"))
    assert sorted_rows(results(isolated_df)) == [MEANS[0], MEANS[2]]
    letters = dead_letters(isolated_df).collect()  # both rows of the group
    assert [(letter["key"]["k"], why in letter["message"]) for letter in letters] == [("b", True)] * 2


EXTREME = [math.nan, math.inf, -math.inf, -0.0] * (LONG // 4)
# Whole numbers, so that sums have the same bits in any order.
NUMBERS = np.random.default_rng(7).integers(-1000, 1000, (3, LONG)).astype(float).tolist()
LONG_ROWS = [("a", 0, NUMBERS[0]), ("a", 1, None), ("a", 2, NUMBERS[1]), ("b", 3, None), ("c", 4, EXTREME)]
GONE = [("d", 5, NUMBERS[2]), ("d", 6, None)]


def texts(rows: Any) -> dict[str, str]:
    """Return vectors by their key as texts, which tell -0.0 and NaN."""
    return {key: str(vector) for key, vector in rows}


def long_means() -> dict[str, str]:
    mean = ((np.array(NUMBERS[0]) + NUMBERS[1]) / 2).astype(np.float32).tolist()
    return texts([("a", mean), ("b", None), ("c", [item + 0.0 for item in EXTREME])])  # a sum begins with 0.0


@pytest.mark.every_turn
def test_long_and_extreme_vectors_equal_those_of_numpy(spark: Any, functions: Functions) -> None:
    """3,072 items, NaN, infinities, -0.0, NULL and groups without a row are NumPy's in each plan."""
    df = spark.createDataFrame(LONG_ROWS, DDL).repartition(3)
    df.createOrReplaceTempView("long_vectors")
    register(spark, functions, {"long_centroid": "long_centroid"})
    changes = [("+I", *row) for row in [*LONG_ROWS, *GONE]] + [("-D", *row) for row in GONE]
    kinds = spark.createDataFrame(changes, f"op string, {DDL}").repartition(3)
    mean = functions["long_centroid"]("v")
    over_df = over(df, "k", order_by="i").agg(mean=mean.rows(-1, 0)).where("i IN (1, 3, 4)")
    negated_df = with_columns(df, mean=functions["long_negated"]("v")).where("i IN (1, 2, 4)")
    result = {
        "two phases": group_by(df, "k").agg(mean=mean),
        "one phase": results(group_by(df, "k", on_error="isolate").agg(mean=mean)),
        "kinds": group_by(kinds, "k", row_kind="op").agg(mean=mean),
        "statement": sql(spark, "SELECT k, long_centroid(v) AS mean FROM long_vectors GROUP BY k"),
        "over": over_df.select("k", "mean"),
        "scalar": negated_df.select("i", "mean"),
    }
    expected = dict.fromkeys(result, long_means())
    expected["over"] = expected["over"] | texts([("a", NUMBERS[0])])
    expected["scalar"] = texts([(1, None), (2, [-item for item in NUMBERS[1]]), (4, [-item for item in EXTREME])])
    for path, rows in result.items():
        assert texts(rows.collect()) == expected[path], path


@since_spark("4.0", "a stream")
@pytest.mark.every_turn
def test_streams_keep_long_and_extreme_vectors(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """They come back from states and from views as they were, and groups without a row are gone."""
    mean, latest = embedded["long_centroid"]("v"), embedded["long_latest"]("k", "v")
    (tmp_path / "view").mkdir()
    means = ChangeStream(
        classic, tmp_path, lambda df: group_by(df, "k", row_kind="op", buckets=2, emit="changelog").agg(o=mean)
    )
    view = VectorStream(
        classic, tmp_path / "view", lambda df: group_by(df, buckets=1).agg(o=latest, n=embedded.count())
    )
    columns = ("op", "k", "i", "v")
    means.write([dict(zip(columns, ("+I", *row), strict=True)) for row in [*LONG_ROWS, *GONE]])
    means.write([dict(zip(columns, ("-D", *row), strict=True)) for row in GONE])
    means.write([{"op": "+I", "k": "c", "i": 7, "v": [0.0] * LONG}])
    first, second, third = [[(row["row_kind"], row["k"], str(row["o"])) for row in epoch] for epoch in means.run()]
    expected = long_means() | texts([("d", NUMBERS[2])])
    assert sorted(first) == [("+I", key, text) for key, text in expected.items()]
    assert second == [("-D", "d", expected["d"])]
    assert third == []  # the half of infinity is infinity, and the half of 0.0 is 0.0
    view.write([{"k": "a", "i": 0, "v": EXTREME}])
    view.write([{"k": "b", "i": 1, "v": NUMBERS[0]}])
    view.write([{"k": "a", "i": 2, "v": NUMBERS[1]}])
    expected_rows = [(str(EXTREME), 1), (str(EXTREME), 2), (str(NUMBERS[1]), 3)]
    assert [(str(row["o"]), row["n"]) for (row,) in view.run()] == expected_rows


@pytest.mark.every_turn
def test_many_groups_of_vectors_are_merged(spark: Any, embedded: Functions) -> None:
    """Each of 100,000 groups has rows of several tasks."""
    df = spark.range(0, 200_000, 1, 2).selectExpr("id % 100000 AS k", "array(float(id), float(-id), float(1)) AS v")
    means = group_by(df, "k").agg(mean=embedded["centroid"]("v"))
    right = "mean[0] = k + 50000 AND mean[1] = -k - 50000 AND mean[2] = 1"
    assert tuple(means.selectExpr("count(*)", f"count_if({right})").first()) == (100_000, 100_000)


class VectorStream(Stream):
    """Epochs of vectors."""

    ddl = DDL
    schema = pa.schema([("k", pa.string()), ("i", pa.int32()), ("v", pa.list_(pa.float32()))])


class ChangeStream(VectorStream):
    """Epochs of vectors that come and go."""

    ddl = f"op string, {DDL}"
    schema = VectorStream.schema.insert(0, pa.field("op", pa.string()))


@pytest.mark.every_turn
@since_spark("4.0", "a stream")
@pytest.mark.parametrize("call", ["centroid", "latest"])
@pytest.mark.parametrize("wrong", [[1.0, 2.0], pytest.param([1.0, None, 2.0], marks=pytest.mark.slow)])
def test_other_lists_end_a_stream(
    classic: Any, embedded: Functions, tmp_path: Path, call: str, wrong: list[float | None]
) -> None:
    """So do vectors for a view; the error names the column, the group and the row."""
    arguments = {"centroid": ("v",), "latest": ("k", "v")}[call]
    stream = VectorStream(classic, tmp_path, lambda df: group_by(df, "k", buckets=2).agg(o=embedded[call](*arguments)))
    stream.write([{"k": "a", "i": 1, "v": [1.0, 2.0, 3.0]}])
    ((first,),) = stream.run()
    assert (first["k"], first["o"]) == ("a", [1.0, 2.0, 3.0])
    stream.write([{"k": "a", "i": 2, "v": [0.0, 0.0, 0.0]}, {"k": "b", "i": 3, "v": wrong}])
    why = "it has 2 items" if len(wrong) == 2 else "its item 1 is NULL"
    with pytest.raises(PySparkException) as excinfo:
        stream.run()
    text = error_text(excinfo.value)
    assert f"the argument v has a list that is no VECTOR(3): {why}" in text
    assert "k='b'" in text
    assert f"v={wrong}" in text


@pytest.mark.every_turn
@since_spark("4.0", "a stream")
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("grown", "total: an array of the shape (6,) is not VECTOR(3, DOUBLE)"),
        ("shortened", "last: the value of the key 'a': an array of the shape (2,) is not VECTOR(3)"),
    ],
)
def test_states_and_views_of_another_shape_end_a_stream(
    classic: Any, embedded: Functions, tmp_path: Path, call: str, shape: str
) -> None:
    """The error names the function, the member of the state, the key in its view, and the group."""
    arguments = {"grown": ("v",), "shortened": ("k", "v")}[call]
    stream = VectorStream(classic, tmp_path, lambda df: group_by(df, "k", buckets=2).agg(o=embedded[call](*arguments)))
    stream.write([{"k": "a", "i": 1, "v": [1.0, 2.0, 3.0]}])
    with pytest.raises(PySparkException) as excinfo:
        stream.run()
    text = error_text(excinfo.value)
    assert f"its accumulator does not fit its state: {shape}" in text
    assert f"function: {call}" in text
    assert "k='a'" in text


@pytest.mark.every_turn
def test_states_of_another_shape_are_errors_of_a_batch(classic: Any, functions: Functions) -> None:
    """The partial states are refused before the shuffle."""
    df = classic.createDataFrame(ROWS[:1], DDL)
    with pytest.raises(PySparkException) as excinfo:
        group_by(df, "k").agg(o=functions["grown"]("v")).collect()
    text = error_text(excinfo.value)
    assert "total: an array of the shape (6,) is not VECTOR(3, DOUBLE)" in text
    assert "k='a'" in text


def test_items_of_another_type_are_refused_when_the_query_is_built(spark: Any, functions: Functions) -> None:
    """So they are in a statement. The remedy is a type of Spark."""
    register(spark, functions, {"centroid": "centroid"})
    for type_ in ("array<double>", "array<int>", "array<string>", "float", "string"):
        df = spark.createDataFrame([], f"k string, v {type_}")
        df.createOrReplaceTempView("other_items")
        with pytest.raises(RejectedError, match=r"takes VECTOR\(3\)"):
            sql(spark, "SELECT k, centroid(v) AS mean FROM other_items GROUP BY k")
        with pytest.raises(RejectedError, match=r"takes VECTOR\(3\)") as excinfo:
            group_by(df, "k").agg(mean=functions["centroid"]("v"))
        if type_.startswith("array"):
            cast = "CAST(v AS ARRAY<FLOAT>)"
            assert cast in excinfo.value.message
            assert group_by(df, "k").agg(mean=functions["centroid"](cast)).columns == ["k", "mean"]
        else:
            assert "CAST" not in excinfo.value.message


@pytest.mark.every_turn
@since_spark("4.0", "a stream")
@pytest.mark.parametrize("remote", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stream_writes_vectors_into_a_table(
    classic: Any, embedded: Functions, request: pytest.FixtureRequest, tmp_path: Path, *, remote: bool
) -> None:
    """Rows come and go, the states are stored, and a table of arrays of a fixed length has the centroids."""
    from foldflight import connect

    functions = connect(request.getfixturevalue("server_url")) if remote else embedded
    file = tmp_path / "tables.duckdb"
    with duckdb.connect(str(file)) as database:
        database.execute("CREATE TABLE means (k VARCHAR PRIMARY KEY, mean FLOAT[3])")
    epochs = [
        [("+I", *ROWS[0]), ("+I", *ROWS[1]), ("+I", *ROWS[2]), ("+I", *ROWS[4])],
        [("-D", *ROWS[0]), ("-D", *ROWS[4]), ("+I", "d", 6, [1.0, 1.0, 1.0])],
    ]
    seen_values = []
    for at, rows in enumerate(epochs):
        table = pa.Table.from_pylist([dict(zip(("op", "k", "i", "v"), row, strict=True)) for row in rows])
        (tmp_path / "input").mkdir(exist_ok=True)
        v = table["v"].cast(pa.list_(pa.float32()))
        pq.write_table(table.set_column(3, "v", v), tmp_path / "input" / f"{at}.parquet")
        source = classic.readStream.schema(f"op string, {DDL}").parquet(str(tmp_path / "input"))
        changes = group_by(source, "k", row_kind="op", buckets=2, emit="changelog").agg(mean=functions["centroid"]("v"))
        query = write_table(
            changes,
            f"duckdb://{file}?table=means",
            keys=["k"],
            checkpoint=tmp_path / "checkpoint",
            trigger="availableNow",
        )
        assert query.awaitTermination(600)
        with duckdb.connect(str(file)) as database:
            seen_values.append(database.execute("SELECT k, mean FROM means ORDER BY k").fetchall())
    assert seen_values[0] == [("a", (2.0, 3.0, 4.0)), ("c", (0.0, 0.0, 9.0))]
    assert seen_values[1] == [("a", (3.0, 4.0, 5.0)), ("d", (1.0, 1.0, 1.0))]
