"""What differs between versions of PySpark, and the undocumented names of PySpark that foldflight uses.

The code asks PySpark what it can do rather than which version it is, because distributions of Spark backport changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.logger import PySparkLogger
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

__all__ = ["arrow_type", "quiet", "spark_type"]

# The logger to which PySpark writes each error of a query, with the stack trace of the JVM.
_QUERY_CONTEXT_LOGGER: Final = "SQLQueryContextLogger"

# PySpark 4.1 converts TIMESTAMP_LTZ to UTC by itself, and later versions have to be given the zone.
_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def arrow_type(type_: st.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark passes values to Python. Timestamps with a time zone are in UTC.

    Raises:
        PySparkException: If Spark does not pass values of this type to Python.
    """
    return to_arrow_type(type_, **_IN_UTC)


def spark_type(type_: pa.DataType) -> st.DataType:
    """Return Spark's type for values that Python returns. Timestamps without a time zone become TIMESTAMP_NTZ.

    Raises:
        PySparkException: If Spark does not read values of this type from Python.
    """
    return from_arrow_type(type_, prefer_timestamp_ntz=True)  # the default differs between versions


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PySpark from logging refusals with their stack traces: here they are questions, or become errors of ours."""
    logger = PySparkLogger.getLogger(_QUERY_CONTEXT_LOGGER)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
