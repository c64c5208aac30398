"""The scenario of a seed: partitions of an engine that run against simulated servers with faults, and an oracle.

A partition behaves like a stream. In each epoch rows arrive for some groups, states of groups that are not loaded are
loaded, and some groups are forgotten. The results of an epoch are committed, and after a crash the partition continues
after its last commit. The oracle runs the same workload with an embedded fold, without faults.

These properties are checked: each epoch is committed once, with the oracle's results, row outputs and log records; a
loaded group has the output that was committed; the memory for failover is bounded; servers hold no exchange at the end;
and the workload ends after the last fault.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.client import EmbeddedTransport, OpenExchange, Transport
from foldflight.client.failover import FailoverExchange
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.fold.failures import ERROR
from foldflight.functions import Registry
from tests.simulation.functions import functions
from tests.simulation.running import Report, judge, run_partitions
from tests.simulation.workloads import PARTITIONS_MAX, Workload, limits_of, workload_of
from tests.simulation.world import World

__all__ = ["run_seed"]

_KEY: Final = b"the key of the oracle, never compared"
# An upper bound for the states of so few groups, including outdated ones, and one chunk.
_STORED_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True)
class _Commit:
    """The committed results of an epoch."""

    epoch: int
    results: list[dict[str, Any]]
    rows: list[list[dict[str, Any]]]
    logs: list[str]


class _Partition:
    """The engine's side of one workload, with what it has committed."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.commits: list[_Commit] = []
        self._states: dict[int, pa.RecordBatch] = {}
        self._loaded: set[int] = set()

    @property
    def is_done(self) -> bool:
        return len(self.commits) == len(self.workload.epochs)

    def run(self, transport: Transport) -> Generator[OpenExchange, None, None]:
        """Continue after the last commit. Yields between frames, so that other partitions can run."""
        self._loaded = set()
        with transport.open(self.workload.open_request) as exchange:
            sent_ahead = 0
            for number in range(len(self.commits) + 1, len(self.workload.epochs) + 1):
                epoch = self.workload.epochs[number - 1]
                rows: list[pa.RecordBatch] = []
                for chunk in epoch.chunks[sent_ahead:]:
                    self._send(exchange, chunk)
                    if self.workload.open_request.row_outputs and epoch.is_eager:
                        rows.append(exchange.row_outputs())
                    yield exchange
                exchange.barrier(number)
                sent_ahead = self._run_ahead(exchange, number)
                yield exchange
                if self.workload.open_request.row_outputs and not epoch.is_eager:
                    rows += [exchange.row_outputs() for _ in epoch.chunks]
                self._commit(exchange, number, exchange.results(number), rows)
                yield exchange
                forgotten_slots = [slot for slot in epoch.forgets if slot in self._loaded]
                if forgotten_slots:
                    exchange.forget(pa.array(forgotten_slots, pa.int32()))
                    self._loaded.difference_update(forgotten_slots)

    def _send(self, exchange: OpenExchange, chunk: pa.RecordBatch) -> None:
        touched_slots = set(chunk.column("slot").to_pylist())
        cold = sorted(slot for slot in touched_slots - self._loaded if slot in self._states)
        self._loaded |= touched_slots
        if cold:
            stored_states = pa.Table.from_batches([self._states[slot] for slot in cold])
            names = ["slot", *(name for name in stored_states.column_names if name.startswith("state_"))]
            exchange.states(stored_states.select(names).combine_chunks().to_batches()[0])
            if self.workload.open_request.initial_outputs:
                result = exchange.initial_outputs()
                if self.workload.open_request.returns.outputs:
                    assert _outputs(result) == _outputs(stored_states), (
                        f"the outputs of loaded groups {cold} differ from those committed"
                    )
        exchange.chunk(chunk)

    def _run_ahead(self, exchange: OpenExchange, number: int) -> int:
        """Send a chunk of the next epoch before the results of this one are read. Return how many chunks were sent."""
        if not self.workload.runs_ahead or number == len(self.workload.epochs):
            return 0
        chunk = self.workload.epochs[number].chunks[0]
        if self.workload.epochs[number - 1].forgets or set(chunk.column("slot").to_pylist()) - self._loaded:
            return 0
        exchange.chunk(chunk)
        return 1

    def _commit(self, exchange: OpenExchange, number: int, results: pa.Table, rows: list[pa.RecordBatch]) -> None:
        slots = results.column("slot").to_pylist()
        assert slots == sorted(set(slots)), f"slots of epoch {number} are not ascending: {slots}"
        failed_slots = _failed_slots(results)
        self._loaded -= failed_slots
        if self.workload.open_request.returns.states:
            for place, slot in enumerate(slots):
                if slot not in failed_slots:
                    self._states[slot] = pa.Table.combine_chunks(results.slice(place, 1)).to_batches()[0]
        # Rows behind the one that fails are folded by the other calls if they are in the same chunk, and small chunks
        # may be sent together. So the log lines of a failed group depend on where chunks end.
        lines = [line for line in exchange.take_logs() if line.slot not in failed_slots]
        logs = [f"{line.function} {line.slot} {line.message} {dict(line.fields)}" for line in lines]
        self.commits.append(_Commit(number, _readable(results), [_outputs(batch) for batch in rows], logs))


def _failed_slots(results: pa.Table) -> set[int]:
    """Return the slots with isolated errors. Their previous states must be loaded again."""
    if ERROR not in results.column_names:
        return set()
    return set(results.filter(results[ERROR].is_valid())["slot"].to_pylist())


def _readable(results: pa.Table) -> list[dict[str, Any]]:
    """Return results as Python values, without pickled states: equal accumulators may have different pickles."""
    pickles = [name for name in results.column_names if results.schema.field(name).type == pa.binary()]
    return list(results.drop_columns(pickles).to_pylist())


def _outputs(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    return list(batch.select([name for name in batch.schema.names if name.startswith("output_")]).to_pylist())


# -- a seed ------------------------------------------------------------------------------------------------------------


def run_seed(seed: int, *, is_calm: bool = False) -> Report:
    """Run the scenario of a seed.

    Args:
        seed: The seed.
        is_calm: Whether no faults are injected.

    Raises:
        AssertionError: A property does not hold. `python -m tests.simulation --seed N` reproduces it.
    """
    chance = random.Random(f"scenario {seed}")
    registry = functions()
    bounds = FailoverBounds(
        patience_s=chance.choice([3.0, 20.0]),
        replay_bytes_max=chance.choice([3_000, 15_000, 1 << 20]),
        ask_s=0.01 if seed % 2 else 1.0,
    )
    emit_rng = random.Random(f"emits {seed}")
    partitions = [_Partition(workload_of(chance, emit_rng, registry)) for _ in range(chance.randint(1, PARTITIONS_MAX))]
    world = World(
        seed, registry, functions("2"), limits_of(chance), servers=chance.choice([1, 2, 2, 3]), is_calm=is_calm
    )
    report = Report(seed)
    with judge(f"seed {seed}", world, report, remedy=f"reproduce: python -m tests.simulation --seed {seed}\n"):
        check = functools.partial(_check_bounds, bounds)
        run_partitions(partitions, world, registry, bounds, report, chance, check=check)
        report.commits = sum(len(partition.commits) for partition in partitions)
        _compare(partitions, registry)
    return report


def _check_bounds(bounds: FailoverBounds, exchange: OpenExchange) -> None:
    assert isinstance(exchange, FailoverExchange)
    retained_bytes, most = exchange.coordinator.retained_bytes, bounds.replay_bytes_max + _STORED_BYTES_MAX
    assert retained_bytes <= most, f"{retained_bytes} bytes are kept for failover; the bound is {most}"


def _compare(partitions: list[_Partition], registry: Registry) -> None:
    oracle = EmbeddedTransport(registry, state_key=_KEY)
    for place, partition in enumerate(partitions):
        expected = _Partition(partition.workload)
        for _ in expected.run(oracle):
            pass
        assert [commit.epoch for commit in partition.commits] == [commit.epoch for commit in expected.commits]
        for result, expected_commit in zip(partition.commits, expected.commits, strict=True):
            for name in ("results", "rows", "logs"):
                ours, theirs = getattr(result, name), getattr(expected_commit, name)
                assert ours == theirs, (
                    f"partition {place}, epoch {result.epoch}: {name} differ:\n  found  {ours}\n  wanted {theirs}"
                )
