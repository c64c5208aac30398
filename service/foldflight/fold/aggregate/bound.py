"""Bound requests of aggregate calls."""

from __future__ import annotations

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.fold.accelerator import Accelerator, demand_accelerated
from foldflight.fold.aggregate.calls import bind_calls, demand_instance, result_schema
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.evaluator import Request, Resources
from foldflight.functions.registry import Registry

__all__ = ["BoundAggregates"]


class BoundAggregates:
    """The aggregate calls of an exchange, bound to functions and columns.

    Args:
        request: The calls.
        registry: The functions.
        where: The location of the functions, for messages.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SCHEMA_MISMATCH for columns that do not fit; SIGNATURE for direct arguments,
            and for outputs after each row if errors are isolated.
    """

    def __init__(self, request: Request, registry: Registry, where: str) -> None:
        if request.isolate_errors and request.row_outputs:
            raise RejectedError(
                "SIGNATURE",
                "Open has both row_outputs and isolate_errors, but outputs after each row cannot show errors; use "
                "only one",
            )
        emitting = [field.type for field in request.columns if field.name == "emit"]
        if request.emits and not (request.row_outputs and emitting == [pa.bool_()]):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                "Open has emits, so it needs row_outputs and exactly one column `emit` of type bool",
            )
        self._request = request
        self.calls = bind_calls(registry, request.calls, request.columns, where=where, keeps_views=request.keeps_views)
        self.schema = result_schema(self.calls, isolates=request.isolate_errors)

    @staticmethod
    def takes(request: Request) -> bool:
        """Return whether a request is for aggregates: it has calls."""
        return bool(request.calls)

    def check(self, accelerator: Accelerator | None) -> None:
        """Instantiate each class with its direct arguments, and compile functions declared `compile=True`."""
        for call in self.calls:
            demand_instance(call.bound)
            if not call.is_counted:
                demand_accelerated(call.bound, accelerator)

    def open(self, resources: Resources) -> Fold:
        """Return a fold without rows or states. Raises the errors of `Fold`."""
        return Fold(self.calls, self._request, resources, schema=self.schema)
