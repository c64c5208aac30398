"""The temporary folder of a server for compiled code, and the folders that killed servers have left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from foldflight.server.ops.logs import Logger

_PREFIX: Final = "foldflight-compiled-"
_LOCK_FILE: Final = ".in-use"


@contextlib.contextmanager
def spare_folder(logger: Logger) -> Iterator[Path | None]:
    """Have a folder for compiled code while the block runs; None if there is no place for temporary files.

    A killed server leaves its folder, without the lock, which ended with the process. So the next server deletes it.
    """
    with contextlib.ExitStack() as stack:
        try:
            temporary = Path(tempfile.gettempdir())
            _delete_left(temporary, logger)
            made = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=_PREFIX, dir=temporary, ignore_cleanup_errors=True)
                )
            )
            stack.callback(os.close, _lock_new(made))
        except OSError as error:
            logger.info("there is no place for temporary files, such as compiled code", problem=str(error))
            yield None
        else:
            yield made


def _lock_new(folder: Path) -> int:
    """Lock a new folder, and return the open file. Raises OSError.

    The file is locked before it gets its name, so another server never finds it unlocked.
    """
    draft = folder / f"{_LOCK_FILE}.new"
    file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody else gets one there, either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(folder / _LOCK_FILE)
    except BaseException:
        os.close(file)
        raise
    return file


def _delete_left(temporary: Path, logger: Logger) -> None:
    """Delete the folders of servers of this user that have ended. What cannot be deleted is left."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, without a lock, or another server deletes it
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                continue
            file = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                logger.info("deleted the temporary folder of a server that was killed", folder=str(folder))
            finally:
                os.close(file)
