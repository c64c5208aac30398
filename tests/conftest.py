"""What all tests share: their markers come from their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the name of its folder, so that `-m wire` means tests/wire."""
    for item in items:
        item.add_marker(item.path.relative_to(ROOT).parts[0])
