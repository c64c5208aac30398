"""Exactly once: a query whose processes are killed at random instants ends with the batch answer."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.test_stream import SCHEMA, Model, apply

ROOT = Path(__file__).parents[2]
EPOCHS = 40
KILLS = 24
SEED = 20130101


def prepared(folder: Path) -> Model:
    """Write the input of all epochs."""
    for name in ("input", "output"):
        (folder / name).mkdir()
    rows = Model(seed=SEED, retracts=True)
    for number in range(EPOCHS):
        path = folder / "input" / f"{number:04}.parquet"
        pq.write_table(pa.Table.from_pylist(rows.epoch(15), schema=SCHEMA), path)
        os.utime(path, (number + 1, number + 1))
    return rows


def started(folder: Path) -> subprocess.Popen[str]:
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
    """Apply the changelogs of all epochs, in order; a change that contradicts the table fails."""
    table: dict[Any, dict[str, Any]] = {}
    for path in sorted((folder / "output").glob("*.json")):
        apply(table, json.loads(path.read_text()), update_before=True)
    return table


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_the_driver_may_be_killed_at_any_instant(tmp_path: Path) -> None:
    """Killed with SIGKILL at dozens of random instants and restarted, the query ends with the batch answer."""
    rows = prepared(tmp_path)
    chance = random.Random(SEED)
    kills = 0
    while True:
        process = started(tmp_path)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "STARTED\n":
                pytest.fail("the query did not start")
            # An epoch takes some tenths of a second: within these times it is reading, folding, committing or writing.
            patience = chance.uniform(0.05, 4) if kills < KILLS else 240
            try:
                code = process.wait(patience)
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
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"pyspark" in command and b"daemon" in command and _descends(int(entry.name), process.pid):
                found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_python_workers_may_be_killed_at_any_instant(tmp_path: Path) -> None:
    """While Spark's Python workers are killed again and again, the query retries its tasks and ends with the answer."""
    rows = prepared(tmp_path)
    chance = random.Random(SEED)
    process = started(tmp_path)
    stop = threading.Event()
    kills = 0

    def killer() -> None:
        nonlocal kills
        while not stop.wait(chance.uniform(1.0, 3.0)):
            if mine := workers_of(process):
                try:
                    os.kill(chance.choice(mine), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    continue

    thread = threading.Thread(target=killer)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "STARTED\n"
        thread.start()
        code = process.wait(300)
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
        if process.poll() is None:
            kill_group(process)
        if process.stdout is not None:
            process.stdout.close()
    # A task may be killed more often than Spark retries it; then the query fails, and goes on when it is started again.
    if code != 0:
        again = started(tmp_path)
        assert again.wait(300) == 0
        assert again.stdout is not None
        again.stdout.close()
    assert kills > 3
    assert result(tmp_path) == rows.table()


def _descends(pid: int, ancestor: int) -> bool:
    """Tell whether one process was started by another, directly or not."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(status.rpartition(")")[2].split()[1])
    return False
