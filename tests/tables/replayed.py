"""A driver without Spark: it replays what foreachBatch gets, and is killed. Used by test_kills.py.

Like Spark it writes down an epoch when the sink has returned, and when it is started again it begins with the first
epoch that is not written down. The program is started once, and forks a process for each start of the driver.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from foldflight.engine.targets import net_changes
from foldflight.errors import RetryableError
from tests.tables.orders import KEYS, Orders

POINTS = ("before the epoch", "between two parts", "after the table's commit")
COLUMNS = pa.schema([("name", pa.string()), ("shop", pa.int32()), ("total", pa.int64()), ("orders", pa.int64())])
QUERY = "replayed"
PART_ROWS = 7


def changes_until(orders: Orders, before: dict[Any, Any], changes: int) -> pa.Table:
    """Return the changelog of one more epoch, with `-U`, and in another order than the changes."""
    orders.epoch(changes)
    after = orders.totals()
    rows = []
    for key in before.keys() | after.keys():
        if before.get(key) == after.get(key):
            continue
        if key in before:
            rows.append(("-U" if key in after else "-D", *key, *before[key]))
        if key in after:
            rows.append(("+U" if key in before else "+I", *key, *after[key]))
    random.Random(len(rows)).shuffle(rows)
    schema = pa.schema([pa.field("row_kind", pa.string()), *COLUMNS])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def epochs(seed: int, count: int) -> list[pa.Table]:
    """Return the changelogs of epochs. They are the same for each start, like Spark's."""
    orders, result = Orders(seed), []
    for _ in range(count):
        before = orders.totals()
        result.append(changes_until(orders, before, 20))
    return result


def parts(changes: pa.Table, kill: Any) -> Iterator[pa.Table]:
    result = net_changes(changes, KEYS, "t")
    for start in range(0, result.num_rows, PART_ROWS):
        if start:
            kill(POINTS[1])
        yield result.slice(start, PART_ROWS)


def drive(target: Any, log: Path, changelogs: list[pa.Table], point: str | None, epoch_of_kill: int) -> None:
    """Bring all epochs that are not written down to the target, and end at a point of an epoch."""
    last_epoch = int(log.read_text()) if log.exists() else -1
    for epoch in range(last_epoch + 1, len(changelogs)):

        def kill(here: str, epoch: int = epoch) -> None:
            if here == point and epoch >= epoch_of_kill:
                os.kill(os.getpid(), signal.SIGKILL)

        kill(POINTS[0])
        while True:
            try:
                target.prepare()
                last = target.last_epoch(QUERY)
                if last is None or last < epoch:
                    target.apply(QUERY, epoch, parts(changelogs[epoch], kill))
                break
            except RetryableError:
                time.sleep(0.01)
        kill(POINTS[2])
        partial = log.with_suffix(".partial")
        partial.write_text(str(epoch))
        partial.rename(log)


def main() -> None:
    """Fork a driver for each line `point|epoch`; print its number, by which it may be killed until the next line."""
    target, log, seed, count = pickle.loads(Path(sys.argv[1]).read_bytes())
    changelogs = epochs(seed, count)
    for line in sys.stdin:
        point, epoch = line.rstrip("\n").split("|")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                drive(target, log, changelogs, point or None, int(epoch))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        sys.stdin.readline()  # the child is killed before it is waited for, so the number is still its own
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
