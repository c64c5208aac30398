"""SQL that several targets have in common, and the modules that reach them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError


def quote_name(name: str | tuple[str, ...], quote: str = '"') -> str:
    """Return a name, or one in parts, for use in SQL."""
    parts = (name,) if isinstance(name, str) else name
    return ".".join(f"{quote}{part.replace(quote, quote * 2)}{quote}" for part in parts)


def driver(target: str, package: str, *, extra: str) -> Any:
    """Return the module that reaches a kind of target. Raises RejectedError MODULE if it is not installed."""
    try:
        return importlib.import_module(package.lower())
    except ModuleNotFoundError:
        remedy = f"pip install 'foldflight[{extra}]'"
        raise RejectedError("MODULE", f"the target {target} needs {package}: {remedy}") from None


def merge_statement(table: str, changes: str, keys: Sequence[str], columns: Sequence[str], quote: str = '"') -> str:
    """Return the statement that applies netted changes to a table. NULL is a valid key.

    Args:
        table: The table, as it stands in SQL.
        changes: The changes, as they stand in SQL: `row_kind` and `columns`, with one row for each key.
        keys: The columns that identify a row.
        columns: The columns of the changes.
        quote: The character around names.
    """
    names = {column: quote_name(column, quote) for column in columns}
    same = " AND ".join(f"kept.{names[key]} IS NOT DISTINCT FROM new.{names[key]}" for key in keys)
    sets = ", ".join(f"{names[column]} = new.{names[column]}" for column in columns if column not in keys)
    update_clause = f"WHEN MATCHED THEN UPDATE SET {sets}" if sets else ""
    return f"""MERGE INTO {table} AS kept
USING {changes} AS new
ON {same}
WHEN MATCHED AND new.{ROW_KIND} = '-D' THEN DELETE
{update_clause}
WHEN NOT MATCHED AND new.{ROW_KIND} <> '-D' THEN
  INSERT ({", ".join(names.values())}) VALUES ({", ".join(f"new.{name}" for name in names.values())})"""
