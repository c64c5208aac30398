"""Tables of Delta: Spark tells the version and its files, and the log of the table what each of these is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from foldflight.errors import RejectedError
from foldflight.spark.arrow import arrow_function
from foldflight.spark.scans.deltalog import LogError, Snapshot, snapshot
from foldflight.spark.scans.footers import OpenFilesystem, local
from foldflight.spark.scans.listing import Listing, UnreadableError, listed_paths, path_of
from foldflight.spark.versions.sessions import is_remote, quiet, same_plan

_BY_FOLDER: Final = re.compile(r"\s*(delta|iceberg|hudi)\s*\.\s*`([^`]+)`\s*", re.IGNORECASE)
_DELTA_SETTINGS: Final = (
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
_SOURCES: Final = {
    "delta": ("Delta", f"the package delta-spark for its version of Spark, and the settings {_DELTA_SETTINGS}"),
    "hudi": ("Hudi", "the package hudi-spark-bundle for its version of Spark"),
    "iceberg": ("Iceberg", "the package iceberg-spark-runtime for its version of Spark"),
}
_VERSION_OPTION: Final = "versionAsOf"


@dataclass(frozen=True)
class PlainTable:
    """A table, view or version that Spark reads.

    Args:
        df: Spark's read of it.
        name: Its name, as it was given.
        why: Why Spark reads it, as text for users.
        open_filesystem: Makes the file system. None: the one of this machine.
    """

    df: DataFrame
    name: str
    why: str
    open_filesystem: OpenFilesystem | None = None

    def __str__(self) -> str:
        return f"table={self.name!r}"

    def listing(self) -> Listing:
        """Raise UnreadableError."""
        raise UnreadableError(self.why)


@dataclass(frozen=True)
class DeltaTable:
    """A version of a Delta table.

    Args:
        df: Spark's read of the version, with all columns and rows.
        name: The name of the table, as it was given.
        location: The address of its folder, not encoded.
        table: The identity of the table, which another one of the same name does not have.
        version: The number of the version.
        open_filesystem: Makes the file system. None: the one of this machine.
    """

    df: DataFrame
    name: str
    location: str
    table: str
    version: int
    open_filesystem: OpenFilesystem | None

    def __str__(self) -> str:
        return f"table={self.name!r}, version {self.version}"

    def listing(self) -> Listing:
        """Return the files of the version, if Spark's list of them and the log agree. Raises UnreadableError."""
        has_filesystem = self.open_filesystem is not None
        folder = path_of(self.location, has_filesystem=has_filesystem).rstrip("/")
        snapshot = self._snapshot(folder)
        if snapshot.table != self.table:
            raise UnreadableError(f"the table {self.name} was replaced")
        if list(snapshot.columns) != self.df.columns:
            raise UnreadableError(f"the log of {self.name} tells other columns than Spark")
        listed_files = set(listed_paths(self.df, is_encoded=False, has_filesystem=has_filesystem))
        files = {f"{folder}/{each.path}": each for each in snapshot.files}
        if listed_files != set(files):
            raise UnreadableError(f"the log of {self.name} tells other files than Spark")
        deleted_path = next((path for path, each in files.items() if each.has_deleted_rows), None)
        if deleted_path is not None:
            raise UnreadableError(f"{deleted_path} has a deletion vector")
        return Listing(
            tuple(sorted(files)),
            snapshot.partitions,
            {path: each.values for path, each in files.items()},
            snapshot.columns,
            {path: each.size for path, each in files.items()},
            is_declared=True,
        )

    def _snapshot(self, folder: str) -> Snapshot:
        session = self.df.sparkSession
        open_filesystem = self.open_filesystem or local
        try:
            if not is_remote(session):
                return snapshot(folder, self.version, open_filesystem())
        except LogError as error:
            raise UnreadableError(f"of the table {self.name}, {error}") from None
        read_task = arrow_function(_ReadLog(folder, self.version, open_filesystem), "read_log")
        rows = session.range(0, 1, 1, 1).mapInArrow(read_task, "refusal string, line string").collect()
        refusal = next((row["refusal"] for row in rows if row["refusal"] is not None), None)
        if refusal is not None:
            raise UnreadableError(f"of the table {self.name}, {refusal}")
        return Snapshot.of_lines(row["line"] for row in rows)


@dataclass(frozen=True)
class _ReadLog:
    """A task that reads the log of a table, where the driver may not see it."""

    folder: str
    version: int
    opened: OpenFilesystem

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                lines = list(snapshot(self.folder, self.version, self.opened()).lines())
                refusals: list[str | None] = [None] * len(lines)
            except LogError as error:
                lines, refusals = [""], [str(error)]
            yield pa.record_batch({"refusal": pa.array(refusals, pa.string()), "line": pa.array(lines, pa.string())})


def table_of(spark: SparkSession, name: str, open_filesystem: OpenFilesystem | None) -> DeltaTable | PlainTable:
    """Return the version that a table has now.

    Args:
        spark: The session.
        name: The name, as `spark.table` takes it.
        open_filesystem: Makes the file system. None: the one of this machine.

    Raises:
        AnalysisException: Spark's error, if there is no such table.
        RejectedError: SETTINGS, if the name is a folder, as in delta.`/lake/orders`, and the session has
            nothing that reads such tables.
    """
    try:
        with quiet():
            plain = spark.table(name)
            plain.schema  # noqa: B018 - Connect looks for a table when its schema is needed
    except PySparkException as error:
        _check_source(spark, name)
        raise error from None
    try:
        detail = _row(spark, f"DESCRIBE DETAIL {name}")
        if detail["format"] != "delta":
            return PlainTable(plain, name, f"{name} is a table of {detail['format']}, and not of Delta")
        version = int(_row(spark, f"DESCRIBE HISTORY {name} LIMIT 1")["version"])
        fixed_df = spark.read.option(_VERSION_OPTION, version).table(name)
        files = spark.read.format("delta").option(_VERSION_OPTION, version).load(detail["location"])
        # A catalogue may add conditions or masks to a table, which a read of its files does not have.
        if not same_plan(fixed_df, files):
            return PlainTable(plain, name, f"{name} is more than the files of its folder")
    except Exception as error:  # noqa: BLE001 - also those of py4j, as for a path with a version at its end
        lines = (line for line in str(error).splitlines() if not line.startswith("An error occurred while calling"))
        return PlainTable(plain, name, f"{name} is not known as a table of Delta: {next(lines, '')}")
    return DeltaTable(fixed_df, name, detail["location"], detail["id"], version, open_filesystem)


def _check_source(spark: SparkSession, name: str) -> None:
    """Refuse a table by its folder, if nothing in the session reads such tables. Raises RejectedError SETTINGS."""
    match = _BY_FOLDER.fullmatch(name)
    if match is None:
        return
    try:
        with quiet():
            spark.read.format(match[1].lower()).load(match[2]).schema  # noqa: B018 - as above
    except Exception as error:  # noqa: BLE001 - one of py4j, which sessions of Connect do not have
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            kind, remedy = _SOURCES[match[1].lower()]
            raise RejectedError(
                "SETTINGS", f"the session has no {kind}, so it cannot read {name}; start it with {remedy}"
            ) from None


def _row(spark: SparkSession, statement: str) -> Any:
    # `foldflight.spark.enable` replaces the method of the instance.
    return type(spark).sql(spark, statement).collect()[0]
