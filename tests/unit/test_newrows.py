"""Which retractions of a new group have a row: a multiset in plain Python knows it, too."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight.engine.keys.row_buffers import BufferedRows
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.stream import epoch
from foldflight.engine.stream.epoch import NewRows
from tests.effort import examples

NAN = float("nan")
COLUMNS = pa.schema([("x", pa.float64()), ("t", pa.list_(pa.string())), ("is_used", pa.bool_())])
LAYOUT = QueryLayout(pa.schema([]), (), COLUMNS, tuple(COLUMNS.names), has_kinds=True)
ROW = st.tuples(
    st.sampled_from([0.0, -0.0, 1.5, NAN, None]),
    st.sampled_from([None, (), ("a",), ("a", None)]),
    st.sampled_from([True, None]),
)
# Rows of groups, by slot. The rows of each step are all accumulated before its retractions.
STEPS = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 2), ROW), max_size=8), st.lists(st.tuples(st.integers(0, 2), ROW))),
    max_size=4,
)


def rows_of(rows: list[tuple[int, Any]]) -> tuple[Any, pa.RecordBatch]:
    columns = [pa.array([row[index] for _, row in rows], field.type) for index, field in enumerate(COLUMNS)]
    return np.array([slot for slot, _ in rows], np.int32), pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


def comparable(slot: int, row: Any) -> Any:
    number = "nan" if row[0] is not None and row[0] != row[0] else row[0]
    return slot, number, row[1:]


@examples(100)
@given(STEPS, st.sampled_from([0, 300, 1 << 20]))
def test_a_retraction_counts_if_an_equal_row_is_left(steps: list[tuple[Any, Any]], bytes_max: int) -> None:
    """Rows may be in memory or in a file, and groups may come after others were retracted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "BufferedRows", partial(BufferedRows, bytes_max=bytes_max))
        rows = NewRows(LAYOUT)
    left: Counter[Any] = Counter()
    for step, both in enumerate(steps):
        # Each step has groups of its own: the rows of a group come before its first retraction.
        came, retracted_rows = ([(3 * step + slot, row) for slot, row in each] for each in both)
        left.update(comparable(*each) for each in came)
        rows.accumulate(*rows_of(came))
        expected = []
        for each in retracted_rows:
            expected.append(left[comparable(*each)] > 0)
            left[comparable(*each)] -= expected[-1]
        half = len(retracted_rows) // 2
        result = [
            flag
            for part in (retracted_rows[:half], retracted_rows[half:])
            for flag in rows.retract(*rows_of(part)).tolist()
        ]
        assert result == expected
    rows.close()
