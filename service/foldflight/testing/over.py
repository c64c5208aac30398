"""Run functions over the window frames of OVER, in a batch or a stream, but without Spark or a server."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from foldflight.client import Aggregate, Transport
from foldflight.client.functions import OrderKey
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.over.bucket import OverBucket, StreamFolds
from foldflight.engine.over.over_query import FramedCall, OverLayout, OverQuery
from foldflight.engine.over.over_stream import StreamedOver
from foldflight.engine.over.positions import distance_of, end_type
from foldflight.engine.over.window_frame_folds import OverFold
from foldflight.engine.state.manifest import Storage, TableBounds
from foldflight.engine.state.table import MemoryStore
from foldflight.errors import RejectedError
from foldflight.functions.query.call import Order
from foldflight.functions.query.frame import WindowFrame, interval_of
from foldflight.functions.types.arrow import to_pylist
from foldflight.functions.types.sql import sql_name
from foldflight.testing.epochs import (
    add_conditions,
    add_constants,
    calls_of,
    check_calls,
    column_of,
    name_in_chunks,
    types_of,
    values_of,
)


def run_over(
    aggregates: Mapping[str, Aggregate],
    rows: Iterable[Mapping[str, Any]],
    *,
    keys: Sequence[str] = (),
    order_by: Sequence[str] = (),
    types: Mapping[str, str | pa.DataType] | None = None,
) -> list[dict[str, Any]]:
    """Compute calls over the window frame of each row, as `over(df, *keys, order_by=order_by).agg(...)` does in Spark.

    Args:
        aggregates: The calls by output name, all from one `connect`. Their columns and conditions are names of columns;
            a condition may also be a Python function of the row.
        rows: The rows: column to value.
        keys: The columns of the partition. Without any there is one partition.
        order_by: The columns of the order. A text may end with ASC or DESC, and with NULLS FIRST or NULLS LAST.
        types: Types of columns. Default: the types that the functions declare, or the types of the values.

    Returns:
        The rows with their outputs, in the order in which they were given.

    Raises:
        FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with function and group.
        RejectedError: SIGNATURE, SCHEMA_MISMATCH, CANNOT_RETRACT or CANNOT_MERGE, as for `over`. Intervals of months
            and years are refused here, because Spark computes them.

    >>> from foldflight import connect
    >>> from foldflight.testing import run_over
    >>> functions = connect("embedded:")
    >>> rows = run_over(
    ...     {"last_two": functions["sum"]("amount").rows(-1, 0), "all": functions["count"]().rows(None, None)},
    ...     [{"customer": "ann", "day": 2, "amount": 5}, {"customer": "ann", "day": 1, "amount": 3}],
    ...     keys=["customer"],
    ...     order_by=["day"],
    ... )
    >>> for row in rows:
    ...     print(row)
    {'customer': 'ann', 'day': 2, 'amount': 5, 'last_two': 8, 'all': 2}
    {'customer': 'ann', 'day': 1, 'amount': 3, 'last_two': 3, 'all': 2}
    """
    input_rows = [values_of(row) for row in rows]
    resolution = ResolvedQuery.of(
        aggregates, input_rows, keys=keys, order_by=order_by, types=types or {}, has_ends=True
    )
    query = OverQuery.of(resolution.transport, resolution.calls, resolution.layout)
    outputs: list[dict[str, Any]] = [{} for _ in input_rows]
    for block in OverFold(query)([resolution.sorted_rows()]):
        for index, output in outputs_by_row(block):
            outputs[index] = output
    return [{**row, **output} for row, output in zip(input_rows, outputs, strict=True)]


class ResolvedQuery(NamedTuple):
    """An OVER query over literal rows.

    Args:
        transport: The connection to the functions.
        calls: The calls by output name.
        layout: The columns. The payload is the number of each row.
        order: The order.
        rows: The rows in the schema of the layout.
    """

    transport: Transport
    calls: dict[str, FramedCall]
    layout: OverLayout
    order: list[OrderKey]
    rows: pa.RecordBatch

    @classmethod
    def of(
        cls,
        aggregates: Mapping[str, Aggregate],
        input_rows: Sequence[Mapping[str, Any]],
        *,
        keys: Sequence[str],
        order_by: Sequence[str],
        types: Mapping[str, str | pa.DataType],
        has_ends: bool,
    ) -> ResolvedQuery:
        """Resolve the columns of calls as `run_over` does, and compute the ends of RANGE frames if `has_ends`."""
        check_calls(aggregates, keys=keys, order_by=order_by)
        extended_rows = [dict(row) for row in input_rows]
        add_constants(aggregates, extended_rows)
        add_conditions(aggregates, extended_rows)
        calls, names = calls_of(aggregates)
        order = [OrderKey.of(text) for text in order_by]
        types_by_column = types_of(
            [*keys, *(str(each.column) for each in order), *names], extended_rows, aggregates, types
        )
        window_frames = {
            name: each.frame or WindowFrame.default(has_order=bool(order)) for name, each in aggregates.items()
        }
        if has_ends:
            framed_calls, ends = _with_frames(calls, window_frames, order, types_by_column, extended_rows)
        else:
            framed_calls, ends = {name: FramedCall(call, window_frames[name]) for name, call in calls.items()}, {}
        layout = OverLayout(
            payload=pa.schema([("in_0", pa.int64())]),
            names=("row" + "_" * max(map(len, aggregates)),),  # longer than the name of any output
            keys=pa.schema([(f"key_{index}", types_by_column[name]) for index, name in enumerate(keys)]),
            key_names=tuple(keys),
            order=pa.schema(
                [(f"order_{index}", types_by_column[str(each.column)]) for index, each in enumerate(order)]
            ),
            order_names=tuple(order_by),
            columns=pa.schema([(f"column_{index}", types_by_column[name]) for index, name in enumerate(names)]),
            display_names=tuple(map(name_in_chunks, names)),
            bounds=pa.schema([(name, array.type) for name, array in ends.items()]),
            descending=bool(order) and order[0].descending,
            nulls_first=not order or order[0].nulls_first,
        )
        columns = [pa.array(range(len(input_rows)), pa.int64())]
        column_names = (*keys, *(str(each.column) for each in order), *names)
        columns += [
            column_of(name, [row[name] for row in extended_rows], types_by_column[name]) for name in column_names
        ]
        batch = pa.RecordBatch.from_arrays([*columns, *ends.values()], schema=layout.rows)
        # Functions arrive pickled in Spark's workers.
        transport = pickle.loads(pickle.dumps(next(iter(aggregates.values())).transport))  # noqa: S301 - made here
        return cls(transport, framed_calls, layout, order, batch)

    def sorted_rows(self) -> pa.RecordBatch:
        """Return the rows by key and order."""
        return self.rows.take(_sort_positions(self.rows, self.layout, self.order))


def outputs_by_row(block: pa.RecordBatch) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the outputs of each row of a result."""
    outputs = to_pylist(block.select(block.schema.names[1:]))
    return zip(block.column(0).to_pylist(), outputs, strict=True)


def _sort_positions(batch: pa.RecordBatch, layout: OverLayout, order: Sequence[OrderKey]) -> pa.Array:
    """Return the positions of rows by key and order."""
    indexes = list(range(batch.num_rows))
    for index, each in reversed(list(enumerate(order))):
        values = batch.column(f"order_{index}").to_pylist()
        key = Order("", each.descending, each.nulls_first)
        sort_keys = [key.sort_key(value) for value in values]
        indexes.sort(key=sort_keys.__getitem__, reverse=each.descending)
    if len(layout.keys):
        slots = KeyIndex(layout.keys).slots([batch.column(name) for name in layout.keys.names]).to_numpy()
        indexes = np.array(indexes, np.int64)[np.argsort(slots[indexes], kind="stable")].tolist()
    return pa.array(indexes, pa.int64())


def _with_frames(
    calls: Mapping[str, Any],
    window_frames: Mapping[str, WindowFrame],
    order: Sequence[OrderKey],
    types: Mapping[str, pa.DataType],
    rows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, FramedCall], dict[str, pa.Array]]:
    """Return the calls with their window frames, and the columns of the ends of window frames."""
    ends: dict[str, pa.Array] = {}
    framed_calls = {}
    for name, call in calls.items():
        window_frame = window_frames[name]
        columns: list[str | None] = []
        if window_frame.has_offset and len(order) != 1:
            raise RejectedError(
                "SIGNATURE", f"the frame {window_frame} of {name} has a distance, so it needs one order column"
            )
        for side, bound in (("low", window_frame.low), ("high", window_frame.high)):
            if not window_frame.is_range or bound is None or bound == 0:
                columns.append(None)
                continue
            column = str(order[0].column)
            values = column_of(column, [row[column] for row in rows], types[column])
            end = f"{side}_{len(ends)}"
            columns.append(end)
            ends[end] = _move(values, bound, order[0])
        framed_calls[name] = FramedCall(call, window_frame, *columns)
    return framed_calls, ends


def _move(values: pa.Array, bound: Any, order: OrderKey) -> pa.Array:
    """Return the order values at a distance. Raises RejectedError SIGNATURE and SCHEMA_MISMATCH, as in Spark."""
    name, kind = str(order.column), sql_name(values.type)
    distance: Any = distance_of(values.type, bound, order=name, type_name=kind)
    if isinstance(distance, str):
        interval = interval_of(distance)
        if interval is None or interval.months:
            raise RejectedError(
                "SIGNATURE", f"without Spark, an interval is like '-1 hour' or '7 days', and not {bound!r}"
            )
        if interval.microseconds and pa.types.is_date(values.type):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the order {name!r} is {kind}, and at the distance {bound!r} it is TIMESTAMP; order by a TIMESTAMP",
            )
        distance = datetime.timedelta(days=interval.days, microseconds=interval.microseconds)
    try:
        moved_values = [
            None if value is None else value - distance if order.descending else value + distance
            for value in values.to_pylist()
        ]
        return pa.array(moved_values, end_type(values.type))
    except (OverflowError, pa.ArrowInvalid) as error:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the order {name!r} at the distance {bound!r} does not fit {kind}: {error}"
        ) from None


_SMALLEST_US = -(1 << 62)


@dataclass(frozen=True)
class OverEpoch:
    """The result of one epoch.

    Args:
        rows: The rows that came out, with their outputs: for each key in the order of the query.
        late_rows: The number of rows that were dropped, because the watermark had reached their time.
        waiting_rows: The number of rows that wait after the epoch.

    >>> from datetime import datetime
    >>> from foldflight import connect
    >>> from foldflight.testing import run_over_epochs
    >>> rows = [{"at": datetime(2026, 1, 1, 12, minute), "v": 1} for minute in (0, 5, 9)]
    >>> (epoch,) = run_over_epochs({"n": connect("embedded:")["count"]()}, [rows], order_by=["at"], delay_s=60)
    >>> [row["n"] for row in epoch.rows], epoch.waiting_rows
    ([1, 2], 1)
    """

    rows: list[dict[str, Any]]
    late_rows: int
    waiting_rows: int


def run_over_epochs(
    aggregates: Mapping[str, Aggregate],
    epochs: Iterable[Iterable[Mapping[str, Any]]],
    *,
    keys: Sequence[str] = (),
    order_by: Sequence[str],
    delay_s: float = 0,
    idle: str | None = None,
    types: Mapping[str, str | pa.DataType] | None = None,
    bounds: TableBounds | None = None,
) -> list[OverEpoch]:
    """Compute calls over the frame of each row of a stream, as `over` does in Spark.

    The watermark is the latest time of the rows that have arrived, less the delay. The rows that are due come out at
    the end of the epoch in which it reaches their time. A row is late if it had reached its time in an earlier epoch.

    Args:
        aggregates: As for `run_over`.
        epochs: The rows of each epoch: column to value.
        keys: As for `run_over`.
        order_by: As for `run_over`. The first column is the time, a timestamp.
        delay_s: The delay of the watermark, in seconds.
        idle: As for `over`: the time without a row after which a group is forgotten.
        types: As for `run_over`.
        bounds: The limits of stored pieces and merges.

    Returns:
        The result of each epoch.

    Raises:
        FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with function and group.
        RejectedError: SIGNATURE, SCHEMA_MISMATCH, LIMIT, CANNOT_RETRACT or CANNOT_MERGE, as for `over`.

    >>> from datetime import datetime
    >>> from foldflight import connect
    >>> from foldflight.testing import run_over_epochs
    >>> functions = connect("embedded:")
    >>> first, second = run_over_epochs(
    ...     {"last_two": functions["sum"]("amount").rows(-1, 0)},
    ...     [
    ...         [{"at": datetime(2013, 1, 1, 12, 5), "amount": 5}, {"at": datetime(2013, 1, 1, 12, 1), "amount": 3}],
    ...         [{"at": datetime(2013, 1, 1, 12, 9), "amount": 7}, {"at": datetime(2013, 1, 1, 12, 2), "amount": 1}],
    ...     ],
    ...     order_by=["at"],
    ...     delay_s=60,
    ... )
    >>> [(row["amount"], row["last_two"]) for row in first.rows], first.waiting_rows
    ([(3, 3)], 1)
    >>> [(row["amount"], row["last_two"]) for row in second.rows], second.late_rows
    ([(5, 8)], 1)
    """
    arriving = [[values_of(row) for row in epoch] for epoch in epochs]
    input_rows = [row for epoch in arriving for row in epoch]
    resolution = ResolvedQuery.of(
        aggregates, input_rows, keys=keys, order_by=order_by, types=types or {}, has_ends=False
    )
    order = resolution.order
    if not order or order[0].descending or not pa.types.is_timestamp(resolution.layout.order.field(0).type):
        raise RejectedError(
            "SIGNATURE", "the first column of order_by is the time of the stream: a timestamp, ascending"
        )
    ties = tuple(
        Order(name, each.descending, each.nulls_first)
        for name, each in zip(resolution.layout.order.names[1:], order[1:], strict=True)
    )
    over = StreamedOver.of(resolution.transport, resolution.calls, resolution.layout, ties=ties, idle=idle)
    return _run(over, resolution.rows, arriving, {}, bounds or TableBounds(), delay_s)


def _run(
    over: StreamedOver,
    rows: pa.RecordBatch,
    arriving: list[list[dict[str, Any]]],
    stores: dict[str, MemoryStore],
    bounds: TableBounds,
    delay_s: float,
) -> list[OverEpoch]:
    input_rows = [row for epoch in arriving for row in epoch]
    latest, watermark_us, start = _SMALLEST_US, _SMALLEST_US, 0
    results = []
    for epoch in arriving:
        block = rows.slice(start, len(epoch))
        start += len(epoch)
        # Each epoch opens everything again, as a restarted stream does.
        with StreamFolds(over) as folds:
            bucket = OverBucket(folds, lambda name: Storage(stores.setdefault(name, MemoryStore()), bounds=bounds))
            bucket.arrive([block], watermark_us)
            latest = max([latest, *block.column(over.time).view(pa.int64()).to_pylist()])
            watermark_us = max(watermark_us, latest - round(delay_s * 1_000_000))
            outputs = [
                {**input_rows[index], **output}
                for batch in bucket.outputs(watermark_us)
                for index, output in outputs_by_row(batch)
            ]
        results.append(OverEpoch(outputs, bucket.stats.late_rows, bucket.stats.waiting_rows))
    return results
