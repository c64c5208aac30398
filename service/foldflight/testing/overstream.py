"""Run functions over the frames of an OVER window in a stream, with the engine of this package but without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from foldflight.client import Aggregate
from foldflight.engine.over.bucket import OverBucket, StreamFolds
from foldflight.engine.over.stream import StreamedOver
from foldflight.engine.state.manifest import TableBounds
from foldflight.engine.state.storage import Storage
from foldflight.engine.state.table import MemoryStore
from foldflight.errors import RejectedError
from foldflight.functions.query.call import Order
from foldflight.testing.epochs import values_of
from foldflight.testing.over import Resolved, outputs_by_row

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
    given = [row for epoch in arriving for row in epoch]
    resolved = Resolved.of(aggregates, given, keys=keys, order_by=order_by, types=types or {}, has_ends=False)
    order = resolved.order
    if not order or order[0].descending or not pa.types.is_timestamp(resolved.layout.order.field(0).type):
        raise RejectedError(
            "SIGNATURE", "the first column of order_by is the time of the stream: a timestamp, ascending"
        )
    ties = tuple(
        Order(name, each.descending, each.nulls_first)
        for name, each in zip(resolved.layout.order.names[1:], order[1:], strict=True)
    )
    over = StreamedOver.of(resolved.transport, resolved.calls, resolved.layout, ties=ties, idle=idle)
    return _run(over, resolved.rows, arriving, {}, bounds or TableBounds(), delay_s)


def _run(
    over: StreamedOver,
    rows: pa.RecordBatch,
    arriving: list[list[dict[str, Any]]],
    stores: dict[str, MemoryStore],
    bounds: TableBounds,
    delay_s: float,
) -> list[OverEpoch]:
    given = [row for epoch in arriving for row in epoch]
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
                {**given[index], **output}
                for batch in bucket.outputs(watermark_us)
                for index, output in outputs_by_row(batch)
            ]
        results.append(OverEpoch(outputs, bucket.stats.late_rows, bucket.stats.waiting_rows))
    return results
