"""Classes as people write them: which are compiled, why the others are not, and their rows per second."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bench import gallery
from bench.data import Figure, Sizes, best_of
from bench.fold import folded
from bench.natural.classes import CLASSES
from foldflight import RejectedError
from foldflight.client.process import PROGRAMS
from foldflight.fold import bind_calls
from foldflight.functions import Call, Registry

__all__ = ["SUITE", "measure", "reasons"]

SUITE = "natural"


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each class in each mode that it has, with given groups; the share of compiled ones comes last."""
    rows = table(min(sizes.rows, gallery.ROWS_MAX))
    chunks = rows.to_batches(max_chunksize=gallery.CHUNK_ROWS)
    compiled = 0
    for call in calls():
        for mode, bound in gallery.modes(registry(), call, rows.schema).items():
            seconds = best_of(3, lambda bound=bound: folded(bound, chunks))
            compiled += mode == gallery.COMPILED
            what = f"{call.function} of {' and '.join(call.arguments)}, {gallery.GROUPS} groups"
            yield Figure(SUITE, what, mode, rows.num_rows / seconds, "rows/s")
    yield Figure(SUITE, "classes as people write them", "compiled", 100 * compiled / len(CLASSES), "%")


def registry() -> Registry:
    """Return a registry of all classes."""
    return Registry.load(list(CLASSES))


def calls() -> list[Call]:
    """Return a call of each class."""
    names = [function.name for function in registry().authored]
    return [Call(name, columns) for name, columns in zip(names, CLASSES.values(), strict=True)]


def table(rows: int) -> pa.Table:
    """Return the visits of the gallery, with a price."""
    cents = np.random.default_rng(2).integers(1, 100_000, rows)
    price = pa.array(cents).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 2))
    return gallery.visits(rows).append_column("price", price)


def reasons() -> dict[str, str]:
    """Return why each class that is not compiled is not, by function."""
    found = {}
    for call in calls():
        (found_call,) = bind_calls(registry(), [call], table(1).schema)
        bound = found_call.bound
        try:
            PROGRAMS.demand(dataclasses.replace(bound, function=dataclasses.replace(bound.function, compile=True)))
        except RejectedError as error:
            found[call.function] = str(error)
    return found
