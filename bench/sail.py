"""One query in Sail, which speaks Spark's protocol and runs Python in its own process, and the same one in Spark.

Sail needs an older client than Spark here has, so its job is a process with a path of its own (bench/sail_job.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.data import Figure, Sizes, table
from bench.environments import beside
from bench.spark_batch import (
    BUILT_IN,
    EMBEDDED,
    LIFTED,
    TIMES_ROWS,
    Query,
    built_in,
    ours,
    seconds_of,
    session,
    written,
)
from foldflight.client import connect

SUITE = "sail"
ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "tests" / "spark" / "requirements-sail.txt"
OURS, LIFTED_OURS, SQL = f"{EMBEDDED}, in Sail", f"{LIFTED}, in Sail", "Sail's own SQL"


def measure(sizes: Sizes) -> Iterator[Figure]:
    """Measure all ways in both engines, over the same Parquet files.

    Raises:
        NotInstalledError: With the message of the installer.
    """
    packages = beside(REQUIREMENTS)
    shuffle = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
    rows = TIMES_ROWS * sizes.rows
    with tempfile.TemporaryDirectory(prefix="foldflight-bench-") as folder:
        paths = {
            f"{groups:,} groups": written(Path(folder), str(groups), table(rows, groups)) for groups in sizes.groups
        }
        found = _in_sail(packages, list(paths.values()))
        with session(shuffle) as spark:
            for case, path in paths.items():
                in_spark = seconds_of(spark, spark.read.parquet(str(path)), ways())
                names = {OURS: EMBEDDED, LIFTED_OURS: LIFTED, SQL: BUILT_IN}
                in_sail = {name: found[str(path)][way] for name, way in names.items()}
                for way, seconds in {**in_spark, **in_sail}.items():
                    yield Figure(SUITE, case, way, rows / seconds, "rows/s")


def ways() -> dict[str, Query]:
    """Return the query in the ways of Spark."""
    functions = connect("embedded:examples.weighted_avg")
    return {
        BUILT_IN: built_in("k"),
        LIFTED: ours(functions, "k", plan="lifted"),
        EMBEDDED: ours(functions, "k", plan="fold"),
    }


def _in_sail(packages: Path, files: list[Path]) -> dict[str, dict[str, float]]:
    environment = os.environ | {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT / 'service'}{os.pathsep}{ROOT}"}
    job = [sys.executable, "-m", "bench.sail_job", *map(str, files)]
    run = subprocess.run(job, env=environment, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(run.stdout.splitlines()[-1])
