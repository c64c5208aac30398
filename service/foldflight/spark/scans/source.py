"""Who reads the rows of a query over a scan: the tasks that fold them, or Spark.

The tasks read only files that certainly give the rows that Spark would read. Spark lists the files, so it alone decides
which files are hidden, what a pattern matches and where partitions are. It also tells the columns and their types. Then
each setting of the session that changes a read, each column and each file must be one that Arrow reads alike. Otherwise
Spark reads, and the reason is a part of `explain`.

`ReadSplits` is the part that runs in tasks: it reads row groups by Arrow, and gives them to the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from foldflight.engine.query.blocks import BlockBounds, is_encoded
from foldflight.errors import RejectedError
from foldflight.spark.arrow import arrow_function
from foldflight.spark.scans.deltalog import FIELD_ID
from foldflight.spark.scans.footers import (
    INT96_UNIT,
    Footer,
    OpenFilesystem,
    ReadRequest,
    RowGroup,
    footers,
    local,
    readable_type,
)
from foldflight.spark.scans.listing import Files, Listing, UnreadableError
from foldflight.spark.scans.predicate import Comparison, Predicate
from foldflight.spark.versions.sessions import is_remote, is_spark, parallelism
from foldflight.tracing import TraceSettings

Task: TypeAlias = "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]"

# A column chunk is read through a buffer of this size, so that a row group of any size takes little memory. A store of
# objects answers each request after a while.
_BUFFER_BYTES: Final = 1 << 20
_REMOTE_BUFFER_BYTES: Final = 8 << 20
# Bytes of a text in a file up to which texts with a dictionary are read as such.
_INDEX_BYTES_MAX: Final = 2.5
# Rows of a batch of texts or of arrays, before it is known how long they are.
_FIRST_ROWS: Final = 1 << 15
_FIRST_LISTS: Final = 1 << 11
# Bytes of a batch with arrays: Arrow copies each batch several times, and in the cache of a core that takes a third.
_LISTS_BYTES: Final = 4 << 20
# Settings of a session with another value than this change what Spark reads, and Spark reads then. All others that
# change a read change the columns and types that Spark tells, or its list of files.
_SETTINGS: Final = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
_IDS: Final = "spark.sql.parquet.fieldId.read.enabled"
_CASE: Final = "spark.sql.caseSensitive"
_DATES: Final = "spark.sql.parquet.datetimeRebaseModeInRead"

# The metadata of a column that tells its value in the rows of files without it.
_DEFAULT: Final = "EXISTS_DEFAULT"


# With more files than this, or where the driver may not see them, tasks of Spark read the footers.
_FOOTERS_MAX: Final = 256
_THREADS: Final = 8
# Bytes of the columns that one task reads at most, unless a row group has more: as for Spark's own reader.
_TASK_BYTES: Final = 128 << 20
_FOOTER: Final = (
    "path string, refusal string, size bigint, changed_ns bigint, "
    "groups array<struct<index: int, rows: bigint, size: bigint>>, left_out int, missing array<string>"
)


@dataclass(frozen=True)
class Source:
    """Rows that the tasks of a query read themselves.

    Args:
        splits: What each task reads.
        columns: The columns in the order of the query's rows.
        types: The types of these, and of those that the predicate compares, by name.
        keys: Those that are texts and nothing but keys, which may have a dictionary.
        predicate: The condition that rows must pass.
        open_filesystem: Makes the file system.
        files_left_out: The number of files in which no row passes, by the values of partitions.
        left_out: The number of row groups of other files in which no row passes.
    """

    splits: tuple[tuple[Split, ...], ...]
    columns: tuple[str, ...]
    types: dict[str, pa.DataType]
    keys: frozenset[str]
    predicate: Predicate
    open_filesystem: OpenFilesystem
    files_left_out: int
    left_out: int

    def map_rows(
        self,
        session: SparkSession,
        task: Task,
        bounds: BlockBounds,
        name: str,
        trace: TraceSettings | None,
        schema: st.StructType,
    ) -> DataFrame:
        """Return what a task makes of the rows.

        Args:
            session: The session.
            task: The task, which gets Arrow batches of one partition.
            bounds: The limits of the data that a task holds at once.
            name: The name of the step, which Spark shows.
            trace: For the spans of its tasks; None if there are none.
            schema: The schema of what the task makes.
        """
        reads = ReadSplits(self, bounds, task)
        count = len(self.splits)
        numbers = session.range(0, count, 1, max(count, 1))
        return numbers.mapInArrow(arrow_function(reads, name, trace), schema)

    def __str__(self) -> str:
        """Return who reads, as text for users."""
        splits = [each for task in self.splits for each in task]
        files, groups = len({each.path for each in splits}), sum(len(each.groups) for each in splits)
        counts = ((self.left_out, "row groups"), (self.files_left_out, "files"))
        left_out = " and ".join(f"{count:,} {what}" for count, what in counts if count)
        without = f", without {left_out} in which no row passes" if left_out else ""
        return f"{len(self.splits):,} tasks read {groups:,} row groups of {files:,} files themselves{without}"


def source_of(files: Files, columns: Sequence[str], keys: int, predicate: Predicate) -> Source:
    """Return the rows of some columns that pass a predicate, for tasks to read.

    Args:
        files: The files.
        columns: The columns; one may be there several times.
        keys: How many of them, the first ones, are the keys of the query.
        predicate: The predicate.

    Raises:
        UnreadableError: Spark has to read them.
    """
    df = files.df
    session = df.sparkSession
    mode, is_case_sensitive = _settings(session)
    if is_cached(df):
        raise UnreadableError("the rows of these files are cached")
    field_by_name = {each.name: each for each in df.schema}
    other = next((name for name in columns if name not in field_by_name), None)
    if other is not None:
        raise UnreadableError(f"{other!r} is not exactly the name of a column of the files")
    fields = {name: field_by_name[name] for name in dict.fromkeys([*columns, *predicate.columns])}
    has_ids = (session.conf.get(_IDS) or "").lower() != "false"
    arrow = {name: _type(each, has_ids=has_ids) for name, each in fields.items()}
    listing = files.listing()
    constants = {name: listing.constants_of(each) for name, each in fields.items() if name in listing.partitions}
    paths = _paths_that_pass(listing, constants, predicate, arrow)
    # From here on, columns have the names that they have in the files.
    stored_names = listing.stored
    fields = {stored_names.get(name, name): each for name, each in fields.items()}
    point = next((name for name in fields if "." in name), None)
    if point is not None:
        raise UnreadableError(f"the name {point!r} has a point, which Arrow reads as a member")
    constants = {stored_names.get(name, name): each for name, each in constants.items()}
    types = {stored_names.get(name, name): each for name, each in arrow.items()}
    columns = [stored_names.get(name, name) for name in columns]
    predicate = predicate.rename(stored_names)
    # Files of Delta may store the columns of partitions, too, and their values in the log are those that count.
    partitions = () if listing.is_declared else listing.partitions
    read_types = {name: each.dataType for name, each in fields.items() if name not in constants}
    request = ReadRequest(read_types, partitions, predicate, mode, is_case_sensitive)
    open_filesystem = files.open_filesystem or local
    footers = _footers(session, paths, open_filesystem, request)
    _check_footers(footers, listing, {name: fields[name] for name in read_types})
    pieces = [
        (each, group, {name: values[each.path] for name, values in constants.items()})
        for each in footers
        for group in each.groups
    ]
    splits = tuple(_splits(pieces, _tasks(session, pieces)))
    others = {*columns[keys:], *predicate.columns}
    texts = frozenset(name for name in columns[:keys] if pa.types.is_string(types[name]) and name not in others)
    left_out = (len(listing.paths) - len(paths), sum(each.left_out for each in footers))
    return Source(splits, tuple(columns), types, texts, predicate, open_filesystem, *left_out)


def _type(column: st.StructField, *, has_ids: bool) -> pa.DataType:
    type_ = readable_type(column)
    if type_ is None:
        raise UnreadableError(f"{column.name!r} is {column.dataType.simpleString()}, which is left to Spark")
    if has_ids and FIELD_ID in (column.metadata or {}):
        raise UnreadableError(f"{column.name!r} has a number, by which Spark looks it up in files ({_IDS})")
    return type_


def _paths_that_pass(
    listing: Listing, constants: Mapping[str, Mapping[str, Any]], predicate: Predicate, types: Mapping[str, pa.DataType]
) -> list[str]:
    """Return the paths, except of files in whose partition no row can pass."""
    compared_names = [name for name in predicate.columns if name in constants]
    if not compared_names:
        return list(listing.paths)
    values_by_path = {path: tuple(constants[name][path] for name in compared_names) for path in listing.paths}
    passing = set()
    for values in set(values_by_path.values()):
        if predicate.may_pass(_holds_for(dict(zip(compared_names, values, strict=True)), types)):
            passing.add(values)
    return [path for path in listing.paths if values_by_path[path] in passing]


def _holds_for(values: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> Callable[[Comparison], bool]:
    """Return what tells whether a comparison may hold in a file in which columns have constant values."""

    def may_hold(comparison: Comparison) -> bool:
        name = comparison.column
        return name not in values or comparison.holds(pa.array([values[name]], types[name]))[0].as_py() is True

    return may_hold


def _check_footers(footers: Sequence[Footer], listing: Listing, columns: Mapping[str, st.StructField]) -> None:
    """Raise UnreadableError for files that Spark has to read."""
    for each in footers:
        if each.refusal:
            raise UnreadableError(f"{each.path}: {each.refusal}")
        if each.size != listing.sizes.get(each.path, each.size):
            raise UnreadableError(
                f"{each.path} has {each.size:,} bytes, and the log tells of {listing.sizes[each.path]:,}"
            )
    for name in (name for name, column in columns.items() if _DEFAULT in (column.metadata or {})):
        without = next((each.path for each in footers if name in each.missing), None)
        if without is not None:
            raise UnreadableError(f"{without} does not have the column {name!r}, which has a default value")
    if listing.is_declared or not footers:
        return
    # A column of no file is one that Spark has from elsewhere.
    for name in set.intersection(set(columns), *(set(each.missing) for each in footers if each.size)):
        raise UnreadableError(f"no file has the column {name!r}")


def _settings(session: SparkSession) -> tuple[str, bool]:
    """Return the mode for old days, and whether case matters. Raises UnreadableError for settings left to Spark."""
    if not is_spark(session):
        raise UnreadableError("Sail reads files as fast itself")
    for name, value in _SETTINGS.items():
        actual = session.conf.get(name)
        if (actual or "").lower() != value:
            raise UnreadableError(f"{name} is {actual}")
    return (session.conf.get(_DATES) or "").upper(), (session.conf.get(_CASE) or "").lower() == "true"


def is_cached(df: DataFrame) -> bool:
    """Return whether Spark has the rows of this or an equal query."""
    level = df.storageLevel
    return bool(level.useMemory or level.useDisk or level.useOffHeap)


def _footers(
    session: SparkSession, paths: Sequence[str], open_filesystem: OpenFilesystem, request: ReadRequest
) -> list[Footer]:
    """Return the description of each file, which several threads or tasks read at the same time."""
    if not is_remote(session) and len(paths) <= _FOOTERS_MAX:
        with ThreadPoolExecutor(_THREADS) as pool:
            parts = [paths[index::_THREADS] for index in range(min(_THREADS, len(paths)))]
            descriptions = [
                each
                for part in pool.map(lambda part: list(footers(part, open_filesystem, request)), parts)
                for each in part
            ]
    else:
        descriptions = _footers_by_tasks(session, paths, open_filesystem, request)
    order = {path: index for index, path in enumerate(paths)}
    return sorted(descriptions, key=lambda each: order[each.path])


def _footers_by_tasks(
    session: SparkSession, paths: Sequence[str], open_filesystem: OpenFilesystem, request: ReadRequest
) -> list[Footer]:
    count = max(min(len(paths), parallelism(session)), 1)
    parts = [paths[index::count] for index in range(count)]
    read_task = arrow_function(_ReadFooters(parts, open_filesystem, request), "read_footers")
    rows = session.range(0, count, 1, count).mapInArrow(read_task, _FOOTER).collect()
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
    open_filesystem: OpenFilesystem
    request: ReadRequest

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = [
                    {**vars(each), "groups": [vars(group) for group in each.groups]}
                    for each in footers(self.parts[number], self.open_filesystem, self.request)
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
            yield tuple(_splits_by_file(task))


def _splits_by_file(pieces: Sequence[_Piece]) -> Iterator[Split]:
    """Yield the row groups of one task, file by file."""
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


@dataclass(frozen=True)
class Split:
    """Row groups of a file, which one task reads.

    Args:
        path: The path of the file in the file system.
        size: Its size in bytes when the query was planned.
        changed_ns: When it was last changed then.
        groups: The numbers of the row groups.
        rows: Their rows.
        missing: The columns that the file does not have.
        constants: The values of the columns that are in the names of its folders.
    """

    path: str
    size: int
    changed_ns: int
    groups: tuple[int, ...]
    rows: int
    missing: frozenset[str]
    constants: dict[str, Any]


@dataclass(frozen=True)
class ReadSplits:
    """A task that reads splits, and passes their rows to another task.

    Args:
        source: The splits of each task, and the rows of them that it passes. A row from Spark has the number of a task.
        bounds: The limits of a block.
        task: The other task.
    """

    source: Source
    bounds: BlockBounds
    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the other task over the rows of the splits that the batches name."""
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        return self.task(self._rows(split for number in numbers for split in self.source.splits[number]))

    def _rows(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        filesystem = self.source.open_filesystem()
        size = _BatchSize(self.source.types, self.bounds)
        for split in splits:
            for batch in self._read(split, filesystem, size):
                yield self._rows_that_pass(batch)

    def _rows_that_pass(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        narrow_batch = pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self.source.columns], names=list(self.source.columns)
        )
        if not self.source.predicate.terms:
            return narrow_batch
        return narrow_batch.filter(
            self.source.predicate.mask({name: batch.column(name) for name in self.source.predicate.columns})
        )

    def _read(self, split: Split, filesystem: fs.FileSystem, size: _BatchSize) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split with all columns. Raises RejectedError SOURCE_FILE."""
        _check_unchanged(split, filesystem)
        rows = 0
        try:
            for batch in self._batches(split, filesystem, size):
                rows += batch.num_rows
                yield self._cast_columns(batch, split)
        except (pa.ArrowException, OSError) as error:
            raise _damage_error(split, f"cannot be read: {str(error).splitlines()[0]}") from None
        if rows != split.rows:
            raise _damage_error(split, f"has {rows:,} rows where its footer tells of {split.rows:,}")
        _check_unchanged(split, filesystem)

    def _batches(self, split: Split, filesystem: fs.FileSystem, size: _BatchSize) -> Iterator[pa.RecordBatch]:
        names = [name for name in self.source.types if name not in split.missing and name not in split.constants]
        if not names:
            for start in range(0, split.rows, self.bounds.rows_max):
                count = min(self.bounds.rows_max, split.rows - start)
                yield pa.RecordBatch.from_arrays([pa.nulls(count)], names=[""])
            return
        buffer = _BUFFER_BYTES if isinstance(filesystem, fs.LocalFileSystem) else _REMOTE_BUFFER_BYTES
        with filesystem.open_input_file(split.path) as file:
            parquet = _open_parquet(file, buffer)
            encoded_names = [
                name for name in self.source.keys if name in names and _repeats(parquet, name, split.groups)
            ]
            if encoded_names:
                parquet = _open_parquet(file, buffer, read_dictionary=encoded_names, metadata=parquet.metadata)
            for group in split.groups:
                rows = size.rows(encoded_names)
                for batch in parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                    size.update(batch)
                    yield batch

    def _cast_columns(self, batch: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        arrays = []
        for name, type_ in self.source.types.items():
            if name in split.missing:
                arrays.append(pa.nulls(batch.num_rows, type_))
            elif name in split.constants:
                arrays.append(pa.repeat(pa.scalar(split.constants[name], type_), batch.num_rows))
            else:
                array = batch.column(name)
                arrays.append(
                    array if is_encoded(array.type, type_) and name in self.source.keys else array.cast(type_)
                )
        return pa.RecordBatch.from_arrays(arrays, names=list(self.source.types))


def _open_parquet(file: pa.NativeFile, buffer: int, **options: Any) -> pq.ParquetFile:
    # Before it returns rows, pyarrow would read all columns of a row group. Files of Spark have checksums of pages,
    # which show damage that leaves a page readable.
    options |= {"pre_buffer": False, "buffer_size": buffer, "page_checksum_verification": True}
    options |= {"coerce_int96_timestamp_unit": INT96_UNIT}
    return pq.ParquetFile(file, **options)


def _repeats(parquet: pq.ParquetFile, name: str, groups: Sequence[int]) -> bool:
    """Return whether a column of texts takes so few bytes that it is a dictionary of few values, and indexes."""
    leaf = next(index for index in range(len(parquet.schema)) if parquet.schema.column(index).path == name)
    chunks = [parquet.metadata.row_group(group).column(leaf) for group in groups]
    rows = sum(chunk.num_values for chunk in chunks)
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    return all(chunk.has_dictionary_page for chunk in chunks) and size <= _INDEX_BYTES_MAX * rows


class _BatchSize:
    """How many rows are read at once, so that they are a block: of texts and arrays this shows in those read before."""

    def __init__(self, types: dict[str, pa.DataType], bounds: BlockBounds) -> None:
        has_lists = any(map(pa.types.is_list, types.values()))
        self._rows_max = bounds.rows_max
        self._bytes_max = min(_LISTS_BYTES, bounds.bytes_max) if has_lists else bounds.bytes_max
        is_varying = (pa.types.is_string, pa.types.is_binary, pa.types.is_list)
        self._varying = {name for name, type_ in types.items() if any(each(type_) for each in is_varying)}
        self._rows = min(_FIRST_LISTS if has_lists else _FIRST_ROWS, bounds.rows_max)
        self._width = 1.0

    def rows(self, encoded_names: Iterable[str]) -> int:
        """Return the rows of the next batches. Texts with a dictionary are indexes, which are all of one size."""
        return self._rows if self._varying.difference(encoded_names) else self._rows_max

    def update(self, batch: pa.RecordBatch) -> None:
        """Take the width of rows that were read into account for the next row group."""
        if not self._varying or not batch.num_rows:
            return
        self._width = max(self._width, batch.nbytes / batch.num_rows)
        self._rows = max(min(int(self._bytes_max / self._width), self._rows_max), 1)


def _check_unchanged(split: Split, filesystem: fs.FileSystem) -> None:
    """Refuse a file that is not the one which was planned. Raises RejectedError SOURCE_FILE."""
    info = filesystem.get_file_info(split.path)
    if (info.size, info.mtime_ns or 0) != (split.size, split.changed_ns):
        what = "is gone" if info.type == fs.FileType.NotFound else "was replaced"
        remedy = "make the scan again, or give scan(...).df, which Spark reads"
        raise RejectedError("SOURCE_FILE", f"{split.path} {what} after the query was planned; {remedy}")


def _damage_error(split: Split, what: str) -> RejectedError:
    return RejectedError(
        "SOURCE_FILE",
        f"the file {split.path} {what}; if it is damaged, write it again or leave it out of the scan; if Spark "
        "reads it, give scan(...).df",
    )
