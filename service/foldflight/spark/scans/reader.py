"""The part of a scan that runs in tasks: reads row groups by Arrow, and gives them to the fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from foldflight.engine.query.blocks import BlockBounds, is_encoded
from foldflight.errors import RejectedError
from foldflight.spark.scans.footers import INT96_UNIT, OpenFilesystem
from foldflight.spark.scans.predicate import Predicate

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
        splits: The splits of each partition. A row from Spark has the number of one.
        columns: The names of the columns that the other task gets, in its order.
        types: The types of these, and of those that the predicate compares, by name.
        keys: Those that are texts and nothing but keys, which may have a dictionary.
        predicate: The condition that rows must pass.
        open_filesystem: Makes the file system.
        bounds: The limits of a block.
        task: The other task.
    """

    splits: tuple[tuple[Split, ...], ...]
    columns: tuple[str, ...]
    types: dict[str, pa.DataType]
    keys: frozenset[str]
    predicate: Predicate
    open_filesystem: OpenFilesystem
    bounds: BlockBounds
    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the other task over the rows of the splits that the batches name."""
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        return self.task(self._rows(split for number in numbers for split in self.splits[number]))

    def _rows(self, splits: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        filesystem = self.open_filesystem()
        size = _BatchSize(self.types, self.bounds)
        for split in splits:
            for batch in self._read(split, filesystem, size):
                yield self._passing(batch)

    def _passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        narrow_batch = pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self.columns], names=list(self.columns)
        )
        if not self.predicate.terms:
            return narrow_batch
        return narrow_batch.filter(self.predicate.mask({name: batch.column(name) for name in self.predicate.columns}))

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
        names = [name for name in self.types if name not in split.missing and name not in split.constants]
        if not names:
            for start in range(0, split.rows, self.bounds.rows_max):
                count = min(self.bounds.rows_max, split.rows - start)
                yield pa.RecordBatch.from_arrays([pa.nulls(count)], names=[""])
            return
        buffer = _BUFFER_BYTES if isinstance(filesystem, fs.LocalFileSystem) else _REMOTE_BUFFER_BYTES
        with filesystem.open_input_file(split.path) as file:
            parquet = _open_parquet(file, buffer)
            encoded_names = [name for name in self.keys if name in names and _repeats(parquet, name, split.groups)]
            if encoded_names:
                parquet = _open_parquet(file, buffer, read_dictionary=encoded_names, metadata=parquet.metadata)
            for group in split.groups:
                rows = size.rows(encoded_names)
                for batch in parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                    size.update(batch)
                    yield batch

    def _cast_columns(self, batch: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        arrays = []
        for name, type_ in self.types.items():
            if name in split.missing:
                arrays.append(pa.nulls(batch.num_rows, type_))
            elif name in split.constants:
                arrays.append(pa.repeat(pa.scalar(split.constants[name], type_), batch.num_rows))
            else:
                array = batch.column(name)
                arrays.append(array if is_encoded(array.type, type_) and name in self.keys else array.cast(type_))
        return pa.RecordBatch.from_arrays(arrays, names=list(self.types))


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
