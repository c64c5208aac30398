"""Measures of the structure: lines of code, modules and their imports, calls of small tasks, hashes of a key, analyses.

PYTHONPATH=service:. python -m bench.measures [--spark] [PACKAGE]

PACKAGE is the folder of another version of the package: only its lines and modules are measured. `--spark` starts a
session and measures the planning of the simplest GROUP BY in SQL: how often Spark analyses it, calls of the JVM, and
time.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import timeit
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import foldflight
from bench import call_counts
from foldflight import connect
from foldflight.testing import run_epochs

PACKAGE = Path(foldflight.__file__).parent
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_SHORT_LINES = 5  # of a function, with its docstring
_TIMES = 7  # how often a statement is planned: the time is the median


def code_lines(text: str) -> int:
    """Return the number of lines that are neither blank, nor comments, nor docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in docstrings for number, line in lines)


def lines_by_room(package: Path) -> Counter[str]:
    """Return the lines of code of each room of a package; `.` is the package's own modules."""
    rooms: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        rooms[name.partition("/")[0] if "/" in name else "."] += code_lines(path.read_text(encoding="utf-8"))
    return rooms


def structure(package: Path) -> dict[str, float]:
    """Return measures of the modules of a package, of their imports and of the length of functions."""
    paths = {_module_of(path, package): path for path in package.rglob("*.py")}
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in paths.items()}
    modules = [module for module, path in paths.items() if path.name != "__init__.py"]
    importers = Counter(each for module, tree in trees.items() for each in _imports(tree, paths) - {module})
    loads = {module: _imports(tree, paths, at_load=True) - {module} for module, tree in trees.items()}
    names = Counter(module.rpartition(".")[2] for module in modules)
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    short_count = sum((node.end_lineno or 0) - node.lineno < _SHORT_LINES for node in functions)
    return {
        "modules without __init__": len(modules),
        "modules imported by one other": sum(importers[module] == 1 for module in modules),
        "modules in the longest chain of imports": max(_depth(module, loads, {}) for module in loads),
        "names of modules in several rooms": sum(count > 1 for count in names.values()),
        f"percent of functions with at most {_SHORT_LINES} lines": round(100 * short_count / len(functions), 1),
    }


def _module_of(path: Path, package: Path) -> str:
    return ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")


def _imports(node: ast.AST, modules: Collection[str], *, at_load: bool = False) -> set[str]:
    """Return the modules that code imports. `at_load`: not those within functions or for annotations only."""
    imported: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            imported.update(alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            members = {f"{child.module}.{alias.name}" for alias in child.names}
            imported |= {each if each in modules else child.module for each in members}
        elif at_load and (isinstance(child, _FUNCTIONS) or _is_for_annotations(child)):
            continue
        else:
            imported |= _imports(child, modules, at_load=at_load)
    return imported & set(modules)


def _is_for_annotations(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _depth(module: str, loads: Mapping[str, set[str]], known: dict[str, int]) -> int:
    if module not in known:
        known[module] = 1  # for imports in a circle, which do not count again
        known[module] = 1 + max((_depth(each, loads, known) for each in loads[module]), default=0)
    return known[module]


def hashes_of_a_key() -> float:
    """Return how often a stream hashes the key of a group in an epoch."""
    rows: list[dict[str, Any]] = [{"name": f"group {number % 100}", "value": number} for number in range(300)]
    with call_counts.counted() as calls:
        run_epochs({"total": connect("embedded:")["sum"]("value")}, [rows], keys=["name"])
    return round(calls["engine/keys/hashes.py"] / 100, 1)


class Planning(NamedTuple):
    """What it takes to plan a statement, without an action: the median of several times."""

    analyses: int
    calls: int  # of the JVM, through py4j
    ms: float


def planning() -> dict[str, Planning]:
    """Return what the plan of the simplest GROUP BY takes, in SQL with a function and in plain SQL."""
    from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import SparkSession

    from foldflight.spark import register, sql

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.range(3).createOrReplaceTempView("numbers")
    register(session, connect(call_counts.Total))
    statements: dict[str, Callable[[], object]] = {
        "function": lambda: sql(session, "SELECT id % 2 AS k, total(id) AS n FROM numbers GROUP BY id % 2"),
        "plain": lambda: session.sql("SELECT id % 2 AS k, sum(id) AS n FROM numbers GROUP BY id % 2"),
    }
    measured = {}
    for name, run in statements.items():
        times = [timeit.timeit(run, number=1) for _ in range(_TIMES + 1)][1:]
        # Messages that release objects of the JVM begin with m, and come when Python collects garbage.
        send = GatewayClient.send_command
        with mock.patch.object(GatewayClient, "send_command", autospec=True, side_effect=send) as sent:
            run()
        calls = sum(not call.args[1].startswith("m") for call in sent.call_args_list)
        measured[name] = Planning(analyses(session, run), calls, 1000 * statistics.median(times))
    session.stop()
    return measured


def analyses(session: Any, run: Callable[[], object]) -> int:
    """Return how often Spark analyses a plan while something runs in a session of classic PySpark."""
    executor = session._jvm.org.apache.spark.sql.catalyst.rules.RuleExecutor  # noqa: SLF001
    executor.resetMetrics()
    run()
    # A rule of a batch that the analyser runs once.
    found = re.search(r"PullOutNondeterministic\s+\d+ / \d+\s+\d+ / (\d+)", executor.dumpTimeSpent())
    return 0 if found is None else int(found.group(1))


def main() -> None:
    """Print the measures."""
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    rooms = lines_by_room(folders[0] if folders else PACKAGE)
    for room, count in sorted(rooms.items()):
        print(f"{count:7,} lines of code in {room}")
    print(f"{rooms.total():7,} lines of code in all")
    for name, measure in structure(folders[0] if folders else PACKAGE).items():
        print(f"{measure:7} {name}")
    if folders:
        return
    for work in (call_counts.embedded_partition, call_counts.remote_chunk, call_counts.remote_barrier):
        calls = work()
        print(f"{calls.total():7,} calls in {len(calls)} modules: {work.__name__}")
    print(f"{hashes_of_a_key():7} hashes of the key of a group in an epoch of a stream")
    if "--spark" in sys.argv:
        for name, each in planning().items():
            print(
                f"{each.analyses:7} analyses, {each.calls} calls of the JVM and {each.ms:.0f} ms to plan the simplest "
                f"GROUP BY: {name}"
            )


if __name__ == "__main__":
    main()
