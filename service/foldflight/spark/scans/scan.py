"""`scan(spark, files)`: files and tables whose rows the tasks that fold them read themselves.

Spark lists the files. `Folders` are files of Parquet without a table, whose folders tell the values of partitions.
`DeltaTable` is a table of Delta: Spark tells the version and its files, and the log of the table what each of these is.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NoReturn
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.spark.arguments import require_session
from foldflight.spark.arrow import arrow_function
from foldflight.spark.columns import column_named, reject_spark_errors
from foldflight.spark.scans.deltalog import LogError, Snapshot, snapshot
from foldflight.spark.scans.footers import OpenFilesystem, local
from foldflight.spark.scans.listing import Files, Listing, UnreadableError, listed_paths, path_of
from foldflight.spark.scans.predicate import Predicate, UnclearError, parse
from foldflight.spark.scans.source import Source, is_cached, source_of
from foldflight.spark.versions.sessions import is_remote, mute_query_log, same_plan

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
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
# What the folder of a table has, as a pattern of Hadoop, and which kind of table has it.
_LOGS: Final = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata/*.metadata.json": "Iceberg"}
_SUMMARIES: Final = ("_metadata", "_common_metadata")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a pattern, a folder, or a list of these."""

_LITERALS: Final = ("spark.sql.session.timeZone", "spark.sql.timestampType")
"""The settings by which Spark reads the timestamps of a condition."""
_Settings = tuple[str | None, ...]


def _settings(session: SparkSession) -> _Settings:
    return tuple(map(session.conf.get, _LITERALS))


class Scan:
    """Files of Parquet or a table of Delta; made by `scan`.

    Attributes:
        df: Spark's own read of the same rows and columns.
    """

    def __init__(self, files: Files, df: DataFrame, where: tuple[str, ...], read_with: _Settings = ()) -> None:
        self.df = df
        self._files = files
        self._where = where
        self._read_with = _settings(df.sparkSession) if where and not read_with else read_with
        self._names: Mapping[str, str] = {}

    def __repr__(self) -> str:
        where = f", where={' AND '.join(self._where)!r}" if self._where else ""
        return f"scan({self._files}{where})"

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse the methods of a DataFrame, and name their replacements."""
        if not hasattr(DataFrame, name):
            raise AttributeError(f"a scan has no {name}", name=name, obj=self)
        raise AttributeError(
            f"a scan is no DataFrame and has no {name}; choose rows and columns by scan(..., where=..., columns=...), "
            f"or write scan(...).df.{name}, whose rows Spark reads",
            name=name,
            obj=self,
        )

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.df.columns)

    @property
    def schema(self) -> st.StructType:
        """The columns, as Spark describes them."""
        return self.df.schema

    def create_view(self, name: str) -> None:
        """Make a temporary view of these files, for `sql` and for Spark.

        The tasks of `sql` read the files themselves for a SELECT block that reads only this view and is aggregated by
        `group_by`. In all other queries Spark reads them.

        Args:
            name: The name of the view. A view of this name is replaced.
        """
        self.df.createOrReplaceTempView(name)
        _VIEWS.setdefault(self.df.sparkSession, {})[name.lower()] = self

    def narrow(self, df: DataFrame, names: Mapping[str, str], where: str | None) -> Scan:
        """Return a scan of some of its columns and rows, as a query has selected them.

        Args:
            df: The query.
            names: The name of a column of this scan for each column of the query.
            where: The condition that rows must pass in addition to the conditions of this scan.
        """
        narrowed_scan = Scan(self._files, df, self._where if where is None else (*self._where, where), self._read_with)
        narrowed_scan._names = names
        return narrowed_scan

    def source(self, columns: Sequence[str], keys: int = 0) -> Source:
        """Return the rows of some columns, for tasks to read.

        Args:
            columns: The columns; one may be there several times.
            keys: How many of them, the first ones, are the keys of the query.

        Raises:
            UnreadableError: Spark has to read them. Its text tells why.
        """
        if is_cached(self.df):
            raise UnreadableError("the rows of this scan are cached")
        return source_of(self._files, [self._names.get(name, name) for name in columns], keys, self._predicate())

    def _predicate(self) -> Predicate:
        try:
            parts = [parse(text, self._files.df.schema, self._evaluate_timestamps) for text in self._where]
        except UnclearError as error:
            raise UnreadableError(f"the condition is evaluated by Spark: {error}") from None
        return Predicate(tuple(each for part in parts for each in part.terms))

    def _evaluate_timestamps(self, literals: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        session = self.df.sparkSession
        # Classic PySpark evaluated the condition when the scan was made; Spark Connect evaluates it for each query.
        if _settings(session) != self._read_with:
            raise UnclearError(f"{' or '.join(_LITERALS)} is another one than when the scan was made")
        types = (f"typeof({each})" for each in literals)
        microseconds = (f"unix_micros(CAST({each} AS TIMESTAMP))" for each in literals)
        row = session.range(0, 1, 1, 1).selectExpr(*types, *microseconds).collect()[0]
        return dict(zip(literals, zip(row[: len(literals)], row[len(literals) :], strict=True), strict=True))


# The scans that are views, by the names of these in lower case.
_VIEWS: Final[WeakKeyDictionary[SparkSession, dict[str, Scan]]] = WeakKeyDictionary()


def view_of(spark: SparkSession, name: str) -> Scan | None:
    """Return the scan behind a view of a session; None if the view has none, or has been replaced since."""
    known_scan = _VIEWS.get(spark, {}).get(name.lower())
    return known_scan if known_scan is not None and same_plan(spark.table(name), known_scan.df) else None


def as_dataframe(rows: DataFrame | Scan) -> DataFrame:
    """Return a DataFrame unchanged, and for a scan Spark's own read."""
    return rows.df if isinstance(rows, Scan) else rows


def scan(
    spark: SparkSession,
    files: Paths | None = None,
    *,
    table: str | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    filesystem: Callable[[], Any] | None = None,
) -> Scan:
    """Take files of Parquet in the place of a DataFrame, so that the tasks that fold their rows read them themselves.

    The rows are the same as from `spark.read.parquet` or `spark.table`. Where it is not certain that Arrow reads the
    same, Spark reads them, and `explain` tells why. The files are listed now, and a file that changes later fails the
    query.

    Args:
        spark: The session, of classic PySpark or of Spark Connect.
        files: A file, a folder, a pattern such as `lake/orders/*.parquet`, or a list of these.
        table: In the place of files, the name of a table, such as `shop.orders`, or delta.`/lake/orders`. The tasks
            read tables of Delta, in their current version. Spark reads all other tables.
        where: A condition that rows must pass, in Spark's SQL. Arrow evaluates comparisons of whole numbers, DECIMAL,
            DATE, timestamps, BOOLEAN and texts with constants, joined by AND and OR; for others, Spark reads the files.
        columns: The columns of the result. Default: all.
        filesystem: Makes the file system of pyarrow that has the files, in each process that reads: for files that are
            not on a disk of each machine. It gets no arguments, and takes credentials from where it runs, because it
            travels with the query.

    Returns:
        Scan: What `group_by`, `over`, `with_columns` and `join_lateral` take in the place of a DataFrame. Its method
            `create_view` makes a view for `sql`.

    Raises:
        RejectedError: SIGNATURE for arguments that are none of these, and for the folder of a table of Delta, Hudi or
            Iceberg, whose files also have rows that the table has deleted; SETTINGS for such a table by its folder, if
            the session does not have what reads it; SCHEMA_MISMATCH for a condition that Spark cannot evaluate, and for
            columns that are not there.
        AnalysisException: Spark's error, if it cannot read the files.

    >>> import tempfile
    >>> from foldflight import connect
    >>> from foldflight.spark import group_by, scan
    >>> folder = tempfile.TemporaryDirectory()
    >>> orders = spark.createDataFrame([("ann", 10), ("ann", 40), ("bob", 7)], "customer STRING, price BIGINT")
    >>> orders.write.parquet(folder.name + "/orders")
    >>> files = scan(spark, folder.name + "/orders", where="price > 8")
    >>> group_by(files, "customer").agg(total=connect("embedded:").sum("price")).show()
    +--------+-----+
    |customer|total|
    +--------+-----+
    |     ann|   50|
    +--------+-----+
    """
    require_session(spark, "scan")
    if table is not None and (files is not None or not isinstance(table, str)):
        raise RejectedError(
            "SIGNATURE", f"scan takes paths or the name of a table, and this is {files!r} and {table!r}"
        )
    if isinstance(files, (str, os.PathLike)):
        files = [files]
    if table is None and (
        not isinstance(files, (list, tuple))
        or not files
        or not all(isinstance(each, (str, os.PathLike)) for each in files)
    ):
        raise RejectedError("SIGNATURE", f"scan takes a path or a list of paths, and this is {files!r}")
    if where is not None and not isinstance(where, str):
        raise RejectedError(
            "SIGNATURE", f"where is a condition as text, as in \"day >= DATE'2026-01-01'\", not {where!r}"
        )
    if columns is not None and (isinstance(columns, str) or not all(isinstance(each, str) for each in columns)):
        raise RejectedError("SIGNATURE", f"columns is a list of names of columns, not {columns!r}")
    if filesystem is not None and not callable(filesystem):
        raise RejectedError(
            "SIGNATURE",
            f"filesystem is a function that makes one, as in lambda: pyarrow.fs.S3FileSystem(), and not "
            f"{type(filesystem).__name__}; a file system itself would carry its credentials in the query",
        )
    open_filesystem: OpenFilesystem | None = filesystem
    source_files: Files
    if table is not None:
        source_files = table_of(spark, table, open_filesystem)
    else:
        paths = tuple(os.fspath(each) for each in files or ())
        check_no_table(spark, paths)
        source_files = Folders(spark.read.parquet(*paths), paths, open_filesystem)
    filtered_df = source_files.df
    if where is not None:
        with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot evaluate where={where!r} of the scan"):
            filtered_df = filtered_df.where(where)
            filtered_df.schema  # noqa: B018 - Connect analyses a query when its schema is needed
    if columns is not None:
        with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot choose columns={list(columns)!r} of the scan"):
            filtered_df = filtered_df.select(*map(column_named, columns))
            filtered_df.schema  # noqa: B018 - as above
    return Scan(source_files, filtered_df, () if where is None else (where,))


@dataclass(frozen=True)
class Folders:
    """Files and folders of Parquet.

    Args:
        df: Spark's read of them, with all columns and rows.
        paths: The paths and patterns that were given.
        open_filesystem: Makes the file system. None: the one of this machine.
    """

    df: DataFrame
    paths: tuple[str, ...]
    open_filesystem: OpenFilesystem | None

    def __str__(self) -> str:
        return ", ".join(map(repr, self.paths))

    def listing(self) -> Listing:
        """Return the files with rows. Raises UnreadableError."""
        if _may_overlap(self.paths):
            raise UnreadableError("the paths may name a file twice, whose rows are there twice then")
        paths = self._files()
        return Listing(tuple(paths), *self._partitions(paths))

    def _files(self) -> list[str]:
        paths = listed_paths(self.df, is_encoded=True, has_filesystem=self.open_filesystem is not None)
        # Spark lists files named so, reads no rows in them, and takes the columns from some of them. It lists no others
        # that are hidden.
        if any(path.rpartition("/")[2].startswith(_SUMMARIES) for path in paths):
            raise UnreadableError("there are files of summaries, which may tell other columns")
        return paths

    def _partitions(self, paths: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[str | None, ...]]]:
        """Return the names of the columns that are in the names of folders, and their values for each path.

        Spark puts such columns behind the columns of the files. No file may have one of them; the footers show that.
        """
        folders = {path: path.rpartition("/")[0] for path in paths}
        parts = {folder: _pairs(folder) for folder in set(folders.values())}
        longest = max((len(pairs) for pairs in parts.values()), default=0)
        columns = self.df.columns
        counts = range(min(longest, len(columns)), 0, -1)
        count = next((each for each in counts if _all_end_with(columns[-each:], parts.values())), 0)
        names = tuple(columns[len(columns) - count :])
        other_columns = set(columns) - set(names)
        for folder in parts:
            doubtful = next((each for each in folder.split("/") if _name_of(each) in other_columns), None)
            if doubtful is not None:
                raise UnreadableError(f"the folder {doubtful!r} is named like a column that is not its partition")
        values = {
            folder: tuple(_text(name, text) for name, text in pairs[len(pairs) - count :])
            for folder, pairs in parts.items()
        }
        return names, {path: values[folder] for path, folder in folders.items()}


def check_no_table(spark: SparkSession, paths: Iterable[str]) -> None:
    """Refuse folders of tables, whose files also have rows that the tables have deleted or replaced.

    Raises:
        RejectedError: SIGNATURE, with the read of the table.
    """
    for folder in dict.fromkeys(_places_of_logs(paths)):
        try:
            pattern = f"{folder}/{{{','.join(_LOGS)}}}"
            with mute_query_log():  # twice, because Spark logs a warning with a trace if a single path is a pattern
                logs = spark.read.text([pattern, pattern], recursiveFileLookup=True).inputFiles()
        except Exception:  # noqa: BLE001 - also py4j's
            # Most often there is no log. Of a folder that cannot be listed nothing is known, and Spark's read decides.
            logs = []
        for log in map(unquote, logs):
            table = _table_with(log)
            if table is not None:
                raise RejectedError("SIGNATURE", table)


def _places_of_logs(paths: Iterable[str]) -> Iterator[str]:
    """Yield the folders that may be tables with files of some paths: these, and the folders whose partitions they are.

    Each is a call of Spark, so one path stands for the other partitions of a folder, and for the other files in it.
    """
    seen_places: set[str] = set()
    for path in (each.rstrip("/") for each in paths):
        folders = [path]
        while _name_of(folders[-1].rpartition("/")[2]):
            folders.append(folders[-1].rpartition("/")[0])
        alike = path.rpartition("/")[0] if path.endswith(".parquet") else folders[-1]
        if alike not in seen_places:
            seen_places.add(alike)
            yield from folders


def _table_with(log: str) -> str | None:
    """Return why the folder with a log is refused; None if this is no log of a table."""
    for part, kind in _LOGS.items():
        folder, separator, name = log.partition(f"/{part.partition('/')[0]}/")
        if separator and (kind != "Iceberg" or name.endswith(".metadata.json")):
            folder = re.sub("^file:/+", "/", folder)
            name_text = f'"delta.`{folder}`"' if kind == "Delta" else '"..." with its name in the catalogue'
            return (
                f"{folder} is a table of {kind}, and its files also have rows that the table does not have any more; "
                f"read the table: scan(spark, table={name_text})"
            )
    return None


def _text(name: str, text: str) -> str | None:
    if "%" in text:
        raise UnreadableError(f"the partition {name}={text} is read by Spark only")
    return None if text == _NULL_FOLDER else text


def _all_end_with(names: Sequence[str], folders: Iterable[Sequence[tuple[str, str]]]) -> bool:
    return all([name for name, _ in pairs[-len(names) :]] == list(names) for pairs in folders)


def _name_of(folder: str) -> str:
    """Return the name of the column that a folder may be a part of; empty: of none."""
    name, equals, _ = folder.partition("=")
    return unquote(name) if equals else ""


def _may_overlap(paths: Sequence[str]) -> bool:
    """Return whether two paths may lead to one file. Spark tells each file once, and reads it for each path."""
    if len(paths) == 1:
        return "{" in paths[0]
    kinds = {
        (path.partition("/")[0], path.startswith("/")) if ":" in path or path[0] == "/" else None for path in paths
    }
    if len(kinds) > 1 or any(_PATTERN.search(path) for path in paths):
        return True
    parts = sorted(posixpath.normpath(path).split("/") for path in paths)
    # Of paths in this order, one that begins with another comes directly behind it, or behind such a one.
    return any(after[: len(before)] == before for before, after in pairwise(parts))


_PATTERN: Final = re.compile(r"[*?\[\]{}\\]")
_PAIR: Final = re.compile(r"([^=]+)=(.+)")


def _pairs(folder: str) -> list[tuple[str, str]]:
    """Return the names and values at the end of a folder's path."""
    pairs: list[tuple[str, str]] = []
    for name in reversed(folder.split("/")):
        match = _PAIR.fullmatch(name)
        if match is None:
            break
        pairs.insert(0, (match[1], match[2]))
    return pairs


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
        with mute_query_log():
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
    except Exception as error:  # noqa: BLE001 - also py4j's, as for a path with a version at its end
        lines = (line for line in str(error).splitlines() if not line.startswith("An error occurred while calling"))
        return PlainTable(plain, name, f"{name} is not known as a table of Delta: {next(lines, '')}")
    return DeltaTable(fixed_df, name, detail["location"], detail["id"], version, open_filesystem)


def _check_source(spark: SparkSession, name: str) -> None:
    """Refuse a table by its folder, if nothing in the session reads such tables. Raises RejectedError SETTINGS."""
    match = _BY_FOLDER.fullmatch(name)
    if match is None:
        return
    try:
        with mute_query_log():
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
