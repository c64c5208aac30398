"""The temporary folder of a server for compiled code is deleted, also after the server was killed."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from foldflight.server.ops.logs import Logger, make_logger
from foldflight.server.run.compilation import spare_folder

KILLED = """
import io, os, signal
from foldflight.server.ops.logs import make_logger
from foldflight.server.run.compilation import spare_folder

with spare_folder(make_logger(io.StringIO(), log_format="json", log_level="info")) as folder:
    (folder / "loop").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def logger() -> Logger:
    return make_logger(io.StringIO(), log_format="json", log_level="info")


def test_a_folder_ends_with_its_block(temporary: Path, logger: Logger) -> None:
    with spare_folder(logger) as folder:
        assert folder is not None
        assert folder.parent == temporary
    assert not list(temporary.iterdir())


def test_a_folder_of_a_killed_server_is_deleted_by_the_next_one(temporary: Path, logger: Logger) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert process.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    assert (left / "loop").exists()
    with spare_folder(logger) as folder:
        assert list(temporary.iterdir()) == [folder]


def test_folders_in_use_or_of_others_are_not_deleted(temporary: Path, logger: Logger) -> None:
    """That is the folder of a server that runs, one without a lock, one that others may write to, and a link."""
    unlocked_folder, shared_folder, link = (
        temporary / f"foldflight-compiled-{name}" for name in ("unlocked", "shared", "link")
    )
    elsewhere = temporary / "elsewhere"
    for folder in (unlocked_folder, shared_folder, elsewhere):
        folder.mkdir(mode=0o700)
    for folder in (shared_folder, elsewhere):
        (folder / ".in-use").touch()
    shared_folder.chmod(0o777)
    link.symlink_to(elsewhere)
    with spare_folder(logger) as one, spare_folder(logger) as other:
        assert one is not None
        assert other is not None
        assert {one, other, unlocked_folder, shared_folder, link, elsewhere} == set(temporary.iterdir())
        assert (elsewhere / ".in-use").exists()


def test_without_a_place_for_temporary_files_there_is_none(
    temporary: Path, logger: Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with spare_folder(logger) as folder:
        assert folder is None
