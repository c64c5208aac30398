"""Windows of time as two more key columns, `window_start` and `window_end`: a row goes to each window it lies in."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.errors import RejectedError

__all__ = ["WINDOW_END", "WINDOW_START", "Window", "cumulate", "hop", "tumble"]

WINDOW_START, WINDOW_END = "window_start", "window_end"
_WINDOW = "foldflight window"
_TIMES = (st.TimestampType, st.TimestampNTZType)


@dataclass(frozen=True)
class Window:
    """Windows over a column of time; made by `tumble`, `hop` and `cumulate`.

    Args:
        time: The column.
        size: Length of a window, as Spark writes intervals: `1 hour`. Of `cumulate`, of the longest.
        slide: From the start of one window to that of the next; empty for windows that do not overlap.
        step: Of `cumulate`: by how much each window of a series is longer than the one before it.
    """

    time: str
    size: str
    slide: str = ""
    step: str = ""

    def assigned(self, df: DataFrame) -> DataFrame:
        """Return the rows with `window_start` and `window_end`, once for each window they lie in.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a column that is missing or no time; SIGNATURE for a bad interval.
        """
        self._check(df)
        time = sf.col("`" + self.time.replace("`", "``") + "`")
        wrong = sf.raise_error(sf.lit(f"SCHEMA_MISMATCH: the window's column {self.time} is NULL; leave such rows out"))
        known = df.withColumn(self.time, sf.coalesce(time, wrong))
        try:
            window = sf.window(time, self.size, self.slide) if self.slide else sf.window(time, self.size)
            windowed = known.select("*", window.alias(_WINDOW))
            chosen = windowed.select(
                *(sf.col("`" + name.replace("`", "``") + "`") for name in df.columns),
                sf.col(f"`{_WINDOW}`.start").alias(WINDOW_START),
                sf.col(f"`{_WINDOW}`.end").alias(WINDOW_END),
            )
            chosen.schema  # noqa: B018 - resolves the intervals now
        except (AnalysisException, ParseException) as error:
            raise RejectedError("SIGNATURE", f"the window {self} is none: {error.getMessage() or error}") from error
        return self._cumulated(chosen) if self.step else chosen

    def _cumulated(self, df: DataFrame) -> DataFrame:
        """Give each row to the windows of its series that end after it."""
        step = sf.expr(f"INTERVAL {self.step}")
        ends = sf.sequence(sf.col(WINDOW_START) + step, sf.col(WINDOW_END), step)
        later = sf.filter(ends, lambda end: end > sf.col("`" + self.time.replace("`", "``") + "`"))
        return df.withColumn(WINDOW_END, sf.explode(later))

    def _check(self, df: DataFrame) -> None:
        if self.time not in df.columns:
            raise RejectedError(
                "SCHEMA_MISMATCH", f"the window's column {self.time!r} is not there; there are {', '.join(df.columns)}"
            )
        for name in (WINDOW_START, WINDOW_END):
            if name in df.columns:
                raise RejectedError("SCHEMA_MISMATCH", f"the input has a column {name}, as the window would; rename it")
        type_ = df.schema[self.time].dataType
        if not isinstance(type_, _TIMES):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the window's column {self.time} is {type_.simpleString()}, not a timestamp; cast it in the query",
            )


def tumble(time: str, size: str) -> Window:
    """Cut time into windows of one size: `tumble("at", "1 hour")`."""
    return Window(time, size)


def hop(time: str, slide: str, size: str) -> Window:
    """Begin a window of `size` every `slide`; a row lies in several: `hop("at", "5 minutes", "1 hour")`."""
    return Window(time, size, slide=slide)


def cumulate(time: str, step: str, size: str) -> Window:
    """Begin a series of windows every `size`, each `step` longer than the last: `cumulate("at", "1 hour", "1 day")`."""
    return Window(time, size, step=step)
