"""`python -m bench`: rows a second of each layer, on this machine, in one run."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import exchange, flink, fold, spark_batch, spark_stream
from bench.data import Measured
from bench.spark_stream import Epochs
from foldflight.cli.demo import server_process

SUITES = ["fold", "exchange", "spark", "stream", "flink"]


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the server ends with the bench
    arguments = _parser().parse_args()
    groups = [int(each) for each in arguments.groups.split(",")]
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder,
        server_process(Path(folder) / "server.log") as url,
    ):
        if "fold" in arguments.only:
            found = [each for count in groups for each in fold.measure(arguments.rows, count, url)]
            console.print(table_of("The fold, one process, one call of weighted_avg", found, "fold, interpreted"))
        if "exchange" in arguments.only:
            console.print(exchanges_of(arguments.rows, url))
            console.print(round_trips_of(url))
        if "spark" in arguments.only:
            found = list(spark_batch.measure(arguments.rows, groups, url))
            console.print(table_of("The same in Spark, local[*]", found, spark_batch.BUILT_IN))
        if "stream" in arguments.only:
            console.print(rates_of(list(spark_stream.throughput(url))))
            totals = [int(each) for each in arguments.stream_groups.split(",")]
            console.print(epochs_of(list(spark_stream.touched(url, totals))))
    if "flink" in arguments.only:
        try:
            found = list(flink.measure(arguments.rows // 4, 1_000))
        except flink.NotInstalledError as error:
            console.print(f"PyFlink cannot be installed here, so it is not measured: {error}")
        else:
            console.print(table_of("PyFlink, two tasks, startup left out", found, flink.GENERAL))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the data (default: %(default)s)")
    parser.add_argument("--groups", default="100,10000,1000000", help="numbers of keys (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument(
        "--stream-groups", default="100000,1000000,5000000", help="numbers of groups of streams (default: %(default)s)"
    )
    return parser


def exchanges_of(rows: int, url: str) -> Table:
    """Return a table of servers by streams at once and rows of a chunk: M rows a second, and the ratio to draining."""
    shown = Table(title="The exchange over loopback; M rows/s (ratio to: draining server)", title_justify="left")
    for name in ("streams", "rows of a chunk", "draining server", "echoing server", "foldflight"):
        shown.add_column(name, justify="right")
    for streams in (1, 2, 4):
        for chunk_rows in (1 << 10, 1 << 14, 1 << 16, 1 << 18):
            found = {each.way: each for each in exchange.measure(rows, url, chunk_rows, streams)}
            drained = found["draining server"].rows_per_second
            cells = [
                f"{each.rows_per_second / 1e6:.1f} ({each.rows_per_second / drained:.2f})" for each in found.values()
            ]
            shown.add_row(str(streams), f"{chunk_rows:,}", *cells)
    return shown


def round_trips_of(url: str) -> Table:
    """Return a table of how long an empty round trip and a barrier take."""
    shown = Table("way", "p50, us", "p99, us", title="Round trips over loopback", title_justify="left")
    for way, p50, p99 in exchange.round_trips(url):
        shown.add_row(way, f"{p50:.0f}", f"{p99:.0f}")
    return shown


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


def rates_of(found: list[Epochs]) -> Table:
    """Return a table of rows a second."""
    base = found[0].rows / found[0].typical_s
    shown = Table(title=f"A stream over {found[0].groups:,} groups, its ratio to: {found[0].way}", title_justify="left")
    for column in ("way", "rows an epoch", "seconds an epoch", "rows/s", "ratio"):
        shown.add_column(column, justify="left" if column == "way" else "right")
    for each in found:
        rate = each.rows / each.typical_s
        shown.add_row(each.way, f"{each.rows:,}", f"{each.typical_s:.2f}", f"{rate:,.0f}", f"{rate / base:.3f}")
    return shown


def epochs_of(found: list[Epochs]) -> Table:
    """Return a table of ways by numbers of groups: the median and the longest epoch, and the ratio of medians."""
    base = {each.groups: each.typical_s for each in found if each.way == spark_stream.BUILT_IN}
    title = f"Seconds of an epoch that touches {found[0].rows:,} groups: median, longest (multiple of the first median)"
    shown = Table("way", title=title, title_justify="left")
    for total in base:
        shown.add_column(f"{total:,} groups in all", justify="right")
    for way in dict.fromkeys(each.way for each in found):
        cells = [
            f"{each.typical_s:.2f}, {max(each.seconds):.2f} ({each.typical_s / base[each.groups]:.2f})"
            for each in found
            if each.way == way
        ]
        shown.add_row(way, *cells)
    return shown


def _cell(by_place: dict[tuple[str, int], Measured], way: str, base: str, count: int) -> str:
    each = by_place.get((way, count))
    if each is None:
        return "-"
    ratio = each.rows_per_second / by_place[base, count].rows_per_second
    return f"{each.rows_per_second / 1e6:.2f} ({ratio:.2f})"


if __name__ == "__main__":
    main()
