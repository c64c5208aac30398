"""The views of the groups of one epoch of a bucket: which of their entries a server has, and which it asks for.

Views that are inline are part of the states. Of larger views the engine sends the entries that rows will use, if the
function tells which these are (`prefetch`), with one lookup for each block. The server asks for all other entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.keys.grouped import Groups
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.query.layout import SLOT, CallView, QueryLayout
from foldflight.engine.state.viewtable import ViewLookup, ViewTable
from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import is_nested

Slots = npt.NDArray[np.int32]


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
        self._sent: list[KeyIndex] = []
        self._forget_sent()

    def load(self, stored: ViewLookup) -> None:
        """Add the next slots. The server gets the states of groups that exist."""
        for index, generations in enumerate(stored.generations):
            self._generations[index] = np.concatenate([self._generations[index], generations])
            # The server has the states of groups that exist, and starts others with empty views.
            self._is_complete[index] = np.concatenate([self._is_complete[index], generations == 0])

    def reset(self) -> None:
        """Begin anew after a checkpoint: the server has forgotten all entries, and the table has the changed ones."""
        slots = np.arange(len(self._generations[0]), dtype=np.int32)
        stored = self._table.lookup(self._groups.keys(slots), self._groups.stored_hashes(slots))
        self._generations = list(stored.generations)
        # Groups that do not exist have no rows yet.
        self._is_complete = [~stored.present for _ in self._views]
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
            asked = self._prefetch(index, slots, block)
            if asked is not None:
                yield self._answer_of(index, *asked)

    def resolve(self, wanted: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the entries that a server asks for.

        Args:
            wanted: `slot`, and the states with views with keys and without values. A view with `complete` asks for the
                entries after its last key, or for the first ones.

        Raises:
            RejectedError: BAD_FRAME, for slots or views that the epoch does not have.
            CorruptError: If the table is damaged.
        """
        slots = wanted.column(SLOT).to_numpy()
        if not ((slots >= 0) & (slots < len(self._generations[0]))).all():
            raise RejectedError("BAD_FRAME", "the server asks for entries of a slot that it was not given")
        for index, view in enumerate(self._views):
            states = wanted.column(f"state_{view.call}")
            views = states.flatten()[states.type.get_field_index(view.spec.name)]
            complete, _, lists = views.flatten()
            pages = complete.fill_null(False).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(pages):
                keys = lists[row].values
                yield self._page(index, int(slots[row]), None if keys is None or not len(keys) else keys.field("key"))
            rows = np.flatnonzero(~pages & views.is_valid().to_numpy(zero_copy_only=False))
            if len(rows):
                chosen = lists.take(pa.array(rows))
                owners = np.repeat(slots[rows], chosen.value_lengths().fill_null(0).to_numpy())
                yield self._answer_of(index, owners, chosen.flatten().field("key"))

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
        sent = self._sent[index]
        known = len(sent)
        sent.slots([pa.array(slots[is_used]), keys])
        if len(sent) == known:
            return None
        fresh = sent.keys(pa.array(np.arange(known, len(sent), dtype=np.int32)))
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
        stored = self._table.lookup(self._groups.keys(slots), self._groups.stored_hashes(slots))
        states = stored.states.column(f"state_{view.call}")
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
        self._sent = [KeyIndex(each) for each in fields]


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
