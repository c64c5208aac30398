"""Time windows, as two additional key columns `window_start` and `window_end`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.window import Window as SparkWindow

from foldflight.errors import RejectedError
from foldflight.spark.columns import column_named, reject_spark_errors, text_of
from foldflight.spark.errors import raise_error

PROCESSING_TIME = "foldflight_processing_time"
"""For `tumble(PROCESSING_TIME, "1 minute")`: the time of the epoch in which a row arrives.

A window closes in the epoch after one that has rows and begins after the window's end. While no rows arrive, no window
closes.
"""

WATERMARK = "spark.watermarkDelayMs"  # in the metadata of a column under withWatermark

WINDOW_START, WINDOW_END = "window_start", "window_end"
_WINDOW, _NUMBER = "foldflight window", "foldflight session"
_UNITS: Final = {
    "ms": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "m": "minutes",
    "min": "minutes",
    "h": "hours",
    "hr": "hours",
    "d": "days",
    "w": "weeks",
}
# Other systems read `24h`; and Spark has no windows of months.
_SHORT: Final = re.compile(r"(?i)\s*(\d+)\s*(ms|s|sec|m|min|h|hr|d|w)\s*")
_MONTHS: Final = re.compile(r"(?i)\b(months?|years?)\b")
_TIMES = (st.TimestampType, st.TimestampNTZType)


@dataclass(frozen=True)
class Window:
    """Windows over a time column; created by `tumble`, `hop`, `cumulate` and `session`.

    Args:
        time: The name of the column.
        size: Length of a window, as a Spark interval such as `1 hour`. For `cumulate`, length of the longest window.
        slide: Interval between the starts of two windows; empty for windows that do not overlap.
        step: For `cumulate`: the difference in length between two windows of a series. It must divide `size`.
        is_session: Whether `size` is the gap, the time without rows after which a window ends.
    """

    time: str
    size: str
    slide: str = ""
    step: str = ""
    is_session: bool = False

    def __post_init__(self) -> None:
        """Check that all fields are texts. Raises RejectedError SIGNATURE."""
        if not isinstance(self.time, str):
            raise RejectedError(
                "SIGNATURE",
                f"the time of a window is the name of a column, not {text_of(self.time)!r}; for an expression, "
                "add a column with df.withColumn(...)",
            )
        for length in (self.size, self.slide, self.step):
            if not isinstance(length, str):
                raise RejectedError("SIGNATURE", f"the lengths of a window are texts such as '1 hour', not {length!r}")
            if short := _SHORT.fullmatch(length):
                number, unit = short.groups()
                raise RejectedError(
                    "SIGNATURE",
                    f"{length!r} is no length of a window; write its unit out: '{number} {_UNITS[unit.casefold()]}'",
                )
            if _MONTHS.search(length):
                raise RejectedError(
                    "SIGNATURE",
                    f"{length!r} is no length of a window, because months and years differ in length; give it in weeks "
                    "or smaller units, or group by date_trunc('month', ...) of the time",
                )

    def __str__(self) -> str:
        """Return the kind and lengths of the windows, without the column: `hop 5 minutes, 1 hour`."""
        if self.is_session:
            return f"session {self.size}"
        if self.slide:
            return f"hop {self.slide}, {self.size}"
        return f"cumulate {self.step}, {self.size}" if self.step else f"tumble {self.size}"

    def with_time(self, df: DataFrame) -> DataFrame:
        """Return the rows with the time column. For processing time, it is the time of the epoch, with a watermark.

        Spark logs the time of the epoch, so a rerun uses the same time. A window closes in the first epoch after its
        end.

        Raises:
            RejectedError: SIGNATURE, for processing time over a batch, or in addition to another watermark.
        """
        if self.time != PROCESSING_TIME:
            return df
        if not df.isStreaming:
            raise RejectedError(
                "SIGNATURE", "windows over processing time are for streams; give the name of a time column"
            )
        others = [field.name for field in df.schema if WATERMARK in (field.metadata or {})]
        if others:
            raise RejectedError(
                "SIGNATURE",
                "windows over processing time add a watermark, and Spark allows one for each query; the column "
                f"{', '.join(others)} has one already: remove its withWatermark, or define the windows over it",
            )
        return df.withColumn(PROCESSING_TIME, sf.current_timestamp()).withWatermark(PROCESSING_TIME, "0 seconds")

    def assign(self, df: DataFrame, keys: Sequence[Column]) -> DataFrame:
        """Return the rows with `window_start` and `window_end`, once for each window of a row.

        In a stream, a session window is computed from its row alone. The state table merges overlapping sessions.

        Args:
            df: The rows.
            keys: The grouping columns. Sessions are computed for each key.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a column that is missing or not a timestamp, and for names that are
                taken; SIGNATURE for an invalid interval.
        """
        self._check(df)
        time = column_named(self.time)
        wrong = raise_error("SCHEMA_MISMATCH", f"the window's column {self.time} is NULL; leave such rows out")
        non_null = df.withColumn(self.time, sf.coalesce(time, wrong))
        if self.is_session:
            alone = self._alone(non_null)
            return alone if df.isStreaming else _merge_sessions(alone, keys)
        with reject_spark_errors("SIGNATURE", f"Spark cannot read the lengths of the window {str(self)!r}"):
            window = sf.window(time, self.size, self.slide) if self.slide else sf.window(time, self.size)
            windowed_rows = non_null.select("*", window.alias(_WINDOW))
            # Other columns are not named: a join may have two of one name.
            ends = {WINDOW_START: sf.col(f"`{_WINDOW}`.start"), WINDOW_END: sf.col(f"`{_WINDOW}`.end")}
            result = windowed_rows.withColumns(ends).drop(_WINDOW)
            result.schema  # noqa: B018 - resolves the intervals now
        return self._assign_cumulative(result) if self.step else result

    def _alone(self, df: DataFrame) -> DataFrame:
        """Return each row with its own session window, which ends after the gap."""
        start = column_named(self.time)
        with reject_spark_errors("SIGNATURE", f"Spark cannot read the lengths of the window {str(self)!r}"):
            gap = df.sparkSession.sql(f"SELECT INTERVAL {self.size} AS gap")
            type_ = gap.schema["gap"].dataType
        if not isinstance(type_, st.DayTimeIntervalType) or (length := gap.collect()[0][0]) <= timedelta(0):
            raise RejectedError(
                "SIGNATURE",
                f"the gap of a session must be a positive duration in days or smaller units, not {self.size!r}",
            )
        return df.withColumn(WINDOW_START, start).withColumn(WINDOW_END, start + self._calendar_gap(type_, length))

    def _calendar_gap(self, type_: st.DayTimeIntervalType, length: timedelta) -> Column:
        """Return the gap as Spark's `session_window` adds it: days by the calendar, smaller units exactly.

        A day-time interval does not tell 24 hours from a day, which has 23 or 25 hours where clocks change. The cast
        reads the units of `1 day 24 hours` one by one. It does not read `'1 02:00' DAY TO MINUTE`, whose hours are
        fewer than 24.
        """
        days = length.days if type_.startField == st.DayTimeIntervalType.DAY else 0
        seconds = Decimal((length - timedelta(days)) // timedelta(microseconds=1)).scaleb(-6)
        exact_gap = sf.make_interval(days=sf.lit(days), secs=sf.lit(seconds).cast("decimal(18, 6)"))
        return sf.coalesce(sf.lit(self.size.replace("'", "")).cast("interval"), exact_gap)

    def _assign_cumulative(self, df: DataFrame) -> DataFrame:
        """Assign each row to the windows of its series that end after it.

        Like Spark's windows, ends are computed in seconds from the start, because a calendar day may have 23 hours.
        """
        with reject_spark_errors("SIGNATURE", f"Spark cannot read the lengths of the window {str(self)!r}"):
            lengths = df.sparkSession.sql(f"SELECT INTERVAL {self.size} AS size, INTERVAL {self.step} AS step")
            are_times = all(isinstance(each.dataType, st.DayTimeIntervalType) for each in lengths.schema)
            size, step = lengths.collect()[0] if are_times else (timedelta(0), timedelta(0))
        if step <= timedelta(0) or size % step:
            raise RejectedError(
                "SIGNATURE",
                f"the step of cumulate must divide the size of its windows, and {self.step!r} does not divide "
                f"{self.size!r}: rows after the last whole step would be in no window",
            )
        seconds = sf.lit(Decimal(step // timedelta(microseconds=1)).scaleb(-6))
        ends = sf.transform(
            sf.sequence(sf.lit(1), sf.lit(size // step)),
            lambda number: sf.col(WINDOW_START) + sf.make_interval(secs=(number * seconds).cast("decimal(18, 6)")),
        )
        later = sf.filter(ends, lambda end: end > column_named(self.time))
        return df.withColumn(WINDOW_END, sf.explode(later))

    def _check(self, df: DataFrame) -> None:
        if self.time not in df.columns:
            raise RejectedError(
                "SCHEMA_MISMATCH", f"there is no column {self.time!r} for the window among {', '.join(df.columns)}"
            )
        if df.columns.count(self.time) > 1:
            raise RejectedError(
                "SCHEMA_MISMATCH", f"the window's column {self.time!r} is the name of two columns; rename one of them"
            )
        for name in df.columns:
            if name.casefold() in (WINDOW_START, WINDOW_END):  # Spark compares names without case
                raise RejectedError(
                    "SCHEMA_MISMATCH", f"the input already has a column {name}, which the window adds; rename it"
                )
        with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot resolve the window's column {self.time!r}"):
            type_ = df.select(column_named(self.time)).schema[0].dataType
        if not isinstance(type_, _TIMES):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the window's column {self.time} is {type_.simpleString()}, not a timestamp; add one with "
                "df.withColumn and F.to_timestamp (from texts and dates) or F.timestamp_seconds (from numbers)",
            )


def tumble(time: str, size: str) -> Window:
    """Define tumbling windows of a fixed size: `tumble("at", "1 hour")`; in streams also over `PROCESSING_TIME`.

    >>> from foldflight import connect
    >>> from foldflight.spark import group_by, tumble
    >>> calls = spark.createDataFrame([("2026-01-01 12:05:00",), ("2026-01-01 13:30:00",)], "at STRING")
    >>> calls = calls.selectExpr("CAST(at AS TIMESTAMP) AS at")
    >>> hours = group_by(calls, window=tumble("at", "1 hour")).agg(calls=connect("embedded:").count())
    >>> hours.sort("window_start").show()
    +-------------------+-------------------+-----+
    |       window_start|         window_end|calls|
    +-------------------+-------------------+-----+
    |2026-01-01 12:00:00|2026-01-01 13:00:00|    1|
    |2026-01-01 13:00:00|2026-01-01 14:00:00|    1|
    +-------------------+-------------------+-----+
    """
    return Window(time, size)


def hop(time: str, slide: str, size: str) -> Window:
    """Define hopping windows: one of length `size` starts every `slide`: `hop("at", "5 minutes", "1 hour")`.

    >>> from foldflight import connect
    >>> from foldflight.spark import group_by, hop
    >>> calls = spark.sql("SELECT TIMESTAMP'2026-01-01 12:05:00' AS at")
    >>> hours = group_by(calls, window=hop("at", "30 minutes", "1 hour")).agg(calls=connect("embedded:").count())
    >>> hours.sort("window_start").show()
    +-------------------+-------------------+-----+
    |       window_start|         window_end|calls|
    +-------------------+-------------------+-----+
    |2026-01-01 11:30:00|2026-01-01 12:30:00|    1|
    |2026-01-01 12:00:00|2026-01-01 13:00:00|    1|
    +-------------------+-------------------+-----+
    """
    return Window(time, size, slide=slide)


def session(time: str, gap: str) -> Window:
    """Define session windows, which end after a gap without rows: `session("at", "30 minutes")`.

    A window extends from its first row to `gap` after its last row. Rows may arrive in any order and may join two
    windows. Therefore every function must support merging, and rows cannot be retracted.

    >>> from foldflight import connect
    >>> from foldflight.spark import group_by, session
    >>> minutes = spark.createDataFrame([(0,), (20,), (90,)], "minute INT")
    >>> clicks = minutes.selectExpr("TIMESTAMP'2026-01-01 12:00:00' + make_interval(0, 0, 0, 0, 0, minute) AS at")
    >>> visits = group_by(clicks, window=session("at", "30 minutes")).agg(clicks=connect("embedded:").count())
    >>> visits.sort("window_start").show()
    +-------------------+-------------------+------+
    |       window_start|         window_end|clicks|
    +-------------------+-------------------+------+
    |2026-01-01 12:00:00|2026-01-01 12:50:00|     2|
    |2026-01-01 13:30:00|2026-01-01 14:00:00|     1|
    +-------------------+-------------------+------+
    """
    return Window(time, gap, is_session=True)


def cumulate(time: str, step: str, size: str) -> Window:
    """Define cumulating windows: `cumulate("at", "1 hour", "1 day")`.

    A series of windows starts every `size`. Its first window has the length `step`, and each further window is `step`
    longer, up to `size`. The step must divide the size.

    >>> from foldflight import connect
    >>> from foldflight.spark import cumulate, group_by
    >>> calls = spark.sql("SELECT TIMESTAMP'2026-01-01 12:05:00' AS at")
    >>> hours = group_by(calls, window=cumulate("at", "6 hours", "1 day")).agg(calls=connect("embedded:").count())
    >>> hours.sort("window_end").show()
    +-------------------+-------------------+-----+
    |       window_start|         window_end|calls|
    +-------------------+-------------------+-----+
    |2026-01-01 00:00:00|2026-01-01 18:00:00|    1|
    |2026-01-01 00:00:00|2026-01-02 00:00:00|    1|
    +-------------------+-------------------+-----+
    """
    return Window(time, size, step=step)


def _merge_sessions(df: DataFrame, keys: Sequence[Column]) -> DataFrame:
    """Return the rows with merged sessions instead of the sessions of single rows."""
    start, end = sf.col(WINDOW_START), sf.col(WINDOW_END)
    by_key = SparkWindow.partitionBy(*keys)
    in_order = by_key.orderBy(WINDOW_START)
    # The maximum of all previous ends, not the end of the previous row: with a gap in days, on the day when clocks go
    # back, the end of a later row may precede the end of an earlier row.
    before = in_order.rowsBetween(SparkWindow.unboundedPreceding, -1)
    begins = sf.coalesce(start > sf.max(end).over(before), sf.lit(True))
    numbered_rows = df.withColumn(_NUMBER, sf.sum(begins.cast("int")).over(in_order))
    of_session = SparkWindow.partitionBy(*keys, _NUMBER)
    merged_rows = numbered_rows.withColumn(WINDOW_START, sf.min(start).over(of_session)).withColumn(
        WINDOW_END, sf.max(end).over(of_session)
    )
    return merged_rows.drop(_NUMBER)
