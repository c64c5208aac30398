"""Targets with real databases: exactly once, keys, types, columns, and what is refused."""

from __future__ import annotations

from foldflight.testing import TARGET_COLUMNS, TARGET_KEYS, check_target
from tests.postgres import MISSING, programs
from tests.tables.kinds import Kind


def test_postgresql_is_installed() -> None:
    """Without PostgreSQL this test fails, and those that need it are skipped."""
    assert programs() is not None, MISSING


def test_laws_of_a_target(kind: Kind) -> None:
    """Every epoch reaches the table as a whole and once; NULL in a key equals NULL."""
    results = check_target(lambda: kind.opened("t", TARGET_COLUMNS, TARGET_KEYS), lambda: kind.rows("t"))
    assert len(results) == 6
    assert [result for result in results if not result.passed] == []
