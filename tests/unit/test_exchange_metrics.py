"""The account of an exchange: what it holds, by which the largest one is found."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Forget, Open, Returns
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.functions import Call, Registry, udaf
from foldflight.server.exchanges import ExchangeMetrics
from foldflight.server.ops.metrics import Metrics
from tests.simulation.workloads import LIMITS

COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.string()), ("emit", pa.bool_())])


@udaf(input_types=["STRING"], result_type="BIGINT", state_type="ARRAY<STRING>")
class Newest:
    """The length of the last text; its states can grow."""

    def create_accumulator(self) -> list[Any]:
        return []

    def accumulate(self, accumulator: list[Any], value: str) -> None:
        accumulator[:] = [value]

    def get_value(self, accumulator: list[Any]) -> int:
        return len(accumulator[0]) if accumulator else 0


def test_bytes_that_have_become_states_are_not_counted_again() -> None:
    """An exchange without barriers weighs what it holds, and not all rows that it ever got."""
    open_request = Open(
        (Call("newest", ("v",)),), COLUMNS, Returns(states=False, outputs=False), row_outputs=True, emits=True
    )
    exchange = ServerExchange(open_request, Registry.load([Newest]), limits=LIMITS, server_id="s")
    exchange_metrics = ExchangeMetrics(Metrics(), open_request, exchange)

    def send(frame: Any, size: int = 0) -> int:
        for _ in exchange.handle(frame):
            pass
        exchange_metrics.count(Message(b"", None, size), frame, 0.0)
        return exchange_metrics.weight[0]

    chunk = Chunk(
        pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), pa.array(["x" * 100]), pa.array([True])], schema=COLUMNS)
    )
    assert [send(chunk, 5000) for _ in range(3)] == [5000, 10_000, 15_000]
    assert send(Checkpoint(if_reopen=True)) == 15_000, "such a checkpoint saves nothing"
    assert 100 <= send(Checkpoint()) < 1000
    assert send(chunk, 5000) > 5000
    assert send(Forget(pa.array([0], pa.int32()))) == 0
    assert send(chunk, 5000) == 5000
    assert send(Barrier(1)) == 5000, "the barrier returns no states"
