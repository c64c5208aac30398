"""The metrics of streams in Prometheus, from literal progress."""

from types import SimpleNamespace
from typing import Any

from foldflight.spark.metrics import StreamMetrics

FIGURES = {
    "rows": 100,
    "groups": 7,
    "late_rows": 3,
    "late_retractions": 1,
    "ignored_retractions": 2,
    "stale_changes": 6,
    "isolated_groups": 1,
    "isolated_rows": 5,
    "exchange_ms": 250.0,
    "buckets": 4,
    "runs": 12,
    "waiting_rows": 0,
    "state_bytes": 5000,
}


def progress(observed_metrics: dict[str, dict[str, Any]], name: str | None = "orders", run: int = 1) -> SimpleNamespace:
    return SimpleNamespace(progress=SimpleNamespace(name=name, id="id-1", runId=run, observedMetrics=observed_metrics))


def value(metrics: StreamMetrics, name: str, query: str = "orders", aggregation: str = "k > n") -> float | None:
    labels = {"query": query, "aggregation": aggregation}
    return metrics.registry.get_sample_value(f"foldflight_stream_{name}", labels)


def test_counters_add_and_gauges_show_the_last_epoch() -> None:
    """Over two epochs counters add up, and gauges have the value of the second."""
    metrics = StreamMetrics()
    metrics.onQueryProgress(progress({"foldflight k > n": FIGURES}))
    metrics.onQueryProgress(progress({"foldflight k > n": {**FIGURES, "buckets": 1, "runs": 2, "state_bytes": 70}}))
    assert {name: value(metrics, f"{name}_total") for name in ("epochs", "rows", "groups", "late_rows")} == {
        "epochs": 2,
        "rows": 200,
        "groups": 14,
        "late_rows": 6,
    }
    assert value(metrics, "ignored_retractions_total") == 4
    assert value(metrics, "stale_changes_total") == 12
    assert value(metrics, "late_retractions_total") == 2
    assert value(metrics, "isolated_groups_total") == 2
    assert value(metrics, "isolated_rows_total") == 10
    assert value(metrics, "exchange_seconds_total") == 0.5
    assert [value(metrics, name) for name in ("buckets", "runs", "state_bytes")] == [1, 2, 70]


def test_each_aggregation_of_each_query_has_series_of_its_own() -> None:
    """Chained aggregations have different labels, a query without a name has its id; foreign metrics are ignored."""
    metrics = StreamMetrics()
    metrics.onQueryProgress(progress({"foldflight a > n": FIGURES, "foldflight b > m": FIGURES}, name=None))
    metrics.onQueryProgress(progress({"foldflights": {"rows": 1}, "mine": {}}))
    assert value(metrics, "rows_total", "id-1", "a > n") == 100
    assert value(metrics, "rows_total", "id-1", "b > m") == 100
    samples = [each for family in metrics.registry.collect() for each in family.samples]
    assert {each.labels["aggregation"] for each in samples} == {"a > n", "b > m"}


def test_aggregations_of_one_name_are_added() -> None:
    """The number behind the name of an observation is no label; the parts of a union share a series and an epoch."""
    metrics = StreamMetrics()
    metrics.onQueryProgress(progress({"foldflight k > n": FIGURES, "foldflight k > n #2": FIGURES}))
    assert [value(metrics, name) for name in ("epochs_total", "rows_total", "state_bytes")] == [1, 200, 10_000]


def test_gauges_go_with_their_query() -> None:
    """When a query has ended its gauges are removed and its counters stay; other queries are not affected."""
    metrics = StreamMetrics()
    metrics.onQueryProgress(progress({"foldflight k > n": FIGURES}, run=1))
    metrics.onQueryProgress(progress({"foldflight k > n": FIGURES}, name="other", run=2))
    metrics.onQueryTerminated(SimpleNamespace(runId=1))
    metrics.onQueryTerminated(SimpleNamespace(runId=3))  # one that never made progress
    assert value(metrics, "state_bytes") is None
    assert value(metrics, "rows_total") == 100
    assert value(metrics, "state_bytes", "other") == 5000


def test_a_table_without_events_has_a_figure() -> None:
    """Its counter is there with 0, so that an alert can tell a misspelt table from a query that does not run."""
    metrics = StreamMetrics()
    for rows in (0, 3):
        metrics.onQueryProgress(
            progress({"foldflight_events inv.u": {"table_rows": 0}, "foldflight_events inv.t #2": {"table_rows": rows}})
        )
    result = {
        table: metrics.registry.get_sample_value(
            "foldflight_stream_table_rows_total", {"query": "orders", "table": table}
        )
        for table in ("inv.u", "inv.t", "inv.v")
    }
    assert result == {"inv.u": 0, "inv.t": 3, "inv.v": None}
