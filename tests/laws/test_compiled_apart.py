"""Rows that compiled code cannot fold are interpreted one by one, each once, and compiled code goes on after them."""

from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.resources import Resources
from foldflight.fold.rows import Column, Rows
from foldflight.functions.author.udaf import function_of
from foldflight.functions.query.call import Options
from foldflight.testing.laws import _Subject
from tests.laws.alike import SIGNER, interpret, outcome

BIG = (1 << 63) - 1
LONG = "a" * 40_000


@udaf(input_types=["BIGINT", "VARCHAR"], result_type="BIGINT")
class Kept:
    """A sum, the greatest text, and the lengths of texts."""

    total: int
    name: str
    lengths: list[int]

    def __init__(self) -> None:
        self.total = 0
        self.name = ""
        self.lengths = []

    def accumulate(self, value: int, name: str) -> None:
        if value == 13:
            raise ValueError(f"13 after {self.total}")
        self.total += value
        self.lengths.append(len(name))
        if name < "a" and name > self.name:
            self.name = name

    def get_value(self) -> int:
        return self.total + len(self.name) + len(self.lengths)


@udaf(input_types=["DECIMAL(10, 2)"], result_type="DOUBLE")
class Product:
    """The last number, negated, whose zero may be negative."""

    last: Decimal

    def __init__(self) -> None:
        self.last = Decimal("1.00")

    def accumulate(self, value: Decimal) -> None:
        self.last = -value if value else value * -1

    def get_value(self) -> float:
        return float(self.last)


@pytest.fixture(scope="module")
def programs() -> Programs:
    """Compile once for all tests, and keep nothing."""
    return Programs(hot_rows=0)


def rows_of(*rows: tuple[int, int, str]) -> Rows:
    """Return rows of a slot, a number and a text."""
    slots, numbers, texts = zip(*rows, strict=True)
    return Rows(np.array(slots, np.int32), None, [Column("value", pa.array(numbers)), Column("name", pa.array(texts))])


def both(programs: Programs, cls: Any = Kept) -> tuple[InterpretedAccumulators, Any]:
    """Return the interpreter and compiled code."""
    bound = function_of(cls).bind(function_of(cls).input_types, {})  # type: ignore[union-attr]
    return interpret(bound), programs.accumulators(interpret(bound))


def agree(one: Any, other: Any, run: Any) -> None:
    """Compare a step."""
    assert outcome(partial(run, one)) == outcome(partial(run, other))


SLOTS = np.array([2, 0, 1, 3], np.int32)
MANY = [(row % 3, 20 + row, "b" * (row % 5)) for row in range(100)]


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("middle", "stays"),
    [
        ([(1, 5, LONG)], False),
        ([(1, BIG, "b"), (1, BIG, "c"), (0, 3, "d"), (1, -BIG, "b"), (2, 7, LONG), (1, -BIG, "")], False),
        ([(1, 1, "A" + LONG), (0, 2, LONG), (1, 9, "")], True),
    ],
    ids=["a long text", "a sum that returns", "a text that is kept"],
)
@pytest.mark.parametrize("each", [False, True])
def test_rows_that_do_not_fit_are_interpreted_alone(
    middle: list[Any], stays: bool, each: bool, programs: Programs
) -> None:
    """States, results and later rows are the interpreter's, and only groups that do not fit stay with it."""
    one, other = both(programs)
    rows = rows_of(*MANY, *middle, *(row for place, row in enumerate(MANY) if row[0] != 1 or place < 9))
    if each:
        every = np.ones(len(rows), np.bool_)
        emit_mask = np.arange(len(rows)) % 3 != 1
        emit_mask[len(MANY) : len(MANY) + len(middle)] = False  # a value beyond 64 bits is an error
        agree(one, other, lambda target: target.running_values(rows, every, emit_mask))
    else:
        agree(one, other, lambda target: target.update(rows))
    assert other.mode == "compiled"
    assert other.inner.occupied_slots().tolist() == ([1] if stays else [])
    for _ in range(2):
        agree(one, other, lambda target: target.evaluate(SLOTS))
        agree(one, other, lambda target: target.state(SLOTS))
        agree(one, other, lambda target: target.update(rows_of(*MANY[:9])))
    agree(one, other, lambda target: target.forget(SLOTS))
    agree(one, other, lambda target: target.update(rows_of(*MANY)))
    assert not other.inner.holds_any


def test_many_rows_that_do_not_fit_leave_all_to_the_interpreter_for_a_time(programs: Programs) -> None:
    """The interpreter takes over where one by one would be slower; the next epoch begins with compiled code."""
    one, other = both(programs)
    rows = rows_of(*MANY, *[(0, BIG, "b"), (1, 5, LONG)] * 40, *MANY)
    agree(one, other, lambda target: target.update(rows))
    assert other.mode == "interpreted"
    agree(one, other, lambda target: target.evaluate(SLOTS[:1]))
    agree(one, other, lambda target: target.evaluate(SLOTS))
    agree(one, other, lambda target: target.forget(SLOTS))
    agree(one, other, lambda target: target.update(rows_of(*MANY)))
    assert other.mode == "compiled"
    agree(one, other, lambda target: target.state(SLOTS))


def test_a_state_that_does_not_fit_leaves_an_error_as_the_interpreter_has_it(programs: Programs) -> None:
    """A sum beyond 64 bits at the barrier is OVERFLOW, and names its group."""
    one, other = both(programs)
    agree(one, other, lambda target: target.update(rows_of((0, 1, ""), (1, BIG, ""), (1, BIG, ""), (2, 1, ""))))
    agree(one, other, lambda target: target.state(SLOTS))
    agree(one, other, lambda target: target.evaluate(SLOTS))


@pytest.mark.usefixtures("texts_are_copied_soon")
def test_texts_of_rows_after_an_interpreted_one_are_kept(programs: Programs) -> None:
    """The texts that accumulators refer to stay in memory when older ones are copied in the middle of a chunk."""
    one, other = both(programs)
    names = ["A first", LONG, *(f"A {row:05}" for row in range(200))]
    slots = np.array([0, 1, *(row % 4 for row in range(200))], np.int32)
    memory = bytearray("".join(names).encode())

    def fold(target: Any) -> None:
        offsets = np.cumsum([0, *map(len, names)], dtype=np.int32)
        texts = pa.Array.from_buffers(
            pa.string(), len(names), [None, pa.py_buffer(offsets), pa.py_buffer(memoryview(memory))]
        )
        target.update(Rows(slots, None, [Column("value", pa.array([1] * len(names))), Column("name", texts)]))

    agree(one, other, fold)
    with suppress(BufferError):  # somebody keeps it; otherwise its next owner writes there
        memory.pop()
        memory[:] = b"?" * len(memory)
    agree(one, other, lambda target: target.state(SLOTS))
    assert other.mode == "compiled"


@pytest.mark.every_turn
def test_a_negative_zero_stays_with_the_interpreter(programs: Programs) -> None:
    """A record has no -0 of decimals, and its float shows the sign."""
    one, other = both(programs, Product)
    for value in ("2.00", "0.00", "3.00", "0.00"):
        rows = Rows(np.zeros(1, np.int32), None, [Column("value", pa.array([Decimal(value)], pa.decimal128(10, 2)))])
        agree(one, other, lambda target, rows=rows: target.update(rows))
        agree(one, other, lambda target: target.evaluate(SLOTS))
    assert other.mode == "compiled"
    assert other.inner.occupied_slots().tolist() == [0]


def test_a_group_that_fails_leaves_the_others_compiled(programs: Programs) -> None:
    """With isolated errors the rows of a failed group are skipped, the others are compiled; then all begin anew."""
    subject = _Subject(function_of(Kept), {})  # type: ignore[arg-type]
    ways = (Resources(SIGNER), Resources(SIGNER, accelerator=programs))
    one, other = (Fold(subject.calls, Options(isolate_errors=True), way) for way in ways)
    for failing_row in (13, 0):
        for part in ([(1, "b"), (failing_row, "b"), (5, LONG)], [(2, "c")]):
            for slot in (0, 1):
                chunk = subject.chunk(part if slot else part[:1], slot)
                agree(one, other, lambda fold, chunk=chunk: fold.fold(chunk))
        agree(one, other, lambda fold: fold.collect().to_struct_array())
    assert other.modes == ("compiled",)
