"""Types that Spark lacks: their values pass through Spark unchanged, and results are converted or refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import RejectedError
from foldflight.engine.query.blocks import convert, without_nullability
from foldflight.functions.types.arrow import JSON
from foldflight.spark.storage_types import result_storage_type, result_types, storage_type

NOON = dt.datetime(2020, 1, 1, 12)
INTERVAL = pa.month_day_nano_interval()
SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [1],
    pa.string(): ["", "a"],
    pa.time64("us"): [dt.time(1, 2, 3, 4)],
    pa.time32("ms"): [dt.time(1)],
    pa.duration("us"): [dt.timedelta(1), dt.timedelta(-1)],
    INTERVAL: [pa.MonthDayNano([1, -2, 3])],
    pa.decimal128(10, 2): [Decimal("1.25")],
    pa.decimal256(76, 0): [Decimal(5), Decimal(10) ** 60],
    pa.uint8(): [255],
    pa.uint64(): [0, 2**64 - 1],
    **({pa.float16(): [1.5]} if JSON else {}),  # Arrow 15 does not cast them
    pa.null(): [],
    pa.struct([]): [{}],
    pa.large_string(): ["a"],
    pa.large_binary(): [b"a"],
    pa.binary(3): [b"abc"],
    pa.timestamp("ns"): [NOON],
    pa.timestamp("s", "UTC"): [NOON.replace(tzinfo=dt.UTC)],
    pa.date64(): [dt.date(2020, 1, 1)],
    pa.list_(pa.duration("us")): [[], [dt.timedelta(1), None]],
    pa.large_list(INTERVAL): [[pa.MonthDayNano([1, 2, 3]), None]],
    pa.map_(pa.string(), pa.uint64()): [[], [("a", 1), ("b", None)]],
    pa.struct([("a", pa.list_(pa.struct([("b", INTERVAL)])))]): [
        {"a": [{"b": pa.MonthDayNano([1, 2, 3])}, None]},
        {"a": None},
    ],
}


@given(
    st.sampled_from(list(SAMPLES)).flatmap(
        lambda type_: st.tuples(st.just(type_), st.lists(st.sampled_from([None, *SAMPLES[type_]]), max_size=6))
    ),
    st.integers(0, 3),
)
def test_states_cross_spark_unchanged(example: tuple[pa.DataType, list[Any]], skipped_rows: int) -> None:
    """A state of any type, nested and sliced, is the same after conversion to a Spark type and back."""
    type_, values = example
    array = pa.array(values, type_)[skipped_rows:]
    stored_array = convert(array, storage_type(type_))
    stored_array.validate(full=True)
    back = convert(stored_array, type_)
    back.validate(full=True)
    assert back.type == type_
    assert back.to_pylist() == values[skipped_rows:]


@pytest.mark.parametrize("type_", [each for each in SAMPLES if result_storage_type(each) is not None], ids=str)
def test_results_keep_their_values(type_: pa.DataType) -> None:
    """A result is shown in a type that can hold its values."""
    values = [each for each in SAMPLES[type_] if each != Decimal(10) ** 60]
    result_array = convert(pa.array([*values, None], type_), result_storage_type(type_))
    assert result_array.to_pylist() == [*values, None]


def test_a_result_of_more_than_38_digits_is_an_error() -> None:
    """A decimal that Spark cannot hold is an error, not NULL."""
    with pytest.raises(pa.ArrowInvalid):
        convert(pa.array([Decimal(10) ** 60], pa.decimal256(76, 0)), pa.decimal128(38, 0))


def test_results_that_spark_cannot_show_are_refused() -> None:
    """An interval of months, days and nanoseconds is refused at any depth, with the name of its output."""
    for type_ in (INTERVAL, pa.list_(INTERVAL), pa.struct([("a", INTERVAL)]), pa.map_(pa.string(), INTERVAL)):
        with pytest.raises(RejectedError, match=r"the output late is .*INTERVAL.*, which Spark has no type for"):
            result_types(["late"], [type_])


def test_spark_marks_members_as_never_null() -> None:
    """Spark's nullability of nested members is dropped, because a plan must not depend on it."""
    strict = pa.struct([pa.field("a", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)])
    loose = without_nullability(strict)
    assert loose == pa.struct([("a", pa.list_(pa.int32()))])
    assert convert(pa.array([{"a": [1]}], strict), loose).type == loose


@pytest.mark.skipif(JSON is None, reason="Arrow has JSON since 19")
def test_json_is_text() -> None:
    """JSON passes through Spark as text, and becomes JSON again."""
    json = pa.ExtensionArray.from_storage(JSON, pa.array(['{"a": 1}', None]))
    stored_array = convert(json, storage_type(JSON))
    assert stored_array.to_pylist() == ['{"a": 1}', None]
    assert convert(stored_array, JSON).equals(json)
    assert result_storage_type(JSON) == pa.string()
