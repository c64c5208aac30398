"""Windows over streams: assigned like Spark's, closed by the watermark, with late rows counted."""

import datetime as dt
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.spark import cumulate, group_by, hop, session, tumble
from tests.spark import spark_functions
from tests.spark.test_stream import Stream

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("page", pa.string()), ("v", pa.int64())])
DDL = "at timestamp, page string, v bigint"
START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


class Clicks(Stream):
    """Clicks by minute after START."""

    ddl = DDL
    schema = SCHEMA

    def minutes(self, *rows: tuple[int, str, int]) -> None:
        self.write([{"at": START + dt.timedelta(minutes=at), "page": page, "v": v} for at, page, v in rows])


def minute(row: dict[str, Any]) -> int:
    """Return the minute at which a row's window ends."""
    return int((row["window_end"].astimezone(dt.UTC) - START) / dt.timedelta(minutes=1))


def watermarked(df: DataFrame) -> DataFrame:
    return df.withWatermark("at", "10 minutes")


@pytest.mark.every_turn
def test_windows_close_when_the_watermark_has_passed_them(classic: SparkSession, tmp_path: Path) -> None:
    """Append mode emits each window once, complete; rows of a closed window are dropped and counted."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
        tmp_path,
        lambda df: group_by(watermarked(df), "page", window=tumble("at", "1 hour"), emit="append", buckets=2).agg(
            n=functions["count"](), total=functions["sum"]("v")
        ),
        mode="append",
    )
    stream.minutes((5, "a", 1), (50, "a", 2), (61, "b", 4))
    stream.minutes((10, "a", 8), (69, "b", 16))  # the watermark stands at 51: minute 10 is in time
    stream.minutes((75, "b", 32), (130, "c", 64))  # now at 59; after this epoch at 120
    stream.minutes((20, "a", 100), (119, "b", 100), (200, "d", 1))  # both windows are closed: late
    stream.minutes((400, "e", 1))
    output_rows: dict[tuple[str, int], tuple[int, int]] = {}
    for epoch in stream.run():
        for row in epoch:
            assert (row["page"], minute(row)) not in output_rows
            output_rows[row["page"], minute(row)] = (row["n"], row["total"])
    assert output_rows == {
        ("a", 60): (3, 11),
        ("b", 120): (3, 52),
        ("c", 180): (1, 64),
        ("d", 240): (1, 1),
    }
    assert sum(each["late_rows"] or 0 for each in stream.progress) == 2


@pytest.mark.slow
def test_allowed_lateness_keeps_windows_open(classic: SparkSession, tmp_path: Path) -> None:
    """A window stays open for the allowed lateness after the watermark has passed its end."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
        tmp_path,
        lambda df: group_by(
            watermarked(df), window=tumble("at", "1 hour"), emit="update", allowed_lateness_s=3600, buckets=2
        ).agg(n=functions["count"]()),
    )
    stream.minutes((5, "a", 1), (120, "a", 2))
    stream.minutes((10, "a", 8))  # the watermark stands at 110; the window of the first hour is open until 120
    stream.minutes((170, "a", 1))
    stream.minutes((11, "a", 8), (171, "a", 1))
    latest = {minute(row): row["n"] for epoch in stream.run() for row in epoch}
    assert latest == {60: 2, 180: 3}
    assert sum(each["late_rows"] or 0 for each in stream.progress) == 1


WINDOWS = {
    "tumble": (tumble("at", "1 hour"), lambda at: [at // 60 * 60 + 60]),
    "hop": (hop("at", "30 minutes", "1 hour"), lambda at: [at // 30 * 30 + 30, at // 30 * 30 + 60]),
    "cumulate": (
        cumulate("at", "20 minutes", "1 hour"),
        lambda at: [end for end in range(at // 60 * 60 + 20, at // 60 * 60 + 61, 20) if end > at],
    ),
}


@pytest.mark.parametrize(
    ("kind", "is_streaming"),
    [
        ("tumble", False),
        ("hop", False),
        ("cumulate", False),
        pytest.param("hop", True, marks=pytest.mark.slow),
        pytest.param("tumble", True, marks=pytest.mark.slow),
        pytest.param("cumulate", True, marks=pytest.mark.slow),
    ],
)
def test_rows_go_to_each_window_they_lie_in(
    classic: SparkSession,
    tmp_path: Path,
    kind: str,
    is_streaming: bool,
) -> None:
    """Tumbling, hopping and cumulating windows have the rows that a definition in plain Python gives them."""
    functions = connect(spark_functions)
    window, ends_of = WINDOWS[kind]
    minutes = [0, 19, 20, 59, 60, 61, 119, 150]
    stream = Clicks(
        classic, tmp_path, lambda df: group_by(df, window=window, buckets=2).agg(total=functions["sum"]("v"))
    )
    stream.minutes(*((at, "a", 2**place) for place, at in enumerate(minutes)))
    expected: dict[int, int] = defaultdict(int)
    for place, at in enumerate(minutes):
        for end in ends_of(at):
            expected[end] += 2**place
    if is_streaming:
        rows = [row for epoch in stream.run() for row in epoch]
    else:
        batch = classic.read.schema(DDL).parquet(str(tmp_path / "input"))
        rows = [row.asDict() for row in stream.query(batch).collect()]
    assert {minute(row): row["total"] for row in rows} == expected


def test_invalid_windows_are_refused(classic: SparkSession) -> None:
    """A window without a time column, of no length, with a taken name, or without a watermark in append mode."""
    stream = classic.readStream.format("rate").load()
    with pytest.raises(RejectedError, match=r"emit='append'.*withWatermark\('timestamp', \.\.\.\)"):
        group_by(stream, window=tumble("timestamp", "1 hour"), emit="append")
    with pytest.raises(RejectedError, match="emit='append'"):
        group_by(stream, "value", emit="append")
    with pytest.raises(RejectedError, match="there is no column 'at' for the window among timestamp, value"):
        group_by(stream, window=tumble("at", "1 hour"))
    with pytest.raises(RejectedError, match="the window's column value is bigint, not a timestamp"):
        group_by(stream, window=tumble("value", "1 hour"))
    with pytest.raises(RejectedError, match="1 hoor"):
        group_by(stream, window=tumble("timestamp", "1 hoor"))
    with pytest.raises(RejectedError, match="allowed_lateness_s is a number of seconds, 0 or more, and here it is -1"):
        group_by(stream, window=tumble("timestamp", "1 hour"), allowed_lateness_s=-1)
    for step in ("7 minutes", "-20 minutes", "0 minutes", "1 month", "seven minutes"):
        with pytest.raises(RejectedError, match=rf"{step}") as excinfo:
            group_by(stream, window=cumulate("timestamp", step, "1 hour"))
        assert excinfo.value.code == "SIGNATURE"
    for window in (tumble("timestamp", "1 hour"), session("timestamp", "1 hour")):
        with pytest.raises(RejectedError, match="the input already has a column Window_End, which the window adds"):
            group_by(stream.withColumn("Window_End", sf.lit(1)), window=window)


def test_windows_of_a_day_of_23_hours_equal_those_of_spark(classic: SparkSession) -> None:
    """When clocks go forward, each row is in the longest window of its series, which equals Spark's own."""
    functions = connect(spark_functions)
    zone = classic.conf.get("spark.sql.session.timeZone")
    classic.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        days = classic.range(400).selectExpr("timestamp_seconds(1364000000 + 3600 * id) AS at")
        ours = group_by(days, window=cumulate("at", "1 day", "7 days")).agg(n=functions["count"]()).collect()
        theirs = days.groupBy(sf.window("at", "7 days")).count().collect()
    finally:
        classic.conf.set("spark.sql.session.timeZone", zone)
    longest = {(row["window_start"], row["window_end"]): row["n"] for row in ours}
    for row in theirs:
        assert longest[row["window"]["start"], row["window"]["end"]] == row["count"]
    lengths = {row["window_end"].timestamp() - row["window_start"].timestamp() for row in ours}
    assert lengths == {86_400.0 * number for number in range(1, 8)}


def test_rows_without_time_fail_the_query(classic: SparkSession, tmp_path: Path) -> None:
    """A NULL in the window's column fails the query instead of losing the row."""
    functions = connect(spark_functions)
    df = classic.sql("SELECT CAST(NULL AS TIMESTAMP) AS at")
    with pytest.raises(Exception, match="the window's column at is NULL"):
        group_by(df, window=tumble("at", "1 hour")).agg(n=functions["count"]()).collect()
