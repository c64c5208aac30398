"""The lists of all slots in one array behave like Python's lists."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.gallery.percentile import Percentile
from foldflight import Lists
from foldflight.fold.aggregate.record_layout import fresh_table
from foldflight.fold.aggregate.vectorised_accumulators import vectorised_accumulators
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.udaf import udaf
from foldflight.functions.types import lists
from tests.laws.alike import bits, interpret

SLOTS = 3
SLOT = st.integers(0, SLOTS - 1)
# Few values, so that many are equal; 0.0 and -0.0 are, and are told apart.
VALUE = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, math.inf, math.nan])
ROWS = st.lists(st.tuples(SLOT, VALUE, st.sampled_from([1, 1, -1])), max_size=8)
STEP = st.one_of(
    st.tuples(st.just("update"), ROWS),
    st.tuples(st.just("extend"), st.lists(SLOT, max_size=4)),
    st.tuples(st.just("keep_largest"), st.integers(0, 3)),
    st.tuples(st.just("sorted"), st.none()),
    st.tuples(st.just("put"), st.permutations(range(SLOTS))),
    st.tuples(st.just("clear"), SLOT),
    st.tuples(st.just("undo"), ROWS),
    st.tuples(st.just("states"), st.none()),
    st.tuples(st.just("look"), st.none()),
)


def arrays(rows: list[tuple[int, float, int]]) -> tuple[Any, Any, Any]:
    return tuple(
        np.array([row[place] for row in rows], type_) for place, type_ in enumerate((np.intp, np.float64, np.int64))
    )


def ascending(values: list[float]) -> list[float]:
    return sorted(values, key=lambda value: (math.isnan(value), value))


def update_model(model: list[list[float]], rows: list[tuple[int, float, int]]) -> list[list[float]] | None:
    """Do the same as `update` with Python's lists; None if an item is missing."""
    result = [list(each) for each in model]
    for slot, value, sign in rows:
        if sign > 0:
            result[slot].append(value)
        elif value in result[slot] and not math.isnan(value):
            result[slot].remove(value)
        else:
            return None
    return result


def values_of(column: Lists) -> list[list[Any]]:
    return [
        [bits(item) for item in column.items[start:][:length].tolist()]
        for start, length in zip(column.starts, column.lengths, strict=True)
    ]


def step(name: str, argument: Any, column: Lists, model: list[list[float]]) -> tuple[Lists, list[list[float]]]:
    match name:
        case "update":
            result = update_model(model, argument)
            assert (column.update(*arrays(argument)) is NotImplemented) == (result is None)
            model = model if result is None else result
        case "extend":
            others = column.take(np.array(argument[::-1], np.intp))
            column.extend(np.array(argument, np.intp), others)
            new_slots = [list(model[slot]) for slot in argument[::-1]]
            for slot, items in zip(argument, new_slots, strict=True):
                model[slot] = model[slot] + items
        case "keep_largest":
            column.keep_largest(argument)
            # Sorted backwards and read backwards, equal items keep their order.
            model = [ascending(each[::-1])[::-1][:argument] for each in model]
        case "sorted":
            column, model = column.sorted(), [ascending(each) for each in model]
        case "put":
            column.put(np.array(argument, np.intp), column.take(np.arange(SLOTS)))
            model = [model[argument.index(slot)] for slot in range(SLOTS)]
        case "clear":
            column.clear(np.array([argument]))
            model[argument] = []
        case "undo":
            saved_lists = column.save(np.arange(SLOTS))
            column.update(*arrays([(slot, value, 1) for slot, value, _ in argument]))
            column.keep_largest(2)
            column.restore(np.arange(SLOTS), saved_lists)
        case "states":
            states = column.to_arrow()
            assert states is not None
            back = column.from_arrow(pa.concat_arrays([states[:1], states]).slice(1))
            assert back is not None
            column = back
        case "look":
            assert values_of(column) == [[bits(item) for item in each] for each in model]
    return column, model


@pytest.mark.parametrize("waiting_min", [0, 4, 1 << 18])
@given(st.lists(STEP, max_size=12))
def test_lists_of_slots_equal_lists_of_python(waiting_min: int, steps: list[tuple[str, Any]]) -> None:
    """After any operations they equal Python's lists, however long rows are pending."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "_PENDING_MIN", waiting_min)
        column, model = Lists(pa.float64(), np.dtype("f8")), [[] for _ in range(SLOTS)]
        column.grow(SLOTS)
        for name, argument in steps:
            column, model = step(name, argument, column, model)
        step("look", None, column, model)


@given(
    st.lists(st.lists(st.tuples(SLOT, st.sampled_from([0.0, -0.0, 1.0, 2.5, -7.0])), max_size=10), max_size=4),
    st.data(),
)
def test_rows_that_are_there_are_taken_back_vectorised(
    chunks: list[list[tuple[int, float]]], data: st.DataObject
) -> None:
    """Chunks whose retracted rows exist are always folded by the vectorised methods, with equal states."""
    bound = Registry.load([Percentile])["percentile"].bind([pa.float64()], {})
    one, other = interpret(bound), vectorised_accumulators(interpret(bound))
    assert other is not None
    there: list[tuple[int, float]] = []
    every = np.arange(SLOTS, dtype=np.int32)
    for chunk in chunks:
        there += chunk
        retracted_rows = data.draw(st.lists(st.sampled_from(range(len(there))), unique=True)) if there else []
        rows = [*((*row, False) for row in chunk), *((*there[place], True) for place in retracted_rows)]
        there = [row for place, row in enumerate(there) if place not in retracted_rows]
        columns = [Column("x", pa.array([value for _, value, _ in rows], pa.float64()))]
        given_rows = Rows(
            np.array([row[0] for row in rows], np.int32), np.array([row[2] for row in rows], np.bool_), columns
        )
        for each in (one, other):
            each.update(given_rows)
        for what in ("state", "evaluate"):
            first, second = (getattr(each, what)(every).to_pylist() for each in (one, other))
            assert [bits(value) if what == "evaluate" else list(map(bits, value)) for value in first] == [
                bits(value) if what == "evaluate" else list(map(bits, value)) for value in second
            ]
    assert other.mode == "vectorised"


def test_an_item_of_another_kind_is_an_error() -> None:
    """A float is not truncated when it is added to a list of integers."""
    column = Lists(pa.int64(), np.dtype("i8"))
    column.grow(1)
    with pytest.raises(TypeError, match="same_kind"):
        column.update(np.zeros(1, np.intp), np.array([1.5]))


@pytest.mark.parametrize(
    ("annotation", "fresh", "why"),
    [
        (list[float], [1.0], "the initial value of value is not empty"),
        (list[str], [], "its state has the type ARRAY<STRING>"),
        (set[int], set(), "its state has the type ARRAY<BIGINT>"),
        (list[float] | None, None, "its state has the type ARRAY<DOUBLE> in value"),
    ],
)
def test_lists_that_no_table_holds_have_a_reason(annotation: Any, fresh: Any, why: str) -> None:
    """Lists that are not empty initially, lists of strings, sets, and optional lists use the scalar methods."""

    class Made:
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return fresh

        def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
            return accumulator

        def get_value(self, accumulator):  # type: ignore[no-untyped-def]
            return None

    Made.create_accumulator.__annotations__["return"] = annotation
    udaf(input_types=["DOUBLE"], result_type="DOUBLE")(Made)
    bound = Registry.load([Made])["made"].bind([pa.float64()], {})
    result = fresh_table(bound, bound.instantiate())
    assert isinstance(result, str)
    assert why in result
