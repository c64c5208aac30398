"""`configure(spark)`: the settings of a session that foldflight needs or profits from.

Spark passes rows to Python in Arrow batches. By default it measures the growing batch after each row, which takes more
time than to copy the row. A session that does not measure bounds its batches by their number of rows alone. Spark reads
this number from the session when a query runs, so it cannot differ between the queries of a session. Therefore it
follows from the width of the session's widest rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from foldflight.client.client_logs import set_up_logger
from foldflight.errors import RejectedError
from foldflight.spark.arguments import require_session
from foldflight.spark.versions.sessions import is_spark
from foldflight.spark.versions.states import FILE_MANAGER

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_BATCH_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_CODEC: Final = "spark.sql.execution.arrow.compression.codec"
# With this value Spark does not measure batches.
_NOT_MEASURED: Final = 2**31 - 1
# Bytes of a batch. Each task holds a batch in the JVM and a few of them in Python. Larger ones leave the caches of a
# core and take new memory from the system again and again, so the same rows take up to twice the time.
_BATCH_BYTES_MAX: Final = 8 << 20
_BATCH_ROWS_MAX: Final = 1 << 16
# The width of rows for which a session is configured unless it is given.
_ROW_BYTES: Final = 1 << 10
# A batch of this size is worth a warning.
_BATCH_BYTES_WIDE: Final = 8 * _BATCH_BYTES_MAX
_LOGGER: Final = "foldflight.spark"


class _Setting(NamedTuple):
    """A setting, and why it pays."""

    name: str
    value: str
    why: str


_ALWAYS: Final = (
    _Setting(_BATCH_BYTES, str(_NOT_MEASURED), "Spark does not measure the batch after each row"),
    _Setting(_PROVIDER, _ROCKSDB, "streams keep their state in RocksDB"),
    _Setting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        "an epoch uploads its changes, not the whole state",
    ),
)
_LOCAL: Final = (
    _Setting("spark.sql.streaming.checkpoint.fileChecksum.enabled", "false", "fewer files in each epoch"),
    _Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        FILE_MANAGER,
        "faster renames of files",
    ),
)
# Whether Spark ends a Python worker that is silent, and for how many seconds.
_IDLE: Final = (
    ("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"),
    ("spark.python.worker.killOnIdleTimeout", "spark.python.worker.idleTimeoutSeconds"),
)
# The longest silence of a task: 20 s for each function that is compiled, and `patience_s` and `deadline_s`.
_IDLE_S_LEAST: Final = 300


def configure(
    spark: SparkSession, *, row_bytes: int = _ROW_BYTES, partitions: int | None = None, local_checkpoints: bool = False
) -> dict[str, str]:
    """Set what queries of a session need and profit from, and print each setting that changes, or should change.

    Call it before the queries are started. It works in classic PySpark and in Spark Connect, and may be called again.
    In a session of Sail it sets nothing.

    Args:
        spark: The session.
        row_bytes: Bytes of the widest rows that queries of the session aggregate: the keys and arguments of one row.
            Batches of such rows have at most 8 MiB. Wider rows make larger batches, which are slower.
        partitions: Partitions of shuffles. A stream's checkpoint fixes the number, and each partition adds a cost to
            each epoch, so it should be about the number of cores. Default: unchanged.
        local_checkpoints: Whether the checkpoints of all streams lie on a local disk, where epochs need fewer files.

    Returns:
        dict[str, str]: The settings that were changed, with their new values.

    Raises:
        RejectedError: SIGNATURE, for a number below 1.

    >>> from foldflight.spark import configure
    >>> changed = configure(spark, partitions=2)
    spark.sql.execution.arrow.maxBytesPerBatch: Spark's default > 2147483647 (...)
    spark.sql.execution.arrow.maxRecordsPerBatch: Spark's default > 8192 (batches of at most 8 MiB, ...)
    """
    require_session(spark, "configure")
    for name, number in (("row_bytes", row_bytes), ("partitions", 1 if partitions is None else partitions)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise RejectedError("SIGNATURE", f"{name} is a number of 1 or more, and here it is {number!r}")
    new_values: dict[str, str] = {}
    if not is_spark(spark):
        print("Sail needs none of the settings that foldflight sets in Spark")  # noqa: T201
        return new_values
    for setting in _recommend(row_bytes, partitions, local_checkpoints=local_checkpoints):
        before = spark.conf.get(setting.name, None)
        if before != setting.value:
            spark.conf.set(setting.name, setting.value)
            new_values[setting.name] = setting.value
            was = before or "Spark's default"
            print(f"{setting.name}: {was} > {setting.value} ({setting.why})")  # noqa: T201
    if (spark.conf.get(_CODEC, None) or "").lower() == "lz4":
        print(  # noqa: T201
            f"{_CODEC}: lz4 stays, and Python cannot read the batches in which all texts of a column are empty: "
            "Spark writes them wrongly. Set zstd or none"
        )
    for kill, seconds in _IDLE:
        limit = spark.conf.get(seconds, None) or "0"
        if (spark.conf.get(kill, None) or "").lower() == "true" and 0 < int(limit) < _IDLE_S_LEAST:
            print(  # noqa: T201
                f"{seconds}: {limit} stays, and {kill} ends a worker that is silent so long, as while a function is "
                f"compiled or a server is tried again. Set {_IDLE_S_LEAST} or more"
            )
    return new_values


def _recommend(row_bytes: int, partitions: int | None, *, local_checkpoints: bool) -> list[_Setting]:
    rows = min(max(_BATCH_BYTES_MAX // row_bytes, 1), _BATCH_ROWS_MAX)
    settings = [
        *_ALWAYS,
        _Setting(_BATCH_ROWS, str(rows), f"batches of at most 8 MiB, for rows of {row_bytes:,} bytes"),
    ]
    if partitions is not None:
        settings.append(_Setting("spark.sql.shuffle.partitions", str(partitions), "partitions of shuffles"))
    if local_checkpoints:
        settings += _LOCAL
    return settings


def session_table() -> str:
    """Return the settings that `configure` sets as a Markdown table, for the documentation."""
    lines = ["| setting of Spark | value | set | why |", "|---|---|---|---|"]
    usual = _recommend(_ROW_BYTES, None, local_checkpoints=False)
    for setting in _recommend(_ROW_BYTES, 8, local_checkpoints=True):
        when = "always" if setting in usual else "`local_checkpoints`" if setting in _LOCAL else "`partitions`"
        lines.append(f"| `{setting.name}` | `{setting.value}` | {when} | {setting.why} |")
    return "\n".join(lines) + "\n"


def advise(df: DataFrame) -> None:
    """Log once in a process, when a query is planned, that its session measures batches."""
    if _advised:
        return
    session = df.sparkSession
    if is_spark(session) and session.conf.get(_BATCH_BYTES, str(_NOT_MEASURED)) != str(_NOT_MEASURED):
        _advised.append(True)
        set_up_logger(_LOGGER, logging.WARNING).warning(
            "Spark measures each batch for Python after each row in this session, which makes queries two to three "
            "times slower; call foldflight.spark.configure(spark) before the query"
        )


_advised: list[bool] = []


def warn_of_wide_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches from Spark. Log once in a process that rows are much wider than the session was configured for."""
    for batch in batches:
        if batch.nbytes > _BATCH_BYTES_WIDE and not _widened:
            _widened.append(True)
            width = -(-batch.nbytes // batch.num_rows)
            set_up_logger(_LOGGER, logging.WARNING).warning(
                "a batch from Spark has %d MiB, because its rows have %d bytes each; call "
                "foldflight.spark.configure(spark, row_bytes=%d), which makes smaller and faster batches",
                batch.nbytes >> 20,
                width,
                width,
            )
        yield batch


_widened: list[bool] = []


def check_provider(df: DataFrame) -> None:
    """Refuse a session whose state store cannot hold a state table.

    Raises:
        RejectedError: SETTINGS, naming the call that helps, or that the engine has no streams.
    """
    if not is_spark(df.sparkSession):
        raise RejectedError(
            "SETTINGS",
            "Sail has no state store for streams; run streams on Spark 4.0 or later. Batches, over, SQL, scalar and "
            "table functions work on Sail",
        )
    provider = df.sparkSession.conf.get(_PROVIDER, "")
    if provider != _ROCKSDB:
        raise RejectedError(
            "SETTINGS",
            f"the state table needs Spark's RocksDB state store, and {_PROVIDER} is {provider or 'not set'}; call "
            f"foldflight.spark.configure(spark) before the query, or set\n  {_PROVIDER}={_ROCKSDB}\n"
            f"  {_ALWAYS[-1].name}={_ALWAYS[-1].value}",
        )
