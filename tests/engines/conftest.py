"""The environments of other engines: their requirements conflict with ours, so each has one of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldflight.spark.java import prepare_local

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "engines"
INSTALL_S, RUN_S = 1800, 900
Engine = Callable[[str, str, Any], Any]


def environment(name: str) -> Path:
    """Return the Python of the environment with the locked packages of an engine. It is made once for each lock."""
    lock = HERE / f"requirements-{name}.txt"
    folder = CACHE / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        run([sys.executable, "-m", "venv", "--clear", str(folder)], INSTALL_S)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        run([str(python), "-m", "pip", "install", *options, "--requirement", str(lock)], INSTALL_S)
        (folder / "installed").touch()
    return python


def run(command: list[str], limit_s: int, *, given: str = "", env: dict[str, str] | None = None) -> str:
    """Return what a command prints. A failure of it is one of the test."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=limit_s, cwd=HERE, env=env
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Return `ask(environment, program, given)`, which runs a program of this folder and returns what it answers."""

    def ask(name: str, program: str, given: Any) -> Any:
        python = environment(name)
        env = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        prepare_local(env)
        env["PYFLINK_CLIENT_EXECUTABLE"] = str(python)
        printed = run([str(python), str(HERE / program)], RUN_S, given=json.dumps(given), env=env)
        return json.loads(printed.strip().splitlines()[-1])

    return ask


@pytest.fixture(scope="session")
def beside() -> Callable[[str, str], str]:
    """Return `run(environment, program)`: run code with our packages, and those of the engine behind them."""

    def run_code(name: str, program: str) -> str:
        python = environment(name)
        (packages,) = python.parents[1].glob("lib/python*/site-packages")
        root = HERE.parents[1]
        paths = [str(root / "service"), str(root)]
        start = f"import sys; sys.path[:0] = {paths!r}; sys.path.append({str(packages)!r})\n"
        return run([sys.executable, "-W", "ignore", "-c", start + program], RUN_S)

    return run_code
