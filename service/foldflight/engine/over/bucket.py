"""The buckets of an OVER stream: rows arrive, wait for the watermark, and go through the folds of all window frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.engine.keys.grouped import Clock, Groups
from foldflight.engine.keys.index import KeyIndex, key_values
from foldflight.engine.over.accumulating import AccumulatorFold
from foldflight.engine.over.lastrows import RowsFold
from foldflight.engine.over.positions import Positions, codes_of
from foldflight.engine.over.statettl import StateTtl, remove, ttl_log, ttl_table
from foldflight.engine.over.steps import CallsFold, Step, WindowFrameStores
from foldflight.engine.over.stream import (
    GROUPS,
    WAITING,
    WINDOW_FRAMES,
    StreamedOver,
    distance_us,
    stays,
)
from foldflight.engine.state.manifest import TableLayout
from foldflight.engine.state.storage import Storage
from foldflight.engine.state.table import Conversion, StateTable
from foldflight.engine.state.timelog import TIME, TimeLog
from foldflight.engine.stream.epoch import EpochStats
from foldflight.errors import RejectedError
from foldflight.functions.query.call import Order

_PIECE_ROWS: Final = 1 << 16
"""Rows of a piece of a time log. A step has a piece of each run in memory, so pieces are smaller than blocks."""

_TTL_GROUPS: Final = "idle groups"
_TTL_TIMES: Final = "idle times"


class StreamFolds(ExitStack):
    """The folds of all window frames of a query, for all buckets of a task; a context manager.

    Args:
        over: The query.
        clock: Returns the time in seconds, to measure the time in exchanges with accumulators. Default: no measuring.
    """

    def __init__(self, over: StreamedOver, *, clock: Clock = lambda: 0.0) -> None:
        super().__init__()
        self.over = over
        self.window_frames: list[CallsFold] = []
        for calls in over.window_frames:
            if calls.has_accumulators:
                (part,) = calls.parts
                fold: CallsFold = AccumulatorFold(part, over.buckets, clock)
            else:
                fold = RowsFold(calls, over.buckets, over.query.bounds)
            self.window_frames.append(self.enter_context(fold))

    @property
    def elapsed_s(self) -> float:
        """Seconds spent in exchanges with accumulators so far."""
        return sum(fold.exchange.elapsed_s for fold in self.window_frames if isinstance(fold, AccumulatorFold))


class OverBucket:
    """The rows and groups of one bucket.

    Args:
        folds: The folds of the window frames.
        storages: Returns the storage of a name.

    Attributes:
        stats: The metrics since it was created.

    Raises:
        RejectedError: STATE_MISMATCH, if the storage belongs to another query.
        CorruptError: STATE_CHECKSUM, if the storage is damaged.
    """

    def __init__(
        self,
        folds: StreamFolds,
        storages: Callable[[str], Storage],
    ) -> None:
        over = folds.over
        self.stats = EpochStats(buckets=1)
        self._folds = folds
        self._over = over

        def log(name: str, rows: pa.Schema, **owner: Any) -> TimeLog:
            storage = storages(name)
            bounds = replace(storage.bounds, piece_rows_max=min(storage.bounds.piece_rows_max, _PIECE_ROWS))
            return TimeLog(rows, replace(storage, bounds=bounds), **owner)

        def table(name: str, layout: TableLayout, conversion: Conversion | None = None) -> StateTable:
            return StateTable(layout, storages(name), conversion=conversion)

        self._waiting = log(WAITING, over.waiting, owner=over.owner, check=over.check_owner)
        self._stores = [
            WindowFrameStores(
                None if fold.table is None else table(f"{GROUPS} {index}", fold.table, fold.conversion),
                None if fold.log is None else log(f"{WINDOW_FRAMES} {index}", fold.log),
            )
            for index, fold in enumerate(folds.window_frames)
        ]
        layout = over.query.parts[0].query.layout
        self._ttl = None
        if over.ttl_us is not None:
            last = table(_TTL_GROUPS, ttl_table(layout, over.buckets))
            self._ttl = StateTtl(over.ttl_us, last, log(_TTL_TIMES, ttl_log(layout)))
        self._count()

    @property
    def next_us(self) -> int | None:
        """The watermark at which the next row is due or leaves a window frame, or a group is idle; None: never.

        In microseconds since 1970.
        """
        times = [self._waiting.first]
        for log, distance in self._logs():
            first = log.first
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
                name = self._over.query.layout.order_names[0]
                raise RejectedError("SCHEMA_MISMATCH", f"the order {name} is NULL; leave such rows out")
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
        """Yield the rows that are due with their outputs, and store the rows that are kept. Take all of them.

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
        """Yield the logs of window frames with their distances, and the log of idle groups."""
        for fold, stores in zip(self._folds.window_frames, self._stores, strict=True):
            distance = distance_us(fold.window_frame)
            if stores.log is not None and distance is not None:
                yield stores.log, distance
        if self._ttl is not None:
            yield self._ttl.log, self._ttl.ttl_us

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
        ranks = [ranks_of(due.column(order.column), order) for order in over.ties]
        order = np.lexsort((*reversed(ranks), times, slots))
        rows, slots, times = due.take(pa.array(order)), slots[order], times[order]
        changes = np.zeros(len(order), np.bool_)
        for values in (slots, times, *(rank[order] for rank in ranks)):
            changes[1:] |= values[1:] != values[:-1]
        anew = np.zeros(len(order), np.bool_) if self._ttl is None else self._ttl.arrive(groups, slots, times)
        step = Step(rows, groups, slots, times, np.cumsum(changes), anew, until)
        columns: dict[str, pa.Array] = {}
        for fold, stores in zip(self._folds.window_frames, self._stores, strict=True):
            columns |= zip(fold.layout.outputs.names, fold.outputs(step, stores), strict=True)
        self.stats.rows += rows.num_rows
        self.stats.groups += len(groups)
        if self._ttl is not None:
            gone, hashes = self._ttl.leave(groups, until)
            for fold, stores in zip(self._folds.window_frames, self._stores, strict=True):
                if stores.table is not None and stays(fold.window_frame):
                    remove(stores.table, gone, hashes)
        payload = [rows.column(name) for name in over.query.layout.payload.names]
        outputs = [columns[name] for name in over.query.outputs.names]
        return pa.RecordBatch.from_arrays([*payload, *outputs], schema=over.query.results)

    def _count(self) -> None:
        tables = [each.table for each in self._stores if each.table is not None]
        if self._ttl is not None:
            tables.append(self._ttl.table)
        stores: list[TimeLog | StateTable] = [self._waiting, *(log for log, _ in self._logs()), *tables]
        self.stats.waiting_rows = len(self._waiting)
        self.stats.runs = sum(store.pieces for store in stores)
        self.stats.state_bytes = sum(store.stored_bytes for store in stores)


def ranks_of(column: pa.Array, order: Order) -> Positions:
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
    keys = list(map(order.sort_key, key_values(index.keys().column(0))))
    indexes = sorted(range(len(keys)), key=keys.__getitem__, reverse=order.descending)
    ranks = np.zeros(len(keys), np.int64)
    ranks[indexes] = np.arange(len(keys))
    return ranks[slots]


def _has_codes(type_: pa.DataType) -> bool:
    """Whether values of a type are ordered by their codes, which is faster than by Python values."""
    kinds = pa.types
    return (
        kinds.is_signed_integer(type_) or kinds.is_floating(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_)
    )
