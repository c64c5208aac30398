"""The most common functions with their scalar and their vectorised methods; and the numbers of keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pyarrow as pa

from bench.data import Figure, Sizes, best_of, table
from bench.fold import GROUPED, folded
from foldflight.engine.keys.index import KeyIndex
from foldflight.fold.aggregate.bound_calls import BoundCall, bind_calls
from foldflight.functions import Call, Registry

SUITE = "builtins"
SCALAR, VECTORISED = "scalar methods", "vectorised methods"
WITH_KEYS = "keys and vectorised methods"
KERNELS = {"count": "count", "sum": "sum", "avg": "mean", "min": "min", "max": "max"}
CHUNK_ROWS = 1 << 16


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each function with given slots, then `sum` with keys of several types."""
    for groups in sizes.groups:
        data = table(sizes.rows, groups)
        for name, kernel in KERNELS.items():
            case = f"{name} given slots, {groups:,} groups"
            ways = _ways(name, kernel, data.select(["v"]), data.column("k").cast(pa.int32()))
            yield from _figures(case, sizes.rows, ways)
        for keys, columns in _keys(data).items():
            case = f"sum by {keys}, {groups:,} groups"
            yield from _figures(case, sizes.rows, _keyed_ways(columns, data))


def _figures(case: str, rows: int, ways: dict[str, Callable[[], object]]) -> Iterator[Figure]:
    for subject, run in ways.items():
        yield Figure(SUITE, case, subject, rows / best_of(3, run), "rows/s")


def _ways(name: str, kernel: str, data: pa.Table, slots: pa.ChunkedArray) -> dict[str, Callable[[], object]]:
    slotted = data.append_column("slot", slots)
    chunks = slotted.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS)
    registry, columns = Registry(), chunks[0].schema
    scalar, vectorised = calls_of(registry, name, columns, vectorised=False), calls_of(registry, name, columns)
    return {
        SCALAR: lambda: folded(scalar, chunks),
        VECTORISED: lambda: folded(vectorised, chunks),
        GROUPED: lambda: slotted.group_by("slot", use_threads=False).aggregate([("v", kernel)]),
    }


def _keys(data: pa.Table) -> dict[str, list[pa.ChunkedArray]]:
    """Return the same groups by several keys: numbers in a narrow and in a wide range, strings, and pairs."""
    numbers = data.column("k").to_numpy()
    texts = pa.chunked_array([pa.array([f"customer {number}" for number in numbers.tolist()])])
    pairs = [pa.chunked_array([numbers // 100]), pa.chunked_array([pa.array([f"{n % 100}" for n in numbers.tolist()])])]
    far = pa.chunked_array([numbers * 7_919_777_777])
    return {"BIGINT": [data.column("k")], "far BIGINT": [far], "STRING": [texts], "BIGINT, STRING": pairs}


def _keyed_ways(columns: list[pa.ChunkedArray], data: pa.Table) -> dict[str, Callable[[], object]]:
    names = [f"k{place}" for place in range(len(columns))]
    keyed = pa.table([*columns, data.column("v")], names=[*names, "v"]).combine_chunks()
    batches = keyed.to_batches(max_chunksize=CHUNK_ROWS)
    calls = calls_of(Registry(), "sum", pa.schema([("slot", pa.int32()), ("v", pa.int64())]))
    return {
        WITH_KEYS: lambda: folded(calls, _slotted(batches, names)),
        GROUPED: lambda: keyed.group_by(names, use_threads=False).aggregate([("v", "sum")]),
    }


def _slotted(batches: list[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    index = KeyIndex(pa.schema([batches[0].schema.field(name) for name in names]))
    for batch in batches:
        slots = index.slots([batch.column(name) for name in names])
        yield pa.RecordBatch.from_arrays([slots, batch.column("v")], names=["slot", "v"])


def calls_of(registry: Registry, name: str, columns: pa.Schema, *, vectorised: bool = True) -> list[BoundCall]:
    """Return one call of a function over the column v, vectorised or interpreted."""
    (call,) = bind_calls(registry, [Call(name, ("v",))], columns)
    if vectorised:
        return [call]
    function = dataclasses.replace(call.bound.function, compile=False)
    return [BoundCall(call.call, dataclasses.replace(call.bound, function=function))]
