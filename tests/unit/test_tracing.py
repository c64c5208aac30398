"""Spans of embedded exchanges and of tasks, with an exporter in memory; and nothing at all without an endpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from foldflight import connect
from foldflight.client import EmbeddedTransport, connection_spans
from foldflight.engine.batch.tasks import FinalFold, PartialFold
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query
from foldflight.errors import FunctionError, RejectedError
from foldflight.ext.tracing import spans as spans_module
from foldflight.ext.tracing.spans import OtelTracer
from foldflight.functions import Call
from foldflight.spark import worker as tasks
from foldflight.tracing import TraceSettings, check_endpoint, ids_of
from tests.unit.test_architecture import printed_by
from tests.wire import traced_functions
from tests.wire.traced_functions import Fatal

ENDPOINT = "http://collector.invalid:4318"
LAYOUT = QueryLayout(
    keys=pa.schema([("key_0", pa.string())]),
    names=("key",),
    columns=pa.schema([("column_0", pa.int64())]),
    display_names=("value",),
    has_kinds=False,
)
CALL = {"n": Call("fatal", ("value",))}


class Memory(InMemorySpanExporter):
    """Keeps the spans of a tracer."""

    tracer: OtelTracer

    def seen(self, *names: str) -> list[Any]:
        """Return the spans of these names, the first of each."""
        self.tracer.send(wait=True)
        return [next(each for each in self.get_finished_spans() if each.name == name) for name in names]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """The exporter of the tracer for ENDPOINT."""
    exporter = memory_of(monkeypatch)
    yield exporter
    exporter.tracer.close()


def memory_of(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Return an exporter that the tracer for ENDPOINT has from here on."""
    exporter = Memory()
    exporter.tracer = OtelTracer("foldflight", exporter)
    monkeypatch.setattr(OtelTracer, "_known", {(os.getpid(), ENDPOINT, "foldflight"): exporter.tracer})
    return exporter


def query_of(**more: Any) -> Query:
    return Query.of(connect(Fatal, otlp_endpoint=ENDPOINT, **more).transport, CALL, LAYOUT)


def rows_of(*values: int) -> pa.RecordBatch:
    keys = [f"k{value % 2}" for value in values]
    return pa.RecordBatch.from_pydict({"key_0": keys, "column_0": list(values)}, schema=LAYOUT.rows)


def fold_values(query: Query, *values: int) -> list[pa.RecordBatch]:
    """Fold rows in a task of one step."""
    fold = PartialFold(query, query.bounds)
    return list(tasks.in_task(query.trace, "fold_partial[fatal]", fold([rows_of(*values)])))


def test_spans_of_a_partition_have_their_parents_and_attributes(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is a child of its query, an exchange of its task, and a long barrier of its exchange."""
    monkeypatch.setattr(connection_spans, "SHORT_S", 0)
    fold_values(query_of(), 1, 2, 4)
    query, task, exchange, barrier = memory.seen("query", "task", "exchange", "barrier")
    assert query.parent is None
    for child, parent in ((task, query), (exchange, task), (barrier, exchange)):
        assert child.parent.span_id == parent.context.span_id
        assert child.context.trace_id == query.context.trace_id
    assert dict(task.attributes) == {"foldflight.step": "fold_partial[fatal]"}
    assert exchange.attributes["foldflight.functions"] == ("fatal",)
    assert exchange.attributes["foldflight.versions"] == ("3",)
    assert exchange.attributes["foldflight.modes"] == ("interpreted",)
    counts = {name: exchange.attributes[f"foldflight.{name}"] for name in ("rows", "groups", "chunks", "barriers")}
    assert counts == {"rows": 3, "groups": 2, "chunks": 1, "barriers": 1}
    assert 0 < exchange.attributes["foldflight.seconds"] < (exchange.end_time - exchange.start_time) / 1e9
    assert barrier.attributes["foldflight.epoch"] == 1
    assert exchange.start_time <= barrier.start_time <= barrier.end_time <= exchange.end_time


def test_short_barriers_have_no_span(memory: Memory) -> None:
    """A span costs as much as a short barrier, so the exchange counts them."""
    query = query_of()
    with query.transport.open(query.open_request) as exchange:
        for epoch in range(1, 6):
            exchange.barrier(epoch)
            exchange.results(epoch)
    (span,) = memory.seen("exchange")
    assert span.attributes["foldflight.barriers"] == 5
    barriers = [each for each in memory.get_finished_spans() if each.name == "barrier"]
    assert all(each.end_time - each.start_time >= 20_000_000 for each in barriers)


def test_the_bound_function_is_that_of_the_query_without_traces(memory: Memory) -> None:
    """The context of a trace has no part in what an exchange means, so it is not bound anew for each one."""
    query = query_of()
    assert isinstance(query.transport, EmbeddedTransport)
    with query.transport.open(query.open_request):
        bound = query.transport._registry.recent_requests
    with query.transport.open(replace(query.open_request, trace_context={})):
        assert query.transport._registry.recent_requests is bound
    assert len(memory.seen("exchange")) == 1


def test_an_error_has_the_authors_file_and_line(memory: Memory) -> None:
    """The exception is recorded with its type, file and line, by the exchange and by the task."""
    with pytest.raises(FunctionError):
        fold_values(query_of(), 1, 13)
    for span in memory.seen("task", "exchange"):
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.attributes["error.type"] == "USER_CODE"
        (event,) = span.events
        assert (event.name, event.attributes["exception.type"]) == ("exception", "ValueError")
        assert event.attributes["code.file.path"] == traced_functions.__file__
        assert event.attributes["code.line.number"] == traced_functions.LINE
        assert event.attributes["code.function.name"] == "accumulate"
        assert "13 is not expected" in event.attributes["exception.stacktrace"]


def test_an_error_has_no_secrets_of_the_environment(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message and trace have none, in the spans of exchange and task: others read traces."""
    monkeypatch.setenv("MODEL_KEY", "is not expected")
    with pytest.raises(FunctionError):
        fold_values(query_of(), 1, 13)
    for span in memory.seen("task", "exchange"):
        (event,) = span.events
        span_texts = (
            event.attributes["exception.message"],
            event.attributes["exception.stacktrace"],
            span.status.description,
        )
        for text in span_texts:
            assert f"13 {'*' * 15}" in text
            assert "is not expected" not in text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            '  File "/a/mine.py", line 3, in accumulate\n  File "/v/site-packages/x.py", line 9, in f\nnumpy.E: no\n',
            ("/a/mine.py", 3, "numpy.E"),
        ),
        ("java.lang.X: no\n\tat com.acme.Avg.accumulate(Avg.java:12)\n", ("Avg.java", 12, None)),
        ("", (None, None, None)),
    ],
)
def test_the_place_is_the_authors_and_not_a_librarys(text: str, place: tuple[Any, ...]) -> None:
    """The line is in the author's own code, even if a library raised; traces of Java are read, too."""
    result = spans_module._location_of(text)
    assert (result.get("code.file.path"), result.get("code.line.number"), result.get("exception.type")) == place


def test_logs_of_functions_have_the_ids(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    """What a function logs has the ids of its trace and of its exchange."""
    with caplog.at_level(logging.WARNING, "foldflight.functions"):
        fold_values(query_of(), 5)
    (exchange,) = memory.seen("exchange")
    ids = f"trace_id={exchange.context.trace_id:032x} span_id={exchange.context.span_id:016x}"
    assert any("five" in text and ids in text for text in caplog.messages), caplog.messages


def test_the_query_belongs_to_the_span_of_the_application(memory: Memory) -> None:
    """A span that the application has begun, with its own provider, is the parent of the query."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("app").start_as_current_span("app") as app:
        fold_values(query_of(), 1)
    assert memory.seen("query")[0].parent.span_id == app.get_span_context().span_id


def test_a_trace_that_is_not_sampled_has_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler of the environment decides; the exchange is then not even watched, and logs have no ids."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    exporter = memory_of(monkeypatch)
    query = query_of()
    assert query.open_request.trace_context["traceparent"]
    assert ids_of(query.open_request.trace_context) == {}
    assert sum(batch.num_rows for batch in fold_values(query, 1, 2)) == 2
    exporter.tracer.close()
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    ("sampler", "is_above", "is_sampled"),
    [("always_off", 1, 0), ("always_on", 0, 1), ("traceidratio", 1, 0), ("parentbased_always_off", 1, 1)],
)
def test_the_sampler_decides_for_spans_below_another_parent(
    sampler: str, is_above: int, is_sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context that is sent says whether there is a span: else a server has children of one that nobody sends."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    tracer = memory_of(monkeypatch).tracer
    above = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-0{is_above}"}
    parent, context = tracer.child_context(above)
    tracer.close()
    assert parent == above
    assert context["traceparent"].startswith(f"00-{'ab' * 16}-")
    assert context["traceparent"].endswith(f"-0{is_sampled}")


class Task:
    """What Spark tells a task."""

    def __init__(self, partition: int, **properties: str) -> None:
        self.partition = partition
        self.properties = {name.replace("__", "."): value for name, value in properties.items()}

    def stageId(self) -> int:  # noqa: N802
        return 4

    def partitionId(self) -> int:  # noqa: N802
        return self.partition

    def attemptNumber(self) -> int:  # noqa: N802
        return 0

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)


def span_of(monkeypatch: pytest.MonkeyPatch, memory: Memory, query: Query, task: Task) -> Any:
    memory.clear()
    monkeypatch.setattr(tasks.TaskContext, "get", lambda: task)
    list(tasks.in_task(query.trace, "fold", (item for item in [1])))
    memory.tracer.send(wait=True)
    (span,) = memory.get_finished_spans()
    return span


def test_an_epoch_is_a_trace_of_all_its_tasks(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    """Tasks of an epoch share a trace with a link to the query; another epoch is another trace."""
    query = query_of()
    (query_span,) = memory.seen("query")
    epoch = {"sql__streaming__queryId": "q", "streaming__sql__batchId": "7"}
    first, second = (span_of(monkeypatch, memory, query, Task(part, **epoch)) for part in range(2))
    assert (first.name, first.parent, first.attributes["foldflight.epoch"]) == ("epoch", None, 7)
    assert first.attributes["spark.query"] == "q"
    assert [first.attributes["spark.partition"], second.attributes["spark.partition"]] == [0, 1]
    assert first.context.trace_id == second.context.trace_id != query_span.context.trace_id
    assert first.context.span_id != second.context.span_id
    assert [link.context.span_id for link in first.links] == [query_span.context.span_id]
    later = span_of(monkeypatch, memory, query, Task(0, **{**epoch, "streaming__sql__batchId": "8"}))
    assert later.context.trace_id != first.context.trace_id


def test_a_job_names_the_parent_of_its_tasks(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    """The local property `traceparent` is the parent of tasks, which then link to their query."""
    query = query_of()
    (query_span,) = memory.seen("query")
    headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    span = span_of(monkeypatch, memory, query, Task(0, **headers))
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == ("ab" * 16, "cd" * 8)
    assert [link.context.span_id for link in span.links] == [query_span.context.span_id]


def test_a_task_that_is_left_early_ends_its_span(memory: Memory) -> None:
    """A LIMIT closes the generator of a task; that is not an error."""
    query = query_of()
    task_rows = tasks.in_task(query.trace, "fold", (item for item in [1, 2]))
    assert isinstance(task_rows, Generator)
    assert next(task_rows) == 1
    assert not trace.get_current_span().get_span_context().is_valid, "between two items another task may run"
    task_rows.close()
    (task,) = memory.seen("task")
    assert task.status.status_code is trace.StatusCode.UNSET


def test_the_last_stage_is_traced_alike(memory: Memory) -> None:
    """The merge of partial states counts states, not rows."""
    query = query_of()
    states = fold_values(query, 1, 2)
    final = FinalFold(query, merges=True)
    hashed_batches = [batch.append_column("__hash", pa.array(range(batch.num_rows), pa.int64())) for batch in states]
    hashed_batches = [pa.RecordBatch.from_arrays(batch.columns, schema=final.input) for batch in hashed_batches]
    memory.tracer.send(wait=True)
    memory.clear()
    results = list(
        tasks.in_task(TraceSettings(ENDPOINT, query.open_request.trace_context), "merge[fatal]", final(hashed_batches))
    )
    assert sum(batch.num_rows for batch in results) == 2
    (exchange,) = memory.seen("exchange")
    assert (exchange.attributes["foldflight.rows"], exchange.attributes["foldflight.groups"]) == (0, 2)


@pytest.mark.parametrize("endpoint", ["collector:4317", "grpc://collector:4317", "http://", "", 4318])
def test_a_bad_endpoint_is_refused(endpoint: Any) -> None:
    """The endpoint is a URL of HTTP."""
    with pytest.raises(RejectedError, match="http://collector:4318") as excinfo:
        connect(Fatal, otlp_endpoint=endpoint)
    assert excinfo.value.code == "SIGNATURE"


def test_a_context_that_is_not_valid_is_ignored() -> None:
    """Whatever an engine sends, logs and exemplars get ids of the right form or none."""
    assert ids_of({"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}) == {"trace_id": "ab" * 16, "span_id": "cd" * 8}
    for bad in ("", "00-...", f"00-{'ab' * 16}-{'cd' * 8}-00", f"00-{'AB' * 16}-{'cd' * 8}-01", "x" * 10_000):
        assert ids_of({"traceparent": bad}) == {}
    assert check_endpoint("https://collector.example.com:4318/otlp") == "https://collector.example.com:4318/otlp"


PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opentelemetry", "requests"):
            raise ImportError(f"no module {name}")

sys.meta_path.insert(0, Blocked())
from foldflight import connect
from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open
from foldflight.functions import Call
from foldflight.server.run.lifecycle import serving
import foldflight.spark.stream
import pyarrow as pa

columns = pa.schema([("slot", pa.int32()), ("value", pa.int64())])
rows = pa.RecordBatch.from_pydict({"slot": [0, 0], "value": [1, 2]}, schema=columns)

def folds(target):
    context = {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}
    opening = Open((Call("count", ("value",)),), columns, trace_context=context)
    with connect(target).transport.open(opening) as exchange:
        exchange.chunk(rows)
        exchange.barrier(1)
        return exchange.results(1).column("output_0").to_pylist()

with serving() as server:
    assert folds(server.url) == folds("embedded:") == [2]
try:
    connect("embedded:", otlp_endpoint="http://localhost:4318")
except RejectedError as error:
    print(error)
ours = ("opentelemetry", "foldflight.ext.tracing.spans", "foldflight.client.connection_spans")
print(*[name for name in sys.modules if name.startswith(ours)])
"""


@pytest.mark.every_turn
def test_nothing_is_imported_without_an_endpoint() -> None:
    """Folds, servers and Spark's plans work where OpenTelemetry is missing, and an endpoint tells the remedy."""
    output, *rest = printed_by(PROGRAM).split("\n  (see docs")
    assert output.startswith("MODULE: ")
    assert "pip install 'foldflight[otel]'" in output
    assert rest[0].splitlines()[1:] == [""]
