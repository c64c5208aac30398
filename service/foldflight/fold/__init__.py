"""Apply rows to accumulators: pure, by slot, for several calls at once."""

from foldflight.fold.calls import BoundCall, bind_calls, demand_instance, result_schema
from foldflight.fold.failures import ERROR, ERROR_TYPE
from foldflight.fold.fold import Fold
from foldflight.fold.signing import StateSigner

__all__ = [
    "ERROR",
    "ERROR_TYPE",
    "BoundCall",
    "Fold",
    "StateSigner",
    "bind_calls",
    "demand_instance",
    "result_schema",
]
