"""`over(df, ...).agg(...)`: the value of functions for each row, over a window frame of the rows around it.

In a batch the plan is `rows > repartition(hash of keys) > sort within partitions > mapInArrow(OverFold)`. The last step
computes all window frames in one pass. It is a mapInArrow, because Spark removes a sort below a projection if another
sort follows. In a stream it is

    rows > mapInArrow(Pack) > groupBy(bucket).transformWithState(OverProcessor) > observe > mapInArrow(Unpack)

The hash of the partition keys determines the bucket of a row. Rows that arrive are stored; a timer of each bucket fires
when its next row is due, and then the window frames of all due rows are folded (`engine.over.bucket`).
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client.functions import Aggregate, OrderKey
from foldflight.engine.over.bucket import OverBucket, StreamFolds
from foldflight.engine.over.over_query import FramedCall, OverLayout, OverQuery
from foldflight.engine.over.over_stream import StreamedOver
from foldflight.engine.over.positions import distance_of, end_type
from foldflight.engine.over.window_frame_folds import OverFold
from foldflight.engine.query.layout import EMIT, KIND, ROW_KIND, SLOT
from foldflight.engine.state.manifest import RunStore
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import Pack, Unpack
from foldflight.errors import RejectedError
from foldflight.functions.query.call import Order
from foldflight.functions.query.frame import WindowFrame
from foldflight.spark.arguments import require_dataframe
from foldflight.spark.arrow import arrow_function, hash_of, step_name, together
from foldflight.spark.bucketed import BucketOperator, blobs_of, bucket_row, operator_plan
from foldflight.spark.columns import (
    Columns,
    by_text,
    column_named,
    column_of,
    key_column,
    key_name,
    key_of,
    reject_spark_errors,
    sort_key,
    text_of,
)
from foldflight.spark.errors import raise_error
from foldflight.spark.grouping import check_buckets, named_outputs, one_transport, refuse_doubles, unpack_keys
from foldflight.spark.months import as_intervals, as_months, storage_types_of
from foldflight.spark.pipelines import check_analysable
from foldflight.spark.rowkinds import refuse_unset_kinds
from foldflight.spark.scans.scan import Scan, as_dataframe
from foldflight.spark.settings import advise, check_provider
from foldflight.spark.storage_types import SPARK
from foldflight.spark.types import arrow_fields, check_keys, check_returned
from foldflight.spark.versions.sessions import check_workers
from foldflight.spark.versions.states import keep_operator
from foldflight.spark.versions.types import arrow_type, nullable, spark_type
from foldflight.spark.windows import WATERMARK

_BIGINT_MAX: Final = (1 << 63) - 1
_MEASURED: Final = (st.NumericType, st.DateType, st.TimestampType, st.TimestampNTZType)


def over(
    df: DataFrame | Scan,
    *keys: str | Column | Sequence[str | Column],
    partition_by: str | Column | Sequence[str | Column] = (),
    order_by: str | Column | Sequence[str | Column] = (),
    buckets: int = 32,
    idle: str | None = None,
) -> OverFrame:
    """Compute functions for each row of a DataFrame, over the rows around it (SQL's OVER).

    Over a streaming DataFrame the rows wait until the watermark has reached their time. Then they come out once, for
    each key in the order of their times, in append mode. A row whose time the watermark has reached when it arrives is
    dropped and counted (`late_rows`). Window frames end at the current row: ROWS from at most 10,000 rows before it,
    RANGE from an interval before it, or without a beginning. The state lives in Spark's RocksDB state store.

    Args:
        df: A batch or streaming DataFrame, of classic PySpark or of Spark Connect. Of a `scan`, Spark reads the rows.
        keys: The columns of PARTITION BY: column names, SQL expressions, or Columns; or one list of them. Without keys
            all rows are one partition, which one task computes.
        partition_by: The same columns by name, instead of `keys`: `over(df, partition_by="k", order_by="at")`.
        order_by: The columns of ORDER BY. A text may end with ASC or DESC, and with NULLS FIRST or NULLS LAST. By
            default the order is ascending; NULL comes first in ascending and last in descending order. A column of the
            input may also be given as PySpark's `desc("at")`. For streams the first one is the column under
            `withWatermark`, ascending and without NULLs; further ones decide between rows of equal time.
        buckets: For streams: the number of parts of the state. It is fixed for the life of a checkpoint.
        idle: For streams: an interval such as `7 days`. A group that has had no row for longer is forgotten, and a
            later row of it begins anew: its window frames do not reach over the interval. Its state goes when the
            watermark has passed its last row by the interval. Without `idle` the state of a group with ROWS frames or
            window frames without a beginning stays for ever. RANGE frames from an interval on need no `idle` and
            ignore it. A checkpoint continues with another interval, but not with `idle` added or left out.

    Returns:
        OverFrame: Call its `agg` to get the result.

    Raises:
        RejectedError: SIGNATURE, also for a stream without a watermark on its order; SCHEMA_MISMATCH; CANNOT_RETRACT
            for a stream of changes.

    >>> from foldflight import connect
    >>> from foldflight.spark import over
    >>> orders = [("ann", 1, 10), ("ann", 2, 40), ("bob", 1, 7)]
    >>> orders = spark.createDataFrame(orders, "customer STRING, day INT, price INT")
    >>> total = connect("embedded:").sum("price")
    >>> over(orders, "customer", order_by="day").agg(so_far=total).sort("customer", "day").show()
    +--------+---+-----+------+
    |customer|day|price|so_far|
    +--------+---+-----+------+
    |     ann|  1|   10|    10|
    |     ann|  2|   40|    50|
    |     bob|  1|    7|     7|
    +--------+---+-----+------+
    """
    is_scan = isinstance(df, Scan)
    df = as_dataframe(df)
    require_dataframe(df, "over")
    check_analysable(df, "over")
    named_keys = tuple(partition_by) if isinstance(partition_by, (list, tuple)) else (partition_by,)
    if keys and named_keys:
        raise RejectedError("SIGNATURE", "over has columns of PARTITION BY twice; give them as keys or as partition_by")
    all_keys = unpack_keys(keys) or named_keys
    roles = [f"the key {text_of(key)!r}" for key in all_keys]
    columns = tuple(key_of(df, key, role) for key, role in zip(all_keys, roles, strict=True))
    names = tuple(key_name(df, key, column) for key, column in zip(all_keys, columns, strict=True))
    order_keys = order_by if isinstance(order_by, (list, tuple)) else (order_by,)
    check_buckets(buckets)
    order = tuple(sort_key(df, OrderKey.of(each)) for each in order_keys)
    if df.isStreaming:
        _check_stream(df, order)
    elif idle is not None:
        raise RejectedError("SIGNATURE", "idle bounds the state of a stream, and this is a batch; leave it out")
    refuse_unset_kinds(df, "over", "leave the column out, to take each change for a row")
    return OverFrame(df, all_keys, columns, names, order, buckets, idle, is_scan)


def _check_stream(df: DataFrame, order: Sequence[OrderKey]) -> None:
    """Check the order of a stream. Raises RejectedError SIGNATURE, SCHEMA_MISMATCH or CANNOT_RETRACT."""
    if ROW_KIND in (name.casefold() for name in df.columns):
        raise RejectedError(
            "CANNOT_RETRACT",
            f"the stream has a column {ROW_KIND}, so it is one of changes, and a row that is taken back would change "
            "the outputs of all rows after it; use a stream of rows (emit='append' of a group_by), or rename the "
            "column if it means something else",
        )
    watermark_names = [field.name for field in df.schema if WATERMARK in (field.metadata or {})]
    if not watermark_names:
        raise RejectedError(
            "SIGNATURE",
            "over a stream, rows wait for the watermark, and this stream has none; add "
            "df.withWatermark('time', '1 minute') on the column of its time, and order by it",
        )
    remedy = f"give order_by={watermark_names[0]!r}, with further columns only behind it"
    if not order:
        raise RejectedError("SIGNATURE", f"over a stream is ordered by the column under the watermark; {remedy}")
    first = text_of(order[0].column)
    column = column_of(df, order[0].column, f"the order {first!r}")
    field = df.select(column).schema[0]
    if WATERMARK not in (field.metadata or {}) or order[0].descending:
        raise RejectedError(
            "SIGNATURE",
            f"over a stream is ordered by the column under the watermark, ascending, and {order[0]!r} is not; {remedy}",
        )
    if not isinstance(field.dataType, (st.TimestampType, st.TimestampNTZType)):
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the order {first!r} is {field.dataType.simpleString()}; order by a timestamp"
        )


@dataclass(frozen=True)
class OverFrame:
    """A DataFrame with the partition and order of a window; made by `over`.

    >>> from foldflight import connect
    >>> from foldflight.spark import over
    >>> orders = [("ann", 1, 10), ("ann", 2, 40), ("bob", 1, 7)]
    >>> orders = spark.createDataFrame(orders, "customer STRING, day INT, price INT")
    >>> over(orders, "customer", order_by="day").explain(last_two=connect("embedded:").sum("price").rows(-1, 0))
    over: partition by customer; order by 'day'
      last_two: sum(price) ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
          folded: retract, because it is invertible
          mode: vectorised
    plan: rows > shuffle by key > sort > ... > rows with outputs
      blocks of at most 262,144 rows; a partition of more than 16 MiB is written to a file
    """

    df: DataFrame
    key_expressions: tuple[object, ...]  # the keys, as the user wrote them
    keys: tuple[Column | str, ...]
    names: tuple[str, ...]
    order: tuple[OrderKey, ...]
    buckets: int = 1
    idle: str | None = None
    is_scan: bool = False

    def agg(self, /, *aliased: Aggregate, **named: Aggregate) -> DataFrame:
        """Compute each call for each row.

        A call has the window frame of its `rows` or `range`. Without one it has SQL's: with an order, all rows up
        to the last one with the same order values; without an order, the whole partition. The query is checked now and
        computed when an action needs the result.

        Args:
            aliased: Calls of functions with their output's name: `weighted_avg("price", "qty").alias("w")`.
            named: Calls of functions by output name: `w=weighted_avg("price", "qty").rows(-99, 0)`. All functions must
                come from one `connect`.

        Returns:
            DataFrame: All columns of the input, then the outputs. The order of its rows is not defined.

        Raises:
            RejectedError: SIGNATURE for mistakes in window frames and names; SCHEMA_MISMATCH for columns that cannot be
                resolved or do not fit; CANNOT_RETRACT or CANNOT_MERGE for a window frame that cannot be folded at a
                bounded cost; LIMIT for a window frame of too many rows in a stream; UNKNOWN_FUNCTION.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        query, rows, results, spark_types = self._resolve(aliased, named)
        pickle.dumps(query)  # Spark pickles it again later, but its error would not name the function
        advise(self.df)
        check_workers(self.df.sparkSession)
        if isinstance(query, StreamedOver):
            check_provider(self.df)
            return self._restore_names(as_intervals(over_stream(query, rows, results), spark_types))
        keys = [sf.col(name) for name in query.layout.keys.names]
        order = zip(query.layout.order.names, self.order, strict=True)
        sorting = [*keys, *(_sort_expression(sf.col(name), each) for name, each in order)]
        arrived_rows = together(rows, hash_of(rows, query.layout.keys) if keys else None, sorting)
        functions = [call.function for part in query.parts for call in part.query.open_request.calls]
        function = arrow_function(OverFold(query), step_name("over", functions), query.trace)
        return self._restore_names(as_intervals(arrived_rows.mapInArrow(function, results), spark_types))

    def explain(self, /, *aliased: Aggregate, **named: Aggregate) -> None:
        """Print the query of `agg`: each call with its window frame, how that is folded, and why. Raises its errors."""
        print(self._resolve(aliased, named)[0].explain())  # noqa: T201 - as DataFrame.explain does
        if self.is_scan:
            print("  reader: Spark, because rows are shuffled before they are folded")  # noqa: T201

    def _resolve(
        self, aliased_calls: Sequence[Aggregate], calls_by_name: Mapping[str, Aggregate]
    ) -> tuple[OverQuery | StreamedOver, DataFrame, st.StructType, dict[str, st.DataType]]:
        """Return the query, the rows that its task reads, what its task makes, and the types of the result."""
        aggregates = named_outputs(aliased_calls, calls_by_name)
        transport = one_transport(aggregates)
        for name in dict.fromkeys(self.df.columns):  # a join may have two columns of one name, which stay as they are
            refuse_doubles((name, *aggregates), "is the name of two columns of the result")
        columns = Columns(self.df, self.keys, self.names, reserved=(SLOT, KIND, EMIT))
        calls = dict(zip(aggregates, columns.calls(list(aggregates.values())), strict=True))
        schema = columns.schema()  # its errors name the key or argument that is wrong
        columns.check_compared(list(aggregates.values()), schema)
        order = [column_of(self.df, each.column, f"the order {text_of(each.column)!r}") for each in self.order]
        default = WindowFrame.default(has_order=bool(order))
        window_frames = {name: each.frame or default for name, each in aggregates.items()}
        is_stream = self.df.isStreaming
        framed_calls, ends = ({}, {}) if is_stream else self._resolve_window_frames(calls, window_frames, order)
        if is_stream:
            # A stream computes with fixed distances, because the watermark passes them, too.
            framed_calls = {name: FramedCall(call, window_frames[name]) for name, call in calls.items()}
            order = [self._non_null_time(order[0]), *order[1:]]
        rows, sent_names = self._rows(columns, order, ends)
        layout = self._layout(columns, rows, sent_names)
        query: OverQuery | StreamedOver
        try:
            if is_stream:
                ties = self._ties(layout)
                query = StreamedOver.of(
                    transport, framed_calls, layout, ties=ties, buckets=self._buckets, idle=self.idle, types=SPARK
                )
            else:
                query = OverQuery.of(transport, framed_calls, layout, types=SPARK)
        except RejectedError as error:
            if error.code == "SCHEMA_MISMATCH":
                plain = [dataclasses.replace(each, frame=None) for each in aggregates.values()]
                columns.refuse_types(plain, layout.of(list(calls.values()), retracts=False).chunk)
            raise
        outputs = (query.query if isinstance(query, StreamedOver) else query).outputs
        uses = [(each.function, each.columns) for each in aggregates.values()]
        types = columns.result_types(uses, schema, outputs.types)
        check_returned((f"the column {each.name!r}", each.dataType) for each in self.df.schema)
        spark_types = dict(zip(self._apart, (nullable(each.dataType) for each in self.df.schema), strict=True))
        spark_types |= dict(zip(outputs.names, types, strict=True))
        sent_types = [*layout.payload.types, *outputs.types]
        fields = map(st.StructField, spark_types, storage_types_of(list(spark_types.values()), sent_types))
        return query, rows, st.StructType(list(fields)), spark_types

    @property
    def _apart(self) -> tuple[str, ...]:
        """The names of the input's columns in the query, where a name of two columns becomes two names."""
        times = Counter(name.casefold() for name in self.df.columns)  # Spark compares names without case
        return tuple(
            name if times[name.casefold()] == 1 else f"foldflight column {index}: {name}"
            for index, name in enumerate(self.df.columns)
        )

    def _restore_names(self, result: DataFrame) -> DataFrame:
        """Return a result whose columns have the names of the input again."""
        names = self.df.columns
        if self._apart == tuple(names):
            return result
        return keep_operator(result.toDF(*names, *result.columns[len(names) :]), result)

    @property
    def _buckets(self) -> int:
        return self.buckets if self.keys else 1

    def _ties(self, layout: OverLayout) -> tuple[Order, ...]:
        """Return the order after its first column, under internal names."""
        names_and_keys = zip(layout.order.names[1:], self.order[1:], strict=True)
        return tuple(Order(name, each.descending, each.nulls_first) for name, each in names_and_keys)

    def _non_null_time(self, time: Column) -> Column:
        """Return the time of a stream, which fails the query where it is NULL."""
        text = f"the order {text_of(self.order[0].column)} is NULL; leave such rows out"
        return sf.coalesce(time, raise_error("SCHEMA_MISMATCH", text))

    def _rows(
        self, columns: Columns, order: Sequence[Column], ends: Mapping[str, Column]
    ) -> tuple[DataFrame, dict[str, list[str]]]:
        """Return the rows that the task reads, and the names in them of the input, keys, order, arguments and ends.

        In a batch a column of the input is sent once, even if it is a key, the order and an argument as well. The state
        of a stream has a column for each use.
        """
        name_by_input = {f"in_{index}": name for index, name in enumerate(self._apart)}
        column_by_name = {input_name: column_named(name) for input_name, name in name_by_input.items()}
        inputs = {} if self.df.isStreaming else by_text(name_by_input)
        sent_names = {"in": list(column_by_name)}
        uses: dict[str, Iterable[tuple[object, Column]]] = {
            "key": zip(self.key_expressions, map(key_column, self.keys), strict=True),
            "order": zip((each.column for each in self.order), order, strict=True),
            "column": zip(columns.user_expressions, columns.expressions, strict=True),
        }
        for use, pairs in uses.items():
            names = sent_names[use] = []
            for index, (expression, column) in enumerate(pairs):
                name = inputs.get(expression, "") if isinstance(expression, str) else ""
                if not name or name in names:
                    name = f"{use}_{index}"
                    column_by_name[name] = column
                names.append(name)
        sent_names["end"] = list(ends)
        with reject_spark_errors("SCHEMA_MISMATCH", "Spark cannot resolve the order or a frame of the query"):
            if self._apart == tuple(self.df.columns):
                rows = columns.input.select([column.alias(name) for name, column in {**column_by_name, **ends}.items()])
            else:
                # Only their places tell columns of one name apart. The input may have conditions after its own.
                uses_of = {
                    name: column for name, column in {**column_by_name, **ends}.items() if name not in name_by_input
                }
                every = columns.input.select("*", *(column.alias(name) for name, column in uses_of.items()))
                others = every.columns[len(name_by_input) :]
                rows = every.toDF(*name_by_input, *others).select(*name_by_input, *uses_of)
            rows.schema  # noqa: B018 - resolves the columns now
        return as_months(rows), sent_names

    def _layout(self, columns: Columns, rows: DataFrame, sent_names: Mapping[str, Sequence[str]]) -> OverLayout:
        order = [text_of(each.column) for each in self.order]
        roles = {
            "in": [f"the column {name!r}" for name in self.df.columns],
            "key": [f"the key {name!r}" for name in self.names],
            "order": [f"the order {name!r}" for name in order],
            "column": columns.roles()[len(self.names) :],
            "end": [f"the end {name} of a frame" for name in sent_names["end"]],
        }
        types = {field.name: field for field in rows.schema}
        schemas = {use: st.StructType([types[name] for name in names]) for use, names in sent_names.items()}
        check_keys(schemas["key"], self.names)
        check_keys(schemas["order"], order, is_order=True)
        fields = {use: arrow_fields(schema, roles[use]) for use, schema in schemas.items()}
        return OverLayout(
            payload=fields["in"],
            names=self._apart,
            keys=fields["key"],
            key_names=self.names,
            order=fields["order"],
            order_names=tuple(map(repr, self.order)),
            columns=fields["column"],
            display_names=tuple(columns.display_names),
            bounds=fields["end"],
            descending=bool(self.order) and self.order[0].descending,
            nulls_first=not self.order or self.order[0].nulls_first,
        )

    def _resolve_window_frames(
        self, calls: Mapping[str, Any], window_frames: Mapping[str, WindowFrame], order: Sequence[Column]
    ) -> tuple[dict[str, FramedCall], dict[str, Column]]:
        """Return the calls with their window frames, and the columns of their ends, which Spark computes."""
        ends: dict[str, Column] = {}
        end_names: dict[object, str] = {}
        type_: st.DataType | None = None
        framed_calls = {}
        for name, call in calls.items():
            window_frame = window_frames[name]
            columns: list[str | None] = []
            for bound in (window_frame.low, window_frame.high):
                if not window_frame.is_range or bound is None or bound == 0:
                    columns.append(None)
                    continue
                if type_ is None:
                    type_ = self._order_type(window_frame, order)
                key = (type(bound), bound)
                if key not in end_names:
                    end_names[key] = f"end_{len(ends)}"
                    ends[end_names[key]] = self._end(order[0], type_, bound)
                columns.append(end_names[key])
            framed_calls[name] = FramedCall(call, window_frame, *columns)
        return framed_calls, ends

    def _order_type(self, window_frame: WindowFrame, order: Sequence[Column]) -> st.DataType:
        if len(order) != 1:
            raise RejectedError(
                "SIGNATURE",
                f"{window_frame} has a distance of the order value, so it needs one column in order_by, and there are "
                f"{len(order)}",
            )
        with reject_spark_errors(
            "SCHEMA_MISMATCH", f"Spark cannot resolve the order {text_of(self.order[0].column)!r}"
        ):
            return self.df.select(order[0]).schema[0].dataType

    def _end(self, order: Column, type_: st.DataType, bound: Any) -> Column:
        """Return the order value at a distance. Raises RejectedError SCHEMA_MISMATCH."""
        arrow = arrow_type(type_) if isinstance(type_, _MEASURED) else pa.string()
        name = text_of(self.order[0].column)
        distance_value = distance_of(arrow, bound, order=name, type_name=type_.simpleString())
        if isinstance(distance_value, str):
            with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot add the distance {bound!r} to the order"):
                distance = sf.expr(f"INTERVAL '{distance_value.strip()}'")
        else:
            # A narrower type would wrap, or give NULL, where Spark is not in ANSI mode.
            type_ = spark_type(end_type(arrow))
            order, distance = order.cast(type_), sf.lit(distance_value).cast(type_)
        end = order - distance if self.order[0].descending else order + distance
        if isinstance(type_, st.LongType):
            assert isinstance(distance_value, int)
            end = _checked_end(order, end, -distance_value if self.order[0].descending else distance_value, name)
        if isinstance(type_, st.DecimalType):
            return end.cast(type_)
        with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot add the distance {bound!r} to the order"):
            actual = self.df.select(end).schema[0].dataType
        if actual != type_:
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the order {name!r} is {type_.simpleString()}, and at the distance {bound!r} "
                f"it is {actual.simpleString()}; order by CAST(... AS {actual.simpleString().upper()})",
            )
        return end


def _checked_end(order: Column, end: Column, distance: int, name: str) -> Column:
    """Return the end of a window frame, or an error where it does not fit BIGINT.

    Without ANSI mode Spark would wrap it, and the window frame would lack rows.
    """
    limit = (_BIGINT_MAX if distance > 0 else -_BIGINT_MAX - 1) - distance
    reason = (
        f" in the order {name!r} and the distance {distance} of a window frame do not add up to a BIGINT; leave such "
        "rows out, or replace the value"
    )
    error = raise_error("SCHEMA_MISMATCH", order.cast("string"), reason).cast(st.LongType())
    return sf.when(order > limit if distance > 0 else order < limit, error).otherwise(end)


def _sort_expression(column: Column, key: OrderKey) -> Column:
    if key.descending:
        return column.desc_nulls_first() if key.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if key.nulls_first else column.asc_nulls_last()


def over_stream(over: StreamedOver, rows: DataFrame, schema: st.StructType) -> DataFrame:
    """Return the rows of a stream with their outputs.

    Args:
        over: The query.
        rows: The input rows, in the schema of its layout.
        schema: The columns of the result.
    """
    query, layout = over.query, over.query.layout
    functions = [call.function for part in query.parts for call in part.query.open_request.calls]
    pack = arrow_function(Pack(layout.rows, query.bounds), step_name("pack", functions))
    unpack = arrow_function(Unpack(query.results), step_name("over", functions))
    return operator_plan(
        rows,
        OverProcessor(over),
        (pack, unpack),
        schema,
        keys=layout.keys.names,
        buckets=over.buckets,
        names=(layout.key_names, query.outputs.names),
    )


class OverProcessor(BucketOperator):
    """The operator of OVER streams.

    Args:
        over: The query.
    """

    def __init__(self, over: StreamedOver) -> None:
        super().__init__(over.query.layout.rows, over.query.bounds, has_names=True, trace=over.query.trace)
        self._folds = StreamFolds(over, clock=time.perf_counter)
        self._last_stats: dict[int, EpochStats] = {}

    def arrive(self, bucket: int, blocks: Iterator[pa.RecordBatch], timers: Any) -> Iterator[Row]:
        """Store the rows of one bucket that arrive in an epoch."""
        rows = self._bucket()
        rows.arrive(blocks, timers.getCurrentWatermarkInMs() * 1000)
        yield from self._end_call(bucket, rows)

    def expire(self, bucket: int, timers: Any, timer_info: Any) -> Iterator[Row]:  # noqa: ARG002
        """Emit the rows of one bucket that are due."""
        rows = self._bucket()
        try:
            for batch in rows.outputs(timers.getCurrentWatermarkInMs() * 1000):
                for blob in blobs_of(batch):
                    yield bucket_row(blob, EpochStats())
        except BaseException as error:
            self._folds.__exit__(type(error), error, error.__traceback__)
            raise
        yield from self._end_call(bucket, rows)

    def end(self) -> None:
        """End the exchanges."""
        self._folds.__exit__(None, None, None)

    def check(self, stores: Callable[[str], RunStore]) -> None:
        self._bucket(stores)

    def _bucket(self, stores: Callable[[str], RunStore] | None = None) -> OverBucket:
        store = stores or self.store
        return OverBucket(self._folds, lambda name: self.storage(store(name)))

    def _end_call(self, bucket: int, rows: OverBucket) -> Iterator[Row]:
        """Register a timer for the next row that is due, and yield the figures."""
        if rows.next_us is not None:
            self.wake(rows.next_us)
        yield bucket_row(None, self._figures(bucket, rows.stats))

    def _figures(self, bucket: int, stats: EpochStats) -> EpochStats:
        """Return figures that add up to the latest ones of a bucket, if it is called twice in a task."""
        before = self._last_stats.get(bucket, EpochStats())
        self._last_stats[bucket] = stats
        return replace(
            stats,
            buckets=stats.buckets - before.buckets,
            runs=stats.runs - before.runs,
            state_bytes=stats.state_bytes - before.state_bytes,
            waiting_rows=stats.waiting_rows - before.waiting_rows,
        )
