"""The report of a run: each figure with its ratios to the base of its case and to its goals, in three formats."""

from __future__ import annotations

import dataclasses
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import (
    builtins,
    change_data,
    corners,
    exchange,
    flink,
    fold,
    memory,
    over,
    sail,
    scalar,
    scan,
    spark_batch,
    spark_stream,
    sql,
    traces,
    vectors,
    views,
    waiting,
)
from bench.data import Figure

MORE_IS_BETTER = "rows/s"
# The cases of the picture in the README: foldflight beside its peers.
_OVERVIEW = {
    (spark_batch.SUITE, "10,000 groups"): "a batch in Spark, 10,000 groups",
    (spark_batch.SUITE, "1,000,000 groups"): "a batch in Spark, 1,000,000 groups",
    (scan.SUITE, "10,000 groups"): "files of Parquet in Spark, 10,000 groups",
    (spark_stream.SUITE, "500,000 rows an epoch, 100,000 groups"): "a stream in Spark, 500,000 rows an epoch",
    (flink.SUITE, flink.WITHOUT_START): "CSV files, 1,000 groups, in Spark and in Flink, without the start",
    (scalar.SUITE, scalar.EXTERNAL): "a scalar function behind arrow-udf's protocol",
}
# A picture is shown as wide as the text of a README, about 850 pixels: its text has about 14 of them.
_WIDTH, _LINE, _FONT, _DPI = 8.5, 0.21, 10, 200
_NARROW_WIDTH, _NARROW_CHARACTERS = 4.9, 56  # as wide as a phone, so that a point is about a pixel


@dataclass(frozen=True)
class Goal:
    """The goal of a subject relative to another one, in the cases whose name contains one of the given words.

    Args:
        suite: The suite.
        subject: The subject that should reach the goal.
        ratio_to: The other subject.
        ratio: The least ratio for rates, or the greatest ratio for times.
        cases: Words in the names of cases.
    """

    suite: str
    subject: str
    ratio_to: str
    ratio: float
    cases: tuple[str, ...] = ("",)


GOALS = (
    Goal(fold.SUITE, fold.COMPILED, fold.INTERPRETED, 70),
    Goal(fold.SUITE, fold.WITH_KEYS, fold.GROUPED, 1),
    Goal(builtins.SUITE, builtins.VECTORISED, fold.GROUPED, 1),
    Goal(builtins.SUITE, builtins.WITH_KEYS, fold.GROUPED, 1),
    Goal(waiting.SUITE, waiting.EIGHT, waiting.ONE, 6),
    Goal(waiting.SUITE, waiting.EIGHT, waiting.BOUND, 1),
    Goal(exchange.SUITE, exchange.OURS, exchange.DRAINING, 0.8, ("1 stream, 65,536 rows",)),
    Goal(exchange.SUITE, exchange.OURS, exchange.DRAINING, 0.7, ("4 streams, 65,536 rows",)),
    Goal(exchange.SUITE, exchange.OURS, exchange.DRAINING, 0.4, ("1,024 rows",)),
    Goal(exchange.SUITE, exchange.BARRIER, exchange.EMPTY_TRIP, 1.5, ("p50",)),
    Goal(spark_batch.SUITE, spark_batch.LIFTED, spark_batch.BUILT_IN, 0.85, ("100 groups",)),
    Goal(spark_batch.SUITE, spark_batch.LIFTED, spark_batch.BUILT_IN, 0.75, ("10,000 groups",)),
    Goal(spark_batch.SUITE, spark_batch.EMBEDDED, spark_batch.LIMIT, 0.9, ("100 groups", "10,000 groups")),
    Goal(spark_batch.SUITE, spark_batch.EMBEDDED, spark_batch.BUILT_IN, 0.9, ("1,000,000 groups",)),
    Goal(spark_batch.SUITE, spark_batch.REMOTE, spark_batch.EMBEDDED, 1 / 1.3),
    *(
        Goal(spark_batch.SUITE, spark_batch.EMBEDDED, peer, 2, ("100 groups", "10,000 groups"))
        for peer in spark_batch.PEERS
    ),
    *(Goal(spark_batch.SUITE, spark_batch.EMBEDDED, peer, 20, ("1,000,000 groups",)) for peer in spark_batch.PEERS),
    Goal(
        scan.SUITE, scan.SCAN, spark_batch.BUILT_IN, 1.3, ("100 groups", "10,000 groups", "1,000,000 groups", scan.WIDE)
    ),
    Goal(scan.SUITE, scan.SCAN, spark_batch.EMBEDDED, 4, ("100 groups", "10,000 groups")),
    Goal(scan.SUITE, scan.READER, scan.PYARROW, 0.9, (scan.THREE_COLUMNS,)),
    Goal(sail.SUITE, sail.OURS, spark_batch.EMBEDDED, 2.5, ("100 groups", "10,000 groups")),
    Goal(sail.SUITE, sail.OURS, spark_batch.BUILT_IN, 1),
    Goal(over.SUITE, spark_batch.EMBEDDED, spark_batch.BUILT_IN, 1, (over.SLIDING,)),
    Goal(over.SUITE, spark_batch.EMBEDDED, over.TREE, 0.3, (over.SLIDING,)),
    Goal(over.SUITE, spark_batch.EMBEDDED, spark_batch.BUILT_IN, 0.3, (over.RUNNING,)),
    *(Goal(over.SUITE, spark_batch.EMBEDDED, peer, 50, (over.SLIDING,)) for peer in (*over.PEERS, over.PYFLINK_PANDAS)),
    # Flat: the widest frames are as fast as the narrowest ones, and the longest partition needs as much as a short one.
    Goal(over.SUITE, over.width_of(over.FRAMES[-1]), over.width_of(over.FRAMES[0]), 0.8),
    Goal(over.SUITE, over.length_of(over.LENGTHS[-1]), over.length_of(over.LENGTHS[0]), 1.25),
    Goal(sql.SUITE, sql.FOLD, sql.GROUP_BY, 0.95),
    Goal(sql.SUITE, sql.LIFTED, sql.GROUP_BY_LIFTED, 0.95),
    *(Goal(sql.SUITE, sql.LISTS, peer, 3, ("1,000,000 groups",)) for peer in sql.GROUPED_PEERS),
    Goal(corners.SUITE, spark_batch.EMBEDDED, corners.SORTED, 1 / 1.3, ("ORDER BY",)),
    Goal(corners.SUITE, spark_batch.EMBEDDED, spark_batch.BUILT_IN, 1 / 1.5, ("DISTINCT",)),
    Goal(corners.SUITE, spark_batch.EMBEDDED, spark_batch.BUILT_IN, 2, ("calls over",)),
    Goal(spark_stream.SUITE, spark_batch.EMBEDDED, spark_stream.BUILT_IN, 1.2, ("rows an epoch",)),
    Goal(spark_stream.SUITE, spark_batch.EMBEDDED, spark_stream.BUILT_IN, 1.3, ("groups touched",)),
    Goal(spark_stream.SUITE, spark_batch.EMBEDDED, spark_stream.BUILT_IN, 1.5, (spark_stream.LONGEST,)),
    # Times of the processor, so less is better: twice the time is half the rate.
    Goal(change_data.SUITE, change_data.DEBEZIUM, change_data.PAYLOAD, 2, ("with schema blocks",)),
    Goal(change_data.SUITE, change_data.DEBEZIUM, change_data.AIMED_RATE, 1, (f"{change_data.BARE} on",)),
    Goal(change_data.SUITE, change_data.UPSERTS, change_data.LATEST, 1, ("a stream of", "a batch")),
    Goal(vectors.SUITE, vectors.EXCHANGED, vectors.REDUCED, 0.6),
    Goal(vectors.SUITE, vectors.FLOWN, vectors.REDUCED, 0.42),  # 0.7 of 0.6; the next line is the stricter reading
    Goal(vectors.SUITE, vectors.FLOWN, vectors.EXCHANGED, 0.7),
    Goal(vectors.SUITE, spark_batch.REMOTE, spark_batch.EMBEDDED, 0.7, ("a batch",)),
    Goal(vectors.SUITE, scan.SCAN, vectors.AVERAGED, 1, ("a batch",)),
    # An epoch costs what it touches; the size of a view hardly matters.
    Goal(views.SUITE, views.entries_of(views.LARGEST), views.entries_of(views.SMALLEST), 1.3, (views.TOUCHED,)),
    Goal(views.SUITE, views.VIEW, views.DICT, 1 / 1.2, (views.SMALL,)),
    Goal(views.SUITE, views.VIEW, views.IN_STATES, 1, (views.DISTINCT_SMALL,)),
    Goal(scalar.SUITE, scalar.INTERPRETED, scalar.SPARK_UDF, 1, ("one function",)),
    Goal(scalar.SUITE, scalar.VECTORISED, scalar.SPARK_ARROW, 0.95, ("one function",)),
    Goal(scalar.SUITE, scalar.COMPILED, scalar.SPARK_UDF, 2, ("one function",)),
    Goal(scalar.SUITE, scalar.REMOTE, scalar.INTERPRETED, 0.8, ("one function",)),
    Goal(scalar.SUITE, scalar.THREE, scalar.SPARK_THREE, 2, ("three functions",)),
    Goal(scalar.SUITE, scalar.THREE_COMPILED, scalar.SPARK_THREE, 2, ("three functions",)),
    Goal(traces.SUITE, traces.WITH, traces.WITHOUT, 1.01, ("a query in Spark",)),
    *(Goal(flink.SUITE, flink.OURS, general, 100) for general in flink.GENERALS),
)
# The base of the ratios in the tables. If a case does not have it, the first subject is the base.
BASES = {fold.SUITE: fold.INTERPRETED, flink.SUITE: flink.GENERAL, memory.SUITE: memory.BASE}


@dataclass(frozen=True)
class Record:
    """One record of the JSON: a figure with its ratio to another.

    Args:
        suite: Name of the suite.
        case: The data and the circumstances.
        subject: Name of the measured program.
        value: The measured value.
        unit: Its unit.
        is_limit: Whether the subject was stopped, so that its value is this or worse.
        ratio_to: The other subject.
        is_ratio_to_limit: Whether the other subject was stopped, so that the ratio is this or better.
        ratio: The value divided by the value of the other subject.
        goal: The ratio to reach: the least one for rates, the greatest one for times. None without a goal.
        met: Whether it is reached. None without a goal.
    """

    suite: str
    case: str
    subject: str
    value: float
    unit: str
    is_limit: bool
    ratio_to: str
    is_ratio_to_limit: bool
    ratio: float
    goal: float | None = None
    met: bool | None = None


def records_of(figures: Sequence[Figure]) -> list[Record]:
    """Return each figure with its ratio to the base of its case, and once more for each of its goals."""
    found = {(each.suite, each.case, each.subject): each for each in figures}
    records = []
    for each in figures:
        base = found.get((each.suite, each.case, BASES.get(each.suite, ""))) or next(
            other for other in figures if (other.suite, other.case) == (each.suite, each.case)
        )
        records.append(_record(each, base, None))
        for goal in GOALS:
            other = found.get((each.suite, each.case, goal.ratio_to))
            if (goal.suite, goal.subject) == (each.suite, each.subject) and other and _covers(goal, each.case):
                records.append(_record(each, other, goal.ratio))
    return records


def _covers(goal: Goal, case: str) -> bool:
    """Return whether a goal applies to a case: with words not to Zipf, and to the longest only if a word says so."""
    plain = "Zipf" not in case and (spark_stream.LONGEST not in case or spark_stream.LONGEST in goal.cases)
    return not any(goal.cases) or (plain and any(case.startswith(word) or f" {word}" in case for word in goal.cases))


def _record(figure: Figure, base: Figure, goal: float | None) -> Record:
    ratio = 1.0 if figure is base else figure.value / base.value  # a count may be 0
    met = None if goal is None else (ratio >= goal if figure.unit == MORE_IS_BETTER else ratio <= goal)
    return Record(
        **dataclasses.asdict(figure),
        ratio_to=base.subject,
        is_ratio_to_limit=base.is_limit,
        ratio=ratio,
        goal=goal,
        met=met,
    )


@dataclass(frozen=True)
class Grid:
    """A table: a title, names of columns, and rows of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def for_console(self) -> Table:
        """Return the table for rich."""
        shown = Table(title=self.title, title_justify="left")
        for place, name in enumerate(self.columns):
            shown.add_column(name, justify="right" if place else "left")
        for row in self.rows:
            shown.add_row(*row)
        return shown

    def for_documents(self) -> str:
        """Return the table in Markdown."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def grids_of(suite: str, records: Iterable[Record]) -> Iterator[Grid]:
    """Yield a table for each unit of a suite: subjects by cases, or cases by subjects if there are more of these."""
    mine = [each for each in records if each.suite == suite and each.goal is None]
    for unit in dict.fromkeys(each.unit for each in mine):
        chosen = [each for each in mine if each.unit == unit]
        cases = list(dict.fromkeys(each.case for each in chosen))
        subjects = list(dict.fromkeys(each.subject for each in chosen))
        cells = {(each.case, each.subject): f"{value_of(each)} ({each.ratio:.2f})" for each in chosen}
        bases = " or ".join(dict.fromkeys(each.ratio_to for each in chosen))
        down, across = (cases, subjects) if len(cases) > len(subjects) else (subjects, cases)
        rows = []
        for name in down:
            keys = [(name, other) if down is cases else (other, name) for other in across]
            rows.append([name, *(cells.get(key, "-") for key in keys)])
        yield Grid(f"{suite}, {unit} (ratio to: {bases})", ["", *across], rows)


def goals_of(records: Iterable[Record]) -> Grid:
    """Return the goals, and which are met."""
    rows = []
    for each in records:
        if each.goal is not None:
            sign = "at least" if each.unit == MORE_IS_BETTER else "at most"
            ratio = f"{'more than ' if each.is_ratio_to_limit else ''}{each.ratio:.2f}"
            met = "yes" if each.met else "no"
            rows.append([each.suite, each.case, each.subject, each.ratio_to, ratio, f"{sign} {each.goal:.2f}", met])
    return Grid("goals", ["suite", "case", "subject", "beside", "ratio", "goal", "met"], rows)


def line_of(figure: Figure) -> str:
    """Return a figure as one line."""
    return f"{figure.suite}: {figure.case}: {figure.subject}: {value_of(figure)}"


def value_of(each: Figure | Record) -> str:
    """Return a value with its unit as text."""
    sign = "< " if each.is_limit else ""
    if each.unit != MORE_IS_BETTER:
        return f"{sign}{each.value:,.{2 if each.unit == 's' else 0}f} {each.unit}"
    if each.value < 1_000:
        return f"{sign}{each.value:,.0f} /s"
    scaled, suffix = (each.value / 1e6, "M/s") if each.value >= 100_000 else (each.value / 1e3, "k/s")
    return f"{sign}{scaled:,.{1 if scaled >= 10 else 2}f} {suffix}"


def write(folder: Path, name: str, records: Sequence[Record], machine: str) -> list[Path]:
    """Write records (.json), tables (.md) and a picture of each suite, and return the paths.

    Records of other suites that the file has already are kept: suites may be measured one after the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, tables = (folder / f"{name}.{suffix}" for suffix in ("json", "md"))
    if data.exists():
        measured = {each.suite for each in records}
        records = [*(each for each in read(data) if each.suite not in measured), *records]
    data.write_text(json.dumps([dataclasses.asdict(each) for each in records], indent=1) + "\n")
    grids = [goals_of(records)]
    for suite in dict.fromkeys(each.suite for each in records):
        grids += grids_of(suite, records)
    texts = [f"# {name}, {machine}", "", *(grid.for_documents() for grid in grids)]
    tables.write_text("\n".join(texts))
    rates = [each for each in records if each.goal is None and each.unit == MORE_IS_BETTER]
    pictures = []
    for suite in dict.fromkeys(each.suite for each in rates):
        pictures.append(folder / f"{name}-{suite}.png")
        draw(pictures[-1], [each for each in rates if each.suite == suite], f"{suite}: rows a second; {machine}")
    return [data, tables, *pictures]


def read(path: Path) -> list[Record]:
    """Return the records of a file that `write` wrote."""
    return [Record(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def overview_of(rates: Sequence[Record]) -> list[Record]:
    """Return the rates of the picture in the README, with cases that say what was measured."""
    return [
        dataclasses.replace(each, case=case)
        for (suite, name), case in _OVERVIEW.items()
        for each in rates
        if (each.suite, each.case) == (suite, name)
    ]


def draw_narrow(path: Path, records: Sequence[Record], title: str, *, highlights: str) -> None:
    """Draw rates for a phone: names stand in the bars, so that text is not shrunk with the picture.

    Args:
        path: The picture.
        records: The rates.
        title: Its title.
        highlights: The subjects that begin so are blue and the others grey.
    """
    pyplot = _pyplot(path)
    cases = {case: textwrap.fill(case, _NARROW_CHARACTERS) for case in dict.fromkeys(each.case for each in records)}
    lines = len(records) + sum(0.7 + len(title.splitlines()) for title in cases.values())
    figure, panel = pyplot.subplots(figsize=(_NARROW_WIDTH, 0.6 + _LINE * lines), layout="constrained")
    beside, place = panel.get_yaxis_transform(), 0.0
    for case, shown in cases.items():
        panel.text(0, place - 0.4, shown, transform=beside, va="top", weight="bold", fontsize=_FONT)
        place += len(shown.splitlines())
        for each in (record for record in records if record.case == case):
            colour = "#a6cbe8" if each.subject.startswith(highlights) else "#dcdcdc"
            panel.barh(place, each.value, 0.86, color=colour)
            panel.text(0.01, place, each.subject, transform=beside, va="center", fontsize=_FONT)
            panel.text(1, place, value_of(each), transform=beside, va="center", ha="right", fontsize=_FONT)
            place += 1
        place += 0.7
    panel.set_xscale("log")
    panel.set_yticks([])
    panel.set_ylim(place - 0.6, -0.8)
    panel.margins(x=0.15)
    panel.set_axis_off()
    panel.set_title(textwrap.fill(f"{title}; logarithmic scale", _NARROW_CHARACTERS), loc="left", fontsize=_FONT)
    figure.savefig(path, dpi=_DPI, metadata={"Date": None})
    pyplot.close(figure)


def _pyplot(path: Path) -> Any:
    import matplotlib as mpl

    mpl.use("agg")
    # A picture as SVG has its text as text, and is the same for the same figures.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.name})
    from matplotlib import pyplot

    return pyplot


def draw(path: Path, records: Sequence[Record], title: str, *, highlights: str | None = None) -> None:
    """Draw rates: bars on a logarithmic scale, each with its subject and its rate, by case.

    Args:
        path: The picture.
        records: The rates.
        title: Its title.
        highlights: The subjects that begin so are blue and the others grey. None: each subject has a colour.
    """
    pyplot = _pyplot(path)
    subjects = list(dict.fromkeys(each.subject for each in records))
    if highlights is None:
        colours = dict(zip(subjects, itertools.cycle(pyplot.colormaps["tab10"].colors), strict=False))
    else:
        colours = {each: "tab:blue" if each.startswith(highlights) else "silver" for each in subjects}
    cases = list(dict.fromkeys(each.case for each in records))
    lines = len(records) + 1.6 * len(cases)
    figure, panel = pyplot.subplots(figsize=(_WIDTH, 0.8 + _LINE * lines), layout="constrained")
    place, ticks = 0.0, []
    for case in cases:
        panel.text(0, place, case, transform=panel.get_yaxis_transform(), va="center", weight="bold", fontsize=_FONT)
        place += 1
        for each in (record for record in records if record.case == case):
            panel.barh(place, each.value, 0.8, color=colours[each.subject])
            panel.annotate(
                value_of(each), (each.value, place), (4, 0), textcoords="offset points", va="center", fontsize=_FONT
            )
            ticks.append((place, each.subject))
            place += 1
        place += 0.6
    panel.set_xscale("log")
    panel.set_xlabel("logarithmic scale", fontsize=_FONT)
    panel.set_yticks([tick for tick, _ in ticks], [subject for _, subject in ticks], fontsize=_FONT)
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(place - 0.6, -0.8)
    panel.margins(x=0.15)
    panel.set_title(title, loc="left", fontsize=_FONT)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=_DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
