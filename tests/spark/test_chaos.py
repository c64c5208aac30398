"""Chaos: servers are killed, paused, drained and restarted under a stream and a batch query, and nothing shows."""

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
from pathlib import Path

import pytest

from tests.spark.test_kill import ROOT, prepared, result
from tests.wire.kit import ServerProcess
from tests.wire.test_lifecycle import free_port

SEED = 20260101
SERVERS = 3
TAKEOVER = re.compile(r"an exchange goes on at \S+ after ([\d.]+) s, with (\d+) rows sent again")


class Chaos(threading.Thread):
    """Harms servers, one after another, from one seed; one at least is left alone, except for one moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="chaos")
        self.harms: Counter[str] = Counter()
        self.stop = threading.Event()
        self._chance = random.Random(SEED)
        self._folder = folder
        self._ports = [free_port() for _ in range(SERVERS)]
        self._starts = 0
        self.urls = ",".join(f"grpc://127.0.0.1:{port}" for port in self._ports)
        self.servers = [self._served_at(port) for port in self._ports]
        for server in self.servers:
            server.await_ready()

    def run(self) -> None:
        began_s = time.monotonic()
        while not self.stop.wait(self._chance.uniform(0.2, 1.0)):
            if time.monotonic() - began_s > 25 and not self.harms["kill all"]:
                self._kill_all()
            else:
                self._harm(self._chance.randrange(SERVERS))

    def end(self) -> None:
        """Stop, and end all servers."""
        self.stop.set()
        if self.is_alive():
            self.join()
        for server in self.servers:
            server.end()

    def _harm(self, place: int) -> None:
        server, harm = self.servers[place], self._chance.choice(["kill", "kill", "pause", "drain"])
        self.harms[harm] += 1
        if harm == "pause":
            # Longer than the deadline of the query: it is given up, and speaks again when nobody listens.
            server.process.send_signal(signal.SIGSTOP)
            self.stop.wait(self._chance.choice([0.5, 10.0]))
            server.process.send_signal(signal.SIGCONT)
            return
        if harm == "drain":
            server.terminate()
            self.stop.wait(1.0)
        server.end()
        self.stop.wait(self._chance.uniform(0.0, 1.0))
        self._restart(place)

    def _kill_all(self) -> None:
        self.harms["kill all"] += 1
        for server in self.servers:
            server.end()
        self.stop.wait(3.0)
        for place in range(SERVERS):
            self._restart(place)

    def _restart(self, place: int) -> None:
        self.servers[place] = self._served_at(self._ports[place])
        self.servers[place].await_ready()

    def _served_at(self, port: int) -> ServerProcess:
        self._starts += 1
        settings = {"modules": "tests.spark.spark_functions", "port": port, "drain_s": 5}
        return ServerProcess(settings, self._folder / f"server-{self._starts}.log")


@pytest.mark.slow
def test_queries_over_servers_in_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stream's changelog and the batches are right, and no task of Spark has failed."""
    rows = prepared(tmp_path)
    chaos = Chaos(tmp_path)
    errors = tmp_path / "stderr"
    try:
        with errors.open("w") as stderr:
            query = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.chaos_query", str(tmp_path), chaos.urls],
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
            said, _ = query.communicate(timeout=900)
        finally:
            if query.poll() is None:
                os.killpg(query.pid, signal.SIGKILL)
                query.wait()
            query.stdout.close()
    finally:
        chaos.end()
    takeovers = [(float(stall), int(again)) for stall, again in TAKEOVER.findall(errors.read_text())]
    with capsys.disabled():
        print(
            f"\n{time.monotonic() - began_s:.0f} s of chaos: {dict(chaos.harms)}; {len(takeovers)} exchanges moved, "
            f"{sum(again for _, again in takeovers)} rows were folded again, the worst stall was "
            f"{max((stall for stall, _ in takeovers), default=0.0):.1f} s"
        )
    assert query.returncode == 0, errors.read_text()[-3000:]
    assert said.splitlines() == ["STREAMED", "BATCHES 5 of 5", "FAILED TASKS 0"]
    assert result(tmp_path) == rows.table()
    assert sum(chaos.harms.values()) >= 10
    assert takeovers
