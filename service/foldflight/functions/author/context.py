"""The context of a function: job parameters, a logger and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

_LEVELS: Final = {"exception": "error", "fatal": "critical", "warn": "warning", "msg": "info"}


@dataclass(frozen=True)
class LogRecord:
    """One line that a function logged.

    Args:
        level: `debug`, `info`, `warning`, `error` or `critical`.
        function: Name of the function.
        message: The event text.
        fields: The event's other fields, as text.
        slot: The slot of the group that the line belongs to, if any.
    """

    level: str
    function: str
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)
    slot: int | None = None


class MetricSink(Protocol):
    """Receives the metrics of functions."""

    def add(self, function: str, metric: str, amount: float) -> None:
        """Add to a counter or a meter."""

    def set(self, function: str, metric: str, value: float) -> None:
        """Set a gauge."""

    def observe(self, function: str, metric: str, value: float) -> None:
        """Add one observation to a distribution."""


class NullMetrics:
    """A metric sink that discards everything."""

    def add(self, function: str, metric: str, amount: float) -> None:
        """Drop the amount."""

    def set(self, function: str, metric: str, value: float) -> None:
        """Drop the value."""

    def observe(self, function: str, metric: str, value: float) -> None:
        """Drop the observation."""


class Counter:
    """A count of events that never decreases."""

    def __init__(self, add: Callable[[float], None]) -> None:
        self._add = add

    def inc(self, amount: float = 1) -> None:
        """Count `amount` more events."""
        self._add(amount)


class Meter(Counter):
    """A count of events whose rate is of interest. It is exported as a Prometheus counter; use `rate()` in queries."""

    def mark(self, amount: float = 1) -> None:
        """Count `amount` more events."""
        self._add(amount)


class Gauge:
    """A value that goes up and down."""

    def __init__(self, set_: Callable[[float], None]) -> None:
        self._set = set_

    def set(self, value: float) -> None:
        """Make `value` the current value."""
        self._set(value)


class Distribution:
    """A histogram: the count, sum and buckets of observations."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe

    def observe(self, value: float) -> None:
        """Add one observation."""
        self._observe(value)


class FunctionContext:
    """The argument of `open(self, context)`, which runs once for each call of the function in an exchange.

    Args:
        function: Name of the function.
        job_parameters: The parameters that the job passed to `connect(..., job_parameters=...)`.
        metrics: Receives the metrics.
        log: Receives each logged line.
    """

    def __init__(
        self,
        function: str,
        *,
        job_parameters: Mapping[str, str] | None = None,
        metrics: MetricSink | None = None,
        log: Callable[[LogRecord], None] | None = None,
    ) -> None:
        self.function: Final = function
        self.job_parameters: Final[Mapping[str, str]] = dict(job_parameters or {})
        self._metrics = metrics or NullMetrics()
        self._log = log
        # The fold sets the current group's slot here, so that each logged line names its group.
        self.slot_at_work: Callable[[], int | None] = lambda: None

    @cached_property
    def logger(self) -> Any:
        """The function's logger."""
        import structlog  # a sixth of what a process spends on imports, and few functions log

        return structlog.wrap_logger(
            None,
            processors=[structlog.processors.format_exc_info, self._to_record],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )

    def counter(self, name: str) -> Counter:
        """Return the counter of this name."""
        return Counter(lambda amount: self._metrics.add(self.function, name, amount))

    def meter(self, name: str) -> Meter:
        """Return the meter of this name."""
        return Meter(lambda amount: self._metrics.add(self.function, name, amount))

    def gauge(self, name: str) -> Gauge:
        """Return the gauge of this name."""
        return Gauge(lambda value: self._metrics.set(self.function, name, value))

    def distribution(self, name: str) -> Distribution:
        """Return the distribution of this name."""
        return Distribution(lambda value: self._metrics.observe(self.function, name, value))

    def _to_record(self, _: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if self._log is not None:
            message = str(event.pop("event", ""))
            fields = {key: str(value) for key, value in event.items()}
            self._log(LogRecord(_LEVELS.get(method, method), self.function, message, fields, self.slot_at_work()))
        from structlog import DropEvent

        raise DropEvent
