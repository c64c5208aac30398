"""A model that takes 20 ms for a call, whatever its batch: streams of single rows, one of them and eight at once.

The server runs one call at a time, as for a model on a device. Rows of the streams that wait together share a call.
Each stream is one exchange, which sends a row when it has the answer to the last one. Beside them is one stream on a
function that is not async, which is what one row at a time costs without the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa

from bench.data import Figure, Sizes
from foldflight.client import FlightTransport, Transport
from foldflight.exchange.frames import Open
from foldflight.functions import Registry, Step, StepArgument, udf
from foldflight.server.run.lifecycle import serving

SUITE = "waiting"
ONE, EIGHT, PLAIN = "one stream", "eight streams", "one stream, not async"
CALL_S = 0.02
ROWS = 100
STREAMS = 8
COLUMNS = pa.schema([("x", pa.int64())])


@udf(batch=32, concurrency=1)
async def model(xs: list[int]) -> list[int]:
    await asyncio.sleep(CALL_S)
    return xs


@udf(compile=False)
def plain(x: int) -> int:
    time.sleep(CALL_S)
    return x


def measure(_: Sizes) -> Iterator[Figure]:
    """Measure rows per second over all streams."""
    with serving(Registry.load([model, plain])) as server:
        transport = FlightTransport([server.url], deadline_s=60)
        for subject, function, streams in ((PLAIN, "plain", 1), (ONE, "model", 1), (EIGHT, "model", STREAMS)):
            rate = streams * ROWS / _seconds(transport, function, streams)
            yield Figure(SUITE, "single rows, 20 ms a call", subject, rate, "rows/s")


def _seconds(transport: Transport, function: str, streams: int) -> float:
    """Return the time in which each stream sends its rows, after all have been opened."""
    opened = Barrier(streams + 1)
    request = Open((), COLUMNS, steps=(Step(function, (StepArgument("x"),)),), outputs=(0,))

    def stream(_: int) -> None:
        with transport.open(request) as exchange:
            opened.wait()
            for number in range(ROWS):
                exchange.chunk(pa.RecordBatch.from_arrays([pa.array([number])], schema=COLUMNS))
                assert exchange.mapped().column(0).to_pylist() == [number]

    with ThreadPoolExecutor(streams) as pool:
        running = pool.map(stream, range(streams))
        opened.wait()
        began_s = time.perf_counter()
        list(running)
        return time.perf_counter() - began_s
