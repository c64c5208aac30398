"""Deadlines for calls without a timeout: a blocked Flight read or write ends only when its stream is cancelled.

One daemon thread per process checks all guarded exchanges several times per deadline. It starts with the first exchange
and ends with the last. Setting and clearing a deadline assigns one attribute and takes no lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LOOKS_PER_DEADLINE = 8
_PAUSE_S_MAX = 1.0
_PAUSE_S_MIN = 0.01


class Guard:
    """Cancels an exchange if one of its steps takes longer than the deadline.

    Use it as a context manager around each step. `close` ends the monitoring.

    Args:
        deadline_s: Longest time of one step.
        cancel: Ends the blocked call. It is called at most once, from the thread of the watchdog.
    """

    def __init__(self, deadline_s: float, cancel: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self.expired = False
        self._cancel = cancel
        self._due: float | None = None
        self._watch = _watch_of_this_process()
        self._watch.add(self)

    def __enter__(self) -> None:
        self._due = time.monotonic() + self.deadline_s

    def __exit__(self, *exception: object) -> None:
        self._due = None

    def look(self, now: float) -> None:
        """Cancel if the current step is overdue."""
        due = self._due
        if due is not None and now >= due and not self.expired:
            self.expired = True
            self._cancel()

    def close(self) -> None:
        """End the monitoring. It is safe to call this twice."""
        self._due = None
        self._watch.remove(self)


class _Watch:
    def __init__(self) -> None:
        self._guards: set[Guard] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, guard: Guard) -> None:
        with self._condition:
            self._guards.add(guard)
            self._condition.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="foldflight-deadlines", daemon=True)
                self._thread.start()

    def remove(self, guard: Guard) -> None:
        with self._condition:
            self._guards.discard(guard)
            if not self._guards:
                self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._guards:
                    self._thread = None
                    return
                # A copy: the garbage collector may end another exchange, which removes its guard, in any step.
                shortest = min(guard.deadline_s for guard in list(self._guards))
                self._condition.wait(min(max(shortest / _LOOKS_PER_DEADLINE, _PAUSE_S_MIN), _PAUSE_S_MAX))
                guards = list(self._guards)
            now = time.monotonic()
            for guard in guards:
                guard.look(now)


_watches: dict[int, _Watch] = {}


def _watch_of_this_process() -> _Watch:
    """Return the watchdog of this process. After a fork, the thread and lock of the parent are not usable."""
    pid = os.getpid()
    # `setdefault` is atomic, so threads that arrive at the same time get the same object.
    return _watches.get(pid) or _watches.setdefault(pid, _Watch())
