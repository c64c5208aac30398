"""The calls of one function: which rows wait, when the next call begins, and what becomes of its rows.

Some errors of calls may pass, so the call is repeated after a pause. All of this runs in the thread of the event loop,
so it needs no locks.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import email.utils
import math
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from foldflight.errors import FunctionError
from foldflight.fold.coroutines import Answer, Calls
from foldflight.functions.author.context import OPEN_CALL, OpenCall
from foldflight.functions.author.spec import CallBounds

# Errors of code: the same call would raise them again.
_LASTING: Final = (
    *(TypeError, ValueError, LookupError, AttributeError, NameError, ImportError, ArithmeticError, AssertionError),
    *(NotImplementedError, SyntaxError, RecursionError),
)
_PASSING_STATUSES: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500
_STATUSES: Final = range(400, 600)
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 10.0


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an exception, as the common clients keep it; None if it has none."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            status = getattr(source, name, None)
            if isinstance(status, int) and status in _STATUSES:
                return status
    return None


def may_pass(error: BaseException) -> bool:
    """Return whether a call that raised this error may succeed if it is repeated."""
    if retry_after_s(error) is not None:
        return True
    status = status_of(error)
    if status is not None:
        return status >= _SERVER_ERROR or status in _PASSING_STATUSES
    return isinstance(error, Exception) and not isinstance(error, _LASTING)


def retry_after_s(error: BaseException, now: Callable[[], datetime.datetime] | None = None) -> float | None:
    """Return the seconds for which an error asks to wait: its `retry_after`, or a header Retry-After of its response.

    Args:
        error: The error.
        now: Returns the time in UTC, for headers with a date.
    """
    seconds = getattr(error, "retry_after", None)
    if seconds is None:
        for source in (error, getattr(error, "response", None)):
            seconds = seconds or _header(getattr(source, "headers", None))
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        return max(float(seconds), 0.0) if math.isfinite(seconds) else None
    if not isinstance(seconds, str):
        return None
    try:
        return _seconds(float(seconds))
    except ValueError:
        pass
    try:
        at = email.utils.parsedate_to_datetime(seconds)
    except ValueError:
        return None
    current = datetime.datetime.now(datetime.UTC) if now is None else now()
    return max((at.astimezone(datetime.UTC) - current).total_seconds(), 0.0)


def _seconds(value_s: float) -> float | None:
    return max(value_s, 0.0) if math.isfinite(value_s) else None


def _header(headers: Any) -> Any:
    """Return the header Retry-After of any kind of headers; None if there is none."""
    if isinstance(headers, Mapping):
        return next((value for name, value in headers.items() if str(name).lower() == "retry-after"), None)
    get = getattr(headers, "get", None)
    return get("Retry-After") if callable(get) else None


def pause_s(attempts: int) -> float:
    """Return the time before the next call after this number of calls: it doubles, and varies by half.

    Rows that failed together should not come back together.
    """
    longest = min(_PAUSE_S * 2 ** (attempts - 1), _PAUSE_S_MAX)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


# Time in which a cancelled coroutine has to end. After that it is left alone, and its place is given to another.
_END_S: Final = 1.0
# A little more than 1, so that rounding never lets one more call into a second.
_SPACE: Final = 1.000001


class Report(Protocol):
    """Is told what happens to calls, for metrics."""

    def call_began(self, function: str) -> None:
        """A call has begun."""

    def call_ended(self, function: str, outcome: str, seconds: float) -> None:
        """A call has ended: `done`, `failed`, `timed out` or `cancelled`."""

    def call_retried(self, function: str) -> None:
        """A row will be called again after an error."""

    def call_delayed(self, function: str) -> None:
        """A call waits because of the rate."""


@dataclass(eq=False)
class Row:
    """One row that waits for its call.

    Args:
        queue: The queue of its exchange.
        index: Its number there.
        arguments: The arguments of its next call.
        attempts: The number of calls so far.
        batch_max: The largest number of rows of its next call.
        is_alone: Whether its next call has only rows of its exchange, because one with others has failed.
    """

    queue: Queue
    index: int
    arguments: tuple[Any, ...]
    attempts: int = 0
    batch_max: int = 1
    is_alone: bool = False


@dataclass(eq=False)
class Queue:
    """The rows of one exchange that have no answer yet.

    Attributes:
        done_event: Set when no answer is missing, or a row has failed and the calls stop.
        ended_event: Set when no call of these rows is running any more.
    """

    calls: Calls
    report: Report
    since_s: float = 0.0
    done_event: threading.Event = field(default_factory=threading.Event)
    ended_event: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False
    tasks: dict[asyncio.Task[None], Sequence[Queue]] = field(default_factory=dict)
    again: deque[Row] = field(default_factory=deque)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _rows_left: int = field(init=False)
    _begun_count: int = field(init=False, default=0)  # rows below this one have begun

    def __post_init__(self) -> None:
        self._rows_left = len(self.calls.arguments)
        if not self._rows_left:
            self._finish()

    @property
    def waiting_count(self) -> int:
        """The number of rows that may begin now."""
        return 0 if self.is_over else len(self.again) + len(self.calls.arguments) - self._begun_count

    @property
    def head(self) -> Row:
        """The row that is next."""
        if self.again:
            return self.again[0]
        return Row(
            self, self._begun_count, self.calls.arguments[self._begun_count], batch_max=self.calls.bounds.batch or 1
        )

    def take(self) -> Row:
        """Remove the row that is next, and return it."""
        if self.again:
            return self.again.popleft()
        row = self.head
        self._begun_count += 1
        return row

    def answer(self, row: Row, answer: Answer) -> None:
        """Keep the answer of a row."""
        if self.is_over:
            return
        self.calls.answers[row.index] = answer
        self._rows_left -= 1
        if not self._rows_left or (answer.error is not None and self.calls.stops):
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self.done_event.set()

    def cancel(self) -> None:
        """Let no further row begin, and cancel the calls for which nobody waits any more."""
        self.is_over = True
        for task, owners in list(self.tasks.items()):
            if all(each.is_over for each in owners):
                task.cancel()
            else:  # it goes on for the others
                del self.tasks[task]

    def end_if_idle(self) -> None:
        """Tell who waits for the end, if no call is running."""
        if self.is_over and not self.tasks:
            self.ended_event.set()


class FunctionCalls:
    """The waiting and the open calls of one function of this process.

    Args:
        bounds: The bounds of the function.
        share: The part of its rate that this process has.
        users: Returns how many exchanges use a shared instance: when all of them wait, no further row can come.
        watch: Wraps a coroutine of the author, so that code which holds up the loop is noticed.
    """

    def __init__(
        self,
        bounds: CallBounds,
        share: float,
        users: Callable[[object], int],
        watch: Callable[[str, Coroutine[Any, Any, Any]], Awaitable[Any]] = lambda _, coroutine: coroutine,
    ) -> None:
        self._watch = watch
        self._bounds = bounds
        self._interval_s = 0.0 if bounds.rate is None else _SPACE / (bounds.rate * share)
        self._users = users
        self._waiting_queues: deque[Queue] = deque()
        self._queues: list[Queue] = []  # of the exchanges that wait
        self._open = 0
        self._full_until_s = 0.0  # when as many calls as permitted were last open
        self._next_s = 0.0  # when the rate permits the next call
        self._delayed_s = 0.0  # which of these has been reported as a delay
        self._paused_until_s = 0.0  # as Retry-After has asked
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_idle(self) -> bool:
        """Whether no exchange waits, perhaps for the next attempt of a row, no call runs, and the rate permits one."""
        return not self._open and not self._queues and self._loop.time() > max(self._next_s, self._paused_until_s)

    def add(self, queue: Queue) -> None:
        """Take the rows of an exchange."""
        if queue.is_over:  # it has no rows
            return
        queue.since_s = self._loop.time()
        self._queues.append(queue)
        self._waiting_queues.append(queue)
        self._go_on()

    def remove(self, queue: Queue) -> None:
        """Cancel the open rows of an exchange that leaves before they have answers."""
        self._forget(queue)
        self._go_on()

    def _forget(self, queue: Queue) -> None:
        if queue in self._queues:
            self._queues.remove(queue)
            if queue in self._waiting_queues:
                self._waiting_queues.remove(queue)
            queue.cancel()
        queue.end_if_idle()

    # -- beginning calls ---------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin as many calls as the bounds permit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._open < self._bounds.concurrency and self._turn():
            now_s = self._loop.time()
            queue = self._waiting_queues[0]
            begins_s = max(self._next_s, self._paused_until_s, self._full_at_s(queue))
            if begins_s > now_s:
                if self._next_s > now_s and self._delayed_s != self._next_s:
                    self._delayed_s = self._next_s
                    queue.report.call_delayed(queue.calls.function.name)
                self._timer = self._loop.call_at(begins_s, self._go_on)
                return
            self._next_s = max(self._next_s, now_s) + self._interval_s if self._interval_s else 0.0
            self._begin(self._next_rows())

    def _turn(self) -> bool:
        """Put an exchange that has rows to the front. Return whether there is one."""
        for _ in range(len(self._waiting_queues)):
            if self._waiting_queues[0].waiting_count:
                return True
            self._waiting_queues.popleft()
        return False

    def _full_at_s(self, queue: Queue) -> float:
        """Return when the next call need not wait any longer for more rows."""
        head = queue.head
        if head.batch_max == 1 or head.is_alone or self._bounds.batch is None:
            return 0.0
        sharing_key = queue.calls.shared
        present = [each for each in self._waiting_queues if each.calls.shared == sharing_key and each.waiting_count]
        are_all = sum(each.calls.shared == sharing_key for each in self._queues) >= self._users(sharing_key)
        if are_all or sum(each.waiting_count for each in present) >= head.batch_max:
            return 0.0
        # Rows that waited for the last call wait once more: callers that it has just answered are about to send their
        # next rows.
        return max(min(each.since_s for each in present), self._full_until_s) + self._bounds.batch_wait_s

    def _next_rows(self) -> list[Row]:
        """Take the rows of the next call, in turn from all exchanges that may share it."""
        queue = self._waiting_queues[0]
        first = queue.take()
        rows = [first]
        self._waiting_queues.rotate(-1)
        if first.batch_max == 1:
            return rows
        sources = deque([queue] if first.is_alone else self._sharing_queues(queue))
        while sources and len(rows) < first.batch_max:
            source = sources.popleft()
            head = source.head if source.waiting_count else None
            if head is not None and (head.is_alone, head.batch_max) == (first.is_alone, first.batch_max):
                rows.append(source.take())
                sources.append(source)
        return rows

    def _sharing_queues(self, queue: Queue) -> list[Queue]:
        """Return the exchanges whose rows may be in one call, beginning with exchanges that wait for their turn."""
        sharing_key = queue.calls.shared
        return [
            each
            for each in self._waiting_queues
            if each is queue or (sharing_key is not None and each.calls.shared == sharing_key)
        ]

    def _begin(self, rows: list[Row]) -> None:
        self._open += 1
        queue = rows[0].queue
        context = queue.context.copy()
        owners = list({id(each.queue): each.queue for each in rows}.values())
        ids = tuple(each.queue.calls.ids[each.index] for each in rows)
        context.run(OPEN_CALL.set, OpenCall(ids, tuple(each.calls.log for each in owners)))
        task = self._loop.create_task(self._call(rows, context), context=context)
        for owner in owners:
            owner.tasks[task] = owners

        def finish(_: asyncio.Task[None]) -> None:
            if self._open == self._bounds.concurrency:
                self._full_until_s = self._loop.time()
            self._open -= 1
            failure = cancelled_by_itself() if task.cancelled() else task.exception()
            if failure is not None:  # if we have cancelled it, the queues take no answer any more
                for row in rows:
                    row.queue.answer(row, Answer(error=failure))
            for owner in owners:
                owner.tasks.pop(task, None)
                if owner.is_over:
                    self._forget(owner)
            self._go_on()

        task.add_done_callback(finish)

    # -- one call ----------------------------------------------------------------------------------------------------

    async def _call(self, rows: list[Row], context: contextvars.Context) -> None:
        calls, report = rows[0].queue.calls, rows[0].queue.report
        name = calls.function.name
        began_s = self._loop.time()
        report.call_began(name)
        outcome = "cancelled"
        inner = self._loop.create_task(_guard(self._watch(name, _call_rows(calls, rows))), name=name, context=context)
        try:
            await asyncio.wait({inner}, timeout=self._bounds.timeout_s)
            if inner.done():
                error = cancelled_by_itself() if inner.cancelled() else inner.exception()
                result = inner.result() if error is None and not inner.cancelled() else None
                outcome = "failed" if error is not None else "done"
            else:
                error, result, outcome = _timed_out(self._bounds), None, "timed out"
        finally:
            report.call_ended(name, outcome, self._loop.time() - began_s)
            if not inner.done():
                inner.cancel()
                await _await_end(inner)
        for row in rows:
            row.attempts += 1
        if error is None:
            self._take(rows, result)
        else:
            self._retry_or_fail(rows, error)

    def _take(self, rows: list[Row], result: Any) -> None:
        if self._bounds.batch is None:
            rows[0].queue.answer(rows[0], Answer(result, attempts=rows[0].attempts))
            return
        values = None if isinstance(result, (str, bytes, dict)) else _as_list(result)
        if values is None or len(values) != len(rows):
            result_text = f"a {type(result).__name__}" if values is None else f"{len(values)} values"
            wrong = (
                f"the call returned {result_text} for a batch of {len(rows)} rows; "
                "return a list with one value for each"
            )
            for row in rows:  # each row gets an error of its own, since the rows may be of several exchanges
                error = FunctionError("RESULT_TYPE", wrong, function=row.queue.calls.function.name)
                row.queue.answer(row, Answer(error=error, attempts=row.attempts))
            return
        for row, value in zip(rows, values, strict=True):
            row.queue.answer(row, Answer(value, attempts=row.attempts))

    def _retry_or_fail(self, rows: list[Row], error: BaseException) -> None:
        """Call the rows again, or let them fail for good."""
        name, report = rows[0].queue.calls.function.name, rows[0].queue.report
        requested_s = retry_after_s(error)
        is_too_long = requested_s is not None and requested_s > self._bounds.timeout_s
        if requested_s is not None and not is_too_long:
            self._paused_until_s = max(self._paused_until_s, self._loop.time() + requested_s)
        if len({id(row.queue) for row in rows}) > 1:
            # An exchange must not fail for the rows of another one, and its rows have not been tried alone.
            for row in rows:
                row.is_alone = True
                row.attempts -= 1
            self._again(rows, 0.0)
            report.call_retried(name)
            return
        lasts = not may_pass(error)
        if lasts and len(rows) > 1:
            for row in rows:  # one row has caused the error, and halving the batch finds it
                row.is_alone, row.batch_max = True, (len(rows) + 1) // 2
            self._again(rows, 0.0)
            report.call_retried(name)
            return
        if is_too_long:
            error.add_note(
                f"It asks to wait for {requested_s:g} s, which is longer than timeout_s = {self._bounds.timeout_s:g}"
            )
            lasts = True
        # Rows that other calls have brought together differ in the number of their calls.
        failed_rows = [row for row in rows if lasts or row.attempts > self._bounds.retries]
        for row in failed_rows:
            row.queue.answer(row, Answer(error=error, attempts=row.attempts))
        rest = [row for row in rows if row not in failed_rows]
        if rest:
            report.call_retried(name)
            self._again(rest, pause_s(max(row.attempts for row in rest)) if requested_s is None else requested_s)

    def _again(self, rows: Sequence[Row], delay_s: float) -> None:
        """Let rows wait for another call."""
        ready = [row for row in rows if _renew_arguments(row)]

        def back() -> None:
            for row in ready:
                row.queue.again.append(row)
                if row.queue not in self._waiting_queues:
                    self._waiting_queues.append(row.queue)
            self._go_on()

        if delay_s:
            self._loop.call_later(delay_s, back)
        else:
            self._loop.call_soon(back)


def cancelled_by_itself() -> RuntimeError:
    """Return the error for a coroutine that ended because it was cancelled, and not by us."""
    return RuntimeError("it was cancelled by its own code")


def _renew_arguments(row: Row) -> bool:
    """Give a row new arguments for another call. Return whether it has them: otherwise it has failed for good."""
    if row.queue.is_over:
        return False
    try:
        row.arguments = row.queue.calls.again(row.index)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - code of the author makes and copies them
        row.queue.answer(row, Answer(error=error, attempts=row.attempts))
        return False
    return True


def _call_rows(calls: Calls, rows: Sequence[Row]) -> Coroutine[Any, Any, Any]:
    arguments = [each.arguments for each in rows]
    if calls.bounds.batch is None:
        return calls.call(*arguments[0])
    return calls.call(*map(list, zip(*arguments, strict=True)))


async def _guard(coroutine: Awaitable[Any]) -> Any:
    """Run a coroutine. What would end the thread of the event loop becomes an error of the function."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"it raised {type(error).__name__}: {error}") from error


async def _await_end(task: asyncio.Task[Any]) -> None:
    """Wait until a cancelled task has ended, for a while."""
    done_tasks, _ = await asyncio.wait({task}, timeout=_END_S)
    if done_tasks and not task.cancelled():
        task.exception()  # it is taken note of, so that asyncio does not log it


def _timed_out(bounds: CallBounds) -> TimeoutError:
    return TimeoutError(f"there was no answer within timeout_s = {bounds.timeout_s:g} s, so the call was cancelled")


def _as_list(result: Any) -> list[Any] | None:
    try:
        return list(result)
    except TypeError:
        return None
