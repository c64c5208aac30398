"""Changelogs netted to one row for each key, and the columns of a table against the columns of a query."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight import RejectedError
from foldflight.engine.targets import Target, is_key, missing_columns, net_changes

SCHEMA = pa.schema([("row_kind", pa.string()), ("k", pa.string()), ("n", pa.int32()), ("v", pa.int64())])


def changes(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def result(*rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in net_changes(changes(*rows), ["k", "n"], "t").to_pylist()), key=repr)


def test_each_key_has_one_row() -> None:
    """An update is its new row, also under another kind; an old row without a new one is a delete; NULL equals NULL."""
    rows = [
        ("-U", None, 1, 5),
        ("+U", None, 1, 6),
        ("-D", "a", None, 1),
        ("+I", "a", None, 2),
        ("-U", "b", 1, 3),
        ("-D", "c", None, 4),
        ("+I", "d", 1, None),
    ]
    expected = [
        ("+I", "a", None, 2),
        ("+I", "d", 1, None),
        ("+U", None, 1, 6),
        ("-D", "b", 1, None),
        ("-D", "c", None, None),
    ]
    for order in itertools.islice(itertools.permutations(rows), 0, 5040, 97):
        assert result(*order) == expected
    assert result() == []


def test_two_new_rows_of_one_key_are_refused() -> None:
    """Their order is not known. The error names the table and the key."""
    with pytest.raises(
        RejectedError, match=r"table t: one epoch has 2 new rows with the same key, .*upserts\("
    ) as excinfo:
        result(("+U", "a", None, 1), ("+I", "b", 1, 1), ("+U", "a", None, 2))
    assert excinfo.value.group == {"k": "a", "n": None}
    for kind in (None, "+X"):
        with pytest.raises(RejectedError, match=f"the row kind {re.escape(repr(kind))}, which is none of") as excinfo:
            result((kind, "a", 1, 1))
        assert excinfo.value.group == {"k": "a", "n": 1}


def test_keys_have_any_name() -> None:
    """Also names that are numbers, and names that columns of a computation might have."""
    names = ["setting", "setting_sum", "row_kind_sum", "1", "0"]
    rows = [{"row_kind": kind, **dict.fromkeys(names, value)} for kind, value in (("+U", "a"), ("-D", "b"))]
    assert net_changes(pa.Table.from_pylist(rows), names, "t").to_pylist() == rows
    with pytest.raises(RejectedError, match="2 new rows") as excinfo:
        net_changes(pa.Table.from_pylist([rows[0]] * 2), names, "t")
    assert excinfo.value.group == dict.fromkeys(names, "a")


def test_floats_are_canonical_keys() -> None:
    """NaN is one key, whatever its bits are, and -0.0 is 0.0."""
    schema = pa.schema([("row_kind", pa.string()), ("k", pa.float64()), ("v", pa.int64())])
    bits = [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1, 0, 1 << 63]
    keys = pa.array(np.array(bits, np.uint64).view(np.float64))
    rows = pa.table([["-U", "+U", "-D", "-U", "+U"], keys, list(range(5))], schema=schema)
    result = net_changes(rows, ["k"], "t")
    assert result["v"].to_pylist() == [1, 4]
    assert result["k"].combine_chunks().to_numpy().view(np.uint64).tolist() == [bits[0], 0]
    with pytest.raises(RejectedError, match="2 new rows with the same key"):
        net_changes(
            rows.filter(pa.array([True, True, False, False, False])).set_column(0, "row_kind", [["+I", "+I"]]),
            ["k"],
            "t",
        )


@pytest.mark.parametrize(
    ("table_type", "query_type", "fits"),
    [
        (pa.int64(), pa.int32(), True),
        (pa.int16(), pa.int32(), False),
        (pa.float64(), pa.float32(), True),
        (pa.int64(), pa.float64(), False),
        (pa.decimal256(76, 38), pa.decimal128(20, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(11, 2), False),
        (pa.decimal128(12, 3), pa.decimal128(12, 2), False),
        (pa.large_string(), pa.string(), True),
        (pa.string_view(), pa.string(), True),
        (pa.string(), pa.binary(), False),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), True),
        (pa.list_(pa.string()), pa.list_(pa.int32()), False),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()), True),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int32())]), True),
        (pa.struct([("b", pa.int64())]), pa.struct([("a", pa.int64())]), False),
        ("uuid", pa.string(), False),
    ],
    ids=str,
)
def test_types_may_hold_those_of_a_query(table_type: pa.DataType | str, query_type: pa.DataType, fits: bool) -> None:
    """A column may be wider than the query's. Another type is refused, with both types."""
    result = {"k": pa.string(), "v": table_type, "own": pa.date32()}
    columns = pa.schema([("k", pa.string()), ("v", query_type)])
    if fits:
        assert missing_columns("t", columns, result, add_columns=False) == []
    else:
        with pytest.raises(RejectedError, match=r"table t: the column v has the type .*; nothing was written"):
            missing_columns("t", columns, result, add_columns=True)


def test_columns_that_a_table_lacks_are_added_or_refused() -> None:
    """They are refused by name, or returned so that they can be added."""
    expected = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.date32())])
    with pytest.raises(RejectedError, match=r"table t has no column v, w, which the query has; it has k\."):
        missing_columns("t", expected, {"k": pa.string()}, add_columns=False)
    assert missing_columns("t", expected, {"k": pa.string()}, add_columns=True) == [
        expected.field("v"),
        expected.field("w"),
    ]


def test_types_that_cannot_be_keys_are_refused() -> None:
    """Lists, structs and maps identify no row."""
    assert is_key(pa.decimal128(10, 2))
    assert not any(
        map(is_key, (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.string())))
    )


def test_an_object_with_both_methods_is_a_target() -> None:
    """An object with both methods is a target."""

    class Own:
        def last_epoch(self, query: str) -> int | None:
            return None

        def apply(self, query: str, epoch: int, changes: Any) -> None: ...

    assert isinstance(Own(), Target)
    assert not isinstance("duckdb:///path?table=t", Target)
