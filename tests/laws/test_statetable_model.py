"""The state table compared with a dict: random epochs, small bounds, forced collisions, reopened at any time."""

import datetime as dt
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import CorruptError, RejectedError, connect
from foldflight.engine.keys.hashes import _text, key_hashes
from foldflight.engine.state.manifest import Manifest, Storage
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import MemoryStore, StateTable, TableBounds, TableLayout
from foldflight.testing import run_epochs
from tests.effort import examples

KEYS = pa.schema([("name", pa.string()), ("x", pa.float64())])
STATES = pa.schema(
    [
        pa.field("state_0", pa.int64(), metadata={"function": "f", "version": "1", "fingerprint": "ab"}),
        ("state_1", pa.list_(pa.int64())),
    ]
)
LAYOUT = TableLayout(KEYS, STATES, buckets=4)
SMALL = TableBounds(piece_rows_max=3, fan_in=2, merge_rows_max=4, merge_share=2)


Store = MemoryStore


IDS = count()


def table(
    store: Store,
    cache: RunCache | None = None,
    layout: TableLayout = LAYOUT,
    bounds: TableBounds = SMALL,
    **options: Any,
) -> StateTable:
    return StateTable(layout, Storage(store, cache, bounds, lambda *_: f"run {next(IDS)}"), **options)


def stored_manifest(store: Store) -> Manifest:
    data = store.manifest()
    assert data is not None
    return Manifest.decode(data)


def keys_of(keys: list[tuple[str | None, float | None]]) -> pa.RecordBatch:
    columns = [pa.array([key[place] for key in keys], KEYS.types[place]) for place in range(2)]
    return pa.RecordBatch.from_arrays(columns, schema=KEYS)


def states_of(values: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.int64()), pa.array([[v] for v in values], STATES.types[1])], names=["state_0", "state_1"]
    )


def colliding_hashes(keys: pa.RecordBatch) -> Any:
    """Three hashes for all keys, at the ends and in the middle of their range."""
    return np.array([0, 2**63, 2**64 - 1], np.uint64)[key_hashes(keys) % np.uint64(3)]


def skewed_hashes(keys: pa.RecordBatch) -> Any:
    """Hashes that all lie in a small part of their range."""
    return np.uint64(77 << 40) | (key_hashes(keys) >> np.uint64(40))


HASHES = {"even": key_hashes, "colliding": colliding_hashes, "skewed": skewed_hashes}
POOL = [(name, x) for name in ("a", "b", "", None) for x in (0.0, 1.5, float("nan"), None)]
EPOCHS = st.lists(
    st.dictionaries(st.integers(0, len(POOL) - 1), st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=8),
    max_size=14,
)


@examples(150)
@given(EPOCHS, st.sampled_from(sorted(HASHES)), st.sampled_from([0, 300, 1 << 20]), st.booleans())
def test_the_table_has_the_content_of_a_dict(
    epochs: list[dict[int, tuple[int, int]]], hashes: str, cache_bytes: int, reopen: bool
) -> None:
    """After every epoch each lookup and the scan equal a dict's, whatever was merged or split."""
    store, cache = Store(), RunCache(bytes_max=cache_bytes)
    options = {"hashes": HASHES[hashes]}
    subject = table(store, cache, **options)
    model: dict[int, tuple[int, int]] = {}
    for epoch in epochs:
        places = list(epoch)
        if reopen:
            subject = table(store, cache, **options)
        live = np.array([epoch[place][0] for place in places], np.int64)
        commit = subject.commit(keys_of([POOL[p] for p in places]), live, states_of([epoch[p][1] for p in places]))
        model |= epoch
        result = subject.lookup(keys_of(POOL))
        expected = [model.get(place, (0, 0)) for place in range(len(POOL))]
        assert result.live.tolist() == [live for live, _ in expected]
        assert result.present.tolist() == [live > 0 for live, _ in expected]
        states = result.states.column("state_0").to_pylist()
        lists = result.states.column("state_1").to_pylist()
        for (live_rows, value), state, several in zip(expected, states, lists, strict=True):
            assert not live_rows or (state, several) == (value, [value])
        assert cache.bytes <= cache_bytes
        assert commit.runs == len({piece.id for piece in stored_manifest(store).pieces})
    rows = [row for batch in subject.scan() for row in batch.to_pylist()]
    assert sorted((row["live"], row["state_0"]) for row in rows) == sorted(v for v in model.values() if v[0] > 0)
    if epochs:
        outputs = {piece.id for merge in stored_manifest(store).merges for piece in merge.outputs}
        assert (
            store.runs.keys() == {piece.id for piece in stored_manifest(store).pieces} | outputs
        )  # nothing is left behind
    else:
        assert not store.runs


def test_a_table_without_keys_has_one_group() -> None:
    """A table without keys has one group."""
    layout = TableLayout(pa.schema([]), STATES)
    subject = table(Store(), layout=layout)
    nobody = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    assert subject.lookup(nobody).present.tolist() == [False]
    for value in range(9):
        subject.commit(nobody, np.array([1], np.int64), states_of([value]))
        assert subject.lookup(nobody).states.column("state_0").to_pylist() == [value]


def test_small_epochs_do_not_merge_a_bulk_load() -> None:
    """A run that is as large as the runs of the next level becomes one of them, without being written again."""
    subject = table(Store(), bounds=TableBounds(fan_in=4, merge_rows_max=400))
    for start in (0, 500):
        load = [(str(place), 0.0) for place in range(start, start + 500)]
        subject.commit(keys_of(load), np.ones(500, np.int64), states_of([-1] * 500))
    for epoch in range(40):
        commit = subject.commit(
            keys_of([("7", 0.0), (f"new {epoch}", None)]), np.ones(2, np.int64), states_of([epoch, 0])
        )
        assert commit.merged_rows <= 2 * (4 + 16)
    assert subject.lookup(keys_of([("7", 0.0), ("8", 0.0)])).states.column("state_0").to_pylist() == [39, -1]
    assert sum(batch.num_rows for batch in subject.scan()) == 1_040


@pytest.mark.parametrize("hashes", ["even", "skewed"])
def test_the_work_of_an_epoch_is_bounded(hashes: str) -> None:
    """No epoch merges much more than its budget, and merges do not fall behind, however hashes are distributed."""
    bounds = TableBounds(piece_rows_max=64, fan_in=4, merge_rows_max=100, merge_share=6)
    store = Store()
    subject = table(store, RunCache(bytes_max=1 << 24), bounds=bounds, hashes=HASHES[hashes])
    for epoch in range(120):
        keys = keys_of([(str((epoch * 7 + each) % 900), 0.0) for each in range(20)])
        commit = subject.commit(keys, np.ones(20, np.int64), states_of(list(range(20))))
        assert commit.merged_rows <= 200
    assert len(stored_manifest(store).runs) < 30
    levels = [run.level for run in stored_manifest(store).runs]
    assert levels == sorted(levels, reverse=True)
    sizes = [batch.num_rows for batch in subject.scan()]
    assert sum(sizes) == 119 * 7 + 20
    assert max(sizes) <= bounds.piece_rows_max


def test_large_states_are_cut_and_merged_by_their_bytes() -> None:
    """Few groups with large states have many pieces, and no epoch merges more bytes than its budget of rows."""
    layout = TableLayout(KEYS, pa.schema([("state_0", pa.list_(pa.int64()))]))
    bounds = TableBounds(piece_rows_max=64, row_bytes=128, fan_in=4, merge_rows_max=100, merge_share=2)
    store = Store()
    subject = table(store, layout=layout, bounds=bounds)
    size = 100  # numbers: 800 bytes, 20 groups of which are two pieces and more
    for epoch in range(40):
        keys = keys_of([(str((epoch * 7 + each) % 90), 0.0) for each in range(20)])
        values = pa.array([[epoch + each] * size for each in range(20)], layout.states.types[0])
        states = pa.RecordBatch.from_arrays([values], names=["state_0"])
        commit = subject.commit(keys, np.ones(20, np.int64), states)
        assert commit.merged_rows <= 2 * 2 * 20 * 8 * size / bounds.row_bytes
        assert max(len(data) for data in store.runs.values()) < 2 * bounds.piece_rows_max * bounds.row_bytes
        assert subject.lookup(keys).states.column("state_0").to_pylist() == values.to_pylist()
    assert len(stored_manifest(store).runs) < 20
    assert sum(batch.num_rows for batch in subject.scan()) == 90


def test_damage_is_found() -> None:
    """A flipped byte in a run or in the manifest, and a missing run, are CorruptError."""
    store = Store()
    table(store).commit(keys_of([("a", 1.0)]), np.array([1], np.int64), states_of([1]))
    (run_id, good), manifest = next(iter(store.runs.items())), store.value
    assert manifest is not None
    for damaged_bytes in (good[:-1], good[:20] + bytes([good[20] ^ 1]) + good[21:], b"", b"FFR1"):
        store.runs[run_id] = damaged_bytes
        with pytest.raises(CorruptError, match="damaged or truncated") as excinfo:
            table(store).lookup(keys_of([("a", 1.0)]))
        assert excinfo.value.code == "STATE_CHECKSUM"
    del store.runs[run_id]
    with pytest.raises(CorruptError, match="but not in the state store"):
        table(store).lookup(keys_of([("a", 1.0)]))
    store.value = manifest[:-3] + b"{}}"
    with pytest.raises(CorruptError, match="the manifest"):
        table(store)


OTHERS = {
    "other grouping keys": TableLayout(pa.schema([("name", pa.string())]), STATES, 4),
    "other calls": TableLayout(
        KEYS, pa.schema([pa.field("state_0", pa.int64(), metadata={"function": "f", "version": "2"})]), 4
    ),
    "other buckets": TableLayout(KEYS, STATES, 8),
    "other windows than the query: stored none, the query has tumble": TableLayout(KEYS, STATES, 4, window="tumble"),
}


@pytest.mark.parametrize("difference", OTHERS)
def test_another_query_does_not_read_the_table(difference: str) -> None:
    """A table of another layout is STATE_MISMATCH, with the difference."""
    store = Store()
    table(store).commit(keys_of([("a", 1.0)]), np.array([1], np.int64), states_of([1]))
    with pytest.raises(RejectedError, match=difference) as excinfo:
        table(store, layout=OTHERS[difference])
    assert excinfo.value.code == "STATE_MISMATCH"


def test_hashes_never_change() -> None:
    """Hashes are part of the stored format: they never change, and depend only on the key."""
    schema = pa.schema([("i", pa.int64())])
    alone = key_hashes(pa.RecordBatch.from_arrays([pa.array([5], pa.int64())], schema=schema))
    beside = key_hashes(pa.RecordBatch.from_arrays([pa.array([None, 5], pa.int64())], schema=schema))
    assert alone[0] == beside[1]
    assert beside[0] != beside[1]
    negative = key_hashes(pa.RecordBatch.from_arrays([pa.array([-5], pa.int64())], schema=schema))
    assert negative[0] == key_hashes(pa.RecordBatch.from_arrays([pa.array([None, -5], pa.int64())], schema=schema))[1]
    assert key_hashes(keys_of([("ann", 1.5)])).tolist() == [FOREVER]


def test_nan_within_a_key_is_found() -> None:
    """A group whose key is a struct with NaN is found again in the next epoch."""
    keys = pa.schema([("k", pa.struct([("x", pa.float64())]))])
    batch = pa.RecordBatch.from_arrays([pa.array([{"x": float("nan")}, {"x": None}], keys.types[0])], schema=keys)
    store = Store()
    layout = TableLayout(keys, STATES, buckets=4)
    table(store, layout=layout).commit(batch, np.array([1, 1]), states_of([7, 8]))
    result = table(store, layout=layout).lookup(batch)
    assert result.present.tolist() == [True, True]
    assert result.states.column("state_0").to_pylist() == [7, 8]


def test_zeros_within_a_key_are_one_group() -> None:
    """A group whose key is a list with 0.0 is found again by the list with -0.0."""
    zeros: list[list[Any]] = [[{"k": [0.0], "v": 1}], [{"k": [-0.0], "v": 2}], [("-D", {"k": [-0.0], "v": 2})]]
    total = connect("embedded:")["sum"]("v")
    epochs = run_epochs({"n": total}, zeros, keys=["k"], types={"k": pa.list_(pa.float64())})
    assert [[(kind, row["n"]) for kind, row in epoch.changelog] for epoch in epochs] == [
        [("+I", 1)],
        [("-U", 1), ("+U", 3)],
        [("-U", 3), ("+U", 1)],
    ]
    assert epochs[-1].live == {((0.0,),): 1}


class _Utc(dt.tzinfo):
    """A zone as pytz makes it."""

    zone = "UTC"

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)

    def dst(self, _: dt.datetime | None) -> None:
        return None

    def tzname(self, _: dt.datetime | None) -> str:
        return self.zone


def test_hashes_of_times_do_not_depend_on_the_version_of_pyarrow() -> None:
    """Older versions return times within keys with zones of pytz."""
    at = dt.datetime(2013, 1, 1, tzinfo=ZoneInfo("UTC"))
    keys = pa.array([{"window": [at, None]}], pa.struct([("window", pa.list_(pa.timestamp("us", "UTC")))]))
    (result,) = key_hashes(pa.RecordBatch.from_arrays([keys], names=["k"])).tolist()
    (expected,) = key_hashes(pa.RecordBatch.from_arrays([pa.array([repr({"window": [at, None]})])], names=["k"]))
    assert result == expected
    older = {"window": [at.replace(tzinfo=_Utc()), None]}
    assert repr(older) != repr({"window": [at, None]})
    assert _text(older) == repr({"window": [at, None]})


def test_keys_need_not_be_utf8() -> None:
    """A Spark string that is not UTF-8 has the hash of its bytes."""
    keys = pa.array([b"ann", b"\xff", None])
    texts, raw = (pa.RecordBatch.from_arrays([each], names=["k"]) for each in (keys.view(pa.string()), keys))
    assert key_hashes(texts).tolist() == key_hashes(raw).tolist()


FOREVER = 12678844572845702390
