"""Aggregate, scalar and table functions in Python for Spark and other engines; the engine stores the state.

The three ways in:

    from foldflight import connect, udaf, udf, udtf          # write functions, reach them
    from foldflight.spark import group_by, with_columns      # use them on Spark DataFrames
    from foldflight.testing import check_laws                # check them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foldflight.client import Aggregate, FunctionHandle, Functions, Transport, Use, connect
from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions import (
    Applied,
    ExactSum,
    ExactSums,
    FunctionContext,
    Lists,
    ListView,
    MapView,
    Registry,
    RowKind,
    Segment,
    Vector,
    udaf,
    udf,
    udtf,
)
from foldflight.recording import Recordings

if TYPE_CHECKING:
    from foldflight.server.run.server import Server

__version__ = "1.0.0"


def _make_spark_udf(info: FunctionInfo, transport: Transport, literals: Mapping[str, Any]) -> Any:
    from foldflight.spark.scalar import spark_udf  # PySpark is optional, and takes long to import

    return spark_udf(info, transport, literals)


def __getattr__(name: str) -> Any:
    """Import the server when it is used, because few programs start one, and it needs gRPC."""
    if name != "Server":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foldflight.server.run.server import Server

    return Server


FunctionHandle.make_spark_udf = staticmethod(_make_spark_udf)

__all__ = [
    "Aggregate",
    "Applied",
    "CorruptError",
    "ExactSum",
    "ExactSums",
    "FoldflightError",
    "FunctionContext",
    "FunctionError",
    "FunctionHandle",
    "Functions",
    "ListView",
    "Lists",
    "MapView",
    "Recordings",
    "Registry",
    "RejectedError",
    "RetryableError",
    "RowKind",
    "Segment",
    "Server",
    "Use",
    "Vector",
    "__version__",
    "connect",
    "udaf",
    "udf",
    "udtf",
]
