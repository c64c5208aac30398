"""Exactly once with real drivers: Spark's processes are killed, and the table has the batch result after each start.

`KILLS=200 pytest tests/spark/test_table_kills.py -s` kills 200 drivers of each kind of target in turn, and takes about
half an hour. `SEED` chooses other points.
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
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.killed_table import AMID, BETWEEN
from tests.spark.test_kill import ROOT, kill_group
from tests.tables.conftest import kind, postgres
from tests.tables.kinds import Kind
from tests.tables.orders import KEYS, Orders, totals_in
from tests.tables.replayed import COLUMNS
from tests.wire.kit import eventually

__all__ = ["kind", "postgres"]

POINTS = (BETWEEN, "after a commit", AMID, "any time")
KINDS = ["postgresql", "duckdb", "delta"] if "KILLS" in os.environ else ["postgresql"]
KILLS = int(os.environ.get("KILLS", len(POINTS))) // len(KINDS)
SEED = int(os.environ.get("SEED", "20130101"))


class Driver:
    """A query into a table whose driver is killed and started again. Each start finds two more epochs."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.orders, self.results = Orders(SEED), [{}]
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

    def table(self) -> Any:
        """Return the totals in the table."""
        return totals_in(self.kind.rows("killed"))

    def start(self, point: str, epoch: int, chance: random.Random) -> tuple[int, str]:
        """Start the driver and let it die, or end. Return how it ended, and the last lines of its errors."""
        for _ in range(2):
            self.orders.write(self.folder / "input", len(self.results) - 1, 20)
            self.results.append(self.orders.totals())
        (self.folder / "kill").write_text(f"{point}|{epoch}")
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
            if point == "any time":
                self._kill_after(process, chance.uniform(0.0, 8.0))
            else:
                assert process.stdout.readline() == "STARTED\n", (self.folder / "errors").read_text()[-20_000:]
                if point == "after a commit":
                    before = self.committed()
                    eventually(lambda: process.poll() is not None or self.committed() > before, timeout_s=120)
                    self._kill_after(process, chance.uniform(0.0, 0.5))
            return process.wait(300), (self.folder / "errors").read_text()[-20_000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also the JVM of a Python process that has killed itself
            process.wait()
            process.stdout.close()

    def _kill_after(self, process: subprocess.Popen[str], seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill_group(process)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_driver_that_is_killed(kind: Kind, tmp_path: Path) -> None:
    """After each kill, the table has the batch result of an epoch: the last one of Spark, or the next."""
    driver, chance, counts = Driver(kind, tmp_path), random.Random(SEED), Counter()
    for number in range(KILLS):
        point = POINTS[number] if number < len(POINTS) else chance.choice((BETWEEN, BETWEEN, *POINTS))
        epoch = driver.stored() + 1 + chance.randrange(2)
        code, said = driver.start(point, epoch, chance)
        last, stored = driver.committed(), driver.stored()
        assert code in ({-signal.SIGKILL} if point in {BETWEEN, AMID} else {0, -signal.SIGKILL}), said
        if point in {BETWEEN, AMID}:
            assert (last, stored) == (epoch - 1, epoch if point == BETWEEN else epoch - 1)
        assert stored in {last, last + 1}
        assert driver.table() == driver.results[stored + 1]
        counts[f"{point}: {'killed' if code else 'ended before'}"] += 1
        print(f"{type(kind).__name__} {number + 1}: {point}, Spark has epoch {last}, the table {stored}", flush=True)
    code, said = driver.start("", -1, chance)
    assert code == 0, said
    assert driver.committed() == len(driver.results) - 2
    assert driver.table() == driver.results[-1]
    print(dict(counts), flush=True)
