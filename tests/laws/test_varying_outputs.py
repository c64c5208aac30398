"""What a function emits that is not deterministic is taken back as it was emitted, in every kind of stream."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from foldflight import ListView, MapView, connect, udaf
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.manifest import Storage, TableBounds, TableLayout
from foldflight.engine.state.table import MemoryStore, StateTable
from foldflight.functions import Call
from tests.effort import examples
from tests.laws.stream_engine import StreamEngine
from tests.laws.test_stream_oracle import START_MS, Case, as_input, cases, engine_of, key_of, model_of

TICKS = itertools.count()


class Draws:
    """Sums, and gives another value each time: a new number, a list with it, or NULL."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int | None) -> int:
        return accumulator + (value or 0)

    def retract(self, accumulator: int, value: int | None) -> int:
        return accumulator - (value or 0)

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> Any:
        return next(TICKS)


@udaf(input_types=["BIGINT"], result_type="BIGINT", deterministic=False)
class Number(Draws):
    def get_value(self, accumulator: int) -> int | None:
        number = next(TICKS)
        return None if number % 3 == 0 else number


@udaf(input_types=["BIGINT"], result_type="ARRAY<DOUBLE>", deterministic=False)
class Numbers(Draws):
    def get_value(self, accumulator: int) -> list[float | None]:
        return [None, float(next(TICKS))]


@udaf(input_types=["BIGINT"], result_type="BIGINT", deterministic=False)
class Seen:
    """Draws a number, and keeps its values in views."""

    times: MapView[int, int]
    log: ListView[int]

    def __init__(self) -> None:
        self.times = MapView()
        self.log = ListView()

    def accumulate(self, value: int | None) -> None:
        self.times[value or 0] = self.times.get(value or 0, 0) + 1
        self.log.add(value or 0)

    def retract(self, value: int | None) -> None:
        self.times[value or 0] = self.times.get(value or 0, 0) - 1

    def get_value(self) -> int:
        assert sum(self.times.values()) >= 0
        return next(TICKS)


TRANSPORT = connect([Number, Numbers, Seen]).transport
CALLS = {
    "number": Call("number", ("v",)),
    "n": Call("count"),
    "numbers": Call("numbers", ("v",), filter="filled"),
    "different": Call("number", ("v",), distinct=True),
}
SMALL = TableBounds(
    piece_rows_max=3, fan_in=2, merge_rows_max=4, merge_share=2, inline_entries_max=2, inline_bytes_max=60
)


def row_of(change: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(repr(value) for name, value in sorted(change.items()) if name != "row_kind")


def check(case: Case, calls: dict[str, Call]) -> None:
    """Apply each change to the rows emitted before: a row that is taken back must be there."""
    engine, model = engine_of(TRANSPORT, case, calls, folds_first=case.folds_first), model_of(case)
    engine._processor.table_bounds = SMALL
    present: Counter[tuple[Any, ...]] = Counter()
    by_key: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    keys = [name for name in ("k", "window_start", "window_end") if case.windows or name == "k"]
    for steps in case.epochs:
        watermark_ms = max(START_MS + model.watermark * 60_000, 0)
        open_before = {key_of(key) for key, rows in model.present.items() if rows}
        rows, _ = model.epoch(steps)
        sent_rows = [as_input(row, model.key(row)) for row in rows]
        changes = engine.epoch([sent_rows[place :: case.partitions] for place in range(case.partitions)], watermark_ms)
        for change in changes:
            key, row = tuple(change[name] for name in keys), row_of(change)
            kind = change.get("row_kind", "+U")
            if kind in ("-U", "-D"):
                assert present[row] == 1, (kind, change)
            if kind in ("-U", "-D") or (case.emit == "update" and key in by_key):
                present[by_key.pop(key)] -= 1
            if kind in ("+I", "+U"):
                present[row] += 1
                by_key[key] = row
        live = {key_of(key) for key, group in model.present.items() if group}
        for key in open_before - live:  # closed, without a change
            if key in by_key and case.closes:
                present[by_key.pop(key)] -= 1
        assert set(by_key) == live
        assert +present == Counter(by_key.values())


@examples(100)
@given(cases())
def test_the_sum_of_a_changelog_is_what_was_emitted_last(case: Case) -> None:
    """It holds for windows, sessions, retractions, one and two phases, also if tasks run twice."""
    check(replace(case, emit="changelog" if case.emit == "append" else case.emit), CALLS)


@examples(60)
@given(cases())
def test_outputs_of_functions_with_views_are_taken_back_as_emitted(case: Case) -> None:
    """Their states are stored in other tables."""
    windows = "tumble" if case.windows == "session" else case.windows
    emit = "changelog" if case.emit == "append" else case.emit
    check(replace(case, windows=windows, emit=emit), {"seen": Call("seen", ("v",)), **CALLS})


def engine(emit: str, calls: dict[str, Call]) -> StreamEngine:
    """Return a query of one bucket whose tasks run once."""
    engine = StreamEngine(
        TRANSPORT,
        calls,
        pa.schema([("k", pa.string())]),
        pa.schema([("v", pa.int64())]),
        has_kinds=False,
        options=StreamOptions(emit=emit, buckets=1),  # type: ignore[arg-type]
        seed=1,
        bounds=BlockBounds(),
        folds_first=False,
    )
    engine.random.random = lambda: 1.0  # type: ignore[method-assign]
    return engine


def epoch(engine: StreamEngine, *groups: str) -> dict[str, Any]:
    """Add a row to each group, and return the numbers by group and row kind, as in `ann -U`."""
    changes = engine.epoch([[{"k": group, "v": 1} for group in groups]], 0)
    assert len(changes) == 2 * len(groups)
    return {f"{row['k']} {row['row_kind']}": row["number"] for row in changes}


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is NULL."""
    monkeypatch.setitem(globals(), "TICKS", itertools.count(1, 3))


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize("function", ["number", "seen"])
def test_a_checkpoint_without_outputs_goes_on(function: str, caplog: pytest.LogCaptureFixture) -> None:
    """An earlier version stored no outputs, as a query that takes nothing back does not. It is told once."""
    calls = {"number": Call(function, ("v",))}
    older, newer = engine("append", calls), engine("changelog", calls)
    older.epoch([[{"k": "ann", "v": 1}, {"k": "bob", "v": 1}]], 0)
    newer.buckets = older.buckets
    with caplog.at_level(logging.WARNING, "foldflight.spark"):
        first = epoch(newer, "ann")  # the row that is taken back is computed, as before
        second = epoch(newer, "ann", "bob")
        third = epoch(newer, "ann", "bob")
    assert [each.getMessage() for each in caplog.records] == ["last_outputs_unknown bucket=0 outputs=['number']"]
    assert second["ann -U"] == first["ann +U"]
    assert third["ann -U"] == second["ann +U"]
    assert third["bob -U"] == second["bob +U"]
    # The query that stores none goes on, too: what it writes has none, and the rest keeps what it has.
    older.buckets = newer.buckets
    older.epoch([[{"k": "bob", "v": 1}]], 0)
    fourth = epoch(newer, "ann", "bob")
    assert fourth["ann -U"] == third["ann +U"]
    assert fourth["bob -U"] > third["bob +U"]


@pytest.mark.parametrize(
    ("call", "emit", "stored_columns"),
    [
        (Call("number", ("v",)), "changelog", ["emitted_0"]),
        (Call("number", ("v",)), "update", ["emitted_0"]),
        (Call("number", ("v",)), "append", []),
        (Call("first", ("v",)), "changelog", []),
        (Call("sum", ("v",)), "changelog", []),
    ],
)
def test_outputs_are_stored_where_they_can_be_needed(call: Call, emit: str, stored_columns: list[str]) -> None:
    """Not if nothing is taken back, and not if the state gives the same output again, whatever it depends on."""
    columns = pa.schema([("v", pa.int64())])
    layout = QueryLayout(pa.schema([("k", pa.string())]), ("k",), columns, ("v",), has_kinds=False)
    query = Query.of(TRANSPORT, {"x": call}, layout, stream=StreamOptions(emit=emit))  # type: ignore[arg-type]
    assert query.layout.emitted.names == stored_columns
    assert ("its last output is stored with the state: the function is not det" in query.explain()) == bool(
        stored_columns
    )
    assert not Query.of(TRANSPORT, {"x": call}, layout).layout.emitted.names


EMITTED = pa.schema([("emitted_0", pa.struct([("value", pa.string())]))])


def table(states: str, emitted_schema: pa.Schema, store: MemoryStore, **options: Any) -> StateTable:
    """Open a table of states of a version."""
    metadata = {"function": "f", "version": states, "fingerprint": states}
    fields = pa.schema([pa.field("state_0", pa.string(), metadata=metadata)])
    return StateTable(TableLayout(KEYS, fields, emitted=emitted_schema), Storage(store), **options)


KEYS = pa.schema([("k", pa.int64())])


class Migrated:
    """Converts states of version 1, and sees nothing else of a row."""

    def check(self, stored_schema: pa.Schema) -> None:
        assert stored_schema.names == ["state_0"]

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:
        assert states.schema.names == stored_schema.names == ["state_0"]
        return pa.RecordBatch.from_pydict({"state_0": [f"{text} of 2" for text in states.column(0).to_pylist()]})


def test_outputs_outlive_a_migration_of_states() -> None:
    """They are what was emitted, whatever version made them; one of another type is not known."""
    store, keys = MemoryStore(), pa.RecordBatch.from_pydict({"k": pa.array([1, 2, 3])}, schema=KEYS)
    states = pa.RecordBatch.from_pydict({"state_0": ["a", "b", "c"]})
    emitted_values = pa.array([{"value": "x"}, {"value": None}, None], EMITTED.types[0])
    table("1", EMITTED, store).commit(keys, np.ones(3, np.int64), states, emitted=[emitted_values])
    result = table("2", EMITTED, store, conversion=Migrated()).lookup(keys)
    assert result.states.column(0).to_pylist() == ["a of 2", "b of 2", "c of 2"]
    assert result.emitted.column(0).equals(emitted_values)
    other = pa.schema([("emitted_0", pa.struct([("value", pa.int64())]))])
    result = table("2", other, store, conversion=Migrated()).lookup(keys)
    assert result.emitted.column(0).to_pylist() == [None] * 3
    assert table("1", pa.schema([]), store).lookup(keys).states.column(0).to_pylist() == ["a", "b", "c"]


def test_a_repeated_epoch_has_pieces_of_the_same_names_though_outputs_vary() -> None:
    """Spark may read the pieces of the one with the manifest of the other."""
    keys = pa.RecordBatch.from_pydict({"k": pa.array([1])}, schema=KEYS)
    names = set()
    for state, output in (("a", "x"), ("a", "y"), ("b", "y")):
        requested_ids: list[tuple[bytes, bytes]] = []
        storage = Storage(
            MemoryStore(), new_run_id=lambda data, identity, asked=requested_ids: str(asked.append((data, identity)))
        )
        subject = StateTable(TableLayout(KEYS, pa.schema([("state_0", pa.string())]), emitted=EMITTED), storage)
        states = pa.RecordBatch.from_pydict({"state_0": [state]})
        column = pa.array([{"value": output}], EMITTED.types[0])
        subject.commit(keys, np.ones(1, np.int64), states, emitted=[column])
        names.add(requested_ids[0][1])
    assert len(names) == 2
