"""Iterators of compiled code over lists, containers and strings. Each has a position of 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.typing import signature
from numba.extending import register_model

from foldflight.ext.compiler.generated import register_jitable

_STATE: Final = types.UniTuple(types.int64, 3)
_STEPS: Final[dict[type, Callable[[Any], tuple[Any, Any]]]] = {}


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
