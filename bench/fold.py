"""The layers below Spark: finding slots, the fold alone, and behind an exchange, embedded and over loopback Flight."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.data import Measured, best_of, table
from foldflight.client import Transport, connect
from foldflight.exchange.frames import Open, Returns
from foldflight.fold import BoundCall, Fold, bind_calls
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
    for way, compiled in (("fold, interpreted", False), ("fold, compiled", True)):
        calls = _calls(compiled=compiled)
        yield Measured(way, groups, rows, best_of(times, lambda calls=calls: _fold(calls, chunks)))
    slotted = pa.Table.from_batches(chunks).append_column("vw", pc.multiply(data["v"], data["w"].cast(pa.int64())))
    yield Measured("pyarrow group_by of the products", groups, rows, best_of(times, lambda: _grouped(slotted)))
    yield Measured("numpy bincount of the products", groups, rows, best_of(times, lambda: _counted(chunks)))
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


def _calls(*, compiled: bool) -> list[BoundCall]:
    function = Registry.load(["examples.weighted_avg"])["weighted_avg"]
    return bind_calls(Registry([dataclasses.replace(function, compile=compiled)]), [CALL], COLUMNS)


def _fold(calls: list[BoundCall], chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    fold = Fold(calls)
    for chunk in chunks:
        fold.fold(chunk)
    return fold.collect(states=False)


def _grouped(table: pa.Table) -> pa.Table:
    return table.group_by("slot", use_threads=False).aggregate([("vw", "sum"), ("w", "sum")])


def _counted(chunks: list[pa.RecordBatch]) -> np.ndarray:
    """Return the averages as NumPy gives them: in floats, whose sums round beyond 2**53."""
    sums = weights = np.zeros(0)
    for chunk in chunks:
        slots, values, weight = (column.to_numpy() for column in chunk.columns)
        groups = max(len(sums), int(slots.max()) + 1)
        added = np.bincount(slots, values * weight, groups), np.bincount(slots, weight, groups)
        sums = np.pad(sums, (0, groups - len(sums))) + added[0]
        weights = np.pad(weights, (0, groups - len(weights))) + added[1]
    return sums / weights


def _exchange(transport: Transport, chunks: list[pa.RecordBatch]) -> pa.Table:
    opening = Open(calls=(CALL,), columns=COLUMNS, returns=Returns(states=False, outputs=True))
    with transport.open(opening) as exchange:
        for chunk in chunks:
            exchange.chunk(chunk)
        exchange.barrier(1)
        return exchange.results(1)
