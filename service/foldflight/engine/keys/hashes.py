"""The stored hashes of keys: they place groups in the runs of a state table, and never change."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.index import KeyIndex, key_values

_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL_BYTES: Final = b"\xff<NULL>\xff"
_HASHED_BYTES_MAX: Final = 256

Hashes = npt.NDArray[np.uint64]


def key_hashes(keys: pa.RecordBatch, *, are_distinct: bool = False) -> Hashes:
    """Return a 64-bit hash of each of n keys. Hashes are stored: they are the same on every machine, in every version.

    Args:
        keys: n rows, with floats in the canonical form of `KeyIndex.keys`.
        are_distinct: Whether no two of them are equal; a single column of keys then needs no search for equal values.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a date beyond the year 9999 within a nested key.
    """
    hashes = np.full(keys.num_rows, _SEED, np.uint64)
    for column in keys.columns:
        hashes = _mix(hashes ^ _column_hashes(column, are_distinct=are_distinct and keys.num_columns == 1))
    return hashes


def _column_hashes(column: pa.Array, *, are_distinct: bool) -> Hashes:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_primitive(column.type) and not pa.types.is_integer(column.type):
        # Times and floats are hashed by their bits, because their texts may depend on the version of a library.
        column = column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width])
    if pa.types.is_integer(column.type) and column.null_count == 0:
        return _mix(column.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())  # a text of Spark need not be UTF-8
    if are_distinct:
        return np.fromiter(map(_digest, key_values(column)), np.uint64, len(column))
    # Each distinct value is hashed once, by its bytes.
    index = KeyIndex(pa.schema([pa.field("key", column.type)]))
    slots = index.slots([column]).to_numpy()
    return _column_hashes(index.keys().column(0), are_distinct=True)[slots]


def _digest(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        # Same as the vectorised path: the hash of a value must not depend on NULLs elsewhere in the column.
        return int(_mix(np.array([value & (2**64 - 1)], np.uint64))[0])
    if value is None:
        data = _NULL_BYTES
    elif isinstance(value, bytes):
        data = value
    else:
        data = _text(value).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _text(value: Any) -> str:
    """Return the text of a value within a key. Its times have the same text with every version of pyarrow.

    Older versions give them the zones of pytz, if it is installed, and newer ones the zones of zoneinfo.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, datetime) and (zone := getattr(value.tzinfo, "zone", None)):
        return repr(value.replace(tzinfo=ZoneInfo(zone)))
    return repr(value)


def text_hashes(column: pa.Array) -> Hashes:
    """Return a 64-bit hash of each of n texts or byte strings. Hashes are stored, like the hashes of `key_hashes`.

    They are computed eight bytes of all values at a time, without Python code for each value, and differ from the
    results of `key_hashes`.
    """
    raw = column.view(pa.binary()) if pa.types.is_string(column.type) else column
    offsets = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    is_long = lengths > _HASHED_BYTES_MAX
    words = np.frombuffer(b"".join([_from(raw, offsets), bytes(8)]), np.uint8)
    starts = offsets[:-1] - (offsets[0] if len(offsets) else 0)
    hashes = _mix(lengths.astype(np.uint64))
    for offset in range(0, int(lengths[~is_long].max(initial=0)), 8):
        rows = np.flatnonzero((lengths > offset) & ~is_long)
        word = words[(starts[rows] + offset)[:, None] + np.arange(8)].view("<u8")[:, 0].astype(np.uint64)
        spare = np.maximum(8 - (lengths[rows] - offset), 0).astype(np.uint64) * np.uint64(8)
        word &= np.uint64(2**64 - 1) >> spare
        hashes[rows] = _mix(hashes[rows] ^ word)
    for row in np.flatnonzero(is_long):
        hashes[row] = _digest(raw[int(row)].as_py())
    hashes[raw.is_null().to_numpy(zero_copy_only=False)] = _digest(None)
    return hashes


def _from(raw: pa.Array, offsets: npt.NDArray[np.int64]) -> memoryview:
    """Return the bytes of all values of an array of byte strings."""
    data = raw.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data).cast("B")[int(offsets[0]) : int(offsets[-1])]


def _mix(values: Hashes) -> Hashes:
    """Mix the bits of 64-bit numbers. Source: S. Vigna, "splitmix64" (2015)."""
    with np.errstate(over="ignore"):
        values = values + _SEED
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
