"""The open exchanges of one server: admission, and limits on idle time, frame time and memory.

An exchange ends when its engine closes it. The server ends an exchange that is idle for too long, that takes too long
for one frame, or that is the largest one when memory is used up.

Each exchange contributes to the metrics of the server, and has two kinds of spans: `wait`, until the first frame of an
epoch arrives, and `fold`, from there on. There is no span for a frame. A `fold` tells how long frames were folded
within it; the rest is waiting for the engine.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Entries, Forget, Frame, Open, States, Wanted
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.fold.mode import Mode
from foldflight.functions.query.call import RowKind
from foldflight.functions.types.arrow import is_bounded
from foldflight.server.limits import GuardedCall, Memory, Watch, memory_limit_of, release_memory, resident_bytes, trim
from foldflight.server.ops.logs import Logger
from foldflight.server.ops.metrics import Metrics
from foldflight.server.run.settings import Settings
from foldflight.tracing import SHORT_S, Tracer, ids_of


class FoldSpans:
    """The spans of one exchange, below the engine's span.

    Attributes:
        exchange: The exchange, once there is one.
        versions: The version of the function of each call or step.
    """

    def __init__(self, tracer: Tracer, open_request: Open, *, server_id: str) -> None:
        self._tracer = tracer
        self._opening = open_request
        self._server_id = server_id
        self.exchange: ServerExchange | None = None
        self.versions: list[str] = []
        self._is_first = True
        self._begin(time.time_ns())

    def _begin(self, since_ns: int) -> None:
        """Begin an epoch, at the end of the one before."""
        self._since_ns = since_ns
        self._began_ns = 0  # its first frame; 0: none has arrived
        self._rows = self._bytes = self._chunks = 0
        self._seconds = 0.0

    def count(self, message: Message, frame: Frame, seconds: float) -> None:
        """Count a frame whose answer took `seconds`, until now."""
        ended_ns = time.time_ns()
        if not self._began_ns:
            self._began_ns = ended_ns - int(seconds * 1e9)
        self._seconds += seconds
        if isinstance(frame, Chunk):
            self._rows += frame.batch.num_rows
            self._chunks += 1
        if isinstance(frame, (Chunk, States)):
            self._bytes += message.batch_bytes
        if isinstance(frame, Barrier):
            self._finish(ended_ns, None, {"foldflight.epoch": frame.epoch})
            self._begin(ended_ns)

    def end(self, outcome: str, error: FoldflightError | None, seconds: float) -> None:
        """End the exchange; with an error, `seconds` after the arrival of the frame that failed."""
        ended_ns = time.time_ns()
        if error is not None and not self._began_ns:
            self._began_ns = ended_ns - int(seconds * 1e9)
        if self._began_ns:
            self._finish(ended_ns, error, {"foldflight.outcome": outcome})
        self._tracer.send()

    def _finish(self, ended_ns: int, error: FoldflightError | None, facts: dict[str, Any]) -> None:
        """Record the spans of an epoch: the first one, those that took long, and one that failed."""
        must_record, self._is_first = self._is_first or error is not None, False
        parent, began_ns, short_ns = self._opening.trace_context, self._began_ns, SHORT_S * 1e9
        if must_record or began_ns - self._since_ns >= short_ns:
            self._tracer.record("wait", parent, {"foldflight.server_id": self._server_id}, self._since_ns, began_ns)
        if not must_record and ended_ns - began_ns < short_ns:
            return
        facts |= {
            "foldflight.server_id": self._server_id,
            "foldflight.functions": list(self._opening.functions),
            "foldflight.rows": self._rows,
            "foldflight.bytes": self._bytes,
            "foldflight.chunks": self._chunks,
            "foldflight.fold_seconds": self._seconds,
            "foldflight.wait_seconds": max((ended_ns - began_ns) / 1e9 - self._seconds, 0.0),
        }
        if self.exchange is not None:
            facts |= {
                "foldflight.versions": self.versions,
                "foldflight.modes": [str(mode) for mode in self.exchange.folds],
                "foldflight.groups": self.exchange.groups,
                "foldflight.groups_isolated": self.exchange.stats.isolated.total(),
            }
        self._tracer.record("fold", parent, facts, began_ns, ended_ns, kind="SERVER", error=error)


class ExchangeMetrics:
    """Counts one exchange on the metrics of the server.

    Args:
        metrics: The metrics.
        open_request: The Open frame of the exchange.
        exchange: The exchange.
        spans: The spans of the exchange; None if it is not traced.

    Attributes:
        rows: The rows so far.
        began_s: When the last frame arrived, by the monotonic clock.
        waited_s: How long functions have waited for the engine since the last frame was counted.
    """

    def __init__(
        self, metrics: Metrics, open_request: Open, exchange: ServerExchange, spans: FoldSpans | None = None
    ) -> None:
        self.rows = 0
        self.began_s = time.monotonic()
        self.waited_s = 0.0
        self._spans = spans
        if spans is not None:
            spans.exchange = exchange
        # The trace that metrics name as their exemplar (in the format OpenMetrics). An exemplar costs as much as a
        # short fold, so only the first frame of a kind and long ones have one.
        self._exemplar = ids_of(open_request.trace_context) or None
        self._exemplified_frames: set[type[Frame]] = set()
        self._metrics = metrics
        self._exchange = exchange
        self._functions = [metrics.function_label(name) for name in open_request.functions]
        self._has_kinds = not open_request.maps and "kind" in open_request.columns.names
        # For each kind of rows, in their order, the counters of the functions.
        self._rows_folded = [
            [metrics.rows_folded.labels(function, kind.short) for function in self._functions] for kind in RowKind
        ]
        self._groups = self._state_bytes = self._bytes_since = self._saves = 0
        self._returns_states = open_request.returns.states
        self._is_scalar = open_request.maps
        # States that consist of numbers have a fixed size.
        states = (field.type for field in exchange.open_reply.schema if field.name.startswith("state_"))
        self._grows = not all(map(is_bounded, states))
        self._isolated_counts: Counter[str] = Counter()
        self._folds: tuple[Mode, ...] = ()
        self._asking_functions: set[str] = set()  # the functions with questions for entries of views
        self._lock = threading.Lock()  # an idle exchange is ended by another thread than its own
        self._has_ended = False

    def begin(self) -> None:
        """Count the exchange as admitted."""
        self._metrics.opened.inc()
        self._metrics.open.inc()
        for function, fold in zip(self._functions, self._exchange.folds, strict=True):
            self._metrics.calls_opened.labels(function, fold).inc()
        self._show_folds()

    def count(self, message: Message, frame: Frame, seconds: float) -> None:
        """Count a frame that was answered within `seconds`."""
        with self._lock:
            if not self._has_ended:
                self._count(message, frame, seconds)
                if self._spans is not None:
                    self._spans.count(message, frame, seconds - self.waited_s)
                self.waited_s = 0.0

    def count_question(self, question: Wanted) -> str | None:
        """Count a question for entries of views. Return the function for its first question, otherwise None."""
        index = next(
            index
            for index in range(len(self._functions))
            if question.batch.column(f"state_{index}").is_valid()[0].as_py()
        )
        function = self._functions[index]
        self._metrics.view_questions.labels(function).inc()
        is_first = function not in self._asking_functions
        self._asking_functions.add(function)
        return function if is_first else None

    @property
    def weight(self) -> tuple[int, int, int]:
        """An estimate of the size of the exchange, to find the largest one: bytes, then groups, then rows.

        This is the size of the states that it returned last, plus, if its states can grow, the bytes received since. A
        checkpoint returns what has become of them, and Forget may drop it.
        """
        grown_bytes = self._bytes_since if self._grows else 0
        return self._state_bytes + grown_bytes, self._groups, self.rows

    def _count(self, message: Message, frame: Frame, seconds: float) -> None:
        exemplar = None
        if self._exemplar is not None and (seconds >= SHORT_S or type(frame) not in self._exemplified_frames):
            exemplar = self._exemplar
            self._exemplified_frames.add(type(frame))
        match frame:
            case States() | Entries():
                self._bytes_since += frame.batch.nbytes
            case Chunk():
                self._bytes_since += message.batch_bytes
                self._metrics.fold_seconds.observe(seconds, exemplar)
                self._metrics.chunk_bytes.observe(message.batch_bytes + len(message.metadata), exemplar)
                self._count_rows(frame.batch)
                if self._is_scalar:
                    self._count_isolated()
                    self._show_folds()
            case Barrier():
                self._metrics.barrier_seconds.observe(seconds, exemplar)
                state_bytes = self._exchange.stats.state_bytes
                self._metrics.state_bytes.inc(state_bytes - self._state_bytes)
                self._state_bytes = state_bytes
                if self._returns_states:
                    self._bytes_since = 0
                self._count_isolated()
                self._show_folds()
            case Checkpoint() | Forget() if self._exchange.stats.saves > self._saves:
                self._saves, self._bytes_since = self._exchange.stats.saves, self._exchange.stats.saved_bytes
        groups = self._exchange.groups
        if groups != self._groups:
            self._metrics.groups.inc(groups - self._groups)
            self._groups = groups

    def _count_isolated(self) -> None:
        for function, count in self._exchange.stats.isolated.items():
            self._metrics.isolated.labels(self._metrics.function_label(function)).inc(
                count - self._isolated_counts[function]
            )
            self._isolated_counts[function] = count

    def _show_folds(self) -> None:
        folds = self._exchange.folds
        if folds != self._folds:
            self._folds = folds
            for function, fold in zip(self._functions, folds, strict=True):
                if fold in (Mode.COMPILED, Mode.INTERPRETED):
                    self._metrics.compiled.labels(function).set(fold is Mode.COMPILED)

    def end(self, outcome: str, error: FoldflightError | None = None) -> None:
        """Count the end of the exchange, perhaps with an error, and subtract its contribution to gauges."""
        with self._lock:
            self._has_ended = True
            if self._spans is not None:
                self._spans.end(outcome, error, time.monotonic() - self.began_s)
        self._metrics.groups.dec(self._groups)
        self._metrics.state_bytes.dec(self._state_bytes)
        self._metrics.ended.labels(outcome).inc()
        self._metrics.open.dec()  # last: at 0 open exchanges, everything is counted

    def _count_rows(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._metrics.rows.inc(batch.num_rows)
        counts = [batch.num_rows]  # inserts, the first kind
        if self._has_kinds:
            counts = np.bincount(batch.column("kind").to_numpy(zero_copy_only=False)).tolist()
        for number, rows_folded in zip(counts, self._rows_folded, strict=False):
            if number:
                for counter in rows_folded:
                    counter.inc(number)


_MEMORY_LOOK_S = 0.1
# Pause after an exchange was ended for its memory, which is free only when its thread has released it.
_RELIEF_S = 2.0
# In a drain, time for a foreign engine to end its stream by itself after an answer.
_LEAVE_S = 1.0


class RunningExchange:
    """An open exchange.

    Args:
        open_request: The Open frame of the exchange.
        exchange: The exchange.
        watch: Limits the time of its steps.
        metrics: The metrics of the server.
        logger: The log, with the id of the exchange.
        hang_up: Sends an error to the engine and ends its stream.
        is_foreign: Whether the engine does not speak our protocol, so that it cannot be asked to reopen.
        spans: Its spans; None if it is not traced.

    Attributes:
        is_released: Whether the exchange has ended. Its functions may still be closing.
    """

    def __init__(
        self,
        open_request: Open,
        exchange: ServerExchange,
        *,
        watch: Watch,
        metrics: Metrics,
        logger: Logger,
        hang_up: Callable[[FoldflightError], None],
        is_foreign: bool,
        spans: FoldSpans | None = None,
    ) -> None:
        self.open_request = open_request
        self.exchange = exchange
        self.exchange_metrics = ExchangeMetrics(metrics, open_request, exchange, spans)
        self.logger = logger
        self.opened_at_s = time.monotonic()
        self._watch = watch
        self._hang_up = hang_up
        self._lock = threading.Lock()  # held while the exchange works, and to end it while it waits for its engine
        self._waiting_since_s = self.opened_at_s
        self._step: GuardedCall | None = None
        self._resident_before = 0
        self._has_ended: FoldflightError | None = None
        self._is_foreign = is_foreign
        self._has_answered = True
        self._leave_error: FoldflightError | None = None
        self.is_released = False

    def replies(self, frame: Frame) -> Iterator[Frame]:
        """Yield the replies to a frame. The lock is released while a reply is sent, because sending may block.

        Raises:
            FoldflightError: The error of the exchange, or the error with which it was ended.
        """
        replies = None
        while True:
            with self._lock:
                if self._has_ended is not None:
                    raise self._has_ended
                if replies is None:
                    if self._leave_error is not None and self._has_answered:
                        raise self._leave_error
                    self._has_answered = False
                    replies = iter(self.exchange.handle(frame))
                reply = self._watch.run(lambda: next(replies, None), self._start_step)  # noqa: B023  (called at once)
                self._waiting_since_s = time.monotonic()
            if reply is None:
                return
            yield reply

    @contextlib.contextmanager
    def wait_for_engine(self) -> Iterator[None]:
        """Wait for the engine in the middle of a step: for it to read a question, or to answer it.

        Meanwhile the exchange may be ended as between two frames, and the time of the step does not count.

        Raises:
            FoldflightError: The error with which the exchange was ended.
        """
        assert self._step is not None
        with self._step.wait_for_engine():
            self._waiting_since_s = time.monotonic()
            self._lock.release()
            try:
                yield
            finally:
                self._lock.acquire()
                self.exchange_metrics.waited_s += time.monotonic() - self._waiting_since_s
                if self._has_ended is not None:
                    raise self._has_ended

    def record_replies(self) -> None:
        """Note that all replies to a frame have been sent."""
        with self._lock:
            self._waiting_since_s = time.monotonic()
            self._has_answered = True

    def request_move(self, error: FoldflightError) -> None:
        """Ask the engine to continue elsewhere. A foreign engine gets the error instead of its next answer.

        It may be about to end its stream, so it is given time; see `close_drained_dialect_client`.
        """
        if self._is_foreign:
            self._leave_error = error
        else:
            self.exchange.request_reopen()

    def close_drained_dialect_client(self, *, longer_than_s: float) -> bool:
        """End the exchange of a foreign engine that has to move and has sent nothing for that long since its answer."""
        if self._leave_error is None or not self._has_answered:
            return False
        return self.end_waiting(self._leave_error, longer_than_s=longer_than_s)

    def end_waiting(self, error: FoldflightError, *, longer_than_s: float = 0.0) -> bool:
        """End the exchange with an error if it waits for its engine, to send or to read, and has for that long.

        The time of a step does not count. Return whether the exchange was ended.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._has_ended is not None or self.is_released:
                return False
            if time.monotonic() - self._waiting_since_s < longer_than_s:
                return False
            self._has_ended = error
        finally:
            self._lock.release()
        self._hang_up(error)
        return True

    def interrupt(self, error: FoldflightError) -> bool:
        """End the current step of the exchange, if there is one, with an error for its engine."""
        step = self._step
        return step is not None and step.interrupt(error)

    def begin_release(self) -> bool:
        """Claim the release of the exchange. Return whether this is the first call."""
        with self._lock:
            is_first, self.is_released = not self.is_released, True
        return is_first

    def close(self) -> None:
        """Close the functions of the exchange, so that they release their resources."""
        self._watch.run(self.exchange.close)

    @property
    def weight(self) -> tuple[int, int, int]:
        """An estimate of the size of the exchange, to find the largest one: bytes, then groups, then rows.

        An exchange of expressions keeps nothing between chunks. While it evaluates one, it may use what the process has
        grown by since then.
        """
        state_bytes, groups, rows = self.exchange_metrics.weight
        if self.open_request.maps and self._step is not None and not self._step.is_over:
            state_bytes += max(resident_bytes() - self._resident_before, 0)
        return state_bytes, groups, rows

    def _start_step(self, step: GuardedCall) -> None:
        if self.open_request.maps:
            self._resident_before = resident_bytes()
        self._step = step


class Exchanges:
    """The open exchanges of one server.

    Args:
        settings: The settings of the server.
        server_id: Name of the server.
        metrics: The metrics of the server.
        on_spent: Called when this process should end: a function cannot be interrupted, or memory was not released.
        logger: The log.

    Raises:
        RejectedError: SETTINGS if this process already exceeds its memory limit.
    """

    def __init__(
        self, settings: Settings, server_id: str, *, metrics: Metrics, on_spent: Callable[[], None], logger: Logger
    ) -> None:
        self._settings = settings
        self._server_id = server_id
        self._metrics = metrics
        self._on_spent = on_spent
        self._logger = logger
        self._open: set[RunningExchange] = set()
        self._condition = threading.Condition()
        self._is_draining = False
        self._memory = Memory(memory_limit_of(settings))
        self._relieved_until_s = 0.0
        self.watch = Watch(
            fold_s_max=settings.fold_s_max,
            look_s=_MEMORY_LOOK_S if self._memory.limit else settings.idle_s_max / 4,
            look=self._look,
            on_spent=on_spent,
            logger=logger,
        )

    @property
    def count(self) -> int:
        """Number of open exchanges."""
        with self._condition:
            return len(self._open)

    def admit(self, make: Callable[[], RunningExchange]) -> RunningExchange:
        """Admit the exchange that `make` opens.

        Raises:
            RetryableError: DRAINING or OVERLOADED.
            FoldflightError: The error of `make`.
        """
        with self._condition:
            self._check_admission()
        running = self.watch.run(make)
        try:
            with self._condition:
                self._check_admission()
                self._open.add(running)
                running.exchange_metrics.begin()
        except RetryableError as error:
            self._close(running, error.code)
            raise
        return running

    def release(self, running: RunningExchange, outcome: str, error: FoldflightError | None = None) -> None:
        """Release the resources of an exchange. Repeated calls have no effect.

        The exchange counts as open until its functions are closed: a drain waits for that.

        Args:
            running: The exchange.
            outcome: `done`, or the reason of its end. Then its engine gets that error, not one of `close`.
            error: The error that ended it, if it was one.

        Raises:
            FunctionError: USER_CODE if `close` of a function raises and the outcome is `done`.
        """
        if not running.begin_release():
            return
        try:
            self._close(running, outcome)
        finally:
            running.exchange_metrics.end(outcome, error)
            with self._condition:
                self._open.remove(running)
                self._condition.notify_all()
            if outcome == "LIMIT":
                release_memory()
        running.logger.info(
            "exchange ended",
            outcome=outcome,
            rows=running.exchange_metrics.rows,
            seconds=round(time.monotonic() - running.opened_at_s, 3),
        )

    def begin_drain(self) -> None:
        """Refuse new exchanges, and ask open ones to continue elsewhere."""
        error = RetryableError(
            "DRAINING", f"server {self._server_id} is shutting down; send these rows to another server"
        )
        with self._condition:
            self._is_draining = True
            self._metrics.draining.set(1)
            for running in self._open:
                running.request_move(error)

    def drain(self, timeout_s: float) -> bool:
        """Begin a drain, and wait for open exchanges. Return whether all have ended."""
        until_s = time.monotonic() + timeout_s
        self.begin_drain()
        while True:
            with self._condition:
                left_s = until_s - time.monotonic()
                if self._condition.wait_for(lambda: not self._open, min(left_s, _LEAVE_S / 4)):
                    return True
                still_open = list(self._open)
            if left_s <= 0:
                return False
            for running in still_open:
                if running.close_drained_dialect_client(longer_than_s=_LEAVE_S):
                    self._release_aside(running, "DRAINING")

    def close(self) -> None:
        """Refuse new exchanges, and stop monitoring open ones."""
        self.watch.close()
        with self._condition:
            self._is_draining = True

    @staticmethod
    def _close(running: RunningExchange, outcome: str) -> None:
        try:
            running.close()
        except FoldflightError as error:
            if outcome == "done":
                raise
            running.logger.warning(
                "exchange not closed", code=error.code, function=error.function, problem=error.message
            )

    def _check_admission(self) -> None:
        if self._is_draining:
            raise RetryableError("DRAINING", f"server {self._server_id} is shutting down and accepts no new exchange")
        if self._memory.is_tight:
            raise RetryableError(
                "OVERLOADED",
                f"server {self._server_id} uses {self._memory.text} and accepts no new exchange",
                limit="memory_limit",
            )
        if len(self._open) >= self._settings.exchanges_max:
            raise RetryableError(
                "OVERLOADED",
                f"server {self._server_id} has {len(self._open)} exchanges open and exchanges_max is "
                f"{self._settings.exchanges_max}",
                limit="exchanges_max",
            )

    def _look(self) -> None:
        with self._condition:
            running = list(self._open)
        for each in running:
            self._end_if_idle(each)
        if time.monotonic() > self._relieved_until_s:
            candidates = [each for each in running if not each.is_released]
            if candidates and self._memory.is_used_up:
                trim()  # the allocator may keep more than is missing
                if self._memory.is_used_up:
                    self._end_the_largest(candidates)
            elif not running and self._memory.is_tight:
                self._start_afresh()

    def _end_if_idle(self, running: RunningExchange) -> None:
        idle_s_max = self._settings.idle_s_max
        error = RetryableError(
            "DEADLINE",
            f"the exchange was idle for more than idle_s_max = {idle_s_max:g} s and was ended; open it again",
        )
        if running.end_waiting(error, longer_than_s=idle_s_max):
            running.logger.warning("exchange ended: idle", idle_s_max=idle_s_max)
            self._release_aside(running, "DEADLINE")

    def _end_the_largest(self, candidates: list[RunningExchange]) -> None:
        """End one exchange before the kernel kills the process, then give its memory time to be released."""
        weight, largest = max(((each.weight, each) for each in candidates), key=operator.itemgetter(0))
        view = largest.exchange.largest_view
        if largest.open_request.maps:
            remedy = "Send smaller chunks, return fewer or smaller values for one row"
        else:
            remedy = f"It has {largest.exchange.groups} groups"
            if view is not None:
                remedy += f", and the largest view, {view.view} of {view.function}, has {view.entries} entries in one"
            remedy += ": use fewer groups or smaller accumulators in one exchange"
        error = RejectedError(
            "LIMIT",
            f"the server uses {self._memory.text}, and of its {len(candidates)} exchanges this one is the largest: "
            f"about {weight[0]} bytes. {remedy}, or give the servers more memory",
            limit="memory_limit",
            function=None if view is None else view.function,
            slot=None if view is None else view.slot,
        )
        was_waiting = largest.end_waiting(error)
        if not was_waiting and not largest.interrupt(error):
            return  # it is between two steps: the next check ends it
        self._relieved_until_s = time.monotonic() + _RELIEF_S
        largest.logger.error("memory_limit exceeded: the largest exchange is ended", memory=self._memory.text)
        if was_waiting:
            self._release_aside(largest, "LIMIT")

    def _start_afresh(self) -> None:
        """Return freed memory to the system. If that is not enough, end the process, which would refuse all work."""
        self._relieved_until_s = time.monotonic() + _RELIEF_S
        release_memory()
        if self._memory.is_tight:
            self._logger.error("no exchange is open and memory was not released: this process ends")
            self._on_spent()
            self._relieved_until_s = float("inf")

    def _release_aside(self, running: RunningExchange, outcome: str) -> None:
        """Release an exchange in another thread, because `close` of a function may block the monitoring."""
        threading.Thread(target=self.release, args=(running, outcome), name="foldflight-release", daemon=True).start()
