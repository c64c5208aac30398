"""Decimals as scaled integers for compiled code: two 64-bit words, the low one first, as in Arrow."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

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
    signed = -(number // rest) if value.is_signed() else number // rest
    return np.frombuffer(signed.to_bytes(16, "little", signed=True), np.int64).reshape(1, 2)


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
