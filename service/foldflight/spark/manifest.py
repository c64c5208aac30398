"""What a state table's manifest says: the layout of its rows, its runs, and the merges under way."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.spark.runs import HASH, LIVE, sealed, unsealed

__all__ = [
    "Bounds",
    "Committed",
    "Found",
    "Merge",
    "PieceMeta",
    "Run",
    "RunStore",
    "TableLayout",
    "decode_manifest",
    "encode_manifest",
    "stored_layout",
]

_MAGIC: Final = b"FFM1"
_FORMAT: Final = 2


class RunStore(Protocol):
    """Where a bucket's bytes are: in Spark, a value state and a map state."""

    def manifest(self) -> bytes | None:
        """Return the manifest; None for a bucket without state."""

    def put_manifest(self, data: bytes) -> None:
        """Replace the manifest."""

    def run(self, run_id: str) -> bytes | None:
        """Return a piece."""

    def put_run(self, run_id: str, data: bytes) -> None:
        """Store a piece."""

    def remove_run(self, run_id: str) -> None:
        """Forget a piece."""


@dataclass(frozen=True)
class TableLayout:
    """What the rows of a state table are.

    Args:
        keys: The key columns; none for a table of one group.
        states: `state_0`... of the calls, with function, version and fingerprint in their metadata.
        buckets: How many buckets the groups of the query are spread over.
        hashed: How many of the key columns, from the first, are hashed: groups that share them lie together, and are
            found by them. None: all.
        window: What the last two keys are windows of, as `session 30 minutes`; empty without windows.
        names: What the user calls the key columns, then the calls. They are for readers; a query may change them.
    """

    keys: pa.Schema
    states: pa.Schema
    buckets: int = 1
    hashed: int | None = None
    window: str = ""
    names: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """Return the layout as it stands in manifests."""
        identity = ("function", "version", "fingerprint")
        return {
            "keys": [[each.name, str(each.type)] for each in self.keys],
            "calls": [
                {name: (each.metadata or {}).get(name.encode(), b"").decode() for name in identity}
                for each in self.states
            ],
            "buckets": self.buckets,
            "hashed": len(self.hashed_names),
            "window": self.window,
            "names": list(self.names),
            # The texts above are compared and read by people; a reader who has no query needs the types themselves.
            "schema": base64.b64encode(pa.schema([*self.keys, *self.states]).serialize()).decode(),
        }

    @property
    def hashed_names(self) -> list[str]:
        """The key columns that are hashed."""
        return list(self.keys.names)[: self.hashed]

    @property
    def rows(self) -> pa.Schema:
        """The schema of a piece."""
        states = [pa.field(each.name, each.type) for each in self.states]
        return pa.schema([pa.field(HASH, pa.uint64()), *self.keys, pa.field(LIVE, pa.int64()), *states])


@dataclass(frozen=True)
class Bounds:
    """How much is done and held at once.

    Args:
        piece_rows_max: Rows of one piece.
        fan_in: Runs of one level that are merged into one of the next.
        merge_rows_max: Rows that merges take in one epoch; an epoch that writes many may take `merge_share` of those.
        merge_share: How many rows are merged for each row written, at most: enough that merges keep up.
    """

    piece_rows_max: int = 1 << 18
    fan_in: int = 8
    merge_rows_max: int = 1 << 17
    merge_share: int = 6


@dataclass(frozen=True)
class Found:
    """What a lookup of n keys found.

    Args:
        present: bool, shape (n,): whether the group is there.
        live: int64, shape (n,): its live rows; 0 where it is not there.
        states: n rows of `state_0`...; NULL where it is not there.
    """

    present: npt.NDArray[np.bool_]
    live: npt.NDArray[np.int64]
    states: pa.RecordBatch


@dataclass(frozen=True)
class Committed:
    """What a commit did.

    Args:
        rows: Rows written.
        merged_rows: Rows that merges took.
        runs: Pieces now.
        bytes: Their bytes.
    """

    rows: int
    merged_rows: int
    runs: int
    bytes: int


@dataclass
class PieceMeta:
    """One stored piece: its name, rows, bytes, and least and greatest hash."""

    id: str
    rows: int
    bytes: int
    low: int
    high: int


@dataclass
class Run:
    """What one epoch wrote, or one merge made: pieces with separate, ascending ranges of hashes."""

    level: int
    pieces: list[PieceMeta]

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.rows for piece in self.pieces)


@dataclass
class Merge:
    """A merge under way: of the `count` runs of a level from place `first` on, done below the hash `done`."""

    level: int
    inputs: list[str]  # ids of the first pieces of the runs, which name them
    done: int = 0
    outputs: list[PieceMeta] = field(default_factory=list)


def encode_manifest(layout: TableLayout, runs: Sequence[Run], merges: Sequence[Merge]) -> bytes:
    """Return a manifest as bytes, sealed."""
    content = {
        "format": _FORMAT,
        "layout": layout.described(),
        "runs": [asdict(run) for run in runs],
        "merges": [asdict(merge) for merge in merges],
    }
    return sealed(_MAGIC, json.dumps(content).encode())


def decode_manifest(layout: TableLayout, data: bytes) -> tuple[list[Run], list[Merge]]:
    """Return the runs and merges of a manifest.

    Raises:
        RejectedError: STATE_MISMATCH, when it belongs to another query or format.
        CorruptError: STATE_CHECKSUM, when it is damaged.
    """
    content = _content(data)
    _check_layout(layout.described(), content["layout"])
    runs = [Run(run["level"], [PieceMeta(**piece) for piece in run["pieces"]]) for run in content["runs"]]
    merges = [
        Merge(each["level"], each["inputs"], each["done"], [PieceMeta(**piece) for piece in each["outputs"]])
        for each in content["merges"]
    ]
    return runs, merges


def stored_layout(data: bytes) -> TableLayout:
    """Return the layout that a manifest was written with.

    Raises:
        RejectedError: STATE_MISMATCH, when it has another format.
        CorruptError: STATE_CHECKSUM, when it is damaged.
    """
    stored = _content(data)["layout"]
    fields = list(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored["schema"]))))
    count = len(stored["keys"])
    return TableLayout(
        keys=pa.schema(fields[:count]),
        states=pa.schema(fields[count:]),
        buckets=stored["buckets"],
        hashed=stored["hashed"],
        window=stored["window"],
        names=tuple(stored["names"]),
    )


def _content(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(unsealed(_MAGIC, data, "the manifest"))
    if content["format"] != _FORMAT:
        raise RejectedError(
            "STATE_MISMATCH",
            f"the state table has format {content['format']}, and this foldflight reads {_FORMAT}; "
            "run the version that wrote it",
        )
    return content


def _check_layout(ours: dict[str, Any], stored: dict[str, Any]) -> None:
    # In this order: one change shows in several, and the first that differs says it best.
    parts = {
        "window": "windows",
        "keys": "grouping keys",
        "calls": "calls",
        "buckets": "buckets",
        "hashed": "hashed keys",
    }
    for name, what in parts.items():
        if stored[name] != ours[name]:
            raise RejectedError(
                "STATE_MISMATCH",
                f"the checkpoint's state has other {what} than the query: stored {stored[name]}, the query has "
                f"{ours[name]}; run the query that wrote it, or start with an empty checkpoint",
            )
