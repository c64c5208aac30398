"""What all tests share: their markers come from their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.spark_sessions import classic, rows_of, sessions, spark

__all__ = ["classic", "rows_of", "sessions", "spark"]

ROOT = Path(__file__).parent

# No test asserts a time, so none has hypothesis's deadline for an example: a busy machine breaks it.
settings.register_profile("foldflight", deadline=None)
settings.load_profile("foldflight")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the name of its folder, so that `-m wire` means tests/wire."""
    folders = set()
    for item in items:
        folder = item.path.relative_to(ROOT).parts[0]
        item.add_marker(folder)
        folders.add(folder)
    if folders & {"spark", "sql", "docs"}:
        from foldflight.spark.java import prepare_local

        prepare_local(os.environ)
