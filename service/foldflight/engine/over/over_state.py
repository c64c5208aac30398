"""What the buckets of an OVER stream have stored, read without its query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from foldflight.engine.keys.group_exchange import Groups
from foldflight.engine.over.over_stream import CALLS, GROUPS, WAITING, WINDOW_FRAMES
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.state.manifest import Manifest, TableLayout, VersionColumns, calls_of, with_older
from foldflight.engine.state.storage import Storage
from foldflight.engine.state.table import StateTable
from foldflight.engine.state.timelog import TimeLog, is_time_log, read_manifest
from foldflight.functions.types.arrow import one_array

_LATEST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Part:
    """The table of a window frame.

    Args:
        name: Its name in the store.
        layout: The layout of its rows, with columns for other versions of functions.
        outputs: The names of the states.
        calls: What each state is.
    """

    name: str
    layout: TableLayout
    outputs: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class StoredOver:
    """The stored rows and states of an OVER query.

    Args:
        layout: The keys and their names.
        buckets: The number of buckets.
        parts: The tables of window frames that keep groups.
    """

    layout: QueryLayout
    buckets: int
    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, manifests: Iterable[tuple[str, bytes]]) -> Self | None:
        """Return what the manifests of all buckets, by name, describe; None if no bucket has had rows.

        Raises:
            RejectedError: STATE_MISMATCH, if they have another format.
            CorruptError: STATE_CHECKSUM, if one is damaged.
        """
        by_name: dict[str, list[bytes]] = {}
        for name, data in manifests:
            by_name.setdefault(name, []).append(data)
        logs = [read_manifest(data) for data in by_name.get(WAITING, ())]
        if not logs:
            return None
        newest = max(logs, key=lambda log: _age([call for part in log.owner[CALLS] for call in part["calls"]]))
        owner = newest.owner
        keys = pa.schema([newest.rows.field(f"key_{index}") for index in range(len(owner["keys"]))])
        layout = QueryLayout(keys, tuple(name for name, _ in owner["keys"]), pa.schema([]), (), has_kinds=False)
        parts = [
            _part_of(name, part["frame"], [Manifest.decode(data) for data in by_name[name]])
            for index, part in enumerate(owner[CALLS])
            if (name := f"{GROUPS} {index}") in by_name
        ]
        return cls(layout, owner["buckets"], tuple(parts))

    @property
    def states(self) -> list[pa.DataType]:
        """The types of the states of all parts."""
        return [field.type for part in self.parts for field in part.layout.states]

    def groups(self, storages: Callable[[str], Storage]) -> list[pa.Array]:
        """Return the groups of one bucket, in columns: the keys, the number of rows that wait, and the states.

        Args:
            storages: Returns the storage of a name.

        Raises:
            CorruptError: STATE_CHECKSUM, INVARIANT.
        """
        groups = Groups(self.layout)
        waiting = self._waiting(groups, storages(WAITING))
        states_by_part = [_states_of(groups, part, storages(part.name)) for part in self.parts]
        count = len(groups)
        columns = list(groups.keys(np.arange(count, dtype=np.int32)).columns)
        columns.append(pa.array(np.append(waiting, np.zeros(count - len(waiting), np.int64))))
        for slots, states in states_by_part:
            indexes = np.full(count, -1, np.int64)
            indexes[slots] = np.arange(len(slots))
            columns += [state.take(pa.array(indexes, mask=indexes < 0)) for state in states]
        return columns

    def _waiting(self, groups: Groups, storage: Storage) -> Any:
        """Return the number of rows that wait for each group."""
        counts = np.zeros(len(groups), np.int64)
        manifest = storage.store.manifest()
        if manifest is None:
            return counts
        log = TimeLog(read_manifest(manifest).rows, storage)
        while (until := log.reach(_LATEST)) is not None:
            slots = groups.slots(log.take(until))
            counts = np.append(counts, np.zeros(len(groups) - len(counts), np.int64))
            counts += np.bincount(slots, minlength=len(counts))
        return counts


def _part_of(name: str, window_frame: str, manifests: Sequence[Manifest]) -> _Part:
    layout = max((manifest.layout for manifest in manifests), key=lambda each: _age(calls_of(each.states)))
    outputs = layout.names[len(layout.keys) :]
    if len(outputs) > len(layout.states):  # ROWS frames keep rows, which all calls share
        layout = replace(layout, names=(*layout.names[: len(layout.keys)], ", ".join(outputs)))
    layout = with_older(layout, [states for manifest in manifests for states in manifest.generations.values()])
    calls = tuple(
        f"{call['function']} v{call['version']}, {window_frame}" if call["version"] else f"last rows, {window_frame}"
        for call in calls_of(layout.states)
    )
    return _Part(name, layout, layout.names[len(layout.keys) :], calls)


def _age(calls: Iterable[Mapping[str, str]]) -> list[list[str | int]]:
    """Return a value that is greater for later versions of calls: 10 is later than 9."""
    # Every second part of a split text is a number, so parts at the same index can be compared.
    split = [re.split("([0-9]+)", call["version"]) for call in calls]
    return [[int(part) if index % 2 else part for index, part in enumerate(parts)] for parts in split]


def _states_of(groups: Groups, part: _Part, storage: Storage) -> tuple[Any, list[pa.Array]]:
    """Return the slots of the groups in a table, and their states."""
    slots, parts = [np.zeros(0, np.int32)], [pa.RecordBatch.from_pylist([], part.layout.states)]
    if storage.store.manifest() is not None:
        table = StateTable(part.layout, storage, conversion=VersionColumns(part.layout))
        for rows in table.scan():
            slots.append(groups.slots(rows))
            columns = [rows.column(field.name).cast(field.type) for field in part.layout.states]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=part.layout.states))
    states = pa.Table.from_batches(parts, schema=part.layout.states)
    return np.concatenate(slots), [one_array(column) for column in states.columns]


def sizes_of(name: str, data: bytes) -> dict[str, int]:
    """Return the size of a table or log by its name and manifest: runs, rows and bytes, and the rows of logs by kind.

    Raises:
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """
    if is_time_log(data):
        log = read_manifest(data)
        waiting, is_window_frame_log = name == WAITING, name.startswith(WINDOW_FRAMES)
        rows = {"waiting_rows": log.waiting * waiting, "framed_rows": log.waiting * is_window_frame_log}
        return {"runs": log.pieces, "rows": log.row_count, "bytes": log.bytes, **rows}
    pieces = Manifest.decode(data).pieces
    sums = {"rows": sum(piece.rows for piece in pieces), "bytes": sum(piece.bytes for piece in pieces)}
    return {"runs": len(pieces), **sums, "waiting_rows": 0, "framed_rows": 0}
