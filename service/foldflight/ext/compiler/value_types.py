"""The kinds of values in compiled code: int (64 bits), float, bool, decimals, dates and times, str and bytes, or None.

Kinds of dates and times are `date`, `timestamp`, `instant` (a timestamp in UTC), `time` and `duration`. In memory they
are integers, as str and bytes are; a decimal is two integers. Structs are arguments only, which are dicts in Python:
code reads their fields by constant names. Iterators over lists, containers and strings have a position of 64 bits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.typing import signature
from numba.extending import intrinsic, overload, register_model

from foldflight.ext.compiler.decimals import ScaledDecimal
from foldflight.ext.compiler.generated import INNER, register_jitable
from foldflight.fold.machine_values import DECIMALS, MOMENTS, TEXTS, scale_of
from foldflight.fold.mode import Unsupported

_STATE: Final = types.UniTuple(types.int64, 3)
_STEPS: Final[dict[type, Callable[[Any], tuple[Any, Any]]]] = {}


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
    **{kind: ScaledDecimal(scale_of(kind)) for kind in DECIMALS},
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
    if isinstance(type_, (EncodedType, ScaledDecimal)):
        return type_.kind
    if isinstance(type_, types.Boolean):
        return "bool"
    if isinstance(type_, types.Integer):
        return "int" if type_.signed else None
    return "float" if type_ == types.float64 else None


def inner_kind(type_: types.Type) -> str:
    """Return the kind of a numba type without Optional; "None" if it has no kind."""
    return str(kind_of(type_)).removesuffix("?")


def class_of(type_: Any) -> type | None:
    """Return the class of a numba type that is a NamedTuple; None for others."""
    return getattr(type_, "instance_class", None)


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


class IteratorType(types.SimpleIteratorType):
    """The numba type of an iterator over values of the type `over`."""

    def __init__(self, over: types.Type, item: types.Type) -> None:
        self.over = over
        super().__init__(f"IteratorType({over})", item)


@register_model(IteratorType)
class _WalkModel(models.StructModel):
    def __init__(self, manager: Any, type_: IteratorType) -> None:
        members = [("over", type_.over), ("state", _STATE), ("position", types.EphemeralPointer(types.int64))]
        super().__init__(manager, type_, members)


@register_jitable
def _nothing(over: Any) -> tuple[int, int, int]:
    return 0, 0, 0


def lower_iterators(kind: type, steps: Callable[[Any], tuple[Any, Any]], state: Any = _nothing) -> None:
    """Define loops over the types of a class.

    Args:
        kind: The class.
        steps: Returns, for a type, `next(over, state, last)`, which returns the position after the last one (at first
            -1), or -1 at the end, and `item(over, position)`.
        state: Returns three words at the start of a loop, which `next` receives as `state`, for example the length.
    """
    _STEPS[kind] = steps

    @lower_builtin("getiter", kind)
    def getiter(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        walk = context.make_helper(builder, sig.return_type)
        walk.over = arguments[0]
        walk.state = context.compile_internal(builder, state, signature(_STATE, sig.args[0]), arguments)
        walk.position = cgutils.alloca_once_value(builder, llvm.Constant(llvm.IntType(64), -1))
        return walk._getvalue()


@lower_builtin("iternext", IteratorType)
@iternext_impl(RefType.UNTRACKED)
def _iternext(context: Any, builder: Any, sig: Any, arguments: Any, result: Any) -> None:
    (type_,) = sig.args
    over, word = type_.over, types.int64
    following, item = _STEPS[type(over)](over)
    walk = context.make_helper(builder, type_, value=arguments[0])
    actual = [walk.over, walk.state, builder.load(walk.position)]
    position = context.compile_internal(builder, following, signature(word, over, _STATE, word), actual)
    is_more = builder.icmp_signed(">=", position, llvm.Constant(llvm.IntType(64), 0))
    result.set_valid(is_more)
    with builder.if_then(is_more):
        builder.store(position, walk.position)
        item_signature = signature(type_.yield_type, over, word)
        result.yield_(context.compile_internal(builder, item, item_signature, [walk.over, position]))


class Struct(types.Type):
    """The numba type of a struct.

    Args:
        fields: The types of its fields by name.
    """

    def __init__(self, fields: dict[str, types.Type]) -> None:
        self.fields = fields
        super().__init__(name=f"Struct({fields})")


@register_model(Struct)
class _StructModel(models.StructModel):
    def __init__(self, manager: Any, type_: Struct) -> None:
        super().__init__(manager, type_, [(f"f{index}", each) for index, each in enumerate(type_.fields.values())])


@intrinsic(prefer_literal=True)
def field_of(typing: Any, struct: Any, name: Any) -> Any:
    """Return the field of a constant name."""
    if not isinstance(name, types.StringLiteral):
        return None
    index = list(struct.fields).index(name.literal_value)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return getattr(context.make_helper(builder, struct, value=arguments[0]), f"f{index}")

    return signature(struct.fields[name.literal_value], struct, name), generate


def describe_type(type_: Any) -> str:
    """Return what messages call a numba type, such as `list[float]` or `the keys of dict[int, float]`."""
    if isinstance(type_, types.Optional):
        return f"{describe_type(type_.type)} that may be None"
    cls = getattr(type_, "cls", None)  # of an object
    if cls is not None:
        whose = {dict: " whose values have several types", list: " whose items have several types"}.get(cls, "")
        return f"a {cls.__name__}{whose}"
    if hasattr(type_, "kind") and hasattr(type_, "length"):
        return f"a list of {type_.length} items of type {type_.kind}"
    if isinstance(type_, types.BaseTuple):
        members = ", ".join(kind_of(each) or describe_type(each) for each in type_)
        named = class_of(type_)
        return f"tuple[{members}]" if named is None else f"{named.__name__}({members})"
    contents = getattr(type_, "contents", None)  # of a container
    if contents is None:
        return str(type_)
    return f"the {type_.view} of {contents}" if type_.view else str(contents)
