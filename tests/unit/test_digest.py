"""Compiled code is found again under a digest, which changes with everything that was compiled into it."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foldflight import udaf
from foldflight.fold import programs
from foldflight.fold.calls import bind_calls
from foldflight.fold.compiler.digest import digest_of
from foldflight.fold.compiler.kinds import Refused
from foldflight.fold.compiler.plan import plan_of
from foldflight.fold.fold import Fold
from foldflight.functions import Call, Registry
from foldflight.functions.decorators import function_of

_SOURCE = """
import dataclasses, enum
from types import SimpleNamespace
import settings

class State:
    total: int

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

class Function(Base):
    def create_accumulator(self) -> State:
        accumulator = State(); accumulator.total = 0; return accumulator
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
    "self.static(value)",
    "Base.helper(self, value)",
]


def written(expression: str, number: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class as it is in a process whose modules say `number`."""
    settings, windows, module = (types.ModuleType(name) for name in ("settings", "windows", "written"))
    windows.__dict__["limit"] = number
    exec(f"def step(value): return value + {number}", windows.__dict__)
    settings.__dict__["windows"] = windows
    monkeypatch.setitem(sys.modules, "settings", settings)
    monkeypatch.setitem(sys.modules, "written", module)
    exec(_SOURCE.format(number=number, expression=expression), module.__dict__)
    return udaf(name="written")(module.__dict__["Function"])


def digest(cls: type) -> str:
    function = function_of(cls)
    assert function is not None
    bound = function.bind(function.input_types or (), {})
    return digest_of(plan_of(bound, bound.instantiate())[0])


@pytest.mark.parametrize("expression", _EXPRESSIONS)
def test_whatever_changes_the_code_changes_the_digest(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number or a body that the code reaches counts, in whatever module, class or object; nothing else does."""
    one, again, other = (digest(written(expression, number, monkeypatch)) for number in (1, 1, 2))
    assert one == again
    assert one != other


def test_kept_code_of_another_number_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a number two modules away has changed since the code was kept, the new number counts."""
    monkeypatch.setattr(programs, "_folder", tmp_path)
    columns = pa.schema([("value", pa.int64())])
    totals = []
    for number in (1, 10):
        registry = Registry.load([written("value + settings.windows.limit", number, monkeypatch)])
        assert programs.warm(registry["written"]) == "compiled"
        fold = Fold(bind_calls(registry, [Call("written", ("value",))], columns))
        fold.fold(pa.record_batch([pa.array([1, 2])], schema=columns))
        assert fold.kinds == ("compiled",)
        totals += fold.collect().column("output_0").to_pylist()
    assert totals == [5, 23]


def test_names_that_lead_on_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that makes another one whenever it is asked is not compiled, rather than followed for ever."""

    class Endless:
        @property
        def limit(self) -> Endless:
            return Endless()

    cls = written("value + frozen.limit", 1, monkeypatch)
    sys.modules["written"].__dict__["frozen"] = Endless()
    with pytest.raises(Refused, match="more than 1000 objects"):
        digest(cls)
