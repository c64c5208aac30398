"""Partitions of an engine that run against simulated servers, interleaved at random, until all have committed.

The scenarios differ in what a partition sends and in their oracle. Their common part is here: the transport with
failover, restarts after crashes and after failover that gave up, and the checks after the last fault.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from foldflight.client import OpenExchange
from foldflight.client.connection import Resolve
from foldflight.client.failover import FailoverExchange
from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.failover.coordinator import Circuits, Coordinator, FailoverBounds, FailoverStats
from foldflight.exchange.frames import FunctionInfo, Open, Opened
from foldflight.exchange.server_exchange import describe
from foldflight.functions import Registry
from tests.simulation.workloads import LIMITS
from tests.simulation.world import EngineCrashed, World

__all__ = ["Partition", "Report", "SimulatedTransport", "judge", "run_partitions"]

# After this time, servers have ended all abandoned exchanges as idle.
_LEFTOVERS_S: Final = 8.0


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
        self.otlp_endpoint = None
        self.stats: list[FailoverStats] = []
        self._world = world
        self._registry = registry
        self._bounds = bounds
        self._circuits = Circuits(world.random.random, first_turn=world.random.randrange(100))

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return the functions of the servers."""
        return [FunctionInfo.of(self._registry[name]) for name in sorted(self._registry)]

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return the Opened that a server would answer."""
        return describe(open, self._registry, LIMITS, "plan")

    def open(self, open: Open, *, resolve: Resolve | None = None) -> OpenExchange:  # noqa: A002
        """Open an exchange with failover over the simulated servers."""
        world = self._world
        coordinator = Coordinator(open, world.urls, self._circuits, bounds=self._bounds, now_s=world.now_s)
        self.stats.append(coordinator.stats)
        dial = functools.partial(self._world.dial, resolve=resolve)
        return FailoverExchange(open, coordinator, dial, self._world)


class Partition(Protocol):
    """The engine's side of one workload, with what it has committed."""

    @property
    def is_done(self) -> bool:
        """Whether everything has been committed."""

    def run(self, transport: SimulatedTransport, /) -> Generator[OpenExchange, None, None]:
        """Continue after the last commit. Yields between frames, so that other partitions can run."""


def run_partitions(
    partitions: Sequence[Partition],
    world: World,
    registry: Registry,
    bounds: FailoverBounds,
    report: Report,
    chance: random.Random,
    *,
    check: Callable[[OpenExchange], None] = lambda _: None,
) -> None:
    """Run the partitions interleaved at random, and restart those that fail, until all are done.

    Args:
        partitions: The partitions.
        world: The simulated servers.
        registry: The functions, as they were when the query was planned.
        bounds: The limits of failover.
        report: Gets the retries and the statistics of failover.
        chance: Draws which partition goes on.
        check: Called with the exchange after each step of its partition.

    Raises:
        AssertionError: A partition failed though no server was lost, or after the last fault.
    """
    transport = SimulatedTransport(world, registry, bounds)
    runs: dict[int, Generator[OpenExchange, None, None]] = {}
    began_s: dict[int, float] = {}
    while open_places := [place for place, each in enumerate(partitions) if not each.is_done or place in runs]:
        place = chance.choice(open_places)
        if place not in runs:
            runs[place], began_s[place] = partitions[place].run(transport), world.now_s()
        try:
            exchange = next(runs[place], None)
            if exchange is None:
                del runs[place]
            else:
                check(exchange)
        except EngineCrashed:
            # All partitions are in one process. Its knowledge of the servers is lost, too.
            for run in runs.values():
                run.close()
            runs.clear()
            report.retries += len(open_places)
            _add(report.stats, transport)
            transport = SimulatedTransport(world, registry, bounds)
        except FoldflightError as error:
            world.say(f"partition {place} failed: {error.code}")
            if began_s[place] > world.heals_at_s + _LEFTOVERS_S or not _has_reason(error):
                raise AssertionError(f"partition {place} failed without a reason: {error}") from error
            del runs[place]
            report.retries += 1
    _add(report.stats, transport)


@contextmanager
def judge(name: str, world: World, report: Report, *, remedy: str = "") -> Iterator[None]:
    """Run the block, check that servers hold nothing some time after the last fault, and complete the report.

    Args:
        name: What the block runs, with the seed.
        world: The simulated servers.
        report: The report.
        remedy: A line about how to repeat it.

    Raises:
        AssertionError: A property does not hold, with the name and the trace.
    """
    try:
        yield
        world.heals_at_s = min(world.heals_at_s, world.now_s())
        world.rest_until(world.now_s() + _LEFTOVERS_S)
        assert not world.open_streams, f"servers still hold {world.open_streams} exchanges"
    except AssertionError as error:
        trace = "\n  ".join(world.trace)
        raise AssertionError(f"{name}: {error}\n{remedy}  {trace}") from error
    report.seconds, report.steps, report.harms = world.now_s(), world.steps, world.harms


def _has_reason(error: FoldflightError) -> bool:
    """Return whether failover gave up after servers had been lost or had refused the exchange."""
    given_up = isinstance(error, (RetryableError, RejectedError))
    return given_up and any(" lost " in step or " refused by " in step for step in error.story)


def _add(stats: FailoverStats, transport: SimulatedTransport) -> None:
    for each in transport.stats:
        stats.losses += each.losses
        stats.replays += each.replays
        stats.rows_refolded += each.rows_refolded
        stats.checkpoints += each.checkpoints
        stats.stall_s_max = max(stats.stall_s_max, each.stall_s_max)
