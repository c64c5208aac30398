"""The manifest of a state table: the layout of its rows, its runs, and the merges in progress.

`Storage` reads and writes the pieces of the runs: in the store of their bucket, and decoded in a cache.

Readers that have no functions to migrate states get states of several versions beside each other (`with_older`).
"""

from __future__ import annotations

import base64
import functools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.query.layout import EMITTED, HASH, LIVE
from foldflight.engine.state.runs import Piece, RunCache, decode_piece, encode_piece, seal, unseal
from foldflight.errors import CorruptError, RejectedError

MAGIC: Final = b"FFM1"
_FORMAT: Final = 2
FORMAT_OF_SEVERAL: Final = 3
_NOTHING: Final = pa.schema([])


class RunStore(Protocol):
    """The storage of a bucket's bytes. In Spark it is a value state and a map state."""

    def manifest(self) -> bytes | None:
        """Return the manifest, or None for a bucket without state."""

    def put_manifest(self, data: bytes) -> None:
        """Replace the manifest."""

    def run(self, run_id: str) -> bytes | None:
        """Return a piece."""

    def put_run(self, run_id: str, data: bytes) -> None:
        """Store a piece."""

    def remove_run(self, run_id: str) -> None:
        """Remove a piece."""


@dataclass(frozen=True)
class TableLayout:
    """The layout of the rows of a state table.

    Args:
        keys: The key columns; none for a table of one group.
        states: `state_0`... of the calls, with function, version and fingerprint in their metadata.
        buckets: The number of buckets of the groups.
        hashed: The number of leading key columns that are hashed. Groups that share them are stored together and can be
            looked up by them. None: all.
        window: The windows of the last two keys, such as `session 30 minutes`; empty without windows.
        names: The user's names of the key columns and the calls, for readers. A query may change them.
        emitted: The last outputs that are stored, as in `QueryLayout.emitted`.
    """

    keys: pa.Schema
    states: pa.Schema
    buckets: int = 1
    hashed: int | None = None
    window: str = ""
    names: tuple[str, ...] = ()
    emitted: pa.Schema = _NOTHING

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """The layout in the form that is stored in manifests."""
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

    @functools.cached_property
    def generation(self) -> pa.Schema:
        """The columns of its generation: `states` and `emitted`."""
        return pa.schema([*self.states, *self.emitted])

    @functools.cached_property
    def rows(self) -> pa.Schema:
        """The schema of a piece."""
        return self.rows_with(self.generation)

    def rows_with(self, generation: pa.Schema) -> pa.Schema:
        """Return the schema of a piece with the columns of another generation."""
        columns = [pa.field(each.name, each.type) for each in generation]
        return pa.schema([pa.field(HASH, pa.uint64()), *self.keys, pa.field(LIVE, pa.int64()), *columns])


@dataclass(frozen=True)
class TableBounds:
    """Limits of the size of pieces and of the work in one epoch.

    Args:
        piece_rows_max: Maximum rows of one piece.
        row_bytes: Bytes that count as one row. Larger rows count as several, because large states fill pieces and need
            work like several rows.
        fan_in: Number of runs of one level that are merged into a run of the next level.
        merge_rows_max: Maximum rows merged in one epoch. An epoch with many written rows may exceed it by
            `merge_share`.
        merge_share: Maximum rows merged for each row written. It is large enough for merges to keep up.
        inline_entries_max: Maximum entries of a view that is stored in the row of its group.
        inline_bytes_max: Maximum bytes of such a view.
    """

    piece_rows_max: int = 1 << 18
    row_bytes: int = 512
    fan_in: int = 8
    merge_rows_max: int = 1 << 15
    merge_share: int = 6
    inline_entries_max: int = 64
    inline_bytes_max: int = 4 << 10


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup of n keys.

    Args:
        present: bool, shape (n,): whether the group exists.
        live: int64, shape (n,): its live rows; 0 if it does not exist.
        states: n rows of `state_0`...; NULL if it does not exist.
        emitted: n rows of the last outputs; NULL where they are not known.
    """

    present: npt.NDArray[np.bool_]
    live: npt.NDArray[np.int64]
    states: pa.RecordBatch
    emitted: pa.RecordBatch


@dataclass(frozen=True)
class CommitStats:
    """The statistics of a commit.

    Args:
        rows: Rows written.
        merged_rows: Rows merged, counted by their bytes (`row_bytes`).
        runs: Number of pieces after the commit.
        bytes: Bytes of these pieces.
    """

    rows: int
    merged_rows: int
    runs: int
    bytes: int


@dataclass
class StoredPiece:
    """A piece that was stored: its name, rows and bytes, and the first and the last value that it is sorted by."""

    id: str
    rows: int
    bytes: int
    low: int
    high: int


@dataclass
class PieceMeta(StoredPiece):
    """One piece of a state table, sorted by hash, and the generation of its states."""

    generation: int


P = TypeVar("P", bound=StoredPiece)


@dataclass
class SortedRun(Generic[P]):
    """The output of one epoch or one merge: pieces with disjoint, ascending ranges of hashes or times."""

    level: int
    pieces: list[P]

    @property
    def rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.bytes for piece in self.pieces)

    def work(self, row_bytes: int) -> int:
        """Return the number of rows. Large rows count as several of `row_bytes`."""
        return max(self.rows, self.bytes // row_bytes)


@dataclass
class Merge:
    """A merge in progress of some runs of a level, oldest first. Hashes below `done` are merged."""

    level: int
    inputs: list[str]  # a run is identified by the id of its first piece
    done: int = 0
    outputs: list[PieceMeta] = field(default_factory=list)


@dataclass
class Manifest:
    """The description of one bucket's contents.

    Args:
        layout: The layout of rows that are written now.
        generations: The states and last outputs of pieces (`TableLayout.generation`) by generation number. Pieces of
            other versions of the functions are kept unchanged until they are merged. The greatest number is the
            generation that is written now.
        runs: The runs, oldest first.
        merges: The merges in progress.
    """

    layout: TableLayout
    generations: dict[int, pa.Schema]
    runs: list[SortedRun[PieceMeta]] = field(default_factory=list)
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
        """Continue the table with a query; return whether this begins a new generation.

        Args:
            layout: The layout of the query's rows.
            check: Raises if the query's calls cannot convert the states.

        Raises:
            RejectedError: STATE_MISMATCH, if the table belongs to another query.
        """
        ours, stored_description = layout.description, self.layout.description
        # The order matters: one change may affect several entries, and the first one describes it best.
        parts = {"window": "windows", "keys": "grouping keys", "buckets": "buckets", "hashed": "hashed keys"}
        for name, what in parts.items():
            if stored_description[name] != ours[name]:
                show = _keys_of if name == "keys" else lambda description, name=name: description[name]
                raise other_query(what, show(stored_description), show(ours))
        for generation in self.generations.values():
            states = states_of(generation)
            if calls_of(states) != ours["calls"]:
                check(states)
        is_new = bool(stored_description["calls"] != ours["calls"]) or self.layout.emitted != layout.emitted
        if is_new:
            self.generations[self.current + 1] = layout.generation
        self.layout = layout
        return is_new

    def encode(self) -> bytes:
        """Return the manifest as sealed bytes, without generations that no piece uses."""
        pieces = [*self.pieces, *(piece for merge in self.merges for piece in merge.outputs)]
        used_generations = {piece.generation for piece in pieces} | {self.current}
        self.generations = {number: schema for number, schema in self.generations.items() if number in used_generations}
        content = {
            "format": _FORMAT,
            "layout": self.layout.description,
            # The texts above are for comparison and display. A reader without the query needs the types.
            "schema": _schema_text(self.layout.keys),
            "generations": {number: _schema_text(schema) for number, schema in self.generations.items()},
            "runs": self.runs,
            "merges": self.merges,
        }
        return seal(MAGIC, json.dumps(content, default=vars).encode())

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest of sealed bytes; of several tables, the manifest of the groups.

        Raises:
            RejectedError: STATE_MISMATCH, if they have another format.
            CorruptError: STATE_CHECKSUM, if they are damaged.
        """
        content = _content(data)
        if content["format"] == FORMAT_OF_SEVERAL:
            return cls.decode(base64.b64decode(content["tables"][""]))
        stored_layout = content["layout"]
        generations = {int(number): _schema_of(text) for number, text in content["generations"].items()}
        layout = _table_layout(
            content["schema"],
            content["generations"][str(max(generations))],
            stored_layout["buckets"],
            stored_layout["hashed"],
            stored_layout["window"],
            tuple(stored_layout["names"]),
        )
        merges = [
            Merge(each["level"], each["inputs"], each["done"], [PieceMeta(**piece) for piece in each["outputs"]])
            for each in content["merges"]
        ]
        runs = [SortedRun(run["level"], [PieceMeta(**piece) for piece in run["pieces"]]) for run in content["runs"]]
        return cls(layout, generations, runs, merges)


def manifests_of(data: bytes) -> tuple[dict[str, bytes], int]:
    """Return the manifests of the tables in sealed bytes, by name, and the number of their commits.

    Without views there is one, the manifest of the groups, whose name is empty.

    Raises:
        RejectedError: STATE_MISMATCH, if they have another format.
        CorruptError: STATE_CHECKSUM, if they are damaged.
    """
    content = _content(data)
    if content["format"] == _FORMAT:
        return {"": data}, 0
    return {name: base64.b64decode(text) for name, text in content["tables"].items()}, content["commits"]


def _content(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bytes(unseal(MAGIC, data, "the manifest")))
    if content["format"] != FORMAT_OF_SEVERAL:
        check_format("the state table", content["format"], _FORMAT)
    return content


def states_of(generation: pa.Schema) -> pa.Schema:
    """Return the states of the columns of a generation."""
    states = [each for each in generation if not each.name.startswith(EMITTED)]
    return generation if len(states) == len(generation) else pa.schema(states)


def calls_of(states: pa.Schema) -> list[dict[str, str]]:
    """Return the function, version and fingerprint of the call of each state column."""
    identity = ("function", "version", "fingerprint")
    return [{name: (each.metadata or {}).get(name.encode(), b"").decode() for name in identity} for each in states]


def _keys_of(description: dict[str, Any]) -> str:
    """Return the keys of a described layout by the user's names, with their types."""
    names = {f"key_{index}": name for index, name in enumerate(description["names"])}
    return ", ".join(f"{names.get(key, key)} {type_}" for key, type_ in description["keys"])


def other_query(what: str, theirs: object, ours: object, remedy: str = "") -> RejectedError:
    """Return the error for a table that belongs to another query."""
    return RejectedError(
        "STATE_MISMATCH",
        f"the checkpoint's state has other {what} than the query: stored {theirs or 'none'}, the query has "
        f"{ours or 'none'}; {remedy}run the query that wrote it, or start with an empty checkpoint",
    )


def check_format(what: str, stored_format: int, ours: int) -> None:
    """Raise STATE_MISMATCH if another version of the package wrote it."""
    if stored_format != ours:
        raise RejectedError(
            "STATE_MISMATCH",
            f"{what} has format {stored_format}, and this foldflight reads {ours}; run the version that wrote it",
        )


@contextmanager
def naming_bucket(bucket: int) -> Iterator[None]:
    """Add the bucket to errors about damaged bytes."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(error.code, f"bucket {bucket}: {error.message}", story=error.story) from error


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


@functools.lru_cache(maxsize=256)
def _table_layout(
    keys: str, generation: str, buckets: int, hashed_count: int, window: str, names: tuple[str, ...]
) -> TableLayout:
    """Return the layout of a stored table. The tables of all buckets of a query have the same."""
    columns = _schema_of(generation)
    states = states_of(columns)
    return TableLayout(
        _schema_of(keys), states, buckets, hashed_count, window, names, pa.schema(list(columns)[len(states) :])
    )


@functools.lru_cache(maxsize=256)
def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def with_older(layout: TableLayout, generations: Iterable[pa.Schema]) -> TableLayout:
    """Return a layout with additional columns for the states of other versions of each call."""
    states, names = list(layout.states), list(layout.names)
    known_identities = set(_identities(layout.states))
    for schema in map(states_of, generations):
        for index, (state, identity) in enumerate(zip(schema, _identities(schema), strict=True)):
            if identity not in known_identities:
                known_identities.add(identity)
                states.append(state.with_name(f"{state.name}_{identity[1]}"))
                output, version = layout.names[len(layout.keys) + index], calls_of(schema)[index]["version"]
                name = f"{output} (version {version})"
                names.append(name if name not in names else f"{output} (version {version}, all rows)")
    return replace(layout, states=pa.schema(states), names=tuple(names))


def _identities(states: pa.Schema) -> list[tuple[int, str]]:
    """Return for each column the index of its call, which is part of its name, and the fingerprint."""
    indexes = [int(name.split("_")[1]) for name in states.names]
    return [(index, call["fingerprint"]) for index, call in zip(indexes, calls_of(states), strict=True)]


class CurrentViews:
    """Converts states of other versions to states that have only their views, for a reader of a view's entries.

    In states of older versions, the rows of DISTINCT are in the state itself rather than in a view. They are left out.

    Args:
        states: The stored states of the newest version.
    """

    def __init__(self, states: pa.Schema) -> None:
        self._states = states

    def check(self, stored_schema: pa.Schema) -> None:
        """Accept the states of all versions."""

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        """Return n states in the schema of the newest version."""
        columns_by_name = dict(zip(stored_schema.names, states.columns, strict=True))
        columns = [_as_type(columns_by_name.get(field.name), field.type, states.num_rows) for field in self._states]
        return pa.RecordBatch.from_arrays(columns, schema=self._states)


def _as_type(states: pa.Array | None, type_: pa.DataType, count: int) -> pa.Array:
    """Return n states as states of a type, with NULL for what they do not have."""
    if states is None or states.type == type_:
        return pa.nulls(count, type_) if states is None else states
    if not pa.types.is_struct(type_) or not pa.types.is_struct(states.type):
        return pa.nulls(count, type_)
    members: dict[pa.Field, pa.Array] = dict(zip(states.type, states.flatten(), strict=True))
    columns = [members.get(field, pa.nulls(count, field.type)) for field in type_]
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=states.is_null())


class VersionColumns:
    """Puts the states of each version into the columns of `with_older`, as the conversion of a state table.

    Args:
        layout: The layout that `with_older` returns.
    """

    def __init__(self, layout: TableLayout) -> None:
        self._states = layout.states

    def check(self, stored_schema: pa.Schema) -> None:
        """Take all."""

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        """Return n states in the columns of all versions."""
        columns_by_identity = dict(zip(_identities(stored_schema), states.columns, strict=True))
        columns = [
            columns_by_identity.get(identity, pa.nulls(states.num_rows, field.type))
            for field, identity in zip(self._states, _identities(self._states), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._states)


@dataclass(frozen=True)
class Storage:
    """The storage of one table or log.

    Args:
        store: The storage of the bytes.
        cache: The cache of decoded pieces; None: no cache.
        bounds: The limits of pieces and merges.
        new_run_id: Returns the unique name of a new piece, from its bytes and the bytes that identify it in its epoch.
    """

    store: RunStore
    cache: RunCache | None = None
    bounds: TableBounds = field(default_factory=TableBounds)
    new_run_id: Callable[[bytes, bytes], str] = lambda *_: uuid.uuid4().hex

    def read(self, run_id: str, rows: int, schema: Callable[[], pa.Schema]) -> Piece:
        """Return a piece, which the manifest describes by the number of its rows and their schema.

        The schema is asked for when the piece is read, not if it is cached.

        Raises:
            CorruptError: STATE_CHECKSUM, or INVARIANT if it is missing or not as described.
        """
        cache = self.cache
        cached_piece = None if cache is None else cache.get(run_id)
        if cached_piece is not None:
            return cached_piece
        piece = None if cache is None else cache.load(run_id)
        if piece is None:
            data = self.store.run(run_id)
            if data is None:
                raise CorruptError("INVARIANT", f"the run {run_id} is in the manifest, but not in the state store")
            piece = decode_piece(data, run_id)
            if cache is not None:
                cache.share(run_id, data)
        if piece.batch.num_rows != rows or not piece.batch.schema.equals(schema()):
            raise CorruptError("INVARIANT", f"the run {run_id} differs from its description in the manifest")
        if cache is not None:
            cache.put(run_id, piece)
        return piece

    def write(
        self, rows: pa.RecordBatch, identity: Callable[[pa.RecordBatch], bytes] | None = None
    ) -> Iterator[StoredPiece]:
        """Store n rows, sorted by their first column, in pieces. Rows with the same value stay in one piece.

        Args:
            rows: The rows.
            identity: Returns what identifies the rows of a piece in its epoch. Default: its bytes.
        """
        order = rows.column(0).to_numpy()
        start = 0
        while start < rows.num_rows:
            end = int(np.searchsorted(order, order[start + self._fitting_rows(rows, start) - 1], "right"))
            # Rows are copied: a slice would keep and write the whole batch.
            part = rows if end - start == rows.num_rows else rows.take(pa.array(np.arange(start, end)))
            data = encode_piece(part)
            run_id = self.new_run_id(data, data if identity is None else identity(part))
            self.store.put_run(run_id, data)
            if self.cache is not None:
                self.cache.put(run_id, Piece(part))
                self.cache.share(run_id, data)
            yield StoredPiece(run_id, part.num_rows, len(data), int(order[start]), int(order[end - 1]))
            start = end

    def remove(self, run_ids: Sequence[str]) -> None:
        """Remove pieces that the manifest does not have any more."""
        for run_id in run_ids:
            self.store.remove_run(run_id)
        if self.cache is not None:
            self.cache.drop(run_ids)

    def _fitting_rows(self, rows: pa.RecordBatch, start: int) -> int:
        """Return about how many rows from `start` on make a piece."""
        most = self.bounds.piece_rows_max
        count = min(most, rows.num_rows - start)
        while count > 1 and rows.slice(start, count).nbytes > most * self.bounds.row_bytes:
            count //= 2
        return count
