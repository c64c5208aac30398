"""Classes of other engines keep the laws, and answer as their engines do that call them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import connect
from foldflight.functions import Registry
from foldflight.functions.flink import Row
from foldflight.testing import check_laws, run_epochs
from tests.effort import examples, examples_of
from tests.engines.adapted import ADAPTED

# Laws that depend on the order of rows in the engine, too: sums of floats, and the entries of a map.
ORDERED = {
    "weighted_mean_fn": {"merge of parts", "merge in any order", "merge in any grouping"},
    "percentages_fn": {"merge in any order"},
}
EXAMPLES = Registry.load(["examples.from_snowflake", "examples.from_beam"]).authored
FUNCTIONS = {each.name: each for each in (*EXAMPLES, *(example.function for example in ADAPTED.values()))}
VALUES = {"int32": st.integers(-100, 100), "int64": st.integers(-100, 100), "string": st.sampled_from("abc")}
# Products and sums of these have no rounding error, so that any order of them gives the same.
EXACT = st.integers(-64, 64).map(lambda number: number / 8)


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.parametrize("name", FUNCTIONS)
def test_adapted_functions_keep_the_laws(name: str) -> None:
    """The kit of laws finds no fault."""
    ordered_columns = ORDERED.get(name, set())
    results = check_laws(FUNCTIONS[name], examples=examples_of(20))
    assert [each for each in results if each.passed is False and each.law not in ordered_columns] == []


def plain(value: Any) -> Any:
    """Return a result of an engine as foldflight's outputs are."""
    return {"low": value[0], "high": value[1]} if isinstance(value, Row) else value


def same(one: Any, other: Any) -> bool:
    nans = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return nans or one == other


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", ADAPTED)
@examples(20)
@given(data=st.data())
def test_results_equal_those_of_the_other_engine(name: str, data: st.DataObject) -> None:
    """Over epochs with states between them the result equals the engine's own calls, merged if it merges."""
    example = ADAPTED[name]
    types = example.function.input_types
    assert types is not None
    row = st.tuples(*(VALUES.get(str(each), EXACT) for each in types))
    parts = data.draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=3), "parts")
    columns = example.function.input_names
    functions = connect(example.function)
    epochs = run_epochs(
        {"it": functions[name](*columns)},
        [[dict(zip(columns, each, strict=True)) for each in part] for part in parts],
        types=dict(zip(columns, types, strict=True)),
    )
    changes = [change for epoch in epochs for change in epoch.changelog]
    if not example.function.capabilities.merge:
        parts = [[each for part in parts for each in part]]
    assert same(changes[-1][1]["it"], plain(example.evaluate(parts)))
