"""The state table of groups with views compared with a dict of dicts: random epochs, small bounds, reopened."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import RejectedError
from foldflight.engine.keys.hashes import text_hashes
from foldflight.engine.query.blocks import one_batch
from foldflight.engine.query.layout import CallView
from foldflight.engine.state import entries as entries_module
from foldflight.engine.state.manifest import Manifest, Storage, manifests_of
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import MemoryStore, StateTable, TableBounds, TableLayout
from foldflight.engine.state.viewtable import ViewLookup, ViewTable, _sizes, one_row_each
from foldflight.exchange.view_columns import split_entries
from foldflight.functions.types.views import ViewSpec
from tests.effort import examples


def sent_type(view: ViewSpec) -> pa.DataType:
    """Return the type of a view in states of the exchange."""
    entry = pa.struct([("key", view.key), ("value", view.value), ("present", pa.bool_())])
    return pa.struct([("complete", pa.bool_()), ("cleared", pa.bool_()), ("entries", pa.list_(entry))])


KEYS = pa.schema([("key_0", pa.string())])
SEEN = ViewSpec("seen", pa.float64(), pa.int64())
LOG = ViewSpec("log", pa.int64(), pa.string(), is_list=True)
IDENTITY = {"function": "f", "version": "1", "fingerprint": "ab"}
STATE = pa.struct([("n", pa.int64()), ("seen", sent_type(SEEN)), ("log", sent_type(LOG))])
STATES = pa.schema([("state_0", pa.int64()), pa.field("state_1", STATE, metadata=IDENTITY)])
LAYOUT = TableLayout(KEYS, STATES, names=("name", "total", "f"))
VIEWS = [CallView(1, SEEN), CallView(1, LOG)]
SMALL = TableBounds(
    piece_rows_max=3, fan_in=2, merge_rows_max=4, merge_share=2, inline_entries_max=2, inline_bytes_max=40
)
IDS = count()
GROUPS = ["a", "b", "c", None]
NAN = float("nan")

Contents = dict[Any, tuple[int, dict[Any, Any], list[str]]]


def table(store: MemoryStore, cache: RunCache | None = None, **options: Any) -> ViewTable:
    all_options = {"bounds": SMALL, "layout": LAYOUT, "views": VIEWS} | options
    storage = Storage(store, cache, all_options["bounds"], lambda *_: f"run {next(IDS)}")
    return ViewTable(all_options["layout"], all_options["views"], storage)


def keys_of(keys: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], schema=KEYS)


def view(changes: list[tuple[Any, Any, bool]], *, is_cleared: bool = False) -> dict[str, Any]:
    rows = [{"key": key, "value": value if present else None, "present": present} for key, value, present in changes]
    return {"complete": False, "cleared": is_cleared, "entries": rows}


def states_of(states: list[dict[str, Any]]) -> pa.RecordBatch:
    totals = pa.array([1] * len(states), pa.int64())
    return pa.RecordBatch.from_arrays([totals, pa.array(states, STATE)], names=["state_0", "state_1"])


def pages(subject: ViewTable, place: int, key: pa.RecordBatch, generation: int) -> list[tuple[Any, Any]]:
    """Return the entries of all pages of a view."""
    result, after = [], None
    while True:
        page = subject.page(place, key, generation, after)
        result += zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True)
        if page.is_last:
            return result
        after = page.keys.slice(len(page.keys) - 1)


def contents(
    subject: ViewTable, lookup: ViewLookup, index: int, row: int, model_log: list[str]
) -> list[tuple[Any, Any]]:
    """Return the entries of a view of a group that was looked up."""
    member = VIEWS[index].spec.name
    state = lookup.states.column("state_1")[row].as_py()[member]
    generation = int(lookup.generations[index][row])
    assert state["complete"] == (generation == 0)
    assert not state["cleared"]
    if generation == 0:
        assert len(state["entries"]) <= SMALL.inline_entries_max
        return [(each["key"], each["value"]) for each in state["entries"]]
    expected = [] if index == 0 else [{"key": len(model_log), "value": None, "present": False}]
    assert state["entries"] == expected
    return pages(subject, index, keys_of([GROUPS[row]]), generation)


def canonical(key: Any) -> Any:
    if not isinstance(key, float):
        return key
    return "NaN" if math.isnan(key) else key + 0.0


ENTRIES = st.sampled_from([None, NAN, -0.0, 0.0, 1.0, 2.5, 3.0, 4.0])
CHANGES = st.dictionaries(ENTRIES, st.tuples(st.integers(0, 9), st.booleans()), max_size=6)
EPOCH = st.dictionaries(
    st.integers(0, len(GROUPS) - 1),
    st.tuples(st.integers(0, 2), st.booleans(), CHANGES, st.booleans(), st.integers(0, 4)),
    max_size=4,
)


def apply(model: Contents, group: int, change: Any) -> dict[str, Any]:
    """Change the model, and return the state that a server would return."""
    live, clears, changes, clears_log, added_rows = change
    number, entries, log = model.get(group, (0, {}, []))
    entries = {} if clears else dict(entries)
    log = [] if clears_log else list(log)
    state = {"n": number + 1, "seen": view([(k, v, p) for k, (v, p) in changes.items()], is_cleared=clears)}
    for key, (value, present) in changes.items():
        entries.pop(canonical(key), None)
        if present:
            entries[canonical(key)] = value
    items = [(len(log) + each, f"item {number}" * 3, True) for each in range(added_rows)]
    count = len(log) + len(items)
    state["log"] = view([*items, (count, None, False)], is_cleared=clears_log)
    log += [item for _, item, _ in items]
    model.pop(group, None)
    if live:
        model[group] = (number + 1, entries, log)
    return state


@pytest.mark.slow
@examples(120)
@given(st.lists(EPOCH, max_size=12), st.booleans(), st.booleans())
def test_the_table_has_the_content_of_a_dict_of_dicts(
    epochs: list[dict[int, Any]], reopen: bool, few_hashes: bool
) -> None:
    """After every epoch the views of each group equal dicts and lists, whatever was inline, cleared or merged."""
    with pytest.MonkeyPatch.context() as patch:
        if few_hashes:
            group_hashes = entries_module._group_hashes
            patch.setattr(entries_module, "_group_hashes", lambda rows: group_hashes(rows) & np.uint64(1 << 63))
        store, cache = MemoryStore(), RunCache(bytes_max=1 << 20)
        subject = table(store, cache)
        model: Contents = {}
        for epoch in epochs:
            if reopen:
                subject = table(store, cache)
            states = [apply(model, group, change) for group, change in epoch.items()]
            live = np.array([change[0] for change in epoch.values()], np.int64)
            subject.commit(keys_of([GROUPS[group] for group in epoch]), live, states_of(states))
            check(subject, model)
        all_rows = [row for batch in subject.all_entries(0) for row in batch.to_pylist()]
        result = sorted((str(row["key_0"]), str(canonical(row["entry"])), row["value"]) for row in all_rows)
        expected_rows = [(str(GROUPS[group]), k, v) for group, (_, each, _) in model.items() for k, v in each.items()]
        assert result == sorted((group, str(canonical(key)), value) for group, key, value in expected_rows)


def check(subject: ViewTable, model: Contents) -> None:
    result = subject.lookup(keys_of(GROUPS))
    assert result.present.tolist() == [group in model for group in range(len(GROUPS))]
    for group, (number, view_entries, log) in model.items():
        assert result.states.column("state_1")[group].as_py()["n"] == number
        entries = contents(subject, result, 0, group, log)
        assert len(entries) == len(view_entries)
        assert {canonical(key): value for key, value in entries} == view_entries
        assert contents(subject, result, 1, group, log) == list(enumerate(log))
    requested_keys = [None, NAN, -0.0, 1.0, 2.5, 99.0]
    for group, generation in enumerate(result.generations[0].tolist()):
        if group in model:
            keys = keys_of([GROUPS[group]] * len(requested_keys))
            numbers: npt.NDArray[np.int64] = np.full(len(requested_keys), generation)
            present, values = subject.lookup_entries(0, keys, numbers, pa.array(requested_keys, pa.float64()))
            view_entries = model[group][1]
            assert present.tolist() == [canonical(key) in view_entries for key in requested_keys]
            assert values.to_pylist() == [view_entries.get(canonical(key)) for key in requested_keys]


def test_the_work_of_an_epoch_is_proportional_to_what_it_touches() -> None:
    """An epoch that changes a few entries of a view with thousands merges a bounded number of rows."""
    bounds = TableBounds(piece_rows_max=256, fan_in=4, merge_rows_max=100, merge_share=6)
    subject = table(MemoryStore(), RunCache(bytes_max=1 << 24), bounds=bounds)
    key, live = keys_of(["a"]), np.ones(1, np.int64)
    state = {"n": 1, "seen": view([(float(each), each, True) for each in range(4_000)]), "log": view([])}
    subject.commit(key, live, states_of([state]))
    for epoch in range(60):
        changes = [(float(each * 53 % 4_000), -epoch, True) for each in range(epoch, epoch + 20)]
        commit = subject.commit(key, live, states_of([{"n": 1, "seen": view(changes), "log": view([])}]))
        assert commit.merged_rows <= 2 * 6 * 21 + 100
    result = subject.lookup(key)
    assert len(pages(subject, 0, key, int(result.generations[0][0]))) == 4_000


def test_removed_entries_are_dropped() -> None:
    """Entries of a view that was cleared, and of a group that was removed, vanish from the store with merges."""
    store = MemoryStore()
    bounds = TableBounds(piece_rows_max=64, fan_in=2, merge_rows_max=2_000, merge_share=6)
    subject = table(store, bounds=bounds)
    many = view([(float(each), each, True) for each in range(500)])
    full = {"n": 1, "seen": many, "log": view([])}
    subject.commit(keys_of(["a", "b"]), np.ones(2, np.int64), states_of([full, full]))
    bytes_before = subject.stored_bytes
    few = {"n": 1, "seen": view([(float(each), each, True) for each in range(100)], is_cleared=True), "log": view([])}
    subject.commit(keys_of(["a", "b"]), np.array([1, 0]), states_of([few, few]))
    for _ in range(8):
        more = {"n": 1, "seen": view([(1.0, 7, True)]), "log": view([])}
        subject.commit(keys_of(["a"]), np.ones(1, np.int64), states_of([more]))
    rows = sum(run.rows for run in Manifest.decode(manifests_of(store.value or b"")[0]["1.seen"]).runs)
    assert rows < 120
    assert subject.stored_bytes < bytes_before / 2
    assert sum(batch.num_rows for batch in subject.all_entries(0)) == 100


def test_a_table_of_an_earlier_version_is_continued() -> None:
    """A table that was written without views is continued, and readers find its groups in the new manifest."""
    store = MemoryStore()
    plain = TableLayout(KEYS, pa.schema([STATES.field("state_0")]), names=("name", "total"))
    old = StateTable(plain, Storage(store, bounds=SMALL))
    states = pa.RecordBatch.from_arrays([pa.array([7], pa.int64())], names=["state_0"])
    old.commit(keys_of(["a"]), np.ones(1, np.int64), states)
    subject = table(store, layout=plain, views=[])
    assert subject.lookup(keys_of(["a"])).states.column("state_0").to_pylist() == [7]
    subject.commit(keys_of(["b"]), np.ones(1, np.int64), states)
    again = table(store, layout=plain, views=[])
    assert again.lookup(keys_of(["a", "b"])).states.column("state_0").to_pylist() == [7, 7]
    assert Manifest.decode(store.value or b"").layout.description == plain.description


OTHERS = {
    "key": ViewSpec("seen", pa.string(), pa.int64()),
    "value": ViewSpec("seen", pa.float64(), pa.string()),
}


@pytest.mark.parametrize("difference", OTHERS)
def test_views_of_other_types_are_refused(difference: str) -> None:
    """A view whose types have changed is STATE_MISMATCH."""
    store = MemoryStore()
    table(store).declare()
    other = OTHERS[difference]
    state = pa.struct([("n", pa.int64()), ("seen", sent_type(other)), ("log", sent_type(LOG))])
    states = pa.schema([STATES.field("state_0"), pa.field("state_1", state, metadata=IDENTITY)])
    with pytest.raises(RejectedError) as excinfo:
        table(store, layout=replace(LAYOUT, states=states), views=[CallView(1, other), CallView(1, LOG)])
    assert excinfo.value.code == "STATE_MISMATCH"


def test_parts_of_large_states_are_joined() -> None:
    """Results whose entries came in several rows of a slot have one row for each slot again."""
    states = [
        {"n": 1, "seen": view([(float(each), each, True) for each in range(20)]), "log": view([(0, None, False)])},
        None,
        {"n": 3, "seen": view([]), "log": view([(each, f"item {each}", True) for each in range(9)], is_cleared=True)},
    ]
    schema = pa.schema([("slot", pa.int32()), *STATES, ("output_0", pa.int64())])
    columns = [pa.array([2, 5, 6], pa.int32()), pa.array([7, 8, 9]), pa.array(states, STATE), pa.array([1, 2, None])]
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    specs = [(), (SEEN, LOG)]
    parts = [part for row in range(3) for part in split_entries(whole.slice(row, 1), specs, 300)]
    together = one_batch(pa.Table.from_batches(parts))
    assert together.num_rows > 4
    assert one_row_each(together, VIEWS).to_pylist() == whole.to_pylist()
    assert one_row_each(whole, VIEWS) is whole


def test_text_hashes_never_change() -> None:
    """Hashes of texts are part of the stored format, and depend only on the text."""
    texts = ["", "a", "abcdefgh", "abcdefghi", "a\0", None, "ü" * 300]
    together = text_hashes(pa.array(texts, pa.string()))
    assert [int(text_hashes(pa.array(["x", text], pa.string()).slice(1))[0]) for text in texts] == together.tolist()
    assert len(set(together.tolist())) == len(texts)
    assert text_hashes(pa.array([b"a", None])).tolist() == together[[1, 5]].tolist()
    assert together[:2].tolist() == [16294208416658607535, 6774081908283191102]


def test_sizes_of_entries_are_about_their_bytes() -> None:
    """By their sizes, entries are stored beside the state of their group or apart from it."""
    assert _sizes(pa.array(["abc", "", None])).tolist() == [7, 4, 4]
    lists = pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64()))
    assert _sizes(lists).tolist() == [24, 8, 8, 16]
    assert _sizes(lists.slice(2)).tolist() == [8, 16]
    assert _sizes(pa.array([{"a": 1, "b": ["abc"]}, None])).tolist()[0] == 8 + (8 + 4 + 3)
    maps = pa.array([None, [("a", 1)], [("b", 2), ("cd", 3)]], pa.map_(pa.string(), pa.int64()))
    assert _sizes(maps).tolist() == [8, 8 + (4 + 1) + 8, 8 + (4 + 1) + (4 + 2) + 16]
    assert _sizes(maps.slice(2)).tolist() == [8 + (4 + 1) + (4 + 2) + 16]
