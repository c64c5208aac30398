"""Events of Canal that are read in batches: rows of texts in the forms of the database; any other event is left."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from foldflight.ext.changes import canalreader
from foldflight.ext.changes.canalreader import CanalReader, canal_reader

TYPES = {"id": pa.int32(), "name": pa.string()}
KINDS = {
    "i": pa.int64(),
    "m": pa.decimal128(10, 2),
    "w": pa.decimal128(38, 22),
    "q": pa.decimal128(38, 38),
    "f": pa.float64(),
    "o": pa.bool_(),
    "d": pa.date32(),
    "t": pa.timestamp("us"),
    "b": pa.binary(),
    "s": pa.string(),
}
ROW = {
    "i": "-7",
    "m": "12.5",
    "w": "-1234567890123456.5",
    "q": "0.5",
    "f": "0.25",
    "o": "1",
    "d": "2024-02-29",
    "t": "2024-01-01 10:00:00.5",
    "b": "\u00ff",
    "s": "",
}


def event(kind: str, rows: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, "data": rows, "old": old, "isDdl": False, "database": "inv", **more}


def read(events: list[Any], types: dict[str, pa.DataType] = TYPES, **options: Any) -> list[dict[str, Any]]:
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    reader = canal_reader(types, **{"fills_missing": False, **options})
    assert reader is not None
    (result,) = reader(
        [pa.RecordBatch.from_pydict({"value": pa.array(texts, pa.binary()), "offset": [*map(str, range(len(texts)))]})]
    )
    rows: list[dict[str, Any]] = result.to_pylist()
    return rows


def test_each_kind_of_event_becomes_its_rows() -> None:
    """An update is two rows, the old one with the changed texts; an event that is left keeps its place."""
    new = {"id": "1", "name": "bob"}
    truncate_event = event("TRUNCATE", None)
    events = [
        event("INSERT", [new, {"id": "2", "name": None}]),
        truncate_event,
        event("UPDATE", [{**new, "x": "z"}], [{"name": None, "x": "y"}]),
    ]
    result = read([*events, event("DELETE", [{**new, "more": "text"}])])
    assert [(row["row_kind"], row["field_0"], row["field_1"]) for row in result] == [
        ("+I", 1, "bob"),
        ("+I", 2, None),
        (None, None, None),
        ("-U", 1, None),
        ("+U", 1, "bob"),
        ("-D", 1, "bob"),
    ]
    assert [row["unread"] for row in result if row["row_kind"]] == [None] * 5
    assert result[2]["unread"] == {"value": json.dumps(truncate_event).encode(), "offset": "1"}


def test_texts_are_values_of_the_declared_types() -> None:
    (result,) = read([event("INSERT", [ROW])], KINDS)
    values = [
        -7,
        Decimal("12.50"),
        Decimal("-1234567890123456.5"),
        Decimal("0.5"),
        0.25,
        True,
        dt.date(2024, 2, 29),
        dt.datetime(2024, 1, 1, 10, 0, 0, 500_000),
        b"\xff",
        "",
    ]
    assert [result[f"field_{at}"] for at in range(len(KINDS))] == values
    (nothing,) = read([event("INSERT", [{"s": "x"}])], KINDS, fills_missing=True)
    assert [nothing[f"field_{at}"] for at in range(len(KINDS))] == [*[None] * (len(KINDS) - 1), "x"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("i", "1 "),
        ("i", "+1"),
        ("i", "1.5"),
        ("i", "99999999999999999999"),
        ("m", "1.005"),
        ("m", "123456789.00"),
        ("m", "1e2"),
        ("w", "-174042335914707307"),  # Arrow's cast would return another number
        ("q", "9"),
        ("f", "9007199254740993"),
        ("f", "NaN"),
        ("f", "1e999"),
        ("o", "yes"),
        ("d", "2024-02-30"),
        ("d", "0000-00-00"),
        ("d", "2024-01-01 10:00:00"),
        ("t", "12:30:00"),
        ("t", "1704067200"),
        ("t", "2024-01-01 10:00:00Z"),
        ("t", "2024-01-01 10:00:00.1234567"),
        ("b", "\u20ac"),
    ],
)
@pytest.mark.parametrize("is_old", [False, True])
def test_other_texts_are_left_to_spark(name: str, text: str, is_old: bool) -> None:
    """All events of their batch are left, since a column is read as a whole."""
    wrong = event("UPDATE", [ROW], [{name: text}]) if is_old else event("INSERT", [{**ROW, name: text}])
    result = read([event("INSERT", [ROW]), wrong], KINDS)
    assert [row["row_kind"] for row in result] == [None, None]
    assert [json.loads(row["unread"]["value"]) for row in result] == [event("INSERT", [ROW]), wrong]


@pytest.mark.parametrize(
    "message",
    [
        b"{",
        b"null",
        b"[5]",
        {"type": "INSERT", "data": [{"id": "1", "name": "a"}]},  # Flink's have no isDdl
        event("INSERT", [{"id": "1", "name": "a"}], _tidb={"commitTs": 5}),
        event("INSERT", [{"id": "1"}]),
        event("INSERT", [{"id": 1, "name": "a"}]),
        event("INSERT", []),
        event("INSERT", [None]),
        event("INSERT", [{"id": "1", "name": "a"}], [{"name": "b"}]),
        event("UPDATE", [{"id": "1", "name": "a"}]),
        event("UPDATE", [{"id": "1", "name": "a"}], [None]),
        event("UPDATE", [{"id": "1", "name": "a"}], [{"name": "b"}, {"name": "c"}]),
        event("UPDATE", [{"id": "1", "name": "a"}], [{"name": 5}]),
        event("UPDATE", [{"id": "1", "name": "a"}], [{"Name": "b"}]),
        b'{"type": "INSERT", "data": [{"id": "1", "name": "a"}], "isDdl": false, "type": "DELETE"}',
        b'{"type": "INSERT", "data": [{"id": "1", "name": "a"}], "isDdl": false, "data": [{"id": "2", "name": "a"}]}',
        event("ALTER", None, isDdl=True),
    ],
)
def test_other_events_are_left_to_spark(message: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so are all events where a worker has no msgspec."""
    good = event("INSERT", [{"id": "1", "name": "a"}])
    assert [row["row_kind"] for row in read([good, message])] == ["+I", None]
    reader = CanalReader(dict(TYPES), False)
    monkeypatch.setattr(canalreader, "_MSGSPEC", None)
    (result,) = reader([pa.RecordBatch.from_pydict({"value": pa.array([json.dumps(good).encode()], pa.binary())})])
    assert result.column("row_kind").to_pylist() == [None]
    assert canal_reader(TYPES, fills_missing=False) is None


def test_a_column_may_have_the_name_of_a_member() -> None:
    """Its event has one member of the name, which is not left to Spark."""
    (row,) = read([event("INSERT", [{"type": "a", "data": "1"}])], {"type": pa.string(), "data": pa.int64()})
    assert (row["row_kind"], row["field_0"], row["field_1"]) == ("+I", "a", 1)


def test_types_without_a_form_are_left_to_spark() -> None:
    for type_ in (pa.float32(), pa.list_(pa.int32()), pa.timestamp("us", "UTC"), pa.null()):
        assert canal_reader({**TYPES, "x": type_}, fills_missing=False) is None
    reader = canal_reader(TYPES, fills_missing=False)
    assert reader is not None
    (result,) = reader([pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})])
    assert result.num_rows == 0


@pytest.mark.parametrize("name", ["id", "\u00e9", '"', "\\", "a:b", '":'])
@pytest.mark.parametrize("is_old", [False, True])
def test_names_that_occur_twice_are_left_to_spark(name: str, is_old: bool) -> None:
    """Two parsers of JSON may keep different ones. Texts and spaces that look like names only cost time."""
    once = json.dumps({name: "1", "n": None})
    again = f"{once[:-1]}, {json.dumps(name)}: " + '"2"}'
    wide = once.replace(": ", " : ").replace(", ", "\n,\t")
    quoted_names = (
        json.dumps({"n": 'a":', "m": '" :'})[:-1] + f", {json.dumps(name)} :" + f'"1", {json.dumps(name)}:"2"}}'
    )

    def message(row: str) -> bytes:
        data, old = (once, f"[{row}]") if is_old else (row, "null")
        kind = "UPDATE" if is_old else "INSERT"
        return f'{{"type": "{kind}", "isDdl": false, "old": {old}, "data": [{data}]}}'.encode()

    types = {name: pa.int64(), "n": pa.string()}
    last = [row["field_0"] for row in read([message(once)], types)]
    assert last == ([None] if ":" in name and '"' in name else [1] * (1 + is_old))
    for row in (again, quoted_names, wide):
        assert {each["row_kind"] for each in read([message(row)], types)} == {None}
