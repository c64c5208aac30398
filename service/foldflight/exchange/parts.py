"""Parts of batches that fit into messages."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["sliced_to"]


def sliced_to(batch: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Split a batch into batches of about `bytes_max` bytes or less, with at least one row each.

    An empty batch is returned as it is.
    """
    if batch.num_rows <= 1 or batch.nbytes <= bytes_max:
        return [batch]
    # Rows differ in size, so halve each part until it fits.
    half = batch.num_rows // 2
    return [*sliced_to(batch.slice(0, half), bytes_max), *sliced_to(batch.slice(half), bytes_max)]
