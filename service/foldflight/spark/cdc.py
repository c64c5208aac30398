"""Conversion of change data capture (CDC) events into rows with row kinds for `group_by`.

CDC tools write an update as one event that holds the old and the new row. An aggregate retracts the old row and
accumulates the new one, so each update is converted into two rows: `-U` and `+U`.

| written by | read with |
|---|---|
| Debezium | `from_debezium(df)`, or `from_debezium(df, schema)` for JSON |
| Maxwell | `from_maxwell(df, schema)` |
| Canal | `from_canal(df, schema)` |
| events with the old and the new row under other names (Hudi, AWS DMS with before images) | `split_changes(df, ...)` |
| Delta's change data feed | `group_by(df, ..., row_kind="_change_type", row_kinds=DELTA_CHANGES)` |
| Flink, Paimon (`+I`), Iceberg's changelog view (`UPDATE_BEFORE`) | `group_by(df, ..., row_kind="_change_type")` |

Events that hold only new rows, such as the files that AWS DMS writes to S3, are read by `foldflight.spark.upserts`,
which keeps the last row of each primary key: an update must retract the old row, which these events do not hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError
from foldflight.functions import RowKind
from foldflight.spark.columns import column_of, quoted, rejecting
from foldflight.spark.errors import raise_error

DELTA_CHANGES: Final = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}
"""The values of `_change_type` in Delta's change data feed, for `group_by(..., row_kinds=DELTA_CHANGES)`."""

# Spark reads JSON and DataFrames as STRING only. Databases check the lengths.
_BOUNDED_TEXT: Final = re.compile(r"\b(?:var)?char(?:acter)?\s*\(\s*\d+\s*\)", re.IGNORECASE)
_VALUE = "value"
_ANY_ROW = "MAP<STRING, STRING>"
_ROW = "row"
_INSERTS, _UPDATES, _DELETES = "+I", "+U", "-D"
_MAXWELL = {"insert": _INSERTS, "bootstrap-insert": _INSERTS, "update": _UPDATES, "delete": _DELETES}
_CANAL = {"INSERT": _INSERTS, "UPDATE": _UPDATES, "DELETE": _DELETES}
# Events that change no row. Events that truncate or drop a table are refused: row kinds cannot express them.
_NO_ROWS_OF_MAXWELL = (
    "bootstrap-start",
    "bootstrap-complete",
    "database-create",
    "database-alter",
    "table-create",
    "table-alter",
)
_NO_ROWS_OF_CANAL = ("CREATE", "ALTER", "CINDEX", "DINDEX", "RENAME", "QUERY")


def split_changes(
    df: DataFrame,
    *,
    op: str | Column,
    before: str | Column,
    after: str | Column,
    row_kinds: Mapping[str, str],
    ignored: Iterable[str] = (),
) -> DataFrame:
    """Return events that hold the old and the new row as rows with row kinds.

    Args:
        df: A batch or streaming DataFrame: one row for each event.
        op: The column, or expression, with the operation of an event.
        before: The old row, a struct; NULL for an insert.
        after: The new row, a struct of the same fields; NULL for a delete.
        row_kinds: The row kind for each value of `op`: `+I` accumulates `after`, `-D` retracts `before`, and `+U` (or
            `-U`) does both.
        ignored: Values of `op` of events that change no row.

    Returns:
        DataFrame: The column `row_kind`, then the fields of the rows. The query fails at an event whose `op` is in
            neither `row_kinds` nor `ignored`, or whose required row is NULL.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if columns cannot be resolved, rows are not structs or have a field `row_kind`,
            or `row_kinds` maps to a value that is not a row kind.
    """
    old = column_of(df, before, f"the row before, {before!r},")
    new = column_of(df, after, f"the row after, {after!r},")
    with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the events"):
        types = df.select(old.alias("before"), new.alias("after")).schema
    for name, field in zip((before, after), types, strict=True):
        if not isinstance(field.dataType, st.StructType):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{name} is {field.dataType.simpleString()}, not a struct; parse it with from_json first",
            )
    changes = {
        RowKind.INSERT: [(_INSERTS, _there(new, "new", after))],
        RowKind.UPDATE_AFTER: [("-U", _there(old, "old", before)), (_UPDATES, _there(new, "new", after))],
        RowKind.DELETE: [(_DELETES, _there(old, "old", before))],
    }
    changes[RowKind.UPDATE_BEFORE] = changes[RowKind.UPDATE_AFTER]
    by_op = {code: sf.array(*_changes(changes[RowKind.parse(kind)])) for code, kind in row_kinds.items()}
    return _split(df, column_of(df, op, f"the operation {op!r}"), by_op, ignored)


def from_maxwell(df: DataFrame, schema: str | st.StructType) -> DataFrame:
    """Return the events of Maxwell as rows with row kinds; `old` has the columns that an update changed.

    Args:
        df: A batch or streaming DataFrame with a column `value` of JSON, as Kafka gives it.
        schema: The columns of the table and their types in JSON, as text (`"id BIGINT, amount INT"`) or StructType.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. The query fails if the table is dropped.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when a column is missing or has another type.
    """
    row = table_schema(df, schema)
    names = sf.map_keys(_json(f"old {_ANY_ROW}")["old"])
    events = _parsed(df, _changed(row), names=names).select(f"{_VALUE}.*", "names")
    before = sf.when(sf.col("type") == "update", _overlaid(row, sf.col("data"), sf.col("old"), sf.col("names")))
    return split_changes(
        events.select("type", "data", before.otherwise(sf.col("data")).alias("old")),
        op="type",
        before="old",
        after="data",
        row_kinds=_MAXWELL,
        ignored=_NO_ROWS_OF_MAXWELL,
    )


def from_canal(df: DataFrame, schema: str | st.StructType) -> DataFrame:
    """Return the events of Canal as rows with row kinds. One event may hold several rows, and all values are texts.

    Args:
        df: A batch or streaming DataFrame with a column `value` of JSON, as Kafka gives it.
        schema: The columns of the table, as text (`"id BIGINT, amount INT"`) or StructType. Values are cast to them.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. The query fails if the table is truncated or
            dropped, and at a value that cannot be cast to the type of its column.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a column is missing or has the wrong type, or if texts cannot be cast to a
            type of the schema.
    """
    row = table_schema(df, schema)
    texts = st.StructType([st.StructField(field.name, st.StringType()) for field in row])
    names = sf.transform(_json(f"old ARRAY<{_ANY_ROW}>")["old"], sf.map_keys)
    read = _parsed(df, _changed(st.ArrayType(texts)), names=names).select(f"{_VALUE}.*", "names")
    rows = sf.arrays_zip("data", *(sf.coalesce(part, sf.array()).alias(part) for part in ("old", "names")))
    # Events without rows are kept, because some of them must be refused.
    events = read.select("type", sf.explode_outer(rows).alias(_ROW)).select("type", f"{_ROW}.*")
    data = sf.col("data")
    before = sf.when(sf.col("type") == "UPDATE", _overlaid(texts, data, sf.col("old"), sf.col("names")))
    typed = (_cast(data, row).alias("data"), _cast(sf.col("old"), row).alias("old"))
    with rejecting("SCHEMA_MISMATCH", "the values of Canal are texts, and Spark cannot cast them to the schema"):
        changed = events.select("type", data, before.otherwise(data).alias("old")).select("type", *typed)
    return split_changes(
        changed,
        op="type",
        before="old",
        after="data",
        row_kinds=_CANAL,
        ignored=_NO_ROWS_OF_CANAL,
    )


def _split(df: DataFrame, op: Column, by_op: Mapping[str, Column], ignored: Iterable[str]) -> DataFrame:
    """Return the rows of events, given the array of row kinds and rows for each code."""
    code = op.cast("string")
    chosen = sf.when(code.isin([*ignored]), sf.lit(None))
    for written, changes in by_op.items():
        chosen = chosen.when(code == sf.lit(written), changes)
    known = ", ".join(map(str, by_op))
    wrong = _refused(
        sf.concat(sf.lit("the operation of an event is "), sf.coalesce(code, sf.lit("NULL"))),
        f", which is not one of {known}; remove such events from the input, or start again from a snapshot",
    )
    with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the events"):
        rows = df.select(sf.inline(chosen.otherwise(wrong)))
        fields = rows.select(f"{_ROW}.*").columns
        if ROW_KIND in map(str.casefold, fields):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the rows already have a column {ROW_KIND}, which the result adds; rename it in the events",
            )
    return rows.select(ROW_KIND, f"{_ROW}.*")


def _changes(changes: Iterable[tuple[str, Column]]) -> Iterable[Column]:
    return (sf.struct(sf.lit(kind).alias(ROW_KIND), row.alias(_ROW)) for kind, row in changes)


def _there(row: Column, which: str, name: object) -> Column:
    """Return a row; the query fails if it is NULL."""
    what = f"an event lacks its {which} row" + (f", {name}" if isinstance(name, str) else "")
    remedy = "; let the database send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"
    return sf.coalesce(row, _refused(sf.lit(what), remedy if which == "old" else ""))


def _refused(what: Column, remedy: str) -> Column:
    return raise_error("SCHEMA_MISMATCH", what, remedy)


def table_schema(df: DataFrame, schema: str | st.StructType) -> st.StructType:
    """Return the type of a table's rows. Raises RejectedError SCHEMA_MISMATCH."""
    if isinstance(schema, st.StructType):
        if _BOUNDED_TEXT.search(schema.simpleString()) is None:
            return schema
        schema = ", ".join(f"{quoted(each.name)} {each.dataType.simpleString()}" for each in schema)
    if not isinstance(schema, str):
        raise RejectedError(
            "SIGNATURE", f"the schema is a text such as 'id BIGINT, amount INT', or a StructType, not {schema!r}"
        )
    with rejecting("SCHEMA_MISMATCH", f"Spark cannot read the schema {schema!r}"):
        return df.sparkSession.createDataFrame([], _BOUNDED_TEXT.sub("STRING", schema)).schema


def _parsed(df: DataFrame, envelope: st.StructType, **more: Column) -> DataFrame:
    """Return the events in the column `value` as structs, with additional columns and without tombstones."""
    require_columns(df, (_VALUE,), "name the column of JSON so")
    events = df.where(sf.col(_VALUE).isNotNull())
    return events.select(_json(envelope).alias(_VALUE), *(column.alias(name) for name, column in more.items()))


def _json(type_: st.StructType | str) -> Column:
    """Return the JSON in the column `value`; damaged JSON fails the query."""
    return sf.from_json(sf.col(_VALUE).cast("string"), type_, {"mode": "FAILFAST"})


def _changed(rows: st.DataType) -> st.StructType:
    """Return the type of an event: its type, the new rows, and the changed columns of the old rows."""
    names_and_types: list[tuple[str, st.DataType]] = [("type", st.StringType()), ("data", rows), ("old", rows)]
    return st.StructType([st.StructField(*each) for each in names_and_types])


def _cast(texts: Column, row: st.StructType) -> Column:
    """Return a row of texts as a row of other types; the query fails at a text that cannot be cast.

    `try_cast` follows the ANSI rules in every session. Without them, `cast` would return NULL, or 1 for the text 1.5.
    """
    return sf.when(texts.isNotNull(), sf.struct(*(_cast_field(texts[field.name], field) for field in row)))


def _cast_field(text: Column, field: st.StructField) -> Column:
    type_ = field.dataType.simpleString().upper()
    wrong = _refused(
        sf.concat(sf.lit(f"the column {field.name} of an event has the value '"), text, sf.lit("'")),
        f", which cannot be cast to {type_}; give the column another type in the schema, such as STRING",
    )
    return sf.coalesce(text.try_cast(field.dataType), sf.when(text.isNotNull(), wrong)).alias(field.name)


def _overlaid(row: st.StructType, data: Column, old: Column, names: Column) -> Column:
    """Return a row of `data` with the fields of `old`, which may be NULL, in their places; NULL if `old` is NULL."""
    fields = (
        sf.when(sf.array_contains(names, name), old[name]).otherwise(data[name]).alias(name) for name in row.names
    )
    return sf.when(old.isNotNull(), sf.struct(*fields))


def require_columns(df: DataFrame, names: Iterable[str], remedy: str) -> None:
    """Refuse a DataFrame that lacks columns. Raises RejectedError SCHEMA_MISMATCH."""
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"there is no column {missing[0]} among {', '.join(df.columns)}; {remedy}"
        )
