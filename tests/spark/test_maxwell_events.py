"""Maxwell's events have the values that a strict parser and Python's own types read, or are refused by their column.

Events of Canal that its reader leaves to Spark's expressions are compared in the same way.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from foldflight.ext.changes import cdc
from foldflight.spark import from_canal, from_maxwell
from foldflight.spark.errors import error_of
from tests.effort import examples
from tests.laws import test_canal_events as canal

INFO = "STRUCT<at: TIMESTAMP_NTZ, n: INT, of: MAP<STRING, DOUBLE>, sums: ARRAY<STRUCT<x: DECIMAL(10,2), f: FLOAT>>>"
TYPES = {
    "id": "BIGINT",
    "small": "TINYINT",
    "amount": "DECIMAL(10,2)",
    "price": "DOUBLE",
    "ratio": "FLOAT",
    "at": "TIMESTAMP_NTZ",
    "due": "DATE",
    "note": "STRING",
    "flag": "BOOLEAN",
    "raw": "BINARY",
    "tags": "ARRAY<STRING>",
    "days": "ARRAY<DATE>",
    "info": INFO,
}
SCHEMA = ", ".join(f"{name} {type_}" for name, type_ in TYPES.items())
# Maxwell's values as texts of JSON: what it writes, and what only damage makes.
GOOD: dict[str, list[str]] = {
    "id": ["1", str(2**63 - 1), str(-(2**63)), "null"],
    "small": ["-128", "127"],
    "amount": ["1.50", "-0.01", "99999999.99", "12", "null", '"7.25"'],
    "price": ["0.1", "-0.0", "7", "123456789012345.5", "1e-7", "9007199254740992"],
    "ratio": ["0.1", "16777216", "-2.5"],
    "at": ['"2024-01-02 03:04:05"', '"9999-12-31 23:59:59.999999"', "null"],
    "due": ['"2024-02-29"', '"0001-01-01"'],
    "note": ['""', '"é"', '"a\\"b"', '"\\\\"', '"\\"id\\": "', '"😀"', '"\\ud83d\\ude00"', '"null"', '"\\u0000"', "5"],
    "flag": ["true", "false", "null"],
    "raw": ['""', '"AP8Q"', "null"],
    "tags": ["[]", '["a", null, ""]', '["[", "1.50"]', "null"],
    "days": ["[]", '["2024-02-29", null]'],
    "info": [
        "null",
        "{}",
        '{"n": 5, "at": "2024-01-02 03:04:05.5", "of": {"a": 0.5, "": null}, "sums": []}',
        '{"n": null, "sums": [{"x": 1.50, "f": 0.1}, null, {}], "more": {"n": 1.5}}',
    ],
}
ODD = [
    *('""', '" "', '"5"', '"5 "', "05", "+5", "1e2", "5.0", "128", str(2**63), str(2**64), str(10**40), "-", "1."),
    *("1.505", "100000000.00", "1e400", "1e-400", "NaN", "-Infinity", '"NaN"', '"Infinity"', "9007199254740993"),
    *("16777217", "1e39", '"2024-02-30"', '"2024-1-2"', '"0000-00-00"', '"2024-01-02 24:00:00"', "1704067200000"),
    *('"2024-01-02 03:04:05.1234567"', '"12:30:00"', '"2024-01-02T03:04:05Z"', '"2024-01-02 03:04:05+02:00"'),
    *('"\\ud800"', '"a\\udc00"', "'a'", '"%%"', '"AA"', "True", "true", "1234567890123456.7891", "{}", "[]", "[[1]]"),
]
ODD_OF = {
    "tags": ["[1.5, 1234567890123456.7891]", '["1234567890123456.7891"]', "[1e400]", '[["a"], {"b": 1}]', '"[]"', "{}"],
    "days": ['["2024-01-01 10:00:00"]', "[5]", '["2024-02-30"]', '[["2024-01-01"]]', '"2024-01-01"'],
    "info": [
        *('{"n": 1, "n": 2}', '{"n": 1, "\\u006e": 2}', '{"n": 1.5}', '{"n": "5"}', '{"at": 1704067200000}', "[]"),
        *('{"of": {"a": 1e400}}', '{"of": {"a": 1, "a": 2}}', '{"of": [1]}', '{"of": "{}"}', '{"sums": {"x": 1}}'),
        *('{"sums": [{"x": 1.505}]}', '{"sums": [{"f": 16777217}]}', '{"sums": [5, {"x": 1}]}'),
        *('{"sums": [{"x": 1, "x": 2}]}', '{"at": "2024-01-02 03:04:05+02:00"}', '{"of": {"a": 9007199254740993}}'),
    ],
}
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
DAY = r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
TIME = re.compile(rf"{DAY}(?:[ T]([0-9]{{1,2}}):([0-9]{{1,2}}):([0-9]{{1,2}})(?:\.([0-9]{{1,6}}))?Z?)?", re.ASCII)
NO_NUMBERS = ("NaN", "INF", "+INF", "-INF", "Infinity", "+Infinity", "-Infinity")
INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}


def exact(value: Any, type_: spark_types.DataType) -> Any:
    """Return a value of JSON as one of a type; raise an error if it has none."""
    if value is None:
        return None
    match type_:
        case spark_types.ArrayType():
            return [exact(each, type_.elementType) for each in kept(value, list)]
        case spark_types.MapType():
            return {name: exact(each, type_.valueType) for name, each in kept(value, dict).items()}
        case spark_types.StructType():
            return {each.name: exact(kept(value, dict).get(each.name), each.dataType) for each in type_}
        case spark_types.StringType():
            return value
        case spark_types.BooleanType():
            return kept(value, bool)
        case spark_types.BinaryType():
            return base64.b64encode(base64.b64decode(kept(value, str), validate=True)).decode()
        case spark_types.DateType():
            return dt.date(*map(int, matched(re.compile(DAY, re.ASCII), value).groups())).isoformat()
        case spark_types.TimestampNTZType():
            *parts, fraction = matched(TIME, value).groups()
            at = dt.datetime(*(int(each or 0) for each in parts), int((fraction or "").ljust(6, "0")))  # type: ignore[arg-type]
            return at.isoformat(" ", "microseconds")
    if isinstance(type_, (spark_types.FloatType, spark_types.DoubleType)) and value in NO_NUMBERS:
        return value.replace("INF", "Infinity").removeprefix("+")
    if isinstance(value, bool) or (not isinstance(type_, spark_types.DecimalType) and isinstance(value, str)):
        raise TypeError(value)
    number = Decimal(matched(NUMBER, str(value))[0])
    return number_of(number, type_, is_whole=isinstance(value, int))


def number_of(number: Decimal, type_: spark_types.DataType, *, is_whole: bool) -> Any:
    if isinstance(type_, spark_types.DecimalType):
        with localcontext(prec=1000):
            if number != number.quantize(Decimal(1).scaleb(-type_.scale)) or abs(number) >= 10 ** (
                type_.precision - type_.scale
            ):
                raise ValueError(number)
        return number
    if isinstance(type_, (spark_types.FloatType, spark_types.DoubleType)):
        single = float(np.float32(float(number)))
        result = single if isinstance(type_, spark_types.FloatType) else float(number)
        if abs(result) == float("inf") or (result == 0) != (number == 0) or (is_whole and Decimal(result) != number):
            raise ValueError(number)
        return result
    bits = INTEGERS[type_.typeName()]
    if not is_whole or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(number)
    return int(number)


def kept(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def matched(pattern: re.Pattern[str], value: Any) -> re.Match[str]:
    match = pattern.fullmatch(value)
    if match is None:
        raise ValueError(value)
    return match


def rows_of(value: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of an event of Maxwell, read strictly; raise an error if it has none."""
    event = json.loads(
        value.decode(), object_pairs_hook=canal.once, parse_float=Decimal, parse_constant=dict.__getitem__
    )
    json.dumps(event, ensure_ascii=False, default=str).encode()  # half of a surrogate pair raises an error
    kind, row = event["type"], event["data"]
    if kind != "update":
        return [({"insert": "+I", "delete": "-D", "bootstrap-insert": "+I"}[kind], values_of(row))]
    if not event["old"].keys() <= row.keys():
        raise ValueError("an old row of other columns")
    return [("-U", values_of({**row, **event["old"]})), ("+U", values_of(row))]


def values_of(row: dict[str, Any]) -> dict[str, Any]:
    return {each.name: exact(row[each.name], each.dataType) for each in declared_types()}


@cache
def declared_types() -> spark_types.StructType:
    types = spark_types.StructType.fromDDL(SCHEMA)
    assert isinstance(types, spark_types.StructType)
    return types


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, bool]:
    """Return events of Maxwell, and whether each is damaged somewhere, as one in two is."""
    damage = draw(st.sampled_from([None] * 5 + ["value", "value", "name", "member", "text"]))

    def row(names: Sequence[str]) -> str:
        found = {name: draw(st.sampled_from(GOOD[name])) for name in names}
        if found and damage == "value":
            name = draw(st.sampled_from(list(found)))
            found[name] = draw(st.sampled_from(ODD_OF.get(name, ODD)))
        if found and damage == "name":
            name = draw(st.sampled_from(list(found)))
            found[draw(st.sampled_from([name.upper(), "more"]))] = found.pop(name)
        members = [f'"{name}":{text}' for name, text in found.items()]
        if members and damage == "member":
            members.append(draw(st.sampled_from(members)))
        return f"{{{','.join(members)}}}"

    kind = draw(st.sampled_from(["insert", "update", "delete", "bootstrap-insert"]))
    text = f'{{"database":"shop","type":"{kind}","ts":1,"data":{row(list(TYPES))}'
    if kind == "update":
        text += f',"old":{row(draw(st.lists(st.sampled_from(list(TYPES)), unique=True)))}'
    value = (text + "}").encode()
    if damage == "text":
        place = draw(st.integers(0, len(value)))
        inserted = draw(
            st.sampled_from([b" ", b'"', b"'", b"}", b",", b"0", b"\\", b"\xff", b"\xed\xa0\x80", b"\0", b"\\ud800"])
        )
        value = draw(st.sampled_from([value[:place], value + b"}", value[:place] + inserted + value[place:]]))
    return value, damage is not None


Outcome = list[dict[str, Any]] | str
"""The rows of an event, or the message with which it is refused."""


def outcomes(
    classic: Any, read: Callable[[DataFrame], DataFrame], values: Sequence[bytes], parts: Sequence[range]
) -> list[Outcome]:
    """Return the outcome of each event.

    One plan reads all events, and each is a partition, so that jobs can read any of them, without a worker of Python.

    Args:
        classic: The session.
        read: Reads the events.
        values: The events.
        parts: The places of the events that a job reads together. If it fails, its halves are read, so that each event
            that is refused has a job of its own.
    """
    rows = [(bytearray(each),) for each in values]
    frame = classic.createDataFrame(classic.sparkContext.parallelize(rows, len(rows)), "value BINARY")
    options = {"ignoreNullFields": "false", "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}
    texts = read(frame).select(sf.to_json(sf.struct("*"), options))._jdf.javaRDD()
    found: list[Outcome] = [""] * len(values)

    def collect(places: range) -> None:
        numbers = classic.sparkContext._gateway.new_array(classic.sparkContext._jvm.int, len(places))
        for at, place in enumerate(places):
            numbers[at] = place
        try:
            partitions = texts.collectPartitions(numbers)
        except Exception as error:
            if len(places) > 1:
                collect(places[: len(places) // 2])
                collect(places[len(places) // 2 :])
                return
            refusal = error_of(error)
            if refusal is None:
                raise
            found[places[0]] = refusal.message
        else:
            for place, partition in zip(places, partitions, strict=True):
                found[place] = [json.loads(each.getString(0), parse_float=Decimal) for each in partition]

    for part in parts:
        collect(part)
    return found


def is_equal(found: Any, expected: Any) -> bool:
    """Return whether a value from Spark equals the model's. A text may stand for a value that is no text in JSON."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(is_equal(found[name], expected[name]) for name in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_equal, found, expected))
    if isinstance(found, str) and not isinstance(expected, str | None):
        return is_equal(json.loads(found, parse_float=Decimal), expected)
    if isinstance(expected, float):
        return str(float(found)) == str(expected) or float(np.float32(found)) == expected
    return type(found) is type(expected) and found == expected if type(expected) is not Decimal else found == expected


def check(
    classic: Any, read: Callable[[DataFrame], DataFrame], model: Callable[[bytes], Any], events_: dict[bytes, bool]
) -> None:
    """Compare events with the model: they have its rows, or are refused. Only damaged ones may be refused."""
    expected: dict[bytes, Any] = {}
    for value in events_:
        with contextlib.suppress(ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            expected[value] = model(value)
    refused = [value for value in events_ if value not in expected]
    values, count = [*expected, *refused], len(expected)
    parts = [range(count), *(range(place, place + 1) for place in range(count, len(values)))]
    assert expected
    assert refused
    for value, outcome in zip(values, outcomes(classic, read, values, parts), strict=True):
        if value not in expected:
            assert isinstance(outcome, str), (value, outcome)
        elif isinstance(outcome, str):
            assert events_[value], (value, outcome)
        else:
            assert [each.pop("row_kind") for each in outcome] == [kind for kind, _ in expected[value]], value
            assert is_equal(outcome, [row for _, row in expected[value]]), (value, outcome, expected[value])


def generated(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return examples of a strategy. They are read together, because a plan of Spark costs more than many events."""
    found = []

    @given(strategy)
    @examples(count)
    def note(example: Any) -> None:
        found.append(example)

    note()
    return found


@pytest.mark.slow
def test_a_row_of_maxwell_has_the_values_of_its_json(classic: Any) -> None:
    """Each event is read as a strict parser and Python's own types read it, or refused."""
    check(classic, lambda frame: from_maxwell(frame, SCHEMA), rows_of, dict(generated(events(), 500)))


OF_CANAL = {"id": "BIGINT", "small": "TINYINT", "amount": "DECIMAL(10,2)", "price": "DOUBLE", "at": "TIMESTAMP_NTZ"}
OF_CANAL |= {"due": "DATE", "note": "STRING", "flag": "BOOLEAN", "raw": "BINARY"}


def rows_of_canal(value: bytes) -> list[tuple[str, dict[str, Any]]]:
    return [
        (kind, dict(zip(OF_CANAL, map(written, values, canal.TYPES.values()), strict=True)))
        for kind, values in canal.rows_of(value)
    ]


def written(value: Any, type_: Any) -> Any:
    """Return a value of Canal's model as Spark writes it to JSON."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            return value.isoformat(" ", "microseconds")
        case dt.date():
            return value.isoformat()
        case Decimal() if canal.pa.types.is_integer(type_):
            return int(value)
    return value


@pytest.mark.slow
def test_a_row_of_canal_has_the_values_of_its_texts(classic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's expressions read what Python leaves to them, or refuse it."""
    schema = ", ".join(f"{name} {type_}" for name, type_ in OF_CANAL.items())
    monkeypatch.setattr(cdc, "canal_reader", lambda *_, **__: None)
    found = dict.fromkeys(generated(canal.events(), 300), True)
    check(classic, lambda frame: from_canal(frame, schema), rows_of_canal, found)
