"""VECTOR(n): the type, its values in Python, its conversions, and refusals."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from foldflight import FunctionError, MapView, RejectedError, Vector, connect, udaf, udf
from foldflight.engine.query.blocks import convert
from foldflight.functions import can_widen, parse_type, sql_name
from foldflight.functions.types.serializer import serializer_of_annotation
from foldflight.functions.types.values import CastError, cast_arguments, cast_results, to_python
from foldflight.functions.types.vectors import as_vectors, is_vector
from foldflight.spark.storage_types import result_storage_type, storage_type
from foldflight.testing import check_laws, run_epochs

THREE = parse_type("VECTOR(3)")
WIDE = parse_type("VECTOR(3, DOUBLE)")
# The form that type checkers take: with the sizes of items, so that they check calculations with vectors.
V3: TypeAlias = Annotated[NDArray[np.float32], "VECTOR(3)"]
W3: TypeAlias = Annotated[NDArray[np.float64], "VECTOR(3, DOUBLE)"]


@dataclass
class Mean:
    total: W3 = field(default_factory=lambda: np.zeros(3))
    n: int = 0


@udaf
class Centroid:
    def create_accumulator(self) -> Mean:
        return Mean()

    def accumulate(self, acc: Mean, v: V3) -> None:
        if v is not None:
            acc.total += v
            acc.n += 1

    def retract(self, acc: Mean, v: V3) -> None:
        if v is not None:
            acc.total -= v
            acc.n -= 1

    def merge(self, acc: Mean, other: Mean) -> None:
        acc.total += other.total
        acc.n += other.n

    def get_value(self, acc: Mean) -> V3 | None:
        return acc.total / acc.n if acc.n else None


class Known:
    """The last vector of each kind."""

    last: MapView[str, V3]
    way: float


@udaf
class Way:
    """How far the vectors of each kind have moved, with the last ones in a view."""

    def create_accumulator(self) -> Known:
        accumulator = Known()
        accumulator.last, accumulator.way = MapView(), 0.0
        return accumulator

    def accumulate(self, acc: Known, kind: str, v: V3) -> None:
        before = acc.last.get(kind)
        if before is not None:
            acc.way += float(np.abs(v - before).sum())
        acc.last[kind] = v

    def get_value(self, acc: Known) -> float:
        return acc.way


@udf(vectorised="numpy", input_types=["VECTOR(3)"], result_type="VECTOR(3)")
def moved(v):
    """All rows are one array; NULL is masked, as an argument and as a result."""
    assert v.shape[1:] == (3,)
    with np.errstate(all="ignore"):
        return v - v[:, :1]


@udf
def doubled(v: V3) -> W3:
    return np.asarray(2.0 * v, np.float64)


@pytest.mark.parametrize(
    ("text", "item", "size"),
    [("VECTOR(3)", pa.float32(), 3), ("vector(384, double)", pa.float64(), 384), ("VECTOR(1, REAL)", pa.float32(), 1)],
)
def test_a_name_is_a_list_of_a_fixed_size_without_null_items(text: str, item: pa.DataType, size: int) -> None:
    type_ = parse_type(text)
    assert is_vector(type_)
    assert (type_.list_size, type_.value_type) == (size, item)
    assert parse_type(sql_name(type_)) == type_
    assert parse_type(f"ARRAY<STRUCT<v {text}>>").value_type.field("v").type == type_
    assert not is_vector(pa.list_(item, size))  # its values are lists, as before


@pytest.mark.parametrize(
    "text", ["VECTOR", "VECTOR()", "VECTOR(0)", "VECTOR(65537)", "VECTOR(3, INT)", "VECTOR(x)", "VECTOR(3", "VECTOR<3>"]
)
def test_types_that_are_no_vectors_are_refused(text: str) -> None:
    with pytest.raises(RejectedError, match="is not a type") as excinfo:
        parse_type(text)
    assert excinfo.value.code == "SIGNATURE"


def test_types_come_back_from_pickles() -> None:
    schema = pa.schema([("v", THREE), ("w", pa.list_(WIDE))])
    for data in (pickle.dumps(schema), cloudpickle.dumps(schema)):
        assert pickle.loads(data) == schema


def test_annotations_are_types_of_vectors() -> None:
    for annotation in (V3, Vector[3], Annotated[np.ndarray, THREE], V3 | None):  # type: ignore[type-arg]
        assert serializer_of_annotation(annotation).arrow == THREE
    assert serializer_of_annotation(Vector[3, np.float64]).arrow == WIDE  # type: ignore[type-arg]


@pytest.mark.parametrize(
    ("actual", "declared_type", "fits"),
    [
        ("ARRAY<REAL>", "VECTOR(3)", True),
        ("ARRAY<REAL>", "VECTOR(3, DOUBLE)", True),
        ("ARRAY<DOUBLE>", "VECTOR(3)", False),
        ("ARRAY<INT>", "VECTOR(3, DOUBLE)", False),
        ("ARRAY<STRING>", "VECTOR(3)", False),
        ("REAL", "VECTOR(1)", False),
        ("VECTOR(3)", "VECTOR(3, DOUBLE)", True),
        ("VECTOR(3)", "VECTOR(4)", False),
        ("VECTOR(3)", "ARRAY<REAL>", True),
        ("VECTOR(3)", "ARRAY<DOUBLE>", True),
        ("NULL", "VECTOR(3)", True),
    ],
)
def test_columns_of_lists_may_be_passed_as_vectors(actual: str, declared_type: str, *, fits: bool) -> None:
    assert can_widen(parse_type(actual), parse_type(declared_type)) is fits


def test_values_are_arrays_that_cannot_be_changed() -> None:
    column = pa.array([[9.0, 9, 9], [1, 2, 3], None, [math.nan, -0.0, math.inf]], THREE).slice(1)
    first, null, hostile = to_python(column)
    assert null is None
    assert first.dtype == np.float32
    assert hostile.tobytes() == np.array([math.nan, -0.0, math.inf], np.float32).tobytes()
    with pytest.raises(ValueError, match="read-only"):
        first += 1


LISTS = [[1.0, 2, 3], None, [4, 5], [6, 7, 8], [9, None, 9], [], [1, 2, 3, 4], [5, 5, 5]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_lists_of_another_length_or_with_null_items_are_none(kind: pa.DataType, start: int) -> None:
    vectors, misfits = as_vectors(pa.array(LISTS, kind).slice(start), THREE)
    expected = [None if at in (1, 2, 4, 5, 6) else each for at, each in enumerate(LISTS)][start:]
    assert vectors.to_pylist() == expected
    assert misfits is not None
    assert np.flatnonzero(misfits).tolist() == [at - start for at in (2, 4, 5, 6) if at >= start]
    vectors.validate(full=True)


def test_fixed_lists_of_any_slice_are_vectors() -> None:
    array = pa.array([[1, 2, 3], [4, None, 6], None, [7, 8, 9]], pa.list_(pa.float32(), 3))
    vectors, misfits = cast_arguments(array.slice(1), WIDE)
    assert vectors.to_pylist() == [None, None, [7, 8, 9]]
    assert misfits is not None
    assert misfits.tolist() == [True, False, False]
    assert cast_arguments(array.slice(2), THREE)[1] is None


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        (np.zeros(2), "RESULT_TYPE", r"it has the shape \(2,\)"),
        (np.zeros((3, 1)), "RESULT_TYPE", "it has the shape"),
        ([1.0, 2.0], "RESULT_TYPE", "it has 2 items"),
        ([1.0, None, 3.0], "RESULT_TYPE", "its item 1 is None"),
        (np.array([1.0, None, 2.0]), "RESULT_TYPE", "its item 1 is None"),
        ([1.0, True, 3.0], "RESULT_TYPE", "its item 1 is True"),
        (["1", "2", "3"], "RESULT_TYPE", "its item 0 is '1'"),
        (np.array([True, False, True]), "RESULT_TYPE", "its items are bool"),
        (np.zeros(3, complex), "RESULT_TYPE", "its items are complex128"),
        (np.ma.masked_array([1.0, 2.0, 3.0], [False, False, True]), "RESULT_TYPE", "its item 2 is masked"),
        (1.0, "RESULT_TYPE", "neither an array nor a list"),
        ("abc", "RESULT_TYPE", "neither an array nor a list"),
        (np.array([1.0, 1e39, 2.0]), "OVERFLOW", r"declare VECTOR\(3, DOUBLE\)"),
        ([10**39, 0, 0], "OVERFLOW", "outside the range of REAL"),
    ],
)
def test_results_that_are_no_vectors_are_refused(value: Any, code: str, why: str) -> None:
    for type_, result in ((THREE, value), (pa.list_(THREE), [value]), (pa.struct([("v", THREE)]), {"v": value})):
        with pytest.raises(CastError, match=why) as excinfo:
            cast_results([None, result], type_)
        assert (excinfo.value.index, excinfo.value.code) == (1, code)


def test_results_are_rounded_once() -> None:
    results_given = [np.array([0.1, -0.0, math.inf]), None, [1, 2.5, math.nan], np.arange(3), np.float32([1, 2, 3])]
    column = cast_results(results_given, THREE)
    assert column.type == THREE
    assert column[0].values.to_numpy().tobytes() == np.array([0.1, -0.0, math.inf], np.float32).tobytes()
    assert column.slice(3).to_pylist() == [[0, 1, 2], [1, 2, 3]]
    assert cast_results([], THREE).type == THREE


def test_engines_without_vectors_store_lists() -> None:
    state = pa.struct([("total", WIDE), ("n", pa.int64())])
    stored_type = pa.struct([("total", pa.list_(pa.float64())), ("n", pa.int64())])
    assert storage_type(state) == stored_type
    assert result_storage_type(THREE) == pa.list_(pa.float32())
    states = pa.array([{"total": [1, 2, 3], "n": 1}, None, {"total": None, "n": 2}], state)
    there = convert(states.slice(0), stored_type)
    assert there.type == stored_type
    back = convert(there, state)
    assert back.type == state
    assert back.equals(states)
    assert convert(there.slice(1), state).equals(states.slice(1))


def test_states_of_another_shape_are_refused() -> None:
    serializer = serializer_of_annotation(W3)
    good = np.array([math.nan, -0.0, 5e-324])
    assert serializer.from_arrow(serializer.to_arrow([good, None]))[0].tobytes() == good.tobytes()
    for wrong, why in (
        (np.zeros(4), r"shape \(4,\) is not VECTOR\(3, DOUBLE\)"),
        (np.float64(1), "is not a NumPy array"),
        ([1.0, 2.0, 3.0], "is not a NumPy array"),
        (np.zeros(3, np.float32), r"float32 is not VECTOR\(3, DOUBLE\), of float64; annotate VECTOR\(3\)"),
        (np.zeros(3, np.int64), "int64 is not"),
    ):
        assert not serializer.keeps([wrong])
        with pytest.raises(CastError, match=why) as excinfo:
            serializer.to_arrow([good, wrong])
        assert excinfo.value.index == 1


def test_states_that_are_loaded_can_be_changed_and_do_not_share_memory() -> None:
    serializer = serializer_of_annotation(W3)
    states = serializer.to_arrow([np.zeros(3), np.ones(3)])
    one, other = serializer.from_arrow(states)
    one += 5
    assert other.tolist() == [1, 1, 1]
    assert states.to_pylist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.every_turn
def test_natural_classes_keep_the_laws() -> None:
    for function in (Centroid, doubled, moved):
        results = check_laws(function, examples=30)
        assert [result for result in results if result.passed is False] == []


def test_epochs_of_vectors_may_retract_all_rows() -> None:
    """NULL reaches the function as None, retractions empty the group, and results are the rows' mean."""
    functions = connect(Centroid)
    first = [{"k": "a", "v": [1.0, 2, 3]}, {"k": "a", "v": None}, {"k": "a", "v": [3.0, 4, 5]}, {"k": "b", "v": None}]
    second: list[Any] = [("-D", row) for row in first[:3]]
    epochs = run_epochs({"mean": functions["centroid"]("v")}, [first, second], keys=["k"])
    mean = {"k": "a", "mean": [2.0, 3.0, 4.0]}
    assert epochs[0].changelog == [("+I", mean), ("+I", {"k": "b", "mean": None})]
    assert epochs[0].states[("a",)]["mean"] == {"total": [4.0, 6.0, 8.0], "n": 2}
    assert epochs[1].changelog == [("-D", mean)]


def test_a_wrong_vector_is_an_error_with_its_column_and_row() -> None:
    functions = connect(Centroid)
    rows = [{"k": 1, "v": [1.0, 2, 3]}, {"k": 2, "v": [7.0, 8]}]
    calls = {"mean": functions["centroid"]("v")}
    for wrong, why in (([7.0, 8], "it has 2 items"), ([7.0, None, 8.0], "its item 1 is NULL")):
        rows[1]["v"] = wrong
        with pytest.raises(FunctionError, match=rf"argument v has a list that is no VECTOR\(3\): {why}") as excinfo:
            run_epochs(calls, [rows], keys=["k"], types={"v": "ARRAY<REAL>"})
        assert (excinfo.value.code, excinfo.value.group) == ("OVERFLOW", {"k": 2})
        assert excinfo.value.row == "v=" + str(wrong).replace("8]", "8.0]")
    with pytest.raises(RejectedError, match=r"ARRAY<DOUBLE>.*VECTOR\(3\)"):
        run_epochs(calls, [rows], keys=["k"], types={"v": "ARRAY<DOUBLE>"})


def test_null_items_that_arrow_lets_through_are_refused() -> None:
    """pa.array makes vectors with NULL items without an error: as arguments, inside of other values, in states."""
    bare = pa.array([[1, 2, 3], [1, None, 3]], THREE)
    vectors, misfits = cast_arguments(bare, THREE)
    assert (vectors.null_count, misfits is not None and misfits.tolist()) == (1, [False, True])
    with pytest.raises(ValueError, match="item 1 of a vector of 3 items is NULL"):
        to_python(pa.array([[[1, None, 3]]], pa.list_(THREE)))
    with pytest.raises(ValueError, match="item 1 of a vector of 3 items is NULL"):
        serializer_of_annotation(V3).from_arrow(bare)


def test_distinct_compares_vectors_item_by_item() -> None:
    """DISTINCT and materialized calls compare vectors item by item: NaN equals NaN."""
    functions = connect(Centroid)
    rows = [{"v": v} for v in ([1.0, 2, 3], [1.0, 2, 3], [3.0, 2, 1], [3.0, 2, 1])]
    nan = [{"v": [math.nan, 1, 1]}, ("-D", {"v": [math.nan, 1, 1]})]
    epochs = run_epochs({"mean": functions["centroid"]("v").distinct()}, [rows, nan, [("-D", rows[0])]])
    (changes,) = [each.changelog for each in epochs if each.changelog]
    assert changes == [("+I", {"mean": [2.0, 2.0, 2.0]})]


def test_views_keep_vectors() -> None:
    """The engine keeps vectors as entries of a view, and gives them back in a later epoch."""
    rows = [[{"kind": "a", "v": [1.0, 2, 3]}], [{"kind": "b", "v": [9.0, 9, 9]}, {"kind": "a", "v": [1.0, 0, 4]}]]
    epochs = run_epochs({"way": connect(Way)["way"]("kind", "v")}, rows)
    assert [each.states[()]["way"]["way"] for each in epochs] == [0.0, 3.0]
    assert epochs[1].states[()]["way"]["last"] == {"a": [1.0, 0.0, 4.0], "b": [9.0, 9.0, 9.0]}


CHECKED = """
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foldflight import udaf

Embedding: TypeAlias = Annotated[NDArray[np.float32], "VECTOR(384)"]
Total: TypeAlias = Annotated[NDArray[np.float64], "VECTOR(384, DOUBLE)"]


@dataclass
class Mean:
    total: Total = field(default_factory=lambda: np.zeros(384))
    n: int = 0


@udaf
class Centroid:
    def create_accumulator(self) -> Mean:
        return Mean()

    def accumulate(self, acc: Mean, v: Embedding) -> None:
        acc.total += v
        acc.n += 1

    def get_value(self, acc: Mean) -> Total:
        return acc.total / acc.n
"""


@pytest.mark.slow
def test_type_checkers_take_aliases_of_vectors(tmp_path) -> None:
    """The aliases of the documentation are types for mypy, which checks calculations with them."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(CHECKED)
    wrong.write_text(CHECKED.replace("acc.total += v", "acc.total += 'v'"))
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "--config-file", "/dev/null"]
    ran = [
        subprocess.run([*mypy, "--cache-dir", str(tmp_path), str(each)], capture_output=True, text=True, check=False)
        for each in (right, wrong)
    ]
    assert ran[0].returncode == 0, ran[0].stdout
    assert "wrong.py:28: error" in ran[1].stdout
