"""Orders that a database changes, through a stream, into a table of totals: Debezium in, MERGE out.

`merge_statement` is standard SQL. Spark runs it on tables whose format has row-level changes, such as Delta and
Iceberg; databases such as PostgreSQL and DuckDB run it themselves. An epoch that comes again after a failure merges the
same rows again, so the table is exact.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from foldflight import connect
from foldflight.spark import from_debezium, group_by

ORDERS = "id BIGINT, customer STRING, amount BIGINT"  # the columns of the database's table, as they are in JSON


def totals(events: DataFrame) -> DataFrame:
    """The stream: one row for each customer whose total has changed, with what became of it in `row_kind`."""
    functions = connect("embedded:")
    orders = from_debezium(events, ORDERS)
    return group_by(orders, "customer", row_kind="row_kind").agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )


def merge_statement(table: str, changes: str, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Return the statement that brings a table up to date with the changes of one epoch.

    Args:
        table: The table; it has `columns`.
        changes: The changes: `row_kind` and `columns`, and for each key one row beside its `-U`, which is not needed.
        keys: The columns that identify a row. NULL is a key, too.
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
    """  # noqa: S608 - names are the program's own


def merge_into(table: str, keys: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """Return what `foreachBatch` calls to merge each epoch into a table of Spark's catalog.

    totals(events).writeStream.foreachBatch(merge_into("totals", ["customer"])).outputMode("update").start()
    """

    def merge(batch: DataFrame, _epoch: int) -> None:
        batch.createOrReplaceTempView("changes")
        columns = [column for column in batch.columns if column != "row_kind"]
        batch.sparkSession.sql(merge_statement(table, "changes", keys, columns))

    return merge
