"""The metrics of streaming queries as Prometheus metrics of the driver.

    metrics = StreamMetrics()
    spark.streams.addListener(metrics)
    prometheus_client.start_http_server(9464, registry=metrics.registry)

Or push them to a gateway: `prometheus_client.push_to_gateway("gateway:9091", job="orders", registry=metrics.registry)`.
The listener works in classic PySpark and in Spark Connect, where it runs in the client.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming import StreamingQueryListener  # type: ignore[attr-defined, unused-ignore]

from foldflight.spark.bucketed import FIGURES, aggregation_of, table_of

_LABELS = ("query", "aggregation")


class StreamMetrics(StreamingQueryListener):
    """Converts the progress of a session's streaming queries to metrics.

    The labels are the query's name (or its id, if it has no name) and the aggregation, for example `customer >
    price,n`: the name of its observation, without the number that tells equal ones apart. Figures with the same labels,
    as in a union of two streams, are added. The number of series is the number of aggregations of the session, and of
    tables that are read by name, whose label is `table`. Gauges are removed when their query ends.

    Args:
        registry: The registry for the metrics. Default: a new registry.

    Attributes:
        registry: The registry, to be exposed or pushed.

    >>> from foldflight.spark.metrics import StreamMetrics
    >>> metrics = StreamMetrics()
    >>> spark.streams.addListener(metrics)
    >>> spark.streams.removeListener(metrics)  # until then, its `registry` counts the epochs of all queries
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._epochs = self._counter("epochs", "Epochs committed.")
        self._counters = {
            "rows": self._counter(
                "rows", "Rows folded. With `hop` and `cumulate` a row counts once for each of its windows."
            ),
            "groups": self._counter("groups", "Groups touched, summed over epochs."),
            "late_rows": self._counter(
                "late_rows",
                "Rows dropped because their window was closed (once for each such window), or in OVER because their "
                "time had passed.",
            ),
            "late_retractions": self._counter(
                "late_retractions", "Late rows that retract: the old rows of updates and deletes over closed windows."
            ),
            "isolated_groups": self._counter(
                "isolated_groups", "Groups whose function raised, if errors are isolated."
            ),
            "isolated_rows": self._counter("isolated_rows", "Rows that became dead letters."),
            "ignored_retractions": self._counter("ignored_retractions", "Retractions without a row."),
            "stale_changes": self._counter(
                "stale_changes",
                "In `upserts`, changes that were not newer than the stored row of their key: late ones and repeats.",
            ),
        }
        self._exchange_seconds = self._counter(
            "exchange_seconds", "Time in exchanges (folding, network), summed over tasks."
        )
        self._gauges = {
            "waiting_rows": self._gauge("waiting_rows", "In OVER, rows of these buckets that wait for the watermark."),
            "buckets": self._gauge("buckets", "Buckets (parts of the state) that had rows in the last epoch."),
            "runs": self._gauge("runs", "Runs of these buckets, which a lookup may have to search."),
            "state_bytes": self._gauge("state_bytes", "Bytes of these runs."),
        }
        self._table_rows = Counter(
            "foldflight_stream_table_rows",
            "Rows of the events of a table that `from_debezium(table=)` reads; 0 while no event of it has come.",
            ("query", "table"),
            registry=self.registry,
        )
        self._labels: dict[Any, set[tuple[str, str]]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name, like those below
        """Do nothing: a new query has no progress yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Count one epoch."""
        progress = event.progress
        for observation, row in progress.observedMetrics.items():
            table = table_of(observation)
            if table is not None:
                self._table_rows.labels(progress.name or str(progress.id), table).inc(row["table_rows"])
        for aggregation, figures in _sums(progress.observedMetrics).items():
            labels = (progress.name or str(progress.id), aggregation)
            self._labels.setdefault(progress.runId, set()).add(labels)
            self._epochs.labels(*labels).inc()
            for name, counter in self._counters.items():
                counter.labels(*labels).inc(figures[name])
            self._exchange_seconds.labels(*labels).inc(figures["exchange_ms"] / 1000)
            for name, gauge in self._gauges.items():
                gauge.labels(*labels).set(figures[name])

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: no epoch has been committed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Remove the gauges of a query that has ended."""
        for labels in self._labels.pop(event.runId, ()):
            for gauge in self._gauges.values():
                gauge.remove(*labels)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"foldflight_stream_{name}", meaning, _LABELS, registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"foldflight_stream_{name}", meaning, _LABELS, registry=self.registry)


def _sums(observations: Mapping[str, Any]) -> dict[str, Counts[str]]:
    """Return the figures of each aggregation. Several have one name in the union of two streams."""
    sums: dict[str, Counts[str]] = {}
    for observation, figures in observations.items():
        aggregation = aggregation_of(observation)
        if aggregation is not None:
            sums.setdefault(aggregation, Counts()).update({name: figures[name] for name in FIGURES})
    return sums
