"""Canal's events that are read in Python have the values of their texts, or are left to Spark's expressions."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight.ext.changes.canalreader import canal_reader
from tests.effort import examples

pytest.importorskip("msgspec")

TYPES = {
    "id": pa.int64(),
    "small": pa.int8(),
    "amount": pa.decimal128(10, 2),
    "price": pa.float64(),
    "at": pa.timestamp("us"),
    "due": pa.date32(),
    "note": pa.string(),
    "flag": pa.bool_(),
    "raw": pa.binary(),
}
GOOD: dict[str, list[str | None]] = {
    "id": ["1", str(2**63 - 1), str(-(2**63)), None],
    "small": ["-128", "127"],
    "amount": ["1.50", "-0.01", "99999999.99", "12", None],
    "price": ["0.1", "-0", "7", "123456789012345.5"],
    "at": ["2024-01-02 03:04:05", "9999-12-31 23:59:59.999999", None],
    "due": ["2024-02-29", "0001-01-01"],
    "note": ["", "é", 'a"b', "\\", '"id": ', "😀", "\ud83d\\ude00", "null", "\0"],
    "flag": ["0", "1", "true", "false"],
    "raw": ["", "\0\x01\xff", "abc", None],
}
ODD: list[Any] = [
    *("", " ", "5 ", "+5", "05", "٣", "1_000", "1e2", "5.0", "128", str(2**63), str(2**64), str(10**40), "0x1"),
    *("1.505", "100000000.00", "1e400", "NaN", "Infinity", "9007199254740993", "True", "yes", "2", "2024-02-30"),
    *("2024-1-2", "0000-00-00", "10000-01-01", "2024-01-02 24:00:00", "2024-01-02 03:04:05.1234567", "12:30:00"),
    *("2024-01-02T03:04:05Z", "2024-01-02 03:04:05+02:00", "1704067200", "Ā", "\ud800", "a\udc00", "5\n"),
    *(5, 1.5, True, {}, [], ["5"], {"id": "1"}, 2**70),
]


def exact(text: str, type_: pa.DataType) -> Any:
    """Return the value that a cast of Spark gives a text; raise an error if it has none of a type."""
    kinds = pa.types
    if kinds.is_binary(type_):
        return text.encode("latin-1")
    if kinds.is_string(type_):
        return str(text.encode(), "utf-8")
    text = text.strip()
    if kinds.is_integer(type_) or kinds.is_decimal(type_):
        return Decimal(text)
    if kinds.is_floating(type_):
        if math.isinf(number := float(text)) and text != "Infinity":
            raise ValueError(text)
        return number
    if kinds.is_boolean(type_):
        return {"0": False, "1": True, "false": False, "true": True, "yes": True}[text.lower()]
    text = re.sub(r"-([0-9])(?=-|$)", r"-0\1", text)
    return dt.date.fromisoformat(text) if kinds.is_date(type_) else dt.datetime.fromisoformat(text)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def rows_of(value: bytes) -> list[tuple[str, list[Any]]]:
    """Return the rows of an event, read strictly; raise an error if it has none."""
    event = json.loads(value.decode(), object_pairs_hook=once)
    kind, rows, changed_columns = event["type"], event["data"], event.get("old")
    if kind != "UPDATE":
        return [({"INSERT": "+I", "DELETE": "-D"}[kind], values_of(row)) for row in rows]
    actual = []
    for row, before in zip(rows, changed_columns, strict=True):
        if not before.keys() <= row.keys():
            raise ValueError("an old row of other columns")
        actual += [("-U", values_of({**row, **before})), ("+U", values_of(row))]
    return actual


def values_of(row: dict[str, str | None]) -> list[Any]:
    return [None if row[name] is None else exact(row[name], type_) for name, type_ in TYPES.items()]


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Return events of Canal, of which one in two is damaged somewhere."""
    damage = draw(st.sampled_from([None] * 6 + ["value", "value", "name", "member", "text", "rows"]))

    def row(names: Sequence[str]) -> dict[str, Any]:
        actual: dict[str, Any] = {name: draw(st.sampled_from(GOOD[name])) for name in names}
        if actual and damage == "value" and draw(st.booleans()):
            actual[draw(st.sampled_from(list(actual)))] = draw(st.sampled_from(ODD))
        if actual and damage == "name" and draw(st.booleans()):
            name = draw(st.sampled_from(list(actual)))
            actual[draw(st.sampled_from([name.upper(), "more"]))] = actual.pop(name)
        return actual

    kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
    count = draw(st.integers(1, 2))
    event: dict[str, Any] = {"type": kind, "data": [row(list(TYPES)) for _ in range(count)], "isDdl": False}
    if kind == "UPDATE":
        event["old"] = [row(draw(st.lists(st.sampled_from(list(TYPES)), unique=True))) for _ in range(count)]
    if damage == "rows":
        odd = st.sampled_from([None, [], {}, 5, [None], [{}], [[]], "x"])
        event[draw(st.sampled_from(["data", "old", "type"]))] = draw(odd)
    text = json.dumps(
        event, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    )
    value = text.encode("utf-8", "surrogatepass")
    if damage == "member":
        more = draw(st.sampled_from([b'"type":"DELETE"', b'"data":[]', b'"old":null', b'"isDdl":true', b'"es":5']))
        value = draw(st.sampled_from([value[:-1] + b"," + more + b"}", b"{" + more + b"," + value[1:]]))
    if damage == "text":
        place = draw(st.integers(0, len(value)))
        inserted_rows = draw(
            st.sampled_from([b" ", b'"', b"}", b",", b"0", b"\\", b"\xff", b"\xed\xa0\x80", b"\0", b"\\ud800"])
        )
        value = draw(st.sampled_from([value[:place], value + b"}", value[:place] + inserted_rows + value[place:]]))
    return value


@pytest.mark.slow
@given(st.lists(events(), min_size=1, max_size=4))
@examples(8000)
def test_a_row_has_the_values_of_its_texts(actual: Sequence[bytes]) -> None:
    """Each event is read as a strict parser and Python's own types read it, or left."""
    reader = canal_reader(TYPES, fills_missing=False)
    assert reader is not None
    (batch,) = reader([pa.record_batch({"value": pa.array(actual, pa.binary())})])
    rows = batch.to_pylist()
    left = {row["unread"]["value"] for row in rows if row["row_kind"] is None}
    read = [(row["row_kind"], [row[f"field_{at}"] for at in range(len(TYPES))]) for row in rows if row["row_kind"]]
    expected = [each for value in actual if value not in left for each in rows_of(value)]
    assert list(map(repr, read)) == list(map(repr, map(alike, expected)))


def alike(row: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    """Return a row of the model with the Python types and scales of Arrow's values."""
    kind, values = row
    scaled_values = [
        value
        if value is None
        else int(value)
        if pa.types.is_integer(type_)
        else value.quantize(Decimal("0.01"))
        if pa.types.is_decimal(type_)
        else value
        for value, type_ in zip(values, TYPES.values(), strict=True)
    ]
    return kind, scaled_values
