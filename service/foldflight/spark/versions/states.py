"""Stateful operators: `transformWithState` of Spark 4.1, and `transformWithStateInPandas` of 4.0.

Both call the same processor with the same state variables, so they write the same checkpoint. They differ in how rows
come and go: as rows, or as DataFrames of pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.sql import DataFrame, DataFrameReader, GroupedData, Row, SparkSession
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.spark.versions.facts import STREAMS, require

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
else:
    try:
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    except ImportError:  # before 4.0; `transform_with_state` refuses streams there

        class StatefulProcessor:
            """A stand-in for PySpark's class, where PySpark has none."""


__all__ = [
    "FILE_MANAGER",
    "StatefulProcessor",
    "check_operators",
    "state_reader",
    "transform_with_state",
    "upgrade_checkpoint",
]

_HAS_ROWS: Final = hasattr(GroupedData, "transformWithState")

FILE_MANAGER: Final = (
    f"org.apache.spark.sql.execution.streaming.{'checkpointing.' * _HAS_ROWS}FileSystemBasedCheckpointFileManager"
)
"""The class that writes checkpoints to local disks, which Spark 4.1 moved."""

# Spark compares this name with that of the stored metadata, and 4.1 has another one. All else that they store is equal.
_OPERATOR_OF_4_0: Final = "transformWithStateInPandasExec"
_OPERATOR: Final = "transformWithStateInPySparkExec"


def check_operators(names: Iterable[str], checkpoint: str) -> None:
    """Refuse a checkpoint of Spark 4.0 on a later Spark, which would not find its own operators in it.

    Args:
        names: Spark's names of the operators in the checkpoint.
        checkpoint: Its folder, for the error.

    Raises:
        RejectedError: STATE_MISMATCH, with the call that helps.
    """
    if _HAS_ROWS and _OPERATOR_OF_4_0 in names:
        raise RejectedError(
            "STATE_MISMATCH",
            f"Spark 4.0 has written {checkpoint}, and later versions refuse the name that it gave to the operator; "
            "copy the checkpoint and call foldflight.spark.upgrade_checkpoint(checkpoint) once",
        )


def state_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader of the states in a checkpoint, also for a session that has run no stream.

    The tasks that read them ask for an endpoint that Spark 4.2 starts with the session's manager of streams, and the
    manager with its first use ("Cannot find endpoint: StateStoreCoordinator").
    """
    spark.streams.active  # noqa: B018 - uses the manager, in Spark Connect that of the server
    return spark.read.format("statestore")


def upgrade_checkpoint(checkpoint: str, filesystem: FileSystem | None = None) -> int:
    """Let Spark 4.1 and later continue a stream from a checkpoint of Spark 4.0.

    Spark 4.1 gave the stateful operator of Python another name, and refuses the name of 4.0
    (STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA). This writes the new name into the metadata of the
    checkpoint; states are not touched. The query must be stopped, and Spark 4.0 cannot continue it afterwards: copy the
    checkpoint first.

    Args:
        checkpoint: The query's `checkpointLocation`: a path, or a URI that pyarrow knows (hdfs, s3, gs, abfs).
        filesystem: Where the path is, if the URI alone does not tell how to reach it.

    Returns:
        int: How many operators were renamed; 0 if there was nothing to do.

    Raises:
        RejectedError: SIGNATURE if the folder is not a checkpoint with state.
    """
    path = checkpoint
    if filesystem is None:
        whole = checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())
        filesystem, path = FileSystem.from_uri(whole)
    entries = filesystem.get_file_info(FileSelector(f"{path}/state", allow_not_found=True))
    if not entries:
        raise RejectedError(
            "SIGNATURE", f"{checkpoint} is not a checkpoint with state; give the checkpointLocation of the query"
        )
    before, after = (f'"{name}"'.encode() for name in (_OPERATOR_OF_4_0, _OPERATOR))
    renamed = 0
    for operator in entries:
        for entry in filesystem.get_file_info(FileSelector(f"{operator.path}/_metadata/v2", allow_not_found=True)):
            with filesystem.open_input_stream(entry.path) as source:
                text = source.read()
            if entry.base_name.startswith(".") or before not in text:
                continue
            # On local disks Hadoop keeps a checksum beside the file, and refuses other bytes.
            checksum = f"{operator.path}/_metadata/v2/.{entry.base_name}.crc"
            if filesystem.get_file_info(checksum).type == FileType.File:
                filesystem.delete_file(checksum)
            with filesystem.open_output_stream(entry.path) as target:
                target.write(text.replace(before, after))
            renamed += 1
    return renamed


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


def _rows_of(dfs: Iterator[Any]) -> Iterator[Row]:
    for df in dfs:
        names = list(df.columns)
        for values in df.itertuples(index=False, name=None):
            yield Row(**dict(zip(names, values, strict=True)))
