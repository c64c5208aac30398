"""The metrics of streams in Prometheus, from queries of a classic session and of Spark Connect."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from foldflight import connect
from foldflight.spark import group_by, tumble
from foldflight.spark.metrics import StreamMetrics
from tests.spark import spark_functions

SCHEMA = pa.schema([("op", pa.string()), ("page", pa.string()), ("at", pa.timestamp("us", "UTC"))])
DAY = datetime.fromisoformat("2024-05-01T00:00:00+00:00")
WAIT_S = 60


def sample(registry: CollectorRegistry, name: str) -> float | None:
    labels = {"query": "pages", "aggregation": "page,window_start,window_end > n"}
    return registry.get_sample_value(f"foldflight_stream_{name}", labels)


def wait_for(registry: CollectorRegistry, name: str, value: float | None) -> None:
    """Wait until a metric has a value: listeners get progress some time after the epoch."""
    deadline = time.monotonic() + WAIT_S
    while sample(registry, name) != value:
        assert time.monotonic() < deadline, (name, generate_latest(registry).decode())
        time.sleep(0.05)


@pytest.mark.slow
def test_each_figure_is_a_metric(spark: Any, tmp_path: Path) -> None:
    """Counters add up over epochs, gauges show the last epoch, and gauges are removed when the query has ended."""
    source = tmp_path / "input"
    source.mkdir()
    metrics = StreamMetrics()
    spark.streams.addListener(metrics)
    clicks = spark.readStream.schema("op string, page string, at timestamp").parquet(str(source))
    counts = group_by(
        clicks.withWatermark("at", "0 seconds"), "page", row_kind="op", window=tumble("at", "1 hour"), buckets=2
    ).agg(n=connect(spark_functions)["count"]())
    query = (
        counts.writeStream.queryName("pages")
        .outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        epochs = [
            [("+I", "a", 10), ("+I", "a", 10), ("+I", "b", 12), ("-D", "c", 12)],  # c was never there
            [("+I", "b", 12), ("+I", "a", 10)],  # the window of 10 o'clock has closed
        ]
        for number, epoch in enumerate(epochs):
            rows = [{"op": op, "page": page, "at": DAY + timedelta(hours=hour)} for op, page, hour in epoch]
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "file")
            (tmp_path / "file").rename(source / f"{number}.parquet")
            query.processAllAvailable()
        wait_for(metrics.registry, "rows_total", 4)
        wait_for(metrics.registry, "late_rows_total", 1)
        assert sample(metrics.registry, "ignored_retractions_total") == 1
        assert sample(metrics.registry, "groups_total") == 3
        assert (sample(metrics.registry, "exchange_seconds_total") or 0) > 0
        assert (sample(metrics.registry, "epochs_total") or 0) >= len(epochs)
        assert sample(metrics.registry, "buckets") is not None
        assert sample(metrics.registry, "runs") is not None
        assert sample(metrics.registry, "state_bytes") is not None
        query.stop()
        wait_for(metrics.registry, "state_bytes", None)
        assert sample(metrics.registry, "rows_total") == 4
    finally:
        query.stop()
        spark.streams.removeListener(metrics)
