"""The state table of one bucket: a log-structured table inside Spark's state store.

    manifest   the layout, and the runs, oldest first
    run        the output of one epoch or of a merge of several runs: pieces with disjoint ranges of hashes

A lookup searches the newest run first. An epoch writes one new run. When a level has `fan_in` runs, they are merged
into one run of the next level, where the newest row of a group wins. Tombstones are dropped when no older run exists. A
merge processes a limited number of rows in each epoch and continues in the next one, so that no epoch stalls.

Source: P. O'Neil, E. Cheng, D. Gawlick and E. O'Neil, "The log-structured merge-tree" (1996).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.hashes import Hashes, key_hashes
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.query.blocks import one_batch
from foldflight.engine.query.changelog import equal_rows
from foldflight.engine.query.layout import HASH, LIVE
from foldflight.engine.state.manifest import (
    CommitStats,
    Lookup,
    Manifest,
    Merge,
    PieceMeta,
    RunStore,
    SortedRun,
    Storage,
    TableBounds,
    TableLayout,
    calls_of,
    other_query,
    states_of,
)
from foldflight.engine.state.runs import Piece, encode_piece
from foldflight.functions.types.arrow import one_array, with_column

__all__ = ["CommitStats", "Conversion", "Lookup", "MemoryStore", "RunStore", "StateTable", "TableBounds", "TableLayout"]

_HASHES: Final = 1 << 64
# Copying so many bytes takes about as long as a call of Arrow.
_SMALL_PIECE_BYTES: Final = 1 << 16

Mask = npt.NDArray[np.bool_]
_Run = SortedRun[PieceMeta]


class Conversion(Protocol):
    """Converts states of another generation to states of the query."""

    def check(self, stored_schema: pa.Schema) -> None:
        """Raise RejectedError STATE_MISMATCH for states that it cannot convert."""

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:
        """Return n states, in the schema `stored_schema`, as n states of the query. The keys are used in errors."""


class MemoryStore:
    """A store of one table in memory.

    Args:
        value: The manifest.
        runs: The runs by name.
    """

    def __init__(self, value: bytes | None = None, runs: dict[str, bytes] | None = None) -> None:
        self.value = value
        self.runs = {} if runs is None else runs

    def manifest(self) -> bytes | None:
        """Return the manifest."""
        return self.value

    def put_manifest(self, data: bytes) -> None:
        """Replace the manifest."""
        self.value = data

    def run(self, run_id: str) -> bytes | None:
        """Return a run."""
        return self.runs.get(run_id)

    def put_run(self, run_id: str, data: bytes) -> None:
        """Add a run."""
        self.runs[run_id] = data

    def remove_run(self, run_id: str) -> None:
        """Remove a run."""
        del self.runs[run_id]


def _groups(piece: pa.RecordBatch) -> bytes:
    """Return an identity of a piece without its states: the hashes of its groups, and the sum of their live rows."""
    return piece.column(HASH).to_numpy().tobytes() + int(piece.column(LIVE).to_numpy().sum()).to_bytes(
        8, "big", signed=True
    )


class StateTable:
    """The groups of one bucket.

    Args:
        layout: The layout of the rows.
        storage: Where its pieces are.
        hashes: The hash of keys. The hashes of a stored table must not change.
        keeps: Selects the rows that merges keep, by their keys. Default: all. Rows that it does not select must never
            be looked up again.
        by_groups: Whether the groups identify a piece in its epoch, and not its bytes. Then a repeat of the epoch, in
            which states may have other bytes, has a piece of the same name. No state may refer to another row.
        conversion: Converts states of other generations when they are looked up or merged. None: a table with such
            states is refused.
        is_expired: Selects the groups that merges remove, by their rows. A lookup may return such a group until then.

    Attributes:
        lacks_outputs: Whether the groups were stored without the last outputs that are stored from now on.

    Raises:
        RejectedError: STATE_MISMATCH, if the stored table has another layout.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(
        self,
        layout: TableLayout,
        storage: Storage,
        *,
        hashes: Callable[[pa.RecordBatch], Hashes] = key_hashes,
        keeps: Callable[[pa.RecordBatch], Mask] | None = None,
        by_groups: bool = False,
        conversion: Conversion | None = None,
        is_expired: Callable[[pa.RecordBatch], Mask] | None = None,
    ) -> None:
        self.layout = layout
        self._storage = storage
        self._bounds = storage.bounds
        self._by_groups = by_groups
        self._hashes = hashes
        self._keeps = keeps
        self._conversion = conversion
        self._is_expired = is_expired
        manifest_data = storage.store.manifest()
        self._manifest = (
            Manifest(layout, {0: layout.generation}) if manifest_data is None else Manifest.decode(manifest_data)
        )
        stored_outputs = set(self._manifest.layout.emitted.names)
        self.lacks_outputs = bool(self._manifest.pieces) and not stored_outputs.issuperset(layout.emitted.names)
        self._is_declared = not self._manifest.adopt(layout, self._check) and manifest_data is not None

    def _check(self, stored_schema: pa.Schema) -> None:
        if self._conversion is None:
            raise other_query("calls", calls_of(stored_schema), calls_of(self.layout.states))
        self._conversion.check(stored_schema)

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return len(self._manifest.pieces)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.bytes for piece in self._manifest.pieces)

    def declare(self) -> None:
        """Store the layout if it is new, so that a different query is detected even if no group is touched."""
        if not self._is_declared:
            self._write_manifest()

    def lookup(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> Lookup:
        """Look up n distinct keys.

        Args:
            keys: n rows of the key columns, in the canonical form of `KeyIndex.keys`.
            hashes: Their stored hashes (`Groups.stored_hashes`). Default: they are computed.

        Raises:
            CorruptError: STATE_CHECKSUM, INVARIANT.
        """
        count = keys.num_rows
        hashes = self.hashes_of(keys) if hashes is None else hashes
        open_ = np.arange(count)
        # The index of each key's row among the rows of `parts`; -1 if it has none.
        indexes = np.full(count, -1, np.int64)
        parts: list[pa.RecordBatch] = []
        row_count = 0
        for meta in reversed(self._manifest.pieces):
            # The pieces of a run have different ranges of hashes, so most keys are searched in one piece of it.
            open_hashes = hashes[open_]
            positions = np.flatnonzero((open_hashes >= np.uint64(meta.low)) & (open_hashes <= np.uint64(meta.high)))
            if not len(positions):
                continue
            piece, open_hashes = self._piece(meta), open_hashes[positions]
            where = np.minimum(np.searchsorted(piece.hashes, open_hashes), len(piece.hashes) - 1)
            same = piece.hashes[where] == open_hashes
            if same.any():
                rows, where = self._candidates(meta, piece, where[same])
                indexes[open_[positions[same]]] = row_count + where
                parts.append(rows)
                row_count += rows.num_rows
                open_ = np.delete(open_, positions[same])
        rows = one_batch(pa.Table.from_batches(parts, schema=self.layout.rows)).take(
            pa.array(indexes, mask=indexes < 0)
        )
        if not (equal_rows(keys, rows.select(keys.schema.names)) | (indexes < 0)).all():
            # Several keys share a hash. This is rare, so it may be slower.
            owners, stored_rows = self.lookup_together(keys, hashes)
            indexes[:] = -1
            indexes[owners] = np.arange(len(owners))
            rows = stored_rows.take(pa.array(indexes, mask=indexes < 0))
        live = rows.column(LIVE).fill_null(0).to_numpy()
        layout = self.layout
        return Lookup(live > 0, live, rows.select(layout.states.names), rows.select(layout.emitted.names))

    def _candidates(
        self, meta: PieceMeta, piece: Piece, where: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return rows of a piece, with the query's states, and the positions of the rows `where` among them.

        A small piece is returned as it is. Most epochs find a few rows in each of many small pieces, and to select the
        rows of all of them at once takes less time than to select them one piece after the other.
        """
        if meta.bytes <= _SMALL_PIECE_BYTES and meta.generation == self._manifest.current:
            return piece.batch, where
        return self._convert(meta, piece.batch.take(pa.array(where))), np.arange(len(where))

    def lookup_together(self, keys: pa.RecordBatch, hashes: Hashes) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Look up the groups that share their hashed key columns with one of n distinct keys.

        Args:
            keys: n rows of the hashed key columns, in canonical form; without columns if none is hashed.
            hashes: Their n stored hashes.

        Returns:
            For each group found, the position of its key among the n keys, and its row, as `scan` returns it.

        Raises:
            CorruptError: STATE_CHECKSUM, INVARIANT.
        """
        owners: list[npt.NDArray[np.int64]] = []
        parts: list[pa.RecordBatch] = []
        # All runs are searched, because the groups of a key may be in different runs.
        for meta in reversed(self._manifest.pieces):
            positions = np.flatnonzero((hashes >= np.uint64(meta.low)) & (hashes <= np.uint64(meta.high)))
            if not len(positions):
                continue
            piece = self._piece(meta)
            first = np.searchsorted(piece.hashes, hashes[positions], "left")
            lengths = np.searchsorted(piece.hashes, hashes[positions], "right") - first
            who = np.repeat(positions, lengths)
            where = np.arange(lengths.sum()) + np.repeat(first - np.r_[0, np.cumsum(lengths)[:-1]], lengths)
            rows = piece.batch.take(pa.array(where))
            if keys.num_columns:
                same = equal_rows(keys.take(pa.array(who)), rows.select(keys.schema.names))
                who, rows = who[same], rows.filter(pa.array(same))
            owners.append(who)
            parts.append(self._convert(meta, rows))
        rows = one_batch(pa.Table.from_batches(parts, schema=self.layout.rows))
        if not rows.num_rows:
            return np.zeros(0, np.int64), rows
        slots = KeyIndex(self.layout.keys).slots([rows.column(name) for name in self.layout.keys.names]).to_numpy()
        _, newest = np.unique(slots, return_index=True)
        newest = newest[rows.column(LIVE).to_numpy()[newest] > 0]
        return np.concatenate(owners)[newest], rows.take(pa.array(newest))

    def hashes_of(self, keys: pa.RecordBatch) -> Hashes:
        """Return the stored hashes of n keys."""
        names = self.layout.hashed_names
        if not names and len(self.layout.keys):
            return np.zeros(keys.num_rows, np.uint64)
        return self._hashes(keys.select(names) if names else keys)

    def commit(
        self,
        keys: pa.RecordBatch,
        live: npt.NDArray[np.int64],
        states: pa.RecordBatch,
        hashes: Hashes | None = None,
        emitted: Sequence[pa.Array] | None = None,
    ) -> CommitStats:
        """Store the new states of n distinct groups, and continue merges.

        Args:
            keys: n rows of the key columns, as for `lookup`.
            live: int64, shape (n,): live rows of each group; 0 removes the group.
            states: n rows of `state_0`...
            hashes: The stored hashes of the keys, as for `lookup`.
            emitted: Their last outputs, an array of n values for each field of the layout. Default: not known.
        """
        hashes = self.hashes_of(keys) if hashes is None else hashes
        if emitted is None:
            emitted = [pa.nulls(len(live), each) for each in self.layout.emitted.types]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(hashes), *keys.columns, pa.array(live), *states.columns, *emitted], schema=self.layout.rows
        )
        order = np.argsort(hashes, kind="stable")
        new_run = SortedRun(0, self._store_pieces(batch.take(pa.array(order))))
        if new_run.pieces:
            self._manifest.runs.append(new_run)
        merged_rows = self._merge(max(self._bounds.merge_rows_max, self._bounds.merge_share * self._work([new_run])))
        self._write_manifest()
        return CommitStats(batch.num_rows, merged_rows, self.pieces, self.stored_bytes)

    def scan(self, where: Callable[[pa.RecordBatch], Mask] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all groups, by ranges of hashes: `hash`, keys, `live`, states, last outputs.

        Args:
            where: Selects rows of n stored rows by their keys. It also receives outdated rows of groups.
        """
        runs, low = list(self._manifest.runs), 0
        while low < _HASHES:
            high, _ = self._cut(runs, low, self._bounds.piece_rows_max)
            batch = self._newest(runs, low, high, where)
            rows = batch.filter(pa.array(batch.column(LIVE).to_numpy() > 0))
            if rows.num_rows:
                yield rows
            low = high + 1

    def page(self, low: int, high: int, budget: int, row_bytes: int) -> tuple[pa.RecordBatch, int]:
        """Return the first groups of a range of hashes, in the order of their hashes, and the end of their range.

        Args:
            low: The first hash.
            high: The last hash.
            budget: Rows to read; there may be fewer groups, and more if several have the same hash.
            row_bytes: Bytes that count as one row.

        Returns:
            The columns that `scan` returns, and the last hash up to which all groups are returned, at most `high`.
        """
        end, _ = self._cut(self._manifest.runs, low, budget, row_bytes)
        end = min(end, high)
        rows = self._newest(self._manifest.runs, low, end)
        return rows.filter(pa.array(rows.column(LIVE).to_numpy() > 0)), end

    # -- merges ------------------------------------------------------------------------------------------------------

    def _merge(self, budget: int) -> int:
        """Begin due merges and merge approximately `budget` rows; return the number of merged rows."""
        merged_rows = 0
        while merged_rows < budget:
            self._begin_merges()
            if not self._manifest.merges:
                return merged_rows
            # The lowest level first: it fills up fastest.
            merge = min(self._manifest.merges, key=lambda each: each.level)
            merged_rows += self._advance(merge, budget - merged_rows)
        return merged_rows

    def _begin_merges(self) -> None:
        busy = {name for merge in self._manifest.merges for name in merge.inputs}
        for level in sorted({run.level for run in self._manifest.runs}):
            if any(merge.level == level for merge in self._manifest.merges):
                continue
            free = [run for run in self._manifest.runs if run.level == level and run.pieces[0].id not in busy]
            if len(free) < self._bounds.fan_in:
                continue
            sizes = [self._work([run]) for run in free]
            if sizes[0] >= max(self._bounds.fan_in * statistics.median_low(sizes), self._bounds.merge_rows_max):
                # A run much larger than its level (a bulk load) moves up a level without being merged.
                free[0].level += 1
            else:
                inputs = [run.pieces[0].id for run in free[: self._bounds.fan_in]]
                self._manifest.merges.append(Merge(level, inputs))

    def _advance(self, merge: Merge, budget: int) -> int:
        inputs = [run for run in self._manifest.runs if run.pieces[0].id in merge.inputs]
        high, work = self._cut(inputs, merge.done, min(budget, self._bounds.piece_rows_max))
        rows = self._newest(inputs, merge.done, high)
        if self._is_expired is not None and rows.num_rows:
            # They become tombstones of the table first, because older runs may have older rows of their groups.
            live = np.where(self._is_expired(rows), 0, rows.column(LIVE).to_numpy())
            rows = with_column(rows, rows.schema.field(LIVE), pa.array(live))
        if inputs[0] is self._manifest.runs[0]:
            rows = rows.filter(pa.array(rows.column(LIVE).to_numpy() > 0))
        if self._keeps is not None and rows.num_rows:
            rows = rows.filter(pa.array(self._keeps(rows)))
        merge.outputs += self._store_pieces(rows)
        merge.done = high + 1
        if merge.done >= _HASHES:
            self._end_merge(merge, inputs)
        return work

    def _work(self, runs: Sequence[_Run]) -> int:
        return sum(run.work(self._bounds.row_bytes) for run in runs)

    def _cut(self, runs: Sequence[_Run], low: int, budget: int, row_bytes: int | None = None) -> tuple[int, int]:
        """Return the end of the range of hashes from `low` on that has `budget` rows of the runs, and its rows.

        Hashes need not be evenly distributed. Rows with the same hash stay together, so there may be more rows. Rows
        with more than `row_bytes` (default: from the bounds) count as several. The last hash of all is the end of a
        range with fewer rows.
        """
        unit = self._bounds.row_bytes if row_bytes is None else row_bytes
        metas = [meta for run in runs for meta in run.pieces if meta.high >= low]
        pieces_by_id: dict[str, Piece] = {}

        def work(start: int, end: int) -> float:
            rows = 0.0
            for meta in metas:
                if meta.low > end or meta.high < start:
                    continue
                each = max(1.0, meta.bytes / meta.rows / unit)
                if start <= meta.low and meta.high <= end:
                    rows += each * meta.rows
                else:
                    piece = pieces_by_id.get(meta.id) or pieces_by_id.setdefault(meta.id, self._piece(meta))
                    rows += each * piece.count(start, end)
            return rows

        last, rows_so_far = low - 1, 0.0
        # The ends of pieces come first, so that no piece is read beyond the first end that is far enough.
        for end in sorted({meta.high for meta in metas}):
            more = work(last + 1, end)
            if rows_so_far + more >= budget:
                break
            last, rows_so_far = end, rows_so_far + more
        else:
            return _HASHES - 1, round(rows_so_far)
        metas = [meta for meta in metas if meta.low <= end and meta.high > last]
        while end - last > 1:
            middle = (last + end) // 2
            more = work(last + 1, middle)
            if rows_so_far + more >= budget:
                end = middle
            else:
                last, rows_so_far = middle, rows_so_far + more
        return end, round(rows_so_far + work(last + 1, end))

    def _end_merge(self, merge: Merge, inputs: Sequence[_Run]) -> None:
        index = self._manifest.runs.index(inputs[0])
        old_ids = [piece.id for run in inputs for piece in run.pieces]
        self._manifest.runs = [run for run in self._manifest.runs if not any(run is each for each in inputs)]
        if merge.outputs:
            self._manifest.runs.insert(index, SortedRun(merge.level + 1, merge.outputs))
        self._manifest.merges.remove(merge)
        self._storage.remove(old_ids)

    def _newest(
        self, runs: Sequence[_Run], low: int, high: int, where: Callable[[pa.RecordBatch], Mask] | None = None
    ) -> pa.RecordBatch:
        """Return the newest row, or tombstone, of each group whose hash is in a range, sorted by hash."""
        parts = [
            (meta, self._piece(meta).slice(low, high))
            for run in reversed(runs)
            for meta in run.pieces
            if meta.low <= high and meta.high >= low
        ]
        if where is not None:
            parts = [(meta, rows.filter(pa.array(where(rows)))) for meta, rows in parts]
        names = [HASH, *self.layout.keys.names]
        schema = pa.schema([self.layout.rows.field(name) for name in names])
        keys = pa.Table.from_batches([rows.select(names) for _, rows in parts], schema=schema)
        newest = self._first_of_each(keys)
        batches, start = [], 0
        for meta, rows in parts:
            batches.append(self._convert(meta, rows.filter(pa.array(newest[start : start + rows.num_rows]))))
            start += rows.num_rows
        rows = one_batch(pa.Table.from_batches(batches, schema=self.layout.rows))
        return rows.take(pa.array(np.argsort(rows.column(HASH).to_numpy(), kind="stable")))

    def _first_of_each(self, keys: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which of n rows of `hash` and keys are the first of their group."""
        first = np.ones(keys.num_rows, np.bool_)
        hashes = keys.column(HASH).to_numpy()
        order = np.argsort(hashes, kind="stable")
        is_again = np.r_[False, hashes[order[1:]] == hashes[order[:-1]]][: len(order)]
        again = order[is_again]
        if not len(again):
            return first
        key_rows = keys.select(self.layout.keys.names)
        before = one_batch(key_rows.take(pa.array(order[np.flatnonzero(is_again) - 1])))
        if equal_rows(one_batch(key_rows.take(pa.array(again))), before).all():
            first[again] = False
            return first
        # Several groups share a hash.
        first[:] = False
        columns = [one_array(column) for column in key_rows.columns]
        slots = KeyIndex(self.layout.keys).slots(columns).to_numpy()
        first[np.unique(slots, return_index=True)[1]] = True
        return first

    def _convert(self, meta: PieceMeta, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return n rows of a piece with the query's states. Tombstones of other generations have no states."""
        if meta.generation == self._manifest.current:
            return rows
        generation = self._manifest.generations[meta.generation]
        stored_schema = states_of(generation)
        is_same = calls_of(stored_schema) == calls_of(self.layout.states) or self._conversion is None
        if is_same and generation.equals(self.layout.generation):
            return rows
        states = rows.select(stored_schema.names).columns if is_same else self._states(stored_schema, rows)
        names = [HASH, *self.layout.keys.names, LIVE]
        columns = [*rows.select(names).columns, *states, *self._last_outputs(generation, rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self.layout.rows)

    def _states(self, stored_schema: pa.Schema, rows: pa.RecordBatch) -> list[pa.Array]:
        """Convert n states that another generation stored to the query's states; NULL for tombstones."""
        assert self._conversion is not None
        is_live = rows.column(LIVE).to_numpy() > 0
        live = rows.filter(pa.array(is_live))
        states = self._conversion(stored_schema, live.select(self.layout.keys.names), live.select(stored_schema.names))
        indexes = pa.array(np.cumsum(is_live) - 1, mask=~is_live)
        return [column.take(indexes) for column in states.columns]

    def _last_outputs(self, generation: pa.Schema, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the last outputs of n rows of another generation; NULL for outputs that it does not have."""
        return [
            rows.column(field.name)
            if field.name in generation.names and generation.field(field.name).type == field.type
            else pa.nulls(rows.num_rows, field.type)
            for field in self.layout.emitted
        ]

    # -- bytes -------------------------------------------------------------------------------------------------------

    def _store_pieces(self, rows: pa.RecordBatch) -> list[PieceMeta]:
        """Store rows sorted by hash."""
        identity = _groups if self._by_groups else self._without_emitted if len(self.layout.emitted) else None
        pieces = self._storage.write(rows, identity)
        return [PieceMeta(**vars(piece), generation=self._manifest.current) for piece in pieces]

    def _without_emitted(self, piece: pa.RecordBatch) -> bytes:
        """Return the bytes that identify a piece in its epoch: all but outputs, which may vary in a repeat."""
        return encode_piece(piece.select(self.layout.rows_with(self.layout.states).names))

    def _piece(self, meta: PieceMeta) -> Piece:
        return self._storage.read(
            meta.id, meta.rows, lambda: self.layout.rows_with(self._manifest.generations[meta.generation])
        )

    def _write_manifest(self) -> None:
        self._is_declared = True
        self._storage.store.put_manifest(self._manifest.encode())
