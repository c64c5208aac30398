"""Processes forked from one that has imported everything, which start in a tenth of an interpreter's time.

For tests in which servers come and go. Those about how a process starts or ends need one of its own: a forked one does
not begin with its imports, and ends without the end of an interpreter.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import signal
from multiprocessing import forkserver
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["ForkedProcess"]


@functools.cache
def _forks(python_path: str) -> Any:
    """Start the process from which others are forked, once for all tests. It ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "tests.wire.preloaded"])
    with mock.patch.dict(os.environ, PYTHONPATH=python_path):
        forkserver.ensure_running()
    return context


def _serve(
    settings: dict[str, Any], log: Path, stdout: Connection, environment: dict[str, str], files_max: tuple[int, int]
) -> None:
    """Run a server."""
    from tests.wire.server_process import main  # in the forked process only

    with log.open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    os.dup2(stdout.fileno(), 1)
    stdout.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, files_max)  # as a started process has it from the one that starts it
    os.environ.clear()
    os.environ.update(environment)
    raise SystemExit(main(settings))


class ForkedProcess:
    """A server, with the part of the interface of `subprocess.Popen` that tests use.

    Args:
        settings: Settings of the server, by name.
        log: Where its standard error goes.
        environment: Its environment.
    """

    def __init__(self, settings: dict[str, Any], log: Path, environment: dict[str, str]) -> None:
        forks = _forks(environment["PYTHONPATH"])
        read, write = forks.Pipe(duplex=False)
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._process = forks.Process(target=_serve, args=(settings, log, write, environment, files_max), daemon=True)
        with read, write:
            self._process.start()
            self.stdout = os.fdopen(os.dup(read.fileno()), "rb")
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal as a negative number; None while the process runs."""
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        """Return what `returncode` is now."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired("a forked server", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)
