"""Everything the server counts, as Prometheus metrics.

One `Metrics` per server, each with its own registry. When the environment of the process names a directory for
prometheus_client's multiprocess mode, values live in files there and `workers.py` serves the sum as one page.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METRIC_NAMES", "Metrics", "forget_process", "shared_page"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_DISTRIBUTION = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e9)

METRIC_NAMES = (
    "foldflight_exchanges_opened_total",
    "foldflight_exchanges_ended_total",
    "foldflight_exchanges_refused_total",
    "foldflight_exchanges_active",
    "foldflight_rows_folded_total",
    "foldflight_chunks_total",
    "foldflight_barrier_seconds",
    "foldflight_state_bytes",
    "foldflight_errors_total",
    "foldflight_draining",
    "foldflight_function_count_total",
    "foldflight_function_gauge",
    "foldflight_function_distribution",
)


class Metrics:
    """The metrics of one server; also the `MetricSink` of the functions it runs.

    Counting never raises into an exchange: a function that gives a counter a negative amount loses that amount only.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.opened = Counter("foldflight_exchanges_opened", "Exchanges admitted.", registry=registry)
        self.ended = Counter(
            "foldflight_exchanges_ended",
            "Exchanges that ended, by outcome: done, vanished, or the code of the error.",
            ["outcome"],
            registry=registry,
        )
        self.refused = Counter(
            "foldflight_exchanges_refused", "Exchanges refused at open, by code.", ["code"], registry=registry
        )
        self.active = Gauge(
            "foldflight_exchanges_active", "Exchanges open now.", registry=registry, multiprocess_mode="livesum"
        )
        self.rows_folded = Counter("foldflight_rows_folded", "Rows folded.", registry=registry)
        self.chunks = Counter("foldflight_chunks", "Chunks folded.", registry=registry)
        self.barrier_seconds = Histogram(
            "foldflight_barrier_seconds",
            "Time from a barrier's arrival to its last result being handed to the transport.",
            registry=registry,
            buckets=_SECONDS,
        )
        self.state_bytes = Gauge(
            "foldflight_state_bytes",
            "Bytes of the states that open exchanges returned at their last barrier.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.errors = Counter("foldflight_errors", "Errors sent to engines, by code.", ["code"], registry=registry)
        self.draining = Gauge(
            "foldflight_draining", "1 while the server drains.", registry=registry, multiprocess_mode="livemax"
        )
        labels = ["function", "metric"]
        self._count = Counter(
            "foldflight_function_count", "Counters and meters of functions.", labels, registry=registry
        )
        self._gauge = Gauge(
            "foldflight_function_gauge",
            "Gauges of functions.",
            labels,
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._distribution = Histogram(
            "foldflight_function_distribution",
            "Distributions of functions.",
            labels,
            registry=registry,
            buckets=_DISTRIBUTION,
        )

    def add(self, function: str, metric: str, amount: float) -> None:
        """Add to a function's counter or meter."""
        with contextlib.suppress(ValueError):  # a counter cannot go down
            self._count.labels(function, metric).inc(amount)

    def set(self, function: str, metric: str, value: float) -> None:
        """Set a function's gauge."""
        self._gauge.labels(function, metric).set(value)

    def observe(self, function: str, metric: str, value: float) -> None:
        """Record one value of a function's distribution."""
        self._distribution.labels(function, metric).observe(value)

    def page(self) -> bytes:
        """Return this process's metrics in Prometheus text format."""
        return generate_latest(self._registry)


def shared_page(directory: str) -> Callable[[], bytes]:
    """Return a page that sums the metrics of all processes that write to `directory`."""

    def page() -> bytes:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    return page


def forget_process(pid: int, directory: str) -> None:
    """Drop the gauges of a process that has ended; its counters still count."""
    mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]
