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
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from foldflight.client import EmbeddedTransport, OpenExchange, Transport
from foldflight.client.failover import SurvivingLink
from foldflight.client.link import Resolve
from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.failover.circuits import Circuits
from foldflight.exchange.failover.coordinator import Coordinator
from foldflight.exchange.failover.steps import FailoverBounds, FailoverStats
from foldflight.exchange.frames import FunctionInfo, Open, Opened
from foldflight.exchange.serving import describe
from foldflight.fold import ERROR
from foldflight.functions import Registry
from foldflight.testing.simulation.functions import functions
from foldflight.testing.simulation.workloads import LIMITS, PARTITIONS_MAX, Workload, limits_of, workload_of
from foldflight.testing.simulation.world import EngineCrashed, World

__all__ = ["Report", "SimulatedTransport", "run_seed"]

_KEY: Final = b"the key of the oracle, never compared"
# An upper bound for the states of so few groups, including outdated ones, and one chunk.
_KEPT_BYTES_MAX: Final = 64 << 10
# After this time, servers have ended all abandoned exchanges as idle.
_LEFTOVERS_S: Final = 8.0


@dataclass(frozen=True)
class _Commit:
    """The committed results of an epoch."""

    epoch: int
    results: list[dict[str, Any]]
    rows: list[list[dict[str, Any]]]
    logs: list[str]


@dataclass
class Report:
    """A summary of one seed.

    Args:
        seed: The seed.
        seconds: Simulated time.
        steps: Steps of the simulation.
        commits: Epochs that were committed.
        retries: Partitions that were restarted, because failover gave up or the engine crashed.
        harms: How often each fault was injected.
        stats: The statistics of failover over all exchanges.
    """

    seed: int
    seconds: float = 0.0
    steps: int = 0
    commits: int = 0
    retries: int = 0
    harms: Counter[str] = field(default_factory=Counter)
    stats: FailoverStats = field(default_factory=FailoverStats)


class SimulatedTransport:
    """The transport of one engine process to simulated servers.

    Args:
        world: The simulated servers.
        registry: The functions, as they were when the query was planned.
        bounds: The limits of failover.
    """

    def __init__(self, world: World, registry: Registry, bounds: FailoverBounds) -> None:
        self.stats: list[FailoverStats] = []
        self._world = world
        self._registry = registry
        self._bounds = bounds
        self._circuits = Circuits(world.random.random, first_turn=world.random.randrange(100))

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:  # noqa: ARG002 - part of the interface
        """Return the functions of the servers."""
        return [FunctionInfo.of(self._registry[name]) for name in sorted(self._registry)]

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return the Opened that a server would answer."""
        return describe(open, self._registry, LIMITS, "plan")

    def open(self, open: Open, *, resolve: Resolve | None = None) -> OpenExchange:  # noqa: A002
        """Open an exchange with failover over the simulated servers."""
        coordinator = Coordinator(open, self._world.urls, self._circuits, bounds=self._bounds)
        self.stats.append(coordinator.stats)
        dial = functools.partial(self._world.dial, resolve=resolve)
        return OpenExchange(SurvivingLink(coordinator, dial, self._world), open)


class _Partition:
    """The engine's side of one workload, with what it has committed."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.commits: list[_Commit] = []
        self.began_s = 0.0
        self._states: dict[int, pa.RecordBatch] = {}
        self._loaded: set[int] = set()

    @property
    def is_done(self) -> bool:
        return len(self.commits) == len(self.workload.epochs)

    def run(self, transport: Transport) -> Generator[OpenExchange, None, None]:
        """Continue after the last commit. Yields between frames, so that other partitions can run."""
        self._loaded = set()
        with transport.open(self.workload.opening) as exchange:
            sent_ahead = 0
            for number in range(len(self.commits) + 1, len(self.workload.epochs) + 1):
                epoch = self.workload.epochs[number - 1]
                rows: list[pa.RecordBatch] = []
                for chunk in epoch.chunks[sent_ahead:]:
                    self._send(exchange, chunk)
                    if self.workload.opening.row_outputs and epoch.is_eager:
                        rows.append(exchange.row_outputs())
                    yield exchange
                exchange.barrier(number)
                sent_ahead = self._run_ahead(exchange, number)
                yield exchange
                if self.workload.opening.row_outputs and not epoch.is_eager:
                    rows += [exchange.row_outputs() for _ in epoch.chunks]
                self._commit(exchange, number, exchange.results(number), rows)
                yield exchange
                gone = [slot for slot in epoch.forgets if slot in self._loaded]
                if gone:
                    exchange.forget(pa.array(gone, pa.int32()))
                    self._loaded.difference_update(gone)

    def _send(self, exchange: OpenExchange, chunk: pa.RecordBatch) -> None:
        touched = set(chunk.column("slot").to_pylist())
        cold = sorted(slot for slot in touched - self._loaded if slot in self._states)
        self._loaded |= touched
        if cold:
            stored = pa.Table.from_batches([self._states[slot] for slot in cold])
            names = ["slot", *(name for name in stored.column_names if name.startswith("state_"))]
            exchange.states(stored.select(names).combine_chunks().to_batches()[0])
            if self.workload.opening.initial_outputs:
                found = exchange.initial_outputs()
                if self.workload.opening.returns.outputs:
                    assert _outputs(found) == _outputs(stored), (
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
        failed = _failed(results)
        self._loaded -= failed
        if self.workload.opening.returns.states:
            for place, slot in enumerate(slots):
                if slot not in failed:
                    self._states[slot] = pa.Table.combine_chunks(results.slice(place, 1)).to_batches()[0]
        logs = [f"{line.function} {line.slot} {line.message} {dict(line.fields)}" for line in exchange.take_logs()]
        self.commits.append(_Commit(number, _readable(results), [_outputs(batch) for batch in rows], logs))


def _failed(results: pa.Table) -> set[int]:
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
        AssertionError: A property does not hold. `python -m foldflight.testing.simulation --seed N` reproduces it.
    """
    chance = random.Random(f"scenario {seed}")  # noqa: S311  (not for secrets)
    registry = functions()
    bounds = FailoverBounds(
        patience_s=chance.choice([3.0, 20.0]),
        replay_bytes_max=chance.choice([600, 3_000, 1 << 20]),
        ask_s=0.01 if seed % 2 else 1.0,
    )
    emitting = random.Random(f"emits {seed}")  # noqa: S311  (not for secrets)
    partitions = [_Partition(workload_of(chance, emitting, registry)) for _ in range(chance.randint(1, PARTITIONS_MAX))]
    world = World(
        seed, registry, functions("2"), limits_of(chance), servers=chance.choice([1, 2, 2, 3]), is_calm=is_calm
    )
    report = Report(seed)
    try:
        _run(partitions, world, registry, bounds, report, chance)
        _compare(partitions, registry)
        world.heals_at_s = min(world.heals_at_s, world.now_s())
        world.rest_until(world.now_s() + _LEFTOVERS_S)
        assert not world.open_streams, f"servers still hold {world.open_streams} exchanges"
    except AssertionError as error:
        trace = "\n  ".join(world.trace)
        raise AssertionError(
            f"seed {seed}: {error}\nreproduce: python -m foldflight.testing.simulation --seed {seed}\n  {trace}"
        ) from error
    report.seconds, report.steps, report.harms = world.now_s(), world.steps, world.harms
    return report


def _run(
    partitions: list[_Partition],
    world: World,
    registry: Registry,
    bounds: FailoverBounds,
    report: Report,
    chance: random.Random,
) -> None:
    """Run the partitions interleaved at random, and restart those that fail, until all have committed all epochs."""
    transport = SimulatedTransport(world, registry, bounds)
    runs: dict[int, Generator[OpenExchange, None, None]] = {}
    while unfinished := [place for place, each in enumerate(partitions) if not each.is_done or place in runs]:
        place = chance.choice(unfinished)
        partition = partitions[place]
        if place not in runs:
            partition.began_s = world.now_s()
            runs[place] = partition.run(transport)
        try:
            exchange = next(runs[place], None)
            if exchange is None:
                del runs[place]
            else:
                _check_bounds(exchange, bounds)
        except EngineCrashed:
            # All partitions are in one process. Its knowledge of the servers is lost, too.
            for run in runs.values():
                run.close()
            runs.clear()
            report.retries += len(unfinished)
            _add(report.stats, transport)
            transport = SimulatedTransport(world, registry, bounds)
        except FoldflightError as error:
            world.say(f"partition {place} failed: {error.code}")
            if partition.began_s > world.heals_at_s + _LEFTOVERS_S or not _has_reason(error):
                raise AssertionError(f"partition {place} failed without a reason: {error}") from error
            del runs[place]
            report.retries += 1
    _add(report.stats, transport)
    report.commits = sum(len(partition.commits) for partition in partitions)


def _has_reason(error: FoldflightError) -> bool:
    """Return whether failover gave up after servers had been lost or had refused the exchange."""
    given_up = isinstance(error, (RetryableError, RejectedError))
    return given_up and any(" lost " in step or " refused by " in step for step in error.story)


def _check_bounds(exchange: OpenExchange, bounds: FailoverBounds) -> None:
    assert isinstance(exchange.carrier, SurvivingLink)
    held, most = exchange.carrier.coordinator.held_bytes, bounds.replay_bytes_max + _KEPT_BYTES_MAX
    assert held <= most, f"{held} bytes are kept for failover; the bound is {most}"


def _compare(partitions: list[_Partition], registry: Registry) -> None:
    oracle = EmbeddedTransport(registry, state_key=_KEY)
    for place, partition in enumerate(partitions):
        expected = _Partition(partition.workload)
        for _ in expected.run(oracle):
            pass
        assert [commit.epoch for commit in partition.commits] == [commit.epoch for commit in expected.commits]
        for found, wanted in zip(partition.commits, expected.commits, strict=True):
            for name in ("results", "rows", "logs"):
                ours, theirs = getattr(found, name), getattr(wanted, name)
                assert ours == theirs, (
                    f"partition {place}, epoch {found.epoch}: {name} differ:\n  found  {ours}\n  wanted {theirs}"
                )


def _add(stats: FailoverStats, transport: SimulatedTransport) -> None:
    for each in transport.stats:
        stats.losses += each.losses
        stats.replays += each.replays
        stats.rows_refolded += each.rows_refolded
        stats.checkpoints += each.checkpoints
        stats.stall_s_max = max(stats.stall_s_max, each.stall_s_max)
