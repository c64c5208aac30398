"""Keep a table of totals up to date from a database's change events: Debezium events in, a table out.

    spark-submit changelog_to_table.py kafka:9092 shop.orders "postgresql://me@host/db?table=totals" /checkpoints/totals

The table is created at the first start. Each epoch reaches it exactly once, also if the driver is killed.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from foldflight import connect
from foldflight.spark import configure, from_debezium, group_by, write_table

ORDERS = "id BIGINT, customer STRING, amount BIGINT"  # the columns of the database's table, with their types in JSON


def totals(events: DataFrame) -> DataFrame:
    """Return the stream of totals: one row for each customer whose total has changed, with its `row_kind`."""
    functions = connect("embedded:")
    # ALTER TABLE orders REPLICA IDENTITY FULL: without it the old row of a delete has its key only.
    orders = from_debezium(events, ORDERS, replica_identity="full")
    return group_by(orders, "customer", row_kind="row_kind").agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )


def main(servers: str, topic: str, target: str, checkpoint: str) -> None:
    """Read the events of a topic for ever."""
    spark = SparkSession.builder.getOrCreate()
    configure(spark)
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    # Otherwise Kafka also gives the events of transactions that a connector has aborted and then sends again.
    kafka |= {"kafka.isolation.level": "read_committed"}
    events = spark.readStream.format("kafka").options(**kafka).load()
    query = write_table(
        totals(events), target, keys=["customer"], checkpoint=checkpoint, trigger="10 seconds", create=True
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
