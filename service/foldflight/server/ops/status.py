"""The status of a server and its fleet, for the status page, `foldflight status` and the action `status`.

    {"at_s": 1766300000.0, "servers": [
        {"server_id": "...", "state": "ready", "exchanges": {"open": 3, "max": 64, ...}, "rows": 123456, ...},
        {"address": "10.1.2.3:8817", "problem": "timed out"}]}

Counts begin with the start of a server; two answers give rates. `peers` is a DNS name that resolves to
all servers (a headless Service, a service of Docker Compose). The server that is asked requests the part of each of
their addresses, in parallel. So one answer through a load balancer shows the whole fleet, and a server that hangs is
listed by its address.
"""

from __future__ import annotations

import asyncio
import http
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from foldflight.errors import RetryableError
from foldflight.fold.mode import WAITS_TO_BE_COMPILED, Folding, Mode
from foldflight.functions.author.spec import AnyFunction
from foldflight.functions.registry import Registry
from foldflight.server.flightbase import authority
from foldflight.server.ops.metrics import BUILD, PARENT

STATUS_ACTION = "status"
FLEET_PATH = "/status"
OWN_PATH = "/status/own"
# The entries of a server that contain names of functions.
BY_FUNCTION = ("functions", "code_digests", "kinds", "folded", "call_rates", "function_errors", "groups_isolated")
_ANSWER_S_MAX = 2.0
_ANSWER_BYTES_MAX = 4 * 2**20
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) .*\r\ncontent-length: (\d+)\r\n", re.DOTALL | re.IGNORECASE)
_REQUESTS_AT_ONCE = 128


class Status:
    """The status of one server and of its fleet.

    Args:
        server_id: Its name.
        functions: The functions that it serves.
        registry: The registry of its metrics.
        is_ready: Returns whether it accepts exchanges.
        folding_of: Returns how a function is folded, before any exchange has shown it.
        peers: Names that resolve to the servers of the fleet: `host`, or `host:port` of their HTTP pages.
    """

    def __init__(
        self,
        server_id: str,
        functions: Registry,
        registry: CollectorRegistry,
        *,
        is_ready: Callable[[], bool],
        folding_of: Callable[[AnyFunction], Folding],
        peers: Sequence[str] = (),
    ) -> None:
        self.http_port: int | None = None  # set when the HTTP server runs; also the default port of peers
        self._server_id = server_id
        self._functions = functions
        self._registry = registry
        self._is_ready = is_ready
        self._folding_of = folding_of
        self._peers = tuple(peers)
        self._started_s = time.monotonic()

    def prepare(self) -> None:
        """Find out how functions are folded, so that the first request does not wait for the imports of this."""
        for function in self._functions.values():
            self._folding_of(function)

    def own(self) -> dict[str, Any]:
        """Return the status of this server."""
        values = _values(self._registry)
        draining = values.total("foldflight_draining") > 0
        return {
            "server_id": self._server_id,
            **BUILD,
            "state": "draining" if draining else "ready" if self._is_ready() else "not ready",
            "up_s": round(time.monotonic() - self._started_s, 1),
            "workers": int(values.total("foldflight_workers")),
            "functions": {name: self._functions[name].version for name in sorted(self._functions)},
            "code_digests": {name: self._functions[name].code_digest for name in sorted(self._functions)},
            "kinds": {name: str(self._functions[name].kind) for name in sorted(self._functions)},
            "folded": self._modes(values),
            "call_rates": {
                name: bounds.rate
                for name in sorted(self._functions)
                if (bounds := self._functions[name].bounds) is not None and bounds.rate
            },
            "function_errors": values.by_labels("foldflight_function_errors_total", "function", "code"),
            "groups_isolated": values.by_label("foldflight_groups_isolated_total", "function"),
            "exchanges": {
                "open": int(values.total("foldflight_exchanges_open")),
                "max": int(values.total("foldflight_exchanges_max")),
                "opened": int(values.total("foldflight_exchanges_opened_total")),
                "ended": values.by_label("foldflight_exchanges_ended_total", "outcome"),
                "refused": values.by_label("foldflight_exchanges_refused_total", "code"),
            },
            "rows": int(values.total("foldflight_rows_total")),
            "groups": int(values.total("foldflight_groups")),
            "state_bytes": int(values.total("foldflight_state_bytes")),
            "memory": _memory(values),
            "errors": values.by_label("foldflight_errors_total", "code"),
        }

    def _modes(self, values: _Values) -> dict[str, str]:
        """Return how each function is folded. Workers load compiled functions, and report it as metrics."""
        compiled_functions = values.by_label("foldflight_function_compiled", "function")
        waiting = values.by_label("foldflight_function_waiting", "function")

        def mode(name: str) -> str:
            if name in compiled_functions:
                return str(Mode.COMPILED)
            return str(WAITS_TO_BE_COMPILED if name in waiting else self._folding_of(self._functions[name]))

        return {name: mode(name) for name in sorted(self._functions)}

    def fleet(self) -> dict[str, Any]:
        """Return the status of all servers, sorted by name, always including this one."""
        servers = {self._server_id: self.own()}
        for part in self._ask_peers():
            servers.setdefault(part.get("server_id") or part["address"], part)
        return {"at_s": round(time.time(), 3), "servers": [servers[name] for name in sorted(servers)]}

    def _ask_peers(self) -> list[dict[str, Any]]:
        addresses: list[tuple[str, int]] = []
        parts: list[dict[str, Any]] = []
        for peer in self._peers:
            try:
                addresses += _resolve(peer, self.http_port)
            except OSError as error:
                parts.append({"address": peer, "problem": f"cannot resolve: {error.strerror or error}"})
        return parts + asyncio.run(_ask_all(sorted(set(addresses)))) if addresses else parts


class _Values:
    """A snapshot of the samples of a registry."""

    def __init__(self, samples: Mapping[str, list[tuple[Mapping[str, str], float]]]) -> None:
        self._samples = samples

    def total(self, name: str) -> float:
        return sum(value for _, value in self._samples.get(name, ()))

    def by_label(self, name: str, label: str) -> dict[str, int]:
        return {labels[label]: int(value) for labels, value in self._samples.get(name, ()) if value}

    def by_labels(self, name: str, outer: str, inner: str) -> dict[str, dict[str, int]]:
        values: dict[str, dict[str, int]] = {}
        for labels, value in self._samples.get(name, ()):
            if value:
                values.setdefault(labels[outer], {})[labels[inner]] = int(value)
        return values


def _memory(values: _Values) -> dict[str, int]:
    """Return the memory of all workers, of the largest one, and the limit of each (0: no limit)."""
    resident = values.by_label("process_resident_memory_bytes", "worker")
    worker_bytes = [count for worker, count in resident.items() if worker != PARENT] or [0]
    limit = int(values.total("foldflight_memory_limit_bytes"))
    return {"bytes": sum(worker_bytes), "largest_bytes": max(worker_bytes), "limit_bytes": limit}


def _values(registry: CollectorRegistry) -> _Values:
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in registry.collect():
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return _Values(samples)


def fleet_of(host: str, port: int) -> dict[str, Any]:
    """Return the status of the fleet from the server at this HTTP port.

    Raises:
        RetryableError: UNREACHABLE.
    """
    try:
        # That server waits for its peers.
        return asyncio.run(_ask(host, port, FLEET_PATH, 2 * _ANSWER_S_MAX))
    except (OSError, ValueError) as error:
        problem = _text_of(error)
        raise RetryableError("UNREACHABLE", f"no status from http://{host}:{port}{FLEET_PATH}: {problem}") from None


async def _ask_all(addresses: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the own status of each server, or why there is none."""
    permits = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def ask(host: str, port: int) -> dict[str, Any]:
        address = authority(host, port)
        try:
            async with permits:
                return {**await _ask(host, port, OWN_PATH, _ANSWER_S_MAX), "address": address}
        except (OSError, ValueError) as error:
            return {"address": address, "problem": _text_of(error)}

    return await asyncio.gather(*(ask(*address) for address in addresses))


async def _ask(host: str, port: int, path: str, timeout_s: float) -> dict[str, Any]:
    """Return the JSON object on a page. Raise OSError or ValueError, after `timeout_s` at the latest."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            head = _HEAD.match(await reader.readuntil(b"\r\n\r\n"))
            if head is None:
                raise ValueError("no HTTP of a foldflight server")
            status, size = map(int, head.groups())
            if status != http.HTTPStatus.OK:
                raise ValueError(f"answered {status}")
            if size > _ANSWER_BYTES_MAX:
                raise ValueError(f"answered with more than {_ANSWER_BYTES_MAX} bytes")
            answer = json.loads(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ValueError(f"no HTTP of a foldflight server: {error}") from None
        finally:
            writer.transport.abort()
    if not isinstance(answer, dict):
        raise ValueError("answered with something else")  # noqa: TRY004  (another server's mistake, not our caller's)
    return answer


def _text_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _resolve(peer: str, default_port: int | None) -> list[tuple[str, int]]:
    host, colon, port = peer.rpartition(":")
    if not colon or not port.isdigit():
        host, port = peer, str(default_port or "")
    if not port:
        raise OSError("it names no port, and this server has no HTTP port itself")
    addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(str(address[0]), int(address[1])) for *_, address in addresses]
