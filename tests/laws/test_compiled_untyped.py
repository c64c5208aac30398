"""Accumulators without annotations in compiled code: states are the interpreter's pickles, byte for byte."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.compiler import Programs
from foldflight.compiler.program import Program, Uncompiled
from foldflight.compiler.store import LoopStore
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundFunction, Function
from tests.effort import examples
from tests.laws.alike import VALUES, folds_alike, interpreted


@udaf
class Summed:
    """A sum that starts at 0: no annotation says that it is an int."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return 0

    def accumulate(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        return accumulator + value

    def retract(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        return accumulator - value

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        return accumulator + other

    def get_value(self, accumulator) -> int:  # type: ignore[no-untyped-def]
        return accumulator


class State:
    """An int, two floats and a truth value, set in __init__."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self.seen = False


class _Methods:
    """Welford's variance; one value in twenty has an error after it has changed the accumulator."""

    def accumulate(self, accumulator: State, value: float) -> None:
        accumulator.count += 1
        delta = value - accumulator.mean
        accumulator.mean += delta / accumulator.count
        accumulator.squares += delta * (value - accumulator.mean)
        accumulator.seen = True
        if value == 1.5:
            raise ValueError("bad luck")

    def merge(self, accumulator: State, other: State) -> None:
        count = accumulator.count + other.count
        if count == 0:
            return
        delta = other.mean - accumulator.mean
        accumulator.squares += other.squares + delta * delta * accumulator.count * other.count / count
        accumulator.mean += delta * other.count / count
        accumulator.count = count

    def get_value(self, accumulator: State) -> float | None:
        return accumulator.squares / accumulator.count if accumulator.seen else None


@udaf
class Welford(_Methods):
    """The class of the accumulator is known by its annotation."""

    def create_accumulator(self) -> State:
        return State()


@udaf
class Unannotated(_Methods):
    """The class of the accumulator is known by the code of create_accumulator."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return State()


@udaf
class Itself:
    """A class that is its own accumulator. Its result is a list, so get_value is interpreted."""

    def __init__(self) -> None:
        self.largest = 0
        self.rows = 0

    def accumulate(self, value: int) -> None:
        self.rows += 1
        self.largest = max(self.largest, value)

    def merge(self, other: "Itself") -> None:
        self.rows += other.rows
        self.largest = max(self.largest, other.largest)

    def get_value(self) -> list[int]:
        return [self.largest, self.rows]


@udaf
class TurnsFloat(Summed):
    """The accumulator of the first row is an int, and that of the second a float."""

    def accumulate(self, accumulator, value: float):  # type: ignore[no-untyped-def]
        return accumulator + value


@udaf
class TurnsInt(_Methods):
    """An attribute is a float at first, and an int later."""

    def create_accumulator(self) -> State:
        return State()

    def accumulate(self, accumulator: State, value: float) -> None:
        accumulator.mean = 0


class Reduced(State):
    """A class that defines how it is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "more": 1}


@udaf
class PicklesItself(_Methods):
    """An accumulator whose pickle is the author's."""

    def create_accumulator(self) -> Reduced:
        return Reduced()


class Grown(State):
    """A class with an attribute that compiled code does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.name = b"x"


@udaf
class HoldsBytes(_Methods):
    """An accumulator with bytes."""

    def create_accumulator(self) -> Grown:
        return Grown()


COMPILED = [Summed, Welford, Unannotated, Itself]
FINITE = {
    **VALUES,
    pa.float64(): st.one_of(st.sampled_from([0.0, -0.0, 1.5, 2.0]), st.floats(-100, 100)),
}


@pytest.fixture(scope="module")
def hot() -> Programs:
    """Programs that compile at the first row, or load what an earlier run of the same sources stored."""
    return Programs(LoopStore("user"), hot_rows=0)


def bound_of(cls: Any) -> BoundFunction:
    (function,) = Registry.load([cls]).authored
    assert isinstance(function, Function)
    assert function.input_types is not None
    return function.bind(function.input_types, {})


@pytest.mark.parametrize(
    "cls",
    [COMPILED[0], COMPILED[-1], *(pytest.param(each, marks=pytest.mark.slow) for each in COMPILED[1:-1])],
    ids=lambda cls: cls.__name__,
)
@settings(examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_states_are_the_interpreters_pickles(cls: Any, hot: Programs, data: st.DataObject) -> None:
    """Rows, states, values and errors are equal, also where a sum leaves 64 bits and returns."""
    bound = bound_of(cls)
    assert bound.state_type == pa.binary()
    folds_alike(bound, lambda: hot.accumulators(interpreted(bound)), data, FINITE)


@pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.__name__)
def test_untyped_accumulators_are_compiled(cls: Any, hot: Programs) -> None:
    """The interpreter folds no row, before and after its states were read."""
    bound = bound_of(cls)
    assert isinstance(hot.program(bound, bound.instantiate()), Program)
    one, other = hot.accumulators(interpreted(bound)), interpreted(bound)
    slots = np.arange(1000, dtype=np.int32) % 7
    for _ in range(2):
        values = [Column("value", pa.array(np.arange(1000)).cast(type_)) for type_ in bound.input_types]
        for each in (one, other):
            each.fold(Rows(slots, None, values))
        states = other.states(slots[:7])
        for each in (one, other):
            each.merge(slots[:7], states)
        assert one.kind == "compiled"
        assert one.states(slots[:9]).equals(other.states(slots[:9]))
        assert one.outputs(slots[:9]).equals(other.outputs(slots[:9]))


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (TurnsFloat, "returns float64, and the accumulator is int"),
        (TurnsInt, "it assigns int to an attribute without annotation that is float at first"),
        (PicklesItself, "Reduced defines how it is pickled"),
        (HoldsBytes, "Grown.name is a bytes at first; annotate it"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_types_that_are_not_certain_are_interpreted(cls: Any, why: str) -> None:
    bound = bound_of(cls)
    found = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(found, Uncompiled)
    assert why in found.reason


def test_a_state_with_other_types_is_interpreted(hot: Programs) -> None:
    """A state of another history, in which the sum became a float, is merged as Python merges it."""
    bound = bound_of(Summed)
    writer = interpreted(bound)
    writer.load(np.zeros(1, np.int32), [0.5])
    state = writer.states(np.zeros(1, np.int32))
    one, other = hot.accumulators(interpreted(bound)), interpreted(bound)
    slots = np.zeros(2, np.int32)
    for each in (one, other):
        each.fold(Rows(slots, None, [Column("value", pa.array([1, 2]))]))
        each.merge(slots[:1], state)
    assert one.kind == "interpreted"
    assert one.states(slots[:1]).equals(other.states(slots[:1]))
