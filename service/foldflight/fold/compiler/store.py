"""Compiled loops in a folder, for the processes that come after this one."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, Final

from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

__all__ = ["Store"]

_FILES_MAX: Final = 1000


class Store(_Cache):
    """Where numba puts one compiled loop, and finds it again.

    What is read here is run: the folder is used only if it belongs to this user, and nobody else may write to it.

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
            if self.enabled and self._is_ours():
                target_context.refresh()  # or what is loaded does not find numba's own functions
                return CompileResult._rebuild(target_context, *pickle.loads(self.path.read_bytes()))  # noqa: S301
        except FileNotFoundError:
            pass
        except Exception:  # noqa: BLE001 - whatever the file holds, it can be compiled again
            self.path.unlink(missing_ok=True)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the loop, if there is room for it."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (self.enabled and self._is_ours()):
                return
            packed = dumps(data._reduce())
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", delete=False) as file:
                file.write(packed)
            Path(file.name).replace(self.path)
            known = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in known[:-_FILES_MAX]:
                path.unlink(missing_ok=True)
        except OSError:
            pass  # A folder that cannot be written to costs time, and nothing else.

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    def flush(self) -> None:
        self.path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        status = self.folder.stat()
        return status.st_uid == os.getuid() and not status.st_mode & 0o022
