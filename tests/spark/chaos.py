"""Servers are killed, paused, drained and restarted under a stream and a batch query; results stay right."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tests.spark.chaos_query import BATCHES_MIN, ENOUGH
from tests.spark.test_kill import ROOT, prepare, result

SEED = 20260101
KILL_ALL_AFTER_S = 10
EPOCHS = 30
HARMS_MIN = 10  # the queries go on until so many faults were applied
TAKEOVER = re.compile(r"an exchange goes on at another server .*stall_s=([\d.]+) rows_sent_again=(\d+)")


class Harmed(Protocol):
    """Servers to which faults can be applied.

    Attributes:
        urls: What a client connects to.
        count: How many servers there are.
        harms: By name, functions that harm the server at a place. The harm is over when they return.
    """

    urls: str
    count: int
    harms: Mapping[str, Callable[[int], None]]

    def kill_all(self, silent_s: float) -> None:
        """Kill all servers at once, and start them again after a time."""


class Chaos(threading.Thread):
    """Applies faults to servers, one after another, determined by a seed; at least one server stays up, except once."""

    def __init__(self, servers: Harmed, enough: Path) -> None:
        """Make the thread.

        Args:
            servers: The servers.
            enough: A file that is made when enough faults were applied, or when one could not be.
        """
        super().__init__(name="chaos")
        self._enough = enough
        self.harms: Counter[str] = Counter()
        self.problem: Exception | None = None
        self._servers = servers
        self._stop_asked = threading.Event()
        self._chance = random.Random(SEED)

    def run(self) -> None:
        try:
            began_s = time.monotonic()
            while not self._stop_asked.wait(self._chance.uniform(0.2, 1.0)):
                if time.monotonic() - began_s > KILL_ALL_AFTER_S and not self.harms["kill all"]:
                    self.harms["kill all"] += 1
                    self._servers.kill_all(3.0)
                else:
                    harm = self._chance.choice([*self._servers.harms])
                    self.harms[harm] += 1
                    self._servers.harms[harm](self._chance.randrange(self._servers.count))
                if self.harms.total() >= HARMS_MIN:
                    self._enough.touch()
        except Exception as problem:
            self.problem = problem
            self._enough.touch()

    def end(self) -> None:
        """Stop after the last fault."""
        self._stop_asked.set()
        if self.is_alive():
            self.join()


def queries_in_chaos(servers: Harmed, folder: Path, capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """Run a stream and batches while faults are applied; check them; return how often each fault was applied.

    The stream's changelog and the batches are right, no task of Spark has failed, and exchanges have moved.
    """
    rows = prepare(folder, EPOCHS)
    chaos = Chaos(servers, folder / ENOUGH)
    errors = folder / "stderr"
    with errors.open("w") as stderr:
        query = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.chaos_query", str(folder), servers.urls],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'service'}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    assert query.stdout is not None
    try:
        assert query.stdout.readline() == "STARTED\n"
        began_s = time.monotonic()
        chaos.start()
        output, _ = query.communicate(timeout=900)
    finally:
        if query.poll() is None:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
        query.stdout.close()
        chaos.end()
    if chaos.problem is not None:
        raise chaos.problem
    takeovers = [(float(stall), int(again)) for stall, again in TAKEOVER.findall(errors.read_text())]
    with capsys.disabled():
        print(
            f"\n{time.monotonic() - began_s:.0f} s of chaos: {dict(chaos.harms)}; {len(takeovers)} exchanges moved, "
            f"{sum(again for _, again in takeovers)} rows were folded again, the worst stall was "
            f"{max((stall for stall, _ in takeovers), default=0.0):.1f} s"
        )
    assert query.returncode == 0, errors.read_text()[-3000:]
    stream_line, batches, failure_line = output.splitlines()
    assert (stream_line, failure_line) == ("STREAMED", "FAILED TASKS 0")
    match = re.fullmatch(r"BATCHES (\d+) of (\d+)", batches)
    assert match is not None, batches
    assert match[1] == match[2]
    assert int(match[2]) >= BATCHES_MIN
    assert result(folder) == rows.table()
    assert takeovers
    return chaos.harms
