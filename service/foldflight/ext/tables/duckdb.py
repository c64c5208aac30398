"""A table of a DuckDB file. Changes are merged as Arrow tables, part after part, in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from foldflight.engine.targets import missing_columns, offsets_name
from foldflight.errors import RejectedError, RetryableError
from foldflight.ext.tables.merge_sql import driver, merge_statement, quote_name

if TYPE_CHECKING:
    import duckdb


_NO_DATABASE: Final = "not a valid DuckDB database file"
_CHANGES: Final = "foldflight_changes"
# DuckDB fails now and then if one thread opens a file while another one closes it, so queries take turns.
_OPEN: Final = threading.RLock()


class DuckDBTable:
    """A target. The file is open only during an epoch, so that other processes can read it between epochs.

    Args:
        path: The file. It is made if it does not exist.
        table: The name of the table, in parts.
        columns: The columns of the query.
        keys: The columns that identify a row.
        create: Whether to create the table if it does not exist.
        add_columns: Whether to add columns that the table lacks.
    """

    def __init__(
        self,
        path: str,
        table: tuple[str, ...],
        columns: pa.Schema,
        keys: Sequence[str],
        *,
        create: bool,
        add_columns: bool,
    ) -> None:
        self.name = f"{'.'.join(table)} in {path}"
        self._path, self._parts, self._columns, self._keys = path, table, columns, keys
        self._create, self._add_columns = create, add_columns
        self._table = quote_name(table)
        self._epochs = quote_name((*table[:-1], "foldflight_epochs"))
        self._name_in_schema = table[-1].lower()  # names in DuckDB have no case

    def prepare(self) -> None:
        """Create the table, or check its columns and add those that it lacks."""
        with self._connect() as connection:
            connection.begin()
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._epochs} "
                "(query VARCHAR, table_name VARCHAR, epoch BIGINT, committed_at TIMESTAMPTZ, "
                "PRIMARY KEY (query, table_name))"
            )
            connection.register(_CHANGES, self._columns.empty_table())
            if not self._exists(connection):
                if not self._create:
                    raise RejectedError("SETTINGS", f"there is no table {self.name}; create it, or give create=True")
                connection.execute(f"CREATE TABLE {self._table} AS FROM {_CHANGES}")
                # A dropped table of this name may have left marks, with which its query would go on in an empty table.
                connection.execute(f"DELETE FROM {self._epochs} WHERE table_name = ?", [self._name_in_schema])
            schema = connection.sql(f"FROM {self._table} LIMIT 0").to_arrow_table().schema
            types = {field.name: field.type for field in schema}
            missing_fields = missing_columns(self.name, self._columns, types, add_columns=self._add_columns)
            description = connection.sql(f"DESCRIBE FROM {_CHANGES}").fetchall()
            names = {row[0]: row[1] for row in description}
            for field in missing_fields:
                connection.execute(f"ALTER TABLE {self._table} ADD COLUMN {quote_name(field.name)} {names[field.name]}")
            connection.commit()

    def has_rows(self) -> bool:
        """Return whether the table has any rows."""
        with self._connect() as connection:
            return connection.execute(f"SELECT 1 FROM {self._table} LIMIT 1").fetchone() is not None

    def last_epoch(self, query: str) -> int | None:
        with self._connect() as connection:
            return self._last_epoch(connection, query)

    def apply(self, query: str, epoch: int, changes: Iterable[pa.Table], offsets: int | None = None) -> None:
        statement = merge_statement(self._table, _CHANGES, self._keys, self._columns.names)
        with self._connect() as connection:
            connection.begin()
            last = self._last_epoch(connection, query)
            if last is not None and last >= epoch:
                return
            # Another thread that has the same epoch in work conflicts with this row, here or at the commit.
            self._store(connection, query, epoch, is_new=last is None)
            if offsets is not None:
                name = offsets_name(query)
                self._store(connection, name, offsets, is_new=self._last_epoch(connection, name) is None)
            for part in changes:
                connection.register(_CHANGES, part)
                connection.execute(statement)
                connection.unregister(_CHANGES)
            connection.commit()

    def _store(self, connection: duckdb.DuckDBPyConnection, query: str, epoch: int, *, is_new: bool) -> None:
        connection.execute(
            f"INSERT INTO {self._epochs} (epoch, query, table_name, committed_at) VALUES (?, ?, ?, now())"
            if is_new
            else f"UPDATE {self._epochs} SET epoch = ?, committed_at = now() WHERE query = ? AND table_name = ?",
            [epoch, query, self._name_in_schema],
        )

    def _last_epoch(self, connection: duckdb.DuckDBPyConnection, query: str) -> int | None:
        select = f"SELECT max(epoch) FROM {self._epochs} WHERE query = ? AND table_name = ?"
        last: int | None = connection.execute(select, [query, self._name_in_schema]).fetchall()[0][0]
        return last

    def _exists(self, connection: duckdb.DuckDBPyConnection) -> bool:
        schema = self._parts[-2] if len(self._parts) > 1 else "main"
        answer = connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = ? "
            "AND lower(table_name) = lower(?)",
            [schema, self._parts[-1]],
        )
        return bool(answer.fetchall())

    @contextmanager
    def _connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection, which is closed after the block. Changes that are not committed then are rolled back."""
        duckdb = driver("duckdb", "DuckDB", extra="duckdb")
        try:
            with _OPEN, duckdb.connect(self._path) as connection:
                yield connection
        except (duckdb.IOException, duckdb.ConnectionException, duckdb.TransactionException) as error:
            path = Path(self._path)
            if path.is_dir() or not path.parent.is_dir() or _NO_DATABASE in str(error):
                raise RejectedError(
                    "SETTINGS",
                    f"table {self.name}: {error}. The path of the URL names a file of DuckDB, or a new one in a folder "
                    "that exists",
                ) from error
            # Another process has the file open, or this one for reading only, or a query in it changes the same rows.
            raise RetryableError("UNREACHABLE", f"table {self.name} is not available: {error}") from error
        except duckdb.Error as error:
            raise RejectedError("SCHEMA_MISMATCH", f"table {self.name} refuses the changes: {error}") from error
