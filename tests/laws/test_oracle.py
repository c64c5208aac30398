"""Results of random epochs equal an independent model in plain Python, for all functions and keys."""

import math
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from examples.weighted_avg import WeightedAvg
from foldflight import connect
from foldflight.testing import run_epochs
from tests.effort import examples

FUNCTIONS = connect(WeightedAvg)
VALUES = st.one_of(st.none(), st.integers(-50, 50))
ROWS = st.one_of(
    st.fixed_dictionaries({"k": st.sampled_from(["a", "b", None]), "v": VALUES, "w": st.integers(1, 5)}),
    st.fixed_dictionaries({"k": st.just("a"), "v": st.sampled_from([1, None]), "w": st.integers(3, 4)}),
)
# A row is inserted (I), or one that is there is taken back (D), or one of before the stream (X), or one before it comes
# (E). In the second kind of rows few are different, so that the same are inserted and taken back in one epoch.
STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from("IIIIDXXE"), ROWS, st.integers(0, 99)), max_size=8), min_size=1, max_size=4
)


def model(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Aggregate the rows of one group, by definition."""
    values = [row["v"] for row in rows if row["v"] is not None]
    weighted_values = [(row["v"], row["w"]) for row in rows if row["v"] is not None]
    weight = sum(w for _, w in weighted_values)
    return {
        "price": None if weight == 0 else math.trunc(sum(v * w for v, w in weighted_values) / weight),
        "n": len(rows),
        "filled": len(values),
        "different": len(set(values)),
        "total": sum(values) if values else None,
        "heavy": sum(row["w"] > 3 for row in rows),
    }


def calls() -> dict[str, Any]:
    count = FUNCTIONS["count"]
    return {
        "price": FUNCTIONS["weighted_avg"]("v", "w").where(lambda row: row["v"] is not None),
        "n": count(),
        "filled": count("v"),
        "different": count("v").distinct(),
        "total": FUNCTIONS["sum"]("v"),
        "heavy": count().where(lambda row: row["w"] > 3),
    }


def match_rows(rows: list[tuple[str, dict[str, Any]]]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that remain of a group without rows before, and how many retractions have no row."""
    left = [row for kind, row in rows if kind[0] == "+"]
    unmatched_count = 0
    for _, row in (each for each in rows if each[0][0] == "-"):
        if row in left:
            left.remove(row)
        else:
            unmatched_count += 1
    return left, unmatched_count


def apply_changes(log: list[tuple[str, dict[str, Any]]], table: dict[Any, dict[str, Any]]) -> None:
    """Apply a changelog to a table. Contradictory changes fail."""
    for kind, row in log:
        if kind == "+I":
            assert row["k"] not in table
        else:
            assert row["k"] in table
        if kind in ("-U", "-D"):
            assert table[row["k"]] == row
        if kind == "-D":
            del table[row["k"]]
        elif kind != "-U":
            assert table.get(row["k"]) != row
            table[row["k"]] = row


@examples(60)
@given(STEPS)
def test_changelogs_of_random_epochs_lead_to_the_batch_answer(
    steps: list[list[tuple[str, dict[str, Any], int]]],
) -> None:
    """After each epoch the applied changelog equals the aggregate of the live rows."""
    present: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    epochs, expected, ignored_counts = [], [], []
    for step in steps:
        rows: list[tuple[str, dict[str, Any]]] = []
        started_keys = {key for key, group in present.items() if group}
        for kind, row, pick in step:
            group = present[row["k"]]
            if kind == "I":
                group.append(row)
                rows.append(("+I", row))
            elif kind == "D" and group:
                rows.append(("-D", group.pop(pick % len(group))))
            elif kind == "X" and row["k"] not in started_keys:
                rows.append(("-U", row))
            elif kind == "E":
                rows += [("-D", row), ("+I", row)]
        # A group without rows before the epoch: what it accumulates is taken back, in any order, and nothing else.
        never = 0
        for key in {row["k"] for _, row in rows} - started_keys:
            present[key], unmatched_count = match_rows([(kind, row) for kind, row in rows if row["k"] == key])
            never += unmatched_count
        epochs.append(rows)
        ignored_counts.append(never)
        expected.append({key: {"k": key, **model(group)} for key, group in present.items() if group})
    table: dict[Any, dict[str, Any]] = {}
    types = {"k": "STRING", "v": "BIGINT", "w": "INT"}
    for epoch, answer, never in zip(
        run_epochs(calls(), epochs, keys=["k"], types=types), expected, ignored_counts, strict=True
    ):
        apply_changes(epoch.changelog, table)
        assert table == answer
        assert {key for (key,) in epoch.states} == set(answer)
        assert {key: count for (key,), count in epoch.live.items()} == {key: row["n"] for key, row in answer.items()}
        assert epoch.ignored_retractions == never


@examples(30)
@given(st.lists(st.lists(ROWS, max_size=5), min_size=1, max_size=3))
def test_without_keys_there_is_always_one_row(epochs: list[list[dict[str, Any]]]) -> None:
    """A query without keys has one row from the first epoch on, also without input."""
    latest: dict[str, Any] = {}
    seen_values: list[dict[str, Any]] = []
    for epoch, rows in zip(run_epochs(calls(), epochs, types={"v": "BIGINT", "w": "INT"}), epochs, strict=True):
        seen_values += rows
        for kind, row in epoch.changelog:
            assert kind in ("+I", "-U", "+U")
            latest = row if kind != "-U" else latest
        assert latest == model(seen_values)
