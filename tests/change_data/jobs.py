"""What drivers of Spark do in these tests. Kafka is read and written by Spark's own source and sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from foldflight import connect
from foldflight.spark import from_debezium, group_by, write_table

ORDERS = (
    "id BIGINT, customer STRING, amount DECIMAL(10,2), qty INT, price DOUBLE, ordered TIMESTAMP_NTZ, paid TIMESTAMP, "
    "due DATE, note STRING"
)


def events(spark: Any, broker: str, topic: str, *, is_stream: bool) -> DataFrame:
    """Return what is in a topic, without what transactions aborted."""
    reader = spark.readStream if is_stream else spark.read
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    return reader.format("kafka").options(**options).option("kafka.isolation.level", "read_committed").load()


def totals(changes: DataFrame) -> DataFrame:
    functions = connect("embedded:")
    return group_by(changes, "customer", row_kind="row_kind", materialize=True, buckets=2).agg(
        amount=functions["sum"]("amount"), orders=functions["count"](), last=functions["max"]("ordered")
    )


def orders_to_table(spark: Any, broker: str, topic: str, target: str, checkpoint: Path) -> None:
    """Bring a table of totals up to date with all that is in Kafka."""
    changes = from_debezium(events(spark, broker, topic, is_stream=True), ORDERS)
    written = {"keys": ["customer"], "checkpoint": checkpoint, "trigger": "available now", "create": True}
    query = write_table(totals(changes), target, **written)
    query.awaitTermination()
