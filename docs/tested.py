"""The versions with which CI runs the tests, from the files that install them, for the page of compatibility."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "pandas", "numba", "protobuf", "grpcio")
BEGIN: Final = "<!-- versions that CI runs: written by docs/generate.py -->\n"
END: Final = "<!-- end of the versions -->\n"


def compatibility_page() -> str:
    """Return the page of compatibility, with the table of versions in its place."""
    page = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{tested_table()}\n{END}{after}"


def tested_table() -> str:
    """Return the environments of CI as a Markdown table: what is in each, and when it runs."""
    python = _found(r'^requires-python = ">=([\d.]+)"', "pyproject.toml")
    newest = _found(r"^NEWEST := ([\d.]+)$", "Makefile")
    locked = _locked("requirements-dev.txt")
    sparks, targets = _turns()
    rows = [("the locked packages", "`make test`", python, locked, "each commit")]
    for spark, turn in sparks.items():
        own = locked | _locked(f"tests/spark/pyspark-{spark}.txt")
        rows.append((f"Spark {spark}", f"`make test-spark SPARK={spark}`", python, own, turn))
    lowest = locked | _locked("tests/spark/pyspark-3.5.txt") | _locked("tests/spark/requirements-lowest.txt")
    sail = locked | _locked("tests/spark/requirements-sail.txt")
    sail["pyspark"] = f"client {sail['pyspark-client']}, Sail {sail['pysail']}"
    for what, target, own_python, own in (
        ("the lowest versions", "test-lowest", python, lowest),
        ("the newest Python", "test-newest", newest, locked | _locked("tests/spark/requirements-newest.txt")),
        ("Sail", "test-sail", python, sail),
    ):
        rows.append((what, f"`make {target}`", own_python, own, targets[target]))
    lines = [
        f"| with | tests | Python | {' | '.join(PACKAGES)} | when |",
        f"|{'---|' * (4 + len(PACKAGES))}",
    ]
    for what, tests, of_python, versions, when in rows:
        lines.append(f"| {what} | {tests} | {of_python} | {' | '.join(versions[name] for name in PACKAGES)} | {when} |")
    return "\n".join(lines) + "\n"


def _found(pattern: str, file: str) -> str:
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None, f"{file} has no {pattern}"
    return match[1]


def _locked(file: str) -> dict[str, str]:
    """Return the versions in a file of locked requirements, by package."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==([^ ;\\]+)", text, re.MULTILINE))


def _turns() -> tuple[dict[str, str], dict[str, str]]:
    """Return the turns of CI, by the version of Spark and by the target of make that run in them."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    turns = re.findall(r"^ +(\d)\) others=\(([^)]+)\) ;;$", script, re.MULTILINE)
    count = int(_found(r"^TURNS=(\d+)$", ".ci/run"))
    assert len(turns) == count
    sparks: dict[str, str] = {}
    targets: dict[str, str] = {}
    for turn, arguments in turns:
        for each in arguments.split():
            before, is_spark, spark = each.partition("SPARK=")
            (sparks if is_spark else targets)[spark or before] = f"turn {turn} of {count}"
    return sparks, targets
