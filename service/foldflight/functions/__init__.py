"""The API for authors: `udaf`, types, the context, the built-in functions and the registry."""

from foldflight.functions.bundled import Applied, Segment
from foldflight.functions.call import Call, Order
from foldflight.functions.context import FunctionContext, LogRecord, MetricSink, NullMetrics
from foldflight.functions.decorators import aggregate_of, function_of, udaf
from foldflight.functions.exact import ExactSum, ExactSums
from foldflight.functions.lists import Lists
from foldflight.functions.mapping import AnyFunction, BoundMap, MapFunction, MapVerbs
from foldflight.functions.registry import Registry, import_module, unknown_function
from foldflight.functions.rowkind import RowKind
from foldflight.functions.spec import BoundFunction, Capabilities, Function, FunctionKind, Parameter, Verbs
from foldflight.functions.step import Step, StepArgument
from foldflight.functions.types import can_widen, parse_type, sql_name
from foldflight.functions.udf import udf, udtf
from foldflight.functions.views import ListView, MapView, ViewSpec

__all__ = [
    "AnyFunction",
    "Applied",
    "BoundFunction",
    "BoundMap",
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
    "MapFunction",
    "MapVerbs",
    "MapView",
    "MetricSink",
    "NullMetrics",
    "Order",
    "Parameter",
    "Registry",
    "RowKind",
    "Segment",
    "Step",
    "StepArgument",
    "Verbs",
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
