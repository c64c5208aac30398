"""Compiled loops in a folder, for the processes that come after this one.

What is read here is run. So the folder is used only if it belongs to this user and nobody else may write to it, and a
file only if it is whole: it begins with the digest of the rest. Files are put in place in one step, so that processes
that compile the same at once do not disturb each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, Final

from numba.core import config
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.misc.appdirs import user_cache_dir

__all__ = ["Store", "user_folder"]

_FILES_MAX: Final = 1000
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_logger: Final = logging.getLogger(__name__)
_told: Final[set[Path]] = set()


def user_folder() -> Path:
    """Return where the user's caches are, as numba finds it: NUMBA_CACHE_DIR, or XDG_CACHE_HOME, or ~/.cache."""
    return Path(config.CACHE_DIR, "foldflight") if config.CACHE_DIR else Path(user_cache_dir("foldflight"))


class Store(_Cache):
    """Where numba puts one compiled loop, and finds it again.

    A folder that cannot be used costs time, and nothing else: the process says so once, and compiles.

    Args:
        folder: The folder; it is made when something is first put there.
        name: Name of the loop, a digest of all that it depends on.
    """

    cache_path = ""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.path = folder / name
        self.enabled = True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the loop, or None."""
        try:
            if not (self.enabled and self._is_ours()):
                return None
            content = self.path.read_bytes()
            digest, packed = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(packed).digest() != digest:
                raise ValueError("damaged")
            target_context.refresh()  # or what is loaded does not find numba's own functions
            found = CompileResult._rebuild(target_context, *pickle.loads(packed))  # noqa: S301
            os.utime(self.path)  # what is used is the last to be dropped
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell(f"cannot be read: {error.strerror}")
            return None
        except Exception:  # noqa: BLE001 - whatever the file holds, it can be compiled again
            _logger.info("%s is damaged, and compiled again", self.path)
            return None
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the loop, if there is room for it."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (self.enabled and self._is_ours()):
                return
            packed = dumps(data._reduce())
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", delete=False) as file:
                made = Path(file.name)
                try:
                    file.write(hashlib.sha256(packed).digest() + packed)
                    file.flush()
                    made.replace(self.path)
                except BaseException:  # a full disk is not filled further
                    made.unlink(missing_ok=True)
                    raise
            self._drop_oldest()
        except OSError as error:
            self._tell(f"cannot be written to: {error.strerror}")

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    def flush(self) -> None:
        self.path.unlink(missing_ok=True)

    def _drop_oldest(self) -> None:
        used = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process puts it in place, or drops it
                used.append((path.lstat().st_mtime, path))
        for _, path in sorted(used)[:-_FILES_MAX]:
            path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        status = self.folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return True
        self._tell("belongs to another user" if status.st_uid != os.getuid() else "can be written to by others")
        return False

    def _tell(self, problem: str) -> None:
        if self.folder not in _told:
            _told.add(self.folder)
            _logger.warning("the folder of compiled code %s %s; what is compiled is not kept", self.folder, problem)
