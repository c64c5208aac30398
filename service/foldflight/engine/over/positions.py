"""The positions of window frames in a sorted partition.

Order values become whole numbers with the same order, so that every comparison is one of whole numbers. NaN is the
largest float and equals itself, as in Spark. If an end of a window frame is a distance, the window frame of a row whose
order value is NULL consists of the rows with NULL.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.query.frame import WindowFrame

Positions = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]

_LARGEST = np.int64(0x7FFF_FFFF_FFFF_FFFF)

# Digits of an order by decimals. The end of a window frame may have one digit more, and must fit 64 bits (18 digits).
_DIGITS_MAX: Final = 17


@dataclass(frozen=True)
class OrderOf:
    """The order of the n rows of some partitions, each sorted.

    Args:
        starts: int64, shape (partitions + 1,): where partitions begin, and n.
        peers: int64, shape (n,): a number that ascends, and is equal exactly for rows of a partition with equal order.
        codes: int64, shape (n,): the order values, ascending within the rows of a partition that have one; None if no
            window frame has a distance.
        null_counts: int64, shape (partitions,): the number of rows of each partition without an order value.
        nulls_first: Whether these rows come first in their partition.
    """

    starts: Positions
    peers: Positions
    codes: Codes | None
    null_counts: Positions
    nulls_first: bool


def distance_of(
    type_: pa.DataType, bound: float | decimal.Decimal | str, *, order: str, type_name: str
) -> float | decimal.Decimal | str:
    """Return a distance that can be added to an order value: a number of its kind, or the text of an interval.

    Args:
        type_: The type of the order.
        bound: The end of a window frame.
        order: The user's text of the order.
        type_name: The name of its type.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a distance that does not fit the order.
    """
    advice = f"order by a number, a date or a timestamp; {type_name} has no distances"
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        if isinstance(bound, str):
            return bound
        advice = f"give an interval such as '{'-1 day' if pa.types.is_date(type_) else '-1 hour'}' or '7 days'"
    elif pa.types.is_integer(type_):
        if not isinstance(bound, str) and int(bound) == bound and abs(int(bound)) <= int(_LARGEST):
            return int(bound)
        advice = "give a whole number of 64 bits"
    elif pa.types.is_decimal(type_):
        if not isinstance(bound, str) and type_.precision <= _DIGITS_MAX:
            exact = decimal.Decimal(str(bound))
            digits = Fraction(exact) * 10**type_.scale
            if digits.denominator == 1 and abs(digits) < 10**_DIGITS_MAX:
                return exact
        advice = (
            f"the order may have at most {_DIGITS_MAX} digits, and the distance at most {type_.scale} after the point "
            f"and {_DIGITS_MAX} in total; CAST the order to a DECIMAL that fits"
        )
    elif pa.types.is_floating(type_):
        if not isinstance(bound, str):
            return float(bound)
        advice = "give a number"
    raise RejectedError(
        "SCHEMA_MISMATCH",
        f"RANGE with the distance {bound!r} does not fit the order {order!r}, which is {type_name}; {advice}",
    )


def end_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which an order value and a distance are added. Only sums of BIGINT may not fit it."""
    if pa.types.is_integer(type_):
        return pa.int64()
    return pa.decimal128(_DIGITS_MAX + 1, type_.scale) if pa.types.is_decimal(type_) else type_


def codes_of(array: pa.Array, *, descending: bool) -> Codes:
    """Return whole numbers that ascend as the values of an order do. For NULLs they have no meaning.

    Args:
        array: Whole numbers, floats, dates, timestamps, or decimals of at most 18 digits.
        descending: Whether larger values come first.
    """
    if pa.types.is_decimal(array.type):
        words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
        codes = words[array.offset : array.offset + len(array), 0].copy()
    elif pa.types.is_floating(array.type):
        # Adding 0 removes the sign of -0.0.
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        values[np.isnan(values)] = np.nan
        bits = values.view(np.int64)
        codes = np.where(bits < 0, bits ^ _LARGEST, bits)
    else:
        integer = pa.int32() if array.type.bit_width == 32 else pa.int64()
        number = array if pa.types.is_integer(array.type) else array.view(integer)
        codes = number.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return ~codes if descending else codes


def positions_of(
    window_frame: WindowFrame,
    order: OrderOf,
    rows: Positions,
    low: pa.Array | None = None,
    high: pa.Array | None = None,
    *,
    descending: bool = False,
) -> tuple[Positions, Positions]:
    """Return where the window frames of n rows begin, and where they end (the position after their last row).

    Args:
        window_frame: The window frame.
        order: The order of the rows.
        rows: int64, shape (n,): ascending positions.
        low: The order values at which the window frames of the n rows begin, if the lower end is a distance.
        high: The order values at which they end, if the upper end is a distance.
        descending: Whether larger order values come first.
    """
    parts = np.searchsorted(order.starts, rows, side="right") - 1
    start, end = order.starts[parts], order.starts[parts + 1]
    begin = _end_of(
        window_frame, window_frame.low, order, rows, (parts, start, end), low, descending=descending, is_high=False
    )
    stop = _end_of(
        window_frame, window_frame.high, order, rows, (parts, start, end), high, descending=descending, is_high=True
    )
    return begin, np.maximum(begin, stop)


def _end_of(
    window_frame: WindowFrame,
    bound: object,
    order: OrderOf,
    rows: Positions,
    within: tuple[Positions, Positions, Positions],
    values: pa.Array | None,
    *,
    descending: bool,
    is_high: bool,
) -> Positions:
    parts, start, end = within
    if bound is None:
        return end if is_high else start
    if not window_frame.is_range:
        assert isinstance(bound, int)
        return np.clip(rows + bound + is_high, start, end)
    peers = np.searchsorted(order.peers, order.peers[rows], side="right" if is_high else "left")
    if bound == 0:
        return peers
    assert values is not None
    assert order.codes is not None
    first = start + order.null_counts[parts] if order.nulls_first else start
    last = end if order.nulls_first else end - order.null_counts[parts]
    ends = _bisect(order.codes, codes_of(values, descending=descending), first, last, is_high=is_high)
    is_missing = values.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_missing, peers, ends)


def _bisect(codes: Codes, targets: Codes, low: Positions, high: Positions, *, is_high: bool) -> Positions:
    """Return for each target the position in `codes[low:high]` where it belongs, after equal ones if `is_high`."""
    low, high = low.copy(), high.copy()
    while True:
        active = low < high
        if not active.any():
            return low
        middle = (low + high) // 2
        there = codes[np.minimum(middle, len(codes) - 1)]
        goes_right = active & ((there <= targets) if is_high else (there < targets))
        low = np.where(goes_right, middle + 1, low)
        high = np.where(active & ~goes_right, middle, high)
