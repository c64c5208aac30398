"""ARCHITECTURE.md is short and accurate: modules exist, imports follow its layers, rows cross the listed modules."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest

from bench import call_counts, measures
from foldflight import connect, udaf
from foldflight.client import Functions, close_connections
from foldflight.engine.batch.tasks import PartialFold
from foldflight.engine.query.query import Query
from foldflight.exchange import frames as exchange_frames
from foldflight.exchange.encoding import Encoder
from foldflight.exchange.frames import Chunk
from foldflight.functions import Call
from foldflight.server.run.lifecycle import serving
from tests.docs.crossing import MODULE, PACKAGE, crossed_modules, missing_modules, way

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROOMS = (ROOT / "docs" / "explanation" / "rooms.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")

LOOSE_FRAME = re.compile(
    r"(?<!window )(?<!ROWS )(?<!RANGE )(?<!stack )(?<!data )(?<!grouped )(?<!over )\bframes?\b(?! bound)", re.IGNORECASE
)
OTHER_ENGINE = re.compile(r"\banother engine\b(?! and declared|\")|(?<!Spark and )\bother engines\b")

stacks: list[list[str]] = []


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Witness:
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator, value):
        stacks.append(crossed_modules())
        accumulator[0] += value

    def merge(self, accumulator, other):
        accumulator[0] += other[0]

    def get_value(self, accumulator):
        return accumulator[0]


def fold_one_row(functions: Functions) -> None:
    query = Query.of(functions("value").transport, {"total": Call("witness", ("value",))}, call_counts.LAYOUT)
    block = pa.RecordBatch.from_pydict({"key_0": ["a"], "column_0": [1]}, schema=call_counts.LAYOUT.rows)
    assert sum(batch.num_rows for batch in PartialFold(query, query.bounds)([block])) == 1


def test_modules_and_files_that_are_named_exist():
    """Each path in ARCHITECTURE.md, its drawing and the explanations is a file of the package or of the repository."""
    drawing = (ROOT / "docs" / "_static" / "epoch.svg").read_text(encoding="utf-8")
    pages = [
        TEXT,
        *(f"`{name}`" for name in re.findall(r'class="where"[^>]*>([^<]+)<', drawing)),
        *(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "explanation").glob("*.md")),
    ]
    names = {name for page in pages for name in MODULE.findall(page)}
    assert names
    assert [name for name in sorted(names) if not ((PACKAGE / name).exists() or (ROOT / name).exists())] == []


def test_each_package_has_a_section():
    """Each package has a section of the page about rooms."""
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^## (\w+)$", ROOMS, re.MULTILINE)) == packages


def test_the_floor_plan_has_every_package():
    """The floor plan has exactly one line for each package."""
    plan = re.search(r"^service/foldflight/\n(.*?)^tests/", TEXT, re.MULTILINE | re.DOTALL)
    assert plan is not None
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/ ", plan.group(1), re.MULTILINE)) == packages


def test_the_layers_are_those_of_import_linter():
    """The layers equal those that import-linter checks."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = tools["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert f"`{' > '.join(layers)}`" in " ".join(TEXT.split())


def test_a_row_crosses_the_modules_that_are_named_embedded():
    """The call stack below the author's `accumulate` has the modules of the table, in its order."""
    stacks.clear()
    fold_one_row(connect(Witness))
    assert missing_modules(way(2, remote=False), stacks[0]) == []


def test_a_row_crosses_the_modules_that_are_named_remote(monkeypatch):
    """The stacks where a chunk is encoded, and below `accumulate` on the server, have the modules of the table."""
    sent_rows = []
    encode = Encoder.__call__

    def note(encoder, frame):
        if isinstance(frame, Chunk):
            sent_rows.append(crossed_modules())
        return encode(encoder, frame)

    monkeypatch.setattr(Encoder, "__call__", note)
    stacks.clear()
    with serving(Witness, http_port=0, health_port=0) as server:
        fold_one_row(connect(server.url))
        close_connections()
    assert missing_modules(way(2, remote=True), sent_rows[0] + stacks[0]) == []


@pytest.mark.parametrize(
    ("task", "calls_max"), [("embedded_partition", 400), ("remote_chunk", 40), ("remote_barrier", 90)]
)
def test_small_tasks_need_few_calls(task, calls_max):
    """Three rows, or one frame, need a bounded number of Python calls: a fifth above today's numbers."""
    calls = getattr(call_counts, task)()
    assert calls.total() <= calls_max, calls


def test_lines_of_code_are_counted_without_docstrings_and_comments():
    """Blank lines, comments and docstrings do not count; other texts do."""
    text = '"""Module."""\n\n# why\ndef f():\n    """Two\n    lines."""\n    text = """a\n    b"""\n    return text\n'
    assert measures.code_lines(text) == 4


def test_the_glossary_has_each_term_once():
    """The terms are sorted, each has one meaning, and the classes that the page names are made of them."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", GLOSSARY, re.MULTILINE)[1:]
    terms = [term for term, _ in rows]
    assert terms == sorted(set(terms))
    assert terms
    assert [term for term, meaning in rows if ";" in meaning or "," in term] == []
    words = {word for term in terms for word in term.split()}
    frames = {name for name, value in vars(exchange_frames).items() if isinstance(value, type)}
    names = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", TEXT + ROOMS)) - frames
    names = {name for name in names if not name.endswith("Error")}
    parts = {name: {part.lower().removesuffix("s") for part in re.findall("[A-Z][a-z]+", name)} for name in names}
    assert [name for name in sorted(names) if not parts[name] & words] == []


def test_frames_and_engines_have_the_meaning_of_the_glossary():
    """Names and docstrings outside of the protocol tell which frames they mean, and other systems are no engines."""
    loose = []
    for folder in ("engine/over", "functions", "ext/lift", "spark", "sql"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                texts = [*_defined_names(node), *_documented_names(node)]
                loose += [(path.name, text) for text in texts if LOOSE_FRAME.search(text)]
    assert loose == []
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]
    assert [page.name for page in pages if OTHER_ENGINE.search(page.read_text(encoding="utf-8"))] == []


def _defined_names(node: ast.AST) -> list[str]:
    """Return the names that a node defines, as words."""
    match node:
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return [_words(name)]
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [_words(name)]
    return []


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " "))


def _documented_names(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return []
    return [" ".join((ast.get_docstring(node) or "").split())]
