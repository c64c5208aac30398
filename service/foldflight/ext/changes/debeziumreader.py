"""The task that reads Debezium's events: batches of messages of Kafka to batches of rows.

Events are decoded in Python, because the meaning of values may change from event to event: `connectvalues` says what
each value means, and `connectcolumns` reads the values of a batch together. A batch is read column by column. If that
raises, for whatever reason, it is read again value by value, which decides which values are refused, and in which
words.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import logging
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.query.layout import DEAD_LETTER, ROW_KIND
from foldflight.engine.stream.upserts import TIME
from foldflight.errors import RejectedError
from foldflight.ext.changes.connectcolumns import UNPROVEN, ReadColumn, column_reader
from foldflight.ext.changes.connectvalues import (
    COLUMN,
    Decode,
    DescribedColumn,
    UnreadableValue,
    UnsentValue,
    Words,
    decoder,
)
from foldflight.ext.changes.debeziumjson import (
    UNPARSED,
    ParseEvent,
    column_values,
    event_members,
    event_parser,
    row_values,
    sum_names,
)
from foldflight.ext.changes.debeziummessages import (
    FLATTENED,
    ROW_KINDS,
    SKIPPED,
    OldRows,
    Table,
    Tombstones,
    changes_no_row,
    check_operation,
    defaults_of,
    has_own_values,
    is_of,
    name_of,
    pattern_of,
    table_of,
    without_schema,
)
from foldflight.spark.rowkinds import hint_for_event
from foldflight.spark.worker import without_garbage_collection

Row = dict[str, Any]
Event = dict[str, Any]

VALUE, HEAD, KEY, PARTITION, OFFSET = "value", "head", "key", "partition", "offset"
"""The columns of messages. `partition` is a text that names the topic, too, and `head` the number of the text between
which and a last brace the value stood."""

SEQUENCE, DELETED, UNSENT = "debezium_sequence", "debezium_deleted", "debezium_unsent"
"""The columns that rows have with keys: the position of the event, whether it deletes, and the columns not sent."""

# Position in the log, then in Kafka: an event may be sent again at a later offset.
POSITION: Final = pa.struct(
    [
        ("log", pa.string()),
        ("position", pa.int64()),
        ("row", pa.int64()),
        ("offset", pa.int64()),
        ("partition", pa.int32()),
        ("is_snapshot", pa.bool_()),
        (TIME, pa.int64()),
    ]
)
LETTER: Final = pa.struct(
    [("code", pa.string()), ("message", pa.string()), ("key", pa.binary()), ("value", pa.binary())]
)
"""A dead letter: why an event is refused, and the bytes of its message."""

PAYLOAD: Final = b',"payload":'
"""What stands between the schema block and the rest of an event."""

SCHEMAS_MAX: Final = 1000
"""Schema blocks kept in memory; a topic has one for each version of its table."""

_NAMES: Final = ("db", "schema", "table")
_LOG: Final = ("lsn", "file", "pos", "row")
_COMMITTED: Final = {"ts_ms": 1, "ts_us": 1000}
_TIME_MS_END: Final = 1 << 53
_NO_ROWS: Final = (bool, int, str, list, Decimal)
_NO_ENVELOPE: Final = FLATTENED | {"schema"}
_UNPARSED: Final = object()  # an event that is left to `json`
# The exceptions of reading the members of an event that is no plain change, such as null.
_OF_OTHERS: Final[tuple[type[Exception], ...]] = (*UNPARSED, AttributeError, TypeError)
_WHOLE_ROWS: Final = "let the database send whole rows (PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL)"
_SELECT_KEY: Final = "select Kafka's columns key, topic, partition and offset beside value"
_DISPLAY_CHARS_MAX: Final = 80
_LOG_DIGITS: Final = 10  # MySQL's binary logs are numbered up to 2**31
_LOGGER: Final = "foldflight.spark"
_READERS_MAX: Final = 1000
# The table of the first event of each reader in this process, by `Reader.number`: tasks may begin with other tables.
_first_tables: dict[str, str] = {}


class UnreadableColumns(Exception):  # noqa: N818 - reasons, which the reader completes to an error
    """Why columns of one row are refused: sentences by the names of the columns."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(*reasons.values())
        self.reasons = reasons


class _RepeatedName(ValueError):  # noqa: N818 - the reader completes it to an error
    """An object of JSON has a name twice, of which parsers take either value."""


class UnreadableEvent(RejectedError):  # noqa: N818 - the reader completes it to an error
    """An event is refused for what it alone has, so that the others can be read without it."""

    def __init__(self, message: str) -> None:
        super().__init__("SCHEMA_MISMATCH", message)


def described_columns(block: Any) -> dict[str, DescribedColumn]:
    """Return the columns of a table as a schema block describes them; {} if it describes no row."""
    fields = block.get("fields") if isinstance(block, dict) else None
    if not isinstance(fields, list):
        return {}
    parts = {str(each.get("field")): each for each in fields if isinstance(each, dict)}
    for name in ("after", "before"):
        if name in parts and isinstance(parts[name].get("fields"), list):
            fields = parts[name]["fields"]
            break
    return {
        str(each["field"]): DescribedColumn.of(each) for each in fields if isinstance(each, dict) and "field" in each
    }


@dataclass(frozen=True, eq=False)
class _Plan:
    """How to read the events with one schema block, or those without.

    Args:
        values: How to read a value of each declared column; None if the block lacks the column.
        columns: How to read all values of a batch of each declared column.
        parse: Parses an event without making dicts; None if msgspec is missing or the events need `json`.
        is_described: Whether the events have a schema block.
        defaults: The defaults of columns, as the block tells them.
    """

    values: dict[str, Decode | None]
    columns: dict[str, ReadColumn]
    parse: ParseEvent | None
    is_described: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Messages:
    """A batch of messages of Kafka, whose keys, partitions and offsets may not be known.

    Args:
        batch: The columns.
        heads: The texts with which values begin. A value is stored as the number of its head, in the column `HEAD`, and
            the rest.
    """

    batch: pa.RecordBatch
    heads: Sequence[bytes] = ()

    @property
    def rests(self) -> pa.Array:
        """The values without their heads."""
        return self.batch.column(VALUE)

    @functools.cached_property
    def head_numbers(self) -> Sequence[int | None]:
        """The number of the head of each value; None for those without."""
        return self._column(HEAD) or [None] * len(self.rests)

    @functools.cached_property
    def heads_of_values(self) -> set[bytes | None]:
        """The heads of the values that are not NULL; None stands for those without."""
        if HEAD not in self.batch.schema.names:
            return {None}
        numbers = self.batch.column(HEAD).filter(self.rests.is_valid()).unique().to_pylist()
        return {None if number is None else self.heads[number] for number in numbers} or {None}

    def value(self, place: int) -> bytes | None:
        """Return the whole value of a message."""
        rest: bytes | None = self.rests[place].as_py()
        number = self.head_numbers[place]
        return rest if rest is None or number is None else self.heads[number] + rest + b"}"

    @functools.cached_property
    def keys(self) -> Sequence[bytes | None] | None:
        return self._column(KEY)

    @functools.cached_property
    def partitions(self) -> Sequence[str | None]:
        return self._column(PARTITION) or [None] * len(self.rests)

    @functools.cached_property
    def offsets(self) -> Sequence[int | None]:
        return self._column(OFFSET) or [None] * len(self.rests)

    def _column(self, name: str) -> list[Any] | None:
        return self.batch.column(name).to_pylist() if name in self.batch.schema.names else None

    def key(self, place: int) -> bytes | None:
        """Return the key of a message; None if it has none, or none is known."""
        return None if self.keys is None else self.keys[place]

    def name(self, place: int) -> str:
        """Return which message one is, for errors: its place in Kafka, its key, and its position in the log."""
        key, offset = self.key(place), self.offsets[place]
        parts = [
            self.partitions[place],
            None if offset is None else f"offset {offset}",
            None if key is None else f"key {_text_of(key)}",
            *_log_of(self.value(place)),
        ]
        place_text = ", ".join(filter(None, parts))
        return f" (the event: {place_text})" if place_text else ""


class _Change(NamedTuple):
    """What an event does to one row: the row as it is in the JSON, and how to read it; None if it has been read.

    With `keys`, `position` is the event's, and of a deleted row only the key is read.
    """

    kind: str
    row: Any
    plan: _Plan | None
    position: Row | None = None
    is_deleted: bool = False


@dataclass
class Reader:
    """The task that reads events: batches of messages to batches of rows.

    Args:
        types: The declared columns.
        words: What the user says about each of them.
        table: The only table that is read, or a pattern of its name. None: all events are of one table.
        fills_missing: Whether a column that an event lacks is NULL.
        is_case_sensitive: Whether names differ by case.
        keys: The primary key, if the last row of each key is kept.
        has_whole_rows: Whether the user says that old rows are whole.
        is_stream: Whether a stream reads the events.
        isolates: Whether an event that is refused becomes a dead letter. With keys.
        heads: Texts with which events begin, up to their payload, without which messages may come.
        number: Tells the reader from others in the processes of Spark's workers.
    """

    types: dict[str, pa.DataType]
    words: dict[str, Words]
    table: str | None
    fills_missing: bool
    is_case_sensitive: bool
    keys: tuple[str, ...] | None
    has_whole_rows: bool = False
    is_stream: bool = True
    isolates: bool = False
    heads: tuple[bytes, ...] = ()
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    _old_rows: OldRows = field(default_factory=OldRows)
    _by_block: dict[bytes, _Plan] = field(default_factory=dict)
    _latest: tuple[bytes, _Plan] | None = None  # how the latest event with a known schema block begins
    _tables: dict[Table, bool] = field(default_factory=dict)  # for each table of events, whether it is read
    _sums: set[int] = field(default_factory=set)  # of the names of events that have each name once

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each batch of events."""
        tombstones = Tombstones(SEQUENCE) if self.keys else None
        self._tables.clear()
        for batch in batches:
            messages = _Messages(batch, self.heads)
            attempt = copy.deepcopy(tombstones)
            try:
                with without_garbage_collection():
                    columns = self.by_column(messages, attempt)
            except (*UNPARSED, *UNPROVEN, UnreadableColumns, RejectedError):
                columns = self.by_value(messages, tombstones)
            else:
                tombstones = attempt
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if tombstones is not None and tombstones.is_waiting:
            if not self.is_stream:
                raise _schema_mismatch(
                    "a tombstone stands alone in what a task reads of its partition, so its place in the log of the "
                    "database is not known; read the events in order (repartition('topic', 'partition')"
                    ".sortWithinPartitions('offset')), or leave tombstones out (value IS NOT NULL)"
                )
            columns = self._columns([_Change("-D", row, None, row[SEQUENCE], True) for row in tombstones.rest()])
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self._warn_of_other_tables()

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        own = {
            ROW_KIND: pa.string(),
            SEQUENCE: POSITION,
            DELETED: pa.bool_(),
            UNSENT: pa.list_(pa.string()),
            DEAD_LETTER: LETTER,
        }
        names = [*([] if self.keys else [ROW_KIND]), *self.types, *((SEQUENCE, DELETED, UNSENT) if self.keys else [])]
        names += [DEAD_LETTER] if self.isolates else []
        return pa.schema([(name, self.types[name] if name in self.types else own[name]) for name in names])

    def by_value(self, messages: _Messages, tombstones: Tombstones | None) -> list[pa.Array]:
        """Return the columns of the rows. Raises RejectedError SCHEMA_MISMATCH with all columns that are refused.

        A column is refused in the words of its first refused value. Any other error is about the first event. A reader
        that isolates errors makes a dead letter of each event that is refused for its own content.
        """
        rows: list[Row] = []
        refused_columns: dict[str, tuple[str, str]] = {}
        for place in range(len(messages.rests)):
            try:
                for row in self._rows(messages.value(place), messages, place, tombstones):
                    rows.append(row)  # noqa: PERF402 - tombstones that come before an event that is refused
            except (UnreadableColumns, UnreadableEvent) as error:
                if self.isolates:
                    rows.append({DEAD_LETTER: _letter(error, messages, place)})
                    continue
                if isinstance(error, UnreadableEvent):
                    if refused_columns:
                        break
                    raise _schema_mismatch(f"{error.message}{messages.name(place)}") from None
                for name, reason in error.reasons.items():
                    refused_columns.setdefault(name, (reason, messages.name(place)))
            except RejectedError as error:
                if refused_columns:
                    break
                raise _schema_mismatch(f"{error.message}{messages.name(place)}") from None
        if refused_columns:
            by_event: dict[str, list[str]] = {}
            for reason, event in refused_columns.values():
                by_event.setdefault(event, []).append(reason)
            raise _schema_mismatch(
                "; also, ".join(f"{'; also, '.join(whys)}{event}" for event, whys in by_event.items())
            )
        return [pa.array([row.get(field.name) for row in rows], field.type) for field in self.schema]

    def _rows(
        self, value: bytes | None, messages: _Messages, place: int, tombstones: Tombstones | None
    ) -> Iterator[Row]:
        event, plan = self._parse_event(b"null" if value is None else value)
        for change in self._changes(event, plan, messages, place, tombstones):
            own = {ROW_KIND: change.kind, SEQUENCE: change.position, DELETED: change.is_deleted}
            if change.plan is None:
                yield {**change.row, **own, UNSENT: None}
            else:
                unsent_names: list[str] | None = [] if self._keeps_unsent and not change.is_deleted else None
                row = self._row(change.row, change.plan, self._names_read(change.is_deleted), unsent_names)
                yield {**row, **own, UNSENT: unsent_names or None}

    def by_column(self, messages: _Messages, tombstones: Tombstones | None) -> list[pa.Array]:
        """Return what `by_value` returns, or raise an error of `UNPARSED` or `UNPROVEN`, or one that refuses."""
        texts, common = self._without_common_block(messages)
        is_utf8 = _is_utf8(texts)  # a block that all of them begin with was read as JSON
        if is_utf8:
            self._check_names(texts)
            plan = common or (self._plan_without_schema if messages.heads_of_values == {None} else None)
            columns = None if plan is None else self._of_plain_changes(texts, plan, messages, tombstones)
            if columns is not None:
                return columns
        changes: list[_Change] = []
        for place, text in enumerate(texts.to_pylist()):
            event, plan = None, common or self._plan_without_schema
            if text is not None:
                if common is None:
                    text, plan = self._without_block(messages.value(place) or text)  # noqa: PLW2901
                event = self._parsed_quickly(text, plan) if is_utf8 else _UNPARSED
                if event is _UNPARSED:
                    whole = messages.value(place)
                    assert whole is not None
                    event, plan = self._parse_event(whole)
            changes.extend(self._changes(event, plan, messages, place, tombstones))
        return self._columns(changes)

    def _check_names(self, texts: pa.Array) -> None:
        """Raise ValueError if an event has a name twice in an object, which only `json` notices.

        Nearly all events of a table have the same names, so it reads one of them, and others with other names.
        """
        start = 0
        for sums in sum_names(texts):
            for unknown_sum in {*sums.tolist()} - self._sums:
                _json(texts[start + int(np.argmax(sums == unknown_sum))].as_py() or b"null")
                self._sums.add(unknown_sum)
            start += len(sums)

    def _of_plain_changes(
        self, texts: pa.Array, plan: _Plan, messages: _Messages, tombstones: Tombstones | None
    ) -> list[pa.Array] | None:
        """Return what `by_column` returns, if each event changes one row of the same table, and is read alike.

        Most batches are so. Members of events are collected in lists then, and no object is made for each change.

        Args:
            texts: The events without schema blocks.
            plan: How to read them.
            messages: The messages.
            tombstones: Those that wait for a message.
        """
        if plan.parse is None or not len(texts) or texts.null_count or (tombstones and tombstones.is_waiting):
            return None
        first = texts[0].as_py()
        try:
            if plan.parse(first).op not in ROW_KINDS:  # before all are parsed, since events may have schema blocks
                return None
            events = [*map(plan.parse, texts.to_pylist())]
            operations = [event.op for event in events]
            tables = {(source.db, source.schema, source.table) for source in [event.source for event in events]}
            if not set(operations) <= ROW_KINDS.keys() or len(tables) > 1:
                return None
        except _OF_OTHERS:
            return None
        if not self._is_read(dict(zip(_NAMES, *tables, strict=True))):
            return self._columns([])
        return (
            self._of_last_rows(events, plan, messages, tombstones)
            if tombstones
            else self._of_both_rows(events, plan, messages)
        )

    def _of_both_rows(self, events: Sequence[Any], plan: _Plan, messages: _Messages) -> list[pa.Array] | None:
        """Return the columns of plain changes, old rows and new ones."""
        kinds: list[str] = []
        rows: list[Any] = []
        for place, event in enumerate(events):
            match event.op:
                case "u":
                    kinds += ("-U", "+U")
                    rows += (event.before, event.after)
                case "d":
                    if event.before is None or (
                        not self.has_whole_rows and self._is_invented(event.before, plan, messages, place)
                    ):
                        return None
                    kinds.append("-D")
                    rows.append(event.before)
                case _:
                    kinds.append("+I")
                    rows.append(event.after)
        if type(None) in set(map(type, rows)):  # without comparing structs
            return None
        columns = [read_column(column_values(rows, at), None) for at, read_column in enumerate(plan.columns.values())]
        return [pa.array(kinds, pa.string()), *columns]

    def _of_last_rows(
        self, events: Sequence[Any], plan: _Plan, messages: _Messages, tombstones: Tombstones
    ) -> list[pa.Array] | None:
        """Return the columns of plain changes with keys: the last row of each event, and its position.

        Changes of MySQL, whose positions are of other kinds, are left to the other way.
        """
        sources = [event.source for event in events]
        positions = [source.lsn for source in sources]
        is_deleted = [event.op == "d" for event in events]
        rows = [event.before if deletes else event.after for event, deletes in zip(events, is_deleted, strict=True)]
        if type(None) in set(map(type, rows)) or set(map(type, positions)) != {int}:
            return None
        names_by_place: dict[int, list[str]] = {}
        columns = []
        deleted_places = [place for place, deletes in enumerate(is_deleted) if deletes]
        for at, (name, read_column) in enumerate(plan.columns.items()):
            values = column_values(rows, at)
            is_key = name in (self.keys or ())
            if not is_key:
                for place in deleted_places:
                    values[place] = None
            own: list[int] | None = [] if self._keeps_unsent and not is_key else None
            columns.append(read_column(values, own))
            for place in own or ():
                names_by_place.setdefault(place, []).append(name)
        count = len(events)
        log = {
            "log": pa.array([""] * count),
            "position": pa.array(positions, pa.int64()),
            "row": pa.array(np.zeros(count, np.int64)),
            "offset": pa.array([offset or 0 for offset in messages.offsets], pa.int64()),
            "partition": pa.array([*map(_number_of, messages.partitions)], pa.int32()),
            "is_snapshot": pa.array([event.op == "r" for event in events]),
            TIME: pa.array([_committed_ms(source.ts_ms, source.ts_us) for source in sources], pa.int64()),
        }
        for partition, place in dict(zip(messages.partitions, range(count), strict=True)).items():
            last = event_members(events[place])
            position = _position(last["source"], messages, place, is_snapshot=last["op"] == "r")
            tombstones.note(position, partition)
        own_columns = [
            pa.StructArray.from_arrays([log[field.name] for field in POSITION], fields=[*POSITION]),
            pa.array(is_deleted),
            pa.array([names_by_place.get(place) for place in range(count)], pa.list_(pa.string())),
        ]
        return [*columns, *own_columns, *([pa.nulls(count, LETTER)] if self.isolates else [])]

    def _columns(self, changes: Sequence[_Change]) -> list[pa.Array]:
        """Return the columns of rows. Rows that are read in the same way are read together, column by column."""
        ways: dict[tuple[_Plan | None, bool, bool], list[int]] = {}
        for place, change in enumerate(changes):
            ways.setdefault((change.plan, isinstance(change.row, dict), change.is_deleted), []).append(place)
        names_by_place: dict[int, list[str]] = {}
        parts = [self._read_alike(changes, places, names_by_place, *way) for way, places in ways.items()]
        columns = parts[0] if len(parts) == 1 else {}
        if len(parts) != 1:
            order = pc.array_sort_indices(pa.array([place for places in ways.values() for place in places], pa.int64()))
            for name, type_ in self.types.items():
                columns[name] = pa.concat_arrays([pa.nulls(0, type_), *(part[name] for part in parts)]).take(order)
        own: dict[str, list[Any]] = {
            ROW_KIND: [change.kind for change in changes],
            SEQUENCE: [change.position for change in changes],
            DELETED: [change.is_deleted for change in changes],
            UNSENT: [names_by_place.get(place) for place in range(len(changes))],
            DEAD_LETTER: [None] * len(changes),
        }
        return [
            columns[field.name] if field.name in self.types else pa.array(own[field.name], field.type)
            for field in self.schema
        ]

    def _read_alike(
        self,
        changes: Sequence[_Change],
        places: Sequence[int],
        names_by_place: dict[int, list[str]],
        plan: _Plan | None,
        is_dict: bool,
        is_deleted: bool,
    ) -> dict[str, pa.Array]:
        rows = [changes[place].row for place in places]
        if plan is None:
            return {name: pa.array([row[name] for row in rows], type_) for name, type_ in self.types.items()}
        names = self._names_read(is_deleted)
        values = [self._values(row, plan, names) for row in rows] if is_dict else [*map(row_values, rows)]
        of_column = dict(zip(names if is_dict else self.types, zip(*values, strict=True), strict=True))
        columns = {}
        for name, type_ in self.types.items():
            if name not in names:
                columns[name] = pa.nulls(len(rows), type_)
                continue
            is_whole = is_deleted or name in (self.keys or ()) or not self._keeps_unsent
            own: list[int] | None = None if is_whole else []
            columns[name] = plan.columns[name](of_column[name], own)
            for place in own or ():
                names_by_place.setdefault(places[place], []).append(name)
        return columns

    @property
    def _keeps_unsent(self) -> bool:
        """Whether a row keeps values that an event did not send. A dead letter must not provide such values."""
        return self.keys is not None and not self.isolates

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
                yield from (_Change("-D", row, None, row[SEQUENCE], True) for row in ready)
                yield change
            return
        # Without its place in Kafka, one that a task reads alone would stand before the row that it should delete.
        has_place = partition is not None and messages.offsets[place] is not None
        if messages.keys is None or not has_place:
            missing_part = "key" if messages.keys is None else "place in Kafka"
            raise _schema_mismatch(
                "a message has no value, so it is a tombstone, which deletes the row of its key, and its "
                f"{missing_part} is not known; {_SELECT_KEY}, or leave the tombstones out (value IS NOT NULL)"
            )
        deleted_row = self._row_of_key(messages.keys[place], "a tombstone", of_any_table=False)
        if deleted_row is not None:
            ready = tombstones.add(deleted_row, partition, _place(messages, place))
            yield from (_Change("-D", row, None, row[SEQUENCE], True) for row in ready)

    def _row_of_key(self, message_key: bytes | None, what: str, *, of_any_table: bool) -> Row | None:
        """Return a row with the columns of the key of a message; None if the message is of another table.

        Args:
            message_key: The key of the message.
            what: The message, for errors.
            of_any_table: Whether the table is known already. Otherwise only the schema block of the key names it.
        """
        assert self.keys is not None
        try:
            key = None if message_key is None else _json(message_key)
        except ValueError as error:
            is_registered = (message_key or b"")[:1] == b"\0"
            reason = (
                "written with a schema registry" if is_registered else f"not JSON ({error}): {_text_of(message_key)}"
            )
            raise (_schema_mismatch if is_registered else UnreadableEvent)(
                f"{what} has a key that is {reason}"
                "; set the connector's key.converter to JSON, or leave such messages out (value IS NOT NULL)"
            ) from None
        plan, block = self._plan_without_schema, None
        if isinstance(key, dict) and set(key) == {"schema", "payload"}:
            key, block = key["payload"], key["schema"]
            plan = self._plan(block)
        if self.table is not None and not of_any_table:
            name = block.get("name") if isinstance(block, dict) else None
            stem = name.removesuffix(".Key").partition(".")[2] if isinstance(name, str) else ""  # without the prefix
            if not stem or not is_of(self.table, stem):
                return None
        if len(self.keys) == 1 and key is not None and not isinstance(key, dict | list):
            key = {self.keys[0]: key}
        if not isinstance(key, dict):
            raise UnreadableEvent(
                f"{what} has the key {_text_of(key)}, which does not hold {', '.join(self.keys)}, the columns of "
                "keys=; leave such messages out (value IS NOT NULL)"
            )
        return self._row(key, plan, self.keys)

    def _of_event(self, event: Any, plan: _Plan, messages: _Messages, place: int) -> Iterator[_Change]:
        """Yield what an event does. Raises RejectedError SCHEMA_MISMATCH."""
        if not isinstance(event, dict):
            raise UnreadableEvent(f"an event is not an object: {_text_of(messages.value(place))}")
        op, source = event.get("op"), event.get("source")
        if op is None or not FLATTENED.isdisjoint(event):
            yield from self._without_op(event, plan, messages, place)
            return
        if op in SKIPPED or not self._is_read(source):
            return
        check_operation(op)
        before, after = event.get("before"), event.get("after")
        if self.keys:
            position = _position(source, messages, place, is_snapshot=op == "r")
            if op != "d":
                if after is None:
                    raise UnreadableEvent(f"an event lacks its new row, after; its operation is {op}")
                yield _Change(ROW_KINDS[op], after, plan, position)
            elif before is not None:
                yield _Change("-D", before, plan, position, is_deleted=True)
            else:
                yield _Change("-D", self._deleted_by_key(messages.key(place)), None, position, is_deleted=True)
            return
        if op in ("u", "d"):
            self._check_old_row(event, plan, messages, place)
            yield _Change("-U" if op == "u" else "-D", before, plan)
        if op != "d":
            if after is None:
                raise _schema_mismatch("an event lacks its new row, after")
            yield _Change(ROW_KINDS[op], after, plan)

    def _deleted_by_key(self, key: bytes | None) -> Row:
        """Return the row that a delete without its old row names by the key of its message."""
        if key is None:
            raise _schema_mismatch(
                f"an event lacks its old row, before; its operation is d; {_SELECT_KEY}, or {_WHOLE_ROWS}"
            )
        row = self._row_of_key(key, "a delete without its old row", of_any_table=True)
        assert row is not None
        return row

    def _check_old_row(self, event: Event, plan: _Plan, messages: _Messages, place: int) -> None:
        """Refuse the old row of an update or a delete if it is not there, or is not whole."""
        before, after, is_delete = event.get("before"), event.get("after"), event.get("op") == "d"
        of_keys = "or give keys= to keep the last row of each key"
        if before is None:
            raise _schema_mismatch(f"an event lacks its old row, before; {_WHOLE_ROWS}, {of_keys}")
        if isinstance(before, _NO_ROWS):
            return  # which is refused when it is read
        if isinstance(before, dict) and not (is_delete and plan.is_described):
            absent = [name for name in self.types if not self._has(before, name)]
            missing_names = [name for name in absent if is_delete or self._has(after, name)]
            is_misspelt = is_delete and not self.fills_missing and all(_similar(name, before) for name in missing_names)
            if missing_names and not is_misspelt and not (self.fills_missing and self.has_whole_rows):
                raise _schema_mismatch(
                    f"the old row of an event, before, lacks {_columns(missing_names)}, as where the database does not "
                    f"log whole old rows: {_text_of(before)}; {_WHOLE_ROWS}, {of_keys}. If old rows are whole, and a "
                    "column was added later, write missing='null' and replica_identity='full'"
                )
        if is_delete and not self.has_whole_rows and self._is_invented(before, plan, messages, place):
            raise _schema_mismatch(
                f"the old row of a delete may hold the key only, and values of the connector: {_text_of(before)}; "
                f"{_WHOLE_ROWS} and write replica_identity='full', {of_keys}"
            )

    def _is_read(self, source: Any) -> bool:
        """Return whether an event is of the table that is read. Raises RejectedError SCHEMA_MISMATCH.

        Args:
            source: What the event says: `table`, and `schema` and `db` if it names them.
        """
        table = table_of(source)
        if table is None:
            if self.table is None:
                return True
            raise _schema_mismatch(
                f"an event does not name its table, so it is not known whether it is of {self.table}; let it have "
                "source.table (flattened events: add table to add.fields), or leave table= out"
            )
        try:
            is_read = self._tables.get(table)
        except TypeError:
            raise _schema_mismatch(
                f"an event has a source.table, source.schema or source.db that is no text: {source}"
            ) from None
        if is_read is None:
            is_read = self._tables[table] = self._is_table_read(name_of(table))
        return is_read

    def _is_table_read(self, name: str) -> bool:
        """Return whether a table is read whose events have not come before. Raises RejectedError SCHEMA_MISMATCH."""
        if self.table is None:
            if self.number not in _first_tables and len(_first_tables) >= _READERS_MAX:
                _first_tables.clear()
            first = _first_tables.setdefault(self.number, name)
            if first != name:
                raise _schema_mismatch(
                    f"events are of two tables, {first} and {name}, whose rows would be added together; write "
                    f"table={first!r} to read one, or the pattern table={pattern_of(first, name)!r} if they are parts "
                    "of one table"
                )
            return True
        if is_of(self.table, name):
            return True
        if is_of(self.table.casefold(), name.casefold()):
            raise _schema_mismatch(
                f"table is {self.table!r}, and an event is of {name}, which differs by case only; write the name as "
                "the database has it, or leave the events of the other table out"
            )
        return False

    def _warn_of_other_tables(self) -> None:
        """Tell in the log of the worker if no event was of the table, and one of another table that may be meant."""
        if self.table is None or not self._tables or any(self._tables.values()):
            return
        names = [*map(name_of, self._tables)]
        table_name = self.table.rpartition(".")[2]
        likely = [name for name in names if name.rpartition(".")[2] == table_name]
        likely += difflib.get_close_matches(self.table, names)
        if likely:
            logging.getLogger(_LOGGER).warning(
                "from_debezium: a task read no event of table=%r, and events of %s; did you mean that one?",
                self.table,
                likely[0],
            )

    def _is_invented(self, before: Any, plan: _Plan, messages: _Messages, place: int) -> bool:
        """Return whether the old row of a delete may hold the key only, and values of the connector."""
        key, has_key = messages.key(place), messages.keys is not None
        if not isinstance(before, dict):  # a struct, which holds the declared columns
            row = zip(self.types, row_values(before), strict=True)
            if has_own_values(row, plan.defaults, key, has_key=has_key):
                return False
        return self._old_rows.is_invented(messages.value(place) or b"", key, has_key=has_key)

    def _without_op(self, event: Event, plan: _Plan, messages: _Messages, place: int) -> Iterator[_Change]:
        """Yield what an event without an envelope does: it is flattened, or changes no row."""
        if changes_no_row(event):
            return
        text = _text_of(messages.value(place))
        if tool := hint_for_event(event):
            raise _schema_mismatch(f"an event is not of Debezium, {tool}: {text}")
        if self.keys is None:
            raise _schema_mismatch(
                "an event has no operation op, so it is flattened (ExtractNewRecordState) or not of Debezium: "
                f"{text}; give keys= to read flattened events, or remove the transformation"
            )
        op, removal = event.get("__op"), event.get("__deleted")
        if op is not None:
            check_operation(op)
        elif removal not in ("true", "false"):
            raise _schema_mismatch(
                "a flattened event does not say whether it deletes its row; set add.fields=op,lsn and "
                f"delete.tombstone.handling.mode=rewrite: {text}"
            )
        source = {name: event.get(f"__{name}", event.get(f"__source_{name}")) for name in (*_LOG, *_NAMES)}
        # Without the prefix they are the times at which the connector read the event.
        source |= {name: event.get(f"__source_{name}") for name in _COMMITTED}
        if not self._is_read(source):
            return
        position = _position(source, messages, place, is_snapshot=op == "r")
        is_deleted = removal == "true" if op is None else op == "d"
        yield _Change("-D" if is_deleted else "+U", event, plan, position, is_deleted)

    def _row(self, row: Any, plan: _Plan, names: Sequence[str], unsent_names: list[str] | None = None) -> Row:
        """Return the declared columns of a row, with NULL for those that are not read.

        With `unsent_names`, large values that were not sent are NULL, and it gets their names.

        Raises:
            UnreadableColumns: With all columns whose values are refused.
        """
        result: Row = dict.fromkeys(self.types)
        refused_columns: dict[str, str] = {}
        members = self._members(row)
        lacks = [name for name in names if self._is_refused(name, row, members, plan)]
        if lacks:
            refused_columns[lacks[0]] = self._lacks(lacks, row)
        there = [name for name in names if name not in lacks]
        for name, value in zip(there, self._values(row, plan, there), strict=True):
            decode = plan.values[name]
            try:
                result[name] = None if value is None or decode is None else decode(value)
            except UnreadableValue as error:
                if isinstance(error, UnsentValue) and unsent_names is not None and name not in (self.keys or ()):
                    unsent_names.append(name)
                    continue
                reason = str(error).replace(COLUMN, repr(name))
                refused_columns[name] = f"the column {name} of an event has the value {_text_of(value)}, {reason}"
        if refused_columns:
            raise UnreadableColumns(refused_columns)
        return result

    def _values(self, row: Any, plan: _Plan, names: Sequence[str]) -> list[Any]:
        """Return the values of columns in the JSON of a row, NULL for those that it lacks.

        Raises:
            UnreadableColumns: If it lacks one that is not filled.
            RejectedError: SCHEMA_MISMATCH, if it is no object.
        """
        members = self._members(row)
        values = []
        for name in names:
            if self._is_refused(name, row, members, plan):
                raise UnreadableColumns({name: self._lacks([name], row)})
            member = name if name in row else members.get(name.casefold(), name)
            values.append(row.get(member))
        return values

    def _is_refused(self, name: str, row: Any, members: Mapping[str, str], plan: _Plan) -> bool:
        """Return whether a row lacks a column that is not filled, or has one that its schema block does not describe.

        Args:
            name: The column.
            row: The row.
            members: What `_members` returns for the row.
            plan: How to read the row.
        """
        is_there = name in row or name.casefold() in members
        return plan.values[name] is None if is_there else not self.fills_missing

    def _members(self, row: Any) -> Mapping[str, str]:
        """Return the names of a row by their lower case; nothing if that is not needed.

        Raises:
            UnreadableColumns: If two differ by case only, and the declared name is neither.
            UnreadableEvent: If the row is no object.
        """
        if not isinstance(row, dict):
            raise UnreadableEvent(f"the row of an event is not an object: {_text_of(row)}")
        if self.is_case_sensitive or self.types.keys() <= row.keys():  # most events have the names as declared
            return {}
        members: dict[str, str] = {}
        for each in row:
            other = members.setdefault(each.casefold(), each)
            if other == each:
                continue
            name = next((name for name in self.types if name.casefold() == each.casefold()), each)
            if name not in row:
                reason = f"an event has the columns {other} and {each}, and the column {name} may be either; "
                raise UnreadableColumns({name: f"{reason}write its name as the database has it"})
        return members

    def _has(self, row: Any, name: str) -> bool:
        return isinstance(row, dict) and (name in row or name.casefold() in self._members(row))

    def _lacks(self, names: Sequence[str], row: Any) -> str:
        """Return why columns of a row are not read, which are not there or which its schema block does not describe."""
        absent = [name for name in names if not self._has(row, name)]
        undescribed_names = [name for name in names if name not in absent]
        reason = []
        if undescribed_names:
            reason.append(
                f"the schema block of an event does not describe {_columns(undescribed_names)}, which its payload "
                "has; what writes or changes the events must add it to the block, or leave the block out"
            )
        if absent:
            near = {name: similar_names[0] for name in absent if (similar_names := _similar(name, row))}
            suggestion = " and ".join(
                similar_names if len(absent) == 1 else f"{similar_names} for {name}"
                for name, similar_names in near.items()
            )
            hint = f"did you mean {suggestion}?" if near else f"it has {', '.join(row)}."
            reason.append(
                f"an event lacks {_columns(absent)}; {hint} A column that was added later is NULL in older events with "
                "missing='null', and table= keeps the events of one table"
            )
        return "; also, ".join(reason)

    def _without_common_block(self, messages: _Messages) -> tuple[pa.Array, _Plan | None]:
        """Return events without the schema block with which all of them begin; with None if they do not."""
        values = messages.rests
        heads = [*messages.heads_of_values]
        if heads != [None]:
            return values, self._plan_of_head(heads[0]) if len(heads) == 1 and heads[0] is not None else None
        first = next((value.as_py() for value in values if value.is_valid), b"")
        if first.endswith(b"}") and PAYLOAD in first:
            self._parse_event(first)
            self._without_block(first)
        if self._latest is None:
            return values, None
        begin, plan = self._latest
        if not (pc.all(pc.starts_with(values, begin)).as_py() and pc.all(pc.ends_with(values, b"}")).as_py()):
            return values, None
        return pc.binary_slice(values, len(begin), -1), plan

    def _plan_of_head(self, head: bytes) -> _Plan:
        """Return how to read events that begin with a text up to their payload."""
        block = head.removesuffix(PAYLOAD)
        if block not in self._by_block:
            self._by_block[block] = self._plan(_json(block + b"}")["schema"])
        return self._by_block[block]

    def _without_block(self, value: bytes) -> tuple[bytes, _Plan]:
        """Return an event without its schema block, if this is known, and how to read the rest."""
        if self._latest is not None and value.startswith(self._latest[0]) and value.endswith(b"}"):
            return value[len(self._latest[0]) : -1], self._latest[1]
        if self._by_block:
            head, mark, rest = value.partition(PAYLOAD)
            if mark and head in self._by_block and value.endswith(b"}"):
                self._latest = head + mark, self._by_block[head]
                return rest[:-1], self._by_block[head]
        return value, self._plan_without_schema

    def _parsed_quickly(self, text: bytes, plan: _Plan) -> Any:
        """Return what `_parse_event` returns, with only the members of the event that are read, and rows as structs."""
        if plan.parse is None:
            return _UNPARSED
        try:
            event = plan.parse(text)
        except UNPARSED:
            return _UNPARSED
        if event is None:
            return None
        return _UNPARSED if event.op is None else event_members(event)

    def _parse_event(self, value: bytes) -> tuple[Any, _Plan]:
        """Return the event without its schema block, and how to read its rows."""
        if value.strip() == b"null":
            return None, self._plan_without_schema
        # The same block begins nearly all events of a table, and is longer than the rest: it is parsed once.
        text, plan = self._without_block(value)
        if len(text) < len(value):
            try:
                return _json(text), plan
            except ValueError:
                pass  # more members follow
        try:
            event = _json(value)
        except ValueError as error:
            if value[:1] == b"\0":
                raise _schema_mismatch(
                    "an event was written with a schema registry (its first byte is 0): decode it first, for example "
                    "with from_avro, and give the columns op, before and after"
                ) from None
            reason = error if isinstance(error, _RepeatedName) else f"is not JSON ({error})"
            raise UnreadableEvent(f"an event {reason}: {_text_of(value)}") from None
        payload, block = without_schema(event)
        plan = self._plan(block)
        if payload is not event and event.keys() == {"schema", "payload"}:
            head, mark, _ = value.partition(PAYLOAD)
            if mark and len(self._by_block) < SCHEMAS_MAX and is_block(head):
                self._by_block[head] = plan
        return payload, plan

    def _plan(self, block: Any) -> _Plan:
        descriptions = described_columns(block)
        if not descriptions:
            return self._plan_without_schema
        fold = str if self.is_case_sensitive else str.casefold
        by_name = {fold(name): each for name, each in descriptions.items()}
        description_by_name = {name: descriptions.get(name) or by_name.get(fold(name)) for name in self.types}
        values, columns = {}, {}
        for name, type_ in self.types.items():
            is_lacking = description_by_name[name] is None
            values[name] = None if is_lacking else decoder(type_, description_by_name[name], self.words[name])
            columns[name] = column_reader(type_, description_by_name[name], self.words[name])
        parse = None if None in values.values() else self._parse
        return _Plan(values, columns, parse, is_described=True, defaults=defaults_of(block))

    @functools.cached_property
    def _plan_without_schema(self) -> _Plan:
        """How to read events without a schema block."""
        return _Plan(
            {name: decoder(type_, None, self.words[name]) for name, type_ in self.types.items()},
            {name: column_reader(type_, None, self.words[name]) for name, type_ in self.types.items()},
            self._parse,
        )

    @functools.cached_property
    def _parse(self) -> ParseEvent | None:
        source = (*_NAMES, *((*_LOG, *_COMMITTED) if self.keys else ()))
        return event_parser(tuple(self.types), source, sorted(_NO_ENVELOPE))


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def is_block(head: bytes) -> bool:
    """Return whether a text is an object up to its schema block: `{"schema": ...` without the last brace."""
    try:
        return set(json.loads(head + b"}")) == {"schema"}
    except ValueError:
        return False


def _json(text: bytes) -> Any:
    """Return the value of JSON; numbers with a fraction as Decimal. Raises ValueError."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_not_json, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except InvalidOperation:
        raise ValueError("a number has too large an exponent") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated_name = next(name for name in names if names.count(name) > 1)
        raise _RepeatedName(f"has the name {repeated_name!r} twice in an object, and parsers of JSON take either value")
    return members


def _not_json(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _position(source: Any, messages: _Messages, place: int, *, is_snapshot: bool) -> Row:
    """Return the position of an event in the log of its database. Raises RejectedError SCHEMA_MISMATCH without one."""
    log = source if isinstance(source, dict) else {}
    rest, time = _place(messages, place, is_snapshot=is_snapshot), {TIME: _committed_ms(*map(log.get, _COMMITTED))}
    lsn, file, offset, row = map(log.get, _LOG)
    if _is_long(lsn):
        return {"log": "", "position": lsn, "row": 0, **rest, **time}
    row = row or 0
    # JSON may hold half of a surrogate pair, which is not printable.
    if type(file) is str and file.isprintable() and _is_long(offset) and _is_long(row):
        name, _, number = file.rpartition(".")  # of binlog.999999 and binlog.1000000 the second is later
        return {"log": f"{name}.{number:0>{_LOG_DIGITS}}", "position": offset, "row": row, **rest, **time}
    raise _schema_mismatch(
        "an event has no position in the log of its database (source.lsn, or source.file and source.pos), so the last "
        "row of a key is not known; for flattened events set add.fields=op,lsn, or use upserts(df, sequence_by=...)"
    )


def _is_long(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _committed_ms(milliseconds: Any, microseconds: Any) -> int | None:
    """Return when the database committed an event, in whole milliseconds; None if it does not say that.

    Not all versions of Debezium tell microseconds, and an event that is sent again by a later one would seem later.
    """
    for time, times in zip((milliseconds, microseconds), _COMMITTED.values(), strict=True):
        if type(time) is int and 0 < time // times < _TIME_MS_END:
            return time // times
    return None


def _place(messages: _Messages, place: int, *, is_snapshot: bool = False) -> Row:
    """Return where a message is in Kafka: the part of its position that does not come from the log."""
    number = _number_of(messages.partitions[place])
    return {"offset": messages.offsets[place] or 0, "partition": number, "is_snapshot": is_snapshot}


@functools.cache
def _number_of(partition: str | None) -> int:
    """Return a number that tells partitions apart."""
    return zlib.crc32((partition or "").encode()) >> 1


def _log_of(value: bytes | None) -> Iterator[str]:
    """Yield where in the log of the database an event is, as far as it says that."""
    try:
        event, _ = without_schema(json.loads(value or b"null"))
    except (ValueError, RecursionError):
        return
    if not isinstance(event, dict):
        return
    source = event["source"] if isinstance(event.get("source"), dict) else {}
    for name in _LOG:
        position = source.get(name, event.get(f"__{name}"))
        if position is not None:
            yield f"{name} {position}"


def _letter(error: UnreadableColumns | UnreadableEvent, messages: _Messages, place: int) -> Row:
    """Return the dead letter of an event."""
    reason = error.message if isinstance(error, UnreadableEvent) else "; also, ".join(error.reasons.values())
    message = _escape_surrogates(f"{reason}{messages.name(place)}")
    return {
        "code": "SCHEMA_MISMATCH",
        "message": message,
        "key": messages.key(place),
        "value": messages.value(place),
    }


def _columns(names: Sequence[str]) -> str:
    return f"the column{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _similar(name: str, row: Row) -> list[str]:
    return difflib.get_close_matches(name, row, 1)


def _text_of(value: object) -> str:
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
    else:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _DISPLAY_CHARS_MAX else f"{text[:_DISPLAY_CHARS_MAX]}..."


def _schema_mismatch(message: str) -> RejectedError:
    return RejectedError("SCHEMA_MISMATCH", _escape_surrogates(message))


def _escape_surrogates(message: str) -> str:
    """Return a message as it can be written in UTF-8: a name in JSON may have half of a surrogate pair."""
    return message.encode(errors="backslashreplace").decode()
