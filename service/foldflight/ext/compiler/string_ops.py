"""Compiled operations that create strings or iterate over them: `+`, `upper`, `strip`, `split`, `join`, `int(text)`.

The interpreter handles rows in which their result depends on characters outside of ASCII (`"ß".upper()` is "SS").
"""

from __future__ import annotations

from typing import Any, Final

from numba.core import types

from foldflight.ext.compiler import memory
from foldflight.ext.compiler.arena import Contents, Element
from foldflight.ext.compiler.containers import ContainerType, container_at, make_count
from foldflight.ext.compiler.control_block import store_byte, text_room
from foldflight.ext.compiler.generated import register_jitable
from foldflight.ext.compiler.records import Items
from foldflight.ext.compiler.strings import (
    byte_at,
    character_count,
    includes_at,
    length_of,
    string_operation,
    substring,
    text_kind,
)
from foldflight.ext.compiler.value_types import (
    CONVERTERS,
    EncodedType,
    as_number,
    decode_kind,
    implementation,
    inner_kind,
    kind_of,
    lower_iterators,
)
from foldflight.fold.machine_values import ADDRESS_BITS, LENGTH_MAX
from foldflight.fold.mode import Unsupported

_ADDRESS: Final = (1 << ADDRESS_BITS) - 1
_DIGITS_MAX: Final = 18  # decimal digits that always fit an int64
_EXACT_DIGITS: Final = 15  # decimal digits of whole numbers that are floats exactly
_EXACT_POWER: Final = 22  # the largest power of ten that is a float exactly


@register_jitable
def copy_text(address: int, a: int) -> int:
    """Copy a string to an address, and return the next free address."""
    for offset in range(length_of(a)):
        store_byte(address + offset, byte_at(a, offset))
    return address + length_of(a)


@register_jitable
def allocate(length: int) -> int:
    """Return the address of memory for a new string. Raises ValueError if it is too long for compiled code."""
    if length > LENGTH_MAX:
        raise ValueError  # the interpreter handles longer ones
    return text_room(length)


@register_jitable
def text_at(address: int, length: int) -> int:
    """Return the integer form of the string at an address."""
    return address | length << ADDRESS_BITS


@register_jitable
def _plus(a: int, b: int) -> int:
    if a == 0 or b == 0:
        return a + b
    address = allocate(length_of(a) + length_of(b))
    copy_text(copy_text(address, a), b)
    return text_at(address, length_of(a) + length_of(b))


concatenate: Final = string_operation("+", _plus, creates=True)


def _of_one(name: str, function: Any) -> Any:
    """Return the implementation of a method of a text or bytes: `function(number, is_text)` returns the new one."""

    @implementation
    def choose(a: Any) -> Any:
        kind = text_kind(name, a)
        convert, decode, is_text = CONVERTERS[kind], decode_kind(kind), kind == "text"
        return lambda a: decode(function(as_number(convert(a)), is_text))

    return choose


def _case_method(name: str, first: int, change: int) -> Any:
    """Return the implementation of `upper` or `lower`: it changes the 26 letters from `first` on."""

    @register_jitable
    def change_case(number: int, is_text: bool) -> int:
        length = length_of(number)
        if length == 0:
            return number
        address = allocate(length)
        for offset in range(length):
            byte = byte_at(number, offset)
            if is_text and byte >= 0x80:
                raise ValueError  # the interpreter handles other letters
            store_byte(address + offset, byte + change if first <= byte < first + 26 else byte)
        return text_at(address, length)

    return _of_one(name, change_case)


# --- white space ------------------------------------------------------------------------------------------------------


@register_jitable
def _space_at(a: int, offset: int, end: int, is_text: bool) -> int:
    """Return the number of bytes of a white-space character at an offset; 0 if another character is there."""
    byte = byte_at(a, offset)
    if byte == 0x20 or 0x09 <= byte <= 0x0D or (is_text and 0x1C <= byte <= 0x1F):
        return 1
    if not is_text or byte < 0xC2 or offset + 1 >= end:
        return 0
    second = byte_at(a, offset + 1)
    if byte == 0xC2:
        return 2 if second in (0x85, 0xA0) else 0
    if byte not in (0xE1, 0xE2, 0xE3) or offset + 2 >= end:
        return 0
    code = (byte & 0x0F) << 12 | (second & 0x3F) << 6 | (byte_at(a, offset + 2) & 0x3F)
    is_space = code in (0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000) or 0x2000 <= code <= 0x200A
    return 3 if is_space else 0


@register_jitable
def _start_of(a: int, start: int, end: int, is_text: bool) -> int:
    """Return the offset of the first character that is no white space."""
    while start < end:
        width = _space_at(a, start, end, is_text)
        if width == 0:
            break
        start += width
    return start


@register_jitable
def _end_of(a: int, start: int, end: int, is_text: bool) -> int:
    """Return the offset after the last character that is no white space."""
    while start < end:
        begin = end - 1
        while is_text and begin > start and (byte_at(a, begin) & 0xC0) == 0x80:
            begin -= 1
        if _space_at(a, begin, end, is_text) == 0:
            break
        end = begin
    return end


@register_jitable
def _has_byte(a: int, byte: int, is_text: bool) -> bool:
    is_found = False
    for offset in range(length_of(a)):
        each = byte_at(a, offset)
        if is_text and each >= 0x80:
            raise ValueError  # the interpreter handles characters of several bytes
        is_found = is_found or each == byte
    return is_found


def _strip_method(name: str, *, left: bool, right: bool) -> Any:
    """Return the implementation of `strip`, `lstrip` or `rstrip`, of white space or of the characters of a text."""

    @implementation
    def choose(a: Any, b: Any = None) -> Any:
        kind = text_kind(name, a)
        convert, decode, is_text = CONVERTERS[kind], decode_kind(kind), kind == "text"
        at_spaces = b is None or isinstance(b, (types.Omitted, types.NoneType))
        if not at_spaces:
            text_kind(name, a, b)

        def strip(a: Any, b: Any = None) -> Any:
            number = as_number(convert(a))
            start, end = 0, length_of(number)
            if at_spaces:
                start = _start_of(number, 0, end, is_text) if left else 0
                end = _end_of(number, start, end, is_text) if right else end
            else:
                other = as_number(convert(b))
                while left and start < end and _has_byte(other, byte_at(number, start), is_text):
                    start += 1
                while right and start < end and _has_byte(other, byte_at(number, end - 1), is_text):
                    end -= 1
            return decode(substring(number, start, end))

        return strip

    return choose


# --- classes of characters --------------------------------------------------------------------------------------------


@register_jitable
def _is_letter(byte: int) -> bool:
    return 0x41 <= byte <= 0x5A or 0x61 <= byte <= 0x7A


@register_jitable
def _is_digit(byte: int) -> bool:
    return 0x30 <= byte <= 0x39


def _all_are(name: str, is_one: Any) -> Any:
    """Return the implementation of `isdigit` and the like: whether there are bytes, and all are of a class."""

    @implementation
    def choose(a: Any) -> Any:
        kind = text_kind(name, a)
        if kind == "bytes" and not hasattr(bytes, name):
            raise Unsupported(f"it uses the attribute {name} of bytes")
        convert, is_text = CONVERTERS[kind], kind == "text"

        def all_are(a: Any) -> bool:
            number = as_number(convert(a))
            holds = length_of(number) > 0
            for offset in range(length_of(number)):
                byte = byte_at(number, offset)
                if is_text and byte >= 0x80:
                    raise ValueError  # the interpreter handles other letters and digits
                holds = holds and is_one(byte)
            return holds

        return all_are

    return choose


def _is_cased(name: str, first: int, other: int) -> Any:
    """Return the implementation of `isupper` or `islower`: a letter from `first` on, and none from `other` on."""

    @implementation
    def choose(a: Any) -> Any:
        kind = text_kind(name, a)
        convert, is_text = CONVERTERS[kind], kind == "text"

        def is_cased(a: Any) -> bool:
            number = as_number(convert(a))
            some, none = False, True
            for offset in range(length_of(number)):
                byte = byte_at(number, offset)
                if is_text and byte >= 0x80:
                    raise ValueError  # the interpreter handles other letters
                some = some or first <= byte < first + 26
                none = none and not other <= byte < other + 26
            return some and none

        return is_cased

    return choose


def _title_case(name: str, *, words: bool) -> Any:
    """Return the implementation of `title` or `capitalize`: first letters are in upper case, others in lower case."""

    @register_jitable
    def title_case(number: int, is_text: bool) -> int:
        length = length_of(number)
        if length == 0:
            return number
        address, is_first = allocate(length), True
        for offset in range(length):
            byte = byte_at(number, offset)
            if is_text and byte >= 0x80:
                raise ValueError  # the interpreter handles other letters
            is_letter = _is_letter(byte)
            store_byte(address + offset, (byte & ~0x20 if is_first else byte | 0x20) if is_letter else byte)
            is_first = words and not is_letter
        return text_at(address, length)

    return _of_one(name, title_case)


# --- numbers ----------------------------------------------------------------------------------------------------------


@register_jitable
def put_digits(address: int, number: int, digits: int) -> int:
    """Write the last digits of a number to an address, and return the next free address."""
    for offset in range(digits):
        store_byte(address + digits - 1 - offset, 0x30 + number % 10)
        number //= 10
    return address + digits


@implementation
def _zfill(a: Any, width: Any) -> Any:
    """Implement `a.zfill(width)`."""
    kind = text_kind("zfill", a)
    if kind_of(width) != "int":
        raise Unsupported(f"zfill of {kind} and {width}")
    convert, decode, size = CONVERTERS[kind], decode_kind(kind), character_count if kind == "text" else length_of

    def zfill(a: Any, width: Any) -> Any:
        number = as_number(convert(a))
        zeros = width - size(number)
        if zeros <= 0:
            return decode(number)
        length = length_of(number)
        if zeros > LENGTH_MAX:
            raise ValueError
        address = allocate(length + zeros)
        sign = 1 if length > 0 and byte_at(number, 0) in (0x2B, 0x2D) else 0
        if sign:
            store_byte(address, byte_at(number, 0))
        for offset in range(zeros):
            store_byte(address + sign + offset, 0x30)
        copy_text(address + sign + zeros, substring(number, sign, length))
        return decode(text_at(address, length + zeros))

    return zfill


@register_jitable
def _number_span(text: int) -> tuple[int, int, bool]:
    """Return where a number begins and ends, without spaces around it and its sign, and whether it is negative."""
    end = length_of(text)
    start = _start_of(text, 0, end, True)
    end = _end_of(text, start, end, True)
    for offset in range(length_of(text)):
        if 0x1C <= byte_at(text, offset) <= 0x1F:
            raise ValueError  # `strip` removes these separators, but `int` and `float` reject them
    is_negative = start < end and byte_at(text, start) == 0x2D
    if start < end and byte_at(text, start) in (0x2B, 0x2D):
        start += 1
    return start, end, is_negative


@implementation
def number_of(a: Any) -> Any:
    """Implement `int(a)` of a text: up to 18 ASCII digits. The interpreter handles all others."""
    convert = CONVERTERS[text_kind("int()", a)]
    if kind_of(a) != "text":
        raise Unsupported(f"int() of {kind_of(a)}")

    def number(a: Any) -> int:
        text = as_number(convert(a))
        start, end, is_negative = _number_span(text)
        magnitude, digits, may_be_line = 0, 0, False
        for offset in range(start, end):
            byte = byte_at(text, offset)
            if byte == 0x5F and may_be_line:
                may_be_line = False
                continue
            if not 0x30 <= byte <= 0x39 or digits == _DIGITS_MAX:
                raise ValueError
            magnitude, digits, may_be_line = 10 * magnitude + byte - 0x30, digits + 1, True
        if not may_be_line:  # there is no digit, or an underscore at the end
            raise ValueError
        return -magnitude if is_negative else magnitude

    return number


@implementation
def float_of(a: Any) -> Any:
    """Implement `float(a)` of a text whose digits and power of ten are floats exactly, so that one operation rounds.

    The interpreter handles all others, such as more than fifteen digits, `nan`, and underscores.
    """
    if kind_of(a) != "text":
        raise Unsupported(f"float() of {kind_of(a)}")
    convert = CONVERTERS["text"]

    def number(a: Any) -> float:
        text = as_number(convert(a))
        start, end, is_negative = _number_span(text)
        digits, count, power, has_point, offset = 0, 0, 0, False, start
        while offset < end:
            byte = byte_at(text, offset)
            if 0x30 <= byte <= 0x39:
                digits, count = 10 * digits + byte - 0x30, count + 1
                power -= has_point
            elif byte == 0x2E and not has_point:
                has_point = True
            else:
                break
            offset += 1
        if count == 0 or count > _EXACT_DIGITS:
            raise ValueError
        if offset < end:
            power += _exponent(text, offset, end)
        if not -_EXACT_POWER <= power <= _EXACT_POWER:
            raise ValueError
        scale = 1.0
        for _ in range(abs(power)):
            scale *= 10.0
        magnitude = digits / scale if power < 0 else digits * scale
        return -magnitude if is_negative else magnitude

    return number


@register_jitable
def _exponent(text: int, offset: int, end: int) -> int:
    """Return the number of an exponent such as `e-3`, of at most two digits."""
    if byte_at(text, offset) not in (0x45, 0x65):
        raise ValueError
    offset += 1
    is_negative = offset < end and byte_at(text, offset) == 0x2D
    if offset < end and byte_at(text, offset) in (0x2B, 0x2D):
        offset += 1
    if not 1 <= end - offset <= 2:
        raise ValueError
    exponent = 0
    while offset < end:
        if not 0x30 <= byte_at(text, offset) <= 0x39:
            raise ValueError
        exponent, offset = 10 * exponent + byte_at(text, offset) - 0x30, offset + 1
    return -exponent if is_negative else exponent


# --- parts ------------------------------------------------------------------------------------------------------------


@implementation
def _split(a: Any, b: Any = None, most: Any = -1) -> Any:
    """Implement `a.split()`, `a.split(b)` and `a.split(b, most)`."""
    kind = text_kind("split", a)
    result = ContainerType(Contents("list", Element((kind,))), changeable=True, temporary=True)
    as_container, convert, is_text = container_at(result), CONVERTERS[kind], kind == "text"
    at_spaces = b is None or isinstance(b, (types.Omitted, types.NoneType))
    if not at_spaces:
        text_kind("split", a, b)
    elif most != -1 and not isinstance(most, types.Omitted):
        raise Unsupported("it splits at white space a number of times")
    count_of_splits = CONVERTERS["int"]

    def split(a: Any, b: Any = None, most: Any = -1) -> Any:
        splits_left = count_of_splits(most)
        number, other, parts = as_number(convert(a)), 0 if at_spaces else as_number(convert(b)), memory.fresh_header()
        if not at_spaces and other == 0:
            raise ValueError
        end, begin, offset = length_of(number), 0, 0
        while offset < end:
            width = length_of(other)
            if at_spaces:
                width = _space_at(number, offset, end, is_text)
            elif offset + width > end or not includes_at(number, other, offset):
                width = 0
            if width > 0 and splits_left != 0:
                splits_left -= 1
                if not at_spaces or begin < offset:
                    memory.append(parts, (substring(number, begin, offset),))
                begin = offset + width
            offset += max(width, 1)
        if not at_spaces or begin < end:
            memory.append(parts, (substring(number, begin, end),))
        return as_container(parts)

    return split


@implementation
def _split_from_right(a: Any, b: Any = None, most: Any = -1) -> Any:
    """Implement `a.rsplit()`, `a.rsplit(b)` and `a.rsplit(b, most)`."""
    kind = text_kind("rsplit", a)
    if b is None or isinstance(b, (types.Omitted, types.NoneType)):
        if most != -1 and not isinstance(most, types.Omitted):
            raise Unsupported("it splits at white space a number of times")
        return lambda a, b=None, most=-1: _split(a)
    text_kind("rsplit", a, b)
    result = ContainerType(Contents("list", Element((kind,))), changeable=True, temporary=True)
    as_container, convert, count_of_splits = container_at(result), CONVERTERS[kind], CONVERTERS["int"]

    def rsplit(a: Any, b: Any = None, most: Any = -1) -> Any:
        splits_left = count_of_splits(most)
        number, other, parts = as_number(convert(a)), as_number(convert(b)), memory.fresh_header()
        if other == 0:
            raise ValueError
        end, width = length_of(number), length_of(other)
        offset = end - width
        while offset >= 0 and splits_left != 0:
            if includes_at(number, other, offset):
                splits_left -= 1
                memory.insert(parts, 0, (substring(number, offset + width, end),))
                end, offset = offset, offset - width
            else:
                offset -= 1
        memory.insert(parts, 0, (substring(number, 0, end),))
        return as_container(parts)

    return rsplit


@implementation
def _join(a: Any, parts: Any) -> Any:
    """Implement `a.join(parts)` of a list."""
    kind = text_kind("join", a)
    if not isinstance(parts, ContainerType) or parts.contents.shape != "list" or parts.contents.key != Element((kind,)):
        raise Unsupported(f"it joins {parts}; lists of texts are compiled")
    convert, decode = CONVERTERS[kind], decode_kind(kind)

    def whole(a: Any, parts: Any) -> Any:
        number = as_number(convert(a))
        length = -length_of(number)
        for part in parts:
            length += length_of(as_number(part)) + length_of(number)
        if length <= 0:
            return decode(0)
        address = allocate(length)
        into = address
        for index, part in enumerate(parts):
            if index > 0:
                into = copy_text(into, number)
            into = copy_text(into, as_number(part))
        return decode(text_at(address, length))

    return whole


@register_jitable
def _count(a: int, b: int) -> int:
    if b == 0:
        raise ValueError  # it is between all characters
    count, offset = 0, 0
    while offset + length_of(b) <= length_of(a):
        if includes_at(a, b, offset):
            count += 1
            offset += length_of(b)
        else:
            offset += 1
    return count


_count_parts: Final = string_operation("count", _count)


@implementation
def count_of(a: Any, b: Any) -> Any:
    """Implement `a.count(b)` of texts or bytes; `b` may be an int for bytes."""
    kind = text_kind("count", a)
    if kind != "bytes" or kind_of(b) != "int":
        return lambda a, b: _count_parts(a, b)
    convert = CONVERTERS[kind]

    def same_bytes(a: Any, b: Any) -> int:
        if not 0 <= b <= 255:
            raise ValueError
        count = 0
        for each in convert(a):
            count += each == b
        return count

    return same_bytes


@implementation
def replace_text(a: Any, old: Any, new: Any) -> Any:
    """Implement `a.replace(old, new)`. The interpreter handles an empty `old`, which is between all characters."""
    kind = text_kind("replace", a, old, new)
    convert, decode = CONVERTERS[kind], decode_kind(kind)

    def replace(a: Any, old: Any, new: Any) -> Any:
        number, old_number, new_number = as_number(convert(a)), as_number(convert(old)), as_number(convert(new))
        count = _count(number, old_number)
        length = length_of(number) + count * (length_of(new_number) - length_of(old_number))
        if count == 0 or length == 0:
            return decode(number if count == 0 else 0)
        address = allocate(length)
        into, offset = address, 0
        while offset < length_of(number):
            if offset + length_of(old_number) <= length_of(number) and includes_at(number, old_number, offset):
                into = copy_text(into, new_number)
                offset += length_of(old_number)
            else:
                store_byte(into, byte_at(number, offset))
                into += 1
                offset += 1
        return decode(text_at(address, length))

    return replace


@implementation
def bytes_of(a: Any) -> Any:
    """Implement `bytes(a)` of a list of ints, a bytearray of fixed length, or bytes."""
    decode = decode_kind("bytes")
    if kind_of(a) == "bytes":
        return lambda a: a
    is_list = isinstance(a, ContainerType) and a.contents.shape == "list" and a.contents.key == Element(("int",))
    if not is_list and not (isinstance(a, Items) and a.kind == "byte"):
        raise Unsupported(f"it calls bytes of {a}")
    size_of = register_jitable(make_count(a)) if is_list else register_jitable(lambda a, size=a.length: size)

    def of_list(a: Any) -> Any:
        length = size_of(a)
        if length == 0:
            return decode(0)
        address = allocate(length)
        for offset, byte in enumerate(a):
            if not 0 <= byte <= 255:
                raise ValueError
            store_byte(address + offset, byte)
        return decode(text_at(address, length))

    return of_list


@implementation
def backwards(a: Any) -> Any:
    """Implement `a[::-1]`."""
    kind = text_kind("[::-1]", a)
    convert, decode, is_text = CONVERTERS[kind], decode_kind(kind), kind == "text"

    def reverse(a: Any) -> Any:
        number = as_number(convert(a))
        length = length_of(number)
        if length == 0:
            return decode(0)
        address, offset = allocate(length), 0
        while offset < length:
            end = _end_of_character(number, offset) if is_text else offset + 1
            copy_text(address + length - end, substring(number, offset, end))
            offset = end
        return decode(text_at(address, length))

    return reverse


@implementation
def repeat(a: Any, count: Any) -> Any:
    """Implement `a * count`."""
    kind = text_kind("*", a)
    convert, decode, times = CONVERTERS[kind], decode_kind(kind), CONVERTERS["int"]

    def repeat_text(a: Any, count: Any) -> Any:
        number, actual = as_number(convert(a)), times(count)
        length = length_of(number)
        if length == 0 or actual <= 0:
            return decode(0)
        if actual > LENGTH_MAX:
            raise ValueError  # the interpreter handles longer ones
        address = allocate(length * actual)
        into = address
        for _ in range(actual):
            into = copy_text(into, number)
        return decode(text_at(address, length * actual))

    return repeat_text


@implementation
def code_of(a: Any) -> Any:
    """Implement `ord(a)` of a text."""
    if inner_kind(a) != "text":
        raise Unsupported(f"it calls ord of {a}")
    convert = CONVERTERS["text"]

    def code(a: Any) -> int:
        number = as_number(convert(a))
        length = length_of(number)
        if length == 0 or _end_of_character(number, 0) != length:
            raise ValueError
        first = byte_at(number, 0)
        if length == 1:
            return first
        code = first & (0x7F >> length)
        for offset in range(1, length):
            code = code << 6 | (byte_at(number, offset) & 0x3F)
        return code

    return code


@implementation
def character_of(a: Any) -> Any:
    """Implement `chr(a)` of an ASCII character; the interpreter handles others."""
    if inner_kind(a) not in ("int", "bool"):
        raise Unsupported(f"it calls chr of {a}")
    convert, decode = CONVERTERS["int"], decode_kind("text")

    def character(a: Any) -> Any:
        code = convert(a)
        if not 0 <= code < 0x80:
            raise ValueError
        address = allocate(1)
        store_byte(address, code)
        return decode(text_at(address, 1))

    return character


METHODS: Final = {
    "capitalize": _title_case("capitalize", words=False),
    "isalnum": _all_are("isalnum", register_jitable(lambda byte: _is_letter(byte) or _is_digit(byte))),
    "isalpha": _all_are("isalpha", _is_letter),
    "isdecimal": _all_are("isdecimal", _is_digit),
    "isdigit": _all_are("isdigit", _is_digit),
    "islower": _is_cased("islower", 0x61, 0x41),
    "isnumeric": _all_are("isnumeric", _is_digit),
    "isupper": _is_cased("isupper", 0x41, 0x61),
    "join": _join,
    "lower": _case_method("lower", 0x41, 0x20),
    "lstrip": _strip_method("lstrip", left=True, right=False),
    "rsplit": _split_from_right,
    "rstrip": _strip_method("rstrip", left=False, right=True),
    "split": _split,
    "strip": _strip_method("strip", left=True, right=True),
    "title": _title_case("title", words=True),
    "upper": _case_method("upper", 0x61, -0x20),
    "zfill": _zfill,
}


# --- loops ------------------------------------------------------------------------------------------------------------


@register_jitable
def _end_of_character(a: int, offset: int) -> int:
    offset += 1
    while offset < length_of(a) and (byte_at(a, offset) & 0xC0) == 0x80:
        offset += 1
    return offset


def _steps(of: EncodedType) -> tuple[Any, Any]:
    """Return two functions for a loop over str or bytes: the next offset, and the character or number at an offset."""
    is_text, decode = of.kind == "text", decode_kind(of.kind)

    def next_offset(a: Any, as_container: Any, last: int) -> int:
        number = as_number(a)
        offset = _end_of_character(number, last) if is_text and last >= 0 else last + 1
        return offset if offset < length_of(number) else -1

    def item(a: Any, offset: int) -> Any:
        number = as_number(a)
        return (
            decode(substring(number, offset, _end_of_character(number, offset))) if is_text else byte_at(number, offset)
        )

    return next_offset, item


lower_iterators(EncodedType, _steps)
