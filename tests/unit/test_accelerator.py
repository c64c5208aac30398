"""An accelerator is passed to a fold; without one the fold interprets, and refuses `compile=True`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from foldflight import RejectedError, udaf
from foldflight.exchange.frames import Open
from foldflight.exchange.server_exchange import ServerExchange, describe
from foldflight.ext.compiler import Programs
from foldflight.fold.accelerator import Accelerator
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.mode import Mode
from foldflight.functions import Call, Registry
from foldflight.testing.pair import LIMITS
from tests.folds import open_fold

COLUMNS = pa.schema([("x", pa.int64())])
ROWS = pa.record_batch([pa.array([1, 2])], schema=COLUMNS)


class Adds:
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, x: int) -> int:
        return accumulator + x

    def get_value(self, accumulator: int) -> int:
        return accumulator


def registry(**options: Any) -> Registry:
    return Registry.load([udaf(name="adds", **options)(type("Adds", (Adds,), {}))])


def test_a_fold_without_an_accelerator_interprets() -> None:
    """Nothing is compiled without an accelerator, however many rows come."""
    fold = Fold(bind_calls(registry(compile="auto"), [Call("adds", ("x",))], COLUMNS))
    fold.fold(ROWS)
    assert fold.modes == (Mode.INTERPRETED,)
    assert fold.collect().column("output_0").to_pylist() == [3]


def test_compile_true_demands_an_accelerator() -> None:
    """A function with `compile=True` is refused without a compiler, by `describe` and at open."""
    open_request = Open((Call("adds", ("x",)),), COLUMNS)
    must = registry(compile=True)
    for use in (
        lambda: describe(open_request, must, LIMITS, "s"),
        lambda: ServerExchange(open_request, must, limits=LIMITS, server_id="s"),
        lambda: Fold(bind_calls(must, open_request.calls, COLUMNS)),
    ):
        with pytest.raises(RejectedError, match="adds is declared compile=True and there is no compiler here"):
            use()


@pytest.mark.every_turn
def test_programs_are_an_accelerator() -> None:
    """Programs are an accelerator, and calls with `compile=True` are compiled from the first row."""
    programs: Accelerator = Programs()
    fold = open_fold(bind_calls(registry(compile=True), [Call("adds", ("x",))], COLUMNS), accelerator=programs)
    fold.fold(ROWS)
    assert fold.modes == (Mode.COMPILED,)
    assert fold.collect().column("output_0").to_pylist() == [3]


def test_opened_instances_are_closed_where_the_compiler_refuses() -> None:
    """An instance whose `open` has run is closed, also if opening the fold fails."""
    closed_instances = []
    methods = {"open": lambda self, context: None, "close": lambda self: closed_instances.append(True)}
    function = udaf(name="adds", compile=True)(type("Adds", (Adds,), methods))
    with pytest.raises(RejectedError, match="compile=True"):
        Fold(bind_calls(Registry.load([function]), [Call("adds", ("x",))], COLUMNS))
    assert closed_instances == [True]


def test_programs_share_nothing() -> None:
    """Two Programs share no compiled functions, counts or refusals: nothing is global to the process."""
    function = registry(compile="auto")["adds"]
    one, other = Programs(), Programs()
    assert one.warm(function).mode is Mode.COMPILED
    assert [each.folding(function).mode for each in (one, other)] == [Mode.COMPILED, Mode.COMPILED_WHEN_HOT]
