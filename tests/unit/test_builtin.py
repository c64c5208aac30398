"""The built-in functions, checked to the last digit."""

from decimal import Decimal
from typing import Any

import pyarrow as pa

from foldflight.fold import Fold, bind_calls
from foldflight.functions import Call, Registry


def folded(function: str, values: pa.Array, kinds: list[int] | None = None, *, states: int = 1) -> Any:
    """Return a function's value over a column, its state merged `states` times."""
    columns = {"slot": pa.array([0] * len(values), pa.int32()), "x": values}
    if kinds is not None:
        columns["kind"] = pa.array(kinds, pa.int8())
    batch = pa.RecordBatch.from_pydict(columns)
    calls = bind_calls(Registry(), [Call(function, ("x",))], batch.schema)
    fold = Fold(calls)
    fold.fold(batch)
    result = fold.collect()
    merged = Fold(calls)
    for _ in range(states):
        merged.merge_states(result)
    return merged.collect().column("output_0")[0].as_py()


def decimals(*texts: str) -> pa.Array:
    return pa.array([Decimal(text) for text in texts], pa.decimal128(38, 2))


def test_decimal_sums_keep_every_digit() -> None:
    """A sum of more than 28 digits (the precision of Python's context) is exact, also with retractions and merges."""
    large = "1234567890123456789012345678901.01"
    assert folded("sum", decimals(large, "0.01")) == Decimal("1234567890123456789012345678901.02")
    assert folded("sum", decimals(large, "0.02", "0.01"), [0, 0, 3]) == Decimal("1234567890123456789012345678901.02")
    assert folded("sum", decimals(large, "0.01"), states=2) == Decimal("2469135780246913578024691357802.04")
    assert folded("avg", decimals(large, large)) == Decimal(large)


def test_averages_of_large_whole_numbers_do_not_overflow() -> None:
    """The average of BIGINTs whose sum exceeds BIGINT is a DOUBLE, as in Spark, also from merged states."""
    assert folded("avg", pa.array([2**62, 2**62, 2**62 - 1024]), states=2) == (3 * 2**62 - 1024) / 3
    assert folded("avg", pa.array([1, 2])) == 1.5
