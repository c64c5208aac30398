"""The metrics page has every metric that it promises, and what functions count."""

from __future__ import annotations

from foldflight.server.metrics import METRIC_NAMES, Metrics


def test_every_promised_metric_is_on_the_page() -> None:
    """Dashboards may rely on the names before anything was counted."""
    page = Metrics().page().decode()
    for name in METRIC_NAMES:
        assert f"# TYPE {name.removesuffix('_total')}" in page


def test_functions_metrics_carry_function_and_name() -> None:
    """Counters, gauges and distributions of a function are labelled with both."""
    metrics = Metrics()
    metrics.add("f", "seen", 2)
    metrics.add("f", "seen", 1)
    metrics.set("f", "depth", 7)
    metrics.observe("f", "size", 5)
    page = metrics.page().decode()
    assert 'foldflight_function_count_total{function="f",metric="seen"} 3.0' in page
    assert 'foldflight_function_gauge{function="f",metric="depth"} 7.0' in page
    assert 'foldflight_function_distribution_sum{function="f",metric="size"} 5.0' in page


def test_negative_count_does_not_raise() -> None:
    """A function's mistake with a counter must not end its exchange."""
    metrics = Metrics()
    metrics.add("f", "seen", -1)
    assert 'foldflight_function_count_total{function="f",metric="seen"} 0.0' in metrics.page().decode()


def test_two_servers_in_a_process_count_apart() -> None:
    """Each server has a registry of its own."""
    first, second = Metrics(), Metrics()
    first.opened.inc()
    assert "foldflight_exchanges_opened_total 1.0" in first.page().decode()
    assert "foldflight_exchanges_opened_total 0.0" in second.page().decode()
