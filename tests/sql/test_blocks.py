"""Clauses and tails of a SELECT: which words are keywords, and which are names."""

from __future__ import annotations

import pytest

from foldflight.sql import SqlError
from foldflight.sql.blocks import parse
from foldflight.sql.text import Span, Text


def clauses(query: str) -> dict[str, str]:
    """Return the clauses and tails of a query of one SELECT."""
    text = Text(query)
    result = parse(text, Span(0, len(text)))
    (block,) = result.blocks
    return {name: text.slice(span) for name, span in {**block.clauses, **result.tails}.items()}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT f(v) AS s FROM t GROUP BY offset ORDER BY 1", {"GROUP BY": "offset", "ORDER BY": "1"}),
        ("SELECT a FROM t WHERE offset > 5 LIMIT 3", {"WHERE": "offset > 5", "LIMIT": "3"}),
        ("SELECT limit, f(v) FROM t GROUP BY a, limit LIMIT ? OFFSET ?", {"SELECT": "limit, f(v)", "LIMIT": "?"}),
        ("SELECT a offset FROM t ORDER BY offset DESC LIMIT ALL OFFSET 2", {"SELECT": "a offset", "OFFSET": "2"}),
        ("SELECT x * limit FROM t WHERE a AND NOT limit LIMIT (1)", {"SELECT": "x * limit", "LIMIT": "(1)"}),
    ],
)
def test_limit_and_offset_are_also_names(query: str, expected: dict[str, str]) -> None:
    """Columns with these names begin no clause, wherever they stand."""
    result = clauses(query)
    assert {name: result[name] for name in expected} == expected
    assert result["FROM"] == "t"


@pytest.mark.parametrize(
    "statement",
    [
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "FROM (SELECT f(v) FROM s) INSERT OVERWRITE t SELECT *",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "WITH x AS (SELECT 1) MERGE INTO t USING x ON true WHEN MATCHED THEN DELETE",
    ],
)
def test_statements_behind_with_that_change_tables_are_no_queries(statement: str) -> None:
    """They are refused, because Spark executes them when it analyses the query."""
    text = Text(statement)
    with pytest.raises(SqlError, match="in a statement with functions of foldflight"):
        parse(text, Span(0, len(text)))
