"""Many exchanges: none leaves resources, too many are refused, large states stay within their limits."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight import RejectedError, RetryableError
from foldflight.client import FlightTransport
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.functions.query.call import Call
from tests.wire.kit import DEADLINE_S, ServerProcess, end_epoch, eventually, open_request, rows

Fork = Callable[..., ServerProcess]
AVERAGE = Call("weighted_avg", ("value", "weight"))
COUNT = Call("count", ())


def resources_of(process: int) -> dict[str, int]:
    """Return threads, open files and resident KiB of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        "threads": int(status["Threads"]),
        "files": sum(1 for _ in Path(f"/proc/{process}/fd").iterdir()),
        "kib": int(status["VmRSS"].split()[0]),
    }


def one_exchange(transport: FlightTransport, number: int) -> None:
    """Run an exchange, and end it in one of the possible ways."""
    with transport.open(open_request(AVERAGE)) as exchange:
        exchange.chunk(rows((0, 0, 4, 1), (1, 0, 6, 1)))
        if number % 10 == 0:
            return  # left without a barrier
        assert end_epoch(exchange, 1)["output_0"].to_pylist() == [4, 6]
        if number % 10 == 1:
            exchange.forget(pa.array([0, 1], pa.int32()))


def run_many(transport: FlightTransport, count: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(one_exchange, transport, number) for number in range(count)]:
            future.result()


@pytest.mark.slow
def test_ten_thousand_exchanges_leave_nothing(fork: Fork) -> None:
    """After ten thousand exchanges, server and client have the threads, files and memory of a thousand."""
    server = fork()
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
    run_many(transport, 1_000)
    resources_before = {process: resources_of(process) for process in (server.process.pid, os.getpid())}
    run_many(transport, 10_000)
    for process, before in resources_before.items():

        def is_back(process: int = process, before: dict[str, int] = before) -> bool:
            after = resources_of(process)
            return after["threads"] <= before["threads"] + 4 and after["files"] <= before["files"] + 4

        assert eventually(is_back), (before, resources_of(process))
        assert resources_of(process)["kib"] <= before["kib"] + 48 * 1024


@pytest.mark.slow
def test_hundreds_of_exchanges_may_be_open_at_once(fork: Fork) -> None:
    """exchanges_max exchanges are open at once over one connection; further ones are OVERLOADED, and none is lost."""
    server = fork(exchanges_max=150, http_port=0)
    # A place that is free later would be waited for: not here.
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=FailoverBounds(patience_s=0.01))
    exchanges: list[Any] = []
    refusals = []
    for _ in range(200):
        try:
            exchanges.append(transport.open(open_request(COUNT)))
        except RetryableError as error:
            refusals.append(error.code)
    assert len(exchanges) == 150
    assert refusals == ["OVERLOADED"] * 50
    for number, exchange in enumerate(exchanges):
        exchange.chunk(rows(*[(0, 0)] * (number % 5 + 1)))
    random.Random(1).shuffle(exchanges)
    total = 0
    for exchange in exchanges:
        with exchange:
            total += end_epoch(exchange, 1)["output_0"][0].as_py()
    assert total == sum(number % 5 + 1 for number in range(150))
    assert eventually(lambda: _opens(transport))


def _opens(transport: FlightTransport) -> bool:
    try:
        transport.open(open_request(COUNT)).close()
    except RetryableError:
        return False
    return True


@pytest.mark.slow
def test_a_million_slots_have_right_results(fork: Fork) -> None:
    """All results of a million groups in one exchange are right, and memory is measured."""
    server = fork()
    transport = FlightTransport([server.url], deadline_s=120)
    before = resources_of(server.process.pid)["kib"]
    slots = np.arange(1 << 20, dtype=np.int32)
    with transport.open(open_request(AVERAGE)) as exchange:
        for part in np.array_split(slots, 8):
            ones = np.ones(len(part))
            columns = [part, ones * 0, part * 2, ones, ones]
            arrays = [pa.array(each).cast(field.type) for each, field in zip(columns, exchange_columns(), strict=True)]
            exchange.chunk(pa.RecordBatch.from_arrays(arrays, schema=exchange_columns()))
        results = end_epoch(exchange, 1)
        assert results.num_rows == 1 << 20
        assert results["output_0"].to_numpy().tolist() == (slots * 2).tolist()
        peak = resources_of(server.process.pid)["kib"]
    assert peak - before < 1_500 * 1024
    assert eventually(lambda: resources_of(server.process.pid)["threads"] < 60)


def exchange_columns() -> pa.Schema:
    return open_request(AVERAGE).columns


def test_states_of_megabytes_keep_their_bound(fork: Fork) -> None:
    """A state beyond state_bytes_max is refused with the name of the limit, also if it grew from rows."""
    server = fork(state_bytes_max="64KiB")
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
    distinct = Call("count", ("value",), distinct=True)
    with transport.open(open_request(distinct)) as exchange:
        exchange.chunk(rows(*[(0, 0, value) for value in range(2_000)]))
        assert end_epoch(exchange, 1)["output_0"].to_pylist() == [2_000]
    with transport.open(open_request(distinct)) as exchange:
        exchange.chunk(rows(*[(0, 0, value) for value in range(20_000)]))
        with pytest.raises(RejectedError, match="state_bytes_max") as excinfo:
            end_epoch(exchange, 1)
    assert excinfo.value.code == "LIMIT"
