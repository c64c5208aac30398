"""Functions of the wire tests: opening and folding in few words, and servers in other processes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from foldflight import udaf
from foldflight.client import OpenExchange
from foldflight.client.exchange import SingleServerExchange
from foldflight.client.flight_transport import FlightConnection
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open, Returns
from foldflight.functions.query.call import Call
from tests.wire.forked import ForkedProcess

ROOT = Path(__file__).parents[2]
STATE_KEY = "a key for the wire tests"
# What a test waits for at most: nobody waits that long unless the test fails, so a busy machine may be very slow.
PATIENCE_S = 120.0
DEADLINE_S = 60.0
IMPATIENT = FailoverBounds(patience_s=0.0)
COLUMNS = pa.schema(
    [("slot", pa.int32()), ("kind", pa.int8()), ("value", pa.int64()), ("weight", pa.int32()), ("wanted", pa.bool_())]
)


def open_request(*calls: Call, columns: pa.Schema = COLUMNS, **more: Any) -> Open:
    """Return an Open that requests states and outputs by default."""
    return Open(calls=calls, columns=columns, returns=more.pop("returns", Returns(states=True, outputs=True)), **more)


def rows(*values: tuple[Any, ...], columns: pa.Schema = COLUMNS) -> pa.RecordBatch:
    """Return a chunk of rows (slot, kind, value, weight, wanted); the last three default to 1, 1 and true."""
    full_rows = [value + (0, 0, 1, 1, True)[len(value) :] for value in values]
    arrays = [pa.array([row[at] for row in full_rows], field.type) for at, field in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def end_epoch(exchange: OpenExchange, epoch: int) -> pa.Table:
    """Send a barrier and wait for its results."""
    exchange.barrier(epoch)
    return exchange.results(epoch)


def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """Wait until a condition is true. Return whether it became true in time."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def pause(pid: int) -> None:
    """Stop a process by SIGSTOP, and return when all of its threads have stopped: the signal takes effect later."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    assert eventually(lambda: all(_is_stopped(thread / "stat") for thread in threads.iterdir()))


def _is_stopped(stat: Path) -> bool:
    # The state follows the name of the command, which stands in parentheses and may contain others.
    return stat.read_text().rpartition(")")[2].split()[0] == "T"


def environment(*, tests: bool = True) -> dict[str, str]:
    """Return the environment of a process that can import foldflight, and the tests if requested."""
    path = [str(ROOT / "service")] + [str(ROOT)] * tests + [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def opened_apart(server: ServerProcess, open_request: Open) -> OpenExchange:
    """Open an exchange over a separate TCP connection, like another client process."""
    client = fl.FlightClient(server.url, generic_options=[("grpc.use_local_subchannel_pool", 1)])
    return SingleServerExchange(
        open_request, FlightConnection(open_request, client, server.url, deadline_s=DEADLINE_S, token=None)
    )


class ServerProcess:
    """A server in another process.

    Args:
        settings: Its settings, by name.
        log: Where its log goes.
        is_forked: Whether to fork it from a process in which all is imported, instead of starting an interpreter.
    """

    def __init__(self, settings: dict[str, Any], log: Path, *, is_forked: bool = False) -> None:
        settings = {"port": 0, "health_port": 0, "http_port": 0, "state_keys": STATE_KEY, **settings}
        self.log = log
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if is_forked:
            self.process = ForkedProcess(settings, log, environment())
        else:
            with log.open("wb") as stderr:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tests.wire.server_process", json.dumps(settings)],
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=environment(),
                )
        self.ready: dict[str, Any] = {}

    def await_ready(self, timeout_s: float = 180.0) -> None:
        """Read the ready line, and return it."""
        stdout = self.process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            assert selector.select(timeout_s), "no ready line in time"
        line = stdout.readline()
        assert line, f"the server did not start: {self.log.read_text()}"
        self.ready = json.loads(line)

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.ready['flight']}"

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def sum_with_factor(factor: int) -> type:
    """Return a function whose code differs by a variable, under one name and version."""

    def times(value: int) -> int:
        return value * factor

    @udaf(name="summing", input_types=["BIGINT"], result_type="BIGINT")
    class Summing:
        def create_accumulator(self) -> list[int]:
            return [0]

        def accumulate(self, accumulator: list[int], value: int) -> None:
            accumulator[0] += times(value)

        def merge(self, accumulator: list[int], other: list[int]) -> None:
            accumulator[0] += other[0]

        def get_value(self, accumulator: list[int]) -> int:
            return accumulator[0]

    return Summing
