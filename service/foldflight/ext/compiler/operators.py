"""The implementations of Python's operators and functions for compiled code, chosen by the kinds of their operands."""

from __future__ import annotations

import bisect
import builtins
import datetime
import decimal
import functools
import math
import operator
from typing import Any, Final

from numba.core import types
from numba.extending import overload

from foldflight.ext.compiler import arithmetic, containers, datetimes, decimals, formats, string_ops, strings
from foldflight.ext.compiler.generated import register_jitable
from foldflight.ext.compiler.records import Items, load_item, store_item
from foldflight.ext.compiler.value_types import (
    CONVERTERS,
    ENCODED,
    KINDS,
    Struct,
    as_number,
    decode_kind,
    describe_type,
    implementation,
    inner_kind,
    kind_of,
    require_value,
)
from foldflight.ext.compiler.vectors import VectorType
from foldflight.fold.machine_values import DECIMALS, MOMENTS, TEXTS, scale_of
from foldflight.fold.mode import Unsupported
from foldflight.functions.types.sql import rank

# --- conversions to the kind of a calculation, from values that may be None, bool or int ------------------------------


_int, _float, _bool = CONVERTERS["int"], CONVERTERS["float"], CONVERTERS["bool"]


# --- implementations -------------------------------------------------------------------------------------------------


def _kinds(name: str, *actual: Any, compares: bool = False) -> list[str]:
    """Return the kinds of operands. Dates and times are unsupported, unless the operator `compares` two of one kind."""
    kinds = [kind_of(each) for each in actual]
    if any(kind is None or kind == "none" for kind in kinds):
        raise Unsupported(f"{name} of {' and '.join(map(describe_type, actual))}")
    inner_kinds = [str(kind).removesuffix("?") for kind in kinds]
    if not {*ENCODED, *DECIMALS}.isdisjoint(inner_kinds) and not (compares and len(set(inner_kinds)) == 1):
        raise Unsupported(
            f"{name} of {' and '.join(inner_kinds)}, which Python does not have, or which is not compiled"
        )
    return inner_kinds


_ENCODED_OPERATORS: Final = {**datetimes.ARITHMETIC, **strings.COMPARISONS}


def _of_decimals(name: str, one: str, other: str) -> Any:
    """Return the implementation of a binary operator for two decimals, or a decimal and an int. Raises Unsupported."""
    actual = [kind if kind in DECIMALS else "decimal0" for kind in (one, other)]
    scales = [scale_of(kind) for kind in actual]
    wide = DECIMALS[max(scales)]
    if not {one, other}.issubset(("int", "bool", *DECIMALS)) or name not in _OF_DECIMALS:
        remedy = ", whose result may have any number of digits; divide in get_value" if name == "/" else ""
        raise Unsupported(f"{name} of {one} and {other}{remedy}")
    raw, scale, function = decimals.as_scale, max(scales), _OF_DECIMALS[name]
    if name == "*":
        as_one, as_other = CONVERTERS[actual[0]], CONVERTERS[actual[1]]
        scale = decimals.scale_of_product(*scales)
        excess = sum(scales) - scale
        return lambda a, b: raw(function(raw(as_one(a), 0), raw(as_other(b), 0), excess), scale)
    compare = CONVERTERS[wide]
    if name in decimals.COMPARISONS:
        return lambda a, b: function(raw(compare(a), 0), raw(compare(b), 0))
    return lambda a, b: raw(function(raw(compare(a), 0), raw(compare(b), 0)), scale)


_OF_DECIMALS: Final = {
    "+": decimals.add,
    "-": decimals.subtract,
    "*": decimals.product,
    **decimals.COMPARISONS,
}


def _of_encoded(name: str, a: Any, b: Any) -> Any:
    """Return the implementation of a binary operator for dates, times, str or bytes; None for other operands."""
    one, other = (inner_kind(each) for each in (a, b))
    if one in DECIMALS or other in DECIMALS:
        return _of_decimals(name, one, other)
    if (name, one, other) not in _ENCODED_OPERATORS:
        return None
    function, result = _ENCODED_OPERATORS[name, one, other]
    as_one, as_other, decode = CONVERTERS[one], CONVERTERS[other], decode_kind(result)
    return lambda a, b: decode(function(as_number(as_one(a)), as_number(as_other(b))))


def _binary(name: str, ints: Any = None, floats: Any = None, bools: Any = None, *, compares: bool = False) -> Any:
    """Return the implementation of a binary operator.

    As in Python, a bool with a number is converted to a number, and an int with a float to a float.

    Args:
        name: The operator, for error messages.
        ints: The function for two ints.
        floats: The function for two floats; None: unsupported.
        bools: The function for two bools; None: `ints`.
        compares: Whether it is a comparison, which does not convert an int to a float.
    """

    @implementation
    def choose(a: Any, b: Any) -> Any:
        encoded_operator = _of_encoded(name, a, b)
        if encoded_operator is not None:
            return encoded_operator
        if compares and isinstance(a, types.BaseTuple) and isinstance(b, types.BaseTuple):
            compare = _tuple_comparison(name, _common_kinds(name, a, b))
            return lambda a, b: compare(a, b)
        kinds = _kinds(name, a, b, compares=compares)
        if kinds[0] in MOMENTS:
            actual = CONVERTERS[kinds[0]]
            return lambda a, b: ints(as_number(actual(a)), as_number(actual(b)))
        if compares and set(kinds) in ({"int", "float"}, {"bool", "float"}):
            if kinds[0] == "float":
                return lambda a, b: floats(0.0, arithmetic.order(_int(b), _float(a)))
            return lambda a, b: floats(arithmetic.order(_int(a), _float(b)), 0.0)
        if "float" in kinds:
            operations, as_one, as_other = floats, _float, _float
        elif kinds == ["bool", "bool"] and bools is not None:
            operations, as_one, as_other = bools, _bool, _bool
        else:
            operations, as_one, as_other = ints, _int, _int
        if operations is None:
            raise Unsupported(f"{name} of {a} and {b}")
        return lambda a, b: operations(as_one(a), as_other(b))

    return choose


def _common_kinds(name: str, a: types.BaseTuple, b: types.BaseTuple) -> tuple[str, ...]:
    """Return the kinds of the members of two tuples. Raises Unsupported if they differ, or have no order by value."""
    kinds, others = (tuple(map(str, map(kind_of, each))) for each in (a, b))
    if kinds != others or not kinds or not {*KINDS}.difference(DECIMALS).issuperset(kinds):
        raise Unsupported(f"{name} of {describe_type(a)} and {describe_type(b)}")
    return kinds


@implementation
def _refuse_nan(a: Any, b: Any) -> Any:
    """Raise for NaN: in Python, a tuple with one equals a tuple with the same object."""
    if kind_of(a) != "float":
        return lambda a, b: None

    def refuse(a: Any, b: Any) -> None:
        if a != a or b != b:  # noqa: PLR0124 - only NaN differs from itself
            raise ValueError

    return refuse


@functools.cache
def _tuple_comparison(symbol: str, kinds: tuple[str, ...], index: int = 0) -> Any:
    """Return the function that compares two tuples from an index on: the first members that differ decide."""
    compare = OPERATORS[_COMPARED_BY[symbol]]
    if index == len(kinds) - 1:

        @register_jitable
        def last(a, b):
            _refuse_nan(a[index], b[index])
            return compare(a[index], b[index])

        return last
    following = _tuple_comparison(symbol, kinds, index + 1)

    @register_jitable
    def compare_tuples(a, b):
        _refuse_nan(a[index], b[index])
        return following(a, b) if _is_equal(a[index], b[index]) else compare(a[index], b[index])

    return compare_tuples


_COMPARED_BY: Final = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def _unary(
    name: str, ints: Any = None, floats: Any = None, bools: Any = None, durations: Any = None, of_decimals: Any = None
) -> Any:
    """Return the implementation of a function of one value. A kind for which there is no function is unsupported.

    `of_decimals` takes the number of a decimal and its scale; it returns a number of that scale, or an int or float.
    """

    @implementation
    def choose(a: Any) -> Any:
        inner = inner_kind(a)
        if of_decimals is not None and inner in DECIMALS:
            exact, scale, raw = CONVERTERS[inner], scale_of(inner), decimals.as_scale
            if name.endswith("()") and name != "abs()":
                return lambda a: of_decimals(raw(exact(a), 0), scale)
            return lambda a: raw(of_decimals(raw(exact(a), 0), scale), scale)
        if durations is not None and inner == "duration":
            compare, decode = CONVERTERS["duration"], decode_kind("duration")
            return lambda a: decode(durations(as_number(compare(a))))
        (kind,) = _kinds(name, a)
        operations = {"int": ints, "float": floats, "bool": bools or ints}[kind]
        if operations is None:
            raise Unsupported(f"{name} of {a}")
        actual = _bool if kind == "bool" and bools else CONVERTERS["int" if kind == "bool" else kind]
        return lambda a: operations(actual(a))

    return choose


def _plain(function: Any) -> Any:
    return register_jitable(lambda a, b: function(a, b))


@implementation
def truth(a: Any) -> Any:
    """Implement `bool(a)`."""
    kind = kind_of(a)
    if isinstance(a, types.Optional) and kind is None:
        return lambda a: a is not None and truth(require_value(a))
    if isinstance(a, (types.BaseTuple, Struct)):
        full = isinstance(a, Struct) or len(a) > 0
        return lambda a: full
    if isinstance(a, containers.ContainerType):
        return lambda a: containers.length_of(a) > 0
    if kind == "none":
        return lambda a: False
    if kind is None:
        raise Unsupported(f"it uses {a} as a condition")
    inner = inner_kind(a)
    actual = CONVERTERS[inner]
    if inner in DECIMALS:
        raw = decimals.as_scale
        return lambda a: a is not None and not decimals.is_zero(raw(actual(a), 0))
    if inner in ENCODED:
        zeros = inner in ("duration", *TEXTS)  # other kinds are always true
        return lambda a: a is not None and not (zeros and as_number(actual(a)) == 0)
    zero = {"int": 0, "float": 0.0, "bool": False}[inner]
    return lambda a: a is not None and actual(a) != zero


not_true: Final = register_jitable(lambda a: not truth(a))


@implementation
def is_none(a: Any) -> Any:
    """Implement `a is None`."""
    if kind_of(a) is None and not isinstance(a, (containers.ContainerType, Struct, VectorType, types.Optional)):
        raise Unsupported(f"{a} is compared with None")
    return lambda a: a is None


is_some: Final = register_jitable(lambda a: not is_none(a))
_CLASSES: Final = {"int": int, "float": float, "bool": bool, "none": type(None)}


@implementation
def is_instance(a: Any, mask: Any) -> Any:
    """Implement `isinstance`. `mask` has a bit for each class of `_CLASSES`."""
    kind = inner_kind(a)
    if kind not in _CLASSES:
        raise Unsupported(f"isinstance of {a}")
    bit, of_none = list(_CLASSES).index(kind), list(_CLASSES).index("none")
    return lambda a, mask: (mask >> (of_none if a is None else bit)) & 1 == 1


def mask_of(classes: tuple[type, ...]) -> int:
    """Return the mask of the classes of `_CLASSES` that are subclasses of one of these classes."""
    return sum(1 << bit for bit, cls in enumerate(_CLASSES.values()) if issubclass(cls, classes))


def _extreme_operation(name: str, wins: Any) -> Any:
    """Return the implementation of `min` or `max` of two values of one kind."""
    pick = register_jitable(lambda a, b: b if wins(as_number(b), as_number(a)) else a)
    wins_text = strings.COMPARISONS["<" if name == "min" else ">", "text", "text"][0]
    wins_decimal, raw = decimals.COMPARISONS["<" if name == "min" else ">"], decimals.as_scale
    pick_decimal = register_jitable(lambda a, b: b if wins_decimal(raw(b, 0), raw(a, 0)) else a)
    pick_text = register_jitable(lambda a, b: b if wins_text(as_number(b), as_number(a)) else a)

    @implementation
    def choose(a: Any, b: Any) -> Any:
        if isinstance(a, types.BaseTuple) and isinstance(b, types.BaseTuple):
            if a != b:
                raise Unsupported(f"{name} of {describe_type(a)} and {describe_type(b)}")
            wins_tuple = _tuple_comparison("<" if name == "min" else ">", _common_kinds(name, a, b))
            return lambda a, b: b if wins_tuple(b, a) else a
        inner_kinds = [inner_kind(each) for each in (a, b)]
        if set(inner_kinds).issubset(DECIMALS):
            exact = CONVERTERS[max(inner_kinds, key=scale_of)]
            return lambda a, b: pick_decimal(exact(a), exact(b))
        kinds = _kinds(name, a, b, compares=True)
        if kinds[0] != kinds[1]:
            raise Unsupported(f"{name} of {' and '.join(kinds)}, whose result may be of either kind")
        actual, picks = CONVERTERS[kinds[0]], pick_text if kinds[0] in TEXTS else pick
        return lambda a, b: picks(actual(a), actual(b))

    return choose


@register_jitable
def _finite(result: float, a: float, b: float) -> float:
    """Return a result. As in Python's math module, raise if it is not finite although the arguments are."""
    if math.isnan(result) and not (math.isnan(a) or math.isnan(b)):
        raise ValueError
    if math.isinf(result) and math.isfinite(a) and math.isfinite(b):
        raise ValueError
    return result


def _math(name: str, count: int = 1) -> Any:
    function: Any = arithmetic.c_function(name, count)
    if count == 1:
        one = register_jitable(lambda a: _finite(function(a), a, a))
        return _unary(f"math.{name}", register_jitable(lambda a: one(builtins.float(a))), one)
    two = register_jitable(lambda a, b: _finite(function(a, b), a, b))
    return _binary(f"math.{name}", register_jitable(lambda a, b: two(builtins.float(a), builtins.float(b))), two)


def _asks(name: str, ints: bool, floats: Any) -> Any:
    return _unary(name, ints=register_jitable(lambda a: ints), floats=register_jitable(lambda a: floats(a)))


def _comparison(symbol: str, function: Any) -> Any:
    plain = _plain(function)
    return _binary(symbol, ints=plain, floats=plain, bools=plain, compares=True)


_is_equal: Final = _comparison("==", operator.eq)


def _equality(plain: Any, *, differ: bool) -> Any:
    """Return the implementation of `==`, or of `!=` if `differ`, where values may be None."""

    @implementation
    def choose(a: Any, b: Any) -> Any:
        if isinstance(a, containers.ContainerType) and isinstance(b, containers.ContainerType):
            equal = register_jitable(containers.equality(a, b, _is_equal))
            return lambda a, b: equal(a, b) != differ
        kinds = [str(kind_of(a)), str(kind_of(b))]
        if "None" in kinds or not any(each == "none" or each.endswith("?") for each in kinds):
            return lambda a, b: plain(a, b)
        if "none" in kinds:
            return lambda a, b: (is_none(a) and is_none(b)) != differ

        def compare(a: Any, b: Any) -> Any:
            if a is None or b is None:
                return (a is None and b is None) != differ
            return plain(a, b)

        return compare

    return choose


@implementation
def check_same_kind(a: Any, b: Any) -> Any:
    """Refuse an int beside a float that stands for an int."""
    if {inner_kind(a), inner_kind(b)} == {"int", "float"}:
        raise Unsupported("it adds an int to what get returns from a dict of floats; write 0.0 as the default of get")
    return lambda a, b: None


_same: Final = register_jitable(lambda a: a)
_RADIAN: Final = math.pi / 180.0  # as in Python's math module
_DEGREE: Final = 180.0 / math.pi


@implementation
def _decimal_of(a: Any) -> Any:
    """Implement `Decimal(a)` of a decimal or a whole number."""
    kind = inner_kind(a)
    if kind not in ("int", "bool", *DECIMALS):
        raise Unsupported(f"Decimal() of {kind}")
    compare = CONVERTERS[kind if kind in DECIMALS else "decimal0"]
    return lambda a: compare(a)


@implementation
def _times(a: Any, b: Any) -> Any:
    """Implement `a * b`."""
    if inner_kind(a) in TEXTS and inner_kind(b) == "int":
        return lambda a, b: string_ops.repeat(a, b)
    if inner_kind(b) in TEXTS and inner_kind(a) == "int":
        return lambda a, b: string_ops.repeat(b, a)
    return lambda a, b: _product(a, b)


_product: Final = _binary("*", arithmetic.mul_int, _plain(operator.mul))
_sum: Final = _binary("+", arithmetic.add_int, _plain(operator.add))


@implementation
def _plus(a: Any, b: Any) -> Any:
    """Implement `a + b`."""
    if inner_kind(a) in TEXTS and inner_kind(b) in TEXTS:
        return lambda a, b: string_ops.concatenate(a, b)
    return lambda a, b: _sum(a, b)


_whole: Final = _unary("int()", _same, arithmetic.int_of_float, of_decimals=decimals.to_whole)


@implementation
def _int_of(a: Any) -> Any:
    """Implement `int(a)`."""
    if inner_kind(a) in TEXTS:
        return lambda a: string_ops.number_of(a)
    return lambda a: _whole(a)


_real: Final = _unary("float()", register_jitable(lambda a: builtins.float(a)), _same, of_decimals=decimals.to_float)


@implementation
def _float_of(a: Any) -> Any:
    """Implement `float(a)`."""
    if inner_kind(a) in TEXTS:
        return lambda a: string_ops.float_of(a)
    return lambda a: _real(a)


_round_whole: Final = _unary("round()", _same, arithmetic.round_float)


@implementation
def _round(a: Any, places: Any = None) -> Any:
    """Implement `round(a)` and `round(a, places)`."""
    if places is None or kind_of(places) == "none":
        return lambda a, places=None: _round_whole(a)
    if inner_kind(a) not in ("int", "float") or kind_of(places) != "int":
        raise Unsupported(f"round() of {inner_kind(a)} and {inner_kind(places)}; round in get_value")
    if inner_kind(a) == "int":
        return lambda a, places=None: arithmetic.round_int(_int(a), places)
    return lambda a, places=None: formats.round_to(_float(a), places)


_floor_quotient: Final = _binary("//", arithmetic.floordiv_int, arithmetic.floordiv_float)
_rest: Final = _binary("%", arithmetic.mod_int, arithmetic.mod_float)
OPERATORS: Final[dict[Any, Any]] = {
    operator.add: containers.new_from_both(_plus, "list"),
    operator.sub: _binary("-", arithmetic.sub_int, _plain(operator.sub)),
    operator.mul: _times,
    operator.truediv: _binary("/", arithmetic.truediv_int, arithmetic.truediv_float),
    operator.floordiv: _floor_quotient,
    operator.mod: _rest,
    operator.pow: _binary("**", arithmetic.pow_int, arithmetic.pow_float),
    operator.lshift: _binary("<<", arithmetic.lshift_int),
    operator.rshift: _binary(">>", arithmetic.rshift_int),
    operator.and_: _binary("&", _plain(operator.and_), bools=_plain(operator.and_)),
    operator.or_: containers.new_from_both(_binary("|", _plain(operator.or_), bools=_plain(operator.or_)), "set dict"),
    operator.xor: _binary("^", _plain(operator.xor), bools=_plain(operator.xor)),
    operator.lt: _comparison("<", operator.lt),
    operator.le: _comparison("<=", operator.le),
    operator.gt: _comparison(">", operator.gt),
    operator.ge: _comparison(">=", operator.ge),
    operator.eq: _equality(_comparison("==", operator.eq), differ=False),
    operator.ne: _equality(_comparison("!=", operator.ne), differ=True),
    operator.neg: _unary(
        "-",
        arithmetic.neg_int,
        register_jitable(lambda a: -a),
        durations=datetimes.negate,
        of_decimals=register_jitable(lambda a, scale: decimals.negate(a)),
    ),
    operator.pos: _unary("+", _same, _same, durations=_same, of_decimals=register_jitable(lambda a, scale: a)),
    operator.invert: _unary("~", register_jitable(lambda a: ~a)),
    operator.not_: not_true,
    operator.contains: containers.contains,
}

IN_PLACE: Final[dict[Any, Any]] = {
    operator.add: containers.in_place(OPERATORS[operator.add], "list", plus=True),
    operator.or_: containers.in_place(OPERATORS[operator.or_], "set dict"),
}


@implementation
def _quotient_and_rest(a: Any, b: Any) -> Any:
    """Implement `divmod(a, b)`."""
    return lambda a, b: (_floor_quotient(a, b), _rest(a, b))


CALLS: Final[dict[Any, Any]] = {
    **containers.CALLS,
    divmod: _quotient_and_rest,
    bool: truth,
    int: _int_of,
    bytes: string_ops.bytes_of,
    str: formats.text_of,
    bin: formats.digits_of("#b"),
    hex: formats.digits_of("#x"),
    oct: formats.digits_of("#o"),
    ord: string_ops.code_of,
    chr: string_ops.character_of,
    reversed: containers.reversed_of,
    float: _float_of,
    abs: _unary(
        "abs()",
        arithmetic.abs_int,
        register_jitable(lambda a: math.fabs(a)),
        durations=arithmetic.abs_int,
        of_decimals=register_jitable(lambda a, scale: decimals.magnitude(a)),
    ),
    decimal.Decimal: _decimal_of,
    datetime.date: datetimes.date_of,
    round: _round,
    min: _extreme_operation("min", _plain(operator.lt)),
    max: _extreme_operation("max", _plain(operator.gt)),
    range: range,
    math.isnan: _asks("math.isnan", ints=False, floats=math.isnan),
    math.isinf: _asks("math.isinf", ints=False, floats=math.isinf),
    math.isfinite: _asks("math.isfinite", ints=True, floats=math.isfinite),
    math.floor: _unary("math.floor", _same, arithmetic.floor_float),
    math.ceil: _unary("math.ceil", _same, arithmetic.ceil_float),
    math.trunc: _unary("math.trunc", _same, arithmetic.int_of_float),
    math.fabs: _unary("math.fabs", register_jitable(lambda a: math.fabs(builtins.float(a))), math.fabs),
    math.sqrt: _unary("math.sqrt", register_jitable(lambda a: arithmetic.sqrt(builtins.float(a))), arithmetic.sqrt),
    **{
        getattr(math, name): _math(name)
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "expm1", "log"),
            *("log10", "log1p", "log2", "sin", "sinh", "tan", "tanh"),
        )
    },
    **{getattr(math, name): _math(name, 2) for name in ("atan2", "copysign", "fmod", "pow")},
    math.radians: _unary(
        "math.radians", register_jitable(lambda a: a * _RADIAN), register_jitable(lambda a: a * _RADIAN)
    ),
    math.degrees: _unary(
        "math.degrees", register_jitable(lambda a: a * _DEGREE), register_jitable(lambda a: a * _DEGREE)
    ),
    len: containers.length_of,
    rank: _unary("rank", _same, _same),  # numbers are their own rank; `min` and `max` call it for structs and arrays
}


_NO_DEFAULT: Final = 0


def _of_one(name: str, of_container: Any, of_several: Any) -> Any:
    """Return the implementation of `min` or `max` of one argument, and of a default for an empty container."""

    @implementation
    def choose(a: Any, default: Any = _NO_DEFAULT) -> Any:
        if not isinstance(a, types.BaseTuple):
            if isinstance(default, types.Omitted) or default == _NO_DEFAULT:
                return lambda a, default=_NO_DEFAULT: of_container(a)
            return lambda a, default=_NO_DEFAULT: of_container(a, default)
        if default != _NO_DEFAULT and not isinstance(default, types.Omitted):
            raise Unsupported(f"it calls {name} of a tuple with a default")
        if len(a) == 2:
            return lambda a, default=_NO_DEFAULT: of_several(a[0], a[1])
        if len(a) == 3:
            return lambda a, default=_NO_DEFAULT: of_several(of_several(a[0], a[1]), a[2])
        raise Unsupported(f"it calls {name} of a tuple of {len(a)}")

    return choose


EXTREMES: Final = {
    min: _of_one("min", containers.LEAST, CALLS[min]),
    max: _of_one("max", containers.GREATEST, CALLS[max]),
}


@register_jitable
def check_lengths(a: Any, b: Any) -> None:
    """Raise if the two iterables of `zip(a, b, strict=True)` have different lengths."""
    if containers.length_of(a) != containers.length_of(b):
        raise ValueError


for _right, _names in ((True, ("bisect", "bisect_right")), (False, ("bisect_left",))):
    _found, _insort = containers.make_bisect(OPERATORS[operator.lt], right=_right)
    CALLS.update({getattr(bisect, name): _found for name in _names})
    CALLS.update({getattr(bisect, name.replace("bisect", "insort")): _insort for name in _names})


METHODS: Final[dict[str, Any]] = {
    "bit_length": _unary("bit_length", arithmetic.bit_length),
    "bit_count": _unary("bit_count", arithmetic.bit_count),
    "count": string_ops.count_of,
}


@implementation
def replace_method(a: Any, b: Any, c: Any, *rest: Any) -> Any:
    """Implement `a.replace(b, c)` of texts, and `a.replace(year, month)` of dates and times."""
    if inner_kind(a) in TEXTS:
        return lambda a, b, c, *rest: string_ops.replace_text(a, b, c)
    return lambda a, b, c, *rest: datetimes.replace_parts(a, b, c, *rest)


# --- items of lists ---------------------------------------------------------------------------------------------------


@register_jitable
def _byte(value: Any) -> int:
    number = _int(value)
    if not 0 <= number <= 255:
        raise ValueError
    return number


@implementation
def get_item(items: Any, index: Any) -> Any:
    """Implement `items[index]`."""
    if isinstance(items, types.Optional) and isinstance(items.type, containers.ContainerType):
        return lambda items, index: get_item(require_value(items), index)
    if isinstance(items, containers.ContainerType):
        return containers.get_item(items, index)
    if inner_kind(items) in TEXTS:
        if isinstance(index, types.SliceType):
            if index.has_step:
                raise Unsupported("it takes a part of a text with a step")
            return lambda items, index: strings.part_of(items, index.start, index.stop)
        return lambda items, index: strings.item_of(items, index)
    if isinstance(items, (types.UniTuple, types.NamedUniTuple)) and inner_kind(index) == "int":
        size = len(items)
        return lambda items, index: items[arithmetic.index_of(_int(index), size)]
    if isinstance(items, VectorType):
        remedy = "use operators of whole vectors, or declare it as ARRAY<DOUBLE>"
        raise Unsupported(f"it takes an item of {items}, a number of NumPy, which calculates otherwise; {remedy}")
    if not isinstance(items, Items) or _kinds("[]", index)[0] == "float":
        raise Unsupported(f"it takes an item of {items} by {index}")
    length = items.length
    return lambda items, index: load_item(items, arithmetic.index_of(_int(index), length))


@implementation(literal=True)
def get_constant_item(items: Any, index: Any) -> Any:
    """Implement `items[0]`: an item of a tuple, also of one that may be None, has the type of its place."""
    inner = items.type if isinstance(items, types.Optional) else items
    if not isinstance(inner, types.BaseTuple) or not isinstance(index, types.IntegerLiteral):
        return lambda items, index: get_item(items, index)
    position = index.literal_value
    if not -len(inner) <= position < len(inner):
        raise Unsupported(f"it takes the item {position} of a tuple of {len(inner)}")
    return lambda items, index: require_value(items)[position]


@overload(operator.getitem, strict=False)
def _item_in_comprehension(items: Any, index: Any) -> Any:
    """Implement `items[0]` in a comprehension, where numba has replaced it before this package sees the code."""
    if isinstance(items, (containers.ContainerType, Items)) or inner_kind(items) in TEXTS:
        return lambda items, index: get_item(items, index)
    return None


@implementation
def reverse(items: Any) -> Any:
    """Implement `items[::-1]`."""
    if isinstance(items, containers.ContainerType):
        return lambda items: containers.reversed_of(items)
    return lambda items: string_ops.backwards(items)


@implementation
def set_item(items: Any, index: Any, value: Any) -> Any:
    """Implement `items[index] = value`."""
    if isinstance(items, types.Optional) and isinstance(items.type, containers.ContainerType):
        return lambda items, index, value: set_item(require_value(items), index, value)
    if isinstance(items, containers.ContainerType):
        return containers.set_item(items, index, value)
    if not isinstance(items, Items) or not items.changeable or _kinds("[]", index)[0] == "float":
        raise Unsupported(f"it puts an item into {items} by {index}")
    inner = inner_kind(value)
    if inner != (expected := "int" if items.kind == "byte" else items.kind):
        raise Unsupported(f"it puts a {inner} into a list of {items.kind}")
    length, actual = items.length, _byte if items.kind == "byte" else CONVERTERS[expected]
    return lambda items, index, value: store_item(items, arithmetic.index_of(_int(index), length), actual(value))


# --- results ----------------------------------------------------------------------------------------------------------


def _as_result(kind: str, digits: int, inner: str) -> Any:
    """Return a function that casts decimals or ints to DECIMAL, rounding half up."""
    raw, scale, within = decimals.as_scale, scale_of(kind), decimals.WITHIN[digits]
    excess = scale_of(inner) - scale if inner in DECIMALS else 0
    if excess > 0:
        actual = CONVERTERS[inner]
        return register_jitable(lambda a: raw(within(decimals.round_half_up(raw(actual(a), 0), excess)), scale))
    actual = CONVERTERS[kind]
    return register_jitable(lambda a: raw(within(raw(actual(a), 0)), scale))


def result_of(kind: str, bits: int) -> Any:
    """Return a function that casts the return value of `get_value` to the result type, as Spark's CAST does.

    Compiled code raises where the interpreter has an error.

    Args:
        kind: The kind of the result.
        bits: The width of an integer result, or the digits of a decimal.

    Raises:
        Unsupported: When it is compiled for a type that cannot be cast.
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    @register_jitable
    def whole(a: int) -> int:
        if not low <= a <= high:
            raise OverflowError
        return a

    @implementation
    def choose(a: Any) -> Any:
        result_kind = kind_of(a)
        if result_kind is None:
            raise Unsupported(f"get_value returns {a}")
        if result_kind == "none":
            return lambda a: None
        inner = result_kind.removesuffix("?")
        if kind in DECIMALS and inner in ("int", *DECIMALS):
            one = _as_result(kind, bits, inner)
        elif kind != inner and not {"int", "float"}.issuperset((kind, inner)):
            raise Unsupported(f"get_value returns {inner}, but the result type is {kind}")
        elif kind == "int":
            one = register_jitable(lambda a: whole(arithmetic.int_of_float(a))) if inner == "float" else whole
        else:
            one = CONVERTERS[kind]
        actual = CONVERTERS[inner]
        if result_kind.endswith("?"):
            return lambda a: None if a is None else one(actual(a))
        return lambda a: one(actual(a))

    return choose
