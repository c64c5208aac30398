"""A folder of compiled loops for later processes. Shell: it reads and writes files.

Loading a file from this folder executes it. So the folder is used only if it belongs to this user and nobody else may
write to it. A file begins with the digest of the rest, and damaged files are ignored. Files are renamed into place, so
processes may write the same file at once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, Literal

_FILES_MAX: Final = 1000
# The names of loops and refusals, and of files that are not written completely.
_WRITTEN: Final = re.compile(r"[0-9a-f]{32}\.|\.[0-9]+\.")
# In the names of all symbols of numba's memory.
_OF_MEMORY: Final = (b"NRT_", b"nrt_")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_logger: Final = logging.getLogger(__name__)


def user_folder() -> Path:
    """Return the user's cache folder, found as numba does: in NUMBA_CACHE_DIR, XDG_CACHE_HOME or ~/.cache."""
    from numba.core import config
    from numba.misc.appdirs import user_cache_dir

    return Path(config.CACHE_DIR, "foldflight") if config.CACHE_DIR else Path(user_cache_dir("foldflight"))


class LoopStore:
    """A folder of compiled loops.

    I/O errors count as cache misses: the first is logged, and loops are compiled.

    Args:
        folder: The folder, which is created when the first loop is stored. `user`: the user's cache folder.
        spare: A folder that has the loops that the first one lacks, if that cannot be written to.
    """

    def __init__(self, folder: Path | Literal["user"], spare: Path | None = None) -> None:
        self._requested_folder = folder
        self._spare = None if spare is None else LoopStore(spare)
        self._is_reported = False

    @functools.cached_property
    def folder(self) -> Path:
        """The folder."""
        return user_folder() if isinstance(self._requested_folder, str) else self._requested_folder

    @property
    def target(self) -> Path:
        """The folder to which loops are written."""
        return self.folder if self._spare is None or self._can_write else self._spare.folder

    @functools.cached_property
    def _can_write(self) -> bool:
        try:
            if self.folder.exists():
                return self.is_safe() and os.access(self.folder, os.W_OK)
            above = next(path for path in self.folder.absolute().parents if path.exists())
        except OSError:
            return False
        return os.access(above, os.W_OK)

    def loop(self, digest: str, name: str, lines: str = "") -> StoredLoop:
        """Return the file of a loop.

        Args:
            digest: The digest of what the author's code depends on.
            name: The name of the loop.
            lines: Where this code is. Reasons name lines, so moved code is refused anew, and its loop is reused.
        """
        key = hashlib.sha256(f"{_surroundings()} {digest}".encode()).hexdigest()[:32]
        places = hashlib.sha256(lines.encode(errors="backslashreplace")).hexdigest()[:8]
        own = StoredLoop(self, self.folder / f"{key}.{name}", self.folder / f"{key}.{name}.no.{places}")
        return own if self._spare is None or own.is_known or self._can_write else self._spare.loop(digest, name, lines)

    def is_safe(self) -> bool:
        """Return whether the folder belongs to this user and nobody else may write to it. Raises OSError."""
        status = self.folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return True
        self.report("belongs to another user" if status.st_uid != os.getuid() else "can be written to by others")
        return False

    def report(self, problem: str) -> None:
        """Log why the folder is not used, once."""
        if not self._is_reported:
            self._is_reported = True
            _logger.warning("the folder of compiled code %s %s; compiled code is not kept", self.folder, problem)

    def drop_oldest(self) -> None:
        """Delete the least recently used files if there are too many. Raises OSError.

        Others are not counted, such as the lock of servers that compile.
        """
        uses = []
        for path in self.folder.iterdir():
            if not _WRITTEN.match(path.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process renames or deletes it
                uses.append((path.lstat().st_mtime, path))
        for _, path in sorted(uses)[:-_FILES_MAX]:
            path.unlink(missing_ok=True)


class StoredLoop:
    """The file of one loop, as numba's dispatchers use it: the interface of `numba.core.caching._Cache`.

    Args:
        store: The folder.
        path: The file.
        refusal_path: The file with the reason why it cannot be compiled.
    """

    def __init__(self, store: LoopStore, path: Path, refusal_path: Path) -> None:
        self.store = store
        self.path = path
        self.refused = refusal_path
        self.cache_path = str(path)

    @property
    def is_stored(self) -> bool:
        """Whether there is a file with the loop."""
        return self._is_there(self.path)

    @property
    def is_known(self) -> bool:
        """Whether there is a file with the loop, or with the reason why it cannot be compiled."""
        return self._is_there(self.path) or self._is_there(self.refused)

    def _is_there(self, path: Path) -> bool:
        try:
            return path.exists() and self.store.is_safe()
        except OSError:
            return False

    def refusal(self) -> str:
        """Return the reason why the loop cannot be compiled; empty if none is stored."""
        try:
            if not self.store.is_safe():
                return ""
            reason = self.refused.read_text("utf-8", "replace")
            os.utime(self.refused)
        except FileNotFoundError:
            return ""
        except OSError as error:
            self.store.report(f"cannot be read: {error.strerror}")
            return ""
        return reason

    def refuse(self, reason: str) -> None:
        """Store the reason why the loop cannot be compiled, since finding it takes as long as compiling."""
        self._write(self.refused, reason.encode(errors="backslashreplace"))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the loop; None if there is no usable file."""
        from numba.core.compiler import CompileResult
        from numba.core.runtime import rtsys

        try:
            if not self.store.is_safe():
                return None
            content = self.path.read_bytes()
            digest, packed_loop = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(packed_loop).digest() != digest:
                raise ValueError("its digest is another")
            fields = pickle.loads(packed_loop)  # noqa: S301
            ((_, _, (machine_code, _)), *_) = fields
            # Not `refresh`, which imports what only compiling needs. Of numba's memory, loops that count no references
            # have no symbols, and LLVM's generator of code, of 20 MiB, is read from the disk only to compile these.
            if any(symbol in machine_code for symbol in _OF_MEMORY):
                rtsys.initialize(target_context)
            loop = CompileResult._rebuild(target_context, *fields)
            # Code that is executed is a copy. The other forms are for code that is compiled and calls this one; no code
            # calls a loop, and of hundreds of loops they would take 0.2 MiB each.
            loop.library._shared_module = loop.library._compiled_object = None
            os.utime(self.path)  # the least recently used files are deleted first
        except FileNotFoundError:
            return None
        except OSError as error:
            self.store.report(f"cannot be read: {error.strerror}")
            return None
        except Exception as error:  # noqa: BLE001 - a damaged file may raise anything; the loop can be compiled again
            _logger.warning("%s is damaged (%r); its code is compiled again, and replaces the file", self.path, error)
            return None
        return loop

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the loop to its file. I/O errors are logged."""
        from numba.core.serialize import dumps

        packed_loop = dumps(data._reduce())
        self._write(self.path, hashlib.sha256(packed_loop).digest() + packed_loop)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self.store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.store.is_safe():
                return
            # Whoever kills a process that compiles deletes what it has not written completely, by this name.
            prefix = f".{os.getpid()}."
            with tempfile.NamedTemporaryFile(dir=self.store.folder, prefix=prefix, delete=False) as file:
                temporary_path = Path(file.name)
                try:
                    file.write(content)
                    file.flush()
                    temporary_path.replace(path)
                except BaseException:  # no partial file is left on a full disk
                    temporary_path.unlink(missing_ok=True)
                    raise
            self.store.drop_oldest()
        except OSError as error:
            self.store.report(f"cannot be written to: {error.strerror}")


@functools.cache
def _surroundings() -> str:
    """Return what all compiled loops depend on: this package's fold and compiler, numba, Python and the processor."""
    import llvmlite
    import llvmlite.binding
    import numba

    package = Path(__file__).parents[2]
    sources = sorted(path for folder in ("fold", "ext/compiler") for path in (package / folder).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    processor = f"{llvmlite.binding.get_host_cpu_name()} {llvmlite.binding.get_host_cpu_features().flatten()}"
    return f"{digest} {numba.__version__} {llvmlite.__version__} {sys.version} {processor}"
