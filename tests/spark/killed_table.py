"""Streaming queries into tables, as a program that a test kills: `python -m tests.spark.killed_table FOLDER`.

Each folder in it is a query. It has the pickled target, and the point and the epoch at which the query stops. When all
queries with a point have stopped there, the program kills itself.
"""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from foldflight import connect
from foldflight.client import Functions
from foldflight.spark import group_by, write_table
from tests.spark.killed_query import session
from tests.tables.orders import DDL, KEYS

AMID, BETWEEN = "amid the parts of the epoch", "between the commits of the table and of Spark"
PART_ROWS = 5


class Kill:
    """Holds queries at their points, and kills the process when all of them are there."""

    def __init__(self, queries: int) -> None:
        self._lock, self._missing = threading.Lock(), queries

    def reach(self) -> None:
        """Wait for the end of the process, or of its main thread if a query fails."""
        with self._lock:
            self._missing -= 1
            if not self._missing:
                os.kill(os.getpid(), signal.SIGKILL)
        threading.main_thread().join()


def kill_at(apply: Callable[..., None], point: str, epoch_of_kill: int, kill: Kill) -> Callable[..., None]:
    """Return `apply` of a target, which stops at a point of an epoch."""

    def reach(here: str, epoch: int) -> None:
        if (here, epoch) == (point, epoch_of_kill):
            kill.reach()

    def parts(epoch: int, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
        yield from changes
        reach(AMID, epoch)

    def apply_and_kill(query: str, epoch: int, changes: Iterable[pa.Table], offsets: int | None = None) -> None:
        apply(query, epoch, parts(epoch, changes), offsets)
        reach(BETWEEN, epoch)

    return apply_and_kill


def start(spark: Any, folder: Path, functions: Functions, kill: Kill) -> Any:
    table = pickle.loads((folder / "target").read_bytes())
    table.prepare()
    point, _, epoch = (folder / "kill").read_text().partition("|")
    table.apply = kill_at(table.apply, point, int(epoch), kill)
    orders = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    live = group_by(orders, *KEYS, row_kind="op", buckets=4).agg(
        total=functions["sum"]("amount"), orders=functions["count"]()
    )
    options = {"keys": KEYS, "checkpoint": folder / "checkpoint", "trigger": "available now", "part_rows": PART_ROWS}
    return write_table(live, table, **options)


def main(folder: Path) -> None:
    folders = sorted(path.parent for path in folder.glob("*/kill"))
    kill = Kill(sum(not (each / "kill").read_text().startswith("|") for each in folders))
    spark = session(folder)
    functions = connect("embedded:")
    queries = [start(spark, each, functions, kill) for each in folders]
    print("STARTED", flush=True)
    while any(query.isActive for query in queries):
        for query in queries:
            if not query.isActive or query.awaitTermination(0.1):
                query.awaitTermination()  # it raises the error of a query that failed
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
