"""Limits on the time and memory of functions: a thread interrupts those that take too long, and watches the memory.

Python can raise an exception in another thread, between two of its byte codes. That ends any loop written in Python.
A C function, compiled code or a sleep ends only when it returns to Python. If it does not return, the process drains
and ends, and engines continue on other servers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.fold.failures import user_failure
from foldflight.server.ops.logs import Logger
from foldflight.server.run.settings import Settings

# Time for which a function may run after it was interrupted. A process without heartbeats for this time counts as hung.
GRACE_S = 5.0
_INTERRUPT_AGAIN_S = 1.0
_CHECKS_PER_CALL = 8
_PAUSE_S_MAX = 1.0
_PAUSE_S_MIN = 0.02

R = TypeVar("R")


class InterruptedCall(SystemExit):
    """Raised in the thread of a call that has to end.

    `except Exception` in a function does not catch it. The fold treats it like any SystemExit of a function: as an
    error of the function, with its row. Because it has a limit, it ends the exchange.
    """

    limit = "interrupted"


class GuardedCall:
    """One call of functions in one thread, such as the fold of a chunk, which other threads may interrupt."""

    def __init__(self) -> None:
        self.error: FoldflightError | None = None
        self.began_s = time.monotonic()
        self.notified_s: float | None = None  # when it was first told to end
        self.notified_again_s = 0.0
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_over = False
        self._is_paused = False

    @property
    def is_paused(self) -> bool:
        """Whether the call waits for its engine."""
        return self._is_paused

    @contextlib.contextmanager
    def wait_for_engine(self) -> Iterator[None]:
        """Wait for the engine within the context: its time does not count, and the call is not interrupted."""
        paused_s = time.monotonic()
        with self._lock:
            self._is_paused = True
        try:
            yield
        finally:
            with self._lock:
                self._is_paused = False
            self.began_s += time.monotonic() - paused_s

    @property
    def is_over(self) -> bool:
        """Whether the call has returned."""
        return self._is_over

    def interrupt(self, error: FoldflightError) -> bool:
        """Interrupt the call with an error. The first error counts. Return False if the call is over or paused."""
        with self._lock:
            if self._is_over or self._is_paused:
                return False
            self.error = self.error or error
            self.notified_again_s = time.monotonic()
            self.notified_s = self.notified_s or self.notified_again_s
            _raise_in(self._thread, InterruptedCall)
            return True

    def finish(self) -> None:
        """End the call, in its thread. No interrupt is raised there after this.

        A pending interrupt is received here. It could be withdrawn instead, but CPython 3.11 then takes it for pending
        as long as the process lives, and nothing can be profiled any more.
        """
        while True:
            try:
                with self._lock:
                    self._is_over = True
                for _ in range(2):  # CPython raises a pending exception when a loop begins its next turn
                    pass
            except InterruptedCall:
                continue
            return


class Watch:
    """Runs calls of functions, and interrupts those that take too long.

    Args:
        fold_s_max: Longest time of a call, in seconds; 0: no limit.
        look_s: Longest time between two checks.
        look: Called at each check, for other checks of the server.
        on_spent: Called once if a call cannot be interrupted. The process should then end.
        logger: The log.
    """

    def __init__(
        self,
        *,
        fold_s_max: float,
        look_s: float,
        look: Callable[[], None],
        on_spent: Callable[[], None],
        logger: Logger,
    ) -> None:
        self._fold_s_max = fold_s_max
        self._look = look
        self._on_spent = on_spent
        self._logger = logger
        self._running_calls: set[GuardedCall] = set()
        self._lock = threading.Lock()
        self._closed_event = threading.Event()
        self._is_stuck = False
        shortest_s = min(look_s, fold_s_max / _CHECKS_PER_CALL if fold_s_max else _PAUSE_S_MAX, _PAUSE_S_MAX)
        self._pause_s = max(shortest_s, _PAUSE_S_MIN)
        self._thread = threading.Thread(target=self._run, name="foldflight-watch", daemon=True)

    def start(self) -> None:
        """Start the monitoring."""
        self._thread.start()

    def close(self) -> None:
        """Stop the monitoring."""
        self._closed_event.set()
        self._thread.join()

    def run(self, call: Callable[[], R], on_begin: Callable[[GuardedCall], None] | None = None) -> R:
        """Call functions in this thread, as a call that may be interrupted.

        Args:
            call: Calls the functions.
            on_begin: Called with the guarded call before `call`.

        Raises:
            FunctionError: USER_CODE with the function, group and row if they took too long, or if a function raised
                an exception that is not an Exception, such as KeyboardInterrupt.
            FoldflightError: Another error with which they were interrupted, or an error of the call itself.
        """
        guarded_call = GuardedCall()
        failure: FoldflightError | None = None
        try:
            try:
                with self._lock:
                    self._running_calls.add(guarded_call)
                if on_begin is not None:
                    on_begin(guarded_call)
                result = call()
            finally:
                guarded_call.finish()
        except InterruptedCall:
            pass  # it was raised outside of functions
        except FoldflightError as error:
            if guarded_call.error is None:
                raise
            failure = error
        except Exception:
            raise  # a bug of foldflight
        except BaseException as error:  # noqa: BLE001 - only a function can have raised it in this thread
            failure = user_failure(None, "a method", error)
            guarded_call.error = guarded_call.error or failure
        finally:
            guarded_call.finish()
            with self._lock:
                self._running_calls.discard(guarded_call)
        if guarded_call.error is not None:
            reason, guarded_call.error = _with_position(guarded_call.error, failure), None
            try:
                raise reason
            finally:
                del reason, failure  # they refer to frames and so to the data of the fold; avoid a reference cycle
        return result

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed_event.wait(self._pause_s):
            try:
                self._look_once()
            except Exception:
                self._logger.exception("the watch failed")

    def _look_once(self) -> None:
        with self._lock:
            guarded_calls = list(self._running_calls)
        now_s = time.monotonic()
        for guarded_call in guarded_calls:
            self._end_if_overdue(guarded_call, now_s)
        self._look()

    def _end_if_overdue(self, guarded_call: GuardedCall, now_s: float) -> None:
        if guarded_call.is_paused:
            return
        if guarded_call.notified_s is None:
            if not self._fold_s_max or now_s - guarded_call.began_s < self._fold_s_max:
                return
            self._logger.warning("functions took too long: interrupted", fold_s_max=self._fold_s_max)
        elif now_s - guarded_call.notified_again_s < _INTERRUPT_AGAIN_S:
            return  # the exception may be pending, or a bare `except:` in a function may have caught it
        guarded_call.interrupt(_too_long(self._fold_s_max))
        if guarded_call.notified_s is not None and now_s - guarded_call.notified_s > GRACE_S and not self._is_stuck:
            self._is_stuck = True
            self._logger.error("a function cannot be interrupted: this process drains and ends", grace_s=GRACE_S)
            self._on_spent()


def _too_long(fold_s_max: float) -> FunctionError:
    return FunctionError(
        "USER_CODE",
        f"took longer than fold_s_max = {fold_s_max:g} s for one frame and was interrupted where the trace ends; if it "
        "is not an endless loop, send smaller chunks, or raise fold_s_max on the servers and deadline_s of connect",
        limit="fold_s_max",
    )


def _with_position(error: FoldflightError, failure: FoldflightError | None) -> FoldflightError:
    """Return the error with which a call was interrupted, with the position of the interrupt."""
    if failure is not None:
        if error.slot is None:  # otherwise the error tells where the cause is, which may be another group
            error.function, error.slot, error.row = failure.function, failure.slot, failure.row
        error.trace, error.story = failure.trace, failure.story
    return error


def _raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise an exception in another thread, between two of its byte codes."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


_CGROUP = Path("/sys/fs/cgroup")
_STATM_BYTES_MAX = 256
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Less than this amount of freed memory is not returned to the system.
_SURPLUS_BYTES = 32 << 20
_PAUSE_S_FIRST = 2.0
_TRIM_PAUSE_S_MAX = 600.0
# Share of the container's memory. The rest is for memory outside of processes, and for growth between two checks.
_LIMIT_SHARE = 0.9
# Share of the limit above which new exchanges are refused.
_BUSY_SHARE = 0.8
# Parameters of glibc's malloc (mallopt(3)), for `reuse_freed`: the least size of a block that is always returned to the
# system, the free memory that an arena may keep, and the number of arenas.
_MALLOC_PARAMETERS = ((-3, 16 << 20), (-1, 32 << 20), (-8, 4))


class Memory:
    """The memory of this process, compared with its limit.

    Args:
        limit: The limit in bytes; 0: no limit.
        resident: Returns the resident memory in bytes.

    Raises:
        RejectedError: SETTINGS if the process exceeds the soft limit before it serves anything.
    """

    def __init__(self, limit: int, resident: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self._resident = resident_bytes if resident is None else resident
        if self.is_tight:
            raise RejectedError(
                "SETTINGS",
                f"the server already uses {_mib(self._resident())} without work, and refuses new exchanges above "
                f"{_mib(self.soft_limit)}, {_BUSY_SHARE:.0%} of memory_limit = {_mib(limit)}; raise memory_limit or "
                "set it to off",
            )

    @property
    def soft_limit(self) -> int:
        """Bytes above which new exchanges are refused."""
        return int(self.limit * _BUSY_SHARE)

    @property
    def is_tight(self) -> bool:
        """Whether new exchanges are refused."""
        return bool(self.limit) and self._resident() > self.soft_limit

    @property
    def is_used_up(self) -> bool:
        """Whether an exchange must be ended, before the kernel kills the process."""
        return bool(self.limit) and self._resident() > self.limit

    @property
    def text(self) -> str:
        """The memory of this process and its limit, as text."""
        return f"{_mib(self._resident())} of memory_limit = {_mib(self.limit)}"


def memory_limit_of(settings: Settings, cgroup: Path = _CGROUP) -> int:
    """Return the memory limit of each process of the server, in bytes; 0: no limit.

    The default is an equal share of the memory of the container.
    """
    if settings.memory_limit is not None:
        return settings.memory_limit
    bytes_max = _container_bytes(cgroup)
    return 0 if bytes_max is None else int(bytes_max * _LIMIT_SHARE) // settings.workers


def container_room(cgroup: Path = _CGROUP) -> int | None:
    """Return the memory that the processes of the container may still use, in bytes; None if it has no limit.

    What the kernel can free at once, which are pages of files that were not used lately, is not in use.
    """
    limit = _container_bytes(cgroup)
    if limit is None:
        return None
    for usage_file, statistics, idle in (
        ("memory.current", "memory.stat", "inactive_file"),  # cgroup v2
        ("memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),  # v1
    ):
        try:
            current = int((cgroup / usage_file).read_text(encoding="ascii"))
            lines = (cgroup / statistics).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        return limit - current + sum(int(line.split()[1]) for line in lines if line.split()[0] == idle)
    return None


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes. After the first call this opens no file."""
    return int(os.pread(_statm_of(os.getpid()), _STATM_BYTES_MAX, 0).split()[1]) * _PAGE_BYTES


@cache
def _statm_of(pid: int) -> int:
    """Return a descriptor of the statistics of a process, which stays open: later there may be no file left."""
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)


def reuse_freed() -> None:
    """Let the allocator keep freed memory for the next messages, within bounds. `trim` returns it nevertheless.

    Otherwise it returns the memory of each large message to the system, and the next message costs a page fault for
    every four kilobytes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        for parameter, value in _MALLOC_PARAMETERS:
            mallopt(parameter, value)


def release_memory() -> None:
    """Return freed memory to the system. Otherwise allocators keep it, and it counts as used."""
    gc.collect()
    trim()


def trim() -> None:
    """Return freed memory to the system without a search for garbage, which may take long."""
    pa.default_memory_pool().release_unused()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if malloc_trim is not None:
        malloc_trim(0)


class MemoryTrimmer:
    """Returns freed memory to the system while the server is idle. The server calls it at intervals without calls.

    If the memory does not become less, because it is in use, the pause until the next attempt doubles.

    Args:
        resident: Returns the resident memory in bytes.
        release: Returns freed memory to the system.
        now: Returns the time in seconds.
    """

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        release: Callable[[], None] = release_memory,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resident, self._release, self._now = resident, release, now
        self._at_start = resident()
        self._pause_s = _PAUSE_S_FIRST
        self._not_before_s = 0.0

    def __call__(self) -> None:
        """Return freed memory to the system, if the process has much more than at its start."""
        now_s = self._now()
        if self._resident() <= self._at_start + _SURPLUS_BYTES:
            self._pause_s = _PAUSE_S_FIRST
        elif now_s >= self._not_before_s:
            self._release()
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _TRIM_PAUSE_S_MAX)


def _container_bytes(cgroup: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        try:
            text = (cgroup / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        # Version 1 writes "no limit" as a number larger than any memory.
        return None if text == "max" or int(text) >= 2**60 else int(text)
    return None


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"
