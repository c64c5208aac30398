"""Calls of Python's own functions in compiled code have Python's results, bit for bit, and its errors."""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf, udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compiled_scalar import CompiledScalar
from foldflight.ext.compiler.program import Program
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.failures import Failures
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.evaluation import InterpretedScalar
from foldflight.functions import FunctionContext, Registry
from foldflight.functions.author.spec import ScalarFunction
from tests.effort import examples
from tests.laws.alike import REAL, VALUES, WHOLE, bound_of, folds_alike, interpret, outcome

PROGRAMS = Programs(LoopStore("user"), hot_rows=0)


@udf
def divided(one: int, other: int) -> str:
    """Quotients and rests of whole numbers."""
    quotient, rest = divmod(one, other)
    return f"{quotient} {rest} {divmod(one, 7)[1]}"


@udf
def divided_floats(one: float, other: float) -> str:
    """Quotients and rests of floats, also with a whole number."""
    quotient, rest = divmod(one, other)
    return f"{quotient} {rest} {divmod(one, 3)[0]}"


@udf
def every_part(text: str, start: int, stop: int, step: int) -> str:
    """Slices with steps, of lists that are made of texts."""
    letters = list(text)
    letters.append("|")
    open_ends = letters[::step] + letters[start::step] + letters[:stop:step] + letters[::3] + letters[::-2]
    return "".join(letters[start:stop:step]) + "".join(open_ends)


@udf
def exact_sum(one: float, other: float, third: float, fourth: float) -> float:
    """A sum of floats that is rounded once."""
    return math.fsum([one, other, third, fourth])


@udaf
class Recent:
    """Lists of a deque, and what is computed of them."""

    def create_accumulator(self) -> deque[float]:
        return deque(maxlen=7)

    def accumulate(self, recent: deque[float], value: float) -> None:
        recent.append(value)

    def merge(self, recent: deque[float], other: deque[float]) -> None:
        recent.extend(other)

    def get_value(self, recent: deque[float]) -> float | None:
        half = list(recent)[::2]
        return math.fsum(half) / len(half) if half else None


@udaf
class Copied:
    """Lists of dicts, which code changes and the accumulator does not see."""

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def accumulate(self, counts: dict[str, int], text: str, number: int) -> None:
        counts[text] = number
        if number % 3 == 1:
            del counts[text]

    def merge(self, counts: dict[str, int], other: dict[str, int]) -> None:
        counts.update(other)

    def get_value(self, counts: dict[str, int]) -> str:
        names = list(counts)
        names.append("!")
        numbers = list(counts.values())
        numbers.extend(list(number for number in numbers if number > 0))  # noqa: C400 - what authors write
        texts = [f"{name}={number}" for name, number in list(counts.items())[1:]]
        return ",".join(names) + ",".join([str(number) for number in numbers]) + ";".join(texts)


FUNCTIONS = [divided, divided_floats, every_part, exact_sum]
CLASSES = [Recent, Copied]
NEAR = st.integers(-9, 9)
GIVEN = {
    **VALUES,
    pa.int64(): NEAR | WHOLE,
    pa.string(): st.sampled_from(["", "a", "b", "ab", "c"]) | st.text("ab\u00e9\U0001f600", max_size=9),
    pa.float64(): REAL | st.sampled_from([1e16, 1.0, -1e16, 2.0**-1074, 1e308, 0.1]),
}


def both(target: Any) -> tuple[InterpretedScalar, CompiledScalar]:
    """Return a function interpreted, and compiled."""
    (function,) = Registry.load([target]).authored
    assert isinstance(function, ScalarFunction)
    bound: Any = function.bind(function.input_types, {})
    one, inner = [InterpretedScalar(bound, FunctionContext(function.name), Failures()) for _ in range(2)]
    scalar = PROGRAMS.scalar(inner)
    assert isinstance(scalar, CompiledScalar)
    assert scalar.mode is Mode.COMPILED, PROGRAMS.program(bound, bound.instantiate())
    return one, scalar


def columns_of(names: Any, types: Any, rows: list[Any]) -> Rows:
    """Return rows of the arguments of a function."""
    columns = [
        Column(name, pa.array([row[place] for row in rows], type_))
        for place, (name, type_) in enumerate(zip(names, types, strict=True))
    ]
    return Rows(np.zeros(len(rows), np.int32), None, columns)


@pytest.mark.slow
@pytest.mark.parametrize("target", FUNCTIONS, ids=lambda each: each.__name__)
@settings(examples(200), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_calls_of_functions_have_the_results_of_python(target: Any, data: st.DataObject) -> None:
    """Results and errors are equal, at the ends of the types and with NULL."""
    (function,) = Registry.load([target]).authored
    assert isinstance(function, ScalarFunction)
    if target not in KNOWN:
        KNOWN[target] = both(target)
    row = st.tuples(*(GIVEN[type_] | st.none() for type_ in function.input_types or ()))
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    given_rows = columns_of(function.input_names, function.input_types, rows)
    one_outcome, other_outcome = (outcome(lambda each=each: each.values(given_rows)) for each in KNOWN[target])
    assert one_outcome == other_outcome


KNOWN: dict[Any, tuple[InterpretedScalar, CompiledScalar]] = {}


@pytest.mark.every_turn
def test_exact_sums_are_rounded_once() -> None:
    """What is left of a sum decides on a tie, and parts that cancel each other leave nothing."""
    chosen = random.Random(5)
    ties = [(1e16, 1.0, 1e-16, 0.0), (1e16, 1.0, -1e-16, 0.0), (2.0**53, -0.5, -(2.0**-54), 2.0**-54)]
    close = [tuple(chosen.choice((-1, 1)) * 2.0 ** chosen.randint(-60, 54) for _ in range(4)) for _ in range(2000)]
    rows = [*ties, (1e100, 1.0, -1e100, 1e-100), (-0.0, -0.0, -0.0, -0.0), *close]
    _, compiled = both(exact_sum)
    values = compiled.values(columns_of(("one", "other", "third", "fourth"), [pa.float64()] * 4, rows))
    assert list(map(repr, values.to_pylist())) == [repr(math.fsum(row)) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSES, ids=lambda each: each.__name__)
@settings(examples(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_calls_in_classes_have_the_results_of_python(cls: Any, data: st.DataObject) -> None:
    """Rows, states, values and errors are equal, and all methods are compiled."""
    bound = bound_of(cls)
    program = PROGRAMS.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    assert program.interprets == ""
    folds_alike(bound, lambda: PROGRAMS.accumulators(interpret(bound)), data, GIVEN, row_by_row=True)
