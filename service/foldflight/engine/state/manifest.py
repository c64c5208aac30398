"""What a state table's manifest says: the layout of its rows, its runs, and the merges under way."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.layout import HASH, LIVE
from foldflight.engine.state.runs import sealed, unsealed
from foldflight.errors import CorruptError, RejectedError

__all__ = [
    "Bounds",
    "Committed",
    "Found",
    "Manifest",
    "Merge",
    "PieceMeta",
    "Run",
    "RunStore",
    "TableLayout",
    "calls_of",
    "naming_bucket",
    "other_query",
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
        return {
            "keys": [[each.name, str(each.type)] for each in self.keys],
            "calls": calls_of(self.states),
            "buckets": self.buckets,
            "hashed": len(self.hashed_names),
            "window": self.window,
            "names": list(self.names),
        }

    @property
    def hashed_names(self) -> list[str]:
        """The key columns that are hashed."""
        return list(self.keys.names)[: self.hashed]

    @property
    def rows(self) -> pa.Schema:
        """The schema of a piece."""
        return self.rows_with(self.states)

    def rows_with(self, states: pa.Schema) -> pa.Schema:
        """Return the schema of a piece with states of another generation."""
        columns = [pa.field(each.name, each.type) for each in states]
        return pa.schema([pa.field(HASH, pa.uint64()), *self.keys, pa.field(LIVE, pa.int64()), *columns])


@dataclass(frozen=True)
class Bounds:
    """How much is done and held at once.

    Args:
        piece_rows_max: Rows of one piece.
        row_bytes: A row of so many bytes is one row here, and one of more is several: large states fill a piece, and
            make work, before many rows do.
        fan_in: Runs of one level that are merged into one of the next.
        merge_rows_max: Rows that merges take in one epoch; an epoch that writes many may take `merge_share` of those.
        merge_share: How many rows are merged for each row written, at most: enough that merges keep up.
    """

    piece_rows_max: int = 1 << 18
    row_bytes: int = 512
    fan_in: int = 8
    merge_rows_max: int = 1 << 15
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
        merged_rows: Rows that merges took, each by its bytes (`Bounds.row_bytes`).
        runs: Pieces now.
        bytes: Their bytes.
    """

    rows: int
    merged_rows: int
    runs: int
    bytes: int


@dataclass
class PieceMeta:
    """One stored piece: its name, rows, bytes, least and greatest hash, and the generation of its states."""

    id: str
    rows: int
    bytes: int
    low: int
    high: int
    generation: int


@dataclass
class Run:
    """What one epoch wrote, or one merge made: pieces with separate, ascending ranges of hashes."""

    level: int
    pieces: list[PieceMeta]

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.bytes for piece in self.pieces)


@dataclass
class Merge:
    """A merge under way: of some runs of a level, oldest first; done below the hash `done`."""

    level: int
    inputs: list[str]  # ids of the first pieces of the runs, which name them
    done: int = 0
    outputs: list[PieceMeta] = field(default_factory=list)


@dataclass
class Manifest:
    """What is known of one bucket.

    Args:
        layout: What the rows are that are written now.
        generations: The states of pieces by the number of their generation: pieces made with other versions of the
            functions stay as they are until they are merged. The greatest number is written now.
        runs: The runs, oldest first.
        merges: The merges under way.
    """

    layout: TableLayout
    generations: dict[int, pa.Schema]
    runs: list[Run] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)

    @property
    def current(self) -> int:
        """The generation that is written now."""
        return max(self.generations)

    @property
    def pieces(self) -> list[PieceMeta]:
        """All pieces of runs."""
        return [piece for run in self.runs for piece in run.pieces]

    def adopt(self, layout: TableLayout, check: Callable[[pa.Schema], None]) -> bool:
        """Go on with a query; return whether it is another generation.

        Args:
            layout: What the query's rows are.
            check: Raises for states that the query's calls cannot take.

        Raises:
            RejectedError: STATE_MISMATCH, when the table belongs to another query.
        """
        ours, stored = layout.described(), self.layout.described()
        # In this order: one change shows in several, and the first that differs says it best.
        parts = {"window": "windows", "keys": "grouping keys", "buckets": "buckets", "hashed": "hashed keys"}
        for name, what in parts.items():
            if stored[name] != ours[name]:
                raise other_query(what, stored[name], ours[name])
        for states in self.generations.values():
            if calls_of(states) != calls_of(layout.states):
                check(states)
        is_new = calls_of(self.layout.states) != calls_of(layout.states)
        if is_new:
            self.generations[self.current + 1] = layout.states
        self.layout = layout
        return is_new

    def encode(self) -> bytes:
        """Return it as bytes, sealed; generations that no piece has any more are forgotten."""
        pieces = [*self.pieces, *(piece for merge in self.merges for piece in merge.outputs)]
        used = {piece.generation for piece in pieces} | {self.current}
        self.generations = {number: states for number, states in self.generations.items() if number in used}
        content = {
            "format": _FORMAT,
            "layout": self.layout.described(),
            # The texts above are compared and read by people; a reader who has no query needs the types themselves.
            "schema": _schema_text(self.layout.keys),
            "generations": {number: _schema_text(states) for number, states in self.generations.items()},
            "runs": self.runs,
            "merges": self.merges,
        }
        return sealed(_MAGIC, json.dumps(content, default=vars).encode())

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest that these bytes hold.

        Raises:
            RejectedError: STATE_MISMATCH, when they have another format.
            CorruptError: STATE_CHECKSUM, when they are damaged.
        """
        content: dict[str, Any] = json.loads(bytes(unsealed(_MAGIC, data, "the manifest")))
        if content["format"] != _FORMAT:
            raise RejectedError(
                "STATE_MISMATCH",
                f"the state table has format {content['format']}, and this foldflight reads {_FORMAT}; "
                "run the version that wrote it",
            )
        stored = content["layout"]
        generations = {int(number): _schema_of(text) for number, text in content["generations"].items()}
        layout = TableLayout(
            keys=_schema_of(content["schema"]),
            states=generations[max(generations)],
            buckets=stored["buckets"],
            hashed=stored["hashed"],
            window=stored["window"],
            names=tuple(stored["names"]),
        )
        merges = [
            Merge(each["level"], each["inputs"], each["done"], [PieceMeta(**piece) for piece in each["outputs"]])
            for each in content["merges"]
        ]
        runs = [Run(run["level"], [PieceMeta(**piece) for piece in run["pieces"]]) for run in content["runs"]]
        return cls(layout, generations, runs, merges)


def calls_of(states: pa.Schema) -> list[dict[str, str]]:
    """Return function, version and fingerprint of the calls that columns of states belong to."""
    identity = ("function", "version", "fingerprint")
    return [{name: (each.metadata or {}).get(name.encode(), b"").decode() for name in identity} for each in states]


def other_query(what: str, stored: object, ours: object, remedy: str = "") -> RejectedError:
    """Return the error for a table that belongs to another query."""
    return RejectedError(
        "STATE_MISMATCH",
        f"the checkpoint's state has other {what} than the query: stored {stored}, the query has {ours}; {remedy}run "
        "the query that wrote it, or start with an empty checkpoint",
    )


@contextmanager
def naming_bucket(bucket: int) -> Iterator[None]:
    """Say in which bucket bytes are damaged."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(error.code, f"bucket {bucket}: {error.message}", story=error.story) from error


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
