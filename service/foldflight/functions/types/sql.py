"""SQL types by name, and the rules by which a column may be passed to an argument.

A type is a `pa.DataType` everywhere inside foldflight. Authors may write SQL names in the spelling of RisingWave,
Spark, Flink or PostgreSQL, and PySpark's types (`LongType()`). Where the systems disagree, these rules apply:

- `TIMESTAMP` is without zone (SQL standard, Flink, RisingWave, PostgreSQL). Spark's `TIMESTAMP` column has a zone:
  declare `TIMESTAMPTZ` (or `TIMESTAMP_LTZ`, or PySpark's `TimestampType()`).
- `FLOAT` is 32 bits (Spark, Flink); `INT8` is `BIGINT` (RisingWave, PostgreSQL).
- `DECIMAL` without a precision is `DECIMAL(38, 18)`.
- `VECTOR(n)` has n items of 32 bits, as in Databend and pgvector; `VECTOR(n, DOUBLE)` has items of 64 bits.
- A single capital letter (`T`) or `ANY` is a type variable: it stands for the type of the argument.

`rank` orders values of all types as Spark SQL does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import (
    JSON,
    is_binary_view,
    is_json,
    is_large_list_view,
    is_list_view,
    is_string_view,
)
from foldflight.functions.types.vectors import ITEMS_MAX, is_vector, vector_type

_UTC: Final = pa.timestamp("us", tz="UTC")
_INTERVAL: Final = pa.month_day_nano_interval()
_JSON_NAMES: Final = ("JSON", "JSONB", "VARIANT")

_NAMES: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), pa.bool_()),
    **dict.fromkeys(("TINYINT", "BYTE"), pa.int8()),
    **dict.fromkeys(("SMALLINT", "SHORT", "INT2"), pa.int16()),
    **dict.fromkeys(("INT", "INTEGER", "INT4"), pa.int32()),
    **dict.fromkeys(("BIGINT", "LONG", "INT8", "SERIAL"), pa.int64()),
    **dict.fromkeys(("REAL", "FLOAT", "FLOAT4"), pa.float32()),
    **dict.fromkeys(("DOUBLE", "DOUBLE PRECISION", "FLOAT8"), pa.float64()),
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR", "CHARACTER", "CHARACTER VARYING", "TEXT", "BPCHAR"), pa.string()),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES", "BYTEA"), pa.binary()),
    "DATE": pa.date32(),
    **dict.fromkeys(("TIME", "TIME WITHOUT TIME ZONE"), pa.time64("us")),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP WITHOUT TIME ZONE", "DATETIME"), pa.timestamp("us")),
    **dict.fromkeys(
        ("TIMESTAMPTZ", "TIMESTAMP_LTZ", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP WITH LOCAL TIME ZONE"), _UTC
    ),
    "INTERVAL": _INTERVAL,
    **dict.fromkeys(
        ("INTERVAL DAY TO SECOND", "INTERVAL DAY", "INTERVAL HOUR", "INTERVAL SECOND", "DURATION"), pa.duration("us")
    ),
    **({} if JSON is None else dict.fromkeys(_JSON_NAMES, JSON)),
    **dict.fromkeys(("NULL", "VOID"), pa.null()),
    "INT256": pa.decimal256(76, 0),
}
_DECIMALS: Final = frozenset({"DECIMAL", "NUMERIC", "DEC"})
_WITH_LENGTH: Final = frozenset(
    {"VARCHAR", "CHAR", "CHARACTER", "CHARACTER VARYING", "BINARY", "VARBINARY", "BYTES", "BPCHAR"}
)
_WITH_PRECISION: Final = frozenset(
    {"TIME", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "FLOAT", "INTERVAL"}
)
_TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*|\d+|[<>(),:\[\]]|`[^`]+`)")
_IDENTIFIER: Final = re.compile("[A-Za-z_][A-Za-z_0-9]*")
_DAY_TIME: Final = re.compile("INTERVAL (DAY|HOUR|MINUTE|SECOND)")
_VARIABLE: Final = re.compile(r"^(?:[A-Z]|ANY)$")


@functools.lru_cache(maxsize=1024)
def type_variables(type_text: str) -> frozenset[str]:
    """Return the type variables in the text of a declared type: `T` for `"ARRAY<T>"`."""
    # A struct's field name is not a type: it is followed by a type or a colon.
    words = re.findall(r"([A-Za-z_][A-Za-z_0-9]*)\b(?!\s*:|\s+[A-Za-z_`])", type_text)
    return frozenset(word for word in words if _VARIABLE.match(word))


def parse_type(declared: Any, variables: Mapping[str, pa.DataType] | None = None) -> pa.DataType:
    """Return the Arrow type that a SQL name (or an Arrow type itself) declares.

    Args:
        declared: For example `"BIGINT"`, `"DECIMAL(10, 2)"`, `"ARRAY<STRUCT<a INT, b TEXT>>"`, `"INT[]"`, `pa.int64()`,
            or a type of PySpark.
        variables: The types of type variables, by name.

    Raises:
        RejectedError: SIGNATURE, if the text is not a type, and for an Arrow type that is not plain.
    """
    if isinstance(declared, pa.DataType):
        try:
            check_plain(declared)
        except RejectedError as error:
            raise RejectedError("SIGNATURE", error.message) from None
        return declared
    if not isinstance(declared, str):
        if is_spark_type(declared):
            return _from_spark(declared.jsonValue())
        raise RejectedError(
            "SIGNATURE",
            f"{declared!r} is not a type; write a SQL name such as 'BIGINT', a pyarrow type, or an instance of a "
            "PySpark type such as LongType()",
        )
    # Each exchange binds its calls to the same few texts, so they are cached.
    return _Parser(declared, variables).parse() if variables else _parse_fixed(declared)


@functools.lru_cache(maxsize=1024)
def _parse_fixed(type_text: str) -> pa.DataType:
    return _Parser(type_text, {}).parse()


def spellings(type_: pa.DataType) -> list[str]:
    """Return the words of `parse_type` for a type, without decimals."""
    return [name for name, named_type in _NAMES.items() if named_type == type_]


def is_spark_type(declared_type: object) -> bool:
    """Return whether this is an instance of a PySpark type. It does not import PySpark."""
    return any(
        base.__name__ == "DataType" and base.__module__ == "pyspark.sql.types" for base in type(declared_type).__mro__
    )


def _from_spark(json_type: Any) -> pa.DataType:
    """Return the Arrow type for the JSON value of a PySpark type."""
    if isinstance(json_type, str):
        name = json_type.partition(" collate ")[0].upper()
        if name == "TIMESTAMP":  # PySpark's TimestampType has a zone
            return _UTC
        return pa.duration("us") if _DAY_TIME.match(name) else _parse_fixed(name)
    match json_type["type"]:
        case "array":
            return pa.list_(_from_spark(json_type["elementType"]))
        case "map":
            return pa.map_(_from_spark(json_type["keyType"]), _from_spark(json_type["valueType"]))
        case "struct":
            return pa.struct([(field["name"], _from_spark(field["type"])) for field in json_type["fields"]])
    raise RejectedError("SIGNATURE", f"PySpark's type {json_type['type']!r} has no counterpart; give a pyarrow type")


class _Parser:
    """A recursive-descent parser over the tokens of one type."""

    def __init__(self, text: str, variables: Mapping[str, pa.DataType]) -> None:
        self.text = text
        self.variables = variables
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        if re.sub(r"\s+", "", "".join(self.tokens)) != re.sub(r"\s+", "", text):
            raise self.error("it contains characters that are not allowed in types")

    def error(self, reason: str) -> RejectedError:
        return RejectedError(
            "SIGNATURE",
            f"{self.text!r} is not a type: {reason}; write for example BIGINT, DOUBLE, DECIMAL(10, 2), TIMESTAMPTZ, "
            "ARRAY<INT>",
        )

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token.upper() != expected):
            missing = "a name" if expected is None else repr(expected)
            raise self.error(f"expected {missing} after {' '.join(self.tokens[: self.at]) or 'nothing'!r}")
        self.at += 1
        return token

    def parse(self) -> pa.DataType:
        parsed_type = self.type()
        if self.peek():
            raise self.error(f"{self.peek()!r} is not expected after it")
        return parsed_type

    def type(self) -> pa.DataType:
        parsed_type = self.element()
        while self.peek() == "[":
            self.take()
            self.take("]")
            parsed_type = pa.list_(parsed_type)
        return parsed_type

    def element(self) -> pa.DataType:
        name = self.take().upper()
        if name in ("ARRAY", "LIST"):
            self.take("<")
            item = self.type()
            self.take(">")
            return pa.list_(item)
        if name == "MAP":
            self.take("<")
            key = self.type()
            self.take(",")
            value = self.type()
            self.take(">")
            return pa.map_(key, value)
        if name in ("STRUCT", "ROW"):
            return self.struct()
        return self.vector() if name == "VECTOR" else self.scalar(name)

    def vector(self) -> pa.DataType:
        self.take("(")
        size = self.take()
        if not size.isdigit() or not 1 <= int(size) <= ITEMS_MAX:
            raise self.error(f"a vector has 1 to {ITEMS_MAX} items, as in VECTOR(384)")
        item = pa.float32()
        if self.peek() == ",":
            self.take()
            item = self.type()
            if item not in (pa.float32(), pa.float64()):
                raise self.error("the items of a vector are REAL or DOUBLE, as in VECTOR(384, DOUBLE)")
        self.take(")")
        return vector_type(int(size), item)

    def struct(self) -> pa.DataType:
        closing_bracket = {"<": ">", "(": ")"}.get(self.peek())
        if closing_bracket is None:
            raise self.error("a struct lists its fields, as in STRUCT<a INT, b TEXT>")
        self.take()
        fields = []
        while True:
            name = self.take().strip("`")
            if self.peek() == ":":
                self.take()
            fields.append(pa.field(name, self.type()))
            if self.peek() != ",":
                break
            self.take()
        self.take(closing_bracket)
        return pa.struct(fields)

    def scalar(self, name: str) -> pa.DataType:
        if self.tokens[self.at - 1] in self.variables:
            return self.variables[self.tokens[self.at - 1]]
        numbers = self.numbers()
        while self.at < len(self.tokens) and self.peek().upper() in _CONTINUES:
            name += " " + self.take().upper()
            numbers = self.numbers() or numbers
        if name in _DECIMALS:
            return self.decimal(numbers)
        base = re.sub(r" WITH.*", "", name)
        if numbers and not (base in _WITH_LENGTH or base in _WITH_PRECISION):
            raise self.error(f"{name} does not take a number in parentheses")
        if name == "FLOAT" and numbers and numbers[0] > 24:
            return pa.float64()
        if name in _JSON_NAMES and JSON is None:
            raise RejectedError(
                "SIGNATURE", f"{name} needs pyarrow 19 or newer, and this is {pa.__version__}; declare STRING"
            )
        if name not in _NAMES:
            raise self.error(f"{name} is unknown")
        return _NAMES[name]

    def numbers(self) -> list[int]:
        parameters: list[int] = []
        if self.peek() != "(":
            return parameters
        self.take()
        while True:
            token = self.take()
            if not token.isdigit():
                raise self.error(f"{token!r} is not a number")
            parameters.append(int(token))
            if self.peek() != ",":
                break
            self.take()
        self.take(")")
        return parameters

    def decimal(self, numbers: list[int]) -> pa.DataType:
        precision, scale = (*numbers, 0)[:2] if numbers else (38, 18)
        if not (1 <= precision <= 38 and 0 <= scale <= precision and len(numbers) <= 2):
            raise self.error("a decimal has a precision of 1 to 38 digits and a scale of 0 to its precision")
        return pa.decimal128(precision, scale)


_CONTINUES: Final = frozenset(
    {"PRECISION", "VARYING", "WITH", "WITHOUT", "LOCAL", "TIME", "ZONE", "DAY", "TO", "SECOND", "HOUR"}
)

_SQL: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME",
    _INTERVAL: "INTERVAL",
    pa.duration("us"): "INTERVAL DAY TO SECOND",
    **({} if JSON is None else {JSON: "JSON"}),
    pa.null(): "NULL",
    pa.decimal256(76, 0): "INT256",
}


def sql_name(type_: pa.DataType, *, zoneless: str = "TIMESTAMP", zoned: str = "TIMESTAMPTZ") -> str:
    """Return the SQL name of an Arrow type, in a spelling that `parse_type` accepts.

    Args:
        type_: The type.
        zoneless: How timestamps without a zone are spelled.
        zoned: How timestamps with a zone are spelled.
    """
    name_of = functools.partial(sql_name, zoneless=zoneless, zoned=zoned)
    if pa.types.is_timestamp(type_):
        return zoned if type_.tz else zoneless
    if type_ in _SQL:
        return _SQL[type_]
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"ARRAY<{name_of(type_.value_type)}>"
    if is_vector(type_):
        item = "" if pa.types.is_float32(type_.value_type) else f", {name_of(type_.value_type)}"
        return f"VECTOR({type_.list_size}{item})"
    if pa.types.is_map(type_):
        return f"MAP<{name_of(type_.key_type)}, {name_of(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'{_quote(field.name)} {name_of(field.type)}' for field in type_)}>"
    return str(type_)


def _quote(name: str) -> str:
    """Return the name of a member as `parse_type` reads it: with backticks, unless it is a plain identifier."""
    return name if _IDENTIFIER.fullmatch(name) else f"`{name}`"


# The plain types of variable width. All types of fixed width are plain, too.
_PLAIN: Final = frozenset({pa.null(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})


def has_floats(type_: pa.DataType) -> bool:
    """Return whether values of a type are floats, or have floats in them."""
    if pa.types.is_floating(type_):
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return has_floats(type_.storage_type)
    return any(has_floats(type_.field(index).type) for index in range(type_.num_fields))


def check_plain(type_: pa.DataType) -> None:
    """Refuse a type that is not plain: a view, a dictionary, run-end encoding, a union, or a type that has one inside.

    A batch of plain types is safe to read after full validation by Arrow. Other types are not: Arrow does not validate
    views at NULL positions, but its cast uses their lengths. Moreover, a few kilobytes of views or of dictionary
    indices may represent gigabytes of values, which no limit on messages prevents.

    Raises:
        RejectedError: SCHEMA_MISMATCH, with the type to send instead.
    """
    kinds = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        check_plain(type_.storage_type)
    elif kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        check_plain(type_.value_type)
    elif kinds.is_map(type_):
        check_plain(type_.key_type)
        check_plain(type_.item_type)
    elif kinds.is_struct(type_):
        for field in type_:
            check_plain(field.type)
    elif not (
        kinds.is_primitive(type_) or kinds.is_decimal(type_) or kinds.is_fixed_size_binary(type_) or type_ in _PLAIN
    ):
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the Arrow type {type_} is not accepted, only plain types are; {_remedy(type_)}"
        )


def is_larger_than(type_: pa.DataType, *, depth: int, parts: int) -> bool:
    """Return whether a type is nested more deeply, or has more types inside. The search stops at the limit.

    The same type may be inside of another one many times, so that a few functions with results such as
    `STRUCT<a T, b T>`, applied to each other, make a type of a billion parts.
    """
    todo, count = [(type_, 1)], 0
    while todo:
        type_, at = todo.pop()
        count += 1
        if at > depth or count + len(todo) > parts:
            return True
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        todo += [(type_.field(index).type, at + 1) for index in range(min(type_.num_fields, parts + 1))]
    return False


def _remedy(type_: pa.DataType) -> str:
    """Return the remedy for a type that is not plain."""
    kinds = pa.types
    if is_string_view(type_):
        return "cast it to string"
    if is_binary_view(type_):
        return "cast it to binary"
    if kinds.is_dictionary(type_) or kinds.is_run_end_encoded(type_):
        return f"decode it to {type_.value_type}"
    if is_list_view(type_):
        return f"cast it to {pa.list_(type_.value_field)}"
    if is_large_list_view(type_):
        return f"cast it to {pa.large_list(type_.value_field)}"
    if kinds.is_union(type_):
        return "send a struct with a field for each of its types"
    return "cast it to one of them"


def needs_zone(
    argument_types: Sequence[pa.DataType], declared_types: Sequence[Any], zoned_types: Sequence[Any]
) -> bool:
    """Return whether a call needs the types with time zones: an argument has a zone, and the function accepts it.

    Args:
        argument_types: The types of the arguments.
        declared_types: The types that the function takes, where each `datetime` of an annotation has no zone.
        zoned_types: The same types, where it has one.
    """
    return any(
        plain != other and not can_widen(type_, plain) and can_widen(type_, other)
        for type_, plain, other in zip(argument_types, declared_types, zoned_types, strict=False)
    )


_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}


def can_widen(actual: pa.DataType, declared_type: pa.DataType) -> bool:
    """Return whether a column of type `actual` may be passed to an argument of type `declared_type`.

    Allowed are SQL's implicit casts that change no value and, as everywhere in SQL, casts of integers to `DOUBLE`.
    Integers and decimals may be passed to every `DECIMAL`; each value is checked if not all values fit. All other types
    need an explicit cast in the query.
    """
    is_exact = pa.types.is_integer(actual) or pa.types.is_decimal128(actual)
    return _widens(actual, declared_type) or (is_exact and pa.types.is_decimal128(declared_type))


def _widens(actual: pa.DataType, declared_type: pa.DataType) -> bool:
    """Return whether every value of type `actual` is one of type `declared_type`."""
    kinds = pa.types
    if actual == declared_type or kinds.is_null(actual):
        return True
    if kinds.is_integer(actual):
        return _integer_widens(actual, declared_type)
    if kinds.is_floating(actual):
        return kinds.is_floating(declared_type) and actual.bit_width <= declared_type.bit_width
    if kinds.is_decimal(actual):
        return kinds.is_float64(declared_type) or (
            kinds.is_decimal(declared_type)
            and declared_type.scale >= actual.scale
            and declared_type.precision - declared_type.scale >= actual.precision - actual.scale
        )
    if kinds.is_timestamp(actual):
        return kinds.is_timestamp(declared_type) and bool(actual.tz) == bool(declared_type.tz)
    if kinds.is_date(actual):  # midnight; with a zone, it would depend on the session
        return kinds.is_date(declared_type) or (kinds.is_timestamp(declared_type) and not declared_type.tz)
    if _text(actual):
        return _text(declared_type) or is_json(declared_type)
    if _bytes(actual):
        return _bytes(declared_type)
    if kinds.is_time(actual):
        return kinds.is_time64(declared_type)
    if kinds.is_duration(actual):
        return kinds.is_duration(declared_type)
    return _nested_widens(actual, declared_type)


def _integer_widens(actual: pa.DataType, declared_type: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_decimal(declared_type):
        return bool(declared_type.precision - declared_type.scale >= _INTEGER_DIGITS[actual.bit_width])
    if kinds.is_integer(declared_type):
        same_sign = kinds.is_signed_integer(actual) == kinds.is_signed_integer(declared_type)
        signed_up = kinds.is_signed_integer(declared_type) and actual.bit_width < declared_type.bit_width
        return bool(actual.bit_width <= declared_type.bit_width) if same_sign else signed_up
    # A DOUBLE holds every 32-bit integer; 64-bit integers are rounded as in SQL. A REAL holds only 16-bit integers.
    return kinds.is_float64(declared_type) or (kinds.is_float32(declared_type) and actual.bit_width <= 16)


def _nested_widens(actual: pa.DataType, declared_type: pa.DataType) -> bool:
    kinds = pa.types
    if is_vector(declared_type):  # each list is checked
        is_same_size = kinds.is_fixed_size_list(actual) and actual.list_size == declared_type.list_size
        is_list = is_same_size or kinds.is_list(actual) or kinds.is_large_list(actual)
        return is_list and kinds.is_floating(actual.value_type) and _widens(actual.value_type, declared_type.value_type)
    if kinds.is_list(declared_type) and (kinds.is_list(actual) or kinds.is_large_list(actual) or is_vector(actual)):
        return _widens(actual.value_type, declared_type.value_type)
    if kinds.is_map(actual) and kinds.is_map(declared_type):
        return _widens(actual.key_type, declared_type.key_type) and _widens(actual.item_type, declared_type.item_type)
    if kinds.is_struct(actual) and kinds.is_struct(declared_type):
        return [field.name for field in actual] == [field.name for field in declared_type] and all(
            _widens(mine.type, theirs.type) for mine, theirs in zip(actual, declared_type, strict=True)
        )
    return False


def _text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def _bytes(type_: pa.DataType) -> bool:
    return pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def is_nan(value: Any) -> bool:
    """Return whether a value is the float NaN, which is greater than all other numbers."""
    return isinstance(value, float) and value != value  # noqa: PLR0124 - only NaN differs from itself


def rank(value: Any) -> Any:
    """Return a value of a struct or an array as a key that Python orders as Spark does; other values are returned.

    Members are compared one after the other. NULL is less than any value, NaN is greater than any other number, and an
    array is less than a longer one that begins with it.
    """
    if isinstance(value, dict):
        return tuple(map(_member, value.values()))
    if isinstance(value, list):
        return tuple(map(_member, value))
    return value


def _member(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (1, True, 0) if is_nan(value) else (1, False, rank(value))


def is_ordered(type_: pa.DataType) -> bool:
    """Return whether values of a type have an order. Maps and JSON, and what has them inside, have none."""
    if isinstance(type_, pa.BaseExtensionType):
        return not is_json(type_) and is_ordered(type_.storage_type)
    if pa.types.is_map(type_):
        return False
    return all(is_ordered(type_.field(index).type) for index in range(type_.num_fields))
