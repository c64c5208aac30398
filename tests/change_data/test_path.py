"""From a database to a live table by the real parts: PostgreSQL, Debezium, Kafka, Spark."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import duckdb
import pytest

from tests.change_data import jobs
from tests.change_data.modes import WAYS
from tests.change_data.source import HERE, Source
from tests.change_data.workload import ORDERS, both
from tests.maven import MISSING, client
from tests.postgres import MISSING as NO_POSTGRES
from tests.postgres import programs
from tests.spark_process import SparkProcess, spark_process
from tests.spark_sessions import NOT_CONNECTED

pytestmark = [pytest.mark.slow, pytest.mark.together]

TOTALS = "SELECT customer, sum(amount), count(*), max(ordered) FROM {} GROUP BY customer"
INSERT = f"INSERT INTO TABLE {ORDERS}"
PHASES: list[list[str]] = [
    both(
        [
            f"{INSERT} (101, 'path', 10.25, 1, NULL, '2025-01-31 10:00', NULL, NULL, NULL)",
            f"{INSERT} (102, 'south', -7.5, 1, NULL, '2025-02-01 00:00:00.000001', NULL, NULL, NULL)",
        ],
        "orders",
        "orders_key",
    ),
    both(
        ["UPDATE TABLE SET customer = 'south' WHERE id = 101", "DELETE FROM TABLE WHERE id = 102"],
        "orders",
        "orders_key",
    ),
    both(
        [
            "UPDATE TABLE SET id = 107, amount = 0.01 WHERE id = 101",
            f"{INSERT} (108, 'far', 99999999.99, 1, NULL, '1969-12-31', NULL, '2025-02-28', NULL)",
        ],
        "orders",
        "orders_key",
    ),
    both(["DELETE FROM TABLE WHERE customer = 'south'"], "orders", "orders_key"),
]


def test_the_programs_that_no_package_brings_are_installed() -> None:
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
            result = connection.execute("SELECT customer, amount, orders, last FROM totals").fetchall()
        assert sorted(result) == sorted(source.ask(TOTALS.format("inv.orders")))


@pytest.mark.parametrize("table", ["orders", "orders_key"])
@pytest.mark.parametrize("way", ["defaults", "payload", *WAYS])
def test_partitions_and_aborted_transactions_of_kafka_change_nothing(
    source: Source, spark: SparkProcess, way: str, table: str
) -> None:
    """Topics of several partitions and aborted transactions change nothing; with keys, old rows need not be whole."""
    keys = "id" if table == "orders_key" else None
    result = spark.ask(jobs.totals_in_batch, source.broker, f"{way}.inv.{table}", keys)
    assert sorted(result) == sorted(source.ask(TOTALS.format(f"inv.{table}")))


def test_the_topic_has_events_of_aborted_transactions(source: Source, spark: SparkProcess) -> None:
    """Without `kafka.isolation.level` Spark reads what transactions aborted, so the option is needed."""
    result = spark.ask(jobs.totals_in_batch, source.broker, "aborted.inv.orders", None, isolation="read_uncommitted")
    (rows,) = (orders for customer, _, orders, _ in result if customer == "north")
    assert source.ask("SELECT 2 * count(*) FROM inv.orders WHERE customer = 'north'") == [(rows,)]


def round_of_changes(number: int) -> list[str]:
    """Return statements that move, change, insert and delete rows."""
    insert, some = "INSERT INTO TABLE (id, customer, amount, qty, price, ordered) VALUES", "id >= 200 AND id % 3"
    statements = [
        f"{insert} ({200 + number}, 'c{number % 4}', {number}.25, 1, NULL, '2025-03-01 00:00:0{number}')",
        f"UPDATE TABLE SET customer = 'c{number % 3}' WHERE {some} = {number % 3}",
        f"UPDATE TABLE SET amount = amount + 1, ordered = ordered + interval '1 day' WHERE {some} = {(number + 1) % 3}",
        f"DELETE FROM TABLE WHERE id = {198 + number}",
        f"{insert} ({300 + number}, 'brief', 1, 1, NULL, '2025-03-01')",
        f"DELETE FROM TABLE WHERE id = {300 + number}",
    ]
    return both(statements, "orders", "orders_key")


def end(source: Source, spark: SparkProcess, folder: Path, points: dict[str, str]) -> None:
    """Run queries into targets until each has ended at its point. On a busy machine some end elsewhere before."""
    while points:
        ends = spark.ask(jobs.totals_everywhere, source.broker, folder, points)
        again = {target: point for target, point in points.items() if NOT_CONNECTED in ends.get(target, "")}
        for target in points.keys() - again.keys():
            assert (target in ends) == bool(points[target]), f"{target}: {ends}"
            assert points[target] in ends.get(target, ""), f"{target}: {ends[target]}"
        points = again


def test_a_table_equals_the_database_after_drivers_died_at_each_point(
    source: Source, spark: SparkProcess, tmp_path: Path
) -> None:
    """After 24 deaths at three points of each of three targets, all have what the database answers, Kafka's too."""
    deaths = []
    for number in range(10):
        source.run(round_of_changes(number))
        source.caught_up()
        dying = {target: jobs.DEATHS[(number + place) % 3] for place, target in enumerate(jobs.TARGETS)}
        if number % 5 == 4:
            dying = dict.fromkeys(dying, "")
        end(source, spark, tmp_path, dying)
        deaths += [(target, point) for target, point in dying.items() if point]
        if not any(dying.values()):
            with duckdb.connect(str(tmp_path / "totals.duckdb"), read_only=True) as connection:
                result = connection.execute("SELECT customer, amount, orders, last FROM totals").fetchall()
            assert sorted(result) == sorted(source.ask(TOTALS.format("inv.orders")))
            for target in (jobs.EVENTS, jobs.UPSERTS):
                result = spark.ask(jobs.totals_in_kafka, source.broker, target, tmp_path)
                table = jobs.SOURCES[target].partition(".")[2]
                assert (target, sorted(result)) == (target, sorted(source.ask(TOTALS.format(table))))
    assert (len(deaths), len(set(deaths))) == (24, 9)


@pytest.mark.parametrize("point", jobs.POINTS)
def test_a_killed_driver_loses_and_repeats_nothing(source: Source, tmp_path: Path, point: str) -> None:
    """The next driver goes on, and the table has each epoch once."""
    file, folder = tmp_path / "totals.duckdb", tmp_path / "spark"
    arguments = (source.broker, "payload.inv.orders", f"duckdb://{file}?table=totals", tmp_path / "checkpoint")
    with spark_process(folder, HERE / "jars-spark.txt") as driver, pytest.raises(BrokenProcessPool):
        driver.ask(jobs.orders_to_table, *arguments, kill=point)
    with spark_process(folder, HERE / "jars-spark.txt") as driver:
        driver.ask(jobs.orders_to_table, *arguments)
    with duckdb.connect(str(file), read_only=True) as connection:
        result = connection.execute("SELECT customer, amount, orders, last FROM totals").fetchall()
    assert sorted(result) == sorted(source.ask(TOTALS.format("inv.orders")))
