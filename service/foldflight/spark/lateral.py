"""`join_lateral`: joins each row of a DataFrame with the rows that a table function gives for it.

df and arguments > mapInArrow: arguments out to the function, other columns kept in the worker > taken by row number
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.client import Use
from foldflight.engine.batch.scalar_task import ScalarQuery, Steps, transport_of
from foldflight.engine.query.layout import DEAD_LETTER
from foldflight.errors import RejectedError
from foldflight.fold.failures import ERROR
from foldflight.spark.arrow import step_name
from foldflight.spark.columns import Columns, text_of
from foldflight.spark.deadletters import OnError, is_isolated
from foldflight.spark.scalar import ERROR_CARRIER, check_df, check_kinds, chunk_schema, letter_beside, rows_with
from foldflight.spark.scans.scan import Scan, as_dataframe
from foldflight.spark.storage_types import SPARK
from foldflight.spark.types import arrow_fields
from foldflight.spark.versions.types import spark_type


def join_lateral(
    df: DataFrame | Scan,
    use: Use,
    /,
    *,
    outer: bool = False,
    on_error: OnError = "fail",
    row_kind: str | None = None,
) -> DataFrame:
    """Join each row with the rows that a table function gives for it: `join_lateral(df, split("text"))`.

    Args:
        df: A batch or streaming DataFrame, of classic PySpark or of Spark Connect.
        use: The use of a table function. Its arguments are column names, SQL expressions, Columns, or other uses.
        outer: Whether a row for which the function gives none is kept, with NULL in the function's columns.
        on_error: As for `with_columns`: with `isolate`, a row for which a function raises is kept once, with NULL in
            the function's columns and its error in `dead_letter`.
        row_kind: As for `with_columns`.

    Returns:
        DataFrame: The columns of `df`, then the columns of the function, in its order of rows.

    Raises:
        RejectedError: SIGNATURE for a function that is no table function, or a column that `df` has, too;
            SCHEMA_MISMATCH for columns that cannot be resolved or do not fit the function.
        RetryableError: UNREACHABLE or DEADLINE, if no server answers.

    >>> from foldflight import connect, udtf
    >>> from foldflight.spark import join_lateral
    >>> @udtf(result_types={"word": "STRING", "at": "INT"})
    ... def split(text: str):
    ...     for at, word in enumerate(text.split()):
    ...         yield word, at
    >>> lines = spark.createDataFrame([("to be",), ("or",)], "line STRING")
    >>> join_lateral(lines, connect(split)("line")).show()
    +-----+----+---+
    | line|word| at|
    +-----+----+---+
    |to be|  to|  0|
    |to be|  be|  1|
    |   or|  or|  0|
    +-----+----+---+
    """
    df = as_dataframe(df)
    check_df(df, "join_lateral")
    if not isinstance(use, Use) or not use.is_table:
        raise RejectedError(
            "SIGNATURE",
            f"join_lateral takes a use of a table function, and this is {text_of(use)!r}; write "
            "join_lateral(df, functions['split']('text')), or with_columns for scalar functions",
        )
    isolates = is_isolated(on_error)
    check_kinds(df, row_kind, {use.function.name: use})
    columns = Columns(df)
    steps = Steps(columns.argument)
    output = steps.add(use, outer=outer)
    schema = columns.rows().schema
    fields = arrow_fields(schema, columns.roles())
    query = ScalarQuery.of(
        transport_of({use.function.name: use}),
        steps,
        {use.function.name: output},
        chunk_schema(fields, columns.display_names),
        isolates=isolates,
        types=SPARK,
    )
    query = _rename_output(query, use)
    _refuse_taken(df, query.outputs.names, isolates=isolates)
    pickle.dumps(query)
    uses = [(use.function, list(use.columns))] * len(query.outputs)
    added_fields = [*map(st.StructField, query.outputs.names, columns.result_types(uses, schema, query.outputs.types))]
    types = query.outputs
    if isolates:
        types = types.append(pa.field(ERROR, ERROR_CARRIER))
        added_fields.append(st.StructField(ERROR, spark_type(ERROR_CARRIER)))
    name = step_name("lateral", [each.function for each in query.open_request.steps])
    joined_rows = rows_with(df, columns, query, types, added_fields, name)
    if not isolates:
        return joined_rows
    return joined_rows.withColumn(DEAD_LETTER, letter_beside(joined_rows, ERROR, columns, use.function.name)).drop(
        ERROR
    )


def _rename_output(query: ScalarQuery, use: Use) -> ScalarQuery:
    """Return the query with the alias of the use as the name of its only column."""
    if use.name is None:
        return query
    if len(query.outputs) > 1:
        raise RejectedError(
            "SIGNATURE",
            f"{use.function.name} has {len(query.outputs)} columns, and an alias names one; leave it out",
            function=use.function.name,
        )
    return replace(query, outputs=pa.schema([query.outputs.field(0).with_name(use.name)]))


def _refuse_taken(df: DataFrame, names: Sequence[str], *, isolates: bool) -> None:
    own = [DEAD_LETTER, ERROR] if isolates else []
    taken_names = {name.casefold() for name in df.columns}
    for name in (*names, *own):
        if name.casefold() in taken_names:
            raise RejectedError(
                "SIGNATURE",
                f"the DataFrame has a column {name!r}, as the table function has; rename or drop it before the join",
            )
