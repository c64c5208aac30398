"""Spark's own statements, with its aggregates replaced by ours of the same meaning, beside the original."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foldflight.spark import sql
from foldflight.sql import SqlError
from tests.sql.statements import ours, statements

FILES = ("group_by", "having", "sets", "pivot", "subqueries", "windows", "beside", "pipes")
ACCEPTED = [each for name in FILES for each in statements(name)]


def canonical(value: Any) -> Any:
    """Return a value in a form in which equal values are equal: floats rounded to 12 digits, NaN as text."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.12g}") + 0.0
    if isinstance(value, list):
        return sorted(map(canonical, value), key=repr)
    return value


def rows(df: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result in an order of their own."""
    return sorted((tuple(map(canonical, row)) for row in df.collect()), key=repr)


def types(df: Any) -> list[str]:
    """Return the types of a result."""
    return [field.dataType.simpleString() for field in df.schema]


@pytest.mark.parametrize("statement", ACCEPTED)
def test_statements_have_the_results_of_spark(db: Any, statement: str) -> None:
    """The result of a statement with our functions equals Spark's: the values and the types."""
    expected, result = db.sql(statement), sql(db, ours(statement))
    assert types(result) == types(expected)
    assert rows(result) == rows(expected)


@pytest.mark.parametrize("statement", statements("refused"))
def test_statements_that_spark_refuses_are_refused(db: Any, statement: str) -> None:
    """What Spark refuses is refused, with a place in the text."""
    with pytest.raises(Exception, match=r"\w"):
        db.sql(statement).schema  # noqa: B018
    with pytest.raises(SqlError) as excinfo:
        sql(db, ours(statement))
    assert 0 <= excinfo.value.start < excinfo.value.stop <= len(ours(statement)) + 1


@pytest.mark.parametrize("statement", statements("ours_only"))
def test_statements_that_only_foldflight_refuses_say_why(db: Any, statement: str) -> None:
    """What docs/reference/sql.md says of arguments and types: Spark takes these statements, and we refuse the call."""
    db.sql(statement).schema  # noqa: B018
    with pytest.raises(SqlError) as excinfo:
        sql(db, ours(statement))
    refused_text = ours(statement)[excinfo.value.start : excinfo.value.stop]
    assert refused_text.startswith("my_")
