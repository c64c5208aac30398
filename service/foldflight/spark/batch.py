"""The plan of a batch query.

If every call lifts, Spark may aggregate the rows itself (`spark/lifted.py`). Otherwise Python folds them. That plan has
two phases if every call supports merging (and is invertible, if rows have kinds):

    rows > mapInArrow(PartialFold) > repartition(hash of keys) > mapInArrow(FinalFold)

Otherwise it has one: `rows > repartition(hash of keys) > sort within partitions > mapInArrow(FinalFold)`. Rows, and
states that grow, are sorted by the hash of their keys, so that a task holds one block of groups at a time, however many
groups its partition has (see `engine.batch.tasks`).

Of rows with kinds, Spark first lets each retraction take back an equal row: no group has rows before the batch, so a
retraction without an equal row is ignored. No later step could tell: sums and states, which Spark or a partial fold
makes, have netted the rows. So only inserts reach the plan.

Without keys there is one partition and one group. A seed row ensures that the group exists for an empty input too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.batch.tasks import FinalFold, PartialFold
from foldflight.engine.query.layout import HASH, KIND, LIVE, REAL
from foldflight.engine.query.query import Query
from foldflight.functions import RowKind
from foldflight.spark.arrow import arrow_function, hash_of, spark_schema, step_of, together
from foldflight.spark.expressions import SIGN, error_text, text
from foldflight.spark.lifted import lifted_result
from foldflight.spark.types import equal_by

_REPEATED_MAX: Final = 10_000
"""How many equal rows are made of one array."""

_NO_ROW: Final = (
    "a row is retracted and no equal row is accumulated (strict mode); correct the input, or disable "
    "strict mode to ignore such rows"
)


def batch_result(query: Query, rows: DataFrame, outputs: Sequence[st.DataType], *, strict: bool = False) -> DataFrame:
    """Return the result of a batch query.

    Args:
        query: The query.
        rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
        outputs: Spark's types of the outputs.
        strict: Whether a retraction without a row is an error.
    """
    if query.layout.has_kinds:
        rows = _with_their_rows(query, rows, strict=strict)
    if query.lifted.taken:
        return lifted_result(query, rows, outputs)
    merges = query.folds_before_shuffle.taken
    arrived = rows
    if merges:
        partial = PartialFold(query, query.bounds)
        schema = spark_schema(query, rows, partial.output)
        arrived = rows.mapInArrow(arrow_function(partial, step_of(query, "fold_partial"), query.traced), schema)
    final = FinalFold(query, merges=merges)
    parted = _by_key(query, arrived, final) if query.layout.names else _in_one(arrived, final.input)
    step = step_of(query, "merge" if merges else "fold")
    return parted.mapInArrow(
        arrow_function(final, step, query.traced), spark_schema(query, rows, query.layout.results, outputs)
    )


def _with_their_rows(query: Query, rows: DataFrame, *, strict: bool) -> DataFrame:
    """Return the accumulated rows that no equal retraction takes back, as inserts.

    Rows are equal in the keys and all columns of the query. Spark counts equal rows before its shuffle, too. They are
    repeated by what is left of their number.
    """
    columns = [(column.name, equal_by(column)) for column in rows.schema if column.name != KIND]
    # Columns that are compared in another form (-0.0 as 0.0) keep the value of one of the equal rows.
    kept = [f"first({name}) AS {name}" for name, equal in columns if equal != name]
    equals = [name if equal == name else f"{equal} AS equal_{name}" for name, equal in columns]
    equal_names = [name if equal == name else f"equal_{name}" for name, equal in columns]
    compared = rows.selectExpr(*(name for name, equal in columns if equal != name), KIND, *equals)
    counted = compared.groupBy(*equal_names).agg(*map(sf.expr, [f"sum({SIGN}) AS {LIVE}", *kept]))
    if strict:
        keys = dict(zip(query.layout.keys.names, query.layout.names, strict=True))
        function = ", ".join(call.function for call in query.opening.calls)
        error = error_text("CANNOT_RETRACT", text(_NO_ROW), function, keys, group=list(keys))
        has_row = f"CASE WHEN {LIVE} < 0 THEN CAST(raise_error({error}) AS BOOLEAN) ELSE {LIVE} > 0 END"
    else:
        has_row = f"{LIVE} > 0"
    names = [name for name, _ in columns]
    # Parts of a bounded size, because an array holds neither any number of items nor any size of memory.
    parts = counted.where(has_row).selectExpr(*names, LIVE, f"explode(sequence(1L, {LIVE}, {_REPEATED_MAX}L)) AS begin")
    repeats = f"CAST(least({_REPEATED_MAX}L, {LIVE} - begin + 1L) AS INT)"
    inserted = f"explode(array_repeat(CAST({int(RowKind.INSERT)} AS TINYINT), {repeats})) AS {KIND}"
    return parts.selectExpr(*names, inserted).select(rows.columns)


def _by_key(query: Query, arrived: DataFrame, final: FinalFold) -> DataFrame:
    hashed = arrived.withColumn(HASH, hash_of(query.layout.keys))
    order = [sf.col(HASH)] if final.needs_order else []
    return together(hashed, sf.col(HASH), order)


def _in_one(arrived: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return all rows in one partition, with the seed row: NULLs, marked as not real."""
    if REAL in schema.names and REAL not in arrived.columns:
        arrived = arrived.withColumn(REAL, sf.lit(True))
    nothing = [
        sf.lit(False if field.name == REAL else None).cast(field.dataType).alias(field.name) for field in arrived.schema
    ]
    seed = arrived.sparkSession.range(0, 1, 1, 1).select(*nothing)
    return together(arrived.union(seed), None, [])
