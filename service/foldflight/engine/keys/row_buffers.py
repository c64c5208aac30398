"""Rows that a task buffers: of groups that may have failed, and of groups that do not fit into memory.

`BufferedRows` keeps rows until a barrier tells which groups have failed. `Overflow` writes the rows of a partition
whose groups do not fit into memory to temporary files, by the hash of their key. Each file is then a partition of its
own, with a sixteenth of the groups; if these do not fit either, it is divided by further bits of the hash. Source: M.
Kitsuregawa, H. Tanaka and T. Moto-oka, "Application of hash to data base machine and its architecture" (1983).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.query.blocks import convert
from foldflight.engine.query.layout import HASH, KIND, SLOT, QueryLayout
from foldflight.fold.failures import ERROR
from foldflight.functions import RowKind

_BITS: Final = 4
LEVELS: Final = 64 // _BITS
"""The number of times that rows can be divided by bits of their hash."""


_folders: list[str] = []


def keep_files_in(folders: Sequence[str]) -> None:
    """Write the temporary files of this process to these folders, where they exist, instead of the system's folder."""
    _folders[:] = [folder for folder in folders if os.access(folder, os.W_OK)]


def temporary_file() -> IO[bytes]:
    """Return a file without a name, which the system deletes even if the process is killed."""
    folder = _folders[os.getpid() % len(_folders)] if _folders else None  # so that the processes share the disks
    return tempfile.TemporaryFile(prefix="foldflight-", dir=folder)


class Overflow:
    """The rows of groups that are not resident.

    Args:
        schema: The schema of the rows, with their hashes.
        level: How many times these rows have been divided already.
    """

    def __init__(self, schema: pa.Schema, level: int) -> None:
        self._schema = schema
        self._shift = np.uint64(_BITS * level)
        self._files: dict[int, tuple[IO[bytes], pa.RecordBatchStreamWriter]] = {}

    def add(self, rows: pa.RecordBatch, resident: pa.Array) -> pa.RecordBatch:
        """Write the rows whose hashes are not among the resident ones, and return the others."""
        others = pc.invert(pc.is_in(rows.column(HASH), resident))
        if not others.true_count:
            return rows
        away = rows.filter(others)
        bits = away.column(HASH).to_numpy().view(np.uint64) >> self._shift
        parts = (bits & np.uint64((1 << _BITS) - 1)).astype(np.int64)
        sorted_rows = away.take(pa.array(np.argsort(parts, kind="stable")))
        ends = np.cumsum(np.bincount(parts, minlength=1 << _BITS)).tolist()
        for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if end > start:
                self._writer(part).write_batch(sorted_rows.slice(start, end - start))
        return rows.filter(pc.invert(others))

    def _writer(self, part: int) -> pa.RecordBatchStreamWriter:
        if part not in self._files:
            file = temporary_file()
            self._files[part] = (file, pa.ipc.new_stream(file, self._schema))
        return self._files[part][1]

    def parts(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the rows of each file, in the order in which they were added."""
        for file, writer in self._files.values():
            writer.close()
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                yield iter(reader)
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file, _ in self._files.values():
            file.close()


_BUFFER_BYTES_MAX: Final = 64 << 20


class BufferedRows:
    """Rows of an epoch, kept until they are needed again: as dead letters, or for retractions that come later.

    Args:
        rows: The schema of the rows.
        bytes_max: Bytes that are kept in memory. Further rows are written to a file.
    """

    def __init__(self, rows: pa.Schema, *, bytes_max: int = _BUFFER_BYTES_MAX) -> None:
        self._schema = pa.schema([pa.field(SLOT, pa.int32()), *rows])
        self._bytes_max = bytes_max
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, slots: npt.NDArray[np.int32], rows: pa.RecordBatch) -> None:
        """Keep n rows, each with its slot."""
        columns = [pa.array(slots, pa.int32()), *(rows.column(name) for name in self._schema.names[1:])]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > self._bytes_max:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            self._file = temporary_file()
            self._writer = pa.ipc.new_stream(self._file, self._schema)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches, self._bytes = [], 0

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in order, in batches with their slots. Rows may be added when the last one was yielded."""
        if self._file is not None:
            end = self._file.tell()
            self._file.seek(0)
            # The reader ends with the file; the writer, which goes on afterwards, has not marked the end yet.
            yield from pa.ipc.open_stream(self._file)
            self._file.seek(end)
        yield from self._batches

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows like `read`, and release them."""
        yield from self.read()
        self.close()

    def close(self) -> None:
        """Release the rows."""
        self._batches, self._bytes, self._writer = [], 0, None
        if self._file is not None:
            self._file.close()
            self._file = None


class FailedGroups:
    """The groups of an epoch that have failed.

    Args:
        layout: The columns of the query.
        groups: n rows, one for each group: `slot` int32, ascending or not, and `error`.
        keys: Returns the keys of slots, in the schema of the layout's keys.
    """

    def __init__(
        self, layout: QueryLayout, groups: pa.RecordBatch, keys: Callable[[npt.NDArray[np.int32]], pa.RecordBatch]
    ) -> None:
        self.slots: npt.NDArray[np.int32] = groups.column(SLOT).to_numpy()
        self._layout = layout
        self._errors = groups.column(ERROR)
        self._keys = keys

    def __len__(self) -> int:
        return len(self.slots)

    def letters(
        self, buffered_rows: BufferedRows, owners: npt.NDArray[np.int32] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the dead letters of these groups, in the schema of the query's results.

        Args:
            buffered_rows: The rows of the epoch.
            owners: int32: the group's slot for each slot of the rows, -1 for none. Default: both slots are the same.
        """
        if not len(self):
            buffered_rows.close()
            return
        index_of = np.full(int(self.slots.max()) + 2, -1, np.int64)  # the last entry stands for all larger slots
        index_of[self.slots] = np.arange(len(self))
        has_rows = np.zeros(len(self), np.bool_)
        for batch in buffered_rows.take():
            slots = batch.column(SLOT).to_numpy()
            owner_slots = slots if owners is None else owners[slots]
            indexes = index_of[np.minimum(owner_slots, len(index_of) - 1)]
            failed_mask = indexes >= 0
            if failed_mask.any():
                has_rows[indexes[failed_mask]] = True
                yield self._letters(indexes[failed_mask], batch.filter(pa.array(failed_mask)))
        if not has_rows.all():
            yield self._letters(np.flatnonzero(~has_rows), None)

    def _letters(self, indexes: npt.NDArray[np.int64], rows: pa.RecordBatch | None) -> pa.RecordBatch:
        layout, count = self._layout, len(indexes)
        keys = self._keys(self.slots[indexes]).columns
        error = self._errors.take(pa.array(indexes))
        type_ = layout.letter
        members = {name: error.field(name) for name in ("code", "function", "message", "trace")}
        members["at"] = error.field("row")
        members["row_kind"] = _kinds(rows, count)
        if keys:
            members["key"] = _struct(keys, type_.field("key").type, count)
        if len(layout.columns):
            columns = None if rows is None else [rows.column(name) for name in layout.columns.names]
            members["row"] = _struct(columns, type_.field("row").type, count)
        letter = pa.StructArray.from_arrays([members[field.name] for field in type_], fields=list(type_))
        outputs = [pa.nulls(count, field.type) for field in layout.outputs]
        return pa.RecordBatch.from_arrays([*keys, *outputs, letter], schema=layout.results)


def split_failed(
    layout: QueryLayout, results: pa.RecordBatch, keys: Callable[[npt.NDArray[np.int32]], pa.RecordBatch]
) -> tuple[pa.RecordBatch, FailedGroups]:
    """Return the results of the groups that have not failed, and the groups that have.

    Args:
        layout: The columns of a query that isolates errors.
        results: n rows, one for each group: `slot` int32, states and outputs, and `error`.
        keys: Returns the keys of slots, in the schema of the layout's keys.
    """
    is_sound = results.column(ERROR).is_null()
    return results.filter(is_sound), FailedGroups(layout, results.filter(pc.invert(is_sound)), keys)


def _kinds(rows: pa.RecordBatch | None, count: int) -> pa.Array:
    if rows is None:
        return pa.nulls(count, pa.string())
    if KIND not in rows.schema.names:
        return pa.array([RowKind.INSERT.short] * count, pa.string())
    return pa.array([kind.short for kind in RowKind]).take(rows.column(KIND))


def _struct(columns: list[pa.Array] | None, type_: pa.StructType, count: int) -> pa.Array:
    if columns is None:
        return pa.nulls(count, type_)
    converted_columns = [convert(column, field.type) for column, field in zip(columns, type_, strict=True)]
    return pa.StructArray.from_arrays(converted_columns, fields=list(type_))
