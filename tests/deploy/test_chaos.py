"""Faults in the containers of the compose file, which the client reaches only through the balancer."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.kit import Fleet, docker
from tests.spark.chaos import SEED, queries_in_chaos
from tests.wire.kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("images")]

SERVERS = 3


class Containers:
    """Three servers behind the balancer."""

    def __init__(self, fleet: Fleet) -> None:
        self.urls = fleet.url
        self._fleet = fleet
        self.count = SERVERS
        self.harms = {"kill": self._kill, "pause": self._pause, "cut off": self._cut_off, "restart": self._restart}
        self._chance = random.Random(SEED)
        self._servers = fleet.servers()
        (self._network,) = json.loads(
            docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", self._servers[0])
        )

    def kill_all(self, silent_s: float) -> None:
        docker("kill", *self._servers)
        time.sleep(silent_s)
        docker("start", *self._servers)
        self._await_healthy(*self._servers)

    def _kill(self, place: int) -> None:
        docker("kill", self._servers[place])
        time.sleep(self._chance.uniform(0.0, 1.0))
        docker("start", self._servers[place])
        self._await_healthy(self._servers[place])

    def _pause(self, place: int) -> None:
        # Longer than the deadline of the query: it is given up, and speaks again when nobody listens. By a signal: the
        # container engine cannot freeze a container while a health check starts in it.
        docker("kill", "--signal", "STOP", self._servers[place])
        time.sleep(self._chance.choice([0.5, 10.0]))
        docker("kill", "--signal", "CONT", self._servers[place])

    def _cut_off(self, place: int) -> None:
        docker("network", "disconnect", self._network, self._servers[place])
        time.sleep(self._chance.choice([0.5, 10.0]))
        docker("network", "connect", "--alias", "server", self._network, self._servers[place])

    def _restart(self, place: int) -> None:
        docker("restart", "--time", "3", self._servers[place])
        self._await_healthy(self._servers[place])

    def _await_healthy(self, *servers: str) -> None:
        """Wait until servers that were started are ready: on a busy machine the next fault would hit the last one."""
        assert eventually(lambda: self._fleet.are_healthy(*servers), timeout_s=300), servers


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Three servers, with the functions of the queries, behind Envoy."""
    settings = {"FOLDFLIGHT_MODULES": "tests.spark.spark_functions", "FOLDFLIGHT_STATE_KEYS": "for-this-test-alone"}
    result = Fleet(f"chaos{os.getpid()}", **settings)
    try:
        result.up("server", "balancer", servers=SERVERS)
        assert eventually(lambda: result.are_balanced(SERVERS)), result.status()
        yield result
    finally:
        result.down()


def test_queries_succeed_while_containers_fail(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers are killed, paused, disconnected and restarted while queries run; no task fails."""
    harms = queries_in_chaos(Containers(fleet), tmp_path, capsys)
    assert sum(harms.values()) >= 5
