"""Calls with OVER: which statements are planned as `over`, and what the others go by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foldflight import connect, udaf
from foldflight.spark import register, sql
from foldflight.sql import SqlError
from tests.spark_sessions import since_spark
from tests.sql.test_statements import values

QUALIFY = since_spark("4.2", "QUALIFY")
SORTED = "OVER (PARTITION BY k ORDER BY v)"


@QUALIFY
def test_calls_with_over_are_folded(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """Items, orders and QUALIFY may be expressions with such calls; a window over a fold is planned beside it."""
    for query in (
        f"SELECT *, my_sum(v) {SORTED} AS s FROM hav",
        "SELECT v - my_avg(v) OVER w, sum(v) OVER w FROM hav WINDOW w AS (PARTITION BY k)",
        f"SELECT k FROM hav QUALIFY my_sum(v) {SORTED} > v",
        f"SELECT k, my_max(v) {SORTED} AS m FROM hav ORDER BY v DESC, m",
        f"SELECT *, v * 2, my_sum(v) {SORTED} :: DOUBLE AS s FROM hav QUALIFY s > v AND rank() {SORTED} > 1",
        f"SELECT hav.*, my_sum(v) {SORTED} AS s FROM hav QUALIFY s > v",
        "SELECT mid(v) OVER (ORDER BY v ROWS BETWEEN 2 PRECEDING AND 1 + 1 FOLLOWING) FROM hav",
    ):
        assert plans_of(db, query, plan="fold") == ["over"], query
    query = f"SELECT k, my_sum(s) {SORTED.replace('v', 's')} FROM (SELECT k, v, my_sum(v) AS s FROM hav GROUP BY k, v)"
    assert plans_of(db, query) == ["fold", "over"]
    (decision,) = sql(db, f"EXPLAIN FOLDFLIGHT SELECT my_count(*) FILTER (WHERE v > 1) {SORTED} FROM hav").collect()
    assert decision.why == (f"over: partition by k; order by v; calls: my_count(*) FILTER (WHERE v > 1) {SORTED}")


@udaf(input_types=["STRING"], result_type="STRING")
class Summary:
    """Waits for its values, as for a model's answers."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, texts: list[str], text: str) -> None:
        texts.append(text)

    async def get_value(self, texts: list[str]) -> str:
        return ",".join(texts)


@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_async_values_are_not_asked_for_after_each_row(db: Any, plan: Any) -> None:
    """Lists would ask for one for each row, as `over` refuses to."""
    register(db, connect(Summary), {"summary": "summary"})
    for query in (
        "SELECT summary(k) OVER (PARTITION BY v ORDER BY k) FROM hav",
        "SELECT summary(max(k)) OVER () FROM hav GROUP BY v",
    ):
        with pytest.raises(SqlError, match=r"summary has an async get_value .* OVER needs the value after") as excinfo:
            sql(db, query, plan=plan)
        assert excinfo.value.code == "SIGNATURE"
    assert values(sql(db, "SELECT summary(k) FROM hav WHERE v = 1 GROUP BY v", plan=plan)) == [("one",)]


def test_calls_with_over_are_folded_on_servers_and_through_connect(both: Any) -> None:
    """The plan is the same as of `over`, in both sessions."""
    query = "SELECT k, v, weighted_avg(v, 1) OVER (PARTITION BY k ORDER BY v ROWS 1 PRECEDING) AS a FROM hav"
    assert sorted(values(sql(both, query, plan="fold"))) == sorted(values(sql(both, query, plan="lists")))


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT k, my_sum(my_sum(v)) OVER () FROM hav GROUP BY k", "OVER beside GROUP BY"),
        ("SELECT my_count(*) OVER (), my_count(*) FROM hav", "OVER beside my_count over all rows"),
        ("SELECT explode(array(1, v)), my_sum(v) OVER () FROM hav", "an item that makes several rows"),
        ("SELECT my_sum(v) OVER () + (SELECT max(v) FROM hav) FROM hav", "a subquery beside OVER"),
        pytest.param(
            "SELECT -v AS v, my_sum(v) OVER () FROM hav QUALIFY my_max(v) OVER () > 0",
            "v in QUALIFY is the name of ano",
            marks=QUALIFY,
        ),
        pytest.param(
            "SELECT -v AS v, my_count(*) OVER () FROM hav QUALIFY rank() OVER u > 1 WINDOW u AS (ORDER BY v)",
            "v in QUALIFY is the name of another item",
            marks=QUALIFY,
        ),
        pytest.param(
            "SELECT named_struct('v', v) AS t, my_sum(v) OVER () FROM hav t QUALIFY t.v > 0",
            "t.v is both a column and the name of another item",
            marks=QUALIFY,
        ),
        pytest.param(
            "SELECT s.v, my_sum(v) OVER () FROM (SELECT v, named_struct('v', -v) AS s FROM hav) QUALIFY v > 2",
            "v is both a column and the name of another item",
            marks=QUALIFY,
        ),
        (
            "SELECT 0 AS end, end + my_sum(v) OVER () FROM (SELECT v, v AS end FROM hav)",
            "the column end, whose name is",
        ),
        (
            "SELECT my_sum(DISTINCT v) OVER (ORDER BY v RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) FROM hav",
            "sum with DISTINCT or an order folds all rows of a frame",
        ),
    ],
)
def test_other_calls_with_over_go_by_lists(db: Any, query: str, why: str) -> None:
    """Spark gives the meaning of the other statements, and EXPLAIN the reason."""
    (row,) = sql(db, query, explain=True).collect()
    assert row.plan == "lists"
    assert why in row.why


@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_filter_guards_arguments(db: Any, plan: Any) -> None:
    """Arguments and orders of a call with FILTER and OVER are evaluated where the filter holds only."""
    query = """SELECT my_sum(1 / x) FILTER (WHERE x > 0) OVER (ORDER BY x) AS a,
                      pct(fraction => 0.5) WITHIN GROUP (ORDER BY 1 / x) FILTER (WHERE x > 0) OVER () AS b,
                      my_count(*) FILTER (WHERE x > 1) OVER (ORDER BY x) AS c
               FROM VALUES (0), (1), (2) AS t(x)"""
    assert values(sql(db, query, plan=plan)) == [(1.0, 0.5, 0), (1.5, 0.5, 1), (None, 0.5, 0)]
    query = "SELECT my_count(v + 1) FILTER (WHERE rand() < 0.5) OVER () AS n FROM hav"
    assert 0 <= sql(db, query, plan=plan).head()[0] <= 4


@pytest.mark.every_turn
def test_distances_may_have_several_units(db: Any) -> None:
    """SQL's intervals of several units are distances, like intervals of one unit."""
    frame = "RANGE BETWEEN INTERVAL {} PRECEDING AND CURRENT ROW"
    query = """SELECT {}sum(v) OVER (ORDER BY at {}) AS s
               FROM (SELECT timestamp_seconds(60 * m) AS at, v FROM VALUES (0, 1), (90, 2), (91, 4) AS t(m, v))"""
    for interval in ("'1:30' HOUR TO MINUTE", "'0 01:30:00' DAY TO SECOND", "'90:00' MINUTE TO SECOND"):
        statement = query.format("my_", frame.format(interval))
        assert sql(db, statement, explain=True).head().plan == "over"
        rows = db.sql(query.format("", frame.format(interval)))
        assert sorted(values(sql(db, statement))) == sorted(values(rows)) == [(1,), (3,), (6,)]
