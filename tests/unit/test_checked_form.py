"""`check` tries a function in the form that folds rows elsewhere: the class after pickling by value."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, connect, udaf, udf
from foldflight.ext.lift.descriptions import lift_text, lifted_of
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.functions import Call, Registry, function_of
from foldflight.functions.author.spec import Function
from foldflight.shipping.pickling import unpickled_copy
from foldflight.testing import check_laws, run_epochs
from tests.folds import open_fold


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


@pytest.mark.parametrize("mean", [PairMean, TupleMean])
def test_tuples_are_compiled_after_pickling(mean: Any) -> None:
    """Also named ones, whose class is pickled as code."""
    passed_laws = {each.law: each.passed for each in check_laws(mean, examples=2)}
    assert passed_laws["the compiled form agrees"] is True


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


@pytest.mark.parametrize("new_accumulator", [lambda: defaultdict(int), Counter])
def test_a_state_that_would_lose_its_class_is_found(new_accumulator: Any) -> None:
    """A dict that makes missing entries is refused where the annotation says dict, with the one that keeps it."""

    class Words:
        def create_accumulator(self) -> dict[str, int]:
            return new_accumulator()  # type: ignore[no-any-return]

        def accumulate(self, accumulator: dict[str, int], word: str) -> None:
            accumulator[word] += 1

        def get_value(self, accumulator: dict[str, int]) -> int:
            return len(accumulator)

    rows = [[{"w": "a"}], [{"w": "b"}]]
    with pytest.raises(FunctionError, match=r"annotate its class, as in defaultdict\[str, int\]"):
        run_epochs({"it": connect([udaf(Words)])["words"]("w")}, rows)

    class Kept(Words):
        def create_accumulator(self) -> defaultdict[str, int]:
            return new_accumulator()  # type: ignore[no-any-return]

    functions = connect([udaf(name="words")(Kept)])
    assert run_epochs({"it": functions["words"]("w")}, rows)[-1].changelog[-1][1] == {"it": 2}


def test_examples_are_lists_of_values() -> None:
    """A text is a value, not the list of its letters."""

    @udf
    def priced(code: str) -> int:
        return {"EUR": 100, "E": 1, "U": 2, "R": 3}[code]

    with pytest.raises(RejectedError, match=r"'EUR' for 'code', which is one value; give a list of values: \['EUR'\]"):
        check_laws(priced, examples={"code": "EUR"})
    with pytest.raises(RejectedError, match="give a number of inputs, or lists of values"):
        check_laws(priced, examples=7.5)  # type: ignore[arg-type]


class Seen:
    seen: int

    def __init__(self) -> None:
        self.seen = 0


@udaf
class Positive:
    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, accumulator: Seen, value: int) -> None:
        accumulator.seen = value > 0

    def get_value(self, accumulator: Seen) -> str:
        return str(accumulator.seen)


@pytest.mark.parametrize("states", [True, False])
def test_values_do_not_depend_on_whether_states_are_requested(states: bool) -> None:
    """A batch without states has the values of one with states, and of a stream: a bool in a field of ints is 1."""
    columns = pa.schema([("x", pa.int64())])
    fold = open_fold(bind_calls(Registry.load([Positive]), [Call("positive", ("x",))], columns))
    fold.fold(pa.record_batch([pa.array([-1, 5], pa.int64())], schema=columns))
    assert fold.collect(states=states).column("output_0").to_pylist() == ["1"]


class Wide:
    total: Annotated[int, "INT"]

    def __init__(self) -> None:
        self.total = 0


@udaf
class Widened:
    def create_accumulator(self) -> Wide:
        return Wide()

    def accumulate(self, accumulator: Wide, value: int) -> None:
        accumulator.total += value

    def get_value(self, accumulator: Wide) -> int:
        return accumulator.total


def test_a_state_that_does_not_exist_changes_no_value() -> None:
    """A batch that needs no state goes on with a number that would not fit it."""
    columns = pa.schema([("x", pa.int64())])
    fold = open_fold(bind_calls(Registry.load([Widened]), [Call("widened", ("x",))], columns))
    fold.fold(pa.record_batch([pa.array([1 << 40], pa.int64())], schema=columns))
    assert fold.collect(states=False).column("output_0").to_pylist() == [1 << 40]


def test_a_group_without_a_state_changes_no_value_of_others() -> None:
    """The value of a group depends on its state only, whatever another group of the batch has."""
    columns = pa.schema([("slot", pa.int32()), ("x", pa.int64())])
    fold = open_fold(bind_calls(Registry.load([Shown]), [Call("shown", ("x",))], columns))
    slots, numbers = pa.array([0, 1, 2], pa.int32()), pa.array([5, 1 << 40, 6], pa.int64())
    fold.fold(pa.record_batch([slots, numbers], schema=columns))
    assert fold.collect(states=False).column("output_0").to_pylist() == ["1", str(1 << 40), "1"]


@udaf
class Shown:
    """It has a bool for small numbers, where its state has an int, and no state for large ones."""

    def create_accumulator(self) -> Wide:
        return Wide()

    def accumulate(self, accumulator: Wide, value: int) -> None:
        accumulator.total = value if value > 1000 else value > 0

    def get_value(self, accumulator: Wide) -> str:
        return str(accumulator.total)
