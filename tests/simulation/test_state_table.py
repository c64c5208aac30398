"""Streams over simulated servers: the real epochs and state table, commits like Spark's, and engine crashes."""

from __future__ import annotations

import copy
import random
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.keys.hashes import key_hashes
from foldflight.engine.query.layout import CallView, QueryLayout
from foldflight.engine.state.manifest import Storage
from foldflight.engine.state.table import StateTable, TableBounds, TableLayout
from foldflight.engine.state.viewtable import ViewTable
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.errors import FoldflightError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open, Returns
from foldflight.functions import Call, MapView, Registry, RowKind, function_of, udaf
from tests.laws.test_statetable_model import Store, skewed_hashes
from tests.simulation.functions import functions
from tests.simulation.running import SimulatedTransport
from tests.simulation.workloads import LIMITS
from tests.simulation.world import EngineCrashed, World

KEYS = pa.schema([("key_0", pa.string())])
COLUMNS = pa.schema([("column_0", pa.int64())])
CALLS = (
    Call("count"),
    Call("sum", ("v",)),
    Call("count", ("v",), distinct=True),
    Call("digest", ("v",), materialize=True),
)
SMALL = TableBounds(piece_rows_max=3, fan_in=2, merge_rows_max=4, merge_share=2, inline_entries_max=2)
BOUNDS = FailoverBounds(patience_s=5.0, replay_bytes_max=10_000)


class Seen:
    """Values with their times."""

    times: MapView[int, int]

    def __init__(self) -> None:
        self.times = MapView()


class Different:
    """Counts different values by reading all entries of a view."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, acc: Seen, v: int) -> None:
        acc.times[v] = acc.times.get(v, 0) + 1

    def retract(self, acc: Seen, v: int) -> None:
        acc.times[v] -= 1
        if not acc.times[v]:
            del acc.times[v]

    def get_value(self, acc: Seen) -> int:
        return sum(1 for _ in acc.times)


def with_views(version: str = "1") -> Registry:
    """Return the functions, and two with a view: one whose entries are prefetched, one that asks for them."""
    options: dict[str, Any] = {"input_types": ["BIGINT"], "result_type": "BIGINT", "version": version}
    different = [
        udaf(name="sent", prefetch={"times": ["v"]}, **options)(type("Sent", (Different,), {})),
        udaf(name="asked", **options)(type("Asked", (Different,), {})),
    ]
    result = [function for cls in different if (function := function_of(cls)) is not None]
    return Registry([*functions(version).values(), *result])


def plan(transport: SimulatedTransport, *, views: bool) -> tuple[Open, QueryLayout, list[CallView]]:
    """Return the query that a driver would plan."""
    calls = (*CALLS, Call("sent", ("v",)), Call("asked", ("v",))) if views else CALLS
    chunk = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.int64())])
    open_request = Open(calls, chunk, returns=Returns(), initial_outputs=True, keeps_views=views)
    open_reply = transport.describe(open_request)
    result = [
        CallView(place, spec, prefetch=tuple("column_0" for _ in spec.prefetch))
        for place, call in enumerate(open_reply.calls)
        for spec in call.views
    ]
    schema = open_reply.schema
    states = pa.schema([schema.field(f"state_{place}") for place in range(len(calls))])
    outputs = pa.schema([schema.field(f"output_{place}") for place in range(len(calls))])
    layout = QueryLayout(
        KEYS, ("name",), COLUMNS, ("v",), has_kinds=True, states=states, carried=states, outputs=outputs
    )
    return open_request, layout, result


class Rows:
    """The input of a query, epoch by epoch, and its result by definition."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"rows {seed}")
        self.live: list[tuple[str, int]] = []

    def epoch(self) -> list[tuple[int, str, int]]:
        rows = []
        for _ in range(self.random.randint(0, 25)):
            if self.live and self.random.random() < 0.4:
                row = self.live.pop(self.random.randrange(len(self.live)))
                rows.append((int(RowKind.DELETE), *row))
            else:
                row = (self.random.choice("abcdefghij"), self.random.randrange(9))
                self.live.append(row)
                rows.append((int(RowKind.INSERT), *row))
        return rows


def answer(rows: list[tuple[int, str, int]]) -> dict[str, tuple[int, int, int]]:
    """Return count, sum and distinct count of each group with rows."""
    groups: dict[str, list[int]] = {}
    for kind, key, value in rows:
        values = groups.setdefault(key, [])
        if kind == RowKind.INSERT:
            values.append(value)
        else:
            values.remove(value)
    return {key: (len(held), sum(held), len(set(held))) for key, held in groups.items() if held}


def run(seed: int) -> World:
    """Run a query to its end, and restart it after its last commit whenever it fails."""
    views = seed % 4 == 1
    registry = with_views if views else functions
    world = World(seed, registry(), registry("2"), LIMITS, servers=2)
    rows, ids = Rows(seed), count()
    hashes = skewed_hashes if seed % 3 == 0 else key_hashes
    epochs = [rows.epoch() for _ in range(6)]
    store, sink = Store(), {}  # what Spark has committed: the state, and each epoch's changelog
    while len(sink) < len(epochs):
        began_s = world.now_s()
        transport = SimulatedTransport(world, registry(), BOUNDS)
        open_request, layout, views_of_calls = plan(transport, views=views)
        exchange = GroupedExchange(transport, open_request, layout)
        try:
            while len(sink) < len(epochs):
                working_store = copy.deepcopy(store)  # uncommitted state is thrown away with its epoch
                table_layout = TableLayout(keys=KEYS, states=layout.states, buckets=1)
                storage = Storage(working_store, bounds=SMALL, new_run_id=lambda *_: f"run {next(ids)}")
                table = (
                    ViewTable(table_layout, views_of_calls, storage)
                    if views
                    else StateTable(table_layout, storage, hashes=hashes)
                )
                batch = block(layout, epochs[len(sink)])
                cuts = sorted(world.random.choices(range(batch.num_rows + 1), k=2))
                blocks = [batch.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, batch.num_rows], strict=True)]
                epoch = BucketEpoch(exchange, layout, table, is_strict=True)
                kinds, changes = epoch.run(iter(piece for piece in blocks if piece.num_rows))
                store, sink[len(sink)] = working_store, (kinds.to_pylist(), changes.to_pylist())
        except EngineCrashed:
            continue
        except FoldflightError as error:
            if began_s > world.heals_at_s + 8 or not error.story:
                raise
    check(sink, epochs)
    return world


def block(layout: QueryLayout, rows: list[tuple[int, str, int]]) -> pa.RecordBatch:
    columns: list[Any] = [[row[1] for row in rows], [row[0] for row in rows], [row[2] for row in rows]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, layout.rows, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.rows)


def check(sink: dict[int, Any], epochs: list[list[tuple[int, str, int]]]) -> None:
    """Apply the changelogs: after each epoch the table equals the batch result, and no change contradicts it."""
    table: dict[str, tuple[Any, ...]] = {}
    for number, (kinds, changes) in sorted(sink.items()):
        for kind, change in zip(kinds, changes, strict=True):
            key, *outputs = change.values()
            if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
                assert table.pop(key) == tuple(outputs)
            else:
                assert key not in table
                table[key] = tuple(outputs)
        expected = answer([row for epoch in epochs[: number + 1] for row in epoch])
        assert {key: row[:3] for key, row in table.items()} == expected
        assert all(different == row[2] for row in table.values() for different in row[4:])


@pytest.mark.every_turn
@pytest.mark.parametrize("first", range(0, 20, 20))
def test_streams_survive_a_few_seeds(first: int) -> None:
    """After every epoch, in spite of faults, the applied changelog equals the batch result."""
    harms = sum(sum(run(seed).harms.values()) for seed in range(first, first + 20))
    assert harms > 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, 320, 100))
def test_streams_survive_many_seeds(first: int) -> None:
    """Many seeds are tried."""
    for seed in range(first, first + 100):
        run(seed)
