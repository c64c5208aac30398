"""What a driver with Iceberg or Delta does in tests: functions for `tests.spark_process`."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from foldflight.errors import RejectedError
from foldflight.ext.tables.catalog_table import CatalogTable
from foldflight.spark import write_table
from tests.spark_sessions import SPARK

COLUMNS = "row_kind STRING, k STRING, small SMALLINT, amount DECIMAL(10,2), words ARRAY<STRING>"
FORMAT = {(4, 1): "iceberg", (4, 0): "delta"}.get(SPARK, "none")
BEFORE, AFTER = "before the commit of the table", "between the commits of the table and of Spark"
TABLE = "lake.shop.totals" if FORMAT == "iceberg" else "totals"


def run(spark: Any, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, and return the rows of the last one."""
    for statement in statements[:-1]:
        spark.sql(statement)
    return sorted(map(tuple, spark.sql(statements[-1]).collect()), key=repr)


def rows_of(spark: Any, files: Path, columns: str = COLUMNS) -> DataFrame:
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(files))


def write(spark: Any, files: Path, checkpoint: Path, **options: Any) -> list[tuple[Any, ...]]:
    """Write all files, an epoch each, and return the table as the session sees it."""
    all_options = {"keys": ["k"], "trigger": "available now", **options}
    write_table(rows_of(spark, files), TABLE, checkpoint=checkpoint, **all_options).awaitTermination()
    return run(spark, f"SELECT * FROM {TABLE}")


def write_between(spark: Any, files: Path, checkpoint: Path, *others: str) -> list[tuple[Any, ...]] | str:
    """Write as `write` does, while another session runs statements between the epochs."""
    session, merge = spark.newSession(), CatalogTable.merge

    def after_others(table: CatalogTable, changes: DataFrame, *epoch: Any) -> None:
        for other in others:
            session.sql(other)
        merge(table, changes, *epoch)

    with patch_merge(after_others):
        return write_or_say(spark, files, checkpoint)


def write_and_die(spark: Any, files: Path, checkpoint: Path, point: str) -> list[tuple[Any, ...]] | str:
    """Write as `write` does until the first epoch ends at a point. Return why it ended, or the table."""
    merge = CatalogTable.merge

    def dying(table: CatalogTable, *arguments: Any) -> None:
        if point == AFTER:
            merge(table, *arguments)
        raise RuntimeError(point)

    with patch_merge(dying):
        return write_or_say(spark, files, checkpoint)


def write_or_say(spark: Any, files: Path, checkpoint: Path) -> list[tuple[Any, ...]] | str:
    """Write as `write` does. Return the table, or why the query failed."""
    try:
        return write(spark, files, checkpoint)
    except Exception as error:
        return str(error)  # errors of Spark cannot go to another process


def write_by_name(spark: Any, files: Path, checkpoint: Path) -> list[tuple[Any, ...]]:
    """Write as `write` does, from the namespace of the table and by its name alone."""
    spark.sql("USE lake.shop")
    try:
        changes = rows_of(spark, files)
        write_table(changes, "totals", keys=["k"], checkpoint=checkpoint, trigger="available now").awaitTermination()
    finally:
        spark.sql("USE spark_catalog.default")
    return run(spark, f"SELECT * FROM {TABLE}")


def write_counted(spark: Any, files: Path, checkpoint: Path, runs: Path) -> int:
    """Write as `write` does, and return how often the changes were computed."""

    def count(batches: Iterable[Any]) -> Iterator[Any]:
        (runs / uuid.uuid4().hex).touch()
        yield from batches

    changes = rows_of(spark, files).coalesce(1)
    counted_changes = changes.mapInArrow(count, changes.schema)
    write_table(counted_changes, TABLE, keys=["k"], checkpoint=checkpoint, trigger="available now").awaitTermination()
    return len(list(runs.iterdir()))


def write_during(spark: Any, files: Path, checkpoint: Path, other: str) -> list[tuple[Any, ...]]:
    """Write as `write` does, while another session runs a statement between the read and the commit of an epoch."""
    session, merge = spark.newSession(), CatalogTable.merge
    started_file, done_file = checkpoint.with_suffix(".started"), checkpoint.with_suffix(".done")

    def wait(batches: Iterable[Any]) -> Iterator[Any]:
        started_file.touch()
        while not done_file.exists():
            time.sleep(0.01)
        yield from batches

    def change() -> None:
        while not started_file.exists():
            time.sleep(0.01)
        session.sql(other)
        done_file.touch()

    def around_another(table: CatalogTable, changes: DataFrame, *epoch: Any) -> None:
        merge(table, changes.coalesce(1).mapInArrow(wait, changes.schema), *epoch)

    thread = threading.Thread(target=change)
    thread.start()
    with patch_merge(around_another):
        result = write(spark, files, checkpoint)
    thread.join()
    return result


@contextmanager
def patch_merge(merge: Callable[..., None]) -> Iterator[None]:
    before = CatalogTable.merge
    CatalogTable.merge = merge  # type: ignore[method-assign]
    try:
        yield
    finally:
        CatalogTable.merge = before  # type: ignore[method-assign]


def write_floats(spark: Any, table: str, folder: Path) -> list[tuple[Any, ...]]:
    """Set the values of keys that are NaN, zero and one in two epochs."""
    for number in (1, 2):
        keys = "explode(array(double('NaN'), 0D, 1D))"
        spark.sql(f"SELECT '+U' row_kind, {keys} k, {number} v").write.mode("append").parquet(str(folder / "input"))
        changes = spark.readStream.schema("row_kind STRING, k DOUBLE, v INT").parquet(str(folder / "input"))
        options = {"keys": ["k"], "checkpoint": folder / "checkpoint", "trigger": "available now"}
        write_table(changes, table, **options).awaitTermination()
    return [tuple(row) for row in spark.table(table).collect()]


def refusal_text(spark: Any, files: Path, columns: str, table: str = TABLE) -> str:
    """Return why `write_table` refuses a stream with these columns."""
    try:
        write_table(rows_of(spark, files, columns), table, keys=["k"], checkpoint=files / "none")
    except RejectedError as error:
        return str(error)
    return "it did not"
