"""Events of Debezium as rows with row kinds. An event that could be read in two ways is refused.

A schema block in the event says what each value means, so units and scales are read from it, for each event. Without it
a value whose meaning is not known, such as an integer for a TIMESTAMP, is refused until the user says what it is.
`debeziumreader` reads the events.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import DEAD_LETTER, ROW_KIND
from foldflight.errors import RejectedError
from foldflight.ext.changes.cdc import (
    check_missing,
    refuse_duplicate_names,
    require_columns,
    split_changes,
    table_schema,
)
from foldflight.ext.changes.connectvalues import Binary, Decimals, DescribedColumn, Intervals, Times, Words
from foldflight.ext.changes.debeziummessages import ROW_KINDS, SKIPPED, expression_of
from foldflight.ext.changes.debeziumreader import (
    DELETED,
    HEAD,
    KEY,
    LETTER,
    OFFSET,
    PARTITION,
    PAYLOAD,
    POSITION,
    SCHEMAS_MAX,
    SEQUENCE,
    UNSENT,
    VALUE,
    Reader,
    described_columns,
    is_block,
)
from foldflight.spark.arguments import column_names, require_dataframe
from foldflight.spark.arrow import arrow_function
from foldflight.spark.bucketed import observe_events
from foldflight.spark.deadletters import OnError, is_isolated
from foldflight.spark.pipelines import check_analysable
from foldflight.spark.rowkinds import kind_column
from foldflight.spark.upserts import last_events
from foldflight.spark.versions.sessions import is_case_sensitive
from foldflight.spark.versions.states import keep_operator
from foldflight.spark.versions.types import arrow_type, spark_type

_ENVELOPE: Final = ("op", "before", "after")
_AS_JSON: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_SPARKS_DECIMAL: Final = "decimal(10,0)"  # what DECIMAL means in Spark
_WRITTEN_DECIMAL: Final = re.compile(r"\b(?:decimal|dec|numeric)\s*\(\s*10\s*(?:,\s*0\s*)?\)", re.IGNORECASE)
_HEADS: Final = "foldflight.debezium_heads"
_HEADS_MAX: Final = 4  # each is compared with each event
_OF_KEYS: Final = (SEQUENCE, DELETED, UNSENT)


def from_debezium(
    df: DataFrame,
    schema: str | st.StructType | None = None,
    *,
    keys: str | Iterable[str] | None = None,
    decimals: Decimals | Mapping[str, Decimals] | None = None,
    times: Times | Mapping[str, Times] | None = None,
    binary: Binary | Mapping[str, Binary] | None = None,
    intervals: Intervals | Mapping[str, Intervals] | None = None,
    table: str | None = None,
    missing: Literal["refuse", "null"] = "refuse",
    replica_identity: Literal["full"] | None = None,
    ttl: str | None = None,
    buckets: int = 32,
    on_error: OnError = "fail",
) -> DataFrame:
    """Return the events of Debezium as rows with row kinds.

    >>> from foldflight.spark import from_debezium
    >>> event = '{"op": "u", "before": {"customer": "ann", "qty": 1}, "after": {"customer": "ann", "qty": 2}}'
    >>> events = spark.createDataFrame([(event,)], "value STRING")  # or spark.readStream.format("kafka")...load()
    >>> from_debezium(events, "customer STRING, qty INT").show()
    +--------+--------+---+
    |row_kind|customer|qty|
    +--------+--------+---+
    |      -U|     ann|  1|
    |      +U|     ann|  2|
    +--------+--------+---+

    `group_by(changes, "customer", row_kind="row_kind")` takes the old rows back.

    With the schema block (`value.converter.schemas.enable=true`), each event tells the units of its times and the
    scales of its decimals. Without it, a value that may mean several things fails the query with the column, the value,
    and what to write: an integer for TIMESTAMP or TIME (`times`), a text of digits or base64 for DECIMAL (`decimals`),
    a text that is both base64 and hexadecimal for BINARY (`binary`). Values are exact: one that the declared type would
    round fails the query, as do PostgreSQL's infinite times, and without `keys` large values that an update did not
    send.

    Snapshots (`r`) and inserts (`c`) accumulate a row, deletes (`d`) retract one, and updates (`u`) do both. Messages
    (`m`), heartbeats, transaction markers and changes of the schema are skipped, and tombstones without `keys`. The
    query fails at a truncated table (`t`), at an update or a delete whose `before` is NULL, and at a name that occurs
    twice in an object.

    PostgreSQL sends whole old rows only after `ALTER TABLE ... REPLICA IDENTITY FULL`. Without it the old row of a
    delete has its key, and in the other columns NULL, zero, an empty text, or their DEFAULT. A delete whose old row may
    be one fails the query, if `schema` is given. Kafka's `key` in the input and the schema block in the events tell
    this best. A row that the database does hold may look like this as well; it passes with `replica_identity="full"`.

    Args:
        df: A batch or streaming DataFrame: one row for each event. Without `schema` it has the columns `op`, `before`
            and `after`, as decoded from Avro, with the types of the result. Then the arguments that say how to read
            JSON, and those that need `keys`, are refused, and `missing` and `buckets` change nothing. With `schema` it
            has a column `value` of JSON, as read from Kafka, with or without the schema block; or these three columns,
            which are read as JSON without the block is, and `source` for `keys` and `table`.
        schema: The columns of the table, as text (`"id BIGINT, amount DECIMAL(10,2)"`) or StructType, as `schema_of`
            returns it. Columns that it leaves out are not read.
        keys: The columns of the primary key: the last row of each key is kept in the state (`upserts`), by the position
            in the log of the database. Then events that come again or in another order do no harm, `before` is not
            needed, tombstones delete (by the columns `key`, `partition` and `offset` of the input, without which they
            are refused; with `table`, those whose key has a schema block that names the table), a large value that an
            update did not send (`__debezium_unavailable_value`) stays as it was, and flattened events
            (`ExtractNewRecordState` with `add.fields=op,lsn` or `add.fields=op,source.file,source.pos,source.row`) are
            read, too.
        decimals: Without schema block: the connector's `decimal.handling.mode`, also by column: `{"amount": "string"}`,
            as all of these words. With `precise`, the declared type has the scale.
        times: Without schema block: the connector's `time.precision.mode`, if it is `connect`, `microseconds`,
            `nanoseconds` or `isostring`; for the default, `adaptive`, the unit of each column by name:
            `{"ordered": "microseconds"}`, with `milliseconds` for columns of up to three digits.
        binary: The connector's `binary.handling.mode`: `bytes`, `base64`, `base64-url-safe` or `hex`.
        intervals: `numeric` if no interval has months: with the connector's `interval.handling.mode=numeric`, its
            default, they are approximated, so its numbers are refused otherwise. They are INTERVAL DAY TO SECOND, as
            texts of the mode `string` without months are.
        table: Only events of this table, `"schema.table"` (MySQL: `"database.table"`), if a topic has several. `*`
            stands for any part of a name: `"inv.orders_*"` for the partitions of a table. Default: the query fails if a
            worker reads events of two tables.
        missing: What a declared column is that an event lacks: the query fails, or the column is NULL.
        replica_identity: `"full"`: the database logs whole old rows (PostgreSQL: REPLICA IDENTITY FULL; MySQL:
            `binlog_row_image=FULL`), so a delete of a row of zeros is one. Default: such deletes fail the query.
        ttl: For streams with `keys`: an interval after which a deleted key is forgotten, as of `upserts`.
        buckets: For streams with `keys`: the number of parts of the state, fixed for the life of a checkpoint.
        on_error: `isolate`, with `keys`: an event that is refused for what it alone has, such as a value, becomes a
            dead letter, and the row of its key stays as it was until its next event. A value that an update did
            not send is refused then, since the event that set it may be a dead letter. What concerns all events, such
            as a truncated table, events of two tables or without a position in the log, fails the query nevertheless.
            The events are read twice, once for the rows and once for the dead letters.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table. With `on_error="isolate"` also `dead_letter`,
            for `results` and `dead_letters`: NULL, or a struct of `code`, `message`, and the bytes `key` and `value` of
            the message, with NULL in the other columns.

    Raises:
        RejectedError: SIGNATURE for a word that is none of these, for a table without its schema, for a `ttl` that is
            no interval, and for dead letters without `keys`; SCHEMA_MISMATCH, if a column is missing or has the wrong
            type. The query fails with SCHEMA_MISMATCH at events that are refused, and with `keys` at an event of
            another log: the database committed it later than the last change of its key, and its position is lower, as
            after a failover without a new snapshot.
    """
    require_dataframe(df, "from_debezium")
    check_analysable(df, "from_debezium")
    encodings = {"decimals": decimals, "times": times, "binary": binary, "intervals": intervals}
    words = _words(**encodings)
    check_missing(missing)
    if replica_identity not in (None, "full"):
        raise RejectedError(
            "SIGNATURE", f"replica_identity is 'full' or left out, not {replica_identity!r}; others need keys="
        )
    if replica_identity is not None and keys is not None:
        raise RejectedError("SIGNATURE", "with keys= old rows are not read, so leave replica_identity out")
    if ttl is not None and keys is None:
        raise RejectedError("SIGNATURE", "ttl forgets deleted keys, and without keys= none are kept; leave it out")
    isolates = is_isolated(on_error)
    if isolates and keys is None:
        raise RejectedError(
            "SIGNATURE",
            "on_error='isolate' needs keys=: without them the next event of a row would retract what the event that is "
            "left out has not added; name the columns of the primary key",
        )
    if schema is None:
        if keys is not None or table is not None or replica_identity is not None or words != ({}, Words()):
            raise RejectedError("SIGNATURE", "the other arguments need the schema of the table; give it as well")
        require_columns(
            df, ("op", "before", "after"), "give the schema of the table to read JSON, or select('payload.*')"
        )
        events = df.where(sf.col("op").isNotNull() | sf.col("before").isNotNull() | sf.col("after").isNotNull())
        return split_changes(events, op="op", before="before", after="after", row_kinds=ROW_KINDS, ignored=SKIPPED)
    decoded_types = {} if VALUE in df.columns or not {*_ENVELOPE} <= {*df.columns} else _row_types(df)
    if decoded_types:
        df = _as_json(df)
    require_columns(df, (VALUE,), "name the column of JSON so")
    _check_table(table)
    row = st.StructType([st.StructField(each.name, each.dataType) for each in table_schema(df, schema)])
    key_names = None if keys is None else column_names(keys, "keys")
    _check_names(row, encodings, key_names)
    if isolates:
        refuse_duplicate_names(DEAD_LETTER, row.names)
    if isinstance(schema, str):
        _check_precision(schema, row)
    _check_texts(row, words[0], decoded_types)
    reader = Reader(
        types={each.name: arrow_type(each.dataType) for each in row},
        words={each.name: _for_decoded(words[0].get(each.name, words[1]), each, decoded_types) for each in row},
        table=table,
        fills_missing=missing == "null",
        is_case_sensitive=is_case_sensitive(df.sparkSession),
        keys=None if key_names is None else tuple(key_names),
        has_whole_rows=replica_identity is not None,
        is_stream=df.isStreaming,
        isolates=isolates,
        heads=_heads_of(schema),
    )
    values = [sf.col(name).cast("binary").alias(name) for name in _read_columns(df)] + _places(df)
    if reader.heads:
        values[:1] = _without_heads(reader.heads)
    if key_names is not None:
        types_of_keys = (spark_type(POSITION), st.BooleanType(), st.ArrayType(st.StringType()))
        output = [*row, *(st.StructField(name, type_) for name, type_ in zip(_OF_KEYS, types_of_keys, strict=True))]

        def keep_last_rows(rows: DataFrame) -> DataFrame:
            columns = {"sequence": SEQUENCE, "deleted": DELETED, "unsent": UNSENT}
            return last_events(rows, keys=key_names, **columns, ttl=ttl, buckets=buckets)

        if not isolates:
            return keep_last_rows(_rows(df.select(*values), reader, st.StructType(output)))
        output.append(st.StructField(DEAD_LETTER, spark_type(LETTER)))
        return _with_letters(_rows(df.select(*values), reader, st.StructType(output)), keep_last_rows)
    return _rows(df.select(*values), reader, st.StructType([kind_column(), *row]))


def _with_letters(rows: DataFrame, keep_last_rows: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Return the last rows of keys and the dead letters, which do not go through the state."""
    letter = sf.col(DEAD_LETTER)
    changes = keep_last_rows(rows.where(letter.isNull()).drop(DEAD_LETTER))
    nothing = (sf.lit(None).cast(each.dataType).alias(each.name, metadata=each.metadata) for each in changes.schema)
    letters = rows.where(letter.isNotNull()).select(*nothing, DEAD_LETTER)
    return keep_operator(changes.withColumn(DEAD_LETTER, sf.lit(None).cast(spark_type(LETTER))).union(letters), changes)


def _rows(events: DataFrame, reader: Reader, schema: st.StructType) -> DataFrame:
    """Return the rows of events. A stream of one table counts them in its progress, also while none have come."""
    rows = events.mapInArrow(arrow_function(reader, "from_debezium"), schema)
    if reader.table is None or not events.isStreaming:
        return rows
    is_row = sf.col(DEAD_LETTER).isNull() if reader.isolates else sf.lit(True)
    return observe_events(rows, reader.table, [sf.count_if(is_row).alias("table_rows")])


def _row_types(df: DataFrame) -> dict[str, st.DataType]:
    """Return the types of the columns of the rows in `after`, by their names in lower case."""
    row = df.schema["after"].dataType
    if not isinstance(row, st.StructType):
        raise RejectedError(
            "SCHEMA_MISMATCH", f"after is {row.simpleString()}, not a struct; parse it with from_json first"
        )
    return {each.name.casefold(): each.dataType for each in row}


def _as_json(df: DataFrame) -> DataFrame:
    """Return events that were decoded already, such as from Avro, as JSON in `value`, and their keys in `key`."""
    members = [name for name in (*_ENVELOPE, "source") if name in df.columns]
    is_event = reduce(or_, (sf.col(name).isNotNull() for name in _ENVELOPE))
    value = sf.when(is_event, sf.to_json(sf.struct(*members), _AS_JSON)).alias(VALUE)
    if KEY in df.columns and isinstance(df.schema[KEY].dataType, st.StructType):
        df = df.withColumn(KEY, sf.to_json(KEY, _AS_JSON))
    return df.select(value, *(name for name in (KEY, "topic", PARTITION, OFFSET) if name in df.columns))


def _for_decoded(words: Words, field: st.StructField, decoded_types: Mapping[str, st.DataType]) -> Words:
    """Return the words for a column that may have been decoded already: decimals are numbers then, and bytes bytes."""
    type_ = decoded_types.get(field.name.casefold())
    if isinstance(type_, st.DecimalType):
        return replace(words, decimals=None)
    if isinstance(type_, st.StringType) and isinstance(field.dataType, st.StringType):
        return replace(words, decimals="string")  # a text is no base64 of a decimal
    return replace(words, binary="base64") if isinstance(type_, st.BinaryType) else words


def _read_columns(df: DataFrame) -> list[str]:
    """Return the columns of bytes that the reader takes: the value, and the key as Kafka gives it."""
    types = (st.BinaryType, st.StringType)
    return [VALUE, *(each.name for each in df.schema if each.name == KEY and isinstance(each.dataType, types))]


def _heads_of(schema: str | st.StructType) -> tuple[bytes, ...]:
    """Return the texts with which events begin, up to their payload, if `schema_of` has seen them."""
    fields = schema.fields if isinstance(schema, st.StructType) else []
    return tuple(head.encode() for each in fields for head in (each.metadata or {}).get(_HEADS, ()))


def _without_heads(heads: Sequence[bytes]) -> list[Column]:
    """Return the values of events without a known head and the last brace, and the number of the head; NULL without.

    A schema block is several times as long as the rest. Spark's JVM compares and cuts it, so that it is not copied to
    Python.
    """
    value = sf.col(VALUE).cast("binary")
    number, rest = sf.lit(None).cast("int"), value
    for at, head in reversed([*enumerate(heads)]):
        begins = sf.startswith(value, sf.lit(head)) & sf.endswith(value, sf.lit(b"}"))
        number = sf.when(begins, sf.lit(at)).otherwise(number)
        length = sf.octet_length(value) - (len(head) + 1)
        rest = sf.when(begins, value.substr(sf.lit(len(head) + 1), length)).otherwise(rest)
    return [rest.alias(VALUE), number.alias(HEAD)]


def _places(df: DataFrame) -> list[Column]:
    """Return where in Kafka events are, as far as the input tells: the partition of the topic, and the offset."""
    parts = [sf.concat(sf.lit(f"{name} "), sf.col(name)) for name in ("topic", PARTITION) if name in df.columns]
    places = [sf.concat_ws(", ", *parts).alias(PARTITION)] if parts else []
    return [*places, *([sf.col(OFFSET).cast("bigint").alias(OFFSET)] if OFFSET in df.columns else [])]


def schema_of(events: DataFrame, *, table: str | None = None) -> st.StructType:
    """Return the columns of a table and their types, from the schema blocks of a batch of its events.

    Args:
        events: A batch DataFrame with a column `value` of JSON: a sample of the events.
        table: Only events of this table, `"schema.table"`, if there are several.

    Returns:
        StructType: For `from_debezium`. Columns of types without an exact reader, such as geometries, are STRING, and
            their values are refused. A `numeric` of PostgreSQL without a precision is DECIMAL(38, 18). The first column
            has the texts of schema blocks as metadata, which Spark cuts away from events before Python reads them.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if no event has a schema block, or a column has two types; SIGNATURE for a
            stream, and for a table without its schema.

    >>> from foldflight.spark import group_by, schema_of, to_debezium
    >>> orders = spark.createDataFrame([(1, "ann")], "id BIGINT, customer STRING")
    >>> schema_of(to_debezium(orders, keys="id")).simpleString()
    'struct<id:bigint,customer:string>'
    """
    require_dataframe(events, "schema_of")
    require_columns(events, (VALUE,), "name the column of JSON so")
    _check_table(table)
    if events.isStreaming:
        raise RejectedError("SIGNATURE", "schema_of reads a batch: take a sample of the events by spark.read")
    text = sf.col(VALUE).cast("string")
    parts = (sf.get_json_object(text, f"$.payload.source.{part}") for part in ("db", "schema", "table"))
    name = sf.concat_ws(".", *parts)
    head = sf.substring_index(text, PAYLOAD.decode(), 1).alias("head")
    blocks = events.select(sf.get_json_object(text, "$.schema").alias("block"), name.alias("name"), head)
    blocks = blocks.where("block IS NOT NULL AND get_json_object(block, '$.fields') IS NOT NULL")
    if table is not None:
        blocks = blocks.where(sf.col("name").rlike(f"^{expression_of(table)}$"))
    has_time = hasattr(st, "TimeType") and tuple(map(int, events.sparkSession.version.split(".")[:2])) >= (4, 1)
    types_by_column: dict[str, st.DataType] = {}
    rows = blocks.distinct().limit(SCHEMAS_MAX).collect()
    tables = sorted({row["name"] for row in rows if row["name"]})
    if table is None and len(tables) > 1:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"these events are of several tables, {', '.join(tables)}; name the one whose columns you want, as in "
            f"table={tables[0]!r}",
        )
    for block in {row["block"] for row in rows}:
        for column, description in described_columns(json.loads(block)).items():
            type_ = _spark_type(description, has_time=has_time)
            if types_by_column.setdefault(column, type_) != type_:
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"the column {column} is {types_by_column[column].simpleString()} in one event and "
                    f"{type_.simpleString()} in another; give the schema as text",
                )
    if not types_by_column:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"none of these events{'' if table is None else f' is of the table {table} and'} has a schema block; give "
            "the schema as text, or set value.converter.schemas.enable=true",
        )
    heads = sorted({row["head"] for row in rows if is_block(row["head"].encode())})[:_HEADS_MAX]
    metadata = {_HEADS: [f"{head}{PAYLOAD.decode()}" for head in heads]} if heads else None
    fields = [st.StructField(column, type_) for column, type_ in types_by_column.items()]
    # from_debezium has the JVM cut away what it knows by its text, which is faster, and changes nothing else.
    fields[0] = st.StructField(fields[0].name, fields[0].dataType, metadata=metadata)
    return st.StructType(fields)


def _spark_type(description: DescribedColumn, *, has_time: bool) -> st.DataType:
    name = description.name.rpartition(".")[2]
    if description.name == "org.apache.kafka.connect.data.Decimal":
        precision = min(38, _read_digits(description, "connect.decimal.precision") or 38)
        return st.DecimalType(precision, min(precision, _read_digits(description, "scale")))
    if name == "VariableScaleDecimal":
        return st.DecimalType(38, 18)
    if name in ("Date", "IsoDate"):
        return st.DateType()
    if name == "ZonedTimestamp":
        return st.TimestampType()
    if name.endswith("Timestamp"):
        return st.TimestampNTZType()
    if name in ("Time", "MicroTime", "NanoTime", "IsoTime"):
        return spark_type(pa.time64("us")) if has_time else st.StringType()
    if name in ("MicroDuration", "NanoDuration"):
        return st.StringType()
    if description.type == "array" and description.items is not None:
        return st.ArrayType(_spark_type(description.items, has_time=has_time))
    if description.type == "map" and description.values is not None:
        return st.MapType(st.StringType(), _spark_type(description.values, has_time=has_time))
    return _SPARK_TYPES.get(description.type, st.StringType())


def _read_digits(description: DescribedColumn, name: str) -> int:
    """Return a parameter that counts digits. It is 0 if it is missing or no number, and values are refused then."""
    text = description.parameter(name) or ""
    return int(text) if text.isdecimal() else 0


_SPARK_TYPES: Final[dict[str, st.DataType]] = {
    "int8": st.ByteType(),
    "int16": st.ShortType(),
    "int32": st.IntegerType(),
    "int64": st.LongType(),
    "float": st.FloatType(),
    "float32": st.FloatType(),
    "double": st.DoubleType(),
    "float64": st.DoubleType(),
    "boolean": st.BooleanType(),
    "bytes": st.BinaryType(),
}


def _words(**encodings: object) -> tuple[dict[str, Words], Words]:
    """Return the words by column, and the words for all other columns. Raises RejectedError SIGNATURE.

    Args:
        encodings: For each kind of values, a word, or words by column.
    """
    general: dict[str, object] = {}
    by_column: dict[str, dict[str, object]] = {}
    for what, word in encodings.items():
        if isinstance(word, Mapping):
            for name, of_column in word.items():
                _check_word(f"{what} of {name}", of_column, what)
                by_column.setdefault(name, {})[what] = of_column
        else:
            _check_word(what, word, what)
            general[what] = word
    return {name: Words(**{**general, **words}) for name, words in by_column.items()}, Words(**general)  # type: ignore[arg-type]


def _check_word(role: str, word: object, what: str) -> None:
    words = get_args(_WORDS[what])
    if word is not None and word not in words:
        hint = "; name the unit of each column: times={'ordered': 'microseconds'}" if word == "adaptive" else ""
        raise RejectedError("SIGNATURE", f"{role} is {word!r}, not one of {', '.join(words)}{hint}")


_WORDS: Final[dict[str, Any]] = {"decimals": Decimals, "times": Times, "binary": Binary, "intervals": Intervals}


def _check_table(table: str | None) -> None:
    """Raise RejectedError SIGNATURE for a name that no event has, which would skip all events without a word."""
    if table is not None and "." not in table:
        raise RejectedError(
            "SIGNATURE", f"table is {table!r}, without its schema; write 'schema.{table}' (MySQL: 'database.{table}')"
        )


def _check_precision(schema: str, row: st.StructType) -> None:
    """Refuse a DECIMAL without its precision, with which unscaled values would be other numbers."""
    bare = [each.name for each in row if _SPARKS_DECIMAL in each.dataType.simpleString()]
    if row.simpleString().count(_SPARKS_DECIMAL) > len(_WRITTEN_DECIMAL.findall(schema)):
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the schema has a DECIMAL without precision and scale ({', '.join(bare)}), which Spark takes for "
            "DECIMAL(10,0); write the numbers of the database, as in DECIMAL(10,2)",
        )


def _check_texts(row: st.StructType, words: Mapping[str, Words], decoded_types: Mapping[str, st.DataType]) -> None:
    """Refuse STRING for columns that are bytes: their texts would be base64."""
    for each in row:
        if not isinstance(each.dataType, st.StringType):
            continue
        if isinstance(decoded_types.get(each.name.casefold()), st.BinaryType):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the column {each.name} of the events is BINARY, and the schema has it as STRING; declare BINARY, or "
                "DECIMAL for the bytes of decimals='precise'",
            )
        if each.name in words and words[each.name].decimals == "precise":
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"decimals says 'precise' of the column {each.name}, and the schema has it as STRING, which has no "
                "scale; declare DECIMAL with the precision and scale of the database",
            )


def _check_names(row: st.StructType, encodings: Mapping[str, object], keys: Iterable[str] | None) -> None:
    for name in (ROW_KIND, *(() if keys is None else _OF_KEYS)):
        refuse_duplicate_names(name, row.names)
    for role, names in (
        *((what, words) for what, words in encodings.items() if isinstance(words, Mapping)),
        ("keys", keys),
    ):
        for name in names or ():
            if name not in row.names:
                near = difflib.get_close_matches(name, row.names, 1)
                hint = f"; did you mean {near[0]}?" if near else f": {', '.join(row.names)}"
                raise RejectedError("SCHEMA_MISMATCH", f"{role} names {name!r}, which is not in the schema{hint}")
