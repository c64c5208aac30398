"""Immutable sorted runs: the byte format of the pieces of a state table or of a time log, and their lookup.

A piece is sorted by its first column. A piece of a state table holds groups: `hash` uint64, the key columns, `live`
int64 (0 is a tombstone of a removed group), and one state column for each call. A piece of a time log holds rows, and
begins with `time` int64. Pieces never change, so decoded pieces may be cached.

`HostCache` has runs in files that all Python workers of a host share. Spark assigns a partition to any of its workers,
so one worker often looks up a run that another one has written and would have to read it from the state store. Runs are
immutable and their names are unique, so a file never becomes invalid. Files are created atomically and are
memory-mapped; a mapped file stays readable after it has been removed. A process checks the bytes of a run when it first
decodes it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.errors import CorruptError

_FILE: Final = ".run"


def private_folder() -> Path | None:
    """Return this user's folder for runs in the folder for temporary files, or None if it is not private.

    Other users can create files in the folder for temporary files, so a folder of another owner is not used.
    """
    folder = Path(tempfile.gettempdir(), f"foldflight-runs-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        facts = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not stat.S_IMODE(facts.st_mode) & 0o077
    return folder if is_own else None


class HostCache:
    """Files of runs, with removal of the least recently used.

    I/O errors count as cache misses.

    Args:
        folder: The folder of the files.
        bytes_max: Maximum bytes of all files. Each process checks it after writing a sixteenth of it, so each process
            may exceed it temporarily by this amount.
    """

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._written_bytes = 0

    def get(self, run_id: str) -> pa.Buffer | None:
        """Return the bytes of a run, mapped from its file."""
        path = self._path(run_id)
        try:
            with pa.memory_map(str(path)) as file:
                data = file.read_buffer()
            os.utime(path)  # the modification time is the time of the last use
        except OSError:
            return None
        return data

    def has(self, run_id: str) -> bool:
        """Return whether there is a file of a run."""
        return self._path(run_id).exists()

    def put(self, run_id: str, data: bytes) -> None:
        """Write the file of a run; remove others if the limit is exceeded."""
        if len(data) > self._bytes_max // 16:
            return
        path = self._path(run_id)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(data)
            draft.replace(path)
        except OSError:  # usually because the disk is full
            with contextlib.suppress(OSError):
                draft.unlink()
            return
        self._written_bytes += len(data)
        if self._written_bytes > self._bytes_max // 16:
            self._written_bytes = 0
            self._evict()

    def drop(self, run_ids: Sequence[str]) -> None:
        """Remove the files of runs."""
        for run_id in run_ids:
            with contextlib.suppress(OSError):
                self._path(run_id).unlink()

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}{_FILE}"

    def _evict(self) -> None:
        """Remove files, including drafts of dead processes, until an eighth of the bytes is free."""
        files = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process may be removing files too
                    facts = entry.stat(follow_symlinks=False)
                    files.append((facts.st_mtime_ns, facts.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= self._bytes_max:
            return
        for _, size, path in sorted(files):
            with contextlib.suppress(OSError):
                Path(path).unlink()
            total -= size
            if total <= self._bytes_max * 7 // 8:
                return


_MAGIC: Final = b"FFR1"
_CHECKED_MAX: Final = 1 << 16


class Piece:
    """One decoded piece.

    Args:
        batch: Its rows, sorted by the first column.

    Attributes:
        hashes: The values of that column: hashes in a state table, and times in a time log.
        is_mapped: Whether its bytes are mapped from a file.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.is_mapped = False
        self.hashes: npt.NDArray[Any] = batch.column(0).to_numpy()

    def slice(self, low: int, high: int) -> pa.RecordBatch:
        """Return the rows with `low <= hash <= high`."""
        start, end = self._range(low, high)
        return self.batch.slice(start, end - start)

    def count(self, low: int, high: int) -> int:
        """Return the number of rows with `low <= hash <= high`."""
        start, end = self._range(low, high)
        return end - start

    def _range(self, low: int, high: int) -> tuple[int, int]:
        start = int(np.searchsorted(self.hashes, np.uint64(low), "left"))
        return start, int(np.searchsorted(self.hashes, np.uint64(high), "right"))


def encode_piece(batch: pa.RecordBatch) -> bytes:
    """Return a piece as bytes, sealed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.remove_metadata()) as writer:
        writer.write_batch(batch)
    return seal(_MAGIC, sink.getvalue())


def decode_piece(data: bytes | memoryview, run_id: str, *, is_checked: bool = False) -> Piece:
    """Return the piece of sealed bytes. Their checksum is not computed again if `is_checked`.

    Raises:
        CorruptError: STATE_CHECKSUM, if they are damaged.
    """
    what = f"the run {run_id}"
    payload = memoryview(data).cast("B")[8:] if is_checked else unseal(_MAGIC, data, what)
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            return Piece(reader.read_next_batch())
    except (pa.ArrowException, StopIteration, IndexError) as error:
        raise CorruptError("STATE_CHECKSUM", f"{what} of a state table cannot be read: {error}") from error


def seal(magic: bytes, payload: bytes | pa.Buffer) -> bytes:
    """Return a payload with its magic and checksum in front."""
    return b"".join((magic, zlib.crc32(payload).to_bytes(4, "big"), payload))


def unseal(magic: bytes, data: bytes | memoryview, what: str) -> memoryview:
    """Return the payload of sealed bytes, which are not copied. Raises CorruptError STATE_CHECKSUM."""
    view = memoryview(data).cast(
        "B"
    )  # Arrow's memoryview has signed bytes, which do not compare with bytes from 128 on
    payload = view[8:]
    if view[:4] != magic or zlib.crc32(payload).to_bytes(4, "big") != view[4:8]:
        raise CorruptError(
            "STATE_CHECKSUM",
            f"{what} of a state table is damaged or truncated ({len(data)} bytes); restore the checkpoint from a "
            "copy, or start from an empty one",
        )
    return payload


class RunCache:
    """A cache of one process's decoded pieces, with removal of the least recently used.

    Pieces that this process wrote, or read from a state store, occupy memory. Pieces from the shared cache are mapped
    files, which occupy address space; the kernel keeps as much of them in memory as it can. So there is a limit for
    each of the two kinds.

    Args:
        bytes_max: Maximum bytes of the cached pieces in memory.
        host_cache: The cache of encoded pieces that the processes of the host share.
        mapped_bytes_max: Maximum bytes of the cached pieces that are mapped.

    Attributes:
        bytes: Bytes of the cached pieces in memory.
        mapped_bytes: Bytes of the pieces that are mapped from files.
    """

    def __init__(self, *, bytes_max: int, host_cache: HostCache | None = None, mapped_bytes_max: int = 4 << 30) -> None:
        self.bytes_max = bytes_max
        self.mapped_bytes_max = mapped_bytes_max
        self._host_cache = host_cache
        self.bytes = 0
        self.mapped_bytes = 0
        self._in_memory: OrderedDict[str, Piece] = OrderedDict()
        self._mapped_pieces: OrderedDict[str, Piece] = OrderedDict()
        self._checked_ids: set[str] = set()
        self._newly_mapped = 0

    def get(self, run_id: str) -> Piece | None:
        """Return a cached piece."""
        for pieces in (self._in_memory, self._mapped_pieces):
            if run_id in pieces:
                pieces.move_to_end(run_id)
                return pieces[run_id]
        return None

    def load(self, run_id: str) -> Piece | None:
        """Return a piece from the shared cache; a damaged file is removed.

        A process checks the bytes of a piece once: pieces are immutable, and files are replaced as a whole.
        """
        data = None if self._host_cache is None else self._host_cache.get(run_id)
        if data is None:
            return None
        try:
            piece = decode_piece(memoryview(data), run_id, is_checked=run_id in self._checked_ids)
        except CorruptError:
            self.drop([run_id])
            return None
        if len(self._checked_ids) >= _CHECKED_MAX:
            self._checked_ids.clear()
        self._checked_ids.add(run_id)
        piece.is_mapped = True
        return piece

    def share(self, run_id: str, data: bytes) -> None:
        """Put the bytes of a piece into the shared cache."""
        if self._host_cache is not None:
            self._host_cache.put(run_id, data)

    def put(self, run_id: str, piece: Piece) -> None:
        """Cache a piece; remove others if the limit is exceeded."""
        if run_id in self._in_memory or run_id in self._mapped_pieces:
            return
        if piece.is_mapped:
            self._put_mapped(run_id, piece)
            return
        if piece.batch.nbytes > self.bytes_max:
            return
        self._in_memory[run_id] = piece
        self.bytes += piece.batch.nbytes
        while self.bytes > self.bytes_max:
            self._forget(next(iter(self._in_memory)))

    def drop(self, run_ids: Sequence[str]) -> None:
        """Remove pieces that no longer exist after a merge."""
        for run_id in run_ids:
            self._forget(run_id)
            self._checked_ids.discard(run_id)
        if self._host_cache is not None:
            self._host_cache.drop(run_ids)

    def _put_mapped(self, run_id: str, piece: Piece) -> None:
        size = piece.batch.nbytes
        if size > self.mapped_bytes_max:
            return
        self._mapped_pieces[run_id] = piece
        self.mapped_bytes += size
        self._newly_mapped += size
        if self._newly_mapped > self.mapped_bytes_max // 16:
            self._newly_mapped = 0
            self._unmap_removed()
        while self.mapped_bytes > self.mapped_bytes_max:
            self._forget(next(iter(self._mapped_pieces)))

    def _unmap_removed(self) -> None:
        """Forget mapped pieces whose files were removed, usually by the process that merged them.

        The disk space of a removed file is free only when no process maps it.
        """
        if self._host_cache is not None:
            for run_id in [each for each in self._mapped_pieces if not self._host_cache.has(each)]:
                self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        in_memory, mapped_piece = self._in_memory.pop(run_id, None), self._mapped_pieces.pop(run_id, None)
        self.bytes -= 0 if in_memory is None else in_memory.batch.nbytes
        self.mapped_bytes -= 0 if mapped_piece is None else mapped_piece.batch.nbytes
