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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa

from foldflight.client import Transport
from foldflight.engine.over.query import Framed, OverLayout, OverQuery, Part, Way
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import ARROW, HostTypes, refuse_views
from foldflight.engine.state.manifest import calls_of, other_query
from foldflight.engine.state.timelog import TIME
from foldflight.errors import RejectedError
from foldflight.functions.query.call import Order
from foldflight.functions.query.frame import Interval, WindowFrame, interval_of

_FRAME_ROWS_MAX: Final = 10_000
"""Rows before the current one that ROWS may have. The last rows of each touched group are written in each epoch."""

_DAY_US: Final = 86_400_000_000
_DISTANCE_US_MAX: Final = 10_000_000 * _DAY_US
"""The longest distance of RANGE. With it, times are far within 64 bits."""

WAITING: Final = "waiting"
"""The name of the log of the rows that wait, whose owner describes the query."""

GROUPS: Final = "groups"
"""The first word of the names of the state tables of frames. The number of the frame follows."""

FRAMES: Final = "frames"
"""The first word of the names of the logs of the rows in RANGE frames. The number of the frame follows."""

CALLS: Final = "calls and frames"
"""The entry of this owner that has the frames with their calls."""

_LAST_TIMES: Final = "times of last rows (idle)"
_NOT_STORED: Final = "not kept"


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
        for index, order in enumerate(ties, 1):
            if pa.types.is_nested(layout.order.field(order.column).type):
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"the order {layout.order_names[index]} is {layout.order.field(order.column).type}; in a stream "
                    "rows of equal time are ordered by numbers, texts, times and booleans only",
                )
        if idle is not None:
            ttl_us_of(idle)
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
            # Waiting rows have all columns by their positions, so these may not change.
            "input columns": [
                [name, str(field.type)] for name, field in zip(layout.names, layout.payload, strict=True)
            ],
            "buckets": self.buckets,
            CALLS: [{"frame": str(each.frame), "calls": calls_of(each.layout.states)} for each in self.frames],
            _LAST_TIMES: _NOT_STORED if self.ttl_us is None else "kept",
        }

    @property
    def frames(self) -> list[FrameCalls]:
        """The calls of each frame."""
        by_frame: dict[WindowFrame, list[Part]] = {}
        for part in self.query.parts:
            by_frame.setdefault(part.frame, []).append(part)
        return [FrameCalls.of(self.query, parts) for parts in by_frame.values()]

    @property
    def ttl_us(self) -> int | None:
        """The time without a row after which a group is forgotten; None if no group is, or none would stay."""
        stay = any(stays(part.frame) for part in self.query.parts)
        return ttl_us_of(self.idle) if self.idle is not None and stay else None

    def check_owner(self, stored: Mapping[str, Any]) -> None:
        """Check that the query can continue with a state. The state tables check the versions of functions.

        Args:
            stored: What the state belongs to: the `owner` of the query that wrote it.

        Raises:
            RejectedError: STATE_MISMATCH.
        """
        for what, ours in json.loads(json.dumps(self.owner)).items():
            theirs = stored.get(what, _NOT_STORED)
            if what == CALLS and theirs != _NOT_STORED:
                self._check_calls(theirs, ours)
            elif theirs != ours:
                raise other_query(what, theirs, ours)

    def _check_calls(self, stored: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> None:
        """Refuse other calls and frames. Older checkpoints also have the ways of folding, which may differ."""

        def fixed(frames: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
            return [(each["frame"], [call["function"] for call in each["calls"]]) for each in frames]

        if fixed(stored) != fixed(ours):
            raise other_query(CALLS, _frames_text(stored), _frames_text(ours))
        for frame, before, now in zip(self.frames, stored, ours, strict=True):
            if frame.has_accumulators:
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
        """Return a description of the query, as `OverQuery.explain` does, with what the stream keeps for each frame."""
        time = self.query.layout.order_names[0]
        lines = [f"stream: {line}" if not index else line for index, line in enumerate(self.query.described())]
        lines.append("plan: rows > shuffle by bucket > wait for the watermark > fold frames > rows with outputs")
        lines.append(
            f"  a row comes out when the watermark has reached its {time}, for each key in this order; a row that "
            "arrives after that is dropped and counted in late_rows"
        )
        lines.append(f"state in {self.buckets} buckets: the rows that wait, by time; and for")
        until = "for ever" if self.idle is None else f"until it has had no row for {self.idle}"
        named = ((", ".join(each.layout.outputs.names), each.frame) for each in self.frames)
        lines += [f"  {names}: {_stored_text(frame, until)}" for names, frame in named]
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
    def has_accumulators(self) -> bool:
        """Whether accumulators are kept for each group, rather than rows only."""
        return self.frame.low is None or self.frame.has_offset

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


def _frames_text(frames: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{call['function']} over {each['frame']}" for each in frames for call in each["calls"])


def ttl_us_of(idle: str) -> int:
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


def stays(frame: WindowFrame) -> bool:
    """Whether groups of this frame stay when their rows have been folded."""
    return frame.low is None or preceding_rows(frame) > 0


def _stored_text(frame: WindowFrame, until: str) -> str:
    if frame.low is None:
        return f"the accumulators of each group, {until}"
    if frame.has_offset:
        return "the accumulators of each group with rows in its frame, and the arguments of these rows, by time"
    if (count := preceding_rows(frame)) == 0:
        return "nothing, as rows of equal time come out together"
    rows = "row" if count == 1 else f"{count:,} rows"
    return f"the arguments of the last {rows} of each group, {until}"


def distance_us(frame: WindowFrame) -> int | None:
    """Return the length of RANGE frames before the current row, in microseconds; None for other frames."""
    if not frame.has_offset:
        return None
    interval = interval_of(str(frame.low))
    assert interval is not None
    return -_length_us(interval)


def _length_us(interval: Interval) -> int:
    """Return the length of an interval without months, in microseconds."""
    return interval.days * _DAY_US + interval.microseconds


def preceding_rows(frame: WindowFrame) -> int:
    """Return how many rows before the current one a ROWS frame may have."""
    return -frame.low if isinstance(frame.low, int) and not frame.is_range else 0
