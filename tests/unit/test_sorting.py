"""Rows are sorted by the numbers of their values as Python sorts the values."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight.fold.rows import Column, codes_of, codes_of_numbers, hashable_key, sort
from foldflight.functions.query.call import Order

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.uint64(): [0, 1, 2**63 - 1, 2**63, 2**64 - 1],
    pa.int8(): [-128, 0, 127],
    pa.float64(): [-math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan],
    pa.float32(): [-math.inf, -0.0, 0.0, 1.5, math.nan],
    pa.bool_(): [False, True],
    pa.string(): ["", "a", "ab", "\uffff", "\U0001f600", "é"],
    pa.binary(): [b"", b"a", b"\xff", b"\x00"],
    pa.decimal128(20, 2): [decimal.Decimal("-1.50"), decimal.Decimal("0.00"), decimal.Decimal("99999999999.99")],
    pa.date32(): [dt.date.min, dt.date(2020, 1, 1), dt.date.max],
    pa.timestamp("us"): [dt.datetime(1, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2)],
    pa.time64("us"): [dt.time(0), dt.time(23, 59)],
    pa.duration("us"): [dt.timedelta(-1), dt.timedelta(0), dt.timedelta(1)],
}
IDS = [str(type_) for type_ in VALUES]


def rows_of(type_: pa.DataType, count: int, seed: int) -> list[Any]:
    return random.Random(seed).choices([*VALUES[type_], None], k=count)


@pytest.mark.parametrize("type_", VALUES, ids=IDS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
def test_rows_are_sorted_as_the_order_says(type_: pa.DataType, descending: bool, nulls_first: bool) -> None:
    """Values ascend or descend with NULLs at one end, and equal values keep their order."""
    values = rows_of(type_, 60, seed=1)
    order = Order("x", descending, nulls_first)
    rows, differs = sort([codes_of(Column("x", pa.array(values, type_)), order)])
    assert rows.tolist() == sorted(range(60), key=lambda row: order.sort_key(values[row]), reverse=descending)
    expected = [
        True,
        *(hashable_key([values[a]]) != hashable_key([values[b]]) for a, b in zip(rows[1:], rows[:-1], strict=True)),
    ]
    assert differs.tolist() == expected


@pytest.mark.parametrize("seed", range(8))
def test_columns_that_do_not_fit_a_number_are_sorted_by_ranks(seed: int) -> None:
    """However many columns there are, and however wide, rows are sorted by the first one first."""
    rng = random.Random(seed)
    types = rng.choices(list(VALUES), k=rng.randrange(2, 7))
    columns = [rows_of(type_, 200, seed + index) for index, type_ in enumerate(types)]
    orders = [Order(str(index), rng.random() < 0.5, rng.random() < 0.5) for index in range(len(types))]
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    rows, _ = sort([codes_of(Column(order.column, array), order) for order, array in zip(orders, arrays, strict=True)])
    expected = list(range(200))
    for order, values in reversed(list(zip(orders, columns, strict=True))):
        expected.sort(key=lambda row, o=order, v=values: o.sort_key(v[row]), reverse=order.descending)
    assert rows.tolist() == expected


def test_nested_values_are_equal_as_in_python() -> None:
    """Maps have no order of entries, NaN equals NaN, and the signs of zeros do not count."""
    maps = pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], None, [("a", 1)]], pa.map_(pa.string(), pa.int64()))
    lists = pa.array([[0.0, math.nan], [-0.0, math.nan], None, [1.0]], pa.list_(pa.float64()))
    for array in (maps, lists):
        codes = codes_of(Column("x", array)).numbers
        assert codes[0] == codes[1]
        assert len(set(codes.tolist())) == 3


def test_nothing_is_sorted_to_nothing() -> None:
    """No rows have no order, whatever their types are."""
    for type_ in VALUES:
        rows, differs = sort([codes_of_numbers(np.zeros(0, np.int32)), codes_of(Column("x", pa.array([], type_)))])
        assert len(rows) == len(differs) == 0


def test_positions_that_do_not_fit_beside_the_rows_come_with_their_ranks() -> None:
    """Two numbers of 31 bits leave no room for a position of 2 bits in 63 bits."""
    wide = np.array([2**31 - 1, 0, 2**31 - 1, 0])
    rows, differs = sort([codes_of_numbers(wide), codes_of_numbers(wide)])
    assert (rows.tolist(), differs.tolist()) == ([1, 3, 0, 2], [True, False, True, False])


def test_the_hours_of_a_change_of_clocks_are_different() -> None:
    """Timestamps with a zone are instants, also in the hour that the clock shows twice."""
    seconds = [1_729_991_700, 1_729_989_000, 1_729_992_600, 1_729_988_100]  # 02:15, 02:30, 02:30, 02:15 in Berlin
    array = pa.array(seconds, pa.timestamp("s", "Europe/Berlin"))
    for order in (None, Order("x")):
        rows, differs = sort([codes_of(Column("x", array), order)])
        assert rows.tolist() == [3, 1, 0, 2]
        assert differs.all()
