"""The layers below Spark: finding slots, the fold alone, and behind an exchange, embedded and over loopback Flight."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from bench.data import Measured, best_of, table
from foldflight.client import Transport, connect
from foldflight.exchange.frames import Open, Returns
from foldflight.fold import Fold, bind_calls
from foldflight.fold.keys import KeyIndex
from foldflight.functions import Call, Registry

CHUNK_ROWS = 1 << 18
COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64()), ("w", pa.int32())])
CALL = Call("weighted_avg", ("v", "w"))


def measure(rows: int, groups: int, url: str, times: int = 3) -> Iterator[Measured]:
    """Measure each layer over the same rows."""
    data = table(rows, groups)
    batches = data.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS)
    yield Measured("keys to slots", groups, rows, best_of(times, lambda: _slots(batches)))
    chunks = _slots(batches)
    yield Measured("fold alone", groups, rows, best_of(times, lambda: _fold(chunks)))
    for way, target in (("exchange, embedded", "embedded:examples.weighted_avg"), ("exchange, loopback Flight", url)):
        transport = connect(target).transport
        yield Measured(way, groups, rows, best_of(times, lambda transport=transport: _exchange(transport, chunks)))


def _slots(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the chunks of rows, with slots for keys."""
    index = KeyIndex(pa.schema([("k", pa.int64())]))
    chunks = []
    for batch in batches:
        slots = index.slots([batch.column("k")])
        chunks.append(pa.RecordBatch.from_arrays([slots, batch.column("v"), batch.column("w")], schema=COLUMNS))
    return chunks


def _fold(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    fold = Fold(bind_calls(Registry.load(["examples.weighted_avg"]), [CALL], COLUMNS))
    for chunk in chunks:
        fold.fold(chunk)
    return fold.collect(states=False)


def _exchange(transport: Transport, chunks: list[pa.RecordBatch]) -> pa.Table:
    opening = Open(calls=(CALL,), columns=COLUMNS, returns=Returns(states=False, outputs=True))
    with transport.open(opening) as exchange:
        for chunk in chunks:
            exchange.chunk(chunk)
        exchange.barrier(1)
        return exchange.results(1)
