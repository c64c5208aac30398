"""The choice of the evaluator of an exchange: aggregates or expressions."""

from __future__ import annotations

from typing import TypeAlias

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.fold import BoundAggregates
from foldflight.fold.request import Request
from foldflight.fold.scalar.expressions import BoundExpressions
from foldflight.functions.registry import Registry

BoundRequest: TypeAlias = BoundAggregates | BoundExpressions


def bind(request: Request, registry: Registry, *, where: str = "here") -> BoundRequest:
    """Bind a request to functions and columns.

    Args:
        request: The calls or steps, with their options.
        registry: The functions.
        where: The location of the functions, for messages, because the servers of a fleet may differ.

    Raises:
        RejectedError: SIGNATURE, if it has neither calls nor steps; and the errors of the binding.
    """
    if request.steps:
        return BoundExpressions(request, registry, where)
    if request.calls:
        return BoundAggregates(request, registry, where)
    raise RejectedError(
        "SIGNATURE", "the exchange has no calls and no steps, so there is nothing to evaluate; name a function"
    )
