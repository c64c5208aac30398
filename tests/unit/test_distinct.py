"""DISTINCT: the equality of rows, and their values."""

from typing import Any

import pyarrow as pa
import pytest

from foldflight import RejectedError
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.functions import Call, Registry
from foldflight.functions.types.arrow import JSON


def distinct_fold(function: str, values: pa.Array, slots: list[int]) -> Fold:
    batch = pa.RecordBatch.from_pydict({"slot": pa.array(slots, pa.int32()), "x": values})
    fold = Fold(bind_calls(Registry(), [Call(function, ("x",), distinct=True)], batch.schema))
    fold.fold(batch)
    return fold


def test_a_slot_asked_for_twice_counts_once() -> None:
    """The values of slots are right if a slot is requested twice, as after two states for one slot."""
    fold = distinct_fold("sum", pa.array([1, 2, 3]), [0, 0, 1])
    assert fold.outputs(pa.array([0, 1, 0], pa.int32())).column("output_0").to_pylist() == [3, 3, 3]


@pytest.mark.skipif(JSON is None, reason="Arrow has JSON since 19")
def test_json_true_is_not_one() -> None:
    """JSON's true and 1 are different values, although they are equal in Python."""
    texts = pa.array(["1", "true", '{"a":[true]}', '{"a":[1]}', "1"])
    fold = distinct_fold("count", pa.ExtensionArray.from_storage(JSON, texts), [0] * 5)
    assert fold.collect().column("output_0").to_pylist() == [4]


@pytest.mark.parametrize("state", [[None], [{"argument_0": 1, "times": None}]], ids=["no row", "no count"])
def test_a_state_that_no_fold_writes_is_refused(state: list[Any]) -> None:
    """A state that no fold writes is a mismatch, not an internal error."""
    fold = distinct_fold("max", pa.array([0], pa.date32()), [0])
    type_ = fold.schema.field("state_0").type
    numbers = pa.list_(pa.struct([("argument_0", pa.int32()), ("times", pa.int64())]))
    forged_states = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int32()), pa.array([state], numbers).view(type_)], names=["slot", "state_0"]
    )
    with pytest.raises(RejectedError, match="a state of max cannot be read") as excinfo:
        fold.merge_states(forged_states)
    assert excinfo.value.code == "STATE_MISMATCH"


def test_distinct_filter_and_skipped_nulls_work_together() -> None:
    """Rows are folded if their FILTER is true and no argument is NULL (with skip_nulls); equal ones once."""
    batch = pa.RecordBatch.from_pydict(
        {
            "slot": pa.array([0] * 7, pa.int32()),
            "kind": pa.array([0, 0, 0, 3, 0, 0, 0], pa.int8()),
            "x": pa.array([1, 1, None, 1, 5, 7, 7]),
            "wanted": pa.array([True, True, True, True, None, True, False]),
        }
    )
    calls = [
        Call("sum", ("x",), filter="wanted", distinct=True),
        Call("sum", ("x",), filter="wanted"),
        Call("count", ("x",), filter="wanted", distinct=True),
        Call("first", ("x",), distinct=True),
    ]
    fold = Fold(bind_calls(Registry(), calls, batch.schema))
    fold.fold(batch)
    row = fold.collect().to_pylist()[0]
    assert [row[f"output_{place}"] for place in range(4)] == [8, 8, 2, 1]
    fold.fold(pa.RecordBatch.from_pydict({**batch.slice(0, 1).to_pydict(), "kind": [3]}, schema=batch.schema))
    row = fold.collect().to_pylist()[0]
    assert [row[f"output_{place}"] for place in range(4)] == [7, 7, 1, None]
