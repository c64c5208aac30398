"""Tables outside an engine that receive a changelog: the protocol of a target, and what all targets have in common.

A changelog may hold several rows for a key (`-U`, `+U`). A target gets it *netted*: one row for each key, with the
values that the key has after the epoch, or `-D`. The values do not depend on those before, so a repeat sets them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from foldflight.engine.keys.index import canonical
from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import RejectedError
from foldflight.functions import RowKind
from foldflight.functions.types.arrow import is_binary_view, is_nested, is_string_view

DELETE: Final = RowKind.DELETE.short
_SETS: Final = (RowKind.INSERT.short, RowKind.UPDATE_AFTER.short)
_TAKES: Final = (RowKind.UPDATE_BEFORE.short, DELETE)


@runtime_checkable
class Target(Protocol):
    """A table that applies each epoch of a query exactly once. Spark Connect pickles it.

    `foldflight.testing.check_target` tests an implementation.
    """

    def last_epoch(self, query: str) -> int | None:
        """Return the last epoch of a query that the table has, or None if it has none.

        Args:
            query: The id of the query. It stays the same as long as the query has the same checkpoint.
        """
        ...

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table]) -> None:
        """Change the table, and store the epoch, in one transaction; do nothing if it has this epoch or a later one.

        If an exception leaves this method, also one of `changes`, the table must be as before. The exception of a
        connection that is lost should be a `RetryableError`: the epoch is then applied again after a pause.

        Args:
            query: The id of the query.
            epoch: The number of the epoch.
            changes: The changes in parts, none if the epoch has no changes. Columns: `row_kind`, then the query's
                columns. A key has at most one row in all parts: `+I` and `+U` set its values, whether the table has the
                key or not, and `-D` deletes it. In rows with `-D`, the columns that are no keys may be NULL.
        """
        ...


def offsets_name(query: str) -> str:
    """Return the name under which a table stores the digest of the offsets of a query's last epoch.

    It is stored like an epoch, beside the epoch of the query, so tables of older versions need no new column.
    """
    return f"{query}/offsets"


def older_checkpoint(table: str, query: str, last: int, epoch: int) -> RejectedError:
    """Return the error of a table that has a later epoch of a query than the one that comes.

    Spark has formed the later epochs again, from other rows than the table has.
    """
    return RejectedError(
        "SETTINGS",
        f"table {table} has epochs up to {last} of the query {query}, whose checkpoint goes on with epoch "
        f"{epoch}: the checkpoint is older than the table, for example a copy, or two drivers use it. Stop the "
        "other driver, or start with a new checkpoint and an empty table",
    )


def is_key(type_: pa.DataType) -> bool:
    """Return whether the values of a type can identify rows: all but lists, structs and maps."""
    return not is_nested(type_)


def net_changes(changes: pa.Table, keys: Sequence[str], table: str) -> pa.Table:
    """Return one row for each key: the row that sets its values, or `-D` if there is none.

    The order of the rows does not matter: an old row that is taken back and a new one of the same key are an update.
    NULL is equal to NULL, NaN to NaN of any bits, and -0.0 to 0.0: the result has one NaN and 0.0.

    Args:
        changes: All rows of these keys in an epoch: `row_kind`, then the columns of the table.
        keys: The columns that identify a row.
        table: The name of the table, for errors.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a row has no row kind, or a key has several new rows.
    """
    for key in keys:
        if types.is_floating(changes.schema.field(key).type):
            at = changes.schema.get_field_index(key)
            changes = changes.set_column(at, changes.schema.field(at), canonical(changes[key]))
    kinds = changes[ROW_KIND]
    setting = pc.is_in(kinds, value_set=pa.array(_SETS))
    takes_mask = pc.is_in(kinds, value_set=pa.array(_TAKES))
    unknown_kinds = changes.filter(pc.invert(pc.or_(setting, takes_mask)))
    if unknown_kinds.num_rows:
        row = unknown_kinds.slice(0, 1)
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"table {table}: a change has the row kind {row[ROW_KIND][0].as_py()!r}, which is none of "
            f"{', '.join((*_SETS, *_TAKES))}",
            group=key_of_row(row, keys, 0),
        )
    schema = pa.schema([field.with_nullable(True) for field in changes.schema])
    new = changes.filter(setting).cast(schema)
    # Columns are named by numbers, because a key may be called `row_kind_sum`, as the column of the aggregate is.
    numbers = [str(number) for number in range(len(keys))]
    numbered_rows = changes.select(keys).rename_columns(numbers).append_column(ROW_KIND, pc.cast(setting, pa.int32()))
    counts = numbered_rows.group_by(numbers, use_threads=False).aggregate([(ROW_KIND, "sum")])
    sums = counts[f"{ROW_KIND}_sum"]
    counts = counts.select(numbers).rename_columns(list(keys))
    several = pc.greater(sums, 1)
    if pc.any(several).as_py():
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"table {table}: one epoch has {sums.filter(several)[0].as_py()} new rows with the same key, and "
            "their order is not known. Name all columns of the query that identify a row in keys=[...], aggregate "
            "the changes first, or keep the last row of each key: upserts(...), from_debezium(..., keys=[...])",
            group=key_of_row(counts.filter(several), keys, 0),
        )
    deleted_keys = counts.filter(pc.equal(sums, 0))
    if not deleted_keys.num_rows:
        return new
    columns = [
        pa.array([DELETE] * deleted_keys.num_rows)
        if field.name == ROW_KIND
        else deleted_keys[field.name]
        if field.name in keys
        else pa.nulls(deleted_keys.num_rows, field.type)
        for field in changes.schema
    ]
    return pa.concat_tables([new, pa.table(columns, schema=schema)])


def key_of_row(rows: pa.Table, keys: Sequence[str], row: int) -> dict[str, Any]:
    """Return the key of a row, for an error."""
    return {key: rows[key][row].as_py() for key in keys}


def missing_columns(
    table: str, schema: pa.Schema, columns: Mapping[str, pa.DataType | str], *, add_columns: bool
) -> list[pa.Field]:
    """Return the columns of a query that a table lacks, after a check of the others.

    Columns of the table that the query does not have are not touched.

    Args:
        table: The name of the table, for errors.
        schema: The columns of the query.
        columns: The columns of the table, as Arrow types; the name of a type that has none.
        add_columns: Whether the table may get new columns.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a column has another type, or lacks without `add_columns`.
    """
    for field in schema:
        type_ = columns.get(field.name)
        if type_ is not None and (isinstance(type_, str) or not holds(type_, field.type)):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"table {table}: the column {field.name} has the type {type_}, which does not hold the query's "
                f"{field.type}. Cast the column in the query, or change its type in the table; nothing was written",
            )
    missing_fields = [field for field in schema if field.name not in columns]
    if missing_fields and not add_columns:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"table {table} has no column {', '.join(field.name for field in missing_fields)}, which the query has; "
            f"it has {', '.join(columns)}. Add it, give add_columns=True, or leave it out of the query; nothing "
            "was written",
        )
    return missing_fields


def refuse_times(table: str, format_: str, schema: pa.Schema) -> None:
    """Refuse intervals and times of a day, for which a format of tables has no type that Arrow writes.

    Args:
        table: The name of the table, for errors.
        format_: The name of the format, for errors.
        schema: The columns of the query.

    Raises:
        RejectedError: SCHEMA_MISMATCH.
    """
    for field in schema:
        for is_one, remedy in ((types.is_duration, "BIGINT"), (types.is_time, "STRING")):
            if _contains(field.type, is_one):
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"table {table}: {format_} has no type for the column {field.name} of the query, {field.type}; "
                    f"convert it in the query, for example with CAST(... AS {remedy})",
                )


def _contains(type_: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type is such a one, or has one inside."""
    return is_one(type_) or any(_contains(type_.field(at).type, is_one) for at in range(type_.num_fields))


def holds(type_: pa.DataType, values: pa.DataType) -> bool:
    """Return whether a column of one type holds all values of another."""
    if types.is_decimal(type_) and types.is_decimal(values):
        whole = type_.precision - type_.scale >= values.precision - values.scale
        return whole and type_.scale >= values.scale
    if types.is_timestamp(type_) and types.is_timestamp(values):
        return (type_.tz is None) == (values.tz is None)
    if types.is_interval(type_) and types.is_duration(values):  # the INTERVAL of DuckDB
        return True
    if types.is_struct(type_) and types.is_struct(values):
        names = [field.name for field in type_] == [field.name for field in values]
        return names and all(holds(type_[at].type, values[at].type) for at in range(len(list(type_))))
    if types.is_fixed_size_list(type_) and _is_list(values):
        return holds(type_.value_type, values.value_type)  # the database checks the length
    if types.is_map(type_) and types.is_map(values):
        return holds(type_.key_type, values.key_type) and holds(type_.item_type, values.item_type)
    if _is_list(type_) and _is_list(values):
        return holds(type_.value_type, values.value_type)
    for alike in (types.is_signed_integer, types.is_floating):
        if alike(type_) and alike(values):
            return type_.bit_width >= values.bit_width
    return type_ == values or _plain(type_) == _plain(values)


def _is_list(type_: pa.DataType) -> bool:
    return types.is_list(type_) or types.is_large_list(type_)


def _plain(type_: pa.DataType) -> pa.DataType:
    if types.is_large_string(type_) or is_string_view(type_):
        return pa.string()
    if types.is_large_binary(type_) or is_binary_view(type_):
        return pa.binary()
    return type_
