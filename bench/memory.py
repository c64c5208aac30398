"""The memory of many groups: the peak growth of a process that folds them.

Each subject runs in its own process, which has the data and all imports before memory is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.data import Figure, Sizes, table
from bench.fold import COLUMNS, COMPILED, GROUPED, INTERPRETED, WITH_KEYS, calls_of, grouped
from examples.weighted_avg import WeightedAvg
from foldflight.client.exchange import PROGRAMS
from foldflight.engine.keys.index import KeyIndex
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.resources import Resources

SUITE = "memory"
BASE = "Python dict of accumulators"
MILLION = 1_000_000
CHUNK_ROWS = 1 << 16
STATUS = Path("/proc/self/status")


def measure(sizes: Sizes) -> Iterator[Figure]:  # noqa: ARG001 - every suite is given the sizes
    """Measure 2 M rows with 1 M possible keys, per group; the results are included."""
    if not STATUS.exists():
        return  # only Linux reports the peak of a process
    for subject in WAYS:
        found = subprocess.run(
            [sys.executable, "-m", "bench.memory", subject],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[1],
        )
        yield Figure(SUITE, "peak for 1,000,000 groups", subject, json.loads(found.stdout)["mib"], "MiB")


def _dictionary(batches: list[pa.RecordBatch]) -> Any:
    function = WeightedAvg()
    accumulators: dict[int, object] = {}
    for batch in batches:
        for key, value, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            accumulator = accumulators.get(key)
            if accumulator is None:
                accumulator = accumulators[key] = function.create_accumulator()
            function.accumulate(accumulator, value, weight)
    return {key: function.get_value(accumulator) for key, accumulator in accumulators.items()}


def _ours(batches: list[pa.RecordBatch], *, compiled: bool, with_keys: bool) -> Any:
    fold = Fold(calls_of(compiled=compiled), resources=Resources(accelerator=PROGRAMS))
    index = KeyIndex(pa.schema([("k", pa.int64())]))
    for batch in batches:
        slots = index.slots([batch.column("k")]) if with_keys else batch.column("k").cast(pa.int32())
        fold.fold(pa.RecordBatch.from_arrays([slots, batch.column("v"), batch.column("w")], schema=COLUMNS))
    return fold.collect()


def _pandas(batches: list[pa.RecordBatch]) -> Any:
    frame = pa.Table.from_batches(batches).to_pandas()
    frame["vw"] = frame["v"] * frame["w"]
    return frame.groupby("k")[["vw", "w"]].sum()


def _arrow(batches: list[pa.RecordBatch]) -> Any:
    return grouped(pa.Table.from_batches(batches))


WAYS: dict[str, Callable[[list[pa.RecordBatch]], Any]] = {
    BASE: _dictionary,
    INTERPRETED: lambda batches: _ours(batches, compiled=False, with_keys=False),
    COMPILED: lambda batches: _ours(batches, compiled=True, with_keys=False),
    WITH_KEYS: lambda batches: _ours(batches, compiled=True, with_keys=True),
    GROUPED: _arrow,
    "pandas groupby": _pandas,
}


def _peak_mib() -> float:
    """Return the peak memory of this process. getrusage would include the peak of the parent process."""
    (line,) = [each for each in STATUS.read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def main() -> None:
    """Fold in this process, and print the additional memory compared with the data alone."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory")
    parser.add_argument("subject", choices=WAYS)
    way = WAYS[parser.parse_args().subject]
    way(table(CHUNK_ROWS, 100).to_batches())  # imports and compiles
    batches = table(2 * MILLION, MILLION).combine_chunks().to_batches(max_chunksize=CHUNK_ROWS)
    before = _peak_mib()
    result = way(batches)
    print(json.dumps({"mib": (_peak_mib() - before) / len(result) * MILLION}))


if __name__ == "__main__":
    main()
