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
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError
from foldflight.ext.changes.canalreader import UNREAD, canal_reader
from foldflight.functions import RowKind
from foldflight.spark.arguments import require_dataframe
from foldflight.spark.arrow import arrow_function
from foldflight.spark.columns import column_of, quote_name, reject_spark_errors
from foldflight.spark.errors import raise_error
from foldflight.spark.rowkinds import CHANGES, hint_for_columns, metadata_of
from foldflight.spark.versions.facts import TEXT_CASTS, require
from foldflight.spark.versions.sessions import name_key, repeated_name
from foldflight.spark.versions.types import arrow_type, is_utf8, spark_type

# VARCHAR(n) and CHAR(n) are read as STRING: Spark's readers have no such types, and databases check the lengths.
_BOUNDED_TEXT: Final = re.compile(r"\b(?:var)?char(?:acter)?\s*\(\s*\d+\s*\)", re.IGNORECASE)
# Types of databases that Spark does not know, and what to declare for them.
_OF_DATABASES: Final = {
    **dict.fromkeys(("TEXT", "UUID", "JSON", "JSONB", "CITEXT", "ENUM", "MEDIUMTEXT", "LONGTEXT"), "STRING"),
    **dict.fromkeys(("SERIAL", "INT4", "MEDIUMINT"), "INT"),
    **dict.fromkeys(("BIGSERIAL", "INT8"), "BIGINT"),
    **dict.fromkeys(("SMALLSERIAL", "INT2"), "SMALLINT"),
    "TIMESTAMPTZ": "TIMESTAMP",
    "DATETIME": "TIMESTAMP_NTZ",
    "FLOAT4": "FLOAT",
    **dict.fromkeys(("FLOAT8", "PRECISION"), "DOUBLE"),
    "BOOL": "BOOLEAN",
    **dict.fromkeys(("BYTEA", "BLOB", "VARBINARY"), "BINARY"),
    "MONEY": "DECIMAL(19,2)",
}
_VALUE = "value"
_DAMAGED: Final = "foldflight damaged"
_ANY_ROW = "MAP<STRING, STRING>"
_ROW = "row"
_EVENT: Final = "event"
_READ: Final = "read"
_PLACES: Final = ("topic", "partition", "offset")
# Members of an event's JSON that locate it, for errors: the position in the binary log, transaction ids and times.
_LOCATORS: Final = ("database", "table", "position", "gtid", "xid", "id", "es", "ts")
_PRECISION_MAX: Final = 38
_TIMES: Final = (st.DateType, st.TimestampType, st.TimestampNTZType)
_CAST_BY_TEXT: Final = (st.DecimalType, st.DoubleType, st.FloatType, *_TIMES)  # types whose texts are cast by Spark
_NOT_LATIN_1: Final = r"[^\x00-\xFF]"
_DIGITS: Final = r"^\s*[-+]?[0-9]+\s*$"
_INTEGERS: Final = st.DecimalType(38, 0)
_DATE: Final = r"^\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\s*$"
_TIMESTAMP: Final = (
    r"^\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"([ T][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]{0,6}0*)?)?\s*([zZ+-].*)?)?\s*$"
)
_OFFSET: Final = r":[0-9.]+\s*[+-]"
_NOT_ZERO: Final = r"^[^eE]*[1-9]"
_INFINITY: Final = r"^[+-]?(?i:inf|infinity)$"
# What Spark writes for a number of JSON with a fraction: the digits of the nearest DOUBLE.
_FRACTION: Final = r"^-?[0-9]+\.[0-9]+(E-?[0-9]+)?$"
_DOUBLE_DIGITS: Final = 15
_FRACTIONS: Final = st.DecimalType(38, 18)
_ESCAPE: Final = r"\\[^u]"
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = r"\\u[dD][89a-fA-F]"
_DISPLAY_CHARS_MAX: Final = 80
_TEXT: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# An exponent with which a number becomes a DOUBLE of zero; numbers of databases begin at 2e-308.
_TINY: Final = r"[0-9][eE]-0*(?:3[1-9][0-9]|[4-9][0-9]{2}|[1-9][0-9]{3})"
_TEXTS_ONLY: Final = rf"^\s*\[(?:\s*+\{{(?:\s*+{_TEXT}\s*+:\s*+(?:{_TEXT}|null)\s*+,?+)*+\s*+\}}\s*+,?+)*+\s*\]\s*$"
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

    >>> from foldflight.spark import split_changes
    >>> schema = "op STRING, old STRUCT<id: INT, amount: INT>, new STRUCT<id: INT, amount: INT>"
    >>> events = spark.createDataFrame([("insert", None, (1, 3)), ("update", (1, 3), (1, 5))], schema)
    >>> kinds = {"insert": "+I", "update": "+U", "delete": "-D"}
    >>> split_changes(events, op="op", before="old", after="new", row_kinds=kinds).show()
    +--------+---+------+
    |row_kind| id|amount|
    +--------+---+------+
    |      +I|  1|     3|
    |      -U|  1|     3|
    |      +U|  1|     5|
    +--------+---+------+
    """
    require_dataframe(df, "split_changes")
    return _split_changes(df, op, before, after, row_kinds, ignored, sf.lit(""))


def _split_changes(
    df: DataFrame,
    op: str | Column,
    before: str | Column,
    after: str | Column,
    row_kinds: Mapping[str, str],
    ignored_codes: Iterable[str],
    event: Column,
) -> DataFrame:
    """Return what `split_changes` does, given the name of an event, for errors."""
    old = column_of(df, before, f"the row before, {before!r},")
    new = column_of(df, after, f"the row after, {after!r},")
    with reject_spark_errors("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the events"):
        types = df.select(old.alias("before"), new.alias("after")).schema
    for name, field in zip((before, after), types, strict=True):
        if not isinstance(field.dataType, st.StructType):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{name} is {field.dataType.simpleString()}, not a struct; parse it with from_json first",
            )
    operation = column_of(df, op, f"the operation {op!r}")
    return _explode_rows(df, _rows_of(operation, (old, before), (new, after), row_kinds, ignored_codes, event))


def from_maxwell(
    df: DataFrame, schema: str | st.StructType, *, missing: Literal["refuse", "null"] = "refuse"
) -> DataFrame:
    """Return the events of Maxwell as rows with row kinds; `old` has the columns that an update changed.

    Args:
        df: A batch or streaming DataFrame with a column `value` of JSON, as Kafka gives it.
        schema: The columns of the table and their types in JSON, as text (`"id BIGINT, amount INT"`) or StructType.
        missing: What a declared column is that an event lacks: the query fails, or the column is NULL.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. The query fails if the table is dropped, at an
            event that is not one object of JSON in UTF-8, at a row that names a column twice, at an old row with a
            column that the new row lacks, and at a value that its declared type does not hold exactly, such as a
            DECIMAL that would be rounded, or an integer for a DATE or TIMESTAMP; also within an ARRAY, STRUCT or MAP.
            A STRING of an object or array is its JSON, in which numbers with a fraction are DOUBLE.

    Raises:
        RejectedError: SCHEMA_MISMATCH, when a column is missing or has another type; SIGNATURE, for another `missing`;
            SETTINGS on Spark 3.5 for a column of DECIMAL, FLOAT, DOUBLE, DATE or a timestamp.

    >>> from foldflight.spark import from_maxwell
    >>> event = '{"type": "update", "data": {"id": 1, "amount": 5}, "old": {"amount": 3}}'
    >>> from_maxwell(spark.createDataFrame([(event,)], "value STRING"), "id BIGINT, amount INT").show()
    +--------+---+------+
    |row_kind| id|amount|
    +--------+---+------+
    |      -U|  1|     3|
    |      +U|  1|     5|
    +--------+---+------+
    """
    require_dataframe(df, "from_maxwell")
    row = table_schema(df, schema)
    for each in row:
        for leaf in _leaf_types(each.dataType):
            if isinstance(leaf, _CAST_BY_TEXT):
                require(TEXT_CASTS, f"columns of {leaf.simpleString().upper()}, as {each.name} of from_maxwell,")
    check_missing(missing)
    wide = st.StructType([st.StructField(field.name, _parsed_type(field.dataType)) for field in row])
    require_columns(df, (_VALUE,), "name the column of JSON so")
    # Spark's own error for a damaged value names no column, so damaged values are read as NULL, and checked later.
    parsed_columns = {
        "texts": _strict_json(f"type STRING, data {_ANY_ROW}, old {_ANY_ROW}"),
        "values": _json(_event_type(wide)),
    }
    events = _with_event(df)
    event = _name_of(events)
    events = events.select(_VALUE, _EVENT, *(each.alias(name) for name, each in parsed_columns.items()))
    events = events.select(
        _checked_type(sf.col("texts"), "Maxwell", event).alias("type"), _EVENT, _VALUE, *parsed_columns
    )
    kind, data_texts, old_texts = sf.col("type"), sf.col("texts.data"), sf.col("texts.old")
    new_values, old_values = (
        sf.struct(*(_exact_value(each, of, event).alias(each.name) for each in wide)) for of in ("data", "old")
    )
    is_row, is_whole = kind.isin([*_MAXWELL]), sf.lit(True) if missing == "refuse" else None
    read_events = events.select(
        "type",
        _EVENT,
        sf.when(is_row, _convert_row(new_values, data_texts, row, is_whole, event)).alias("data"),
        sf.when(is_row, _convert_row(old_values, old_texts, row, None, event)).alias("old"),
        sf.map_keys(old_texts).alias("names"),
        sf.map_keys(data_texts).alias("all_names"),
    )
    names = sf.col("names"), sf.col("all_names")
    before = sf.when(kind == "update", _row_before(row, sf.col("data"), sf.col("old"), *names, event))
    changes = read_events.select("type", _EVENT, "data", before.otherwise(sf.col("data")).alias("old"))
    return _split_changes(changes, "type", "old", "data", _MAXWELL, _NO_ROWS_OF_MAXWELL, event)


def from_canal(
    df: DataFrame, schema: str | st.StructType, *, missing: Literal["refuse", "null"] = "refuse"
) -> DataFrame:
    """Return the events of Canal as rows with row kinds. One event may hold several rows, and all values are texts.

    Args:
        df: A batch or streaming DataFrame with a column `value` of JSON, as Kafka gives it.
        schema: The columns of the table, as text (`"id BIGINT, amount INT"`) or StructType. Values are cast to them;
            BINARY takes the bytes that Canal writes as text of ISO-8859-1.
        missing: What a declared column is that an event lacks: the query fails, or the column is NULL.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. The query fails if the table is truncated or
            dropped, at an event that is not one object of JSON, at a row that names a column twice or has a value that
            is no text, at an old row with a column that the new row lacks, and at a value that its declared type does
            not hold exactly: a DECIMAL or DATE would be cut.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a column is missing or has the wrong type, or if texts cannot be cast to a
            type of the schema; SIGNATURE, for another `missing`; SETTINGS on Spark 3.5.

    >>> from foldflight.spark import from_canal
    >>> event = '{"type": "INSERT", "data": [{"id": "1", "amount": "3"}], "old": null}'
    >>> from_canal(spark.createDataFrame([(event,)], "value STRING"), "id BIGINT, amount INT").show()
    +--------+---+------+
    |row_kind| id|amount|
    +--------+---+------+
    |      +I|  1|     3|
    +--------+---+------+
    """
    require_dataframe(df, "from_canal")
    require(TEXT_CASTS, "the values of from_canal, which are texts,")
    row = table_schema(df, schema)
    check_missing(missing)
    require_columns(df, (_VALUE,), "name the column of JSON so")
    of_tidb = "isDdl STRING, _tidb STRING"
    rows = _strict_json(f"type STRING, data ARRAY<{_ANY_ROW}>, old ARRAY<{_ANY_ROW}>, {of_tidb}")
    events = _read_of_canal(df, row, missing)
    # The name is a column, because each error contains it, and long expressions make Spark's planning slow.
    name = sf.when(sf.col(_VALUE).isNotNull(), _name_of(events)).alias(_EVENT)
    events = events.select(_VALUE, name, _READ, rows.alias("parsed"))
    event = sf.col(_EVENT)
    # Java compiles no long methods, in which also the rows that are read already would be passed on slowly. Spark
    # generates no code for a function that is given to `zip_with`, so it stands around what few events need.
    kinds = sf.array(_checked_type(sf.col("parsed"), "Canal", event))
    kind = sf.zip_with(kinds, sf.array(event), _checked_canal_type)[0]
    parts = sf.arrays_zip("parsed.data", sf.coalesce("parsed.old", sf.array()).alias("old"))
    # An event without rows gets one row of NULL, so that the checks below see it: some of these events are refused.
    no_row = sf.lit(None).cast(f"STRUCT<data: {_ANY_ROW}, old: {_ANY_ROW}>")
    parts = sf.when(sf.size(parts) > 0, parts).otherwise(sf.array(no_row))
    remaining_event = sf.when(sf.col(_VALUE).isNotNull(), sf.struct(kind.alias("type"), parts.alias("parts")))
    events = events.select(_EVENT, _READ, remaining_event.alias("left"))
    kind = sf.col("left.type")
    is_row = kind.isin([*_CANAL])

    def typed_row(texts: Column, at: Column) -> Column:
        is_whole = at == 0 if missing == "refuse" else None
        # The row is an argument of a function, because each column would repeat all columns of an expression.
        cast_rows = sf.array(_cast_texts(texts, row))
        rows = sf.transform(cast_rows, lambda values: _convert_row(values, texts, row, is_whole, event))
        return sf.when(is_row, rows[0])

    def convert_part(part: Column) -> Column:
        # One function converts both rows, because long expressions make Spark's planning slow.
        both = sf.transform(sf.array(part["data"], part["old"]), typed_row)
        names = (sf.map_keys(part[of]).alias(name) for of, name in (("old", "names"), ("data", "all_names")))
        return sf.struct(both.alias("rows"), *names)

    def rows_of(part: Column) -> Column:
        data, old = part["rows"][0], part["rows"][1]
        names = part["names"], part["all_names"]
        before = sf.when(kind == "UPDATE", _row_before(row, data, old, *names, event)).otherwise(data)
        return _rows_of(kind, (before, "old"), (data, "data"), _CANAL, _NO_ROWS_OF_CANAL, event)

    converted_parts = sf.transform("left.parts", convert_part)
    rows = sf.flatten(sf.zip_with(converted_parts, "left.parts", lambda part, _: rows_of(part)))
    refuse_duplicate_names(ROW_KIND, row.names)
    with reject_spark_errors(
        "SCHEMA_MISMATCH", "the values of Canal are texts, and Spark cannot cast them to the schema"
    ):
        # Rows that `_read_of_canal` has read get no array.
        exploded_rows = events.select(_READ, sf.inline_outer(sf.when(sf.col("left").isNotNull(), rows)))
    is_read = sf.col(_READ).isNotNull()

    def read_or_converted(name: str) -> Column:
        return sf.when(is_read, sf.col(f"{_READ}.{name}")).otherwise(sf.col(name))

    fields = (read_or_converted(f"{_ROW}.{quote_name(name)}").alias(name) for name in row.names)
    kinds = read_or_converted(ROW_KIND).alias(ROW_KIND, metadata=metadata_of(CHANGES))
    return exploded_rows.where(is_read | sf.col(ROW_KIND).isNotNull()).select(kinds, *fields)


def _rows_of(
    op: Column,
    before: tuple[Column, str | Column],
    after: tuple[Column, str | Column],
    row_kinds: Mapping[str, str],
    ignored_codes: Iterable[str],
    event: Column,
) -> Column:
    """Return an array of the row kinds and rows that an event stands for; NULL if it changes no row.

    Args:
        op: The operation of the event.
        before: The old row, and the name of its column, for errors.
        after: The new row, and the name of its column.
        row_kinds: The row kind for each operation, as in `split_changes`.
        ignored_codes: The operations that change no row.
        event: The name of the event, for errors.
    """
    old, new = _require_row(*before, "old", event), _require_row(*after, "new", event)
    updates = [("-U", old), (_UPDATES, new)]
    changes = {
        RowKind.INSERT: [(_INSERTS, new)],
        RowKind.UPDATE_BEFORE: updates,
        RowKind.UPDATE_AFTER: updates,
        RowKind.DELETE: [(_DELETES, old)],
    }
    code = op.cast("string")
    rows_by_code = sf.when(code.isin([*ignored_codes]), sf.lit(None))
    for code_text, kind in row_kinds.items():
        row_changes = changes[RowKind.parse(kind)]
        structs = (sf.struct(sf.lit(each).alias(ROW_KIND), row.alias(_ROW)) for each, row in row_changes)
        rows_by_code = rows_by_code.when(code == sf.lit(code_text), sf.array(*structs))
    known_codes = ", ".join(map(str, row_kinds))
    wrong = _raise_mismatch(
        sf.concat(sf.lit("the operation of an event is "), sf.coalesce(code, sf.lit("NULL"))),
        f", which is not one of {known_codes}; remove such events from the input, or start again from a snapshot",
        event,
    )
    return rows_by_code.otherwise(wrong)


def _explode_rows(df: DataFrame, rows: Column) -> DataFrame:
    """Return one row for each item of `rows`, an array of row kinds and rows for each event."""
    with reject_spark_errors("SCHEMA_MISMATCH", "Spark cannot resolve the columns of the events"):
        exploded_rows = df.select(sf.inline(rows))
        refuse_duplicate_names(ROW_KIND, exploded_rows.select(f"{_ROW}.*").columns)
    return exploded_rows.select(sf.col(ROW_KIND).alias(ROW_KIND, metadata=metadata_of(CHANGES)), f"{_ROW}.*")


def _require_row(row: Column, name: object, which: str, event: Column) -> Column:
    """Return a row; the query fails if it is NULL."""
    what = f"an event lacks its {which} row" + (f", {name}" if isinstance(name, str) else "")
    remedy = "; let the database send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"
    return sf.coalesce(row, _raise_mismatch(sf.lit(what), remedy if which == "old" else "", event))


def _raise_mismatch(what: Column, remedy: str, event: Column) -> Column:
    return raise_error("SCHEMA_MISMATCH", what, remedy, event)


def _with_event(df: DataFrame) -> DataFrame:
    """Return the events that are not NULL, and a column `event` that identifies each of them in errors."""
    place_names = [name for name in (_VALUE, *_PLACES) if name in df.columns]
    texts = [sf.col(name).cast("string").alias(name) for name in place_names]
    return df.where(sf.col(_VALUE).isNotNull()).select(_VALUE, sf.struct(*texts).alias(_EVENT))


def _read_of_canal(df: DataFrame, row: st.StructType, missing: str) -> DataFrame:
    """Read Canal's events in Python, where that is quick. `read` has the rows; `value` has the events that remain."""
    local = {each.name: _read_type(each.dataType) for each in row}
    reader = canal_reader(local, fills_missing=missing == "null")
    if reader is None:
        row_type = st.StructType([st.StructField(each.name, each.dataType) for each in row])
        nothing = st.StructType([st.StructField(ROW_KIND, st.StringType()), st.StructField(_ROW, row_type)])
        return _with_event(df).select("*", sf.lit(None).cast(nothing).alias(_READ))
    place_names = [name for name in (_VALUE, *_PLACES) if name in df.columns]
    places = (sf.col(name).cast("string").alias(name) for name in place_names[1:])
    messages = df.where(sf.col(_VALUE).isNotNull()).select(sf.col(_VALUE).cast("binary").alias(_VALUE), *places)
    columns = [st.StructField(f"field_{at}", spark_type(type_)) for at, type_ in enumerate(local.values())]
    schema = st.StructType(
        [st.StructField(ROW_KIND, st.StringType()), *columns, st.StructField(UNREAD, messages.schema)]
    )
    read_rows = messages.mapInArrow(arrow_function(reader, "from_canal"), schema)
    # This cast applies the time zone of the session to TIMESTAMP, as a cast of the text would.
    fields = (sf.col(each.name).cast(own.dataType).alias(own.name) for each, own in zip(columns, row, strict=True))
    rows = sf.struct(sf.col(ROW_KIND), sf.struct(*fields).alias(_ROW))
    texts = (sf.col(f"{UNREAD}.{name}").cast("string").alias(name) for name in place_names)
    return read_rows.select(
        sf.col(f"{UNREAD}.{_VALUE}").alias(_VALUE),
        sf.struct(*texts).alias(_EVENT),
        sf.when(sf.col(ROW_KIND).isNotNull(), rows).alias(_READ),
    )


def _read_type(type_: st.DataType) -> pa.DataType:
    """Return the Arrow type for Canal's texts in Python: TIMESTAMP has no zone yet; null means that Spark must cast."""
    if isinstance(type_, st.TimestampType):
        return pa.timestamp("us")
    try:
        return arrow_type(type_)
    except RejectedError:
        return pa.null()


def _name_of(events: DataFrame) -> Column:
    """Return text that identifies an event in errors: topic, partition and offset, and the locators in its JSON."""
    event = sf.col(_EVENT)
    fields = events.schema[_EVENT].dataType
    assert isinstance(fields, st.StructType)
    places = [sf.concat(sf.lit(f"{name} "), event[name]) for name in fields.names if name != _VALUE]
    # from_json and to_json once, not an expression for each member: this text is part of the errors of all columns.
    locators = sf.to_json(sf.from_json(event[_VALUE], ", ".join(f"{name} STRING" for name in _LOCATORS)))
    return sf.concat(sf.lit(" (the event: "), sf.concat_ws(", ", *places, locators), sf.lit(")"))


def table_schema(df: DataFrame, schema: str | st.StructType) -> st.StructType:
    """Return the type of a table's rows. Raises RejectedError SCHEMA_MISMATCH."""
    row = _parse_schema(df, schema)
    name = repeated_name(row.names, name_key(df.sparkSession))
    if name is not None:
        raise RejectedError("SCHEMA_MISMATCH", f"the schema has two columns {name}; name each once")
    return row


def _parse_schema(df: DataFrame, schema: str | st.StructType) -> st.StructType:
    if isinstance(schema, st.StructType):
        if _BOUNDED_TEXT.search(schema.simpleString()) is None:
            return schema
        schema = ", ".join(f"{quote_name(each.name)} {each.dataType.simpleString()}" for each in schema)
    if not isinstance(schema, str):
        raise RejectedError(
            "SIGNATURE", f"the schema is a text such as 'id BIGINT, amount INT', or a StructType, not {schema!r}"
        )
    words = {word.upper() for word in re.findall(r"\w+", schema)}
    suggestions = [f"{name} is {sparks}" for name, sparks in _OF_DATABASES.items() if name in words]
    hint = f" ({', '.join(suggestions)} in Spark)" if suggestions else ""
    with reject_spark_errors("SCHEMA_MISMATCH", f"Spark cannot read the schema {schema!r}{hint}"):
        return df.sparkSession.createDataFrame([], _BOUNDED_TEXT.sub("STRING", schema)).schema


def _json(type_: st.StructType | str) -> Column:
    """Return the JSON in the column `value`; NULL for values of another type."""
    return sf.from_json(sf.col(_VALUE).cast("string"), type_)


def _strict_json(fields: str) -> Column:
    """Return the JSON in the column `value`, with a field `_DAMAGED`, which is not NULL for other values.

    Spark's parser also reads single quotes, and names such as NaN and -Infinity without quotes, which are no JSON.
    """
    options = {"columnNameOfCorruptRecord": _DAMAGED, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    return sf.from_json(sf.col(_VALUE).cast("string"), f"{fields}, `{_DAMAGED}` STRING", options)


def _checked_type(parsed: Column, tool: str, event: Column) -> Column:
    """Return the type of an event; the query fails at an event without one, or that is not JSON.

    Spark's parser takes the last of two members of one name, reads no further than the end of an object, and replaces
    bytes that are no character. So all of these are refused here.
    """
    text = sf.col(_VALUE).cast("string")
    display_value = sf.coalesce(sf.substring(text, 1, _DISPLAY_CHARS_MAX), sf.lit("bytes that are no text"))

    def refuse(what: str) -> Column:
        return _raise_mismatch(sf.concat(sf.lit(f"an event {what}: "), display_value), "", event)

    type_ = parsed["type"]
    names = sf.json_object_keys(text)
    is_alone = sf.json_array_length(sf.concat(sf.lit("["), text, sf.lit("]"))) == 1
    has_escapes = text.contains("\\ud") | text.contains("\\uD")
    escapes = sf.regexp_replace(sf.regexp_replace(text, _ESCAPE, ""), _PAIR, "")
    return (
        sf.when(type_.isNull() | parsed[_DAMAGED].isNotNull(), refuse(f"is not JSON of {tool}, or has no type"))
        .when(~is_utf8(sf.col(_VALUE)), refuse("is not UTF-8"))
        .when(sf.size(names) != sf.size(sf.array_distinct(names)), refuse("has two members of one name"))
        .when(~sf.coalesce(is_alone, sf.lit(False)), refuse("has other text behind it"))
        .when(has_escapes & escapes.rlike(_HALF), refuse("has half of a surrogate pair, which is no character"))
        .when(
            text.rlike(_TINY) & sf.regexp_replace(text, _TEXT, "").rlike(_TINY),
            refuse("has a number that no type holds"),
        )
        .otherwise(type_)
    )


def _checked_canal_type(kind: Column, event: Column) -> Column:
    """Return the type of an event; the query fails at events of other tools in the format of Canal."""
    remedy = "; let it write Debezium's format (protocol=debezium), and use from_debezium(df, schema, keys=...)"
    is_tidb = sf.col("parsed._tidb").isNotNull() | (kind == "TIDB_WATERMARK")
    tidb = _raise_mismatch(sf.lit("an event is of TiCDC, which sends rows again in the format of Canal"), remedy, event)
    # Canal's own events have the member isDdl, and their values are texts or null.
    values = sf.get_json_object(sf.col(_VALUE).cast("string"), "$.data")
    old_values = sf.get_json_object(sf.col(_VALUE).cast("string"), "$.old")
    are_other = kind.isin([*_CANAL]) & ~(
        values.rlike(_TEXTS_ONLY) & sf.coalesce(old_values.rlike(_TEXTS_ONLY), sf.lit(True))
    )
    what = sf.lit("the values of an event are not all texts")
    remedy = (
        ", as Flink's canal-json writes it, with BINARY in another form than Canal's; let Flink write debezium-json, "
        "and use from_debezium(df, schema, binary='base64')"
    )
    flink = _raise_mismatch(what, remedy, event)
    # Spark would write a number as a text with the digits of the nearest DOUBLE.
    other = _raise_mismatch(what, ", as Canal writes them; what writes the events must write each as a text", event)
    is_flink = sf.col("parsed.isDdl").isNull()
    return sf.when(is_tidb, tidb).when(are_other & is_flink, flink).when(are_other, other).otherwise(kind)


def _exact_value(field: st.StructField, of: str, event: Column) -> Column:
    """Return a value of a parsed event of Maxwell; the query fails at a number that lost digits as a text.

    Spark writes a number with a fraction as the nearest DOUBLE. It has the digits that a DECIMAL has, too, or is
    refused.

    Args:
        field: The column.
        of: The row, data or old.
        event: The name of the event, for errors.
    """
    name = quote_name(field.name)
    place = f"values.{of}.{name}"
    value = sf.col(place)
    if not isinstance(field.dataType, st.StringType):
        return value
    exact = _json(f"{of} STRUCT<{name}: {_FRACTIONS.simpleString()}>")[of][field.name]
    is_other = ~exact.eqNullSafe(sf.expr(f"try_cast({place} AS {_FRACTIONS.simpleString()})"))
    return _refuse_rounded(value, is_other, field.name, event)


def _refuse_rounded(value: Column, is_other: Column, name: str, event: Column) -> Column:
    """Return a text; the query fails if it is a number with many digits, and `is_other` holds."""
    may_be_rounded = value.rlike(_FRACTION) & (value.contains("E") | (sf.length(value) > _DOUBLE_DIGITS))
    wrong = _raise_mismatch(
        sf.concat(sf.lit(f"the column {name} of an event has a number, of which STRING would keep "), value),
        "; give the column the type DECIMAL or DOUBLE in the schema",
        event,
    )
    return sf.when(may_be_rounded & is_other, wrong).otherwise(value)


def _leaf_types(type_: st.DataType) -> Iterator[st.DataType]:
    """Yield the types of the values in a type that are no arrays, structs or maps."""
    match type_:
        case st.ArrayType():
            yield from _leaf_types(type_.elementType)
        case st.MapType():
            yield from _leaf_types(type_.valueType)
        case st.StructType():
            for field in type_:
                yield from _leaf_types(field.dataType)
        case _:
            yield type_


def _event_type(rows: st.DataType) -> st.StructType:
    """Return the type of an event: its type, the new rows, and the changed columns of the old rows."""
    names_and_types: list[tuple[str, st.DataType]] = [("type", st.StringType()), ("data", rows), ("old", rows)]
    return st.StructType([st.StructField(*each) for each in names_and_types])


def check_missing(missing: object) -> None:
    """Refuse another value of the argument `missing`."""
    if missing not in ("refuse", "null"):
        raise RejectedError("SIGNATURE", f"missing is 'refuse' or 'null', not {missing!r}")


def _parsed_type(type_: st.DataType) -> st.DataType:
    """Return the type with which from_json reads a value, before it is cast: a longer DECIMAL, and STRING for times."""
    # from_json rounds a DECIMAL to its scale without an error, and fails at dates with an error that names no column.
    match type_:
        case st.DecimalType():
            return st.DecimalType(_PRECISION_MAX, _PRECISION_MAX - (type_.precision - type_.scale))
        case st.ArrayType():
            return st.ArrayType(_parsed_type(type_.elementType))
        case st.MapType():
            return st.MapType(type_.keyType, _parsed_type(type_.valueType))
        case st.StructType():
            return st.StructType([st.StructField(each.name, _parsed_type(each.dataType)) for each in type_])
    return st.StringType() if isinstance(type_, _TIMES) else type_


def _cast_texts(texts: Column, row: st.StructType) -> Column:
    """Return a map of texts as a row of other types, with NULL for texts that cannot be cast.

    `try_cast` follows the ANSI rules in every session. Without them, `cast` would return 1 for the text 1.5.
    """
    fields = []
    for field in row:
        text = texts[field.name]
        if isinstance(field.dataType, st.BinaryType):
            cast = sf.when(~text.rlike(_NOT_LATIN_1), sf.encode(text, "ISO-8859-1"))
        else:
            cast = text.try_cast(_parsed_type(field.dataType))
        fields.append(cast.alias(field.name))
    return sf.when(texts.isNotNull(), sf.struct(*fields))


def _convert_row(values: Column, texts: Column, row: st.StructType, is_whole: Column | None, event: Column) -> Column:
    """Return a row of `values` with the types of `row`; the query fails at a value that they do not hold exactly.

    It fails, too, if the row names a column twice, since parsers of JSON may take either value.

    Args:
        values: The row, whose fields have the types of `_wide`. Values that cannot be converted are NULL, too.
        texts: The texts of the values, by column.
        row: The types.
        is_whole: A condition: where it holds, the query fails at a column that `texts` lacks. None: it never does.
        event: The name of the event, for errors.
    """
    fields = (
        _convert_value(values[each.name], texts[each.name], each.dataType, each.name, event).alias(each.name)
        for each in row
    )
    names = sf.map_keys(texts)
    names_text = sf.concat_ws(", ", names)
    repetition_error = _raise_mismatch(
        sf.concat(sf.lit("the row of an event has a column twice: "), names_text),
        "; what writes the events must name each once",
        event,
    )
    has_repeated_name = sf.size(names) != sf.size(sf.array_distinct(names))
    checked_row = sf.when(has_repeated_name, repetition_error)
    if is_whole is not None:
        # One expression checks all columns, because many functions over arrays make Spark's planning slow.
        missing_names = sf.array_except(sf.array(*map(sf.lit, row.names)), names)
        first = missing_names[0]
        lacks = _raise_mismatch(
            sf.concat(
                sf.lit("an event lacks the column "),
                first,
                sf.lit("; it has "),
                names_text,
                _did_you_mean(first, names),
            ),
            ". A column that was added later is NULL in older events with missing='null'",
            event,
        )
        checked_row = checked_row.when(is_whole & (sf.size(missing_names) > 0), lacks)
    return checked_row.when(texts.isNotNull(), sf.struct(*fields))


def _convert_nested(value: Column, text: Column, type_: st.DataType, name: str, event: Column) -> Column:
    """Return an array, struct or map with the values that `_convert_value` returns; the query fails likewise.

    A damaged value is NULL, as a value that is there as null; only the text, which is JSON, tells which one it is.
    """

    def convert_item(item: Column, item_text: Column, item_type: st.DataType, item_name: str) -> Column:
        if isinstance(item_type, st.StringType):
            # Within JSON a text has quotes, and a number none.
            is_number = ~text.contains(sf.concat(sf.lit('"'), item_text, sf.lit('"')))
            return _refuse_rounded(item, is_number, item_name, event)
        return _convert_value(item, item_text, item_type, item_name, event, is_nested=True)

    if isinstance(type_, st.ArrayType):
        element = type_.elementType
        texts = sf.from_json(text, "ARRAY<STRING>")
        result = sf.transform(texts, lambda each, at: convert_item(sf.get(value, at), each, element, name))
        return sf.when(value.isNotNull(), result)
    texts = sf.from_json(text, _ANY_ROW)
    names = sf.map_keys(texts)
    if isinstance(type_, st.MapType):
        of_map = type_.valueType
        result = sf.transform_values(texts, lambda key, each: convert_item(value[key], each, of_map, name))
    else:
        assert isinstance(type_, st.StructType)
        result = sf.struct(
            *(
                convert_item(value[each.name], texts[each.name], each.dataType, f"{name}.{each.name}").alias(each.name)
                for each in type_
            )
        )
    repetition_error = _raise_mismatch(
        sf.concat(sf.lit(f"the column {name} of an event has an object with a name twice: "), text),
        "; what writes the events must name each once",
        event,
    )
    is_repeated = sf.size(names) != sf.size(sf.array_distinct(names))
    return sf.when(is_repeated, repetition_error).when(value.isNotNull(), result)


def _convert_value(
    value: Column, text: Column, type_: st.DataType, column_name: str, event: Column, *, is_nested: bool = False
) -> Column:
    """Return a value with a type; the query fails at one that the type does not hold exactly.

    Args:
        value: The value, of the type `_wide`. NULL if it is of another one.
        text: The text of it.
        type_: The type.
        column_name: The name of the column, for errors.
        event: The name of the event, for errors.
        is_nested: Whether it is within another value.
    """
    name = type_.simpleString().upper()
    converted_value = value.try_cast(type_) if isinstance(type_, (st.DecimalType, *_TIMES)) else value
    is_wrong, reason = converted_value.isNull(), f"which cannot be cast to {name}"
    if isinstance(type_, (st.ArrayType, st.MapType, st.StructType)):
        converted_value = _convert_nested(value, text, type_, column_name, event)
    if isinstance(type_, st.DecimalType):
        surplus = text.rlike(rf"^[^.eE]*\.[0-9]{{{type_.scale}}}[0-9]*[1-9][0-9]*\s*$")
        is_lost = (converted_value == 0) & text.rlike(_NOT_ZERO)
        is_wrong, reason = (
            is_wrong | (converted_value != value) | surplus | is_lost,
            f"which {name} does not hold exactly",
        )
    elif isinstance(type_, (st.DoubleType, st.FloatType)):
        # MySQL writes a large DOUBLE with an exponent, so plain digits are a value of BIGINT or DECIMAL.
        # More digits than any DECIMAL has are refused, too.
        is_exact = text.try_cast(_INTEGERS) == converted_value.try_cast(_INTEGERS)
        is_rounded = text.rlike(_DIGITS) & ~sf.coalesce(is_exact, sf.lit(False))
        is_lost = (converted_value == 0) & text.rlike(_NOT_ZERO)
        # Within JSON, a number that is too large has become the text Infinity.
        is_named = sf.lit(False) if is_nested else text.rlike(_INFINITY)
        is_lost |= (sf.abs(converted_value) == float("inf")) & ~is_named
        is_wrong, reason = is_wrong | is_rounded | is_lost, f"which {name} does not hold exactly"
    elif isinstance(type_, st.DateType):
        is_wrong |= ~text.rlike(_DATE)
    elif isinstance(type_, (st.TimestampType, st.TimestampNTZType)):
        # A cast would read 12:30:00 as a time of today, and from_json would read integers as seconds.
        is_wrong |= ~text.rlike(_TIMESTAMP)
        if isinstance(type_, st.TimestampNTZType):  # a cast would leave out the offset
            is_wrong |= text.rlike(_OFFSET)
    wrong = _raise_mismatch(
        sf.concat(sf.lit(f"the column {column_name} of an event has the value '"), text, sf.lit("'")),
        f", {reason}; give the column another type in the schema, such as STRING",
        event,
    )
    return sf.when(text.isNull(), sf.lit(None)).when(is_wrong, wrong).otherwise(converted_value)


def _did_you_mean(name: Column, names: Column) -> Column:
    """Return "; did you mean NAME?" with the most similar of the names, or "" if all differ in many letters."""
    distances = sf.transform(
        names,
        lambda each: sf.struct(sf.levenshtein(sf.lower(each), sf.lower(name)).alias("distance"), each.alias("name")),
    )
    nearest = sf.array_min(distances)
    question = sf.concat(sf.lit("; did you mean "), nearest["name"], sf.lit("?"))
    few = sf.greatest(sf.lit(1), sf.length(name) / 3)
    return sf.when(nearest["distance"] <= few, question).otherwise("")


def _row_before(
    row: st.StructType, data: Column, old: Column, names: Column, all_names: Column, event: Column
) -> Column:
    """Return the row before an update: `old` for the fields in `names`, else `data`. NULL if `old` is NULL.

    The query fails if `names` are not all among `all_names`, the new row's: a changed value would be left out.
    """
    fields = (
        sf.when(sf.array_contains(names, name), old[name]).otherwise(data[name]).alias(name) for name in row.names
    )
    others = sf.array_except(names, all_names)
    what = sf.concat(sf.lit("the old row of an event has the column "), others[0], sf.lit(", which the new row lacks"))
    refused = sf.when(sf.size(others) > 0, _raise_mismatch(what, "", event))
    return refused.when(old.isNotNull(), sf.struct(*fields))


def refuse_duplicate_names(column_name: str, names: Iterable[str]) -> None:
    """Refuse events whose rows have a column that the result adds. Raises RejectedError SCHEMA_MISMATCH."""
    if column_name in map(str.casefold, names):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the rows already have a column {column_name}, which the result adds; rename it in the events",
        )


def require_columns(df: DataFrame, names: Iterable[str], remedy: str) -> None:
    """Refuse a DataFrame that lacks columns. Raises RejectedError SCHEMA_MISMATCH."""
    missing_names = [name for name in names if name not in df.columns]
    if missing_names:
        hint = hint_for_columns(df.columns) or remedy
        raise RejectedError(
            "SCHEMA_MISMATCH", f"there is no column {missing_names[0]} among {', '.join(df.columns)}; {hint}"
        )
