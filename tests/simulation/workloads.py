"""Workloads of the partitions of a simulated engine, drawn at random."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from foldflight.exchange.frames import Limits, Open, Returns
from foldflight.exchange.server_exchange import describe
from foldflight.functions import Call, Registry

__all__ = ["LIMITS", "PARTITIONS_MAX", "Workload", "WorkloadEpoch", "limits_of", "workload_of"]

PARTITIONS_MAX: Final = 3
_SLOTS: Final = 12
_COLUMNS: Final = pa.schema([("slot", pa.int32()), ("v", pa.int64()), ("wanted", pa.bool_())])
_EMIT: Final = pa.field("emit", pa.bool_())
_CALLS: Final = (
    Call("digest", ("v",)),
    Call("digest", ("v",), filter="wanted"),
    Call("custom", ("v",)),
    Call("pickled", ("v",)),
    Call("talks", ("v",)),
    Call("count", ("v",), distinct=True),
    Call("count"),
    Call("digest", ("v",), materialize=True),
)
_MOODY: Final = Call("moody", ("v",))
# About 1,500 bytes of a message remain besides its overhead, so results come in several parts.
LIMITS: Final = Limits(
    message_bytes_max=18_000,
    slots_max=1000,
    state_bytes_max=1 << 20,
    exchange_state_bytes_max=1 << 24,
    exchanges_max=8,
    idle_s_max=5.0,
    age_s_max=3600.0,
)


@dataclass(frozen=True)
class WorkloadEpoch:
    """One epoch of one partition.

    Args:
        chunks: The rows of the epoch.
        is_eager: Whether row outputs are read after each chunk, rather than after the barrier.
        forgets: The slots that are forgotten after the epoch.
    """

    chunks: tuple[pa.RecordBatch, ...]
    is_eager: bool
    forgets: tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """The frames that one partition sends.

    Args:
        open_request: The frame that opens its exchanges.
        epochs: The epochs.
        runs_ahead: Whether rows of the next epoch may be sent before the results of the current one are read.
    """

    open_request: Open
    epochs: tuple[WorkloadEpoch, ...]
    runs_ahead: bool


def workload_of(chance: random.Random, emit_rng: random.Random, registry: Registry) -> Workload:
    """Draw a workload.

    Args:
        chance: Draws everything but `emit`.
        emit_rng: Draws `emit`, apart from the rest, so that a seed that found something remains the same scenario.
        registry: The functions.
    """
    calls = chance.sample(_CALLS, chance.randint(1, 3))
    states = chance.random() < 0.7
    open_request = Open(
        calls=tuple(calls),
        columns=_COLUMNS,
        returns=Returns(states=states, outputs=not states or chance.random() < 0.8),
        initial_outputs=chance.random() < 0.5,
        row_outputs=chance.random() < 0.3,
    )
    if not open_request.row_outputs and chance.random() < 0.5:
        open_request = dataclasses.replace(
            open_request,
            calls=(*open_request.calls, _MOODY),
            isolate_errors=True,
            # Without outputs at barriers, a state whose get_value raises may be stored, and loading it would fail.
            initial_outputs=open_request.initial_outputs and open_request.returns.outputs,
        )
        calls.append(_MOODY)
    if open_request.row_outputs and emit_rng.random() < 0.5:
        open_request = dataclasses.replace(open_request, emits=True, columns=_COLUMNS.append(_EMIT))
    fingerprints = describe(open_request, registry, LIMITS, "plan").fingerprints
    named_calls = tuple(
        dataclasses.replace(call, fingerprint=fingerprint)
        for call, fingerprint in zip(calls, fingerprints, strict=True)
    )
    return Workload(
        dataclasses.replace(open_request, calls=named_calls),
        tuple(
            _with_emits(emit_rng, open_request, _epoch(chance, forgets_all=not states))
            for _ in range(chance.randint(1, 8))
        ),
        # A slot that fails in an epoch must be loaded again before its next row.
        states and not open_request.row_outputs and not open_request.isolate_errors and chance.random() < 0.5,
    )


def _with_emits(emit_rng: random.Random, open_request: Open, epoch: WorkloadEpoch) -> WorkloadEpoch:
    """Return an epoch whose chunks say after which rows outputs are asked for, if the exchange emits."""
    if not open_request.emits:
        return epoch
    chunks = []
    for chunk in epoch.chunks:
        share = emit_rng.choice([0.0, 0.3, 1.0])
        emit = pa.array([emit_rng.random() < share for _ in range(chunk.num_rows)], pa.bool_())
        chunks.append(chunk.append_column(_EMIT, emit))
    return dataclasses.replace(epoch, chunks=tuple(chunks))


def limits_of(chance: random.Random) -> Limits:
    """Draw the limits of servers. Some accept no more exchanges than there may be partitions."""
    return dataclasses.replace(LIMITS, exchanges_max=chance.choice([PARTITIONS_MAX, 8]))


def _epoch(chance: random.Random, *, forgets_all: bool) -> WorkloadEpoch:
    chunks = []
    touched_slots = chance.sample(range(_SLOTS), chance.choice([1, 3, _SLOTS]))
    for _ in range(chance.randint(1, 4)):
        rows = chance.choice([1, 5, 30])
        columns = [
            pa.array([chance.choice(touched_slots) for _ in range(rows)], pa.int32()),
            pa.array([chance.randrange(1000) for _ in range(rows)], pa.int64()),
            pa.array([chance.choice([True, False, None]) for _ in range(rows)], pa.bool_()),
        ]
        chunks.append(pa.RecordBatch.from_arrays(columns, schema=_COLUMNS))
    some = chance.sample(range(_SLOTS), chance.choice([0, 0, 3, _SLOTS]))
    return WorkloadEpoch(tuple(chunks), chance.random() < 0.5, tuple(range(_SLOTS)) if forgets_all else tuple(some))
