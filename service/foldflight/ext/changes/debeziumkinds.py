"""The kinds of Debezium's messages, and whose rows they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

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
