"""Writes the newest figures of each suite into the documents: `make figures`; `make bench` does it after its run.

A whole run takes more than an hour of a quiet machine, so suites may be measured on different days. What is compared is
always measured in one run, because a ratio has both its sides in one suite.

The picture and the table of the README, the tables of goals of docs/explanation/performance.md, and the page
docs/explanation/figures.md. Nothing in them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import flink, report, scalar, scan, spark_batch, spark_stream

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PICTURE = RESULTS / "overview.svg"
NARROW_PICTURE = RESULTS / "overview-narrow.svg"
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "explanation" / "performance.md"
PAGE = ROOT / "docs" / "explanation" / "figures.md"
_OURS = "foldflight"
_NEEDED = {spark_batch.SUITE, spark_stream.SUITE}
_DATED = "[0-9]" * 4 + "-[0-9][0-9]-[0-9][0-9].json"
# The table of the README: for each suite and case its title, and names of subjects; the fastest of several is shown.
_IN_SPARK = {"in Spark": (spark_batch.EMBEDDED,), "on a server": (spark_batch.REMOTE,)}
_LIFTED = {
    "without Python": (spark_batch.LIFTED,),
    "in Spark's Python": (spark_batch.EMBEDDED,),
    "on a server": (spark_batch.REMOTE,),
}
_BATCH = {"Spark's own SQL": (spark_batch.BUILT_IN,), "the fastest grouped UDF of Spark": spark_batch.PEERS}
_TABLE: dict[tuple[str, str], tuple[str, Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]]] = {
    (spark_batch.SUITE, "10,000 groups"): ("a batch, 10,000 groups", _LIFTED, _BATCH),
    (spark_batch.SUITE, "1,000,000 groups"): ("a batch, 1,000,000 groups", _LIFTED, _BATCH),
    (scan.SUITE, "10,000 groups"): (
        "files of Parquet, 10,000 groups",
        {"read by the tasks that fold": (scan.SCAN,), "where Spark has to read": (scan.BY_SPARK,)},
        {"Spark's own SQL": (spark_batch.BUILT_IN,)},
    ),
    (spark_stream.SUITE, "500,000 rows an epoch, 100,000 groups"): (
        "a stream, 500,000 rows an epoch",
        _IN_SPARK,
        {"Spark's own SQL": (spark_stream.BUILT_IN,), "`transformWithStateInPandas`": (spark_stream.PER_KEY,)},
    ),
    (flink.SUITE, flink.WITHOUT_START): (
        "a stream of CSV files, 1,000 groups",
        {"in Spark": (flink.OURS,)},
        {"PyFlink SQL": ("PyFlink sql, streaming",), "PyFlink UDAF": tuple(flink.GENERALS)},
    ),
    (scalar.SUITE, scalar.EXTERNAL): (
        "a scalar function, by arrow-udf's protocol",
        {"on a server": (scalar.OUR_DOOR,)},
        {"arrow-udf's server": (scalar.ARROW_UDF_SERVER,)},
    ),
}
_GOALS = re.compile(r"(<!-- goals of ([a-z, ]+) -->\n).*?(<!-- end of goals -->\n)", re.DOTALL)
_CASES_SHOWN = 3
_BLOCK = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)


@dataclass(frozen=True)
class Results:
    """The newest records of each suite.

    Args:
        days: For each suite when it ran, which is the name of the files.
        machines: For each suite where it ran.
        records: The records of all suites.
    """

    days: Mapping[str, str]
    machines: Mapping[str, str]
    records: Sequence[report.Record]

    @property
    def machine(self) -> str:
        """The machines that measured."""
        return " and ".join(dict.fromkeys(self.machines.values()))

    def measured(self, suites: Iterable[str] | None = None) -> str:
        """Return the days from the first to the last on which suites were measured, or all of them."""
        days = sorted(self.days[each] for each in (self.days if suites is None else suites) if each in self.days)
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not measured"

    @property
    def rates(self) -> list[report.Record]:
        """The measured rates, each once."""
        return [each for each in self.records if each.goal is None and each.unit == report.MORE_IS_BETTER]


def newest(folder: Path = RESULTS) -> Results:
    """Return the newest records of each suite in a folder of results.

    Raises:
        FileNotFoundError: The folder has no results of a suite that the README shows.
    """
    days: dict[str, str] = {}
    machines: dict[str, str] = {}
    by_suite: dict[str, list[report.Record]] = {}
    for data in sorted(folder.glob(_DATED)):
        title = data.with_suffix(".md").read_text(encoding="utf-8").partition("\n")[0]
        records = report.read(data)
        for suite in dict.fromkeys(each.suite for each in records):
            days[suite] = data.stem
            machines[suite] = title.removeprefix(f"# {data.stem}, ")
            by_suite[suite] = [each for each in records if each.suite == suite]
    if missing := sorted(_NEEDED - days.keys()):
        msg = f"no results in {folder} have the suites {' and '.join(missing)}; run `make bench`"
        raise FileNotFoundError(msg)
    return Results(days, machines, [record for records in by_suite.values() for record in records])


def readme_of(run: Results) -> str:
    """Return the table of the README: the most important cases, in plain words. All others are on the page."""
    link = f"[{run.measured(suite for suite, _ in _TABLE)}](docs/explanation/figures.md)"
    lines = [f"| rows a second ({link}) | foldflight | others |", "|---|---|---|"]
    for (suite, case), (title, ours, others) in _TABLE.items():
        found = {each.subject: each for each in run.rates if (each.suite, each.case) == (suite, case)}
        if found:
            lines.append(f"| {title} | {_named(found, ours)} | {_named(found, others)} |")
    return "\n".join([*lines, ""])


def _named(found: Mapping[str, report.Record], names: Mapping[str, Sequence[str]]) -> str:
    """Return for each name the highest rate of its subjects."""
    rates = {name: [found[subject] for subject in subjects if subject in found] for name, subjects in names.items()}
    best = {name: max(each, key=lambda record: record.value) for name, each in rates.items() if each}
    return "; ".join(f"{report.value_of(each).removesuffix('/s')} {name}" for name, each in best.items())


def performance_of(run: Results, text: str) -> str:
    """Return the page about performance, whose tables have the goals of the suites that their first lines name."""

    def table(found: re.Match[str]) -> str:
        return found[1] + _goals_of(run, found[2].split(", ")) + found[3]

    return _GOALS.sub(table, text)


def _goals_of(run: Results, suites: Sequence[str]) -> str:
    """Return a table with a line for each goal: the ratios that were measured, and in how many cases it is reached."""
    goals: dict[tuple[str, str, str, float], list[report.Record]] = {}
    for each in run.records:
        if each.suite in suites and each.goal is not None:
            goals.setdefault((each.suite, each.subject, each.ratio_to, each.goal), []).append(each)
    lines = [
        f"| [{run.measured(suites)}](figures.md#goals) | beside | cases | ratio | goal | reached |",
        "|---|---|---|---|---|---|",
    ]
    for (_, subject, other, goal), found in goals.items():
        cases = list(dict.fromkeys(each.case for each in found))
        named = "; ".join(cases) if len(cases) <= _CASES_SHOWN else f"{len(cases)} cases"
        ratios = sorted(each.ratio for each in found)
        measured = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1])))
        if any(each.is_ratio_to_limit for each in found):
            measured = f"more than {measured}"  # the other was stopped
        sign = "at least" if found[0].unit == report.MORE_IS_BETTER else "at most"
        met = sum(bool(each.met) for each in found)
        reached = "yes" if met == len(found) else f"{met} of {len(found)}" if met else "no"
        lines.append(f"| {subject} | {other} | {named} | {measured} | {sign} {goal:.2f} | {reached} |")
    return "\n".join([*lines, ""])


def page_of(run: Results) -> str:
    """Return the page of the documentation: the picture, the goals and a table for each suite and unit."""
    lines = [
        "# Measured figures",
        "",
        "`make bench` measured this; `bench/figures.py` wrote the page.",
        "Compare only figures of one case. `bench/README.md` in the repository tells what the suites measure, and",
        "[Performance](performance.md) what the figures mean.",
        "",
        "```{image} /../bench/results/overview.svg",
        ":alt: Rows a second of foldflight and its peers, on a logarithmic scale",
        ":class: wide-screen",
        "```",
        "```{image} /../bench/results/overview-narrow.svg",
        ":alt: Rows a second of foldflight and its peers, on a logarithmic scale",
        ":class: narrow-screen",
        "```",
        "",
    ]
    for suite in dict.fromkeys(each.suite for each in run.records):
        lines += [f"## {suite.capitalize()}", "", f"Measured on {run.days[suite]} on {run.machines[suite]}.", ""]
        lines += [grid.for_documents() for grid in report.grids_of(suite, run.records)]
    lines += [
        "## Goals",
        "",
        "Missed goals and their reasons are in",
        "[Performance](performance.md#goals-and-reasons).",
        "",
    ]
    return "\n".join([*lines, report.goals_of(run.records).for_documents()])


def write() -> list[Path]:
    """Write the picture, the README's table and the page, and return their paths."""
    run = newest()
    title = f"rows a second; {run.machine}; {run.measured()}"
    report.draw(PICTURE, report.overview_of(run.rates), title, highlights=_OURS)
    report.draw_narrow(NARROW_PICTURE, report.overview_of(run.rates), title, highlights=_OURS)
    text = README.read_text(encoding="utf-8")
    README.write_text(_BLOCK.sub(lambda found: found[1] + readme_of(run) + found[2], text), encoding="utf-8")
    PERFORMANCE.write_text(performance_of(run, PERFORMANCE.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page_of(run), encoding="utf-8")
    return [PICTURE, NARROW_PICTURE, README, PERFORMANCE, PAGE]


if __name__ == "__main__":
    for path in write():
        print(f"written: {path.relative_to(ROOT)}")
