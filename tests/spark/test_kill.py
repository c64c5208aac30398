"""Exactly once: a query whose processes are killed at random moments ends with the batch result."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.test_stream import SCHEMA, Model, apply
from tests.wire.kit import eventually

ROOT = Path(__file__).parents[2]
EPOCHS = 14
KILLS = 5
WORKER_KILLS = 4
# The share of kills after the first epoch of a start. The others come while the query starts.
AFTER_AN_EPOCH = 0.75
SEED = 20130101


def prepare(folder: Path, epochs: int = EPOCHS) -> Model:
    """Write the input of all epochs."""
    for name in ("input", "output"):
        (folder / name).mkdir()
    rows = Model(seed=SEED, retracts=True)
    for number in range(epochs):
        path = folder / "input" / f"{number:04}.parquet"
        pq.write_table(pa.Table.from_pylist(rows.epoch(15), schema=SCHEMA), path)
        os.utime(path, (number + 1, number + 1))
    return rows


def start(folder: Path) -> subprocess.Popen[str]:
    """Start the query in a process group of its own: Python, Java and Spark's Python workers."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.killed_query", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'service'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def result(folder: Path) -> dict[Any, dict[str, Any]]:
    """Apply the changelogs of all epochs in order; a contradictory change fails."""
    table: dict[Any, dict[str, Any]] = {}
    for path in sorted((folder / "output").glob("*.json")):
        apply(table, json.loads(path.read_text()), update_before=True)
    return table


def await_epoch(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until a query has written the output of an epoch, or has ended."""
    before = len(list((folder / "output").glob("*.json")))
    eventually(
        lambda: process.poll() is not None or len(list((folder / "output").glob("*.json"))) > before, timeout_s=120
    )


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_the_driver_may_be_killed_at_any_instant(tmp_path: Path) -> None:
    """Killed with SIGKILL at random moments and restarted, the query ends with the batch result."""
    rows = prepare(tmp_path)
    chance = random.Random(SEED)
    kills = 0
    while True:
        process = start(tmp_path)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "STARTED\n":
                pytest.fail("the query did not start")
            try:
                if kills < KILLS and chance.random() < AFTER_AN_EPOCH:
                    await_epoch(process, tmp_path)
                # An epoch takes some tenths of a second: within these times it reads, folds, commits or writes.
                code = process.wait(chance.uniform(0.05, 1.5) if kills < KILLS else 600)
                break
            except subprocess.TimeoutExpired:
                assert kills < KILLS, "the query did not end"
                kills += 1
        finally:
            if process.poll() is None:
                kill_group(process)
            if process.stdout is not None:
                process.stdout.close()
    assert code == 0
    assert kills >= KILLS // 2
    assert result(tmp_path) == rows.table()


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes below this one that run Spark's Python workers."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"pyspark" in command and b"daemon" in command and _descends(int(entry.name), process.pid):
                result.append(int(entry.name))
    return result


@pytest.mark.slow
def test_python_workers_may_be_killed_at_any_instant(tmp_path: Path) -> None:
    """While Spark's Python workers are killed repeatedly, tasks are retried and the result is right."""
    rows = prepare(tmp_path)
    chance = random.Random(SEED)
    kills = 0
    while True:
        before = kills
        process = start(tmp_path)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "STARTED\n":
                pytest.fail("the query did not start")
            while process.poll() is None and kills < WORKER_KILLS:
                kills += killed_worker(process, chance)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(chance.uniform(1.0, 3.0))
            code = process.wait(600)
        finally:
            if process.poll() is None:
                kill_group(process)
            if process.stdout is not None:
                process.stdout.close()
        if code == 0:
            break
        # A task may be killed more often than Spark retries it; then the query fails, and goes on when started again.
        assert kills > before, "the query failed, and nobody was killed"
    assert kills > WORKER_KILLS // 3
    assert result(tmp_path) == rows.table()


def killed_worker(process: subprocess.Popen[str], chance: random.Random) -> bool:
    """Kill one of Spark's Python workers; return whether there was one."""
    if not (mine := workers_of(process)):
        return False
    try:
        os.kill(chance.choice(mine), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _descends(pid: int, ancestor: int) -> bool:
    """Return whether one process was started by another, directly or indirectly."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(status.rpartition(")")[2].split()[1])
    return False
