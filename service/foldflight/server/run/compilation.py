"""The functions of a server that wait to be compiled, and the process that compiles them.

A server is ready before its functions are compiled, and interprets them until then. A function is compiled when it is
used: another process compiles it into the folder of compiled code, from which the server loads it. That process takes
the function with most rows first, and ends when none waits, so that the memory of the compiler is freed. Of all servers
that share a folder, one at a time has such a process: the others wait, and load what it has compiled.

The process has its memory from the container of the server. The kernel would end it first when this is used up, but
Kubernetes with cgroup v2 has it end all processes of the container. So it is started only where there is room, and
ended before.

A server without a folder for compiled code has a temporary one; it removes the folders of servers that were killed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import pickle
import selectors
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from foldflight.fold.accelerator import HOT_ROWS, Accelerator, PendingLoop
from foldflight.fold.mode import Folding, Mode, Unsupported
from foldflight.functions.author.spec import BoundFunction, BoundScalar
from foldflight.functions.registry import Registry
from foldflight.server.limits import container_room
from foldflight.server.ops.logs import Logger
from foldflight.server.ops.metrics import Metrics
from foldflight.server.run.settings import Settings

# The longest time in which one function is compiled.
_ANSWER_S_MAX: Final = 600.0
# Attempts to compile a function. A process that ends before it answers may have been killed for another reason.
_ATTEMPTS_MAX: Final = 2
# Functions that one process compiles. Then another process replaces it, because the compiler frees no memory.
_FUNCTIONS_MAX: Final = 8
# How long a process waits for its next function, because starting another process takes a second.
_LINGER_S: Final = 5.0
# The time between two looks at a folder in which another server compiles.
_LOCK_S: Final = 0.5
# How long `close` waits for the thread, which may be in the constructor of an author's class.
_CLOSE_S: Final = 10.0
_JOBS_MAX: Final = 1000
_LOCK_FILE: Final = ".compiling"
# Free memory of the container with which a process starts. The first function takes 170 MB, besides pages of libraries.
_ROOM_BYTES: Final = 256 << 20
# Free memory of the container below which a process is ended.
_ROOM_BYTES_MIN: Final = 64 << 20
# The time between two looks at the free memory: before a process starts, and while it compiles.
_ROOM_S: Final = 5.0
_LOOK_S: Final = 0.25
_Bound: TypeAlias = BoundFunction | BoundScalar


@dataclass(eq=False)
class _Job:
    """A function that waits to be compiled.

    Args:
        bound: The function.
        loop: The loop that is asked for.
        rows: The rows of the function so far.
        attempts: How often a process has ended while it compiled the function.
        is_done: Whether nothing more is done for it.
        reason: Why it was not compiled; empty if it was.
    """

    bound: _Bound
    loop: str
    rows: int = 0
    attempts: int = 0
    is_done: bool = False
    reason: str = ""


class _EndedError(Exception):
    """The process ended, or was ended, before it answered. The text is a clause about the process."""


class _NoRoomError(Exception):
    """The container has not enough memory for the process."""


class _UnloadableError(Exception):
    """The process cannot load the functions. The text says why."""


class Compilation:
    """The functions of a server that wait to be compiled, and the thread that keeps the process that compiles them.

    Args:
        settings: The modules, and the folder of compiled code.
        registry: The functions that the modules have.
        spare: The folder in the place of one that cannot be written to; None if there is none.
        metrics: Counts the functions that wait, and those that were compiled.
        logger: The log.
    """

    def __init__(
        self, settings: Settings, registry: Registry, spare: Path | None, *, metrics: Metrics, logger: Logger
    ) -> None:
        self._settings = settings
        self._authored_functions = {function.name: function for function in registry.authored}
        self._spare = spare
        self._metrics = metrics
        self._logger = logger
        self._programs: Accelerator | None = None
        self._jobs: dict[tuple[str, str, bool], _Job] = {}
        self._condition = threading.Condition()
        self._is_closed = False
        self._cannot_load = False
        self._has_room = True
        self._thread = threading.Thread(target=self._run, name="foldflight-compilation", daemon=True)
        self._process: _Process | None = None
        self._lock_file: int | None = None

    def start(self, programs: Accelerator) -> None:
        """Start the thread. `programs` loads what was compiled."""
        self._programs = programs
        self._thread.start()

    def close(self) -> None:
        """End the process at once, and the thread. What was not compiled stays interpreted."""
        with self._condition:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    # -- the queue, for the threads of exchanges ---------------------------------------------------------------------

    def takes(self, bound: _Bound) -> bool:
        """Return whether the process has this function, too: not if a client has shipped it."""
        authored_function = self._authored_functions.get(bound.function.name)
        sources = [authored_function, None if authored_function is None else authored_function.zoned]
        source = bound.function.source
        return not self._cannot_load and any(each is not None and each.source is source for each in sources)

    def ask(self, bound: _Bound, loop: str, rows: int) -> None:
        """Ask for a loop that is not stored, as `CompileQueue.ask`.

        A function with direct arguments is compiled for each of their values, so it needs many rows.
        """
        if self._cannot_load:
            return
        if rows < (HOT_ROWS if bound.literals else 1):
            raise PendingLoop
        key = (bound.function.name, bound.fingerprint, loop.startswith("each"))
        with self._condition:
            if key not in self._jobs:
                self._forget_oldest()
                self._jobs[key] = _Job(bound, loop)
                self._show_waiting(bound)
                self._condition.notify_all()
            job = self._jobs[key]
            job.rows = rows
            if not job.is_done:
                raise PendingLoop
        if job.reason:
            raise Unsupported(job.reason)

    def _forget_oldest(self) -> None:
        finished_keys = [key for key, job in self._jobs.items() if job.is_done]
        for key in finished_keys[: max(len(self._jobs) - _JOBS_MAX, 0)]:
            del self._jobs[key]

    def _show_waiting(self, bound: _Bound) -> None:
        name = bound.function.name
        waits = any(not job.is_done and job.bound.function.name == name for job in self._jobs.values())
        self._metrics.waiting.labels(name).set(waits)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                if self._lock():
                    try:
                        self._handle(job)
                    except Exception as error:
                        self._logger.exception("compiling failed", function=job.bound.function.name)
                        self._end(job, "failed", f"asking for it to be compiled raised {type(error).__name__}")
        finally:
            self._end_process()

    def _next(self) -> _Job | None:
        """Return the job with most rows; wait for one. Return None after `close`."""
        while True:
            with self._condition:
                waiting = self._open_jobs()
                if self._is_closed:
                    return None
                if waiting:
                    return max(waiting, key=lambda job: job.rows)
                if self._condition.wait(_LINGER_S if self._process is not None else None):
                    continue
            self._end_process()

    def _open_jobs(self) -> list[_Job]:
        with self._condition:
            return [job for job in self._jobs.values() if not job.is_done]

    def _handle(self, job: _Job) -> None:
        if self._is_stored(job):
            self._end(job, "found", "")
            return
        started_s = time.monotonic()
        try:
            folding = self._compile(job)
        except _UnloadableError as error:
            self._cannot_load = True
            self._logger.warning(
                "functions are compiled in this process, because another one cannot load them", problem=str(error)
            )
            self._end_process()
            for each in self._open_jobs():
                self._end(each, "failed", "")
            return
        except _NoRoomError:
            self._end_process()  # and let another server use the folder
            with self._condition:
                if not self._is_closed:
                    self._condition.wait(_ROOM_S)
            return
        except _EndedError as error:
            self._end_process()
            if self._is_closed:
                return
            job.attempts += 1
            self._logger.warning("compiling failed", function=job.bound.function.name, problem=str(error))
            if job.attempts == _ATTEMPTS_MAX:
                self._end(job, "failed", f"the process that compiles it {error}")
            return
        self._logger.info(
            "compiled",
            function=job.bound.function.name,
            folded=str(folding),
            s=round(time.monotonic() - started_s, 3),
        )
        is_compiled = folding.mode is Mode.COMPILED
        self._end(job, "compiled" if is_compiled else "refused", "" if is_compiled else folding.reason)

    def _is_stored(self, job: _Job) -> bool:
        """Return whether another server has compiled the function meanwhile."""
        return not job.loop.startswith("each") and self._load(job.bound)

    def _load(self, bound: _Bound) -> bool:
        """Load a function. Return whether it is known how it is folded."""
        assert self._programs is not None
        folding = self._programs.load_bound(bound)
        if folding is not None:
            self._metrics.compiled.labels(bound.function.name).set(folding.mode is Mode.COMPILED)
        return folding is not None

    def _end(self, job: _Job, outcome: str, reason: str) -> None:
        with self._condition:
            job.is_done, job.reason = True, reason
            self._show_waiting(job.bound)
        self._metrics.compilations.labels(outcome).inc()
        self._load(job.bound)

    def _compile(self, job: _Job) -> Folding:
        """Have the process compile a function, and return how it is folded.

        Raises:
            _EndedError: The process ended, or did not answer in time.
            _NoRoomError: There is no memory for it.
            _UnloadableError: It cannot load the functions.
        """
        process = self._process
        if process is not None and process.requests == _FUNCTIONS_MAX:
            self._end_process()
            process = None
        if process is None:
            process = self._start()
            answer = process.answer()
            if "problem" in answer:
                raise _UnloadableError(answer["problem"])
        bound = job.bound
        process.ask((bound.function.name, bound.input_types, dict(bound.literals), job.loop))
        folding = Folding.from_text(process.answer()["folded"])
        assert folding is not None
        return folding

    def _start(self) -> _Process:
        room = container_room()
        had_room, self._has_room = self._has_room, room is None or room >= _ROOM_BYTES
        if not self._has_room:
            if had_room:
                self._logger.warning(
                    "functions wait to be compiled until the container has memory for it",
                    free_mib=(room or 0) >> 20,
                    needed_mib=_ROOM_BYTES >> 20,
                )
            raise _NoRoomError
        task = {
            "path": sys.path,
            "modules": self._settings.modules,
            "folder": self._settings.compiled_folder,
            "spare": None if self._spare is None else str(self._spare),
        }
        with self._condition:
            if self._is_closed:
                raise _EndedError("was not started")
            self._process = _Process(task)
        return self._process

    def _end_process(self) -> None:
        process = self._process
        if process is not None:
            process.kill()
            process.close()
            folder = None if self._programs is None else self._programs.folder
            if folder is not None:
                # It may have ended while it wrote a file.
                for draft in folder.glob(f".{process.pid}.*"):
                    draft.unlink(missing_ok=True)
            self._process = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _lock(self) -> bool:
        """Lock the folder. Return whether it is locked now; else the jobs are to be looked at again."""
        assert self._programs is not None
        folder = self._programs.folder
        if self._lock_file is not None or folder is None:
            return True
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(folder / _LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True  # where nothing can be written, nobody waits for others
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            self._take_stored()
            return False
        except OSError:
            os.close(file)
            return True  # a file system without locks: what two servers compile at once is the same
        self._lock_file = file
        return True

    def _take_stored(self) -> None:
        """Load what the process of another server has compiled, and wait before the folder is looked at again."""
        for job in self._open_jobs():
            if self._is_stored(job):
                self._end(job, "found", "")
        with self._condition:
            if not self._is_closed:
                self._condition.wait(_LOCK_S)


class _Process:
    """The process that compiles.

    Args:
        task: What to load.

    Raises:
        _EndedError: It cannot be started, for example because there is no memory.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self.requests = 0
        answers, write_end = os.pipe()
        self._answers: BinaryIO = os.fdopen(answers, "rb")
        try:
            # In a session of its own, so that Ctrl-C in the terminal reaches only the server, which ends it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "foldflight.server.run.compile_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[write_end],
                start_new_session=True,
            )
        except OSError as error:
            self._answers.close()
            raise _EndedError(f"cannot be started: {error.strerror}") from None
        finally:
            os.close(write_end)
        self.pid = self._process.pid
        self._write(json.dumps({**task, "answers_fd": write_end}).encode())

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which the answer shows
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def ask(self, request: tuple[Any, ...]) -> None:
        """Send what to compile: a function, its types, direct arguments and the loop."""
        self.requests += 1
        self._write(base64.b64encode(pickle.dumps(request)))

    def answer(self) -> dict[str, Any]:
        """Wait for the answer. Raises _EndedError."""
        until_s = time.monotonic() + _ANSWER_S_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while not selector.select(min(_LOOK_S, max(until_s - time.monotonic(), 0))):
                if time.monotonic() >= until_s:
                    raise _EndedError(f"took longer than {_ANSWER_S_MAX:g} s")
                room = container_room()
                if room is not None and room < _ROOM_BYTES_MIN:
                    raise _EndedError("was ended because the container had no more memory for it")
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            code = self._process.wait()
            raise _EndedError(f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End the process at once. It is safe to call this twice."""
        self._process.kill()

    def close(self) -> None:
        """Wait for its end, and close its pipes."""
        self._process.wait()
        self._answers.close()
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe


_PREFIX: Final = "foldflight-compiled-"
_USE_LOCK_FILE: Final = ".in-use"


@contextlib.contextmanager
def spare_folder(logger: Logger) -> Iterator[Path | None]:
    """Have a folder for compiled code while the block runs; None if there is no place for temporary files.

    A killed server leaves its folder, without the lock, which ended with the process. So the next server deletes it.
    """
    with contextlib.ExitStack() as stack:
        try:
            temporary = Path(tempfile.gettempdir())
            _delete_left(temporary, logger)
            folder = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=_PREFIX, dir=temporary, ignore_cleanup_errors=True)
                )
            )
            stack.callback(os.close, _lock_new(folder))
        except OSError as error:
            logger.info("there is no place for temporary files, such as compiled code", problem=str(error))
            yield None
        else:
            yield folder


def _lock_new(folder: Path) -> int:
    """Lock a new folder, and return the open file. Raises OSError.

    The file is locked before it gets its name, so another server never finds it unlocked.
    """
    draft = folder / f"{_USE_LOCK_FILE}.new"
    file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody else gets one there, either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(folder / _USE_LOCK_FILE)
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
            file = os.open(folder / _USE_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                logger.info("deleted the temporary folder of a server that was killed", folder=str(folder))
            finally:
                os.close(file)
