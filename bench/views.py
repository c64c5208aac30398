"""Views in streams: epochs that touch a few entries of a large view, its load, and many small views beside dicts.

The same for `count(DISTINCT)`, whose rows are in a view, beside states that have all rows.

The engine's epochs run in this process, without Spark: one bucket, its state table in memory and in the shared cache of
a host, and functions embedded. PyFlink's MapView, with RocksDB, counts the same texts of fewer rows, from a CSV file.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bench import flink
from bench.data import Figure, Sizes
from bench.environments import python_with
from foldflight import MapView, connect, udaf
from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.manifest import Storage
from foldflight.engine.state.runs import HostCache, RunCache
from foldflight.engine.state.table import MemoryStore, TableLayout
from foldflight.engine.state.viewtable import table_of
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.functions import Call

SUITE = "views"
VIEW, DICT = "MapView", "dict"
PEER = "PyFlink MapView, RocksDB, CSV"
EPOCH_ROWS, LOAD_ROWS = 1_000, 500_000
TOUCHED = f"{EPOCH_ROWS:,} rows an epoch, one group"
LOADED = f"load of one group, {LOAD_ROWS:,} rows an epoch"
SMALL = "groups with ten entries"
DISTINCT_TOUCHED = f"count(DISTINCT), {EPOCH_ROWS:,} rows an epoch, one group"
DISTINCT_SMALL = "groups with ten texts, count(DISTINCT)"
IN_STATES = "all rows in states"
SMALLEST, LARGEST = 10_000, 5_000_000
# States with all rows take seconds an epoch beyond this number.
_LISTED = 100_000
# Materialized calls have all rows in their states.
_DISTINCT = {
    VIEW: Call("count", ("v",), distinct=True),
    IN_STATES: Call("count", ("v",), distinct=True, materialize=True),
}


class Seen:
    """Different texts with their counts, in a view."""

    count: int
    times: MapView[str, int]

    def __init__(self) -> None:
        self.count = 0
        self.times = MapView()


class Held:
    """The same in a dict."""

    count: int
    times: dict[str, int]

    def __init__(self) -> None:
        self.count = 0
        self.times = {}


class _Count:
    def accumulate(self, acc: Any, value: str) -> None:
        times = acc.times.get(value, 0)
        acc.count += times == 0
        acc.times[value] = times + 1

    def get_value(self, acc: Any) -> int:
        return int(acc.count)


@udaf(name="in_view", input_types=["VARCHAR"], result_type="BIGINT", prefetch={"times": ["value"]})
class InView(_Count):
    """Counts different texts in a view."""

    def create_accumulator(self) -> Seen:
        return Seen()


@udaf(name="in_dict", input_types=["VARCHAR"], result_type="BIGINT", compile=False)
class InDict(_Count):
    """Counts different texts in a dict."""

    def create_accumulator(self) -> Held:
        return Held()


def entries_of(count: int) -> str:
    """Return the name of the figures of a view with this number of entries."""
    return f"view of {count:,} entries"


def listed_of(count: int) -> str:
    """Return the name of the figures of a state with this number of rows."""
    return f"state of {count:,} rows"


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure views of 10,000 and of 2.5 times `rows` entries, at most 5 M, and a twentieth of `rows` groups.

    So also of the rows of `count(DISTINCT)`, beside states that have all rows.
    """
    large = min(sizes.rows * 5 // 2, LARGEST)
    for count in (SMALLEST, large):
        with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
            stream = _Stream(Call("in_view", ("v",)), Path(folder))
            seconds = _load(stream, count)
            if count == large:
                yield Figure(SUITE, LOADED, VIEW, count / seconds, "rows/s")
            yield Figure(SUITE, TOUCHED, entries_of(count), _touching(stream, count), "s")
    for subject, call, count in (
        (entries_of(SMALLEST), _DISTINCT[VIEW], SMALLEST),
        (entries_of(large), _DISTINCT[VIEW], large),
        (listed_of(SMALLEST), _DISTINCT[IN_STATES], SMALLEST),
        (listed_of(_LISTED), _DISTINCT[IN_STATES], _LISTED),
    ):
        with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
            stream = _Stream(call, Path(folder))
            _load(stream, count)
            yield Figure(SUITE, DISTINCT_TOUCHED, subject, _touching(stream, count), "s")
    groups = max(sizes.rows // 20, 100)
    for case, subject, call in (
        (SMALL, DICT, Call("in_dict", ("v",))),
        (SMALL, VIEW, Call("in_view", ("v",))),
        *((DISTINCT_SMALL, subject, call) for subject, call in reversed(_DISTINCT.items())),
    ):
        with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
            stream = _Stream(call, Path(folder))
            keys = np.repeat(np.arange(groups), 10)
            stream.epoch(keys, np.tile(np.arange(10), groups))
            start = time.perf_counter()
            stream.epoch(keys, np.tile(np.arange(10), groups))
            rate = len(keys) / (time.perf_counter() - start)
            yield Figure(SUITE, f"{groups:,} {case}", subject, rate, "rows/s")
    yield _peer(max(sizes.rows // 20, 1_000))


def _load(stream: _Stream, count: int) -> float:
    """Load a group with so many texts, and return the seconds that it took."""
    start = time.perf_counter()
    for first in range(0, count, LOAD_ROWS):
        stream.epoch(np.zeros(min(LOAD_ROWS, count - first), np.int64), np.arange(first, count)[:LOAD_ROWS])
    return time.perf_counter() - start


def _peer(rows: int) -> Figure:
    """Measure PyFlink's load of one group with different texts. A tenth of the rows tells the time that starting takes.

    Raises:
        NotInstalledError: With the message of the installer.
    """
    python = python_with(flink.REQUIREMENT)
    settings = {**flink.BUNDLES, "state.backend.type": "rocksdb"}
    counts = rows // 10, rows
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
        seconds = []
        for count in counts:
            file = Path(folder) / f"{count}.csv"
            columns = {"k": np.zeros(count, np.int64), "v": np.arange(count), "w": np.ones(count, np.int64)}
            pyarrow.csv.write_csv(pa.table(columns), file, pyarrow.csv.WriteOptions(include_header=False))
            seconds.append(flink.run_job(python, "view", "streaming", file, folder, settings))
    return Figure(SUITE, LOADED, PEER, (counts[1] - counts[0]) / max(seconds[1] - seconds[0], 1e-3), "rows/s")


def _touching(stream: _Stream, count: int) -> float:
    """Return the median time of epochs whose rows use a few entries of a view, half of them new."""
    chosen = np.random.default_rng(1)
    taken = []
    for epoch in range(21):
        values = chosen.integers(0, count, EPOCH_ROWS)
        values[::2] = count + epoch * EPOCH_ROWS + np.arange(EPOCH_ROWS // 2)
        start = time.perf_counter()
        stream.epoch(np.zeros(EPOCH_ROWS, np.int64), values)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


class _Stream:
    """A stream of keys and texts with one bucket."""

    def __init__(self, call: Call, folder: Path) -> None:
        layout = QueryLayout(
            keys=pa.schema([("key_0", pa.int64())]),
            names=("k",),
            columns=pa.schema([("column_0", pa.string())]),
            display_names=("v",),
            has_kinds=False,
        )
        transport = connect([InView, InDict])["in_view"]("v").transport
        self._query = Query.of(transport, {"n": call}, layout, stream=StreamOptions())
        open_request = self._query.opening_for(states=True, outputs=True, initial_outputs=True, keeps_views=True)
        self._exchange = GroupedExchange(transport, open_request, self._query.layout)
        self._cache = RunCache(bytes_max=256 << 20, host_cache=HostCache(folder, bytes_max=4 << 30))
        self._store = MemoryStore()

    def epoch(self, keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        """Run an epoch with n rows. Texts are `user` and a number."""
        layout = self._query.layout
        texts = pc.binary_join_element_wise("user", pa.array(values).cast(pa.string()), "-")
        rows = pa.RecordBatch.from_arrays([pa.array(keys), texts], schema=layout.rows)
        table = table_of(
            TableLayout(keys=layout.keys, states=layout.states),
            self._query.views,
            Storage(self._store, self._cache),
        )
        blocks = (rows.slice(start, 1 << 16) for start in range(0, rows.num_rows, 1 << 16))
        BucketEpoch(self._exchange, layout, table, is_strict=False).run(blocks)
