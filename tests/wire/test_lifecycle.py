"""Servers that are unreachable, killed, hung, draining, or do not start; clients that disappear."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

from foldflight import udaf
from foldflight.client import FlightTransport, OpenExchange, connect
from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.ext.conformance.raw import RawServer
from foldflight.functions.query.call import Call
from foldflight.server import flight_server
from foldflight.server.ops.logs import make_logger
from foldflight.server.rpc_server import CallStatus, IncomingCall, VanishedError, send
from foldflight.server.run.lifecycle import EXIT_CUT_OFF, EXIT_DRAINED, ProcessServer, announce, run_server, serving
from foldflight.server.run.settings import load_settings
from tests.ports import free_port
from tests.wire import wire_functions
from tests.wire.kit import (
    COLUMNS,
    DEADLINE_S,
    IMPATIENT,
    PATIENCE_S,
    STATE_KEY,
    ServerProcess,
    end_epoch,
    environment,
    eventually,
    open_request,
    pause,
    rows,
)
from tests.wire.test_probes import page

COUNT = Call("count")
Spawn = Callable[..., ServerProcess]


# -- servers that fail a client --------------------------------------------------------------------------------------


# Longer than a test may take: a client that waited for it would not end in time.
_AN_HOUR_S = 3600


def test_an_unreachable_server_is_an_error_at_once() -> None:
    """Without a listener the error is UNREACHABLE at once, with the URL, at connect and at open."""
    url = f"grpc://127.0.0.1:{free_port()}"
    with pytest.raises(RetryableError) as excinfo:
        connect(url, deadline_s=_AN_HOUR_S)
    assert excinfo.value.code == "UNREACHABLE"
    assert url in excinfo.value.message
    with pytest.raises(RetryableError) as excinfo:
        FlightTransport([url], deadline_s=_AN_HOUR_S, bounds=IMPATIENT).open(open_request(COUNT))
    assert excinfo.value.code == "UNREACHABLE"


def test_a_port_that_never_answers_is_a_deadline_error() -> None:
    """A port that accepts connections and never answers is a DEADLINE error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RetryableError) as excinfo:
            connect(url, deadline_s=0.5)
    assert excinfo.value.code in {"DEADLINE", "UNREACHABLE"}


def test_a_server_killed_in_mid_exchange_is_retryable(fork: Spawn) -> None:
    """Without another server and patience, a killed server is a RetryableError, and so is the next open."""
    server = fork()
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)
    with transport.open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0)))
        server.process.kill()
        server.process.wait()
        with pytest.raises(RetryableError) as excinfo:
            end_epoch(exchange, 1)
    assert excinfo.value.code == "UNREACHABLE"
    with pytest.raises(RetryableError):
        transport.open(open_request(COUNT))


def opened_within_the_deadline(transport: FlightTransport) -> OpenExchange:
    """Open an exchange with a short deadline, as often as it takes a busy machine to be quick once."""
    exchanges: list[OpenExchange] = []

    def is_opened() -> bool:
        with contextlib.suppress(RetryableError):
            exchanges.append(transport.open(open_request(COUNT)))
        return bool(exchanges)

    assert eventually(is_opened)
    return exchanges[0]


def test_hung_server_meets_the_deadline(fork: Spawn) -> None:
    """A server that stops answering is lost after deadline_s, in an open exchange and in every other call."""
    server = fork()
    transport = FlightTransport([server.url], deadline_s=0.7, bounds=IMPATIENT)
    with opened_within_the_deadline(transport) as exchange:
        pause(server.process.pid)
        exchange.chunk(rows((0, 0)))
        with pytest.raises(RetryableError) as excinfo:
            end_epoch(exchange, 1)
    assert excinfo.value.code == "DEADLINE"
    for attempt in (transport.open, transport.describe):
        with pytest.raises(RetryableError) as excinfo:
            attempt(open_request(COUNT))
        assert excinfo.value.code in {"DEADLINE", "UNREACHABLE"}


def send_for_ever(exchange: OpenExchange, batch: pa.RecordBatch) -> None:
    """Send until an error."""
    while True:
        exchange.chunk(batch)


@pytest.mark.slow
def test_blocked_write_meets_the_deadline(fork: Spawn) -> None:
    """A write that the server does not read is ended after deadline_s, too."""
    server = fork()
    batch = rows(*[(0, 0)] * 50_000)
    transport = FlightTransport([server.url], deadline_s=0.7, bounds=IMPATIENT)
    with opened_within_the_deadline(transport) as exchange:
        pause(server.process.pid)
        with pytest.raises(RetryableError) as excinfo:
            send_for_ever(exchange, batch)
    assert excinfo.value.code == "DEADLINE"


def test_slow_function_within_the_deadline_is_waited_for(server: ProcessServer) -> None:
    """The deadline applies to one step, not to the whole exchange."""
    with FlightTransport([server.url], deadline_s=6.0).open(open_request(Call("slow", ("value",)))) as exchange:
        for epoch in range(1, 12):
            exchange.chunk(rows((0, 0, 600)))
            exchange.barrier(epoch)
            assert exchange.results(epoch)["output_0"].to_pylist() == [600 * epoch]
        assert exchange.coordinator.stats.losses == 0


FORKED = """
import os, sys
from tests.wire.kit import end_epoch, open_request, rows
from foldflight.client import FlightTransport
from foldflight.functions.query.call import Call
transport = FlightTransport([sys.argv[1]], deadline_s=60)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        with transport.open(open_request(Call("count"))) as exchange:
            exchange.chunk(rows((0, 0)))
            os._exit(end_epoch(exchange, 1)["output_0"][0].as_py())
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_transport_survives_a_fork(server: ProcessServer) -> None:
    """PySpark forks its workers: a transport made before the fork opens new connections in each child."""
    process = subprocess.run(
        [sys.executable, "-c", FORKED, server.url],
        capture_output=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.stdout.decode() == "[1, 1, 1]\n", process.stderr.decode()


def test_dead_server_is_passed_over(server: ProcessServer) -> None:
    """With several URLs, unavailable servers are skipped and the others are used in turn."""
    with serving(wire_functions, state_keys=STATE_KEY) as second:
        dead = f"grpc://127.0.0.1:{free_port()}"
        transport = FlightTransport([dead, server.url, second.url], deadline_s=DEADLINE_S)
        serving_ids = set()
        for _ in range(6):
            with transport.open(open_request(COUNT)) as exchange:
                serving_ids.add(exchange.open_reply.server_id)
        assert serving_ids == {server.server_id, second.server_id}
        assert len(connect(f"{dead},{server.url}")) > 10


def test_servers_take_turns(server: ProcessServer) -> None:
    """The exchanges of a client are distributed evenly over its servers."""
    with serving(wire_functions, state_keys=STATE_KEY) as other, contextlib.ExitStack() as stack:
        transport = FlightTransport([server.url, other.url], deadline_s=DEADLINE_S)
        assert eventually(lambda: server.flight.active == 0)  # without those that other tests have cut off
        for _ in range(4):
            stack.enter_context(transport.open(open_request(COUNT)))
        assert (server.flight.active, other.flight.active) == (2, 2)


def test_overloaded_server_is_passed_over(server: ProcessServer) -> None:
    """An exchange that a full server refuses is opened on the next."""
    with serving(wire_functions, state_keys=STATE_KEY, exchanges_max=1) as full:
        full_only = FlightTransport([full.url], deadline_s=DEADLINE_S)
        both = FlightTransport([full.url, server.url], deadline_s=DEADLINE_S)
        with full_only.open(open_request(COUNT)):
            for _ in range(4):
                with both.open(open_request(COUNT)) as exchange:
                    assert exchange.open_reply.server_id == server.server_id


# -- clients that fail a server --------------------------------------------------------------------------------------

CLIENT = """
import sys, time
import pyarrow as pa
from foldflight.client import FlightTransport
from tests.wire.kit import open_request, rows
from foldflight.functions.query.call import Call
exchange = FlightTransport([sys.argv[1]], deadline_s=60).open(open_request(Call("count")))
exchange.chunk(rows((0, 0)))
exchange.barrier(1)
exchange.results(1)
print("open", flush=True)
time.sleep(60)
"""


def test_vanished_client_is_noticed() -> None:
    """After a client is killed, the gauge returns to 0 and the end is counted as vanished."""
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0) as server:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.url],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        with client, client.stdout:  # type: ignore[union-attr]
            assert client.stdout.readline() == b"open\n"  # type: ignore[union-attr]
            assert "foldflight_exchanges_open 1.0" in page(server.probes.http_port, "/metrics")[1]
            client.kill()
        assert eventually(lambda: server.flight.active == 0)
        after = page(server.probes.http_port, "/metrics")[1]
        assert "foldflight_exchanges_open 0.0" in after
        assert 'foldflight_exchanges_ended_total{outcome="vanished"} 1.0' in after


class HalfReported:
    """The requests and the context of a call whose stream has ended, before gRPC tells whether its client has left."""

    def __init__(self, *, has_left: bool) -> None:
        self._has_left = has_left
        self._reads = 0

    def __next__(self) -> bytes:
        self._reads += 1
        raise StopIteration

    def is_active(self) -> bool:
        return not (self._has_left and self._reads > 1)


def test_the_end_of_a_stream_is_told_from_a_client_that_left() -> None:
    """The stream ends in both cases, and gRPC tells of the client a moment later."""
    left, ended = HalfReported(has_left=True), HalfReported(has_left=False)
    with pytest.raises(VanishedError):
        IncomingCall(None, left, left, lambda _: None).receive()
    assert IncomingCall(None, ended, ended, lambda _: None).receive() is None


def test_each_exchange_is_counted_by_how_its_client_left_it() -> None:
    """Clients that disconnect are counted apart from those that end their exchanges, also many at once."""
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)

        def leave(number: int) -> None:
            exchange = transport.open(open_request(COUNT))
            exchange.chunk(rows((0, 0)))
            if number % 2:
                exchange.cut()
            else:
                exchange.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(leave, range(20)))
        assert eventually(lambda: server.flight.active == 0)
        counts = page(server.probes.http_port, "/metrics")[1]
    for outcome in ("done", "vanished"):
        assert f'foldflight_exchanges_ended_total{{outcome="{outcome}"}} 10.0' in counts


def test_abandoned_exchange_is_cut_off(server: ProcessServer) -> None:
    """Leaving the block with an exception frees the server's resources, too."""
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
    with contextlib.suppress(LookupError), transport.open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0)))
        raise LookupError
    assert eventually(lambda: server.flight.active == 0)


def test_idle_exchange_is_ended() -> None:
    """An engine without a frame for idle_s_max loses its exchange; its next frame is answered with DEADLINE."""
    with serving(wire_functions, state_keys=STATE_KEY, idle_s_max=0.3) as server:
        with FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT).open(
            open_request(COUNT)
        ) as exchange:
            assert eventually(lambda: server.flight.active == 0)
            with pytest.raises(RetryableError) as excinfo:
                end_epoch(exchange, 1)
        assert excinfo.value.code == "DEADLINE"
        assert "idle_s_max" in excinfo.value.message


def test_a_slow_answer_is_not_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the engine takes counts for idle_s_max: not the time of a function before an answer is sent."""

    def send_slowly(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.3)
        send(*args, **kwargs)

    monkeypatch.setattr(flight_server, "send", send_slowly)
    request = open_request(Call("slow", ("value",)), row_outputs=True)
    with (
        serving(wire_functions, state_keys=STATE_KEY, idle_s_max=5.0) as server,
        FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT).open(request) as exchange,
    ):
        exchange.chunk(rows((0, 0, 5300)))
        assert exchange.row_outputs()["output_0"].to_pylist() == [5300]


def test_a_close_that_raises_does_not_end_the_watch() -> None:
    """An author's error while one idle exchange is ended does not prevent the end of others."""
    stubborn = Call("fails_to_close", (COLUMNS.names[2],))
    with serving(wire_functions, state_keys=STATE_KEY, idle_s_max=0.3) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        for _ in range(2):
            with contextlib.suppress(FoldflightError), transport.open(open_request(stubborn)):
                assert eventually(lambda: server.flight.active == 0)


def test_old_exchange_opens_afresh() -> None:
    """An exchange older than age_s_max moves at its barrier, with its states."""
    with (
        serving(wire_functions, state_keys=STATE_KEY, age_s_max=0) as server,
        FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT)) as exchange,
    ):
        for epoch in range(1, 4):
            exchange.chunk(rows((0, 0)))
            exchange.barrier(epoch)
            assert exchange.results(epoch)["output_0"].to_pylist() == [epoch]
            assert eventually(lambda: server.flight.active == 0)


def test_client_leaves_no_thread(server: ProcessServer, deadlines: Callable[[], set[threading.Thread]]) -> None:
    """The client's watchdog ends with the last exchange."""
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
    with transport.open(open_request(COUNT)):
        with transport.open(open_request(COUNT)):
            assert len(deadlines()) == 1
        assert len(deadlines()) == 1
    assert eventually(lambda: not deadlines())


def drop(exchanges: list[OpenExchange]) -> None:
    """Drop an exchange, and wait until nobody has it: the watchdog may look at it at this moment."""
    dropped_reference = weakref.ref(exchanges.pop())
    assert eventually(lambda: dropped_reference() is None)


def test_dropped_exchange_is_cut_off(server: ProcessServer, deadlines: Callable[[], set[threading.Thread]]) -> None:
    """An exchange that nobody closed, and nobody has any more, leaves nothing in the client or on the server."""
    assert eventually(lambda: server.flight.active == 0)  # without those that other tests have cut off
    exchanges = [FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT))]
    exchanges[0].chunk(rows((0, 0)))
    assert server.flight.active == 1
    with pytest.warns(ResourceWarning, match="dropped before it was closed"):
        drop(exchanges)
    assert eventually(lambda: server.flight.active == 0 and not deadlines())


# -- drain -----------------------------------------------------------------------------------------------------------


def test_sigterm_drains(spawn: Spawn, tmp_path: Path) -> None:
    """After SIGTERM a server is not ready, refuses exchanges, lets open ones move at barriers, and exits with 0."""
    server = spawn(ready_file=str(tmp_path / "ready"))
    assert json.loads((tmp_path / "ready").read_text()) == server.ready
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)
    with transport.open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0)))
        exchange.barrier(1)
        exchange.results(1)
        server.terminate()
        assert eventually(lambda: page(server.ready["http"], "/readyz")[0] == 503)
        assert page(server.ready["http"], "/healthz")[0] == 200
        assert refusal(transport) == "DRAINING"
        exchange.chunk(rows((0, 0)))
        assert server.process.poll() is None
        exchange.barrier(2)
        assert exchange.results(2)["output_0"].to_pylist() == [2]
        assert server.process.wait(PATIENCE_S) == EXIT_DRAINED


def refusal(transport: FlightTransport) -> str:
    """Return the code with which a server refuses an exchange."""
    with pytest.raises(RetryableError) as excinfo, transport.open(open_request(COUNT)):
        pass
    return excinfo.value.code


def test_a_server_that_is_not_ready_refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain ends the process that compiles, which may take seconds: nothing is admitted in the meantime."""
    seen_values: list[tuple[int, str]] = []

    def end_compilation(server: ProcessServer) -> None:
        if not seen_values:
            seen_values.append((page(server.probes.http_port, "/readyz")[0], refusal(transport)))

    monkeypatch.setattr(ProcessServer, "_end_compilation", end_compilation)
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)
        assert server.drain()
    assert seen_values == [(503, "DRAINING")]


def test_a_drain_waits_for_functions_that_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange whose function closes is still open, and its engine is told the regular end before all is cut."""
    closes, may_close = threading.Event(), threading.Event()

    @udaf(input_types=["BIGINT"], result_type="BIGINT", name="closes_slowly")
    class ClosesSlowly:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + value

        def get_value(self, accumulator: int) -> int:
            return accumulator

        def close(self) -> None:
            closes.set()
            may_close.wait(PATIENCE_S)

    def end_late(call: IncomingCall, status: CallStatus) -> None:
        time.sleep(0.3)
        end(call, status)

    end = IncomingCall.end
    monkeypatch.setattr(IncomingCall, "end", end_late)
    with serving(ClosesSlowly) as server, ThreadPoolExecutor(2) as threads:
        engine = RawServer(server.url, function="closes_slowly", deadline_s=DEADLINE_S)
        end_future = threads.submit(engine.exchange().end)
        assert closes.wait(PATIENCE_S)
        assert not server.flight.drain(0.1)
        drain_future = threads.submit(server.drain)
        may_close.set()
        assert drain_future.result(PATIENCE_S)
        server.close()
        assert end_future.result(PATIENCE_S) == 0
        engine.close()


def test_drain_has_an_end(spawn: Spawn) -> None:
    """An exchange that is open after drain_s is ended, and the exit code tells it."""
    server = spawn(drain_s=0.3)
    with FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT).open(open_request(COUNT)) as exchange:
        server.terminate()
        assert server.process.wait(PATIENCE_S) == EXIT_CUT_OFF
        with pytest.raises(RetryableError):
            end_epoch(exchange, 1)


def test_run_server_in_process_ends_clean() -> None:
    """The ready line is printed once, the exit code is 0, and no thread or socket is left."""
    stop = threading.Event()
    lines: list[dict[str, object]] = []
    before = set(threading.enumerate())
    sockets_before = open_sockets()

    def on_ready(line: dict[str, object]) -> None:
        lines.append(line)
        stop.set()

    with Path(os.devnull).open("w") as log:
        settings = load_settings(
            {
                "port": 0,
                "health_port": 0,
                "http_port": 0,
                "modules": "tests.wire.wire_functions",
                "state_keys": STATE_KEY,
            },
            {},
        )
        assert run_server(settings, stop, log_stream=log, on_ready=on_ready) == EXIT_DRAINED
    assert len(lines) == 1
    assert eventually(lambda: set(threading.enumerate()) <= before)
    assert eventually(lambda: open_sockets() <= sockets_before)


def open_sockets() -> int:
    """Count the listening sockets of this process."""
    listening_count = 0
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        listening_count += target.startswith("socket:[") and target[8:-1] in inodes
    return listening_count


# -- servers that do not start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"host": "0.0.0.0"}, ["--tokens-file", "--tls-cert-file"]),
        ({"host": "::", "workers": 2}, ["--tokens-file", "--tls-cert-file"]),
        ({"host": "a-name", "tokens_file": "tokens"}, ["--tls-cert-file"]),
        ({"host": "0.0.0.0", "tls_cert_file": "c", "tls_key_file": "k"}, ["--tokens-file"]),
        ({"host": "0.0.0.0", "tls_cert_file": "c", "tls_key_file": "k", "tls_client_ca_file": "a"}, []),
        ({"host": "127.0.0.1"}, []),
        ({"host": "localhost"}, []),
    ],
)
def test_an_open_port_is_warned_of(settings: dict[str, Any], expected: list[str]) -> None:
    """A server that is reachable from other machines warns of missing tokens, client certificates and TLS."""
    log = io.StringIO()
    announce({"event": "ready"}, load_settings(settings, {}), make_logger(log), lambda _: None)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    remedies = [line["remedy"] for line in lines if line["level"] == "warning"]
    assert len(remedies) == len(expected)
    assert all(flag in remedy for flag, remedy in zip(expected, remedies, strict=True))


def test_taken_port_is_a_clear_end(spawn: Spawn, server: ProcessServer) -> None:
    """A server whose port is in use ends at once, with port and remedy, without a traceback."""
    second = spawn(port=server.flight.port, await_ready=False)
    assert second.process.wait(PATIENCE_S) == 2
    log_text = second.log.read_text()
    assert "SETTINGS" in log_text
    assert str(server.flight.port) in log_text
    assert "--port" in log_text
    assert "Traceback" not in log_text


def test_a_host_that_is_elsewhere_is_named() -> None:
    """An address of another machine, and a name that does not resolve, are not reported as a port in use."""
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(RejectedError, match="--host") as excinfo, serving(host=host):
            pass
        assert excinfo.value.code == "SETTINGS"
        assert host in excinfo.value.message


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_of_another_certificate_is_a_clear_end(spawn: Spawn, tmp_path: Path, workers: int) -> None:
    """A server whose TLS key does not match its certificate ends at once with the reason, with workers too."""
    for name in ("one", "other"):
        certificate = trustme.CA().issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    files = {"tls_cert_file": str(tmp_path / "one.pem"), "tls_key_file": str(tmp_path / "other.pem")}
    server = spawn(workers=workers, **files, await_ready=False)
    assert server.process.wait(PATIENCE_S) == 2
    log_text = server.log.read_text()
    assert "tls_key_file" in log_text
    assert "does not belong to" in log_text
    assert "already in use" not in log_text


def test_a_module_that_fails_to_import_is_named(spawn: Spawn) -> None:
    """The error has module, file, line and cause; nothing is served."""
    failing_server = spawn(modules="tests.wire.broken_module", await_ready=False)
    assert failing_server.process.wait(PATIENCE_S) == 2
    log_text = failing_server.log.read_text()
    assert "MODULE" in log_text
    assert "broken_module.py:7" in log_text
    assert "ZeroDivisionError" in log_text


def test_a_missing_module_is_named(spawn: Spawn) -> None:
    """A module that does not exist is a MODULE error, too."""
    failing_server = spawn(modules="no_such_module", await_ready=False)
    assert failing_server.process.wait(PATIENCE_S) == 2
    assert "no_such_module" in failing_server.log.read_text()


def test_pickled_states_need_keys() -> None:
    """A server with a function whose states are pickled does not start without keys, and the error has the remedy."""
    with pytest.raises(RejectedError) as excinfo, serving(wire_functions):
        pass
    assert excinfo.value.code == "SETTINGS"
    for mention in ("pickled", "FOLDFLIGHT_STATE_KEYS", "serialize"):
        assert mention in excinfo.value.message


def test_typed_states_need_no_keys() -> None:
    """Typed states are not signed, so no key is required."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT", name="plain")
    class Plain:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    with (
        serving(Plain) as server,
        FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(Call("plain", ("value",)))) as exchange,
    ):
        exchange.chunk(rows((0, 0, 5), columns=COLUMNS))
        exchange.barrier(1)
        assert exchange.results(1)["output_0"].to_pylist() == [5]
