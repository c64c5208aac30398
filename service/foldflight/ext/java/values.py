"""Conversion between values of Java and of Python, by the Java type of a parameter, a field or a result."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.functions.types.sql import parse_type, sql_name

PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_BOXES: Final = {
    "java.lang.Boolean": "boolean",
    "java.lang.Byte": "byte",
    "java.lang.Short": "short",
    "java.lang.Integer": "int",
    "java.lang.Long": "long",
    "java.lang.Float": "float",
    "java.lang.Double": "double",
}
_LISTS: Final = ("java.util.List", "java.util.ArrayList")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_KNOWN: Final = (
    "boolean, byte, short, int, long, float, double and their boxes, String, BigDecimal, byte[], LocalDate, LocalTime, "
    "LocalDateTime, Instant, arrays and List<...> of these"
)


class UnknownType(Exception):  # noqa: N818 - the caller, which knows the class and the method, raises its error
    """A Java type that has no SQL type here."""


@dataclass(frozen=True)
class Value:
    """The conversion of values of one Java type.

    Args:
        arrow: Their Arrow type.
        java: The Java type's name.
        into: Converts a Python value to Java; None only if `is_nullable`. Default: JPype converts it.
        out: Converts a Java value to Python, and null to None.
        is_primitive: Whether it is a primitive type, which has no null.
        is_immutable: Whether values cannot be changed in place.
    """

    arrow: pa.DataType
    java: str
    into: Callable[[Any], Any] | None
    out: Callable[[Any], Any]
    is_primitive: bool = False
    is_immutable: bool = True


def value_of(jpype: Any, type_: Any, hint: str = "") -> Value:
    """Return the conversion of a Java type.

    Args:
        jpype: The module, started.
        type_: A `java.lang.reflect.Type`.
        hint: The SQL type of an annotation `DataTypeHint`, for decimals.

    Raises:
        UnknownType: There is none, or the hint contradicts the type.
        RejectedError: SIGNATURE, if the hint is not a type.
    """
    value = _value(jpype, type_)
    if not hint:
        return value
    hinted = parse_type(hint)
    if hinted != value.arrow and not (pa.types.is_decimal(hinted) and pa.types.is_decimal(value.arrow)):
        raise UnknownType(f"DataTypeHint({hint}) contradicts the type {value.java}, which is {sql_name(value.arrow)}")
    return Value(hinted, value.java, value.into, value.out, value.is_primitive, value.is_immutable)


def hint_of(annotations: Any) -> str:
    """Return the text of the first annotation with the simple name `DataTypeHint`, of any package; empty if none."""
    for annotation in annotations:
        kind = annotation.annotationType()
        if str(kind.getSimpleName()) == "DataTypeHint":
            return str(kind.getMethod("value").invoke(annotation) or "")
    return ""


def _value(jpype: Any, type_: Any) -> Value:
    name = str(type_.getTypeName())
    if name in PRIMITIVES:
        return Value(PRIMITIVES[name], name, None, _plain(PRIMITIVES[name]), is_primitive=True)
    if name in _BOXES:
        arrow, box, out = PRIMITIVES[_BOXES[name]], jpype.JClass(name), _plain(PRIMITIVES[_BOXES[name]])
        return Value(arrow, name, _nullable(box), _nullable(out))
    if name == "java.lang.String":
        return Value(pa.string(), name, None, _nullable(_text))
    if name == "byte[]":
        array = jpype.JArray(jpype.JByte)
        return Value(pa.binary(), name, _nullable(array), _nullable(lambda value: memoryview(value).tobytes()))
    if name in _SCALARS:
        arrow, make = _SCALARS[name]
        into, out = make(jpype.JClass(name))
        return Value(arrow, name, _nullable(into), _nullable(out))
    return _collection(jpype, type_, name)


def _collection(jpype: Any, type_: Any, name: str) -> Value:
    """Return the conversion of an array or a list. Raises UnknownType for all others."""
    if name.endswith("[]"):
        is_class = isinstance(type_, jpype.JClass("java.lang.Class"))
        if not is_class:
            raise UnknownType(f"{name} is an array of a generic type")
        item = _value(jpype, type_.getComponentType())
        array, into, out = jpype.JClass(type_), item.into, item.out
        return Value(
            pa.list_(item.arrow),
            name,
            _nullable(lambda values: array(list(values) if into is None else [into(each) for each in values])),
            _nullable(lambda values: [out(each) for each in values]),
            is_immutable=False,
        )
    if name.partition("<")[0] in _LISTS and isinstance(type_, jpype.JClass("java.lang.reflect.ParameterizedType")):
        item = _value(jpype, type_.getActualTypeArguments()[0])
        make, out = jpype.JClass("java.util.ArrayList"), item.out
        put = into_object(jpype, item)

        def listed(values: Any) -> Any:
            made = make()
            for each in values:
                made.add(put(each))
            return made

        return Value(
            pa.list_(item.arrow),
            name,
            _nullable(listed),
            _nullable(lambda values: [out(each) for each in values]),
            is_immutable=False,
        )
    raise UnknownType(f"{name} has no SQL type; use {_KNOWN}")


def into_object(jpype: Any, value: Value) -> Callable[[Any], Any]:
    """Return the conversion to a Java object for positions without a static type, such as items of a list."""
    if value.into is not None:
        return value.into
    return _nullable(jpype.JClass(next((box for box, name in _BOXES.items() if name == value.java), value.java)))


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _plain(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return a conversion of Java numbers, which JPype represents by subclasses of Python's, to plain ones."""
    if pa.types.is_boolean(type_):
        return bool
    return float if pa.types.is_floating(type_) else int


def _text(value: Any) -> str:
    try:
        return str(value)
    except UnicodeDecodeError:
        raise ValueError("it is a text with half of a surrogate pair, which has no UTF-8") from None


def _decimal(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return lambda value: of(str(value)), lambda value: decimal.Decimal(str(value))


def _date(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return (
        lambda value: of.of(value.year, value.month, value.day),
        lambda value: datetime.date(int(value.getYear()), int(value.getMonthValue()), int(value.getDayOfMonth())),
    )


def _time(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return (
        lambda value: of.of(value.hour, value.minute, value.second, value.microsecond * 1000),
        lambda value: datetime.time(
            int(value.getHour()), int(value.getMinute()), int(value.getSecond()), int(value.getNano()) // 1000
        ),
    )


def _timestamp(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return (
        lambda value: of.of(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond * 1000
        ),
        lambda value: datetime.datetime(  # noqa: DTZ001 - it has no zone in Java, either
            int(value.getYear()),
            int(value.getMonthValue()),
            int(value.getDayOfMonth()),
            int(value.getHour()),
            int(value.getMinute()),
            int(value.getSecond()),
            int(value.getNano()) // 1000,
        ),
    )


def _instant(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def into(value: datetime.datetime) -> Any:
        seconds, rest = divmod(value - _EPOCH, _SECOND)
        return of.ofEpochSecond(seconds, rest.microseconds * 1000)

    return (
        into,
        lambda value: (
            _EPOCH + datetime.timedelta(seconds=int(value.getEpochSecond()), microseconds=int(value.getNano()) // 1000)
        ),
    )


_SCALARS: Final[dict[str, tuple[pa.DataType, Callable[[Any], tuple[Callable[[Any], Any], Callable[[Any], Any]]]]]] = {
    "java.math.BigDecimal": (pa.decimal128(38, 18), _decimal),
    "java.time.LocalDate": (pa.date32(), _date),
    "java.time.LocalTime": (pa.time64("us"), _time),
    "java.time.LocalDateTime": (pa.timestamp("us"), _timestamp),
    "java.time.Instant": (pa.timestamp("us", tz="UTC"), _instant),
}
