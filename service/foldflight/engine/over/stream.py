"""OVER in a stream: rows wait for the watermark, come out once in the order of their times, and frames end at them.

    rows that arrive > waiting (TimeLog) > due rows, by key and time > folds of the frames > rows with outputs

A row is due when the watermark has reached its time. As a row that arrives later is dropped, due rows are complete and
in order over all epochs, so frames are those of a batch over the rows that were not late. A bucket keeps:

- for *frames without a lower end*: the accumulators of the groups (a state table).
- for *RANGE frames*: the accumulators too, and the arguments of the rows in them, by time (a time log). Rows leave as
  the watermark passes the end of the distance, also those of groups without due rows. A group without rows is removed.
- for *ROWS frames*: the last argument rows of each group, as a list (a state table). Frames are folded as in a batch,
  over the kept rows and the due ones; so every way of folding works, and no accumulator is kept.

The groups of frames without a lower end and of ROWS frames stay for ever, unless idle groups are forgotten (`idle`).

Due rows are processed in steps, each of which reads one piece of each run. A step is like an epoch of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.client import Transport
from foldflight.engine.keys.grouped import Clock, GroupedExchange, Groups
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.over.folding import fold_of
from foldflight.engine.over.frames import OrderOf, Positions, codes_of, positions_of
from foldflight.engine.over.idle import IdleGroups, idle_log, idle_table, remove
from foldflight.engine.over.partitions import Store
from foldflight.engine.over.query import Framed, OverLayout, OverQuery, Part, Way
from foldflight.engine.query.blocks import BlockBounds, Pace, one_batch
from foldflight.engine.query.convert import convert
from foldflight.engine.query.layout import KIND, REAL, SLOT, QueryLayout
from foldflight.engine.query.query import ARROW, HostTypes, refuse_views
from foldflight.engine.state.manifest import RunStore, TableBounds, TableLayout, calls_of, other_query
from foldflight.engine.state.migration import Migration
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import Conversion, StateTable
from foldflight.engine.state.timelog import TIME, TimeLog
from foldflight.engine.stream.epoch import EpochStats
from foldflight.errors import RejectedError
from foldflight.functions import RowKind
from foldflight.functions.query.call import Order
from foldflight.functions.query.frame import Interval, WindowFrame, interval_of

__all__ = [
    "CALLS",
    "FRAMES",
    "GROUPS",
    "WAITING",
    "FrameCalls",
    "OverBucket",
    "StreamFolds",
    "StreamedOver",
    "idle_us_of",
]

_FRAME_ROWS_MAX: Final = 10_000
"""Rows before the current one that ROWS may have. The last rows of each touched group are written in each epoch."""

_EVENTS_MAX: Final = 1 << 17
"""Rows of a chunk."""

_PIECE_ROWS: Final = 1 << 16
"""Rows of a piece of a time log. A step reads one piece of each run, so they are smaller than blocks that arrive."""

_ROWS: Final = 1 << 15
"""Rows whose frames are folded at once in ROWS frames."""

_DAY_US: Final = 86_400_000_000
_DISTANCE_US_MAX: Final = 10_000_000 * _DAY_US
"""The longest distance of RANGE. With it, times are far within 64 bits."""

_KEPT_ROWS: Final = "rows"

WAITING: Final = "waiting"
"""The name of the log of the rows that wait, whose owner describes the query."""

GROUPS: Final = "groups"
"""The first word of the names of the state tables of frames. The number of the frame follows."""

FRAMES: Final = "frames"
"""The first word of the names of the logs of the rows in RANGE frames. The number of the frame follows."""

CALLS: Final = "calls and frames"
"""The entry of this owner that has the frames with their calls."""

_IDLE_GROUPS: Final = "idle groups"
_IDLE_TIMES: Final = "idle times"

_LAST_TIMES: Final = "times of last rows (idle)"
_NOT_KEPT: Final = "not kept"

Slots = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StreamedOver:
    """An OVER query over a stream, checked.

    Args:
        query: The query. The first column of its order is the time, ascending and without NULLs.
        ties: The other columns of the order, which decide between rows of equal time and key.
        buckets: The number of buckets of the groups.
        idle: The interval without a row after which a group is forgotten; None: never. RANGE frames ignore it, because
            their rows leave in any case.
    """

    query: OverQuery
    ties: tuple[Order, ...]
    buckets: int
    idle: str | None = None

    @classmethod
    def of(
        cls,
        transport: Transport,
        calls: Mapping[str, Framed],
        layout: OverLayout,
        *,
        ties: tuple[Order, ...] = (),
        buckets: int = 1,
        idle: str | None = None,
        types: HostTypes = ARROW,
    ) -> StreamedOver:
        """Check the calls as `OverQuery.of` does, and whether a stream can fold their frames.

        Raises:
            RejectedError: Also SIGNATURE or LIMIT, for frames that a stream does not know; CANNOT_MERGE or
                CANNOT_RETRACT, for a function that cannot be folded over such a frame in a stream; SCHEMA_MISMATCH, for
                a time that is not a timestamp in microseconds, and an order that cannot decide between rows of equal
                time.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        time = layout.order.field(0).type
        if not pa.types.is_timestamp(time) or time.unit != "us":
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the order {layout.order_names[0]} is {time}; in a stream it is a timestamp in microseconds",
            )
        for name, each in calls.items():
            _check_frame(name, each)
            if each.frame.has_offset and ties:
                raise RejectedError(
                    "SIGNATURE",
                    f"{each.frame} has a distance of the order value, so it needs one column in order_by, and "
                    f"there are {len(layout.order)}",
                )
        for place, order in enumerate(ties, 1):
            if pa.types.is_nested(layout.order.field(order.column).type):
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"the order {layout.order_names[place]} is {layout.order.field(order.column).type}; in a stream "
                    "rows of equal time are ordered by numbers, texts, times and booleans only",
                )
        if idle is not None:
            idle_us_of(idle)
        query = OverQuery.of(transport, calls, layout, types=types, is_stream=True)
        for part in query.parts:
            _check_way(part)
            refuse_views(part.query.opening.calls, part.query.opened)
        return cls(query, ties, buckets, idle)

    @property
    def time(self) -> str:
        """The column of the time."""
        return self.query.layout.order.names[0]

    @property
    def waiting(self) -> pa.Schema:
        """The rows that wait: their time, then all other columns."""
        others = [field for field in self.query.layout.rows if field.name != self.time]
        return pa.schema([pa.field(TIME, pa.int64()), *others])

    @property
    def owner(self) -> dict[str, Any]:
        """What the state belongs to. A query that differs in it is refused."""
        layout = self.query.layout
        types = [str(field.type) for field in layout.order]
        return {
            "keys": [[name, str(field.type)] for name, field in zip(layout.key_names, layout.keys, strict=True)],
            "orders": [[text, type_] for text, type_ in zip(layout.order_names, types, strict=True)],
            # Waiting rows have all columns by their places, so these may not change.
            "input columns": [
                [name, str(field.type)] for name, field in zip(layout.names, layout.payload, strict=True)
            ],
            "buckets": self.buckets,
            CALLS: [{"frame": str(each.frame), "calls": calls_of(each.layout.states)} for each in self.frames],
            _LAST_TIMES: _NOT_KEPT if self.idle_us is None else "kept",
        }

    @property
    def frames(self) -> list[FrameCalls]:
        """The calls of each frame."""
        by_frame: dict[WindowFrame, list[Part]] = {}
        for part in self.query.parts:
            by_frame.setdefault(part.frame, []).append(part)
        return [FrameCalls.of(self.query, parts) for parts in by_frame.values()]

    @property
    def idle_us(self) -> int | None:
        """The time without a row after which a group is forgotten; None if no group is, or none would stay."""
        stay = any(_stays(part.frame) for part in self.query.parts)
        return idle_us_of(self.idle) if self.idle is not None and stay else None

    def check_owner(self, stored: Mapping[str, Any]) -> None:
        """Check that the query can continue with a state. The state tables check the versions of functions.

        Args:
            stored: What the state belongs to: the `owner` of the query that wrote it.

        Raises:
            RejectedError: STATE_MISMATCH.
        """
        for what, ours in json.loads(json.dumps(self.owner)).items():
            found = stored.get(what, _NOT_KEPT)
            if found == ours or (what == CALLS and _can_continue(found, ours)):
                continue
            raise other_query(what, found, ours)

    def explain(self) -> str:
        """Return a description of the query, as `OverQuery.explain` does, with what the stream keeps for each frame."""
        time = self.query.layout.order_names[0]
        lines = [f"stream: {line}" if not place else line for place, line in enumerate(self.query.described())]
        lines.append("plan: rows > shuffle by bucket > wait for the watermark > fold frames > rows with outputs")
        lines.append(
            f"  a row comes out when the watermark has reached its {time}, for each key in this order; a row that "
            "arrives after that is dropped and counted in late_rows"
        )
        lines.append(f"state in {self.buckets} buckets: the rows that wait, by time; and for")
        until = "for ever" if self.idle is None else f"until it has had no row for {self.idle}"
        lines += [f"  {', '.join(each.layout.outputs.names)}: {_kept_text(each.frame, until)}" for each in self.frames]
        return "\n".join(lines)


@dataclass(frozen=True)
class FrameCalls:
    """The calls of one frame, which share what a bucket keeps for it.

    What is kept does not depend on how calls are folded, because this may change with the version of a function.

    Args:
        parts: The calls by their way of folding. Only calls of frames that keep rows, or nothing, have several ways.
        layout: The columns of all these calls, which are in the order of the query.
    """

    parts: tuple[Part, ...]
    layout: QueryLayout

    @classmethod
    def of(cls, query: OverQuery, parts: Sequence[Part]) -> Self:
        """Return the calls of parts with the same frame."""
        layouts = [part.query.layout for part in parts]
        used = {name for layout in layouts for name in layout.columns.names}
        states = {
            name: state for layout in layouts for name, state in zip(layout.outputs.names, layout.states, strict=True)
        }
        outputs = [field for field in query.outputs if field.name in states]
        columns = [
            (field, shown)
            for field, shown in zip(query.layout.columns, query.layout.shown, strict=True)
            if field.name in used
        ]
        layout = replace(
            layouts[0],
            columns=pa.schema([field for field, _ in columns]),
            shown=tuple(shown for _, shown in columns),
            states=pa.schema([states[each.name].with_name(f"state_{n}") for n, each in enumerate(outputs)]),
            outputs=pa.schema(outputs),
        )
        return cls(tuple(parts), layout)

    @property
    def frame(self) -> WindowFrame:
        """The frame."""
        return self.parts[0].frame


def _check_frame(name: str, framed: Framed) -> None:
    frame, function = framed.frame, framed.call.function
    if (framed.call.distinct or framed.call.order) and (frame.low is None or frame.has_offset):
        raise RejectedError(
            "CANNOT_MERGE",
            f"{name} has the frame {frame}; with DISTINCT or an order, all rows of a frame are folded for each value, "
            "and a stream cannot find the rows of a group in such a frame; use ROWS with a beginning",
            function=function,
        )
    if frame.high is None or not (frame.high == 0 or _precedes(framed)):
        raise RejectedError(
            "SIGNATURE",
            f"{name} has the frame {frame}, and a stream does not know the rows that follow; end the frame at the "
            "current row (0), or at a row before it if ROWS has a bounded beginning",
            function=function,
        )
    if frame.is_range and frame.low is not None and frame.low != 0:
        interval = interval_of(frame.low) if isinstance(frame.low, str) else None
        if interval is None or interval.months:
            raise RejectedError(
                "SIGNATURE",
                f"{name} has the frame {frame}; RANGE in a stream begins at an interval of a fixed length, such as "
                "'-1 hour' or '-7 days' (of 24 hours each)",
                function=function,
            )
        if -_length_us(interval) > _DISTANCE_US_MAX:
            raise RejectedError(
                "LIMIT",
                f"{name} has the frame {frame}; RANGE in a stream may begin at most {_DISTANCE_US_MAX // _DAY_US:,} "
                "days before the current row; use a frame without a beginning",
                function=function,
            )
    elif isinstance(frame.low, int) and -frame.low > _FRAME_ROWS_MAX:
        raise RejectedError(
            "LIMIT",
            f"{name} has the frame {frame}; ROWS in a stream may begin at most {_FRAME_ROWS_MAX:,} rows before the "
            "current one, because these rows are written for each group in each epoch; use RANGE with an interval",
            function=function,
        )


def _precedes(framed: Framed) -> bool:
    """Whether a ROWS frame of a bounded number of rows ends before the current row."""
    frame = framed.frame
    return not frame.is_range and frame.low is not None and isinstance(frame.high, int) and frame.high < 0


def _check_way(part: Part) -> None:
    frame, functions = part.frame, ", ".join(call.function for call in part.query.opening.calls)
    if frame.low is None and part.way is not Way.ACCUMULATE:
        raise RejectedError(
            "SIGNATURE",
            f"{functions} over {frame} is to be folded by {part.way.value}, and a stream keeps no rows of a frame "
            "without a beginning; use ROWS with a beginning, or leave by out",
        )
    if frame.has_offset and part.way is not Way.RETRACT:
        raise RejectedError(
            "CANNOT_RETRACT",
            f"{functions} over {frame} would be folded by {part.way.value} ({'; '.join(part.why)}), and a stream folds "
            "RANGE by retracting the rows that leave, because it cannot find the rows of a group; insist with "
            "by='retract' if rounding errors do no harm, or use ROWS",
        )


def _can_continue(stored: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> bool:
    """Whether only versions of functions differ. Older checkpoints also have the ways of folding: these may differ."""

    def fixed(parts: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
        return [(part["frame"], [call["function"] for call in part["calls"]]) for part in parts]

    if fixed(stored) != fixed(ours):
        return False
    pairs = [
        pair for old, new in zip(stored, ours, strict=True) for pair in zip(old["calls"], new["calls"], strict=True)
    ]
    return all(old["version"] != new["version"] or old["fingerprint"] == new["fingerprint"] for old, new in pairs)


def idle_us_of(idle: str) -> int:
    """Return the length of `idle`, in microseconds.

    Raises:
        RejectedError: SIGNATURE, if it is no interval of a fixed length, or too long.
    """
    interval = interval_of(idle) if isinstance(idle, str) else None
    if interval is None or interval.months or not 0 < _length_us(interval) <= _DISTANCE_US_MAX:
        raise RejectedError(
            "SIGNATURE",
            f"idle is an interval of a fixed length, such as '7 days' or '12 hours' (at most "
            f"{_DISTANCE_US_MAX // _DAY_US:,} days), and here it is {idle!r}",
        )
    return _length_us(interval)


def _stays(frame: WindowFrame) -> bool:
    """Whether groups of this frame stay when their rows have been folded."""
    return frame.low is None or _kept_rows(frame) > 0


def _kept_text(frame: WindowFrame, until: str) -> str:
    if frame.low is None:
        return f"the accumulators of each group, {until}"
    if frame.has_offset:
        return "the accumulators of each group with rows in its frame, and the arguments of these rows, by time"
    if (kept := _kept_rows(frame)) == 0:
        return "nothing, as rows of equal time come out together"
    rows = "row" if kept == 1 else f"{kept:,} rows"
    return f"the arguments of the last {rows} of each group, {until}"


def _distance_us(frame: WindowFrame) -> int | None:
    """Return the length of RANGE frames before the current row, in microseconds; None for other frames."""
    if not frame.has_offset:
        return None
    interval = interval_of(str(frame.low))
    assert interval is not None
    return -_length_us(interval)


def _length_us(interval: Interval) -> int:
    """Return the length of an interval without months, in microseconds."""
    return interval.days * _DAY_US + interval.microseconds


def _kept_rows(frame: WindowFrame) -> int:
    """Return how many rows before the current one a ROWS frame may have."""
    return -frame.low if isinstance(frame.low, int) and not frame.is_range else 0


class _Step(NamedTuple):
    """Due rows, sorted by group and then by the order.

    Args:
        rows: n rows.
        groups: The groups.
        slots: int32, shape (n,): the group of each row.
        times: int64, shape (n,).
        peers: int64, shape (n,): a number that is equal exactly for adjacent rows with equal key and order.
        anew: bool, shape (n,): whether the group of a row begins anew with it, because it was idle before.
        until: All rows up to this time are here or were in an earlier step.
    """

    rows: pa.RecordBatch
    groups: Groups
    slots: Slots
    times: Positions
    peers: Positions
    anew: Mask
    until: int

    def of_groups(self, begin: int, count: int) -> _Step:
        """Return the rows from the position `begin` on of at most `count` groups. A group has adjacent rows."""
        firsts = np.flatnonzero(np.diff(self.slots[begin:], prepend=-1)) + begin
        end = int(firsts[count]) if count < len(firsts) else len(self.slots)
        chosen = slice(begin, end)
        return self._replace(
            rows=self.rows.slice(begin, end - begin),
            slots=self.slots[chosen],
            times=self.times[chosen],
            peers=self.peers[chosen],
            anew=self.anew[chosen],
        )


class _Kept(NamedTuple):
    """What a bucket keeps for a frame: groups, and rows that leave later."""

    table: StateTable | None
    log: TimeLog | None


class _CallsFold(ABC):
    """Folds the calls of one frame, for all buckets of a task; a context manager that closes its exchanges."""

    def __init__(self, frame: WindowFrame, layout: QueryLayout, buckets: int) -> None:
        self.frame = frame
        self.layout = layout
        self._buckets = buckets

    @property
    @abstractmethod
    def states(self) -> pa.Schema:
        """The columns that the state table has for each group; none if groups keep nothing."""

    @property
    def conversion(self) -> Conversion | None:
        """Converts the states of other versions of functions; None if groups keep no states of functions."""
        return None

    @property
    def table(self) -> TableLayout | None:
        """The layout of the state table."""
        if not len(self.states):
            return None
        names = (*self.layout.names, *self.layout.outputs.names)
        return TableLayout(self.layout.keys, self.states, self._buckets, window=f"over {self.frame}", names=names)

    @property
    def log(self) -> pa.Schema | None:
        """The rows that leave frames later: their time, keys and arguments."""
        if _distance_us(self.frame) is None:
            return None
        return pa.schema([pa.field(TIME, pa.int64()), *self.layout.keys, *self.layout.columns])

    @abstractmethod
    def outputs(self, step: _Step, kept: _Kept) -> list[pa.Array]:
        """Fold the due rows, store what is kept, and return the n outputs of each call.

        Raises:
            FunctionError: With function and group.
        """

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, exception_type: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the exchanges."""


class _AccumulatorFold(_CallsFold):
    """Keeps accumulators: for frames that only grow, and for RANGE frames, whose rows leave with the watermark."""

    def __init__(self, part: Part, buckets: int, clock: Clock) -> None:
        super().__init__(part.frame, part.query.layout, buckets)
        query = part.query
        self.exchange = GroupedExchange(query.transport, part.kept, query.layout, clock=clock)
        self._distance = _distance_us(part.frame)
        self._rows_max = query.bounds.rows_max
        self._pace = Pace(_EVENTS_MAX, query.bounds.bytes_max)
        self._migration = Migration(
            query.transport,
            query.opening_for(states=True, outputs=False),
            query.layout,
            tuple(call.can_migrate for call in query.opened),
            query.bounds,
        )

    @property
    def states(self) -> pa.Schema:
        return self.layout.states

    @property
    def conversion(self) -> Conversion:
        return self._migration

    def outputs(self, step: _Step, kept: _Kept) -> list[pa.Array]:
        assert kept.table is not None
        events = self._events(step, kept.log)
        if not len(events.slots):
            return [pa.nulls(0, field.type) for field in self.layout.outputs]
        touched, group_of = np.unique(events.slots, return_inverse=True)
        keys = step.groups.keys(touched)
        hashes = step.groups.stored_hashes(touched)
        found = kept.table.lookup(keys, hashes)
        is_first = np.diff(group_of, prepend=-1) != 0
        is_stored = _running_sums(events.anew.astype(np.int64), group_of) == 0
        live = _running_sums(np.where(events.leaves, -1, 1), np.cumsum(is_first | events.anew))
        live += np.where(is_stored, found.live[group_of], 0)
        # An accumulator without rows is not used any more, so the event that empties it is left out.
        empties = live == 0
        begins = is_first | events.anew
        begins[1:] |= empties[:-1]
        turns = np.cumsum(begins) - 1
        loaded = np.full(int(turns[-1]) + 1, -1, np.int64)
        present = is_first & is_stored & found.present[group_of]
        loaded[turns[present]] = group_of[present]
        owners = events.slots[begins]
        states, outputs = self._fold(step.groups, owners, events.kept(~empties), turns[~empties], found.states, loaded)
        is_last = np.append(is_first[1:], True)
        left = live[is_last]
        chosen = pa.array(turns[is_last], mask=left == 0)
        columns = [column.take(chosen) for column in states]
        kept.table.commit(keys, left, pa.RecordBatch.from_arrays(columns, names=self.layout.states.names), hashes)
        # Rows with one output for all their peers have it at the last one.
        emits = self._emits(step.peers)
        places = pa.array(np.cumsum(emits) - emits)
        return [column.take(places) for column in outputs]

    def _emits(self, peers: Positions) -> Mask:
        """Return after which of n due rows the outputs are asked for."""
        if not self.frame.is_range:
            return np.ones(len(peers), np.bool_)
        return np.diff(peers, append=peers[-1:] + 1) != 0

    def _events(self, step: _Step, log: TimeLog | None) -> _Events:
        """Return the rows that enter and those that leave, by group and time."""
        names = self.layout.columns.names
        rows = _columns_of(step.rows, names)
        slots, times = step.slots, step.times
        leaves, emits = np.zeros(len(slots), np.bool_), self._emits(step.peers)
        # Rows of RANGE frames leave in any case, so an idle group needs no new beginning.
        anew = step.anew if log is None else np.zeros(len(slots), np.bool_)
        if log is not None and self._distance is not None:
            limit = step.until - self._distance
            gone = log.take(limit)
            # Rows that enter in this step may leave in it, too.
            own = np.flatnonzero(times <= limit)
            later = np.flatnonzero(times > limit)
            later = later[np.argsort(times[later], kind="stable")]
            columns = [step.rows.column(field.name) for field in [*self.layout.keys, *self.layout.columns]]
            assert self.log is not None
            arrived = pa.RecordBatch.from_arrays([pa.array(times), *columns], schema=self.log)
            log.add(arrived.take(pa.array(later)))
            left = pa.RecordBatch.from_arrays(_columns_of(gone, names).columns, schema=rows.schema)
            rows = pa.concat_batches([rows, left, rows.take(pa.array(own))])
            slots = np.concatenate([slots, step.groups.slots(gone), slots[own]])
            # A row at time t leaves after the rows of time t + distance, whose frames it is in.
            ends = np.concatenate([gone.column(TIME).to_numpy(), times[own]]) + self._distance
            times = np.concatenate([times, ends])
            leaves = np.concatenate([leaves, np.ones(len(ends), np.bool_)])
            emits = np.concatenate([emits, np.zeros(len(ends), np.bool_)])
            anew = np.concatenate([anew, np.zeros(len(ends), np.bool_)])
        order = np.lexsort((leaves, times, slots))
        if self.layout.has_kinds:
            kinds = np.where(leaves, int(RowKind.DELETE), int(RowKind.INSERT)).astype(np.int8)
            rows = rows.append_column(KIND, pa.array(kinds))
        return _Events(rows.take(pa.array(order)), slots[order], leaves[order], emits[order], anew[order])

    def _fold(
        self,
        groups: Groups,
        owners: Slots,
        events: _Events,
        turns: Positions,
        before: pa.RecordBatch,
        loaded: Positions,
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """Fold events into m accumulators, and return their m states and the outputs that were asked for.

        Args:
            groups: The groups.
            owners: int32, shape (m,): the group of each accumulator.
            events: n events, by accumulator.
            turns: int64, shape (n,): the accumulator of each event, ascending.
            before: The stored states.
            loaded: int64, shape (m,): the row of `before` with which an accumulator begins; -1 if it is new.
        """
        most = self._rows_max
        states: list[pa.RecordBatch] = []
        outputs: list[list[pa.Array]] = []
        for first in range(0, len(owners), most):
            last = min(first + most, len(owners))
            begin, end = np.searchsorted(turns, [first, last]).tolist()
            with self.exchange.turn(_Owners(groups, owners[first:last])):
                old = np.flatnonzero(loaded[first:last] >= 0)
                if len(old):
                    chosen = before.take(pa.array(loaded[first:last][old]))
                    self.exchange.states(old.astype(np.int32), chosen.columns)
                start = begin
                while start < end:
                    stop = min(start + self._pace.items, end)
                    slots = (turns[start:stop] - first).astype(np.int32)
                    rows = events.rows.slice(start, stop - start)
                    found = self.exchange.running(slots, rows, events.emits[start:stop])
                    self._pace.made(stop - start, found.nbytes)
                    outputs.append(self._converted(found))
                    start = stop
                self.exchange.barrier()
                found = one_batch(self.exchange.results())
            states.append(_by_slot(found, self.layout.states.names, last - first))
        together = pa.Table.from_batches(states)
        empty = [pa.nulls(0, field.type) for field in self.layout.outputs]
        columns = [pa.concat_arrays(list(parts)) for parts in zip(empty, *outputs, strict=True)]
        return [column.combine_chunks() for column in together.columns], columns

    def _converted(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns = self.layout.outputs_of(batch)
        return [convert(column, field.type) for column, field in zip(columns, self.layout.outputs, strict=True)]

    def __exit__(
        self, exception_type: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exchange.__exit__(exception_type, exception, trace)


class _Events(NamedTuple):
    """Rows that enter and leave frames, by group and time.

    Args:
        rows: n rows: kinds and arguments.
        slots: int32, shape (n,): their groups.
        leaves: bool, shape (n,): whether a row leaves.
        emits: bool, shape (n,): whether the outputs after a row are asked for.
        anew: bool, shape (n,): whether a group begins anew with a row.
    """

    rows: pa.RecordBatch
    slots: Slots
    leaves: Mask
    emits: Mask
    anew: Mask

    def kept(self, mask: Mask) -> _Events:
        """Return some of the events."""
        chosen = (self.slots[mask], self.leaves[mask], self.emits[mask], self.anew[mask])
        return _Events(self.rows.filter(pa.array(mask)), *chosen)


class _Owners:
    """The groups of accumulators, for errors and logs."""

    def __init__(self, groups: Groups, owners: Slots) -> None:
        self._groups = groups
        self._owners = owners

    def __len__(self) -> int:
        return len(self._owners)

    def name(self, slot: int) -> dict[str, Any]:
        return self._groups.name(int(self._owners[slot]))


class _RowsFold(_CallsFold):
    """Keeps the last rows of each group, for ROWS frames. Frames of the rows of one time keep nothing."""

    def __init__(self, calls: FrameCalls, buckets: int, bounds: BlockBounds) -> None:
        super().__init__(calls.frame, calls.layout, buckets)
        self._folds = [(part.query.layout.outputs.names, fold_of(part)) for part in calls.parts]
        self._pace = Pace(min(_ROWS, bounds.rows_max), bounds.bytes_max)
        self._rows_kept = _kept_rows(calls.frame)
        # The kept rows of some groups are in memory at once: at first those of as many as surely make no large block.
        first = max(bounds.rows_max // max(self._rows_kept, 1), 1)
        self._groups_pace = Pace(bounds.rows_max, bounds.bytes_max, first=first)

    @property
    def states(self) -> pa.Schema:
        if not self._rows_kept:
            return pa.schema([])
        fields = list(self.layout.columns) or [pa.field(REAL, pa.bool_())]
        metadata = {"function": _KEPT_ROWS, "version": "", "fingerprint": str(pa.struct(fields))}
        return pa.schema([pa.field("state_0", pa.list_(pa.struct(fields)), metadata=metadata)])

    def outputs(self, step: _Step, kept: _Kept) -> list[pa.Array]:
        found = [[pa.nulls(0, field.type) for field in self.layout.outputs]]
        begin = 0
        while begin < len(step.slots):
            part = step if kept.table is None else step.of_groups(begin, self._groups_pace.items)
            found.append(self._folded(part, kept.table))
            begin += len(part.slots)
        return [pa.concat_arrays(list(columns)) for columns in zip(*found, strict=True)]

    def _folded(self, step: _Step, table: StateTable | None) -> list[pa.Array]:
        """Return the outputs of the due rows of some groups, and store the last rows of these groups."""
        columns = _columns_of(step.rows, self.layout.columns.names)
        rows, owners, anew, is_due = columns, step.slots, step.anew, np.ones(len(step.slots), np.bool_)
        touched = np.unique(owners)
        keys = step.groups.keys(touched)
        if table is not None:
            lists = table.lookup(keys, step.groups.stored_hashes(touched)).states.column(0)
            before = pa.RecordBatch.from_arrays(lists.flatten().flatten(), schema=columns.schema)
            lengths = lists.value_lengths().fill_null(0).to_numpy()
            rows = pa.concat_batches([before, columns])
            owners = np.concatenate([np.repeat(touched, lengths), owners])
            is_due = np.arange(len(owners)) >= len(before)
            anew = np.concatenate([np.zeros(len(before), np.bool_), anew])
            order = np.argsort(owners, kind="stable")
            rows, owners, anew, is_due = rows.take(pa.array(order)), owners[order], anew[order], is_due[order]
        starts = np.append(np.flatnonzero((np.diff(owners, prepend=-1) != 0) | anew), len(owners))
        outputs = self._outputs(self._store(step, rows, owners, starts), np.flatnonzero(is_due))
        if table is not None:
            is_last = np.diff(owners[starts[:-1]], append=-1) != 0
            last = self._last(rows, starts[:-1][is_last], starts[1:][is_last])
            table.commit(keys, np.ones(len(touched), np.int64), last, step.groups.stored_hashes(touched))
            self._groups_pace.made(len(touched), rows.nbytes)
        return outputs

    def _last(self, rows: pa.RecordBatch, starts: Positions, ends: Positions) -> pa.RecordBatch:
        """Return the last rows of each group as a list: those that frames of later rows may have."""
        counts = np.minimum(ends - starts, self._rows_kept)
        places = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        last = pa.ListArray.from_arrays(offsets, rows.take(pa.array(places)).to_struct_array())
        return pa.RecordBatch.from_arrays([last.cast(self.states.field(0).type)], names=self.states.names)

    def _store(self, step: _Step, rows: pa.RecordBatch, owners: Slots, starts: Positions) -> Store:
        """Return rows, by group, with their keys. Only frames without kept rows need to know peers."""
        keys = step.groups.keys(owners)
        together = pa.RecordBatch.from_arrays(
            [*keys.columns, *rows.columns], schema=pa.schema([*keys.schema, *rows.schema])
        )
        nulls = np.zeros(len(starts) - 1, np.int64)
        return Store([together], OrderOf(starts, step.peers, None, nulls, nulls_first=True))

    def _outputs(self, store: Store, due: Positions) -> list[pa.Array]:
        for _, fold in self._folds:
            fold.begin(store)
        found = []
        start = 0
        while start < len(due):
            rows = due[start : start + self._pace.items]
            low, high = positions_of(self.frame, store.order, rows)
            columns: dict[str, pa.Array] = {}
            for names, fold in self._folds:
                columns |= zip(names, fold.outputs(rows, low, high), strict=True)
            found.append([columns[name] for name in self.layout.outputs.names])
            self._pace.made(len(rows), sum(column.nbytes for column in found[-1]))
            start += len(rows)
        return [pa.concat_arrays(list(parts)) for parts in zip(*found, strict=True)]

    def __exit__(
        self, exception_type: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = ExitStack()
        for _, fold in self._folds:
            stack.push(fold.__exit__)
        stack.__exit__(exception_type, exception, trace)


class StreamFolds:
    """The folds of all frames of a query, for all buckets of a task; a context manager that closes their exchanges.

    Args:
        over: The query.
        clock: Returns the time in seconds, to measure the time in exchanges with accumulators. Default: no measuring.
    """

    def __init__(self, over: StreamedOver, *, clock: Clock = lambda: 0.0) -> None:
        self.over = over
        self.frames: list[_CallsFold] = []
        for calls in over.frames:
            if calls.frame.low is None or calls.frame.has_offset:
                (part,) = calls.parts
                self.frames.append(_AccumulatorFold(part, over.buckets, clock))
            else:
                self.frames.append(_RowsFold(calls, over.buckets, over.query.bounds))

    @property
    def elapsed_s(self) -> float:
        """Seconds spent in exchanges with accumulators so far."""
        return sum(fold.exchange.elapsed_s for fold in self.frames if isinstance(fold, _AccumulatorFold))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = ExitStack()
        for fold in self.frames:
            stack.push(fold.__exit__)
        stack.__exit__(exception_type, exception, trace)


class OverBucket:
    """The rows and groups of one bucket.

    Args:
        folds: What folds the frames.
        stores: Returns the storage of a name.
        cache: The cache of decoded pieces; None: no cache.
        bounds: The limits of pieces and merges.
        new_run_id: Returns a new unique name at each call.

    Attributes:
        stats: The metrics of what was done since it was created.

    Raises:
        RejectedError: STATE_MISMATCH, if the storage belongs to another query.
        CorruptError: STATE_CHECKSUM, if the storage is damaged.
    """

    def __init__(
        self,
        folds: StreamFolds,
        stores: Callable[[str], RunStore],
        *,
        cache: RunCache | None,
        bounds: TableBounds,
        new_run_id: Callable[[], str],
    ) -> None:
        over = folds.over
        self.stats = EpochStats(buckets=1)
        self._folds = folds
        self._over = over

        by_time = replace(bounds, piece_rows_max=min(bounds.piece_rows_max, _PIECE_ROWS))

        def log(name: str, rows: pa.Schema, **owner: Any) -> TimeLog:
            return TimeLog(rows, stores(name), cache=cache, bounds=by_time, new_run_id=new_run_id, **owner)

        def table(name: str, layout: TableLayout, conversion: Conversion | None = None) -> StateTable:
            return StateTable(
                layout, stores(name), cache=cache, bounds=bounds, new_run_id=new_run_id, conversion=conversion
            )

        self._waiting = log(WAITING, over.waiting, owner=over.owner, check=over.check_owner)
        self._kept = [
            _Kept(
                None if fold.table is None else table(f"{GROUPS} {place}", fold.table, fold.conversion),
                None if fold.log is None else log(f"{FRAMES} {place}", fold.log),
            )
            for place, fold in enumerate(folds.frames)
        ]
        layout = over.query.parts[0].query.layout
        self._idle = None
        if over.idle_us is not None:
            last = table(_IDLE_GROUPS, idle_table(layout, over.buckets))
            self._idle = IdleGroups(over.idle_us, last, log(_IDLE_TIMES, idle_log(layout)))
        self._count()

    @property
    def next_us(self) -> int | None:
        """The watermark at which the next row is due or leaves a frame, or a group is idle; None: never.

        In microseconds since 1970.
        """
        times = [self._waiting.first]
        for kept, distance in self._logs():
            first = kept.first
            times.append(None if first is None else first + distance)
        return min((time for time in times if time is not None), default=None)

    def arrive(self, blocks: Iterable[pa.RecordBatch], watermark_us: int) -> None:
        """Store rows that arrive, except those whose time the watermark has reached: they are late.

        Args:
            blocks: Rows in the schema of `OverLayout.rows`.
            watermark_us: The watermark, in microseconds since 1970.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a row without a time.
        """
        for block in blocks:
            column = block.column(self._over.time)
            if column.null_count:
                shown = self._over.query.layout.order_names[0]
                raise RejectedError("SCHEMA_MISMATCH", f"the order {shown} is NULL; leave such rows out")
            times = column.view(pa.int64()).to_numpy()
            late = times <= watermark_us
            self.stats.late_rows += int(late.sum())
            order = np.flatnonzero(~late)
            order = order[np.argsort(times[order], kind="stable")]
            columns = [block.column(name) for name in self._over.waiting.names[1:]]
            rows = pa.RecordBatch.from_arrays([pa.array(times), *columns], schema=self._over.waiting)
            self._waiting.add(rows.take(pa.array(order)))
        self._waiting.commit()
        self._count()

    def outputs(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are due with their outputs, and store what is kept. Take all of them.

        Args:
            watermark_us: The watermark, in microseconds since 1970.

        Raises:
            FunctionError: With function and group. Then nothing of the bucket may be used any more.
        """
        before_s = self._folds.elapsed_s
        while (until := self._reach(watermark_us)) is not None:
            rows = self._step(until)
            if rows.num_rows:
                yield rows
        self._waiting.commit()
        for log, _ in self._logs():
            log.commit()
        self.stats.exchange_ms += (self._folds.elapsed_s - before_s) * 1000
        self._count()

    def _logs(self) -> Iterator[tuple[TimeLog, int]]:
        """Yield the logs of frames with their distances, and that of idle groups."""
        for fold, kept in zip(self._folds.frames, self._kept, strict=True):
            distance = _distance_us(fold.frame)
            if kept.log is not None and distance is not None:
                yield kept.log, distance
        if self._idle is not None:
            yield self._idle.log, self._idle.idle_us

    def _reach(self, watermark_us: int) -> int | None:
        """Return the time up to which the next step goes, which bounds the rows that it reads; None: nothing is due."""
        reached = [self._waiting.reach(watermark_us)]
        for log, distance in self._logs():
            until = log.reach(watermark_us - distance)
            reached.append(None if until is None else until + distance)
        return min((until for until in reached if until is not None), default=None)

    def _step(self, until: int) -> pa.RecordBatch:
        over = self._over
        due = self._waiting.take(until)
        groups = Groups(self._folds.over.query.parts[0].query.layout)
        slots, times = groups.slots(due), due.column(TIME).to_numpy()
        ranks = [_ranks(due.column(order.column), order) for order in over.ties]
        order = np.lexsort((*reversed(ranks), times, slots))
        rows, slots, times = due.take(pa.array(order)), slots[order], times[order]
        changes = np.zeros(len(order), np.bool_)
        for values in (slots, times, *(rank[order] for rank in ranks)):
            changes[1:] |= values[1:] != values[:-1]
        anew = np.zeros(len(order), np.bool_) if self._idle is None else self._idle.arrive(groups, slots, times)
        step = _Step(rows, groups, slots, times, np.cumsum(changes), anew, until)
        columns: dict[str, pa.Array] = {}
        for fold, kept in zip(self._folds.frames, self._kept, strict=True):
            columns |= zip(fold.layout.outputs.names, fold.outputs(step, kept), strict=True)
        self.stats.rows += rows.num_rows
        self.stats.groups += len(groups)
        if self._idle is not None:
            gone, hashes = self._idle.leave(groups, until)
            for fold, kept in zip(self._folds.frames, self._kept, strict=True):
                if kept.table is not None and _stays(fold.frame):
                    remove(kept.table, gone, hashes)
        payload = [rows.column(name) for name in over.query.layout.payload.names]
        outputs = [columns[name] for name in over.query.outputs.names]
        return pa.RecordBatch.from_arrays([*payload, *outputs], schema=over.query.results)

    def _count(self) -> None:
        tables = [kept.table for kept in self._kept if kept.table is not None]
        if self._idle is not None:
            tables.append(self._idle.table)
        stores: list[TimeLog | StateTable] = [self._waiting, *(log for log, _ in self._logs()), *tables]
        self.stats.waiting_rows = len(self._waiting)
        self.stats.runs = sum(store.pieces for store in stores)
        self.stats.state_bytes = sum(store.stored_bytes for store in stores)


def _columns_of(rows: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return argument columns; a column of NULLs if there are none, because a batch needs one to have rows."""
    if names:
        return rows.select(names)
    return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows, pa.bool_())], names=[REAL])


def _by_slot(found: pa.RecordBatch, names: list[str], count: int) -> pa.RecordBatch:
    """Return `count` rows of results by slot; NULL for slots without results."""
    places = np.full(count, -1, np.int64)
    places[found.column(SLOT).to_numpy()] = np.arange(found.num_rows)
    return found.select(names).take(pa.array(places, mask=places < 0))


def _running_sums(values: Positions, groups: Positions) -> Positions:
    """Return the sum of the n values up to each one in its group. Equal groups are adjacent."""
    sums = np.cumsum(values)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    lengths = np.diff(np.append(firsts, len(values)))
    return sums - np.repeat(sums[firsts] - values[firsts], lengths)


def _ranks(column: pa.Array, order: Order) -> Positions:
    """Return a number for each of n values that ascends as the order does."""
    if _has_codes(column.type):
        codes = codes_of(column, descending=order.descending)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        ranks = np.full(len(column), -1 if order.nulls_first else len(column), np.int64)
        ranks[valid] = np.unique(codes[valid], return_inverse=True)[1]
        return ranks
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())  # a text of Spark need not be UTF-8, and is ordered by its bytes
    index = KeyIndex(pa.schema([pa.field("value", column.type)]))
    slots = index.slots([column]).to_numpy()
    keys = list(map(order.sort_key, index.keys().column(0).to_pylist()))
    places = sorted(range(len(keys)), key=keys.__getitem__, reverse=order.descending)
    ranks = np.zeros(len(keys), np.int64)
    ranks[places] = np.arange(len(keys))
    return ranks[slots]


def _has_codes(type_: pa.DataType) -> bool:
    """Whether values of a type are ordered by their codes, which is faster than by Python values."""
    kinds = pa.types
    return (
        kinds.is_signed_integer(type_) or kinds.is_floating(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_)
    )
