"""An epoch whose sink failed is repeated, and then Java is killed: views, DISTINCT, lists and OVER go on.

The states of the failed attempt stay in the checkpoint, and are read together with the states of later epochs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.repeated_epochs import streams
from tests.spark.test_kill import ROOT


def ran(folder: Path, step: str) -> int:
    """Run a step, and end its Java."""
    folder.mkdir(exist_ok=True)
    with (folder / "said").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.repeated_epochs", str(folder), step],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'service'}{os.pathsep}{ROOT}"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        return process.wait(300)
    finally:
        if process.poll() != 0:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def outputs(folder: Path, name: str) -> list[Any]:
    """Return the rows of all epochs that have any."""
    files = sorted((folder / name).glob("*.json"), key=lambda path: int(path.stem))
    return [sorted(rows, key=str) for rows in map(json.loads, map(Path.read_text, files)) if rows]


@pytest.mark.slow
def test_a_sink_fails_and_java_is_killed(tmp_path: Path) -> None:
    """The outputs are the same as of streams that nothing disturbed."""
    whole, failed_folder = tmp_path / "whole", tmp_path / "failed"
    for folder, step, code in (
        (whole, "whole", 0),
        (failed_folder, "fail", -signal.SIGKILL),
        (failed_folder, "go on", 0),
    ):
        assert ran(folder, step) == code, (folder / "said").read_text()[-20_000:]
    for name in streams():
        assert len(outputs(whole, name)) > 1
        assert outputs(failed_folder, name) == outputs(whole, name)
