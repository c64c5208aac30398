"""Traces of exchanges with real servers, through real exporters to a collector on the loopback."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from foldflight import connect
from foldflight.client import OpenExchange, close_connections
from foldflight.errors import FunctionError
from foldflight.functions import Call
from foldflight.server.run.lifecycle import serving
from foldflight.tracing import tracer_of
from tests.collector import Collector, collecting
from tests.wire import traced_functions
from tests.wire.kit import COLUMNS, ServerProcess, end_epoch, open_request, rows
from tests.wire.traced_functions import LINE

CALLS = (Call("fatal", ("value",)),)
CLIENT, SERVER = 3, 2


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as result:
        yield result
        for service in ("foldflight", "foldflight-server"):
            tracer_of(result.url, service).close()


@pytest.fixture(autouse=True)
def fresh(collector: Collector) -> Iterator[None]:
    """Begin without spans, and end without connections."""
    collector.spans.clear()
    yield
    close_connections()


def exchange_with(collector: Collector, *urls: str, **parameters: str) -> OpenExchange:
    functions = connect(",".join(urls), otlp_endpoint=collector.url, job_parameters=parameters)
    return functions.transport.open(open_request(*CALLS, columns=COLUMNS))


def scrape(port: int, accept: str) -> tuple[str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_a_server_tells_where_the_time_went(collector: Collector) -> None:
    """Fold and wait are children of the engine's exchange; the log and the histograms name the trace."""
    log = io.StringIO()
    with serving(traced_functions, otlp_endpoint=collector.url, http_port=0, log_stream=log) as server:
        with exchange_with(collector, server.url) as exchange:
            exchange.chunk(rows((0, 0, 1), (1, 0, 5)))
            assert end_epoch(exchange, 1).num_rows == 2
            for epoch in range(2, 8):
                end_epoch(exchange, epoch)
            log_records = exchange.take_logs()
        tracer_of(collector.url).send(wait=True)
        tracer_of(collector.url, "foldflight-server").send(wait=True)
        exchange_span, fold, wait = collector.named("exchange", "fold", "wait")
        pages = {accept: scrape(server.probes.http_port, accept) for accept in ("*/*", "application/openmetrics-text")}
    assert {(each.trace, each.parent) for each in (fold, wait)} == {(exchange_span.trace, exchange_span.id)}
    assert [each.service for each in (exchange_span, fold)] == ["foldflight", "foldflight-server"]
    assert (exchange_span.kind, fold.kind) == (CLIENT, SERVER)
    assert exchange_span.attributes["server.address"] == server.url
    assert (
        exchange_span.attributes["foldflight.server_id"] == fold.attributes["foldflight.server_id"] == server.server_id
    )
    expected = {"rows": 2, "groups": 2, "chunks": 1, "epoch": 1, "versions": ["3"], "modes": ["interpreted"]}
    assert {name: fold.attributes[f"foldflight.{name}"] for name in expected} == expected
    assert fold.attributes["foldflight.bytes"] > 0
    seconds = fold.attributes["foldflight.fold_seconds"] + fold.attributes["foldflight.wait_seconds"]
    assert seconds == pytest.approx((fold.ended_ns - fold.began_ns) / 1e9, abs=1e-3)
    assert wait.ended_ns == fold.began_ns
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    ids = {(event["trace_id"], event["span_id"]) for event in events if "exchange" in event}
    assert ids == {(exchange_span.trace, exchange_span.id)}
    assert "function logged" in {event["event"] for event in events if "trace_id" in event}
    assert [(each.fields["trace_id"], each.fields["span_id"]) for each in log_records] == [
        (exchange_span.trace, exchange_span.id)
    ]
    check_exemplars(pages, exchange_span.trace)


def check_exemplars(pages: dict[str, tuple[str, str]], trace: str) -> None:
    """Only the format OpenMetrics has exemplars, which all parse."""
    kind, text = pages["*/*"]
    assert kind.startswith("text/plain")
    assert "trace_id" not in text
    kind, text = pages["application/openmetrics-text"]
    assert kind.startswith("application/openmetrics-text")
    families = list(text_string_to_metric_families(text))
    result = {
        sample.name: sample.exemplar.labels["trace_id"]
        for family in families
        for sample in family.samples
        if sample.exemplar is not None
    }
    names = {f"foldflight_{name}_bucket" for name in ("fold_seconds", "chunk_bytes", "barrier_seconds")}
    assert result == dict.fromkeys(names, trace)


def test_many_short_epochs_have_few_spans(collector: Collector) -> None:
    """Only the first of many short epochs has spans on the server, and no barrier: a span costs as much as it tells."""
    with serving(traced_functions, otlp_endpoint=collector.url) as server:
        with exchange_with(collector, server.url) as exchange:
            for epoch in range(1, 31):
                end_epoch(exchange, epoch)
        tracer_of(collector.url).send(wait=True)
    collector.named("exchange")
    for name, most in (("barrier", 0), ("fold", 1), ("wait", 1)):
        result = [each for each in collector.spans if each.name == name]
        short = [each for each in result if each.ended_ns - each.began_ns < 20_000_000]
        assert len(short) <= most, name


def test_a_trace_goes_through_a_failover_to_the_authors_line(
    fork: Callable[..., ServerProcess], collector: Collector, tmp_path: Path
) -> None:
    """The lost exchange, the next one with a link to it, and on its server the exception with file and line."""
    settings = {"modules": "tests.wire.traced_functions", "otlp_endpoint": collector.url}
    servers = [fork(**settings), fork(**settings)]
    exchange = exchange_with(collector, *(each.url for each in servers), once=str(tmp_path / "once"))
    exchange.chunk(rows((0, 0, 1), (0, 0, 2)))
    end_epoch(exchange, 1)
    lost_id = exchange.open_reply.server_id
    exchange.chunk(rows((0, 0, 7)))
    end_epoch(exchange, 2)
    exchange.chunk(rows((0, 0, 13)))
    with pytest.raises(FunctionError, match="13 is not expected"):
        end_epoch(exchange, 3)
    tracer_of(collector.url).send(wait=True)
    spans = collector.wait(
        lambda spans: (
            {"exchange", "reopen"} <= {each.name for each in spans}
            and any(each.failed and each.name == "fold" for each in spans)
        )
    )
    (lost_span,) = (each for each in spans if each.name == "exchange")
    (reopen_span,) = (each for each in spans if each.name == "reopen")
    (failed_span,) = (each for each in spans if each.name == "fold" and each.failed)
    assert lost_span.failed
    assert lost_span.attributes["foldflight.server_id"] == lost_id
    assert lost_span.error["exception.type"] == "RetryableError"
    assert reopen_span.links == ((lost_span.trace, lost_span.id),)
    assert (failed_span.trace, failed_span.parent) == (reopen_span.trace, reopen_span.id)
    check_the_line(failed_span.error)
    assert failed_span.attributes["foldflight.outcome"] == "USER_CODE"


def check_the_line(error: dict[str, Any]) -> None:
    assert error["exception.type"] == "ValueError"
    assert (error["code.file.path"], error["code.line.number"]) == (traced_functions.__file__, LINE)


def test_a_server_without_traces_of_its_engine_makes_none(collector: Collector) -> None:
    """The engine decides: an Open without a context, or with one that is not sampled or not valid, has no spans."""
    with serving(traced_functions, otlp_endpoint=collector.url) as server:
        transport = connect(server.url).transport
        for context in ({}, {"traceparent": "00-..."}, {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-00"}):
            with transport.open(open_request(*CALLS, columns=COLUMNS, trace_context=context)) as exchange:
                exchange.chunk(rows((0, 0, 1)))
                end_epoch(exchange, 1)
    assert collector.spans == []


def test_a_collector_that_is_away_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Results are the same, and the log says that spans are lost."""
    monkeypatch.setattr("foldflight.ext.tracing.spans._EXPORT_S_MAX", 0.3)
    endpoint = "http://127.0.0.1:9"
    with serving(traced_functions) as server:
        transport = connect(server.url, otlp_endpoint=endpoint).transport
        with transport.open(open_request(*CALLS, columns=COLUMNS)) as exchange:
            exchange.chunk(rows((0, 0, 1)))
            assert end_epoch(exchange, 1).num_rows == 1
    tracer_of(endpoint).send(wait=True)
    tracer_of(endpoint).close()
    assert any("export" in text.lower() for text in caplog.messages), caplog.messages
