"""Health, HTTP pages and their ports."""

from __future__ import annotations

import contextlib
import io
import json
import re
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from foldflight.client import FlightTransport, OpenExchange
from foldflight.errors import FunctionError, RejectedError, RetryableError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.ext.compiler import Programs
from foldflight.functions.query.call import Call, RowKind
from foldflight.functions.registry import Registry
from foldflight.server.ops import endpoints
from foldflight.server.ops.endpoints import HealthServer, HttpServer
from foldflight.server.ops.metrics import METRICS
from foldflight.server.ops.status import Status
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.wire import wire_functions
from tests.wire.kit import DEADLINE_S, PATIENCE_S, STATE_KEY, end_epoch, eventually, open_request, rows


def page(port: int | None, path: str) -> tuple[int, str]:
    """Fetch a page: status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(port: int | None, service: str) -> int:
    """Ask grpc.health.v1."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE_S).status)


def samples(body: str) -> dict[str, float]:
    """Return the values of a metrics page by name with labels."""
    lines = [line.rpartition(" ") for line in body.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def fold_batch(exchange: OpenExchange, batch: pa.RecordBatch) -> pa.Table:
    """Fold one chunk and return the results of epoch 1."""
    exchange.chunk(batch)
    return end_epoch(exchange, 1)


def eventually_samples(server: ProcessServer, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Wait until the values of the metrics page are as expected; return all values."""
    result: dict[str, float] = {}

    def is_there() -> bool:
        result.update(samples(page(server.probes.http_port, "/metrics")[1]))
        return condition(result)

    assert eventually(is_there), result
    return result


def eventually_sample(server: ProcessServer, name: str, value: float) -> dict[str, float]:
    """Wait until a value of the metrics page is as expected; return all values."""
    return eventually_samples(server, lambda match: match[name] == value)


PAGES_MAX = 16
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_pages_and_health_listen_on_ipv6_too() -> None:
    """All ports accept IPv6 addresses, for clusters with only IPv6."""
    with serving("examples.weighted_avg", host="::1", http_port=0, health_port=0) as server:
        with urllib.request.urlopen(f"http://[::1]:{server.probes.http_port}/readyz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(Call("count"))) as exchange:
            assert fold_batch(exchange, rows((0, 0))).column("output_0").to_pylist() == [1]


def test_errors_are_counted_from_zero_on() -> None:
    """Before an error each kind is exported as 0; otherwise alerts would miss the first of each."""
    with serving("examples.weighted_avg", http_port=0) as server:
        result = samples(page(server.probes.http_port, "/metrics")[1])
        own_status = server.probes.status.own()
    assert result['foldflight_errors_total{code="INVARIANT"}'] == 0
    assert result['foldflight_errors_total{code="STATE_CHECKSUM"}'] == 0
    assert result['foldflight_exchanges_refused_total{code="OVERLOADED"}'] == 0
    assert result['foldflight_function_errors_total{code="USER_CODE",function="weighted_avg"}'] == 0
    assert own_status["errors"] == own_status["exchanges"]["refused"] == {}


def test_drain_fails_readiness_and_not_liveness() -> None:
    """A draining server is live but not ready, over gRPC and HTTP."""
    with serving(wire_functions, state_keys=STATE_KEY, health_port=0, http_port=0, drain_s=0) as server:
        health_port, http_port = server.probes.health_port, server.probes.http_port
        assert page(http_port, "/readyz") == (200, "ready\n")
        assert [health(health_port, name) for name in ("", "readiness", "liveness")] == [SERVING] * 3
        server.drain()
        assert page(http_port, "/readyz") == (503, "not ready\n")
        assert page(http_port, "/healthz") == (200, "alive\n")
        assert [health(health_port, name) for name in ("", "readiness", "liveness")] == [
            NOT_SERVING,
            NOT_SERVING,
            SERVING,
        ]
        assert "foldflight_draining 1.0" in page(http_port, "/metrics")[1]


def test_unknown_page_is_not_found(server: ProcessServer) -> None:
    """For an unknown path the answer lists the pages."""
    status, body = page(server.probes.http_port, "/other")
    assert status == 404
    assert "/metrics" in body


class SlowStatus:
    """A status that waits for peers that do not answer."""

    def __init__(self) -> None:
        self.peers_answer = threading.Event()

    def fleet(self) -> dict[str, Any]:
        self.peers_answer.wait(PATIENCE_S)
        return {}

    def own(self) -> dict[str, Any]:
        raise LookupError("a mistake in the status")


def test_pages_that_take_long_do_not_keep_probes_out(caplog: pytest.LogCaptureFixture) -> None:
    """However many pages are asked for, probes are answered; a page too many is refused, and a failure is logged."""
    status = SlowStatus()
    server = HttpServer("127.0.0.1", 0, registry=CollectorRegistry(), status=status, is_ready=lambda: True)  # type: ignore[arg-type]
    try:
        with contextlib.ExitStack() as stack:
            open_sockets = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(40)
            ]
            for each in open_sockets:
                each.sendall(b"GET /status HTTP/1.1\r\n\r\n")
            assert eventually(lambda: len(select.select(open_sockets, [], [], 0)[0]) == 40 - PAGES_MAX)
            assert page(server.port, "/healthz") == (200, "alive\n")
            assert page(server.port, "/status") == (503, "too many pages are being made; try again later\n")
            status.peers_answer.set()
            answers = [each.recv(15) for each in open_sockets]
        assert answers.count(b"HTTP/1.1 200 OK") == PAGES_MAX
        assert eventually(lambda: page(server.port, "/status")[0] == 200)
        assert page(server.port, "/status/own") == (500, "the page could not be made; see the server's log\n")
        assert "a mistake in the status" in caplog.text
    finally:
        status.peers_answer.set()
        server.close()


def test_silent_connections_make_room_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of too many connections the most silent one is closed, and nothing is logged about it."""
    monkeypatch.setattr(endpoints, "_CONNECTIONS_MAX", 2)
    server = HttpServer("127.0.0.1", 0, registry=CollectorRegistry(), status=SlowStatus(), is_ready=lambda: True)  # type: ignore[arg-type]
    try:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(3)]
            assert select.select(silent[:1], [], [], PATIENCE_S)[0]
            assert page(server.port, "/healthz") == (200, "alive\n")
    finally:
        server.close()
    assert caplog.text == ""


def test_metrics_count_an_exchange() -> None:
    """The page has the rows by function and kind, chunks, groups, barriers, and the end."""
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0) as server:
        calls = (Call("talks", ("value",)), Call("sum", ("value",)), Call("count", ("value",), distinct=True))
        kinds = (RowKind.INSERT, RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE)
        with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(*calls[1:])) as exchange:
            exchange.chunk(chunk := rows(*((slot, kind, 5) for slot, kind in enumerate(kinds))))
            end_epoch(exchange, 1)
        with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(calls[0])) as exchange:
            exchange.chunk(rows((0, 0, 1), (1, 0, 2)))
            end_epoch(exchange, 1)
            # Counted after the answers: the groups with the chunk, the bytes with the barrier, the end of the first.
            eventually_samples(
                server,
                lambda match: (
                    match["foldflight_exchanges_open"] == 1
                    and match["foldflight_groups"] == 2
                    and match["foldflight_state_bytes"] > 0
                ),
            )
        after = eventually_sample(server, "foldflight_exchanges_open", 0)
    for function in ("sum", "count"):
        fold_samples = [
            after[f'foldflight_rows_folded_total{{function="{function}",kind="{kind.short}"}}'] for kind in RowKind
        ]
        assert fold_samples == [2, 1, 1, 1]
    assert after['foldflight_rows_folded_total{function="talks",kind="+I"}'] == 2
    assert after["foldflight_rows_total"] == 7
    assert after["foldflight_chunk_bytes_count"] == after["foldflight_fold_seconds_count"] == 2
    assert after["foldflight_chunk_bytes_sum"] > chunk.nbytes
    assert after["foldflight_barrier_seconds_count"] == 2
    assert after["foldflight_exchanges_opened_total"] == 2
    assert after['foldflight_exchanges_ended_total{outcome="done"}'] == 2
    assert after['foldflight_calls_opened_total{fold="counted",function="count"}'] == 1
    assert after['foldflight_function_count_total{function="talks",metric="seen"}'] == 2
    assert after["foldflight_groups"] == after["foldflight_state_bytes"] == 0
    assert after["foldflight_exchanges_max"] == 64
    assert after['process_cpu_seconds_total{worker="0"}'] > 0
    names = {re.sub(r"(_bucket|_sum|_count|_created)?(\{.*)?$", "", name) for name in after}
    assert names <= set(METRICS) | {name.removesuffix("_total") for name in METRICS}


def test_metrics_say_what_was_refused_and_why() -> None:
    """A full server, an exceeded limit and an author's mistake each have their own counter."""
    limits = {"exchanges_max": 1, "state_bytes_max": 4}
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0, **limits) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=FailoverBounds(patience_s=0))
        with transport.open(open_request(Call("count"))) as exchange:
            with pytest.raises(RetryableError, match="exchanges_max"):
                transport.open(open_request(Call("count")))
            with pytest.raises(RejectedError, match="state_bytes_max"):
                fold_batch(exchange, rows((0, 0)))
        assert eventually(lambda: server.flight.active == 0)
        failing_request = open_request(Call("fails_to_accumulate", ("value",)))
        with transport.open(failing_request) as exchange, pytest.raises(FunctionError):
            fold_batch(exchange, rows((0, 0, 13)))
        result = eventually_sample(server, "foldflight_exchanges_open", 0)
    assert result['foldflight_exchanges_refused_total{code="OVERLOADED"}'] == 1
    assert result['foldflight_limit_errors_total{limit="exchanges_max"}'] == 1
    assert result['foldflight_limit_errors_total{limit="state_bytes_max"}'] == 1
    assert result['foldflight_function_errors_total{code="USER_CODE",function="fails_to_accumulate"}'] == 1
    assert result['foldflight_errors_total{code="USER_CODE"}'] == 1
    assert result['foldflight_exchanges_ended_total{outcome="LIMIT"}'] == 1


def test_log_lines_carry_exchange_and_server() -> None:
    """All events of an exchange have its id: opening, the function's lines, the failure, the end."""
    log = io.StringIO()
    with serving(wire_functions, state_keys=STATE_KEY, log_stream=log) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        calls = open_request(Call("talks", ("value",)), Call("fails_to_accumulate", ("value",)))
        with contextlib.suppress(FunctionError), transport.open(calls) as exchange:
            exchange.chunk(rows((0, 0, 1)))
            end_epoch(exchange, 1)
            exchange.chunk(rows((0, 0, 13)))
            end_epoch(exchange, 2)
        assert eventually(lambda: "exchange ended" in log.getvalue())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    of_exchange = {line["event"]: line for line in lines if "exchange" in line}
    assert list(of_exchange) == ["exchange opened", "function logged", "exchange failed", "exchange ended"]
    assert len({line["exchange"] for line in of_exchange.values()}) == 1
    assert {line["server_id"] for line in lines} == {server.server_id}
    assert of_exchange["function logged"]["text"] == "saw a row"
    assert of_exchange["exchange failed"]["function"] == "fails_to_accumulate"
    assert of_exchange["exchange ended"]["outcome"] == "USER_CODE"
    assert STATE_KEY not in log.getvalue()


@pytest.mark.parametrize("name", ["port", "health_port", "http_port"])
def test_taken_port_is_named(name: str) -> None:
    """A port that another process uses is a SETTINGS error with the port and the flag."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken_port = other.getsockname()[1]
        with (
            pytest.raises(RejectedError) as excinfo,
            serving(wire_functions, state_keys=STATE_KEY, **{name: taken_port}),
        ):
            pass
    assert excinfo.value.code == "SETTINGS"
    assert str(taken_port) in excinfo.value.message
    assert f"--{name.replace('_', '-')}" in excinfo.value.message


def test_probe_servers_free_their_ports() -> None:
    """The port of a closed probe server can be bound again at once."""
    registry = CollectorRegistry()
    status = Status("a", Registry(), registry, is_ready=lambda: True, folding_of=Programs().folding)
    first = HttpServer("127.0.0.1", 0, registry=registry, status=status, is_ready=lambda: True)
    first.close()
    HttpServer("127.0.0.1", first.port, registry=registry, status=status, is_ready=lambda: True).close()
    health_server = HealthServer("127.0.0.1", 0)
    health_server.close()
    HealthServer("127.0.0.1", health_server.port).close()
