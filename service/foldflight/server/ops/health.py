"""grpc.health.v1 on a port of its own: pyarrow's server cannot host other gRPC services.

| service asked for | says |
|---|---|
| `` (empty), `readiness`, `arrow.flight.protocol.FlightService` | SERVING from ready until drain |
| `liveness` | SERVING as long as the process lives, whatever its load and during a drain |
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from foldflight.server.run.settings import port_taken

__all__ = ["LIVENESS", "READINESS", "HealthServer"]

LIVENESS = "liveness"
READINESS = "readiness"
_READY_SERVICES = ("", READINESS, "arrow.flight.protocol.FlightService")


class HealthServer:
    """Answers grpc.health.v1 `Check` and `Watch`.

    Args:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.

    Raises:
        RejectedError: SETTINGS when the port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="foldflight-health")
        # Without so_reuseport=0 a second server would silently share the port with the first.
        self._server = grpc.server(self._threads, options=[("grpc.so_reuseport", 0)])
        self._servicer = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        try:
            self.port = self._server.add_insecure_port(f"{_bracketed(host)}:{port}")
        except RuntimeError:
            self._server.stop(None).wait()
            self._threads.shutdown()
            raise port_taken("health_port", host, port) from None
        self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        self.set_ready(ready=False)
        self._server.start()

    def set_ready(self, *, ready: bool) -> None:
        """Say whether new exchanges are welcome."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in _READY_SERVICES:
            self._servicer.set(service, status)

    def close(self) -> None:
        """Stop at once; open watches are cut."""
        self._server.stop(None).wait()
        self._threads.shutdown()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
