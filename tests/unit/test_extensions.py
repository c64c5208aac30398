"""The core runs without each room of `ext`, and says where one is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foldflight.extensions import ROOMS, Extension
from foldflight.lift import MISSING

PACKAGE = Path(__file__).parents[2] / "service" / "foldflight"

# Hides the room that the first argument names.
HIDDEN = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""

# The rows of a query with one key and one argument.
LAYOUT = """
import pyarrow as pa
from foldflight.engine.query.layout import QueryLayout

def layout_of(type_):
    return QueryLayout(
        keys=pa.schema([("key_0", pa.string())]),
        names=("key",),
        columns=pa.schema([("column_0", type_)]),
        display_names=("value",),
        has_kinds=False,
    )
"""

# A fold, embedded and on a server, over several functions and epochs.
CORE = (
    HIDDEN
    + LAYOUT
    + """
import pyarrow.flight as fl
from foldflight import Recordings, RejectedError, connect, udaf, udf
from foldflight.cli.main import cli
from foldflight.client.flight_errors import translate_error
from foldflight.engine.query.query import Query
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

layout = layout_of(pa.int64())

def planned(plan):
    calls = {"total": Call("sum", ("value",))}
    return Query.of(connect("embedded:").transport, calls, layout, plan=plan, no_host_reason="")

assert planned("auto").lift_choice.holds is (sys.argv[1] != "foldflight.ext.lift")

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
            raise translate_error(error, url=server.url, deadline_s=60)

for statement in sys.argv[2:]:
    try:
        exec(statement)
    except RejectedError as error:
        print(error.code, error.message)
    else:
        print(f"{statement} was not refused")
"""
)

# What needs a room.
NEEDED = {
    "changes": [
        "from foldflight.spark import from_debezium",
        "from foldflight.spark import from_canal, upserts",
        "from foldflight.spark import to_upserts, DELTA_CHANGES",
    ],
    "compiler": ["connect('embedded:').register(udaf(compile=True)(Spread))"],
    "conformance": ["cli.commands['conform'].main(['server', 'grpc://127.0.0.1:9'], standalone_mode=False)"],
    "dialects": ["udaf(adapt='beam')(Spread)", "udaf(type('Foreign', (Spread, pa.RecordBatchReader), {}))"],
    "java": ["connect('embedded:', java=['functions.jar::com.acme.WeightedAvg'])"],
    "lift": ["planned('lifted')"],
    "recording": [
        "connect('embedded:', record=Recordings('recordings'))",
        "serving(record='recordings').__enter__()",
        "cli.commands['replay'].main(['a.recording', '--shrink'], standalone_mode=False)",
    ],
    "tables": ["from foldflight.spark import write_table"],
    "tracing": ["connect('embedded:', otlp_endpoint='http://localhost:4318')"],
    "wire": ["called_without_states('aggregate:sum')"],
}


@pytest.mark.every_turn
@pytest.mark.parametrize("room", ROOMS)
def test_the_core_runs_without_a_room(room: str, tmp_path: Path) -> None:
    """Only what needs the room is refused, and the error names the room and the remedy."""
    program = [sys.executable, "-c", CORE, f"foldflight.ext.{room}", *NEEDED[room]]
    process = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    core, *error_lines = process.stdout.splitlines()
    assert core == "the core ran"
    error = f"MODULE {ROOMS[room]}: the package foldflight.ext.{room} is missing in this installation; install all of "
    if room == "compiler":
        error = "SIGNATURE spread is declared compile=True and this installation of foldflight has no compiler: "
        notice = "this installation of foldflight has no compiler, so functions are interpreted"
        assert notice in process.stderr, "a compiler must not vanish without a word"
    if room == "lift":
        error = f"SIGNATURE plan='lifted' is not possible: {MISSING}; leave plan out"
        assert f"{MISSING}, so all rows are folded" in process.stderr, "nor may lifted batches"
    assert [each[: len(error)] for each in error_lines] == [error] * len(NEEDED[room])


# The listing of a server that lifts, the plan of a query, and the law.
TOLD = (
    HIDDEN
    + LAYOUT
    + """
from foldflight import connect
from foldflight.cli.main import function_text
from foldflight.engine.query.query import Query
from foldflight.functions import Call, Registry
from foldflight.testing.laws import LAWS, _Subject

transport = connect("embedded:").transport
(listed,) = (info for info in transport.infos(look=True) if info.name == "bool_or")
print(function_text(listed).plain)
layout = layout_of(pa.bool_())
print(Query.of(transport, {"any": Call("bool_or", ("value",))}, layout, no_host_reason="").explain())
(law,) = (law for law in LAWS if law.name == "the lifted form agrees")
print(law.needs(_Subject(Registry()["bool_or"], {}, [pa.bool_()])))
"""
)


@pytest.mark.every_turn
@pytest.mark.parametrize("is_missing", [True, False])
def test_listings_plans_and_laws_tell_that_nothing_is_lifted(is_missing: bool) -> None:
    """With the extension, they tell that the same function is lifted."""
    room = "foldflight.ext.lift" if is_missing else "foldflight.ext.nothing"
    process = subprocess.run([sys.executable, "-c", TOLD, room], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    expected_lines = [
        f"not lifted because: {MISSING}",
        f"rows are not lifted: {MISSING}",
        f"it is not lifted: {MISSING}",
    ]
    assert [each in process.stdout for each in expected_lines] == [is_missing] * 3
    assert ("lifted in batches" in process.stdout, "rows are lifted: every call lifts" in process.stdout) == (
        not is_missing,
        not is_missing,
    )


def test_each_room_is_in_the_table_and_has_a_readme() -> None:
    """A room that the table leaves out would never be loaded."""
    rooms = {path.parent.name for path in (PACKAGE / "ext").glob("*/__init__.py")}
    assert rooms == set(ROOMS)
    for room in rooms:
        readme = (PACKAGE / "ext" / room / "README.md").read_text(encoding="utf-8")
        for part in ("*For whom*", "*How it plugs in*", "*Without it*"):
            assert part in readme, room


def test_a_missing_package_is_not_told_as_a_missing_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is there, and a package that it imports is not."""
    room_file = tmp_path / "broken_room.py"
    room_file.write_text("import package_that_is_nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    extension: Extension[object] = Extension("tracing")
    monkeypatch.setattr("importlib.import_module", lambda name: __import__("broken_room"))
    with pytest.raises(ModuleNotFoundError, match="package_that_is_nowhere"):
        extension.find()
