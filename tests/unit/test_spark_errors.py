"""Errors of foldflight in Spark's Python workers are restored."""

from __future__ import annotations

import traceback

import pytest
from pyspark.errors import PySparkException

from foldflight.errors import CorruptError, FunctionError, RejectedError
from foldflight.spark.errors import error_of

_ERRORS = [
    FunctionError(
        "USER_CODE", "accumulate raised ValueError: no", function="f", row="x=1", trace="  File f\n    no()\n"
    ),
    CorruptError("STATE_CHECKSUM", "bucket 3: the run is damaged"),
    RejectedError("LIMIT", "first line\nsecond line"),
]


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: error.code)
def test_an_error_is_found_in_what_spark_says(error: Exception) -> None:
    """Class, code and text are found in the traceback of a worker, also if one error was raised from another."""
    try:
        try:
            raise RejectedError("SETTINGS", "an earlier one")
        except RejectedError as earlier:
            raise error from earlier
    except Exception:
        trace = traceback.format_exc()
    for after in (
        "",
        " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\n\nLogical Plan:\n+- x",
    ):
        message = f"Job aborted: org.apache.spark.api.python.PythonException: {trace}{after}"
        result = error_of(PySparkException(message))
        assert type(result) is type(error)
        assert str(result) == str(error)


@pytest.mark.parametrize(
    "message",
    [
        "[USER_RAISED_EXCEPTION] foldflight: {} SQLSTATE: P0001",
        "Job aborted due to stage failure: java.lang.RuntimeException: foldflight: {}\n\tat x",
        "=== Streaming Query ===\n[USER_RAISED_EXCEPTION] foldflight: {}\nLogical Plan:\n+- foldflight: x",
    ],
)
@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: error.code)
def test_an_error_that_spark_raises_is_found(error: Exception, message: str) -> None:
    """Expressions of Spark raise only a text, which has the class's code."""
    result = error_of(PySparkException(message.format(error)))
    assert type(result) is type(error)
    assert str(result) == str(error)


@pytest.mark.parametrize(
    "text",
    ["foldflight: OVERFLOW: no pointer", "the Python worker died", "foldflight.errors.FunctionError: NO_SUCH_CODE: x"],
)
def test_other_failures_are_none_of_ours(text: str) -> None:
    """Errors of Spark itself are not changed."""
    assert error_of(PySparkException(text)) is None


@pytest.mark.parametrize("module", ["foldflight", "pyarrow"])
def test_a_worker_without_the_package_is_told_what_it_needs(module: str) -> None:
    """The worker fails before any code of the package runs, with the bare error of the import."""
    message = f"PythonException: Traceback (most recent call last):\nModuleNotFoundError: No module named '{module}'\n"
    result = error_of(PySparkException(message))
    assert isinstance(result, RejectedError)
    assert result.code == "SETTINGS"
    assert f"no {module}: they run the Python that PYSPARK_PYTHON names" in result.message


@pytest.mark.parametrize(
    "message",
    [
        "terminated with exception: File file:/{}/0_a does not exist SQLSTATE: XXKST",
        "java.io.FileNotFoundException: No such file or directory: s3a://{}/0_a",
        "java.io.FileNotFoundException: File does not exist: /{}/0_a\n\tat org.apache.hadoop",
        "Item not found: 'gs://{}/0_a'. Note, it is possible that the live version is still available",
    ],
)
def test_a_checkpoint_that_was_moved_tells_what_to_do(message: str) -> None:
    """Spark says only that a file of the folder before is gone."""
    result = error_of(PySparkException(message.format("old/prices/state/0/_stateSchema/default")))
    assert isinstance(result, RejectedError)
    assert result.code == "STATE_MISMATCH"
    assert "old/prices/state/0/_stateSchema/default/0_a, where it was before" in result.message
    assert "upgrade_checkpoint" in result.message
    assert error_of(PySparkException("permission denied: /old/state/0/_stateSchema/default/0_a")) is None


def test_stateful_queries_in_real_time_mode_are_told_what_to_do() -> None:
    """Spark takes them for a damaged checkpoint; what it refuses by name tells what helps, too."""
    message_of_damage = (
        "[STDS_FAILED_TO_READ_OPERATOR_METADATA] Failed to read the operator metadata for "
        "checkpointLocation=file:/new/checkpoint and batchId=-1.\nEither the file does not exist, or is corrupted."
    )
    result = error_of(PySparkException(message_of_damage))
    assert isinstance(result, RejectedError)
    assert result.code == "SETTINGS"
    assert "no metadata of the state in file:/new/checkpoint. With trigger(realTime=...)" in result.message
    for condition, helps in (
        ("OPERATOR_OR_SINK_NOT_IN_ALLOWLIST", "realTimeMode.allowlistCheck"),
        ("CHECKPOINT_FORMAT_V1_NOT_SUPPORTED", "begin with a new checkpoint"),
        ("INPUT_STREAM_NOT_SUPPORTED", "Spark's message says"),
    ):
        result = error_of(PySparkException(f"[STREAMING_REAL_TIME_MODE.{condition}] Streaming real-time mode: x"))
        assert isinstance(result, RejectedError)
        assert condition in result.message
        assert helps in result.message
        assert "trigger(processingTime=...)" in result.message
