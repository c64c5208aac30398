"""Queries inside of Spark's declarative pipelines: DataFrames whose schema is declared.

The function of a flow may not ask Spark for a schema, because the tables that it reads may not exist yet. So Spark
refuses `df.schema`, `df.columns` and `df.isStreaming` there, and no query can be planned. `with_schema` pairs the
DataFrame of the flow with an empty one of the declared schema. Each operation is applied to both. The first becomes the
flow; the second answers what a plan must know.

Spark refuses analysis by a mark that its client sets for the thread that runs the flow's function (PySpark 4.1 to 4.3).
The empty DataFrame reads no table of the pipeline, so it is analysed in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.spark.arguments import require_dataframe
from foldflight.spark.columns import column_named, reject_nanoseconds, reject_spark_errors
from foldflight.spark.errors import raise_error
from foldflight.spark.versions.sessions import condition_of, mute_query_log, name_key

_T = TypeVar("_T")
_IN_A_FLOW: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
# Attributes that the empty DataFrame answers. All others come from the flow's DataFrame, so that no action can see
# the empty one.
_ANALYSED: Final = frozenset({"schema", "columns", "dtypes", "isStreaming"})
# Methods of PySpark that ask for the names of the columns themselves. They take them from the schema that a DataFrame
# has answered before, which PySpark keeps in a private attribute; there is no public way to tell it.
_ASKING: Final = frozenset({"mapInArrow", "groupBy"})


def with_schema(df: DataFrame, schema: str | st.StructType, *, streaming: bool) -> DataFrame:
    """Declare the schema of a DataFrame, so that queries over it can be planned in a flow of a declarative pipeline.

    A materialized view over a table of the same pipeline:

        @dp.materialized_view
        def totals():
            orders = spark.read.table("orders")
            orders = with_schema(orders, "customer STRING, price DOUBLE, qty BIGINT", streaming=False)
            return group_by(orders, "customer").agg(average=weighted_avg("price", "qty"))

    Args:
        df: A DataFrame, such as `spark.read.table("orders")`, where `orders` may be a table of the same pipeline.
        schema: The columns that the query uses, as SQL or as a StructType. The result has exactly these columns. Call
            `withWatermark` on the result.
        streaming: Whether `df` is a stream: `spark.readStream`, in a flow of a streaming table.

    Returns:
        DataFrame: The same rows, for `group_by`, `over`, `with_columns` and the readers of changes.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a schema that Spark cannot read, or that has a name twice, and outside of
            flows for a column that the rows lack; SIGNATURE for a stream that is declared as none. When the flow runs,
            SCHEMA_MISMATCH for a column of another type; a column that is missing is Spark's error.

    >>> from foldflight.spark import with_schema
    >>> orders = spark.createDataFrame([("ann", 3, True)], "customer STRING, qty BIGINT, paid BOOLEAN")
    >>> with_schema(orders, "customer STRING, qty BIGINT", streaming=False).show()
    +--------+---+
    |customer|qty|
    +--------+---+
    |     ann|  3|
    +--------+---+
    """
    require_dataframe(df, "with_schema")
    with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot read the schema {schema!r}"):
        fields = list(schema if isinstance(schema, st.StructType) else _parse_schema(df, schema))
    names = [field.name.casefold() for field in fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not fields:
        fault = f"has the column {', '.join(twice)} twice" if twice else "has no columns"
        raise RejectedError("SCHEMA_MISMATCH", f"the schema {fault}; name each column that the query uses once")
    if not streaming and _reads_stream(df):
        raise RejectedError(
            "SIGNATURE",
            "the DataFrame is a stream, and with_schema was told that it is none, so each epoch would be aggregated "
            "alone; give streaming=True, or read the table by spark.read",
        )
    session = df.sparkSession
    rows = session.readStream.format("rate").load() if streaming else session.range(0)
    empty = rows.select(*(sf.lit(None).cast(field.dataType).alias(field.name) for field in fields))
    with reject_spark_errors("SCHEMA_MISMATCH", f"the schema {schema!r} does not fit the rows"):
        actual = df.select(*(_typed_column(field).alias(field.name) for field in fields))
    return cast(DataFrame, _Pair(actual, empty))


def check_analysable(df: DataFrame, operation: str) -> None:
    """Refuse a DataFrame of which Spark does not tell the columns.

    Raises:
        RejectedError: SIGNATURE, in a flow of a declarative pipeline without `with_schema`; SCHEMA_MISMATCH for a
            column whose type PySpark lacks.
    """
    try:
        with mute_query_log(), reject_nanoseconds(f"{operation} must know the columns of its input"):
            df.columns  # noqa: B018 - asks Spark
    except PySparkException as error:
        if condition_of(error) != _IN_A_FLOW:
            return  # the operation reports it, in its own words
    else:
        return
    raise RejectedError(
        "SIGNATURE",
        f"{operation} must know the columns of its input, and a flow of a declarative pipeline cannot ask for them; "
        "declare those that the query uses: with_schema(df, 'customer STRING, price DOUBLE', streaming=False), or "
        "streaming=True for a flow that reads by spark.readStream",
    )


def _reads_stream(df: DataFrame) -> bool:
    """Return whether a DataFrame is known to be a stream. In a flow, only its plan tells, as far as it is no SQL."""
    try:
        with mute_query_log():
            return bool(df.isStreaming)
    except PySparkException:  # a flow, or a mistake that the flow will report
        plan = getattr(df, "_plan", None)
        client: Any = getattr(df.sparkSession, "client", None)
        return plan is not None and _has_stream(plan.to_proto(client))


def _has_stream(message: Any) -> bool:
    """Return whether a message of Spark Connect, or one in it, is a read of a stream."""
    for field, value in message.ListFields():
        if field.name == "is_streaming" and value:
            return True
        parts = value if field.is_repeated else [value]
        is_message = field.message_type is not None and not field.message_type.GetOptions().map_entry
        if is_message and any(map(_has_stream, parts)):
            return True
    return False


def _parse_schema(df: DataFrame, schema: str) -> st.StructType:
    """Return the schema that a text declares, as Spark reads it."""
    parsed_rows = df.sparkSession.range(0).select(sf.from_json(sf.lit(""), schema).alias("fields"))
    type_ = _off_thread(lambda: parsed_rows.schema)["fields"].dataType
    assert isinstance(type_, st.StructType)
    return type_


def _typed_column(field: st.StructField) -> Any:
    """Return a column of the declared type. The query fails if the column of this name has another one."""
    column = column_named(field.name)
    expected_type = field.dataType.simpleString()
    wrong = raise_error(
        "SCHEMA_MISMATCH",
        f"the column {field.name} is declared as {expected_type} in with_schema, and is ",
        sf.typeof(column),
        "; declare it as it is, and convert it in the query",
    )
    return sf.when(sf.typeof(column) == sf.lit(expected_type), column).otherwise(wrong).cast(field.dataType)


def _off_thread(task: Callable[[], _T]) -> _T:
    """Return the result of a task that runs in a thread without the mark of the pipeline."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(task).result()


class _Pair:
    """A DataFrame or grouped data, and the same over empty input.

    Args:
        actual: The DataFrame of the flow. Nothing may analyse it.
        empty: The same operations over no rows.
    """

    def __init__(self, actual: Any, empty: Any) -> None:
        self._actual, self._empty = actual, empty

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # PySpark checks the types of DataFrames that it is given
        return type(self._actual)

    def __repr__(self) -> str:
        return _off_thread(lambda: repr(self._empty))

    def __getitem__(self, name: Any) -> Any:
        # Columns by name: one that belongs to a DataFrame would belong to the other, too.
        return column_named(name) if isinstance(name, str) else self._actual[name]

    def withColumns(self, columns: Mapping[str, Column]) -> Any:  # noqa: N802 - PySpark's name
        """Add or replace columns, by a `select`.

        Spark looks for the tables of PySpark's own `withColumns` while it defines the flow. Once a run has made them,
        it takes them as they are at that time, so the flow would read what the last run has left.
        """
        for name, column in columns.items():
            if not isinstance(column, Column):
                raise RejectedError(
                    "SIGNATURE", f"the column {name} is {column!r}, and PySpark takes a Column; write expr(...)"
                )
        key_of = name_key(self.sparkSession)
        new = {key_of(name): name for name in columns}
        replacements = [new.pop(key_of(name), None) for name in self.columns]
        old = [
            column_named(name) if other is None else columns[other].alias(name)
            for name, other in zip(self.columns, replacements, strict=True)
        ]
        return self.select(*old, *(columns[name].alias(name) for name in new.values()))

    def withColumn(self, name: str, column: Column) -> Any:  # noqa: N802 - PySpark's name
        """Add or replace a column, as `withColumns` does."""
        return self.withColumns({name: column})

    def drop(self, *names: str) -> Any:
        """Return the other columns, by a `select`, for the same reason as in `withColumns`."""
        key_of = name_key(self.sparkSession)
        keys = set(map(key_of, names))
        return self.select(*(column_named(name) for name in self.columns if key_of(name) not in keys))

    def __getattr__(self, name: str) -> Any:
        if name in _ANALYSED:
            return _off_thread(lambda: getattr(self._empty, name))
        if name in _ASKING:
            self._actual._cached_schema = self.schema  # noqa: SLF001
        own = getattr(self._actual, name)
        if name.startswith("_") or not callable(own):
            return own

        def apply(*args: Any, **keywords: Any) -> Any:
            result = own(*map(_actual_of, args), **{key: _actual_of(each) for key, each in keywords.items()})
            if not isinstance(result, DataFrame) and type(result) is not type(self._actual) and name != "groupBy":
                return result
            empties = [_empty_of(each) for each in args], {key: _empty_of(each) for key, each in keywords.items()}
            return _Pair(result, _off_thread(lambda: getattr(self._empty, name)(*empties[0], **empties[1])))

        return apply


def _actual_of(value: Any) -> Any:
    return value._actual if type(value) is _Pair else value  # noqa: SLF001 - a pair of this module


def _empty_of(value: Any) -> Any:
    return value._empty if type(value) is _Pair else value  # noqa: SLF001 - a pair of this module
