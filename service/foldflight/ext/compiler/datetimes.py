"""Dates, timestamps, times and durations in compiled code: attributes, methods, differences and sums, as in `datetime`.

A date is an integer number of days; the others are microseconds. Each function returns Python's result, or raises, and
the interpreter then repeats the row.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from foldflight.ext.compiler import arithmetic
from foldflight.ext.compiler.generated import register_jitable
from foldflight.ext.compiler.value_types import CONVERTERS, as_number, decode_kind, implementation, inner_kind, kind_of
from foldflight.fold.machine_values import MOMENTS, TEXTS
from foldflight.fold.mode import Unsupported

_DAY: Final = 86_400_000_000  # microseconds
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()  # days
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_UTC: Final = datetime.UTC
# The parameters of `timedelta`, in microseconds.
DURATION: Final = {
    "days": _DAY,
    "seconds": 1_000_000,
    "microseconds": 1,
    "milliseconds": 1000,
    "minutes": 60_000_000,
    "hours": 3_600_000_000,
    "weeks": 7 * _DAY,
}


def number_of(value: Any) -> tuple[str, int] | None:
    """Return the kind of a date or time and the integer that stands for it; None for other objects and out of range."""
    if type(value) is datetime.date:
        return "date", value.toordinal() - _EPOCH
    if type(value) is datetime.datetime and value.tzinfo in (None, _UTC):
        since = value - datetime.datetime(1970, 1, 1, tzinfo=value.tzinfo)
        return ("timestamp" if value.tzinfo is None else "instant"), since // _MICROSECOND
    if type(value) is datetime.time and value.tzinfo is None:
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return "time", seconds * 1_000_000 + value.microsecond
    if type(value) is datetime.timedelta:
        number = value // _MICROSECOND
        low, high = MOMENTS["duration"]
        return ("duration", number) if low <= number <= high else None
    return None


# --- the calendar -----------------------------------------------------------------------------------------------------
# Days to and from years, months and days: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms". Years begin in
# March there, so that leap days are last.


@register_jitable
def civil(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of a number of days after 1970-01-01."""
    shifted_days = days + 719_468
    era = shifted_days // 146_097
    day = shifted_days - era * 146_097
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    return year + era * 400 + (1 if month >= 10 else 0), month + 3 if month < 10 else month - 9, day


@register_jitable
def _days_of(year: int, month: int, day: int) -> int:
    if not (1 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError
    shifted_year = year - 1 if month <= 2 else year
    era = shifted_year // 400
    of_era = shifted_year - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468
    if civil(days)[1] != month:
        raise ValueError  # there is no such day in this month
    return days


@register_jitable
def day_of_year(days: int) -> int:
    """Return which day of its year a number of days after 1970-01-01 is, from 1 on."""
    return days - _days_of(civil(days)[0], 1, 1) + 1


_day: Final = register_jitable(lambda a: a // _DAY)
_since_midnight: Final = register_jitable(lambda a: a - a // _DAY * _DAY)
_seconds: Final = register_jitable(lambda a: arithmetic.truediv_int(a, 1_000_000))

# --- attributes and methods without arguments -------------------------------------------------------------------------


def _of_kinds(name: str, **functions: tuple[Any, str]) -> Any:
    """Return the implementation of an attribute or method: for each kind, a function and the kind of its result."""

    @implementation
    def choose(a: Any) -> Any:
        kind = inner_kind(a)
        if kind not in functions:
            raise Unsupported(f"it uses the attribute {name} of a value")
        function, result = functions[kind]
        convert, decode = CONVERTERS[kind], decode_kind(result)
        return lambda a: decode(function(as_number(convert(a))))

    return choose


def _calendar(name: str, function: Callable[[int], int]) -> Any:
    """Return the implementation of an attribute or method of the day."""
    of_days: Any = register_jitable(function)
    of_times = register_jitable(lambda a: of_days(_day(a)))
    return _of_kinds(name, date=(of_days, "int"), timestamp=(of_times, "int"), instant=(of_times, "int"))


def _clock(name: str, function: Callable[[int], int]) -> Any:
    """Return the implementation of an attribute or method of the time of day."""
    of_day: Any = register_jitable(function)
    of_times = register_jitable(lambda a: of_day(_since_midnight(a)))
    return _of_kinds(name, time=(of_day, "int"), timestamp=(of_times, "int"), instant=(of_times, "int"))


ATTRIBUTES: Final[dict[str, Any]] = {
    "year": _calendar("year", lambda a: civil(a)[0]),
    "month": _calendar("month", lambda a: civil(a)[1]),
    "day": _calendar("day", lambda a: civil(a)[2]),
    "hour": _clock("hour", lambda a: a // 3_600_000_000),
    "minute": _clock("minute", lambda a: a // 60_000_000 % 60),
    "second": _clock("second", lambda a: a // 1_000_000 % 60),
    "microsecond": _clock("microsecond", lambda a: a % 1_000_000),
    "days": _of_kinds("days", duration=(_day, "int")),
    "seconds": _of_kinds("seconds", duration=(register_jitable(lambda a: _since_midnight(a) // 1_000_000), "int")),
    "microseconds": _of_kinds("microseconds", duration=(register_jitable(lambda a: a % 1_000_000), "int")),
}


class IsoCalendarDate(NamedTuple):
    """The result of `isocalendar`, a named tuple as in Python."""

    year: int
    week: int
    weekday: int


@register_jitable
def _iso_calendar(days: int) -> Any:
    year, weekday = civil(days)[0], (days + 3) % 7
    thursday = days - weekday + 3  # its year is the year of the week
    if thursday < _days_of(year, 1, 1):
        year -= 1
    elif year < 9999 and thursday >= _days_of(year + 1, 1, 1):
        year += 1
    return IsoCalendarDate(year, (thursday - _days_of(year, 1, 1)) // 7 + 1, weekday + 1)


@implementation
def _iso_calendar_of(a: Any) -> Any:
    """Implement `a.isocalendar()`."""
    kind = inner_kind(a)
    if kind not in ("date", "timestamp", "instant"):
        raise Unsupported("it uses the attribute isocalendar of a value")
    convert, is_date = CONVERTERS[kind], kind == "date"
    return lambda a: _iso_calendar(as_number(convert(a)) if is_date else _day(as_number(convert(a))))


METHODS: Final[dict[str, Any]] = {
    "isocalendar": _iso_calendar_of,
    "weekday": _calendar("weekday", lambda a: (a + 3) % 7),
    "isoweekday": _calendar("isoweekday", lambda a: (a + 3) % 7 + 1),
    "toordinal": _calendar("toordinal", lambda a: a + _EPOCH),
    "date": _of_kinds("date", timestamp=(_day, "date"), instant=(_day, "date")),
    "time": _of_kinds("time", timestamp=(_since_midnight, "time"), instant=(_since_midnight, "time")),
    "timestamp": _of_kinds("timestamp", instant=(_seconds, "float")),  # without a zone, it depends on the machine
    "total_seconds": _of_kinds("total_seconds", duration=(_seconds, "float")),
}

# --- operators --------------------------------------------------------------------------------------------------------


def _within(kind: str) -> Any:
    """Return a function that checks that an integer is in the range of a kind, and raises if it is not."""
    low, high = MOMENTS[kind]

    @register_jitable
    def check(a: int) -> int:
        if not low <= a <= high:
            raise OverflowError
        return a

    return check


_as_date: Final = _within("date")
_as_timestamp: Final = _within("timestamp")
_as_duration: Final = _within("duration")


@register_jitable
def _round_quotient(a: int, b: int) -> int:
    """Return a / b rounded to the nearest integer, halves to even."""
    quotient = arithmetic.floordiv_int(a, b)
    rest = arithmetic.mod_int(a, b)
    half = rest - (b - rest)
    half = half if b > 0 else -half
    return quotient + 1 if half > 0 or (half == 0 and rest != 0 and quotient % 2 != 0) else quotient


negate: Final = register_jitable(lambda a: _as_duration(arithmetic.neg_int(a)))


def _duration(function: Any) -> Any:
    """Return a function of two integers that checks that the result is in the range of durations."""
    return register_jitable(lambda a, b: _as_duration(function(a, b)))


_subtract: Final = _duration(arithmetic.sub_int)
_times: Final = _duration(arithmetic.mul_int)
_later: Final = register_jitable(lambda a, b: _as_timestamp(arithmetic.add_int(a, b)))
_earlier: Final = register_jitable(lambda a, b: _as_timestamp(arithmetic.sub_int(a, b)))
_later_day: Final = register_jitable(lambda a, b: _as_date(a + _day(b)))
_earlier_day: Final = register_jitable(lambda a, b: _as_date(a - _day(b)))
_swapped_day: Final = register_jitable(lambda a, b: _as_date(b + _day(a)))
_days_between: Final = register_jitable(lambda a, b: (a - b) * _DAY)

# Operators by symbol and kinds of the operands: the function of the integers, and the kind of the result.
ARITHMETIC: Final[dict[tuple[str, str, str], tuple[Any, str]]] = {
    ("-", "date", "date"): (_days_between, "duration"),
    ("+", "date", "duration"): (_later_day, "date"),
    ("+", "duration", "date"): (_swapped_day, "date"),
    ("-", "date", "duration"): (_earlier_day, "date"),
    ("+", "duration", "duration"): (_duration(arithmetic.add_int), "duration"),
    ("-", "duration", "duration"): (_subtract, "duration"),
    ("*", "duration", "int"): (_times, "duration"),
    ("*", "int", "duration"): (_times, "duration"),
    ("/", "duration", "int"): (_duration(_round_quotient), "duration"),
    ("//", "duration", "int"): (_duration(arithmetic.floordiv_int), "duration"),
    ("/", "duration", "duration"): (arithmetic.truediv_int, "float"),
    ("//", "duration", "duration"): (arithmetic.floordiv_int, "int"),
    ("%", "duration", "duration"): (arithmetic.mod_int, "duration"),
    **{("-", kind, kind): (_subtract, "duration") for kind in ("timestamp", "instant")},
    **{("+", kind, "duration"): (_later, kind) for kind in ("timestamp", "instant")},
    **{("+", "duration", kind): (_later, kind) for kind in ("timestamp", "instant")},
    **{("-", kind, "duration"): (_earlier, kind) for kind in ("timestamp", "instant")},
}


@implementation
def duration_of(
    days: Any, seconds: Any, microseconds: Any, milliseconds: Any, minutes: Any, hours: Any, weeks: Any
) -> Any:
    """Implement `timedelta(...)` of whole numbers."""
    actual = (days, seconds, microseconds, milliseconds, minutes, hours, weeks)
    if any(kind_of(each) != "int" for each in actual):
        raise Unsupported("it calls timedelta with something other than whole numbers")
    decode = decode_kind("duration")
    factors = tuple(DURATION.values())

    def duration(days, seconds, microseconds, milliseconds, minutes, hours, weeks):
        total = 0
        actual = (days, seconds, microseconds, milliseconds, minutes, hours, weeks)
        for index in range(len(actual)):
            total = arithmetic.add_int(total, arithmetic.mul_int(actual[index], factors[index]))
        return decode(_as_duration(total))

    return duration


@implementation
def date_of(year: Any, month: Any, day: Any) -> Any:
    """Implement `date(year, month, day)`."""
    if any(kind_of(each) != "int" for each in (year, month, day)):
        raise Unsupported("it calls date with something other than whole numbers")
    decode = decode_kind("date")
    return lambda year, month, day: decode(_days_of(year, month, day))


REPLACE_PARAMETERS: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond")


@register_jitable
def _element(value: int, limit: int) -> int:
    if not 0 <= value < limit:
        raise ValueError
    return value


@implementation
def replace_parts(
    a: Any, year: Any, month: Any, day: Any, hour: Any, minute: Any, second: Any, microsecond: Any
) -> Any:
    """Implement `a.replace(year=..., ...)`, where None keeps the value."""
    kind = inner_kind(a)
    parts = (year, month, day, hour, minute, second, microsecond)
    if kind in TEXTS:
        raise Unsupported(f"it calls replace of {kind} with names or a count; two arguments are compiled")
    if kind not in ("date", "timestamp", "instant") or any(kind_of(each) not in ("int", "none") for each in parts):
        raise Unsupported("it uses the attribute replace of a value")
    if kind == "date" and any(kind_of(each) == "int" for each in parts[3:]):
        raise Unsupported("it replaces the time of a date")
    convert, decode, is_date = CONVERTERS[kind], decode_kind(kind), kind == "date"

    def replace(a, year, month, day, hour, minute, second, microsecond):
        number = as_number(convert(a))
        old = civil(number if is_date else _day(number))
        days = _days_of(
            old[0] if year is None else year, old[1] if month is None else month, old[2] if day is None else day
        )
        if is_date:
            return decode(days)
        clock = _since_midnight(number)
        rest = _element(clock // 3_600_000_000 if hour is None else hour, 24)
        rest = rest * 60 + _element(clock // 60_000_000 % 60 if minute is None else minute, 60)
        rest = rest * 60 + _element(clock // 1_000_000 % 60 if second is None else second, 60)
        rest = rest * 1_000_000 + _element(clock % 1_000_000 if microsecond is None else microsecond, 1_000_000)
        return decode(days * _DAY + rest)

    return replace
