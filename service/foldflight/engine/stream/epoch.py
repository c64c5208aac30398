"""One epoch of one bucket: folds rows, returns the changelog and updates the state table.

    rows > slots (KeyIndex) > states of groups seen for the first time (StateTable) > exchange > changelog + one new run

Memory is proportional to the groups that the epoch touches. Rows are processed block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.deadletters import BufferedRows, Failed, split_failed
from foldflight.engine.keys.grouped import GroupedExchange, Groups
from foldflight.engine.keys.newrows import NewRows, Slots
from foldflight.engine.query.blocks import one_batch
from foldflight.engine.query.changelog import changelog, live_rows
from foldflight.engine.query.layout import LIVE, SLOT, QueryLayout, retracts
from foldflight.engine.state.table import StateTable
from foldflight.engine.state.viewtable import ViewLookup, ViewTable, one_row_each
from foldflight.engine.stream.views import EpochViews
from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import concat_batches, is_overflow

_NO_ROW_LEFT: Final = "has no row left"
_NO_EQUAL_ROW: Final = "had no row before this epoch, and no equal row is accumulated in it"


@dataclass
class EpochStats:
    """The metrics of one epoch of one bucket. A query's progress shows their sums over buckets.

    Args:
        rows: Rows folded. With hopping and cumulating windows a row counts once for each of its windows.
        groups: Groups touched.
        late_rows: Rows dropped because their window was closed (once for each closed window), or in OVER because their
            time had passed.
        late_retractions: Late rows that retract: the new row of such an update may be in a window that is open.
        waiting_rows: In OVER, rows that wait until the watermark has reached their time.
        ignored_retractions: Retractions without a row: of groups that had none left, or that began in the epoch and
            accumulated no equal row.
        stale_changes: Of upserts, changes that were not newer than the stored row of their key: late ones and repeats.
        isolated_groups: Touched groups whose function raised, if errors are isolated.
        isolated_rows: Folded rows that became dead letters.
        exchange_ms: Milliseconds in the exchange.
        buckets: 1 for a bucket that had rows.
        runs: Runs of the bucket's state now.
        state_bytes: Bytes of these runs.
    """

    rows: int = 0
    groups: int = 0
    late_rows: int = 0
    late_retractions: int = 0
    waiting_rows: int = 0
    ignored_retractions: int = 0
    stale_changes: int = 0
    isolated_groups: int = 0
    isolated_rows: int = 0
    exchange_ms: float = 0.0
    buckets: int = 0
    runs: int = 0
    state_bytes: int = 0


class BucketEpoch:
    """Folds the rows of one bucket and epoch.

    Args:
        exchange: The exchange of the task. It must return initial outputs, states and outputs.
        layout: The columns.
        table: The bucket's state table. With a `ViewTable` the exchange must have `Open.keeps_views`.
        is_strict: Whether a retraction without a row is an error.
        update_before: Whether the changelog has the row `-U` before each `+U`.
        needs_outputs: Whether the changelog is used. If not, outputs are not asked for.
        merges: Whether blocks hold partial states and rows (`QueryLayout.partial`) instead of rows only.
        closed_us: Windows that end at or before this time, in microseconds since 1970, are closed. The last key is the
            window's end. None if windows do not close.
        is_always_there: Whether the group of a query without keys exists before its first row counts. In Spark it does
            not: an epoch without rows reaches no bucket.

    Attributes:
        stats: The metrics of the epoch.
        open_ends_us: The ends of the windows of its rows, in microseconds since 1970.
    """

    def __init__(
        self,
        exchange: GroupedExchange,
        layout: QueryLayout,
        table: StateTable | ViewTable,
        *,
        is_strict: bool,
        update_before: bool = True,
        needs_outputs: bool = True,
        merges: bool = False,
        closed_us: int | None = None,
        is_always_there: bool = False,
    ) -> None:
        self.stats = EpochStats(buckets=1, runs=table.pieces, state_bytes=table.stored_bytes)
        self.open_ends_us: set[int] = set()
        self._closed_us = closed_us
        self._exchange = exchange
        self._layout = layout
        self._table = table
        self._is_strict = is_strict
        self._update_before = update_before
        self._needs_outputs = needs_outputs
        self._merges = merges
        self._is_always_there = is_always_there
        # Without keys there is one group. It counts one extra row, so that it is never removed.
        self._groups = Groups(layout)
        self._views = EpochViews(layout, table, self._groups) if isinstance(table, ViewTable) else None
        self._extra_rows = 0 if len(layout.keys) else 1
        self._live_before = np.zeros(0, np.int64)
        self._live = np.zeros(0, np.int64)
        self._existed = np.zeros(0, np.bool_)
        self._is_saved = np.zeros(0, np.bool_)  # by a checkpoint within this epoch
        # The position in `_before` of each slot's output before the epoch; -1 for a new group.
        self._before_at = np.zeros(0, np.int64)
        self._before: list[pa.RecordBatch] = []
        self._buffered_rows: BufferedRows | None = None
        self._failed: Failed | None = None
        self._new_rows = NewRows(layout)

    def run(self, blocks: Iterator[pa.RecordBatch]) -> tuple[pa.Array, pa.RecordBatch]:
        """Fold all blocks, store the new states of their groups, and return the changelog.

        Args:
            blocks: Rows of keys, the row kind (if rows have kinds), arguments and filters; or of `QueryLayout.partial`.

        Returns:
            n row kinds (int8), and n rows of keys and outputs in the types of the exchange.

        Raises:
            FunctionError: With the group's keys.
            RejectedError: CANNOT_RETRACT, in strict mode, with the group. LIMIT, if a column exceeds 2 GiB.
        """
        try:
            return self._run(blocks)
        except (pa.ArrowException, TypeError) as error:
            if not is_overflow(error):
                raise
            raise RejectedError(
                "LIMIT",
                f"the states or results of the {len(self._groups)} groups that an epoch touches in one bucket have "
                "more than 2 GiB together, which a column of Arrow cannot hold; use more buckets or smaller epochs, or "
                "keep entries in views",
            ) from error

    def _run(self, blocks: Iterator[pa.RecordBatch]) -> tuple[pa.Array, pa.RecordBatch]:
        before_s = self._exchange.elapsed_s
        with self._exchange.turn(self._groups, self._views):
            try:
                for block in self._inserts_first(blocks):
                    self._feed(block)
                    self._save()
            finally:
                self._new_rows.close()
            self._exchange.barrier()
            results = self._whole(self._exchange.results())
            self._buffered_rows = self._exchange.buffered_rows
        self.stats.exchange_ms = (self._exchange.elapsed_s - before_s) * 1000
        return self._finish(self._sound(results))

    def dead_letters(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of failed groups, in the schema of the query's results. Call it after `run`."""
        if self._buffered_rows is not None and self._failed is not None:
            yield from self._failed.letters(self._buffered_rows)

    def _sound(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of groups that have not failed. Failed groups are not written and keep their states."""
        if not self._layout.isolates:
            return results
        sound, self._failed = split_failed(self._layout, results, self._groups.keys)
        self.stats.isolated_groups = len(self._failed)
        return sound

    def _inserts_first(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield accumulated rows first, then retracted ones: Spark does not keep the order between partitions."""
        if not self._layout.has_kinds:
            yield from blocks
            return
        retractions = []
        for block in blocks:
            takes_back = retracts(block)
            if not takes_back.any():
                yield block
                continue
            retractions.append(block.filter(pa.array(takes_back)))
            if not takes_back.all():
                yield block.filter(pa.array(~takes_back))
        yield from retractions

    def _feed(self, block: pa.RecordBatch) -> None:
        if self._closed_us is not None:
            block = self._in_time(block, self._closed_us)
            if not block.num_rows:
                return
        slots = self._slots(block)
        if self._layout.has_kinds:
            slots, block = self._count_live(slots, block)
            self.stats.rows += len(slots)
        else:
            rows = self._row_counts(block)
            np.add.at(self._live, slots, rows)
            self.stats.rows += int(rows.sum())
        if self._merges:
            folded, block, states = self._layout.split_block(block)
            self._merge(slots[folded], states)
            slots = slots[~folded]
        if len(slots):
            self._exchange.chunk(slots, block)

    def _count_live(self, slots: Slots, block: pa.RecordBatch) -> tuple[Slots, pa.RecordBatch]:
        """Count the live rows of groups, and return the n rows without retractions that have no row.

        The rows are either all accumulated or all retracted.
        """
        retracting = retracts(block)
        is_new = self._live_before[slots] == 0
        if is_new.any():
            of_new = slots[is_new], block if is_new.all() else block.filter(pa.array(is_new))
            if not retracting.any():
                self._new_rows.accumulate(*of_new)
            else:
                has_row = np.ones(len(slots), np.bool_)
                has_row[is_new] = self._new_rows.retract(*of_new)
                slots, block = self._without(slots, block, has_row, _NO_EQUAL_ROW)
                retracting = retracting[: len(slots)]
        counted, self._live = live_rows(slots, retracting, self._live)
        return self._without(slots, block, counted, _NO_ROW_LEFT)

    def _without(
        self, slots: Slots, block: pa.RecordBatch, counted: npt.NDArray[np.bool_], why: str
    ) -> tuple[Slots, pa.RecordBatch]:
        """Return the rows that count. Raises RejectedError CANNOT_RETRACT for others, in strict mode."""
        if counted.all():
            return slots, block
        if self._is_strict:
            raise RejectedError(
                "CANNOT_RETRACT",
                f"a row is retracted from a group that {why} (strict mode); correct the input, or disable strict mode "
                "to count such rows and continue",
            ).with_group(self._groups.name(int(slots[~counted][0])))
        self.stats.ignored_retractions += int((~counted).sum())
        return slots[counted], block.filter(pa.array(counted))

    def _save(self) -> None:
        """Store what has changed, with its entries, if the exchange holds too much for another server.

        Only with views; otherwise the exchange does it by itself. If errors are isolated it is not possible, because a
        group that fails later must keep the state that it had before the epoch.
        """
        if self._views is None or self._layout.isolates:
            return
        saved = self._exchange.save()
        if saved is None:
            return
        states = self._whole(saved)
        slots = states.column(SLOT).to_numpy()
        if len(slots):
            self._is_saved[slots] = True
            # A group without rows now may get some, so it is not removed before the end of the epoch. What is emitted
            # for it is known then, too.
            columns = states.select([field.name for field in self._layout.states])
            live = np.maximum(self._live[slots] + self._extra_rows, 1)
            self._table.commit(self._groups.keys(slots), live, columns, self._groups.stored_hashes(slots))
        self._views.reset()

    def _whole(self, results: pa.Table) -> pa.RecordBatch:
        """Return results with one row for each slot."""
        batch = one_batch(results)
        return one_row_each(batch, self._table.views) if isinstance(self._table, ViewTable) else batch

    def _row_counts(self, block: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the number of input rows for each row of a block; a partial state may hold several."""
        if not self._merges:
            return np.ones(block.num_rows, np.int64)
        return block.column(LIVE).fill_null(1).to_numpy()

    def _merge(self, slots: Slots, block: pa.RecordBatch) -> None:
        if len(slots):
            # The outputs before the epoch have been received already.
            self._exchange.states(slots, [block.column(name) for name in self._layout.states.names])

    def _in_time(self, block: pa.RecordBatch, closed_us: int) -> pa.RecordBatch:
        """Return the rows whose window is open, and record the ends of the windows."""
        ends = _ends_us(block, self._layout)
        late = ends <= closed_us
        if late.any():
            self.stats.late_rows += int(self._row_counts(block)[late].sum())
            if self._layout.has_kinds:
                self.stats.late_retractions += int(retracts(block)[late].sum())
            block, ends = block.filter(pa.array(~late)), ends[~late]
        self.open_ends_us.update(np.unique(ends).tolist())
        return block

    def _slots(self, block: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the slots of n rows, and load the states of groups seen for the first time."""
        known = len(self._live)
        slots = self._groups.slots(block)
        if len(self._groups) > known:
            self._load(np.arange(known, len(self._groups), dtype=np.int32))
        return slots

    def _load(self, fresh: npt.NDArray[np.int32]) -> None:
        stored = self._table.lookup(self._groups.keys(fresh), self._groups.stored_hashes(fresh))
        live = np.where(stored.present, stored.live - self._extra_rows, 0)
        self._live_before = np.concatenate([self._live_before, live])
        self._live = np.concatenate([self._live, live])
        self._existed = np.concatenate([self._existed, stored.present])
        self._is_saved = np.concatenate([self._is_saved, np.zeros(len(fresh), np.bool_)])
        if self._views is not None and isinstance(stored, ViewLookup):
            self._views.load(stored)
        row_count = sum(batch.num_rows for batch in self._before)
        indexes = np.where(stored.present, row_count + np.cumsum(stored.present) - 1, -1)
        self._before_at = np.concatenate([self._before_at, indexes])
        if self._is_always_there and self._extra_rows and not stored.present.any():
            self._exchange.states(fresh, [pa.nulls(len(fresh), field.type) for field in self._layout.states])
        if not stored.present.any():
            return
        present = pa.array(stored.present)
        slots, states = fresh[stored.present], stored.states.filter(present).columns
        if not self._needs_outputs:
            self._exchange.states(slots, states)
            return
        self._before.append(outputs_before(self._exchange, self._layout, slots, states, stored.emitted.filter(present)))

    def _finish(self, results: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
        slots = results.column(SLOT).to_numpy()
        existed = self._existed[slots]
        exists = self._live[slots] + self._extra_rows > 0
        keys = self._groups.keys(slots)
        after = self._rows(keys, results)
        before = self._rows(keys, self._outputs_before(slots, results))
        kinds, changes = changelog(before, after, existed, exists, update_before=self._update_before)
        self._commit(slots, keys, results, existed | exists | self._is_saved[slots])
        self.stats.groups = len(slots) + self.stats.isolated_groups
        return kinds, changes

    def _commit(
        self,
        slots: npt.NDArray[np.int32],
        keys: pa.RecordBatch,
        results: pa.RecordBatch,
        remaining: npt.NDArray[np.bool_],
    ) -> None:
        if not remaining.any():
            return
        mask = pa.array(remaining)
        states = results.select([field.name for field in self._layout.states]).filter(mask)
        live = (self._live[slots] + self._extra_rows)[remaining]
        emitted = [column.filter(mask) for column in self._layout.emitted_of(results)]
        hashes = self._groups.stored_hashes(slots[remaining])
        stored = self._table.commit(keys.filter(mask), live, states, hashes, emitted)
        self.stats.runs, self.stats.state_bytes = stored.runs, stored.bytes

    def _outputs_before(self, slots: npt.NDArray[np.int32], results: pa.RecordBatch) -> pa.RecordBatch:
        if not self._before:
            return results  # no group existed before, so the rows are not used
        indexes = self._before_at[slots]
        chosen = pa.array(np.maximum(indexes, 0), mask=indexes < 0)
        return concat_batches(self._before).take(chosen)

    def _rows(self, keys: pa.RecordBatch, outputs: pa.RecordBatch) -> pa.RecordBatch:
        return changes_of(self._layout, keys, self._layout.outputs_of(outputs))


def outputs_before(
    exchange: GroupedExchange,
    layout: QueryLayout,
    slots: npt.NDArray[np.int32],
    states: Sequence[pa.Array],
    stored: pa.RecordBatch,
) -> pa.RecordBatch:
    """Load n states into n slots, and return the outputs that they had: stored outputs, or else computed ones.

    Args:
        exchange: The exchange. It must return initial outputs.
        layout: The columns.
        slots: int32, shape (n,).
        states: One array of n states for each call.
        stored: n rows that have the columns of `layout.emitted`.
    """
    if layout.knows_outputs(stored):
        exchange.states(slots, states)
        return layout.stored_outputs(slots, stored, exchange.open_reply.schema)
    outputs = exchange.outputs_of(slots, states)
    return layout.with_emitted(outputs, stored) if len(layout.emitted) else outputs


def changes_of(layout: QueryLayout, keys: pa.RecordBatch, outputs: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return n keys and n outputs of each call as rows of a changelog, in the types of the exchange."""
    names = [f"output_{index}" for index in range(len(layout.outputs))]
    return pa.RecordBatch.from_arrays([*keys.columns, *outputs], names=[*layout.keys.names, *names])


class ClosedWindows:
    """The groups of a bucket whose window is closed.

    Args:
        exchange: The exchange of the task. It must return initial outputs.
        layout: The columns; the last key is the window's end.
        table: The bucket's state table.
        closed_us: Windows that end at or before this time, in microseconds since 1970, are closed.

    Attributes:
        dead_letters: Closed windows whose function raised in `get_value`, in the schema of the query's results.
        next_end_us: After `drop`: a time at or before the earliest end of the remaining windows, in microseconds since
            1970; None if no windows remain.
    """

    def __init__(
        self, exchange: GroupedExchange, layout: QueryLayout, table: StateTable | ViewTable, closed_us: int
    ) -> None:
        self.dead_letters: list[pa.RecordBatch] = []
        self.next_end_us: int | None = None
        self._exchange = exchange
        self._layout = layout
        self._table = table
        self._closed_us = closed_us

    def drop(self, *, wants_outputs: bool) -> Iterator[pa.RecordBatch]:
        """Drop their states, and yield their keys and outputs if `wants_outputs`."""
        for batch in list(self._table.scan(self._are_closed)):
            if wants_outputs:
                yield self._outputs(batch)
            states = batch.select([field.name for field in self._layout.states])
            self._table.commit(batch.select(self._layout.keys.names), np.zeros(batch.num_rows, np.int64), states)

    def _are_closed(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which of n stored rows belong to closed windows, and record when the next window may close.

        That time may be too early because of an outdated row of a group. This causes one unnecessary search.
        """
        ends = _ends_us(rows, self._layout)
        closed: npt.NDArray[np.bool_] = ends <= self._closed_us
        later = ends[~closed & (rows.column(LIVE).to_numpy() > 0)]
        if len(later):
            earliest = int(later.min())
            self.next_end_us = earliest if self.next_end_us is None else min(self.next_end_us, earliest)
        return closed

    def _outputs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        layout, groups, views = self._layout, Groups(self._layout), None
        # Each row is a different group, so its slot is its position.
        slots = groups.slots(batch)
        if isinstance(self._table, ViewTable):
            views = EpochViews(layout, self._table, groups)
            views.load(self._table.lookup(groups.keys(slots), groups.stored_hashes(slots)))
        with self._exchange.turn(groups, views):
            outputs = self._exchange.outputs_of(slots, [batch.column(name) for name in layout.states.names])
            buffered_rows = self._exchange.buffered_rows
        if buffered_rows is not None:
            outputs, failed = split_failed(layout, outputs, groups.keys)
            self.dead_letters += failed.letters(buffered_rows)
        return changes_of(layout, groups.keys(outputs.column(SLOT).to_numpy()), layout.outputs_of(outputs))


def _ends_us(batch: pa.RecordBatch, layout: QueryLayout) -> npt.NDArray[np.int64]:
    """Return the end of each row's window, in microseconds since 1970."""
    ends = batch.column(layout.keys.names[-1])
    return ends.cast(pa.timestamp("us", ends.type.tz)).view(pa.int64()).to_numpy(zero_copy_only=False)
