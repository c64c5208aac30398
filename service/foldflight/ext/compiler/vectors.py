"""Vectors in compiled code: elementwise operators, with the types and roundings of NumPy, and results.

A vector is a pointer to the items of an argument, of an attribute of the accumulator, or of a temporary array on the
stack of the author's function. Each operator is one loop over the items, so the bits are the same as of NumPy's ufuncs.
Reductions are not compiled: NumPy adds items in pairs, and BLAS in an order of its own. A vector that is a result may
be on the stack of the function that returns it, so the function itself writes the items to the place of the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.extending import intrinsic, register_model

from foldflight.ext.compiler import arena
from foldflight.ext.compiler.control_block import current, load
from foldflight.ext.compiler.generated import register_jitable
from foldflight.ext.compiler.value_types import describe_type, implementation, inner_kind, require_value
from foldflight.fold.mode import Unsupported

TEMPORARY_ITEMS_MAX: Final = 1 << 12
"""Maximum number of items of a temporary vector, which is on the stack."""

_BYTE: Final = llvm.IntType(8)
_FLOATS: Final = {"f4": llvm.FloatType(), "f8": llvm.DoubleType()}


class VectorType(types.Type):
    """The numba type of a pointer to the items of a vector.

    Args:
        size: The number of items.
        format: The NumPy format of the items, `f4` or `f8`.
        changeable: Whether code may change them.
    """

    def __init__(self, size: int, format: str, *, changeable: bool) -> None:  # noqa: A002 - as NumPy calls it
        self.size = size
        self.format = format
        self.changeable = changeable
        sql = f"VECTOR({size}{', DOUBLE' if format == 'f8' else ''})"
        super().__init__(name=sql if changeable else f"read-only {sql}")


register_model(VectorType)(models.OpaqueModel)


def item_address(builder: Any, pointer: Any, index: Any, format_: str) -> Any:
    """Return the address of an item."""
    return builder.gep(builder.bitcast(pointer, _FLOATS[format_].as_pointer()), [index])


def row_address(builder: Any, data: Any, row: Any, type_: VectorType) -> Any:
    """Return the address of a row of an array of shape (n, size), as a pointer to bytes."""
    stride = llvm.Constant(llvm.IntType(64), type_.size * np.dtype(type_.format).itemsize)
    return builder.gep(builder.bitcast(data, _BYTE.as_pointer()), [builder.mul(row, stride)])


def _common(name: str, *operands: Any) -> tuple[int, str]:
    """Return size and format of the result of an operator. Python's numbers have the format of the vector."""
    vectors = [each for each in operands if isinstance(each, VectorType)]
    others = [each for each in operands if not isinstance(each, VectorType)]
    if any(inner_kind(each) not in ("int", "float") for each in others):
        raise Unsupported(f"{name} of {' and '.join(map(describe_type, operands))}")
    sizes = {each.size for each in vectors}
    if len(sizes) > 1:
        raise Unsupported(f"{name} of vectors of {' and '.join(map(str, sorted(sizes)))} items")
    return sizes.pop(), max(each.format for each in vectors)


def _as_float(builder: Any, value: Any, from_: str, to: str) -> Any:
    if from_ == to:
        return value
    return builder.fpext(value, _FLOATS[to]) if to == "f8" else builder.fptrunc(value, _FLOATS[to])


def _items(context: Any, builder: Any, operand: Any, value: Any, format_: str) -> Callable[[Any], Any]:
    """Return what loads the item of an operand at an index, converted to the format of the calculation."""
    if isinstance(operand, VectorType):
        return lambda index: _as_float(
            builder, builder.load(item_address(builder, value, index, operand.format)), operand.format, format_
        )
    # As in NumPy, an int becomes a float of 64 bits first. The cast raises for None.
    number = _as_float(builder, context.cast(builder, value, operand, types.float64), "f8", format_)
    return lambda _: number


def _fill(
    context: Any, builder: Any, operands: Any, values: Any, format_: str, out: Any, into: VectorType, emit: Any
) -> None:
    """Write the result of an operator to each item of `out`."""
    loads = [_items(context, builder, operand, value, format_) for operand, value in zip(operands, values, strict=True)]
    with cgutils.for_range(builder, llvm.Constant(llvm.IntType(64), into.size)) as loop:
        result = emit(builder, *(load(loop.index) for load in loads))
        builder.store(
            _as_float(builder, result, format_, into.format), item_address(builder, out, loop.index, into.format)
        )


def _new(name: str, emit: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Return signature and code of an operator that makes a temporary vector."""
    size, format_ = _common(name, *operands)
    if size > TEMPORARY_ITEMS_MAX:
        raise Unsupported(f"{name} makes a vector of more than {TEMPORARY_ITEMS_MAX} items; write +=, -=, *= or /=")
    result = VectorType(size, format_, changeable=False)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        out = cgutils.alloca_once(builder, llvm.ArrayType(_FLOATS[format_], size))
        out = builder.bitcast(out, _BYTE.as_pointer())
        _fill(context, builder, sig.args, arguments, format_, out, result, emit)
        return out

    return signature(result, *operands), generate


def _binary(name: str, emit: Callable[..., Any]) -> Any:
    @intrinsic
    def operate(typing: Any, a: Any, b: Any) -> Any:
        return _new(name, emit, (a, b))

    return operate


def _unary(name: str, emit: Callable[..., Any]) -> Any:
    @intrinsic
    def operate(typing: Any, a: Any) -> Any:
        return _new(name, emit, (a,))

    return operate


def _in_place(name: str, emit: Callable[..., Any]) -> Any:
    @intrinsic
    def operate_in_place(typing: Any, a: Any, b: Any) -> Any:
        _, format_ = _common(name, a, b)
        if not (isinstance(a, VectorType) and a.changeable):
            raise Unsupported(f"{name} of a value that is no vector of the accumulator")

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            _fill(context, builder, sig.args, arguments, format_, arguments[0], a, emit)
            return arguments[0]

        return signature(a, a, b), generate

    return operate_in_place


# numba finds only intrinsics that exist when a module is imported.
_EMITTED: Final[dict[Any, tuple[str, Callable[..., Any]]]] = {
    operator.add: ("+", lambda builder, a, b: builder.fadd(a, b)),
    operator.sub: ("-", lambda builder, a, b: builder.fsub(a, b)),
    operator.mul: ("*", lambda builder, a, b: builder.fmul(a, b)),
    operator.truediv: ("/", lambda builder, a, b: builder.fdiv(a, b)),
}
OPERATORS: Final = {
    **{function: _binary(*named) for function, named in _EMITTED.items()},
    operator.neg: _unary("-", lambda builder, a: builder.fneg(a)),
}
"""The operators that make a vector."""

IN_PLACE: Final = {function: _in_place(f"{name}=", emit) for function, (name, emit) in _EMITTED.items()}
"""The operators that change a vector of the accumulator."""


_RESULT: Final = 8 * arena.RESULT


def result_of(size: int, format_: str) -> Any:
    """Return a function that writes a vector that `get_value` or `eval` returns to the place of the result.

    It returns True, or None for None. Compiled code raises where the interpreter has an error: for a finite item that
    is infinite in 32 bits.

    Args:
        size: The number of items of the result.
        format_: Their NumPy format.

    Raises:
        Unsupported: When it is compiled for a type that is no vector of this size.
    """

    @intrinsic
    def write(typing: Any, a: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            out = builder.inttoptr(arguments[1], _BYTE.as_pointer())
            beyond = cgutils.alloca_once_value(builder, llvm.Constant(llvm.IntType(1), 0))
            with cgutils.for_range(builder, llvm.Constant(llvm.IntType(64), size)) as loop:
                wide = builder.load(item_address(builder, arguments[0], loop.index, a.format))
                narrow = _as_float(builder, wide, a.format, format_)
                builder.store(narrow, item_address(builder, out, loop.index, format_))
                if a.format > format_:
                    overflows = builder.and_(_is_finite(builder, wide), builder.not_(_is_finite(builder, narrow)))
                    builder.store(builder.or_(builder.load(beyond), overflows), beyond)
            return builder.zext(builder.not_(builder.load(beyond)), context.get_value_type(types.boolean))

        return signature(types.boolean, a, types.int64), generate

    @register_jitable
    def put(a: Any) -> bool:
        if not write(a, load(current() + _RESULT)):
            raise OverflowError
        return True

    @implementation
    def choose(a: Any) -> Any:
        if isinstance(a, types.NoneType):
            return lambda a: None
        inner = a.type if isinstance(a, types.Optional) else a
        if not isinstance(inner, VectorType) or inner.size != size:
            raise Unsupported(f"it returns {a} as a vector of {size} items")
        if isinstance(a, types.Optional):
            return lambda a: None if a is None else put(require_value(a))
        return lambda a: put(a)

    return choose


def _is_finite(builder: Any, value: Any) -> Any:
    """Return whether a float is finite. Infinity minus itself is NaN, as is NaN minus itself."""
    difference = builder.fsub(value, value)
    return builder.fcmp_ordered("==", difference, llvm.Constant(value.type, 0.0))
