"""One epoch of one bucket: folds rows, returns the changelog and updates the state table.

    rows > slots (KeyIndex) > states of groups seen for the first time (StateTable) > exchange > changelog + one new run

Memory is proportional to the groups that the epoch touches. Rows are processed block by block.

`NewRows` decides which retractions count in groups that had no rows before the epoch. (A group with rows does not know
them, so each retraction counts there.) In such a group, a retraction counts only if the same epoch accumulates an equal
row. For example, a stream that begins in the middle of a changelog may get `-U 10` and `+U 40`: the group has no row
10, and the retraction must not remove the row 40. Rows are equal if all columns that the query uses are. Their order
does not matter, because Spark keeps none between partitions.

`EpochViews` knows which entries of the views of its groups a server has, and which it asks for. Views that are inline
are part of the states. Of larger views the engine sends the entries that rows will use, if the function tells which
these are (`prefetch`), with one lookup for each block. The server asks for all other entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.keys.group_exchange import GroupedExchange, Groups
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.keys.row_buffers import BufferedRows, FailedGroups, split_failed
from foldflight.engine.query.blocks import one_batch
from foldflight.engine.query.changelog import Mask, changelog, live_rows
from foldflight.engine.query.layout import LIVE, SLOT, CallView, QueryLayout, retracts
from foldflight.engine.state.table import StateTable
from foldflight.engine.state.viewtable import ViewLookup, ViewTable, one_row_each
from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import concat_batches, is_nested, is_overflow

Slots = npt.NDArray[np.int32]


class NewRows:
    """The accumulated rows of groups that had no rows before the epoch.

    They are kept as they came, and only the rows of groups that are retracted are ever compared.

    Args:
        layout: The columns of the query.
    """

    def __init__(self, layout: QueryLayout) -> None:
        self._columns = layout.columns
        self._buffered = BufferedRows(layout.columns)
        self._index: KeyIndex | None = None
        # For each different row of the index: how often it was accumulated and not yet retracted.
        self._counts = np.zeros(0, np.int64)
        self._is_indexed = np.zeros(0, np.bool_)  # by slot

    def accumulate(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Keep n rows. All rows of a group come before its first retraction."""
        if len(slots):
            self._buffered.add(slots, rows)

    def retract(self, slots: Slots, rows: pa.RecordBatch) -> Mask:
        """Return which of n retractions have an equal accumulated row; each row is retracted once.

        NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0.
        """
        self._reach(slots)
        ids = self._ids(pa.array(slots, pa.int32()), rows)
        counted_mask, self._counts = live_rows(ids, np.ones(len(ids), np.bool_), self._counts)
        return counted_mask

    def close(self) -> None:
        """Release the rows."""
        self._buffered.close()

    def _reach(self, slots: Slots) -> None:
        """Index the rows of groups that have not been retracted so far."""
        old_size = len(self._is_indexed)
        larger_mask = np.zeros(max(old_size, int(slots.max(initial=-1)) + 1), np.bool_)
        larger_mask[:old_size] = self._is_indexed
        fresh = np.zeros(len(larger_mask), np.bool_)
        fresh[slots] = True
        fresh &= ~larger_mask
        self._is_indexed = larger_mask | fresh
        if not fresh.any():
            return
        for batch in self._buffered.read():
            row_slots = batch.column(SLOT).to_numpy()
            is_new = np.zeros(len(row_slots), np.bool_)
            is_in_range = row_slots < len(fresh)
            is_new[is_in_range] = fresh[row_slots[is_in_range]]
            if is_new.any():
                new_rows = batch.filter(pa.array(is_new))
                ids = self._ids(new_rows.column(SLOT), new_rows)
                self._counts += np.bincount(ids, minlength=len(self._counts))

    def _ids(self, slots: pa.Array, rows: pa.RecordBatch) -> Slots:
        """Return a number for each of n rows, the same for equal rows of one group; the counts grow to all of them."""
        if self._index is None:
            self._index = KeyIndex(pa.schema([pa.field(SLOT, pa.int32()), *self._columns]))
        ids: Slots = self._index.slots([slots, *(rows.column(name) for name in self._columns.names)]).to_numpy()
        fresh = len(self._index) - len(self._counts)
        if fresh:
            self._counts = np.concatenate([self._counts, np.zeros(fresh, np.int64)])
        return ids


class EpochViews:
    """The views of the groups of one epoch.

    Args:
        layout: The columns of the query.
        table: The bucket's state table.
        groups: The groups of the epoch.
    """

    def __init__(self, layout: QueryLayout, table: ViewTable, groups: Groups) -> None:
        self._layout = layout
        self._table = table
        self._groups = groups
        self._views = table.views
        none = np.zeros(0, np.int64)
        self._generations = [none for _ in self._views]
        # Whether the server has all entries of a slot's view.
        self._is_complete = [np.zeros(0, np.bool_) for _ in self._views]
        self._sent_keys: list[KeyIndex] = []
        self._forget_sent()

    def load(self, lookup: ViewLookup) -> None:
        """Add the next slots. The server gets the states of groups that exist."""
        for index, generations in enumerate(lookup.generations):
            self._generations[index] = np.concatenate([self._generations[index], generations])
            # The server has the states of groups that exist, and starts others with empty views.
            self._is_complete[index] = np.concatenate([self._is_complete[index], generations == 0])

    def reset(self) -> None:
        """Begin anew after a checkpoint: the server has forgotten all entries, and the table has the changed ones."""
        slots = np.arange(len(self._generations[0]), dtype=np.int32)
        lookup = self._table.lookup(self._groups.keys(slots), self._groups.stored_hashes(slots))
        self._generations = list(lookup.generations)
        # Groups that do not exist have no rows yet.
        self._is_complete = [~lookup.present for _ in self._views]
        self._forget_sent()

    def entries_for(self, slots: Slots, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the entries that a server should have before n rows: batches of `slot` and states.

        Args:
            slots: int32, shape (n,): the slots of the rows.
            block: n rows of `QueryLayout.rows`.
        """
        for index, view in enumerate(self._views):
            distinct = np.unique(slots)
            is_inline = self._generations[index][distinct] == 0
            untold = distinct[is_inline & ~self._is_complete[index][distinct]]
            if len(untold):
                self._is_complete[index][untold] = True
                yield self._batch(view, untold, self._inline(view, untold))
            slots_and_keys = self._prefetch(index, slots, block)
            if slots_and_keys is not None:
                yield self._answer_of(index, *slots_and_keys)

    def resolve(self, question: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the entries that a server asks for.

        Args:
            question: `slot`, and the states with views with keys and without values. A view with `complete` asks for
                the entries after its last key, or for the first ones.

        Raises:
            RejectedError: BAD_FRAME, for slots or views that the epoch does not have.
            CorruptError: If the table is damaged.
        """
        slots = question.column(SLOT).to_numpy()
        if not ((slots >= 0) & (slots < len(self._generations[0]))).all():
            raise RejectedError("BAD_FRAME", "the server asks for entries of a slot that it was not given")
        for index, view in enumerate(self._views):
            states = question.column(f"state_{view.call}")
            views = states.flatten()[states.type.get_field_index(view.spec.name)]
            complete, _, lists = views.flatten()
            pages = complete.fill_null(False).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(pages):
                keys = lists[row].values
                yield self._page(index, int(slots[row]), None if keys is None or not len(keys) else keys.field("key"))
            rows = np.flatnonzero(~pages & views.is_valid().to_numpy(zero_copy_only=False))
            if len(rows):
                entry_lists = lists.take(pa.array(rows))
                owners = np.repeat(slots[rows], entry_lists.value_lengths().fill_null(0).to_numpy())
                yield self._answer_of(index, owners, entry_lists.flatten().field("key"))

    # -- answers -----------------------------------------------------------------------------------------------------

    def _prefetch(self, index: int, slots: Slots, block: pa.RecordBatch) -> tuple[Slots, pa.Array] | None:
        """Return the different entries that rows will use and that the server does not have: slots and keys."""
        view = self._views[index]
        is_used = self._generations[index][slots] > 0
        if not view.prefetch or not is_used.any():
            return None
        if view.filter is not None:
            is_used &= block.column(view.filter).fill_null(False).to_numpy(zero_copy_only=False)
        columns = [block.column(name).filter(pa.array(is_used)) for name in view.prefetch]
        try:
            keys = _keys_of(columns, view.spec.key)
        except pa.ArrowException:  # the function is called with other values, which the server asks for
            return None
        sent_keys = self._sent_keys[index]
        known_count = len(sent_keys)
        sent_keys.slots([pa.array(slots[is_used]), keys])
        if len(sent_keys) == known_count:
            return None
        fresh = sent_keys.keys(pa.array(np.arange(known_count, len(sent_keys), dtype=np.int32)))
        return fresh.column(0).to_numpy(), fresh.column(1)

    def _answer_of(self, index: int, slots: Slots, keys: pa.Array) -> pa.RecordBatch:
        """Return the entries with n keys."""
        order = np.argsort(slots, kind="stable")
        slots, keys = slots[order], keys.take(pa.array(order))
        generations = self._generations[index][slots]
        present, values = self._table.lookup_entries(index, self._groups.keys(slots), generations, keys)
        owners, counts = np.unique(slots, return_counts=True)
        view = self._views[index]
        entries = self._entries(view, counts, keys, values, present)
        return self._batch(view, owners, self._view(view, entries, np.zeros(len(owners), np.bool_)))

    def _page(self, index: int, slot: int, keys: pa.Array | None) -> pa.RecordBatch:
        view, slots = self._views[index], np.array([slot], np.int32)
        generation = int(self._generations[index][slot])
        if generation == 0:
            return self._batch(view, slots, self._inline(view, slots))
        after = None if keys is None else keys.slice(len(keys) - 1)
        page = self._table.page(index, self._groups.keys(slots), generation, after)
        counts, present = np.array([len(page.keys)]), np.ones(len(page.keys), np.bool_)
        entries = self._entries(view, counts, page.keys, page.values, present)
        return self._batch(view, slots, self._view(view, entries, np.array([page.is_last])))

    def _inline(self, view: CallView, slots: Slots) -> pa.Array:
        """Return n inline views with all their entries."""
        lookup = self._table.lookup(self._groups.keys(slots), self._groups.stored_hashes(slots))
        states = lookup.states.column(f"state_{view.call}")
        lists = states.flatten()[states.type.get_field_index(view.spec.name)].flatten()[2]
        return self._view(view, lists.fill_null([]), np.ones(len(slots), np.bool_))

    # -- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, view: CallView, slots: Slots, views: pa.Array) -> pa.RecordBatch:
        """Return n views of n slots as a batch of slots and states, where everything else is NULL."""
        columns, fields = [pa.array(slots, pa.int32())], [pa.field(SLOT, pa.int32())]
        for call in sorted({each.call for each in self._views}):
            field = self._layout.states.field(call)
            if call == view.call:
                members = [
                    views if member.name == view.spec.name else pa.nulls(len(slots), member.type)
                    for member in field.type
                ]
                columns.append(pa.StructArray.from_arrays(members, fields=list(field.type)))
            else:
                columns.append(pa.nulls(len(slots), field.type))
            fields.append(field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _type(self, view: CallView) -> pa.StructType:
        return self._layout.states.field(view.call).type.field(view.spec.name).type

    def _view(self, view: CallView, lists: pa.Array, complete: npt.NDArray[np.bool_]) -> pa.Array:
        flags = [pa.array(complete), pa.array(np.zeros(len(lists), np.bool_))]
        return pa.StructArray.from_arrays([*flags, lists], fields=list(self._type(view)))

    def _entries(
        self,
        view: CallView,
        counts: npt.NDArray[np.int64],
        keys: pa.Array,
        values: pa.Array,
        present: npt.NDArray[np.bool_],
    ) -> pa.Array:
        """Return the lists of entries of n slots, which have so many entries each."""
        type_ = self._type(view).field("entries").type
        items = pa.StructArray.from_arrays([keys, values, pa.array(present)], fields=list(type_.value_type))
        return pa.ListArray.from_arrays(pa.array(np.r_[0, np.cumsum(counts)], pa.int32()), items, type=type_)

    def _forget_sent(self) -> None:
        fields = [pa.schema([pa.field(SLOT, pa.int32()), pa.field("key", view.spec.key)]) for view in self._views]
        self._sent_keys = [KeyIndex(each) for each in fields]


def _keys_of(columns: Sequence[pa.Array], type_: pa.DataType) -> pa.Array:
    """Return n keys of entries in canonical form, made of one argument or of several.

    Raises:
        pa.ArrowException: The arguments do not fit the type of the keys, or are nested.
    """
    if any(is_nested(column.type) for column in columns):
        raise pa.ArrowNotImplementedError("keys are not prefetched from nested arguments")
    fields = list(type_) if pa.types.is_struct(type_) else [pa.field("key", type_)]
    parts = [pc.cast(column, field.type) for column, field in zip(columns, fields, strict=True)]
    # A nested key is hashed as text, so its floats must be canonical.
    keys = KeyIndex(pa.schema([field.with_name(f"{index}") for index, field in enumerate(fields)]))
    parts = keys.keys(keys.slots(parts)).columns
    return pa.StructArray.from_arrays(parts, fields=fields) if pa.types.is_struct(type_) else parts[0]


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
        self._existed_mask = np.zeros(0, np.bool_)
        self._is_saved = np.zeros(0, np.bool_)  # by a checkpoint within this epoch
        # The position in `_before` of each slot's output before the epoch; -1 for a new group.
        self._before_at = np.zeros(0, np.int64)
        self._before: list[pa.RecordBatch] = []
        self._buffered_rows: BufferedRows | None = None
        self._failed_groups: FailedGroups | None = None
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
        return self._finish(self._without_failed(results))

    def dead_letters(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of failed groups, in the schema of the query's results. Call it after `run`."""
        if self._buffered_rows is not None and self._failed_groups is not None:
            yield from self._failed_groups.letters(self._buffered_rows)

    def _without_failed(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Return the results of groups that have not failed. Failed groups are not written and keep their states."""
        if not self._layout.isolates:
            return results
        sound, self._failed_groups = split_failed(self._layout, results, self._groups.keys)
        self.stats.isolated_groups = len(self._failed_groups)
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
            is_state, block, states = self._layout.split_block(block)
            if is_state.any():  # the outputs before the epoch have been received already
                arrays = [states.column(name) for name in self._layout.states.names]
                self._exchange.states(slots[is_state], arrays)
            slots = slots[~is_state]
        if len(slots):
            self._exchange.chunk(slots, block)

    def _count_live(self, slots: Slots, block: pa.RecordBatch) -> tuple[Slots, pa.RecordBatch]:
        """Count the live rows of groups, and return the n rows without retractions that have no row.

        The rows are either all accumulated or all retracted.
        """
        retraction_mask = retracts(block)
        is_new = self._live_before[slots] == 0
        if is_new.any():
            of_new = slots[is_new], block if is_new.all() else block.filter(pa.array(is_new))
            if not retraction_mask.any():
                self._new_rows.accumulate(*of_new)
            else:
                has_row = np.ones(len(slots), np.bool_)
                has_row[is_new] = self._new_rows.retract(*of_new)
                slots, block = self._without(slots, block, has_row, _NO_EQUAL_ROW)
                retraction_mask = retraction_mask[: len(slots)]
        counted_mask, self._live = live_rows(slots, retraction_mask, self._live)
        return self._without(slots, block, counted_mask, _NO_ROW_LEFT)

    def _without(
        self, slots: Slots, block: pa.RecordBatch, counted_mask: npt.NDArray[np.bool_], reason: str
    ) -> tuple[Slots, pa.RecordBatch]:
        """Return the rows that count. Raises RejectedError CANNOT_RETRACT for others, in strict mode."""
        if counted_mask.all():
            return slots, block
        if self._is_strict:
            raise RejectedError(
                "CANNOT_RETRACT",
                f"a row is retracted from a group that {reason} (strict mode); correct the input, or disable strict "
                "mode to count such rows and continue",
            ).with_group(self._groups.name(int(slots[~counted_mask][0])))
        self.stats.ignored_retractions += int((~counted_mask).sum())
        return slots[counted_mask], block.filter(pa.array(counted_mask))

    def _save(self) -> None:
        """Store what has changed, with its entries, if the exchange holds too much for another server.

        Only with views; otherwise the exchange does it by itself. If errors are isolated it is not possible, because a
        group that fails later must keep the state that it had before the epoch.
        """
        if self._views is None or self._layout.isolates:
            return
        saved_states = self._exchange.save()
        if saved_states is None:
            return
        states = self._whole(saved_states)
        slots = states.column(SLOT).to_numpy()
        if len(slots):
            self._is_saved[slots] = True
            # A group without rows now may get some, so it is not removed before the end of the epoch. Its output
            # is known then, too.
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
        known_count = len(self._live)
        slots = self._groups.slots(block)
        if len(self._groups) > known_count:
            self._load(np.arange(known_count, len(self._groups), dtype=np.int32))
        return slots

    def _load(self, fresh: npt.NDArray[np.int32]) -> None:
        lookup = self._table.lookup(self._groups.keys(fresh), self._groups.stored_hashes(fresh))
        live = np.where(lookup.present, lookup.live - self._extra_rows, 0)
        self._live_before = np.concatenate([self._live_before, live])
        self._live = np.concatenate([self._live, live])
        self._existed_mask = np.concatenate([self._existed_mask, lookup.present])
        self._is_saved = np.concatenate([self._is_saved, np.zeros(len(fresh), np.bool_)])
        if self._views is not None and isinstance(lookup, ViewLookup):
            self._views.load(lookup)
        row_count = sum(batch.num_rows for batch in self._before)
        indexes = np.where(lookup.present, row_count + np.cumsum(lookup.present) - 1, -1)
        self._before_at = np.concatenate([self._before_at, indexes])
        if self._is_always_there and self._extra_rows and not lookup.present.any():
            self._exchange.states(fresh, [pa.nulls(len(fresh), field.type) for field in self._layout.states])
        if not lookup.present.any():
            return
        present = pa.array(lookup.present)
        slots, states = fresh[lookup.present], lookup.states.filter(present).columns
        if not self._needs_outputs:
            self._exchange.states(slots, states)
            return
        self._before.append(outputs_before(self._exchange, self._layout, slots, states, lookup.emitted.filter(present)))

    def _finish(self, results: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
        slots = results.column(SLOT).to_numpy()
        existed_mask = self._existed_mask[slots]
        exists = self._live[slots] + self._extra_rows > 0
        keys = self._groups.keys(slots)
        after = self._rows(keys, results)
        before = self._rows(keys, self._outputs_before(slots, results))
        kinds, changes = changelog(before, after, existed_mask, exists, update_before=self._update_before)
        self._commit(slots, keys, results, existed_mask | exists | self._is_saved[slots])
        self.stats.groups = len(slots) + self.stats.isolated_groups
        return kinds, changes

    def _commit(
        self,
        slots: npt.NDArray[np.int32],
        keys: pa.RecordBatch,
        results: pa.RecordBatch,
        remaining_mask: npt.NDArray[np.bool_],
    ) -> None:
        if not remaining_mask.any():
            return
        mask = pa.array(remaining_mask)
        states = results.select([field.name for field in self._layout.states]).filter(mask)
        live = (self._live[slots] + self._extra_rows)[remaining_mask]
        emitted_columns = [column.filter(mask) for column in self._layout.emitted_of(results)]
        hashes = self._groups.stored_hashes(slots[remaining_mask])
        try:
            outcome = self._table.commit(keys.filter(mask), live, states, hashes, emitted_columns)
        except RejectedError as error:
            if error.code != "LIMIT":
                raise
            sizes = [states.slice(row, 1).nbytes for row in range(states.num_rows)]
            raise error.with_group(self._groups.name(int(slots[remaining_mask][np.argmax(sizes)]))) from error
        self.stats.runs, self.stats.state_bytes = outcome.runs, outcome.bytes

    def _outputs_before(self, slots: npt.NDArray[np.int32], results: pa.RecordBatch) -> pa.RecordBatch:
        if not self._before:
            return results  # no group existed before, so the rows are not used
        indexes = self._before_at[slots]
        row_indexes = pa.array(np.maximum(indexes, 0), mask=indexes < 0)
        return concat_batches(self._before).take(row_indexes)

    def _rows(self, keys: pa.RecordBatch, outputs: pa.RecordBatch) -> pa.RecordBatch:
        return changes_of(self._layout, keys, self._layout.outputs_of(outputs))


def outputs_before(
    exchange: GroupedExchange,
    layout: QueryLayout,
    slots: npt.NDArray[np.int32],
    states: Sequence[pa.Array],
    stored_rows: pa.RecordBatch,
) -> pa.RecordBatch:
    """Load n states into n slots, and return the outputs that they had: stored outputs, or else computed ones.

    Args:
        exchange: The exchange. It must return initial outputs.
        layout: The columns.
        slots: int32, shape (n,).
        states: One array of n states for each call.
        stored_rows: n rows that have the columns of `layout.emitted`.
    """
    if layout.knows_outputs(stored_rows):
        exchange.states(slots, states)
        return layout.stored_outputs(slots, stored_rows, exchange.open_reply.schema)
    outputs = exchange.outputs_of(slots, states)
    return layout.with_emitted(outputs, stored_rows) if len(layout.emitted) else outputs


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
        is_closed: npt.NDArray[np.bool_] = ends <= self._closed_us
        later = ends[~is_closed & (rows.column(LIVE).to_numpy() > 0)]
        if len(later):
            earliest = int(later.min())
            self.next_end_us = earliest if self.next_end_us is None else min(self.next_end_us, earliest)
        return is_closed

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
            outputs, failed_groups = split_failed(layout, outputs, groups.keys)
            self.dead_letters += failed_groups.letters(buffered_rows)
        return changes_of(layout, groups.keys(outputs.column(SLOT).to_numpy()), layout.outputs_of(outputs))


def _ends_us(batch: pa.RecordBatch, layout: QueryLayout) -> npt.NDArray[np.int64]:
    """Return the end of each row's window, in microseconds since 1970."""
    ends = batch.column(layout.keys.names[-1])
    return ends.cast(pa.timestamp("us", ends.type.tz)).view(pa.int64()).to_numpy(zero_copy_only=False)
