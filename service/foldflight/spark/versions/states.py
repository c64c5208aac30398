"""Stateful operators: `transformWithState` of Spark 4.1, and `transformWithStateInPandas` of 4.0.

Both call the same processor with the same state variables, so they write the same checkpoint. They differ in how rows
come and go: as rows, or as DataFrames of pandas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem
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

OPERATOR: Final = "_foldflight_operator"
"""The attribute of a stream's result that holds its stateful operator, for `check_checkpoint`."""

_HAS_ROWS: Final = hasattr(GroupedData, "transformWithState")

FILE_MANAGER: Final = (
    f"org.apache.spark.sql.execution.streaming.{'checkpointing.' * _HAS_ROWS}FileSystemBasedCheckpointFileManager"
)
"""The class that writes checkpoints to local disks, which Spark 4.1 moved."""

# Spark compares this name with the stored metadata's, and 4.1 has another one. All else that they store is equal.
_OPERATOR_OF_4_0: Final = "transformWithStateInPandasExec"
_OPERATOR: Final = "transformWithStateInPySparkExec"

_SCHEMA_FILE: Final = re.compile(r"(.*)(/state/\d+/_stateSchema/.*)")
_S3: Final = ("s3", "s3a", "s3n")


def keep_operator(result: DataFrame, source: DataFrame) -> DataFrame:
    """Return a DataFrame that was made of a stream's result, after it got the stateful operator of this, if any."""
    if hasattr(source, OPERATOR):
        setattr(result, OPERATOR, getattr(source, OPERATOR))
    return result


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
    spark.streams.active  # noqa: B018 - uses the manager, in Spark Connect the server's
    return spark.read.format("statestore")


def upgrade_checkpoint(checkpoint: str, filesystem: FileSystem | None = None) -> int:
    """Let a stream continue from a checkpoint that was moved, copied or restored elsewhere, or that Spark 4.0 wrote.

    Spark stores the place of its own files in the metadata of a stateful operator of Python. In another folder it looks
    for them where they were, and fails if they are gone. This writes the new place into the metadata.

    Spark 4.1 gave this operator another name, and refuses the name of 4.0
    (STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA). With PySpark 4.1 or later this writes the new name, too;
    Spark 4.0 cannot continue the query afterwards: copy the checkpoint first. States are not touched. The query must
    be stopped.

    Args:
        checkpoint: The query's `checkpointLocation`, where it is now: a path, or a URI that pyarrow knows (hdfs, s3,
            gs, abfs).
        filesystem: Where the path is, if the URI alone does not tell how to reach it.

    Returns:
        int: How many files of metadata were written anew; 0 if there was nothing to do.

    Raises:
        RejectedError: SIGNATURE if the folder is not a checkpoint with state, if files of Spark are missing in it, or
            if a filesystem is given and the URI of the new place is not known.

    >>> upgrade_checkpoint("/restored/prices")  # doctest: +SKIP
    2
    """
    path, place = checkpoint, None
    if filesystem is None:
        whole = checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())
        filesystem, path = FileSystem.from_uri(whole)
        place = whole.partition("?")[0]  # without the parameters of pyarrow's URIs
    if isinstance(filesystem, LocalFileSystem):
        path = str(Path(path).absolute())
        place = f"file:{path}"
    path = path.rstrip("/")
    operators = filesystem.get_file_info(FileSelector(f"{path}/state", allow_not_found=True))
    if not operators:
        raise RejectedError(
            "SIGNATURE", f"{checkpoint} is not a checkpoint with state; give the checkpointLocation of the query"
        )
    new_files: dict[str, bytes] = {}
    for operator in operators:
        entries = filesystem.get_file_info(FileSelector(f"{operator.path}/_metadata/v2", allow_not_found=True))
        versions = sorted(
            (entry for entry in entries if entry.base_name.isdigit()), key=lambda entry: int(entry.base_name)
        )
        for entry in versions:
            with filesystem.open_input_stream(entry.path) as source:
                version, _, body = source.read().partition(b"\n")
            metadata = json.loads(body)
            files = _upgrade(metadata, path, place)
            # Spark may have deleted files of older epochs.
            missing = [file for file in files if filesystem.get_file_info(path + file).type != FileType.File]
            if missing and entry is versions[-1]:
                raise RejectedError(
                    "SIGNATURE",
                    f"the checkpoint {checkpoint} has no file {missing[0][1:]}, which it needs; copy it whole",
                )
            if metadata != json.loads(body):
                text = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)
                new_files[entry.path] = version + b"\n" + text.encode()
    for file, data in new_files.items():
        # On local disks Hadoop keeps a checksum beside the file, and refuses other bytes.
        folder, _, name = file.rpartition("/")
        checksum = f"{folder}/.{name}.crc"
        if filesystem.get_file_info(checksum).type == FileType.File:
            filesystem.delete_file(checksum)
        with filesystem.open_output_stream(file) as target:
            target.write(data)
    return len(new_files)


def _upgrade(metadata: dict[str, Any], path: str, place: str | None) -> list[str]:
    """Change the metadata of an operator; return the files of the checkpoint that they name, each from its `/state`.

    Args:
        metadata: The metadata, which get the new name of the operator, and the new place of the files.
        path: The folder of the checkpoint in its file system.
        place: Its URI; None if it is not known.
    """
    if _HAS_ROWS and metadata["operatorInfo"]["operatorName"] == _OPERATOR_OF_4_0:
        metadata["operatorInfo"]["operatorName"] = _OPERATOR
    files = []
    for store in metadata["stateStoreInfo"]:
        matches = [_SCHEMA_FILE.fullmatch(each) for each in store.get("stateSchemaFilePaths", ())]
        split = [each.groups() for each in matches if each is not None]
        if split:
            store["stateSchemaFilePaths"] = [_place(before, path, place) + file for before, file in split]
            files += [file for _, file in split]
    return files


def _place(before: str, path: str, place: str | None) -> str:
    """Return Spark's URI of a moved checkpoint, from its URI before. `path` and `place` are as in `_upgrade`."""
    scheme = before.partition(":")[0]
    if place is None:
        if before.endswith(f"/{path.strip('/')}"):
            return before
        if scheme not in (*_S3, "gs"):
            raise RejectedError("SIGNATURE", f"the checkpoint was in {before}; give its new URI, without filesystem=")
        place = f"{scheme}://{path}"
    # Spark has names of its own for S3, which pyarrow does not know.
    if scheme in _S3 and place.partition(":")[0] in _S3:
        place = f"{scheme}:{place.partition(':')[2]}"
    return place.rstrip("/")


def transform_with_state(
    grouped_rows: GroupedData, processor: StatefulProcessor, schema: st.StructType, output_mode: str, time_mode: str
) -> DataFrame:
    """Return the rows that a processor makes of the rows of each key.

    Args:
        grouped_rows: The rows by key.
        processor: Takes and yields rows.
        schema: The rows that it yields.
        output_mode: Spark's output mode.
        time_mode: Spark's time mode.

    Raises:
        RejectedError: SETTINGS on a Spark before 4.0.
    """
    require(STREAMS, "streams")
    if hasattr(grouped_rows, "transformWithState"):
        return grouped_rows.transformWithState(processor, schema, output_mode, time_mode)
    return grouped_rows.transformWithStateInPandas(_InPandas(processor, schema), schema, output_mode, time_mode)


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
        return self._as_dataframes(self._processor.handleInputRows(key, _rows_of(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        return self._as_dataframes(self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def close(self) -> None:
        self._processor.close()

    def _as_dataframes(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield a DataFrame for each row, since a row has a blob of up to many MB."""
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        for row in rows:
            yield pd.DataFrame([[row[name] for name in self._schema.names]], columns=self._schema.names)


def _rows_of(dfs: Iterator[Any]) -> Iterator[Row]:
    for df in dfs:
        names = list(df.columns)
        for values in df.itertuples(index=False, name=None):
            yield Row(**dict(zip(names, values, strict=True)))
