"""What a fold asks of an accelerator, which another package implements and whoever opens a fold hands in."""

from __future__ import annotations

from typing import Protocol

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.accumulators import Accumulators
from foldflight.fold.aggregate.interpreted import Interpreted
from foldflight.functions.spec import BoundFunction

__all__ = ["Accelerator", "accelerated", "demand_accelerated"]


class Accelerator(Protocol):
    """Folds calls faster than the interpreter, with the same states, outputs and errors."""

    def accumulators(self, inner: Interpreted) -> Accumulators:
        """Return accumulators in place of those of an interpreter, which holds none yet and takes over where need be.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """

    def demand(self, bound: BoundFunction) -> None:
        """Make sure that a function declared `compile=True` is compiled; do nothing for all others.

        A function whose `open` may change its instance is compiled when an exchange opens, and not checked here.

        Raises:
            RejectedError: SIGNATURE, with the reason why it cannot be compiled.
        """


def accelerated(inner: Interpreted, accelerator: Accelerator | None) -> Accumulators:
    """Return the accumulators of a call; without an accelerator the interpreter's own.

    Raises:
        RejectedError: SIGNATURE, for a function that is declared `compile=True` and is not compiled.
    """
    if accelerator is not None:
        return accelerator.accumulators(inner)
    demand_accelerated(inner.bound, None)
    return inner


def demand_accelerated(bound: BoundFunction, accelerator: Accelerator | None) -> None:
    """Do what `Accelerator.demand` does; without an accelerator, refuse every function declared `compile=True`.

    Raises:
        RejectedError: SIGNATURE.
    """
    if accelerator is not None:
        accelerator.demand(bound)
    elif bound.function.compile is True:
        raise RejectedError(
            "SIGNATURE",
            f"{bound.function.name} is declared compile=True and there is no compiler here: hand an accelerator to the "
            'fold, or leave it to foldflight (compile="auto")',
            function=bound.function.name,
        )
