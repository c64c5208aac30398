"""`scan(spark, files)`: files and tables whose rows the tasks that fold them read themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.spark.arguments import require_session
from foldflight.spark.columns import column_named, rejecting
from foldflight.spark.scans.folders import Folders, check_no_table
from foldflight.spark.scans.footers import OpenFilesystem
from foldflight.spark.scans.listing import Files, UnreadableError
from foldflight.spark.scans.predicate import Predicate, UnclearError, parse
from foldflight.spark.scans.source import Source, is_cached, source_of
from foldflight.spark.scans.tables import table_of
from foldflight.spark.versions.sessions import same_plan

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
        """Refuse the methods of a DataFrame, and tell what is there in their place."""
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
        """Return a scan of which a query has chosen columns and rows.

        Args:
            df: The query.
            names: The name of a column of this scan for each column of the query.
            where: The condition that rows must pass besides those of this scan.
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
        # A classic session has read the condition when the scan was made; one of Connect reads it for each query.
        if _settings(session) != self._read_with:
            raise UnclearError(f"{' or '.join(_LITERALS)} is another one than when the scan was made")
        types = (f"typeof({each})" for each in literals)
        microseconds = (f"unix_micros(CAST({each} AS TIMESTAMP))" for each in literals)
        row = session.range(0, 1, 1, 1).selectExpr(*types, *microseconds).collect()[0]
        return dict(zip(literals, zip(row[: len(literals)], row[len(literals) :], strict=True), strict=True))


# The scans that are views, by the names of these in lower case.
_VIEWS: Final[WeakKeyDictionary[SparkSession, dict[str, Scan]]] = WeakKeyDictionary()


def view_of(spark: SparkSession, name: str) -> Scan | None:
    """Return the scan that a view of a session is; None if it is none, or is replaced by now."""
    known_scan = _VIEWS.get(spark, {}).get(name.lower())
    return known_scan if known_scan is not None and same_plan(spark.table(name), known_scan.df) else None


def as_dataframe(rows: DataFrame | Scan) -> DataFrame:
    """Return a DataFrame as it is, and of a scan Spark's own read."""
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

    The rows are those of `spark.read.parquet`, or of `spark.table`. Where it is not certain that Arrow reads the same,
    Spark reads them, and `explain` tells why. The files are listed now, and a file that changes later fails the query.

    Args:
        spark: The session, of classic PySpark or of Spark Connect.
        files: A file, a folder, a pattern such as `lake/orders/*.parquet`, or a list of these.
        table: In the place of files, the name of a table, such as `shop.orders`, or delta.`/lake/orders`. Of a table of
            Delta, the scan has the version of now, and Spark reads all others.
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
        with rejecting("SCHEMA_MISMATCH", f"Spark cannot evaluate where={where!r} of the scan"):
            filtered_df = filtered_df.where(where)
            filtered_df.schema  # noqa: B018 - Connect analyses a query when its schema is needed
    if columns is not None:
        with rejecting("SCHEMA_MISMATCH", f"Spark cannot choose columns={list(columns)!r} of the scan"):
            filtered_df = filtered_df.select(*map(column_named, columns))
            filtered_df.schema  # noqa: B018 - as above
    return Scan(source_files, filtered_df, () if where is None else (where,))
