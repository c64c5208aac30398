"""Session windows and windows of processing time, on Spark itself; tests/laws has them against a model."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.spark import PROCESSING_TIME, group_by, session, tumble
from tests.spark import spark_functions
from tests.spark.test_stream import Stream, stream_spark  # noqa: F401 - a fixture
from tests.spark.test_stream_windows import START, Clicks, minute, watermarked


def test_batch_sessions_are_those_of_spark(classic: SparkSession) -> None:
    """Over random rows, with ties and gaps that are just closed, each session is the one that Spark finds."""
    functions = connect(spark_functions)
    chosen = random.Random(5)
    rows = [
        (chosen.choice(["a", "b", None]), START + dt.timedelta(minutes=5 * chosen.randrange(200)), number)
        for number in range(150)
    ]
    frame = classic.createDataFrame(rows, "page string, at timestamp, v bigint")
    ours = group_by(frame, "page", window=session("at", "15 minutes")).agg(
        n=functions["count"](), total=functions["sum"]("v")
    )
    window = sf.session_window("at", "15 minutes")
    theirs = frame.groupBy("page", window.alias("w")).agg(sf.count("*").alias("n"), sf.sum("v").alias("total"))
    expected = theirs.select("page", "w.start", "w.end", "n", "total")
    assert sorted(map(tuple, ours.collect()), key=repr) == sorted(map(tuple, expected.collect()), key=repr)


def test_sessions_of_a_stream_merge_and_close(stream_spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    """Append mode gives each session once, when the watermark has passed it, though rows bridged it out of order."""
    functions = connect(spark_functions)
    stream = Clicks(
        stream_spark,
        tmp_path,
        lambda df: group_by(watermarked(df), "page", window=session("at", "10 minutes"), emit="append", buckets=3).agg(
            n=functions["count"](), total=functions["sum"]("v")
        ),
        mode="append",
    )
    stream.minutes((0, "a", 1), (16, "a", 2), (16, "b", 4))
    stream.minutes((8, "a", 8))  # bridges 0 and 16
    stream.minutes((100, "c", 64))  # the watermark goes to 90
    stream.minutes((20, "a", 100), (101, "c", 1))  # ends at 30: late
    stream.minutes((300, "d", 1))
    stream.minutes((400, "d", 1))
    emitted = [(row["page"], minute(row), row["n"], row["total"]) for epoch in stream.run() for row in epoch]
    assert sorted(emitted) == [("a", 26, 3, 11), ("b", 26, 1, 4), ("c", 111, 2, 65), ("d", 310, 1, 1)]
    assert sum(each["late_rows"] or 0 for each in stream.progress) == 1


def test_a_session_that_grows_is_another(stream_spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    """Without a watermark sessions stay open, also over a restart: the changelog says which are gone and which came."""
    functions = connect(spark_functions)
    stream = Clicks(
        stream_spark,
        tmp_path,
        lambda df: group_by(df, window=session("at", "10 minutes"), buckets=3).agg(n=functions["count"]()),
    )
    stream.minutes((0, "a", 1), (30, "a", 1))
    first = stream.run()
    stream.minutes((5, "a", 1))
    stream.minutes((30, "a", 1))
    changes = [[(row["row_kind"], minute(row), row["n"]) for row in epoch] for epoch in [*first, *stream.run()]]
    assert [sorted(epoch) for epoch in changes] == [
        [("+I", 10, 1), ("+I", 40, 1)],
        [("+I", 15, 2), ("-D", 10, 1)],
        [("+U", 40, 2)],
    ]


def test_windows_of_processing_time(stream_spark: SparkSession, tmp_path: Path) -> None:  # noqa: F811
    """A row's window is that of its epoch's time, and closes in an epoch after its end."""
    functions = connect(spark_functions)
    stream = Clicks(
        stream_spark,
        tmp_path,
        lambda df: group_by(df, "page", window=tumble(PROCESSING_TIME, "1 second"), emit="append", buckets=3).agg(
            n=functions["count"]()
        ),
        mode="append",
    )
    emitted: list[dict[str, Any]] = []
    before = dt.datetime.now(dt.UTC)
    for _ in range(4):
        stream.minutes((0, "a", 1), (500, "a", 1))
        emitted += [row for epoch in stream.run() for row in epoch]
    assert emitted
    assert all(row["page"] == "a" and row["n"] % 2 == 0 for row in emitted)
    ends = [row["window_end"].astimezone(dt.UTC) for row in emitted]
    assert len(set(ends)) == len(ends)
    assert all(before < end <= dt.datetime.now(dt.UTC) for end in ends)


def test_mistakes_with_sessions(stream_spark: SparkSession) -> None:  # noqa: F811
    """What cannot be is refused when the query is built."""
    functions = connect(spark_functions)
    frame = stream_spark.createDataFrame([(START, "a", "+I", 1)], "at timestamp, page string, op string, v bigint")
    for gap in ("0 minutes", "-5 minutes", "3 months", "soon"):
        with pytest.raises(RejectedError, match=r"session|none|month|INTERVAL|gap") as caught:
            group_by(frame, "page", window=session("at", gap))
        assert caught.value.code == "SIGNATURE"
    with pytest.raises(RejectedError, match="fall into two") as caught:
        group_by(frame, "page", row_kind="op", window=session("at", "5 minutes"))
    assert caught.value.code == "CANNOT_RETRACT"
    with pytest.raises(RejectedError, match="has no merge") as caught:
        group_by(frame, "page", window=session("at", "5 minutes")).agg(x=functions["peak_kilobytes_unmerged"]("v"))
    assert caught.value.code == "CANNOT_MERGE"
    with pytest.raises(RejectedError, match="processing time is for streams"):
        group_by(frame, "page", window=tumble(PROCESSING_TIME, "1 hour"))
