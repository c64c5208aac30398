"""Who reads the rows of a query over a scan: the tasks that fold them, or Spark.

The tasks read only what is certain to be the rows that Spark would read. Spark lists the files, so what is hidden, what
a pattern matches and where partitions are is decided there alone. It also tells the columns and their types. Then each
setting of the session that changes a read, each column and each file must be one that Arrow reads alike. Otherwise
Spark reads, and the reason is a part of `explain`.
"""

from __future__ import annotations

import datetime
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds
from foldflight.spark.arrow import arrow_function
from foldflight.spark.scans.footers import Footer, OpenFilesystem, RowGroup, Wanted, footers
from foldflight.spark.scans.predicate import Predicate
from foldflight.spark.scans.readable import Modes, readable_type
from foldflight.spark.scans.reader import ReadSplits, Split, Task
from foldflight.spark.versions.sessions import is_remote, is_spark, parallelism
from foldflight.tracing import Traced

# Settings of a session with another value than this change what Spark reads, and Spark reads then. All others that
# change a read change the columns and types that Spark tells, or its list of files.
_SETTINGS: Final = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
_CASE: Final = "spark.sql.caseSensitive"
_DATES: Final = "spark.sql.parquet.datetimeRebaseModeInRead"
_INT96: Final = "spark.sql.parquet.int96RebaseModeInRead"

# The metadata of a column that tells its value in the rows of files without it.
_DEFAULT: Final = "EXISTS_DEFAULT"

# With more files than this, or where the driver may not see them, tasks of Spark read the footers.
_FOOTERS_MAX: Final = 256
_THREADS: Final = 8
# Bytes of the columns that one task reads at most, unless a row group has more: as for Spark's own reader.
_TASK_BYTES: Final = 128 << 20
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_SUMMARIES: Final = ("_metadata", "_common_metadata")
_FOOTER: Final = (
    "path string, refusal string, size bigint, changed_ns bigint, "
    "groups array<struct<index: int, rows: bigint, size: bigint>>, left_out int, missing array<string>"
)


class UnreadableError(Exception):
    """The rows are left to Spark. Its text tells why, for users."""


@dataclass(frozen=True)
class Source:
    """Rows that the tasks of a query read themselves.

    Args:
        splits: What each task reads.
        columns: The columns in the order of the query's rows.
        types: The types of these, and of those that the predicate compares, by name.
        keys: Those that are texts and nothing but keys.
        predicate: The condition that rows must pass.
        open_filesystem: Makes the file system.
        left_out: The number of row groups in which no row passes.
    """

    splits: tuple[tuple[Split, ...], ...]
    columns: tuple[str, ...]
    types: dict[str, pa.DataType]
    keys: frozenset[str]
    predicate: Predicate
    open_filesystem: OpenFilesystem
    left_out: int

    def mapped(
        self,
        session: SparkSession,
        task: Task,
        bounds: BlockBounds,
        name: str,
        traced: Traced | None,
        schema: st.StructType,
    ) -> DataFrame:
        """Return what a task makes of the rows.

        Args:
            session: The session.
            task: The task, which gets Arrow batches of one partition.
            bounds: The limits of the data that a task holds at once.
            name: The name of the step, which Spark shows.
            traced: The query, if its tasks have spans.
            schema: The schema of what the task makes.
        """
        reads = ReadSplits(
            self.splits, self.columns, self.types, self.keys, self.predicate, self.open_filesystem, bounds, task
        )
        count = len(self.splits)
        numbers = session.range(0, count, 1, max(count, 1))
        return numbers.mapInArrow(arrow_function(reads, name, traced), schema)

    def __str__(self) -> str:
        """Return who reads, as text for users."""
        splits = [each for task in self.splits for each in task]
        files, groups = len({each.path for each in splits}), sum(len(each.groups) for each in splits)
        left_out = f", without {self.left_out:,} in which no row passes" if self.left_out else ""
        return f"{len(self.splits):,} tasks read {groups:,} row groups of {files:,} files themselves{left_out}"


@dataclass(frozen=True)
class Files:
    """The files of a scan, as Spark lists them.

    Args:
        df: Spark's read of them, with all columns and rows.
        paths: The paths and patterns that were given.
        open_filesystem: Makes the file system; None: that of this machine.
    """

    df: DataFrame
    paths: tuple[str, ...]
    open_filesystem: OpenFilesystem | None

    def source(self, columns: Sequence[str], keys: int, predicate: Predicate) -> Source:
        """Return the rows of some columns that pass a predicate, for tasks to read.

        Args:
            columns: The columns; one may be there several times.
            keys: How many of them, the first ones, are the keys of the query.
            predicate: The predicate.

        Raises:
            UnreadableError: Spark has to read them.
        """
        session = self.df.sparkSession
        modes, is_case_sensitive = _settings(session)
        if is_cached(self.df):
            raise UnreadableError("the rows of these files are cached")
        if _may_overlap(self.paths):
            raise UnreadableError("the paths may name a file twice, whose rows are there twice then")
        paths = self._paths()
        chosen = tuple(dict.fromkeys([*columns, *predicate.columns]))
        types = {name: self._type(name) for name in chosen}
        constants, values = self._constants(paths)
        stored = {name: self.df.schema[name].dataType for name in chosen if name not in constants}
        wanted = Wanted(stored, constants, predicate, modes, is_case_sensitive)
        opened = self.open_filesystem or _local
        found = _footers(session, paths, opened, wanted)
        for each in found:
            if each.refusal:
                raise UnreadableError(f"{each.path}: {each.refusal}")
        for name in (name for name in stored if _DEFAULT in (self.df.schema[name].metadata or {})):
            without = next((each.path for each in found if name in each.missing), None)
            if without is not None:
                raise UnreadableError(f"{without} does not have the column {name!r}, which has a default value")
        # A column of no file is one that Spark has from elsewhere.
        for name in set.intersection(set(stored), *(set(each.missing) for each in found if each.size)):
            raise UnreadableError(f"no file has the column {name!r}")
        used = [(name, index) for index, name in enumerate(constants) if name in chosen]
        pieces = [
            (each, group, {name: values[each.path][index] for name, index in used})
            for each in found
            for group in each.groups
        ]
        splits = tuple(_splits(pieces, _tasks(session, pieces)))
        left_out = sum(each.left_out for each in found)
        others = {*columns[keys:], *predicate.columns}
        texts = frozenset(name for name in columns[:keys] if pa.types.is_string(types[name]) and name not in others)
        return Source(splits, tuple(columns), types, texts, predicate, opened, left_out)

    def _type(self, name: str) -> pa.DataType:
        field = self.df.schema[name]
        type_ = readable_type(field)
        if type_ is None:
            raise UnreadableError(f"{name!r} is {field.dataType.simpleString()}, which is left to Spark")
        if "." in name:
            raise UnreadableError(f"the name {name!r} has a point, which Arrow reads as a member")
        return type_

    def _paths(self) -> list[str]:
        """Return the paths of all files with rows, as the file system takes them."""
        try:
            addresses = [urlsplit(each) for each in self.df.inputFiles()]
        except PySparkException as error:
            raise UnreadableError(f"Spark does not tell the files: {str(error).splitlines()[0]}") from None
        if self.open_filesystem is None:
            other = next((each.scheme for each in addresses if each.scheme not in {"", "file"}), None)
            if other is not None:
                raise UnreadableError(f"files of {other}: are read with scan(..., filesystem=...)")
        paths = [unquote(each.netloc + each.path) for each in addresses]
        names = [path.rpartition("/")[2] for path in paths]
        if any(name in _SUMMARIES for name in names):
            raise UnreadableError("there are files of summaries, which may tell other columns")
        # Spark lists these, and reads none of them.
        shown = (not name.startswith((".", "_")) or ("=" in name and name[0] == "_") for name in names)
        return [path for path, is_shown in zip(paths, shown, strict=True) if is_shown]

    def _constants(self, paths: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[Any, ...]]]:
        """Return the names of the columns that are in the names of folders, and their values for each path.

        Spark puts such columns behind those of the files. No file may have one of them; the footers show that.
        """
        folders = {path: path.rpartition("/")[0] for path in paths}
        parts = {folder: _pairs(folder) for folder in set(folders.values())}
        longest = max((len(pairs) for pairs in parts.values()), default=0)
        columns = self.df.columns
        counts = range(min(longest, len(columns)), 0, -1)
        count = next((each for each in counts if _all_end_with(columns[-each:], parts.values())), 0)
        names = tuple(columns[len(columns) - count :])
        known = {name.casefold() for name in columns} - {name.casefold() for name in names}
        for folder in parts:
            doubtful = next((each for each in folder.split("/") if _name_of(each).casefold() in known), None)
            if doubtful is not None:
                raise UnreadableError(f"the folder {doubtful!r} is named like a column that is not its partition")
        fields = [self.df.schema[name] for name in names]
        values = {
            folder: tuple(
                _value(text, field) for (_, text), field in zip(pairs[len(pairs) - count :], fields, strict=True)
            )
            for folder, pairs in parts.items()
        }
        return names, {path: values[folder] for path, folder in folders.items()}


def _all_end_with(names: Sequence[str], folders: Iterable[Sequence[tuple[str, str]]]) -> bool:
    return all([name for name, _ in pairs[-len(names) :]] == list(names) for pairs in folders)


def _name_of(folder: str) -> str:
    """Return the name of the column that a folder may be a part of; empty: of none."""
    name, equals, _ = folder.partition("=")
    return unquote(name) if equals else ""


def _settings(session: SparkSession) -> tuple[Modes, bool]:
    """Return the modes for old days, and whether case matters. Raises UnreadableError for settings left to Spark."""
    if not is_spark(session):
        raise UnreadableError("Sail reads files as fast itself")
    for name, value in _SETTINGS.items():
        actual = session.conf.get(name)
        if (actual or "").lower() != value:
            raise UnreadableError(f"{name} is {actual}")
    modes = Modes((session.conf.get(_DATES) or "").upper(), (session.conf.get(_INT96) or "").upper())
    return modes, (session.conf.get(_CASE) or "").lower() == "true"


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


def is_cached(df: DataFrame) -> bool:
    """Return whether Spark has the rows of this or an equal query."""
    level = df.storageLevel
    return bool(level.useMemory or level.useDisk or level.useOffHeap)


def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


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


_WHOLE: Final = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _value(text: str, field: st.StructField) -> Any:
    """Return the value of a column that is in a folder's name, if there is only one way to read it."""
    type_ = field.dataType
    if text == _NULL_FOLDER:
        return None
    if "%" not in text:
        if isinstance(type_, (st.IntegerType, st.LongType)) and _WHOLE.fullmatch(text):
            return int(text)
        if isinstance(type_, st.DateType) and _DAY.fullmatch(text):
            with suppress(ValueError):
                return datetime.date.fromisoformat(text)
        if type_ == st.StringType():
            return text
    raise UnreadableError(f"the folder {field.name}={text} is read as {type_.simpleString()} by Spark only")


def _footers(session: SparkSession, paths: Sequence[str], opened: OpenFilesystem, wanted: Wanted) -> list[Footer]:
    """Return the description of each file, which several threads or tasks read at the same time."""
    if not is_remote(session) and len(paths) <= _FOOTERS_MAX:
        with ThreadPoolExecutor(_THREADS) as pool:
            parts = [paths[index::_THREADS] for index in range(min(_THREADS, len(paths)))]
            found = [
                each for part in pool.map(lambda part: list(footers(part, opened, wanted)), parts) for each in part
            ]
    else:
        found = _footers_by_tasks(session, paths, opened, wanted)
    order = {path: index for index, path in enumerate(paths)}
    return sorted(found, key=lambda each: order[each.path])


def _footers_by_tasks(
    session: SparkSession, paths: Sequence[str], opened: OpenFilesystem, wanted: Wanted
) -> list[Footer]:
    count = max(min(len(paths), parallelism(session)), 1)
    parts = [paths[index::count] for index in range(count)]
    read = arrow_function(_ReadFooters(parts, opened, wanted), "read_footers")
    rows = session.range(0, count, 1, count).mapInArrow(read, _FOOTER).collect()
    return [
        Footer(
            row["path"],
            row["refusal"],
            row["size"],
            row["changed_ns"],
            tuple(RowGroup(each["index"], each["rows"], each["size"]) for each in row["groups"]),
            row["left_out"],
            tuple(row["missing"]),
        )
        for row in rows
    ]


_GROUP: Final = pa.struct([("index", pa.int32()), ("rows", pa.int64()), ("size", pa.int64())])
_FOOTER_ARROW: Final = pa.schema(
    [
        ("path", pa.string()),
        ("refusal", pa.string()),
        ("size", pa.int64()),
        ("changed_ns", pa.int64()),
        ("groups", pa.list_(_GROUP)),
        ("left_out", pa.int32()),
        ("missing", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True)
class _ReadFooters:
    """A task that describes files. A row from Spark has the number of a part of them."""

    parts: Sequence[Sequence[str]]
    opened: OpenFilesystem
    wanted: Wanted

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = [
                    {**vars(each), "groups": [vars(group) for group in each.groups]}
                    for each in footers(self.parts[number], self.opened, self.wanted)
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=_FOOTER_ARROW)


_Piece = tuple[Footer, RowGroup, Mapping[str, Any]]


def _tasks(session: SparkSession, pieces: Sequence[_Piece]) -> int:
    """Return how many tasks read the row groups."""
    size = sum(group.size for _, group, _ in pieces)
    return min(max(parallelism(session), -(-size // _TASK_BYTES)), len(pieces))


def _splits(pieces: Sequence[_Piece], count: int) -> Iterator[tuple[Split, ...]]:
    """Yield the row groups of each of so many tasks, in the order of files, with about as many bytes."""
    weights = [group.size + 1 for _, group, _ in pieces]
    total, before = sum(weights), 0
    tasks: list[list[_Piece]] = [[] for _ in range(count)]
    for piece, weight in zip(pieces, weights, strict=True):
        tasks[(2 * before + weight) * count // (2 * total)].append(piece)
        before += weight
    for task in tasks:
        if task:
            yield tuple(_joined(task))


def _joined(pieces: Sequence[_Piece]) -> Iterator[Split]:
    """Yield the row groups of one task, those of a file together."""
    by_path: dict[str, list[_Piece]] = {}
    for piece in pieces:
        by_path.setdefault(piece[0].path, []).append(piece)
    for same in by_path.values():
        footer, _, constants = same[0]
        yield Split(
            footer.path,
            footer.size,
            footer.changed_ns,
            tuple(group.index for _, group, _ in same),
            sum(group.rows for _, group, _ in same),
            frozenset(footer.missing),
            dict(constants),
        )
