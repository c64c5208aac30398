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
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.errors import RejectedError

__all__ = [
    "ARROW_UDFS",
    "CONNECT",
    "FEATURES",
    "STREAMS",
    "VERSIONS",
    "Feature",
    "here",
    "require",
    "versions_table",
]

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
STREAMS: Final = Feature(
    "streams: `group_by` and `over` of a streaming DataFrame, `state_table`",
    "4.0",
    lambda: _has_module("pyspark.sql.streaming.stateful_processor"),
    "run the query over batches, for example in foreachBatch",
)
CONNECT: Final = Feature(
    "Spark Connect",
    "4.0",
    lambda: _has_module("pyspark.sql.classic"),
    "use a classic session (on Databricks: dedicated access mode)",
    plural=False,
)
ARROW_UDFS: Final = Feature(
    "scalar functions as UDFs: `spark_udf()`, and uses as arguments of other functions and of aggregates",
    "4.1",
    lambda: hasattr(sf, "arrow_udf"),
    "add the function's result as a column first, with with_columns",
)
VARIANTS: Final = Feature(
    "columns of the type VARIANT", "4.0", lambda: hasattr(st, "VariantType"), "keep the text of JSON in a STRING"
)
TIMES: Final = Feature(
    "results of the type TIME", "4.1", lambda: hasattr(st, "TimeType"), "declare another result_type, as STRING"
)

FEATURES: Final = (BATCHES, OVERS, MAPS, STREAMS, CONNECT, ARROW_UDFS, VARIANTS, TIMES)


def here() -> str:
    """Return the name of the installed Spark, for errors."""
    return f"Spark {pyspark.__version__}"


def require(feature: Feature, subject: str) -> None:
    """Refuse what the installed Spark cannot do.

    Args:
        feature: What is needed.
        subject: What needs it, for the error.

    Raises:
        RejectedError: SETTINGS, with the version and the remedy.
    """
    if not feature.has():
        verb = "need" if feature.plural else "needs"
        raise RejectedError(
            "SETTINGS", f"{subject} {verb} Spark {feature.since} or later, and this is {here()}; {feature.remedy}"
        )


def versions_table() -> str:
    """Return what each version can do as a Markdown table, for the documentation."""
    lines = [f"| | {' | '.join(VERSIONS)} |", "|---" * (len(VERSIONS) + 1) + "|"]
    for each in FEATURES:
        marks = ("yes" if _at_least(version, each.since) else "-" for version in VERSIONS)
        lines.append(f"| {each.what} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _at_least(version: str, since: str) -> bool:
    return tuple(map(int, version.split("."))) >= tuple(map(int, since.split(".")))
