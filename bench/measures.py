"""The measures of the structure: lines of code by room, modules and calls of small work, hashes of a key, analyses.

PYTHONPATH=service:. python -m tests.docs.measures [--spark] [PACKAGE]

PACKAGE is the folder of another version of the package, of which only the lines are counted. `--spark` starts a session
and measures what it takes to plan the simplest GROUP BY in SQL: analyses of Spark, calls of the JVM, and time.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import timeit
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import foldflight
from foldflight import connect
from foldflight.testing import run_epochs
from tests.docs import call_counts

PACKAGE = Path(foldflight.__file__).parent
ROOT = Path(__file__).parents[2]
LATER = (
    "compiler/containers.py",
    "compiler/heap.py",
    "compiler/memory.py",
    "compiler/texts.py",
    "engine/batch/lifted.py",
    "engine/query/lifting.py",
    "lift/",
    "recording/",
    "server/spans.py",
    "client/traced.py",
    "cli/replay.py",
    "spark/expressions.py",
    "spark/finishing.py",
    "spark/lifted.py",
    "spark/tables/",
    "spark/tracing.py",
    "spark/versions/",
    "testing/targets.py",
    "testing/testfile.py",
    "tracing/",
)
"""What came after the goal for lines was set: lifting, tables, recordings, traces, containers and versions of Spark."""

_TIMES = 7
"""How often a statement is planned for its time."""


def code_lines(text: str) -> int:
    """Return the number of lines that are neither blank, nor comments, nor docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and _is_text(first.value):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and place not in documented for place, line in lines)


def _is_text(constant: ast.Constant) -> bool:
    return isinstance(constant.value, str)


def lines_by_room(package: Path) -> tuple[Counter[str], int]:
    """Return the lines of code of each room of a package, and those of what came after the goal."""
    rooms: Counter[str] = Counter()
    later = 0
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        count = code_lines(path.read_text(encoding="utf-8"))
        rooms[name.partition("/")[0] if "/" in name else "."] += count
        later += count if name.startswith(LATER) else 0
    return rooms, later


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
    executor = session._jvm.org.apache.spark.sql.catalyst.rules.RuleExecutor
    executor.resetMetrics()
    run()
    # A rule of a batch that the analyser runs once.
    found = re.search(r"PullOutNondeterministic\s+\d+ / \d+\s+\d+ / (\d+)", executor.dumpTimeSpent())
    return 0 if found is None else int(found.group(1))


def main() -> None:
    """Print the measures."""
    given = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    rooms, later = lines_by_room(given[0] if given else PACKAGE)
    for room, count in sorted(rooms.items()):
        print(f"{count:7,} lines of code in {room}")
    print(f"{rooms.total():7,} in all, {rooms.total() - later:,} without what came after the goal")
    if given:
        return
    for work in (call_counts.embedded_partition, call_counts.remote_chunk, call_counts.remote_barrier):
        calls = work()
        print(f"{calls.total():7,} calls in {len(calls)} modules: {work.__name__}")
    print(f"{hashes_of_a_key():7} hashes of the key of a group in an epoch of a stream")
    glossary = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    print(f"{len(re.findall(r'^[|] .+ [|]$', glossary, re.MULTILINE)) - 1:7} terms in the glossary")
    if "--spark" in sys.argv:
        for name, each in planning().items():
            print(
                f"{each.analyses:7} analyses, {each.calls} calls of the JVM and {each.ms:.0f} ms to plan the simplest "
                f"GROUP BY: {name}"
            )


if __name__ == "__main__":
    main()
