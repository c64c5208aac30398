"""`over(...).agg(...)` over a streaming DataFrame, beside the same over a batch."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.spark import over
from foldflight.spark.errors import error_of
from tests.spark import spark_functions
from tests.spark.test_stream_windows import Clicks


def watermarked(df: DataFrame) -> DataFrame:
    return df.withWatermark("at", "10 minutes")


def key_of(row: dict[str, Any]) -> tuple[str, dt.datetime, int]:
    return row["page"], row["at"], row["v"]


@pytest.mark.slow
def test_a_restarted_stream_equals_a_batch_of_the_rows_that_were_not_late(
    classic: SparkSession, tmp_path: Path
) -> None:
    """Each row comes out once, in order; late rows are counted; a restart between any two epochs changes nothing."""
    functions = connect(spark_functions)

    def query(df: DataFrame) -> DataFrame:
        return over(watermarked(df) if df.isStreaming else df, "page", order_by="at", buckets=3).agg(
            three=functions["sum"]("v").rows(-2, 0),
            most=functions["max"]("v").rows(-19, 0),
            hour=functions["sum"]("v").range("-30 minutes", 0),
            so_far=functions["count"]().where("v > 2"),
        )

    stream = Clicks(classic, tmp_path, query, mode="append")
    stream.minutes((5, "a", 1), (50, "a", 2), (31, "b", 4), (1, "c", 1))
    came = stream.run()
    stream.minutes((10, "a", 8), (60, "b", 16))  # the watermark stands at 40: minute 10 is late
    stream.minutes((75, "b", 32), (62, "a", 64), (130, "c", 3))
    came += stream.run()
    stream.minutes((90, "b", 100), (131, "a", 5), (300, "d", 1))  # at 120: minute 90 is late
    came += stream.run()
    assert sum(each["late_rows"] or 0 for each in stream.progress) == 2
    assert stream.progress[-1]["waiting_rows"] == 1
    rows = [row for epoch in came for row in epoch]
    for page in "abc":
        times = [row["at"] for row in rows if row["page"] == page]
        assert times == sorted(times)
    batch = classic.read.schema(stream.ddl).parquet(str(tmp_path / "input"))
    in_time = batch.where("v NOT IN (8, 100) AND page <> 'd'")
    assert sorted(rows, key=key_of) == sorted((row.asDict() for row in query(in_time).collect()), key=key_of)


def test_frames_that_a_stream_cannot_fold_are_refused_with_the_remedy(
    classic: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says why, and what to do instead; `explain` says for how long which rows are kept."""
    functions = connect(spark_functions)
    raw = classic.readStream.format("rate").load().withColumnRenamed("timestamp", "at")
    df, count = watermarked(raw), functions["count"]()
    for input_df, order, message in (
        (raw, "at", "this stream has none; add df.withWatermark"),
        (df, (), "ordered by the column under the watermark; give order_by='at'"),
        (df, "value", "'value' is not; give order_by='at', with further columns only behind it"),
        (df, "at DESC", "ascending, and"),
        (df.withColumn("row_kind", sf.lit("+I")), "at", "so it is one of changes"),
        (df, sf.expr("at + INTERVAL 1 HOUR"), "is not; give order_by='at'"),
    ):
        with pytest.raises(RejectedError, match=message):
            over(input_df, "value", order_by=order)
    by_time = over(df, "value", order_by=["at", "value DESC"])
    for call, message in (
        (count.rows(-1, 1), "a stream does not know the rows that follow"),
        (count.range("-1 hour", 0), "needs one column in order_by, and there are 2"),
        (count.rows(-20_000, 0), "at most 10,000 rows before the current one"),
    ):
        with pytest.raises(RejectedError, match=message):
            by_time.agg(n=call)
    with pytest.raises(RejectedError, match="idle is an interval of a fixed length"):
        over(df, "value", order_by="at", idle="1 month").agg(n=count)
    with pytest.raises(RejectedError, match="idle bounds the state of a stream, and this is a batch"):
        over(classic.range(1), "id", idle="7 days")
    with pytest.raises(RejectedError, match="buckets is 1 to"):
        over(df, "value", order_by="at", buckets=0)
    by_time.explain(n=count, last=count.rows(-9, 0))
    output = capsys.readouterr().out
    for text in (
        "stream: over: partition by value",
        "state in 32 buckets",
        "n: the accumulators of each group, for ever",
        "last: the arguments of the last 9 rows of each group, for ever",
        "counted in late_rows",
    ):
        assert text in output


@pytest.mark.slow
def test_frames_are_folded_on_servers_and_rows_need_a_time(
    classic: SparkSession, tmp_path: Path, server_url: str
) -> None:
    """Frames are folded on servers, too, without keys in one bucket; a row without a time fails the query."""
    functions = connect(server_url)

    def query(df: DataFrame) -> DataFrame:
        return over(watermarked(df), order_by=["at", "page DESC"]).agg(
            last=functions["sum"]("v").rows(-1, 0), so_far=functions["sum"]("v"), ten=functions["count"]().range(0, 0)
        )

    stream = Clicks(classic, tmp_path, query, mode="append")
    stream.minutes((1, "a", 1), (2, "a", 2), (2, "b", 4), (40, "c", 8))
    (rows,) = [epoch for epoch in stream.run() if epoch]
    assert [(row["v"], row["last"], row["so_far"], row["ten"]) for row in rows] == [
        (1, 1, 1, 1),
        (4, 5, 5, 1),
        (2, 6, 7, 1),
    ]
    stream.write([{"at": None, "page": "a", "v": 1}])
    with pytest.raises(PySparkException) as excinfo:
        stream.run()
    assert str(error_of(excinfo.value)).startswith("SCHEMA_MISMATCH: the order at is NULL; leave such rows out\n")
