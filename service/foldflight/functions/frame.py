"""The frame of an aggregate over a window: which rows around a row it folds."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from foldflight.errors import RejectedError

__all__ = ["Frame", "FrameBound", "Insisted"]

FrameBound: TypeAlias = int | float | decimal.Decimal | str | None
"""One end of a frame: negative for preceding, 0 for the current row, positive for following, None for unbounded. A text
is an interval, such as "-1 hour"."""

Insisted: TypeAlias = Literal["recompute", "retract"]

_OFFSET_MAX: Final = 1 << 31


@dataclass(frozen=True)
class Frame:
    """The rows that a call folds for each row of an ordered partition.

    Args:
        low: The first row.
        high: The last row.
        is_range: Whether the ends are distances of the order value (RANGE) or numbers of rows (ROWS). In RANGE, the
            current row means all rows with its order value.
        by: The way of folding that the user insists on; None if the plan chooses.

    Raises:
        RejectedError: SIGNATURE, for an end that is not valid, and for a frame whose first row follows its last row.

    >>> str(Frame(-99, 0))
    'ROWS BETWEEN 99 PRECEDING AND CURRENT ROW'
    """

    low: FrameBound
    high: FrameBound
    is_range: bool = False
    by: Insisted | None = None

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            _check_bound(bound, is_range=self.is_range)
        if self.by not in (None, "recompute", "retract"):
            raise RejectedError("SIGNATURE", f"by is 'recompute' or 'retract', and here it is {self.by!r}")
        low, high = _signed(self.low), _signed(self.high)
        if low is not None and high is not None and low > high:
            raise RejectedError("SIGNATURE", f"the frame {self} ends before it begins; give the earlier end first")

    @property
    def unit(self) -> str:
        """ROWS or RANGE."""
        return "RANGE" if self.is_range else "ROWS"

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole partition for each row."""
        return self.low is None and self.high is None

    @property
    def rows_max(self) -> int | None:
        """The largest number of rows of the frame; None if it is not bounded."""
        if self.is_range or not isinstance(self.low, int) or not isinstance(self.high, int):
            return None
        return self.high - self.low + 1

    @property
    def has_offset(self) -> bool:
        """Whether an end is a distance of the order value."""
        return self.is_range and any(bound is not None and bound != 0 for bound in (self.low, self.high))

    def __str__(self) -> str:
        return f"{self.unit} BETWEEN {_written(self.low, 'PRECEDING')} AND {_written(self.high, 'FOLLOWING')}"


def _check_bound(bound: object, *, is_range: bool) -> None:
    if bound is None or (isinstance(bound, int) and not isinstance(bound, bool)):
        if isinstance(bound, int) and not is_range and abs(bound) >= _OFFSET_MAX:
            raise RejectedError(
                "SIGNATURE", f"an end of ROWS is below 2**31, and here it is {bound}; None is unbounded"
            )
        return
    if is_range and isinstance(bound, (float, decimal.Decimal)) and math.isfinite(bound):
        return
    if is_range and isinstance(bound, str) and bound.strip().strip("-+") and not set(bound) & set("'\\\n"):
        return
    expected = "a number, an interval such as '-1 hour', or None" if is_range else "a whole number of rows, or None"
    raise RejectedError(
        "SIGNATURE", f"an end of a frame of {'RANGE' if is_range else 'ROWS'} is {expected}, not {bound!r}"
    )


def _signed(bound: FrameBound) -> float | decimal.Decimal | None:
    """Return a number that tells the side of a bound. Two intervals on the same side are not compared."""
    if not isinstance(bound, str):
        return bound
    return float("-inf") if bound.strip().startswith("-") else float("inf")


def _written(bound: FrameBound, unbounded: str) -> str:
    if bound is None:
        return f"UNBOUNDED {unbounded}"
    if not isinstance(bound, str):
        side = "CURRENT ROW" if bound == 0 else "PRECEDING" if bound < 0 else "FOLLOWING"
        return side if bound == 0 else f"{abs(bound)} {side}"
    text = bound.strip()
    return f"INTERVAL '{text.lstrip('-+').strip()}' {'PRECEDING' if text.startswith('-') else 'FOLLOWING'}"
