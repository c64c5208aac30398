"""Builds the images once for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.deploy.kit import build_images


@pytest.fixture(scope="session")
def images() -> None:
    """Our images and the foreign ones, built here."""
    build_images()
