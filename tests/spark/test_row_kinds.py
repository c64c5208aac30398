"""Batches with retractions."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from pyspark.errors import PySparkException

from foldflight import RejectedError
from foldflight.spark import group_by
from foldflight.spark.errors import error_of


def changelog(seed: int) -> tuple[list[tuple[str, int, int]], dict[int, Counter[int]]]:
    """Return rows (kind, key, value) of a correct changelog, and the live values of each key."""
    chosen = random.Random(seed)
    live: dict[int, Counter[int]] = defaultdict(Counter)
    rows = []
    for _ in range(3_000):
        key = chosen.randrange(60)
        values = [value for value, times in live[key].items() if times]
        if values and chosen.random() < 0.5:
            value = chosen.choice(values)
            live[key][value] -= 1
            rows.append((chosen.choice(["-D", "-U"]), key, value))
        else:
            value = chosen.randrange(5)
            live[key][value] += 1
            rows.append((chosen.choice(["+I", "+U"]), key, value))
    for key in range(50, 60):  # these end without rows
        for value, times in live.pop(key, Counter()).items():
            rows += [("DELETE", key, value)] * times
    return rows, {key: +values for key, values in live.items() if +values}


@pytest.mark.parametrize("function", ["median", "sum"])
def test_groups_have_the_results_of_their_live_rows(spark: Any, functions: Any, function: str) -> None:
    """Groups have the results of their live rows; groups without live rows are absent, in one phase and in two."""
    rows, live = changelog(seed=5)
    df = spark.createDataFrame(rows, "kind string, k int, v bigint").repartition(6)
    result = group_by(df, "k", row_kind="kind").agg(
        o=functions[function]("v"), n=functions["count"](), d=functions["count"]("v").distinct()
    )
    expected = {}
    for key, values in live.items():
        elements = sorted(values.elements())
        expected[key] = (
            elements[len(elements) // 2] if function == "median" else sum(elements),
            len(elements),
            len(values),
        )
    assert {row.k: (row.o, row.n, row.d) for row in result.collect()} == expected


@pytest.mark.parametrize("function", ["median", "sum"])
def test_retractions_without_keys(classic: Any, embedded: Any, function: str) -> None:
    """Without keys the only group stays, also when all its rows are retracted."""
    rows = [("+I", 1), ("+I", 2), ("-D", 1), ("-D", 2)]
    df = classic.createDataFrame(rows, "kind string, v bigint").repartition(4)
    result = group_by(df, row_kind="kind").agg(o=embedded[function]("v"), n=embedded["count"]())
    assert [tuple(row) for row in result.collect()] == [(None, 0)]


def test_what_never_came_is_not_taken_back(classic: Any, embedded: Any) -> None:
    """A retraction for a group without rows is ignored, and other groups are not affected."""
    rows = [("-D", 1, 7), ("+I", 2, 7)]
    df = classic.createDataFrame(rows, "kind string, k int, v bigint")
    result = group_by(df, "k", row_kind="kind").agg(o=embedded["median"]("v"))
    assert [tuple(row) for row in result.collect()] == [(2, 7)]


def test_append_only_functions_are_refused(classic: Any, embedded: Any) -> None:
    """A function without retract is refused when the query is built."""
    df = classic.createDataFrame([("+I", 1.0)], "kind string, x double")
    with pytest.raises(RejectedError, match="percentile is append-only") as caught:
        group_by(df, row_kind="kind").agg(o=embedded["percentile"]("x", fraction=0.5))
    assert caught.value.code == "CANNOT_RETRACT"


def test_an_unknown_kind_fails_the_query(classic: Any, embedded: Any) -> None:
    """The error in Spark names an invalid row kind."""
    df = classic.createDataFrame([("+X", 1)], "kind string, v bigint")
    with pytest.raises(Exception, match=r"SCHEMA_MISMATCH: \+X is no row kind"):
        group_by(df, row_kind="kind").agg(o=embedded["sum"]("v")).collect()


@pytest.mark.parametrize("code", ["DELETE", "-D", "x"])
def test_a_code_without_a_meaning_fails_the_query(classic: Any, embedded: Any, code: str) -> None:
    """Where codes have meanings, one that is not among them is refused, even if it is the name of a row kind."""
    df = classic.createDataFrame([("c", 1), (code, 1)], "op string, v bigint")
    said = f"SCHEMA_MISMATCH: the row kind 'op' is '{code}', and row_kinds maps only 'c', 'd'; add it there"
    with pytest.raises(PySparkException, match=said) as caught:
        group_by(df, row_kind="op", row_kinds={"c": "+I", "d": "-D"}).agg(o=embedded["sum"]("v")).collect()
    error = error_of(caught.value)
    assert isinstance(error, RejectedError)
    assert error.code == "SCHEMA_MISMATCH"


def test_a_column_that_cannot_hold_kinds_is_refused_at_once(spark: Any, embedded: Any) -> None:
    """Columns of numbers need `row_kinds`, `row_kinds` need a column, and the column must exist."""
    df = spark.createDataFrame([(1, "a", 5), (2, "a", 5), (1, "b", 7)], "code int, k string, v bigint")
    for given, said in (
        ({"row_kind": "code"}, r"'code' is int, and row kinds are texts(?s:.*)row_kinds="),
        ({"row_kind": "cod"}, "cod"),
        ({"row_kinds": {"1": "+I"}}, "give row_kind as well"),
        ({"row_kind": "code", "row_kinds": {"1": "insert it"}}, "insert it"),
    ):
        with pytest.raises(RejectedError, match=said):
            group_by(df, "k", **given)
    result = group_by(df, "k", row_kind="code", row_kinds={"1": "+I", "2": "-D"}).agg(o=embedded["sum"]("v"))
    assert [tuple(row) for row in result.collect()] == [("b", 7)]
