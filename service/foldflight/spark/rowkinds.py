"""The mark by which a column of row kinds is known again: without it, rows that retract would be taken for rows.

The mark is metadata of the column, which Spark keeps through SELECT, WHERE, UNION, joins, views, files and new names.
An expression over the column, such as `upper(row_kind)`, has no mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as st

from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError

_MARK: Final = "foldflight.row_kinds"
CHANGES: Final = "changes"
"""Each new row has its old row before it, as `-U` or `-D`."""
UPDATES: Final = "updates"
"""Each row replaces the row of its key, whose old values are not there: of `group_by(..., emit="update")`."""

DELTA_CHANGES: Final = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}
"""The values of `_change_type` in Delta's change data feed, for `group_by(..., row_kinds=DELTA_CHANGES)`."""

Kinds = Literal["changes", "updates"]


class Unsaid(Enum):
    """The default of an argument for which None has a meaning."""

    UNSAID = "unsaid"

    def __repr__(self) -> str:
        return self.name


UNSAID: Final = Unsaid.UNSAID


def metadata_of(kinds: Kinds) -> dict[str, str]:
    """Return the metadata of a column of row kinds."""
    return {_MARK: kinds}


def kinds_in(columns: Iterable[st.StructField]) -> dict[str, str]:
    """Return the marked columns of a schema, each with what its rows are."""
    return {field.name: field.metadata[_MARK] for field in columns if _MARK in (field.metadata or {})}


def refuse_unsaid(df: DataFrame, what: str, remedy: str) -> None:
    """Refuse rows with kinds where each row is taken for one. Raises RejectedError SIGNATURE.

    Args:
        df: The rows.
        what: Who takes them.
        remedy: What to write, with `{name}` for the column.
    """
    for name, kinds in kinds_in(df.schema).items():
        message = unsaid(name, kinds, what, remedy)
        raise RejectedError("SIGNATURE", message)


def unsaid(name: str, kinds: str, what: str, remedy: str) -> str:
    """Return the message of `refuse_unsaid`."""
    each = "rows that retract others" if kinds == CHANGES else "rows that replace others"
    return f"the column {name} has row kinds, and {what} would take {each} for rows to add; {remedy.format(name=name)}"


def refuse_updates(df: DataFrame, kind: Column) -> None:
    """Refuse updates without old values as row kinds. Raises RejectedError CANNOT_RETRACT."""
    for name, kinds in kinds_in(df.select(kind).schema).items():
        if kinds == UPDATES:
            raise RejectedError(
                "CANNOT_RETRACT",
                f"the column {name} has the kinds of updates, which replace the row of their key and do not retract "
                "the old one; write emit='changelog' in the group_by that makes them",
            )


def refuse_several(df: DataFrame) -> None:
    """Refuse the kinds of several changelogs, as of a join of their changes. Raises RejectedError CANNOT_RETRACT."""
    kind_columns = [field.name for field in df.schema if kinds_in([field])]
    if len(kind_columns) > 1:
        raise RejectedError(
            "CANNOT_RETRACT",
            f"the rows have the kinds {' and '.join(kind_columns)} of several changelogs, and a join of their "
            "changes is no join of their rows; join the rows that are left of all but one, group_by(changes, *keys, "
            "row_kind=...).agg(...); or drop the columns of kinds that do not count",
        )


def kind_column(name: str = ROW_KIND, *, nullable: bool = True, kinds: Kinds = CHANGES) -> st.StructField:
    """Return the marked column of a result."""
    return st.StructField(name, st.StringType(), nullable, metadata_of(kinds))
