"""One epoch of one bucket of an upsert stream: keeps the last row of each key, and returns what has changed.

    changes > slots (KeyIndex) > stored rows of keys seen for the first time (StateTable) > changes that are newer
            > the last one of each key > changelog + one new run

A deleted key stays with the sequence of its deletion, as a *tombstone*: an older row that arrives late or again would
revive it. Sequences are compared in columns of integers, without Python code for each row.
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
from foldflight.engine.query.changelog import Mask, changelog, equal_rows
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.state.manifest import TableLayout, other_query
from foldflight.engine.state.storage import Storage
from foldflight.engine.state.table import StateTable
from foldflight.engine.stream.epoch import EpochStats
from foldflight.errors import RejectedError
from foldflight.functions import sql_name
from foldflight.functions.types.arrow import concat_batches

SEQUENCE, IS_DELETED, NOW_US = "sequence", "is_deleted", "now_us"
_STORED: Final = ("sequence", "row", "deleted_us", "lacks_columns")
_KIND_OF_TABLE: Final = "upserts"  # in the place of windows, which tells it from a table of groups
_HELD_ROWS_MIN: Final = 1 << 18
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
    """

    keys: pa.Schema
    names: tuple[str, ...]
    sequence: pa.DataType
    columns: pa.Schema
    buckets: int
    ttl_us: int | None = None

    @property
    def rows(self) -> pa.Schema:
        """The changes that arrive: keys, sequence, whether the key is deleted, the time of the epoch, `value_0`..."""
        values = [pa.field(f"value_{index}", field.type) for index, field in enumerate(self.columns)]
        own = [(SEQUENCE, self.sequence), (IS_DELETED, pa.bool_()), (NOW_US, pa.int64())]
        return pa.schema([*self.keys, *(pa.field(*each) for each in own), *values])

    @cached_property
    def table(self) -> TableLayout:
        """The layout of the stored rows: the sequence; the row, NULL in a tombstone; and the time of the deletion."""
        types = (self.sequence, pa.struct(list(self.columns)), pa.int64(), pa.bool_())
        states = [
            pa.field(f"state_{index}", type_, metadata={"function": name, "version": "", "fingerprint": str(type_)})
            for index, (name, type_) in enumerate(zip(_STORED, types, strict=True))
        ]
        return TableLayout(
            self.keys, pa.schema(states), self.buckets, window=_KIND_OF_TABLE, names=(*self.names, *_STORED)
        )

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

    def check(self, stored: pa.Schema) -> None:
        """Raise RejectedError STATE_MISMATCH for another sequence, or a column that has another type now."""
        before, now = stored.field(0).type, self._layout.sequence
        if before != now:
            raise other_query("types of sequence_by", sql_name(before), sql_name(now))
        row = stored.field(1).type
        for field in self._layout.columns:
            index = row.get_field_index(field.name)
            if index >= 0 and row.field(index).type != field.type:
                raise RejectedError(
                    "STATE_MISMATCH",
                    f"the stored rows have the column {field.name} as {sql_name(row.field(index).type)}, and the query "
                    f"has it as {sql_name(field.type)}; cast it to the type of before, give the new one another name, "
                    "or start with an empty checkpoint and the table from its beginning",
                )

    def __call__(self, stored: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        """Return n stored rows with the columns of the query."""
        rows, count = states.column(1), states.num_rows
        held = dict(zip(rows.type.names, rows.flatten(), strict=True)) if rows.type.num_fields else {}
        columns = self._layout.columns
        values = [held.get(field.name, pa.nulls(count, field.type)) for field in columns]
        lacks = pa.array([True] * count) if set(columns.names) - set(held) else states.column(3)
        return pa.RecordBatch.from_arrays(
            [states.column(0), _struct(values, columns, rows.is_null()), states.column(2), lacks],
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
        expired=None if layout.ttl_us is None else lambda rows: _expired(rows, layout, now_us),
    )


def _expired(rows: pa.RecordBatch, layout: UpsertLayout, now_us: int) -> Mask:
    """Return which of n stored rows are tombstones that are not kept any more."""
    if layout.ttl_us is None:
        return np.zeros(rows.num_rows, np.bool_)
    deleted_us = rows.column("state_2").fill_null(now_us).to_numpy()
    expired: Mask = deleted_us + layout.ttl_us <= now_us
    return expired


@dataclass(frozen=True)
class _Changes:
    """n changes of keys, or stored rows."""

    slots: Slots
    sequence: pa.Array
    rows: pa.Array
    """The values as structs; NULL for a deletion."""

    @classmethod
    def of(cls, parts: Sequence[_Changes]) -> _Changes:
        return cls(
            np.concatenate([part.slots for part in parts]),
            pa.concat_arrays([part.sequence for part in parts]),
            pa.concat_arrays([part.rows for part in parts]),
        )

    def take(self, indexes: npt.NDArray[np.int64]) -> _Changes:
        chosen = pa.array(indexes)
        return _Changes(self.slots[indexes], self.sequence.take(chosen), self.rows.take(chosen))


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
        # The stored rows, and where in them that of each slot is; -1 if it has none.
        self._stored = pa.RecordBatch.from_pylist([], schema=pa.schema(layout.table.states))
        self._at = np.zeros(0, np.int64)

    def run(self, blocks: Iterable[pa.RecordBatch]) -> tuple[pa.Array, pa.RecordBatch]:
        """Store the last row of each key; return row kinds (int8) and as many rows: the keys, then the columns.

        Raises:
            RejectedError: SCHEMA_MISMATCH, if two different rows of a key have the same sequence.
        """
        parts: list[_Changes] = []
        held, compact = 0, _HELD_ROWS_MIN
        for block in blocks:
            part = self._newer(block)
            parts.append(part)
            held += len(part.slots)
            if held > compact:
                parts = [self._last(parts)]
                held = len(parts[0].slots)
                compact = max(2 * held, _HELD_ROWS_MIN)
        self.stats.groups = len(self._index)
        last = self._last(parts)
        return self._finish(last)

    def _newer(self, block: pa.RecordBatch) -> _Changes:
        """Return the last change of each key of a block, if it is newer than the stored row of the key."""
        slots = self._index.slots([block.column(name) for name in self._layout.keys.names]).to_numpy()
        self._load()
        self.stats.rows += block.num_rows
        values = block.columns[len(self._layout.keys) + 3 :]
        rows = _struct(values, self._layout.columns, block.column(IS_DELETED))
        touched = np.unique(slots)
        touched = touched[self._at[touched] >= 0]
        stored = self._stored.take(pa.array(self._at[touched]))
        changes = _Changes.of(
            [
                _Changes(touched.astype(np.int32), stored.column(0), stored.column(1)),
                _Changes(slots, block.column(SEQUENCE), rows),
            ]
        )
        order, ranks = _sorted(changes)
        is_stored = order < len(touched)
        of = changes.slots[order]
        rank_of = np.full(len(self._index), -1, np.int64)
        rank_of[of[is_stored]] = ranks[is_stored]
        where = np.full(len(self._index), -1, np.int64)
        where[of[is_stored]] = order[is_stored]
        lacks = np.zeros(len(self._index), np.bool_)
        lacks[touched] = stored.column(3).to_numpy(zero_copy_only=False)
        again = np.flatnonzero(~is_stored & (ranks == rank_of[of]))
        is_same = self._equal(changes, where[of[again]], order[again])
        # A row that was stored before columns were added is completed by the same change.
        is_completed = ~is_same & lacks[of[again]]
        self._refuse(changes, order[again[~is_same & ~is_completed]])
        is_newer = ~is_stored & (ranks > rank_of[of])
        is_newer[again[is_completed]] = True
        self.stats.stale_changes += int((~is_stored & ~is_newer).sum())
        return self._last_of(changes, order[is_newer], ranks[is_newer])

    def _last(self, parts: Sequence[_Changes]) -> _Changes:
        """Return the last change of each key."""
        if not parts:
            return self._nothing
        changes = _Changes.of(parts)
        return changes if len(parts) == 1 else self._last_of(changes, *_sorted(changes))

    def _last_of(self, changes: _Changes, order: npt.NDArray[np.int64], ranks: Codes) -> _Changes:
        """Return the last change of each key, given the positions of some in their order, and their ranks."""
        again = np.flatnonzero(ranks[1:] == ranks[:-1])
        is_same = self._equal(changes, order[again], order[again + 1])
        self._refuse(changes, order[again[~is_same]])
        slots = changes.slots[order]
        return changes.take(order[np.append(slots[1:] != slots[:-1], True)[: len(slots)]])

    def _equal(self, changes: _Changes, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Mask:
        if not len(one):
            return np.zeros(0, np.bool_)
        return equal_rows(*(_unpacked(changes.rows.take(pa.array(each))) for each in (one, other)))

    def _refuse(self, changes: _Changes, indexes: npt.NDArray[np.int64]) -> None:
        """Refuse changes whose order is not known. Raises RejectedError SCHEMA_MISMATCH."""
        if not len(indexes):
            return
        sequence = changes.sequence[int(indexes[0])]
        key = self._index.keys(pa.array(changes.slots[indexes[:1]], pa.int32()))
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"two different rows of this key have the sequence {_text_of(sequence)}, so which one is the last is not "
            "known; add columns to sequence_by, such as the position in the log or the offset in Kafka",
        ).with_group(self._layout.group(key))

    @cached_property
    def _nothing(self) -> _Changes:
        states = self._layout.table.states
        return _Changes(np.zeros(0, np.int32), pa.array([], states.field(0).type), pa.array([], states.field(1).type))

    def _load(self) -> None:
        """Look up the stored rows of keys that are new in this epoch. Tombstones that are too old are not there."""
        fresh = np.arange(len(self._at), len(self._index), dtype=np.int32)
        if not len(fresh):
            return
        found = self._table.lookup(self._index.keys(pa.array(fresh)))
        is_there = found.present & ~_expired(found.states, self._layout, self._now_us)
        known = self._stored.num_rows
        at = np.where(is_there, known + np.cumsum(is_there) - 1, -1)
        self._at = np.concatenate([self._at, at])
        if is_there.any():
            self._stored = concat_batches([self._stored, found.states.filter(pa.array(is_there))])

    def _finish(self, last: _Changes) -> tuple[pa.Array, pa.RecordBatch]:
        at = self._at[last.slots]
        before = self._stored.column(1).take(pa.array(np.maximum(at, 0), mask=at < 0))
        keys = self._index.keys(pa.array(last.slots))
        existed, exists = (rows.is_valid().to_numpy(zero_copy_only=False) for rows in (before, last.rows))
        schema = pa.schema([*self._layout.keys, *self.values])
        old, new = (
            pa.RecordBatch.from_arrays([*keys.columns, *_unpacked(rows).columns[1:]], schema=schema)
            for rows in (before, last.rows)
        )
        kinds, changes = changelog(old, new, existed, exists, update_before=True)
        if len(last.slots):
            deleted_us = pa.array(np.full(len(exists), self._now_us, np.int64), mask=exists)
            states = pa.RecordBatch.from_arrays(
                [last.sequence, last.rows, deleted_us, pa.array(np.zeros(len(exists), np.bool_))],
                schema=self._layout.table.states,
            )
            committed = self._table.commit(keys, np.ones(len(exists), np.int64), states)
            self.stats.runs, self.stats.state_bytes = committed.runs, committed.bytes
        else:
            self._table.declare()
        return kinds, changes

    @property
    def values(self) -> list[pa.Field]:
        """The columns of the result after the keys, under names that are no key's."""
        return [pa.field(f"value_{index}", field.type) for index, field in enumerate(self._layout.columns)]


def _struct(values: Sequence[pa.Array], columns: pa.Schema, is_null: pa.Array) -> pa.Array:
    if not len(columns):  # Arrow makes no array of n structs from no columns
        rows: list[dict[str, Any] | None] = [None if each else {} for each in is_null.to_pylist()]
        return pa.array(rows, pa.struct([]))
    return pa.StructArray.from_arrays(values, fields=list(columns), mask=is_null)


def _unpacked(rows: pa.Array) -> pa.RecordBatch:
    """Return the fields of n structs as columns, after one that tells which structs are there."""
    columns = [rows.is_valid(), *(rows.flatten() if rows.type.num_fields else [])]
    return pa.RecordBatch.from_arrays(columns, names=[f"field_{index}" for index in range(len(columns))])


def _sorted(changes: _Changes) -> tuple[npt.NDArray[np.int64], Codes]:
    """Return the positions of n changes by key and sequence, and numbers that grow with them, equal for equal ones."""
    columns: list[npt.NDArray[Any]] = [changes.slots, *order_codes(changes.sequence)]
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), np.bool_)
    for column in columns:
        ordered = column[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
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


def _text_of(sequence: pa.Scalar) -> str:
    try:
        return repr(sequence.as_py())
    except (ValueError, OverflowError):  # a time without a Python object
        return str(sequence)


def epoch_of(
    layout: UpsertLayout, storage: Storage, first: pa.RecordBatch, blocks: Iterable[pa.RecordBatch]
) -> tuple[EpochStats, pa.Array, pa.RecordBatch]:
    """Store the changes of one bucket and epoch; return its metrics, row kinds and rows.

    Args:
        layout: The columns.
        storage: The storage of the bucket.
        first: The first block, whose rows have the time of the epoch.
        blocks: All blocks.

    Raises:
        RejectedError: SCHEMA_MISMATCH, STATE_MISMATCH.
        CorruptError: STATE_CHECKSUM, INVARIANT.
    """
    now_us = first.column(NOW_US)[0].as_py()
    epoch = UpsertEpoch(layout, upsert_table(layout, storage, now_us), now_us)
    kinds, changes = epoch.run(blocks)
    return epoch.stats, kinds, changes
