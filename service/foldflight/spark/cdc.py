"""Changes of a table, as tools for change data capture write them, as rows with row kinds for `group_by`.

These tools write an update as one event that holds the old and the new row. An aggregate takes the old row back and
adds the new one, so an update becomes two rows here: `-U` and `+U`.

| written by | read with |
|---|---|
| Debezium | `from_debezium(df)`, or `from_debezium(df, schema)` for JSON |
| Maxwell | `from_maxwell(df, schema)` |
| Canal | `from_canal(df, schema)` |
| events with the old and the new row under other names (Hudi, AWS DMS with before images) | `split_changes(df, ...)` |
| Delta's change data feed | `group_by(df, ..., row_kind="_change_type", row_kinds=DELTA_CHANGES)` |
| Flink, Paimon (`+I`), Iceberg's changelog view (`UPDATE_BEFORE`) | `group_by(df, ..., row_kind="_change_type")` |

Events that hold new rows only (the files that AWS DMS writes to S3) do not say what to take back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.layout import ROW_KIND
from foldflight.errors import RejectedError
from foldflight.functions import RowKind
from foldflight.spark.columns import column_of, rejecting

__all__ = ["DELTA_CHANGES", "from_canal", "from_debezium", "from_maxwell", "split_changes"]

DELTA_CHANGES: Final = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}
"""The values of `_change_type` in Delta's change data feed, for `group_by(..., row_kinds=DELTA_CHANGES)`."""

_VALUE = "value"
_ANY_ROW = "MAP<STRING, STRING>"
_ROW = "row"
_INSERTS, _UPDATES, _DELETES = "+I", "+U", "-D"
_DEBEZIUM = {"c": _INSERTS, "r": _INSERTS, "u": _UPDATES, "d": _DELETES}
_MAXWELL = {"insert": _INSERTS, "bootstrap-insert": _INSERTS, "update": _UPDATES, "delete": _DELETES}
_CANAL = {"INSERT": _INSERTS, "UPDATE": _UPDATES, "DELETE": _DELETES}
# Events that change no row. What empties or drops a table is not among them: it cannot be said with row kinds.
_NO_ROWS_OF_DEBEZIUM = ("m",)
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
        op: The column, or expression, that tells what an event does.
        before: The old row, a struct; NULL for an insert.
        after: The new row, a struct of the same fields; NULL for a delete.
        row_kinds: What the values of `op` mean: `+I` adds `after`, `-D` takes `before` back, and `+U` (or `-U`) does
            both.
        ignored: Values of `op` of events that change no row.

    Returns:
        DataFrame: The column `row_kind`, then the fields of the rows. The query fails at an event whose `op` is in
            neither list, or that lacks the row it needs.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when columns cannot be resolved, or rows are no structs or have a field
            `row_kind`; or when a meaning is no row kind.
    """
    old = column_of(df, before, f"the row before, {before!r},")
    new = column_of(df, after, f"the row after, {after!r},")
    with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the events"):
        types = df.select(old.alias("before"), new.alias("after")).schema
    for name, field in zip((before, after), types, strict=True):
        if not isinstance(field.dataType, st.StructType):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{name} is {field.dataType.simpleString()}, and rows are structs; parse it with from_json first",
            )
    changes = {
        RowKind.INSERT: [(_INSERTS, _there(new, "new", after))],
        RowKind.UPDATE_AFTER: [("-U", _there(old, "old", before)), (_UPDATES, _there(new, "new", after))],
        RowKind.DELETE: [(_DELETES, _there(old, "old", before))],
    }
    changes[RowKind.UPDATE_BEFORE] = changes[RowKind.UPDATE_AFTER]
    by_op = {code: sf.array(*_changes(changes[RowKind.parse(kind)])) for code, kind in row_kinds.items()}
    return _split(df, column_of(df, op, f"the operation {op!r}"), by_op, ignored)


def from_debezium(df: DataFrame, schema: str | st.StructType | None = None) -> DataFrame:
    """Return the events of Debezium as rows with row kinds.

    >>> from foldflight import connect
    >>> from foldflight.spark import from_debezium, group_by
    >>> def prices(events):  # what spark.readStream.format("kafka")...load() returns
    ...     orders = from_debezium(events, "customer STRING, amount BIGINT")
    ...     return group_by(orders, "customer", row_kind="row_kind").agg(total=connect("embedded:")["sum"]("amount"))

    Snapshots (`r`) and inserts (`c`) add a row, deletes (`d`) take one back, updates (`u`) do both, and messages (`m`)
    and tombstones are left out. The query fails at a truncated table (`t`), and at an update or a delete without the
    old row: PostgreSQL sends it after `ALTER TABLE ... REPLICA IDENTITY FULL`, MongoDB with pre-images. Debezium may
    send an event twice after a crash, and such a row counts twice.

    Args:
        df: A batch or streaming DataFrame: one row for each event. Without `schema` it has the columns `op`, `before`
            and `after`, as Avro gives them; else a column `value` of JSON, as Kafka gives it, with the schema of the
            message in it (`payload`) or without.
        schema: The columns of the table and their types in JSON, as text (`"id BIGINT, amount INT"`) or StructType.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when a column is missing or has another type.
    """
    if schema is None:
        _require(df, ("op", "before", "after"), "give the schema of the table to read JSON, or select('payload.*')")
        events = df.where(sf.col("op").isNotNull() | sf.col("before").isNotNull() | sf.col("after").isNotNull())
    else:
        row = _struct(df, schema)
        fields = [st.StructField("op", st.StringType()), st.StructField("before", row), st.StructField("after", row)]
        read = _parsed(df, st.StructType([*fields, st.StructField("payload", st.StructType(fields))]))
        envelope = sf.struct(*(sf.col(f"{_VALUE}.{field.name}") for field in fields))
        events = read.select(sf.coalesce(sf.col(f"{_VALUE}.payload"), envelope).alias(_VALUE)).select(f"{_VALUE}.*")
    return split_changes(
        events, op="op", before="before", after="after", row_kinds=_DEBEZIUM, ignored=_NO_ROWS_OF_DEBEZIUM
    )


def from_maxwell(df: DataFrame, schema: str | st.StructType) -> DataFrame:
    """Return the events of Maxwell as rows with row kinds; `old` has the columns that an update changed.

    Args:
        df: A batch or streaming DataFrame with a column `value` of JSON, as Kafka gives it.
        schema: The columns of the table and their types in JSON, as text (`"id BIGINT, amount INT"`) or StructType.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. The query fails where the table is dropped.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when a column is missing or has another type.
    """
    row = _struct(df, schema)
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
    """Return the events of Canal as rows with row kinds; one event has many rows, whose values are all texts.

    Args:
        df: A batch or streaming DataFrame with a column `value` of JSON, as Kafka gives it.
        schema: The columns of the table, as text (`"id BIGINT, amount INT"`) or StructType: texts are cast to them.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. The query fails where the table is truncated
            or dropped.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when a column is missing or has another type.
    """
    row = _struct(df, schema)
    texts = st.StructType([st.StructField(field.name, st.StringType()) for field in row])
    names = sf.transform(_json(f"old ARRAY<{_ANY_ROW}>")["old"], sf.map_keys)
    read = _parsed(df, _changed(st.ArrayType(texts)), names=names).select(f"{_VALUE}.*", "names")
    rows = sf.arrays_zip("data", *(sf.coalesce(part, sf.array()).alias(part) for part in ("old", "names")))
    # An event without rows stays: it may be one that must be refused.
    events = read.select("type", sf.explode_outer(rows).alias(_ROW)).select("type", f"{_ROW}.*")
    data = sf.col("data")
    before = sf.when(sf.col("type") == "UPDATE", _overlaid(texts, data, sf.col("old"), sf.col("names")))
    return split_changes(
        events.select("type", data.cast(row).alias("data"), before.otherwise(data).cast(row).alias("old")),
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
    known = ", ".join(by_op)
    wrong = _refused(
        sf.concat(sf.lit("an event is "), sf.coalesce(code, sf.lit("NULL"))),
        f", which is no change of rows; the codes are {known}. Leave such events out, or begin again from a snapshot",
    )
    with rejecting("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the events"):
        rows = df.select(sf.inline(chosen.otherwise(wrong)))
        fields = rows.select(f"{_ROW}.*").columns
        if ROW_KIND in map(str.casefold, fields):
            raise RejectedError(
                "SCHEMA_MISMATCH", f"a row has a column {ROW_KIND} itself, as the result would; rename it in the events"
            )
    return rows.select(ROW_KIND, f"{_ROW}.*")


def _changes(changes: Iterable[tuple[str, Column]]) -> Iterable[Column]:
    return (sf.struct(sf.lit(kind).alias(ROW_KIND), row.alias(_ROW)) for kind, row in changes)


def _there(row: Column, which: str, name: object) -> Column:
    """Return a row; the query fails where it is NULL."""
    what = f"an event lacks its {which} row" + (f", {name}" if isinstance(name, str) else "")
    remedy = "; let the database send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"
    return sf.coalesce(row, _refused(sf.lit(what), remedy if which == "old" else ""))


def _refused(what: Column, remedy: str) -> Column:
    return sf.raise_error(sf.concat(sf.lit("SCHEMA_MISMATCH: "), what, sf.lit(remedy)))


def _struct(df: DataFrame, schema: str | st.StructType) -> st.StructType:
    """Return the type of a table's rows. Raises RejectedError SCHEMA_MISMATCH."""
    if isinstance(schema, st.StructType):
        return schema
    if not isinstance(schema, str):
        raise RejectedError(
            "SIGNATURE", f"the schema is a text such as 'id BIGINT, amount INT', or a StructType, not {schema!r}"
        )
    with rejecting("SCHEMA_MISMATCH", f"Spark cannot read the schema {schema!r}"):
        return df.sparkSession.createDataFrame([], schema).schema


def _parsed(df: DataFrame, envelope: st.StructType, **more: Column) -> DataFrame:
    """Return the events in the column `value` as structs, and more columns; without tombstones."""
    _require(df, (_VALUE,), "name the column of JSON so")
    events = df.where(sf.col(_VALUE).isNotNull())
    return events.select(_json(envelope).alias(_VALUE), *(column.alias(name) for name, column in more.items()))


def _json(type_: st.StructType | str) -> Column:
    """Return the JSON in the column `value`; damaged JSON fails the query."""
    return sf.from_json(sf.col(_VALUE).cast("string"), type_, {"mode": "FAILFAST"})


def _changed(rows: st.DataType) -> st.StructType:
    """Return the type of an event with what was written, and of the old rows what has changed."""
    names_and_types: list[tuple[str, st.DataType]] = [("type", st.StringType()), ("data", rows), ("old", rows)]
    return st.StructType([st.StructField(*each) for each in names_and_types])


def _overlaid(row: st.StructType, data: Column, old: Column, names: Column) -> Column:
    """Return a row of `data` with the fields in place that `old` has, which may be NULL; without `old`, NULL."""
    fields = (
        sf.when(sf.array_contains(names, name), old[name]).otherwise(data[name]).alias(name) for name in row.names
    )
    return sf.when(old.isNotNull(), sf.struct(*fields))


def _require(df: DataFrame, names: Iterable[str], remedy: str) -> None:
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"there is no column {missing[0]} among {', '.join(df.columns)}; {remedy}"
        )
