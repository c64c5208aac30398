"""The cost of exact sums compared with rounded sums, and of lists compared with pandas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.builtins import SCALAR, VECTORISED, calls_of
from bench.data import Figure, Sizes, best_of, table
from bench.fold import GROUPED, folded
from foldflight import udaf
from foldflight.functions import Registry

SUITE = "numeric"
ROUNDED = "rounded at each row"
CHUNK_ROWS = 1 << 16


class Rounded:
    sum: float
    count: int

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class RoundedSum:
    """Add floats as floats, as `sum` would if it rounded at each row."""

    def create_accumulator(self) -> Rounded:
        return Rounded()

    def accumulate(self, accumulator: Rounded, value: float) -> None:
        accumulator.sum += value
        accumulator.count += 1

    def get_value(self, accumulator: Rounded) -> float | None:
        return accumulator.sum if accumulator.count else None

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> None:
        np.add.at(accumulators["sum"], slots, signs * np.where(np.isfinite(values), values, 0.0))
        np.add.at(accumulators["count"], slots, signs)

    def get_values(self, accumulators: Any) -> Any:
        return np.ma.array(accumulators["sum"], mask=accumulators["count"] == 0)


class Deviations:
    count: int
    mean: float
    squares: float

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True, compile=True)
class RoundedVarPop:
    """The variance by B. P. Welford (1962), compiled, as `var_pop` would be if it rounded at each row."""

    def create_accumulator(self) -> Deviations:
        return Deviations()

    def accumulate(self, accumulator: Deviations, value: float) -> None:
        if math.isfinite(value):
            accumulator.count += 1
            delta = value - accumulator.mean
            accumulator.mean += delta / accumulator.count
            accumulator.squares += delta * (value - accumulator.mean)

    def get_value(self, accumulator: Deviations) -> float | None:
        return accumulator.squares / accumulator.count if accumulator.count else None


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure sums and variances of floats, and functions with lists, with given slots."""
    registry = Registry.load([RoundedSum, RoundedVarPop, "examples.gallery.percentile", "examples.largest"])
    for groups in sizes.groups:
        data = table(sizes.rows, groups)
        slots = data.column("k").cast(pa.int32())
        values = pc.divide(data.column("v").cast(pa.float64()), 7.0)
        slotted = pa.table({"v": values, "slot": slots}).combine_chunks()
        for name, ways in _ways(registry, slotted).items():
            for subject, run in ways.items():
                figure = sizes.rows / best_of(3, run)
                yield Figure(SUITE, f"{name} of DOUBLE given slots, {groups:,} groups", subject, figure, "rows/s")


def _ways(registry: Registry, slotted: pa.Table) -> dict[str, dict[str, Callable[[], object]]]:
    chunks = slotted.to_batches(max_chunksize=CHUNK_ROWS)
    frame = slotted.to_pandas()

    def fold(name: str, *, vectorised: bool = True) -> Callable[[], object]:
        calls = calls_of(registry, name, chunks[0].schema, vectorised=vectorised)
        return lambda: folded(calls, chunks)

    def kernel(name: str) -> Callable[[], object]:
        return lambda: slotted.group_by("slot", use_threads=False).aggregate([("v", name)])

    return {
        "sum": {VECTORISED: fold("sum"), ROUNDED: fold("rounded_sum"), GROUPED: kernel("sum")},
        "var_pop": {
            VECTORISED: fold("var_pop"),
            f"{ROUNDED}, compiled": fold("rounded_var_pop"),
            GROUPED: kernel("variance"),
        },
        "percentile": {
            SCALAR: fold("percentile", vectorised=False),
            VECTORISED: fold("percentile"),
            "pandas": lambda: frame.groupby("slot").v.quantile(0.5),
        },
        "largest 10": {
            SCALAR: fold("largest", vectorised=False),
            VECTORISED: fold("largest"),
            # `groupby().nlargest()` calls Python for each group: at a million groups it takes more than ten minutes.
            "pandas": lambda: frame.sort_values("v", ascending=False, kind="stable").groupby("slot").head(10),
        },
    }
