"""Health, HTTP pages and their ports."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import urllib.error
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from foldflight.client import FlightTransport
from foldflight.errors import FunctionError, RejectedError
from foldflight.functions.call import Call
from foldflight.server.health import HealthServer
from foldflight.server.http import HttpServer
from foldflight.server.lifecycle import Server, serving
from foldflight.server.metrics import METRIC_NAMES
from tests.wire import wire_functions
from tests.wire.kit import STATE_KEY, end_epoch, eventually, opening, rows


def page(port: int | None, path: str) -> tuple[int, str]:
    """Fetch a page: status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(port: int | None, service: str) -> int:
    """Ask grpc.health.v1."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status)


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_drain_fails_readiness_and_not_liveness() -> None:
    """While a server drains it is alive and not ready, over gRPC and HTTP."""
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


def test_unknown_page_is_not_found(server: Server) -> None:
    """Another path says which pages there are."""
    status, body = page(server.probes.http_port, "/")
    assert status == 404
    assert "/metrics" in body


def test_metrics_count_an_exchange() -> None:
    """Opened, rows, chunks, barrier time, a function's own counter, and the end by outcome are on the page."""
    with serving(wire_functions, state_keys=STATE_KEY, http_port=0) as server:
        with FlightTransport([server.url], deadline_s=20).open(opening(Call("talks", ("value",)))) as exchange:
            exchange.chunk(rows((0, 0, 1), (1, 0, 2)))
            exchange.barrier(1)
            exchange.results(1)
            assert eventually(
                lambda: "foldflight_barrier_seconds_count 1.0" in page(server.probes.http_port, "/metrics")[1]
            )
            during = page(server.probes.http_port, "/metrics")[1]
        assert "foldflight_exchanges_active 1.0" in during
        assert "foldflight_rows_folded_total 2.0" in during
        assert "foldflight_chunks_total 1.0" in during
        assert 'foldflight_function_count_total{function="talks",metric="seen"} 2.0' in during
        assert "foldflight_state_bytes 0.0" not in during
        assert eventually(lambda: server.flight.active == 0)
        after = page(server.probes.http_port, "/metrics")[1]
        assert 'foldflight_exchanges_ended_total{outcome="done"} 1.0' in after
        assert "foldflight_exchanges_active 0.0" in after
        assert "foldflight_state_bytes 0.0" in after
        for name in METRIC_NAMES:
            assert name.removesuffix("_total") in after


def test_log_lines_carry_exchange_and_server() -> None:
    """What happens to one exchange can be found by its id: opening, the function's own lines, the failure, the end."""
    log = io.StringIO()
    with serving(wire_functions, state_keys=STATE_KEY, log_level="debug", log_stream=log) as server:
        transport = FlightTransport([server.url], deadline_s=20)
        calls = opening(Call("talks", ("value",)), Call("fails_to_accumulate", ("value",)))
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
    """A port that another process has is a SETTINGS error with the port and the flag."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(RejectedError) as caught, serving(wire_functions, state_keys=STATE_KEY, **{name: taken}):
            pass
    assert caught.value.code == "SETTINGS"
    assert str(taken) in caught.value.message
    assert f"--{name.replace('_', '-')}" in caught.value.message


def test_probe_servers_free_their_ports() -> None:
    """A closed probe server's port can be bound again at once."""
    first = HttpServer("127.0.0.1", 0, metrics_page=lambda: b"", is_ready=lambda: True)
    first.close()
    HttpServer("127.0.0.1", first.port, metrics_page=lambda: b"", is_ready=lambda: True).close()
    health_server = HealthServer("127.0.0.1", 0)
    health_server.close()
    HealthServer("127.0.0.1", health_server.port).close()
