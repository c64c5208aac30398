"""The example of the flights as a stream of changes, over the first days of January."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from examples import flights_stream
from foldflight.cli.flights import write_flights


@pytest.fixture
def run(classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the example over two epochs, and return how many rows differ and what it printed."""
    monkeypatch.setattr(flights_stream, "MONTHS", range(2))
    (tmp_path / "flights").mkdir()
    write_flights(tmp_path / "flights")
    flights = classic.read.parquet(str(tmp_path / "flights")).where("month = 1 AND day <= 3")

    def progress_of_query() -> tuple[int, str]:
        output = io.StringIO()
        console = Console(file=output, width=200)
        return flights_stream.run(classic, flights, tmp_path, console, tmp_path / "flights.duckdb"), output.getvalue()

    return progress_of_query


@pytest.mark.slow
def test_streamed_tables_equal_the_batch(run: Callable[[], tuple[int, str]]) -> None:
    """Both tables equal the tables of Spark SQL, and each epoch of both queries prints its metrics."""
    different, output = run()
    assert different == 0
    assert "by carrier: 15 rows in flights.duckdb, equal to Spark SQL's" in output
    assert re.search("by origin and hour: [0-9]+ rows in flights.duckdb, equal", output)
    # 2,699 flights of three days are published; 22 are cancelled, and 2,659 arrive and are corrected by two rows each.
    rows_folded = [line.split()[3] for line in output.splitlines() if line.startswith("by carrier   ")]
    assert rows_folded == ["2,699", "5,340"]


@pytest.mark.slow
def test_a_change_that_is_lost_is_found(run: Callable[[], tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the deletions of cancelled flights the tables differ, and the example reports it."""
    changes_of = flights_stream.changes_of

    def without_deletions(flights: DataFrame, month: int) -> DataFrame:
        return changes_of(flights, month).where("op <> '-D'")

    monkeypatch.setattr(flights_stream, "changes_of", without_deletions)
    different, output = run()
    assert different > 0
    assert "rows in flights.duckdb differ from Spark SQL's" in output
