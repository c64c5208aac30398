"""The built-in functions, checked to the last digit."""

import itertools
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from foldflight import RejectedError
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.functions import Call, Registry
from foldflight.functions.query.call import Order
from foldflight.functions.types.arrow import JSON


def fold_values(function: str, values: pa.Array, kinds: list[int] | None = None, *, states: int = 1) -> Any:
    """Return a function's value over a column, its state merged `states` times."""
    columns = {"slot": pa.array([0] * len(values), pa.int32()), "x": values}
    if kinds is not None:
        columns["kind"] = pa.array(kinds, pa.int8())
    batch = pa.RecordBatch.from_pydict(columns)
    calls = bind_calls(Registry(), [Call(function, ("x",))], batch.schema)
    fold = Fold(calls)
    fold.fold(batch)
    result = fold.collect()
    merged_fold = Fold(calls)
    for _ in range(states):
        merged_fold.merge_states(result)
    return merged_fold.collect().column("output_0")[0].as_py()


def decimals(*texts: str) -> pa.Array:
    return pa.array([Decimal(text) for text in texts], pa.decimal128(38, 2))


def test_decimal_sums_keep_every_digit() -> None:
    """A sum of more than 28 digits (the precision of Python's context) is exact, also with retractions and merges."""
    large = "1234567890123456789012345678901.01"
    assert fold_values("sum", decimals(large, "0.01")) == Decimal("1234567890123456789012345678901.02")
    assert fold_values("sum", decimals(large, "0.02", "0.01"), [0, 0, 3]) == Decimal(
        "1234567890123456789012345678901.02"
    )
    assert fold_values("sum", decimals(large, "0.01"), states=2) == Decimal("2469135780246913578024691357802.04")
    assert fold_values("avg", decimals(large, large)) == Decimal(large)


def test_averages_of_large_whole_numbers_do_not_overflow() -> None:
    """The average of BIGINTs whose sum exceeds BIGINT is a DOUBLE, as in Spark, also from merged states."""
    assert fold_values("avg", pa.array([2**62, 2**62, 2**62 - 1024]), states=2) == (3 * 2**62 - 1024) / 3
    assert fold_values("avg", pa.array([1, 2])) == 1.5


@pytest.mark.parametrize("digits", [(4, 0), (18, 0), (38, 0), (4, 1)])
def test_min_and_max_take_decimals_of_every_scale(digits: tuple[int, int]) -> None:
    """`min` and `max` take decimals of every scale, also of scale 0, which sums fold in vectors."""
    values = pa.array([Decimal(26), None, Decimal(-3)], pa.decimal128(*digits))
    assert fold_values("min", values, states=2) == Decimal(-3)
    assert fold_values("max", values, states=2) == Decimal(26)


def test_averages_of_whole_decimals_keep_their_digits() -> None:
    """DECIMALs of scale 0 are summed in vectors, and their average has more digits than a float."""
    values = pa.array([Decimal(26), Decimal(-999999999999999999), Decimal(0)], pa.decimal128(18, 0))
    assert fold_values("avg", values, states=2) == Decimal("-333333333333333324.3333")


def test_structs_and_arrays_are_ordered_as_in_spark() -> None:
    """Members are compared in turn: NULL is the least, NaN the greatest; an array is greater than its beginning."""
    type_ = pa.struct([("at", pa.float64()), ("more", pa.list_(pa.struct([("x", pa.int64())])))])
    rising_values = [
        {"at": None, "more": [{"x": 9}]},
        {"at": 1.0, "more": None},
        {"at": 1.0, "more": []},
        {"at": 1.0, "more": [None]},
        {"at": 1.0, "more": [{"x": None}]},
        {"at": 1.0, "more": [{"x": 1}]},
        {"at": 1.0, "more": [{"x": 1}, {"x": 0}]},
        {"at": math.nan, "more": None},
    ]
    for low, high in itertools.pairwise(rising_values):
        pairs = (pa.array([low, high, None], type_), pa.array([None, high, low], type_))
        assert [repr(fold_values("min", each, states=2)) for each in pairs] == [repr(low)] * 2
        assert [repr(fold_values("max", each, states=2)) for each in pairs] == [repr(high)] * 2


@pytest.mark.parametrize("type_", [pa.map_(pa.string(), pa.int64()), *([pa.list_(JSON)] if JSON else [])])
def test_types_without_an_order_have_no_extremes(type_: pa.DataType) -> None:
    """Maps and JSON are refused, also within other types."""
    for name in ("min", "max"):
        with pytest.raises(RejectedError, match=r"has none \(maps and JSON cannot be compared") as excinfo:
            fold_values(name, pa.nulls(1, type_))
        assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_the_column_of_an_order_may_have_only_nulls() -> None:
    """Rows that are kept for their order may have a column of the type VOID."""
    batch = pa.RecordBatch.from_pydict({"slot": pa.array([0, 0, 1], pa.int32()), "x": pa.nulls(3), "o": [1, 2, 3]})
    fold = Fold(bind_calls(Registry(), [Call("first", ("x",), order=(Order("o"),))], batch.schema))
    fold.fold(batch)
    result = fold.collect()
    result.validate(full=True)
    assert result.column("output_0").to_pylist() == [None, None]
