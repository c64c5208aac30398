"""The calls of async functions: bounds, batches, retries and cancellation, by a clock that only waiting moves."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pyarrow as pa
import pytest

from foldflight import udf
from foldflight.coroutines.queues import FunctionCalls, Queue, may_pass, pause_s, retry_after_s, status_of
from foldflight.fold.coroutines import Calls, call_ids
from foldflight.functions import function_of
from foldflight.functions.author.context import OPEN_CALL
from foldflight.functions.author.spec import CallBounds


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing is left to do."""

    _selector: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select

        def pass_time(timeout):
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = pass_time

    def time(self) -> float:
        return self.now


class Counting:
    """A report that counts."""

    def __init__(self) -> None:
        self.counts = Counter()
        self.open = self.most_open = 0

    def call_began(self, function: str) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)

    def call_ended(self, function: str, outcome: str, seconds: float) -> None:
        self.open -= 1
        self.counts[outcome] += 1

    def call_retried(self, function: str) -> None:
        self.counts["retried"] += 1

    def call_delayed(self, function: str) -> None:
        self.counts["delayed"] += 1


class StatusError(Exception):
    """As aiohttp's and httpx's errors, it has a status and headers."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


@udf
async def ask(x: int) -> int:
    return x


FUNCTION = function_of(ask)


class Run:
    """Rows of exchanges for one function, run to the end."""

    def __init__(self, call, *, users: int = 1, share: float = 1.0, **bounds) -> None:
        self.loop, self.report = Clock(), Counting()
        self.call, self.bounds = call, CallBounds(**bounds)
        self._users, self._share = users, share
        self.functions: FunctionCalls | None = None
        self.again: Any = None

    def queue(self, rows, *, sharing_key: object = "one", stops: bool = False) -> Queue:
        calls = Calls(
            FUNCTION,
            self.bounds,
            self.call,
            [(row,) for row in rows],
            call_ids("", "", rows),
            pa.int64(),
            again=self.again or (lambda index: (rows[index],)),
            shared=sharing_key,
            stops=stops,
        )
        return Queue(calls, self.report)

    def __call__(self, *queues: Queue, until=None, later=()) -> list[list]:
        every = [*queues, *(queue for _, queue in later)]

        async def main():
            self.functions = FunctionCalls(self.bounds, self._share, lambda _: self._users)
            for queue in queues:
                self.functions.add(queue)
            for at_s, queue in later:
                self.loop.call_at(at_s, self.functions.add, queue)
            while not all(queue.done_event.is_set() for queue in every) and not (until and until(self)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        try:
            self.loop.run_until_complete(asyncio.wait_for(main(), 1e6))
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()
        return [
            [answer and (answer.value if answer.error is None else answer.error) for answer in each.calls.answers]
            for each in queues
        ]

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("exchanges", [1, 5])
def test_rows_run_side_by_side_within_the_bound_and_keep_their_order(exchanges) -> None:
    """At most `concurrency` calls are open over all exchanges; answers are in the order of the rows of each."""

    async def later(x):
        await asyncio.sleep(1.0 / (x + 1))
        return x * 2

    run = Run(later, concurrency=7)
    assert run(*(run.queue(range(50)) for _ in range(exchanges))) == [[x * 2 for x in range(50)]] * exchanges
    assert run.report.most_open == 7
    assert run.report.counts["done"] == 50 * exchanges


def test_no_second_has_more_calls_than_the_rate() -> None:
    """Eight exchanges over two workers keep the rate in each window of one second; each worker has its share of it.

    A pause saves nothing up, and a call that is repeated counts as one.
    """

    def most_in_a_second(times: list[float]) -> int:
        return max(sum(at <= other < at + 1 for other in times) for at in times)

    def starts_of_a_worker() -> list[float]:
        starts: list[float] = []

        async def note(x):
            starts.append(run.loop.time())
            await asyncio.sleep(0.3)
            if x == 3 and len(starts) < 20:
                raise ConnectionError("lost")

        run = Run(note, rate=20.0, share=0.5)
        run(*(run.queue(range(8)) for _ in range(4)), later=[(9.0, run.queue(range(8)))])
        assert run.report.counts["retried"] > 0
        assert len(starts) > 40
        return starts

    workers = [starts_of_a_worker(), starts_of_a_worker()]
    assert [most_in_a_second(starts) for starts in workers] == [10, 10]
    assert most_in_a_second([*workers[0], *workers[1]]) == 20


def test_an_exchange_with_many_rows_does_not_hold_back_another() -> None:
    """Exchanges take turns, so a single row waits for one turn and not for all of these."""
    order = []

    async def note(x):
        order.append(x)
        await asyncio.sleep(1.0)

    run = Run(note, concurrency=2)
    run(run.queue(range(100)), run.queue([-1]))
    assert order.index(-1) < 4


def test_errors_that_may_pass_are_repeated_and_others_are_not() -> None:
    """A lost connection is tried again with growing pauses; an error of code fails the row at once."""
    calls = Counter()

    async def fail(x):
        calls[x] += 1
        if x == 0 and calls[x] < 3:
            raise ConnectionError("reset")
        if x == 1:
            raise ValueError("never")
        if x == 2:
            raise StatusError(400)
        if x == 3:
            raise StatusError(503)
        return x

    run = Run(fail, retries=4)
    queue = run.queue(range(5))
    ((zero, one, two, three, four),) = run(queue)
    assert (zero, four) == (0, 4)
    assert (type(one), type(two), type(three)) == (ValueError, StatusError, StatusError)
    assert calls == {0: 3, 1: 1, 2: 1, 3: 5, 4: 1}
    assert [answer.attempts for answer in queue.calls.answers] == [3, 1, 1, 5, 1]


@pytest.mark.parametrize("batch", [None, 4])
def test_each_call_of_a_row_has_arguments_that_no_other_has_changed(batch) -> None:
    """Code may empty a list that it gets, fail, and be called again; a row without such arguments fails alone."""
    seen_values = Counter()

    async def empty(given):
        groups = given if batch else [given]
        taken = [[each.pop() for _ in list(each)] for each in groups]
        for each in taken:
            seen_values[each[0]] += 1
        if any(each[0] == 1 and seen_values[1] < 3 for each in taken):
            raise ValueError("bad") if batch and len(groups) > 1 else ConnectionError("reset")
        return [sum(each) for each in taken] if batch else sum(taken[0])

    def again(index):
        if index == 3 and batch:
            raise SystemExit("no copy")
        return (list(rows[index]),)

    rows = [[10, each] for each in range(4)]
    run = Run(empty, batch=batch, retries=4)
    run.again = again
    queue = run.queue([list(each) for each in rows])
    ((zero, one, two, three),) = run(queue)
    assert (zero, one, two) == (10, 11, 12)
    assert isinstance(three, SystemExit) if batch else three == 13


def test_each_row_of_a_call_has_its_own_number_of_calls() -> None:
    """A row that shares the last call of another one is called as often as `retries` permits, too."""
    calls = Counter()

    async def fail(xs):
        calls.update(xs)
        if calls[1] == 1:
            raise ConnectionError("reset")
        return xs

    run = Run(fail, batch=2, retries=1)
    queue = run.queue([0, 1])
    older, newer = queue.take(), queue.take()
    older.attempts = 1
    queue.again.extend([older, newer])
    ((zero, one),) = run(queue)
    assert isinstance(zero, ConnectionError)
    assert one == 1
    assert [answer.attempts for answer in queue.calls.answers] == [2, 2]


def test_retry_after_holds_for_all_rows() -> None:
    """After a 429 with Retry-After no call of the function begins before that time; one beyond the timeout fails."""
    starts = []

    async def busy(x):
        starts.append(run.loop.time())
        await asyncio.sleep(0.001)
        if len(starts) == 1:
            raise StatusError(429, Retry_After="5")
        if x == 2:
            raise StatusError(429, Retry_After="3600")
        return x

    run = Run(busy, concurrency=1, timeout_s=10)
    ((zero, one, two),) = run(run.queue(range(3)))
    assert (zero, one) == (0, 1)
    assert starts[1] - starts[0] >= 5
    assert "longer than timeout_s" in two.__notes__[0]
    assert len(starts) == 4


def test_retry_after_holds_for_a_batch_of_several_exchanges() -> None:
    """They are called apart after that time, and not at once."""
    starts = []

    async def busy(xs):
        starts.append(run.loop.time())
        if len(starts) == 1:
            raise StatusError(429, Retry_After="5")
        return xs

    run = Run(busy, users=2, batch=8, timeout_s=10)
    assert run(run.queue([1, 2]), run.queue([3])) == [[1, 2], [3]]
    assert [start - starts[0] >= 5 for start in starts] == [False, True, True]


def test_a_call_that_never_ends_is_cancelled() -> None:
    """After `timeout_s` a call is cancelled; one that ignores it loses its place, and others go on."""
    ignored_cancellations = []

    async def endless(x):
        while x:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if x == 1 or ignored_cancellations:
                    raise
                ignored_cancellations.append(x)
        return x

    run = Run(endless, concurrency=1, retries=0, timeout_s=3)
    ((one, two, zero),) = run(run.queue([1, 2, 0]))
    assert zero == 0
    assert isinstance(one, TimeoutError)
    assert isinstance(two, TimeoutError)
    assert "timeout_s = 3 s" in str(one)
    assert run.report.counts["timed out"] == 2


def test_batches_join_rows_of_exchanges_with_one_instance() -> None:
    """Rows of several exchanges share a call, up to the size of a batch; rows of another instance do not."""
    sizes = []

    async def batch_of(xs):
        sizes.append(sorted(xs))
        await asyncio.sleep(0.02)
        return [x + 1 for x in xs]

    run = Run(batch_of, users=3, batch=4, concurrency=1)
    answers = run(run.queue([1, 2]), run.queue([3, 4, 5]), run.queue([9], sharing_key="other"))
    assert answers == [[2, 3], [4, 5, 6], [10]]
    assert sizes[0] == [1, 2, 3, 4]
    assert [9] in sizes
    assert [5] in sizes


@pytest.mark.parametrize(("users", "waited_s"), [(1, 0.0), (2, 0.25)])
def test_a_call_waits_for_more_rows_only_if_there_may_be_some(users, waited_s) -> None:
    """If all exchanges that use the instance wait already, a call begins at once, and otherwise after the bound."""
    starts = []

    async def batch_of(xs):
        starts.append(run.loop.time())
        return xs

    run = Run(batch_of, users=users, batch=4, batch_wait_s=0.25)
    assert run(run.queue([1, 2])) == [[1, 2]]
    assert starts == [pytest.approx(waited_s, abs=0.01)]


def test_rows_that_waited_for_a_call_begin_with_those_that_it_answers() -> None:
    """A row that came while a call ran waits for the exchanges that the call has answered, or else they alternate."""
    sizes = []

    async def batch_of(xs):
        sizes.append(len(xs))
        await asyncio.sleep(1)
        return xs

    run = Run(batch_of, users=3, batch=4, batch_wait_s=0.25, concurrency=1)
    run(run.queue([1, 2, 3]), later=[(0.5, run.queue([4])), (1.3, run.queue([5, 6, 7]))])
    assert sizes == [3, 4]


def test_a_batch_that_fails_is_called_for_each_exchange_and_then_in_halves() -> None:
    """The bad row fails alone; the rows of its batch and of the other exchange have their answers."""
    sizes = []

    async def batch_of(xs):
        sizes.append(len(xs))
        if 6 in xs:
            raise ValueError("six")
        return xs

    run = Run(batch_of, users=2, batch=8)
    one, other = run(run.queue([1, 2, 3, 4]), run.queue([5, 6, 7, 8]))
    assert one == [1, 2, 3, 4]
    assert [x if isinstance(x, int) else str(x) for x in other] == [5, "six", 7, 8]
    assert sizes[0] == 8
    assert sorted(sizes[1:3]) == [4, 4]


@pytest.mark.parametrize("result_value", [[1], None, "ab", {1: 1, 2: 2}])
def test_a_batch_must_return_a_value_for_each_row(result_value) -> None:
    """Another number of results, or no list, is an error of each row: none could be told apart.

    The rows have errors of their own, because each exchange adds its row.
    """

    async def batch_of(xs):
        return result_value

    run = Run(batch_of, users=2, batch=8)
    (one,), (two,) = run(run.queue([1]), run.queue([2]))
    assert "for a batch of 2 rows" in str(one)
    assert str(one) == str(two)
    assert one is not two
    assert one.code == "RESULT_TYPE"


def test_an_exchange_that_leaves_cancels_its_own_calls_only() -> None:
    """Calls of an exchange that leaves are cancelled outside, too; a shared one goes on for the other exchange."""
    cancelled_calls, began = [], []

    async def batch_of(xs):
        began.append(xs)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled_calls.append(xs)
            raise
        return xs

    run = Run(batch_of, users=2, batch=4)
    leaves, stays, alone = run.queue([1]), run.queue([2]), run.queue([3], sharing_key="other")

    def leave(run) -> bool:
        if len(began) == 2 and not leaves.is_over:
            run.functions.remove(leaves)
            run.functions.remove(alone)
        return stays.done_event.is_set() and alone.ended_event.is_set()

    assert run(leaves, stays, alone, until=leave) == [[None], [2], [None]]
    assert cancelled_calls == [[3]]
    assert leaves.ended_event.is_set()


def test_the_first_row_that_fails_ends_the_others_unless_errors_are_isolated() -> None:
    """Without isolation the exchange fails with the row, so no further call is paid for."""
    calls = []

    async def fail(x):
        calls.append(x)
        if x == 1:
            raise ValueError("one")
        await asyncio.sleep(1)

    run = Run(fail, concurrency=2)
    run(run.queue(range(100), stops=True))
    assert calls == [0, 1]


def test_code_in_a_call_sees_its_id() -> None:
    """The context of a call has the ids of its rows, which depend on the rows and on the scope only."""
    seen_values = []

    async def note(x):
        await asyncio.sleep(0.1)
        seen_values.append(OPEN_CALL.get().ids)

    run = Run(note)
    run(run.queue([1, 2, 1]))
    assert len(set(seen_values)) == 2
    assert seen_values.count(seen_values[0]) + seen_values.count(seen_values[1]) >= 3
    assert call_ids("a", "f", [1, "1"])[0] != call_ids("a", "f", [1, "1"])[1]
    assert call_ids("a", "f", [1]) == call_ids("a", "f", [1]) != call_ids("b", "f", [1])
    assert call_ids("a", "f", [["ab", "c"]]) != call_ids("a", "f", [["a", "bc"]])


def test_an_exit_fails_its_row_only() -> None:
    """An exit of the author's code ends neither the thread of the loop nor the other rows."""

    async def exits(x):
        if x:
            raise SystemExit(3)
        return x

    run = Run(exits, retries=0)
    ((zero, one),) = run(run.queue([0, 1]))
    assert zero == 0
    assert "SystemExit" in str(one)


def test_statuses_and_times_are_read_from_errors_of_common_clients() -> None:
    """The status and Retry-After are read from errors of urllib, aiohttp, httpx and the clients built on them."""
    of_urllib = HTTPError("http://x", 503, "busy", {"retry-after": "7"}, None)
    of_httpx: Any = Exception("429")
    of_httpx.response = SimpleNamespace(status_code=429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:10 GMT"})
    now = datetime.datetime(2026, 10, 21, 7, 28, 0, tzinfo=datetime.UTC)
    assert (status_of(of_urllib), retry_after_s(of_urllib), may_pass(of_urllib)) == (503, 7.0, True)
    assert (status_of(of_httpx), retry_after_s(of_httpx, lambda: now), may_pass(of_httpx)) == (429, 10.0, True)
    assert not may_pass(StatusError(404))
    assert may_pass(StatusError(408))
    assert may_pass(TimeoutError())
    assert not may_pass(KeyError("x"))
    assert may_pass(RuntimeError("busy"))
    assert status_of(OSError(5, "x")) is None
    asks: Any = ValueError("later")
    asks.retry_after = 2
    assert may_pass(asks)
    assert retry_after_s(asks) == 2.0
    assert retry_after_s(StatusError(429, Retry_After="soon")) is None
    assert retry_after_s(StatusError(429, Retry_After="nan")) is None
    assert 0.05 <= pause_s(1) <= 0.1
    assert pause_s(30) <= 10


def test_a_call_that_other_code_cancels_fails_its_row() -> None:
    """Code that cancels all tasks of the loop leaves no row without an answer."""

    async def cancels(x):
        if x:
            for task in asyncio.all_tasks():
                if task.get_coro().__name__ == "_call":
                    task.cancel()
            await asyncio.sleep(1)
        return x

    run = Run(cancels, retries=0, concurrency=1)
    ((zero, one),) = run(run.queue([0, 1]), until=lambda self: self.loop.now > 100)
    assert zero == 0
    assert "cancelled by its own code" in str(one)


def test_a_function_whose_rows_wait_for_another_attempt_is_not_idle() -> None:
    """Its bounds, and the queue that the exchange leaves later, must not be forgotten meanwhile."""
    idle = []

    async def fails(x):
        raise ConnectionError

    run = Run(fails, retries=1)

    def look(self):
        idle.append(self.functions.is_idle)
        return False

    run(run.queue([1]), until=look)
    assert not any(idle)
