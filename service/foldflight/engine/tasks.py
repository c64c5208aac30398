"""What runs in Spark's Python workers: one call for each partition, Arrow batches in, Arrow batches out.

`PartialFold` is the first stage of the two-phase plan: rows in, keys and partial states out. Its memory is bounded by
`BlockBounds`: when it holds too many groups, or has folded too many bytes, it gives its states away and starts afresh.
That a key then comes out twice does not matter: the second stage merges. A block in which most rows are groups never
seen before passes on as it is, for folding it would only turn rows into as many states.

`FinalFold` ends both plans. It gets all rows (or partial states) of its groups, sorted by the hash of the key, so a
group is complete as soon as the hash changes: its outputs leave and its accumulator is dropped. Its memory is therefore
one block, whether the partition has a thousand groups or ten million; only a group's own accumulator can be larger. The
sort is Spark's, which spills to disk.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.blocks import BlockBounds, gather, one_batch
from foldflight.engine.changelog import live_rows
from foldflight.engine.convert import convert
from foldflight.engine.deadletters import HeldRows, split_failed
from foldflight.engine.grouped import GroupedExchange, Groups
from foldflight.engine.layout import BUCKET, FOLDED, HASH, LIVE, REAL, SLOT, Layout, retracts
from foldflight.engine.query import Query

__all__ = ["FinalFold", "PartialFold"]

_GC_THRESHOLD = 10_000
# After a block of new groups so many blocks pass on unseen, for looking costs, too.
_UNSEEN_BLOCKS = 3
# How many rows show how large states are.
_FIRST_ROWS = 1 << 13


class _Groups(Groups):
    """The groups of one epoch, with their live rows, and their buckets where groups have buckets."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.live = np.zeros(0, np.int64)
        self.buckets = np.zeros(0, np.int32)

    def slots(self, block: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the slots of n rows; `live` and `buckets` grow to all groups seen."""
        slots = super().slots(block)
        fresh = len(self) - len(self.live)
        if fresh:
            self.live = np.concatenate([self.live, np.zeros(fresh, np.int64)])
            self.buckets = np.concatenate([self.buckets, np.zeros(fresh, np.int32)])
        if BUCKET in block.schema.names:
            self.buckets[slots] = block.column(BUCKET).to_numpy()
        return slots

    def count(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        """Count live rows."""
        self.live += np.bincount(slots, minlength=len(self.live))
        if self.layout.has_kinds:
            self.live -= 2 * np.bincount(slots[retracts(block)], minlength=len(self.live))


class _Folding:
    """One exchange, epoch by epoch, each with groups of its own.

    The results of an epoch are fetched only when the next block is there: the server works while Spark reads.
    """

    def __init__(self, query: Query, *, states: bool, outputs: bool) -> None:
        self._layout = query.layout
        self._is_due = False
        opening = query.opening_for(states=states, outputs=outputs)
        self.exchange = GroupedExchange(query.transport, opening, query.layout)
        self.groups = _Groups(query.layout)
        self.exchange.begin(self.groups)

    def barrier(self) -> None:
        """End the epoch; its groups are done with once `take` has its results."""
        self.exchange.barrier()
        self._is_due = True

    def renew(self) -> None:
        """Begin again without groups."""
        self.groups = _Groups(self._layout)
        self.exchange.begin(self.groups)

    def take(self) -> Iterator[tuple[_Groups, pa.Table, HeldRows | None]]:
        """Yield the results that are due, if any, with the groups and rows of their epoch, and begin the next one."""
        if not self._is_due:
            return
        self._is_due = False
        results, groups, held = self.exchange.results(), self.groups, self.exchange.held
        self.renew()
        yield groups, results, held

    def __enter__(self) -> Self:
        # Accumulators by the hundred thousand are no garbage, yet Python looks through all of them again and again: it
        # takes a quarter of the time at many groups.
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
        query: What the query does.
        bounds: How much is held at once.
        keeps_buckets: Whether rows come with the bucket of their group (int32, last), and leave with it.
    """

    query: Query
    bounds: BlockBounds
    keeps_buckets: bool = False

    @property
    def output(self) -> pa.Schema:
        """Rows and states, in one schema."""
        return self._bucketed(self.query.layout.partial)

    def _bucketed(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field(BUCKET, pa.int32())) if self.keeps_buckets else schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold one partition."""
        layout = self.query.layout
        with _Folding(self.query, states=True, outputs=False) as folding:
            partition = _PartialPartition(folding, layout, self.output, self.bounds)
            for block in gather(batches, self._bucketed(layout.rows), self.bounds):
                yield from partition.take(block)
            yield from partition.end()


class _PartialPartition:
    """One partition in the first stage, and what was learnt of it so far."""

    def __init__(self, folding: _Folding, layout: Layout, output: pa.Schema, bounds: BlockBounds) -> None:
        self._folding = folding
        self._layout = layout
        self._output = output
        self._bounds = bounds
        # Bytes alone do not tell whether an epoch is open: a column of type NULL has none.
        self._is_open = False
        self._folded_bytes = 0
        self._unseen = 0
        # Unknown until the first few rows have been an epoch of their own.
        self._groups_max = 0

    def take(self, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Fold a block, and yield what leaves."""
        start = 0
        while start < block.num_rows:
            yield from self._results()
            piece = block.slice(start, max(self._groups_max, _FIRST_ROWS))
            start += piece.num_rows
            if self._unseen:
                self._unseen -= 1
                yield self._as_it_is(piece)
                continue
            yield from self._fold(piece)

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        if self._is_open:
            yield from self._results()
            self._folding.barrier()
        yield from self._results()

    def _fold(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        folding = self._folding
        known = len(folding.groups)
        slots = folding.groups.slots(piece)
        fresh = len(folding.groups) - known
        if fresh >= self._bounds.unfolded_groups_min and 2 * fresh > piece.num_rows:
            self._unseen = _UNSEEN_BLOCKS
            yield self._as_it_is(piece)
        else:
            folding.groups.count(slots, piece)
            folding.exchange.chunk(slots, piece)
            self._is_open = True
            self._folded_bytes += piece.nbytes
        if len(folding.groups) >= self._groups_max or self._folded_bytes >= self._bounds.folded_bytes_max:
            if self._is_open:
                folding.barrier()
                self._is_open, self._folded_bytes = False, 0
            else:
                folding.renew()

    def _results(self) -> Iterator[pa.RecordBatch]:
        for groups, results, _ in self._folding.take():
            if results.num_rows:
                room = self._bounds.state_bytes_max * results.num_rows // max(results.nbytes, 1)
                self._groups_max = max(min(self._bounds.groups_max, room), 1)
            for part in _parts(results):
                slots = part.column(SLOT).to_numpy()
                columns = dict(zip(self._layout.keys.names, groups.keys(slots).columns, strict=True))
                columns[LIVE] = pa.array(groups.live[slots])
                columns[BUCKET] = pa.array(groups.buckets[slots])
                for field in self._layout.carried:
                    columns[field.name] = convert(part.column(field.name), field.type)
                yield self._filled(part.num_rows, columns, is_folded=True)

    def _as_it_is(self, block: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: block.column(name) for name in block.schema.names}
        return self._filled(block.num_rows, columns, is_folded=False)

    def _filled(self, rows: int, columns: dict[str, pa.Array], *, is_folded: bool) -> pa.RecordBatch:
        """Return n rows or n states in the one schema that both have on their way."""
        columns[FOLDED] = pa.array(np.full(rows, is_folded))
        return pa.RecordBatch.from_arrays(
            [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in self._output],
            schema=self._output,
        )


@dataclass(frozen=True)
class FinalFold:
    """The last stage: fold or merge all that belongs to the groups of a partition, sorted by `hash`, to outputs.

    Args:
        query: What the query does.
        merges: Whether the input is partial states rather than rows.
    """

    query: Query
    merges: bool

    @property
    def layout(self) -> Layout:
        """The columns of the query."""
        return self.query.layout

    @property
    def input(self) -> pa.Schema:
        """What comes from Spark; without keys and states, `real` is false for the row that stands for no row."""
        schema = self.layout.partial if self.merges else self.layout.rows
        if len(self.layout.keys):
            return schema.append(pa.field(HASH, pa.int64()))
        return schema if self.merges or REAL in schema.names else schema.append(pa.field(REAL, pa.bool_()))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold one partition."""
        has_keys = len(self.layout.keys) > 0
        with _Folding(self.query, states=False, outputs=True) as folding:
            is_open = False
            for block in gather(batches, self.input, self.query.bounds):
                yield from self._taken(folding)
                cut = _last_hash(block) if has_keys else 0
                if cut:
                    self._feed(folding, block.slice(0, cut))
                    folding.barrier()
                    yield from self._taken(folding)
                self._feed(folding, block.slice(cut))
                is_open = True
            if is_open:
                folding.barrier()
            yield from self._taken(folding)

    def _feed(self, folding: _Folding, block: pa.RecordBatch) -> None:
        groups = folding.groups
        if not self.merges and not len(self.layout.keys):
            block = self._without_seed(folding, block)
        slots = groups.slots(block)
        if self.merges:
            self._merge(folding, slots, block)
            return
        if self.layout.has_kinds:
            counted, groups.live = live_rows(slots, retracts(block), groups.live)
            if not counted.all():
                # A row that takes back what never came changes nothing; other groups go on.
                slots, block = slots[counted], block.filter(pa.array(counted))
        folding.exchange.chunk(slots, block)

    def _merge(self, folding: _Folding, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        folded, rows, states = self.layout.parted(block)
        if rows.num_rows:
            row_slots = slots[~folded]
            folding.groups.count(row_slots, rows)
            folding.exchange.chunk(row_slots, rows)
        if states.num_rows:
            slots = slots[folded]
            if self.layout.has_kinds:
                np.add.at(folding.groups.live, slots, states.column(LIVE).fill_null(0).to_numpy())
            folding.exchange.states(slots, [states.column(name) for name in self.layout.states.names])

    def _without_seed(self, folding: _Folding, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the real rows; the seed, which comes even if none do, makes the one group appear."""
        real = block.column(REAL)
        if real.true_count < len(real):
            nothing = [pa.nulls(1, field.type) for field in self.layout.states]
            folding.exchange.states(np.zeros(1, np.int32), nothing)
            block = block.filter(real)
        return block

    def _taken(self, folding: _Folding) -> Iterator[pa.RecordBatch]:
        for groups, results, held in folding.take():
            if held is not None:
                sound, failed = split_failed(self.layout, one_batch(results), groups.keys)
                yield from failed.letters(held)
                results = pa.Table.from_batches([sound])  # noqa: PLW2901 - what is left of them
            for part in _parts(results):
                kept = self._kept(groups, part)
                columns = groups.keys(kept.column(SLOT).to_numpy()).columns
                columns += [
                    convert(column, field.type)
                    for column, field in zip(self.layout.outputs_of(kept), self.layout.outputs, strict=True)
                ]
                if self.layout.isolates:
                    columns.append(pa.nulls(kept.num_rows, self.layout.letter))
                yield pa.RecordBatch.from_arrays(columns, schema=self.layout.results)

    def _kept(self, groups: _Groups, part: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out groups that have no rows left. The one group of a query without keys always stays."""
        if not self.layout.has_kinds or not len(self.layout.keys):
            return part
        return part.filter(pa.array(groups.live[part.column(SLOT).to_numpy()] > 0))


def _last_hash(block: pa.RecordBatch) -> int:
    """Return the place of the first row of the last hash in a block sorted by hash."""
    hashes = block.column(HASH).to_numpy()
    return int(np.searchsorted(hashes, hashes[-1], side="left"))


def _parts(results: pa.Table) -> Sequence[pa.RecordBatch]:
    return [batch for batch in results.to_batches() if batch.num_rows]
