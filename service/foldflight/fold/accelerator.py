"""Accelerators: the opener of a fold passes one, which may come from another package."""

from __future__ import annotations

from typing import Final

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreted import Interpreted
from foldflight.fold.scalar.evaluation import Scalar
from foldflight.fold.scalar.scalar import InterpretedScalar
from foldflight.functions.author.scalar import BoundScalar
from foldflight.functions.author.spec import BoundFunction


class Accelerator:
    """Evaluates calls faster than the interpreter, with the same states, outputs and errors.

    This one leaves all of them to the interpreter, and refuses functions that are declared `compile=True`.
    """

    def accumulators(self, inner: Interpreted) -> GroupsAccumulator:
        """Return accumulators that replace those of an empty interpreter, which remains the fallback.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """
        self.demand(inner.bound)
        return inner

    def mapped(self, inner: InterpretedScalar) -> Scalar:
        """Return the evaluation of a scalar function that replaces the interpreter, which remains the fallback.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """
        self.demand(inner.bound)
        return inner

    def demand(self, bound: BoundFunction | BoundScalar) -> None:
        """Compile a function that is declared `compile=True`; do nothing for all others.

        A function whose `open` may change its instance is not checked here. It is compiled when an exchange opens.

        Raises:
            RejectedError: SIGNATURE, with the reason why it cannot be compiled.
        """
        if bound.function.compile is True:
            raise RejectedError(
                "SIGNATURE",
                f"{bound.function.name} is declared compile=True and there is no compiler here: pass an accelerator "
                'to the fold, or declare compile="auto"',
                function=bound.function.name,
            )


INTERPRETER: Final = Accelerator()
"""The accelerator of a fold that is given none."""
