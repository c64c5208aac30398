"""What compiled code calculates with: whole numbers of 64 bits, floats, truth values, each of them perhaps None."""

from __future__ import annotations

from typing import Final, Literal

from numba.core import types

__all__ = ["KINDS", "Kind", "Refused", "kind_of"]

Kind = Literal["int", "float", "bool"]
KINDS: Final[dict[str, types.Type]] = {"int": types.int64, "float": types.float64, "bool": types.boolean}


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
    if isinstance(type_, types.Boolean):
        return "bool"
    if isinstance(type_, types.Integer):
        return "int" if type_.signed else None
    return "float" if type_ == types.float64 else None
