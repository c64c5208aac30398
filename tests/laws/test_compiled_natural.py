"""Classes as people write them have the interpreter's results in compiled code, on the rows of `foldflight check`."""

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import natural
from foldflight.compiler import Programs
from foldflight.compiler.program import Program
from foldflight.compiler.store import LoopStore
from foldflight.fold import Fold, Resources
from foldflight.testing.laws import _Subject, hostile_rows
from tests.effort import examples
from tests.laws.alike import SIGNER, outcome

# One or two for each type and container: decimals, texts, days, times, dicts, sets and lists.
NAMES = ("decimal_sum", "price_by_volume", "longest_text", "last_step", "weekend", "active_span", "busy_hours",
         "count_words", "distinct_days", "top_three")  # fmt: skip
FUNCTIONS = {each.name: each for each in natural.registry().authored}
PROGRAMS = Programs(LoopStore("user"), hot_rows=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_compiled_classes_agree_on_hostile_rows(name: str, data: st.DataObject) -> None:
    """States, results and errors are equal after each chunk, at the ends of the types and with NULL."""
    function: Any = FUNCTIONS[name]
    subject = _Subject(function, {})
    bound: Any = subject.calls[0].bound
    assert isinstance(PROGRAMS.program(bound, bound.instantiate()), Program)
    folds = [
        Fold(subject.calls, resources=Resources(SIGNER)),
        Fold(subject.calls, resources=Resources(SIGNER, accelerator=PROGRAMS)),
    ]
    for slot in (0, 1, 0):
        rows = data.draw(hostile_rows(subject.types))
        if not function.skip_nulls and data.draw(st.booleans()):
            rows = [row for row in rows if None not in row]
        chunk = subject.chunk(rows, slot)
        # The order of a set in its state is free.
        one, other = (outcome(partial(_after, fold, chunk, states=name != "distinct_days")) for fold in folds)
        assert one == other
        if isinstance(one[0], str):
            return


def _after(fold: Fold, chunk: pa.RecordBatch, *, states: bool) -> pa.Array:
    fold.fold(chunk)
    return fold.collect(states=states).to_struct_array()
