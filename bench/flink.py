"""PyFlink's general Python UDAF, its vectorised UDAF and its SQL, and foldflight in Spark, over the same CSV files.

PyFlink's requirements conflict with ours, so it has its own virtual environment, which is made at the first run.
Starting a job takes seconds, so the figure is the time of a large input minus that of a small one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.csv as pc

from bench.data import Figure, Sizes, best_of, table
from bench.spark_batch import consume, ours
from bench.spark_stream import DDL, epochs, streaming
from foldflight.client import connect
from foldflight.spark.java import prepare_local

SUITE = "flink"
GROUPS = 1_000
REQUIREMENT = "apache-flink==2.3.0"
ENVIRONMENT = Path(__file__).parents[1] / ".cache" / "pyflink"
JOB = Path(__file__).with_name("flink_job.py")
# PyFlink has no general Python UDAF in batch mode.
JOBS = (("sql", "streaming"), ("sql", "batch"), ("general", "streaming"), ("vectorised", "batch"))
GENERAL = "PyFlink general UDAF, streaming"
OURS = "foldflight in Spark, streaming"
TIME_LIMIT_S = 600


class NotInstalledError(Exception):
    """PyFlink cannot be installed here."""


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each job by the time that many rows take longer than few, so that the start is excluded for all.

    Raises:
        NotInstalledError: With the message of the installer.
    """
    python = _environment()
    case = f"{GROUPS:,} groups, CSV"
    few, many = sizes.rows // 10, sizes.rows
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
        files = [Path(folder) / "data" / f"{size}.csv" for size in (few, many)]
        files[0].parent.mkdir()
        for place, (size, file) in enumerate(zip((few, many), files, strict=True)):
            pc.write_csv(table(size, GROUPS), file, pc.WriteOptions(include_header=False))
            os.utime(file, (place, place))  # a stream reads files in the order of their times
        for way, mode in JOBS:
            name = f"PyFlink {'general UDAF' if way == 'general' else way}, {mode}"
            yield _figure(case, name, many - few, [_run(python, way, mode, file, folder) for file in files])
        with streaming() as spark:
            query = ours(connect("embedded:examples.weighted_avg"), "k")
            frames = [spark.read.schema(DDL).csv(str(file)) for file in files]
            consume(query(frames[1]))  # starts workers and compiles plans
            batch = [best_of(3, lambda frame=frame: consume(query(frame))) for frame in frames]
            yield _figure(case, "foldflight in Spark, batch", many - few, batch)
            # The first epoch of a stream also starts processes, so the small input is run twice.
            again = files[0].with_name("again.csv")
            shutil.copyfile(files[0], again)
            os.utime(again, (-1, -1))
            _, *stream = epochs(spark, again.parent, query, Path(folder, "stream"), format_="csv", files=1)
            yield _figure(case, OURS, many - few, stream)


def _figure(case: str, subject: str, rows: int, seconds: list[float]) -> Figure:
    return Figure(SUITE, case, subject, rows / max(seconds[1] - seconds[0], 1e-3), "rows/s")


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
    """Return the duration of one job in seconds."""
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
