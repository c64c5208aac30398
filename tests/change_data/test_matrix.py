"""Every type of the database in every mode of the connector: equal to the database's own answer, refused, or lost.

`matrix.tsv` says which. Only values that the connector itself has changed may differ, and each stands there, with what
it sent. To write the file again: `MATRIX=write pytest tests/change_data/test_matrix.py`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from tests.change_data import jobs
from tests.change_data.matrix import TYPES, canonical, in_database
from tests.change_data.modes import MODES
from tests.change_data.source import Source
from tests.change_data.workload import PHASES
from tests.spark_process import SparkProcess

pytestmark = [pytest.mark.slow, pytest.mark.together]

WRITES = os.environ.get("MATRIX") == "write"
FILE = Path(__file__).with_name("matrix.tsv")
HEAD = "mode\tcolumn\ttype\toutcome\tdatabase\tsent or said"
STREAMS = ("defaults", "connect", "flat")
Values = Counter[tuple[str, str | None]]  # how often each column has each value


def in_the_database(source: Source) -> Values:
    result: Values = Counter()
    for name in TYPES:
        for text, rows in source.ask(f"SELECT {in_database(name)}, count(*) FROM inv.kinds GROUP BY 1"):
            result[name, canonical(name, text)] += rows
    return result


def of(values: Values, name: str) -> dict[str | None, int]:
    return {text: rows for (column, text), rows in values.items() if column == name}


def only_in(one: dict[str | None, int], other: dict[str | None, int]) -> str:
    return repr(sorted((text for text, rows in one.items() if other.get(text) != rows), key=repr))


def message_of(message: str) -> str:
    """Return the value that a message names, and why it is refused, without the remedy."""
    result = re.search(r"has the value (.+?)(?=;| \(the event|$)", message)
    assert result is not None, message
    return result[1]


def types_of(mode: str) -> dict[str, str]:
    return {name: "STRING" if name in MODES[mode].texts else type_ for name, type_ in TYPES.items()}


def lines_of(mode: str, expected: Values, actual: Values, refusal_of: dict[str, str]) -> list[str]:
    """Return the lines of the table about a mode."""
    lines = []
    for name, type_ in types_of(mode).items():
        theirs, ours = of(expected, name), of(actual, name)
        if name in refusal_of:
            outcome, database, sent_value = "refused", "", message_of(refusal_of[name])
        elif theirs == ours:
            outcome, database, sent_value = "equal", "", ""
        else:
            outcome, database, sent_value = "lost", only_in(theirs, ours), only_in(ours, theirs)
        lines.append(f"{mode}\t{name}\t{type_}\t{outcome}\t{database}\t{sent_value}")
    return lines


def canonical_values(rows: list[tuple[str, str | None, int]]) -> Values:
    result: Values = Counter()
    for name, text, count in rows:
        result[name, canonical(name, text)] += count
    return result


def committed_lines(mode: str) -> list[str]:
    return [line for line in FILE.read_text().splitlines() if line.startswith(f"{mode}\t")]


@pytest.fixture(scope="module")
def stream_lines(source: Source, spark: SparkProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run all phases, with streams into tables that follow some modes; return where a table differed."""
    folder = tmp_path_factory.mktemp("streams")
    differences: dict[str, list[str]] = {mode: [] for mode in STREAMS}
    for number, phase in enumerate(PHASES):
        source.run(phase)
        source.caught_up()
        expected = in_the_database(source)
        for mode in STREAMS:
            outcomes = {line.split("\t")[1]: line.split("\t")[3] for line in committed_lines(mode)}
            types = {name: type_ for name, type_ in types_of(mode).items() if outcomes.get(name) != "refused"}
            file = folder / f"{mode}.duckdb"
            spark.ask(
                jobs.values_to_table,
                source.broker,
                f"{mode}.inv.kinds",
                types,
                MODES[mode].words_for(types),
                f"duckdb://{file}?table=counted",
                folder / mode,
            )
            with duckdb.connect(str(file), read_only=True) as connection:
                result = canonical_values(connection.execute("SELECT name, value, rows FROM counted").fetchall())
            differences[mode] += [
                f"phase {number}, {name}: {of(expected, name)}, not {of(result, name)}"
                for name in types
                if outcomes.get(name) == "equal" and of(expected, name) != of(result, name)
            ]
    return differences


@pytest.mark.parametrize("mode", STREAMS)
def test_a_stream_equals_the_database(stream_lines: dict[str, list[str]], mode: str) -> None:
    """After each phase a table has what the database answers, for all columns that the connector sends whole."""
    assert stream_lines[mode] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_equals_the_database(
    source: Source, spark: SparkProcess, stream_lines: dict[str, list[str]], mode: str
) -> None:
    """After all phases each column is equal, refused or lost, as the table says."""
    assert stream_lines is not None
    types = types_of(mode)
    rows, refusal_of = spark.ask(
        jobs.values_in_batch, source.broker, f"{mode}.inv.kinds", types, MODES[mode].words_for(types)
    )
    lines = lines_of(mode, in_the_database(source), canonical_values(rows), refusal_of)
    if WRITES:
        others = [line for line in FILE.read_text().splitlines()[1:] if not line.startswith(f"{mode}\t")]
        FILE.write_text("\n".join([HEAD, *sorted([*others, *lines]), ""]))
    assert sorted(lines) == sorted(committed_lines(mode))
