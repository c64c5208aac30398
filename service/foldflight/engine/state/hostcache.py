"""A cache of state table runs in files that all Python workers of a host share.

Spark assigns a partition to any of its workers, so one worker often looks up a run that another one has written and
would have to read it from the state store. Runs are immutable and their names are unique, so a file never becomes
invalid. Files are created atomically and are memory-mapped; a mapped file stays readable after it has been removed.
A process checks
the bytes of a run when it first decodes it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

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
        self._written = 0

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
        self._written += len(data)
        if self._written > self._bytes_max // 16:
            self._written = 0
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
