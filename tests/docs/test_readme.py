"""The examples and commands in README and CONTRIBUTING are correct."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from foldflight.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "docs/reference/server.md")
FENCE = re.compile(
    r"^(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

# The README's query, on rows whose answer can be counted by hand.
BEFORE = """
import os
from foldflight.spark.java import prepare_local
prepare_local(os.environ)
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.sql.shuffle.partitions", "2").getOrCreate())
flights = spark.createDataFrame(
    [("JFK", "AA", 10, 100, "N1"), ("JFK", "AA", 40, 200, "N1"), ("JFK", "AA", None, 300, "N2"),
     ("LGA", "UA", -7, 100, None)],
    "origin STRING, carrier STRING, arr_delay BIGINT, distance INT, tailnum STRING")
"""
AFTER = """
found = sorted(tuple(row) for row in result.collect())
assert found == [("JFK", "AA", 30, 1, 2, 3), ("LGA", "UA", -7, 0, 0, 1)], found
assert [tuple(row) for row in averages.collect()] == [("LGA", -7)]
assert [(row.key.origin, row.code) for row in failed.collect()] == [("JFK", "USER_CODE")] * 3
assert [(row.plane, row.kmh is None) for row in mapped.collect()] == [
    ("n1", False), ("n1", False), ("n2", True), (None, False)]
assert joined.count() == 4 * len("jfk-")
assert spark.sql("SELECT speed(1000L, 60L)").first()[0] == 1609.0
spark.stop()
print("the README holds")
"""


def blocks(document, language):
    """Return the fenced blocks of a language: (file that the block shows or None, text)."""
    found = FENCE.finditer((ROOT / document).read_text(encoding="utf-8"))
    return [(match["file"], match["text"]) for match in found if match["language"] == language]


def command_lines():
    """Return the command lines that the documents show: (document, words without the comment)."""
    return [
        (document, line.partition("#")[0].split())
        for document in DOCUMENTS
        for _, text in blocks(document, "")
        for line in text.splitlines()
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


def test_every_python_block_of_the_readme_runs(tmp_path):
    """The blocks, run one after the other, give the results of plain arithmetic."""
    code = "\n".join([BEFORE, *(text for _, text in blocks("README.md", "python")), AFTER])
    script = tmp_path / "readme.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'service'}"}
    run = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert "the README holds" in run.stdout


def test_blocks_that_show_a_file_show_that_file():
    """A block under `<!-- file: ... -->` equals the code of the file, except for docstrings and layout."""
    shown = [(file, text) for document in DOCUMENTS for file, text in blocks(document, "python") if file is not None]
    assert shown, "the README shows no file"
    for file, text in shown:
        assert plain(text) == plain((ROOT / file).read_text(encoding="utf-8")), file


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_lines_name_commands_and_options_that_exist(words):
    """Each command has a help text that lists each option shown with it."""
    run = CliRunner().invoke(cli, [words[1], "--help"])
    assert run.exit_code == 0, run.output
    for option in (word for word in words if word.startswith("--")):
        assert option in run.output


def test_readme_shows_every_command():
    """The README mentions every command."""
    assert {words[1] for words in COMMANDS} == set(cli.commands)


def test_make_goals_and_scripts_that_are_shown_exist():
    """The goals of `make` and the scripts in the documents exist."""
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = [words for _, words in command_lines() if words[0] != "foldflight"]
    assert shown
    for words in shown:
        assert words[1] in goals if words[0] == "make" else (ROOT / words[1]).is_file(), words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document):
    """Each relative link leads to a file or folder of the repository."""
    prose = FENCE.sub("", (ROOT / document).read_text(encoding="utf-8"))
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    assert [target for target in targets if not ((ROOT / document).parent / target).exists()] == []
