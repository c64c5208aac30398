"""Runs of state tables in files that all Python workers of a host share.

Spark gives a partition to any of its workers, so a run that one has written is often looked up by another, which would
get it from the state store again. Runs never change, and their names are unique, so a file is valid for ever, for every
task and rerun. It appears whole or not at all, and is mapped, not read; one that is removed while it is mapped stays
there for whoever has it. Bytes are checked by whoever decodes them.
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

__all__ = ["HostCache", "private_folder"]

_FILE: Final = ".run"


def private_folder() -> Path | None:
    """Return the folder of this user's runs in the folder for temporary files; None if it cannot be had for oneself.

    Others may write to the folder that it is in: what they have put there is not taken.
    """
    folder = Path(tempfile.gettempdir(), f"foldflight-runs-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return folder if is_own else None


class HostCache:
    """Files of runs, those that were used least recently going first.

    It is never in the way: where a file cannot be written or read, there is none.

    Args:
        folder: Where they are.
        bytes_max: Bytes of all files. Each process looks after having written a sixteenth of it, so for a moment there
            may be as much more for each.
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
            os.utime(path)  # by this it is known what was used last
        except OSError:
            return None
        return data

    def put(self, run_id: str, data: bytes) -> None:
        """Write the file of a run; others go if it must be."""
        if len(data) > self._bytes_max // 16:
            return
        path = self._path(run_id)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(data)
            draft.replace(path)
        except OSError:  # no space, most often
            with contextlib.suppress(OSError):
                draft.unlink()
            return
        self._written += len(data)
        if self._written > self._bytes_max // 16:
            self._written = 0
            self._make_room()

    def drop(self, run_ids: Sequence[str]) -> None:
        """Remove the files of runs."""
        for run_id in run_ids:
            with contextlib.suppress(OSError):
                self._path(run_id).unlink()

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}{_FILE}"

    def _make_room(self) -> None:
        """Remove files, also drafts of processes that have died, until an eighth of the bytes is free."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process makes room, too
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime_ns, facts.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total <= self._bytes_max:
            return
        for _, size, path in sorted(found):
            with contextlib.suppress(OSError):
                Path(path).unlink()
            total -= size
            if total <= self._bytes_max * 7 // 8:
                return
