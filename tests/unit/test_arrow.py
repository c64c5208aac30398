"""What does the same on each version of Arrow: functions/types/arrow.py."""

from __future__ import annotations

import mmap
import warnings

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from foldflight.errors import RejectedError
from foldflight.functions import parse_type
from foldflight.functions.types import arrow

MAPS = pa.map_(pa.string(), pa.int64())
NESTED = pa.struct(
    [("a", pa.list_(MAPS)), ("b", pa.map_(pa.int64(), MAPS)), ("c", pa.int64()), ("d", pa.list_(MAPS, 1))]
)
VALUES = [
    {"a": [[("x", 1), ("y", 2)], None], "b": [(1, [("z", None)])], "c": 5, "d": [[("x", 1)]]},
    None,
    dict.fromkeys("abcd"),
]


@pytest.mark.parametrize("knows", [pytest.param(True, id="newer"), pytest.param(False, id="older")])
def test_maps_are_dicts_at_any_depth(knows, monkeypatch):
    """It holds with the method of newer versions of Arrow and without it. A key that is there twice is an error."""
    if not knows:
        monkeypatch.setattr(arrow, "_KNOWS_DICTS", False)
    rows = {"a": [{"x": 1, "y": 2}, None], "b": {1: {"z": None}}, "c": 5, "d": [{"x": 1}]}
    expected = [rows, None, dict.fromkeys("abcd")]
    array = pa.array(VALUES, NESTED)
    assert arrow.to_pylist(array) == expected
    batch = pa.RecordBatch.from_arrays([array, pa.array([1, 2, 3])], names=["v", "n"])
    assert arrow.to_pylist(batch) == [{"v": v, "n": n} for v, n in zip(expected, (1, 2, 3), strict=True)]
    twice = pa.array([[("x", 1), ("x", 2)]], MAPS)
    with pytest.raises(KeyError, match=r"twice|duplicate"):
        arrow.to_pylist(twice)
    columns = [array.slice(0, 1), pa.array([twice], pa.list_(MAPS)), pa.array([1])]
    batch_of_maps = pa.RecordBatch.from_arrays(columns, names=["v", "twice", "n"])
    with warnings.catch_warnings():  # newer versions warn of a key that is there twice
        warnings.simplefilter("ignore")
        rows_to_show = arrow.rows_to_display(batch_of_maps)
    assert rows_to_show == [{"v": rows, "twice": [{"x": 2}], "n": 1}]


def test_types_with_members_are_nested():
    """Lists of a fixed size, too, which the test of Arrow 15 leaves out."""
    int64 = pa.int64()
    nested_types = [
        pa.list_(int64),
        pa.large_list(int64),
        pa.list_(int64, 2),
        MAPS,
        pa.struct([("a", int64)]),
        pa.struct([]),
    ]
    assert all(map(arrow.is_nested, nested_types))
    assert not any(map(arrow.is_nested, [int64, pa.string(), pa.binary(3), pa.decimal128(9, 2), pa.null()]))


def test_batches_are_joined_and_columns_replaced():
    """Metadata and nullability of the fields stay."""
    schema = pa.schema([pa.field("s", pa.int32(), nullable=False, metadata={"a": "b"}), pa.field("t", pa.string())])
    parts = [pa.RecordBatch.from_arrays([pa.array([n], pa.int32()), pa.array([None])], schema=schema) for n in (1, 2)]
    whole = arrow.concat_batches(parts)
    assert whole.schema.equals(schema, check_metadata=True)
    assert whole.column("s").to_pylist() == [1, 2]
    loose = pa.RecordBatch.from_arrays(parts[1].columns, names=["u", "v"])  # also with other names, and nullable
    assert arrow.concat_batches([parts[0], loose]).equals(whole, check_metadata=True)
    other = arrow.with_column(whole, "t", pa.array([1.5, None]))
    assert other.to_pydict() == {"s": [1, 2], "t": [1.5, None]}
    assert other.schema.field("s").equals(schema.field("s"), check_metadata=True)
    assert arrow.with_column(other, "u", pa.array([True, False])).schema.names == ["s", "t", "u"]


def test_json_needs_a_newer_arrow(monkeypatch):
    """The names of the type say so where Arrow has none."""
    monkeypatch.setattr("foldflight.functions.types.sql.JSON", None)
    with pytest.raises(RejectedError, match=r"JSONB needs pyarrow 19 or newer, and this is .*; declare STRING"):
        parse_type("ARRAY<JSONB >")  # not one that is kept from another test


def test_errors_about_the_size_of_an_array_are_recognised():
    """Arrow says in several ways that offsets of 32 bits do not suffice. Other errors are not about the size."""
    content = pa.py_buffer(mmap.mmap(-1, (1 << 31) - 1))  # the memory is never touched
    long = pa.Array.from_buffers(pa.binary(), 1, [None, pa.array([0, (1 << 31) - 1], pa.int32()).buffers()[1], content])
    with pytest.raises(pa.ArrowException) as overflow:
        pa.concat_arrays([long, long])
    far = pa.py_buffer(mmap.mmap(-1, 1 << 31))
    offsets = pa.array([0, 1 << 31], pa.int64()).buffers()[1]
    with pytest.raises(pa.ArrowException) as excinfo:
        pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, far]).cast(pa.binary())
    with pytest.raises(TypeError) as type_error:
        pa.RecordBatch.from_arrays([pa.chunked_array([[1], [2]])], names=["v"])
    with pytest.raises(pa.ArrowException) as other:
        pa.array(["x"]).cast(pa.int64())
    assert [arrow.is_overflow(each.value) for each in (overflow, excinfo, type_error, other)] == [
        True,
        True,
        True,
        False,
    ]
    assert arrow.is_overflow(pa.ArrowCapacityError("too much"))
    assert not arrow.is_overflow(TypeError("an int is no text"))
    with pytest.raises(pa.ArrowInvalid, match="overflow") as arithmetic:
        pc.add_checked(pa.array([2**63 - 1]), 1)
    assert not arrow.is_overflow(arithmetic.value)
    assert arrow.is_overflow(pa.ArrowInvalid("Take operation overflowed binary array capacity"))
