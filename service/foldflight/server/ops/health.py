"""grpc.health.v1 on a separate port, without TLS and tokens.

| requested service | status |
|---|---|
| `` (empty), `readiness`, `arrow.flight.protocol.FlightService` | SERVING while the server is ready, until it drains |
| `liveness` | SERVING while the process runs, also under load and during a drain |
"""

from __future__ import annotations

import threading

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from foldflight.errors import FoldflightError
from foldflight.server.flightbase import authority, connections_max
from foldflight.server.rpc_server import CallServer, CallStatus, IncomingCall, ServedMethod
from foldflight.server.run.settings import port_taken

LIVENESS = "liveness"
READINESS = "readiness"
_READY_SERVICES = ("", READINESS, "arrow.flight.protocol.FlightService")
_CALLS_MAX = 32
_FILES_SHARE = 1 / 8
_REQUEST_BYTES_MAX = 64 * 1024
_LOOK_S = 1.0


class HealthServer:
    """Answers grpc.health.v1 `Check` and `Watch`.

    Args:
        host: Address to bind.
        port: Port to bind; 0 selects a free one.

    Raises:
        RejectedError: SETTINGS if the port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self._condition = threading.Condition()
        self._is_serving = {LIVENESS: True, **dict.fromkeys(_READY_SERVICES, False)}
        self._is_closed = False
        try:
            self._calls = CallServer(
                authority(host, port),
                {
                    "/grpc.health.v1.Health/Check": ServedMethod(self._check, _CALLS_MAX),
                    "/grpc.health.v1.Health/Watch": ServedMethod(self._watch, _CALLS_MAX),
                },
                connections_max=connections_max(_FILES_SHARE),
                message_bytes_max=_REQUEST_BYTES_MAX,
                refuse=_is_refused,
            )
        except OSError:
            raise port_taken("health_port", host, port) from None

    @property
    def port(self) -> int:
        """The actual port."""
        return self._calls.port

    def set_ready(self, *, ready: bool) -> None:
        """Publish readiness."""
        with self._condition:
            self._is_serving.update(dict.fromkeys(_READY_SERVICES, ready))
            self._condition.notify_all()

    def close(self) -> None:
        """Stop at once, and end open watches."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        self._calls.close()

    def _check(self, call: IncomingCall, request: bytes) -> None:
        service = _service(request)
        with self._condition:
            is_serving = self._is_serving.get(service) if service is not None else None
        if is_serving is None:
            call.end(CallStatus(grpc.StatusCode.NOT_FOUND, "unknown service; the services are liveness and readiness"))
        else:
            call.send(_answer(is_serving=is_serving))

    def _watch(self, call: IncomingCall, request: bytes) -> None:
        """Send the status, and again after each change, until the client disconnects."""
        service = _service(request)
        last_sent: bytes | None = None
        while not (call.is_cancelled() or self._is_closed):
            with self._condition:
                answer = _answer(is_serving=self._is_serving.get(service) if service is not None else None)
                if answer == last_sent:
                    self._condition.wait(_LOOK_S)
                    continue
            call.send(answer)
            last_sent = answer


def _service(request: bytes) -> str | None:
    try:
        return str(HealthCheckRequest.FromString(request).service)
    except DecodeError:
        return None


def _answer(*, is_serving: bool | None) -> bytes:
    if is_serving is None:
        status = HealthCheckResponse.SERVICE_UNKNOWN
    else:
        status = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
    answer: bytes = HealthCheckResponse(status=status).SerializeToString()
    return answer


def _is_refused(error: FoldflightError) -> CallStatus:
    return CallStatus(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
