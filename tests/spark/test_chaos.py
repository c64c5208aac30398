"""Faults in server processes that the client knows individually."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.spark.chaos import SEED, queries_in_chaos
from tests.wire.kit import ServerProcess

SERVERS = 3


class Processes:
    """Servers, each a process with a fixed port."""

    def __init__(self, folder: Path) -> None:
        self.count = SERVERS
        self.harms = {"kill": self._kill, "pause": self._pause, "drain": self._drain}
        self._chance = random.Random(SEED)
        self._folder = folder
        self._ports = [free_port() for _ in range(SERVERS)]
        self._starts = 0
        self.urls = ",".join(f"grpc://127.0.0.1:{port}" for port in self._ports)
        self.servers: list[ServerProcess] = []

    def start(self) -> None:
        for port in self._ports:  # one after the other: what the first has compiled, the others read
            self.servers.append(self._served_at(port))
            self.servers[-1].await_ready()

    def kill_all(self, silent_s: float) -> None:
        self.end()
        time.sleep(silent_s)
        for place in range(SERVERS):
            self._restart(place)

    def end(self) -> None:
        for server in self.servers:
            server.end()

    def _kill(self, place: int) -> None:
        self.servers[place].end()
        time.sleep(self._chance.uniform(0.0, 1.0))
        self._restart(place)

    def _pause(self, place: int) -> None:
        # Longer than the deadline of the query: it is given up, and speaks again when nobody listens.
        process = self.servers[place].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._chance.choice([0.5, 10.0]))
        process.send_signal(signal.SIGCONT)

    def _drain(self, place: int) -> None:
        self.servers[place].terminate()
        time.sleep(1.0)
        self._kill(place)

    def _restart(self, place: int) -> None:
        self.servers[place] = self._served_at(self._ports[place])
        self.servers[place].await_ready()

    def _served_at(self, port: int) -> ServerProcess:
        self._starts += 1
        settings = {"modules": "tests.spark.spark_functions", "port": port, "drain_s": 5}
        return ServerProcess(settings, self._folder / f"server-{self._starts}.log")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Three servers."""
    servers = Processes(tmp_path)
    try:
        servers.start()
        yield servers
    finally:
        servers.end()


@pytest.mark.slow
def test_queries_succeed_while_servers_fail(
    processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers are killed, paused, drained and restarted while queries run; no task fails."""
    harms = queries_in_chaos(processes, tmp_path, capsys)
    assert sum(harms.values()) >= 10
