"""Compiled code is stored under a digest, which changes with everything that was compiled."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compile_plan import plan_of
from foldflight.ext.compiler.digest import Lookups, digest_of
from foldflight.ext.compiler.program import Program
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.mode import Mode, Unsupported
from foldflight.functions import Call, Registry
from foldflight.functions.author.udaf import function_of
from tests.folds import open_fold

_SOURCE = """
import dataclasses, enum
from types import SimpleNamespace
import settings

class State:
    total: int
    START = 0

class Color(enum.Enum):
    RED = {number}

class Limits:
    class Inner:
        LIMIT = {number}
        def step(value): return value + {number}

@dataclasses.dataclass(frozen=True)
class Frozen:
    limit: int = {number}

def below(value): return value + {number}
def above(value): return below(value)
def with_default(value, step={number}): return value + step
def with_attribute(value): return value
with_attribute.limit = {number}
def closed(step):
    def inner(value): return value + step
    return inner

frozen, space, inner, constant = Frozen(), SimpleNamespace(limit={number}), closed({number}), {number}

class Base:
    LIMIT = {number}
    def helper(self, value): return value + {number}
    @property
    def limit(self): return {number}
    @staticmethod
    def static(value): return value + {number}

class Other(Base):
    def helper(self, value): return value + 10

class Function(Base):
    def create_accumulator(self) -> State:
        accumulator = State(); accumulator.total = State.START; return accumulator
    def get_value(self, accumulator) -> int: return accumulator.total
    def accumulate(self, accumulator, value: int):
        accumulator.total += {expression}
"""
_EXPRESSIONS = [
    "value + constant",
    "above(value)",
    "with_default(value)",
    "value + with_attribute.limit",
    "inner(value)",
    "value + Color.RED.value",
    "value + Limits.Inner.LIMIT",
    "Limits.Inner.step(value)",
    "value + frozen.limit",
    "value + space.limit",
    "value + settings.windows.limit",
    "settings.windows.step(value)",
    "self.helper(value)",
    "value + self.LIMIT",
    "value + self.limit",
    'value + getattr(self, "LIMIT")',
    'value + getattr(space, "limit", 5)',
    'getattr(self, "helper")(value)',
    "self.static(value)",
    "Base.helper(self, value)",
]


def function_of_source(expression: str, number: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class as in a process whose modules have `number`."""
    settings, windows, module = (types.ModuleType(name) for name in ("settings", "windows", "written"))
    windows.__dict__["limit"] = number
    exec(f"def step(value): return value + {number}", windows.__dict__)
    settings.__dict__["windows"] = windows
    monkeypatch.setitem(sys.modules, "settings", settings)
    monkeypatch.setitem(sys.modules, "written", module)
    exec(_SOURCE.format(number=number, expression=expression), module.__dict__)
    return udaf(name="written")(module.__dict__["Function"])


def digest(cls: type, lookups: Lookups | None = None) -> str:
    function = function_of(cls)
    assert function is not None
    bound = function.bind(function.input_types or (), {})
    return digest_of(plan_of(bound, bound.instantiate())[0], lookups or Lookups())


@pytest.mark.parametrize("expression", _EXPRESSIONS)
def test_whatever_changes_the_code_changes_the_digest(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number or code that is reached in any module, class or object changes the digest; nothing else does."""
    one, again, other = (digest(function_of_source(expression, number, monkeypatch)) for number in (1, 1, 2))
    assert one == again
    assert one != other


def test_a_class_that_was_pickled_by_value_has_the_same_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions have the globals that they read, and not those that have the name of an attribute."""
    cls = function_of_source("value + frozen.limit + sum(each.real + constant for each in (1, 2))", 1, monkeypatch)
    one = digest(cls)
    globals_of_module = sys.modules["written"].__dict__
    monkeypatch.setitem(globals_of_module, "total", Limit)
    monkeypatch.setitem(globals_of_module, "real", Limit)
    assert digest(cls) == one
    monkeypatch.setitem(globals_of_module, "constant", 2)  # a generator within the method reads it
    assert digest(cls) != one


class Limit:
    """A class that no code reaches."""


def test_a_static_method_is_not_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a method takes self is a property of the class, not of the code."""
    cls = function_of_source("self.static(value)", 1, monkeypatch)
    one = digest(cls)
    monkeypatch.setattr(cls, "static", cls.static)
    assert digest(cls) != one


def plus(value: int) -> int:
    return value + 10


@pytest.mark.parametrize(
    ("expression", "change"),
    [
        ("value + constant", lambda module: setattr(module, "constant", 10)),
        ("value + constant", lambda module: setattr(module, "constant", 1.0)),
        ("above(value)", lambda module: setattr(module.below, "__code__", plus.__code__)),
        ("above(value)", lambda module: setattr(module, "below", plus)),
        ("max(value, 1)", lambda module: setattr(module, "max", plus)),
        ("with_default(value)", lambda module: setattr(module.with_default, "__defaults__", (10,))),
        ("value + with_attribute.limit", lambda module: setattr(module.with_attribute, "limit", 10)),
        ("inner(value)", lambda module: setattr(module.inner.__closure__[0], "cell_contents", 10)),
        ("value + Limits.Inner.LIMIT", lambda module: setattr(module.Limits.Inner, "LIMIT", 10)),
        ("value + space.limit", lambda module: setattr(module.space, "limit", 10)),
        ("value + settings.windows.limit", lambda module: setattr(module.settings.windows, "limit", 10)),
        ("self.helper(value)", lambda module: setattr(module.Base, "helper", lambda self, value: value + 10)),
        ("self.helper(value)", lambda module: setattr(module.Function, "helper", lambda self, value: value + 10)),
        ("self.helper(value)", lambda module: setattr(module.Function, "__bases__", (module.Other,))),
        ("value + self.LIMIT", lambda module: setattr(module.Base, "LIMIT", 10)),
        ("value + self.limit", lambda module: setattr(module.Base, "limit", property(lambda self: 10))),
        ("self.static(value)", lambda module: setattr(module.Base, "static", module.Base.static)),
        ("value", lambda module: setattr(module.Function, "accumulate", lambda self, accumulator, value: None)),
        ("value", lambda module: setattr(module.Function, "retract", lambda self, accumulator, value: None)),
        ("value", lambda module: setattr(module.State, "START", 10)),
        ("value", lambda module: setattr(module.State, "__init__", lambda self: None)),
        ("value", lambda module: setattr(module.State, "__setattr__", lambda self, name, value: None)),
        ("value", lambda module: setattr(module.State, "total", property(lambda self: 0))),
    ],
)
def test_lookups_end_with_whatever_changes_in_place(
    expression: str, change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as lookups hold, nothing that a program was made from has changed; and they hold if nothing has."""
    cls, lookups = function_of_source(expression, 1, monkeypatch), Lookups()
    digest(cls, lookups)
    assert lookups.holds()
    change(sys.modules["written"])
    assert not lookups.holds()


@pytest.mark.parametrize(
    ("expression", "setup"),
    [
        ("value + constant", "constant = [1]"),
        ("with_default(value)", "with_default.__defaults__ = (([1],),)"),
        ("value", "Function.__slots__ = ()"),
        ("value + self.limit", "import functools\nBase.limit = functools.cached_property(lambda self: 1)"),
        (
            "value + space.limit",
            "class space:\n    limit = 1\nfor each in range(10_001): space = type('', (), {'limit': space})",
        ),
    ],
)
def test_objects_that_may_have_changed_are_followed_anew(
    expression: str, setup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, slots and unknown descriptors may have other values, so such lookups never hold."""
    cls, lookups = function_of_source(expression, 1, monkeypatch), Lookups()
    exec(setup, sys.modules["written"].__dict__)
    monkeypatch.setattr("foldflight.ext.compiler.digest._REACHED_MAX", 20_000)
    digest(cls, lookups)
    assert not lookups.holds()


@pytest.mark.slow
def test_a_number_that_changes_in_place_counts_in_the_next_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanges share a program until something that it was made from changes."""
    programs = Programs(LoopStore(tmp_path))
    registry = Registry.load([function_of_source("value + settings.windows.limit", 1, monkeypatch)])
    columns = pa.schema([("value", pa.int64())])
    assert programs.warm(registry["written"]).mode is Mode.COMPILED
    totals, totals_made = [], []
    for number in (1, 1, 10):
        sys.modules["settings"].windows.limit = number
        calls = bind_calls(registry, [Call("written", ("value",))], columns)
        totals_made.append(programs.program(calls[0].bound, calls[0].bound.instantiate()))
        fold = open_fold(calls, accelerator=programs)
        fold.fold(pa.record_batch([pa.array([1, 2])], schema=columns))
        assert fold.modes == ("compiled",)
        totals += fold.collect().column("output_0").to_pylist()
    assert totals == [5, 5, 23]
    assert totals_made[0] is totals_made[1]
    assert totals_made[1] is not totals_made[2]


@pytest.mark.slow
def test_a_loop_is_not_compiled_from_what_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that an open exchange needs after a change is not stored under the old digest."""
    programs = Programs(LoopStore(tmp_path))
    registry = Registry.load([function_of_source("value + settings.windows.limit", 3, monkeypatch)])
    bound = registry["written"].bind([pa.int64()], {})
    before = programs.program(bound, bound.instantiate())
    sys.modules["settings"].windows.limit = 30
    after = programs.program(bound, bound.instantiate())
    assert isinstance(before, Program)
    assert isinstance(after, Program)
    assert before.rows(nulls=True) is None
    assert not list(tmp_path.glob("*.fold_nulls"))
    assert after.rows(nulls=True) is not None
    assert len(list(tmp_path.glob("*.fold_nulls"))) == 1


@pytest.mark.slow
def test_kept_code_of_another_number_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a number two modules away has changed since the code was stored, the new number is used."""
    programs = Programs(LoopStore(tmp_path))
    columns = pa.schema([("value", pa.int64())])
    totals = []
    for number in (1, 10):
        registry = Registry.load([function_of_source("value + settings.windows.limit", number, monkeypatch)])
        assert programs.warm(registry["written"]).mode is Mode.COMPILED
        fold = open_fold(bind_calls(registry, [Call("written", ("value",))], columns), accelerator=programs)
        fold.fold(pa.record_batch([pa.array([1, 2])], schema=columns))
        assert fold.modes == ("compiled",)
        totals += fold.collect().column("output_0").to_pylist()
    assert totals == [5, 23]


def test_names_that_lead_on_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that makes another one at each access is unsupported, not followed for ever."""

    class Endless:
        @property
        def limit(self) -> Endless:
            return Endless()

    cls = function_of_source("value + frozen.limit", 1, monkeypatch)
    sys.modules["written"].__dict__["frozen"] = Endless()
    with pytest.raises(Unsupported, match="more than 1000 objects"):
        digest(cls)
