"""TPC-H's 22 queries, with Spark's aggregates replaced by ours, beside the originals."""

from __future__ import annotations

from typing import Any

import pytest

from foldflight.spark import sql
from tests.sql import tpch
from tests.sql.statements import ours, statements
from tests.sql.test_corpus import rows, types

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def benchmark(db: Any) -> Any:
    """The session with TPC-H's tables."""
    for name, result in tpch.tables().items():
        db.createDataFrame(result, tpch.SCHEMAS[name]).coalesce(1).createOrReplaceTempView(name)
        db.catalog.cacheTable(name)
    yield db
    for name in tpch.SCHEMAS:
        db.catalog.uncacheTable(name)
        db.catalog.dropTempView(name)


@pytest.mark.parametrize("query", statements("tpch"), ids=map(str, range(1, 23)))
def test_results_equal_those_of_spark(benchmark: Any, query: str) -> None:
    """The result equals Spark's, and has rows."""
    expected, result = benchmark.sql(query), sql(benchmark, ours(query))
    assert types(result) == types(expected)
    assert rows(result) == rows(expected)
    assert rows(expected), "a query that selects nothing tests nothing"
