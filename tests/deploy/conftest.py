"""Builds the images once for all tests of this folder, and refuses its slow tests in one line without their tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.kit import REMEDY, build_images

HERE = Path(__file__).parent
_TOLD: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without container engine and programs, fail the first slow test with the remedy, and skip the others."""
    if HERE not in item.path.parents or item.get_closest_marker("slow") is None:
        return
    if _TOLD:
        pytest.skip(f"as the test that failed first: {_TOLD[0]}")
    missing = _missing_tool()
    if missing is not None:
        _TOLD.append(missing)
        pytest.fail(f"the slow tests of tests/deploy cannot run: {missing}; {REMEDY}", pytrace=False)


def _missing_tool() -> str | None:
    """Return what the slow tests lack; None if they have all."""
    if _READY:
        return None
    unset = [name for name in ("DEPLOY_TOOLS", "BASE_IMAGE") if name not in os.environ]
    if unset:
        return f"{' and '.join(unset)} not set"
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return f"no container engine answers at {os.environ.get('DOCKER_HOST', 'the default address')}"
    _READY.append(True)
    return None


_READY: list[bool] = []


@pytest.fixture(scope="session")
def images() -> None:
    """Our images and the foreign ones, built here."""
    build_images()
