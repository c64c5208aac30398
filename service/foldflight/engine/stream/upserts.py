"""One epoch of one bucket of an upsert stream: keeps the last row of each key, and returns what has changed.

    changes > slots (KeyIndex) > stored rows of keys seen for the first time (StateTable) > changes that are newer
            > the last one of each key > changelog + one new run

A deleted key stays with the sequence of its deletion, as a *tombstone*: an older row that arrives late or again would
revive it. Sequences are compared in columns of integers, without Python code for each row.

A connector may leave out large values that an update did not change. Such a change keeps the values that the change
before it, by sequence, has set. So a row may have values of several changes, and each has the sequence of its own: a
change that arrives late still sets the values that all later ones have kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.keys.index import KeyIndex, canonical
from foldflight.engine.query.blocks import one_batch
from foldflight.engine.query.changelog import Mask, changelog, equal_rows
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.state.manifest import Storage, TableLayout, other_query
from foldflight.engine.state.table import StateTable
from foldflight.engine.stream.epoch import EpochStats
from foldflight.errors import RejectedError
from foldflight.functions import sql_name
from foldflight.functions.types.arrow import concat_batches, with_column

Indexes = npt.NDArray[np.int64]

MISSING = -1


@dataclass(frozen=True)
class Entries:
    """n stored rows, values that stored rows keep, and changes, of some keys.

    Args:
        slots: The slot of each.
        column: The number of the column, if the entry is the kept value of a stored row, at the sequence of that value;
            otherwise -1.
        unsent: The numbers of the columns that it did not send. In a stored row, these are the columns whose values it
            has kept from older rows.
        is_deleted: Whether it deletes its key.
    """

    slots: npt.NDArray[np.int32]
    column: Indexes
    unsent: Sequence[frozenset[int]]
    is_deleted: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LastRow:
    """The last row of a key.

    Args:
        entry: The last entry of the key.
        kept: For each column that this entry did not send, the entry that did; `MISSING` if none did.
        equal_sequences: Pairs of entries with equal sequences, which must be the same change.
    """

    entry: int
    kept: dict[int, int]
    equal_sequences: list[tuple[int, int]]


def last_rows(entries: Entries, order: Indexes, ranks: npt.NDArray[np.int64]) -> list[LastRow]:
    """Return the last row of each key.

    Args:
        entries: The entries.
        order: Their positions, by key and sequence.
        ranks: Numbers that grow with `order`, equal for equal keys and sequences.
    """
    lasts: list[LastRow] = []
    slot, current, rank = -1, MISSING, MISSING
    kept_sources: dict[int, int] = {}
    equal_sequences: list[tuple[int, int]] = []

    def end() -> None:
        if current != MISSING:
            lasts.append(LastRow(current, dict(kept_sources), list(equal_sequences)))

    slots, columns, deletion_flags = entries.slots.tolist(), entries.column.tolist(), entries.is_deleted.tolist()
    for entry, at in zip(order.tolist(), ranks.tolist(), strict=True):
        if slots[entry] != slot:
            end()
            slot, current, rank, kept_sources, equal_sequences = slots[entry], MISSING, MISSING, {}, []
        if columns[entry] >= 0:
            kept_sources[columns[entry]] = entry
            continue
        if at == rank:
            equal_sequences.append((current, entry))
        before = MISSING if current == MISSING or deletion_flags[current] else current
        kept_sources = (
            {}
            if deletion_flags[entry]
            else {column: kept_sources.get(column, before) for column in entries.unsent[entry]}
        )
        current, rank = entry, at
    end()
    return lasts


SEQUENCE, IS_DELETED, UNSENT = "sequence", "is_deleted", "unsent"
_STORED: Final = ("sequence", "row", "deleted_us", "lacks_columns", "kept")
KIND_OF_TABLE: Final = "upserts"
"""What the layout of a table has in the place of windows, which tells it from a table of groups."""

NOT_SENT_REMEDY: Final = (
    "begin with a snapshot of the table, let the database send whole rows (PostgreSQL: ALTER TABLE ... REPLICA "
    "IDENTITY FULL), or leave the column out of the schema"
)
SAME_SEQUENCE_REMEDY: Final = (
    "so which one is the last is not known; add columns to sequence_by, such as the position in the log or the offset "
    "in Kafka"
)

POSITION, OFFSET, PARTITION, IS_SNAPSHOT, TIME = "position", "offset", "partition", "is_snapshot", "time"
"""Fields of a sequence that is a position in the log of a database: where its event is in Kafka, of what it is, and
when the database committed it, in milliseconds, which may be NULL."""

STATEMENT_MS: Final = 3_600_000
"""How long a statement of MySQL may run before it changes a row. Without GTIDs its binary log has the whole second at
which the statement began, so of two changes of a row the later one may have the earlier time."""

NO_POSITION: Final = -1
"""The position of a deletion that has none: it stands behind the changes of its key before it in its partition."""

OTHER_LOG: Final = (
    "a row of a snapshot came after another change of its key, and its position is before that one, so the positions "
    "are of another log (another server, or a restored database), and do not tell which change is the last; begin with "
    "an empty checkpoint and an empty table, or use upserts with sequence_by=['generation', ...]"
)

OTHER_GENERATION: Final = (
    "which the database committed later although its position is lower, so the positions are of another log (another "
    "server after a failover, or a restored database), and do not tell which change is the last; begin with an empty "
    "checkpoint, an empty table and a new snapshot, or use upserts with sequence_by=['generation', ...]. If the event "
    "is an old one that was sent again, after the clock of the database was set back, leave it out"
)

_COMPACT_ROWS_MIN: Final = 1 << 18
_SIGN: Final = np.int64(-(1 << 63))

Slots = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class UpsertLayout:
    """The columns of an upsert stream.

    Args:
        keys: `key_0`...
        names: The user's names of the keys.
        sequence: The type of the sequence.
        columns: The other columns, by the user's names.
        buckets: The number of buckets.
        ttl_us: How long a tombstone is kept, in microseconds. None: for ever.
        is_partial: Whether a change may leave out columns, whose values its row keeps.
        has_positions: Whether the sequence is a position in the log of a database, with the fields `POSITION`,
            `OFFSET`, `PARTITION`, `IS_SNAPSHOT` and `TIME`. Fields of these names in a user's sequence say nothing.
    """

    keys: pa.Schema
    names: tuple[str, ...]
    sequence: pa.DataType
    columns: pa.Schema
    buckets: int
    ttl_us: int | None = None
    is_partial: bool = False
    has_positions: bool = False

    @property
    def rows(self) -> pa.Schema:
        """The changes that arrive: keys, sequence, whether the key is deleted, `value_0`...

        If they may be partial, the names of the columns that they did not send come last.
        """
        values = [(f"value_{index}", field.type) for index, field in enumerate(self.columns)]
        own = [(SEQUENCE, self.sequence), (IS_DELETED, pa.bool_())]
        unsent_fields = [(UNSENT, pa.list_(pa.string()))] if self.is_partial else []
        return pa.schema([*self.keys, *(pa.field(*each) for each in (*own, *values, *unsent_fields))])

    @cached_property
    def table(self) -> TableLayout:
        """The layout of the stored rows: the sequence; the row, NULL in a tombstone; and the time of the deletion.

        If rows may be partial, also the columns whose values are kept from older changes, with their sequences.
        """
        types = [self.sequence, pa.struct(list(self.columns)), pa.int64(), pa.bool_()]
        types += [pa.list_(self.kept_type)] if self.is_partial else []
        names = _STORED[: len(types)]
        states = [
            pa.field(f"state_{index}", type_, metadata={"function": name, "version": "", "fingerprint": str(type_)})
            for index, (name, type_) in enumerate(zip(names, types, strict=True))
        ]
        return TableLayout(
            self.keys, pa.schema(states), self.buckets, window=KIND_OF_TABLE, names=(*self.names, *names)
        )

    @property
    def kept_type(self) -> pa.DataType:
        """The type of a column that is kept."""
        return pa.struct([("column", pa.string()), ("sequence", self.sequence)])

    def group(self, key: pa.RecordBatch) -> dict[str, Any]:
        """Return the single key of a batch by the user's names, for errors."""
        return QueryLayout(self.keys, self.names, pa.schema([]), (), has_kinds=False).group(key)


class OtherColumns:
    """Converts stored rows to other columns: a column that was added is NULL until the next change of its row.

    Args:
        layout: The columns now.
    """

    def __init__(self, layout: UpsertLayout) -> None:
        self._layout = layout

    def check(self, stored_schema: pa.Schema) -> None:
        """Raise RejectedError STATE_MISMATCH for another sequence, or a column that has another type now."""
        before, now = stored_schema.field(0).type, self._layout.sequence
        if before != now:
            raise other_query("types of sequence_by", sql_name(before), sql_name(now))
        row = stored_schema.field(1).type
        for field in self._layout.columns:
            index = row.get_field_index(field.name)
            if index >= 0 and row.field(index).type != field.type:
                raise RejectedError(
                    "STATE_MISMATCH",
                    f"the stored rows have the column {field.name} as {sql_name(row.field(index).type)}, and the query "
                    f"has it as {sql_name(field.type)}; cast it to the type of before, give the new one another name, "
                    "or start with an empty checkpoint and the table from its beginning",
                )

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        """Return n stored rows with the columns of the query."""
        rows, count = states.column(1), states.num_rows
        members = {field.name: member for field, member in zip(rows.type, rows.flatten(), strict=True)}
        columns = self._layout.columns
        values = [members.get(field.name, pa.nulls(count, field.type)) for field in columns]
        lacks = pa.array([True] * count) if set(columns.names) - set(members) else states.column(3)
        return pa.RecordBatch.from_arrays(
            [states.column(0), _struct(values, columns, rows.is_null()), states.column(2), lacks, *states.columns[4:]],
            schema=self._layout.table.states,
        )


def upsert_table(layout: UpsertLayout, storage: Storage, now_us: int = 0) -> StateTable:
    """Return the stored rows of a bucket.

    Args:
        layout: The columns.
        storage: Where they are.
        now_us: The time of the epoch. Merges remove the tombstones that are too old.

    Raises:
        RejectedError: STATE_MISMATCH, if the storage belongs to another query.
        CorruptError: STATE_CHECKSUM, if it is damaged.
    """
    return StateTable(
        layout.table,
        storage,
        by_groups=True,
        conversion=OtherColumns(layout),
        is_expired=None if layout.ttl_us is None else lambda rows: _is_expired(rows, layout, now_us),
    )


def _is_expired(rows: pa.RecordBatch, layout: UpsertLayout, now_us: int) -> Mask:
    """Return which of n stored rows are tombstones that are not kept any more."""
    if layout.ttl_us is None:
        return np.zeros(rows.num_rows, np.bool_)
    deleted_us = rows.column("state_2").fill_null(now_us).to_numpy()
    expired_mask: Mask = deleted_us + layout.ttl_us <= now_us
    return expired_mask


@dataclass(frozen=True)
class _Changes:
    """n changes of keys, or stored rows."""

    slots: Slots
    sequence: pa.Array
    rows: pa.Array
    """The values as structs; NULL for a deletion."""
    kept: pa.Array | None = None
    """If rows may be partial: the columns that are kept from older changes."""

    @classmethod
    def of(cls, parts: Sequence[_Changes]) -> _Changes:
        kept_lists = [part.kept for part in parts if part.kept is not None]
        return cls(
            np.concatenate([part.slots for part in parts]),
            pa.concat_arrays([part.sequence for part in parts]),
            pa.concat_arrays([part.rows for part in parts]),
            pa.concat_arrays(kept_lists) if kept_lists else None,
        )

    def take(self, indexes: npt.NDArray[np.int64]) -> _Changes:
        index_array = pa.array(indexes)
        kept_column = None if self.kept is None else self.kept.take(index_array)
        return _Changes(self.slots[indexes], self.sequence.take(index_array), self.rows.take(index_array), kept_column)


class UpsertEpoch:
    """The changes of one bucket and epoch.

    Args:
        layout: The columns.
        table: The stored rows.
        now_us: The time of the epoch.

    Attributes:
        stats: The metrics of the epoch.
    """

    def __init__(self, layout: UpsertLayout, table: StateTable, now_us: int) -> None:
        self.stats = EpochStats(buckets=1)
        self._layout = layout
        self._table = table
        self._now_us = now_us
        self._index = KeyIndex(layout.keys)
        # The stored rows, and the position of each slot's row in them; -1 if it has none.
        self._stored_rows = pa.RecordBatch.from_pylist([], schema=pa.schema(layout.table.states))
        self._at = np.zeros(0, np.int64)

    def run(self, blocks: Iterable[pa.RecordBatch]) -> tuple[pa.Array, pa.RecordBatch]:
        """Store the last row of each key; return row kinds (int8) and as many rows: the keys, then the columns.

        Raises:
            RejectedError: SCHEMA_MISMATCH, if two different rows of a key have the same sequence, or a change did not
                send a column and no older one did.
        """
        if self._layout.is_partial:
            # A kept value may be in any block.
            table = pa.Table.from_batches([*blocks], schema=self._layout.rows)
            blocks = [one_batch(table)] if table.num_rows else []
        parts: list[_Changes] = []
        row_count, compact = 0, _COMPACT_ROWS_MIN
        for block in blocks:
            part = self._newer(block)
            parts.append(part)
            row_count += len(part.slots)
            if row_count > compact:
                parts = [self._last(parts)]
                row_count = len(parts[0].slots)
                compact = max(2 * row_count, _COMPACT_ROWS_MIN)
        self.stats.groups = len(self._index)
        last = self._last(parts)
        return self._finish(last)

    def _newer(self, block: pa.RecordBatch) -> _Changes:
        """Return the last change of each key of a block, if it is newer than the stored row of the key."""
        slots = self._index.slots([block.column(name) for name in self._layout.keys.names]).to_numpy()
        self._load()
        self.stats.rows += block.num_rows
        if self._layout.has_positions:
            block = self._place_deletions(slots, block)
        if not self._layout.is_partial:
            return self._newer_of(slots, block)
        is_partial = np.zeros(len(self._index), np.bool_)
        is_partial[slots[_has_items(block.column(UNSENT))]] = True
        is_partial |= (
            _has_items(self._stored_rows.column(4))[self._at] & (self._at >= 0) if len(self._stored_rows) else False
        )
        here = is_partial[slots]
        whole = self._newer_of(slots[~here], block.filter(pa.array(~here)))
        if not here.any():
            return whole
        return _Changes.of([whole, self._complete(slots[here], block.filter(pa.array(here)))])

    def _place_deletions(self, slots: Slots, block: pa.RecordBatch) -> pa.RecordBatch:
        """Return changes with positions for deletions that have none."""
        sequence = block.column(SEQUENCE)
        without = pc.equal(pc.struct_field(sequence, POSITION), NO_POSITION)
        places = np.flatnonzero(without.fill_null(False).to_numpy(zero_copy_only=False))
        if not len(places):
            return block
        sequences = sequence.to_pylist()
        before: dict[int, list[dict[str, Any]]] = {}
        for place in np.flatnonzero(np.isin(slots, slots[places])):
            before.setdefault(int(slots[place]), []).append(sequences[place])
        for slot, positions in before.items():
            if self._at[slot] >= 0:
                positions.append(self._stored_rows.column(0)[int(self._at[slot])].as_py())
        for place in places:
            own = sequences[place]
            is_before = [
                each
                for each in before[int(slots[place])]
                if each[POSITION] != NO_POSITION and each[PARTITION] == own[PARTITION] and each[OFFSET] < own[OFFSET]
            ]
            if is_before:
                last = max(is_before, key=lambda each: tuple(each.values()))
                sequences[place] = {**last, OFFSET: own[OFFSET], IS_SNAPSHOT: False}
        return with_column(block, block.schema.field(SEQUENCE), pa.array(sequences, sequence.type))

    def _stored_of(self, slots: Slots) -> tuple[Slots, pa.RecordBatch]:
        """Return the slots that have stored rows, and these rows."""
        touched_slots = np.unique(slots)
        touched_slots = touched_slots[self._at[touched_slots] >= 0].astype(np.int32)
        return touched_slots, self._stored_rows.take(pa.array(self._at[touched_slots]))

    def _changes(self, slots: Slots, block: pa.RecordBatch, kept_column: pa.Array | None = None) -> _Changes:
        start = len(self._layout.keys) + 2
        values = block.columns[start : start + len(self._layout.columns)]
        return _Changes(
            slots, block.column(SEQUENCE), _struct(values, self._layout.columns, block.column(IS_DELETED)), kept_column
        )

    def _complete(self, slots: Slots, block: pa.RecordBatch) -> _Changes:
        """Return the last row of each key with the values that it keeps from older changes."""
        touched_slots, stored_rows = self._stored_of(slots)
        kept_column = stored_rows.column(4)
        owners = np.repeat(np.arange(len(touched_slots)), kept_column.value_lengths().fill_null(0).to_numpy())
        kept_names, kept_sequences = kept_column.flatten().flatten()
        numbers = {name: number for number, name in enumerate(self._layout.columns.names)}
        columns = np.array([numbers.get(name, -1) for name in kept_names.to_pylist()], np.int64)
        known_columns = np.flatnonzero(columns >= 0)  # a column may have been left out since
        owners, columns, kept_sequences = (
            owners[known_columns],
            columns[known_columns],
            kept_sequences.take(pa.array(known_columns)),
        )
        rows = _Changes.of(
            [_Changes(touched_slots, stored_rows.column(0), stored_rows.column(1)), self._changes(slots, block)]
        )
        # The entries are the stored rows, the values that they keep, and the changes.
        places = np.concatenate([np.arange(len(touched_slots)), owners, len(touched_slots) + np.arange(len(slots))])
        sequence = pa.concat_arrays([stored_rows.column(0), kept_sequences, block.column(SEQUENCE)])
        unsent_columns: list[frozenset[int]] = [
            frozenset(columns[owners == at].tolist()) for at in range(len(touched_slots))
        ]
        unsent_columns += [frozenset()] * len(owners)
        unsent_columns += [
            frozenset(numbers[name] for name in names or ()) for names in block.column(UNSENT).to_pylist()
        ]
        nothing = np.full(len(touched_slots), -1, np.int64)
        entries = Entries(
            rows.slots[places],
            np.concatenate([nothing, columns, np.full(len(slots), -1, np.int64)]),
            unsent_columns,
            rows.rows.is_null().to_numpy(zero_copy_only=False)[places],
        )
        order, ranks = _sort_changes(_Changes(entries.slots, sequence, rows.rows))
        lasts = last_rows(entries, order, ranks)
        is_change = order >= len(touched_slots) + len(owners)
        last_of = np.zeros(len(self._index), np.int64)
        last_of[entries.slots[[last.entry for last in lasts]]] = [last.entry for last in lasts]
        self._check_generation(sequence, entries.slots, order[is_change], last_of[entries.slots[order[is_change]]])
        lacks = stored_rows.column(3).to_numpy(zero_copy_only=False)
        self._check_equal_sequences(rows, places, unsent_columns, lasts, lacks)
        first = len(touched_slots) + len(owners)
        stored_ranks, stored_at = self._stored_ranks(entries.slots, order, ranks, len(touched_slots))
        stale = (order >= first) & (ranks <= stored_ranks[entries.slots[order]])
        self._leave_out(sequence, entries.slots, order[stale], stored_at)
        changed_rows = [last for last in lasts if not self._is_as_stored(last, len(touched_slots), len(owners))]
        for last in changed_rows:
            if MISSING in last.kept.values():
                column = next(column for column, source in last.kept.items() if source == MISSING)
                raise self._not_sent(self._layout.columns.names[column], rows.slots[places[last.entry]])
        return self._put_together(rows, places, sequence, changed_rows)

    def _is_as_stored(self, last: LastRow, stored_count: int, kept_count: int) -> bool:
        """Return whether a last row is a stored one, with its own values."""
        return last.entry < stored_count and all(
            stored_count <= source < stored_count + kept_count for source in last.kept.values()
        )

    def _put_together(
        self, rows: _Changes, places: npt.NDArray[np.int64], sequence: pa.Array, lasts: Sequence[LastRow]
    ) -> _Changes:
        entries = np.array([last.entry for last in lasts], np.int64)
        whole = rows.rows.take(pa.array(places[entries]))
        values = []
        for column, of_all in enumerate(rows.rows.flatten()):
            sources = np.array([last.kept.get(column, last.entry) for last in lasts], np.int64)
            values.append(of_all.take(pa.array(places[sources])))
        pairs = [(column, source) for last in lasts for column, source in last.kept.items()]
        names = pa.array([self._layout.columns.names[column] for column, _ in pairs], pa.string())
        sequences = sequence.take(pa.array([source for _, source in pairs], pa.int64()))
        kept_structs = pa.StructArray.from_arrays([names, sequences], fields=list(self._layout.kept_type))
        offsets = np.concatenate([[0], np.cumsum([len(last.kept) for last in lasts])])
        return _Changes(
            rows.slots[places[entries]],
            sequence.take(pa.array(entries)),
            _struct(values, self._layout.columns, whole.is_null()),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), kept_structs),
        )

    def _check_equal_sequences(
        self,
        rows: _Changes,
        places: npt.NDArray[np.int64],
        unsent_columns: Sequence[frozenset[int]],
        lasts: Sequence[LastRow],
        lacks: Mask,
    ) -> None:
        """Refuse two changes of one sequence that differ in a column that both have sent."""
        for one, other in (pair for last in lasts for pair in last.equal_sequences):
            batches = [_unpack(rows.rows.slice(int(places[entry]), 1)) for entry in (one, other)]
            sent_names = [
                name
                for number, name in enumerate(batches[0].schema.names)
                if number - 1 not in unsent_columns[one] | unsent_columns[other]
            ]
            is_same = equal_rows(*(batch.select(sent_names) for batch in batches))
            if not is_same.all() and not (one < len(lacks) and lacks[one]):
                self._refuse(rows, places[[other]])

    def _stored_ranks(
        self, slots: Slots, order: npt.NDArray[np.int64], ranks: Codes, stored_count: int
    ) -> tuple[Codes, npt.NDArray[np.int64]]:
        """Return for each slot the rank of its stored row, and the place of this row; -1 without one.

        Args:
            slots: The slots of n rows, of which the first ones are the stored rows.
            order: Places of rows, by key and sequence.
            ranks: Their ranks.
            stored_count: The number of stored rows.
        """
        stored_ranks, stored_at = (np.full(len(self._index), -1, np.int64) for _ in range(2))
        is_stored = order < stored_count
        of = slots[order[is_stored]]
        stored_ranks[of], stored_at[of] = ranks[is_stored], order[is_stored]
        return stored_ranks, stored_at

    def _leave_out(
        self, sequence: pa.Array, slots: Slots, stale: npt.NDArray[np.int64], stored_at: npt.NDArray[np.int64]
    ) -> None:
        """Count changes that are not newer than the stored row. Raises RejectedError SCHEMA_MISMATCH for another log.

        Args:
            sequence: The sequences of n rows.
            slots: Their slots.
            stale: The places of the changes.
            stored_at: The place of the stored row of each slot.
        """
        self.stats.stale_changes += len(stale)
        if not (len(stale) and self._layout.has_positions):
            return
        self._check_generation(sequence, slots, stale, stored_at[slots[stale]])
        new, old = (sequence.take(pa.array(places)) for places in (stale, stored_at[slots[stale]]))
        is_later = pc.greater(pc.struct_field(new, OFFSET), pc.struct_field(old, OFFSET))
        is_near = pc.equal(pc.struct_field(new, PARTITION), pc.struct_field(old, PARTITION))
        is_other = pc.and_(pc.struct_field(new, IS_SNAPSHOT), pc.and_(is_later, is_near))
        for place in stale[is_other.fill_null(False).to_numpy(zero_copy_only=False)][:1]:
            key = self._index.keys(pa.array([slots[place]], pa.int32()))
            raise RejectedError("SCHEMA_MISMATCH", OTHER_LOG).with_group(self._layout.group(key))

    def _check_generation(
        self, sequence: pa.Array, slots: Slots, places: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]
    ) -> None:
        """Refuse changes of another log. Raises RejectedError SCHEMA_MISMATCH.

        A change that was sent again or late was committed before the last one of its key. Snapshots have the times at
        which they were read. Changes that are in Kafka in the order of their positions are of one log, whatever the
        clock of the database said.

        Args:
            sequence: The sequences of n rows.
            slots: Their slots.
            places: The places of changes that are not the last ones of their keys.
            lasts: The places of the last ones.
        """
        if not (len(places) and self._layout.has_positions):
            return
        new, last = (sequence.take(pa.array(each)) for each in (places, lasts))
        is_other = pc.and_(_is_committed_later(new, last), pc.invert(pc.struct_field(new, IS_SNAPSHOT)))
        is_near = pc.equal(pc.struct_field(new, PARTITION), pc.struct_field(last, PARTITION))
        is_ordered = pc.and_(is_near, pc.less(pc.struct_field(new, OFFSET), pc.struct_field(last, OFFSET)))
        is_other = pc.and_(is_other, pc.invert(is_ordered.fill_null(False)))
        for at in np.flatnonzero(is_other.fill_null(False).to_numpy(zero_copy_only=False))[:1]:
            key = self._index.keys(pa.array([slots[places[at]]], pa.int32()))
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"after a change at {_text_of(last[int(at)])} there is an event at {_text_of(new[int(at)])}, "
                f"{OTHER_GENERATION}",
            ).with_group(self._layout.group(key))

    def _not_sent(self, column: str, slot: int) -> RejectedError:
        return RejectedError(
            "SCHEMA_MISMATCH",
            f"a change did not send the column {column}, and there is no older row of its key to keep it from; "
            f"{NOT_SENT_REMEDY}",
        ).with_group(self._layout.group(self._index.keys(pa.array([slot], pa.int32()))))

    def _newer_of(self, slots: Slots, block: pa.RecordBatch) -> _Changes:
        """Return the last change of each key, if it is newer than the stored row of the key."""
        touched_slots, stored_rows = self._stored_of(slots)
        kept_columns = [pa.nulls(count, pa.list_(self._layout.kept_type)) for count in (len(touched_slots), len(slots))]
        parts = kept_columns if self._layout.is_partial else [None, None]
        changes = _Changes.of(
            [
                _Changes(touched_slots, stored_rows.column(0), stored_rows.column(1), parts[0]),
                self._changes(slots, block, parts[1]),
            ]
        )
        order, ranks = _sort_changes(changes)
        is_stored = order < len(touched_slots)
        of = changes.slots[order]
        stored_ranks, stored_at = self._stored_ranks(changes.slots, order, ranks, len(touched_slots))
        lacks = np.zeros(len(self._index), np.bool_)
        lacks[touched_slots] = stored_rows.column(3).to_numpy(zero_copy_only=False)
        again = np.flatnonzero(~is_stored & (ranks == stored_ranks[of]))
        is_same = self._equal(changes, stored_at[of[again]], order[again])
        # A row that was stored before columns were added is completed by the same change.
        is_completed = ~is_same & lacks[of[again]]
        self._refuse(changes, order[again[~is_same & ~is_completed]])
        is_newer = ~is_stored & (ranks > stored_ranks[of])
        is_newer[again[is_completed]] = True
        self._leave_out(changes.sequence, changes.slots, order[~is_stored & ~is_newer], stored_at)
        return self._last_of(changes, order[is_newer], ranks[is_newer])

    def _last(self, parts: Sequence[_Changes]) -> _Changes:
        """Return the last change of each key."""
        if not parts:
            return self._no_rows
        changes = _Changes.of(parts)
        return changes if len(parts) == 1 else self._last_of(changes, *_sort_changes(changes))

    def _last_of(self, changes: _Changes, order: npt.NDArray[np.int64], ranks: Codes) -> _Changes:
        """Return the last change of each key, given the positions of some in their order, and their ranks."""
        again = np.flatnonzero(ranks[1:] == ranks[:-1])
        is_same = self._equal(changes, order[again], order[again + 1])
        self._refuse(changes, order[again[~is_same]])
        slots = changes.slots[order]
        is_last = np.append(slots[1:] != slots[:-1], True)[: len(slots)]
        if self._layout.has_positions:
            lasts, earlier = np.flatnonzero(is_last), np.flatnonzero(~is_last)
            of_key = order[lasts[np.searchsorted(lasts, earlier)]]
            self._check_generation(changes.sequence, changes.slots, order[earlier], of_key)
        return changes.take(order[is_last])

    def _equal(self, changes: _Changes, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Mask:
        if not len(one):
            return np.zeros(0, np.bool_)
        return equal_rows(*(_unpack(changes.rows.take(pa.array(each))) for each in (one, other)))

    def _refuse(self, changes: _Changes, indexes: npt.NDArray[np.int64]) -> None:
        """Refuse changes whose order is not known. Raises RejectedError SCHEMA_MISMATCH."""
        if not len(indexes):
            return
        sequence = changes.sequence[int(indexes[0])]
        key = self._index.keys(pa.array(changes.slots[indexes[:1]], pa.int32()))
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"two different rows of this key have the sequence {_text_of(sequence)}, {SAME_SEQUENCE_REMEDY}",
        ).with_group(self._layout.group(key))

    @cached_property
    def _no_rows(self) -> _Changes:
        states = self._layout.table.states
        kept_column = pa.array([], states.field(4).type) if self._layout.is_partial else None
        sequence, rows = (pa.array([], states.field(index).type) for index in (0, 1))
        return _Changes(np.zeros(0, np.int32), sequence, rows, kept_column)

    def _load(self) -> None:
        """Look up the stored rows of keys that are new in this epoch. Tombstones that are too old are not there."""
        fresh = np.arange(len(self._at), len(self._index), dtype=np.int32)
        if not len(fresh):
            return
        lookup = self._table.lookup(self._index.keys(pa.array(fresh)))
        is_there = lookup.present & ~_is_expired(lookup.states, self._layout, self._now_us)
        known_count = self._stored_rows.num_rows
        at = np.where(is_there, known_count + np.cumsum(is_there) - 1, -1)
        self._at = np.concatenate([self._at, at])
        if is_there.any():
            self._stored_rows = concat_batches([self._stored_rows, lookup.states.filter(pa.array(is_there))])

    def _finish(self, last: _Changes) -> tuple[pa.Array, pa.RecordBatch]:
        at = self._at[last.slots]
        before = self._stored_rows.column(1).take(pa.array(np.maximum(at, 0), mask=at < 0))
        keys = self._index.keys(pa.array(last.slots))
        existed, exists = (rows.is_valid().to_numpy(zero_copy_only=False) for rows in (before, last.rows))
        schema = pa.schema([*self._layout.keys, *self.values])
        old, new = (
            pa.RecordBatch.from_arrays([*keys.columns, *_unpack(rows).columns[1:]], schema=schema)
            for rows in (before, last.rows)
        )
        kinds, changes = changelog(old, new, existed, exists, update_before=True)
        if len(last.slots):
            deleted_us = pa.array(np.full(len(exists), self._now_us, np.int64), mask=exists)
            states = pa.RecordBatch.from_arrays(
                [
                    last.sequence,
                    last.rows,
                    deleted_us,
                    pa.array(np.zeros(len(exists), np.bool_)),
                    *([] if last.kept is None else [last.kept]),
                ],
                schema=self._layout.table.states,
            )
            outcome = self._table.commit(keys, np.ones(len(exists), np.int64), states)
            self.stats.runs, self.stats.state_bytes = outcome.runs, outcome.bytes
        else:
            self._table.declare()
        return kinds, changes

    @property
    def values(self) -> list[pa.Field]:
        """The columns of the result after the keys, under names that are no key's."""
        return [pa.field(f"value_{index}", field.type) for index, field in enumerate(self._layout.columns)]


def _has_items(lists: pa.Array) -> Mask:
    """Return which of n lists have items."""
    has: Mask = lists.value_lengths().fill_null(0).to_numpy() > 0
    return has


def _struct(values: Sequence[pa.Array], columns: pa.Schema, is_null: pa.Array) -> pa.Array:
    if not len(columns):  # Arrow makes no array of n structs from no columns
        rows: list[dict[str, Any] | None] = [None if each else {} for each in is_null.to_pylist()]
        return pa.array(rows, pa.struct([]))
    return pa.StructArray.from_arrays(values, fields=list(columns), mask=is_null)


def _unpack(rows: pa.Array) -> pa.RecordBatch:
    """Return the fields of n structs as columns, after one that tells which structs are there."""
    columns = [rows.is_valid(), *(rows.flatten() if rows.type.num_fields else [])]
    return pa.RecordBatch.from_arrays(columns, names=[f"field_{index}" for index in range(len(columns))])


def _sort_changes(changes: _Changes) -> tuple[npt.NDArray[np.int64], Codes]:
    """Return the positions of n changes by key and sequence, and numbers that grow with them, equal for equal ones."""
    columns: list[npt.NDArray[Any]] = [changes.slots, *order_codes(changes.sequence)]
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), np.bool_)
    for column in columns:
        sorted_codes = column[order]
        differs[1:] |= sorted_codes[1:] != sorted_codes[:-1]
    return order, np.cumsum(differs)


def order_codes(values: pa.Array) -> Iterator[Codes]:
    """Yield columns of n integers that, compared one after the other, are ordered as n values are in Spark.

    NULL comes before all values, NaN after all numbers, and -0.0 equals 0.0. Texts are ordered by their bytes, and
    structs by their fields.

    Args:
        values: Values of a type that `has_order`.
    """
    kinds, type_ = pa.types, values.type
    if values.null_count:
        yield values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    if kinds.is_struct(type_):
        for member in values.flatten():
            yield from order_codes(member)
    elif kinds.is_floating(type_):
        bits = canonical(values.cast(pa.float64())).fill_null(0).to_numpy().view(np.int64)
        yield bits ^ ((bits >> 63) & ~_SIGN)
    elif kinds.is_decimal(type_):
        words = pc.fill_null(values, 0)
        size = type_.byte_width // 8
        codes = np.frombuffer(words.buffers()[1], np.int64)[words.offset * size :][: len(words) * size]
        codes = codes.reshape(-1, size)
        yield codes[:, -1]
        for word in range(size - 2, -1, -1):
            yield codes[:, word] ^ _SIGN  # all words but the first are without a sign
    elif kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_binary(type_):
        texts = values.cast(pa.binary()).fill_null(b"")
        yield pc.rank(texts, tiebreaker="dense").to_numpy().astype(np.int64)
    elif kinds.is_boolean(type_):
        yield values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        numbers = values.view({8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width])
        yield numbers.fill_null(0).to_numpy().astype(np.int64)


def has_order(type_: pa.DataType) -> bool:
    """Return whether a value may be a sequence: numbers, texts, times, and structs of them."""
    kinds = pa.types
    if kinds.is_struct(type_):
        return type_.num_fields > 0 and all(has_order(field.type) for field in type_)
    is_text = kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_binary(type_)
    return bool(is_text or kinds.is_primitive(type_) or kinds.is_decimal(type_)) and not kinds.is_interval(type_)


def _is_committed_later(new: pa.Array, last: pa.Array) -> pa.Array:
    """Return which changes were surely committed after others; NULL if the time of one of them is not known."""
    times = [pc.struct_field(each, TIME) for each in (new, last)]
    is_whole = [pc.equal(time, pc.multiply(pc.divide(time, 1000), 1000)) for time in times]
    return pc.greater(pc.subtract(*times), pc.if_else(pc.or_(*is_whole), STATEMENT_MS, 0))


def _text_of(sequence: pa.Scalar) -> str:
    try:
        return repr(sequence.as_py())
    except (ValueError, OverflowError):  # a time without a Python object
        return str(sequence)


def epoch_of(
    layout: UpsertLayout, storage: Storage, blocks: Iterable[pa.RecordBatch], now_us: int
) -> tuple[EpochStats, pa.Array, pa.RecordBatch]:
    """Store the changes of one bucket and epoch; return its metrics, row kinds and rows.

    Args:
        layout: The columns.
        storage: The storage of the bucket.
        blocks: The changes.
        now_us: The time of the epoch.

    Raises:
        RejectedError: SCHEMA_MISMATCH, STATE_MISMATCH.
        CorruptError: STATE_CHECKSUM, INVARIANT.
    """
    epoch = UpsertEpoch(layout, upsert_table(layout, storage, now_us), now_us)
    kinds, changes = epoch.run(blocks)
    return epoch.stats, kinds, changes
