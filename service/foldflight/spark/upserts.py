"""Upsert streams, whose rows replace each other by key, as rows with row kinds.

The last row of each key is the state of an aggregate (`LatestRow`), so exactly-once state, restarts and checks of
checkpoints are those of `group_by`. A deleted key stays in the state with the sequence of its deletion, because an
older row that arrives late or again would revive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from foldflight.client import connect
from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError
from foldflight.functions import udaf
from foldflight.spark.columns import column_named, column_of, is_column, rejecting
from foldflight.spark.errors import raise_error
from foldflight.spark.grouping import group_by
from foldflight.spark.types import is_collated
from foldflight.spark.versions.sessions import is_case_sensitive

_SEQUENCE: Final = "foldflight sequence"
_ROW: Final = "foldflight row"


class _Latest:
    """The row with the greatest sequence so far; `row` is None if the key is deleted."""

    def __init__(self, sequence: Any = None, row: Any = None, seen: bool = False) -> None:
        self.sequence = sequence
        self.row = row
        self.seen = seen


@udaf(input_types=["S", "T"], result_type="T", state_type="STRUCT<sequence S, row T, seen BOOLEAN>")
class LatestRow:
    """Take the row with the greatest sequence. Two different rows with the same sequence are an error."""

    def create_accumulator(self) -> _Latest:
        return _Latest()

    def accumulate(self, accumulator: _Latest, sequence: Any, row: Any) -> None:
        if accumulator.seen:
            if _is_less(sequence, accumulator.sequence):
                return
            if not _is_less(accumulator.sequence, sequence) and not _is_same(row, accumulator.row):
                raise ValueError(
                    f"two different rows of this key have the sequence {sequence!r}, so which one is the last is not "
                    "known; add columns to sequence_by, such as the position in the log or the offset in Kafka"
                )
        accumulator.sequence = sequence
        accumulator.row = row
        accumulator.seen = True

    def merge(self, accumulator: _Latest, other: _Latest) -> None:
        if other.seen:
            self.accumulate(accumulator, other.sequence, other.row)

    def get_value(self, accumulator: _Latest) -> Any:
        return accumulator.row


def _is_less(one: Any, other: Any) -> bool:
    return bool(_ordered(one) < _ordered(other))


def _ordered(value: Any) -> Any:
    """Return what is less for the lesser values, as in Spark: a STRUCT by its fields, and NaN after all numbers."""
    if isinstance(value, dict):
        return tuple(map(_ordered, value.values()))
    if isinstance(value, list):
        return [*map(_ordered, value)]
    return (value != value, value) if isinstance(value, float) else value  # noqa: PLR0124 - NaN


def _is_same(one: Any, other: Any) -> bool:
    return one == other or repr(one) == repr(other)  # NaN is not equal to itself


def upserts(
    df: DataFrame,
    *,
    keys: str | Sequence[str],
    sequence_by: str | Column | Sequence[str | Column],
    deleted: str | Column | None = None,
    buckets: int = 32,
) -> DataFrame:
    """Return the rows of an upsert stream as rows with row kinds, for `group_by`, `over` and `write_table`.

    Each input row is the whole new row of its key, or says that the key is deleted. The state has the last row of each
    key, by `sequence_by`, so rows that arrive again, late or in another order change nothing that they should not.

    >>> from foldflight import connect
    >>> from foldflight.spark import group_by, upserts
    >>> def totals(events):  # rows of orders, with the columns op and lsn of a connector
    ...     orders = upserts(events, keys="id", sequence_by="lsn", deleted="op = 'd'")
    ...     return group_by(orders, "customer", row_kind="row_kind").agg(total=connect("embedded:")["sum"]("amount"))

    Args:
        df: A batch or streaming DataFrame: one row for each change.
        keys: The columns that identify a row of the table. They are never NULL.
        sequence_by: The column, expression or Column by which the rows of a key are ordered, never NULL; or several,
            compared one after the other, such as `["generation", "lsn"]`.
        deleted: A condition that holds for rows that delete their key; only their keys and sequences are read. NULL
            means that it does not hold. Default: no row deletes.
        buckets: For streams: the number of parts of the state. It is fixed for the life of a checkpoint.

    Returns:
        DataFrame: The column `row_kind`, then the columns of `df`. A batch has the last row of each key that is not
            deleted, as `+I`. In a stream, an epoch that changes a key has its old row as `-D` and its new row as `+I`,
            each if there is one. The event time of a `-D` is that of the old row.

    Raises:
        RejectedError: SIGNATURE, if `keys` or `sequence_by` are empty; SCHEMA_MISMATCH, if a column is missing, or
            there is a column `row_kind`. The query fails with SCHEMA_MISMATCH at NULL in a key or a sequence, and with
            USER_CODE at two different rows of a key with the same sequence.
    """
    key_names = [keys] if isinstance(keys, str) else list(keys)
    written = (
        list(sequence_by) if isinstance(sequence_by, Sequence) and not isinstance(sequence_by, str) else [sequence_by]
    )
    for role, given in (("keys", key_names), ("sequence_by", written)):
        if not given:
            raise RejectedError("SIGNATURE", f"{role} is empty; name the columns, as in {role}=['id']")
    missing = [name for name in key_names if not is_column(df, name)]
    if missing:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the key {missing[0]!r} is not one column among {', '.join(df.columns)}"
        )
    if ROW_KIND in map(str.casefold, df.columns):
        raise RejectedError(
            "SCHEMA_MISMATCH", f"there is a column {ROW_KIND} already, which the result adds; rename it in the input"
        )
    parts = [column_of(df, each, f"the sequence {each!r}") for each in written]
    sequence = parts[0] if len(parts) == 1 else sf.struct(*(part.alias(f"f{at}") for at, part in enumerate(parts)))
    folded = str if is_case_sensitive(df.sparkSession) else str.casefold
    key_columns = set(map(folded, key_names))
    others = [name for name in df.columns if folded(name) not in key_columns]
    row = sf.struct(*map(column_named, others)) if others else sf.struct(sf.lit(True).alias("exists"))
    if deleted is not None:
        row = sf.when(~sf.coalesce(column_of(df, deleted, f"the condition {deleted!r}"), sf.lit(False)), row)
    with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the upserts"):
        rows = df.select(
            *map(column_named, key_names),
            _known(sequence, parts, written, key_names).alias(_SEQUENCE),
            row.alias(_ROW),
        )
        sequence_type = rows.schema[_SEQUENCE].dataType  # resolves the columns now
    if is_collated(sequence_type):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"sequence_by is {sequence_type.simpleString()}, and texts of a sequence are compared by their bytes; "
            "write for example sequence_by='name COLLATE UTF8_BINARY'",
        )
    latest = connect(LatestRow)["latest_row"]
    if df.isStreaming:
        grouped = group_by(rows, *key_names, emit="changelog", buckets=buckets)
        kind = sf.when(sf.col(ROW_KIND).isin("-U", "-D"), "-D").otherwise("+I")
    else:
        grouped, kind = group_by(rows, *key_names), sf.lit("+I")
    found = grouped.agg(**{_ROW: latest(_SEQUENCE, _ROW)})
    values = {folded(name): column_named(name) for name in key_names}
    values |= {folded(name): sf.col(f"`{_ROW}`").getField(name) for name in others}
    there = found.where(sf.col(f"`{_ROW}`").isNotNull())
    return there.select(kind.alias(ROW_KIND), *(values[folded(name)].alias(name) for name in df.columns))


def _known(sequence: Column, parts: Sequence[Column], written: Sequence[object], keys: Sequence[str]) -> Column:
    """Return the sequence of a row. The query fails if a part of it, or of the key, is NULL."""
    named = [*zip((f"the key {key}" for key in keys), map(column_named, keys), strict=True)]
    named += zip((f"the sequence {each}" for each in written), parts, strict=True)
    what = reduce(lambda rest, each: sf.when(each[1].isNull(), each[0]).otherwise(rest), reversed(named), sf.lit(""))
    error = raise_error("SCHEMA_MISMATCH", what, " of an upsert is NULL; leave such rows out")
    return sf.when(reduce(or_, (column.isNull() for _, column in named)), error).otherwise(sequence)
