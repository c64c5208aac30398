"""What drivers of Spark do in these tests. Kafka is read and written by Spark's own source and sink."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from foldflight import connect
from foldflight.ext.tables.duckdb import DuckDBTable
from foldflight.spark import from_debezium, group_by, schema_of, to_debezium, to_upserts, upserts, write_table
from foldflight.spark.errors import error_of
from tests.change_data.matrix import in_spark
from tests.spark_sessions import PARTITIONS

BEFORE_TABLE, AFTER_TABLE = "before the commit of the table", "between the commits of the table and of Spark"
POINTS = (BEFORE_TABLE, AFTER_TABLE)
TABLE, EVENTS, UPSERTS = "a table", "events in Kafka", "keys and values in Kafka"
TARGETS = (TABLE, EVENTS, UPSERTS)
SOURCES: Final = {TABLE: "payload.inv.orders", EVENTS: "spread.inv.orders_key", UPSERTS: "aborted.inv.orders"}
FIRST, AMID, LAST = "before the first change is written", "amid the changes", "before the commit of Spark"
DEATHS = (FIRST, AMID, LAST)
TOTALS: Final = "amount DECIMAL(38,2), orders BIGINT, last TIMESTAMP_NTZ"
WORDS: Final = {"decimals": "precise", "times": {"ordered": "microseconds"}}
ORDERS = (
    "id BIGINT, customer STRING, amount DECIMAL(10,2), qty INT, price DOUBLE, ordered TIMESTAMP_NTZ, paid TIMESTAMP, "
    "due DATE, note STRING"
)


def events(spark: Any, broker: str, topic: str, *, is_stream: bool, isolation: str = "read_committed") -> DataFrame:
    """Return the events of a topic, by default without those of aborted transactions."""
    reader = spark.readStream if is_stream else spark.read
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    return reader.format("kafka").options(**options).option("kafka.isolation.level", isolation).load()


def totals(changes: DataFrame, **options: Any) -> DataFrame:
    functions, buckets = connect("embedded:"), {"buckets": 2} if changes.isStreaming else {}
    return group_by(changes, "customer", row_kind="row_kind", materialize=True, **buckets, **options).agg(
        amount=functions["sum"]("amount"), orders=functions["count"](), last=functions["max"]("ordered")
    )


def orders_to_table(spark: Any, broker: str, topic: str, target: str, checkpoint: Path, *, kill: str = "") -> None:
    """Bring a table of totals up to date with all that is in Kafka, or kill this process at a point of an epoch."""
    words = WORDS if topic.startswith("payload") else {}
    changes = from_debezium(events(spark, broker, topic, is_stream=True), ORDERS, **words)
    apply = DuckDBTable.apply

    def apply_and_kill(table: DuckDBTable, query: str, epoch: int, parts: Iterable[Any], *more: Any) -> None:
        read = list(parts)  # the states of the epoch are in the state store now
        if kill == BEFORE_TABLE:
            os.killpg(os.getpid(), signal.SIGKILL)
        apply(table, query, epoch, read, *more)
        os.killpg(os.getpid(), signal.SIGKILL)

    if kill:
        DuckDBTable.apply = apply_and_kill  # type: ignore[method-assign] # the process does not live on
    options = {"keys": ["customer"], "checkpoint": checkpoint, "trigger": "available now", "create": True}
    write_table(totals(changes), target, **options).awaitTermination()


def totals_everywhere(spark: Any, broker: str, folder: Path, deaths: dict[str, str]) -> dict[str, str]:
    """Bring totals up to date in targets at once, each by a query of its own.

    Args:
        spark: The session.
        broker: The address of the broker.
        folder: For the table and the checkpoints.
        deaths: The targets, and where the first epoch of each query ends that comes there; "" lets it end well.

    Returns:
        dict[str, str]: Why the queries ended that did not end well.
    """
    start_times, end_times = {}, {}
    spark.conf.set("spark.sql.shuffle.partitions", 1)  # the partitions of a checkpoint stay, and these are many starts
    with dying_table(deaths.get(TABLE, "")):
        for target, death in deaths.items():
            start_times[target] = _to_target(spark, broker, folder, target, death)
        for target, query in start_times.items():
            try:
                query.awaitTermination()
            except Exception as error:
                end_times[target] = str(error)  # errors of Spark cannot go to another process
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    for target in (EVENTS, UPSERTS):
        if deaths.get(target) == LAST and target not in end_times:
            # As if the driver had died before this file was written: Spark repeats the epoch.
            commits = (folder / target / "commits").glob("[0-9]*")
            max(commits, key=lambda path: int(path.name)).unlink()
            end_times[target] = LAST
    return end_times


def _to_target(spark: Any, broker: str, folder: Path, target: str, death: str) -> Any:
    if target == TABLE:
        changes = from_debezium(events(spark, broker, SOURCES[target], is_stream=True), ORDERS, **WORDS)
        url, options = f"duckdb://{folder / 'totals.duckdb'}?table=totals", {"trigger": "available now", "create": True}
        return write_table(totals(changes), url, keys=["customer"], checkpoint=folder / target, **options)
    read = events(spark, broker, SOURCES[target], is_stream=True)
    keys = "id" if target == EVENTS else None
    changes = totals(from_debezium(read, ORDERS, keys=keys, **WORDS), emit="changelog")
    events_to_send = (to_debezium if target == EVENTS else to_upserts)(changes, keys="customer")
    if death in (FIRST, AMID):
        events_to_send = events_to_send.mapInArrow(_dying(death), events_to_send.schema)
    topic = {"kafka.bootstrap.servers": broker, "topic": topic_of(target, folder)}
    writer = (
        events_to_send.writeStream.format("kafka").options(**topic).option("checkpointLocation", str(folder / target))
    )
    return writer.outputMode("update").trigger(availableNow=True).start()


def topic_of(target: str, folder: Path) -> str:
    return f"{target}.{folder.name}".replace(" ", "-")


def _dying(point: str) -> Any:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if point == AMID:
                yield batch.slice(0, 1)
            raise RuntimeError(point)

    return rows


@contextmanager
def dying_table(point: str) -> Iterator[None]:
    """Let epochs of DuckDB end at a point."""
    apply = DuckDBTable.apply

    def cut(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        yield from parts
        raise RuntimeError(point)

    def dying(table: DuckDBTable, query: str, epoch: int, parts: Iterable[pa.Table], *more: Any) -> None:
        if point == FIRST:
            list(parts)  # the states of the epoch are in the state store now
        else:
            apply(table, query, epoch, cut(parts) if point == AMID else parts, *more)
        raise RuntimeError(point)

    if point:
        DuckDBTable.apply = dying  # type: ignore[method-assign]
    try:
        yield
    finally:
        DuckDBTable.apply = apply  # type: ignore[method-assign]


def totals_in_kafka(spark: Any, broker: str, target: str, folder: Path) -> list[tuple[Any, ...]]:
    """Return the totals that a query has written to Kafka, as the next system reads them."""
    stored_events = events(spark, broker, topic_of(target, folder), is_stream=False)
    if target == EVENTS:
        rows = from_debezium(stored_events, schema_of(stored_events), keys="customer")
    else:
        key = sf.from_json(sf.col("key").cast("string"), "customer STRING")["customer"].alias("customer")
        value = sf.from_json(sf.col("value").cast("string"), TOTALS).alias("row")
        parsed_events = stored_events.select(key, "offset", sf.col("value").isNull().alias("gone"), value)
        rows = upserts(
            parsed_events.select("customer", "offset", "gone", "row.*"),
            keys="customer",
            sequence_by="offset",
            deleted="gone",
        )
    return [tuple(row) for row in rows.select("customer", "amount", "orders", "last").collect()]


def totals_in_batch(
    spark: Any, broker: str, topic: str, keys: str | None, isolation: str = "read_committed"
) -> list[tuple[Any, ...]]:
    """Return the totals of all that is in Kafka."""
    read = events(spark, broker, topic, is_stream=False, isolation=isolation)
    words = {} if topic.startswith("defaults") else WORDS
    changes = from_debezium(read, ORDERS, keys=keys, **words)
    return [tuple(row) for row in totals(changes).collect()]


def values(
    spark: Any, broker: str, topic: str, types: dict[str, str], words: dict[str, Any], *, is_stream: bool
) -> Any:
    """Return how often each column has each value, as texts: the columns `name`, `value`, `rows`."""
    columns_ddl = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    source = events(spark, broker, topic, is_stream=is_stream)
    # Rows of this table are mostly NULL, so deletes of them look like those that hold the key only.
    whole = {} if "keys" in words else {"replica_identity": "full"}
    rows = from_debezium(source, f"id BIGINT, {columns_ddl}", **whole, **words)
    pairs = ", ".join(f"STRUCT('{name}' AS name, {in_spark(name, type_)} AS value)" for name, type_ in types.items())
    cells = rows.selectExpr("row_kind", f"explode(ARRAY({pairs})) AS cell").select("row_kind", "cell.*")
    counts = group_by(cells, "name", "value", row_kind="row_kind", **({"buckets": 1} if is_stream else {}))
    return counts.agg(rows=connect("embedded:")["count"]())


def values_in_batch(spark: Any, *arguments: Any) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Return what `values` has of the columns that can be read, and why each other one is refused."""
    broker, topic, types, words = arguments
    types, refusal_of = dict(types), {}
    while True:
        try:
            result = values(spark, broker, topic, types, words, is_stream=False).collect()
        except Exception as error:
            message = str(error_of(error) or error)
            name = re.search(r"the column (\w+)", message)
            if name is None or types.pop(name[1], None) is None:
                raise RuntimeError(message) from None  # errors of Spark cannot go to another process
            refusal_of[name[1]] = message.partition("\n")[0]
            continue
        return [tuple(row) for row in result], refusal_of


def values_to_table(
    spark: Any, broker: str, topic: str, types: dict[str, str], words: dict[str, Any], target: str, checkpoint: Path
) -> None:
    """Bring a table of `values` up to date with all that is in Kafka."""
    changes = values(spark, broker, topic, types, words, is_stream=True)
    options = {"keys": ["name", "value"], "checkpoint": checkpoint, "trigger": "available now", "create": True}
    write_table(changes, target, **options).awaitTermination()
