"""Window frames of an OVER stream that keep accumulators: growing window frames, and window frames by RANGE."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from foldflight.engine.keys.grouped import Clock, GroupedExchange, Groups
from foldflight.engine.over.positions import Positions
from foldflight.engine.over.query import Part
from foldflight.engine.over.steps import CallsFold, Mask, Slots, Step, WindowFrameStores, columns_of
from foldflight.engine.over.stream import distance_us
from foldflight.engine.query.blocks import AdaptiveSize, one_batch
from foldflight.engine.query.layout import KIND, SLOT
from foldflight.engine.state.migration import Migration
from foldflight.engine.state.table import Conversion
from foldflight.engine.state.timelog import TIME, TimeLog
from foldflight.functions import RowKind
from foldflight.functions.types.arrow import concat_batches, one_array, with_column


class AccumulatorFold(CallsFold):
    """Keeps accumulators: for window frames that only grow, and RANGE frames, whose rows leave with the watermark."""

    def __init__(self, part: Part, buckets: int, clock: Clock) -> None:
        super().__init__(part.window_frame, part.query.layout, buckets)
        query = part.query
        self.exchange = GroupedExchange(query.transport, part.running_with_states, query.layout, clock=clock)
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
        touched, group_of = np.unique(events.slots, return_inverse=True)
        keys = step.groups.keys(touched)
        hashes = step.groups.stored_hashes(touched)
        stored = stores.table.lookup(keys, hashes)
        is_first = np.diff(group_of, prepend=-1) != 0
        is_stored = _running_sums(events.anew.astype(np.int64), group_of) == 0
        live = _running_sums(np.where(events.leaves, -1, 1), np.cumsum(is_first | events.anew))
        live += np.where(is_stored, stored.live[group_of], 0)
        # An accumulator that has lost its last row is dropped, so the event that removes this row is not folded.
        empties = live == 0
        begins = is_first | events.anew
        begins[1:] |= empties[:-1]
        turns = np.cumsum(begins) - 1
        loaded = np.full(int(turns[-1]) + 1, -1, np.int64)
        present = is_first & is_stored & stored.present[group_of]
        loaded[turns[present]] = group_of[present]
        owners = events.slots[begins]
        folded = events.filter(~empties)
        states, outputs = self._fold(step.groups, owners, folded, turns[~empties], stored.states, loaded)
        is_last = np.append(is_first[1:], True)
        left = live[is_last]
        chosen = pa.array(turns[is_last], mask=left == 0)
        columns = [column.take(chosen) for column in states]
        stores.table.commit(keys, left, pa.RecordBatch.from_arrays(columns, names=self.layout.states.names), hashes)
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
            gone = log.take(limit)
            # Rows that enter in this step may leave in it, too.
            own = np.flatnonzero(times <= limit)
            later = np.flatnonzero(times > limit)
            later = later[np.argsort(times[later], kind="stable")]
            columns = [step.rows.column(field.name) for field in [*self.layout.keys, *self.layout.columns]]
            assert self.log is not None
            arrived = pa.RecordBatch.from_arrays([pa.array(times), *columns], schema=self.log)
            log.add(arrived.take(pa.array(later)))
            left = pa.RecordBatch.from_arrays(columns_of(gone, names).columns, schema=rows.schema)
            rows = concat_batches([rows, left, rows.take(pa.array(own))])
            slots = np.concatenate([slots, step.groups.slots(gone), slots[own]])
            # A row at time t leaves after the rows of time t + distance, whose window frames it is in.
            ends = np.concatenate([gone.column(TIME).to_numpy(), times[own]]) + self._distance
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
                    stop = min(start + self._adaptive_size.items, end)
                    slots = (turns[start:stop] - first).astype(np.int32)
                    rows = events.rows.slice(start, stop - start)
                    answer = self.exchange.running(slots, rows, events.emits[start:stop])
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
