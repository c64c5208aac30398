"""The kinds of values in compiled code: int (64 bits), float, bool, decimals, dates and times, str and bytes, or None.

Kinds of dates and times are `date`, `timestamp`, `instant` (a timestamp in UTC), `time` and `duration`. In memory they
are integers, as str and bytes are; a decimal is two integers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.extending import intrinsic, overload, register_model

from foldflight.ext.compiler.decimals import Scaled
from foldflight.ext.compiler.generated import INNER
from foldflight.ext.compiler.iterators import IteratorType
from foldflight.fold.machine_values import DECIMALS, MOMENTS, TEXTS, scale_of
from foldflight.fold.mode import Unsupported


class EncodedType(types.IterableType):
    """The numba type of a kind that is an integer in memory: dates, times, str (`text`) and bytes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"EncodedType({kind})")

    @property
    def iterator_type(self) -> types.Type:
        if self.kind not in TEXTS:
            raise Unsupported(f"it iterates over a {self.kind}")
        return IteratorType(self, self if self.kind == "text" else types.int64)


@register_model(EncodedType)
class _MomentModel(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: EncodedType) -> None:
        super().__init__(manager, type_, llvm.IntType(64))


ENCODED: Final = (*MOMENTS, *TEXTS)
"""The kinds whose values are integers in memory."""
KINDS: Final[dict[str, types.Type]] = {
    "int": types.int64,
    "float": types.float64,
    "bool": types.boolean,
    **{kind: EncodedType(kind) for kind in ENCODED},
    **{kind: Scaled(scale_of(kind)) for kind in DECIMALS},
}


def number_type(kind: str) -> types.Type:
    """Return the type of a kind's values in a NumPy array."""
    return types.int64 if kind in ENCODED or kind in DECIMALS else KINDS[kind]


@intrinsic
def as_number(typing: Any, value: Any) -> Any:
    """Return the integer form of a date, time, str or bytes, and any other value unchanged."""
    result = types.int64 if isinstance(value, EncodedType) else value
    return signature(result, value), lambda context, builder, sig, arguments: arguments[0]


def _convert(kind: str) -> Callable[..., Any]:
    @intrinsic
    def convert(typing: Any, value: Any) -> Any:
        if value == types.none:
            return None

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            # The cast of an Optional raises if the value is None.
            return context.cast(builder, arguments[0], sig.args[0], sig.return_type)

        return signature(KINDS[kind], types.unliteral(value)), generate

    return convert


@intrinsic
def require_value(typing: Any, value: Any) -> Any:
    """Return a value without Optional in its type. Raises for None."""
    result = value.type if isinstance(value, types.Optional) else value

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], sig.args[0], sig.return_type)

    return signature(result, value), generate


# By kind: a function that converts a value of the kind, or an Optional, to the kind. It raises for None.
CONVERTERS: Final[dict[str, Callable[..., Any]]] = {kind: _convert(kind) for kind in KINDS}


def _optional(kind: str) -> Callable[..., Any]:
    @intrinsic
    def optional(typing: Any, value: Any) -> Any:
        if value != types.none and inner_kind(value) != kind:
            raise Unsupported(f"it uses a {inner_kind(value)} as a member that is a {kind}")

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            return context.cast(builder, arguments[0], sig.args[0], sig.return_type)

        return signature(types.Optional(KINDS[kind]), types.unliteral(value)), generate

    return optional


# By kind: a function that makes an Optional of a value of the kind, of an Optional or of None.
OPTIONALS: Final[dict[str, Callable[..., Any]]] = {kind: _optional(kind) for kind in KINDS}


def _as_kind(kind: str) -> Callable[..., Any]:
    result = KINDS[kind] if kind in ENCODED else None

    @intrinsic
    def as_kind(typing: Any, value: Any) -> Any:
        return signature(result or value, value), lambda context, builder, sig, arguments: arguments[0]

    return as_kind


# Created at import, because numba does not find an intrinsic that is created while it infers types.
_AS_KIND: Final = {kind: _as_kind(kind) for kind in KINDS if kind not in DECIMALS}


def decode_kind(kind: str) -> Callable[..., Any]:
    """Return a function that converts an integer to a value of a kind; the identity for kinds that are not encoded."""
    return _AS_KIND[kind]


def kind_of(type_: types.Type) -> str | None:
    """Return the kind of a numba type, such as "int", "none", "date" or "int?" (Optional); None if it has none."""
    if isinstance(type_, types.Omitted):
        return type(type_.value).__name__ if isinstance(type_.value, (bool, int, float)) else None
    type_ = types.unliteral(type_)
    if isinstance(type_, types.Optional):
        inner = kind_of(type_.type)
        return f"{inner}?" if inner in KINDS else None
    if isinstance(type_, types.NoneType):
        return "none"
    if isinstance(type_, (EncodedType, Scaled)):
        return type_.kind
    if isinstance(type_, types.Boolean):
        return "bool"
    if isinstance(type_, types.Integer):
        return "int" if type_.signed else None
    return "float" if type_ == types.float64 else None


def inner_kind(type_: types.Type) -> str:
    """Return the kind of a numba type without Optional; "None" if it has no kind."""
    return str(kind_of(type_)).removesuffix("?")


def implementation(choose: Callable[..., Any] | None = None, *, literal: bool = False) -> Callable[..., Any]:
    """Return a function that compiled code can call, with an implementation for each combination of types.

    Args:
        choose: Returns the implementation for the types of its arguments, or raises Unsupported. Without it, a
            decorator is returned.
        literal: Whether constants have types with their values.
    """
    if choose is None:
        return functools.partial(implementation, literal=literal)

    def stub(*_: Any) -> Any:
        raise NotImplementedError(choose.__name__)

    overload(stub, INNER, strict=False, prefer_literal=literal)(choose)
    stub.__signature__ = inspect.signature(choose)  # type: ignore[attr-defined]
    return stub


def takes(function: Any, count: int) -> bool:
    """Return whether an implementation accepts a number of arguments. True for other functions, which numba checks."""
    if not hasattr(function, "__signature__"):
        return True
    try:
        function.__signature__.bind(*range(count))
    except TypeError:
        return False
    return True


def exactly(kind: str, reason: str) -> Callable[..., Any]:
    """Return the implementation that returns a value of a kind.

    Args:
        kind: The kind.
        reason: The reason why another kind is unsupported, with `{given}` and `{kind}` for the two.
    """
    converter = CONVERTERS[kind]

    @implementation
    def choose(value: Any) -> Any:
        actual = inner_kind(value)
        if actual != kind:
            raise Unsupported(reason.format(actual=actual, kind=kind))
        return lambda value: converter(value)

    return choose
