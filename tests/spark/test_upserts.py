"""Upsert streams as rows with row kinds: repeated, late and reordered changes, deleted keys, and refusals."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.client import Functions
from foldflight.ext.changes.connectvalues import UNAVAILABLE
from foldflight.spark import (
    check_checkpoint,
    dead_letters,
    from_debezium,
    group_by,
    results,
    state_table,
    tumble,
    upserts,
    write_table,
)
from foldflight.spark.errors import error_of
from foldflight.spark.rowkinds import kinds_in
from tests.debezium import archive, values
from tests.spark.test_stream import Stream
from tests.spark_sessions import SPARK

Change = dict[str, Any]
DDL = "id BIGINT, customer STRING, amount DOUBLE, tags ARRAY<STRING>, op STRING, lsn BIGINT"
NESTED = "id int, s struct<g: int, x: double>, l int, v string"
VALUES = ("id", "customer", "amount", "tags")


class Changes(Stream):
    """A stream of changes of orders."""

    ddl = DDL
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("customer", pa.string()),
            ("amount", pa.float64()),
            ("tags", pa.list_(pa.string())),
            ("op", pa.string()),
            ("lsn", pa.int64()),
        ]
    )


def change(id_: int, lsn: int, customer: str | None = "ann", amount: float | None = 1.0, op: str = "c") -> Change:
    return {"id": id_, "customer": customer, "amount": amount, "tags": None, "op": op, "lsn": lsn}


class Orders:
    """A table that is changed at random, and the changes as a connector sends them: again, late and reordered."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[Change] = []

    def more(self, count: int) -> list[Change]:
        """Return new changes in a random order, some twice, and some of before."""
        draw = self.random
        new = []
        for _ in range(count):
            amount = draw.choice([None, 0.5, 2.0, -7.25, math.nan])
            one = change(draw.randrange(6), len(self.log) + len(new), draw.choice(["ann", "bob", None]), amount)
            one["tags"] = draw.choice([None, [], ["x", None]])
            if draw.random() < 0.3:
                one |= {"op": "d", "customer": None, "amount": None, "tags": None}
            new.append(one)
        self.log += new
        draw.shuffle(new)
        late = [one for one in new if draw.random() < 0.2]  # only in the next epoch
        sent_rows = [one for one in new if one not in late] + draw.choices(self.log, k=4)
        return sent_rows + draw.sample(late, len(late))

    def rows(self, sent: Sequence[Change]) -> list[Change]:
        """Return the last row of each key among the changes that were sent, without deleted keys."""
        last: dict[int, Change] = {}
        for one in sent:
            if one["id"] not in last or last[one["id"]]["lsn"] < one["lsn"]:
                last[one["id"]] = one
        return [one for one in last.values() if one["op"] != "d"]


def count_texts(rows: Sequence[Any], names: Sequence[str] = VALUES) -> Counter[str]:
    """Return rows by their texts, in which NaN equals itself."""
    return Counter(repr([row[name] for name in names]) for row in rows)


def live(df: DataFrame) -> DataFrame:
    return upserts(df, keys="id", sequence_by="lsn", deleted="op = 'd'", **({"buckets": 3} if df.isStreaming else {}))


class Compiling(Changes):
    """Changes of orders, whose epochs return how much code Spark has compiled until their ends."""

    def collected(self, batch: DataFrame) -> int:
        batch.collect()
        metrics = self.spark._jvm.org.apache.spark.metrics.source.CodegenMetrics
        return int(metrics.METRIC_SOURCE_CODE_SIZE().getCount())


@pytest.mark.every_turn
def test_an_epoch_compiles_nothing_that_the_one_before_has_compiled(classic: Any, tmp_path: Path) -> None:
    """The time of the epoch was a constant in the code that Spark generates, so it compiled the code in each epoch."""
    stream = Compiling(classic, tmp_path, live)
    for number in range(4):
        stream.write([change(1, number, amount=float(number))])
    counts = stream.run()
    assert len(counts) == 4
    assert counts[2] == counts[3]


@pytest.mark.every_turn
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_has_the_last_row_of_each_key(classic: Any, tmp_path: Path, seed: int) -> None:
    """After each epoch the changes sum up to the table, whatever came again, late or in another order."""
    orders = Orders(seed)
    stream = Changes(classic, tmp_path, live)
    sent_rows: list[Change] = []
    table: Counter[str] = Counter()
    stale = 0
    for _ in range(3):
        known_values: dict[int, int] = {}
        for one in sent_rows:
            known_values[one["id"]] = max(one["lsn"], known_values.get(one["id"], -1))
        sent_rows += (changes := orders.more(20))
        stale += sum(one["lsn"] <= known_values.get(one["id"], -1) for one in changes)
        stream.write(changes)
        for epoch in stream.run():  # each run continues from the checkpoint
            for row in epoch:
                table[repr([row[name] for name in VALUES])] += 1 if row["row_kind"] in ("+I", "+U") else -1
        assert min(table.values()) >= 0
        assert +table == count_texts(orders.rows(sent_rows))
    assert sum(each["stale_changes"] for each in stream.progress) == stale > 0
    batch = live(classic.createDataFrame([tuple(one.values()) for one in sent_rows], DDL)).collect()
    assert count_texts(batch) == +table
    assert {row["row_kind"] for row in batch} == {"+I"}


@pytest.mark.every_turn
def test_an_older_row_does_not_revive_a_deleted_key(classic: Any, tmp_path: Path) -> None:
    """The state keeps the sequence of a deletion, and a deletion of an unknown key is kept as well."""
    stream = Changes(classic, tmp_path, live)
    seen_values = []
    for changes in (
        [change(1, 1), change(2, 9, None, None, "d")],
        [change(1, 5, None, None, "d")],
        [change(1, 3, "bob"), change(2, 8, "bob"), change(1, 5, None, None, "d")],
        [change(1, 6, "cid")],
    ):
        stream.write(changes)
        seen_values.append([(row["row_kind"], row["id"], row["customer"]) for epoch in stream.run() for row in epoch])
    assert seen_values == [[("+I", 1, "ann")], [("-D", 1, "ann")], [], [("+I", 1, "cid")]]


@pytest.mark.every_turn
def test_upserts_make_totals_and_a_copy_of_the_table(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """Upserts lead to the same totals as the table, in one query; and to a table with one row for each key."""
    orders, sent = Orders(7), []
    (tmp_path / "totals").mkdir()
    (tmp_path / "copy").mkdir()
    totals = Changes(
        classic,
        tmp_path / "totals",
        lambda df: group_by(live(df), "customer", row_kind="row_kind", buckets=2).agg(n=embedded["count"]()),
    )
    copy = Changes(classic, tmp_path / "copy", live)
    counts: dict[str | None, int] = {}
    target = f"duckdb:///{tmp_path}/copy.duckdb?table=orders"
    for _ in range(2):
        sent += (changes := orders.more(15))
        for stream in (totals, copy):
            stream.write(changes)
        for row in (row for epoch in totals.run() for row in epoch):
            counts[row["customer"]] = 0 if row["row_kind"] == "-D" else row["n"]
        expected = orders.rows(sent)
        assert {name: count for name, count in counts.items() if count} == Counter(row["customer"] for row in expected)
        query = write_table(
            live(copy.input()),
            target,
            keys=["id"],
            checkpoint=tmp_path / "copy" / "checkpoint",
            trigger="available now",
            create=True,
        )
        assert query.awaitTermination(600)
        with duckdb.connect(tmp_path / "copy.duckdb") as connection:
            names = [*VALUES, "op", "lsn"]
            actual = connection.sql("SELECT id, customer, amount, tags, op, lsn FROM orders").fetchall()
            assert count_texts([dict(zip(names, row, strict=True)) for row in actual], names) == count_texts(
                expected, names
            )


class Timed(Stream):
    """Changes of rows with a time."""

    ddl = "id BIGINT, at TIMESTAMP, amount BIGINT, lsn BIGINT"
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("amount", pa.int64()), ("lsn", pa.int64())]
    )


def timed_change(id_: int, minute: int, amount: int, lsn: int) -> Change:
    return {"id": id_, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)} | {
        "amount": amount,
        "lsn": lsn,
    }


@pytest.mark.every_turn
def test_windows_close_over_upserts(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """The column keeps its watermark, and a closed window has the last rows; later changes of it are late."""

    def hours(df: DataFrame) -> DataFrame:
        rows = upserts(df.withWatermark("at", "0 seconds"), keys="id", sequence_by="lsn", buckets=2)
        window = tumble("at", "1 hour")
        return group_by(rows, window=window, emit="append", row_kind="row_kind", buckets=2).agg(
            n=embedded["count"](), total=embedded["sum"]("cast(amount as double)")
        )

    stream = Timed(classic, tmp_path, hours, mode="append")
    for changes in (
        [timed_change(1, 5, 10, 1), timed_change(2, 20, 5, 2)],
        [timed_change(1, 5, 11, 3), timed_change(3, 70, 1, 4)],
        [timed_change(3, 75, 2, 5)],
        [timed_change(1, 5, 99, 6), timed_change(4, 200, 1, 7)],
        [timed_change(5, 300, 1, 8)],
    ):
        stream.write(changes)
    closed_windows = [(row["window_start"].hour, row["n"], row["total"]) for epoch in stream.run() for row in epoch]
    assert closed_windows == [(0, 2, 16.0), (1, 1, 2.0), (3, 1, 1.0)]


class Wider(Changes):
    """The same changes with another column."""

    ddl = DDL + ", city STRING"
    schema = Changes.schema.append(pa.field("city", pa.string()))


@pytest.mark.every_turn
def test_a_column_is_added_to_a_stream(classic: Any, tmp_path: Path) -> None:
    """It is NULL in stored rows until their next change; the table of states has both versions."""
    stream = Changes(classic, tmp_path, live)
    stream.write([change(1, 1, "ann", 1.0), change(2, 2, "bob", 2.0)])
    stream.run()
    checkpoint = str(tmp_path / "checkpoint")
    stored_rows = {row["id"]: row["row"] for row in state_table(classic, checkpoint).collect()}
    assert stored_rows[1].asDict() == {"customer": "ann", "amount": 1.0, "tags": None, "op": "c", "lsn": 1}
    (tmp_path / "wider").mkdir()
    wider = Wider(classic, tmp_path / "wider", live)
    wider.files = stream.files
    wider.folder = stream.folder  # the same folder and checkpoint
    assert check_checkpoint(live(wider.input()), checkpoint)
    wider_df = wider.input().withColumn("amount", sf.col("amount").cast("string"))
    with pytest.raises(RejectedError, match="the stored rows have the column amount as DOUBLE") as excinfo:
        check_checkpoint(live(wider_df), checkpoint)
    assert excinfo.value.code == "STATE_MISMATCH"
    with pytest.raises(RejectedError, match="has the state of upserts, and the query has group_by"):
        check_checkpoint(group_by(wider.input(), "id").agg(n=connect("embedded:")["count"]()), checkpoint)
    wider.write([{**change(1, 3, "ann", 5.0), "city": "Rome"}])
    (changes,) = wider.run()
    assert [(row["row_kind"], row["amount"], row["city"]) for row in changes] == [
        ("-U", 1.0, None),
        ("+U", 5.0, "Rome"),
    ]
    assert {row["id"] for row in state_table(classic, checkpoint).collect()} == {1, 2}


def test_batches_compare_maps_and_times(spark: Any) -> None:
    """Two rows with one sequence are the same row if their values are, of every type."""
    rows = spark.range(2).selectExpr(
        "1 AS id", "7 AS lsn", "map('a', timestamp'2026-01-01 00:00:00.000001') AS m", "interval 3 month AS i"
    )
    (row,) = upserts(rows, keys="id", sequence_by="lsn").withColumn("i", sf.col("i").cast("string")).collect()
    assert (row["row_kind"], list(row["m"]), row["i"]) == ("+I", ["a"], "INTERVAL '3' MONTH")
    other = spark.sql("SELECT 1 AS id, 7 AS lsn, map('a', timestamp'2026-01-01') AS m, interval 3 month AS i")
    with pytest.raises(PySparkException, match="two different rows of the key"):
        upserts(rows.union(other), keys="id", sequence_by="lsn").collect()


class Events(Stream):
    """Debezium's events as Kafka gives them."""

    ddl = "value STRING, offset BIGINT"
    schema = pa.schema([("value", pa.string()), ("offset", pa.int64())])


def event(offset: int, lsn: int, op: str, **row: Any) -> Change:
    rows = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return {"value": json.dumps({"op": op, **rows, "source": {"lsn": lsn}}), "offset": offset}


def documents(df: DataFrame) -> DataFrame:
    return from_debezium(
        df, "id INT, size INT, text STRING, tags ARRAY<STRING>", keys="id", **({"buckets": 2} if df.isStreaming else {})
    )


LARGE = [
    event(0, 10, "c", id=1, size=1, text="a", tags=["x"]),
    event(1, 11, "c", id=2, size=1, text="b", tags=[]),
    event(2, 12, "u", id=1, size=2, text=UNAVAILABLE, tags=[UNAVAILABLE]),
    event(3, 13, "u", id=1, size=3, text="c", tags=[UNAVAILABLE]),
    event(4, 14, "u", id=2, size=4, text=UNAVAILABLE, tags=None),
    event(5, 11, "c", id=2, size=1, text="b", tags=[]),  # again
]
DOCUMENTS = {1: (3, "c", ["x"]), 2: (4, "b", None)}


@pytest.mark.every_turn
def test_large_values_that_were_not_sent_are_kept(classic: Any, tmp_path: Path) -> None:
    """In a batch in any order, and in a stream, in which an event that comes again changes nothing."""
    for seed in range(3):
        shuffled_events = random.Random(seed).sample(LARGE, len(LARGE))
        batch = classic.createDataFrame([tuple(each.values()) for each in shuffled_events], Events.ddl)
        rows = documents(batch).collect()
        assert {row["id"]: (row["size"], row["text"], row["tags"]) for row in rows} == DOCUMENTS
    stream = Events(classic, tmp_path, documents)
    for each in (LARGE[:2], LARGE[2:3], LARGE[3:5], LARGE[5:]):
        stream.write(each)
    table: dict[int, Any] = {}
    *_, last = epochs = stream.run()
    assert last == []
    for row in (row for epoch in epochs for row in epoch):
        values = (row["size"], row["text"], row["tags"])
        if row["row_kind"] in ("-U", "-D"):
            assert table.pop(row["id"]) == values
        else:
            table[row["id"]] = values
    assert table == DOCUMENTS


class Messages(Stream):
    """Messages of Kafka about orders."""

    ddl = "key STRING, value STRING, partition INT, offset BIGINT"
    schema = pa.schema(
        [("key", pa.string()), ("value", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    )


def message(offset: int, lsn: int, id_: int, amount: int | None, op: str = "u") -> Change:
    """Return a message about an order; without a position in the log, a tombstone."""
    rows = {"before": None, "after": None if op == "d" else {"id": id_, "amount": amount}}
    value = json.dumps({"op": op, **rows, "source": {"lsn": lsn, "schema": "inv", "table": "t"}}) if lsn else None
    return {"key": json.dumps({"id": id_}), "value": value, "partition": 0, "offset": offset}


def orders_of(df: DataFrame) -> DataFrame:
    return from_debezium(df, "id INT, amount INT", keys="id", **({"buckets": 2} if df.isStreaming else {}))


@pytest.mark.every_turn
def test_a_compacted_topic_may_have_versions_in_reverse(classic: Any, tmp_path: Path) -> None:
    """Versions are reversed within an epoch and over several. A tombstone alone deletes: compaction drops deletes."""
    stream = Messages(classic, tmp_path, orders_of)
    epochs = [
        [message(2, 30, 1, 3), message(1, 20, 1, 2), message(0, 10, 1, 1, "c"), message(3, 40, 2, 7, "c")],
        [message(6, 60, 1, 6)],
        [message(5, 50, 1, 5), message(4, 45, 1, 4)],
        [message(8, 0, 2, None)],
        [message(9, 70, 1, None, "d"), message(10, 0, 1, None), message(11, 0, 3, None)],
        [message(7, 65, 1, 9)],
    ]
    for each in epochs:
        stream.write(each)
    changes = [{(row["row_kind"], row["id"], row["amount"]) for row in epoch} for epoch in stream.run()]
    assert changes == [
        {("+I", 1, 3), ("+I", 2, 7)},
        {("-U", 1, 3), ("+U", 1, 6)},
        set(),
        {("-D", 2, 7)},
        {("-D", 1, 6)},
        set(),
    ]


@pytest.mark.every_turn
def test_dead_letters_do_not_stop_the_rows_of_keys(classic: Any, tmp_path: Path) -> None:
    """The row of a key whose event is a dead letter follows its next event. A table without events has a figure."""

    def query(df: DataFrame) -> DataFrame:
        options: dict[str, Any] = {"keys": "id", "table": "inv.t", "on_error": "isolate"}
        return from_debezium(df, "id INT, amount INT", **options, **({"buckets": 2} if df.isStreaming else {}))

    stream = Messages(classic, tmp_path, query)
    wrong = message(1, 20, 1, 2)
    wrong["value"] = wrong["value"].replace("2}", '"many"}')
    epochs = [
        [{**message(0, 5, 9, 9, "c"), "value": message(0, 5, 9, 9, "c")["value"].replace('"t"', '"u"')}],
        [message(0, 10, 1, 1, "c"), wrong, message(2, 30, 2, 7, "c")],
        [message(3, 40, 1, 4)],
    ]
    for each in epochs:
        stream.write(each)
    outputs = stream.run()
    changes = [
        {(row["row_kind"], row["id"], row["amount"]) for row in epoch if row["dead_letter"] is None}
        for epoch in outputs
    ]
    assert changes == [set(), {("+I", 1, 1), ("+I", 2, 7)}, {("-U", 1, 1), ("+U", 1, 4)}]
    (letter,) = (row for epoch in outputs for row in epoch if row["dead_letter"] is not None)
    assert "the column amount of an event has the value 'many'" in letter["dead_letter"]["message"]
    assert letter["dead_letter"]["value"] == wrong["value"].encode()
    frame = classic.createDataFrame([tuple(each.values()) for epoch in epochs for each in epoch], Messages.ddl)
    batch = query(frame)
    assert kinds_in(results(query(stream.input())).schema)
    assert {tuple(row) for row in results(batch).collect()} == {("+I", 1, 4), ("+I", 2, 7)}
    assert [row["message"] for row in dead_letters(batch).collect()] == [letter["dead_letter"]["message"]]


class Dying(Messages):
    """Messages of a query whose first epoch is read and then fails, before Spark commits it."""

    seen: Any = None

    def collected(self, batch: DataFrame) -> Any:
        rows = super().collected(batch)
        if self.seen is None:
            self.seen = rows
            raise RuntimeError("the sink has failed")
        return rows


@pytest.mark.every_turn
def test_a_restart_repeats_no_dead_letter(classic: Any, tmp_path: Path) -> None:
    """An epoch that is run again has the same rows and dead letters; a restart repeats none, and keeps the rows."""

    def split(epoch: Any) -> tuple[set[Any], list[str]]:
        changes = {(row["row_kind"], row["id"], row["amount"]) for row in epoch if row["dead_letter"] is None}
        return changes, sorted(row["dead_letter"]["key"].decode() for row in epoch if row["dead_letter"] is not None)

    def query(df: DataFrame) -> DataFrame:
        return from_debezium(df, "id INT, amount INT", keys="id", on_error="isolate", buckets=2)

    def wrong(offset: int, lsn: int, id_: int) -> Change:
        event_row = message(offset, lsn, id_, 2)
        return {**event_row, "value": event_row["value"].replace("2}", '"many"}')}

    stream = Dying(classic, tmp_path, query)
    stream.write([message(0, 10, 1, 1, "c"), wrong(1, 20, 1), message(2, 30, 3, 7, "c")])
    stream.write([message(3, 40, 1, 4)])
    with pytest.raises(PySparkException, match="the sink has failed"):
        stream.run()
    first = ({("+I", 1, 1), ("+I", 3, 7)}, ['{"id": 1}'])
    assert split(stream.seen) == first
    assert [*map(split, stream.run())] == [first, ({("-U", 1, 1), ("+U", 1, 4)}, [])]
    stream.write([message(4, 50, 1, 5), wrong(5, 60, 4), wrong(6, 70, 1)])
    assert [*map(split, stream.run())] == [({("-U", 1, 4), ("+U", 1, 5)}, ['{"id": 1}', '{"id": 4}'])]
    assert stream.run() == []


def test_a_stream_counts_the_rows_of_its_table(classic: Any, tmp_path: Path) -> None:
    """Also while no event of it has come, as where the name is misspelt."""
    stream = Messages(classic, tmp_path, lambda df: from_debezium(df, "id INT, amount INT", table="inv.u"), "append")
    stream.write([message(0, 10, 1, 1, "c")])
    assert stream.run() == [[]]
    assert stream.progress == [{"table_rows": 0}]


def test_a_batch_with_rows_of_two_logs_is_refused(classic: Any) -> None:
    """A snapshot of another server has lower positions than changes before it."""
    events = [message(0, 100, 1, 1, "c"), message(1, 50, 1, 2, "r"), message(2, 60, 2, 3, "r")]
    frame = classic.createDataFrame([tuple(each.values()) for each in events], Messages.ddl)
    with pytest.raises(PySparkException) as excinfo:
        orders_of(frame).collect()
    assert 'of the key {"id":1}, a row of a snapshot came after another change' in str(error_of(excinfo.value))
    assert [tuple(row) for row in orders_of(frame.where("offset > 0")).orderBy("id").collect()] == [
        ("+I", 1, 2),
        ("+I", 2, 3),
    ]


FAILOVERS = {
    "PostgreSQL after a restore": ({"lsn": 900}, {"lsn": 100}),
    "MySQL with another server": (
        {"file": "mysql-bin.000009", "pos": 4, "gtid": "a:9"},
        {"file": "binlog.000001", "pos": 8, "gtid": "b:1"},
    ),
    "MySQL with a new log": ({"file": "binlog.000009", "pos": 4}, {"file": "binlog.000001", "pos": 8}),
}


@pytest.mark.every_turn
@pytest.mark.parametrize("log", FAILOVERS)
def test_a_failover_without_a_snapshot_drops_nothing(classic: Any, tmp_path: Path, log: str) -> None:
    """Events of the new server have lower positions. One of a key that was changed before is refused, in both ways."""
    before, after = FAILOVERS[log]

    def change_at(offset: int, source: Mapping[str, Any], id_: int, amount: int, ts_ms: int) -> Change:
        value = json.dumps({"op": "u", "after": {"id": id_, "amount": amount}, "source": {**source, "ts_ms": ts_ms}})
        return {"key": json.dumps({"id": id_}), "value": value, "partition": 0, "offset": offset}

    first = [change_at(0, before, 1, 1, 1000), change_at(1, before, 2, 2, 1000)]
    again, new, late_change = (
        change_at(2, before, 1, 1, 1000),
        change_at(3, after, 3, 3, 2000),
        change_at(4, after, 2, 9, 4_000_000),
    )
    message = r"key.*id.*2.*there is an event at .*offset.*4.*committed later although its position is lower"
    frame = classic.createDataFrame([tuple(each.values()) for each in [*first, again, new, late_change]], Messages.ddl)
    assert orders_of(frame.where("offset < 4")).count() == 3
    with pytest.raises(PySparkException) as excinfo:
        orders_of(frame).collect()
    assert re.search(message, str(error_of(excinfo.value)), re.DOTALL)
    stream = Messages(classic, tmp_path, orders_of)
    for epoch in (first, [again, new], [late_change]):
        stream.write(epoch)
    with pytest.raises(PySparkException) as excinfo:
        stream.run()
    assert "committed later although its position is lower" in str(error_of(excinfo.value))


@pytest.mark.every_turn
def test_times_that_go_back_do_not_begin_another_log(classic: Any, tmp_path: Path) -> None:
    """A clock that was set back, and statements of MySQL that waited for others, of which one is sent again."""
    sources: list[tuple[int, int, dict[str, Any]]] = [
        (0, 1, {"lsn": 10, "ts_ms": 2001}),
        (1, 1, {"lsn": 20, "ts_ms": 1001}),
        (2, 2, {"file": "binlog.000001", "pos": 4, "ts_ms": 20_000}),
        (3, 2, {"file": "binlog.000001", "pos": 8, "ts_ms": 9_000}),
        (4, 2, {"file": "binlog.000001", "pos": 4, "ts_ms": 20_000}),
    ]
    events: list[Change] = [
        {
            "key": json.dumps({"id": id_}),
            "value": json.dumps({"op": "u", "after": {"id": id_, "amount": source.get("pos", 8)}, "source": source}),
            "partition": 0,
            "offset": offset,
        }
        for offset, id_, source in sources
    ]
    frame = classic.createDataFrame([tuple(each.values()) for each in events], Messages.ddl)
    assert {(row["id"], row["amount"]) for row in orders_of(frame).collect()} == {(1, 8), (2, 8)}
    for epochs in ([events], [[each] for each in events]):
        folder = tmp_path / str(len(epochs))
        folder.mkdir()
        stream = Messages(classic, folder, orders_of)
        for epoch in epochs:
            stream.write(epoch)
        last = {row["id"]: row["amount"] for rows in stream.run() for row in rows if row["row_kind"] in ("+I", "+U")}
        assert last == {1: 8, 2: 8}


@pytest.mark.parametrize("mode", ["default", "default-schema", "string-isostring"])
def test_large_values_of_a_real_connector_equal_its_table(classic: Any, mode: str) -> None:
    """In any order and twice, equal to the table of the database."""
    sent_rows = [value for value in values(mode, "docs_key") if value is not None]
    random.Random(5).shuffle(sent_rows)
    frame = classic.createDataFrame([(each,) for each in [*sent_rows, *sent_rows[:4]]], "value STRING")
    schema = "id BIGINT, owner STRING, size INT, body STRING, raw BINARY"
    options: Any = {"default": {"binary": "base64"}, "string-isostring": {"binary": "hex"}}.get(mode, {})
    rows = from_debezium(frame, schema, keys="id", **options).collect()
    actual = {row["id"]: (row["owner"], row["size"], row["body"], "\\x" + row["raw"].hex()) for row in rows}
    expected = json.loads(archive()["truth"])["phase9"]["docs_key"]
    assert actual.keys() == {row["id"] for row in expected} == {1, 2}
    for row in expected:
        owner, size, body, raw = actual[row["id"]]
        assert (owner, size, body) == (row["owner"], row["size"], row["body"])
        assert raw == row["raw"] or f"{raw[:20]}...({len(raw)})" == row["raw"]  # the archive has long texts shortened


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (LARGE[2:], 'a change did not send the column tags of the key {"id":1}, and there is no older row'),
        (
            [LARGE[0], event(9, 11, "d", id=1), event(10, 12, "u", id=1, size=2, text=UNAVAILABLE, tags=None)],
            "a change did not send the column text of the key",
        ),
        (
            [LARGE[0], event(9, 11, "u", id=1, size=UNAVAILABLE, text="", tags=None)],
            "did not send the column size, who",
        ),
    ],
)
def test_values_that_no_event_has_sent_fail_the_query(classic: Any, events: list[Change], message: str) -> None:
    """Nothing is made up."""
    with pytest.raises(PySparkException) as excinfo:
        documents(classic.createDataFrame([tuple(each.values()) for each in events], Events.ddl)).collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert message in error.message


@pytest.mark.parametrize(
    ("ddl", "rows", "options"),
    [
        (
            "userId INT, name STRING, operation STRING, sequenceNum BIGINT",  # AUTO CDC of Spark's pipelines
            [(1, "a", "INSERT", 1), (2, "b", "INSERT", 2), (1, None, "DELETE", 5), (1, "late", "UPDATE", 4)],
            {
                "keys": ["userId"],
                "sequence_by": "sequenceNum",
                "deleted": "operation = 'DELETE'",
            },
        ),
        (
            "userId INT, name STRING, _rowkind STRING, _SEQUENCE_NUMBER BIGINT",  # Paimon's changelog producer `input`
            [(1, "a", "+I", 1), (2, "a", "+I", 2), (2, "b", "+U", 3), (1, "a", "-D", 4)],
            {"keys": "userId", "sequence_by": "_SEQUENCE_NUMBER", "deleted": "_rowkind = '-D'"},
        ),
        (
            "userId INT, name STRING, offset BIGINT",  # a compacted topic, or Flink's upsert-kafka
            [(1, "a", 1), (2, "b", 2), (1, None, 3)],
            {"keys": "userId", "sequence_by": "offset", "deleted": "name IS NULL"},
        ),
    ],
    ids=["auto-cdc", "paimon", "compacted"],
)
def test_shapes_of_other_systems_are_read_as_the_guide_says(
    classic: Any, ddl: str, rows: list[Any], options: dict[str, Any]
) -> None:
    """As the how-to says."""
    (row,) = upserts(classic.createDataFrame(rows, ddl), **options).collect()
    assert (row["row_kind"], row["userId"], row["name"]) == ("+I", 2, "b")


def test_several_sequences_are_compared_one_after_the_other(spark: Any) -> None:
    """A new generation begins a new order; names of keys and columns are free."""
    df = spark.createDataFrame(
        [(1, 1, 9, "old"), (1, 2, 3, "new"), (1, 2, 1, "middle")], "`the id` int, g int, l int, `a.b` string"
    )
    (row,) = upserts(df, keys=["the id"], sequence_by=["g", sf.col("l") + 1]).collect()
    assert (row["row_kind"], row["the id"], row["g"], row["l"], row["a.b"]) == ("+I", 1, 2, 3, "new")
    assert list(row.asDict()) == ["row_kind", "the id", "g", "l", "a.b"]
    df = spark.createDataFrame([(1, (1, 2.0), 5, "b"), (1, (1, math.nan), 5, "c"), (1, (1, 1.0), 6, "a")], NESTED)
    (row,) = upserts(df, keys="id", sequence_by=["s", "l"]).collect()
    assert row["v"] == "c"
    df = spark.sql("SELECT id AS k, struct(id, id > 2 AS is_snapshot, 'a' AS position) AS s, id FROM range(4)")
    assert {row["id"] for row in upserts(df, keys="k", sequence_by="s").collect()} == {0, 1, 2, 3}


def test_names_that_differ_by_case_are_two_columns(classic: Any) -> None:
    """Where the session says so."""
    classic.conf.set("spark.sql.caseSensitive", "true")
    try:
        df = classic.createDataFrame([(1, 2, 3, 4)], "a int, A int, s int, k int")
        (row,) = upserts(df, keys="k", sequence_by="s").collect()
        assert tuple(row) == ("+I", 1, 2, 3, 4)
    finally:
        classic.conf.unset("spark.sql.caseSensitive")


@pytest.mark.skipif(SPARK < (4, 0), reason="Spark has collations since 4.0")
def test_sequences_with_a_collation_are_refused(classic: Any) -> None:
    """Their texts have another order than their bytes."""
    df = classic.sql("SELECT 1 AS id, 'a' COLLATE UTF8_LCASE AS s")
    with pytest.raises(RejectedError, match="compared by their bytes"):
        upserts(df, keys="id", sequence_by="s")
    assert upserts(df, keys="id", sequence_by="s COLLATE UTF8_BINARY").count() == 1


@pytest.mark.parametrize(
    ("columns", "code", "message"),
    [
        (("id", "lsn", "customer"), "SCHEMA_MISMATCH", 'two different rows of the key {"id":1} have the same sequence'),
        (
            ("id", "nullif(lsn, 7) AS lsn"),
            "SCHEMA_MISMATCH",
            "the sequence lsn of an upsert is NULL; leave such rows out",
        ),
        (("nullif(id, 1) AS id", "lsn"), "SCHEMA_MISMATCH", "the key id of an upsert is NULL; leave such rows out"),
    ],
)
def test_a_sequence_without_an_order_fails_the_query(
    spark: Any, columns: tuple[str, ...], code: str, message: str
) -> None:
    """Which row is the last must be known."""
    df = spark.createDataFrame([(1, 7, "ann"), (1, 7, "bob"), (2, 3, "cid")], "id int, lsn bigint, customer string")
    with pytest.raises(PySparkException) as excinfo:
        upserts(df.selectExpr(*columns), keys="id", sequence_by="lsn").collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert error.code == code
    assert message in error.message


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"keys": "ident"}, "SCHEMA_MISMATCH", "the key 'ident' is not one column among id, lsn"),
        ({"keys": []}, "SIGNATURE", "keys is empty"),
        ({"sequence_by": []}, "SIGNATURE", "sequence_by is empty"),
        ({"ttl": "soon"}, "SIGNATURE", "ttl is an interval of a fixed length"),
        ({"keys": ["id", "id"]}, "SIGNATURE", "'id' is twice among the keys"),
        ({"sequence_by": "array(lsn)"}, "SCHEMA_MISMATCH", "sequence_by is array<bigint>; a sequence is a number"),
        ({"sequence_by": "position"}, "SCHEMA_MISMATCH", "position"),
        ({"sequence_by": "lsn DESC"}, "SIGNATURE", "'lsn DESC' has a direction, .* sequence_by='-n'"),
        ({"sequence_by": "lsn DSC"}, "SIGNATURE", "names its result DSC"),
        ({"deleted": "op = 'd'"}, "SCHEMA_MISMATCH", "op"),
    ],
)
def test_mistakes_are_refused_at_once(spark: Any, options: dict[str, Any], code: str, message: str) -> None:
    """Before the query starts."""
    df = spark.createDataFrame([(1, 7)], "id int, lsn bigint")
    with pytest.raises(RejectedError, match=message) as excinfo:
        upserts(df, **{"keys": "id", "sequence_by": "lsn", **options})
    assert excinfo.value.code == code
    with pytest.raises(RejectedError, match="there is a column row_kind already"):
        upserts(df.withColumn("Row_Kind", sf.lit("+I")), keys="id", sequence_by="lsn")
    with pytest.raises(RejectedError, match="'lsn DESC NULLS LAST' has a direction"):
        upserts(df, keys="id", sequence_by=["id", sf.desc("lsn")])
