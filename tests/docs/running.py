"""A program of the documents, run to its end in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["printed_by"]


def printed_by(*words: str | Path, folder: Path, environment: Mapping[str, str]) -> str:
    """Run Python with arguments in a folder, check that it ends well, and return what it prints."""
    run = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-20_000:]
    return run.stdout
