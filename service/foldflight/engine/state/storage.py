"""Where the pieces of one state table or time log are: in the store of its bucket, and decoded in a cache."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from foldflight.engine.state.manifest import RunStore, StoredPiece, TableBounds
from foldflight.engine.state.runs import Piece, RunCache, decode_piece, encode_piece
from foldflight.errors import CorruptError


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
            end = int(np.searchsorted(order, order[start + self._fitting(rows, start) - 1], "right"))
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

    def _fitting(self, rows: pa.RecordBatch, start: int) -> int:
        """Return about how many rows from `start` on make a piece."""
        most = self.bounds.piece_rows_max
        count = min(most, rows.num_rows - start)
        while count > 1 and rows.slice(start, count).nbytes > most * self.bounds.row_bytes:
            count //= 2
        return count
