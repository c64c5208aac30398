"""The rows of a time log come back in the order of their times, whatever runs and merges there are."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import count

import pyarrow as pa
import pytest

from foldflight.engine.state.manifest import Storage, TableBounds
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import MemoryStore
from foldflight.engine.state.timelog import TIME, TimeLog
from foldflight.errors import CorruptError, RejectedError

SCHEMA = pa.schema([(TIME, pa.int64()), ("v", pa.string())])
NAMES = (f"run {number}" for number in count())


def log_in(
    store: MemoryStore,
    *,
    schema: pa.Schema = SCHEMA,
    owner: str = "",
    cache: RunCache | None = None,
    bounds: TableBounds | None = None,
) -> TimeLog:
    bounds_in_use = bounds or TableBounds(piece_rows_max=4, fan_in=2, merge_rows_max=20)

    def check(stored_layout: Mapping[str, object]) -> None:
        if stored_layout["query"] != owner:
            raise RejectedError("STATE_MISMATCH", f"{stored_layout['query']} is not {owner}")

    return TimeLog(
        schema,
        Storage(store, cache, bounds_in_use, lambda *_: next(NAMES)),
        owner={"query": owner},
        check=check,
    )


def rows(*times: int) -> pa.RecordBatch:
    sorted_values = sorted(times)
    return pa.RecordBatch.from_arrays(
        [pa.array(sorted_values, pa.int64()), pa.array(map(str, sorted_values))], schema=SCHEMA
    )


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_taken_once_and_in_order(seed: int) -> None:
    """After every epoch, rows up to a time were taken, and the others are there; each step reads few pieces."""
    chance, store, cache = random.Random(seed), MemoryStore(), RunCache(bytes_max=1 << 10)
    waiting_times: list[int] = []
    until = 0
    for _ in range(40):
        log = log_in(store, cache=cache)
        came = [until + chance.randrange(1, 40) for _ in range(chance.randrange(12))]
        log.add(rows(*came))
        waiting_times += came
        until += chance.randrange(8)
        taken_times: list[int] = []
        while (step := log.reach(until)) is not None:
            result = log.take(step)
            assert result.num_rows, "each step takes a row"
            taken_times += result.column(TIME).to_pylist()
            assert result.column("v").to_pylist() == list(map(str, result.column(TIME).to_pylist()))
        log.commit()
        assert taken_times == sorted(time for time in waiting_times if time <= until)
        waiting_times = [time for time in waiting_times if time > until]
        assert (len(log), log.first) == (len(waiting_times), min(waiting_times, default=None))
    stored_runs = json.loads(store.value[8:])["runs"]  # behind magic and checksum
    assert {piece["id"] for run in stored_runs for piece in run["pieces"]} == set(store.runs)


def test_runs_are_merged_up_to_a_size() -> None:
    """Many small runs become few, and large ones are left alone; an epoch without changes writes nothing."""
    store = MemoryStore()
    for number in range(64):
        log = log_in(store, bounds=TableBounds(fan_in=4, merge_rows_max=32))
        log.add(rows(number, 1000 - number))
        log.commit()
    runs = json.loads(store.value[8:])["runs"]
    assert [(run["level"], sum(piece["rows"] for piece in run["pieces"])) for run in runs] == [(2, 32)] * 4
    before = store.value
    log_in(store).commit()
    assert store.value is before


def test_equal_times_stay_together() -> None:
    """A piece may exceed its limit for rows of one time, so that a step never ends between them."""
    log = log_in(MemoryStore())
    log.add(rows(*[5] * 9, 6, 6))
    assert log.reach(9) == 5
    assert log.take(5).num_rows == 9
    assert log.reach(9) == 9


def test_rows_of_another_query_are_refused() -> None:
    """The owner decides whether stored rows are its own; their columns never change."""
    store = MemoryStore()
    log_in(store, owner="one").commit()
    with pytest.raises(RejectedError, match="one is not two"):
        log_in(store, owner="two")
    with pytest.raises(RejectedError, match="other columns"):
        log_in(store, owner="one", schema=SCHEMA.append(pa.field("w", pa.int8())))


def test_damage_is_noticed() -> None:
    """A changed byte and a missing run are errors of the state."""
    store = MemoryStore()
    log = log_in(store)
    log.add(rows(1, 2))
    log.commit()
    (name, good), manifest = next(iter(store.runs.items())), store.value
    store.runs[name] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(CorruptError, match=f"{name} .*damaged"):
        log_in(store).take(5)
    store.runs.clear()
    with pytest.raises(CorruptError, match="not in the state store"):
        log_in(store).take(5)
    store.value = manifest[:-1]
    with pytest.raises(CorruptError, match="manifest of a time log"):
        log_in(store)
