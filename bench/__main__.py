"""`python -m bench`: rows per second of each layer, on this machine, in one run."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rich.console import Console

from bench import (
    builtins,
    change_data,
    corners,
    exchange,
    flink,
    fold,
    gallery,
    memory,
    natural,
    numeric,
    over,
    report,
    sail,
    scalar,
    scan,
    spark_batch,
    spark_stream,
    sql,
    starts,
    traces,
    vectors,
    views,
    waiting,
)
from bench.data import Figure, Sizes
from bench.environments import NotInstalledError
from foldflight.cli.demo import server_process

SUITES = {
    each.SUITE: each.measure
    for each in (
        fold,
        builtins,
        numeric,
        gallery,
        natural,
        vectors,
        exchange,
        starts,
        memory,
        spark_batch,
        scan,
        sail,
        over,
        sql,
        corners,
        spark_stream,
        change_data,
        views,
        scalar,
        traces,
        waiting,
        flink,
    )
}
# Whole runs, which the documents show; `--results` writes suites that were measured alone there, too.
RESULTS = Path(__file__).with_name("results")
# Runs of a part, with other sizes, and interrupted ones.
PARTS = Path(__file__).parents[1] / "build" / "bench"


def main() -> None:
    """Run the suites, print the figures, and write the report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # SystemExit ends the server, too
    console = Console()
    if not console.is_terminal:
        console.width = 160
    arguments = parser().parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder,
        server_process(Path(folder) / "server.log") as url,
    ):
        run(arguments, url, console)


def run(
    arguments: argparse.Namespace,
    url: str,
    console: Console,
    *,
    suites: Mapping[str, Callable[[Sizes], Iterable[Figure]]] = SUITES,
    results: Path = RESULTS,
    parts: Path = PARTS,
) -> None:
    """Run the suites that the command line asks for.

    Args:
        arguments: The result of `parser`.
        url: The URL of a server with `examples.weighted_avg`.
        console: Where figures are printed.
        suites: The suites by name.
        results: The folder for whole runs.
        parts: The folder for all others.
    """
    is_whole = arguments == parser().parse_args([])
    name = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    figures: list[Figure] = []
    sizes = Sizes(arguments.rows, arguments.groups, arguments.stream_groups, url)
    for suite in arguments.only:
        start = time.perf_counter()
        try:
            for each in suites[suite](sizes):
                console.print(f"[dim]{report.line_of(each)}[/]", highlight=False)
                figures.append(each)
        except NotInstalledError as error:
            console.print(f"not measured: {error}")
        console.print(f"{suite} took {time.perf_counter() - start:,.0f} s")
        records = report.records_of(figures)
        for grid in report.grids_of(suite, records):
            console.print(grid.for_console())
        # After each suite, so that a run that is interrupted leaves the figures of those before.
        written = report.write(arguments.results or parts, name, records, _machine())
    if is_whole:
        written = report.write(results, name, records, _machine())
    console.print(report.goals_of(records).for_console())
    for path in written:
        console.print(f"written: {path}")


def _machine() -> str:
    """Return a short description of the machine."""
    model = platform.processor() or platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        models = [line.split(":", 1)[1].strip() for line in facts.read_text().splitlines() if line[:10] == "model name"]
        model = models[0] if models else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument("--rows", type=int, default=2_000_000, help="rows of the data (default: %(default)s)")
    made.add_argument(
        "--groups", type=_numbers, default="100,10000,1000000", help="numbers of keys (default: %(default)s)"
    )
    made.add_argument("--only", nargs="+", choices=SUITES, default=list(SUITES), help="suites (default: all)")
    made.add_argument(
        "--stream-groups",
        type=_numbers,
        default="100000,1000000,5000000",
        help="numbers of groups of streams (default: %(default)s)",
    )
    made.add_argument(
        "--results",
        type=Path,
        help="where records, tables and pictures go (default: bench/results after a run of all suites with the default "
        "sizes, otherwise build/bench)",
    )
    return made


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    main()
