"""The event loop of a process: a thread in which the coroutines of all exchanges run.

An exchange waits in its own thread. It wakes up every tenth of a second, so that a server can interrupt it, and checks
whether the loop still runs: code that does not await holds up the calls of all exchanges.

The exchanges of a process share the instances of async functions: each is opened once, and closed later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import inspect
import logging
import os
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any, Final, Generic

from foldflight.coroutines.queues import FunctionCalls, Queue, Report, cancelled_by_itself
from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.coroutines import Bound, Calls, Check, Coroutines, M, Openable, SharedInstance
from foldflight.fold.failures import user_failure
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import CallBounds

# The most instances that stay open without a user, because the next exchange may need what they have loaded.
_UNUSED_MAX: Final = 8
_LOOK_S: Final = 0.1  # seconds between two checks while another exchange opens the instance
# Seconds to wait for instances that all close at once, for example when the server ends.
_CLOSE_S: Final = 5.0
_logger = logging.getLogger("foldflight.coroutines")


class _OpenInstance:
    """An instance that is open or is being opened."""

    def __init__(self, bound: Bound[Openable]) -> None:
        self.name = bound.function.name
        self.target = bound.function.source  # kept alive, so that no other object gets its identity
        self.methods: Any = None
        self.users = 0
        self.opening = threading.Lock()


class _Loan(Generic[M]):
    """A loan of an instance to one exchange."""

    def __init__(self, instances: Instances, instance: _OpenInstance, coroutines: Coroutines) -> None:
        self.kept = instance
        self.methods: M = instance.methods
        self._instances = instances
        self._coroutines = coroutines
        self._is_closed = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Loan) and other.kept is self.kept

    def __hash__(self) -> int:
        return id(self.kept)

    def close(self) -> None:
        """Return the instance. Repeated calls have no effect."""
        if not self._is_closed:
            self._is_closed = True
            self._instances.take_back(self.kept, self._coroutines)


class Instances:
    """The instances of a process, by function, direct arguments and job parameters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept_instances: OrderedDict[tuple[int, str, str], _OpenInstance] = OrderedDict()

    def users(self, loan: object) -> int:
        """Return how many exchanges use the same instance as a loan."""
        return loan.kept.users if isinstance(loan, _Loan) else 1

    def lend(
        self,
        bound: Bound[M],
        job_parameters: Mapping[str, str],
        context: FunctionContext,
        coroutines: Coroutines,
        check: Check,
    ) -> _Loan[M]:
        """Return the instance; see `Coroutines.instance`."""
        # Equal code may refer to different objects, so an instance belongs to one class or function object.
        key = (id(bound.function.source), bound.fingerprint, repr(sorted(job_parameters.items())))
        with self._lock:
            instance = self._kept_instances.setdefault(key, _OpenInstance(bound))
            self._kept_instances.move_to_end(key)
            instance.users += 1
        try:
            while not instance.opening.acquire(timeout=_LOOK_S):
                check()
            try:
                if instance.methods is None:
                    instance.methods = _open_instance(bound, job_parameters, context, coroutines, check)
            finally:
                instance.opening.release()
        except BaseException:
            self.take_back(instance, coroutines)
            raise
        return _Loan(self, instance, coroutines)

    def take_back(self, instance: _OpenInstance, coroutines: Coroutines) -> None:
        """End the use of an instance, and close the instances that have been unused for longest."""
        with self._lock:
            instance.users -= 1
            unused_keys = [key for key, each in self._kept_instances.items() if not each.users]
            # An instance that could not be opened is dropped at once, so that the next exchange tries again.
            dropped_keys = [key for key in unused_keys if self._kept_instances[key].methods is None]
            opened_keys = [key for key in unused_keys if self._kept_instances[key].methods is not None]
            dropped_keys += opened_keys[: max(len(opened_keys) - _UNUSED_MAX, 0)]
            unused_instances = [self._kept_instances.pop(key) for key in dropped_keys]
        _close(unused_instances, coroutines)

    def close_unused(self, coroutines: Coroutines) -> None:
        """Close the instances that nobody uses."""
        with self._lock:
            unused_keys = [key for key, each in self._kept_instances.items() if not each.users]
            unused_instances = [self._kept_instances.pop(key) for key in unused_keys]
        _close(unused_instances, coroutines)


def _open_instance(
    bound: Bound[M],
    job_parameters: Mapping[str, str],
    context: FunctionContext,
    coroutines: Coroutines,
    check: Check,
) -> M:
    """Return the methods of a new instance, after its `open`."""
    name = bound.function.name
    try:
        methods = bound.instantiate()
    except RejectedError:  # it cannot run here at all
        raise
    except (Exception, SystemExit) as error:
        raise user_failure(name, "__init__", error) from error
    if methods.open is not None:
        # The instance outlives this exchange, so its context does not write to the log of this exchange.
        own_context = FunctionContext(name, job_parameters=job_parameters, metrics=context.metrics)
        try:
            _run(name, methods.open, (own_context,), coroutines, check)
        except (Exception, SystemExit) as error:
            raise user_failure(name, "open", error) from error
    return methods


def _close(instances: list[_OpenInstance], coroutines: Coroutines) -> None:
    """Close instances. What their `close` raises concerns no exchange, and is logged."""
    until_s = time.monotonic() + _CLOSE_S

    def check() -> None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"it has not ended within {_CLOSE_S:g} s, so it was cancelled")

    for instance in instances:
        if instance.methods is not None and instance.methods.close is not None:
            try:
                _run(instance.name, instance.methods.close, (), coroutines, check)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code
                failure: FunctionError = user_failure(instance.name, "close", error)
                _logger.warning("%s: %s", instance.name, failure.message)


def _run(name: str, method: Any, arguments: tuple[Any, ...], coroutines: Coroutines, check: Check) -> None:
    """Call a method: a coroutine in the event loop, and any other in this thread, because it may take long."""
    result = method(*arguments)
    if inspect.isawaitable(result):
        coroutines.run(name, result, check)


# Seconds for which the loop may stand still before the code that holds it up is named in the log.
_STILL_S: Final = 1.0
# Seconds after which such code is interrupted, in addition to the timeout of the function that waits.
_STUCK_S: Final = 5.0
_CANCEL_S: Final = 2.0
_FUNCTIONS_MAX: Final = 256
_OURS: Final = str(Path(__file__).parent.parent) + os.sep
_LIBRARY: Final = str(Path(asyncio.__file__).parent.parent) + os.sep


class BlockedLoop(BaseException):
    """Raised in code that holds up the event loop for too long.

    It is no Exception, so that the code does not catch it by accident, and no SystemExit, which would end the loop.
    """


class _NoReport:
    """Ignores all events of calls."""

    def call_began(self, function: str) -> None:
        """Drop it."""

    def call_ended(self, function: str, outcome: str, seconds: float) -> None:
        """Drop it."""

    def call_retried(self, function: str) -> None:
        """Drop it."""

    def call_delayed(self, function: str) -> None:
        """Drop it."""


class _LoopThread:
    """A running event loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.beat_s = time.monotonic()
        self.functions: OrderedDict[tuple[str, str, CallBounds], FunctionCalls] = OrderedDict()
        self.logged_places: set[str] = set()  # the places that were logged because they hold up the loop
        self.blocked_seen_s = 0.0  # when code that holds up the loop was seen last
        self.thread = threading.Thread(target=self._turn, name="foldflight-coroutines", daemon=True)
        self.thread.start()

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._beat)
        while True:
            # A task that an author has started may raise SystemExit, which ends a loop and must not end this one. So
            # does an interrupt of code that has just returned.
            with contextlib.suppress(SystemExit, KeyboardInterrupt, BlockedLoop):
                self.loop.run_forever()

    def _beat(self) -> None:
        self.beat_s = time.monotonic()
        self.loop.call_later(_LOOK_S, self._beat)

    @property
    def still_s(self) -> float:
        """For how long the loop has stood still, in seconds."""
        return max(time.monotonic() - self.beat_s - _LOOK_S, 0.0)

    def watch(self, function: str, coroutine: Awaitable[Any]) -> Awaitable[Any]:
        """Wrap a coroutine of an author so that a step of it which holds up the loop is named in the log."""
        if not isinstance(coroutine, Coroutine):  # a future has no steps
            return coroutine

        def report_step(seconds: float, since_s: float, between: str) -> None:
            if seconds > _STILL_S and self.blocked_seen_s < since_s and between not in self.logged_places:
                self.logged_places.add(between)
                _logger.warning(
                    "code of %s has held up the event loop for %.1f s, and with it all threads of this process: %s; it "
                    "has the lock of the interpreter meanwhile (C code does, unless it releases the lock), or the "
                    "machine was busy",
                    function,
                    seconds,
                    between,
                )

        return _TimedCoroutine(coroutine, report_step)

    def place(self) -> str | None:
        """Return where authors' code holds up the loop, with its file and line; None if none does."""
        frame = sys._current_frames().get(self.thread.ident or 0)  # noqa: SLF001 - the only way to see another thread
        if frame is None:
            return None
        stack = [
            each
            for each in traceback.extract_stack(frame)
            if not each.filename.startswith((_OURS, _LIBRARY + "asyncio", _LIBRARY + "threading.py", "<frozen"))
        ]
        if not stack:
            return None
        task = asyncio.current_task(self.loop)
        own = [each for each in stack if not each.filename.startswith(_LIBRARY)] or stack
        name = "" if task is None else f"{task.get_name()}, "
        return f"{name}{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"


class _TimedCoroutine:
    """A coroutine each step of which is timed.

    Code that holds the lock of the interpreter also stops the threads that look for such code. So its time is known
    only when the step has ended.

    Args:
        coroutine: The coroutine of an author.
        report_step: Called after a long step with its seconds, the time of its beginning, and its first and last line.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], report_step: Callable[[float, float, str], None]) -> None:
        self._coroutine = coroutine
        self._report_step = report_step

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = functools.partial(self._coroutine.send, None)
        while True:
            since_s, first = time.monotonic(), _place_of(self._coroutine)
            try:
                future = step()
            except StopIteration as stop:
                return stop.value
            finally:
                seconds = time.monotonic() - since_s
                if seconds > _STILL_S:
                    between = f"from {_line_of(first)} to {_line_of(_place_of(self._coroutine))}"
                    self._report_step(seconds, since_s, between)
            try:
                step = functools.partial(self._coroutine.send, (yield future))
            except BaseException as thrown_error:  # noqa: BLE001 - the author's code decides
                step = functools.partial(self._coroutine.throw, thrown_error)


def _place_of(coroutine: Any) -> tuple[str, int] | None:
    """Return the file and line where a coroutine waits, in the innermost code outside of libraries; None at its end.

    This runs before each step, so it returns a pair and formats no text.
    """
    place = None
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if not (file := frame.f_code.co_filename).startswith((_OURS, _LIBRARY)):
            place = file, frame.f_lineno
        coroutine = coroutine.cr_await
    return place


def _line_of(place: tuple[str, int] | None) -> str:
    return "its end" if place is None else f"{Path(place[0]).name}:{place[1]}"


class EventLoop:
    """Runs the coroutines of a process. It implements `fold.coroutines.Coroutines`.

    The thread begins with the first call, and so after a fork.

    Args:
        report: Receives the events of calls. Default: they are ignored.
        share: The part of the rates of functions that this process has: 1 divided by the number of workers.
    """

    opens = True

    def __init__(self, report: Report | None = None, share: float = 1.0) -> None:
        self._report: Report = report or _NoReport()
        self._share = share
        self._process = _Process()

    def with_report(self, report: Report, share: float = 1.0) -> EventLoop:
        """Return the same loop for the exchanges of a server.

        Args:
            report: Receives the events of their calls.
            share: As in the constructor.
        """
        other = EventLoop(report, share)
        other._process = self._process
        return other

    @property
    def still_s(self) -> float:
        """For how long code has held up the loop, in seconds; 0 if there is no loop."""
        running_loop = self._process.running_loop
        return 0.0 if running_loop is None or running_loop.pid != os.getpid() else running_loop.still_s

    def answer(self, calls: Calls, check: Check) -> None:
        """Wait for the answers of calls; see `Coroutines.answer`."""
        running_loop = self._process.turn()
        queue = Queue(calls, self._report)
        key = (calls.function.name, calls.function.code_digest, calls.bounds)
        share = self._share

        def add() -> None:
            functions = running_loop.functions
            if key not in functions:
                for old in [each for each, calls in functions.items() if calls.is_idle][:-_FUNCTIONS_MAX]:
                    del functions[old]
                users = self._process.instances.users
                functions[key] = FunctionCalls(calls.bounds, share, users, running_loop.watch)
            functions[key].add(queue)

        def remove() -> None:
            running_loop.functions[key].remove(queue)

        running_loop.loop.call_soon_threadsafe(add)
        try:
            self._await(running_loop, queue.done_event, calls.function.name, calls.bounds.timeout_s, check)
        except BaseException:
            running_loop.loop.call_soon_threadsafe(remove)
            queue.ended_event.wait(_CANCEL_S)
            raise

    def run(self, function: str, coroutine: Any, check: Check) -> None:
        """Wait for a coroutine without bounds; see `Coroutines.run`."""
        running_loop = self._process.turn()
        done_event = threading.Event()
        errors: list[BaseException] = []
        tasks: list[asyncio.Task[Any]] = []

        async def call() -> None:
            try:
                await running_loop.watch(function, coroutine)
            except asyncio.CancelledError:
                errors.append(cancelled_by_itself())  # if we have cancelled it, nobody waits for this
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                is_usual = isinstance(error, (Exception, SystemExit))
                errors.append(error if is_usual else RuntimeError(f"it raised {type(error).__name__}: {error}"))
            finally:
                done_event.set()

        def begin() -> None:
            tasks.append(running_loop.loop.create_task(call(), name=function))

        running_loop.loop.call_soon_threadsafe(begin)
        try:
            self._await(running_loop, done_event, function, None, check)
        except BaseException:
            running_loop.loop.call_soon_threadsafe(lambda: [each.cancel() for each in tasks])
            raise
        if errors:
            raise errors[0]

    def instance(
        self, bound: Bound[M], job_parameters: Mapping[str, str], context: FunctionContext, check: Check
    ) -> SharedInstance[M]:
        """Return a shared instance; see `Coroutines.instance`."""
        self._process.turn()
        return self._process.instances.lend(bound, job_parameters, context, self, check)

    def close_instances(self) -> None:
        """Close the instances that no exchange uses, so that they release what they hold."""
        self._process.instances.close_unused(self)

    def _await(
        self,
        running_loop: _LoopThread,
        done_event: threading.Event,
        function: str,
        timeout_s: float | None,
        check: Check,
    ) -> None:
        interrupted_s: float | None = None
        while not done_event.wait(_LOOK_S):
            check()
            still_s = running_loop.still_s
            if still_s < _STILL_S:
                interrupted_s = None
                continue
            place = running_loop.place()
            if place is None:  # the machine is busy, or a call has just ended
                continue
            running_loop.blocked_seen_s = time.monotonic()
            if place not in running_loop.logged_places:
                running_loop.logged_places.add(place)
                _logger.warning(
                    "code of an async function has held up the event loop for %.1f s, and with it all calls of this "
                    "process: %s; await what takes time, or put it into asyncio.to_thread",
                    still_s,
                    place,
                )
            if timeout_s is None or still_s < timeout_s + _STUCK_S:
                continue
            if interrupted_s is None:
                interrupted_s = still_s
                _raise_in(running_loop.thread, BlockedLoop)
            elif still_s > interrupted_s + _STUCK_S:
                raise FunctionError(
                    "USER_CODE",
                    f"there is no answer, because the event loop has been held up for {still_s:.0f} s: {place}; that "
                    "code must await what takes time, or put it into asyncio.to_thread",
                    function=function,
                    repeats=False,
                )


class _Process:
    """The state that all `EventLoop` objects of a process share: its running loop and its instances."""

    def __init__(self) -> None:
        self.running_loop: _LoopThread | None = None
        self.instances = Instances()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew in a child: threads do not survive a fork, and neither do connections of instances."""
        self.running_loop = None
        self.instances = Instances()
        self._lock = threading.Lock()

    def turn(self) -> _LoopThread:
        """Return the running loop."""
        with self._lock:
            if self.running_loop is None:
                # Its thread must not keep the context of the exchange that happens to be the first.
                self.running_loop = contextvars.Context().run(_LoopThread)
            return self.running_loop


def _raise_in(thread: threading.Thread, exception: type[BaseException]) -> None:
    """Raise an exception in another thread, between two of its byte codes."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(exception))


PROCESS_LOOP: Final = EventLoop()
"""The event loop of this process."""
