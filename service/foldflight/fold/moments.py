"""Dates, timestamps, times and durations as whole numbers, where they are only compared and kept."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MOMENTS", "from_numbers", "moment_of", "to_numbers"]

_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_DAY: Final = 86_400_000_000
# What Python's own values can be: days for dates, microseconds for all others.
MOMENTS: Final[dict[str, tuple[int, int]]] = {
    "date": (_FIRST, _LAST),
    "timestamp": (_FIRST * _DAY, (_LAST + 1) * _DAY - 1),
    "time": (0, _DAY - 1),
    # Arrow makes none of fewer days, for their microseconds alone would leave 64 bits.
    "duration": (-((1 << 63) // _DAY) * _DAY, (1 << 63) - 1),
}


def moment_of(type_: pa.DataType) -> str | None:
    """Return which of `MOMENTS` values of a type are in Python; None for other types.

    A timestamp with a zone is none of them: Python compares the hours that clocks there show, which go back in autumn.
    """
    if type_ == pa.date32():
        return "date"
    if pa.types.is_timestamp(type_) and type_.tz is None:
        return "timestamp"
    return {pa.time64("us"): "time", pa.duration("us"): "duration"}.get(type_)


def to_numbers(array: pa.Array, moment: str) -> Any | None:
    """Return n values as int64, 0 where one is NULL; None where one is beyond what Python's own can be."""
    if moment == "date":
        array = array.cast(pa.int32())
    elif moment == "timestamp":
        array = array.cast(pa.timestamp("us"), safe=False)
    numbers = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    low, high = MOMENTS[moment]
    return numbers if not len(numbers) or (numbers.min() >= low and numbers.max() <= high) else None


def from_numbers(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return int64, or NULL, as what `to_numbers` had: dates, or microseconds."""
    return numbers.cast(pa.int32()).cast(type_) if type_ == pa.date32() else numbers.cast(type_)
