"""An OVER query as a value: its calls by window frame, and the strategy by which each is folded, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

import pyarrow as pa

from foldflight.client.exchange import Transport
from foldflight.engine.over.partitions import Ordering
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import ARROW, EMIT, HostTypes, QueryLayout
from foldflight.engine.query.query import Query, describe_call, mode_of
from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open, OpenedCall, Returns
from foldflight.fold.coroutines import no_running_values
from foldflight.functions import Call
from foldflight.functions.query.frame import WindowFrame
from foldflight.functions.registry import can_be_changed
from foldflight.functions.types.sql import has_floats
from foldflight.tracing import TraceSettings

RECOMPUTED_ROWS_MAX: Final = 1000
"""The largest window frame that is folded anew for each row, unless the user insists."""


class Strategy(Enum):
    """How the window frames of a call are folded."""

    ACCUMULATE = "accumulate"
    RETRACT = "retract"
    MERGE = "merge"
    RECOMPUTE = "recompute"


class FramedCall(NamedTuple):
    """A call with its window frame.

    Args:
        call: The call.
        window_frame: The window frame.
        low: The column of the order values at which the window frames begin; None unless the lower end is a distance.
        high: The column of the order values at which the window frames end; None unless the upper end is a distance.
    """

    call: Call
    window_frame: WindowFrame
    low: str | None = None
    high: str | None = None


@dataclass(frozen=True)
class OverLayout:
    """The columns of an OVER query between Spark and its exchanges. One column may have several uses.

    Args:
        payload: The columns of the input under internal names.
        names: The user's names of these columns.
        keys: The columns of the partition under internal names; none for one partition of all rows.
        key_names: The user's names of the keys.
        order: The columns of the order under internal names.
        order_names: The user's texts of the order.
        columns: The argument and filter columns under internal names.
        display_names: Their names in chunks.
        bounds: The columns of the ends of window frames.
        descending: Whether larger values come first in the first column of the order.
        nulls_first: Whether NULL comes first in it.
    """

    payload: pa.Schema
    names: tuple[str, ...]
    keys: pa.Schema
    key_names: tuple[str, ...]
    order: pa.Schema
    order_names: tuple[str, ...]
    columns: pa.Schema
    display_names: tuple[str, ...]
    bounds: pa.Schema
    descending: bool = False
    nulls_first: bool = True

    @property
    def rows(self) -> pa.Schema:
        """The schema of rows from Spark: each column once."""
        used_fields = (*self.payload, *self.keys, *self.order, *self.columns, *self.bounds)
        return pa.schema(list({field.name: field for field in used_fields}.values()))

    def of(self, calls: Sequence[Call], *, retracts: bool) -> QueryLayout:
        """Return the columns of the exchanges of some calls."""
        used_names = {name for call in calls for name in (*call.columns, *([call.filter] if call.filter else []))}
        fields = [
            (field, name) for field, name in zip(self.columns, self.display_names, strict=True) if name in used_names
        ]
        return QueryLayout(
            keys=self.keys,
            names=self.key_names,
            columns=pa.schema([field for field, _ in fields]),
            display_names=tuple(name for _, name in fields),
            has_kinds=retracts,
        )


@dataclass(frozen=True)
class Part:
    """The calls of an OVER query that share a window frame and a strategy, and so their exchanges.

    Args:
        query: The calls.
        window_frame: The window frame.
        strategy: How it is folded.
        why: The reason for each call, as text for users.
        low: As in `FramedCall`.
        high: As in `FramedCall`.
    """

    query: Query
    window_frame: WindowFrame
    strategy: Strategy
    why: tuple[str, ...]
    low: str | None
    high: str | None

    @property
    def running_request(self) -> Open:
        """The Open command of an exchange that gives outputs after some rows."""
        return replace(
            self.query.opening_for(states=False, outputs=False, initial_outputs=True),
            columns=self.query.layout.chunk.append(pa.field(EMIT, pa.bool_())),
            row_outputs=True,
            emits=True,
        )

    @property
    def running_request_with_states(self) -> Open:
        """The Open command of such an exchange that also gives states at barriers, so that they can be stored."""
        return replace(self.running_request, returns=Returns(states=True, outputs=False), initial_outputs=False)

    def separate(self, *, states: bool) -> Open:
        """Return the Open command of an exchange that gives the states, or else the outputs, of rows folded anew."""
        return replace(self.query.open_request, returns=Returns(states=states, outputs=not states))


@dataclass(frozen=True)
class OverQuery:
    """An OVER query, resolved and checked.

    Args:
        layout: The columns.
        parts: The calls.
        outputs: The output columns, in the user's order.
        bounds: The limits of the data that a task holds at once.
    """

    layout: OverLayout
    parts: tuple[Part, ...]
    outputs: pa.Schema
    bounds: BlockBounds

    @classmethod
    def of(
        cls,
        transport: Transport,
        calls: Mapping[str, FramedCall],
        layout: OverLayout,
        *,
        types: HostTypes = ARROW,
        is_stream: bool = False,
    ) -> OverQuery:
        """Describe the calls through the transport, check them, and choose how each is folded.

        Args:
            transport: The connection to the functions.
            calls: The calls by output name.
            layout: The columns.
            types: The storage types of the host.
            is_stream: Whether rows that leave a window frame with a distance can only be retracted.

        Raises:
            RejectedError: UNKNOWN_FUNCTION, SIGNATURE, SCHEMA_MISMATCH; CANNOT_RETRACT or CANNOT_MERGE, if a window
                frame cannot be folded at a bounded cost.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        plain = [each.call for each in calls.values()]
        every = Query.of(
            transport, {name: each.call for name, each in calls.items()}, layout.of(plain, retracts=False), types=types
        )
        groups: dict[tuple[WindowFrame, str | None, str | None, Strategy], list[str]] = {}
        reasons: dict[str, str] = {}
        for index, (name, each) in enumerate(calls.items()):
            opened_call = every.opened_calls[index]
            if opened_call.rows_at_once:
                raise no_running_values(each.call.function)
            if is_stream and each.window_frame.has_offset and not opened_call.can_retract:
                raise RejectedError(
                    "CANNOT_RETRACT",
                    f"{each.call.function} over {each.window_frame}: a stream folds RANGE by retracting the rows that "
                    "leave, because it cannot find the rows of a group, and this function has no retract; "
                    f"{'define retract, or ' if can_be_changed(each.call.function) else ''}use ROWS",
                    function=each.call.function,
                )
            strategy, reasons[name] = _choose(each, opened_call, every.layout.states.field(index))
            # How the user insists only matters for the choice.
            window_frame = replace(each.window_frame, by=None)
            groups.setdefault((window_frame, each.low, each.high, strategy), []).append(name)
        parts = []
        for (window_frame, low, high, strategy), call_names in groups.items():
            inner = layout.of([calls[name].call for name in call_names], retracts=strategy is Strategy.RETRACT)
            query = every.part(call_names, inner)
            parts.append(Part(query, window_frame, strategy, tuple(map(reasons.__getitem__, call_names)), low, high))
        return cls(layout, tuple(parts), every.layout.outputs, every.bounds)

    @property
    def trace(self) -> TraceSettings | None:
        """The trace settings of its tasks; None without a collector."""
        return self.parts[0].query.trace

    @property
    def buffer_bounds(self) -> BlockBounds:
        """The limits of the rows that are buffered before they are folded: of a block, and of partitions in memory.

        A task may hold about four times as many bytes: two blocks, one of them in the making, a partition, and outputs.
        """
        return replace(self.bounds, bytes_max=max(self.bounds.bytes_max // 4, 1))

    @property
    def results(self) -> pa.Schema:
        """The columns of the result: the input's, then the outputs."""
        payload = [field.with_name(name) for field, name in zip(self.layout.payload, self.layout.names, strict=True)]
        return pa.schema([*payload, *self.outputs])

    @property
    def ordering(self) -> Ordering:
        """The order of the rows."""
        layout = self.layout
        return Ordering(
            tuple(layout.keys.names),
            tuple(layout.order.names),
            has_peers=any(part.window_frame.is_range and not part.window_frame.is_whole for part in self.parts),
            has_codes=any(part.window_frame.has_offset for part in self.parts),
            descending=layout.descending,
            nulls_first=layout.nulls_first,
        )

    def explain(self) -> str:
        """Return a description of the query: each call with its window frame, and how that is folded.

        Raises:
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        lines = [*self.describe(), "plan: rows > shuffle by key > sort > fold frames > rows with outputs"]
        lines.append(
            f"  blocks of at most {self.bounds.rows_max:,} rows; a partition of more than "
            f"{self.buffer_bounds.bytes_max >> 20:,} MiB is written to a file"
        )
        return "\n".join(lines)

    def describe(self) -> list[str]:
        """Return the lines of `explain` without the plan. Raises RetryableError as it does."""
        layout = self.layout
        infos = {info.name: info.folded for info in self.parts[0].query.transport.infos(look=True)}
        by, order = ", ".join(layout.key_names), ", ".join(layout.order_names)
        lines = [f"over: partition by {by or 'nothing (one partition)'}; order by {order or 'nothing'}"]
        for part in self.parts:
            calls = zip(part.query.layout.outputs.names, part.query.open_request.calls, part.why, strict=True)
            for name, call, why in calls:
                lines.append(f"  {name}: {describe_call(call)} {part.window_frame}")
                lines.append(f"      folded: {part.strategy.value}, because {why}")
                lines.append(f"      mode: {mode_of(call, infos)}")
        return lines


def _choose(framed_call: FramedCall, opened_call: OpenedCall, state: pa.Field) -> tuple[Strategy, str]:
    """Return how a call is folded, and why. Raises RejectedError CANNOT_MERGE or CANNOT_RETRACT."""
    call, window_frame = framed_call.call, framed_call.window_frame
    if window_frame.by == "recompute":
        return Strategy.RECOMPUTE, "by='recompute' insists"
    is_short = window_frame.rows_max is not None and window_frame.rows_max <= RECOMPUTED_ROWS_MAX
    if (call.distinct or call.order) and not is_short and not window_frame.is_whole:
        raise RejectedError(
            "CANNOT_MERGE",
            f"{call.function} with DISTINCT or an order folds all rows of a frame for each value, and a frame of "
            f"{window_frame} may have more than {RECOMPUTED_ROWS_MAX:,} rows; shorten it, or insist with "
            "by='recompute'",
            function=call.function,
        )
    if window_frame.low is None:
        return Strategy.ACCUMULATE, "its frames only grow"
    if window_frame.by == "retract" and not opened_call.can_retract:
        raise RejectedError(
            "CANNOT_RETRACT",
            f"{call.function} has no retract, and by='retract' insists on it; leave by out"
            f"{', or define retract' if can_be_changed(call.function) else ''}",
            function=call.function,
        )
    if window_frame.by == "retract":
        return Strategy.RETRACT, "by='retract' insists"
    if call.distinct or call.order:
        return Strategy.RETRACT, "it keeps the rows of its frame"
    if opened_call.can_retract and opened_call.is_invertible:
        return Strategy.RETRACT, "it is invertible"
    inexact = _inexact(opened_call, state)
    if opened_call.can_retract and not inexact:
        return Strategy.RETRACT, "it retracts, and no float is in its arguments and its state"
    if opened_call.can_merge:
        return Strategy.MERGE, "it merges" + (f", and {inexact}" * opened_call.can_retract)
    if is_short:
        return Strategy.RECOMPUTE, "it neither merges nor retracts exactly, and its frames are short"
    raise RejectedError(
        "CANNOT_MERGE",
        f"{call.function} has no merge"
        + (
            f", and {inexact}; define merge, insist with by='retract',"
            if opened_call.can_retract
            else " and no retract; define one of them,"
        )
        + f" or fold each frame anew with by='recompute' (a frame of {window_frame} may have more than "
        f"{RECOMPUTED_ROWS_MAX:,} rows)",
        function=call.function,
    )


def _inexact(opened_call: OpenedCall, state: pa.Field) -> str:
    """Return why retracting may not be exact; empty if it is, because no float is in the arguments and the state."""
    if any(map(has_floats, (*opened_call.input_types, state.type))):
        return "retracting floats would add up rounding errors"
    codec = (state.metadata or {}).get(b"codec", b"unknown").decode()
    # Only a typed state has a type that tells its contents.
    if codec != "typed":
        return f"its state may have floats ({codec} codec), and retracting floats would add up rounding errors"
    return ""
