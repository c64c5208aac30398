"""The buckets of an OVER stream: rows arrive, wait for the watermark, and go through the folds of all window frames.

A `Step` has due rows. `RowsFold` keeps the last rows of each group, for ROWS frames with a beginning; accumulators are
kept (`AccumulatorFold`) for growing window frames and for window frames by RANGE.

With a state TTL a group is forgotten when it has had no row for a given time. A bucket keeps the time of the last row
of each group in a state table, and in a time log an entry for each change. When the watermark has passed an entry by
the given time, the group is looked up: it is forgotten if it has had no row since. So each change costs one entry and
one lookup later, and groups without rows cost nothing.

A row that comes more than the given time after the last row of its group begins the group anew, whether the group has
been forgotten by then or not. Therefore the results do not depend on epochs and on the progress of the watermark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.group_exchange import Clock, GroupedExchange, Groups
from foldflight.engine.keys.hashes import Hashes
from foldflight.engine.keys.index import KeyIndex, key_values
from foldflight.engine.over.over_query import Part
from foldflight.engine.over.over_stream import (
    GROUPS,
    WAITING,
    WINDOW_FRAMES,
    StreamedOver,
    WindowFrameCalls,
    distance_us,
    preceding_rows,
    stays,
)
from foldflight.engine.over.partitions import Store
from foldflight.engine.over.positions import OrderOf, Positions, codes_of, positions_of
from foldflight.engine.over.window_frame_folds import fold_of
from foldflight.engine.query.blocks import AdaptiveSize, BlockBounds, one_batch
from foldflight.engine.query.layout import KIND, REAL, SLOT, QueryLayout
from foldflight.engine.state.manifest import Storage, TableLayout
from foldflight.engine.state.migration import Migration
from foldflight.engine.state.table import Conversion, StateTable
from foldflight.engine.state.timelog import TIME, TimeLog
from foldflight.engine.stream.epoch import EpochStats
from foldflight.errors import RejectedError
from foldflight.functions import RowKind
from foldflight.functions.query.call import Order
from foldflight.functions.query.frame import WindowFrame
from foldflight.functions.types.arrow import concat_batches, one_array, with_column

LAST_TIME: Final = "state_0"
"""The column of the time of the last row of each group, in microseconds since 1970."""


def ttl_table(layout: QueryLayout, buckets: int) -> TableLayout:
    """Return the layout of the table of last times."""
    metadata = {"function": "last row", "version": "", "fingerprint": ""}
    states = pa.schema([pa.field(LAST_TIME, pa.int64(), metadata=metadata)])
    return TableLayout(layout.keys, states, buckets, window="over idle groups", names=(*layout.names, "last row"))


def ttl_log(layout: QueryLayout) -> pa.Schema:
    """Return the rows of the log: the time of a last row, and the key of its group."""
    return pa.schema([pa.field(TIME, pa.int64()), *layout.keys])


class StateTtl:
    """The groups of one bucket by the times of their last rows.

    Args:
        ttl_us: A group is forgotten when it has had no row for longer than this, in microseconds.
        table: The last times.
        log: Their changes.
    """

    def __init__(self, ttl_us: int, table: StateTable, log: TimeLog) -> None:
        self.ttl_us = ttl_us
        self.table = table
        self.log = log

    def arrive(self, groups: Groups, slots: npt.NDArray[np.int32], times: Positions) -> npt.NDArray[np.bool_]:
        """Store the times of n rows, and return which of them begin their group anew.

        Args:
            groups: The groups.
            slots: int32, shape (n,): the group of each row. Rows of a group are adjacent.
            times: int64, shape (n,): ascending within each group, and not before the stored times.
        """
        if not len(slots):
            return np.zeros(0, np.bool_)
        firsts = np.flatnonzero(np.diff(slots, prepend=-1))
        lasts = np.append(firsts[1:], len(slots)) - 1
        keys = groups.keys(slots[firsts])
        hashes = groups.stored_hashes(slots[firsts])
        lookup = self.table.lookup(keys, hashes)
        before = np.append(times[:1], times[:-1])
        stored_times = lookup.states.column(LAST_TIME).fill_null(0).to_numpy()
        before[firsts] = np.where(lookup.present, stored_times, times[firsts])
        ends = pa.array(times[lasts])
        states = pa.RecordBatch.from_arrays([ends], names=[LAST_TIME])
        self.table.commit(keys, np.ones(len(firsts), np.int64), states, hashes)
        entries = pa.RecordBatch.from_arrays([ends, *keys.columns], names=[TIME, *keys.schema.names])
        self.log.add(entries.take(pa.array(np.argsort(times[lasts], kind="stable"))))
        return times - before > self.ttl_us

    def leave(self, groups: Groups, until: int) -> tuple[pa.RecordBatch, Hashes]:
        """Remove the groups whose state TTL has ended, and return their keys and hashes.

        Args:
            groups: The groups; some may be added.
            until: All rows up to this time are stored.
        """
        limit = until - self.ttl_us
        entries = self.log.take(limit)
        slots = np.unique(groups.slots(entries))
        keys, hashes = groups.keys(slots), groups.stored_hashes(slots)
        lookup = self.table.lookup(keys, hashes)
        last = lookup.states.column(LAST_TIME).fill_null(0).to_numpy()
        expired_mask = lookup.present & (last <= limit)
        keys, hashes = keys.filter(pa.array(expired_mask)), hashes[expired_mask]
        remove(self.table, keys, hashes)
        return keys, hashes


def remove(table: StateTable, keys: pa.RecordBatch, hashes: Hashes) -> None:
    """Remove n groups with these keys and hashes from a table."""
    if keys.num_rows:
        nothing = [pa.nulls(keys.num_rows, field.type) for field in table.layout.states]
        states = pa.RecordBatch.from_arrays(nothing, names=table.layout.states.names)
        table.commit(keys, np.zeros(keys.num_rows, np.int64), states, hashes)


Slots = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Step(NamedTuple):
    """Due rows, sorted by group and then by the order.

    Args:
        rows: n rows.
        groups: The groups.
        slots: int32, shape (n,): the group of each row.
        times: int64, shape (n,).
        peers: int64, shape (n,): a number that is equal exactly for adjacent rows with equal key and order.
        anew: bool, shape (n,): whether the group of a row starts with empty state at this row, because it was idle.
        until: All rows up to this time are here or were in an earlier step.
    """

    rows: pa.RecordBatch
    groups: Groups
    slots: Slots
    times: Positions
    peers: Positions
    anew: Mask
    until: int

    def of_groups(self, begin: int, count: int) -> Step:
        """Return the rows from the position `begin` on of at most `count` groups. A group has adjacent rows."""
        firsts = np.flatnonzero(np.diff(self.slots[begin:], prepend=-1)) + begin
        end = int(firsts[count]) if count < len(firsts) else len(self.slots)
        part = slice(begin, end)
        return self._replace(
            rows=self.rows.slice(begin, end - begin),
            slots=self.slots[part],
            times=self.times[part],
            peers=self.peers[part],
            anew=self.anew[part],
        )


class WindowFrameStores(NamedTuple):
    """What a bucket stores for a window frame: groups, and rows that leave later."""

    table: StateTable | None
    log: TimeLog | None


class CallsFold(ExitStack, ABC):
    """Folds the calls of one window frame, for all buckets of a task; a context manager that closes its exchanges."""

    def __init__(self, window_frame: WindowFrame, layout: QueryLayout, buckets: int) -> None:
        super().__init__()
        self.window_frame = window_frame
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
        return TableLayout(
            self.layout.keys, self.states, self._buckets, window=f"over {self.window_frame}", names=names
        )

    @property
    def log(self) -> pa.Schema | None:
        """The rows that leave window frames later: their time, keys and arguments."""
        if distance_us(self.window_frame) is None:
            return None
        return pa.schema([pa.field(TIME, pa.int64()), *self.layout.keys, *self.layout.columns])

    @abstractmethod
    def outputs(self, step: Step, stores: WindowFrameStores) -> list[pa.Array]:
        """Fold the due rows, store the rows that later window frames need, and return the n outputs of each call.

        Raises:
            FunctionError: With function and group.
        """


def columns_of(rows: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return argument columns; a column of NULLs if there are none, because a batch needs one to have rows."""
    if names:
        return rows.select(names)
    return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows, pa.bool_())], names=[REAL])


_ROWS: Final = 1 << 15
"""Rows whose window frames are folded at once in ROWS frames."""

_LAST_ROWS: Final = "rows"


class RowsFold(CallsFold):
    """Keeps the last rows of each group, for ROWS frames. Window frames of the rows of one time keep nothing."""

    def __init__(self, calls: WindowFrameCalls, buckets: int, bounds: BlockBounds) -> None:
        super().__init__(calls.window_frame, calls.layout, buckets)
        self._folds = [(part.query.layout.outputs.names, self.enter_context(fold_of(part))) for part in calls.parts]
        self._adaptive_size = AdaptiveSize(min(_ROWS, bounds.rows_max), bounds.bytes_max)
        self._preceding_rows = preceding_rows(calls.window_frame)
        # The kept rows of some groups are in memory at once: at first of too few groups for a large block.
        first = max(bounds.rows_max // max(self._preceding_rows, 1), 1)
        self._adaptive_groups = AdaptiveSize(bounds.rows_max, bounds.bytes_max, first=first)

    @property
    def states(self) -> pa.Schema:
        if not self._preceding_rows:
            return pa.schema([])
        fields = list(self.layout.columns) or [pa.field(REAL, pa.bool_())]
        metadata = {"function": _LAST_ROWS, "version": "", "fingerprint": str(pa.struct(fields))}
        return pa.schema([pa.field("state_0", pa.list_(pa.struct(fields)), metadata=metadata)])

    def outputs(self, step: Step, stores: WindowFrameStores) -> list[pa.Array]:
        outputs = [[pa.nulls(0, field.type) for field in self.layout.outputs]]
        begin = 0
        while begin < len(step.slots):
            part = step if stores.table is None else step.of_groups(begin, self._adaptive_groups.items)
            outputs.append(self._fold(part, stores.table))
            begin += len(part.slots)
        return [pa.concat_arrays(list(columns)) for columns in zip(*outputs, strict=True)]

    def _fold(self, step: Step, table: StateTable | None) -> list[pa.Array]:
        """Return the outputs of the due rows of some groups, and store the last rows of these groups."""
        columns = columns_of(step.rows, self.layout.columns.names)
        rows, owners, anew, is_due = columns, step.slots, step.anew, np.ones(len(step.slots), np.bool_)
        touched_slots = np.unique(owners)
        keys = step.groups.keys(touched_slots)
        if table is not None:
            lists = table.lookup(keys, step.groups.stored_hashes(touched_slots)).states.column(0)
            before = pa.RecordBatch.from_arrays(lists.flatten().flatten(), schema=columns.schema)
            lengths = lists.value_lengths().fill_null(0).to_numpy()
            rows = concat_batches([before, columns])
            owners = np.concatenate([np.repeat(touched_slots, lengths), owners])
            is_due = np.arange(len(owners)) >= len(before)
            anew = np.concatenate([np.zeros(len(before), np.bool_), anew])
            order = np.argsort(owners, kind="stable")
            rows, owners, anew, is_due = rows.take(pa.array(order)), owners[order], anew[order], is_due[order]
        starts = np.append(np.flatnonzero((np.diff(owners, prepend=-1) != 0) | anew), len(owners))
        outputs = self._outputs(self._store(step, rows, owners, starts), np.flatnonzero(is_due))
        if table is not None:
            is_last = np.diff(owners[starts[:-1]], append=-1) != 0
            last = self._last(rows, starts[:-1][is_last], starts[1:][is_last])
            table.commit(keys, np.ones(len(touched_slots), np.int64), last, step.groups.stored_hashes(touched_slots))
            self._adaptive_groups.record(len(touched_slots), rows.nbytes)
        return outputs

    def _last(self, rows: pa.RecordBatch, starts: Positions, ends: Positions) -> pa.RecordBatch:
        """Return the last rows of each group as a list: the rows that window frames of later rows may contain."""
        counts = np.minimum(ends - starts, self._preceding_rows)
        indexes = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        last = pa.ListArray.from_arrays(offsets, rows.take(pa.array(indexes)).to_struct_array())
        return pa.RecordBatch.from_arrays([last.cast(self.states.field(0).type)], names=self.states.names)

    def _store(self, step: Step, rows: pa.RecordBatch, owners: Slots, starts: Positions) -> Store:
        """Return rows, by group, with their keys. Only window frames without kept rows need to know peers."""
        keys = step.groups.keys(owners)
        together = pa.RecordBatch.from_arrays(
            [*keys.columns, *rows.columns], schema=pa.schema([*keys.schema, *rows.schema])
        )
        nulls = np.zeros(len(starts) - 1, np.int64)
        return Store([together], OrderOf(starts, step.peers, None, nulls, nulls_first=True))

    def _outputs(self, store: Store, due: Positions) -> list[pa.Array]:
        for _, fold in self._folds:
            fold.begin(store)
        outputs = []
        start = 0
        while start < len(due):
            rows = due[start : start + self._adaptive_size.items]
            low, high = positions_of(self.window_frame, store.order, rows)
            columns: dict[str, pa.Array] = {}
            for names, fold in self._folds:
                columns |= zip(names, fold.outputs(rows, low, high), strict=True)
            outputs.append([columns[name] for name in self.layout.outputs.names])
            self._adaptive_size.record(len(rows), sum(column.nbytes for column in outputs[-1]))
            start += len(rows)
        return [pa.concat_arrays(list(parts)) for parts in zip(*outputs, strict=True)]


class AccumulatorFold(CallsFold):
    """Keeps accumulators: for window frames that only grow, and RANGE frames, whose rows leave with the watermark."""

    def __init__(self, part: Part, buckets: int, clock: Clock) -> None:
        super().__init__(part.window_frame, part.query.layout, buckets)
        query = part.query
        self.exchange = GroupedExchange(query.transport, part.running_request_with_states, query.layout, clock=clock)
        self.push(self.exchange)
        self._distance = distance_us(part.window_frame)
        self._rows_max = query.bounds.rows_max
        self._adaptive_size = AdaptiveSize(query.bounds.chunk_rows_max, query.bounds.bytes_max)
        self._migration = Migration(
            query.transport,
            query.opening_for(states=True, outputs=False),
            query.layout,
            tuple(call.can_migrate for call in query.opened_calls),
            query.bounds,
        )

    @property
    def states(self) -> pa.Schema:
        return self.layout.states

    @property
    def conversion(self) -> Conversion:
        return self._migration

    def outputs(self, step: Step, stores: WindowFrameStores) -> list[pa.Array]:
        assert stores.table is not None
        events = self._events(step, stores.log)
        if not len(events.slots):
            return [pa.nulls(0, field.type) for field in self.layout.outputs]
        touched_slots, group_of = np.unique(events.slots, return_inverse=True)
        keys = step.groups.keys(touched_slots)
        hashes = step.groups.stored_hashes(touched_slots)
        lookup = stores.table.lookup(keys, hashes)
        is_first = np.diff(group_of, prepend=-1) != 0
        is_stored = _running_sums(events.anew.astype(np.int64), group_of) == 0
        live = _running_sums(np.where(events.leaves, -1, 1), np.cumsum(is_first | events.anew))
        live += np.where(is_stored, lookup.live[group_of], 0)
        # An accumulator that has lost its last row is dropped, so the event that removes this row is not folded.
        empties = live == 0
        begins = is_first | events.anew
        begins[1:] |= empties[:-1]
        turns = np.cumsum(begins) - 1
        state_rows = np.full(int(turns[-1]) + 1, -1, np.int64)
        present = is_first & is_stored & lookup.present[group_of]
        state_rows[turns[present]] = group_of[present]
        owners = events.slots[begins]
        folded_events = events.filter(~empties)
        states, outputs = self._fold(step.groups, owners, folded_events, turns[~empties], lookup.states, state_rows)
        is_last = np.append(is_first[1:], True)
        live_left = live[is_last]
        last_turns = pa.array(turns[is_last], mask=live_left == 0)
        columns = [column.take(last_turns) for column in states]
        stores.table.commit(
            keys, live_left, pa.RecordBatch.from_arrays(columns, names=self.layout.states.names), hashes
        )
        # Peers share one output, which is computed after the last of them.
        emits = self._emits(step.peers)
        indexes = pa.array(np.cumsum(emits) - emits)
        return [column.take(indexes) for column in outputs]

    def _emits(self, peers: Positions) -> Mask:
        """Return for each of n due rows whether outputs are requested after it."""
        if not self.window_frame.is_range:
            return np.ones(len(peers), np.bool_)
        return np.diff(peers, append=peers[-1:] + 1) != 0

    def _events(self, step: Step, log: TimeLog | None) -> _Events:
        """Return the rows that enter window frames and the rows that leave them, by group and time."""
        names = self.layout.columns.names
        rows = columns_of(step.rows, names)
        slots, times = step.slots, step.times
        leaves, emits = np.zeros(len(slots), np.bool_), self._emits(step.peers)
        # Rows of RANGE frames leave in any case, so an idle group needs no new beginning.
        anew = step.anew if log is None else np.zeros(len(slots), np.bool_)
        if log is not None and self._distance is not None:
            limit = step.until - self._distance
            log_rows = log.take(limit)
            # Rows that enter in this step may leave in it, too.
            rows_up_to_limit = np.flatnonzero(times <= limit)
            later = np.flatnonzero(times > limit)
            later = later[np.argsort(times[later], kind="stable")]
            columns = [step.rows.column(field.name) for field in [*self.layout.keys, *self.layout.columns]]
            assert self.log is not None
            arrived_rows = pa.RecordBatch.from_arrays([pa.array(times), *columns], schema=self.log)
            log.add(arrived_rows.take(pa.array(later)))
            leaving_rows = pa.RecordBatch.from_arrays(columns_of(log_rows, names).columns, schema=rows.schema)
            rows = concat_batches([rows, leaving_rows, rows.take(pa.array(rows_up_to_limit))])
            slots = np.concatenate([slots, step.groups.slots(log_rows), slots[rows_up_to_limit]])
            # A row at time t leaves after the rows of time t + distance, whose window frames it is in.
            ends = np.concatenate([log_rows.column(TIME).to_numpy(), times[rows_up_to_limit]]) + self._distance
            times = np.concatenate([times, ends])
            leaves = np.concatenate([leaves, np.ones(len(ends), np.bool_)])
            emits = np.concatenate([emits, np.zeros(len(ends), np.bool_)])
            anew = np.concatenate([anew, np.zeros(len(ends), np.bool_)])
        order = np.lexsort((leaves, times, slots))
        if self.layout.has_kinds:
            kinds = np.where(leaves, int(RowKind.DELETE), int(RowKind.INSERT)).astype(np.int8)
            rows = with_column(rows, KIND, pa.array(kinds))
        return _Events(rows.take(pa.array(order)), slots[order], leaves[order], emits[order], anew[order])

    def _fold(
        self,
        groups: Groups,
        owners: Slots,
        events: _Events,
        turns: Positions,
        before: pa.RecordBatch,
        state_rows: Positions,
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """Fold events into m accumulators, and return their m states and the outputs that were asked for.

        Args:
            groups: The groups.
            owners: int32, shape (m,): the group of each accumulator.
            events: n events, by accumulator.
            turns: int64, shape (n,): the accumulator of each event, ascending.
            before: The stored states.
            state_rows: int64, shape (m,): the row of `before` with which an accumulator begins; -1 if it is new.
        """
        most = self._rows_max
        states: list[pa.RecordBatch] = []
        outputs: list[list[pa.Array]] = []
        for first in range(0, len(owners), most):
            last = min(first + most, len(owners))
            begin, end = np.searchsorted(turns, [first, last]).tolist()
            with self.exchange.turn(_Owners(groups, owners[first:last])):
                old = np.flatnonzero(state_rows[first:last] >= 0)
                if len(old):
                    old_states = before.take(pa.array(state_rows[first:last][old]))
                    self.exchange.states(old.astype(np.int32), old_states.columns)
                start = begin
                while start < end:
                    stop = min(start + self._adaptive_size.items, end)
                    slots = (turns[start:stop] - first).astype(np.int32)
                    rows = events.rows.slice(start, stop - start)
                    answer = self.exchange.running_outputs(slots, rows, events.emits[start:stop])
                    self._adaptive_size.record(stop - start, answer.nbytes)
                    outputs.append(self.layout.results_of(answer))
                    start = stop
                self.exchange.barrier()
                answer = one_batch(self.exchange.results())
            states.append(_by_slot(answer, self.layout.states.names, last - first))
        together = pa.Table.from_batches(states)
        empty = [pa.nulls(0, field.type) for field in self.layout.outputs]
        columns = [pa.concat_arrays(list(parts)) for parts in zip(empty, *outputs, strict=True)]
        return [one_array(column) for column in together.columns], columns


class _Events(NamedTuple):
    """Rows that enter and leave window frames, by group and time.

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

    def filter(self, mask: Mask) -> _Events:
        """Return some of the events."""
        parts = (self.slots[mask], self.leaves[mask], self.emits[mask], self.anew[mask])
        return _Events(self.rows.filter(pa.array(mask)), *parts)


class _Owners:
    """The groups of accumulators, for errors and logs."""

    def __init__(self, groups: Groups, owners: Slots) -> None:
        self._groups = groups
        self._owners = owners

    def __len__(self) -> int:
        return len(self._owners)

    def name(self, slot: int) -> dict[str, Any]:
        return self._groups.name(int(self._owners[slot]))


def _by_slot(answer: pa.RecordBatch, names: list[str], count: int) -> pa.RecordBatch:
    """Return `count` rows of results by slot; NULL for slots without results."""
    indexes = np.full(count, -1, np.int64)
    indexes[answer.column(SLOT).to_numpy()] = np.arange(answer.num_rows)
    return answer.select(names).take(pa.array(indexes, mask=indexes < 0))


def _running_sums(values: Positions, groups: Positions) -> Positions:
    """Return the sum of the n values up to each one in its group. Equal groups are adjacent."""
    sums = np.cumsum(values)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    lengths = np.diff(np.append(firsts, len(values)))
    return sums - np.repeat(sums[firsts] - values[firsts], lengths)


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

        self._waiting = log(WAITING, over.waiting_schema, owner=over.owner, check=over.check_owner)
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
            columns = [block.column(name) for name in self._over.waiting_schema.names[1:]]
            rows = pa.RecordBatch.from_arrays([pa.array(times), *columns], schema=self._over.waiting_schema)
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
        reach_times = [self._waiting.reach(watermark_us)]
        for log, distance in self._logs():
            until = log.reach(watermark_us - distance)
            reach_times.append(None if until is None else until + distance)
        return min((until for until in reach_times if until is not None), default=None)

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
            expired_keys, hashes = self._ttl.leave(groups, until)
            for fold, stores in zip(self._folds.window_frames, self._stores, strict=True):
                if stores.table is not None and stays(fold.window_frame):
                    remove(stores.table, expired_keys, hashes)
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
