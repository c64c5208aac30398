"""What the versions of Spark can do. The documentation's table and the refusals are made of these facts.

The code asks PySpark what it has rather than which version it is, because platforms backport changes. `since` is the
version of Apache Spark that has it; the tests on each version compare the two.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.errors import RejectedError

VERSIONS: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")
"""The versions on which tests run."""


@dataclass(frozen=True)
class Feature:
    """Something that foldflight can do on some versions of Spark only.

    Args:
        what: What it is, for the table and errors.
        since: The first version of Apache Spark with it.
        has: Returns whether the installed PySpark has it.
        remedy: What to do instead, for errors.
        plural: Whether `what` is plural, for errors.
    """

    what: str
    since: str
    has: Callable[[], bool]
    remedy: str = ""
    plural: bool = True


def _always() -> bool:
    return True


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


BATCHES: Final = Feature("batches: `group_by(...).agg(...)`", "3.5", _always)
OVERS: Final = Feature("`over(...).agg(...)` of batches", "3.5", _always)
MAPS: Final = Feature("scalar and table functions: `with_columns`, `join_lateral`", "3.5", _always)
STATEMENTS: Final = Feature("SQL: `sql(spark, ...)`, `enable`", "3.5", _always)
STREAMS: Final = Feature(
    "streams: `group_by` and `over` of a streaming DataFrame, `state_table`",
    "4.0",
    lambda: _has_module("pyspark.sql.streaming.stateful_processor"),
    "run the query over batches, for example in foreachBatch",
)
TABLES: Final = Feature(
    "`write_table`",
    "4.0",
    lambda: hasattr(DataFrame, "toArrow"),
    "write the changes yourself, in foreachBatch",
    plural=False,
)
CONNECT: Final = Feature(
    "Spark Connect",
    "4.0",
    lambda: _has_module("pyspark.sql.classic"),
    "use a classic session (on Databricks: dedicated access mode)",
    plural=False,
)
ARROW_UDFS: Final = Feature(
    "scalar functions in SQL, `spark_udf()` and the lists plan of SQL in batches (before: row by row, slowly)",
    "4.1",
    lambda: hasattr(sf, "arrow_udf"),
    "use with_columns",
)
PLAIN_AGGREGATES: Final = Feature(
    "aggregates in plain `spark.sql`, without `enable`",
    "4.1",
    lambda: hasattr(sf, "arrow_udf"),
    "use foldflight.spark.sql",
)
PLAIN_TABLES: Final = Feature(
    "table functions in plain `spark.sql`, without `enable`",
    "4.0",
    lambda: _has_module("pyspark.sql.classic"),
    "use foldflight.spark.sql",
)
VARIANTS: Final = Feature(
    "columns of the type VARIANT", "4.0", lambda: hasattr(st, "VariantType"), "keep the text of JSON in a STRING"
)
TIMES: Final = Feature(
    "results of the type TIME", "4.1", lambda: hasattr(st, "TimeType"), "declare another result_type, as STRING"
)
TEXT_CASTS: Final = Feature(
    "`from_canal`, and `from_maxwell` with columns of DECIMAL, FLOAT, DOUBLE, DATE or timestamps",
    "4.0",
    lambda: hasattr(Column, "try_cast"),
    "read the changes with Debezium; or, from Maxwell, declare such columns STRING and cast the result",
)

QUALIFY: Final = Feature(
    "QUALIFY in SQL", "4.2", lambda: _is_at_least("4.2"), "filter the rows in a query around this one", plural=False
)
FILTERED_WINDOWS: Final = Feature(
    "FILTER of Spark's own aggregates in OVER",
    "4.2",
    lambda: _is_at_least("4.2"),
    "write sum(CASE WHEN ... THEN x END) OVER (...)",
    plural=False,
)
PIPES: Final = Feature(
    "SQL with pipes", "4.0", lambda: _is_at_least("4.0"), "write the query with SELECT", plural=False
)
_GRAMMAR: Final = ((QUALIFY, "QUALIFY"), (FILTERED_WINDOWS, "FILTER"), (PIPES, "|>"))

FEATURES: Final = (
    BATCHES,
    OVERS,
    MAPS,
    STATEMENTS,
    STREAMS,
    TABLES,
    CONNECT,
    PLAIN_TABLES,
    ARROW_UDFS,
    PLAIN_AGGREGATES,
    QUALIFY,
    FILTERED_WINDOWS,
    PIPES,
    VARIANTS,
    TIMES,
    TEXT_CASTS,
)


def spark_name() -> str:
    """Return the name of the installed Spark, for errors."""
    return f"Spark {pyspark.__version__}"


def require(feature: Feature, subject: str) -> None:
    """Refuse what the installed Spark cannot do.

    Args:
        feature: The feature that a query needs.
        subject: What needs it, for the error.

    Raises:
        RejectedError: SETTINGS, with the version and the remedy.
    """
    if not feature.has():
        raise RejectedError("SETTINGS", _requirement(feature, subject))


def newer_grammar(statement: str) -> str:
    """Return why Spark may have refused a statement, to be added to its error: grammar of newer versions.

    PySpark does not tell what its JVM can parse. A platform that has the grammar by a backport refuses nothing, so its
    users do not see this text.
    """
    words = statement.upper()
    missing = [feature for feature, word in _GRAMMAR if word in words and not feature.has()]
    return "".join(f" {_requirement(each, each.what)}." for each in missing)


def _requirement(feature: Feature, subject: str) -> str:
    verb = "need" if feature.plural else "needs"
    return f"{subject} {verb} Spark {feature.since} or later, and this is {spark_name()}; {feature.remedy}"


def _is_at_least(since: str) -> bool:
    installed_version = pyspark.__version__.split(".")[:2]
    return tuple(map(int, installed_version)) >= tuple(map(int, since.split(".")))
