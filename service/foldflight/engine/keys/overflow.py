"""Rows of a partition whose groups do not fit into memory, in temporary files by the hash of their key.

Each file is then a partition of its own, with a sixteenth of the groups; if these do not fit either, it is divided by
further bits of the hash. Source: M. Kitsuregawa, H. Tanaka and T. Moto-oka, "Application of hash to data base machine
and its architecture" (1983).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.query.layout import HASH

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
