"""Streams with isolated errors equal streams without the rows of failed groups, in all emit modes and windows."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given

from foldflight import FunctionError, udaf
from foldflight.client import EmbeddedTransport
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import DEAD_LETTER
from foldflight.functions import Call, Registry, RowKind
from tests.effort import examples
from tests.laws.stream_engine import Rows, StreamEngine
from tests.laws.test_stream_oracle import START_MS, Case, as_input, cases, engine_of, model_of


class Sum:
    """Accumulator of the functions below."""

    total: int
    count: int
    is_touchy: bool


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Picky:
    """A sum that raises for some values, some retractions, and merges of a sum that had 50."""

    def create_accumulator(self) -> Sum:
        accumulator = Sum()
        accumulator.total = accumulator.count = 0
        accumulator.is_touchy = False
        return accumulator

    def accumulate(self, accumulator: Sum, value: int) -> None:
        accumulator.total += value
        accumulator.count += 1
        accumulator.is_touchy |= value == 50
        if value % 5 == 3:
            raise ValueError(f"{value} is bad luck")

    def retract(self, accumulator: Sum, value: int) -> None:
        accumulator.total -= value
        accumulator.count -= 1
        if value % 7 == 3:
            raise ValueError(f"{value} is here to stay")

    def merge(self, accumulator: Sum, other: Sum) -> None:
        accumulator.total += other.total
        accumulator.count += other.count
        if accumulator.is_touchy or other.is_touchy:
            raise ValueError("these do not mix")

    def get_value(self, accumulator: Sum) -> int:
        return accumulator.total


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Shy(Picky):
    """Also raises when the values of some sums are requested."""

    def get_value(self, accumulator: Sum) -> int:
        if accumulator.total % 11 == 3:
            raise ValueError(f"{accumulator.total} is not to be shown")
        return accumulator.total


TRANSPORT = EmbeddedTransport(Registry.load([Picky, Shy]), state_key=b"a key of 16 bytes")


def picky_engine(case: Case, *, isolates: bool) -> StreamEngine:
    """Return a query whose functions raise for some rows."""
    # What a session shows on the way depends on how its rows come together; so do its merges.
    calls = {
        "sum": Call("picky" if case.windows == "session" else "shy", ("v",), filter="filled"),
        "n": Call("count"),
        "different": Call("picky", ("v",), distinct=True),
    }
    # Plans that isolate fold after the shuffle, and what `merge` raises for partial states depends on where blocks end.
    return engine_of(TRANSPORT, case, calls, folds_first=False, isolates=isolates)


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Separate results and dead letters."""
    letters = [row[DEAD_LETTER] for row in rows if row[DEAD_LETTER] is not None]
    return [{k: v for k, v in row.items() if k != DEAD_LETTER} for row in rows if row[DEAD_LETTER] is None], letters


def count_rows(rows: Rows) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the group and row of a dead letter."""
    return tuple(row.get(name) for name in ("k", "v", "w", "kind"))


def lies_in(row: dict[str, Any], key: tuple[Any, ...]) -> bool:
    """Return whether a row's window is the window of a group or inside it: the session may have grown since."""
    return len(key) == 1 or (key[1] <= row["window_start"] and row["window_end"] <= key[2])


def in_order(sent_rows: Rows, some: Rows) -> Rows:
    """Return some of the rows in the order in which they were sent, which decides which retractions are ignored."""
    return [row for row in sent_rows if any(row is each for each in some)]


def without(sent_rows: Rows, letters: Rows) -> tuple[Rows, dict[Any, Rows]]:
    """Return the rows that did not become dead letters, and those that did, by the key in the letters."""
    errors_of_key: dict[Any, list[Any]] = defaultdict(list)
    for letter in letters:
        row = {**letter["key"], **letter["row"], "kind": int(RowKind.parse(letter["row_kind"]))}
        errors_of_key[key_of(row)].append(tuple(letter["key"].values()))
    left, dead = [], defaultdict(list)
    for row in sent_rows:
        keys = errors_of_key.get(key_of({"kind": 0, **row}), [])
        key = next((key for key in keys if lies_in(row, key)), None)
        if key is None:
            left.append(row)
        else:
            keys.remove(key)
            dead[key].append(row)
    assert not any(errors_of_key.values()), f"dead letters of rows that never came: {errors_of_key}"
    return left, dead


@pytest.mark.slow
@examples(100)
@given(cases())
def test_a_failed_group_is_as_if_its_rows_had_not_come(case: Case) -> None:
    """Without the dead letters, a query without isolation gives the same; with any group's dead letters it fails."""
    # A session's merges depend on blocks, so one block holds all. And late rows, of which only folding tells that they
    # are late, fail a query that does not isolate.
    if case.windows == "session":
        case = dataclasses.replace(case, bounds=BlockBounds(), partitions=1, closes=False, emit="changelog")
    isolating_engine, plain = picky_engine(case, isolates=True), picky_engine(case, isolates=False)
    model = model_of(case)
    failed_count = rows_dead = 0
    for steps in case.epochs:
        watermark_ms = max(START_MS + model.watermark * 60_000, 0)
        rows, _ = model.epoch(steps)
        sent_rows = [as_input(row, model.key(row)) for row in rows]
        changes, letters = split(isolating_engine.epoch([sent_rows], watermark_ms))
        left, dead = without(sent_rows, letters)
        for group, own in dead.items():
            assert own
            fresh = picky_engine(case, isolates=False)
            fresh.buckets = copy.deepcopy(plain.buckets)
            with pytest.raises(FunctionError, match=r"bad luck|here to stay|not to be shown|do not mix"):
                fresh.epoch([in_order(sent_rows, [*left, *own])], watermark_ms)
            assert group[0] == own[0]["k"]
        assert count_rows(changes) == count_rows(plain.epoch([left], watermark_ms))
        assert isolating_engine.live_rows() == plain.live_rows()
        failed_count += len(dead)
        rows_dead += sum(map(len, dead.values()))
    figures = isolating_engine.figures
    assert (figures.get("isolated_groups", 0), figures.get("isolated_rows", 0)) == (failed_count, rows_dead)
    assert figures.get("groups", 0) == plain.figures.get("groups", 0) + failed_count
    for name in ("late_rows", "ignored_retractions"):
        assert figures.get(name, 0) == plain.figures.get(name, 0)
