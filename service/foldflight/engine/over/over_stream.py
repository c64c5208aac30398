"""OVER in a stream: rows wait for the watermark and come out once, by time; their window frames end at them.

    rows that arrive > waiting (TimeLog) > due rows, by key and time > folds of the window frames > rows with outputs

A row is due when the watermark has reached its time. As a row that arrives later is dropped, due rows are complete and
in order over all epochs, so window frames are the same as in a batch over the rows that were not late. A bucket keeps:

- for *window frames without a lower end*: the accumulators of the groups (a state table).
- for *RANGE frames*: the accumulators too, and the arguments of the rows in them, by time (a time log). Rows
  leave as the watermark passes the end of the distance, even if their group has no due rows. A group without rows is
  removed.
- for *ROWS frames*: the last argument rows of each group, as a list (a state table). Window frames are folded as
  in a batch, over the kept rows and the due ones; so every strategy works, and no accumulator is kept.

The groups of window frames without a lower end and of ROWS frames stay for ever, unless idle groups are
forgotten (`idle`).

Due rows are processed in steps, each of which reads one piece of each run. A step is like an epoch of its own.

`StreamedOver` is the query. `StoredOver` reads what the buckets have stored without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from foldflight.client.exchange import Transport
from foldflight.engine.keys.group_exchange import Groups
from foldflight.engine.over.over_query import FramedCall, OverLayout, OverQuery, Part, Strategy
from foldflight.engine.query.layout import ARROW, HostTypes, QueryLayout
from foldflight.engine.query.query import refuse_views
from foldflight.engine.state.manifest import (
    Manifest,
    Storage,
    TableLayout,
    VersionColumns,
    calls_of,
    other_query,
    with_older,
)
from foldflight.engine.state.table import StateTable
from foldflight.engine.state.timelog import TIME, TimeLog, is_time_log, read_manifest
from foldflight.errors import RejectedError
from foldflight.functions.query.call import Order
from foldflight.functions.query.frame import Interval, WindowFrame, interval_of
from foldflight.functions.types.arrow import is_nested, one_array

_LATEST: Final = np.iinfo(np.int64).max
_WINDOW_FRAME_ROWS_MAX: Final = 10_000
"""Rows before the current one that ROWS may have. The last rows of each touched group are written in each epoch."""

_DAY_US: Final = 86_400_000_000
_DISTANCE_US_MAX: Final = 10_000_000 * _DAY_US
"""The longest distance of RANGE. With it, times are far within 64 bits."""

WAITING: Final = "waiting"
"""The name of the log of the rows that wait, whose owner describes the query."""

GROUPS: Final = "groups"
"""The first word of the names of the state tables of window frames. The number of the window frame follows."""

WINDOW_FRAMES: Final = "frames"
"""The first word of the names of the logs of the rows in RANGE frames. The number of the window frame follows."""

CALLS: Final = "calls and frames"
"""The entry of this owner that has the window frames with their calls."""

_LAST_TIMES: Final = "times of last rows (idle)"
_NOT_STORED: Final = "not kept"


@dataclass(frozen=True)
class StreamedOver:
    """An OVER query over a stream, checked.

    Args:
        query: The query. The first column of its order is the time, ascending and without NULLs.
        ties: The other columns of the order, which decide between rows of equal time and key.
        buckets: The number of buckets of the groups.
        idle: The interval without a row after which a group is forgotten; None: never. RANGE frames ignore it,
            because their rows leave in any case.
    """

    query: OverQuery
    ties: tuple[Order, ...]
    buckets: int
    idle: str | None = None

    @classmethod
    def of(
        cls,
        transport: Transport,
        calls: Mapping[str, FramedCall],
        layout: OverLayout,
        *,
        ties: tuple[Order, ...] = (),
        buckets: int = 1,
        idle: str | None = None,
        types: HostTypes = ARROW,
    ) -> StreamedOver:
        """Check the calls as `OverQuery.of` does, and whether a stream can fold their window frames.

        Raises:
            RejectedError: Also SIGNATURE or LIMIT, for window frames that a stream does not know; CANNOT_MERGE or
                CANNOT_RETRACT, for a function that cannot be folded over such a window frame in a stream;
                SCHEMA_MISMATCH, for a time that is not a timestamp in microseconds, and an order that cannot decide
                between rows of equal time.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        time = layout.order.field(0).type
        if not pa.types.is_timestamp(time) or time.unit != "us":
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the order {layout.order_names[0]} is {time}; in a stream it is a timestamp in microseconds",
            )
        for name, each in calls.items():
            _check_window_frame(name, each)
            if each.window_frame.has_offset and ties:
                raise RejectedError(
                    "SIGNATURE",
                    f"{each.window_frame} has a distance of the order value, so it needs one column in order_by, and "
                    f"there are {len(layout.order)}",
                )
        for index, order in enumerate(ties, 1):
            if is_nested(layout.order.field(order.column).type):
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"the order {layout.order_names[index]} is {layout.order.field(order.column).type}; in a stream "
                    "rows of equal time are ordered by numbers, texts, times and booleans only",
                )
        if idle is not None:
            ttl_us_of(idle)
        query = OverQuery.of(transport, calls, layout, types=types, is_stream=True)
        for part in query.parts:
            _check_strategy(part)
            refuse_views(part.query.open_request.calls, part.query.opened_calls)
        return cls(query, ties, buckets, idle)

    @property
    def time(self) -> str:
        """The column of the time."""
        return self.query.layout.order.names[0]

    @property
    def waiting_schema(self) -> pa.Schema:
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
            # Waiting rows have all columns by their positions, so these may not change.
            "input columns": [
                [name, str(field.type)] for name, field in zip(layout.names, layout.payload, strict=True)
            ],
            "buckets": self.buckets,
            CALLS: [
                {"frame": str(each.window_frame), "calls": calls_of(each.layout.states)} for each in self.window_frames
            ],
            _LAST_TIMES: _NOT_STORED if self.ttl_us is None else "kept",
        }

    @property
    def window_frames(self) -> list[WindowFrameCalls]:
        """The calls of each window frame."""
        by_window_frame: dict[WindowFrame, list[Part]] = {}
        for part in self.query.parts:
            by_window_frame.setdefault(part.window_frame, []).append(part)
        return [WindowFrameCalls.of(self.query, parts) for parts in by_window_frame.values()]

    @property
    def ttl_us(self) -> int | None:
        """The time without a row after which a group is forgotten; None if no group is, or none would stay."""
        stay = any(stays(part.window_frame) for part in self.query.parts)
        return ttl_us_of(self.idle) if self.idle is not None and stay else None

    def check_owner(self, stored_owner: Mapping[str, Any]) -> None:
        """Check that the query can continue with a state. The state tables check the versions of functions.

        Args:
            stored_owner: What the state belongs to: the `owner` of the query that wrote it.

        Raises:
            RejectedError: STATE_MISMATCH.
        """
        for what, ours in json.loads(json.dumps(self.owner)).items():
            theirs = stored_owner.get(what, _NOT_STORED)
            if what == CALLS and theirs != _NOT_STORED:
                self._check_calls(theirs, ours)
            elif theirs != ours:
                raise other_query(what, theirs, ours)

    def _check_calls(self, stored_calls: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> None:
        """Refuse other calls and window frames. Older checkpoints also have the strategies, which may differ."""

        def stable_parts(window_frames: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
            return [(each["frame"], [call["function"] for call in each["calls"]]) for each in window_frames]

        if stable_parts(stored_calls) != stable_parts(ours):
            raise other_query(CALLS, _window_frames_text(stored_calls), _window_frames_text(ours))
        for window_frame, before, now in zip(self.window_frames, stored_calls, ours, strict=True):
            if window_frame.has_accumulators:
                continue  # the table of their states tells what has changed
            for old, new in zip(before["calls"], now["calls"], strict=True):
                if old["version"] == new["version"] and old["fingerprint"] != new["fingerprint"]:
                    raise RejectedError(
                        "STATE_MISMATCH",
                        f"{new['function']} has changed within its version {new['version']}: the types of its "
                        "arguments, result or accumulator, or its direct arguments; set this back, raise version= in "
                        "the declaration (rows of the frame are folded anew), or start with an empty checkpoint",
                        function=new["function"],
                    )

    def explain(self) -> str:
        """Return a description as `OverQuery.explain` does, with what the stream keeps for each window frame."""
        time = self.query.layout.order_names[0]
        lines = [f"stream: {line}" if not index else line for index, line in enumerate(self.query.describe())]
        lines.append("plan: rows > shuffle by bucket > wait for the watermark > fold frames > rows with outputs")
        lines.append(
            f"  a row comes out when the watermark has reached its {time}, for each key in this order; a row that "
            "arrives after that is dropped and counted in late_rows"
        )
        lines.append(f"state in {self.buckets} buckets: the rows that wait, by time; and for")
        until = "for ever" if self.idle is None else f"until it has had no row for {self.idle}"
        names_and_windows = ((", ".join(each.layout.outputs.names), each.window_frame) for each in self.window_frames)
        lines += [f"  {names}: {_stored_text(window_frame, until)}" for names, window_frame in names_and_windows]
        return "\n".join(lines)


@dataclass(frozen=True)
class WindowFrameCalls:
    """The calls of one window frame, which share what a bucket keeps for it.

    The stored rows do not depend on how calls are folded, because this may change with the version of a function.

    Args:
        parts: The calls by their strategy. Only calls of window frames that keep rows, or nothing, have several
            strategies.
        layout: The columns of all these calls, which are in the order of the query.
    """

    parts: tuple[Part, ...]
    layout: QueryLayout

    @classmethod
    def of(cls, query: OverQuery, parts: Sequence[Part]) -> Self:
        """Return the calls of parts with the same window frame."""
        layouts = [part.query.layout for part in parts]
        used_names = {name for layout in layouts for name in layout.columns.names}
        states = {
            name: state for layout in layouts for name, state in zip(layout.outputs.names, layout.states, strict=True)
        }
        outputs = [field for field in query.outputs if field.name in states]
        columns = [
            (field, display_name)
            for field, display_name in zip(query.layout.columns, query.layout.display_names, strict=True)
            if field.name in used_names
        ]
        layout = replace(
            layouts[0],
            columns=pa.schema([field for field, _ in columns]),
            display_names=tuple(display_name for _, display_name in columns),
            states=pa.schema([states[each.name].with_name(f"state_{n}") for n, each in enumerate(outputs)]),
            outputs=pa.schema(outputs),
        )
        return cls(tuple(parts), layout)

    @property
    def has_accumulators(self) -> bool:
        """Whether accumulators are kept for each group, rather than rows only."""
        return self.window_frame.low is None or self.window_frame.has_offset

    @property
    def window_frame(self) -> WindowFrame:
        """The window frame."""
        return self.parts[0].window_frame


def _check_window_frame(name: str, framed_call: FramedCall) -> None:
    window_frame, function = framed_call.window_frame, framed_call.call.function
    if (framed_call.call.distinct or framed_call.call.order) and (window_frame.low is None or window_frame.has_offset):
        raise RejectedError(
            "CANNOT_MERGE",
            f"{name} has the frame {window_frame}; with DISTINCT or an order, all rows of a frame are folded for each "
            "value, and a stream cannot find the rows of a group in such a frame; use ROWS with a beginning",
            function=function,
        )
    if window_frame.high is None or not (window_frame.high == 0 or _precedes(framed_call)):
        raise RejectedError(
            "SIGNATURE",
            f"{name} has the frame {window_frame}, and a stream does not know the rows that follow; end the frame at "
            "the current row (0), or at a row before it if ROWS has a bounded beginning",
            function=function,
        )
    if window_frame.is_range and window_frame.low is not None and window_frame.low != 0:
        interval = interval_of(window_frame.low) if isinstance(window_frame.low, str) else None
        if interval is None or interval.months:
            raise RejectedError(
                "SIGNATURE",
                f"{name} has the frame {window_frame}; RANGE in a stream begins at an interval of a fixed length, such "
                "as '-1 hour' or '-7 days' (of 24 hours each)",
                function=function,
            )
        if -_length_us(interval) > _DISTANCE_US_MAX:
            raise RejectedError(
                "LIMIT",
                f"{name} has the frame {window_frame}; RANGE in a stream may begin at most "
                f"{_DISTANCE_US_MAX // _DAY_US:,} days before the current row; use a frame without a beginning",
                function=function,
            )
    elif isinstance(window_frame.low, int) and -window_frame.low > _WINDOW_FRAME_ROWS_MAX:
        raise RejectedError(
            "LIMIT",
            f"{name} has the frame {window_frame}; ROWS in a stream may begin at most {_WINDOW_FRAME_ROWS_MAX:,} rows "
            "before the current one, because these rows are written for each group in each epoch; use RANGE with an "
            "interval",
            function=function,
        )


def _precedes(framed_call: FramedCall) -> bool:
    """Whether a ROWS frame of a bounded number of rows ends before the current row."""
    low, high = framed_call.window_frame.low, framed_call.window_frame.high
    return not framed_call.window_frame.is_range and low is not None and isinstance(high, int) and high < 0


def _check_strategy(part: Part) -> None:
    window_frame, functions = part.window_frame, ", ".join(call.function for call in part.query.open_request.calls)
    if window_frame.low is None and part.strategy is not Strategy.ACCUMULATE:
        raise RejectedError(
            "SIGNATURE",
            f"{functions} over {window_frame} is to be folded by {part.strategy.value}, and a stream keeps no rows of "
            "a frame without a beginning; use ROWS with a beginning, or leave by out",
        )
    if window_frame.has_offset and part.strategy is not Strategy.RETRACT:
        raise RejectedError(
            "CANNOT_RETRACT",
            f"{functions} over {window_frame} would be folded by {part.strategy.value} ({'; '.join(part.why)}), and a "
            "stream folds RANGE by retracting the rows that leave, because it cannot find the rows of a group; insist "
            "with by='retract' if rounding errors do no harm, or use ROWS",
        )


def _window_frames_text(window_frames: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{call['function']} over {each['frame']}" for each in window_frames for call in each["calls"])


def ttl_us_of(idle: str, option: str = "idle") -> int:
    """Return the length of `idle`, in microseconds.

    Args:
        idle: The interval.
        option: The name of the user's option, for errors.

    Raises:
        RejectedError: SIGNATURE, if it is no interval of a fixed length, or too long.
    """
    interval = interval_of(idle) if isinstance(idle, str) else None
    if interval is None or interval.months or not 0 < _length_us(interval) <= _DISTANCE_US_MAX:
        raise RejectedError(
            "SIGNATURE",
            f"{option} is an interval of a fixed length, such as '7 days' or '12 hours' (at most "
            f"{_DISTANCE_US_MAX // _DAY_US:,} days), and here it is {idle!r}",
        )
    return _length_us(interval)


def stays(window_frame: WindowFrame) -> bool:
    """Whether groups of this window frame stay when their rows have been folded."""
    return window_frame.low is None or preceding_rows(window_frame) > 0


def _stored_text(window_frame: WindowFrame, until: str) -> str:
    if window_frame.low is None:
        return f"the accumulators of each group, {until}"
    if window_frame.has_offset:
        return "the accumulators of each group with rows in its frame, and the arguments of these rows, by time"
    if (count := preceding_rows(window_frame)) == 0:
        return "nothing, as rows of equal time come out together"
    rows = "row" if count == 1 else f"{count:,} rows"
    return f"the arguments of the last {rows} of each group, {until}"


def distance_us(window_frame: WindowFrame) -> int | None:
    """Return the length of RANGE frames before the current row, in microseconds; None for other window frames."""
    if not window_frame.has_offset:
        return None
    interval = interval_of(str(window_frame.low))
    assert interval is not None
    return -_length_us(interval)


def _length_us(interval: Interval) -> int:
    """Return the length of an interval without months, in microseconds."""
    return interval.days * _DAY_US + interval.microseconds


def preceding_rows(window_frame: WindowFrame) -> int:
    """Return how many rows before the current one a ROWS frame may have."""
    return -window_frame.low if isinstance(window_frame.low, int) and not window_frame.is_range else 0


@dataclass(frozen=True)
class _Part:
    """The table of a window frame.

    Args:
        name: Its name in the store.
        layout: The layout of its rows, with columns for other versions of functions.
        outputs: The names of the states.
        calls: What each state is.
    """

    name: str
    layout: TableLayout
    outputs: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class StoredOver:
    """The stored rows and states of an OVER query.

    Args:
        layout: The keys and their names.
        buckets: The number of buckets.
        parts: The tables of window frames that keep groups.
    """

    layout: QueryLayout
    buckets: int
    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, manifests: Iterable[tuple[str, bytes]]) -> Self | None:
        """Return what the manifests of all buckets, by name, describe; None if no bucket has had rows.

        Raises:
            RejectedError: STATE_MISMATCH, if they have another format.
            CorruptError: STATE_CHECKSUM, if one is damaged.
        """
        by_name: dict[str, list[bytes]] = {}
        for name, data in manifests:
            by_name.setdefault(name, []).append(data)
        logs = [read_manifest(data) for data in by_name.get(WAITING, ())]
        if not logs:
            return None
        newest = max(logs, key=lambda log: _age([call for part in log.owner[CALLS] for call in part["calls"]]))
        owner = newest.owner
        keys = pa.schema([newest.rows.field(f"key_{index}") for index in range(len(owner["keys"]))])
        layout = QueryLayout(keys, tuple(name for name, _ in owner["keys"]), pa.schema([]), (), has_kinds=False)
        parts = [
            _part_of(name, part["frame"], [Manifest.decode(data) for data in by_name[name]])
            for index, part in enumerate(owner[CALLS])
            if (name := f"{GROUPS} {index}") in by_name
        ]
        return cls(layout, owner["buckets"], tuple(parts))

    @property
    def states(self) -> list[pa.DataType]:
        """The types of the states of all parts."""
        return [field.type for part in self.parts for field in part.layout.states]

    def groups(self, storages: Callable[[str], Storage]) -> list[pa.Array]:
        """Return the groups of one bucket, in columns: the keys, the number of rows that wait, and the states.

        Args:
            storages: Returns the storage of a name.

        Raises:
            CorruptError: STATE_CHECKSUM, INVARIANT.
        """
        groups = Groups(self.layout)
        waiting_schema = self._waiting(groups, storages(WAITING))
        states_by_part = [_states_of(groups, part, storages(part.name)) for part in self.parts]
        count = len(groups)
        columns = list(groups.keys(np.arange(count, dtype=np.int32)).columns)
        columns.append(pa.array(np.append(waiting_schema, np.zeros(count - len(waiting_schema), np.int64))))
        for slots, states in states_by_part:
            indexes = np.full(count, -1, np.int64)
            indexes[slots] = np.arange(len(slots))
            columns += [state.take(pa.array(indexes, mask=indexes < 0)) for state in states]
        return columns

    def _waiting(self, groups: Groups, storage: Storage) -> Any:
        """Return the number of rows that wait for each group."""
        counts = np.zeros(len(groups), np.int64)
        manifest = storage.store.manifest()
        if manifest is None:
            return counts
        log = TimeLog(read_manifest(manifest).rows, storage)
        while (until := log.reach(_LATEST)) is not None:
            slots = groups.slots(log.take(until))
            counts = np.append(counts, np.zeros(len(groups) - len(counts), np.int64))
            counts += np.bincount(slots, minlength=len(counts))
        return counts


def _part_of(name: str, window_frame: str, manifests: Sequence[Manifest]) -> _Part:
    layout = max((manifest.layout for manifest in manifests), key=lambda each: _age(calls_of(each.states)))
    outputs = layout.names[len(layout.keys) :]
    if len(outputs) > len(layout.states):  # ROWS frames keep rows, which all calls share
        layout = replace(layout, names=(*layout.names[: len(layout.keys)], ", ".join(outputs)))
    layout = with_older(layout, [states for manifest in manifests for states in manifest.generations.values()])
    calls = tuple(
        f"{call['function']} v{call['version']}, {window_frame}" if call["version"] else f"last rows, {window_frame}"
        for call in calls_of(layout.states)
    )
    return _Part(name, layout, layout.names[len(layout.keys) :], calls)


def _age(calls: Iterable[Mapping[str, str]]) -> list[list[str | int]]:
    """Return a value that is greater for later versions of calls: 10 is later than 9."""
    # Every second part of a split text is a number, so parts at the same index can be compared.
    split = [re.split("([0-9]+)", call["version"]) for call in calls]
    return [[int(part) if index % 2 else part for index, part in enumerate(parts)] for parts in split]


def _states_of(groups: Groups, part: _Part, storage: Storage) -> tuple[Any, list[pa.Array]]:
    """Return the slots of the groups in a table, and their states."""
    slots, parts = [np.zeros(0, np.int32)], [pa.RecordBatch.from_pylist([], part.layout.states)]
    if storage.store.manifest() is not None:
        table = StateTable(part.layout, storage, conversion=VersionColumns(part.layout))
        for rows in table.scan():
            slots.append(groups.slots(rows))
            columns = [rows.column(field.name).cast(field.type) for field in part.layout.states]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=part.layout.states))
    states = pa.Table.from_batches(parts, schema=part.layout.states)
    return np.concatenate(slots), [one_array(column) for column in states.columns]


def sizes_of(name: str, data: bytes) -> dict[str, int]:
    """Return the size of a table or log by its name and manifest: runs, rows and bytes, and the rows of logs by kind.

    Raises:
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """
    if is_time_log(data):
        log = read_manifest(data)
        is_waiting_log, is_window_frame_log = name == WAITING, name.startswith(WINDOW_FRAMES)
        rows = {
            "waiting_rows": log.waiting * is_waiting_log,
            "framed_rows": log.waiting * is_window_frame_log,
        }
        return {"runs": log.pieces, "rows": log.row_count, "bytes": log.bytes, **rows}
    pieces = Manifest.decode(data).pieces
    sums = {"rows": sum(piece.rows for piece in pieces), "bytes": sum(piece.bytes for piece in pieces)}
    return {"runs": len(pieces), **sums, "waiting_rows": 0, "framed_rows": 0}
