"""Changes of other tools as rows with row kinds, compared with a table that is changed; a changelog as a table."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from examples.changelog_to_table import totals
from foldflight import RejectedError
from foldflight.client import Functions
from foldflight.ext.changes import cdc
from foldflight.spark import (
    DELTA_CHANGES,
    from_canal,
    from_debezium,
    from_maxwell,
    group_by,
    schema_of,
    split_changes,
    upserts,
    write_table,
)
from foldflight.spark.errors import error_of
from tests.debezium import archive, values
from tests.spark_sessions import since_spark

SCHEMA = "id BIGINT, customer STRING, amount BIGINT"
TEXTS = st.StructType([st.StructField("value", st.BinaryType()), st.StructField("timestamp", st.LongType())])
Row = dict[str, Any]


def kafka(spark: Any, *events: Any) -> DataFrame:
    """Return events as from Kafka: JSON in bytes, NULL for a tombstone. An explicit schema allows no events."""
    values = [None if event is None else json.dumps(event).encode() for event in events]
    frame: DataFrame = spark.createDataFrame([(value, 7) for value in values], TEXTS)
    return frame


def changes(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in df.collect()), key=repr)


def event(op: str, before: Row | None = None, after: Row | None = None, **more: Any) -> Row:
    return {"op": op, "before": before, "after": after, "source": {"lsn": 1}, "ts_ms": 5, **more}


def order(id_: int, customer: str | None, amount: int | None) -> Row:
    return {"id": id_, "customer": customer, "amount": amount}


OLD, NEW = order(1, "ann", 5), order(1, "ann", 8)
SPLIT = [("+U", 1, "ann", 8), ("-U", 1, "ann", 5)]


class Table:
    """A table that is changed at random, with the events of each tool and the remaining rows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[int, Row] = {}

    def _row(self, id_: int) -> Row:
        return order(id_, self.random.choice(["ann", "bob", None]), self.random.choice([None, 0, 1, 2**53 + 1, -7]))

    def change(self) -> tuple[str, Row | None, Row | None]:
        """Return an operation, the old row and the new one."""
        id_ = self.random.randrange(20)
        old = self.rows.pop(id_, None)
        if old is not None and self.random.random() < 0.4:
            return "delete", old, None
        self.rows[id_] = self._row(id_)
        return ("insert" if old is None else "update"), old, self.rows[id_]

    def totals(self) -> dict[str | None, tuple[int | None, int]]:
        groups: dict[str | None, list[Row]] = {}
        for row in self.rows.values():
            groups.setdefault(row["customer"], []).append(row)
        result = {}
        for customer, rows in groups.items():
            amounts = [row["amount"] for row in rows if row["amount"] is not None]
            result[customer] = (sum(amounts) if amounts else None, len(rows))
        return result


def changed_fields(old: Row, new: Row) -> Row:
    return {name: value for name, value in old.items() if new[name] != value}


def text(value: Any) -> Any:
    return None if value is None else str(value)


def debezium(what: str, old: Row | None, new: Row | None) -> Row:
    return event({"insert": "c", "update": "u", "delete": "d"}[what], old, new)


def maxwell(what: str, old: Row | None, new: Row | None) -> Row:
    written_event: Row = {"database": "shop", "table": "orders", "type": what, "ts": 1, "data": new or old}
    if old is not None and new is not None:
        written_event["old"] = changed_fields(old, new)
    return written_event


def canal(what: str, old: Row | None, new: Row | None) -> Row:
    row = new or old
    assert row is not None
    data = {name: text(value) for name, value in row.items()}
    was = [{name: text(value) for name, value in changed_fields(old, new).items()}] if old and new else None
    return {"type": what.upper(), "isDdl": False, "data": [data], "old": was, "pkNames": ["id"], "sql": ""}


@pytest.mark.parametrize(
    ("event_of", "read"),
    [
        (debezium, partial(from_debezium, replica_identity="full")),
        pytest.param(maxwell, from_maxwell, marks=pytest.mark.slow),
        pytest.param(canal, from_canal, marks=pytest.mark.slow),
    ],
    ids=["debezium", "maxwell", "canal"],
)
def test_random_changes_add_up_to_the_table(spark: Any, embedded: Functions, event_of: Any, read: Any) -> None:
    """After many inserts, updates and deletes the aggregate equals the aggregate of the remaining rows."""
    table = Table(seed=11)
    events = [event_of(*table.change()) for _ in range(300)]
    rows = read(kafka(spark, *events), SCHEMA)
    assert rows.columns == ["row_kind", "id", "customer", "amount"]
    grouped_df = group_by(rows, "customer", row_kind="row_kind")
    result = grouped_df.agg(total=embedded["sum"]("amount"), n=embedded["count"]())
    assert {row.customer: (row.total, row.n) for row in result.collect()} == table.totals()


def test_each_operation_of_debezium_is_split(spark: Any) -> None:
    """Each operation is split correctly, with the schema in the message or without; other messages are ignored."""
    deleted_order = order(2, None, 3)
    events = kafka(
        spark,
        event("c", after=OLD),
        event("r", after=deleted_order),
        event("u", OLD, NEW),
        {"schema": {"type": "struct"}, "payload": event("d", deleted_order)},
        None,
        event("m", message={"prefix": "p"}),
    )
    expected = [("+I", 1, "ann", 5), ("+I", 2, None, 3), SPLIT[0], ("-D", 2, None, 3), SPLIT[1]]
    assert changes(from_debezium(events, SCHEMA)) == expected
    schema = spark.createDataFrame([], SCHEMA).schema
    assert changes(from_debezium(events, schema)) == expected


@pytest.mark.every_turn
@pytest.mark.parametrize("mode", ["default-schema", "default"])
def test_events_of_a_real_connector_equal_its_table(spark: Any, mode: str) -> None:
    """In any order and twice, a table without whole old rows has the last row of each key; NOT NULL columns too."""
    events = [value for value in values(mode, "orders_key") if value is not None]
    random.Random(3).shuffle(events)
    frame = spark.createDataFrame([(each.encode(),) for each in [*events, *events[:5]]], "value binary")
    if mode == "default-schema":
        schema = schema_of(frame, table="inv.orders_key")
        options = {}
    else:
        schema = "id bigint, customer string, amount decimal(10, 2), ordered timestamp_ntz, due date"
        options = {"decimals": "precise", "times": {"ordered": "microseconds"}}
    result = from_debezium(frame, schema, keys="id", **options)
    truth = json.loads(archive()["truth"])["phase9"]["orders_key"]
    assert sorted(
        (row.id, row.customer, float(row.amount), row.ordered.isoformat(), str(row.due)) for row in result.collect()
    ) == [(row["id"], row["customer"], row["amount"], row["ordered"], str(row["due"])) for row in truth]
    with pytest.raises(PySparkException) as excinfo:
        from_debezium(frame, schema, **options).collect()
    assert "lacks its old row" in str(error_of(excinfo.value))


@pytest.mark.every_turn
def test_tombstones_of_kafka_delete_their_keys(classic: Any) -> None:
    """Also if the delete before them was compacted away; topics and partitions have offsets of their own."""
    events = [
        ("a", 0, 0, 1, event("c", after=OLD, source={"lsn": 10})),
        ("a", 0, 1, 2, event("c", after=order(2, "bob", 3), source={"lsn": 11})),
        ("a", 0, 2, 1, None),
        ("a", 1, 0, 3, event("c", after=order(3, "cid", 4), source={"lsn": 12})),
        ("b", 0, 0, 4, None),
    ]
    rows = [
        (json.dumps({"id": id_}), each and json.dumps(each), topic, partition, offset)
        for topic, partition, offset, id_, each in events
    ]
    frame = classic.createDataFrame(rows, "key STRING, value STRING, topic STRING, partition INT, offset BIGINT")
    ordered_df = frame.where("topic = 'a'").repartition("topic", "partition").sortWithinPartitions("offset")
    assert changes(from_debezium(ordered_df, SCHEMA, keys="id")) == [("+I", 2, "bob", 3), ("+I", 3, "cid", 4)]
    with pytest.raises(PySparkException) as excinfo:
        from_debezium(frame.where("partition = 1"), "id TIMESTAMP").collect()
    assert '(the event: topic a, partition 1, offset 0, key {"id": 3}, lsn 12)' in str(error_of(excinfo.value))
    assert len(changes(from_debezium(frame, SCHEMA))) == 3
    with pytest.raises(PySparkException) as excinfo:
        from_debezium(frame.where("topic = 'b'"), SCHEMA, keys="id").collect()
    assert "a tombstone stands alone" in str(error_of(excinfo.value))
    named_df = frame.select(sf.struct(sf.lit(1).alias("id")).alias("key"), "value")  # a key that was decoded already
    assert len(changes(from_debezium(named_df, SCHEMA))) == 3


@pytest.mark.parametrize("options", [{}, {"replica_identity": "full"}])
def test_a_delete_that_has_only_its_key_is_refused(classic: Any, options: Any) -> None:
    """The connector's '' and 0 were retracted from the groups; a row that is so passes if the user says so."""
    rows = from_debezium(kafka(classic, event("d", order(1, "", 0))), SCHEMA, **options)
    if options:
        assert changes(rows) == [("-D", 1, "", 0)]
        return
    with pytest.raises(PySparkException) as excinfo:
        rows.collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert error.code == "SCHEMA_MISMATCH"
    assert "may hold the key only" in str(error)


@pytest.mark.every_turn
def test_the_schema_of_events_is_read_from_a_sample(classic: Any) -> None:
    """Types come from the schema blocks; a sample without any, or of several tables, is refused."""
    frame = classic.createDataFrame(
        [(each and each.encode(),) for each in values("default-schema", "kinds")], "value binary"
    )
    result = {each.name: each.dataType.simpleString() for each in schema_of(frame)}
    assert len(result) == 51
    expected = {
        "id": "bigint",
        "c_small": "smallint",
        "c_num": "decimal(10,2)",
        "c_numint": "decimal(12,0)",
        "c_numfree": "decimal(38,18)",
        "c_real": "float",
        "c_bool": "boolean",
        "c_bytea": "binary",
        "c_date": "date",
        "c_ts3": "timestamp_ntz",
        "c_tstz": "timestamp",
        "c_timetz": "string",
        "c_nums": "array<decimal(10,2)>",
        "c_tss": "array<timestamp_ntz>",
        "c_enum": "string",
        "c_point": "string",
    }
    assert {name: result[name] for name in expected} == expected
    assert schema_of(frame).fields[0].metadata  # the texts of the blocks, by which Spark's JVM cuts them away
    tags = {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}, "field": "tags"}
    wrong: dict[str, object] = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "field": "total"}
    wrong["parameters"] = {"scale": "two", "connect.decimal.precision": "many"}
    block = {"type": "struct", "fields": [{"type": "struct", "fields": [tags, wrong], "field": "after"}]}
    map_schema = schema_of(kafka(classic, {"schema": block, "payload": event("c", after={"tags": {"a": 1}})}))
    assert map_schema["tags"].dataType == st.MapType(st.StringType(), st.IntegerType())
    assert map_schema["total"].dataType == st.DecimalType(38, 0)
    with pytest.raises(RejectedError, match="none of these events has a schema block"):
        schema_of(kafka(classic, event("c", after=OLD)))
    lines = [(each and each.encode(),) for table in ("orders", "evolving") for each in values("default-schema", table)]
    with pytest.raises(RejectedError, match=r"none of these events is of the table inv\.none and has a schema block"):
        schema_of(frame, table="inv.none")
    assert schema_of(frame, table="inv.kinds") == schema_of(frame)
    with pytest.raises(RejectedError, match=r"write 'schema\.kinds'"):
        schema_of(frame, table="kinds")
    with pytest.raises(RejectedError, match="schema_of reads a batch"):
        schema_of(classic.readStream.format("rate").load().selectExpr("'' AS value"))
    several = classic.createDataFrame(lines, "value binary")
    with pytest.raises(RejectedError, match=r"of several tables, postgres\.inv\.evolving, postgres\.inv\.orders; name"):
        schema_of(several)
    with pytest.raises(RejectedError, match=r"in one event and .* in another; give the schema as text"):
        schema_of(several, table="inv.*")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"decimals": "exact"}, "SIGNATURE", "decimals is 'exact', not one of precise, string, double"),
        ({"times": "adaptive"}, "SIGNATURE", "name the unit of each column"),
        ({"times": {"id": "seconds"}}, "SIGNATURE", "times of id is 'seconds'"),
        ({"times": {"ordred": "microseconds"}}, "SCHEMA_MISMATCH", "times names 'ordred', which is not in the schema"),
        ({"keys": ["Id2"]}, "SCHEMA_MISMATCH", "keys names 'Id2'"),
        ({"ttl": "7 days"}, "SIGNATURE", "without keys= none are kept"),
        ({"keys": "id", "ttl": "soon"}, "SIGNATURE", "ttl is an interval of a fixed length"),
        ({"table": "orders"}, "SIGNATURE", "table is 'orders', without its schema; write 'schema.orders'"),
        ({"missing": "ignore"}, "SIGNATURE", "missing is 'refuse' or 'null'"),
        ({"replica_identity": "default"}, "SIGNATURE", "replica_identity is 'full' or left out, not 'default'"),
        ({"replica_identity": "full", "keys": "id"}, "SIGNATURE", "leave replica_identity out"),
        ({"schema": "id BIGINT, row_kind STRING"}, "SCHEMA_MISMATCH", "already have a column row_kind"),
        (
            {"schema": "id BIGINT, debezium_sequence STRING", "keys": "id"},
            "SCHEMA_MISMATCH",
            "already have a column debezium_sequence",
        ),
        ({"schema": None, "decimals": "string"}, "SIGNATURE", "the other arguments need the schema"),
        ({"schema": None, "replica_identity": "full"}, "SIGNATURE", "the other arguments need the schema"),
        ({"decimals": {"id": "exact"}}, "SIGNATURE", "decimals of id is 'exact', not one of precise, string, double"),
        ({"binary": {"nothing": "hex"}}, "SCHEMA_MISMATCH", "binary names 'nothing', which is not in the schema"),
        ({"intervals": "months"}, "SIGNATURE", "intervals is 'months', not one of numeric, string"),
    ],
)
def test_mistakes_are_refused_at_once(classic: Any, options: Any, code: str, message: str) -> None:
    """Before the query starts."""
    with pytest.raises(RejectedError) as excinfo:
        from_debezium(kafka(classic), **{"schema": SCHEMA, **options})
    assert excinfo.value.code == code
    assert message in excinfo.value.message


def test_events_of_debezium_may_be_columns_of_avro(spark: Any) -> None:
    """Columns op, before and after need no schema; a tombstone has NULL in all of them."""
    row = f"STRUCT<{SCHEMA}>"
    rows = [("u", (1, "ann", 5), (1, "ann", 8)), ("d", (1, "ann", 8), None), (None, None, None)]
    events = spark.createDataFrame(rows, f"op STRING, before {row}, after {row}")
    assert changes(from_debezium(events)) == [SPLIT[0], ("-D", 1, "ann", 8), SPLIT[1]]
    with pytest.raises(RejectedError, match="no column before among op, after; give the schema"):
        from_debezium(events.drop("before"))


def test_columns_of_avro_are_read_as_the_words_say(spark: Any) -> None:
    """The numbers of times, and bytes of decimals, mean what the words say; columns of their types stay as they are."""
    after = """named_struct('id', 1, 'ordered', 1704067200000001, 'seen', 1500L, 'amount', X'04D2', 'price', 1.50BD,
        'at', timestamp'2024-01-01 00:00:00.123456Z', 'due', date'2024-01-01', 'raw', X'DEADBEEF', 'took', 5L)"""
    source = "named_struct('lsn', 5L, 'schema', 'inv', 'table', 't')"
    events = spark.sql(
        f"SELECT 'c' AS op, NULL AS before, {after} AS after, {source} AS source, "
        "named_struct('id', 1) AS key, 0 AS partition, 7L AS offset"
    )
    schema = (
        "id INT, ordered TIMESTAMP_NTZ, seen TIMESTAMP_NTZ, amount DECIMAL(10,2), price DECIMAL(10,2), at TIMESTAMP, "
        "due DATE, raw BINARY, took INTERVAL DAY TO SECOND"
    )
    words: dict[str, Any] = {
        "decimals": {"amount": "precise", "price": "precise"},
        "times": {"ordered": "microseconds", "seen": "milliseconds"},
        "intervals": "numeric",
        "binary": "hex",
    }
    for options in ({}, {"keys": "id"}, {"table": "inv.t"}):
        (row,) = from_debezium(events, schema, **words, **options).collect()
        assert (row.ordered, row.seen) == (
            dt.datetime(2024, 1, 1, 0, 0, 0, 1),
            dt.datetime(1970, 1, 1, 0, 0, 1, 500000),
        )
        assert (row.amount, row.price, row.due) == (Decimal("12.34"), Decimal("1.50"), dt.date(2024, 1, 1))
        assert (bytes(row.raw), row.took) == (b"\xde\xad\xbe\xef", dt.timedelta(microseconds=5))
    at = from_debezium(events, schema, **words).select(sf.unix_micros("at").alias("at")).collect()
    assert at[0].at == 1704067200123456
    assert from_debezium(events, schema, table="inv.other", **words).collect() == []
    with pytest.raises(PySparkException) as excinfo:
        from_debezium(events, schema).collect()
    assert "the column ordered of an event has the value 1704067200000001, an integer whose unit" in str(
        error_of(excinfo.value)
    )
    delete_events = events.select(
        *(sf.lit(None).cast(events.schema[name].dataType).alias(name) for name in ("op", "before", "after"))
    )
    assert from_debezium(delete_events, schema, **words).collect() == []
    with pytest.raises(RejectedError, match="after is string, not a struct"):
        from_debezium(spark.sql("SELECT 'c' AS op, NULL AS before, '{}' AS after"), "id INT")


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (from_debezium, event("u", after=NEW), "an event lacks its old row, before.*REPLICA IDENTITY FULL"),
        pytest.param(from_debezium, event("d"), "an event lacks its old row, before", marks=pytest.mark.slow),
        pytest.param(from_debezium, event("c"), "an event lacks its new row, after", marks=pytest.mark.slow),
        (from_debezium, event("t"), "the operation of an event is t, which is not one of c, r, u, d"),
        pytest.param(
            from_debezium, {"id": 1}, "an event has no operation op, so it is flattened", marks=pytest.mark.slow
        ),
        (
            from_debezium,
            event("c", after=order(1, "ann", 5) | {"id": "many"}),
            "the column id of an event has the value 'many', which is not an integer",
        ),
        pytest.param(
            from_maxwell, {"type": "update", "data": NEW}, "an event lacks its old row, old", marks=pytest.mark.slow
        ),
        (from_maxwell, {"type": "table-drop"}, "the operation of an event is table-drop, which is not one of"),
        pytest.param(
            from_canal,
            {"type": "UPDATE", "data": [{"id": "1", "customer": None, "amount": None}], "old": None},
            "an event lacks its old row, old",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            from_canal,
            {"type": "TRUNCATE", "isDdl": True, "data": None},
            "the operation of an event is TRUNCATE, which is not one of",
            marks=pytest.mark.slow,
        ),
        (
            from_canal,
            {"type": "INSERT", "data": [{"id": "many", "customer": "ann", "amount": None}]},
            "SCHEMA_MISMATCH: the column id of an event has the value 'many', which cannot be cast to BIGINT",
        ),
    ],
)
def test_a_value_that_cannot_be_read_fails_the_query(classic: Any, read: Any, row: Row, message: str) -> None:
    """An event without a needed row, of an unknown kind, or damaged, is an error that names it."""
    with pytest.raises(Exception, match=message) as excinfo:
        read(kafka(classic, row), SCHEMA).collect()
    if read is from_debezium:
        assert "Traceback" not in str(excinfo.value)


@pytest.mark.every_turn
@pytest.mark.parametrize("read", [from_maxwell, from_canal])
def test_errors_of_maxwell_and_canal_name_the_event(classic: Any, read: Any) -> None:
    """Its table, its position, and its place in Kafka, whatever is refused."""
    group = {"database": "inv", "table": "orders", "position": "binlog.000006:80", "xid": 7}
    rows = {"id": "1", "customer": None, "amount": "many"}
    is_canal = read is from_canal
    events = [
        {"type": "INSERT" if is_canal else "insert", "data": [rows] if is_canal else rows},
        {"type": "DINDEX?", "data": None},
        {"type": "UPDATE" if is_canal else "update", "data": [OLD | {"id": "1", "amount": "1"}] if is_canal else OLD},
        {"data": {}},
    ]
    for event_text in events:
        frame = kafka(classic, {**group, "isDdl": False, **event_text}).selectExpr(
            "value", "'orders' AS topic", "3 AS partition", "17L AS offset"
        )
        with pytest.raises(PySparkException) as excinfo:
            read(frame, SCHEMA).collect()
        group_text = '{"database":"inv","table":"orders","position":"binlog.000006:80","xid":"7"}'
        error = error_of(excinfo.value)
        assert error is not None
        assert error.message.endswith(f" (the event: topic orders, partition 3, offset 17, {group_text})")


def test_the_old_row_of_maxwell_has_the_changed_columns(classic: Any) -> None:
    """The old row is the new one with the changed columns, which may have been NULL; others are ignored."""
    update_event = {"type": "update", "data": NEW, "old": {"amount": None}}
    start = {"type": "bootstrap-start", "data": {}}
    events = kafka(
        classic, {"type": "bootstrap-insert", "data": OLD}, update_event, None, start, {"type": "table-alter"}
    )
    assert changes(from_maxwell(events, SCHEMA)) == [("+I", 1, "ann", 5), SPLIT[0], ("-U", 1, "ann", None)]


@pytest.mark.parametrize("read", [from_canal, from_maxwell, from_debezium])
def test_a_schema_names_each_column_once(spark: Any, read: Any) -> None:
    """Names that differ by case only are one name in Spark, unless it is told otherwise."""
    frame = kafka(spark, event("c", None, OLD))
    for schema in ("id INT, id INT", "id INT, ID INT", st.StructType([st.StructField("id", st.IntegerType())] * 2)):
        with pytest.raises(RejectedError, match=r"SCHEMA_MISMATCH.*the schema has two columns (id|ID); name each once"):
            read(frame, schema)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert read(frame, "id INT, ID INT").columns == ["row_kind", "id", "ID"]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.every_turn
def test_java_compiles_what_passes_rows_of_canal(classic: Any, request: pytest.FixtureRequest) -> None:
    """Java's compiler leaves methods of more than 8,000 bytes to the interpreter."""
    setting = "spark.sql.codegen.wholeStage"
    request.addfinalizer(partial(classic.conf.set, setting, classic.conf.get(setting)))
    classic.conf.set(setting, "true")
    schema = "id BIGINT, name STRING, amount DECIMAL(10,2), price DOUBLE, at TIMESTAMP_NTZ, paid TIMESTAMP, due DATE"
    left_event = '{"type": "INSERT", "data": [{"id": "1", "amount": "2.50"}]}'  # without isDdl, Python leaves it
    frame = from_canal(classic.createDataFrame([(left_event,)], "value STRING"), schema, missing="null")
    debug = getattr(classic._jvm.org.apache.spark.sql.execution.debug, "package$")
    stages = getattr(debug, "MODULE$").codegenStringSeq(frame._jdf.queryExecution().executedPlan())
    sizes = [stages.apply(at)._3().maxMethodCodeSize() for at in range(stages.size())]
    assert 0 < max(sizes) < 8_000
    (row,) = frame.collect()
    assert (row.row_kind, row.id, row.amount, row.due) == ("+I", 1, Decimal("2.50"), None)


@pytest.mark.every_turn
def test_an_event_of_canal_has_several_rows(classic: Any) -> None:
    """An event has several rows of strings, each with its own old values."""
    rows = [{"id": "1", "customer": "ann", "amount": "8"}, {"id": "2", "customer": "bob", "amount": "3"}]
    update_event = {"type": "UPDATE", "data": rows, "old": [{"amount": "5"}, {"customer": None}]}
    events = kafka(classic, update_event, {"type": "ALTER", "isDdl": True, "data": None, "old": None})
    assert changes(from_canal(events, SCHEMA)) == [SPLIT[0], ("+U", 2, "bob", 3), SPLIT[1], ("-U", 2, None, 3)]


@pytest.mark.every_turn
def test_texts_of_canal_are_cast_alike_in_every_session(classic: Any) -> None:
    """Without ANSI rules, too, a text that is no number is an error and not NULL, and 1.5 is no integer."""
    old = {"type": "UPDATE", "data": [{"id": "1", "customer": None, "amount": "8"}], "old": [{"amount": "1.5"}]}
    new = {"type": "INSERT", "data": [{"id": "1", "customer": None, "amount": "99999999999999999999"}], "old": None}
    classic.conf.set("spark.sql.ansi.enabled", "false")
    try:
        for text, value in ((old, "1.5"), (new, "9{20}")):
            with pytest.raises(Exception, match=f"the column amount of an event has the value '{value}'"):
                from_canal(kafka(classic, text), SCHEMA).collect()
    finally:
        classic.conf.unset("spark.sql.ansi.enabled")


EXACT = "m DECIMAL(10,2), d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, b BINARY"
ROW = {"m": "12.50", "d": "2024-02-29", "t": "2024-01-01 10:00:00.5", "n": "2024-01-01 10:00:00", "b": "AP8Q"}


@pytest.mark.every_turn
@pytest.mark.parametrize("tool", ["canal", "maxwell"])
def test_values_of_canal_and_maxwell_are_exact(classic: Any, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that the declared type would round, cut or guess is refused by column and value, in new and old rows.

    Spark's expressions refuse it. Only the queries of all columns also read events of Canal in Python: a failed query
    costs Spark its Python worker, and that the reader leaves such values is tested by itself.
    """

    def read(data: Any, old: Any = None, schema: str = EXACT, **options: Any) -> list[Any]:
        if tool == "canal":
            event_of_row = {"type": "UPDATE" if old else "INSERT", "data": [data], "old": old and [old]}
            return from_canal(kafka(classic, event_of_row), schema, **options).collect()
        event_of_row = {"type": "update" if old else "insert", "data": data, "old": old}
        return from_maxwell(kafka(classic, event_of_row), schema, **options).collect()

    (result,) = read(ROW)
    assert (result.m, result.d) == (Decimal("12.50"), dt.date(2024, 2, 29))
    assert result.n == dt.datetime(2024, 1, 1, 10)
    assert bytes(result.b) == (b"AP8Q" if tool == "canal" else b"\x00\xff\x10")
    wrong: list[tuple[str, Any, str]] = [
        ("m", "1.005", "1.005"),
        ("d", "2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("t", "12:30:00", "12:30:00"),
        ("n", "1704067200", "1704067200"),
    ]
    if tool == "canal":
        wrong += [("b", "\u20ac", "\u20ac"), ("m", "100000000.00", "100000000.00")]
    else:
        wrong += [("m", 1.005, "1.005"), ("t", 1704067200, "1704067200")]
    columns = {each.partition(" ")[0]: each for each in EXACT.split(", ")}
    for name, value, display_text in wrong:
        schema = columns[name]
        trials: list[tuple[Any, Any, str]] = [({name: value}, None, schema), ({name: ROW[name]}, {name: value}, schema)]
        if name == "n":
            trials.append((ROW, {name: value}, EXACT))
        for trial in trials:
            with monkeypatch.context() as patches:
                if trial[2] != EXACT:
                    patches.setattr(cdc, "canal_reader", lambda *_, **__: None)
                with pytest.raises(PySparkException) as excinfo:
                    read(*trial)
            assert f"the column {name} of an event has the value '{display_text}'" in str(error_of(excinfo.value)), (
                trial
            )
    read_double = from_canal if tool == "canal" else from_maxwell
    for value, is_exact in ((9007199254740993, False), (9007199254740992, True), (0.1, True)):
        data: Any = [{"x": str(value)}] if tool == "canal" else {"x": value}
        kind = "INSERT" if tool == "canal" else "insert"
        rows = read_double(kafka(classic, {"type": kind, "data": data}), "x DOUBLE")
        if is_exact:
            assert rows.collect()[0].x == float(value)
            continue
        with pytest.raises(PySparkException, match="'9007199254740993', which DOUBLE does not hold exactly"):
            rows.collect()
    row_without_n = {name: value for name, value in ROW.items() if name != "n"}
    with pytest.raises(PySparkException, match=r"an event lacks the column n; it has m, d, t, b.*missing='null'"):
        read(row_without_n, schema=columns["n"])
    assert read(row_without_n, schema=columns["n"], missing="null")[0].n is None
    with pytest.raises(
        PySparkException, match=r"lacks the column t; it has m, d, n, b, T; did you mean T\?\. A column"
    ):
        read({**{name: value for name, value in ROW.items() if name != "t"}, "T": ROW["t"]}, schema=columns["t"])
    with pytest.raises(RejectedError, match="missing is 'refuse' or 'null'"):
        read(ROW, missing="zero")


def damaged_events(tool: str) -> list[tuple[bytes, str]]:
    """Return events of one row, which a lenient parser reads, and the message about each."""

    def of(row: str, old: str = "null", kind: str = "insert") -> bytes:
        if tool == "canal":
            row, old, kind = f"[{row}]", old if old == "null" else f"[{old}]", kind.upper()
        return f'{{"type":"{kind}","isDdl":false,"data":{row},"old":{old}}}'.encode()

    good = of('{"s":"a"}')
    rows = {
        '{"s":"\\ud800"}': "half of a surrogate pair",
        '{"s":"\\\\\\udc00"}': "half of a surrogate pair",
        '{"f":"16777217"}': "'16777217', which FLOAT does not hold exactly",
        '{"f":"1e39"}': "'1e39', which FLOAT does not hold exactly",
        '{"x":"1e400"}': "'1e400', which DOUBLE does not hold exactly",
        f'{{"x":"{10**40}"}}': f"'{10**40}', which DOUBLE does not hold exactly",
        '{"m":"0.0000000000000000000000000000000000000000001"}': "which DECIMAL.10,2. does not hold exactly",
        '{"n":"2024-01-01 10:00:00+02:00"}': "'2024-01-01 10:00:00.02:00', which cannot be cast to TIMESTAMP_NTZ",
    }
    if tool == "maxwell":
        numbers = {
            '{"f":16777217}': "'16777217', which FLOAT does not hold exactly",
            '{"f":1e39}': "which FLOAT does not hold exactly",
            '{"x":1e400}': "which DOUBLE does not hold exactly",
            f'{{"x":{10**40}}}': f"'{10**40}', which DOUBLE does not hold exactly",
            '{"s":1234567890123456.7891}': "a number, of which STRING would keep 1.2345678901234568E15; ",
            '{"m":1e-400}': "has a number that no type holds: ",
        }
        rows = {row: message for row, message in rows.items() if row[2] not in "fx"} | numbers
    return [
        *((of(row), message) for row, message in rows.items()),
        *(((of('{"s":5}'), "values of an event are not all texts, as Canal"),) if tool == "canal" else ()),
        *(((of('{"s":"a"}', '{"s":5}', "update"), "not all texts, as Canal"),) if tool == "canal" else ()),
        (good.replace(b'"', b"'"), "is not JSON of"),
        (good[:-1] + b',"more":-Infinity}', "is not JSON of"),
        (good + b"}", "other text behind it"),
        (good + good, "other text behind it"),
        (good[:-1] + b',"type":"delete"}', "two members of one name"),
        (good[:-1] + good[good.index(b',"data"') :], "two members of one name"),
        (good.replace(b'"a"', b'"\xff"'), "is not UTF-8"),
        (good.replace(b'"a"', b'"\xed\xa0\x80"'), "is not UTF-8"),
        (of('{"s":"a"}', '{"S":"b"}', "update"), "the old row of an event has the column S, which the new row lacks"),
    ]


@pytest.mark.every_turn
@since_spark("4.0", "Column.try_cast, which the types need,")
@pytest.mark.parametrize("tool", ["canal", "maxwell"])
def test_texts_that_only_a_lenient_parser_reads_are_refused(classic: Any, tool: str) -> None:
    """Spark takes the last of two members, reads no further than an object, and replaces bytes that are no text."""
    events = damaged_events(tool)
    fine = r'{"s": "\\ud83d\\ude00 \ud83d\ude00", "x": "0.5", "t": "1e-400"}'
    fine = fine if tool == "canal" else fine.replace('"0.5"', "0.5")
    kind, data = ("INSERT", f"[{fine}]") if tool == "canal" else ("insert", fine)
    texts = [f'{{"type":"{kind}","isDdl":false,"data":{data}}}'.encode(), *(each for each, _ in events)]
    frame = classic.createDataFrame(
        classic.sparkContext.parallelize([(bytearray(each),) for each in texts], len(texts))
    )
    read = from_canal if tool == "canal" else from_maxwell
    schema = "s STRING, f FLOAT, x DOUBLE, m DECIMAL(10,2), n TIMESTAMP_NTZ"
    actual = read(frame.toDF("value"), schema, missing="null").rdd
    (row,) = classic.sparkContext.runJob(actual, list, [0])
    assert (row.s, row.x) == ("\\ud83d\\ude00 \U0001f600", 0.5)
    for at, (event_, said) in enumerate(events, 1):
        with pytest.raises(Exception, match=f"foldflight: SCHEMA_MISMATCH: .*{said}") as excinfo:
            classic.sparkContext.runJob(actual, list, [at])
        assert "(the event: " in str(excinfo.value), event_


@pytest.mark.parametrize("read", [from_canal, from_maxwell])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_column_that_a_row_names_twice_is_refused(classic: Any, read: Any, is_old: bool) -> None:
    """One parser took the first value, and another the last."""
    twice, once = (
        '{"id": "1", "customer": "ann", "id": "2", "amount": "5"}',
        '{"id": "1", "customer": null, "amount": "5"}',
    )
    data, old = (once, twice) if is_old else (twice, "null")
    kind = "update" if is_old else "insert"
    if read is from_canal:
        data, old, kind = f"[{data}]", old if old == "null" else f"[{old}]", kind.upper()
    else:
        data, old = (each.replace('"1"', "1").replace('"2"', "2").replace('"5"', "5") for each in (data, old))
    value = f'{{"type": "{kind}", "isDdl": false, "data": {data}, "old": {old}}}'
    frame = classic.createDataFrame([(value,)], "value STRING")
    with pytest.raises(
        PySparkException, match="the row of an event has a column twice: id, customer, id, amount; what"
    ):
        read(frame, SCHEMA).collect()


@pytest.mark.every_turn
def test_the_bytes_of_canal_are_latin_1(classic: Any) -> None:
    """BINARY has the bytes of the database: 0xFF is written as U+00FF, whose UTF-8 has two bytes."""
    events = kafka(classic, {"type": "INSERT", "data": [{"b": "\u00ff\u0000a"}], "old": None})
    assert bytes(from_canal(events, "b BINARY").collect()[0].b) == b"\xff\x00a"


def test_other_names_and_codes_are_mapped(spark: Any) -> None:
    """`split_changes` accepts any names, expressions and codes, also numeric codes."""
    row = f"STRUCT<{SCHEMA}>"
    events = spark.createDataFrame(
        [(1, None, (1, "ann", 5)), (2, (1, "ann", 5), (1, "ann", 8)), (9, None, None)], f"code INT, was {row}, is {row}"
    )
    options = {"op": "code", "before": "was", "after": sf.col("is"), "row_kinds": {"1": "+I", "2": "UPDATE_AFTER"}}
    assert changes(split_changes(events, **options, ignored=["9"])) == [("+I", 1, "ann", 5), *SPLIT]
    for wrong, message in (
        ({"before": "nowhere"}, "nowhere"),
        ({"before": "code"}, "code is int, not a struct"),
        ({"row_kinds": {"1": "insert it"}}, "insert it"),
        ({"after": sf.struct(sf.lit("+I").alias("Row_Kind"))}, "SCHEMA_MISMATCH"),
    ):
        with pytest.raises(RejectedError, match=message) as excinfo:
            split_changes(events, **{**options, **wrong})
        assert excinfo.value.code == "SCHEMA_MISMATCH"
    hidden_df = sf.struct(sf.lit("+I").alias("Row_Kind"))
    with pytest.raises(RejectedError, match="the rows already have a column row_kind"):
        split_changes(events, **{**options, "before": hidden_df, "after": hidden_df})


def test_a_text_that_is_no_schema_is_refused(classic: Any) -> None:
    """An invalid schema, and events without the JSON column, are refused when the query is built."""
    events = kafka(classic)
    with pytest.raises(RejectedError, match="cannot read the schema 'id NUMBER'"):
        from_debezium(events, "id NUMBER")
    with pytest.raises(RejectedError, match="the schema is a text such as"):
        from_maxwell(events, {"id": "BIGINT"})  # type: ignore[arg-type]
    with pytest.raises(RejectedError, match="no column value among message"):
        from_canal(events.select(sf.col("value").alias("message")), SCHEMA)
    with pytest.raises(RejectedError, match=r"Spark cannot cast them to the schema.*tags.*ARRAY<INT>"):
        from_canal(events, "tags ARRAY<INT>")


def test_codes_that_need_no_splitting_are_mapped(classic: Any, embedded: Functions) -> None:
    """Delta's change data feed has its own codes; Iceberg's are the names of row kinds."""
    count = embedded["count"]
    names = dict(zip(DELTA_CHANGES, ("INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"), strict=True))
    feed = [("insert", 1), ("update_preimage", 1), ("update_postimage", 2), ("insert", 3), ("delete", 3)]
    for rows, options in (
        (feed, {"row_kinds": DELTA_CHANGES}),
        ([(names[code], key) for code, key in feed], {}),
    ):
        df = classic.createDataFrame(rows, "_change_type STRING, k INT")
        result = group_by(df, "k", row_kind="_change_type", **options).agg(n=count())
        assert [tuple(row) for row in result.collect()] == [(2, 1)]


def by_key(what: str, old: Row | None, new: Row | None, lsn: int) -> Row:
    """Return an event of a table whose replica identity is its primary key."""
    before = {**order(0, None, None), "id": old["id"]} if what == "delete" and old is not None else None
    return {**debezium(what, before, new), "source": {"lsn": lsn}}


@pytest.mark.slow
@pytest.mark.parametrize("replica_identity", ["default", "full"])
def test_a_changelog_becomes_a_table(classic: Any, tmp_path: Path, replica_identity: str) -> None:
    """Debezium events in a stream, written into a table epoch by epoch, give the totals of the remaining rows."""
    table = Table(seed=3)
    for number in range(4):
        changes = (table.change() for _ in range(40))
        is_full = replica_identity == "full"
        actual = [debezium(*each) if is_full else by_key(*each, number * 40 + at) for at, each in enumerate(changes)]
        events = [json.dumps(each).encode() for each in actual]
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"value": pa.array(events, pa.binary())}), path)
        os.utime(path, (number + 1, number + 1))  # Spark takes the files by their times, which are equal on a fast disk
    source = classic.readStream.schema("value BINARY").option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/*.parquet")
    options = {"checkpoint": tmp_path / "checkpoint", "trigger": "available now", "create": True}
    target = f"duckdb://{tmp_path}/shop.duckdb?table=totals"
    result = totals(source, replica_identity)
    assert write_table(result, target, keys=["customer"], **options).awaitTermination(600)
    with duckdb.connect(f"{tmp_path}/shop.duckdb") as shop:
        rows = shop.sql("SELECT customer, total, orders FROM totals").fetchall()
    assert {customer: (total, orders) for customer, total, orders in rows} == table.totals()
    assert len(rows) == len(table.totals())


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id SERIAL, note TEXT", r"\(TEXT is STRING, SERIAL is INT in Spark\)"),
        ("id INT, at TIMESTAMPTZ", r"\(TIMESTAMPTZ is TIMESTAMP in Spark\)"),
        ("id INT, amount DECIMAL", r"without precision and scale \(amount\), which Spark takes for DECIMAL\(10,0\)"),
        ("id DECIMAL(10, 0), amounts ARRAY<NUMERIC>", r"without precision and scale \(id, amounts\)"),
    ],
)
def test_names_of_types_of_databases_are_understood(classic: Any, schema: str, message: str) -> None:
    """A DECIMAL alone is DECIMAL(10,0), with which unscaled values were other numbers."""
    with pytest.raises(RejectedError, match=message):
        from_debezium(kafka(classic), schema)


def test_bytes_are_not_declared_as_texts(classic: Any) -> None:
    """They were base64. A text that looks like base64 of a decimal is one if the events were decoded."""
    with pytest.raises(RejectedError, match=r"decimals says .precise. of the column amount, .*declare DECIMAL"):
        from_debezium(kafka(classic), "amount STRING", decimals={"amount": "precise"})
    row = "named_struct('x', {value})"
    for value, message in (("unhex('03e8')", "the column x of the events is BINARY"), ("'A+g='", None)):
        events = classic.sql(f"SELECT 'c' AS op, NULL AS before, {row.format(value=value)} AS after")
        if message is None:
            assert changes(from_debezium(events, "x STRING")) == [("+I", "A+g=")]
        else:
            with pytest.raises(RejectedError, match=message):
                from_debezium(events, "x STRING")


def test_texts_of_a_bounded_length_are_strings(classic: Any) -> None:
    """VARCHAR(n) and CHAR(n) in a schema, as databases show it, are STRING: Spark does not read JSON as these."""
    row = {"id": 1, "name": "ann", "tags": ["a"]}
    bounded_ddl = "id INT, name VARCHAR(5), tags ARRAY<CHAR (3)>"
    parsed_schema = st.StructType.fromDDL("id INT, tags ARRAY<STRING>")
    assert isinstance(parsed_schema, st.StructType)
    parsed_schema.add("name", st.VarcharType(5))
    for schema in (bounded_ddl, parsed_schema):
        rows = from_debezium(kafka(classic, event("c", None, row)), schema)
        assert [(each.id, each.name, each.tags) for each in rows.collect()] == [(1, "ann", ["a"])]
        assert rows.schema["name"].dataType == st.StringType()


TYPES_OF_MAXWELL = {
    "i": "BIGINT",
    "b": "BINARY",
    "l": "ARRAY<INT>",
    "f": "DOUBLE",
    "o": "BOOLEAN",
    "m": "DECIMAL(10,2)",
    "s": "STRUCT<a: INT>",
}
ROW_OF_MAXWELL: Row = {"i": 1, "b": "AP8Q", "l": [1], "f": 1.5, "o": True, "m": 2.5, "s": {"a": 1}}


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("name", "value", "display_text"),
    [
        ("i", 1.5, "1.5"),
        ("i", 2**70, "1180591620717411303424"),
        ("b", "%%", "%%"),
        ("l", [1, "x"], '[1,"x"]'),
        ("f", "x", "x"),
        ("o", 5, "5"),
        ("m", "x", "x"),
    ],
)
def test_damaged_values_of_maxwell_are_named(classic: Any, name: str, value: Any, display_text: str) -> None:
    """Spark's own error, which named no column, is ours."""
    good = {"type": "update", "data": {name: ROW_OF_MAXWELL[name]}, "old": {}}
    for event_ in ({**good, "data": {name: value}}, {**good, "old": {name: value}}):
        with pytest.raises(PySparkException) as excinfo:
            from_maxwell(kafka(classic, good, event_), f"{name} {TYPES_OF_MAXWELL[name]}").collect()
        message = str(error_of(excinfo.value))
        assert f"the column {name} of an event has the value '{display_text}', which" in message


@pytest.mark.every_turn
def test_damaged_values_within_columns_of_maxwell_are_named(classic: Any) -> None:
    """Of all columns, the one whose value has a damaged part is named; undamaged values of all types are read.

    Spark's parser rounds and cuts values within arrays, structs and maps, and takes the last of two names there.
    """
    schema = ", ".join(f"{name} {type_}" for name, type_ in TYPES_OF_MAXWELL.items())
    good = {"type": "update", "data": ROW_OF_MAXWELL, "old": {"l": [2]}}
    damaged_values = {"i": "many", "s": {"a": "x"}}
    for name, expected_message in (
        ("i", "the column i of an event has the value 'many', which"),
        ("s", "the column s.a of an event has the value 'x', which cannot be cast to INT; give"),
    ):
        change = {name: damaged_values[name]}
        for event_ in ({**good, "data": ROW_OF_MAXWELL | change}, {**good, "old": change}):
            with pytest.raises(PySparkException) as excinfo:
                from_maxwell(kafka(classic, good, event_), schema).collect()
            assert expected_message in str(error_of(excinfo.value))
    result = from_maxwell(kafka(classic, good), schema).collect()
    assert [(each.row_kind, each.l, each.s.a, each.o) for each in result] == [
        ("-U", [2], 1, True),
        ("+U", [1], 1, True),
    ]
    inner = (
        "STRUCT<m: DECIMAL(10,2), at: TIMESTAMP, f: ARRAY<FLOAT>, t: ARRAY<STRING>, of: MAP<STRING, DATE>, x: DOUBLE>"
    )
    events = {
        '{"m": 1.005}': "the column s.m of an event has the value '1.005', which DECIMAL(10,2) does not hold exactly",
        '{"at": 1704067200000}': "s.at of an event has the value '1704067200000', which cannot be cast to TIMESTAMP",
        '{"f": [0.5, 16777217]}': "s.f of an event has the value '16777217', which FLOAT does not hold exactly",
        '{"x": 1e400}': "the column s.x of an event has the value 'Infinity', which DOUBLE does not hold exactly",
        '{"t": [1234567890123456.7891]}': "s.t of an event has a number, of which STRING would keep 1.234567890123456",
        '{"of": {"a": "2024-01-01 10:00:00"}}': "s.of of an event has the value '2024-01-01 10:00:00', which cannot",
        '{"of": {"a": "2024-01-01", "\\u0061": null}}': "the column s.of of an event has an object with a name twice: ",
        '{"m": 1, "m": 2}': 'the column s of an event has an object with a name twice: {"m":1,"m":2}; what writes',
        '{"of": [1]}': "s.of of an event has the value '[1]', which cannot be cast to MAP<STRING,DATE>",
    }
    good_inner = (
        '{"m": 1.50, "at": null, "f": [0.5, null], "t": ["1234567890123456.7891", 5], "of": {"a": "2024-01-01"}}'
    )
    values = [f'{{"type": "insert", "data": {{"s": {each}}}}}' for each in (good_inner, *events)]
    frame = classic.createDataFrame(classic.sparkContext.parallelize([(each,) for each in values], len(values)))
    found = from_maxwell(frame.toDF("value"), f"s {inner}").rdd
    ((_, row),) = classic.sparkContext.runJob(found, list, [0])
    assert (row.m, row.at, row.f, row.t) == (Decimal("1.50"), None, [0.5, None], ["1234567890123456.7891", "5"])
    assert (row.of, row.x) == ({"a": dt.date(2024, 1, 1)}, None)
    for at, said in enumerate(events.values(), 1):
        with pytest.raises(Exception, match=re.escape(said)):
            classic.sparkContext.runJob(found, list, [at])


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (
            from_maxwell,
            '{"type": "insert", "data": {',
            "is not JSON of Maxwell, or has no type: {.type.: .ins",
        ),
        (from_canal, "[5]", r"an event is not JSON of Canal, or has no type: \[5\]"),
        (from_canal, '{"data": [{"id": 1}], "type": "INSERT"}', "Flink's canal-json.*from_debezium"),
        (from_canal, '{"type": "INSERT", "data": [{"id": "1"}], "isDdl": false, "_tidb": {"commitTs": 5}}', "TiCDC"),
        (from_canal, '{"type": "TIDB_WATERMARK", "isDdl": false, "data": null}', "is of TiCDC.*protocol=debezium"),
    ],
)
def test_other_formats_are_refused_by_name(classic: Any, read: Any, value: str, message: str) -> None:
    """With what to use. Values of Canal are texts, whose quotes, braces and backslashes mean nothing."""
    frame = classic.createDataFrame([(value,)], "value STRING")
    with pytest.raises(PySparkException, match=message) as excinfo:
        read(frame, "id BIGINT").collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert error.code == "SCHEMA_MISMATCH"
    odd = json.dumps({"type": "INSERT", "data": [{"id": '}, 5 "\\\\"', "n": None}, {"n": ""}]})
    odds = from_canal(classic.createDataFrame([(odd,)], "value STRING"), "id STRING, n STRING", missing="null")
    assert sorted(map(tuple, odds.collect()), key=str) == [("+I", '}, 5 "\\\\"', None), ("+I", None, "")]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 AS id, 2 AS `__$operation`", "SQL Server's change tables: group_by.*row_kind='__\\$operation'"),
        ("1 AS id, 'I' AS Op", "AWS DMS.*upserts"),
        ("1 AS id, 'insert' AS _change_type", "row_kind='_change_type', row_kinds=DELTA_CHANGES"),
        ("1 AS id, 'I' AS op_type", "Oracle GoldenGate.*split_changes"),
        ("1 AS id, '+I' AS rowkind", "Paimon"),
    ],
)
def test_rows_of_other_tools_are_refused_by_name(classic: Any, columns: str, message: str) -> None:
    with pytest.raises(RejectedError, match=message):
        from_debezium(classic.range(1).selectExpr(*columns.split(", ")))


@pytest.mark.parametrize(
    ("code", "message"),
    [("insert", "DELTA_CHANGES"), ("U", "AWS DMS.*upserts"), ("c", "from_debezium"), ("x", "is no row kind")],
)
def test_codes_that_are_no_row_kinds_are_named(classic: Any, embedded: Functions, code: str, message: str) -> None:
    rows = classic.createDataFrame([(code, 1)], "k STRING, v INT")
    with pytest.raises(PySparkException) as excinfo:
        group_by(rows, "v", row_kind="k").agg(n=embedded["count"]()).collect()
    assert re.search(message, str(error_of(excinfo.value)))
    numbered_rows = rows.selectExpr("2 AS `__$operation`", "v")
    with pytest.raises(RejectedError, match="SQL Server"):
        group_by(numbered_rows, "v", row_kind="__$operation")
    kinds = {"1": "-D", "2": "+I", "3": "-U", "4": "+U"}
    result = group_by(numbered_rows, "v", row_kind="__$operation", row_kinds=kinds).agg(n=embedded["count"]())
    assert [tuple(row) for row in result.collect()] == [(1, 1)]


def test_rows_of_dms_delete_by_their_keys(classic: Any) -> None:
    """I, U and D come with the whole new row; the columns of a deleted row are not read."""
    rows = [("I", 1, "a", 1), ("U", 1, "b", 2), ("I", 2, "c", 3), ("D", 2, None, 4)]
    frame = classic.createDataFrame(rows, "Op STRING, id INT, v STRING, at INT")
    result = upserts(frame, keys="id", sequence_by="at", deleted="Op = 'D'")
    assert [(row.id, row.v) for row in result.collect()] == [(1, "b")]


def test_spark_without_try_cast_says_what_needs_it(classic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 3.5 has no cast that gives NULL for a wrong text. Its users are told what needs it, and what to do."""
    row = '{"id": 1, "name": "x", "raw": "AP8Q", "tags": ["a", 5], "of": {"a": {"n": 1}}}'
    event = f'{{"type": "update", "data": {row}, "old": {{"name": null, "tags": []}}}}'
    df = classic.createDataFrame([(event,), (event.replace('"n": 1', '"n": "x"'),)], "value STRING")
    monkeypatch.delattr(Column, "try_cast", raising=False)
    remedy = "need Spark 4.0 or later, .*; read the changes with Debezium"
    with pytest.raises(RejectedError, match=f"the values of from_canal, which are texts, {remedy}") as excinfo:
        from_canal(df, "id BIGINT")
    assert excinfo.value.code == "SETTINGS"
    for type_ in ("DECIMAL(10,2)", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        said = rf"columns of {re.escape(type_)}, as x of from_maxwell, {remedy}"
        for schema in (f"id BIGINT, x {type_}", f"x ARRAY<STRUCT<y: MAP<STRING, {type_}>>>"):
            with pytest.raises(RejectedError, match=said):
                from_maxwell(df, schema)
    schema = "id BIGINT, name STRING, raw BINARY, tags ARRAY<STRING>, of MAP<STRING, STRUCT<n: INT>>"
    found = from_maxwell(df.limit(1), schema).collect()
    same = {"id": 1, "raw": bytearray(b"\x00\xff\x10"), "of": {"a": {"n": 1}}}
    assert [each.asDict(recursive=True) for each in found] == [
        {"row_kind": "-U", "name": None, "tags": [], **same},
        {"row_kind": "+U", "name": "x", "tags": ["a", "5"], **same},
    ]
    with pytest.raises(Exception, match=r"of\.n of an event has the value 'x', which cannot be cast to INT"):
        from_maxwell(df, schema).collect()


@since_spark("4.0", "streams")
@pytest.mark.every_turn
def test_a_copy_of_a_table_whose_events_tell_no_order(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """The group of a key has at most one row after an epoch, in whatever order its changes were retracted and added."""
    (events := tmp_path / "events").mkdir()
    rows = from_maxwell(classic.readStream.schema("value STRING").text(str(events)), SCHEMA)
    last_of = embedded["max"]
    copy = group_by(rows, "id", row_kind="row_kind", materialize=True, buckets=2).agg(
        customer=last_of("customer"), amount=last_of("amount")
    )
    rng = random.Random(5)
    table: dict[int, Row] = {}
    for epoch in range(2):
        lines = []
        for _ in range(40):
            row = order(rng.randrange(6), rng.choice(["ann", "bob", None]), rng.randrange(-3, 3))
            if (before := table.get(row["id"])) is None:
                lines.append({"type": "insert", "data": row})
            elif rng.random() < 0.4:
                lines.append({"type": "delete", "data": table.pop(row["id"])})
                continue
            else:
                changed = {name: value for name, value in before.items() if value != row[name]}
                lines.append({"type": "update", "data": row, "old": changed})
            table[row["id"]] = row
        (events / f"{epoch}.json").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
        query = write_table(
            copy,
            f"duckdb:///{tmp_path}/copy.duckdb?table=orders",
            keys=["id"],
            checkpoint=tmp_path / "checkpoint",
            trigger="available now",
            create=True,
        )
        assert query.awaitTermination(600)
        with duckdb.connect(tmp_path / "copy.duckdb") as connection:
            copied = connection.sql("SELECT id, customer, amount FROM orders ORDER BY id").fetchall()
        assert copied == [tuple(table[key].values()) for key in sorted(table)]
