"""Texts and bytes as integers, for compiled code: the address in the low 48 bits, the length in bytes above them.

No content is copied, so the arrays must live as long as the integers are used. Zero is an empty text.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ADDRESS_BITS", "LENGTH_MAX", "TEXTS", "from_addresses", "text_of", "to_addresses", "too_long"]

TEXTS: Final = ("text", "bytes")
ADDRESS_BITS: Final = 48
LENGTH_MAX: Final = (1 << 15) - 1  # the integer has a sign
_GATHERED_MEAN: Final = 24  # bytes; longer texts are copied faster one by one
_GATHERED_TEXTS: Final = 1 << 14  # at once, so that their indices are few
_OFFSET_MAX: Final = (1 << 31) - 1


def text_of(type_: pa.DataType) -> str | None:
    """Return the kind of texts or bytes of a type; None for other types, such as VARIANT."""
    return (
        {pa.string(): "text", pa.binary(): "bytes"}.get(type_) if not isinstance(type_, pa.BaseExtensionType) else None
    )


def too_long(array: pa.Array) -> Any | None:
    """Return which of n texts or bytes are too long for compiled code, bool, shape (n,); None if none is."""
    found = pc.fill_null(pc.greater(pc.binary_length(array), LENGTH_MAX), False).to_numpy(zero_copy_only=False)
    return found if found.any() else None


def to_addresses(array: pa.Array, left_out: Any | None = None) -> Any | None:
    """Return n texts or bytes as int64, with 0 for NULL; None if one is too long.

    Args:
        array: STRING or BINARY, with n values. Its buffers must live as long as the integers are used.
        left_out: Which of them are 0, too, bool, shape (n,).
    """
    if not len(array):
        return np.zeros(0, np.int64)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
    if left_out is not None:
        lengths[left_out] = 0
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
    if not len(numbers) or ends[-1] > _GATHERED_MEAN * len(numbers) or ends[-1] > _OFFSET_MAX:
        content = [_content(index, length) for index, length in zip(indexes.tolist(), lengths.tolist(), strict=True)]
        return pa.array(content, pa.binary(), mask=mask).cast(type_)
    data = np.empty(int(ends[-1]), np.uint8)
    for start in range(0, len(numbers), _GATHERED_TEXTS):
        _gather(data, indexes, lengths, ends, slice(start, start + _GATHERED_TEXTS))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    valid = None if mask is None else pa.array(~mask).buffers()[1]
    made = pa.Array.from_buffers(pa.binary(), len(numbers), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
    return made.cast(type_)


def _content(index: int, length: int) -> bytes:
    return ctypes.string_at(index, length) if length else b""


def _gather(data: Any, positions: Any, lengths: Any, ends: Any, part: slice) -> None:
    """Copy the content of some texts into `data`, where each ends at `ends`: byte by byte, as NumPy does it at once."""
    positions, lengths, ends = positions[part], lengths[part], ends[part]
    known = lengths > 0
    if not known.any():
        return
    positions, lengths, ends = positions[known], lengths[known], ends[known]
    first, begin = int(positions.min()), int(ends[0] - lengths[0])
    # The memory between the texts is not read.
    extent = ctypes.c_uint8 * int((positions + lengths).max() - first)
    memory = np.frombuffer(memoryview(extent.from_address(first)), np.uint8)
    index = np.repeat(positions - first - (ends - lengths), lengths) + np.arange(begin, int(ends[-1]))
    np.take(memory, index, out=data[begin : int(ends[-1])], mode="clip")
