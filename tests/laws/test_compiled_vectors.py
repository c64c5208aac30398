"""Vectors in compiled code have NumPy's bits, whatever the items, the chunks and the order of merges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import FunctionContext, udaf, udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compiled import CompiledAccumulators
from foldflight.ext.compiler.program import NoProgram, Program
from foldflight.fold.failures import Failures
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.evaluation import InterpretedScalar
from foldflight.functions import function_of, parse_type
from foldflight.functions.types.vectors import from_matrix
from tests.effort import examples
from tests.laws.alike import REAL, Samples, folds_alike, interpret, refusal, same

V5 = Annotated[np.ndarray, "VECTOR(5)"]
W5 = Annotated[np.ndarray, "VECTOR(5, DOUBLE)"]
V2 = Annotated[np.ndarray, "VECTOR(2)"]
W2 = Annotated[np.ndarray, "VECTOR(2, DOUBLE)"]
V, W = parse_type("VECTOR(5)"), parse_type("VECTOR(5, DOUBLE)")
SINGLE = st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 3.4e38])
SAMPLES: Samples = {
    V: st.lists(SINGLE, min_size=5, max_size=5),
    W: st.lists(REAL, min_size=5, max_size=5),
    pa.float64(): REAL,
}


@dataclass
class Moments:
    """The members stand in an order in which padding would be needed."""

    flag: bool = False
    low: V5 = field(default_factory=lambda: np.zeros(5, np.float32))
    mean: W5 = field(default_factory=lambda: np.zeros(5))
    squares: W5 = field(default_factory=lambda: np.zeros(5))
    n: int = 0
    weight: float = 1.0


@dataclass
class Two:
    total: W2 = field(default_factory=lambda: np.zeros(2))
    other: W2 = field(default_factory=lambda: np.ones(2))
    n: int = 0


ZERO = np.zeros(2)


@udaf
class Natural:
    """All operators, of both widths, with numbers, in place and with temporary vectors; it takes NULL."""

    def create_accumulator(self) -> Moments:
        return Moments()

    def accumulate(self, acc: Moments, v: V5, w: W5, x: float) -> None:
        if v is None or w is None:
            acc.flag = True
            return
        acc.n += 1
        before = v - acc.mean
        acc.mean += before / acc.n
        acc.squares += before * (v - acc.mean)
        acc.low += w * 0.1
        acc.low *= 3
        acc.low -= 1.5 - v / 7
        if x is not None and x > 0:
            acc.weight += x
            acc.squares /= acc.weight
            acc.mean -= -(x * w)
        else:
            for _ in range(2):
                acc.low += v

    def retract(self, acc: Moments, v: V5, w: W5, x: float) -> None:
        if v is not None:
            acc.n -= 1
            acc.mean -= v

    def merge(self, acc: Moments, other: Moments) -> None:
        acc.flag = acc.flag or other.flag
        acc.mean += other.mean * other.n
        acc.squares += other.squares
        acc.low += other.squares
        acc.n += other.n
        acc.weight += other.weight

    def get_value(self, acc: Moments) -> W5:
        return acc.mean if acc.flag else acc.squares + acc.low


def bound_to(cls: Any, *types: pa.DataType) -> Any:
    function = function_of(cls)
    assert function is not None
    return function.bind(types, {})


@pytest.mark.every_turn
@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_vectors_equal_the_interpreter(hot: Programs, data: st.DataObject) -> None:
    """States and results are the interpreter's, bit for bit, over chunks with NULLs, retractions and merges."""
    bound = bound_to(Natural, V, W, pa.float64())
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    assert not program.interprets
    program.demand_nulls()
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, SAMPLES, row_by_row=True)


@udaf
class Narrow:
    """The sum of vectors, rounded: an item that is too large is an error, and no rows are None."""

    def create_accumulator(self) -> Two:
        return Two()

    def accumulate(self, acc: Two, w: W2) -> None:
        acc.total += w
        acc.n += 1

    def retract(self, acc: Two, w: W2) -> None:
        acc.total -= w
        acc.n -= 1

    def get_value(self, acc: Two) -> V2 | None:
        if acc.n == 1:
            return acc.total
        return -acc.total if acc.n else None


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_results_are_rounded_as_the_interpreter_rounds(hot: Programs, data: st.DataObject) -> None:
    """Sums of 64 bits have equal results of 32 bits, also after each row, with NaN, infinities, -0.0 and OVERFLOW."""
    type_ = parse_type("VECTOR(2, DOUBLE)")
    bound = bound_to(Narrow, type_)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    assert not program.interprets
    number = REAL | st.sampled_from([3.4028234663852886e38, 3.4028235677973366e38, -3.5e38, 1e-46])
    samples = {type_: st.lists(number, min_size=2, max_size=2)}
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, samples, row_by_row=True)


@udf
def between(v: V5, w: W5, x: float) -> V5 | None:
    if v is None or w is None:
        return None
    if x is None or x > 0:
        return v
    return (v + w * x) / 2


@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_compiled_scalar_functions_return_vectors(hot: Programs, data: st.DataObject) -> None:
    """A vector that is made, or an argument, is the interpreter's result; OVERFLOW names the same row."""
    function = function_of(between)
    assert function is not None
    bound = function.bind((V, W, pa.float64()), {})
    program = hot.program(bound, bound.instantiate())
    assert not isinstance(program, NoProgram), program
    count = data.draw(st.integers(1, 8))
    columns = [
        Column(name, pa.array(data.draw(st.lists(st.none() | SAMPLES[type_], min_size=count, max_size=count)), type_))
        for name, type_ in zip("vwx", (V, W, pa.float64()), strict=True)
    ]
    rows = Rows(np.zeros(count, np.int32), None, columns)
    one, other = (InterpretedScalar(bound, FunctionContext("between"), Failures()) for _ in range(2))
    scalar_program = hot.scalar(other)
    same(lambda target: target.values(rows), one, scalar_program)
    assert scalar_program.mode is Mode.COMPILED


def test_values_after_each_row_are_copies() -> None:
    """A result that is the sum itself is not changed by later rows; the interpreter casts all results at once."""

    @udaf(input_types=["VECTOR(2)"], result_type="VECTOR(2, DOUBLE)")
    class Sum:
        def create_accumulator(self) -> Two:
            return Two()

        def accumulate(self, acc, v):
            acc.total += v

        def get_value(self, acc):
            return acc.total

    type_ = parse_type("VECTOR(2)")
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    result = interpret(bound_to(Sum, type_)).running_values(
        rows_of(matrix, np.zeros(3), type_), np.ones(3, np.bool_), np.array([True, False, True])
    )
    assert result.to_pylist() == [[0, 1], [6, 9]]


LONG, GROUPS = 3072, 100_000


def centroid_of(size: int) -> Any:
    """Return a function of vectors of this size, written naturally."""
    vector, total = (Annotated[np.ndarray, f"VECTOR({size}{item})"] for item in ("", ", DOUBLE"))

    class Mean:
        def __init__(self) -> None:
            self.total, self.n = np.zeros(size), 0

    Mean.__annotations__ = {"total": total, "n": int}

    @udaf(input_types=[vector], result_type=vector)
    class Centroid:
        def create_accumulator(self) -> Mean:
            return Mean()

        def accumulate(self, acc, v):
            acc.total += v
            acc.n += 1

        def retract(self, acc, v):
            acc.total -= v
            acc.n -= 1

        def merge(self, acc, other):
            acc.total += other.total
            acc.n += other.n

        def get_value(self, acc):
            return acc.total / acc.n if acc.n else None

    return Centroid


def rows_of(matrix: Any, slots: Any, type_: pa.DataType, retracts: Any = None) -> Rows:
    return Rows(slots.astype(np.int32), retracts, [Column("v", from_matrix(matrix, type_))])


@pytest.mark.every_turn
@pytest.mark.parametrize(("size", "groups"), [(LONG, 7), (2, GROUPS)])
def test_long_vectors_in_many_groups_have_the_states_of_the_interpreter(hot: Programs, size: int, groups: int) -> None:
    """Any chunks, merges and retractions give the interpreter's states, in records of eight bytes an item."""
    type_ = parse_type(f"VECTOR({size})")
    bound = bound_to(centroid_of(size), type_)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    assert program.dtype.itemsize <= 8 * size + 64
    rng = np.random.default_rng(5)
    count = 2 * groups if size == 2 else 40
    matrix = rng.standard_normal((count, size)).astype(np.float32)
    matrix[0, :2] = math.inf, -0.0
    slots = np.concatenate([np.arange(groups), rng.integers(0, groups, count - groups)])
    one, other, merged_accumulators = (
        interpret(bound),
        hot.accumulators(interpret(bound)),
        hot.accumulators(interpret(bound)),
    )
    one.update(rows_of(matrix, slots, type_))
    for start, stop in ((0, count // 3), (count // 3, count)):
        other.update(rows_of(matrix[start:stop], slots[start:stop], type_))
        merged_accumulators.update(rows_of(matrix[start:stop], slots[start:stop], type_))
    assert (one.mode, other.mode) == (Mode.INTERPRETED, Mode.COMPILED)
    every = np.arange(groups, dtype=np.int32)
    assert one.state(every).equals(other.state(every))
    assert one.evaluate(every).equals(other.evaluate(every))
    again, backwards = interpret(bound), every[::-1].copy()
    again.update(rows_of(matrix, slots, type_))
    for target in (again, merged_accumulators):
        target.merge(backwards, one.state(backwards))
    assert merged_accumulators.mode == Mode.COMPILED
    assert merged_accumulators.state(every).equals(again.state(every))
    back = np.ones(count, np.bool_)
    finite = np.where(np.isfinite(matrix), matrix, 0)
    for target in (one, other):
        target.update(rows_of(finite, slots, type_, back))
    empty = other.state(every)
    assert empty.equals(one.state(every))
    assert set(empty.field("n").to_pylist()) == {0}
    assert other.evaluate(every).null_count == groups  # no rows, whatever rounding has left of the sums


@pytest.mark.every_turn
def test_little_memory_is_reserved_for_vectors(hot: Programs) -> None:
    """A table of long vectors grows by an eighth, so that memory is in proportion to the groups."""
    type_ = parse_type(f"VECTOR({LONG})")
    bound = bound_to(centroid_of(LONG), type_)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    accumulators = hot.accumulators(interpret(bound))
    assert isinstance(accumulators, CompiledAccumulators)
    for group in range(40):
        accumulators.update(rows_of(np.ones((1, LONG), np.float32), np.array([group]), type_))
        assert accumulators._table.nbytes <= (group + 1) * program.dtype.itemsize * 9 / 8
    assert accumulators.evaluate(np.arange(40, dtype=np.int32)).null_count == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("acc.total = acc.total + v", "it replaces the vector total, and others may refer to it; change it by +="),
        ("acc.total = v", "it replaces the vector total"),
        ("acc.total = acc.other", "it replaces the vector total"),
        ("acc.total = acc.total[:1]", "replaces the vector total"),
        ("v += 1", "it changes a vector in place that is no attribute of the accumulator"),
        (
            "acc.n += int(v[0])",
            "it takes an item of read-only VECTOR(2), a number of NumPy, which calculates otherwise",
        ),
        ("acc.n += int(v.sum())", "it uses the attribute sum of a value"),
        ("acc.n += len(v)", "VECTOR(2)"),
        ("acc.n += int(np.dot(v, v))", "it calls dot"),
        ("acc.total **= 2", "it replaces the vector total"),
        ("acc.total += v @ v", "it uses the operator matmul"),
        ("acc.total += ZERO", "it uses array([0., 0.]) as a value"),
        ("acc.total += True", "+= of VECTOR(2, DOUBLE) and bool"),
        ("acc.total += np.sqrt(v)", "sqrt"),
        ("acc.n += 1 if v > 0 else 0", "VECTOR(2)"),
        ("for i in range(2): acc.total += v * i", "it makes a vector in a loop"),
        ("acc.total += half(v)", "it returns a vector"),
        ("x = v if acc.n else acc.total; acc.total += x", "TypingError"),
    ],
)
def test_code_with_vectors_that_cannot_be_compiled_has_a_reason(hot: Programs, body: str, reason: str) -> None:
    """What may have other bits or another meaning than in Python is interpreted, with the reason."""
    scope: dict[str, Any] = {"Two": Two, "np": np, "ZERO": ZERO, "half": half}
    exec(f"def accumulate(self, acc: Two, v: object) -> None:\n    {body}", scope)

    def create_accumulator(self: Any) -> Two:
        return Two()

    members = {"create_accumulator": create_accumulator, "get_value": lambda self, acc: acc.n}
    members["accumulate"] = scope["accumulate"]
    cls = udaf(input_types=["VECTOR(2)"], result_type="BIGINT")(type("Written", (), members))
    assert reason in refusal(hot, bound_to(cls, parse_type("VECTOR(2)")))


def half(v: Any) -> Any:
    return v / 2


def test_vectors_that_accumulators_share_are_interpreted(hot: Programs) -> None:
    """A new accumulator with an array of the module would share its sums with all others."""

    @udaf(input_types=["VECTOR(2)"], result_type="BIGINT")
    class Shared:
        def create_accumulator(self) -> Two:
            return Two(ZERO, np.ones(2))

        def accumulate(self, acc, v):
            acc.total += v

        def get_value(self, acc):
            return acc.n

    assert "ZERO" in refusal(hot, bound_to(Shared, parse_type("VECTOR(2)")))
