"""Strings, bytes, datetimes and decimals as integers of the machine, in which compiled code reads and writes them.

A string is the address in the low 48 bits of an integer, with the length in bytes above it. A decimal is a scaled
integer of two 64-bit words, the low one first, as in Arrow.
"""

from __future__ import annotations

import ctypes
from datetime import date
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXTS: Final = ("text", "bytes")
ADDRESS_BITS: Final = 48
LENGTH_MAX: Final = (1 << 15) - 1  # 15 bits, because the integer is signed
_GATHERED_MEAN: Final = 24  # bytes; strings that are longer on average are copied faster one by one
_GATHERED_TEXTS: Final = 1 << 14  # strings that are copied at once, to bound the memory for indices
_OFFSET_MAX: Final = (1 << 31) - 1  # offsets of an Arrow string array are int32
_EXTENT: Final = 1 << 30  # bytes of address space that one run may cover
_RUN_MEAN: Final = 16  # minimum of strings in a run for which runs pay


def text_of(type_: pa.DataType) -> str | None:
    """Return the kind of texts or bytes of a type; None for other types, such as VARIANT."""
    return (
        {pa.string(): "text", pa.binary(): "bytes"}.get(type_) if not isinstance(type_, pa.BaseExtensionType) else None
    )


def too_long(array: pa.Array) -> Any | None:
    """Return a mask of the values that are too long for compiled code, bool, shape (n,); None if none is."""
    mask = pc.fill_null(pc.greater(pc.binary_length(array), LENGTH_MAX), False).to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


def to_addresses(array: pa.Array, omit_mask: Any | None = None) -> Any | None:
    """Return n texts or bytes as int64, with 0 for NULL; None if one is too long.

    Args:
        array: STRING or BINARY, with n values. Its buffers must live as long as the integers are used.
        omit_mask: Further values that become 0, bool, shape (n,).
    """
    if not len(array):
        return np.zeros(0, np.int64)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
    if omit_mask is not None:
        lengths[omit_mask] = 0
    start = 0 if data is None else data.address
    if lengths.max() > LENGTH_MAX or start + int(ends[-1]) >= 1 << ADDRESS_BITS:
        return None
    return np.where(lengths > 0, (start + ends[:-1]) | (lengths << ADDRESS_BITS), 0)


def from_addresses(numbers: Any, mask: Any, type_: pa.DataType) -> pa.Array:
    """Return n integers as an array with its own memory: the inverse of `to_addresses`.

    Args:
        numbers: int64, shape (n,), of content that still exists, and anything for NULL.
        mask: True for NULL, bool, shape (n,); None: there is none.
        type_: STRING or BINARY.
    """
    if mask is not None:
        numbers = np.where(mask, 0, numbers)
    lengths, indexes = numbers >> ADDRESS_BITS, numbers & ((1 << ADDRESS_BITS) - 1)
    ends = np.cumsum(lengths)
    runs = _runs(indexes, lengths) if len(numbers) and ends[-1] <= _OFFSET_MAX else None
    if runs is None and (not len(numbers) or ends[-1] > _GATHERED_MEAN * len(numbers) or ends[-1] > _OFFSET_MAX):
        content = [_content(index, length) for index, length in zip(indexes.tolist(), lengths.tolist(), strict=True)]
        return pa.array(content, pa.binary(), mask=mask).cast(type_)
    data = np.empty(int(ends[-1]), np.uint8)
    if runs is None:
        for start in range(0, len(numbers), _GATHERED_TEXTS):
            _gather(data, indexes, lengths, ends, slice(start, start + _GATHERED_TEXTS))
    for run in runs or ():
        _take(data, indexes[run], lengths[run], ends[run])
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    valid = None if mask is None else pa.array(~mask).buffers()[1]
    binary_array = pa.Array.from_buffers(pa.binary(), len(numbers), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
    return binary_array.cast(type_)


def _runs(indexes: Any, lengths: Any) -> list[Any] | None:
    """Return the texts in runs that are in the order of memory, as indexes, without empty ones; None if runs are short.

    Texts are in this order where they come from one column, or were made one after the other.
    """
    nonempty_indexes = np.flatnonzero(lengths)
    starts, stops = indexes[nonempty_indexes], indexes[nonempty_indexes] + lengths[nonempty_indexes]
    extents = starts // _EXTENT  # offsets have 32 bits
    breaks = np.flatnonzero((starts[1:] < stops[:-1]) | (extents[1:] != extents[:-1])) + 1
    if not len(nonempty_indexes) or len(breaks) * _RUN_MEAN > len(nonempty_indexes):
        return None
    return np.split(nonempty_indexes, breaks)


def _take(data: Any, starts: Any, lengths: Any, ends: Any) -> None:
    """Copy a run of texts into `data`, where each ends at `ends`: Arrow takes every other part of their memory."""
    first, stops = int(starts[0]), starts + lengths
    offsets = np.column_stack([starts - first, stops - first]).astype(np.int32)
    parts = [None, pa.py_buffer(offsets), pa.foreign_buffer(first, int(stops[-1]) - first)]
    run_array = pa.Array.from_buffers(pa.binary(), 2 * len(starts) - 1, parts).take(
        pa.array(np.arange(len(starts)) * 2)
    )
    data[int(ends[0] - lengths[0]) : int(ends[-1])] = np.frombuffer(
        run_array.buffers()[2], np.uint8, int(lengths.sum())
    )


def _content(index: int, length: int) -> bytes:
    return ctypes.string_at(index, length) if length else b""


def _gather(data: Any, positions: Any, lengths: Any, ends: Any, part: slice) -> None:
    """Copy the content of some strings into `data`, where each ends at `ends`, with one indexing operation of NumPy."""
    positions, lengths, ends = positions[part], lengths[part], ends[part]
    nonempty_mask = lengths > 0
    if not nonempty_mask.any():
        return
    positions, lengths, ends = positions[nonempty_mask], lengths[nonempty_mask], ends[nonempty_mask]
    first, begin = int(positions.min()), int(ends[0] - lengths[0])
    # The memory between the texts is not read.
    extent = ctypes.c_uint8 * int((positions + lengths).max() - first)
    memory = np.frombuffer(memoryview(extent.from_address(first)), np.uint8)
    index = np.repeat(positions - first - (ends - lengths), lengths) + np.arange(begin, int(ends[-1]))
    np.take(memory, index, out=data[begin : int(ends[-1])], mode="clip")


_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_DAY: Final = 86_400_000_000
# The ranges of the kinds: days for dates, microseconds for all others.
MOMENTS: Final[dict[str, tuple[int, int]]] = {
    "date": (_FIRST, _LAST),
    "timestamp": (_FIRST * _DAY, (_LAST + 1) * _DAY - 1),
    "instant": (_FIRST * _DAY, (_LAST + 1) * _DAY - 1),
    "time": (0, _DAY - 1),
    # Arrow has no durations of fewer days, because their microseconds would exceed 64 bits.
    "duration": (-((1 << 63) // _DAY) * _DAY, (1 << 63) - 1),
}


def moment_of(type_: pa.DataType) -> str | None:
    """Return the key of `MOMENTS` for the values of a type, or None for other types.

    Of timestamps with a zone only those in UTC are included, as instants: Python compares local times of other zones,
    which repeat when clocks go back.
    """
    if type_ == pa.date32():
        return "date"
    if pa.types.is_timestamp(type_):
        return {None: "timestamp", "UTC": "instant"}.get(type_.tz)
    return {pa.time64("us"): "time", pa.duration("us"): "duration"}.get(type_)


def to_numbers(array: pa.Array, moment: str) -> Any | None:
    """Return n values as int64, with 0 for NULL, or None if a value is not one of Python's type."""
    if moment == "date":
        array = array.cast(pa.int32())
    elif moment in ("timestamp", "instant"):
        try:
            array = array.cast(pa.timestamp("us", array.type.tz))
        except pa.ArrowInvalid:  # nanoseconds, or microseconds that exceed 64 bits
            return None
    numbers = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    low, high = MOMENTS[moment]
    return numbers if not len(numbers) or (numbers.min() >= low and numbers.max() <= high) else None


def from_numbers(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return n integers as values of `type_`: the inverse of `to_numbers`. NULL stays NULL."""
    return numbers.cast(pa.int32()).cast(type_) if type_ == pa.date32() else numbers.cast(type_)


DIGITS_MAX: Final = 38
_PREFIX: Final = "decimal"
DECIMALS: Final = tuple(f"{_PREFIX}{scale}" for scale in range(DIGITS_MAX + 1))
"""The kinds of decimals, by the number of digits after the point."""
_HIGH_MAX: Final = 10**DIGITS_MAX >> 64  # decimals with this high word may have 39 digits


def decimal_of(type_: pa.DataType) -> str | None:
    """Return the kind of decimals of a type; None for other types."""
    is_known = pa.types.is_decimal128(type_) and 0 <= type_.scale <= DIGITS_MAX
    return DECIMALS[type_.scale] if is_known else None


def scale_of(kind: str) -> int:
    """Return the number of digits after the point of a kind of decimals."""
    return int(kind.removeprefix(_PREFIX))


def words_of(value: Decimal, scale: int) -> Any | None:
    """Return a decimal as two words, int64, shape (1, 2); None if it has too many digits."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > DIGITS_MAX:
        return None
    number = int("".join(map(str, digits))) * 10 ** max(exponent + scale, 0)
    rest = 10 ** max(-exponent - scale, 0)
    if number % rest or number // rest >= 10**DIGITS_MAX:
        return None
    signed_number = -(number // rest) if value.is_signed() else number // rest
    return np.frombuffer(signed_number.to_bytes(16, "little", signed=True), np.int64).reshape(1, 2)


def to_words(array: pa.Array) -> Any | None:
    """Return n decimals as int64, shape (n, 2), with 0 for NULL; None if one has more than 38 digits.

    Args:
        array: DECIMAL, with n values. Without NULL its memory is shared, so it must live as long as the result.
    """
    if not len(array):
        return np.zeros((0, 2), np.int64)
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    if array.null_count:
        words = np.where(array.is_valid().to_numpy(zero_copy_only=False)[:, None], words, 0)
    high = words[:, 1]
    if high.max() < _HIGH_MAX and high.min() >= -_HIGH_MAX:
        return words
    edge = np.ascontiguousarray(words[(high >= _HIGH_MAX) | (high < -_HIGH_MAX)])
    numbers = (int.from_bytes(each.tobytes(), "little", signed=True) for each in edge)
    return words if all(abs(each) < 10**DIGITS_MAX for each in numbers) else None


def from_words(words: Any, mask: Any, type_: pa.Decimal128Type) -> pa.Array:
    """Return n pairs of words as decimals of `type_`: the inverse of `to_words`.

    Args:
        words: int64, shape (n, 2).
        mask: True for NULL, bool, shape (n,); None: there is none.
        type_: DECIMAL, with the scale that the words have.
    """
    valid = None if mask is None else pa.array(~mask).buffers()[1]
    data = pa.py_buffer(np.ascontiguousarray(words))
    return pa.Array.from_buffers(type_, len(words), [valid, data])
