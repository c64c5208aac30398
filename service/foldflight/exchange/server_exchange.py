"""The server's side of one exchange: it takes frames and returns frames, without I/O.

`bind` chooses what evaluates the rows: aggregates or expressions of scalar and table functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from foldflight.errors import CorruptError, FoldflightError, RejectedError
from foldflight.exchange.frames import (
    PROTOCOL_VERSION,
    SLOT_BYTES,
    Barrier,
    Checkpoint,
    Chunk,
    Entries,
    Folded,
    Forget,
    Frame,
    InitialOutputs,
    Limits,
    Log,
    Mapped,
    Open,
    Opened,
    OpenedCall,
    Results,
    RowOutputs,
    SavedStates,
    States,
    Wanted,
    check_chunk,
    check_slots,
    check_states,
    columns_text,
    sliced_to,
)
from foldflight.exchange.transitions import Exchange, Role
from foldflight.exchange.view_columns import split_entries
from foldflight.fold.accelerator import INTERPRETER, Accelerator
from foldflight.fold.aggregate.bound_calls import BoundCall
from foldflight.fold.aggregate.fold import BoundAggregates
from foldflight.fold.aggregate.groups_accumulator import CachedView
from foldflight.fold.coroutines import Calls, Coroutines, RecordedCoroutines
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.fold.resources import Resources, UnansweredQuestion
from foldflight.fold.scalar.expressions import BoundExpressions, BoundStep
from foldflight.functions import Call, LogRecord, MetricSink, Registry, Step
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.query.call import Request, text_of_literals
from foldflight.functions.types.sql import check_plain

BoundRequest: TypeAlias = BoundAggregates | BoundExpressions
_LOG_RECORDS_MAX: Final = 1000
_CALLS_MAX: Final = 1024
_BOUND_MAX: Final = 8  # bound requests that a registry keeps for equal requests
# Bytes of a States or Results message beside its batch.
_OVERHEAD_BYTES: Final = 16 * 1024
# Results, saved states and mapped rows are sent in messages of about this size: the engine reads one while the next is
# encoded, and the memory of a message is used again for the next.
_PART_BYTES: Final = 1 << 20


@dataclass
class ExchangeStats:
    """Counters of one exchange.

    Args:
        rows: Rows folded.
        chunks: Chunks folded.
        barriers: Barriers answered.
        state_bytes: Bytes of the states that the last barrier returned.
        saves: How often a checkpoint returned all changes since the last states, or Forget dropped them.
        saved_bytes: Bytes of the states that were returned at the last time; 0 for Forget.
        isolated: Number of slots that failed with isolated errors, by the function that raised.
    """

    rows: int = 0
    chunks: int = 0
    barriers: int = 0
    state_bytes: int = 0
    saves: int = 0
    saved_bytes: int = 0
    isolated: Counter[str] = field(default_factory=Counter)


class Recorder(Protocol):
    """Records the frames, answers and errors of an exchange.

    Attributes:
        group_of: Returns the keys of a slot; None where keys are unknown, as on servers.
    """

    group_of: Callable[[int], Mapping[str, Any]] | None

    def record_frame(self, frame: Frame) -> None:
        """Take a frame of the engine, before it is handled."""

    def record_answer(self, frame: Frame) -> None:
        """Take an answer."""

    def record_calls(self, calls: Calls) -> None:
        """Take the answers of calls of an async function; `answers` of it has them, as far as there are any."""

    def record_error(self, error: FoldflightError) -> None:
        """Take the error that ended the exchange; `recorded` of it may be set."""

    def close(self) -> None:
        """Take the end of the exchange."""


class ServerExchange:
    """The server's side of one exchange.

    After an error the exchange is over: close it.

    Args:
        open_request: The Open frame of the engine.
        registry: The functions.
        limits: The bounds that are enforced and announced.
        server_id: Identifier of this server.
        signer: Signs and checks pickled states.
        metrics: Receives the metrics of the functions.
        accelerator: Evaluates calls faster than the interpreter. Default: all calls are interpreted.
        ask: Sends `Wanted` to an engine that keeps views, and returns its answer, one or more `Entries`.
        part_bytes_max: Bytes of the parts in which results, saved states and mapped rows are returned.
        recorder: Records the frames and the answers.
        tells_code: Whether Opened has the digests of the functions' code: servers may have different ones.
        coroutines: Runs async functions, which are refused without it.
        check: Raises if the engine has left. It is called while async functions wait.

    Raises:
        RejectedError: As `describe`; SETTINGS if states would be pickled and there is no signer.
        FunctionError: USER_CODE if the constructor of a class or its `open` raises.
    """

    def __init__(
        self,
        open_request: Open,
        registry: Registry,
        *,
        limits: Limits,
        server_id: str,
        signer: StateSigner | None = None,
        metrics: MetricSink | None = None,
        accelerator: Accelerator = INTERPRETER,
        ask: Callable[[Wanted], Iterable[Frame]] | None = None,
        part_bytes_max: int = _PART_BYTES,
        recorder: Recorder | None = None,
        tells_code: bool = False,
        coroutines: Coroutines | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.stats = ExchangeStats()
        self._open_request = open_request
        self._recorder = recorder
        self._limits = limits
        self._part_bytes_max = min(limits.message_bytes_max - _OVERHEAD_BYTES, part_bytes_max)
        self._machine = Exchange(open_request)
        self._slot_index = -1 if open_request.maps else open_request.columns.get_field_index("slot")
        self._logs: list[LogRecord] = []
        self._logs_dropped = 0
        self._reopen = False
        bound = _bind(open_request, registry, server_id)
        self._send_wanted = ask
        self._asking_failed: BaseException | None = None
        self._entry_bytes = 0  # of the entries that were received since the last states were returned
        self._check_engine = check
        if coroutines is not None and recorder is not None:
            coroutines = RecordedCoroutines(coroutines, recorder.record_calls)
        resources = Resources(
            signer,
            metrics,
            self._take_log,
            accelerator,
            self._ask,
            coroutines,
            self._check_left if check is not None else Resources.check,
            open_request.call_scope,
        )
        try:
            self._evaluator = bound.open(resources)
        except UnansweredQuestion:
            self._check_asking()
            raise
        self.stats.isolated = self._evaluator.isolated
        self._last_sent_modes = self.folds  # the modes that the engine was told last: in Opened, later in results
        digests = _digests(bound, registry) if tells_code else ()
        self.open_reply = _open_reply_of(bound, open_request, limits, server_id, self._last_sent_modes, digests)
        self._machine.step(Role.SERVER, self.open_reply)

    @property
    def groups(self) -> int:
        """Number of slots in use."""
        return self._evaluator.slot_count

    @property
    def largest_view(self) -> CachedView | None:
        """The view with the most entries in memory; None if there are no views. Another thread may ask."""
        return self._evaluator.largest_view

    @property
    def folds(self) -> tuple[Mode, ...]:
        """How each call is folded now."""
        return self._evaluator.modes

    def handle(self, frame: Frame) -> Iterator[Frame]:
        """Process a frame of the engine and yield the replies.

        Raises:
            FoldflightError: The frame could not be processed. The exchange is over.
        """
        try:
            if self._recorder is not None:
                self._recorder.record_frame(frame)
            self._machine.step(Role.ENGINE, frame)
            for reply in self._replies(frame):
                self._check_asking()
                self._machine.step(Role.SERVER, reply)
                if self._recorder is not None:
                    self._recorder.record_answer(reply)
                yield reply
            self._check_asking()
        except UnansweredQuestion:
            self._machine.fail()
            self._check_asking()
            raise
        except FoldflightError as error:
            self._machine.fail()
            if not error.story:
                error.story = self._machine.story
            if self._recorder is not None:
                self._recorder.record_error(error)
            raise
        except Exception as error:
            self._machine.fail()
            if error is self._asking_failed:
                raise
            corrupt_error = CorruptError(
                "INVARIANT",
                f"internal error of foldflight at the frame {type(frame).__name__}: {type(error).__name__}: {error}",
                story=self._machine.story,
            )
            if self._recorder is not None:
                self._recorder.record_error(corrupt_error)
            raise corrupt_error from error

    def request_reopen(self) -> None:
        """Request, with the next results or saved states, that the engine reopen the exchange on another server."""
        self._reopen = True

    def close(self) -> None:
        """Close the functions, so that they release their resources."""
        if self._recorder is not None:
            self._recorder.close()
        self._evaluator.close()

    def _replies(self, frame: Frame) -> Iterator[Frame]:
        match frame:
            case States():
                yield from self._states(frame)
            case Entries():
                check_states(frame.batch, self.open_reply.limits.slots_max)
                self._count_entries(frame.batch)
                self._evaluator.take_entries(frame.batch)
            case Chunk():
                yield from self._chunk(frame.batch)
            case Barrier():
                yield from self._barrier(frame.epoch)
            case Forget():
                check_slots(frame.slots, self.open_reply.limits.slots_max)
                self._evaluator.forget(frame.slots)
                if self._evaluator.is_saved:
                    self.stats.saves += 1
                    self.stats.saved_bytes = 0
            case Checkpoint():
                yield from self._checkpoint(frame)
            case _:
                raise AssertionError(f"the state machine accepted {type(frame).__name__} from an engine")

    def _states(self, frame: States) -> Iterator[Frame]:
        batch = frame.batch
        check_states(batch, self.open_reply.limits.slots_max)
        self._check_state_bytes(batch)
        self._evaluator.merge_states(batch)
        if self._open_request.initial_outputs and not frame.unanswered:
            slots = batch.column("slot") if batch.num_rows else pa.array([0], pa.int32())
            outputs = self._evaluator.outputs(slots)
            yield from self._log_without_barrier()
            yield InitialOutputs(outputs)

    def _chunk(self, batch: pa.RecordBatch) -> Iterator[Frame]:
        check_chunk(batch, self._open_request)
        if self._slot_index >= 0:
            check_slots(batch.column(self._slot_index), self.open_reply.limits.slots_max)
        elif batch.num_rows * SLOT_BYTES > self._limits.message_bytes_max:
            # A row without columns has no bytes on the wire, but its slot needs memory here.
            raise RejectedError(
                "LIMIT",
                f"a chunk has {batch.num_rows} rows, which need {SLOT_BYTES} bytes each for their slots; together that "
                f"exceeds message_bytes_max, {self._limits.message_bytes_max}: send smaller chunks",
                limit="message_bytes_max",
            )
        outputs = self._evaluator.chunk(batch)
        if self._open_request.maps:
            yield from self._mapped_frames(outputs)
        else:
            yield from self._log_without_barrier()
            yield from map(RowOutputs, outputs)
            if self._open_request.keeps_views:
                yield Folded()
        self.stats.rows += batch.num_rows
        self.stats.chunks += 1

    def _ask(
        self, question: pa.RecordBatch, read: Callable[[Sequence[pa.RecordBatch]], Any], *, are_retained: bool
    ) -> Any:
        """Ask the engine for entries while a function is being called. See `fold.resources.AskEngine`."""
        try:
            if self._asking_failed is not None:
                raise UnansweredQuestion
            if self._send_wanted is None:
                raise AssertionError("an exchange with keeps_views was opened without a way to ask its engine")
            frame = Wanted(question)
            self._machine.step(Role.SERVER, frame)
            if self._recorder is not None:
                self._recorder.record_answer(frame)
            answers = []
            for answer in self._send_wanted(frame):
                self._machine.step(Role.ENGINE, answer)
                assert isinstance(answer, Entries)  # the machine accepts nothing else
                if self._recorder is not None:
                    self._recorder.record_frame(answer)
                self._count_entries(answer.batch, are_retained=are_retained)
                answers.append(answer.batch)
            return read(answers)
        except BaseException as error:
            # Functions may catch this error, so it is raised again when they have returned.
            self._asking_failed = self._asking_failed or error
            raise UnansweredQuestion from error

    def _check_left(self) -> None:
        """Stop waiting for calls of async functions if the engine has left."""
        assert self._check_engine is not None
        try:
            self._check_engine()
        except BaseException as error:
            self._asking_failed = self._asking_failed or error
            raise UnansweredQuestion from error

    def _check_asking(self) -> None:
        """Raise the error that left a question to the engine unanswered."""
        if self._asking_failed is not None:
            raise self._asking_failed

    def _count_entries(self, batch: pa.RecordBatch, *, are_retained: bool = True) -> None:
        """Count entries that were received. Pages that a function only iterates over are not held."""
        entry_bytes = self._entry_bytes + batch.nbytes
        if are_retained:
            self._entry_bytes = entry_bytes
        if entry_bytes > self._limits.exchange_state_bytes_max:
            raise RejectedError(
                "LIMIT",
                f"the entries of views that one epoch uses have {entry_bytes} bytes, and "
                f"exchange_state_bytes_max is {self._limits.exchange_state_bytes_max}; let an epoch have fewer rows, "
                "or take checkpoints in it",
                limit="exchange_state_bytes_max",
            )

    def _mapped_frames(self, outputs: Iterable[pa.RecordBatch]) -> Iterator[Frame]:
        pending_batch: pa.RecordBatch | None = None  # because only the last part of all is marked as such
        for batch in outputs:
            for part, _ in self._parts(batch):
                if pending_batch is not None:
                    yield Mapped(pending_batch, last=False)
                pending_batch = part
        assert pending_batch is not None
        yield from self._pending_log()
        # Nothing is kept after an answer, so the engine may leave after any.
        yield Mapped(pending_batch, last=True, reopen=self._reopen)

    def _barrier(self, epoch: int) -> Iterator[Frame]:
        returns = self._open_request.returns
        batch = self._evaluator.collect(states=returns.states, outputs=returns.outputs)
        if returns.states:
            self._check_state_bytes(batch)
        self.stats.barriers += 1
        self.stats.state_bytes = self._evaluator.state_bytes
        self._entry_bytes = 0
        yield from self._pending_log()
        reopen, self._reopen = self._reopen, False
        folds = self.folds
        modes = () if folds == self._last_sent_modes else folds
        self._last_sent_modes = folds
        for part, last in self._parts(batch):
            yield Results(epoch, part, last=last, reopen=reopen and last, modes=modes if last else ())

    def _checkpoint(self, frame: Checkpoint) -> Iterator[Frame]:
        # An engine may ignore the request to reopen that comes with saved states, so its next results repeat it.
        reopen = self._reopen
        if frame.if_reopen and not reopen:
            yield SavedStates(self._empty_batch())
            return
        try:
            batch = self._evaluator.changed_states()
            if not self._open_request.keeps_views:
                self._check_state_bytes(batch)
        except FoldflightError as error:
            # A checkpoint only limits the cost of failover. The query continues without it.
            yield SavedStates(self._empty_batch(), problem=f"{error.code}: {error.message}", reopen=reopen)
            return
        if self._open_request.keeps_views:
            self._check_state_bytes(batch)  # ends the exchange: no other place has the entries of this batch
        self.stats.saves += 1
        self.stats.saved_bytes = batch.nbytes
        self._entry_bytes = 0
        yield from self._pending_log()
        for part, last in self._parts(batch):
            yield SavedStates(part, last=last, reopen=reopen and last)

    def _empty_batch(self) -> pa.RecordBatch:
        schema = self.open_reply.schema
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    def _pending_log(self) -> Iterator[Frame]:
        if self._logs or self._logs_dropped:
            yield Log(self._take_records())

    def _log_without_barrier(self) -> Iterator[Frame]:
        # An engine that asks for outputs after some rows may never send a barrier. Others get their logs with it.
        if self._open_request.emits:
            yield from self._pending_log()

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the parts of a batch that fit into messages, each with whether it is the last."""
        parts = sliced_to(batch, self._part_bytes_max)
        if self._open_request.keeps_views:
            views = [call.views for call in self.open_reply.calls]
            parts = [each for part in parts for each in split_entries(part, views, self._part_bytes_max)]
        for number, part in enumerate(parts, 1):
            yield part, number == len(parts)

    def _check_state_bytes(self, batch: pa.RecordBatch) -> None:
        schema = batch.schema
        columns = [
            (call, batch.column(index))
            for call in range(len(self.open_reply.calls))
            if (index := schema.get_field_index(f"state_{call}")) >= 0
        ]
        sizes = [column.nbytes for _, column in columns]
        total = sum(sizes)
        if total > self._limits.exchange_state_bytes_max:
            raise RejectedError(
                "LIMIT",
                f"the states have {total} bytes in total, and exchange_state_bytes_max is "
                f"{self._limits.exchange_state_bytes_max}; use fewer groups in one exchange",
                limit="exchange_state_bytes_max",
            )
        for (call, column), size in zip(columns, sizes, strict=True):
            if size > self._limits.state_bytes_max:
                self._check_each_state(call, column, batch.column("slot"))

    def _check_each_state(self, call: int, column: pa.Array, slots: pa.Array) -> None:
        # If all states of a part together are within the limit, each is. Only otherwise are they measured one by one.
        states = pa.RecordBatch.from_arrays([slots, column], names=["slot", "state"])
        for part in sliced_to(states, self._limits.state_bytes_max):
            size = part["state"].nbytes
            if size > self._limits.state_bytes_max:
                name = self._open_request.calls[call].function
                raise RejectedError(
                    "LIMIT",
                    f"a state of {name} has {size} bytes, and state_bytes_max is {self._limits.state_bytes_max}; "
                    "keep less in the accumulator, or raise the setting",
                    function=name,
                    slot=part["slot"][0].as_py(),
                    limit="state_bytes_max",
                )

    def _take_log(self, record: LogRecord) -> None:
        if len(self._logs) < _LOG_RECORDS_MAX - 1:
            self._logs.append(record)
        else:
            self._logs_dropped += 1

    def _take_records(self) -> tuple[LogRecord, ...]:
        records, dropped_count = self._logs, self._logs_dropped
        self._logs, self._logs_dropped = [], 0
        if dropped_count:
            records.append(LogRecord("warning", "", "log records dropped", {"dropped": str(dropped_count)}))
        return tuple(records)


def describe(
    open_request: Open,
    registry: Registry,
    limits: Limits,
    server_id: str,
    accelerator: Accelerator = INTERPRETER,
    lift: Callable[[BoundFunction], str] | None = None,
    *,
    tells_code: bool = False,
) -> Opened:
    """Return the Opened of an exchange without opening it. The arguments are as for `ServerExchange`.

    `lift` returns how an engine may aggregate the rows of a call without its function (`OpenedCall.lift`).

    The modes of its calls are not known, because they are decided when it is opened.

    Raises:
        RejectedError: UNKNOWN_FUNCTION, SCHEMA_MISMATCH; SIGNATURE, also for direct arguments that the function does
            not have, and for functions with `compile=True` that cannot be compiled for these types.
        FunctionError: USER_CODE if `__init__` raises without a direct argument.
    """
    bound = _bind(open_request, registry, server_id)
    bound.check(accelerator)
    digests = _digests(bound, registry) if tells_code else ()
    open_reply = _open_reply_of(bound, open_request, limits, server_id, [None] * len(bound.calls), digests)
    if lift is None or open_request.maps:
        return open_reply
    descriptions: dict[tuple[object, ...], str] = {}
    lifts = []
    for call in bound.calls:
        if not isinstance(call, BoundCall):
            lifts.append("")
            continue
        one = call.bound
        use = (id(one.function), one.input_types, one.result_type, one.state_type, text_of_literals(one.literals))
        if use not in descriptions:
            descriptions[use] = lift(one)
        lifts.append(descriptions[use])
    return replace(
        open_reply, calls=tuple(replace(call, lift=text) for call, text in zip(open_reply.calls, lifts, strict=True))
    )


def _bind(open_request: Open, registry: Registry, server_id: str) -> BoundRequest:
    """Bind an Open to functions and columns. The tasks of a query send equal requests, so the last ones are cached.

    It raises the errors of `describe`.
    """
    recent = registry.recent_requests
    literals = _literals(open_request)
    for before, match in recent:
        # Equal texts come first: comparing direct arguments such as arrays by == may fail or return no bool.
        if _literals(before) == literals and before == open_request:
            bound: BoundRequest = match
            return bound
    bound = _bind_calls(open_request, registry, server_id)
    registry.recent_requests = ((open_request, bound), *recent[: _BOUND_MAX - 1])
    return bound


def _literals(open_request: Open) -> str:
    """Return the direct arguments as text, in which 1, 1.0 and True differ."""
    uses: tuple[Call | Step, ...] = (*open_request.calls, *open_request.steps)
    return "; ".join(text_of_literals(each.literals) for each in uses)


def _bind_calls(open_request: Open, registry: Registry, server_id: str) -> BoundRequest:
    if len(open_request.functions) > _CALLS_MAX or len(open_request.outputs) > _CALLS_MAX:
        raise RejectedError(
            "LIMIT",
            f"Open has {len(open_request.functions)} calls or steps and {len(open_request.outputs)} outputs of "
            f"steps, and one exchange takes at most {_CALLS_MAX} of each; use several exchanges",
            limit="calls",
        )
    if open_request.keeps_views and (open_request.maps or open_request.row_outputs or not open_request.returns.states):
        raise RejectedError(
            "SIGNATURE", "Open has keeps_views, so it needs return_states, and can have neither row_outputs nor steps"
        )
    columns = open_request.columns
    # In an exchange of steps all columns are arguments, whatever their names.
    for name, type_ in () if open_request.maps else (("slot", pa.int32()), ("kind", pa.int8())):
        if name in columns.names and (columns.names.count(name) > 1 or columns.field(name).type != type_):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"there must be at most one column `{name}`, of type {type_}; the columns are {columns_text(columns)}",
            )
    for column in columns:
        try:
            check_plain(column.type)
        except RejectedError as error:
            raise RejectedError(error.code, f"the column {column.name}: {error.message}") from None
    return bind(open_request, registry, where=f"on server {server_id}")


def _digests(bound: BoundRequest, registry: Registry) -> list[str]:
    """Return the digest of the code of each call or step."""
    calls: Sequence[BoundCall | BoundStep] = bound.calls
    return [registry[call.bound.function.name].code_digest for call in calls]


def _open_reply_of(
    bound: BoundRequest,
    open_request: Open,
    limits: Limits,
    server_id: str,
    modes: Sequence[Mode | None],
    digests: Sequence[str] = (),
) -> Opened:
    is_ordered = [bool(call.order) for call in open_request.calls] + [False] * len(open_request.steps)
    calls: Sequence[BoundCall | BoundStep] = bound.calls
    return Opened(
        server_id=server_id,
        protocol_version=PROTOCOL_VERSION,
        calls=tuple(
            OpenedCall(
                fingerprint=call.fingerprint,
                can_retract=call.can_retract,
                can_merge=call.can_merge,
                is_invertible=call.is_invertible,
                input_types=call.input_types,
                can_migrate=call.can_migrate,
                is_ordered=is_ordered,
                views=call.views,
                mode=mode,
                code_digest=digest,
                value_varies=call.value_varies,
                rows_at_once=call.rows_at_once,
            )
            for call, is_ordered, mode, digest in zip(
                calls, is_ordered, modes, digests or [""] * len(is_ordered), strict=True
            )
        ),
        # Each call has an accumulator for each slot. The bound applies to the accumulators of all calls together.
        limits=replace(limits, slots_max=max(limits.slots_max // max(len(bound.calls), 1), 1)),
        schema=bound.schema,
    )


def bind(request: Request, registry: Registry, *, where: str = "here") -> BoundRequest:
    """Bind a request to functions and columns.

    Args:
        request: The calls or steps, with their options.
        registry: The functions.
        where: The location of the functions, for messages, because the servers of a fleet may differ.

    Raises:
        RejectedError: SIGNATURE, if it has neither calls nor steps; and the errors of the binding.
    """
    if request.steps:
        return BoundExpressions(request, registry, where)
    if request.calls:
        return BoundAggregates(request, registry, where)
    raise RejectedError(
        "SIGNATURE", "the exchange has no calls and no steps, so there is nothing to evaluate; name a function"
    )
