"""Packing of a stream's rows into one Arrow blob for each bucket, and unpacking.

Spark's stateful operator calls Python once for each key and passes rows one by one. Therefore groups are assigned to
buckets by the hash of their key, and the rows of a bucket are passed as one binary value: an Arrow IPC stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from foldflight.engine.query.blocks import BlockBounds, convert, gather
from foldflight.engine.query.layout import BUCKET
from foldflight.exchange.ipc import write_batch

BLOB = "blob"
BLOCK = "block"
PACKED = pa.schema([(BUCKET, pa.int32()), (BLOCK, pa.int32()), (BLOB, pa.binary())])


def rows_of(blob: bytes) -> pa.RecordBatch:
    """Return the batch of a blob. The blob must come from this job: it is not validated."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return reader.read_next_batch()


@dataclass(frozen=True)
class Pack:
    """Packs the rows of a partition into one blob for each bucket and block, with the number of the block.

    Bucket 0 gets a blob in every epoch, which may be empty. So its operator always runs, and notices a query that has
    changed since its checkpoint.

    Args:
        rows: The schema of the rows, without the bucket, which is the last column.
        bounds: The limits of the rows held at once.
        first: Processes the rows before they are packed.
    """

    rows: pa.Schema
    bounds: BlockBounds
    first: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack one partition."""
        schema = self.rows.append(pa.field(BUCKET, pa.int32()))
        for number, block in enumerate(
            gather(batches if self.first is None else self.first(batches), schema, self.bounds)
        ):
            buckets = block.column(BUCKET).to_numpy()
            order = np.argsort(buckets, kind="stable")
            rows = block.take(pa.array(order)).select(self.rows.names)
            distinct, starts = np.unique(buckets[order], return_index=True)
            ends = [*starts[1:].tolist(), block.num_rows]
            parts = zip(starts.tolist(), ends, strict=True)
            blobs = [write_batch(rows.slice(start, end - start)) for start, end in parts]
            if not number and distinct[0] != 0:
                distinct, blobs = np.concatenate([[0], distinct]), [write_batch(rows.slice(0, 0)), *blobs]
            numbers = pa.array([number] * len(blobs), pa.int32())
            columns = [pa.array(distinct, pa.int32()), numbers, pa.array(blobs, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


@dataclass(frozen=True)
class Unpack:
    """Unpacks blobs of results into rows.

    Args:
        results: The schema of the rows.
    """

    results: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack one partition, whose batches have one column of blobs."""
        for batch in batches:
            for blob in batch.column(0):
                rows = rows_of(blob.as_py())
                columns = [
                    convert(column, field.type) for column, field in zip(rows.columns, self.results, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.results)
