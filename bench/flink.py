"""PyFlink's general Python UDAF, its vectorised UDAF and its SQL, and foldflight in Spark, over the same CSV files.

PyFlink's requirements conflict with ours, so it has its own virtual environment (bench/environments.py).

Starting takes seconds in both systems, so each is measured in two ways. Without the start, the time of a small input is
subtracted from that of a large one. With it, the time of the large input counts from the submission of the job, or from
the first epoch of a new session; both start Python workers then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.csv as pc

from bench.data import Figure, Sizes, best_of, table
from bench.environments import python_with
from bench.spark_batch import consume, ours
from bench.spark_stream import DDL, epochs, streaming
from foldflight.client import connect
from foldflight.spark.java import prepare_local

SUITE = "flink"
GROUPS = 1_000
REQUIREMENT = "apache-flink==2.3.0"
JOB = Path(__file__).with_name("flink_job.py")
GENERAL = "PyFlink general UDAF, streaming"
TUNED_GENERAL = f"{GENERAL}, tuned"
OURS = "foldflight in Spark, streaming"
BUNDLES = {"python.fn-execution.bundle.size": "10000"}
REUSE = {**BUNDLES, "pipeline.object-reuse": "true"}
# The settings that Flink's guides advise for throughput: larger bundles, a larger state cache, one result per bundle.
TUNED = {
    **REUSE,
    "python.fn-execution.bundle.size": "100000",
    "python.state.cache-size": "10000",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "100000",
}
# The general UDAF with the settings of its users. PyFlink does not have it in batch mode.
GENERALS = {
    GENERAL: BUNDLES,
    f"{GENERAL}, Flink's defaults": {},
    f"{GENERAL}, object reuse": REUSE,
    TUNED_GENERAL: TUNED,
}
# These are called for each row. They get this part of the rows, but for the one that the README shows.
SLOW_SHARE = 10
SHARES = dict.fromkeys(GENERALS, SLOW_SHARE) | {TUNED_GENERAL: 1}
# Subject: way, mode and settings of a job.
JOBS: dict[str, tuple[str, str, dict[str, str]]] = {
    "PyFlink sql, streaming": ("sql", "streaming", BUNDLES),
    "PyFlink sql, batch": ("sql", "batch", BUNDLES),
    **{name: ("general", "streaming", settings) for name, settings in GENERALS.items()},
    "PyFlink vectorised, batch": ("vectorised", "batch", BUNDLES),
}
WITHOUT_START, WITH_START = (
    f"{GROUPS:,} groups, CSV, {start}" for start in ("without the start", "a tenth of the rows with the start")
)
TIME_LIMIT_S = 600


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure each job over few and over ten times as many rows.

    Raises:
        NotInstalledError: With the message of the installer.
    """
    python = python_with(REQUIREMENT)
    few, many = sizes.rows // 10, sizes.rows
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
        least, *files = (
            _written(Path(folder), size, place) for place, size in enumerate((few // SLOW_SHARE, few, many))
        )
        for name, (way, mode, settings) in JOBS.items():
            share = SHARES.get(name, 1)
            pair = files if share == 1 else (least, files[0])
            seconds = {file: run_job(python, way, mode, file, folder, settings) for file in pair}
            first, last = seconds.values()
            if last > first:  # otherwise the start differs by more than the rows take
                yield _figure(WITHOUT_START, name, (many - few) // share, last - first)
            yield _figure(WITH_START, name, few, seconds[files[0]])
        with streaming() as spark:
            query = ours(connect("embedded:examples.weighted_avg"), "k")
            only = Path(folder, "only")
            only.mkdir()
            shutil.copyfile(files[0], only / "few.csv")
            (start,) = epochs(spark, only, query, Path(folder, "first"), format_="csv", files=1)
            yield _figure(WITH_START, OURS, few, start)
            frames = [spark.read.schema(DDL).csv(str(file)) for file in files]
            consume(query(frames[1]))  # compiles plans
            batch = [best_of(3, lambda frame=frame: consume(query(frame))) for frame in frames]
            yield _figure(WITHOUT_START, "foldflight in Spark, batch", many - few, batch[1] - batch[0])
            # The first epoch of a stream, with the fewest rows, compiles its plans.
            _, *stream = epochs(spark, least.parent, query, Path(folder, "stream"), format_="csv", files=1)
            yield _figure(WITHOUT_START, OURS, many - few, stream[1] - stream[0])


def _written(folder: Path, rows: int, place: int) -> Path:
    """Write a file; a stream reads files in the order of their times, which are those of their places."""
    file = folder / "data" / f"{rows}.csv"
    file.parent.mkdir(exist_ok=True)
    pc.write_csv(table(rows, GROUPS), file, pc.WriteOptions(include_header=False))
    os.utime(file, (place, place))
    return file


def _figure(case: str, subject: str, rows: int, seconds: float) -> Figure:
    return Figure(SUITE, case, subject, rows / max(seconds, 1e-3), "rows/s")


def run_job(
    python: Path, way: str, mode: str, data: Path, folder: str, settings: dict[str, str], limit_s: float = TIME_LIMIT_S
) -> float:
    """Return the seconds of one job, from its submission to its end.

    Raises:
        TimeoutExpired: It did not end within the limit.
    """
    set_ = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    prepare_local(environment)
    environment["PYFLINK_CLIENT_EXECUTABLE"] = str(python)
    found = subprocess.run(
        [str(python), str(JOB), "--way", way, "--mode", mode, "--data", str(data), *set_],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
        env=environment,
        cwd=folder,
    )
    if found.returncode:
        raise RuntimeError(f"PyFlink failed at {way}, {mode}:\n{found.stderr[-2000:]}")
    seconds: float = json.loads(found.stdout.strip().splitlines()[-1])["seconds"]
    return seconds
