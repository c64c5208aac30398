"""Calls of authors' coroutines. The opener of an evaluation passes what runs them, because the fold has no threads.

`Waits` has the values of groups that an async `get_value` or `get_values` computes.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.failures import Failures, user_failure
from foldflight.functions.author.context import OPEN_FOLD, FunctionContext, LogRecord, OpenFold
from foldflight.functions.author.spec import BoundFunction, CallBounds, Methods, RegisteredFunction

if TYPE_CHECKING:
    from foldflight.fold.resources import Resources


_ID_BYTES: Final = 16
# The modules of types whose values have the same text if they are equal.
_TEXTUAL: Final = frozenset({"builtins", "datetime", "decimal", "fractions", "numpy", "uuid"})
_REDUCE_PROTOCOL: Final = 4


@dataclass(frozen=True)
class Answer:
    """What became of one row.

    Args:
        value: The result; None if the row failed.
        error: The last exception, if all attempts failed.
        attempts: The number of calls.
    """

    value: Any = None
    error: BaseException | None = None
    attempts: int = 1


@dataclass(frozen=True)
class Calls:
    """Calls of one function: for the rows of a chunk, or for the groups of a barrier.

    Args:
        function: The function.
        bounds: Its bounds.
        call: The author's coroutine function. If the bounds have a batch, it takes lists and returns one.
        arguments: The arguments of each of n rows.
        ids: The ids of n rows; see `FunctionContext.call_ids`.
        result_type: The type to which results are cast.
        again: Makes the arguments of a row for another call, because the author's code may have changed the first ones.
        shared: What all calls have in common that may share a batch: the shared instance. None: they share none.
        stops: Whether no further call begins after a row has failed for good, because all rows fail with it.
        log: Receives each line that the function logs.
        slots: The groups of n rows; None for rows that belong to no group.
    """

    function: RegisteredFunction
    bounds: CallBounds
    call: Callable[..., Any]
    arguments: Sequence[tuple[Any, ...]]
    ids: Sequence[str]
    result_type: pa.DataType
    again: Callable[[int], tuple[Any, ...]]
    shared: object = None
    stops: bool = True
    log: Callable[[LogRecord], None] | None = None
    slots: Sequence[int] | None = None
    answers: list[Answer | None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", [None] * len(self.arguments))

    @property
    def first_unanswered(self) -> int:
        """The number of the first row without an answer; the first row, if all have one."""
        return self.answers.index(None) if None in self.answers else 0


class Openable(Protocol):
    """The methods of an instance that is opened and closed."""

    @property
    def open(self) -> Callable[[FunctionContext], Any] | None:
        """The author's `open`, if there is one."""

    @property
    def close(self) -> Callable[[], Any] | None:
        """The author's `close`, if there is one."""


M = TypeVar("M", bound=Openable)
M_co = TypeVar("M_co", bound=Openable, covariant=True)


class Bound(Protocol[M_co]):
    """A function with the types and direct arguments of a call: a `BoundScalar` or a `BoundFunction`."""

    @property
    def function(self) -> RegisteredFunction:
        """The function."""

    @property
    def fingerprint(self) -> str:
        """A hash of its types and direct arguments."""

    def instantiate(self) -> M_co:
        """Return the methods of a new instance of the author's class."""


class SharedInstance(Protocol[M_co]):
    """An instance of an author's class that all exchanges of a process share, while one of them uses it."""

    @property
    def methods(self) -> M_co:
        """The methods of the instance."""

    def close(self) -> None:
        """Stop using it. The process closes it when nobody has used it for a while."""


Check: TypeAlias = Callable[[], None]
"""Raises an error if waiting is useless, because the engine has left."""


def go_on() -> None:
    """Raise nothing: a `Check` for callers that always wait for all answers."""


class Coroutines(Protocol):
    """Runs authors' coroutines, within the bounds of their functions for the process.

    Attributes:
        opens: Whether `open` and `close` of authors are called. A replay calls nothing.
    """

    opens: bool

    def answer(self, calls: Calls, check: Check) -> None:
        """Wait until each row has an answer in `calls.answers`, or until a row has failed for good if the calls stop.

        If the waiting ends with an exception, the calls are cancelled.

        Args:
            calls: The calls.
            check: Called every now and then.

        Raises:
            FunctionError: USER_CODE, if code that blocks the event loop keeps all calls from going on.
        """

    def run(self, function: str, coroutine: Any, check: Check) -> None:
        """Wait for a coroutine of an author that has no bounds: `open` or `close`. It raises what that raises."""

    def instance(
        self, bound: Bound[M], job_parameters: Mapping[str, str], context: FunctionContext, check: Check
    ) -> SharedInstance[M]:
        """Return the instance for a function, its direct arguments and the job parameters, opened once in a process.

        Raises:
            FunctionError: USER_CODE, if `__init__` or `open` raises. The next one who asks tries again.
        """


class RecordedCoroutines:
    """Passes calls to another `Coroutines`, and reports their answers to a recorder.

    Args:
        inner: Runs the coroutines.
        record: Called with calls after they have been answered, or after waiting for them has failed.
    """

    opens = True

    def __init__(self, inner: Coroutines, record: Callable[[Calls], None]) -> None:
        self._inner = inner
        self._record = record

    def answer(self, calls: Calls, check: Check) -> None:
        """Wait for answers, and report them."""
        try:
            self._inner.answer(calls, check)
        finally:
            self._record(calls)

    def run(self, function: str, coroutine: Any, check: Check) -> None:
        """Wait for a coroutine."""
        self._inner.run(function, coroutine, check)

    def instance(
        self, bound: Bound[M], job_parameters: Mapping[str, str], context: FunctionContext, check: Check
    ) -> SharedInstance[M]:
        """Return a shared instance."""
        return self._inner.instance(bound, job_parameters, context, check)


def no_coroutines(function: str) -> RejectedError:
    """Return the error for an async function where nothing runs coroutines."""
    return RejectedError(
        "SIGNATURE",
        f"{function} is async, and there is no event loop here: pass `coroutines` in the resources of the fold, as "
        "servers and connect() do",
        function=function,
    )


def call_ids(scope: str, fingerprint: str, rows: Iterable[Any]) -> list[str]:
    """Return the id of each row: a hash of the scope, the function and the row, as 32 hexadecimal digits."""
    base_digest = hashlib.blake2b(f"{len(scope)} {scope} {fingerprint} ".encode(), digest_size=_ID_BYTES)
    ids = []
    for row in rows:
        digest = base_digest.copy()
        _add(digest, row)
        ids.append(digest.hexdigest())
    return ids


def _add(digest: Any, value: Any, within: tuple[int, ...] = ()) -> None:
    """Add a value so that equal values add the same in all processes.

    Texts of NumPy arrays leave out values, so their bytes are added. Sets have another order in each process, since
    hashes of texts differ, and so their members are added in the order of their digests. Other objects are added by
    what pickle would read of them.

    Args:
        digest: The digest.
        value: The value.
        within: The identities of the objects that it is part of.
    """
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype.str} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)} ".encode())
        digest.update(value)
    elif id(value) in within:
        digest.update(b"itself ")
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)} ".encode())
        for each in value:
            _add(digest, each, (*within, id(value)))
    elif isinstance(value, (set, frozenset)):
        digest.update(f"set {len(value)} ".encode())
        for member in sorted(_digest_of(each, within) for each in value):
            digest.update(member)
    elif isinstance(value, Mapping):
        digest.update(f"map {len(value)} ".encode())
        for each in value.items():
            _add(digest, each, (*within, id(value)))
    elif type(value).__module__ in _TEXTUAL:
        text = repr(value).encode(errors="backslashreplace")
        digest.update(f"{type(value).__name__} {len(text)} ".encode())
        digest.update(text)
    else:
        digest.update(f"object {type(value).__qualname__} ".encode())
        for part in _parts_of(value):
            _add(digest, part, (*within, id(value)))


def _digest_of(value: Any, within: tuple[int, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=_ID_BYTES)
    _add(digest, value, within)
    return digest.digest()


def _parts_of(value: Any) -> Iterator[Any]:
    """Yield what makes up an object, as `object.__reduce_ex__` tells: arguments, attributes by name, items."""
    reduce_value = value.__reduce_ex__(_REDUCE_PROTOCOL)
    if isinstance(reduce_value, str):  # the name of a constant
        yield reduce_value
        return
    _, arguments, *others = reduce_value
    yield [each.__qualname__ if isinstance(each, type) else each for each in arguments]
    for part in others:
        if isinstance(part, dict):  # attributes, which code may have set in any order
            yield sorted(part.items())
        else:
            yield list(part) if isinstance(part, Iterator) else part


def failure_of(function: str, method_name: str, answer: Answer) -> FunctionError:
    """Return the error for a row that has failed for good, with the number of calls."""
    error = answer.error
    assert error is not None
    # Rows of one call share its error, and each has a slot, a row and a number of calls of its own.
    failure = copy.copy(error) if isinstance(error, FunctionError) else user_failure(function, method_name, error)
    if answer.attempts > 1:
        failure.message += f" (the last of {answer.attempts} calls)"
        failure.args = (failure.message,)
    return failure


@dataclass(frozen=True)
class Waits:
    """The shared instance of an async aggregate function, and what runs its coroutines, in one exchange.

    Args:
        bound: The function.
        context: Its context in this exchange, whose log its methods use.
        resources: What the process gives to the exchange.
        coroutines: Runs its coroutines.
        shared: The instance of its class, which all exchanges of the process use.
    """

    bound: BoundFunction
    context: FunctionContext
    resources: Resources
    coroutines: Coroutines
    shared: SharedInstance[Methods]

    @classmethod
    def of(cls, bound: BoundFunction, context: FunctionContext, resources: Resources | None) -> Waits:
        """Open the instance for an exchange, or share the one that the process has.

        Raises:
            RejectedError: SIGNATURE, if nothing runs coroutines here.
            FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
        """
        if resources is None or resources.coroutines is None:
            raise no_coroutines(bound.function.name)
        instance = resources.coroutines.instance(bound, context.job_parameters, context, resources.check)
        return cls(bound, context, resources, resources.coroutines, instance)

    @contextmanager
    def log_to_exchange(self) -> Iterator[None]:
        """Send the lines that methods of the instance log to this exchange while the block runs."""
        token = OPEN_FOLD.set(OpenFold(self.resources.log, self.context.slot_at_work))
        try:
            yield
        finally:
            OPEN_FOLD.reset(token)

    def answers(
        self,
        accumulators: Sequence[Any],
        states: Sequence[Any],
        slots: Sequence[int],
        failures: Failures,
        again: Callable[[int], Any],
    ) -> list[Any]:
        """Return the values of n accumulators; None for accumulators that fail, if errors are isolated.

        Args:
            accumulators: The accumulators.
            states: What their states have, which the ids of their calls depend on.
            slots: Their slots.
            failures: Records the slots that fail.
            again: Makes the accumulator of a slot for another call.

        Raises:
            FunctionError: USER_CODE with the slot, if errors are not isolated.
        """
        function = self.bound.function
        assert function.bounds is not None
        method_name = function.value_method
        call: Any = getattr(self.shared.methods, method_name)
        calls = Calls(
            function,
            function.bounds,
            call,
            [(each,) for each in accumulators],
            call_ids(self.resources.call_scope, self.bound.fingerprint, states),
            self.bound.result_type,
            again=lambda index: (again(slots[index]),),
            shared=self.shared,
            stops=not failures.isolates,
            log=self.resources.log,
            slots=slots,
        )
        try:
            self.coroutines.answer(calls, self.resources.check)
        except SystemExit as error:  # the server interrupts what takes too long
            failure = user_failure(function.name, method_name, error)
            failure.slot = slots[calls.first_unanswered]
            raise failure from error
        values = []
        for index, answer in enumerate(calls.answers):
            values.append(None if answer is None else answer.value)
            if answer is not None and answer.error is not None:
                failure = failure_of(function.name, method_name, answer)
                failure.slot = slots[index]
                if not failures.take(failure):
                    raise failure from answer.error
        return values


def no_running_values(function: str) -> RejectedError:
    """Return the error for values after each row, of a function whose values are async."""
    return RejectedError(
        "SIGNATURE",
        f"{function} has an async get_value or get_values, which is asked once for each group that changed, and OVER "
        "needs the value after each row; aggregate with group_by, or make get_value a plain method",
        function=function,
    )
