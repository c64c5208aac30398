"""The API for authors: `udaf`, types, the context, the built-in functions and the registry."""

from foldflight.functions.call import Call, Order
from foldflight.functions.context import FunctionContext, LogRecord, MetricSink, NullMetrics
from foldflight.functions.decorators import function_of, udaf
from foldflight.functions.exact import ExactSum, ExactSums
from foldflight.functions.lists import Lists
from foldflight.functions.registry import Registry, unknown_function
from foldflight.functions.rowkind import RowKind
from foldflight.functions.spec import BoundFunction, Capabilities, Function, Parameter, Verbs
from foldflight.functions.types import can_widen, parse_type, sql_name

__all__ = [
    "BoundFunction",
    "Call",
    "Capabilities",
    "ExactSum",
    "ExactSums",
    "Function",
    "FunctionContext",
    "Lists",
    "LogRecord",
    "MetricSink",
    "NullMetrics",
    "Order",
    "Parameter",
    "Registry",
    "RowKind",
    "Verbs",
    "can_widen",
    "function_of",
    "parse_type",
    "sql_name",
    "udaf",
    "unknown_function",
]
