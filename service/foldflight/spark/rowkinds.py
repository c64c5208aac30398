"""The mark by which a column of row kinds is known again: without it, rows that retract would be taken for rows.

The mark is metadata of the column, which Spark keeps through SELECT, WHERE, UNION, joins, views, files and new names.
An expression over the column, such as `upper(row_kind)`, has no mark.

A reader or a column of row kinds may meet change data of other tools by mistake; hints tell what to use for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError

_UPSERTS: Final = "upserts(df, keys=[...], sequence_by=...)"
_SQL_SERVER: Final = (
    "SQL Server's change tables: group_by(df, ..., row_kind='__$operation', "
    "row_kinds={'1': '-D', '2': '+I', '3': '-U', '4': '+U'}), from cdc.fn_cdc_get_all_changes with 'all update old'"
)
_DMS: Final = (
    "AWS DMS, whose rows do not hold the old ones: upserts(df, keys=[...], sequence_by=..., deleted=\"Op = 'D'\"), "
    "with a column of TimestampColumnName, or the file and the row in it, as the sequence"
)
_DELTA: Final = (
    "a change feed: group_by(df, ..., row_kind='_change_type', row_kinds=DELTA_CHANGES) for Delta, without row_kinds "
    "for Iceberg"
)
_GOLDENGATE: Final = (
    "Oracle GoldenGate: parse them by from_json, and split_changes(df, op='op_type', before='before', after='after', "
    "row_kinds={'I': '+I', 'U': '+U', 'D': '-D'}), with whole old rows"
)
_PAIMON: Final = (
    "Paimon's audit log: group_by(df, ..., row_kind=...) by the column of row kinds; from a table with "
    f"changelog-producer=input, which has no old rows, {_UPSERTS}"
)
_COLUMNS: Final[Mapping[str, str]] = {
    "__$operation": _SQL_SERVER,
    "Op": _DMS,
    "_change_type": _DELTA,
    "op_type": _GOLDENGATE,
    "rowkind": _PAIMON,
    "_rowkind": _PAIMON,
}
# Members that all events of a tool have, and no others. The first that fits is taken.
_MEMBERS: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"op_type", "op_ts"}), _GOLDENGATE),
    (frozenset({"type", "data", "isDdl"}), "Canal: from_canal(df, schema)"),
    (frozenset({"type", "data", "database", "table", "ts"}), "Maxwell: from_maxwell(df, schema)"),
    (
        frozenset({"data", "metadata"}),
        f"AWS DMS, whose rows do not hold the old ones: parse them by from_json, and {_UPSERTS}",
    ),
    (frozenset({"type", "data"}), "Canal's format, as Flink's canal-json: let Flink write debezium-json"),
)
_CODES: Final[Mapping[tuple[str, ...], str]] = {
    ("insert", "update_preimage", "update_postimage", "delete"): f"; this is a code of {_DELTA}",
    ("I", "U", "D"): f"; this is a code of {_DMS}",
    ("c", "r", "u", "d"): "; this is a code of Debezium: from_debezium(df)",
}
_MARK: Final = "foldflight.row_kinds"
CHANGES: Final = "changes"
"""Each new row has its old row before it, as `-U` or `-D`."""
UPDATES: Final = "updates"
"""Each row replaces the row of its key, whose old values are not there: of `group_by(..., emit="update")`."""

DELTA_CHANGES: Final = {"insert": "+I", "update_preimage": "-U", "update_postimage": "+U", "delete": "-D"}
"""The values of `_change_type` in Delta's change data feed, for `group_by(..., row_kinds=DELTA_CHANGES)`."""

Kinds = Literal["changes", "updates"]


class Unset(Enum):
    """The default of an argument for which None has a meaning."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return self.name


UNSET: Final = Unset.UNSET


def metadata_of(kinds: Kinds) -> dict[str, str]:
    """Return the metadata of a column of row kinds."""
    return {_MARK: kinds}


def kinds_in(columns: Iterable[st.StructField]) -> dict[str, str]:
    """Return the marked columns of a schema, each with what its rows are."""
    return {field.name: field.metadata[_MARK] for field in columns if _MARK in (field.metadata or {})}


def refuse_unset_kinds(df: DataFrame, what: str, remedy: str) -> None:
    """Refuse rows with kinds where each row is taken for one. Raises RejectedError SIGNATURE.

    Args:
        df: The rows.
        what: Who takes them.
        remedy: What to write, with `{name}` for the column.
    """
    for name, kinds in kinds_in(df.schema).items():
        message = unset_kinds_message(name, kinds, what, remedy)
        raise RejectedError("SIGNATURE", message)


def unset_kinds_message(name: str, kinds: str, what: str, remedy: str) -> str:
    """Return the message of `refuse_unset_kinds`."""
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


def kind_column(*, nullable: bool = True, kinds: Kinds = CHANGES) -> st.StructField:
    """Return the marked column of a result."""
    return st.StructField(ROW_KIND, st.StringType(), nullable, metadata_of(kinds))


def hint_for_columns(names: Collection[str]) -> str:
    """Return what to use for rows with such columns, as the end of a sentence; an empty text for unknown ones."""
    return next((f"these rows seem to be of {tool}" for name, tool in _COLUMNS.items() if name in names), "")


def hint_for_event(event: Mapping[str, Any]) -> str:
    """Return what to use for an event in JSON, as the end of a sentence; an empty text for unknown ones."""
    if not {"op", "__op", "__deleted"}.isdisjoint(event):
        return ""  # Debezium's, whose columns may have any names
    return next((f"it seems to be of {tool}" for members, tool in _MEMBERS if members <= event.keys()), "")


def hint_for_code(code: Column) -> Column:
    """Return what to use for rows with such a code in place of a row kind, as the end of a sentence."""
    hint = sf.when(sf.lit(False), sf.lit(""))
    for codes, text in _CODES.items():
        hint = hint.when(code.isin([*codes]), sf.lit(text))
    return hint.otherwise(sf.lit(""))
