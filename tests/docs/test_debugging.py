"""The guide "Debug a function": its blocks lead from a failing stream on two servers to a mended, tested function."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.spark_sessions import NOT_CONNECTED

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/debug-a-function.md").read_text(encoding="utf-8")
SAVED = re.compile(
    r"<!-- (?P<what>save|written|mend): (?P<file>\S+) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
REPLAYED = re.compile(
    r"^(?P<command>foldflight replay FILE[^\n]*)\n```\n<!-- prints(?:: (?P<typed>[^\n]*))? -->\n"
    r"```text\n(?P<lines>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SERVE = re.compile(r"^foldflight (serve .*--port (\d+) .*)$", re.MULTILINE)
# The guide has a million rows.
ROWS = "20_000"


def blocks(what: str) -> dict[str, str]:
    """Return the blocks of files in the guide, by file."""
    return {match["file"]: match["text"] for match in SAVED.finditer(GUIDE) if match["what"] == what}


def python(folder: Path, *words: str, stdin_text: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, and return its output."""
    environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT / "service")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        input=stdin_text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_prints(output: str, lines: list[str]) -> None:
    """Assert that the lines are parts of the output, in this order."""
    at = 0
    for line in lines:
        result = output.find(line, at)
        assert result >= 0, f"{line}\n\n{output}"
        at = result + len(line)


@pytest.mark.slow
@pytest.mark.flaky(reruns=3, reruns_delay=2, only_rerun=[NOT_CONNECTED])
def test_the_guide_leads_from_a_failing_stream_to_a_tested_function(tmp_path: Path) -> None:
    """Each file, command and output of the story is as shown."""
    files = blocks("save")
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("1_000_000", ROWS))
    assert python(tmp_path, "make_visits.py").returncode == 0
    with ExitStack() as stack:
        job = (tmp_path / "stream_job.py").read_text()
        for command, port in SERVE.findall(GUIDE):
            words = command.replace(port, "0").split()
            server = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "foldflight.cli.main", *words],
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(server.terminate)
            assert server.stdout is not None
            job = job.replace(port, str(json.loads(server.stdout.readline())["flight"]))
        (tmp_path / "stream_job.py").write_text(job)
        failed_run = python(tmp_path, "stream_job.py")
    assert failed_run.returncode == 1
    recordings = list((tmp_path / "recordings").glob("*.recording"))
    assert_prints(
        failed_run.stderr,
        ["get_value raised OverflowError: date value out of range", "group: user='user", "recorded: "],
    )
    assert any(f"foldflight replay {path} --function streaks:LongestStreak" in failed_run.stderr for path in recordings)

    (debug_session, shrunk_session, passed_session) = REPLAYED.finditer(GUIDE)
    replay(tmp_path, debug_session, recordings[0])
    replay(tmp_path, shrunk_session, recordings[0])
    text = (tmp_path / "test_streaks.py").read_text()
    documented_test = blocks("written")["test_streaks.py"]
    varying_text = r"From \S+|'slot': \d+"
    assert re.sub(varying_text, "", text) == re.sub(varying_text, "", documented_test)
    assert "OverflowError" in python(tmp_path, "-m", "pytest", "-q", "test_streaks.py").stdout
    wrong, right, _ = blocks("mend")["streaks.py"].split("\n")
    (tmp_path / "streaks.py").write_text(files["streaks.py"].replace(wrong, right))
    test_run = python(tmp_path, "-m", "pytest", "-q", "test_streaks.py")
    assert test_run.returncode == 0, test_run.stdout
    replay(tmp_path, passed_session, recordings[0])


def replay(folder: Path, session: re.Match[str], path: Path) -> None:
    """Run a command of the guide, and look for the lines that it shows."""
    words = session["command"].replace("FILE.recording", str(path)).split()[1:]
    stdin_text = f"{session['typed']}\nq\n" if session["typed"] else ""
    run = python(folder, "-m", "foldflight.cli.main", *words, stdin_text=stdin_text)
    assert_prints(run.stdout, session["lines"].splitlines())
