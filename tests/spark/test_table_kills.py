"""Exactly once with real drivers: Spark's processes are killed, and the table has the batch result after each start."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.test_kill import ROOT, kill_group
from tests.tables.conftest import postgres
from tests.tables.kinds import PostgresDatabase
from tests.tables.orders import Orders, totals_in
from tests.wire.kit import eventually

__all__ = ["postgres"]

EPOCHS = 8
BETWEEN = (1, 4)  # the epochs after whose commit the driver kills itself
AT_RANDOM = 2
SEED = 20130101


def committed(folder: Path) -> int:
    """Return the last epoch that Spark has committed, or -1."""
    return max((int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")), default=-1)


def await_commit(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until Spark has committed another epoch, or has ended."""
    before = committed(folder)
    eventually(lambda: process.poll() is not None or committed(folder) > before, timeout_s=120)


@pytest.mark.slow
def test_a_driver_killed_between_the_commits_and_at_random(postgres: str, tmp_path: Path) -> None:
    """After each kill, the table has the batch result of an epoch: the last one of Spark, or the next."""
    orders, results = Orders(SEED), [{}]
    for epoch in range(EPOCHS):
        orders.write(tmp_path / "input", epoch, 20)
        results.append(orders.totals())
    database, chance = PostgresDatabase(postgres, "public"), random.Random(SEED)
    between, at_random = list(BETWEEN), AT_RANDOM
    while True:
        (tmp_path / "kills").write_text(" ".join(map(str, between[:1])))
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.killed_table", str(tmp_path), postgres],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'service'}{os.pathsep}{ROOT}"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "STARTED\n"
            if not between and at_random:
                at_random -= 1
                await_commit(process, tmp_path)
                try:
                    process.wait(chance.uniform(0.0, 0.5))
                except subprocess.TimeoutExpired:
                    kill_group(process)
            code = process.wait(300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also the JVM of a Python process that has killed itself
            process.wait()
            process.stdout.close()
        said = (tmp_path / "errors").read_text()[-20_000:]
        last = committed(tmp_path)
        found = totals_in(database.rows("killed"))
        if between:
            assert code == -signal.SIGKILL, said
            assert (last, found) == (between[0] - 1, results[between[0] + 1])
            between.pop(0)
        else:
            assert code in {0, -signal.SIGKILL}, said
            assert found in results[last + 1 : last + 3]
        if code == 0:
            break
    assert (last, found) == (EPOCHS - 1, results[EPOCHS])
    assert at_random < AT_RANDOM
