"""Changelogs as events: how -U and +U become one, and what a key or a value may be."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import RejectedError
from foldflight.ext.changes.events import _encoder, _Envelopes, _Upserts
from tests.effort import examples

TYPES = (pa.int64(), pa.string())
Change = tuple[str, int, str]


def batches(changes: Sequence[Change], cuts: Iterable[int] = (), *, with_time: bool = True) -> list[pa.RecordBatch]:
    columns = [pa.array(column) for column in zip(*changes, strict=True)]
    if with_time:
        columns.append(pa.array([1700] * len(changes)))
    whole = pa.RecordBatch.from_arrays(columns, names=["row_kind", "id", "name", "now"][: len(columns)])
    places = [0, *sorted({cut for cut in cuts if cut < len(changes)}), len(changes)]
    return [whole.slice(start, end - start) for start, end in pairwise(places)]


def envelopes(**options: Any) -> _Envelopes:
    return _Envelopes(("id",), ("id", "name"), TYPES, **{"has_kinds": True, "without_kind": "u", **options}, **BLOCKS)


BLOCKS: dict[str, Any] = {"block": '{"type":"struct"}', "key_block": '{"type":"struct"}', "start": 5 << 31}


def events(changes: Sequence[Change], cuts: Iterable[int] = ()) -> list[tuple[Any, ...]]:
    result = []
    for batch in envelopes()(batches(changes, cuts)):
        for key, value in zip(*batch.to_pydict().values(), strict=True):
            payload = json.loads(value)["payload"]
            assert payload["source"] == {"connector": "foldflight", "name": "foldflight", "ts_ms": 1700, "lsn": 5 << 31}
            assert payload["ts_ms"] == 1700
            rows = [None if payload[name] is None else payload[name]["name"] for name in ("before", "after")]
            result.append((payload["op"], json.loads(key)["payload"]["id"], *rows))
    return result


CHANGES = [
    ("+I", 1, "a"),
    ("-U", 1, "a"),
    ("+U", 1, "b"),
    ("-U", 2, "c"),  # its +U was filtered out
    ("-U", 3, "d"),
    ("+U", 3, "e"),
    ("+U", 4, "f"),
    ("-D", 5, "g"),
    ("-U", 6, "h"),
    ("+U", 7, "i"),  # of another key
    ("-U", 8, "j"),
]
EVENTS = [
    ("c", 1, None, "a"),
    ("u", 1, "a", "b"),
    ("d", 2, "c", None),
    ("u", 3, "d", "e"),
    ("u", 4, None, "f"),
    ("d", 5, "g", None),
    ("d", 6, "h", None),
    ("u", 7, None, "i"),
    ("d", 8, "j", None),
]


@examples(100)
@given(st.sets(st.integers(1, len(CHANGES))))
def test_old_and_new_rows_become_one_event_wherever_batches_end(cuts: set[int]) -> None:
    """A -U and the +U of its key are an update; each of them alone deletes or sets the row."""
    assert events(CHANGES, cuts) == EVENTS
    task = _Upserts(("id",), ("id", "name"), TYPES)
    result = [row for batch in task(batches(CHANGES, cuts, with_time=False)) for row in batch.to_pylist()]
    assert [(row["id"], None if row["foldflight deleted"] else row["name"]) for row in result] == [
        (key, after) for _, key, _, after in EVENTS
    ]


def test_rows_without_kinds_set_values() -> None:
    """As updates without the old row, which says that a reader needs keys."""
    columns = {"id": [1, 2], "name": ["a", None], "now": [1, 1]}
    (batch,) = envelopes(has_kinds=False)([pa.RecordBatch.from_pydict(columns)])
    payloads = [json.loads(value)["payload"] for value in batch.column(1).to_pylist()]
    assert [(each["op"], each["before"], each["after"]) for each in payloads] == [
        ("u", None, {"id": 1, "name": "a"}),
        ("u", None, {"id": 2, "name": None}),
    ]
    assert not [*envelopes()(batches(CHANGES)[:0])]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("+I", None, "a"), "the key id of a change is NULL"),
        (("insert", 1, "a"), "a change has the row kind 'insert', which is none of"),
        ((None, 1, "a"), "a change has the row kind None"),
        (("+I", 1, "__debezium_unavailable_value"), "the column name has the value '__debezium_unavailable_value'"),
    ],
)
def test_values_that_readers_would_take_for_others_are_refused(change: Any, message: str) -> None:
    """The error names the column and the value."""
    rows = pa.RecordBatch.from_arrays(
        [pa.array([each], type_) for each, type_ in zip(change, (pa.string(), *TYPES), strict=True)] + [pa.array([1])],
        names=["row_kind", "id", "name", "now"],
    )
    with pytest.raises(RejectedError, match=message) as excinfo:
        list(envelopes()([rows]))
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.parametrize(
    ("array", "expected_texts"),
    [
        (pa.array([0.1, None, 1e300, float("nan"), float("-inf")]), [0.1, None, 1e300, "NaN", "-Infinity"]),
        (pa.array([0.1, 16777216.0], pa.float32()), [0.1, 16777216.0]),
        (pa.array([Decimal("12.34"), None, Decimal("-0.01"), Decimal("1.28")]), ["BNI=", None, "/w==", "AIA="]),
        (pa.array([b"\0\xff", b"", None]), ["AP8=", "", None]),
        (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]), [-719162, 2932896, None]),
        (pa.array([None, dt.time(0, 0, 1)], pa.time64("ns")), [None, 1_000_000]),
        (pa.array([dt.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us")), [1_000_000]),
        (
            pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us", "UTC")),
            ["2026-01-02T03:04:05.000006Z", None],
        ),
        (pa.array([[1, None], None, []], pa.list_(pa.int8())), [[1, None], None, []]),
        (pa.array([[b"a"], [None]]), [["YQ=="], [None]]),
        (
            pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32())),
            [{"a": 1, "b": None}, None, {}],
        ),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
def test_values_of_json_have_the_form_of_their_schema_block(array: pa.Array, expected_texts: list[Any]) -> None:
    """Each type as its schema block describes it, also of a part of an array."""
    assert _encoder(array.type)(array) == expected_texts
    assert _encoder(array.type)(array.slice(1)) == expected_texts[1:]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([-719163], pa.int32()).cast(pa.date32()), "not in the years 1 to 9999"),
        (pa.array([2**62], pa.int64()).cast(pa.timestamp("us")), "not in the years 1 to 9999"),
        (pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")), "not in the years 1 to 9999"),
        (pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), "a text is not UTF-8"),
    ],
)
def test_values_that_no_event_holds_are_refused(array: pa.Array, message: str) -> None:
    """They are refused, and not written as something else."""
    with pytest.raises(ValueError, match=message):
        _encoder(array.type)(array)
