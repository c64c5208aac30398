"""The plan of a batch query.

If every call lifts, Spark may aggregate the rows itself (`spark/lifted.py`). Otherwise Python folds them. That plan has
two phases if every call supports merging (and is invertible, if rows have kinds):

    rows > mapInArrow(PartialFold) > repartition(hash of keys) > mapInArrow(FinalFold)

Otherwise it has one: `rows > repartition(hash of keys) > sort within partitions > mapInArrow(FinalFold)`. Rows, and
states that grow, are sorted by the hash of their keys, so that a task holds one block of groups at a time, however many
groups its partition has (see `engine.batch.tasks`). If rows have kinds, the sort also puts the inserts of a group
before its retractions.

Without keys there is one partition and one group. A seed row ensures that the group exists for an empty input too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.batch.tasks import FinalFold, PartialFold
from foldflight.engine.query.layout import HASH, KIND, REAL, RETRACTING
from foldflight.engine.query.query import Query
from foldflight.spark.arrow import arrow_function, hash_of, spark_schema, step_of, together
from foldflight.spark.lifted import lifted_result


def batch_result(query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
    """Return the result of a batch query.

    Args:
        query: The query.
        rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
        outputs: Spark's types of the outputs.
    """
    if query.lifted.taken:
        return lifted_result(query, rows, outputs)
    merges = query.folds_before_shuffle.taken
    arrived = rows
    if merges:
        partial = PartialFold(query, query.bounds)
        schema = spark_schema(query, rows, partial.output)
        arrived = rows.mapInArrow(arrow_function(partial, step_of(query, "fold_partial"), query.traced), schema)
    final = FinalFold(query, merges=merges)
    parted = _by_key(query, arrived, final) if query.layout.names else _in_one(query, arrived, final.input)
    step = step_of(query, "merge" if merges else "fold")
    return parted.mapInArrow(
        arrow_function(final, step, query.traced), spark_schema(query, rows, query.layout.results, outputs)
    )


def _by_key(query: Query, arrived: DataFrame, final: FinalFold) -> DataFrame:
    hashed = arrived.withColumn(HASH, hash_of(query.layout.keys))
    order = [sf.col(HASH), *_retractions_last(query)] if final.needs_order else []
    return together(hashed, sf.col(HASH), order)


def _in_one(query: Query, arrived: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return all rows in one partition, with the seed row: NULLs, marked as not real."""
    if REAL in schema.names and REAL not in arrived.columns:
        arrived = arrived.withColumn(REAL, sf.lit(True))
    nothing = [
        sf.lit(False if field.name == REAL else None).cast(field.dataType).alias(field.name) for field in arrived.schema
    ]
    seed = arrived.sparkSession.range(0, 1, 1, 1).select(*nothing)
    return together(arrived.union(seed), None, _retractions_last(query))


def _retractions_last(query: Query) -> list[Column]:
    if not query.layout.has_kinds or query.folds_before_shuffle.taken:
        return []
    return [sf.col(KIND).isin(*RETRACTING)]
