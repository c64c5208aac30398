"""Texts and bytes as integers, for compiled code: the address in the low 48 bits, the length in bytes above them.

No content is copied, so the arrays must live as long as the integers are used. Zero is an empty text.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["ADDRESS_BITS", "LENGTH_MAX", "TEXTS", "from_addresses", "text_of", "to_addresses"]

TEXTS: Final = ("text", "bytes")
ADDRESS_BITS: Final = 48
LENGTH_MAX: Final = (1 << 15) - 1  # the integer has a sign


def text_of(type_: pa.DataType) -> str | None:
    """Return the kind of texts or bytes of a type; None for other types, such as VARIANT."""
    return (
        {pa.string(): "text", pa.binary(): "bytes"}.get(type_) if not isinstance(type_, pa.BaseExtensionType) else None
    )


def to_addresses(array: pa.Array) -> Any | None:
    """Return n texts or bytes as int64, with 0 for NULL; None if one is too long.

    Args:
        array: STRING or BINARY, with n values. Its buffers must live as long as the integers are used.
    """
    if not len(array):
        return np.zeros(0, np.int64)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
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
    lengths = (numbers >> ADDRESS_BITS).tolist()
    places = (numbers & ((1 << ADDRESS_BITS) - 1)).tolist()
    read = ctypes.string_at
    content = [read(place, length) if length else b"" for place, length in zip(places, lengths, strict=True)]
    return pa.array(content, pa.binary(), mask=mask).cast(type_)
