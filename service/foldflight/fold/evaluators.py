"""The registry of evaluators. Add a new kind here."""

from __future__ import annotations

from typing import Final, Protocol

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.fold import BoundAggregates
from foldflight.fold.evaluator import BoundRequest, Request
from foldflight.fold.scalar.bound import BoundExpressions
from foldflight.functions.registry import Registry

__all__ = ["EVALUATORS", "bind"]


class Binding(Protocol):
    """One kind of evaluator: accepts requests and binds them."""

    def takes(self, request: Request) -> bool:
        """Return whether a request is for this kind."""

    def __call__(self, request: Request, registry: Registry, where: str) -> BoundRequest:
        """Bind a request to functions and columns.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, SCHEMA_MISMATCH or SIGNATURE.
        """


EVALUATORS: Final[tuple[Binding, ...]] = (BoundExpressions, BoundAggregates)


def bind(request: Request, registry: Registry, *, where: str = "here") -> BoundRequest:
    """Bind a request with the first kind of evaluator that accepts it.

    Args:
        request: The calls or steps, with their options.
        registry: The functions.
        where: The location of the functions, for messages, because the servers of a fleet may differ.

    Raises:
        RejectedError: SIGNATURE, if no kind accepts it; and the errors of the binding.
    """
    for binding in EVALUATORS:
        if binding.takes(request):
            return binding(request, registry, where)
    raise RejectedError(
        "SIGNATURE", "the exchange has no calls and no steps, so there is nothing to evaluate; name a function"
    )
