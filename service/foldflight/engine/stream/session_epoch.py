"""One epoch of one bucket whose windows are sessions. Rows may merge sessions, also sessions of earlier epochs.

    rows > sessions within each block, each folded into its own slot > barrier
         > with the stored sessions of their keys: chains of touching sessions > states merged > barrier > changelog

Two sessions touch if one begins before, or exactly when, the other ends. A session is identified by its key, start and
end: a session that grows is removed (`-D`) and replaced by another one (`+I`). A chain that ends before the watermark
is late, and closed sessions do not grow.

If errors are isolated, a chain fails as a whole: if a function raises for any part of it, the stored sessions of the
chain are kept unchanged, and its new rows become dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.group_exchange import GroupedExchange, Groups
from foldflight.engine.keys.hashes import Hashes
from foldflight.engine.keys.row_buffers import BufferedRows, FailedGroups
from foldflight.engine.query.blocks import one_batch
from foldflight.engine.query.changelog import changelog
from foldflight.engine.query.layout import LIVE, SLOT, QueryLayout
from foldflight.engine.state.table import StateTable
from foldflight.engine.stream.epoch import EpochStats, changes_of
from foldflight.fold.failures import ERROR

Numbers = npt.NDArray[np.int64]


def chains(keys: Numbers, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Find chains of sessions: n sessions that touch, directly or through others.

    Args:
        keys: int64, shape (n,): the key of each session, as a number from 0.
        starts: int64, shape (n,): its start.
        ends: int64, shape (n,): its end, not before its start.

    Returns:
        An order of the n sessions by key and start, and the number of each session's chain in this order, from 0.
    """
    order = np.lexsort((ends, starts, keys))
    if not len(order):
        return order, order
    keys, starts, ends = keys[order], starts[order], ends[order]
    # Times are replaced by ranks. Each key's ranks are above the previous key's, so that a single running maximum
    # suffices.
    times = np.unique(np.concatenate([starts, ends]))
    lift = keys * len(times)
    latest_ends = np.maximum.accumulate(np.searchsorted(times, ends) + lift)
    begins = np.searchsorted(times, starts) + lift
    fresh = np.r_[True, (keys[1:] != keys[:-1]) | (begins[1:] > latest_ends[:-1])]
    return order, np.cumsum(fresh) - 1


@dataclass
class _Sessions:
    """Columns of sessions: the key's number, start and end in microseconds since 1970, and live rows."""

    keys: Numbers
    starts: Numbers
    ends: Numbers
    live: Numbers

    @classmethod
    def none(cls) -> _Sessions:
        return cls(*(np.zeros(0, np.int64) for _ in range(4)))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indexes: Any) -> _Sessions:
        return _Sessions(self.keys[indexes], self.starts[indexes], self.ends[indexes], self.live[indexes])

    def followed_by(self, other: _Sessions) -> _Sessions:
        names = ("keys", "starts", "ends", "live")
        return _Sessions(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    def join_chains(self, chain: Numbers) -> _Sessions:
        """Return each chain of n sessions, in the order of `chains`, as one session."""
        if not len(chain):
            return self
        first = np.flatnonzero(np.r_[True, chain[1:] != chain[:-1]])
        return _Sessions(
            self.keys[first],
            self.starts[first],
            np.maximum.reduceat(self.ends, first),
            np.add.reduceat(self.live, first),
        )


class _SessionGroups:
    """Slots of sessions. Each session has its own slot, and several sessions may have the same key.

    Args:
        layout: The columns; the last two keys are start and end of a session.

    Attributes:
        keys: The keys without start and end, by number.
    """

    def __init__(self, layout: QueryLayout) -> None:
        self.keys = Groups(replace(layout, keys=pa.schema(list(layout.keys)[:-2])))
        self._slot_keys = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._slot_keys)

    def stored_hashes(self) -> Hashes:
        """Return the stored hashes of all keys, in the order of their numbers; without key columns there is one."""
        if not len(self.keys.layout.keys):
            return np.zeros(1, np.uint64)
        return self.keys.stored_hashes(np.arange(len(self.keys), dtype=np.int32))

    def new_slots(self, numbers: Numbers) -> npt.NDArray[np.int32]:
        """Return a new slot for each of n sessions, given the numbers of their keys."""
        first = len(self._slot_keys)
        self._slot_keys = np.concatenate([self._slot_keys, numbers])
        return np.arange(first, len(self._slot_keys), dtype=np.int32)

    def name(self, slot: int) -> dict[str, Any]:
        """Return the key of a slot's session, by the user's names; start and end are left out."""
        return self.keys.name(int(self._slot_keys[slot]))


class SessionEpoch:
    """Folds the rows of one bucket and epoch into sessions; the counterpart of `BucketEpoch`.

    Args:
        exchange: The exchange of the task. It must return initial outputs, states and outputs.
        layout: The columns. The last two keys are start and end of the session of a single row.
        table: The bucket's state table. Its hashed keys are all other keys.
        closed_us: Sessions that end at or before this time, in microseconds since 1970, are closed; None: none closes.

    Attributes:
        stats: The metrics of the epoch.
        open_ends_us: The earliest end of the stored sessions, in microseconds since 1970; empty if there are none.
    """

    def __init__(
        self, exchange: GroupedExchange, layout: QueryLayout, table: StateTable, *, closed_us: int | None = None
    ) -> None:
        self.stats = EpochStats(buckets=1, runs=table.pieces, state_bytes=table.stored_bytes)
        self.open_ends_us: set[int] = set()
        self._exchange = exchange
        self._layout = layout
        self._table = table
        self._closed_us = closed_us
        self._groups = _SessionGroups(layout)
        self._states = layout.states.names
        self._came = _Sessions.none()
        self._buffered_rows: BufferedRows | None = None
        self._failed_groups: FailedGroups | None = None
        # Slot of a new session -> slot of the final session that contains it; -1 if it is late.
        self._owners = np.zeros(0, np.int32)

    def run(self, blocks: Iterator[pa.RecordBatch]) -> tuple[pa.Array, pa.RecordBatch]:
        """Fold all blocks, store the resulting sessions, and return the changelog.

        Args:
            blocks: Rows: keys, arguments and filters.

        Returns:
            n row kinds (int8) and n rows of keys and outputs, in the types of the exchange.

        Raises:
            FunctionError: With the key of the sessions.
        """
        before_s = self._exchange.elapsed_s
        with self._exchange.turn(self._groups):
            self._buffered_rows = self._exchange.buffered_rows
            for block in blocks:
                self._feed(block)
            changes = self._merge()
        self.stats.exchange_ms = (self._exchange.elapsed_s - before_s) * 1000
        return changes

    def dead_letters(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of failed chains, in the schema of the query's results. Call it after `run`."""
        if self._buffered_rows is not None and self._failed_groups is not None:
            yield from self._failed_groups.letters(self._buffered_rows, self._owners)

    def _feed(self, block: pa.RecordBatch) -> None:
        """Fold a block into one slot for each chain of its rows."""
        rows = self._sessions_of(block)
        order, chain = chains(rows.keys, rows.starts, rows.ends)
        chain_rows = rows.take(order).join_chains(chain)
        slots = self._groups.new_slots(chain_rows.keys)
        self._came = self._came.followed_by(chain_rows)
        self._exchange.chunk(slots[chain], block.take(pa.array(order)))

    def _sessions_of(self, block: pa.RecordBatch) -> _Sessions:
        """Return a session for each row."""
        start, end = self._times(block)
        numbers = self._groups.keys.slots(block).astype(np.int64)
        return _Sessions(numbers, start, end, np.ones(block.num_rows, np.int64))

    def _times(self, batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
        start, end = self._layout.keys.names[-2:]
        return batch.column(start).view(pa.int64()).to_numpy(), batch.column(end).view(pa.int64()).to_numpy()

    def _merge(self) -> tuple[pa.Array, pa.RecordBatch]:
        """Merge new and stored sessions by chain, store the results, and return the changelog."""
        came_states = self._results()
        stored_sessions, stored_rows = self._read_open()
        everything = stored_sessions.followed_by(self._came)
        order, chain = chains(everything.keys, everything.starts, everything.ends)
        final, store_mask = self._chains_to_store(everything.take(order), chain, order >= len(stored_sessions))
        # The members of the wanted chains, and the chain of each. Stored sessions come first.
        members, chain = order[store_mask[chain]], (np.cumsum(store_mask) - 1)[chain[store_mask[chain]]]
        old = members[members < len(stored_sessions)]
        old_chain = chain[members < len(stored_sessions)]
        before = self._outputs_before(stored_sessions.keys[old], stored_rows.take(pa.array(old)))
        slots = self._groups.new_slots(final.keys)
        states = [
            pa.concat_arrays([stored_rows.column(name), came_states.column(name)]).take(pa.array(members))
            for name in self._states
        ]
        errors = None
        if self._buffered_rows is not None:
            errors = _errors(before, old, came_states, len(stored_sessions)).take(pa.array(members))
        self._exchange.states(slots[chain], states, errors)
        after = self._results(len(slots))
        if self._buffered_rows is not None:
            is_new = members >= len(stored_sessions)
            sound = ~self._set_aside(final, after, slots, members[is_new] - len(stored_sessions), chain[is_new])
            final, after = final.take(sound), after.filter(pa.array(sound))
            # The remaining chains are renumbered. Stored sessions of failed chains are not changed.
            remaining_mask = sound[old_chain]
            old, old_chain = old[remaining_mask], (np.cumsum(sound) - 1)[old_chain[remaining_mask]]
            before = before.filter(pa.array(remaining_mask))
        old_sessions = stored_sessions.take(old)
        removed_mask = (old_sessions.starts != final.starts[old_chain]) | (old_sessions.ends != final.ends[old_chain])
        was = np.full(len(final), -1, np.int64)
        was[old_chain[~removed_mask]] = np.flatnonzero(~removed_mask)
        self._commit(old_sessions.take(removed_mask), stored_rows.take(pa.array(old[removed_mask])), final, after)
        return self._changes(old_sessions, removed_mask, before, final, was, after)

    def _set_aside(
        self, final: _Sessions, after: pa.RecordBatch, slots: npt.NDArray[np.int32], came: Numbers, chain: Numbers
    ) -> npt.NDArray[np.bool_]:
        """Record and return the failed chains; `came` are the new sessions, and `chain` has the chain of each."""
        failed_mask: npt.NDArray[np.bool_] = after.column(ERROR).is_valid().to_numpy(zero_copy_only=False)
        self._owners = np.full(len(self._came), -1, np.int32)
        self._owners[came] = slots[chain]

        def keys(of: npt.NDArray[np.int32]) -> pa.RecordBatch:
            return self._key_rows(final.take(of - slots[0]))

        self._failed_groups = FailedGroups(self._layout, after.filter(pa.array(failed_mask)), keys)
        self.stats.isolated_groups = len(self._failed_groups)
        return failed_mask

    def _read_open(self) -> tuple[_Sessions, pa.RecordBatch]:
        """Return the open sessions of all keys of this epoch, and their rows in the state table."""
        keys = self._groups.keys.keys(np.arange(len(self._groups.keys), dtype=np.int32))
        owners, rows = self._table.lookup_together(keys, self._groups.stored_hashes())
        start, end = self._times(rows)
        stored_sessions = _Sessions(owners, start, end, rows.column(LIVE).to_numpy())
        if self._closed_us is None:
            return stored_sessions, rows
        is_open = stored_sessions.ends > self._closed_us
        return stored_sessions.take(is_open), rows.filter(pa.array(is_open))

    def _chains_to_store(
        self, sorted_sessions: _Sessions, chain: Numbers, is_new: npt.NDArray[np.bool_]
    ) -> tuple[_Sessions, npt.NDArray[np.bool_]]:
        """Return the chains to be stored (those with new rows that are not late), and a mask of them in all chains."""
        final = sorted_sessions.join_chains(chain)
        new_rows = np.bincount(chain, np.where(is_new, sorted_sessions.live, 0), len(final)).astype(np.int64)
        store_mask = new_rows > 0
        if self._closed_us is not None:
            late = store_mask & (final.ends <= self._closed_us)
            self.stats.late_rows += int(new_rows[late].sum())
            store_mask &= ~late
        self.stats.rows += int(new_rows[store_mask].sum())
        return final.take(store_mask), store_mask

    def _outputs_before(self, keys: Numbers, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the outputs of stored sessions."""
        if not rows.num_rows:
            return one_batch(self._exchange.open_reply.schema.empty_table())
        states = [rows.column(name) for name in self._states]
        outputs = self._exchange.outputs_of(self._groups.new_slots(keys), states)
        return self._layout.with_emitted(outputs, rows)

    def _results(self, count: int | None = None) -> pa.RecordBatch:
        """End an epoch and return its results by slot, for the last `count` slots or for all."""
        self._exchange.barrier()
        answer = one_batch(self._exchange.results().sort_by(SLOT))
        return answer if count is None else answer.slice(answer.num_rows - count)

    def _commit(
        self, removed_sessions: _Sessions, gone_rows: pa.RecordBatch, final: _Sessions, after: pa.RecordBatch
    ) -> None:
        sessions = removed_sessions.followed_by(final)
        self.stats.groups = len(sessions) + self.stats.isolated_groups
        if not len(final):
            return
        states = [pa.concat_arrays([gone_rows.column(name), after.column(name)]) for name in self._states]
        live = np.concatenate([np.zeros(len(removed_sessions), np.int64), final.live])
        batch = pa.RecordBatch.from_arrays(states, names=self._states)
        emitted_columns = [
            pa.concat_arrays([pa.nulls(len(removed_sessions), column.type), column])
            for column in self._layout.emitted_of(after)
        ]
        hashes = self._groups.stored_hashes()[sessions.keys]
        outcome = self._table.commit(self._key_rows(sessions), live, batch, hashes, emitted_columns)
        self.stats.runs, self.stats.state_bytes = outcome.runs, outcome.bytes
        self.open_ends_us.add(int(final.ends.min()))

    def _changes(
        self,
        old: _Sessions,
        removed_mask: npt.NDArray[np.bool_],
        before: pa.RecordBatch,
        final: _Sessions,
        was: Numbers,
        after: pa.RecordBatch,
    ) -> tuple[pa.Array, pa.RecordBatch]:
        """Return the changelog: first of removed sessions, then of present ones.

        Args:
            old: The stored sessions that were touched by new rows.
            removed_mask: bool, shape (old,): which of them are removed.
            before: Their outputs.
            final: The present sessions.
            was: int64, shape (final,): the index of the same session in `old`; -1 if it is new.
            after: Their outputs.
        """
        removed_indexes = np.flatnonzero(removed_mask)
        keys = self._key_rows(old.take(removed_indexes).followed_by(final))
        old_indexes = np.concatenate([removed_indexes, was])
        new_indexes = np.concatenate([np.full(len(removed_indexes), -1, np.int64), np.arange(len(final))])
        rows = []
        for outputs, indexes in ((before, old_indexes), (after, new_indexes)):
            row_indexes = pa.array(np.maximum(indexes, 0), mask=indexes < 0)
            columns = [column.take(row_indexes) for column in self._layout.outputs_of(outputs)]
            rows.append(changes_of(self._layout, keys, columns))
        return changelog(rows[0], rows[1], old_indexes >= 0, new_indexes >= 0, update_before=True)

    def _key_rows(self, sessions: _Sessions) -> pa.RecordBatch:
        """Return sessions as rows of all key columns."""
        columns = self._groups.keys.keys(sessions.keys.astype(np.int32)).columns
        start, end = list(self._layout.keys)[-2:]
        columns += [pa.array(sessions.starts).view(start.type), pa.array(sessions.ends).view(end.type)]
        return pa.RecordBatch.from_arrays(columns, schema=self._layout.keys)


def _errors(before: pa.RecordBatch, old: Numbers, came: pa.RecordBatch, stored_count: int) -> pa.Array:
    """Return the errors of all sessions, stored ones first. `before` has the outputs of the sessions in `old`."""
    indexes = np.full(stored_count, -1, np.int64)
    indexes[old] = np.arange(len(old))
    errors = before.column(ERROR).take(pa.array(np.maximum(indexes, 0), mask=indexes < 0))
    return pa.concat_arrays([errors, came.column(ERROR)])
