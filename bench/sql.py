"""SQL: each plan beside that of `group_by`, the list plan beside Spark's Python aggregates, and planning times."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.data import Figure, Sizes, table
from bench.spark_batch import PEERS, Query, for_peers, ours, python_peers, rates_of, session
from foldflight.client import Functions, connect
from foldflight.spark import register, sql
from tests.sql import tpch
from tests.sql.conftest import NAMES
from tests.sql.statements import ours as ours_of
from tests.sql.statements import statements

SUITE = "sql"
GROUP_BY, GROUP_BY_LIFTED = "group_by, fold plan", "group_by, lifted plan"
FOLD, LIFTED, LISTS = "SQL, fold plan", "SQL, lifted plan", "SQL, list plan"
GROUPED_PEERS = PEERS[:2]
PLANNING, PLANNED, ANALYSED = "planning", "foldflight.spark.sql", "spark.sql"
_PLANS = 5
_QUERY = "SELECT k, weighted_avg(v, w) AS o FROM rows GROUP BY k"
_NESTED = """WITH sums AS (
        SELECT k, weighted_avg(v, w) AS o, count(*) AS n, max(v) AS m FROM rows WHERE v > 1 GROUP BY k)
    SELECT n % 2 AS parity, weighted_avg(o, CAST(n AS INT)) + 1 AS a, sum(m) AS s
    FROM sums JOIN (SELECT 1 AS one) ON n > one GROUP BY ALL HAVING count(*) > 1 ORDER BY a DESC LIMIT 10"""


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each way over the same rows, then the time for planning a statement."""
    functions = connect("embedded:examples.weighted_avg")
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder, session(shuffle) as spark:
        register(spark, functions)
        peers = dict(zip(GROUPED_PEERS, python_peers("k"), strict=False))
        for groups in sizes.groups:
            data = table(sizes.rows, groups)
            tables = data, for_peers(data, groups)
            yield from rates_of(
                spark, Path(folder), (SUITE, f"{groups:,} groups"), tables, (ways(spark, functions), peers)
            )
        yield from _planning(spark)


def ways(spark: Any, functions: Functions) -> dict[str, Query]:
    """Return the query in our ways, each with its plan."""
    return {
        GROUP_BY: ours(functions, "k", plan="fold"),
        FOLD: partial(_query, spark, plan="fold"),
        GROUP_BY_LIFTED: ours(functions, "k", plan="lifted"),
        LIFTED: partial(_query, spark, plan="lifted"),
        LISTS: partial(_query, spark, plan="lists"),
    }


def _query(spark: Any, frame: Any, plan: Any) -> Any:
    frame.createOrReplaceTempView("rows")
    return sql(spark, _QUERY, plan=plan)


def _planning(spark: Any) -> Iterator[Figure]:
    """Measure the planning of statements, beside Spark's analysis of the same ones with its own aggregates.

    One has two folded blocks; the others are TPC-H's queries over tables without rows.
    """
    plain = _NESTED.replace("weighted_avg(v, w)", "avg(v * w)").replace("weighted_avg(o, CAST(n AS INT))", "avg(o * n)")
    cases = {PLANNING: (_NESTED, plain)}
    for name, schema in tpch.SCHEMAS.items():
        spark.createDataFrame([], schema).createOrReplaceTempView(name)
    register(spark, connect("embedded:"), NAMES)
    for number, statement in enumerate(statements("tpch"), 1):
        (query,) = statement.values
        cases[f"{PLANNING}, TPC-H {number}"] = (ours_of(query), query)
    for case, (own, built_in) in cases.items():
        for way, plan in ((PLANNED, partial(sql, spark, own)), (ANALYSED, partial(spark.sql, built_in))):
            yield Figure(SUITE, case, way, min(_seconds(plan) for _ in range(_PLANS)) * 1000, "ms")


def _seconds(plan: Callable[[], object]) -> float:
    start = time.perf_counter()
    plan()
    return time.perf_counter() - start
