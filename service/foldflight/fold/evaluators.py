"""The evaluators that there are: a new one is added here."""

from __future__ import annotations

from typing import Final, Protocol

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.bound import BoundAggregates
from foldflight.fold.evaluator import BoundRequest, Request
from foldflight.functions.registry import Registry

__all__ = ["EVALUATORS", "bind"]


class Binding(Protocol):
    """One kind of evaluator: which requests are for it, and how it binds them."""

    def takes(self, request: Request) -> bool:
        """Tell whether a request is for this kind."""

    def __call__(self, request: Request, registry: Registry) -> BoundRequest:
        """Bind a request to functions and columns.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, SCHEMA_MISMATCH or SIGNATURE.
        """


EVALUATORS: Final[tuple[Binding, ...]] = (BoundAggregates,)


def bind(request: Request, registry: Registry) -> BoundRequest:
    """Bind a request by the first kind of evaluator that takes it.

    Raises:
        RejectedError: SIGNATURE, when none takes it; and what the binding raises.
    """
    for binding in EVALUATORS:
        if binding.takes(request):
            return binding(request, registry)
    raise RejectedError("SIGNATURE", "the exchange has no calls, so there is nothing to evaluate; name a function")
