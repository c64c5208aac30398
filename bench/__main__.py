"""`python -m bench`: rows a second of each layer, on this machine, in one run."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import fold, spark_batch
from bench.data import Measured
from foldflight.cli.demo import server_process


def main() -> None:
    """Measure and print."""
    arguments = _parser().parse_args()
    groups = [int(each) for each in arguments.groups.split(",")]
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder,
        server_process(Path(folder) / "server.log") as url,
    ):
        if "fold" in arguments.only:
            found = [each for count in groups for each in fold.measure(arguments.rows, count, url)]
            console.print(table_of("The fold, one process, one call of weighted_avg", found, "fold alone"))
        if "spark" in arguments.only:
            found = list(spark_batch.measure(arguments.rows, groups, url))
            console.print(table_of("The same in Spark, local[*]", found, spark_batch.BUILT_IN))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the data (default: %(default)s)")
    parser.add_argument("--groups", default="100,10000,1000000", help="numbers of keys (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=["fold", "spark"], default=["fold", "spark"])
    return parser


def table_of(title: str, measured: Iterable[Measured], base: str) -> Table:
    """Return a table of ways by numbers of groups: M rows a second, and the ratio to the way `base`."""
    found = list(measured)
    groups = sorted({each.groups for each in found})
    by_place = {(each.way, each.groups): each for each in found}
    shown = Table(title=f"{title}; M rows/s (and its ratio to: {base})", title_justify="left")
    shown.add_column("way")
    for count in groups:
        shown.add_column(f"{count:,} groups", justify="right")
    for way in dict.fromkeys(each.way for each in found):
        shown.add_row(way, *(_cell(by_place, way, base, count) for count in groups))
    return shown


def _cell(by_place: dict[tuple[str, int], Measured], way: str, base: str, count: int) -> str:
    each = by_place.get((way, count))
    if each is None:
        return "-"
    ratio = each.rows_per_second / by_place[base, count].rows_per_second
    return f"{each.rows_per_second / 1e6:.2f} ({ratio:.2f})"


if __name__ == "__main__":
    main()
