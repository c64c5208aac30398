"""Compiled operations on str and bytes that allocate no memory: comparison, length, search, slices.

A string is one number: the address and length of its UTF-8 bytes (`fold/machine_values.py`), which sort as the
characters do. So nothing is copied, and a slice is another address. Operations that allocate, such as `+`, are in
`string_ops.py`.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir as llvm
from numba.core import types
from numba.core.typing import signature
from numba.extending import intrinsic

from foldflight.ext.compiler.arithmetic import bound_of, index_of
from foldflight.ext.compiler.generated import llvm_function, register_jitable
from foldflight.ext.compiler.value_types import (
    CONVERTERS,
    KINDS,
    as_number,
    decode_kind,
    describe_type,
    exactly,
    implementation,
    inner_kind,
    kind_of,
)
from foldflight.fold.machine_values import ADDRESS_BITS, LENGTH_MAX, TEXTS
from foldflight.fold.mode import Unsupported

_ADDRESS: Final = (1 << ADDRESS_BITS) - 1
_ITEMS_MAX: Final = 64  # constants of a collection that are compared one by one


def address_of(value: str | bytes) -> int | None:
    """Return the integer form of a str or bytes, whose content is never freed; None if it is too long."""
    try:
        content = _content(value)
    except Unsupported:
        return None
    if not content:
        return 0
    return int(_intern(content).ctypes.data) | len(content) << ADDRESS_BITS


@functools.cache
def _intern(content: bytes) -> Any:
    """Return the content of an initial value or attribute, in an array that is never freed."""
    return np.frombuffer(bytearray(content), np.uint8)


def _content(value: str | bytes) -> bytes:
    try:
        content = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise Unsupported(f"it uses the text {value!r}, which is no UTF-8") from None
    if len(content) > LENGTH_MAX:
        raise Unsupported(f"it uses a text of more than {LENGTH_MAX} bytes")
    return content


def _constant(kind: str) -> Any:
    @intrinsic(prefer_literal=True)
    def constant(typing: Any, value: Any) -> Any:
        if not isinstance(value, types.StringLiteral):
            return None
        literal_text: str = value.literal_value
        content = literal_text.encode("utf-8" if kind == "text" else "latin-1")

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            wide = llvm.IntType(64)
            if not content:
                return wide(0)
            pointer = context.insert_const_bytes(builder.module, content)
            return builder.or_(builder.ptrtoint(pointer, wide), wide(len(content) << ADDRESS_BITS))

        return signature(KINDS[kind], value), generate

    return constant


_CONSTANTS: Final = {kind: _constant(kind) for kind in TEXTS}
text_constant: Final = _CONSTANTS["text"]


def constant_of(value: str | bytes) -> tuple[Any, str]:
    """Return a function for compiled code that returns a constant, and its argument. Raises Unsupported."""
    _content(value)
    return (_CONSTANTS["text"], value) if isinstance(value, str) else (_CONSTANTS["bytes"], value.decode("latin-1"))


# --- the content ------------------------------------------------------------------------------------------------------


@llvm_function(types.int64, types.int64, types.int64)
def byte_at(context: Any, builder: Any, text: Any, index: Any) -> Any:
    """Return a byte of a text, at an index that is in range."""
    wide, byte = llvm.IntType(64), llvm.IntType(8)
    address = builder.add(builder.and_(text, wide(_ADDRESS)), index)
    return builder.zext(builder.load(builder.inttoptr(address, byte.as_pointer())), wide)


@llvm_function(types.int64, types.int64, types.int64, types.int64)
def _differs(context: Any, builder: Any, one: Any, other: Any, count: Any) -> Any:
    """Return what C's memcmp returns for the first bytes of two texts."""
    wide, pointer = llvm.IntType(64), llvm.IntType(8).as_pointer()
    kind = llvm.FunctionType(llvm.IntType(32), [pointer, pointer, wide])
    compare = builder.module.globals.get("memcmp") or llvm.Function(builder.module, kind, "memcmp")
    actual = [builder.inttoptr(builder.and_(each, wide(_ADDRESS)), pointer) for each in (one, other)]
    return builder.sext(builder.call(compare, [*actual, count]), wide)


length_of: Final = register_jitable(lambda a: a >> ADDRESS_BITS)


@register_jitable
def _same(a: int, b: int) -> bool:
    return a == b or (length_of(a) == length_of(b) and _differs(a, b, length_of(a)) == 0)


@register_jitable
def _order(a: int, b: int) -> int:
    difference = _differs(a, b, min(length_of(a), length_of(b)))
    return difference if difference != 0 else length_of(a) - length_of(b)


@register_jitable
def substring(a: int, start: int, end: int) -> int:
    """Return the bytes from `start` to `end` of a text, which are in range."""
    return 0 if end <= start else ((a & _ADDRESS) + start) | (end - start) << ADDRESS_BITS


@register_jitable
def character_count(a: int) -> int:
    """Return the number of characters of a text."""
    count = 0
    for offset in range(length_of(a)):
        count += (byte_at(a, offset) & 0xC0) != 0x80
    return count


@register_jitable
def _begin(a: int, index: int) -> int:
    """Return the offset of the byte at which a character begins; the length if there is no such character."""
    offset, position = 0, 0
    while offset < length_of(a):
        if (byte_at(a, offset) & 0xC0) != 0x80:
            if position == index:
                return offset
            position += 1
        offset += 1
    return offset


@register_jitable
def includes_at(a: int, b: int, offset: int) -> bool:
    """Return whether a string occurs at an offset of a longer one. The caller checks that it fits."""
    return _differs(a + offset, b, length_of(b)) == 0


@register_jitable
def _includes(a: int, b: int) -> bool:
    for offset in range(length_of(a) - length_of(b) + 1):  # noqa: SIM110 - numba has no `any`
        if includes_at(a, b, offset):
            return True
    return False


_starts: Final = register_jitable(lambda a, b: length_of(b) <= length_of(a) and includes_at(a, b, 0))
_ends: Final = register_jitable(
    lambda a, b: length_of(b) <= length_of(a) and includes_at(a, b, length_of(a) - length_of(b))
)

# The implementations on the integer forms, by operator.
_FUNCTIONS: Final[dict[str, Any]] = {
    "==": _same,
    "!=": register_jitable(lambda a, b: not _same(a, b)),
    "<": register_jitable(lambda a, b: _order(a, b) < 0),
    "<=": register_jitable(lambda a, b: _order(a, b) <= 0),
    ">": register_jitable(lambda a, b: _order(a, b) > 0),
    ">=": register_jitable(lambda a, b: _order(a, b) >= 0),
}
COMPARISONS: Final = {(name, kind, kind): (each, "bool") for kind in TEXTS for name, each in _FUNCTIONS.items()}


# --- stand-ins --------------------------------------------------------------------------------------------------------


def text_kind(name: str, *actual: Any) -> str:
    """Return the common kind of operands, text or bytes. Raises Unsupported for others."""
    kinds = {inner_kind(each) for each in actual}
    if len(kinds) != 1 or not kinds.issubset(TEXTS):
        raise Unsupported(f"{name} of {' and '.join(map(describe_type, actual))}")
    return kinds.pop()


@implementation
def size_of(a: Any) -> Any:
    """Implement `len(a)`."""
    kind = text_kind("len()", a)
    convert, size = CONVERTERS[kind], character_count if kind == "text" else length_of
    return lambda a: size(as_number(convert(a)))


def string_operation(name: str, function: Any, *, creates: bool = False) -> Any:
    """Return the implementation of an operator or method of two strings, whose result may be a string."""

    @implementation
    def choose(a: Any, b: Any) -> Any:
        kind = text_kind(name, a, b)
        convert, result = CONVERTERS[kind], decode_kind(kind if creates else "bool")
        return lambda a, b: result(function(as_number(convert(a)), as_number(convert(b))))

    return choose


includes: Final = string_operation("in", _includes)


@implementation
def item_of(a: Any, index: Any) -> Any:
    """Implement `a[index]` of a text or bytes."""
    kind = text_kind("[]", a)
    if kind_of(index) != "int":
        raise Unsupported(f"[] of {kind} and {index}")
    convert, decode, is_text, size = (
        CONVERTERS[kind],
        decode_kind(kind),
        kind == "text",
        character_count if kind == "text" else length_of,
    )

    def item(a, index):
        number = as_number(convert(a))
        position = index_of(index, size(number))
        if is_text:
            return decode(substring(number, _begin(number, position), _begin(number, position + 1)))
        return byte_at(number, position)

    return item


@implementation
def part_of(a: Any, start: Any, stop: Any) -> Any:
    """Implement `a[start:stop]` of a text or bytes."""
    kind = text_kind("[:]", a)
    if any(kind_of(each) not in ("int", "none") for each in (start, stop)):
        raise Unsupported(f"it takes a part of a {kind} from {start} to {stop}")
    convert, decode, size = CONVERTERS[kind], decode_kind(kind), character_count if kind == "text" else length_of
    begin = _begin if kind == "text" else register_jitable(lambda a, index: index)

    def part(a, start, stop):
        number = as_number(convert(a))
        whole = size(number)
        low = 0 if start is None else bound_of(start, whole)
        high = whole if stop is None else bound_of(stop, whole)
        return decode(substring(number, begin(number, low), begin(number, high)))

    return part


def _position(name: str, *, last: bool, must_exist: bool) -> Any:
    """Return the implementation of `find`, `rfind`, `index` or `rindex` of one argument."""

    @implementation
    def choose(a: Any, b: Any) -> Any:
        kind = text_kind(name, a, b)
        convert, size = CONVERTERS[kind], character_count if kind == "text" else length_of

        def position(a: Any, b: Any) -> int:
            number = as_number(convert(a))
            offset = _offset_of(number, as_number(convert(b)), last)
            if must_exist and offset < 0:
                raise ValueError
            return size(substring(number, 0, offset)) if offset > 0 else offset

        return position

    return choose


@register_jitable
def _offset_of(a: int, b: int, last: bool) -> int:
    """Return the offset of the first or last occurrence of a string in another one; -1 without one."""
    ends = length_of(a) - length_of(b)
    for step in range(ends + 1):
        offset = ends - step if last else step
        if includes_at(a, b, offset):
            return offset
    return -1


def _partition(name: str, *, last: bool) -> Any:
    """Return the implementation of `partition` or `rpartition`."""

    @implementation
    def choose(a: Any, b: Any) -> Any:
        kind = text_kind(name, a, b)
        convert, decode = CONVERTERS[kind], decode_kind(kind)

        def parts(a: Any, b: Any) -> Any:
            number, other = as_number(convert(a)), as_number(convert(b))
            if other == 0:
                raise ValueError
            offset = _offset_of(number, other, last)
            if offset < 0:
                return (decode(0), decode(0), decode(number)) if last else (decode(number), decode(0), decode(0))
            end = offset + length_of(other)
            return (
                decode(substring(number, 0, offset)),
                decode(other),
                decode(substring(number, end, length_of(number))),
            )

        return parts

    return choose


@register_jitable
def _without_prefix(a: int, b: int) -> int:
    return substring(a, length_of(b), length_of(a)) if _starts(a, b) else a


@register_jitable
def _without_suffix(a: int, b: int) -> int:
    return substring(a, 0, length_of(a) - length_of(b)) if _ends(a, b) else a


@implementation
def encode_text(a: Any) -> Any:
    """Implement `a.encode()`: the bytes of a text, which is UTF-8 in memory. Other encodings are not compiled."""
    if text_kind("encode", a) != "text":
        raise Unsupported("it uses the attribute encode of bytes")
    convert, decode = CONVERTERS["text"], decode_kind("bytes")
    return lambda a: decode(as_number(convert(a)))


METHODS: Final = {
    "encode": encode_text,
    "endswith": string_operation("endswith", _ends),
    "find": _position("find", last=False, must_exist=False),
    "index": _position("index", last=False, must_exist=True),
    "partition": _partition("partition", last=False),
    "removeprefix": string_operation("removeprefix", _without_prefix, creates=True),
    "removesuffix": string_operation("removesuffix", _without_suffix, creates=True),
    "rfind": _position("rfind", last=True, must_exist=False),
    "rindex": _position("rindex", last=True, must_exist=True),
    "rpartition": _partition("rpartition", last=True),
    "startswith": string_operation("startswith", _starts),
}


_EXACTLY: Final = {
    kind: exactly(kind, "it uses a {actual} where a collection or its default needs a {kind}")
    for kind in ("int", "float", "bool", *TEXTS)
}


def table_of(keys: tuple[Any, ...], values: tuple[Any, ...], *, without: str = "default") -> Any:
    """Return `find(key, default)` of a dict or another collection of constants. Raises Unsupported.

    Args:
        keys: Texts, bytes or ints, all of one type.
        values: Their values, all of one type: ints, floats, booleans or texts.
        without: What the function does for another key: it returns its argument `default`, or `none`, or has an
            `error`. Only the first form has this argument.
    """
    kinds = {str: "text", bytes: "bytes", int: "int", float: "float", bool: "bool"}
    distinct = [{kinds.get(type(each)) for each in actual} for actual in (keys, values)]
    if any(len(each) != 1 for each in distinct) or len(keys) > _ITEMS_MAX:
        raise Unsupported(
            f"it uses a collection that is empty, has more than {_ITEMS_MAX} items, or items of several types"
        )
    key, value = distinct[0].pop(), distinct[1].pop()
    if key not in ("text", "bytes", "int") or value not in ("int", "float", "bool", "text"):
        raise Unsupported(f"it uses a collection of {type(keys[0]).__name__} and {type(values[0]).__name__}")
    if any(type(each) is int and not -(1 << 63) <= each < 1 << 63 for each in (*keys, *values)):
        raise Unsupported("it uses a collection with a number of more than 64 bits")
    names: dict[str, Any] = {"number": as_number, "key_of": _EXACTLY[key], "value_of": _EXACTLY[value]}
    lines = [f"def find(key{', default' * (without == 'default')}):", "    key = number(key_of(key))"]
    for index, each in enumerate(keys):
        literal = repr(each)
        if key in TEXTS:
            function, literal_text = constant_of(each)
            names["constant"], names["same"] = function, _same
            literal = f"number(constant({literal_text!r}))"
        names[f"v{index}"] = values[index]
        value_text = f"v{index}"
        if value == "text":
            names["constant_text"], literal_text = constant_of(values[index])
            value_text = f"constant_text({literal_text!r})"
        lines += [
            f"    if same(key, {literal}):" if key in TEXTS else f"    if key == {literal}:",
            f"        return {value_text}",
        ]
    last = {"default": "return value_of(default)", "none": "return None", "error": "raise ValueError"}[without]
    exec("\n".join([*lines, f"    {last}"]), names)  # noqa: S102 - the author's constants, written by repr
    return numba.njit(nogil=True)(names["find"])
