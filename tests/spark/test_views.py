"""Streams whose functions have views: entries beyond a message, restarts, and readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from foldflight import Functions, RejectedError, connect
from foldflight.cli import state as command
from foldflight.cli.main import cli
from foldflight.engine.query import query as query_module
from foldflight.spark import group_by, state_table, tumble
from foldflight.spark.state_reader import StoredTable
from tests.spark.test_stream import Stream
from tests.spark.test_stream_windows import Clicks
from tests.spark_sessions import lend


@pytest.mark.slow
@pytest.mark.surface
def test_views_of_a_stream_survive_restarts_and_can_be_read(
    classic: SparkSession, embedded: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view of hundreds of entries and a small one are as the rows left them, in results and for readers."""

    def query(df: DataFrame) -> DataFrame:
        texts = df.selectExpr("op", "customer", "cast(qty as string) text")
        return group_by(texts, "customer", row_kind="op", buckets=2).agg(n=embedded["seen"]("text"))

    stream = Stream(classic, tmp_path, query)

    def write(rows: list[tuple[str, str, int]]) -> None:
        stream.write([{"op": op, "customer": key, "amount": 1, "qty": text, "x": 0.0} for op, key, text in rows])

    write([*(("+I", "ann", each) for each in range(300)), ("+I", "bob", 1), ("+I", "bob", 1)])
    first = stream.run()
    write([("+I", "ann", 7), ("+I", "ann", 300), ("+I", "ann", 301), ("-D", "ann", 5), ("-D", "bob", 1)])
    second = stream.run()  # another query, from the checkpoint
    assert {row["customer"]: row["n"] for row in first[0]} == {"ann": 300, "bob": 1}
    assert {row["customer"]: row["n"] for row in second[0] if row["row_kind"] == "+U"} == {"ann": 301}

    checkpoint = str(tmp_path / "checkpoint")
    times = state_table(classic, checkpoint, view="n.times")
    assert times.columns == ["customer", "key", "value"]
    result = {(row["customer"], row["key"]): row["value"] for row in times.collect()}
    texts = {str(each): 1 for each in range(302) if each != 5} | {"7": 2}
    assert result == {("ann", text): number for text, number in texts.items()} | {("bob", "1"): 1}
    log = state_table(classic, checkpoint, view="n.log").where("customer = 'ann'").orderBy("key").collect()
    assert [row["value"] for row in log] == [str(each) for each in range(302)]
    groups = {row["customer"]: row["n"] for row in state_table(classic, checkpoint).collect()}
    assert groups["ann"]["times"]["generation"] > 0
    assert groups["bob"]["times"].asDict(recursive=True) == {"generation": 0, "entries": [{"key": "1", "value": 1}]}
    assert StoredTable.of(classic, checkpoint).figures().rows > 600
    with pytest.raises(RejectedError, match=r"the views are n\.times, n\.log"):
        state_table(classic, checkpoint, view="n.other")
    _command_prints(classic, checkpoint, monkeypatch)


def _command_prints(classic: SparkSession, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lend(monkeypatch, command, lambda: classic)
    run = CliRunner(env={"COLUMNS": "160"}).invoke
    arguments = ["state", checkpoint, "--view", "n.times", "--group", "customer=bob"]
    output = run(cli, arguments)
    assert "1 entry" in output.output
    assert "bob" in output.output
    json_output = run(cli, [*arguments, "--json"])
    assert json.loads(json_output.stdout) == {"customer": "bob", "key": "1", "value": 1}


@pytest.mark.slow
def test_a_checkpoint_with_all_rows_of_distinct_is_continued(
    classic: SparkSession, embedded: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that are touched get a view, with the same results as before; readers show both forms."""

    def query(df: DataFrame) -> DataFrame:
        call = embedded["count"]("qty").distinct()
        return group_by(df, "customer", row_kind="op", buckets=2).agg(n=call)

    stream = Stream(classic, tmp_path, query)

    def write(rows: list[tuple[str, str, int]]) -> None:
        stream.write([{"op": op, "customer": key, "amount": 1, "qty": qty, "x": 0.0} for op, key, qty in rows])

    write([*(("+I", "ann", each) for each in range(100)), ("+I", "ann", 1), ("+I", "bob", 1), ("+I", "cy", 1)])
    with monkeypatch.context() as patch:
        patch.setattr(query_module, "_with_views_of_rows", lambda _transport, _open_request, open_reply: open_reply)
        stream.run()
    write([("-D", "ann", 1), ("-D", "ann", 2), ("+I", "ann", 200), ("+I", "ann", 201)])
    (second,) = stream.run()
    assert {row["customer"]: row["n"] for row in second if row["row_kind"] == "+U"} == {"ann": 101}
    checkpoint = str(tmp_path / "checkpoint")
    groups = {row["customer"]: row.asDict(recursive=True) for row in state_table(classic, checkpoint).collect()}
    assert groups["ann"]["n"]["state"] == 101
    assert groups["ann"]["n"]["rows"]["generation"] > 0
    assert groups["ann"]["n (version 1)"] is None
    assert groups["bob"]["n (version 1)"] == [{"argument_0": 1, "times": 1}]
    rows = state_table(classic, checkpoint, view="n.rows").collect()
    expected = {each: 1 for each in (*range(100), 200, 201) if each != 2}
    assert {row["key"]: row["value"] for row in rows if row["customer"] == "ann"} == expected
    write([("+I", "bob", 2), ("+I", "cy", 1), ("-D", "ann", 200)])
    (third,) = stream.run()
    assert {row["customer"]: row["n"] for row in third if row["row_kind"] == "+U"} == {"bob": 2, "ann": 100}


@pytest.mark.slow
def test_closing_windows_read_views_through_a_server(classic: SparkSession, server_url: str, tmp_path: Path) -> None:
    """A window that closes emits a value that reads all items of its view, which the server asks for page by page."""
    functions = connect(server_url)

    def query(df: DataFrame) -> DataFrame:
        rows = df.withWatermark("at", "10 minutes").selectExpr("at", "page", "cast(v as string) text")
        return group_by(rows, "page", window=tumble("at", "1 hour"), emit="append", buckets=2).agg(
            log=functions["seen_log"]("text")
        )

    stream = Clicks(classic, tmp_path, query, mode="append")
    stream.minutes(*((5, "a", each) for each in range(100)))
    stream.minutes((50, "a", 7), (51, "a", 100), (40, "b", 1))
    stream.minutes((200, "c", 1))
    stream.minutes((201, "c", 1))
    output_rows = {row["page"]: row["log"] for epoch in stream.run() for row in epoch}
    assert output_rows == {"a": ",".join(map(str, range(101))), "b": "1"}
