"""The common parts of batch and stream plans: functions for mapInArrow, and Spark schemas."""

from __future__ import annotations

import textwrap
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import DEAD_LETTER
from foldflight.engine.query.query import Query
from foldflight.spark.settings import warn_of_wide_rows
from foldflight.spark.types import letter_type
from foldflight.spark.versions.sessions import is_spark
from foldflight.spark.versions.types import nullable, spark_type
from foldflight.spark.worker import attempt, freeze_garbage_collector, in_task, use_local_folders
from foldflight.tracing import TraceSettings

ArrowFunction = Callable[[Iterator[Any]], Iterator[Any]]
"""A plain function for mapInArrow."""

_NAME_LENGTH_MAX = 100
_ROW_NUMBER = "__row_number"


def step_name(step: str, functions: Sequence[str]) -> str:
    """Return the name of a step for Spark's plans and UI, with each function once: `merge[sum, count]`."""
    names = ", ".join(dict.fromkeys(functions))
    return f"{step}[{textwrap.shorten(names, _NAME_LENGTH_MAX, placeholder=' ...')}]"


def arrow_function(
    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], name: str, trace: TraceSettings | None = None
) -> ArrowFunction:
    """Wrap a task as a plain function for mapInArrow.

    Args:
        task: Processes the batches of one partition.
        name: The name of the function, which Spark shows in its plans and UI.
        trace: For the spans of its tasks; None if there are none.
    """
    step = uuid.uuid4().hex

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        use_local_folders()
        with attempt(step):
            results = task(warn_of_wide_rows(_without_row_number(batches)))
            yield from results if trace is None else in_task(trace, name, results)
        freeze_garbage_collector()

    run.__name__ = name
    return run


def hash_of(rows: DataFrame, keys: pa.Schema) -> Column:
    """Return the hash of the keys of rows, which puts equal keys into one partition.

    The hash that Sail repartitions by differs between 0.0 and -0.0, and its xxhash64 between NaNs of different bits.
    """
    of_one_nan = {
        key.name: f"nanvl({key.name}, CAST('NaN' AS DOUBLE))" for key in keys if pa.types.is_floating(key.type)
    }
    if any(_lacks_hash(key.type) for key in keys) and not is_spark(rows.sparkSession):
        return sf.xxhash64(
            *(
                sf.expr(of_one_nan[key.name]) if key.name in of_one_nan else _hashable(sf.col(key.name), key.type)
                for key in keys
            )
        )
    # PySpark makes a text by few calls of Java, and a Column of each key by many.
    return sf.expr(f"xxhash64({', '.join(of_one_nan.get(name, name) for name in keys.names)})")


def _lacks_hash(type_: pa.DataType) -> bool:
    """Return whether Sail's hash does not take values of a type: TIME, intervals, and what they are parts of."""
    parts = [type_.field(at).type for at in range(type_.num_fields)]
    return pa.types.is_time(type_) or pa.types.is_duration(type_) or any(map(_lacks_hash, parts))


def _hashable(column: Column, type_: pa.DataType) -> Column:
    """Return what Sail can hash, and is equal for equal values."""
    if not _lacks_hash(type_):
        return column
    if pa.types.is_list(type_):
        return sf.transform(column, lambda item: _hashable(item, type_.value_type))
    if pa.types.is_struct(type_):
        return sf.struct(*(_hashable(column[each.name], each.type).alias(each.name) for each in type_))
    return column.cast("string")


def together(rows: DataFrame, hash_column: Column | None, order: Sequence[Column]) -> DataFrame:
    """Return rows partitioned by their hash, with each partition sorted.

    Args:
        rows: The rows.
        hash_column: The hash of each row; None: all rows are in one partition.
        order: The order within a partition, or nothing for any order. Rows of one hash are together in it.
    """
    if order and not is_spark(rows.sparkSession):
        # Sail's optimiser removes a sort that none of its own operators needs, and a window function needs one.
        window = Window.partitionBy(sf.lit(1) if hash_column is None else hash_column).orderBy(*order)
        # It would reckon with a frame of RANGE, which it does not have for TIME, intervals, BINARY and STRUCT.
        by_rows = window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        return rows.withColumn(_ROW_NUMBER, sf.row_number().over(by_rows))
    partitioned_rows = rows.repartition(1) if hash_column is None else rows.repartition(hash_column)
    return partitioned_rows.sortWithinPartitions(*order) if order else partitioned_rows


def _without_row_number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(batch.schema.names[:-1]) if batch.schema.names[-1:] == [_ROW_NUMBER] else batch


def step_of(query: Query, step: str) -> str:
    """Return the name of one step of a query, with its functions."""
    return step_name(step, [call.function for call in query.open_request.calls])


def spark_schema(
    query: Query, rows: st.StructType, schema: pa.Schema, outputs: Sequence[st.DataType] = ()
) -> st.StructType:
    """Return the Spark schema for an Arrow schema that begins with the keys of a query.

    Args:
        query: The query.
        rows: The columns of the input. Keys and columns of the result keep their Spark types.
        schema: Keys, then states or outputs, then dead letters (if errors are isolated).
        outputs: Spark's types of the outputs; for states none.
    """
    layout = query.layout
    key_types = [nullable(field.dataType) for field in rows.fields[: len(layout.names)]]
    known_types = [*key_types, *outputs]
    types = [*known_types, *(spark_type(field.type) for field in list(schema)[len(known_types) :])]
    if layout.isolates and schema.names[-1] == DEAD_LETTER:
        types[-1] = letter_type(layout, key_types, [rows[name].dataType for name in layout.columns.names])
    return st.StructType([st.StructField(name, type_) for name, type_ in zip(schema.names, types, strict=True)])
