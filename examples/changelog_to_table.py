"""Maintain a table of totals from a database's change events: Debezium events in, MERGE statements out.

`merge_statement` is standard SQL. Spark runs it only on table formats with row-level changes, such as Delta and
Iceberg. PySpark contains no such format (on a table of Parquet files the statement fails), so the tests of this example
run the statement in DuckDB, and only parse it in Spark. PostgreSQL runs it too. If an epoch is repeated after a
failure, it merges the same rows again, so the table stays exact.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from foldflight import connect
from foldflight.spark import from_debezium, group_by

ORDERS = "id BIGINT, customer STRING, amount BIGINT"  # the columns of the database's table, with their types in JSON


def totals(events: DataFrame) -> DataFrame:
    """Return the stream of totals: one row for each customer whose total has changed, with its `row_kind`."""
    functions = connect("embedded:")
    orders = from_debezium(events, ORDERS)
    return group_by(orders, "customer", row_kind="row_kind").agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )


def merge_statement(table: str, changes: str, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Return the statement that applies the changes of one epoch to a table.

    Args:
        table: The table, with the columns `columns`.
        changes: The changes: `row_kind` and `columns`. Each key has at most one row besides its `-U`, which is ignored.
        keys: The columns that identify a row. NULL is a valid key.
        columns: All columns of the table.
    """
    values = [column for column in columns if column not in keys]
    same = " AND ".join(f"kept.{key} IS NOT DISTINCT FROM new.{key}" for key in keys)
    return f"""
        MERGE INTO {table} AS kept
        USING (SELECT * FROM {changes} WHERE row_kind <> '-U') AS new
        ON {same}
        WHEN MATCHED AND new.row_kind = '-D' THEN DELETE
        WHEN MATCHED THEN UPDATE SET {", ".join(f"{column} = new.{column}" for column in values)}
        WHEN NOT MATCHED AND new.row_kind <> '-D' THEN
            INSERT ({", ".join(columns)}) VALUES ({", ".join(f"new.{column}" for column in columns)})
    """  # noqa: S608 - all names come from this program


def merge_into(table: str, keys: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch` that merges each epoch into a table of Spark's catalog.

    totals(events).writeStream.foreachBatch(merge_into("totals", ["customer"])).outputMode("update").start()
    """

    def merge(batch: DataFrame, _epoch: int) -> None:
        batch.createOrReplaceTempView("changes")
        columns = [column for column in batch.columns if column != "row_kind"]
        batch.sparkSession.sql(merge_statement(table, "changes", keys, columns))

    return merge
