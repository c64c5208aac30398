"""The context of a function: job parameters, a logger and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

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


class OpenCall(NamedTuple):
    """A call of an async function that is open.

    Args:
        ids: The id of each of its rows.
        logs: The logs of the exchanges whose rows it has. Each receives each line, which may be about any of the rows.
    """

    ids: tuple[str, ...]
    logs: tuple[Callable[[LogRecord], None] | None, ...]


OPEN_CALL: Final[ContextVar[OpenCall | None]] = ContextVar("foldflight_open_call", default=None)
"""The call in which code of an async function runs. Exchanges share the function's instance, so it is not there."""


class OpenFold(NamedTuple):
    """Rows of one exchange that an instance folds which all exchanges of the process share.

    Args:
        log: Receives each line that it logs.
        slot_at_work: Returns the slot that it folds.
    """

    log: Callable[[LogRecord], None] | None
    slot_at_work: Callable[[], int | None]


OPEN_FOLD: Final[ContextVar[OpenFold | None]] = ContextVar("foldflight_open_fold", default=None)
"""The fold in which plain methods of an async aggregate function run."""


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

    The `open` of an async function runs once in a process, for all exchanges with the same direct arguments and job
    parameters.

        >>> from foldflight import FunctionContext, udf
        >>> @udf
        ... class Shout:
        ...     def open(self, context: FunctionContext) -> None:
        ...         self.mark = context.job_parameters.get("mark", "!")
        ...         self.rows = context.counter("rows")
        ...     def eval(self, text: str) -> str:
        ...         self.rows.inc()
        ...         return text.upper() + self.mark

    A test makes a context itself:

        >>> shout = Shout()
        >>> shout.open(FunctionContext("shout", job_parameters={"mark": "?"}))
        >>> shout.eval("what")
        'WHAT?'

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
        self.metrics: Final[MetricSink] = metrics or NullMetrics()
        self._log = log
        # The fold sets the current group's slot here, so that each logged line names its group.
        self.slot_at_work: Callable[[], int | None] = lambda: None

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The id of each row of the call that is open: 32 hexadecimal digits each.

        An id is a hash of the function (name, version, types, direct arguments), the query, its partition and epoch,
        and the arguments of the row or the state of the group. So it is the same if the call is repeated, after an
        error or by another process, and serves as an idempotency key. Rows of one partition with equal arguments have
        the same id. Other engines than Spark do not tell their queries: there, equal ids are of one stream to a server.

            async def eval(self, texts: list[str]) -> list[str]:
                items = [{"id": id, "text": text} for id, text in zip(self.context.call_ids, texts)]
                return await self.client.ask(items)

        Raises:
            RuntimeError: No call of an async function is open.
        """
        call = OPEN_CALL.get()
        if call is None:
            raise RuntimeError("context.call_id and call_ids are known only while an async def of the function runs")
        return call.ids

    @property
    def call_id(self) -> str:
        """The id of the only row of the call that is open; see `call_ids`.

            async def eval(self, text: str) -> str:
                return await self.client.ask(text, headers={"Idempotency-Key": self.context.call_id})

        Raises:
            RuntimeError: No call of an async function is open, or it has several rows.
        """
        ids = self.call_ids
        if len(ids) != 1:
            raise RuntimeError(f"this call has {len(ids)} rows (batch=...): use context.call_ids, with an id for each")
        return ids[0]

    @cached_property
    def logger(self) -> Any:
        """The function's logger, of structlog: an event and fields, in the log of the server and of the task.

            context.logger.warning("no answer", model=self.model, tries=3)

        A line names its group, unless an async function logs it. Values of secrets of the environment are masked.
        """
        import structlog  # a sixth of what a process spends on imports, and few functions log

        return structlog.wrap_logger(
            None,
            processors=[structlog.processors.format_exc_info, self._to_record],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        )

    def counter(self, name: str) -> Counter:
        """Return the counter of this name: `context.counter("misses").inc()`."""
        return Counter(lambda amount: self.metrics.add(self.function, name, amount))

    def meter(self, name: str) -> Meter:
        """Return the meter of this name: `context.meter("tokens").mark(len(answer))`."""
        return Meter(lambda amount: self.metrics.add(self.function, name, amount))

    def gauge(self, name: str) -> Gauge:
        """Return the gauge of this name: `context.gauge("cached").set(len(cache))`."""
        return Gauge(lambda value: self.metrics.set(self.function, name, value))

    def distribution(self, name: str) -> Distribution:
        """Return the distribution of this name: `context.distribution("answer_s").observe(0.2)`."""
        return Distribution(lambda value: self.metrics.observe(self.function, name, value))

    def _to_record(self, _: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        call = OPEN_CALL.get()
        fold = OPEN_FOLD.get() or OpenFold(self._log, self.slot_at_work)
        logs = [each for each in ((fold.log,) if call is None else call.logs) if each is not None]
        if logs:
            message = str(event.pop("event", ""))
            fields = {key: str(value) for key, value in event.items()}
            record = LogRecord(_LEVELS.get(method, method), self.function, message, fields, fold.slot_at_work())
            for log in logs:
                log(record)
        from structlog import DropEvent

        raise DropEvent
