"""The data of all benchmarks, and how a time is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int32())])


@dataclass(frozen=True)
class Measured:
    """One measured way.

    Args:
        way: What was measured.
        groups: How many distinct keys the data has.
        rows: How many rows went through.
        seconds: The best time of several.
    """

    way: str
    groups: int
    rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


def table(rows: int, groups: int, seed: int = 1) -> pa.Table:
    """Return `rows` rows with `groups` keys in random order, values up to 1,000 and weights up to 9."""
    chosen = np.random.default_rng(seed)
    return pa.table(
        [
            pa.array(chosen.integers(0, groups, rows)),
            pa.array(chosen.integers(0, 1_000, rows)),
            pa.array(chosen.integers(1, 10, rows), pa.int32()),
        ],
        schema=SCHEMA,
    )


def best_of(times: int, run: Callable[[], object]) -> float:
    """Return the shortest of several times in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)
