"""`on_error="isolate"`: failed groups, their rows as dead letters, and other groups, which are not affected."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from foldflight import FunctionError, RejectedError
from foldflight.spark import dead_letters, group_by, results, tumble
from tests.spark.test_batch import SCHEMA, by_key, random_rows, same


def letters_of(df: Any) -> list[dict[str, Any]]:
    """Collect dead letters."""
    return [row.asDict(recursive=True) for row in dead_letters(df).collect()]


@pytest.mark.every_turn
def test_other_groups_go_on_when_one_fails(spark: Any, functions: Any) -> None:
    """A failed group has only dead letters, with its rows unchanged; other groups are as without it."""
    rows = [(k, x, -1 if v is None else v, w) for k, x, v, w in random_rows(1_000, seed=4)]
    df = spark.createDataFrame(rows, SCHEMA).repartition(5)
    aggregates = {"most": functions["picky"]("v"), "n": functions["count"](), "w": functions["sum"]("w").where("v > 3")}
    bad = {(same(k), same(x)) for k, x, v, _ in rows if v == 13}
    good = [row for row in rows if (same(row[0]), same(row[1])) not in bad]
    assert 0 < len(good) < len(rows)
    result = group_by(df, "k", "x", on_error="isolate").agg(**aggregates).persist()
    try:
        assert by_key(results(result), 2) == by_key(
            group_by(spark.createDataFrame(good, SCHEMA), "k", "x").agg(**aggregates), 2
        )
        letters = letters_of(result)
    finally:
        result.unpersist()
    letter_values = [
        (same(each["key"]["k"]), same(each["key"]["x"]), each["row"]["v"], each["row"]["w"]) for each in letters
    ]
    expected = [(same(k), same(x), v, w) for k, x, v, w in rows if (same(k), same(x)) in bad]
    assert sorted(letter_values, key=repr) == sorted(expected, key=repr)
    for each in letters:
        assert (each["code"], each["function"], each["row_kind"]) == ("USER_CODE", "picky", "+I")
        assert each["message"] == "accumulate raised ValueError: thirteen is bad luck"
        assert "v=13" in each["at"]
        assert "spark_functions.py" in each["trace"]
        assert each["row"]["where v > 3"] is (each["row"]["v"] > 3)


@pytest.mark.parametrize(("at", "what"), [("get_value", "get_value"), ("accumulate", "accumulate")])
def test_without_keys_the_only_group_fails(classic: Any, functions: Any, at: str, what: str) -> None:
    """Without keys a failure leaves no result. All rows are dead letters without a key."""
    df = classic.range(14).selectExpr("id v").repartition(3)
    result = group_by(df, on_error="isolate").agg(most=functions["picky"]("v", at=at))
    assert results(result).collect() == []
    letters = letters_of(result)
    assert sorted(each["row"]["v"] for each in letters) == list(range(14))
    assert all(each["message"].startswith(f"{what} raised") for each in letters)
    assert "key" not in letters[0]


def test_a_failure_without_rows_shows(classic: Any, embedded: Any) -> None:
    """A group that fails without rows has one dead letter, so that every failure is visible."""
    result = group_by(classic.range(0).selectExpr("id v"), on_error="isolate").agg(
        most=embedded["picky"]("v", at="create"), n=embedded["count"]()
    )
    [letter] = letters_of(result)
    assert (letter["row"], letter["row_kind"]) == (None, None)
    assert "nothing begins" in letter["message"]
    assert results(result).collect() == []


def test_retractions_and_windows_fail_alone(classic: Any, functions: Any) -> None:
    """Retractions are dead letters with their kinds; a failed window does not affect other windows of its key."""
    at = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    rows = [
        ("+I", "a", at, 1, 1),
        ("+I", "a", at + datetime.timedelta(hours=1), 14, 1),
        ("-D", "a", at + datetime.timedelta(hours=1), 14, 1),
        ("+I", "a", at + datetime.timedelta(hours=1), 15, 1),
        ("+I", "b", at, 14, 1),
    ]
    df = classic.createDataFrame(rows, "op string, k string, at timestamp, v bigint, w int").repartition(2)
    result = group_by(df, "k", row_kind="op", window=tumble("at", "1 hour"), on_error="isolate").agg(
        total=functions["unforgiving"]("v")
    )
    totals = {(row.k, row.window_start.hour): row.total for row in results(result).collect()}
    first = min(hour for _, hour in totals)
    assert totals == {("a", first): 1, ("b", first): 14}
    letters = letters_of(result)
    assert sorted((each["row_kind"], each["row"]["v"]) for each in letters) == [("+I", 14), ("+I", 15), ("-D", 14)]
    assert {(each["key"]["k"], each["key"]["window_start"].hour) for each in letters} == {("a", first + 1)}


def test_many_groups_fail_in_one_pass(classic: Any, embedded: Any) -> None:
    """Every third of 30,000 groups in few tasks fails; each has its dead letters once."""
    df = classic.range(60_000).selectExpr("id % 30000 k", "if(id % 30000 % 3 = 0, 13, id + 100) v")
    result = group_by(df, "k", on_error="isolate").agg(most=embedded["picky"]("v")).persist()
    try:
        assert results(result).count() == 20_000
        assert dead_letters(result).selectExpr("key.k").distinct().count() == 10_000
        assert dead_letters(result).count() == 20_000
    finally:
        result.unpersist()


def test_isolation_that_is_not_possible_is_refused(classic: Any, embedded: Any) -> None:
    """Invalid values, outputs of that name and results without the column are refused; the default is `fail`."""
    df = classic.range(14).selectExpr("id v")
    with pytest.raises(RejectedError, match="on_error is 'fail' or 'isolate', and here it is 'skip'"):
        group_by(df, on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(RejectedError, match="has a column dead_letter of its own"):
        group_by(df, on_error="isolate").agg(dead_letter=embedded["count"]())
    failing_df = group_by(df).agg(most=embedded["picky"]("v"))
    for take in (results, dead_letters):
        with pytest.raises(RejectedError, match="no column dead_letter among most"):
            take(failing_df)
    with pytest.raises(Exception, match="thirteen is bad luck") as excinfo:
        failing_df.collect()
    assert FunctionError.__name__ in str(excinfo.value)
