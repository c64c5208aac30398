"""What the messages of Debezium mean: their operations and tables, deletes with invented rows, and tombstones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from foldflight.engine.stream.upserts import NO_POSITION, TIME
from foldflight.errors import RejectedError

Table = tuple[Any, Any, Any]
"""The database, the schema and the name of a table, as its events say them; None for what they do not say."""

ROW_KINDS: Final[Mapping[str, str]] = {"c": "+I", "r": "+I", "u": "+U", "d": "-D"}
"""The operations that change a row: inserts, rows of a snapshot, updates, deletes."""

SKIPPED: Final = ("m",)
"""The operations that change no row: messages of PostgreSQL's `pg_logical_emit_message`."""

FLATTENED: Final = frozenset({"__op", "__deleted"})
"""Only flattened events have these members, beside columns of any names."""

_REFUSED: Final[Mapping[str, str]] = {
    "t": "it empties the table, which no rows tell; delete the rows of the table by DELETE, or start again from a "
    "snapshot",
}
_OTHERWISE: Final = "remove such events from the input, or start again from a snapshot"
_HEARTBEATS: Final = ({"ts_ms"}, {"ts_ms", "ts_us", "ts_ns"})
_TRANSACTION: Final = frozenset({"status", "id", "event_count", "data_collections"})


def check_operation(op: object) -> None:
    """Refuse an operation that does not change single rows. Raises RejectedError SCHEMA_MISMATCH."""
    name = op if isinstance(op, str) else ""  # JSON may hold an array, which no dict has as a key
    if name not in ROW_KINDS:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the operation of an event is {op}, which is not one of {', '.join(ROW_KINDS)}; "
            f"{_REFUSED.get(name, _OTHERWISE)}",
        )


def changes_no_row(event: Mapping[str, Any]) -> bool:
    """Return whether a message without an operation is a heartbeat, a transaction marker or a change of a schema."""
    names = set(event)
    if not names.isdisjoint(FLATTENED):
        return False
    is_schema_change = "source" in names and not names.isdisjoint({"ddl", "tableChanges"})
    return names in _HEARTBEATS or names >= _TRANSACTION or is_schema_change


def without_schema(message: Any) -> tuple[Any, Any]:
    """Return the event of a message and its schema block, None if it has none.

    A message with a schema block has the members `schema` and `payload`. An event may have members of these names, too:
    a flattened one holds the columns of the table.
    """
    if isinstance(message, dict) and "payload" in message:
        is_event = not message.keys().isdisjoint({"op", *FLATTENED})
        if message.keys() == {"schema", "payload"} or not is_event:
            return message["payload"], message.get("schema")
    return message, None


def table_of(source: object) -> Table | None:
    """Return the table of an event by what it says of its source: `table`, and `schema` and `db` if it names them."""
    if not isinstance(source, dict):
        return None
    table = source.get("db"), source.get("schema"), source.get("table")
    return None if table[2] is None else table


def name_of(table: Table) -> str:
    """Return the name of a table with the database and the schema, as far as its events say them."""
    return ".".join(str(part) for part in table if part)


def is_of(pattern: str, name: str) -> bool:
    """Return whether a table has a name, of which it or the pattern may lack the first parts.

    Args:
        pattern: `schema.table`, `database.table` or `database.schema.table`, in which `*` stands for any part of a
            name without points.
        name: The name of the table.
    """
    parts = pattern.split(".")
    return re.fullmatch(expression_of(pattern), name) is not None or any(
        re.fullmatch(_table_regex(".".join(parts[first:])), name) for first in range(1, len(parts))
    )


def expression_of(pattern: str) -> str:
    """Return the regular expression, of Python and of Java, for names of tables that a pattern stands for."""
    return rf"(?:.*\.)?{_table_regex(pattern)}"


def pattern_of(one: str, other: str) -> str:
    """Return a pattern for the names of two tables."""
    parts = one.split("."), other.split(".")
    if len(parts[0]) != len(parts[1]) or len(parts[0]) == 1:
        return "*.*"
    return ".".join(first if first == second else "*" for first, second in zip(*parts, strict=True))


def _table_regex(pattern: str) -> str:
    return r"[^.]*".join(map(re.escape, pattern.split("*")))


OWN_CONNECTOR: Final = "foldflight"
"""What `source.connector` is in the events of `to_debezium`."""

_DEFAULTS_MAX: Final = 2  # columns with a DEFAULT that no schema block tells
_BLOCKS_MAX: Final = 1000
# Texts that stand for zero: of numbers, dates and times of all modes, intervals, UUIDs, and base64 of bytes of zero.
_ZERO_TIME: Final = r"00:00(:00(\.0+)?)?"
_ZERO_ZONE: Final = r"(Z|[+-]00(:?00)?)?"
_ZERO_TEXT: Final = re.compile(
    r"|\s+|[0-]+|[-+]?0+\.0*|(A{4})*(AA==|AAA=|A{4})|\{\s*\}|\[\s*\]|P(T?0+(\.0+)?[YMWDHS])+(T(0+(\.0+)?[HMS])+)?"
    rf"|{_ZERO_TIME}{_ZERO_ZONE}|1970-01-01([T ]{_ZERO_TIME})?{_ZERO_ZONE}"
)

_FIRST_OF_ZERO: Final = "0-+A{[P1"  # with what such texts begin, beside space


@dataclass(frozen=True)
class _Column:
    """What a schema block says about a column."""

    is_optional: bool
    default: Any


@dataclass
class OldRows:
    """Tells old rows of deletes in which only the key is of the database, and the connector has invented the rest.

    Without whole old rows in the log of the database (PostgreSQL's default replica identity, MySQL's minimal images),
    the old row of a delete holds the key. Debezium fills the other columns: NULL; in a NOT NULL column zero, an empty
    text or the like; and where a column has a DEFAULT, this. Such a row looks like one of the table, and retracting it
    is wrong.

    An old row is taken for one if all its columns but the key may be invented. The schema block of the event tells
    which value is invented in each column, and Kafka's key which columns are the key. Where they are missing, it is
    estimated: up to `_DEFAULTS_MAX` columns may have a DEFAULT, and the rest must outnumber them. If there is neither a
    key nor a schema block, either an empty text must be among them, or all columns but one must be NULL, zero or empty.
    A row that the database does hold may look like this as well. Events of `to_debezium`, which name foldflight as
    their connector, hold the rows of a changelog. The name of another connector proves nothing; for example, each
    session of MySQL may choose minimal images.
    """

    _by_block: dict[bytes, dict[str, _Column] | None] = field(default_factory=dict)

    def is_invented(self, event: bytes, key: bytes | None, *, has_key: bool) -> bool:
        """Return whether the columns of the old row other than the key may be invented.

        Args:
            event: The JSON of a delete, with or without the schema block.
            key: The key of its message.
            has_key: Whether the key is known. If it is, and is none, the table has no primary key, and its old rows are
                whole.
        """
        if has_key and (key is None or key.strip() in (b"", b"null")):
            return False
        payload, block = without_schema(json.loads(event))
        before, source = payload.get("before"), payload.get("source")
        if not isinstance(before, dict) or (isinstance(source, dict) and source.get("connector") == OWN_CONNECTOR):
            return False
        columns = self._columns(event, block)
        return _is_invented(before, columns, key_names(key) if has_key else None)

    def _columns(self, event: bytes, block: Any) -> dict[str, _Column] | None:
        """Return what the schema block says; None without one."""
        if not isinstance(block, dict):
            return None
        head = event.partition(b',"payload":')[0]
        if head not in self._by_block:
            columns = _columns_of(block)
            if len(self._by_block) >= _BLOCKS_MAX:
                return columns
            self._by_block[head] = columns
        return self._by_block[head]


def has_own_values(
    row: Iterable[tuple[str, Any]], defaults: Mapping[str, Any], key: bytes | None, *, has_key: bool
) -> bool:
    """Return whether an old row has so many values that are not invented that `OldRows.is_invented` does not hold.

    Args:
        row: Names and values of columns of the old row, not necessarily of all.
        defaults: The defaults in the schema block, as `defaults_of` returns them.
        key: The key of the message.
        has_key: Whether the key is known.
    """
    of_key = key_names(key) if has_key else None
    doubtful = 0 if of_key is not None else -1
    for name, value in row:
        normal_value = float(value) if isinstance(value, Decimal) else value
        if type(normal_value) not in (int, float, str) or _is_zero(normal_value) or normal_value == defaults.get(name):
            continue
        if of_key is None or name not in of_key:
            doubtful += 1
            if doubtful > _DEFAULTS_MAX:
                return True
    return False


def defaults_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of each column of the old row that has one, given a schema block."""
    columns = {name: each.default for name, each in (_columns_of(block) or {}).items()}
    return {name: float(each) if isinstance(each, Decimal) else each for name, each in columns.items()}


def key_names(key: bytes | None) -> frozenset[str] | None:
    """Return the columns of a primary key, given the key of a message; None if it does not tell."""
    try:
        key_value = json.loads(key or b"")
    except ValueError:
        return None
    if isinstance(key_value, dict) and set(key_value) == {"schema", "payload"}:
        key_value = key_value["payload"]
    return frozenset(key_value) if isinstance(key_value, dict) else None


def _columns_of(block: Mapping[str, Any]) -> dict[str, _Column] | None:
    fields = block.get("fields")
    rows = [each for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
    for each in rows:
        if each.get("field") == "before" and isinstance(each.get("fields"), list):
            return {
                str(column["field"]): _Column(bool(column.get("optional")), column.get("default"))
                for column in each["fields"]
                if isinstance(column, dict) and "field" in column
            }
    return None


def _is_invented(
    before: Mapping[str, Any], columns: Mapping[str, _Column] | None, of_key: Collection[str] | None
) -> bool:
    others = {name: value for name, value in before.items() if of_key is None or name not in of_key}
    if of_key is not None and columns is not None and columns.keys() >= others.keys():
        return bool(others) and all(_may_be_invented(value, columns[name]) for name, value in others.items())
    certain_names = [name for name, value in others.items() if not _may_be_invented(value, (columns or {}).get(name))]
    invented_count = len(others) - len(certain_names)
    if of_key is None and columns is None and "" not in others.values():
        # Nothing tells which columns may be NULL, and many rows do hold 0 and NULL in some columns.
        return len(certain_names) <= 1 <= invented_count and len(others) > 1
    if columns is not None and any(name not in columns or columns[name].is_optional for name in certain_names):
        return False  # the key has no optional column, and defaults are known
    doubtful = len(certain_names) - (1 if of_key is None else 0)
    return doubtful <= (_DEFAULTS_MAX if columns is None else _DEFAULTS_MAX - 1) and invented_count > max(doubtful, 0)


def _may_be_invented(value: Any, column: _Column | None) -> bool:
    """Return whether the connector puts such a value into a column whose value it does not know."""
    if value is None or (column is not None and column.default is not None and value == column.default):
        return True
    return (column is None or not column.is_optional) and _is_zero(value)


def _is_zero(value: Any) -> bool:
    if isinstance(value, str):
        if value[:1] not in _FIRST_OF_ZERO and not value[0].isspace():
            return False
        return _ZERO_TEXT.fullmatch(value) is not None
    if isinstance(value, dict):  # a decimal with its scale; a geometry
        return all(each is None or _is_zero(each) for each in value.values())
    return not value


Row = dict[str, Any]

_UNPLACED: Final[Row] = {"log": "", "position": NO_POSITION, "row": 0}


class Tombstones:
    """Gives the tombstones that one task reads their positions.

    A tombstone of a compacted topic is a message with a key and no value, which says that the row of the key is
    deleted. The delete before it may have been compacted away, so a tombstone deletes, too. It has no position in the
    log of the database. In a partition, messages stand in the order of the log, so a tombstone takes the position of
    the message before it, or else of the next one, and its own offset. Without both, the state gives it its position.

    Args:
        sequence: The name of the column of positions.
    """

    def __init__(self, sequence: str) -> None:
        self._sequence = sequence
        self._last: dict[Any, Row] = {}
        self._waiting: dict[Any, list[Row]] = {}

    def add(self, row: Row, partition: Any, place: Row) -> Iterator[Row]:
        """Yield the row of a tombstone with its position, unless it waits for the next message of its partition.

        Args:
            row: The row, without its position.
            partition: The partition.
            place: Where the message is in Kafka: the part of a position that does not come from the log.
        """
        last = self._last.get(partition)
        row[self._sequence] = {**(last or _UNPLACED), **place}
        if last is None:
            self._waiting.setdefault(partition, []).append(row)
        else:
            yield row

    def note(self, position: Row, partition: Any) -> None:
        """Remember the position of the last message of a partition. No tombstone of the partition may be waiting."""
        self._last[partition] = position

    def before(self, position: Row, partition: Any) -> Iterator[Row]:
        """Yield the tombstones that waited for a message, given its position."""
        self.note(position, partition)
        in_log = {name: position[name] for name in (*_UNPLACED, TIME)}
        for row in self._waiting.pop(partition, ()):
            yield {**row, self._sequence: {**row[self._sequence], **in_log}}

    @property
    def is_waiting(self) -> bool:
        """Whether tombstones wait for the next message of their partition."""
        return bool(self._waiting)

    def rest(self) -> Iterator[Row]:
        """Yield the tombstones of partitions in which the task has read no other message.

        In a stream an earlier epoch has read the changes before them, so the state gives them their positions.
        """
        for rows in self._waiting.values():
            yield from rows
        self._waiting.clear()
