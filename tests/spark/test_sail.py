"""Sail runs batches, OVER, SQL, scalar and table functions; `make test-sail` runs these tests with it.

Its tasks are threads of one process, and its optimiser knows nothing of Spark's promises about order and partitions.
"""

from __future__ import annotations

import datetime
import math
import random
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from pyspark.sql import functions as sf

from foldflight import connect, udaf, udf, udtf
from foldflight.client import Functions
from foldflight.errors import RejectedError
from foldflight.spark import configure, group_by, join_lateral, over, register, sql, with_columns
from foldflight.spark.versions.sessions import exact_sums
from foldflight.testing import run_over
from tests.laws import lifted_functions
from tests.spark import spark_functions
from tests.spark.spark_functions import LONG, Median
from tests.spark.test_batch import SCHEMA, by_key, mixed_calls, oracle, random_rows
from tests.spark.test_lifted import SCHEMA as LIFTED_SCHEMA
from tests.spark.test_lifted import calls as lifted_calls
from tests.spark.test_lifted import rows, texts_of
from tests.spark_sessions import has_spark

if has_spark():
    pytest.skip("make test-sail runs these tests, with the client that Sail needs", allow_module_level=True)

SEEDS = range(6)


@udf
def doubled(x: int) -> int:
    return 2 * x


@udtf
def pieces(s: str, sep: str = "-") -> list[str]:
    return s.split(sep)


@udaf
class FailsAtZero:
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, acc: list[int], v: int) -> None:
        acc[0] += 1 // v

    def get_value(self, acc: list[int]) -> int:
        return acc[0]


@pytest.fixture(scope="module")
def ours() -> Functions:
    return connect([spark_functions, doubled, pieces, FailsAtZero])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_batches_have_the_results_of_the_authors_class(classic: Any, functions: Any, seed: int) -> None:
    """Calls over unusual keys, of one and of two phases, have the author's results, embedded and remote."""
    rows = random_rows(3_000, seed)
    df = classic.createDataFrame(rows, SCHEMA).repartition(5)
    calls = mixed_calls(functions)
    assert by_key(group_by(df, "k", "x").agg(**calls), 2) == oracle(rows)
    mergeable_calls = {name: calls[name] for name in ("average", "large", "n", "total")}
    expected = {
        key: tuple(dict(zip(calls, row, strict=True))[name] for name in mergeable_calls)
        for key, row in oracle(rows).items()
    }
    assert by_key(group_by(df, "k", "x").agg(**mergeable_calls), 2) == expected
    everything = oracle([("", 0.0, *row[2:]) for row in rows])
    assert by_key(group_by(df).agg(**calls), 0) == {(): everything["", 0.0]}


def test_four_threads_fold_at_once(classic: Any, functions: Any) -> None:
    """Tasks that run as threads of one process do not share accumulators: many groups, three times."""
    df = classic.range(0, 400_000, 1, 8).select(
        (sf.col("id") % 5_003).alias("k"), sf.col("id").alias("v"), (sf.col("id") % 7).cast("int").alias("w")
    )
    expected = {
        (row.k,): (row.n, row.total)
        for row in df.groupBy("k").agg(sf.count("v").alias("n"), sf.sum("v").alias("total")).collect()
    }
    for _ in range(3):
        calls = {"n": functions["count"]("v"), "total": functions["sum"]("v")}
        assert by_key(group_by(df, "k").agg(**calls), 1) == expected


def test_retractions_come_after_the_rows_that_they_undo(classic: Any, functions: Any) -> None:
    """Rows with kinds of a plan of one phase are sorted, although Sail drops sorts within partitions."""
    rng = random.Random(3)
    rows = [(f"k{rng.randrange(9)}", number) for number in range(900)]
    kinds = [("+I", *row) for row in rows] + [("-D", *row) for row in rows if row[1] % 3 == 0]
    rng.shuffle(kinds)
    df = classic.createDataFrame(kinds, "kind string, k string, v bigint").repartition(6)
    calls = {"n": functions["count"]("v").distinct(), "all": functions["count"]()}
    live_counts = Counter(key for key, number in rows if number % 3)
    assert by_key(group_by(df, "k", row_kind="kind").agg(**calls), 1) == {
        (key,): (n, n) for key, n in live_counts.items()
    }
    assert by_key(group_by(df, row_kind="kind").agg(**calls), 0) == {(): (live_counts.total(), live_counts.total())}


@pytest.mark.parametrize("plan", ["fold", "lifted"])
def test_a_retraction_without_its_row_is_ignored(classic: Any, functions: Any, plan: Any) -> None:
    """Rows are equal as in Spark: all NaNs, both zeros, and NULLs."""
    nan = math.nan
    rows = [("-U", "ann", 10, 1.0), ("+U", "ann", 40, 1.0), ("+I", "bob", 2, 0.0), ("+I", "bob", 3, 0.0)]
    rows += [("-D", "bob", 2, -0.0), ("-D", "bob", 7, 0.0), ("+I", "cid", 5, nan), ("-D", "cid", 5, -nan)]
    rows += [("+I", "dee", 1, None), ("-D", "dee", 1, None), ("-D", "eve", 1, None)]
    df = classic.createDataFrame(rows, "kind string, k string, v bigint, x double").repartition(3)
    calls = {"total": functions["sum"]("v"), "n": functions["count"]("x")}
    actual = by_key(group_by(df, "k", row_kind="kind", plan=plan).agg(**calls), 1)
    assert actual == {("ann",): (40, 1), ("bob",): (3, 1)}
    with pytest.raises(Exception, match="CANNOT_RETRACT: a row is retracted and no equal row is accumulated"):
        group_by(df, "k", row_kind="kind", plan=plan, strict=True).agg(**calls).collect()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_frames_have_the_results_of_run_over(classic: Any, ours: Functions, seed: int) -> None:
    """OVER gives what `run_over` computes from the same rows."""
    rng = random.Random(seed)
    rows = [
        {
            "id": number,
            "k": rng.choice(["a", "b", None]),
            "o": rng.choice([None, *range(20)]),
            "v": rng.randrange(100),
        }
        for number in range(600)
    ]
    calls = {
        "rows": ours["sum"]("v").rows(-3, 1),
        "range": ours["sum"]("v").range(-2, 0),
        "running": ours["weighted_avg"]("v", "id"),
    }
    order = ["o", "id"]
    df = classic.createDataFrame(
        [tuple(row.values()) for row in rows], "id int, k string, o int, v bigint"
    ).repartition(7)
    framed_calls = {"rows": calls["rows"], "running": calls["running"]}
    expected = run_over(framed_calls, rows, keys=["k"], order_by=order)
    actual = over(df, "k", order_by=order).agg(**framed_calls).orderBy("id").collect()
    assert [row.asDict() for row in actual] == sorted(expected, key=lambda row: row["id"])
    expected = run_over({"range": calls["range"]}, rows, keys=["k"], order_by=["o"])
    actual = over(df, "k", order_by="o").agg(range=calls["range"]).orderBy("id").collect()
    assert [row.asDict() for row in actual] == sorted(expected, key=lambda row: row["id"])


TIMES = [datetime.time(9, 0, 0, 1), datetime.time(9), datetime.time(23, 59, 59, 999_999), None]
DAYS = [datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=-1), datetime.timedelta(0), None]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("time", TIMES),
        ("interval day to second", DAYS),
        ("binary", [b"", b"\0", b"\xff", None]),
        ("struct<a: int, b: string>", [(1, "x"), (1, None), (None, "x"), None]),
        ("struct<t: time, x: double>", [(TIMES[0], 0.5), (TIMES[1], 0.5), (TIMES[1], None), None]),
        ("array<time>", [TIMES[:1], TIMES[:2], [], None]),
        ("array<struct<d: interval day to second>>", [[(DAYS[0],)], [(DAYS[1],)], [(None,)], None]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_keys_that_sail_cannot_hash_or_order_are_supported(
    classic: Any, ours: Functions, type_: str, values: list[Any]
) -> None:
    """TIME, intervals, BINARY and STRUCT are keys of groups, of one and of two phases, and keys and order of OVER."""
    rng = random.Random(4).choices(range(len(values)), k=200)
    df = classic.createDataFrame(
        [(values[place], place, number) for number, place in enumerate(rng)], f"k {type_}, place int, v bigint"
    ).repartition(5)
    counts = Counter(rng)
    for use in (ours["count"]("v"), ours["count"]("v").distinct()):
        actual = group_by(df, "k").agg(n=use).collect()
        assert Counter({values.index(plain(row.k)): row.n for row in actual}) == counts
        assert len(actual) == len(values)
    rows = over(df, "k", order_by="v").agg(n=ours["count"]()).collect()
    expected = [(place, rng[: at + 1].count(place)) for at, place in enumerate(rng)]
    assert [(row.place, row.n) for row in sorted(rows, key=lambda row: row.v)] == expected
    over_rows = over(df, order_by="k").agg(n=ours["count"]()).collect()
    peers = {row.place: row.n for row in over_rows}
    assert all(row.n == peers[row.place] for row in over_rows)
    order = sorted(peers, key=lambda place: peers[place])
    assert values[order[0]] is None
    assert [peers[place] for place in order] == list(accumulate(counts[place] for place in order))


def plain(value: Any) -> Any:
    """Return a value of a key as it was written, with tuples for rows and bytes for buffers."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, tuple):
        return tuple(value)
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT k, weighted_avg(v, w) a FROM orders GROUP BY k", [("ann", 30), ("bob", 7)]),
        (
            "SELECT k, weighted_avg(v, w) FILTER (WHERE w > 1) a, count(*) FROM orders GROUP BY ROLLUP (k)",
            [(None, 20, 3), ("ann", 40, 2), ("bob", 7, 1)],
        ),
        ("SELECT weighted_avg(v, w) a FROM orders HAVING weighted_avg(v, w) > 1", [(18,)]),
        ("WITH t AS (SELECT k, weighted_avg(v, w) a FROM orders GROUP BY k) SELECT max(a) FROM t", [(30,)]),
        (
            """WITH t AS (SELECT v, w FROM orders), a AS (SELECT weighted_avg(v, w) x FROM t),
            b AS (SELECT weighted_avg(v, w) y FROM t) SELECT x = y FROM a, b""",
            [(True,)],
        ),
        (
            "SELECT k, weighted_avg(v, w) OVER (PARTITION BY k ORDER BY v) a FROM orders",
            [("ann", 10), ("ann", 30), ("bob", 7)],
        ),
        ("SELECT k, doubled(CAST(w AS BIGINT)) a FROM orders", [("ann", 2), ("ann", 4), ("bob", 6)]),
        ("SELECT weighted_avg(doubled(v), w) a FROM orders", [(37,)]),
    ],
)  # fmt: skip
def test_statements_with_functions_are_computed(
    classic: Any, ours: Functions, statement: str, expected: list[tuple[Any, ...]]
) -> None:
    """Statements have GROUP BY, FILTER, ROLLUP, HAVING, common tables, OVER and scalar functions."""
    orders = classic.createDataFrame([("ann", 10, 1), ("ann", 40, 2), ("bob", 7, 3)], "k STRING, v BIGINT, w INT")
    orders.createOrReplaceTempView("orders")
    register(classic, ours)
    assert sorted(map(tuple, sql(classic, statement).collect()), key=repr) == sorted(expected, key=repr)


def test_scalar_and_table_functions_map_all_rows(classic: Any, ours: Functions) -> None:
    """They map the rows of all partitions, as columns, as rows, and as UDFs that several threads use at once."""
    df = classic.range(0, 50_000, 1, 8)
    assert with_columns(df, y=ours["doubled"]("id")).agg(sf.sum("y")).collect() == [(50_000 * 49_999,)]
    words = classic.createDataFrame([("a-b",), ("c",)], "s string")
    assert sorted(row[1] for row in join_lateral(words, ours["pieces"]("s")).collect()) == ["a", "b", "c"]
    register(classic, ours)
    df.createOrReplaceTempView("numbers")
    for _ in range(3):
        assert sql(classic, "SELECT sum(doubled(id)), sum(doubled(id + 1)) FROM numbers").collect() == [
            (50_000 * 49_999, 50_000 * 50_001)
        ]


@pytest.mark.parametrize("keys", [["k"], ["t", "b"], []], ids=str)
def test_integers_are_lifted(classic: Any, keys: list[str]) -> None:
    """Calls over hostile rows have the results of a fold; those with floats, or that raise, say why they are folded."""
    df = classic.createDataFrame(rows(), LIFTED_SCHEMA).repartition(5)
    lifted_functions_ = connect([*lifted_functions.LIFTED, Median])
    uses = lifted_calls(lifted_functions_)
    del uses["products"]  # in these partitions a fold has partial totals that its state does not hold
    why = {}
    for name, use in uses.items():
        try:
            actual = group_by(df, keys, plan="lifted").agg(**{name: use})
        except RejectedError as error:
            why[name] = error.message
            continue
        assert texts_of(actual) == texts_of(group_by(df, keys, plan="fold").agg(**{name: use})), name
        assert texts_of(group_by(df.where("k > 99"), keys).agg(**{name: use})) == (
            texts_of(group_by(df.where("k > 99"), keys, plan="fold").agg(**{name: use}))
        ), name
    assert set(uses) - set(why) == {
        "conditions", "narrow", "present", "spread", "pairs", "own", "n", "some", "total", "mean", "every", "any",
    }  # fmt: skip
    assert "it computes with floats" in why["least"]
    assert "no integers" in why["last"]
    choice = group_by(df, "k").query(n=lifted_functions_["count"]()).lift_choice
    assert (choice.holds, choice.why) == (False, "this host folds faster; plan='lifted' lifts it nevertheless")
    with pytest.raises(RejectedError, match="a key has floats"):
        group_by(df, "x", plan="lifted").agg(n=lifted_functions_["count"]())


def test_a_row_that_raises_is_an_error_where_rows_are_lifted(classic: Any) -> None:
    """For the row and its group only, and not where FILTER leaves it out."""
    df = classic.createDataFrame([(7, None, 2), (7, 1, 1), (8, 5, 2)], "k int, v bigint, i bigint")
    products = connect(lifted_functions.LIFTED)["products"]
    whole = group_by(df, "k", plan="lifted")
    assert texts_of(whole.agg(o=products("v", "i").where("v IS NOT NULL"))) == ["(7, -3)", "(8, -6)"]
    with pytest.raises(Exception, match="USER_CODE") as excinfo:
        whole.agg(o=products("v", "i")).collect()
    for part in ("lifted_functions.py:", "function: products", "group: k=7", "row: v=NULL, i=2"):
        assert part in str(excinfo.value)


def test_a_sum_that_wraps_around_is_an_error(classic: Any, capsys: Any) -> None:
    """Sums of Sail wrap around, here to 0. What it has for sums that overflow takes too long for many groups."""
    df = classic.createDataFrame([(7, -(2**63), -(2**31))] * 4, "k int, v bigint, w int")
    weighted_avg = connect("embedded:examples.weighted_avg")["weighted_avg"]
    result = group_by(df, "k", plan="lifted").agg(o=weighted_avg("v", "w"))
    with pytest.raises(Exception, match="OVERFLOW") as excinfo:
        result.collect()
    assert "group: k=7" in str(excinfo.value)
    result.explain()
    assert "try_sum" not in capsys.readouterr().out


def test_sums_of_64_bits_are_exact_or_null(classic: Any) -> None:
    """At both ends of BIGINT, where a part of the rows leaves it, for NULLs, and for too many rows."""
    end = 2**63
    cases = [[end - 1], [-end], [end // 2] * 2, [end // 2, end // 2 - 1], [-end // 2] * 2, [-end // 2, -end // 2, -1]]
    cases += [[end - 1, end - 1, -end, 5], [-1, 1], [-1] * 3, [0], [2**32 - 1, 1], [-(2**32), -1], [None], [None, -7]]
    df = classic.createDataFrame(
        [(place, each) for place, case in enumerate(cases) for each in case], "k int, x bigint"
    )
    totals = [sum(each or 0 for each in case) for case in cases]
    expected = [(place, total if -end <= total < end else None) for place, total in enumerate(totals)]
    for limb, count in (("CASE WHEN x IS NOT NULL THEN x ELSE 0L END", "count(1)"), ("x", "count(x)")):
        actual = df.groupBy("k").agg(
            sf.expr(exact_sums(classic, ["wide sum"])["wide sum"].format(limb, rows=count)).alias("o")
        )
        assert sorted(actual.collect()) == expected
    assert None in dict(expected).values()
    for sum_ in exact_sums(classic, ["wide sum"]).values():
        many = (sf.expr(sum_.format("x", rows=f"{few}L")).alias(f"o{few}") for few in (2**31 - 1, 2**31))
        assert df.where("k = 9").agg(*many).collect() == [(0, None)]


def test_an_error_of_a_function_names_its_line(classic: Any, ours: Functions) -> None:
    """The text of the error has the function, the group and the author's line."""
    df = classic.createDataFrame([("a", 1), ("b", 0)], "k string, v bigint")
    with pytest.raises(Exception, match="fails_at_zero") as excinfo:
        group_by(df, "k").agg(x=ours["fails_at_zero"]("v")).collect()
    assert "1 // v" in str(excinfo.value)


def test_streams_are_refused_and_nothing_is_set(
    classic: Any, ours: Functions, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stream is refused with the reason when its query is built, and `configure` sets nothing."""
    stream = classic.readStream.format("rate").load()
    with pytest.raises(RejectedError, match="Sail has no state store for streams"):
        group_by(stream, "value").agg(n=ours["count"]())
    assert configure(classic, partitions=2) == {}
    assert "Sail needs none of the settings" in capsys.readouterr().out


@pytest.mark.parametrize("items", [3, LONG])
def test_arrays_are_vectors_with_all_their_bits(classic: Any, functions: Functions, items: int) -> None:
    """Arrays are vectors, with all their bits, in groups, OVER, SQL and scalar functions; NULL reaches the function."""
    extreme = ([math.nan, math.inf, -math.inf, -0.0] * items)[:items]
    whole = [float(number) for number in range(items)]
    rows = [("a", 0, whole), ("a", 1, None), ("a", 2, [3 * each for each in whole]), ("b", 3, None), ("c", 4, extreme)]
    df = classic.createDataFrame(rows, "k string, i int, v array<float>").repartition(3)
    df.createOrReplaceTempView("vectors")
    name = {3: "centroid", LONG: "long_centroid"}[items]
    register(classic, functions, {name: "middle"})
    double = [2 * each for each in whole]
    expected = {"a": str(double), "b": "None", "c": str([each + 0.0 for each in extreme])}
    over_df = over(df, "k", order_by="i").agg(mean=functions[name]("v").rows(-1, 0)).where("i IN (1, 3, 4)")
    for actual in (
        group_by(df, "k").agg(mean=functions[name]("v")),
        sql(classic, "SELECT k, middle(v) AS mean FROM vectors GROUP BY k"),
    ):
        assert {row["k"]: str(row["mean"]) for row in actual.collect()} == expected
    assert {row["k"]: str(row["mean"]) for row in over_df.collect()} == expected | {"a": str(whole)}
    if items == LONG:
        negated_rows = with_columns(df, w=functions["long_negated"]("v")).where("i IN (1, 4)").collect()
        assert {row["k"]: str(row["w"]) for row in negated_rows} == {"a": "None", "c": str([-each for each in extreme])}


@pytest.mark.parametrize(("wrong", "why"), [([1.0, 2.0], "it has 2 items"), ([1.0, None, 2.0], "its item 1 is NULL")])
def test_other_lists_are_no_vectors(classic: Any, functions: Functions, wrong: list[float | None], why: str) -> None:
    df = classic.createDataFrame([("a", 1, [1.0, 2.0, 3.0]), ("b", 2, wrong)], "k string, i int, v array<float>")
    for actual in (
        group_by(df, "k").agg(mean=functions["centroid"]("v")),
        over(df, "k", order_by="i").agg(mean=functions["centroid"]("v").rows(-1, 0)),
        with_columns(df, longer=functions["longer"]("v")),
    ):
        with pytest.raises(Exception, match=rf"the argument v has a list that is no VECTOR\(3\): {why}"):
            actual.collect()
    with pytest.raises(RejectedError, match=r"takes VECTOR\(3\)"):
        group_by(df.selectExpr("k", "CAST(v AS array<double>) AS v"), "k").agg(mean=functions["centroid"]("v"))
