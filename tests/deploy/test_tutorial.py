"""The part of the tutorial on fleets that needs containers. tests/docs/test_tutorials.py runs its other cells."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.kit import ROOT, Fleet
from tests.docs.cells import cells_of
from tests.wire.kit import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("images")]

TEXT = (ROOT / "docs" / "tutorials" / "06-fleet-with-compose.md").read_text(encoding="utf-8")


def block_with(words: str, language: str) -> str:
    """Return the only fenced block of a language that contains the words."""
    (result,) = (
        each for each in re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) if words in each
    )
    return str(result)


def module() -> str:
    """Return the module that a cell of the tutorial writes."""
    (cell,) = (each.code for each in cells_of(TEXT) if "write_text('''" in each.code)
    (source,) = (
        node.value
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Constant) and "@udaf" in str(node.value)
    )
    return str(source)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two servers and the balancer, with the module and the job of the tutorial in their folder."""
    tmp_path.chmod(0o755)
    (tmp_path / "my_functions.py").write_text(module())
    (tmp_path / "job.py").write_text(block_with("grpc://balancer:8815", "python"))
    result = Fleet(f"tutorial{os.getpid()}", FUNCTIONS=str(tmp_path), FOLDFLIGHT_MODULES="my_functions")
    try:
        result.up("balancer")
        yield result
    finally:
        result.down()


def test_the_commands_of_the_tutorial_do_what_it_shows(fleet: Fleet) -> None:
    """The job prints the quoted table, and the fleet grows to four servers and shows its function."""
    command, *table = block_with("spark python job.py", "text").splitlines()
    assert command == "$ docker compose run --rm --no-deps spark python job.py"
    output = fleet.compose(*command.split()[3:], timeout_s=900)
    assert "\n".join(table) in output
    grow = "$ docker compose up --detach --scale server=4 server"
    assert grow in TEXT
    fleet.compose(*grow.split()[3:])
    assert eventually(lambda: [each.get("state") for each in fleet.status()] == ["ready"] * 4), fleet.status()
    assert all("mean_delay" in str(each["functions"]) for each in fleet.status())
