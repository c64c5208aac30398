"""Shared by all tests: the marker of a test comes from its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests import effort
from tests.spark_sessions import classic, java_options, rows_of, sessions, spark

__all__ = ["classic", "rows_of", "sessions", "spark"]

ROOT = Path(__file__).parent
settings.load_profile(effort.QUICK)
os.environ["SPARK_SUBMIT_OPTS"] = java_options()  # Spark's launcher reads it


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing for the law of compiled code, which takes seconds: slow tests check it for many classes."""
    from foldflight.compiler import Programs
    from foldflight.testing import laws

    monkeypatch.setattr(laws, "PROGRAMS_AT_ONCE", Programs(hot_rows=1 << 62))


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
