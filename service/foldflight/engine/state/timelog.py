"""Rows of one bucket by time, inside Spark's state store: added with any times, and taken from the earliest one on.

    manifest   what the rows belong to, and the runs
    run        the rows of one epoch, or of a merge of several runs, sorted by time: pieces with ascending times

Taking rows changes no piece: the manifest counts the rows of a piece that were taken, and a piece without rows left is
removed. When a level has `fan_in` runs, they are merged into one run of the next level. Runs of `merge_rows_max` rows
or more are not merged (large rows count as several). So an epoch merges at most `fan_in * merge_rows_max` rows for each
level, and the number of runs grows in proportion to the rows only once runs are this large.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.engine.query.blocks import one_batch
from foldflight.engine.state.manifest import SortedRun, Storage, StoredPiece, check_format, other_query
from foldflight.engine.state.runs import seal, unseal

TIME: Final = "time"
"""The first column of the rows: int64 without NULLs."""

_MAGIC: Final = b"FFT1"
_FORMAT: Final = 1


@dataclass
class _TimePiece(StoredPiece):
    """One piece of a log, sorted by time. A time is in one piece of a run only.

    Args:
        taken: The number of rows that were taken; `low` is the time of the first one that was not.
    """

    taken: int = 0


@dataclass
class StoredLog:
    """The description of a time log, as its manifest has it.

    Args:
        rows: The schema of the rows.
        owner: What the rows belong to.
        runs: The runs.
    """

    rows: pa.Schema
    owner: Mapping[str, Any]
    runs: list[SortedRun[_TimePiece]]

    @property
    def waiting(self) -> int:
        """The number of rows that were not taken."""
        return sum(piece.rows - piece.taken for run in self.runs for piece in run.pieces)

    @property
    def row_count(self) -> int:
        """The number of rows of all pieces."""
        return sum(run.rows for run in self.runs)

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return sum(len(run.pieces) for run in self.runs)

    @property
    def bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(run.bytes for run in self.runs)


def is_time_log(data: bytes) -> bool:
    """Whether a manifest describes a time log."""
    return data[: len(_MAGIC)] == _MAGIC


def read_manifest(data: bytes) -> StoredLog:
    """Return the description of a time log.

    Raises:
        RejectedError: STATE_MISMATCH, if it has another format.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """
    content: dict[str, Any] = json.loads(bytes(unseal(_MAGIC, data, "the manifest of a time log")))
    check_format("the log of rows", content["format"], _FORMAT)
    rows = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["schema"])))
    runs = [SortedRun(run["level"], [_TimePiece(**piece) for piece in run["pieces"]]) for run in content["runs"]]
    return StoredLog(rows, content["owner"], runs)


class TimeLog:
    """Rows by time.

    Args:
        rows: The schema of the rows. The first column is `time`.
        storage: Where its pieces are.
        owner: What the rows belong to, as values of JSON. It is stored with them.
        check: Raises for the stored owner of rows that belong to something else.

    Raises:
        RejectedError: STATE_MISMATCH, if the stored rows belong to something else or have other columns.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(
        self,
        rows: pa.Schema,
        storage: Storage,
        *,
        owner: Mapping[str, Any] | None = None,
        check: Callable[[Mapping[str, Any]], None] = lambda stored_owner: None,  # noqa: ARG005
    ) -> None:
        self._storage = storage
        self._bounds = storage.bounds
        self._log = StoredLog(rows, owner or {}, [])
        self._emptied_pieces: list[str] = []
        data = storage.store.manifest()
        self._is_changed = data is None
        if data is not None:
            stored_log = read_manifest(data)
            check(stored_log.owner)
            if not stored_log.rows.equals(rows):
                raise other_query("columns", _describe(stored_log.rows), _describe(rows))
            self._log.runs = stored_log.runs

    def __len__(self) -> int:
        """Return the number of rows that were not taken."""
        return self._log.waiting

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return self._log.pieces

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pieces."""
        return self._log.bytes

    @property
    def first(self) -> int | None:
        """The earliest time; None without rows."""
        return min((run.pieces[0].low for run in self._log.runs), default=None)

    def add(self, rows: pa.RecordBatch) -> None:
        """Store n rows, sorted by time."""
        if rows.num_rows:
            self._log.runs.append(SortedRun(0, self._store(rows)))
            self._is_changed = True

    def reach(self, until: int) -> int | None:
        """Return the greatest time up to which `take` reads one piece of each run; None if no row is due.

        Args:
            until: The greatest time of rows that are due.
        """
        return _reach(self._log.runs, until)

    def take(self, until: int) -> pa.RecordBatch:
        """Remove and return the rows up to a time, sorted by time; rows of equal time are in the order of runs."""
        self._is_changed = True
        return self._take(self._log.runs, until)

    def commit(self) -> None:
        """Continue merges, and store what has changed."""
        if not self._is_changed:
            return
        self._merge()
        self._storage.remove(self._emptied_pieces)
        schema = base64.b64encode(self._log.rows.serialize()).decode()
        content = {"format": _FORMAT, "owner": self._log.owner, "schema": schema, "runs": self._log.runs}
        self._storage.store.put_manifest(seal(_MAGIC, json.dumps(content, default=vars).encode()))
        self._emptied_pieces, self._is_changed = [], False

    def _take(self, runs: list[SortedRun[_TimePiece]], until: int) -> pa.RecordBatch:
        parts = []
        for run in runs:
            while run.pieces and run.pieces[0].low <= until:
                meta = run.pieces[0]
                piece = self._storage.read(meta.id, meta.rows, self._log.rows.remove_metadata)
                end = int(np.searchsorted(piece.hashes, until, "right"))
                parts.append(piece.batch.slice(meta.taken, end - meta.taken))
                if end < meta.rows:
                    meta.taken, meta.low = end, int(piece.hashes[end])
                else:
                    self._emptied_pieces.append(meta.id)
                    del run.pieces[0]
        runs[:] = [run for run in runs if run.pieces]
        rows = one_batch(pa.Table.from_batches(parts, schema=self._log.rows))
        if len(parts) < 2:
            return rows
        return rows.take(pa.array(np.argsort(rows.column(TIME).to_numpy(), kind="stable")))

    def _merge(self) -> None:
        level = 0
        while level <= max((run.level for run in self._log.runs), default=-1):
            to_merge = [
                run
                for run in self._log.runs
                if run.level == level and run.work(self._bounds.row_bytes) < self._bounds.merge_rows_max
            ]
            if len(to_merge) >= self._bounds.fan_in:
                self._log.runs = [run for run in self._log.runs if not any(run is each for each in to_merge)]
                pieces = []
                while (until := _reach(to_merge, np.iinfo(np.int64).max)) is not None:
                    pieces += self._store(self._take(to_merge, until))
                self._log.runs.append(SortedRun(level + 1, pieces))
            level += 1

    def _store(self, rows: pa.RecordBatch) -> list[_TimePiece]:
        """Store n rows, sorted by time, as pieces."""
        return [_TimePiece(**vars(piece)) for piece in self._storage.write(rows)]


def _reach(runs: Sequence[SortedRun[_TimePiece]], until: int) -> int | None:
    if not any(run.pieces[0].low <= until for run in runs):
        return None
    return min([until, *(run.pieces[0].high for run in runs if len(run.pieces) > 1)])


def _describe(schema: pa.Schema) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in schema]
