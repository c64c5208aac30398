"""Decimals in compiled code: integers of 128 bits with a fixed scale, the number of digits after the point.

In Python each decimal has its own scale. Only strings, `as_tuple` and `quantize` depend on it, and these are not
compiled, so values are equal. If an interpreted `get_value` may depend on it, the whole class is interpreted. A fold
calculates with 76 digits; the interpreter handles results of more than 38 digits, or with more than the scale.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_cast
from numba.core.typeconv import Conversion
from numba.core.typing import signature
from numba.extending import intrinsic, register_model

from foldflight.ext.compiler.generated import llvm_function, register_jitable
from foldflight.fold.machine_values import DECIMALS, DIGITS_MAX, scale_of, words_of

_WIDE: Final = llvm.IntType(128)
_WORD: Final = llvm.IntType(64)
_LIMIT: Final = 10**DIGITS_MAX
_CHUNK: Final = 9  # digits that one division removes: the power of ten must have fewer than 32 bits
_STEPS: Final = ((10**_CHUNK, _CHUNK), (10, 1))
_EXACT_MAX: Final = 1 << 53  # floats represent smaller integers exactly
_POWERS: Final = tuple(10.0**digits for digits in range(23))  # the powers of ten that floats represent exactly
_PRODUCT_SCALE: Final = 18  # the scale of an annotation `Decimal`; products have at least this scale


class ScaledDecimal(types.Type):
    """The numba type of decimals with a scale."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        super().__init__(name=f"Scaled({scale})")

    @property
    def kind(self) -> str:
        """The name of this type in plans: what `kind` is for other values of compiled code."""
        return DECIMALS[self.scale]

    def unify(self, typing: Any, other: types.Type) -> types.Type | None:
        """Return the common type of a variable with this type on one branch and `other` on another."""
        return max(self, other, key=lambda each: each.scale) if isinstance(other, ScaledDecimal) else None

    def can_convert_to(self, typing: Any, other: types.Type) -> Conversion | None:
        """Return the conversion to another type; None if there is none."""
        return Conversion.safe if isinstance(other, ScaledDecimal) and other.scale >= self.scale else None


RAW: Final = ScaledDecimal(0)
"""The type with which functions calculate; they handle the scale themselves."""


@register_model(ScaledDecimal)
class _ScaledModel(models.PrimitiveModel):
    """128 bits in registers, and two words in memory, because records are aligned to eight bytes."""

    def __init__(self, manager: Any, type_: ScaledDecimal) -> None:
        super().__init__(manager, type_, _WIDE)

    def get_data_type(self) -> Any:
        return llvm.ArrayType(_WORD, 2)

    def as_data(self, builder: Any, value: Any) -> Any:
        low, high = _words(builder, value)
        pair = llvm.Constant(self.get_data_type(), llvm.Undefined)
        return builder.insert_value(builder.insert_value(pair, low, 0), high, 1)

    def from_data(self, builder: Any, value: Any) -> Any:
        return join_words(builder, builder.extract_value(value, 0), builder.extract_value(value, 1))


# --- parts of generated code ------------------------------------------------------------------------------------------


def _words(builder: Any, value: Any) -> tuple[Any, Any]:
    return builder.trunc(value, _WORD), builder.trunc(builder.lshr(value, _WIDE(64)), _WORD)


def join_words(builder: Any, low: Any, high: Any) -> Any:
    """Generate the code that combines two words to a decimal."""
    return builder.or_(builder.zext(low, _WIDE), builder.shl(builder.zext(high, _WIDE), _WIDE(64)))


def _raise_if(context: Any, builder: Any, condition: Any) -> None:
    with cgutils.if_unlikely(builder, condition):
        context.call_conv.return_user_exc(builder, OverflowError, ("a decimal does not fit",))


def _check_limit(context: Any, builder: Any, value: Any, limit: int = _LIMIT) -> Any:
    """Return a number, and raise if its magnitude is not below a limit."""
    _raise_if(context, builder, builder.icmp_signed(">=", value, _WIDE(limit)))
    _raise_if(context, builder, builder.icmp_signed("<=", value, _WIDE(-limit)))
    return value


def _magnitude(builder: Any, value: Any) -> tuple[Any, Any]:
    """Return the magnitude of a number, and whether it is negative."""
    is_negative = builder.icmp_signed("<", value, _WIDE(0))
    return builder.select(is_negative, builder.neg(value), value), is_negative


def _generate_product(context: Any, builder: Any, one: Any, other: Any) -> Any:
    (a, is_negative), (b, is_other) = _magnitude(builder, one), _magnitude(builder, other)
    (low, high), (low_b, high_b) = ([builder.zext(each, _WIDE) for each in _words(builder, n)] for n in (a, b))
    zero = _WIDE(0)
    both = builder.and_(builder.icmp_unsigned("!=", high, zero), builder.icmp_unsigned("!=", high_b, zero))
    _raise_if(context, builder, both)
    cross_product = builder.add(builder.mul(high, low_b), builder.mul(low, high_b))  # one of the products is zero
    _raise_if(context, builder, builder.icmp_unsigned(">=", cross_product, _WIDE(1 << 63)))
    least = builder.mul(low, low_b)
    total = builder.add(least, builder.shl(cross_product, _WIDE(64)))
    _raise_if(context, builder, builder.icmp_unsigned("<", total, least))
    _raise_if(context, builder, builder.icmp_unsigned(">=", total, _WIDE(_LIMIT)))
    is_negative = builder.xor(is_negative, is_other)
    # Python's result would be a negative zero, which this code cannot represent.
    _raise_if(context, builder, builder.and_(is_negative, builder.icmp_unsigned("==", total, _WIDE(0))))
    return builder.select(is_negative, builder.neg(total), total)


def _divide(builder: Any, magnitude: Any, divisor: Any) -> tuple[Any, Any]:
    """Return quotient and remainder of a magnitude and a divisor of fewer than 32 bits, by long division."""
    quotient, rest = _WIDE(0), _WORD(0)
    for shift in (96, 64, 32, 0):
        part = builder.and_(builder.trunc(builder.lshr(magnitude, _WIDE(shift)), _WORD), _WORD((1 << 32) - 1))
        whole = builder.or_(builder.shl(rest, _WORD(32)), part)
        digit = builder.zext(builder.udiv(whole, divisor), _WIDE)
        quotient, rest = builder.or_(quotient, builder.shl(digit, _WIDE(shift))), builder.urem(whole, divisor)
    return quotient, rest


def _chunks(digits: int) -> list[int]:
    """Return powers of ten of fewer than 32 bits whose product is ten to a power."""
    return [10**_CHUNK] * (digits // _CHUNK) + ([10 ** (digits % _CHUNK)] if digits % _CHUNK else [])


@lower_cast(ScaledDecimal, ScaledDecimal)
def _rescale(context: Any, builder: Any, actual: ScaledDecimal, expected: ScaledDecimal, value: Any) -> Any:
    """Return a decimal with another scale; raise if that is not exact."""
    if expected.scale >= actual.scale:
        factor = 10 ** (expected.scale - actual.scale)
        if factor == 1:
            return value
        # Below this limit the product cannot overflow.
        return builder.mul(_check_limit(context, builder, value, _LIMIT // factor), _WIDE(factor))
    quotient, is_negative = _magnitude(builder, value)
    for power in _chunks(actual.scale - expected.scale):
        quotient, rest = _divide(builder, quotient, _WORD(power))
        _raise_if(context, builder, builder.icmp_unsigned("!=", rest, _WORD(0)))
    return builder.select(is_negative, builder.neg(quotient), quotient)


@lower_cast(types.Boolean, ScaledDecimal)
@lower_cast(types.Integer, ScaledDecimal)
def _from_whole(context: Any, builder: Any, actual: types.Type, expected: ScaledDecimal, value: Any) -> Any:
    widen = builder.zext if isinstance(actual, types.Boolean) else builder.sext
    return _rescale(context, builder, RAW, expected, widen(value, _WIDE))


# --- functions for compiled code --------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def as_scale(typing: Any, value: Any, scale: Any) -> Any:
    """Return the same integer as a decimal with another scale, which is a constant."""
    if not isinstance(scale, types.IntegerLiteral):
        return None
    result = signature(ScaledDecimal(scale.literal_value), value, scale)
    return result, lambda context, builder, sig, arguments: arguments[0]


def constant_of(value: Any) -> tuple[str, Any] | None:
    """Return the kind and the words of a decimal; None for other objects, and for decimals out of range."""
    if type(value) is not Decimal or not value.is_finite() or (value.is_signed() and not value):
        return None
    scale = max(0, -int(value.as_tuple().exponent))
    words = words_of(value, scale) if scale <= DIGITS_MAX else None
    return None if words is None else (DECIMALS[scale], words)


@intrinsic(prefer_literal=True)
def constant(typing: Any, value: Any) -> Any:
    """Return the decimal of a constant string."""
    if not isinstance(value, types.StringLiteral):
        return None
    kind, words = constant_of(Decimal(value.literal_value)) or ("", None)
    if words is None:
        return None
    number = int.from_bytes(words.tobytes(), "little", signed=True)
    return signature(ScaledDecimal(scale_of(kind)), value), lambda context, builder, sig, arguments: _WIDE(number)


@intrinsic
def words(typing: Any, value: Any) -> Any:
    """Return a decimal as two words, the low one first."""
    result = types.UniTuple(types.int64, 2)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return context.make_tuple(builder, result, _words(builder, arguments[0]))

    return signature(result, value), generate


def _sum(operation: str) -> Any:
    def generate(context: Any, builder: Any, one: Any, other: Any) -> Any:
        result = getattr(builder, operation)(one, other)
        _raise_if(context, builder, builder.extract_value(result, 1))
        return _check_limit(context, builder, builder.extract_value(result, 0))

    return llvm_function(RAW, RAW, RAW)(generate)


def _compares(symbol: str) -> Any:
    return llvm_function(types.boolean, RAW, RAW)(lambda context, builder, a, b: builder.icmp_signed(symbol, a, b))


add: Final = _sum("sadd_with_overflow")
subtract: Final = _sum("ssub_with_overflow")
_multiply: Final = llvm_function(RAW, RAW, RAW)(_generate_product)
negate: Final = llvm_function(RAW, RAW)(lambda context, builder, a: builder.neg(a))
magnitude: Final = llvm_function(RAW, RAW)(lambda context, builder, a: _magnitude(builder, a)[0])
is_zero: Final = llvm_function(types.boolean, RAW)(lambda context, builder, a: builder.icmp_signed("==", a, _WIDE(0)))
COMPARISONS: Final = {symbol: _compares(symbol) for symbol in ("==", "!=", "<", "<=", ">", ">=")}
_sign: Final = llvm_function(RAW, RAW)(
    lambda context, builder, a: builder.select(builder.icmp_signed("<", a, _WIDE(0)), _WIDE(-1), _WIDE(1))
)


def _within(digits: int) -> Any:
    """Return a function that checks the number of digits, and raises if there are more."""
    return llvm_function(RAW, RAW)(lambda context, builder, a: _check_limit(context, builder, a, 10**digits))


WITHIN: Final = [_within(digits) for digits in range(DIGITS_MAX + 1)]


@llvm_function(types.int64, RAW)
def to_word(context: Any, builder: Any, value: Any) -> Any:
    """Return a number as an int64. Raises if it does not fit."""
    narrow = builder.trunc(value, _WORD)
    _raise_if(context, builder, builder.icmp_signed("!=", builder.sext(narrow, _WIDE), value))
    return narrow


_DIVISION: Final = types.Tuple([RAW, types.int64])


@llvm_function(_DIVISION, RAW, types.int64)
def _division(context: Any, builder: Any, a: Any, divisor: Any) -> Any:
    """Return a number divided by an int64 of fewer than 32 bits, toward zero, and the magnitude of the remainder."""
    magnitude, is_negative = _magnitude(builder, a)
    quotient, rest = _divide(builder, magnitude, divisor)
    return context.make_tuple(builder, _DIVISION, [builder.select(is_negative, builder.neg(quotient), quotient), rest])


def scale_of_product(one: int, other: int) -> int:
    """Return the scale of the product of two decimals with these scales."""
    return min(one + other, max(one, other, _PRODUCT_SCALE))


@register_jitable
def product(a: Any, b: Any, excess: int) -> Any:
    """Return the product of two numbers without `excess` trailing zeros; raise if it has fewer."""
    for power, digits in _STEPS:
        while excess >= digits:
            of_a, of_b = _division(a, power), _division(b, power)
            if of_a[1] == 0:
                a = of_a[0]
            elif of_b[1] == 0:
                b = of_b[0]
            else:
                break
            excess -= digits
    if excess > 0:
        raise OverflowError
    return _multiply(a, b)


@register_jitable
def to_float(a: Any, scale: int) -> float:
    """Return the float nearest to a decimal; raise if one division of exact floats does not give it."""
    for power, digits in _STEPS:
        while scale >= digits:
            quotient, rest = _division(a, power)
            if rest != 0:
                break
            a = quotient
            scale -= digits
    whole = to_word(a)
    if abs(whole) > _EXACT_MAX or scale >= len(_POWERS):
        raise OverflowError
    return whole / _POWERS[scale]


@register_jitable
def _shorten(a: Any, digits: int) -> Any:
    """Return a number without its last digits, toward zero."""
    for power, less in _STEPS:
        while digits >= less:
            a = _division(a, power)[0]
            digits -= less
    return a


@register_jitable
def round_half_up(a: Any, digits: int) -> Any:
    """Return a number divided by ten to the power of `digits`, at least 1, rounded half up as in SQL."""
    quotient, last = _division(_shorten(a, digits - 1), 10)
    return add(quotient, _sign(a)) if last >= 5 else quotient


@register_jitable
def round_half_even(a: Any, digits: int) -> Any:
    """Return a number of at least 0 divided by ten to the power of `digits`, at least 1, halves to the even number."""
    has_rest = False
    for power, less in _STEPS:
        while digits - 1 >= less:
            a, rest = _division(a, power)
            has_rest = has_rest or rest != 0
            digits -= less
    quotient, last = _division(a, 10)
    is_odd = _division(quotient, 2)[1] == 1
    return add(quotient, _sign(quotient)) if last > 5 or (last == 5 and (has_rest or is_odd)) else quotient


@register_jitable
def to_whole(a: Any, scale: int) -> int:
    """Return a decimal as an int, rounded toward zero; raise if it exceeds 64 bits."""
    return to_word(_shorten(a, scale))
