"""The layers below Spark: finding slots, the fold alone, and an exchange, embedded and over loopback Flight."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.data import UNIFORM, ZIPF, Figure, Sizes, best_of, table
from foldflight.client import Transport, connect
from foldflight.client.exchange import PROGRAMS
from foldflight.engine.keys.index import KeyIndex
from foldflight.exchange.frames import Open, Returns
from foldflight.fold.aggregate.bound_calls import BoundCall, bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.pickles import StateSigner
from foldflight.fold.resources import Resources
from foldflight.functions import Call, Registry

SUITE = "fold"
INTERPRETED, COMPILED = "fold, interpreted", "fold, compiled"
WITH_KEYS, GROUPED = "keys and fold, compiled", "pyarrow group_by"
CHUNK_ROWS = 1 << 18
COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64()), ("w", pa.int32())])
CALL = Call("weighted_avg", ("v", "w"))
OPENING = Open(calls=(CALL,), columns=COLUMNS, returns=Returns(states=False, outputs=True))


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each layer over the same rows."""
    cases = [(count, UNIFORM) for count in sizes.groups] + [(max(sizes.groups), ZIPF)]
    for groups, keys in cases:
        data = table(sizes.rows, groups, keys=keys)
        case = f"{groups:,} groups" + ("" if keys == UNIFORM else f", {keys}")
        for subject, run in _ways(data, sizes.url).items():
            yield Figure(SUITE, case, subject, data.num_rows / best_of(3, run), "rows/s")


def _ways(data: pa.Table, url: str) -> dict[str, Callable[[], object]]:
    batches = data.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS)
    chunks = slotted(batches)
    interpreted, compiled = calls_of(compiled=False), calls_of(compiled=True)
    embedded, remote = connect("embedded:examples.weighted_avg").transport, connect(url).transport
    return {
        INTERPRETED: lambda: folded(interpreted, chunks),
        COMPILED: lambda: folded(compiled, chunks),
        "numpy bincount": lambda: _counted(chunks),
        "keys to slots": lambda: slotted(batches),
        WITH_KEYS: lambda: folded(compiled, slotted(batches)),
        GROUPED: lambda: grouped(data),
        "exchange, embedded": lambda: exchanged(embedded, chunks),
        "exchange, loopback Flight": lambda: exchanged(remote, chunks),
    }


def slotted(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the chunks of rows, with slots instead of keys."""
    index = KeyIndex(pa.schema([("k", pa.int64())]))
    chunks = []
    for batch in batches:
        slots = index.slots([batch.column("k")])
        chunks.append(pa.RecordBatch.from_arrays([slots, batch.column("v"), batch.column("w")], schema=COLUMNS))
    return chunks


def calls_of(*, compiled: bool) -> list[BoundCall]:
    """Return the call, whose function is compiled from the first row on, or never."""
    function = Registry.load(["examples.weighted_avg"])["weighted_avg"]
    return bind_calls(Registry([dataclasses.replace(function, compile=compiled)]), [CALL], COLUMNS)


def folded(calls: list[BoundCall], chunks: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the outputs of all groups."""
    fold = Fold(calls, resources=Resources(accelerator=PROGRAMS, signer=StateSigner([b"the key of a bench"])))
    for chunk in chunks:
        fold.fold(chunk)
    return fold.collect(states=False)


def grouped(data: pa.Table) -> pa.Table:
    """Return both sums by key, including the products."""
    products = pc.multiply(data["v"], data["w"].cast(pa.int64()))
    return data.append_column("vw", products).group_by("k", use_threads=False).aggregate([("vw", "sum"), ("w", "sum")])


def _counted(chunks: list[pa.RecordBatch]) -> np.ndarray:
    """Return the averages computed with NumPy from given slots, in floats, whose sums are rounded beyond 2**53."""
    sums = weights = np.zeros(0)
    for chunk in chunks:
        slots, values, weight = (column.to_numpy() for column in chunk.columns)
        groups = max(len(sums), int(slots.max()) + 1)
        added = np.bincount(slots, values * weight, groups), np.bincount(slots, weight, groups)
        sums = np.pad(sums, (0, groups - len(sums))) + added[0]
        weights = np.pad(weights, (0, groups - len(weights))) + added[1]
    return sums / weights


def exchanged(transport: Transport, chunks: list[pa.RecordBatch]) -> pa.Table:
    """Return the outputs of all groups, folded in one epoch of an exchange."""
    with transport.open(OPENING) as exchange:
        for chunk in chunks:
            exchange.chunk(chunk)
        exchange.barrier(1)
        return exchange.results(1)
