"""Functions that another process compiles: interpreted until their loops are stored, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from examples.weighted_avg import WeightedAvg
from foldflight import udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.accelerator import PendingLoop
from foldflight.fold.failures import Failures
from foldflight.fold.mode import WAITS_TO_BE_COMPILED, Folding, Mode, Unsupported
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.evaluation import InterpretedScalar
from foldflight.functions import Registry
from foldflight.functions.author.context import FunctionContext
from tests.laws.alike import interpret


class Queue:
    """Has no process: the test stores the loops."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.reason = ""

    def takes(self, bound: Any) -> bool:
        return True

    def ask(self, bound: Any, loop: str, rows: int) -> None:
        self.asked.append((loop, rows))
        if self.reason:
            raise Unsupported(self.reason)
        raise PendingLoop


class AllRows:
    """Accumulators, and the interpreter's, to which they are compared."""

    def __init__(self, programs: Programs) -> None:
        self.both = programs.accumulators(interpret(bound())), interpret(bound())

    def update(self, *values: int | None) -> Mode:
        for each in self.both:
            each.update(rows(values))
        one, other = (each.evaluate(np.zeros(1, np.int32)).to_pylist() for each in self.both)
        assert one == other
        return self.both[0].mode

    def running_values(self, *values: int | None) -> Mode:
        one, other = (each.running_values(rows(values), np.ones(len(values), np.bool_)) for each in self.both)
        assert one.to_pylist() == other.to_pylist()
        return self.both[0].mode


def bound() -> Any:
    return Registry.load([WeightedAvg])["weighted_avg"].bind([pa.int64(), pa.int32()], {})


def rows(values: tuple[int | None, ...]) -> Rows:
    columns = [Column("v", pa.array(values, pa.int64())), Column("w", pa.array([1] * len(values), pa.int32()))]
    return Rows(np.zeros(len(values), np.int32), None, columns)


@pytest.mark.every_turn
def test_accumulators_change_to_loops_that_another_process_has_stored(tmp_path: Path) -> None:
    """Also to loops that are needed later, with the accumulators of that time; loops are not compiled here."""
    queue, store = Queue(), LoopStore(tmp_path)
    programs = Programs(store, queue=queue)
    function = bound().function
    assert programs.load(function).mode is Mode.COMPILED_WHEN_HOT
    accumulators = AllRows(programs)
    assert programs.folding(function) == Folding(Mode.COMPILED_WHEN_HOT)
    assert {rows for _, rows in queue.asked} == {0}
    assert accumulators.update(1, 2, 4) is Mode.INTERPRETED
    assert accumulators.update(8) is Mode.INTERPRETED
    assert queue.asked[-1][0] == "fold"
    assert programs.folding(function) == WAITS_TO_BE_COMPILED
    assert not list(tmp_path.iterdir())

    assert Programs(store).compile_bound(bound()).mode is Mode.COMPILED
    assert accumulators.update(16) is Mode.COMPILED
    assert programs.folding(function) == Folding(Mode.COMPILED)
    assert AllRows(programs).update(5) is Mode.COMPILED

    assert accumulators.running_values(32, 64) is Mode.INTERPRETED
    assert queue.asked[-1][0] == "each"
    assert accumulators.update(128) is Mode.INTERPRETED
    Programs(store).compile_bound(bound(), "each")
    assert accumulators.update(256) is Mode.COMPILED
    assert accumulators.running_values(512, 1024) is Mode.COMPILED
    assert Programs(store, queue=queue).load(function) == Folding(Mode.COMPILED)


def test_the_reason_why_there_will_be_no_loop_is_told(tmp_path: Path) -> None:
    queue = Queue()
    programs = Programs(LoopStore(tmp_path), queue=queue)
    accumulators = AllRows(programs)
    assert accumulators.update(1) is Mode.INTERPRETED
    queue.reason = "the process died"
    assert accumulators.update(2) is Mode.INTERPRETED
    assert programs.folding(bound().function) == Folding(Mode.INTERPRETED, "the process died")


def test_a_refusal_of_another_process_is_told(tmp_path: Path) -> None:
    """The reason is the compiler's, although the process could say more."""

    @udf
    def looks(text: str) -> int:
        return text.encode("utf-16")[0]

    queue, store = Queue(), LoopStore(tmp_path)
    one = Registry.load([looks])["looks"].bind([pa.string()], {})
    programs = Programs(store, queue=queue)
    scalar_program = programs.scalar(InterpretedScalar(one, FunctionContext("looks"), Failures()))
    values = Rows(np.zeros(1, np.int32), None, [Column("text", pa.array(["a"]))])
    assert scalar_program.values(values).to_pylist() == [255]
    compiled_form = Programs(store).compile_bound(one)
    assert compiled_form.mode is Mode.INTERPRETED
    assert scalar_program.values(values).to_pylist() == [255]
    assert programs.folding(one.function) == compiled_form
