"""Upsert streams, whose rows replace each other by key, as rows with row kinds.

A batch is an aggregation of Spark: the row with the greatest sequence. A stream keeps the last row of each key in its
state. The hash of a key determines its bucket, which has a state table of the last rows (`engine.stream.upserts`):

    changes > mapInArrow(Pack) > groupBy(bucket).transformWithState(UpsertProcessor) > observe > mapInArrow(Unpack)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client.functions import OrderKey
from foldflight.engine.over.over_stream import ttl_us_of
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.state.manifest import RunStore
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import Pack, Unpack
from foldflight.engine.stream.upserts import (
    IS_DELETED,
    IS_SNAPSHOT,
    NOT_SENT_REMEDY,
    OFFSET,
    OTHER_GENERATION,
    OTHER_LOG,
    PARTITION,
    SAME_SEQUENCE_REMEDY,
    SEQUENCE,
    STATEMENT_MS,
    TIME,
    UNSENT,
    UpsertLayout,
    epoch_of,
    has_order,
    upsert_table,
)
from foldflight.errors import RejectedError
from foldflight.functions import RowKind
from foldflight.spark.arguments import column_names, require_dataframe
from foldflight.spark.arrow import arrow_function
from foldflight.spark.bucketed import EPOCH_US, BucketOperator, blobs_of, bucket_row, operator_plan
from foldflight.spark.columns import column_named, column_of, is_column, reject_spark_errors, text_of
from foldflight.spark.errors import raise_error
from foldflight.spark.grouping import check_buckets, refuse_doubles
from foldflight.spark.months import as_intervals, as_months, in_months, storage_types_of
from foldflight.spark.pipelines import check_analysable
from foldflight.spark.rowkinds import kind_column
from foldflight.spark.settings import advise, check_provider
from foldflight.spark.types import arrow_fields, check_keys, check_returned, equal_by, is_collated
from foldflight.spark.versions.sessions import check_workers, condition_of, name_key
from foldflight.spark.versions.types import nullable
from foldflight.spark.windows import WATERMARK

_BOUNDS = BlockBounds()
_ROW: Final = "row"
_SNAPSHOT: Final = "last_snapshot"
_LAST_CHANGE: Final = "last_change"
_LAST_DELETED: Final = "last_deleted"
_LARGE: Final = (st.StringType, st.BinaryType, st.ArrayType, st.MapType, st.StructType, st.DecimalType)
_NOT_SENT: Final = f", and there is no older row to keep it from; {NOT_SENT_REMEDY}"
_NOT_KNOWN: Final = f" have the same sequence, {SAME_SEQUENCE_REMEDY}"


def upserts(
    df: DataFrame,
    *,
    keys: str | Sequence[str],
    sequence_by: str | Column | Sequence[str | Column],
    deleted: str | Column | None = None,
    ttl: str | None = None,
    buckets: int = 32,
) -> DataFrame:
    """Return the rows of an upsert stream as rows with row kinds, for `group_by`, `over` and `write_table`.

    Each input row is the whole new row of its key, or says that the key is deleted. A stream has the last row of each
    key in its state, by `sequence_by`, so rows that arrive again, late or in another order change nothing that a later
    one has set. A deleted key stays in the state with the sequence of its deletion.

    >>> from foldflight.spark import upserts
    >>> rows = [(1, "ann", "c", 10), (1, "bob", "u", 12), (1, "cid", "u", 11), (2, "dan", "c", 7), (2, "", "d", 9)]
    >>> events = spark.createDataFrame(rows, "id INT, customer STRING, op STRING, lsn BIGINT")
    >>> upserts(events, keys="id", sequence_by="lsn", deleted="op = 'd'").show()
    +--------+---+--------+---+---+
    |row_kind| id|customer| op|lsn|
    +--------+---+--------+---+---+
    |      +I|  1|     bob|  u| 12|
    +--------+---+--------+---+---+

    Args:
        df: A batch or streaming DataFrame: one row for each change.
        keys: The columns that identify a row of the table. They are never NULL.
        sequence_by: The column, expression or Column by which the rows of a key are ordered, never NULL: numbers,
            texts (by their bytes), times, or a STRUCT of them; or several, which are compared one after the other, such
            as `["generation", "lsn"]`.
        deleted: A condition that holds for rows that delete their key; only their keys and sequences are read. NULL
            means that it does not hold. Default: no row deletes.
        ttl: For streams: an interval such as `7 days` after which a deleted key is forgotten, by the time at which its
            deletion was read. An older row that arrives later than this inserts the key again. Rows that are not
            deleted are never forgotten. A checkpoint continues with another `ttl`, or without. Default: for ever.
        buckets: For streams: the number of parts of the state. It is fixed for the life of a checkpoint.

    Returns:
        DataFrame: The column `row_kind`, then the columns of `df`. A batch has the last row of each key that is not
            deleted, as `+I`. In a stream, an epoch has at most one change of a key: `+I`, or `-U` and `+U`, or `-D`,
            each with the whole old or new row; none if only the sequence has changed. A column under `withWatermark`
            keeps its watermark. `-U` and `-D` have the time of the old row, so they may be late where the new row is
            not.

    Raises:
        RejectedError: SIGNATURE, if `keys` or `sequence_by` are empty, or `ttl` is no interval; SCHEMA_MISMATCH, if a
            column is missing, has a type that cannot be a key or a sequence, or is named `row_kind`. The query fails
            with SCHEMA_MISMATCH at NULL in a key or a sequence, and at two different rows of a key with the same
            sequence, and with STATE_MISMATCH for a checkpoint whose rows have a column of another type.
    """
    require_dataframe(df, "upserts")
    key_names = column_names(keys, "keys")
    if not isinstance(sequence_by, (str, Column, Sequence)):
        raise RejectedError("SIGNATURE", f"sequence_by has columns, as in sequence_by='lsn', not {sequence_by!r}")
    sequences = [sequence_by] if isinstance(sequence_by, (str, Column)) else list(sequence_by)
    check_analysable(df, "upserts")
    _check(df, key_names, sequences)
    if df.isStreaming:
        check_buckets(buckets)
    ttl_us = None if ttl is None else ttl_us_of(ttl, "ttl")
    changes = _Upserts.of(df, key_names, sequences, deleted)
    return changes.stream(buckets, ttl_us) if df.isStreaming else changes.batch()


def last_events(
    df: DataFrame,
    *,
    keys: Sequence[str],
    sequence: str,
    deleted: str,
    unsent: str,
    ttl: str | None,
    buckets: int,
) -> DataFrame:
    """Return the rows of events as `upserts` does, without the columns that tell what an event does.

    Args:
        df: The events.
        keys: The columns that identify a row.
        sequence: The column with the position of an event.
        deleted: The column that tells whether an event deletes its key.
        unsent: The column with the names of columns that an event did not send, because their values did not change:
            the row keeps their values from the event before it, also if that event arrives later. The query fails if
            there is none.
        ttl: For streams: as of `upserts`.
        buckets: For streams: the number of parts of the state.

    Raises:
        RejectedError: The errors of `upserts`.
    """
    _check(df, keys, [sequence])
    if df.isStreaming:
        check_buckets(buckets)
    ttl_us = None if ttl is None else ttl_us_of(ttl, "ttl")
    hidden_names = (sequence, deleted, unsent)
    changes = _Upserts.of(df, keys, [sequence], deleted, unsent, hidden=hidden_names, has_positions=True)
    return changes.stream(buckets, ttl_us) if df.isStreaming else changes.batch()


def _check(df: DataFrame, keys: Sequence[str], sequences: Sequence[object]) -> None:
    """Raise RejectedError SIGNATURE or SCHEMA_MISMATCH for keys and sequences that are not usable."""
    for role, values in (("keys", keys), ("sequence_by", sequences)):
        if not values:
            raise RejectedError("SIGNATURE", f"{role} is empty; name the columns, as in {role}=['id']")
    missing = [name for name in keys if not is_column(df, name)]
    if missing:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the key {missing[0]!r} is not one column among {', '.join(df.columns)}"
        )
    refuse_doubles(keys, "is twice among the keys")
    if ROW_KIND in map(str.casefold, df.columns):
        raise RejectedError(
            "SCHEMA_MISMATCH", f"there is a column {ROW_KIND} already, which the result adds; rename it in the input"
        )


@dataclass(frozen=True)
class _Upserts:
    """The changes of keys, under names that cannot collide: `key_0`..., the sequence, `is_deleted`, `value_0`...

    Args:
        df: The input.
        rows: The changes. The values of a deleted key are NULL.
        keys: The names of the keys.
        others: The names of the other columns.
        columns: The columns of the result, with the fields of the input.
        is_partial: Whether rows may lack values, which `unsent`, their last column, names.
        has_positions: Whether the sequence is a position in the log of a database.
    """

    df: DataFrame
    rows: DataFrame
    keys: tuple[str, ...]
    others: tuple[str, ...]
    columns: tuple[st.StructField, ...]
    is_partial: bool
    has_positions: bool

    @classmethod
    def of(
        cls,
        df: DataFrame,
        keys: Sequence[str],
        sequences: Sequence[str | Column],
        deletion: str | Column | None,
        unsent_column: str | None = None,
        *,
        hidden: Sequence[str] = (),
        has_positions: bool = False,
    ) -> _Upserts:
        """Resolve the columns. Raises RejectedError SCHEMA_MISMATCH."""
        _refuse_directions(df, sequences)
        parts = [column_of(df, each, f"the sequence {each!r}") for each in sequences]
        sequence = parts[0] if len(parts) == 1 else sf.struct(*(part.alias(f"f{at}") for at, part in enumerate(parts)))
        fold = name_key(df.sparkSession)
        folded_keys = set(map(fold, keys))
        columns = [each for each in df.schema if each.name not in hidden]
        others = [each.name for each in columns if fold(each.name) not in folded_keys]
        is_deleted = sf.lit(False)
        if deletion is not None:
            condition = column_of(df, deletion, f"the condition {deletion!r}").cast("boolean")
            is_deleted = sf.coalesce(condition, sf.lit(False))
        with reject_spark_errors("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the upserts"):
            rows = df.select(
                *(column_named(name).alias(f"key_{index}") for index, name in enumerate(keys)),
                _non_null_sequence(sequence, parts, sequences, keys).alias(SEQUENCE),
                is_deleted.alias(IS_DELETED),
                *(sf.when(~is_deleted, column_named(name)).alias(f"value_{at}") for at, name in enumerate(others)),
                *([] if unsent_column is None else [column_named(unsent_column).alias(UNSENT)]),
            )
            schema = rows.schema  # resolves the columns now
        check_keys(schema, keys)
        _check_sequence(schema[SEQUENCE].dataType)
        return cls(df, rows, tuple(keys), tuple(others), tuple(columns), unsent_column is not None, has_positions)

    def batch(self) -> DataFrame:
        """Return the last row of each key, without deleted keys."""
        keys = [f"key_{index}" for index in range(len(self.keys))]
        values = [f"value_{index}" for index in range(len(self.others))]
        row = sf.when(~sf.col(IS_DELETED), sf.struct(*values, sf.lit(True).alias("exists"))).alias(_ROW)
        sparse = self._sparse_columns(values)
        rows = self.rows.withColumn(UNSENT, self._unsent_columns(sparse)) if self.is_partial else self.rows
        # The greatest and the least hash of the rows with the greatest sequence differ if two of these rows do.
        hash_column = sf.expr(
            f"xxhash64({', '.join([IS_DELETED, *(equal_by(self.rows.schema[name]) for name in values)])})"
        )
        greatest_hash, least_hash = hash_column.alias("hash"), sf.bitwise_not(hash_column).alias("hash")
        # Spark sorts the rows before it aggregates them, so neither the hash nor a struct of the row is a column.
        # The row stands behind what orders it: MAX would compare it, and needs types with an order.
        aggregates = (
            sf.max_by(sf.struct(SEQUENCE, greatest_hash, row), sf.struct(SEQUENCE, greatest_hash)).alias("greatest"),
            sf.max(sf.struct(SEQUENCE, least_hash)).alias("least"),
            *([sf.max(sf.when(sf.col(IS_DELETED), sf.col(SEQUENCE))).alias(_LAST_DELETED)] if sparse else []),
            *(column for each in sparse for column in each.aggregates),
            *([_last_snapshot(), _last_change()] if self.has_positions else []),
        )
        try:
            groups = rows.groupBy(*keys).agg(*aggregates)
        except AnalysisException as error:
            if condition_of(error) != "UNSUPPORTED_TIME_TYPE":
                raise
            raise RejectedError(
                "SETTINGS",
                "a batch keeps the last row of each key by Spark's own aggregates, which take a TIME only with "
                "spark.sql.timeType.enabled=true; set it, or declare such columns as STRING",
            ) from None
        is_known = sf.col("greatest.hash") == sf.bitwise_not(sf.col("least.hash"))
        text = sf.to_json(sf.struct(*(sf.col(key).alias(name) for key, name in zip(keys, self.keys, strict=True))))
        wrong = raise_error("SCHEMA_MISMATCH", "two different rows of the key ", text, _NOT_KNOWN)
        if self.has_positions:  # the last row of one log is not before a snapshot of its partition
            is_other = (sf.col(f"{_SNAPSHOT}.{PARTITION}") == sf.col(f"greatest.{SEQUENCE}.{PARTITION}")) & (
                sf.col(f"{_SNAPSHOT}.{OFFSET}") > sf.col(f"greatest.{SEQUENCE}.{OFFSET}")
            )
            other_log = raise_error("SCHEMA_MISMATCH", "of the key ", text, f", {OTHER_LOG}")
            wrong = sf.when(is_other, other_log).otherwise(wrong)
            is_known &= sf.coalesce(~is_other, sf.lit(True))
            is_older = _is_of_other_log(f"greatest.{SEQUENCE}", _LAST_CHANGE)
            places = (sf.to_json(sf.col(each)) for each in (f"greatest.{SEQUENCE}", _LAST_CHANGE))
            places_text = (", after a change at ", next(places), " there is an event at ", next(places))
            other_generation = raise_error(
                "SCHEMA_MISMATCH", "of the key ", text, *places_text, f", {OTHER_GENERATION}"
            )
            wrong = sf.when(is_older, other_generation).otherwise(wrong)
            is_known &= sf.coalesce(~is_older, sf.lit(True))
        last = groups.withColumn(_ROW, sf.when(is_known, sf.col(f"greatest.{_ROW}")).otherwise(wrong))
        values_by_name = {value: sf.col(f"{_ROW}.{value}") for value in values} | {
            each.value: each.last(text) for each in sparse
        }
        inner = [*map(sf.col, keys), *values_by_name.values()]
        columns_and_positions = zip(self.columns, self._positions, strict=True)
        columns = (inner[position].alias(column.name) for column, position in columns_and_positions)
        return last.where(f"{_ROW} IS NOT NULL").select(sf.lit("+I").alias(ROW_KIND), *columns)

    def _unsent_columns(self, sparse: Sequence[_SparseColumn]) -> Column:
        """Return the names of columns that were not sent. The query fails if a column's older value cannot be kept."""
        unsent_names = sf.coalesce(sf.col(UNSENT), sf.array().cast("array<string>"))
        others = sf.array_except(unsent_names, sf.array(*(sf.lit(each.name) for each in sparse)).cast("array<string>"))
        what = sf.concat(sf.lit("a change did not send the column "), sf.array_join(others, ", "))
        wrong = raise_error("SCHEMA_MISMATCH", what, ", whose type has no large values; declare STRING")
        return sf.when(sf.size(others) > 0, wrong).otherwise(unsent_names).alias(UNSENT)

    def _sparse_columns(self, values: Sequence[str]) -> list[_SparseColumn]:
        """Return the columns that rows may keep from older ones: those whose values may be large."""
        if not self.is_partial:
            return []
        return [
            _SparseColumn(value, name)
            for value, name in zip(values, self.others, strict=True)
            if isinstance(self.rows.schema[value].dataType, _LARGE)
        ]

    @property
    def _positions(self) -> list[int]:
        """For each column of the result, its position among the keys and the other columns."""
        fold = name_key(self.df.sparkSession)
        places = {fold(name): place for place, name in enumerate((*self.keys, *self.others))}
        return [places[fold(column.name)] for column in self.columns]

    def stream(self, buckets: int, ttl_us: int | None) -> DataFrame:
        """Return the changes of each epoch."""
        names = self.rows.columns
        keys, values = names[: len(self.keys)], [f"value_{at}" for at in range(len(self.others))]
        unsent_columns = [UNSENT] if self.is_partial else []
        rows = as_months(self.rows.select(*keys, SEQUENCE, IS_DELETED, *values, *unsent_columns))
        schema = in_months(rows.schema)
        roles = [
            *map("the key {}".format, self.keys),
            "the sequence",
            "",
            *map("the column {}".format, self.others),
            *unsent_columns,
        ]
        fields = arrow_fields(schema, roles)
        types = {field.name: self.rows.schema[field.name].dataType for field in schema}
        check_returned([(f"the column {name}", types[value]) for name, value in zip(self.others, values, strict=True)])
        layout = UpsertLayout(
            keys=pa.schema([fields.field(name) for name in keys]),
            names=self.keys,
            sequence=fields.field(SEQUENCE).type,
            columns=pa.schema(
                [fields.field(value).with_name(name) for name, value in zip(self.others, values, strict=True)]
            ),
            buckets=buckets,
            ttl_us=ttl_us,
            is_partial=self.is_partial,
            has_positions=self.has_positions,
        )
        positions, inner = self._positions, [*keys, *values]
        spark_types = [nullable(types[inner[position]]) for position in positions]
        sent_types = storage_types_of(spark_types, [fields.field(inner[position]).type for position in positions])
        # A column with a watermark keeps it: its times come from the input, or from older rows.
        sparse = [{key: each.metadata[key] for key in (WATERMARK,) if key in each.metadata} for each in self.columns]
        names = [each.name for each in self.columns]
        names_types_sparse = zip(names, sent_types, sparse, strict=True)
        columns = [st.StructField(name, type_, metadata=metadata) for name, type_, metadata in names_types_sparse]
        schema = st.StructType([kind_column(nullable=False), *columns])
        advise(self.df)
        check_provider(self.df)
        check_workers(self.df.sparkSession)
        result = upsert_stream(layout, rows, schema, positions)
        return as_intervals(result, dict(zip(names, spark_types, strict=True)))


@dataclass(frozen=True)
class _SparseColumn:
    """A column of a batch whose value comes from the last row that has sent it.

    Args:
        value: The column among the rows.
        name: The user's name.
    """

    value: str
    name: str

    @property
    def aggregates(self) -> list[Column]:
        """The value, in a struct because it may be NULL, and its sequence."""
        is_sent = ~sf.col(IS_DELETED) & ~sf.array_contains(sf.col(UNSENT), self.name)
        sequence = sf.when(is_sent, sf.col(SEQUENCE))
        sent_value = sf.max_by(sf.struct(sf.col(self.value).alias("value")), sequence)
        return [sent_value.alias(f"{self.value}_sent"), sf.max(sequence).alias(f"{self.value}_at")]

    def last(self, key: Column) -> Column:
        """Return the value; the query fails if no row since the last deletion has sent it."""
        at, last_deletion = sf.col(f"{self.value}_at"), sf.col(_LAST_DELETED)
        is_there = at.isNotNull() & (last_deletion.isNull() | (at > last_deletion))
        wrong = raise_error(
            "SCHEMA_MISMATCH", f"a change did not send the column {self.name} of the key ", key, _NOT_SENT
        )
        return sf.when(is_there, sf.col(f"{self.value}_sent.value")).otherwise(wrong)


def _last_snapshot() -> Column:
    """Return where in Kafka the last row of a snapshot is."""
    places = sf.struct(sf.col(f"{SEQUENCE}.{OFFSET}"), sf.col(f"{SEQUENCE}.{PARTITION}"))
    return sf.max(sf.when(sf.col(f"{SEQUENCE}.{IS_SNAPSHOT}"), places)).alias(_SNAPSHOT)


def _last_change() -> Column:
    """Return the position of the row that was committed last, among rows that are not of a snapshot."""
    sequence = sf.col(SEQUENCE)
    time = sf.when(~sf.col(f"{SEQUENCE}.{IS_SNAPSHOT}"), sf.col(f"{SEQUENCE}.{TIME}"))
    return sf.max_by(sequence, time).alias(_LAST_CHANGE)


def _is_of_other_log(greatest: str, change: str) -> Column:
    """Return whether a change that was committed last is of another log than the one with the greatest position."""
    new, last = (sf.col(f"{each}.{TIME}") for each in (change, greatest))
    is_whole = (new % 1000 == 0) | (last % 1000 == 0)
    is_near = sf.col(f"{change}.{PARTITION}") == sf.col(f"{greatest}.{PARTITION}")
    is_ordered = is_near & (sf.col(f"{change}.{OFFSET}") < sf.col(f"{greatest}.{OFFSET}"))
    is_later = new - last > sf.when(is_whole, STATEMENT_MS).otherwise(0)
    return is_later & ~sf.coalesce(is_ordered, sf.lit(False))


def _refuse_directions(df: DataFrame, sequences: Sequence[object]) -> None:
    """Refuse parts of a sequence with ASC or DESC. Raises RejectedError SIGNATURE."""
    for each in sequences:
        text = text_of(each)
        if not is_column(df, text) and OrderKey.of(text).column != text:
            raise RejectedError(
                "SIGNATURE",
                f"the sequence {text!r} has a direction, and the row with the largest sequence is always the last; "
                "leave it out (if smaller numbers are later, negate them: sequence_by='-n')",
            )


def _check_sequence(type_: st.DataType) -> None:
    """Refuse sequences that cannot be compared. Raises RejectedError SCHEMA_MISMATCH."""
    if is_collated(type_):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"sequence_by is {type_.simpleString()}, and texts of a sequence are compared by their bytes; "
            "write for example sequence_by='name COLLATE UTF8_BINARY'",
        )
    arrow = arrow_fields(in_months(st.StructType([st.StructField(SEQUENCE, type_)])), ["the sequence"])
    if not has_order(arrow.field(0).type):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"sequence_by is {type_.simpleString()}; a sequence is a number, a text, a time or a STRUCT of them",
        )


def _non_null_sequence(
    sequence: Column, parts: Sequence[Column], sequence_names: Sequence[object], keys: Sequence[str]
) -> Column:
    """Return the sequence of a row. The query fails if a part of it, or of the key, is NULL."""
    named_parts = [*zip((f"the key {key}" for key in keys), map(column_named, keys), strict=True)]
    named_parts += zip((f"the sequence {each}" for each in sequence_names), parts, strict=True)
    what = reduce(
        lambda rest, each: sf.when(each[1].isNull(), each[0]).otherwise(rest), reversed(named_parts), sf.lit("")
    )
    error = raise_error("SCHEMA_MISMATCH", what, " of an upsert is NULL; leave such rows out")
    return sf.when(reduce(or_, (column.isNull() for _, column in named_parts)), error).otherwise(sequence)


def upsert_stream(
    layout: UpsertLayout, changes: DataFrame, schema: st.StructType, positions: Sequence[int]
) -> DataFrame:
    """Return the changelog of an upsert stream.

    Args:
        layout: The columns.
        changes: The input, in the schema of `UpsertLayout.rows`.
        schema: The columns of the result: the row kind, then the user's.
        positions: For each column of the user, its position among the keys and the other columns.
    """
    results = [*layout.keys, *layout.columns]
    names = schema.names[1:]
    unpacked_fields = [results[position].with_name(name) for position, name in zip(positions, names, strict=True)]
    unpack = Unpack(pa.schema([pa.field(ROW_KIND, pa.string()), *unpacked_fields]))
    return operator_plan(
        changes,
        UpsertProcessor(layout, positions),
        (arrow_function(Pack(layout.rows, _BOUNDS), "pack_upserts"), arrow_function(unpack, "upserts")),
        schema,
        keys=layout.keys.names,
        buckets=layout.buckets,
        names=(layout.names, ["upserts"]),
        modes=("Update", "None"),
        has_time=True,
    )


class UpsertProcessor(BucketOperator):
    """The operator of upsert streams.

    Args:
        layout: The columns.
        positions: For each column of the result, its position among the keys and the other columns.
    """

    def __init__(self, layout: UpsertLayout, positions: Sequence[int]) -> None:
        super().__init__(layout.rows, _BOUNDS, has_names=False)
        self._layout = layout
        self._positions = [*positions]
        self._now_us = 0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Process the changes of one bucket and epoch. All have the time of the epoch."""
        first = next(rows)
        self._now_us = first[EPOCH_US]
        return super().handleInputRows(key, chain([first], rows), timerValues)

    def arrive(self, bucket: int, blocks: Iterator[pa.RecordBatch], timers: Any) -> Iterator[Row]:  # noqa: ARG002
        """Store the changes of one bucket and epoch, and return what they change."""
        storage = self.storage(self.store())
        first = next(blocks, None)
        if first is None:  # bucket 0 is always called, to notice another query
            upsert_table(self._layout, storage).declare()
            return
        stats, kinds, changes = epoch_of(self._layout, storage, chain([first], blocks), self._now_us)
        shorts = pa.array([kind.short for kind in RowKind])  # not at import: pyarrow imports pandas for it
        columns = [shorts.take(kinds), *(changes.column(position) for position in self._positions)]
        names = [f"column_{index}" for index in range(len(columns))]
        blobs: list[bytes | None] = [*blobs_of(pa.RecordBatch.from_arrays(columns, names=names))]
        first_blob, *others = blobs or [None]
        yield bucket_row(first_blob, stats)
        for each in others:
            yield bucket_row(each, EpochStats())

    def expire(self, bucket: int, timers: Any, timer_info: Any) -> Iterator[Row]:  # noqa: ARG002
        """Do nothing: there are no timers."""
        return iter(())

    def check(self, stores: Callable[[str], RunStore]) -> None:
        upsert_table(self._layout, self.storage(stores("")))

    def end(self) -> None:
        """Do nothing: there are no exchanges."""
