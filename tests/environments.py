"""Environments of Python beside the tests' own: for packages whose requirements conflict with ours."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "environments"
INSTALL_S = 1800


def environment(lock: Path) -> Path:
    """Return the Python of the environment with the packages that a file locks. It is made once for each lock."""
    folder = CACHE / f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        run([sys.executable, "-m", "venv", "--clear", str(folder)], INSTALL_S)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        run([str(python), "-m", "pip", "install", *options, "--requirement", str(lock)], INSTALL_S)
        (folder / "installed").touch()
    return python


def run(
    command: list[str],
    limit_s: int,
    *,
    stdin_text: str = "",
    env: dict[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Return what a command prints. A failure of it is one of the test."""
    process = subprocess.run(
        command, input=stdin_text, capture_output=True, text=True, check=False, timeout=limit_s, cwd=folder, env=env
    )
    assert process.returncode == 0, f"{' '.join(command)}:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    return process.stdout
