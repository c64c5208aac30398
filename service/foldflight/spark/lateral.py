"""`join_lateral`: joins each row of a DataFrame with the rows that a table function gives for it.

df and arguments > mapInArrow: arguments out to the function, other columns kept in the worker > taken by row number
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client import Use
from foldflight.engine.batch.scalar import ScalarQuery, Steps, transport_of
from foldflight.engine.query.blocks import convert, gather
from foldflight.engine.query.layout import DEAD_LETTER
from foldflight.errors import RejectedError
from foldflight.fold import ERROR, ROW
from foldflight.spark.arrow import arrow_function, step_name
from foldflight.spark.columns import Columns, column_named, text_of
from foldflight.spark.months import as_intervals, as_months, carriers
from foldflight.spark.scalar import ERROR_CARRIER, SPARK, OnError, check_frame, check_kinds, chunk_schema, letter_of
from foldflight.spark.types import arrow_fields
from foldflight.spark.versions import nullable, spark_type

__all__ = ["join_lateral"]

_PART_ROWS: Final = 1 << 14


def join_lateral(
    df: DataFrame,
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
    """
    check_frame(df, "join_lateral")
    if not isinstance(use, Use) or not use.is_table:
        raise RejectedError(
            "SIGNATURE",
            f"join_lateral takes a use of a table function, and this is {text_of(use)!r}; write "
            "join_lateral(df, functions['split']('text')), or with_columns for scalar functions",
        )
    if on_error not in ("fail", "isolate"):
        raise RejectedError("SIGNATURE", f"on_error is 'fail' or 'isolate', and here it is {on_error!r}")
    isolates = on_error == "isolate"
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
        chunk_schema(fields, columns.shown),
        isolates=isolates,
        types=SPARK,
    )
    query = _renamed(query, use)
    _refuse_taken(df, query.outputs.names, isolates=isolates)
    pickle.dumps(query)
    kept = [column_named(name).alias(f"kept_{place}") for place, name in enumerate(df.columns)]
    given = [each.alias(f"column_{place}") for place, each in enumerate(columns.expressions)] or [sf.lit(True)]
    rows = as_months(df.select(*kept, *given))
    roles = [*(f"the column {name!r}" for name in df.columns), *columns.roles()]
    arrow = arrow_fields(rows.schema, roles if columns.shown else [*roles, "a constant"])
    task = _Lateral(query, arrow, len(kept), isolates=isolates)
    uses = [(use.function, list(use.columns))] * len(query.outputs)
    added = [*map(st.StructField, query.outputs.names, columns.result_types(uses, schema, query.outputs.types))]
    if isolates:
        added.append(st.StructField(ERROR, spark_type(ERROR_CARRIER)))
    # mapInArrow knows nothing of metadata: without it a watermark would be lost.
    sent = carriers([nullable(each.dataType) for each in df.schema], arrow.types[: len(kept)])
    found = [
        st.StructField(each.name, type_, metadata=each.metadata) for each, type_ in zip(df.schema, sent, strict=True)
    ]
    results = st.StructType([*found, *added])
    joined = rows.mapInArrow(
        arrow_function(task, step_name("lateral", [each.function for each in query.opening.steps]), query.traced),
        results,
    )
    joined = as_intervals(joined, {each.name: each.dataType for each in df.schema})
    if not isolates:
        return joined
    read = Columns(joined)
    for written in columns.written:
        read.argument(written, use.function.name)
    return joined.withColumn(DEAD_LETTER, letter_of(sf.col(ERROR), read)).drop(ERROR)


def _renamed(query: ScalarQuery, use: Use) -> ScalarQuery:
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
    taken = {name.casefold() for name in df.columns}
    for name in (*names, *own):
        if name.casefold() in taken:
            raise RejectedError(
                "SIGNATURE",
                f"the DataFrame has a column {name!r}, as the table function has; rename or drop it before the join",
            )


@dataclass(frozen=True)
class _Lateral:
    """The task of one partition, for mapInArrow.

    Args:
        query: The expressions.
        rows: The columns from Spark: those that are kept, then the arguments.
        kept: How many are kept.
        isolates: Whether errors are isolated.
    """

    query: ScalarQuery
    rows: pa.Schema
    kept: int
    isolates: bool = field(kw_only=True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows of Spark's batches."""
        blocks = gather(batches, self.rows, self.query.bounds)
        for block, answer in self.query.answers(blocks, self._chunk):
            # One text of a kept column may be taken many times, so the rows are joined in parts.
            for part in answer.to_batches(max_chunksize=_PART_ROWS):
                yield self._joined(block, part)

    def _joined(self, block: pa.RecordBatch, answer: pa.RecordBatch) -> pa.RecordBatch:
        places = answer.column(ROW)
        kept = [column.take(places) for column in block.columns[: self.kept]]
        struct = answer.column("output_0").flatten()
        members = [convert(each, out.type) for each, out in zip(struct, self.query.outputs, strict=True)]
        if self.isolates:
            members.append(convert(answer.column(ERROR), ERROR_CARRIER))
        names = [f"column_{place}" for place in range(len(kept) + len(members))]
        return pa.RecordBatch.from_arrays([*kept, *members], names=names)

    def _chunk(self, block: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.query.opening.columns
        return pa.RecordBatch.from_arrays(block.columns[self.kept :], schema=schema)
