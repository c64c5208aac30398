"""PyFlink's general Python UDAF, its vectorised one and its built-in SQL, over the same rows.

PyFlink's requirements and ours do not agree, so it gets a virtual environment of its own, made at the first run. To
start a job takes it seconds; what is given is the time of a large input less that of a small one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.csv as pc

from bench.data import Measured, table
from foldflight.spark.java import prepare_local

REQUIREMENT = "apache-flink==2.3.0"
ENVIRONMENT = Path(__file__).parents[1] / ".cache" / "pyflink"
JOB = Path(__file__).with_name("flink_job.py")
# PyFlink has no general Python UDAF in batch mode.
JOBS = (("sql", "streaming"), ("sql", "batch"), ("general", "streaming"), ("vectorised", "batch"))
GENERAL = "PyFlink general UDAF, streaming"
TIME_LIMIT_S = 600


class NotInstalledError(Exception):
    """PyFlink cannot be installed here."""


def measure(rows: int, groups: int) -> Iterator[Measured]:
    """Measure each job over `rows` rows with `groups` keys.

    Raises:
        NotInstalledError: With what the installer said.
    """
    python = _environment()
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
        sizes = (rows // 10, rows)
        files = []
        for size in sizes:
            files.append(Path(folder) / f"{size}.csv")
            pc.write_csv(table(size, groups), files[-1], pc.WriteOptions(include_header=False))
        for way, mode in JOBS:
            name = f"PyFlink {'general UDAF' if way == 'general' else way}, {mode}"
            small, large = (_run(python, way, mode, file, folder) for file in files)
            yield Measured(name, groups, sizes[1] - sizes[0], max(large - small, 1e-3))


def _environment() -> Path:
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        found = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", REQUIREMENT], capture_output=True, text=True, check=False
        )
        if found.returncode:
            raise NotInstalledError(found.stderr.strip()[-500:])
        (ENVIRONMENT / "installed").touch()
    return python


def _run(python: Path, way: str, mode: str, data: Path, folder: str) -> float:
    """Return the seconds of one job."""
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    prepare_local(environment)
    environment["PYFLINK_CLIENT_EXECUTABLE"] = str(python)
    found = subprocess.run(
        [str(python), str(JOB), "--way", way, "--mode", mode, "--data", str(data)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
        env=environment,
        cwd=folder,
    )
    if found.returncode:
        raise RuntimeError(f"PyFlink failed at {way}, {mode}:\n{found.stderr[-2000:]}")
    seconds: float = json.loads(found.stdout.strip().splitlines()[-1])["seconds"]
    return seconds
