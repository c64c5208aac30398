"""What is checked of a function is the form that folds rows elsewhere: the class after pickling by value."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from foldflight import FunctionError, connect, udaf, udf
from foldflight.fold.aggregate.calls import bind_calls
from foldflight.functions import Call, Registry, function_of
from foldflight.functions.author.spec import Function
from foldflight.lift.lifting import lift_text, lifted_of
from foldflight.shipping.pickling import unpickled_copy
from foldflight.testing import check_laws, run_epochs


@dataclass
class Total:
    total: int = 0
    count: int = 0


@udaf
class Mean:
    def create_accumulator(self) -> Total:
        return Total(count=0)

    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += value
        accumulator.count += 1

    def merge(self, accumulator: Total, other: Total) -> None:
        accumulator.total += other.total
        accumulator.count += other.count

    def get_value(self, accumulator: Total) -> float | None:
        return accumulator.total / accumulator.count if accumulator.count else None


class Pair(NamedTuple):
    total: int
    count: int


@udaf
class PairMean:
    def create_accumulator(self) -> Pair:
        return Pair(0, 0)

    def accumulate(self, accumulator: Pair, value: int) -> Pair:
        return Pair(accumulator.total + value, accumulator.count + 1)

    def get_value(self, accumulator: Pair) -> float | None:
        return accumulator.total / accumulator.count if accumulator.count else None


@udaf
class TupleMean:
    def create_accumulator(self) -> tuple[int, int]:
        return (0, 0)

    def accumulate(self, accumulator: tuple[int, int], value: int) -> tuple[int, int]:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_value(self, accumulator: tuple[int, int]) -> float | None:
        return accumulator[0] / accumulator[1] if accumulator[1] else None


def test_a_dataclass_with_defaults_is_lifted_after_pickling() -> None:
    """A pickled dataclass has a copy of `dataclasses.MISSING`; it has the same lift, whose law is checked."""
    here = function_of(Mean)
    assert isinstance(here, Function)
    texts = []
    for function in (here, *unpickled_copy([here])):
        assert isinstance(function, Function)
        (call,) = bind_calls(Registry([function]), [Call("mean", ("x",))], pa.schema([("x", pa.int64())]))
        texts.append(lift_text(call.bound))
    assert lifted_of(texts[0])[0] is not None
    assert texts[1] == texts[0]
    assert {each.law: each.passed for each in check_laws(Mean, examples=5)}["the lifted form agrees"] is True


def test_why_a_named_tuple_is_interpreted() -> None:
    """The reason is what the author can change, and the plain tuple that it names is compiled."""
    details = {each.law: each.detail for each in check_laws(PairMean, examples=2)}
    assert details["the compiled form agrees"] == (
        "it is interpreted: Pair is a named tuple; annotate tuple[...], or use a dataclass"
    )
    compiled = {each.law: each.passed for each in check_laws(TupleMean, examples=2)}
    assert compiled["the compiled form agrees"] is True


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


HERE = Unpicklable()


@udf
def refers(x: int) -> int:
    return x if HERE else 0


def test_scalar_functions_are_checked_as_they_arrive() -> None:
    """A scalar function that cannot be sent to the workers is no function whose laws hold."""
    with pytest.raises(Exception, match=r"refers cannot be sent .*the variable HERE"):
        check_laws(refers, examples=2)


@pytest.mark.parametrize("made", [lambda: defaultdict(int), Counter])
def test_a_state_that_would_lose_its_class(made: Any) -> None:
    """A dict that makes missing entries is refused where the annotation says dict, with the one that keeps it."""

    class Words:
        def create_accumulator(self) -> dict[str, int]:
            return made()  # type: ignore[no-any-return]

        def accumulate(self, accumulator: dict[str, int], word: str) -> None:
            accumulator[word] += 1

        def get_value(self, accumulator: dict[str, int]) -> int:
            return len(accumulator)

    rows = [[{"w": "a"}], [{"w": "b"}]]
    with pytest.raises(FunctionError, match=r"annotate its class, as in defaultdict\[str, int\]"):
        run_epochs({"it": connect([udaf(Words)])["words"]("w")}, rows)

    class Kept(Words):
        def create_accumulator(self) -> defaultdict[str, int]:
            return made()  # type: ignore[no-any-return]

    functions = connect([udaf(name="words")(Kept)])
    assert run_epochs({"it": functions["words"]("w")}, rows)[-1].changelog[-1][1] == {"it": 2}
