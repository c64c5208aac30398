"""Values of Kafka Connect and Debezium in JSON as Arrow arrays: a column at a time.

`connectvalues` says what a value means and is the reference. A reader here converts many values at once, where it can
prove that the result is the same: all are of one type of JSON, and each passes the checks of the column. Any other
column is converted value by value, so that values are refused with the same words.
"""

from __future__ import annotations

import binascii
import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.ext.changes import connectvalues
from foldflight.ext.changes.connectvalues import DescribedColumn, UnsentValue, Words

ReadColumn = Callable[[Sequence[Any], list[int] | None], pa.Array]
"""Converts the values of a column, as `json` returns them, with numbers with a fraction as Decimal.

The list gets the places of large values that were not sent, which are NULL; without a list they are refused.
"""

_Convert = Callable[[Sequence[Any]], pa.Array | None]
"""Converts values of the same types of JSON, and None; returns None, or raises, if it cannot prove the result."""

_Converts = dict[frozenset[type], _Convert]
"""How to convert values, by their types."""

_INTEGER: Final[frozenset[type]] = frozenset({int})
_FRACTION: Final[frozenset[type]] = frozenset({decimal.Decimal})
_NUMBER: Final = _INTEGER | _FRACTION
_TEXT: Final[frozenset[type]] = frozenset({str})
_BOOLEAN: Final[frozenset[type]] = frozenset({bool})
UNPROVEN: Final = (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException)
_DAYS: Final = tuple(each.toordinal() - dt.date(1970, 1, 1).toordinal() for each in (dt.date.min, dt.date.max))
_DAY_US: Final = 86_400_000_000
_FIRST_US, _LAST_US = _DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1
_LONG: Final = pa.decimal128(38, 0)
_DOUBLE_DIGITS: Final = 15  # a decimal with at most so many digits is the same after a conversion to a double and back
_SEEN_DIGITS: Final = 17  # the most digits that the shortest text of a double has
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}Z?$"
_TIMESTAMP: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_UNITS_US: Final = {"connect": 1000, "milliseconds": 1000, "microseconds": 1}
_SINCE_EPOCH: Final = {
    "org.apache.kafka.connect.data.Timestamp": 1000,
    "io.debezium.time.Timestamp": 1000,
    "io.debezium.time.MicroTimestamp": 1,
}
_OF_DAY: Final = {
    "org.apache.kafka.connect.data.Time": 1000,
    "io.debezium.time.Time": 1000,
    "io.debezium.time.MicroTime": 1,
}
_UNAVAILABLE: Final = pa.array(sorted(connectvalues.UNAVAILABLE_FORMS), pa.string())
_UNAVAILABLE_LENGTHS: Final = pc.binary_length(_UNAVAILABLE).unique()
_TEXTS: Final = frozenset({"io.debezium.time.ZonedTime", "io.debezium.time.Interval"})
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


def column_reader(type_: pa.DataType, description: DescribedColumn | None, words: Words) -> ReadColumn:
    """Return what converts values of JSON to an array of exactly the declared type.

    The arguments, and the errors of the function that is returned, are as in `connectvalues.decoder`.
    """
    decode = connectvalues.decoder(type_, description, words)
    converts = (
        _default_converters(type_, words) if description is None else _described_converters(type_, description, words)
    )

    def read_column(values: Sequence[Any], unsent_places: list[int] | None) -> pa.Array:
        kinds = set(map(type, values))
        kinds.discard(type(None))
        if not kinds:
            return pa.nulls(len(values), type_)
        convert = converts.get(frozenset(kinds))
        if convert is not None:
            try:
                column = convert(values)
            except UNPROVEN:
                column = None
            if column is not None:
                return column
        decoded_values: list[Any] = []
        for place, value in enumerate(values):
            try:
                decoded_values.append(None if value is None else decode(value))
            except UnsentValue:
                if unsent_places is None:
                    raise
                unsent_places.append(place)
                decoded_values.append(None)
        return pa.array(decoded_values, type_)

    return read_column


def _described_converters(type_: pa.DataType, description: DescribedColumn, words: Words) -> _Converts:
    """Return how to convert values with a description, by their type in JSON."""
    name, types = description.name, pa.types
    if types.is_binary(type_) and description.type == "string":
        return _default_converters(type_, words)
    if name == _DECIMAL:
        scale = description.parameter("scale") or ""
        return _unscaled_decimals(type_, int(scale)) if scale.removeprefix("-").isdecimal() else {}
    if name in connectvalues.SEMANTIC:
        return _semantic(type_, name)
    if name in connectvalues.REFUSED_TYPES or description.is_unsigned:
        return {}
    match description.type:
        case "int8" | "int16" | "int32" | "int64" if types.is_signed_integer(type_):
            return {_INTEGER: partial(pa.array, type=type_)}
        case "float" | "float32" | "double" | "float64" if types.is_floating(type_):
            return {_FRACTION: partial(_doubles, type_)}
        case "float" | "float32" | "double" | "float64" if types.is_decimal128(type_):
            return {_FRACTION: partial(_decimals_of_doubles, type_)}
        case "boolean" if types.is_boolean(type_):
            return {_BOOLEAN: partial(pa.array, type=type_)}
        case "string" if types.is_string(type_):
            return {_TEXT: _texts}
        case "string" if types.is_decimal128(type_):
            return {_TEXT: partial(_decimals_of_texts, type_, _WITH_EXPONENT)}
        case "bytes" if types.is_binary(type_):
            return {_TEXT: partial(_bytes, _of_base64)}
    return {}


def _semantic(type_: pa.DataType, name: str) -> _Converts:
    types, kind = pa.types, name.rpartition(".")[2]
    if name in _SINCE_EPOCH and _is_timestamp(type_):
        return {_INTEGER: partial(_integers_in_unit, type_, _SINCE_EPOCH[name], _FIRST_US, _LAST_US)}
    if name in _OF_DAY and type_ == pa.time64("us"):
        return {_INTEGER: partial(_integers_in_unit, type_, _OF_DAY[name], 0, _DAY_US - 1)}
    if kind in ("Date", "IsoDate") and types.is_date32(type_):
        return {_INTEGER: partial(_days, type_)} if kind == "Date" else {_TEXT: partial(_dates, type_)}
    if kind == "NanoTimestamp" and _is_timestamp(type_):
        return {_INTEGER: partial(_nanoseconds, type_, _FIRST_US, _LAST_US)}
    if kind == "NanoTime" and type_ == pa.time64("us"):
        return {_INTEGER: partial(_nanoseconds, type_, 0, _DAY_US - 1)}
    if kind == "IsoTimestamp" and _is_timestamp(type_) and type_.tz is None:
        return {_TEXT: partial(_timestamps, type_)}
    if kind == "ZonedTimestamp" and _is_timestamp(type_) and type_.tz is not None:
        return {_TEXT: partial(_timestamps, type_)}
    if name in _TEXTS and types.is_string(type_):
        return {_TEXT: _texts}
    if kind == "Year" and types.is_signed_integer(type_):
        return {_INTEGER: partial(pa.array, type=type_)}
    if kind == "Bits" and types.is_binary(type_):
        return {_TEXT: partial(_bytes, _of_base64)}
    return {}


def _default_converters(type_: pa.DataType, words: Words) -> _Converts:
    """Return how to convert values without a description, by their type in JSON."""
    types, unit_us = pa.types, _UNITS_US.get(words.times or "")
    if types.is_signed_integer(type_):
        return {_INTEGER: partial(pa.array, type=type_)}
    if types.is_floating(type_):
        return {_FRACTION: partial(_doubles, type_)}
    if types.is_boolean(type_):
        return {_BOOLEAN: partial(pa.array, type=type_)}
    if types.is_string(type_):
        return {_TEXT: _texts_of_no_decimals if words.decimals in (None, "precise") else _texts}
    if types.is_binary(type_):
        of = {"base64": _of_base64, "bytes": _of_base64, "hex": binascii.unhexlify}.get(words.binary or "")
        return {} if of is None else {_TEXT: partial(_bytes, of)}
    if types.is_date32(type_):
        return {_INTEGER: partial(_days, type_), _TEXT: partial(_dates, type_)}
    if type_ == pa.time64("us") and unit_us is not None:
        return {_INTEGER: partial(_integers_in_unit, type_, unit_us, 0, _DAY_US - 1)}
    if _is_timestamp(type_):
        of_texts: _Converts = {_TEXT: partial(_timestamps, type_)}
        if words.times == "nanoseconds":
            return {_INTEGER: partial(_nanoseconds, type_, _FIRST_US, _LAST_US), **of_texts}
        if unit_us is None:
            return of_texts
        return {_INTEGER: partial(_integers_in_unit, type_, unit_us, _FIRST_US, _LAST_US), **of_texts}
    if types.is_decimal128(type_):
        numbers: _Converts = dict.fromkeys((_INTEGER, _FRACTION, _NUMBER), partial(_decimals, type_))
        match words.decimals:
            case "precise":
                return {_TEXT: partial(_decode_decimals, type_, type_.scale)}
            case "string":
                return {_TEXT: partial(_decimals_of_texts, type_, _WITH_EXPONENT)}
            case "double":
                return numbers
        return {**numbers, _TEXT: partial(_decimals_of_texts, type_, _WITH_POINT)}
    return {}


def _unscaled_decimals(type_: pa.DataType, scale: int) -> _Converts:
    if not pa.types.is_decimal128(type_):
        return {}
    numbers = dict.fromkeys((_INTEGER, _FRACTION, _NUMBER), partial(_decimals, type_))
    return {_TEXT: partial(_decode_decimals, type_, scale), **numbers}  # numbers: converter.decimal.format=NUMERIC


def _is_timestamp(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.unit == "us"


# Conversions of values of one type of JSON.


def _texts(values: Sequence[Any]) -> pa.Array | None:
    texts = pa.array(values, pa.string())
    # To compare the lengths first is three times as fast.
    may_be_unsent = pc.is_in(pc.binary_length(texts), _UNAVAILABLE_LENGTHS)
    if pc.any(may_be_unsent).as_py() and pc.any(pc.is_in(texts, _UNAVAILABLE)).as_py():
        return None
    return texts


def _texts_of_no_decimals(values: Sequence[Any]) -> pa.Array | None:
    # A text that ends with `=` may be a decimal in base64, which is refused for a column of texts.
    texts = _texts(values)
    return None if texts is None or pc.any(pc.ends_with(texts, "="), min_count=0).as_py() else texts


def _of_base64(text: str) -> bytes:
    if len(text) % 4 or text.endswith("==="):  # padding behind whole groups, which `binascii` takes
        raise ValueError("a text is not base64")
    return binascii.a2b_base64(text, strict_mode=True)


def _bytes(convert: Callable[[str], bytes], values: Sequence[Any]) -> pa.Array | None:
    if not connectvalues.UNAVAILABLE_FORMS.isdisjoint(values):
        return None
    return pa.array([None if value is None else convert(value) for value in values], pa.binary())


def _decode_decimals(type_: pa.DataType, scale: int, values: Sequence[Any]) -> pa.Array | None:
    """Return decimals from base64 of their unscaled values, if these are integers of 64 bits."""
    if "" in values or not -38 <= scale <= 38:
        return None
    decode, integer = _of_base64, int.from_bytes
    unscaled_values = [None if value is None else integer(decode(value), "big", signed=True) for value in values]
    integers = pa.array(unscaled_values, pa.int64())
    # Arrow's cast multiplies without a check for 128 bits, so it would return another number.
    end = 10 ** max(type_.precision - type_.scale + scale, 0)
    if not _are_between(integers, 1 - end, end - 1):
        return None
    whole = integers.cast(_LONG)
    # The same integers with another scale; the cast refuses what the declared type would round or not hold.
    scaled_array = pa.Array.from_buffers(pa.decimal128(38, scale), len(whole), whole.buffers(), whole.null_count)
    return scaled_array.cast(type_)


def _decimals(type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, type_)  # refuses to round


def _decimals_of_doubles(type_: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    """Return decimals that are written as doubles, if they have few enough digits."""
    if type_.precision > _DOUBLE_DIGITS or not _have_few_digits(values):
        return None
    return pa.array(values, type_)


def _have_few_digits(values: Sequence[Any]) -> bool:
    """Return whether Decimals have at most 17 digits each."""
    # A text with so few characters has so few digits; few texts are longer.
    return all(len(str(each)) <= _SEEN_DIGITS or len(each.as_tuple().digits) <= _SEEN_DIGITS for each in values if each)


_WITH_POINT: Final = r"^[+-]?[0-9]+\.[0-9]*$"  # without a point it may be base64
_WITH_EXPONENT: Final = r"^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$"


def _decimals_of_texts(type_: pa.DataType, pattern: str, values: Sequence[Any]) -> pa.Array | None:
    if not _all(pc.match_substring_regex(pa.array(values, pa.string()), pattern)):
        return None
    return pa.array([None if value is None else decimal.Decimal(value) for value in values], type_)


def _doubles(type_: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    texts = [None if value is None else str(value) for value in values]
    if max(map(len, filter(None, texts)), default=0) > _SEEN_DIGITS and not _have_few_digits(values):
        return None
    doubles = pa.array(texts, pa.string()).cast(pa.float64())
    if not _all(pc.is_finite(doubles)):
        return None
    if pa.types.is_float64(type_):
        return doubles
    single = doubles.cast(pa.float32())
    # As written, which is with the fewest digits, both are the same number.
    same = pa.types.is_float32(type_) and _all(pc.equal(single.cast(pa.string()).cast(pa.float64()), doubles))
    return single if same else None


def _integers_in_unit(
    type_: pa.DataType, unit_us: int, first_us: int, last_us: int, values: Sequence[Any]
) -> pa.Array | None:
    numbers = pa.array(values, pa.int64())
    if not _are_between(numbers, -(-first_us // unit_us), last_us // unit_us):
        return None
    return (numbers if unit_us == 1 else pc.multiply_checked(numbers, unit_us)).cast(type_)


def _nanoseconds(type_: pa.DataType, first_us: int, last_us: int, values: Sequence[Any]) -> pa.Array | None:
    if not connectvalues.INFINITE_NANOSECONDS.isdisjoint(values):
        return None
    numbers = pa.array(values, pa.int64())
    if not _are_between(numbers, -connectvalues.NANOSECONDS_END, connectvalues.NANOSECONDS_END):
        return None
    microseconds = pc.divide(numbers, 1000)
    is_whole = _all(pc.equal(pc.multiply(microseconds, 1000), numbers))
    return microseconds.cast(type_) if is_whole and _are_between(microseconds, first_us, last_us) else None


def _days(type_: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    days = pa.array(values, pa.int32())
    return days.cast(type_) if _are_between(days, *_DAYS) else None


def _dates(type_: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    texts = pa.array(values, pa.string())
    if not _all(pc.match_substring_regex(texts, _DATE)):
        return None
    dates = pc.utf8_rtrim(texts, characters="Z").cast(type_)
    return dates if _are_between(dates.cast(pa.int32()), *_DAYS) else None


def _timestamps(type_: pa.DataType, values: Sequence[Any]) -> pa.Array | None:
    texts = pa.array(values, pa.string())
    if not _all(pc.match_substring_regex(texts, _TIMESTAMP + ("Z?$" if type_.tz is None else "Z$"))):
        return None
    timestamps = (pc.utf8_rtrim(texts, characters="Z") if type_.tz is None else texts).cast(type_)
    return timestamps if _are_between(timestamps.cast(pa.int64()), _FIRST_US, _LAST_US) else None


def _all(conditions: pa.Array) -> bool:
    """Return whether conditions hold for all values but NULL."""
    return bool(pc.all(conditions, min_count=0).as_py())


def _are_between(numbers: pa.Array, first: int, last: int) -> bool:
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (first <= ends["min"] and ends["max"] <= last)
