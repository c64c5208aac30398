"""The data of all benchmarks, the type of a figure, and the measurement of times."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int32())])
UNIFORM, ZIPF = "uniform", "Zipf"
# The exponent of the YCSB benchmark: of 1 M keys, the first thousand get half of the rows.
ZIPF_EXPONENT = 0.99
# A run that takes longer is not repeated: it differs by little from the next one.
SLOW_S = 2.5
CACHE = Path(__file__).parents[1] / ".cache"


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data, and the URL of the server.

    Args:
        rows: Rows of the data.
        groups: Numbers of distinct keys.
        stream_groups: Numbers of groups in streams.
        url: URL of a server with `examples.weighted_avg`.
    """

    rows: int
    groups: tuple[int, ...]
    stream_groups: tuple[int, ...]
    url: str


@dataclass(frozen=True)
class Figure:
    """One measured value.

    Args:
        suite: Name of the suite.
        case: The data and the circumstances. Only figures of one case are compared.
        subject: Name of the measured program.
        value: The measured value.
        unit: Its unit: `rows/s` (more is better), or `s`, `us` and `MiB` (less is better).
        is_limit: Whether the subject was stopped before its end, so that its value is this or worse.
    """

    suite: str
    case: str
    subject: str
    value: float
    unit: str
    is_limit: bool = False


def table(rows: int, groups: int, seed: int = 1, keys: str = UNIFORM) -> pa.Table:
    """Return `rows` rows with `groups` keys in random order, values up to 1,000 and weights up to 9."""
    chosen = np.random.default_rng(seed)
    return pa.table(
        [
            pa.array(chosen.integers(0, groups, rows) if keys == UNIFORM else _zipf(chosen, rows, groups)),
            pa.array(chosen.integers(0, 1_000, rows)),
            pa.array(chosen.integers(1, 10, rows), pa.int32()),
        ],
        schema=SCHEMA,
    )


def _zipf(chosen: np.random.Generator, rows: int, groups: int) -> Any:
    """Return keys, of which the n-th is as frequent as 1 / n**ZIPF_EXPONENT; the values of keys are in random order."""
    shares = np.cumsum(np.arange(1, groups + 1) ** -ZIPF_EXPONENT)
    ranks = np.searchsorted(shares, chosen.random(rows) * shares[-1])
    return np.random.default_rng(0).permutation(groups)[ranks]


def lineitem(rows: int) -> pa.Table:
    """Return about `rows` rows of TPC-H's lineitem: part, flag and status, v the price in cents, w the quantity."""
    scale = rows / 6_000_000
    folder = CACHE / f"tpch-{scale:.4f}"
    if not (folder / "lineitem.parquet").exists():
        tool = Path(sys.executable).with_name("tpchgen-cli")
        subprocess.run(
            [tool, "parquet", "--scale-factor", str(scale), "--tables=lineitem", f"--output-dir={folder}", "--quiet"],
            check=True,
        )
    columns = ["l_partkey", "l_returnflag", "l_linestatus", "l_extendedprice", "l_quantity"]
    read = pq.read_table(folder / "lineitem.parquet", columns=columns)
    cents = pa.chunked_array([_whole(chunk, 100) for chunk in read["l_extendedprice"].chunks], pa.int64())
    return pa.table(
        {
            "part": read["l_partkey"],
            "flag": read["l_returnflag"].cast(pa.string()),
            "status": read["l_linestatus"].cast(pa.string()),
            "v": cents,
            "w": pa.chunked_array([_whole(chunk, 1) for chunk in read["l_quantity"].chunks]).cast(pa.int32()),
        }
    )


def _whole(decimals: pa.Array, times: int) -> pa.Array:
    """Return decimals of two places as integer hundredths, or as integers."""
    return pa.array(np.rint(decimals.cast(pa.float64()).to_numpy() * times).astype(np.int64))


def best_of(times: int, run: Callable[[], object]) -> float:
    """Return the shortest of several times in seconds. What takes longer than `SLOW_S` is run once."""
    taken: list[float] = []
    while len(taken) < times and (not taken or taken[0] < SLOW_S):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)
