"""Keep a table of totals up to date from a database's change events: Debezium events in, a table out.

    spark-submit changelog_to_table.py kafka:9092 shop.orders "postgresql://me@host/db?table=totals" /checkpoints/totals

The table is created at the first start. Each epoch reaches it exactly once, also if the driver is killed.

The events have whole old rows, after `ALTER TABLE orders REPLICA IDENTITY FULL`. If the table of the database has the
default replica identity, its primary key, give `default` as the last argument: then the state keeps the last row of
each key. A checkpoint is for one of both.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from foldflight import connect
from foldflight.spark import configure, from_debezium, group_by, write_table

ORDERS = "id BIGINT, customer STRING, amount BIGINT"  # the columns of the database's table, with their types in JSON


def totals(events: DataFrame, replica_identity: str = "full") -> DataFrame:
    """Return the stream of totals: one row for each customer whose total has changed, with its `row_kind`."""
    functions = connect("embedded:")
    if replica_identity == "full":
        orders = from_debezium(events, ORDERS, replica_identity="full")
    else:  # updates have no old row, and deletes its key only, so the state keeps the last row of each key
        orders = from_debezium(events, ORDERS, keys=["id"])
    return group_by(orders, "customer", row_kind="row_kind").agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )


def main(servers: str, topic: str, target: str, checkpoint: str, replica_identity: str = "full") -> None:
    """Read the events of a topic for ever."""
    spark = SparkSession.builder.getOrCreate()
    configure(spark)
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    # Otherwise Kafka also gives the events of transactions that a connector has aborted and then sends again.
    kafka |= {"kafka.isolation.level": "read_committed"}
    events = spark.readStream.format("kafka").options(**kafka).load()
    result = totals(events, replica_identity)
    query = write_table(result, target, keys=["customer"], checkpoint=checkpoint, trigger="10 seconds", create=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
