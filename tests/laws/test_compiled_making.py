"""Containers, texts and comprehensions that code makes have Python's results in compiled code, row by row."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
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
from tests.laws.alike import WHOLE, folds_alike, interpret, outcome


@udf
def shouted(text: str, mark: str) -> str:
    return text.upper() + mark + text.lower()


@udf
def trimmed(text: str) -> str:
    return "<" + text.strip() + "|" + text.lstrip() + "|" + text.rstrip() + ">"


@udf
def added_up(text: str) -> int:
    numbers = [int(part) for part in text.split(",")]
    return sum(numbers)


LETTERS = ["a", "b", "", "a"]


@udf
def placed(text: str, number: int) -> int:
    return LETTERS.index(text[:1]) * 10 + (1, -20, 3, 1, 0).index(number)


@udf
def heaviest(text: str) -> float:
    weights: dict[str, float] = {}
    for word in text.split():
        weights[word] = weights.get(word, 0) + 0.5
    return max(weights.values()) if weights else 0.0


@udf
def most_frequent(text: str) -> int:
    counts: dict[str, int] = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return max(counts.values()) if counts else 0


@udf
def parted(text: str, separator: str) -> str:
    return "-".join([part.strip() for part in text.split(separator) if part]) + "."


@udf
def repeated(text: str) -> int:
    seen_values = set()
    result = 0
    for letter in text:
        if letter in seen_values:
            result += 1
        seen_values.add(letter)
    return result


@udf
def inverted(content: bytes, other: bytes) -> bytes:
    pairs = [max(pair) ^ 255 for pair in zip(content, other, strict=True)]
    return bytes(pairs) + content.upper()


@udf
def counted(content: bytes, number: int) -> int:
    result = [content.count(each) for each in range(number % 300)]
    return sum(result) * 1000 + number.bit_length() * 100 + number.bit_count()


@udf
def generated(text: str) -> str:
    longest = max(len(part) for part in text.split(","))
    parts = text.split(",")
    if any([part == "-7" for part in parts]) or all(parts):  # noqa: C419 - lists are compiled here
        longest += sum(each * len(text) for each in range(3))
    return "|".join(part.strip() for part in text.split(",") if len(part) < longest)


@udf
def rebound(text: str, mark: str) -> int:
    result = 0
    for _ in range(3):
        result += text.count(text := mark)
        text = text + "a"
    return result


@udf
def squares(number: int) -> int:
    result = {each: each * each for each in range(number % 40) if each % 3}
    sorted_values = sorted([value for key, value in result.items() if key != 7])
    last = None
    for value in sorted_values:
        if value != last:
            last = value
    largest = 0 if last is None else last
    return len(result) + largest


@udf
def filled(number: int) -> int:
    numbers = [1, number, 3]
    numbers.append(number)
    numbers[0] += 2
    others = [number]
    others.extend(numbers)
    others += numbers
    return sum(others[1:]) + numbers[-1]


@udf
def shadowed(number: int) -> int:
    each = number % 7
    total = sum([each + 1 for each in range(each) if each != 2])  # noqa: C419 - lists are compiled here
    for part in range(number % 3):
        total += len({part: 0 for part in range(part + 3) if part}) * part
        doubled = [other * 2 for other in range(part)]
        total += sum([len([other for other in range(one)]) for one in doubled])  # noqa: C416, C419
    if number > 4:
        total += sum([late for late in range(4)])  # noqa: C416, C419
    else:
        total += max([late for late in range(5)])  # noqa: C416, C419
    return total * 10 + each


@udf
def initialled(text: str) -> str:
    parts = [part[1:3] + part[-1:] for part in text.split("-")]
    return "".join(part[0] for part in text.split()) + "|".join(parts) + "".join([text[each] for each in range(2)])


@udf
def labelled(text: str, number: int) -> str:
    return f"{text.title()}-{number}: {text.capitalize()} " + str(number).zfill(7) + text.zfill(number % 9)


@udf
def dated(day: datetime.date) -> str:
    return f"{day.isoformat()}, {day}, Q{(day.month - 1) // 3 + 1}"


@udf
def places(text: str, mark: str) -> int:
    at = text.index(mark) if mark in text else -7
    return at * 10_000 + text.find(mark) * 100 + text.rfind(mark) - (text.rindex("a") if "a" in text else 0)


@udf
def broken_up(text: str, mark: str) -> str:
    head, middle, tail = text.partition(mark)
    last = text.rpartition(mark)
    parts = [head, middle, tail, last[0], last[-2], last[2], text.removeprefix(mark), text.removesuffix(mark)]
    return "|".join(parts)


@udf
def cleaned(text: str, mark: str) -> str:
    return text.strip(mark) + "|" + text.lstrip("-a") + "|" + text.rstrip(mark) + "|" + text.replace(mark, "..")


@udf
def replaced(text: str, mark: str) -> str:
    return text.replace("a", mark).replace("b", "").replace("--", "-").replace(" ", "\u00e9")


@udf
def classes(text: str) -> int:
    result = 100 if text.isdigit() else 0
    result += 20 if text.isdecimal() and text.isnumeric() else 0
    result += 3 if text.isalnum() else 0
    if text.isalpha():
        result += 1000
    return result - 5 if text.isupper() else result - 7 if text.islower() else result


@udf
def of_bytes(content: bytes, other: bytes) -> bytes:
    parts = content.partition(other)
    result = content.replace(other, b"-ab").title() + content.strip(other).zfill(5) + parts[0].capitalize()
    if content.isalnum() or content.isupper() or content.islower() or content.isdigit():
        result += other
    return result + bytes([content.find(other) + 1, content.rfind(other) + 1])


@udf
def hashed(text: str) -> int:
    number = len(text.encode("utf-8")) * 1000 + sum(text.encode())
    for byte in text.encode(encoding="utf8", errors="strict"):
        number = (number * 31 + byte) % 1_000_003
    return number


@dataclass
class Frequent:
    """Counts of texts, the lengths of those that were dropped, and the last text."""

    counts: dict[str, int] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    last: str = ""


@udaf
class MostFrequent:
    """Keeps texts that code makes, and replaces dicts and lists by new ones."""

    def create_accumulator(self) -> Frequent:
        return Frequent()

    def accumulate(self, accumulator: Frequent, text: str) -> None:
        key = text.strip().upper()
        accumulator.counts[key] = accumulator.counts.get(key, 0) + 1
        accumulator.last = key + "/" + accumulator.last[:6]
        if len(accumulator.counts) > 3:
            least = min(accumulator.counts.values())
            kept = {each: count for each, count in accumulator.counts.items() if count > least}
            dropped = [len(each) for each, count in accumulator.counts.items() if count == least]
            accumulator.counts = kept
            accumulator.dropped = dropped
        elif key == "F":
            accumulator.dropped = []

    def merge(self, accumulator: Frequent, other: Frequent) -> None:
        for text, count in other.counts.items():
            accumulator.counts[text] = accumulator.counts.get(text, 0) + count

    def get_value(self, accumulator: Frequent) -> str:
        parts = [each + "," for each, count in accumulator.counts.items() if count > 1]
        return "".join(parts) + accumulator.last if sum(accumulator.dropped) != 2 else accumulator.last


@pytest.mark.slow
@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_accumulators_hold_what_code_has_made(data: st.DataObject) -> None:
    """Rows, states and values of a class that makes texts and containers equal the interpreter's."""
    function: Any = Registry.load([MostFrequent]).authored[0]
    bound = function.bind([pa.string()], {})
    program = PROGRAMS.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    assert program.interprets == ""
    words = st.sampled_from(["a", " a", "b", "c ", "\u00df", "d", "E" * 300, "f", ""])
    folds_alike(
        bound, lambda: PROGRAMS.accumulators(interpret(bound)), data, {pa.string(): words | st.text(max_size=4)}
    )


SPACES = " \t\n\v\f\r\x1c\x1f\x85\xa0\u1680\u2003\u2028\u3000"
SPACED = ["\x1c5", "\u20036\x1f", "\x855", "\u20036"]
TEXT = st.one_of(
    st.text("ab ,-xX\t", max_size=12),
    st.text(SPACES + "aß\u0130é\U0001f600,", max_size=6),
    st.lists(
        st.sampled_from(["1", "-7", " 1_000 ", "+5", "0x1", "", "1__0", "_1", "\u0661", "9" * 18, "9" * 19, *SPACED])
    ).map(",".join),
    st.text(max_size=6),
    st.just("a" * 20_000),
)
GIVEN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): TEXT,
    pa.binary(): st.one_of(st.binary(max_size=5), st.binary(min_size=3, max_size=3)),
    pa.int64(): WHOLE,
    pa.date32(): st.dates(),
}
FUNCTIONS = [
    shouted,
    trimmed,
    added_up,
    heaviest,
    placed,
    most_frequent,
    parted,
    repeated,
    inverted,
    counted,
    generated,
    rebound,
    squares,
    filled,
    shadowed,
    initialled,
    labelled,
    dated,
    places,
    broken_up,
    cleaned,
    replaced,
    classes,
    of_bytes,
    hashed,
]
PROGRAMS = Programs(LoopStore("user"), hot_rows=0)


def both(function: ScalarFunction) -> tuple[InterpretedScalar, CompiledScalar]:
    """Return a function interpreted, and compiled."""
    bound: Any = function.bind(function.input_types, {})
    inner = [InterpretedScalar(bound, FunctionContext(function.name), Failures()) for _ in range(2)]
    scalar_program = PROGRAMS.scalar(inner[1])
    assert isinstance(scalar_program, CompiledScalar)
    assert scalar_program.mode is Mode.COMPILED, PROGRAMS.program(bound, bound.instantiate())
    return inner[0], scalar_program


@pytest.mark.slow
@pytest.mark.parametrize("target", FUNCTIONS, ids=lambda each: each.__name__)
@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_compiled_code_has_the_results_of_python(target: Any, data: st.DataObject) -> None:
    """Results and errors are equal, for letters of any alphabet, empty and long texts, and NULL."""
    (function,) = Registry.load([target]).authored
    assert isinstance(function, ScalarFunction)
    if target not in KNOWN:
        KNOWN[target] = both(function)
    row = st.tuples(*(GIVEN[type_] | st.none() for type_ in function.input_types or ()))
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    columns = [
        Column(name, pa.array([row[place] for row in rows], type_))
        for place, (name, type_) in enumerate(zip(function.input_names, function.input_types or (), strict=True))
    ]
    given_rows = Rows(np.zeros(len(rows), np.int32), None, columns)
    one, other = (outcome(lambda each=each: each.values(given_rows)) for each in KNOWN[target])
    assert one == other


KNOWN: dict[Any, tuple[InterpretedScalar, CompiledScalar]] = {}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "lengths = (len(part) for part in text.split(','))\n    return sum(lengths) + sum(lengths)",
            "makes a generator",
        ),
        (
            "for each in (len(part) for part in text.split(',')):\n        return each\n    return 0",
            "makes a generator",
        ),
        ("return len(text.encode('latin-1'))", "another encoding than UTF-8"),
        ("return len(text.encode('utf-8', 'oops'))", "another encoding than UTF-8"),
        ("return int(any(print(part) for part in text.split(',')))", "makes a generator"),
        ("return len(max(text, text, key=lambda part: part[::-1]))", "creates a generator or a function"),
    ],
)
def test_code_that_cannot_be_compiled_is_refused_with_a_reason(body: str, why: str) -> None:
    """A list in place of a generator would be read twice, or calculated further than Python does."""
    scope: dict[str, Any] = {}
    exec(f"def odd(text: str) -> int:\n    {body}", scope)
    (function,) = Registry.load([udf(scope["odd"])]).authored
    result = PROGRAMS.folding(function)
    assert result.mode is Mode.INTERPRETED
    assert why in result.reason


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("known = {text: 1}\n    return len({**known})", "update or in a loop (odd.py:3)"),
        (
            "return len({part: 1.0 if part else 1 for part in text.split(',')})",
            "a value is a float in one place and a whole number in another; write whole numbers as floats",
        ),
        ("return len(text.replace('a', 'b', None))", "replace of text with names or a count"),
        ("return len(text.replace('a', 'b', 1))", "replace of text with names or a count"),
    ],
)
def test_code_that_depends_on_types_is_not_compiled_with_a_reason(body: str, why: str) -> None:
    """The reason names the line, and code that is compiled in its place."""
    scope: dict[str, Any] = {}
    exec(compile(f"def odd(text: str) -> int:\n    {body}", "odd.py", "exec"), scope)
    (function,) = Registry.load([udf(scope["odd"])]).authored
    assert isinstance(function, ScalarFunction)
    bound = function.bind(function.input_types or (), {})
    result = PROGRAMS.program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert why in result.reason
