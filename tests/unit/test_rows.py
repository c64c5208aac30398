"""Argument values that have no Python object."""

import numpy as np
import pyarrow as pa
import pytest

from foldflight import RejectedError
from foldflight.fold.rows import Column, Rows

JSON = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]", "nope"]))
TWICE = pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    "array", [JSON, TWICE, pa.array([0, 5_000_000], pa.date32())], ids=lambda array: str(array.type)
)
def test_a_value_without_a_python_object_names_its_row(array: pa.Array) -> None:
    """Invalid JSON, a duplicate key and a year after 9999 are errors of the input that name the row."""
    with pytest.raises(RejectedError, match=r"argument x .* row 1 of the 2") as excinfo:
        _ = Column("x", array).values
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_a_row_is_shown_as_it_was_given() -> None:
    """An error shows the values of the row, also if the method changed the list before it failed."""
    column = Column("tags", pa.array([["a"], ["b", None]]))
    column.values[1].clear()
    assert Rows(np.zeros(2, np.int32), None, [column]).describe(1) == "tags=['b', None]"
