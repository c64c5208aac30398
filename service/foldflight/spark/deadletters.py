"""Dead letters: the rows of groups whose function has raised, next to the results of the other groups.

A query has one result, and a stream has one sink. Therefore dead letters are rows of the result, with a column
`dead_letter` that is NULL in all other rows. `results` and `dead_letters` separate the two. Each row of a failed group
is one dead letter, so their number is not limited by the size of a value.
"""

from __future__ import annotations

from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from foldflight.engine.query.layout import DEAD_LETTER
from foldflight.errors import RejectedError
from foldflight.spark.arguments import require_dataframe
from foldflight.spark.columns import column_named

OnError = Literal["fail", "isolate"]


def is_isolated(on_error: str) -> bool:
    """Return whether an error fails its group or row only. Raises RejectedError SIGNATURE for other words."""
    if on_error not in get_args(OnError):
        raise RejectedError("SIGNATURE", f"on_error is 'fail' or 'isolate', and here it is {on_error!r}")
    return on_error == "isolate"


def results(df: DataFrame) -> DataFrame:
    """Return the results of a query with `on_error="isolate"`, without its dead letters.

    Args:
        df: The result of `agg`, or, in a stream, a batch of `foreachBatch`.

    Raises:
        RejectedError: SIGNATURE, for a DataFrame without the column `dead_letter`.

    >>> from foldflight import connect, udf
    >>> from foldflight.spark import results, with_columns
    >>> @udf
    ... def inverse(x: int) -> float:
    ...     return 1 / x
    >>> numbers = spark.createDataFrame([(4,), (0,)], "x BIGINT")
    >>> results(with_columns(numbers, y=connect(inverse)("x"), on_error="isolate")).show()
    +---+----+
    |  x|   y|
    +---+----+
    |  4|0.25|
    +---+----+
    """
    require_dataframe(df, "results")
    _check(df)
    return df.where(sf.col(DEAD_LETTER).isNull()).drop(DEAD_LETTER)


def dead_letters(df: DataFrame, *columns: str) -> DataFrame:
    """Return the dead letters of a query with `on_error="isolate"`: one row for each row of a failed group.

    Args:
        df: The result of `agg` or `with_columns`, or in a stream also a batch of `foreachBatch`.
        columns: Names of columns of `df` that come first, such as the key of a row: a dead letter of `with_columns`
            has the arguments of the functions only.

    Returns:
        DataFrame: `key`, a struct of the group's keys (missing in a query without keys); `code`, `function`, `message`,
            `trace` and `at` (the row that caused it) of the group's first error; `row_kind`; and `row`, a struct of the
            columns that the query reads (missing if it reads none). A group that has failed without a row has one dead
            letter, in which `row_kind` and `row` are NULL.

    Raises:
        RejectedError: SIGNATURE, for a DataFrame without the column `dead_letter`, or without one of `columns`, or for
            other values than names of columns.

    >>> from foldflight import connect, udf
    >>> from foldflight.spark import dead_letters, with_columns
    >>> @udf
    ... def inverse(x: int) -> float:
    ...     return 1 / x
    >>> numbers = spark.createDataFrame([(4,), (0,)], "x BIGINT")
    >>> letters = dead_letters(with_columns(numbers, y=connect(inverse)("x"), on_error="isolate"))
    >>> letters.select("code", "message", "row").show(truncate=False)
    +---------+--------------------------------------------------+---+
    |code     |message                                           |row|
    +---------+--------------------------------------------------+---+
    |USER_CODE|inverse raised ZeroDivisionError: division by zero|{0}|
    +---------+--------------------------------------------------+---+
    """
    require_dataframe(df, "dead_letters")
    _check(df)
    for each in columns:
        if not isinstance(each, str):
            raise RejectedError(
                "SIGNATURE",
                f"dead_letters takes names of columns of df, not {each!r}; write "
                "dead_letters(df, 'id'), and compute what has no name with withColumn before",
            )
    unknown_names = [name for name in columns if name not in df.columns]
    if unknown_names:
        raise RejectedError(
            "SIGNATURE",
            f"there is no column {', '.join(unknown_names)} among {', '.join(df.columns)}; name columns of df",
        )
    selected = [column_named(name) for name in columns]
    return df.where(sf.col(DEAD_LETTER).isNotNull()).select(*selected, f"{DEAD_LETTER}.*")


def _check(df: DataFrame) -> None:
    if DEAD_LETTER not in df.columns:
        raise RejectedError(
            "SIGNATURE",
            f"there is no column {DEAD_LETTER} among {', '.join(df.columns)}; give what group_by(..., "
            "on_error='isolate').agg(...) returned",
        )
