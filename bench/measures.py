"""Measures of the structure: lines of code by room, Python calls of small tasks, hashes of a key, Spark's analyses.

PYTHONPATH=service:. python -m bench.measures [--spark] [PACKAGE]

PACKAGE is the folder of another version of the package: only its lines are counted. `--spark` starts a session and
measures the planning of the simplest GROUP BY in SQL: how often Spark analyses it, calls of the JVM, and time.
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
from bench import call_counts
from foldflight import connect
from foldflight.testing import run_epochs

PACKAGE = Path(foldflight.__file__).parent
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
