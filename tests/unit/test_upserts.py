"""Epochs of upsert streams without Spark, compared with a model in plain Python over restarts."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import RejectedError
from foldflight.engine.state.manifest import Storage, TableBounds
from foldflight.engine.state.table import MemoryStore
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.upserts import (
    IS_DELETED,
    NO_POSITION,
    SEQUENCE,
    UNSENT,
    UpsertLayout,
    epoch_of,
    has_order,
    order_codes,
    upsert_table,
)
from foldflight.functions import RowKind
from tests.effort import examples

DAY_US = 86_400_000_000
LAYOUT = UpsertLayout(
    keys=pa.schema([("key_0", pa.int64())]),
    names=("id",),
    sequence=pa.struct([("generation", pa.int32()), ("lsn", pa.int64())]),
    columns=pa.schema([("name", pa.string()), ("x", pa.float64()), ("tags", pa.list_(pa.string()))]),
    buckets=1,
)
Change = tuple[int, int, tuple[Any, ...] | None]
"""A key, the number of its sequence, and its values; None if it is deleted."""
Table = dict[int, tuple[Any, ...]]


def block(changes: Sequence[Change], layout: UpsertLayout = LAYOUT) -> pa.RecordBatch:
    keys, numbers, rows = zip(*changes, strict=True) if changes else ((), (), ())
    is_pair = pa.types.is_struct(layout.sequence)
    sequence = [{"generation": number // 10, "lsn": number % 10} if is_pair else number for number in numbers]
    columns = [
        pa.array(keys, pa.int64()),
        pa.array(sequence, layout.sequence),
        pa.array([row is None for row in rows], pa.bool_()),
        *(
            pa.array([None if row is None or row[at] == UNSENT else row[at] for row in rows], field.type)
            for at, field in enumerate(layout.columns)
        ),
    ]
    assert layout.rows.names[1:3] == [SEQUENCE, IS_DELETED]
    if layout.is_partial:
        names = layout.columns.names
        columns.append(
            pa.array(
                [[name for name, value in zip(names, row or (), strict=False) if value == UNSENT] for row in rows],
                pa.list_(pa.string()),
            )
        )
    return pa.RecordBatch.from_arrays(columns, schema=layout.rows)


class Upserted:
    """A bucket, and the table that its changes lead to."""

    def __init__(self, layout: UpsertLayout = LAYOUT, **bounds: int) -> None:
        self.layout = layout
        self.store = MemoryStore()
        self.storage = Storage(self.store, bounds=TableBounds(**bounds))
        self.table: Table = {}
        self.stats = EpochStats()

    def epoch(self, *blocks: Sequence[Change], now_us: int = 0) -> list[tuple[str, int]]:
        """Send blocks of changes; return the kinds and keys of what has changed."""
        batches = [block(each, self.layout) for each in blocks]
        self.stats, kinds, rows = epoch_of(self.layout, self.storage, batches, now_us)
        emitted_kinds = []
        for kind, (key, *values) in zip(kinds.to_pylist(), zip(*rows.to_pydict().values(), strict=True), strict=True):
            short = RowKind(kind).short
            emitted_kinds.append((short, key))
            if short in ("-U", "-D"):
                assert repr(self.table.pop(key)) == repr(tuple(values))
            else:
                assert key not in self.table
                self.table[key] = tuple(values)
        return emitted_kinds


VALUES = st.tuples(
    st.sampled_from([None, "", "ann", "bob"]),
    st.sampled_from([None, 0.5, math.nan]),
    st.sampled_from([None, [], ["a", None]]),
)


@st.composite
def logs(draw: st.DrawFn) -> list[list[list[Change]]]:
    """Changes of a few keys, in any order and some of them several times, in blocks of epochs."""
    rows = draw(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), VALUES)), min_size=1, max_size=20))
    changes = [(key, number, row) for number, (key, row) in enumerate(rows)]
    sent_changes = draw(st.permutations([*changes, *draw(st.lists(st.sampled_from(changes), max_size=10))]))
    epochs: list[list[list[Change]]] = [[[]]]
    for change in sent_changes:
        where = draw(st.sampled_from(["here", "here", "block", "epoch"]))
        if where == "block":
            epochs[-1].append([])
        elif where == "epoch":
            epochs.append([[]])
        epochs[-1][-1].append(change)
    return [actual for epoch in epochs if (actual := [part for part in epoch if part])]


@examples(400)
@given(logs())
def test_any_epochs_lead_to_the_last_row_of_each_key(epochs: list[list[list[Change]]]) -> None:
    """Whatever comes late, again, in another order or after a restart; an epoch changes a key once."""
    bucket = Upserted(fan_in=2)
    last: dict[int, Change] = {}
    for epoch in epochs:
        before = dict(last)
        for change in (each for part in epoch for each in part):
            if change[0] not in last or last[change[0]][1] < change[1]:
                last[change[0]] = change
        emitted_kinds = bucket.epoch(*epoch)
        assert repr(sorted(bucket.table.items())) == repr(
            sorted((key, row) for key, _, row in last.values() if row is not None)
        )
        inserted_keys = [key for kind, key in emitted_kinds if kind in ("+I", "+U", "-D")]
        assert len(inserted_keys) == len(set(inserted_keys))
        stale = [c for part in epoch for c in part if c[0] in before and c[1] <= before[c[0]][1]]
        assert bucket.stats.stale_changes == len(stale)
        assert bucket.stats.rows == sum(map(len, epoch))
        bucket.storage = Storage(bucket.store, bounds=bucket.storage.bounds)  # a restart


def test_kinds_of_changes() -> None:
    """A key has one change in an epoch: an insert, an update or a deletion; none if only its sequence has changed."""
    bucket, a, b = Upserted(), ("a", 1.0, None), ("b", 1.0, None)
    assert bucket.epoch([(1, 1, a), (2, 1, a), (3, 1, a), (3, 2, None)]) == [("+I", 1), ("+I", 2)]
    assert bucket.epoch([(1, 2, b), (1, 3, b), (2, 2, a)]) == [("-U", 1), ("+U", 1)]
    assert bucket.epoch([(2, 1, b)]) == []
    assert bucket.epoch([(1, 5, None), (1, 4, a)]) == [("-D", 1)]
    assert bucket.epoch([(1, 6, a), (1, 7, None)]) == []


def test_a_tombstone_is_kept_until_its_ttl() -> None:
    """An older row does not revive a deleted key; after the ttl it does, and merges remove the tombstone."""
    row = ("a", 1.0, None)
    bucket = Upserted(dataclasses.replace(LAYOUT, ttl_us=DAY_US), fan_in=2)
    bucket.epoch([(1, 5, row), (2, 5, row)])
    assert bucket.epoch([(1, 7, None)], now_us=DAY_US) == [("-D", 1)]
    assert bucket.epoch([(1, 6, row)], now_us=2 * DAY_US - 1) == []
    bucket_without_ttl = Upserted(dataclasses.replace(LAYOUT, ttl_us=None))
    bucket_without_ttl.store.value, bucket_without_ttl.store.runs = bucket.store.value, dict(bucket.store.runs)
    assert bucket_without_ttl.epoch([(1, 6, row)], now_us=99 * DAY_US) == []  # another ttl, or none, goes on
    assert bucket.epoch([(1, 6, row)], now_us=2 * DAY_US) == [("+I", 1)]
    assert bucket.epoch([(2, 4, row)], now_us=99 * DAY_US) == []  # rows that are not deleted stay
    assert bucket.table == {1: row, 2: row}


def test_merges_remove_old_tombstones_and_do_not_revive_older_rows() -> None:
    """The state of keys that were deleted long ago has no bytes left."""
    bucket = Upserted(dataclasses.replace(LAYOUT, ttl_us=DAY_US), fan_in=2)
    keys = range(100)
    bucket.epoch([(key, 1, ("a", 1.0, None)) for key in keys])
    bucket.epoch([(key, 2, None) for key in keys], now_us=DAY_US)
    for day in range(3, 12):
        bucket.epoch([(1000 + day, 1, ("b", 2.0, None))], now_us=day * DAY_US)
        assert not set(bucket.table) & set(keys)
    assert bucket.stats.state_bytes < 10_000
    stored_table = upsert_table(bucket.layout, bucket.storage, 12 * DAY_US)
    assert sum(part.num_rows for part in stored_table.scan()) == 9


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_two_rows_with_one_sequence_are_refused(split: bool, is_stored: bool) -> None:
    """In a block, in two of an epoch, and against the stored row; the same row is a repeat."""
    one, other = (1, 7, ("a", math.nan, ["x"])), (1, 7, ("a", math.nan, ["y"]))
    bucket = Upserted()
    bucket.epoch([one, one], [one])
    bucket.epoch([one])
    assert bucket.stats.stale_changes == 1
    bucket = Upserted()
    if is_stored:
        bucket.epoch([one])
    with pytest.raises(RejectedError, match="two different rows of this key have the sequence") as excinfo:
        bucket.epoch(*([[one], [other]] if split else [[other, one]]))
    assert excinfo.value.code == "SCHEMA_MISMATCH"
    assert excinfo.value.group == {"id": 1}
    with pytest.raises(RejectedError, match="two different rows"):
        bucket.epoch([(1, 7, None), one])


PARTIAL = dataclasses.replace(
    LAYOUT, columns=pa.schema([("a", pa.string()), ("b", pa.list_(pa.int64()))]), is_partial=True
)


@st.composite
def partial_logs(draw: st.DrawFn) -> list[list[list[Change]]]:
    """Changes of a few keys that do not send all columns, nearly in order, in blocks of epochs."""
    rows = st.tuples(st.sampled_from(["x", None, UNSENT, UNSENT]), st.sampled_from([[1, None], UNSENT, None]))
    log = draw(st.lists(st.tuples(st.integers(0, 1), st.one_of(rows, rows, rows, st.none())), min_size=1, max_size=12))
    log = [(0, ("first", [0])), (1, ("first", [])), *log]
    changes = [(key, number, row) for number, (key, row) in enumerate(log)]
    for _ in range(draw(st.integers(0, 4))):
        one, other = (draw(st.integers(0, len(changes) - 1)) for _ in range(2))
        changes[one], changes[other] = changes[other], changes[one]
    epochs: list[list[list[Change]]] = [[[]]]
    for change in [*changes, *draw(st.lists(st.sampled_from(changes), max_size=4))]:
        where = draw(st.sampled_from(["here", "block", "epoch"]))
        if where == "block":
            epochs[-1].append([])
        elif where == "epoch":
            epochs.append([[]])
        epochs[-1][-1].append(change)
    return [actual for epoch in epochs if (actual := [part for part in epoch if part])]


def complete(changes: Sequence[Change]) -> Any:
    """Return the last row of a key after all changes that have arrived; a column that none has sent is UNSENT."""
    row: Any = None
    for _, _, values in sorted({change[1]: change for change in changes}.values()):
        before = (UNSENT,) * 2 if row is None else row
        row = (
            None
            if values is None
            else tuple(old if new == UNSENT else new for old, new in zip(before, values, strict=True))
        )
    return row


@examples(600)
@given(partial_logs())
def test_columns_that_were_not_sent_keep_the_value_of_the_change_before(epochs: list[list[list[Change]]]) -> None:
    """Also if that arrives later; a value that no change has sent is refused."""
    bucket = Upserted(PARTIAL, fan_in=2)
    changes_of_key: dict[int, list[Change]] = {}
    for epoch in epochs:
        for change in (each for part in epoch for each in part):
            changes_of_key.setdefault(change[0], []).append(change)
        expected = {key: row for key, changes in changes_of_key.items() if (row := complete(changes)) is not None}
        if any(UNSENT in row for row in expected.values()):
            with pytest.raises(RejectedError, match=r"a change did not send the column [ab], and"):
                bucket.epoch(*epoch)
            return
        bucket.epoch(*epoch)
        assert bucket.table == expected
        bucket.storage = Storage(bucket.store, bounds=bucket.storage.bounds)


def test_kept_values_are_kept_with_their_sequence() -> None:
    """A change that arrives late sets what later ones have kept, and nothing else."""
    bucket = Upserted(PARTIAL)
    bucket.epoch([(1, 1, ("a", [1])), (1, 5, (UNSENT, [5]))])
    assert bucket.table == {1: ("a", [5])}
    assert bucket.epoch([(1, 3, ("c", [3]))]) == [("-U", 1), ("+U", 1)]
    assert bucket.table == {1: ("c", [5])}
    assert bucket.epoch([(1, 2, ("b", [2])), (1, 5, (UNSENT, [5]))]) == []
    assert bucket.stats.stale_changes == 2
    with pytest.raises(RejectedError, match="two different rows of this key have the sequence"):
        bucket.epoch([(1, 5, (UNSENT, [6]))])
    with pytest.raises(RejectedError, match="a change did not send the column a") as excinfo:
        bucket.epoch([(1, 4, None)])
    assert excinfo.value.group == {"id": 1}


def other_columns(**types: pa.DataType) -> UpsertLayout:
    return dataclasses.replace(LAYOUT, columns=pa.schema(list(types.items())))


LOG = dataclasses.replace(
    LAYOUT,
    sequence=pa.struct(
        [
            ("position", pa.int64()),
            ("offset", pa.int64()),
            ("partition", pa.int32()),
            ("is_snapshot", pa.bool_()),
            ("time", pa.int64()),
        ]
    ),
    columns=pa.schema([("name", pa.string())]),
    has_positions=True,
)


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_snapshot_of_another_log_is_refused(is_partial: bool) -> None:
    """Its positions begin again, so all changes of the other server were taken for old ones."""
    layout = dataclasses.replace(LOG, is_partial=is_partial)

    def run(place: tuple[int, int, int, bool], storage: Storage, unsent_columns: Sequence[str] = ()) -> EpochStats:
        row = {
            "key_0": 1,
            "sequence": dict(zip((field.name for field in layout.sequence), place, strict=False)),
            "is_deleted": False,
            "value_0": None if unsent_columns else f"{place}",
            **({"unsent": unsent_columns} if is_partial else {}),
        }
        batch = pa.RecordBatch.from_pylist([row], schema=layout.rows)
        return epoch_of(layout, storage, [batch], 0)[0]

    for late in [(50, 9, 0, False), (50, 9, 1, True), (50, 3, 0, True)]:  # not of a snapshot, elsewhere, sent before
        storage = Upserted(layout).storage
        run((99, 4, 0, False), storage)
        run((100, 5, 0, False), storage, ["name"] if is_partial else ())
        assert run(late, storage).stale_changes == 1
    with pytest.raises(RejectedError, match="the positions are of another log") as excinfo:
        run((50, 9, 0, True), storage)
    assert excinfo.value.group == {"id": 1}
    assert run((200, 10, 0, True), storage).stale_changes == 0  # another snapshot of the same log


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize("epochs", [[[0], [1]], [[0, 1]], [[1, 0]], [[1], [0]]])
def test_a_change_of_another_generation_is_not_dropped(epochs: list[list[int]], is_partial: bool) -> None:
    """After a failover positions begin again. A change committed later than the last one of its key is not an old one.

    If the change of the other log comes first, in an epoch of its own, that is seen at the change with the higher
    position: it was committed before.
    """
    layout = dataclasses.replace(LOG, is_partial=is_partial)

    def run(changes: Sequence[tuple[int, int, bool, int | None]], blocks: int = 1) -> list[int]:
        storage = Upserted(layout).storage
        stale = []
        for epoch in epochs:
            rows = [
                {
                    "key_0": 1,
                    "sequence": {
                        "position": position,
                        "offset": offset,
                        "partition": 0,
                        "is_snapshot": is_snapshot,
                        "time": time,
                    },
                    "is_deleted": False,
                    "value_0": f"{position}",
                    **({"unsent": []} if is_partial else {}),
                }
                for position, offset, is_snapshot, time in (changes[at] for at in epoch)
            ]
            parts = [rows] if blocks == 1 else [[row] for row in rows]
            batches = [pa.RecordBatch.from_pylist(part, schema=layout.rows) for part in parts]
            stale.append(epoch_of(layout, storage, batches, 0)[0].stale_changes)
        return stale

    old, new = (99, 4, False, 7_001), (50, 5, False, 7_002)
    for late in ((50, 5, False, 7_001), (50, 5, False, None), (50, 3, True, 8_001)):
        run([old, late])  # sent again or late; without a time; of a snapshot that was read later
    run([old, (50, 3, False, 8_001)])  # the clock of the database went back
    run([(99, 4, False, 7_000), (50, 5, False, 3_607_000)])  # MySQL: a statement waited for another one, sent again
    if epochs == [[1], [0]]:
        return  # what came first is stored, and the other one is newer by its position
    for blocks in (1, 2):
        for other in (new, (50, 5, False, 3_608_000)):
            with pytest.raises(
                RejectedError, match=r"'position': 99.*'position': 50.*'offset': 5.*failover"
            ) as excinfo:
                run([old, other], blocks)
            assert excinfo.value.group == {"id": 1}


def test_a_sequence_may_have_fields_with_the_names_of_those_of_a_log() -> None:
    """They say nothing of snapshots and of Kafka then."""
    sequence = pa.struct([("is_snapshot", pa.bool_()), ("position", pa.string())])
    layout = dataclasses.replace(LOG, sequence=sequence, has_positions=False)
    storage = Upserted(layout).storage
    for position, stale in [("b", 0), ("a", 1)]:
        row = {"key_0": 1, "sequence": {"is_snapshot": True, "position": position}, "is_deleted": False}
        batch = pa.RecordBatch.from_pylist([row], schema=layout.rows)
        assert epoch_of(layout, storage, [batch], 0)[0].stale_changes == stale


def test_a_deletion_without_a_position_stands_behind_what_came_before_it() -> None:
    """It is after them in its partition, in the state or in the same epoch. Later events of the log are still later."""
    bucket = Upserted(LOG)

    def run(*places: tuple[int, int, int]) -> list[tuple[str, str | None]]:
        rows = [
            {
                "key_0": 1,
                "sequence": {"position": position, "offset": offset, "partition": partition, "is_snapshot": False},
                "is_deleted": position == NO_POSITION,
                "value_0": None if position == NO_POSITION else f"{position}",
            }
            for position, offset, partition in places
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=LOG.rows)
        _, kinds, actual = epoch_of(LOG, bucket.storage, [batch], 0)
        names = [RowKind(kind).short for kind in kinds.to_pylist()]
        return list(zip(names, actual.column(1).to_pylist(), strict=True))

    assert run((NO_POSITION, 0, 0)) == []
    assert run((40, 3, 0)) == [("+I", "40")]
    assert run((NO_POSITION, 2, 0)) == run((NO_POSITION, 9, 1)) == []  # before the row; in another partition
    assert run((NO_POSITION, 7, 0)) == [("-D", "40")]
    assert run((30, 8, 0)) == []
    assert run((NO_POSITION, 12, 0), (50, 11, 0), (60, 13, 0)) == [("+I", "60")]
    assert run((NO_POSITION, 16, 0), (70, 15, 0)) == [("-D", "60")]


def test_columns_may_be_added_and_left_out() -> None:
    """An added column is NULL until the next change of its row, which may be the same one, sent again."""
    bucket = Upserted()
    bucket.epoch([(1, 1, ("a", 0.5, ["t"])), (2, 1, ("b", 0.5, None)), (3, 1, ("c", 1.5, None))])
    bucket.epoch([(3, 2, None)])
    bucket.layout = other_columns(name=pa.string(), city=pa.string(), x=pa.float64())
    bucket.table = {1: ("a", None, 0.5), 2: ("b", None, 0.5)}
    assert bucket.epoch([(1, 1, ("a", "Rome", 0.5))]) == [("-U", 1), ("+U", 1)]
    assert bucket.epoch([(2, 2, ("b", "Oslo", 0.5)), (3, 1, ("c", "Bonn", 1.5))]) == [("-U", 2), ("+U", 2)]
    assert bucket.table == {1: ("a", "Rome", 0.5), 2: ("b", "Oslo", 0.5)}
    with pytest.raises(RejectedError, match="two different rows"):
        bucket.epoch([(1, 1, ("a", "Bonn", 0.5))])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            other_columns(name=pa.string(), x=pa.int64()),
            "the stored rows have the column x as DOUBLE, and",
        ),
        (
            dataclasses.replace(LAYOUT, sequence=pa.int64()),
            "has other types of sequence_by than the query: stored",
        ),
        (
            dataclasses.replace(
                LAYOUT, keys=pa.schema([*LAYOUT.keys, ("key_1", pa.string())]), names=("id", "customer")
            ),
            "other grouping keys than the query: stored id int64, the query has id int64, customer string; ",
        ),
        (dataclasses.replace(LAYOUT, buckets=2), "has other buckets than the query: stored 1"),
    ],
)
def test_columns_that_cannot_be_migrated_are_refused_by_name(layout: UpsertLayout, message: str) -> None:
    """With what to do."""
    bucket = Upserted()
    bucket.epoch([(1, 1, ("a", 0.5, None))])
    with pytest.raises(RejectedError, match=message) as excinfo:
        epoch_of(layout, bucket.storage, [], 0)
    assert excinfo.value.code == "STATE_MISMATCH"
    assert "empty checkpoint" in excinfo.value.message


def test_a_key_alone_is_a_row() -> None:
    """A table may have no other columns."""
    bucket = Upserted(other_columns())
    assert bucket.epoch([(1, 1, ()), (2, 1, ()), (2, 2, None)]) == [("+I", 1)]
    assert bucket.epoch([(1, 2, None), (1, 1, ()), (2, 3, ())]) == [("-D", 1), ("+I", 2)]


DATES = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(1970, 1, 1)]


@pytest.mark.parametrize(
    ("type_", "sorted_values"),
    [
        (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
        (pa.int8(), [-128, -1, 0, 127]),
        (pa.bool_(), [False, True]),
        (pa.float64(), [-math.inf, -1.5, -5e-324, 0.0, 5e-324, 1.5, math.inf, math.nan]),
        (pa.float32(), [-math.inf, -1.5, 0.0, 1.5, math.inf, math.nan]),
        (
            pa.decimal128(38, 2),
            [decimal.Decimal(each) for each in (-(10**30), -1, "-0.01", 0, "0.01", 1, 2**70, 10**30)],
        ),
        (pa.string(), ["", "Z", "a", "aa", "ä", "\N{PILE OF POO}"]),
        (pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"\xff"]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
        (pa.timestamp("us"), DATES),
        (pa.time64("us"), [dt.time(0), dt.time(23, 59)]),
        (
            pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
            [
                {"a": None, "b": {"c": "x"}},
                {"a": 1, "b": None},
                {"a": 1, "b": {"c": None}},
                {"a": 1, "b": {"c": ""}},
                {"a": 2, "b": None},
            ],
        ),
    ],
    ids=str,
)
def test_codes_have_the_order_of_the_values(type_: pa.DataType, sorted_values: list[Any]) -> None:
    """NULL comes first, and NaN last."""
    assert has_order(type_)
    order = np.random.default_rng(0).permutation(len(sorted_values) + 1)
    values = pa.array([None, *sorted_values], type_).take(pa.array(order))
    for array in (values, pa.concat_arrays([values.slice(0, 1), values]).slice(1)):
        actual = np.lexsort([*order_codes(array)][::-1])
        assert order[actual].tolist() == list(range(len(sorted_values) + 1))
    twice = pa.concat_arrays([values, values])
    codes = list(zip(*(each.tolist() for each in order_codes(twice)), strict=True))
    assert codes[: len(values)] == codes[len(values) :]


def test_negative_zero_is_zero_and_lists_have_no_order() -> None:
    """Sequences are compared as Spark compares values."""
    (codes,) = order_codes(pa.array([0.0, -0.0]))
    assert codes[0] == codes[1]
    assert not has_order(pa.list_(pa.int64()))
    assert not has_order(pa.struct([("a", pa.map_(pa.string(), pa.int64()))]))
    assert not has_order(pa.month_day_nano_interval())
