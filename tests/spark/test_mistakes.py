"""Mistakes: which error, when, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from foldflight import FoldflightError, RejectedError, connect
from foldflight.spark import group_by
from tests.spark import spark_functions


@pytest.fixture(scope="module")
def df(classic: Any) -> Any:
    """A small input."""
    return classic.range(20).selectExpr("id % 2 AS k", "id AS v", "1 AS w", "'x' AS s")


CASES: dict[str, tuple[Any, str, str]] = {
    "nothing": (lambda df, f: group_by(df, "k").agg(), "SIGNATURE", "nothing to aggregate"),
    "no aggregate": (lambda df, f: group_by(df, "k").agg(n="count(*)"), "SIGNATURE", "n is 'count"),
    "the handle itself": (lambda df, f: group_by(df, "k").agg(n=f["count"]), "SIGNATURE", "not a use of a function"),
    "two connections": (
        lambda df, f: group_by(df).agg(a=f["count"](), b=connect(spark_functions)["count"]()),
        "SIGNATURE",
        "two connections",
    ),
    "a name twice": (lambda df, f: group_by(df, "k").agg(K=f["count"]()), "SIGNATURE", "'K' is the name of two"),
    "a key twice": (lambda df, f: group_by(df, "k", "k"), "SIGNATURE", "twice among the keys"),
    "unknown key": (lambda df, f: group_by(df, "nope"), "SCHEMA_MISMATCH", "nope"),
    "unknown column": (
        lambda df, f: group_by(df, "k").agg(n=f["sum"]("nope")),
        "SCHEMA_MISMATCH",
        "Spark cannot resolve the columns of the query: .*nope",
    ),
    "broken expression": (lambda df, f: group_by(df).agg(n=f["sum"]("v +")), "SCHEMA_MISMATCH", "Syntax error"),
    "a constant": (lambda df, f: group_by(df).agg(n=f["sum"](1)), "SIGNATURE", "1 is no column"),
    "wrong type": (
        lambda df, f: group_by(df).agg(n=f["weighted_avg"]("s", "w")),
        "SCHEMA_MISMATCH",
        "takes BIGINT for its argument value and was given STRING",
    ),
    "wrong count": (lambda df, f: group_by(df).agg(n=f["weighted_avg"]("v")), "SCHEMA_MISMATCH", "takes 2 columns"),
    "condition of the wrong type": (
        lambda df, f: group_by(df).agg(n=f["count"]().where("v + 1")),
        "SCHEMA_MISMATCH",
        "not boolean",
    ),
    "a map for a key": (lambda df, f: group_by(df, "map(k, v)").agg(n=f["count"]()), "SCHEMA_MISMATCH", "map"),
    "collated key": (
        lambda df, f: group_by(df, "collate(s, 'UTF8_LCASE')").agg(n=f["count"]()),
        "SCHEMA_MISMATCH",
        "collation_key",
    ),
    "unknown direct argument": (
        lambda df, f: group_by(df).agg(n=f["percentile"]("v", fraktion=1)),
        "SIGNATURE",
        "did you mean fraction",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_mistakes_show_when_the_query_is_built(df: Any, embedded: Any, case: str) -> None:
    """Each mistake is a RejectedError before anything runs, and says what is wrong."""
    build, code, message = CASES[case]
    with pytest.raises(RejectedError, match=f"(?s){message}") as caught:
        build(df, embedded)
    assert caught.value.code == code


@pytest.mark.parametrize("at", ["accumulate", "merge", "get_value"])
def test_an_error_of_the_author_names_group_and_row(spark: Any, functions: Any, at: str) -> None:
    """What the user sees of a failed task names function, group and row, and shows the author's own line."""
    df = spark.range(0, 14, 1, 2).selectExpr("named_struct('b', id % 2) AS k", "id AS v")
    with pytest.raises(Exception, match="bad luck") as caught:
        group_by(df, "k").agg(o=functions["picky"]("v", at=at)).collect()
    text = str(caught.value)
    assert f"USER_CODE: {at} raised ValueError" in text
    assert "function: picky" in text
    assert "group: k={'b': " in text
    if at != "merge":
        assert "group: k={'b': 1}" in text
    if at == "accumulate":
        assert "v=13" in text
    assert "spark_functions.py" in text
    assert "interpreted.py" not in text.split("FunctionError", 1)[1].split("SQLSTATE", 1)[0]


def test_overflow_is_an_error(classic: Any, functions: Any) -> None:
    """A sum beyond BIGINT fails the query rather than wrapping."""
    df = classic.sql("SELECT id, 9223372036854775807 AS v FROM range(2)")
    with pytest.raises(Exception, match="OVERFLOW"):
        group_by(df).agg(o=functions["sum"]("v")).collect()


def test_a_server_that_is_gone(classic: Any) -> None:
    """A server that stops after the query was built is UNREACHABLE in the task's error."""
    from foldflight.server.run.lifecycle import serving

    with serving(spark_functions, state_keys="a key for the spark tests") as server:
        functions = connect(server.url, deadline_s=5, patience_s=2)
        result = group_by(classic.range(10), "id").agg(n=functions["count"]())
    with pytest.raises(FoldflightError, match="UNREACHABLE"):
        group_by(classic.range(10), "id").agg(n=functions["count"]())
    with pytest.raises(Exception, match="UNREACHABLE"):
        result.collect()
