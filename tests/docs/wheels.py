"""Builds the published files, the wheel and the sdist, and runs programs beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["build", "run"]

ROOT = Path(__file__).parents[2]


def build(kind: str, folder: Path, root: Path = ROOT) -> Path:
    """Build the wheel or the sdist of a source tree into a folder, and return its path."""
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder, folder=root)
    (path,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


def run(*words: str | Path, folder: Path | None = None, **variables: str) -> str:
    """Run a program in a folder, check that it ends well, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    process = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert process.returncode == 0, f"{words}\n{process.stdout[-10_000:]}{process.stderr[-10_000:]}"
    return process.stdout
