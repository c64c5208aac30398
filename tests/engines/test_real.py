"""The engines themselves, beside foldflight over the same rows. A package that cannot be installed is a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foldflight import connect
from foldflight.testing import run_epochs
from tests.engines.adapted import ADAPTED
from tests.engines.conftest import Engine

pytestmark = pytest.mark.slow

# id, key, value, weight, word; values repeat, ids are updated and move from key to key.
ROWS = [
    (number * 7 % 11, "abc"[number * 5 % 3], (number * 37 + 11) % 23 - 5, number % 4 + 1, "uvwxyz"[number % 6])
    for number in range(60)
]
TYPES = {
    "k": "TEXT",
    "v": "BIGINT",
    "x": "INT",
    "f": "DOUBLE",
    "w": "INT",
    "wf": "DOUBLE",
    "word": "TEXT",
    "sep": "TEXT",
}


def row(each: tuple[int, str, int, int, str]) -> dict[str, Any]:
    _, k, v, w, word = each
    return {"k": k, "v": v, "x": v, "f": v / 4, "w": w, "wf": float(w), "word": word, "sep": "-"}


def changes() -> list[tuple[str, dict[str, Any]]]:
    """Return the last row of each id as a changelog."""
    known_values: dict[int, Any] = {}
    result = []
    for each in ROWS:
        if each[0] in known_values:
            result += [("-U", row(known_values[each[0]])), ("+U", row(each))]
        else:
            result.append(("+I", row(each)))
        known_values[each[0]] = each
    return result


def ours(calls: Callable[[Any], dict[str, Any]], rows: list[Any]) -> dict[str, dict[str, Any]]:
    """Return the last results of each key, after epochs between which the states are stored."""
    functions = connect([each.function for each in ADAPTED.values()])
    epochs = run_epochs(calls(functions), [rows[:25], rows[25:26], rows[26:]], keys=["k"], types=TYPES)
    last = {}
    for epoch in epochs:
        for kind, change in epoch.changelog:
            last.pop(change["k"], None)
            if kind in ("+I", "+U"):
                last[change["k"]] = {name: value for name, value in change.items() if name != "k"}
    return last


def flink_calls(functions: Any) -> dict[str, Any]:
    return {
        "average": functions["weighted_avg"]("x", "w"),
        "distinct": functions["distinct_sum"]("x"),
        "spread": functions["spread"]("v"),
    }


def json_of(values: list[Any]) -> dict[str, Any]:
    average, distinct, (low, high), *concat = values
    result = {"average": average, "distinct": distinct, "spread": {"low": low, "high": high}}
    return {**result, "concat": concat[0]} if concat and concat[0] is not None else result


def test_streams_of_pyflink_have_equal_results(engine: Engine) -> None:
    """PyFlink's stream answers the same, over inserts and over updates, with rows, views and lists as accumulators."""
    theirs = engine("flink", "flink_job.py", {"rows": ROWS})
    inserted_rows = ours(
        lambda functions: {**flink_calls(functions), "concat": functions["list_view_concat"]("word", "sep")},
        [row(each) for each in ROWS],
    )
    assert inserted_rows == {key: json_of(values) for key, values in theirs["final"].items()}
    assert ours(flink_calls, changes()) == {key: json_of(values) for key, values in theirs["updating"].items()}


def test_beams_direct_runner_has_equal_results(engine: Engine) -> None:
    """Beam's DirectRunner answers the same, where it merges accumulators of bundles."""
    theirs = engine("beam", "beam_job.py", {"rows": [each[1:] for each in ROWS]})
    result = ours(
        lambda functions: {
            "average_fn": functions["average_fn"]("x"),
            "percentages_fn": functions["percentages_fn"]("word"),
            "weighted_mean_fn": functions["weighted_mean_fn"]("f", "wf", scale=10.0),
        },
        [row(each) for each in ROWS],
    )
    assert theirs == {name: {key: values[name] for key, values in result.items()} for name in theirs}


# Adapts classes that derive from the engine's own base class, and folds them from code that needs no engine.
PROGRAM = """
import re
import {package}
from {module} import {names}
from foldflight import connect
from foldflight.functions import aggregate_of
from foldflight.shipping.pickling import pickle_functions
from foldflight.testing import run_epochs
for cls, options in {classes}:
    function = aggregate_of(cls, **options)
    assert any(base.__module__.startswith("{package}") for base in cls.__mro__), cls.__mro__
    # Our own module for the engine's classes may be named after it.
    assert b"{package}" not in re.sub(rb"foldflight[\\w./]*", b"", pickle_functions([function])), function.name
    columns = list(function.input_names)
    rows = [dict(zip(columns, [each] * len(columns))) for each in {rows}]
    epochs = run_epochs({{"it": connect(function)[function.name](*columns)}}, [rows, rows])
    last = [change for epoch in epochs for change in epoch.changelog][-1][1]
    print(function.signature, function.adapter, last["it"])
"""


def test_the_base_class_of_pyflink_is_recognised(beside: Callable[[str, str], str]) -> None:
    """Classes that derive from PyFlink's own class, with its rows and views, are adapted, and shipped without it."""
    classes = (
        "[(WeightedAvg, {'input_types': ['BIGINT', 'BIGINT']}), (DistinctSum, {'input_types': [DataTypes.BIGINT()]}), "
        "(Spread, {'input_types': ['BIGINT']})]"
    )
    program = PROGRAM.format(
        package="pyflink",
        module="tests.engines.flink_functions",
        names="WeightedAvg, DistinctSum, Spread, DataTypes",
        classes=classes,
        rows="[1, 3, 3]",
    )
    assert beside("flink", program).splitlines() == [
        "weighted_avg(value BIGINT, weight BIGINT) -> DOUBLE flink 2.7142857142857144",
        "distinct_sum(value BIGINT) -> BIGINT flink 4",
        "spread(value BIGINT) -> STRUCT<low BIGINT, high BIGINT> flink {'low': 1, 'high': 3}",
    ]


def test_the_base_class_of_beam_is_recognised(beside: Callable[[str, str], str]) -> None:
    """Classes that derive from Beam's own class are adapted, and shipped without Beam."""
    types = "{'input_types': ['DOUBLE'], 'result_type': 'DOUBLE'}"
    typed_class = "with_input_types(float)(type('Typed', (AverageFn,), {}))"
    classes = f"[(AverageFn, {types}), ({typed_class}, {types}), (WeightedMeanFn, {{}})]"
    program = PROGRAM.format(
        package="apache_beam",
        module="tests.engines.beam_functions",
        names="AverageFn, WeightedMeanFn; from apache_beam.typehints import with_input_types",
        classes=classes,
        rows="[1.0, 3.0]",
    )
    assert beside("beam", program).splitlines() == [
        "average_fn(input DOUBLE) -> DOUBLE beam 2.0",
        "typed(input DOUBLE) -> DOUBLE beam 2.0",
        "weighted_mean_fn(element1 DOUBLE, element2 DOUBLE, scale => 1.0) -> DOUBLE beam 2.5",
    ]
