"""The functions of examples/gallery: each interpreted, and compiled or vectorised if it can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.data import Figure, Sizes, best_of
from bench.fold import folded
from foldflight import RejectedError
from foldflight.client.exchange import PROGRAMS
from foldflight.fold.aggregate.bound_calls import BoundCall, bind_calls
from foldflight.functions import Call, Registry

SUITE = "gallery"
INTERPRETED, COMPILED, VECTORISED = "interpreted", "compiled", "vectorised"
ROWS_MAX, GROUPS, CHUNK_ROWS = 200_000, 100, 1 << 16
GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
CALLS = [
    Call("weighted_avg", ("pieces", "pieces")),  # the others' times of a row are compared with its time
    Call("t_digest", ("amount",), literals={"fraction": 0.99}),
    Call("hll_count_distinct", ("visitor",)),
    Call("top_k", ("visitor",), literals={"counters": 100}),
    Call("ewma", ("amount", "at"), literals={"half_life_s": 3600.0}),
    Call("percentile", ("amount",), literals={"fraction": 0.99}),
    Call("funnel", ("step", "at"), literals={"steps": "view,cart,buy", "within_s": 3600.0}),
    Call("longest_streak", ("day",)),
    Call("weighted_median", ("amount", "pieces")),
    Call("geographic_centroid", ("latitude", "longitude")),
    Call("linear_regression", ("amount", "latitude"), literals={"at": 1.0}),
    Call("first_by", ("amount", "at")),
    Call("first_by", ("amount", "at_us")),
    Call("last_by", ("amount", "at_us")),
    Call("histogram", ("amount",), literals={"low": 0.0, "high": 100.0}),
]


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each function in each mode that it has, with given slots."""
    modules = [f"examples.gallery.{path.stem}" for path in sorted(GALLERY.glob("*.py"))]
    registry = Registry.load(["examples.weighted_avg", *modules])
    rows = visits(min(sizes.rows, ROWS_MAX))
    chunks = rows.to_batches(max_chunksize=CHUNK_ROWS)
    for call in CALLS:
        for mode, calls in modes(registry, call, rows.schema).items():
            seconds = best_of(3, lambda calls=calls: folded(calls, chunks))
            yield Figure(
                SUITE,
                f"{call.function} of {' and '.join(call.arguments)}, {GROUPS} groups",
                mode,
                rows.num_rows / seconds,
                "rows/s",
            )


def modes(registry: Registry, call: Call, columns: pa.Schema) -> dict[str, list[BoundCall]]:
    """Return the call in each mode that its function has."""
    (found,) = bind_calls(registry, [call], columns)
    function = found.bound.function

    def bound(**changes: Any) -> list[BoundCall]:
        changed = dataclasses.replace(function, **changes)
        return [BoundCall(found.call, dataclasses.replace(found.bound, function=changed))]

    ways = {INTERPRETED: bound(vectorised=False, compile=False)}
    compiled = bound(vectorised=False, compile=True)
    try:
        PROGRAMS.demand(compiled[0].bound)
    except RejectedError:
        pass  # it cannot be compiled
    else:
        ways[COMPILED] = compiled
    return ways | ({VECTORISED: [found]} if function.vectorised else {})


def visits(rows: int) -> pa.Table:
    """Return visits of a shop, with slots: the columns that the functions of the gallery need."""
    chosen = np.random.default_rng(1)
    seconds = np.sort(chosen.integers(0, 90 * 86_400, rows))
    return pa.table(
        {
            "slot": pa.array(chosen.integers(0, GROUPS, rows), pa.int32()),
            "visitor": [f"visitor {number}" for number in chosen.zipf(1.3, rows) % 10_000],
            "step": np.array(["view", "cart", "buy"])[chosen.integers(0, 3, rows)],
            "at": pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC")),
            "at_us": seconds * 1_000_000,
            "day": pa.array(seconds // 86_400, pa.int32()).cast(pa.date32()),
            "amount": np.round(chosen.gamma(2.0, 20.0, rows), 2),
            "pieces": pa.array(chosen.integers(1, 10, rows), pa.int32()),
            "latitude": chosen.normal(52, 3, rows),
            "longitude": chosen.normal(10, 5, rows),
        }
    )
