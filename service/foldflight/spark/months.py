"""Intervals of years and months. Spark does not pass them to Python, so they become whole months, and intervals again.

The built-in functions that add, compare and pick values take these months. A sum of months, or one of the values, is an
interval again; an average is rounded to whole months, with halves away from zero, as in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.spark.columns import quote_name
from foldflight.spark.versions.states import keep_operator
from foldflight.spark.versions.types import spark_type

__all__ = ["as_intervals", "as_months", "in_months", "interval_text", "is_months", "months_text", "storage_types_of"]


def is_months(type_: st.DataType) -> bool:
    """Return whether a type is an interval of years and months."""
    return isinstance(type_, st.YearMonthIntervalType)


def months_text(sql: str) -> str:
    """Return the months of an interval, as SQL."""
    return f"CAST(CAST({sql} AS INTERVAL MONTH) AS INT)"


def interval_text(sql: str, type_: st.DataType, storage: st.DataType) -> str:
    """Return the interval of a number of months, as SQL. One that does not fit is an error of Spark.

    Args:
        sql: The number.
        type_: The type of the interval.
        storage: The type of the number. Fractions are rounded.
    """
    number = f"CAST(round({sql}) AS BIGINT)" if isinstance(storage, st.DoubleType) else sql
    return f"CAST(CAST({number} AS INTERVAL MONTH) AS {type_.simpleString().upper()})"


def storage_types_of(spark_types: Sequence[st.DataType], types: Sequence[pa.DataType]) -> list[st.DataType]:
    """Return the types in which columns come from Python.

    Args:
        spark_types: Spark's types.
        types: The types of their values in Python.
    """
    return [
        spark_type(sent_type) if is_months(type_) else type_
        for type_, sent_type in zip(spark_types, types, strict=True)
    ]


def in_months(schema: st.StructType) -> st.StructType:
    """Return the schema of `as_months`."""
    types = [st.IntegerType() if is_months(each.dataType) else each.dataType for each in schema]
    return st.StructType([st.StructField(each.name, type_) for each, type_ in zip(schema, types, strict=True)])


def as_months(rows: DataFrame) -> DataFrame:
    """Return rows with the months of each interval in its place."""
    texts = {each.name: months_text(quote_name(each.name)) for each in rows.schema if is_months(each.dataType)}
    return rows.withColumns({name: sf.expr(text) for name, text in texts.items()}) if texts else rows


def as_intervals(df: DataFrame, spark_types: Mapping[str, st.DataType]) -> DataFrame:
    """Return a result with intervals in place of months.

    Args:
        df: The result.
        spark_types: Spark's types of its columns; intervals among them are converted.
    """
    types = {name: type_ for name, type_ in spark_types.items() if is_months(type_)}
    if not types:
        return df
    texts = {name: interval_text(quote_name(name), type_, df.schema[name].dataType) for name, type_ in types.items()}
    return keep_operator(df.withColumns({name: sf.expr(text) for name, text in texts.items()}), df)
