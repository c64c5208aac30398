"""One trace from a Spark query through a failover to the line of the author that raised, at a real collector."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from foldflight import connect
from foldflight.client import close_connections
from foldflight.spark import group_by
from foldflight.spark.errors import error_of
from foldflight.tracing import tracer_of
from tests.collector import Collector, Seen, collecting
from tests.wire import traced_functions
from tests.wire.kit import ServerProcess
from tests.wire.traced_functions import LINE


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as result:
        yield result
        tracer_of(result.url).close()
    close_connections()


@pytest.fixture
def servers(collector: Collector, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Two servers with traces."""
    settings = {"modules": "tests.wire.traced_functions", "otlp_endpoint": collector.url}
    processes = [ServerProcess(settings, tmp_path / f"{number}.log", is_forked=True) for number in range(2)]
    for each in processes:
        each.await_ready()
    yield processes
    for each in processes:
        each.end()


@pytest.mark.slow
def test_a_trace_leads_from_the_query_to_the_authors_line(
    classic: Any, collector: Collector, servers: list[ServerProcess], tmp_path: Path
) -> None:
    """A server is killed under a task, which goes on at the other one, where a row raises."""
    urls = ",".join(each.url for each in servers)
    functions = connect(urls, otlp_endpoint=collector.url, job_parameters={"once": str(tmp_path / "once")})
    rows = classic.createDataFrame([(value % 2, value) for value in (1, 2, 7, 13)], "key INT, value BIGINT").coalesce(1)
    with pytest.raises(PySparkException) as excinfo:
        group_by(rows, "key").agg(n=functions.fatal("value")).collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert error.code == "USER_CODE"
    spans = collector.wait(
        lambda spans: {"query", "task", "exchange", "reopen", "fold"} <= {each.name for each in spans}
    )
    (query,) = (each for each in spans if each.name == "query")
    (reopen_span,) = (each for each in spans if each.name == "reopen")
    (failed_span,) = (each for each in spans if each.name == "fold" and each.failed)
    by_id = {each.id: each for each in spans}
    lost_span, task = by_id[reopen_span.links[0][1]], by_id[reopen_span.parent]
    assert {each.trace for each in spans} == {query.trace}
    assert path_of(failed_span, by_id) == ["fold", "reopen", "task", "query"]
    assert path_of(lost_span, by_id) == ["exchange", "task", "query"]
    assert lost_span.failed
    assert lost_span.attributes["server.address"] != reopen_span.attributes["server.address"]
    assert task.failed
    assert task.attributes["foldflight.step"] == "fold_partial[fatal]"
    assert {"spark.stage", "spark.partition", "spark.attempt"} <= set(task.attributes)
    assert [each.service for each in (query, task, failed_span)] == ["foldflight", "foldflight", "foldflight-server"]
    assert failed_span.error["exception.type"] == "ValueError"
    assert (failed_span.error["code.file.path"], failed_span.error["code.line.number"]) == (
        traced_functions.__file__,
        LINE,
    )


def path_of(span: Seen, by_id: dict[str, Seen]) -> list[str]:
    """Return the names of a span and those above it."""
    return [span.name, *(path_of(by_id[span.parent], by_id) if span.parent else [])]


@pytest.mark.slow
def test_a_stream_has_a_trace_for_each_epoch(classic: Any, collector: Collector, tmp_path: Path) -> None:
    """The tasks of an epoch share a trace, with a link to the query; embedded folds are below them."""
    functions = connect(traced_functions, otlp_endpoint=collector.url)
    folder = tmp_path / "rows"
    for number in range(2):
        classic.range(number * 20, number * 20 + 4).coalesce(1).write.mode("append").json(str(folder))
    rows = classic.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json(str(folder))
    result = group_by(rows, "id", buckets=2).agg(n=functions.fatal("id"))
    query = (
        result.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    ).trigger(availableNow=True)
    query.start().awaitTermination()
    collector.wait(
        lambda spans: {each.attributes["foldflight.epoch"] for each in spans if each.name == "epoch"} >= {0, 1}
    )
    spans = collector.wait(lambda spans: sum(each.name == "exchange" for each in spans) >= 4)
    (query_span,) = (each for each in spans if each.name == "query")
    by_id = {each.id: each for each in spans}
    for number in range(2):
        epoch = [each for each in spans if each.name == "epoch" and each.attributes["foldflight.epoch"] == number]
        assert {each.attributes["foldflight.step"] for each in epoch} == {"fold_partial[fatal]", "fold"}
        assert {each.parent for each in epoch} == {""}
        assert {each.links for each in epoch} == {((query_span.trace, query_span.id),)}
        (trace,) = {each.trace for each in epoch}
        below = [by_id[each.parent].name for each in spans if each.trace == trace and each.name == "exchange"]
        assert below == ["epoch"] * len(below)
        assert below
    assert len({each.trace for each in spans}) == 3


JOB = """
import os
import sys

from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.spark import configure, group_by
from foldflight.spark.java import prepare_local
from tests.wire import traced_functions

endpoint, kind, folder = sys.argv[1:]
prepare_local(os.environ)
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.python.worker.reuse", "false").getOrCreate()
configure(spark, partitions=2)
functions = connect(traced_functions, otlp_endpoint=endpoint)
rows = spark.range(0, 8, 1, 4)
if kind == "batch":
    group_by(rows, "id").agg(n=functions.fatal("id")).collect()
else:
    rows.write.json(f"{folder}/rows")
    rows = spark.readStream.schema(rows.schema).json(f"{folder}/rows")
    writer = group_by(rows, "id", buckets=2).agg(n=functions.fatal("id")).writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.format("noop").start().awaitTermination()
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step"), [("batch", "merge[fatal]"), ("stream", "fold")])
def test_the_spans_of_workers_that_end_with_their_task_arrive(
    collector: Collector, kind: str, step: str, tmp_path: Path
) -> None:
    """Spark may end its workers after each task, at once."""
    command = [sys.executable, "-c", JOB, collector.url, kind, str(tmp_path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    spans = collector.wait(lambda spans: any(each.attributes.get("foldflight.step") == step for each in spans))
    tasks = {each.id: each for each in spans if each.name in ("task", "epoch")}
    below = {tasks[each.parent].attributes["foldflight.step"] for each in spans if each.name == "exchange"}
    assert below == {step, "fold_partial[fatal]"}
    first = [each for each in tasks.values() if each.attributes["foldflight.step"] == "fold_partial[fatal]"]
    assert first
    if kind == "batch":
        assert len(first) == 4
