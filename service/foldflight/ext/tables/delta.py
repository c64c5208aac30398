"""A Delta table, written by delta-rs (the package `deltalake`), without Java. An epoch is one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.targets import DELETE, missing_columns, offsets_name, refuse_times
from foldflight.errors import RejectedError, RetryableError
from foldflight.ext.tables.merge_sql import driver, quote_name

_deltalake: Final = partial(driver, "delta", "deltalake", extra="delta")
_APPLICATION: Final = "foldflight-"


class DeltaTable:
    """A target. The table stores the last epoch of a query as the version of an application.

    delta-rs stores this version and does not compare it. So `apply` compares it before, and commits only if nothing
    else was committed since: otherwise the epoch is applied again. delta-rs joins the changes of an epoch with the
    table in memory, so the driver holds all of them.

    Args:
        path: The folder of the table.
        columns: The columns of the query.
        keys: Those that identify a row.
        create: Whether to create the table if it does not exist.
        add_columns: Whether to add columns that the table lacks.
    """

    def __init__(self, path: str, columns: pa.Schema, keys: Sequence[str], *, create: bool, add_columns: bool) -> None:
        self.name = path
        self._path, self._columns, self._keys = path, columns, keys
        self._create, self._add_columns = create, add_columns

    def prepare(self) -> None:
        """Create the table, or check its columns and add those that it lacks."""
        deltalake = _deltalake()
        refuse_times(self.name, "Delta", self._columns)
        with self._errors():
            if not deltalake.DeltaTable.is_deltatable(self._path):
                if not self._create:
                    raise RejectedError("SETTINGS", f"there is no table {self.name}; create it, or give create=True")
                nullable = pa.schema([field.with_nullable(True) for field in self._columns])
                deltalake.DeltaTable.create(self._path, schema=nullable)
            table = deltalake.DeltaTable(self._path)
            self._check_partitions(table, self._columns.empty_table())
            schema = pa.schema(table.schema().to_arrow())
            fields = {field.name: field.type for field in schema}
            missing_fields = missing_columns(self.name, self._columns, fields, add_columns=self._add_columns)
            if missing_fields:
                new_columns = pa.schema([field.with_nullable(True) for field in missing_fields])
                table.alter.add_columns(deltalake.Schema.from_arrow(new_columns).fields)

    def has_rows(self) -> bool:
        """Return whether the table has any rows."""
        deltalake = _deltalake()
        with self._errors():
            # Its method `count` also counts the rows that deletion vectors have deleted.
            rows = deltalake.QueryBuilder().register("kept", deltalake.DeltaTable(self._path))
            return pa.table(rows.execute("SELECT 1 FROM kept LIMIT 1")).num_rows > 0

    def last_epoch(self, query: str) -> int | None:
        with self._errors():
            version: int | None = _deltalake().DeltaTable(self._path).transaction_version(_APPLICATION + query)
            return version

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table], offsets: int | None = None) -> None:
        deltalake = _deltalake()
        with self._errors():
            table = deltalake.DeltaTable(self._path)
            last = table.transaction_version(_APPLICATION + query)
            if last is not None and last >= epoch:
                return
            parts = list(changes)
            versions = {query: epoch} if offsets is None else {query: epoch, offsets_name(query): offsets}
            commit = deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(_APPLICATION + each, versions[each]) for each in versions],
                max_commit_retries=0,
            )
            if parts:
                all_changes = pa.concat_tables(parts)
                self._check_partitions(table, all_changes)
                self._merge(table, all_changes, commit)
            # delta-rs makes no commit for a merge that changes no row, and the epoch would be lost with it.
            if table.transaction_version(_APPLICATION + query) != epoch:
                table.create_write_transaction([], "append", table.schema(), commit_properties=commit)

    def _check_partitions(self, table: Any, changes: pa.Table) -> None:
        """Refuse the values that are other ones when they are read from a column that partitions the table.

        Delta's protocol stores them as texts, of which the empty one means NULL. delta-rs reads a text as bytes.
        """
        for name in set(table.metadata().partition_columns) & set(self._columns.names):
            column = changes[name]
            if types.is_binary(column.type):
                wrong = "BINARY"
            elif types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py():
                wrong = "an empty text, which Delta reads as NULL"
            else:
                continue
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"table {self.name} is partitioned by {name!r}, which cannot have {wrong}; partition it by others",
            )

    def _merge(self, table: Any, changes: pa.Table, commit: Any) -> None:
        values = {quote_name(name): f"new.{quote_name(name)}" for name in self._columns.names}
        merge = table.merge(
            changes,
            # In delta-rs, AND binds more tightly than IS NOT DISTINCT FROM.
            " AND ".join(
                f"({self._key('kept', key)} IS NOT DISTINCT FROM {self._key('new', key)})" for key in self._keys
            ),
            source_alias="new",
            target_alias="kept",
            commit_properties=commit,
        ).when_matched_delete(f"new.{ROW_KIND} = '{DELETE}'")
        sets = {quote_name(name): values[quote_name(name)] for name in self._columns.names if name not in self._keys}
        if sets:
            merge = merge.when_matched_update(sets)
        merge.when_not_matched_insert(values, f"new.{ROW_KIND} <> '{DELETE}'").execute()

    def _key(self, side: str, key: str) -> str:
        """Return a key in SQL. For delta-rs, NaNs of different bits are different, and before 1.6 also -0.0 and 0.0."""
        column = f"{side}.{quote_name(key)}"
        is_float = types.is_floating(self._columns.field(key).type)
        return f"nanvl({column}, CAST('NaN' AS DOUBLE)) + CAST(0 AS DOUBLE)" if is_float else column

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake import exceptions

        try:
            yield
        except exceptions.CommitFailedError as error:
            raise RetryableError("UNREACHABLE", f"another writer changed table {self.name}: {error}") from error
        except OSError as error:
            raise RetryableError("UNREACHABLE", f"table {self.name} is not available: {error}") from error
        except exceptions.DeltaError as error:
            raise RejectedError("SCHEMA_MISMATCH", f"table {self.name} refuses the changes: {error}") from error
