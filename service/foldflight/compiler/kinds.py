"""The kinds of values of compiled code: integers of 64 bits, floats, booleans and moments, each of which may be None.

A moment is a date, timestamp, time or duration. It is an integer in memory, and can only be compared and stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.extending import intrinsic, overload, register_model

from foldflight.fold.moments import MOMENTS

__all__ = ["KINDS", "Moment", "Refused", "as_number", "kind_of", "number_type", "stand_in"]


class Moment(types.Type):
    """The numba type of one kind of moments."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"Moment({kind})")


@register_model(Moment)
class _MomentModel(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Moment) -> None:
        super().__init__(manager, type_, llvm.IntType(64))


KINDS: Final[dict[str, types.Type]] = {
    "int": types.int64,
    "float": types.float64,
    "bool": types.boolean,
    **{kind: Moment(kind) for kind in MOMENTS},
}


def number_type(kind: str) -> types.Type:
    """Return the type of a kind's values in a NumPy array."""
    return types.int64 if kind in MOMENTS else KINDS[kind]


@intrinsic
def as_number(typing: Any, value: Any) -> Any:
    """Return a moment as its integer, and any other value unchanged."""
    result = types.int64 if isinstance(value, Moment) else value
    return signature(result, value), lambda context, builder, made, arguments: arguments[0]


class Refused(Exception):  # noqa: N818 - the reason why code is interpreted is an answer, not a failure
    """Raised for code that cannot be compiled.

    Args:
        reason: The reason, as a clause about the function. It is an attribute, because numba adds text of its own to
            the messages of exceptions.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def kind_of(type_: types.Type) -> str | None:
    """Return the kind of a numba type: int, float, bool, none, a moment, or "int?" for Optional; else None."""
    if isinstance(type_, types.Omitted):
        return type(type_.value).__name__ if isinstance(type_.value, (bool, int, float)) else None
    type_ = types.unliteral(type_)
    if isinstance(type_, types.Optional):
        inner = kind_of(type_.type)
        return f"{inner}?" if inner in KINDS else None
    if isinstance(type_, types.NoneType):
        return "none"
    if isinstance(type_, Moment):
        return type_.kind
    if isinstance(type_, types.Boolean):
        return "bool"
    if isinstance(type_, types.Integer):
        return "int" if type_.signed else None
    return "float" if type_ == types.float64 else None


def stand_in(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for compiled code to call.

    Args:
        choose: Returns the implementation for the types of its arguments, or raises Refused.
    """

    def called(*_: Any) -> Any:
        raise NotImplementedError(choose.__name__)

    overload(called, strict=False)(choose)
    return called
