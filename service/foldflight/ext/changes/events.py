"""Changelogs as events for other systems: Debezium's envelope, or keys and values with tombstones.

    changes > mapInArrow(pairs of -U and +U become one event) > key and value, for writeStream.format("kafka")

The sink of Kafka delivers at least once, so the events of an epoch may come again. Events of `to_debezium` have a
position that grows from epoch to epoch, and events of `to_upserts` have the position that Kafka gives them.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.blocks import convert
from foldflight.engine.query.changelog import equal_rows
from foldflight.engine.query.layout import DEAD_LETTER, ROW_KIND
from foldflight.errors import RejectedError
from foldflight.ext.changes.connectvalues import UNAVAILABLE
from foldflight.ext.changes.debeziummessages import OWN_CONNECTOR
from foldflight.functions.types.arrow import concat_batches
from foldflight.spark.arguments import column_names, require_dataframe
from foldflight.spark.arrow import arrow_function
from foldflight.spark.bucketed import EPOCH
from foldflight.spark.columns import column_named
from foldflight.spark.errors import raise_error
from foldflight.spark.grouping import refuse_doubles
from foldflight.spark.settings import advise
from foldflight.spark.versions.sessions import check_workers
from foldflight.spark.versions.types import arrow_type

Encode = Callable[[pa.Array], list[Any]]
Indexes = npt.NDArray[np.int64]

_KEY, _VALUE, _TIME, _IS_DELETED = "key", "value", "foldflight time", "foldflight deleted"
_KINDS: Final = ("+I", "-U", "+U", "-D")
_EPOCH_BITS: Final = 31
_EVENTS: Final = st.StructType([st.StructField(_KEY, st.StringType()), st.StructField(_VALUE, st.StringType())])
_NAME: Final = "foldflight"
_SOURCE: Final = [
    {"type": "string", "optional": False, "field": "connector"},
    {"type": "string", "optional": False, "field": "name"},
    {"type": "int64", "optional": False, "field": "ts_ms"},
    {"type": "int64", "optional": False, "field": "lsn"},
]
_DAY_US: Final = 86_400_000_000
_EPOCH_DAY_MIN, _EPOCH_DAY_MAX = -719_162, 2_932_896  # the years 1 to 9999
_UNAVAILABLE: Final = frozenset(
    {UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode(), UNAVAILABLE.encode().hex()}
)


def to_debezium(changes: DataFrame, *, keys: str | Sequence[str]) -> DataFrame:
    """Return changes as events of Debezium, for Kafka: what `group_by`, `upserts` or `write_table` would be fed with.

    >>> from foldflight.spark import from_debezium, to_debezium
    >>> changes = [("-U", "ann", 3), ("+U", "ann", 5)]
    >>> changes = spark.createDataFrame(changes, "row_kind STRING, customer STRING, total INT").coalesce(1)
    >>> events = to_debezium(changes, keys="customer")
    >>> from_debezium(events, "customer STRING, total INT").show()
    +--------+--------+-----+
    |row_kind|customer|total|
    +--------+--------+-----+
    |      -U|     ann|    3|
    |      +U|     ann|    5|
    +--------+--------+-----+

    A stream of `group_by(..., emit="changelog").agg(...)` goes on to a topic with

        events.writeStream.format("kafka").option("kafka.bootstrap.servers", "broker:9092").option("topic", "totals")

    A row `+I` is an event `c` with `after`, `-D` an event `d` with `before`, and `-U` with the `+U` that follows it one
    event `u` with both. A `+U` alone (`emit="update"`) has a `before` of null; a `-U` alone, whose `+U` was filtered
    out, is an event `d`. Rows without kinds are events `r` of a batch, and `u` of a stream. For example, the payload of
    one event is

        {"before": {"customer": "ann", "total": 3}, "after": {"customer": "ann", "total": 5}, "source": {"connector":
        "foldflight", "name": "foldflight", "ts_ms": 1767225600000, "lsn": 3795088078326988802}, "op": "u", "ts_ms":
        1767225600000}

    Each event has its schema block, so `from_debezium` and other readers know the types. `source.lsn` grows with each
    epoch and each call of `to_debezium`. So call it again before a query begins anew with another checkpoint; otherwise
    its events have the positions of earlier ones. Kafka's sink delivers at least once: read the events with
    `from_debezium(events, schema, keys=[...])`, which drops those that come again.

    Args:
        changes: The result of an aggregation, or rows with a column `row_kind`; before steps that move rows between
            partitions, so that each `+U` follows its `-U`.
        keys: The columns that identify a row, never NULL. They are the event's key, by which Kafka chooses the
            partition.

    Returns:
        DataFrame: The columns `key` and `value`, JSON.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a key is missing, or a column has a type without an exact representation in
            Debezium (STRUCT, intervals, VARIANT, maps whose keys are no texts); SIGNATURE, if `keys` is empty. The
            query fails with SCHEMA_MISMATCH at a key that is NULL, at another row kind, and at a value that readers
            take for something else.
    """
    names, kinds, columns = _check_keys(changes, keys, "to_debezium")
    descriptions = [_describe_column(name, changes.schema[name].dataType) for name in columns]
    task = _Envelopes(
        keys=tuple(names),
        columns=tuple(columns),
        types=tuple(arrow_type(changes.schema[name].dataType) for name in columns),
        has_kinds=kinds,
        without_kind="u" if changes.isStreaming else "r",
        block=json.dumps(_block(descriptions), separators=(",", ":")),
        key_block=json.dumps(
            _struct_block([descriptions[columns.index(name)] for name in names], f"{_NAME}.Key", ""),
            separators=(",", ":"),
        ),
        # A call after a restart starts later, so a repeated epoch has the same rows at a later position.
        start=int(time.time()) << _EPOCH_BITS,
    )
    now = sf.unix_millis(sf.current_timestamp()).alias(_TIME)
    return _map_in_arrow(changes, [*([ROW_KIND] if kinds else []), *columns], task, "to_debezium", _EVENTS, now)


def to_upserts(changes: DataFrame, *, keys: str | Sequence[str]) -> DataFrame:
    """Return changes as keys and values in JSON, for a compacted topic or Flink's `upsert-kafka`.

    >>> from foldflight.spark import to_upserts
    >>> changes = [("+I", "ann", 5), ("-D", "bob", 7)]
    >>> changes = spark.createDataFrame(changes, "row_kind STRING, customer STRING, total INT")
    >>> to_upserts(changes, keys="customer").show(truncate=False)
    +------------------+----------------------------+
    |key               |value                       |
    +------------------+----------------------------+
    |{"customer":"ann"}|{"customer":"ann","total":5}|
    |{"customer":"bob"}|NULL                        |
    +------------------+----------------------------+

    A row `+I` or `+U` is the new row of its key, `{"customer":"ann"}` and `{"customer":"ann","total":5}`, and `-D`, or
    a `-U` without its `+U`, a *tombstone*, whose value is NULL. Times are ISO 8601 with microseconds, those with a zone
    in UTC; BINARY is base64. Kafka's sink delivers at least once, and the order of a key's events in its partition is
    theirs: read them with `upserts(df, keys=[...], sequence_by="offset", deleted="value IS NULL")`.

    Args:
        changes: The result of an aggregation, or rows with a column `row_kind`; before steps that move rows between
            partitions. `emit="update"` is enough.
        keys: The columns that identify a row, never NULL.

    Returns:
        DataFrame: The columns `key` and `value`, JSON; `value` is NULL for a deleted key.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a key is missing; SIGNATURE, if `keys` is empty. The query fails with
            SCHEMA_MISMATCH at a key that is NULL, and at another row kind.
    """
    names, has_kinds, columns = _check_keys(changes, keys, "to_upserts")
    last = changes.select(*map(column_named, columns), sf.lit(False).alias(_IS_DELETED))
    if has_kinds:
        types = tuple(arrow_type(changes.schema[name].dataType) for name in columns)
        schema = st.StructType([changes.schema[name] for name in columns])
        schema = st.StructType([st.StructField(each.name, each.dataType) for each in schema])
        task = _Upserts(tuple(names), tuple(columns), types)
        requested_schema = schema.add(_IS_DELETED, st.BooleanType())
        last = _map_in_arrow(changes, [ROW_KIND, *columns], task, "to_upserts", requested_schema)
    options = {
        "ignoreNullFields": "false",
        "timeZone": "UTC",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    }
    key = sf.to_json(sf.struct(*map(column_named, names)), options)
    for name in names if not has_kinds else ():  # the task has looked at keys of changes
        null = raise_error("SCHEMA_MISMATCH", _null_key(name))
        key = sf.when(column_named(name).isNull(), null).otherwise(key)
    value = sf.to_json(sf.struct(*map(column_named, columns)), options)
    return last.select(key.alias(_KEY), sf.when(~column_named(_IS_DELETED), value).alias(_VALUE))


def _check_keys(changes: DataFrame, keys: str | Sequence[str], function: str) -> tuple[list[str], bool, list[str]]:
    """Return the keys, whether rows have kinds, and the columns. Raises RejectedError SIGNATURE, SCHEMA_MISMATCH."""
    require_dataframe(changes, function)
    names = column_names(keys, "keys")
    if not names:
        raise RejectedError("SIGNATURE", "keys is empty; name the columns that identify a row, as in keys=['id']")
    if DEAD_LETTER in changes.columns:
        raise RejectedError("SCHEMA_MISMATCH", "the rows have dead letters, which are no rows: give results(changes)")
    columns = [name for name in changes.columns if name != ROW_KIND]
    refuse_doubles(columns, "is the name of two columns")
    for name in names:
        if name not in columns:
            raise RejectedError("SCHEMA_MISMATCH", f"the key {name!r} is not a column among {', '.join(columns)}")
    return names, ROW_KIND in changes.columns, columns


def _null_key(name: str) -> str:
    return f"the key {name} of a change is NULL; leave such rows out, or give it a value"


def _map_in_arrow(
    changes: DataFrame,
    columns: Sequence[str],
    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    name: str,
    schema: st.StructType,
    *more: Any,
) -> DataFrame:
    advise(changes)
    check_workers(changes.sparkSession)
    rows = changes.select(*map(column_named, columns), *more)
    return rows.mapInArrow(arrow_function(task, name), schema)


# What each type is in a schema block, and how its values are written.


def _describe_column(name: str, type_: st.DataType) -> dict[str, Any]:
    """Return the description of a column in a schema block. Raises RejectedError SCHEMA_MISMATCH."""
    connect_type = _connect_type(type_)
    if connect_type is None:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the column {name} is {type_.simpleString()}, which has no exact representation in events of Debezium; "
            "give its fields as columns, or its text, for example to_json of it",
        )
    return {**connect_type, "optional": True, "field": name}


def _connect_type(type_: st.DataType) -> dict[str, Any] | None:
    if isinstance(type_, st.DecimalType):
        parameters = {"scale": str(type_.scale), "connect.decimal.precision": str(type_.precision)}
        name = "org.apache.kafka.connect.data.Decimal"
        return {"type": "bytes", "name": name, "version": 1, "parameters": parameters}
    if isinstance(type_, st.ArrayType):
        items = _connect_type(type_.elementType)
        return None if items is None else {"type": "array", "items": {**items, "optional": True}}
    if isinstance(type_, st.MapType):
        values = _connect_type(type_.valueType)
        if values is None or not isinstance(type_.keyType, st.StringType):
            return None
        texts = {"type": "string", "optional": False}
        return {"type": "map", "keys": texts, "values": {**values, "optional": True}}
    if type_.typeName().startswith("time(") or type_.typeName() == "time":
        return {"type": "int64", "name": "io.debezium.time.MicroTime", "version": 1}
    return next((connect_type for kind, connect_type in _CONNECT_TYPES if isinstance(type_, kind)), None)


_CONNECT_TYPES: Final[tuple[tuple[type[st.DataType], dict[str, Any]], ...]] = (
    (st.BooleanType, {"type": "boolean"}),
    (st.ByteType, {"type": "int8"}),
    (st.ShortType, {"type": "int16"}),
    (st.IntegerType, {"type": "int32"}),
    (st.LongType, {"type": "int64"}),
    (st.FloatType, {"type": "float"}),
    (st.DoubleType, {"type": "double"}),
    (st.StringType, {"type": "string"}),
    (st.BinaryType, {"type": "bytes"}),
    (st.DateType, {"type": "int32", "name": "io.debezium.time.Date", "version": 1}),
    (st.TimestampNTZType, {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1}),
    (st.TimestampType, {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}),
)


def _struct_block(fields: Sequence[dict[str, Any]], name: str, field: str) -> dict[str, Any]:
    block = {"type": "struct", "fields": [*fields], "optional": bool(field), "name": name}
    return {**block, "field": field} if field else block


def _block(columns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = [_struct_block(columns, f"{_NAME}.Value", field) for field in ("before", "after")]
    source = {"type": "struct", "fields": _SOURCE, "optional": False, "name": f"{_NAME}.Source", "field": "source"}
    operation = {"type": "string", "optional": False, "field": "op"}
    at = {"type": "int64", "optional": True, "field": "ts_ms"}
    return _struct_block([*rows, source, operation, at], f"{_NAME}.Envelope", "")


def _encoder(type_: pa.DataType) -> Encode:
    """Return what converts n values of a column to values of JSON. It raises ValueError for those that have none."""
    return next((encode for holds, encode in _ENCODERS if holds(type_)), _as_they_are)


def _as_they_are(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _bytes(array: pa.Array) -> list[Any]:
    return [None if each is None else base64.b64encode(each).decode() for each in array.to_pylist()]


def _days(array: pa.Array) -> list[Any]:
    return _within(array.cast(pa.int32()).to_pylist(), 1)


def _times_of_day(array: pa.Array) -> list[Any]:
    values: list[Any] = array.cast(pa.time64("us")).cast(pa.int64()).to_pylist()
    return values


def _timestamps(array: pa.Array) -> list[Any]:
    return _local_times(array) if array.type.tz is None else _instants(array)


def _within(values: list[Any], day: int) -> list[Any]:
    """Return numbers of days, or of parts of a day, that readers take. Raises ValueError."""
    for each in values:
        if each is not None and not _EPOCH_DAY_MIN * day <= each < (_EPOCH_DAY_MAX + 1) * day:
            unit = "microseconds" if day > 1 else "days"
            raise ValueError(f"{each} ({unit} since 1970) is not in the years 1 to 9999")
    return values


def _local_times(array: pa.Array) -> list[Any]:
    return _within(array.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist(), _DAY_US)


def _instants(array: pa.Array) -> list[Any]:
    numbers = _within(array.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist(), _DAY_US)
    texts = np.datetime_as_string(np.array([each or 0 for each in numbers], "datetime64[us]"), unit="us")
    return [None if each is None else f"{text}Z" for each, text in zip(numbers, texts, strict=True)]


def _floats(array: pa.Array) -> list[Any]:
    values = array.to_pylist()
    if array.type == pa.float32():  # in its own digits: 0.1, and not 0.10000000149011612
        values = [None if each is None else float(str(np.float32(each))) for each in values]
    names = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
    return [
        each if each is None else "NaN" if each != each else names.get(each, each)  # noqa: PLR0124 - NaN
        for each in values
    ]


def _decimals(array: pa.Array) -> list[Any]:
    """Return base64 of the unscaled values: big-endian integers in two's complement."""
    size = array.type.byte_width
    data = array.buffers()[1].to_pybytes()[array.offset * size :] if len(array) else b""
    texts: list[str | None] = []
    for at, is_valid in enumerate(array.is_valid().to_pylist()):
        number = int.from_bytes(data[at * size : (at + 1) * size], "little", signed=True)
        number_bytes = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        texts.append(base64.b64encode(number_bytes).decode() if is_valid else None)
    return texts


def _texts(array: pa.Array) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        raise ValueError("a text is not UTF-8; cast it to BINARY") from None
    return values


def _lists(array: pa.Array) -> list[Any]:
    items = _encoder(array.type.value_type)(array.flatten())
    return [None if length is None else [*_next(items, length)] for items, length in _parts(items, array)]


def _maps(array: pa.Array) -> list[Any]:
    lists = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    keys, values = lists.flatten().flatten()
    entries = [*zip(_texts(keys), _encoder(array.type.item_type)(values), strict=True)]
    return [None if length is None else dict(_next(items, length)) for items, length in _parts(entries, lists)]


def _parts(items: Sequence[Any], lists: pa.Array) -> Iterator[tuple[Iterator[Any], int | None]]:
    rest = iter(items)
    for length in lists.value_lengths().to_pylist():
        yield rest, length


def _next(items: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        yield next(items)


_ENCODERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Encode], ...]] = (
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_), _bytes),
    (lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_), _texts),
    (pa.types.is_date, _days),
    (pa.types.is_time, _times_of_day),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_map, _maps),
    (lambda type_: pa.types.is_list(type_) or pa.types.is_large_list(type_), _lists),
)


# The tasks.


@dataclass(frozen=True)
class _RowPairs:
    """Finds the events of changes: for each one, its kind and the places of its old and its new row; -1 without.

    Args:
        keys: The names of the keys.
        columns: The names of the columns, behind the row kind.
        types: Their types.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    def _rows(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the columns of a batch, from the column `first` on. Raises RejectedError for a key that is NULL."""
        columns = [convert(batch.column(first + at), type_) for at, type_ in enumerate(self.types)]
        rows = pa.RecordBatch.from_arrays(columns, names=[*self.columns])
        for name in self.keys:
            if rows.column(name).null_count:
                raise RejectedError("SCHEMA_MISMATCH", _null_key(name))
        return rows

    def _batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a partition, so that each `+U` is in the batch of its `-U`."""
        buffered_batch: pa.RecordBatch | None = None
        for each in batches:
            batch = each if buffered_batch is None else concat_batches([buffered_batch, each])
            buffered_batch = None
            if batch.num_rows and batch.column(0)[-1].as_py() == "-U":
                buffered_batch, batch = batch.slice(batch.num_rows - 1), batch.slice(0, batch.num_rows - 1)
            if batch.num_rows:
                yield batch
        if buffered_batch is not None:
            yield buffered_batch

    def _events(self, kinds: pa.Array, rows: pa.RecordBatch) -> tuple[list[str], Indexes, Indexes]:
        row_kinds = np.array(kinds.to_pylist(), object)
        is_valid_kind = np.isin(row_kinds.astype(str), _KINDS)
        if not is_valid_kind.all():
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"a change has the row kind {row_kinds[~is_valid_kind][0]!r}, which is none of {', '.join(_KINDS)}",
            )
        count = len(row_kinds)
        is_pair = np.zeros(count, np.bool_)
        is_pair[:-1] = (row_kinds[:-1] == "-U") & (row_kinds[1:] == "+U")
        first = np.flatnonzero(is_pair)
        keys = rows.select([*self.keys])
        is_pair[first] = equal_rows(keys.take(pa.array(first)), keys.take(pa.array(first + 1)))
        is_second = np.zeros(count, np.bool_)
        is_second[1:] = is_pair[:-1]
        places = np.flatnonzero(~is_second)
        is_paired = is_pair[places]
        takes = np.isin(row_kinds[places].astype(str), ("-U", "-D"))
        before = np.where(takes, places, -1)
        after = np.where(is_paired, places + 1, np.where(takes, -1, places))
        inserts = row_kinds[places] == "+I"
        operations = np.select([is_paired, takes, inserts], ["u", "d", "c"], "u")
        return operations.tolist(), before, after


@dataclass(frozen=True)
class _Upserts(_RowPairs):
    """The task of `to_upserts`: the last row of each event, and whether it deletes its key."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(batches):
            rows = self._rows(batch, 1)
            _, before, after = self._events(batch.column(0), rows)
            last = rows.take(pa.array(np.where(after >= 0, after, before)))
            yield pa.RecordBatch.from_arrays([*last.columns, pa.array(after < 0)], names=[*self.columns, _IS_DELETED])


@dataclass(frozen=True)
class _Envelopes(_RowPairs):
    """The task of `to_debezium`.

    Args:
        has_kinds: Whether the first column is the row kind. The last one is the time of the epoch.
        without_kind: The operation of rows without kinds.
        block: The schema block of the values.
        key_block: The schema block of the keys.
        start: The position of epoch 0.
    """

    has_kinds: bool
    without_kind: str
    block: str
    key_block: str
    start: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(batches) if self.has_kinds else batches:
            if not batch.num_rows:
                continue
            rows = self._rows(batch, int(self.has_kinds))
            if self.has_kinds:
                operations, before, after = self._events(batch.column(0), rows)
            else:
                after = np.arange(batch.num_rows)
                operations, before = [self.without_kind] * batch.num_rows, np.full(batch.num_rows, -1)
            keys, values = self._texts(rows, operations, before, after, batch.column(batch.num_columns - 1)[0].as_py())
            yield pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=[_KEY, _VALUE])

    def _texts(
        self, rows: pa.RecordBatch, operations: list[str], before: Indexes, after: Indexes, now_ms: int
    ) -> tuple[list[str], list[str]]:
        texts_by_column = {name: self._encode_column(name, rows.column(name)) for name in self.columns}
        objects = [
            _json(dict(zip(texts_by_column, row, strict=True))) for row in zip(*texts_by_column.values(), strict=True)
        ]
        at = np.where(after >= 0, after, before)
        keys = [_json({name: texts_by_column[name][place] for name in self.keys}) for place in at.tolist()]
        source = {"connector": OWN_CONNECTOR, "name": _NAME, "ts_ms": now_ms, "lsn": self.start + self._epoch}
        rest = f'"source":{_json(source)},"op":"'
        values = [
            f'{{"schema":{self.block},"payload":{{"before":{"null" if old < 0 else objects[old]},'
            f'"after":{"null" if new < 0 else objects[new]},{rest}{operation}","ts_ms":{now_ms}}}}}'
            for operation, old, new in zip(operations, before.tolist(), after.tolist(), strict=True)
        ]
        return [f'{{"schema":{self.key_block},"payload":{key}}}' for key in keys], values

    def _encode_column(self, name: str, array: pa.Array) -> list[Any]:
        try:
            values = _encoder(array.type)(array)
        except ValueError as error:
            raise RejectedError("SCHEMA_MISMATCH", f"the column {name} cannot be an event's: {error}") from None
        for value in values:
            if type(value) is str and value in _UNAVAILABLE:
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"the column {name} has the value {value!r}, which readers take for a value that was not sent; "
                    "replace it",
                )
        return values

    @property
    def _epoch(self) -> int:
        task = TaskContext.get()
        epoch = None if task is None else task.getLocalProperty(EPOCH)
        return 0 if epoch is None else int(epoch)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
