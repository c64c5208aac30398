"""The tables of the reference that are made of tables in the code. `make reference` and tests use them."""

from __future__ import annotations

from foldflight.server.ops.metrics import METRICS
from foldflight.server.run.settings import SETTINGS
from foldflight.spark.metrics import StreamMetrics
from foldflight.spark.versions.facts import FEATURES, VERSIONS

__all__ = ["metrics_table", "settings_table", "stream_metrics_table", "versions_table"]


def settings_table() -> str:
    """Return the settings of a server as a Markdown table."""
    lines = ["| flag | variable | file key | default | unit | meaning |", "|---|---|---|---|---|---|"]
    lines.extend(
        f"| `{row.flag}` | `{row.variable}` | `{row.name}` | {row.default_text} | {row.unit or '-'} | {row.doc} |"
        for row in SETTINGS.values()
    )
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    """Return the metrics of a server as a Markdown table."""
    lines = ["| metric | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    lines.extend(
        f"| `{row.name}` | {row.type} | {row.unit} | {', '.join(f'`{label}`' for label in row.labels) or '-'} "
        f"| {row.doc} |"
        for row in METRICS.values()
    )
    return "\n".join(lines) + "\n"


def stream_metrics_table() -> str:
    """Return the metrics of streams as a Markdown table."""
    lines = ["| metric | type | value of an epoch | meaning |", "|---|---|---|---|"]
    for family in StreamMetrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        figure = family.name.removeprefix("foldflight_stream_").replace("exchange_seconds", "exchange_ms")
        shown = "-" if figure == "epochs" else f"`{figure}`"
        lines.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def versions_table() -> str:
    """Return what each version of Spark can do as a Markdown table."""
    lines = [f"| | {' | '.join(VERSIONS)} |", "|---" * (len(VERSIONS) + 1) + "|"]
    for each in FEATURES:
        marks = ("yes" if _numbers(version) >= _numbers(each.since) else "-" for version in VERSIONS)
        lines.append(f"| {each.what} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
