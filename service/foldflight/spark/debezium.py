"""Events of Debezium as rows with row kinds: right by default, or refused.

A schema block in the event says what each value means, so units and scales are read from it, for each event. Without it
a value whose meaning is not known, such as an integer for a TIMESTAMP, is refused until the user says what it is.
Events are decoded in Python, because the meaning may change from event to event: `connectvalues` says what each value
means, and `connectcolumns` reads the values of a batch together.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError
from foldflight.spark.cdc import refuse_taken, require_columns, split_changes, table_schema
from foldflight.spark.connectcolumns import UNPROVEN, ReadColumn, column_reader
from foldflight.spark.connectvalues import (
    COLUMN,
    Binary,
    Decimals,
    Decode,
    Described,
    Intervals,
    NotSent,
    Refused,
    Times,
    Words,
    decoder,
)
from foldflight.spark.debeziumjson import UNPARSED, ParseEvent, event_parser, row_values
from foldflight.spark.debeziumkinds import FLATTENED, ROW_KINDS, SKIPPED, changes_no_row, check_operation, is_of
from foldflight.spark.dialects import of_event
from foldflight.spark.replicaidentity import OldRows, defaults_of, has_own_values
from foldflight.spark.rowkinds import kind_column
from foldflight.spark.tombstones import Tombstones
from foldflight.spark.upserts import last_events
from foldflight.spark.versions.sessions import is_case_sensitive
from foldflight.spark.versions.types import arrow_type, spark_type
from foldflight.spark.worker import freeze_garbage_collector

Row = dict[str, Any]
Event = dict[str, Any]

_VALUE: Final = "value"
_ENVELOPE: Final = ("op", "before", "after")
_AS_JSON: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_KEY: Final = "key"
_PARTITION: Final = "partition"
_OFFSET: Final = "offset"
_SEQUENCE: Final = "debezium_sequence"
_DELETED: Final = "debezium_deleted"
_UNSENT: Final = "debezium_unsent"
_OF_KEYS: Final = (_SEQUENCE, _DELETED, _UNSENT)
_PAYLOAD: Final = b',"payload":'
_SOURCE: Final = ("schema", "table", "db", "lsn", "file", "pos", "row")  # what `is_of` and `_position` read
_NO_ENVELOPE: Final = FLATTENED | {"schema"}
_UNPARSED: Final = object()  # an event that is left to `json`
_WHOLE_ROWS: Final = "let the database send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"
_SCHEMAS_MAX: Final = 1000  # schema blocks kept in memory; a topic has one for each version of its table
_SHOWN_CHARS: Final = 80
_LOG_DIGITS: Final = 10  # MySQL's binary logs are numbered up to 2**31
# Position in the log, then in Kafka: an event may be sent again at a later offset.
_POSITION: Final = st.StructType(
    [
        st.StructField("log", st.StringType()),
        st.StructField("position", st.LongType()),
        st.StructField("row", st.LongType()),
        st.StructField("offset", st.LongType()),
    ]
)


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
    buckets: int = 32,
) -> DataFrame:
    """Return the events of Debezium as rows with row kinds.

    >>> from foldflight import connect
    >>> from foldflight.spark import from_debezium, group_by
    >>> def prices(events):  # what spark.readStream.format("kafka")...load() returns
    ...     orders = from_debezium(events, "customer STRING, amount DECIMAL(10,2), ordered TIMESTAMP_NTZ")
    ...     return group_by(orders, "customer", row_kind="row_kind").agg(total=connect("embedded:")["sum"]("amount"))

    With the schema block (`value.converter.schemas.enable=true`), units of times and scales of decimals are those of
    each event. Without it, a value that may mean several things fails the query with the column, the value, and what to
    write: an integer for TIMESTAMP or TIME (`times`), a text of digits or base64 for DECIMAL (`decimals`), a text that
    is both base64 and hexadecimal for BINARY (`binary`). Values are exact: one that the declared type would round fails
    the query, as do PostgreSQL's infinite times, and without `keys` large values that an update did not send.

    Snapshots (`r`) and inserts (`c`) accumulate a row, deletes (`d`) retract one, and updates (`u`) do both. Messages
    (`m`), heartbeats, transaction markers and changes of the schema are skipped, and tombstones without `keys`. The
    query fails at a truncated table (`t`), and at an update or a delete whose `before` is NULL.

    PostgreSQL sends whole old rows only after `ALTER TABLE ... REPLICA IDENTITY FULL`. Without it the old row of a
    delete has its key, and in the other columns NULL, zero, an empty text, or their DEFAULT. A delete whose old row may
    be one fails the query, if `schema` is given. Kafka's `key` in the input and the schema block in the events tell
    this best; an honest row may look so, too, and passes with `replica_identity="full"`.

    Args:
        df: A batch or streaming DataFrame: one row for each event. Without `schema` it has the columns `op`, `before`
            and `after`, as decoded from Avro, with the types of the result, and no other argument is taken. With
            `schema` it has a column `value` of JSON, as read from Kafka, with or without the schema block; or these
            three columns, which are read as JSON without the block is, and `source` for `keys` and `table`.
        schema: The columns of the table, as text (`"id BIGINT, amount DECIMAL(10,2)"`) or StructType, as `schema_of`
            returns it. Columns that it leaves out are not read.
        keys: The columns of the primary key: the last row of each key is kept in the state (`upserts`), by the position
            in the log of the database. Then events that come again or in another order do no harm, `before` is
            not needed, tombstones delete (by the columns `key`, `partition` and `offset` of the input; with `table`,
            those whose key has a schema block that names the table), a large value that an update did not send
            (`__debezium_unavailable_value`) is that of the event before, and flattened events (`ExtractNewRecordState`
            with `add.fields=op,lsn` or `add.fields=op,source.file,source.pos,source.row`) are read, too.
        decimals: Without schema block: the connector's `decimal.handling.mode`, also by column: `{"amount": "string"}`,
            as all of these words. With `precise`, the scale is that of the declared type.
        times: Without schema block: the connector's `time.precision.mode`, if it is `connect`, `microseconds`,
            `nanoseconds` or `isostring`; for the default, `adaptive`, the unit of each column by name:
            `{"ordered": "microseconds"}`, with `milliseconds` for columns of up to three digits.
        binary: The connector's `binary.handling.mode`: `bytes`, `base64`, `base64-url-safe` or `hex`.
        intervals: `numeric` if no interval has months: with the connector's `interval.handling.mode=numeric`, its
            default, they are approximated, so its numbers are refused otherwise. They are INTERVAL DAY TO SECOND, as
            texts of the mode `string` without months are.
        table: Only events of this table, `"schema.table"` (MySQL: `"database.table"`), if a topic has several.
        missing: What a declared column is that an event lacks: the query fails, or the column is NULL.
        replica_identity: `"full"`: the database logs whole old rows (PostgreSQL: REPLICA IDENTITY FULL; MySQL:
            `binlog_row_image=FULL`), so a delete of a row of zeros is one. Default: such deletes fail the query.
        buckets: For streams with `keys`: the number of parts of the state, fixed for the life of a checkpoint.

    Returns:
        DataFrame: The column `row_kind`, then the columns of the table.

    Raises:
        RejectedError: SIGNATURE for a word that is none of these, and for a table without its schema; SCHEMA_MISMATCH,
            if a column is missing or has the wrong type. The query fails with SCHEMA_MISMATCH at events that are
            refused.
    """
    said = {"decimals": decimals, "times": times, "binary": binary, "intervals": intervals}
    words = _words(**said)
    if missing not in ("refuse", "null"):
        raise RejectedError("SIGNATURE", f"missing is 'refuse' or 'null', not {missing!r}")
    if replica_identity not in (None, "full"):
        raise RejectedError(
            "SIGNATURE", f"replica_identity is 'full' or left out, not {replica_identity!r}; others need keys="
        )
    if replica_identity is not None and keys is not None:
        raise RejectedError("SIGNATURE", "with keys= old rows are not read, so leave replica_identity out")
    if schema is None:
        if keys is not None or table is not None or replica_identity is not None or words != ({}, Words()):
            raise RejectedError("SIGNATURE", "the other arguments need the schema of the table; give it as well")
        require_columns(
            df, ("op", "before", "after"), "give the schema of the table to read JSON, or select('payload.*')"
        )
        events = df.where(sf.col("op").isNotNull() | sf.col("before").isNotNull() | sf.col("after").isNotNull())
        return split_changes(events, op="op", before="before", after="after", row_kinds=ROW_KINDS, ignored=SKIPPED)
    decoded = {} if _VALUE in df.columns or not {*_ENVELOPE} <= {*df.columns} else _row_types(df)
    if decoded:
        df = _as_json(df)
    require_columns(df, (_VALUE,), "name the column of JSON so")
    _check_table(table)
    row = st.StructType([st.StructField(each.name, each.dataType) for each in table_schema(df, schema)])
    key_names = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    _check_names(row, said, key_names)
    reader = Reader(
        types={each.name: arrow_type(each.dataType) for each in row},
        words={name: _for_decoded(words[0].get(name, words[1]), decoded.get(name.casefold())) for name in row.names},
        table=table,
        fills_missing=missing == "null",
        is_case_sensitive=is_case_sensitive(df.sparkSession),
        keys=None if key_names is None else tuple(key_names),
        has_whole_rows=replica_identity is not None,
        is_stream=df.isStreaming,
    )
    values = [sf.col(name).cast("binary").alias(name) for name in _read_columns(df)]
    if key_names is not None:
        values += _places(df)
        own = (_POSITION, st.BooleanType(), st.ArrayType(st.StringType()))
        output = [*row, *(st.StructField(name, type_) for name, type_ in zip(_OF_KEYS, own, strict=True))]
        rows = df.select(*values).mapInArrow(reader, st.StructType(output))
        return last_events(rows, keys=key_names, sequence=_SEQUENCE, deleted=_DELETED, unsent=_UNSENT, buckets=buckets)
    return df.select(*values).mapInArrow(reader, st.StructType([kind_column(), *row]))


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
    value = sf.when(is_event, sf.to_json(sf.struct(*members), _AS_JSON)).alias(_VALUE)
    if _KEY in df.columns and isinstance(df.schema[_KEY].dataType, st.StructType):
        df = df.withColumn(_KEY, sf.to_json(_KEY, _AS_JSON))
    return df.select(value, *(name for name in (_KEY, "topic", _PARTITION, _OFFSET) if name in df.columns))


def _for_decoded(words: Words, type_: st.DataType | None) -> Words:
    """Return the words for a column that may have been decoded already: decimals are numbers then, and bytes bytes."""
    if isinstance(type_, st.DecimalType):
        return replace(words, decimals=None)
    return replace(words, binary="base64") if isinstance(type_, st.BinaryType) else words


def _read_columns(df: DataFrame) -> list[str]:
    """Return the columns of bytes that the reader takes: the value, and the key as Kafka gives it."""
    types = (st.BinaryType, st.StringType)
    return [_VALUE, *(each.name for each in df.schema if each.name == _KEY and isinstance(each.dataType, types))]


def _places(df: DataFrame) -> list[Column]:
    """Return where in Kafka events are, as far as the input tells: the partition of the topic, and the offset."""
    offset = sf.col(_OFFSET) if _OFFSET in df.columns else sf.lit(0)
    parts = [sf.col(name).cast("string") for name in ("topic", _PARTITION) if name in df.columns]
    return [sf.concat_ws("-", *parts, sf.lit("")).alias(_PARTITION), offset.cast("bigint").alias(_OFFSET)]


def schema_of(events: DataFrame, *, table: str | None = None) -> st.StructType:
    """Return the columns of a table and their types, from the schema blocks of a batch of its events.

    Args:
        events: A batch DataFrame with a column `value` of JSON: a sample of the events.
        table: Only events of this table, `"schema.table"`, if there are several.

    Returns:
        StructType: For `from_debezium`. Columns of types without an exact reader, such as geometries, are STRING, and
            their values are refused. A `numeric` of PostgreSQL without a precision is DECIMAL(38, 18).

    Raises:
        RejectedError: SCHEMA_MISMATCH, if no event has a schema block, or a column has two types; SIGNATURE for a
            stream, and for a table without its schema.
    """
    require_columns(events, (_VALUE,), "name the column of JSON so")
    _check_table(table)
    if events.isStreaming:
        raise RejectedError("SIGNATURE", "schema_of reads a batch: take a sample of the events by spark.read")
    text = sf.col(_VALUE).cast("string")
    parts = (sf.get_json_object(text, f"$.payload.source.{part}") for part in ("db", "schema", "table"))
    name = sf.concat_ws(".", *parts)
    blocks = events.select(sf.get_json_object(text, "$.schema").alias("block"), name.alias("name"))
    blocks = blocks.where("block IS NOT NULL AND get_json_object(block, '$.fields') IS NOT NULL")
    if table is not None:
        blocks = blocks.where((sf.col("name") == table) | sf.col("name").endswith(f".{table}"))
    has_time = hasattr(st, "TimeType") and tuple(map(int, events.sparkSession.version.split(".")[:2])) >= (4, 1)
    found: dict[str, st.DataType] = {}
    for block in blocks.select("block").distinct().limit(_SCHEMAS_MAX).collect():
        for column, described in _described_columns(json.loads(block[0])).items():
            type_ = _spark_type(described, has_time=has_time)
            if found.setdefault(column, type_) != type_:
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"the column {column} is {found[column].simpleString()} in one event and {type_.simpleString()} in "
                    "another; give the schema as text, or table= if the events are of several tables",
                )
    if not found:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"none of these events{'' if table is None else f' is of the table {table} and'} has a schema block; give "
            "the schema as text, or set value.converter.schemas.enable=true",
        )
    return st.StructType([st.StructField(column, type_) for column, type_ in found.items()])


def _spark_type(described: Described, *, has_time: bool) -> st.DataType:
    name = described.name.rpartition(".")[2]
    if described.name == "org.apache.kafka.connect.data.Decimal":
        precision = min(38, int(described.parameter("connect.decimal.precision") or 38))
        return st.DecimalType(precision, min(precision, max(0, int(described.parameter("scale") or 0))))
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
    if described.type == "array" and described.items is not None:
        return st.ArrayType(_spark_type(described.items, has_time=has_time))
    if described.type == "map" and described.values is not None:
        return st.MapType(st.StringType(), _spark_type(described.values, has_time=has_time))
    return _SPARK_TYPES.get(described.type, st.StringType())


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


def _words(**said: object) -> tuple[dict[str, Words], Words]:
    """Return the words by column, and those of all other columns. Raises RejectedError SIGNATURE.

    Args:
        said: For each kind of values, a word, or words by column.
    """
    general: dict[str, object] = {}
    by_column: dict[str, dict[str, object]] = {}
    for what, word in said.items():
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


def _check_names(row: st.StructType, said: Mapping[str, object], keys: Iterable[str] | None) -> None:
    for name in (ROW_KIND, *(() if keys is None else _OF_KEYS)):
        refuse_taken(name, row.names)
    for role, names in (*((what, words) for what, words in said.items() if isinstance(words, Mapping)), ("keys", keys)):
        for name in names or ():
            if name not in row.names:
                near = difflib.get_close_matches(name, row.names, 1)
                hint = f"; did you mean {near[0]}?" if near else f": {', '.join(row.names)}"
                raise RejectedError("SCHEMA_MISMATCH", f"{role} names {name!r}, which is not in the schema{hint}")


def _described_columns(block: Any) -> dict[str, Described]:
    """Return the columns of a table as a schema block describes them; {} if it describes no row."""
    fields = block.get("fields") if isinstance(block, dict) else None
    if not isinstance(fields, list):
        return {}
    parts = {each.get("field"): each for each in fields if isinstance(each, dict)}
    for name in ("after", "before"):
        if name in parts and isinstance(parts[name].get("fields"), list):
            fields = parts[name]["fields"]
            break
    return {str(each["field"]): Described.of(each) for each in fields if isinstance(each, dict) and "field" in each}


@dataclass(frozen=True, eq=False)
class _Plan:
    """How to read the events with one schema block, or those without.

    Args:
        values: How to read a value of each declared column; None if the block lacks the column.
        columns: The same for all values of a batch.
        parse: What parses events quickly; None if nothing does.
        defaults: The defaults of columns that the block tells.
    """

    values: dict[str, Decode | None]
    columns: dict[str, ReadColumn]
    parse: ParseEvent | None
    defaults: Mapping[str, Any] = field(default_factory=dict)


class _Messages(NamedTuple):
    """A batch of messages of Kafka. Without their keys `keys` is None, and the partitions and offsets may be, too."""

    values: pa.Array
    keys: Sequence[bytes | None] | None
    partitions: Sequence[str | None]
    offsets: Sequence[int | None]


class _Change(NamedTuple):
    """What an event does to one row: the row as it is in the JSON, and how to read it; None if it has been read.

    With `keys`, `position` is that of the event, and of a deleted row only the key is read.
    """

    kind: str
    row: Any
    plan: _Plan | None
    position: Row | None = None
    is_deleted: bool = False


@dataclass
class Reader:
    """The task that reads events: batches of messages to batches of rows.

    A batch is read column by column (`connectcolumns`). If that does not go through, for whatever reason, it is read
    again value by value, which decides what is refused, and in which words.

    Args:
        types: The declared columns.
        words: What the user says about each of them.
        table: The only table that is read.
        fills_missing: Whether a column that an event lacks is NULL.
        is_case_sensitive: Whether names differ by case.
        keys: The primary key, if the last row of each key is kept.
        has_whole_rows: Whether the user says that old rows are whole.
        is_stream: Whether a stream reads the events.
    """

    types: dict[str, pa.DataType]
    words: dict[str, Words]
    table: str | None
    fills_missing: bool
    is_case_sensitive: bool
    keys: tuple[str, ...] | None
    has_whole_rows: bool = False
    is_stream: bool = True
    _old_rows: OldRows = field(default_factory=OldRows)
    _by_block: dict[bytes, _Plan] = field(default_factory=dict)
    _latest: tuple[bytes, _Plan] | None = None  # how the latest event with a known schema block begins

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each batch of events."""
        tombstones = Tombstones(_SEQUENCE) if self.keys else None
        for batch in batches:
            names, count = batch.schema.names, batch.num_rows
            keys, partitions, offsets = (
                batch.column(name).to_pylist() if name in names else [None] * count
                for name in (_KEY, _PARTITION, _OFFSET)
            )
            messages = _Messages(batch.column(_VALUE), keys if _KEY in names else None, partitions, offsets)
            attempt = copy.deepcopy(tombstones)
            try:
                columns = self.by_column(messages, attempt)
            except (*UNPARSED, *UNPROVEN, RejectedError):
                columns = self.by_value(messages, tombstones)
            else:
                tombstones = attempt
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if tombstones is not None and tombstones.is_waiting:
            if not self.is_stream:
                raise _refused(
                    "a tombstone stands alone in what a task reads of its partition, so its place in the log of the "
                    "database is not known; read the events in order (repartition('topic', 'partition')"
                    ".sortWithinPartitions('offset')), or leave tombstones out (value IS NOT NULL)"
                )
            columns = self._columns([_Change("-D", row, None, row[_SEQUENCE], True) for row in tombstones.rest()])
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
        freeze_garbage_collector()

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        names = [*([] if self.keys else [ROW_KIND]), *self.types, *(_OF_KEYS if self.keys else [])]
        own = {
            ROW_KIND: pa.string(),
            _SEQUENCE: arrow_type(_POSITION),
            _DELETED: pa.bool_(),
            _UNSENT: pa.list_(pa.string()),
        }
        return pa.schema([(name, self.types[name] if name in self.types else own[name]) for name in names])

    def by_value(self, messages: _Messages, tombstones: Tombstones | None) -> list[pa.Array]:
        """Return the columns of the rows. Raises RejectedError SCHEMA_MISMATCH at the first event that is refused."""
        rows: list[Row] = []
        for place, value in enumerate(messages.values.to_pylist()):
            event, plan = self._parsed(b"null" if value is None else value)
            for change in self._changes(event, plan, messages, place, tombstones):
                own = {ROW_KIND: change.kind, _SEQUENCE: change.position, _DELETED: change.is_deleted}
                if change.plan is None:
                    rows.append({**change.row, **own, _UNSENT: None})
                else:
                    unsent: list[str] | None = [] if self.keys and not change.is_deleted else None
                    row = self._row(change.row, change.plan, self._names_read(change.is_deleted), unsent)
                    rows.append({**row, **own, _UNSENT: unsent or None})
        return [pa.array([row[field.name] for row in rows], field.type) for field in self.schema]

    def by_column(self, messages: _Messages, tombstones: Tombstones | None) -> list[pa.Array]:
        """Return what `by_value` returns, or raise any error of `UNPARSED` and `UNPROVEN`, or RejectedError."""
        is_utf8 = _is_utf8(messages.values)
        texts, common = self._without_common_block(messages.values) if is_utf8 else (messages.values, None)
        changes: list[_Change] = []
        for place, text in enumerate(texts.to_pylist()):
            event, plan = None, self._undescribed if common is None else common
            if text is not None:
                if common is None:
                    text, plan = self._without_block(text)  # noqa: PLW2901
                event = self._parsed_quickly(text, plan) if is_utf8 else _UNPARSED
                if event is _UNPARSED:
                    event, plan = self._parsed(messages.values[place].as_py())
            changes.extend(self._changes(event, plan, messages, place, tombstones))
        return self._columns(changes)

    def _columns(self, changes: Sequence[_Change]) -> list[pa.Array]:
        """Return the columns of rows. Those of the table are read together for the rows that are read alike."""
        ways: dict[tuple[_Plan | None, bool, bool], list[int]] = {}
        for place, change in enumerate(changes):
            ways.setdefault((change.plan, isinstance(change.row, dict), change.is_deleted), []).append(place)
        unsent: dict[int, list[str]] = {}
        parts = [self._read_alike(changes, places, unsent, *way) for way, places in ways.items()]
        columns = parts[0] if len(parts) == 1 else {}
        if len(parts) != 1:
            order = pc.array_sort_indices(pa.array([place for places in ways.values() for place in places], pa.int64()))
            for name, type_ in self.types.items():
                columns[name] = pa.concat_arrays([pa.nulls(0, type_), *(part[name] for part in parts)]).take(order)
        own: dict[str, list[Any]] = {
            ROW_KIND: [change.kind for change in changes],
            _SEQUENCE: [change.position for change in changes],
            _DELETED: [change.is_deleted for change in changes],
            _UNSENT: [unsent.get(place) for place in range(len(changes))],
        }
        return [
            columns[field.name] if field.name in self.types else pa.array(own[field.name], field.type)
            for field in self.schema
        ]

    def _read_alike(
        self,
        changes: Sequence[_Change],
        places: Sequence[int],
        unsent: dict[int, list[str]],
        plan: _Plan | None,
        is_dict: bool,
        is_deleted: bool,
    ) -> dict[str, pa.Array]:
        rows = [changes[place].row for place in places]
        if plan is None:
            return {name: pa.array([row[name] for row in rows], type_) for name, type_ in self.types.items()}
        names = self._names_read(is_deleted)
        values = [tuple(self._given(row, plan, names)) for row in rows] if is_dict else [*map(row_values, rows)]
        given = dict(zip(names if is_dict else self.types, zip(*values, strict=True), strict=True))
        columns = {}
        for name, type_ in self.types.items():
            if name not in names:
                columns[name] = pa.nulls(len(rows), type_)
                continue
            own: list[int] | None = None if self.keys is None or is_deleted or name in self.keys else []
            columns[name] = plan.columns[name](given[name], own)
            for place in own or ():
                unsent.setdefault(places[place], []).append(name)
        return columns

    def _names_read(self, is_deleted: bool) -> Sequence[str]:
        """Return the columns that are read of a row: the others of a deleted row are not its own."""
        return self.keys or () if is_deleted else tuple(self.types)

    def _changes(
        self, event: Any, plan: _Plan, messages: _Messages, place: int, tombstones: Tombstones | None
    ) -> Iterator[_Change]:
        """Yield what a message does, and the tombstones that waited for it. Raises RejectedError SCHEMA_MISMATCH."""
        if tombstones is None:
            if event is not None:
                yield from self._of_event(event, plan, messages, place)
            return
        partition = messages.partitions[place]
        if event is not None:
            for change in self._of_event(event, plan, messages, place):
                assert change.position is not None
                ready = tombstones.before(change.position, partition)
                yield from (_Change("-D", row, None, row[_SEQUENCE], True) for row in ready)
                yield change
        elif messages.keys is not None:
            deleted = self._tombstone(messages.keys[place])
            if deleted is not None:
                ready = tombstones.placed(deleted, partition, messages.offsets[place] or 0)
                yield from (_Change("-D", row, None, row[_SEQUENCE], True) for row in ready)

    def _tombstone(self, message_key: bytes | None) -> Row | None:
        """Return the row that a tombstone deletes, without its position; None if it is of another table."""
        assert self.keys is not None
        try:
            key = None if message_key is None else _json(message_key)
        except ValueError:
            is_registered = (message_key or b"")[:1] == b"\0"
            raise _refused(
                "a tombstone has a key that is "
                + ("written with a schema registry" if is_registered else f"not JSON: {_text_of(message_key)}")
                + "; set the connector's key.converter to JSON, or leave the tombstones out (value IS NOT NULL)"
            ) from None
        plan, block = self._undescribed, None
        if isinstance(key, dict) and set(key) == {"schema", "payload"}:
            key, block = key["payload"], key["schema"]
            plan = self._plan(block)
        if self.table is not None:  # tombstones do not name their tables, except in the schema block of the key
            name = block.get("name") if isinstance(block, dict) else None
            stem = name.removesuffix(".Key").partition(".")[2] if isinstance(name, str) else ""  # without the prefix
            if not stem or not is_of(self.table, {"table": stem}):
                return None
        if len(self.keys) == 1 and key is not None and not isinstance(key, dict | list):
            key = {self.keys[0]: key}
        if not isinstance(key, dict):
            raise _refused(
                f"a tombstone has the key {_text_of(key)}, which does not hold {', '.join(self.keys)}, the columns of "
                "keys=; leave the tombstones out (value IS NOT NULL)"
            )
        return self._row(key, plan, self.keys)

    def _of_event(self, event: Any, plan: _Plan, messages: _Messages, place: int) -> Iterator[_Change]:
        """Yield what an event does. Raises RejectedError SCHEMA_MISMATCH."""
        offset = messages.offsets[place] or 0
        if not isinstance(event, dict):
            raise _refused(f"an event is not an object: {_text_of(messages.values[place].as_py())}")
        op, source = event.get("op"), event.get("source")
        if op is None or not FLATTENED.isdisjoint(event):
            yield from self._without_op(event, plan, offset, messages.values[place].as_py())
            return
        if op in SKIPPED or (self.table is not None and not is_of(self.table, source)):
            return
        check_operation(op)
        before, after = event.get("before"), event.get("after")
        if self.keys:
            given = before if op == "d" else after
            if given is None:
                raise _refused(f"an event lacks its {'old' if op == 'd' else 'new'} row; its operation is {op}")
            yield _Change(ROW_KINDS[op], given, plan, _position(source, offset), is_deleted=op == "d")
            return
        if op in ("u", "d"):
            if before is None:
                raise _refused(
                    f"an event lacks its old row, before; {_WHOLE_ROWS}, or give keys= to keep the last row of each key"
                )
            if op == "d" and not self.has_whole_rows and self._is_invented(before, plan, messages, place):
                raise _refused(
                    f"the old row of a delete may hold the key only, and values of the connector: {_text_of(before)}; "
                    f"{_WHOLE_ROWS} and write replica_identity='full', or give keys= to keep the last row of each key"
                )
            yield _Change("-U" if op == "u" else "-D", before, plan)
        if op != "d":
            if after is None:
                raise _refused("an event lacks its new row, after")
            yield _Change(ROW_KINDS[op], after, plan)

    def _is_invented(self, before: Any, plan: _Plan, messages: _Messages, place: int) -> bool:
        """Return whether the old row of a delete may hold the key only, and values of the connector."""
        key = None if messages.keys is None else messages.keys[place]
        has_key = messages.keys is not None
        if not isinstance(before, dict):  # a struct, which holds the declared columns
            row = dict(zip(self.types, row_values(before), strict=True))
            if has_own_values(row, plan.defaults, key, has_key=has_key):
                return False
        return self._old_rows.is_invented(messages.values[place].as_py(), key, has_key=has_key)

    def _without_op(self, event: Event, plan: _Plan, offset: int, value: bytes) -> Iterator[_Change]:
        """Yield what an event does that is no envelope: a flattened event, or one that changes no row."""
        if changes_no_row(event):
            return
        if tool := of_event(event):
            raise _refused(f"an event is not of Debezium, {tool}: {_text_of(value)}")
        if self.keys is None:
            raise _refused(
                "an event has no operation op, so it is flattened (ExtractNewRecordState) or not of Debezium: "
                f"{_text_of(value)}; give keys= to read flattened events, or remove the transformation"
            )
        removed = {"true": True, "false": False, None: None}.get(event.get("__deleted"))
        op = event.get("__op")
        if op is not None:
            check_operation(op)
        is_deleted = op == "d" if op is not None else removed
        if is_deleted is None:
            raise _refused(
                "a flattened event does not say whether it deletes its row; set add.fields=op,lsn and "
                f"delete.tombstone.handling.mode=rewrite: {_text_of(value)}"
            )
        names_of_source = ("lsn", "file", "pos", "row", "db", "schema", "table")
        source = {name: event.get(f"__{name}", event.get(f"__source_{name}")) for name in names_of_source}
        if self.table is not None and not is_of(self.table, source):
            return
        yield _Change("-D" if is_deleted else "+U", event, plan, _position(source, offset), is_deleted)

    def _row(self, row: Any, plan: _Plan, names: Sequence[str], unsent: list[str] | None = None) -> Row:
        """Return the declared columns of a row, with NULL for those that are not read.

        With `unsent`, large values that were not sent are NULL, and it gets their names.
        """
        found: Row = dict.fromkeys(self.types)
        for name, value in zip(names, self._given(row, plan, names), strict=True):
            decode = plan.values[name]
            try:
                found[name] = None if value is None or decode is None else decode(value)
            except Refused as error:
                if isinstance(error, NotSent) and unsent is not None and name not in (self.keys or ()):
                    unsent.append(name)
                    continue
                why = str(error).replace(COLUMN, repr(name))
                raise _refused(f"the column {name} of an event has the value {_text_of(value)}, {why}") from None
        return found

    def _given(self, row: Any, plan: _Plan, names: Iterable[str]) -> Iterator[Any]:
        """Yield the value of each column in the JSON of a row. Raises RejectedError SCHEMA_MISMATCH."""
        if not isinstance(row, dict):
            raise _refused(f"the row of an event is not an object: {_text_of(row)}")
        folded: dict[str, str] | None = None  # most events have the names as they are declared
        for name in names:
            given = name
            if name not in row and not self.is_case_sensitive:
                folded = {each.casefold(): each for each in row} if folded is None else folded
                given = folded.get(name.casefold(), name)
            if given in row and plan.values[name] is not None:
                yield row[given]
            elif self.fills_missing:
                yield None
            else:
                raise _lacks(name, row)

    def _without_common_block(self, values: pa.Array) -> tuple[pa.Array, _Plan | None]:
        """Return events without the schema block with which all of them begin; with None if they do not."""
        first = next((value.as_py() for value in values if value.is_valid), b"")
        if first.endswith(b"}") and _PAYLOAD in first:
            self._parsed(first)
            self._without_block(first)
        if self._latest is None:
            return values, None
        begin, plan = self._latest
        if not (pc.all(pc.starts_with(values, begin)).as_py() and pc.all(pc.ends_with(values, b"}")).as_py()):
            return values, None
        return pc.binary_slice(values, len(begin), -1), plan

    def _without_block(self, value: bytes) -> tuple[bytes, _Plan]:
        """Return an event without its schema block, if this is known, and how to read the rest."""
        if self._latest is not None and value.startswith(self._latest[0]) and value.endswith(b"}"):
            return value[len(self._latest[0]) : -1], self._latest[1]
        if self._by_block:
            head, mark, rest = value.partition(_PAYLOAD)
            if mark and head in self._by_block and value.endswith(b"}"):
                self._latest = head + mark, self._by_block[head]
                return rest[:-1], self._by_block[head]
        return value, self._undescribed

    def _parsed_quickly(self, text: bytes, plan: _Plan) -> Any:
        """Return what `_parsed` returns, with only the members of the event that are read, and rows as structs."""
        if plan.parse is None:
            return _UNPARSED
        try:
            event = plan.parse(text)
        except UNPARSED:
            return _UNPARSED
        is_envelope = event is None or (event.get("op") is not None and _NO_ENVELOPE.isdisjoint(event))
        return event if is_envelope else _UNPARSED

    def _parsed(self, value: bytes) -> tuple[Any, _Plan]:
        """Return the event without its schema block, and how to read its rows."""
        # The same block begins nearly all events of a table, and is longer than the rest: it is parsed once.
        if value.strip() == b"null":
            return None, self._undescribed
        head, found, rest = value.partition(_PAYLOAD)
        if found and head in self._by_block and rest.endswith(b"}"):
            try:
                return _json(rest[:-1]), self._by_block[head]
            except ValueError:
                pass  # more members follow
        try:
            event = _json(value)
        except ValueError as error:
            if value[:1] == b"\0":
                raise _refused(
                    "an event was written with a schema registry (its first byte is 0): decode it first, for example "
                    "with from_avro, and give the columns op, before and after"
                ) from None
            raise _refused(f"an event is not JSON ({error}): {_text_of(value)}") from None
        if not (isinstance(event, dict) and set(event) == {"schema", "payload"}):
            if isinstance(event, dict) and "payload" in event and event.keys().isdisjoint({"op", *FLATTENED}):
                return event["payload"], self._plan(event.get("schema"))
            return event, self._undescribed
        plan = self._plan(event["schema"])
        if found and len(self._by_block) < _SCHEMAS_MAX and _is_block(head):
            self._by_block[head] = plan
        return event["payload"], plan

    def _plan(self, block: Any) -> _Plan:
        described = _described_columns(block)
        if not described:
            return self._undescribed
        fold = str if self.is_case_sensitive else str.casefold
        by_name = {fold(name): each for name, each in described.items()}
        found = {name: described.get(name) or by_name.get(fold(name)) for name in self.types}
        values, columns = {}, {}
        for name, type_ in self.types.items():
            is_lacking = found[name] is None
            values[name] = None if is_lacking else decoder(type_, found[name], self.words[name])
            columns[name] = column_reader(type_, found[name], self.words[name])
        return _Plan(values, columns, None if None in values.values() else self._parse, defaults_of(block))

    @functools.cached_property
    def _undescribed(self) -> _Plan:
        """How to read events without a schema block."""
        return _Plan(
            {name: decoder(type_, None, self.words[name]) for name, type_ in self.types.items()},
            {name: column_reader(type_, None, self.words[name]) for name, type_ in self.types.items()},
            self._parse,
        )

    @functools.cached_property
    def _parse(self) -> ParseEvent | None:
        return event_parser(tuple(self.types), _SOURCE if self.keys or self.table is not None else ())


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_block(head: bytes) -> bool:
    """Return whether a text is an object up to its schema block: `{"schema": ...` without the last brace."""
    try:
        return set(json.loads(head + b"}")) == {"schema"}
    except ValueError:
        return False


def _json(text: bytes) -> Any:
    """Return the value of JSON; numbers with a fraction as Decimal. Raises ValueError."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_not_json)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except InvalidOperation:
        raise ValueError("a number has too large an exponent") from None


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _position(source: Any, offset: int) -> Row:
    """Return the position of an event in the log of its database. Raises RejectedError SCHEMA_MISMATCH without one."""
    given = source if isinstance(source, dict) else {}
    if type(given.get("lsn")) is int:
        return {"log": "", "position": given["lsn"], "row": 0, "offset": offset}
    if type(given.get("file")) is str and type(given.get("pos")) is int:
        name, _, number = given["file"].rpartition(".")  # of binlog.999999 and binlog.1000000 the second is later
        log = f"{name}.{number:0>{_LOG_DIGITS}}"
        return {"log": log, "position": given["pos"], "row": given.get("row") or 0, "offset": offset}
    raise _refused(
        "an event has no position in the log of its database (source.lsn, or source.file and source.pos), so the last "
        "row of a key is not known; for flattened events set add.fields=op,lsn, or use upserts(df, sequence_by=...)"
    )


def _lacks(name: str, row: Row) -> RejectedError:
    near = difflib.get_close_matches(name, row, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(row)}."
    return _refused(
        f"an event lacks the column {name}; {hint} A column that was added later is NULL in older events with "
        "missing='null', and table= keeps the events of one table"
    )


def _text_of(value: object) -> str:
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
    else:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _refused(message: str) -> RejectedError:
    return RejectedError("SCHEMA_MISMATCH", message)
