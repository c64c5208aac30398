"""The reports of the benchmarks."""

from __future__ import annotations

import html
import io
import itertools
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from bench import __main__ as program
from bench import figures, report, sail, spark_batch, sql
from bench.data import Figure, Sizes
from foldflight import connect
from foldflight.server.run.lifecycle import serving

FIGURES = [
    Figure("spark", "100 groups", "built-in SQL (no Python)", 4e6, "rows/s"),
    Figure("spark", "100 groups", "limit of the pipe (counts rows)", 1.25e6, "rows/s"),
    Figure("spark", "100 groups", "foldflight, embedded", 1e6, "rows/s"),
    Figure("spark", "100 groups", "applyInArrow", 4e5, "rows/s", is_limit=True),
    Figure("stream", "10,000 of 5 groups touched", "Spark's aggregate (no Python)", 0.2, "s"),
    Figure("stream", "10,000 of 5 groups touched", "foldflight, embedded", 0.24, "s"),
    Figure("stream", "10,000 of 5 groups touched, the longest", "Spark's aggregate (no Python)", 0.2, "s"),
    Figure("stream", "10,000 of 5 groups touched, the longest", "foldflight, embedded", 0.32, "s"),
]


def test_each_figure_stands_beside_the_base_of_its_case() -> None:
    """Each figure has a record with its ratio, and one more for each goal, met or not."""
    records = report.records_of(FIGURES)
    plain = [(each.subject, round(each.ratio, 3)) for each in records if each.goal is None]
    assert plain == [
        ("built-in SQL (no Python)", 1.0),
        ("limit of the pipe (counts rows)", 0.312),
        ("foldflight, embedded", 0.25),
        ("applyInArrow", 0.1),
        ("Spark's aggregate (no Python)", 1.0),
        ("foldflight, embedded", 1.2),
        ("Spark's aggregate (no Python)", 1.0),
        ("foldflight, embedded", 1.6),
    ]
    goals = [(each.suite, each.ratio_to, each.goal, each.met) for each in records if each.goal is not None]
    assert goals == [
        ("spark", "limit of the pipe (counts rows)", 0.9, False),
        ("spark", "applyInArrow", 2, True),
        ("stream", "Spark's aggregate (no Python)", 1.3, True),
        ("stream", "Spark's aggregate (no Python)", 1.5, False),
    ]


def test_a_way_that_is_slow_is_measured_once() -> None:
    """Ways alternate, each gives its median, and one that is slow at first is not repeated."""
    times_of_way = {"fast": iter([3.0, 1.0, 2.0]), "slow": iter([40.0])}
    order: list[str] = []

    def seconds_of(way: str) -> float:
        order.append(way)
        return next(times_of_way[way])

    assert spark_batch.medians({way: partial(seconds_of, way) for way in times_of_way}) == {"fast": 2.0, "slow": 40.0}
    assert order == ["fast", "slow", "fast", "fast"]


def test_a_run_is_written_in_three_ways(tmp_path: Path) -> None:
    """As records, as tables that show which figures are only bounds, and as a picture."""
    records = report.records_of(FIGURES)
    data, tables, picture = report.write(tmp_path, "2026-01-01", records, "a machine")
    assert len(json.loads(data.read_text())) == len(records)
    text = tables.read_text()
    assert "| foldflight, embedded | 1.00 M/s (0.25) |" in text
    assert "| applyInArrow | < 0.40 M/s (0.10) |" in text
    assert "| more than 2.50 | at least 2.00 | yes |" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_the_readme_has_foldflight_beside_its_peers(tmp_path: Path) -> None:
    """It has the cases of the README only, names what was measured, and is drawn as text."""
    peer_figures = [
        Figure("spark", "10,000 groups", each, 1e6, "rows/s") for each in ("foldflight, embedded", "a peer")
    ]
    overview = report.overview_of(report.records_of([*FIGURES, *peer_figures]))
    report.draw(tmp_path / "overview.svg", overview, "a machine", highlights="foldflight")
    picture = (tmp_path / "overview.svg").read_text()
    assert "a batch in Spark, 10,000 groups" in picture
    assert "a peer" in picture
    assert "applyInArrow" not in picture


def test_the_documents_show_the_newest_results() -> None:
    """The README's table and picture and the page have the newest figures of each suite: `make figures` writes them."""
    run = figures.newest()
    readme = figures.README.read_text()
    assert f"<!-- figures -->\n{figures.readme_of(run)}<!-- end of figures -->\n" in readme
    assert figures.PICTURE.relative_to(figures.ROOT).as_posix() in readme
    assert figures.PAGE.read_text() == figures.page_of(run)
    performance = figures.PERFORMANCE.read_text()
    assert performance == figures.performance_of(run, performance)
    picture = figures.PICTURE.read_text()
    assert run.measured() in picture
    assert all(html.escape(report.value_of(each)) in picture for each in report.overview_of(run.rates))


def test_each_suite_has_its_newest_results(tmp_path: Path) -> None:
    """Results are named by their day, and the title of the tables has the machine. Suites are measured apart."""
    fold = [Figure("fold", "a case", "a way", 1e6, "rows/s")]
    older = [Figure(each.suite, each.case, each.subject, each.value / 2, each.unit) for each in FIGURES]
    for day, figures_measured in {"2026-02-01": FIGURES, "2025-12-31": [*older, *fold], "2026-02-02": fold}.items():
        report.write(tmp_path, day, report.records_of(figures_measured), f"the machine of {day}")
    result = figures.newest(tmp_path)
    assert result.days == {"spark": "2026-02-01", "stream": "2026-02-01", "fold": "2026-02-02"}
    assert result.machines["spark"] == "the machine of 2026-02-01"
    assert [each for each in result.records if each.suite != "fold"] == report.records_of(FIGURES)
    assert "[2026-02-01](docs/explanation/figures.md)" in figures.readme_of(result)
    page = figures.page_of(result)
    assert "| foldflight, embedded | 1.00 M/s (0.25) |" in page
    assert "## Fold\n\nMeasured on 2026-02-02 on the machine of 2026-02-02.\n" in page
    assert result.measured() == "2026-02-01 to 2026-02-02"
    with pytest.raises(FileNotFoundError, match="run `make bench`"):
        figures.newest(tmp_path / "nothing")


def test_suites_of_one_day_are_in_one_file(tmp_path: Path) -> None:
    """A suite that is measured again replaces its records, and other suites' records stay."""
    fold = [Figure("fold", "a case", "a way", value, "rows/s") for value in (1e6, 2e6)]
    for figures_measured in (fold[:1], FIGURES, fold[1:]):
        data, *_ = report.write(tmp_path, "2026-02-01", report.records_of(figures_measured), "a machine")
    assert report.read(data) == [*report.records_of(FIGURES), *report.records_of(fold[1:])]


def results_of(figures_measured: Sequence[Figure]) -> figures.Results:
    """Return figures as results of one day."""
    suites = {each.suite for each in figures_measured}
    days, machines = (dict.fromkeys(suites, value) for value in ("2026-01-01", "a machine"))
    return figures.Results(days, machines, report.records_of(figures_measured))


def test_the_page_about_performance_has_a_line_for_each_goal() -> None:
    """With the ratios of all cases, and in how many of them the goal is reached."""
    more = [Figure(each.suite, "10,000 groups", each.subject, each.value * 2, each.unit) for each in FIGURES[1:3]]
    run = results_of([*FIGURES, *more])
    page = figures.performance_of(run, "before\n<!-- goals of spark, over -->\nold\n<!-- end of goals -->\nafter\n")
    line = (
        "foldflight, embedded | limit of the pipe (counts rows) | 100 groups; 10,000 groups | 0.80 | at least 0.90 | no"
    )
    assert page.splitlines()[1:-1] == [
        "<!-- goals of spark, over -->",
        "| [2026-01-01](figures.md#goals) | beside | cases | ratio | goal | reached |",
        "|---|---|---|---|---|---|",
        f"| {line} |",
        "| foldflight, embedded | applyInArrow | 100 groups | more than 2.50 | at least 2.00 | yes |",
        "<!-- end of goals -->",
    ]


@pytest.mark.parametrize(
    ("options", "is_whole"),
    [([], True), (["--only", "spark"], False), (["--rows", "1000"], False), (["--groups", "7"], False)],
)
def test_a_run_of_a_part_leaves_the_results_of_whole_runs(
    options: list[str], is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents show the results of whole runs, so a run of some suites, or of little data, writes elsewhere."""
    monkeypatch.setattr(report, "draw", lambda path, *_, **__: path.touch())  # a picture takes a second
    suites = {
        suite: lambda _, suite=suite: [each for each in FIGURES if each.suite == suite] for suite in program.SUITES
    }
    results, parts = tmp_path / "results", tmp_path / "parts"
    console = Console(file=io.StringIO())
    program.run(
        program.parser().parse_args(options), "grpc://nowhere", console, suites=suites, results=results, parts=parts
    )
    assert results.exists() == is_whole
    assert list(parts.glob("*.json"))


def test_the_table_of_the_readme_names_the_fastest_peer() -> None:
    """A peer that is measured in several ways is in the table once, and systems have names that readers know."""
    rates = {
        "foldflight, embedded": 9e6,
        "grouped arrow_udf": 2e6,
        "applyInArrow": 3e6,
        "built-in SQL (no Python)": 2e7,
    }
    figures_measured = [Figure("spark", "10,000 groups", name, rate, "rows/s") for name, rate in rates.items()]
    table = figures.readme_of(results_of(figures_measured))
    assert table.splitlines()[-1] == (
        "| a batch, 10,000 groups | 9.00 M in Spark's Python | 20.0 M Spark's own SQL; 3.00 M the fastest grouped UDF "
        "of Spark |"
    )


def test_a_batch_has_the_plan_that_its_name_says() -> None:
    """Without a plan `group_by` chooses one, and the figure would be of another way than its name says."""
    ways = sail.ways() | sql.ways(None, connect("embedded:examples.weighted_avg"))
    plans = {name: way.keywords["plan"] for name, way in ways.items() if isinstance(way, partial)}
    assert plans == {
        spark_batch.LIFTED: "lifted",
        spark_batch.EMBEDDED: "fold",
        sql.GROUP_BY: "fold",
        sql.GROUP_BY_LIFTED: "lifted",
        sql.FOLD: "fold",
        sql.LIFTED: "lifted",
        sql.LISTS: "lists",
    }


@pytest.mark.parametrize("suite", ["fold", "builtins", "numeric", "views"])
def test_a_suite_without_spark_measures(suite: str) -> None:
    """Its first figures are measured over little data, so a change of what it calls is noticed before the next run."""
    with serving("examples.weighted_avg") as server:
        figures_measured = program.SUITES[suite](Sizes(rows=2_000, groups=(10,), stream_groups=(), url=server.url))
        first = list(itertools.islice(figures_measured, 4))
    assert {each.suite for each in first} == {suite}
    assert all(each.value > 0 for each in first)
