"""The Prometheus metrics of a server.

The table `METRICS` defines the metrics. A test checks the alert rules and the dashboard against it, and
docs/reference/server.md shows it.

Each server has one `Metrics` with its own registry. If the environment names a directory for the multiprocess mode of
prometheus_client, the values are stored in files there, and `shared_registry` sums the values of all processes.
`ServerCollector` has the metrics that are read at each scrape: build, limits, processes.
"""

from __future__ import annotations

import contextlib
import platform
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector

from foldflight.errors import CorruptError, FunctionError, RejectedError, RetryableError

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BYTES = tuple(float(4**power) for power in range(5, 14))  # 1 KiB to 64 MiB
_DISTRIBUTION = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e9)
_BUCKETS: Mapping[str, tuple[float, ...]] = {
    "foldflight_chunk_bytes": _BYTES,
    "foldflight_barrier_seconds": _SECONDS,
    "foldflight_fold_seconds": _SECONDS,
    "foldflight_function_distribution": _DISTRIBUTION,
    "foldflight_async_call_seconds": _SECONDS,
}
_METRICS_OF_A_FUNCTION_MAX = 100
_SHIPPED_FUNCTIONS_MAX = 100
_READS_MAX = 5
_READ_AGAIN_S = 0.02
MORE = "(more)"  # label value for names beyond these limits, so that the number of series is bounded
BUILD: Mapping[str, str] = {
    "version": version("foldflight"),
    "python": platform.python_version(),
    "arrow": pa.__version__,
}
PARENT = "parent"  # the name of the process that relays connections to workers, if there are several


class Metric(NamedTuple):
    """One row of the table.

    Args:
        name: Its name on the page. The series of a histogram add `_bucket`, `_sum` and `_count`.
        type: Its Prometheus type.
        unit: The unit of its value.
        labels: The labels of its series.
        doc: Its meaning.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    doc: str


METRICS: Mapping[str, Metric] = {
    row.name: row
    for row in (
        Metric("foldflight_exchanges_open", "gauge", "exchanges", (), "Exchanges that are open."),
        Metric("foldflight_exchanges_opened_total", "counter", "exchanges", (), "Exchanges admitted."),
        Metric(
            "foldflight_exchanges_ended_total",
            "counter",
            "exchanges",
            ("outcome",),
            "Exchanges that ended, by outcome: done, vanished (the engine disconnected), or the code of the error.",
        ),
        Metric(
            "foldflight_exchanges_refused_total",
            "counter",
            "exchanges",
            ("code",),
            "Exchanges that were refused when they were opened, by code.",
        ),
        Metric(
            "foldflight_calls_opened_total",
            "counter",
            "calls",
            ("function", "fold"),
            "Calls of admitted exchanges, by their initial fold: interpreted, compiled, vectorised, bundled, java, "
            "counted (DISTINCT and materialized) or async.",
        ),
        Metric(
            "foldflight_function_compiled",
            "gauge",
            "-",
            ("function",),
            "1 if the function is compiled, 0 if it is interpreted. Updated at the start of the server, when a "
            "function was compiled, at openings and at barriers. With several workers, the minimum.",
        ),
        Metric(
            "foldflight_function_waiting",
            "gauge",
            "-",
            ("function",),
            "1 while the function is used and interpreted, and waits until another process has compiled it.",
        ),
        Metric(
            "foldflight_compilations_total",
            "counter",
            "functions",
            ("outcome",),
            "Functions that were to be compiled, by outcome: compiled, refused (the log has the reason), found "
            "(another server had compiled it into the folder), or failed (the process that "
            "compiles ended or took too long twice).",
        ),
        Metric(
            "foldflight_function_info",
            "gauge",
            "-",
            ("function", "function_kind"),
            "Always 1 for each function of the server; the label is its kind: aggregate, scalar or table.",
        ),
        Metric("foldflight_rows_total", "counter", "rows", (), "Rows of chunks. Each row counts once."),
        Metric(
            "foldflight_rows_folded_total",
            "counter",
            "rows",
            ("function", "kind"),
            "Rows for calls of a function, by row kind, before FILTER. A row counts once for each call.",
        ),
        Metric("foldflight_chunk_bytes", "histogram", "bytes", (), "Sizes of received chunks."),
        Metric("foldflight_fold_seconds", "histogram", "seconds", (), "Time to fold one chunk with all calls."),
        Metric(
            "foldflight_barrier_seconds",
            "histogram",
            "seconds",
            (),
            "Time from the arrival of a barrier until its last result is passed to the transport.",
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
            "Errors sent to engines that were caused by functions: USER_CODE, RESULT_TYPE, OVERFLOW.",
        ),
        Metric(
            "foldflight_groups_isolated_total",
            "counter",
            "slots",
            ("function",),
            "Groups that failed with isolated errors, by the function that raised.",
        ),
        Metric(
            "foldflight_view_questions_total",
            "counter",
            "questions",
            ("function",),
            "Questions to engines for entries of views, which prefetch avoids. Each is a round trip.",
        ),
        Metric(
            "foldflight_limit_errors_total",
            "counter",
            "errors",
            ("limit",),
            "Errors sent to engines because a bound was exceeded, by the setting of the bound.",
        ),
        Metric(
            "foldflight_async_calls_total",
            "counter",
            "calls",
            ("function", "outcome"),
            "Calls of async functions that ended, by outcome: done, failed, timed out or cancelled.",
        ),
        Metric(
            "foldflight_async_calls_open", "gauge", "calls", ("function",), "Calls of async functions that are open."
        ),
        Metric(
            "foldflight_async_call_seconds",
            "histogram",
            "seconds",
            ("function",),
            "Time of one call of an async function, without the time in which its rows waited for it.",
        ),
        Metric(
            "foldflight_async_retries_total",
            "counter",
            "calls",
            ("function",),
            "Calls of async functions that are repeated after an error.",
        ),
        Metric(
            "foldflight_async_rate_waits_total",
            "counter",
            "calls",
            ("function",),
            "Calls of async functions that waited because of their rate.",
        ),
        Metric("foldflight_draining", "gauge", "-", (), "1 while the server drains."),
        Metric(
            "foldflight_function_count_total",
            "counter",
            "-",
            ("function", "metric"),
            f"Counters and meters of functions. After {_METRICS_OF_A_FUNCTION_MAX} names for one function, the label "
            f"metric is {MORE}; this also applies to the next two metrics.",
        ),
        Metric("foldflight_function_gauge", "gauge", "-", ("function", "metric"), "Gauges of functions."),
        Metric(
            "foldflight_function_distribution", "histogram", "-", ("function", "metric"), "Distributions of functions."
        ),
        Metric(
            "foldflight_build_info", "gauge", "-", ("version", "python", "arrow"), "Always 1; the labels are versions."
        ),
        Metric("foldflight_exchanges_max", "gauge", "exchanges", (), "Limit of open exchanges, over all workers."),
        Metric("foldflight_memory_limit_bytes", "gauge", "bytes", (), "Memory limit of each process. 0: no limit."),
        Metric("foldflight_cpus", "gauge", "CPUs", (), "CPUs that the server may use; also the threads of Arrow."),
        Metric("foldflight_workers", "gauge", "processes", (), "Worker processes that are ready."),
        Metric(
            "foldflight_worker_restarts_total", "counter", "processes", (), "Workers that were restarted after a crash."
        ),
        Metric(
            "process_cpu_seconds_total",
            "counter",
            "seconds",
            ("worker",),
            "CPU time of each process: 0, 1, ..., and parent, which relays connections to them.",
        ),
        Metric("process_resident_memory_bytes", "gauge", "bytes", ("worker",), "Memory of each process."),
        Metric("process_virtual_memory_bytes", "gauge", "bytes", ("worker",), "Address space of each process."),
        Metric("process_start_time_seconds", "gauge", "seconds", ("worker",), "Start of each process, as Unix time."),
        Metric("process_open_fds", "gauge", "files", ("worker",), "Open file descriptors of each process."),
        Metric("process_max_fds", "gauge", "files", ("worker",), "Limit of file descriptors of each process."),
    )
}


class Metrics:
    """The metrics of one server, and the `MetricSink` of its functions.

    Counting never raises into an exchange. If a function adds a negative amount to a counter, the amount is ignored.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.open = self._gauge("foldflight_exchanges_open", "livesum")
        self.opened = self._counter("foldflight_exchanges_opened_total")
        self.ended = self._counter("foldflight_exchanges_ended_total")
        self.refused = self._counter("foldflight_exchanges_refused_total")
        self.calls_opened = self._counter("foldflight_calls_opened_total")
        self.compiled = self._gauge("foldflight_function_compiled", "livemin")
        self.waiting = self._gauge("foldflight_function_waiting", "livemax")
        self.compilations = self._counter("foldflight_compilations_total")
        self._function_info = self._gauge("foldflight_function_info", "livemax")
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
        self.view_questions = self._counter("foldflight_view_questions_total")
        self.limit_errors = self._counter("foldflight_limit_errors_total")
        self._async_calls = self._counter("foldflight_async_calls_total")
        self._async_open = self._gauge("foldflight_async_calls_open", "livesum")
        self._async_seconds = self._histogram("foldflight_async_call_seconds")
        self._async_retries = self._counter("foldflight_async_retries_total")
        self._async_rate_waits = self._counter("foldflight_async_rate_waits_total")
        self.draining = self._gauge("foldflight_draining", "livemax")
        self._function_count = self._counter("foldflight_function_count_total")
        self._function_gauge = self._gauge("foldflight_function_gauge", "livemostrecent")
        self._function_distribution = self._histogram("foldflight_function_distribution")
        self._names: dict[str, set[str]] = {}
        self._own: set[str] = set()
        self._shipped_names: set[str] = set()

    def expect(self, functions: Mapping[str, str]) -> None:
        """Register the server's own functions, kinds by name, and initialise the error counters to 0.

        Prometheus sees no increase in the first value of a series. Without the initial 0, an alert would miss the first
        error of each kind.
        """
        for error in (RetryableError, RejectedError, FunctionError, CorruptError):
            for code in error.codes:
                self.errors.labels(code)
        for code in ("OVERLOADED", "DRAINING"):
            self.refused.labels(code)
        self._own.update(functions)
        for function, kind in functions.items():
            self._function_info.labels(function, kind).set(1)
            for code in FunctionError.codes:
                self.function_errors.labels(function, code)

    def add(self, function: str, metric: str, amount: float) -> None:
        """Add to a counter or meter of a function."""
        with contextlib.suppress(ValueError):  # a counter cannot go down
            self._function_count.labels(*self._bounded_label(function, metric)).inc(amount)

    def set(self, function: str, metric: str, value: float) -> None:
        """Set a gauge of a function."""
        self._function_gauge.labels(*self._bounded_label(function, metric)).set(value)

    def observe(self, function: str, metric: str, value: float) -> None:
        """Record one value of a distribution of a function."""
        self._function_distribution.labels(*self._bounded_label(function, metric)).observe(value)

    def call_began(self, function: str) -> None:
        """Count a call of an async function."""
        self._async_open.labels(self.function_label(function)).inc()

    def call_ended(self, function: str, outcome: str, seconds: float) -> None:
        """Count the end of a call of an async function, and its time."""
        name = self.function_label(function)
        self._async_open.labels(name).dec()
        self._async_calls.labels(name, outcome).inc()
        self._async_seconds.labels(name).observe(seconds)

    def call_retried(self, function: str) -> None:
        """Count a call of an async function that is repeated."""
        self._async_retries.labels(self.function_label(function)).inc()

    def call_delayed(self, function: str) -> None:
        """Count a call of an async function that waits because of its rate."""
        self._async_rate_waits.labels(self.function_label(function)).inc()

    def function_label(self, function: str) -> str:
        """Return the label of a function: its name, or (more) if there are too many shipped functions."""
        return function if function in self._own else _within(self._shipped_names, function, _SHIPPED_FUNCTIONS_MAX)

    def _bounded_label(self, function: str, metric: str) -> tuple[str, str]:
        function = self.function_label(function)
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


class _SharedMetrics(MultiProcessCollector):
    def collect(self) -> Any:
        """Return the metrics of all processes. A file that a process is just creating is empty, and is read again."""
        for _ in range(_READS_MAX - 1):
            try:
                return super().collect()  # type: ignore[no-untyped-call]
            except struct.error:
                time.sleep(_READ_AGAIN_S)
        return super().collect()  # type: ignore[no-untyped-call]


def _within(known_names: set[str], name: str, most: int) -> str:
    if name not in known_names:
        if len(known_names) >= most:
            return MORE
        known_names.add(name)
    return name


def shared_registry(directory: str) -> CollectorRegistry:
    """Return a registry that sums the metrics of all processes that write to `directory`."""
    registry = CollectorRegistry()
    _SharedMetrics(registry, path=directory)  # type: ignore[no-untyped-call]
    return registry


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerCollector:
    """A prometheus_client collector for the build, bounds and processes of a server.

    Args:
        exchanges_max: Limit of open exchanges, over all processes.
        memory_limit: Memory limit of each process, in bytes; 0: no limit.
        cpus: Number of CPUs that the server may use.
        processes: Returns the name and pid of each process of the server. A pid is None while its process starts.
        workers: Returns the number of worker processes that are ready.
        restarts: Returns the number of restarts of workers.
    """

    exchanges_max: int
    memory_limit: int
    cpus: int
    processes: Callable[[], Mapping[str, int | None]]
    workers: Callable[[], int]
    restarts: Callable[[], int]

    def collect(self) -> Iterator[Family]:
        """Yield the metrics."""
        build = GaugeMetricFamily("foldflight_build_info", _doc("foldflight_build_info"), labels=list(BUILD))
        build.add_metric(list(BUILD.values()), 1)
        yield build
        for name, value in (
            ("foldflight_exchanges_max", self.exchanges_max),
            ("foldflight_memory_limit_bytes", self.memory_limit),
            ("foldflight_cpus", self.cpus),
            ("foldflight_workers", self.workers()),
        ):
            yield GaugeMetricFamily(name, _doc(name), value)
        restarts = "foldflight_worker_restarts_total"
        yield CounterMetricFamily(restarts, _doc(restarts), self.restarts())
        yield from self._of_processes()

    def _of_processes(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for worker, pid in self.processes().items():
            if pid is None:
                continue
            for family_of_process in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                family = families.setdefault(family_of_process.name, family_of_process)
                samples = [(each.name, {"worker": worker}, each.value) for each in family_of_process.samples]
                if family is family_of_process:
                    family.samples = []
                for name, labels, value in samples:
                    family.documentation = _doc(name)
                    family.add_sample(name, labels, value)
        yield from families.values()


def _doc(name: str) -> str:
    return METRICS[name].doc
