"""Evaluation of several calls over rows, by slot. It is pure: it uses no IO and no clock."""

from foldflight.fold.accelerator import INTERPRETER, Accelerator
from foldflight.fold.aggregate.calls import BoundCall, bind_calls, result_schema
from foldflight.fold.aggregate.distinct import key_type
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.evaluators import BoundRequest, bind
from foldflight.fold.failures import ERROR, ERROR_TYPE
from foldflight.fold.mode import Folding, Mode
from foldflight.fold.request import CachedView, Options, Request, Resources, Unanswered
from foldflight.fold.scalar.bound import ROW, BoundStep
from foldflight.fold.signing import StateSigner

__all__ = [
    "ERROR",
    "ERROR_TYPE",
    "INTERPRETER",
    "ROW",
    "Accelerator",
    "BoundCall",
    "BoundRequest",
    "BoundStep",
    "CachedView",
    "Fold",
    "Folding",
    "Mode",
    "Options",
    "Request",
    "Resources",
    "StateSigner",
    "Unanswered",
    "bind",
    "bind_calls",
    "key_type",
    "result_schema",
]
