"""The exchange over the loopback, compared with servers that only read the same batches, or send them back.

The reading server shows the limit of the transport. The difference to foldflight is the cost of fold and frames.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from bench.data import Figure, Sizes, best_of, table
from bench.fold import COLUMNS, OPENING, exchanged, slotted
from foldflight.client import connect
from foldflight.client.exchange import Transport
from foldflight.exchange.encoding import encode
from foldflight.exchange.frames import Chunk
from foldflight.fold.mode import Mode

SUITE = "exchange"
OURS, DRAINING = "foldflight", "draining server"
EMPTY_TRIP, BARRIER = "empty round trip", "barrier"
GROUPS = 100
ROUND_TRIPS = 2000
CHUNK_ROWS = (1 << 10, 1 << 14, 1 << 16, 1 << 18)
STREAMS = (1, 2, 4)
DRAIN, ECHO = "drain", "echo"
_COMPILED_S, _LOOK_S = 600.0, 0.2


class Plain(fl.FlightServerBase):
    """Reads batches, and answers batches without rows; with `echo` it sends every batch back."""

    def __init__(self, *, echoes: bool) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.echoes = echoes

    def do_exchange(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(reader.schema)
        for chunk in reader:
            if self.echoes or not chunk.data.num_rows:
                writer.write_with_metadata(chunk.data, b"")


@contextmanager
def plain_server(kind: str) -> Iterator[str]:
    """Run a plain server in another process, and yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.exchange", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        yield f"grpc://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure rows per second for each server, by number of streams and rows of a chunk; then round trips."""
    ours = connect(sizes.url).transport
    _await_compiled(ours)
    with plain_server(DRAIN) as drain, plain_server(ECHO) as echo:
        for streams in STREAMS:
            for chunk_rows in CHUNK_ROWS:
                chunks = _chunks(sizes.rows, chunk_rows)
                ways: dict[str, Callable[[], object]] = {
                    DRAINING: lambda chunks=chunks: _plain(drain, chunks, echoes=False),
                    "echoing server": lambda chunks=chunks: _plain(echo, chunks, echoes=True),
                    OURS: lambda chunks=chunks: exchanged(ours, chunks),
                }
                for way, run in ways.items():
                    seconds = best_of(3, lambda run=run, streams=streams: _at_once(streams, run))
                    case = f"{streams} stream{'s' if streams > 1 else ''}, {chunk_rows:,} rows a chunk"
                    yield Figure(SUITE, case, way, sizes.rows * streams / seconds, "rows/s")
        for way, percentiles in ((EMPTY_TRIP, _empty_trips(drain)), (BARRIER, _barriers(sizes.url))):
            for name, value in zip(("p50", "p99"), percentiles, strict=True):
                yield Figure(SUITE, f"round trips, {name}", way, value, "us")


def _await_compiled(transport: Transport) -> None:
    """Fold until the server has loaded the function's compiled code: one that has just started interprets it."""
    chunks, end_s = _chunks(CHUNK_ROWS[0], CHUNK_ROWS[0]), time.monotonic() + _COMPILED_S
    while time.monotonic() < end_s:
        exchanged(transport, chunks)
        with transport.open(OPENING) as exchange:
            if exchange.modes == (Mode.COMPILED,):
                return
        time.sleep(_LOOK_S)
    raise TimeoutError("the server has not compiled the function")


def _empty_trips(url: str) -> tuple[float, float]:
    client = fl.connect(url)
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b""))
    writer.begin(COLUMNS)
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in COLUMNS], schema=COLUMNS)

    def trip(_: int) -> None:
        writer.write_batch(empty)
        reader.read_chunk()

    found = _percentiles(trip)
    writer.done_writing()
    writer.close()
    client.close()
    return found


def _barriers(url: str) -> tuple[float, float]:
    with connect(url).transport.open(OPENING) as exchange:
        exchange.chunk(_chunks(GROUPS, GROUPS)[0])

        def trip(number: int) -> None:
            exchange.barrier(number + 1)
            exchange.results(number + 1)

        return _percentiles(trip)


def _percentiles(trip: Callable[[int], None]) -> tuple[float, float]:
    """Return p50 and p99 in microseconds."""
    taken = []
    for number in range(ROUND_TRIPS):
        start = time.perf_counter()
        trip(number)
        taken.append((time.perf_counter() - start) * 1e6)
    cuts = statistics.quantiles(taken[ROUND_TRIPS // 10 :], n=100)
    return cuts[49], cuts[98]


def _chunks(rows: int, chunk_rows: int) -> list[pa.RecordBatch]:
    return slotted(table(rows, GROUPS).combine_chunks().to_batches(max_chunksize=chunk_rows))


def _at_once(streams: int, run: Callable[[], object]) -> None:
    with ThreadPoolExecutor(streams) as pool:
        for done in [pool.submit(run) for _ in range(streams)]:
            done.result()


def _plain(url: str, chunks: list[pa.RecordBatch], *, echoes: bool) -> None:
    client = fl.connect(url)
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b""))
    writer.begin(COLUMNS)
    metadata = encode(Chunk(chunks[0]), COLUMNS).metadata
    for chunk in chunks:
        writer.write_with_metadata(chunk, metadata)
        if echoes:
            reader.read_chunk()
    writer.write_with_metadata(chunks[0].slice(0, 0), metadata)
    reader.read_chunk()
    writer.done_writing()
    writer.close()
    client.close()


def main() -> None:
    """Run a plain server until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m bench.exchange")
    parser.add_argument("kind", choices=[DRAIN, ECHO])
    server = Plain(echoes=parser.parse_args().kind == ECHO)
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
