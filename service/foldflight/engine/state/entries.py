"""The entries of one view of a bucket's groups: a state table whose keys are group, generation and entry.

An entry belongs to a group and a generation of the view. A view gets a new generation when it is cleared, so clearing
a view of any size writes one number. Entries of other generations than the group's are never looked up, and merges
drop them.

The hash of an entry has 24 bits of its group and generation, and 40 bits of its key, or the index of a list's item. So
all entries of a group are adjacent, and the entries of a list are in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.hashes import Hashes, key_hashes, text_hashes
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.state.manifest import CommitStats, Storage, TableLayout
from foldflight.engine.state.table import StateTable
from foldflight.functions.types.views import ViewSpec

GENERATION, ENTRY, VALUE = "generation", "entry", "value"

Mask = npt.NDArray[np.bool_]

_ENTRY_BITS: Final = 40
_ENTRY_MASK: Final = (1 << _ENTRY_BITS) - 1
_PAGE_ROWS: Final = 1 << 14
_PAGE_ROW_BYTES: Final = 64


@dataclass(frozen=True)
class Page:
    """Some entries of a view, in the order of their hashes.

    Args:
        keys: n keys; for a list the indices of its items.
        values: n values.
        is_last: Whether no entries follow.
    """

    keys: pa.Array
    values: pa.Array
    is_last: bool


class EntryTable:
    """The entries of one view.

    Args:
        name: The name of the table.
        groups: The key columns of the groups.
        view: The view.
        storage: Where its pieces are.
        is_current: Returns which of n rows of group and `generation` have the group's present generation.

    Raises:
        RejectedError: STATE_MISMATCH, if the stored entries have other types.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(
        self,
        name: str,
        groups: pa.Schema,
        view: ViewSpec,
        storage: Storage,
        *,
        is_current: Callable[[pa.RecordBatch], Mask],
    ) -> None:
        self._keys = pa.schema([*groups, pa.field(GENERATION, pa.int64()), pa.field(ENTRY, view.key)])
        identity = {"function": name, "version": "", "fingerprint": str(view.value)}
        states = pa.schema([pa.field(VALUE, view.value, metadata=identity)])
        self._is_list = view.is_list
        self._table = StateTable(TableLayout(self._keys, states), storage, hashes=self._hashes, keeps=is_current)

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return self._table.pieces

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pieces."""
        return self._table.stored_bytes

    def lookup(self, groups: pa.RecordBatch, generations: pa.Array, keys: pa.Array) -> tuple[Mask, pa.Array]:
        """Look up n entries.

        Args:
            groups: n rows of the key columns of the groups.
            generations: int64, n generations.
            keys: n keys of entries.

        Returns:
            Whether each entry exists (bool, shape (n,)), and n values, NULL for entries that do not.
        """
        rows, slots = self._distinct(groups, generations, keys)
        lookup = self._table.lookup(rows)
        return lookup.present[slots], lookup.states.column(VALUE).take(pa.array(slots))

    def commit(
        self, groups: pa.RecordBatch, generations: pa.Array, keys: pa.Array, values: pa.Array, present: Mask
    ) -> CommitStats:
        """Store n entries, or their removal, and continue merges. Of several rows of an entry the last one counts.

        Args:
            groups: n rows of the key columns of the groups.
            generations: int64, n generations.
            keys: n keys of entries.
            values: n values.
            present: bool, shape (n,): whether the entry exists; false removes it.
        """
        rows, slots = self._distinct(groups, generations, keys)
        last = np.zeros(rows.num_rows, np.int64)
        last[slots] = np.arange(len(slots))
        live = present[last].astype(np.int64)
        written_values = values.take(pa.array(last, mask=live == 0))
        return self._table.commit(rows, live, pa.RecordBatch.from_arrays([written_values], names=[VALUE]))

    def page(self, group: pa.RecordBatch, generation: int, after: pa.Array | None) -> Page:
        """Return the entries of a group that follow an entry in the order of their hashes; at most about 1 MiB.

        Args:
            group: One row of the key columns of the groups.
            generation: The group's generation.
            after: One key; None: the first entries.
        """
        which = pa.RecordBatch.from_arrays(
            [*group.columns, pa.array([generation], pa.int64())], schema=pa.schema(list(self._keys)[:-1])
        )
        first = int(_group_hashes(which)[0])
        low, high = first, first | _ENTRY_MASK
        if after is not None:
            rows, _ = self._distinct(group, which.column(GENERATION), after)
            low = int(self._hashes(rows)[0]) + 1
        while low <= high:
            rows, end = self._table.page(low, high, _PAGE_ROWS, _PAGE_ROW_BYTES)
            # Other groups may share the 24 bits.
            owner = KeyIndex(which.schema)
            owner.slots(which.columns)
            is_own = owner.slots([rows.column(name) for name in which.schema.names]).to_numpy() == 0
            rows = rows.filter(pa.array(is_own))
            if rows.num_rows or end >= high:
                return Page(rows.column(ENTRY), rows.column(VALUE), end >= high)
            low = end + 1
        return Page(pa.nulls(0, self._keys.field(ENTRY).type), pa.nulls(0, self._table.layout.states.types[0]), True)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield all entries, including entries of former generations: groups, `generation`, `entry` and `value`."""
        for rows in self._table.scan():
            yield rows.select([*self._keys.names, VALUE])

    def declare(self) -> None:
        """Store the types of the entries."""
        self._table.declare()

    def _distinct(
        self, groups: pa.RecordBatch, generations: pa.Array, keys: pa.Array
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int32]]:
        """Return the distinct entries of n rows in canonical form, and the number of each row's entry among them."""
        index = KeyIndex(self._keys)
        slots = index.slots([*groups.columns, generations, keys]).to_numpy()
        return index.keys(), slots

    def _hashes(self, rows: pa.RecordBatch) -> Hashes:
        """Return the hash of each of n entries: rows of group, generation and entry."""
        entries = rows.column(ENTRY)
        if self._is_list:
            bits = entries.to_numpy().astype(np.uint64) & np.uint64(_ENTRY_MASK)
        elif pa.types.is_string(entries.type) or pa.types.is_binary(entries.type):
            bits = text_hashes(entries) >> np.uint64(64 - _ENTRY_BITS)
        else:
            bits = key_hashes(rows.select([ENTRY])) >> np.uint64(64 - _ENTRY_BITS)
        hashes: Hashes = _group_hashes(rows.select(self._keys.names[:-1])) | bits
        return hashes


def _group_hashes(rows: pa.RecordBatch) -> Hashes:
    """Return the upper 24 bits of the hash of each of n rows of group and generation."""
    hashes: Hashes = key_hashes(rows) & ~np.uint64(_ENTRY_MASK)
    return hashes
