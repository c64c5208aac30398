"""The state table of a bucket of a query with views, whose entries may be too many for one state.

A view of at most 64 entries and 4 KiB is stored in the row of its group, *inline*. The entries of a larger view are
rows of a second table (`engine/state/entries.py`), and stay there until the view is cleared. A lookup of groups reads
no entries of that table, and an epoch writes only the entries that changed.

A view in states of the exchange is `struct<complete, cleared, entries: list<struct<key, value, present>>>`. The row of
a group has `struct<generation, entries: list<struct<key, value>>>` in its place, where generation 0 means inline. For a
list it also has the number of its items. In states of the exchange this number is the key of an entry that does not
exist, if the items are not there, so that a server can append items without reading any.

Several state tables share one store, with their manifests in one. A bucket of a query with views has a table of groups,
and a table of entries for each view. The runs of all tables share a map, since their names are unique. Their manifests
are stored together, because a checkpoint of Spark has one variable for the manifest, and because they must be of the
same commit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.keys.hashes import Hashes
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.query.layout import SLOT, CallView
from foldflight.engine.state.entries import ENTRY, GENERATION, VALUE, EntryTable, Page
from foldflight.engine.state.manifest import (
    FORMAT_OF_SEVERAL,
    MAGIC,
    CommitStats,
    Lookup,
    RunStore,
    Storage,
    TableLayout,
    calls_of,
    manifests_of,
)
from foldflight.engine.state.runs import seal
from foldflight.engine.state.table import Conversion, StateTable
from foldflight.functions.types.arrow import with_column
from foldflight.functions.types.views import ViewSpec

GROUPS: Final = ""
"""The name of the table of groups."""


class TableStores:
    """The stores of several tables, by name.

    Manifests are stored when `write` is called. The store of a query that had no views before has one manifest, the
    manifest of the table of groups, and is continued.

    Args:
        store: The storage of the bytes.

    Attributes:
        commits: The number of commits so far.
        is_changed: Whether there are manifests to write.

    Raises:
        RejectedError: STATE_MISMATCH, for a manifest of another format.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._manifests: dict[str, bytes] = {}
        self.commits = 0
        self.is_changed = False
        data = store.manifest()
        if data is not None:
            self._manifests, self.commits = manifests_of(data)

    def of(self, name: str) -> RunStore:
        """Return the store of a table."""
        return _Part(self, name, self._store)

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest of a table."""
        return self._manifests.get(name)

    def put_manifest(self, name: str, data: bytes) -> None:
        """Replace the manifest of a table; `write` stores it."""
        self._manifests[name] = data
        self.is_changed = True

    def write(self) -> None:
        """Store the manifests, if one of them has changed."""
        if not self.is_changed:
            return
        self.is_changed = False
        tables = {name: base64.b64encode(data).decode() for name, data in self._manifests.items()}
        content: dict[str, Any] = {"format": FORMAT_OF_SEVERAL, "commits": self.commits, "tables": tables}
        self._store.put_manifest(seal(MAGIC, json.dumps(content).encode()))


class _Part:
    """The store of one table."""

    def __init__(self, tables: TableStores, name: str, store: RunStore) -> None:
        self._tables = tables
        self._name = name
        self.run, self.put_run, self.remove_run = store.run, store.put_run, store.remove_run

    def manifest(self) -> bytes | None:
        return self._tables.manifest(self._name)

    def put_manifest(self, data: bytes) -> None:
        self._tables.put_manifest(self._name, data)


ITEMS: Final = "items"
"""The member of a stored list with the number of its items."""

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ViewLookup(Lookup):
    """The result of a lookup of n keys.

    Args:
        generations: For each view int64, shape (n,): the generation of its entries; 0 if the state has them all.
    """

    generations: tuple[Counts, ...]


@dataclass(frozen=True)
class _Entries:
    """Some entries of n groups: the index of the group of each, its key, its value, and whether it exists."""

    rows: Counts
    keys: pa.Array
    values: pa.Array
    present: Mask

    def where(self, mask: Mask) -> _Entries:
        if mask.all():
            return self
        mask_array = pa.array(mask)
        return _Entries(
            self.rows[mask], self.keys.filter(mask_array), self.values.filter(mask_array), self.present[mask]
        )

    def then(self, other: _Entries) -> _Entries:
        if not len(self.rows) or not len(other.rows):
            return self if len(self.rows) else other
        return _Entries(
            np.concatenate([self.rows, other.rows]),
            pa.concat_arrays([self.keys, other.keys]),
            pa.concat_arrays([self.values, other.values]),
            np.concatenate([self.present, other.present]),
        )

    def by_row(self) -> _Entries:
        """Return the entries in the order of their groups."""
        if (np.diff(self.rows) >= 0).all():
            return self
        order = np.argsort(self.rows, kind="stable")
        rows = pa.array(order)
        return _Entries(self.rows[order], self.keys.take(rows), self.values.take(rows), self.present[order])

    def newest(self) -> _Entries:
        """Return the last row of each entry, if it exists, by group, in the order of first appearance."""
        if not len(self.rows):
            return self
        rows = pa.array(self.rows)
        index = KeyIndex(pa.schema([pa.field("row", pa.int64()), pa.field("key", self.keys.type)]))
        slots = index.slots([rows, self.keys]).to_numpy()
        distinct = index.keys()
        last = np.zeros(len(index), np.int64)
        last[slots] = np.arange(len(slots))
        owners = distinct.column(0).to_numpy()
        order = np.argsort(owners, kind="stable")
        order = order[self.present[last[order]]]
        keys = distinct.column(1).take(pa.array(order))
        values = self.values.take(pa.array(last[order]))
        return _Entries(owners[order], keys, values, np.ones(len(order), np.bool_))


class ViewTable:
    """The groups of one bucket, and the entries of their views.

    Args:
        layout: The layout of the rows, with states as in the exchange.
        views: The views of the calls.
        storage: Where its pieces are.
        conversion: Makes, of the table, the conversion of stored states of other generations. None: a table with such
            states is refused.

    Attributes:
        views: The views, by their number.

    Raises:
        RejectedError: STATE_MISMATCH, if the stored table belongs to another query, or to another version of its calls.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(
        self,
        layout: TableLayout,
        views: Sequence[CallView],
        storage: Storage,
        *,
        conversion: Callable[[ViewTable], Conversion] | None = None,
    ) -> None:
        self.layout = layout
        self.views = tuple(views)
        self._bounds = storage.bounds
        self._stores = TableStores(storage.store)
        stored_layout = replace(layout, states=_stored_schema(layout.states, views))
        convert = None if conversion is None else conversion(self)
        self._groups = StateTable(stored_layout, replace(storage, store=self._stores.of(GROUPS)), conversion=convert)
        self._entries = [
            EntryTable(
                view.table,
                layout.keys,
                view.spec,
                replace(storage, store=self._stores.of(view.table)),
                is_current=partial(self._are_current, index),
            )
            for index, view in enumerate(views)
        ]

    @property
    def lacks_outputs(self) -> bool:
        """Whether the groups were stored without the last outputs that are stored from now on."""
        return self._groups.lacks_outputs

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return self._groups.pieces + sum(table.pieces for table in self._entries)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pieces."""
        return self._groups.stored_bytes + sum(table.stored_bytes for table in self._entries)

    def declare(self) -> None:
        """Store the layout if it is new, so that a different query is detected even if no group is touched."""
        self._groups.declare()
        for table in self._entries:
            table.declare()
        self._stores.write()

    def lookup(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> ViewLookup:
        """Look up n distinct groups. Of their views, the states have all entries or none (`complete`).

        Args:
            keys: n rows of the key columns, in the canonical form of `KeyIndex.keys`.
            hashes: Their stored hashes, as for `StateTable.lookup`.

        Raises:
            CorruptError: STATE_CHECKSUM, INVARIANT.
        """
        lookup = self._lookup_stored(keys, hashes)
        generations = tuple(_stored_parts(lookup.states, view)[0] for view in self.views)
        return ViewLookup(lookup.present, lookup.live, self._to_exchange(lookup.states), lookup.emitted, generations)

    def lookup_entries(
        self, index: int, keys: pa.RecordBatch, generations: Counts, entries: pa.Array
    ) -> tuple[Mask, pa.Array]:
        """Look up n entries, each of a group and of its present generation.

        Args:
            index: The index of the view.
            keys: n groups: rows of the key columns.
            generations: int64, shape (n,): the generations of their views, from `lookup`.
            entries: n keys of entries.

        Returns:
            Whether each entry exists (bool, shape (n,)), and n values, NULL for entries that do not.
        """
        present, values = self._entries[index].lookup(keys, pa.array(generations), entries)
        is_inline = generations == 0
        if is_inline.any():
            inline_mask = pa.array(is_inline)
            present[is_inline], inline = self._lookup_inline(
                index, keys.filter(inline_mask), entries.filter(inline_mask)
            )
            indexes = np.arange(len(values))
            indexes[is_inline] = len(values) + np.arange(len(inline))
            values = pa.concat_arrays([values, inline]).take(pa.array(indexes))
        return present, values

    def page(self, index: int, key: pa.RecordBatch, generation: int, after: pa.Array | None) -> Page:
        """Return the entries of a view that is not inline, a list's in its order, a map's in any order.

        Args:
            index: The index of the view.
            key: One row of the key columns.
            generation: The generation of the view, from `lookup`.
            after: The key after which the page begins, as an array of one; None for the first page.
        """
        return self._entries[index].page(key, generation, after)

    def commit(
        self,
        keys: pa.RecordBatch,
        live: npt.NDArray[np.int64],
        states: pa.RecordBatch,
        hashes: Hashes | None = None,
        emitted: Sequence[pa.Array] | None = None,
    ) -> CommitStats:
        """Store the new states of n distinct groups, and the changed entries of their views, and continue merges.

        Args:
            keys: n rows of the key columns, as for `lookup`.
            live: int64, shape (n,): live rows of each group; 0 removes the group with its entries.
            states: n rows of `state_0`..., with the changed entries of views, or with all (`complete`).
            hashes: The stored hashes of the keys, as for `StateTable.commit`.
            emitted: Their last outputs, as for `StateTable.commit`.
        """
        hashes = self._groups.hashes_of(keys) if hashes is None else hashes
        before = self._before(keys, states, hashes)
        self._stores.commits += 1
        columns, changed_parts = list(states.columns), []
        for index, view in enumerate(self.views):
            generations, inline, entry_rows = self._split(view, before, columns[view.call], live)
            items = _items_after(before, columns[view.call], view) if view.spec.is_list else None
            stored_view = _stored_view(generations, items, inline, view)
            columns[view.call] = _with_view(columns[view.call], view, stored_view)
            changed_parts.append((index, pa.array(generations), entry_rows))
        # Merges of entries ask for the generations of groups, so the groups are written first.
        written_states = pa.RecordBatch.from_arrays(columns, schema=self._groups.layout.states)
        outcome = self._groups.commit(keys, live, written_states, hashes, emitted)
        rows, merged_rows = outcome.rows, outcome.merged_rows
        for index, numbers, entry_rows in changed_parts:
            owners = pa.array(entry_rows.rows)
            each = self._entries[index].commit(
                keys.take(owners), numbers.take(owners), entry_rows.keys, entry_rows.values, entry_rows.present
            )
            rows, merged_rows = rows + each.rows, merged_rows + each.merged_rows
        self._stores.write()
        return CommitStats(rows, merged_rows, self.pieces, self.stored_bytes)

    def scan(self, where: Callable[[pa.RecordBatch], Mask] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all groups as `StateTable.scan` does, with states as from `lookup`."""
        for rows in self._groups.scan(where):
            exchange_rows = self._to_exchange(rows.select(self.layout.states.names))
            columns = [
                exchange_rows.column(name) if name in exchange_rows.schema.names else rows.column(name)
                for name in rows.schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.layout.rows)

    def all_entries(self, index: int) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a view of all groups: the key columns, `entry` and `value`."""
        view = self.views[index]
        for rows in self._groups.scan():
            _, inline = _stored_parts(rows.select(self.layout.states.names), view)
            groups = rows.select(self.layout.keys.names).take(pa.array(inline.rows))
            yield _named_entries(groups, inline.keys, inline.values)
        for rows in self._entries[index].scan():
            current = rows.filter(pa.array(self._are_current(index, rows)))
            groups = current.select(self.layout.keys.names)
            yield _named_entries(groups, current.column(ENTRY), current.column(VALUE))

    def with_all_entries(self, index: int, keys: pa.RecordBatch, states: pa.Array) -> pa.Array:
        """Return n stored states of a call with all entries of a view, as states of the exchange have them.

        Args:
            index: The index of the view, which is a map.
            keys: n groups: rows of the key columns.
            states: n states; other members than the view may have any type.
        """
        view = self.views[index]
        generations, inline = _view_parts(_member(states, view.spec.name))
        pages, owners = [Page(inline.keys, inline.values, is_last=True)], [inline.rows]
        for row in np.flatnonzero(generations):
            after, is_last = None, False
            while not is_last:
                page = self.page(index, keys.slice(row, 1), int(generations[row]), after)
                pages.append(page)
                owners.append(np.full(len(page.keys), row))
                after, is_last = page.keys.slice(max(len(page.keys) - 1, 0)), page.is_last
        rows = np.concatenate(owners)
        all_entries = _Entries(
            rows,
            pa.concat_arrays([page.keys for page in pages]),
            pa.concat_arrays([page.values for page in pages]),
            np.ones(len(rows), np.bool_),
        )
        return _with_view(
            states, view, _exchange_view(np.zeros(len(states), np.int64), all_entries.by_row(), view.spec.arrow)
        )

    def _lookup_inline(self, index: int, keys: pa.RecordBatch, entries: pa.Array) -> tuple[Mask, pa.Array]:
        """Look up n entries of inline views, as `lookup_entries` does."""
        slots, groups = self._distinct(keys)
        _, inline = _stored_parts(self._lookup_stored(groups).states, self.views[index])
        key_index = KeyIndex(pa.schema([pa.field("row", pa.int64()), pa.field("key", entries.type)]))
        key_index.slots([pa.array(inline.rows), inline.keys])
        entry_slots = key_index.slots([pa.array(slots.astype(np.int64)), entries]).to_numpy()
        present: Mask = entry_slots < len(inline.rows)
        return present, inline.values.take(pa.array(entry_slots, mask=~present))

    def _distinct(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], pa.RecordBatch]:
        """Return the number of each row's group among the groups of n rows, and these groups."""
        names = self.layout.keys.names
        if not names:
            return np.zeros(rows.num_rows, np.int32), pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
        index = KeyIndex(self.layout.keys)
        return index.slots([rows.column(name) for name in names]).to_numpy(), index.keys()

    def _before(self, keys: pa.RecordBatch, states: pa.RecordBatch, hashes: Hashes) -> pa.RecordBatch:
        """Return n stored states, before a commit of `states`. They are NULL for groups of which all views are sent."""
        is_needed = np.zeros(keys.num_rows, np.bool_)
        for view in self.views:
            is_needed |= ~_changes(states.column(view.call), view)[0]
        if is_needed.all():
            return self._lookup_stored(keys, hashes).states
        indexes = pa.array(np.cumsum(is_needed) - 1, mask=~is_needed)
        if not is_needed.any():
            schema = self._groups.layout.states
            return pa.RecordBatch.from_arrays([pa.nulls(len(indexes), each) for each in schema.types], schema=schema)
        return self._lookup_stored(keys.filter(pa.array(is_needed)), hashes[is_needed]).states.take(indexes)

    def _lookup_stored(self, keys: pa.RecordBatch, hashes: Hashes | None = None) -> Lookup:
        """Look up n groups, with states as they are stored; NULL for groups that were removed."""
        lookup = self._groups.lookup(keys, hashes)
        if lookup.present.all():
            return lookup
        indexes = pa.array(np.arange(keys.num_rows), mask=~lookup.present)
        return Lookup(lookup.present, lookup.live, lookup.states.take(indexes), lookup.emitted)

    def _split(
        self, view: CallView, before: pa.RecordBatch, states: pa.Array, live: npt.NDArray[np.int64]
    ) -> tuple[Counts, _Entries, _Entries]:
        """Return the generations of n groups, their inline entries, and the entries to write as rows."""
        generations, inline = _stored_parts(before, view)
        is_reset, changes = _changes(states, view)
        changes = changes.where((live[changes.rows] > 0) & (changes.present | (not view.spec.is_list)))
        # All entries of these groups are known.
        is_known = is_reset | (generations == 0)
        older = inline.where((live[inline.rows] > 0) & ~is_reset[inline.rows])
        # A view that is sent as a whole has each key once.
        whole = changes.where(is_reset[changes.rows] & changes.present)
        contents = older.then(changes.where((is_known & ~is_reset)[changes.rows])).newest().then(whole).by_row()
        counts = np.bincount(contents.rows, minlength=len(live))
        sizes = np.bincount(contents.rows, _sizes(contents.keys) + _sizes(contents.values), len(live))
        is_inline = is_known & (counts <= self._bounds.inline_entries_max) & (sizes <= self._bounds.inline_bytes_max)
        generations = np.where(is_known, np.where(is_inline, 0, self._stores.commits), generations)
        row_entries = contents.where(~is_inline[contents.rows]).then(changes.where(~is_known[changes.rows]))
        return generations, contents.where(is_inline[contents.rows]), row_entries

    def _to_exchange(self, stored_states: pa.RecordBatch) -> pa.RecordBatch:
        """Return stored states as states of the exchange."""
        columns = list(stored_states.columns)
        for view in self.views:
            generations, inline = _stored_parts(stored_states, view)
            type_ = self.layout.states.types[view.call].field(view.spec.name).type
            if view.spec.is_list:
                inline = _with_numbers(inline, generations, _items(stored_states, view))
            columns[view.call] = _with_view(columns[view.call], view, _exchange_view(generations, inline, type_))
        return pa.RecordBatch.from_arrays(columns, schema=self.layout.states)

    def _are_current(self, index: int, rows: pa.RecordBatch) -> Mask:
        """Return which of n rows of group and `generation` are of their group's generation of a view."""
        slots, keys = self._distinct(rows)
        lookup = self._lookup_stored(keys)
        generations, _ = _stored_parts(lookup.states, self.views[index])
        current: Mask = generations[slots] == rows.column(GENERATION).to_numpy()
        return current


class ViewConversion:
    """Converts states of other generations for a table with views.

    Args:
        conversion: Converts states of the exchange, whose views have all entries.
        table: The table.
    """

    def __init__(self, conversion: Conversion, table: ViewTable) -> None:
        self._conversion = conversion
        self._table = table

    def check(self, stored_schema: pa.Schema) -> None:
        """Refuse states that the query's calls cannot convert. Raises RejectedError STATE_MISMATCH."""
        self._conversion.check(stored_schema)

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:
        """Return n stored states, in the schema `stored_schema`, as n stored states of the query.

        Calls that have not changed are not converted. Views that are stored already stay as they are.
        """
        ours = self._table.layout.states
        same = [old == new for old, new in zip(calls_of(stored_schema), calls_of(ours), strict=True)]
        views = {view.call: (index, view) for index, view in enumerate(self._table.views)}
        fields, columns = list(stored_schema), list(states.columns)
        for call, is_same in enumerate(same):
            if is_same:
                fields[call], columns[call] = ours.field(call), pa.nulls(states.num_rows, ours.types[call])
            elif call in views and _is_stored(columns[call], views[call][1]):
                columns[call] = self._table.with_all_entries(views[call][0], keys, columns[call])
                fields[call] = fields[call].with_type(columns[call].type)
        schema = pa.schema(fields)
        converted_states = self._conversion(schema, keys, pa.RecordBatch.from_arrays(columns, schema=schema))
        arrays = [
            states.column(call)
            if is_same
            else self._restore_views(converted_states.column(call), states.column(call), views[call][1])
            if call in views
            else converted_states.column(call)
            for call, is_same in enumerate(same)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_stored_schema(ours, self._table.views))

    @staticmethod
    def _restore_views(converted_states: pa.Array, before: pa.Array, view: CallView) -> pa.Array:
        """Return n states of the exchange with the views that were stored before, or with all entries inline."""
        if _is_stored(before, view):
            return _with_view(converted_states, view, _member(before, view.spec.name))
        _, entries = _changes(converted_states, view)
        inline = _stored_view(np.zeros(len(converted_states), np.int64), None, entries, view)
        return _with_view(converted_states, view, inline)


def _is_stored(states: pa.Array, view: CallView) -> bool:
    """Return whether n states have a view in the form in which it is stored."""
    if not pa.types.is_struct(states.type):
        return False
    index = states.type.get_field_index(view.spec.name)
    return index >= 0 and states.type.field(index).type == _view_type(view)


def table_of(
    layout: TableLayout,
    views: Sequence[CallView],
    storage: Storage,
    conversion: Conversion | None = None,
) -> StateTable | ViewTable:
    """Return the state table of a bucket, with or without views. The arguments and errors are as for both."""
    if views:
        convert = None if conversion is None else partial(ViewConversion, conversion)
        return ViewTable(layout, views, storage, conversion=convert)
    return StateTable(layout, storage, by_groups=True, conversion=conversion)


def one_row_each(results: pa.RecordBatch, views: Sequence[CallView]) -> pa.RecordBatch:
    """Return results in which each slot has one row. The entries of large views may come in several rows of a slot.

    Args:
        results: n rows with `slot`, ascending, and `state_i`. Only the first row of a slot has values other than views.
        views: The views of the calls.
    """
    slots = results.column(SLOT).to_numpy()
    is_first = np.r_[True, slots[1:] != slots[:-1]][: len(slots)]
    if is_first.all():
        return results
    owners, firsts = np.cumsum(is_first) - 1, results.filter(pa.array(is_first))
    for view in views:
        index = results.schema.get_field_index(f"state_{view.call}")
        whole, first = (_member(batch.column(index), view.spec.name) for batch in (results, firsts))
        rows, entries = _flat(_member(whole, "entries"))
        offsets = np.r_[0, np.cumsum(np.bincount(owners[rows], minlength=firsts.num_rows))]
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=first.type.field("entries").type)
        flags = [_member(first, name) for name in ("complete", "cleared")]
        column = pa.StructArray.from_arrays([*flags, lists], fields=list(first.type), mask=first.is_null())
        states = _with_view(firsts.column(index), view, column)
        firsts = with_column(firsts, results.schema.field(index), states)
    return firsts


def stored_views(layout: TableLayout, tables: Sequence[str]) -> list[CallView]:
    """Return the views of a stored table of groups.

    Args:
        layout: Its layout, from its manifest.
        tables: The names of all tables.
    """
    views = []
    for table in tables:
        call, _, name = table.partition(".")
        if name:
            entry = layout.states.field(f"state_{call}").type.field(name).type.field("entries").type.value_type
            is_list = layout.states.field(f"state_{call}").type.field(name).type.get_field_index(ITEMS) >= 0
            spec = ViewSpec(name, entry.field("key").type, entry.field("value").type, is_list=is_list)
            views.append(CallView(int(call), spec))
    return views


# -- views in states -------------------------------------------------------------------------------------------------


def _view_type(view: CallView) -> pa.DataType:
    """Return the type of a view in the rows of groups."""
    entry = pa.struct([("key", view.spec.key), ("value", view.spec.value)])
    items = [(ITEMS, pa.int64())] if view.spec.is_list else []
    return pa.struct([(GENERATION, pa.int64()), *items, ("entries", pa.list_(entry))])


def _stored_schema(states: pa.Schema, views: Sequence[CallView]) -> pa.Schema:
    fields = list(states)
    for view in views:
        members = [
            member.with_type(_view_type(view)) if member.name == view.spec.name else member
            for member in fields[view.call].type
        ]
        fields[view.call] = fields[view.call].with_type(pa.struct(members))
    return pa.schema(fields)


def _with_view(states: pa.Array, view: CallView, column: pa.Array) -> pa.Array:
    """Return n states of a call with another array as one of their members."""
    members = list(states.type)
    index = states.type.get_field_index(view.spec.name)
    columns = states.flatten()
    columns[index], members[index] = column, members[index].with_type(column.type)
    return pa.StructArray.from_arrays(columns, fields=members, mask=states.is_null())


def _member(states: pa.Array, name: str) -> pa.Array:
    """Return a member of n structs; NULL for structs that are NULL."""
    return states.flatten()[states.type.get_field_index(name)]


def _flags(view: pa.Array, name: str) -> Mask:
    flags: Mask = _member(view, name).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _flat(lists: pa.Array) -> tuple[Counts, pa.Array]:
    """Return the position of the list of each item, and the items."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths), lists.flatten()


def _stored_parts(states: pa.RecordBatch, view: CallView) -> tuple[Counts, _Entries]:
    """Return the generations of a view in n stored states, and its inline entries."""
    return _view_parts(_member(states.column(view.call), view.spec.name))


def _view_parts(column: pa.Array) -> tuple[Counts, _Entries]:
    generations = _member(column, GENERATION).fill_null(0).to_numpy(zero_copy_only=False)
    rows, entries = _flat(_member(column, "entries"))
    keys, values = _member(entries, "key"), _member(entries, "value")
    return generations, _Entries(rows, keys, values, np.ones(len(rows), np.bool_))


def _changes(states: pa.Array, view: CallView) -> tuple[Mask, _Entries]:
    """Return for n states of the exchange whether older entries of a view are gone, and the entries that they have."""
    column = _member(states, view.spec.name)
    rows, entries = _flat(_member(column, "entries"))
    keys, values, present = _member(entries, "key"), _member(entries, "value"), _flags(entries, "present")
    return _flags(column, "cleared") | _flags(column, "complete"), _Entries(rows, keys, values, present)


def _items(states: pa.RecordBatch, view: CallView) -> Counts:
    """Return the number of items of a list in n stored states."""
    column = _member(states.column(view.call), view.spec.name)
    items: Counts = _member(column, ITEMS).fill_null(0).to_numpy(zero_copy_only=False)
    return items


def _items_after(before: pa.RecordBatch, states: pa.Array, view: CallView) -> Counts:
    """Return the number of items of a list in n states of the exchange, which may have only the last ones."""
    is_reset, changes = _changes(states, view)
    items = np.where(is_reset, 0, _items(before, view))
    np.maximum.at(items, changes.rows, changes.keys.to_numpy() + changes.present)
    return items


def _with_numbers(inline: _Entries, generations: Counts, items: Counts) -> _Entries:
    """Add the number of items to n lists that are not inline: as the key of an entry that does not exist."""
    rows = np.flatnonzero(generations)
    numbers = pa.array(items[rows], inline.keys.type)
    lasts = _Entries(rows, numbers, pa.nulls(len(rows), inline.values.type), np.zeros(len(rows), np.bool_))
    return inline.then(lasts).by_row()


def _stored_view(generations: Counts, items: Counts | None, inline: _Entries, view: CallView) -> pa.Array:
    type_ = _view_type(view)
    entries = _lists(len(generations), inline, [inline.keys, inline.values], type_.field("entries").type)
    numbers = [] if items is None else [pa.array(items)]
    return pa.StructArray.from_arrays([pa.array(generations), *numbers, entries], fields=list(type_))


def _exchange_view(generations: Counts, inline: _Entries, type_: pa.StructType) -> pa.Array:
    columns = [inline.keys, inline.values, pa.array(inline.present)]
    entries = _lists(len(generations), inline, columns, type_.field("entries").type)
    flags = [pa.array(generations == 0), pa.array(np.zeros(len(generations), np.bool_))]
    return pa.StructArray.from_arrays([*flags, entries], fields=list(type_))


def _lists(count: int, entries: _Entries, columns: Sequence[pa.Array], type_: pa.ListType) -> pa.Array:
    """Return n lists of entries, which are sorted by their list."""
    offsets = np.r_[0, np.cumsum(np.bincount(entries.rows, minlength=count))]
    items = pa.StructArray.from_arrays(columns, fields=list(type_.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=type_)


def _named_entries(groups: pa.RecordBatch, keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*groups.columns, keys, values], names=[*groups.schema.names, ENTRY, VALUE])


def _sizes(array: pa.Array) -> Counts:
    """Return about how many bytes each of n values takes."""
    type_ = array.type
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if pa.types.is_struct(type_):
        return sum((_sizes(member) for member in array.flatten()), np.zeros(len(array), np.int64))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        offsets = array.offsets.to_numpy()
        parts = [array.keys, array.items] if pa.types.is_map(type_) else [array.values]
        sizes = sum(_sizes(part.slice(offsets[0], offsets[-1] - offsets[0])) for part in parts)
        return np.diff(np.r_[0, np.cumsum(sizes)][offsets - offsets[0]]) + 8
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        lengths = pc.binary_length(array).fill_null(0)
        return 4 + lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.full(len(array), array.nbytes // max(len(array), 1), np.int64)
