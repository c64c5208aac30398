"""The instances of async functions, which the exchanges of a process share: each is opened once, and closed later."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Generic

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.coroutines import Bound, Check, Coroutines, M, Opening
from foldflight.fold.failures import user_failure
from foldflight.functions.author.context import FunctionContext

# The most instances that stay open without a user, because the next exchange may need what they have loaded.
_UNUSED_MAX: Final = 8
_LOOK_S: Final = 0.1  # seconds between two checks while another exchange opens the instance
# Seconds to wait for instances that all close at once, for example when the server ends.
_CLOSE_S: Final = 5.0
_logger = logging.getLogger("foldflight.coroutines")


class _Kept:
    """An instance that is open or is being opened."""

    def __init__(self, bound: Bound[Opening]) -> None:
        self.name = bound.function.name
        self.target = bound.function.source  # kept alive, so that no other object gets its identity
        self.methods: Any = None
        self.users = 0
        self.opening = threading.Lock()


class _Lent(Generic[M]):
    """A loan of an instance to one exchange."""

    def __init__(self, instances: Instances, kept: _Kept, coroutines: Coroutines) -> None:
        self.kept = kept
        self.methods: M = kept.methods
        self._instances = instances
        self._coroutines = coroutines
        self._is_closed = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lent) and other.kept is self.kept

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
        self._kept: OrderedDict[tuple[int, str, str], _Kept] = OrderedDict()

    def users(self, lent: object) -> int:
        """Return how many exchanges use the instance of a loan."""
        return lent.kept.users if isinstance(lent, _Lent) else 1

    def lend(
        self,
        bound: Bound[M],
        job_parameters: Mapping[str, str],
        context: FunctionContext,
        coroutines: Coroutines,
        check: Check,
    ) -> _Lent[M]:
        """Return the instance; see `Coroutines.instance`."""
        # Equal code may refer to different objects, so an instance belongs to one class or function object.
        key = (id(bound.function.source), bound.fingerprint, repr(sorted(job_parameters.items())))
        with self._lock:
            kept = self._kept.setdefault(key, _Kept(bound))
            self._kept.move_to_end(key)
            kept.users += 1
        try:
            while not kept.opening.acquire(timeout=_LOOK_S):
                check()
            try:
                if kept.methods is None:
                    kept.methods = _open_instance(bound, job_parameters, context, coroutines, check)
            finally:
                kept.opening.release()
        except BaseException:
            self.take_back(kept, coroutines)
            raise
        return _Lent(self, kept, coroutines)

    def take_back(self, kept: _Kept, coroutines: Coroutines) -> None:
        """End the use of an instance, and close the instances that have been unused for longest."""
        with self._lock:
            kept.users -= 1
            unused = [key for key, each in self._kept.items() if not each.users]
            # One that could not be opened is dropped at once, so that the next exchange tries again.
            dropped = [key for key in unused if self._kept[key].methods is None]
            opened = [key for key in unused if self._kept[key].methods is not None]
            dropped += opened[: max(len(opened) - _UNUSED_MAX, 0)]
            closing = [self._kept.pop(key) for key in dropped]
        _close(closing, coroutines)

    def close_unused(self, coroutines: Coroutines) -> None:
        """Close the instances that nobody uses."""
        with self._lock:
            unused = [key for key, each in self._kept.items() if not each.users]
            closing = [self._kept.pop(key) for key in unused]
        _close(closing, coroutines)


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
        # The instance outlives this exchange, so it does not get the log of it.
        lasting = FunctionContext(name, job_parameters=job_parameters, metrics=context.metrics)
        try:
            _run(name, methods.open, (lasting,), coroutines, check)
        except (Exception, SystemExit) as error:
            raise user_failure(name, "open", error) from error
    return methods


def _close(closing: list[_Kept], coroutines: Coroutines) -> None:
    """Close instances. What their `close` raises concerns no exchange, and is logged."""
    until_s = time.monotonic() + _CLOSE_S

    def check() -> None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"it has not ended within {_CLOSE_S:g} s, so it was cancelled")

    for kept in closing:
        if kept.methods is not None and kept.methods.close is not None:
            try:
                _run(kept.name, kept.methods.close, (), coroutines, check)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code
                failure: FunctionError = user_failure(kept.name, "close", error)
                _logger.warning("%s: %s", kept.name, failure.message)


def _run(name: str, method: Any, arguments: tuple[Any, ...], coroutines: Coroutines, check: Check) -> None:
    """Call a method: a coroutine in the event loop, and any other in this thread, because it may take long."""
    returned = method(*arguments)
    if inspect.isawaitable(returned):
        coroutines.run(name, returned, check)
