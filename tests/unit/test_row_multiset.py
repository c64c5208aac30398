"""Calls that keep their rows fold what a plain loop over Python values folds, in the same order."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight.errors import FunctionError, RejectedError
from foldflight.ext.compiler import Programs
from foldflight.fold.aggregate import row_multiset
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.mode import Mode
from foldflight.fold.resources import Resources
from foldflight.fold.rows import hashable_key
from foldflight.functions import Call, udaf
from foldflight.functions.query.call import Options, Order
from foldflight.functions.registry import Registry

SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("kind", pa.int8()),
        ("x", pa.float64()),
        ("l", pa.list_(pa.float64())),
        ("n", pa.int64()),
        ("t", pa.string()),
    ]
)


@udaf(input_types=["DOUBLE", "ARRAY<DOUBLE>"], result_type="STRING", name="written", version="1")
class Written:
    """The rows as texts, in the order in which they come."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator: list[str], x: float | None, items: list[float] | None) -> None:
        accumulator.append(f"{x} {items}")
        if items:
            items.clear()  # a function may change its arguments

    def get_value(self, accumulator: list[str]) -> str:
        return "; ".join(accumulator)


@udaf(name="ema", version="1")
class Ema:
    """An average that depends on the order, and refuses 13."""

    def create_accumulator(self) -> float:
        return 0.0

    def accumulate(self, accumulator: float, x: float) -> float:
        if x == 13.0:
            raise ValueError("thirteen")
        return 0.5 * accumulator + x

    def get_value(self, accumulator: float) -> float:
        return accumulator


REGISTRY = Registry.load([Written, Ema])


class Plain:
    """The rows of a group as Python values: equal ones once, with their count, where the first of them came."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.rows: dict[Any, list[Any]] = {}

    def add(self, row: dict[str, Any]) -> None:
        values = tuple(row[name] for name in self.call.columns)
        entry = self.rows.setdefault(hashable_key(values), [values, 0])
        entry[1] += -1 if row["kind"] == 3 else 1
        if not entry[1]:
            del self.rows[hashable_key(values)]

    def value(self) -> str:
        ordered = list(self.rows.values())
        for index, order in reversed(list(enumerate(self.call.order, len(self.call.arguments)))):
            ordered.sort(key=lambda row, i=index, o=order: o.sort_key(row[0][i]), reverse=order.descending)
        return "; ".join(
            f"{values[0]} {values[1]}"
            for values, times in ordered
            for _ in range(min(times, 1) if self.call.distinct else times)
        )


def rows_of(rng: random.Random, count: int) -> list[dict[str, Any]]:
    pool = [
        {
            "x": rng.choice([0.0, -0.0, math.nan, 1.5, None]),
            "l": rng.choice([None, [], [0.0], [-0.0], [math.nan]]),
            "n": rng.choice([None, 1, 2, 2**63 - 1, -(2**63)]),
            "t": rng.choice([None, "", "a", "\uffff", "\U0001f600"]),
        }
        for _ in range(8)
    ]
    return [{"slot": rng.randrange(3), "kind": rng.choice([0, 0, 3]), **rng.choice(pool)} for _ in range(count)]


def call_of(rng: random.Random) -> Call:
    distinct = rng.random() < 0.4
    keys = ["x"] if distinct else ["x", "n", "t"]
    order = tuple(
        Order(key, rng.random() < 0.5, rng.random() < 0.5) for key in rng.sample(keys, rng.randrange(len(keys) + 1))
    )
    return Call("written", ("x", "l"), distinct=distinct, materialize=not distinct, order=order)


def new(call: Call, **options: Any) -> Fold:
    return Fold(bind_calls(REGISTRY, [call], SCHEMA), Options(**options))


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_folded_as_by_a_plain_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retracted rows go and come again behind the others; states are loaded and merged; parts are small."""
    monkeypatch.setattr(row_multiset, "_PART_ROWS", 7)
    monkeypatch.setattr(row_multiset, "_COUNTED_ROWS_MIN", 10)
    rng = random.Random(seed)
    call = call_of(rng)
    fold, plain = new(call), [Plain(call) for _ in range(4)]
    for _ in range(5):
        rows = rows_of(rng, rng.randrange(30))
        fold.fold(batch_of(rows))
        for row in rows:
            plain[row["slot"]].add(row)
        if rng.random() < 0.3:
            states = fold.outputs(pa.array([0, 1, 2], pa.int32()))
            states = fold._results(np.arange(3, dtype=np.int32), states=True, outputs=True)
            fold = new(call)
            fold.merge_states(states)
        if rng.random() < 0.2:
            fold.forget(pa.array([1], pa.int32()))
            plain[1] = Plain(call)
    outputs = fold.outputs(pa.array([2, 0, 3, 1], pa.int32())).column("output_0").to_pylist()
    assert outputs == [plain[slot].value() for slot in (2, 0, 3, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_values_after_each_row_are_those_of_a_plain_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each row that is asked for, as in OVER, its group has the value of the rows until then."""
    monkeypatch.setattr(row_multiset, "_PART_ROWS", 7)
    rng = random.Random(seed)
    call = call_of(rng)
    fold, plain = new(call, row_outputs=True), [Plain(call) for _ in range(3)]
    for _ in range(3):
        rows = rows_of(rng, rng.randrange(20))
        expected = []
        for row in rows:
            plain[row["slot"]].add(row)
            expected.append(plain[row["slot"]].value())
        assert fold.fold_each(batch_of(rows)).column(0).to_pylist() == expected


def ema_rows(slots: list[int], xs: list[float], ns: list[int]) -> pa.RecordBatch:
    rows = zip(slots, xs, ns, strict=True)
    return batch_of([{"slot": slot, "kind": 0, "x": x, "l": None, "n": n, "t": None} for slot, x, n in rows])


ORDERED = Call("ema", ("x",), order=(Order("n"),))


def test_ordered_rows_are_folded_by_compiled_code() -> None:
    """The rows are sorted as columns, so that the compiled loop gets them."""
    fold = Fold(bind_calls(REGISTRY, [ORDERED], SCHEMA), Options(), Resources(accelerator=Programs(hot_rows=0)))
    fold.fold(ema_rows([0, 1, 0, 0], [1.0, 5.0, 2.0, 4.0], [3, 1, 2, 1]))
    (accumulators,) = fold._accumulators
    assert isinstance(accumulators, row_multiset.RowMultiset)
    assert accumulators.mode is Mode.COUNTED
    assert fold.collect().column("output_0").to_pylist() == [0.25 * 4.0 + 0.5 * 2.0 + 1.0, 5.0]
    assert accumulators._inner.mode is Mode.COMPILED


@pytest.mark.parametrize("part_rows", [1, 1 << 17])
def test_a_group_that_fails_leaves_the_others(part_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With isolated errors, the rows of a failed group are skipped from the row on that failed."""
    monkeypatch.setattr(row_multiset, "_PART_ROWS", part_rows)
    fold = new(ORDERED, isolate_errors=True)
    fold.fold(ema_rows([0, 1, 1, 0], [1.0, 13.0, 2.0, 4.0], [2, 1, 2, 1]))
    results = fold.collect()
    assert results.column("output_0").to_pylist() == [3.0, None]
    assert "thirteen" in str(results.column("error")[1])


def test_errors_after_each_row_name_the_slot() -> None:
    """Values after each row are folded in slots of their own; the error has the slot of the row."""
    fold = new(ORDERED, row_outputs=True)
    with pytest.raises(FunctionError, match="thirteen") as excinfo:
        fold.fold_each(ema_rows([4, 4, 2, 4], [1.0, 2.0, 3.0, 13.0], [1, 2, 3, 4]))
    assert excinfo.value.slot == 4


def test_states_with_impossible_counts_are_refused() -> None:
    """Counts of 63 bits come from no fold."""
    fold = new(ORDERED)
    row = {"argument_0": 1.0, "key_0": 1, "times": 2**62}
    columns = [pa.array([0], pa.int32()), pa.array([[row]], fold.schema.field("state_0").type)]
    states = pa.RecordBatch.from_arrays(columns, schema=fold.schema.remove(2))
    fold.merge_states(states)
    fold.merge_states(states)
    with pytest.raises(RejectedError, match="added too often"):
        fold.collect()


def test_only_the_rows_of_the_call_are_kept() -> None:
    """The memory of a message, with all columns of the query, is freed before the group's value is asked for."""
    schema = pa.schema([("slot", pa.int32()), ("x", pa.float64()), ("n", pa.int64()), ("wide", pa.string())])
    fold = Fold(bind_calls(REGISTRY, [ORDERED], schema), Options())
    before = pa.total_allocated_bytes()
    for start in range(0, 4_000, 1_000):
        numbers = range(start, start + 1_000)
        columns = [pa.array([0] * 1_000, pa.int32()), pa.array([1.0] * 1_000), pa.array(numbers), ["w" * 1_000] * 1_000]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema))
        with pa.ipc.open_stream(sink.getvalue()) as reader:
            fold.fold(reader.read_next_batch())
        del sink, reader, writer, columns
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert fold.collect().column("output_0").null_count == 0
