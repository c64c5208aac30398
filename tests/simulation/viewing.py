"""Exchanges whose engine keeps the entries of views, over a world that harms its servers.

The oracle is the same function with `dict` and `list` instead of views, in this process. What must hold: each epoch is
committed once with the oracle's outputs, whatever the prefetch, the checkpoints and the faults; the entries that are
kept equal the oracle's; and once the faults are over, it ends.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.client import EmbeddedTransport, OpenExchange
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open
from foldflight.functions import Call, ListView, MapView, Registry, udaf
from foldflight.testing.cached_views import CachedViews
from tests.simulation.running import Report, SimulatedTransport, judge, run_partitions
from tests.simulation.workloads import limits_of
from tests.simulation.world import World

__all__ = ["run_views_seed"]

_COLUMNS: Final = pa.schema([("slot", pa.int32()), ("act", pa.string()), ("v", pa.int64())])
_CALL: Final = Call("viewing", ("act", "v"))
_ACTS: Final = ("get", "put", "put", "put", "remove", "add", "add", "sum", "list", "clear", "drop")
_SLOTS: Final = 4
_KEYS: Final = 8
_PRIME: Final = 1_000_003


class _InViews:
    digest: int
    seen: MapView[int, int]
    items: ListView[int]

    def __init__(self) -> None:
        self.digest, self.seen, self.items = 0, MapView(), ListView()


class _InMemory:
    digest: int
    seen: dict[int, int]
    items: list[int]

    def __init__(self) -> None:
        self.digest, self.seen, self.items = 0, {}, []


class _Acts:
    """Each row reads or changes a map and a list."""

    def accumulate(self, acc: Any, act: str, v: int) -> None:
        result = 0
        match act:
            case "get":
                result = acc.seen.get(v, -1)
            case "put":
                acc.seen[v] = acc.seen.get(v, 0) + 1
            case "remove":
                result = acc.seen.pop(v, -1)
            case "add":
                acc.items.append(v)
            case "sum":
                result = sum(key * times for key, times in acc.seen.items())
            case "list":
                for item in acc.items:
                    result = (result * 31 + item) % _PRIME
            case "clear":
                acc.seen.clear()
            case "drop":
                acc.items.clear()
        acc.digest = (acc.digest * 31 + result + 1) % _PRIME

    def get_value(self, acc: Any) -> int:
        return int(acc.digest * 31 + sum(acc.seen.values()))


def _registry(state: type, version: str = "1") -> Registry:
    options: dict[str, Any] = {"prefetch": {"seen": ["v"]}} if state is _InViews else {}

    @udaf(name="viewing", input_types=["STRING", "BIGINT"], result_type="BIGINT", version=version, **options)
    class Viewing(_Acts):
        def create_accumulator(self) -> Any:
            return state()

        create_accumulator.__annotations__["return"] = state

    return Registry.load([Viewing])


@dataclass(frozen=True)
class _Epoch:
    """One epoch: chunks, before which of them a checkpoint is taken, and whether all slots are forgotten at the end."""

    chunks: tuple[pa.RecordBatch, ...]
    checkpoints: tuple[bool, ...]
    forgets: bool


class _Partition:
    """The engine's side of one exchange, with what it has committed."""

    def __init__(self, chance: random.Random, cached_views: CachedViews) -> None:
        self.open_request = Open((_CALL,), _COLUMNS, keeps_views=True, initial_outputs=chance.random() < 0.5)
        self.epochs = [_epoch(chance) for _ in range(chance.randint(1, 6))]
        # Which share of the keys of rows is sent before them, and which keys of no row.
        self.share = chance.choice([0.0, 0.5, 1.0])
        self.kept = cached_views
        self.outputs: list[list[dict[str, Any]]] = []
        self.chance = chance

    @property
    def is_done(self) -> bool:
        return len(self.outputs) == len(self.epochs)

    def run(self, transport: SimulatedTransport) -> Generator[OpenExchange, None, None]:
        """Continue after the last commit; yields between frames."""
        pending = copy.deepcopy(self.kept)
        loaded_slots: set[int] = set()
        with transport.open(self.open_request, resolve=pending.resolve) as exchange:
            for number in range(len(self.outputs) + 1, len(self.epochs) + 1):
                epoch = self.epochs[number - 1]
                for chunk, checks in zip(epoch.chunks, epoch.checkpoints, strict=True):
                    if checks or exchange.wants_checkpoint:
                        exchange.checkpoint()
                        yield exchange
                        saved_states = exchange.saved_states()
                        assert not saved_states.problem
                        pending.commit(saved_states.states)
                    self._send(exchange, chunk, pending, loaded_slots)
                    yield exchange
                exchange.barrier(number)
                yield exchange
                results = exchange.results(number)
                pending.commit(results)
                self.kept = copy.deepcopy(pending)
                self.outputs.append(_outputs(results))
                yield exchange
                if epoch.forgets:
                    exchange.forget(pa.array(sorted(loaded_slots), pa.int32()))
                    loaded_slots.clear()

    def _send(
        self, exchange: OpenExchange, chunk: pa.RecordBatch, cached_views: CachedViews, loaded_slots: set[int]
    ) -> None:
        touched_slots = set(chunk.column("slot").to_pylist())
        cold = sorted(slot for slot in touched_slots - loaded_slots if slot in cached_views.slots)
        loaded_slots |= touched_slots
        if cold:
            exchange.states(cached_views.states(cold))
            if self.open_request.initial_outputs:
                assert exchange.initial_outputs().num_rows == len(cold)
        for slot in sorted(touched_slots & set(cached_views.slots)):
            keys = sorted(set(chunk.column("v").to_pylist()))
            sent_keys = [key for key in keys if self.chance.random() < self.share]
            if sent_keys:
                exchange.entries(cached_views.prefetch_entries(slot, 0, "seen", sent_keys))
        exchange.chunk(chunk)


def _epoch(chance: random.Random) -> _Epoch:
    chunks = []
    for _ in range(chance.randint(1, 4)):
        rows = chance.choice([1, 4, 12])
        columns = [
            pa.array([chance.randrange(_SLOTS) for _ in range(rows)], pa.int32()),
            pa.array([chance.choice(_ACTS) for _ in range(rows)]),
            pa.array([chance.randrange(_KEYS) for _ in range(rows)], pa.int64()),
        ]
        chunks.append(pa.RecordBatch.from_arrays(columns, schema=_COLUMNS))
    checkpoints = tuple(chance.random() < 0.2 for _ in chunks)
    return _Epoch(tuple(chunks), checkpoints, chance.random() < 0.5)


def _outputs(results: pa.Table) -> list[dict[str, Any]]:
    """Return the output of each slot. A slot whose entries came in several rows has it in the first."""
    first = {row["slot"]: row["output_0"] for row in reversed(results.select(["slot", "output_0"]).to_pylist())}
    return [{"slot": slot, "output": first[slot]} for slot in sorted(first)]


def _compare(partition: _Partition, place: int) -> None:
    """Compare a partition with the oracle."""
    transport = EmbeddedTransport(_registry(_InMemory), state_key=b"the key of the oracle, never compared")
    states: dict[int, Any] = {}
    with transport.open(Open((_CALL,), _COLUMNS)) as exchange:
        for number, epoch in enumerate(partition.epochs, 1):
            for chunk in epoch.chunks:
                exchange.chunk(chunk)
            exchange.barrier(number)
            results = exchange.results(number)
            states |= {row["slot"]: row["state_0"] for row in results.to_pylist()}
            expected_outputs, result = _outputs(results), partition.outputs[number - 1]
            assert result == expected_outputs, (
                f"partition {place}, epoch {number}:\n  found  {result}\n  wanted {expected_outputs}"
            )
    for slot, state in states.items():
        assert sorted(partition.kept.entries(slot, 0, "seen")) == sorted(state["seen"]), f"slot {slot}: other entries"
        items = [value for _, value in partition.kept.entries(slot, 0, "items")]
        assert items == state["items"], f"slot {slot}: found items {items}, wanted {state['items']}"


def run_views_seed(seed: int, *, is_calm: bool = False) -> Report:
    """Run what follows from a seed.

    Args:
        seed: The seed.
        is_calm: Whether nothing bad happens.

    Raises:
        AssertionError: Something that must hold does not, with the seed.
    """
    chance = random.Random(f"views {seed}")
    registry = _registry(_InViews)
    bounds = FailoverBounds(
        patience_s=chance.choice([3.0, 20.0]), replay_bytes_max=chance.choice([3_000, 1 << 20]), ask_s=0.01
    )
    world = World(
        seed, registry, _registry(_InViews, "2"), limits_of(chance), servers=chance.choice([1, 2, 3]), is_calm=is_calm
    )
    open_reply = SimulatedTransport(world, registry, bounds).describe(Open((_CALL,), _COLUMNS))
    partitions = []
    for _ in range(chance.randint(1, 2)):
        cached_views = CachedViews(open_reply, page=chance.choice([1, 3]), inline=chance.choice([0, 2, 100]))
        partitions.append(_Partition(chance, cached_views))
        partitions[-1].open_request = partitions[-1].open_request.pin(open_reply.fingerprints)
    report = Report(seed)
    with judge(f"views seed {seed}", world, report):
        run_partitions(partitions, world, registry, bounds, report, chance)
        report.commits = sum(len(partition.outputs) for partition in partitions)
        for place, partition in enumerate(partitions):
            _compare(partition, place)
    return report
