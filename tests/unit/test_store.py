"""Compiled loops are kept in a folder for later processes, which is used only if that is safe."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from foldflight import udf
from foldflight.cli.main import cli
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.functions import function_of
from foldflight.functions.author.spec import Function

ROOT = Path(__file__).parents[2]

_PROCESS = """
import json, logging, sys
from pathlib import Path
from numba.core import event
from numba.core.runtime import rtsys
import pyarrow as pa
from examples.weighted_avg import WeightedAvg
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.resources import Resources
from foldflight.functions.query.call import Options
from foldflight.functions import Call, Registry

lines = []
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("foldflight").addHandler(Lines())
programs = Programs(LoopStore(Path(sys.argv[1]) if len(sys.argv) > 1 else "user"))
registry = Registry.load([WeightedAvg])
with event.install_recorder("numba:compile") as recorder:
    how = str(programs.warm(registry["weighted_avg"]))
columns = pa.schema([("v", pa.int64()), ("w", pa.int32())])
calls = bind_calls(registry, [Call("weighted_avg", ("v", "w"))], columns)
fold = Fold(calls, Options(), Resources(accelerator=programs))
fold.fold(pa.record_batch([pa.array([1, 3]), pa.array([1, 3], pa.int32())], schema=columns))
loops = [loop for kernels in programs._kernels.values() for loop in kernels._loops.values()]
libraries = [made.library for loop in loops for made in loop.overloads.values()]
print(json.dumps({"loops": len(loops), "forms": sum(each._shared_module is not None for each in libraries),
                  "objects": sum(each._compiled_object is not None for each in libraries), "memory": rtsys._init,
                  "compiled": len(recorder.buffer), "how": how, "lines": lines, "kinds": fold.modes,
                  "outputs": fold.collect().column("output_0").to_pylist()}))
"""


class _Loop:
    def _reduce(self) -> bytes:
        return b"a compiled loop"


class _Target:
    def refresh(self) -> None:
        pass


def process(*arguments: object, **environment: str) -> dict[str, Any]:
    """Warm a function and fold rows with it in another process; return how many loops were compiled."""
    path = os.pathsep.join([str(ROOT / "service"), str(ROOT)])
    process = subprocess.run(
        [sys.executable, "-c", _PROCESS, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    actual: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert (actual["how"], actual["kinds"]) == ("compiled", ["compiled"])
    assert actual["outputs"] == [2]
    return actual


@pytest.fixture(scope="module")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled loops of another process."""
    folder = tmp_path_factory.mktemp("caches") / "foldflight"
    assert process(XDG_CACHE_HOME=str(folder.parent), NUMBA_CACHE_DIR="")["compiled"] > 0
    return folder


@pytest.mark.slow
def test_the_second_process_compiles_nothing(filled_folder: Path) -> None:
    """By default the user's cache folder keeps the loops of one process, and the next one loads them."""
    assert sorted(path.suffix for path in filled_folder.iterdir()) == [".fold", ".fold_nulls", ".merge", ".values"]
    assert filled_folder.stat().st_mode & 0o777 == 0o700
    assert process(XDG_CACHE_HOME=str(filled_folder.parent), NUMBA_CACHE_DIR="")["compiled"] == 0


@pytest.mark.slow
def test_a_loaded_loop_is_its_machine_code_only(filled_folder: Path, tmp_path: Path) -> None:
    """No other code is compiled with it, and it counts no references in numba's memory."""
    compiling_process = process(tmp_path / "new")
    assert compiling_process["memory"]
    assert compiling_process["forms"] == compiling_process["loops"] > 0
    loading_process = process(XDG_CACHE_HOME=str(filled_folder.parent), NUMBA_CACHE_DIR="")
    assert (loading_process["forms"], loading_process["objects"], loading_process["memory"]) == (0, 0, False)
    assert loading_process["loops"] == compiling_process["loops"]


@pytest.mark.slow
def test_damaged_files_are_compiled_again(filled_folder: Path, tmp_path: Path) -> None:
    """A damaged, changed or empty file is not executed, and is replaced."""
    folder = tmp_path / "damaged"
    folder.mkdir(mode=0o700)
    for path, damage in zip(
        sorted(filled_folder.iterdir()),
        (
            lambda data: data[:-9],
            lambda data: data[:900] + b"\0" + data[901:],
            lambda data: b"",
            lambda data: data[32:],
        ),
        strict=True,
    ):
        (folder / path.name).write_bytes(damage(path.read_bytes()))
    assert process(folder)["compiled"] > 0
    assert process(folder)["compiled"] == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data[:40] + b"\0" + data[41:],
        lambda data: b"",
        lambda data: data[32:],
        lambda data: data,
    ],
    ids=["cut", "changed", "empty", "without its digest", "of something else"],
)
def test_damaged_files_are_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any) -> None:
    """A file that is not whole, or does not hold a loop, is not run, and the log warns of it with the reason."""
    loop = LoopStore(tmp_path / "foldflight").loop("a digest", "fold")
    loop.save_overload(None, _Loop())
    loop.path.write_bytes(damage(loop.path.read_bytes()))
    assert loop.load_overload(None, _Target()) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "is damaged (" in record.getMessage()
    assert "; its code is compiled again, and replaces the file" in record.getMessage()


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that others may write to is not used, which is logged once."""
    store = LoopStore(tmp_path / "foldflight")
    loop, other = store.loop("a digest", "fold"), store.loop("a digest", "merge")
    loop.save_overload(None, _Loop())
    store.folder.chmod(0o777)
    with caplog.at_level(logging.INFO, "foldflight"):
        assert loop.load_overload(None, _Target()) is None
        other.save_overload(None, _Loop())
    assert not other.path.exists()
    assert [record.getMessage().count("can be written to by others") for record in caplog.records] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["others", "no folder"])
def test_a_folder_that_cannot_be_used_costs_time_only(filled_folder: Path, tmp_path: Path, problem: str) -> None:
    """A folder that others can write to is not read, and an unwritable one not used; each is logged once."""
    folder = tmp_path / "foldflight"
    if problem == "others":
        folder.mkdir()
        folder.chmod(0o777)
        for path in filled_folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    else:
        folder.write_text("a file where the folder should be")
    actual = process(folder)
    assert actual["compiled"] > 0
    warnings_logged = [line for line in actual["lines"] if "folder of compiled code" in line]
    assert len(warnings_logged) == 1
    assert ("can be written to by others" in warnings_logged[0]) == (problem == "others")


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a file cannot be put in place, as on a full disk, no partial file is left."""
    folder = tmp_path / "foldflight"
    loop = LoopStore(folder).loop("a digest", "fold")
    loop.path.mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "foldflight"):
        loop.save_overload(None, _Loop())
    assert list(folder.iterdir()) == [loop.path]
    assert "cannot be written to" in caplog.text


def test_two_processes_may_drop_old_files_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another process has deleted meanwhile is ignored; the oldest of the others is deleted."""
    monkeypatch.setattr("foldflight.ext.compiler.store._FILES_MAX", 2)
    list_folder = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [*list_folder(folder), folder / f"{'0' * 32}.meanwhile"])
    with caplog.at_level(logging.WARNING, "foldflight"):
        for place, name in enumerate(("one", "two", "three")):
            loop = LoopStore(tmp_path / "foldflight").loop("a digest", name)
            loop.save_overload(None, _Loop())
            if name != "three":
                os.utime(loop.path, (place, place))
    assert sorted(path.suffix for path in list_folder(tmp_path / "foldflight")) == [".three", ".two"]
    assert not caplog.text


def test_only_files_that_a_store_writes_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of servers that share the folder stays, though it is the oldest file; a draft that is left does not."""
    monkeypatch.setattr("foldflight.ext.compiler.store._FILES_MAX", 2)
    store = LoopStore(tmp_path / "foldflight")
    store.loop("a digest", "one").save_overload(None, _Loop())
    for name in (".compiling", ".4242.draft"):
        (store.folder / name).touch()
        os.utime(store.folder / name, (1, 1))
    store.loop("a digest", "two").save_overload(None, _Loop())
    assert sorted(path.suffix for path in store.folder.iterdir()) == ["", ".one", ".two"]
    assert (store.folder / ".compiling").exists()


REFUSED = """
from foldflight import udaf

class Total:
    total: int
    def __init__(self): self.total = 0

@udaf
class Mixed:
    def create_accumulator(self) -> Total: return Total()
    def accumulate(self, accumulator: Total, value: int) -> None:
        step = 0.5 if value > 3 else value
        accumulator.total += int(step)
    def get_value(self, accumulator: Total) -> int: return accumulator.total

@udaf
class Plain(Mixed):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += value
"""


def test_refusals_are_stored_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason that only compiling finds is found once, and listings tell it from then on, with the line of now."""
    module, folder = tmp_path / "refused.py", tmp_path / "compiled"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write_module(source: str) -> Function:
        module.write_text(source)
        sys.modules.pop("refused", None)
        importlib.invalidate_caches()
        function = function_of(importlib.import_module("refused").Mixed)
        assert isinstance(function, Function)
        return function

    def listed_mode(function: Function) -> str:
        return str(Programs(LoopStore(folder)).folding(function))

    def compile_module() -> list[str]:
        result = CliRunner().invoke(cli, ["compile", "embedded:refused", "--into", str(folder)])
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    mixed_function = write_module(REFUSED)
    assert listed_mode(mixed_function) == "compiled when hot"
    output_lines = compile_module()
    assert output_lines[0].startswith("mixed: interpreted: ")
    assert output_lines[0].endswith("(refused.py:12)")
    assert output_lines[1] == "plain: compiled"
    assert listed_mode(mixed_function) == output_lines[0].removeprefix("mixed: ")
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert compile_module() == output_lines
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
    (refusal,) = folder.glob("*.no.*")
    refusal.write_text("another reason")
    assert compile_module()[0] == "mixed: interpreted: another reason"
    moved_function = write_module(f"\n{REFUSED}")
    assert listed_mode(moved_function) == "compiled when hot"
    assert compile_module()[0].endswith("(refused.py:13)")
    folder.chmod(0o777)
    assert listed_mode(moved_function) == "compiled when hot", "others may write to it, so its reasons are not read"


INTERPRETED_METHODS = """
from foldflight import udaf

@udaf
class Middle:
    def create_accumulator(self) -> list[float]: return []
    def accumulate(self, accumulator: list[float], value: float) -> None: accumulator.append(value)
    def get_value(self, accumulator: list[float]) -> int: return hash(len(accumulator))

@udaf
class FirstOfSet:
    def create_accumulator(self) -> set[int]: return set()
    def accumulate(self, accumulator: set[int], value: int) -> None: accumulator.add(value)
    def get_value(self, accumulator: set[int]) -> int | None:
        for value in accumulator:
            return value
        return None

@udaf
class Plain(Middle):
    def get_value(self, accumulator: list[float]) -> int: return len(accumulator)
"""


@pytest.mark.every_turn
def test_a_listing_has_the_words_of_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later process lists the methods that are interpreted, and refuses a class because of one, as compiling does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "interpreted_methods.py").write_text(INTERPRETED_METHODS)
    module, store = importlib.import_module("interpreted_methods"), LoopStore(tmp_path / "compiled")
    functions = [function_of(getattr(module, name)) for name in ("Middle", "FirstOfSet", "Plain")]
    before = [str(Programs(store).folding(function)) for function in functions]
    assert before == ["compiled when hot"] * 3
    compiled = [Programs(store).warm(function) for function in functions]
    assert [folding.mode for folding in compiled] == ["compiled", "interpreted", "compiled"]
    assert compiled[0].reason == "get_value is interpreted: it calls hash (interpreted_methods.py:8)"
    assert compiled[1].reason.endswith("and may show the order of a set, which only Python knows")
    listed = [Programs(store).folding(function) for function in functions]
    assert [folding.mode for folding in listed] == ["compiled when hot", "interpreted", "compiled when hot"]
    assert [folding.reason for folding in listed] == [folding.reason for folding in compiled]
    result = CliRunner().invoke(cli, ["compile", "embedded:interpreted_methods", "--into", str(store.folder)])
    assert result.output.splitlines()[0] == f"middle: compiled: {compiled[0].reason}"


def test_a_function_without_a_digest_is_listed(tmp_path: Path) -> None:
    """What keeps the code from being stored keeps it from being compiled, and is the reason that a listing tells."""

    class Endless:
        n = 1

        @property
        def limit(self) -> Endless:
            return Endless()

    endless = Endless()

    @udf
    def reach(x: int) -> int:
        return x + endless.limit.n

    folding_of_function = Programs(LoopStore(tmp_path)).folding(function_of(reach))
    assert "more than 1000 objects" in folding_of_function.reason
