"""Names of the pieces of states: the same if Spark repeats an epoch with the same rows, and unique otherwise.

Rows are the same if their order is, too: the order of their partitions, whatever the network does.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight.engine.state.manifest import Storage
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import TableLayout
from foldflight.engine.state.viewtable import StateTable, table_of
from foldflight.errors import CorruptError
from foldflight.spark import bucketed
from foldflight.spark.bucketed import BucketStore, RunNames, in_order, stored_name

LAYOUT = TableLayout(pa.schema([("k", pa.int64())]), pa.schema([("state_0", pa.string())]))


class Task:
    """The context of a task."""

    epoch: str | None = "7"

    @classmethod
    def get(cls) -> Any:
        return cls

    @classmethod
    def getLocalProperty(cls, name: str) -> str | None:  # noqa: N802
        assert name == "streaming.sql.batchId"
        return cls.epoch


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> type[Task]:
    monkeypatch.setattr(bucketed, "TaskContext", Task)
    monkeypatch.setattr(Task, "epoch", "7")
    return Task


class Variables(dict[Any, Any]):
    """The state variables of a bucket, as a map state and the row of the manifest."""

    getValue, removeKey = dict.get, dict.__delitem__  # noqa: N815

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self[key] = value

    def commit(self, cache: RunCache | None, states: dict[int, str]) -> dict[Any, Any]:
        """Run an epoch that sets states of groups, and return its changelog."""
        before = dict(self)
        keys = pa.RecordBatch.from_pydict({"k": pa.array(states, pa.int64())})
        column = pa.RecordBatch.from_pydict({"state_0": pa.array(states.values(), pa.string())})
        self.table(cache).commit(keys, np.ones(len(states), np.int64), column)
        return {key: value for key, value in self.items() if before.get(key) != value}

    def table(self, cache: RunCache | None) -> StateTable:
        """Open the table, as the task of an epoch does."""
        store = BucketStore(lambda: self.get("manifest"), lambda row: self.updateValue("manifest", row), self)
        result = table_of(LAYOUT, (), Storage(store, cache, new_run_id=RunNames()))
        assert isinstance(result, StateTable)
        return result

    def states(self, cache: RunCache | None, *groups: int) -> list[str | None]:
        """Look groups up."""
        keys = pa.RecordBatch.from_pydict({"k": pa.array(groups, pa.int64())})
        result: list[str | None] = self.table(cache).lookup(keys).states.column("state_0").to_pylist()
        return result


def names_of(*pieces: bytes) -> list[str]:
    names = RunNames()
    return [names(each, each) for each in pieces]


def test_a_repeated_epoch_has_the_same_names(task: type[Task]) -> None:
    """A snapshot of the first attempt then has the pieces of the second one's manifest."""
    assert names_of(b"one", b"two") == names_of(b"one", b"two")


def test_other_bytes_and_epochs_have_other_names(task: type[Task]) -> None:
    """Other rows have other names, and so have equal pieces of an epoch: one may be removed while the other is used."""
    same = names_of(b"one", b"one")
    other = names_of(b"other", b"other")
    task.epoch = "8"
    later = names_of(b"one", b"one")
    assert len({*same, *other, *later}) == 6


def test_pieces_do_not_change_the_names_of_others(task: type[Task]) -> None:
    """Buckets of one task have their pieces one after the other, and an attempt may have more in one of them."""
    assert names_of(b"more", b"one")[1] == names_of(b"one")[0]


def test_other_states_of_the_same_groups_are_stored_under_one_name(task: type[Task]) -> None:
    """The whole names differ, because caches may have both."""
    first, second = RunNames()(b"1, 2", b"groups"), RunNames()(b"2, 1", b"groups")
    assert first != second
    assert stored_name(first) == stored_name(second)
    assert stored_name("4f9d") == "4f9d"  # as before there were such names


def test_a_repeat_with_states_of_other_bytes_goes_on(task: type[Task]) -> None:
    """Lists in the order of arrival: Spark reads the failed epoch, and changelogs after its repeat."""
    cache = RunCache(bytes_max=1 << 20)
    first = Variables()
    failed_store = Variables(first)
    failed_store.commit(None, {1: "a, b", 2: "c"})
    repeated_store = Variables(first)
    repeated_store.commit(cache, {1: "b, a", 2: "c"})
    assert repeated_store.states(cache, 1, 2) == ["b, a", "c"]
    task.epoch = "8"
    failed_store.update(repeated_store.commit(cache, {2: "c, d"}))
    assert failed_store.states(None, 1, 2, 3) == ["a, b", "c, d", None]
    assert repeated_store.states(cache, 1, 2) == ["b, a", "c, d"]


def test_a_repeat_of_other_groups_is_not_mistaken(task: type[Task]) -> None:
    """Spark promises the same rows. If a source breaks that, the query ends instead of having groups of both."""
    failed_store, repeated_store = Variables(), Variables()
    failed_store.commit(None, {1: "a"})
    repeated_store.commit(None, {2: "a"})
    task.epoch = "8"
    failed_store.update(repeated_store.commit(None, {3: "b"}))
    with pytest.raises(CorruptError, match="in the manifest, but not in the state store"):
        failed_store.states(None, 2)


def test_without_a_stream_names_are_unique(task: type[Task]) -> None:
    """Outside of Spark's streams nothing is repeated."""
    task.epoch = None
    assert len({*names_of(b"one"), *names_of(b"one")}) == 2


def test_rows_come_in_the_order_of_their_partitions() -> None:
    """Also within a partition, whose rows must not pass each other; and few blobs are held at a time."""
    blocks = [(partition, block) for partition in (2, 4, 10) for block in range(4)]
    rows = [{"partition": part, "block": block, "blob": b"%d %d" % (part, block)} for part, block in blocks]
    expected = [row["blob"] for row in rows]
    random.Random(1).shuffle(rows)
    arrived_blobs = [row["blob"] for row in rows]
    assert arrived_blobs != expected
    assert list(in_order(iter(rows))) == expected
    few = list(in_order(iter(rows), bytes_max=10))
    assert sorted(few) == sorted(expected)
    assert few[:4] == [blob for blob in expected if blob in arrived_blobs[:4]]
