"""Scalar and table functions over DataFrames: results, plans, streams, changelogs and mistakes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as sf

from foldflight import Registry, RejectedError, connect, udf
from foldflight.engine.batch.scalar_task import ScalarQuery, Steps
from foldflight.engine.query.blocks import BlockBounds
from foldflight.spark import dead_letters, group_by, join_lateral, results, scalar, with_columns
from foldflight.spark.errors import error_of
from foldflight.spark.storage_types import SPARK
from tests import scalar_functions
from tests.spark import cached_query
from tests.spark_sessions import java_options, since_spark

ROWS = [(1, 4, " Ab cD "), (2, None, None), (3, 6, ""), (-4, 7, "x y x")]
COLUMNS = "a bigint, b bigint, text string"


@pytest.fixture(scope="module")
def map_server() -> Iterator[str]:
    from foldflight.server.run.lifecycle import serving

    with serving(scalar_functions) as server:
        yield server.url


@pytest.fixture(params=["embedded", "remote"])
def functions(request: pytest.FixtureRequest) -> Any:
    if request.param == "embedded":
        return connect(scalar_functions)
    return connect(request.getfixturevalue("map_server"))


@pytest.fixture(scope="module")
def embedded() -> Any:
    return connect(scalar_functions)


def plan_of(df: Any) -> str:
    return df._jdf.queryExecution().optimizedPlan().toString()


@pytest.mark.every_turn
@pytest.mark.every_way
def test_scalar_functions_nest(spark: Any, functions: Any) -> None:
    """Several outputs, nested functions and direct arguments give what Python gives; NULLs are None."""
    df = spark.createDataFrame(ROWS, COLUMNS)
    f = functions
    result = with_columns(
        df,
        m=f["multiply"]("a", "b"),
        s=f["score"](f["normalise"]("text"), "a + 0"),
        n=f["normalise"](sf.col("text")),
        c=f["forty_two"](),
        k=f["scale"](sf.col("a").cast("double"), factor=0.5),
    ).collect()
    for row, (a, b, text) in zip(result, ROWS, strict=True):
        clean = None if text is None else text.strip().lower()
        expected = (a, b, text, scalar_functions.multiply(a, b), scalar_functions.score(clean, a), clean, 42, a * 0.5)
        assert tuple(row) == expected


def test_table_functions_join(spark: Any, functions: Any) -> None:
    """Each row is joined with its rows, in order; with outer, rows without any are kept; arguments may be functions."""
    df = spark.createDataFrame(ROWS, COLUMNS)
    f = functions
    inner = join_lateral(df, f["split"](f["normalise"]("text")))
    assert inner.columns == ["a", "b", "text", "word", "at"]
    expected = [(a, word, at) for a, _, t in ROWS for at, word in enumerate((t or "").strip().lower().split())]
    assert [(row.a, row.word, row.at) for row in inner.collect()] == expected
    outer = join_lateral(df, f["split"]("text"), outer=True).collect()
    assert sum(row.word is None for row in outer) == 2
    assert len(outer) == len(expected) + 2
    chained_df = join_lateral(df, f["repeated"]("b", f["split"]("text")["at"]).alias("again")).collect()
    assert [(row.a, row.again) for row in chained_df] == [(1, 4), (-4, 7), (-4, 7), (-4, 7)]


@pytest.mark.every_turn
@since_spark("4.1", "a UDF of Arrow arrays")
def test_the_plan_has_one_trip_and_can_be_extended(classic: Any, embedded: Any) -> None:
    """Nested functions and consecutive with_columns are one trip; unread columns are pruned; filters are pushed."""
    df = classic.createDataFrame(ROWS, COLUMNS).select("a", "b", "text", sf.lit("wide").alias("unused"))
    f = embedded
    once = with_columns(df, n=f["normalise"]("text"))
    twice = with_columns(once, s=f["score"]("n", "a"), m=f["multiply"]("a", "b"))
    plan = plan_of(twice)
    assert plan.count("ArrowEvalPython") == 1
    assert [row.s for row in twice.collect()] == [51, None, 3, 46]
    plan_text = plan_of(with_columns(df, m=f["multiply"]("a", "b")).where("a > 1").select("m"))
    assert plan_text.index("ArrowEvalPython") < plan_text.index("Filter")
    assert "unused" not in plan_text
    apart = with_columns(once, s=f["score"](sf.col("n"), "a"))
    assert plan_of(apart).count("ArrowEvalPython") == 2, "an expression may mean anything, so it is left to Spark"
    assert [row.s for row in apart.collect()] == [51, None, 3, 46]


def test_a_column_may_be_replaced(classic: Any, embedded: Any) -> None:
    """An output with the name of a column replaces it where it stands, also twice."""
    df = classic.createDataFrame(ROWS[:1], COLUMNS)
    once = with_columns(df, a=embedded["multiply"]("a", "b"))
    assert once.collect() == [Row(a=4, b=4, text=" Ab cD ")]
    assert with_columns(once, a=embedded["multiply"]("a", "b")).collect() == [Row(a=16, b=4, text=" Ab cD ")]


def test_registered_udfs_work_in_sql(spark: Any, functions: Any) -> None:
    """A registered UDF works anywhere in SQL, with direct arguments, in batches of one task."""
    spark.udf.register("multiply", functions["multiply"].spark_udf())
    spark.udf.register("scaled", functions["scale"].spark_udf(factor=3.0))
    spark.createDataFrame(ROWS, COLUMNS).createOrReplaceTempView("mapped_rows")
    result = spark.sql(
        "SELECT multiply(a, b) + 1 AS m, scaled(CAST(a AS DOUBLE)) AS s FROM mapped_rows WHERE multiply(a, 1) > 0"
    )
    assert [tuple(row) for row in result.collect()] == [(5, 3.0), (None, 6.0), (19, 9.0)]


@pytest.mark.every_turn
@pytest.mark.every_way
def test_aggregates_take_scalar_functions_as_arguments(spark: Any, functions: Any) -> None:
    """An argument, a condition and a key of an aggregate may be a use, also a nested one; a UDF is also a Column."""
    f = functions
    df = spark.createDataFrame(ROWS, COLUMNS)
    result = group_by(df, "a > 0").agg(
        product=f["sum"](f["multiply"](f["multiply"]("a", "b"), sf.lit(2))),
        scaled=f["max"](f["scale"](sf.col("a").cast("double"), factor=3.0)),
        some=f["count"]("a").where(sf.expr("b > 4")),
    )
    rows = {row[0]: tuple(row)[1:] for row in result.collect()}
    assert rows == {True: (44, 9.0, 1), False: (-56, -12.0, 1)}
    column = f["multiply"].spark_udf()("a", "b")
    assert [row.m for row in df.withColumn("m", column).agg(sf.sum("m").alias("m")).collect()] == [-6]


@pytest.mark.every_turn
@pytest.mark.every_way
def test_a_condition_guards_a_use(spark: Any, functions: Any) -> None:
    """A function and its arguments get the rows where the condition holds, also a function that fails for others."""
    f = functions
    df = spark.createDataFrame([(1, 0), (6, 2), (9, 3)], "a bigint, b bigint")
    twice = f["multiply"](f["multiply"]("a div b", sf.lit(2)), "b")
    result = group_by(df).agg(
        ratios=f["sum"](f["ratio"]("a", "b")).where("b > 0"),
        products=f["sum"](twice).where("b > 0"),
        none=f["count"](f["ratio"]("a", "b")).where("b > 9"),
    )
    assert [tuple(row) for row in result.collect()] == [(6.0, 30, 0)]


def test_uses_that_no_aggregate_takes_are_refused(classic: Any, embedded: Any) -> None:
    """Table functions, and functions that are not deterministic, are refused as arguments with what to write."""
    f, df = embedded, classic.createDataFrame(ROWS, COLUMNS)
    with pytest.raises(RejectedError, match="use join_lateral"):
        group_by(df).agg(n=f["count"](f["split"]("text")))
    with pytest.raises(RejectedError, match=r"not deterministic; add it as a column first: with_columns"):
        group_by(df).agg(n=f["sum"](f["dice"]("a")))


def test_errors_name_the_row(classic: Any, functions: Any) -> None:
    """A function that raises fails the query with its name and the row."""
    df = classic.createDataFrame([(4, 2), (1, 0)], "x bigint, y bigint").coalesce(1)
    with pytest.raises(PySparkException) as failure:
        with_columns(df, r=functions["ratio"]("x", "y")).collect()
    error = error_of(failure.value)
    assert error is not None
    assert error.code == "USER_CODE"
    assert "ZeroDivisionError" in error.message
    assert "x=1, y=0" in error.message


def test_async_functions_wait_inside_spark_and_on_servers(spark: Any) -> None:
    """Rows keep their order and their columns, and a row that fails is a dead letter, whoever runs the coroutines."""
    from foldflight.server.run.lifecycle import serving

    df = spark.range(200).repartition(3)
    with serving(Registry.load([later])) as server:
        for functions in (connect(later), connect(server.url)):
            mapped_df = with_columns(df, y=functions["later"]("id"), on_error="isolate")
            assert [(row.id, row.y) for row in results(mapped_df).orderBy("id").collect()] == [
                (number, 2 * number) for number in range(200) if number != 13
            ]
            (letter,) = dead_letters(mapped_df).select("message").collect()
            assert "ValueError: 13" in letter.message


@udf(concurrency=16)
async def later(x: int) -> int:
    await asyncio.sleep(0.001 * (x % 3))
    if x == 13:
        raise ValueError(x)
    return 2 * x


def test_errors_are_isolated(spark: Any, embedded: Any) -> None:
    """With isolate, each failing row is a dead letter, and the others have results, also of table functions."""
    df = spark.createDataFrame([(4, 2), (1, 0), (9, 3)], "x bigint, y bigint")
    mapped_df = with_columns(df, r=embedded["ratio"]("x", "y"), s=embedded["multiply"]("x", "y"), on_error="isolate")
    assert [tuple(row) for row in results(mapped_df).collect()] == [(4, 2, 2.0, 8), (9, 3, 3.0, 27)]
    (letter,) = dead_letters(mapped_df).collect()
    assert (letter.code, letter.function, letter.row.x, letter.row.y) == ("USER_CODE", "ratio", 1, 0)
    assert [row[:2] for row in dead_letters(mapped_df.withColumn("id", sf.lit(7)), "id").collect()] == [
        (7, "USER_CODE")
    ]
    with pytest.raises(RejectedError, match="there is no column nope among x, y"):
        dead_letters(mapped_df, "nope")
    with pytest.raises(RejectedError, match=r"names of columns of df, .* write dead_letters\(df, 'id'\)"):
        dead_letters(mapped_df, sf.col("x"))  # type: ignore[arg-type]
    joined_df = join_lateral(df, embedded["crooked"]("y"), on_error="isolate")
    assert [tuple(row) for row in results(joined_df).collect()] == [(4, 2, 2, 2)]
    letters = dead_letters(joined_df).collect()
    assert sorted((letter.code, letter.row.y) for letter in letters) == [("RESULT_TYPE", 0), ("RESULT_TYPE", 3)]


@since_spark("4.0", "a stream")
def test_streams_keep_their_watermark(classic: Any, embedded: Any, tmp_path: Any) -> None:
    """A stream is mapped like a batch, and its watermark still closes windows behind it."""
    rows = [(f"2026-01-01 00:0{minute}:00", "a b") for minute in range(4)]
    classic.createDataFrame(rows, "at string, text string").coalesce(1).write.json(str(tmp_path / "in"))
    stream = classic.readStream.schema("at timestamp, text string").json(str(tmp_path / "in"))
    stream = stream.withWatermark("at", "1 minute")
    mapped_df = with_columns(stream, n=embedded["normalise"]("text"))
    joined_df = join_lateral(mapped_df, embedded["words"]("n"))
    windows = joined_df.groupBy(sf.window("at", "1 minute"), "word").count().select("window.start", "word", "count")
    assert windows.isStreaming
    query = windows.writeStream.format("memory").queryName("mapped_words").outputMode("append")
    query_run = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query_run.awaitTermination()
    # Without the watermark, Spark would refuse append mode.
    result = classic.sql("SELECT word, count FROM mapped_words").collect()
    assert sorted(tuple(row) for row in result)[:2] == [("a", 1), ("a", 1)]


def test_changelogs_pass_through(classic: Any, embedded: Any) -> None:
    """Rows with kinds keep them; functions that are not deterministic are refused over them."""
    df = classic.createDataFrame([("+I", 1, 4), ("-U", 1, 4), ("+U", 2, 4)], "row_kind string, a bigint, b bigint")
    mapped_df = with_columns(df, m=embedded["multiply"]("a", "b"))
    assert [tuple(row) for row in mapped_df.select("row_kind", "m").collect()] == [("+I", 4), ("-U", 4), ("+U", 8)]
    total = group_by(mapped_df, row_kind="row_kind").agg(total=embedded["sum"]("m"))
    assert [row.total for row in total.collect()] == [8]
    for name in (None, "row_kind"):
        with pytest.raises(RejectedError, match="dice is not deterministic, and the rows are a changelog"):
            with_columns(df, d=embedded["same"](embedded["dice"]("a")), row_kind=name)
    dice_df = with_columns(df.drop("row_kind"), d=embedded["dice"]("a"))
    assert "dice" in plan_of(dice_df)
    assert all(1 <= row.d <= row.a for row in dice_df.collect())


def test_mistakes_are_refused_at_once(classic: Any, embedded: Any) -> None:
    """Each mistake in a query is an error of the call, with what to write."""
    df = classic.createDataFrame(ROWS, COLUMNS)
    f = embedded
    wrong = {
        "there is nothing to compute": lambda: with_columns(df),
        "not a use of a function": lambda: with_columns(df, m="a"),
        "which needs groups": lambda: with_columns(df, m=f["sum"]("a")),
        "use join_lateral": lambda: with_columns(df, m=f["split"]("text")),
        "an argument of m is the table function words.*; use join_lateral for words first": lambda: with_columns(
            df, m=f["spelled"]("a", f["words"]("text")["word"])
        ),
        "has no name; write": lambda: with_columns(df, f["multiply"]("a", "b")),
        "is the name of two outputs": lambda: with_columns(df, f["multiply"]("a", "b").alias("m"), M=f["same"]("a")),
        "Spark cannot resolve the argument 'z'": lambda: with_columns(df, m=f["multiply"]("a", "z")),
        "takes BIGINT for its argument y and was given STRING": lambda: with_columns(df, m=f["multiply"]("a", "text")),
        "has several columns; name one": lambda: join_lateral(df, f["pairs"](f["split"]("text"))),
        "come from two connections": lambda: with_columns(df, m=f["same"](connect(scalar_functions)["same"]("a"))),
        "takes a use of a table function": lambda: join_lateral(df, f["same"]("a")),
        "rename or drop it": lambda: join_lateral(df.withColumn("WORD", sf.lit(1)), f["split"]("text")),
        "an alias names one": lambda: join_lateral(df, f["split"]("text").alias("w")),
        "depends on its arguments": f["same"].spark_udf,
        "not a scalar one; use join_lateral": f["split"].spark_udf,
        "on_error is 'fail' or 'isolate'": lambda: with_columns(df, m=f["same"]("a"), on_error="ignore"),
        "takes a DataFrame of Spark first": lambda: with_columns([1], m=f["same"]("a")),
        "use it in with_columns": lambda: group_by(df).agg(m=f["multiply"]("a", "b")),
    }
    for message, call in wrong.items():
        with pytest.raises(RejectedError, match=message):
            call()


def test_joined_trips_have_the_results_of_two_trips(classic: Any, embedded: Any) -> None:
    """Names are compared without case, and one use stays one: it is evaluated once, also when nested deeply."""
    f = embedded
    df = classic.createDataFrame([(10**9, 5)] * 8, "a bigint, m bigint").coalesce(1)
    hidden_df = with_columns(with_columns(df, M=f["same"]("a")), z=f["same"]("m"))
    assert {row.z for row in hidden_df.collect()} == {10**9}
    noise = f["dice"]("a")
    twice = with_columns(with_columns(df, c=f["same"]("a")), u=f["same"](noise), v=f["same"](noise), w=f["same"]("c"))
    assert all(row.u == row.v and row.w == row.a for row in twice.collect())
    deep = f["later"](sf.lit(None).cast("date"), sf.lit(None).cast("date"))
    for _ in range(64):
        deep = f["larger"](deep, deep)
    assert {row.d for row in with_columns(df, d=deep).collect()} == {None}


@pytest.mark.every_way
def test_a_cached_frame_is_read(spark: Any, embedded: Any) -> None:
    """Outputs over a cached DataFrame have its values; a trip that joins the trip before would compute others."""
    df = spark.createDataFrame([(10**9,)] * 4, "a bigint").coalesce(1)
    once = with_columns(df, c=embedded["dice"]("a")).cache()
    try:
        dice_values = [row.c for row in once.collect()]
        assert [row.d for row in with_columns(once, d=embedded["same"]("c")).collect()] == dice_values
    finally:
        once.unpersist()


def test_errors_of_udfs_name_the_arguments(classic: Any, embedded: Any) -> None:
    """The error of a row shows the function's arguments by name; types and missing arguments are named, too."""
    f = embedded
    df = classic.createDataFrame([(4, 2), (1, 0)], "p bigint, q bigint").coalesce(1)
    wrong = {
        "x=1, y=0": df.select(f["ratio"].spark_udf()("p", "q")),
        "for its argument y and was given STRING": df.select(f["multiply"].spark_udf()("p", sf.lit("a"))),
        "takes 2 arguments": df.select(f["multiply"].spark_udf()("p")),
    }
    for message, query in wrong.items():
        with pytest.raises(PySparkException, match=message):
            query.collect()
    with pytest.raises(RejectedError, match="forty_two has no arguments, and a UDF of Spark needs one"):
        f["forty_two"].spark_udf()


def test_a_udf_with_several_types_keeps_its_exchanges(monkeypatch: pytest.MonkeyPatch, embedded: Any) -> None:
    """One UDF over BIGINT and over INT columns of one query opens an exchange for each, not for each batch."""
    transport, open_requests = embedded.transport, []
    opens = transport.open
    monkeypatch.setattr(scalar, "_open_calls", {})
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(taskAttemptId=lambda: 7))
    monkeypatch.setattr(transport, "open", lambda request: open_requests.append(request) or opens(request))
    call = scalar._OneCall(transport, "multiply", ("x", "y"), {}, (), pa.int64(), False, "a token of this test")
    for _ in range(3):
        assert call.values([pa.array([3]), pa.array([5])]).to_pylist() == [15]
        assert call.values([pa.array([3]), pa.array([5], pa.int32())]).to_pylist() == [15]
    assert len(open_requests) == 2
    for _, exchange in scalar._open_calls.values():
        exchange.close()


def test_rows_may_have_two_columns_of_one_name(classic: Any, embedded: Any) -> None:
    """`with_columns` and `join_lateral` keep both columns with their values, as Spark's `withColumn` does."""
    left, right = classic.sql("SELECT 1 AS k, 2L AS v"), classic.sql("SELECT 3 AS k, 5L AS w, 'a b' AS text")
    joined_df = left.join(right)
    mapped_df = with_columns(joined_df, product=embedded["multiply"]("v", "w"))
    assert mapped_df.columns == ["k", "v", "k", "w", "text", "product"]
    assert [tuple(row) for row in mapped_df.collect()] == [(1, 2, 3, 5, "a b", 10)]
    lateral = join_lateral(joined_df, embedded["split"]("text"))
    assert [tuple(row)[:5] for row in lateral.collect()] == [(1, 2, 3, 5, "a b")] * 2


@pytest.mark.parametrize("count", [1, 2])
def test_each_batch_has_an_answer_of_its_length(functions: Any, count: int) -> None:
    """Spark joins them batch by batch where it reads Arrow, such as its Arrow cache: empty batches, too."""
    multiply = functions["multiply"]
    outputs = {f"m{index}": multiply("a", "b") for index in range(count)}
    steps = Steps(lambda column, _: str(column))
    columns = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    uses = {name: steps.add(use) for name, use in outputs.items()}
    query = ScalarQuery.of(multiply.transport, steps, uses, columns, types=SPARK)
    types = pa.schema([(name, pa.int64()) for name in uses])
    query = replace(query, bounds=BlockBounds(rows_max=1000))
    lengths = [0, 3, 1500, 0, 1, 700, 2500, 0, 0]
    batches = [(pa.array(range(length), pa.int64()),) * 2 for length in lengths]
    answers = list(scalar._evaluate(query, types, iter(batches)))
    assert [len(answer) for answer in answers] == lengths
    for answer, length in zip(answers, lengths, strict=True):
        values = answer if count == 1 else answer.field(1)
        assert values.to_pylist() == [value * value for value in range(length)]
    assert [len(answer) for answer in scalar._evaluate(query, types, iter([batches[0]]))] == [0]


@pytest.mark.every_turn
@since_spark("4.3", "the Arrow cache")
def test_rows_of_the_arrow_cache_pass_batch_by_batch(tmp_path: Path) -> None:
    """Python gets the cache's batches as they are, and Spark takes the answers batch by batch."""
    job = subprocess.run(
        [sys.executable, "-m", "tests.spark.cached_query", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPARK_SUBMIT_OPTS": java_options(), "PYSPARK_PYTHON": sys.executable},
    )
    assert job.returncode == 0, job.stderr[-3000:]
    plan, mapped_rows, one = json.loads(job.stdout.splitlines()[-1])
    assert "InMemoryTableScan" in plan
    assert "ColumnarToRow" not in plan.partition("ArrowEvalPython")[2]
    assert mapped_rows == [[a, a + 1, a * (a + 1), (a + 1) ** 2] for a in range(cached_query.ROWS)]
    assert one == [[a, a + 1, a * (a + 1)] for a in range(0, cached_query.ROWS, 3)]
