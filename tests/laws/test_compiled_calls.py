"""Calls of Python's own functions in compiled code have Python's results, bit for bit, and its errors."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf, udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compiled_scalar import CompiledScalar
from foldflight.ext.compiler.program import NoProgram, Program
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


@udaf
class Ranked:
    """Keys and items of a dict by its values: ties, defaults, both orders, and keys that are tuples."""

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def accumulate(self, counts: dict[str, int], text: str, number: int) -> None:
        counts[text] = counts.get(text, 0) + number % 5 - 1
        if number % 11 == 1:
            del counts[text]
        if len(counts) > 12:
            del counts[min(counts, key=lambda name: (counts[name], name))]
        if number == 7:
            counts[max(counts, key=counts.get, default="none")] = number

    def merge(self, counts: dict[str, int], other: dict[str, int]) -> None:
        for text, number in sorted(other.items(), key=lambda item: -item[1]):
            counts[text] = counts.get(text, 0) + number

    def get_value(self, counts: dict[str, int]) -> str:
        first = min(counts.items(), key=lambda item: item[1], default=None)
        most = max(counts, key=counts.get) if counts else "none"
        last = "" if first is None else first[0]
        longest = max(counts, key=len, default="")
        ranked = sorted(counts.items(), key=lambda item: item[1], reverse=True)
        ranked.append((last, len(counts)))
        names = "|".join(f"{name}={number}" for name, number in ranked[:4])
        parts = [min(counts, key=lambda name: (-counts[name] % size, name), default="") for size in (2, 3)]
        several = "|".join(parts)
        by_parity = sorted(counts.values(), key=lambda number: number % 2 == 0, reverse=number_of(counts) > 2)
        return f"{most} {last} {longest} {names} {several} {by_parity[:1] == by_parity[-1:]}"


def number_of(counts: dict[str, int]) -> int:
    """Return how many counts there are."""
    return len(counts)


@udaf
class Events:
    """A list of pairs, of which the order is asked for by floats that may be NaN, and by numbers that overflow."""

    def create_accumulator(self) -> list[tuple[int, float]]:
        return []

    def accumulate(self, events: list[tuple[int, float]], at: int, value: float) -> None:
        events.append((at, value))

    def merge(self, events: list[tuple[int, float]], other: list[tuple[int, float]]) -> None:
        for event in sorted(other, key=lambda each: each[0]):
            events.append(event)

    def get_value(self, events: list[tuple[int, float]]) -> str:
        if not events:
            return ""
        least = min(events, key=lambda event: event[1])
        most = max(events, key=lambda event: abs(event[1]))
        text = f"{least[0]} {most[1]}"
        for at, value in sorted(events, key=lambda event: (event[0] * 4, event[1]), reverse=True):
            text += f" {at}:{value}"
        return text


@udaf
class Common:
    """The most frequent keys of a Counter, some of which are negative or equal, and its items in order."""

    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def accumulate(self, words: Counter[str], word: str, number: int) -> None:
        words[word] += number % 4 - 1
        if number % 5 == 1:
            del words[word]

    def merge(self, words: Counter[str], other: Counter[str]) -> None:
        for word, count in other.most_common():
            words[word] += count

    def get_value(self, words: Counter[str]) -> str:
        size = len(words)
        text = ", ".join(f"{word}={count}" for word, count in words.most_common(3))
        for limit in (size - 3, 0, 1):
            text += "|".join([word for word, _ in words.most_common(limit)])
        text += f"{len(words.most_common(size - 3))}" + (words.most_common()[-1][0] if words else "none")
        text += ".".join(f"{word}{count}" for word, count in sorted(words.items()) if count > -2)
        return text + "-".join([word for word, _ in sorted(words.items(), reverse=True)])


@udaf
class Sums:
    """Items of a dict in order of keys that may be 0.0 or -0.0, with values that may be NaN."""

    def create_accumulator(self) -> dict[float, float]:
        return {}

    def accumulate(self, sums: dict[float, float], key: float, value: float) -> None:
        known = 0.5 if math.isnan(key) else key  # of NaN, a dict has one entry for each object
        sums[known] = sums.get(known, 0.0) + value

    def merge(self, sums: dict[float, float], other: dict[float, float]) -> None:
        for key, value in sorted(other.items()):
            sums[key] = sums.get(key, 0.0) - value

    def get_value(self, sums: dict[float, float]) -> str:
        return ";".join(f"{key}:{value}" for key, value in sorted(sums.items()))


@udaf
class Entropy:
    """A Counter that rows add to and take from, by lists and by the letters of texts."""

    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def accumulate(self, words: Counter[str], word: str) -> None:
        words.update([word])
        words.subtract(word)
        if len(word) > 2:
            words.subtract([word, "a", word])

    def retract(self, words: Counter[str], word: str) -> None:
        words.subtract([word])

    def merge(self, words: Counter[str], other: Counter[str]) -> None:
        words += other

    def get_value(self, words: Counter[str]) -> str:
        return "".join(f"{word}{count}" for word, count in words.items())


@udf
def named(text: str, number: int) -> str:
    """Attributes by constant names, with and without a default."""
    return getattr(text, "upper")() + f"{getattr(number, 'bit_length', None)()}"  # noqa: B009 - what authors write


FUNCTIONS = [divided, divided_floats, every_part, exact_sum, named]
CLASSES = [Recent, Copied, Ranked, Events, Common, Sums, Entropy]
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


@udf
def taken_from(number: int) -> int:
    """A key function that changes the list."""
    numbers = [number, 1, 2, 3]
    return max(numbers, key=lambda each: numbers.pop() + each)


@udf
def bound_late(number: int) -> int:
    """A key function with a variable that has another value when it is called."""
    factor = 1
    key = lambda each: each * factor
    factor = -1
    return max([number, 1, 2], key=key)


@udf
def least_of_set(number: int) -> int:
    """Equal keys, of which the order of the set decides."""
    return min({number, 1, 2}, key=lambda each: each % 2)


@udf
def of_two_types(number: int) -> int:
    """Keys that Python compares exactly, and that would all be floats."""
    return max([number, 1, 2], key=lambda each: each if each > 1 else 0.5)


REFUSED = {
    taken_from: "it has a key function that may change something",
    bound_late: "it has a key function that may change something, or is a variable",
    least_of_set: "it iterates over a set, whose order only Python knows",
    of_two_types: "is a float in one place and a whole number in another",
}


@pytest.mark.parametrize("target", REFUSED, ids=lambda each: each.__name__)
def test_keys_whose_results_could_differ_are_refused(target: Any) -> None:
    """The reason tells which line it is."""
    (function,) = Registry.load([target]).authored
    assert isinstance(function, ScalarFunction)
    bound: Any = function.bind(function.input_types, {})
    program = PROGRAMS.program(bound, bound.instantiate())
    assert isinstance(program, NoProgram)
    assert REFUSED[target] in program.reason
    assert "(test_compiled_calls.py:" in program.reason
