"""A query as a value: its calls, checked against the functions, and the decisions of its plan with their reasons.

`Query.of` describes the calls through a transport: result types, capabilities and fingerprints. A query is frozen and
picklable. The plans of a host (batch and stream) execute it, and `explain` describes it.

The extension `lift` decides whether the rows of a batch can be lifted: aggregated by the engine's host, without Python.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from foldflight.client.exchange import Transport
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import ARROW, EMITTED, CallView, HostTypes, QueryLayout
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo, Open, Opened, OpenedCall, Returns
from foldflight.extensions import Extension
from foldflight.fold.aggregate.distinct import key_type
from foldflight.fold.mode import Mode
from foldflight.functions import Call, sql_name
from foldflight.functions.registry import can_be_changed
from foldflight.lift import MISSING
from foldflight.tracing import TraceSettings, planning

BatchPlan: TypeAlias = Literal["auto", "fold", "lifted"]
"""How a batch is computed: rows are folded in Python, or lifted; `auto` decides."""

GROUPS_MANY: Final = 500_000
"""From about this many groups on, the host's aggregation is slower than a fold."""


@dataclass(frozen=True)
class Groups:
    """An estimate of the number of groups.

    Args:
        count: The number.
        how: From where it is known, as text for users.
    """

    count: int
    how: str


class CallPlan(Protocol):
    """How a host aggregates the rows of one call. The rest of it is known to the extension only."""

    @property
    def raises(self) -> bool:
        """Whether a statement of the author raises for some rows."""

    @property
    def outcome_reason(self) -> str:
        """The reason why Python must compute results from the aggregates; empty if expressions of the host can."""


@dataclass(frozen=True)
class QueryLift:
    """How a query can be lifted.

    Args:
        plans: The plan of each call; none if the query cannot be lifted.
        no_lift_reason: Why it cannot; empty if it can.
    """

    plans: tuple[CallPlan, ...]
    no_lift_reason: str = ""

    @classmethod
    def of(cls, query: Query) -> QueryLift:
        """Return how a query can be lifted. Raises RejectedError BAD_FRAME, if a description is damaged."""
        if query.stream is not None:
            return cls((), "a stream keeps states, and the host has none of its own for them")
        if query.layout.isolates:
            return cls((), "errors are isolated, and the host does not know which rows a failed group has")
        if query.no_host_reason:
            return cls((), query.no_host_reason)
        planner = _LIFT.find()
        return cls((), MISSING) if planner is None else planner.plan_lift(query)


class Planner(Protocol):
    """What the extension `lift` provides for queries."""

    def plan_lift(self, query: Query) -> QueryLift:
        """Return how a batch can be lifted whose host aggregates rows.

        Raises:
            RejectedError: BAD_FRAME, if a description is damaged.
        """


_LIFT: Final = Extension[Planner]("lift")


Emit = Literal["update", "changelog", "append"]


class Choice(NamedTuple):
    """A decision of the plan: yes or no.

    Args:
        holds: Whether it is yes.
        why: The reason, as text for users.
    """

    holds: bool
    why: str


@dataclass(frozen=True)
class StreamOptions:
    """The options of streams.

    Args:
        emit: The emit mode.
        buckets: The number of buckets of the groups.
        strict: Whether a retraction without a row is an error.
        closing_lateness_ms: Time from a window's end until it closes, in milliseconds of the watermark; None: never.
        has_sessions: Whether windows are sessions, which merge.
        window: The kind and lengths of the windows. They are stored with the state; a query with others is refused.
    """

    emit: Emit = "update"
    buckets: int = 1
    strict: bool = False
    closing_lateness_ms: int | None = None
    has_sessions: bool = False
    window: str = ""

    def shows_kind(self, *, has_kinds: bool) -> bool:
        """Return whether the result of a stream has the column `row_kind`, given whether its input has row kinds."""
        return self.emit == "changelog" or (self.emit == "update" and (has_kinds or self.has_sessions))


@dataclass(frozen=True)
class Query:
    """A query, resolved and checked.

    Args:
        transport: The connection to the functions.
        open_request: The Open command of its exchanges. Each call has the fingerprint of its function, so that
            every server must have the same functions.
        opened_calls: The description of each call.
        layout: The columns.
        bounds: The limits of the data that a task holds at once.
        stream: The options of a stream; None for a batch.
        row_lists: For each call whose rows a stream keeps in a view, the fingerprint of states that are the list of all
            rows, as batches, sessions and earlier versions of foldflight have them; otherwise empty.
        plan: How a batch is computed.
        groups: What Spark estimates of the number of groups; None: nothing.
        no_host_reason: Why the host cannot aggregate the rows itself; empty if it can.
        lifts_integers_only: Whether the host computes only with integers as the plans say.
    """

    transport: Transport
    open_request: Open
    opened_calls: tuple[OpenedCall, ...]
    layout: QueryLayout
    bounds: BlockBounds
    stream: StreamOptions | None
    row_lists: tuple[str, ...] = ()
    plan: BatchPlan = "auto"
    groups: Groups | None = None
    no_host_reason: str = "the host has no aggregations of its own"
    lifts_integers_only: bool = False

    @classmethod
    def of(
        cls,
        transport: Transport,
        calls: Mapping[str, Call],
        layout: QueryLayout,
        *,
        stream: StreamOptions | None = None,
        materialize: bool = False,
        types: HostTypes = ARROW,
        plan: BatchPlan = "auto",
        groups: Groups | None = None,
        no_host_reason: str = "the host has no aggregations of its own",
        lifts_integers_only: bool = False,
    ) -> Query:
        """Describe the calls through the transport, and check them.

        Args:
            transport: The connection to the functions.
            calls: The calls by output name; their arguments and filters are columns of `layout.display_names`.
            layout: Keys, columns and flags. States and outputs are added here.
            stream: The options of a stream. Default: a batch.
            materialize: Whether groups keep their rows for calls without a capability that the query needs.
            types: The storage types of the host.
            plan: How a batch is computed.
            groups: What Spark estimates of the number of groups.
            no_host_reason: Why the host cannot aggregate these rows itself; empty if it can.
            lifts_integers_only: Whether the host computes only with integers as the plans say.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, SIGNATURE, SCHEMA_MISMATCH, CANNOT_RETRACT, CANNOT_MERGE.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        functions = [call.function for call in calls.values()]
        with planning(transport.otlp_endpoint, "batch" if stream is None else "stream", functions) as context:
            open_request = Open(
                calls=tuple(calls.values()), columns=layout.chunk, isolate_errors=layout.isolates, trace_context=context
            )
            open_reply = transport.describe(open_request)
        needs = _Needs(retract=layout.has_kinds, merge=stream is not None and stream.has_sessions)
        if materialize and not all(map(needs.are_met, open_reply.calls)):
            open_request = replace(open_request, calls=tuple(_materialize(open_request.calls, open_reply, needs)))
            open_reply = transport.describe(open_request)
        needs.check(open_request.calls, open_reply.calls)
        if stream is not None and stream.has_sessions:
            _refuse_views_in_sessions(open_request.calls, open_reply.calls)
            _refuse_calls_out_in_sessions(open_request.calls, open_reply.calls)
        first_reply = open_reply
        if stream is not None and not stream.has_sessions:
            open_reply = _with_views_of_rows(transport, open_request, first_reply)
        limits = open_reply.limits
        query = cls(
            transport=transport,
            open_request=replace(open_request, calls=tuple(_pin(open_request.calls, open_reply))),
            opened_calls=open_reply.calls,
            layout=replace(
                _with_outputs(layout, list(calls), open_reply.schema, types), emitted=_last_outputs(open_reply, stream)
            ),
            bounds=BlockBounds().within(limits.slots_max, limits.exchange_state_bytes_max),
            stream=stream,
            row_lists=tuple(
                "" if before.fingerprint == now.fingerprint else before.fingerprint
                for before, now in zip(first_reply.calls, open_reply.calls, strict=True)
            ),
            plan=plan,
            groups=groups,
            no_host_reason=no_host_reason,
            lifts_integers_only=lifts_integers_only,
        )
        if plan == "lifted" and not query.lift_choice.holds:
            raise RejectedError("SIGNATURE", f"plan='lifted' is not possible: {query.lift_choice.why}; leave plan out")
        return query

    def part(self, outputs: Collection[str], layout: QueryLayout) -> Query:
        """Return the query of some calls of a batch, as they were described.

        Args:
            outputs: The outputs of the calls.
            layout: Keys, columns and flags, as for `of`.
        """
        indexes = [self.layout.outputs.names.index(name) for name in outputs]
        states = [self.layout.states.field(index).with_name(f"state_{at}") for at, index in enumerate(indexes)]
        state_fields = [self.layout.carried.field(index).with_name(f"state_{at}") for at, index in enumerate(indexes)]
        return replace(
            self,
            open_request=replace(
                self.open_request,
                calls=tuple(self.open_request.calls[index] for index in indexes),
                columns=layout.chunk,
            ),
            opened_calls=tuple(self.opened_calls[index] for index in indexes),
            layout=replace(
                layout,
                states=pa.schema(states),
                carried=pa.schema(state_fields),
                outputs=pa.schema([self.layout.outputs.field(index) for index in indexes]),
            ),
            row_lists=tuple(self.row_lists[index] for index in indexes),
        )

    @property
    def trace(self) -> TraceSettings | None:
        """The trace settings of its tasks; None without a collector."""
        endpoint = self.transport.otlp_endpoint
        return None if endpoint is None else TraceSettings(endpoint, self.open_request.trace_context)

    @property
    def can_migrate(self) -> tuple[bool, ...]:
        """For each call, whether it converts states of other versions. Views do not migrate, except views of rows."""
        return tuple(
            call.can_migrate and (not call.views or bool(row_list))
            for call, row_list in zip(self.opened_calls, self.row_lists, strict=True)
        )

    @cached_property
    def query_lift(self) -> QueryLift:
        """How the query can be lifted."""
        return QueryLift.of(self)

    @property
    def lift_choice(self) -> Choice:
        """Whether rows are aggregated by the host, so that only finished states come to Python."""
        if self.plan == "fold":
            return Choice(holds=False, why="plan='fold'")
        if not self.query_lift.plans:
            return Choice(holds=False, why=self.query_lift.no_lift_reason)
        if self.plan == "lifted":
            return Choice(holds=True, why="plan='lifted'")
        if self.lifts_integers_only:
            return Choice(holds=False, why="this host folds faster; plan='lifted' lifts it nevertheless")
        for call, opened_call in zip(self.open_request.calls, self.opened_calls, strict=True):
            if not opened_call.can_merge:
                why = f"{call.function} has no merge, so its accumulators may hold more than their states"
                return Choice(holds=False, why=f"{why}; plan='lifted' lifts it nevertheless")
        for call, plan in zip(self.open_request.calls, self.query_lift.plans, strict=True):
            if plan.raises:
                why = f"{call.function} raises for some rows, and a fold tells more of them"
                return Choice(holds=False, why=f"{why}; plan='lifted' lifts it nevertheless")
        if self.groups is not None and self.groups.count >= GROUPS_MANY:
            why = f"there are about {self.groups.count:,} groups ({self.groups.how})"
            return Choice(holds=False, why=f"{why}, for which a fold is faster")
        groups_text = (
            "nothing tells that there are" if self.groups is None else f"{self.groups.how} tells that there are not"
        )
        return Choice(holds=True, why=f"every call lifts, and {groups_text} {GROUPS_MANY:,} groups or more")

    @property
    def finished_by_host(self) -> Choice:
        """Whether the host also makes the results of a lifted batch, so that no Python runs."""
        if self.lifts_integers_only:
            return Choice(holds=False, why="divisions and decimals of this host may differ from Spark's")
        for call, plan in zip(self.open_request.calls, self.query_lift.plans, strict=True):
            if plan.outcome_reason:
                return Choice(holds=False, why=f"{call.function}: {plan.outcome_reason}")
        return Choice(holds=True, why="get_value of every call is lifted")

    @property
    def folds_before_shuffle(self) -> Choice:
        """Whether rows are folded before they are shuffled by key, so that states are shuffled instead of rows."""
        layout, functions = self.layout, [call.function for call in self.open_request.calls]
        if layout.isolates:
            return Choice(
                holds=False, why="errors are isolated, and a partial state has no rows to become dead letters"
            )
        if self.stream is not None and self.views:
            return Choice(holds=False, why="the entries of views are kept in the state table, where rows must go")
        for function, call in zip(functions, self.opened_calls, strict=True):
            if not call.can_merge:
                return Choice(holds=False, why=f"{function} has no merge")
        for call_request in self.open_request.calls:
            if (call_request.order or call_request.materialize) and not call_request.distinct:
                return Choice(
                    holds=False, why=f"{call_request.function} keeps all rows of a group, so states save nothing"
                )
        if self.stream is not None and self.stream.has_sessions:
            return Choice(holds=False, why="each row of a stream is a session of its own until it meets others")
        if layout.has_kinds and self.stream is not None:
            return Choice(
                holds=False,
                why="rows have kinds, and which retraction is to be ignored shows only where all rows of a group are",
            )
        if layout.has_kinds:
            for function, call in zip(functions, self.opened_calls, strict=True):
                if not call.is_invertible:
                    return Choice(holds=False, why=f"rows have kinds, and {function} is not invertible")
        return Choice(holds=True, why="every call merges")

    @property
    def views(self) -> tuple[CallView, ...]:
        """The views of the calls, whose entries a stream keeps in its state table."""
        columns = dict(zip(self.layout.display_names, self.layout.columns.names, strict=True))
        return tuple(
            CallView(
                index,
                spec,
                prefetch=tuple(columns[call.arguments[each]] for each in spec.prefetch),
                filter=None if call.filter is None else columns[call.filter],
            )
            for index, (call, opened_call) in enumerate(zip(self.open_request.calls, self.opened_calls, strict=True))
            for spec in opened_call.views
        )

    @property
    def calls_out(self) -> bool:
        """Whether a function waits for something outside, so that outputs are not asked for twice."""
        return any(call.rows_at_once for call in self.opened_calls)

    def opening_for(
        self, *, states: bool, outputs: bool, initial_outputs: bool = False, keeps_views: bool = False
    ) -> Open:
        """Return the Open command of an exchange of the query.

        Args:
            states: Whether results contain states.
            outputs: Whether results contain outputs.
            initial_outputs: Whether the server answers loaded states with their outputs.
            keeps_views: Whether the engine keeps the entries of views, if there are views.
        """
        return replace(
            self.open_request,
            returns=Returns(states=states, outputs=outputs),
            initial_outputs=initial_outputs,
            keeps_views=keeps_views and bool(self.views),
        )

    def explain(self) -> str:
        """Return a description of the query: its calls and how each is folded, the plan with its reasons, its bounds.

        Raises:
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        infos = {info.name: info for info in self.transport.infos(look=True)}
        modes = {name: info.folded for name, info in infos.items()}
        layout, bounds, folds = self.layout, self.bounds, self.folds_before_shuffle
        kind = "batch" if self.stream is None else "stream"
        lines = [f"{kind}: group by {', '.join(layout.names) or 'nothing (one group)'}"]
        rows = list(zip(layout.outputs, self.open_request.calls, self.opened_calls, strict=True))
        for index, (output, call, opened_call) in enumerate(rows):
            lines.append(f"  {output.name}: {sql_name(output.type)} = {describe_call(call)}")
            mode = mode_of(call, modes)
            lines.append(f"      folded: {f'by the host (in Python: {mode})' if self.lift_choice.holds else mode}")
            lines.append(f"      state: {layout.states.field(index).type}; {_capabilities(opened_call)}")
            if index in layout.varying:
                lines.append("      its last output is stored with the state: the function is not deterministic")
            if self.stream is not None and _is_counted(call):
                lines.append(f"      rows: {self._rows_of(index, infos.get(call.function))}")
        lines.append(f"plan: {self._steps()}")
        if self.stream is None:
            lines.append(f"  rows are {'' if self.lift_choice.holds else 'not '}lifted: {self.lift_choice.why}")
        if self.lift_choice.holds:
            by_host = self.finished_by_host
            lines.append(f"  {'no Python runs' if by_host.holds else 'Python makes the results'}: {by_host.why}")
        if self.stream is not None or not self.lift_choice.holds:
            lines.append(f"  rows are {'' if folds.holds else 'not '}folded before the shuffle: {folds.why}")
        lines.append(
            f"  blocks of at most {bounds.rows_max:,} rows and {bounds.bytes_max >> 20:,} MiB; a partial fold holds at "
            f"most {bounds.groups_max:,} groups and {bounds.group_bytes_max >> 20:,} MiB of keys and states"
        )
        if self.stream is not None:
            lines.append(f"  {self._describe_stream(self.stream)}")
        return "\n".join(lines)

    def _rows_of(self, index: int, info: FunctionInfo | None) -> str:
        """Return how a stream keeps the rows of a counted call, and why."""
        call, opened_call = self.open_request.calls[index], self.opened_calls[index]
        if opened_call.views:
            return "kept in a view, of which an epoch reads and writes the rows that it has"
        unfit = [sql_name(type_) for type_ in opened_call.input_types if key_type(type_) is None]
        if not call.distinct or call.order or call.materialize:
            why = "they are folded again for each value"
        elif self.stream is not None and self.stream.has_sessions:
            why = "sessions merge"
        elif unfit:
            why = f"values of type {unfit[0]} cannot be keys of a view"
        elif self.layout.has_kinds and info is not None and not info.retract:
            why = f"{call.function} does not retract, so they are folded again for each value"
        else:
            why = f"{call.function} has views itself"
        return f"an epoch reads and writes all rows of the groups that it touches: {why}"

    def _steps(self) -> str:
        keys = ", ".join(self.layout.names)
        shuffle = f"shuffle by {keys}" if keys else "one partition"
        if self.stream is None:
            rows = "rows > drop retractions without a row" if self.layout.has_kinds else "rows"
            if self.lift_choice.holds:
                last = "outputs by the host" if self.finished_by_host.holds else "outputs by Python"
                return f"{rows} > expressions > aggregation by the host > states > {last}"
            folds = f"fold partial > {shuffle} > merge" if self.folds_before_shuffle.holds else f"{shuffle} > fold"
            return f"{rows} > {folds} > outputs"
        first = "fold partial > " if self.folds_before_shuffle.holds else ""
        return f"rows > {first}pack by bucket > shuffle by bucket > one exchange for each task > changelog"

    @staticmethod
    def _describe_stream(stream: StreamOptions) -> str:
        parts = [f"{stream.buckets} buckets", f"emits {stream.emit}"]
        if stream.window:
            closes = "never closes" if stream.closing_lateness_ms is None else "closes by the watermark"
            parts.append(f"window {stream.window} {closes}")
        if stream.strict:
            parts.append("a retraction of a row that is not there is an error")
        return "; ".join(parts)


def _with_views_of_rows(transport: Transport, open_request: Open, open_reply: Opened) -> Opened:
    """Return the description for an engine that keeps views: the rows of DISTINCT are a view if they can be."""
    if not any(call.distinct for call in open_request.calls):
        return open_reply
    return transport.describe(replace(open_request, keeps_views=True))


def refuse_views(calls: Sequence[Call], opened_calls: Sequence[OpenedCall]) -> None:
    """Refuse calls of OVER whose accumulators have views. Raises RejectedError SIGNATURE."""
    _refuse_views(
        "SIGNATURE",
        calls,
        opened_calls,
        "which OVER over a stream does not keep; use group_by, or declare dict and list instead",
    )


def _refuse_views_in_sessions(calls: Sequence[Call], opened_calls: Sequence[OpenedCall]) -> None:
    _refuse_views(
        "CANNOT_MERGE",
        calls,
        opened_calls,
        "and the entries of sessions that merge would have to move; use tumble, hop or cumulate, or declare dict and "
        "list instead",
    )


def _refuse_views(code: str, calls: Sequence[Call], opened_calls: Sequence[OpenedCall], why: str) -> None:
    for call, opened_call in zip(calls, opened_calls, strict=True):
        if opened_call.views:
            names = ", ".join(view.name for view in opened_call.views)
            raise RejectedError(
                code, f"{call.function} has views in its accumulator ({names}), {why}", function=call.function
            )


def _refuse_calls_out_in_sessions(calls: Sequence[Call], opened_calls: Sequence[OpenedCall]) -> None:
    """Raise RejectedError SIGNATURE for an async `get_value`: it would be asked for sessions that then merge."""
    for call, opened_call in zip(calls, opened_calls, strict=True):
        if opened_call.rows_at_once:
            raise RejectedError(
                "SIGNATURE",
                f"{call.function} has an async get_value or get_values, and sessions of a stream merge, so that it "
                "would be asked for values that nobody sees; use tumble, hop or cumulate, or a batch",
                function=call.function,
            )


def _with_outputs(layout: QueryLayout, outputs: list[str], schema: pa.Schema, types: HostTypes) -> QueryLayout:
    """Return a layout with the states and outputs of an exchange."""
    indexes = range(len(outputs))
    states = pa.schema([schema.field(f"state_{index}") for index in indexes])
    results = types.results(outputs, [schema.field(f"output_{index}").type for index in indexes])
    return replace(
        layout,
        states=states,
        carried=pa.schema([(field.name, types.storage(field.type)) for field in states]),
        outputs=pa.schema(list(zip(outputs, results, strict=True))),
    )


def _last_outputs(open_reply: Opened, stream: StreamOptions | None) -> pa.Schema:
    """Return the columns of last outputs that a stream stores, because they cannot be computed again from states.

    Each is a struct of one member: the output may be NULL, and a NULL struct is an output that is not known.
    """
    if stream is None or stream.emit == "append":  # nothing is taken back
        return pa.schema([])
    types = {index: open_reply.schema.field(f"output_{index}").type for index in range(len(open_reply.calls))}
    # What was computed outside is not asked for again, so all outputs before an epoch must be stored.
    calls_out = any(call.rows_at_once for call in open_reply.calls)
    varying_calls = [index for index, call in enumerate(open_reply.calls) if calls_out or call.value_varies]
    return pa.schema([(f"{EMITTED}{index}", pa.struct([("value", types[index])])) for index in varying_calls])


def _pin(calls: Sequence[Call], open_reply: Opened) -> Iterator[Call]:
    for call, opened_call in zip(calls, open_reply.calls, strict=True):
        yield replace(call, fingerprint=opened_call.fingerprint)


@dataclass(frozen=True)
class _Needs:
    """The capabilities that each function of a query needs."""

    retract: bool
    merge: bool

    def are_met(self, call: OpenedCall) -> bool:
        """Return whether a call has the needed capabilities."""
        return (call.can_retract or not self.retract) and (call.can_merge or not self.merge)

    def check(self, calls: Sequence[Call], opened_calls: Sequence[OpenedCall]) -> None:
        """Refuse a call without the needed capabilities. Raises RejectedError CANNOT_RETRACT, CANNOT_MERGE."""
        for call, opened_call in zip(calls, opened_calls, strict=True):
            if self.retract and not opened_call.can_retract:
                raise RejectedError(
                    "CANNOT_RETRACT",
                    f"{call.function} is append-only (it has no retract), and rows with kinds may retract rows; "
                    f"{'define retract, or ' if can_be_changed(call.function) else ''}let groups keep their rows "
                    "(materialize=True)",
                    function=call.function,
                )
            if self.merge and not opened_call.can_merge:
                raise RejectedError(
                    "CANNOT_MERGE",
                    f"{call.function} has no merge, and sessions of a stream merge when a row falls between them; "
                    "define merge, let sessions keep their rows (materialize=True), or use tumble, hop or cumulate",
                    function=call.function,
                )


def _materialize(calls: Sequence[Call], open_reply: Opened, needs: _Needs) -> Iterator[Call]:
    for call, opened_call in zip(calls, open_reply.calls, strict=True):
        yield call if needs.are_met(opened_call) else replace(call, materialize=True)


def mode_of(call: Call, mode_by_function: Mapping[str, str]) -> str:
    """Return how a call is evaluated, as text for users.

    Args:
        call: The call.
        mode_by_function: `FunctionInfo.folded` of each function.
    """
    return Mode.COUNTED if _is_counted(call) else mode_by_function.get(call.function) or "not told"


def _is_counted(call: Call) -> bool:
    return call.distinct or call.materialize or bool(call.order)


def describe_call(call: Call) -> str:
    """Return a call as text for users: arguments, DISTINCT, ORDER BY and FILTER."""
    literals: Mapping[str, Any] = dict(call.literals)
    arguments = [*call.arguments, *(f"{name} => {value!r}" for name, value in literals.items())]
    keys = [
        f"{each.column} {'DESC' if each.descending else 'ASC'} NULLS {'FIRST' if each.nulls_first else 'LAST'}"
        for each in call.order
    ]
    order = f" ORDER BY {', '.join(keys)}" if keys else ""
    text = f"{call.function}({'DISTINCT ' if call.distinct else ''}{', '.join(arguments)}{order})"
    return text if call.filter is None else f"{text} FILTER ({call.filter.removeprefix('where ')})"


def _capabilities(call: OpenedCall) -> str:
    retracts = "retracts in any order" if call.is_invertible else "retracts" if call.can_retract else "append-only"
    return f"{retracts}, {'merges' if call.can_merge else 'no merge'}"
