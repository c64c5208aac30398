"""Count the Python calls of the package, and their modules, for small tasks.

PYTHONPATH=service:. python -m bench.call_counts [--modules]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import foldflight
from foldflight import connect, udaf
from foldflight.client import Transport, close_connections
from foldflight.engine.batch.tasks import PartialFold
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query
from foldflight.exchange.frames import Open
from foldflight.functions import Call
from foldflight.server.run.lifecycle import serving

PACKAGE = Path(foldflight.__file__).parent
COLUMNS = pa.schema([("slot", pa.int32()), ("value", pa.int64())])
# The rows of a query with one key and one argument.
LAYOUT = QueryLayout(
    keys=pa.schema([("key_0", pa.string())]),
    names=("key",),
    columns=pa.schema([("column_0", pa.int64())]),
    display_names=("value",),
    has_kinds=False,
)


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Total:
    """A sum."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the Python calls of this thread in the block, by module of the package."""
    modules: dict[str, str | None] = {}
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        if path not in modules:
            inside = Path(path).is_relative_to(PACKAGE)
            modules[path] = str(Path(path).relative_to(PACKAGE)) if inside else None
        module = modules[path]
        if module is not None:
            calls[module] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def embedded_partition() -> Counter[str]:
    """Return the calls for one partition of three rows, from the rows to the states, in this process."""
    query = Query.of(connect(Total).transport, {"total": Call("total", ("value",))}, LAYOUT)
    rows = pa.RecordBatch.from_pydict({"key_0": ["a", "b", "a"], "column_0": [1, 2, 3]}, schema=LAYOUT.rows)

    def fold() -> None:
        assert sum(batch.num_rows for batch in PartialFold(query, query.bounds)([rows])) == 2

    return _warm(fold)


def remote_chunk() -> Counter[str]:
    """Return the calls of the client for one chunk of three rows."""
    with serving(Total, http_port=0, health_port=0) as server:
        transport: Transport = connect(server.url).transport
        rows = pa.RecordBatch.from_pydict({"slot": [0, 1, 0], "value": [1, 2, 3]}, schema=COLUMNS)
        with transport.open(Open((Call("total", ("value",)),), COLUMNS)) as exchange:
            calls = _warm(lambda: exchange.chunk(rows))
            exchange.barrier(1)
            exchange.results(1)
        close_connections()
    return calls


def remote_barrier() -> Counter[str]:
    """Return the calls of the client for one barrier and its results."""
    with serving(Total, http_port=0, health_port=0) as server:
        transport: Transport = connect(server.url).transport
        epochs = iter(range(1, 10))
        with transport.open(Open((Call("total", ("value",)),), COLUMNS)) as exchange:

            def epoch() -> None:
                number = next(epochs)
                exchange.barrier(number)
                exchange.results(number)

            calls = _warm(epoch)
        close_connections()
    return calls


def _warm(work: Callable[[], None]) -> Counter[str]:
    """Return the calls of a task whose caches are warm: it has run three times before.

    The result is the smallest of five counts, because garbage collection or a late answer adds calls.
    """
    for _ in range(3):
        work()
    counts = []
    for _ in range(5):
        with counted() as calls:
            work()
        counts.append(calls)
    return min(counts, key=Counter.total)


def main() -> None:
    """Print the numbers, and with `--modules` the numbers of each module."""
    for work in (embedded_partition, remote_chunk, remote_barrier):
        calls = work()
        print(f"{work.__name__}: {len(calls)} modules, {calls.total()} calls")
        if "--modules" in sys.argv:
            for module, number in calls.most_common():
                print(f"  {number:4} {module}")


if __name__ == "__main__":
    main()
