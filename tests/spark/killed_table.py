"""A streaming query into a table, as a program that a test kills: `python -m tests.spark.killed_table FOLDER URL`.

It kills itself after an epoch whose number stands in a file of the folder, between the table's commit and Spark's.
"""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from foldflight import connect
from foldflight.spark import group_by, write_table
from foldflight.spark.tables.postgres import PostgresTable
from tests.spark.killed_query import session
from tests.tables.orders import DDL, KEYS
from tests.tables.replayed import COLUMNS


class Killing:
    """A target that ends the process after the commit of an epoch."""

    def __init__(self, target: PostgresTable, epochs: set[int], folder: Path) -> None:
        self.target, self.epochs, self.folder = target, epochs, folder

    def last_epoch(self, query: str) -> int | None:
        last = self.target.last_epoch(query)
        (self.folder / "last").write_text(str(last))
        return last

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table]) -> None:
        self.target.apply(query, epoch, changes)
        if epoch in self.epochs:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, url: str) -> None:
    spark = session(folder)
    table = PostgresTable(url, ("killed",), COLUMNS, KEYS, create=True, add_columns=False)
    table.prepare()
    orders = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    functions = connect("embedded:")
    live = group_by(orders, *KEYS, row_kind="op", buckets=4).agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )
    epochs = {int(each) for each in (folder / "kills").read_text().split()}
    target = Killing(table, epochs, folder)
    query = write_table(live, target, keys=KEYS, checkpoint=folder / "checkpoint", trigger="available now", part_rows=5)
    print("STARTED", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
