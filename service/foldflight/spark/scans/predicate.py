"""The conditions of a scan that Arrow evaluates with the meaning of Spark.

Only comparisons of a column with a constant are taken, joined by AND and OR, where the types leave no doubt: whole
numbers, DECIMAL, DATE, timestamps, BOOLEAN, and texts, which both compare by their bytes. Floating-point numbers are
not taken, because for Spark NaN is the largest and equals itself. Whatever is not certain to be of this grammar is left
to Spark.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|`(?P<quoted>[^`]+)`|(?P<number>-?\d+(?:\.\d+)?)|'(?P<text>[^'\\]*)'(?!\s*')"
    r"|(?P<symbol><=>|<=|>=|<>|!=|==|[=<>(),]))",
    re.ASCII,
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# Spark also has words such as 'now', which it replaces when it reads the condition.
_TIMESTAMP: Final = re.compile(rf"{_DATE.pattern}(?:[ T][\w:.+/ -]*)?", re.ASCII)
_TIMESTAMP_TYPES: Final = (st.TimestampType, st.TimestampNTZType)
_TIMESTAMP_WORDS: Final = frozenset({"TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_WORDS: Final[Mapping[type[st.DataType], str]] = {
    st.TimestampType: "TIMESTAMP_LTZ",
    st.TimestampNTZType: "TIMESTAMP_NTZ",
}
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - TIMESTAMP_NTZ has no time zone
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_COMPARISONS: Final = {
    "=": "equal",
    "==": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
# Words that Spark reads as values where no column is meant; a name in backquotes is always a column.
NO_COLUMNS: Final = frozenset(
    {"not", "null", "false", "true", "localtime", "localtimestamp", "session_user", "user", "current_catalog"}
    | {"current_database", "current_date", "current_schema", "current_time", "current_timestamp", "current_timezone"}
    | {"current_user"}
)
# Spark compares in a DECIMAL with the digits of both sides, and drops digits behind the point beyond this number.
_DECIMAL_DIGITS: Final = 38
# Digits of the DECIMAL that stands for a whole number, in a list of IN and by a setting.
_INT_DIGITS: Final = 10
_BIGINT_DIGITS: Final = 20
_INTEGERS: Final[Mapping[type[st.DataType], int]] = {
    st.ByteType: 8,
    st.ShortType: 16,
    st.IntegerType: 32,
    st.LongType: 64,
}


EvaluateTimestamps: TypeAlias = "Callable[[Sequence[str]], Mapping[str, tuple[str, int]]]"
"""Returns Spark's name of the type of each literal, such as TIMESTAMP'2026-01-01', and its microseconds since 1970 UTC.
"""


class UnclearError(Exception):
    """A condition is not certain to mean the same to Arrow and Spark. Its text tells why, for users."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column.

    Args:
        column: The column.
        operator: The name of Arrow's function, or `in`, `not_in`, `is_null`, `is_valid`.
        values: The constants, of `type_`; none for the last two.
        type_: The type of the column and the constants.
    """

    column: str
    operator: str
    values: tuple[Any, ...]
    type_: pa.DataType

    def holds(self, column: pa.Array) -> pa.Array:
        """Return for n values where the comparison is true; n booleans, which may be NULL where it is not."""
        match self.operator:
            case "is_null":
                return pc.is_null(column)
            case "is_valid":
                return pc.is_valid(column)
            case "in" | "not_in":
                is_member = pc.is_in(column, pa.array(self.values, self.type_))
                return pc.and_(pc.is_valid(column), is_member if self.operator == "in" else pc.invert(is_member))
            case _:
                result: pa.Array = getattr(pc, self.operator)(column, pa.scalar(self.values[0], self.type_))
                return result

    def may_hold(self, least: Any, largest: Any) -> bool:
        """Return whether the comparison may hold for a value within bounds."""
        values = self.values
        match self.operator:
            case "equal" | "in":
                return any(least <= value <= largest for value in values)
            case "less":
                return bool(least < values[0])
            case "less_equal":
                return bool(least <= values[0])
            case "greater":
                return bool(largest > values[0])
            case "greater_equal":
                return bool(largest >= values[0])
            case _:
                return True


@dataclass(frozen=True)
class Either:
    """A disjunction: at least one of the predicates holds."""

    predicates: tuple[Predicate, ...]


@dataclass(frozen=True)
class Predicate:
    """A conjunction: all terms, comparisons and disjunctions, hold. Without terms, every row passes."""

    terms: tuple[Comparison | Either, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are compared, each once."""
        names: list[str] = []
        for term in self.terms:
            if isinstance(term, Comparison):
                names.append(term.column)
            else:
                names += (name for each in term.predicates for name in each.columns)
        return tuple(dict.fromkeys(names))

    def rename(self, names: Mapping[str, str]) -> Predicate:
        """Return the same comparisons of columns with other names.

        Args:
            names: The new names of columns; others keep theirs.
        """
        return Predicate(
            tuple(
                replace(term, column=names.get(term.column, term.column))
                if isinstance(term, Comparison)
                else Either(tuple(each.rename(names) for each in term.predicates))
                for term in self.terms
            )
        )

    def mask(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return which of n rows pass, as booleans that may be NULL, for at least one comparison."""
        return reduce(
            pc.and_kleene,
            (
                term.holds(columns[term.column])
                if isinstance(term, Comparison)
                else reduce(pc.or_kleene, (each.mask(columns) for each in term.predicates))
                for term in self.terms
            ),
        )

    def may_pass(self, may_hold: Callable[[Comparison], bool]) -> bool:
        """Return whether rows may pass.

        No comparison is negated, so that a predicate holds nowhere if it does not with all comparisons that may hold.

        Args:
            may_hold: Tells of a comparison whether it may hold for a row.
        """
        return all(
            may_hold(term) if isinstance(term, Comparison) else any(each.may_pass(may_hold) for each in term.predicates)
            for term in self.terms
        )


def parse(text: str, schema: st.StructType, evaluate_timestamps: EvaluateTimestamps) -> Predicate:
    """Return the predicate of a condition in Spark's SQL, over columns of a schema.

    Args:
        text: The condition.
        schema: The columns, as Spark describes them.
        evaluate_timestamps: Lets Spark read timestamps, which have the time zone of the session if they name none. Java
            and Python may know other rules of a zone.

    Raises:
        UnclearError: The condition is not one of comparisons with constants, or of types that are not compared here.
    """
    return _Parser(text, schema, evaluate_timestamps).predicate()


class _Parser:
    """Reads `column operator constant AND ... OR (...)`."""

    def __init__(self, text: str, schema: st.StructType, evaluate_timestamps: EvaluateTimestamps) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._schema = schema
        self._evaluate_timestamps = evaluate_timestamps

    @cached_property
    def _timestamps(self) -> Mapping[str, tuple[str, int]]:
        """All timestamps of the text, which Spark reads by one query."""
        literals = [
            f"{word.upper()}'{value}'"
            for (kind, word), (kind_after, value) in itertools.pairwise(self._tokens)
            if kind == "name" and word.upper() in _TIMESTAMP_WORDS and kind_after == "text" and _is_timestamp(value)
        ]
        return self._evaluate_timestamps(tuple(dict.fromkeys(literals)))

    def predicate(self) -> Predicate:
        """Return the predicate of the whole text."""
        predicate = self._choice()
        if self._at < len(self._tokens):
            raise _unclear(f"{self._tokens[self._at][1]!r}, which is not AND or OR")
        return predicate

    def _choice(self) -> Predicate:
        alternatives = [self._all()]
        while self._skips("OR"):
            alternatives.append(self._all())
        return alternatives[0] if len(alternatives) == 1 else Predicate((Either(tuple(alternatives)),))

    def _all(self) -> Predicate:
        terms: list[Comparison | Either] = []
        while True:
            if self._skips("("):
                terms += self._choice().terms
                self._expect(")")
            else:
                terms += self._comparison()
            if not self._skips("AND"):
                return Predicate(tuple(terms))

    def _comparison(self) -> Iterator[Comparison]:
        name = self._column()
        type_ = self._schema[name].dataType
        arrow = _arrow_type(name, type_)
        kind, value = self._next()
        word = value.upper() if kind == "name" else ""
        if kind == "symbol" and value in _COMPARISONS:
            yield Comparison(name, _COMPARISONS[value], (self._constant(name, type_),), arrow)
            return
        if word == "IS":
            is_not = self._skips("NOT")
            self._expect("NULL")
            yield Comparison(name, "is_valid" if is_not else "is_null", (), arrow)
            return
        if word == "BETWEEN":
            yield Comparison(name, "greater_equal", (self._constant(name, type_),), arrow)
            self._expect("AND")
            yield Comparison(name, "less_equal", (self._constant(name, type_),), arrow)
            return
        is_not = word == "NOT"
        if is_not:
            self._expect("IN")
        elif word != "IN":
            raise _unclear(f"{value!r} after {name}")
        self._expect("(")
        values = [self._constant(name, type_)]
        while self._skips(","):
            values.append(self._constant(name, type_))
        self._expect(")")
        yield Comparison(name, "not_in" if is_not else "in", tuple(values), arrow)

    def _column(self) -> str:
        kind, value = self._next()
        if kind not in {"name", "quoted"} or (kind == "name" and value.lower() in NO_COLUMNS):
            raise _unclear(repr(value))
        if [each.name for each in self._schema if each.name.casefold() == value.casefold()] != [value]:
            raise UnclearError(f"{value!r} is not exactly the name of one column")
        return value

    def _constant(self, name: str, type_: st.DataType) -> Any:
        kind, value = self._next()
        if kind == "number" and type(type_) in _INTEGERS and "." not in value:
            if _fits(int(value), type_):
                return int(value)
        elif kind == "number" and isinstance(type_, st.DecimalType):
            number = decimal.Decimal(value)
            exponent = number.as_tuple().exponent
            assert isinstance(exponent, int)
            if -exponent <= type_.scale and abs(number) < 10 ** (type_.precision - type_.scale):
                if max(_digits(value), type_.precision - type_.scale) + type_.scale > _DECIMAL_DIGITS:
                    raise UnclearError(
                        f"{name} is {type_.simpleString()}, which Spark may round to compare it with {value}"
                    )
                return number
        elif kind == "text" and type_ == st.StringType() and "${" not in value:  # Spark puts a variable there
            return value
        elif kind == "name" and value.upper() == "DATE" and isinstance(type_, st.DateType):
            return self._date()
        elif kind == "name" and value.upper() in _TIMESTAMP_WORDS and isinstance(type_, _TIMESTAMP_TYPES):
            return self._timestamp(value.upper(), name, type_)
        elif kind == "name" and value.upper() in {"TRUE", "FALSE"} and isinstance(type_, st.BooleanType):
            return value.upper() == "TRUE"
        if kind == "name" and value.upper() == "DATE" and isinstance(type_, _TIMESTAMP_TYPES):
            kind, value = self._next()
        remedy = ""
        if kind == "text" and isinstance(type_, st.DateType) and _DATE.fullmatch(value):
            remedy = f"; write DATE'{value}'"
        elif kind == "text" and isinstance(type_, _TIMESTAMP_TYPES) and _is_timestamp(value):
            remedy = f"; write {_WORDS[type(type_)]}'{value}'"
        raise UnclearError(
            f"{name} is {type_.simpleString()}, and {value!r} is not a constant that is compared with it{remedy}"
        )

    def _timestamp(self, word: str, name: str, type_: st.DataType) -> int:
        """Return the microseconds since 1970 of a timestamp: in UTC, or by the clock for TIMESTAMP_NTZ."""
        kind, text = self._next()
        if kind != "text" or not _is_timestamp(text):
            raise _unclear(f"{word} {text!r}")
        spark_type, microseconds = self._timestamps[f"{word}'{text}'"]
        if spark_type != type_.typeName():
            remedy = f"write {_WORDS[type(type_)]}'{text}'"
            raise UnclearError(f"{name} is {type_.simpleString()}, and {word}'{text}' is {spark_type}; {remedy}")
        if isinstance(type_, st.TimestampType):
            return microseconds
        try:
            return (datetime.datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
        except (ValueError, TypeError):  # written in another way, or with a zone
            raise _unclear(f"{word}'{text}'") from None

    def _date(self) -> datetime.date:
        kind, value = self._next()
        if kind != "text" or not _DATE.fullmatch(value):
            raise _unclear(f"DATE {value!r}")
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            raise _unclear(f"DATE {value!r}") from None

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise _unclear("its end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skips(self, word: str) -> bool:
        if self._at < len(self._tokens) and _is_word(self._tokens[self._at], word):
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        token = self._next()
        if not _is_word(token, word):
            raise _unclear(f"{token[1]!r}, which is not {word}")


def _is_timestamp(text: str) -> bool:
    return _TIMESTAMP.fullmatch(text) is not None


def _is_word(token: tuple[str, str], word: str) -> bool:
    return token[0] in {"name", "symbol"} and token[1].upper() == word


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unclear(repr(text[at : at + 20].strip()))
        at = match.end()
        kind = match.lastgroup
        assert kind is not None
        yield kind, match[kind]


def _unclear(what: str) -> UnclearError:
    return UnclearError(f"{what} is more than comparisons of columns with constants, joined by AND and OR")


def _digits(number: str) -> int:
    """Return how many digits before the point a number has, in the type as which Spark may compare it."""
    whole, point, _ = number.removeprefix("-").partition(".")
    if point:
        return len(whole)
    return _INT_DIGITS if int(whole) < 1 << 31 else _BIGINT_DIGITS


def _fits(value: int, type_: st.DataType) -> bool:
    return -(1 << (_INTEGERS[type(type_)] - 1)) <= value < 1 << (_INTEGERS[type(type_)] - 1)


def _arrow_type(name: str, type_: st.DataType) -> pa.DataType:
    """Return the type in which a column is compared. Raises UnclearError for types that are not compared here."""
    known_types: Sequence[tuple[st.DataType, pa.DataType]] = (
        (st.BooleanType(), pa.bool_()),
        (st.ByteType(), pa.int8()),
        (st.ShortType(), pa.int16()),
        (st.IntegerType(), pa.int32()),
        (st.LongType(), pa.int64()),
        (st.StringType(), pa.string()),
        (st.DateType(), pa.date32()),
        (st.TimestampType(), pa.timestamp("us", "UTC")),
        (st.TimestampNTZType(), pa.timestamp("us")),
    )
    if isinstance(type_, st.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    arrow = next((each for spark, each in known_types if spark == type_), None)
    if arrow is None:
        raise UnclearError(f"{name} is {type_.simpleString()}, whose values are compared by Spark only")
    return arrow
