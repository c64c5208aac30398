"""Metrics: the table equals the exported ones, functions' metrics are labelled and bounded, servers are separate."""

from __future__ import annotations

import struct

import pytest
from prometheus_client import generate_latest

from foldflight.server.ops.metrics import METRICS, MORE, Metrics, shared_registry


def page(metrics):
    return generate_latest(metrics.registry).decode()


def test_every_counted_metric_is_in_the_table_and_on_the_page():
    """All metrics of the table are exported before anything was counted."""
    types = [line.split()[2:] for line in page(Metrics()).splitlines() if line.startswith("# TYPE")]
    result = {(name, type_) for name, type_ in types if not name.endswith("_created")}
    listed_metrics = {row.name: row for row in METRICS.values() if f"# TYPE {row.name} " in page(Metrics())}
    assert result == {(row.name, row.type) for row in listed_metrics.values()}
    assert len(listed_metrics) == 30


def test_names_follow_the_customs_of_prometheus():
    """Counters end in _total, times are in seconds and sizes in bytes, and each row has a description."""
    for row in METRICS.values():
        assert row.name.endswith("_total") == (row.type == "counter"), row.name
        assert row.doc.endswith("."), row.name
        if row.unit in {"seconds", "bytes"}:
            assert f"_{row.unit}" in row.name


def test_functions_metrics_carry_function_and_name():
    """Counters, gauges and distributions of a function are labelled with both."""
    metrics = Metrics()
    metrics.add("f", "seen", 2)
    metrics.add("f", "seen", 1)
    metrics.set("f", "depth", 7)
    metrics.observe("f", "size", 5)
    result = page(metrics)
    assert 'foldflight_function_count_total{function="f",metric="seen"} 3.0' in result
    assert 'foldflight_function_gauge{function="f",metric="depth"} 7.0' in result
    assert 'foldflight_function_distribution_sum{function="f",metric="size"} 5.0' in result


def test_names_of_a_functions_metrics_are_bounded():
    """A function that uses a new name for each row fills one more series; other functions are not affected."""
    metrics = Metrics()
    for number in range(300):
        metrics.add("careless", f"user_{number}", 1)
    metrics.add("careless", "user_7", 1)
    metrics.add("careful", "seen", 1)
    result = page(metrics)
    assert result.count('foldflight_function_count_total{function="careless"') == 101
    assert f'{{function="careless",metric="{MORE}"}} 200.0' in result
    assert '{function="careless",metric="user_7"} 2.0' in result
    assert '{function="careful",metric="seen"} 1.0' in result


def test_names_of_shipped_functions_are_bounded():
    """Names of shipped functions fill at most a hundred series; the server's own functions keep theirs."""
    metrics = Metrics()
    metrics.expect({"own": "aggregate"})
    assert 'foldflight_function_info{function="own",function_kind="aggregate"} 1.0' in page(metrics)
    assert [metrics.function_label(f"shipped_{number}") for number in (0, 0, 1)] == [
        "shipped_0",
        "shipped_0",
        "shipped_1",
    ]
    for number in range(300):
        metrics.add(f"shipped_{number}", "seen", 1)
    assert (
        metrics.function_label("own"),
        metrics.function_label("shipped_99"),
        metrics.function_label("shipped_100"),
    ) == (
        "own",
        "shipped_99",
        MORE,
    )
    assert f'{{function="{MORE}",metric="seen"}} 200.0' in page(metrics)


def test_negative_count_does_not_raise():
    """A negative amount for a counter must not end the exchange."""
    metrics = Metrics()
    metrics.add("f", "seen", -1)
    assert 'foldflight_function_count_total{function="f",metric="seen"} 0.0' in page(metrics)


def test_two_servers_in_a_process_count_apart():
    """Each server has its own registry."""
    first, second = Metrics(), Metrics()
    first.opened.inc()
    assert "foldflight_exchanges_opened_total 1.0" in page(first)
    assert "foldflight_exchanges_opened_total 0.0" in page(second)


def test_a_file_that_is_just_being_made_does_not_fail_the_page(tmp_path, monkeypatch):
    """A file that a starting worker has created but not filled yet is read again for a while."""
    registry = shared_registry(str(tmp_path))
    file = tmp_path / "counter_0.db"
    file.touch()
    with monkeypatch.context() as patch:
        patch.setattr("foldflight.server.ops.metrics.time.sleep", lambda _: None)
        with pytest.raises(struct.error):
            generate_latest(registry)
        patch.setattr("foldflight.server.ops.metrics.time.sleep", lambda _: file.write_bytes(bytes(4096)))
        assert generate_latest(registry) == b""
