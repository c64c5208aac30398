"""From a database to a live table by the real parts: PostgreSQL, Debezium, Kafka, Spark."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.change_data import jobs
from tests.change_data.source import Source
from tests.maven import MISSING, client
from tests.postgres import MISSING as NO_POSTGRES
from tests.postgres import programs
from tests.spark_process import SparkProcess

pytestmark = [pytest.mark.slow, pytest.mark.together]

TOTALS = "SELECT customer, sum(amount), count(*), max(ordered) FROM {} GROUP BY customer"
INSERT = "INSERT INTO inv.orders (id, customer, amount, ordered, due) VALUES "
PHASES: list[list[str | list[str]]] = [
    [f"{INSERT} (1, 'north', 10.25, '2025-01-31 10:00', null), (2, 'south', -7.5, '2025-02-01 00:00:00.000001', null)"],
    ["UPDATE inv.orders SET customer = 'south' WHERE id = 1", "DELETE FROM inv.orders WHERE id = 2"],
    [["UPDATE inv.orders SET id = 7, amount = 0.01", f"{INSERT} (8, 'east', 99999999.99, '1969-12-31', '2025-02-28')"]],
    ["DELETE FROM inv.orders WHERE customer = 'south'"],
]


def test_the_parts_are_there() -> None:
    """The programs that no package brings are installed; without them the other tests are skipped."""
    assert client() is not None, MISSING
    assert programs() is not None, NO_POSTGRES


def test_a_table_follows_a_database(source: Source, spark: SparkProcess, tmp_path: Path) -> None:
    """After each phase the table has what the database itself answers, by the connector's default settings."""
    file = tmp_path / "totals.duckdb"
    for phase in PHASES:
        source.run(phase)
        source.caught_up()
        target = f"duckdb://{file}?table=totals"
        spark.ask(jobs.orders_to_table, source.broker, "defaults.inv.orders", target, tmp_path / "checkpoint")
        with duckdb.connect(str(file), read_only=True) as connection:
            found = connection.execute("SELECT customer, amount, orders, last FROM totals").fetchall()
        assert sorted(found) == sorted(source.ask(TOTALS.format("inv.orders")))
