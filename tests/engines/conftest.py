"""The environments of other engines: their requirements conflict with ours, so each has one of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foldflight.spark.java import prepare_local
from tests.environments import environment, run

HERE = Path(__file__).parent
RUN_S = 900
Engine = Callable[[str, str, Any], Any]


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Return `ask(environment, program, given)`, which runs a program of this folder and returns what it answers."""

    def ask(name: str, program: str, request: Any) -> Any:
        python = environment(HERE / f"requirements-{name}.txt")
        env = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        prepare_local(env)
        env["PYFLINK_CLIENT_EXECUTABLE"] = str(python)
        output = run([str(python), str(HERE / program)], RUN_S, stdin_text=json.dumps(request), env=env, folder=HERE)
        return json.loads(output.strip().splitlines()[-1])

    return ask


@pytest.fixture(scope="session")
def beside() -> Callable[[str, str], str]:
    """Return `run(environment, program)`: run code with our packages, and the engine's behind them."""

    def run_code(name: str, program: str) -> str:
        python = environment(HERE / f"requirements-{name}.txt")
        (packages,) = python.parents[1].glob("lib/python*/site-packages")
        root = HERE.parents[1]
        paths = [str(root / "service"), str(root)]
        start = f"import sys; sys.path[:0] = {paths!r}; sys.path.append({str(packages)!r})\n"
        return run([sys.executable, "-W", "ignore", "-c", start + program], RUN_S, folder=HERE)

    return run_code
