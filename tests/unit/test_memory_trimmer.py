"""Unused memory is returned to the system when there is nothing to do."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from foldflight.server import flightbase, limits
from foldflight.server.flightbase import connections_max
from foldflight.server.ops import endpoints
from foldflight.server.run import workers


def test_memory_that_is_not_returned_is_asked_for_less_often() -> None:
    """Much unused memory is returned at once; memory that stays in use is not checked each time."""
    resident = 100 << 20
    now_s = 1000.0
    trim_times: list[float] = []
    surplus = limits.MemoryTrimmer(lambda: resident, lambda: trim_times.append(now_s), lambda: now_s)

    def looks(count: int) -> list[float]:
        nonlocal now_s
        trim_times.clear()
        for _ in range(count):
            surplus()
            now_s += 1.0
        return [round(each - trim_times[0]) for each in trim_times]

    assert looks(5) == []
    resident += 40 << 20
    assert looks(20) == [0, 2, 6, 14]
    resident -= 40 << 20
    assert looks(5) == []
    now_s += 1000
    resident += 40 << 20
    assert looks(3) == [0, 2]


_FAULTS = """
import resource
from foldflight.server.limits import reuse_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def measured():
    for _ in range(2):
        [bytearray(8 << 20) for _ in range(3)]
    before = faults()
    for _ in range(4):
        [bytearray(8 << 20) for _ in range(3)]
    return faults() - before

first = measured()
reuse_freed()
print(first, measured())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the allocator is not glibc's")
def test_the_memory_of_messages_is_reused() -> None:
    """After `reuse_freed`, the memory of blocks as large as messages is not returned to the system each time."""
    run = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True, text=True)
    first, memory_after = map(int, run.stdout.split())
    assert first > 1000
    assert memory_after < first / 4


@contextmanager
def files_max(count: int) -> Iterator[None]:
    """Let this process open no more than so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_is_measured_without_a_file() -> None:
    """A process that may open no more files still knows how much memory it uses: else it would refuse all work."""
    assert limits.resident_bytes() > 1 << 20
    with files_max(3):
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/proc/self/statm", os.O_RDONLY)
        assert limits.resident_bytes() > 1 << 20


def test_the_ports_of_a_process_leave_files() -> None:
    """All ports of a server together take three quarters of the files that it may open."""
    with files_max(1000):
        file_numbers = {
            module.__name__: connections_max(module._FILES_SHARE, files_each=files) * files * ports
            for module, files, ports in ((flightbase, 1, 1), (workers, 2, 1), (endpoints, 1, 2))
        }
    assert file_numbers["foldflight.server.flightbase"] == file_numbers["foldflight.server.run.workers"]
    assert sum(file_numbers.values()) - file_numbers["foldflight.server.run.workers"] == 750
