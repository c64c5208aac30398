"""The core runs without each room of `ext`, and says where one is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foldflight.extensions import ROOMS, Extension

PACKAGE = Path(__file__).parents[2] / "service" / "foldflight"

# A fold, embedded and on a server, over several functions and epochs.
CORE = """
import importlib.abc, sys, warnings

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())

import pyarrow as pa
import pyarrow.flight as fl
from foldflight import Recordings, RejectedError, connect, udaf, udf
from foldflight.cli.main import cli
from foldflight.client.error_translation import translated
from foldflight.exchange.frames import Open
from foldflight.functions import Call
from foldflight.server.run.lifecycle import serving
from foldflight.testing import run_epochs

@udaf
class Spread:
    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, values: list[int], value: int) -> None:
        values.append(value)

    def merge(self, values: list[int], other: list[int]) -> None:
        values.extend(other)

    def get_value(self, values: list[int]) -> int:
        return max(values) - min(values)

rows = pa.record_batch({"slot": pa.array([0, 0, 1], pa.int32()), "value": pa.array([1, 2, 3])})

def folds(target):
    with connect(target).transport.open(Open((Call("sum", ("value",)),), rows.schema)) as exchange:
        exchange.chunk(rows)
        exchange.barrier(1)
        return exchange.results(1).column("output_0").to_pylist()

with serving() as server:
    assert folds(server.url) == folds("embedded:") == [3, 3]
(epoch,) = run_epochs(
    {"spread": connect("embedded:").register(Spread)["spread"]("v")}, [[{"v": 3}, {"v": 9}]], types={"v": "BIGINT"}
)
assert [row["spread"] for _, row in epoch.changelog] == [6]
print("the core ran")

def called_without_states(name):
    with serving() as server, fl.connect(server.url) as client:
        try:
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_path(name))
            writer.begin(pa.schema({"value": pa.list_(pa.int64())}))
            writer.done_writing()
            reader.read_all()
        except fl.FlightError as error:
            raise translated(error, url=server.url, deadline_s=60)

for statement in sys.argv[2:]:
    try:
        exec(statement)
    except RejectedError as error:
        print(error.code, error.message)
    else:
        print(f"{statement} was not refused")
"""

# What needs a room.
NEEDED = {
    "compiler": ["connect('embedded:').register(udaf(compile=True)(Spread))"],
    "conformance": ["cli.commands['conform'].main(['server', 'grpc://127.0.0.1:9'], standalone_mode=False)"],
    "dialects": ["udaf(adapt='beam')(Spread)", "udaf(type('Foreign', (Spread, pa.RecordBatchReader), {}))"],
    "java": ["connect('embedded:', java=['functions.jar::com.acme.WeightedAvg'])"],
    "recording": [
        "connect('embedded:', record=Recordings('recordings'))",
        "serving(record='recordings').__enter__()",
        "cli.commands['replay'].main(['a.recording', '--shrink'], standalone_mode=False)",
    ],
    "tables": ["from foldflight.spark import write_table"],
    "tracing": ["connect('embedded:', otlp_endpoint='http://localhost:4318')"],
    "wire": ["called_without_states('aggregate:sum')"],
}


@pytest.mark.parametrize("room", ROOMS)
def test_the_core_runs_without_a_room(room: str, tmp_path: Path) -> None:
    """Only what needs the room is refused, and the error names the room and the remedy."""
    program = [sys.executable, "-c", CORE, f"foldflight.ext.{room}", *NEEDED[room]]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    core, *said = done.stdout.splitlines()
    assert core == "the core ran"
    error = f"MODULE {ROOMS[room]}: the package foldflight.ext.{room} is missing in this installation; install all of "
    if room == "compiler":
        error = "SIGNATURE spread is declared compile=True and this installation of foldflight has no compiler: "
        notice = "this installation of foldflight has no compiler, so functions are interpreted"
        assert notice in done.stderr, "a compiler must not vanish without a word"
    assert [each[: len(error)] for each in said] == [error] * len(NEEDED[room])


def test_each_room_is_in_the_table_and_has_a_readme() -> None:
    """A room that the table leaves out would never be loaded."""
    rooms = {path.parent.name for path in (PACKAGE / "ext").glob("*/__init__.py")}
    assert rooms == set(ROOMS)
    for room in rooms:
        readme = (PACKAGE / "ext" / room / "README.md").read_text(encoding="utf-8")
        for part in ("*For whom*", "*How it plugs in*", "*Without it*"):
            assert part in readme, room


def test_what_a_room_lacks_is_not_said_of_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is there, and a package that it imports is not."""
    broken = tmp_path / "broken_room.py"
    broken.write_text("import package_that_is_nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    extension: Extension[object] = Extension("tracing")
    monkeypatch.setattr("importlib.import_module", lambda name: __import__("broken_room"))
    with pytest.raises(ModuleNotFoundError, match="package_that_is_nowhere"):
        extension.find()
