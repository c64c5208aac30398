"""Fixtures of the wire tests: servers in this process and in others, and both transports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldflight.client import EmbeddedTransport, FlightTransport, Transport, close_connections, flight_transport
from foldflight.coroutines import PROCESS_LOOP
from foldflight.functions.query.call import Call
from foldflight.functions.registry import Registry
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.model_server import ModelServer
from tests.wire import wire_functions
from tests.wire.kit import DEADLINE_S, IMPATIENT, STATE_KEY, ServerProcess, open_request


def _start_servers(tmp_path: Path, *, is_forked: bool) -> Iterator[Callable[..., ServerProcess]]:
    processes: list[ServerProcess] = []

    def start(
        *, modules: str = "tests.wire.wire_functions", await_ready: bool = True, **settings: Any
    ) -> ServerProcess:
        log = tmp_path / f"server-{len(processes)}.log"
        server = ServerProcess({"modules": modules, **settings}, log, is_forked=is_forked)
        processes.append(server)
        if await_ready:
            server.await_ready()
        return server

    yield start
    for server in processes:
        server.end()


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start servers in other processes. Those that still run are ended with the test."""
    yield from _start_servers(tmp_path, is_forked=False)


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Like `spawn`, but faster: for tests that do not concern the start or end of a process."""
    yield from _start_servers(tmp_path, is_forked=True)


@pytest.fixture(scope="module")
def server() -> Iterator[ProcessServer]:
    """A server in this process."""
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0) as server:
        # The first connection may need more patience than the tests have, if the machine is busy.
        with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(Call("count"))):
            pass
        yield server
    close_connections()


@pytest.fixture
def flight(server: ProcessServer) -> FlightTransport:
    """A transport to `server`. Refusals are errors at once, because the server is available."""
    return FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)


@pytest.fixture(params=["embedded", "flight"])
def transport(request: pytest.FixtureRequest) -> Transport:
    """Both transports, in turn: the same must hold for both."""
    if request.param == "embedded":
        return EmbeddedTransport(Registry.load([wire_functions]), state_key=STATE_KEY.encode())
    result: Transport = request.getfixturevalue("flight")
    return result


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[threading.Thread]]:
    """The watchdog's threads of this test: it gets a watchdog of its own, whatever other tests have left open."""
    before = set(threading.enumerate())
    monkeypatch.setattr(flight_transport, "_watches", {})
    return lambda: {each for each in set(threading.enumerate()) - before if each.name == "foldflight-deadlines"}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server with models, whose port async functions read from the environment."""
    with ModelServer() as model:
        monkeypatch.setenv("MODEL_PORT", str(model.port))
        yield model
        PROCESS_LOOP.close_instances()  # the next test has another model
