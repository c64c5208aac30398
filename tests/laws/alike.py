"""Compares two ways to fold the rows of one call, step by step: the results are equal, bit for bit."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from foldflight import FoldflightError
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import Program
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.pickles import StateSigner
from foldflight.fold.rows import Column, Rows
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundFunction, Function
from foldflight.functions.registry import Registry

Samples = dict[Any, st.SearchStrategy[Any]]

SLOTS = 4
SIGNER = StateSigner([b"a key of sixteen bytes or more"])
WHOLE = st.one_of(
    st.integers(-20, 20), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([1 << 53, (1 << 63) - 1])
)
REAL = st.one_of(st.floats(-100, 100), st.floats(), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e308]))
VALUES: Samples = {
    pa.int64(): WHOLE,
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.float64(): REAL,
    pa.bool_(): st.booleans(),
    pa.string(): st.one_of(st.text("ab\u00e9\U0001f600\0", max_size=5), st.text(max_size=8)),
    pa.binary(): st.one_of(st.binary(max_size=4), st.sampled_from([b"", b"\0", b"\xff" * 40_000])),
    # Beyond what Python has, too: there the interpreter has an error, and so must compiled code.
    pa.timestamp("us"): st.one_of(st.integers(-5, 5), st.integers(-62135596800000001, 253402300800000000)),
    pa.date32(): st.one_of(st.integers(-3, 3), st.integers(-719163, 2932897)),
    pa.time64("us"): st.one_of(st.integers(0, 3), st.integers(0, 86_399_999_999)),
    pa.duration("us"): st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1)),
}


EQUAL_OFTEN: Samples = {
    **VALUES,
    pa.float64(): st.one_of(st.sampled_from([0.0, -0.0, 1.5, math.nan]), st.floats(-100, 100)),
    pa.int64(): st.one_of(st.integers(-5, 40), VALUES[pa.int64()]),
    pa.string(): st.one_of(st.sampled_from(["", "a", "b", "a text of more than eight bytes"]), st.text(max_size=3)),
}
"""Values of which some are equal in most chunks."""


def bound_of(cls: Any) -> BoundFunction:
    """Return a function whose types are declared, bound to them."""
    (function,) = Registry.load([cls]).authored
    assert isinstance(function, Function)
    assert function.input_types is not None
    return function.bind(function.input_types, {})


def interpret(bound: BoundFunction) -> InterpretedAccumulators:
    return InterpretedAccumulators(bound, context=FunctionContext(bound.function.name), signer=SIGNER)


def bits(value: Any, *, is_unordered: bool = False) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, (list, tuple, deque)):
        result = [bits(each) for each in value]
        if hasattr(value, "_fields"):  # a NamedTuple
            return type(value), result
        return sorted(result, key=repr) if is_unordered else result
    if isinstance(value, dict):
        return {key: bits(each, is_unordered=is_unordered and key == "seen") for key, each in value.items()}
    return (type(value), bits(vars(value))) if hasattr(value, "__dict__") else value


def outcome(run: Any, *, is_unordered: bool = False, read: Callable[[pa.Array], list[Any]] | None = None) -> Any:
    """Return the outcome of a step: an array, bit for bit, or its error as the engine gets it."""
    try:
        result = run()
    except FoldflightError as error:
        return type(error).__name__, error.code, error.message, error.slot, error.row, error.trace
    if read is not None:
        return pa.null(), [bits(each) for each in read(result)]
    return (
        None
        if result is None
        else (result.type, [bits(each, is_unordered=is_unordered) for each in result.to_pylist()])
    )


def same(run: Any, one: Any, other: Any, *, is_unordered: bool = False, read: Any = None) -> bool:
    """Run a step in both ways and compare. Return whether the exchange continues."""
    first = outcome(lambda: run(one), is_unordered=is_unordered, read=read)
    second = outcome(lambda: run(other), is_unordered=is_unordered, read=read)
    assert first == second
    return first is None or not isinstance(first[0], str)


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return an array; dates and similar types also from their integers."""
    if not (pa.types.is_temporal(type_) and {int, type(None)}.issuperset(map(type, values))):
        return pa.array(values, type_)
    return pa.array(values, pa.int32() if type_ == pa.date32() else pa.int64()).view(type_)


@st.composite
def chunks(draw: st.DrawFn, bound: BoundFunction, samples: Samples) -> list[Rows]:
    result = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 8))
        nulls = draw(st.booleans()) and not bound.function.skip_nulls
        columns = []
        for place, type_ in enumerate(bound.input_types):
            each = st.one_of(st.none(), samples[type_]) if nulls else samples[type_]
            values = draw(st.lists(each, min_size=size, max_size=size))
            columns.append(Column(f"c{place}", array_of(values, type_)))
        slots = np.array(draw(st.lists(st.integers(0, SLOTS - 1), min_size=size, max_size=size)), np.int32)
        retracts = None
        if bound.function.capabilities.retract and draw(st.booleans()):
            retracts = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_)
        result.append(Rows(slots, retracts, columns))
    return result


def folds_alike(
    bound: BoundFunction,
    make: Callable[[], GroupsAccumulator],
    data: st.DataObject,
    samples: Samples = VALUES,
    *,
    row_by_row: bool = False,
    is_unordered: bool = False,
    read: Callable[[pa.Array], list[Any]] | None = None,
) -> None:
    """Fold drawn chunks with the interpreter and with other accumulators, and merge their states.

    Args:
        bound: The function.
        make: Makes the others.
        data: Draws the chunks.
        samples: Values by type.
        row_by_row: Whether values after each row are asked for, too.
        is_unordered: Whether states, or their attributes `seen`, are sets, which are ordered by their hashes.
        read: Returns the accumulators of pickled states, which are compared instead of their bytes.
    """
    every = np.arange(SLOTS + 2, dtype=np.int32)
    one, other, third, fourth = interpret(bound), make(), interpret(bound), make()
    for rows in data.draw(chunks(bound, samples)):
        if not same(lambda target, rows=rows: target.update(rows), one, other):
            return
        if not same(lambda target: target.state(every[:3]), one, other, is_unordered=is_unordered, read=read):
            return
        states = one.state(every[:3])
        if not same(lambda target: target.evaluate(every), one, other):
            return
        if row_by_row:
            mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
            emit_mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
            emit_mask = data.draw(st.sampled_from([None, emit_mask]))
            if not same(
                lambda target, rows=rows, each=(mask, emit_mask): target.running_values(rows, *each), one, other
            ):
                return
        if data.draw(st.booleans()):
            same(lambda target: target.forget(every[1:2]), one, other)
        slots = np.array(data.draw(st.lists(st.integers(0, 2), min_size=3, max_size=3)), np.int32)
        if not same(lambda target, slots=slots, states=states: target.merge(slots, states), third, fourth):
            return
        if not same(lambda target: target.state(every), third, fourth, is_unordered=is_unordered, read=read):
            return
        if not same(lambda target: target.evaluate(every), third, fourth):
            return


def sums_are_exact(accumulators: GroupsAccumulator, mode: str = "interpreted") -> None:
    """Check a sum of integers that exceeds 64 bits, where it is OVERFLOW, and returns; `mode` is the mode after it."""
    slots = np.zeros(3, np.int32)
    big = (1 << 63) - 1
    accumulators.update(Rows(slots, None, [Column("x", pa.array([big, big, big]))]))
    assert accumulators.mode == mode
    with pytest.raises(FoldflightError, match=r"^OVERFLOW: "):
        accumulators.evaluate(slots[:1])
    accumulators.update(Rows(slots[:2], np.array([True, True]), [Column("x", pa.array([big, big]))]))
    assert accumulators.evaluate(slots[:1]).to_pylist() == [big]


def refusal(programs: Programs, bound: BoundFunction) -> str:
    """Return why a function is not compiled."""
    program = programs.program(bound, bound.instantiate())
    assert not isinstance(program, Program)
    return program.reason
