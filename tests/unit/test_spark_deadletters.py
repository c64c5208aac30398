"""Rows that are held until the barrier, and their dead letters."""

import numpy as np
import pyarrow as pa
import pytest

from foldflight.engine.keys.row_buffers import BufferedRows, FailedGroups
from foldflight.engine.query.layout import DEAD_LETTER, KIND, QueryLayout
from foldflight.fold.failures import ERROR, ERROR_TYPE

NOTHING = pa.schema([])
KEYS = pa.schema([("key_0", pa.string())])
COLUMNS = pa.schema([("column_0", pa.int64()), ("column_1", pa.timestamp("us", "UTC"))])
OUTPUTS = pa.schema([("total", pa.decimal128(10, 2))])
LAYOUT = QueryLayout(KEYS, ("name",), COLUMNS, ("v", "at"), True, NOTHING, NOTHING, OUTPUTS, isolates=True)
NAMES = np.array(["ann", "bob", "cy", "dee"])


def block(first: int, count: int) -> pa.RecordBatch:
    """Make rows whose slot is their value modulo 4; odd ones are retractions."""
    values = np.arange(first, first + count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(NAMES[values % 4]),
            pa.array((values % 2 * 3).astype(np.int8)),
            pa.array(values),
            pa.array(values, pa.timestamp("us", "UTC")),
        ],
        schema=LAYOUT.rows,
    )


def buffer_of(bytes_max: int) -> BufferedRows:
    rows = BufferedRows(LAYOUT.rows, bytes_max=bytes_max)
    for first in range(0, 100, 10):
        rows.add((np.arange(first, first + 10) % 4).astype(np.int32), block(first, 10))
    return rows


def failed_slots(*slots: int, layout: QueryLayout = LAYOUT) -> FailedGroups:
    error = {"code": "USER_CODE", "function": "f", "message": "no", "row": "row 0", "trace": "here"}
    columns = {"slot": pa.array(slots, pa.int32()), ERROR: pa.array([error] * len(slots), ERROR_TYPE)}
    groups = pa.RecordBatch.from_pydict(columns)

    def keys(of: np.ndarray) -> pa.RecordBatch:
        columns = [pa.array(NAMES[of])] if len(layout.keys) else []
        return pa.RecordBatch.from_arrays(columns, schema=layout.keys)

    return FailedGroups(layout, groups, keys)


@pytest.mark.parametrize("bytes_max", [1 << 20, 400, 0])
def test_letters_are_the_rows_of_the_failed(bytes_max: int) -> None:
    """Each row of a failed group is one letter, in order, whether rows were in memory, in a file, or both."""
    letters = pa.Table.from_batches(failed_slots(1, 2).letters(buffer_of(bytes_max))).to_pylist()
    expected = [value for value in range(100) if value % 4 in (1, 2)]
    assert [each[DEAD_LETTER]["row"]["v"] for each in letters] == expected
    assert [each["name"] for each in letters] == [NAMES[value % 4] for value in expected]
    assert letters[0] == {
        "name": "bob",
        "total": None,
        DEAD_LETTER: {
            "key": {"name": "bob"},
            "code": "USER_CODE",
            "function": "f",
            "message": "no",
            "trace": "here",
            "at": "row 0",
            "row_kind": "-D",
            "row": {"v": 1, "at": letters[0][DEAD_LETTER]["row"]["at"]},
        },
    }


def test_rows_of_others_are_let_go() -> None:
    """Without a failed group there are no letters, and the held rows and their file are removed."""
    rows = buffer_of(0)
    assert list(failed_slots().letters(rows)) == []
    assert list(rows.take()) == []


def test_owners_say_whose_rows_they_are() -> None:
    """If rows were folded into other slots than their group's, `owners` maps them; -1 means no group."""
    owners = np.array([-1, 9, 9, 3], np.int32)
    rows = pa.Table.from_batches(failed_slots(3).letters(buffer_of(1 << 20), owners))
    assert {each["row"]["v"] % 4 for each in rows[DEAD_LETTER].to_pylist()} == {3}


def test_a_group_without_rows_has_one_letter() -> None:
    """A failed group without rows has one letter, without row and kind."""
    [batch] = failed_slots(0, 1).letters(BufferedRows(LAYOUT.rows))
    assert [(each["name"], each[DEAD_LETTER]["row"], each[DEAD_LETTER]["row_kind"]) for each in batch.to_pylist()] == [
        ("ann", None, None),
        ("bob", None, None),
    ]


def test_without_keys_and_columns_a_letter_is_an_error() -> None:
    """A query without keys and columns has letters with errors only."""
    layout = QueryLayout(NOTHING, (), NOTHING, (), False, NOTHING, NOTHING, OUTPUTS, isolates=True)
    rows = BufferedRows(layout.rows)
    rows.add(np.zeros(2, np.int32), pa.RecordBatch.from_arrays([pa.array([True, True])], schema=layout.rows))
    letters = pa.Table.from_batches(failed_slots(0, layout=layout).letters(rows)).to_pylist()
    assert [each[DEAD_LETTER]["row_kind"] for each in letters] == ["+I", "+I"]
    assert {"key", "row"} & set(letters[0][DEAD_LETTER]) == set()
    assert KIND not in layout.rows.names
