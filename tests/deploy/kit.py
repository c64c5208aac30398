"""A fleet from the compose file on a private container engine, and the load that checks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from foldflight.client import FlightTransport, OpenExchange
from foldflight.errors import RetryableError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.functions.query.call import Call
from tests.ports import free_port
from tests.wire.kit import end_epoch, open_request, rows

ROOT = Path(__file__).parents[2]
# What the compose file takes from a registry; here it is made of binaries that tools.sh has found.
FOREIGN = {"envoy": "envoyproxy/envoy:v1.40.0", "prometheus": "prom/prometheus:v3.5.0"}
IMAGES = {"server": "foldflight/server", "spark": "foldflight/spark"}
COUNT = Call("count")
REMEDY = 'run eval "$(tests/deploy/tools.sh start)" first: it starts the container engine and installs the programs'


def tool(name: str) -> str:
    """Return the path of a program. A missing program fails the test; it is never skipped."""
    result = shutil.which(name, path=f"{os.environ.get('DEPLOY_TOOLS', '')}:{os.environ['PATH']}")
    assert result, f"no {name}: {REMEDY}"
    return result


def run(*command: str, timeout_s: float = 600, check: bool = True, **more: Any) -> str:
    """Run a command and return what it prints."""
    process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **more)
    assert not check or process.returncode == 0, (
        f"{command}: {process.returncode}\n{process.stdout[-2000:]}{process.stderr[-4000:]}"
    )
    return process.stdout + ("" if check else process.stderr)


def docker(*arguments: str, **more: Any) -> str:
    """Run docker on the container engine that tools.sh has found or started."""
    return run(tool("docker"), *arguments, **more).strip()


def build_images() -> None:
    """Build our images, and the images that the compose file would pull."""
    base = os.environ["BASE_IMAGE"]
    for name, tag in FOREIGN.items():
        with tempfile.TemporaryDirectory() as context:
            shutil.copy(tool(name), context)
            arguments = ["--build-arg", f"BASE_IMAGE={base}", "--target", name, "--tag", tag]
            docker("build", "--quiet", *arguments, "--file", str(Path(__file__).with_name("Dockerfile")), context)
    for target, tag in IMAGES.items():
        arguments = ["--build-arg", f"BASE_IMAGE={base}", "--target", target, "--tag", tag]
        docker("build", "--quiet", *arguments, str(ROOT), timeout_s=1200)


class Fleet:
    """The services of the compose file, under a project name of their own."""

    def __init__(self, project: str, **environment: str) -> None:
        self.project = project
        self.ports = {name: free_port() for name in ("FLIGHT_PORT", "STATUS_PORT", "PROMETHEUS_PORT")}
        self._environment = {
            **os.environ,
            **{name: str(port) for name, port in self.ports.items()},
            **environment,
        }

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.ports['FLIGHT_PORT']}"

    def compose(self, *arguments: str, **more: Any) -> str:
        return docker("compose", "--project-name", self.project, *arguments, cwd=ROOT, env=self._environment, **more)

    def up(self, *services: str, servers: int = 2) -> None:
        self.compose("up", "--detach", "--no-build", "--wait", "--scale", f"server={servers}", *services)

    def down(self) -> None:
        self.compose("down", "--timeout", "2", "--volumes")

    def servers(self) -> list[str]:
        """Return the ids of the servers' containers."""
        return self.compose("ps", "--quiet", "server").split()

    def status(self) -> list[dict[str, Any]]:
        """Return the status that the servers behind the balancer report."""
        servers: list[dict[str, Any]] = FlightTransport([self.url], deadline_s=60).status()["servers"]
        return servers

    def are_balanced(self, number: int) -> bool:
        """Return whether this many servers are ready, and the balancer gives new exchanges to each of them."""
        try:
            status = self.status()
        except RetryableError:  # the balancer knows no server yet
            return False
        if [each.get("state") for each in status] != ["ready"] * number:
            return False
        transport = FlightTransport([self.url], deadline_s=60)
        with ExitStack() as stack:
            open_replies = [
                stack.enter_context(transport.open(open_request(COUNT))).open_reply for _ in range(4 * number)
            ]
        return len({each.server_id for each in open_replies}) == number

    def are_healthy(self, *servers: str) -> bool:
        """Return whether the container engine reports servers, by default all, as healthy."""
        format_ = "{{.State.Health.Status}}"
        return all(docker("inspect", "--format", format_, each) == "healthy" for each in servers or self.servers())

    def has_prometheus(self) -> bool:
        """Return whether Prometheus answers queries; it listens before it does."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports['PROMETHEUS_PORT']}/-/ready", timeout=60
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def prometheus(self, expression: str) -> list[dict[str, Any]]:
        """Ask the fleet's Prometheus and return the series."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports['PROMETHEUS_PORT']}/api/v1/query?{query}", timeout=60
        ) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def total(self, expression: str) -> float:
        """Return the sum over the series of an expression."""
        return sum(float(series["value"][1]) for series in self.prometheus(expression))


class Load:
    """Exchanges that fold without a pause, each in a thread, each of which checks every answer.

    Each epoch adds a known number of rows to a count: an answer that lost a row, or has one twice, is seen at once.

    Args:
        url: The servers.
        exchanges: How many.
        deadline_s: After which time without an answer a server is given up.
        pause_s: Between the epochs.
    """

    ROWS = 200

    def __init__(self, url: str, exchanges: int, *, deadline_s: float = 30, pause_s: float = 0.02) -> None:
        self._transport = FlightTransport([url], deadline_s=deadline_s, bounds=FailoverBounds(patience_s=90))
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.epochs = [0] * exchanges
        self.servers: list[set[str]] = [set() for _ in range(exchanges)]
        self.problems: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(place,)) for place in range(exchanges)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def seen(self) -> set[str]:
        """The servers on which any exchange has been."""
        return set().union(*self.servers)

    def goes_on(self) -> bool:
        """Return whether each exchange has finished an epoch since the last call. A problem fails the test."""
        if self.problems:
            raise self.problems[0]
        before, self._before = getattr(self, "_before", [-1] * len(self.epochs)), list(self.epochs)
        has_grown = [now > then for now, then in zip(self._before, before, strict=True)]
        if not all(has_grown):
            self._before = before
        return all(has_grown)

    def check(self) -> None:
        """Raise the first problem."""
        if self.problems:
            raise self.problems[0]
        assert all(self.epochs), f"exchanges that never answered: {self.epochs}"

    def _work(self, place: int) -> None:
        batch = rows(*((row % 7, 0) for row in range(self.ROWS)))
        expected = [sum(row % 7 == slot for row in range(self.ROWS)) for slot in range(7)]
        try:
            with self._transport.open(open_request(COUNT)) as exchange:
                epoch = 0
                while not self._stop.wait(self._pause_s):
                    epoch += 1
                    self._one_epoch(exchange, epoch, batch, expected)
                    self.epochs[place] = epoch
                    self.servers[place].add(exchange.open_reply.server_id)
        except BaseException as problem:  # the thread's own; `check` raises it
            self.problems.append(problem)

    @staticmethod
    def _one_epoch(exchange: OpenExchange, epoch: int, batch: Any, expected: list[int]) -> None:
        exchange.chunk(batch)
        result = end_epoch(exchange, epoch)["output_0"].to_pylist()
        assert result == [epoch * count for count in expected], f"epoch {epoch}: {result}"
