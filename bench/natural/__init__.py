"""Classes as people write them: which are compiled, why the others are not, and their rows per second.

The corpus is `bench.natural.classes`, `bench.natural.untyped`, `examples/gallery` and the functions of `examples`, but
those of vectors, which `bench.vectors` measures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bench import gallery
from bench.data import Figure, Sizes, best_of
from bench.fold import folded
from bench.natural import classes, heldout, untyped
from foldflight.client.exchange import PROGRAMS
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import NoProgram
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.functions import Call, Registry
from foldflight.functions.author.spec import ScalarFunction

__all__ = ["SUITE", "measure", "reasons"]

SUITE = "natural"
CLASSES = {**classes.CLASSES, **untyped.CLASSES}
EXAMPLES = (
    *("different", "euros", "from_beam", "from_snowflake", "largest", "moved", "texts", "weighted_avg"),
    "weighted_mean",
)
VECTORS = frozenset({"centroid", "drift", "mean_and_covariance", "near_duplicates", "top_k_similar"})
# The calls of aggregate functions of `examples` that have no call in the gallery's list.
CALLS = (
    Call("average", ("pieces",)),
    Call("price_spread", ("amount",)),
    Call("largest", ("amount",)),
    Call("last_seen", ("at_ntz",)),
    Call("count_different", ("visitor",)),
    Call("total_in_euros", ("euros", "step")),
    Call("weighted_mean", ("amount", "latitude")),
    Call("hll_sketch", ("visitor",)),
    Call("hll_union", ("sketch",)),
)


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each class in each mode that it has, with given groups; shares and medians of the corpus come last."""
    rows = table(min(sizes.rows, gallery.ROWS_MAX))
    chunks = rows.to_batches(max_chunksize=gallery.CHUNK_ROWS)
    best: dict[str, float] = {}
    slower = []
    found = registry()
    for call in calls():
        speeds = {}
        for mode, bound in gallery.modes(found, call, rows.schema).items():
            seconds = best_of(3 if call.function in own() else 1, lambda bound=bound: folded(bound, chunks))
            speeds[mode] = rows.num_rows / seconds
            what = f"{call.function} of {' and '.join(call.arguments)}, {gallery.GROUPS} groups"
            yield Figure(SUITE, what, mode, speeds[mode], "rows/s")
        best[call.function] = max(best.get(call.function, 0), *speeds.values())
        if gallery.COMPILED in speeds and speeds[gallery.COMPILED] < speeds[gallery.INTERPRETED]:
            slower.append(call.function)
    missing = reasons()
    names = [function.name for function in found.authored]
    compiled = [name for name in names if name not in missing]
    yield Figure(SUITE, f"{len(names)} functions as people write them", "fast", 100 * len(compiled) / len(names), "%")
    assert isinstance(PROGRAMS, Programs)
    held_out = [PROGRAMS.warm(function).mode == "compiled" for function in Registry.load(heldout.CLASSES).authored]
    yield Figure(SUITE, f"{len(held_out)} classes written blind", "fast", 100 * sum(held_out) / len(held_out), "%")
    for name, reason in missing.items():
        yield Figure(SUITE, f"{name}: {reason}", gallery.INTERPRETED, 1, "functions")
    shown = f"{len(best)} aggregate functions, {gallery.GROUPS} groups, best mode of each"
    yield Figure(SUITE, shown, "median", statistics.median(best.values()), "rows/s")
    yield Figure(SUITE, "slower compiled than interpreted", ", ".join(slower) or "none", len(slower), "functions")


def registry() -> Registry:
    """Return a registry of the corpus."""
    paths = [path for path in sorted(gallery.GALLERY.glob("*.py")) if path.stem not in VECTORS]
    modules = [f"examples.gallery.{path.stem}" for path in paths]
    return Registry.load([*CLASSES, *(f"examples.{name}" for name in EXAMPLES), *modules])


def own(named: dict[Any, tuple[str, ...]] = CLASSES) -> dict[str, tuple[str, ...]]:
    """Return the arguments of the classes of this folder, or of some of them, by function."""
    names = [function.name for function in Registry.load(list(named)).authored]
    return dict(zip(names, named.values(), strict=True))


def calls(named: dict[Any, tuple[str, ...]] = CLASSES) -> list[Call]:
    """Return calls of all aggregate functions of the corpus, or of some classes of this folder and all others."""
    return [*(Call(name, columns) for name, columns in own(named).items()), *gallery.CALLS, *CALLS]


def table(rows: int) -> pa.Table:
    """Return the visits of the gallery, with what its functions do not need."""
    cents = np.random.default_rng(2).integers(1, 100_000, rows)
    price = pa.array(cents).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 2))
    visits = gallery.visits(rows).append_column("price", price).append_column("euros", price.cast(pa.decimal128(12, 2)))
    visits = visits.append_column("at_ntz", visits.column("at").cast(pa.timestamp("us")))
    return visits.append_column("sketch", pa.array([bytes(4096)] * rows, pa.binary()))


def reasons() -> dict[str, str]:
    """Return why each function of the corpus that is neither compiled nor vectorised is not, by function."""
    assert isinstance(PROGRAMS, Programs)
    found, schema = registry(), table(1).schema
    given = {call.function: call for call in reversed(calls())}
    reasons = {}
    for function in found.authored:
        if function.vectorised:
            continue
        if isinstance(function, ScalarFunction):
            folding = PROGRAMS.warm(function)
            if folding.mode != "compiled":
                reasons[function.name] = folding.reason
            continue
        (call,) = bind_calls(found, [given[function.name]], schema)
        program = PROGRAMS.program(call.bound, call.bound.instantiate())
        if isinstance(program, NoProgram):
            reasons[function.name] = program.reason
    return reasons
