"""Which functions are compiled, why others are not, and the reuse of compiled code by later processes."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from numba.core.event import install_recorder

from examples.weighted_avg import WeightedAvg
from foldflight import FoldflightError, connect, udaf
from foldflight.cli.main import cli
from foldflight.exchange.frames import Open
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compiled import CompiledAccumulators
from foldflight.ext.compiler.kernels import Kernels
from foldflight.ext.compiler.kernels import __file__ as kernels_file
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.mode import Unsupported
from foldflight.functions import Call, Registry
from foldflight.functions.author.udaf import function_of
from foldflight.shipping.bundles import unpickle
from foldflight.shipping.pickling import pickle_functions
from foldflight.testing import check_laws
from tests.folds import open_fold

ROOT = Path(__file__).parents[2]


class Total:
    total: int

    def __init__(self) -> None:
        self.total = 0


class Totals:
    def create_accumulator(self) -> Total:
        return Total()

    def get_value(self, accumulator: Total) -> int:
        return accumulator.total


@udaf
class Tries(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        with nullcontext():
            accumulator.total += value


@udaf
class Texts(Totals):
    def accumulate(self, accumulator: Total, value: str) -> None:
        accumulator.total += len(value.swapcase())


@udaf(compile=False)
class Never(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += value


class Plain(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += value


@udaf
class Opened(Totals):
    def open(self, context: Any) -> None:
        self.step = 2

    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += value * self.step


@udaf
class HidesNumber(Totals):
    limit: Any = 0

    def __init__(self) -> None:
        self.limit = None

    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += value if self.limit is None else self.limit


@udaf
class HidesMethod(Totals):
    def __init__(self) -> None:
        self.step = lambda value: 10 * value

    def step(self, value: int) -> int:
        return value

    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += self.step(value)


_STEPS: dict[int, int] = {}


@udaf
class AsksForTruth(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += 2 if _STEPS else value


def _named(value: int, *, step: int = 2) -> int:
    return value * step


@udaf
class CallsByName(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += _named(value)


@udaf
class Mixed(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        step = 0.5 if value > 3 else value
        accumulator.total += int(step)


@udaf
class Powers(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += pow(value, 2, 7)


@udaf
class Comprehends(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += max(value, 1, key=lambda each: -each)


@udaf(compile=True)
class MustTry(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total += len(ascii(value))


@udaf(input_types=["T"], compile=True)
class MustBind(Totals):
    def accumulate(self, accumulator: Total, value: Any) -> None:
        accumulator.total += value


@udaf(compile=True)
class MustTakeNulls(Totals):
    """Without NULL its variable is an int; with NULL it may be None."""

    def accumulate(self, accumulator: Total, value: int) -> None:
        step = 0
        step = value
        if value is None:
            step = 0.5
        accumulator.total += int(step)


PROGRAMS = Programs(LoopStore("user"))


def place(cls: Any, line: int = 0) -> str:
    """Return the place that a reason names: the file, and a line of accumulate."""
    return f"test_programs.py:{cls.accumulate.__code__.co_firstlineno + line}"


def mode_of(cls: type, programs: Programs = PROGRAMS) -> str:
    function = function_of(cls)
    assert function is not None
    return str(programs.folding(function))


def warm(cls: type, programs: Programs = PROGRAMS) -> str:
    function = function_of(cls)
    assert function is not None
    return str(programs.warm(function))


@pytest.mark.parametrize(
    ("cls", "how"),
    [
        (Tries, f"interpreted: accumulate uses with ({place(Tries, 1)})"),
        (Texts, f"interpreted: it uses the attribute swapcase of a value ({place(Texts, 1)})"),
        (Never, f"interpreted: compile=False ({place(Never)})"),
        (
            HidesNumber,
            f"interpreted: its instance attribute limit hides the class attribute of that name ({place(HidesNumber)})",
        ),
        (
            HidesMethod,
            f"interpreted: its instance attribute step hides the class attribute of that name ({place(HidesMethod)})",
        ),
        (AsksForTruth, f"interpreted: it uses {{}} as a condition ({place(AsksForTruth, 1)})"),
        (Powers, f"interpreted: it calls pow ({place(Powers, 1)})"),
        (Comprehends, f"interpreted: it creates a generator or a function ({place(Comprehends, 1)})"),
        (Opened, "decided when bound"),
        (MustBind, "decided when bound"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_mode_of_a_function_is_known_without_compiling(cls: type, how: str) -> None:
    """Most reasons are found without compiling, and compiling gives the same answer."""
    assert mode_of(cls) == how
    assert warm(cls) == how


def test_parameters_by_name_only_are_not_compiled() -> None:
    """A called function that numba cannot call is named, with a reason that authors understand."""
    line = _named.__code__.co_firstlineno
    assert warm(CallsByName) == f"interpreted: _named has keyword-only parameters (test_programs.py:{line})"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("self.note()", "create_accumulator calls or changes note"),
        ("noted.append(1)", "create_accumulator calls or changes append"),
        ("note(self)", "create_accumulator uses note"),
        ("self.made = value = 1", "create_accumulator changes self.made"),
        ("value = 1; self.made = value", "create_accumulator changes self.made"),
        ("global noted; noted = None", "create_accumulator calls or changes noted"),
    ],
)
def test_accumulators_whose_making_shows_elsewhere_are_interpreted(body: str, why: str) -> None:
    """Compiled code makes one accumulator for all slots, so create_accumulator must not have side effects."""
    scope: dict[str, Any] = {"Total": Total, "noted": []}
    exec(f"def note(self): pass\ndef create_accumulator(self): {body}; return Total()", scope)
    scope["create_accumulator"].__annotations__["return"] = Total
    methods = {"create_accumulator": scope["create_accumulator"], "note": scope["note"]}
    assert warm(udaf(type("Makes", (Plain,), methods))) == f"interpreted: {why} (<string>:2)"


@pytest.mark.every_turn
def test_reasons_that_only_compiling_finds_are_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A function without an obvious obstacle is "compiled when hot". If compiling fails, the reason is logged once."""
    programs = Programs(LoopStore(tmp_path))
    with caplog.at_level(logging.INFO, "foldflight"):
        assert mode_of(Mixed, programs) == "compiled when hot"
        why = (
            "a value is a float in one place and a whole number in another; write whole numbers as floats, such as 0.0"
        )
        why = f"interpreted: {why} ({place(Mixed, 1)})"
        assert [warm(Mixed, programs), warm(Mixed, programs), mode_of(Mixed, programs)] == [why] * 3
        assert mode_of(WeightedAvg, programs) == "compiled when hot"
        assert [warm(WeightedAvg, programs), mode_of(WeightedAvg, programs)] == ["compiled"] * 2
    lines = [line for line in caplog.messages if line.startswith("mixed ")]
    assert lines == [f"mixed is interpreted, not compiled: {why.removeprefix('interpreted: ')}"]


@udaf
class LastOf(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        if value is not None:
            accumulator.total = value


def test_a_loop_that_cannot_be_compiled_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the loop for NULLs cannot be compiled, it is tried once, interpreted, and logged once."""
    programs = Programs()  # the folder of the user would keep the refusal for the next run of this test
    tried_loops = []
    compile_loop = Kernels._compile_loop

    def refuse_nulls(kernels: Kernels, name: str, *arguments: Any) -> Any:
        tried_loops.append(name)
        if name == "fold_nulls":
            raise Unsupported("not today")
        return compile_loop(kernels, name, *arguments)

    monkeypatch.setattr(Kernels, "_compile_loop", refuse_nulls)
    registry = Registry.load([LastOf])
    columns = pa.schema([("x", pa.int64())])
    with caplog.at_level(logging.INFO, "foldflight"):
        assert warm(LastOf, programs) == "compiled"
        for rows, kind in (([1, None], "interpreted"), ([1, 2], "compiled"), ([None, 5], "interpreted")):
            fold = open_fold(bind_calls(registry, [Call("last_of", ("x",))], columns), accelerator=programs)
            fold.fold(pa.record_batch([pa.array(rows, pa.int64())], schema=columns))
            assert fold.modes == (kind,)
            assert fold.collect().column("output_0").to_pylist() == [[each for each in rows if each][-1]]
    assert sorted(tried_loops) == ["fold", "fold_nulls", "values"]
    assert [line for line in caplog.messages if "for chunks with a NULL argument" in line] == [
        f"LastOf is interpreted for chunks with a NULL argument: not today ({place(LastOf)})"
    ]


@udaf(skip_nulls=True)
class LastKnown(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        accumulator.total = value


def loops_tried(cls: type, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the loops that folding a NULL, and the values after each row, make of a class; the results are checked."""
    tried_loops = []
    compile_loop = Kernels._compile_loop

    def note(kernels: Kernels, name: str, *arguments: Any) -> Any:
        tried_loops.append(name)
        return compile_loop(kernels, name, *arguments)

    monkeypatch.setattr(Kernels, "_compile_loop", note)
    columns = pa.schema([("x", pa.int64())])
    (call,) = bind_calls(Registry.load([cls]), [Call(Registry.load([cls]).authored[0].name, ("x",))], columns)
    fold = open_fold([call], accelerator=Programs(hot_rows=0), row_outputs=True)
    outputs = fold.fold_each(pa.record_batch([pa.array([4, None, 6], pa.int64())], schema=columns))
    assert outputs.column(0).to_pylist() == [4, 4, 6]
    return tried_loops


def test_null_arguments_need_no_loop_of_their_own_if_their_rows_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With skip_nulls no loop reads a NULL, so the values after each row come from the loop for rows without NULL."""
    assert loops_tried(LastKnown, monkeypatch) == ["fold", "values", "each"]


@udaf
class LastPower(Totals):
    def accumulate(self, accumulator: Total, value: int) -> None:
        if value is not None:
            accumulator.total = value

    def get_value(self, accumulator: Total) -> int:
        return pow(accumulator.total, 1, 97)


def test_a_loop_with_an_interpreted_get_value_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values after each row need get_value, so their loop is not even begun where it is interpreted."""
    assert loops_tried(LastPower, monkeypatch) == ["fold", "values"]


def test_functions_between_loop_and_methods_are_compiled_with_the_loop() -> None:
    """Each function that is compiled by itself is optimised again with all that it calls."""
    with install_recorder("numba:compile") as recorder:
        assert warm(WeightedAvg, Programs()) == "compiled"
    functions = [event.data["dispatcher"].py_func for _, event in recorder.buffer if event.is_start]
    names = [each.__name__ for each in functions if each.__code__.co_filename == kernels_file]
    assert {"fold", "merge", "values"} <= {*names}
    assert "one_row" not in names


def test_compile_true_fails_before_the_first_row() -> None:
    """connect, the laws and the start of a server refuse it with the reason before any row."""
    from foldflight.server.run.lifecycle import serving

    for refuses in (lambda: connect(MustTry), lambda: check_laws(MustTry), lambda: serving(MustTry).__enter__()):
        with pytest.raises(
            FoldflightError,
            match=r"^SIGNATURE: must_try is declared compile=True .*: it calls ascii .test_programs.py:\d+.; ",
        ):
            refuses()
    with pytest.raises(FoldflightError, match="must_take_nulls is declared"):
        connect(MustTakeNulls)


def test_shipped_annotations_keep_their_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function with postponed annotations is compiled where its module is missing, as in Spark's workers."""
    (tmp_path / "module_that_stays_here.py").write_text(
        "from __future__ import annotations\nfrom typing import Annotated\nfrom foldflight import udaf\n\n"
        "class Counts:\n    counts: Annotated[list[int], 4]\n    highest: int | None\n\n"
        "@udaf(compile=True)\nclass Highest:\n    def create_accumulator(self) -> Counts:\n"
        "        counts = Counts()\n        counts.counts = [0] * 4\n        counts.highest = None\n"
        "        return counts\n"
        "    def accumulate(self, a: Counts, x: int) -> None:\n        a.counts[x] += 1\n"
        "        a.highest = x if a.highest is None else max(x, a.highest)\n"
        "    def get_value(self, a: Counts) -> int | None:\n        return a.highest\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    here = function_of(importlib.import_module("module_that_stays_here").Highest)
    assert here is not None
    code = pickle_functions([here])
    monkeypatch.delitem(sys.modules, "module_that_stays_here")
    (there,) = unpickle(code, hashlib.sha256(code).hexdigest())
    columns = pa.schema([("slot", pa.int32()), ("x", pa.int64())])
    fold = open_fold(bind_calls(Registry([there]), [Call("highest", ("x",))], columns), accelerator=Programs())
    fold.fold(pa.record_batch([pa.array([0, 0], pa.int32()), pa.array([1, 3])], schema=columns))
    assert fold.modes == ("compiled",)
    assert fold.collect().column("output_0").to_pylist() == [3]


def test_the_listing_names_code_that_cannot_be_compiled(tmp_path: Path) -> None:
    """`foldflight functions` prints one line with the reason."""
    (tmp_path / "module_that_must_compile.py").write_text(
        "from foldflight import udaf\n\n@udaf(compile=True)\nclass Must:\n    def create_accumulator(self) -> int:\n"
        "        return 0\n    def accumulate(self, a: int, x: int) -> int:\n        return int.__add__(a, x)\n"
        "    def get_value(self, a: int) -> int:\n        return a\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        result = CliRunner().invoke(cli, ["functions", "embedded:module_that_must_compile"])
    finally:
        sys.path.remove(str(tmp_path))
    assert result.exit_code == 1
    assert "must is declared compile=True and cannot be compiled: it calls int.__add__" in result.output


def test_compile_true_of_open_types_fails_when_they_are_known() -> None:
    """With type variables a function is registered; `describe` refuses types that cannot be compiled."""
    transport = connect(MustBind).transport
    for type_, is_unsupported in ((pa.int64(), False), (pa.string(), True)):
        open_request = Open(calls=(Call("must_bind", ("x",)),), columns=pa.schema([("slot", pa.int32()), ("x", type_)]))
        if is_unsupported:
            with pytest.raises(FoldflightError, match=r"must_bind is declared .*: \+ of int and text"):
                transport.describe(open_request)
        else:
            transport.describe(open_request)


def test_the_listing_shows_compiled_code() -> None:
    """Table and --json show how each function is folded, and why one is interpreted."""
    shown = CliRunner().invoke(cli, ["functions", "embedded:tests.unit.listed_functions"], env={"COLUMNS": "200"})
    assert "interpreted because: accumulate uses with (" in shown.output
    json_result = CliRunner().invoke(cli, ["functions", "embedded:tests.unit.listed_functions", "--json"])
    result = {info["name"]: info["folded"] for info in json.loads(json_result.output)}
    assert (result["max"], result["first"]) == ("vectorised", "decided when bound")
    assert result["careful"] == "interpreted: accumulate uses with (listed_functions.py:23)"
    assert result["plain"] in ("compiled when hot", "compiled")


def test_states_and_outputs_count_like_rows() -> None:
    """An epoch of few rows takes as long for states and outputs as for rows, so they make a function hot, too."""
    row_counts: list[int] = []

    class Counting(Programs):
        def accumulators(self, inner: InterpretedAccumulators) -> GroupsAccumulator:
            return CompiledAccumulators(inner, row_counts.append)

    columns = pa.schema([("slot", pa.int32()), ("v", pa.int64()), ("w", pa.int32())])
    rows = pa.RecordBatch.from_pylist([{"slot": slot, "v": 7, "w": 1} for slot in range(3)], columns)
    calls = bind_calls(Registry.load(["examples.weighted_avg"]), [Call("weighted_avg", ("v", "w"))], columns)
    fold = open_fold(calls, accelerator=Counting())
    fold.fold(rows)
    assert fold.collect().column("output_0").to_pylist() == [7, 7, 7]
    assert sum(row_counts) == 9
