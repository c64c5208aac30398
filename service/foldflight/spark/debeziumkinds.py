"""The kinds of Debezium's messages, and whose rows they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foldflight.errors import RejectedError

ROW_KINDS: Final[Mapping[str, str]] = {"c": "+I", "r": "+I", "u": "+U", "d": "-D"}
"""The operations that change a row: inserts, rows of a snapshot, updates, deletes."""

SKIPPED: Final = frozenset({"m"})
"""The operations that change no row: messages of PostgreSQL's `pg_logical_emit_message`."""

FLATTENED: Final = frozenset({"__op", "__deleted"})
"""Only flattened events have these members, beside columns of any names."""

_REFUSED: Final[Mapping[object, str]] = {
    "t": "it empties the table, which no rows tell; delete the rows of the table by DELETE, or start again from a "
    "snapshot",
}
_OTHERWISE: Final = "remove such events from the input, or start again from a snapshot"
_HEARTBEATS: Final = ({"ts_ms"}, {"ts_ms", "ts_us", "ts_ns"})
_TRANSACTION: Final = frozenset({"status", "id", "event_count", "data_collections"})


def check_operation(op: object) -> None:
    """Refuse an operation that does not change single rows. Raises RejectedError SCHEMA_MISMATCH."""
    if op not in ROW_KINDS:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the operation of an event is {op}, which is not one of {', '.join(ROW_KINDS)}; "
            f"{_REFUSED.get(op, _OTHERWISE)}",
        )


def changes_no_row(event: Mapping[str, Any]) -> bool:
    """Return whether a message without an operation is a heartbeat, a transaction marker or a change of a schema."""
    names = set(event)
    if not names.isdisjoint(FLATTENED):
        return False
    is_schema_change = "source" in names and not names.isdisjoint({"ddl", "tableChanges"})
    return names in _HEARTBEATS or names >= _TRANSACTION or is_schema_change


def is_of(table: str, source: object) -> bool:
    """Return whether an event is of a table, which is named with its schema, its database, or both.

    Args:
        table: The name.
        source: What the event says: `table`, and `schema` and `db` if it names them.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if the event does not name its table.
    """
    parts = [source.get(part) for part in ("db", "schema", "table")] if isinstance(source, Mapping) else [None]
    if parts[-1] is None:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"an event does not name its table, so it is not known whether it is of {table}; let it have source.table "
            "(flattened events: add table to add.fields), or leave table= out",
        )
    name = ".".join(str(part) for part in parts if part)
    return table == name or name.endswith(f".{table}") or table.endswith(f".{name}")
