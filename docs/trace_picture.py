"""Draw the trace of the guide `trace-a-query.md` from a real run: `python docs/trace_picture.py`.

A Spark task folds on two servers. The first one is killed, and on the other a row raises. The spans are those that
arrive at a collector; the picture cuts the time in which none of their edges lies.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "service")]

from pyspark.errors import PySparkException  # noqa: E402

from foldflight import connect  # noqa: E402
from foldflight.cli.local_session import local_spark  # noqa: E402
from foldflight.spark import group_by  # noqa: E402
from tests.collector import Seen, collecting  # noqa: E402
from tests.wire.kit import ServerProcess  # noqa: E402

_NAMES = ("query", "task", "exchange", "barrier", "reopen", "wait", "fold")
_COLOURS = {"foldflight": "#3b82f6", "foldflight-server": "#0d9488"}
_FAILED = "#dc2626"
_ROW, _TOP, _BAR = 34, 44, 14
# A part of the time without the edge of a span is drawn as if it lasted this part of the whole.
_GAP_MAX = 0.12


def traced() -> list[Seen]:
    """Return the spans of a query whose first server is killed, and whose second one meets a row that raises."""
    with tempfile.TemporaryDirectory() as folder, collecting() as collector, local_spark("a trace") as spark:
        settings = {"modules": "tests.wire.traced_functions", "otlp_endpoint": collector.url}
        servers = [ServerProcess(settings, Path(folder) / f"{number}.log") for number in range(2)]
        try:
            for each in servers:
                each.await_ready()
            urls = ",".join(each.url for each in servers)
            once = {"once": str(Path(folder) / "once")}
            functions = connect(urls, otlp_endpoint=collector.url, job_parameters=once)
            last = "CASE id WHEN 1900000 THEN 7 WHEN 1999999 THEN 13 ELSE 1 END"
            rows = spark.range(0, 2_000_000, numPartitions=1).selectExpr(
                "id % 1000 AS key", f"CAST({last} AS BIGINT) AS v"
            )
            try:
                group_by(rows, "key").agg(n=functions.fatal("v")).collect()
            except PySparkException:
                wanted = {"query", "task", "exchange", "reopen", "fold"}
                spans = collector.wait(lambda spans: wanted <= {each.name for each in spans})
            else:
                raise AssertionError("the row of 13 did not raise")
        finally:
            for each in servers:
                each.end()
    return spans


def drawn(spans: Sequence[Seen], *, width: int, labels: int) -> str:
    """Return the picture.

    Args:
        spans: The spans of one trace.
        width: Its width in pixels.
        labels: The width of the names; 0: they stand above the bars.
    """
    rows = _in_order(spans)
    places = _places(spans)
    left, room = labels + 12, width - labels - 24
    height = _TOP + _ROW * len(rows) + 66
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title"',
        f'     font-family="{font}" font-size="14">',
        '<title id="title">A trace from a query to the line of a function that raised</title>',
        f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="10" fill="#ffffff" stroke="#cbd5e1"/>',
        '<text x="12" y="26" font-weight="600" fill="#0f172a">One trace of a failing query</text>',
    ]
    at = {each.id: place for place, (each, _) in enumerate(rows)}
    for place, (span, depth) in enumerate(rows):
        y = _TOP + _ROW * place
        begin, end = (left + room * places[edge] for edge in (span.began_ns, span.ended_ns))
        size = f'width="{max(end - begin, 3):.1f}" height="{_BAR}" rx="3" fill="{_COLOURS[span.service]}"'
        bar = f'<rect x="{begin:.1f}" y="{y + 15}" {size}/>'
        indent = 12 * depth if labels else 8 * depth
        baseline = y + (27 if labels else 11)
        time = f'<tspan fill="#64748b" font-size="12"> {_duration(span)}</tspan>'
        if span.failed:
            time += f'<tspan fill="{_FAILED}" font-size="12"> {span.attributes["error.type"]}</tspan>'
        parts += [bar, f'<text x="{12 + indent}" y="{baseline}" fill="#0f172a">{span.name}{time}</text>']
        for _, before in span.links:
            other, x = _TOP + _ROW * at[before] + 15 + _BAR, begin + 1.5
            parts.append(
                f'<path d="M{x:.1f} {y + 14} V{other + 4}" stroke="#64748b" stroke-dasharray="3 2" fill="none"/>'
                f'<path d="M{x - 4:.1f} {other + 9} l4 -7 l4 7 z" fill="#64748b"/>'
            )
    return "\n".join([*parts, *_told(rows, height - 50, width), "</svg>"]) + "\n"


def _in_order(spans: Sequence[Seen]) -> list[tuple[Seen, int]]:
    """Return the spans with their depths: each above those that it is the parent of."""
    rows: list[tuple[Seen, int]] = []

    def add(parent: str, depth: int) -> None:
        for each in sorted((each for each in spans if each.parent == parent), key=lambda each: each.began_ns):
            if each.name in _NAMES:
                rows.append((each, depth))
                add(each.id, depth + 1)

    add("", 0)
    return rows


def _places(spans: Sequence[Seen]) -> dict[int, float]:
    """Return the place of each edge of a span, from 0 to 1; long parts without edges are cut."""
    edges = sorted({edge for each in spans for edge in (each.began_ns, each.ended_ns)})
    whole = edges[-1] - edges[0]
    steps = [min(after - before, whole * _GAP_MAX) for before, after in pairwise(edges)]
    places, place = {edges[0]: 0.0}, 0.0
    for edge, step in zip(edges[1:], steps, strict=True):
        place += step
        places[edge] = place / sum(steps)
    return places


def _duration(span: Seen) -> str:
    seconds = (span.ended_ns - span.began_ns) / 1e9
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _told(rows: Sequence[tuple[Seen, int]], y: int, width: int) -> list[str]:
    """Return the error of the last span that failed on a server, and what the colours mean."""
    span = next(each for each, _ in reversed(rows) if each.failed and each.name == "fold")
    error = span.error
    where = f"{Path(error['code.file.path']).name}:{error['code.line.number']}"
    says = f"{error['exception.type']} in {where}"
    keys = [("#3b82f6", "driver and worker"), ("#0d9488", "server")]
    parts = [f'<text x="12" y="{y + 14}" fill="{_FAILED}" font-weight="600">{escape(says)}</text>']
    step = min(160, (width - 24) // len(keys))
    for place, (colour, meaning) in enumerate(keys):
        x = 12 + step * place
        parts.append(f'<rect x="{x}" y="{y + 27}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 38}" fill="#334155">{meaning}</text>')
    return parts


def main() -> None:
    """Run the query, and write both pictures."""
    spans = traced()
    folder = ROOT / "docs" / "_static"
    (folder / "trace.svg").write_text(drawn(spans, width=760, labels=270), encoding="utf-8")
    (folder / "trace-narrow.svg").write_text(drawn(spans, width=360, labels=0), encoding="utf-8")


if __name__ == "__main__":
    main()
