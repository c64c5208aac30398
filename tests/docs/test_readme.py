"""The examples and commands in the README and the documentation are correct."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from examples.weighted_avg import WeightedAvg
from foldflight.cli.main import cli
from foldflight.server.run.lifecycle import serving
from tests.docs.running import printed_by
from tests.docs.wheels import build, run
from tests.spark_sessions import NOT_CONNECTED

ROOT = Path(__file__).parents[2]
GUIDES = tuple(f"docs/how-to/{path.name}" for path in sorted((ROOT / "docs" / "how-to").glob("*.md")))
REFERENCE = tuple(f"docs/reference/{path.name}" for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
PAGES = tuple(
    str(path.relative_to(ROOT))
    for folder in (".", "tutorials", "explanation", "gallery")
    for path in sorted((ROOT / "docs" / folder).glob("*.md"))
    if path.name != "changelog.md"  # it includes the file of the root
)
OTHERS = ("bench/README.md", "proto/README.md", "helm/foldflight/README.md")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", *GUIDES, *REFERENCE, *PAGES, *OTHERS)
# The guides with Python that runs, in an order in which names are defined before they are used.
EXECUTED = (
    "README.md",
    "docs/how-to/query-dataframes.md",
    "docs/how-to/read-from-kafka.md",
    "docs/how-to/isolate-errors.md",
    "docs/how-to/keep-large-states.md",
    "docs/how-to/map-rows.md",
    "docs/how-to/come-from-pyspark-or-pyflink.md",
    "docs/how-to/test-without-spark.md",
    "docs/how-to/write-a-vectorised-function.md",
)
FENCE = re.compile(
    r"^ *(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>[^\n`]*)\n(?P<text>.*?)^ *```$"
    r"(?:\n<!-- prints -->\n```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
MARK = "===== the next block ====="
# The settings with which the README's own session starts: two threads, and no port is bound but on the loopback.
SUBMIT_ARGS = (
    "--master local[2] --conf spark.ui.enabled=false --conf spark.driver.bindAddress=127.0.0.1 "
    "--conf spark.sql.shuffle.partitions=2 pyspark-shell"
)


def blocks(document, language):
    """Return the fenced blocks of a language: (file that the block shows or None, text)."""
    result = FENCE.finditer((ROOT / document).read_text(encoding="utf-8"))
    return [(match["file"], match["text"]) for match in result if match["language"] == language]


def command_lines():
    """Return the command lines that the documents show: (document, words without the comment)."""
    return [
        (document, line.partition("#")[0].split())
        for document in DOCUMENTS
        for _, text in blocks(document, "")
        for line in (each.strip().removeprefix("RUN ") for each in text.splitlines())  # also commands of a Dockerfile
        if line.startswith(("foldflight ", "make ", "bash "))
    ]


COMMANDS = [words for _, words in command_lines() if words[0] == "foldflight"]


def plain(source):
    """Return the code without docstrings and layout, in which a file and its short form in the README may differ."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.unparse(tree)


@pytest.mark.slow
@pytest.mark.flaky(reruns=3, reruns_delay=2, only_rerun=[NOT_CONNECTED])
def test_every_python_block_runs_and_prints_what_is_shown(tmp_path):
    """The blocks of the README and the guides, run one after the other, print the lines that are shown below them.

    The blocks of the README run twice, as somebody pastes them again, and leave nothing in the folder. They need the
    wheel and the project of `foldflight init` only; the guides also use the examples of a clone.
    """
    site, project = tmp_path / "site", tmp_path / "orders"
    wheel = build("wheel", tmp_path / "dist")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    run(sys.executable, "-m", "foldflight.cli.main", "init", project, PYTHONPATH=str(site))
    before = {path.name for path in project.iterdir()}
    documented_output = [
        (document, match["text"], (match["printed"] or "").splitlines())
        for document in ("README.md", *EXECUTED)
        for match in FENCE.finditer((ROOT / document).read_text(encoding="utf-8"))
        if match["language"] == "python"
    ]
    readme = sum(document == "README.md" for document, _, _ in documented_output)
    texts = [text for _, text, _ in documented_output]
    texts[readme] = f"import sys\nsys.path.append({str(ROOT)!r})\n{texts[readme]}"
    code = f"\nprint({MARK!r}, flush=True)\n".join(["", *texts, "spark.stop()"])
    script = project / "blocks.py"
    # The first block itself finds Java and the Python of the workers, as on a machine where nothing is set.
    unset = {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": str(site), "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGS}
    with serving(WeightedAvg, http_port=0, health_port=0) as server:
        script.write_text(code.replace("grpc://127.0.0.1:8815", server.url), encoding="utf-8")
        output = printed_by("-u", script, folder=project, environment=environment)
    left = {path.name for path in project.iterdir()} - before
    assert left <= {script.name, ".hypothesis", "__pycache__", "artifacts", "spark-warehouse"}
    printed_blocks = output.split(f"{MARK}\n")[1:-1]
    assert len(printed_blocks) == len(documented_output)
    for (document, text, lines), output in zip(documented_output, printed_blocks, strict=True):
        remaining_lines = iter(output.splitlines())
        for line in lines:
            assert any(line.strip() == each.strip() for each in remaining_lines), (
                f"{document}:\n{text}\n{line}\n\n{output}"
            )


def test_the_blocks_of_other_guides_are_not_said_to_be_python():
    """Each Python block shows a file, or is in a document whose blocks run: none is left out by mistake."""
    # The tutorials have cells and files to save; tests/spark runs the pages of the gallery.
    # test_debugging.py runs the story of a bug, and tests/models the guide with a model.
    apart = ("docs/how-to/debug-a-function.md", "docs/how-to/fold-embeddings.md")
    others = [each for each in DOCUMENTS if each not in (*EXECUTED, *PAGES, *apart)]
    assert [each for each in others if any(file is None for file, _ in blocks(each, "python"))] == []
    result = [match for each in EXECUTED for match in FENCE.finditer((ROOT / each).read_text(encoding="utf-8"))]
    assert sum(match["printed"] is not None for match in result) > 6


def test_blocks_that_show_a_file_show_that_file():
    """A block under `<!-- file: ... -->` equals the code of the file, except for docstrings and layout."""
    file_blocks = [
        (file, text) for document in DOCUMENTS for file, text in blocks(document, "python") if file is not None
    ]
    assert file_blocks, "the README shows no file"
    for file, text in file_blocks:
        assert plain(text) == plain((ROOT / file).read_text(encoding="utf-8")), file


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_lines_name_commands_and_options_that_exist(words):
    """Each command has a help text that lists each option shown with it."""
    command, path = cli, []
    for word in words[1:]:
        if not isinstance(command, click.Group) or word not in command.commands:
            break
        command = command.commands[word]
        path.append(word)
    assert path, words
    run = CliRunner().invoke(cli, [*path, "--help"])
    assert run.exit_code == 0, run.output
    options = set(re.findall(r"(?<![\w-])--[\w-]+", run.output))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} - {"--"} <= options


def leaves(command, path):
    """Yield the commands that are no groups, each with its words."""
    if not isinstance(command, click.Group):
        yield command, path
        return
    for name, each in sorted(command.commands.items()):
        yield from leaves(each, [*path, name])


LEAVES = list(leaves(cli, ["foldflight"]))


@pytest.mark.parametrize(("command", "path"), LEAVES, ids=[" ".join(path) for _, path in LEAVES])
def test_the_help_of_a_command_has_an_example(command, path):
    """It begins with the words of the command, and names options that exist."""
    example = re.search(r"^ *Example: (.*?)\n\n", f"{command.help}\n\n", re.MULTILINE | re.DOTALL)
    assert example is not None, path
    words = example[1].split(" -- ")[0].split()
    assert words[: len(path)] == path
    known_values = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known_values


def test_the_documents_show_every_command():
    """The guides and the reference show how to use every command."""
    assert {words[1] for words in COMMANDS} == set(cli.commands)


def test_the_readme_is_short_and_shows_how_to_begin():
    """It has at most 150 lines, and the two commands for a fresh clone."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    readme_commands = [words for document, words in command_lines() if document == "README.md"]
    assert [words for words in readme_commands if words[0] == "make"] == [["make", "demo"], ["make", "test"]]


def test_make_goals_and_scripts_that_are_shown_exist():
    """The goals of `make` and the scripts in the documents exist."""
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    other_commands = [words for _, words in command_lines() if words[0] != "foldflight"]
    assert other_commands
    for words in other_commands:
        assert words[1] in goals if words[0] == "make" else (ROOT / words[1]).is_file(), words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document):
    """Each relative link leads to a file or folder of the repository."""
    prose = re.sub(r"`[^`\n]+`", "code", FENCE.sub("", (ROOT / document).read_text(encoding="utf-8")))
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    assert [target for target in targets if not ((ROOT / document).parent / target).exists()] == []
