"""Exchanges of scalar and table functions over a world that harms its servers; the oracle is Python itself.

What must hold: each chunk is answered once, in order, with the oracle's rows; answered chunks are not kept; servers are
left with nothing; and once the faults are over, it ends.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, Final

import pyarrow as pa

from foldflight.client import OpenExchange
from foldflight.client.failover import FailoverExchange
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open
from foldflight.exchange.server_exchange import describe
from foldflight.functions import FunctionContext, Registry, Step, StepArgument, udf, udtf
from tests.simulation.running import Report, SimulatedTransport, judge, run_partitions
from tests.simulation.workloads import LIMITS, limits_of
from tests.simulation.world import World

__all__ = ["run_scalar_seed"]

_COLUMNS: Final = pa.schema([("v", pa.int64())])


def _registry(version: str = "1") -> Registry:
    @udf(version=version)
    def doubled(x: int) -> int:
        return 2 * x

    @udtf(name="steps", result_types={"n": "BIGINT"}, version=version)
    class Steps:
        def open(self, context: FunctionContext) -> None:
            self.context = context

        def eval(self, x: int) -> list[int]:
            self.context.logger.info("steps", x=x)
            return list(range(x % 4))

    return Registry.load([doubled, Steps])


def _open_request(chance: random.Random) -> Open:
    value = StepArgument(column="v")
    both = (Step("doubled", (value,)), Step("doubled", (StepArgument(step=0),)))
    if chance.random() < 0.5:
        return Open((), _COLUMNS, steps=both, outputs=(1, 0))
    return Open((), _COLUMNS, steps=(*both, Step("steps", (value,))), outputs=(1, 2))


def _expected_rows(open_request: Open, values: list[int]) -> list[dict[str, Any]]:
    if len(open_request.steps) == 2:
        return [{"output_0": 4 * value, "output_1": 2 * value} for value in values]
    return [
        {"row": place, "output_0": 4 * value, "output_1": {"n": n}}
        for place, value in enumerate(values)
        for n in range(value % 4)
    ]


class _Partition:
    """The engine's side of one program: chunks and the answers so far."""

    def __init__(self, chance: random.Random) -> None:
        self.open_request = _open_request(chance)
        # Some chunks are larger than a message of a server.
        sizes = [chance.choice([0, 1, 5, 40, 400]) for _ in range(chance.randint(1, 10))]
        self.chunks = [[chance.randrange(1000) for _ in range(size)] for size in sizes]
        self.answers: list[list[dict[str, Any]]] = []

    @property
    def is_done(self) -> bool:
        return len(self.answers) == len(self.chunks)

    def run(self, transport: SimulatedTransport) -> Generator[OpenExchange, None, None]:
        """Go on with the first chunk that has no answer; yields between frames."""
        with transport.open(self.open_request) as exchange:
            for values in self.chunks[len(self.answers) :]:
                exchange.chunk(pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=_COLUMNS))
                yield exchange
                self.answers.append(exchange.step_outputs().to_pylist())
                assert isinstance(exchange, FailoverExchange)
                assert exchange.coordinator.retained_bytes == 0, "an answered chunk is kept"
                yield exchange


def run_scalar_seed(seed: int, *, is_calm: bool = False) -> Report:
    """Run what follows from a seed.

    Args:
        seed: The seed.
        is_calm: Whether nothing bad happens.

    Raises:
        AssertionError: Something that must hold does not, with the seed.
    """
    chance = random.Random(f"mapping {seed}")
    registry = _registry()
    partitions = [_Partition(chance) for _ in range(chance.randint(1, 3))]
    world = World(seed, registry, _registry("2"), limits_of(chance), servers=chance.choice([1, 2, 3]), is_calm=is_calm)
    report = Report(seed)
    bounds = FailoverBounds(patience_s=chance.choice([3.0, 20.0]), ask_s=0.01)
    for partition in partitions:
        open_reply = describe(partition.open_request, registry, LIMITS, "plan")
        assert open_reply.limits.message_bytes_max == LIMITS.message_bytes_max
        partition.open_request = partition.open_request.pin(open_reply.fingerprints)
    with judge(f"mapping seed {seed}", world, report):
        run_partitions(partitions, world, registry, bounds, report, chance)
        report.commits = sum(len(partition.answers) for partition in partitions)
        for place, partition in enumerate(partitions):
            expected_rows = [_expected_rows(partition.open_request, values) for values in partition.chunks]
            assert partition.answers == expected_rows, (
                f"partition {place}: found {partition.answers}, wanted {expected_rows}"
            )
    return report
