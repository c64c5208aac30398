"""The sample engine without this package, with its own messages compiled from the proto file."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from foldflight.cli.main import cli
from foldflight.functions import builtin
from foldflight.server.run.lifecycle import serving
from tests.wire.kit import DEADLINE_S, ServerProcess
from tests.wire.test_conformance_engine import plain

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "engine_from_the_wire.py"
TOKEN = "a token for the plain engine"
# Runs a script and says, on its standard error, which of this package's modules it has loaded.
ALONE = (
    "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, {folder!r}); "
    "runpy.run_path(sys.argv[0], run_name='__main__'); "
    "print(*[name for name in sys.modules if name.partition('.')[0] == 'foldflight'], file=sys.stderr, end='')"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled messages and rows with known sums."""
    sample_folder = tmp_path_factory.mktemp("plain")
    proto = ["-I", str(ROOT / "proto" / "foldflight" / "v1"), f"--python_out={sample_folder}", "exchange.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *proto], check=True)
    random.seed(7)
    rows = [(f"key {random.randrange(6)}", random.randrange(1000)) for _ in range(9000)]
    lines = ["key,value", *(f"{key},{value}" for key, value in rows)]
    (sample_folder / "rows.csv").write_text("\n".join(lines))
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for key, value in rows:
        sums[key][0] += value
        sums[key][1] += 1
    (sample_folder / "answer").write_text("".join(json.dumps([key, *sums[key]]) + "\n" for key in sorted(sums)))
    return sample_folder


def command(folder: Path, url: str, *more: str) -> list[str]:
    """Return the command that runs the sample."""
    alone = ALONE.format(folder=str(folder))
    return [sys.executable, "-c", alone, str(EXAMPLE), url, str(folder / "rows.csv"), "--rows", "3000", *more]


@pytest.mark.every_turn
def test_the_sample_folds_without_this_package(folder: Path) -> None:
    """With a token, over three epochs, the sums are right, and no module of this package is loaded."""
    with serving(builtin, tokens=TOKEN) as server:
        process = subprocess.run(
            command(folder, server.url, "--token", TOKEN), capture_output=True, text=True, check=True, cwd=folder
        )
        assert process.stdout == (folder / "answer").read_text()
        assert process.stderr == ""
        process = subprocess.run(command(folder, server.url), capture_output=True, text=True, check=False, cwd=folder)
        assert process.returncode == 1
        assert process.stderr.startswith("RejectedError UNAUTHENTICATED: ")


@pytest.mark.slow
def test_another_server_continues(fork: Callable[..., ServerProcess]) -> None:
    """The sample loads its states into the next server after a loss, and after a server that is not there."""
    servers = [fork(), fork()]
    urls = ",".join(["grpc://127.0.0.1:1", *(each.url for each in servers)])
    engine = plain.Engine(urls, deadline_s=DEADLINE_S)
    outputs = engine.epoch(["a", "b", "a"], pa.array([1, 2, 3]))
    assert outputs == {"a": [4, 2], "b": [2, 1]}
    lost_server = next(each for each in servers if each.url == engine.urls[0])
    lost_server.process.kill()
    outputs |= engine.epoch(["a", "c"], pa.array([10, 20]))
    assert outputs == {"a": [14, 3], "b": [2, 1], "c": [20, 1]}
    assert engine.urls[0] == next(each for each in servers if each is not lost_server).url
    engine.end()


def test_the_sample_is_short() -> None:
    """A complete engine has about 150 lines of code."""
    lines = [
        line for line in EXAMPLE.read_text().splitlines() if line.strip() and not line.strip().startswith(('"', "#"))
    ]
    assert len(lines) < 160


@pytest.mark.slow
def test_the_command_tries_the_sample(folder: Path) -> None:
    """`foldflight conform engine` runs the sample as a process, with every provocation."""
    words = ["conform", "engine", "--silence-s", "20", "--", *command(folder, "{url}", "--deadline-s", "4")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "24 rules: 24 kept, 0 broken, 0 not tested" in result.output
