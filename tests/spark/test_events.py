"""Changelogs as events: read again they are the same rows, of every type, whole or epoch by epoch."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from foldflight import RejectedError
from foldflight.client import Functions
from foldflight.spark import from_debezium, group_by, schema_of, to_debezium, to_upserts, upserts
from foldflight.spark.errors import error_of
from tests.spark.test_stream import Stream
from tests.spark_sessions import since_spark

TYPES = {
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "number": "INT",
    "big": "BIGINT",
    "single": "FLOAT",
    "double": "DOUBLE",
    "money": "DECIMAL(10,2)",
    "wide": "DECIMAL(38,18)",
    "whole": "DECIMAL(20,0)",
    "name": "STRING",
    "data": "BINARY",
    "day": "DATE",
    "local": "TIMESTAMP_NTZ",
    "instant": "TIMESTAMP",
    "numbers": "ARRAY<DECIMAL(10,2)>",
    "days": "ARRAY<DATE>",
    "by_name": "MAP<STRING, TIMESTAMP_NTZ>",
}
DDL = ", ".join(["id BIGINT", *(f"{name} {type_}" for name, type_ in TYPES.items())])
CORNERS: dict[str, list[Any]] = {
    "flag": [True, False],
    "tiny": [-128, 127],
    "small": [-(2**15), 2**15 - 1],
    "number": [-(2**31), 0, 2**31 - 1],
    "big": [-(2**63), 2**63 - 1],
    "single": [0.1, -0.0, 1e-45, 3.4028234663852886e38, math.nan, math.inf],
    "double": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 2.0**60, math.nan, -math.inf],
    "money": [Decimal("99999999.99"), Decimal("-0.01"), Decimal("1.28"), Decimal("-1.28")],
    "wide": [Decimal("9" * 20 + "." + "9" * 18), Decimal("-" + "9" * 20 + "." + "9" * 18), Decimal(0)],
    "whole": [Decimal(10**20 - 1), Decimal(-(10**20) + 1)],
    "name": ["", "null", '"\\\n\t', "\N{PILE OF POO}", "1234", "2026-01-01", "\0"],
    "data": [b"", b"\0\xff", b"abcd"],
    "day": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    "local": [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(9999, 12, 31, 23, 59)],
    "instant": [dt.datetime(1900, 1, 1, 1, 2, 3, 4, dt.UTC), dt.datetime(2026, 3, 29, 1, 30, 0, 5, dt.UTC)],
}


def draw_value(draw: random.Random, name: str) -> Any:
    """Return a value of a column, NULL in one of five rows."""
    if draw.random() < 0.2:
        return None
    if name == "numbers":
        return [draw_value(draw, "money") for _ in range(draw.randrange(4))]
    if name == "days":
        return [draw_value(draw, "day") for _ in range(draw.randrange(4))]
    if name == "by_name":
        return {draw.choice(CORNERS["name"]): draw_value(draw, "local") for _ in range(draw.randrange(3))}
    return draw.choice(CORNERS[name])


def texts(rows: DataFrame, names: list[str]) -> Counter[str]:
    """Return rows as texts, in which NaN equals itself."""
    return Counter(repr([row[name] for name in names]) for row in rows.collect())


@pytest.mark.every_turn
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_type_is_read_again(classic: Any, seed: int) -> None:
    """Types come from the schema block or from the user, with and without keys."""
    draw = random.Random(seed)
    rows = [(number, *(draw_value(draw, name) for name in TYPES)) for number in range(60)]
    names = ["id", *TYPES]
    table = classic.createDataFrame(rows, DDL)
    events = to_debezium(table, keys="id").localCheckpoint()
    expected = texts(table, names)
    assert expected.total() == 60
    schema = schema_of(events)
    assert [(each.name, each.dataType.simpleString()) for each in schema] == [
        (each.name, each.dataType.simpleString()) for each in table.schema
    ]
    assert texts(from_debezium(events, schema), names) == expected
    assert texts(from_debezium(events, DDL, keys="id"), names) == expected
    again = to_debezium(from_debezium(events, schema, keys="id"), keys="id")
    payload = "get_json_object(value, '$.payload.after') AS row"
    assert texts(again.selectExpr("key", payload), ["key", "row"]) == texts(
        events.selectExpr("key", payload), ["key", "row"]
    )


@pytest.mark.parametrize("selected", [("key", "value"), ("value",), ("get_json_object(value, '$.payload') AS value",)])
def test_deleted_rows_without_values_are_read_again(classic: Any, selected: tuple[str, ...]) -> None:
    """The old row of a changelog is whole; one of a database may hold the key only, and would be refused."""
    changelog_rows = [("+I", 1, None, None), ("-D", 1, None, None)]
    columns = "id BIGINT, n BIGINT, t STRING"
    rows = classic.createDataFrame(changelog_rows, f"row_kind STRING, {columns}").coalesce(1)
    read = from_debezium(to_debezium(rows, keys="id").selectExpr(*selected), columns)
    assert [tuple(row) for row in read.collect()] == changelog_rows


@pytest.mark.every_turn
@since_spark("4.1", "TIME")
def test_times_of_a_day_are_read_again(classic: Any) -> None:
    """They are written as MicroTime."""
    classic.conf.set("spark.sql.timeType.enabled", "true")
    table = classic.sql("SELECT 1 AS id, TIME'23:59:59.999999' AS at UNION ALL SELECT 2, NULL")
    events = to_debezium(table, keys="id")
    assert '"name":"io.debezium.time.MicroTime","version":1' in events.head().value.replace(" ", "")
    assert texts(from_debezium(events, schema_of(events)), ["id", "at"]) == texts(table, ["id", "at"])


@since_spark("4.1", "TIME")
def test_the_setting_that_times_need_is_named(classic: Any) -> None:
    """A batch keeps rows by Spark's own aggregates, which take no TIME unless a setting allows it."""
    classic.conf.set("spark.sql.timeType.enabled", "false")
    table = classic.sql("SELECT 1 AS id, 1 AS lsn, TIME'23:59:59' AS at")
    with pytest.raises(RejectedError, match=r"spark\.sql\.timeType\.enabled=true") as excinfo:
        upserts(table, keys="id", sequence_by="lsn")
    assert excinfo.value.code == "SETTINGS"


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("struct(1 AS a) AS c", "struct<a:int>"),
        ("array(struct(1 AS a)) AS c", "array<struct<a:int>>"),
        ("map(1, 'a') AS c", "map<int,string>"),
        ("interval 1 day AS c", "interval day"),
        ("interval 1 month AS c", "interval month"),
        ("NULL AS c", "void"),
    ],
)
def test_types_without_a_representation_are_refused(classic: Any, column: str, type_: str) -> None:
    """By the name of the column, before the query starts."""
    with pytest.raises(RejectedError, match=f"the column c is {type_}, which has no exact representation") as excinfo:
        to_debezium(classic.range(1).selectExpr("id", column), keys="id")
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.every_turn
@pytest.mark.parametrize("write", [to_debezium, to_upserts])
def test_mistakes_are_refused(classic: Any, write: Any) -> None:
    """Before the query starts, or at the row."""
    df = classic.range(1)
    with pytest.raises(RejectedError, match="the key 'ident' is not a column among id"):
        write(df, keys="ident")
    with pytest.raises(RejectedError, match="keys is empty"):
        write(df, keys=[])
    with pytest.raises(RejectedError, match="the rows have dead letters"):
        write(df.withColumn("dead_letter", sf.lit(None)), keys="id")
    null = df.selectExpr("nullif(id, 0) AS id")
    for rows in (null, null.selectExpr("'+I' AS row_kind", "id")):
        with pytest.raises(PySparkException) as excinfo:
            write(rows, keys="id").collect()
        error = error_of(excinfo.value)
        assert error is not None
        assert error.message.startswith("the key id of a change is NULL")


class Orders(Stream):
    """Changes of orders; `sent` has the events of all epochs, in their order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[Any] = []

    def run(self, checkpoint: str = "checkpoint") -> list[Any]:
        outputs = super().run(checkpoint)
        self.sent += [row for epoch in outputs for row in epoch]
        return outputs


def order(op: str, customer: str, amount: int) -> dict[str, Any]:
    return {"op": op, "customer": customer, "amount": amount, "qty": 1, "x": 1.0}


EPOCHS = [
    [order("+I", "ann", 3), order("+I", "bob", 4)],
    [order("+I", "ann", 5)],
    [order("-D", "bob", 4), order("+I", "cid", 1)],
    [order("+I", "bob", 9), order("-D", "cid", 1)],
]
TABLE = {"ann": (2, 8), "bob": (1, 9)}


@pytest.mark.every_turn
def test_results_are_the_source_of_the_next_query(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """The events of all epochs, over a restart, with some of them sent again, lead to the table."""

    def publish(df: DataFrame) -> DataFrame:
        totals = group_by(df, "customer", row_kind="op", emit="changelog", buckets=2).agg(
            n=embedded["count"](), total=embedded["sum"]("amount")
        )
        return to_debezium(totals, keys="customer")

    stream = Orders(classic, tmp_path, publish)
    for number, rows in enumerate(EPOCHS):
        stream.write(rows)
        if number != 2:  # two epochs in one run
            stream.run()
    payloads = [json.loads(each["value"])["payload"] for each in stream.sent]
    assert Counter((each["op"], (each["after"] or each["before"])["customer"]) for each in payloads) == Counter(
        [("c", "ann"), ("c", "bob"), ("u", "ann"), ("d", "bob"), ("c", "cid"), ("c", "bob"), ("d", "cid")]
    )
    (update,) = [each for each in payloads if each["op"] == "u"]
    assert (update["before"]["total"], update["after"]["total"]) == (3, 8)
    positions = [each["source"]["lsn"] for each in payloads]
    assert positions == sorted(positions)
    assert len(set(positions)) == 4  # one for each epoch
    keys = {each["key"] for each in stream.sent}
    assert {json.loads(key)["payload"]["customer"] for key in keys} == {"ann", "bob", "cid"}

    sent_events = [*enumerate(each["value"] for each in stream.sent)]
    sent_events += [(len(sent_events) + at, value) for at, value in sent_events[1:4]]  # at later offsets
    random.Random(0).shuffle(sent_events)
    events = classic.createDataFrame(sent_events, "offset BIGINT, value STRING")
    read = from_debezium(events, "customer STRING, n BIGINT, total BIGINT", keys="customer")
    assert {row["customer"]: (row["n"], row["total"]) for row in read.collect()} == TABLE


@pytest.mark.every_turn
def test_keys_and_values_are_the_source_of_the_next_query(classic: Any, embedded: Functions, tmp_path: Path) -> None:
    """A compacted topic has the last value of each key, and a tombstone deletes it."""

    def publish(df: DataFrame) -> DataFrame:
        totals = group_by(df, "customer", row_kind="op", buckets=2).agg(
            n=embedded["count"](), total=embedded["sum"]("amount")
        )
        return to_upserts(totals, keys="customer")

    stream = Orders(classic, tmp_path, publish)
    for rows in EPOCHS:
        stream.write(rows)
    stream.run()
    assert {each["key"] for each in stream.sent} == {f'{{"customer":"{name}"}}' for name in ("ann", "bob", "cid")}
    topic = [(at, each["key"], each["value"]) for at, each in enumerate(stream.sent)]
    assert ('{"customer":"ann"}', '{"customer":"ann","n":2,"total":8}') in [each[1:] for each in topic]
    assert [each[1:] for each in topic if each[2] is None] == [
        ('{"customer":"bob"}', None),
        ('{"customer":"cid"}', None),
    ]
    table = classic.createDataFrame(topic, "offset BIGINT, key STRING, value STRING")
    key = sf.from_json("key", "customer STRING")["customer"].alias("customer")
    value = sf.from_json("value", "n BIGINT, total BIGINT")
    rows = table.select(key, value["n"].alias("n"), value["total"].alias("total"), "offset", "value")
    read = upserts(rows, keys="customer", sequence_by="offset", deleted="value IS NULL")
    assert {row["customer"]: (row["n"], row["total"]) for row in read.collect()} == TABLE


def test_values_that_to_upserts_writes_are_exact(classic: Any) -> None:
    """It writes microseconds, time zones, decimals, bytes and NULL without a loss."""
    df = classic.sql(
        "SELECT 1L AS id, TIMESTAMP'2026-01-01 00:00:00.000001Z' AS at, "
        "TIMESTAMP_NTZ'2026-01-01 00:00:00.000001' AS here, 1.10BD AS d, X'00ff' AS b, CAST(NULL AS INT) AS n"
    )
    for changes in (df, df.selectExpr("'+I' AS row_kind", "*")):
        (row,) = to_upserts(changes, keys=["id"]).collect()
        assert row["key"] == '{"id":1}'
        assert json.loads(row["value"], parse_float=str) == {
            "id": 1,
            "at": "2026-01-01T00:00:00.000001Z",
            "here": "2026-01-01T00:00:00.000001",
            "d": "1.10",
            "b": "AP8=",
            "n": None,
        }
