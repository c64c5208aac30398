"""The memory of this process and its limit."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.server.run.settings import Settings

_CGROUP = Path("/sys/fs/cgroup")
_STATM_BYTES_MAX = 256
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Less than this amount of freed memory is not returned to the system.
_SURPLUS_BYTES = 64 << 20
_PAUSE_S_FIRST = 2.0
_PAUSE_S_MAX = 600.0
# Share of the container's memory. The rest is for memory outside of processes, and for growth between two checks.
_SHARE = 0.9
_SOFT = 0.8
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
                f"{_mib(self.soft_limit)}, {_SOFT:.0%} of memory_limit = {_mib(limit)}; raise memory_limit or set it "
                "to off",
            )

    @property
    def soft_limit(self) -> int:
        """Bytes above which new exchanges are refused."""
        return int(self.limit * _SOFT)

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
    return 0 if bytes_max is None else int(bytes_max * _SHARE) // settings.workers


def container_room(cgroup: Path = _CGROUP) -> int | None:
    """Return the memory that the processes of the container may still use, in bytes; None if it has no limit.

    What the kernel can free at once, which are pages of files that were not used lately, is not in use.
    """
    limit = _container_bytes(cgroup)
    if limit is None:
        return None
    for used, statistics, idle in (
        ("memory.current", "memory.stat", "inactive_file"),  # cgroup v2
        ("memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),  # v1
    ):
        try:
            current = int((cgroup / used).read_text(encoding="ascii"))
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
        give: Returns freed memory to the system.
        now: Returns the time in seconds.
    """

    def __init__(
        self,
        resident: Callable[[], int] = resident_bytes,
        give: Callable[[], None] = release_memory,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resident, self._give, self._now = resident, give, now
        self._at_start = resident()
        self._pause_s = _PAUSE_S_FIRST
        self._not_before_s = 0.0

    def __call__(self) -> None:
        """Return freed memory to the system, if the process has much more than at its start."""
        now_s = self._now()
        if self._resident() <= self._at_start + _SURPLUS_BYTES:
            self._pause_s = _PAUSE_S_FIRST
        elif now_s >= self._not_before_s:
            self._give()
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


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
