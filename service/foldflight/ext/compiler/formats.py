"""Texts of values with a format, as in f"{price:.2f}", `"%5d" % n` and `strftime`, and the shortest text of a float.

A float is a whole number of 53 bits times a power of two. So its digits are found by whole numbers of 128 bits, and
they are those that Python writes, to the last one. The interpreter handles texts with an exponent, of infinity and of
NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import cgutils, types

from foldflight.ext.compiler import decimals
from foldflight.ext.compiler.arithmetic import mul_int
from foldflight.ext.compiler.control_block import store_byte
from foldflight.ext.compiler.datetimes import civil, day_of_year
from foldflight.ext.compiler.generated import llvm_function, register_jitable
from foldflight.ext.compiler.string_ops import allocate, copy_text, put_digits, text_at
from foldflight.ext.compiler.strings import byte_at, character_count, length_of, text_constant
from foldflight.ext.compiler.value_types import CONVERTERS, as_number, decode_kind, implementation, inner_kind
from foldflight.fold.machine_values import DECIMALS, scale_of
from foldflight.fold.mode import Unsupported

_SPEC: Final = re.compile(
    r"(?:(?P<fill>.)?(?P<align>[<>=^]))?(?P<sign>[-+ ])?(?P<alternate>#)?(?P<zero>0)?(?P<width>\d+)?(?P<group>,)?"
    r"(?:\.(?P<precision>\d+))?(?P<type>[bdfFosxX%])?",
    re.DOTALL,
)
_PERCENT: Final = re.compile(
    r"%(?:(?P<percent>%)|(?P<flags>[-+ 0#]*)(?P<width>\d+)?(?:\.(?P<precision>\d+))?(?P<type>[sdifxX]))"
)
_BASES: Final = {"b": 2, "o": 8, "x": 16, "X": 16}
_WIDTH_MAX: Final = 1 << 10
_PLACES_MAX: Final = 17
_DIGITS_MAX: Final = 18  # decimal digits that always fit an int64
_TENS: Final = tuple(10**digits for digits in range(_DIGITS_MAX + 1))
_EXACT_MAX: Final = 1 << 53  # floats represent whole numbers up to this one exactly
_EXACT_TENS: Final = tuple(10.0**digits for digits in range(23))
_DAY: Final = 86_400_000_000  # microseconds
# By directive of `strftime`: its code, and the number of its digits.
_DIRECTIVES: Final = {
    "Y": (-1, 4), "m": (-2, 2), "d": (-3, 2), "H": (-4, 2), "M": (-5, 2), "S": (-6, 2), "f": (-7, 6), "y": (-8, 2),
    "j": (-9, 3),
}  # fmt: skip
_OF_DAYS: Final = "Ymdyj"
_OF_CLOCKS: Final = "HMSf"


@dataclass(frozen=True)
class _Spec:
    """A format, as Python's mini-language has it."""

    fill: int
    align: str
    sign: str
    prefix: int
    width: int
    group: bool
    precision: int
    type: str


def _spec_of(text: str) -> _Spec:
    """Return a format. Raises Unsupported for formats that are not compiled, or that Python refuses."""
    match = _SPEC.fullmatch(text)
    if match is None:
        raise Unsupported(f"it uses the format {text!r}, which is not compiled")
    fill, width, precision = match["fill"] or " ", int(match["width"] or 0), match["precision"]
    align = match["align"] or ("=" if match["zero"] else "")
    fill = "0" if match["zero"] and not match["fill"] else fill
    prefix = ord(match["type"] or "d") if match["alternate"] else 0
    is_refused = ord(fill) >= 0x80 or width > _WIDTH_MAX or (match["group"] and fill == "0" and width > 0)
    is_refused = is_refused or (match["alternate"] and match["type"] not in _BASES)
    is_refused = is_refused or (match["group"] and match["type"] in (*_BASES, "s")) or int(precision or 0) > _WIDTH_MAX
    if is_refused:
        raise Unsupported(f"it uses the format {text!r}, which is not compiled")
    actual = -1 if precision is None else int(precision)
    is_grouped = match["group"] is not None
    return _Spec(ord(fill), align, match["sign"] or "-", prefix, width, is_grouped, actual, match["type"] or "")


# --- digits of floats -------------------------------------------------------------------------------------------------

_SCALED: Final = types.Tuple([types.int64, types.boolean])


@llvm_function(_SCALED, types.float64, types.int64)
def decimal_digits(context: Any, builder: Any, a: Any, places: Any) -> Any:
    """Return a finite float of at least 0, times ten to the power of `places`, as a whole number, halves to even.

    It is -1 if it has more than 18 digits. Beside it: whether no other float is nearer to the number of these digits.
    """
    word, wide = llvm.IntType(64), llvm.IntType(128)
    bits = builder.bitcast(a, word)
    exponent = builder.and_(builder.lshr(bits, word(52)), word(0x7FF))
    fraction = builder.and_(bits, word((1 << 52) - 1))
    is_normal = builder.icmp_unsigned("!=", exponent, word(0))
    whole = builder.select(is_normal, builder.or_(fraction, word(1 << 52)), fraction)
    down = builder.sub(word(1075), builder.select(is_normal, exponent, word(1)))  # the float is whole / 2**down
    is_large = builder.icmp_signed("<", down, word(0))
    # Below, the product has fewer than 127 bits: 53 and 73 of 10**22, or 63 and 57 of 10**17.
    limit = builder.select(is_large, word(_PLACES_MAX), word(len(_EXACT_TENS) - 1))
    is_far = builder.or_(builder.icmp_signed("<", down, word(-10)), builder.icmp_signed(">", places, limit))
    is_far = builder.or_(is_far, builder.icmp_signed("<", places, word(0)))
    up = builder.select(builder.and_(is_large, builder.not_(is_far)), builder.neg(down), word(0))
    # Of a product of fewer than 127 bits more than 126 leave nothing, and it is less than a half, too.
    down = builder.select(is_large, word(0), builder.select(builder.icmp_signed(">", down, word(126)), word(126), down))
    tens = llvm.Constant(llvm.ArrayType(wide, len(_EXACT_TENS)), [10**each for each in range(len(_EXACT_TENS))])
    table = cgutils.global_constant(builder, "foldflight_tens", tens)
    power = builder.load(builder.gep(table, [word(0), builder.select(is_far, word(0), places)]))
    product = builder.mul(builder.shl(builder.zext(whole, wide), builder.zext(up, wide)), power)
    shift = builder.zext(down, wide)
    one = builder.shl(wide(1), shift)
    quotient = builder.lshr(product, shift)
    rest = builder.sub(product, builder.shl(quotient, shift))
    twice = builder.shl(rest, wide(1))
    is_odd = builder.trunc(quotient, llvm.IntType(1))
    rounds_up = builder.icmp_unsigned(">", twice, one)
    rounds_up = builder.or_(rounds_up, builder.and_(builder.icmp_unsigned("==", twice, one), is_odd))
    quotient = builder.add(quotient, builder.zext(rounds_up, wide))
    error = builder.select(rounds_up, builder.sub(one, rest), rest)
    # Half the distance to the next float is half a unit of `whole`. Below a power of two the next one is nearer.
    is_nearest = builder.icmp_unsigned("<", builder.shl(error, wide(1)), power)
    is_nearest = builder.and_(is_nearest, builder.icmp_unsigned("!=", whole, word(1 << 52)))
    is_nearest = builder.or_(is_nearest, builder.icmp_unsigned("==", error, wide(0)))
    is_far = builder.or_(is_far, builder.icmp_unsigned(">=", quotient, wide(10**_DIGITS_MAX)))
    digits = builder.select(is_far, word(-1), builder.trunc(quotient, word))
    return context.make_tuple(builder, _SCALED, [digits, builder.and_(is_nearest, builder.not_(is_far))])


@register_jitable
def _rounded_digits(magnitude: float, places: int) -> int:
    """Return the digits of a float with a number of places after the point. Raises if they are too many."""
    if not magnitude < math.inf:
        raise ValueError  # infinity or NaN
    digits = decimal_digits(magnitude, places)[0]
    if digits < 0:
        raise OverflowError
    return digits


@register_jitable
def _shortest_digits(magnitude: float) -> tuple[int, int]:
    """Return the fewest digits that only this float is nearest to, and how many are after the point: 0 or more."""
    if magnitude == 0.0:
        return 0, 0
    if not 1e-4 <= magnitude < 1e16:
        raise ValueError  # Python writes an exponent, inf or nan
    for places in range(22):
        digits, is_nearest = decimal_digits(magnitude, places)
        if is_nearest:
            return digits, places
    raise ValueError


@register_jitable
def _is_negative(a: float) -> bool:
    return math.copysign(1.0, a) < 0


@register_jitable
def round_to(a: float, places: int) -> float:
    """Implement `round(a, places)`: Python, too, rounds the exact value to digits, and reads them as a float."""
    if places < 0:
        raise ValueError
    digits = _rounded_digits(math.fabs(a), places)
    if digits > _EXACT_MAX:
        raise OverflowError
    return math.copysign(digits / _EXACT_TENS[places], a)


# --- the layout of a number -------------------------------------------------------------------------------------------


@register_jitable
def _fill(address: int, byte: int, count: int) -> int:
    for offset in range(count):
        store_byte(address + offset, byte)
    return address + count


@register_jitable
def _layout(
    number: int, base: int, letters: int, places: int, sign: int, prefix: int, suffix: int, group: bool,
    fill: int, align: int, width: int,
) -> int:  # fmt: skip
    """Write a number of at least 0, of whose digits `places` are after the point.

    Bytes that are 0 are omitted. `align` is 0 for the left, 1 for the right, 2 for the middle, 3 for behind the sign.
    """
    digits, rest = 1, number // base
    while rest > 0:
        rest //= base
        digits += 1
    digits = max(digits, places + 1)
    whole = digits - places
    commas = (whole - 1) // 3 if group else 0
    length = digits + commas + (places > 0) + (sign > 0) + 2 * (prefix > 0) + (suffix > 0)
    padding = max(width - length, 0)
    before = padding // 2 if align == 2 else padding if align == 1 else 0
    start = allocate(length + padding)
    address = _fill(start, fill, before)
    if sign > 0:
        address = _fill(address, sign, 1)
    if prefix > 0:
        address = _fill(_fill(address, 0x30, 1), prefix, 1)
    if align == 3:
        address = _fill(address, fill, padding)
    end = address + digits + commas + (places > 0)
    at = end
    for index in range(digits):
        if places > 0 and index == places:
            at -= 1
            store_byte(at, 0x2E)
        if group and index > places and (index - places) % 3 == 0:
            at -= 1
            store_byte(at, 0x2C)
        digit = number % base
        number //= base
        at -= 1
        store_byte(at, 0x30 + digit if digit < 10 else letters + digit - 10)
    if suffix > 0:
        end = _fill(end, suffix, 1)
    _fill(end, fill, padding - before if align in (0, 2) else 0)
    return text_at(start, length + padding)


def _number_of(spec: _Spec) -> Any:
    """Return `text(digits, places, is_negative)`, which lays out a number."""
    base, letters = _BASES.get(spec.type, 10), 0x41 if spec.type == "X" else 0x61
    positive = {"-": 0, "+": 0x2B, " ": 0x20}[spec.sign]
    align, suffix = {"<": 0, ">": 1, "": 1, "^": 2, "=": 3}[spec.align], 0x25 if spec.type == "%" else 0
    prefix, group, fill, width = spec.prefix, spec.group, spec.fill, spec.width

    @register_jitable
    def text(digits: int, places: int, is_negative: bool) -> int:
        sign = 0x2D if is_negative else positive
        return _layout(digits, base, letters, places, sign, prefix, suffix, group, fill, align, width)

    return text


def _of_int(spec: _Spec) -> Any:
    text = _number_of(spec)
    if spec.precision >= 0 or spec.type == "s":
        raise Unsupported("it writes an int with a precision, but no type, or as a text")

    def write(number: int) -> int:
        if number == -(1 << 63):
            raise ValueError  # its magnitude is no int64
        return text(abs(number), 0, number < 0)

    return write


def _of_float(spec: _Spec) -> Any:
    text, places, factor = _number_of(spec), spec.precision, 100.0 if spec.type == "%" else 1.0
    if spec.type and spec.type not in "fF%":
        raise Unsupported(f"it writes a float with the format {spec.type}")
    if not spec.type and places >= 0:
        raise Unsupported("it writes a float with a precision, but no type: add f, as in .2f")

    if not spec.type:

        def write_shortest(a: float) -> int:
            digits, actual = _shortest_digits(math.fabs(a))
            return text(digits * 10 if actual == 0 else digits, max(actual, 1), _is_negative(a))

        return write_shortest
    places = 6 if places < 0 else places

    def write_fixed(a: float) -> int:
        return text(_rounded_digits(math.fabs(a * factor), places), places, _is_negative(a))

    return write_fixed


def _of_decimal(spec: _Spec, scale: int) -> Any:
    if spec.type not in ("f", "F") or spec.precision < 0 or abs(spec.precision - scale) > _DIGITS_MAX:
        raise Unsupported("it writes a decimal without a number of places; add it, as in .2f")
    text, places = _number_of(spec), spec.precision
    more, less = max(places - scale, 0), max(scale - places, 0)
    raw, to_word, magnitude_of, shorten = (
        decimals.as_scale,
        decimals.to_word,
        decimals.magnitude,
        decimals.round_half_even,
    )
    is_less, times, whole = decimals.COMPARISONS["<"], _TENS[more], CONVERTERS["decimal0"]

    def write(a: Any) -> int:
        number = raw(a, 0)
        magnitude = magnitude_of(number)
        if less > 0:
            magnitude = shorten(magnitude, less)
        return text(mul_int(to_word(magnitude), times), places, is_less(number, whole(0)))

    return write


def _of_text(spec: _Spec) -> Any:
    if spec.align == "=" or spec.sign != "-" or spec.prefix or spec.group or spec.type not in ("", "s"):
        raise Unsupported("it writes a text with a format of numbers")
    align, fill, width = {"<": 0, "": 0, ">": 1, "^": 2}[spec.align], spec.fill, spec.width
    if spec.precision >= 0:
        raise Unsupported("it writes a text with a precision; take a part of it, as in name[:8]")

    def write(a: int) -> int:
        padding = max(width - character_count(a), 0)
        if padding == 0:
            return a
        before = padding // 2 if align == 2 else padding if align == 1 else 0
        start = allocate(length_of(a) + padding)
        _fill(copy_text(_fill(start, fill, before), a), fill, padding - before)
        return text_at(start, length_of(a) + padding)

    return write


# --- dates and times --------------------------------------------------------------------------------------------------


def _codes_of(kind: str, directives: str) -> tuple[tuple[int, ...], int]:
    """Return the bytes of a format of `strftime`, with negative numbers for directives, and the length of its texts."""
    codes: list[int] = []
    length, position = 0, 0
    known_letters = {"date": _OF_DAYS + _OF_CLOCKS, "time": _OF_CLOCKS}.get(kind, _OF_DAYS + _OF_CLOCKS)
    while position < len(directives):
        letter, position = directives[position], position + 1
        if letter == "%":
            letter, position = directives[position : position + 1], position + 1
            if letter in _DIRECTIVES and letter in known_letters:
                codes.append(_DIRECTIVES[letter][0])
                length += _DIRECTIVES[letter][1]
                continue
            if letter != "%":
                raise Unsupported(f"it writes a {kind} with %{letter}, which is not compiled")
        if letter == "\0":
            raise Unsupported("it writes a date or time with a format that has a byte 0")
        codes.extend(letter.encode())
        length += len(letter.encode())
    if not codes or length > _WIDTH_MAX:
        raise Unsupported(f"it writes a {kind} with the format {directives!r}")
    return tuple(codes), length


def _of_moment(kind: str, directives: str) -> Any:
    codes, length = _codes_of(kind, directives)
    is_date, is_time = kind == "date", kind == "time"

    def write(a: int) -> int:
        days = 0 if is_time else a if is_date else a // _DAY
        clock = 0 if is_date else a if is_time else a - a // _DAY * _DAY
        year, month, day = civil(days)
        if year < 1000:
            raise ValueError  # C libraries differ in its zeros
        start = allocate(length)
        at = start
        for index in range(len(codes)):
            code = codes[index]
            if code >= 0:
                at = _fill(at, code, 1)
            elif code == -1:
                at = put_digits(at, year, 4)
            elif code == -2:
                at = put_digits(at, month, 2)
            elif code == -3:
                at = put_digits(at, day, 2)
            elif code == -4:
                at = put_digits(at, clock // 3_600_000_000, 2)
            elif code == -5:
                at = put_digits(at, clock // 60_000_000 % 60, 2)
            elif code == -6:
                at = put_digits(at, clock // 1_000_000 % 60, 2)
            elif code == -7:
                at = put_digits(at, clock % 1_000_000, 6)
            elif code == -8:
                at = put_digits(at, year % 100, 2)
            else:
                at = put_digits(at, day_of_year(days), 3)
        return text_at(start, length)

    return write


def _iso_of(kind: str, separator: str) -> Any:
    """Return a function that writes a date or time as `isoformat` does, with a separator before the time of day."""
    is_date, is_time, is_instant, between = kind == "date", kind == "time", kind == "instant", ord(separator)

    def write(a: int) -> int:
        days = 0 if is_time else a if is_date else a // _DAY
        clock = 0 if is_date else a if is_time else a - a // _DAY * _DAY
        start = allocate(32)
        at = start
        if not is_time:
            year, month, day = civil(days)
            at = _fill(put_digits(at, year, 4), 0x2D, 1)
            at = put_digits(_fill(put_digits(at, month, 2), 0x2D, 1), day, 2)
        if not is_date and not is_time:
            at = _fill(at, between, 1)
        if not is_date:
            at = _fill(put_digits(at, clock // 3_600_000_000, 2), 0x3A, 1)
            at = _fill(put_digits(at, clock // 60_000_000 % 60, 2), 0x3A, 1)
            at = put_digits(at, clock // 1_000_000 % 60, 2)
            if clock % 1_000_000 > 0:
                at = put_digits(_fill(at, 0x2E, 1), clock % 1_000_000, 6)
        if is_instant:
            at = put_digits(_fill(put_digits(_fill(at, 0x2B, 1), 0, 2), 0x3A, 1), 0, 2)
        return text_at(start, at - start)

    return write


# --- for compiled code ------------------------------------------------------------------------------------------------


def _literal(type_: Any) -> str:
    if not isinstance(type_, types.StringLiteral):
        raise Unsupported("it uses a format that is not constant")
    return str(type_.literal_value)


_PLAIN: Final = _spec_of("")
_MOMENTS: Final = ("date", "timestamp", "instant", "time")


def _write(kind: str, encode: Any) -> Any:
    """Return a function that writes a value of a kind; `encode` takes its number or its decimal."""
    convert, decode, write = CONVERTERS[kind], decode_kind("text"), register_jitable(encode)
    return register_jitable(lambda a: decode(write(as_number(convert(a)))))


@implementation
def text_of(a: Any) -> Any:
    """Implement `str(a)`, which f-strings call, too."""
    kind = inner_kind(a)
    if kind == "text":
        convert = CONVERTERS[kind]
        return lambda a: convert(a)
    if kind == "bool":
        truth, constant = CONVERTERS[kind], text_constant
        return lambda a: constant("True") if truth(a) else constant("False")
    ways = {"int": _of_int(_PLAIN), "float": _of_float(_PLAIN), **{each: _iso_of(each, " ") for each in _MOMENTS}}
    if kind not in ways:
        raise Unsupported(f"it writes a {kind} as a text")
    write = _write(kind, ways[kind])
    return lambda a: write(a)


@implementation
def iso_format(a: Any) -> Any:
    """Implement `a.isoformat()`."""
    kind = inner_kind(a)
    if kind not in _MOMENTS:
        raise Unsupported(f"it uses the attribute isoformat of a {kind}")
    write = _write(kind, _iso_of(kind, "T"))
    return lambda a: write(a)


@implementation(literal=True)
def format_value(a: Any, spec: Any) -> Any:
    """Implement `format(a, spec)` with a constant `spec`, which f-strings call, too."""
    kind, text = inner_kind(a), _literal(spec)
    if not text:
        return lambda a, spec: text_of(a)
    if kind in _MOMENTS:
        write = _write(kind, _of_moment(kind, text))
    elif kind == "float" or (kind in ("int", "bool") and text[-1] in "fF%"):
        write = _write("float", _of_float(_spec_of(text)))
    elif kind in ("int", "bool"):
        write = _write("int", _of_int(_spec_of(text)))
    elif kind in DECIMALS:
        write = _write(kind, _of_decimal(_spec_of(text), scale_of(kind)))
    elif kind == "text":
        write = _write(kind, _of_text(_spec_of(text)))
    else:
        raise Unsupported(f"it writes a {kind} with a format")
    return lambda a, spec: write(a)


@implementation(literal=True)
def format_time(a: Any, directives: Any) -> Any:
    """Implement `a.strftime(directives)`."""
    kind = inner_kind(a)
    if kind not in _MOMENTS:
        raise Unsupported("it uses the attribute strftime of a value")
    write = _write(kind, _of_moment(kind, _literal(directives)))
    return lambda a, directives: write(a)


def pieces_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield the literal texts of `"...%5.1f..." % values`, each with the format of the value behind it, or None.

    Raises:
        Unsupported: The template has a directive that is not compiled.
    """
    position = 0
    literal = ""
    while (start := template.find("%", position)) >= 0:
        match = _PERCENT.match(template, start)
        if match is None:
            raise Unsupported(f"it uses {template[start : start + 3]!r} in a format, which is not compiled")
        literal += template[position:start]
        position = match.end()
        if match["percent"]:
            literal += "%"
            continue
        flags, width = match["flags"], match["width"] or ""
        type_ = "d" if match["type"] == "i" else match["type"]
        align = "<" if "-" in flags else ">" if "0" not in flags or type_ == "s" else ""
        sign = "+" if "+" in flags else " " if " " in flags else ""
        if "#" in flags or (match["precision"] and type_ != "f") or (sign and type_ in ("s", "x", "X")):
            raise Unsupported(f"it uses {match[0]!r} in a format, which is not compiled")
        zero = "0" if "0" in flags and not align else ""
        places = f".{match['precision'] or (6 if match['precision'] is None else 0)}" if type_ == "f" else ""
        yield literal, f"{align if width else ''}{sign}{zero}{width}{places}{type_}"
        literal = ""
    yield literal + template[position:], None


def digits_of(spec: str) -> Any:
    """Return the implementation of `bin`, `hex` or `oct`."""
    write = _write("int", _of_int(_spec_of(spec)))

    @implementation
    def choose(a: Any) -> Any:
        if inner_kind(a) not in ("int", "bool"):
            raise Unsupported(f"it writes the digits of a {inner_kind(a)}")
        return lambda a: write(a)

    return choose


def _justify(name: str, align: int) -> Any:
    """Return the implementation of `ljust` or `rjust` of a text, with spaces or another character."""

    @implementation
    def choose(a: Any, width: Any, fill: Any = None) -> Any:
        is_plain = fill is None or isinstance(fill, (types.Omitted, types.NoneType))
        if inner_kind(a) != "text" or inner_kind(width) != "int" or not (is_plain or inner_kind(fill) == "text"):
            raise Unsupported(f"{name} of {a} and {width}")
        convert, decode, whole = CONVERTERS["text"], decode_kind("text"), CONVERTERS["int"]

        def justify(a: Any, width: Any, fill: Any = None) -> Any:
            number = as_number(convert(a))
            padding = whole(width) - character_count(number)
            byte = 0x20
            if not is_plain:
                other = as_number(convert(fill))
                if length_of(other) != 1:
                    raise ValueError  # no character, or one beyond ASCII
                byte = byte_at(other, 0)
            if padding <= 0:
                return decode(number)
            if padding > _WIDTH_MAX:
                raise ValueError
            start = allocate(length_of(number) + padding)
            end = copy_text(_fill(start, byte, padding if align == 1 else 0), number)
            _fill(end, byte, padding if align == 0 else 0)
            return decode(text_at(start, length_of(number) + padding))

        return justify

    return choose


METHODS: Final = {
    "isoformat": iso_format,
    "ljust": _justify("ljust", 0),
    "rjust": _justify("rjust", 1),
    "strftime": format_time,
}
