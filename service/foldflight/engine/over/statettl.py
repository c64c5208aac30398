"""The state TTL of groups of a stream: a group is forgotten when it has had no row for a given time.

A bucket keeps the time of the last row of each group in a state table, and in a time log an entry for each change.
When the watermark has passed an entry by the given time, the group is looked up: it is forgotten if it has had no row
since. So each change costs one entry and one lookup later, and groups without rows cost nothing.

A row that comes more than the given time after the last row of its group begins the group anew, whether the group has
been forgotten by then or not. Therefore the results do not depend on epochs and on the progress of the watermark.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.grouped import Groups
from foldflight.engine.keys.hashes import Hashes
from foldflight.engine.over.positions import Positions
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.state.manifest import TableLayout
from foldflight.engine.state.table import StateTable
from foldflight.engine.state.timelog import TIME, TimeLog

LAST_TIME: Final = "state_0"
"""The column of the time of the last row of each group, in microseconds since 1970."""


def ttl_table(layout: QueryLayout, buckets: int) -> TableLayout:
    """Return the layout of the table of last times."""
    metadata = {"function": "last row", "version": "", "fingerprint": ""}
    states = pa.schema([pa.field(LAST_TIME, pa.int64(), metadata=metadata)])
    return TableLayout(layout.keys, states, buckets, window="over idle groups", names=(*layout.names, "last row"))


def ttl_log(layout: QueryLayout) -> pa.Schema:
    """Return the rows of the log: the time of a last row, and the key of its group."""
    return pa.schema([pa.field(TIME, pa.int64()), *layout.keys])


class StateTtl:
    """The groups of one bucket by the times of their last rows.

    Args:
        ttl_us: A group is forgotten when it has had no row for longer than this, in microseconds.
        table: The last times.
        log: Their changes.
    """

    def __init__(self, ttl_us: int, table: StateTable, log: TimeLog) -> None:
        self.ttl_us = ttl_us
        self.table = table
        self.log = log

    def arrive(self, groups: Groups, slots: npt.NDArray[np.int32], times: Positions) -> npt.NDArray[np.bool_]:
        """Store the times of n rows, and return which of them begin their group anew.

        Args:
            groups: The groups.
            slots: int32, shape (n,): the group of each row. Rows of a group are adjacent.
            times: int64, shape (n,): ascending within each group, and not before the stored times.
        """
        if not len(slots):
            return np.zeros(0, np.bool_)
        firsts = np.flatnonzero(np.diff(slots, prepend=-1))
        lasts = np.append(firsts[1:], len(slots)) - 1
        keys = groups.keys(slots[firsts])
        hashes = groups.stored_hashes(slots[firsts])
        known = self.table.lookup(keys, hashes)
        before = np.append(times[:1], times[:-1])
        stored = known.states.column(LAST_TIME).fill_null(0).to_numpy()
        before[firsts] = np.where(known.present, stored, times[firsts])
        ends = pa.array(times[lasts])
        states = pa.RecordBatch.from_arrays([ends], names=[LAST_TIME])
        self.table.commit(keys, np.ones(len(firsts), np.int64), states, hashes)
        entries = pa.RecordBatch.from_arrays([ends, *keys.columns], names=[TIME, *keys.schema.names])
        self.log.add(entries.take(pa.array(np.argsort(times[lasts], kind="stable"))))
        return times - before > self.ttl_us

    def leave(self, groups: Groups, until: int) -> tuple[pa.RecordBatch, Hashes]:
        """Remove the groups whose state TTL has ended, and return their keys and hashes.

        Args:
            groups: The groups; some may be added.
            until: All rows up to this time are stored.
        """
        limit = until - self.ttl_us
        entries = self.log.take(limit)
        slots = np.unique(groups.slots(entries))
        keys, hashes = groups.keys(slots), groups.stored_hashes(slots)
        stored = self.table.lookup(keys, hashes)
        last = stored.states.column(LAST_TIME).fill_null(0).to_numpy()
        gone = stored.present & (last <= limit)
        keys, hashes = keys.filter(pa.array(gone)), hashes[gone]
        remove(self.table, keys, hashes)
        return keys, hashes


def remove(table: StateTable, keys: pa.RecordBatch, hashes: Hashes) -> None:
    """Remove n groups with these keys and hashes from a table."""
    if keys.num_rows:
        nothing = [pa.nulls(keys.num_rows, field.type) for field in table.layout.states]
        states = pa.RecordBatch.from_arrays(nothing, names=table.layout.states.names)
        table.commit(keys, np.zeros(keys.num_rows, np.int64), states, hashes)
