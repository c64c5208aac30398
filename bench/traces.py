"""The cost of traces at full sampling: the same work with and without an endpoint, in alternating rounds.

Spans go to a collector in another process, which reads and drops them. The time with traces is the median of the ratios
of neighbouring rounds, multiplied by the median time without: a machine that becomes slower slows down both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
WITHOUT, WITH = "without traces", "with traces"
ROUNDS = 15
CHUNK_ROWS = 1 << 14
GROUPS = 100
EPOCHS = 300
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
    process = subprocess.Popen([sys.executable, "-m", "bench.traces"], stdout=subprocess.PIPE, text=True)
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
            many = [lambda each=each: exchanged(each.transport, chunks) for each in pair]
            yield from _figures(f"{sizes.rows:,} rows, one exchange, {place}", *many)
            epochs = [lambda each=each: _epochs(each.transport, short[0]) for each in pair]
            yield from _figures(f"{EPOCHS} epochs of {EPOCH_ROWS:,} rows, one exchange, {place}", *epochs)
        with session({}) as spark:
            frame = spark.read.parquet(str(written(Path(folder), "rows", data)))
            for place, target in (("embedded", "embedded:examples.weighted_avg"), ("remote", url)):
                pair = connect(target), connect(target, otlp_endpoint=endpoint)
                queries = [lambda each=each: _query(frame, each) for each in pair]
                yield from _figures(f"{sizes.rows:,} rows, a query in Spark, {place}", *queries)


def _epochs(transport: Transport, chunk: pa.RecordBatch) -> None:
    with transport.open(OPENING) as exchange:
        for epoch in range(1, EPOCHS + 1):
            exchange.chunk(chunk)
            exchange.barrier(epoch)
            exchange.results(epoch)


def _query(frame: object, functions: Functions) -> None:
    consume(group_by(frame, "k", plan="fold").agg(mean=functions.weighted_avg("v", "w")))


def _figures(case: str, without: Callable[[], object], traced: Callable[[], object]) -> Iterator[Figure]:
    """Yield the times of both; the first round warms up, and the order changes with each round."""
    seconds: list[float] = []
    ratios: list[float] = []
    for number in range(ROUNDS + 1):
        runs = [without, traced] if number % 2 else [traced, without]
        taken = {run: _seconds(run) for run in runs}
        if number:
            seconds.append(taken[without])
            ratios.append(taken[traced] / taken[without])
    base = statistics.median(seconds)
    yield Figure(SUITE, case, WITHOUT, base, "s")
    yield Figure(SUITE, case, WITH, base * statistics.median(ratios), "s")


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Dropping) as dropping:
        print(dropping.server_port, flush=True)
        dropping.serve_forever()
