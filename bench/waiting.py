"""A model that takes 20 ms for a call, whatever its batch: streams of single rows, one of them and eight at once.

The server, a process of its own, runs one call at a time, as for a model on a device. Rows of the streams that wait
together share a call. Each stream is one exchange, which sends a row when it has the answer to the last one. Figures
are medians of alternating rounds: the rates, and how much longer a row of eight streams takes than a row of one alone,
beside `batch_wait_s`, for which a call waits for further rows at most.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa

from bench.data import Figure, Sizes
from foldflight.cli.demo import server_process
from foldflight.client import FlightTransport, Transport
from foldflight.exchange.frames import Open
from foldflight.functions import Step, StepArgument, udf

SUITE = "waiting"
ONE, EIGHT, BOUND = "one stream", "eight streams", "batch_wait_s"
CALL_S, WAIT_S = 0.02, 0.005
ROWS, ROUNDS = 50, 9
STREAMS = {ONE: 1, EIGHT: 8}
COLUMNS = pa.schema([("x", pa.int64())])
REQUEST = Open((), COLUMNS, steps=(Step("model", (StepArgument("x"),)),), outputs=(0,))


@udf(batch=32, concurrency=1, batch_wait_s=WAIT_S)
async def model(xs: list[int]) -> list[int]:
    await asyncio.sleep(CALL_S)
    return xs


def measure(_: Sizes) -> Iterator[Figure]:
    """Measure rows per second over all streams, and the time that a row takes longer than in one stream."""
    with (
        tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder,
        server_process(Path(folder) / "server.log", __name__) as url,
    ):
        transport = FlightTransport([url], deadline_s=60)
        rounds = [{name: _seconds(transport, streams) for name, streams in STREAMS.items()} for _ in range(ROUNDS)]
    for subject, streams in STREAMS.items():
        rate = statistics.median(streams / each[subject] for each in rounds)
        yield Figure(SUITE, "single rows, 20 ms a call", subject, rate, "rows/s")
    added_s = statistics.median(each[EIGHT] - each[ONE] for each in rounds)
    for subject, seconds in ((BOUND, WAIT_S), (EIGHT, added_s)):
        yield Figure(SUITE, "time of a row beyond that of one stream", subject, 1e6 * seconds, "us")


def _seconds(transport: Transport, streams: int) -> float:
    """Return the time in which each stream has the answer to one row."""
    opened = Barrier(streams + 1)

    def stream(_: int) -> None:
        with transport.open(REQUEST) as exchange:
            opened.wait()
            for number in range(ROWS):
                exchange.chunk(pa.RecordBatch.from_arrays([pa.array([number])], schema=COLUMNS))
                assert exchange.step_outputs().column(0).to_pylist() == [number]

    with ThreadPoolExecutor(streams) as pool:
        running = pool.map(stream, range(streams))
        opened.wait()
        began_s = time.perf_counter()
        list(running)
        return (time.perf_counter() - began_s) / ROWS
