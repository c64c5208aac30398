"""Strings and bytes as integers for compiled code: the address in the low 48 bits, the length in bytes above it.

No content is copied, so the arrays must live as long as the integers are used. Zero is an empty text.
"""

from __future__ import annotations

import ctypes
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


def to_addresses(array: pa.Array, omitted: Any | None = None) -> Any | None:
    """Return n texts or bytes as int64, with 0 for NULL; None if one is too long.

    Args:
        array: STRING or BINARY, with n values. Its buffers must live as long as the integers are used.
        omitted: Further values that become 0, bool, shape (n,).
    """
    if not len(array):
        return np.zeros(0, np.int64)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(ends)
    if array.null_count:
        lengths[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
    if omitted is not None:
        lengths[omitted] = 0
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
    made = pa.Array.from_buffers(pa.binary(), len(numbers), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
    return made.cast(type_)


def _runs(indexes: Any, lengths: Any) -> list[Any] | None:
    """Return the texts in runs that are in the order of memory, as indexes, without empty ones; None if runs are short.

    Texts are in this order where they come from one column, or were made one after the other.
    """
    known = np.flatnonzero(lengths)
    starts, stops = indexes[known], indexes[known] + lengths[known]
    extents = starts // _EXTENT  # offsets have 32 bits
    breaks = np.flatnonzero((starts[1:] < stops[:-1]) | (extents[1:] != extents[:-1])) + 1
    if not len(known) or len(breaks) * _RUN_MEAN > len(known):
        return None
    return np.split(known, breaks)


def _take(data: Any, starts: Any, lengths: Any, ends: Any) -> None:
    """Copy a run of texts into `data`, where each ends at `ends`: Arrow takes every other part of their memory."""
    first, stops = int(starts[0]), starts + lengths
    offsets = np.column_stack([starts - first, stops - first]).astype(np.int32)
    parts = [None, pa.py_buffer(offsets), pa.foreign_buffer(first, int(stops[-1]) - first)]
    taken = pa.Array.from_buffers(pa.binary(), 2 * len(starts) - 1, parts).take(pa.array(np.arange(len(starts)) * 2))
    data[int(ends[0] - lengths[0]) : int(ends[-1])] = np.frombuffer(taken.buffers()[2], np.uint8, int(lengths.sum()))


def _content(index: int, length: int) -> bytes:
    return ctypes.string_at(index, length) if length else b""


def _gather(data: Any, positions: Any, lengths: Any, ends: Any, part: slice) -> None:
    """Copy the content of some strings into `data`, where each ends at `ends`, with one indexing operation of NumPy."""
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
