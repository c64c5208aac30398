"""Everything the server counts, as Prometheus metrics.

One table (`METRICS`) is behind the metrics, the test that checks rules and dashboard against them, and
docs/reference/server.md.

One `Metrics` per server, each with its own registry. When the environment of the process names a directory for
prometheus_client's multiprocess mode, values live in files there and `shared_registry` sums those of all processes.
What is known rather than counted (build, limits, processes) comes from `server/ops/build.py`.
"""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from foldflight.errors import CorruptError, FunctionError, RejectedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["METRICS", "MORE", "Metric", "Metrics", "forget_process", "metrics_table", "shared_registry"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BYTES = tuple(float(4**power) for power in range(5, 14))  # 1 KiB to 64 MiB
_DISTRIBUTION = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e9)
_BUCKETS: Mapping[str, tuple[float, ...]] = {
    "foldflight_chunk_bytes": _BYTES,
    "foldflight_barrier_seconds": _SECONDS,
    "foldflight_fold_seconds": _SECONDS,
    "foldflight_function_distribution": _DISTRIBUTION,
}
_METRICS_OF_A_FUNCTION_MAX = 100
_SHIPPED_FUNCTIONS_MAX = 100
_READS_MAX = 5
_READ_AGAIN_S = 0.02
MORE = "(more)"  # the label of what is beyond that many: no label grows without end


class Metric(NamedTuple):
    """One row of the table.

    Args:
        name: As it is on the page; a histogram's series add `_bucket`, `_sum` and `_count`.
        type: What Prometheus takes it for.
        unit: Of its value.
        labels: What tells its series apart.
        doc: What it means.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    doc: str


METRICS: Mapping[str, Metric] = {
    row.name: row
    for row in (
        Metric("foldflight_exchanges_open", "gauge", "exchanges", (), "Exchanges open now."),
        Metric("foldflight_exchanges_opened_total", "counter", "exchanges", (), "Exchanges admitted."),
        Metric(
            "foldflight_exchanges_ended_total",
            "counter",
            "exchanges",
            ("outcome",),
            "Exchanges that ended: done, vanished (the engine hung up), or the code of the error.",
        ),
        Metric(
            "foldflight_exchanges_refused_total",
            "counter",
            "exchanges",
            ("code",),
            "Exchanges refused at open, by code.",
        ),
        Metric(
            "foldflight_calls_opened_total",
            "counter",
            "calls",
            ("function", "fold"),
            "Calls of admitted exchanges, by the fold that runs them at first: interpreted, compiled, "
            "vectorised, or counted (DISTINCT and materialized).",
        ),
        Metric(
            "foldflight_function_compiled",
            "gauge",
            "-",
            ("function",),
            "1 if machine code folds the function, 0 if the interpreter does, as at the start of the server and at the "
            "last opening or barrier; of several workers, the least.",
        ),
        Metric("foldflight_rows_total", "counter", "rows", (), "Rows of chunks, each once."),
        Metric(
            "foldflight_rows_folded_total",
            "counter",
            "rows",
            ("function", "kind"),
            "Rows given to calls of a function, by row kind, before FILTER; a row counts once for each call.",
        ),
        Metric("foldflight_chunk_bytes", "histogram", "bytes", (), "Sizes of chunks, as they came in."),
        Metric("foldflight_fold_seconds", "histogram", "seconds", (), "Time to fold one chunk with all calls."),
        Metric(
            "foldflight_barrier_seconds",
            "histogram",
            "seconds",
            (),
            "Time from a barrier's arrival to its last result being handed to the transport.",
        ),
        Metric("foldflight_groups", "gauge", "slots", (), "Slots in use in open exchanges."),
        Metric(
            "foldflight_state_bytes",
            "gauge",
            "bytes",
            (),
            "Sizes of the states that open exchanges returned at their last barrier.",
        ),
        Metric("foldflight_errors_total", "counter", "errors", ("code",), "Errors sent to engines, by code."),
        Metric(
            "foldflight_function_errors_total",
            "counter",
            "errors",
            ("function", "code"),
            "Errors of authors' code among them: USER_CODE, RESULT_TYPE, OVERFLOW.",
        ),
        Metric(
            "foldflight_groups_isolated_total",
            "counter",
            "slots",
            ("function",),
            "Groups whose function raised in an epoch while the others went on, where errors are isolated.",
        ),
        Metric(
            "foldflight_limit_errors_total",
            "counter",
            "errors",
            ("limit",),
            "Errors among them because a bound was passed, by the setting that names it.",
        ),
        Metric("foldflight_draining", "gauge", "-", (), "1 while the server drains."),
        Metric(
            "foldflight_function_count_total",
            "counter",
            "-",
            ("function", "metric"),
            f"Counters and meters of functions; beyond {_METRICS_OF_A_FUNCTION_MAX} names of one function, the metric "
            f"is {MORE}, here and below.",
        ),
        Metric("foldflight_function_gauge", "gauge", "-", ("function", "metric"), "Gauges of functions."),
        Metric(
            "foldflight_function_distribution", "histogram", "-", ("function", "metric"), "Distributions of functions."
        ),
        Metric("foldflight_build_info", "gauge", "-", ("version", "python", "arrow"), "1, with what is running."),
        Metric("foldflight_exchanges_max", "gauge", "exchanges", (), "Exchanges that the server takes, all workers."),
        Metric(
            "foldflight_memory_limit_bytes", "gauge", "bytes", (), "Memory that each process may have; 0: no bound."
        ),
        Metric("foldflight_cpus", "gauge", "CPUs", (), "CPUs that the server may use: Arrow's threads follow."),
        Metric("foldflight_workers", "gauge", "processes", (), "Processes that fold and are ready."),
        Metric(
            "foldflight_worker_restarts_total", "counter", "processes", (), "Workers started again after they died."
        ),
        Metric(
            "process_cpu_seconds_total",
            "counter",
            "seconds",
            ("worker",),
            "CPU time of each process: 0, 1, ..., and parent, which relays to them.",
        ),
        Metric("process_resident_memory_bytes", "gauge", "bytes", ("worker",), "Memory of each process."),
        Metric("process_virtual_memory_bytes", "gauge", "bytes", ("worker",), "Address space of each process."),
        Metric("process_start_time_seconds", "gauge", "seconds", ("worker",), "When each process began, since 1970."),
        Metric("process_open_fds", "gauge", "files", ("worker",), "Open file descriptors of each process."),
        Metric("process_max_fds", "gauge", "files", ("worker",), "File descriptors that each process may open."),
    )
}


def metrics_table() -> str:
    """Return the metrics as a Markdown table, for the docs."""
    lines = ["| metric | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    lines.extend(
        f"| `{row.name}` | {row.type} | {row.unit} | {', '.join(f'`{label}`' for label in row.labels) or '-'} "
        f"| {row.doc} |"
        for row in METRICS.values()
    )
    return "\n".join(lines) + "\n"


class Metrics:
    """The metrics of one server; also the `MetricSink` of the functions it runs.

    Counting never raises into an exchange: a function that gives a counter a negative amount loses that amount only.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.open = self._gauge("foldflight_exchanges_open", "livesum")
        self.opened = self._counter("foldflight_exchanges_opened_total")
        self.ended = self._counter("foldflight_exchanges_ended_total")
        self.refused = self._counter("foldflight_exchanges_refused_total")
        self.calls_opened = self._counter("foldflight_calls_opened_total")
        self.compiled = self._gauge("foldflight_function_compiled", "livemin")
        self.rows = self._counter("foldflight_rows_total")
        self.rows_folded = self._counter("foldflight_rows_folded_total")
        self.chunk_bytes = self._histogram("foldflight_chunk_bytes")
        self.fold_seconds = self._histogram("foldflight_fold_seconds")
        self.barrier_seconds = self._histogram("foldflight_barrier_seconds")
        self.groups = self._gauge("foldflight_groups", "livesum")
        self.state_bytes = self._gauge("foldflight_state_bytes", "livesum")
        self.errors = self._counter("foldflight_errors_total")
        self.function_errors = self._counter("foldflight_function_errors_total")
        self.isolated = self._counter("foldflight_groups_isolated_total")
        self.limit_errors = self._counter("foldflight_limit_errors_total")
        self.draining = self._gauge("foldflight_draining", "livemax")
        self._function_count = self._counter("foldflight_function_count_total")
        self._function_gauge = self._gauge("foldflight_function_gauge", "livemostrecent")
        self._function_distribution = self._histogram("foldflight_function_distribution")
        self._names: dict[str, set[str]] = {}
        self._own: set[str] = set()
        self._shipped: set[str] = set()

    def expect(self, functions: Collection[str]) -> None:
        """Take these functions for the server's own, and begin the series of errors at 0.

        Prometheus takes what a series begins with for no increase: an alert would miss the first error of each kind
        otherwise, and of some kinds there is only one.
        """
        for error in (RetryableError, RejectedError, FunctionError, CorruptError):
            for code in error.codes:
                self.errors.labels(code)
        for code in ("OVERLOADED", "DRAINING"):
            self.refused.labels(code)
        self._own.update(functions)
        for function in functions:
            for code in FunctionError.codes:
                self.function_errors.labels(function, code)

    def add(self, function: str, metric: str, amount: float) -> None:
        """Add to a function's counter or meter."""
        with contextlib.suppress(ValueError):  # a counter cannot go down
            self._function_count.labels(*self._bounded(function, metric)).inc(amount)

    def set(self, function: str, metric: str, value: float) -> None:
        """Set a function's gauge."""
        self._function_gauge.labels(*self._bounded(function, metric)).set(value)

    def observe(self, function: str, metric: str, value: float) -> None:
        """Record one value of a function's distribution."""
        self._function_distribution.labels(*self._bounded(function, metric)).observe(value)

    def named(self, function: str) -> str:
        """Return the label of a function: its name; of those that engines ship, (more) beyond a number of them."""
        return function if function in self._own else _within(self._shipped, function, _SHIPPED_FUNCTIONS_MAX)

    def _bounded(self, function: str, metric: str) -> tuple[str, str]:
        function = self.named(function)
        return function, _within(self._names.setdefault(function, set()), metric, _METRICS_OF_A_FUNCTION_MAX)

    def _counter(self, name: str) -> Counter:
        row = METRICS[name]
        return Counter(name.removesuffix("_total"), row.doc, row.labels, registry=self.registry)

    def _gauge(self, name: str, over_processes: Literal["livesum", "livemin", "livemax", "livemostrecent"]) -> Gauge:
        row = METRICS[name]
        return Gauge(name, row.doc, row.labels, registry=self.registry, multiprocess_mode=over_processes)

    def _histogram(self, name: str) -> Histogram:
        row = METRICS[name]
        return Histogram(name, row.doc, row.labels, registry=self.registry, buckets=_BUCKETS[name])


class _Shared(MultiProcessCollector):
    def collect(self) -> Any:
        """Return what all processes have counted; a file that one of them is just making is empty, and read again."""
        for _ in range(_READS_MAX - 1):
            try:
                return super().collect()  # type: ignore[no-untyped-call]
            except struct.error:
                time.sleep(_READ_AGAIN_S)
        return super().collect()  # type: ignore[no-untyped-call]


def _within(known: set[str], name: str, most: int) -> str:
    if name not in known:
        if len(known) >= most:
            return MORE
        known.add(name)
    return name


def shared_registry(directory: str) -> CollectorRegistry:
    """Return a registry that sums the metrics of all processes that write to `directory`."""
    registry = CollectorRegistry()
    _Shared(registry, path=directory)  # type: ignore[no-untyped-call]
    return registry


def forget_process(index: int, directory: str) -> None:
    """Drop the gauges of a worker's process that has ended; its counters still count."""
    mark_process_dead(index, directory)  # type: ignore[no-untyped-call]
