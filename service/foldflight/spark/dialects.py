"""Change data of other tools, which a reader or a column of row kinds meets by mistake, with what to use for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

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


def of_columns(names: Collection[str]) -> str:
    """Return what to use for rows with such columns, as the end of a sentence; an empty text for unknown ones."""
    return next((f"these rows seem to be of {tool}" for name, tool in _COLUMNS.items() if name in names), "")


def of_event(event: Mapping[str, Any]) -> str:
    """Return what to use for an event in JSON, as the end of a sentence; an empty text for unknown ones."""
    if not {"op", "__op", "__deleted"}.isdisjoint(event):
        return ""  # Debezium's, whose columns may have any names
    return next((f"it seems to be of {tool}" for members, tool in _MEMBERS if members <= event.keys()), "")


def of_code(code: Column) -> Column:
    """Return what to use for rows with such a code in place of a row kind, as the end of a sentence."""
    hint = sf.when(sf.lit(False), sf.lit(""))
    for codes, text in _CODES.items():
        hint = hint.when(code.isin([*codes]), sf.lit(text))
    return hint.otherwise(sf.lit(""))
