"""`foldflight check` compares compiled code with the interpreter, and finds mistakes in compiled code."""

import contextlib
from typing import Any

import pyarrow as pa
import pytest

from foldflight import udaf
from foldflight.ext.compiler import Programs, compiled
from foldflight.ext.compiler.arena import RAISED
from foldflight.ext.compiler.compiled import CompiledAccumulators
from foldflight.testing import LawResult, check_laws

LAW = "the compiled form agrees"


@udaf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
class Quotients:
    """A sum of quotients, which raises where a divisor is zero."""

    total: int = 0

    def accumulate(self, value: int, by: int) -> None:
        if value is not None and by is not None:
            self.total += value // by

    def merge(self, other: "Quotients") -> None:
        self.total += other.total

    def get_value(self) -> int:
        return self.total


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Tried:
    """A class that is not compiled."""

    total: int = 0

    def accumulate(self, value: int) -> None:
        with contextlib.suppress(TypeError):
            self.total += value

    def get_value(self) -> int:
        return self.total


@udaf(input_types=["ARRAY<BIGINT>", "ARRAY<STRING>"], result_type="BIGINT")
class Positions:
    """An argument that is an array, with errors where it is empty or has a NULL."""

    total: int = 0

    def accumulate(self, values: list[int] | None, texts: list[str]) -> None:
        if values is not None and "a" in texts:
            self.total += values[-1] - min(values)

    def merge(self, other: "Positions") -> None:
        self.total += other.total

    def get_value(self) -> int:
        return self.total


@udaf(input_types=["STRUCT<x: DOUBLE, n: BIGINT>", "MAP<BIGINT, BIGINT>"], result_type="DOUBLE")
class Paths:
    """A struct whose fields may be NULL, and a map."""

    length: float = 0.0
    count: int = 0

    def accumulate(self, point: dict[str, Any] | None, counts: dict[int, int]) -> None:
        if point is not None and point["n"] is not None and point["n"] > -5:
            self.length = max(self.length, point["x"])
            self.count += counts.get(point["n"], len(counts))

    def merge(self, other: "Paths") -> None:
        self.length = max(self.length, other.length)
        self.count += other.count

    def get_value(self) -> float:
        return self.length + self.count


@udaf
class MergedByPython:
    """A sum with a merge that is interpreted."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, accumulator: int, other: int) -> int:
        return sum(map(int, (accumulator, other)))

    def get_value(self, accumulator: int) -> int:
        return accumulator


@pytest.fixture(scope="module")
def once() -> Programs:
    """Compiled code that is not kept."""
    return Programs(hot_rows=0)


@pytest.fixture
def check_compiled(once: Programs, laws_compile_with: Any) -> Any:
    """Check the law for a class."""
    laws_compile_with(once)

    def check(cls: Any) -> LawResult:
        return next(each for each in check_laws(cls, examples=40) if each.law == LAW)

    return check


@pytest.mark.every_turn
def test_compiled_code_is_compared(check_compiled: Any) -> None:
    """The law holds for a compiled class, and does not apply to an interpreted one, with the reason."""
    assert check_compiled(Quotients) == LawResult(LAW, True)
    other = check_compiled(Tried)
    assert other.passed is None
    assert other.detail.startswith("it is interpreted: ")


@pytest.mark.every_turn
def test_a_law_that_holds_tells_what_is_interpreted(check_compiled: Any) -> None:
    """It is what the listing of functions tells."""
    result = check_compiled(MergedByPython)
    assert result.passed
    assert result.detail.startswith("merge is interpreted: it calls map (test_compiled_law.py:")


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Positions, Paths])
def test_compiled_code_for_nested_arguments_is_compared(check_compiled: Any, cls: Any) -> None:
    """The law draws arrays, structs and maps, with NULLs in them."""
    assert check_compiled(cls) == LawResult(LAW, True)


def one_more(values: Any, handled_rows: Any, type_: pa.DataType) -> pa.Array:
    """Make results with a mistake."""
    return pa.array(values + 1, type_, mask=~handled_rows)


def lose(self: CompiledAccumulators, loop: Any, *places: Any) -> None:
    """Run a loop, and leave out the rows from an exception on: the mistake is in states and errors."""
    with contextlib.suppress(RAISED):
        loop(*places)


@pytest.mark.parametrize(
    ("place", "name", "mistake", "step"),
    [(compiled, "results_of", one_more, "states and results"), (CompiledAccumulators, "_run", lose, "")],
)
def test_mistakes_in_compiled_code_are_found(
    place: Any, name: str, mistake: Any, step: str, check_compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong result, and rows that compiled code leaves out, break the law, which shows both outcomes."""
    monkeypatch.setattr(place, name, mistake)
    law_result = check_compiled(Quotients)
    assert law_result.passed is False
    assert f"{step}: interpreted " in law_result.detail
    assert ", compiled " in law_result.detail
