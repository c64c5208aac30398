"""Rules of the architecture that no linter checks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "service" / "foldflight"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))
# A worker process gets everything on its standard input; but prometheus_client can be told its folder in no other way,
# and so can PySpark's worker that it should leave out its traceback.
ENVIRONMENT_WRITERS = {"server/run/worker_process.py", "server/run/compile_process.py", "spark/worker.py"}
# Nothing that leaves this process may contain a secret of it, so texts are compared with values of the environment.
COMPARED_WITH_THE_ENVIRONMENT = "shipping/secrets.py"
# The commands of extensions belong to the command line.
COMMANDS = ("cli/", "ext/conformance/command.py", "ext/recording/command.py")

# Pickles name classes of extensions, so the table of names in earlier pickles does, too.
PICKLED = "fold/pickles.py"

FUNCTION_LINES_MAX = 70
PURE = ("functions/", "fold/", "ext/compiler/", "ext/lift/", "exchange/")
# Memos of what pure functions return: texts of tracebacks, by the places that they name, and texts of lifts.
HELD = {"fold/failures.py": ["_traces"], "ext/lift/descriptions.py": ["_known"]}


def names_of(path):
    return str(path.relative_to(PACKAGE))


def uses(tree, module, *attributes):
    """Return the lines that use `module.attribute`."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in attributes
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    ]


@pytest.mark.parametrize("path", MODULES, ids=names_of)
def test_only_the_command_line_knows_the_environment(path):
    """Values of the environment reach every other module as arguments."""
    if names_of(path).startswith(COMMANDS) or names_of(path) in {*ENVIRONMENT_WRITERS, COMPARED_WITH_THE_ENVIRONMENT}:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert uses(tree, "os", "environ", "getenv", "putenv") == []


@pytest.mark.parametrize("path", MODULES, ids=names_of)
def test_only_the_command_line_and_its_workers_handle_signals(path):
    """A library does not change the signal handlers of the program that uses it."""
    if names_of(path).startswith("cli/") or names_of(path) == "server/run/worker_process.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert uses(tree, "signal", "signal", "set_wakeup_fd", "setitimer") == []


@pytest.mark.parametrize("path", [path for path in MODULES if names_of(path).startswith(PURE)], ids=names_of)
def test_the_pure_rooms_hold_nothing_for_the_process(path):
    """Mutable data belong to objects with an owner; modules have only constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.Global) for node in ast.walk(tree))
    module_state = []
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        makes = getattr(getattr(node, "value", None), "func", None)
        changes = isinstance(getattr(node, "value", None), (ast.Dict, ast.List, ast.Set)) or (
            isinstance(makes, ast.Name) and makes.id in {"dict", "list", "set", "defaultdict", "OrderedDict", "Counter"}
        )
        if isinstance(target, ast.Name) and changes and not (target.id.isupper() or target.id.startswith("__")):
            module_state.append(target.id)
    assert module_state == HELD.get(names_of(path), [])


@pytest.mark.parametrize("path", MODULES, ids=names_of)
def test_functions_stay_small(path):
    """A function has at most 70 lines without its docstring."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            has_docstring = ast.get_docstring(node) is not None
            first = node.body[1] if has_docstring and len(node.body) > 1 else node.body[0]
            assert node.end_lineno - first.lineno < FUNCTION_LINES_MAX, node.name


def modules_named_in(tree):
    """Return the modules of the package whose names are texts in the code, for example for importlib."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    result = [text.split(".")[1:] for text in texts if re.fullmatch(r"foldflight(\.\w+)+", text)]
    return [
        parts
        for parts in result
        if PACKAGE.joinpath(*parts).is_dir() or PACKAGE.joinpath(*parts).with_suffix(".py").is_file()
    ]


def test_no_module_names_one_of_a_layer_above():
    """import-linter sees statements. Texts with names of modules, as importlib takes them, keep to the layers, too."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(each for each in settings["contracts"] if each["id"] == "direction")["layers"]
    height = {room: -place for place, layer in enumerate(layers) for room in re.findall(r"\w+", layer)}
    names = {
        (names_of(path), ".".join(module))
        for path in MODULES
        for module in modules_named_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert ("server/run/workers.py", "server.run.worker_process") in names  # the check finds what there is
    own = {where: where.partition("/")[0].removesuffix(".py") for where, _ in names}
    upwards = {where for where, module in names if height[module.partition(".")[0]] > height[own[where]]}
    assert upwards == {PICKLED}


def test_every_dependency_is_locked_with_hashes():
    """All dependencies of pyproject.toml are in the lock with hashes, and the lock names no index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    extras = [each for name, group in optional.items() if name != "sail" for each in group]
    for file, direct_names in (
        ("requirements.txt", project["dependencies"]),
        ("requirements-dev.txt", project["dependencies"] + extras),
        ("requirements-spark.txt", project["dependencies"] + optional["demo"]),
        ("tests/spark/requirements-sail.txt", [each for each in optional["sail"] if "pandas" not in each]),
        ("requirements-build.txt", ["hatchling"]),
    ):
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        assert not any("://" in line or line.startswith("--") for line in lines)
        entries = " ".join(line for line in lines if not line.startswith("#")).replace("\\", " ")
        hashes_of_name = dict(re.findall(r"([a-z0-9-]+)==\S+((?:\s+--hash=sha256:[0-9a-f]{64})+)", entries))
        names = {re.match(r"[\w-]+", each)[0].lower() for each in direct_names}
        assert names <= set(hashes_of_name), file
        assert entries.count("==") == len(hashes_of_name), file


def printed_by(program):
    """Return what a program prints that runs in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "service")},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_modules_that_take_long_to_import_are_imported_where_they_are_used():
    """A Spark worker starts with each query: it does not wait for what its tasks may never need."""
    program = "import sys, foldflight.spark.stream; print(*{name.partition('.')[0] for name in sys.modules})"
    late = {"numba", "pandas", "structlog", "rich", "prometheus_client", "asyncio", "grpc", "google", "click"}
    assert late & set(printed_by(program).split()) == set()


EMBEDDED_ALONE = """
import sys

for name in ("google", "google.protobuf", "grpc", "grpc_health", "prometheus_client", "pyarrow.flight", "numba", "rich",
             "click", "llvmlite"):
    sys.modules[name] = None  # an import raises ModuleNotFoundError

import importlib.util, logging, pickle
import pyarrow as pa
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "numba" else found(name, *more)
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")

import foldflight.spark.stream, foldflight.sql.session
from foldflight.testing import check_laws, run_epochs
from foldflight import RejectedError, connect, udaf
from foldflight.exchange.frames import Open
from foldflight.functions import Call

@udaf(version=1)
class Total:
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, total: int, value: int) -> int:
        return total + value

    def merge(self, total: int, other: int) -> int:
        return total + other

    def get_value(self, total: int) -> int:
        return total

functions = connect(Total)
transport = pickle.loads(pickle.dumps(functions.transport))
print(*(info.folding for info in transport.infos(look=True) if info.name == "total"))
rows = {"slot": pa.array([0] * 400_000, pa.int32()), "value": pa.array([3] * 400_000, pa.int64())}
rows = pa.RecordBatch.from_pydict(rows)
exchange = transport.open(Open((Call("total", ("value",)),), rows.schema))
exchange.chunk(rows)
exchange.barrier(1)
print(exchange.results(1).column("output_0").to_pylist())
exchange.close()
(epoch,) = run_epochs({"n": functions["total"]("value")}, keys=[], epochs=[[{"value": 3}, {"value": 4}]])
print(epoch.changelog, {law.passed for law in check_laws(Total, examples=5)})
try:
    connect("grpc://127.0.0.1:1")
except RejectedError as error:
    print(error)
"""


def test_embedded_use_needs_neither_grpc_nor_protobuf_nor_numba():
    """Platforms ship old versions of them. Only servers need them; numba makes functions faster."""
    output = printed_by(EMBEDDED_ALONE)
    assert "[1200000]" in output
    assert "[('+I', {'n': 7})]" in output
    assert output.count("WARNING numba is not installed") == 1
    assert "MODULE: cannot connect to 'grpc://127.0.0.1:1': the packages that reach servers are missing" in output
    assert "pip install 'protobuf>=" in output


def test_nothing_reaches_behind_pyspark():
    """Spark Connect has no JVM to call, and the parts of PySpark that are not public change without notice."""
    for path in sorted((ROOT / "service" / "foldflight").rglob("*.py")):
        result = re.search(
            r"\b_(jvm|jc|jdf|jsc|jsparkSession|active_spark_context)\b", path.read_text(encoding="utf-8")
        )
        assert result is None, f"{path}: {result[0]}"


def test_one_room_knows_the_modules_of_pyspark():
    """All of them but these, which PySpark documents, are named in spark/versions only."""
    documented_names = {
        "pyspark",
        *(f"pyspark.{name}" for name in ("errors", "sql", "sql.streaming", "sql.types", "sql.window")),
    }
    allowed_names = {"pyspark.sql.aggregator"}  # has the class of authors' aggregates
    for path in sorted((ROOT / "service" / "foldflight").rglob("*.py")):
        if "versions" not in path.parts:
            names = re.findall(r"(?:from |import |\")(pyspark(?:\.\w+)*)", path.read_text(encoding="utf-8"))
            assert set(names) <= documented_names | allowed_names, path
