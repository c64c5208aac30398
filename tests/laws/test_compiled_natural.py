"""Compiled classes as people write them have the interpreter's results: a law of `foldflight check`, for them."""

from typing import Any

import pytest

from bench import natural
from foldflight.functions.author.spec import Function
from foldflight.testing import check_laws
from tests.effort import examples_of

# One or two for each type and container: decimals, texts, days, times, dicts, sets, lists and objects.
NAMES = ("decimal_sum", "price_by_volume", "longest_text", "last_step", "weekend", "active_span", "busy_hours",
         "count_words", "distinct_days", "top_three", "longest_streak", "weighted_avg",
         "running_stats", "sum_of_distinct", "session_length", "share_by_step", "correlation",
         "retention", "active_days")  # fmt: skip
FUNCTIONS = {each.name: each for each in natural.registry().authored}


def test_each_aggregate_function_of_the_corpus_has_a_call() -> None:
    """Without it the benchmark ends with a KeyError, as it did when vectors came to the gallery."""
    names = {each.name for each in FUNCTIONS.values() if isinstance(each, Function)}
    assert names
    assert names <= {call.function for call in natural.calls()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled_classes_agree_on_hostile_rows(name: str) -> None:
    """States, results and errors are equal, at the ends of the types and with NULL."""
    function: Any = FUNCTIONS[name]
    result = {each.law: each for each in check_laws(function, examples=examples_of(60))}
    assert result["the compiled form agrees"].passed, result["the compiled form agrees"].detail
