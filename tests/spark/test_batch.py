"""`group_by(...).agg(...)` against an oracle in plain Python."""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as sf

from foldflight import connect
from foldflight.functions import Call
from foldflight.spark import group_by, grouping, over
from foldflight.spark.batch import Text
from tests.spark.conftest import PARTITIONS
from tests.spark.spark_functions import Median, WeightedAvg

NAN = float("nan")
# A worker with nothing to do has some 130 MiB; 300,000 groups held at once would add more than 200.
PEAK_KILOBYTES_MAX = 550 * 1024  # of which the compiler, once it is loaded, takes 100
SCHEMA = "k string, x double, v bigint, w int"


def random_rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    """Return rows whose keys include NULL, NaN and both zeros, and whose values include NULL."""
    rng = random.Random(seed)
    return [
        (
            rng.choice(["a", "b", "", None]),
            rng.choice([0.0, -0.0, NAN, -NAN, None, 1.5]),
            rng.choice([None, *range(-50, 50)]),
            rng.choice([None, 0, 1, 2, 3]),
        )
        for _ in range(count)
    ]


def same(value: Any) -> Any:
    """Return a value that is equal for values of one SQL group."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def fold_rows(function: Any, rows: list[tuple[Any, ...]]) -> Any:
    """Return the result of the author's class for rows, called directly."""
    instance = function()
    accumulator = instance.create_accumulator()
    for row in rows:
        instance.accumulate(accumulator, *row)
    value = instance.get_value(accumulator)
    return None if value is None else int(value)


def oracle(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return the expected result of the query of `mixed_calls` by key."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for k, x, v, w in rows:
        groups[same(k), same(x)].append((v, w))
    return {
        key: (
            fold_rows(WeightedAvg, members),
            sum(1 for v, _ in members if v is not None and v > 15),
            len({v for v, _ in members} - {None}),
            len(members),
            sum(v for v, _ in members if v is not None) if any(v is not None for v, _ in members) else None,
            sum(v for v, _ in members if v is not None) if any(v is not None for v, _ in members) else None,
        )
        for key, members in groups.items()
    }


def mixed_calls(functions: Any) -> dict[str, Any]:
    """Return calls of authors' functions, one of them bundled, and built-ins, with FILTER and DISTINCT."""
    count = functions["count"]
    return {
        "average": functions["weighted_avg"]("v", "w"),
        "large": count().where("v > 15"),
        "values": count("v").distinct(),
        "n": count(),
        "total": functions["sum"]("v"),
        "bundled": functions["bundled_sum"]("v"),
    }


def by_key(df: Any, keys: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return a result as a dict, and fail if a key appears twice."""
    result: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in df.collect():
        key = tuple(same(value) for value in row[:keys])
        assert key not in result, f"{key} came out twice"
        result[key] = tuple(row[keys:])
    return result


@pytest.mark.every_way
def test_random_rows_have_the_results_of_the_authors_class(spark: Any, functions: Any) -> None:
    """Any calls over unusual keys give the results of the author's class, in both sessions, embedded and remote."""
    rows = random_rows(2_000, seed=1)
    df = spark.createDataFrame(rows, SCHEMA).repartition(7)
    assert by_key(group_by(df, "k", "x").agg(**mixed_calls(functions)), 2) == oracle(rows)


def test_a_condition_guards_arguments(spark: Any, functions: Any) -> None:
    """An argument is evaluated where a condition of its calls holds, so it fails for no row that is left out."""
    df = spark.createDataFrame([("", 0), ("7", 2)], "y string, x int")
    calls = {
        "number": functions["max"]("CAST(y AS INT)").where("y <> ''"),
        "half": functions["sum"](1 / sf.col("x")).where(sf.col("x") > 0),
        "again": functions["sum"]("1 / x").where("x > 0"),
        "none": functions["sum"]("1 / x").where("x > 2"),
        "texts": functions["string_agg"]("y").where("x <> 0").order_by("1 / x"),
        "rows": functions["count"](),
    }
    assert [tuple(row) for row in group_by(df).agg(**calls).collect()] == [(7, 0.5, 0.5, None, "7", 2)]
    del calls["texts"]
    over_rows = over(df, order_by="x").agg(**calls).collect()
    assert [tuple(row)[2:] for row in sorted(over_rows)] == [(None, None, None, None, 1), (7, 0.5, 0.5, None, 2)]
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):  # the argument of a call without a condition
        group_by(df).agg(a=functions["sum"]("1 / x").where("x > 0"), b=functions["count"]("1 / x")).collect()


@pytest.mark.every_turn
def test_equal_calls_are_computed_once(spark: Any, functions: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each output has its value and place, in each plan and as text of SQL."""
    df = spark.createDataFrame([(1, 5), (1, 7), (2, 9)], "k int, x int")
    total, count = functions["sum"]("x"), functions["count"]
    calls = {"a.b": total, "n": count(), "c": total, "some": count().where("x > 5"), "d": total}
    expected = [(1, 12, 2, 12, 1, 12), (2, 9, 1, 9, 1, 9)]
    for plan in ("fold", "lifted"):
        grouped_df = group_by(df, "k", plan=plan)
        assert [call.function for call in grouped_df.query(**calls).open_request.calls] == ["sum", "count", "count"]
        result = grouped_df.agg(**calls)
        assert result.columns == ["k", *calls]
        assert sorted(map(tuple, result.collect())) == expected
    df.createOrReplaceTempView("equal_calls")
    query = group_by(df, "k").plan_query(a=total, n=count(), c=total)
    assert query.is_text
    items = [("k", "k"), ("a", "x.y"), ("n", "n"), ("c", "c")]
    statement = query.text(Text("SELECT * FROM equal_calls"), items)
    assert sorted(map(tuple, spark.sql(statement).select("k", "`x.y`", "n", "c").collect())) == [
        (1, 12, 2, 12),
        (2, 9, 1, 9),
    ]
    group_by(df, "k").explain(**calls)
    assert "  c: the same call as a.b\n  d: the same call as a.b" in capsys.readouterr().out


def test_only_equal_calls_of_deterministic_functions_are_computed_once() -> None:
    """Direct arguments that Python compares as equal may differ; a function that draws lots has other results."""
    calls = {
        "a": Call("f", ("x",), literals={"by": 1}),
        "b": Call("f", ("x",), literals={"by": 1.0}),
        "c": Call("f", ("x",), literals={"by": True}),
        "d": Call("f", ("x",), literals={"by": 1}),
        "e": Call("f", ("x",), distinct=True, literals={"by": 1}),
        "f": Call("f", ("x",), literals={"by": np.arange(3.0)}),
        "g": Call("f", ("x",), literals={"by": np.arange(3.0) + 1e-9}),  # NumPy shows eight digits
        "h": Call("f", ("x",), literals={"by": re.compile("a" * 300)}),  # and Python 200 letters of a pattern
        "i": Call("f", ("x",), literals={"by": re.compile("a" * 301)}),
        "j": Call("f", ("x",), literals={"by": np.arange(3.0)}),
    }
    for deterministic in (True, False):
        aggregates: Any = dict.fromkeys(calls, SimpleNamespace(function=SimpleNamespace(deterministic=deterministic)))
        assert grouping._copies(calls, aggregates) == ({"d": "a", "j": "f"} if deterministic else {})


def test_a_condition_is_evaluated_once(spark: Any, functions: Any) -> None:
    """A random condition is the same for a row and for the arguments that it guards."""
    calls = {"n": functions["count"]("id + 1").where("rand() > 0.5"), "m": functions["count"]().where("rand() > 0.5")}
    (row,) = group_by(spark.range(1000)).agg(**calls).collect()
    assert row.n == row.m


def test_without_keys_there_is_one_row(spark: Any, functions: Any) -> None:
    """Without keys there is one row."""
    rows = random_rows(500, seed=2)
    expected = oracle([("", 0.0, v, w) for _, _, v, w in rows])
    df = spark.createDataFrame(rows, SCHEMA)
    assert by_key(group_by(df).agg(**mixed_calls(functions)), 0) == {(): expected["", 0.0]}


@pytest.mark.every_turn
@pytest.mark.parametrize("function", ["weighted_avg", "median"])
def test_empty_input_gives_a_row_only_without_keys(spark: Any, embedded: Any, function: str) -> None:
    """Empty input gives one row without keys and none with keys, in both plans."""
    call = embedded[function](*["v", "w"][: len(embedded[function].info.input_names)])
    without_partitions = spark.createDataFrame([], SCHEMA)
    empty_df = spark.range(10).selectExpr("'' k", "0D x", "id v", "1 w").where("v < 0")
    for df in (without_partitions, empty_df):
        assert [tuple(row) for row in group_by(df).agg(o=call, n=embedded["count"]()).collect()] == [(None, 0)]
        assert group_by(df, "k").agg(o=call).collect() == []


def test_count_of_all_rows_needs_no_column(classic: Any, functions: Any) -> None:
    """`count()` without keys works on a frame without needed columns."""
    assert group_by(classic.range(0, 1000, 1, 3)).agg(n=functions["count"]()).collect()[0].n == 1000


def test_empty_and_skewed_partitions_have_right_results(classic: Any, functions: Any) -> None:
    """Nine partitions of ten are empty, and nine rows of ten have one key."""
    df = classic.range(0, 20_000, 1, 10).where("id < 2000").selectExpr("if(id % 10 < 9, 0, id) k", "id v", "1 w")
    result = by_key(group_by(df, "k").agg(n=functions["count"](), m=functions["weighted_avg"]("v", "w")), 1)
    assert result[0,][0] == 1800
    assert len(result) == 201


def test_a_function_without_merge_folds_in_one_phase(spark: Any, functions: Any) -> None:
    """Without merge, all rows of a group are folded together, also beside built-ins, for NaN and both zeros."""
    rows = random_rows(1_000, seed=3)
    df = spark.createDataFrame(rows, SCHEMA).repartition(5)
    groups: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for k, x, v, _ in rows:
        groups[same(k), same(x)].append((v,))
    expected = {
        key: (fold_rows(Median, [row for row in members if row[0] is not None]), len(members))
        for key, members in groups.items()
    }
    assert by_key(group_by(df, "k", "x").agg(m=functions["median"]("v"), n=functions["count"]()), 2) == expected


def test_views_pass_through_the_shuffle_of_a_batch(classic: Any) -> None:
    """States with views are complete, pass through the shuffle, and merge; also over frames of rows."""
    functions = connect("embedded:examples.different")
    df = classic.range(0, 3000, 1, 4).selectExpr("if(id % 2 = 0, 'a', 'b') k", "string(id % 300) text", "id")
    query = group_by(df, "k").agg(n=functions["count_different"]("text"))
    assert {(row.k, row.n) for row in query.collect()} == {("a", 150), ("b", 150)}
    last = over(df.where("id < 40"), "k", order_by="id").agg(n=functions["count_different"]("text").rows(-4, 0))
    assert {row.n for row in last.where("id > 10").collect()} == {5}


def test_direct_arguments_and_pickled_states_pass_through_spark(classic: Any, functions: Any) -> None:
    """`percentile(x, fraction=...)` is used with two fractions in one query; its pickled state passes through Spark."""
    df = classic.range(0, 1001, 1, 4).selectExpr("id % 2 k", "double(id) x")
    percentile = functions["percentile"]
    result = group_by(df, "k").agg(low=percentile("x", fraction=0.1), high=percentile("x", fraction=0.9))
    assert by_key(result, 1) == {(0,): (100.0, 900.0), (1,): (99.0, 899.0)}


def test_states_of_types_that_spark_lacks_pass_through_it(spark: Any, functions: Any) -> None:
    """A typed state with a time and a duration passes through Spark."""
    df = spark.sql("SELECT id % 2 AS k, timestamp_seconds(id * 3600 + 7200) AS at FROM range(0, 10, 1, 4) WHERE id < 8")
    result = by_key(group_by(df, "k").agg(first=functions["earliest"]("at")), 1)
    assert result == {(0,): ("02:00:00 4",), (1,): ("03:00:00 4",)}


def test_keys_and_arguments_may_be_texts_or_columns(spark: Any, embedded: Any) -> None:
    """Keys, arguments and conditions may be SQL text or columns, and narrow columns are widened."""
    df = spark.range(100).selectExpr("id", "cast(id % 5 AS tinyint) small", "'x' unused")
    count, average = embedded["count"], embedded["weighted_avg"]
    result = group_by(df, "id % 2", (sf.col("id") % 3).alias("third"), "small").agg(
        a=average("small", "small"),  # TINYINT for BIGINT and INT
        b=average(sf.col("id") * 2, sf.lit(1)),
        c=count().where(sf.col("id") > 50),
        d=count().where("id > 50"),
        e=count("upper(unused)").distinct(),
    )
    assert result.columns == ["(id % 2)", "third", "small", "a", "b", "c", "d", "e"]
    rows = result.collect()
    assert len(rows) == 30
    assert all(row.a == (row.small or None) and row.c == row.d and row.e == 1 for row in rows)
    assert sum(row.c for row in rows) == 49


def test_columns_may_have_odd_names(classic: Any, embedded: Any) -> None:
    """A column is found by its exact name before the text is parsed as an expression."""
    df = classic.range(6).selectExpr("id % 2 AS `a.b`", "id AS `id % 2`", "id AS `back``tick`")
    result = group_by(df, "a.b").agg(**{"sum of": embedded["sum"]("id % 2"), "x": embedded["sum"]("back`tick")})
    assert by_key(result, 1) == {(0,): (6, 6), (1,): (9, 9)}


def test_keys_have_the_values_and_types_of_spark(spark: Any, embedded: Any) -> None:
    """Keys of every type are returned as by Spark's own grouping, in Spark's own type."""
    df = spark.sql(
        """SELECT CAST(id % 2 AS boolean) a, CAST(id % 2 AS decimal(20, 3)) b, date'2020-01-01' c,
                  timestamp'2020-01-01 01:02:03' d, timestamp_ntz'2020-01-01 01:02:03' e, binary('x') f,
                  named_struct('p', id % 2, 'q', double('NaN')) g, array(id % 2, NULL) h, CAST(NULL AS void) i,
                  interval '1 02' day to hour j, float(id % 2) k, tinyint(id % 2) l, CAST(NULL AS string) m
           FROM range(0, 8, 1, 3)"""
    )
    ours = group_by(df, *df.columns).agg(count=embedded["count"]())
    theirs = df.groupBy(*df.columns).count()
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))


def test_results_have_the_types_of_spark(classic: Any, embedded: Any) -> None:
    """Polymorphic built-in functions return the argument's type, as Spark's do."""
    df = classic.sql(
        """SELECT id % 2 k, CAST(id AS decimal(10, 2)) a, string(id) b, timestamp_seconds(id) c,
                  date_from_unix_date(id) d, float(id) e, timestamp_ntz'2020-01-01' f, smallint(id) g, id > 3 h
           FROM range(0, 8, 1, 3)"""
    )
    ours = group_by(df, "k").agg(**{name: embedded["max"](name) for name in "abcdefg"}, h=embedded["bool_or"]("h"))
    theirs = df.groupBy("k").agg(*[sf.max(name).alias(name) for name in "abcdefg"], sf.bool_or("h").alias("h"))
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
    assert ours.orderBy("k").collect() == theirs.orderBy("k").collect()


def test_the_result_is_lazy(classic: Any, embedded: Any) -> None:
    """No row is read before an action; errors in rows are raised only then."""
    df = classic.range(3).selectExpr("raise_error('read') k")
    result = group_by(df, "k").agg(n=embedded["count"]())
    with pytest.raises(Exception, match="read"):
        result.collect()


@pytest.mark.slow
@pytest.mark.parametrize("function", ["peak_kilobytes", "peak_kilobytes_unmerged"])
def test_many_groups_take_bounded_memory(classic: Any, embedded: Any, function: str) -> None:
    """300,000 groups in one partition, in both plans: the results are right, and the workers stay small."""
    df = classic.range(0, 600_000, 1, 2).selectExpr("concat('key ', id % 300000) AS k", "id AS v")
    classic.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        result = group_by(df, "k").agg(s=embedded["sum"]("v"), peak=embedded[function]("v"))
        groups, total, peak = result.selectExpr("count(DISTINCT k)", "sum(s)", "max(peak)").collect()[0]
    finally:
        classic.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    assert (groups, total) == (300_000, 600_000 * 599_999 // 2)
    assert peak < PEAK_KILOBYTES_MAX, f"a worker had {peak // 1024} MiB"


def test_functions_read_job_parameters_and_log(classic: Any, server_url: str) -> None:
    """Job parameters of `connect` reach the functions in Spark's workers, embedded and remote."""
    from foldflight import connect
    from tests.spark import spark_functions

    df = classic.range(4)
    for target in (spark_functions, server_url):
        informed_function = connect(target, job_parameters={"greeting": "hello"})["informed"]
        assert group_by(df).agg(o=informed_function("id")).collect()[0].o == "hello 4"


def test_shipped_functions_fold_on_servers(spark: Any, rows_of: Any) -> None:
    """A server with only built-in functions folds functions that the driver ships in bundles."""
    from foldflight import connect
    from foldflight.server.run.lifecycle import serving

    rows = random_rows(2000, 11)
    df = spark.createDataFrame(rows, SCHEMA).repartition(4)
    with serving(bundle_keys="a key for the spark tests") as server:
        functions = connect(server.url, bundle_key="a key for the spark tests").register(WeightedAvg)
        result = group_by(df, "k").agg(average=functions["weighted_avg"]("v", "w"), n=functions["count"]())
        actual = rows_of(result)
    groups: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for k, _, v, w in rows:
        groups[k].append((v, w))
    expected = [(key, fold_rows(WeightedAvg, members), len(members)) for key, members in groups.items()]
    assert actual == sorted(expected, key=repr)
