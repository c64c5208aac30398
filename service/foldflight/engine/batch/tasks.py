"""The tasks of a batch query: each is called once for a partition, with Arrow batches as input and output.

`PartialFold` is the first stage of the two-phase plan: it folds rows to keys and partial states. `BlockBounds` limits
its memory: if its groups have too many bytes, or if it has folded too many bytes, it emits its states and starts again.
A key may then be emitted twice, which is correct, because the second stage merges. Rows are emitted unfolded if the
rows seen so far show that folding would produce about as many states as rows (see `Reduction`).

`FinalFold` is the last stage of both plans. It gets all rows (or partial states) of its groups. States of bounded size
come in any order: the groups that fit into memory are merged as they come, and the states of all others are written to
files, which are merged one after the other. Everything else comes sorted by the hash of the key. Then a group is
complete when the hash changes, its outputs are emitted and its accumulator is dropped. So the memory is one block for
any number of groups, unless a single accumulator is larger. Spark sorts, and spills to disk.

A partial fold decides whether a partition has clearly fewer groups than rows. Folding pays if a state stands for
several rows. How many depends on rows that have not arrived yet, so the number of groups is estimated from the rows
seen so far: of n rows drawn from G groups that are equally frequent, about G * (1 - exp(-n / G)) belong to different
groups. If some groups are more frequent than others, there are fewer different ones, and the rows seen so far show by
themselves that folding pays.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.group_exchange import GroupedExchange, Groups
from foldflight.engine.keys.row_buffers import LEVELS, BufferedRows, Overflow, split_failed
from foldflight.engine.query.blocks import BlockBounds, convert, gather, one_batch
from foldflight.engine.query.changelog import live_rows
from foldflight.engine.query.layout import BUCKET, FOLDED, HASH, LIVE, REAL, SLOT, QueryLayout, retracts
from foldflight.engine.query.query import Query
from foldflight.fold.mode import Mode
from foldflight.functions.types.arrow import is_bounded, width_of

# The least number of rows of a state for which folding pays: seen so far, or expected when the memory is full.
_ROWS_SEEN_MIN = 2.0
_ROWS_EXPECTED_MIN = 1.5
_BISECTION_STEPS = 60  # enough to exhaust the digits of a float


@dataclass
class Reduction:
    """The rows that were assigned to groups so far, and the different groups among them.

    Args:
        rows: Number of rows.
        groups: Number of groups.
    """

    rows: int = 0
    groups: int = 0

    def pays(self, groups_max: int, *, looks_ahead: bool) -> bool:
        """Return whether folding further rows produces clearly fewer states than rows.

        Args:
            groups_max: The number of groups that fit into memory.
            looks_ahead: Whether many more rows of the same kind may come. Otherwise only the rows seen so far count.
        """
        if self.rows >= _ROWS_SEEN_MIN * self.groups:
            return True
        return looks_ahead and _expected_rows(expected_groups(self.rows, self.groups), groups_max) >= _ROWS_EXPECTED_MIN


def expected_groups(rows: int, groups: int) -> float:
    """Estimate the number of groups, equally frequent, from `groups` different ones in `rows` rows; may be infinity.

    Args:
        rows: Number of rows, at least `groups`.
        groups: Number of different groups among them, at least 1.
    """
    if groups >= rows:
        return math.inf
    # Find x = rows / result, for which (1 - exp(-x)) / x is the share of new groups. It decreases with x.
    share, low, high = groups / rows, 0.0, rows / groups
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        if -math.expm1(-middle) > share * middle:
            low = middle
        else:
            high = middle
    return rows / high


def _expected_rows(groups: float, groups_max: int) -> float:
    """Return how many rows a state stands for when the memory is full: at `groups_max` of equally frequent groups."""
    if groups <= groups_max:
        return math.inf
    seen_share = groups_max / groups
    return -math.log1p(-seen_share) / seen_share if seen_share else 1.0


# The modes in which accumulators are numbers in a table.
_TABLES = (Mode.COMPILED, Mode.VECTORISED)
# Number of new objects after which garbage is collected during a task (Python's default: 700 or 2,000).
_GC_THRESHOLD = 10_000
# Number of blocks that are emitted without a check after a block that does not pay, because the check has a cost.
_UNSEEN_BLOCKS = 3
# Number of rows from which the size of states is estimated.
_FIRST_ROWS = 1 << 13
# Memory of a group besides its key and its state: its slot, its live rows, its place in the index of keys.
_GROUP_BYTES = 32
# Memory of an accumulator that is a Python object, besides its state.
_OBJECT_BYTES = 256
# Number of states that are emitted as one batch.
_OUTPUT_ROWS_MAX = 1 << 16


class _Groups(Groups):
    """The groups of one epoch, with their live rows, and with their buckets if the query has buckets."""

    def __init__(self, layout: QueryLayout) -> None:
        super().__init__(layout)
        self.live = np.zeros(0, np.int64)
        self.buckets = np.zeros(0, np.int32)
        self.hashes = np.zeros(0, np.int64)

    def slots(self, block: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the slots of n rows; `live`, `buckets` and `hashes` grow to all groups seen."""
        slots = super().slots(block)
        fresh = len(self) - len(self.live)
        if fresh:
            self.live = np.concatenate([self.live, np.zeros(fresh, np.int64)])
            self.buckets = np.concatenate([self.buckets, np.zeros(fresh, np.int32)])
            self.hashes = np.concatenate([self.hashes, np.zeros(fresh, np.int64)])
        if BUCKET in block.schema.names:
            self.buckets[slots] = block.column(BUCKET).to_numpy()
        if HASH in block.schema.names:
            self.hashes[slots] = block.column(HASH).to_numpy()
        return slots

    def count(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        """Count live rows."""
        self.live += np.bincount(slots, minlength=len(self.live))
        if self.layout.has_kinds:
            self.live -= 2 * np.bincount(slots[retracts(block)], minlength=len(self.live))


class BatchFold:
    """One exchange over several epochs, each with its own groups.

    The results of an epoch are fetched only when the next block is available, so that the server works while Spark
    reads.
    """

    def __init__(self, query: Query, *, states: bool, outputs: bool) -> None:
        self._layout = query.layout
        self._is_due = False
        open_request = query.opening_for(states=states, outputs=outputs)
        self.exchange = GroupedExchange(query.transport, open_request, query.layout)
        self._groups: _Groups | None = None

    @property
    def groups(self) -> _Groups:
        """The groups of the epoch. The epoch starts when they are first used, so none starts after the last rows."""
        if self._groups is None:
            self._groups = _Groups(self._layout)
            self.exchange.begin(self._groups)
        return self._groups

    def barrier(self) -> None:
        """End the epoch. `take` returns its results."""
        self.exchange.barrier()
        self._is_due = True

    def renew(self) -> None:
        """Start a new epoch, without groups, with the next rows."""
        self._groups = None

    def groups_max(self, group_bytes: float, bounds: BlockBounds) -> int:
        """Return the number of groups that may be held, given the bytes of the key and the states of each.

        Before the first block is folded, modes are unknown and count as tables. If they counted as objects, a first
        block of many groups would not be folded, nor would any after it, because the modes would stay unknown.
        """
        objects = sum(mode not in _TABLES for mode in self.exchange.modes if mode is not None)
        group_count = int(bounds.group_bytes_max / (group_bytes + _GROUP_BYTES + _OBJECT_BYTES * objects))
        return max(min(bounds.groups_max, group_count), 1)

    def take(self) -> Iterator[tuple[_Groups, pa.Table, BufferedRows | None]]:
        """Yield pending results, if any, with the groups and rows of their epoch, which is over then."""
        if not self._is_due:
            return
        self._is_due = False
        results, groups, buffered_rows = self.exchange.results(), self.groups, self.exchange.buffered_rows
        self.renew()
        yield groups, results, buffered_rows

    def __enter__(self) -> Self:
        # Garbage collection scans hundreds of thousands of live accumulators repeatedly, which takes a quarter of the
        # time with many groups. So it is rare during the task.
        self._gc_thresholds = gc.get_threshold()
        gc.set_threshold(_GC_THRESHOLD, *self._gc_thresholds[1:])
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        gc.set_threshold(*self._gc_thresholds)
        self.exchange.__exit__(exception_type, *exception)


@dataclass(frozen=True)
class PartialFold:
    """The first stage: fold the rows of a partition to partial states.

    Args:
        query: The query.
        bounds: The limits of the data held at once.
        keeps_buckets: Whether the last column of the input is the group's bucket (int32), which the output keeps.
        looks_ahead: Whether many more rows than seen so far may come. An epoch of a stream has few.
    """

    query: Query
    bounds: BlockBounds
    keeps_buckets: bool = False
    looks_ahead: bool = True

    @property
    def output(self) -> pa.Schema:
        """Rows and states, in one schema."""
        return self._with_bucket(self.query.layout.partial)

    def _with_bucket(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field(BUCKET, pa.int32())) if self.keeps_buckets else schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold one partition."""
        layout = self.query.layout
        with BatchFold(self.query, states=True, outputs=False) as batch_fold:
            partition = _PartialPartition(self, batch_fold)
            for block in gather(batches, self._with_bucket(layout.rows), self.bounds):
                yield from partition.take(block)
            yield from partition.end()


class _PartialPartition:
    """One partition in the first stage, with statistics of its rows so far."""

    def __init__(self, task: PartialFold, batch_fold: BatchFold) -> None:
        self._batch_fold = batch_fold
        self._layout = task.query.layout
        self._output = task.output
        self._bounds = task.bounds
        self._looks_ahead = task.looks_ahead
        # A flag is needed besides the bytes, because a column of type NULL has no bytes.
        self._is_open = False
        self._folded_bytes = 0
        self._unchecked_pieces = 0
        self._reduction = Reduction()
        widths = [width_of(field.type) for field in task.query.layout.states]
        self._state_bytes = None if None in widths else sum(width for width in widths if width is not None) / 8
        # Bytes of the key and the states of a group. If states differ in size, it is unknown until the first few rows
        # have been folded as an epoch.
        self._group_bytes: float | None = None

    def take(self, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Fold a block, and yield emitted batches."""
        if self._group_bytes is None and self._state_bytes is not None and block.num_rows:
            self._group_bytes = self._state_bytes + _key_bytes(block.select(self._layout.keys.names))
        start = 0
        while start < block.num_rows:
            yield from self._results()
            piece = block.slice(start, max(self._groups_max(), _FIRST_ROWS))
            start += piece.num_rows
            if self._unchecked_pieces:
                self._unchecked_pieces -= 1
                yield self._unfolded_output(piece)
                continue
            yield from self._fold(piece)

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining batches."""
        if self._is_open:
            yield from self._results()
            self._batch_fold.barrier()
        yield from self._results()

    def _fold(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        batch_fold, reduction, groups = self._batch_fold, self._reduction, self._batch_fold.groups
        slots = groups.slots(piece)
        reduction.rows, reduction.groups = reduction.rows + piece.num_rows, len(groups)
        are_many = reduction.groups >= self._bounds.unfolded_groups_min
        if are_many and not reduction.pays(self._groups_max(), looks_ahead=self._looks_ahead):
            self._unchecked_pieces = _UNSEEN_BLOCKS
            yield self._unfolded_output(piece)
        else:
            groups.count(slots, piece)
            batch_fold.exchange.chunk(slots, piece)
            self._is_open = True
            self._folded_bytes += piece.nbytes
        if reduction.groups >= self._groups_max() or self._folded_bytes >= self._bounds.folded_bytes_max:
            self._reduction = Reduction()
            if self._is_open:
                batch_fold.barrier()
                self._is_open, self._folded_bytes = False, 0
            else:
                batch_fold.renew()

    def _groups_max(self) -> int:
        """Return the number of groups that may be held."""
        return 0 if self._group_bytes is None else self._batch_fold.groups_max(self._group_bytes, self._bounds)

    def _results(self) -> Iterator[pa.RecordBatch]:
        for groups, results, _ in self._batch_fold.take():
            if results.num_rows:
                keys = groups.keys(results.column(SLOT).to_numpy())
                self._group_bytes = (keys.nbytes + results.nbytes) / results.num_rows
            for part in _parts(results):
                slots = part.column(SLOT).to_numpy()
                columns = dict(zip(self._layout.keys.names, groups.keys(slots).columns, strict=True))
                columns[LIVE] = pa.array(groups.live[slots])
                columns[BUCKET] = pa.array(groups.buckets[slots])
                for field in self._layout.carried:
                    columns[field.name] = convert(part.column(field.name), field.type)
                yield self._fill(part.num_rows, columns, is_folded=True)

    def _unfolded_output(self, block: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: convert(block.column(name), self._output.field(name).type) for name in block.schema.names}
        return self._fill(block.num_rows, columns, is_folded=False)

    def _fill(self, rows: int, columns: dict[str, pa.Array], *, is_folded: bool) -> pa.RecordBatch:
        """Return n rows or n states in the common schema of both."""
        columns[FOLDED] = pa.array(np.full(rows, is_folded))
        return pa.RecordBatch.from_arrays(
            [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in self._output],
            schema=self._output,
        )


@dataclass(frozen=True)
class FinalFold:
    """The last stage: fold the rows, or merge the states, of a partition to outputs.

    Args:
        query: The query.
        merges: Whether the input has partial states instead of rows.
    """

    query: Query
    merges: bool

    @property
    def layout(self) -> QueryLayout:
        """The columns of the query."""
        return self.query.layout

    @property
    def input(self) -> pa.Schema:
        """The input schema. The rows of a query without keys have a column `real`, which is false for the seed row."""
        schema = self.layout.partial if self.merges else self.layout.rows
        if len(self.layout.keys):
            return schema.append(pa.field(HASH, pa.int64()))
        return schema if self.merges or REAL in schema.names else schema.append(pa.field(REAL, pa.bool_()))

    @property
    def needs_order(self) -> bool:
        """Whether the partition must be sorted by `hash`, because its rows or states may be of any size."""
        return not (self.merges and all(is_bounded(field.type) for field in self.layout.states))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold one partition."""
        blocks = gather(batches, self.input, self.query.bounds)
        with BatchFold(self.query, states=False, outputs=True) as batch_fold:
            if self.needs_order or not len(self.layout.keys):
                yield from self._in_order(batch_fold, blocks)
            else:
                yield from self._in_any_order(batch_fold, blocks, 0)

    def _in_order(self, batch_fold: BatchFold, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        is_open = False
        for block in blocks:
            yield from self._take_results(batch_fold)
            complete_end = _last_hash(block) if len(self.layout.keys) else 0
            if complete_end:
                self._feed(batch_fold, block.slice(0, complete_end))
                batch_fold.barrier()
                yield from self._take_results(batch_fold)
            self._feed(batch_fold, block.slice(complete_end))
            is_open = True
        if is_open:
            batch_fold.barrier()
        yield from self._take_results(batch_fold)

    def _in_any_order(
        self, batch_fold: BatchFold, blocks: Iterator[pa.RecordBatch], level: int
    ) -> Iterator[pa.RecordBatch]:
        resident = None
        with Overflow(self.input, level) as overflow:
            for block in blocks:
                block_in_memory = block if resident is None else overflow.add(block, resident)
                if block_in_memory.num_rows:
                    self._feed(batch_fold, block_in_memory)
                if (
                    resident is None
                    and level < LEVELS
                    and len(batch_fold.groups) >= self._groups_max(batch_fold, block)
                ):
                    resident = pa.array(batch_fold.groups.hashes)
            if len(batch_fold.groups):
                batch_fold.barrier()
            yield from self._take_results(batch_fold)
            for part in overflow.parts():
                yield from self._in_any_order(batch_fold, gather(part, self.input, self.query.bounds), level + 1)

    def _groups_max(self, batch_fold: BatchFold, block: pa.RecordBatch) -> int:
        return batch_fold.groups_max(block.nbytes / max(block.num_rows, 1), self.query.bounds)

    def _feed(self, batch_fold: BatchFold, block: pa.RecordBatch) -> None:
        groups = batch_fold.groups
        if not self.merges and not len(self.layout.keys):
            block = self._without_seed(batch_fold, block)
        slots = groups.slots(block)
        if self.merges:
            self._merge(batch_fold, slots, block)
            return
        if self.layout.has_kinds:
            counted_mask, groups.live = live_rows(slots, retracts(block), groups.live)
            if not counted_mask.all():
                # Ignore retractions from groups that have no row left.
                slots, block = slots[counted_mask], block.filter(pa.array(counted_mask))
        batch_fold.exchange.chunk(slots, block)

    def _merge(self, batch_fold: BatchFold, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        is_state, rows, states = self.layout.split_block(block)
        if rows.num_rows:
            row_slots = slots[~is_state]
            batch_fold.groups.count(row_slots, rows)
            batch_fold.exchange.chunk(row_slots, rows)
        if states.num_rows:
            slots = slots[is_state]
            if self.layout.has_kinds:
                np.add.at(batch_fold.groups.live, slots, states.column(LIVE).fill_null(0).to_numpy())
            batch_fold.exchange.states(slots, [states.column(name) for name in self.layout.states.names])

    def _without_seed(self, batch_fold: BatchFold, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the real rows. The seed row creates the single group even if there are no real rows."""
        real = block.column(REAL)
        if real.true_count < len(real):
            nothing = [pa.nulls(1, field.type) for field in self.layout.states]
            batch_fold.exchange.states(np.zeros(1, np.int32), nothing)
            block = block.filter(real)
        return block

    def _take_results(self, batch_fold: BatchFold) -> Iterator[pa.RecordBatch]:
        for groups, results, buffered_rows in batch_fold.take():
            if buffered_rows is not None:
                sound, failed_groups = split_failed(self.layout, one_batch(results), groups.keys)
                yield from failed_groups.letters(buffered_rows)
                results = pa.Table.from_batches([sound])  # noqa: PLW2901 - the results without errors
            for part in _parts(results):
                live_results = self._with_live_rows(groups, part)
                columns = groups.keys(live_results.column(SLOT).to_numpy()).columns
                columns += self.layout.results_of(live_results)
                if self.layout.isolates:
                    columns.append(pa.nulls(live_results.num_rows, self.layout.letter))
                yield pa.RecordBatch.from_arrays(columns, schema=self.layout.results)

    def _with_live_rows(self, groups: _Groups, part: pa.RecordBatch) -> pa.RecordBatch:
        """Drop groups without live rows. The single group of a query without keys is always kept."""
        if not self.layout.has_kinds or not len(self.layout.keys):
            return part
        return part.filter(pa.array(groups.live[part.column(SLOT).to_numpy()] > 0))


def _key_bytes(keys: pa.RecordBatch) -> float:
    """Return the mean bytes of a key of rows; for texts with a dictionary, the bytes of its values."""
    columns = [each.dictionary if isinstance(each, pa.DictionaryArray) else each for each in keys.columns]
    return float(sum(each.nbytes / max(len(each), 1) for each in columns))


def _last_hash(block: pa.RecordBatch) -> int:
    """Return the index of the first row with the last hash of a sorted block."""
    hashes = block.column(HASH).to_numpy()
    return int(np.searchsorted(hashes, hashes[-1], side="left"))


def _parts(results: pa.Table) -> Sequence[pa.RecordBatch]:
    return [batch for batch in results.to_batches(max_chunksize=_OUTPUT_ROWS_MAX) if batch.num_rows]
