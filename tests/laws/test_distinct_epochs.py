"""Streams with DISTINCT: rows in a view have the results of states with all rows, which older streams go on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import connect, udaf
from foldflight.client.exchange import SingleServerExchange
from foldflight.engine.query import query as query_module
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state import viewtable
from foldflight.engine.state.entries import EntryTable
from foldflight.engine.state.manifest import CurrentViews, Manifest, Storage, TableBounds, TableLayout
from foldflight.engine.state.table import MemoryStore
from foldflight.engine.state.viewtable import ViewTable
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.functions import Call, Order
from foldflight.testing import Epoch, run_epochs
from tests.effort import examples
from tests.laws.stream_engine import BucketState, Rows, StreamEngine
from tests.watched import watch_calls

SMALL = TableBounds(
    piece_rows_max=3, fan_in=2, merge_rows_max=4, merge_share=2, inline_entries_max=2, inline_bytes_max=60
)


class Longest:
    """The length of the texts, and how often the function was asked to forget one."""

    total: int
    gone: int

    def __init__(self) -> None:
        self.total = self.gone = 0


class Lengths:
    """Adds up the lengths of texts."""

    def create_accumulator(self) -> Longest:
        return Longest()

    def accumulate(self, acc: Longest, v: str) -> None:
        acc.total += len(v)

    def retract(self, acc: Longest, v: str) -> None:
        acc.total -= len(v)
        acc.gone += 1

    def get_value(self, acc: Longest) -> int:
        return acc.total


def lengths(version: str = "1") -> type:
    """Return a version of the function `lengths`."""
    return udaf(name="lengths", input_types=["VARCHAR"], result_type="BIGINT", skip_nulls=True, version=version)(
        type("Lengths", (Lengths,), {})
    )


def with_all_rows(patch: pytest.MonkeyPatch) -> None:
    """Plan queries as before: states have all rows."""
    patch.setattr(query_module, "_with_views_of_rows", lambda _transport, _open_request, open_reply: open_reply)


# -- the oracle --------------------------------------------------------------------------------------------------------

VALUES = ["a", "b", "ccc", "dd", "e", None]
ROW = st.tuples(st.sampled_from(["+I", "+I", "-D"]), st.sampled_from(["p", "q", None]), st.sampled_from(VALUES))
EPOCHS = st.lists(st.lists(ROW, max_size=10), min_size=1, max_size=5)


def stream(
    epochs: list[list[tuple[str, Any, Any]]],
    keys: list[str],
    *,
    has_kinds: bool = True,
    bounds: TableBounds | None = None,
) -> list[Epoch]:
    """Run calls with DISTINCT over epochs, beside others."""
    functions = connect([lengths()])
    calls = {
        "n": functions["count"]("v").distinct(),
        "used": functions["count"]("v").distinct().where("used"),
        "length": functions["lengths"]("v").distinct(),
        "top": functions["max"]("v").distinct(),
        "all": functions["count"](),
    }
    rows: list[list[Any]] = [
        [
            (kind, {"k": key, "v": value, "used": key != value}) if has_kinds else {"k": key, "v": value, "used": True}
            for kind, key, value in epoch
        ]
        for epoch in epochs
    ]
    types = {"k": "VARCHAR", "v": "VARCHAR", "used": "BOOLEAN"}
    return run_epochs(calls, rows, keys=keys, types=types, bounds=bounds)


def cut(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield blocks of three rows."""
    return (block.slice(start, 3) for block in blocks for start in range(0, max(block.num_rows, 1), 3))


@examples(30)
@given(EPOCHS, st.sampled_from([["k"], []]), st.booleans(), st.booleans())
def test_results_equal_those_of_states_with_all_rows(
    epochs: list[list[tuple[str, Any, Any]]], keys: list[str], has_kinds: bool, saves: bool
) -> None:
    """Changelogs are the same for any rows, keys, blocks and checkpoints; a view has the rows with their times."""
    with pytest.MonkeyPatch.context() as patch:
        with_all_rows(patch)
        expected = stream(epochs, keys, has_kinds=has_kinds)
    with pytest.MonkeyPatch.context() as patch:
        if saves:
            patch.setattr(
                SingleServerExchange, "wants_checkpoint", property(lambda each: each._open_request.keeps_views)
            )
            run = BucketEpoch.run
            patch.setattr(BucketEpoch, "run", lambda epoch, blocks: run(epoch, cut(blocks)))
        # Views of three entries are rows of their table, and epochs of a few rows merge runs.
        result = stream(epochs, keys, has_kinds=has_kinds, bounds=SMALL)
    retracts = has_kinds and any(kind == "-D" for epoch in epochs for kind, *_ in epoch)
    for before, now in zip(expected, result, strict=True):
        assert now.changelog == before.changelog
        assert now.live == before.live
        for key, states in now.states.items():
            state_with_all_rows = before.states[key]["n"]
            assert states["n"]["rows"] == {each["argument_0"]: each["times"] for each in state_with_all_rows}
            assert states["n"]["state"] == sum(each["times"] > 0 for each in state_with_all_rows)
            assert isinstance(states["top"], list) == retracts


# -- costs -------------------------------------------------------------------------------------------------------------


def test_an_epoch_looks_up_only_the_entries_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch with five rows over a group of 300 rows looks up five entries, and neither asks nor reads pages."""
    sizes: list[int] = []
    lookup = EntryTable.lookup

    def count(table: EntryTable, groups: pa.RecordBatch, generations: pa.Array, keys: pa.Array) -> Any:
        sizes.append(len(keys))
        return lookup(table, groups, generations, keys)

    monkeypatch.setattr(EntryTable, "lookup", count)
    monkeypatch.setattr(EntryTable, "page", lambda *_: pytest.fail("a page was read"))
    operations: set[str] = set()
    calls = {"n": connect("embedded:")["count"]("v").distinct()}
    calls = watch_calls(calls, lambda operation, *_: operations.add(operation))
    many = [{"v": f"text {number}"} for number in range(300)]
    epoch_rows = [{"v": "text 7"}, {"v": "text 299"}, {"v": "new"}, {"v": "newer"}, {"v": "text 7"}, {"v": None}]
    first, second = run_epochs(calls, [many, epoch_rows])
    assert "entries" in operations
    assert "wanted" not in operations, "the server asked"
    assert first.changelog[-1] == ("+I", {"n": 300})
    assert second.changelog == [("-U", {"n": 300}), ("+U", {"n": 302})]
    assert sizes == [5]


# -- plans -------------------------------------------------------------------------------------------------------------


def query(*calls: Call, stream: StreamOptions | None, has_kinds: bool = True) -> Query:
    keys = pa.schema([("key_0", pa.timestamp("us")), ("key_1", pa.timestamp("us"))])
    columns = pa.schema([("column_0", pa.string()), ("column_1", pa.list_(pa.int64()))])
    layout = QueryLayout(keys, ("start", "end"), columns, ("v", "items"), has_kinds=has_kinds)
    transport = connect([lengths()])["lengths"]("v").transport
    return Query.of(transport, {f"out_{place}": call for place, call in enumerate(calls)}, layout, stream=stream)


DISTINCT = Call("count", ("v",), distinct=True)
REASONS = [
    (DISTINCT, StreamOptions(), "kept in a view, of which an epoch reads and writes the rows"),
    (DISTINCT, StreamOptions(has_sessions=True, window="session 5 minutes"), "touches: sessions merge"),
    (Call("max", ("v",), distinct=True), StreamOptions(), "max does not retract, so they are folded again"),
    (
        Call("count", ("items",), distinct=True),
        StreamOptions(),
        "values of type ARRAY<BIGINT> cannot be keys of a view",
    ),
    (replace(DISTINCT, materialize=True), StreamOptions(), "touches: they are folded again"),
    (Call("string_agg", ("v",), order=(Order("v"),)), StreamOptions(), "touches: they are folded again for each value"),
]


@pytest.mark.parametrize(("call", "options", "why"), REASONS, ids=[why for *_, why in REASONS])
def test_explain_tells_how_rows_are_kept(call: Call, options: StreamOptions, why: str) -> None:
    """The plan of a stream says whether the rows of a call are in a view, and why not."""
    assert why in query(call, stream=options).explain()


def test_a_batch_is_planned_as_before() -> None:
    """Without a state table states have all rows and merge; the rows are folded before the shuffle."""
    batch_query = query(DISTINCT, stream=None, has_kinds=False)
    assert batch_query.folds_before_shuffle.holds
    assert not batch_query.views
    assert "rows: " not in batch_query.explain()


def test_rows_are_shuffled_as_they_are_if_all_are_kept() -> None:
    """States that have all rows would be as large as the rows, which Spark sends faster."""
    ordered_call = Call("string_agg", ("v",), order=(Order("v"),))
    for call in (ordered_call, Call("count", ("v",), materialize=True)):
        assert (
            f"not folded before the shuffle: {call.function} keeps all rows"
            in query(call, stream=None, has_kinds=False).explain()
        )
    assert query(replace(ordered_call, distinct=True), stream=None, has_kinds=False).folds_before_shuffle.holds


# -- checkpoints of before ---------------------------------------------------------------------------------------------

KEYS = pa.schema([("name", pa.string())])
COLUMNS = pa.schema([("v", pa.string())])


def engine(
    buckets: dict[int, BucketState] | None = None, *, version: str = "1", bounds: TableBounds = SMALL
) -> StreamEngine:
    """Return a query, new or restarted from its state."""
    transport = connect([lengths(version)])["lengths"]("v").transport
    engine = StreamEngine(
        transport,
        {"length": Call("lengths", ("v",), distinct=True), "n": DISTINCT, "rows": Call("count")},
        KEYS,
        COLUMNS,
        has_kinds=True,
        options=StreamOptions(emit="changelog", buckets=2),
        seed=1,
        bounds=BlockBounds(),
        folds_first=True,
        table_bounds=bounds,
    )
    if buckets is not None:
        engine.buckets = buckets
    return engine


def rows_of(*values: tuple[str, str, str]) -> Rows:
    kinds = {"+I": 0, "-D": 3}
    return [{"name": name, "kind": kinds[kind], "v": v} for kind, name, v in values]


def epochs_of(seed: int, count: int) -> list[Rows]:
    """Return epochs of rows of three groups, of which a third is taken back."""
    chance = np.random.default_rng(seed)
    live: list[tuple[str, str]] = []
    epochs = []
    for _ in range(count):
        rows = []
        for _ in range(9):
            if live and chance.random() < 0.35:
                rows.append(("-D", *live.pop(int(chance.integers(len(live))))))
            else:
                live.append(("abc"[chance.integers(3)], "x" * int(chance.integers(1, 12))))
                rows.append(("+I", *live[-1]))
        epochs.append(rows_of(*rows))
    return epochs


def changed_values(output: Rows) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in output)


@pytest.mark.parametrize(
    ("bounds", "version"),
    [(TableBounds(), "1"), (SMALL, "2"), pytest.param(SMALL, "1", marks=pytest.mark.slow)],
    ids=["inline", "entries, another version", "entries"],
)
def test_streams_go_on_from_states_with_all_rows(
    bounds: TableBounds, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint with all rows in its states is continued with the same results, also by other versions."""
    epochs = epochs_of(1, 8)
    with monkeypatch.context() as patch:
        with_all_rows(patch)
        before, oracle = engine(bounds=bounds), engine(bounds=bounds)
        for rows in epochs[:2]:
            assert changed_values(before.epoch([rows], 0)) == changed_values(oracle.epoch([rows], 0))
    # After a restart with yet another version, the function gets the rows of each group once more.
    for start, end, new_version in ((2, 5, version), (5, 6, version), (6, 8, "3")):
        after = engine(before.buckets, version=new_version, bounds=bounds)
        for rows in epochs[start:end]:
            assert changed_values(after.epoch([rows], 0)) == changed_values(oracle.epoch([rows], 0))
    assert after.live_rows() == oracle.live_rows()


def test_old_groups_without_new_rows_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges of the state table convert states with all rows, and readers of the view leave them out until then."""
    with monkeypatch.context() as patch:
        with_all_rows(patch)
        before = engine()
        before.epoch([rows_of(*(("+I", "quiet", f"{number:04}") for number in range(5)), ("+I", "a", "b"))], 0)
    after = engine(before.buckets)
    for number in range(6):
        after.epoch([rows_of(*(("+I", name, f"{number}") for name in "abcd"))], 0)
    for state in after.buckets.values():
        assert state.manifest is not None
        manifest = Manifest.decode(*state.manifest)
        assert {piece.generation for piece in manifest.pieces} == {manifest.current}
    output = after.epoch([rows_of(("-D", "quiet", "0000"), ("+I", "quiet", "0001"))], 0)
    assert [tuple(row.values()) for row in output] == [("-U", "quiet", 20, 5, 5), ("+U", "quiet", 16, 4, 5)]


def test_a_view_without_rows_is_folded_anew() -> None:
    """A large view whose rows have all disappeared is an empty state for another version."""
    before = engine()
    texts = [f"{number:04}" for number in range(5)]
    before.epoch([[*rows_of(*(("+I", "a", text) for text in texts)), {"name": "a", "kind": 0, "v": None}]], 0)
    before.epoch([rows_of(*(("-D", "a", text) for text in texts))], 0)
    output = engine(before.buckets, version="2").epoch([rows_of(("+I", "a", "bb"))], 0)
    assert [tuple(row.values()) for row in output] == [("-U", "a", 0, 0, 1), ("+U", "a", 2, 1, 2)]


def test_readers_find_the_entries_of_several_versions() -> None:
    """A reader without functions sees the rows that are in views, whichever version wrote the state beside them."""
    stream_query = query(DISTINCT, stream=StreamOptions())
    keys = pa.schema([("key_0", pa.string())])
    layout, store = TableLayout(keys, stream_query.layout.states, names=("k", "n")), MemoryStore()
    storage = Storage(store, bounds=SMALL)
    writer = ViewTable(layout, stream_query.views, storage)
    entries = [{"key": text, "value": 1, "present": True} for text in "abc"]
    view = {"complete": True, "cleared": False, "entries": entries}
    state = pa.array([{"rows": view, "state": 3}], layout.states.types[0])
    states = pa.RecordBatch.from_arrays([state], schema=layout.states)
    groups = pa.RecordBatch.from_arrays([pa.array(["x"])], schema=keys)
    writer.commit(groups, np.ones(1, np.int64), states)
    newer = layout.states.field(0).with_metadata({b"function": b"count", b"version": b"9", b"fingerprint": b"00"})
    layout = TableLayout(keys, pa.schema([newer]), names=("k", "n"))
    stored_schema = viewtable._stored_schema(layout.states, stream_query.views)
    reader = ViewTable(layout, stream_query.views, storage, conversion=lambda _: CurrentViews(stored_schema))
    result = [row for batch in reader.all_entries(0) for row in batch.to_pylist()]
    assert sorted(row["entry"] for row in result) == ["a", "b", "c"]
