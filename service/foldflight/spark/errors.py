"""Foldflight's errors inside of Spark: raised by expressions of Spark, and restored from Spark's error messages."""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from foldflight import errors
from foldflight.errors import FoldflightError, pointer

_CLASSES = {
    f"{cls.__module__}.{cls.__qualname__}": cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, FoldflightError) and cls.codes
}
# The last line of a Python traceback, which Spark transmits only as text: `module.Class: str(error)`.
_RAISED = re.compile(rf"\b({'|'.join(map(re.escape, _CLASSES))}): ([A-Z_]+): ")

_CLASS_OF_CODE: Final = {code: cls for cls in _CLASSES.values() for code in cls.codes}

# The message of `raise_error` and of `foldflight.spark.batch.error_text`, which ends with the pointer. The text
# of an error may also have the plan, where the same message is an argument of an expression, behind a bracket or comma.
_RAISED_BY_SPARK = re.compile(
    rf"(?:^|\] |: )foldflight: ({'|'.join(_CLASS_OF_CODE)}): (.*?)\n {{2}}\(see docs/reference/errors\.md#[a-z_]+\)",
    re.DOTALL,
)

# What a worker without the package raises, before any code of the package runs.
_MISSING_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '(foldflight|pyarrow)'")

# What Spark says if its file for the schema of a state is not where the metadata of the checkpoint say.
_SCHEMA_FILE: Final = re.compile(r"\S*/state/\d+/_stateSchema/[^\s'\"]+")
_NOT_FOUND: Final = re.compile(r"does not exist|not found|no such file|FileNotFound", re.IGNORECASE)

# What Spark says of a query in real-time mode that it does not run.
_REAL_TIME: Final = re.compile(r"\[STREAMING_REAL_TIME_MODE\.([A-Z0-9_]+)\]")
_NO_METADATA: Final = re.compile(r"\[STDS_FAILED_TO_READ_OPERATOR_METADATA\].*?checkpointLocation=(\S+)", re.DOTALL)
_IN_EPOCHS: Final = "group_by and over run in epochs: start the query with trigger(processingTime=...), or without one"


def error_of(error: Exception) -> FoldflightError | None:
    """Return foldflight's error that made a Spark query fail, or None if it failed for another reason.

    Class and code do not depend on whether a Python worker raised the error or an expression of Spark. The message also
    contains the other details of the error's text: function, group, row, trace and story.

    Args:
        error: Spark's error: a `PySparkException`, or the `Py4JJavaError` of what PySpark has no class for. Spark 3.5
            raises the second one where an expression of Spark fails, such as an expression of a lifted plan.

    >>> from pyspark.errors import PySparkException
    >>> from foldflight import connect, udf
    >>> from foldflight.spark import with_columns
    >>> from foldflight.spark.errors import error_of
    >>> @udf(compile=False)
    ... def inverse(x: int) -> float:
    ...     return 1 / x
    >>> try:
    ...     with_columns(spark.createDataFrame([(0,)], "x BIGINT"), y=connect(inverse)("x")).collect()
    ... except PySparkException as error:
    ...     print(error_of(error).code)
    USER_CODE
    """
    text = str(error)
    matches = [match for match in _RAISED.finditer(text) if match[2] in _CLASSES[match[1]].codes]
    if not matches:
        if by_spark := _RAISED_BY_SPARK.search(text):
            code, message = by_spark.groups()
            return _CLASS_OF_CODE[code](code, message)
        missing = _MISSING_MODULE.search(text)
        if missing is not None:
            return _missing_module(missing[1])
        return moved_checkpoint(error) or _real_time_error(text)
    cls, code = matches[-1].groups()
    # The text of an error ends with its pointer. Spark adds its own after it: of a stream the state and the plan.
    message, _, _ = text[matches[-1].end() :].partition(f"\n{pointer(code)}")
    return _CLASSES[cls](code, message.strip())


def raise_error(code: str, *message: str | Column) -> Column:
    """Return a column that fails the query with an error, which `error_of` restores.

    Args:
        code: The code of the error.
        message: Texts and columns of texts, joined. Without NULL, which would hide the message.
    """
    begin, end = text_around(code)
    return sf.raise_error(
        sf.concat(*(sf.lit(each) if isinstance(each, str) else each for each in (begin, *message, end)))
    )


def text_around(code: str) -> tuple[str, str]:
    """Return what stands before and after the message of an error that Spark raises, so that `error_of` finds it."""
    return f"foldflight: {code}: ", f"\n{pointer(code)}"


def moved_checkpoint(error: Exception) -> FoldflightError | None:
    """Return the error of a checkpoint that is in another folder than before; None if Spark failed for other reasons.

    Args:
        error: Spark's error, also one that PySpark has no class for.
    """
    text = str(error)
    match = _SCHEMA_FILE.search(text)
    if match is None or not _NOT_FOUND.search(text):
        return None
    return errors.RejectedError(
        "STATE_MISMATCH",
        f"the checkpoint was moved, copied or restored elsewhere: Spark looks for its file {match[0]}, where it was "
        "before. While the query is stopped, call foldflight.spark.upgrade_checkpoint(checkpoint) once, with the "
        "folder where the checkpoint is now",
    )


def _real_time_error(text: str) -> FoldflightError | None:
    """Return the error of a query that does not run in real-time mode; None if Spark failed for other reasons.

    Spark takes stateful operators in Python for a damaged checkpoint there, also where the checkpoint is new.
    """
    if match := _NO_METADATA.search(text):
        return errors.RejectedError(
            "SETTINGS",
            f"Spark finds no metadata of the state in {match[1]}. With trigger(realTime=...) it says so of each "
            f"stateful query in Python, also if the checkpoint is new: {_IN_EPOCHS}. With another trigger, files of "
            "the checkpoint are missing or damaged: restore them, or begin with a new checkpoint",
        )
    match = _REAL_TIME.search(text)
    if match is None:
        return None
    helps = {
        "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST": "Spark runs with_columns there after "
        'spark.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")',
        "CHECKPOINT_FORMAT_V1_NOT_SUPPORTED": "begin with a new checkpoint, or go on with the trigger of before",
    }.get(match[1], "Spark's message says which part of the query it is")
    return errors.RejectedError(
        "SETTINGS", f"Spark does not run this query in real-time mode ({match[1]}). {helps}; {_IN_EPOCHS}"
    )


def _missing_module(module: str) -> FoldflightError:
    return errors.RejectedError(
        "SETTINGS",
        f"Spark's Python workers have no {module}: they run the Python that PYSPARK_PYTHON names, or the first "
        "python3 of the PATH, and it needs the packages of this one; on a cluster, pack an environment for executors",
    )
