"""Session windows and windows of processing time in Spark; tests/laws compares them with a model."""

import datetime as dt
import importlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.client import Functions
from foldflight.spark import PROCESSING_TIME, group_by, session, tumble
from tests.spark import spark_functions
from tests.spark.test_stream_windows import DDL, START, Clicks, minute, watermarked

GAP = "30 minutes"


def minutes_of(row: dict[str, Any]) -> tuple[int, int]:
    """Return the minutes at which a row's session starts and ends."""
    first, last = (row[name].astimezone(dt.UTC) - START for name in ("window_start", "window_end"))
    return int(first / dt.timedelta(minutes=1)), int(last / dt.timedelta(minutes=1))


# Without keys one task has all rows, and Spark says so.
@pytest.mark.filterwarnings("ignore:.*No Partition Defined for Window operation")
@pytest.mark.parametrize("keys", [["page"], []], ids=["keys", "no keys"])
def test_batch_sessions_equal_those_of_spark(spark: Any, embedded: Functions, keys: list[str]) -> None:
    """Over random rows, with ties and gaps of exactly the length, sessions equal Spark's; no merge is needed."""
    is_connect = "connect" in type(spark).__module__
    sf = importlib.import_module("pyspark.sql.connect.functions" if is_connect else "pyspark.sql.functions")
    rng = random.Random(5)
    rows = [
        (
            rng.choice(["a", "b", None]),
            START + dt.timedelta(minutes=5 * rng.randrange(2000), microseconds=rng.choice([0, 0, 1])),
            number,
        )
        for number in range(500)
    ]
    frame = spark.createDataFrame(rows, "page string, at timestamp, v bigint").repartition(5)
    ours = group_by(frame, *keys, window=session("at", GAP)).agg(
        n=embedded["count"](), total=embedded["sum"]("v"), middle=embedded["median"]("v")
    )
    middle = sf.sort_array(sf.collect_list("v"))[(sf.count("*") / 2).cast("int")]
    theirs = frame.groupBy(*keys, sf.session_window("at", GAP).alias("w")).agg(
        sf.count("*").alias("n"), sf.sum("v").alias("total"), middle.alias("middle")
    )
    expected = theirs.select(*keys, "w.start", "w.end", "n", "total", "middle").collect()
    assert len(expected) > 50
    assert sorted(map(tuple, ours.collect()), key=repr) == sorted(map(tuple, expected), key=repr)


@pytest.fixture
def in_new_york(classic: SparkSession) -> Iterator[SparkSession]:
    """A session of Spark in New York, where the day 2024-11-03 has 25 hours."""
    zone = classic.conf.get("spark.sql.session.timeZone")
    classic.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield classic
    classic.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize(
    "gap",
    [
        "24 hours",
        "1440 minutes",
        "86400 seconds",
        "1 day",
        "1 day 12 hours",
        "1 day 24 hours",
        "1 week -1 hour 90 minutes",
    ],
)
def test_gaps_end_where_the_gaps_of_spark_end(in_new_york: SparkSession, gap: str) -> None:
    """Where clocks change, 24 hours are 24 hours and a day is a day of the calendar, as in Spark."""
    functions = connect(spark_functions)
    times = [(dt.datetime(2024, month, day, 16, tzinfo=dt.UTC),) for month, day in ((3, 8), (7, 1), (11, 1), (11, 2))]
    frame = in_new_york.createDataFrame(times, "at timestamp")
    ours = group_by(frame, window=session("at", gap)).agg(n=functions["count"]()).select("window_start", "window_end")
    theirs = frame.groupBy(sf.session_window("at", gap).alias("w")).count().select("w.start", "w.end")
    assert sorted(ours.collect()) == sorted(map(tuple, theirs.collect()))


@pytest.mark.parametrize(
    ("gap", "hours"),
    [("'48' HOURS", 48), ("'1' DAY '24' HOURS", 48), ("'48:00' HOUR TO MINUTE", 48), ("'2 02:00' DAY TO MINUTE", 51)],
)
def test_gaps_as_literals_of_sql_end_by_their_units(in_new_york: SparkSession, gap: str, hours: int) -> None:
    """`session` also takes what follows INTERVAL in a literal, which `session_window` does not."""
    functions = connect(spark_functions)
    start = dt.datetime(2024, 11, 1, 16, tzinfo=dt.UTC)
    frame = in_new_york.createDataFrame([(start,)], "at timestamp")
    (row,) = group_by(frame, window=session("at", gap)).agg(n=functions["count"]()).collect()
    assert row.window_end.astimezone(dt.UTC) - start == dt.timedelta(hours=hours)


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("gap", "hours"), [("1 day 24 hours", 48), pytest.param("48 hours", 48, marks=pytest.mark.slow)]
)
def test_gaps_of_streams_end_by_their_units(in_new_york: SparkSession, tmp_path: Path, gap: str, hours: int) -> None:
    """The session windows of a stream have the same gaps as the windows of a batch."""
    functions = connect(spark_functions)
    start = dt.datetime(2024, 11, 1, 16, tzinfo=dt.UTC)
    stream = Clicks(
        in_new_york,
        tmp_path,
        lambda df: group_by(df, "page", window=session("at", gap), buckets=1).agg(n=functions["count"]()),
    )
    stream.write([{"at": start, "page": "a", "v": 1}])
    ((row,),) = stream.run()
    assert row["window_end"].astimezone(dt.UTC) - start == dt.timedelta(hours=hours)


def test_gaps_of_a_day_equal_those_of_spark(classic: SparkSession) -> None:
    """When clocks go back, adding a day to rows may change their order; sessions equal Spark's."""
    functions = connect(spark_functions)
    zone = classic.conf.get("spark.sql.session.timeZone")
    classic.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = classic.createDataFrame(
            [
                (dt.datetime(2024, 10, day, hour, minute, tzinfo=dt.UTC),)
                for day, hour, minute in ((27, 0, 30), (27, 1, 10), (28, 1, 20), (30, 0, 0))
            ],
            "at timestamp",
        )
        ours = group_by(frame, window=session("at", "1 day")).agg(n=functions["count"]()).collect()
        theirs = frame.groupBy(sf.session_window("at", "1 day").alias("w")).count()
        expected = theirs.select("w.start", "w.end", "count").collect()
    finally:
        classic.conf.set("spark.sql.session.timeZone", zone)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, expected))


class Sink:
    """A table that applies changes."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.kinds: Counter[str] = Counter()

    def apply(self, epoch: list[dict[str, Any]]) -> None:
        # Spark keeps no order between buckets, nor for a test that collects: what takes back comes first.
        for row in sorted(epoch, key=lambda row: row["row_kind"] in ("+I", "+U")):
            kind, key = row["row_kind"], (row["page"], *minutes_of(row))
            value = (row["n"], row["total"], row["middle"])
            self.kinds[kind] += 1
            if kind == "-U":
                assert self.rows[key] == value
            elif kind == "-D":
                assert self.rows.pop(key) == value
            else:
                assert (kind == "+U") == (key in self.rows)
                self.rows[key] = value


@pytest.mark.slow
@pytest.mark.parametrize("emit", ["changelog", "update"])
def test_any_order_over_a_restart_ends_as_the_batch(
    classic: SparkSession,
    tmp_path: Path,
    emit: str,
) -> None:
    """Rows out of order extend and join sessions; the applied changes equal the batch result."""
    functions = connect(spark_functions)
    rng = random.Random(7)

    def query(df: Any) -> Any:
        # The median does not merge: in the stream its sessions keep their rows.
        return group_by(
            df,
            "page",
            window=session("at", GAP),
            emit=emit if df.isStreaming else "update",  # type: ignore[arg-type]
            buckets=2,
            materialize=True,
        ).agg(n=functions["count"](), total=functions["sum"]("v"), middle=functions["median"]("v"))

    stream, sink = Clicks(classic, tmp_path, query), Sink()
    for files in (2, 2):  # a restart between them
        for _ in range(files):
            stream.minutes(*((rng.randrange(0, 3000, 5), rng.choice("ab"), number) for number in range(40)))
        for epoch in stream.run():
            sink.apply(epoch)
    batch = query(classic.read.schema(DDL).parquet(str(tmp_path / "input"))).collect()
    assert sink.rows == {
        (row["page"], *minutes_of(row)): (row["n"], row["total"], row["middle"]) for row in map(Row.asDict, batch)
    }
    assert sink.kinds["-D"] > 10
    assert (sink.kinds["-U"] > 0) == (emit == "changelog")


@pytest.mark.slow
def test_sessions_of_a_stream_merge_and_close(classic: SparkSession, tmp_path: Path) -> None:
    """Append mode emits each session once, after the watermark has passed it, also if rows joined it out of order."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
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
    output_rows = [(row["page"], minute(row), row["n"], row["total"]) for epoch in stream.run() for row in epoch]
    assert sorted(output_rows) == [("a", 26, 3, 11), ("b", 26, 1, 4), ("c", 111, 2, 65), ("d", 310, 1, 1)]
    assert sum(each["late_rows"] or 0 for each in stream.progress) == 1


@pytest.mark.slow
def test_a_session_that_grows_replaces_the_old_one(classic: SparkSession, tmp_path: Path) -> None:
    """Without a watermark sessions stay open, also over a restart; the changelog has replaced and new sessions."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
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


@pytest.mark.slow
def test_sessions_stay_open_for_the_allowed_lateness(classic: SparkSession, tmp_path: Path) -> None:
    """A session closes after the allowed lateness, and later rows are counted, also over a restart."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
        tmp_path,
        lambda df: group_by(
            watermarked(df), "page", window=session("at", GAP), emit="append", allowed_lateness_s=3600, buckets=2
        ).agg(n=functions["count"](), total=functions["sum"]("v")),
        mode="append",
    )
    stream.minutes((0, "a", 1), (90, "b", 2))
    stream.minutes((10, "a", 4))  # the watermark stands at 80; a is open until 90
    output_rows = stream.run()
    stream.minutes((111, "b", 8))
    stream.minutes((10, "a", 16))  # at 101: a, which ends at 40, has closed
    stream.minutes((500, "c", 32))
    output_rows += stream.run()
    assert sorted(
        (row["page"], *minutes_of(row), row["n"], row["total"]) for epoch in output_rows for row in epoch
    ) == [
        ("a", 0, 40, 2, 5),
        ("b", 90, 141, 2, 10),
    ]
    assert sum(each["late_rows"] or 0 for each in stream.progress) == 1


@pytest.mark.slow
def test_sessions_feed_another_aggregation(classic: SparkSession, tmp_path: Path) -> None:
    """The changes of sessions are rows with kinds for the next aggregation, which counts sessions and rows."""
    functions = connect(spark_functions)

    def query(df: DataFrame) -> DataFrame:
        sessions = group_by(df, "page", window=session("at", GAP), emit="changelog", buckets=2).agg(
            n=functions["count"]()
        )
        return group_by(sessions, "page", row_kind="row_kind", buckets=2).agg(
            sessions=functions["count"](), rows=functions["sum"]("n")
        )

    stream = Clicks(classic, tmp_path, query)
    stream.minutes((0, "a", 1), (60, "a", 1), (120, "a", 1))
    stream.minutes((30, "a", 1))
    assert [[(row["sessions"], row["rows"]) for row in epoch] for epoch in stream.run()] == [[(3, 3)], [(2, 4)]]


@pytest.mark.slow
def test_a_checkpoint_of_other_windows_is_refused(classic: SparkSession, tmp_path: Path) -> None:
    """A query whose windows differ from its checkpoint's is refused with both."""
    functions = connect(spark_functions)
    windows = [session("at", GAP)]
    stream = Clicks(
        classic,
        tmp_path,
        lambda df: group_by(df, "page", window=windows[-1], buckets=2).agg(n=functions["count"]()),
    )
    stream.minutes((0, "a", 1))
    stream.run()
    stream.minutes((0, "a", 1))
    windows.append(session("at", "20 minutes"))
    with pytest.raises(
        Exception, match=r"other windows than the query: stored session 30 minutes, .* session 20 minutes"
    ):
        stream.run()


@pytest.mark.slow
def test_windows_of_processing_time_contain_the_time_of_their_epoch(classic: SparkSession, tmp_path: Path) -> None:
    """The window of a row contains the time of its epoch, and closes in an epoch after its end."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
        tmp_path,
        lambda df: group_by(df, "page", window=tumble(PROCESSING_TIME, "1 second"), emit="append", buckets=3).agg(
            n=functions["count"]()
        ),
        mode="append",
    )
    output_rows: list[dict[str, Any]] = []
    before = dt.datetime.now(dt.UTC)
    for _ in range(4):
        stream.minutes((0, "a", 1), (500, "a", 1))
        output_rows += [row for epoch in stream.run() for row in epoch]
    assert output_rows
    assert all(row["page"] == "a" and row["n"] % 2 == 0 for row in output_rows)
    ends = [row["window_end"].astimezone(dt.UTC) for row in output_rows]
    assert len(set(ends)) == len(ends)
    assert all(before < end <= dt.datetime.now(dt.UTC) for end in ends)


def test_invalid_sessions_are_refused(classic: SparkSession) -> None:
    """Invalid sessions are refused when the query is built."""
    functions = connect(spark_functions)
    frame = classic.createDataFrame([(START, "a", "+I", 1)], "at timestamp, page string, op string, v bigint")
    for gap in ("0 minutes", "-5 minutes", "3 months", "soon", ""):
        with pytest.raises(RejectedError, match=r"session|none|month|INTERVAL|gap") as excinfo:
            group_by(frame, "page", window=session("at", gap))
        assert excinfo.value.code == "SIGNATURE"
    with pytest.raises(RejectedError, match="the window's column v is bigint, not a timestamp"):
        group_by(frame, "page", window=session("v", GAP))
    with pytest.raises(RejectedError, match="may split a session into two") as excinfo:
        group_by(frame, "page", row_kind="op", window=session("at", "5 minutes"))
    assert excinfo.value.code == "CANNOT_RETRACT"
    with pytest.raises(RejectedError, match="windows over processing time are for streams"):
        group_by(frame, "page", window=tumble(PROCESSING_TIME, "1 hour"))
    with pytest.raises(Exception, match="the window's column at is NULL"):
        group_by(frame.selectExpr("CAST(NULL AS TIMESTAMP) AS at"), window=session("at", GAP)).agg(
            n=functions["count"]()
        ).collect()


def test_processing_time_beside_a_watermark_is_refused(classic: SparkSession) -> None:
    """Spark allows one watermark in a query, and fails only at run time; the error here names the columns before."""
    stream = classic.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    with pytest.raises(RejectedError, match=r"timestamp has one already: remove its withWatermark") as excinfo:
        group_by(stream, window=tumble(PROCESSING_TIME, "1 minute"))
    assert excinfo.value.code == "SIGNATURE"


def test_sessions_of_a_stream_need_functions_with_merge(classic: SparkSession) -> None:
    """A function without merge is refused, unless its rows are kept for DISTINCT or with materialize."""
    functions = connect(spark_functions)
    stream = classic.readStream.format("rate").load()
    window = session("timestamp", GAP)
    with pytest.raises(RejectedError, match=r"median has no merge.*materialize=True") as excinfo:
        group_by(stream, window=window).agg(x=functions["median"]("value"))
    assert excinfo.value.code == "CANNOT_MERGE"
    assert group_by(stream, window=window).agg(x=functions["median"]("value").distinct()).isStreaming
    assert group_by(stream, window=window, materialize=True).agg(x=functions["median"]("value")).isStreaming
    with pytest.raises(RejectedError, match=r"emit='append'.*withWatermark\('timestamp', \.\.\.\)"):
        group_by(stream, window=window, emit="append")
