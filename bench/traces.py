"""The cost of traces at full sampling: CPU time of the same work with and without an endpoint, in alternating rounds.

Spans go to a collector in another process, which reads and drops them. The time is the CPU of all processes of the
work: the driver, Spark's JVM and Python workers, and the server, until the spans are sent.

A round is without, with, with, without. What traces cost is the median of the rounds' differences, in the processes
that run our code: the JVM, in which traces do nothing, has the noise of its compiler and garbage collector. It is added
to the median time without traces. The same for the two runs without traces shows the noise of the figure.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa

from bench.data import Figure, Sizes, table
from bench.fold import OPENING, exchanged, slotted
from bench.spark_batch import consume, session, written
from foldflight.cli.demo import server_process
from foldflight.client import Functions, Transport, connect
from foldflight.spark import group_by

SUITE = "traces"
WITHOUT, AGAIN, WITH = "without traces", "without traces, again", "with traces"
# How long a case is measured; the queries of Spark are the goal, and vary more.
CASE_S, QUERY_S = 8, 45
ROUNDS_MIN = 5
# Spans are sent within this time after a run.
SEND_S = 0.8
COLLECTOR = "bench.traces"
# The clock of a process, from its id (Linux, <linux/posix-timers.h>).
_CPUCLOCK_SCHED = 2
CHUNK_ROWS = 1 << 14
GROUPS = 100
EPOCHS = 3000
# The rows are folded so often in one exchange or query, so that it takes long enough to be measured.
TIMES = 10
EPOCH_ROWS = 1000


class _Dropping(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector in another process, and yield its endpoint."""
    process = subprocess.Popen([sys.executable, "-m", COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure exchanges with many rows, short epochs, and a query in Spark, embedded and on a server."""
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder,
        collector() as endpoint,
        server_process(Path(folder) / "server.log", "--otlp-endpoint", endpoint) as url,
    ):
        data = table(sizes.rows, GROUPS)
        chunks = slotted(data.combine_chunks().to_batches(max_chunksize=CHUNK_ROWS))
        short = slotted(table(EPOCH_ROWS, GROUPS).combine_chunks().to_batches())
        for place, target in (("embedded", "embedded:examples.weighted_avg"), ("remote", url)):
            pair = connect(target), connect(target, otlp_endpoint=endpoint)
            many = [lambda each=each: exchanged(each.transport, chunks * TIMES) for each in pair]
            yield from _figures(f"{sizes.rows * TIMES:,} rows, one exchange, {place}", *many)
            epochs = [lambda each=each: _epochs(each.transport, short[0]) for each in pair]
            yield from _figures(f"{EPOCHS} epochs of {EPOCH_ROWS:,} rows, one exchange, {place}", *epochs)
        with session({}) as spark:
            path = str(written(Path(folder), "rows", data))
            frame = spark.read.parquet(*[path] * TIMES)
            for place, target in (("embedded", "embedded:examples.weighted_avg"), ("remote", url)):
                pair = connect(target), connect(target, otlp_endpoint=endpoint)
                queries = [lambda each=each: _query(frame, each) for each in pair]
                yield from _figures(f"{sizes.rows * TIMES:,} rows, a query in Spark, {place}", *queries, case_s=QUERY_S)


def _epochs(transport: Transport, chunk: pa.RecordBatch) -> None:
    with transport.open(OPENING) as exchange:
        for epoch in range(1, EPOCHS + 1):
            exchange.chunk(chunk)
            exchange.barrier(epoch)
            exchange.results(epoch)


def _query(frame: object, functions: Functions) -> None:
    consume(group_by(frame, "k", plan="fold").agg(mean=functions.weighted_avg("v", "w")))


def _figures(
    case: str, without: Callable[[], object], traced: Callable[[], object], *, case_s: float = CASE_S
) -> Iterator[Figure]:
    """Yield the CPU times of both, and of the noise. Each runs once before, to warm up."""
    for run in (without, traced):
        _during(run)
    rounds: list[tuple[_Spent, ...]] = []
    end = time.monotonic() + case_s
    while time.monotonic() < end or len(rounds) < ROUNDS_MIN:
        rounds.append(tuple(_during(run) for run in (without, traced, traced, without)))
    base = statistics.median(each.all_s for first, _, _, last in rounds for each in (first, last))
    cost = statistics.median(b.ours_s + c.ours_s - a.ours_s - d.ours_s for a, b, c, d in rounds) / 2
    noise = statistics.median(last.ours_s - first.ours_s for first, _, _, last in rounds)
    for subject, more in ((WITHOUT, 0.0), (AGAIN, noise), (WITH, cost)):
        yield Figure(SUITE, case, subject, 1e6 * (base + more), "us")


@dataclass(frozen=True)
class _Spent:
    """CPU seconds of the processes that run our code, and of all."""

    ours_s: float
    all_s: float


def _during(run: Callable[[], object]) -> _Spent:
    """Return what is spent while `run` runs, and while its spans are sent."""
    before = _clocks()
    run()
    time.sleep(SEND_S)
    spent = {each: seconds - before.get(each, 0.0) for each, seconds in _clocks().items()}
    return _Spent(sum(seconds for (name, _), seconds in spent.items() if name != "java"), sum(spent.values()))


def _clocks() -> dict[tuple[str, int], float]:
    """Return the CPU seconds of this process and of those below it, by name and id, but not of the collector."""
    parents = {int(path.name): _stat(path) for path in Path("/proc").glob("[0-9]*")}
    below, clocks = {os.getpid()}, {}
    for pid in sorted(parents):  # a parent has the smaller number, unless the numbers have begun anew
        name, parent = parents[pid]
        if pid in below or parent in below:
            below.add(pid)
            if COLLECTOR not in _command(pid):
                clocks[name, pid] = time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    return clocks


def _stat(path: Path) -> tuple[str, int]:
    """Return the name of a process and its parent."""
    try:
        before, _, after = (path / "stat").read_text().rpartition(")")
    except OSError:  # it has ended
        return "", 0
    return before.partition("(")[2], int(after.split()[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Dropping) as dropping:
        print(dropping.server_port, flush=True)
        dropping.serve_forever()
