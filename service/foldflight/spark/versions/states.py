"""Stateful operators: `transformWithState` of Spark 4.1, and `transformWithStateInPandas` of 4.0.

Both call the same processor with the same state variables, so they write the same checkpoint. They differ in how rows
come and go: as rows, or as DataFrames of pandas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql import types as st

from foldflight.spark.versions.facts import STREAMS, require

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
else:
    try:
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    except ImportError:  # before 4.0; `transform_with_state` refuses streams there

        class StatefulProcessor:
            """A stand-in for PySpark's class, where PySpark has none."""


__all__ = ["FILE_MANAGER", "StatefulProcessor", "transform_with_state"]

_HAS_ROWS: Final = hasattr(GroupedData, "transformWithState")

FILE_MANAGER: Final = (
    f"org.apache.spark.sql.execution.streaming.{'checkpointing.' * _HAS_ROWS}FileSystemBasedCheckpointFileManager"
)
"""The class that writes checkpoints to local disks, which Spark 4.1 moved."""


def transform_with_state(
    grouped: GroupedData, processor: StatefulProcessor, schema: st.StructType, output_mode: str, time_mode: str
) -> DataFrame:
    """Return the rows that a processor makes of the rows of each key.

    Args:
        grouped: The rows by key.
        processor: Takes and yields rows.
        schema: The rows that it yields.
        output_mode: That of Spark.
        time_mode: That of Spark.

    Raises:
        RejectedError: SETTINGS on a Spark before 4.0.
    """
    require(STREAMS, "streams")
    if hasattr(grouped, "transformWithState"):
        return grouped.transformWithState(processor, schema, output_mode, time_mode)
    return grouped.transformWithStateInPandas(_InPandas(processor, schema), schema, output_mode, time_mode)


class _InPandas(StatefulProcessor):
    """A processor of rows as one of DataFrames of pandas.

    Args:
        processor: The processor of rows.
        schema: The rows that it yields.
    """

    def __init__(self, processor: StatefulProcessor, schema: st.StructType) -> None:
        self._processor = processor
        self._schema = schema

    def init(self, handle: Any) -> None:
        self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return self._framed(self._processor.handleInputRows(key, _rows_of(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        return self._framed(self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def close(self) -> None:
        self._processor.close()

    def _framed(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield a DataFrame for each row, since a row has a blob of up to many MB."""
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        for row in rows:
            yield pd.DataFrame([[row[name] for name in self._schema.names]], columns=self._schema.names)


def _rows_of(frames: Iterator[Any]) -> Iterator[Row]:
    for frame in frames:
        names = list(frame.columns)
        for values in frame.itertuples(index=False, name=None):
            yield Row(**dict(zip(names, values, strict=True)))
