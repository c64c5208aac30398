"""Python's operators and functions on numbers, for compiled code: with Python's results, or an exception.

Compiled code raises `Left` (an ArithmeticError) wherever Python would raise, or leave 64 bits: the interpreter then
repeats the row, and says or calculates what is right. Which exception it is does not matter here.
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.typing import signature
from numba.extending import intrinsic, overload, register_jitable

from foldflight.fold.compiler.kinds import KINDS, Refused, kind_of

__all__ = ["CALLS", "OPERATORS", "is_none", "isinstance_of", "result_of", "truth"]

_EXACT: Final = 1 << 53
_HALF: Final = 9223372036854775808.0


# --- from values that may be None, bool or int to the kind that is calculated with ------------------------------------


def _convert(kind: str) -> Callable[..., Any]:
    @intrinsic
    def converted(typing: Any, value: Any) -> Any:
        if value in (types.none, types.Omitted):
            return None

        def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
            # From an Optional this raises where the value is None.
            return context.cast(builder, arguments[0], made.args[0], made.return_type)

        return signature(KINDS[kind], types.unliteral(value)), generate

    return converted


_int: Final = _convert("int")
_float: Final = _convert("float")
_bool: Final = _convert("bool")
_AS: Final = {"int": _int, "float": _float, "bool": _bool}


def _checked(instruction: str) -> Callable[..., Any]:
    @intrinsic
    def calculated(typing: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
            wide = llvm.IntType(64)
            pair = llvm.LiteralStructType([wide, llvm.IntType(1)])
            function = cgutils.get_or_insert_function(
                builder.module, llvm.FunctionType(pair, [wide, wide]), f"llvm.{instruction}.with.overflow.i64"
            )
            result = builder.call(function, arguments)
            with builder.if_then(builder.extract_value(result, 1), likely=False):
                context.call_conv.return_user_exc(builder, OverflowError, ())
            return builder.extract_value(result, 0)

        return signature(types.int64, types.int64, types.int64), generate

    return calculated


_add_int: Final = _checked("sadd")
_sub_int: Final = _checked("ssub")
_mul_int: Final = _checked("smul")


# --- whole numbers ----------------------------------------------------------------------------------------------------


@register_jitable
def _neg_int(a: int) -> int:
    return _sub_int(0, a)


@register_jitable
def _abs_int(a: int) -> int:
    return _sub_int(0, a) if a < 0 else a


@register_jitable
def _floordiv_int(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError
    return _sub_int(0, a) if b == -1 else a // b


@register_jitable
def _mod_int(a: int, b: int) -> int:
    if b == 0:
        raise ZeroDivisionError
    return 0 if b == -1 else a % b


@register_jitable
def _pow_int(a: int, b: int) -> int:
    if b < 0:
        raise ArithmeticError  # Python's result is a float then
    result = 1
    while b:
        if b & 1:
            result = _mul_int(result, a)
        b >>= 1
        if b:
            a = _mul_int(a, a)
    return result


@register_jitable
def _lshift_int(a: int, b: int) -> int:
    if b < 0:
        raise ValueError
    if a == 0:
        return 0
    if b > 62 or ((a << b) >> b) != a:
        raise OverflowError
    return a << b


@register_jitable
def _rshift_int(a: int, b: int) -> int:
    if b < 0:
        raise ValueError
    return a >> builtins.min(b, 63)


@intrinsic
def _unsigned(typing: Any, value: Any) -> Any:
    """Reinterpret 64 bits as an unsigned number."""

    def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
        return arguments[0]

    return signature(types.uint64, types.int64), generate


@register_jitable
def _truediv_int(a: int, b: int) -> float:
    if b == 0:
        raise ZeroDivisionError
    if -_EXACT <= a <= _EXACT and -_EXACT <= b <= _EXACT:
        return builtins.float(a) / builtins.float(b)
    # Correctly rounded, as Python does it: at least 55 bits of the quotient, the last one telling of any rest.
    divisor = _unsigned(b if b > 0 else -b)
    rest = _unsigned(a if a > 0 else -a)
    quotient = rest // divisor
    rest %= divisor
    scale = 0
    while quotient < types.uint64(1 << 54) and (rest != types.uint64(0) or quotient != types.uint64(0)):
        # The rest is below 2**63, so that it can be doubled.
        rest <<= types.uint64(1)
        quotient <<= types.uint64(1)
        if rest >= divisor:
            rest -= divisor
            quotient |= types.uint64(1)
        scale += 1
    if rest != types.uint64(0):
        quotient |= types.uint64(1)
    result = math.ldexp(builtins.float(quotient), -scale)
    return result if (a >= 0) == (b > 0) else -result


# --- floats -----------------------------------------------------------------------------------------------------------


def _c_function(name: str, count: int) -> types.ExternalFunction:
    """Return a function of the C library, the one that Python calls, under a name LLVM knows nothing about.

    LLVM would calculate `pow(x, 2.0)` in another way, whose last digit differs now and then.
    """
    function = getattr(ctypes.CDLL(None), name)
    llvmlite.binding.add_symbol(f"foldflight_c_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(f"foldflight_c_{name}", signature(types.float64, *[types.float64] * count))


_c_pow: Final = _c_function("pow", 2)
_c_fmod: Final = _c_function("fmod", 2)


@register_jitable
def _pow_float(a: float, b: float) -> float:
    # CPython's float_pow, case by case.
    if b == 0.0 or a == 1.0:
        return 1.0
    if a != a or b != b:  # noqa: PLR0124 - only NaN differs from itself
        return a if a != a else b  # noqa: PLR0124
    finite = math.isfinite(a) and math.isfinite(b)
    if a == 0.0 and b < 0.0:
        raise ZeroDivisionError
    if a < 0.0 and finite and b != math.floor(b):
        raise ArithmeticError  # Python's result is complex then
    result = _c_pow(a, b)
    if finite and math.isinf(result):
        raise OverflowError
    return result


@register_jitable
def _mod_float(a: float, b: float) -> float:
    if b == 0.0:
        raise ZeroDivisionError
    mod = _c_fmod(a, b)
    if mod != 0.0:
        return mod + b if (b < 0.0) != (mod < 0.0) else mod
    return math.copysign(0.0, b)


@register_jitable
def _floordiv_float(a: float, b: float) -> float:
    if b == 0.0:
        raise ZeroDivisionError
    mod = _c_fmod(a, b)
    div = (a - mod) / b
    if mod != 0.0 and (b < 0.0) != (mod < 0.0):
        div -= 1.0
    if div == 0.0:
        return math.copysign(0.0, a / b)
    floor = builtins.float(math.floor(div)) if builtins.abs(div) < _EXACT else div
    return floor + 1.0 if div - floor > 0.5 else floor


@register_jitable
def _truediv_float(a: float, b: float) -> float:
    if b == 0.0:
        raise ZeroDivisionError
    return a / b


@register_jitable
def _int_of_float(a: float) -> int:
    if not (-_HALF <= a < _HALF):
        raise OverflowError  # also NaN
    return types.int64(a)


@register_jitable
def _floor_float(a: float) -> int:
    whole = _int_of_float(a)
    return whole - 1 if builtins.float(whole) > a else whole


@register_jitable
def _ceil_float(a: float) -> int:
    whole = _int_of_float(a)
    return whole + 1 if builtins.float(whole) < a else whole


@register_jitable
def _round_float(a: float) -> int:
    if builtins.abs(a) >= _EXACT:
        return _int_of_float(a)
    below = _floor_float(a)
    above = a - builtins.float(below)
    if above > 0.5 or (above == 0.5 and below & 1):
        return below + 1
    return below


@register_jitable
def _sqrt(a: float) -> float:
    if a < 0.0:
        raise ValueError
    return math.sqrt(a)


# --- comparison of a whole number with a float: exact, as in Python ---------------------------------------------------


@register_jitable
def _order(a: int, b: float) -> int:
    """Return -1, 0 or 1 as a is less, equal or greater; 2 for NaN."""
    if b != b:  # noqa: PLR0124 - only NaN differs from itself
        return 2
    if b >= _HALF:
        return -1
    if b < -_HALF:
        return 1
    whole = types.int64(b)
    if a != whole:
        return -1 if a < whole else 1
    rest = b - builtins.float(whole)
    return 0 if rest == 0.0 else (-1 if rest > 0.0 else 1)


_FROM_ORDER: Final[dict[Any, Callable[[int], bool]]] = {
    operator.lt: register_jitable(lambda order: order == -1),
    operator.le: register_jitable(lambda order: order in (-1, 0)),
    operator.gt: register_jitable(lambda order: order == 1),
    operator.ge: register_jitable(lambda order: order in (0, 1)),
    operator.eq: register_jitable(lambda order: order == 0),
    operator.ne: register_jitable(lambda order: order != 0),
}
_SWAPPED: Final = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}


# --- the stand-ins ----------------------------------------------------------------------------------------------------


def _kinds(name: str, *given: Any) -> list[str]:
    kinds = [kind_of(each) for each in given]
    if any(kind is None or kind == "none" for kind in kinds):
        raise Refused(f"{name} of {' and '.join(map(str, given))}")
    return [str(kind).removesuffix("?") for kind in kinds]


def _binary(name: str, ints: Any = None, floats: Any = None, bools: Any = None, mixed: Any = None) -> Any:
    """Return the stand-in of an operator: which function it is for two ints, two floats or two truth values.

    A truth value beside a number counts as a number, a whole number beside a float becomes one, as in Python.
    """

    def stand_in(a: Any, b: Any) -> Any:
        raise NotImplementedError(name)

    @overload(stand_in, strict=False)
    def choose(a: Any, b: Any) -> Any:
        kinds = _kinds(name, a, b)
        if mixed is not None and set(kinds) in ({"int", "float"}, {"bool", "float"}):
            straight, swapped = mixed
            if kinds[0] == "float":
                return lambda a, b: swapped(_order(_int(b), _float(a)))
            return lambda a, b: straight(_order(_int(a), _float(b)))
        if "float" in kinds:
            chosen, as_one, as_other = floats, _float, _float
        elif kinds == ["bool", "bool"] and bools is not None:
            chosen, as_one, as_other = bools, _bool, _bool
        else:
            chosen, as_one, as_other = ints, _int, _int
        if chosen is None:
            raise Refused(f"{name} of {a} and {b}")
        return lambda a, b: chosen(as_one(a), as_other(b))

    return stand_in


def _unary(name: str, ints: Any = None, floats: Any = None, bools: Any = None) -> Any:
    def stand_in(a: Any) -> Any:
        raise NotImplementedError(name)

    @overload(stand_in, strict=False)
    def choose(a: Any) -> Any:
        (kind,) = _kinds(name, a)
        chosen = {"int": ints, "float": floats, "bool": bools or ints}[kind]
        if chosen is None:
            raise Refused(f"{name} of {a}")
        given = _bool if kind == "bool" and bools else _AS["int" if kind == "bool" else kind]
        return lambda a: chosen(given(a))

    return stand_in


def _plain(function: Any) -> Any:
    return register_jitable(lambda a, b: function(a, b))


def truth(a: Any) -> bool:
    """Stand for `bool(a)`."""
    raise NotImplementedError


@overload(truth, strict=False)
def _truth(a: Any) -> Any:
    kind = kind_of(a)
    if isinstance(a, types.BaseTuple):
        full = len(a) > 0
        return lambda a: full
    if kind == "none":
        return lambda a: False
    if kind is None:
        raise Refused(f"the truth of {a}")
    given = _AS[kind.removesuffix("?")]
    zero = {"int": 0, "float": 0.0, "bool": False}[kind.removesuffix("?")]
    if kind.endswith("?"):
        return lambda a: False if a is None else given(a) != zero
    return lambda a: given(a) != zero


def not_true(a: Any) -> bool:
    """Stand for `not a`."""
    raise NotImplementedError


@overload(not_true, strict=False)
def _not_true(a: Any) -> Any:
    return lambda a: not truth(a)


def is_none(a: Any) -> bool:
    """Stand for `a is None`."""
    raise NotImplementedError


@overload(is_none, strict=False)
def _is_none(a: Any) -> Any:
    kind = kind_of(a)
    if kind is None:
        raise Refused(f"{a} is compared with None")
    if kind.endswith("?"):
        return lambda a: a is None
    answer = kind == "none"
    return lambda a: answer


def _is_instance(fitting: frozenset[str]) -> Any:
    """Return the stand-in of `isinstance` with classes that fit some kinds of values."""

    def stand_in(a: Any) -> Any:
        raise NotImplementedError

    @overload(stand_in, strict=False)
    def choose(a: Any) -> Any:
        kind = kind_of(a)
        if kind is None:
            raise Refused(f"isinstance of {a}")
        fits, fits_none = kind.removesuffix("?") in fitting, "none" in fitting
        if kind.endswith("?"):
            return lambda a: fits_none if a is None else fits
        return lambda a: fits

    return stand_in


_CLASSES: Final = {"int": int, "float": float, "bool": bool, "none": type(None)}
# All there can be, and made now: numba does not see what is made while it compiles.
_INSTANCE: Final = {
    frozenset(kinds): _is_instance(frozenset(kinds))
    for count in range(len(_CLASSES) + 1)
    for kinds in itertools.combinations(_CLASSES, count)
}


def isinstance_of(classes: tuple[type, ...]) -> Any:
    """Return the stand-in of `isinstance(a, classes)`."""
    return _INSTANCE[frozenset(kind for kind, cls in _CLASSES.items() if issubclass(cls, classes))]


def _picking(name: str, wins: Any) -> Any:
    """Return the stand-in of `min` or `max` of two or three numbers of one kind."""
    pick = register_jitable(lambda a, b: b if wins(b, a) else a)

    def stand_in(a: Any, b: Any, c: Any = None) -> Any:
        raise NotImplementedError(name)

    @overload(stand_in, strict=False)
    def choose(a: Any, b: Any, c: Any = None) -> Any:
        third = not (c is None or kind_of(c) == "none" or isinstance(c, types.Omitted))
        kinds = _kinds(name, a, b, c) if third else _kinds(name, a, b)
        if len(set(kinds)) > 1:
            raise Refused(f"{name} of {' and '.join(kinds)}, whose result may be either")
        given = _AS[kinds[0]]
        if third:
            return lambda a, b, c=None: pick(pick(given(a), given(b)), given(c))
        return lambda a, b, c=None: pick(given(a), given(b))

    return stand_in


def _math(name: str, count: int = 1) -> Any:
    function = _c_function(name, count)

    # What Python's math module says to a result that is not finite from a value that is.
    if count == 1:

        @register_jitable
        def called(a: float) -> float:
            result = function(a)
            if not math.isfinite(result) and (math.isfinite(a) or (math.isnan(result) and not math.isnan(a))):
                raise ValueError
            return result

        return _unary(f"math.{name}", ints=register_jitable(lambda a: called(builtins.float(a))), floats=called)

    @register_jitable
    def called_with_two(a: float, b: float) -> float:
        result = function(a, b)
        known = math.isnan(a) or math.isnan(b)
        if (math.isnan(result) and not known) or (math.isinf(result) and math.isfinite(a) and math.isfinite(b)):
            raise ValueError
        return result

    return _binary(
        f"math.{name}",
        ints=register_jitable(lambda a, b: called_with_two(builtins.float(a), builtins.float(b))),
        floats=called_with_two,
    )


def _asks(name: str, ints: bool, floats: Any) -> Any:  # noqa: FBT001
    return _unary(name, ints=register_jitable(lambda a: ints), floats=register_jitable(lambda a: floats(a)))


def _comparison(symbol: str, function: Any) -> Any:
    plain = _plain(function)
    mixed = (_FROM_ORDER[function], _FROM_ORDER[_SWAPPED.get(function, function)])
    return _binary(symbol, ints=plain, floats=plain, bools=plain, mixed=mixed)


def _identity(a: Any) -> Any:
    return a


_same: Final = register_jitable(_identity)

OPERATORS: Final[dict[Any, Any]] = {
    operator.add: _binary("+", _add_int, _plain(operator.add)),
    operator.sub: _binary("-", _sub_int, _plain(operator.sub)),
    operator.mul: _binary("*", _mul_int, _plain(operator.mul)),
    operator.truediv: _binary("/", _truediv_int, _truediv_float),
    operator.floordiv: _binary("//", _floordiv_int, _floordiv_float),
    operator.mod: _binary("%", _mod_int, _mod_float),
    operator.pow: _binary("**", _pow_int, _pow_float),
    operator.lshift: _binary("<<", _lshift_int),
    operator.rshift: _binary(">>", _rshift_int),
    operator.and_: _binary("&", _plain(operator.and_), bools=_plain(operator.and_)),
    operator.or_: _binary("|", _plain(operator.or_), bools=_plain(operator.or_)),
    operator.xor: _binary("^", _plain(operator.xor), bools=_plain(operator.xor)),
    operator.lt: _comparison("<", operator.lt),
    operator.le: _comparison("<=", operator.le),
    operator.gt: _comparison(">", operator.gt),
    operator.ge: _comparison(">=", operator.ge),
    operator.eq: _comparison("==", operator.eq),
    operator.ne: _comparison("!=", operator.ne),
    operator.neg: _unary("-", _neg_int, register_jitable(lambda a: -a)),
    operator.pos: _unary("+", _same, _same),
    operator.invert: _unary("~", register_jitable(lambda a: ~a)),
    operator.not_: not_true,
}

CALLS: Final[dict[Any, Any]] = {
    bool: truth,
    int: _unary("int()", _same, _int_of_float),
    float: _unary("float()", register_jitable(lambda a: builtins.float(a)), _same),
    abs: _unary("abs()", _abs_int, register_jitable(lambda a: math.fabs(a))),
    round: _unary("round()", _same, _round_float),
    min: _picking("min", _plain(operator.lt)),
    max: _picking("max", _plain(operator.gt)),
    range: range,
    math.isnan: _asks("math.isnan", ints=False, floats=math.isnan),
    math.isinf: _asks("math.isinf", ints=False, floats=math.isinf),
    math.isfinite: _asks("math.isfinite", ints=True, floats=math.isfinite),
    math.floor: _unary("math.floor", _same, _floor_float),
    math.ceil: _unary("math.ceil", _same, _ceil_float),
    math.trunc: _unary("math.trunc", _same, _int_of_float),
    math.fabs: _unary("math.fabs", register_jitable(lambda a: math.fabs(builtins.float(a))), math.fabs),
    math.sqrt: _unary("math.sqrt", register_jitable(lambda a: _sqrt(builtins.float(a))), _sqrt),
    **{
        getattr(math, name): _math(name)
        for name in ("exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "atan", "tanh")
    },
    **{getattr(math, name): _math(name, 2) for name in ("atan2", "copysign")},
}


# --- results ----------------------------------------------------------------------------------------------------------


def result_of(kind: str, bits: int) -> Any:
    """Return the function that casts what `get_value` returns to the kind of the result, as Spark's CAST does.

    Raises (in compiled code) what the interpreter has an error for, and Refused for what casts in another way.
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    @register_jitable
    def whole(a: int) -> int:
        if not low <= a <= high:
            raise OverflowError
        return a

    def stand_in(a: Any) -> Any:
        raise NotImplementedError

    @overload(stand_in, strict=False)
    def choose(a: Any) -> Any:
        found = kind_of(a)
        if found is None:
            raise Refused(f"get_value returns {a}")
        if found == "none":
            return lambda a: None
        inner = found.removesuffix("?")
        if "bool" in (kind, inner) and kind != inner:
            raise Refused(f"get_value returns {inner} for a result that is {kind}")
        if kind == "int":
            one = register_jitable(lambda a: whole(_int_of_float(a))) if inner == "float" else whole
        else:
            one = _AS[kind]
        given = _AS[inner]
        if found.endswith("?"):
            return lambda a: None if a is None else one(given(a))
        return lambda a: one(given(a))

    return stand_in
