"""Arithmetic that compiled code calls: Python's results, bit for bit, or an exception.

These functions raise where Python raises, and where the result exceeds 64 bits. The interpreter then repeats the row,
and raises Python's error or calculates the result. So any class of exception will do.
"""

from __future__ import annotations

import builtins
import ctypes
import math
from typing import Any, Final

import llvmlite.binding
from numba.core import types
from numba.core.typing import signature

from foldflight.ext.compiler.generated import llvm_function, register_jitable

_INT_MAX: Final = (1 << 63) - 1
_EXACT: Final = 1 << 53  # floats represent smaller integers exactly
_HALF: Final = 9223372036854775808.0  # 2**63, the first float beyond an int64


def _check_limit(instruction: str) -> Any:
    @llvm_function(types.int64, types.int64, types.int64)
    def calculate(context: Any, builder: Any, one: Any, other: Any) -> Any:
        result = getattr(builder, f"{instruction}_with_overflow")(one, other)
        with builder.if_then(builder.extract_value(result, 1), likely=False):
            context.call_conv.return_user_exc(builder, OverflowError, ())
        return builder.extract_value(result, 0)

    return calculate


add_int: Final = _check_limit("sadd")
sub_int: Final = _check_limit("ssub")
mul_int: Final = _check_limit("smul")


# --- whole numbers ----------------------------------------------------------------------------------------------------


@register_jitable
def neg_int(a: int) -> int:
    """Return `-a`."""
    return sub_int(0, a)


@register_jitable
def abs_int(a: int) -> int:
    """Return `abs(a)`."""
    return sub_int(0, a) if a < 0 else a


@register_jitable
def floordiv_int(a: int, b: int) -> int:
    """Return `a // b`."""
    if b == 0:
        raise ZeroDivisionError
    return sub_int(0, a) if b == -1 else a // b


@register_jitable
def mod_int(a: int, b: int) -> int:
    """Return `a % b`."""
    if b == 0:
        raise ZeroDivisionError
    return 0 if b == -1 else a % b


@register_jitable
def pow_int(a: int, b: int) -> int:
    """Return `a ** b`."""
    if b < 0:
        raise ArithmeticError  # Python's result is a float
    result = 1
    while b:
        if b & 1:
            result = mul_int(result, a)
        b >>= 1
        if b:
            a = mul_int(a, a)
    return result


@register_jitable
def lshift_int(a: int, b: int) -> int:
    """Return `a << b`."""
    if b < 0:
        raise ValueError
    if a == 0:
        return 0
    if b > 62 or ((a << b) >> b) != a:
        raise OverflowError
    return a << b


@register_jitable
def rshift_int(a: int, b: int) -> int:
    """Return `a >> b`."""
    if b < 0:
        raise ValueError
    return a >> builtins.min(b, 63)


_unsigned: Final = llvm_function(types.uint64, types.int64)(lambda context, builder, value: value)


@register_jitable
def truediv_int(a: int, b: int) -> float:
    """Return `a / b`, correctly rounded as in Python, also if a float cannot hold a or b exactly."""
    if b == 0:
        raise ZeroDivisionError
    if -_EXACT <= a <= _EXACT and -_EXACT <= b <= _EXACT:
        return builtins.float(a) / builtins.float(b)
    # At least 55 bits of the quotient; the last bit is set if there is a remainder.
    divisor = _unsigned(b if b > 0 else -b)
    rest = _unsigned(a if a > 0 else -a)
    quotient = rest // divisor
    rest %= divisor
    scale = 0
    while quotient < types.uint64(1 << 54) and (rest != types.uint64(0) or quotient != types.uint64(0)):
        # The remainder is below 2**63, so doubling it does not overflow.
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


def c_function(name: str, count: int) -> types.ExternalFunction:
    """Return the C library's function, which Python also calls, under a name that LLVM does not know.

    If LLVM knew the name, it would replace calls such as `pow(x, 2.0)` by code whose last digit may differ.

    Args:
        name: Name of the function in the C library.
        count: Number of its arguments, all floats.
    """
    function = getattr(ctypes.CDLL(None), name)
    llvmlite.binding.add_symbol(f"foldflight_c_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(f"foldflight_c_{name}", signature(types.float64, *[types.float64] * count))


_c_pow: Final = c_function("pow", 2)
_c_fmod: Final = c_function("fmod", 2)


@register_jitable
def pow_float(a: float, b: float) -> float:
    """Return `a ** b`: CPython's float_pow, case by case."""
    if b == 0.0 or a == 1.0:
        return 1.0
    if a != a or b != b:  # noqa: PLR0124 - only NaN differs from itself
        return a if a != a else b  # noqa: PLR0124
    finite = math.isfinite(a) and math.isfinite(b)
    if a == 0.0 and b < 0.0:
        raise ZeroDivisionError
    if a < 0.0 and finite and b != math.floor(b):
        raise ArithmeticError  # Python's result is complex
    result = _c_pow(a, b)
    if finite and math.isinf(result):
        raise OverflowError
    return result


@register_jitable
def mod_float(a: float, b: float) -> float:
    """Return `a % b`, as CPython's float_rem."""
    if b == 0.0:
        raise ZeroDivisionError
    mod = _c_fmod(a, b)
    if mod != 0.0:
        return mod + b if (b < 0.0) != (mod < 0.0) else mod
    return math.copysign(0.0, b)


@register_jitable
def floordiv_float(a: float, b: float) -> float:
    """Return `a // b`, as CPython's float_floor_div."""
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
def truediv_float(a: float, b: float) -> float:
    """Return `a / b`."""
    if b == 0.0:
        raise ZeroDivisionError
    return a / b


@register_jitable
def int_of_float(a: float) -> int:
    """Return `int(a)`."""
    if not (-_HALF <= a < _HALF):
        raise OverflowError  # also NaN
    return types.int64(a)


@register_jitable
def floor_float(a: float) -> int:
    """Return `math.floor(a)`."""
    whole = int_of_float(a)
    return whole - 1 if builtins.float(whole) > a else whole


@register_jitable
def ceil_float(a: float) -> int:
    """Return `math.ceil(a)`."""
    whole = int_of_float(a)
    return whole + 1 if builtins.float(whole) < a else whole


@register_jitable
def round_float(a: float) -> int:
    """Return `round(a)`: halves are rounded to the even number."""
    if builtins.abs(a) >= _EXACT:
        return int_of_float(a)
    below = floor_float(a)
    above = a - builtins.float(below)
    if above > 0.5 or (above == 0.5 and below & 1):
        return below + 1
    return below


@register_jitable
def round_int(a: int, places: int) -> int:
    """Return `round(a, places)` of a whole number, halves to the even number."""
    if places >= 0:
        return a
    if places < -18:
        raise ValueError
    unit = 10**-places
    whole = a // unit
    rest = a - whole * unit
    if rest > unit - rest or (rest == unit - rest and whole & 1):
        whole += 1
    return mul_int(whole, unit)


@register_jitable
def sqrt(a: float) -> float:
    """Return `math.sqrt(a)`."""
    if a < 0.0:
        raise ValueError
    return math.sqrt(a)


@register_jitable
def order(a: int, b: float) -> float:
    """Compare an int with a float exactly. Return -1.0, 0.0 or 1.0, or NaN if b is NaN."""
    if b != b:  # noqa: PLR0124 - only NaN differs from itself
        return b
    if b >= _HALF:
        return -1.0
    if b < -_HALF:
        return 1.0
    whole = types.int64(b)
    if a != whole:
        return -1.0 if a < whole else 1.0
    return builtins.float(whole) - b


@register_jitable
def index_of(index: int, length: int) -> int:
    """Return the position of an item of a sequence. Raises ValueError where Python raises IndexError."""
    if not -length <= index < length:
        raise ValueError
    return index + length if index < 0 else index


@register_jitable
def bound_of(index: int, length: int) -> int:
    """Return a bound of a slice as a position in a sequence, or its end."""
    return max(0, index + length) if index < 0 else min(index, length)


@register_jitable
def steps_of(start: int, stop: int, step: int, length: int) -> tuple[int, int, int]:
    """Return the first position of a slice with a step, the step, and the number of positions."""
    if step == 0:
        raise ValueError
    step = max(step, -_INT_MAX)  # as in CPython, so that it can be negated
    least, most = (-1, length - 1) if step < 0 else (0, length)
    first = max(least, start + length) if start < 0 else min(start, most)
    last = max(least, stop + length) if stop < 0 else min(stop, most)
    if step < 0:
        return first, step, (first - last - 1) // -step + 1 if last < first else 0
    return first, step, (last - first - 1) // step + 1 if first < last else 0


@register_jitable
def bit_count(a: int) -> int:
    """Return `a.bit_count()`."""
    bits_left, count = a if a >= 0 else -a, 0  # the smallest int64 is its own negative, with one bit
    while bits_left != 0:
        bits_left &= bits_left - 1
        count += 1
    return count


@register_jitable
def bit_length(a: int) -> int:
    """Return `a.bit_length()`."""
    bits_left, length = a if a >= 0 else -a, 0
    if bits_left < 0:
        return 64
    while bits_left != 0:
        bits_left >>= 1
        length += 1
    return length
