"""Every epoch of a random stream equals a model in plain Python, in all emit modes."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from examples.weighted_avg import WeightedAvg
from foldflight import connect
from foldflight.client import Transport
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.query import StreamOptions
from foldflight.functions import Call
from tests.effort import examples
from tests.laws.stream_engine import StreamEngine
from tests.laws.stream_model import StreamModel

EMBEDDED = connect(WeightedAvg).transport
START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
START_MS = int(START.timestamp() * 1000)
KEY = pa.field("k", pa.string())
WINDOW = [pa.field("window_start", pa.timestamp("us", "UTC")), pa.field("window_end", pa.timestamp("us", "UTC"))]
COLUMNS = pa.schema([("v", pa.int64()), ("w", pa.int32()), ("filled", pa.bool_())])
ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "c", None]),
        "v": st.one_of(st.none(), st.integers(-50, 50)),
        "w": st.integers(1, 5),
        "at": st.integers(0, 20).map(lambda at: at * 10),  # the watermark often stands at the end of a window
    }
)
# A row is inserted (I), or one that is there is taken back (D), or one of before the stream (X), or one before it comes
# (E). Groups of few different rows have both in one epoch.
FEW_ROWS = ROWS.map(lambda row: {"k": "a", "v": row["v"] and row["v"] % 2, "w": 1, "at": row["at"] % 20})
STEPS = st.lists(st.tuples(st.sampled_from("IIIIDDXXE"), ROWS | FEW_ROWS, st.integers(0, 99)), max_size=10)
EMITS = st.sampled_from(
    [("update", False), ("changelog", False), ("update", True), ("changelog", True), ("append", True)]
)


@dataclass(frozen=True)
class Case:
    """A query and its input."""

    has_kinds: bool
    windows: str
    emit: str
    closes: bool
    lateness_minutes: int
    epochs: list[list[tuple[str, dict[str, Any], int]]]
    partitions: int
    seed: int
    bounds: BlockBounds
    folds_first: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a query and its input."""
    emit, closes = draw(EMITS)
    windows = draw(st.sampled_from(["tumble", "session", "session"] if closes else ["", "tumble", "session"]))
    return Case(
        has_kinds=windows != "session" and draw(st.booleans()),
        windows=windows,
        emit=emit,
        closes=closes,
        lateness_minutes=draw(st.sampled_from([0, 0, 45])),
        epochs=draw(st.lists(STEPS, min_size=1, max_size=5)),
        partitions=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 2**32)),
        bounds=BlockBounds(
            rows_max=draw(st.sampled_from([2, 7, 1000])),
            groups_max=draw(st.sampled_from([1, 3, 1000])),
            unfolded_groups_min=draw(st.sampled_from([2, 1000])),
        ),
        folds_first=draw(st.booleans()),
    )


def engine_of(
    transport: Transport, case: Case, calls: dict[str, Call], *, folds_first: bool, isolates: bool = False
) -> StreamEngine:
    """Return the query of a case."""
    return StreamEngine(
        transport,
        calls,
        pa.schema([KEY, *WINDOW] if case.windows else [KEY]),
        COLUMNS,
        has_kinds=case.has_kinds,
        options=StreamOptions(
            emit=case.emit,  # type: ignore[arg-type]
            buckets=3,
            strict=False,
            closing_lateness_ms=case.lateness_minutes * 60_000 if case.closes else None,
            has_sessions=case.windows == "session",
        ),
        seed=case.seed,
        bounds=case.bounds,
        folds_first=folds_first,
        isolates=isolates,
    )


def model_of(case: Case) -> StreamModel:
    """Return the model of a case."""
    return StreamModel(
        windows=case.windows,
        closes=case.closes,
        lateness_minutes=case.lateness_minutes,
        emit=case.emit,
        has_kinds=case.has_kinds,
    )


def check(transport: Transport, case: Case) -> None:
    """Run a case, and compare each epoch with the model."""
    calls = {
        "price": Call("weighted_avg", ("v", "w"), filter="filled"),
        "n": Call("count"),
        "different": Call("count", ("v",), distinct=True),
        "total": Call("sum", ("v",)),
        "top": Call("max", ("v",), materialize=case.has_kinds),
    }
    engine, model = engine_of(transport, case, calls, folds_first=case.folds_first), model_of(case)
    for steps in case.epochs:
        watermark_ms = max(START_MS + model.watermark * 60_000, 0)
        rows, expected = model.epoch(steps)
        sent_rows = [as_input(row, model.key(row)) for row in rows]
        engine.random.shuffle(sent_rows)
        changes = engine.epoch([sent_rows[place :: case.partitions] for place in range(case.partitions)], watermark_ms)
        assert Counter(map(comparable, changes)) == Counter(comparable(as_output(row)) for row in expected)
        in_order(changes)
        assert engine.live_rows() == {key_of(key): len(rows) for key, rows in model.present.items() if rows}
    names = ("rows", "late_rows", "late_retractions", "ignored_retractions")
    assert [engine.figures.get(name, 0) for name in names] == [
        model.folded,
        model.late,
        model.late_retractions,
        model.ignored,
    ]


def as_input(row: dict[str, Any], key: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row of the model as a row of the query."""
    return {**row, **key_columns(key), "filled": row["v"] is not None}


def key_of(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a group of the model as the query's key: with windows, their start and end."""
    return (key[0], *(START + dt.timedelta(minutes=at) for at in key[1:]))


def key_columns(key: tuple[Any, ...]) -> dict[str, Any]:
    """Return a group of the model as columns of the query."""
    return dict(zip(("k", "window_start", "window_end"), key_of(key), strict=False))


def as_output(row: dict[str, Any]) -> dict[str, Any]:
    """Return a change of the model as a change of the query."""
    return {**key_columns(row["key"]), **{name: value for name, value in row.items() if name != "key"}}


def comparable(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return a row in a hashable form."""
    return tuple(sorted(row.items()))


def in_order(changes: list[dict[str, Any]]) -> None:
    """Check that an old value stands immediately before its new one."""
    for place, change in enumerate(changes):
        if change.get("row_kind") == "-U":
            after = changes[place + 1]
            assert after["row_kind"] == "+U"
            assert all(change[name] == after[name] for name in ("k", "window_end") if name in change)


@examples(150)
@given(cases())
def test_every_epoch_of_a_random_stream_equals_the_model(case: Case) -> None:
    """Changes, late rows and ignored retractions equal the model's, whatever Spark does with order and reruns."""
    check(EMBEDDED, case)


def test_windows_close_after_a_restart_with_more_lateness() -> None:
    """Windows that are open when a query is restarted with a greater lateness close, though no row comes for them."""
    bounds = BlockBounds(rows_max=1000, groups_max=1000, unfolded_groups_min=1000)
    case = Case(
        has_kinds=False,
        windows="tumble",
        emit="append",
        closes=True,
        lateness_minutes=0,
        epochs=[],
        partitions=1,
        seed=1,
        bounds=bounds,
        folds_first=False,
    )
    start, end = START, START + dt.timedelta(hours=1)
    row = {"k": "a", "window_start": start, "window_end": end, "v": 1, "w": 1, "filled": True}
    first, second = (
        engine_of(EMBEDDED, replace(case, lateness_minutes=minutes), {"n": Call("count")}, folds_first=False)
        for minutes in (0, 45)
    )
    assert first.epoch([[row, row]], START_MS) == []
    second.buckets = first.buckets
    assert second.epoch([], START_MS + 60 * 60_000) == []
    (closed_windows,) = second.epoch([], START_MS + 105 * 60_000)
    assert (closed_windows["k"], closed_windows["n"]) == ("a", 2)
    assert second.live_rows() == {}
