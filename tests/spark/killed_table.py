"""A streaming query into a table, as a program that a test kills: `python -m tests.spark.killed_table FOLDER`.

The folder has the pickled target, and the point and the epoch at which the program kills itself.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from foldflight import connect
from foldflight.spark import group_by, write_table
from tests.spark.killed_query import session
from tests.tables.orders import DDL, KEYS

AMID, BETWEEN = "amid the parts of the epoch", "between the commits of the table and of Spark"
PART_ROWS = 5


def killing(apply: Callable[..., None], point: str, epoch_of_kill: int) -> Callable[..., None]:
    """Return `apply` of a target, which ends the process at a point of an epoch."""

    def kill(here: str, epoch: int) -> None:
        if (here, epoch) == (point, epoch_of_kill):
            os.kill(os.getpid(), signal.SIGKILL)

    def parts(epoch: int, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
        yield from changes
        kill(AMID, epoch)

    def wrapped(query: str, epoch: int, changes: Iterable[pa.Table], offsets: int | None = None) -> None:
        apply(query, epoch, parts(epoch, changes), offsets)
        kill(BETWEEN, epoch)

    return wrapped


def main(folder: Path) -> None:
    spark = session(folder)
    table = pickle.loads((folder / "target").read_bytes())
    table.prepare()
    point, _, epoch = (folder / "kill").read_text().partition("|")
    table.apply = killing(table.apply, point, int(epoch))
    orders = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    functions = connect("embedded:")
    live = group_by(orders, *KEYS, row_kind="op", buckets=4).agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )
    options = {"keys": KEYS, "checkpoint": folder / "checkpoint", "trigger": "available now", "part_rows": PART_ROWS}
    query = write_table(live, table, **options)
    print("STARTED", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
