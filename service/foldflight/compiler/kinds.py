"""What compiled code calculates with: whole numbers of 64 bits, floats, truth values, moments, each perhaps None.

A moment (a date, timestamp, time or duration) is a whole number in memory, and nothing but compared and kept.
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
    """The type of one kind of moments."""

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
    """Return what values of a kind are in a NumPy array."""
    return types.int64 if kind in MOMENTS else KINDS[kind]


@intrinsic
def as_number(typing: Any, value: Any) -> Any:
    """Return a moment as the whole number that it is in memory; anything else as it is."""
    result = types.int64 if isinstance(value, Moment) else value
    return signature(result, value), lambda context, builder, made, arguments: arguments[0]


class Refused(Exception):  # noqa: N818 - it is an answer (this code is interpreted, and why), not a failure
    """Code that is not compiled.

    Args:
        reason: Why; numba puts words of its own into the text of an exception, but not into this.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def kind_of(type_: types.Type) -> str | None:
    """Return the kind of a type of numba: int, float, bool, none, or "int?" and so on; None for any other type."""
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
