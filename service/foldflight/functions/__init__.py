"""The API for authors: `udaf`, types, the context, the built-in functions and the registry."""

from foldflight.functions.author.context import FunctionContext, LogRecord, MetricSink, NullMetrics
from foldflight.functions.author.segments import Applied, Segment
from foldflight.functions.author.spec import (
    AnyFunction,
    BoundFunction,
    BoundScalar,
    Capabilities,
    Function,
    FunctionKind,
    Methods,
    Parameter,
    ScalarFunction,
    ScalarMethods,
)
from foldflight.functions.author.udaf import aggregate_of, function_of, udaf
from foldflight.functions.author.udf import udf, udtf
from foldflight.functions.query.call import Call, Order, RowKind, Step, StepArgument
from foldflight.functions.registry import Registry, import_module, unknown_function
from foldflight.functions.types.exact import ExactSum, ExactSums
from foldflight.functions.types.lists import Lists
from foldflight.functions.types.sql import can_widen, parse_type, sql_name
from foldflight.functions.types.vectors import Vector
from foldflight.functions.types.views import ListView, MapView, ViewSpec

__all__ = [
    "AnyFunction",
    "Applied",
    "BoundFunction",
    "BoundScalar",
    "Call",
    "Capabilities",
    "ExactSum",
    "ExactSums",
    "Function",
    "FunctionContext",
    "FunctionKind",
    "ListView",
    "Lists",
    "LogRecord",
    "MapView",
    "Methods",
    "MetricSink",
    "NullMetrics",
    "Order",
    "Parameter",
    "Registry",
    "RowKind",
    "ScalarFunction",
    "ScalarMethods",
    "Segment",
    "Step",
    "StepArgument",
    "Vector",
    "ViewSpec",
    "aggregate_of",
    "can_widen",
    "function_of",
    "import_module",
    "parse_type",
    "sql_name",
    "udaf",
    "udf",
    "udtf",
    "unknown_function",
]
