"""Python aggregate functions for engines that own the state.

The three ways in:

    from foldflight import connect, udaf          # write a class, reach functions
    from foldflight.spark import group_by         # use them on Spark DataFrames
    from foldflight.testing import check_laws     # check a class
"""

from foldflight.client import Aggregate, FunctionHandle, Functions, connect
from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.functions import ExactSum, ExactSums, FunctionContext, Lists, Registry, RowKind, udaf

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "CorruptError",
    "ExactSum",
    "ExactSums",
    "FoldflightError",
    "FunctionContext",
    "FunctionError",
    "FunctionHandle",
    "Functions",
    "Lists",
    "Registry",
    "RejectedError",
    "RetryableError",
    "RowKind",
    "__version__",
    "connect",
    "udaf",
]
