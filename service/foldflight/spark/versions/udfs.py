"""Functions over columns: the Arrow UDFs of Spark 4.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.spark.versions.facts import ARROW_UDFS, require

__all__ = ["arrow_udf"]


def arrow_udf(function: Callable[..., Any], type_: st.DataType) -> Any:
    """Return a function as an Arrow UDF, whose form follows from its annotations.

    Args:
        function: Takes and returns arrays, iterators of arrays, or arrays and a value.
        type_: The type of its results.

    Raises:
        RejectedError: SETTINGS on a Spark before 4.1.
    """
    require(ARROW_UDFS, "scalar functions as UDFs")
    make: Any = getattr(sf, "arrow_udf")  # noqa: B009 - absent in older versions, whose types mypy may see
    return make(function, type_)
