"""The interface of accelerators. Another package implements it, and the opener of a fold passes an instance."""

from __future__ import annotations

from typing import Protocol

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.accumulators import Accumulators
from foldflight.fold.aggregate.interpreted import Interpreted
from foldflight.fold.scalar.evaluation import Scalar
from foldflight.fold.scalar.scalar import InterpretedScalar
from foldflight.functions.author.scalar import BoundScalar
from foldflight.functions.author.spec import BoundFunction

__all__ = ["Accelerator", "accelerated", "demand_accelerated", "mapped"]


class Accelerator(Protocol):
    """Folds calls faster than the interpreter, with the same states, outputs and errors."""

    def accumulators(self, inner: Interpreted) -> Accumulators:
        """Return accumulators that replace those of an empty interpreter, which remains the fallback.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """

    def mapped(self, inner: InterpretedScalar) -> Scalar:
        """Return the evaluation of a scalar function that replaces the interpreter, which remains the fallback.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """

    def demand(self, bound: BoundFunction | BoundScalar) -> None:
        """Compile a function that is declared `compile=True`; do nothing for all others.

        A function whose `open` may change its instance is not checked here. It is compiled when an exchange opens.

        Raises:
            RejectedError: SIGNATURE, with the reason why it cannot be compiled.
        """


def mapped(inner: InterpretedScalar, accelerator: Accelerator | None) -> Scalar:
    """Return the evaluation of a scalar function. Without an accelerator, this is the interpreter's.

    Raises:
        RejectedError: SIGNATURE, for a function that is declared `compile=True` and is not compiled.
    """
    if accelerator is not None:
        return accelerator.mapped(inner)
    demand_accelerated(inner.bound, None)
    return inner


def accelerated(inner: Interpreted, accelerator: Accelerator | None) -> Accumulators:
    """Return the accumulators of a call. Without an accelerator, these are the interpreter's.

    Raises:
        RejectedError: SIGNATURE, for a function that is declared `compile=True` and is not compiled.
    """
    if accelerator is not None:
        return accelerator.accumulators(inner)
    demand_accelerated(inner.bound, None)
    return inner


def demand_accelerated(bound: BoundFunction | BoundScalar, accelerator: Accelerator | None) -> None:
    """Call `Accelerator.demand`. Without an accelerator, refuse every function declared `compile=True`.

    Raises:
        RejectedError: SIGNATURE.
    """
    if accelerator is not None:
        accelerator.demand(bound)
    elif bound.function.compile is True:
        raise RejectedError(
            "SIGNATURE",
            f"{bound.function.name} is declared compile=True and there is no compiler here: pass an accelerator to the "
            'fold, or declare compile="auto"',
            function=bound.function.name,
        )
