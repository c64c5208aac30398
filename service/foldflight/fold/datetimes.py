"""Dates, timestamps, times and durations as integers, for compiled code."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

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
