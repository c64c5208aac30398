"""Exactly once with real drivers: Spark's processes are killed, and the table has the batch result after each start.

A driver has queries into tables of all kinds, each with a checkpoint of its own. They stop at points of their epochs,
and the driver is killed when all of them are there, or at any time. `KILLS=200` in the environment kills drivers until
200 queries were killed (`-s` shows how many of each kind, and where). `SEED` chooses other points.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.killed_table import AMID, BETWEEN
from tests.spark.test_kill import ROOT, kill_group
from tests.tables.conftest import postgres
from tests.tables.kinds import DeltaFiles, DuckDBFile, Kind, PostgresDatabase
from tests.tables.orders import KEYS, Orders, totals_in
from tests.tables.replayed import COLUMNS
from tests.wire.kit import eventually

__all__ = ["postgres"]

ANY, AFTER, WAITING = "at any time", "after a commit of Spark", "before its turn in DuckDB"
KILLS = int(os.environ.get("KILLS", "12"))
QUERIES = 4 if KILLS > 12 else 1  # of each kind
SEED = int(os.environ.get("SEED", "20130101"))


class Query:
    """A query into a table. Each start of the driver finds some epochs of input."""

    def __init__(self, kind: Kind, folder: Path, seed: int) -> None:
        self.kind, self.folder = kind, folder
        self.orders, self.results = Orders(seed), [{}]
        self.target = kind.target("killed", COLUMNS, KEYS, create=True, add_columns=False)
        self.target.prepare()
        (folder / "target").write_bytes(pickle.dumps(self.target))

    def committed(self) -> int:
        """Return the last epoch that Spark has committed, or -1."""
        commits = self.folder / "checkpoint" / "commits"
        return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)

    def stored(self) -> int:
        """Return the last epoch that the table has, or -1."""
        metadata = self.folder / "checkpoint" / "metadata"
        last = self.target.last_epoch(json.loads(metadata.read_text())["id"]) if metadata.exists() else None
        return -1 if last is None else last

    def files(self, epoch: int) -> int:
        """Return how many files an epoch and those before it have: two, if a driver is killed while it plans one."""
        if epoch < 0:
            return 0
        offsets = (self.folder / "checkpoint" / "offsets" / str(epoch)).read_text()
        return int(json.loads(offsets.splitlines()[-1])["logOffset"]) + 1

    def prepare(self, point: str, ahead: int) -> None:
        """Write more input, and choose the point of the next start, that many epochs after the table's last one."""
        stored_rows = self.stored()
        self.point, self.epoch = point, stored_rows + 1 + ahead
        while len(self.results) - 1 < self.files(stored_rows) + ahead + 3:
            self.orders.write(self.folder / "input", len(self.results) - 1, 20)
            self.results.append(self.orders.totals())
        (self.folder / "kill").write_text(f"{point}|{self.epoch}")

    def check(self, *, was_killed: bool) -> None:
        """The table has the batch result of an epoch: the last one of Spark, or the next."""
        last = self.committed()
        while True:
            stored_rows, rows = self.stored(), self.kind.rows("killed")
            if stored_rows == self.stored():
                break  # a server may end a commit after its client is dead
        where = f"{self.folder}: Spark has epoch {last}, the table {stored_rows}; {self.point}|{self.epoch}"
        if was_killed and self.point:
            assert (last, stored_rows) == (self.epoch - 1, self.epoch if self.point == BETWEEN else self.epoch - 1), (
                where
            )
        assert stored_rows in {last, last + 1}, where
        assert totals_in(rows) == self.results[self.files(stored_rows)], where


class Driver:
    """A process with all queries, which is killed and started again."""

    def __init__(self, folder: Path, queries: list[Query]) -> None:
        self.folder, self.queries = folder, queries

    def start(self, when: str, delay_s: float) -> tuple[int, str]:
        """Start the driver and let it die, or end. Return how it ended, and the last lines of its errors."""
        with (self.folder / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.killed_table", str(self.folder)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'service'}{os.pathsep}{ROOT}"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            assert process.stdout is not None
            before = [query.committed() for query in self.queries]
            assert process.stdout.readline() == "STARTED\n", self._said()
            if when == AFTER:
                eventually(lambda: process.poll() is not None or before != self._committed(), timeout_s=120)
            if when:
                self._kill_after(process, delay_s)
            return process.wait(300), self._said()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also the JVM of a Python process that has killed itself
            process.wait()
            process.stdout.close()

    def _committed(self) -> list[int]:
        return [query.committed() for query in self.queries]

    def _said(self) -> str:
        return (self.folder / "errors").read_text()[-20_000:]

    def _kill_after(self, process: subprocess.Popen[str], seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill_group(process)


def queries_of(folder: Path, postgres: str) -> list[Query]:
    result = []
    for number in range(3 * QUERIES):
        own = folder / f"{number:02}"
        own.mkdir()
        kinds = (
            DeltaFiles,
            lambda own: DuckDBFile(own / "t.duckdb"),
            lambda own: PostgresDatabase(postgres, f"s{uuid.uuid4().hex}"),
        )
        result.append(Query(kinds[number % 3](own), own, SEED + number))
    return result


def points(queries: list[Query], chance: random.Random) -> list[str]:
    """Return where each query stops. Those in DuckDB take turns: if one stops in its epoch, the others wait."""
    result = [chance.choice((BETWEEN, BETWEEN, AMID)) for _ in queries]
    ducks = [place for place, query in enumerate(queries) if isinstance(query.kind, DuckDBFile)]
    if AMID in {result[place] for place in ducks}:
        for place in ducks:
            result[place] = AMID if place == ducks[0] else ""
    return result


@pytest.mark.slow
def test_a_killed_driver_loses_and_repeats_nothing(postgres: str, tmp_path: Path) -> None:
    """After each kill, each table has the batch result of an epoch: the last one of Spark, or the next."""
    chance, counts, number = random.Random(SEED), Counter(), 0
    driver = Driver(tmp_path, queries_of(tmp_path, postgres))
    while counts.total() < KILLS:
        when = ("", AFTER, "", ANY)[number % 4]
        for query, point in zip(driver.queries, points(driver.queries, chance), strict=True):
            query.prepare("" if when else point, chance.randrange(2))
        code, output = driver.start(when, chance.uniform(0.0, 0.5 if when == AFTER else 10.0))
        assert code in ({0, -signal.SIGKILL} if when else {-signal.SIGKILL}), output
        for query in driver.queries:
            query.check(was_killed=code != 0)
            counts[f"{type(query.kind).__name__} {query.point or when or WAITING}"] += code != 0
        number += 1
        print(f"{number} drivers, {counts.total()} queries: {dict(counts)}", flush=True)
    for query in driver.queries:
        query.prepare("", 0)
    code, output = driver.start("", 0.0)
    assert code == 0, output
    for query in driver.queries:
        query.check(was_killed=False)
        assert query.files(query.committed()) == len(query.results) - 1
