"""Each reason why a function stays interpreted names the file and the line that it is about."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foldflight import udaf, udf
from foldflight.client.exchange import PROGRAMS
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.mode import Mode
from foldflight.functions import ListView, Registry

LOG: list[int] = []


class Counted:
    """What most of the functions of this file have; a comment `in NAME` marks the line of a function's reason."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def get_value(self, accumulator: int) -> int:
        return accumulator


@udaf
class Logging(Counted):
    """create_accumulator has a side effect."""

    def create_accumulator(self) -> int:
        count = 0
        LOG.append(count)  # in logging
        return count


@udaf
class NotTyped(Counted):
    """The states have no types."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]  # in not_typed
        return {}


@udaf
class Serialized(Counted):
    """The class writes its states itself."""

    def serialize(self, accumulator: int) -> bytes:  # in serialized
        return str(accumulator).encode()

    def deserialize(self, state: bytes) -> int:
        return int(state)


@dataclass
class Viewed:
    """An accumulator with a view."""

    values: ListView[int] = field(default_factory=ListView)


@udaf
class Views(Counted):
    """The accumulator has a view."""

    def create_accumulator(self) -> Viewed:  # type: ignore[override]  # in views
        return Viewed()

    def accumulate(self, accumulator: Viewed, value: int) -> None:  # type: ignore[override]
        accumulator.values.add(value)

    def get_value(self, accumulator: Viewed) -> int:  # type: ignore[override]
        return sum(accumulator.values)


@udaf
class Nested(Counted):
    """The type of an argument is not compiled."""

    def accumulate(self, accumulator: int, value: list[list[int]]) -> int:  # type: ignore[override]  # in nested
        return accumulator + len(value)


@udaf
class Failing(Counted):
    """__init__ raises."""

    def __init__(self) -> None:  # in failing
        raise ValueError("no model")


@udaf
class Printing(Counted):
    """The code of a method is not compiled, which is known before compiling."""

    def accumulate(self, accumulator: int, value: int) -> int:
        print(value)  # in printing
        return accumulator


@udaf
class Mixed(Counted):
    """The code of a method is not compiled, which is known only when compiling."""

    def accumulate(self, accumulator: int, value: int) -> int:
        return value / 2  # type: ignore[return-value]

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other


@udaf
class Listed(Counted):
    """The type of the result is not compiled, so get_value is interpreted."""

    def get_value(self, accumulator: int) -> list[int]:  # type: ignore[override]  # in listed
        return [accumulator]


@udf  # in shown
def shown(value: list[list[int]]) -> int:
    """Take an argument that is not compiled."""
    return len(value)


MARKED = (Logging, NotTyped, Serialized, Views, Nested, Failing, Printing, Listed, shown)


@pytest.mark.parametrize("target", MARKED)
def test_a_reason_names_its_line(target: Any) -> None:
    """The line is the one to change, in listings before compiling as well as after it."""
    (function,) = Registry.load([target]).authored
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith(f"# in {function.name}"))
    assert isinstance(PROGRAMS, Programs)
    before, after = PROGRAMS.folding(function), PROGRAMS.warm(function)
    assert after.reason.endswith(f" ({Path(__file__).name}:{line})")
    if after.mode is Mode.INTERPRETED:
        assert before.reason == after.reason


def test_a_refusal_that_is_stored_names_its_line_once(tmp_path: Path) -> None:
    """It is read from its file by a later process as it was written."""
    (function,) = Registry.load([Mixed]).authored
    reasons = {Programs(LoopStore(tmp_path)).warm(function).reason for _ in range(2)}
    assert len(reasons) == 1
    assert len(re.findall(r"\(test_compiled_reasons\.py:\d+\)", reasons.pop())) == 1


@dataclass
class Changing:
    """Its methods have names of methods of Python that change nothing, and change it."""

    count: int = 0
    values: list[int] = field(default_factory=list)

    def find(self, value: int) -> int:
        self.values.append(value)
        return value

    @property
    def lower(self) -> int:
        self.count += 1
        return self.count


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("len(sorted(acc.values, key=acc.find))", "it has a key function that may change something"),
        ("len(sorted(acc.values, key=lambda each: acc.find(each)))", "it has a key function that may change something"),
        ("int(any(acc.find(each) for each in acc.values))", "it makes a generator that is not an argument of sum"),
        ("int(any(each < acc.lower for each in acc.values))", "it makes a generator that is not an argument of sum"),
    ],
)
def test_a_method_is_not_known_by_its_name(expression: str, words: str) -> None:
    """A method of the author may change what is iterated over, whatever its name is."""
    scope: dict[str, Any] = {}
    exec(f"def accumulate(self, acc, value: int): acc.count += {expression}", scope)

    class Changes:
        accumulate = scope["accumulate"]

        def create_accumulator(self) -> Changing:
            return Changing()

        def get_value(self, acc: Changing) -> int:
            return acc.count

    (function,) = Registry.load([udaf(Changes)]).authored
    assert words in Programs().warm(function).reason


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("max(accumulator.get('x'))", "it calls max of list[int] that may be None"),
        ("accumulator.get('x').count(3)", "count of list[int] that may be None"),
    ],
)
def test_a_reason_has_no_names_of_the_compiler(expression: str, words: str) -> None:
    """A container that may be None is named by its type in Python."""
    scope: dict[str, Any] = {}
    exec(f"def get_value(self, accumulator): return {expression}", scope)
    scope["get_value"].__annotations__["return"] = int

    class Lists:
        get_value = scope["get_value"]

        def create_accumulator(self) -> dict[str, list[int]]:
            return {}

        def accumulate(self, accumulator: dict[str, list[int]], key: str, value: int) -> None:
            accumulator.setdefault(key, []).append(value)

    (function,) = Registry.load([udaf(Lists)]).authored
    assert Programs().warm(function).reason == f"get_value is interpreted: {words} (<string>:1)"
