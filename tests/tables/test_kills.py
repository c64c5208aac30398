"""Exactly once: the driver is killed at all points of an epoch, and connections are lost, also during the commit."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foldflight.errors import RetryableError
from foldflight.ext.tables.postgres import PostgresTable
from tests.tables import replayed
from tests.tables.kinds import Kind, PostgresDatabase
from tests.tables.orders import KEYS, Orders, totals_in
from tests.tables.proxy import Proxy

ROOT = Path(__file__).parents[2]
SEED = 20130101


class Driver:
    """Starts of a driver whose process is killed, one after the other."""

    def __init__(self, target: Any, folder: Path, epochs: int) -> None:
        self.log = folder / "committed"
        plan = folder / "plan"
        plan.write_bytes(pickle.dumps((target, self.log, SEED, epochs)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tables.replayed", str(plan)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'service'}{os.pathsep}{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, point: str = "", epoch: int = 0, kill_after_s: float | None = None) -> int:
        """Start the driver, kill it at a point or after a time, and return how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{point}|{epoch}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(child, signal.SIGKILL)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def committed(self) -> int:
        return int(self.log.read_text()) if self.log.exists() else -1

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def expected(epochs: int) -> Any:
    orders = Orders(SEED)
    for _ in range(epochs):
        orders.epoch(20)
    return orders.totals()


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        *((kind, 6) for kind in ("duckdb", "postgresql", "delta")),
        *(pytest.param(kind, 70, marks=pytest.mark.slow) for kind in ("duckdb", "postgresql", "delta")),
        pytest.param("iceberg", 12, marks=pytest.mark.slow),  # each start imports pyiceberg
    ],
    indirect=["kind"],
)
def test_a_killed_driver_loses_and_repeats_nothing(kind: Kind, tmp_path: Path, kills: int) -> None:
    """Killed at random points, above all between the two commits, the table equals the batch result after each start.

    A killed driver repeats the epoch that it has not written down. After each kill the table must be the table of this
    epoch or of the one before.
    """
    epochs = kills + 1
    chance = random.Random(SEED)
    driver = Driver(kind.target("t", replayed.COLUMNS, KEYS, create=True, add_columns=False), tmp_path, epochs)
    tables = [expected(number) for number in range(epochs + 1)]
    try:
        for _ in range(kills):
            epoch = driver.committed() + 1
            point = chance.choice((*replayed.POINTS, replayed.POINTS[2], "any"))
            if point == "any":
                code = driver.start("", 0, kill_after_s=chance.uniform(0.0, 0.05))
                assert code in {-signal.SIGKILL, 0}
            else:
                assert driver.start(point, epoch + chance.randint(0, 1)) == -signal.SIGKILL
            committed_epoch = driver.committed()
            if committed_epoch >= 0:
                assert totals_in(kind.rows("t")) in (
                    tables[committed_epoch + 1],
                    tables[min(committed_epoch + 2, epochs)],
                )
            if point == replayed.POINTS[2]:
                assert totals_in(kind.rows("t")) == tables[committed_epoch + 2]
        assert driver.start() == 0
        assert driver.committed() == epochs - 1
        assert totals_in(kind.rows("t")) == tables[epochs]
    finally:
        driver.close()


@pytest.fixture
def database(postgres: str) -> PostgresDatabase:
    return PostgresDatabase(postgres, "cuts")


@pytest.fixture
def proxy(postgres: str) -> Iterator[Proxy]:
    with Proxy(postgres) as proxy:
        yield proxy


@pytest.mark.parametrize("where", ["the parts", "the commit", "the answer to the commit"])
def test_a_lost_connection_loses_and_repeats_nothing(database: PostgresDatabase, proxy: Proxy, where: str) -> None:
    """An epoch whose connection is cut is applied again, and once: also if only the answer to the commit is lost."""
    name = where.replace(" ", "_")
    changelogs = replayed.epochs(SEED, 2)
    through = PostgresDatabase(proxy.url, "cuts").opened(name, replayed.COLUMNS, KEYS)
    through.apply(name, 0, replayed.parts(changelogs[0], lambda _: None))

    def cut(_: str) -> None:
        if where == "the parts":
            proxy.cut()

    if where != "the parts":
        proxy.cut_at_commit(sends_it=where == "the answer to the commit")
    with pytest.raises(RetryableError, match=f"the database of table cuts.{name} does not answer"):
        through.apply(name, 1, replayed.parts(changelogs[1], cut))
    assert through.last_epoch(name) == (1 if where == "the answer to the commit" else 0)
    through.apply(name, 1, replayed.parts(changelogs[1], lambda _: None))
    assert totals_in(database.rows(name)) == expected(2)


def test_an_old_driver_of_the_same_query_changes_nothing(database: PostgresDatabase) -> None:
    """If an old driver wakes up in the middle of an epoch that the new one has applied, it changes nothing."""
    changelogs = replayed.epochs(SEED, 2)
    old = database.opened("twice", replayed.COLUMNS, KEYS)
    new = database.opened("twice", replayed.COLUMNS, KEYS)
    for epoch in range(2):
        new.apply("twice", epoch, replayed.parts(changelogs[epoch], lambda _: None))
    old.apply("twice", 0, replayed.parts(changelogs[0], lambda _: pytest.fail("it reads the changes")))
    assert totals_in(database.rows("twice")) == expected(2)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    """A database that is not there is an error that names the table, and not the password."""
    url = "postgresql://me:secret@127.0.0.1:9/db"
    target = PostgresTable(url, ("t",), replayed.COLUMNS, KEYS, create=True, add_columns=False)
    with pytest.raises(RetryableError, match="the database of table t does not answer") as excinfo:
        target.prepare()
    assert "secret" not in str(excinfo.value)
