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

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.client import OpenExchange, Transport
from foldflight.engine.blocks import BlockBounds, gather
from foldflight.engine.changelog import live_rows
from foldflight.engine.convert import convert
from foldflight.engine.deadletters import Failed, HeldRows
from foldflight.engine.keys import KeyIndex
from foldflight.engine.layout import BUCKET, FOLDED, HASH, LIVE, REAL, SLOT, Layout, retracts
from foldflight.engine.logs import forward, naming_group
from foldflight.exchange.frames import Open
from foldflight.fold import ERROR

__all__ = ["FinalFold", "PartialFold"]

_GC_THRESHOLD = 10_000
# After a block of new groups so many blocks pass on unseen, for looking costs, too.
_UNSEEN_BLOCKS = 3
# How many rows show how large states are.
_FIRST_ROWS = 1 << 13


class _Groups:
    """The groups of one epoch: their slots, their live rows, and their buckets where groups have buckets."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.index = KeyIndex(layout.keys) if len(layout.keys) else None
        self.live = np.zeros(0, np.int64)
        self.buckets = np.zeros(0, np.int32)
        self.held = HeldRows(layout.rows) if layout.isolates else None

    def __len__(self) -> int:
        return 1 if self.index is None else len(self.index)

    def slots(self, block: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the slots of n rows; `live` and `buckets` grow to all groups seen."""
        if self.index is None:
            slots = np.zeros(block.num_rows, np.int32)
        else:
            keys = [block.column(name) for name in self.layout.keys.names]
            slots = self.index.slots(keys).to_numpy()
        fresh = len(self) - len(self.live)
        if fresh:
            self.live = np.concatenate([self.live, np.zeros(fresh, np.int64)])
            self.buckets = np.concatenate([self.buckets, np.zeros(fresh, np.int32)])
        if BUCKET in block.schema.names:
            self.buckets[slots] = block.column(BUCKET).to_numpy()
        return slots

    def keys(self, slots: pa.Int32Array) -> list[pa.Array]:
        """Return the key columns of slots."""
        return [] if self.index is None else self.index.keys(slots).columns

    def key_rows(self, slots: npt.NDArray[np.int32]) -> pa.RecordBatch:
        """Return the keys of slots as rows."""
        return pa.RecordBatch.from_arrays(self.keys(pa.array(slots, pa.int32())), schema=self.layout.keys)

    def key(self, slot: int) -> dict[str, Any]:
        """Return the key of one slot, by the user's names."""
        return self.layout.group(self.key_rows(np.array([slot], np.int32)))


class _Folding:
    """One exchange, epoch by epoch.

    The results of an epoch are fetched only when the next block is there: the server works while Spark reads.
    """

    def __init__(self, transport: Transport, opening: Open, layout: Layout) -> None:
        self._transport = transport
        self._opening = opening
        self._layout = layout
        self._exchange: OpenExchange | None = None
        self._epoch = 0
        self._due: _Groups | None = None
        self.groups = _Groups(layout)

    @contextlib.contextmanager
    def _placing(self, groups: _Groups) -> Iterator[OpenExchange]:
        """Give the exchange, and an error of a function the key of its group, which a server does not know."""
        with naming_group(groups.key):
            if self._exchange is None:
                self._exchange = self._transport.open(self._opening)
            yield self._exchange
            forward(self._exchange.take_logs(), groups.key)

    def chunk(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        """Fold rows."""
        if self.groups.held is not None:
            self.groups.held.add(slots, block)
        batch = self._layout.chunk_of(slots, block)
        with self._placing(self.groups) as exchange:
            exchange.chunk(batch)

    def count(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        """Count live rows."""
        live = self.groups.live
        live += np.bincount(slots, minlength=len(live))
        if self._layout.has_kinds:
            live -= 2 * np.bincount(slots[retracts(block)], minlength=len(live))

    def states(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        """Merge the states of a block of partial states."""
        fields = [pa.field(SLOT, pa.int32()), *self._layout.states]
        columns = [convert(block.column(field.name), field.type) for field in self._layout.states]
        batch = pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), *columns], schema=pa.schema(fields))
        with self._placing(self.groups) as exchange:
            exchange.states(batch)

    def barrier(self) -> None:
        """End the epoch; its groups are done with."""
        with self._placing(self.groups) as exchange:
            self._epoch += 1
            exchange.barrier(self._epoch)
        self._due, self.groups = self.groups, _Groups(self._layout)

    def take(self) -> Iterator[tuple[_Groups, pa.Table]]:
        """Yield the results that are due, if any, and drop their accumulators."""
        if self._due is None:
            return
        groups, self._due = self._due, None
        with self._placing(groups) as exchange:
            results = exchange.results(self._epoch)
            exchange.forget(pa.array(np.arange(len(groups), dtype=np.int32)))
        yield groups, results

    def __enter__(self) -> Self:
        # Accumulators by the hundred thousand are no garbage, yet Python looks through all of them again and again: it
        # takes a quarter of the time at many groups.
        self._gc_thresholds = gc.get_threshold()
        gc.set_threshold(_GC_THRESHOLD, *self._gc_thresholds[1:])
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        gc.set_threshold(*self._gc_thresholds)
        for groups in (self.groups, self._due):
            if groups is not None and groups.held is not None:
                groups.held.close()
        if self._exchange is not None:
            # An exchange that failed is cut off rather than ended; only `__exit__` tells it so.
            self._exchange.__exit__(exception_type, *exception)


@dataclass(frozen=True)
class PartialFold:
    """The first stage: fold the rows of a partition to partial states.

    Args:
        transport: The way to the functions.
        opening: What to open; the results bring states.
        layout: The columns.
        bounds: How much is held at once.
        keeps_buckets: Whether rows come with the bucket of their group (int32, last), and leave with it.
    """

    transport: Transport
    opening: Open
    layout: Layout
    bounds: BlockBounds
    keeps_buckets: bool = False

    @property
    def output(self) -> pa.Schema:
        """Rows and states, in one schema."""
        return self._bucketed(self.layout.partial)

    def _bucketed(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field(BUCKET, pa.int32())) if self.keeps_buckets else schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold one partition."""
        with _Folding(self.transport, self.opening, self.layout) as folding:
            partition = _PartialPartition(folding, self.layout, self.output, self.bounds)
            for block in gather(batches, self._bucketed(self.layout.rows), self.bounds):
                yield from partition.take(block)
            yield from partition.end()


class _PartialPartition:
    """One partition in the first stage, and what was learnt of it so far."""

    def __init__(self, folding: _Folding, layout: Layout, output: pa.Schema, bounds: BlockBounds) -> None:
        self._folding = folding
        self._layout = layout
        self._output = output
        self._bounds = bounds
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
        if self._folded_bytes:
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
            folding.count(slots, piece)
            folding.chunk(slots, piece)
            self._folded_bytes += piece.nbytes
        if len(folding.groups) >= self._groups_max or self._folded_bytes >= self._bounds.folded_bytes_max:
            if self._folded_bytes:
                folding.barrier()
            folding.groups, self._folded_bytes = _Groups(self._layout), 0

    def _results(self) -> Iterator[pa.RecordBatch]:
        for groups, results in self._folding.take():
            if results.num_rows:
                room = self._bounds.state_bytes_max * results.num_rows // max(results.nbytes, 1)
                self._groups_max = max(min(self._bounds.groups_max, room), 1)
            for part in _parts(results):
                slots = part.column(SLOT)
                columns = dict(zip(self._layout.keys.names, groups.keys(slots), strict=True))
                columns[LIVE] = pa.array(groups.live[slots.to_numpy()])
                columns[BUCKET] = pa.array(groups.buckets[slots.to_numpy()])
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
        transport: The way to the functions.
        opening: What to open; the results bring outputs.
        layout: The columns.
        bounds: How much is held at once.
        merges: Whether the input is partial states rather than rows.
    """

    transport: Transport
    opening: Open
    layout: Layout
    bounds: BlockBounds
    merges: bool

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
        with _Folding(self.transport, self.opening, self.layout) as folding:
            is_open = False
            for block in gather(batches, self.input, self.bounds):
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
        folding.chunk(slots, block)

    def _merge(self, folding: _Folding, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        folded, rows, states = self.layout.parted(block)
        if rows.num_rows:
            row_slots = slots[~folded]
            folding.count(row_slots, rows)
            folding.chunk(row_slots, rows)
        if states.num_rows:
            slots = slots[folded]
            if self.layout.has_kinds:
                np.add.at(folding.groups.live, slots, states.column(LIVE).fill_null(0).to_numpy())
            folding.states(slots, states)

    def _without_seed(self, folding: _Folding, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return the real rows; the seed, which comes even if none do, makes the one group appear."""
        real = block.column(REAL)
        if real.true_count < len(real):
            nothing = [pa.nulls(1, field.type) for field in self.layout.states]
            seed = pa.RecordBatch.from_arrays(nothing, schema=self.layout.states)
            folding.states(np.zeros(1, np.int32), seed)
            block = block.filter(real)
        return block

    def _taken(self, folding: _Folding) -> Iterator[pa.RecordBatch]:
        for groups, results in folding.take():
            if groups.held is not None:
                is_sound = results[ERROR].is_null()
                failed = Failed(self.layout, results.filter(pc.invert(is_sound)), groups.key_rows)
                yield from failed.letters(groups.held)
                results = results.filter(is_sound)  # noqa: PLW2901 - what is left of them
            for part in _parts(results):
                kept = self._kept(groups, part)
                columns = groups.keys(kept.column(SLOT))
                columns += [
                    convert(kept.column(f"output_{place}"), field.type)
                    for place, field in enumerate(self.layout.outputs)
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
