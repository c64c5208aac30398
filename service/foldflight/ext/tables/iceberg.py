"""An Iceberg table, written by pyiceberg, without Java. An epoch is one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from importlib import import_module
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.targets import DELETE, missing_columns, offsets_name, refuse_times
from foldflight.errors import RejectedError, RetryableError
from foldflight.ext.tables.merge_sql import driver

_pyiceberg: Final = partial(driver, "iceberg", "pyiceberg", extra="iceberg")
_MARK: Final = "foldflight-"
_FORMAT: Final = 2  # the newest that pyiceberg writes
# Filters of other types lose rows: files say of NaN and -0.0 nothing that a filter could use.
_FILTERABLE: Final = (types.is_integer, types.is_large_string, types.is_string, types.is_date, types.is_boolean)


class IcebergTable:
    """A target. Both the snapshot of an epoch and a property of the table have the query's epoch, in one commit.

    Snapshots tell which epochs the current one has, also after the table was rolled back, and the property remains
    when they expire. The commit is refused if there is another snapshot than the one whose mark was read.

    pyiceberg deletes by filters. One that names each key of several columns takes a time that is quadratic in their
    number. So all rows are read that have one of the values in each column of the keys, deleted by the same filter, and
    appended again together with the new rows, but for those whose key is one of the changes.

    Args:
        catalog: The name of the catalogue in the configuration of pyiceberg.
        table: The name of the table: its namespace in parts, and its own.
        columns: The columns of the query.
        keys: Those that identify a row.
        create: Whether to create the table if it does not exist.
        add_columns: Whether to add columns that the table lacks.
    """

    def __init__(
        self,
        catalog: str,
        table: tuple[str, ...],
        columns: pa.Schema,
        keys: Sequence[str],
        *,
        create: bool,
        add_columns: bool,
    ) -> None:
        self.name = f"{'.'.join(table)} in {catalog}"
        self._catalog_name, self._parts, self._columns, self._keys = catalog, table, columns, keys
        self._create, self._add_columns = create, add_columns

    def prepare(self) -> None:
        """Create the table, or check its columns and add those that it lacks."""
        refuse_times(self.name, "Iceberg", self._columns)
        with self._catalog() as catalog:
            if not catalog.table_exists(self._parts):
                if not self._create:
                    raise RejectedError("SETTINGS", f"there is no table {self.name}; create it, or give create=True")
                catalog.create_namespace_if_not_exists(self._parts[:-1])
                nullable = pa.schema([field.with_nullable(True) for field in self._columns])
                catalog.create_table_if_not_exists(self._parts, schema=nullable)
            table = catalog.load_table(self._parts)
            if table.format_version > _FORMAT:
                raise RejectedError(
                    "SETTINGS",
                    f"table {self.name} has the format version {table.format_version}, and pyiceberg writes up to "
                    f"{_FORMAT}. Write it by Spark, as a table of the session's catalogue, or into another table",
                )
            fields = {field.name: field.type for field in table.schema().as_arrow()}
            missing_fields = missing_columns(self.name, self._columns, fields, add_columns=self._add_columns)
            if missing_fields:
                with table.update_schema() as update:
                    update.union_by_name(pa.schema([field.with_nullable(True) for field in missing_fields]))

    def has_rows(self) -> bool:
        """Return whether the table has any rows."""
        with self._catalog() as catalog:
            rows: int = catalog.load_table(self._parts).scan(limit=1).to_arrow().num_rows
            return rows > 0

    def last_epoch(self, query: str) -> int | None:
        with self._catalog() as catalog:
            return _last_epoch(catalog.load_table(self._parts), query)

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table], offsets: int | None = None) -> None:
        with self._catalog() as catalog:
            table = catalog.load_table(self._parts)
            last = _last_epoch(table, query)
            if last is not None and last >= epoch:
                return
            numbers_by_name = {query: epoch} if offsets is None else {query: epoch, offsets_name(query): offsets}
            marks = {_MARK + name: str(number) for name, number in numbers_by_name.items()}
            # pyiceberg would commit again to a snapshot whose mark was not read. The setting stays in this object.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            table.metadata.properties["write.delete.mode"] = "copy-on-write"  # it warns that it knows no other
            transaction = table.transaction()
            parts = list(changes)
            columns = table.schema().as_arrow()
            rows = self._delete_changed(table, transaction, pa.concat_tables(parts)) if parts else columns.empty_table()
            # Rows or not, this makes a snapshot, which a delete that finds no row does not.
            transaction.append(rows, snapshot_properties=marks)
            transaction.set_properties(marks)
            transaction.commit_transaction()

    def _delete_changed(self, table: Any, transaction: Any, changes: pa.Table) -> pa.Table:
        """Delete the rows that change, and return the rows to append: also rows that the filter found besides."""
        columns = table.schema().as_arrow()
        keys = pa.table([changes[key].cast(columns.field(key).type) for key in self._keys], list(self._keys))
        row_filter = self._filter(keys)
        old_rows = table.scan(row_filter=row_filter).to_arrow().cast(columns)
        index = KeyIndex(keys.schema)
        index.slots([column.combine_chunks() for column in keys.columns])  # the slot of a change is its row
        slots = index.slots([old_rows[key].combine_chunks() for key in self._keys]).to_numpy()
        is_changed = slots < changes.num_rows
        places = np.full(changes.num_rows, -1)
        places[slots[is_changed]] = np.flatnonzero(is_changed)
        before = pa.array(places, mask=places < 0)
        arrays = [
            changes[field.name].cast(field.type)
            if field.name in self._columns.names
            else old_rows[field.name].take(before)
            for field in columns
        ]
        new_rows = pa.table(arrays, schema=columns).filter(pc.not_equal(changes[ROW_KIND], DELETE))
        for field in columns:
            if not field.nullable and new_rows[field.name].null_count:
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"table {self.name}: the column {field.name} is required, and a change has NULL there. "
                    "Make it optional in the table, or leave such rows out of the query; nothing was written",
                )
        if not is_changed.any():
            return new_rows
        transaction.delete(row_filter)
        return pa.concat_tables([old_rows.filter(pa.array(~is_changed)), new_rows])

    def _filter(self, keys: pa.Table) -> Any:
        """Return a filter that finds all rows with one of the keys, and others."""
        ex: Any = import_module("pyiceberg.expressions")
        conditions = []
        for name in keys.column_names:
            values = pc.unique(keys[name])
            if any(is_filterable(values.type) for is_filterable in _FILTERABLE):
                is_null = ex.IsNull(name) if values.null_count else ex.AlwaysFalse()
                conditions.append(ex.Or(ex.In(name, set(values.drop_null().to_pylist())), is_null))
        return reduce(ex.And, conditions, ex.AlwaysTrue())

    @contextmanager
    def _catalog(self) -> Iterator[Any]:
        """Yield the catalogue, which is closed after the block."""
        _pyiceberg()
        from pyiceberg import exceptions as ex

        unavailable_errors: tuple[type[Exception], ...] = (
            ex.CommitStateUnknownException,
            ex.ServiceUnavailableError,
            ex.ServerError,
            *_connection_errors(),
        )
        try:
            with self._load_catalog() as catalog:
                yield catalog
        except ex.CommitFailedException as error:
            raise RetryableError("UNREACHABLE", f"another writer changed table {self.name}: {error}") from error
        except unavailable_errors as error:
            raise RetryableError("UNREACHABLE", f"table {self.name} is not available: {error}") from error
        except (ex.UnauthorizedError, ex.ForbiddenError, ex.OAuthError) as error:
            raise RejectedError("UNAUTHENTICATED", f"the catalogue of table {self.name} refuses: {error}") from error
        except ex.NoSuchTableError as error:
            raise RejectedError("SETTINGS", f"there is no table {self.name}: {error}") from error
        except (ex.ValidationError, ex.ValidationException, NotImplementedError, ValueError) as error:
            raise RejectedError("SCHEMA_MISMATCH", f"table {self.name} refuses the changes: {error}") from error

    def _load_catalog(self) -> Any:
        """Return the catalogue; one of REST or in a database answers already."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        try:
            return load_catalog(self._catalog_name)
        except (ValueError, NotInstalledError) as error:
            raise RejectedError(
                "SETTINGS",
                f"the catalogue {self._catalog_name} of the target is not configured: {error}. Describe it in "
                f".pyiceberg.yaml, or set PYICEBERG_CATALOG__{self._catalog_name.upper()}__URI and others",
            ) from error


def _connection_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a catalogue that cannot be reached: OSErrors of REST, others of a database."""
    try:
        from sqlalchemy.exc import OperationalError
    except ModuleNotFoundError:
        return (OSError,)
    return (OSError, OperationalError)


def _last_epoch(table: Any, query: str) -> int | None:
    """Return the last epoch of a query that the current snapshot has, or None."""
    name = _MARK + query
    snapshot = table.current_snapshot()
    while snapshot is not None:
        mark = snapshot.summary[name] if snapshot.summary else None
        if mark is not None:
            return int(mark)
        if snapshot.sequence_number == 1:
            return None  # it is the first of the table, so none before has expired
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    mark = table.properties.get(name)
    return None if mark is None else int(mark)
