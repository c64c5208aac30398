"""The digest of code: the same in each process with the same code, and another one for other code."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from foldflight.functions.author.codedigest import code_digest, other_code

SOURCE = """
import dataclasses, enum, functools, math, re, threading
from foldflight import udaf

FACTOR = 3
NAMES = {"b", "a", "c", "d", "e"}
TABLE = {"a": [1, 2.5], "b": (None, frozenset({1, 2}))}
PATTERN = re.compile("x+")
LOCK = threading.Lock()
UNUSED = 1

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass
class State:
    total: int = 0

class Base:
    def get_value(self, state): return state.total

@functools.cache
def cached(x): return x + 1

def times(x, by=2):
    # a comment
    return x * FACTOR * by if PATTERN.match(str(x)) and x in NAMES and Colour.RED else TABLE

def outer(step):
    def inner(x): return times(x) + step
    return inner

step_of = outer(5)

@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Total(Base):
    LIMITS = [1, 2]
    def create_accumulator(self) -> State: return State()
    def accumulate(self, state, x): state.total += step_of(cached(x)) + math.floor(1.5) + (x in {"p", "q", "r"})
    @staticmethod
    def helper(x): return [each for each in x if (lambda y: y > 0)(each)]
    def merge(self, state, other):
        with LOCK: state.total += other.total
"""


def digest_of(source: str = SOURCE, name: str = "authored") -> str:
    """Return the digest of the class `Total` of a module."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(source, f"{name}.py", "exec", dont_inherit=True), module.__dict__)
        return code_digest(module.__dict__["Total"])
    finally:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 3", "FACTOR = 4"),
        ("FACTOR = 3", "FACTOR = 3.0"),
        ('"e"}', '"f"}'),
        ("2.5", "2.25"),
        ("frozenset({1, 2})", "frozenset({1, 3})"),
        ("x+", "x*"),
        ("BLUE = 2", "BLUE = 3"),
        ("total: int = 0", "total: int = 1"),
        ("return state.total", "return state.total + 1"),
        ("return x + 1", "return x + 2"),
        ("by=2", "by=3"),
        ("outer(5)", "outer(6)"),
        ("times(x) + step", "times(x) - step"),
        ("LIMITS = [1, 2]", "LIMITS = [2, 1]"),
        ("y > 0", "y >= 0"),
        ('"r"}', '"s"}'),
        ("+= other.total", "-= other.total"),
        ("math.floor", "math.ceil"),
    ],
)
def test_other_code_has_another_digest(old: str, new: str) -> None:
    """Whatever the code reads is covered: constants, variables, closures, defaults, bases and functions it calls."""
    assert SOURCE.count(old) == 1
    assert digest_of(SOURCE.replace(old, new)) != digest_of()


@pytest.mark.parametrize(
    ("old", "new"), [("# a comment", "# another"), ("UNUSED = 1", "UNUSED = 2"), ("def outer", "\n\ndef outer")]
)
def test_the_digest_leaves_out_what_code_does_not_read(old: str, new: str) -> None:
    """Comments, positions and variables that the code does not name change nothing."""
    assert digest_of(SOURCE.replace(old, new)) == digest_of()


def test_the_digest_is_the_same_in_other_processes(tmp_path: Path) -> None:
    """Neither the seed of hashes nor compiled files nor code that has run before matter."""
    (tmp_path / "authored.py").write_text(SOURCE)
    program = (
        "import authored, sys; from foldflight.functions.author.codedigest import code_digest\n"
        "for x in range(int(sys.argv[1])): authored.Total.helper([x]); authored.cached(x)\n"
        "print(code_digest(authored.Total))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, count],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}",
            },
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed, count in (("1", "0"), ("2", "5000"), ("3", "0"))
    }
    assert digests == {digest_of()}


IMPORTING = """
import functools

@functools.singledispatch
def shown(value): return str(value)
@shown.register
def _(value: int): return f"{value}!"

class Total:
    def read(self, x):
        import math, no_such_module_anywhere
        import rates_of_mine
        from places_of_mine import inner
        from pathlib import Path
        return rates_of_mine.rate(x) + inner.here(x) + math.floor(x) + shown(x)
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "is_read"),
    [
        ("rates_of_mine.py", "return x", "return x + 1", True),
        ("rates_of_mine.py", "UNUSED = 1", "UNUSED = 2", False),
        ("places_of_mine/inner.py", "return 1", "return 2", True),
        ("", "{value}!", "{value}?", True),
    ],
)
def test_imports_of_methods_and_registered_functions_count(
    file: str, old: str, new: str, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest covers modules that a method imports, and implementations of singledispatch."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "places_of_mine").mkdir()
    (tmp_path / "places_of_mine" / "__init__.py").touch()
    sources = {
        "rates_of_mine.py": "UNUSED = 1\ndef rate(x): return x\n",
        "places_of_mine/inner.py": "def here(x): return 1\n",
        "": IMPORTING,
    }

    def digest() -> str:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("rates_of_mine", "places_of_mine")]:
            del sys.modules[name]
        for name, source in sources.items():
            if name:
                (tmp_path / name).write_text(source)
        importlib.invalidate_caches()
        return digest_of(sources[""])

    with monkeypatch.context() as context:
        context.setattr(sys, "dont_write_bytecode", True)
        before = digest()
        assert digest() == before
        assert old in sources[file]
        sources[file] = sources[file].replace(old, new)
        assert (digest() != before) == is_read


def test_the_digest_takes_objects_of_any_kind() -> None:
    """Cycles, deep lists, and objects that cannot be pickled end the walk, and raise nothing."""

    class Hostile:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError("no")

    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    cycle: list[Any] = [deep, Hostile(), iter([1]), object()]
    cycle.append(cycle)

    def reads() -> Any:
        return cycle

    assert len(code_digest(reads)) == 16
    assert code_digest(reads) == code_digest(reads)


def test_unknown_digests_are_no_others() -> None:
    """A server that tells no digest has no other code, as far as is known."""
    assert other_code({"a": "1", "b": "2", "c": "", "d": "4"}, {"a": "1", "b": "3", "c": "5", "e": "6", "d": ""}) == (
        "b",
    )
