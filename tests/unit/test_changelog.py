"""The rules of changelogs, and the counts of live rows."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight.engine.query.changelog import changelog, equal_rows, live_rows
from tests.unit.test_keys import SAMPLES

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("tags", pa.list_(pa.int64())), ("j", pa.json_())])


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], SCHEMA.types[place]) for place in range(3)]
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array([row[3] for row in rows], pa.string()))
    return pa.RecordBatch.from_arrays([*columns, json], schema=SCHEMA)


OLD = ("a", 1.0, [1], "1")
RULES = {
    "first live row": (OLD, OLD, False, True, ["+I"]),
    "value changed": (OLD, ("a", 2.0, [1], "1"), True, True, ["-U", "+U"]),
    "value became NULL": (OLD, ("a", None, [1], "1"), True, True, ["-U", "+U"]),
    "nested value changed": (OLD, ("a", 1.0, [1, 2], "1"), True, True, ["-U", "+U"]),
    "json changed": (OLD, ("a", 1.0, [1], "2"), True, True, ["-U", "+U"]),
    "value unchanged": (OLD, OLD, True, True, []),
    "NULL unchanged": (("a", None, None, None), ("a", None, None, None), True, True, []),
    "NaN unchanged": (("a", math.nan, [1], "1"), ("a", math.nan, [1], "1"), True, True, []),
    "last row gone": (OLD, OLD, True, False, ["-D"]),
    "came and went": (OLD, OLD, False, False, []),
}
KINDS = {0: "+I", 1: "-U", 2: "+U", 3: "-D"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("update_before", [True, False])
def test_each_rule_gives_its_rows(rule: str, update_before: bool) -> None:
    """Each rule gives its rows, with `-U` only if requested."""
    before, after, was_there, exists, expected = RULES[rule]
    kinds, rows = changelog(
        batch(before), batch(after), np.array([was_there]), np.array([exists]), update_before=update_before
    )
    expected_kinds = expected if update_before else [kind for kind in expected if kind != "-U"]
    assert [KINDS[kind] for kind in kinds.to_pylist()] == expected_kinds
    assert rows.num_rows == len(expected_kinds)
    for kind, row in zip(expected_kinds, rows.to_pylist(), strict=True):
        assert row["x"] == (before if kind in ("-U", "-D") else after)[1]


def nested_batch(value: float | None) -> pa.RecordBatch:
    """Return one row: a struct with a list, a map and a NULL in it."""
    type_ = pa.struct([("l", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.float32())), ("n", pa.int8())])
    return pa.RecordBatch.from_arrays(
        [pa.array([{"l": [1.0, value], "m": {"a": value}, "n": None}], type_)], names=["s"]
    )


def test_nan_within_a_value_is_equal_to_itself() -> None:
    """An unchanged nested value with NaN is equal to itself; NULL in its place is a change."""
    assert equal_rows(nested_batch(math.nan), nested_batch(math.nan)).tolist() == [True]
    assert equal_rows(nested_batch(math.nan), nested_batch(None)).tolist() == [False]
    assert equal_rows(nested_batch(math.nan), nested_batch(1.0)).tolist() == [False]


def test_changes_of_a_group_stand_together() -> None:
    """Old and new rows of one group are adjacent, and groups keep their order."""
    before = batch(("a", 1.0, [], "1"), ("b", 1.0, [], "1"), ("c", 1.0, [], "1"))
    after = batch(("a", 2.0, [], "1"), ("b", 1.0, [], "1"), ("c", 3.0, [], "1"))
    there = np.ones(3, np.bool_)
    kinds, rows = changelog(before, after, there, there, update_before=True)
    assert rows.column("k").to_pylist() == ["a", "a", "c", "c"]
    assert kinds.to_pylist() == [1, 2, 1, 2]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_live_rows_never_go_below_zero(rows: list[tuple[int, bool]], live: list[int]) -> None:
    """Counting all rows at once gives the same as counting them one by one."""
    now, counts = list(live), []
    for slot, retracts in rows:
        counts.append(not (retracts and now[slot] == 0))
        now[slot] += 0 if not counts[-1] else -1 if retracts else 1
    row_counts, after = live_rows(
        np.array([slot for slot, _ in rows], np.int32),
        np.array([retracts for _, retracts in rows], np.bool_),
        np.array(live, np.int64),
    )
    assert row_counts.tolist() == counts
    assert after.tolist() == now


@pytest.mark.parametrize("type_", [type_ for type_ in SAMPLES if not isinstance(type_, pa.DictionaryType)], ids=str)
def test_every_type_is_equal_to_itself(type_: pa.DataType) -> None:
    """Values of each key type, including NULL, are equal to themselves."""
    values = pa.array([*SAMPLES[type_], None], type_)
    rows = pa.RecordBatch.from_arrays([values], names=["value"])
    assert equal_rows(rows, rows).all()
