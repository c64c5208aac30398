"""Streams with `on_error="isolate"`: failed groups keep their state, and their rows are dead letters once."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from foldflight.spark import dead_letters, group_by, results, session, state_table, tumble
from tests.spark.test_stream import Rows, Stream

SCHEMA = pa.schema(
    [("op", pa.string()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())],
)
DDL = "op string, k string, at timestamp, v bigint"
START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


def at(minute: int) -> dt.datetime:
    return START + dt.timedelta(minutes=minute)


class Isolated(Stream):
    """A query whose epochs give results and dead letters."""

    ddl = DDL
    schema = SCHEMA

    def rows(self, *rows: tuple[str, str, int, int]) -> None:
        """Write an epoch: op, key, minute and value of each row."""
        self.write([{"op": op, "k": key, "at": at(minute), "v": value} for op, key, minute, value in rows])

    def collected(self, batch: DataFrame) -> tuple[list[tuple[Any, ...]], Rows]:
        """Return results and dead letters of one epoch."""
        batch.persist()
        letters = [row.asDict(recursive=True) for row in dead_letters(batch).collect()]
        rows = sorted(map(tuple, results(batch).collect()), key=repr)
        batch.unpersist()
        return rows, letters


def letter_values(letters: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return key, row kind, value and the last words of the message of each dead letter."""
    return sorted(
        (each["key"]["k"], each["row_kind"], each["row"]["v"], each["message"].split(": ")[-1]) for each in letters
    )


BAD_LUCK, HERE_TO_STAY, NOT_SHOWN = "thirteen is bad luck", "fourteen is here to stay", "2015 is not to be shown"


@pytest.mark.slow
@pytest.mark.surface
def test_failed_groups_keep_their_state(classic: Any, functions: Any, tmp_path: Path) -> None:
    """If a row, a retraction or a result fails, the group stays as it was, also over restarts."""
    stream = Isolated(
        classic,
        tmp_path,
        lambda df: group_by(df, "k", row_kind="op", emit="changelog", on_error="isolate", buckets=4).agg(
            total=functions["unforgiving"]("v"), n=functions["count"]()
        ),
    )
    stream.rows(("+I", "a", 0, 1), ("+I", "b", 0, 14), ("+I", "c", 0, 1), ("+I", "c", 0, 13))
    stream.rows(("+I", "a", 0, 13), ("+I", "a", 0, 2), ("-D", "b", 0, 14), ("+I", "c", 0, 2000))
    first, second = stream.run()
    assert first[0] == [("+I", "a", 1, 1), ("+I", "b", 14, 1)]
    assert letter_values(first[1]) == [("c", "+I", 1, BAD_LUCK), ("c", "+I", 13, BAD_LUCK)]
    assert second[0] == [("+I", "c", 2000, 1)]
    assert letter_values(second[1]) == [
        ("a", "+I", 2, BAD_LUCK),
        ("a", "+I", 13, BAD_LUCK),
        ("b", "-D", 14, HERE_TO_STAY),
    ]
    stream.rows(("+I", "a", 0, 4), ("+I", "b", 0, 5), ("+I", "c", 0, 15))  # another query goes on
    stream.rows(("-D", "a", 0, 1), ("-D", "a", 0, 4), ("+I", "c", 0, 16))
    third, fourth = stream.run()
    assert third[0] == [("+U", "a", 5, 2), ("+U", "b", 19, 2), ("-U", "a", 1, 1), ("-U", "b", 14, 1)]
    assert letter_values(third[1]) == [("c", "+I", 15, NOT_SHOWN)]
    assert fourth == ([("+U", "c", 2016, 2), ("-D", "a", 5, 2), ("-U", "c", 2000, 1)], [])
    assert [(each["isolated_groups"], each["isolated_rows"], each["groups"]) for each in stream.progress] == [
        (1, 2, 3),
        (2, 3, 3),
        (1, 1, 3),
        (0, 0, 2),
    ]
    live_rows = {row.k: row.live_rows for row in state_table(classic, str(tmp_path / "checkpoint")).collect()}
    assert live_rows == {"b": 2, "c": 2}


@pytest.mark.slow
def test_windows_fail_one_by_one(classic: Any, functions: Any, tmp_path: Path) -> None:
    """A failed window does not affect others of its key; in append mode dead letters come before results."""
    stream = Isolated(
        classic,
        tmp_path,
        lambda df: (
            group_by(
                df.withWatermark("at", "0 seconds"),
                "k",
                window=tumble("at", "1 hour"),
                emit="append",
                on_error="isolate",
            )
            .agg(total=functions["unforgiving"]("v"))
            .drop("window_start", "window_end")
        ),
        mode="append",
    )
    stream.rows(("+I", "a", 0, 1), ("+I", "a", 61, 13), ("+I", "a", 62, 4), ("+I", "b", 61, 5))
    stream.rows(("+I", "a", 63, 6), ("+I", "b", 64, 13))
    stream.rows(("+I", "b", 200, 1))
    stream.rows(("+I", "b", 201, 1))
    outputs = stream.run()
    assert letter_values(outputs[0][1]) == [("a", "+I", 4, BAD_LUCK), ("a", "+I", 13, BAD_LUCK)]
    assert letter_values(outputs[1][1]) == [("b", "+I", 13, BAD_LUCK)]
    output_rows = [row for rows, _ in outputs for row in rows]
    assert sorted(output_rows) == [("a", 1), ("a", 6), ("b", 5)]


@pytest.mark.slow
def test_sessions_that_cannot_be_merged_fail_alone(classic: Any, functions: Any, tmp_path: Path) -> None:
    """If states cannot be merged, the stored session stays as it was, and the rows that join it are dead letters."""
    stream = Isolated(
        classic,
        tmp_path,
        lambda df: (
            group_by(df, "k", window=session("at", "30 minutes"), on_error="isolate", buckets=4)
            .agg(total=functions["unforgiving"]("v"))
            .drop("window_start", "window_end")
        ),
    )
    stream.rows(("+I", "a", 0, 2000), ("+I", "b", 0, 1))
    stream.rows(("+I", "a", 10, 10), ("+I", "a", 20, 6), ("+I", "b", 10, 2), ("+I", "b", 90, 13))
    stream.rows(("+I", "a", 10, 1), ("+I", "b", 91, 3))
    first, second, third = stream.run()
    assert first == ([("+I", "a", 2000), ("+I", "b", 1)], [])
    assert second[0] == [("+I", "b", 3), ("-D", "b", 1)]
    assert letter_values(second[1]) == [
        ("a", "+I", 6, "these do not mix"),
        ("a", "+I", 10, "these do not mix"),
        ("b", "+I", 13, BAD_LUCK),
    ]
    assert third == ([("+I", "a", 2001), ("+I", "b", 3), ("-D", "a", 2000)], [])
