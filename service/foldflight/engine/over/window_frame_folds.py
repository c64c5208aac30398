"""Folding of window frames in exchanges, by four strategies.

*Accumulate* and *retract*: a window frame differs from the window frame of the row before by rows that leave and rows
that enter. The chunk has these rows, one after another, and `emit` is true at the last one of each window frame. A
window frame for which more rows would leave and enter than it has begins with a new accumulator, so no accumulator
loses all its rows. But FILTER or skipped NULLs may exclude all rows that are left.

*Merge*: rows are folded to nodes of 8, 16, 32... rows, at multiples of their size from the beginning of the partition,
so that the rounding of floats does not depend on other partitions. A window frame is folded from the few rows before
its first node, one state of all nodes in it, and the few rows after the last. Adjacent window frames often begin and
end at the same nodes. They share that state, and the states of different window frames share the large nodes in
their middle. So what a row costs does not grow with the length of its window frame. Source of the tree of nodes: V.
Leis et al., "Efficient processing of window functions in analytical SQL queries" (2015). A node is made once, unless
all nodes of a window frame would have more bytes than a block. Then the small ones are only kept around the ends of
window frames, and those that an end reaches later are made again.

*Recompute*: each window frame is folded row by row.

`OverFold` is the task of a batch: called once for each partition of the engine, with sorted rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.over.over_query import OverQuery, Part, Strategy
from foldflight.engine.over.partitions import Partitions, Store
from foldflight.engine.over.positions import Positions, positions_of
from foldflight.engine.query.blocks import AdaptiveSize, gather, one_batch
from foldflight.engine.query.layout import KIND, REAL, SLOT
from foldflight.exchange.frames import Open
from foldflight.functions import RowKind
from foldflight.functions.types.arrow import with_column

_ROWS: Final = 1 << 15
_NODE_ROWS: Final = 8
_TIER_LEVELS: Final = 3
_NONE: Final = np.zeros(0, np.int64)

_Slots = npt.NDArray[np.int32]


def fold_of(part: Part) -> WindowFrameFold:
    """Return what folds the window frames of a part."""
    return _MovingWindowFrame(part) if part.strategy in (Strategy.ACCUMULATE, Strategy.RETRACT) else _Separate(part)


class WindowFrameFold(ExitStack, ABC):
    """Folds the window frames of one part; a context manager that closes its exchanges."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        self._layout = part.query.layout
        self._chunk_rows_max = part.query.bounds.chunk_rows_max
        self.slot_rows = _NONE  # for each slot in use, the position of a row of its partition
        self._store: Store | None = None

    def begin(self, store: Store) -> None:
        """Use the rows of a store from here on."""
        self._store, self.slot_rows = store, _NONE

    @abstractmethod
    def outputs(self, rows: Positions, low: Positions, high: Positions) -> list[pa.Array]:
        """Return the n outputs of each call for the next n rows of the store.

        Args:
            rows: int64, shape (n,): their positions.
            low: int64, shape (n,): the first position of each window frame.
            high: int64, shape (n,): the position after the last one.

        Raises:
            FunctionError: With function and group.
        """

    def exchange_of(self, open_request: Open) -> GroupedExchange:
        """Return an exchange over the slots of this fold, which adds the keys of partitions to errors and logs."""
        exchange = GroupedExchange(self.part.query.transport, open_request, self._layout)
        exchange.begin(self)
        self.push(exchange)
        return exchange

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return len(self.slot_rows)

    def name(self, slot: int) -> dict[str, Any]:
        """Return the key of the partition of a slot, by the user's names."""
        assert self._store is not None
        if slot >= len(self.slot_rows):
            return {}
        position = int(self.slot_rows[slot])
        return self._layout.group(self._store.slice(position, position + 1).select(self._layout.keys.names))

    def _rows(self, positions: Positions) -> pa.RecordBatch:
        """Return the arguments at n positions."""
        assert self._store is not None
        if not len(self._layout.columns):
            return pa.RecordBatch.from_arrays([pa.nulls(len(positions), pa.bool_())], names=[REAL])
        return self._store.take(positions, self._layout.columns.names)


class _MovingWindowFrame(WindowFrameFold):
    """Accumulates rows that enter the window frame, and retracts rows that leave it."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._exchange = self.exchange_of(part.running_request)
        self._empty: list[pa.Array] | None = None
        self._slot = -1  # the slot of the window frame before; -1: there is none
        self._low = self._high = 0
        self._output: list[pa.Array] = []

    def begin(self, store: Store) -> None:
        super().begin(store)
        if self._slot >= 0:
            self._exchange.forget([self._slot])
        self._slot = -1

    def outputs(self, rows: Positions, low: Positions, high: Positions) -> list[pa.Array]:
        full = np.flatnonzero(low < high)
        pool = [*([self._output] if self._slot >= 0 else [])]
        before = len(pool) - 1
        indexes = np.full(len(low), -1, np.int64)
        if len(full):
            # A window frame without events has the output of the window frame before.
            indexes[full] = before + np.cumsum(self._fold(low[full], high[full], pool))
        count = sum(len(outputs[0]) for outputs in pool)
        if len(full) < len(low):
            pool.append(self._empty_value(int(rows[np.argmax(low >= high)])))
            indexes[indexes < 0] = count
        output_columns = [_take(pa.concat_arrays(list(columns)), indexes) for columns in zip(*pool, strict=True)]
        if len(full):
            self._output = [column.slice(int(full[-1]), 1) for column in output_columns]
        return output_columns

    def _fold(self, low: Positions, high: Positions, pool: list[list[pa.Array]]) -> npt.NDArray[np.bool_]:
        """Fold n window frames that are not empty, add the outputs to the pool, and return which have an output."""
        assert self._store is not None
        starts = self._store.order.starts
        parts = np.searchsorted(starts, low, side="right")
        low_before, high_before = np.append(self._low, low[:-1]), np.append(self._high, high[:-1])
        part_before = np.append(np.searchsorted(starts, self._low, side="right"), parts[:-1])
        leaving_counts, entering_counts = low - low_before, high - high_before
        is_new = (
            (parts != part_before)
            | (leaving_counts < 0)
            | (entering_counts < 0)
            | (leaving_counts + entering_counts > high - low)
        )
        is_new[0] |= self._slot < 0
        leaving_counts = np.where(is_new, 0, leaving_counts)
        enters_at = np.where(is_new, low, high_before)
        entering_counts = np.where(is_new, high - low, entering_counts)
        slots = self._assign_slots(is_new, low)
        totals = leaving_counts + entering_counts
        ends = np.cumsum(totals)
        for start in range(0, int(ends[-1]), self._chunk_rows_max):
            events: Positions = np.arange(start, min(start + self._chunk_rows_max, int(ends[-1])), dtype=np.int64)
            owners = _owners(ends, start, start + len(events))
            offsets = events - (ends[owners] - totals[owners])
            retracts = offsets < leaving_counts[owners]
            positions = np.where(
                retracts,
                low_before[owners] + offsets,
                enters_at[owners] + offsets - leaving_counts[owners],
            )
            pool.append(self._send(slots[owners], positions, retracts, events == ends[owners] - 1))
        self._low, self._high = int(low[-1]), int(high[-1])
        self._keep_only(int(slots[-1]))
        return totals > 0

    def _assign_slots(self, is_new: npt.NDArray[np.bool_], low: Positions) -> _Slots:
        """Return the slots of n window frames. A new accumulator has a slot that no other one has."""
        count = int(is_new.sum())
        free = np.arange(count + 1, dtype=np.int32)
        free = free[free != self._slot][:count]
        slots = np.concatenate([np.array([self._slot], np.int32), free])[np.cumsum(is_new)]
        self.slot_rows = np.zeros(int(slots.max()) + 1, np.int64)
        self.slot_rows[slots] = low
        return slots

    def _send(
        self, slots: _Slots, positions: Positions, retracts: npt.NDArray[np.bool_], emit: npt.NDArray[np.bool_]
    ) -> list[pa.Array]:
        rows = self._rows(positions)
        if self._layout.has_kinds:
            kinds = np.where(retracts, int(RowKind.DELETE), int(RowKind.INSERT)).astype(np.int8)
            rows = with_column(rows, KIND, pa.array(kinds))
        return self._layout.results_of(self._exchange.running_outputs(slots, rows, emit))

    def _keep_only(self, slot: int) -> None:
        others = np.setdiff1d(np.arange(max(len(self.slot_rows), self._slot + 1), dtype=np.int32), [slot])
        if len(others):
            self._exchange.forget(others)
        self._slot = slot

    def _empty_value(self, row: int) -> list[pa.Array]:
        """Return the value of a window frame without rows: the value of a new accumulator."""
        if self._empty is None:
            slot = np.array([self._slot + 1], np.int32)
            self.slot_rows = np.append(self.slot_rows[: self._slot + 1], row)
            nothing = [pa.nulls(1, field.type) for field in self._layout.states]
            self._empty = self._layout.results_of(self._exchange.outputs_of(slot, nothing))
            self._exchange.forget(slot)
        return self._empty


class _Separate(WindowFrameFold):
    """Folds each window frame with an accumulator of its own, from nodes and rows."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._exchange = self.exchange_of(part.separate(states=False))
        bounds = part.query.bounds
        self._adaptive_size = AdaptiveSize(bounds.rows_max, bounds.bytes_max)
        self._nodes = _Nodes(self) if part.strategy is Strategy.MERGE else None

    def begin(self, store: Store) -> None:
        super().begin(store)
        if self._nodes is not None:
            self._nodes.begin(store.order.starts)

    def outputs(self, rows: Positions, low: Positions, high: Positions) -> list[pa.Array]:
        parts: list[list[pa.Array]] = []
        start = 0
        ends = np.cumsum(high - low)
        while start < len(low):
            end = min(start + self._adaptive_size.items, len(low))
            if self._nodes is None:
                # An accumulator may grow with its rows, so all of them together get no more rows than one chunk has.
                before = int(ends[start - 1]) if start else 0
                fitting = int(np.searchsorted(ends, before + self._chunk_rows_max, side="right"))
                end = min(end, max(fitting, start + 1))
            outputs, merged_bytes = self._fold(rows[start:end], low[start:end], high[start:end])
            self._adaptive_size.record(end - start, outputs.nbytes + merged_bytes)
            parts.append(self._layout.results_of(outputs))
            start = end
        return [pa.concat_arrays(list(columns)) for columns in zip(*parts, strict=True)]

    def _fold(self, rows: Positions, low: Positions, high: Positions) -> tuple[pa.RecordBatch, int]:
        """Return the outputs of n window frames, and the bytes of the states that were merged for them."""
        left = right = high
        slots, merged_bytes = _NONE, 0
        states: list[pa.Array] = []
        if self._nodes is not None:
            shift = self._nodes.shift(rows)
            first, last = -(-(low + shift) // _NODE_ROWS), (high + shift) // _NODE_ROWS
            has_nodes = first < last
            left = np.where(has_nodes, first * _NODE_ROWS - shift, high)
            right = np.where(has_nodes, last * _NODE_ROWS - shift, high)
            slots = np.flatnonzero(has_nodes)
            states, merged_bytes = self._nodes.ranges(first[slots], last[slots], int((low + shift).min()))
        self.slot_rows = rows
        self.rows(self._exchange, low, left)
        nothing = np.flatnonzero(low >= high)
        if len(nothing):
            empty = [pa.nulls(len(nothing), field.type) for field in self._layout.states]
            self.states(self._exchange, nothing, empty)
        if len(slots):
            self.states(self._exchange, slots, states)
            self.rows(self._exchange, right, high)
        return self.results(self._exchange, len(low)), merged_bytes

    def rows(self, exchange: GroupedExchange, low: Positions, high: Positions) -> None:
        """Fold the rows from `low` to `high` into slots 0 to n - 1."""
        ends = np.cumsum(high - low)
        for start in range(0, int(ends[-1]) if len(ends) else 0, self._chunk_rows_max):
            events: Positions = np.arange(start, min(start + self._chunk_rows_max, int(ends[-1])), dtype=np.int64)
            slots = _owners(ends, start, start + len(events))
            positions = (high[slots] - ends[slots] + events).astype(np.int64)
            exchange.chunk(slots.astype(np.int32), self._rows(positions))

    def states(self, exchange: GroupedExchange, slots: Positions, states: Sequence[pa.Array]) -> None:
        """Merge n states of each call into n slots, in order."""
        with exchange.use_exchange() as operations:
            for start in range(0, len(slots), self._chunk_rows_max):
                slot_part = slots[start : start + self._chunk_rows_max].astype(np.int32)
                parts = [column.slice(start, len(slot_part)) for column in states]
                operations.states(self._layout.states_of(slot_part, parts))

    @staticmethod
    def results(exchange: GroupedExchange, count: int) -> pa.RecordBatch:
        """Return the results of slots 0 to `count` - 1, and drop their accumulators."""
        exchange.barrier()
        answer = one_batch(exchange.results())
        exchange.forget(np.arange(count))
        assert np.array_equal(answer.column(SLOT).to_numpy(), np.arange(count))
        return answer


class _Nodes:
    """States of 8, 16, 32... adjacent rows of a partition.

    Node k of level l begins at the aligned position k * 8 * 2**l.

    Nodes of three levels are merged from nodes of the level below: their base. If all nodes would need too much, those
    below a level, the cut, are kept only at the ends of window frames.

    The aligned positions of a partition's rows are adjacent, and begin at a multiple of `_stride`, a power of two that
    is not less than the length of any partition.

    Args:
        fold: Folds and merges.
    """

    def __init__(self, fold: _Separate) -> None:
        self._fold = fold
        self._exchange = fold.exchange_of(fold.part.separate(states=True))
        self._states_by_level: list[tuple[Positions, list[pa.Array]]] = []
        self._starts = _NONE
        self._stride = _NODE_ROWS
        bounds = fold.part.query.bounds
        self._adaptive_size = AdaptiveSize(bounds.rows_max, bounds.bytes_max)
        self._leaf_bytes: int | None = None  # of a state of 8 rows, measured
        self._cut_level = 0

    def begin(self, starts: Positions) -> None:
        """Drop all nodes. From here on partitions begin at these positions; the last one is the end."""
        self._states_by_level = []
        self._starts = starts
        self._stride = max(1 << (int(np.diff(starts).max()) - 1).bit_length(), _NODE_ROWS)

    def shift(self, rows: Positions) -> Positions:
        """Return the distance from position to aligned position in the partitions of n rows."""
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        return parts * self._stride - self._starts[parts]

    def _positions(self, aligned_positions: Positions) -> Positions:
        """Return the positions of the rows at n aligned positions."""
        return self._starts[aligned_positions // self._stride] + aligned_positions % self._stride

    def ranges(self, first: Positions, last: Positions, oldest: int) -> tuple[list[pa.Array], int]:
        """Return the states of n ranges of nodes of level 0, none of them empty, and the bytes of all that was merged.

        Missing nodes are made, and nodes that no later window frame contains are dropped.

        Args:
            first: int64, shape (n,): the first node of each range. Equal ranges that are adjacent are merged once.
            last: int64, shape (n,): the node after the last one.
            oldest: The first aligned position that the window frames of these ranges, and later window frames, have.
        """
        tiers = list(_tiers(first, last))
        if tiers:
            self._make([piece for tier in tiers for piece in (*tier.left, *tier.right)], oldest)
        states: list[pa.Array] = [pa.nulls(0, field.type) for field in self._fold.part.query.layout.states]
        merged_bytes = 0
        for tier in reversed(tiers):
            slots, parts = self._parts(tier, states)
            merged_states = self._merge(tier, slots, parts)
            states = [column.take(pa.array(tier.indexes)) for column in merged_states]
            merged_bytes += sum(column.nbytes for column in (*parts, *states))
        return states, merged_bytes

    def _parts(self, tier: _Tier, inner: Sequence[pa.Array]) -> tuple[Positions, list[pa.Array]]:
        """Return the slots of the parts of a tier's ranges, in order, and their states, made of inner states."""
        left = [self._states(piece.level, piece.nodes) for piece in tier.left]
        right = [self._states(piece.level, piece.nodes) for piece in tier.right]
        slots = np.concatenate(
            [*(piece.slots for piece in tier.left), tier.inner, *(each.slots for each in tier.right)]
        )
        states = [pa.concat_arrays(list(columns)) for columns in zip(*left, inner, *right, strict=True)]
        return slots, states

    def _merge(self, tier: _Tier, slots: Positions, parts: list[pa.Array]) -> list[pa.Array]:
        """Return the states of the ranges of a tier."""
        if len(slots) == len(tier.first):  # each range has one part, which is its state
            return [column.take(pa.array(np.argsort(slots))) for column in parts]
        fold = self._fold
        fold.slot_rows = self._positions(tier.first * (_NODE_ROWS << tier.level))
        fold.states(self._exchange, slots, parts)
        answer = fold.results(self._exchange, len(tier.first))
        return [answer.column(name) for name in fold.part.query.layout.states.names]

    def _states(self, level: int, nodes: Positions) -> list[pa.Array]:
        """Return the states of n known nodes of a level."""
        known_nodes, states = self._states_by_level[level]
        indexes = pa.array(np.searchsorted(known_nodes, nodes))
        return [column.take(indexes) for column in states]

    def _make(self, pieces: Sequence[_Piece], oldest: int) -> None:
        """Make the missing nodes of the pieces, and drop nodes that no later window frame contains."""
        levels = max(piece.level for piece in pieces) + 1
        while len(self._states_by_level) < levels:
            self._states_by_level.append((_NONE, []))
        if self._leaf_bytes is None:
            self._add([(0, pieces[0].nodes[:1] << pieces[0].level)])
        end = max(int(piece.nodes.max() + 1) << piece.level for piece in pieces)
        self._cut_level = self._lowest_complete(end - oldest // _NODE_ROWS, levels)
        missing_nodes = self._missing_nodes(pieces, levels)
        ends = [piece.nodes >> (self._cut_level - piece.level) for piece in pieces if piece.level < self._cut_level]
        edges = np.unique(np.concatenate([_NONE, *ends]))
        self._make_below(missing_nodes[: self._cut_level + 1], edges)
        self._add(list(enumerate(missing_nodes))[self._cut_level + 1 :])
        self._drop(lambda level, nodes: (nodes + 1) * (_NODE_ROWS << level) <= oldest)
        self._drop(
            lambda level, nodes: ~_is_below(level, nodes, cut_level=self._cut_level, above=edges), below=self._cut_level
        )

    def _missing_nodes(self, pieces: Sequence[_Piece], levels: int) -> list[Positions]:
        """Return the nodes of each level that are not known, and from which the nodes of the pieces are made."""
        needed_nodes = [
            np.unique(np.concatenate([_NONE, *(piece.nodes for piece in pieces if piece.level == level)]))
            for level in range(levels)
        ]
        for level in range(levels - 1, -1, -1):
            needed_nodes[level] = np.setdiff1d(needed_nodes[level], self._states_by_level[level][0], assume_unique=True)
            if level and len(needed_nodes[level]):
                base = _base(level)
                children = np.add.outer(needed_nodes[level] << (level - base), np.arange(1 << (level - base)))
                needed_nodes[base] = np.union1d(needed_nodes[base], children.ravel())
        return needed_nodes

    def _lowest_complete(self, leaves: int, levels: int) -> int:
        """Return the level below which nodes are kept only at the ends of window frames.

        All would need too much. It is a base. Otherwise larger nodes would be merged from other parts, and rounded
        differently.

        Args:
            leaves: The number of nodes of level 0 from the first row of a window frame to the last one.
            levels: The number of levels.
        """
        bytes_max = self._fold.part.query.bounds.bytes_max
        # The nodes above the cut, and those around the two ends of a window frame.
        bytes_by_cut = {
            cut_level: 2 * (self._leaf_bytes or 0) * ((leaves >> cut_level) + (2 << cut_level if cut_level else 0))
            for cut_level in range(0, levels, _TIER_LEVELS)
        }
        return next(
            (cut_level for cut_level, bytes_ in bytes_by_cut.items() if bytes_ <= bytes_max),
            min(bytes_by_cut, key=bytes_by_cut.__getitem__),
        )

    def _make_below(self, missing_nodes: Sequence[Positions], edges: Positions) -> None:
        """Make the missing nodes up to the cut, a range of rows at a time, and drop nodes that no window frame needs.

        Args:
            missing_nodes: The missing nodes of each of these levels, ascending.
            edges: Nodes of the last level, ascending. Their children are kept.
        """
        cut_level = self._cut_level
        above = np.unique(np.concatenate([nodes >> (cut_level - level) for level, nodes in enumerate(missing_nodes)]))
        leaves_max = self._fold.part.query.bounds.bytes_max // (2 * max(self._leaf_bytes or 0, 1))
        at_once = max(leaves_max >> cut_level, 1)
        for start in range(0, len(above), at_once):
            above_part = above[start : start + at_once]
            here = missing_nodes
            if len(above_part) < len(above):
                here = [
                    nodes[_is_below(level, nodes, cut_level=cut_level, above=above_part)]
                    for level, nodes in enumerate(missing_nodes)
                ]
            self._add(list(enumerate(here)))
            finished_nodes = np.setdiff1d(above_part, edges)
            self._drop(partial(_is_below, cut_level=cut_level, above=finished_nodes), below=cut_level)

    def _drop(self, is_needless: Callable[[int, Positions], npt.NDArray[np.bool_]], below: int | None = None) -> None:
        """Drop known nodes of all levels, or of those below one."""
        for level, (known_nodes, states) in enumerate(self._states_by_level[:below]):
            remaining_nodes = np.flatnonzero(~is_needless(level, known_nodes))
            if len(remaining_nodes) < len(known_nodes):
                self._states_by_level[level] = (
                    known_nodes[remaining_nodes],
                    [column.take(pa.array(remaining_nodes)) for column in states],
                )

    def _add(self, missing_nodes: Sequence[tuple[int, Positions]]) -> None:
        """Make new nodes, by ascending level: nodes of one base together, because each exchange has a fixed cost."""
        for base, group in groupby(missing_nodes, key=lambda each: _base(each[0])):
            tier = list(group)
            levels = np.concatenate([np.full(len(nodes), level) for level, nodes in tier])
            nodes = np.concatenate([nodes for _, nodes in tier])
            new_states = []
            start = 0
            while start < len(nodes):
                end = start + self._adaptive_size.items
                new_states.append(self._make_nodes(base, levels[start:end], nodes[start:end]))
                self._adaptive_size.record(len(new_states[-1][0]), sum(column.nbytes for column in new_states[-1]))
                start += len(new_states[-1][0])
            if not new_states:
                continue
            if base < 0:
                self._leaf_bytes = -(-sum(column.nbytes for column in new_states[-1]) // len(new_states[-1][0]))
            columns = [pa.concat_arrays(list(parts)) for parts in zip(*new_states, strict=True)]
            start = 0
            for level, new_nodes in tier:
                self._know(level, new_nodes, [column.slice(start, len(new_nodes)) for column in columns])
                start += len(new_nodes)

    def _know(self, level: int, nodes: Positions, states: Sequence[pa.Array]) -> None:
        """Add new nodes of a level, ascending, to its existing nodes."""
        if not len(nodes):
            return
        known_nodes, before = self._states_by_level[level]
        together = np.concatenate([known_nodes, nodes])
        columns = [pa.concat_arrays(list(parts)) for parts in zip(*([before] if before else []), states, strict=True)]
        if len(known_nodes) and known_nodes[-1] > nodes[0]:
            order = np.argsort(together)
            together, columns = together[order], [column.take(pa.array(order)) for column in columns]
        self._states_by_level[level] = (together, columns)

    def _make_nodes(self, base: int, levels: Positions, nodes: Positions) -> list[pa.Array]:
        """Return the states of n new nodes: folded from rows if the base is below 0, or else merged from its nodes."""
        fold = self._fold
        begins = self._positions((nodes << levels) * _NODE_ROWS)
        fold.slot_rows = begins
        if base < 0:
            fold.rows(self._exchange, begins, begins + _NODE_ROWS)
        else:
            counts = 1 << (levels - base)
            slots = np.repeat(np.arange(len(nodes)), counts)
            indexes = np.arange(len(slots)) - (np.cumsum(counts) - counts)[slots]
            fold.states(self._exchange, slots, self._states(base, (nodes << (levels - base))[slots] + indexes))
        answer = fold.results(self._exchange, len(nodes))
        return [answer.column(name) for name in fold.part.query.layout.states.names]


def _base(level: int) -> int:
    """Return the level whose nodes are merged to the nodes of a level; below 0: they are folded from rows."""
    return (level - 1) // _TIER_LEVELS * _TIER_LEVELS


def _take(column: pa.Array, indexes: Positions) -> pa.Array:
    """Return the values at n indexes, at least one, without a copy if the indexes are adjacent."""
    first = int(indexes[0])
    if int(indexes[-1]) - first == len(indexes) - 1 and (np.diff(indexes) == 1).all():
        return column.slice(first, len(indexes))
    return column.take(pa.array(indexes))


def _owners(ends: Positions, start: int, stop: int) -> Positions:
    """Return which of adjacent ranges with these ends has each of the positions from `start` to `stop`."""
    first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
    clipped_ends = np.clip(ends[first : last + 1], start, stop)
    return np.repeat(np.arange(first, last + 1), np.diff(clipped_ends, prepend=start))


def _is_below(level: int, nodes: Positions, *, cut_level: int, above: Positions) -> npt.NDArray[np.bool_]:
    """Return which of n nodes of a level are in one of the nodes `above` of the level `cut_level`."""
    return np.isin(nodes >> (cut_level - level), above)


class _Piece(NamedTuple):
    """A part of some ranges of nodes: one node of each.

    Args:
        slots: int64, shape (n,): the ranges.
        level: The level of the nodes.
        nodes: int64, shape (n,): the nodes.
    """

    slots: Positions
    level: int
    nodes: Positions


class _Tier(NamedTuple):
    """Different ranges of nodes of one level, and the parts from which each is merged, in order.

    Args:
        level: The level.
        first: int64, shape (n,): the first node of each range.
        indexes: int64: for each range that was asked for, its index among these.
        left: The nodes before the inner range.
        inner: int64: the ranges that have an inner one, a range of nodes that are `_TIER_LEVELS` levels higher.
        right: The nodes after the inner range.
    """

    level: int
    first: Positions
    indexes: Positions
    left: list[_Piece]
    inner: Positions
    right: list[_Piece]


def _tiers(first: Positions, last: Positions) -> Iterator[_Tier]:
    """Yield the tiers of n ranges of nodes of level 0, none of them empty.

    The ranges of a tier are the inner ones of the tier before. So each range becomes the fewest nodes that together
    have its nodes.
    """
    level = 0
    while len(first):
        begins = np.append(True, (np.diff(first) != 0) | (np.diff(last) != 0))
        first, last, indexes = first[begins], last[begins], np.cumsum(begins) - 1
        begin, slots = first, np.arange(len(first))
        left: list[_Piece] = []
        right: list[_Piece] = []
        for here in range(level, level + _TIER_LEVELS):
            odd = first % 2 == 1
            left.append(_Piece(slots[odd], here, first[odd]))
            first = first + odd
            odd = (last % 2 == 1) & (first < last)
            last = last - odd
            right.append(_Piece(slots[odd], here, last[odd]))
            more = first < last
            slots, first, last = slots[more], first[more] // 2, last[more] // 2
        parts = [piece for piece in left if len(piece.slots)], [piece for piece in reversed(right) if len(piece.slots)]
        yield _Tier(level, begin, indexes, parts[0], slots, parts[1])
        level += _TIER_LEVELS


@dataclass(frozen=True)
class OverFold:
    """Computes the outputs of each row.

    Args:
        query: The query.
        rows: The largest number of rows whose outputs are computed at once. A window frame may need a slot of its own,
            so the bounds of the query apply, too. Of large outputs fewer are computed.
    """

    query: OverQuery
    rows: int = _ROWS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition of the engine with their outputs, in the order of the rows.

        Args:
            batches: Rows in the schema of the layout, sorted by the keys of the partition and then by the order.
        """
        query = self.query
        adaptive_size = AdaptiveSize(min(self.rows, query.bounds.rows_max), query.bounds.bytes_max)
        blocks = gather(batches, query.layout.rows, query.buffer_bounds)
        with ExitStack() as stack:
            folds = [stack.enter_context(fold_of(part)) for part in query.parts]
            for store in Partitions(query.ordering, bytes_max=query.buffer_bounds.bytes_max).stores(blocks):
                for fold in folds:
                    fold.begin(store)
                start = 0
                while start < len(store):
                    end = min(start + adaptive_size.items, len(store))
                    outputs = self._outputs(folds, store, start, end)
                    yield outputs
                    adaptive_size.record(end - start, sum(outputs.column(name).nbytes for name in query.outputs.names))
                    start = end

    def _outputs(self, folds: list[WindowFrameFold], store: Store, start: int, end: int) -> pa.RecordBatch:
        query, block = self.query, store.slice(start, end)
        rows = np.arange(start, end)
        columns: dict[str, pa.Array] = {}
        for part, fold in zip(query.parts, folds, strict=True):
            low, high = positions_of(
                part.window_frame,
                store.order,
                rows,
                None if part.low is None else block.column(part.low),
                None if part.high is None else block.column(part.high),
                descending=query.layout.descending,
            )
            columns |= zip(part.query.layout.outputs.names, fold.outputs(rows, low, high), strict=True)
        payload = [block.column(name) for name in query.layout.payload.names]
        outputs = [columns[name] for name in query.outputs.names]
        return pa.RecordBatch.from_arrays([*payload, *outputs], schema=query.results)
