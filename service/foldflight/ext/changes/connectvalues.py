"""Values of Kafka Connect and Debezium in JSON as exact Python values of declared types.

A value is decoded in two steps. A *source* says what the JSON means: an integer may be days, milliseconds or a number,
and a text may be base64, hexadecimal digits or text. The schema block of the event says which, or the words of the
user. `fit` then converts the value to the declared type, exactly or not at all.

Sources: the data types of Kafka Connect (`org.apache.kafka.connect.data`) and of Debezium (`io.debezium.time`,
`io.debezium.data`).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import hashlib
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

Decode = Callable[[Any], Any]
Decimals = Literal["precise", "string", "double"]
Times = Literal["connect", "microseconds", "nanoseconds", "milliseconds", "isostring"]
Binary = Literal["bytes", "base64", "base64-url-safe", "hex"]
Intervals = Literal["numeric", "string"]

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium sends for a large value that an update did not change."""

UNAVAILABLE_FORMS: Final = frozenset(
    {
        UNAVAILABLE,
        base64.b64encode(UNAVAILABLE.encode()).decode(),
        base64.urlsafe_b64encode(UNAVAILABLE.encode()).decode(),
        UNAVAILABLE.encode().hex(),
        str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3)),
    }
)
_UNAVAILABLE_NUMBERS: Final = list(UNAVAILABLE.encode())  # of arrays of numbers
_NOT_SENT: Final = (
    "which says that a large value was not changed and not sent; let the database send whole rows "
    "(PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL), or leave the column out of the schema"
)
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a time of day without a zone
_EPOCH_DAY: Final = _EPOCH.date().toordinal()
_DAY_US: Final = 86_400_000_000
_UNITS_US: Final = {"milliseconds": 1000, "microseconds": 1}
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_SHORT_BASE64_CHARS: Final = 12  # of 8 bytes
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_DIGITS: Final = re.compile(r"-?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_FLOATS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})Z?")
_TIME: Final = r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
_TIME_OF_DAY: Final = re.compile(f"{_TIME}Z?")
_TIMESTAMP: Final = re.compile(
    rf"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})[T ]{_TIME}(Z|[+-][0-9]{{2}}:?[0-9]{{2}}|[+-][0-9]{{2}})?"
)
# Numbers of digits up to which an integer is a plausible time in a unit: of instants, and of times of a day.
_INSTANT_DIGITS: Final = {"days": 7, "milliseconds": 14, "microseconds": 17}
_TIME_DIGITS: Final = {"milliseconds": 8, "microseconds": 11}
_INTERVAL: Final = re.compile(
    r"P(?:(-?\d{1,9})Y)?(?:(-?\d{1,9})M)?(?:(-?\d{1,9})D)?"
    r"(?:T(?:(-?\d{1,12})H)?(?:(-?\d{1,12})M)?(?:(-?\d{1,15}(?:\.\d{1,9})?)S)?)?"
)
_INTERVAL_US: Final = (_DAY_US, 3_600_000_000, 60_000_000, 1_000_000)
_DURATIONS: Final = {
    "io.debezium.time.MicroDuration": decimal.Decimal(1),
    "io.debezium.time.NanoDuration": decimal.Decimal("0.001"),
}
_URL_SAFE: Final = str.maketrans("-_", "+/")
_DIGITS_MAX: Final = 100  # more than DECIMAL(38), and than most numbers of a database
_DOUBLE_DIGITS: Final = 17
_EXACT_DIGITS: Final = 200
_EXACT: Final = decimal.Context(prec=_EXACT_DIGITS, traps=[decimal.InvalidOperation])


COLUMN: Final = "{column}"
"""Stands in the text of `UnreadableValue` for the name of the column, as Python writes it."""


class UnreadableValue(ValueError):  # noqa: N818 - a reason, which the reader of events completes to an error
    """Why a value cannot be taken exactly, as the end of a sentence about the value, with what to do."""


class UnsentValue(UnreadableValue):
    """The value stands for a large one that an update did not change, and that was not sent."""


@dataclass(frozen=True)
class DescribedColumn:
    """What the schema block of an event says about a column.

    Args:
        type: The type of Kafka Connect: `int64`, `string`, `bytes`, `struct`, `array`...
        name: The semantic name, such as `io.debezium.time.MicroTimestamp`; empty without one.
        parameters: The parameters of the semantic type, such as `scale`.
        items: The items of an array.
        values: The values of a map, whose keys are texts.
    """

    type: str
    name: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    items: DescribedColumn | None = None
    values: DescribedColumn | None = None

    @classmethod
    def of(cls, field: Mapping[str, Any]) -> DescribedColumn:
        """Return the description that a field of a schema block holds."""
        items, values, parameters = field.get("items"), field.get("values"), field.get("parameters") or {}
        type_ = str(field.get("type", ""))
        if not isinstance(parameters, Mapping):  # which may say that an integer is unsigned
            type_, parameters = f"{type_} with parameters that are no object", {}
        return cls(
            type_,
            str(field.get("name") or ""),
            tuple(sorted((str(key), str(value)) for key, value in parameters.items())),
            cls.of(items) if isinstance(items, Mapping) else None,
            cls.of(values) if isinstance(values, Mapping) else None,
        )

    def parameter(self, name: str) -> str | None:
        """Return a parameter; None without it."""
        return dict(self.parameters).get(name)

    @property
    def is_unsigned(self) -> bool:
        """Whether it is MySQL's BIGINT UNSIGNED in a signed integer, whose upper half arrives as negative numbers.

        The block tells it with `datatype.propagate.source.type` or `column.propagate.source.type` only.
        """
        return self.type == "int64" and "UNSIGNED" in (self.parameter("__debezium.source.column.type") or "").upper()


@dataclass(frozen=True)
class Words:
    """What the user says about values without a schema block, in the words of Debezium's settings.

    Args:
        decimals: `decimal.handling.mode`.
        times: `time.precision.mode`, or the unit of the column.
        binary: `binary.handling.mode`.
        intervals: `interval.handling.mode`: `numeric` if no interval has months, which the connector approximates.
    """

    decimals: Decimals | None = None
    times: Times | None = None
    binary: Binary | None = None
    intervals: Intervals | None = None


def decoder(type_: pa.DataType, description: DescribedColumn | None, words: Words) -> Decode:
    """Return what converts a value of JSON, other than null, to a Python value of exactly the declared type.

    Args:
        type_: The declared type.
        description: What the schema block says; None without a schema block.
        words: What the user says about values without a schema block.

    Raises:
        UnreadableValue: From the function that is returned, for a value that the type does not hold exactly, or whose
            meaning is not known.
    """
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        if description is not None and description.type != "array":
            return _refusal_decoder(f"which is {_display_name(description)}, not an array; declare another type")
        item = decoder(type_.value_type, description.items if description else None, words)
        return lambda value: _items(value, item)
    if description is None and pa.types.is_struct(type_):
        fields = {field.name: decoder(field.type, None, words) for field in type_}
        return lambda value: _struct(value, fields)
    if pa.types.is_map(type_) and (description is None or description.type == "map"):
        if not (pa.types.is_string(type_.key_type) or pa.types.is_large_string(type_.key_type)):
            return _refusal_decoder("whose keys are texts; declare MAP<STRING, ...>")
        value_of = decoder(type_.item_type, description.values if description else None, words)
        return lambda value: _map(value, value_of)
    is_binary_text = pa.types.is_binary(type_) and description is not None and description.type == "string"
    source = (
        _default_decoder(type_, words) if description is None or is_binary_text else _described_decoder(description)
    )
    unit_us = _DURATIONS.get(description.name) if description is not None and words.intervals == "numeric" else None
    if unit_us is not None:
        source = _duration(type_, unit_us)
    is_number_text = words.decimals == "string" if description is None else description.type == "string"
    if is_number_text and (pa.types.is_integer(type_) or (description is not None and pa.types.is_decimal(type_))):
        source = _number_of_text(source)

    def decode(value: Any) -> Any:
        if type(value) is str and value in UNAVAILABLE_FORMS:
            raise UnsentValue(_NOT_SENT)
        return fit(type_, source(value))

    return decode


def _items(value: Any, item: Decode) -> list[Any]:
    if not isinstance(value, list):
        raise UnreadableValue("which is not an array")
    items = [None if each is None else item(each) for each in value]
    if _UNAVAILABLE_NUMBERS in (value, items):
        raise UnsentValue(_NOT_SENT)
    return items


def _struct(value: Any, fields: Mapping[str, Decode]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableValue("which is not an object")
    for name in fields:
        if name not in value:
            raise UnreadableValue(f"which lacks the field {name}; it has {', '.join(value) or 'none'}")
    return {name: None if value[name] is None else decode(value[name]) for name, decode in fields.items()}


def _map(value: Any, value_of: Decode) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise UnreadableValue("which is not an object")
    return [(_fit_text(pa.string(), key), None if each is None else value_of(each)) for key, each in value.items()]


def _number_of_text(source: Decode) -> Decode:
    """Return a source that takes decimals of `decimal.handling.mode=string`, too, as numbers."""
    return lambda value: decimal.Decimal(value) if type(value) is str and _DECIMAL.fullmatch(value) else source(value)


def _refusal_decoder(reason: str) -> Decode:
    def refuse(_value: Any) -> Any:
        raise UnreadableValue(reason)

    return refuse


def _display_name(description: DescribedColumn) -> str:
    return f"{description.type} ({description.name})" if description.name else description.type


# Sources of values with a description.


def _described_decoder(description: DescribedColumn) -> Decode:
    """Return what reads a value as the schema block describes it."""
    if description.name in REFUSED_TYPES:
        return _refusal_decoder(f"which is {description.name}: {REFUSED_TYPES[description.name]}")
    if description.name == "org.apache.kafka.connect.data.Decimal":
        scale = description.parameter("scale")
        if scale is None or not _DIGITS.fullmatch(scale):
            return _refusal_decoder("which is a Decimal without a scale in its schema block")
        return lambda value: _of_scale(value, int(scale))
    if description.name in SEMANTIC:
        return SEMANTIC[description.name]
    if description.is_unsigned:
        return _decode_unsigned
    if description.type in _PLAIN:
        return _PLAIN[description.type]
    return _refusal_decoder(
        f"which is {_display_name(description)}, a type without an exact reader; leave the column out of the schema"
    )


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise UnreadableValue("which is not an integer")
    return value


def _decode_unsigned(value: Any) -> int:
    if _integer(value) < 0:
        raise UnreadableValue(
            "which stands for a number that a signed integer does not hold: the column is UNSIGNED in the database; "
            "set bigint.unsigned.handling.mode=precise in the connector"
        )
    return int(value)


def _number(value: Any) -> float:
    if type(value) is str and value in _FLOATS:
        return _FLOATS[value]
    if type(value) not in (int, decimal.Decimal):
        raise UnreadableValue("which is not a number")
    number = decimal.Decimal(value)
    double = float(number)
    # A DOUBLE is written with 17 digits at most. A number with more, or an integer, is one of another type.
    if number != decimal.Decimal(double) and (type(value) is int or len(number.as_tuple().digits) > _DOUBLE_DIGITS):
        raise UnreadableValue("which DOUBLE does not hold exactly; declare DECIMAL, BIGINT or STRING")
    if math.isinf(double):
        raise UnreadableValue("which DOUBLE does not hold; declare STRING")
    return double


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise UnreadableValue("which is not a boolean")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise UnreadableValue("which is not a text")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not str or not _BASE64.fullmatch(value):
        raise UnreadableValue("which is not base64")
    return base64.b64decode(value)


def _url_safe_bytes(value: Any) -> bytes:
    return _bytes(value.translate(_URL_SAFE) if type(value) is str else value)


def _hex(value: Any) -> bytes:
    if type(value) is not str or not _HEX.fullmatch(value):
        raise UnreadableValue("which is not hexadecimal")
    return binascii.unhexlify(value)


def _decode_decimal(value: Any, scale: int) -> decimal.Decimal:
    """Return a decimal from its unscaled value: base64 of a big-endian integer in two's complement."""
    if abs(scale) > _DIGITS_MAX:
        raise UnreadableValue(f"which has the scale {scale}, and at most {_DIGITS_MAX} is read")
    if value == "":
        raise UnreadableValue("which is empty")
    unscaled_value = int.from_bytes(_bytes(value), "big", signed=True)
    if abs(unscaled_value) >= 10**_EXACT_DIGITS:
        raise UnreadableValue(f"which has more than {_EXACT_DIGITS} digits")
    return decimal.Decimal(unscaled_value).scaleb(-scale, _EXACT)


def _of_scale(value: Any, scale: int) -> decimal.Decimal:
    """Return a decimal of a known scale. With `converter.decimal.format=NUMERIC` it is a number of JSON."""
    return decimal.Decimal(value) if type(value) in (int, decimal.Decimal) else _decode_decimal(value, scale)


def _variable_scale(value: Any) -> decimal.Decimal:
    if not isinstance(value, dict) or type(value.get("scale")) is not int:
        raise UnreadableValue("which is not an object with scale and value")
    return _decode_decimal(value.get("value"), value["scale"])


def _days(value: Any) -> dt.date:
    day = _EPOCH_DAY + _integer(value)
    if not 1 <= day <= dt.date.max.toordinal():
        raise UnreadableValue("which is infinite or outside of the years 1 to 9999")
    return dt.date.fromordinal(day)


def _since_epoch(unit_us: int) -> Decode:
    return lambda value: _datetime(_integer(value) * unit_us)


def _datetime(microseconds: int) -> dt.datetime:
    try:
        return _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        raise UnreadableValue("which is infinite or outside of the years 1 to 9999") from None


def _nanoseconds(value: Any) -> int:
    """Return microseconds. The connector's nanoseconds wrap around outside of the years 1677 to 2262."""
    whole, rest = divmod(_integer(value), 1000)
    if rest:
        raise UnreadableValue("which has parts of a microsecond, which Spark's types do not hold")
    if value in INFINITE_NANOSECONDS or not -NANOSECONDS_END <= value <= NANOSECONDS_END:
        raise UnreadableValue("which stands for infinity, and for a time that is another one")
    return whole


# The last second of 64 bits on both sides: its driver's own values for infinity, and where Java's conversions end.
NANOSECONDS_END: Final = 2**63 - 10**9

# PostgreSQL's infinities are milliseconds in its driver. As nanoseconds they wrap around in 64 bits.
INFINITE_NANOSECONDS: Final = frozenset(
    (milliseconds * 1_000_000 + 2**63) % 2**64 - 2**63
    for milliseconds in (9223372036825200000, -9223372036832400000, 9223372036825200, -9223372036832400)
)


def _time_of_day(unit_us: int) -> Decode:
    return lambda value: _time(_integer(value) * unit_us)


def _time(microseconds: int) -> dt.time:
    if not 0 <= microseconds < _DAY_US:
        raise UnreadableValue(
            "which is not a time of a day (PostgreSQL's 24:00:00 and longer times of MySQL have no type)"
        )
    return (_EPOCH + dt.timedelta(microseconds=microseconds)).time()


def _iso_date(value: Any) -> dt.date:
    match = _DATE.fullmatch(_text(value))
    if match is None:
        raise UnreadableValue("which is not a date of the years 1 to 9999, as 2026-01-31")
    return _refuse_invalid(lambda: dt.date(*map(int, match.groups())))


def _iso_time(value: Any) -> dt.time:
    match = _TIME_OF_DAY.fullmatch(_text(value))
    if match is None:
        raise UnreadableValue("which is not a time of a day, as 10:11:12.5")
    return _time_of(match.groups())


def _time_of(parts: tuple[str | None, ...]) -> dt.time:
    hour, minute, second, fraction = parts
    nanoseconds = int((fraction or "0").ljust(9, "0"))
    if nanoseconds % 1000:
        raise UnreadableValue("which has parts of a microsecond, which Spark's types do not hold")
    return _refuse_invalid(lambda: dt.time(int(hour or 0), int(minute or 0), int(second or 0), nanoseconds // 1000))


def _iso_timestamp(value: Any) -> tuple[dt.datetime, str | None]:
    """Return date and time, and the zone: `Z`, an offset, or None."""
    match = _TIMESTAMP.fullmatch(_text(value))
    if match is None:
        raise UnreadableValue("which is not a timestamp of the years 1 to 9999, as 2026-01-31T10:11:12.5Z")
    year, month, day, *time, zone = match.groups()
    date = _refuse_invalid(lambda: dt.date(int(year), int(month), int(day)))
    return dt.datetime.combine(date, _time_of(tuple(time))), zone


def _refuse_invalid(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        raise UnreadableValue(f"which is not valid: {error}") from None


def _local_timestamp(value: Any) -> dt.datetime:
    """Return a timestamp without a zone. Debezium's IsoTimestamp ends with Z, although it has no zone."""
    at, zone = _iso_timestamp(value)
    if zone not in (None, "Z"):
        raise UnreadableValue("which has a zone; declare TIMESTAMP")
    return at


def _zoned_timestamp(value: Any) -> dt.datetime:
    at, zone = _iso_timestamp(value)
    if zone is None:
        raise UnreadableValue("which has no zone, so the instant is not known; declare TIMESTAMP_NTZ")
    if zone == "Z":
        return at.replace(tzinfo=dt.UTC)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        raise UnreadableValue(f"which has the offset {zone}, and a zone has at most 18 hours and 59 minutes")
    offset = dt.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    try:
        return (at - offset).replace(tzinfo=dt.UTC)
    except OverflowError:
        raise UnreadableValue("which is outside of the years 1 to 9999") from None


SEMANTIC: Final[dict[str, Decode]] = {
    "org.apache.kafka.connect.data.Date": _days,
    "org.apache.kafka.connect.data.Time": _time_of_day(1000),
    "org.apache.kafka.connect.data.Timestamp": _since_epoch(1000),
    "io.debezium.time.Date": _days,
    "io.debezium.time.Time": _time_of_day(1000),
    "io.debezium.time.MicroTime": _time_of_day(1),
    "io.debezium.time.NanoTime": lambda value: _time(_nanoseconds(value)),
    "io.debezium.time.Timestamp": _since_epoch(1000),
    "io.debezium.time.MicroTimestamp": _since_epoch(1),
    "io.debezium.time.NanoTimestamp": lambda value: _datetime(_nanoseconds(value)),
    "io.debezium.time.IsoDate": _iso_date,
    "io.debezium.time.IsoTime": _iso_time,
    "io.debezium.time.IsoTimestamp": _local_timestamp,
    "io.debezium.time.ZonedTimestamp": _zoned_timestamp,
    "io.debezium.time.ZonedTime": _text,
    "io.debezium.time.Interval": _text,
    "io.debezium.time.Year": _integer,
    "io.debezium.data.Bits": _bytes,
    "io.debezium.data.VariableScaleDecimal": _variable_scale,
}
_PLAIN: Final[dict[str, Decode]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), _integer),
    **dict.fromkeys(("float", "float32", "double", "float64"), _number),
    "boolean": _boolean,
    "string": _text,
    "bytes": _bytes,
}
REFUSED_TYPES: Final = {
    "io.debezium.time.MicroDuration": "a number of microseconds in which months have been approximated; set "
    "interval.handling.mode=string, and declare STRING; or, if no interval has months, write intervals='numeric', and "
    "declare INTERVAL DAY TO SECOND",
    "io.debezium.time.NanoDuration": "a number of nanoseconds in which months have been approximated; set "
    "interval.handling.mode=string, and declare STRING; or, if no interval has months, write intervals='numeric', and "
    "declare INTERVAL DAY TO SECOND",
    **dict.fromkeys(
        (
            "io.debezium.data.geometry.Geometry",
            "io.debezium.data.geometry.Geography",
            "io.debezium.data.geometry.Point",
        ),
        "a geometry, which has no exact reader; leave the column out of the schema",
    ),
}


# Sources of values without a description: the declared type and the words of the user tell their meaning.


def _default_decoder(type_: pa.DataType, words: Words) -> Decode:
    types = pa.types
    if types.is_decimal(type_):
        return _decimal_source(type_.scale, words.decimals)
    if types.is_binary(type_) or types.is_large_binary(type_):
        return _OF_BINARY[words.binary]
    if types.is_date(type_):
        return lambda value: _days(value) if type(value) is int else _iso_date(value)
    if types.is_time(type_):
        return lambda value: (
            _iso_time(value) if type(value) is str else _in_unit(_time, value, words.times, _TIME_DIGITS)
        )
    if types.is_timestamp(type_):
        text = _local_timestamp if type_.tz is None else _zoned_timestamp
        return lambda value: text(value) if type(value) is str else _in_unit(_datetime, value, words.times)
    if types.is_duration(type_):
        return lambda value: _assumed_interval(value, words.intervals)
    if types.is_floating(type_):
        return _assumed_number
    if types.is_integer(type_):
        return _integer
    if (types.is_string(type_) or types.is_large_string(type_)) and words.decimals in (None, "precise"):
        return _text_of_no_decimal
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise UnreadableValue("which is an object or an array; declare STRUCT, MAP or ARRAY, or leave the column out")
    return value


def _text_of_no_decimal(value: Any) -> Any:
    if type(value) is str and value.endswith("=") and _may_be_unscaled(value):
        raise UnreadableValue(
            "which seems to be base64 of a decimal, as of decimal.handling.mode=precise; declare DECIMAL with the "
            f"precision and scale of the database, or, if it is a text, write decimals={{{COLUMN}: 'string'}}, or keep "
            "the schema block (value.converter.schemas.enable=true)"
        )
    return _as_it_is(value)


def _may_be_unscaled(text: str) -> bool:
    """Return whether a text may be base64 of the unscaled value of a decimal of up to 19 digits.

    These are the fewest bytes of an integer in two's complement. Few other texts are so short, and base64.
    """
    if len(text) > _SHORT_BASE64_CHARS or not _BASE64.fullmatch(text):
        return False
    first, *rest = base64.b64decode(text)
    return not rest or first not in (0, 255) or (rest[0] < 128) != (first == 0)


def _likely_unit(number: int, units: Mapping[str, int]) -> str:
    """Return the unit with which a number is a plausible time, or "days" if it is too small for all.

    Args:
        number: An integer that a connector has sent.
        units: The units, finest last, with the greatest number of digits that a time has in them.
    """
    digits = len(str(abs(number)))
    return next((unit for unit, digits_max in units.items() if digits <= digits_max), "nanoseconds")


def _unknown_unit(number: int, units: Mapping[str, int]) -> UnreadableValue:
    unit = _likely_unit(number, units)
    days = "if it counts days, declare DATE; otherwise " if unit == "days" else ""
    unit = "microseconds" if unit == "days" else unit
    return UnreadableValue(
        f"an integer whose unit is not known; {days}write times={{{COLUMN}: '{unit}'}} if that is what the connector "
        "sends, as its digits suggest, or the unit that it sends, or keep the schema block "
        "(value.converter.schemas.enable=true)"
    )


def _microseconds(value: Any, times: Times | None, units: Mapping[str, int]) -> int:
    number = _integer(value)
    if times is None or times == "isostring":
        raise _unknown_unit(number, units)
    if times == "nanoseconds":
        return _nanoseconds(number)
    return number * _UNITS_US["milliseconds" if times == "connect" else times]


def _in_unit(convert: Decode, value: Any, times: Times | None, units: Mapping[str, int] = _INSTANT_DIGITS) -> Any:
    """Return the time of an integer. A wrong unit shows as a value that no time has, so the error names the unit."""
    if times is None or times == "isostring":
        return convert(_microseconds(value, times, units))
    try:
        return convert(_microseconds(value, times, units))
    except UnreadableValue as error:
        raise UnreadableValue(
            f"{error}; it was read as times={times!r} says: does the connector send another unit?"
        ) from None


def _assumed_number(value: Any) -> float:
    try:
        return _number(value)
    except UnreadableValue as error:
        hint = "; declare DECIMAL for a decimal that is sent as a text" if type(value) is str else ""
        raise UnreadableValue(f"{error}{hint}") from None


def _likely_decimals(value: Any) -> Decimals | None:
    """Return the setting with which the connector seems to have sent a decimal; None if it may be none or several."""
    if type(value) in (int, decimal.Decimal):
        return "double"
    if type(value) is not str or value in _FLOATS or _DIGITS.fullmatch(value):  # Infinity looks like base64
        return None
    return "string" if _DECIMAL.fullmatch(value) else "precise" if _BASE64.fullmatch(value) else None


def _decimal_source(scale: int, decimals: Decimals | None) -> Decode:
    def decode(value: Any) -> Any:
        try:
            return read(value)
        except UnreadableValue as error:
            likely = _likely_decimals(value)
            if decimals is None or likely in (None, decimals):
                raise
            raise UnreadableValue(
                f"{error}, as decimals={decimals!r} says; it seems to be of decimals={likely!r}"
            ) from None

    def read(value: Any) -> Any:
        if decimals == "precise":
            return _variable_scale(value) if isinstance(value, dict) else _decode_decimal(value, scale)
        if isinstance(value, dict):
            return _variable_scale(value)
        if type(value) in (int, decimal.Decimal):
            if decimals == "string":
                raise UnreadableValue("which is not a text")
            return value
        if type(value) is not str:
            raise UnreadableValue("which is not a number")
        if decimals == "double":
            return _number(value)
        if not _DECIMAL.fullmatch(value):
            if decimals is None and _likely_decimals(value) == "precise":
                raise UnreadableValue(
                    "which seems to be base64, as of decimal.handling.mode=precise; write decimals='precise', or keep "
                    "the schema block"
                )
            raise UnreadableValue("which is not a decimal number")
        if decimals is None and _DIGITS.fullmatch(value) and (scale > 0 or _BASE64.fullmatch(value)):
            raise UnreadableValue(
                "which may be a number or base64 of one; write decimals='string' or decimals='precise', or keep the "
                "schema block (value.converter.schemas.enable=true)"
            )
        try:
            return decimal.Decimal(value)
        except decimal.InvalidOperation:
            raise UnreadableValue("which has too large an exponent") from None

    return decode


def _unsaid_bytes(value: Any) -> bytes:
    text = _text(value)
    if text and _HEX.fullmatch(text) and _BASE64.fullmatch(text):
        raise UnreadableValue("which may be base64 or hexadecimal; write binary='base64' or binary='hex'")
    return _hex(text) if text and _HEX.fullmatch(text) else _bytes(text)


_OF_BINARY: Final[dict[Binary | None, Decode]] = {
    "bytes": _bytes,
    "base64": _bytes,
    "base64-url-safe": _url_safe_bytes,
    "hex": _hex,
    None: _unsaid_bytes,
}


def _assumed_interval(value: Any, intervals: Intervals | None) -> dt.timedelta:
    if type(value) is str:
        return _iso_interval(value)
    microseconds = _integer(value)
    if intervals != "numeric":
        raise UnreadableValue(
            "a number in which the connector has approximated months; set interval.handling.mode=string, or write "
            "intervals='numeric' if no interval has months"
        )
    return _timedelta(microseconds)


def _duration(type_: pa.DataType, unit_us: decimal.Decimal) -> Decode:
    """Return what reads the numbers of `interval.handling.mode=numeric`: a duration, or the number as it is."""

    def read(value: Any) -> Any:
        number = _integer(value)
        if not pa.types.is_duration(type_):
            return number
        microseconds = number * unit_us
        if microseconds != int(microseconds):
            raise UnreadableValue("which has parts of a microsecond, which Spark's types do not hold")
        return _timedelta(int(microseconds))

    return read


def _timedelta(microseconds: int) -> dt.timedelta:
    if not -(2**63) <= microseconds < 2**63:
        raise UnreadableValue("which INTERVAL DAY TO SECOND does not hold")
    return dt.timedelta(microseconds=microseconds)


def _iso_interval(value: Any) -> dt.timedelta:
    """Return an interval of ISO 8601, as `interval.handling.mode=string` sends it, if it has no years and months."""
    match = _INTERVAL.fullmatch(_text(value))
    if match is None:
        raise UnreadableValue("which is not an interval, as P0Y0M1DT2H3M4.5S")
    years, months, *parts = (decimal.Decimal(part or 0) for part in match.groups())
    if years or months:
        raise UnreadableValue("which has months, whose lengths differ; declare STRING")
    microseconds = sum(part * unit for part, unit in zip(parts, _INTERVAL_US, strict=True))
    if microseconds != int(microseconds):
        raise UnreadableValue("which has parts of a microsecond, which Spark's types do not hold")
    return _timedelta(int(microseconds))


# Declared types.


def fit(type_: pa.DataType, value: Any) -> Any:
    """Return a value as the declared type holds it. Raises UnreadableValue, if the type does not hold it exactly."""
    for holds, convert in _TARGETS:
        if holds(type_):
            return convert(type_, value)
    raise UnreadableValue(f"and the type {type_} is not read from events; declare STRING, or leave the column out")


def _mismatch(type_: pa.DataType, value: Any) -> UnreadableValue:
    return UnreadableValue(f"a {type(value).__name__}, which {type_} does not hold; declare another type")


def _fit_boolean(type_: pa.DataType, value: Any) -> bool:
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise _mismatch(type_, value)


def _fit_integer(type_: pa.DataType, value: Any) -> int:
    if type(value) is decimal.Decimal and _is_small(value) and value == value.to_integral_value():
        value = int(value)
    if type(value) is not int:
        raise _mismatch(type_, value)
    end = 1 << (type_.bit_width - 1)
    if not -end <= value < end:
        raise UnreadableValue(f"which {type_} does not hold; declare a wider type")
    return value


def _is_small(value: decimal.Decimal) -> bool:
    """Return whether a number has few enough digits to be written out; JSON may hold 1e999999999."""
    return value.is_finite() and abs(value.adjusted()) <= _DIGITS_MAX


def _fit_float(type_: pa.DataType, value: Any) -> float:
    if type(value) is bool or not isinstance(value, int | float | decimal.Decimal):
        raise _mismatch(type_, value)
    double = float(value)
    with np.errstate(over="ignore"):
        nearest = double if type_ == pa.float64() else float(str(np.float32(double)))
    if isinstance(value, int) and value == (double if type_ == pa.float64() else float(np.float32(double))):
        return double
    exact = value if isinstance(value, int | decimal.Decimal) else decimal.Decimal(repr(value))
    if double == double and decimal.Decimal(repr(nearest)) != exact:  # noqa: PLR0124 - not NaN
        raise UnreadableValue(f"which {type_} does not hold exactly; declare DECIMAL, DOUBLE or BIGINT")
    return double


def _fit_decimal(type_: pa.DataType, value: Any) -> decimal.Decimal:
    if type(value) is float:
        value = decimal.Decimal(repr(value))
    if type(value) is int:
        value = decimal.Decimal(value)
    if type(value) is not decimal.Decimal:
        raise _mismatch(type_, value)
    if not value.is_finite():
        raise UnreadableValue("which DECIMAL does not hold; declare DOUBLE or STRING")
    if value and (value.adjusted() >= type_.precision - type_.scale or not _is_small(value)):
        raise UnreadableValue(f"which DECIMAL({type_.precision}, {type_.scale}) does not hold; declare a wider type")
    scaled_value = value.quantize(decimal.Decimal(1).scaleb(-type_.scale), context=_EXACT)
    if scaled_value != value:
        raise UnreadableValue(f"which DECIMAL({type_.precision}, {type_.scale}) would round; declare a greater scale")
    return scaled_value


def _fit_text(type_: pa.DataType, value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if isinstance(value, dt.date | dt.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnreadableValue("which is not Unicode: it has half of a surrogate pair") from None
        return value
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f") if _is_small(value) else str(value)
    raise _mismatch(type_, value)


def _fit_binary(type_: pa.DataType, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    raise _mismatch(type_, value)


def _fit_date(type_: pa.DataType, value: Any) -> dt.date:
    if type(value) is dt.date:
        return value
    raise _mismatch(type_, value)


def _fit_time(type_: pa.DataType, value: Any) -> dt.time:
    if type(value) is dt.time:
        return value
    raise _mismatch(type_, value)


def _fit_duration(type_: pa.DataType, value: Any) -> dt.timedelta:
    if type(value) is str:
        value = _iso_interval(value)
    if type(value) is dt.timedelta:
        return value
    raise _mismatch(type_, value)


def _fit_timestamp(type_: pa.DataType, value: Any) -> dt.datetime:
    if type(value) is not dt.datetime:
        raise _mismatch(type_, value)
    if type_.tz is None and value.tzinfo is not None:
        raise UnreadableValue("which is an instant with a zone; declare TIMESTAMP")
    return value if type_.tz is None or value.tzinfo is not None else value.replace(tzinfo=dt.UTC)


_TARGETS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any], Any]], ...]] = (
    (pa.types.is_boolean, _fit_boolean),
    (pa.types.is_signed_integer, _fit_integer),
    (pa.types.is_floating, _fit_float),
    (pa.types.is_decimal, _fit_decimal),
    (lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_), _fit_text),
    (lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_), _fit_binary),
    (pa.types.is_date, _fit_date),
    (pa.types.is_time, _fit_time),
    (pa.types.is_timestamp, _fit_timestamp),
    (pa.types.is_duration, _fit_duration),
)
