"""A PostgreSQL server, and tables of each kind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import MISSING, private_postgres, programs
from tests.tables.kinds import DeltaFiles, DuckDBFile, IcebergFiles, Kind, PostgresDatabase
from tests.tables.rest import private_catalogue


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a database."""
    if programs() is None:
        pytest.skip(MISSING)
    with private_postgres() as url:
        yield url


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[IcebergFiles]:
    """A catalogue that pyiceberg reaches over HTTP."""
    with private_catalogue(tmp_path) as url:
        yield IcebergFiles(tmp_path, type="rest", uri=url)


@pytest.fixture(params=["duckdb", "postgresql", "delta", "iceberg"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """A place for tables of each kind, in turn."""
    match request.param:
        case "duckdb":
            return DuckDBFile(tmp_path / "tables.duckdb")
        case "delta":
            return DeltaFiles(tmp_path)
        case "iceberg":
            return IcebergFiles(tmp_path)
        case "rest":
            return request.getfixturevalue("rest")  # type: ignore[no-any-return]
        case _:
            return PostgresDatabase(request.getfixturevalue("postgres"), f"s{uuid.uuid4().hex}")
