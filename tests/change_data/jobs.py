"""What drivers of Spark do in these tests. Kafka is read and written by Spark's own source and sink."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from foldflight import connect
from foldflight.spark import from_debezium, group_by, write_table
from foldflight.spark.errors import error_of
from foldflight.spark.tables.duckdb import DuckDBTable
from tests.change_data.matrix import in_spark

BEFORE_TABLE, AFTER_TABLE = "before the commit of the table", "between the commits of the table and of Spark"
POINTS = (BEFORE_TABLE, AFTER_TABLE)
WORDS: Final = {"decimals": "precise", "times": {"ordered": "microseconds"}}
ORDERS = (
    "id BIGINT, customer STRING, amount DECIMAL(10,2), qty INT, price DOUBLE, ordered TIMESTAMP_NTZ, paid TIMESTAMP, "
    "due DATE, note STRING"
)


def events(spark: Any, broker: str, topic: str, *, is_stream: bool, isolation: str = "read_committed") -> DataFrame:
    """Return what is in a topic, by default without what transactions aborted."""
    reader = spark.readStream if is_stream else spark.read
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    return reader.format("kafka").options(**options).option("kafka.isolation.level", isolation).load()


def totals(changes: DataFrame) -> DataFrame:
    functions, buckets = connect("embedded:"), {"buckets": 2} if changes.isStreaming else {}
    return group_by(changes, "customer", row_kind="row_kind", materialize=True, **buckets).agg(
        amount=functions["sum"]("amount"), orders=functions["count"](), last=functions["max"]("ordered")
    )


def orders_to_table(spark: Any, broker: str, topic: str, target: str, checkpoint: Path, *, kill: str = "") -> None:
    """Bring a table of totals up to date with all that is in Kafka, or kill this process at a point of an epoch."""
    words = WORDS if topic.startswith("payload") else {}
    changes = from_debezium(events(spark, broker, topic, is_stream=True), ORDERS, **words)
    apply = DuckDBTable.apply

    def killing(table: DuckDBTable, query: str, epoch: int, parts: Iterable[Any], *more: Any) -> None:
        read = list(parts)  # the states of the epoch are in the state store now
        if kill == BEFORE_TABLE:
            os.killpg(os.getpid(), signal.SIGKILL)
        apply(table, query, epoch, read, *more)
        os.killpg(os.getpid(), signal.SIGKILL)

    if kill:
        DuckDBTable.apply = killing  # type: ignore[method-assign] # the process does not live on
    written = {"keys": ["customer"], "checkpoint": checkpoint, "trigger": "available now", "create": True}
    write_table(totals(changes), target, **written).awaitTermination()


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
    declared = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    source = events(spark, broker, topic, is_stream=is_stream)
    # Rows of this table are mostly NULL, so deletes of them look like those that hold the key only.
    whole = {} if "keys" in words else {"replica_identity": "full"}
    rows = from_debezium(source, f"id BIGINT, {declared}", **whole, **words)
    pairs = ", ".join(f"STRUCT('{name}' AS name, {in_spark(name, type_)} AS value)" for name, type_ in types.items())
    cells = rows.selectExpr("row_kind", f"explode(ARRAY({pairs})) AS cell").select("row_kind", "cell.*")
    counted = group_by(cells, "name", "value", row_kind="row_kind", **({"buckets": 1} if is_stream else {}))
    return counted.agg(rows=connect("embedded:")["count"]())


def values_in_batch(spark: Any, *arguments: Any) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Return what `values` has of the columns that can be read, and why each other one is refused."""
    broker, topic, types, words = arguments
    types, refused = dict(types), {}
    while True:
        try:
            found = values(spark, broker, topic, types, words, is_stream=False).collect()
        except Exception as error:
            message = str(error_of(error) or error)
            name = re.search(r"the column (\w+)", message)
            if name is None or types.pop(name[1], None) is None:
                raise RuntimeError(message) from None  # errors of Spark cannot go to another process
            refused[name[1]] = message.partition("\n")[0]
            continue
        return [tuple(row) for row in found], refused


def values_to_table(
    spark: Any, broker: str, topic: str, types: dict[str, str], words: dict[str, Any], target: str, checkpoint: Path
) -> None:
    """Bring a table of `values` up to date with all that is in Kafka."""
    changes = values(spark, broker, topic, types, words, is_stream=True)
    written = {"keys": ["name", "value"], "checkpoint": checkpoint, "trigger": "available now", "create": True}
    write_table(changes, target, **written).awaitTermination()
