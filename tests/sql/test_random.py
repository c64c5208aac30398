"""Random queries, by the `group_by` plan, by lists, and by Spark's own aggregates."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from foldflight.spark import sql
from tests.sql.statements import ours
from tests.sql.test_corpus import rows, types

KEYS = ("a", "b", "a + b", "a % 2", "t.a", "coalesce(a, 0)", "CASE WHEN b = 1 THEN 'x' END", "cast(a AS string)")
ARGUMENTS = ("a", "b", "a * b", "t.b + 1", "cast(a AS double)", "cast(b AS decimal(5, 1))")
WRAPS = (
    "{}",
    "{} + 1",
    "coalesce({}, -1)",
    "CASE WHEN {} > 2 THEN 'big' ELSE 'small' END",
    "cast({} AS string)",
    "array({})",
)


class Queries:
    """Makes queries with Spark's aggregates over `testData`, aliased `t`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def aggregate(self) -> str:
        name = self.random.choice(["SUM", "COUNT", "AVG", "MIN", "MAX"])
        argument = self.random.choice(ARGUMENTS)
        if name == "COUNT" and self.chance(0.4):
            call = "COUNT(*)"
        else:
            call = f"{name}({'DISTINCT ' if self.chance(0.25) else ''}{argument})"
        return f"{call} FILTER (WHERE b {self.random.choice(['= 1', '> 1', 'IS NULL'])})" if self.chance(0.3) else call

    def query(self, depth: int = 1) -> str:
        keys = self.random.sample(KEYS, self.random.randint(0, 3))
        items = [f"{key} AS k{place}" for place, key in enumerate(keys) if self.chance(0.8)]
        items += [
            f"{self.random.choice(WRAPS).format(self.aggregate())} AS v{place}"
            for place in range(self.random.randint(1, 3))
        ]
        self.random.shuffle(items)
        source = "testData t"
        if depth and self.chance(0.3):
            inner = (
                "SELECT a, b FROM testData WHERE b > 0"
                if self.chance(0.5)
                else ("SELECT b AS a, SUM(a) AS b FROM testData GROUP BY b")
            )
            source = f"({inner}) t"
        text = f"SELECT {', '.join(items)} FROM {source}"
        if self.chance(0.3):
            text += f" WHERE {self.random.choice(['a > 1', 'b IS NOT NULL', 'false', 'a <> b'])}"
        if keys:
            text += f" GROUP BY {', '.join(keys)}"
        if self.chance(0.3):
            text += f" HAVING {self.random.choice(['COUNT(*)', 'COUNT(b)', 'MAX(a)'])} > {self.random.randint(0, 2)}"
        return text


@pytest.mark.every_turn
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))])
def test_random_queries_agree_in_all_plans(db: Any, seed: int) -> None:
    """The three agree in values and types."""
    text = Queries(seed).query()
    expected = db.sql(text)
    for plan in ("auto", "lists"):
        result = sql(db, ours(text), plan=plan)
        assert types(result) == types(expected), text
        assert rows(result) == rows(expected), text


def test_random_queries_are_folded(db: Any, plans_of: Callable[[Any, str], list[str]]) -> None:
    """Most blocks of these queries have the `group_by` plan, so the comparison above is one of two plans."""
    plans = [plan for seed in range(6) for plan in plans_of(db, ours(Queries(seed).query()))]
    assert plans.count("fold") >= 5, plans
