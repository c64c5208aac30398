"""The window frame of an aggregate over a window: which rows around a row it folds."""

from __future__ import annotations

import decimal
import math
import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from foldflight.errors import RejectedError

FrameBound: TypeAlias = int | float | decimal.Decimal | str | None
"""One end of a window frame: negative for preceding, 0 for the current row, positive for following, None for unbounded.
A text is an interval, such as "-1 hour"."""

ForcedWay: TypeAlias = Literal["recompute", "retract"]
"""A way of folding that a user may insist on."""

_OFFSET_MAX: Final = 1 << 31

_MONTHS: Final = {"year": 12, "month": 1}
_DAYS: Final = {"week": 7, "day": 1}
_MICROSECONDS: Final = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1000,
    "microsecond": 1,
}
_UNITS: Final = "|".join([*_MONTHS, *_DAYS, *_MICROSECONDS])
_TERM: Final = re.compile(rf"\s*([-+]?)\s*(\d+)\s*({_UNITS})s?\b", re.IGNORECASE)
_SIGNED: Final = re.compile(r"\s*([-+]?)\s*(\d+)")
_DAY: Final = 24 * _MICROSECONDS["hour"]
_MONTH_DAYS_MIN, _MONTH_DAYS_MAX = 28, 31


class Interval(NamedTuple):
    """The text of an interval, as numbers."""

    months: int
    days: int
    microseconds: int


def interval_of(text: str) -> Interval | None:
    """Return the interval that a text means; None if only Spark may know.

    >>> interval_of("-1 day 2 hours")
    Interval(months=0, days=-1, microseconds=7200000000)
    """
    months = days = microseconds = index = 0
    text = text.rstrip()
    while index < len(text):
        match = _TERM.match(text, index)
        if match is None:
            return None
        sign, digits, unit = match.groups()
        number, unit, index = int(sign + digits), unit.lower(), match.end()
        months += number * _MONTHS.get(unit, 0)
        days += number * _DAYS.get(unit, 0)
        microseconds += number * _MICROSECONDS.get(unit, 0)
    return Interval(months, days, microseconds)


@dataclass(frozen=True)
class WindowFrame:
    """The rows that a call folds for each row of an ordered partition.

    Args:
        low: The first row.
        high: The last row.
        is_range: Whether the ends are distances of the order value (RANGE) or numbers of rows (ROWS). In RANGE, the
            current row means all rows with its order value.
        by: How the call is folded, if the user has chosen it with `by=`; None if the plan chooses.

    Raises:
        RejectedError: SIGNATURE, for an end that is not valid, and for a window frame whose first row follows its last
            row.

    >>> str(WindowFrame(-99, 0))
    'ROWS BETWEEN 99 PRECEDING AND CURRENT ROW'
    >>> str(WindowFrame("-1 day 2 hours", "1 hour", is_range=True))
    "RANGE BETWEEN INTERVAL '1 day -2 hours' PRECEDING AND INTERVAL '1 hour' FOLLOWING"
    """

    low: FrameBound
    high: FrameBound
    is_range: bool = False
    by: ForcedWay | None = None

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            _check_bound(bound, is_range=self.is_range)
        if self.by not in (None, "recompute", "retract"):
            raise RejectedError("SIGNATURE", f"by is 'recompute' or 'retract', and here it is {self.by!r}")
        if self.low is not None and self.high is not None and _is_after(self.low, self.high):
            raise RejectedError("SIGNATURE", f"the frame {self} ends before it begins; give the earlier end first")

    @classmethod
    def default(cls, *, has_order: bool) -> WindowFrame:
        """Return SQL's default window frame: up to the rows with the same order, or the whole partition."""
        return cls(None, 0, is_range=True) if has_order else cls(None, None)

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
        """The largest number of rows of the window frame; None if it is not bounded."""
        if self.is_range or not isinstance(self.low, int) or not isinstance(self.high, int):
            return None
        return self.high - self.low + 1

    @property
    def has_offset(self) -> bool:
        """Whether an end is a distance of the order value."""
        return self.is_range and any(bound is not None and bound != 0 for bound in (self.low, self.high))

    def __str__(self) -> str:
        return f"{self.unit} BETWEEN {_bound_text(self.low, 'PRECEDING')} AND {_bound_text(self.high, 'FOLLOWING')}"


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


def _is_after(low: float | decimal.Decimal | str, high: float | decimal.Decimal | str) -> bool:
    """Whether one end is after another one at every row. Months have 28 to 31 days."""
    one, two = (interval_of(bound) if isinstance(bound, str) else Interval(0, 0, 0) for bound in (low, high))
    if (isinstance(low, str) or isinstance(high, str)) and one is not None and two is not None:
        months = one.months - two.months
        days = one.days - two.days + months * (_MONTH_DAYS_MIN if months > 0 else _MONTH_DAYS_MAX)
        return days * _DAY + one.microseconds - two.microseconds > 0
    return _side_of(low) > _side_of(high)


def _side_of(bound: float | decimal.Decimal | str) -> float | decimal.Decimal:
    """Return a number that tells the side of a bound."""
    if not isinstance(bound, str):
        return bound
    return float("-inf") if bound.strip().startswith("-") else float("inf")


def _bound_text(bound: FrameBound, direction: str) -> str:
    if bound is None:
        return f"UNBOUNDED {direction}"
    if not isinstance(bound, str):
        side = "CURRENT ROW" if bound == 0 else "PRECEDING" if bound < 0 else "FOLLOWING"
        return side if bound == 0 else f"{abs(bound)} {side}"
    text = bound.strip()
    if not text.startswith("-"):
        return f"INTERVAL '{text.lstrip('+').strip()}' FOLLOWING"
    if interval_of(text) is None:
        return f"INTERVAL '{text.lstrip('-').strip()}' PRECEDING"
    # The first term tells the side, so the sign of each term is turned.
    negated_text = _SIGNED.sub(lambda match: f" {'' if match[1] == '-' else '-'}{match[2]}", text)
    return f"INTERVAL '{negated_text.strip()}' PRECEDING"
