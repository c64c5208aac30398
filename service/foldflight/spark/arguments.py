"""Checks of the arguments that many public functions take: DataFrames, sessions and names of columns.

PySpark's own error for a wrong one is an AttributeError, which names neither the argument nor what to write.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame

from foldflight.errors import RejectedError


def require_dataframe(df: object, function: str) -> None:
    """Raise RejectedError SIGNATURE unless the first argument of a public function is a DataFrame of Spark."""
    if isinstance(df, DataFrame):
        return
    if hasattr(df, "agg") and hasattr(df, "pivot") and not hasattr(df, "columns"):
        remedy = f"give the DataFrame itself: {function}(df, ...), not {function}(df.groupBy('key'), ...)"
    elif hasattr(df, "iloc") or hasattr(df, "to_pandas"):
        remedy = "make it one: spark.createDataFrame(...)"
    else:
        remedy = "give a batch or streaming DataFrame, such as spark.table(...)"
    raise RejectedError(
        "SIGNATURE", f"{function} takes a DataFrame of Spark first, and this is a {_class_name(df)}; {remedy}"
    )


def require_session(spark: object, function: str) -> None:
    """Raise RejectedError SIGNATURE unless the first argument of a public function is a session, also of Connect."""
    if isinstance(spark, type) or not hasattr(spark, "createDataFrame"):
        raise RejectedError(
            "SIGNATURE",
            f"{function} takes the session of Spark first, and this is a {_class_name(spark)}; give spark, with "
            "spark = SparkSession.builder.getOrCreate()",
        )


def column_names(names: str | Iterable[str], argument: str) -> list[str]:
    """Return the names of columns that an argument has: one, or a list. Raises RejectedError SIGNATURE."""
    if isinstance(names, str):
        return [names]
    columns = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(each, str) for each in columns):
        raise RejectedError("SIGNATURE", f"{argument} has the names of columns, as in {argument}=['id'], not {names!r}")
    return columns


def _class_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
