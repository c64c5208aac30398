"""Real servers that are killed, hang, drain and restart during an exchange: each answer is delivered once."""

from __future__ import annotations

import io
import logging
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from rich.console import Console

from foldflight import connect
from foldflight.cli.fleet_status import status_view
from foldflight.client import (
    EmbeddedTransport,
    FlightTransport,
    Functions,
    OpenExchange,
    close_connections,
    flight_transport,
)
from foldflight.client.failover import FailoverExchange
from foldflight.errors import FunctionError, RejectedError, RetryableError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open, Returns
from foldflight.fold.mode import Mode
from foldflight.functions.query.call import Call
from foldflight.functions.registry import Registry
from foldflight.server.run.lifecycle import EXIT_DRAINED, serving
from foldflight.spark.worker import attempt
from foldflight.testing import run_over, run_over_epochs
from tests.ports import free_port
from tests.watched import Seen, watch_calls
from tests.wire import wire_functions
from tests.wire.kit import (
    DEADLINE_S,
    IMPATIENT,
    PATIENCE_S,
    STATE_KEY,
    ServerProcess,
    end_epoch,
    eventually,
    open_request,
    pause,
    rows,
    sum_with_factor,
)
from tests.wire.test_probes import page

Fork = Callable[..., ServerProcess]
CALLS = (
    Call("weighted_avg", ("value", "weight")),
    Call("append_only", ("value",)),  # no merge is used, and no retract is there
    Call("pickled", ("value",)),
    Call("count", ("value",), distinct=True),
)


def kill(server: ServerProcess) -> None:
    server.process.kill()
    server.process.wait()


def hang(server: ServerProcess) -> None:
    pause(server.process.pid)


def drain(server: ServerProcess) -> None:
    """Ask a server to end, and wait until it drains: the signal may arrive after several epochs of a test."""
    server.terminate()
    assert eventually(lambda: "\nfoldflight_draining 1.0\n" in page(server.ready["http"], "/metrics")[1])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Start and end without connections and circuit breakers."""
    close_connections()
    yield
    close_connections()


def holder(servers: list[ServerProcess], exchange: OpenExchange) -> ServerProcess:
    """Return the server that has the exchange."""
    return next(each for each in servers if each.ready["server_id"] == exchange.open_reply.server_id)


def story(exchange: OpenExchange, before_epoch: Callable[[int], None], before_results: Callable[[int], None]) -> Any:
    """Run some epochs and return all answers."""
    story_lines: list[Any] = []
    for epoch in range(1, 6):
        exchange.chunk(rows(*[(slot, 0, epoch * 10 + slot) for slot in range(epoch, epoch + 4)]))
        before_epoch(epoch)
        exchange.chunk(rows((epoch, 0, 7), (0, 0, epoch)))
        exchange.barrier(epoch)
        before_results(epoch)
        story_lines.append(
            exchange.results(epoch).drop_columns(["state_2"]).to_pylist()
        )  # a set is pickled in any order
        exchange.forget(pa.array([epoch], pa.int32()))
    return story_lines


def fold_on(exchange: OpenExchange) -> None:
    """Continue with a second epoch."""
    exchange.chunk(rows((0, 0, 1)))
    end_epoch(exchange, 2)


def nothing(_epoch: int) -> None:
    """Do nothing to the server."""


@pytest.fixture(scope="module")
def expected() -> Any:
    """The answers of one server without faults."""
    transport = EmbeddedTransport(Registry.load([wire_functions]), state_key=STATE_KEY.encode())
    with transport.open(open_request(*CALLS)) as exchange:
        return story(exchange, nothing, nothing)


@pytest.mark.parametrize("harm", [kill, hang, drain])
@pytest.mark.parametrize("when", ["within an epoch", "before the results"])
def test_another_server_takes_over(fork: Fork, expected: Any, harm: Callable[..., None], when: str) -> None:
    """After any fault another server continues from the last barrier with the same results."""
    servers = [fork(), fork()]
    transport = FlightTransport([each.url for each in servers], deadline_s=2.0)
    harmed_servers: list[ServerProcess] = []

    def strike(epoch: int) -> None:
        if epoch == 3:
            harmed_servers.append(holder(servers, exchange))
            harm(harmed_servers[0])

    with transport.open(open_request(*CALLS)) as exchange:
        strikes = (strike, nothing) if when == "within an epoch" else (nothing, strike)
        assert story(exchange, *strikes) == expected
        assert exchange.open_reply.server_id not in {each.ready["server_id"] for each in harmed_servers}
        assert len(harmed_servers) == 1
    if harm is drain:
        assert harmed_servers[0].process.wait(PATIENCE_S) == EXIT_DRAINED


def test_modes_are_those_of_the_server_that_took_over(fork: Fork) -> None:
    """After a loss the engine knows how the next server folds each call: this one has compiled nothing yet."""
    first = fork()
    with serving(wire_functions, state_keys=STATE_KEY) as second:
        transport = FlightTransport([first.url, second.url], deadline_s=DEADLINE_S)
        exchange = transport.open(open_request(CALLS[0]))
        if exchange.open_reply.server_id == second.server_id:
            exchange.close()
            exchange = transport.open(open_request(CALLS[0]))  # on the next server in turn
        with exchange:
            assert list(exchange.modes) == [Mode.COMPILED]
            kill(first)
            exchange.chunk(rows((0, 0, 10)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [10]
            assert exchange.open_reply.server_id == second.server_id
            assert list(exchange.modes) == [Mode.INTERPRETED]


@pytest.mark.parametrize("returns_states", [True, False])
def test_a_batch_without_barriers_leaves_a_draining_server_with_its_states(fork: Fork, *, returns_states: bool) -> None:
    """An engine that only sends rows leaves a draining server before drain_s, and no row is folded twice."""
    servers = [fork(), fork()]
    request = open_request(*CALLS, returns=Returns(states=returns_states, outputs=True))
    transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S, bounds=FailoverBounds(ask_s=0.1))
    sent_count = 0

    def send() -> bool:
        nonlocal sent_count
        exchange.chunk(rows(*[(slot, 0, sent_count) for slot in range(4)]))
        sent_count += 1
        return drained_server.process.poll() is not None

    with transport.open(request) as exchange:
        drained_server = holder(servers, exchange)
        assert not eventually(send, 0.5)
        drain(drained_server)
        assert eventually(send)
        assert drained_server.process.returncode == EXIT_DRAINED
        result = end_epoch(exchange, 1)
        assert isinstance(exchange, FailoverExchange)
        stats = exchange.coordinator.stats
        assert (stats.losses, stats.rows_refolded, stats.replays) == (0, 0, 1)
    assert result["output_0"].to_pylist() == [(sent_count - 1) // 2] * 4
    assert result["output_3"].to_pylist() == [sent_count] * 4


def test_outputs_after_each_row_come_once(fork: Fork) -> None:
    """Row outputs and initial outputs that the engine has are not delivered again when frames are sent again."""
    servers = [fork(), fork()]
    transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S)
    request = open_request(Call("append_only", ("value",)), initial_outputs=True, row_outputs=True)
    with transport.open(request) as exchange:
        exchange.chunk(rows((0, 0, 1), (1, 0, 2)))
        exchange.chunk(rows((0, 0, 3)))
        assert exchange.row_outputs()["output_0"].to_pylist() == [1, 2]
        exchange.barrier(1)
        first = exchange.results(1)
        exchange.chunk(rows((0, 0, 5)))
        exchange.states(first.slice(1).select(["slot", "state_0"]).to_batches()[0])
        assert exchange.initial_outputs()["output_0"].to_pylist() == [4]  # merged with the state there
        kill(holder(servers, exchange))
        exchange.chunk(rows((1, 0, 7)))
        assert [exchange.row_outputs()["output_0"].to_pylist() for _ in range(3)] == [[4], [9], [11]]
        with pytest.raises(RejectedError, match="no row_outputs are due"):
            exchange.row_outputs()


def test_an_exchange_goes_on_when_its_only_server_comes_back(fork: Fork, expected: Any) -> None:
    """With only one server, the exchange waits until it is available again."""
    port = free_port()
    server = fork(port=port)

    def restart(epoch: int) -> None:
        nonlocal server
        if epoch in {2, 4}:
            kill(server)
            server = fork(port=port, await_ready=False)

    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(*CALLS)) as exchange:
        assert story(exchange, restart, nothing) == expected


def test_a_distant_server_has_time_for_its_first_frame() -> None:
    """A connection may take longer than the time between two attempts: far away, by TLS, or on a busy machine."""
    with serving(wire_functions, state_keys=STATE_KEY) as server, socket.create_server(("127.0.0.1", 0)) as near:
        far = urlsplit(server.url)

        def relay() -> None:
            client, _ = near.accept()
            time.sleep(0.5)  # the client waits for the first frame meanwhile
            with client, socket.create_connection((far.hostname, far.port)) as other:
                back = threading.Thread(target=copy, args=(other, client))
                back.start()
                copy(client, other)
                back.join()

        def copy(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):  # either end may be gone already
                while data := source.recv(1 << 16):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        assert "weighted_avg" in connect(f"grpc://127.0.0.1:{near.getsockname()[1]}")
        close_connections()
        thread.join()


def test_a_plan_waits_for_a_server_that_comes_back(fork: Fork) -> None:
    """Planning waits for servers that are temporarily unavailable; `infos` fails at once."""
    port = free_port()
    server = fork(port=port)
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
    planned_schema = transport.describe(open_request(*CALLS)).schema
    kill(server)
    with pytest.raises(RetryableError) as excinfo:
        transport.infos()
    assert excinfo.value.code == "UNREACHABLE"
    with pytest.raises(RetryableError):
        FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT).describe(open_request(*CALLS))
    fork(port=port, await_ready=False)
    assert transport.describe(open_request(*CALLS)).schema == planned_schema


def test_long_epochs_are_saved_on_the_way(fork: Fork) -> None:
    """Above replay_bytes_max a checkpoint returns the states, so the engine keeps little in any epoch."""
    servers = [fork(), fork()]
    bounds = FailoverBounds(replay_bytes_max=20_000)
    transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S, bounds=bounds)
    batch = rows(*[(slot, 0, 1) for slot in range(200)])
    for returns in (Returns(states=True, outputs=True), Returns(states=False, outputs=True)):
        with transport.open(open_request(*CALLS[:2], returns=returns)) as exchange:
            for number in range(40):
                exchange.chunk(batch)
                assert exchange.coordinator.retained_bytes < 20_000 + 4 * (batch.nbytes + 6_000) + 400 * 40
                if number == 30:
                    kill(holder(servers, exchange))
            assert end_epoch(exchange, 1)["output_1"].to_pylist() == [40] * 200
            assert exchange.coordinator.stats.checkpoints > 5
            assert exchange.coordinator.stats.rows_refolded < 10 * 200
        servers = [each for each in servers if each.process.poll() is None] + [fork()]
        transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S, bounds=bounds)


def test_an_idle_exchange_goes_on_after_its_server_ended(fork: Fork) -> None:
    """An exchange that the server ended as idle is opened again when the engine continues."""
    with (
        serving(wire_functions, state_keys=STATE_KEY, idle_s_max=0.3) as server,
        FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(*CALLS)) as exchange,
    ):
        exchange.chunk(rows((0, 0, 4)))
        assert eventually(lambda: server.flight.active == 0)
        assert end_epoch(exchange, 1)["output_1"].to_pylist() == [4]


def test_errors_of_the_job_are_not_tried_elsewhere(fork: Fork) -> None:
    """A function that raises is not tried on another server."""
    servers = [fork(), fork()]
    transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S)
    with transport.open(open_request(Call("fails_to_accumulate", ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, 13)))
        with pytest.raises(FunctionError, match="thirteen"):
            end_epoch(exchange, 1)
        assert exchange.coordinator.stats.losses == 0


def test_a_server_of_another_version_is_passed_over(fork: Fork) -> None:
    """States are sent only to a server with the same functions; if there is none, the error says so."""
    first, other = fork(), fork(modules="tests.wire.newer_functions")
    transport = FlightTransport([first.url, other.url], deadline_s=DEADLINE_S, bounds=FailoverBounds(patience_s=0.5))
    with transport.open(open_request(Call("append_only", ("value",), fingerprint=fingerprint(first)))) as exchange:
        assert exchange.open_reply.server_id == first.ready["server_id"]
        exchange.chunk(rows((0, 0, 1)))
        assert end_epoch(exchange, 1)["output_0"].to_pylist() == [1]
        kill(first)
        with pytest.raises((RejectedError, RetryableError)) as excinfo:
            fold_on(exchange)
    assert any("SCHEMA_MISMATCH" in step for step in excinfo.value.story)


def fingerprint(server: ServerProcess) -> str:
    request: Open = open_request(Call("append_only", ("value",)))
    return FlightTransport([server.url], deadline_s=DEADLINE_S).describe(request).fingerprints[0]


def test_the_error_tells_the_story(fork: Fork, caplog: pytest.LogCaptureFixture) -> None:
    """Without a server, the RetryableError has all attempts; after a recovery, a log line has them."""
    servers = [fork(), fork()]
    transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S, bounds=IMPATIENT)
    with transport.open(open_request(*CALLS)) as exchange, caplog.at_level(logging.WARNING, "foldflight.client"):
        first = holder(servers, exchange)
        kill(first)
        exchange.chunk(rows((0, 0, 1)))
        end_epoch(exchange, 1)
        assert f"lost {first.url}" in caplog.text or "goes on at" in caplog.text
        kill(holder(servers, exchange))
        with pytest.raises(RetryableError) as excinfo:
            fold_on(exchange)
    assert excinfo.value.code == "UNREACHABLE"
    story_text = " ".join(excinfo.value.story)
    assert all(each.url in story_text for each in servers)
    assert "no server took the exchange" in excinfo.value.message
    assert all(each.url in excinfo.value.message for each in servers)
    for ask in (transport.infos, transport.status, lambda: transport.describe(open_request(*CALLS))):
        with pytest.raises(RetryableError, match="UNREACHABLE") as excinfo:
            ask()
        assert all(each.url in excinfo.value.message for each in servers)


def test_tasks_that_start_together_spread_over_servers(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in processes of their own; the tasks of a query use all servers alike, successive ones by turns."""
    urls = [fork().url for _ in range(2)]
    used_servers: list[str] = []
    for step in ("one query", "another query"):
        transport = pickle.dumps(FlightTransport(urls, deadline_s=DEADLINE_S))
        for number in range(5):
            monkeypatch.setattr(flight_transport, "_connections", {})  # as in a process that has just begun
            properties: dict[str, str] = {}  # no stream runs the task
            task = SimpleNamespace(
                partitionId=lambda n=number: n, attemptNumber=int, stageId=lambda: 1, getLocalProperty=properties.get
            )
            monkeypatch.setattr("pyspark.TaskContext.get", lambda task=task: task)
            with attempt(step), pickle.loads(transport).open(open_request(*CALLS)) as exchange:
                used_servers.append(exchange.open_reply.server_id)
            close_connections()
    assert used_servers[0] == used_servers[2] == used_servers[4] != used_servers[1] == used_servers[3]
    assert used_servers[5] == used_servers[7] == used_servers[9] != used_servers[6] == used_servers[8]


@pytest.mark.parametrize("is_stream", [False, True])
def test_over_goes_on_when_a_server_is_killed(fork: Fork, is_stream: bool) -> None:
    """Outputs after some rows, and states of frames, are the same although servers die between two chunks."""
    servers = [fork() for _ in range(3)]
    input_rows = [
        {"key": "ab"[at % 2], "at": datetime(2013, 1, 1, 0, at), "value": at * at % 17, "weight": 1 + at % 3}
        for at in range(40)
    ]

    def over(functions: Functions, observe: Seen = lambda *_: None) -> Any:
        average, most = functions["weighted_avg"]("value", "weight"), functions["max"]("value")
        kinds = functions["count"]("value").distinct()
        calls = {"last": average.rows(-4, 0), "far": most.rows(-20, 0), "kinds": kinds.rows(-5, 0)}
        if is_stream:
            calls |= {"hour": average.range("-9 minutes", 0), "so_far": average.rows(None, 0)}
        calls = watch_calls(calls, observe, slots_max=28)  # so a chunk has seven rows
        if is_stream:
            return run_over_epochs(
                calls, [input_rows[:25], input_rows[25:]], keys=["key"], order_by=["at"], delay_s=300
            )
        return run_over(calls, input_rows, keys=["key"], order_by=["at"])

    expected = over(connect(wire_functions))
    sent_chunks = count()
    killed_servers: list[ServerProcess] = []

    def strike(operation: str, _what: Any, exchange: OpenExchange) -> None:
        if operation == "chunk" and next(sent_chunks) in (3, 9):
            killed_servers.append(holder(servers, exchange))
            kill(killed_servers[-1])

    assert over(connect(",".join(each.url for each in servers)), strike) == expected
    assert len({each.url for each in killed_servers}) == 2


@pytest.fixture
def mixed_urls() -> Iterator[tuple[str, str]]:
    """Two servers with other code of one function."""
    settings = {"state_keys": STATE_KEY, "health_port": 0, "http_port": 0}
    with (
        serving(sum_with_factor(1), server_id="one", **settings) as one,
        serving(sum_with_factor(2), server_id="two", **settings) as two,
    ):
        yield one.url, two.url
    close_connections()


def test_servers_with_other_code_are_told_of(mixed_urls: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """`connect` names both servers and the function; `strict` refuses them."""
    with caplog.at_level(logging.WARNING, "foldflight.client"):
        connect(",".join(mixed_urls))
    assert all(url in caplog.text for url in mixed_urls)
    assert "different code of summing, so" in caplog.text
    with pytest.raises(RejectedError, match="STATE_MISMATCH") as excinfo:
        connect(",".join(mixed_urls), strict=True)
    assert all(url in excinfo.value.message for url in mixed_urls)
    caplog.clear()
    connect(",".join([mixed_urls[0], mixed_urls[0]]), strict=True)
    with pytest.raises(RejectedError, match="strict is for servers only"):
        connect(sum_with_factor(1), strict=True)
    assert not caplog.text


def test_the_status_shows_which_servers_have_other_code(mixed_urls: tuple[str, str]) -> None:
    """`foldflight status` names the function and the servers with each digest, and no function that is the same."""
    servers = [FlightTransport([url], deadline_s=DEADLINE_S).status()["servers"][0] for url in mixed_urls]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(status_view([{**each, "rows_per_s": None} for each in servers]))
    lines = [line for line in console.export_text().splitlines() if "different code" in line]
    one, two = (each["code_digests"]["summing"] for each in servers)
    places = sorted([(one, "one"), (two, "two")])
    assert [line.strip() for line in lines] == [
        "summing has different code: " + "; ".join(f"{digest} on {name}" for digest, name in places)
    ]


def test_an_exchange_never_mixes_codes(mixed_urls: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """It ends rather than continue on a server with other code; the next one begins there, with a warning."""
    bounds = FailoverBounds(patience_s=0.0)
    transport = FlightTransport(mixed_urls, deadline_s=DEADLINE_S, bounds=bounds)
    transport.infos()
    call = open_request(Call("summing", ("value",)))
    values = {}
    with caplog.at_level(logging.WARNING, "foldflight.client"):
        for _ in range(2):
            with transport.open(call) as exchange:
                exchange.chunk(rows((0, 0, 5)))
                values[exchange.open_reply.server_id] = end_epoch(exchange, 1)["output_0"].to_pylist()
    assert values == {"one": [5], "two": [10]}
    assert "a server has other code of functions than the client has seen functions=summing" in caplog.text
    exchange = transport.open(call)
    exchange.chunk(rows((0, 0, 5)))
    exchange._connection.cut()
    with pytest.raises(RetryableError, match="on which the exchange began"):
        end_epoch(exchange, 1)


def test_strict_clients_use_the_code_that_they_know(mixed_urls: tuple[str, str]) -> None:
    """A strict client of one server refuses the other one, which answers later, for plans and exchanges."""
    call = open_request(Call("summing", ("value",)))
    transport = FlightTransport(mixed_urls[:1], deadline_s=DEADLINE_S, bounds=IMPATIENT, strict=True)
    transport.infos()
    transport.urls = mixed_urls
    for _ in range(3):
        transport.describe(call)
        with transport.open(call) as exchange:
            assert exchange.open_reply.server_id == "one"
    transport.urls = mixed_urls[1:]
    for use in (transport.describe, transport.open):
        with pytest.raises(RetryableError, match="strict is set"):
            use(call)
