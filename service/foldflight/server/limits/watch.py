"""A monitoring thread of a server that interrupts functions that take too long.

Python can raise an exception in another thread, between two of its byte codes. That ends any loop written in Python.
A C function, compiled code or a sleep ends only when it returns to Python. If it does not return, the process drains
and ends, and engines continue on other servers.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from foldflight.errors import FoldflightError, FunctionError
from foldflight.fold.failures import user_failure
from foldflight.server.ops.logs import Logger

# Time for which a function may run after it was interrupted. A process without heartbeats for this time counts as hung.
GRACE_S = 5.0
_AGAIN_S = 1.0
_LOOKS_PER_STEP = 8
_PAUSE_S_MAX = 1.0
_PAUSE_S_MIN = 0.02

R = TypeVar("R")


class Interrupted(SystemExit):
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
        self.told_s: float | None = None  # when it was first told to end
        self.told_again_s = 0.0
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_over = False
        self._is_paused = False

    @property
    def is_paused(self) -> bool:
        """Whether the call waits for its engine."""
        return self._is_paused

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
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
        """Interrupt the step with an error. The first error counts. Return False if the step is over or paused."""
        with self._lock:
            if self._is_over or self._is_paused:
                return False
            self.error = self.error or error
            self.told_again_s = time.monotonic()
            self.told_s = self.told_s or self.told_again_s
            _raise_in(self._thread, Interrupted)
            return True

    def finish(self) -> None:
        """End the step, in its thread, in which no interrupt is raised after this.

        A pending interrupt is received here. It could be withdrawn instead, but CPython 3.11 then takes it for pending
        as long as the process lives, and nothing can be profiled any more.
        """
        while True:
            try:
                with self._lock:
                    self._is_over = True
                for _ in range(2):  # CPython raises a pending exception when a loop begins its next turn
                    pass
            except Interrupted:
                continue
            return


class Watch:
    """Runs steps and interrupts those that take too long.

    Args:
        fold_s_max: Longest time of a step, in seconds; 0: no limit.
        look_s: Longest time between two checks.
        look: Called at each check, for other checks of the server.
        on_spent: Called once if a step cannot be interrupted. The process should then end.
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
        self._running: set[GuardedCall] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._is_stuck = False
        shortest_s = min(look_s, fold_s_max / _LOOKS_PER_STEP if fold_s_max else _PAUSE_S_MAX, _PAUSE_S_MAX)
        self._pause_s = max(shortest_s, _PAUSE_S_MIN)
        self._thread = threading.Thread(target=self._run, name="foldflight-watch", daemon=True)

    def start(self) -> None:
        """Start the monitoring."""
        self._thread.start()

    def close(self) -> None:
        """Stop the monitoring."""
        self._closed.set()
        self._thread.join()

    def run(self, call: Callable[[], R], begun: Callable[[GuardedCall], None] | None = None) -> R:
        """Call functions in this thread, as a step that may be interrupted.

        Args:
            call: Calls the functions.
            begun: Called with the step before `call`.

        Raises:
            FunctionError: USER_CODE with the function, group and row if the step took too long, or if a function raised
                an exception that is not an Exception, such as KeyboardInterrupt.
            FoldflightError: Another error with which the step was interrupted, or an error of the call itself.
        """
        step = GuardedCall()
        failure: FoldflightError | None = None
        try:
            try:
                self._add(step)
                if begun is not None:
                    begun(step)
                result = call()
            finally:
                step.finish()
        except Interrupted:
            pass  # it was raised outside of functions
        except FoldflightError as error:
            if step.error is None:
                raise
            failure = error
        except Exception:
            raise  # a bug of foldflight
        except BaseException as error:  # noqa: BLE001 - only a function can have raised it in this thread
            failure = user_failure(None, "a method", error)
            step.error = step.error or failure
        finally:
            step.finish()
            with self._lock:
                self._running.discard(step)
        if step.error is not None:
            reason, step.error = _with_position(step.error, failure), None
            try:
                raise reason
            finally:
                del reason, failure  # they refer to frames and so to the data of the fold; avoid a reference cycle
        return result

    def _add(self, step: GuardedCall) -> None:
        with self._lock:
            self._running.add(step)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.wait(self._pause_s):
            try:
                self._look_once()
            except Exception:
                self._logger.exception("the watch failed")

    def _look_once(self) -> None:
        with self._lock:
            steps = list(self._running)
        now_s = time.monotonic()
        for step in steps:
            self._end_if_overdue(step, now_s)
        self._look()

    def _end_if_overdue(self, step: GuardedCall, now_s: float) -> None:
        if step.is_paused:
            return
        if step.told_s is None:
            if not self._fold_s_max or now_s - step.began_s < self._fold_s_max:
                return
            self._logger.warning("functions took too long: interrupted", fold_s_max=self._fold_s_max)
        elif now_s - step.told_again_s < _AGAIN_S:
            return  # the exception may be pending, or a bare `except:` in a function may have caught it
        step.interrupt(_too_long(self._fold_s_max))
        if step.told_s is not None and now_s - step.told_s > GRACE_S and not self._is_stuck:
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
    """Return the error with which a step was interrupted, with the position of the interrupt."""
    if failure is not None:
        if error.slot is None:  # otherwise the error tells where the cause is, which may be another group
            error.function, error.slot, error.row = failure.function, failure.slot, failure.row
        error.trace, error.story = failure.trace, failure.story
    return error


def _raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise an exception in another thread, between two of its byte codes."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
