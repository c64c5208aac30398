"""Tables and functions for statements: each function means the same as an aggregate of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldflight import Functions, connect
from foldflight.spark import register
from foldflight.sql.analysis import Analysis
from tests.spark import spark_functions
from tests.spark_sessions import leave_to_ci, let_pass

TABLES = """
    CREATE OR REPLACE TEMP VIEW testData AS SELECT * FROM VALUES
        (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (null, 1), (3, null), (null, null) AS testData(a, b);
    CREATE OR REPLACE TEMP VIEW emp AS SELECT * FROM VALUES
        (100, 'emp 1', date '2005-01-01', 100.00D, 10), (100, 'emp 1', date '2005-01-01', 100.00D, 10),
        (200, 'emp 2', date '2003-01-01', 200.00D, 10), (300, 'emp 3', date '2002-01-01', 300.00D, 20),
        (400, 'emp 4', date '2005-01-01', 400.00D, 30), (500, 'emp 5', date '2001-01-01', 400.00D, null),
        (600, 'emp 6 - no dept', date '2001-01-01', 400.00D, 100), (700, 'emp 7', date '2010-01-01', 400.00D, 100)
        AS emp(id, emp_name, hiredate, salary, dept_id);
    CREATE OR REPLACE TEMP VIEW dept AS SELECT * FROM VALUES
        (10, 'dept 1', 'CA'), (20, 'dept 2', 'NY'), (30, 'dept 3', 'TX'), (40, 'dept 4 - unassigned', 'OR'),
        (70, 'dept 7', 'FL') AS dept(dept_id, dept_name, state);
    CREATE OR REPLACE TEMP VIEW hav AS
        SELECT * FROM VALUES ('one', 1), ('two', 2), ('three', 3), ('one', 5) AS hav(k, v);
    CREATE OR REPLACE TEMP VIEW courseSales AS SELECT * FROM VALUES
        ('dotNET', 2012, 10000), ('Java', 2012, 20000), ('dotNET', 2012, 5000), ('dotNET', 2013, 48000),
        ('Java', 2013, 30000) AS courseSales(course, year, earnings);
    CREATE OR REPLACE TEMP VIEW odd AS SELECT * FROM VALUES
        ('ü', 1, 2.50, true, 1.5D), ('ü', 2, 0.25, false, -0.0D), ('b c', 3, null, null, double('nan')),
        (null, null, 1.00, true, 0.0D) AS odd(`a.b`, `from`, `Größe`, flag, x)
"""

NAMES = {
    "count": "my_count",
    "sum": "my_sum",
    "avg": "my_avg",
    "min": "my_min",
    "max": "my_max",
    "bool_and": "my_every",
    "bool_or": "my_some",
    "stddev_samp": "my_stddev",
    "var_pop": "my_var_pop",
    "string_agg": "my_string_agg",
}
"""Functions of foldflight by their names in these statements, beside the names of Spark's aggregates."""


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Spark is asked to analyse."""
    queries: list[str] = []
    df = Analysis.df
    monkeypatch.setattr(Analysis, "df", lambda self, text: queries.append(text) or df(self, text))
    return queries


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let pass what PySpark itself warns of."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            let_pass(item)
            leave_to_ci(item)


@pytest.fixture(scope="session")
def functions() -> Functions:
    """The functions of the Spark tests, over one connection with the built-in ones."""
    return connect(spark_functions)


def prepare(spark: Any, functions: Functions) -> Any:
    """Return a session with the tables and functions."""
    for statement in TABLES.split(";"):
        spark.sql(statement)
    register(spark, functions, {**NAMES, "weighted_avg": "weighted_avg", "percentile": "pct", "median": "mid"})
    return spark


@pytest.fixture(scope="session")
def db(classic: Any, functions: Functions) -> Any:
    """The classic session with tables and functions."""
    return prepare(classic, functions)


@pytest.fixture
def both(spark: Any, functions: Functions) -> Any:
    """A session of each kind, in turn, with tables and functions."""
    return prepare(spark, functions)


@pytest.fixture
def plans_of() -> Callable[[Any, str], list[str]]:
    """Return the plan of each block of a statement."""
    from foldflight.spark import sql

    def of(spark: Any, text: str, **options: Any) -> list[str]:
        return [row.plan for row in sql(spark, text, explain=True, **options).collect()]

    return of
