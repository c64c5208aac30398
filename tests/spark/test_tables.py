"""Streams written into tables: epochs that come again, modes, parts, windows, and refusals before the start."""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight import RejectedError, RetryableError
from foldflight.client import Functions
from foldflight.engine.query.layout import ROW_KIND
from foldflight.ext.tables import sink
from foldflight.ext.tables.catalog_table import CatalogTable, net_changes
from foldflight.ext.tables.duckdb import DuckDBTable
from foldflight.ext.tables.merge_sql import merge_statement
from foldflight.spark import group_by, tumble, upgrade_checkpoint, write_table
from tests.spark_sessions import since_spark
from tests.tables.conftest import kind, postgres
from tests.tables.kinds import DuckDBFile, Kind
from tests.tables.orders import DDL, KEYS, Orders, totals_in

__all__ = ["kind", "postgres"]

EPOCHS = 2
SINK = "foldflight.spark.tables"


@pytest.fixture
def file(tmp_path: Path) -> DuckDBFile:
    return DuckDBFile(tmp_path / "tables.duckdb")


def totals(spark: Any, functions: Functions, folder: Path, **options: Any) -> DataFrame:
    """Return the stream of totals, with one file in each epoch."""
    (folder / "input").mkdir(exist_ok=True)
    orders = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    grouped_df = group_by(orders, *KEYS, row_kind="op", buckets=2, **options)
    return grouped_df.agg(total=functions["sum"]("amount"), orders=functions["count"]())


def write(changes: DataFrame, target: Any, folder: Path, **options: Any) -> None:
    """Write all that has arrived."""
    all_options = {"keys": KEYS, "checkpoint": folder / "checkpoint", "create": isinstance(target, str), **options}
    query = write_table(changes, target, trigger="availableNow", **all_options)
    assert query.awaitTermination(600)


def events_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    result = [(record.event, record.epoch) for record in caplog.records if record.name == SINK]  # type: ignore[attr-defined]
    caplog.clear()
    return result


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("kind", "emit"),
    [
        ("duckdb", "update"),
        *(
            pytest.param(name, "changelog", marks=pytest.mark.slow)
            for name in ("duckdb", "postgresql", "delta", "iceberg")
        ),
    ],
    indirect=["kind"],
)
def test_the_table_equals_the_batch(
    classic: Any, embedded: Functions, kind: Kind, emit: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After each start the table has the totals; an epoch that Spark repeats is not applied again."""
    caplog.set_level(logging.INFO, SINK)
    orders = Orders(seed=5)
    for epoch in range(EPOCHS):
        orders.write(tmp_path / "input", epoch, 25)
        if epoch:
            # As if the driver had died before this file was written: Spark repeats the epoch before.
            (tmp_path / "checkpoint" / "commits" / str(epoch - 1)).unlink()
        write(totals(classic, embedded, tmp_path, emit=emit), kind.url("totals"), tmp_path, part_rows=5)
        assert totals_in(kind.rows("totals")) == orders.totals()
        repeat_events = [("table_epoch_repeated", epoch - 1)] if epoch else []
        assert events_of(caplog) == [*repeat_events, ("table_epoch", epoch)]


@pytest.mark.slow
def test_a_server_of_connect_runs_the_sink(
    sessions: dict[str, Any], embedded: Functions, file: DuckDBFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of Spark Connect runs the sink in a process of its own."""
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = SparkSession.builder.remote(sessions["connect"]).create()
    orders = Orders(seed=6)
    try:
        for epoch in range(2):
            orders.write(tmp_path / "input", epoch, 25)
            if epoch:
                (tmp_path / "checkpoint" / "commits" / "0").unlink()
            write(totals(session, embedded, tmp_path), file.url("totals"), tmp_path, part_rows=5)
            assert totals_in(file.rows("totals")) == orders.totals()
    finally:
        session.client.close()


class Recorded:
    """A target that keeps the parts of each epoch, and may fail at first."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.epochs = failures, {}
        self.bytes = 0

    def last_epoch(self, query: str) -> int | None:
        return max(self.epochs, default=None)

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table]) -> None:
        parts = []
        before = pa.total_allocated_bytes()
        for part in changes:
            self.bytes = max(self.bytes, pa.total_allocated_bytes() - before)
            parts.append((part.num_rows, part.nbytes))
            if self.failures:
                self.failures -= 1
                raise RetryableError("UNREACHABLE", "not now")
        self.epochs[epoch] = parts


@pytest.mark.every_turn
def test_a_large_epoch_comes_in_parts(classic: Any, tmp_path: Path) -> None:
    """The driver holds one part of an epoch at a time, and a target that is lost in the middle gets all parts again."""
    rows = 40_000
    pq.write_table(pa.table({"key": pa.array(range(rows)), "text": ["x" * 100] * rows}), tmp_path / "rows.parquet")
    stream = classic.readStream.schema("key BIGINT, text STRING").parquet(str(tmp_path / "*.parquet"))
    target = Recorded(failures=2)
    checkpoint = tmp_path / "[a] {b} *"  # no pattern
    write(stream, target, tmp_path, keys=["key"], part_rows=2000, checkpoint=checkpoint)
    (parts,) = target.epochs.values()
    counts, sizes = zip(*parts, strict=True)
    assert sum(counts) == rows
    assert len(counts) == 20
    assert max(counts) < 2400  # the keys are distributed by their hash
    assert target.bytes < 4 * max(sizes)


def test_a_missing_table_is_waited_for(
    classic: Any, file: DuckDBFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`write_table` waits for it with patience, and tells why; without patience it fails at once."""
    pq.write_table(pa.table({"key": [1]}), tmp_path / "rows.parquet")
    stream = classic.readStream.schema("key BIGINT").parquet(str(tmp_path / "*.parquet"))
    prepare, failures = DuckDBTable.prepare, [RetryableError("UNREACHABLE", "not yet") for _ in range(3)]

    def create_and_fail(table: DuckDBTable) -> None:
        if failures:
            raise failures.pop()
        prepare(table)

    monkeypatch.setattr(DuckDBTable, "prepare", create_and_fail)
    with pytest.raises(RetryableError, match="not yet"):
        write(stream, file.url("t"), tmp_path, keys=["key"], patience_s=0)
    write(stream, file.url("t"), tmp_path, keys="key")
    assert [record.event for record in caplog.records if record.name == SINK] == ["table_not_available"] * 2  # type: ignore[attr-defined]
    assert file.rows("t") == [{"key": 1}]


def test_a_checkpoint_older_than_the_table_is_refused(classic: Any, tmp_path: Path) -> None:
    """Spark would form the later epochs anew, from other rows, and the table would skip them."""
    pq.write_table(pa.table({"key": [1]}), tmp_path / "rows.parquet")
    stream = classic.readStream.schema("key BIGINT").parquet(str(tmp_path / "*.parquet"))
    target = Recorded()
    target.epochs[1] = []
    with pytest.raises(Exception, match=r"table Recorded has epochs up to 1 of the query .* goes on with epoch 0"):
        write(stream, target, tmp_path, keys=["key"])
    assert target.epochs == {1: []}


@pytest.mark.every_turn
def test_a_checkpoint_one_epoch_older_than_the_table_goes_on(classic: Any, file: DuckDBFile, tmp_path: Path) -> None:
    """Its next epoch has the number of the table's last one, and other rows. A repeat of Spark has the same offsets."""
    (tmp_path / "input").mkdir()
    stream = classic.readStream.schema("key BIGINT").parquet(str(tmp_path / "input"))
    for epoch in range(2):
        pq.write_table(pa.table({"key": [epoch]}), tmp_path / "input" / f"{epoch}.parquet")
        write(stream, file.url("t"), tmp_path, keys=["key"])
        shutil.copytree(tmp_path / "checkpoint", tmp_path / f"after {epoch}")
    pq.write_table(pa.table({"key": [2]}), tmp_path / "input" / "2.parquet")
    for _again in range(2):  # also when the refused epoch is repeated
        with pytest.raises(Exception, match=r"table t in .* has epoch 1 of the query .* with other rows than in"):
            write(stream, file.url("t"), tmp_path, keys=["key"], checkpoint=tmp_path / "after 0")
    (tmp_path / "after 1" / "commits" / "1").unlink()
    write(stream, file.url("t"), tmp_path, keys=["key"], checkpoint=tmp_path / "after 1")
    assert sorted(row["key"] for row in file.rows("t")) == [0, 1, 2]


@pytest.mark.every_turn
def test_a_checkpoint_that_was_moved_is_refused_with_the_remedy(
    classic: Any, embedded: Functions, file: DuckDBFile, tmp_path: Path
) -> None:
    """It is refused before the query starts, with the call that helps, whatever steps follow the groups."""
    orders = Orders(seed=5)
    orders.write(tmp_path / "input", 0, 25)
    changes = totals(classic, embedded, tmp_path).where("orders >= 0")
    write(changes, file.url("t"), tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "moved")
    orders.write(tmp_path / "input", 1, 25)
    refusal = r"STATE_MISMATCH: the checkpoint was moved, .*/checkpoint/state/0/_stateSchema/.*upgrade_checkpoint"
    with pytest.raises(RejectedError, match=refusal):
        write(changes, file.url("t"), tmp_path, checkpoint=tmp_path / "moved")
    assert upgrade_checkpoint(str(tmp_path / "moved"))
    write(changes, file.url("t"), tmp_path, checkpoint=tmp_path / "moved")
    assert totals_in(file.rows("t")) == orders.totals()


def test_a_new_query_begins_with_an_empty_table(classic: Any, file: DuckDBFile, tmp_path: Path) -> None:
    """Rows of another query would stay for ever: a deleted checkpoint is refused, and other rows may be allowed."""
    pq.write_table(pa.table({"key": [1]}), tmp_path / "rows.parquet")
    stream = classic.readStream.schema("key BIGINT").parquet(str(tmp_path / "*.parquet"))
    file.opened("t", pa.schema([("key", pa.int64())]), ["key"])
    file.run("INSERT INTO t VALUES (7)")
    for checkpoint in (tmp_path / "one", tmp_path / "other"):
        with pytest.raises(Exception, match=r"table t in .* has rows already, and a query with a new checkpoint"):
            write(stream, file.url("t"), tmp_path, keys=["key"], checkpoint=checkpoint)
    write(stream, file.url("t"), tmp_path, keys=["key"], checkpoint=checkpoint, create=False)
    assert sorted(row["key"] for row in file.rows("t")) == [1, 7]


@pytest.mark.every_turn
def test_windows_that_close_are_written_once(
    classic: Any, embedded: Functions, file: DuckDBFile, tmp_path: Path
) -> None:
    """In append mode the table has the windows that are closed, also after epochs without any."""
    start = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    for number, minutes in enumerate([(0, 1, 61), (62, 119, 125), (240,)]):
        at = pa.array([start + dt.timedelta(minutes=each) for each in minutes], pa.timestamp("us", "UTC"))
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"at": at}), path)
        os.utime(path, (number + 1, number + 1))
    stream = (
        classic.readStream.schema("at TIMESTAMP").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "*.parquet"))
    )
    hours = group_by(stream.withWatermark("at", "0 seconds"), window=tumble("at", "1 hour"), emit="append")
    hourly_counts = hours.agg(n=embedded["count"]())
    write(hourly_counts, file.url("hours"), tmp_path, keys=["window_start"], output_mode="append")
    hours_of = {row["window_start"].astimezone(dt.UTC).hour: row["n"] for row in file.rows("hours")}
    assert hours_of == {0: 2, 1: 3, 2: 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["duckdb", "postgresql"], indirect=True)
def test_two_queries_write_into_two_tables_at_once(
    classic: Any, embedded: Functions, kind: Kind, tmp_path: Path
) -> None:
    """Two queries write at once into two tables of one database."""
    orders = {name: Orders(seed) for seed, name in enumerate(("one", "other"))}
    queries = []
    for name, each in orders.items():
        for epoch in range(EPOCHS):
            (tmp_path / name).mkdir(exist_ok=True)
            each.write(tmp_path / name / "input", epoch, 25)
        changes = totals(classic, embedded, tmp_path / name)
        options = {"checkpoint": tmp_path / name / "checkpoint", "create": True, "trigger": "available now"}
        queries.append(write_table(changes, kind.url(name), keys=KEYS, **options))
    assert all(query.awaitTermination(600) for query in queries)
    for name, each in orders.items():
        assert totals_in(kind.rows(name)) == each.totals()


@pytest.mark.slow
def test_a_column_that_the_table_lacks_is_refused_or_added(
    classic: Any, embedded: Functions, file: DuckDBFile, tmp_path: Path
) -> None:
    """A column that the table lacks is refused in words before anything is written, or added."""
    changes = totals(classic, embedded, tmp_path)
    columns = pa.schema([("name", pa.string()), ("shop", pa.int32()), ("total", pa.int64())])
    file.opened("totals", columns, KEYS)
    with pytest.raises(RejectedError, match=r"has no column orders, .*; it has name, shop, total.*add_columns=True"):
        write_table(changes, file.url("totals"), keys=KEYS, checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    orders = Orders(seed=7)
    orders.write(tmp_path / "input", 0, 25)
    write(changes, file.url("totals"), tmp_path, add_columns=True)
    assert totals_in(file.rows("totals")) == orders.totals()


@pytest.mark.slow
def test_a_table_that_lost_its_epochs_is_refused(
    classic: Any, embedded: Functions, file: DuckDBFile, tmp_path: Path
) -> None:
    """If the file is deleted while the checkpoint goes on, the query stops instead of filling half a table."""
    orders = Orders(seed=8)
    orders.write(tmp_path / "input", 0, 25)
    write(totals(classic, embedded, tmp_path), file.url("totals"), tmp_path)
    file.path.unlink()
    orders.write(tmp_path / "input", 1, 25)
    with pytest.raises(
        Exception, match=r"has no epoch of the query .* goes on with epoch 1: the changes between are lost"
    ):
        write(totals(classic, embedded, tmp_path), file.url("totals"), tmp_path)
    assert file.rows("totals") == []


@pytest.mark.every_turn
@since_spark("4.3", "TIME in streams")
@pytest.mark.parametrize("kind", ["duckdb", "delta"], indirect=True)
def test_times_of_a_day_are_written_or_refused(
    classic: Any, embedded: Functions, kind: Kind, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """DuckDB has the times that the function returned; Delta has no type for them, and the column is named."""
    rows = pa.table({"k": pa.array([1, 1], pa.int32()), "t": pa.array([1, 2_000_001], pa.time64("us"))})
    (tmp_path / "input").mkdir()
    classic.conf.set("spark.sql.timeType.enabled", "true")
    request.addfinalizer(lambda: classic.conf.unset("spark.sql.timeType.enabled"))
    pq.write_table(rows, tmp_path / "input" / "1.parquet")
    input_df = classic.readStream.schema("k INT, t TIME(6)").parquet(str(tmp_path / "input"))
    live = group_by(input_df, "k", buckets=1).agg(last=embedded["max"]("t"))
    if isinstance(kind, DuckDBFile):
        write(live, kind.url("opening"), tmp_path, keys=["k"])
        with duckdb.connect(str(kind.path)) as connection:
            assert connection.execute("SELECT k, last::VARCHAR FROM opening").fetchall() == [(1, "00:00:02.000001")]
    else:
        with pytest.raises(RejectedError, match=r"Delta has no type for the column last .*time64.*AS STRING"):
            write(live, kind.url("opening"), tmp_path, keys=["k"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": []}, r"keys=\[...\] are the columns"),
        ({"keys": "nam"}, "the key nam is no column of the stream: row_kind, name, shop, total, orders"),
        ({"keys": ["nam"]}, "the key nam is no column of the stream: row_kind, name, shop, total, orders"),
        ({"keys": [ROW_KIND]}, "the key row_kind is no column"),
        ({"part_rows": 0}, "a part has at least one row"),
        ({"trigger": {"availableNow": False}}, "write '10 seconds', or 'available now'"),
        ({"trigger": {"continuous": "1 second"}}, "which sends each row on its own"),
        ({"trigger": {"realTime": "5 minutes"}}, "which sends each row on its own"),
        ({"trigger": "ten"}, "Spark cannot read the trigger 'ten'; write '10 seconds', or 'available now'"),
        ({"trigger": 10}, "write '10 seconds', or 'available now'"),
        ({"target": "duckdb:///tmp/x"}, "names no table; add .table=NAME"),
        ({"target": "duckdb://host/x?table=t"}, "absolute path behind three slashes"),
        ({"target": "mysql://host/db?table=t"}, "there is no target mysql:"),
        ({"target": "nowhere"}, "create and add_columns are for targets by URL"),
        ({"target": "nowhere", "create": False}, "there is no table nowhere"),
        ({"create": False}, "there is no table totals in .*; create it, or give create=True"),
    ],
)
def test_mistakes_are_refused_before_the_query_starts(
    classic: Any, embedded: Functions, file: DuckDBFile, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """A mistake in the arguments is an error that tells the remedy."""
    options = {"target": file.url("totals"), "keys": KEYS, "create": True, **change}
    with pytest.raises(RejectedError, match=message):
        write_table(totals(classic, embedded, tmp_path), checkpoint=tmp_path / "checkpoint", **options)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("query_options", "trigger"),
    [
        (None, {}),
        ("available now", {"availableNow": True}),
        ({"availableNow": True}, {"availableNow": True}),
        ({"processingTime": "10 seconds"}, {"processingTime": "10 seconds"}),
        ("10 seconds", {"processingTime": "10 seconds"}),
    ],
)
def test_triggers_are_those_of_pyspark(query_options: Any, trigger: dict[str, Any]) -> None:
    """They have the names of PySpark's `trigger`, or are one text."""
    assert sink._trigger(query_options) == trigger


def test_streams_that_are_no_changes_are_refused(
    classic: Any, embedded: Functions, file: DuckDBFile, tmp_path: Path
) -> None:
    """A batch, dead letters, and keys that cannot identify a row are refused."""

    def check_refusal(changes: DataFrame, message: str, keys: Iterable[str] = ("name",)) -> None:
        with pytest.raises(RejectedError, match=message):
            write_table(changes, file.url("t"), keys=list(keys), checkpoint=tmp_path / "checkpoint", create=True)

    check_refusal(
        classic.createDataFrame([("a",)], "name STRING"),
        "these rows are a batch; read their source by spark.readStream, or write them once",
    )
    check_refusal(totals(classic, embedded, tmp_path, on_error="isolate"), r"write results\(changes\)")
    stream = classic.readStream.schema("names ARRAY<STRING>").parquet(str(tmp_path))
    check_refusal(stream, "the key names has the type list<.*, which cannot identify a row", keys=["names"])


CHANGES = "row_kind STRING, name STRING, shop INT, total BIGINT, orders BIGINT"
NETTED = [("+U", "a", 1, 5, 2), ("+I", None, 2, None, 1), ("-D", "b", None, 1, 1)]


def test_a_table_of_the_catalogue_is_changed_by_merge(classic: Any) -> None:
    """Spark gets one row for each key, and a MERGE that it parses; the same statement changes a table in DuckDB."""
    rows = [("-U", "a", 1, 4, 2), *NETTED[::-1], ("-U", "c", 1, 7, 7)]
    result = net_changes(classic.createDataFrame(rows, CHANGES), KEYS, "totals")
    assert result.columns == ["row_kind", *KEYS, "total", "orders"]
    assert sorted(map(tuple, result.collect()), key=repr) == sorted([*NETTED, ("-D", "c", 1, 7, 7)], key=repr)
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE totals (name VARCHAR, shop INT, total BIGINT, orders BIGINT, note VARCHAR)")
        connection.execute(
            "INSERT INTO totals VALUES ('a', 1, 4, 2, 'kept'), ('b', NULL, 1, 1, ''), (NULL, 1, 9, 9, '')"
        )
        connection.register("changes", result.toArrow())
        for _again in range(2):  # the repeat of the last epoch changes nothing
            connection.execute(merge_statement("totals", "changes", KEYS, [*KEYS, "total", "orders"]))
            table = connection.sql("FROM totals").fetchall()
            expected_rows = {("a", 1, 5, 2, "kept"), (None, 1, 9, 9, ""), (None, 2, None, 1, None)}
            assert (len(table), set(table)) == (3, expected_rows)
    floats = "double('NaN'), -0D, sqrt(-1D)"  # the second NaN has other bits
    odd_keys = classic.sql(f"SELECT '+U' row_kind, explode(array({floats})) k, 1 v")
    with pytest.raises(Exception, match="several new rows with the same key"):
        net_changes(odd_keys, ["k"], "totals").collect()
    zero = net_changes(odd_keys.where("k = 0"), ["k"], "totals").toArrow()["k"].to_pylist()
    assert [math.copysign(1, each) for each in zero] == [1]
    names = ["new", "last", "`"]
    odd = classic.createDataFrame([("+U", "a", "b", "c"), ("-D", "d", "e", None)], ["row_kind", *names])
    assert net_changes(odd, names, "odd").columns == odd.columns
    assert sorted(map(tuple, net_changes(odd, names, "odd").collect())) == sorted(map(tuple, odd.collect()))
    twice = net_changes(classic.createDataFrame([NETTED[0], NETTED[0]], CHANGES), KEYS, "totals")
    with pytest.raises(
        Exception, match="table totals: one epoch has several new rows with the same key; keys: name, shop"
    ):
        twice.collect()


def test_a_table_of_the_catalogue_without_merge_is_refused(classic: Any) -> None:
    """Columns are compared before anything is written; Spark parses the statement, and refuses the format."""
    changes = classic.createDataFrame(NETTED, CHANGES)
    columns = changes.drop(ROW_KIND).schema
    classic.sql("CREATE TABLE totals_of_files (name STRING, shop INT, total BIGINT, orders BIGINT) USING parquet")
    try:
        table = CatalogTable("totals_of_files", columns, KEYS)
        table.prepare(changes)
        with pytest.raises(Exception, match=r"UNSUPPORTED_FEATURE.TABLE_OPERATION.*MERGE INTO TABLE"):
            table.merge(changes, "query", 0)
        for column, message in (
            (
                st.StructField("total", st.StringType()),
                "the column total has the type BIGINT, and the query's is STRING",
            ),
            (st.StructField("new", st.StringType()), "the column new does not exist, and the query's is STRING"),
        ):
            with pytest.raises(RejectedError, match=f"table totals_of_files: {message}"):
                CatalogTable("totals_of_files", st.StructType([column]), KEYS).prepare(changes)
    finally:
        classic.sql("DROP TABLE totals_of_files")
