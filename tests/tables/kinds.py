"""The kinds of tables alike: how they are named, opened and read."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
from deltalake import DeltaTable as Delta
from psycopg.rows import dict_row

from foldflight.ext.tables.delta import DeltaTable
from foldflight.ext.tables.duckdb import DuckDBTable
from foldflight.ext.tables.iceberg import IcebergTable
from foldflight.ext.tables.postgres import PostgresTable

Rows = list[dict[str, Any]]


class Kind:
    """A place that has tables by name."""

    def url(self, table: str) -> str:
        raise NotImplementedError

    def target(self, table: str, columns: pa.Schema, keys: Sequence[str], **options: bool) -> Any:
        raise NotImplementedError

    def rows(self, table: str) -> Rows:
        raise NotImplementedError

    def opened(self, table: str, columns: pa.Schema, keys: Sequence[str], **options: bool) -> Any:
        """Return a target that is ready."""
        result = self.target(table, columns, keys, **{"create": True, "add_columns": False, **options})
        result.prepare()
        return result


class DuckDBFile(Kind):
    def __init__(self, path: Path) -> None:
        self.path = path

    def url(self, table: str) -> str:
        return f"duckdb://{self.path}?table={table}"

    def target(self, table: str, columns: pa.Schema, keys: Sequence[str], **options: bool) -> DuckDBTable:
        return DuckDBTable(str(self.path), (table,), columns, keys, **options)

    def rows(self, table: str) -> Rows:
        with duckdb.connect(str(self.path)) as connection:
            return connection.sql(f'FROM "{table}"').to_arrow_table().to_pylist()

    def run(self, statement: str) -> None:
        with duckdb.connect(str(self.path)) as connection:
            connection.execute(statement)


class PostgresDatabase(Kind):
    def __init__(self, base: str, schema: str) -> None:
        self.base, self.schema = base, schema
        self.run(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')

    def url(self, table: str) -> str:
        return f"{self.base}?table={self.schema}.{table}"

    def target(self, table: str, columns: pa.Schema, keys: Sequence[str], **options: bool) -> PostgresTable:
        return PostgresTable(self.base, (self.schema, table), columns, keys, **options)

    def rows(self, table: str) -> Rows:
        with psycopg.connect(self.base, row_factory=dict_row) as connection:
            return connection.execute(f'SELECT * FROM "{self.schema}"."{table}"').fetchall()

    def run(self, statement: str) -> None:
        with psycopg.connect(self.base) as connection:
            connection.execute(statement)


class DeltaFiles(Kind):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def url(self, table: str) -> str:
        return f"delta://{self.folder / table}"

    def target(self, table: str, columns: pa.Schema, keys: Sequence[str], **options: bool) -> DeltaTable:
        return DeltaTable(str(self.folder / table), columns, keys, **options)

    def rows(self, table: str) -> Rows:
        return Delta(self.folder / table).to_pyarrow_table().to_pylist()


class IcebergFiles(Kind):
    """A catalogue that the environment describes, by default in a file of SQLite. It imports pyiceberg: a second."""

    def __init__(self, folder: Path, **properties: str) -> None:
        import pyiceberg.catalog
        from pyiceberg.utils.config import Config

        self.catalog = f"t{uuid.uuid4().hex}"
        uri, warehouse = f"sqlite:///{folder / 'catalog.db'}", f"file://{folder / 'warehouse'}"
        for name, value in {"type": "sql", "uri": uri, "warehouse": warehouse, **properties}.items():
            os.environ[f"PYICEBERG_CATALOG__{self.catalog.upper()}__{name.upper()}"] = value
        pyiceberg.catalog._ENV_CONFIG = Config()  # pyiceberg reads the environment once

    def url(self, table: str) -> str:
        return f"iceberg://{self.catalog}/shop.{table}"

    def target(self, table: str, columns: pa.Schema, keys: Sequence[str], **options: bool) -> IcebergTable:
        return IcebergTable(self.catalog, ("shop", table), columns, keys, **options)

    def rows(self, table: str) -> Rows:
        with self.opened_catalog() as catalog:
            return catalog.load_table(("shop", table)).scan().to_arrow().to_pylist()

    def opened_catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.catalog)
